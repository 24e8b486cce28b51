"""Flags: how the table of options becomes those of a command line."""

from __future__ import annotations

from collections.abc import Callable

from .kinds import FLAG
from .table import OPTIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLI, RUN, PYTEST = "cli", "run", "pytest"


def add_flags(add: Callable[..., Any], face: str) -> None:
    """Declares the flags of a face: ``add`` is ``add_argument`` of argparse or ``addoption`` of pytest."""
    for option in OPTIONS:
        flag = flag_of(option, face)
        if not flag:
            continue
        # None until resolved: a default here would hide what the configuration says.
        more: dict[str, Any] = {"dest": destination(option, face), "default": None, "help": option.help}
        # Pytest keeps flags of one letter to itself.
        names = [flag, option.short] if option.short and face != PYTEST else [flag]
        if option.kind is FLAG:
            off = [name for name in (flag.replace("--", "--no-", 1), option.off) if name]
            add(*names, action="store_true", **more)
            add(*off, action="store_false", **{**more, "help": f"not {flag}"})
        elif option.kind.choices is not None and face != PYTEST:
            add(*names, choices=option.kind.choices(), metavar=option.metavar, **more)
        else:
            add(*names, action="append", metavar=option.metavar, **more)


def flag_of(option: Option, face: str) -> str:
    return {CLI: option.flag, RUN: option.run_flag, PYTEST: option.pytest_flag}[face]


def destination(option: Option, face: str) -> str:
    return f"amp_{option.name}" if face == PYTEST else option.name


def flags(namespace: Any, face: str) -> dict[str, Any]:
    """What the command line says: option name -> value, None where it says nothing."""
    return {option.name: getattr(namespace, destination(option, face), None) for option in OPTIONS}
