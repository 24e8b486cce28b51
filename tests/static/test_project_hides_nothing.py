"""Files that neither supply the missing call nor replace the code withdraw no finding of any rule.

The ``bad`` program of each rule becomes a method of one file, and other files are added in turn: a caller, a subclass,
an unrelated script. Each finding of the file alone must stay.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from marks import MISTAKES, Places, marks
from samples import sample
from trees import write

from pytest_amp_check.protocol.rule import RUNTIME
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.settings import Settings

#: Codes under test. Comments, broken syntax and unanalyzed calls are properties of a file, not of its functions.
CODES = [
    code for code, rule in RULES.items() if rule.detected_by != RUNTIME and code not in ("AMP902", "AMP903", "AMP904")
]
SETTINGS = Settings(select=MISTAKES)

METHOD = """\
class Base:
    def __init__(self):
        self.optimizer_step_limit = None
        self.rows = []

    def _optimizer_step_limit_exceeded(self):
        limit = self.optimizer_step_limit
        if limit is None:
            return False
        for row in self.rows:
            limit = min(limit, len(row))
        for row in self.rows:
            limit = max(limit, len(row))
        return limit > 10

    def zero_rows(self):
        for number in range(len(self.rows)):
            row = self.rows[number]
            row = [0 for each in row]
            self.rows[number] = row
        for row in self.rows:
            print(row)
        return self.rows

    def on_fit_start(self):
        for row in self.rows:
            print(row)
        for row in self.rows:
            print(len(row))
        for row in self.rows:
            print(sum(row))
        return self.rows


class Trainer(Base):
    def __init__(self, amp=False):
        super().__init__()
        self.amp = amp

    def log(self, text):
        print(text)

    def fit(self):
        self.on_fit_start()
        if self._optimizer_step_limit_exceeded():
            return
        self.zero_rows()
        self.log("begin")
        if self.amp:
{program}
"""

#: Files beside ``trainer.py``, by their effect.
FRAMES = {
    "a test that leaves the flag off": """
        === test_trainer.py
        import torch
        from trainer import Trainer

        def test_fit():
            trainer = Trainer()
            trainer.fit()
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(torch.randn(4, 2)).sum()
                loss.backward()
                optimizer.step()
        """,
    "a caller with the flag in its options": """
        === main.py
        import argparse

        import torch
        from trainer import Trainer

        def options(lr=0.1, amp=False, **rest):
            return argparse.Namespace(lr=lr, amp=amp)

        class Runner:
            def __init__(self, net):
                self.net = net

            def train(self, probe, **kwargs):
                args = options(**kwargs)
                optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr)
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = self.net(probe).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                Trainer(amp=options(**kwargs).amp).fit()
        """,
    "a subclass that overrides another method": """
        === special.py
        import torch
        from trainer import Trainer

        class Drawing(Trainer):
            def log(self, text):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    self.model(text)

        def main(amp):
            Drawing().fit()

        if __name__ == "__main__":
            main(None)
        """,
    "a caller that uses up the budget before": """
        === main.py
        import torch
        from helpers import many
        from trainer import Trainer

        model = torch.nn.Linear(8, 2)
        trainer = Trainer(True)
        for x in [torch.randn(4, 8)]:
            trainer.fit()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                many(many(many(many(model(x)))))

        === helpers.py
        import torch

        def one(x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                x = torch.relu(x)
            return x

        def ten(x):
            return one(one(one(one(one(one(one(one(one(one(x))))))))))

        def hundred(x):
            return ten(ten(ten(ten(ten(ten(ten(ten(ten(ten(x))))))))))

        def many(x):
            return hundred(hundred(hundred(hundred(x))))
        """,
    "an unrelated training": """
        === scripts/other.py
        import torch

        def train(model, loader, criterion):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = criterion(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            torch.save({"scaler": scaler.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
        """,
    "scripts that do half of it": """
        === scripts/clear.py
        def clear(optimizer):
            optimizer.zero_grad()

        === scripts/finish.py
        def finish(scaler):
            scaler.update()

        === scripts/unscale.py
        def unscale(scaler, optimizer):
            scaler.unscale_(optimizer)
        """,
    "an exporter in half precision": """
        === export.py
        import torch

        def export(path):
            model = torch.load(path)
            model.half().eval()
            torch.save(model.state_dict(), "half.pt")
        """,
    "a factory of optimizers": """
        === factory.py
        import torch

        OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}

        def make_optimizer(name, parameters, lr=0.1):
            return OPTIMIZERS[name](parameters, lr=lr)
        """,
}
#: Rules whose program shows less inside of a method, because it is about classes and functions of the module. The set
#: may only shrink.
ONLY_IN_MODULES = {"AMP106", "AMP108", "AMP306"}


def in_a_method(program: str) -> str:
    return METHOD.format(program=textwrap.indent(program, " " * 12))


def alone(text: str) -> Places:
    """Return the findings of a file without other files."""
    return {(finding.line, finding.code) for finding in check_source(text, "trainer.py", SETTINGS)}


def beside(frame: str, text: str, root: Path) -> Places:
    """Return the findings in a file among other files."""
    write(root, frame)
    (root / "trainer.py").write_text(text, encoding="utf-8")
    found = check_paths([str(root)], SETTINGS).findings
    return {(finding.line, finding.code) for finding in found if finding.filename == str(root / "trainer.py")}


@pytest.mark.parametrize("code", CODES)
def test_a_method_shows_by_itself_what_the_program_of_its_rule_shows(code: str) -> None:
    text = in_a_method(RULES[code].bad_example)
    assert (marks(text) <= alone(text)) is (code not in ONLY_IN_MODULES)


@pytest.mark.long
@pytest.mark.parametrize("frame", FRAMES)
def test_other_files_withdraw_no_finding(frame: str, tmp_path: Path) -> None:
    lost = {}
    for code in sample(CODES, 12, list(FRAMES).index(frame)):
        text = in_a_method(RULES[code].bad_example)
        missing = alone(text) - beside(FRAMES[frame], text, tmp_path / code)
        if missing:
            lost[code] = sorted(missing)
    assert lost == {}


@pytest.mark.long
@pytest.mark.parametrize("frame", FRAMES)
def test_other_files_add_no_finding_to_right_programs(frame: str, tmp_path: Path) -> None:
    wrong = {}
    for code in sample(CODES, 12, 5 + list(FRAMES).index(frame)):
        text = in_a_method(RULES[code].good_example)
        extra = beside(FRAMES[frame], text, tmp_path / code) - alone(text)
        if extra:
            wrong[code] = sorted(extra)
    assert wrong == {}
