"""Modules that a table must list: a new module without its row would be silent.

Only a source checkout is searched, because the modules of an installed package do not change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextvars import ContextVar

_are_required = ContextVar("_are_required", default=True)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class NotRegistered(Exception):
    """A module that its table does not list."""


@contextlib.contextmanager
def incomplete_tables() -> Iterator[None]:
    """Let modules lack their row while the body runs: the script that writes the index of rules imports the package."""
    token = _are_required.set(False)
    try:
        yield
    finally:
        _are_required.reset(token)


def require_listed(folder: str, listed: Collection[str], remedy: str, *, marker: str = "") -> None:
    """Raise NotRegistered if a table does not list a module of a folder: its path in the folder, without ``.py``.

    A module counts if it contains the marker. ``remedy`` says how to list a module.
    """
    if not _are_required.get() or not os.path.isfile(os.path.join(os.path.dirname(_PACKAGE), "pyproject.toml")):
        return
    place = os.path.join(_PACKAGE, *folder.split("/"))
    for module in sorted(set(_modules_in(place)).difference(listed)):
        if _contains(os.path.join(place, f"{module}.py"), marker):
            raise NotRegistered(f"pytest_amp_check/{folder}/{module}.py is not registered: {remedy}")


def _modules_in(place: str, inside: str = "") -> Iterator[str]:
    for name in os.listdir(place):
        if name.endswith(".py"):
            if name != "__init__.py":
                yield inside + name[:-3]
        elif "." not in name and not name.startswith("_"):
            yield from _modules_in(os.path.join(place, name), f"{inside}{name}/")


def _contains(path: str, marker: str) -> bool:
    with open(path, encoding="utf-8") as file:
        return marker in file.read()
