"""The command ``amp-check``."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from . import options as table
from . import reach, signals, text
from .checking import Check, InputFailure, count
from .formats import FORMATS, Shown, counting
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn, TextIO

    from ..protocol.finding import Finding
    from ..static.engine import Settings
    from ..static.fixes.apply import Outcome
    from .script import Recorded

CLEAN, FOUND, FAILED = 0, 1, 2
#: Why output cannot be written, though nobody has closed it: the disk is full, or the quota is, or it fails.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
PIPE_CLOSED = 141
#: Objects that may be made before the garbage collector looks for cycles among them.
YOUNG = 100_000

EPILOG = "exit codes: 0 nothing found, 1 something found that fails (--fail-level), 2 amp-check or its input failed"
#: What the name of a file with arguments, one in each line, begins with.
ARGUMENTS = "@"


def run() -> NoReturn:
    """The command as a process: runs it and ends the process with its exit code."""
    import gc

    # A run makes many objects and few cycles: it looks for them less often.
    gc.set_threshold(YOUNG)
    # The script that is run gets arguments of its own in their place.
    recorded = sys.argv[1:2] == ["run"]
    signals.in_order()
    code = main()
    signals.no_more()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # Whoever read the output is gone, or the disk is full; main has said so by its exit code where it could tell.
        code = code or PIPE_CLOSED
    if recorded:
        # A script's own threads are waited for, and what it wants done at exit is done.
        signals.usual()
        sys.exit(code)
    # Taking the interpreter apart, object by object, takes longer than checking a small file.
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    text.outputs()
    text.speak(colour=table.AUTO, silent=False)
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except (ConfigError, InputFailure, text.NoInput) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _ended(signals.INTERRUPT)
    except signals.Ended as end:
        return _ended(end.number)
    except BrokenPipeError:
        # Whoever read the output is gone.
        _close_output()
        return PIPE_CLOSED
    except Exception as error:
        full = _is_full(error)
        if full:
            _close_output()
        elif os.environ.get(table.DEBUG):
            raise
        return _fail(_said(error, full=full))


def _is_full(error: Exception) -> bool:
    """Whether output could not be written. What is about a file has its name."""
    return isinstance(error, OSError) and error.errno in UNWRITABLE and error.filename is None


def _said(error: Exception, *, full: bool) -> str:
    """What has ended the command, in one sentence: the system, or a mistake of its own."""
    if isinstance(error, MemoryError):
        return "memory ran out: give --jobs 1, or fewer files at a time"
    if not isinstance(error, OSError):
        return (
            f"internal error: {type(error).__name__}: {error}: please report it, "
            "with what AMP_CHECK_DEBUG=1 shows for the same command"
        )
    reason = (error.strerror or type(error).__name__).lower()
    if full:
        return f"what there is to say could not be written to its end: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, (str, bytes)) else reason


def _ended(number: int) -> int:
    # Whoever asks again cannot wait.
    signals.no_more()
    with suppress(OSError):
        sys.stderr.write(signals.line(number))
        sys.stderr.flush()
    return signals.code(number)


def _close_output() -> None:
    """Has nothing written to standard output again, at exit either."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    # Where standard error cannot be written either, the exit code says it.
    with suppress(OSError):
        sys.stderr.write(f"amp-check: error: {text.in_line(' '.join(message.split()))}\n")
        sys.stderr.flush()
    return FAILED


def _run(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        if argv[0].endswith(".py") or os.path.exists(argv[0]):
            raise InputFailure(f"{argv[0]!r} is not a command: to check it, run amp-check check {argv[0]}")
        import difflib

        close = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise InputFailure(f"{argv[0]!r} is not a command: {hint}")
    if argv[:1] == ["check"]:
        argv = _expanded(argv)
    if argv[:1] == ["check"] and not any(word.startswith("-") and word != "-" for word in argv):
        # Paths alone need no parser, and loading and making one takes a third of the time of starting Python.
        return COMMANDS["check"](_Paths(argv[1:]))
    parser = _parser()
    try:
        given, unknown = parser.parse_known_args(argv)
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], given.parser)}")
    except SystemExit as leave:
        # argparse leaves by itself after --help and --version and on a wrong flag.
        return leave.code if isinstance(leave.code, int) else CLEAN
    if given.command is None:
        parser.print_help()
        return CLEAN
    return COMMANDS[given.command](given)


