"""Puts findings right: offers fixes, makes them in a copy, reads that copy again, and keeps what is right after all."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...protocol.finding import Finding
from ...protocol.fix import SAFE, Edit, Fix, Unwritten
from ...protocol.regular_files import TooLarge, read_regular
from ...protocol.rules import RULES
from ..engine import Settings, check_again, uncollected
from ..project.project import Project
from ..project.surroundings import Surroundings
from ..sources import source_files
from ..sources.replacing import put
from . import edits
from .edited_file import EditedFile
from .fixers import FIXERS, fixer, needed
from .matchers import Unfit

#: What a finding has in common with itself after an edit: its code and the source of its line.
Identity = tuple[str, str]
#: A fix with all the findings that it puts right.
Offer = tuple[Fix, list[Finding]]
#: Times that a file is gone through: each puts something right, and few fixes have to wait for another.
ROUNDS = 50
OVERLAPS = "its edits overlap those of another fix"


class Refused(Exception):
    """A file that cannot be written; the message is one sentence."""


class Outcome:
    """What became of one file: its new version, the codes of what was put right, and what was not, in sentences."""

    __slots__ = ("document", "fixed", "original", "refused")

    def __init__(self, original: EditedFile) -> None:
        self.original = original
        self.document = original
        self.fixed: Counter[str] = Counter()
        self.refused: list[str] = []

    @property
    def path(self) -> str:
        return self.original.path

    @property
    def changed(self) -> bool:
        return self.document.raw != self.original.raw

    def undone(self) -> Outcome:
        """The way back from what was written."""
        back = Outcome(self.document)
        back.document = self.original
        return back


# What is offered.


def offer(
    findings: Iterable[Finding],
    data: Mapping[str, bytes] | None = None,
    others: Iterable[str] = (),
    torch: tuple[int, int] | None = None,
) -> None:
    """Say of each finding how its source can be put right, where that is certain.

    ``data`` holds what does not stand in a file, by the name that it goes by in findings. ``others`` are files that may
    import one of these, ``torch`` the oldest version in use, where that was said.
    """
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.code in FIXERS and finding.elsewhere is None:
            by_path.setdefault(finding.filename, []).append(finding)
    around = Surroundings([path for path in by_path if path not in (data or ())], others, torch)
    uncollected(lambda: _offer(by_path, data, around))


def _offer(by_path: dict[str, list[Finding]], data: Mapping[str, bytes] | None, around: Surroundings) -> None:
    for path, found in by_path.items():
        try:
            known = data[path] if data and path in data else source_files.load(path)
            document = EditedFile.of(path, known, around)
        except source_files.Unreadable:
            continue
        for finding in found:
            finding.fix = _fix(document, finding)


def _fix(document: EditedFile, finding: Finding) -> Fix | None:
    mending = fixer(finding.code)
    if mending is None:
        return None
    try:
        return document.fix(finding, mending, RULES[finding.code].applicability, needed(finding.code))
    except Unfit:
        return None


def write(findings: Iterable[Finding]) -> list[str]:
    """Write the edits of what is offered. What cannot be written is offered no more, and said in sentences."""
    refused: list[str] = []
    for finding in findings:
        try:
            _ = finding.fix and finding.fix.edits
        except Unwritten as error:
            finding.fix = None
            refused.append(_refused(finding, str(error)))
    return refused


def _refused(finding: Finding, reason: str) -> str:
    return f"{finding.site.place}: the fix of {finding.code} was not made: {reason}"


# What is made.


def mend(
    document: EditedFile, findings: Sequence[Finding], settings: Settings, tree: Project, *, unsafe: bool = False
) -> Outcome:
    """One file put right as far as it can be: fixes are made until none is left that holds."""
    return _Mending(document, findings, settings, tree, unsafe).run()


class _Mending:
    """The rounds through one file."""

    def __init__(
        self, document: EditedFile, findings: Sequence[Finding], settings: Settings, tree: Project, unsafe: bool
    ) -> None:
        self.outcome = Outcome(document)
        self.tree = tree
        self.unsafe = unsafe
        # A fix must bring nothing that any rule finds, whatever is selected.
        settings = settings.of(document.path)
        self.settings = Settings(
            select=settings.select | frozenset(code for code, rule in RULES.items() if rule.default),
            per_file_ignores=settings.per_file_ignores,
            helpers=settings.helpers,
            torch=settings.torch,
            devices=settings.devices,
            largest=settings.largest,
        )
        #: What was found in this file as one of many, and how often.
        self.wanted = {_identity(finding, document) for finding in findings}
        self.codes = _count(findings)
        self.current = self._read(document)
        alike = _count(self.current)
        #: Rules that find no more in this file alone than they do in it among the others.
        self.trusted = {code for code, number in self.codes.items() if alike[code] == number}
        self.waiting: dict[Identity, str] = {}

    def run(self) -> Outcome:
        for _ in range(ROUNDS):
            if not self._round():
                break
        left = {_identity(finding, self.outcome.document) for finding in self.current}
        self.outcome.refused += [said for identity, said in self.waiting.items() if identity in left]
        return self.outcome

    def _read(self, document: EditedFile) -> list[Finding]:
        return check_again(document.text, document.path, self.settings, self.tree)

    def _offered(self) -> list[Offer]:
        """The fixes for what is found now, in the order of the file."""
        found: dict[object, Offer] = {}
        for finding in self.current:
            fix = _fix(self.outcome.document, finding) if self._is_wanted(finding) else None
            if fix is not None and (fix.applicability == SAFE or self.unsafe):
                try:
                    found.setdefault(fix.key(), (fix, []))[1].append(finding)
                except Unwritten as error:
                    self._wait([finding], str(error))
        return list(found.values())

    def _is_wanted(self, finding: Finding) -> bool:
        """Whether it was also found in the file as one of many."""
        return finding.code in self.codes and (
            finding.code in self.trusted or _identity(finding, self.outcome.document) in self.wanted
        )

    def _round(self) -> bool:
        """Make what can be made at once; whether anything was."""
        document, before = self.outcome.document, self.current
        # The others are tried again. What had to wait is said at last if nothing came of it.
        self.waiting = {identity: said for identity, said in self.waiting.items() if said.endswith(OVERLAPS)}
        chosen, made = self._side_by_side()
        claimed = [finding for _, findings in chosen for finding in findings]
        if chosen and self._keep(document, made, claimed) is not None:
            # Something in this is wrong.
            self._one_by_one(document, chosen)
        return self.current is not before

    def _side_by_side(self) -> tuple[list[Offer], list[Edit]]:
        """The fixes that are in no other's way, the first ones first, and all their edits."""
        chosen: list[Offer] = []
        made: list[Edit] = []
        for fix, findings in self._offered():
            if edits.overlap(fix.edits, made):
                self._wait(findings, OVERLAPS)
                continue
            chosen.append((fix, findings))
            made += _new(fix, made)
        return chosen, made

    def _one_by_one(self, document: EditedFile, chosen: list[Offer]) -> None:
        kept: list[Edit] = []
        for fix, findings in chosen:
            alike = _count(self.current)
            if not any(alike[finding.code] for finding in findings):
                # Another fix has put this right, too.
                continue
            more = _new(fix, kept)
            reason = self._keep(document, [*kept, *more], findings)
            if reason is None:
                kept += more
            else:
                self._wait(findings, reason, document)

    def _wait(self, findings: list[Finding], reason: str, document: EditedFile | None = None) -> None:
        for finding in findings:
            self.waiting[_identity(finding, document or self.outcome.document)] = _refused(finding, reason)

    def _keep(self, document: EditedFile, made: list[Edit], claimed: list[Finding]) -> str | None:
        """Keep the version with these edits if it is right; why not, if it is not."""
        try:
            version = document.edited(made)
            version.data()
        except (Unfit, source_files.Unreadable, UnicodeEncodeError):
            return "the file would not be readable"
        after = self._read(version)
        before, now = _count(self.current), _count(after)
        for finding in after:
            if now[finding.code] > before[finding.code]:
                unread = finding.label.startswith("source:")
                return "the result could not be read" if unread else f"it would lead to {finding.code}"
        if any(now[code] > before[code] - number for code, number in _count(claimed).items()):
            return "the finding would still be there"
        self.outcome.fixed += before - now
        self.outcome.document = version
        self.current = after
        return None


