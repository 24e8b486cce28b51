"""Output formats of findings: one table entry for each format."""

from __future__ import annotations

from ..protocol.fast_namedtuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TextIO

    from ..protocol.finding import Finding
    from .printable import Line
    from .source_lines import SourceLines


class OutputData:
    """The output of a check or a run.

    ``rule_counts`` are the records of each rule if counts were requested instead of findings; ``passed_over`` then
    holds skipped paths by reason. ``summary`` and ``fixable_sentence`` follow the findings. ``include_unsafe`` means
    that unsafe fixes are allowed.
    """

    __slots__ = ("findings", "fixable_sentence", "include_unsafe", "passed_over", "rule_counts", "sources", "summary")

    def __init__(
        self,
        findings: list[Finding],
        summary: str,
        sources: SourceLines,
        *,
        rule_counts: list[dict[str, Any]] | None = None,
        fixable_sentence: str = "",
        include_unsafe: bool = False,
    ) -> None:
        self.findings = findings
        self.summary = summary
        self.sources = sources
        self.rule_counts = rule_counts
        self.fixable_sentence = fixable_sentence
        self.include_unsafe = include_unsafe
        self.passed_over: Mapping[str, list[str]] = {}


class OutputFormat(NamedTuple):
    """One output format of findings.

    - ``write``: function that writes the findings to a stream
    - ``can_count``: counts by rule are supported (--statistics)
    - ``shows_fixes``: fixable findings are marked
    - ``shows_edits``: the edits of fixes are shown
    - ``shows_run``: further data of a run is shown
    """

    write: Callable[[OutputData, TextIO], None]
    can_count: bool = False
    shows_fixes: bool = True
    shows_edits: bool = False
    shows_run: bool = False


def _write_full(shown: OutputData, stream: TextIO) -> None:
    from . import finding_text

    _write_lines(
        shown, lambda: finding_text.format_full(shown.findings, shown.sources, unsafe=shown.include_unsafe), stream
    )


def _write_concise(shown: OutputData, stream: TextIO) -> None:
    from . import finding_text

    _write_lines(shown, lambda: finding_text.format_concise(shown.findings, unsafe=shown.include_unsafe), stream)


def _write_grouped(shown: OutputData, stream: TextIO) -> None:
    from . import finding_text

    _write_lines(shown, lambda: finding_text.format_grouped(shown.findings, unsafe=shown.include_unsafe), stream)


def _write_agent(shown: OutputData, stream: TextIO) -> None:
    from . import agent_text, output

    lines = _format_counts(shown)
    if lines is None:
        lines = agent_text.format_agent(shown.findings, unsafe=shown.include_unsafe)
    if shown.summary:
        # Only other formats mark fixable findings.
        sentences = [shown.summary, shown.fixable_sentence.removeprefix("[*] ")]
        if shown.findings:
            sentences.append("Explain a rule: amp-check explain CODE")
        lines.append([(" ".join(filter(None, sentences)), "")])
    output.write_lines(lines, stream, use_color=False)


def _format_counts(shown: OutputData) -> list[Line] | None:
    """Return the lines of the counts of each rule, or None if findings were requested."""
    from . import summaries

    if shown.rule_counts is None:
        return None
    return [*summaries.format_statistics(shown.rule_counts), *summaries.format_passed_over(shown.passed_over)]


def _write_lines(shown: OutputData, findings: Callable[[], list[Line]], stream: TextIO) -> None:
    from . import output

    lines = _format_counts(shown)
    if lines is None:
        lines = findings()
    if shown.summary:
        lines.append([(shown.summary, "" if shown.findings else "good")])
    if shown.fixable_sentence:
        lines.append([(shown.fixable_sentence, "")])
    output.write_lines(lines, stream, output.is_color_wanted(stream))


def _write_json(shown: OutputData, stream: TextIO) -> None:
    from . import json_formats

    if shown.rule_counts is None:
        stream.write(json_formats.format_json(shown.findings))
    else:
        stream.write(
            json_formats.dump_json([*shown.rule_counts, *json_formats.make_passed_over_records(shown.passed_over)])
        )


def _write_github(shown: OutputData, stream: TextIO) -> None:
    from . import json_formats

    stream.write(json_formats.format_github(shown.findings, shown.summary, shown.sources))

    from .ci_formats import write_step_summary
    from .output import write_warning

    wrong = write_step_summary(shown.findings, shown.summary, shown.sources)
    if wrong:
        write_warning(wrong)


def _write_json_lines(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_json_lines(shown.findings))


def _write_junit(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_junit(shown.findings, shown.sources))


def _write_gitlab(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_gitlab(shown.findings, shown.sources))


def _write_rdjson(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_rdjson(shown.findings, shown.sources))


def _write_azure(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_azure(shown.findings, shown.sources))


def _write_pylint(shown: OutputData, stream: TextIO) -> None:
    from . import ci_formats

    stream.write(ci_formats.format_pylint(shown.findings, shown.sources))


def _write_sarif(shown: OutputData, stream: TextIO) -> None:
    from . import json_formats

    stream.write(json_formats.format_sarif(shown.findings, shown.sources))


#: Output formats by name, in the order of the help text.
FORMATS = {
    "full": OutputFormat(_write_full, can_count=True, shows_run=True),
    "concise": OutputFormat(_write_concise, can_count=True),
    "grouped": OutputFormat(_write_grouped),
    "agent": OutputFormat(_write_agent, can_count=True, shows_edits=True),
    "json": OutputFormat(_write_json, can_count=True, shows_edits=True),
    "json-lines": OutputFormat(_write_json_lines, shows_edits=True),
    "junit": OutputFormat(_write_junit, shows_fixes=False),
    # GitHub shows no fixes.
    "github": OutputFormat(_write_github, shows_fixes=False),
    "gitlab": OutputFormat(_write_gitlab, shows_fixes=False),
    "azure": OutputFormat(_write_azure, shows_fixes=False),
    "pylint": OutputFormat(_write_pylint, shows_fixes=False),
    "rdjson": OutputFormat(_write_rdjson, shows_edits=True),
    "sarif": OutputFormat(_write_sarif, shows_edits=True),
}


def list_counting_formats() -> str:
    """Return the formats with counts, as text for a sentence."""
    *others, last = (name for name, form in FORMATS.items() if form.can_count)
    return f"{', '.join(others)} or {last}"
