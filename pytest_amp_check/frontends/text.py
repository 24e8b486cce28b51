"""Findings, rules and counts as text, in color on a terminal and plain in a pipe."""

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

#: A line of text parts, each with the name of a style: a key of :data:`STYLES`, or ``source``.
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
#: Flags that apply a fix, by applicability.
FLAGS = {SAFE: "--fix", UNSAFE: "--fix --unsafe-fixes"}
#: Number of source lines shown before and after the cause.
AROUND = 1
#: Maximum number of locations listed for grouped findings.
PLACES = 12
#: Maximum number of lines shown of one range, and maximum number of characters of one line.
TALL, WIDE = 5, 160
TAB = "    "
#: Number of characters above which a file or cell is not split into lines to show one line.
SHOWN = 10_000_000
#: Characters that change the display order of other characters (Unicode's Bidi_Control).
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


#: Line ends, beside the control characters, in a single-line text.
_ENDS = frozenset("\n\f\u2028\u2029")
#: Command prefix of Azure Pipelines anywhere in a line, and of old GitHub workflows.
_COMMAND = re.compile(r"##(?=(?:vso)?\[)", re.IGNORECASE)
#: Command prefix of GitHub at the start of a line, after optional white space.
_WORKFLOW = re.compile(r"\A(\s*):(?=:)")


class NoStandardInput(Exception):
    """Error for missing standard input; the message is one sentence."""


def open_standard_input() -> TextIO:
    """Return standard input. Raise :class:`NoStandardInput` if the calling process closed standard input."""
    if sys.stdin is None:
        raise NoStandardInput("standard input is closed, so nothing can be read from it")
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return sys.stdin


class SourceLines:
    """Lines of source files and notebook cells, for code frames. An unreadable file has no lines."""

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
        """Return a line of the file or cell of a location, or None."""
        return self.find_line(site.path, number, site.cell)

    def locate_in_notebook(self, site: Site, number: int) -> tuple[int, int, int]:
        """Return the position of a cell line in the notebook's JSON: line from 1, start and end column from 0."""
        known = self._notebook_lines.get(site.path)
        if known is None:
            from ..static.fixes import notebook_json

            known = self._notebook_lines[site.path] = notebook_json.find_line_locations(self._load_text(site.path))
        return known.get((site.cell or 0, number), (1, 0, 0))


def _split_cells(path: str, text: str) -> dict[int | None, list[str]]:
    """Return the lines of a file, or of each cell of a notebook."""
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
    # No splitlines: a form feed or line separator inside a line does not end the line in Python.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


class _OutputSettings:
    """Output settings of this process from the command line: color mode, and suppression of warnings."""

    def __init__(self) -> None:
        self.color_mode = "auto"
        self.is_silent = False


_manner = _OutputSettings()


def configure_output(*, color_mode: str, is_silent: bool) -> None:
    """Set the color mode (``auto``, ``always`` or ``never``) and the suppression of warnings."""
    _manner.color_mode = color_mode
    _manner.is_silent = is_silent


def write_warning(sentence: str) -> None:
    """Write a warning to standard error, unless silent."""
    if not _manner.is_silent:
        sys.stderr.write(f"amp-check: warning: {make_single_line(sentence)}\n")


def is_color_wanted(stream: TextIO) -> bool:
    """Return True if a stream gets color: by command line, NO_COLOR, FORCE_COLOR, or a capable terminal."""
    if _manner.color_mode != "auto":
        return _manner.color_mode == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if str(getattr(stream, "name", "<")).startswith("<") and os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        # FORCE_COLOR applies to terminals and pipes, not to a named output file.
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def write_lines(lines: Iterable[Line], stream: TextIO, use_color: bool) -> None:
    """Write lines to a stream. rich is only imported for color."""
    if not use_color:
        stream.writelines(render_plain(lines))
        return
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.text import Text

    # The text must be the same as in a pipe: no wrapping, no guessed highlighting, no markup. Color is already decided,
    # so a terminal named dumb must not decide again.
    raw: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
    console = Console(file=stream, force_terminal=True, color_system="standard", **raw)
    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    for line in lines:
        text = Text()
        for piece, style in _escape_line_start(line):
            if style == "source":
                code = syntax.highlight(piece)
                code.rstrip()
                # Color must not change the text, even if the highlighter changes part of a statement.
                if code.plain == piece:
                    text.append_text(code)
                else:
                    text.append(piece)
            else:
                text.append(piece, style=STYLES[style])
        console.print(text)


def render_colored(lines: Iterable[Line], *, use_color: bool) -> list[str]:
    """Return each line as sent to a terminal, without the line end."""
    from io import StringIO

    shown = StringIO()
    write_lines(lines, shown, use_color)
    return shown.getvalue().splitlines()


def render_plain(lines: Iterable[Line]) -> list[str]:
    return ["".join(piece for piece, _ in _escape_line_start(line)) + "\n" for line in lines]


