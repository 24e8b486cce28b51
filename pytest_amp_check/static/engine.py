"""From paths to findings: finds the files, reads those that can matter, judges them, drops what is suppressed."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..protocol import surface
from ..protocol.byte_sizes import LARGEST_FILE
from ..protocol.events import Program, Site
from ..protocol.finding import Finding
from ..protocol.named import NamedTuple
from ..protocol.rules import LABELS, RULES
from ..protocol.suppress import Suppressions
from . import evidence
from .depth import with_room
from .elsewhere import undone
from .evidence import passed_by
from .processes import shared, spread
from .project.project import Project
from .results import Answer, Reading
from .sources import patterns, prefilter, programs, source_files
from .sources.block import Block
from .sources.newer_syntax import Rejection, rejection
from .sources.patterns import Code
from .sources.prefilter import Prefiltered
from .sources.source_files import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .cache import Cache
    from .entry_points import Reached
    from .interpreter.passed import Span

    Result = TypeVar("Result")

__all__ = ["InputError", "Report", "Settings", "check_paths", "check_source"]


#: Files that a process takes at once for a first look.
CHUNK = 100
#: Bytes of source from which on it pays to start processes.
WORTH_PROCESSES = 1_000_000
#: Why files are passed over, as it is said of a number of them.
QUIET = "holding nothing of mixed precision"
EXCLUDED = "left out by `exclude`"
IGNORED = "ignored by git"
LINKS = "symbolic links that lead in a circle"
#: The rule that lists blind spots, which cost a look at every call.
SPOTS = "AMP904"


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
        self.select = frozenset(code for code, rule in RULES.items() if rule.default) if select is None else select
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

    def of(self, path: str) -> Settings:
        """What holds for a file: the settings of the nearest folder that has some."""
        if not self.nearer:
            return self
        folders = source_files.upward(os.path.dirname(os.path.realpath(path)))
        return next((self.nearer[folder] for folder in folders if folder in self.nearer), self)

    def __repr__(self) -> str:
        # The settings of the nearest folder around all of it are these themselves.
        nearer = [(folder, own.said()) for folder, own in sorted(self.nearer.items())]
        return f"Settings{(*self.said(), *nearer)}"

    def said(self) -> tuple[object, ...]:
        ignores = [(pattern, sorted(codes)) for pattern, codes in self.per_file_ignores]
        more = (self.suppress, self.torch, self.reading())
        return sorted(self.select), ignores, sorted(self.severity.items()), more

    def reading(self) -> tuple[object, ...]:
        """What of this decides how files are read, and not only what is told of them."""
        return sorted(self.helpers.items()), self.devices, self.largest

    def tell(self, tree: Project) -> Project:
        """Have a tree know what these say of reading."""
        tree.declared, tree.devices = self.helpers, self.devices
        return tree


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
        tree: Project,
        passed_over: dict[str, list[str]],
        reached: Reached | None = None,
    ) -> None:
        self.findings = findings
        self.files = files
        self.tree = tree
        self.passed_over = passed_over
        self.reached = reached or {}


def check_source(text: str, filename: str = "<string>", settings: Settings | None = None) -> list[Finding]:
    """Findings in one source text, which may begin with a byte order mark."""
    text = text.removeprefix("\ufeff")
    return check_again(text, filename, settings or Settings(), alone(text, filename))


def alone(text: str, filename: str) -> Project:
    """What is known of a source text that has no others beside it."""
    tree = Project()
    tree.know(filename, Code(programs.code(filename, text.encode("utf-8", "replace"))))
    return tree


def check_again(text: str, filename: str, settings: Settings, tree: Project) -> list[Finding]:
    """Findings in what a file holds, or would hold, among files of which the tree is known."""
    settings.tell(tree)
    readings = uncollected(lambda: with_room(lambda: _read(text, filename, settings, tree)).readings)
    return _settled(readings, [filename], settings, {filename: text})


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
    return uncollected(lambda: _report(paths, settings or Settings(), progress, jobs, cache, nearer))


def uncollected(act: Callable[[], Result]) -> Result:
    """Do something without looking for cycles among objects: it makes very many of them, and leaves no cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return act()
    finally:
        if collecting:
            gc.enable()


