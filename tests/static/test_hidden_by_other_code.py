"""Mistakes that other code hid from the analysis: callbacks, unread functions, enumerations and foreign counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check import check_paths

CASES: dict[str, str] = {}

# An engine calls callbacks at its events. The callbacks are in another file, or unknown.
for _event in ("on_train_batch_backward_end", "before_step", "on_after_backward", "onTrainBatchEnd"):
    for _unscale, _mark in (("pass", "  # AMP201"), ("self.scaler.unscale_(self.optimizer)", "")):
        CASES[f"callbacks of {_event}: {_unscale}"] = f"""
        === callbacks.py
        class Callbacks:
            def __init__(self, callbacks):
                self.callbacks = callbacks

            def {_event}(self, engine):
                for callback in self.callbacks:
                    callback.{_event}(engine)

        === engine.py
        import torch
        from torch import nn
        from callbacks import Callbacks

        class Engine:
            def __init__(self, net, optimizer, callbacks):
                self.net, self.optimizer = net, optimizer
                self.scaler = torch.amp.GradScaler("cuda")
                self.callbacks = Callbacks(callbacks)

            def train_batch(self, x, y):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(self.net(x), y)
                self.scaler.scale(loss).backward()
                self.callbacks.{_event}(self)
                {_unscale}
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0){_mark}
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        """

# A callback of the project unscales what the engine clips.
CASES["callback that unscales"] = """
=== unscale.py
class Unscale:
    def on_backward_end(self, engine):
        engine.scaler.unscale_(engine.optimizer)

=== engine.py
import torch
from torch import nn

class Engine:
    def __init__(self, net, optimizer, callbacks):
        self.net, self.optimizer, self.callbacks = net, optimizer, callbacks
        self.scaler = torch.amp.GradScaler("cuda")

    def train_batch(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.net(x), y)
        self.scaler.scale(loss).backward()
        for callback in self.callbacks:
            callback.on_backward_end(self)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
"""

# The end of a window is a method that compares a member of an enumeration.
for _class, _members in (
    ("Enum", 'EPOCH = "epoch"\n            STEP = "step"'),
    ("IntEnum", "EPOCH = auto()\n            STEP = auto()"),
):
    for _before, _after, _mark in (("zero_grad()", "state_dict()", "  # AMP304"), ("state_dict()", "zero_grad()", "")):
        CASES[f"window of a unit: {_class} {_members} {_before}"] = f"""
        === units.py
        from enum import Enum, IntEnum, auto

        class Unit({_class}):
            {_members}

        === base.py
        from units import Unit

        class Base:
            def is_due(self, interval, unit, progress):
                match unit:
                    case Unit.EPOCH:
                        return progress.epoch % interval == 0 and progress.batch == 0
                    case Unit.STEP:
                        return (progress.step + 1) % interval == 0

        === train.py
        import torch
        from torch import nn
        from base import Base
        from units import Unit

        class Trainer(Base):
            def ends_window(self, progress):
                return self.is_due(self.config.window, Unit.STEP, progress)

            def train(self, net, loader, progress):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cuda")
                for x, y in loader:
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.mse_loss(net(x), y) / self.config.window
                    if self.ends_window(progress):
                        optimizer.{_before}{_mark}
                    scaler.scale(loss).backward()
                    if self.ends_window(progress):
                        scaler.step(optimizer)
                        scaler.update()
                        optimizer.{_after}
                    progress.step += 1
        """

# Two names of one member are equal.
CASES["two names of one member"] = """
=== units.py
from enum import Enum

class Unit(Enum):
    EPOCH = "epoch"
    PASS = "epoch"

=== train.py
import torch
from torch import nn
from units import Unit

def train(net, loader):
    unit = Unit.PASS
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        if unit == Unit.EPOCH:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

# The counter of a window is an attribute of an object that other code constructs.
for _counter, _step in (("progress.step", "progress.step += 1"), ("run.state.step", "run.state.step += 1")):
    for _before, _after, _mark in (("zero_grad()", "state_dict()", "  # AMP304"), ("state_dict()", "zero_grad()", "")):
        CASES[f"window counted in {_counter}: {_before}"] = f"""
        === train.py
        import torch
        from torch import nn

        def train(net, loader, progress, run, k):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y) / k
                if ({_counter} + 1) % k == 0:
                    optimizer.{_before}{_mark}
                scaler.scale(loss).backward()
                if ({_counter} + 1) % k == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.{_after}
                {_step}
        """

# A counter that starts anew with each window, in another method than backward. Other code may switch windows off.
for _count in (
    "self.count = (self.count + 1) % self.window\n                if self.count != 0:\n                    return",
    "self.count = self.count + 1\n                if self.count % self.window:\n                    return",
    (
        "if self.window > 1:\n                    self.count = (self.count + 1) % self.window\n"
        "                    if self.count != 0:\n                        return"
    ),
):
    for _divide in ("pass", "loss = loss / self.window"):
        CASES[f"window counted by a method: {_count} {_divide}"] = f"""
        === train.py
        import torch
        from torch import nn

        class Agent:
            def __init__(self, net, window):
                self.net, self.window, self.count = net, window, 0
                self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def backward(self, loss):
                {_divide}
                self.scaler.scale(loss).backward(){"  # AMP301" if _divide == "pass" else ""}

            def update(self):
                {_count}
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()

            def train_batch(self, x, y):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(self.net(x), y)
                self.backward(loss)
                self.update()
        """

