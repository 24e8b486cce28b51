"""Fixes of the command: written to files, to standard output, or as a diff."""

from __future__ import annotations

import sys

from . import output, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..protocol.finding import Finding
    from ..static.fixes.fix_files import FixResult
    from ..static.project.project import Project
    from ..static.settings import Settings


def offer_fixes(
    findings: Sequence[Finding],
    data: Mapping[str, bytes],
    tree: Project,
    torch: tuple[int, int] | None,
    writes: Callable[[str], bool],
    *,
    edits: bool,
) -> None:
    """Attach fixes to findings of rules with a fix; with ``edits``, compute the edits, too.

    ``writes`` returns True if fixes of a file may be written. Other files get no fixes.
    """
    mendable = [finding for finding in findings if _find_applicability(finding)]
    if mendable:
        from ..static.fixes import fix_files

        written = {path: writes(path) for path in {finding.filename for finding in mendable}}
        offered = [finding for finding in mendable if written[finding.filename]]
        fix_files.offer_fixes(offered, data, tree.members, torch)
        if edits:
            for sentence in fix_files.write_edits(offered):
                output.write_warning(sentence)


def compute_fixes(
    findings: Sequence[Finding], data: Mapping[str, bytes], settings: Settings, project: Project, *, unsafe: bool
) -> list[FixResult]:
    """Return the fixed version of each file with a fixable finding, without writing. Warn about refused fixes."""
    from ..protocol.fix import APPLICABILITIES, SAFE
    from ..static.fixes import fix_files
    from ..static.fixes.edited_file import EditedFile
    from ..static.project.project_context import ProjectContext
    from ..static.sources import source_files

    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.elsewhere is None:
            by_path.setdefault(finding.filename, []).append(finding)
    outcomes: list[FixResult] = []
    wanted = APPLICABILITIES if unsafe else (SAFE,)
    todo = {path: found for path, found in by_path.items() if any(_find_applicability(f) in wanted for f in found)}
    surroundings = ProjectContext([path for path in todo if path not in data], project.members, settings.torch)
    for path, found in todo.items():
        try:
            source = data[path] if path in data else source_files.load_bytes(path)
            document = EditedFile.from_bytes(path, source, surroundings)
        except source_files.Unreadable:
            # The unreadable file is a separate finding.
            continue
        outcome = fix_files.fix_file(document, found, settings, project, unsafe=unsafe)
        for sentence in outcome.refusals:
            output.write_warning(sentence)
        if outcome.has_changed:
            outcomes.append(outcome)
    return outcomes


def write_fixes(
    outcomes: Sequence[FixResult], before: Sequence[Finding], tree: Project, check: Callable[[], list[Finding]]
) -> tuple[list[str], list[Finding], list[FixResult]]:
    """Write the files, check again, and revert files whose fixes cause findings elsewhere.

    Return sentences about failures, the current findings, and the applied results.
    """
    from ..static.fixes import fix_files

    wrong, made = _save_files(outcomes)
    after = check()
    harmful = fix_files.find_harmful(before, after, outcomes, tree)
    if harmful:
        for outcome in harmful:
            output.write_warning(f"{outcome.path}: fixes reverted, because they would cause findings in related files")
        wrong += _save_files([outcome.make_inverse() for outcome in harmful])[0]
        after = check()
    return wrong, after, [outcome for outcome in made if outcome not in harmful]


def _save_files(outcomes: Iterable[FixResult]) -> tuple[list[str], list[FixResult]]:
    """Write every writable file. Return the reasons for failures, and the written results."""
    from ..static.fixes import fix_files

    wrong: list[str] = []
    made: list[FixResult] = []
    for outcome in outcomes:
        try:
            for sentence in fix_files.save_file(outcome):
                output.write_warning(sentence)
            made.append(outcome)
        except fix_files.WriteRefused as error:
            wrong.append(str(error))
    return wrong, made


def show_made(outcomes: Sequence[FixResult]) -> None:
    """Write the fixed findings by file and rule to standard error, outside the output format."""
    from ..protocol.rules import RULES

    number = sum(sum(outcome.fixed_counts.values()) for outcome in outcomes)
    lines = [f"Fixed {number:,} finding{'' if number == 1 else 's'}{':' if number else '.'}"]
    for outcome in outcomes:
        lines.append(f"- {printable.make_single_line(outcome.path)}:")
        lines += [
            f"    {count:,} x {code} ({RULES[code].name})" for code, count in sorted(outcome.fixed_counts.items())
        ]
    sys.stderr.write("\n".join(lines) + "\n")


def show_difference(outcomes: Sequence[FixResult], findings: Sequence[Finding]) -> None:
    """Write the diff to standard output, and the summary and unreadable files to standard error."""
    from ..static.fixes import fix_files

    for outcome in outcomes:
        output.write_lines(
            [_color_line(line) for line in _split_diff(fix_files.make_diff(outcome))],
            sys.stdout,
            output.is_color_wanted(sys.stdout),
        )
    for finding in findings:
        if finding.code == "AMP903":
            output.write_warning(f"{finding.filename}:{finding.line}: {finding.message}")
    number = sum(sum(outcome.fixed_counts.values()) for outcome in outcomes)
    if outcomes:
        sys.stderr.write(
            f"Would fix {number} finding{'' if number == 1 else 's'} in {_format_file_count(len(outcomes))}.\n"
        )
    else:
        sys.stderr.write("Nothing would be fixed.\n")


def summarize_fixable(findings: Iterable[Finding], *, unsafe: bool) -> str:
    """Return one sentence about the fixable findings and the flags, or ""."""
    from ..protocol.fix import SAFE

    found = [finding.fix.applicability for finding in findings if finding.fix is not None]
    fixable = len(found) if unsafe else found.count(SAFE)
    hidden = len(found) - fixable
    more = f" ({hidden} hidden fix{'' if hidden == 1 else 'es'} can be enabled with --unsafe-fixes)" if hidden else ""
    if fixable:
        return f"[*] {fixable} fixable with --fix{more}."
    return f"No fixes available{more}." if hidden else ""


def _find_applicability(finding: Finding) -> str:
    from ..protocol.rules import RULES

    return RULES[finding.code].applicability


def _format_file_count(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


def _split_diff(diff: str) -> list[str]:
    return diff.split("\n")[:-1]


def _color_line(line: str) -> printable.Line:
    line = printable.make_visible(line)
    if line.startswith(" "):
        # A leading blank, unlike plus or minus, does not prevent GitHub from treating the line as a command.
        line = printable.make_single_line(line)
    style = {"+": "good", "-": "mark", "@": "command"}.get(line[:1], "")
    return [(line, "path" if line.startswith(("+++", "---")) else style)]