def _expanded(argv: list[str]) -> list[str]:
    """The arguments, with those that a file holds, one in each line, in the place of its name."""
    found: list[str] = []
    for word in argv:
        if not word.startswith(ARGUMENTS) or word == ARGUMENTS:
            found.append(word)
            continue
        path = word.removeprefix(ARGUMENTS)
        try:
            held = read_regular(path, LARGEST_DOCUMENT).decode()
        except OSError as error:
            raise InputFailure(f"{word}: the arguments cannot be read: {error.strerror}") from None
        except ValueError:
            raise InputFailure(f"{word}: the arguments cannot be read: save them as text in UTF-8") from None
        if "\0" in held:
            raise InputFailure(f"{word}: the arguments hold a null byte: write each of them in a line of its own")
        found += [line for line in held.splitlines() if line.strip()]
    return found


class _Paths:
    """What the parser makes of a command line of paths and nothing else."""

    __slots__ = ("paths", "stdin_filename")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.stdin_filename = None


def _parser() -> ArgumentParser:
    from argparse import REMAINDER, ArgumentParser, HelpFormatter

    from .. import __version__
    from .completion import SHELLS

    class Help(HelpFormatter):
        def __init__(self, prog: str) -> None:
            # A width of its own, so that help reads the same everywhere.
            super().__init__(prog, width=96, max_help_position=34)

    class Parser(ArgumentParser):
        def __init__(self, **more: Any) -> None:
            super().__init__(formatter_class=Help, allow_abbrev=False, **more)

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(FAILED, f"amp-check: error: {text.in_line(message + _nearest_choice(message))}\n")

        def _print_message(self, message: str, file: Any = None) -> None:
            # That of argparse says nothing where it cannot be written.
            (file or sys.stderr).write(message)

    parser = Parser(
        prog="amp-check",
        description="Finds the mistakes that PyTorch mixed-precision training code makes silently.",
        epilog=EPILOG,
    )
    # Each command says by which parser it was read.
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"amp-check {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser("check", help="check files and folders", epilog=EPILOG)
    check.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders; - reads standard input, @FILE arguments from a file",
    )
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
    completion = commands.add_parser("completion", help="write a script that completes commands and flags in a shell")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    for command in (explain, rules):
        command.add_argument("--output-format", choices=("text", "json"), default="text", help="how it is shown")
    for command in (check, recorded, explain, rules):
        command.set_defaults(parser=command)
    commands.add_parser(
        "server",
        help="serve an editor: the language server protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[server]'",
    )
    return parser


def _meant(word: str, parser: ArgumentParser) -> str:
    """The flag that is nearest to a word, among those that a parser knows."""
    import re

    return table.nearest(word.partition("=")[0], tuple(re.findall(r"(?<![\w-])--\w[\w-]*", parser.format_help())))