def _escape_line_start(line: Line) -> Line:
    """Return a line that GitHub does not treat as a command. The line may begin with a file name."""
    for number, (piece, style) in enumerate(line):
        if piece and not piece.isspace():
            return [*line[:number], (_WORKFLOW.sub(r"\1\\x3a", piece), style), *line[number + 1 :]]
    return line


def format_headline(finding: Finding, *, unsafe: bool = False, message: str = "") -> Line:
    """Return a finding as one line, marked if a fix is available: a safe fix, or with ``unsafe`` any fix.

    ``message`` replaces the message for grouped findings.
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
    """Group the findings of one file whose rule has a grouped message; other findings stay separate."""
    from ..protocol.rules import RULES

    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        together = finding.code in RULES and RULES[finding.code].grouped_message
        groups.setdefault((finding.filename, finding.code) if together else number, []).append(finding)
    return list(groups.values())


def _choose_representative(group: Sequence[Finding]) -> Finding:
    """Return the first finding with a fix, else the first finding."""
    return next((finding for finding in group if finding.fix is not None), group[0])


def _format_group_message(group: Sequence[Finding]) -> str:
    """Return the message for several findings of one rule in one file, with the lines."""
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
    """Return the findings of each file below the file name, each in one line."""
    by_file: dict[str, list[Line]] = {}
    for group in _group_findings(findings):
        # The headline begins with the path, which is shown once.
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
    """Return the display data of a finding beside the headline, as plain data for all detailed formats.

    "frame" is the code frame as lines. "some" names the affected paths. "lead" introduces "events", each with "place",
    the call in "called", the description in "text", and the line in "source". "help" are the lines about the fix and
    further information.
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
            # Most paths stay in one function, whose call is shown once.
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
    """Return a finding with the code frame, the trace, the fix, and the command for further information."""
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
    """Return the lines about the fix of a finding, and about further information."""
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
    """Return the lines of the cause, with marks below the code, and the lines around."""
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
    """Return at most WIDE characters of a line around ``offset``, and the new offset."""
    if len(text) <= WIDE:
        return text, offset
    first = max(0, min(offset - WIDE // 4, len(text) - WIDE))
    before, after = "..." if first else "", "..." if first + WIDE < len(text) else ""
    return before + text[first : first + WIDE] + after, offset - first + len(before)


def _count_columns(text: str) -> int:
    """Return the number of terminal columns of a text."""
    text = text.replace("\t", TAB)
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "FW" else 1 for c in text)


def _make_printable(text: str) -> str:
    """Return a text with control characters replaced: source code must not move the cursor of a terminal."""
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def make_visible(text: str) -> str:
    """Return a text with visible escapes for characters that move the cursor or change the display order.

    Commands of CI hosts are also escaped. Other characters stay, including white space, so that a diff can still be
    applied.
    """
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(_escape_character(c) if is_hidden(c) else c for c in text)


def escape_command(text: str) -> str:
    """Return a text that contains no command of a CI host at any position."""
    return _COMMAND.sub(r"#\\x23", text) if "##" in text else text


def make_single_line(text: str) -> str:
    """Return a text as a single line: line ends are escaped, and no host treats the line as a command."""
    text = "".join(_escape_character(c) if c in _ENDS else c for c in make_visible(text))
    return _escape_line_start([(text, "")])[0][0]


def is_hidden(character: str) -> bool:
    """Return True if a character is invisible and affects the display of other characters."""
    control = character < " " or "\x7f" <= character <= "\x9f"
    return character in _TURNING or (control and character not in "\t\n\f")


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"


def relative_path(path: str) -> str:
    """Return a path relative to the working folder, if inside."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def count_severities(severities: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each severity, most severe first, including zero."""
    found = dict.fromkeys(SEVERITIES, 0)
    for severity in severities:
        found[severity] += 1
    return found


def summarize_counts(counts: Mapping[str, int], files: int) -> str:
    """Return one sentence with the numbers of findings and files."""
    where = f"in {files:,} file" + ("" if files == 1 else "s")
    parts = [
        f"{number:,} {severity}" + ("" if number == 1 or severity == "info" else "s")
        for severity, number in counts.items()
        if number
    ]
    return f"Found {', '.join(parts)} {where}." if parts else f"No AMP mistakes found {where}."


def count_by_rule(triples: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return one record for each rule in (code, name, severity) triples, most frequent first."""
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
    """Return lines with the numbers of skipped paths, and the paths if few. Most files of a project train nothing."""
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


#: Maximum number of sentences in the short explanation of a rule.
_SHORT = 3


def rule_summary_markdown(rule: Rule, address: str) -> str:
    """Return Markdown for a pop-up: summary and rationale of a rule, the fix, and the link to the page."""
    more = f"[All about it]({address})" if address else f"All about it: `amp-check explain {rule.code}`"
    parts = [
        f"**{rule.code} {rule.name}** ({rule.severity})",
        rule.summary,
        _short_reason(rule),
        f"**Fix:** {rule.fix_advice.strip()}",
        more,
    ]
    return "\n\n".join(parts) + "\n"


def rule_markdown(rule: Rule, correct_programs: Sequence[tuple[str, str]] = ()) -> str:
    """Return the full text of a rule as Markdown."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"{rule.summary}\n\n{_describe_use(rule)}",
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
            f"`amp-check check {FLAGS[rule.applicability]}` applies it if the correct code is unambiguous. "
            f"{_SAFETY[rule.applicability]}"
        )
    parts += [
        "## Suppression",
        f"For one line: `# amp: ignore[{rule.code}] the reason`. For a project, in pyproject.toml:",
        f'```toml\n[tool.amp-check]\nignore = ["{rule.code}"]\n```',
        "## Sources",
        "\n".join(f"- {source}" for source in rule.sources),
    ]
    if correct_programs:
        parts.append("## Correct code that is not reported")
        for reason, code in correct_programs:
            parts += [f"- {reason.strip()}", _fence_code(code)]
    return "\n\n".join(parts) + "\n"


#: Width in characters of a short page.
_PAGE_WIDTH = 100
#: Unchanged lines that a short page shows around a changed line.
_CONTEXT = 2


def short_rule_markdown(rule: Rule) -> str:
    """Return what fits on a screen: the mistake, the reason, the change from the bad to the good example, the fix."""
    import textwrap

    parts = [
        f"# {rule.code} {rule.name}",
        rule.summary,
        _describe_use(rule),
        textwrap.fill(_short_reason(rule), _PAGE_WIDTH, break_long_words=False, break_on_hyphens=False),
        "## Change",
        _fence_code(_example_change(rule), "diff"),
        "## Fix",
        rule.fix_advice.strip().partition("\n\n")[0],
        f"Measured harm, whole examples, sources: `amp-check explain {rule.code} --all`",
    ]
    return "\n\n".join(parts) + "\n"


def _describe_use(rule: Rule) -> str:
    """Return the severity of a rule, and where it applies if that is not everywhere."""
    off = "" if rule.on_by_default else f" It is off unless selected: `--select {rule.code}`."
    reader = {"static": " Found in source only.", "runtime": " Found in runs only."}.get(rule.detected_by, "")
    return f"Severity: {rule.severity}.{reader}{off}"


def _short_reason(rule: Rule) -> str:
    """Return the first sentences of the reason."""
    import re

    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", rule.rationale.split("\n\n")[0].replace("\n", " ").strip())
    return " ".join(sentences[:_SHORT])


def _example_change(rule: Rule) -> str:
    """Return the difference between the bad and the good example of a rule."""
    import difflib

    mark = f"  # {rule.code}"
    bad = [line.replace(mark, "") for line in rule.bad_example.splitlines()]
    changed = difflib.unified_diff(bad, rule.good_example.splitlines(), n=_CONTEXT, lineterm="")
    return "\n".join("..." if line.startswith("@@") else line for line in list(changed)[3:]) + "\n"


def _list_measured_harm(code: str) -> list[str]:
    """Return the measured effects of a rule's mistake, or the reason for a missing measurement."""
    from ..protocol.measured_harm import MEASURED, NOT_HERE, SHOWN, TORCH

    run = f"on the CPU with torch {TORCH}"
    said: list[str] = []
    if code in SHOWN:
        said.append(_list_figures(f"A demonstration program with the mistake, and without it, {run}", SHOWN[code]))
    if code in MEASURED:
        said.append(_list_figures(f"The bad example below, compared with the good one, {run}", MEASURED[code]))
    if code in NOT_HERE:
        said.append(f"Not measured: {NOT_HERE[code]}.")
    return said


def _list_figures(introduction: str, figures: str) -> str:
    """Return measured figures, which ``;`` separates, as a list below an introduction."""
    items = "\n".join(f"- {figure}" for figure in figures.split("; "))
    return f"{introduction}:\n\n{items}"


_SAFETY = {
    SAFE: "The fix is safe: it restores documented usage and changes nothing else.",
    UNSAFE: "The fix is opt-in: it changes training results, which hyperparameters may have been tuned for.",
}


def _fence_code(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.strip(chr(10))}\n```"


def write_markdown(text: str, stream: TextIO, use_color: bool) -> None:
    """Render Markdown on a terminal, or write plain Markdown elsewhere."""
    if not use_color:
        stream.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    width = None if stream.isatty() else 100
    Console(file=stream, force_terminal=True, width=width).print(Markdown(text, code_theme="ansi_dark"))


def make_progress(stream: TextIO, large: int = 200) -> tuple[Callable[[int, int], None] | None, Callable[[], None]]:
    """Return a function that shows the number of analyzed files, and a function that removes the display.

    The display is shown only on a terminal and for a large tree; the first function may be None.
    """
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
    """Return a progress bar that is removed at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream, no_color=not is_color_wanted(stream)), transient=True)


def _do_nothing() -> None:
    """Do nothing, because no progress was shown."""


def configure_streams() -> None:
    """Let standard output and error accept every character of a path or a source line."""
    # The streams are None if the calling process closed them; output is then discarded.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
