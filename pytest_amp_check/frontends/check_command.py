"""The command ``amp-check check``: from its options to its exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from . import finding_text, output, printable, write_guard
from . import options as table
from .check_run import CheckRun, InputFailure, format_count
from .command_output import (
    CLEAN,
    FAILED,
    FOUND,
    count_findings_by_rule,
    prepare_report,
    write_error,
    write_findings,
    write_output,
    write_report_location,
)
from .formats import FORMATS, OutputData, list_counting_formats
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..static.fixes.fix_files import FixResult


def run_check(namespace: Any) -> int:
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
        write_output(lambda stream: check_inspection.show_settings(options, stream), options.output_file, sys.stdout)
        return CLEAN
    if (options.show_files or options.watch) and stdin:
        raise InputFailure("standard input is no file that can be listed or watched: give paths")
    if options.shard is not None and (options.show_files or stdin):
        raise InputFailure(f"--shard divides a check of files: leave out {'-' if stdin else '--show-files'}")
    if options.show_files:
        from . import check_inspection

        files = request.find_files(options)
        write_output(lambda stream: check_inspection.show_files(files, stream), options.output_file, sys.stdout)
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
            write_error(str(error))
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
    prepare_report(options)
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
            write_error(f"{message}: use --allow-no-files if this is expected")
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
        shown.rule_counts = count_findings_by_rule(check.findings)
    if options.quiet:
        shown.summary = shown.fixable_sentence = ""
    elif not options.silent:
        sys.stderr.writelines(f"{printable.make_single_line(sentence)}\n" for sentence in check.notices)
    write_findings(shown, options, check.output_stream)
    if options.report:
        _write_check_report(check, options.report)
        write_report_location(options)
    for sentence in check.errors:
        write_error(sentence)
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


def _add_ignores(check: CheckRun, write_guard: write_guard.WriteGuard) -> int:
    from . import ignore_comments

    if check.from_stdin:
        raise InputFailure("--add-ignores writes into files: give paths")
    number, files, wrong = ignore_comments.add_ignores(check.findings, write_guard)
    if not (check.options.quiet or check.options.silent):
        sys.stdout.write(f"Silenced {format_count(number, 'finding')} in {format_count(files, 'file')}.\n")
    for sentence in wrong:
        write_error(sentence)
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
