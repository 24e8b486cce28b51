"""Engine: find files, prescan them, analyze the relevant files, check the graphs, and drop suppressed findings."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..protocol import torch_api
from ..protocol.byte_sizes import LARGEST_FILE
from ..protocol.events import Program, Site
from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import Finding
from ..protocol.rules import LABELS, RULES
from ..protocol.suppressions import Suppressions
from . import evidence
from .cross_file import drop_findings_by_other_files
from .deep_stack import with_deep_stack
from .evidence import collect_graph_calls
from .processes import run_in_processes, shared_arguments
from .project.project import Project
from .results import AnalysisResult, FileResult
from .sources import code_blocks, patterns, prefilter, source_files
from .sources.block import Block
from .sources.newer_syntax import Rejection, explain_rejection
from .sources.patterns import Code
from .sources.prefilter import Prescan
from .sources.source_files import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .cache import Cache
    from .entry_points import ReachedFunctions
    from .interpreter.visited_calls import Span

    Result = TypeVar("Result")

__all__ = ["InputError", "Report", "Settings", "check_paths", "check_source"]


#: Number of files that a process prescans at once.
PRESCAN_CHUNK = 100
#: Size of source, in bytes, above which worker processes pay off.
WORTH_PROCESSES = 1_000_000
#: Reasons for skipped files, as phrases after the number of files.
NO_AMP_REASON = "holding nothing of mixed precision"
EXCLUDED_REASON = "left out by `exclude`"
GIT_IGNORED_REASON = "ignored by git"
CIRCULAR_LINKS_REASON = "symbolic links that lead in a circle"
#: The rule that lists unanalyzed calls. The rule costs a record of every call.
UNANALYZED_CALL_CODE = "AMP904"


class Settings:
    """Settings of a check: findings to report, and options of the analysis.

    select            codes, already resolved (:mod:`pytest_amp_check.protocol.selection`)
    exclude           patterns of excluded files; with ``force_exclude`` also for files that the user names
    nearer            settings of nested folders, by real path; :func:`check_paths` adds the settings that it finds
    gitignore         if True, files that git ignores are skipped in a folder
    suppress          if True, comments suppress findings
    helpers           effects of unanalyzed wrappers (:mod:`~..protocol.declared_wrappers`), by dotted name
    torch             oldest torch version in use; None means that the project's own files say so
    devices           device types on which the code runs, if known
    largest           maximum size of a parsed file in bytes of code, 0 for no limit
    """

    __slots__ = (
        "devices",
        "exclude",
        "force_exclude",
        "gitignore",
        "helpers",
        "largest",
        "nearer",
        "per_file_ignores",
        "select",
        "severity",
        "suppress",
        "torch",
    )

    def __init__(
        self,
        select: frozenset[str] | None = None,
        per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = (),
        severity: Mapping[str, str] | None = None,
        exclude: tuple[str, ...] = (),
        *,
        force_exclude: bool = False,
        gitignore: bool = True,
        suppress: bool = True,
        helpers: Mapping[str, tuple[str, ...]] | None = None,
        torch: tuple[int, int] | None = None,
        devices: tuple[str, ...] = (),
        largest: int = LARGEST_FILE,
    ) -> None:
        self.select = (
            frozenset(code for code, rule in RULES.items() if rule.on_by_default) if select is None else select
        )
        self.per_file_ignores = per_file_ignores
        self.severity = dict(severity or {})
        self.exclude = exclude
        self.force_exclude = force_exclude
        self.nearer: dict[str, Settings] = {}
        self.gitignore = gitignore
        self.suppress = suppress
        self.helpers = dict(helpers or {})
        self.torch = torch
        self.devices = devices
        self.largest = largest

    def for_file(self, path: str) -> Settings:
        """Return the settings for a file: the settings of the nearest folder that has its own settings."""
        if not self.nearer:
            return self
        folders = source_files.folders_upward(os.path.dirname(os.path.realpath(path)))
        return next((self.nearer[folder] for folder in folders if folder in self.nearer), self)

    def __repr__(self) -> str:
        # The nearest folder around all files has these same settings.
        nearer = [(folder, own.describe()) for folder, own in sorted(self.nearer.items())]
        return f"Settings{(*self.describe(), *nearer)}"

    def describe(self) -> tuple[object, ...]:
        ignores = [(pattern, sorted(codes)) for pattern, codes in self.per_file_ignores]
        more = (self.suppress, self.torch, self.analysis_options())
        return sorted(self.select), ignores, sorted(self.severity.items()), more

    def analysis_options(self) -> tuple[object, ...]:
        """Return the settings that change the analysis, not only the reported findings."""
        return sorted(self.helpers.items()), self.devices, self.largest

    def configure_project(self, project: Project) -> Project:
        """Set the analysis options of a project, and return the project."""
        project.declared_wrappers, project.devices = self.helpers, self.devices
        return project


#: Function from the real path of a folder to the settings of that folder, or None.
Nearer = Callable[[str], Settings | None]


class Report:
    """Findings in order of file and line, with the number of checked files and the project.

    ``passed_over`` maps the reason why files were skipped to their paths, as the user wrote the paths. ``reached`` maps
    entry points to the functions that they reach.
    """

    __slots__ = ("files", "findings", "passed_over", "reached", "tree")

    def __init__(
        self,
        findings: list[Finding],
        files: int,
        project: Project,
        passed_over: dict[str, list[str]],
        reached_functions: ReachedFunctions | None = None,
    ) -> None:
        self.findings = findings
        self.files = files
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
    readings = without_gc(lambda: with_deep_stack(lambda: _analyze_text(text, filename, settings, project)).results)
    return _finish_findings(readings, [filename], settings, {filename: text})


def check_paths(
    paths: Sequence[str],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
    cache: str | None = None,
    nearer: Nearer | None = None,
) -> Report:
    """Return a report on files and on the files below directories, analyzed in up to ``jobs`` processes.

    A file that the user names is always analyzed; a file below a directory only if it may hold a mistake. ``progress``
    receives the number of finished files and of all files. ``cache`` is a directory that keeps results for the next
    run. ``nearer`` returns the settings of a folder, by its real path, or None.

    Raise :class:`InputError` for a missing path and for a ``cache`` that is no cache. Raise
    :class:`~.processes.EndedEarly` if a worker process is killed.
    """
    return without_gc(lambda: _check_paths(paths, settings or Settings(), progress, jobs, cache, nearer))


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
) -> Report:
    skipped = source_files.SkippedPaths()
    files = find_files(paths, settings, nearer, skipped)
    store: Cache | None = None
    # Visited calls are not kept from run to run: few runs ask for them.
    if cache is not None and all(
        UNANALYZED_CALL_CODE not in each.select for each in (settings, *settings.nearer.values())
    ):
        from .cache import Cache, refuse_foreign

        refuse_foreign(cache)
        store = Cache(cache, paths, repr(settings), repr(settings.analysis_options()))
    return check_files(files, paths, frozenset(paths), settings, progress, jobs, store, skipped=skipped)


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
) -> Report:
    """Return a report on the files found below ``paths``. Of the files in ``named`` the user gave the path.

    With ``skipped``, the report also covers files that import the named files, and lists the skipped paths. ``wanted``
    limits the findings to these files; None means all files.
    """
    tree = settings.configure_project(Project(settings.largest))
    scan = _prescan_all(files, jobs, store, settings.largest)
    for look in scan.prescans:
        tree.add_prescan(look.path, look)
    tree.add_files(files, paths)
    used = _prescan_users(scan.prescans, named, tree, settings) if skipped is not None else []
    for look in used:
        tree.add_prescan(look.path, look)
    todo = _files_to_analyze([*scan.prescans, *used], tree)
    readings, work = _load_known_results(todo, tree, store)
    if progress is not None and len(work) < len(todo):
        progress(len(todo) - len(work), len(todo))
    for done, answer in enumerate(_analyze_files(work, settings, tree, jobs), len(todo) - len(work) + 1):
        readings += answer.results
        if store is not None:
            store.keep_result(answer)
        if progress is not None:
            progress(done, len(todo))
    if store is not None:
        store.write_cache()
    findings: list[Finding] = []
    for path, line, reason in scan.unreadable_files:
        findings += _apply_settings([_unreadable_finding(path, line, reason)], path, settings)
    beside = [*(look.path for look in used), *tree.members] if skipped is not None else None
    findings += _finish_findings(readings, files, settings, beside=beside, wanted=wanted)
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
    return Report(
        findings,
        len(files),
        tree,
        {reason: these for reason, these in passed.items() if these},
        _merge_reached(readings),
    )


def find_files(
    paths: Sequence[str], settings: Settings, nearer: Nearer | None, skipped: source_files.SkippedPaths | None = None
) -> list[str]:
    """Return the files to check.

    Store the settings of nested folders in ``settings``, and skipped paths in ``skipped``.
    """

    def exclusion_of_folder(folder: str) -> source_files.ExclusionTest | None:
        own = _settings_of_folder(folder, settings, nearer)
        return source_files.exclusion_test(own.exclude) if own is not None else None

    def is_forced(path: str) -> bool:
        return is_excluded(path, settings, nearer, named=True)

    return source_files.find_sources(
        paths,
        settings.exclude,
        skipped,
        exclusion_of_folder if nearer is not None else None,
        is_forced,
        gitignore=settings.gitignore,
    )


def is_excluded(path: str, settings: Settings, nearer: Nearer | None, *, named: bool, base: str = os.curdir) -> bool:
    """Return True if ``exclude`` in the nearest settings excludes a file, also a file that the user named.

    The patterns do not apply to the folders above the settings, or above ``base`` if no folder has settings.
    """
    real = os.path.realpath(path)
    folders = source_files.folders_upward(os.path.dirname(real))
    top = next((folder for folder in folders if _settings_of_folder(folder, settings, nearer)), os.path.realpath(base))
    own = settings.nearer.get(top, settings)
    if named and not own.force_exclude:
        return False
    return source_files.is_excluded_below(real, top, source_files.exclusion_test(own.exclude))


def _settings_of_folder(folder: str, settings: Settings, nearer: Nearer | None) -> Settings | None:
    """Return the settings that begin at a folder, or None."""
    if nearer is not None and folder not in settings.nearer:
        own = nearer(folder)
        if own is not None:
            settings.nearer[folder] = own
    return settings.nearer.get(folder)


def _prescan_all(files: list[str], jobs: int, store: Cache | None, largest: int) -> _PrescanResults:
    """Prescan every file that changed since the last run."""
    scan = _PrescanResults([], [])
    fresh = files
    if store is not None:
        known = {path: store.find_prescan(path) for path in files}
        scan.prescans.extend(filter(None, known.values()))
        fresh = [path for path, look in known.items() if look is None]
    chunks = [fresh[start : start + PRESCAN_CHUNK] for start in range(0, len(fresh), PRESCAN_CHUNK)]
    for found in run_in_processes(_prescan_chunk, chunks, jobs, largest):
        scan.prescans.extend(found.prescans)
        scan.unreadable_files.extend(found.unreadable_files)
        if store is not None:
            for look in found.prescans:
                store.add_prescan(look)
    return scan


def _prescan_users(seen: list[Prescan], named: frozenset[str], project: Project, settings: Settings) -> list[Prescan]:
    """Prescan the files that import a named file, and add the surroundings of the named files to the project."""
    relevant_paths = [look.path for look in seen if look.path in named and _may_have_mistake(look, settings.largest)]
    if not relevant_paths:
        return []
    from .importing_files import ImportingFiles

    importing = ImportingFiles(relevant_paths, settings.exclude, settings.largest, gitignore=settings.gitignore)
    project.add_surroundings(importing.relevant_code(), importing.files, is_complete=importing.is_complete)
    users = importing.find_importing_files([path for path in relevant_paths if path.endswith(".py")], project)
    return _prescan_all(users, 1, None, settings.largest).prescans


def _may_have_mistake(prescan: Prescan, largest: int) -> bool:
    """Return True if a file may hold a mistake, alone or through the files that import it."""
    if prescan.may_have_findings or not prescan.path.endswith(".py"):
        return prescan.may_have_findings and prescan.path.endswith(source_files.PROGRAMS)
    return patterns.may_affect_importer(source_files.load_or_nothing(prescan.path, largest))


def _load_known_results(
    todo: list[Prescan], project: Project, store: Cache | None
) -> tuple[list[AnalysisResult], list[Prescan]]:
    """Return the results of the last run that still hold, and the files to analyze."""
    if store is None:
        return [], list(todo)
    store.find_changes(project)
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
    yield from run_in_processes(_analyze_path, [look.path for look in work], jobs if enough else 1, (settings, project))


def _files_to_analyze(seen: list[Prescan], project: Project) -> list[Prescan]:
    """Return the files to analyze: files that may hold a mistake, alone or together with such a file."""
    todo: list[Prescan] = []
    others: list[Prescan] = []
    for look in seen:
        (todo if look.may_have_findings else others).append(look)
    # A base class may call methods that a subclass defines; this file may save objects that another file trains.
    classes = set[bytes]().union(*(look.class_names or () for look in todo))
    training = {os.path.abspath(look.path) for look in todo if look.path.endswith(".py")}
    stems = {os.fsencode(source_files.import_stem(path)) for path in training}
    parts = {os.path.abspath(look.path) for look in others if look.does_training_part and look.path.endswith(".py")}

    def takes_part(prescan: Prescan) -> bool:
        if not classes.isdisjoint(prescan.base_names or ()):
            return True
        # Few files share a name, so this test is rare.
        if stems.isdisjoint(prescan.imported_names or ()):
            return False
        imported = project.static_imports(prescan.path)
        # A file that trains nothing may connect a file that trains with a file that saves.
        return not training.isdisjoint(imported) and (prescan.does_training_part or not parts.isdisjoint(imported))

    return todo + [look for look in others if takes_part(look)]


class _PrescanResults(NamedTuple):
    """Results of prescans, and unreadable files: path, line and reason."""

    prescans: list[Prescan]
    unreadable_files: list[tuple[str, int, str]]


def _prescan_chunk(paths: list[str]) -> _PrescanResults:
    return with_deep_stack(lambda: _prescan_files(paths))


def _prescan_files(paths: list[str]) -> _PrescanResults:
    largest: int = shared_arguments()
    scan = _PrescanResults([], [])
    for path in paths:
        try:
            scan.prescans.append(prefilter.prescan_file(path, largest=largest))
        except source_files.Unreadable as error:
            scan.unreadable_files.append((path, error.line, str(error)))
    return scan


def _analyze_path(path: str) -> FileResult:
    settings: Settings
    tree: Project
    settings, tree = shared_arguments()
    try:
        text = code_blocks.decode_source(path, code_blocks.load_source(path, settings.largest))
    except source_files.Unreadable as error:
        return FileResult(path, [_unreadable_result(path, error.line, str(error))], is_cacheable=False)
    return with_deep_stack(lambda: _analyze_text(text, path, settings, tree))


def _analyze_text(text: str, path: str, settings: Settings, project: Project) -> FileResult:
    """Return the results for the code blocks of one file.

    Findings of documents are final here, because no other file calls code in a document.
    """
    project.begin_file()
    try:
        blocks = code_blocks.split_blocks(path, text, settings.largest)
    except source_files.Unreadable as error:
        return FileResult(path, [_unreadable_result(path, error.line, str(error))])
    answer = FileResult(path, [])
    block_project, may_be_in_region = project, False
    if code_blocks.is_markdown(path):
        # A code block in a document is a fragment, and no part of the programs of this project.
        block_project, may_be_in_region = settings.configure_project(Project(settings.largest)), True
        block_project.add_prescan(path, Code(text.encode("utf-8", "replace")))
    elif len(blocks) > 1:
        # One block may enter another block.
        may_be_in_region = "autocast" in text
    for number, block in enumerate(blocks):
        if block.parse_error:
            reading = _rejected_result(path, block.parse_error, block.text)
        else:
            try:
                reading = analyze(
                    block.text,
                    path,
                    block_project,
                    may_be_in_region=may_be_in_region,
                    collects_calls=UNANALYZED_CALL_CODE in settings.for_file(path).select,
                )
            except (RecursionError, MemoryError):
                reading = _unreadable_result(path, 1, "its code is nested too deeply to be analysed", text=block.text)
                answer.is_cacheable = False
        if block.line_positions is not None:
            reading = _finish_block(reading, block, f"{path}:{number}", settings)
        answer.results.append(reading)
    answer.dependencies, answer.import_targets, answer.depends_on_all = (
        project.dependencies,
        project.import_targets,
        project.depends_on_all,
    )
    if answer.depends_on_all:
        # The dependencies are then most of the files, and a list of them adds nothing.
        answer.dependencies, answer.import_targets = set(), {}
    return answer


def _finish_block(result: AnalysisResult, block: Block, name: str, settings: Settings) -> AnalysisResult:
    """Return the result of a code block with finished findings; ``name`` stands for the block as a file name."""
    path = result.path
    selected = evidence.select_findings([result], result.reached_functions)
    own_findings = _suppress_findings(
        [f for f in (*selected, *_unanalyzed_findings([result])) if f.site.path == path], block.text, path, settings
    )
    others = [f for f in selected if f.site.path != path]
    for finding in others:
        entries = finding.entries.items()
        finding.entries = {
            (name if entry_path == path else entry_path, line): calls for (entry_path, line), calls in entries
        }
    reached = {
        (name, line): {function for function in functions if function[0] != path}
        for (_, line), functions in result.reached_functions.items()
    }
    made = AnalysisResult(path, block.move_findings(others, path), reached)
    made.graph_calls = {(name, line): calls for (_, line), calls in result.graph_calls.items()}
    made.finished_findings = block.move_findings(own_findings, path)
    return made


def _merge_reached(results: Sequence[AnalysisResult]) -> ReachedFunctions:
    """Merge the entry points of all results, with the functions that each entry point reaches."""
    reached: ReachedFunctions = {}
    for reading in results:
        for entry, functions in reading.reached_functions.items():
            reached.setdefault(entry, set()).update(functions)
    return reached


def _unanalyzed_findings(results: Sequence[AnalysisResult]) -> list[Finding]:
    """Return findings for the protocol calls that no result covers."""
    if not any(reading.protocol_calls for reading in results):
        return []
    from .unanalyzed_calls import unanalyzed_findings

    passed: dict[Span, bool] = {}
    for reading in results:
        for span, is_analyzed in reading.visited_calls.items():
            passed[span] = passed.get(span, False) or is_analyzed
    return [finding for reading in results for finding in unanalyzed_findings(reading.protocol_calls, passed)]


def _finish_findings(
    results: list[AnalysisResult],
    files: list[str],
    settings: Settings,
    texts: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    wanted: frozenset[str] | None = None,
) -> list[Finding]:
    """Return the findings in all files, without suppressed findings and with unused suppressions.

    If the other files ``beside`` these are known, findings in them are moved to the checked files that take part.
    """
    named = frozenset(files)
    by_path: dict[str, list[Finding]] = {
        reading.path: [] for reading in results if reading.has_own_comments and reading.path in named
    }
    other_files: dict[str, list[Finding]] = {}

    def text_of(path: str) -> str:
        return _read_text(path, settings)

    kept = drop_findings_by_other_files(
        evidence.select_findings(results, _merge_reached(results)), [*files, *(beside or ())], text_of
    )
    for finding in (*kept, *_unanalyzed_findings(results)):
        (by_path if finding.site.path in named else other_files).setdefault(finding.site.path, []).append(finding)
    settled = [finding for reading in results if reading.path in named for finding in reading.finished_findings]
    if beside is not None:
        settled += _participating_findings(other_files, named, settings)
    for path, findings in by_path.items():
        if wanted is not None and path not in wanted:
            continue
        text = texts[path] if texts and path in texts else text_of(path)
        settled += _suppress_findings(findings, text, path, settings)
    return sorted(_drop_irreplaceable(settled, settings), key=Finding.order)


def _participating_findings(
    away: dict[str, list[Finding]], named: frozenset[str], settings: Settings
) -> Iterator[Finding]:
    """Yield the findings in other files in which a checked file takes part, each at the line in the checked file.

    Exclusions and suppressions at the location of the mistake apply at every location that shows the mistake.
    """
    from .importing_files import move_to_named_file

    for path, findings in away.items():
        moved = [(finding, there) for finding in findings if (there := move_to_named_file(finding, named)) is not None]
        if moved and not is_excluded(path, settings, None, named=False):
            suppressions = (
                Suppressions.from_text(_read_text(path, settings))
                if settings.for_file(path).suppress
                else Suppressions()
            )
            kept = {
                id(f)
                for f in _apply_settings(
                    [f for f, _ in moved if not suppressions.suppresses_finding(f)], path, settings
                )
            }
            for finding, there in moved:
                if id(finding) in kept:
                    there.severity = finding.severity
                    yield there


def _read_text(path: str, settings: Settings) -> str:
    try:
        return source_files.read_python(path, settings.largest)
    except source_files.Unreadable:
        return ""


def _drop_irreplaceable(findings: list[Finding], settings: Settings) -> list[Finding]:
    """Drop findings about deprecated names without a replacement in the project's oldest torch."""
    if all(finding.code != "AMP901" for finding in findings):
        return findings
    from .project.project_context import ProjectContext

    context = ProjectContext(torch=settings.torch)

    def is_replaceable(finding: Finding) -> bool:
        path = finding.filename
        # A text without a file belongs to no project.
        return path.startswith("<") or context.may_support(path, torch_api.replacement_version(finding.names["old"]))

    return [finding for finding in findings if finding.code != "AMP901" or is_replaceable(finding)]


