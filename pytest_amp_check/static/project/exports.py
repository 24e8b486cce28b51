"""Exports: names of a file that may be relevant to importing files, found in bytes of definitions.

A name is relevant if the definition affects the protocol, or names such a definition in any file. A base class is
relevant if the class trains, or derives from a class that trains. No file is parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from ...protocol.fast_namedtuple import NamedTuple
from ..sources.patterns.declarations import iterate_imports
from ..sources.patterns.fragile_math import may_round_inputs
from ..sources.patterns.lines import strip_docstrings
from ..sources.patterns.low_precision import casts_weights, gives_low_precision
from ..sources.patterns.training import may_affect_importer, may_do_training

#: Location of a name: absolute path of a file, and a name in the file.
Place = tuple[str, bytes]
#: Imports (dotted name, importer, level) and the files that they led to.
Asked = dict[tuple[str, str, int], str | None]
Find = Callable[[str, str, int], "str | None"]

#: Location that stands for a definition known to be relevant.
_RELEVANT: Place = ("", b"")
_NAME = re.compile(rb"[A-Za-z_]\w*")
#: Start of a module-level statement: a definition, its decorator, or another statement.
_STATEMENT = re.compile(rb"^(?:(?:async[ \t]+)?def[ \t]+(\w+)|class[ \t]+(\w+)|(@)|[^\s#)\]}])", re.MULTILINE)
#: Targets of a statement that is no definition, at any depth.
_TARGETS = re.compile(
    rb"^[ \t]*(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|([\w,][\w, \t]*)(?::[^=\n]+)?=(?!=))", re.MULTILINE
)


#: Assignment of a number with a fraction or an exponent: other numbers are settings.
_NUMBER = re.compile(
    rb"\w+(?:[ \t]*:[ \t]*\w+)?[ \t]*=[ \t]*(-?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+))[ \t]*(?:#[^\n]*)?"
)
#: Head of a class at the left margin.
_CLASS_HEAD = re.compile(rb"^class[ \t]+\w+[ \t]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?", re.MULTILINE)


class RelevanceCriterion(NamedTuple):
    """Criterion for relevant names: a test of code, and the part of a definition whose names count."""

    is_match: Callable[[bytes], bool]
    used_part: Callable[[bytes], bytes]


def _class_head(part: bytes) -> bytes:
    """Return the head of a class with its bases, or the whole text of another definition."""
    head = _CLASS_HEAD.search(part)
    return head.group() if head else part


def _whole_definition(part: bytes) -> bytes:
    """Return the whole definition. A spawned process receives the function by name, which a lambda lacks."""
    return part


def _function_casts_weights(part: bytes) -> bool:
    return _CLASS_HEAD.search(part) is None and casts_weights(part)


#: Criterion: the use of a name may affect the protocol.
AFFECTS_PROTOCOL = RelevanceCriterion(may_affect_importer, _whole_definition)
#: Criterion: a name may give a low dtype, or a model whose weights are in a low dtype.
GIVES_LOW_PRECISION = RelevanceCriterion(gives_low_precision, _whole_definition)
#: Criterion: a function may store the weights of a model in a low dtype. Casts in classes are mostly of tensors.
CASTS_WEIGHTS = RelevanceCriterion(_function_casts_weights, _class_head)
#: Criterion: a name may compute what the low dtype of its inputs spoils.
ROUNDS_INPUTS = RelevanceCriterion(may_round_inputs, _whole_definition)
#: Criterion: a name may train the model that it is given.
TRAINS = RelevanceCriterion(may_do_training, _whole_definition)
#: Criterion: a class that derives from a name may inherit a training.
INHERITS_TRAINING = RelevanceCriterion(may_do_training, _class_head)


class NameRelevance(NamedTuple):
    """Relevance of a name and the dependencies: files by absolute path, and imports with the resolved files."""

    is_relevant: bool
    dependencies: frozenset[str]
    import_targets: Asked


class Exports:
    """Names of the files of a project that may be relevant to importing files, by one criterion.

    ``load`` returns the bytes of a file, or no bytes for an unreadable file.
    """

    __slots__ = ("_criterion", "_load_file", "_names_by_file", "_relevance_by_file", "_relevance_by_place")

    def __init__(self, load: Callable[[str], bytes], criterion: RelevanceCriterion) -> None:
        self._load_file = load
        self._criterion = criterion
        self._relevance_by_file: dict[str, bool] = {}
        self._names_by_file: dict[str, _FileNames] = {}
        self._relevance_by_place: dict[Place, NameRelevance] = {_RELEVANT: NameRelevance(True, frozenset(), {})}

    def is_relevant_file(self, path: str) -> bool:
        """Return True if any code in a file may be relevant."""
        known = self._relevance_by_file.get(path)
        if known is None:
            # The names that a package re-exports are in other files.
            known = os.path.basename(path) == "__init__.py" or self._criterion.is_match(self._load_file(path))
            self._relevance_by_file[path] = known
        return known

    def relevance_of_import(self, module: str, name: str, importer: str, find: Find) -> NameRelevance:
        """Return the relevance of an import: of a module, with leading dots, or of a name in the module."""
        touched: set[str] = set()
        asked: Asked = {}
        place = self._resolve_import(module, name.encode(), importer, touched, _record_imports(find, asked))
        if place is None:
            return NameRelevance(False, frozenset(touched), asked)
        known = self._relevance_at(place, find)
        return NameRelevance(known.is_relevant, known.dependencies | touched, {**known.import_targets, **asked})

    def relevance_of_name(self, path: str, name: str, find: Find) -> NameRelevance:
        """Return the relevance of a name that a file defines or re-exports; ``find`` resolves imports."""
        return self._relevance_at((path, name.encode()), find)

    def _relevance_at(self, place: Place, find: Find) -> NameRelevance:
        if place not in self._relevance_by_place:
            self._search_relevance(place, find)
        return self._relevance_by_place[place]

    def may_reexport(self, path: str, name: str) -> bool:
        """Return True if a file may import a name from another file."""
        names = self._names_of(path)
        return bool(names.star_imports) or name.encode() in names.imports

    def may_bind(self, path: str, name: str) -> bool:
        """Return True if a file may bind a name: the name occurs in the file, or a star import may bind it."""
        names = self._names_of(path)
        return bool(names.star_imports) or names.has_name(name.encode())

    def number_at(self, path: str, name: str) -> float | None:
        """Return the number that the only module-level statement for a name assigns, or None."""
        names = self._names_of(path)
        statements = names.statements_of(name.encode())
        found = _NUMBER.fullmatch(statements[0].strip()) if len(statements) == 1 else None
        return float(found[1]) if found is not None else None

    def asks_version_at(self, path: str, name: str) -> bool:
        """Return True if a module-level statement for a name asks for a version."""
        return any(b"version" in statement.lower() for statement in self._names_of(path).statements_of(name.encode()))

    def _names_of(self, path: str) -> _FileNames:
        known = self._names_by_file.get(path)
        if known is None:
            known = self._names_by_file[path] = _FileNames(self._load_file(path), self._criterion)
        return known

    def _search_relevance(self, root: Place, find: Find) -> None:
        """Follow the definitions of names until a definition is relevant, and keep the results."""
        touched: set[str] = set()
        asked: Asked = {}
        lead = _record_imports(find, asked)
        seen = {root}
        stack = [(root, self._definitions_of(root, touched, lead))]
        helps = False
        while stack and not helps:
            for place in stack[-1][1]:
                known = self._relevance_by_place.get(place)
                if known is not None:
                    touched |= known.dependencies
                    asked |= known.import_targets
                    helps = known.is_relevant
                    if helps:
                        break
                elif place not in seen:
                    seen.add(place)
                    stack.append((place, self._definitions_of(place, touched, lead)))
                    break
            else:
                stack.pop()
        answer = NameRelevance(helps, frozenset(touched), asked)
        # A relevant name ends the search: the names beside the path stay undecided.
        self._relevance_by_place.update(dict.fromkeys([place for place, _ in stack] if helps else seen, answer))

    def _definitions_of(self, place: Place, dependencies: set[str], find: Find) -> Iterator[Place]:
        """Yield the locations that define a name."""
        path, name = place
        dependencies.add(path)
        names = self._names_of(path)
        # The fallback of a failed import does not count: most imported names have no other definition.
        taken = names.imports.get(name)
        if taken is None and name in names.statements_by_name:
            does, uses = names.definition_of(name)
            if does:
                yield _RELEVANT
            for use in uses:
                yield path, use
            return
        if taken is None:
            taken = [(module, name) for module in names.star_imports]
            # Other code of the file may define the name.
            if not taken and (names.is_relevant or (os.path.basename(path) == "__init__.py" and names.has_name(name))):
                yield _RELEVANT
        for module, member in taken:
            imported = self._resolve_import(module.decode(), member, path, dependencies, find)
            if imported is not None:
                yield imported

    def _resolve_import(
        self, module: str, name: bytes, importer: str, dependencies: set[str], find: Find
    ) -> Place | None:
        """Return the location of a relevant import (a whole module, or a name in a module), or None."""
        dotted = module.lstrip(".")
        level = len(module) - len(dotted)
        inner = ".".join(filter(None, (dotted, name.decode("utf-8", "replace"))))
        for where in dict.fromkeys((inner, dotted)):
            found = find(where, importer, level)
            if found is None:
                continue
            if where != inner and found.endswith(".py"):
                return found, name
            dependencies.add(found)
            return _RELEVANT if not found.endswith(".py") or self.is_relevant_file(found) else None
        return None


def _record_imports(find: Find, import_targets: Asked) -> Find:
    """Return ``find`` as a function that also records each import and its target."""

    def find_and_record(dotted: str, importer: str, level: int) -> str | None:
        found = import_targets[dotted, importer, level] = find(dotted, importer, level)
        return found

    return find_and_record


class _FileNames:
    """Names of a file, with the definitions of each name.

    ``imports`` maps each local name to its possible origins: modules with leading dots, and names there.
    ``star_imports`` are the modules of star imports. ``is_relevant`` says that any code of the file is relevant.
    """

    __slots__ = (
        "_code",
        "_criterion",
        "_relevance_by_statement",
        "_statements",
        "_statements_by_name",
        "imports",
        "is_relevant",
        "star_imports",
    )

    def __init__(self, data: bytes, criterion: RelevanceCriterion) -> None:
        self._code = code = strip_docstrings(data)
        self._criterion = criterion
        self.is_relevant = criterion.is_match(code)
        self.imports: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.star_imports: list[bytes] = []
        for module, name, local in iterate_imports(code):
            if name == b"*":
                self.star_imports.append(module)
            else:
                self.imports.setdefault(local, []).append((module, name))
        self._statements: list[bytes] = []
        self._statements_by_name: dict[bytes, list[int]] | None = None
        self._relevance_by_statement: dict[int, tuple[bool, frozenset[bytes]]] = {}

    @property
    def statements_by_name(self) -> dict[bytes, list[int]]:
        """Names that module-level statements bind, with the numbers of these statements."""
        if self._statements_by_name is None:
            self._statements_by_name = {}
            self._split_statements(self._code, self._statements_by_name)
        return self._statements_by_name

    def _split_statements(self, code: bytes, defined: dict[bytes, list[int]]) -> None:
        starts = list(_STATEMENT.finditer(code))
        ends = [*(match.start() for match in starts[1:]), len(code)] if starts else []
        decorated: int | None = None
        for match, end in zip(starts, ends, strict=True):
            begin = match.start() if decorated is None else decorated
            if match.group(3):
                decorated = begin
                continue
            part, decorated = code[begin:end], None
            name = match.group(1) or match.group(2)
            for target in [name] if name else _assigned_names(part):
                defined.setdefault(target, []).append(len(self._statements))
            self._statements.append(part)

    def statements_of(self, name: bytes) -> list[bytes]:
        """Return the module-level statements that bind a name."""
        return [self._statements[number] for number in self.statements_by_name.get(name, ())]

    def has_name(self, name: bytes) -> bool:
        """Return True if a name occurs anywhere in the file."""
        return name in self._code

    def definition_of(self, name: bytes) -> tuple[bool, list[bytes]]:
        """Return True if the definition of a name is relevant by itself, and the file's names in the definition."""
        does = False
        uses: set[bytes] = set()
        for number in self.statements_by_name.get(name, ()):
            if number not in self._relevance_by_statement:
                part = self._statements[number]
                words = frozenset(_NAME.findall(self._criterion.used_part(part)))
                known = (words & self.statements_by_name.keys()) | (words & self.imports.keys())
                self._relevance_by_statement[number] = self._criterion.is_match(part), known
            helps, names = self._relevance_by_statement[number]
            does = does or helps
            uses |= names
        return does, sorted(uses)


def _assigned_names(part: bytes) -> set[bytes]:
    """Return the names that a statement other than a definition binds."""
    found: set[bytes] = set()
    for name, names in _TARGETS.findall(part):
        found.update([name] if name else _NAME.findall(names))
    return found
