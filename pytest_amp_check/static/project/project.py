"""The files of a run: which of them an import leads to, and those that have been parsed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ...protocol import frameworks, surface
from ...protocol.byte_sizes import LARGEST_FILE
from ..sources import patterns, programs, source_files
from ..sources.tokens import refuse_dense
from .exports import HANDS_DOWN, HELPS, Answer, Exports
from .importers import Importers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sources.patterns import Code
    from ..sources.prefilter import Prefiltered
    from .entering import Entering
    from .module import Imported, Module

#: Characters of source whose syntax trees are kept for the next file that imports them.
KEPT = 4_000_000
#: Those that one file may be given of others.
MOST = 1_500_000
#: What marks the directory of a project, above which no import of a file that is named leads.
PROJECT_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
#: What lies at the top of code that was downloaded without its history, and is never packaged.
COPY_MARKS = ("LICENSE", "README.md", "README.rst", "requirements.txt", "environment.yml")
#: By these a file imports others by a name that only a run knows.
BY_NAME = (b"import_module(", b"__import__(", b"instantiate(", b"_target_")
#: Directories beside those of the importing file that are put on the path by habit.
LAYOUTS = ("", "src", "lib")


class Project:
    """What is known of all the files of a run before any is parsed, and the way from an import to one of them.

    ``files`` are those to be checked, and ``members`` all that are known of: of files that were named alone the whole
    project, where a mark says where it ends, so that they are read as they are in a check of its folder.
    ``autocast`` are the files that may enter autocast, ``float16`` those that speak of float16, ``lightning16`` says
    whether any has a Trainer of Lightning train in it, ``resumes`` whether any may load the state of an optimizer:
    which of a project is not known where no folder of it was looked at, and no mark says where it ends.
    """

    __slots__ = (
        "_directories",
        "_given",
        "_handed",
        "_held",
        "_helpers",
        "_imported",
        "_led",
        "_linked",
        "_modules",
        "_names",
        "_places",
        "_resumes",
        "_tails",
        "_tops",
        "_trainers",
        "asked",
        "autocast",
        "below",
        "declared",
        "devices",
        "entered",
        "files",
        "float16",
        "importers",
        "largest",
        "lightning16",
        "low",
        "members",
        "touched",
        "whole",
    )

    def __init__(self, largest: int = LARGEST_FILE) -> None:
        self.autocast: set[str] = set()
        self.float16: set[str] = set()
        self.lightning16 = False
        #: What wrappers that cannot be read do, by their dotted names, as the configuration says.
        self.declared: Mapping[str, tuple[str, ...]] = {}
        #: The types of devices that the project runs on, where the configuration says so.
        self.devices: tuple[str, ...] = ()
        #: Bytes of code of a file that are parsed, and searched.
        self.largest = largest
        load = partial(source_files.load_or_nothing, largest=largest)
        self._helpers, self._trainers = Exports(load, HELPS), Exports(load, HANDS_DOWN)
        self._resumes = False
        #: Absolute path -> path as it is written.
        self.files: dict[str, str] = {}
        #: By their absolute paths.
        self.members: Collection[str] = self.files
        self._tops: list[tuple[str, bool]] = []
        self._tails: dict[str, list[str]] = {}
        #: The directories around the files, and what files and directories are called: what an import can lead to.
        self._directories: set[str] = set()
        self._names: set[str] = set()
        self._places: dict[str, tuple[str, str]] = {}
        self._led: dict[tuple[str, str], str | None] = {}
        self._modules: dict[str, Module | None] = {}
        self._held = 0
        #: What linking a parsed file has asked for, which whoever asks for that file asks for, too.
        self._linked: dict[str, tuple[set[str], dict[tuple[str, str, int], str | None]]] = {}
        self._imported: dict[str, frozenset[str]] = {}
        #: What the file being read has asked for: files by absolute path, imports with where they led.
        self.touched: set[str] = set()
        self.asked: dict[tuple[str, str, int], str | None] = {}
        #: Files whose own imports are among these already.
        self._handed: set[str] = set()
        self._given = 0
        #: What :mod:`.reach` remembers: what enters autocast in a file, whether one computes in float16, what a file
        #: imports, directly or not, and the files that import something by its last name.
        self.entered: dict[str, Entering] = {}
        self.low: dict[str, bool] = {}
        self.below: dict[str, set[str]] = {}
        self.importers = Importers()
        #: Whether any file may have mattered.
        self.whole = False

    # What a first look shows.

    def know(self, path: str, shown: Code | Prefiltered) -> None:
        """Know what the code of a file, or a first look at it, has shown."""
        if shown.autocast:
            self.autocast.add(path)
        if shown.float16:
            self.float16.add(os.path.abspath(path))
        self.lightning16 = self.lightning16 or shown.lightning16
        self._resumes = self._resumes or shown.resumes

    def surround(self, codes: Iterable[tuple[str, Code]], files: Collection[str], *, whole: bool) -> None:
        """Know what lies around files that were named: what the code of some has shown, and all of them by their paths.

        ``whole`` says that these are all the files of their projects: no other one is asked for on the disk then.
        """
        for path, code in codes:
            if whole:
                self.know(path, code)
            self.lightning16 = self.lightning16 or code.lightning16
            self._resumes = self._resumes or code.resumes
        if whole:
            self._tops = [(top, False) for top, _ in self._tops]
            self.members = self.files.keys() | files
            self._take_in(self.members - self.files.keys())

    def grow(self, files: list[str], paths: Sequence[str]) -> None:
        """Take in the files that were found below the paths that the user named."""
        self.files = {os.path.abspath(file): file for file in files}
        # Not a view of the keys, which cannot be sent to a spawned process.
        self.members = self.files
        self._take_in(self.members)
        for path in paths:
            top = os.path.abspath(path)
            alone = not os.path.isdir(top)
            self._tops.append((_project_of(os.path.dirname(top)) if alone else top, alone))

    def _take_in(self, files: Iterable[str]) -> None:
        """Know of files, by their absolute paths, where imports can lead."""
        for file in files:
            self._tails.setdefault(source_files.stem(file), []).append(file)
            directory = os.path.dirname(file)
            while directory not in self._directories:
                self._directories.add(directory)
                directory = os.path.dirname(directory)
        self._names = self._tails.keys() | {os.path.basename(directory) for directory in self._directories}

    @property
    def resumes(self) -> bool:
        return self._resumes or all(alone for _, alone in self._tops)

    # From an import to a file.

    def find(self, dotted: str, importer: str, level: int = 0) -> str | None:
        """The absolute path of the file that an import in another leads to; None where it leads out of the tree.

        A package leads to its ``__init__.py``, and a directory without one to itself.
        """
        importer, _ = self._place(importer)
        found = self.asked[dotted, importer, level] = self._find(dotted, importer, level)
        return found

    def _find(self, dotted: str, importer: str, level: int) -> str | None:
        """The same for an importer by its absolute path, without keeping that it was asked."""
        if not self._tops:
            return None
        _, directory = self._place(importer)
        for _ in range(level - 1):
            directory = os.path.dirname(directory)
        key = ("." * bool(level) + dotted, directory)
        if key not in self._led:
            self._led[key] = self._lead(dotted, directory, relative=bool(level))
        found = self._led[key]
        if found == importer and not level:
            # No file imports itself: it has the name of its package.
            found = self._lead(dotted, os.path.dirname(directory), relative=False)
        return found

    def _place(self, path: str) -> tuple[str, str]:
        """The absolute path of a file, and of the directory that it lies in."""
        known = self._places.get(path)
        if known is None:
            absolute = os.path.abspath(path)
            known = self._places[path] = absolute, os.path.dirname(absolute)
        return known

    def leads(self, imported: Imported, importer: str) -> bool:
        """Whether an import leads to a file of the tree, or to a package."""
        return self.find(imported.module, importer, imported.level) is not None

    def _lead(self, dotted: str, directory: str, *, relative: bool) -> str | None:
        parts = dotted.split(".") if dotted else []
        if not self._names.issuperset(parts[-1:] if relative else parts[:1] + parts[-1:]) and self.knows_all():
            # Nothing is called that.
            return None
        if relative:
            return self._at(directory, parts)
        if not parts or parts[0] in sys.stdlib_module_names or parts[0] == "torch":
            return None
        places = (os.path.join(above, layout) for above in _above(directory, self._tops) for layout in LAYOUTS)
        found = next(filter(None, (self._at(place, parts) for place in places)), None)
        return found or _by_tail(parts, self._tails.get(parts[-1], ()))

    def _at(self, directory: str, parts: list[str]) -> str | None:
        place = os.path.join(directory, *parts)
        for candidate in (place + ".py", os.path.join(place, "__init__.py")):
            if self._is_file(candidate):
                return candidate
        return place if self._holds_files(place) else None

    def _is_file(self, path: str) -> bool:
        if path in self.members:
            return True
        return self._may_lie_alone(path) and os.path.isfile(path)

    def _holds_files(self, directory: str) -> bool:
        """Whether a directory without ``__init__.py`` is a package all the same, for what lies in it."""
        if directory in self._directories:
            return True
        return self._may_lie_alone(directory) and os.path.isdir(directory)

    def _may_lie_alone(self, path: str) -> bool:
        """Whether a path lies in the project of a file that was named, whose other files are not known."""
        return any(alone and path.startswith(os.path.join(top, "")) for top, alone in self._tops)

    # Parsed files.

    def written(self, path: str) -> str:
        """The path of a file as the user would write it."""
        return self.files.get(path) or os.path.relpath(path)

    def helps(self, path: str) -> bool:
        """Whether a file may do something to the protocol for one that imports it."""
        self.touched.add(path)
        return self._helpers.whole(path)

    def hands_on(self, path: str, name: str) -> bool:
        """Whether a file has a name from another one that may do so."""
        return self._helpers.hands_on(path, name) and self._depend(self._helpers.ask(path, name, self._find))

    def _depend(self, answer: Answer) -> bool:
        """What an answer says, which the file being read depends on from now on."""
        self.touched |= answer.touched
        self.asked |= answer.asked
        return answer.helps

    def module(self, path: str) -> Module | None:
        """The parsed file at an absolute path; None if it does not parse."""
        self.touched.add(path)
        if path not in self._modules:
            made = self._parsed(path)
            self._held += len(made.text) if made is not None else 0
            if made is not None:
                outer = self.touched, self.asked
                self.touched, self.asked = self._linked[path] = set(), {}
                try:
                    from .relevance import mark_relevant

                    mark_relevant(made, self.local_names(made, path))
                finally:
                    self.touched, self.asked = outer
        else:
            # The one that was asked for last is kept longest.
            made = self._modules.pop(path)
        known = self._modules[path] = made
        if known is not None and path not in self._handed:
            # However much of it is at hand from before: what a file is given depends on that file alone.
            if self._given > MOST:
                return None
            self._given += len(known.text)
            self._handed.add(path)
            touched, asked = self._linked[path]
            self.touched |= touched
            self.asked |= asked
        return known

    def _parsed(self, path: str) -> Module | None:
        import ast

        from .module import Module

        try:
            text = source_files.read(path, self.largest)
            refuse_dense(text, self.largest)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Module(self.written(path), text, ast.parse(text))
        except (source_files.Unreadable, SyntaxError, ValueError):
            return None

    def local_names(self, module: Module, path: str) -> frozenset[str]:
        """Names of a file that stand for what may matter in another file of the tree."""
        from .relevance import derived_from, may_train

        whole = may_train(module)
        asked, exports = (module.imports, self._helpers) if whole else (derived_from(module), self._trainers)
        return frozenset(
            name
            for name, imported in module.imports.items()
            if name in asked and not is_spoken_for(imported) and self._matters(imported, path, exports)
        )

    def _matters(self, imported: Imported, importer: str, exports: Exports) -> bool:
        """Whether what an import names may matter."""
        module = "." * imported.level + imported.module
        return self._depend(exports.of_import(module, imported.name, self._place(importer)[0], self._find))

    def knows_all(self) -> bool:
        """Whether every file of the project is at hand, and not only those that were named."""
        return not any(alone for _, alone in self._tops)

    def imports(self, path: str) -> frozenset[str]:
        """Absolute paths of the files that a file imports itself, or may import by a name that only a run knows."""
        asked, self.asked = self.asked, {}
        found = self.imported_by(os.path.abspath(path))
        self.asked = asked
        return found

    def leads_to(self, path: str) -> frozenset[str]:
        """Absolute paths of the files that a file imports itself: to read it may lead to these, and to no other."""
        asked, self.asked = self.asked, {}
        found = frozenset(self.look_at_imports(os.path.abspath(path), by_name=False))
        self.asked = asked
        return found

    def imports_of(self, paths: set[str]) -> set[str]:
        """Files and all that they import, directly or not; every file where one of them imports by name."""
        reached = set(paths)
        work = list(paths)
        while work and len(reached) < len(self.members):
            here = work.pop()
            for other in self.imported_by(here):
                if other not in reached:
                    reached.add(other)
                    work.append(other)
        return reached

    def imported_by(self, path: str) -> frozenset[str]:
        known = self._imported.get(path)
        if known is None:
            known = self._imported[path] = frozenset(self.look_at_imports(path))
        return known

    def look_at_imports(self, path: str, *, by_name: bool = True) -> Iterator[str]:
        """The files that a file imports itself, and ``by_name`` those that it may import by a name of the run."""
        try:
            data = programs.code(path, programs.load(path, self.largest))
        except source_files.Unreadable:
            return
        if by_name and any(word in data for word in BY_NAME):
            yield from _named_by(path, self.members)
        for module, name, _ in patterns.imported(data):
            dotted = module.decode()
            level = len(dotted) - len(dotted.lstrip("."))
            dotted = dotted[level:]
            for part in dict.fromkeys(("", name.decode("utf-8", "replace"))):
                inner = ".".join(filter(None, (dotted, part)))
                found = self.find(inner, path, level) if inner else None
                if found is not None and found.endswith(".py"):
                    yield found

    def begin(self) -> None:
        """Start to read another file: forget what the last one asked for, and parsed files where they grow too many."""
        self.touched = set()
        self.asked = {}
        self._handed = set()
        self._given = 0
        self.whole = False
        if self._held > KEPT:
            while self._held > KEPT * 3 // 4:
                oldest = next(iter(self._modules))
                dropped = self._modules.pop(oldest)
                self._linked.pop(oldest, None)
                if dropped is not None:
                    self._held -= len(dropped.text)
                    dropped.release()


def _above(directory: str, tops: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """The directories from that of a file up to the top of its tree, or of the package that the top lies in."""
    around = [top for top, _ in tops if directory == top or directory.startswith(os.path.join(top, ""))]
    last = package_top(min(around, key=len) if around else directory)
    for above in source_files.upward(directory):
        yield above
        if above == last:
            return


def _by_tail(parts: list[str], files: Iterable[str]) -> str | None:
    """The one of some files whose path ends as an import does: other code puts its directory on the path."""
    tail = os.sep + os.path.join(*parts)
    ends = (tail + ".py", os.path.join(tail, "__init__.py"))
    found = [file for file in files if file.endswith(ends)]
    return found[0] if len(found) == 1 else None


def _named_by(path: str, files: Collection[str]) -> Iterable[str]:
    """The files that one may import by a name that only a run knows.

    What lies in a package may name what it holds and what lies beside it, a script whatever there is.
    """
    directory = os.path.dirname(os.path.abspath(path))
    top = package_top(directory)
    return files if top == directory else [file for file in files if file.startswith(top + os.sep)]


def is_spoken_for(imported: Imported) -> bool:
    """Whether an import names something of torch, or of a framework, whose meaning the tables tell."""
    name = f"{imported.module}.{imported.name}".rstrip(".")
    return not imported.level and (surface.known(name) or frameworks.known(name))


def package_top(directory: str) -> str:
    """The directory in which the package lies that a directory is in; itself where it is in none."""
    while os.path.isfile(os.path.join(directory, "__init__.py")) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    return directory


def _project_of(directory: str) -> str:
    """The directory of the project that a directory lies in; itself where no project is marked."""
    return marked_project(directory) or directory


def marked_project(directory: str) -> str | None:
    """The directory of the project that a directory lies in, where one is marked."""
    marked = (
        above
        for marks in (PROJECT_MARKS, COPY_MARKS)
        for above in source_files.upward(directory)
        if any(os.path.lexists(os.path.join(above, mark)) for mark in marks)
    )
    return next(marked, None)
