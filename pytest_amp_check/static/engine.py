"""From paths to findings: finds the files, reads those that can matter, judges them, drops what is suppressed."""

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
from .cross_file import drop_exempt_findings
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


#: Files that a process takes at once for a first look.
PRESCAN_CHUNK = 100
#: Bytes of source from which on it pays to start processes.
WORTH_PROCESSES = 1_000_000
#: Why files are passed over, as it is said of a number of them.
NO_AMP_REASON = "holding nothing of mixed precision"
EXCLUDED_REASON = "left out by `exclude`"
GIT_IGNORED_REASON = "ignored by git"
CIRCULAR_LINKS_REASON = "symbolic links that lead in a circle"
#: The rule that lists blind spots, which cost a look at every call.
UNANALYZED_CALL_CODE = "AMP904"


class Settings:
    """What to report. ``select`` holds codes, already resolved; see :mod:`pytest_amp_check.protocol.selection`.

    ``force_exclude`` says that ``exclude`` holds for files that are named, too. ``nearer`` are the settings that hold
    from a folder on, by its real path: :func:`check_paths` puts those there that it finds.
    ``gitignore`` says whether what git ignores is left out of a folder, ``suppress`` whether comments silence findings,
    ``helpers`` what wrappers that cannot be read do (:mod:`~..protocol.wrappers`), by their dotted names, ``torch``
    which version is the oldest in use, where the project's own files are not to be asked, and ``devices`` the types of
    devices that code is run on, where that is known, and ``largest`` how many bytes of code of a file are parsed (0 for
    all of them).
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
        """What holds for a file: the settings of the nearest folder that has some."""
        if not self.nearer:
            return self
        folders = source_files.folders_upward(os.path.dirname(os.path.realpath(path)))
        return next((self.nearer[folder] for folder in folders if folder in self.nearer), self)

    def __repr__(self) -> str:
        # The settings of the nearest folder around all of it are these themselves.
        nearer = [(folder, own.describe()) for folder, own in sorted(self.nearer.items())]
        return f"Settings{(*self.describe(), *nearer)}"

    def describe(self) -> tuple[object, ...]:
        ignores = [(pattern, sorted(codes)) for pattern, codes in self.per_file_ignores]
        more = (self.suppress, self.torch, self.analysis_options())
        return sorted(self.select), ignores, sorted(self.severity.items()), more

    def analysis_options(self) -> tuple[object, ...]:
        """What of this decides how files are read, and not only what is told of them."""
        return sorted(self.helpers.items()), self.devices, self.largest

    def configure_project(self, project: Project) -> Project:
        """Have a tree know what these say of reading."""
        project.declared_wrappers, project.devices = self.helpers, self.devices
        return project


#: From the real path of a folder to the settings that hold from there on, where it has any of its own.
Nearer = Callable[[str], Settings | None]


class Report:
    """Findings in order of file and line, the number of files that were looked at, and what is known of them.

    ``passed_over`` holds paths by why nothing was read in them: in words, the paths as they are written. ``reached`` is
    what was read on its own, with the functions that this has led to.
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
    """Findings in one source text, which may begin with a byte order mark."""
    text = text.removeprefix("\ufeff")
    return check_in_project(text, filename, settings or Settings(), single_file_project(text, filename))


def single_file_project(text: str, filename: str) -> Project:
    """What is known of a source text that has no others beside it."""
    tree = Project()
    tree.add_prescan(filename, Code(code_blocks.code_bytes(filename, text.encode("utf-8", "replace"))))
    return tree


def check_in_project(text: str, filename: str, settings: Settings, project: Project) -> list[Finding]:
    """Findings in what a file holds, or would hold, among files of which the tree is known."""
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
    """Findings in files, and in the files below directories, read by as many processes as ``jobs`` allows.

    A file that is named is read whatever it holds; one that was found below a directory, if it can hold a mistake.
    ``progress`` is told how many of how many files are done. ``cache`` is a directory that keeps what was found for the
    next time. ``nearer`` gives the settings that hold from a folder on, by its real path, where it has any of its own.
    Raises :class:`InputError` for a path that is not there and for a ``cache`` that is something else, and
    :class:`~.processes.EndedEarly` where one of the processes is killed.
    """
    return without_gc(lambda: _check_paths(paths, settings or Settings(), progress, jobs, cache, nearer))


