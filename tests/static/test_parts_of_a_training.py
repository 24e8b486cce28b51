"""Analyzed functions and the roles of arguments: determined by the use in the file, not by names."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pytest_amp_check.static.engine import check_source

#: A training step with objects of which only the use is known.
STEP = """\
import torch


def train({given}):
    for x, y in loader:
        {body}
"""
CLEAR = "opt.zero_grad()\n"
LOSS = 'with torch.autocast("cuda"):\n    loss = model(x, y)\n'
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
SCALED = "s.scale(loss).backward()\n"
END = "s.step(opt)\ns.update()\n"


def codes(source: str) -> list[str]:
    return [finding.code for finding in check_source(source, "train.py")]


@pytest.mark.parametrize(
    ("given", "body", "expected"),
    [
        # An object that scales a value which then runs backward is a scaler.
        ("model, loader, opt, s", CLEAR + LOSS + SCALED + CLIP + END, ["AMP201"]),
        ("model, loader, opt, s", CLEAR + LOSS + "big = s.scale(loss)\nbig.backward()\n" + CLIP + END, ["AMP201"]),
        ("model, loader, opt, s", CLEAR + LOSS + SCALED + "s.unscale_(opt)\n" + CLIP + END, []),
        (
            "self, model, loader, opt",
            CLEAR + LOSS + (SCALED + CLIP + END).replace("s.", "self.s.", 1).replace("\ns.", "\nself.s."),
            ["AMP201"],
        ),
        # So is an object that steps its argument and is updated, or has a scaler's name.
        ("model, loader, opt, s", CLEAR + LOSS + "loss.backward()\n" + END, ["AMP203"]),
        (
            "model, loader, opt, amp_scaler",
            CLEAR + LOSS + "loss.backward()\namp_scaler.step(opt)\n",
            ["AMP203", "AMP206"],
        ),
        ("model, loader, opt, s", CLEAR + LOSS + "s.unscale_(opt)\nloss.backward()\ns.step(opt)\n", ["AMP206"]),
        # An object that only steps its argument may be anything, and so may an object that runs backward itself.
        ("model, loader, opt, s", CLEAR + LOSS + "loss.backward()\ns.step(opt)\n", []),
        ("model, loader, opt, s", CLEAR + LOSS + "s.backward(loss)\n" + END, []),
        # An object called with a loss and an optimizer, with a scaler-like name, does the whole step.
        ("model, loader, opt, loss_scaler", CLEAR + LOSS + "loss_scaler(loss, opt)\nopt.step()\n", ["AMP204"]),
        (
            "model, loader, opt, loss_scaler",
            CLEAR + LOSS + "loss_scaler(loss, optimizer=opt)\nopt.step()\n",
            ["AMP204"],
        ),
        ("model, loader, opt, loss_scaler", CLEAR + LOSS + "loss_scaler(loss, opt)\n", []),
        ("model, loader, opt, run", CLEAR + LOSS + "run(loss, opt)\nopt.step()\n", []),
        # An object that a scaler steps is an optimizer, and so is an object that is stepped and cleared.
        ("model, loader, s, o", "o.zero_grad()\n" + LOSS + SCALED + "o.step()\n", ["AMP204"]),
        ("model, loader, s, o", LOSS + SCALED + "s.step(o)\ns.update()\n", ["AMP215"]),
        ("model, loader, s, o", LOSS + SCALED + "s.step(o)\ns.update()\no.zero_grad()\n", []),
        ("model, loader, s, o", LOSS + SCALED + "s.step(o)\ns.update()\nmodel.zero_grad()\n", []),
        ("model, loader, s, o, tuner", "o.zero_grad()\n" + LOSS + SCALED + "s.step(o)\ns.update()\ntuner.step()\n", []),
    ],
)
def test_what_an_object_is_by_its_use(given: str, body: str, expected: list[str]) -> None:
    assert codes(STEP.format(given=given, body=body.strip().replace("\n", "\n        "))) == expected


#: Functions without a caller in the file, each with its mistake.
ALONE = {
    "an old getter": "def f():\n    return torch.get_autocast_gpu_dtype()  # AMP901",
    "an old setter": "def f(x):\n    torch.set_autocast_gpu_dtype(x)  # AMP901",
    "an old getter of the CPU": "def f():\n    return torch.get_autocast_cpu_dtype()  # AMP901",
    "an old setter of the CPU": "def f(x):\n    torch.set_autocast_cpu_dtype(x)  # AMP901",
    "an old question": "def f():\n    return torch.is_autocast_cpu_enabled()  # AMP901",
    "an old switch": "def f():\n    torch.set_autocast_cpu_enabled(True)  # AMP901",
    "an old clip": "def f(p):\n    torch.nn.utils.clip_grad_norm(p, 1.0)  # AMP901",
    "an old region": "def f(x):\n    with torch.cuda.amp.autocast():  # AMP901\n        return x",
    "an old scaler": "def f():\n    return torch.cuda.amp.GradScaler()  # AMP901",
    "an old decorator": """\
        class F(torch.autograd.Function):
            @staticmethod
            @torch.cuda.amp.custom_fwd  # AMP901
            def forward(ctx, x):
                return x
        """,
    "a window that a counter ends": """\
        def f(model, loader, opt, k):
            n = 0
            for x in loader:
                loss = F.mse_loss(model(x), x)
                loss.backward()  # AMP301
                n += 1
                if n == k:
                    opt.step()
                    opt.zero_grad()
                    n = 0
        """,
    "a window that a remainder ends": """\
        def f(model, loader, opt, k):
            for i, x in enumerate(loader):
                loss = F.mse_loss(model(x), x)
                loss.backward()  # AMP301
                if (i + 1) % k == 0:
                    opt.step()
                    opt.zero_grad()
        """,
    "a window whose backward is in another function": """\
        def back(loss):
            loss.backward()  # AMP301

        def f(model, loader, opt, k):
            for i, x in enumerate(loader):
                loss = F.mse_loss(model(x), x)
                back(loss)
                if (i + 1) % k == 0:
                    opt.step()
                    opt.zero_grad()
        """,
    "a window whose step is two functions away": """\
        def end(opt):
            opt.step()
            opt.zero_grad()

        def maybe(opt, i, k):
            if (i + 1) % k == 0:
                end(opt)

        def f(model, loader, opt, k):
            for i, x in enumerate(loader):
                loss = F.mse_loss(model(x), x)
                loss.backward()  # AMP301
                maybe(opt, i, k)
        """,
    "no window": """\
        def f(model, loader, opt, k):
            for i, x in enumerate(loader):
                opt.zero_grad()
                loss = F.mse_loss(model(x), x)
                loss.backward()
                opt.step()
                if (i + 1) % k == 0:
                    print(i)
        """,
    "a model that is made in float16": """\
        def f(loader):
            model = torch.nn.Linear(8, 8).half()  # AMP501
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                opt.zero_grad()
                model(x).sum().backward()
                opt.step()
        """,
    "a model that another function makes in float16": """\
        def make():
            return torch.nn.Linear(8, 8).half()  # AMP501

        def f(loader):
            model = make()
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                opt.zero_grad()
                model(x).sum().backward()
                opt.step()
        """,
    "a model that is only run in float16": """\
        def f(loader):
            model = torch.nn.Linear(8, 8).half()
            with torch.no_grad():
                for x in loader:
                    print(model(x))
        """,
    "a model that a Trainer trains": """\
        from transformers import AutoModel, Trainer

        def f(data):
            model = AutoModel.from_pretrained("x", torch_dtype=torch.bfloat16)  # AMP501
            Trainer(model=model, train_dataset=data).train()
        """,
    "a checkpoint of another function": """\
        def f(model, opt, loader):
            s = torch.amp.GradScaler("cuda")
            for x in loader:
                opt.zero_grad()
                with torch.autocast("cuda"):
                    loss = model(x).sum()
                s.scale(loss).backward()
                s.step(opt)
                s.update()

        def save(model, opt):
            torch.save({"m": model.state_dict(), "o": opt.state_dict()}, "x")  # AMP401

        def load(model, opt):
            opt.load_state_dict(torch.load("x")["o"])
        """,
    "a function that a region is entered around": """\
        def f(x, w):
            out = F.linear(x, w)
            return out + 1e-8  # AMP505

        def g(x, w):
            with torch.autocast("cuda", dtype=torch.float16):
                return f(x, w)
        """,
    "a method that steps past the scaler of others": """\
        class A(torch.nn.Module):
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")
                self.opt = torch.optim.SGD(self.parameters(), lr=0.1)

            def step(self):
                self.opt.step()  # AMP204

            def back(self, loss):
                self.scaler.scale(loss).backward()

            def run(self, loader):
                for x in loader:
                    self.opt.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self(x).sum()
                    self.back(loss)
                    self.step()
        """,
    "the loss of a LightningModule": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                x, y = batch
                return F.binary_cross_entropy(self.net(x), y)  # AMP504

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "the loss of a LightningModule that another method computes": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                return self.compute(*batch)

            def compute(self, x, y):
                return F.binary_cross_entropy(self.net(x), y)  # AMP504

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "the loss of a LightningModule in float32": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                x, y = batch
                return F.binary_cross_entropy(self.net(x), y)

        L.Trainer(precision="32-true").fit(A())
        """,
    "a division that Lightning makes, too": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                x, y = batch
                return F.mse_loss(self.net(x), y) / 4  # AMP302

        L.Trainer(precision="16-mixed", accumulate_grad_batches=4).fit(A())
        """,
    "a division by another number": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                x, y = batch
                return F.mse_loss(self.net(x), y) / 2

        L.Trainer(precision="16-mixed", accumulate_grad_batches=4).fit(A())
        """,
    "a clip in a hook of Lightning's": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                return self.net(batch).sum()

            def on_after_backward(self):
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # AMP201

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "a clip in a hook of Lightning's behind unscaling": """\
        import lightning as L

        class A(L.LightningModule):
            def training_step(self, batch, i):
                return self.net(batch).sum()

            def on_before_optimizer_step(self, optimizer):
                torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "a step by hand under Lightning": """\
        import lightning as L

        class A(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch, i):
                opt = self.optimizers()
                opt.zero_grad()
                loss = self.net(batch).sum()
                loss.backward()  # AMP203
                opt.step()

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "a step by hand under Lightning that is right": """\
        import lightning as L

        class A(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False

            def training_step(self, batch, i):
                opt = self.optimizers()
                opt.zero_grad()
                self.manual_backward(self.net(batch).sum())
                opt.step()

        L.Trainer(precision="16-mixed").fit(A())
        """,
    "another framework": """\
        import paddle

        def f(model, loader, opt, scaler):
            for x in loader:
                scaler.scale(model(x)).backward()
                opt.step()
        """,
}


