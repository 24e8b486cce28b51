"""Code that every call in a file disables: its functions are also analyzed as entry points."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from marks import marks, places, shown
from trees import found

from pytest_amp_check import check_source

FUNCTION = """\
import torch


def train(model, loader, optimizer, {parameter}):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        if {test}:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            {unscale}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
            scaler.step(optimizer)
            scaler.update()
        else:
            model(x).mean().backward()
            optimizer.step()


"""
#: Parameter, condition and calls that never execute the branch.
CALLS = {
    "two calls that leave False": ("amp=False", "amp", "train(a(), b(), c())\ntrain(d(), e(), f())"),
    "two calls that leave None": ("amp=None", "amp is not None", "train(a(), b(), c())\ntrain(d(), e(), f())"),
    "a default that is a number": ("window=0", "window > 0", "train(a(), b(), c())\ntrain(d(), e(), f())"),
    "a default that is a text": ('precision="fp32"', 'precision == "amp"', "train(a(), b(), c())"),
    "an argument": ("amp", "amp", "train(a(), b(), c(), False)"),
    "a named argument": ("*, precision", 'precision == "fp16"', 'train(a(), b(), c(), precision="fp32")'),
    "different arguments": (
        "precision",
        'precision == "fp16"',
        'train(a(), b(), c(), "fp32")\ntrain(a(), b(), c(), "bf16")',
    ),
    "an argument of a function between": (
        "amp",
        "amp",
        "def main(amp=False):\n    train(a(), b(), c(), amp)\n\n\nmain()\nmain()",
    ),
}


@pytest.mark.parametrize(("parameter", "test", "calls"), CALLS.values(), ids=CALLS)
def test_a_branch_that_no_call_executes_is_analyzed(parameter: str, test: str, calls: str) -> None:
    for unscale, mark in (("pass", "  # AMP201"), ("scaler.unscale_(optimizer)", "")):
        source = FUNCTION.format(parameter=parameter, test=test, unscale=unscale, mark=mark) + calls + "\n"
        findings = check_source(source)
        assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize(
    "calls",
    [
        "train(a(), b(), c(), amp=False)\ntrain(a(), b(), c(), amp=True)",
        "train(a(), b(), c())\ntrain(a(), b(), c(), amp=ask())",
    ],
)
def test_a_branch_that_one_call_executes_is_reported_once(calls: str) -> None:
    source = FUNCTION.format(parameter="amp=False", test="amp", unscale="pass", mark="  # AMP201") + calls + "\n"
    assert places(check_source(source)) == marks(source)


def test_code_behind_a_conditional_return_is_analyzed() -> None:
    source = textwrap.dedent(
        """\
        import torch


        def step(model, loss, optimizer, scaler=None):
            if scaler is None:
                loss.backward()
                optimizer.step()
                return
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()


        def train(model, loader, optimizer):
            for x in loader:
                optimizer.zero_grad()
                step(model, model(x).mean(), optimizer)
        """
    )
    assert places(check_source(source)) == marks(source)


def test_methods_are_analyzed_with_what_their_class_assigns() -> None:
    source = textwrap.dedent(
        """\
        import torch


        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def step(self, x, half=False):
                self.optimizer.zero_grad()
                if half:
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.model(x).mean()
                        self.scaler.scale(loss).backward()  # AMP103
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                else:
                    self.model(x).mean().backward()
                    self.optimizer.step()

            def fit(self, loader):
                for x in loader:
                    self.step(x)


        Trainer(build(), make()).fit(load())
        """
    )
    assert places(check_source(source)) == marks(source)


SWITCHED = """\
import torch


def train(model, loader, optimizer, {parameter}):
    scaler = torch.amp.GradScaler("cuda", enabled={switch})
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled={switch}):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
        scaler.step(optimizer)
        scaler.update()