def _apply_settings(findings: list[Finding], path: str, settings: Settings) -> list[Finding]:
    """Return the findings in a file that the settings select, with the severity from the settings."""
    settings = settings.for_file(path)
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active]
    for finding in kept:
        finding.severity = settings.severity.get(finding.code, finding.severity)
    kept.sort(key=Finding.order)
    return kept


def _unreadable_result(path: str, line: int, reason: str, *, text: str = "") -> AnalysisResult:
    """Return the result for a text that cannot be analyzed."""
    return AnalysisResult(
        path, [_unreadable_finding(path, line, reason)], {}, has_own_comments=Suppressions.has_own_comment(text)
    )


def _rejected_result(path: str, rejection: Rejection, text: str) -> AnalysisResult:
    """Return the result for a text that Python's parser rejects."""
    found = _unreadable_finding(path, rejection.line, rejection.reason)
    if rejection.python_version:
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        rule, violation = LABELS["source:newer-python"]
        message = violation.message.format(python=rejection.python_version, running=running)
        severity = violation.severity or rule.severity
        found = Finding(rule.code, rule.name, severity, message, found.site, label="source:newer-python")
    return AnalysisResult(path, [found], {}, has_own_comments=Suppressions.has_own_comment(text))


def _unreadable_finding(path: str, line: int, reason: str) -> Finding:
    rule, violation = LABELS["source:unreadable"]
    message = violation.message.format(reason=reason)
    return Finding(rule.code, rule.name, rule.severity, message, Site(path, line), label="source:unreadable")


