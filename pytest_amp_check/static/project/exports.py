"""Which names of a file may matter to one that imports them: what the bytes of their definitions say, before parsing.

A name matters if its definition does something to the protocol, or names something that does, in whatever file. A class
to derive from matters if it trains, or derives from one that does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from ...protocol.named import NamedTuple
from ..sources import patterns
from ..sources.patterns import Code

#: The absolute path of a file, and a name in it.
Place = tuple[str, bytes]
#: What an import was asked for (dotted name, importer, level) -> where it led.
Asked = dict[tuple[str, str, int], str | None]
Find = Callable[[str, str, int], "str | None"]

#: Stands for whatever is known to matter.
_MATTERS: Place = ("", b"")
_NAME = re.compile(rb"[A-Za-z_]\w*")
#: Where a statement of the module itself begins: a definition, a decorator of one, or any other.
_STATEMENT = re.compile(rb"^(?:(?:async[ \t]+)?def[ \t]+(\w+)|class[ \t]+(\w+)|(@)|[^\s#)\]}])", re.MULTILINE)
#: What a statement that is no definition gives a value to, at any depth.
_TARGETS = re.compile(
    rb"^[ \t]*(?:(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|([\w,][\w, \t]*)(?::[^=\n]+)?=(?!=))", re.MULTILINE
)


#: The head of a class, at the margin.
_HEAD = re.compile(rb"^class[ \t]+\w+[ \t]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?", re.MULTILINE)


class Question(NamedTuple):
    """What is asked of names: whether code does what matters, and in what of a definition others are named for it."""

    does: Callable[[bytes], bool]
    onward: Callable[[bytes], bytes]


def _derived(part: bytes) -> bytes:
    """Of a class what it derives from; all of anything else."""
    head = _HEAD.search(part)
    return head.group() if head else part


def _everything(part: bytes) -> bytes:
    """Return all of a definition. A spawned process is sent the function by its name, which a lambda has not."""
    return part


#: Whether using a name may do something to the protocol.
HELPS = Question(patterns.helps, _everything)
#: Whether a class that derives from one of a name may inherit a training.
HANDS_DOWN = Question(patterns.trains, _derived)


class Answer(NamedTuple):
    """Whether a name matters, and what that depends on: files, by absolute path, and imports with where they led."""

    helps: bool
    touched: frozenset[str]
    asked: Asked


class Exports:
    """Which names of the files of a tree may matter to those who import them, in the sense of one question.

    ``load`` gives what a file holds: nothing, where it cannot be read.
    """

    __slots__ = ("_known", "_load", "_names", "_question", "_whole")

    def __init__(self, load: Callable[[str], bytes], question: Question) -> None:
        self._load = load
        self._question = question
        self._whole: dict[str, bool] = {}
        self._names: dict[str, _Names] = {}
        self._known: dict[Place, Answer] = {_MATTERS: Answer(True, frozenset(), {})}

    def whole(self, path: str) -> bool:
        """Whether anything in a file may matter."""
        known = self._whole.get(path)
        if known is None:
            # What a package hands on lies in other files.
            known = os.path.basename(path) == "__init__.py" or self._question.does(self._load(path))
            self._whole[path] = known
        return known

    def of_import(self, module: str, name: str, importer: str, find: Find) -> Answer:
        """Whether what a file imports may matter: a module, with dots in front, or a name in it where one is given."""
        touched: set[str] = set()
        asked: Asked = {}
        place = self._imported(module, name.encode(), importer, touched, _keeping(find, asked))
        if place is None:
            return Answer(False, frozenset(touched), asked)
        known = self._answer(place, find)
        return Answer(known.helps, known.touched | touched, {**known.asked, **asked})

    def ask(self, path: str, name: str, find: Find) -> Answer:
        """Whether a name that the file at a path defines, or hands on, may matter; ``find`` says where imports lead."""
        return self._answer((path, name.encode()), find)

    def _answer(self, place: Place, find: Find) -> Answer:
        if place not in self._known:
            self._search(place, find)
        return self._known[place]

    def hands_on(self, path: str, name: str) -> bool:
        """Return True if a file may have a name from another one."""
        names = self._names_of(path)
        return bool(names.stars) or name.encode() in names.imports

    def _names_of(self, path: str) -> _Names:
        known = self._names.get(path)
        if known is None:
            known = self._names[path] = _Names(self._load(path), self._question)
        return known

    def _search(self, root: Place, find: Find) -> None:
        """Follow what names are defined by until something matters, and keep what that has shown."""
        touched: set[str] = set()
        asked: Asked = {}
        lead = _keeping(find, asked)
        seen = {root}
        way = [(root, self._onward(root, touched, lead))]
        helps = False
        while way and not helps:
            for place in way[-1][1]:
                known = self._known.get(place)
                if known is not None:
                    touched |= known.touched
                    asked |= known.asked
                    helps = known.helps
                    if helps:
                        break
                elif place not in seen:
                    seen.add(place)
                    way.append((place, self._onward(place, touched, lead)))
                    break
            else:
                way.pop()
        answer = Answer(helps, frozenset(touched), asked)
        # Where something matters, no more is known of what lies beside the way to it.
        self._known.update(dict.fromkeys([place for place, _ in way] if helps else seen, answer))

    def _onward(self, place: Place, touched: set[str], find: Find) -> Iterator[Place]:
        """What a name is defined by."""
        path, name = place
        touched.add(path)
        names = self._names_of(path)
        # What steps in where an import fails is not asked: most of what is imported is defined nowhere else.
        taken = names.imports.get(name)
        if taken is None and name in names.defined:
            does, uses = names.defined_by(name)
            if does:
                yield _MATTERS
            for use in uses:
                yield path, use
            return
        if taken is None:
            taken = [(module, name) for module in names.stars]
            # Code of its own may give it the name.
            if not taken and (names.helps or (os.path.basename(path) == "__init__.py" and names.says(name))):
                yield _MATTERS
        for module, member in taken:
            imported = self._imported(module.decode(), member, path, touched, find)
            if imported is not None:
                yield imported

    def _imported(self, module: str, name: bytes, importer: str, touched: set[str], find: Find) -> Place | None:
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
            touched.add(found)
            return _MATTERS if not found.endswith(".py") or self.whole(found) else None
        return None


def _keeping(find: Find, asked: Asked) -> Find:
    """The same question, with what it was asked and where that led kept."""

    def lead(dotted: str, importer: str, level: int) -> str | None:
        found = asked[dotted, importer, level] = find(dotted, importer, level)
        return found

    return lead


class _Names:
    """The names of a file, with what defines each.

    ``imports`` holds for each local name of an import the modules, with dots in front, and the names there that it may
    stand for; ``stars`` the modules that everything is taken from; ``helps`` says whether anything in it matters.
    """

    __slots__ = ("_code", "_defined", "_parts", "_question", "_said", "helps", "imports", "stars")

    def __init__(self, data: bytes, question: Question) -> None:
        self._code = code = Code(data).bare.data
        self._question = question
        self.helps = question.does(code)
        self.imports: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.stars: list[bytes] = []
        for module, name, local in patterns.imported(code):
            if name == b"*":
                self.stars.append(module)
            else:
                self.imports.setdefault(local, []).append((module, name))
        self._parts: list[bytes] = []
        self._defined: dict[bytes, list[int]] | None = None
        self._said: dict[int, tuple[bool, frozenset[bytes]]] = {}

    @property
    def defined(self) -> dict[bytes, list[int]]:
        """The names that the statements of the module itself give values to, with the numbers of these statements."""
        if self._defined is None:
            self._defined = {}
            self._split(self._code, self._defined)
        return self._defined

    def _split(self, code: bytes, defined: dict[bytes, list[int]]) -> None:
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
            for target in [name] if name else _targets(part):
                defined.setdefault(target, []).append(len(self._parts))
            self._parts.append(part)

    def says(self, name: bytes) -> bool:
        """Whether a name stands anywhere in it."""
        return name in self._code

    def defined_by(self, name: bytes) -> tuple[bool, list[bytes]]:
        """Whether what defines a name does what matters, and the names of the file that it uses for it."""
        does = False
        uses: set[bytes] = set()
        for number in self.defined.get(name, ()):
            if number not in self._said:
                part = self._parts[number]
                words = frozenset(_NAME.findall(self._question.onward(part)))
                known = (words & self.defined.keys()) | (words & self.imports.keys())
                self._said[number] = self._question.does(part), known
            helps, names = self._said[number]
            does = does or helps
            uses |= names
        return does, sorted(uses)


def _targets(part: bytes) -> set[bytes]:
    """The names that a statement which is no definition gives values to."""
    found: set[bytes] = set()
    for name, names in _TARGETS.findall(part):
        found.update([name] if name else _NAME.findall(names))
    return found