@pytest.mark.parametrize("what", ALONE)
def test_a_function_that_nobody_calls(what: str) -> None:
    imports = "" if what == "another framework" else "import torch\nfrom torch.nn import functional as F\n\n"
    source = imports + dedent(ALONE[what])
    lines = source.split("\n")
    expected = [(number, line.partition("# ")[2]) for number, line in enumerate(lines, 1) if "# AMP" in line]
    assert [(found.line, found.code) for found in check_source(source, "train.py")] == expected


#: A function that steps what another function has computed, and the same as a method of a class with an optimizer.
STEPPER = """\
import torch


def step(model, opt, scaler):
    {body}
"""
UPDATER = """\
import torch


class Updater:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters())

    def step(self, scaler=None):
        if self.clips:
            {clip}
        if scaler is None:
            self.opt.step()
        else:
            scaler.step(self.opt)
            scaler.update()
"""

ENDED = "scaler.step(opt)\nscaler.update()\n"


@pytest.mark.parametrize(
    ("body", "label"),
    [
        (CLIP + ENDED, "clip@scaled"),
        (CLIP.replace("norm_(model.parameters(), 1.0)", "value_(model.parameters(), 1.0)") + ENDED, "clip@scaled"),
        ("if model.training:\n    " + CLIP + ENDED, "clip@scaled"),
        ("scaler.unscale_(opt)\n" + CLIP + ENDED, ""),
        # After its own step, gradients are clipped for nothing.
        (ENDED + CLIP, "clip@stepped"),
        ("scaler.step(opt)\n" + CLIP + "scaler.update()\n", "clip@stepped"),
        (LOSS + SCALED.replace("s.", "scaler.", 1) + ENDED + CLIP + "opt.zero_grad()\n", "clip@stepped"),
    ],
)
def test_a_clip_before_the_step_of_a_function_that_runs_no_backward(body: str, label: str) -> None:
    found = check_source(STEPPER.format(body=body.strip().replace("\n", "\n    ")), "train.py")
    assert [finding.label for finding in found if finding.code == "AMP201"] == [label] * bool(label)


@pytest.mark.parametrize(("first", "labels"), [("", ["clip@scaled"]), ("scaler.unscale_(self.opt)\n", [])])
def test_a_clip_in_a_method_that_steps_with_a_scaler_or_without(first: str, labels: list[str]) -> None:
    clip = f"{first}{CLIP.replace('model.', 'self.model.')}".strip().replace("\n", "\n            ")
    found = [finding for finding in check_source(UPDATER.format(clip=clip), "train.py") if finding.code == "AMP201"]
    assert [finding.label for finding in found] == labels
    assert all("`scaler.unscale_(self.opt)`" in finding.message for finding in found)