# A static method that the class, and not an instance, hands out.
for _unscale, _mark in (("pass", "  # AMP201"), ("scaler.unscale_(optimizer)", "")):
    CASES[f"a static method with another name: {_unscale}"] = f"""
    === train.py
    import torch
    from torch import nn

    class Tool:
        @staticmethod
        def enlarge(scaler, loss):
            return scaler.scale(loss)

    def train(net, optimizer, loader):
        scaler = torch.amp.GradScaler("cuda")
        enlarge = Tool.enlarge
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(net(x), y)
            enlarge(scaler, loss).backward()
            {_unscale}
            nn.utils.clip_grad_norm_(net.parameters(), 1.0){_mark}
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """

# A hook that bounds gradients by a function with another name.
for _imported, _name, _mark in (
    ("clamp as bound", "bound", "  # AMP202"),
    ("clip as limit", "limit", "  # AMP202"),
    ("abs as bare", "bare", ""),
):
    CASES[f"a hook with an imported name: {_imported}"] = f"""
    === train.py
    import torch
    from torch import nn

    def train(net, optimizer, loader):
        scaler = torch.amp.GradScaler("cuda")
        def hook(grad):{_mark}
            from torch import {_imported}
            return {_name}(grad, -1.0, 1.0)
        for p in net.parameters():
            p.register_hook(hook)
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """

# A loop in a file without a word of mixed precision steps what an engine in another file has scaled.
for _step, _mark in (("engine.optimizer.step()", "  # AMP204"), ("engine.scaler.step(engine.optimizer)", "")):
    CASES[f"the loop of another file: {_step}"] = f"""
    === engine.py
    import torch
    from torch import nn

    class Engine:
        def __init__(self, net):
            self.net = net
            self.optimizer = torch.optim.AdamW(net.parameters())
            self.scaler = torch.amp.GradScaler("cuda")

        def backward(self, x, y):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.net(x), y)
            self.scaler.scale(loss).backward()

    === main.py
    from engine import Engine

    def main(net, loader):
        engine = Engine(net)
        for x, y in loader:
            engine.optimizer.zero_grad()
            engine.backward(x, y)
            {_step}{_mark}
            engine.scaler.update()
    """

# A checkpoint without the scaler is right where no scaler is used.
for _flag, _scaler in (
    ("not args.amp", "torch.amp.GradScaler('cuda') if args.amp else None"),
    ("not args.amp", "torch.amp.GradScaler('cuda', enabled=args.amp)"),
    ("args.plain", "None if args.plain else torch.amp.GradScaler('cuda')"),
):
    for _writes, _mark in ((f"if {_flag}:", ""), ("if args.best:", "  # AMP401")):
        CASES[f"a checkpoint of plain training: {_flag} {_scaler} {_writes}"] = f"""
        === train.py
        import torch
        from torch import nn

        def main(net, loader, args):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            scaler = {_scaler}
            if args.resume:
                state = torch.load(args.resume)
                optimizer.load_state_dict(state["optimizer"])
                scaler.load_state_dict(state["scaler"])
            for x, y in loader:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y)
                optimizer.zero_grad()
                if {_flag}:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
            {_writes}
                torch.save(dict(net=net.state_dict(), optimizer=optimizer.state_dict()), "a"){_mark}
            else:
                torch.save(dict(optimizer=optimizer.state_dict(), scaler=scaler.state_dict()), "a")
        """

# A clip of scaled gradients before a step without the scaler: two mistakes.
for _unscale, _mark in (("pass", "  # AMP201"), ("scaler.unscale_(optimizer)", "")):
    CASES[f"clip before a step without the scaler: {_unscale}"] = f"""
    === train.py
    import torch
    from torch import nn

    def train(net, optimizer, loader):
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            {_unscale}
            nn.utils.clip_grad_norm_(net.parameters(), 1.0){_mark}
            optimizer.step()  # AMP204
            optimizer.zero_grad()
            scaler.update()
    """


@pytest.mark.parametrize("name", CASES)
def test_mistake_beside_other_code(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]


def test_a_clip_after_unknown_callbacks_is_no_certain_mistake(tmp_path: Path) -> None:
    write(tmp_path, CASES["callbacks of before_step: pass"])
    (finding,) = check_paths([str(tmp_path)]).findings
    assert (finding.label, finding.certain) == ("clip@scaled-callback", False)


#: A function of another file receives the scaler, and steps another object.
GUIDED = """
=== guidance.py
import torch

def guided(scaler, net, noise, x):
    for t in noise.times:
        x = noise.step(x, t)
        x = noise.wrap({given}).step(x)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(x).mean()
    scaler.scale(loss).backward()
    return loss

=== train.py
import torch
from guidance import guided

class Trainer:
    def __init__(self, net, noise):
        self.net, self.noise = net, noise
        self.optimizer = torch.optim.AdamW(net.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def one(self, x):
        if self.noise.guides:
            return guided(self.scaler, self.net, self.noise, x)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.net(x).mean() / 4
        self.scaler.scale(loss).backward()

    def train(self, batches):
        for batch in batches:
            self.optimizer.zero_grad(){mark}
            self.one(batch)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.mark.parametrize(("given", "mark"), [("x", "  # AMP304"), ("scaler", "")])
def test_a_function_that_is_not_analyzed_steps_what_it_receives(
    given: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.static.interpreter.functions.OTHER_FILES_BUDGET", -1)
    write(tmp_path, GUIDED.replace("{given}", given).replace("{mark}", mark))
    assert found(tmp_path) == marks(tmp_path)
