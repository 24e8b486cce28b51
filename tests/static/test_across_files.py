"""Code in other files of the tree: imports, base classes, calls and arguments are analyzed across files."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check import check_paths

#: A file whose class leaves its loss to other files, and is resumed.
TRAINER = """
        === base.py
        import torch

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def train(self, loader):
                for x, y in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.loss_of(x, y)
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()

            def resume(self, path):
                state = torch.load(path)
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
"""
TREES = {
    "a step in a module beside": """
        === train.py
        import torch
        from steps import finish

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                finish(optimizer, scaler)
        === steps.py
        def finish(optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()
        """,
    "a right order over two modules": """
        === train.py
        import torch
        from steps import prepare, finish

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                prepare(scaler, optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                finish(optimizer, scaler)
        === steps.py
        def prepare(scaler, optimizer):
            scaler.unscale_(optimizer)

        def finish(optimizer, scaler):
            scaler.step(optimizer)
            scaler.update()
        """,
    "a module of a package, by its full name": """
        === pkg/__init__.py
        === pkg/train.py
        import torch
        import pkg.engine.steps

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    pkg.engine.steps.back(scaler, loss)
                scaler.step(optimizer)
                scaler.update()
        === pkg/engine/__init__.py
        === pkg/engine/steps.py
        def back(scaler, loss):
            scaler.scale(loss).backward()  # AMP103
        """,
    "names that a package hands on": """
        === pkg/__init__.py
        === pkg/train.py
        import torch
        from .engine import make_scaler, back

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = make_scaler()
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                back(scaler, loss)
                optimizer.step()  # AMP204
        === pkg/engine/__init__.py
        from .scalers import *
        from .steps import run_backward as back
        === pkg/engine/scalers.py
        from torch.amp import GradScaler

        def make_scaler():
            return GradScaler("cuda")
        === pkg/engine/steps.py
        def run_backward(scaler, loss):
            scaler.scale(loss).backward()
        """,
    "a source layout": """
        === pyproject.toml
        [project]
        === src/lab/steps.py
        def back(scaler, loss):
            scaler.scale(loss).backward()
        === scripts/train.py
        import torch
        from lab.steps import back

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                back(scaler, loss)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                scaler.step(optimizer)
                scaler.update()
        """,
    "a checkpoint writer in another file": """
        === train.py
        import torch
        import utils

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                utils.save_checkpoint("last.pt", model, optimizer, epoch)
        === utils.py
        import torch

        def save_checkpoint(path, model, optimizer, epoch):
            torch.save({
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),  # AMP401
                "epoch": epoch,
            }, path)
        """,
    "a checkpoint writer that is given the dict": """
        === train.py
        import torch
        from utils import save_checkpoint

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}  # AMP401
                save_checkpoint(state, "last.pt")
        === utils.py
        import torch

        def save_checkpoint(state, path):
            torch.save(state, path)
        """,
    "a checkpoint writer that takes the scaler too": """
        === train.py
        import torch
        from utils import save_checkpoint

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(10):
                for x, y in loader:
                    optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                save_checkpoint("last.pt", model=model, optimizer=optimizer, scaler=scaler)
        === utils.py
        import torch

        def save_checkpoint(path, **parts):
            torch.save({name: part.state_dict() for name, part in parts.items()}, path)
        """,
    "a base class that calls what a subclass defines": """
        === base.py
        import torch

        class BaseTrainer:
            def __init__(self, model, loader):
                self.model = model
                self.loader = loader
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def fit(self):
                for batch in self.loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.compute_loss(batch)
                    self.scaler.scale(loss).backward()
                    self.before_step()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()

            def compute_loss(self, batch):
                raise NotImplementedError

            def before_step(self):
                pass
        === trainer.py
        import torch
        from base import BaseTrainer

        class ClippingTrainer(BaseTrainer):
            def compute_loss(self, batch):
                x, y = batch
                return torch.nn.functional.mse_loss(self.model(x), y)

            def before_step(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
        """,
    "a base class whose hooks unscale": """
        === base.py
        import torch

        class BaseTrainer:
            def __init__(self, model, loader):
                self.model = model
                self.loader = loader
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def fit(self):
                for x, y in self.loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.mse_loss(self.model(x), y)
                    self.scaler.scale(loss).backward()
                    self.after_backward()
                    torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.scaler.step(self.optimizer)
                    self.scaler.update()

            def after_backward(self):
                self.scaler.unscale_(self.optimizer)
        === trainer.py
        from base import BaseTrainer

        class LoggingTrainer(BaseTrainer):
            def after_backward(self):
                super().after_backward()
                print("unscaled")
        """,
    "a scaler class of the project's own": """
        === amp.py
        import torch

        class NativeScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
                self._scaler.scale(loss).backward()
                if update_grad:
                    if clip_grad is not None:
                        self._scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
                    self._scaler.step(optimizer)
                    self._scaler.update()

            def state_dict(self):
                return self._scaler.state_dict()
        === train.py
        import torch
        from amp import NativeScaler

        def main(model, loader, args):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss_scaler = NativeScaler()
            for i, (x, y) in enumerate(loader):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                loss = loss / args.accum
                last = (i + 1) % args.accum == 0
                loss_scaler(loss, optimizer, clip_grad=args.clip, parameters=model.parameters(), update_grad=last)
                if last:
                    optimizer.zero_grad()
        """,
    "an accumulation over a scaler class without the division": """
        === amp.py
        import torch

        class NativeScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, update_grad=True):
                self._scaler.scale(loss).backward()
                if update_grad:
                    self._scaler.step(optimizer)
                    self._scaler.update()
        === train.py
        import torch
        from amp import NativeScaler

        def main(model, loader, args):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss_scaler = NativeScaler()
            for i, (x, y) in enumerate(loader):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                last = (i + 1) % args.accum == 0
                loss_scaler(loss, optimizer, update_grad=last)  # AMP301
                if last:
                    optimizer.zero_grad()
        """,
    "things in a dataclass of another file": """
        === state.py
        from dataclasses import dataclass
        import torch

        @dataclass
        class State:
            model: torch.nn.Module
            optimizer: torch.optim.Optimizer
            scaler: torch.amp.GradScaler
            accumulate: bool = False

        def build(model):
            return State(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                scaler=torch.amp.GradScaler("cuda"),
            )
        === train.py
        import torch
        from state import build

        def main(model, loader):
            state = build(model)
            for x, y in loader:
                state.optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(state.model(x), y)
                state.scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)  # AMP201
                state.scaler.step(state.optimizer)
                state.scaler.update()
        """,
    "a context from another file": """
        === precision.py
        import contextlib
        import torch

        def region(enabled):
            return torch.autocast("cuda") if enabled else contextlib.nullcontext()
        === train.py
        import torch
        from precision import region

        def main(model, loader, args):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
            for x, y in loader:
                optimizer.zero_grad()
                with region(args.amp):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                    scaler.scale(loss).backward()  # AMP103
                scaler.step(optimizer)
                scaler.update()
        """,
    "a function whose caller divides": """
        === engine.py
        import torch

        def accumulate(model, x, y, scaler, optimizer, i, steps, weight):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y) * weight
            scaler.scale(loss).backward()
            if (i + 1) % steps == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        === train.py
        import torch
        from engine import accumulate

        def main(model, loader, steps):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for i, (x, y) in enumerate(loader):
                accumulate(model, x, y, scaler, optimizer, i, steps, 1 / steps)
        """,
    "a function that is right where it is called": """
        === engine.py
        import torch

        def step(loss, scaler, optimizer, model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        === train.py
        import torch
        from engine import step

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                step(loss, scaler, optimizer, model)
        """,
    "two functions that call each other": """
        === one.py
        import two

        def ping(scaler, optimizer, model, n):
            if n:
                two.pong(scaler, optimizer, model, n - 1)
        === two.py
        import torch
        import one

        def pong(scaler, optimizer, model, n):
            with torch.autocast("cuda"):
                loss = model(n).sum()
            scaler.scale(loss).backward()  # AMP215
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
            one.ping(scaler, optimizer, model, n)
        """,
    "a suppression in the file where the finding stands": """
        === train.py
        import torch
        from steps import clip

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                clip(model, scaler, loss)
                scaler.step(optimizer)
                scaler.update()
        === steps.py
        import torch

        def clip(model, scaler, loss):
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # amp: ignore[AMP201] meant
        """,
    "a standard module's name": """
        === train.py
        import torch
        from random import choice

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                choice([scaler])
                scaler.step(optimizer)
                scaler.update()
        === deep/random.py
        def choice(things):
            things[0].update()
        """,
    "a file that does not parse": """
        === train.py
        import torch
        from broken import finish

        def main(model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                finish(optimizer, scaler)
        === broken.py
        def finish(optimizer, scaler):
            scaler.step(optimizer)
            scaler.update(  # AMP903
        """,
    "a class that writes what its base in another file trains": TRAINER
    + """
        === mine.py
        import torch
        from base import Trainer

        class Mine(Trainer):
            def keep(self, path):
                torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)  # AMP401

            def loss_of(self, x, y):
                return torch.nn.functional.mse_loss(self.model(x), y)
        """,
    "a class that has a helper take what its base in another file trains": TRAINER
    + """
        === mine.py
        import torch
        from base import Trainer

        def states(model, optimizer):
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}  # AMP401

        class Mine(Trainer):
            def keep(self, path):
                torch.save(states(self.model, self.optimizer), path)

            def loss_of(self, x, y):
                return torch.nn.functional.mse_loss(self.model(x), y)
        """,
    "a window that one file counts, and another one trains in": """
        === train.py
        from one import finish, run

        class Loop:
            def train(self, model, loader, scaler, optimizer, k):
                for i, (x, y) in enumerate(loader):
                    run(model, x, y, scaler)
                    if (i + 1) % k == 0:
                        finish(scaler, optimizer)
                        optimizer.zero_grad()
        === one.py
        import torch

        def run(model, x, y, scaler):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()  # AMP301

        def finish(scaler, optimizer):
            scaler.step(optimizer)
            scaler.update()
        """,
    "a window that one function counts, and another file trains in": """
        === train.py
        from one import finish, run

        def is_due(i, k):
            return (i + 1) % k == 0

        def train(model, loader, scaler, optimizer, k):
            for i, (x, y) in enumerate(loader):
                run(model, x, y, scaler)
                if is_due(i, k):
                    finish(scaler, optimizer)
                    optimizer.zero_grad()
        === one.py
        import torch

        def run(model, x, y, scaler):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()  # AMP301

        def finish(scaler, optimizer):
            scaler.step(optimizer)
            scaler.update()
        """,
    "a loss that a helper in another file makes, and runs backward": """
        === train.py
        import torch
        from one import run

        def main(model, loader, k):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            optimizer.zero_grad()
            for i, (x, y) in enumerate(loader):
                run(model, x, y, scaler)
                if (i + 1) % k == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        === one.py
        import torch

        def run(model, x, y, scaler):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()  # AMP301
        """,
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_has_exactly_its_marks(name: str, tmp_path: Path) -> None:
    write(tmp_path, TREES[name])
    assert found(tmp_path) == marks(tmp_path)


@pytest.mark.parametrize("name", ["a step in a module beside", "a checkpoint writer that is given the dict"])
def test_a_file_that_is_named_alone_is_followed_all_the_same(name: str, tmp_path: Path) -> None:
    write(tmp_path, TREES[name])
    findings = check_paths([str(tmp_path / "train.py")]).findings
    assert {("train.py", f.line, f.code) for f in findings} == marks(tmp_path)


@pytest.mark.parametrize("used", [2, 6])
def test_who_imports_a_file_is_known_for_many_files_as_for_few(used: int, tmp_path: Path) -> None:
    parts = [f"part{number}" for number in range(8)]
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").touch()
    for part in parts:
        (tmp_path / "parts" / f"{part}.py").write_text(
            "import torch\n\ndef weights(q, k, mask):\n"
            "    scores = torch.matmul(q, k)\n    return scores.masked_fill(mask, -1e9)\n"
        )
    # float16 only reaches the parts that it imports.
    (tmp_path / "train.py").write_text(
        f"import torch\nfrom parts import {', '.join(parts[:used])}\n\n"
        "def run(*given):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        f"        return [{', '.join(f'{part}.weights(*given)' for part in parts[:used])}]\n"
    )
    findings = check_paths([str(tmp_path)]).findings
    assert [(Path(f.filename).stem, f.line, f.code) for f in findings] == [(part, 5, "AMP506") for part in parts[:used]]


def test_autocast_in_a_file_that_was_only_followed_is_in_sight(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        === train.py
        import torch
        from forward import loss_of

        def train(model, criterion, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for batch in loader:
                optimizer.zero_grad()
                scaler.scale(loss_of(batch, model, criterion)).backward()
                scaler.step(optimizer)
                scaler.update()
        === forward.py
        import torch

        def loss_of(batch, model, criterion):
            with torch.autocast("cuda"):
                return criterion(model(batch), batch)
        """,
    )
    assert check_paths([str(tmp_path / "train.py")]).findings == []


def test_findings_in_files_that_were_not_asked_for_are_shown_where_these_take_part(tmp_path: Path) -> None:
    write(tmp_path, TREES["a checkpoint writer in another file"])
    train = str(tmp_path / "train.py")
    (finding,) = check_paths([train]).findings
    text = Path(train).read_text(encoding="utf-8").split("\n")
    call = 1 + next(number for number, line in enumerate(text) if "utils.save_checkpoint(" in line)
    assert (finding.filename, finding.line, finding.code) == (train, call, "AMP401")
    assert finding.elsewhere is not None
    assert Path(finding.elsewhere.path).name == "utils.py"


def test_findings_that_have_nothing_to_do_with_what_was_asked_for_are_not_reported(tmp_path: Path) -> None:
    write(tmp_path, TREES["a checkpoint writer in another file"])
    (tmp_path / "main.py").write_text("import torch\nimport train\nscaler = torch.amp.GradScaler('cuda')\n", "utf-8")
    assert check_paths([str(tmp_path / "main.py")]).findings == []
