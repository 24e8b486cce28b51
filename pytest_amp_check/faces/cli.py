"""The command ``amp-check``."""

from __future__ import annotations

import os
import sys

from . import options as table
from . import text
from .formats import FORMATS, Shown, counting
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from ..protocol.finding import Finding
    from ..static.engine import Report, Settings

CLEAN, FOUND, FAILED = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 130, 141
#: Objects that may be made before the garbage collector looks for cycles among them.
YOUNG = 100_000

EPILOG = "exit codes: 0 nothing found, 1 errors or warnings found, 2 amp-check or its input failed"


class InputFailure(Exception):
    """What was given cannot be used; the message is one sentence."""


def run() -> NoReturn:
    """The command as a process: runs it and ends the process with its exit code."""
    import gc

    # A run makes many objects and few cycles: it looks for them less often.
    gc.set_threshold(YOUNG)
    # The script that is run gets arguments of its own in their place.
    recorded = sys.argv[1:2] == ["run"]
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # Whoever read the output is gone, or the disk is full; main has said so by its exit code where it could tell.
        code = code or PIPE_CLOSED
    if recorded:
        # A script's own threads are waited for, and what it wants done at exit is done.
        sys.exit(code)
    # Taking the interpreter apart, object by object, takes longer than checking a small file.
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    text.outputs()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except (ConfigError, InputFailure) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output is gone; nothing may be written to it again, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        if os.environ.get("AMP_CHECK_DEBUG"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}: please report it, "
            "with what AMP_CHECK_DEBUG=1 shows for the same command"
        )


def _fail(message: str) -> int:
    sys.stderr.write(f"amp-check: error: {' '.join(message.split())}\n")
    return FAILED


def _run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        if argv[0].endswith(".py") or os.path.exists(argv[0]):
            raise InputFailure(f"{argv[0]!r} is not a command: to check it, run amp-check check {argv[0]}")
        import difflib

        close = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise InputFailure(f"{argv[0]!r} is not a command: {hint}")
    if argv[:1] == ["check"] and not any(word.startswith("-") and word != "-" for word in argv):
        # Paths alone need no parser, and loading and making one takes a third of the time of starting Python.
        return COMMANDS["check"](_Paths(argv[1:]))
    parser = _parser()
    try:
        given = parser.parse_args(argv)
    except SystemExit as leave:
        # argparse leaves by itself after --help and --version and on a wrong flag.
        return leave.code if isinstance(leave.code, int) else CLEAN
    if given.command is None:
        parser.print_help()
        return CLEAN
    return COMMANDS[given.command](given)


class _Paths:
    """What the parser makes of a command line of paths and nothing else."""

    __slots__ = ("paths", "stdin_filename")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.stdin_filename = None


