"""Mistakes spread over classes and files: each with the right project beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}

# The class of a parameter, known by its annotation.
for _annotation, _default in (("Engine", ""), ('"Engine"', ""), ("Optional[Engine]", " = None"), ("Abstract", "")):
    for _unscale, _mark in (("pass", "  # AMP201"), ("engine.scaler.unscale_(self.optimizer)", "")):
        CASES[f"annotated with {_annotation}: {_unscale}"] = f"""
        === train.py
        from typing import Optional
        import torch
        from torch import nn

        class Abstract:
            def backward_loss(self, loss):
                raise NotImplementedError

        class Engine(Abstract):
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def backward_loss(self, loss):
                self.scaler.scale(loss).backward()

            def optimizer_step(self, optimizer):
                self.scaler.step(optimizer)
                self.scaler.update()

        class Callback:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer

            def on_batch_end(self, loss, engine: {_annotation}{_default}):
                self.optimizer.zero_grad()
                engine.backward_loss(loss)
                {_unscale}
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0){_mark}
                engine.optimizer_step(self.optimizer)
        """

# A context manager that yields autocast.
for _name, _body, _use in (
    ("passed on", 'yield torch.autocast("cuda", dtype=torch.float16)  # AMP105', "with self.context():"),
    ("entered", 'with torch.autocast("cuda", dtype=torch.float16):\n            yield', "with self.context():"),
    (
        "entered and passed on",
        'with torch.autocast("cuda") as region:\n            yield region',
        "with self.context():",
    ),
    ("bound", 'yield torch.autocast("cuda", dtype=torch.float16)', "with self.context() as region, region:"),
):
    CASES[f"autocast that a context manager has {_name}"] = (
        "=== precision.py\n"
        "from contextlib import contextmanager\n"
        "import torch\n"
        "class Precision:\n"
        "    @contextmanager\n"
        "    def context(self):\n"
        f"        {_body}\n"
        "    def step(self, model, x):\n"
        f"        {_use}\n"
        "            return model(x)\n"
    )

# A flag of a file that is not analyzed.
for _name, _condition in (
    ("an attribute", "not config.DEBUG"),
    ("a name", "not DEBUG"),
    ("a comparison with None", "config.DEBUG is None"),
):
    CASES[f"a flag of another file: {_name}"] = f"""
        === config.py
        DEBUG = False
        === train.py
        import torch
        import config
        from config import DEBUG

        def train(model, loader, optimizer, loss_fn):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                if {_condition}:
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = loss_fn(model(x), y)
                    scaler.scale(loss).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                    scaler.step(optimizer)
                    scaler.update()
        """

# A base class that writes the checkpoint of a subclass with a scaler.
_SUBCLASS = """
        === trainer.py
        import torch
        from base import Base

        class Trainer(Base):
            def __init__(self, net, optimizer):
                super().__init__(net, optimizer)
                self.scaler = torch.amp.GradScaler("cuda")

            def train_epoch(self, loader):
                for x in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.net(x).mean()
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
        {more}
        === base.py
        import torch

        class Base:
            def __init__(self, net, optimizer):
                self.net, self.optimizer = net, optimizer

            def more_state(self):
                return {{}}

            def save(self, path):
                state = {{
                    "net": self.net.state_dict(),
                    "optimizer": self.optimizer.state_dict(),{mark}
                    **self.more_state(),
                }}
                torch.save(state, path)

            def load(self, path):
                state = torch.load(path)
                self.optimizer.load_state_dict(state["optimizer"])
        """
CASES["a checkpoint of a base class"] = _SUBCLASS.format(more="", mark="  # AMP401")
CASES["a checkpoint of a base class, with the state that the subclass adds"] = _SUBCLASS.format(
    more="""
            def more_state(self):
                return {"scaler": self.scaler.state_dict()}
""",
    mark="",
)
CASES["a checkpoint of a base class, which the subclass writes itself"] = _SUBCLASS.format(
    more="""
            def save(self, path):
                torch.save({"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}, path)
""",
    mark="",
)


@pytest.mark.parametrize("name", CASES)
def test_architecture(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