def _report(
    paths: Sequence[str],
    settings: Settings,
    progress: Callable[[int, int], None] | None,
    jobs: int,
    cache: str | None,
    nearer: Nearer | None,
) -> Report:
    left = source_files.Left()
    files = found(paths, settings, nearer, left)
    store: Cache | None = None
    # What was come by is not kept from run to run: it is asked for seldom.
    if cache is not None and all(SPOTS not in each.select for each in (settings, *settings.nearer.values())):
        from .cache import Cache, refuse_foreign

        refuse_foreign(cache)
        store = Cache(cache, paths, repr(settings), repr(settings.reading()))
    return report(files, paths, frozenset(paths), settings, progress, jobs, store, left=left)


def report(
    files: list[str],
    paths: Sequence[str],
    named: frozenset[str],
    settings: Settings,
    progress: Callable[[int, int], None] | None,
    jobs: int = 1,
    store: Cache | None = None,
    *,
    left: source_files.Left | None = None,
    wanted: frozenset[str] | None = None,
) -> Report:
    """Findings in the files that were found below ``paths``, of which ``named`` are read whatever they hold.

    ``left`` are those that were left out, where who uses the named ones is to be read, too. ``wanted`` are those whose
    findings are asked for, where that is not all.
    """
    tree = settings.tell(Project(settings.largest))
    looked = _look_at_all(files, named, jobs, store, settings.largest)
    for look in looked.seen:
        tree.know(look.path, look)
    tree.grow(files, paths)
    used = _users(looked.seen, named, tree, settings) if left is not None else []
    for look in used:
        tree.know(look.path, look)
    todo = _worth_reading([*looked.seen, *used], named, tree)
    readings, work = _known(todo, tree, store)
    if progress is not None and len(work) < len(todo):
        progress(len(todo) - len(work), len(todo))
    for done, answer in enumerate(_answers(work, settings, tree, jobs), len(todo) - len(work) + 1):
        readings += answer.readings
        if store is not None:
            store.keep(answer)
        if progress is not None:
            progress(done, len(todo))
    if store is not None:
        store.write()
    findings: list[Finding] = []
    for path, line, reason in looked.unreadable:
        findings += _settle([_unreadable(path, line, reason)], path, settings)
    beside = [*(look.path for look in used), *tree.members] if left is not None else None
    findings += _settled(readings, files, settings, beside=beside, wanted=wanted)
    findings.sort(key=Finding.order)
    read = {look.path for look in todo}
    quiet = [look.path for look in looked.seen if look.path not in read]
    passed = {QUIET: sorted(quiet)}
    if left is not None:
        passed |= {EXCLUDED: left.excluded, IGNORED: left.ignored, LINKS: left.links}
    return Report(
        findings, len(files), tree, {reason: these for reason, these in passed.items() if these}, _reached(readings)
    )


def found(
    paths: Sequence[str], settings: Settings, nearer: Nearer | None, left: source_files.Left | None = None
) -> list[str]:
    """The files to check; the settings learn of those that are nearer to some of them, ``left`` what is left out."""

    def excluded(folder: str) -> source_files.Excluded | None:
        own = _learnt(folder, settings, nearer)
        return source_files.excluder(own.exclude) if own is not None else None

    def forced(path: str) -> bool:
        return is_excluded(path, settings, nearer, named=True)

    return source_files.find(
        paths, settings.exclude, left, excluded if nearer is not None else None, forced, gitignore=settings.gitignore
    )


def is_excluded(path: str, settings: Settings, nearer: Nearer | None, *, named: bool, base: str = os.curdir) -> bool:
    """Whether ``exclude`` leaves out a file, which the user may have named, as the settings nearest to it say it.

    What these say does not speak of the folders around them, or around ``base`` where no folder has any.
    """
    real = os.path.realpath(path)
    folders = source_files.upward(os.path.dirname(real))
    top = next((folder for folder in folders if _learnt(folder, settings, nearer)), os.path.realpath(base))
    own = settings.nearer.get(top, settings)
    if named and not own.force_exclude:
        return False
    return source_files.left_out(real, top, source_files.excluder(own.exclude))


