"""From paths to findings: finds the files, reads those that can matter, judges them, drops what is suppressed."""

from __future__ import annotations

import ast
import gc
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ..protocol import events as e
from ..protocol.check import check
from ..protocol.events import Event, Graph, Program, Site
from ..protocol.finding import Finding
from ..protocol.rules import LABELS, RULES
from ..protocol.suppress import Suppressions
from . import documents, sources
from .documents import Block
from .project import Module
from .roots import read_module
from .sources import InputError
from .work import shared, spread

__all__ = ["InputError", "Report", "Settings", "check_paths", "check_source"]

#: Files that a process takes at once for a first look.
CHUNK = 400
#: Bytes of source from which on it pays to start processes.
WORTH_PROCESSES = 1_000_000
#: Python frames that reading deeply nested code may take.
RECURSION = 9_000


class Settings:
    """What to report. ``select`` holds codes, already resolved; see :mod:`pytest_amp_check.protocol.selection`."""

    __slots__ = ("exclude", "per_file_ignores", "select", "severity")

    def __init__(
        self,
        select: frozenset[str] | None = None,
        per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = (),
        severity: Mapping[str, str] | None = None,
        exclude: tuple[str, ...] = (),
    ) -> None:
        self.select = frozenset(code for code, rule in RULES.items() if rule.default) if select is None else select
        self.per_file_ignores = per_file_ignores
        self.severity = dict(severity or {})
        self.exclude = exclude


class Report:
    """Findings in order of file and line, and the number of files that were looked at."""

    __slots__ = ("files", "findings")

    def __init__(self, findings: list[Finding], files: int) -> None:
        self.findings = findings
        self.files = files


class Tree:
    """What is known of all the files of a run before any is parsed.

    ``autocast`` are the files that may enter autocast, ``float16`` says whether any file speaks of float16.
    """

    __slots__ = ("autocast", "float16")

    def __init__(self) -> None:
        self.autocast: set[str] = set()
        self.float16 = False

    def look(self, path: str, data: bytes) -> None:
        if b"autocast" in data:
            self.autocast.add(path)
            self.float16 = True
        elif not self.float16 and (b"GradScaler" in data or b".half()" in data or b"float16" in data):
            self.float16 = True

    def add(self, other: Tree) -> None:
        """Know what another look has shown, too."""
        self.autocast |= other.autocast
        self.float16 = self.float16 or other.float16


def check_source(text: str, filename: str = "<string>", settings: Settings | None = None) -> list[Finding]:
    """Findings in one source text."""
    tree = Tree()
    tree.look(filename, documents.code(filename, text.encode("utf-8", "replace")))
    return _check_file(text, filename, settings or Settings(), tree)


def check_paths(
    paths: Sequence[str],
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    jobs: int = 1,
) -> Report:
    """Findings in files, and in the files below directories, read by as many processes as ``jobs`` allows.

    A file that is named is parsed whatever it holds; one that was found below a directory, if it can hold a mistake.
    ``progress`` is told how many of how many files are done. Raises :class:`InputError` for a path that is not there.
    """
    settings = settings or Settings()
    files = sources.find(paths, settings.exclude)
    named = frozenset(paths)
    tree = Tree()
    findings: list[Finding] = []
    todo: list[tuple[int, str]] = []
    chunks = [files[at : at + CHUNK] for at in range(0, len(files), CHUNK)]
    for looked in spread(_look, chunks, jobs, (named, settings)):
        tree.add(looked.tree)
        findings.extend(looked.findings)
        todo.extend(looked.todo)
    # The largest first, so that no process is left with a large one at the end.
    todo.sort(reverse=True)
    enough = sum(size for size, _ in todo) > WORTH_PROCESSES
    work = [path for _, path in todo]
    for done, found in enumerate(spread(_check, work, jobs if enough else 1, (settings, tree))):
        findings.extend(found)
        if progress is not None:
            progress(done + 1, len(todo))
    findings.sort(key=Finding.order)
    return Report(findings, len(files))


class _Looked:
    """What a first look at some files has shown: which of them to read, with their sizes."""

    __slots__ = ("findings", "todo", "tree")

    def __init__(self) -> None:
        self.tree = Tree()
        self.findings: list[Finding] = []
        self.todo: list[tuple[int, str]] = []


def _look(paths: list[str]) -> _Looked:
    named, settings = cast("tuple[frozenset[str], Settings]", shared())
    looked = _Looked()
    for path in paths:
        try:
            data = sources.load(path)
        except sources.Unreadable as error:
            looked.findings.extend(_settle([_unreadable(path, error.line, str(error))], path, settings))
            continue
        code = documents.code(path, data)
        if not documents.is_markdown(path):
            looked.tree.look(path, code)
        if path in named or sources.mentions(code):
            looked.todo.append((len(data), path))
    return looked


def _check(path: str) -> list[Finding]:
    settings, tree = cast("tuple[Settings, Tree]", shared())
    try:
        text = documents.decode(path, sources.load(path))
    except sources.Unreadable as error:
        return _settle([_unreadable(path, error.line, str(error))], path, settings)
    return _check_file(text, path, settings, tree)


def _check_file(text: str, path: str, settings: Settings, tree: Tree) -> list[Finding]:
    """Findings in the programs of one file, where they stand in it."""
    try:
        blocks = documents.blocks(path, text)
    except sources.Unreadable as error:
        return _settle([_unreadable(path, error.line, str(error))], path, settings)
    around = Tree()
    if len(blocks) > 1 or documents.is_markdown(path):
        # One may be entered by another.
        around.look("", text.encode("utf-8", "replace"))
    if documents.is_markdown(path):
        # What is shown is a part of something, and no part of this project's programs.
        around.autocast.add("")
    else:
        around.add(tree)
    findings: list[Finding] = []
    for block in blocks:
        findings += block.placed(_check_block(block, path, settings, around), path)
    findings.sort(key=Finding.order)
    return findings