def without_gc(act: Callable[[], Result]) -> Result:
    """Do something without looking for cycles among objects: it makes very many of them, and leaves no cycle."""
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
    # What was come by is not kept from run to run: it is asked for seldom.
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
    """Findings in the files that were found below ``paths``, of which ``named`` are read whatever they hold.

    ``left`` are those that were left out, where who uses the named ones is to be read, too. ``wanted`` are those whose
    findings are asked for, where that is not all.
    """
    tree = settings.configure_project(Project(settings.largest))
    scan = _prescan_all(files, named, jobs, store, settings.largest)
    for look in scan.prescans:
        tree.add_prescan(look.path, look)
    tree.add_files(files, paths)
    used = _prescan_users(scan.prescans, named, tree, settings) if skipped is not None else []
    for look in used:
        tree.add_prescan(look.path, look)
    todo = _files_to_analyze([*scan.prescans, *used], named, tree)
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
    """The files to check; the settings learn of those that are nearer to some of them, ``left`` what is left out."""

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
    """Whether ``exclude`` leaves out a file, which the user may have named, as the settings nearest to it say it.

    What these say does not speak of the folders around them, or around ``base`` where no folder has any.
    """
    real = os.path.realpath(path)
    folders = source_files.folders_upward(os.path.dirname(real))
    top = next((folder for folder in folders if _settings_of_folder(folder, settings, nearer)), os.path.realpath(base))
    own = settings.nearer.get(top, settings)
    if named and not own.force_exclude:
        return False
    return source_files.is_excluded_below(real, top, source_files.exclusion_test(own.exclude))


def _settings_of_folder(folder: str, settings: Settings, nearer: Nearer | None) -> Settings | None:
    """The settings that hold from a folder on, if it has any of its own."""
    if nearer is not None and folder not in settings.nearer:
        own = nearer(folder)
        if own is not None:
            settings.nearer[folder] = own
    return settings.nearer.get(folder)


def _prescan_all(
    files: list[str], named: frozenset[str], jobs: int, store: Cache | None, largest: int
) -> _PrescanResults:
    """A first look at every file that did not change since the last run."""
    scan = _PrescanResults([], [])
    fresh = files
    if store is not None:
        known = {path: store.find_prescan(path, named=path in named) for path in files}
        scan.prescans.extend(filter(None, known.values()))
        fresh = [path for path, look in known.items() if look is None]
    chunks = [fresh[start : start + PRESCAN_CHUNK] for start in range(0, len(fresh), PRESCAN_CHUNK)]
    valid: set[tuple[str, str]] = set()
    for found in run_in_processes(_prescan_chunk, chunks, jobs, (named, largest, valid)):
        scan.prescans.extend(found.prescans)
        scan.unreadable_files.extend(found.unreadable_files)
        if store is not None:
            for look in found.prescans:
                store.add_prescan(look)
    return scan


def _prescan_users(seen: list[Prescan], named: frozenset[str], project: Project, settings: Settings) -> list[Prescan]:
    """A first look at the files that were not named, and use one that was; the tree learns of what is around those."""
    relevant_paths = [look.path for look in seen if look.path in named and _may_have_mistake(look, settings.largest)]
    if not relevant_paths:
        return []
    from .importing_files import ImportingFiles

    importing = ImportingFiles(relevant_paths, settings.exclude, settings.largest, gitignore=settings.gitignore)
    project.add_surroundings(importing.relevant_code(), importing.files, is_complete=importing.is_complete)
    users = importing.find_importing_files([path for path in relevant_paths if path.endswith(".py")], project)
    return _prescan_all(users, frozenset(), 1, None, settings.largest).prescans


def _may_have_mistake(prescan: Prescan, largest: int) -> bool:
    """Whether a file may hold a mistake, by itself or for what others do with it."""
    if prescan.may_have_findings or not prescan.path.endswith(".py"):
        return prescan.may_have_findings and prescan.path.endswith(source_files.PROGRAMS)
    return patterns.may_affect_importer(source_files.load_or_nothing(prescan.path, largest))


def _load_known_results(
    todo: list[Prescan], project: Project, store: Cache | None
) -> tuple[list[AnalysisResult], list[Prescan]]:
    """What is known of files from the last run, and the files that are to be read."""
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
    """What reading files shows, as it comes."""
    if not work:
        return
    # Before processes start that would each do so.
    from . import entry_points  # noqa: F401

    # The largest first, so that no process is left with a large one at the end.
    work.sort(key=lambda look: (look.size, look.path), reverse=True)
    enough = sum(look.size for look in work) > WORTH_PROCESSES
    yield from run_in_processes(_analyze_path, [look.path for look in work], jobs if enough else 1, (settings, project))


