"""One check: the request to the engine, and the findings that are not baselined."""

from __future__ import annotations

import os
import sys

from . import finding_text, output, source_lines, summaries, write_guard
from . import options as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

    from ..protocol.finding import Finding
    from ..static.engine import Report
    from ..static.settings import Settings


class InputFailure(Exception):
    """Error for unusable input; the message is one sentence."""


class CheckRun:
    """One check: the findings, and data about the analyzed input."""

    def __init__(
        self, paths: list[str], options: table.Options, stdin_filename: str | None, flags: dict[str, Any]
    ) -> None:
        self.paths = paths
        self.options = options
        self.flags = flags
        self.settings = table.make_settings(options)
        #: Skipped paths, by reason.
        self.passed_over: dict[str, list[str]] = {}
        self.from_stdin = paths == ["-"]
        self.source_bytes: dict[str, bytes] = {}
        self.stdin_name = stdin_filename or "<stdin>"
        self.sources = source_lines.SourceLines()
        #: Sentences about other actions, and about failed actions.
        self.notices: list[str] = []
        self.errors: list[str] = []
        #: Number of known findings that are not reported.
        self.known_count = 0
        #: Number of fixed findings, and the stream for the remaining findings.
        self.fixed_count = 0
        self.output_stream: TextIO = sys.stdout
        write_guard.check_baseline_path(options)
        write_guard.check_report_path(options)
        if self.from_stdin:
            from ..static import engine

            self.source_bytes[self.stdin_name] = source_lines.open_standard_input().buffer.read()
            source = _decode_standard_input(self.stdin_name, self.source_bytes[self.stdin_name])
            self.project = engine.single_file_project(source, self.stdin_name)
            self.findings = self.recheck_source(source)
            self.checked_files = [self.stdin_name]
        else:
            report = self._check_files()
            self.findings, self.checked_files, self.project = report.findings, report.checked_files, report.tree
            self.passed_over = report.passed_over
            if options.verbose:
                from . import check_inspection

                check_inspection.show_reached(report.reached, sys.stderr)
            self.findings = self.remove_known(self.findings, first=True)
        counts = summaries.count_severities(finding.severity for finding in self.findings)
        self.file_count = len(self.checked_files)
        self.summary = summaries.summarize_counts(counts, self.file_count)
        if self.known_count:
            self.summary = f"{self.summary.removesuffix('.')} ({self.known_count:,} known)."

    def recheck_source(self, source: str) -> list[Finding]:
        """Check a source text in place of standard input."""
        from ..static import engine

        self.sources = source_lines.SourceLines({self.stdin_name: source})
        return self.remove_known(engine.check_in_project(source, self.stdin_name, self.settings, self.project))

    def recheck_files(self) -> list[Finding]:
        """Check the files again."""
        found = self._check_files().findings
        self.sources = source_lines.SourceLines()
        return self.remove_known(found)

    def _check_files(self) -> Report:
        return self._check_paths(self.paths, self.settings)

    def _check_paths(self, paths: list[str], settings: Settings, *, is_revision: bool = False) -> Report:
        nearer = table.make_settings_finder(
            self.options, settings, lambda folder: table.resolve_options(self.flags, start=folder)
        )
        return _run_engine(paths, settings, self.options, nearer, is_revision=is_revision)

    def are_all_excluded(self) -> bool:
        """Return True if files exist but patterns exclude them."""
        from ..static import engine

        return bool(self.passed_over.get(engine.EXCLUDED_REASON))

    def remove_known(self, findings: list[Finding], *, first: bool = False) -> list[Finding]:
        """Return the findings without known findings of a revision and of a baseline."""
        self.known_count = 0
        if self.options.diff_base is not None and not self.from_stdin:
            from . import changes

            before = table.make_settings(self.options)
            # The revision has other paths than the work tree, and git is not available there.
            before.files = before.files._replace(gitignore=False, exclude=(), include=())
            try:
                fresh = changes.find_new_since(
                    self.options.diff_base,
                    self.paths,
                    findings,
                    self.sources,
                    lambda paths: self._check_paths(paths, before, is_revision=True).findings,
                )
            except changes.NoRevision as error:
                raise InputFailure(str(error)) from None
            self.known_count += len(findings) - len(fresh)
            findings = fresh
        if self.options.baseline is None:
            return findings
        from . import baseline

        try:
            fresh = self._remove_baselined(self.options.baseline, findings, first)
            self.known_count += len(findings) - len(fresh)
            return fresh
        except baseline.BaselineError as error:
            raise InputFailure(str(error)) from None

    def _remove_baselined(self, path: str, findings: list[Finding], first: bool) -> list[Finding]:
        from . import baseline

        update = self.options.update_baseline and first
        if not os.path.exists(path):
            if not self.options.update_baseline:
                raise InputFailure(f"{path} does not exist: --update-baseline writes it")
            if self.options.shard is not None:
                raise InputFailure(f"{path} does not exist, and a part of the files cannot fill it: leave out --shard")
            baseline.create_baseline(path, findings, self.sources)
            self.notices.append(
                f"{finding_text.relative_path(path)} holds {format_count(len(findings), 'finding')} now."
            )
            return []
        known = baseline.Baseline(path)
        fresh = known.match_findings(findings, self.sources, self.checked_files)
        gone = sum(known.gone_counts.values())
        if update and gone:
            known.remove_gone()
            self.notices.append(f"{format_count(gone, 'finding')} less in {finding_text.relative_path(path)}.")
        elif gone and first:
            output.write_warning(
                f"{format_count(gone, 'finding')} of {finding_text.relative_path(path)} are gone: "
                "--update-baseline takes them out"
            )
        return fresh

    def has_files(self) -> bool:
        """Return True if there was a file to check, also if it belongs to another part of the files."""
        return self.from_stdin or bool(self.project.files)

    def has_no_input(self) -> bool:
        """Return True if there was no file to check, and no option allows this.

        Naming files together with ``force-exclude``, as pre-commit does, allows that no file remains.
        """
        left_out = self.options.force_exclude and not any(map(os.path.isdir, self.paths))
        return not (self.has_files() or left_out or self.options.allow_no_files)

    def has_failing(self) -> bool:
        """Return True if a finding fails the check."""
        return any(table.is_failing(self.options, finding.severity) for finding in self.findings)


