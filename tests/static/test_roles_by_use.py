"""Scalers, optimizers, modules and engines recognized by the use in a file, regardless of names."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from trees import found, marks, write

from pytest_amp_check import check_paths, check_source

#: A function that takes a state is an entry point if the file uses some object as a scaler.
HAS_SCALER = """\
import torch


def region(m):
    return torch.autocast("cuda")


def uses(s, o, loss, given):
{body}


def keep(net, path):
    torch.save(net.state_dict(), path)
"""


def has_scaler(root: Path, body: str) -> bool:
    """Check a file. Return True if the analyzer recognizes a scaler in the file."""
    text = HAS_SCALER.format(body=indent(body, " " * 4))
    (root / "a.py").write_text(text, encoding="utf-8")
    line = text.split("\n").index("def keep(net, path):") + 1
    return (str(root / "a.py"), line) in check_paths([str(root)]).reached


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s.unscale_(o)", True),
        ("s.scale(loss).backward()", True),
        ("s.scale(loss)", False),
        ("s.other(loss).backward()", False),
        ("s.other.scale(loss).backward()", True),
        ("loss.backward()", False),
        ("s.scale(loss)\ns.step(o)", True),
        ("s.scale(loss)\ns.step()", False),
        ("s.step(o)", False),
        ("s.scale(loss)\no.step()", False),
        # An object with a scaler's name is a scaler if it steps an object.
        ("scaler.step(o)", True),
        ("given.grad_scaler.step(o)", True),
        ("given.Scaler.step(o)", True),
        ("scaler.step()", False),
        ("scaler.update()", False),
        ("scalers.other.step(o)", False),
        # An object that is updated, and steps an object which is cleared like an optimizer.
        ("s.step(o)\ns.update()\no.zero_grad()", True),
        ("s.step(o)\ns.update()", False),
        ("s.step(o)\ns.update()\nloss.zero_grad()", False),
        ("s.step(o)\no.zero_grad()", False),
        ("s.update()\no.zero_grad()", False),
        # An object that runs a backward belongs to a library.
        ("s.step(o)\ns.update()\no.zero_grad()\ns.backward(loss)", False),
        ("s.step(o[0])\ns.update()\no.zero_grad()", False),
        ("given.s.step(given.o)\ngiven.s.update()\ngiven.o.zero_grad()", True),
        ("given.s.step(given.o)\ngiven.s.update()\no.zero_grad()", False),
        # Objects with the same expression are the same object.
        ("s.step(o)\ns.update()\no.zero_grad(set_to_none=True)", True),
        ("s.step(s)\ns.update()", False),
    ],
)
def test_what_is_a_scaler(tmp_path: Path, body: str, *, expected: bool) -> None:
    assert has_scaler(tmp_path, body) is expected


#: The clip of gradients that are still scaled is found if the roles of the objects are known.
TRAIN = """\
import torch


def train(self, loader):
    for x in loader:
        self.opt.zero_grad()
        with torch.autocast("cuda"):
            loss = self.model(x)
        {scale}.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        {step}
"""


@pytest.mark.parametrize(
    ("scale", "step", "expected"),
    [
        ("self.s.scale(loss)", "self.s.step(self.opt)\n        self.s.update()", ["AMP201"]),
        ("self.s.scale(loss)", "self.s.unscale_(self.opt)\n        self.s.step(self.opt)", ["AMP201"]),
        ("loss", "self.opt.step()", []),
    ],
)
def test_scaled_gradients_of_a_scaler_by_use(scale: str, step: str, expected: list[str]) -> None:
    found = [f.code for f in check_source(TRAIN.format(scale=scale, step=step), "train.py")]
    assert [code for code in found if code == "AMP201"] == expected


#: A step without the scaler is found if the object is known to be an optimizer.
STEPS = """\
import torch


def train(self, loader, scaler):
    for x in loader:
        {clear}
        with torch.autocast("cuda"):
            loss = self.model(x)
        scaler.scale(loss).backward()
        {step}
        scaler.update()