def _new(fix: Fix, made: list[Edit]) -> list[Edit]:
    """The edits of a fix that are not made already."""
    known = {edit.order() for edit in made}
    return [edit for edit in fix.edits if edit.order() not in known]


def _count(findings: Iterable[Finding]) -> Counter[str]:
    """How often each rule finds something. One fault that becomes another of the same rule is not gone."""
    return Counter(finding.code for finding in findings)


def _identity(finding: Finding, document: EditedFile) -> Identity:
    lines = document.parts().get(finding.cell, "")
    row = source_files.newlines(lines).split("\n")[finding.line - 1 : finding.line]
    return finding.code, row[0].strip() if row else ""


def harmful(
    before: Iterable[Finding], after: Iterable[Finding], outcomes: Iterable[Outcome], tree: Project
) -> list[Outcome]:
    """What must be taken back: files that now have more findings than before, and what they import."""
    risen = Counter((f.filename, f.code) for f in after) - Counter((f.filename, f.code) for f in before)
    paths = {path for path, _ in risen}
    imported = {os.path.abspath(path) for path in paths}.union(*(tree.imports(path) for path in paths))
    return [outcome for outcome in outcomes if outcome.changed and os.path.abspath(outcome.path) in imported]


# What is shown and written.


def difference(outcome: Outcome) -> str:
    """What changes in a file, as a unified diff; of a notebook, one for each cell."""
    import difflib

    shown: list[str] = []
    before, after = outcome.original.parts(), outcome.document.parts()
    for part in before:
        # Not splitlines, for which a form feed ends a line.
        old, new = (
            re.findall(r"[^\n]*\n|[^\n]+", source_files.newlines(text)) for text in (before[part], after.get(part, ""))
        )
        # A line end in a name would begin a line of the diff.
        path = outcome.path.replace("\r", "\\r").replace("\n", "\\n")
        name = path + (f":cell {part}" if part is not None else "")
        shown += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, name, name)
        ]
    return "".join(shown)


def read_only(path: str) -> bool:
    """Whether a file is not to be written. Raises OSError where there is none."""
    mode = os.stat(path).st_mode
    # Whoever may do everything may still be asked not to.
    return not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK)


def _holds(path: str, data: bytes) -> bool:
    try:
        return read_regular(path, max(len(data), 1)) == data
    except TooLarge:
        return False


def save(outcome: Outcome) -> list[str]:
    """Put the new version of a file in the place of the old one, at once or not at all; what is to be said of it."""
    path = os.path.realpath(outcome.original.path)
    shown = outcome.original.path
    try:
        if read_only(path):
            raise Refused(f"{shown} cannot be written: it is read-only")
        data = outcome.original.data()
        if not _holds(path, data):
            raise Refused(f"{shown} was changed by another program while it was being fixed: run amp-check again")
        return [f"{shown}: {lost}" for lost in put(path, outcome.document.data())]
    except OSError as error:
        raise Refused(f"{shown} cannot be written: {(error.strerror or type(error).__name__).lower()}") from None