def _run_engine(
    paths: list[str],
    settings: Settings,
    options: table.Options,
    nearer: Callable[[str], Settings | None],
    *,
    is_revision: bool = False,
) -> Report:
    from ..static import engine, processes
    from ..static.shards import Shard
    from ..static.sources import source_files

    show, wipe = output.make_progress(sys.stderr)
    try:
        # Analyzing a few files is as fast as reading the cache.
        cache = write_guard.find_cache_folder(options) if not is_revision and any(map(os.path.isdir, paths)) else None
        jobs = options.jobs or processes.count_processors()
        # A revision has other files, which would be divided in another way.
        shard = Shard(*options.shard) if options.shard is not None and not is_revision else None
        return engine.check_paths(paths, settings, show, jobs=jobs, cache=cache, nearer=nearer, shard=shard)
    except source_files.InputError as error:
        raise InputFailure(str(error)) from None
    except processes.EndedEarly:
        raise InputFailure(
            "one of the processes that read the files was killed, most likely because memory ran out: give --jobs 1,"
            " or fewer files at a time"
        ) from None
    finally:
        wipe()


def _decode_standard_input(name: str, data: bytes) -> str:
    from ..static.sources import code_blocks, source_files

    try:
        return code_blocks.decode_source(name, data)
    except source_files.Unreadable as error:
        raise InputFailure(f"standard input cannot be read: {error.reason}") from None


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