def _suppress_findings(findings: list[Finding], text: str, path: str, settings: Settings) -> list[Finding]:
    """Return the findings in one text, without suppressed findings and with unused suppressions."""
    # Without a finding to suppress, only a comment of amp-check itself can be unused.
    settings = settings.for_file(path)
    wanted = settings.suppress and (findings or Suppressions.has_own_comment(text))
    suppressions = Suppressions.from_text(text) if wanted else Suppressions()
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active and not suppressions.suppresses_finding(f)]
    rule, violation = LABELS["suppression:unused"]
    if rule.code in active:
        for line, column, end_column, words in suppressions.find_unused(active):
            message = violation.message.format(reason=words)
            site = Site(path, line, column, line, end_column)
            finding = Finding(rule.code, rule.name, rule.severity, message, site, label="suppression:unused")
            finding.names["reason"] = words
            if not suppressions.suppresses_finding(finding):
                kept.append(finding)
        malformed = LABELS["suppression:malformed"][1]
        for comment in suppressions.malformed_comments:
            site = Site(path, comment.line, comment.column, comment.line, comment.end_column)
            message = malformed.message.format(remedy=comment.remedy)
            kept.append(Finding(rule.code, rule.name, rule.severity, message, site, label="suppression:malformed"))
    return _apply_settings(kept, path, settings)


