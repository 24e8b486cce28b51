"""Findings, rules and counts as text: the same words in colour on a terminal and plain in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..protocol.finding import SEVERITIES
from ..protocol.fix import SAFE, UNSAFE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

    from ..protocol.events import Site
    from ..protocol.finding import Finding
    from ..protocol.rule import Rule

#: A line is pieces of text, each with the name of a style; the styles are names of :data:`STYLES` and ``source``.
Line = list[tuple[str, str]]

STYLES = {
    "": "",
    "path": "bold",
    "dim": "dim",
    "code": "bold",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "mark": "bold red",
    "good": "green",
    "command": "cyan",
}
#: What makes the fix of a rule, by how safe it is.
FLAGS = {SAFE: "--fix", UNSAFE: "--fix --unsafe-fixes"}
#: Lines of source shown before and after the blamed ones.
AROUND = 1
#: Places listed of several findings that are told together.
PLACES = 12
#: Blamed lines shown of one range, and characters shown of one line.
TALL, WIDE = 5, 160
TAB = "    "
#: Characters above which the code of a file or of a cell is not taken apart into lines to show one of them.
SHOWN = 10_000_000
#: Characters that turn the order around in which others are shown (Unicode's Bidi_Control).
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


#: What ends a line, besides the control characters, where a text is written in one.
_ENDS = frozenset("\n\f\u2028\u2029")
#: What Azure Pipelines takes for a command wherever it stands in a line, and GitHub in old workflows.
_COMMAND = re.compile(r"##(?=(?:vso)?\[)", re.IGNORECASE)
#: What GitHub takes for a command where a line begins with it: it skips white space.
_WORKFLOW = re.compile(r"\A(\s*):(?=:)")


class NoStandardInput(Exception):
    """There is no standard input; the message is one sentence."""


def open_standard_input() -> TextIO:
    """Standard input, which whoever has started this may have closed."""
    if sys.stdin is None:
        raise NoStandardInput("standard input is closed, so nothing can be read from it")
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return sys.stdin


class SourceLines:
    """The lines of source files and of cells of notebooks, for frames; a file that cannot be read has none."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = dict(texts or {})
        self._lines_by_cell: dict[str, dict[int | None, list[str]]] = {}
        self._notebook_lines: dict[str, dict[tuple[int, int], tuple[int, int, int]]] = {}

    def _load_text(self, path: str) -> str:
        return self._texts[path] if path in self._texts else _read_text(path)

    def find_line(self, path: str, number: int, cell: int | None = None) -> str | None:
        parts = self._lines_by_cell.get(path)
        if parts is None:
            parts = self._lines_by_cell[path] = _split_cells(path, self._load_text(path))
        lines = parts.get(cell, [])
        return lines[number - 1] if 0 < number <= len(lines) else None

    def find_line_at(self, site: Site, number: int) -> str | None:
        """A line of the file or cell in which a place is."""
        return self.find_line(site.path, number, site.cell)

    def locate_in_notebook(self, site: Site, number: int) -> tuple[int, int, int]:
        """Where the JSON of a notebook holds a line of a cell: its own line, from 1, and its columns, from 0."""
        known = self._notebook_lines.get(site.path)
        if known is None:
            from ..static.fixes import notebook_json

            known = self._notebook_lines[site.path] = notebook_json.find_line_locations(self._load_text(site.path))
        return known.get((site.cell or 0, number), (1, 0, 0))


def _split_cells(path: str, text: str) -> dict[int | None, list[str]]:
    """The lines of a file; of a notebook, those of each cell."""
    if path.lower().endswith(".ipynb"):
        from ..static.sources import code_blocks

        return {number: _split_lines(source) for number, source in code_blocks.notebook_cells(text).items()}
    return {None: _split_lines(text)}


def _read_text(path: str) -> str:
    from ..static.sources import code_blocks, source_files

    try:
        data = code_blocks.load_source(path, SHOWN)
    except source_files.Unreadable:
        return ""
    try:
        return code_blocks.decode_source(path, data)
    except source_files.Unreadable:
        return data.decode("utf-8", "replace")