def _settle(findings: list[Finding], path: str, settings: Settings) -> list[Finding]:
    """The findings in a file that the settings leave on, at the severity that they give them."""
    active = settings.select - _ignored(path, settings)
    kept = [f for f in findings if f.code in active]
    for finding in kept:
        finding.severity = settings.severity.get(finding.code, finding.severity)
    kept.sort(key=Finding.order)
    return kept


def _unreadable(path: str, line: int, reason: str) -> Finding:
    rule, fault = LABELS["source:unreadable"]
    return Finding(rule.code, rule.name, rule.severity, fault.message.format(reason=reason), Site(path, line))


def _check_block(block: Block, path: str, settings: Settings, tree: Tree) -> list[Finding]:
    """Findings in one program, suppressed ones removed and unused suppressions added."""
    text = block.text
    findings = [_unreadable(path, *block.broken)] if block.broken else analyse(text, path, tree)
    # Without a finding to silence, only a comment of our own can be of no use.
    suppressions = Suppressions.of(text) if findings or Suppressions.ours_in(text) else Suppressions()
    active = settings.select - _ignored(path, settings)
    kept = [f for f in findings if f.code in active and not suppressions.silences(f)]
    rule, fault = LABELS["suppression:unused"]
    if rule.code in active:
        for line, column, end_column, words in suppressions.unused(active):
            message = fault.message.format(reason=words)
            finding = Finding(rule.code, rule.name, rule.severity, message, Site(path, line, column, line, end_column))
            if not suppressions.silences(finding):
                kept.append(finding)
    return _settle(kept, path, settings)


def _ignored(path: str, settings: Settings) -> frozenset[str]:
    """Codes that the configuration ignores in a file."""
    ignored: frozenset[str] = frozenset()
    if settings.per_file_ignores:
        real = os.path.realpath(path)
        for pattern, codes in settings.per_file_ignores:
            if sources.excluder((pattern,))(os.path.basename(real), real):
                ignored |= codes
    return ignored


def analyse(text: str, path: str, tree: Tree) -> list[Finding]:
    """All findings in one text, whatever is selected or suppressed."""
    limit = sys.getrecursionlimit()
    collecting = gc.isenabled()
    gc.disable()
    try:
        sys.setrecursionlimit(max(limit, RECURSION))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                parsed = ast.parse(text)
            except SyntaxError as error:
                return [_unreadable(path, error.lineno or 1, sources.invalid(error))]
            except ValueError as error:
                return [_unreadable(path, 1, str(error))]
        program = Program()
        module = Module(path, text, parsed)
        own = any("autocast" in name for name in module.identifiers)
        program.facts["enters_autocast"] = own or bool(tree.autocast - {path})
        program.facts["float16"] = tree.float16
        read_module(module, program)
        _survey(program)
        return check(program)
    except (RecursionError, MemoryError):
        return [_unreadable(path, 1, "its code is nested too deeply to be analysed")]
    finally:
        sys.setrecursionlimit(limit)
        if collecting:
            gc.enable()


def _mark_casts(graph: Graph, program: Program) -> None:
    """Say of each cast of a module whether the module is trained as it leaves it: by the same code, or the object's."""
    events = [node.event for node in graph.nodes if node.event is not None]
    stepped = [program.things[x.object] for x in events if x.kind in (e.SCALER_STEP, e.STEP) and x.object is not None]
    owned: frozenset[int] = frozenset().union(*(thing.facts.get("owns") or () for thing in stepped))
    for event in events:
        if event.kind == e.MODULE_CAST:
            event.facts["trained"] = event.subject in owned or event.site.function.endswith("__init__")


def _survey(program: Program) -> None:
    """Tell the rules what is true of the program as a whole."""
    used: set[int] = set()
    trained: set[int] = set()
    dtypes: set[str] = set()
    saves: list[Event] = []
    raw: list[Event] = []
    stepped = False
    for graph in program.graphs:
        for node in graph.nodes:
            event = node.event
            if event is None:
                continue
            if event.kind in (e.SCALE, e.SCALER_STEP) and event.subject is not None:
                used.add(event.subject)
                dtypes |= event.facts.get("dtypes", frozenset())
            if event.kind in (e.SCALER_STEP, e.STEP) and event.object is not None:
                thing = program.things[event.object]
                trained |= thing.facts.get("owns") or frozenset()
                stepped = stepped or bool(thing.facts.get("constructed"))
            if event.kind == e.SAVE:
                saves.append(event)
            if event.kind == e.BACKWARD and event.subject is None:
                raw.append(event)
            if event.kind == e.FILL:
                event.facts["eligible"] = event.facts["eligible"] and program.facts["float16"]
    scalers = [t for t in program.things if t.role == "scaler"]
    for thing in scalers:
        enabled = thing.facts.get("enabled", True)
        thing.facts["enabled"] = enabled if isinstance(enabled, bool) else e.UNKNOWN
    live = tuple(t for t in scalers if t.key in used and t.facts["enabled"] is not False)
    frozen = {t.key for t in program.things if t.facts.get("frozen")}
    program.facts["live_scalers"] = live
    program.facts["scaler_dtypes"] = frozenset(dtypes)
    program.facts["trained_modules"] = frozenset(trained - frozen)
    names = tuple(dict.fromkeys(t.name or "the scaler" for t in live))
    for graph in program.graphs:
        _mark_casts(graph, program)
    for event in saves:
        event.facts["scope_scalers"] = names
    for event in raw:
        event.facts["alone"] = stepped and not scalers
