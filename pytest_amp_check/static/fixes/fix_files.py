"""Puts findings right: offers fixes, makes them in a copy, reads that copy again, and keeps what is right after all."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...protocol.finding import Finding
from ...protocol.fix import SAFE, Edit, Fix, UnwritableFix
from ...protocol.regular_files import FileTooLarge, read_regular
from ...protocol.rules import RULES
from ..engine import Settings, check_in_project, without_gc
from ..project.project import Project
from ..project.project_context import ProjectContext
from ..sources import source_files
from ..sources.atomic_replace import replace_file
from . import edits
from .edited_file import EditedFile
from .fixers import FIXERS, find_fixer, find_version_check
from .matchers import NotFixable

#: What a finding has in common with itself after an edit: its code and the source of its line.
Identity = tuple[str, str]
#: A fix with all the findings that it puts right.
Offer = tuple[Fix, list[Finding]]
#: Times that a file is gone through: each puts something right, and few fixes have to wait for another.
ROUNDS = 50
OVERLAPS = "its edits overlap those of another fix"


class WriteRefused(Exception):
    """A file that cannot be written; the message is one sentence."""


class FixResult:
    """What became of one file: its new version, the codes of what was put right, and what was not, in sentences."""

    __slots__ = ("fixed_counts", "fixed_document", "original", "refusals")

    def __init__(self, original: EditedFile) -> None:
        self.original = original
        self.fixed_document = original
        self.fixed_counts: Counter[str] = Counter()
        self.refusals: list[str] = []

    @property
    def path(self) -> str:
        return self.original.path

    @property
    def has_changed(self) -> bool:
        return self.fixed_document.raw_text != self.original.raw_text

    def make_inverse(self) -> FixResult:
        """The way back from what was written."""
        back = FixResult(self.fixed_document)
        back.fixed_document = self.original
        return back


# What is offered.


def offer_fixes(
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
    surroundings = ProjectContext([path for path in by_path if path not in (data or ())], others, torch)
    without_gc(lambda: _offer_by_path(by_path, data, surroundings))


def _offer_by_path(
    by_path: dict[str, list[Finding]], data: Mapping[str, bytes] | None, surroundings: ProjectContext
) -> None:
    for path, found in by_path.items():
        try:
            known = data[path] if data and path in data else source_files.load_bytes(path)
            document = EditedFile.from_bytes(path, known, surroundings)
        except source_files.Unreadable:
            continue
        for finding in found:
            finding.fix = _make_fix(document, finding)


def _make_fix(document: EditedFile, finding: Finding) -> Fix | None:
    fix_function = find_fixer(finding.code)
    if fix_function is None:
        return None
    try:
        return document.make_fix(
            finding, fix_function, RULES[finding.code].applicability, find_version_check(finding.code)
        )
    except NotFixable:
        return None


def write_edits(findings: Iterable[Finding]) -> list[str]:
    """Write the edits of what is offered. What cannot be written is offered no more, and said in sentences."""
    refused: list[str] = []
    for finding in findings:
        try:
            _ = finding.fix and finding.fix.edits
        except UnwritableFix as error:
            finding.fix = None
            refused.append(_describe_refusal(finding, str(error)))
    return refused


def _describe_refusal(finding: Finding, reason: str) -> str:
    return f"{finding.site.location_text}: the fix of {finding.code} was not made: {reason}"


# What is made.


def fix_file(
    document: EditedFile, findings: Sequence[Finding], settings: Settings, project: Project, *, unsafe: bool = False
) -> FixResult:
    """One file put right as far as it can be: fixes are made until none is left that holds."""
    return _FileFixer(document, findings, settings, project, unsafe).run_rounds()


class _FileFixer:
    """The rounds through one file."""

    def __init__(
        self, document: EditedFile, findings: Sequence[Finding], settings: Settings, project: Project, unsafe: bool
    ) -> None:
        self.result = FixResult(document)
        self.project = project
        self.unsafe = unsafe
        # A fix must bring nothing that any rule finds, whatever is selected.
        settings = settings.for_file(document.path)
        self.settings = Settings(
            select=settings.select | frozenset(code for code, rule in RULES.items() if rule.on_by_default),
            per_file_ignores=settings.per_file_ignores,
            helpers=settings.helpers,
            torch=settings.torch,
            devices=settings.devices,
            largest=settings.largest,
        )
        #: What was found in this file as one of many, and how often.
        self.wanted_identities = {_identify_finding(finding, document) for finding in findings}
        self.code_counts = _count_codes(findings)
        self.current_findings = self._check_document(document)
        alike = _count_codes(self.current_findings)
        #: Rules that find no more in this file alone than they do in it among the others.
        self.trusted_codes = {code for code, number in self.code_counts.items() if alike[code] == number}
        self.pending_reasons: dict[Identity, str] = {}

    def run_rounds(self) -> FixResult:
        for _ in range(ROUNDS):
            if not self._run_round():
                break
        left = {_identify_finding(finding, self.result.fixed_document) for finding in self.current_findings}
        self.result.refusals += [said for identity, said in self.pending_reasons.items() if identity in left]
        return self.result

    def _check_document(self, document: EditedFile) -> list[Finding]:
        return check_in_project(document.text, document.path, self.settings, self.project)

    def _collect_offers(self) -> list[Offer]:
        """The fixes for what is found now, in the order of the file."""
        found: dict[object, Offer] = {}
        for finding in self.current_findings:
            fix = _make_fix(self.result.fixed_document, finding) if self._is_wanted(finding) else None
            if fix is not None and (fix.applicability == SAFE or self.unsafe):
                try:
                    found.setdefault(fix.identity_key(), (fix, []))[1].append(finding)
                except UnwritableFix as error:
                    self._postpone([finding], str(error))
        return list(found.values())

    def _is_wanted(self, finding: Finding) -> bool:
        """Whether it was also found in the file as one of many."""
        return finding.code in self.code_counts and (
            finding.code in self.trusted_codes
            or _identify_finding(finding, self.result.fixed_document) in self.wanted_identities
        )

    def _run_round(self) -> bool:
        """Make what can be made at once; whether anything was."""
        document, before = self.result.fixed_document, self.current_findings
        # The others are tried again. What had to wait is said at last if nothing came of it.
        self.pending_reasons = {
            identity: said for identity, said in self.pending_reasons.items() if said.endswith(OVERLAPS)
        }
        chosen, made = self._choose_disjoint()
        claimed = [finding for _, findings in chosen for finding in findings]
        if chosen and self._keep_if_right(document, made, claimed) is not None:
            # Something in this is wrong.
            self._apply_one_by_one(document, chosen)
        return self.current_findings is not before

    def _choose_disjoint(self) -> tuple[list[Offer], list[Edit]]:
        """The fixes that are in no other's way, the first ones first, and all their edits."""
        chosen: list[Offer] = []
        made: list[Edit] = []
        for fix, findings in self._collect_offers():
            if edits.has_overlap(fix.edits, made):
                self._postpone(findings, OVERLAPS)
                continue
            chosen.append((fix, findings))
            made += _select_new_edits(fix, made)
        return chosen, made

    def _apply_one_by_one(self, document: EditedFile, chosen: list[Offer]) -> None:
        kept: list[Edit] = []
        for fix, findings in chosen:
            alike = _count_codes(self.current_findings)
            if not any(alike[finding.code] for finding in findings):
                # Another fix has put this right, too.
                continue
            more = _select_new_edits(fix, kept)
            reason = self._keep_if_right(document, [*kept, *more], findings)
            if reason is None:
                kept += more
            else:
                self._postpone(findings, reason, document)

    def _postpone(self, findings: list[Finding], reason: str, document: EditedFile | None = None) -> None:
        for finding in findings:
            self.pending_reasons[_identify_finding(finding, document or self.result.fixed_document)] = (
                _describe_refusal(finding, reason)
            )

    def _keep_if_right(self, document: EditedFile, made: list[Edit], claimed: list[Finding]) -> str | None:
        """Keep the version with these edits if it is right; why not, if it is not."""
        try:
            version = document.with_edits(made)
            version.encode_text()
        except (NotFixable, source_files.Unreadable, UnicodeEncodeError):
            return "the file would not be readable"
        after = self._check_document(version)
        before, now = _count_codes(self.current_findings), _count_codes(after)
        for finding in after:
            if now[finding.code] > before[finding.code]:
                unread = finding.label.startswith("source:")
                return "the result could not be read" if unread else f"it would lead to {finding.code}"
        if any(now[code] > before[code] - number for code, number in _count_codes(claimed).items()):
            return "the finding would still be there"
        self.result.fixed_counts += before - now
        self.result.fixed_document = version
        self.current_findings = after
        return None