def _split_lines(text: str) -> list[str]:
    if len(text) > SHOWN:
        return []
    # Not splitlines: a form feed or a line separator inside a line does not end it in Python.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


class _OutputSettings:
    """How this process speaks, as its command line says: when in colour, and whether warnings are said at all."""

    def __init__(self) -> None:
        self.color_mode = "auto"
        self.is_silent = False


_manner = _OutputSettings()


def configure_output(*, color_mode: str, is_silent: bool) -> None:
    """Settle how everything is said from now on: in colour ``auto``, ``always`` or ``never``, with warnings or not."""
    _manner.color_mode = color_mode
    _manner.is_silent = is_silent


def write_warning(sentence: str) -> None:
    """Say on standard error what is no finding, and no failure either."""
    if not _manner.is_silent:
        sys.stderr.write(f"amp-check: warning: {make_single_line(sentence)}\n")


def is_color_wanted(stream: TextIO) -> bool:
    """Whether a stream gets colour: as the command line says, or NO_COLOR, FORCE_COLOR, or a terminal that can."""
    if _manner.color_mode != "auto":
        return _manner.color_mode == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if str(getattr(stream, "name", "<")).startswith("<") and os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        # It speaks of what people look at, not of a file that was asked for by its name.
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def write_lines(lines: Iterable[Line], stream: TextIO, use_color: bool) -> None:
    """Writes lines to a stream; rich is only imported where there is colour."""
    if not use_color:
        stream.writelines(render_plain(lines))
        return
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.text import Text

    # The text must stay what a pipe gets: nothing wrapped, highlighted by guess or read as markup.
    # Colour was decided on: a terminal that calls itself dumb does not decide once more.
    raw: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
    console = Console(file=stream, force_terminal=True, color_system="standard", **raw)
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    for line in lines:
        text = Text()
        for piece, style in _escape_line_start(line):
            if style == "source":
                code = syntax.highlight(piece)
                code.rstrip()
                # Colour must not change the text, whatever the highlighter makes of a part of a statement.
                if code.plain == piece:
                    text.append_text(code)
                else:
                    text.append(piece)
            else:
                text.append(piece, style=STYLES[style])
        console.print(text)


def render_colored(lines: Iterable[Line], *, use_color: bool) -> list[str]:
    """Each line as a terminal gets it, without its end."""
    from io import StringIO

    shown = StringIO()
    write_lines(lines, shown, use_color)
    return shown.getvalue().splitlines()


def render_plain(lines: Iterable[Line]) -> list[str]:
    return ["".join(piece for piece, _ in _escape_line_start(line)) + "\n" for line in lines]


def _escape_line_start(line: Line) -> Line:
    """Return a line that GitHub takes for no command: what it begins with may be the name of a file."""
    for number, (piece, style) in enumerate(line):
        if piece and not piece.isspace():
            return [*line[:number], (_WORKFLOW.sub(r"\1\\x3a", piece), style), *line[number + 1 :]]
    return line


def format_headline(finding: Finding, *, unsafe: bool = False, message: str = "") -> Line:
    """A finding in one line, marked where a fix can be made: a safe one, or any where ``unsafe`` ones may be, too.

    ``message`` is what it says of several of them.
    """
    fixable = finding.fix is not None and (unsafe or finding.fix.applicability == SAFE)
    return [
        (_make_printable(finding.filename), "path"),
        (f":cell {finding.cell}" if finding.cell is not None else "", ""),
        (f":{finding.site.line}:{finding.site.column + 1}: ", "dim"),
        (finding.code, "code"),
        (" [*]" if fixable else "", "command"),
        (" [", ""),
        (finding.severity, finding.severity),
        (f"] {finding.name}: {_make_printable(message or finding.message)}", ""),
    ]


def format_concise(findings: Iterable[Finding], *, unsafe: bool = False) -> list[Line]:
    return [
        format_headline(
            _choose_representative(group), unsafe=unsafe, message=_format_group_message(group) if len(group) > 1 else ""
        )
        for group in _group_findings(findings)
    ]