def _learnt(folder: str, settings: Settings, nearer: Nearer | None) -> Settings | None:
    """The settings that hold from a folder on, if it has any of its own."""
    if nearer is not None and folder not in settings.nearer:
        own = nearer(folder)
        if own is not None:
            settings.nearer[folder] = own
    return settings.nearer.get(folder)


def _look_at_all(files: list[str], named: frozenset[str], jobs: int, store: Cache | None, largest: int) -> _Looked:
    """A first look at every file that did not change since the last run."""
    looked = _Looked([], [])
    fresh = files
    if store is not None:
        known = {path: store.look(path, named=path in named) for path in files}
        looked.seen.extend(filter(None, known.values()))
        fresh = [path for path, look in known.items() if look is None]
    chunks = [fresh[at : at + CHUNK] for at in range(0, len(fresh), CHUNK)]
    valid: set[tuple[str, str]] = set()
    for found in spread(_look, chunks, jobs, (named, largest, valid)):
        looked.seen.extend(found.seen)
        looked.unreadable.extend(found.unreadable)
        if store is not None:
            for look in found.seen:
                store.saw(look)
    return looked


def _users(seen: list[Prefiltered], named: frozenset[str], tree: Project, settings: Settings) -> list[Prefiltered]:
    """A first look at the files that were not named, and use one that was; the tree learns of what is around those."""
    asked = [look.path for look in seen if look.path in named and _is_asked(look, settings.largest)]
    if not asked:
        return []
    from .partners import Surroundings

    around = Surroundings(asked, settings.exclude, settings.largest, gitignore=settings.gitignore)
    tree.surround(around.codes(), around.files, whole=around.whole)
    users = around.partners([path for path in asked if path.endswith(".py")], tree)
    return _look_at_all(users, frozenset(), 1, None, settings.largest).seen


def _is_asked(look: Prefiltered, largest: int) -> bool:
    """Whether a file may hold a mistake, by itself or for what others do with it."""
    if look.speaks or not look.path.endswith(".py"):
        return look.speaks and look.path.endswith(source_files.PROGRAMS)
    return patterns.helps(source_files.load_or_nothing(look.path, largest))


def _known(todo: list[Prefiltered], tree: Project, store: Cache | None) -> tuple[list[Reading], list[Prefiltered]]:
    """What is known of files from the last run, and the files that are to be read."""
    if store is None:
        return [], list(todo)
    store.settle(tree)
    readings: list[Reading] = []
    work: list[Prefiltered] = []
    for look in todo:
        found = store.readings(look.path, tree)
        if found is None:
            work.append(look)
        else:
            readings += found
    return readings, work


def _answers(work: list[Prefiltered], settings: Settings, tree: Project, jobs: int) -> Iterator[Answer]:
    """What reading files shows, as it comes."""
    if not work:
        return
    # Before processes start that would each do so.
    from . import entry_points  # noqa: F401

    # The largest first, so that no process is left with a large one at the end.
    work.sort(key=lambda look: (look.size, look.path), reverse=True)
    enough = sum(look.size for look in work) > WORTH_PROCESSES
    yield from spread(_check, [look.path for look in work], jobs if enough else 1, (settings, tree))


def _worth_reading(seen: list[Prefiltered], named: frozenset[str], tree: Project) -> list[Prefiltered]:
    """The files to read: what may hold a mistake, and what may do so together with one of these."""
    todo: list[Prefiltered] = []
    others: list[Prefiltered] = []
    for look in seen:
        (todo if look.speaks or look.path in named else others).append(look)
    # What a class inherits may call what it defines; what trains elsewhere may be saved here.
    classes = set[bytes]().union(*(look.classes or () for look in todo))
    training = {os.path.abspath(look.path) for look in todo if look.path.endswith(".py")}
    stems = {os.fsencode(source_files.stem(path)) for path in training}

    def joins(look: Prefiltered) -> bool:
        if not classes.isdisjoint(look.bases or ()):
            return True
        # Few are called the same, so that this is asked of few.
        return not stems.isdisjoint(look.imports or ()) and not training.isdisjoint(tree.leads_to(look.path))

    return todo + [look for look in others if joins(look)]


