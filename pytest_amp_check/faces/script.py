"""Runs a user's script or module as Python would, in this process, so that it can be recorded."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

#: The exit code of a Python program that an exception has ended.
RAISED = 1
INTERRUPTED = 130


class Unrunnable(Exception):
    """What is to be run cannot be; the message is one sentence."""


def prepare(target: str, *, module: bool) -> str:
    """What will run: the path of a script or the name of a module. Raises :class:`Unrunnable` where there is none."""
    if module:
        from importlib.util import find_spec

        # As Python does for -m, so that modules beside the caller are found.
        sys.path.insert(0, os.getcwd())
        try:
            found = find_spec(target)
        except (ImportError, ValueError) as error:
            raise Unrunnable(f"module {target!r} cannot be found: {error}") from None
        if found is None:
            raise Unrunnable(f"there is no module {target!r}: for a file, leave out -m")
        return target
    if not os.path.exists(target):
        raise Unrunnable(f"there is no file {target!r}" + (": for a module, write -m" if "/" not in target else ""))
    if os.path.isdir(target):
        raise Unrunnable(f"{target!r} is a folder: name the script that trains")
    return target


def execute(target: str, arguments: Sequence[str], *, module: bool) -> int:
    """Run it, and give the exit code that it would have ended with. Its output, and its traceback, are its own."""
    sys.argv = [target, *arguments]
    try:
        if module:
            import runpy

            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _script(target)
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        sys.stderr.write(f"{leave.code}\n")
        return RAISED
    except KeyboardInterrupt as error:
        _show(error, target)
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever has ended the script is shown as Python shows it
        _show(error, target)
        return RAISED
    return 0


def _script(path: str) -> None:
    from types import ModuleType

    with open(path, "rb") as file:
        source = file.read()
    # The module stays: what the script defines can be pickled, and found by the processes that it starts.
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    exec(compile(source, path, "exec"), main.__dict__)  # noqa: S102 - running the user's script is the command


def _show(error: BaseException, target: str) -> None:
    import traceback

    sys.stdout.flush()
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    trace: TracebackType | None = error.__traceback__
    # The frames above the script's own first one are ours.
    while trace is not None and (
        trace.tb_frame.f_code.co_filename.startswith((here, "<frozen runpy>"))
        or os.path.basename(trace.tb_frame.f_code.co_filename) == "runpy.py"
    ):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