def _parser() -> ArgumentParser:
    from argparse import REMAINDER, ArgumentParser, HelpFormatter

    from .. import __version__

    class Help(HelpFormatter):
        def __init__(self, prog: str) -> None:
            # A width of its own, so that help reads the same everywhere.
            super().__init__(prog, width=96, max_help_position=34)

    class Parser(ArgumentParser):
        def __init__(self, **more: Any) -> None:
            super().__init__(formatter_class=Help, allow_abbrev=False, **more)

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(FAILED, f"amp-check: error: {message}\n")

    parser = Parser(
        prog="amp-check",
        description="Finds the mistakes that PyTorch mixed-precision training code makes silently.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"amp-check {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser("check", help="check files and folders", epilog=EPILOG)
    check.add_argument("paths", nargs="*", metavar="PATH", help="files and folders; - reads standard input")
    check.add_argument("--stdin-filename", metavar="PATH", help="what standard input is called in findings")
    table.add_flags(check.add_argument, table.CLI)
    recorded = commands.add_parser(
        "run",
        help="run a script and record what it trains",
        usage="amp-check run [OPTION ...] [-m] SCRIPT [ARGUMENT ...]",
        epilog="exit codes: the script's own where that is not 0; else 1 where errors or warnings were found or no "
        "training step was recorded, or 0",
    )
    table.add_flags(recorded.add_argument, table.RUN)
    recorded.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as for python -m"
    )
    recorded.add_argument("script", metavar="SCRIPT", help="the script that trains")
    arguments = recorded.add_argument("arguments", nargs=REMAINDER, metavar="ARGUMENT", help="what the script is given")
    arguments.required = False
    explain = commands.add_parser("explain", help="say everything about a rule, or about an exception of torch")
    explain.add_argument(
        "words",
        nargs="+",
        metavar="RULE or TEXT",
        help="code or name of a rule, such as AMP201, or the text of an exception; - reads a traceback",
    )
    rules = commands.add_parser("rules", help="list the rules")
    for command in (explain, rules):
        command.add_argument("--output-format", choices=("text", "json"), default="text", help="how it is shown")
    commands.add_parser(
        "server",
        help="serve an editor: the language server protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[server]'",
    )
    return parser


def _check(given: Any) -> int:
    from ..static import engine

    stdin = given.paths == ["-"]
    if "-" in given.paths and not stdin:
        raise InputFailure("- reads standard input and cannot be given together with paths")
    if given.stdin_filename and not stdin:
        raise InputFailure("--stdin-filename names standard input: give - as the path")
    start = (given.stdin_filename or os.curdir) if stdin else (given.paths or [os.curdir])[0]
    options = table.resolve(table.flags(given, table.CLI) | {"paths": None}, start=start)
    form = FORMATS[options.output_format]
    if options.statistics and not form.counts:
        raise ConfigError(
            f"--statistics counts as {counting()}, not as {options.output_format}: leave one of the two out"
        )
    settings = table.settings(options)
    data: dict[str, bytes] = {}
    name = given.stdin_filename or "<stdin>"
    if stdin:
        data[name] = sys.stdin.buffer.read()
        source = _standard_input(name, data[name])
        tree = engine.alone(source, name)
        findings, files = engine.check_again(source, name, settings, tree), 1
        sources = text.Sources({name: source})
    else:
        paths = given.paths or [text.below(path) for path in options.paths] or [os.curdir]
        report = _checked(paths, settings, options)
        findings, files, tree = report.findings, report.files, report.tree
        sources = text.Sources()
        if not files:
            where = ", ".join(paths)
            sys.stderr.write(f"amp-check: warning: no Python file, notebook or Markdown was found in {where}\n")
    shown = sys.stdout
    wrong: list[str] = []
    counts = text.count(finding.severity for finding in findings)
    summary = text.tally(counts, files)
    if options.fix or options.diff:
        from . import fixing

        outcomes = fixing.mend(findings, data, settings, tree, unsafe=options.unsafe_fixes)
        if options.diff:
            fixing.show_difference(outcomes, findings)
            return FOUND if outcomes and not options.exit_zero else CLEAN
        found = len(findings)
        if stdin:
            # The source is what is asked for; what is left to say goes where it is in nobody's way.
            shown = sys.stderr
            sys.stdout.buffer.write(outcomes[0].document.data() if outcomes else data[name])
            if outcomes:
                source = outcomes[0].document.text
                findings = engine.check_again(source, name, settings, tree)
                sources, data = text.Sources({name: source}), {name: outcomes[0].document.data()}
        elif outcomes:
            wrong, findings = fixing.make(outcomes, findings, tree, lambda: _checked(paths, settings, options).findings)
        counts = text.count(finding.severity for finding in findings)
        if found > len(findings):
            summary = f"{summary.removesuffix('.')} ({found - len(findings):,} fixed, {len(findings):,} remaining)."
    fixable = ""
    if findings and not options.statistics and form.fixes:
        from . import fixing

        fixing.offer(findings, data, tree, edits=form.edits)
        fixable = fixing.summary(findings, unsafe=options.unsafe_fixes)
    rules = _counted(findings) if options.statistics else None
    form.write(Shown(findings, summary, sources, counts=rules, fixable=fixable, unsafe=options.unsafe_fixes), shown)
    for sentence in wrong:
        _fail(sentence)
    if wrong:
        return FAILED
    return FOUND if counts["error"] + counts["warning"] and not options.exit_zero else CLEAN


def _checked(paths: list[str], settings: Settings, options: table.Options) -> Report:
    from ..static import engine, processes

    show, wipe = text.progress(sys.stderr)
    try:
        # A few files are read as soon as what is known of them.
        cache = table.cache(options) if any(map(os.path.isdir, paths)) else None
        return engine.check_paths(paths, settings, show, jobs=options.jobs or processes.processors(), cache=cache)
    except engine.InputError as error:
        raise InputFailure(str(error)) from None
    except processes.EndedEarly:
        raise InputFailure(
            "one of the processes that read the files was killed, most likely because memory ran out: give --jobs 1,"
            " or fewer files at a time"
        ) from None
    finally:
        wipe()


def _record(given: Any) -> int:
    from . import script

    options = table.resolve(table.flags(given, table.RUN), start=os.curdir, face=table.RUN)
    settings = table.settings(options)
    form = FORMATS[options.output_format]
    if options.statistics and not form.counts:
        raise ConfigError(f"--statistics counts as {counting()}, not as {options.output_format}")
    try:
        target = script.prepare(given.script, module=given.module)
        recorded = script.Recorded(target, given.arguments, module=given.module)
        code = recorded.run(options.device, options.report)
    except script.Unrunnable as error:
        raise InputFailure(str(error)) from None
    findings = recorded.findings(settings)
    counts = text.count(finding.severity for finding in findings)
    if form.whole and not options.statistics:
        recorded.show(sys.stdout)
    rules = _counted(findings) if options.statistics else None
    form.write(Shown(findings, recorded.summary(counts), text.Sources(), counts=rules), sys.stdout)
    if recorded.wrong:
        return _fail(recorded.wrong)
    empty = not (recorded.steps or options.allow_no_steps)
    wrong = counts["error"] + counts["warning"] or empty
    return code or (FOUND if wrong and not options.exit_zero else CLEAN)


def _counted(findings: list[Finding]) -> list[dict[str, Any]]:
    return text.statistics((finding.code, finding.name, finding.severity) for finding in findings)


def _standard_input(name: str, data: bytes) -> str:
    from ..static.sources import programs, source_files

    try:
        return programs.decode(name, data)
    except source_files.Unreadable as error:
        raise InputFailure(f"standard input cannot be read: {error.reason}") from None


def _explain(given: Any) -> int:
    from . import explaining

    try:
        explaining.explain(given.words, as_json=given.output_format == "json")
    except explaining.Unexplained as error:
        raise InputFailure(str(error)) from None
    return CLEAN


def _rules(given: Any) -> int:
    from ..protocol.rules import RULES

    if given.output_format == "json":
        from . import machine

        sys.stdout.write(machine.dumps([rule.as_dict() for rule in RULES.values()]))
    else:
        text.write(text.rules_table(RULES.values()), sys.stdout, text.colour_wanted(sys.stdout))
    return CLEAN


def _serve(given: Any) -> int:
    try:
        from .server import language_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise InputFailure("the language server needs pygls: pip install 'pytest-amp-check[server]'") from None
    language_server.serve()
    return CLEAN


COMMANDS: dict[str, Callable[[Any], int]] = {
    "check": _check,
    "run": _record,
    "explain": _explain,
    "rules": _rules,
    "server": _serve,
}