def _nearest_choice(message: str) -> str:
    """The choice that is nearest to the word that a message of the parser names, as the end of a sentence."""
    import difflib
    import re

    wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    if wrong is None:
        return ""
    close = difflib.get_close_matches(wrong.group(1).lower(), re.findall(r"[\w-]+", wrong.group(2)), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _check(given: Any) -> int:
    stdin = given.paths == ["-"]
    if "-" in given.paths and not stdin:
        raise InputFailure("- reads standard input and cannot be given together with paths")
    if given.stdin_filename and not stdin:
        raise InputFailure("--stdin-filename names standard input: give - as the path")
    asked = _Asked(given)
    options = asked.options()
    text.speak(colour=options.color, silent=options.silent)
    if options.show_settings:
        from . import inspecting

        table.settings(options)
        _put(lambda stream: inspecting.show_settings(options, stream), options.output_file, sys.stdout)
        return CLEAN
    if (options.show_files or options.watch) and stdin:
        raise InputFailure("standard input is no file that can be listed or watched: give paths")
    if options.show_files:
        from . import inspecting

        files = asked.files(options)
        _put(lambda stream: inspecting.show_files(files, stream), options.output_file, sys.stdout)
        return CLEAN
    if options.watch:
        return _watch(asked)
    return _check_now(asked, options)


class _Asked:
    """What the command line asks of a check: the same each time, whatever configuration files say by then."""

    def __init__(self, given: Any) -> None:
        self.stdin_filename: str | None = given.stdin_filename
        self.stdin = given.paths == ["-"]
        self.flags = table.flags(given, table.CLI) | {"paths": None}
        self.given: list[str] = given.paths

    def options(self) -> table.Options:
        start = (self.stdin_filename or os.curdir) if self.stdin else _around(self.given or [os.curdir])
        return table.resolve(self.flags, start=start)

    def paths(self, options: table.Options) -> list[str]:
        """The files and folders to check; those of the configuration, where none are given."""
        return self.given or [text.below(path) for path in options.paths] or [os.curdir]

    def files(self, options: table.Options) -> list[str]:
        """The files that these come to."""
        from ..static import engine

        settings = table.settings(options)
        nearer = table.nearer(options, settings, lambda folder: table.resolve(self.flags, start=folder))
        try:
            return engine.found(self.paths(options), settings, nearer)
        except engine.InputError as error:
            raise InputFailure(str(error)) from None


def _watch(asked: _Asked) -> int:
    from . import watching

    # What is wrong at the start ends it.
    last = asked.files(asked.options())

    def files() -> list[str]:
        nonlocal last
        # While a path is gone, as between two saves, or settings are wrong, the last ones are looked at.
        with suppress(ConfigError, InputFailure):
            last = asked.files(asked.options())
        return [*last, *table.candidates(last or [os.curdir])]

    def again() -> None:
        try:
            _check_now(asked, asked.options())
        except (ConfigError, InputFailure) as error:
            _fail(str(error))
        sys.stdout.write("Watching for changes.\n")
        sys.stdout.flush()

    watching.watch(files, again)
    return CLEAN


def _check_now(asked: _Asked, options: table.Options) -> int:
    form = FORMATS[options.output_format]
    if options.statistics and not form.counts:
        raise ConfigError(
            f"--statistics counts as {counting()}, not as {options.output_format}: leave one of the two out"
        )
    if options.update_baseline and options.baseline is None:
        raise ConfigError("--update-baseline writes a file: name it by --baseline")
    _report_ready(options)
    paths = asked.paths(options)
    check = Check(paths, options, asked.stdin_filename, asked.flags)
    empty = check.looked_at_nothing()
    if not check.files:
        where = ", ".join(paths)
        but = " that is not excluded" if check.all_excluded() else ""
        said = f"no Python file, notebook or Markdown{but} was found in {where}"
        if not empty:
            text.warn(said)
        elif not options.silent:
            _fail(f"{said}: --allow-no-files, where that is right")
    code = _done(check, reach.Reach(asked.given, options))
    return FAILED if empty else code


def _done(check: Check, reached: reach.Reach) -> int:
    """What is asked for besides looking, and the exit code of that."""
    options = check.options
    if options.add_ignores:
        return _add_ignores(check, reached)
    if options.diff:
        from . import fixing

        outcomes = _outcomes(check, reached)
        fixing.show_difference(outcomes, check.findings)
        return FOUND if outcomes and not options.exit_zero else CLEAN
    if options.fix or options.fix_only:
        _mend(check, reached)
    return _tell(check, reached)


def _outcomes(check: Check, reached: reach.Reach) -> list[Outcome]:
    """What becomes of the files that hold something to be fixed, nothing written yet; what may not be, is said."""
    from . import fixing

    allowed = table.fixable(check.options)
    wanted = [finding for finding in check.findings if finding.code in allowed]
    made = fixing.mend(wanted, check.data, check.settings, check.tree, unsafe=check.options.unsafe_fixes)
    refused = {} if check.stdin else {outcome.path: reached.refusal(outcome.path) for outcome in made}
    for sentence in filter(None, refused.values()):
        text.warn(sentence)
    return [outcome for outcome in made if not refused.get(outcome.path)]


def _mend(check: Check, reached: reach.Reach) -> None:
    """Make the fixes."""
    from . import fixing

    outcomes = _outcomes(check, reached)
    before = len(check.findings)
    if check.stdin:
        # The source is what is asked for; what is left to say goes where it is in nobody's way.
        check.shown = sys.stderr
        sys.stdout.buffer.write(outcomes[0].document.data() if outcomes else check.data[check.name])
        if outcomes:
            check.findings = check.read_again(outcomes[0].document.text)
            check.data = {check.name: outcomes[0].document.data()}
    elif outcomes:
        made = fixing.make(outcomes, check.findings, check.tree, check.look_again)
        check.wrong, check.findings, outcomes = made
    if check.options.show_fixes:
        fixing.show_made(outcomes)
    check.fixed = before - len(check.findings)
    if check.fixed > 0:
        left = len(check.findings)
        check.summary = f"{check.summary.removesuffix('.')} ({check.fixed:,} fixed, {left:,} remaining)."
    if check.options.fix_only:
        check.findings = []


def _tell(check: Check, reached: reach.Reach) -> int:
    """Show what is left to show, and say how that ends."""
    options = check.options
    shown = Shown(check.findings, check.summary, check.sources, unsafe=options.unsafe_fixes)
    shown.passed_over = check.passed_over
    form = FORMATS[options.output_format]
    if check.findings and ((form.fixes and not options.statistics) or options.report):
        from . import fixing

        allowed = table.fixable(options)
        offered = [finding for finding in check.findings if finding.code in allowed]
        writes = (lambda path: True) if check.stdin else reached.writes
        fixing.offer(offered, check.data, check.tree, check.settings.torch, writes, edits=form.edits)
        if form.fixes and not options.statistics:
            shown.fixable = fixing.summary(check.findings, unsafe=options.unsafe_fixes)
    if options.statistics:
        shown.counts = _counted(check.findings)
    if options.quiet:
        shown.summary = shown.fixable = ""
    elif not options.silent:
        sys.stderr.writelines(f"{text.in_line(sentence)}\n" for sentence in check.said)
    _write(shown, options, check.shown)
    if options.report:
        _write_check_report(check, options.report)
    for sentence in check.wrong:
        _fail(sentence)
    if check.wrong:
        return FAILED
    failed = check.fails() or (check.fixed > 0 and options.exit_non_zero_on_fix)
    return FOUND if failed and not options.exit_zero else CLEAN


def _write_check_report(check: Check, path: str) -> None:
    from . import html

    try:
        html.write_check(
            check.findings, check.sources, check.files, path, title=f"amp-check check {' '.join(check.paths)}"
        )
    except html.ReportUnavailable as error:
        raise InputFailure(str(error)) from None


def _write(shown: Shown, options: table.Options, stream: TextIO) -> None:
    """Write what there is to show where it is wanted."""
    form = FORMATS[options.output_format]
    if not options.silent:
        _put(lambda page: form.write(shown, page), options.output_file, stream)


def _put(write: Callable[[TextIO], object], path: str | None, stream: TextIO) -> None:
    """Have something written to a file, or to a stream where none is given."""
    if path is None:
        write(stream)
        return
    from . import files

    page = files.Page(path)
    write(page)
    try:
        files.write(path, page.getvalue())
    except OSError as error:
        # A check takes its time and a training more: what they have found is not lost with the file.
        stream.write(page.getvalue())
        stream.flush()
        raise InputFailure(f"{path} cannot be written: {(error.strerror or 'error').lower()}") from None


def _add_ignores(check: Check, reached: reach.Reach) -> int:
    from . import ignoring

    if check.stdin:
        raise InputFailure("--add-ignores writes into files: give paths")
    number, files, wrong = ignoring.add(check.findings, reached)
    if not (check.options.quiet or check.options.silent):
        sys.stdout.write(f"Silenced {count(number, 'finding')} in {count(files, 'file')}.\n")
    for sentence in wrong:
        _fail(sentence)
    return FAILED if wrong else CLEAN


def _around(paths: list[str]) -> str:
    """From where the configuration of the whole run is looked for: what all paths lie in, a single path itself."""
    if len(paths) == 1:
        return paths[0]
    here = os.getcwd()
    try:
        around = os.path.commonpath([os.path.abspath(path) for path in paths])
        return here if os.path.commonpath([here, around]) == around else around
    except ValueError:
        # They lie on several drives.
        return here


def _record(given: Any) -> int:
    from . import script

    options = table.resolve(table.flags(given, table.RUN), start=os.curdir, face=table.RUN)
    text.speak(colour=options.color, silent=options.silent)
    settings = table.settings(options)
    form = FORMATS[options.output_format]
    if options.statistics and not form.counts:
        raise ConfigError(f"--statistics counts as {counting()}, not as {options.output_format}")
    others = _report_ready(options)
    try:
        target = script.prepare(given.script, module=given.module)
        recorded = script.Recorded(target, given.arguments, module=given.module)
        memory = f"{options.memory_limit} B" if options.memory_limit else options.memory
        code = recorded.run(
            options.device,
            options.rank_timeout,
            lambda: _tell_of_run(recorded, options, settings, others, FOUND),
            whole=bool(options.report),
            memory=memory,
        )
    except script.Unrunnable as error:
        raise InputFailure(str(error)) from None
    return code if recorded.told_elsewhere else _tell_of_run(recorded, options, settings, others, code)


def _tell_of_run(
    recorded: Recorded, options: table.Options, settings: Settings, others: list[dict[str, Any]], code: int
) -> int:
    """Tell what a script that left with a code has shown; gives the code to leave with."""
    form = FORMATS[options.output_format]
    if options.data:
        recorded.write_data(options.data)
    findings = recorded.findings(settings)
    if options.report:
        recorded.write_report(options.report, findings, others, text.Sources())
    counts = text.count(finding.severity for finding in findings)
    if form.whole and not (options.statistics or options.quiet or options.silent or options.output_file):
        recorded.show(sys.stdout)
    rules = _counted(findings) if options.statistics else None
    summary = "" if options.quiet else recorded.summary(counts)
    _write(Shown(findings, summary, text.Sources(), counts=rules), options, sys.stdout)
    if recorded.wrong:
        return _fail(recorded.wrong)
    over = recorded.excesses()
    for each in over:
        _fail(each)
    empty = not (recorded.steps or options.allow_no_steps)
    wrong = empty or bool(over) or any(table.fails(options, finding.severity) for finding in findings)
    return code or (FOUND if wrong and not options.exit_zero else CLEAN)


def _report_ready(options: table.Options) -> list[dict[str, Any]]:
    """Says before a long run what would keep its report from being written; gives the runs that are compared."""
    if options.report:
        from . import html

        try:
            html.ready(options.report)
        except html.ReportUnavailable as error:
            raise InputFailure(str(error)) from None
    if options.compare is None:
        return []
    if not options.report:
        raise ConfigError("--compare shows another run beside this one in a report: name that by --report")
    from .page import comparing

    try:
        return comparing.load(options.compare)
    except comparing.Unreadable as error:
        raise InputFailure(str(error)) from None


def _counted(findings: list[Finding]) -> list[dict[str, Any]]:
    return text.statistics((finding.code, finding.name, finding.severity) for finding in findings)


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
    signals.usual()
    language_server.serve()
    return CLEAN


def _completion(given: Any) -> int:
    from . import completion

    try:
        sys.stdout.write(completion.script(_parser(), given.shell))
    except completion.Unavailable as error:
        raise InputFailure(str(error)) from None
    return CLEAN


COMMANDS: dict[str, Callable[[Any], int]] = {
    "check": _check,
    "run": _record,
    "explain": _explain,
    "rules": _rules,
    "completion": _completion,
    "server": _serve,
}
