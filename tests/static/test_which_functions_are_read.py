"""Functions that are entry points, and functions whose analysis could show nothing."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from trees import write

from pytest_amp_check import check_paths

#: A function that makes a file train, so that calls count for their callers. Nothing else of it is analyzed.
TRAINS = """
def train(loss):
    loss.backward()
"""


def read(root: Path) -> set[tuple[str, int]]:
    """Return the files and lines of entry points, with negative lines for a class that inherits a function."""
    reached = check_paths([str(root)]).reached
    return {(Path(path).relative_to(root).as_posix(), line) for path, line in reached if line}


def marked(root: Path) -> set[tuple[str, int]]:
    """Return the files and lines that are marked ``# read``."""
    return {
        (path.relative_to(root).as_posix(), number)
        for path in root.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith("# read")
    }


def is_read(root: Path, body: str, *, more: str = "", head: str = "") -> bool:
    """Check a file with a function of this body. Return True if the function is an entry point."""
    text = f"import torch\n{head}\n\ndef f(x, y, m, opt, mask):\n{indent(body, ' ' * 4)}\n"
    (root / "a.py").write_text(text + more, encoding="utf-8")
    return ("a.py", text[: text.index("def f(")].count("\n") + 1) in read(root)


BACKWARD, STEP, COUNT = "m(x).backward()", "opt.step()", "if y % 4 == 0: print(y)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # AMP names, one by one.
        ("with torch.autocast('cuda'):\n    return m(x)", True),
        ("return torch.amp.GradScaler('cuda')", True),
        ("return ShardedGradScaler()", True),
        ("m.unscale_(opt)", True),
        ("return m(MixedPrecision(x))", True),
        ("return m(MixedPrecisionPolicy(x))", True),
        ("m.register_comm_hook(None, fp16_compress_hook)", True),
        ("return Accelerator(x)", True),
        ("m.manual_backward(x)", True),
        ("return m(x)", False),
        # Names that AMP renamed.
        ("return torch.get_autocast_gpu_dtype()", True),
        ("torch.set_autocast_cpu_enabled(False)", True),
        ("torch.nn.utils.clip_grad_norm(m.parameters(), 1.0)", True),
        ("torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)", False),
        # Accumulation needs all three of its parts.
        (f"{BACKWARD}\n{STEP}\n{COUNT}", True),
        (f"{BACKWARD}\n{STEP}\ny += 1", True),
        (f"{BACKWARD}\n{STEP}\ny -= 1", True),
        (f"{BACKWARD}\n{STEP}\ny = y + 1", False),
        (f"{BACKWARD}\n{STEP}", False),
        (f"{BACKWARD}\n{COUNT}", False),
        (f"{STEP}\n{COUNT}", False),
        (BACKWARD, False),
        (STEP, False),
        (COUNT, False),
        # A fill with a number that float16 cannot represent.
        ("return x.masked_fill(mask, -1e9)", True),
        ("return x.masked_fill(mask, 1e9)", True),
        ("return x.masked_fill(mask, 65505)", True),
        ("return x.masked_fill(mask, -65505.0)", True),
        ("return x.masked_fill(mask, float('-inf'))", False),
        ("return x.masked_fill(mask, 65504)", False),
        ("return x.masked_fill(mask, -65504)", False),
        ("return x.masked_fill(mask, -1e4)", False),
        ("return torch.where(mask, x, -1e9)", True),
        ("return torch.where(mask, x, -1)", False),
        ("x[mask] = -1e9", True),
        ("x[mask] = 65505", True),
        ("x[mask] = 1e9\nreturn x", True),
        ("x[mask] = -1e4", False),
        ("x[mask] = 65504", False),
        ("x[mask] = y = -1e9", True),
        ("x[mask] = 'text'", False),
        ("x = -1e9\nreturn m(x)", False),
        ("return m(x, -1e9)", False),
        # A cast module that is trained.
        (f"m.half()\n{STEP}", True),
        (f"m.bfloat16()\n{STEP}", True),
        (f"m.to(torch.float16)\n{STEP}", True),
        ("m.half()\nreturn Trainer(m)", True),
        ("m.half()\nreturn Seq2SeqTrainer(m)", True),
        (f"m.float()\n{STEP}", False),
        ("m.half()", False),
        ("return Trainer(m)", False),
        (f"m.half()\n{BACKWARD}", False),
    ],
)
@pytest.mark.parametrize("trains", [False, True])
def test_what_a_function_does_itself(tmp_path: Path, body: str, *, trains: bool, expected: bool) -> None:
    # The other function has an AMP word, so that the file passes the prescan.
    other = "\n\ndef g(m):\n    with torch.autocast('cuda'):\n        return m\n"
    assert is_read(tmp_path, body, more=other + (TRAINS if trains else "")) is expected


