"""Evidence about findings: code of other files that is no part of a mistake leaves the finding in place.

Each mistake stays beside code that makes nothing right. Its twin is right, because the other file supplies what is
missing, and stays silent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

#: Mistakes beside other files. Marks name the expected findings.
MISTAKES = {
    "a wrapper of another file predicts in float16 with a variable of the same name": """
        === backend.py
        import torch
        from torch import nn

        class Backend(nn.Module):
            def __init__(self, weights, fp16):
                super().__init__()
                model = torch.load(weights)
                model.half() if fp16 else model.float()
                self.net = model

            @torch.no_grad()
            def forward(self, x):
                return self.net(x)

        === train.py
        import torch
        from backend import Backend

        def train(model, optimizer, loader, criterion):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                scaler.scale(loss).backward()  # AMP110
                scaler.step(optimizer)
                scaler.update()
        """,
    "a base class only clears the optimizer that a subclass steps": """
        === engine/base.py
        import torch

        class Brain:
            def __init__(self, modules, make):
                self.modules, self.make = modules, make
                self.scaler = torch.amp.GradScaler("cuda")

            def prepare(self):
                self.optimizer = self.make(self.modules.parameters())

            def clear(self):
                self.optimizer.zero_grad()

            def fit(self, batches):
                self.prepare()
                self.clear()
                for batch in batches:
                    self.fit_batch(batch)

        === recipe.py
        import torch
        from engine.base import Brain

        class Separation(Brain):
            def fit_batch(self, batch):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.modules(batch).mean()
                self.scaler.scale(loss).backward()
                self.optimizer.step()  # AMP204
                self.scaler.update()
                self.optimizer.zero_grad()

        def main(net, settings, batches):
            Separation(net, settings["optimizer"]).fit(batches)

        main(load_net(), load_settings(), load_batches())
        """,
    "a base class clears under a name that modules have, too": """
        === base.py
        class Learner:
            def setup(self, factory, net, scaler):
                self.net, self.scaler = net, scaler
                self.updater = factory(net.parameters())

            def reset(self):
                self.updater.zero_grad(set_to_none=True)

            def run(self, loader):
                self.reset()
                for images in loader:
                    self.learn(images)

        === learner.py
        import torch
        from base import Learner

        class Half(Learner):
            def learn(self, images):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.net(images).sum()
                self.scaler.scale(loss).backward()
                self.updater.step()  # AMP204
                self.updater.zero_grad()

        def main(factory, net, loader):
            half = Half()
            half.setup(factory, net, torch.amp.GradScaler("cuda"))
            half.run(loader)

        if __name__ == "__main__":
            main(read_factory(), read_net(), read_loader())
        """,
    "a helper clears the optimizer that its caller steps": """
        === clearing.py
        def clear_all(job, log):
            job.updater.zero_grad()
            log("cleared")

        === train.py
        import torch
        from clearing import clear_all

        def train(job, batches, log):
            scaler = torch.amp.GradScaler("cuda")
            clear_all(job, log)
            for batch in batches:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = job.net(batch).sum()
                scaler.scale(loss).backward()
                job.updater.step()  # AMP204
                job.updater.zero_grad()
        """,
    "a benchmark of other models patches torch for its own loop": """
        === kit/__init__.py
        from . import models
        from .wrapper import Runner

        === kit/models.py
        import torch

        def small():
            return torch.nn.Linear(4, 4)

        === kit/wrapper.py
        import torch

        class Runner:
            def __init__(self, model, optimizer, criterion):
                self.model, self.optimizer, self.criterion = model, optimizer, criterion
                self.scaler = torch.amp.GradScaler("cuda")

            def make_step(self, images, target):
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(images), target)
                self.scaler.scale(loss).backward()  # AMP110
                self.scaler.step(self.optimizer)
                self.scaler.update()

        === benchmarks/memory.py
        import torch
        from apex import amp
        import kit

        def measure(images, use_apex):
            model = kit.models.small()
            if use_apex:
                model = amp.initialize(model, verbosity=0, opt_level="O1")
            for _ in range(5):
                loss = model(images).sum()
                loss.backward()
        """,
    "a script with a loop of its own sets the dtype of all its tensors": """
        === pack/__init__.py
        from . import engine, nets

        === pack/nets.py
        import torch

        class Tiny(torch.nn.Linear):
            pass

        === pack/engine.py
        import torch

        def one_epoch(net, opt, batches):
            scaling = torch.amp.GradScaler("cuda")
            for batch in batches:
                opt.zero_grad()
                loss = net(batch).square().mean()
                scaling.scale(loss).backward()  # AMP110
                scaling.step(opt)
                scaling.update()

        === probe.py
        import torch
        import pack

        torch.set_default_dtype(torch.float16)

        def probe(batch):
            net = pack.nets.Tiny(4, 4)
            net(batch).sum().backward()
            return net.weight.grad
        """,
    "a state that stands in until a callback gets the state of its runner": """
        === kit/state.py
        import torch

        class RunnerState:
            def __init__(self, *, model=None, optimizer=None, half=False):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda", enabled=half)

        === kit/callbacks.py
        import torch
        from .state import RunnerState

        class Callback:
            def __init__(self):
                self.state = RunnerState()

            def set_state(self, state):
                self.state = state

        class Clipping(Callback):
            def __init__(self, limit):
                super().__init__()
                self.limit = limit

            def on_after_backward(self):
                self.state.scaler.unscale_(self.state.optimizer)
                self.state.scaler.unscale_(self.state.optimizer)  # AMP209
                torch.nn.utils.clip_grad_norm_(self.state.model.parameters(), self.limit)

        class OwnInit(Callback):
            def __init__(self, limit):
                self.limit = limit

            def on_after_backward(self):
                self.state.scaler.unscale_(self.state.optimizer)
                self.state.scaler.unscale_(self.state.optimizer)  # AMP209
                torch.nn.utils.clip_grad_value_(self.state.model.parameters(), self.limit)
        """,
    "options that stand in until a trainer is bound": """
        === options.py
        class Options:
            def __init__(self, amp=False, scaler=None):
                self.amp, self.scaler = amp, scaler

        === trainer.py
        import torch
        from options import Options

        class Trainer:
            def __init__(self, net, opt):
                self.net, self.opt = net, opt
                self.options = Options()

            def bind(self, name, options=None):
                self.name = name
                self.options = options

            def train(self, images):
                self.opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16, enabled=self.options.amp):
                    loss = self.net(images).mean()
                if self.options.amp:
                    self.options.scaler.scale(loss).backward()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # AMP201
                    self.options.scaler.step(self.opt)
                    self.options.scaler.update()
        """,
    "an engine for the data beside an engine for the device": """
        === utilities.py
        from accelerate import Accelerator
        from torch.optim import AdamW

        def build(accelerator=None):
            if accelerator is None:
                accelerator = Accelerator()
            model = load_model()
            optimizer = AdamW(model.parameters(), lr=0.0001)
            loader = accelerator.prepare(load_data())
            return model, optimizer, loader

        === compare.py
        import torch
        from accelerate import Accelerator
        from utilities import build

        def train_baseline():
            scaler = torch.amp.GradScaler("cuda")
            model, optimizer, loader = build()
            accelerator = Accelerator()
            model.to(accelerator.device)
            for batch in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(**batch).loss
                scaler.scale(loss).backward()
                optimizer.step()  # AMP204
                optimizer.zero_grad()

        def train_integration():
            accelerator = Accelerator(mixed_precision="fp16")
            model, optimizer, loader = build(accelerator)
            model, optimizer = accelerator.prepare(model, optimizer)
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        train_baseline()
        train_integration()
        """,
    "two engines that prepare only data, and a scaler of torch": """
        === data.py
        from lightning.fabric import Fabric

        def loaders(paths):
            fabric = Fabric()
            return fabric.setup_dataloaders(read(paths))

        === train.py
        import torch
        from lightning.fabric import Fabric
        from data import loaders

        def main(net, paths):
            fabric = Fabric()
            batches, others = loaders(paths), fabric.setup_dataloaders(read_more(paths))
            net = fabric.setup_module(net)
            sgd = torch.optim.SGD(net.parameters(), lr=0.1)
            half = torch.amp.GradScaler("cuda")
            for batch in (*batches, *others):
                sgd.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(batch).mean()
                half.scale(loss).backward()
                sgd.step()  # AMP204

        main(make_net(), find_paths())
        """,
    "a caller chooses a learning rate by a nominal batch size, unless one is given": """
        === engine.py
        import torch

        def train_one_epoch(net, batches, opt, scaler, args):
            for i, (images, target) in enumerate(batches):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = torch.nn.functional.cross_entropy(net(images), target)
                scaler.scale(loss).backward()  # AMP301
                if (i + 1) % args.accumulate == 0:
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()

        === main.py
        import torch
        from engine import train_one_epoch

        def main(net, batches, args):
            whole = args.batch_size * args.accumulate
            if args.lr is None:
                args.lr = args.base_lr * whole / 256
            opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(args.epochs):
                train_one_epoch(net, batches, opt, scaler, args)
        """,
    "a script takes the learning rate of a table or scales it linearly": """
        === loops.py
        import torch

        def fit(model, loader, optimizer, amp_scaler, k):
            for step, batch in enumerate(loader, 1):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(batch).square().mean()
                amp_scaler.scale(loss).backward()  # AMP301
                if step % k == 0:
                    amp_scaler.step(optimizer)
                    amp_scaler.update()
                    optimizer.zero_grad()

        === script.py
        import torch
        import loops

        def run(model, loader, options, k):
            rate = options.rate * options.batch / 512.0 if options.linear else options.table[0]
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            loops.fit(model, loader, optimizer, torch.amp.GradScaler("cuda"), k)
        """,
    "a wrapper of the optimizer that is not analyzed runs between two steps": """
        === wrap.py
        from schedules import Schedule

        def wrap(optimizer, options):
            return Schedule(optimizer, **options)

        === train.py
        import torch
        from wrap import wrap

        def train(net, batches, options):
            optimizer = torch.optim.Adam(net.parameters())
            scheduler = wrap(optimizer, options)
            scaler = torch.amp.GradScaler("cuda")
            for number, batch in enumerate(batches):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(batch).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)  # AMP206
                scheduler.step_on(optimizer)
                optimizer.zero_grad()
                if number % options["every"] == 0:
                    scaler.update()
        """,
    "other code steps on what the scaler has stepped": """
        === base.py
        import torch

        class Base:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.half = torch.amp.GradScaler("cuda")

        === loop.py
        import remote
        import torch
        from base import Base

        class Loop(Base):
            def run(self, batches):
                for batch in batches:
                    self.opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.net(batch).mean()
                    self.half.scale(loss).backward()
                    self.half.step(self.opt)  # AMP206
                    remote.step_on(self.opt)
                    if self.net.training:
                        self.half.update()
        """,
}

#: Right programs, each the twin of a mistake.
RIGHT = {
    "a function of another file casts the model that it is given": """
        === backend.py
        def prepare(model):
            model.half()

        === train.py
        import torch
        from backend import prepare

        def train(model, optimizer, loader, criterion):
            prepare(model)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "the optimizer that a base class clears is stepped through the scaler": """
        === engine/base.py
        import torch

        class Brain:
            def __init__(self, modules, make):
                self.modules, self.make = modules, make
                self.scaler = torch.amp.GradScaler("cuda")

            def prepare(self):
                self.optimizer = self.make(self.modules.parameters())

            def clear(self):
                self.optimizer.zero_grad()

            def fit(self, batches):
                self.prepare()
                for batch in batches:
                    self.clear()
                    self.fit_batch(batch)

        === recipe.py
        import torch
        from engine.base import Brain

        class Separation(Brain):
            def fit_batch(self, batch):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.modules(batch).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

        def main(net, settings, batches):
            Separation(net, settings["optimizer"]).fit(batches)

        main(load_net(), load_settings(), load_batches())
        """,
    "a base class clears a module before each step of a subclass": """
        === base.py
        class Learner:
            def setup(self, factory, net, scaler):
                self.net, self.scaler = net, scaler
                self.updater = factory(net.parameters())

            def reset(self):
                self.net.zero_grad(set_to_none=True)

            def run(self, loader):
                for images in loader:
                    self.reset()
                    self.learn(images)

        === learner.py
        import torch
        from base import Learner

        class Half(Learner):
            def learn(self, images):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.net(images).sum()
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.updater)
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.scaler.step(self.updater)
                self.scaler.update()

        def main(factory, net, loader):
            half = Half()
            half.setup(factory, net, torch.amp.GradScaler("cuda"))
            half.run(loader)

        if __name__ == "__main__":
            main(read_factory(), read_net(), read_loader())
        """,
    "a helper clears what its caller steps through the scaler": """
        === clearing.py
        def clear_all(job, log):
            job.updater.zero_grad()
            log("cleared")

        === train.py
        import torch
        from clearing import clear_all

        def train(job, batches, log):
            scaler = torch.amp.GradScaler("cuda")
            for batch in batches:
                clear_all(job, log)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = job.net(batch).sum()
                scaler.scale(loss).backward()
                scaler.step(job.updater)
                scaler.update()
        """,
    "a script patches torch and runs a training of a package": """
        === kit/__init__.py
        from . import models
        from .wrapper import Runner

        === kit/models.py
        import torch

        def small():
            return torch.nn.Linear(4, 4)

        === kit/wrapper.py
        import torch

        class Runner:
            def __init__(self, model, optimizer, criterion):
                self.model, self.optimizer, self.criterion = model, optimizer, criterion
                self.scaler = torch.amp.GradScaler("cuda")

            def make_step(self, images, target):
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(images), target)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()

        === benchmarks/memory.py
        import torch
        from apex import amp
        import kit

        def measure(batches, optimizer, criterion):
            model = amp.initialize(kit.models.small(), opt_level="O1")
            runner = kit.Runner(model, optimizer, criterion)
            for images, target in batches:
                criterion(model(images), target).backward()
                runner.make_step(images, target)
        """,
    "a script sets the dtype of all tensors and calls the loop of a package": """
        === pack/__init__.py
        from . import engine

        === pack/engine.py
        import torch

        def one_epoch(net, opt, batches):
            scaling = torch.amp.GradScaler("cuda")
            for batch in batches:
                opt.zero_grad()
                loss = net(batch).square().mean()
                scaling.scale(loss).backward()
                scaling.step(opt)
                scaling.update()

        === main.py
        import torch
        from pack import engine

        torch.set_default_dtype(torch.float16)

        def main(net, opt, batches):
            net(next(batches)).sum().backward()
            engine.one_epoch(net, opt, batches)
        """,
    "a callback unscales once through a state that it gets later": """
        === kit/state.py
        import torch

        class RunnerState:
            def __init__(self, *, model=None, optimizer=None, half=False):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda", enabled=half)

        === kit/callbacks.py
        import torch
        from .state import RunnerState

        class Callback:
            def __init__(self):
                self.state = RunnerState()

            def set_state(self, state):
                self.state = state

        class Clipping(Callback):
            def __init__(self, limit):
                super().__init__()
                self.limit = limit

            def on_after_backward(self):
                self.state.scaler.unscale_(self.state.optimizer)
                torch.nn.utils.clip_grad_norm_(self.state.model.parameters(), self.limit)
        """,
    "a trainer makes its options once, without a scaler": """
        === options.py
        class Options:
            def __init__(self, amp=False, scaler=None):
                self.amp, self.scaler = amp, scaler

        === trainer.py
        import torch
        from options import Options

        class Trainer:
            def __init__(self, net, opt):
                self.net, self.opt = net, opt
                self.options = Options()

            def train(self, images):
                self.opt.zero_grad()
                loss = self.net(images).mean()
                if self.options.amp:
                    self.options.scaler.scale(loss).backward()
                    torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                    self.options.scaler.step(self.opt)
                    self.options.scaler.update()
                else:
                    loss.backward()
                    self.opt.step()
        """,
    "one of two engines prepares the optimizer": """
        === utilities.py
        from accelerate import Accelerator
        from torch.optim import AdamW

        def build(accelerator=None):
            if accelerator is None:
                accelerator = Accelerator()
            model = load_model()
            optimizer = AdamW(model.parameters(), lr=0.0001)
            loader = accelerator.prepare(load_data())
            return model, optimizer, loader

        === compare.py
        import torch
        from accelerate import Accelerator
        from utilities import build

        def train_baseline():
            scaler = torch.amp.GradScaler("cuda")
            model, optimizer, loader = build()
            accelerator = Accelerator()
            model.to(accelerator.device)
            for batch in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(**batch).loss
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

        def train_integration():
            accelerator = Accelerator(mixed_precision="fp16")
            model, optimizer, loader = build(accelerator)
            model, optimizer = accelerator.prepare(model, optimizer)
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        train_baseline()
        train_integration()
        """,
    "the engine of a caller prepares the optimizer beside another engine": """
        === data.py
        from accelerate import Accelerator

        def loaders(paths):
            accelerator = Accelerator()
            return accelerator.prepare(read(paths))

        === train.py
        import torch
        from accelerate import Accelerator
        from data import loaders

        def fit(accelerator, net, sgd, batches):
            for batch in batches:
                sgd.zero_grad()
                accelerator.backward(net(batch).mean())
                sgd.step()

        def main(net, paths):
            engine = Accelerator(mixed_precision="fp16")
            net, sgd = engine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
            fit(engine, net, sgd, loaders(paths))

        main(make_net(), find_paths())
        """,
    "a caller divides the learning rate by the length of the window, unless one is given": """
        === engine.py
        import torch

        def train_one_epoch(net, batches, opt, scaler, args):
            for i, (images, target) in enumerate(batches):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = torch.nn.functional.cross_entropy(net(images), target)
                scaler.scale(loss).backward()
                if (i + 1) % args.accumulate == 0:
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()

        === main.py
        import torch
        from engine import train_one_epoch

        def main(net, batches, args):
            if args.lr is None:
                args.lr = args.base_lr * args.batch_size / 256 / args.accumulate
            opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
            scaler = torch.amp.GradScaler("cuda")
            for epoch in range(args.epochs):
                train_one_epoch(net, batches, opt, scaler, args)
        """,
    "a script divides the learning rate of a table by the window": """
        === loops.py
        import torch

        def fit(model, loader, optimizer, amp_scaler, k):
            for step, batch in enumerate(loader, 1):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(batch).square().mean()
                amp_scaler.scale(loss).backward()
                if step % k == 0:
                    amp_scaler.step(optimizer)
                    amp_scaler.update()
                    optimizer.zero_grad()

        === script.py
        import torch
        import loops

        def run(model, loader, options, k):
            rate = options.rate * options.batch / 512.0 if options.linear else options.table[0]
            optimizer = torch.optim.SGD(model.parameters(), lr=rate / k)
            loops.fit(model, loader, optimizer, torch.amp.GradScaler("cuda"), k)
        """,
    "a wrapper that is not analyzed has the scaler, too": """
        === wrap.py
        from schedules import Schedule

        def wrap(optimizer, scaler, options):
            return Schedule(optimizer, scaler, **options)

        === train.py
        import torch
        from wrap import wrap

        def train(net, batches, options):
            optimizer = torch.optim.Adam(net.parameters())
            scaler = torch.amp.GradScaler("cuda")
            scheduler = wrap(optimizer, scaler, options)
            for number, batch in enumerate(batches):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = net(batch).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scheduler.step_on(optimizer)
                optimizer.zero_grad()
                if number % options["every"] == 0:
                    scaler.update()
        """,
    "other code finishes the step of a scaler that it gets with its owner": """
        === base.py
        import torch

        class Base:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.half = torch.amp.GradScaler("cuda")

        === loop.py
        import remote
        import torch
        from base import Base

        class Loop(Base):
            def run(self, batches):
                for batch in batches:
                    self.opt.zero_grad()
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = self.net(batch).mean()
                    self.half.scale(loss).backward()
                    self.half.step(self.opt)
                    remote.step_on(self)
                    if self.net.training:
                        self.half.update()
        """,
}


@pytest.mark.parametrize("tree", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_stays_beside_code_that_makes_nothing_right(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert marks(tmp_path)
    assert marks(tmp_path) <= found(tmp_path)


@pytest.mark.parametrize("tree", RIGHT.values(), ids=RIGHT)
def test_a_right_program_of_several_files_is_silent(tree: str, tmp_path: Path) -> None:
    write(tmp_path, tree)
    assert found(tmp_path) == set()
