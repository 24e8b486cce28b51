"""The command ``amp-check``."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

from ..protocol.registration import NotRegistered
from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from . import finding_text, output, printable, rule_text, signals, source_lines, summaries, write_guard
from . import options as table
from .check_command import CheckRun, InputFailure, format_count
from .formats import FORMATS, OutputData, list_counting_formats
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn, TextIO

    from ..protocol.finding import Finding
    from ..static.fixes.fix_files import FixResult
    from ..static.settings import Settings
    from .script_runs import RecordedScript

CLEAN, FOUND, FAILED = 0, 1, 2
#: Errors of output that nobody closed: the disk or quota is full, or the device fails.
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
PIPE_CLOSED = 141
#: Number of new objects before the garbage collector searches for cycles.
YOUNG = 100_000

EPILOG = "exit codes: 0 no failing findings, 1 failing findings (--fail-level), 2 usage, input or internal error"
#: Prefix of the name of a file with arguments, one in each line.
ARGUMENTS = "@"


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
        return _write_error(str(error))
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
        return _write_error(_describe_error(error, full=full))


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


def _write_error(message: str) -> int:
    # If standard error cannot be written either, only the exit code reports the error.
    with suppress(OSError):
        sys.stderr.write(f"amp-check: error: {printable.make_single_line(' '.join(message.split()))}\n")
        sys.stderr.flush()
    return FAILED


def _dispatch(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        if argv[0].endswith(".py") or os.path.exists(argv[0]):
            raise InputFailure(f"{argv[0]!r} is not a command: to check it, run amp-check check {argv[0]}")
        import difflib

        close = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise InputFailure(f"{argv[0]!r} is not a command: {hint}")
    if argv[:1] == ["check"]:
        argv = _expand_arguments(argv)
    if argv[:1] == ["check"] and not any(word.startswith("-") and word != "-" for word in argv):
        # Paths alone need no parser; loading and creating a parser takes a third of the start time of Python.
        return COMMANDS["check"](_PathArguments(argv[1:]))
    parser = _make_parser()
    try:
        namespace, unknown = parser.parse_known_args(argv)
        if unknown:
            namespace.parser.error(
                f"unrecognized arguments: {' '.join(unknown)}{_suggest_flag(unknown[0], namespace.parser)}"
            )
    except SystemExit as leave:
        # argparse exits itself after --help and --version and on an invalid flag.
        return leave.code if isinstance(leave.code, int) else CLEAN
    if namespace.command is None:
        parser.print_help()
        return CLEAN
    return COMMANDS[namespace.command](namespace)


def _expand_arguments(argv: list[str]) -> list[str]:
    """Return the arguments, with argument files replaced by their lines."""
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


class _PathArguments:
    """The parsed result of a command line with paths only."""

    __slots__ = ("paths", "stdin_filename")

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.stdin_filename = None


def _make_parser() -> ArgumentParser:
    from argparse import REMAINDER, ArgumentParser, HelpFormatter

    from .. import __version__
    from .completion import SHELLS

    class HelpStyle(HelpFormatter):
        def __init__(self, prog: str) -> None:
            # A fixed width, so that help looks the same everywhere.
            super().__init__(prog, width=96, max_help_position=34)

    class CommandParser(ArgumentParser):
        def __init__(self, **more: Any) -> None:
            super().__init__(formatter_class=HelpStyle, allow_abbrev=False, **more)
            # Python 3.15 suggests a choice itself, in the middle of the message, where _nearest_choice finds no list.
            self.suggest_on_error = False

        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(FAILED, f"amp-check: error: {printable.make_single_line(message + _nearest_choice(message))}\n")

        def _print_message(self, message: str, file: Any = None) -> None:
            # The method of argparse ignores write errors.
            (file or sys.stderr).write(message)

    parser = CommandParser(
        prog="amp-check",
        description="Finds the mistakes that PyTorch mixed-precision training code makes silently.",
        epilog=EPILOG,
    )
    # Each command stores its own parser.
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="version", version=f"amp-check {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check files and folders",
        usage="amp-check check [OPTION ...] [PATH ...]",
        description="Each flag that enables something has a --no- form, which disables it.",
        epilog=EPILOG,
    )
    check.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files and folders; - reads standard input, @FILE arguments from a file",
    )
    check.add_argument("--stdin-filename", metavar="PATH", help="file name to report for standard input")
    table.add_flags(lambda topic: check.add_argument_group(topic).add_argument, table.CLI)
    recorded = commands.add_parser(
        "run",
        help="run a script or notebook and record what it trains",
        usage="amp-check run [OPTION ...] [-m] SCRIPT [ARGUMENT ...]",
        description="Each flag that enables something has a --no- form, which disables it.",
        epilog="exit codes: the script's own where that is not 0; else 1 where errors or warnings were found or no "
        "training step was recorded, or 0",
    )
    table.add_flags(lambda topic: recorded.add_argument_group(topic).add_argument, table.RUN)
    recorded.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as for python -m"
    )
    recorded.add_argument("script", metavar="SCRIPT", help="the script or notebook that trains")
    arguments = recorded.add_argument("arguments", nargs=REMAINDER, metavar="ARGUMENT", help="arguments of the script")
    arguments.required = False
    explain = commands.add_parser("explain", help="explain a rule or a PyTorch exception")
    explain.add_argument(
        "words",
        nargs="+",
        metavar="RULE or TEXT",
        help="code or name of a rule, AMP2 or ALL for several, or the text of an exception; - reads a traceback",
    )
    explain.add_argument("--all", dest="in_full", action="store_true", help="add measured harm, examples and sources")
    explain.add_argument("--web", action="store_true", help="show the page in a browser")
    rules = commands.add_parser("rules", help="list the rules")
    clean = commands.add_parser(
        "clean",
        help="remove the cache folder of a project",
        usage="amp-check clean [PATH] [--cache-dir FOLDER]",
        description="Removes the cache folder of amp-check check, and refuses a folder that is no such cache.",
    )
    clean.add_argument("path", nargs="?", default=os.curdir, metavar="PATH", help="folder of the project")
    clean.add_argument("--cache-dir", metavar="FOLDER", help="cache folder, instead of the configured one")
    version = commands.add_parser("version", help="show the version of amp-check")
    completion = commands.add_parser("completion", help="write a script that completes commands and flags in a shell")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    for command in (explain, rules, version):
        command.add_argument("--output-format", choices=("text", "json"), default="text", help="how it is shown")
    for command in (check, recorded, explain, rules, clean, version):
        command.set_defaults(parser=command)
    commands.add_parser(
        "server",
        help="serve an editor: the language server protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[server]'",
    )
    commands.add_parser(
        "mcp",
        help="serve a coding agent: the model context protocol over standard input and output",
        epilog="needs the extra: pip install 'pytest-amp-check[mcp]'",
    )
    return parser


def _suggest_flag(word: str, parser: ArgumentParser) -> str:
    """Return a suggestion of the parser's flag nearest to a word."""
    flags = tuple(flag for action in parser._actions for flag in action.option_strings if flag.startswith("--"))
    return table.suggest_nearest(word.partition("=")[0], flags)


