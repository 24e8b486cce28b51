"""Which names of a file may matter to one that imports them: what the bytes of their definitions say, before parsing.

A name matters if its definition does something to the protocol, or names something that does, in whatever file. A class
to derive from matters if it trains, or derives from one that does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from ...protocol.fast_namedtuple import NamedTuple
from ..sources import patterns
from ..sources.patterns import Code

#: The absolute path of a file, and a name in it.
Place = tuple[str, bytes]
#: What an import was asked for (dotted name, importer, level) -> where it led.
Asked = dict[tuple[str, str, int], str | None]
Find = Callable[[str, str, int], "str | None"]

#: Stands for whatever is known to matter.
_RELEVANT: Place = ("", b"")
_NAME = re.compile(rb"[A-Za-z_]\w*")
#: Where a statement of the module itself begins: a definition, a decorator of one, or any other.
_STATEMENT = re.compile(rb"^(?:(?:async[ \t]+)?def[ \t]+(\w+)|class[ \t]+(\w+)|(@)|[^\s#)\]}])", re.MULTILINE)
#: What a statement that is no definition gives a value to, at any depth.
_TARGETS = re.compile(
    rb"^[ \t]*(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|([\w,][\w, \t]*)(?::[^=\n]+)?=(?!=))", re.MULTILINE
)


#: The head of a class, at the margin.
_CLASS_HEAD = re.compile(rb"^class[ \t]+\w+[ \t]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?", re.MULTILINE)


class RelevanceCriterion(NamedTuple):
    """What is asked of names: whether code does what matters, and in what of a definition others are named for it."""

    is_match: Callable[[bytes], bool]
    used_part: Callable[[bytes], bytes]


def _class_head(part: bytes) -> bytes:
    """Of a class what it derives from; all of anything else."""
    head = _CLASS_HEAD.search(part)
    return head.group() if head else part


def _whole_definition(part: bytes) -> bytes:
    """Return all of a definition. A spawned process is sent the function by its name, which a lambda has not."""
    return part


#: Whether using a name may do something to the protocol.
AFFECTS_PROTOCOL = RelevanceCriterion(patterns.may_affect_importer, _whole_definition)
#: Whether a class that derives from one of a name may inherit a training.
INHERITS_TRAINING = RelevanceCriterion(patterns.may_do_training, _class_head)


class NameRelevance(NamedTuple):
    """Whether a name matters, and what that depends on: files, by absolute path, and imports with where they led."""

    is_relevant: bool
    dependencies: frozenset[str]
    import_targets: Asked


class Exports:
    """Which names of the files of a tree may matter to those who import them, in the sense of one question.

    ``load`` gives what a file holds: nothing, where it cannot be read.
    """

    __slots__ = ("_criterion", "_load_file", "_names_by_file", "_relevance_by_file", "_relevance_by_place")

    def __init__(self, load: Callable[[str], bytes], criterion: RelevanceCriterion) -> None:
        self._load_file = load
        self._criterion = criterion
        self._relevance_by_file: dict[str, bool] = {}
        self._names_by_file: dict[str, _FileNames] = {}
        self._relevance_by_place: dict[Place, NameRelevance] = {_RELEVANT: NameRelevance(True, frozenset(), {})}

    def is_relevant_file(self, path: str) -> bool:
        """Whether anything in a file may matter."""
        known = self._relevance_by_file.get(path)
        if known is None:
            # What a package hands on lies in other files.
            known = os.path.basename(path) == "__init__.py" or self._criterion.is_match(self._load_file(path))
            self._relevance_by_file[path] = known
        return known

    def relevance_of_import(self, module: str, name: str, importer: str, find: Find) -> NameRelevance:
        """Whether what a file imports may matter: a module, with dots in front, or a name in it where one is given."""
        touched: set[str] = set()
        asked: Asked = {}
        place = self._resolve_import(module, name.encode(), importer, touched, _record_imports(find, asked))
        if place is None:
            return NameRelevance(False, frozenset(touched), asked)
        known = self._relevance_at(place, find)
        return NameRelevance(known.is_relevant, known.dependencies | touched, {**known.import_targets, **asked})

    def relevance_of_name(self, path: str, name: str, find: Find) -> NameRelevance:
        """Whether a name that the file at a path defines, or hands on, may matter; ``find`` says where imports lead."""
        return self._relevance_at((path, name.encode()), find)

    def _relevance_at(self, place: Place, find: Find) -> NameRelevance:
        if place not in self._relevance_by_place:
            self._search_relevance(place, find)
        return self._relevance_by_place[place]

    def may_reexport(self, path: str, name: str) -> bool:
        """Return True if a file may have a name from another one."""
        names = self._names_of(path)
        return bool(names.star_imports) or name.encode() in names.imports

    def _names_of(self, path: str) -> _FileNames:
        known = self._names_by_file.get(path)
        if known is None:
            known = self._names_by_file[path] = _FileNames(self._load_file(path), self._criterion)
        return known

    def _search_relevance(self, root: Place, find: Find) -> None:
        """Follow what names are defined by until something matters, and keep what that has shown."""
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
        # Where something matters, no more is known of what lies beside the way to it.
        self._relevance_by_place.update(dict.fromkeys([place for place, _ in stack] if helps else seen, answer))

    def _definitions_of(self, place: Place, dependencies: set[str], find: Find) -> Iterator[Place]:
        """What a name is defined by."""
        path, name = place
        dependencies.add(path)
        names = self._names_of(path)
        # What steps in where an import fails is not asked: most of what is imported is defined nowhere else.
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
            # Code of its own may give it the name.
            if not taken and (names.is_relevant or (os.path.basename(path) == "__init__.py" and names.has_name(name))):
                yield _RELEVANT
        for module, member in taken:
            imported = self._resolve_import(module.decode(), member, path, dependencies, find)
            if imported is not None:
                yield imported

    def _resolve_import(
        self, module: str, name: bytes, importer: str, dependencies: set[str], find: Find
    ) -> Place | None:
        """What an import leads to, if it may matter: a module, as a whole, or a name in one."""
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
    """The same question, with what it was asked and where that led kept."""

    def find_and_record(dotted: str, importer: str, level: int) -> str | None:
        found = import_targets[dotted, importer, level] = find(dotted, importer, level)
        return found

    return find_and_record


class _FileNames:
    """The names of a file, with what defines each.

    ``imports`` holds for each local name of an import the modules, with dots in front, and the names there that it may
    stand for; ``stars`` the modules that everything is taken from; ``helps`` says whether anything in it matters.
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
        self._code = code = Code(data).without_docstrings.data
        self._criterion = criterion
        self.is_relevant = criterion.is_match(code)
        self.imports: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.star_imports: list[bytes] = []
        for module, name, local in patterns.iterate_imports(code):
            if name == b"*":
                self.star_imports.append(module)
            else:
                self.imports.setdefault(local, []).append((module, name))
        self._statements: list[bytes] = []
        self._statements_by_name: dict[bytes, list[int]] | None = None
        self._relevance_by_statement: dict[int, tuple[bool, frozenset[bytes]]] = {}

    @property
    def statements_by_name(self) -> dict[bytes, list[int]]:
        """The names that the statements of the module itself give values to, with the numbers of these statements."""
        if self._statements_by_name is None:
            self._statements_by_name = {}
            self._split_statements(self._code, self._statements_by_name)
        return self._statements_by_name

    def _split_statements(self, code: bytes, defined: dict[bytes, list[int]]) -> None:
        starts = list(_STATEMENT.finditer(code))
        ends = [*(match.start() for match in starts[1:]), len(code)]
        begin = -1
        for match, end in zip(starts, ends, strict=False):
            begin = match.start() if begin < 0 else begin
            if match.group(3):
                continue
            part = code[begin:end]
            begin = -1
            name = match.group(1) or match.group(2)
            for target in [name] if name else _assigned_names(part):
                defined.setdefault(target, []).append(len(self._statements))
            self._statements.append(part)

    def has_name(self, name: bytes) -> bool:
        """Whether a name stands anywhere in it."""
        return name in self._code

    def definition_of(self, name: bytes) -> tuple[bool, list[bytes]]:
        """Whether what defines a name does what matters, and the names of the file that it uses for it."""
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
    """The names that a statement which is no definition gives values to."""
    found: set[bytes] = set()
    for name, names in _TARGETS.findall(part):
        found.update([name] if name else _NAME.findall(names))
    return found
