"""Inherited members of a class, from the same file or another file, combined with its own members."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

BASE = """
        class Base:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def loss(self, x):
                raise NotImplementedError

            def prepare(self):
                self.scaler.unscale_(self.optimizer)

            def clip(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0){mark}

            def epoch(self, loader):
                for x in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.loss(x)
                    self.scaler.scale(loss).backward()
                    self.prepare()
                    self.clip()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
"""
SUMS = """
        class Sums(Base):
            def loss(self, x):
                return self.model(x).sum()
"""
UNPREPARED = """
        class Means(Base):
            def loss(self, x):
                return self.model(x).mean()

            def prepare(self):
                pass
"""
PREPARED = """
        class Means(Base):
            def loss(self, x):
                return self.model(x).mean()

            def prepare(self):
                print("unscaling")
                super().prepare()
"""
FILE = """
        === trainer.py
        import torch
"""
CLIPPING = """
        class Means(Base):
            def loss(self, x):
                return self.model(x).mean()

            def prepare(self):
                pass

            def clip(self):
                torch.nn.utils.clip_grad_value_(self.model.parameters(), 1.0)  # AMP201
"""
ENTERING = """
        class Means(Base):
            def loss(self, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    return self.model(x).mean()

            def prepare(self):
                pass
"""
IMPORTING = """
        === means.py
        import torch
        from trainer import Base
"""
TREES = {
    "one that leaves out what its base relies on": FILE + BASE.format(mark="  # AMP201") + SUMS + UNPREPARED,
    "one that does it, and more": FILE + BASE.format(mark="") + SUMS + PREPARED,
    "one that leaves it out in another file": FILE + BASE.format(mark="") + SUMS + IMPORTING + CLIPPING,
    "one that leaves it out in another file, and does nothing but enter autocast": FILE
    + BASE.format(mark="  # AMP201")
    + SUMS
    + IMPORTING
    + ENTERING,
    "one that does it in another file": FILE + BASE.format(mark="") + SUMS + IMPORTING + PREPARED,
    "two in another file, the second of which leaves it out": FILE + BASE.format(mark="") + IMPORTING + SUMS + CLIPPING,
    "one that steps less often": """
        === trainer.py
        import torch

        class Base:
            def __init__(self, model, optimizer):
                self.model, self.optimizer, self.every = model, optimizer, 1

            def epoch(self, loader):
                for i, x in enumerate(loader):
                    with torch.autocast("cuda", dtype=torch.bfloat16):
                        loss = self.model(x).mean()
                    loss.backward()  # AMP301
                    if (i + 1) % self.every == 0:
                        self.optimizer.step()
                        self.optimizer.zero_grad()

        class Rare(Base):
            def __init__(self, model, optimizer):
                super().__init__(model, optimizer)
                self.every = 8

        class Rarer(Base):
            def __init__(self, model, optimizer):
                super().__init__(model, optimizer)
                self.every = 16
        """,
    "one whose method runs backward in the region of its base": """
        === trainer.py
        import torch

        class Base:
            def __init__(self, config, model, optimizer):
                self.config, self.model, self.optimizer = config, model, optimizer

            def epoch(self, loader):
                for x in loader:
                    if self.config.mixed_precision:
                        with torch.autocast("cuda"):
                            self.train_step(x)
                    else:
                        self.train_step(x)

        class Trainer(Base):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.scaler = torch.amp.GradScaler("cuda", enabled=self.config.mixed_precision)

            def train_step(self, x):
                self.optimizer.zero_grad()
                loss = self.model(x).mean()
                self.scaler.scale(loss).backward()  # AMP103
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
}


@pytest.mark.parametrize("name", TREES)
def test_a_class_is_read_with_what_it_inherits(name: str, tmp_path: Path) -> None:
    write(tmp_path, TREES[name])
    assert found(tmp_path) == marks(tmp_path)


def test_a_finding_behind_a_constructor_is_reported_at_its_own_entry_point(tmp_path: Path) -> None:
    tree = """
        === scaling.py
        import torch

        class Scaling:
            def __init__(self, enabled=True):
                self.scaler = torch.cuda.amp.GradScaler(enabled=enabled)  # AMP901

            def __call__(self, loss, optimizer):
                self.scaler.scale(loss).backward()
                self.scaler.step(optimizer)
                self.scaler.update()

        === template.py
        import torch
        from scaling import Scaling

        class Template:
            def __init__(self, options):
                self.scaling = Scaling(enabled=options.amp)

            def save(self, optimizer):
                torch.save({"optimizer": optimizer.state_dict()}, "last.pt")
    """
    write(tmp_path, tree)
    assert found(tmp_path) == marks(tmp_path)