"""


@pytest.mark.parametrize(
    ("parameter", "switch", "calls"),
    [
        ("amp=False", "amp", "train(a(), b(), c())\ntrain(d(), e(), f())"),
        ("amp=False", "amp", "train(a(), b(), c(), False)"),
        ("use=None", "use is not None", "train(a(), b(), c())"),
        ('precision="fp32"', 'precision == "fp16"', "train(a(), b(), c())"),
        ("*, half", "half", "def main(half=False):\n    train(a(), b(), c(), half=half)\n\n\nmain()\nmain()"),
    ],
)
def test_a_function_whose_scaler_no_call_enables_is_analyzed(parameter: str, switch: str, calls: str) -> None:
    for unscale, mark in (("pass", "  # AMP201"), ("scaler.unscale_(optimizer)", "")):
        source = SWITCHED.format(parameter=parameter, switch=switch, unscale=unscale, mark=mark) + calls + "\n"
        findings = check_source(source)
        assert places(findings) == marks(source), shown(findings)


def test_methods_of_a_class_whose_scaler_no_call_enables_are_analyzed() -> None:
    source = textwrap.dedent(
        """\
        import torch


        class Trainer:
            def __init__(self, model, optimizer, amp=False):
                self.model, self.optimizer, self.amp = model, optimizer, amp
                self.scaler = torch.amp.GradScaler("cuda", enabled=amp)

            def step(self, x):
                self.optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16, enabled=self.amp):
                    loss = self.model(x).mean()
                self.scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
                self.scaler.step(self.optimizer)
                self.scaler.update()


        first, second = Trainer(build(), make()), Trainer(build(), make(), False)
        for x in load():
            first.step(x)
            second.step(x)
        """
    )
    assert places(check_source(source)) == marks(source)


@pytest.mark.parametrize("switch", ["False", "amp and False"])
def test_a_scaler_that_the_function_itself_disables_is_off(switch: str) -> None:
    source = SWITCHED.format(parameter="amp=False", switch=switch, unscale="pass", mark="")
    assert places(check_source(source + "train(a(), b(), c())\ntrain(d(), e(), f())\n")) == set()


#: Right programs: what the branch lacks, the caller does, or a value that belongs to the branch.
RIGHT = {
    "the caller unscales": """
        def finish(model, optimizer, scaler, limit=None):
            if limit:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()

        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                finish(model, optimizer, scaler)
        """,
    "the caller clears": """
        def step(model, x, optimizer, scaler=None):
            if scaler is None:
                model(x).mean().backward()
                optimizer.step()
            else:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def train(model, loader, optimizer):
            for x in loader:
                optimizer.zero_grad()
                step(model, x, optimizer)
        """,
    "a helper that scales or not": """
        def backward(loss, scaler=None):
            if scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()

        def train(model, loader, optimizer):
            for x in loader:
                optimizer.zero_grad()
                backward(model(x).mean())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """,
    "a window that one argument sizes": """
        def train(model, loader, optimizer, scaler, window=1):
            for i, x in enumerate(loader):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).mean()
                if window > 1:
                    loss = loss / window
                scaler.scale(loss).backward()
                if (i + 1) % window == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()

        train(a(), b(), c(), torch.amp.GradScaler("cuda"))
        """,
    "an option that asks for another": """
        def train(model, loader, optimizer, half=False, clip=False):
            if clip and half:
                raise ValueError("clip does not unscale")
            scaler = torch.amp.GradScaler("cuda", enabled=half)
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16, enabled=half):
                    loss = model(x).mean()
                scaler.scale(loss).backward()
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()

        train(a(), b(), c())
        """,
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_what_callers_do_is_not_missing(program: str) -> None:
    findings = check_source("import torch\n\n" + textwrap.dedent(program))
    assert findings == [], shown(findings)


def test_calls_of_other_files_disable_it_as_well(tmp_path: Path) -> None:
    source = FUNCTION.format(parameter="amp=False", test="amp", unscale="pass", mark="  # AMP201")
    (tmp_path / "steps.py").write_text(source)
    (tmp_path / "main.py").write_text("from steps import train\n\ntrain(a(), b(), c())\ntrain(d(), e(), f())\n")
    assert found(tmp_path) == {("steps.py", line, code) for line, code in marks(source)}
