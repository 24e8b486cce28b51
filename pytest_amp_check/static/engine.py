"""Engine: find files, prescan them, analyze the relevant files, and finish the findings."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence

from ..protocol.finding import Finding
from .deep_stack import with_deep_stack
from .file_analysis import UNANALYZED_CALL_CODE, analyze_path, analyze_text, unreadable_finding
from .file_search import find_files
from .final_findings import apply_settings, finish_findings, merge_reached
from .prescans import files_to_analyze, prescan_changed_files, prescan_importing_files
from .processes import run_in_processes
from .project.project import Project
from .results import AnalysisResult, FileResult
from .settings import Nearer, Settings
from .shards import Shard, ShardedFiles
from .sources import code_blocks, source_files
from .sources.patterns.code import Code
from .sources.prefilter import Prescan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .cache import Cache
    from .entry_points import ReachedFunctions

    Result = TypeVar("Result")


#: Size of source, in bytes, above which worker processes pay off.
WORTH_PROCESSES = 1_000_000
#: Reasons for skipped files, as phrases after the number of files.
NO_AMP_REASON = "holding nothing of mixed precision"
EXCLUDED_REASON = "left out by `exclude` or `include`"
GIT_IGNORED_REASON = "ignored by git"
CIRCULAR_LINKS_REASON = "symbolic links that lead in a circle"


class Report:
    """Findings in order of file and line, with the paths of the checked files and the project.

    ``passed_over`` maps the reason why files were skipped to their paths, as the user wrote the paths. ``reached`` maps
    entry points to the functions that they reach.
    """

    __slots__ = ("checked_files", "files", "findings", "passed_over", "reached", "tree")

    def __init__(
        self,
        findings: list[Finding],
        checked_files: list[str],
        project: Project,
        passed_over: dict[str, list[str]],
        reached_functions: ReachedFunctions | None = None,
    ) -> None:
        self.findings = findings
        self.checked_files = checked_files
        self.files = len(checked_files)
        self.tree = project
        self.passed_over = passed_over
        self.reached = reached_functions or {}


def check_source(text: str, filename: str = "<string>", settings: Settings | None = None) -> list[Finding]:
    """Return the findings in one source text. The text may begin with a byte order mark."""
    text = text.removeprefix("\ufeff")
    return check_in_project(text, filename, settings or Settings(), single_file_project(text, filename))


def single_file_project(text: str, filename: str) -> Project:
    """Return a project with one source text and no other file."""
    tree = Project()
    tree.add_prescan(filename, Code(code_blocks.code_bytes(filename, text.encode("utf-8", "replace"))))
    return tree


def check_in_project(text: str, filename: str, settings: Settings, project: Project) -> list[Finding]:
    """Return the findings for a text as the content of a file in a project."""
    settings.configure_project(project)
    readings = without_gc(lambda: with_deep_stack(lambda: analyze_text(text, filename, settings, project)).results)
    return finish_findings(readings, [filename], settings, {filename: text})


def check_paths(
    paths: Sequence[str | os.PathLike[str]],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    cache: str | None = None,
    nearer: Nearer | None = None,
    shard: Shard | None = None,
) -> Report:
    """Return a report on files and on the files below directories, analyzed in up to ``jobs`` processes.

    A file that the user names is always analyzed; a file below a directory only if it may hold a mistake. ``progress``
    receives the number of finished files and of all files. ``cache`` is a directory that keeps results for the next
    run. ``nearer`` returns the settings of a folder, by its real path, or None. ``shard`` limits the findings to one
    part of the files.

    Raise ``InputError`` for a missing path and for a ``cache`` that is no cache. Raise
    ``EndedEarly`` if a worker process is killed.
    """
    named = [os.fspath(path) for path in paths]
    return without_gc(lambda: _check_paths(named, settings or Settings(), progress, jobs, cache, nearer, shard))


def without_gc(act: Callable[[], Result]) -> Result:
    """Call ``act`` without garbage collection: it creates very many objects and leaves no reference cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return act()
    finally:
        if collecting:
            gc.enable()


def _check_paths(
    paths: Sequence[str],
    settings: Settings,
    progress: Callable[[int, int], None] | None,
    jobs: int,
    cache: str | None,
    nearer: Nearer | None,
    shard: Shard | None,
) -> Report:
    skipped = source_files.SkippedPaths()
    files = find_files(paths, settings, nearer, skipped)
    store: Cache | None = None
    # Visited calls are not kept from run to run: few runs ask for them.
    if cache is not None and not _reports_calls(settings):
        from .cache import Cache, refuse_foreign

        refuse_foreign(cache)
        store = Cache(cache, paths, repr(settings), repr(settings.analysis_options()), repr(shard or ""))
    return check_files(files, paths, frozenset(paths), settings, progress, jobs, store, skipped=skipped, shard=shard)


