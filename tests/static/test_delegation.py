"""Wrappers that delegate attributes to a scaler or an optimizer by ``__getattr__``."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source

PROGRAM = """\
import torch


{wrapper}

def train(args, model, loader, optimizer):
    scaler = {scaler}
    if args.wrap:
        scaler = Wrapper(scaler)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            {unscale}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
"""
WRAPPERS = {
    "all methods": """\
class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)
""",
    "some methods of its own": """\
class Wrapper:
    def __init__(self, wrapped, calls=0):
        self._wrapped = wrapped
        self.calls = calls

    def __getattr__(self, item):
        if item in self.__dict__:
            return getattr(self, item)
        return getattr(self._wrapped, item)

    def step(self, *args, **kwargs):
        self.calls += 1
        return self._wrapped.step(*args, **kwargs)
""",
    "a default in a base class": """\
class Proxy:
    def __getattr__(self, key):
        return getattr(self.target, key, None)


class Wrapper(Proxy):
    def __init__(self, target):
        self.target = target
""",
}


@pytest.mark.parametrize(
    "scaler", ['torch.amp.GradScaler("cuda")', 'torch.amp.GradScaler("cuda") if args.amp else None']
)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_methods_of_a_wrapped_scaler(wrapper: str, scaler: str) -> None:
    for unscale, mark in (("pass", "  # AMP201"), ("scaler.unscale_(optimizer)", "")):
        source = PROGRAM.format(wrapper=wrapper, scaler=scaler, unscale=unscale, mark=mark)
        findings = check_source(source)
        assert places(findings) == marks(source), shown(findings)


def test_attributes_of_a_wrapped_object() -> None:
    source = """\
import torch


class Lazy:
    def __init__(self, config):
        self._config = config

    def __getattr__(self, name):
        return getattr(self._config, name)


class Config:
    def __init__(self, model):
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, loader):
    held = Lazy(Config(model))
    for x in loader:
        held.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        held.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        held.scaler.step(held.optimizer)
        held.scaler.update()
"""
    findings = check_source(source)
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("inner", ["self.inner", "self"])
def test_a_wrapper_of_nothing_is_unknown(inner: str) -> None:
    source = f"""\
import torch


class Wrapper:
    def __getattr__(self, name):
        return getattr({inner}, name)


def train(model, loader, optimizer):
    scaler = Wrapper()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    assert check_source(source) == []


def test_delegates_that_lead_back_are_unknown() -> None:
    source = """\
import torch


class Proxy:
    @property
    def inner(self):
        return self._missing

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Other:
    def __init__(self, other):
        self.other = other

    def __getattr__(self, name):
        return getattr(self.other, name)


def train(model, loader, optimizer):
    scaler = Proxy()
    first = Other(None)
    second = Other(first)
    first.other = second
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        scaler.scale(loss).backward()
        first.note(loss)
        print(second.rate)
        scaler.step(optimizer)
        scaler.update()
"""
    assert check_source(source) == []
