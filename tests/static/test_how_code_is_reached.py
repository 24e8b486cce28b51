"""Calls by a registry, a list of hooks, a decorator or a mixin: each mistake with the right program beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

CASES: dict[str, str] = {}
CLIP, UNSCALE = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)", "sc.unscale_(opt)"

TRAIN = """
        def train(net, loader, mode="norm"):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")
            {before}
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y)
                sc.scale(loss).backward()
                {unscale}
                {call}
                sc.step(opt)
                sc.update()
        """

REGISTRIES = {
    "a table": ("", "", 'CLIPPERS = {"norm": by_norm, "value": by_value}'),
    "a decorator with a key": ('@register("norm")', '@register("value")', ""),
    "a decorator by name": ("@registered", "@registered", ""),
}
for _name, (_first, _second, _after) in REGISTRIES.items():
    for _key in ("mode", "config.mode"):
        for _unscale, _mark in (("pass", "  # AMP201"), (UNSCALE, "")):
            CASES[f"{_name} and {_key}, {_unscale}"] = f"""
        === train.py
        from dataclasses import dataclass

        import torch
        from torch import nn

        @dataclass
        class Config:
            mode: str = "norm"

        config = Config()
        CLIPPERS = {{}}

        def register(key):
            def keep(function):
                CLIPPERS[key] = function
                return function
            return keep

        def registered(function):
            CLIPPERS[function.__name__] = function
            return function

        {_first}
        def by_norm(params):
            nn.utils.clip_grad_norm_(params, 1.0){_mark}

        {_second}
        def by_value(params):
            nn.utils.clip_grad_value_(params, 1.0){_mark}

        {_after}
        {TRAIN.format(before="pass", unscale=_unscale, call=f"CLIPPERS[{_key}](net.parameters())")}
        """

HOOKS = {
    "a list": ("hooks = []", "hooks.append(clip)", "for hook in hooks: hook()"),
    "a dict of lists": (
        "hooks = defaultdict(list)",
        'hooks["grads"].append(clip)',
        'for hook in hooks["grads"]: hook()',
    ),
    "five stages": ("pass", "hooks = [log, log, clip, log, log]", "for hook in hooks: hook()"),
    "a default": ("pass", "hooks = given or [clip]", "for hook in hooks: hook()"),
}
for _name, (_made, _added, _called) in HOOKS.items():
    for _unscale, _mark in (("pass", "  # AMP201"), (UNSCALE, "")):
        CASES[f"hooks in {_name}, {_unscale}"] = f"""
        === train.py
        from collections import defaultdict

        import torch
        from torch import nn

        def train(net, loader, given=None):
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            sc = torch.amp.GradScaler("cuda")

            def log():
                print("gradients are ready")

            def clip():
                {_unscale}
                {CLIP}{_mark}

            {_made}
            {_added}
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(net(x), y)
                sc.scale(loss).backward()
                {_called}
                sc.step(opt)
                sc.update()
        """

DECORATORS = {
    "with an argument": ("def clipped(limit):\n    def outer(function):\n", "    return outer\n", "@clipped(1.0)"),
    "without an argument": ("def clipped(function, limit=1.0):\n    if True:\n", "", "@clipped"),
}
for _name, (_head, _tail, _use) in DECORATORS.items():
    for _wraps in ("@functools.wraps(function)", ""):
        for _unscale, _mark in (("pass", "  # AMP201"), ("self.sc.unscale_(self.opt)", "")):
            _inner = f"""\
        {_wraps}
        def inner(self, *args, **kwargs):
            result = function(self, *args, **kwargs)
            {_unscale}
            nn.utils.clip_grad_norm_(self.net.parameters(), limit){_mark}
            return result
        return inner
"""
            CASES[f"a decorated method {_name} {_wraps}, {_unscale}"] = (
                "=== agent.py\nimport functools\n\nimport torch\nfrom torch import nn\n\n"
                + _head
                + _inner
                + _tail
                + f"""
class Agent:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())
        self.sc = torch.amp.GradScaler("cuda")

    {_use}
    def backward(self, loss):
        self.sc.scale(loss).backward()

    def update(self, x, y):
        self.opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.net(x), y)
        self.backward(loss)
        self.sc.step(self.opt)
        self.sc.update()
"""
            )

BASE = """
        import torch
        from torch import nn

        class Base:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
                self.sc = torch.amp.GradScaler("cuda")

            def before_step(self):
                {own}

            def batch(self, x, y):
                self.opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(self.net(x), y)
                self.sc.scale(loss).backward()
                self.before_step()
                {late}
                self.sc.step(self.opt)
                self.sc.update()

        class Clips:
            def before_step(self):
                super().before_step()
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0){mark}
        """
RUNNER = """
        class Runner(Clips, Base):
            pass

        def main(net, loader):
            runner = Runner(net)
            for x, y in loader:
                runner.batch(x, y)
        """
for _own, _late, _mark in (
    ("pass", "self.sc.unscale_(self.opt)", "  # AMP201"),
    ("self.sc.unscale_(self.opt)", "pass", ""),
):
    _base = BASE.format(own=_own, late=_late, mark=_mark)
    CASES[f"a mixin in one file: {_own}"] = f"""
        === runner.py
        {_base}
        {RUNNER}
        """
    CASES[f"a mixin whose class stands in another file: {_own}"] = f"""
        === base.py
        {_base}
        === app.py
        from base import Base, Clips

        {RUNNER}
        """

for _call, _mark in (("pass", "  # AMP201"), ("precision.prepare(opt)", "")):
    CASES[f"a training whose scaler is in an object of another file, {_call}"] = f"""
        === precision.py
        import torch

        class Precision:
            def __init__(self):
                self.scaler = torch.amp.GradScaler("cuda")

            def region(self):
                return torch.autocast("cuda", dtype=torch.float16)

            def backward(self, loss):
                self.scaler.scale(loss).backward()

            def prepare(self, opt):
                self.scaler.unscale_(opt)

            def step(self, opt):
                self.scaler.step(opt)
                self.scaler.update()
        === train.py
        import torch
        from torch import nn

        from precision import Precision

        def train(net, loader):
            precision = Precision()
            opt = torch.optim.Adam(net.parameters())
            for x, y in loader:
                opt.zero_grad()
                with precision.region():
                    loss = nn.functional.mse_loss(net(x), y)
                precision.backward(loss)
                {_call}
                nn.utils.clip_grad_norm_(net.parameters(), 1.0){_mark}
                precision.step(opt)
        """


@pytest.mark.parametrize("name", CASES)
def test_reached_code(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