def _nearest_choice(message: str) -> str:
    """Return a suggestion of the choice nearest to the invalid word in a parser message, as the end of a sentence."""
    import difflib
    import re

    wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    if wrong is None:
        return ""
    close = difflib.get_close_matches(wrong.group(1).lower(), re.findall(r"[\w-]+", wrong.group(2)), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _run_check(namespace: Any) -> int:
    stdin = namespace.paths == ["-"]
    if "-" in namespace.paths and not stdin:
        raise InputFailure("- reads standard input and cannot be given together with paths")
    if namespace.stdin_filename and not stdin:
        raise InputFailure("--stdin-filename names standard input: give - as the path")
    request = _CheckRequest(namespace)
    options = request.resolve_options()
    output.configure_output(color_mode=options.color, is_silent=options.silent)
    if options.show_settings:
        from . import check_inspection

        table.make_settings(options)
        _write_output(lambda stream: check_inspection.show_settings(options, stream), options.output_file, sys.stdout)
        return CLEAN
    if (options.show_files or options.watch) and stdin:
        raise InputFailure("standard input is no file that can be listed or watched: give paths")
    if options.shard is not None and (options.show_files or stdin):
        raise InputFailure(f"--shard divides a check of files: leave out {'-' if stdin else '--show-files'}")
    if options.show_files:
        from . import check_inspection

        files = request.find_files(options)
        _write_output(lambda stream: check_inspection.show_files(files, stream), options.output_file, sys.stdout)
        return CLEAN
    if options.watch:
        return _watch_files(request)
    return _check_now(request, options)


class _CheckRequest:
    """The request of a check command line. Repeated checks use the same request with current configuration files."""

    def __init__(self, namespace: Any) -> None:
        self.stdin_filename: str | None = namespace.stdin_filename
        self.from_stdin = namespace.paths == ["-"]
        self.flags = table.read_flags(namespace, table.CLI) | {"paths": None}
        self.given_paths: list[str] = namespace.paths

    def resolve_options(self) -> table.Options:
        start = (
            (self.stdin_filename or os.curdir)
            if self.from_stdin
            else _find_common_folder(self.given_paths or [os.curdir])
        )
        return table.resolve_options(self.flags, start=start)

    def resolve_paths(self, options: table.Options) -> list[str]:
        """Return the files and folders to check, by default the paths of the configuration."""
        return self.given_paths or [finding_text.relative_path(path) for path in options.paths] or [os.curdir]

    def find_files(self, options: table.Options) -> list[str]:
        """Return the files that the paths contain."""
        from ..static import file_search
        from ..static.sources import source_files

        settings = table.make_settings(options)
        nearer = table.make_settings_finder(
            options, settings, lambda folder: table.resolve_options(self.flags, start=folder)
        )
        try:
            return file_search.find_files(self.resolve_paths(options), settings, nearer)
        except source_files.InputError as error:
            raise InputFailure(str(error)) from None


def _watch_files(request: _CheckRequest) -> int:
    from . import watch_mode

    # An error at the start ends the command.
    options = request.resolve_options()
    last, extended = request.find_files(options), options.configuration_files

    def list_files() -> list[str]:
        nonlocal last, extended
        # While a path is missing, for example between two saves, or settings are invalid, the last files are watched.
        with suppress(ConfigError, InputFailure):
            options = request.resolve_options()
            extended = options.configuration_files
            last = request.find_files(options)
        return [*last, *table.list_candidates(last or [os.curdir]), *extended]

    def check_again() -> None:
        try:
            _check_now(request, request.resolve_options())
        except (ConfigError, InputFailure) as error:
            _write_error(str(error))
        sys.stdout.write("Watching for changes.\n")
        sys.stdout.flush()

    watch_mode.watch_files(list_files, check_again)
    return CLEAN


def _check_now(request: _CheckRequest, options: table.Options) -> int:
    form = FORMATS[options.output_format]
    if options.statistics and not form.can_count:
        raise ConfigError(
            f"--statistics counts as {list_counting_formats()}, not as {options.output_format}: leave one of the "
            f"two out"
        )
    if options.update_baseline and options.baseline is None:
        raise ConfigError("--update-baseline writes a file: name it by --baseline")
    _prepare_report(options)
    paths = request.resolve_paths(options)
    check = CheckRun(paths, options, request.stdin_filename, request.flags)
    empty = check.has_no_input()
    if not check.has_files():
        where = ", ".join(paths)
        but = " that is not excluded" if check.are_all_excluded() else ""
        message = f"no Python file, notebook or Markdown{but} was found in {where}"
        if not empty:
            output.write_warning(message)
        elif not options.silent:
            _write_error(f"{message}: use --allow-no-files if this is expected")
    code = _finish_check(check, write_guard.WriteGuard(request.given_paths, options))
    return FAILED if empty else code


def _finish_check(check: CheckRun, write_guard: write_guard.WriteGuard) -> int:
    """Run the requested actions after a check, and return the exit code."""
    options = check.options
    if options.add_ignores:
        return _add_ignores(check, write_guard)
    if options.diff:
        from . import fix_command

        outcomes = _compute_fixes(check, write_guard)
        fix_command.show_difference(outcomes, check.findings)
        return FOUND if outcomes and not options.exit_zero else CLEAN
    if options.fix or options.fix_only:
        _apply_fixes(check, write_guard)
    return _show_findings(check, write_guard)


def _compute_fixes(check: CheckRun, write_guard: write_guard.WriteGuard) -> list[FixResult]:
    """Return the fixed files without writing. Warn about files that must not be written."""
    from . import fix_command

    allowed = table.find_fixable_codes(check.options)
    wanted = [finding for finding in check.findings if finding.code in allowed]
    made = fix_command.compute_fixes(
        wanted, check.source_bytes, check.settings, check.project, unsafe=check.options.unsafe_fixes
    )
    refused = {} if check.from_stdin else {outcome.path: write_guard.explain_refusal(outcome.path) for outcome in made}
    for sentence in filter(None, refused.values()):
        output.write_warning(sentence)
    return [outcome for outcome in made if not refused.get(outcome.path)]


def _apply_fixes(check: CheckRun, write_guard: write_guard.WriteGuard) -> None:
    """Apply the fixes."""
    from . import fix_command

    outcomes = _compute_fixes(check, write_guard)
    before = len(check.findings)
    if check.from_stdin:
        # The fixed source is the requested output; findings go to standard error.
        check.output_stream = sys.stderr
        sys.stdout.buffer.write(
            outcomes[0].fixed_document.encode_text() if outcomes else check.source_bytes[check.stdin_name]
        )
        if outcomes:
            check.findings = check.recheck_source(outcomes[0].fixed_document.text)
            check.source_bytes = {check.stdin_name: outcomes[0].fixed_document.encode_text()}
    elif outcomes:
        made = fix_command.write_fixes(outcomes, check.findings, check.project, check.recheck_files)
        check.errors, check.findings, outcomes = made
    if check.options.show_fixes:
        fix_command.show_made(outcomes)
    check.fixed_count = before - len(check.findings)
    if check.fixed_count > 0:
        left = len(check.findings)
        check.summary = f"{check.summary.removesuffix('.')} ({check.fixed_count:,} fixed, {left:,} remaining)."
    if check.options.fix_only:
        check.findings = []


def _show_findings(check: CheckRun, write_guard: write_guard.WriteGuard) -> int:
    """Show the remaining findings, and return the exit code."""
    options = check.options
    shown = OutputData(check.findings, check.summary, check.sources, include_unsafe=options.unsafe_fixes)
    shown.passed_over = check.passed_over
    form = FORMATS[options.output_format]
    if check.findings and ((form.shows_fixes and not options.statistics) or options.report):
        from . import fix_command

        allowed = table.find_fixable_codes(options)
        offered = [finding for finding in check.findings if finding.code in allowed]
        writes = (lambda path: True) if check.from_stdin else write_guard.may_write
        fix_command.offer_fixes(
            offered, check.source_bytes, check.project, check.settings.torch, writes, edits=form.shows_edits
        )
        if form.shows_fixes and not options.statistics:
            shown.fixable_sentence = fix_command.summarize_fixable(check.findings, unsafe=options.unsafe_fixes)
    if options.statistics:
        shown.rule_counts = _count_by_rule(check.findings)
    if options.quiet:
        shown.summary = shown.fixable_sentence = ""
    elif not options.silent:
        sys.stderr.writelines(f"{printable.make_single_line(sentence)}\n" for sentence in check.notices)
    _write_findings(shown, options, check.output_stream)
    if options.report:
        _write_check_report(check, options.report)
        _write_report_location(options)
    for sentence in check.errors:
        _write_error(sentence)
    if check.errors:
        return FAILED
    failed = check.has_failing() or (check.fixed_count > 0 and options.exit_non_zero_on_fix)
    return FOUND if failed and not options.exit_zero else CLEAN


def _write_check_report(check: CheckRun, path: str) -> None:
    from . import html

    try:
        html.write_check_report(
            check.findings, check.sources, check.file_count, path, title=f"amp-check check {' '.join(check.paths)}"
        )
    except html.ReportUnavailable as error:
        raise InputFailure(str(error)) from None


def _write_report_location(options: table.Options) -> None:
    """Write the path of the report to standard error, where it is no part of the findings."""
    if not (options.quiet or options.silent):
        sys.stderr.write(f"The report is in {printable.make_single_line(str(options.report))}.\n")


def _write_findings(shown: OutputData, options: table.Options, stream: TextIO) -> None:
    """Write the findings to the configured output."""
    form = FORMATS[options.output_format]
    if not options.silent:
        _write_output(lambda page: form.write(shown, page), options.output_file, stream)


def _write_output(write: Callable[[TextIO], object], path: str | None, stream: TextIO) -> None:
    """Write output to a file, or to a stream if no path is given."""
    if path is None:
        write(stream)
        return
    from . import files

    page = files.OutputBuffer(path)
    write(page)
    try:
        files.write_file(path, page.getvalue())
    except OSError as error:
        # A check, or a whole training, took time: the findings are not lost with the file.
        stream.write(page.getvalue())
        stream.flush()
        raise InputFailure(f"{path} cannot be written: {(error.strerror or 'error').lower()}") from None


def _add_ignores(check: CheckRun, write_guard: write_guard.WriteGuard) -> int:
    from . import ignore_comments

    if check.from_stdin:
        raise InputFailure("--add-ignores writes into files: give paths")
    number, files, wrong = ignore_comments.add_ignores(check.findings, write_guard)
    if not (check.options.quiet or check.options.silent):
        sys.stdout.write(f"Silenced {format_count(number, 'finding')} in {format_count(files, 'file')}.\n")
    for sentence in wrong:
        _write_error(sentence)
    return FAILED if wrong else CLEAN


def _find_common_folder(paths: list[str]) -> str:
    """Return the start folder for the run's configuration: the common folder of all paths, or a single path itself."""
    if len(paths) == 1:
        return paths[0]
    here = os.getcwd()
    try:
        around = os.path.commonpath([os.path.abspath(path) for path in paths])
        return here if os.path.commonpath([here, around]) == around else around
    except ValueError:
        # The paths are on several drives.
        return here


def _run_script(namespace: Any) -> int:
    from . import script_runs

    options = table.resolve_options(table.read_flags(namespace, table.RUN), start=os.curdir, frontend=table.RUN)
    output.configure_output(color_mode=options.color, is_silent=options.silent)
    settings = table.make_settings(options)
    form = FORMATS[options.output_format]
    if options.statistics and not form.can_count:
        raise ConfigError(f"--statistics counts as {list_counting_formats()}, not as {options.output_format}")
    others = _prepare_report(options)
    try:
        target = script_runs.find_target(namespace.script, module=namespace.module)
        recorded = script_runs.RecordedScript(target, namespace.arguments, is_module=namespace.module)
        memory = f"{options.memory_limit} B" if options.memory_limit else options.memory
        return recorded.run_script(
            options.device,
            options.rank_timeout,
            lambda code: _report_run(recorded, options, settings, others, code),
            is_full=bool(options.report),
            memory=memory,
        )
    except script_runs.CannotRun as error:
        raise InputFailure(str(error)) from None


def _report_run(
    recorded: RecordedScript, options: table.Options, settings: Settings, others: list[dict[str, Any]], code: int
) -> int:
    """Report the recorded run of a script that ended with a code, and return the exit code."""
    form = FORMATS[options.output_format]
    if options.data:
        recorded.write_data(options.data)
    findings = recorded.collect_findings(settings)
    if options.report:
        recorded.write_report(options.report, findings, others, source_lines.SourceLines())
    counts = summaries.count_severities(finding.severity for finding in findings)
    if form.shows_run and not (options.statistics or options.quiet or options.silent or options.output_file):
        recorded.show_charts(sys.stdout)
    rules = _count_by_rule(findings) if options.statistics else None
    summary = "" if options.quiet else recorded.summarize_run(counts)
    _write_findings(OutputData(findings, summary, source_lines.SourceLines(), rule_counts=rules), options, sys.stdout)
    if options.report:
        _write_report_location(options)
    if recorded.error_sentence:
        return _write_error(recorded.error_sentence)
    over = recorded.find_memory_excesses()
    for each in over:
        _write_error(each)
    empty = not (recorded.step_count or options.allow_no_steps)
    wrong = empty or bool(over) or any(table.is_failing(options, finding.severity) for finding in findings)
    return code or (FOUND if wrong and not options.exit_zero else CLEAN)


def _prepare_report(options: table.Options) -> list[dict[str, Any]]:
    """Check before a long run that the report can be written, and return the runs to compare."""
    if options.report:
        from . import html

        try:
            html.check_writable(options.report)
        except html.ReportUnavailable as error:
            raise InputFailure(str(error)) from None
    if options.compare is None:
        return []
    if not options.report:
        raise ConfigError("--compare shows another run beside this one in a report: name that by --report")
    from .page import comparison

    try:
        return comparison.load_runs(options.compare)
    except comparison.NotComparable as error:
        raise InputFailure(str(error)) from None


def _count_by_rule(findings: list[Finding]) -> list[dict[str, Any]]:
    return summaries.count_by_rule((finding.code, finding.name, finding.severity) for finding in findings)


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
        sys.stdout.write(completion.make_script(_make_parser(), namespace.shell))
    except completion.CompletionUnavailable as error:
        raise InputFailure(str(error)) from None
    return CLEAN


COMMANDS: dict[str, Callable[[Any], int]] = {
    "check": _run_check,
    "run": _run_script,
    "explain": _run_explain,
    "rules": _run_rules,
    "clean": _run_clean,
    "version": _run_version,
    "completion": _run_completion,
    "server": _run_server,
    "mcp": _run_mcp,
}
