"""Command line flags, created from the option table."""

from __future__ import annotations

from collections.abc import Callable

from .kinds import FLAG
from .table import OPTIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLI, RUN, PYTEST = "cli", "run", "pytest"


def add_flags(add: Callable[..., Any], frontend: str) -> None:
    """Declare the flags of a frontend. ``add`` is ``add_argument`` of argparse or ``addoption`` of pytest."""
    for option in OPTIONS:
        flag = find_flag(option, frontend)
        if not flag:
            continue
        # None until resolved: a default here would hide the configured value.
        more: dict[str, Any] = {"dest": make_destination(option, frontend), "default": None, "help": option.help}
        # pytest reserves one-letter flags.
        names = [flag, option.short_flag] if option.short_flag and frontend != PYTEST else [flag]
        if option.kind is FLAG:
            off = [name for name in (flag.replace("--", "--no-", 1), option.off_flag) if name]
            add(*names, action="store_true", **more)
            add(*off, action="store_false", **{**more, "help": f"not {flag}"})
        elif option.kind.choices is not None and frontend != PYTEST:
            add(*names, choices=option.kind.choices(), metavar=option.metavar, **more)
        else:
            add(*names, action="append", metavar=option.metavar, **more)


def find_flag(option: Option, frontend: str) -> str:
    return {CLI: option.flag, RUN: option.run_flag, PYTEST: option.pytest_flag}[frontend]


def make_destination(option: Option, frontend: str) -> str:
    return f"amp_{option.name}" if frontend == PYTEST else option.name


def read_flags(namespace: Any, frontend: str) -> dict[str, Any]:
    """Return the values of the command line by option name, None if not given."""
    return {option.name: getattr(namespace, make_destination(option, frontend), None) for option in OPTIONS}