def _select_new_edits(fix: Fix, made: list[Edit]) -> list[Edit]:
    """The edits of a fix that are not made already."""
    known = {edit.sort_key() for edit in made}
    return [edit for edit in fix.edits if edit.sort_key() not in known]


def _count_codes(findings: Iterable[Finding]) -> Counter[str]:
    """How often each rule finds something. One fault that becomes another of the same rule is not gone."""
    return Counter(finding.code for finding in findings)


def _identify_finding(finding: Finding, document: EditedFile) -> Identity:
    lines = document.cell_texts().get(finding.cell, "")
    row = source_files.normalize_newlines(lines).split("\n")[finding.line - 1 : finding.line]
    return finding.code, row[0].strip() if row else ""


def find_harmful(
    before: Iterable[Finding], after: Iterable[Finding], outcomes: Iterable[FixResult], tree: Project
) -> list[FixResult]:
    """What must be taken back: files that now have more findings than before, and what they import."""
    risen = Counter((f.filename, f.code) for f in after) - Counter((f.filename, f.code) for f in before)
    paths = {path for path, _ in risen}
    imported = {os.path.abspath(path) for path in paths}.union(*(tree.possible_imports(path) for path in paths))
    return [outcome for outcome in outcomes if outcome.has_changed and os.path.abspath(outcome.path) in imported]