def _ignored_codes(path: str, settings: Settings) -> frozenset[str]:
    """Return the codes that the configuration ignores in a file."""
    ignored: frozenset[str] = frozenset()
    if settings.per_file_ignores:
        real = os.path.realpath(path)
        for pattern, codes in settings.per_file_ignores:
            bare = pattern.removeprefix("!")
            if source_files.exclusion_test((bare,))(os.path.basename(real), real) == (bare == pattern):
                ignored |= codes
    return ignored


def analyze(
    text: str, path: str, project: Project, *, may_be_in_region: bool = False, collects_calls: bool = False
) -> AnalysisResult:
    """Return all findings in one text, before selection and suppression.

    ``may_be_in_region`` says that other code may run the text in an autocast region. ``collects_calls`` records the
    calls for the report of unanalyzed calls.

    Raise RecursionError or MemoryError for code that is nested too deeply.
    """
    import ast

    from ..protocol.graph_checker import check, check_without_callers
    from .entry_points import analyze_functions, analyze_module
    from .interpreter.visited_calls import VisitedCalls
    from .program_summary import mark_bare_scales, summarize_program
    from .project import import_reach
    from .project.marimo import as_one_program
    from .project.module import Module
    from .project.relevance import mark_relevant
    from .unanalyzed_calls import collect_calls

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parsed = as_one_program(ast.parse(text), text)
        except (SyntaxError, ValueError) as error:
            return _rejected_result(path, explain_rejection(text, error), text)
    program = Program()
    module = Module(path, text, parsed)
    mark_relevant(module, project.relevant_imports(module, path))
    program.attributes.enters_autocast = may_be_in_region or any("autocast" in name for name in module.identifiers)
    program.attributes.fragment = code_blocks.is_markdown(path)
    program.attributes.lightning16 = project.has_lightning16
    program.attributes.resumes = project.may_resume
    visited_calls = VisitedCalls() if collects_calls else None
    calls = collect_calls(module) if collects_calls else []
    try:
        reached = analyze_module(module, program, project, visited_calls)
        summarize_program(program, lambda: import_reach.is_near_float16(project, path, parsed))
        if not may_be_in_region:
            mark_bare_scales(program, lambda: import_reach.iterate_autocast_entries(project, path, parsed))
        findings = check(program)
        joined = [graph.entry_point for graph in program.graphs if graph.was_widened]
        inside = {
            function for entry in joined for function in reached[entry] if function[0] == path and function != entry
        }
        if inside:
            # The joined states of the caller may hide a violation in a function, also in one analyzed before.
            separate_program = Program()
            separate_program.attributes = program.attributes.copy()
            own_reached = analyze_functions(module, separate_program, project, inside)
            summarize_program(separate_program, lambda: import_reach.is_near_float16(project, path, parsed))
            again = own_reached.keys() & reached.keys()
            findings = [finding for finding in findings if not finding.entries or finding.entries.keys() - again]
            findings += check_without_callers(separate_program)
            for entry in joined:
                reached[entry] -= own_reached.keys()
            reached.update(own_reached)
    finally:
        # Release here, on the deep stack: from Python 3.13 on, freeing a deep tree needs as much stack as parsing the
        # tree.
        module.release_references()
    enters_itself = program.attributes.enters_autocast
    # The region may be in another file that the analysis read.
    program.attributes.enters_autocast = enters_itself or any(
        tracked_object.role == "autocast" for tracked_object in program.objects
    )
    reading = AnalysisResult(path, findings, reached, has_own_comments=Suppressions.has_own_comment(text))
    reading.graph_calls = collect_graph_calls(program)
    if visited_calls is not None:
        reading.protocol_calls, reading.visited_calls = calls, visited_calls.calls
    return reading
