"""One check: what is asked of the engine, and what of its findings is left where some are known already."""

from __future__ import annotations

import os
import sys

from . import options as table
from . import reach, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

    from ..protocol.finding import Finding
    from ..static.engine import Report, Settings


class InputFailure(Exception):
    """What was given cannot be used; the message is one sentence."""


class Check:
    """One check: what it has found, and what is known of what it has read."""

    def __init__(
        self, paths: list[str], options: table.Options, stdin_filename: str | None, flags: dict[str, Any]
    ) -> None:
        self.paths = paths
        self.options = options
        self.flags = flags
        self.settings = table.settings(options)
        #: Paths by why nothing was read in them.
        self.passed_over: dict[str, list[str]] = {}
        self.stdin = paths == ["-"]
        self.data: dict[str, bytes] = {}
        self.name = stdin_filename or "<stdin>"
        self.sources = text.Sources()
        #: Sentences about what else was done, and those about what could not be.
        self.said: list[str] = []
        self.wrong: list[str] = []
        #: Findings that are known and not told of.
        self.known = 0
        #: How many findings were put right, and where what is left is shown.
        self.fixed = 0
        self.shown: TextIO = sys.stdout
        reach.baseline(options)
        reach.report(options)
        if self.stdin:
            from ..static import engine

            self.data[self.name] = text.standard_input().buffer.read()
            source = _standard_input(self.name, self.data[self.name])
            self.tree = engine.alone(source, self.name)
            self.findings = self.read_again(source)
            self.files = 1
        else:
            report = self._report()
            self.findings, self.files, self.tree = report.findings, report.files, report.tree
            self.passed_over = report.passed_over
            if options.verbose:
                from . import inspecting

                inspecting.show_reached(report.reached, sys.stderr)
            self.findings = self.narrowed(self.findings, first=True)
        counts = text.count(finding.severity for finding in self.findings)
        self.summary = text.tally(counts, self.files)
        if self.known:
            self.summary = f"{self.summary.removesuffix('.')} ({self.known:,} known)."

    def read_again(self, source: str) -> list[Finding]:
        """What standard input holds, or would hold."""
        from ..static import engine

        self.sources = text.Sources({self.name: source})
        return self.narrowed(engine.check_again(source, self.name, self.settings, self.tree))

    def look_again(self) -> list[Finding]:
        """What is found in the files now."""
        found = self._report().findings
        self.sources = text.Sources()
        return self.narrowed(found)

    def _report(self) -> Report:
        return self._checked(self.paths, self.settings)

    def _checked(self, paths: list[str], settings: Settings, *, cached: bool = True) -> Report:
        nearer = table.nearer(self.options, settings, lambda folder: table.resolve(self.flags, start=folder))
        return _checked(paths, settings, self.options, nearer, cached=cached)

    def all_excluded(self) -> bool:
        """Whether there were files, and patterns left them out."""
        from ..static import engine

        return bool(self.passed_over.get(engine.EXCLUDED))

    def narrowed(self, findings: list[Finding], *, first: bool = False) -> list[Finding]:
        """The findings without those that are known: of a revision, and of a baseline."""
        self.known = 0
        if self.options.diff_base is not None and not self.stdin:
            from . import changes

            before = table.settings(self.options)
            # Its paths are not those of the work tree, and git is not at hand there.
            before.gitignore, before.exclude = False, ()
            try:
                fresh = changes.new_since(
                    self.options.diff_base,
                    self.paths,
                    findings,
                    self.sources,
                    lambda paths: self._checked(paths, before, cached=False).findings,
                )
            except changes.NoRevision as error:
                raise InputFailure(str(error)) from None
            self.known += len(findings) - len(fresh)
            findings = fresh
        if self.options.baseline is None:
            return findings
        from . import baseline

        try:
            fresh = self._unknown(self.options.baseline, findings, first)
            self.known += len(findings) - len(fresh)
            return fresh
        except baseline.Unusable as error:
            raise InputFailure(str(error)) from None

    def _unknown(self, path: str, findings: list[Finding], first: bool) -> list[Finding]:
        from . import baseline

        update = self.options.update_baseline and first
        if not os.path.exists(path):
            if not self.options.update_baseline:
                raise InputFailure(f"{path} does not exist: --update-baseline writes it")
            baseline.start(path, findings, self.sources)
            self.said.append(f"{text.below(path)} holds {count(len(findings), 'finding')} now.")
            return []
        known = baseline.Baseline(path)
        fresh = known.apply(findings, self.sources, [self.name] if self.stdin else list(self.tree.files.values()))
        gone = sum(known.gone.values())
        if update and gone:
            known.shrink()
            self.said.append(f"{count(gone, 'finding')} less in {text.below(path)}.")
        elif gone and first:
            text.warn(f"{count(gone, 'finding')} of {text.below(path)} are gone: --update-baseline takes them out")
        return fresh

    def looked_at_nothing(self) -> bool:
        """Whether there was no file to look at, and nobody has said that this is right.

        Who names files together with ``force-exclude``, as pre-commit does, says that none of them may be left.
        """
        left_out = self.options.force_exclude and not any(map(os.path.isdir, self.paths))
        return not (self.files or left_out or self.options.allow_no_files)

    def fails(self) -> bool:
        """Whether anything was found that fails."""
        return any(table.fails(self.options, finding.severity) for finding in self.findings)


def _checked(
    paths: list[str],
    settings: Settings,
    options: table.Options,
    nearer: Callable[[str], Settings | None],
    *,
    cached: bool = True,
) -> Report:
    from ..static import engine, processes

    show, wipe = text.progress(sys.stderr)
    try:
        # A few files are read as soon as what is known of them.
        cache = reach.cache(options) if cached and any(map(os.path.isdir, paths)) else None
        jobs = options.jobs or processes.processors()
        return engine.check_paths(paths, settings, show, jobs=jobs, cache=cache, nearer=nearer)
    except engine.InputError as error:
        raise InputFailure(str(error)) from None
    except processes.EndedEarly:
        raise InputFailure(
            "one of the processes that read the files was killed, most likely because memory ran out: give --jobs 1,"
            " or fewer files at a time"
        ) from None
    finally:
        wipe()


def _standard_input(name: str, data: bytes) -> str:
    from ..static.sources import programs, source_files

    try:
        return programs.decode(name, data)
    except source_files.Unreadable as error:
        raise InputFailure(f"standard input cannot be read: {error.reason}") from None


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