def _group_findings(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings one by one, and those of one file together of which their rule tells in one sentence."""
    from ..protocol.rules import RULES

    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        together = finding.code in RULES and RULES[finding.code].grouped_message
        groups.setdefault((finding.filename, finding.code) if together else number, []).append(finding)
    return list(groups.values())


def _choose_representative(group: Sequence[Finding]) -> Finding:
    """The finding that stands for several: the first that can be put right, where there is one."""
    return next((finding for finding in group if finding.fix is not None), group[0])


def _format_group_message(group: Sequence[Finding]) -> str:
    """What is said of several findings of one rule in one file, with their lines."""
    from ..protocol.rules import RULES

    shown = [f"cell {f.cell} line {f.line}" if f.cell is not None else str(f.line) for f in group[:PLACES]]
    more = f" and {len(group) - PLACES:,} more" if len(group) > PLACES else ""
    lines = "" if group[0].cell is not None else "lines "
    places = f"{len(group):,} places ({lines}{', '.join(shown)}{more})"
    return RULES[group[0].code].grouped_message.format(places=places)


def format_full(findings: Iterable[Finding], sources: SourceLines, *, unsafe: bool = False) -> list[Line]:
    lines: list[Line] = []
    for group in _group_findings(findings):
        first = _choose_representative(group)
        if len(group) == 1:
            lines += [*format_finding(first, sources, unsafe=unsafe), []]
        else:
            lines += [
                format_headline(first, unsafe=unsafe, message=_format_group_message(group)),
                *_format_help(first),
                [],
            ]
    return lines


def format_grouped(findings: Iterable[Finding], *, unsafe: bool = False) -> list[Line]:
    """The findings of each file below its name, each in one line."""
    by_file: dict[str, list[Line]] = {}
    for group in _group_findings(findings):
        # The headline begins with the path, which is said once.
        line = format_headline(
            _choose_representative(group), unsafe=unsafe, message=_format_group_message(group) if len(group) > 1 else ""
        )
        place = "".join(piece for piece, _ in line[1:3]).strip(": ")
        by_file.setdefault(_choose_representative(group).filename, []).append(
            [("  ", ""), (place, "dim"), (": ", "dim"), *line[3:]]
        )
    lines: list[Line] = []
    for path, found in by_file.items():
        lines += [[(_make_printable(path), "path"), (":", "")], *found, []]
    return lines


def finding_data(finding: Finding, sources: SourceLines) -> dict[str, Any]:
    """What is shown of a finding besides its headline, as plain data: everything that shows one in full takes it here.

    "frame" is the code frame as lines; "some" says on which paths alone it is made; "lead" says what "events" are, each
    with its "place", where it was "called" from, what it did as "text", and its line as "source"; "help" are the lines
    of its fix and of what says more.
    """
    some, lead, events = "", "", []
    if not finding.certain:
        if finding.witness and not finding.condition:
            lead = ", on some paths, such as this one"
        else:
            some = "only on some paths" + (f", {_make_printable(finding.condition)}" if finding.condition else "")
    if finding.witness:
        lead = f"trace{lead}"
        before = ""
        for step in finding.witness:
            called = _describe_caller(step.site)
            # Most paths stay in one function, whose call is said once.
            events.append(
                _make_event_data(step.site, sources, "" if called == before else called, _make_printable(step.text))
            )
            before = called
    elif finding.site.caller is not None:
        lead = "called from"
        events = [_make_event_data(site, sources) for site in finding.site.list_frames()[:-1]]
    return {
        "frame": format_frame(finding.site, sources),
        "some": some,
        "lead": lead,
        "events": events,
        "help": _format_help(finding),
    }


def _make_event_data(site: Site, sources: SourceLines, called: str = "", text: str = "") -> dict[str, str]:
    return {
        "place": _make_printable(site.location_text),
        "called": called,
        "text": text,
        "source": _quote_source(site, sources),
    }


def format_finding(finding: Finding, sources: SourceLines, *, unsafe: bool = False) -> list[Line]:
    """A finding with its code frame, the events that lead to it, its fix, and the command that says more."""
    parts = finding_data(finding, sources)
    lines = [format_headline(finding, unsafe=unsafe), *parts["frame"]]
    if parts["some"]:
        words = "only on some paths"
        lines.append([(f"  {words}", "dim"), (parts["some"].removeprefix(words), "")])
    if parts["lead"]:
        lines.append([(f"  {parts['lead']}:", "dim")])
    for number, event in enumerate(parts["events"], 1):
        numbered = f"    {number}. " if event["text"] else "    "
        text = f": {event['text']}" if event["text"] else ""
        lines.append([(numbered, "dim"), (event["place"], ""), (event["called"], "dim"), (text, "")])
        if event["source"]:
            lines.append([("         ", ""), (event["source"], "source")])
    return [*lines, *parts["help"]]


def _format_help(finding: Finding) -> list[Line]:
    """The fix of a finding, and the command that says more."""
    lines: list[Line] = []
    if finding.fix is not None:
        flags = f" ({FLAGS[finding.fix.applicability]})"
        lines.append([("  fix: ", "dim"), (_make_printable(finding.fix.message), ""), (flags, "dim")])
    return [*lines, [("  help: ", "dim"), (f"amp-check explain {finding.code}", "command")]]


def _describe_caller(site: Site) -> str:
    caller = site.caller
    return f" (called from {_make_printable(caller.location_text)})" if caller is not None else ""


def _quote_source(site: Site, sources: SourceLines) -> str:
    text = sources.find_line_at(site, site.line)
    return "" if text is None else _cut_line(_make_printable(text.replace("\t", TAB)).strip(), 0)[0]


def format_frame(site: Site, sources: SourceLines) -> list[Line]:
    """The blamed lines with marks under the blamed part, and the lines around them."""
    if sources.find_line_at(site, site.line) is None:
        return []
    last = min(max(site.end_line, site.line), site.line + TALL - 1)
    gutter = len(str(last + AROUND))
    bar: Line = [(" " * gutter + " |", "dim")]
    lines: list[Line] = [bar]
    for number in range(site.line - AROUND, last + AROUND + 1):
        raw = sources.find_line_at(site, number)
        if raw is None:
            continue
        blamed = site.line <= number <= last
        if not blamed and not raw.strip():
            continue
        start = site.column if number == site.line else len(raw) - len(raw.lstrip())
        end = site.end_column if number == site.end_line else len(raw.rstrip())
        start = min(start, len(raw))
        shown_start, shown = _count_columns(raw[:start]), _make_printable(raw.replace("\t", TAB).rstrip())
        shown_end = max(_count_columns(raw[:end]), shown_start + 1)
        if len(shown) > WIDE:
            # Columns of a cut line are counted in characters: only generated code is this long.
            offset = len(_make_printable(raw[:start].replace("\t", TAB))) if blamed else 0
            shown, shown_start = _cut_line(shown, offset)
            shown_end = min(shown_start + max(end - start, 1), len(shown))
        code: Line = [(f" {shown}", "source")] if shown else []
        lines.append([(f"{number:>{gutter}} |", "dim"), *code])
        if blamed:
            marks = " " * (shown_start + 1) + "^" * max(shown_end - shown_start, 1)
            lines.append([(" " * gutter + " |", "dim"), (marks, "mark")])
    if site.end_line > last:
        lines.append([(" " * gutter + " | ...", "dim")])
    lines.append(bar)
    return lines


def _cut_line(text: str, offset: int) -> tuple[str, int]:
    """At most WIDE characters of a line, the one at ``offset`` among them, and where that one stands then."""
    if len(text) <= WIDE:
        return text, offset
    first = max(0, min(offset - WIDE // 4, len(text) - WIDE))
    before, after = "..." if first else "", "..." if first + WIDE < len(text) else ""
    return before + text[first : first + WIDE] + after, offset - first + len(before)


def _count_columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    text = text.replace("\t", TAB)
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in text)


def _make_printable(text: str) -> str:
    """The text with control characters replaced: source code must not move the cursor of a terminal."""
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def make_visible(text: str) -> str:
    """The text with what moves a terminal's cursor, or turns the order of characters around, spelled out.

    So is what a host of CI takes for a command. Everything else stays, white space as well, so that a diff can still be
    applied.
    """
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(_escape_character(c) if is_hidden(c) else c for c in text)


def escape_command(text: str) -> str:
    """Return a text in which hosts of CI find no command of theirs, wherever it begins."""
    return _COMMAND.sub(r"#\\x23", text) if "##" in text else text


def make_single_line(text: str) -> str:
    """Return a text as a line of its own: line ends are spelled out too, and no host takes it for a command."""
    text = "".join(_escape_character(c) if c in _ENDS else c for c in make_visible(text))
    return _escape_line_start([(text, "")])[0][0]


def is_hidden(character: str) -> bool:
    """Whether a character is not shown, and does something to what is."""
    control = character < " " or "\x7f" <= character <= "\x9f"
    return character in _TURNING or (control and character not in "\t\n\f")


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def relative_path(path: str) -> str:
    """The path as seen from the working folder, where it lies there."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def count_severities(severities: Iterable[str]) -> dict[str, int]:
    """How often each severity occurs, the worst first, none left out."""
    found = dict.fromkeys(SEVERITIES, 0)
    for severity in severities:
        found[severity] += 1
    return found


def summarize_counts(counts: Mapping[str, int], files: int) -> str:
    """One sentence: how much was found, and in how many files."""
    where = f"in {files:,} file" + ("" if files == 1 else "s")
    parts = [
        f"{number:,} {severity}" + ("" if number == 1 or severity == "info" else "s")
        for severity, number in counts.items()
        if number
    ]
    return f"Found {', '.join(parts)} {where}." if parts else f"No AMP mistakes found {where}."


def count_by_rule(triples: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """One record for each rule among (code, name, severity) of findings, the most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for code, name, severity in triples:
        record = found.setdefault(code, {"code": code, "name": name, "severity": severity, "count": 0})
        record["count"] += 1
        record["severity"] = min(record["severity"], severity, key=SEVERITIES.index)
    return sorted(found.values(), key=lambda record: (-record["count"], record["code"]))


def format_statistics(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    number = max((len(str(record["count"])) for record in records), default=0)
    severity = max((len(record["severity"]) for record in records), default=0)
    return [
        [
            (f"{record['count']:>{number}}  ", "code"),
            (f"{record['code']}  ", "code"),
            ("[", ""),
            (record["severity"], record["severity"]),
            ("]".ljust(severity - len(record["severity"]) + 3) + record["name"], ""),
        ]
        for record in records
    ]


def format_passed_over(paths: Mapping[str, list[str]]) -> list[Line]:
    """How many paths were passed over, and which, where these are few: most files of a project train nothing."""
    width = max((len(f"{len(found):,}") for found in paths.values()), default=0)
    return [
        [
            (f"{len(found):>{width},}  ", "dim"),
            (f"passed over, {reason}", ""),
            (f": {_make_printable(', '.join(found))}" if len(found) <= PLACES else "", "dim"),
        ]
        for reason, found in paths.items()
    ]


def format_rules(rules: Iterable[Rule]) -> list[Line]:
    rows = list(rules)
    name = max((len(rule.name) for rule in rows), default=0)
    severity = max(map(len, SEVERITIES))
    return [
        [
            (rule.code, "code"),
            (f"  {rule.name:<{name}}  ", ""),
            (rule.severity, rule.severity),
            (" " * (severity - len(rule.severity) + 2), ""),
            (rule.summary, ""),
            ("" if rule.on_by_default else " (off unless selected)", "dim"),
            (f" [{FLAGS[rule.applicability]}]" if rule.applicability else "", "command"),
        ]
        for rule in rows
    ]


#: Sentences of the explanation of a rule that are shown where there is little room.
_SHORT = 3


def rule_summary_markdown(rule: Rule, address: str) -> str:
    """Return Markdown that fits a pop-up: what a rule finds, why that is wrong, the fix, and where its page is."""
    import re

    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", rule.rationale.split("\n\n")[0].replace("\n", " ").strip())
    more = f"[All about it]({address})" if address else f"All about it: `amp-check explain {rule.code}`"
    parts = [
        f"**{rule.code} {rule.name}** ({rule.severity})",
        rule.summary,
        " ".join(sentences[:_SHORT]),
        f"**Fix:** {rule.fix_advice.strip()}",
        more,
    ]
    return "\n\n".join(parts) + "\n"


def rule_markdown(rule: Rule) -> str:
    """A rule's own text, all of it."""
    off = "" if rule.on_by_default else f" It is off unless selected: `--select {rule.code}`."
    reader = {"static": " Found in source only.", "runtime": " Found in runs only."}.get(rule.detected_by, "")
    parts = [
        f"# {rule.code} {rule.name}",
        f"{rule.summary}\n\nSeverity: {rule.severity}.{reader}{off}",
        "## Why it is wrong",
        rule.rationale.strip(),
        "## Measured harm",
        rule.harm.strip(),
        *_list_measured_harm(rule.code),
        "## Bad",
        _fence_code(rule.bad_example),
        "## Good",
        _fence_code(rule.good_example),
        "## Fix",
        rule.fix_advice.strip(),
    ]
    if rule.applicability:
        parts.append(
            f"`amp-check check {FLAGS[rule.applicability]}` does so where it is certain what is right. "
            f"{_SAFETY[rule.applicability]}"
        )
    parts += [
        "## How to silence it",
        f"One line: `# amp: ignore[{rule.code}] the reason`. A project, in pyproject.toml:",
        f'```toml\n[tool.amp-check]\nignore = ["{rule.code}"]\n```',
        "## Sources",
        "\n".join(f"- {source}" for source in rule.sources),
    ]
    if rule.negative_examples:
        parts.append("## Correct code that is not reported")
        for reason, code in rule.negative_examples:
            parts += [f"- {reason.strip()}", _fence_code(code)]
    return "\n\n".join(parts) + "\n"


def _list_measured_harm(code: str) -> list[str]:
    """What the mistake did where it was run for these pages, or why it was not."""
    from ..protocol.measured_harm import MEASURED, NOT_HERE, SHOWN, TORCH

    run = f"on the CPU with torch {TORCH}"
    said: list[str] = []
    if code in SHOWN:
        said.append(f"Measured on a demonstration program with and without the mistake, {run}: {SHOWN[code]}.")
    if code in MEASURED:
        said.append(f"The bad example below beside the good one, {run}: {MEASURED[code]}.")
    if code in NOT_HERE:
        said.append(f"Not measured: {NOT_HERE[code]}.")
    return said


_SAFETY = {
    SAFE: "The fix is safe: it restores what torch documents and changes nothing else.",
    UNSAFE: "The fix is opt-in: it changes the steps, or what stops a run, for which a training may have been tuned.",
}


def _fence_code(code: str) -> str:
    return f"```python\n{code.strip(chr(10))}\n```"


def write_markdown(text: str, stream: TextIO, use_color: bool) -> None:
    """Renders Markdown on a terminal; elsewhere it is written as it is."""
    if not use_color:
        stream.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    width = None if stream.isatty() else 100
    Console(file=stream, force_terminal=True, width=width).print(Markdown(text, code_theme="ansi_dark"))


def make_progress(stream: TextIO, large: int = 200) -> tuple[Callable[[int, int], None] | None, Callable[[], None]]:
    """What shows how many files were read, on a terminal and for a large tree; and what wipes it away."""
    if _manner.is_silent or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None, _do_nothing
    bars: list[Any] = []

    def show_progress(done: int, total: int) -> None:
        if not bars and total >= large:
            bars.append(_make_bar(stream))
            bars[0].start()
            bars[0].add_task("checking", total=None)
        if bars:
            bars[0].update(bars[0].task_ids[0], completed=done, total=total)

    def clear_progress() -> None:
        for bar in bars:
            bar.stop()

    return show_progress, clear_progress


def _make_bar(stream: TextIO) -> Any:
    """A bar that leaves nothing behind."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream, no_color=not is_color_wanted(stream)), transient=True)


def _do_nothing() -> None:
    """Wipes away nothing: nothing was shown."""


def configure_streams() -> None:
    """Makes standard output and error take every character of a path or a source line."""
    # None where the caller has closed them: what is written then leads nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
