"""Fix engine: offer fixes, apply fixes to a copy, analyze the copy again, and keep only valid fixes."""

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
from ..engine import check_in_project, without_gc
from ..project.project import Project
from ..project.project_context import ProjectContext
from ..settings import Settings
from ..sources import source_files
from ..sources.atomic_replace import replace_file
from . import edits
from .edited_file import EditedFile
from .fixers import FIXERS, find_fixer, find_version_check
from .matchers import NotFixable

#: Identity of a finding across edits: the code and the source of the line.
Identity = tuple[str, str]
#: A fix with all findings that the fix corrects.
Offer = tuple[Fix, list[Finding]]
#: Maximum number of rounds for one file. Each round fixes findings, and few fixes have to wait for another fix.
ROUNDS = 50
OVERLAPS = "its edits overlap those of another fix"


class WriteRefused(Exception):
    """Error for a file that cannot be written; the message is one sentence."""


class FixResult:
    """Result for one file: the new version, the codes of fixed findings, and sentences about refused fixes."""

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
        """Return the result that reverts the written changes."""
        back = FixResult(self.fixed_document)
        back.fixed_document = self.original
        return back


# Offers.


def offer_fixes(
    findings: Iterable[Finding],
    data: Mapping[str, bytes] | None = None,
    others: Iterable[str] = (),
    torch: tuple[int, int] | None = None,
) -> None:
    """Attach a fix to each finding whose correction is certain.

    ``data`` holds content that is not in a file, by the name in findings. ``others`` are files that may import one of
    the files. ``torch`` is the oldest version in use, if declared.
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
    """Compute the edits of all offered fixes. Withdraw failed offers, and return sentences about them."""
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


# Application.


def fix_file(
    document: EditedFile, findings: Sequence[Finding], settings: Settings, project: Project, *, unsafe: bool = False
) -> FixResult:
    """Return one file with all valid fixes applied, repeated until no valid fix is left."""
    return _FileFixer(document, findings, settings, project, unsafe).run_rounds()


class _FileFixer:
    """The rounds of fixes for one file."""

    def __init__(
        self, document: EditedFile, findings: Sequence[Finding], settings: Settings, project: Project, unsafe: bool
    ) -> None:
        self.result = FixResult(document)
        self.project = project
        self.unsafe = unsafe
        # A fix must cause no finding of any rule, selected or not.
        settings = settings.for_file(document.path)
        self.settings = Settings(
            select=settings.select | frozenset(code for code, rule in RULES.items() if rule.on_by_default),
            per_file_ignores=settings.per_file_ignores,
            helpers=settings.helpers,
            torch=settings.torch,
            devices=settings.devices,
            assumed_dtype=settings.assumed_dtype,
            largest=settings.largest,
        )
        #: Identities of the findings in this file from the analysis of all files, and the number of findings by code.
        self.wanted_identities = {_identify_finding(finding, document) for finding in findings}
        self.code_counts = _count_codes(findings)
        self.current_findings = self._check_document(document)
        alike = _count_codes(self.current_findings)
        #: Codes with the same number of findings in the file alone as in the analysis of all files.
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
        """Return the fixes of the current findings, in file order."""
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
        """Return True if the finding was also found in the analysis of all files."""
        return finding.code in self.code_counts and (
            finding.code in self.trusted_codes
            or _identify_finding(finding, self.result.fixed_document) in self.wanted_identities
        )

    def _run_round(self) -> bool:
        """Apply all independent fixes at once. Return True if any fix was applied."""
        document, before = self.result.fixed_document, self.current_findings
        # Other fixes are tried again. A fix that had to wait is reported at the end if never applied.
        self.pending_reasons = {
            identity: said for identity, said in self.pending_reasons.items() if said.endswith(OVERLAPS)
        }
        chosen, made = self._choose_disjoint()
        claimed = [finding for _, findings in chosen for finding in findings]
        if chosen and self._keep_if_right(document, made, claimed) is not None:
            # At least one of the fixes is invalid.
            self._apply_one_by_one(document, chosen)
        return self.current_findings is not before

    def _choose_disjoint(self) -> tuple[list[Offer], list[Edit]]:
        """Return the fixes without overlap, earlier fixes first, and all edits of these fixes."""
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
                # Another fix also corrected this finding.
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
        """Keep the version with these edits if valid, and return None. Otherwise return the reason."""
        try:
            version = document.with_edits(made)
            version.encode_text()
        except (NotFixable, source_files.Unreadable, UnicodeEncodeError):
            return "the fixed file would not parse"
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
    """Return the edits of a fix that are not applied yet."""
    known = {edit.sort_key() for edit in made}
    return [edit for edit in fix.edits if edit.sort_key() not in known]


def _count_codes(findings: Iterable[Finding]) -> Counter[str]:
    """Return the number of findings of each rule.

    A finding that becomes another finding of the same rule is not fixed.
    """
    return Counter(finding.code for finding in findings)


def _identify_finding(finding: Finding, document: EditedFile) -> Identity:
    lines = document.cell_texts().get(finding.cell, "")
    row = source_files.normalize_newlines(lines).split("\n")[finding.line - 1 : finding.line]
    return finding.code, row[0].strip() if row else ""


def find_harmful(
    before: Iterable[Finding], after: Iterable[Finding], outcomes: Iterable[FixResult], tree: Project
) -> list[FixResult]:
    """Return the results to revert: files with more findings than before, and the fixed files that they import."""
    risen = Counter((f.filename, f.code) for f in after) - Counter((f.filename, f.code) for f in before)
    paths = {path for path, _ in risen}
    imported = {os.path.abspath(path) for path in paths}.union(*(tree.possible_imports(path) for path in paths))
    return [outcome for outcome in outcomes if outcome.has_changed and os.path.abspath(outcome.path) in imported]


# Output.


def make_diff(outcome: FixResult) -> str:
    """Return the changes of a file as a unified diff, or one diff for each cell of a notebook."""
    import difflib

    shown: list[str] = []
    before, after = outcome.original.cell_texts(), outcome.fixed_document.cell_texts()
    for part in before:
        # No splitlines, because a form feed is no line end here.
        old, new = (
            re.findall(r"[^\n]*\n|[^\n]+", source_files.normalize_newlines(text))
            for text in (before[part], after.get(part, ""))
        )
        # A line end in a name would begin another line of the diff.
        path = outcome.path.replace("\r", "\\r").replace("\n", "\\n")
        name = path + (f":cell {part}" if part is not None else "")
        shown += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, name, name)
        ]
    return "".join(shown)


def is_read_only(path: str) -> bool:
    """Return True if a file must not be written. Raise OSError if the file does not exist."""
    mode = os.stat(path).st_mode
    # A user with all rights may still have set the read-only flag intentionally.
    return not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK)


def _has_content(path: str, data: bytes) -> bool:
    try:
        return read_regular(path, max(len(data), 1)) == data
    except FileTooLarge:
        return False


def save_file(outcome: FixResult) -> list[str]:
    """Replace a file by the new version atomically, and return sentences about lost properties.

    Raise :class:`WriteRefused` if the file cannot be written, or was changed meanwhile.
    """
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
