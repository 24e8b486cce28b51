"""Classes that hold a scaler, and functions with a scaler parameter: calls that are missing in every method.

AMP110 requires an autocast, which these tests are not about.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check import check_paths, check_source

WRONG = {
    "a wrapper that never updates": """
        === amp.py
        import torch

        class LossScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
                self._scaler.scale(loss).backward()
                if update_grad:
                    if clip_grad is not None:
                        self._scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
                    self._scaler.step(optimizer)  # AMP206

            def state_dict(self):
                return self._scaler.state_dict()
        """,
    "an object that is given its scaler": """
        === trainer.py
        class Trainer:
            def __init__(self, model, optimizer, scaler):
                self.model, self.optimizer, self.grad_scaler = model, optimizer, scaler

            def run_step(self, batch):
                self.optimizer.zero_grad()
                self.grad_scaler.scale(self.model(batch)).backward()
                self.grad_scaler.step(self.optimizer)  # AMP206
        """,
    "a class that inherits its scaler from another file": """
        === base.py
        import torch

        class Base:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")
        === trainer.py
        from base import Base

        class Trainer(Base):
            def run_step(self, batch):
                self.optimizer.zero_grad()
                self.scaler.scale(self.model(batch)).backward()
                self.scaler.step(self.optimizer)  # AMP206
        """,
    "a function that is given a scaler, and that nobody calls": """
        === steps.py
        def train_step(loss, optimizer, scaler):
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # AMP206
        """,
    "two trainers of which one updates its own": """
        === one.py
        class One:
            def run_step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)  # AMP206
        === two.py
        class Two:
            def run_step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a scaler that only steps and scales, as an argument": """
        === steps.py
        def train_step(model, x, optimizer, scaler):
            loss = scaler.scale(model(x))
            loss.backward()  # AMP215
            scaler.step(optimizer)  # AMP206
        """,
    "a wrapper that never scales": """
        === amp.py
        import torch

        class LossScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer):
                loss.backward()  # AMP203
                self._scaler.step(optimizer)
                self._scaler.update()
        """,
    "a function that is given a loss and a scaler": """
        === steps.py
        def finish(loss, optimizer, scaler):
            optimizer.zero_grad()
            loss.backward()  # AMP203
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        """,
    "a norm of the gradients of parameters that are given": """
        === amp.py
        import torch

        def norm_of(parameters, kind=2.0):
            if isinstance(parameters, torch.Tensor):
                parameters = [parameters]
            parameters = [p for p in parameters if p.grad is not None]
            norms = [torch.norm(p.grad.detach(), kind) for p in parameters]
            return torch.norm(torch.stack(norms), kind)

        class LossScaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def __call__(self, loss, optimizer, parameters, clip_grad=None):
                self._scaler.scale(loss).backward()
                if clip_grad is not None:
                    self._scaler.unscale_(optimizer)
                    norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
                else:
                    norm = norm_of(parameters)  # AMP202
                self._scaler.step(optimizer)
                self._scaler.update()
                return norm
        """,
    "a method that runs backward, of a class in which another one steps": """
        === amp.py
        import torch

        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                loss.backward()  # AMP203

            def step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()

            def zero_grad(self):
                self.optimizer.zero_grad()
        """,
    "a method that steps past the scaler by which another one scales": """
        === amp.py
        import torch

        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def step(self):
                self.optimizer.step()  # AMP204
                self.scaler.update()

            def zero_grad(self):
                self.optimizer.zero_grad()
        """,
    "a method that clips, of a class that never unscales": """
        === amp.py
        import torch

        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def clip(self, parameters, limit):
                torch.nn.utils.clip_grad_norm_(parameters, limit)  # AMP201

            def step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a method that clips and steps what another method has scaled": """
        === amp.py
        import torch

        class Mixed:
            def __init__(self, activated):
                self.activated = activated
                if activated:
                    self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                if self.activated:
                    self.scaler.scale(loss).backward()
                else:
                    loss.backward()

            def step(self, model, optimizer):
                if self.activated:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)  # AMP201
                    self.scaler.step(optimizer)
                    self.scaler.update()
                else:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                    optimizer.step()
                optimizer.zero_grad()
        """,
    "a class that scales losses of which its callers run backward": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def loss_of(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        """,
    "the same with a scaler that has a name of its own first": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                scaler = torch.amp.GradScaler("cuda")
                self.scaler = scaler

            def loss_of(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        """,
    "a trainer that is a module, and a loop that calls it": """
        === trainer.py
        import torch

        class Trainer(torch.nn.Module):
            def __init__(self, model, optimizer):
                super().__init__()
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def forward(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        === train.py
        from trainer import Trainer

        def train(model, optimizer, batches):
            trainer = Trainer(model, optimizer)
            for x, y in batches:
                trainer(x, y).backward()
                trainer.update()
        """,
    "one scaler for each network, by its number": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, nets):
                self.nets = nets
                for number, net in enumerate(nets):
                    optimizer = torch.optim.Adam(net.parameters())
                    scaler = torch.amp.GradScaler("cuda")
                    setattr(self, f"optimizer{number}", optimizer)
                    setattr(self, f"scaler{number}", scaler)

            def scale(self, loss, net_number):
                scaler = getattr(self, f"scaler{net_number - 1}")
                return scaler.scale(loss)

            def update(self, net_number):
                index = net_number - 1
                scaler = getattr(self, f"scaler{index}")
                optimizer = getattr(self, f"optimizer{index}")
                torch.nn.utils.clip_grad_norm_(self.nets[index].parameters(), 1.0)  # AMP201
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
}
RIGHT = {
    "a class whose methods each do their part": """
        === amp.py
        import torch

        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def clip(self, parameters, limit):
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, limit)

            def step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()

            def plain_step(self):
                self.optimizer.step()

            def zero_grad(self):
                self.optimizer.zero_grad()
        """,
    "a method that clips where no scaler is used": """
        === amp.py
        class Wrapper:
            def backward(self, loss):
                if self.use_amp:
                    self.scaler.scale(loss).backward()
                else:
                    loss.backward()

            def clip(self, parameters, limit):
                if not self.use_amp:
                    torch.nn.utils.clip_grad_norm_(parameters, limit)

            def step(self):
                if self.use_amp:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                else:
                    self.optimizer.step()
        """,
    "two classes, of which one trains without a scaler": """
        === amp.py
        class Plain:
            def backward(self, loss):
                loss.backward()

            def step(self):
                self.optimizer.step()
                self.optimizer.zero_grad()

        class Scaled:
            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "whoever has the object unscales": """
        === amp.py
        import torch

        class Wrapper:
            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def clip(self, parameters, limit):
                torch.nn.utils.clip_grad_norm_(parameters, limit)

            def step(self):
                self.scaler.step(self.optimizer)
                self.scaler.update()
        === loop.py
        def train(wrapper, batches):
            for batch in batches:
                wrapper.backward(wrapper.loss(batch))
                wrapper.scaler.unscale_(wrapper.optimizer)
                wrapper.clip(wrapper.parameters, 1.0)
                wrapper.step()
        """,
    "a method that scales and one that runs backward": """
        === amp.py
        class Wrapper:
            def scale_loss(self, loss):
                return self.scaler.scale(loss)

            def step(self, loss):
                loss.backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "a loss that is called scaled": """
        === amp.py
        class Wrapper:
            def step(self, scaled_loss):
                scaled_loss.backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        """,
    "whoever gives the loss scales it": """
        === steps.py
        def finish(loss, optimizer, scaler):
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
        === train.py
        import torch
        from steps import finish

        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                finish(scaler.scale(loss), optimizer, scaler)
        """,
    "whoever scales it is not known to call this": """
        === engine.py
        class Engine:
            def step(self, loss):
                loss.backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
        === loop.py
        def train(engine, batches):
            for batch in batches:
                engine.step(engine.scaler.scale(engine.loss(batch)))
        """,
    "a norm of the gradients once they are unscaled": """
        === amp.py
        import torch

        def norm_of(parameters):
            return torch.stack([torch.norm(p.grad.detach()) for p in parameters if p.grad is not None]).norm()

        class LossScaler:
            def __call__(self, loss, optimizer, parameters):
                self._scaler.scale(loss).backward()
                self._scaler.unscale_(optimizer)
                norm = norm_of(parameters)
                self._scaler.step(optimizer)
                self._scaler.update()
                return norm
        """,
    "a method for the step and one for the update": """
        === amp.py
        import torch

        class Scaler:
            def __init__(self):
                self._scaler = torch.amp.GradScaler("cuda")

            def step(self, loss, optimizer):
                self._scaler.scale(loss).backward()
                self._scaler.step(optimizer)

            def finish(self):
                self._scaler.update()
        """,
    "whoever has the object updates its scaler": """
        === engine.py
        class Engine:
            def step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
        === loop.py
        def train(engine, batches):
            for batch in batches:
                engine.step(engine.loss(batch))
                engine.scaler.update()
        """,
    "the same in one file": """
        === engine.py
        class Engine:
            def step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)

        def train(engine, batches):
            for batch in batches:
                engine.step(engine.loss(batch))
                engine.scaler.update()
        """,
    "a helper of which the caller updates": """
        === steps.py
        def step(loss, optimizer, scaler):
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        === train.py
        import torch
        from steps import step

        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(model(x), y)
                step(loss, optimizer, scaler)
                scaler.update()
        """,
    "the class that inherits it updates": """
        === base.py
        class Base:
            def run_step(self, loss):
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.after_step()

            def after_step(self):
                pass
        === trainer.py
        from base import Base

        class Trainer(Base):
            def after_step(self):
                self.scaler.update()
        """,
    "a method that unscales before it clips and steps what another method has scaled": """
        === amp.py
        import torch

        class Mixed:
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def finish(self, optimizer):
                self.scaler.unscale_(optimizer)

            def step(self, model, optimizer):
                self.finish(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                self.scaler.step(optimizer)
                self.scaler.update()
                optimizer.zero_grad()
        """,
    "a class that unscales what its callers run backward on": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def loss_of(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        """,
    "a trainer that is a module and unscales": """
        === trainer.py
        import torch

        class Trainer(torch.nn.Module):
            def __init__(self, model, optimizer):
                super().__init__()
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def forward(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        === train.py
        from trainer import Trainer

        def train(model, optimizer, batches):
            trainer = Trainer(model, optimizer)
            for x, y in batches:
                trainer(x, y).backward()
                trainer.update()
        """,
    "the forward of such a trainer by its name": """
        === trainer.py
        import torch

        class Trainer(torch.nn.Module):
            def __init__(self, model, optimizer):
                super().__init__()
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def forward(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        === train.py
        from trainer import Trainer

        def train(model, optimizer, batches):
            trainer = Trainer(model, optimizer)
            for x, y in batches:
                trainer.forward(x, y).backward()
                trainer.update()
        """,
    "the caller unscales what it runs backward on": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
                self.scaler = torch.amp.GradScaler("cuda")

            def loss_of(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.mse_loss(self.model(x), y)
                return self.scaler.scale(loss)

            def update(self):
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        === train.py
        from trainer import Trainer

        def train(model, optimizer, batches):
            trainer = Trainer(model, optimizer)
            for x, y in batches:
                trainer.loss_of(x, y).backward()
                trainer.scaler.unscale_(trainer.optimizer)
                trainer.update()
        """,
    "one scaler for each network, unscaled by its number": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, nets):
                self.nets = nets
                for number, net in enumerate(nets):
                    optimizer = torch.optim.Adam(net.parameters())
                    scaler = torch.amp.GradScaler("cuda")
                    setattr(self, f"optimizer{number}", optimizer)
                    setattr(self, f"scaler{number}", scaler)

            def scale(self, loss, net_number):
                scaler = getattr(self, f"scaler{net_number - 1}")
                return scaler.scale(loss)

            def update(self, net_number):
                index = net_number - 1
                scaler = getattr(self, f"scaler{index}")
                optimizer = getattr(self, f"optimizer{index}")
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(self.nets[index].parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        """,
    "all numbers step before all update": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, nets):
                self.nets = nets
                for number, net in enumerate(nets):
                    setattr(self, f"optimizer{number}", torch.optim.Adam(net.parameters()))
                    setattr(self, f"scaler{number}", torch.amp.GradScaler("cuda"))

            def backward(self, losses):
                for number, loss in enumerate(losses):
                    getattr(self, f"scaler{number}").scale(loss).backward()

            def update(self):
                for number, net in enumerate(self.nets):
                    getattr(self, f"scaler{number}").step(getattr(self, f"optimizer{number}"))
                for number, net in enumerate(self.nets):
                    getattr(self, f"scaler{number}").update()
                    getattr(self, f"optimizer{number}").zero_grad()
        """,
    "all numbers step before all update, counted by hand": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, nets):
                self.nets = nets
                for number, net in enumerate(nets):
                    setattr(self, f"optimizer{number}", torch.optim.Adam(net.parameters()))
                    setattr(self, f"scaler{number}", torch.amp.GradScaler("cuda"))

            def train(self, losses):
                at = 0
                while at < len(losses):
                    getattr(self, f"scaler{at}").scale(losses[at]).backward()
                    getattr(self, f"scaler{at}").step(getattr(self, f"optimizer{at}"))
                    at += 1
                at = 0
                while at < len(losses):
                    getattr(self, f"scaler{at}").update()
                    getattr(self, f"optimizer{at}").zero_grad()
                    at += 1
        """,
    "two numbers are two scalers": """
        === trainer.py
        import torch

        class Trainer:
            def __init__(self, nets):
                for number, net in enumerate(nets):
                    setattr(self, f"optimizer{number}", torch.optim.Adam(net.parameters()))
                    setattr(self, f"scaler{number}", torch.amp.GradScaler("cuda"))

            def train(self, first, second, losses):
                getattr(self, f"scaler{first}").scale(losses[0]).backward()
                getattr(self, f"scaler{second}").scale(losses[1]).backward()
                getattr(self, f"scaler{first}").step(getattr(self, f"optimizer{first}"))
                getattr(self, f"scaler{second}").step(getattr(self, f"optimizer{second}"))
                getattr(self, f"scaler{first}").update()
                getattr(self, f"scaler{second}").update()
                getattr(self, f"optimizer{first}").zero_grad()
                getattr(self, f"optimizer{second}").zero_grad()
        """,
}


