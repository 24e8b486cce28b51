"""Fixes as the command makes and shows them: in files, on standard output, or as a diff."""

from __future__ import annotations

import sys

from . import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..protocol.finding import Finding
    from ..static.engine import Settings
    from ..static.fixes.apply import Outcome
    from ..static.project.project import Project


def offer(
    findings: Sequence[Finding],
    data: Mapping[str, bytes],
    tree: Project,
    torch: tuple[int, int] | None,
    writes: Callable[[str], bool],
    *,
    edits: bool,
) -> None:
    """Say of each finding how it can be put right, where a rule has a fix; with ``edits``, in edits, too.

    ``writes`` says whether fixes of a file would be written: nothing is offered where they would not.
    """
    mendable = [finding for finding in findings if _applicability(finding)]
    if mendable:
        from ..static.fixes import apply

        written = {path: writes(path) for path in {finding.filename for finding in mendable}}
        offered = [finding for finding in mendable if written[finding.filename]]
        apply.offer(offered, data, tree.members, torch)
        if edits:
            for sentence in apply.write(offered):
                text.warn(sentence)


def mend(
    findings: Sequence[Finding], data: Mapping[str, bytes], settings: Settings, tree: Project, *, unsafe: bool
) -> list[Outcome]:
    """What becomes of each file that has a finding with a fix, nothing written yet; what is refused is said."""
    from ..protocol.fix import APPLICABILITIES, SAFE
    from ..static.fixes import apply
    from ..static.fixes.edited_file import EditedFile
    from ..static.project.surroundings import Surroundings
    from ..static.sources import source_files

    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.elsewhere is None:
            by_path.setdefault(finding.filename, []).append(finding)
    outcomes: list[Outcome] = []
    wanted = APPLICABILITIES if unsafe else (SAFE,)
    todo = {path: found for path, found in by_path.items() if any(_applicability(f) in wanted for f in found)}
    around = Surroundings([path for path in todo if path not in data], tree.members, settings.torch)
    for path, found in todo.items():
        try:
            source = data[path] if path in data else source_files.load(path)
            document = EditedFile.of(path, source, around)
        except source_files.Unreadable:
            # That is a finding of its own.
            continue
        outcome = apply.mend(document, found, settings, tree, unsafe=unsafe)
        for sentence in outcome.refused:
            text.warn(sentence)
        if outcome.changed:
            outcomes.append(outcome)
    return outcomes


def make(
    outcomes: Sequence[Outcome], before: Sequence[Finding], tree: Project, check: Callable[[], list[Finding]]
) -> tuple[list[str], list[Finding], list[Outcome]]:
    """Write the files, check everything again, and take back what has done harm elsewhere.

    Why what could not be written could not, what is found now, and what was made.
    """
    from ..static.fixes import apply

    wrong, made = _write(outcomes)
    after = check()
    harmful = apply.harmful(before, after, outcomes, tree)
    if harmful:
        for outcome in harmful:
            text.warn(f"{outcome.path}: its fixes were taken back: they would lead to findings in what goes with it")
        wrong += _write([outcome.undone() for outcome in harmful])[0]
        after = check()
    return wrong, after, [outcome for outcome in made if outcome not in harmful]


def _write(outcomes: Iterable[Outcome]) -> tuple[list[str], list[Outcome]]:
    """Write every file that can be written: why, for those that cannot, and those that were."""
    from ..static.fixes import apply

    wrong: list[str] = []
    made: list[Outcome] = []
    for outcome in outcomes:
        try:
            for sentence in apply.save(outcome):
                text.warn(sentence)
            made.append(outcome)
        except apply.Refused as error:
            wrong.append(str(error))
    return wrong, made


def show_made(outcomes: Sequence[Outcome]) -> None:
    """What was put right, by file and rule, where it is in the way of no format."""
    from ..protocol.rules import RULES

    number = sum(sum(outcome.fixed.values()) for outcome in outcomes)
    lines = [f"Fixed {number:,} finding{'' if number == 1 else 's'}{':' if number else '.'}"]
    for outcome in outcomes:
        lines.append(f"- {text.in_line(outcome.path)}:")
        lines += [f"    {count:,} x {code} ({RULES[code].name})" for code, count in sorted(outcome.fixed.items())]
    sys.stderr.write("\n".join(lines) + "\n")


def show_difference(outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> None:
    """The diff on standard output, and on standard error how much it is, and what could not be read."""
    from ..static.fixes import apply

    for outcome in outcomes:
        text.write(
            [_coloured(line) for line in _lines(apply.difference(outcome))], sys.stdout, text.colour_wanted(sys.stdout)
        )
    for finding in findings:
        if finding.code == "AMP903":
            text.warn(f"{finding.filename}:{finding.line}: {finding.message}")
    number = sum(sum(outcome.fixed.values()) for outcome in outcomes)
    if outcomes:
        sys.stderr.write(f"Would fix {number} finding{'' if number == 1 else 's'} in {_files(len(outcomes))}.\n")
    else:
        sys.stderr.write("Nothing would be fixed.\n")


def summary(findings: Iterable[Finding], *, unsafe: bool) -> str:
    """One sentence on what of the findings can be fixed, with which flag; nothing, where nothing can."""
    from ..protocol.fix import SAFE

    found = [finding.fix.applicability for finding in findings if finding.fix is not None]
    fixable = len(found) if unsafe else found.count(SAFE)
    hidden = len(found) - fixable
    more = f" ({hidden} hidden fix{'' if hidden == 1 else 'es'} can be enabled with --unsafe-fixes)" if hidden else ""
    if fixable:
        return f"[*] {fixable} fixable with --fix{more}."
    return f"No fixes available{more}." if hidden else ""


def _applicability(finding: Finding) -> str:
    from ..protocol.rules import RULES

    return RULES[finding.code].applicability


def _files(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


def _lines(diff: str) -> list[str]:
    return diff.split("\n")[:-1]


def _coloured(line: str) -> text.Line:
    line = text.visible(line)
    if line.startswith(" "):
        # Unlike a plus or a minus, a blank does not keep GitHub from taking the line for a command.
        line = text.in_line(line)
    style = {"+": "good", "-": "mark", "@": "command"}.get(line[:1], "")
    return [(line, "path" if line.startswith(("+++", "---")) else style)]