class _Looked(NamedTuple):
    """What a first look at some files has shown, and which of them cannot be read: where, and why."""

    seen: list[Prefiltered]
    unreadable: list[tuple[str, int, str]]


def _look(paths: list[str]) -> _Looked:
    return with_room(lambda: _looked(paths))


def _looked(paths: list[str]) -> _Looked:
    named: frozenset[str]
    largest: int
    valid: set[tuple[str, str]]
    named, largest, valid = shared()
    looked = _Looked([], [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in paths:
            try:
                looked.seen.append(prefilter.examine(path, largest=largest, named=path in named, valid=valid))
            except source_files.Unreadable as error:
                looked.unreadable.append((path, error.line, str(error)))
    return looked


def _check(path: str) -> Answer:
    settings: Settings
    tree: Project
    settings, tree = shared()
    try:
        text = programs.decode(path, programs.load(path, settings.largest))
    except source_files.Unreadable as error:
        return Answer(path, [_unread(path, error.line, str(error))], lasting=False)
    return with_room(lambda: _read(text, path, settings, tree))


def _read(text: str, path: str, settings: Settings, tree: Project) -> Answer:
    """What the programs of one file show. Those of a document are settled here: nothing calls what is in them."""
    tree.begin()
    try:
        blocks = programs.blocks(path, text, settings.largest)
    except source_files.Unreadable as error:
        return Answer(path, [_unread(path, error.line, str(error))])
    answer = Answer(path, [])
    within, around = tree, False
    if programs.is_markdown(path):
        # What is shown is a part of something, and no part of this project's programs.
        within, around = settings.tell(Project(settings.largest)), True
        within.know(path, Code(text.encode("utf-8", "replace")))
    elif len(blocks) > 1:
        # One may be entered by another.
        around = "autocast" in text
    for number, block in enumerate(blocks):
        if block.broken:
            reading = _rejected(path, block.broken, block.text)
        else:
            try:
                reading = analyse(block.text, path, within, around=around, spots=SPOTS in settings.of(path).select)
            except (RecursionError, MemoryError):
                reading = _unread(path, 1, "its code is nested too deeply to be analysed", text=block.text)
                answer.lasting = False
        if block.places is not None:
            reading = _settled_block(reading, block, f"{path}:{number}", settings)
        answer.readings.append(reading)
    answer.touched, answer.asked, answer.whole = tree.touched, tree.asked, tree.whole
    if answer.whole:
        # Then these are most of the files, and none of them says more.
        answer.touched, answer.asked = set(), {}
    return answer


def _settled_block(reading: Reading, block: Block, name: str, settings: Settings) -> Reading:
    """What a program of a document shows, its own findings settled; ``name`` stands for it as if it were a file."""
    path = reading.path
    kept = evidence.kept([reading], reading.reached)
    own = _suppressed([f for f in (*kept, *_blind([reading])) if f.site.path == path], block.text, path, settings)
    others = [f for f in kept if f.site.path != path]
    for finding in others:
        entries = finding.entries.items()
        finding.entries = {(name if at == path else at, line): calls for (at, line), calls in entries}
    reached = {
        (name, line): {function for function in functions if function[0] != path}
        for (_, line), functions in reading.reached.items()
    }
    made = Reading(path, block.placed(others, path), reached)
    made.passed_by = {(name, line): calls for (_, line), calls in reading.passed_by.items()}
    made.settled = block.placed(own, path)
    return made


def _reached(readings: Sequence[Reading]) -> Reached:
    """What all readings together have read on its own, with the functions that this has led to."""
    reached: Reached = {}
    for reading in readings:
        for entry, functions in reading.reached.items():
            reached.setdefault(entry, set()).update(functions)
    return reached


def _blind(readings: Sequence[Reading]) -> list[Finding]:
    """The calls of the protocol that none of the readings has judged."""
    if not any(reading.spots for reading in readings):
        return []
    from .blind_spots import unjudged

    passed: dict[Span, bool] = {}
    for reading in readings:
        for span, judged in reading.passed.items():
            passed[span] = passed.get(span, False) or judged
    return [finding for reading in readings for finding in unjudged(reading.spots, passed)]


def _settled(
    readings: list[Reading],
    files: list[str],
    settings: Settings,
    texts: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    wanted: frozenset[str] | None = None,
) -> list[Finding]:
    """The findings in each file, suppressed ones removed and unused suppressions added.

    Where files ``beside`` these are known, what is found in them is shown where these take part in it.
    """
    asked = frozenset(files)
    by_path: dict[str, list[Finding]] = {
        reading.path: [] for reading in readings if reading.ours and reading.path in asked
    }
    away: dict[str, list[Finding]] = {}

    def held(path: str) -> str:
        return _text(path, settings)

    kept = undone(evidence.kept(readings, _reached(readings)), [*files, *(beside or ())], held)
    for finding in (*kept, *_blind(readings)):
        (by_path if finding.site.path in asked else away).setdefault(finding.site.path, []).append(finding)
    settled = [finding for reading in readings if reading.path in asked for finding in reading.settled]
    if beside is not None:
        settled += _taking_part(away, asked, settings)
    for path, findings in by_path.items():
        if wanted is not None and path not in wanted:
            continue
        text = texts[path] if texts and path in texts else held(path)
        settled += _suppressed(findings, text, path, settings)
    return sorted(_replaceable(settled, settings), key=Finding.order)


def _taking_part(away: dict[str, list[Finding]], asked: frozenset[str], settings: Settings) -> Iterator[Finding]:
    """The findings in other files in which one that was asked for takes part, each at its line there.

    What is left out or silenced where a mistake is, is so wherever it is shown.
    """
    from .partners import shown_at

    for path, findings in away.items():
        shown = [(finding, there) for finding in findings if (there := shown_at(finding, asked)) is not None]
        if shown and not is_excluded(path, settings, None, named=False):
            suppressions = Suppressions.of(_text(path, settings)) if settings.of(path).suppress else Suppressions()
            kept = {id(f) for f in _settle([f for f, _ in shown if not suppressions.silences(f)], path, settings)}
            for finding, there in shown:
                if id(finding) in kept:
                    there.severity = finding.severity
                    yield there


def _text(path: str, settings: Settings) -> str:
    try:
        return source_files.read(path, settings.largest)
    except source_files.Unreadable:
        return ""


def _replaceable(findings: list[Finding], settings: Settings) -> list[Finding]:
    """Findings without those of deprecated names that the oldest torch a project asks for has nothing instead of."""
    if all(finding.code != "AMP901" for finding in findings):
        return findings
    from .project.surroundings import Surroundings

    around = Surroundings(torch=settings.torch)

    def replaceable(finding: Finding) -> bool:
        path = finding.filename
        # A text without a file belongs to no project.
        return path.startswith("<") or around.supports(path, surface.replaced_in(finding.names["old"]))

    return [finding for finding in findings if finding.code != "AMP901" or replaceable(finding)]


def _settle(findings: list[Finding], path: str, settings: Settings) -> list[Finding]:
    """The findings in a file that the settings leave on, at the severity that they give them."""
    settings = settings.of(path)
    active = settings.select - _ignored(path, settings)
    kept = [f for f in findings if f.code in active]
    for finding in kept:
        finding.severity = settings.severity.get(finding.code, finding.severity)
    kept.sort(key=Finding.order)
    return kept


def _unread(path: str, line: int, reason: str, *, text: str = "") -> Reading:
    """What reading shows of a text that is none that can be read."""
    return Reading(path, [_unreadable(path, line, reason)], {}, ours=Suppressions.ours_in(text))


def _rejected(path: str, rejection: Rejection, text: str) -> Reading:
    """Return the result for a text that Python's parser rejects."""
    found = _unreadable(path, rejection.line, rejection.reason)
    if rejection.python:
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        rule, fault = LABELS["source:newer-python"]
        message = fault.message.format(python=rejection.python, running=running)
        severity = fault.severity or rule.severity
        found = Finding(rule.code, rule.name, severity, message, found.site, label="source:newer-python")
    return Reading(path, [found], {}, ours=Suppressions.ours_in(text))


def _unreadable(path: str, line: int, reason: str) -> Finding:
    rule, fault = LABELS["source:unreadable"]
    message = fault.message.format(reason=reason)
    return Finding(rule.code, rule.name, rule.severity, message, Site(path, line), label="source:unreadable")


def _suppressed(findings: list[Finding], text: str, path: str, settings: Settings) -> list[Finding]:
    """Findings in one text, suppressed ones removed and unused suppressions added."""
    # Without a finding to silence, only a comment of our own can be of no use.
    settings = settings.of(path)
    wanted = settings.suppress and (findings or Suppressions.ours_in(text))
    suppressions = Suppressions.of(text) if wanted else Suppressions()
    active = settings.select - _ignored(path, settings)
    kept = [f for f in findings if f.code in active and not suppressions.silences(f)]
    rule, fault = LABELS["suppression:unused"]
    if rule.code in active:
        for line, column, end_column, words in suppressions.unused(active):
            message = fault.message.format(reason=words)
            site = Site(path, line, column, line, end_column)
            finding = Finding(rule.code, rule.name, rule.severity, message, site, label="suppression:unused")
            finding.names["reason"] = words
            if not suppressions.silences(finding):
                kept.append(finding)
    return _settle(kept, path, settings)


def _ignored(path: str, settings: Settings) -> frozenset[str]:
    """Codes that the configuration ignores in a file."""
    ignored: frozenset[str] = frozenset()
    if settings.per_file_ignores:
        real = os.path.realpath(path)
        for pattern, codes in settings.per_file_ignores:
            bare = pattern.removeprefix("!")
            if source_files.excluder((bare,))(os.path.basename(real), real) == (bare == pattern):
                ignored |= codes
    return ignored


def analyse(text: str, path: str, tree: Project, *, around: bool = False, spots: bool = False) -> Reading:
    """All findings in one text, whatever is selected or suppressed; ``around`` says that it may stand in a region.

    ``spots`` asks for what blind spots are found from, too.

    Raises RecursionError or MemoryError for what is nested too deeply.
    """
    import ast

    from ..protocol.check import check, in_graphs
    from .blind_spots import census
    from .entry_points import read_functions, read_module
    from .interpreter.passed import Passed
    from .project import reach
    from .project.marimo import as_one_program
    from .project.module import Module
    from .project.relevance import mark_relevant
    from .survey import survey, survey_scaled

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parsed = as_one_program(ast.parse(text), text)
        except (SyntaxError, ValueError) as error:
            return _rejected(path, rejection(text, error), text)
    program = Program()
    module = Module(path, text, parsed)
    mark_relevant(module, tree.local_names(module, path))
    program.facts["enters_autocast"] = around or any("autocast" in name for name in module.identifiers)
    program.facts["fragment"] = programs.is_markdown(path)
    program.facts["lightning16"] = tree.lightning16
    program.facts["resumes"] = tree.resumes
    passed = Passed() if spots else None
    listed = census(module) if spots else []
    try:
        reached = read_module(module, program, tree, passed)
        survey(program, lambda: reach.is_near_float16(tree, path, parsed))
        if not around:
            survey_scaled(program, lambda: reach.entering(tree, path, parsed))
        findings = check(program)
        joined = [graph.entry for graph in program.graphs if graph.joined]
        inside = {function for entry in joined for function in reached[entry] if function[0] == path} - reached.keys()
        if inside:
            # A violation in a function may be lost in the joined states of its caller.
            alone = Program()
            alone.facts.update(program.facts)
            own = read_functions(module, alone, tree, inside)
            survey(alone, lambda: reach.is_near_float16(tree, path, parsed))
            findings = [*findings, *in_graphs(alone)]
            for entry in joined:
                reached[entry] -= own.keys()
            reached.update(own)
    finally:
        # Where the stack has room for it: from Python 3.13 on, letting go of a deep tree takes as much as reading it.
        module.release()
    own = program.facts["enters_autocast"]
    # In another file, which was read.
    program.facts["enters_autocast"] = own or any(thing.role == "autocast" for thing in program.things)
    reading = Reading(path, findings, reached, ours=Suppressions.ours_in(text))
    reading.passed_by = passed_by(program)
    if passed is not None:
        reading.spots, reading.passed = listed, passed.calls
    return reading