@pytest.mark.parametrize("source", (WRONG | RIGHT).values(), ids=WRONG | RIGHT)
def test_what_nobody_does(source: str, tmp_path: Path) -> None:
    write(tmp_path, source)
    assert {each for each in found(tmp_path) if each[2] != "AMP110"} == marks(tmp_path)


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_is_possible_where_others_may_have_the_scaler(source: str, tmp_path: Path) -> None:
    write(tmp_path, source)
    findings = check_paths([str(tmp_path)]).findings
    assert not any(finding.certain for finding in findings if finding.code not in {"AMP110", "AMP202"})


def test_a_file_that_is_requested_without_the_others_is_checked_alone(tmp_path: Path) -> None:
    write(tmp_path, RIGHT["whoever has the object updates its scaler"])
    codes = [finding.code for finding in check_paths([str(tmp_path / "engine.py")]).findings]
    assert "AMP206" in codes


HELD = """\
import torch

class Held:
    scaler = torch.amp.GradScaler("cuda"{disabled})

class Runs(Held):
    pass

def set_up():
    {replaces}

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"{disabled}):
            loss = model(x, y)
        Runs.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        Runs.scaler.step(optimizer)
        Runs.scaler.update()
"""


@pytest.mark.parametrize(
    ("disabled", "replaces", "codes"),
    [
        ("", "pass", {"AMP201"}),
        (", enabled=False", "pass", set()),
        (", enabled=False", 'Runs.scaler = torch.amp.GradScaler("cuda")', {"AMP201"}),
    ],
)
def test_a_scaler_that_a_class_holds(disabled: str, replaces: str, codes: set[str]) -> None:
    findings = check_source(HELD.format(disabled=disabled, replaces=replaces), "train.py")
    assert {finding.code for finding in findings if finding.code != "AMP110"} == codes
