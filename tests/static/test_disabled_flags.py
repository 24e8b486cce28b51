"""Disabled flags of a script: the guarded code is analyzed as if the flag were on."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check.static.engine import check_source

STEP = """\
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled={amp}):
                loss = model(x, y)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){clip}
            scaler.step(optimizer)
            scaler.update()
"""
SETUP = """\
        import torch

        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def _script(head: str, amp: str, *, wrong: bool = True) -> str:
    body = f"{head}\n        scaler = torch.amp.GradScaler('cuda', enabled={amp})\n"
    return "\n        === train.py\n" + SETUP + body + STEP.format(amp=amp, clip="  # AMP201" if wrong else "")


TREES = {
    "a name at the head of a script": _script("        fp16 = False", "fp16"),
    "an entry of a dict": _script("        config = {'lr': 0.1, 'fp16': False}", "config['fp16']"),
    "a keyword of a dict": _script("        config = dict(lr=0.1, fp16=False)", "config['fp16']"),
    "an attribute that the constructor alone assigns": _script(
        """\
        class Config:
            def __init__(self):
                self.amp = False

            def layers(self, sizes):
                for i, size in enumerate(sizes):
                    setattr(self, f"layer_{i}", size)

        config = Config()""",
        "config.amp",
    ),
    "what is said where it is used is meant": _script("        print()", "False", wrong=False),
    "a name that is given to its only caller's callee, in another file": """
        === fitting.py
        import torch

        def fit(model, optimizer, scaler, loader, fp16):
            for x, y in loader:
                optimizer.zero_grad()
                if fp16:
                    with torch.autocast("cuda"):
                        loss = model(x, y)
                    scaler.scale(loss).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    model(x, y).backward()
                    optimizer.step()

        === train.py
        import torch
        from fitting import fit

        if __name__ == "__main__":
            fp16 = False
            model = torch.nn.Linear(2, 2).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if fp16:
                scaler = torch.amp.GradScaler("cuda")
            else:
                scaler = None
            for epoch in range(3):
                fit(model, optimizer, scaler, [], fp16)
        """,
    "a default of a function that is called once": """
        === train.py
        import torch

        def train(model, loader, fp16=False):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda", enabled=fp16)
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", enabled=fp16):
                    loss = model(x, y)
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                scaler.step(optimizer)
                scaler.update()

        train(torch.nn.Linear(2, 2).cuda(), [])
        """,
    "a default that one of two calls leaves as it is": """
        === train.py
        import torch

        def backward(scaler, loss, optimizer, model, last=False):
            scaler.scale(loss).backward()
            if last:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        def train(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    first, second = model(x), model(y)
                backward(scaler, first.sum() / 2, optimizer, model)
                backward(scaler, second.sum() / 2, optimizer, model, last=True)
                scaler.step(optimizer)
                scaler.update()
        """,
    "a name that is a state and no setting": """
        === train.py
        import torch

        def train(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x, y)
                scaled = False
                scaler.scale(loss).backward()
                if not scaled:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
    "one setting guards all that belongs together": """
        === train.py
        import torch

        fp16 = False
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda") if fp16 else None
        for x, y in []:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=fp16):
                loss = model(x, y)
            if fp16:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
            else:
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if fp16:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        """,
}


@pytest.mark.parametrize("name", TREES)
def test_what_a_switch_guards_is_read(name: str, tmp_path: Path) -> None:
    write(tmp_path, TREES[name])
    assert found(tmp_path) == marks(tmp_path)


IN_SEQUENCE = """\
import torch

FEATURES = {features}

def enable(name):
    FEATURES.append(name)

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        if "clip" {test}:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("features", "test", "is_run"),
    [
        ("[]", "in FEATURES", True),
        ('["log"]', "in FEATURES", True),
        ('["log", "clip"]', "in FEATURES", True),
        ('["log"]', "not in FEATURES", True),
        ("[]", 'in ("log", "clip")', True),
        ("[]", 'in ("log",)', False),
        ("[]", 'not in ["clip"]', False),
    ],
)
def test_code_that_runs_if_a_sequence_holds_a_name(features: str, test: str, is_run: bool) -> None:
    found = check_source(IN_SEQUENCE.format(features=features, test=test))
    assert [finding.code for finding in found] == (["AMP201"] if is_run else [])