@pytest.mark.parametrize(
    ("head", "body", "expected"),
    [
        ("BIG = -1e9", "return x.masked_fill(mask, BIG)", True),
        ("BIG = -1e4", "return x.masked_fill(mask, BIG)", False),
        ("BIG = -1e9", "return m(x)", False),
        # Only module-level code can provide a value that every function fills in.
        ("def big():\n    return -1e9", "return x.masked_fill(mask, y)", False),
    ],
)
def test_a_large_number_beside_functions(tmp_path: Path, head: str, body: str, *, expected: bool) -> None:
    other = "\n\ndef g(m):\n    with torch.autocast('cuda'):\n        return m\n"
    assert is_read(tmp_path, body, head=head, more=other) is expected


#: Small projects, with marks on the functions that are entry points.
TREES = {
    "what calls a region counts where the file trains": """\
        === a.py
        import torch

        def region(m):  # read
            return torch.autocast("cuda")

        def calls(m):  # read
            with region(m):
                return m

        def calls_that(m):  # read
            return calls(m)

        def hands_over(m):  # read
            return m(region)

        def calls_another(m):
            return m.other()

        def train(loss):
            loss.backward()
        """,
    "what calls a region does not count where nothing trains": """\
        === a.py
        import torch

        def region(m):  # read
            return torch.autocast("cuda")

        def calls(m):
            with region(m):
                return m
        """,
    "a part of accumulation in what is called": """\
        === a.py
        import torch

        def finish(opt):
            opt.step()
            opt.zero_grad()

        def train(m, loader, opt):  # read
            for i, x in enumerate(loader):
                m(x).backward()
                if i % 4 == 0:
                    finish(opt)

        def train_at_once(m, loader, opt):
            for x in loader:
                m(x).backward()
                finish(opt)
        """,
    "functions that call each other": """\
        === a.py
        import torch

        def one(m, n):  # read
            return two(m, n - 1)

        # Its caller has read all of it.
        def two(m, n):
            with torch.autocast("cuda"):
                return one(m, n)

        def three(m):
            return four(m)

        def four(m):
            return three(m)

        def train(loss):
            loss.backward()
        """,
    "a class that is called counts by its methods": """\
        === a.py
        import torch

        class Region:
            def __init__(self, m):
                self.m = m

            def open(self):  # read
                return torch.autocast("cuda")

        class Other:
            def open(self):
                return self

        def uses(m):  # read
            return Region(m)

        def uses_other(m):
            return Other(m)

        def train(loss):
            loss.backward()
        """,
    "a lambda counts for what it stands in": """\
        === a.py
        import torch

        def region(m):  # read
            return (lambda: torch.autocast("cuda"))()

        def none(m):
            return m

        def train(loss):
            loss.backward()
        """,
    "what is named otherwise counts as what it stands for": """\
        === a.py
        import torch
        from functools import partial
        from torch import autocast as cast

        low = torch.autocast
        lower = partial(torch.autocast, "cuda")
        lowest = low
        other = torch.no_grad

        def imported(m):  # read
            with cast("cuda"):
                return m

        def given(m):  # read
            with low("cuda"):
                return m

        def partly(m):  # read
            with lower():
                return m

        def given_twice(m):  # read
            with lowest("cuda"):
                return m

        def another(m):
            with other():
                return m
        """,
    "a function of a library's version that is not there": """\
        === a.py
        import torch

        try:
            from torch import autocast
        except ImportError:
            def autocast(m):
                return torch.cuda.amp.autocast(m)

        try:
            import fast
        except (RuntimeError, ModuleNotFoundError):
            def cast(m):
                return torch.cuda.amp.autocast(m)

        try:
            import faster
        except:
            def cast_all(m):
                return torch.cuda.amp.autocast(m)

        try:
            m = load()
        except ValueError:
            def cast_some(m):  # read
                return torch.cuda.amp.autocast(m)
        """,
    "methods beside one that uses a scaler": """\
        === a.py
        import torch

        class Training:
            def scale(self, loss):  # read
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)

            def back(self, loss):  # read
                loss.backward()

            def step(self):  # read
                self.opt.step()

            def clip(self):  # read
                torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)

            def clip_values(self):  # read
                torch.nn.utils.clip_grad_value_(self.m.parameters(), 1.0)

            def log(self, loss):
                print(loss)

        class Other:
            def back(self, loss):
                loss.backward()

            def clip(self):
                torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)

        def back(loss):
            loss.backward()
        """,
    "methods beside one that uses a scaler by what it calls": """\
        === a.py
        import torch

        def scale(scaler, loss):  # read
            scaler.scale(loss).backward()

        class Training:
            def back(self, loss):  # read
                scale(self.scaler, loss)

            def clip(self):  # read
                torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)

        class Other:
            def clip(self):
                torch.nn.utils.clip_grad_norm_(self.m.parameters(), 1.0)
        """,
    "the clip of FSDP": """\
        === a.py
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel

        def clip(m):  # read
            m.clip_grad_norm_(1.0)

        def region(m):  # read
            with torch.autocast("cuda"):
                return m
        """,
    "a state in a file with a scaler": """\
        === a.py
        import torch

        scaler = torch.amp.GradScaler("cuda")

        def keep(m, path):  # read
            torch.save(m.state_dict(), path)

        def resume(m, path):  # read
            m.load_state_dict(torch.load(path))

        def show(m):
            print(m)
        """,
    "a state in a file with a scaler by use": """\
        === a.py
        import torch

        def back(s, loss, opt):  # read
            s.scale(loss).backward()
            s.step(opt)

        def keep(m, path):  # read
            torch.save(m.state_dict(), path)
        """,
    "a state in a file without a scaler": """\
        === a.py
        import torch

        def region(m):  # read
            return torch.autocast("cuda")

        def keep(m, opt, path):
            torch.save([m.state_dict(), opt.state_dict()], path)

        def train(loss):
            loss.backward()
        """,
    "a state where another file has a scaler": """\
        === a.py
        import torch
        from tools import run

        def keep(m, optimizer, path):  # read
            torch.save([m.state_dict(), optimizer.state_dict()], path)

        def resume(m, opt, path):  # read
            opt.load_state_dict(torch.load(path))

        def keep_scaler(s, path):  # read
            torch.save(s.scaler.state_dict(), path)

        def keep_model(m, path):
            torch.save(m.state_dict(), path)

        def keep_optimized(optimized, path):
            torch.save(optimized.state_dict(), path)

        def speak_of(optimizer):
            print(optimizer)

        def train(loss):
            loss.backward()
        === tools.py
        import torch

        def run(m, loss, scaler):  # read
            scaler.scale(loss).backward()
            scaler.unscale_(m)
        """,
    "a state, and who owns it by what is done with it": """\
        === a.py
        import torch
        from tools import run

        def train(loss, sgd):
            loss.backward()
            sgd.step()
            sgd.zero_grad()

        def keep(sgd, path):  # read
            torch.save(sgd.state_dict(), path)

        def keep_other(net, path):
            torch.save(net.state_dict(), path)
        === tools.py
        def run(m, loss, scaler):  # read
            scaler.scale(loss).backward()
            scaler.unscale_(m)
        """,
    "what is left of a training is done in another file": """\
        === a.py
        import torch
        from tools import run

        def counts(m, x, i):  # read
            if i % 4 == 0:
                run(m, x)

        def casts(m, x):  # read
            m.half()
            run(m, x)

        def steps(m, x, i, opt):  # read
            y = run(m, x)
            opt.step()
            if i % 4 == 0:
                print(i)

        def runs(m, x):
            run(m, x)

        def counts_alone(i):
            if i % 4 == 0:
                print(i)

        def counts_by_a_call(m, x, i):  # read
            counts_alone(i)
            run(m, x)

        def runs_by_a_call(m, x, i):  # read
            runs(m, x)
            if i % 4 == 0:
                print(i)

        def both_by_calls(m, x, i):
            runs(m, x)
            counts_alone(i)

        def both_by_calls_beside_a_step(m, x, i, opt):  # read
            runs(m, x)
            counts_alone(i)
            opt.step()

        def both_by_calls_beside_a_backward(m, x, i):  # read
            runs(m, x)
            counts_alone(i)
            m(x).backward()

        def train(loss):
            loss.backward()
        === tools.py
        def run(m, x):
            m(x).backward()
        """,
    "nothing of a training is done in another file": """\
        === a.py
        import torch
        from tools import show

        def counts(m, x, i):
            if i % 4 == 0:
                show(m, x)

        def casts(m, x):
            m.half()
            show(m, x)

        def region(m):  # read
            return torch.autocast("cuda")

        def train(loss):
            loss.backward()
        === tools.py
        def show(m, x):
            print(m, x)
        """,
    "another framework": """\
        === a.py
        import paddle

        def region(m):
            with paddle.amp.auto_cast(), m.autocast():
                return m

        def step(scaler, opt):
            scaler.unscale_(opt)
        === b.py
        import paddle
        import torch

        def region(m):  # read
            with m.autocast():
                return m
        === c.py
        from jax.numpy import sum

        def step(scaler, opt):
            scaler.unscale_(opt)
        === d.py
        import jaxlib

        def step(scaler, opt):  # read
            scaler.unscale_(opt)
        === e/f.py
        from .jax import sum

        def step(scaler, opt):  # read
            scaler.unscale_(opt)
        """,
    "a trainer of Hugging Face": """\
        === a.py
        import torch
        from transformers import Trainer

        class Training(Trainer):
            def compute_loss(self, model, inputs):  # read
                model.half()
                return model(inputs)

            def compute_other(self, model, inputs):
                model.half()
                return model(inputs)

        class Plain(Trainer):
            def compute_loss(self, model, inputs):
                return model(inputs)

        def compute_loss(model, inputs):
            model.half()
            return model(inputs)
        """,
    "steps of Lightning with a banned loss": """\
        === a.py
        import torch
        from pytorch_lightning import LightningModule

        class Banned(LightningModule):
            def __init__(self):
                self.loss = torch.nn.BCELoss()

            def training_step(self, batch, i):  # read
                return self.loss(self(batch), batch)

            def validation_step(self, batch, i):  # read
                return self.loss(self(batch), batch)

            def shared(self, batch):
                return self.loss(self(batch), batch)

        class Plain(LightningModule):
            def training_step(self, batch, i):  # read
                return self(batch).mean()

        class ByHand(LightningModule):
            def training_step(self, batch, i):  # read
                self(batch).backward()
                self.optimizers().step()

        class Hooked(LightningModule):
            def on_after_backward(self):  # read
                print(self.weight.grad)

        class Clips(LightningModule):
            def on_after_backward(self):  # read
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

        class Tells(LightningModule):
            def on_after_backward(self):
                print(self.weight)

        def training_step(batch):
            return torch.nn.BCELoss()(batch, batch)

        def on_after_backward(m):
            print(m.grad)

        def train(m, x):  # read
            with torch.autocast("cuda"):
                m(x)
            return Trainer(precision="16-mixed")
        """,
    "steps that accumulate": """\
        === a.py
        import torch
        from pytorch_lightning import LightningModule, Trainer

        class Plain(LightningModule):
            def training_step(self, batch, i):  # read
                return self(batch).mean()

            def forward(self, batch):
                return batch

        trainer = Trainer(precision="16-mixed", accumulate_grad_batches=4)
        """,
    "steps of no module of Lightning": """\
        === a.py
        import torch

        class Plain:
            def __init__(self):
                self.loss = torch.nn.BCELoss()

            def training_step(self, batch, i):
                return self.loss(self(batch), batch)

            def on_after_backward(self):
                print(self.weight.grad)

        def region(m):  # read
            return torch.autocast("cuda")
        """,
}


@pytest.mark.parametrize("what", TREES)
def test_the_functions_of_a_project_that_are_read(tmp_path: Path, what: str) -> None:
    write(tmp_path, TREES[what])
    assert read(tmp_path) == marked(tmp_path)