def _files_to_analyze(seen: list[Prescan], named: frozenset[str], project: Project) -> list[Prescan]:
    """The files to read: what may hold a mistake, and what may do so together with one of these."""
    todo: list[Prescan] = []
    others: list[Prescan] = []
    for look in seen:
        (todo if look.may_have_findings or look.path in named else others).append(look)
    # What a class inherits may call what it defines; what trains elsewhere may be saved here.
    classes = set[bytes]().union(*(look.class_names or () for look in todo))
    training = {os.path.abspath(look.path) for look in todo if look.path.endswith(".py")}
    stems = {os.fsencode(source_files.import_stem(path)) for path in training}

    def takes_part(prescan: Prescan) -> bool:
        if not classes.isdisjoint(prescan.base_names or ()):
            return True
        # Few are called the same, so that this is asked of few.
        return not stems.isdisjoint(prescan.imported_names or ()) and not training.isdisjoint(
            project.static_imports(prescan.path)
        )

    return todo + [look for look in others if takes_part(look)]


class _PrescanResults(NamedTuple):
    """What a first look at some files has shown, and which of them cannot be read: where, and why."""

    prescans: list[Prescan]
    unreadable_files: list[tuple[str, int, str]]


def _prescan_chunk(paths: list[str]) -> _PrescanResults:
    return with_deep_stack(lambda: _prescan_files(paths))


