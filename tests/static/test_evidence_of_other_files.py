"""Evidence of other files: a finding disappears only if another file makes the missing call."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from trees import found, marks, write

#: Trees in which one file hid a finding that another file has alone. Marks name the expected findings.
HIDDEN = {
    "a helper that is followed until the budget ends": """
        === net.py
        import torch

        from scaling import Scaling
        from layers import stack

        def main(loader, model, optimizer):
            scaling = Scaling()
            for images in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = stack(stack(stack(stack(model(images))))).mean()
                scaling(loss, optimizer, model.parameters())

        === scaling.py
        import torch

        class Scaling:
            def __init__(self):
                self.inner = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, parameters):
                self.inner.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)  # AMP201
                self.inner.step(optimizer)
                self.inner.update()

        === layers.py
        def one(x):
            x = x + 1
            return x

        def ten(x):
            return one(one(one(one(one(one(one(one(one(one(x))))))))))

        def hundred(x):
            return ten(ten(ten(ten(ten(ten(ten(ten(ten(ten(x))))))))))

        def stack(x):
            return hundred(hundred(hundred(hundred(x))))
        """,
    "an unrelated training that steps through its scaler": """
        === pyproject.toml
        [project]
        name = "two-trainings"
        version = "1"

        === gan.py
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()  # AMP215
            amp_scaler.step(opt)
            amp_scaler.update()

        def fit(runner, net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            runner.each(lambda images: half_step(net, opt, amp_scaler, images), batches)

        === segment.py
        import torch

        def run(net, batches):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                amp_scaler.scale(loss).backward()
                amp_scaler.step(opt)
                amp_scaler.update()
        """,
    "a test that updates a scaler of its own": """
        === plugin.py
        class Plugin:
            def __init__(self, scaler):
                self.scaler = scaler

            def optimizer_step(self, opt, closure):
                closure()
                self.scaler.unscale_(opt)
                self.scaler.step(opt)  # AMP206

        === test_scales.py
        from scales import GradScaler

        def test_scales():
            scaler = GradScaler()
            state = scaler.state_dict()
            scaler.load_state_dict(state)
            scaler.update()
        """,
    "a model of another program": """
        === scripts/learn.py
        import torch
        from zoo import make

        def learn(name, batches, criterion):
            net = make(name)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)  # AMP110
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === library/layers.py
        import torch

        class Norm(torch.nn.Module):
            def forward(self, images):
                with torch.autocast("cuda", dtype=torch.float16):
                    return images / images.norm()
        """,
    "a layer that asks for autocast": """
        === learn.py
        import torch
        from layers import make

        def learn(name, batches, criterion):
            net = make(name)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)  # AMP110
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === layers.py
        import torch
        from states import cast_if_autocast_enabled

        class Norm(torch.nn.Module):
            def forward(self, images):
                images = cast_if_autocast_enabled(images)
                return images / images.norm()

        def make(name):
            return torch.load(name)
        """,
    "a file with an error of syntax": """
        === learn.py
        import torch
        from zoo import make

        def learn(name, batches, criterion):
            net = make(name)
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)  # AMP110
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === main.py
        import torch
        from learn import learn

        def main(batches, criterion):
            if len(batches) =< 1:  # AMP903
                return
            with torch.autocast("cuda", dtype=torch.float16):
                learn("net", batches, criterion)
        """,
    "a checkpoint that is cast for release": """
        === learn.py
        import torch

        def learn(net, batches, criterion):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)  # AMP110
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === release.py
        import torch

        def release(path):
            saved = torch.load(path)
            saved["weights"].half()
            torch.save(saved, "small.pt")
        """,
    "an optimizer of an own scaler": """
        === optim/amp.py
        import torch

        class AmpOptimizer:
            def __init__(self, inner):
                self.inner = inner
                self._scaler = torch.amp.GradScaler("cuda")

            @property
            def scaler(self):
                return self._scaler

            def backward(self, loss):
                self._scaler.scale(loss).backward()

            def step(self):
                self.scaler.step(self.inner)  # AMP206

        === optim/half.py
        from .scales import DynamicScaler

        class HalfOptimizer:
            def __init__(self, inner):
                self.inner = inner
                self.scaler = DynamicScaler()

            def clip(self, norm):
                if norm < self.scaler.limit:
                    self.scaler.update()
        """,
    "a base class that enters autocast for inference": """
        === network.py
        import torch
        from torch import nn

        class Base(nn.Module):
            def predict(self, x, mixed):
                context = torch.cuda.amp.autocast if mixed else Nothing
                with context():
                    with torch.no_grad():
                        return self(x)

        class Net(Base):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                return self.layer(x)

        === train.py
        import torch
        from network import Net

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).sum()  # AMP110
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    "a checkpoint that another file saves in float16": """
        === checkpoints.py
        import torch

        def save(state, path):
            halved = {}
            for key in state.keys():
                halved[key] = state[key].half()
            torch.save(halved, path)

        === train.py
        import torch
        from checkpoints import save

        def train(net, optimizer, loader, path):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                optimizer.zero_grad()
                loss = parallel(net)(x).sum()
                scaler.scale(loss).backward()  # AMP110
                scaler.step(optimizer)
                scaler.update()
            save(net.state_dict(), path)
        """,
    "a forward that switches autocast off for a part": """
        === network.py
        import torch
        from torch import nn
        from torch.cuda.amp import autocast

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, x):
                with autocast(enabled=False):
                    x = torch.fft.rfft(x).real
                return self.layer(x)

        === train.py
        import torch
        from network import Net

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).sum()  # AMP110
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
}
#: The same structures, in which the other file makes the missing call, or shows that the code is never called.
SUPPLIED = {
    "a subclass unscales in the hook of its base": """
        === base.py
        import torch

        class Base:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def before_clip(self):
                raise NotImplementedError

            def fit(self, batches):
                for images in batches:
                    self.opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.net(images).mean()
                    self.scaler.scale(loss).backward()
                    self.before_clip()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                    self.scaler.step(self.opt)
                    self.scaler.update()

        === own.py
        from base import Base

        class Own(Base):
            def before_clip(self):
                self.scaler.unscale_(self.opt)

        def main(net, batches):
            Own(net).fit(batches)
        """,
    "an importer knows the model that enters autocast": """
        === scripts/learn.py
        import torch

        def learn(net, batches, criterion):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images, labels in batches:
                opt.zero_grad()
                scores = net(images)
                loss = criterion(scores, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === main.py
        from library.layers import Norm
        from scripts.learn import learn

        def main(name, batches, criterion):
            learn({"norm": Norm}[name](), batches, criterion)

        === library/layers.py
        import torch

        class Norm(torch.nn.Module):
            def forward(self, images):
                with torch.autocast("cuda", dtype=torch.float16):
                    return images / images.norm()
        """,
    "the caller scales the loss": """
        === half.py
        def finish(loss, opt, amp_scaler):
            loss.backward()
            amp_scaler.step(opt)
            amp_scaler.update()
            opt.zero_grad()

        === main.py
        import torch
        from half import finish

        def main(net, batches):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                finish(scaler.scale(loss), opt, scaler)
        """,
    "a wrapper of the caller steps with the scaler": """
        === half.py
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()
            opt.step()
            opt.zero_grad()

        === main.py
        import torch
        from half import half_step

        class Wrapped:
            def __init__(self, inner, scaler):
                self.inner = inner
                self.scaler = scaler

            def step(self):
                self.scaler.step(self.inner)
                self.scaler.update()

            def zero_grad(self):
                self.inner.zero_grad()

        def main(net, batches):
            scaler = torch.amp.GradScaler("cuda")
            opt = Wrapped(torch.optim.SGD(net.parameters(), lr=0.1), scaler)
            for images in batches:
                half_step(net, opt, scaler, images)
        """,
    "another file sums the gradients over the ranks": """
        === lib/__init__.py

        === lib/ranks.py
        def all_reduce_tensors(tensors, count):
            for tensor in tensors:
                reduce(tensor, count)

        === learn.py
        import lib.ranks
        import torch

        def learn(net, batches, count):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                scaler.scale(loss).backward()
                grads = [p.grad.data for p in net.parameters() if p.grad is not None]
                lib.ranks.all_reduce_tensors(grads, count)
                scaler.step(opt)
                scaler.update()
        """,
    "another file compares the version of torch": """
        === lib/__init__.py

        === lib/imports.py
        import operator

        from utilities import compare_version

        _TORCH_NEW = compare_version("torch", operator.ge, "2.4.0")

        === lib/precision.py
        import torch
        from lib.imports import _TORCH_NEW

        class Precision:
            def __init__(self, device):
                self.scaler = torch.amp.GradScaler(device) if _TORCH_NEW else torch.cuda.amp.GradScaler()
        """,
    "an override asks for more than its base class passes": """
        === base.py
        from collections import defaultdict

        from torch.amp import GradScaler

        class Base:
            def fit(self, batches, opt, criterion, scaler: GradScaler, scheduler):
                results = defaultdict(list)
                for epoch in range(9):
                    self.train(epoch, batches, opt, criterion, scaler, scheduler)
                    if self.plateau:
                        scheduler.step(results[self.metric][-1])
                    else:
                        scheduler.step()

            def train(self, epoch, batches, opt, criterion, scaler: GradScaler, scheduler):
                raise NotImplementedError

        === more.py
        import torch
        from base import Base

        class More(Base):
            def train(self, epoch, options, batches, opt, criterion, scaler, scheduler):
                for images, labels in batches:
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.net(images).mean()
                    scaler.scale(loss).backward()
                    scaler.unscale_(opt)
                    torch.nn.utils.clip_grad_norm_([images], 1.0)
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()
        """,
    "the caller clears the gradients": """
        === half.py
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()
            amp_scaler.step(opt)
            amp_scaler.update()

        === main.py
        import torch
        from half import half_step

        def main(net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                half_step(net, opt, amp_scaler, images)
        """,
    "a file of helpers clears": """
        === gan.py
        import torch

        from tools.reset import reset

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()
            amp_scaler.step(opt)
            amp_scaler.update()

        def fit(runner, net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            runner.each(lambda images: half_step(net, opt, amp_scaler, images), batches, reset)

        === tools/__init__.py

        === tools/reset.py
        def reset(opt):
            opt.zero_grad()
        """,
    "the caller updates the scale": """
        === half.py
        import torch

        def step(loss, opt, amp_scaler, parameters):
            amp_scaler.scale(loss).backward()
            amp_scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            amp_scaler.step(opt)

        === main.py
        import torch
        from half import step

        def main(net, batches):
            opt = torch.optim.Adam(net.parameters())
            amp_scaler = torch.amp.GradScaler("cuda")
            for images in batches:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(images).mean()
                step(loss, opt, amp_scaler, net.parameters())
                amp_scaler.update()
        """,
    "the model is trained in float16 by hand": """
        === learn.py
        def learn(net, opt, scaler, batches, criterion):
            for images, labels in batches:
                opt.zero_grad()
                loss = criterion(net(images), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()

        === main.py
        import torch
        from learn import learn

        def main(net, batches, criterion):
            net = net.cuda().half()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            learn(net, opt, torch.amp.GradScaler("cuda"), batches, criterion)
        """,
    "a base class updates the scaler that it constructs": """
        === optim/base.py
        from .scales import DynamicScaler

        class WithScaler:
            def __init__(self, inner):
                self.inner = inner
                self.scaler = DynamicScaler()

            def after_step(self):
                self.scaler.update()

        === optim/amp.py
        import torch
        from .base import WithScaler

        class AmpOptimizer(WithScaler):
            def __init__(self, inner):
                super().__init__(inner)
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def step(self):
                self.scaler.step(self.inner)
        """,
    "a caller updates the scaler that it lends, and steps without it elsewhere": """
        === half.py
        import torch

        def half_step(net, opt, scaler, images):
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)

        === main.py
        import torch
        from half import half_step

        def main(net, opt, scaler, batches, flags):
            for images in batches:
                if flags.plain:
                    net(images).sum().backward()
                    opt.step()
                else:
                    half_step(net, opt, scaler, images)
                    scaler.update()
        """,
}


@pytest.mark.parametrize("tree", HIDDEN.values(), ids=HIDDEN)
def test_what_a_file_shows_stays_beside_files_that_make_nothing_right(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert marks(tmp_path)
    assert marks(tmp_path) <= found(tmp_path)


@pytest.mark.parametrize("tree", SUPPLIED.values(), ids=SUPPLIED)
def test_what_another_file_supplies_is_not_missing(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert {place for place in found(tmp_path) if place[2] not in ("AMP501", "AMP503")} == set()


HALF_STEP = """\
import torch

def half_step(net, opt, scaler, images, log):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(images).mean()
    scaler.scale(loss).backward()
    if log:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # AMP201
    scaler.step(opt)
    scaler.update()
"""


def test_a_caller_with_more_states_than_are_followed_shows_only_the_calls_that_it_makes(tmp_path: Path) -> None:
    """Joined states of the caller may lose a violation, but the caller's clearing of gradients is still recognized."""
    parts = range(18)
    lines = [
        "import torch",
        "from half import half_step",
        "",
        "def main(nets, batches, flags):",
        '    scaler = torch.amp.GradScaler("cuda")',
        *(f"    opt{each} = torch.optim.SGD(nets[{each}].parameters(), lr=0.1)" for each in parts),
        "    for images in batches:",
        *(f"        if flags.part{each}:\n            opt{each}.zero_grad()" for each in parts),
    ]
    for each in parts:
        call = f"half_step(nets[{each}], opt{each}, scaler, images, flags.log)"
        lines += [f"        if flags.part{each}:", f"            {call}"]
    (tmp_path / "half.py").write_text(HALF_STEP, encoding="utf-8")
    (tmp_path / "main.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


#: A factory of many optimizers in another file, and a script that calls it in many branches and steps the last one.
FACTORY = """\
import torch

def construct(net, name, rate):
    if name == "sgd":
        opt = torch.optim.SGD(net.parameters(), lr=rate)
    elif name == "adam":
        opt = torch.optim.Adam(net.parameters(), lr=rate)
    elif name == "adadelta":
        opt = torch.optim.Adadelta(net.parameters(), lr=rate)
    elif name == "rmsprop":
        opt = torch.optim.RMSprop(net.parameters(), lr=rate)
    else:
        opt = torch.optim.Adagrad(net.parameters(), lr=rate)
    return opt

class Schedule:
    def __init__(self, opt, rate):
        self.opt = opt
        self.rate = rate

    def replace(self, net):
        self.opt = construct(net, "sgd", self.rate)
"""
SCRIPT = """\
import torch
from factory import Schedule, construct

def main(net, batches, args):
    opt = construct(net, args.name, args.rate)
    schedule = Schedule(opt, args.rate)
    if args.resume:
        schedule.replace(net)
    scaler = torch.amp.GradScaler("cuda")
    for images in batches:
        schedule.opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(images).mean()
        scaler.scale(loss).backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)  # AMP201
        scaler.step(schedule.opt)
        scaler.update()
        if args.decay:
            schedule.replace(net)
"""


def test_optimizers_that_are_only_constructed_take_no_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Too few states for one per optimizer, and no budget for the search of single violations afterwards.
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 120)
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.MOST_SPENT", 0)
    (tmp_path / "factory.py").write_text(FACTORY, encoding="utf-8")
    (tmp_path / "main.py").write_text(SCRIPT, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


#: One file in which ``fit`` is too large for an analysis of all its states.
TRAINER = """\
import torch

class Trainer:
    def __init__(self, net, args):
        self.net = net
        self.args = args
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, batches):
{stages}
        for images in batches:
            self.train_batch(images, self.args.precision == "fp16")

    def train_batch(self, images, scaled):
        self.opt.zero_grad()
        self.train_parts(images, scaled)
        if self.args.precision == "fp16":
            self.scaler.step(self.opt)
            self.scaler.update()
        else:
            self.opt.step()

    def train_parts(self, images, scaled):
        with torch.autocast("cuda", dtype=torch.float16, enabled=scaled):
            loss = self.net(images).mean()
        if scaled:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        if scaled:
            self.scaler.unscale_(self.opt)
            {again}
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
"""


def test_a_violation_in_a_function_is_found_where_the_states_of_its_caller_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that a flag of the caller guards in two functions is correct, although one function alone hides that."""
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.MOST_SPENT", 10)
    stages = "\n".join(
        f"        if self.args.stage{each}:\n            self.opt.zero_grad()\n            self.net.prepare({each})"
        for each in range(40)
    )
    right = TRAINER.replace("{stages}", stages).replace("{again}", "pass")
    wrong = TRAINER.replace("{stages}", stages).replace("{again}", "self.scaler.unscale_(self.opt)  # AMP209")
    (tmp_path / "right.py").write_text(right, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    too_large = {("right.py", 10, "AMP903"), ("wrong.py", 10, "AMP903")}
    assert found(tmp_path) == marks(tmp_path) | too_large


#: One file in which ``fit`` is too large, and a method that chooses between two precisions.
WINDOW = """\
import torch

class Trainer:
    def __init__(self, net, args):
        self.net = net
        self.args = args
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, batches):
{stages}
        for batch in batches:
            self.train_batch(batch, self.args.precision == "fp16")

    def train_batch(self, batch, scaled):
        {before}
        for images in batch:
            {inside}
            with torch.autocast("cuda", dtype=torch.float16, enabled=scaled):
                loss = self.net(images).mean() / len(batch)
            if scaled:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
        if scaled:
            self.scaler.step(self.opt)
            self.scaler.update()
        else:
            self.opt.step()
"""


@pytest.mark.parametrize("inside", [True, False])
def test_a_mistake_of_any_precision_is_found_where_the_states_of_the_caller_are_joined(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag that chooses between two precisions does not excuse gradients that both lose."""
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.MOST_SPENT", 10)
    stages = "\n".join(
        f"        if self.args.stage{each}:\n            self.opt.zero_grad()\n            self.net.prepare({each})"
        for each in range(40)
    )
    clear = "self.opt.zero_grad()"
    text = WINDOW.replace("{stages}", stages).replace("{before}", "pass" if inside else clear)
    (tmp_path / "main.py").write_text(
        text.replace("{inside}", f"{clear}  # AMP304" if inside else "pass"), encoding="utf-8"
    )
    assert {one for one in found(tmp_path) if one[2] != "AMP903"} == marks(tmp_path)


#: A method that becomes too large by a call into a base class of another file.
LARGE_CALL = """\
import torch
from base import Base

class Trainer(Base):
    def __init__(self, net, args):
        super().__init__(net, args)
        self.scaler = torch.amp.GradScaler("cuda", enabled=args.scaled)

    def train_batch(self, batch):
        {before}
        for images in batch:
            {inside}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(images).mean() / len(batch)
            self.report(loss)
            if self.args.scaled:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
        if self.args.scaled:
            self.scaler.step(self.opt)
            self.scaler.update()
        else:
            self.opt.step()
"""
LARGE_BASE = """\
import torch

class Base:
    def __init__(self, net, args):
        self.net = net
        self.args = args
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def report(self, loss):
{stages}
"""


@pytest.mark.parametrize("inside", [True, False])
def test_what_a_file_shows_is_found_where_code_of_other_files_joins_the_states(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.MOST_SPENT", 10)
    stages = "\n".join(
        f"        if self.args.stage{each}:\n            self.opt.zero_grad()\n            self.net.prepare({each})"
        for each in range(40)
    )
    (tmp_path / "base.py").write_text(LARGE_BASE.replace("{stages}", stages), encoding="utf-8")
    clear = "self.opt.zero_grad()"
    text = LARGE_CALL.replace("{before}", "pass" if inside else clear)
    text = text.replace("{inside}", f"{clear}  # AMP304" if inside else "pass")
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert {one for one in found(tmp_path) if one[2] != "AMP903"} == marks(tmp_path)


#: A subclass whose inherited ``fit`` is too large for an analysis of all its states.
SUBCLASS = """\
import torch
from base import Base

class Trainer(Base):
    def __init__(self, net, args):
        super().__init__(net, args)
        self.scaler = torch.amp.GradScaler("cuda")

    def train_batch(self, images):
        if self.args.left and self.args.up:
            raise ValueError
        if not self.args.left and self.args.right:
            raise ValueError
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.net(images).mean()
        self.scaler.scale(loss).backward()
        if self.args.test:
            self.opt.zero_grad()
        {step}
"""
BASE = """\
import torch

class Base:
    def __init__(self, net, args):
        self.net = net
        self.args = args
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def train_batch(self, images):
        raise NotImplementedError

    def fit(self, batches):
{stages}
        for images in batches:
            self.train_batch(images)
            self.opt.zero_grad()
"""


@pytest.mark.parametrize(
    "step", ["self.opt.step()  # AMP204", "self.scaler.step(self.opt)\n        self.scaler.update()"]
)
def test_a_violation_in_a_method_is_found_where_the_states_of_an_inherited_caller_are_joined(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.MOST_SPENT", 10)
    stages = "\n".join(
        f"        if self.args.stage{each}:\n            self.opt.zero_grad()\n            self.net.prepare({each})"
        for each in range(40)
    )
    (tmp_path / "base.py").write_text(BASE.replace("{stages}", stages), encoding="utf-8")
    (tmp_path / "train.py").write_text(SUBCLASS.replace("{step}", step), encoding="utf-8")
    assert {each for each in found(tmp_path) if each[2] != "AMP903"} == marks(tmp_path)


WRAPPER = """
    === main.py
    import torch
    from wrapper import Wrapper

    def main(net, batches):
        opt = Wrapper(net.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for images in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            scaler.scale(loss).backward()
            scaler.step(opt.optimizer)
            scaler.update()
            opt.{clear}()

    === wrapper.py
    import torch

    class Wrapper:
        def __init__(self, parameters):
            self.optimizer = torch.optim.Adam(parameters)
            self.rate = 0.1
            self.steps = 0

        def zero_grad(self):
            self.optimizer.zero_grad()

        def tell(self):
            print(self.optimizer)
    """


@pytest.mark.parametrize(("clear", "codes"), [("zero_grad", set()), ("tell", {"AMP215"})])
def test_a_method_of_a_wrapper_that_is_not_analyzed_does_what_it_calls(
    clear: str, codes: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Budget for the constructor of the wrapper, and no more of another file.
    monkeypatch.setattr("pytest_amp_check.static.interpreter.functions.OTHER_FILES_BUDGET", 2)
    write(tmp_path, WRAPPER.replace("{clear}", clear))
    assert {code for _, _, code in found(tmp_path)} == codes


@pytest.mark.parametrize("constructed", ["in the pass", "before"])
def test_training_that_is_started_anew_with_an_optimizer_out_of_a_dictionary(constructed: str, tmp_path: Path) -> None:
    """A new optimizer with the new scaler is a new training. If only the scaler is new, its scale is lost."""
    made = 'optimizers = {"net": torch.optim.AdamW(net.parameters()), "head": torch.optim.AdamW(head.parameters())}'
    mark = "" if constructed == "in the pass" else "  # AMP208"
    before, inside = ("pass", made) if constructed == "in the pass" else (made, "pass")
    (tmp_path / "probe.py").write_text(
        f"""\
import torch

def probe(checkpoints, net, head, batches):
    {before}
    for checkpoint in checkpoints:
        net.load_state_dict(torch.load(checkpoint))
        {inside}
        scaler = torch.amp.GradScaler("cuda"){mark}
        for images in batches:
            for opt in optimizers.values():
                opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = head(net(images)).mean()
            scaler.scale(loss).backward()
            for opt in optimizers.values():
                scaler.step(opt)
            scaler.update()
""",
        encoding="utf-8",
    )
    assert found(tmp_path) == marks(tmp_path)


STAR_IMPORTS = """
    === train.py
    import torch
    import parts

    def fit(net, opt, batches):
        scaler = torch.amp.GradScaler("cuda")
        for images in batches:
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = parts.losses.{name}(net, images)
                scaler.scale(loss).backward()  # AMP103
            scaler.step(opt)
            scaler.update()

    === parts/__init__.py
    from . import *
    from .other import *

    === parts/other.py
    from . import *
    from .losses import *

    === parts/losses.py
    from parts.other import *

    def mean(net, images):
        return net(images).mean()
    """


@pytest.mark.parametrize("name", ["mean", "nowhere"])
def test_packages_that_import_all_from_themselves_and_each_other(name: str, tmp_path: Path) -> None:
    write(tmp_path, STAR_IMPORTS.replace("{name}", name))
    assert found(tmp_path) == marks(tmp_path)


MARIMO = """\
import marimo

app = marimo.App(width="medium")

with app.setup:
    import torch


@app.cell(hide_code=True)
def _(loader, model, optimizer, scaler):
    for images in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = mean(model(images))
        scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
        scaler.step(optimizer)
        scaler.update()
    return


@app.function
def mean(values):
    return values.mean()


@app.cell
def _():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    return model, optimizer, scaler


@app.cell
def _():
    loader = [torch.randn(2, 4)]
    return (loader,)


if __name__ == "__main__":
    app.run()
"""


def test_the_cells_of_a_marimo_notebook_are_one_program_in_the_order_in_which_they_run(tmp_path: Path) -> None:
    wrong = MARIMO.replace("{unscale}", "pass").replace("{mark}", "  # AMP201")
    right = MARIMO.replace("{unscale}", "scaler.unscale_(optimizer)").replace("{mark}", "")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    (tmp_path / "right.py").write_text(right, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path) == {("wrong.py", 17, "AMP201")}


#: A norm of scaled gradients, in a small function of another file.
NORM = """
=== commons.py
import torch

def clip_grad_value_(parameters, clip_value, norm_type=2):
    parameters = list(filter(lambda p: p.grad is not None, parameters))
    if clip_value is not None:
        clip_value = float(clip_value)
    total_norm = 0
    for p in parameters:
        total_norm += p.grad.data.norm(norm_type).item() ** norm_type
        if clip_value is not None:
            p.grad.data.clamp_(min=-clip_value, max=clip_value)
    return total_norm ** (1.0 / norm_type)

=== train.py
import torch
import commons

def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        norm = commons.clip_grad_value_(model.parameters(), None)  # AMP202
        scaler.step(optimizer)
        scaler.update()
        print(norm)
"""


def test_a_small_function_on_gradients_is_analyzed_after_the_budget_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.static.interpreter.functions.OTHER_FILES_BUDGET", -1)
    write(tmp_path, NORM)
    assert found(tmp_path) == marks(tmp_path) != set()


#: Several optimizers behind one object, whose methods have the names of theirs.
SEVERAL = """
=== several.py
class Several:
    def __init__(self, optimizers):
        self.optimizers = optimizers

    def step(self, key=None, scaler=None):
        keys = [key] if key is not None else self.optimizers
        _ = [self._step(key, scaler) for key in keys]

    def _step(self, key, scaler=None):
        if scaler is not None:
            scaler.step(self.optimizers[key])
            scaler.update()
        else:
            self.optimizers[key].step()

    def zero_grad(self, key=None):
        if key is not None:
            self.optimizers[key].zero_grad()
        else:
            _ = [self.optimizers[key].zero_grad() for key in self.optimizers]

=== train.py
import torch
from several import Several

class Trainer:
    def __init__(self, models):
        self.models = models
        optimizers = {}
        for key, model in models.items():
            optimizers[key] = torch.optim.AdamW(model.parameters())
        self.optimizer = Several(optimizers)

    def train_step(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.models.flow(x).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step("flow")
        self.optimizer.step("length")

    def train(self, loader):
        for x in loader:
            self.train_step(x)
"""


@pytest.mark.parametrize("clears", [True, False])
def test_a_method_of_the_name_of_the_one_it_calls_is_small(
    clears: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.static.interpreter.functions.MINOR_BUDGET_SHARE", -1)
    line = "        self.optimizer.zero_grad()\n"
    write(tmp_path, SEVERAL if clears else SEVERAL.replace(line, ""))
    assert {code for _, _, code in found(tmp_path)} == (set() if clears else {"AMP215"})


SWITCHED = """\
import torch
from modes import {name}

class Agent:
    def __init__(self, policy):
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, batches):
        for batch in batches:
            {name}(self)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.mse_loss(self.policy(batch), batch)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


@pytest.mark.parametrize(
    ("name", "trains"),
    [
        ("set_training_mode", False),
        ("enable_train_mode", False),
        ("switchTrainingMode", False),
        ("train_model", True),
        ("zero_all", True),
    ],
)
def test_a_function_that_switches_a_mode_clears_no_gradients(name: str, trains: bool, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SWITCHED.format(name=name), encoding="utf-8")
    assert {code for _, _, code in found(tmp_path)} == (set() if trains else {"AMP215"})


#: A function that takes one step, and a caller with too many states, in another file.
STEP_OF_ANOTHER_FILE = {
    "half.py": """\
        import torch

        def half_step(net, opt, amp_scaler, images):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(images).mean()
            amp_scaler.scale(loss).backward()  # AMP215
            amp_scaler.step(opt)
            amp_scaler.update()
        """,
    "main.py": """\
        import torch
        from half import half_step

        def fit(net, args, batches):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for images in batches:
        {stages}
                half_step(net, opt, scaler, images)
                {clear}
        """,
}


@pytest.mark.parametrize("clear", ["print(args)", "opt.zero_grad()"])
def test_a_caller_whose_states_are_joined_withdraws_a_finding_only_by_the_missing_call(
    clear: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    stages = "\n".join(
        f"        if args.stage{each}:\n"
        f"            other = torch.optim.Adam(net.parameters(), lr={each})\n"
        "            other.step()"
        for each in range(40)
    )
    for name, text in STEP_OF_ANOTHER_FILE.items():
        (tmp_path / name).write_text(
            textwrap.dedent(text).replace("{stages}", stages).replace("{clear}", clear), encoding="utf-8"
        )
    assert found(tmp_path) == (marks(tmp_path) if clear == "print(args)" else set())


#: A function with too many states, in which a flag guards two parts. The shortest way through both contradicts itself.
CONTRADICTION = """\
import torch

def train(net, opt, scaler, images, args):
    scaled = args.scaled
{stages}
    if scaled:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(images).mean()
        scaler.scale(loss).backward()
    if scaled:
        scaler.unscale_(opt)
    if scaled:
        {again}
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
"""


@pytest.mark.parametrize("again", ["print(args)", "scaler.unscale_(opt)  # AMP209"])
def test_a_violation_of_joined_states_is_found_on_another_path_than_the_shortest(
    again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.protocol.graph_exploration.LIMIT", 100)
    stages = "\n".join(
        f"    if args.stage{each}:\n        with torch.autocast('cuda'):\n            net.prepare({each})"
        for each in range(40)
    )
    text = CONTRADICTION.replace("{stages}", stages).replace("{again}", again)
    (tmp_path / "main.py").write_text(text, encoding="utf-8")
    assert {one for one in found(tmp_path) if one[2] == "AMP209"} == marks(tmp_path)