"""


@pytest.mark.parametrize(
    ("clear", "step", "expected"),
    [
        ("self.sgd.zero_grad()", "self.sgd.step()", ["AMP204"]),
        ("self.sgd.zero_grad()", "scaler.step(self.sgd)", []),
        ("self.sgd.clear()", "self.sgd.step()", []),
        ("self.sgd.zero_grad()", "self.other.step()", []),
    ],
)
def test_an_optimizer_by_use(clear: str, step: str, expected: list[str]) -> None:
    found = [f.code for f in check_source(STEPS.format(clear=clear, step=step), "train.py")]
    assert [code for code in found if code == "AMP204"] == expected


def test_an_optimizer_with_the_modes_of_a_module_is_an_optimizer(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        === make.py
        import schedulefree

        def make(params):
            optimizer = schedulefree.AdamWScheduleFree(params)
            optimizer.train()
            return optimizer

        def test(optimizer, model):
            optimizer.eval()
            return model.evaluate()
        === train.py
        import torch
        from make import make

        def train(model, loader):
            scaler = torch.amp.GradScaler("cuda")
            best = make(model.parameters())
            for x in loader:
                best.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x)
                scaler.scale(loss).backward()
                best.step()  # AMP204
        """,
    )
    assert found(tmp_path) == marks(tmp_path)


WRAPPER = """
    === optim.py
    class Wrapper:
        def __init__(self, optimizer, schedule=None):
            self.optimizer, self.schedule = optimizer, schedule

        def step(self):
            self.optimizer.step()

        def zero_grad(self):
            self.optimizer.zero_grad()

    def construct(make, model, options):
        if not options:
            return Wrapper(make(model))
        return Wrapper(make(model, options), options)
    === trainer.py
    import torch
    from optim import construct

    class Trainer:
        def train(self, loader):
            for x in loader:
                try:
                    self.run_step(x)
                    self.scaler.step(self.optim.optimizer)
                    self.scaler.update()
                except FloatingPointError:
                    pass

        def run_step(self, x):
            self.optim.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x)
            self.scaler.scale(loss).backward()

        def set_up(self, make, options):
            self.optim = construct(make, self.model, options)
"""


def test_a_wrapper_clears_what_its_owner_steps(tmp_path: Path) -> None:
    write(tmp_path, WRAPPER)
    assert found(tmp_path) == set()


#: A call with a loss and an optimizer, like timm's scaler, makes a function an entry point.
CALLS = """\
import torch


def region(m):
    return torch.autocast("cuda")


def uses(loss_scaler, loss, optimizer, given):
{body}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("loss_scaler(loss, optimizer)", True),
        ("loss_scaler(loss, given)", False),
        ("loss_scaler(loss)", False),
        ("loss_scaler(optimizer)", False),
        ("loss_scaler(loss, given, optimizer)", False),
        ("loss_scaler(loss, optimizer=given.optim)", True),
        ("loss_scaler(loss, optimizer=given.o)", False),
        ("loss_scaler(loss, other=given.optim)", False),
        ("loss_scaler(loss, given.optim.first)", False),
        ("loss_scaler(loss, given.optims[0])", True),
        ("loss_scaler(loss, optimizer())", False),
        ("given.loss_scaler(loss, given.Optim)", True),
        ("given.Scaler(loss, optimizer)", True),
        ("loss_scaler.other(loss, optimizer)", False),
        ("other(loss, optimizer)", False),
        # Any name, with further evidence from other calls.
        ("loss_scaler(loss, given)\ngiven.step()\ngiven.zero_grad()", True),
        ("loss_scaler(loss, given)\ngiven.step()", False),
        ("loss_scaler(loss, given)\ngiven.zero_grad()", False),
    ],
)
def test_what_is_called_as_the_scaler_of_timm_is(tmp_path: Path, body: str, *, expected: bool) -> None:
    text = CALLS.format(body=indent(body, " " * 4))
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    line = text.split("\n").index("def uses(loss_scaler, loss, optimizer, given):") + 1
    assert ((str(tmp_path / "a.py"), line) in check_paths([str(tmp_path)]).reached) is expected
