"""The command ``amp-check``: from its arguments to its exit code."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from ..protocol.registration import NotRegistered
from . import finding_text, output, printable, rule_text, signals, source_lines, write_guard
from . import options as table
from .argument_parser import PathArguments, expand_arguments, make_parser, suggest_flag
from .check_command import run_check
from .check_run import InputFailure
from .command_output import CLEAN, write_error
from .options import ConfigError
from .run_command import run_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

#: Errors of output that nobody closed: the disk or quota is full, or the device fails.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
PIPE_CLOSED = 141
#: Number of new objects before the garbage collector searches for cycles.
YOUNG = 100_000


def run() -> NoReturn:
    """Run the command as a process, and end the process with the exit code."""
    import gc

    # A run creates many objects and few cycles, so cycles are searched less often.
    gc.set_threshold(YOUNG)
    # A recorded script replaces sys.argv by its own arguments.
    recorded = sys.argv[1:2] == ["run"]
    signals.raise_on_signals()
    code = main()
    signals.stop_raising()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The reader of the output is gone, or the disk is full; main returned an exit code for this if possible.
        code = code or PIPE_CLOSED
    if recorded:
        # Wait for threads of the script, and run its exit handlers.
        signals.restore_defaults()
        sys.exit(code)
    # Normal interpreter shutdown takes longer than checking a small file.
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    output.configure_streams()
    output.configure_output(color_mode=table.AUTO, is_silent=False)
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except (ConfigError, InputFailure, NotRegistered, source_lines.NoStandardInput) as error:
        return write_error(str(error))
    except KeyboardInterrupt:
        return _end_by_signal(signals.INTERRUPT)
    except signals.EndRequested as end:
        return _end_by_signal(end.signal_number)
    except BrokenPipeError:
        # The reader of the output is gone.
        _close_output()
        return PIPE_CLOSED
    except Exception as error:
        full = _is_disk_full(error)
        if full:
            _close_output()
        elif os.environ.get(table.DEBUG):
            raise
        return write_error(_describe_error(error, full=full))


def _is_disk_full(error: Exception) -> bool:
    """Return True if output could not be written. Errors about a file have a file name."""
    return isinstance(error, OSError) and error.errno in UNWRITABLE and error.filename is None


def _describe_error(error: Exception, *, full: bool) -> str:
    """Describe the error that ended the command in one sentence: a system error or an internal error."""
    if isinstance(error, MemoryError):
        return "memory ran out: give --jobs 1, or fewer files at a time"
    if not isinstance(error, OSError):
        return (
            f"internal error: {type(error).__name__}: {error}: please report it, "
            "with what AMP_CHECK_DEBUG=1 shows for the same command"
        )
    reason = (error.strerror or type(error).__name__).lower()
    if full:
        return f"output could not be written completely: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


def _end_by_signal(number: int) -> int:
    # A second signal ends the process immediately.
    signals.stop_raising()
    with suppress(OSError):
        sys.stderr.write(signals.describe_signal(number))
        sys.stderr.flush()
    return signals.find_exit_code(number)


def _close_output() -> None:
    """Redirect standard output to the null device, so that nothing is written at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        if argv[0].endswith(".py") or os.path.exists(argv[0]):
            raise InputFailure(f"{argv[0]!r} is not a command: to check it, run amp-check check {argv[0]}")
        import difflib

        close = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise InputFailure(f"{argv[0]!r} is not a command: {hint}")
    if argv[:1] == ["check"]:
        argv = expand_arguments(argv)
    if argv[:1] == ["check"] and not any(word.startswith("-") and word != "-" for word in argv):
        # Paths alone need no parser; loading and creating a parser takes a third of the start time of Python.
        return COMMANDS["check"](PathArguments(argv[1:]))
    parser = make_parser()
    try:
        namespace, unknown = parser.parse_known_args(argv)
        if unknown:
            namespace.parser.error(
                f"unrecognized arguments: {' '.join(unknown)}{suggest_flag(unknown[0], namespace.parser)}"
            )
    except SystemExit as leave:
        # argparse exits itself after --help and --version and on an invalid flag.
        return leave.code if isinstance(leave.code, int) else CLEAN
    if namespace.command is None:
        parser.print_help()
        return CLEAN
    return COMMANDS[namespace.command](namespace)


def _run_explain(namespace: Any) -> int:
    from . import explanations

    if namespace.web and namespace.output_format == "json":
        raise ConfigError("--web shows a page and JSON is none: leave one of them out")
    try:
        if namespace.web:
            explanations.open_explanation(namespace.words, in_full=namespace.in_full)
        else:
            explanations.write_explanation(
                namespace.words, in_full=namespace.in_full, as_json=namespace.output_format == "json"
            )
    except (explanations.NothingToExplain, explanations.PageUnavailable) as error:
        raise InputFailure(str(error)) from None
    return CLEAN


def _run_rules(namespace: Any) -> int:
    from ..protocol.rules import RULES

    if namespace.output_format == "json":
        from . import json_formats

        sys.stdout.write(json_formats.dump_json([rule.as_dict() for rule in RULES.values()]))
    else:
        output.write_lines(rule_text.format_rules(RULES.values()), sys.stdout, output.is_color_wanted(sys.stdout))
    return CLEAN


def _run_clean(namespace: Any) -> int:
    from ..protocol.byte_sizes import format_size
    from ..static import cache
    from ..static.sources.source_files import InputError

    if not os.path.isdir(namespace.path):
        raise InputFailure(f"{namespace.path} is no folder: name the folder of a project")
    given = {"cache_dir": None if namespace.cache_dir is None else [namespace.cache_dir], "cache": True}
    options = table.resolve_options(given, start=namespace.path)
    folder = write_guard.find_cache_folder(options, namespace.path)
    assert folder is not None
    try:
        size = cache.remove_cache(folder)
    except InputError as error:
        raise InputFailure(str(error)) from None
    shown = finding_text.relative_path(os.path.abspath(folder))
    sys.stdout.write(
        printable.make_single_line(
            f"There is no cache at {shown}." if size is None else f"Removed {shown} ({format_size(size)})."
        )
        + "\n"
    )
    return CLEAN


def _run_version(namespace: Any) -> int:
    from .. import __version__

    if namespace.output_format == "json":
        from . import json_formats

        sys.stdout.write(json_formats.dump_json({"name": "amp-check", "version": __version__}))
    else:
        sys.stdout.write(f"amp-check {__version__}\n")
    return CLEAN


def _run_server(namespace: Any) -> int:
    try:
        from .server import language_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise InputFailure("the language server needs pygls: pip install 'pytest-amp-check[server]'") from None
    signals.restore_defaults()
    language_server.serve_editor()
    return CLEAN


def _run_mcp(namespace: Any) -> int:
    try:
        from . import mcp_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise InputFailure("amp-check mcp needs the package mcp: pip install 'pytest-amp-check[mcp]'") from None
    signals.restore_defaults()
    mcp_server.serve_agent()
    return CLEAN


def _run_completion(namespace: Any) -> int:
    from . import completion

    try:
        sys.stdout.write(completion.make_script(make_parser(), namespace.shell))
    except completion.CompletionUnavailable as error:
        raise InputFailure(str(error)) from None
    return CLEAN


COMMANDS: dict[str, Callable[[Any], int]] = {
    "check": run_check,
    "run": run_script,
    "explain": _run_explain,
    "rules": _run_rules,
    "clean": _run_clean,
    "version": _run_version,
    "completion": _run_completion,
    "server": _run_server,
    "mcp": _run_mcp,
}