def _reports_calls(settings: Settings) -> bool:
    """Return True if the report lists unanalyzed calls, which any file may reach."""
    return any(UNANALYZED_CALL_CODE in each.select for each in (settings, *settings.nearer.values()))


def check_files(
    files: list[str],
    paths: Sequence[str],
    named: frozenset[str],
    settings: Settings,
    progress: Callable[[int, int], None] | None,
    jobs: int = 1,
    store: Cache | None = None,
    *,
    skipped: source_files.SkippedPaths | None = None,
    wanted: frozenset[str] | None = None,
    shard: Shard | None = None,
) -> Report:
    """Return a report on the files found below ``paths``. Of the files in ``named`` the user gave the path.

    With ``skipped``, the report also covers files that import the named files, and lists the skipped paths. ``wanted``
    limits the findings to these files; None means all files. ``shard`` limits them to one part of the files.
    """
    tree = settings.configure_project(Project(settings.largest))
    scan = prescan_changed_files(files, jobs, store, settings.largest)
    for look in scan.prescans:
        tree.add_prescan(look.path, look)
    tree.add_files(files, paths)
    used = prescan_importing_files(scan.prescans, named, tree, settings) if skipped is not None else []
    for look in used:
        tree.add_prescan(look.path, look)
    todo = files_to_analyze([*scan.prescans, *used], tree, named)
    if store is not None:
        store.find_changes(tree)

    def results_of(looks: list[Prescan]) -> list[AnalysisResult]:
        readings, work = _load_known_results(looks, tree, store)
        if progress is not None and len(work) < len(looks):
            progress(len(looks) - len(work), len(looks))
        for done, answer in enumerate(_analyze_files(work, settings, tree, jobs), len(looks) - len(work) + 1):
            readings += answer.results
            if store is not None:
                store.keep_result(answer)
            if progress is not None:
                progress(done, len(looks))
        return readings

    parts = ShardedFiles(todo, shard) if shard is not None else None
    readings = results_of([look for look in todo if parts is None or parts.contains(look.path)])
    if parts is not None:
        others = [look for look in todo if not parts.contains(look.path)]
        if _reports_calls(settings):
            readings += results_of(others)
        else:
            readings += results_of(parts.files_with_findings(others, readings))
            readings += results_of(parts.files_with_evidence(others, readings, tree))
    if store is not None:
        store.write_cache()
    findings: list[Finding] = []
    for path, line, reason in scan.unreadable_files:
        findings += apply_settings([unreadable_finding(path, line, reason)], path, settings)
    beside = [*(look.path for look in used), *tree.members] if skipped is not None else None
    findings += finish_findings(readings, files, settings, beside=beside, wanted=wanted)
    findings.sort(key=Finding.order)
    read = {look.path for look in todo}
    quiet = [look.path for look in scan.prescans if look.path not in read]
    passed = {NO_AMP_REASON: sorted(quiet)}
    if skipped is not None:
        passed |= {
            EXCLUDED_REASON: skipped.excluded_paths,
            GIT_IGNORED_REASON: skipped.git_ignored_paths,
            CIRCULAR_LINKS_REASON: skipped.circular_links,
        }
    if parts is not None:
        findings, files = parts.own_findings(findings, readings), [*filter(parts.contains, files)]
        passed = {reason: [*filter(parts.contains, these)] for reason, these in passed.items()}
    return Report(
        findings,
        files,
        tree,
        {reason: these for reason, these in passed.items() if these},
        merge_reached(readings),
    )


def _load_known_results(
    todo: list[Prescan], project: Project, store: Cache | None
) -> tuple[list[AnalysisResult], list[Prescan]]:
    """Return the results of the last run that still hold, and the files to analyze."""
    if store is None:
        return [], list(todo)
    readings: list[AnalysisResult] = []
    work: list[Prescan] = []
    for look in todo:
        found = store.find_results(look.path, project)
        if found is None:
            work.append(look)
        else:
            readings += found
    return readings, work


def _analyze_files(work: list[Prescan], settings: Settings, project: Project, jobs: int) -> Iterator[FileResult]:
    """Yield the result of each file as its analysis ends."""
    if not work:
        return
    # Import once, before processes start that would each import the module.
    from . import entry_points  # noqa: F401

    # Largest first, so that no process is left with a large file at the end.
    work.sort(key=lambda look: (look.size, look.path), reverse=True)
    enough = sum(look.size for look in work) > WORTH_PROCESSES
    yield from run_in_processes(analyze_path, [look.path for look in work], jobs if enough else 1, (settings, project))
