"""How findings are shown: a row for each format, with what writes it."""

from __future__ import annotations

from ..protocol.named import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TextIO

    from ..protocol.finding import Finding
    from .text import Line, Sources


class Shown:
    """What there is to show of a check or a run.

    ``counts`` are the records of each rule where it was asked for these instead of the findings, ``passed_over`` then
    holds paths by why nothing was read in them. ``summary`` and
    ``fixable`` the sentences below them, ``unsafe`` says that unsafe fixes may be made.
    """

    __slots__ = ("counts", "findings", "fixable", "passed_over", "sources", "summary", "unsafe")

    def __init__(
        self,
        findings: list[Finding],
        summary: str,
        sources: Sources,
        *,
        counts: list[dict[str, Any]] | None = None,
        fixable: str = "",
        unsafe: bool = False,
    ) -> None:
        self.findings = findings
        self.summary = summary
        self.sources = sources
        self.counts = counts
        self.fixable = fixable
        self.unsafe = unsafe
        self.passed_over: Mapping[str, list[str]] = {}


class Format(NamedTuple):
    """One way to show findings.

    write   writes them to a stream
    counts  it can show how often each rule was broken instead (--statistics)
    fixes   it says which findings can be put right
    edits   ... and how, edit by edit
    whole   it shows what else is known of a run
    """

    write: Callable[[Shown, TextIO], None]
    counts: bool = False
    fixes: bool = True
    edits: bool = False
    whole: bool = False


def _full(shown: Shown, stream: TextIO) -> None:
    from . import text

    _lines(shown, lambda: text.full(shown.findings, shown.sources, unsafe=shown.unsafe), stream)


def _concise(shown: Shown, stream: TextIO) -> None:
    from . import text

    _lines(shown, lambda: text.concise(shown.findings, unsafe=shown.unsafe), stream)


def _grouped(shown: Shown, stream: TextIO) -> None:
    from . import text

    _lines(shown, lambda: text.grouped(shown.findings, unsafe=shown.unsafe), stream)


def _lines(shown: Shown, findings: Callable[[], list[Line]], stream: TextIO) -> None:
    from . import text

    lines = findings() if shown.counts is None else text.statistics_table(shown.counts)
    if shown.counts is not None:
        lines += text.passed_over(shown.passed_over)
    if shown.summary:
        lines.append([(shown.summary, "" if shown.findings else "good")])
    if shown.fixable:
        lines.append([(shown.fixable, "")])
    text.write(lines, stream, text.colour_wanted(stream))


def _json(shown: Shown, stream: TextIO) -> None:
    from . import machine

    if shown.counts is None:
        stream.write(machine.json_text(shown.findings))
    else:
        stream.write(machine.dumps([*shown.counts, *machine.passed_over(shown.passed_over)]))


def _github(shown: Shown, stream: TextIO) -> None:
    from . import machine

    stream.write(machine.github(shown.findings, shown.summary, shown.sources))

    from .hosts import write_step_summary
    from .text import warn

    wrong = write_step_summary(shown.findings, shown.summary, shown.sources)
    if wrong:
        warn(wrong)


def _json_lines(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.json_lines(shown.findings))


def _junit(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.junit(shown.findings, shown.sources))


def _gitlab(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.gitlab(shown.findings, shown.sources))


def _rdjson(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.rdjson(shown.findings, shown.sources))


def _azure(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.azure(shown.findings, shown.sources))


def _pylint(shown: Shown, stream: TextIO) -> None:
    from . import hosts

    stream.write(hosts.pylint(shown.findings, shown.sources))


def _sarif(shown: Shown, stream: TextIO) -> None:
    from . import machine

    stream.write(machine.sarif(shown.findings, shown.sources))


#: The formats by their names, in the order in which they are listed.
FORMATS = {
    "full": Format(_full, counts=True, whole=True),
    "concise": Format(_concise, counts=True),
    "grouped": Format(_grouped),
    "json": Format(_json, counts=True, edits=True),
    "json-lines": Format(_json_lines, edits=True),
    "junit": Format(_junit, fixes=False),
    # GitHub shows no fixes.
    "github": Format(_github, fixes=False),
    "gitlab": Format(_gitlab, fixes=False),
    "azure": Format(_azure, fixes=False),
    "pylint": Format(_pylint, fixes=False),
    "rdjson": Format(_rdjson, edits=True),
    "sarif": Format(_sarif, edits=True),
}


def counting() -> str:
    """The formats that can count, as a sentence names them."""
    *others, last = (name for name, form in FORMATS.items() if form.counts)
    return f"{', '.join(others)} or {last}"
