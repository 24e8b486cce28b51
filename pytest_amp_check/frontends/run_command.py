"""The command ``amp-check run``: a recorded script, and the report of its run."""

from __future__ import annotations

import os
import sys

from . import options as table
from . import output, source_lines, summaries
from .check_run import InputFailure
from .command_output import (
    CLEAN,
    FOUND,
    count_findings_by_rule,
    prepare_report,
    write_error,
    write_findings,
    write_report_location,
)
from .formats import FORMATS, OutputData, list_counting_formats
from .options import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..static.settings import Settings
    from .script_runs import RecordedScript


def run_script(namespace: Any) -> int:
    from . import script_runs

    options = table.resolve_options(table.read_flags(namespace, table.RUN), start=os.curdir, frontend=table.RUN)
    output.configure_output(color_mode=options.color, is_silent=options.silent)
    settings = table.make_settings(options)
    form = FORMATS[options.output_format]
    if options.statistics and not form.can_count:
        raise ConfigError(f"--statistics counts as {list_counting_formats()}, not as {options.output_format}")
    others = prepare_report(options)
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
    rules = count_findings_by_rule(findings) if options.statistics else None
    summary = "" if options.quiet else recorded.summarize_run(counts)
    write_findings(OutputData(findings, summary, source_lines.SourceLines(), rule_counts=rules), options, sys.stdout)
    if options.report:
        write_report_location(options)
    if recorded.error_sentence:
        return write_error(recorded.error_sentence)
    over = recorded.find_memory_excesses()
    for each in over:
        write_error(each)
    empty = not (recorded.step_count or options.allow_no_steps)
    wrong = empty or bool(over) or any(table.is_failing(options, finding.severity) for finding in findings)
    return code or (FOUND if wrong and not options.exit_zero else CLEAN)