def _prescan_files(paths: list[str]) -> _PrescanResults:
    named: frozenset[str]
    largest: int
    valid: set[tuple[str, str]]
    named, largest, valid = shared_arguments()
    scan = _PrescanResults([], [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in paths:
            try:
                scan.prescans.append(prefilter.prescan_file(path, largest=largest, named=path in named, valid=valid))
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
    """What the programs of one file show. Those of a document are settled here: nothing calls what is in them."""
    project.begin_file()
    try:
        blocks = code_blocks.split_blocks(path, text, settings.largest)
    except source_files.Unreadable as error:
        return FileResult(path, [_unreadable_result(path, error.line, str(error))])
    answer = FileResult(path, [])
    block_project, may_be_in_region = project, False
    if code_blocks.is_markdown(path):
        # What is shown is a part of something, and no part of this project's programs.
        block_project, may_be_in_region = settings.configure_project(Project(settings.largest)), True
        block_project.add_prescan(path, Code(text.encode("utf-8", "replace")))
    elif len(blocks) > 1:
        # One may be entered by another.
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
        # Then these are most of the files, and none of them says more.
        answer.dependencies, answer.import_targets = set(), {}
    return answer


def _finish_block(result: AnalysisResult, block: Block, name: str, settings: Settings) -> AnalysisResult:
    """What a program of a document shows, its own findings settled; ``name`` stands for it as if it were a file."""
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
    """What all readings together have read on its own, with the functions that this has led to."""
    reached: ReachedFunctions = {}
    for reading in results:
        for entry, functions in reading.reached_functions.items():
            reached.setdefault(entry, set()).update(functions)
    return reached


def _unanalyzed_findings(results: Sequence[AnalysisResult]) -> list[Finding]:
    """The calls of the protocol that none of the readings has judged."""
    if not any(reading.protocol_calls for reading in results):
        return []
    from .unanalyzed_calls import unanalyzed_findings

    passed: dict[Span, bool] = {}
    for reading in results:
        for span, judged in reading.visited_calls.items():
            passed[span] = passed.get(span, False) or judged
    return [finding for reading in results for finding in unanalyzed_findings(reading.protocol_calls, passed)]


def _finish_findings(
    results: list[AnalysisResult],
    files: list[str],
    settings: Settings,
    texts: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    wanted: frozenset[str] | None = None,
) -> list[Finding]:
    """The findings in each file, suppressed ones removed and unused suppressions added.

    Where files ``beside`` these are known, what is found in them is shown where these take part in it.
    """
    named = frozenset(files)
    by_path: dict[str, list[Finding]] = {
        reading.path: [] for reading in results if reading.has_own_comments and reading.path in named
    }
    other_files: dict[str, list[Finding]] = {}

    def text_of(path: str) -> str:
        return _read_text(path, settings)

    kept = drop_exempt_findings(
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
    """The findings in other files in which one that was asked for takes part, each at its line there.

    What is left out or silenced where a mistake is, is so wherever it is shown.
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
    """Findings without those of deprecated names that the oldest torch a project asks for has nothing instead of."""
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
    """The findings in a file that the settings leave on, at the severity that they give them."""
    settings = settings.for_file(path)
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active]
    for finding in kept:
        finding.severity = settings.severity.get(finding.code, finding.severity)
    kept.sort(key=Finding.order)
    return kept


def _unreadable_result(path: str, line: int, reason: str, *, text: str = "") -> AnalysisResult:
    """What reading shows of a text that is none that can be read."""
    return AnalysisResult(
        path, [_unreadable_finding(path, line, reason)], {}, has_own_comments=Suppressions.has_own_comment(text)
    )


def _rejected_result(path: str, rejection: Rejection, text: str) -> AnalysisResult:
    """Return the result for a text that Python's parser rejects."""
    found = _unreadable_finding(path, rejection.line, rejection.reason)
    if rejection.python_version:
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        rule, fault = LABELS["source:newer-python"]
        message = fault.message.format(python=rejection.python_version, running=running)
        severity = fault.severity or rule.severity
        found = Finding(rule.code, rule.name, severity, message, found.site, label="source:newer-python")
    return AnalysisResult(path, [found], {}, has_own_comments=Suppressions.has_own_comment(text))


def _unreadable_finding(path: str, line: int, reason: str) -> Finding:
    rule, fault = LABELS["source:unreadable"]
    message = fault.message.format(reason=reason)
    return Finding(rule.code, rule.name, rule.severity, message, Site(path, line), label="source:unreadable")


def _suppress_findings(findings: list[Finding], text: str, path: str, settings: Settings) -> list[Finding]:
    """Findings in one text, suppressed ones removed and unused suppressions added."""
    # Without a finding to silence, only a comment of our own can be of no use.
    settings = settings.for_file(path)
    wanted = settings.suppress and (findings or Suppressions.has_own_comment(text))
    suppressions = Suppressions.from_text(text) if wanted else Suppressions()
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active and not suppressions.suppresses_finding(f)]
    rule, fault = LABELS["suppression:unused"]
    if rule.code in active:
        for line, column, end_column, words in suppressions.find_unused(active):
            message = fault.message.format(reason=words)
            site = Site(path, line, column, line, end_column)
            finding = Finding(rule.code, rule.name, rule.severity, message, site, label="suppression:unused")
            finding.names["reason"] = words
            if not suppressions.suppresses_finding(finding):
                kept.append(finding)
    return _apply_settings(kept, path, settings)


def _ignored_codes(path: str, settings: Settings) -> frozenset[str]:
    """Codes that the configuration ignores in a file."""
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
    """All findings in one text, whatever is selected or suppressed; ``around`` says that it may stand in a region.

    ``spots`` asks for what blind spots are found from, too.

    Raises RecursionError or MemoryError for what is nested too deeply.
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
    program.attributes["enters_autocast"] = may_be_in_region or any("autocast" in name for name in module.identifiers)
    program.attributes["fragment"] = code_blocks.is_markdown(path)
    program.attributes["lightning16"] = project.has_lightning16
    program.attributes["resumes"] = project.may_resume
    visited_calls = VisitedCalls() if collects_calls else None
    calls = collect_calls(module) if collects_calls else []
    try:
        reached = analyze_module(module, program, project, visited_calls)
        summarize_program(program, lambda: import_reach.is_near_float16(project, path, parsed))
        if not may_be_in_region:
            mark_bare_scales(program, lambda: import_reach.iterate_autocast_entries(project, path, parsed))
        findings = check(program)
        joined = [graph.entry_point for graph in program.graphs if graph.was_widened]
        inside = {function for entry in joined for function in reached[entry] if function[0] == path} - reached.keys()
        if inside:
            # A violation in a function may be lost in the joined states of its caller.
            separate_program = Program()
            separate_program.attributes.update(program.attributes)
            own_reached = analyze_functions(module, separate_program, project, inside)
            summarize_program(separate_program, lambda: import_reach.is_near_float16(project, path, parsed))
            findings = [*findings, *check_without_callers(separate_program)]
            for entry in joined:
                reached[entry] -= own_reached.keys()
            reached.update(own_reached)
    finally:
        # Where the stack has room for it: from Python 3.13 on, letting go of a deep tree takes as much as reading it.
        module.release_references()
    own_reached = program.attributes["enters_autocast"]
    # In another file, which was read.
    program.attributes["enters_autocast"] = own_reached or any(
        tracked_object.role == "autocast" for tracked_object in program.objects
    )
    reading = AnalysisResult(path, findings, reached, has_own_comments=Suppressions.has_own_comment(text))
    reading.graph_calls = collect_graph_calls(program)
    if visited_calls is not None:
        reading.protocol_calls, reading.visited_calls = calls, visited_calls.calls
    return reading
