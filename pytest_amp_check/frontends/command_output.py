"""Output of commands: errors, findings, reports, and exit codes."""

from __future__ import annotations

import sys
from contextlib import suppress

from . import options as table
from . import printable, summaries
from .check_run import InputFailure
from .formats import FORMATS, OutputData
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

    from ..protocol.finding import Finding

CLEAN, FOUND, FAILED = 0, 1, 2


def write_error(message: str) -> int:
    # If standard error cannot be written either, only the exit code reports the error.
    with suppress(OSError):
        sys.stderr.write(f"amp-check: error: {printable.make_single_line(' '.join(message.split()))}\n")
        sys.stderr.flush()
    return FAILED


def write_report_location(options: table.Options) -> None:
    """Write the path of the report to standard error, where it is no part of the findings."""
    if not (options.quiet or options.silent):
        sys.stderr.write(f"The report is in {printable.make_single_line(str(options.report))}.\n")


def write_findings(shown: OutputData, options: table.Options, stream: TextIO) -> None:
    """Write the findings to the configured output."""
    form = FORMATS[options.output_format]
    if not options.silent:
        write_output(lambda page: form.write(shown, page), options.output_file, stream)


def write_output(write: Callable[[TextIO], object], path: str | None, stream: TextIO) -> None:
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


def prepare_report(options: table.Options) -> list[dict[str, Any]]:
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


def count_findings_by_rule(findings: list[Finding]) -> list[dict[str, Any]]:
    return summaries.count_by_rule((finding.code, finding.name, finding.severity) for finding in findings)