# What is shown and written.


def make_diff(outcome: FixResult) -> str:
    """What changes in a file, as a unified diff; of a notebook, one for each cell."""
    import difflib

    shown: list[str] = []
    before, after = outcome.original.cell_texts(), outcome.fixed_document.cell_texts()
    for part in before:
        # Not splitlines, for which a form feed ends a line.
        old, new = (
            re.findall(r"[^\n]*\n|[^\n]+", source_files.normalize_newlines(text))
            for text in (before[part], after.get(part, ""))
        )
        # A line end in a name would begin a line of the diff.
        path = outcome.path.replace("\r", "\\r").replace("\n", "\\n")
        name = path + (f":cell {part}" if part is not None else "")
        shown += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, name, name)
        ]
    return "".join(shown)


def is_read_only(path: str) -> bool:
    """Whether a file is not to be written. Raises OSError where there is none."""
    mode = os.stat(path).st_mode
    # Whoever may do everything may still be asked not to.
    return not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK)


def _has_content(path: str, data: bytes) -> bool:
    try:
        return read_regular(path, max(len(data), 1)) == data
    except FileTooLarge:
        return False


def save_file(outcome: FixResult) -> list[str]:
    """Put the new version of a file in the place of the old one, at once or not at all; what is to be said of it."""
    path = os.path.realpath(outcome.original.path)
    shown = outcome.original.path
    try:
        if is_read_only(path):
            raise WriteRefused(f"{shown} cannot be written: it is read-only")
        data = outcome.original.encode_text()
        if not _has_content(path, data):
            raise WriteRefused(f"{shown} was changed by another program while it was being fixed: run amp-check again")
        return [f"{shown}: {lost}" for lost in replace_file(path, outcome.fixed_document.encode_text())]
    except OSError as error:
        raise WriteRefused(f"{shown} cannot be written: {(error.strerror or type(error).__name__).lower()}") from None
