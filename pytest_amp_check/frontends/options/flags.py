"""Command line flags, created from the option table."""

from __future__ import annotations

from collections.abc import Callable

from .kinds import FLAG
from .option import Option
from .table import OPTIONS, TOPICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLI, RUN, PYTEST = "cli", "run", "pytest"


def add_flags(find_adder: Callable[[str], Callable[..., Any]], frontend: str) -> None:
    """Declare the flags of a frontend by topic.

    ``find_adder`` returns for a topic the function that adds a flag: ``add_argument`` of an argparse group, or
    ``addoption`` of pytest.
    """
    for topic, options in TOPICS.items():
        declared = [(option, find_flag(option, frontend)) for option in options]
        if any(flag for _, flag in declared):
            add = find_adder(topic)
            for option, flag in declared:
                if flag:
                    _add_flag(add, option, flag, frontend)


def _add_flag(add: Callable[..., Any], option: Option, flag: str, frontend: str) -> None:
    # Most checks need no parser.
    from argparse import SUPPRESS

    # None until resolved: a default here would hide the configured value.
    more: dict[str, Any] = {
        "dest": make_destination(option, frontend),
        "default": None,
        "help": _describe(option, frontend).replace("%", "%%"),
    }
    # pytest reserves one-letter flags.
    names = [flag, option.short_flag] if option.short_flag and frontend != PYTEST else [flag]
    if option.kind is FLAG:
        off = [name for name in (flag.replace("--", "--no-", 1), option.off_flag) if name]
        add(*names, action="store_true", **more)
        # Only what disables a default is worth a line.
        shown = frontend == PYTEST or option.default
        add(*off, action="store_false", **{**more, "help": f"not {flag}" if shown else SUPPRESS})
    elif option.kind.choices is not None and frontend != PYTEST:
        add(*names, choices=option.kind.choices(), metavar=option.metavar, **more)
    else:
        add(*names, action="append", metavar=option.metavar, **more)


def _describe(option: Option, frontend: str) -> str:
    """Return the help of an option, on the command line with its values and its default."""
    if frontend == PYTEST:
        return option.help
    notes = []
    if option.kind.choices is not None:
        notes.append(f"one of {', '.join(option.kind.choices())}")
    if option.default is not None and option.default not in (False, True, (), {}):
        notes.append(f"default: {option.default}")
    return f"{option.help} ({'; '.join(notes)})" if notes else option.help


def find_flag(option: Option, frontend: str) -> str:
    return {CLI: option.flag, RUN: option.run_flag, PYTEST: option.pytest_flag}[frontend]


def make_destination(option: Option, frontend: str) -> str:
    return f"amp_{option.name}" if frontend == PYTEST else option.name


def read_flags(namespace: Any, frontend: str) -> dict[str, Any]:
    """Return the values of the command line by option name, None if not given."""
    return {option.name: getattr(namespace, make_destination(option, frontend), None) for option in OPTIONS}
