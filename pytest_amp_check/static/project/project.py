"""The files of a run: which of them an import leads to, and those that have been parsed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ...protocol import frameworks, torch_api
from ...protocol.byte_sizes import LARGEST_FILE
from ..sources import code_blocks, patterns, source_files
from ..sources.tokens import refuse_dense
from .exports import AFFECTS_PROTOCOL, INHERITS_TRAINING, Exports, NameRelevance
from .importers import Importers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sources.patterns import Code
    from ..sources.prefilter import Prescan
    from .module import ImportedName, Module
    from .region_entry import AutocastEntries

#: Characters of source whose syntax trees are kept for the next file that imports them.
MAX_CACHED_CHARACTERS = 4_000_000
#: Those that one file may be given of others.
MAX_GIVEN_CHARACTERS = 1_500_000
#: What marks the directory of a project, above which no import of a file that is named leads.
PROJECT_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
#: What lies at the top of code that was downloaded without its history, and is never packaged.
COPY_MARKS = ("LICENSE", "README.md", "README.rst", "requirements.txt", "environment.yml")
#: By these a file imports others by a name that only a run knows.
DYNAMIC_IMPORT_WORDS = (b"import_module(", b"__import__(", b"instantiate(", b"_target_")
#: Directories beside those of the importing file that are put on the path by habit.
SOURCE_FOLDERS = ("", "src", "lib")


class Project:
    """What is known of all the files of a run before any is parsed, and the way from an import to one of them.

    ``files`` are those to be checked, and ``members`` all that are known of: of files that were named alone the whole
    project, where a mark says where it ends, so that they are read as they are in a check of its folder.
    ``autocast`` are the files that may enter autocast, ``float16`` those that speak of float16, ``lightning16`` says
    whether any has a Trainer of Lightning train in it, ``resumes`` whether any may load the state of an optimizer:
    which of a project is not known where no folder of it was looked at, and no mark says where it ends.
    """

    __slots__ = (
        "_absolute_paths",
        "_cached_characters",
        "_dependencies_by_path",
        "_directories",
        "_files_by_stem",
        "_given_characters",
        "_given_modules",
        "_helper_exports",
        "_import_cache",
        "_importable_names",
        "_imports_by_path",
        "_may_resume",
        "_modules",
        "_roots",
        "_trainer_exports",
        "autocast_files",
        "declared_wrappers",
        "dependencies",
        "depends_on_all",
        "devices",
        "entries_by_path",
        "files",
        "float16_by_path",
        "float16_files",
        "has_lightning16",
        "import_targets",
        "importers",
        "imports_below",
        "largest",
        "members",
    )

    def __init__(self, largest: int = LARGEST_FILE) -> None:
        self.autocast_files: set[str] = set()
        self.float16_files: set[str] = set()
        self.has_lightning16 = False
        #: What wrappers that cannot be read do, by their dotted names, as the configuration says.
        self.declared_wrappers: Mapping[str, tuple[str, ...]] = {}
        #: The types of devices that the project runs on, where the configuration says so.
        self.devices: tuple[str, ...] = ()
        #: Bytes of code of a file that are parsed, and searched.
        self.largest = largest
        load = partial(source_files.load_or_nothing, largest=largest)
        self._helper_exports, self._trainer_exports = Exports(load, AFFECTS_PROTOCOL), Exports(load, INHERITS_TRAINING)
        self._may_resume = False
        #: Absolute path -> path as it is written.
        self.files: dict[str, str] = {}
        #: By their absolute paths.
        self.members: Collection[str] = self.files
        self._roots: list[tuple[str, bool]] = []
        self._files_by_stem: dict[str, list[str]] = {}
        #: The directories around the files, and what files and directories are called: what an import can lead to.
        self._directories: set[str] = set()
        self._importable_names: set[str] = set()
        self._absolute_paths: dict[str, tuple[str, str]] = {}
        self._import_cache: dict[tuple[str, str], str | None] = {}
        self._modules: dict[str, Module | None] = {}
        self._cached_characters = 0
        #: What linking a parsed file has asked for, which whoever asks for that file asks for, too.
        self._dependencies_by_path: dict[str, tuple[set[str], dict[tuple[str, str, int], str | None]]] = {}
        self._imports_by_path: dict[str, frozenset[str]] = {}
        #: What the file being read has asked for: files by absolute path, imports with where they led.
        self.dependencies: set[str] = set()
        self.import_targets: dict[tuple[str, str, int], str | None] = {}
        #: Files whose own imports are among these already.
        self._given_modules: set[str] = set()
        self._given_characters = 0
        #: What :mod:`.reach` remembers: what enters autocast in a file, whether one computes in float16, what a file
        #: imports, directly or not, and the files that import something by its last name.
        self.entries_by_path: dict[str, AutocastEntries] = {}
        self.float16_by_path: dict[str, bool] = {}
        self.imports_below: dict[str, set[str]] = {}
        self.importers = Importers()
        #: Whether any file may have mattered.
        self.depends_on_all = False

    # What a first look shows.

    def add_prescan(self, path: str, prescan: Code | Prescan) -> None:
        """Know what the code of a file, or a first look at it, has shown."""
        if prescan.may_enter_autocast:
            self.autocast_files.add(path)
        if prescan.may_use_float16:
            self.float16_files.add(os.path.abspath(path))
        self.has_lightning16 = self.has_lightning16 or prescan.has_lightning16
        self._may_resume = self._may_resume or prescan.may_resume

    def add_surroundings(self, codes: Iterable[tuple[str, Code]], files: Collection[str], *, is_complete: bool) -> None:
        """Know what lies around files that were named: what the code of some has shown, and all of them by their paths.

        ``whole`` says that these are all the files of their projects: no other one is asked for on the disk then.
        """
        for path, code in codes:
            if is_complete:
                self.add_prescan(path, code)
            self.has_lightning16 = self.has_lightning16 or code.has_lightning16
            self._may_resume = self._may_resume or code.may_resume
        if is_complete:
            self._roots = [(top, False) for top, _ in self._roots]
            self.members = self.files.keys() | files
            self._index_files(self.members - self.files.keys())

    def add_files(self, files: list[str], paths: Sequence[str]) -> None:
        """Take in the files that were found below the paths that the user named."""
        self.files = {os.path.abspath(file): file for file in files}
        # Not a view of the keys, which cannot be sent to a spawned process.
        self.members = self.files
        self._index_files(self.members)
        for path in paths:
            top = os.path.abspath(path)
            is_single_file = not os.path.isdir(top)
            self._roots.append((_project_of(os.path.dirname(top)) if is_single_file else top, is_single_file))

    def _index_files(self, files: Iterable[str]) -> None:
        """Know of files, by their absolute paths, where imports can lead."""
        for file in files:
            self._files_by_stem.setdefault(source_files.import_stem(file), []).append(file)
            directory = os.path.dirname(file)
            while directory not in self._directories:
                self._directories.add(directory)
                directory = os.path.dirname(directory)
        self._importable_names = self._files_by_stem.keys() | {
            os.path.basename(directory) for directory in self._directories
        }

    @property
    def may_resume(self) -> bool:
        return self._may_resume or all(alone for _, alone in self._roots)

    # From an import to a file.

    def find_import(self, dotted: str, importer: str, level: int = 0) -> str | None:
        """The absolute path of the file that an import in another leads to; None where it leads out of the tree.

        A package leads to its ``__init__.py``, and a directory without one to itself.
        """
        importer, _ = self._absolute_path(importer)
        found = self.import_targets[dotted, importer, level] = self._find_import(dotted, importer, level)
        return found

    def _find_import(self, dotted: str, importer: str, level: int) -> str | None:
        """The same for an importer by its absolute path, without keeping that it was asked."""
        if not self._roots:
            return None
        _, directory = self._absolute_path(importer)
        for _ in range(level - 1):
            directory = os.path.dirname(directory)
        key = ("." * bool(level) + dotted, directory)
        if key not in self._import_cache:
            self._import_cache[key] = self._resolve_import(dotted, directory, relative=bool(level))
        found = self._import_cache[key]
        if found == importer and not level:
            # No file imports itself: it has the name of its package.
            found = self._resolve_import(dotted, os.path.dirname(directory), relative=False)
        return found

    def _absolute_path(self, path: str) -> tuple[str, str]:
        """The absolute path of a file, and of the directory that it lies in."""
        known = self._absolute_paths.get(path)
        if known is None:
            absolute = os.path.abspath(path)
            known = self._absolute_paths[path] = absolute, os.path.dirname(absolute)
        return known

    def is_local_import(self, imported: ImportedName, importer: str) -> bool:
        """Whether an import leads to a file of the tree, or to a package."""
        return self.find_import(imported.module, importer, imported.level) is not None

    def _resolve_import(self, dotted: str, directory: str, *, relative: bool) -> str | None:
        parts = dotted.split(".") if dotted else []
        if (
            not self._importable_names.issuperset(parts[-1:] if relative else parts[:1] + parts[-1:])
            and self.is_complete()
        ):
            # Nothing is called that.
            return None
        if relative:
            return self._file_at(directory, parts)
        if not parts or parts[0] in sys.stdlib_module_names or parts[0] == "torch":
            return None
        folders = (
            os.path.join(above, layout) for above in _folders_above(directory, self._roots) for layout in SOURCE_FOLDERS
        )
        found = next(filter(None, (self._file_at(folder, parts) for folder in folders)), None)
        return found or _find_by_path_end(parts, self._files_by_stem.get(parts[-1], ()))

    def _file_at(self, directory: str, parts: list[str]) -> str | None:
        base = os.path.join(directory, *parts)
        for candidate in (base + ".py", os.path.join(base, "__init__.py")):
            if self._is_file(candidate):
                return candidate
        return base if self._holds_files(base) else None

    def _is_file(self, path: str) -> bool:
        if path in self.members:
            return True
        return self._is_near_single_file(path) and os.path.isfile(path)

    def _holds_files(self, directory: str) -> bool:
        """Whether a directory without ``__init__.py`` is a package all the same, for what lies in it."""
        if directory in self._directories:
            return True
        return self._is_near_single_file(directory) and os.path.isdir(directory)

    def _is_near_single_file(self, path: str) -> bool:
        """Whether a path lies in the project of a file that was named, whose other files are not known."""
        return any(alone and path.startswith(os.path.join(top, "")) for top, alone in self._roots)

    # Parsed files.

    def display_path(self, path: str) -> str:
        """The path of a file as the user would write it."""
        return self.files.get(path) or os.path.relpath(path)

    def is_relevant_file(self, path: str) -> bool:
        """Whether a file may do something to the protocol for one that imports it."""
        self.dependencies.add(path)
        return self._helper_exports.is_relevant_file(path)

    def may_reexport(self, path: str, name: str) -> bool:
        """Whether a file has a name from another one that may do so."""
        return self._helper_exports.may_reexport(path, name) and self._add_dependencies(
            self._helper_exports.relevance_of_name(path, name, self._find_import)
        )

    def _add_dependencies(self, file_result: NameRelevance) -> bool:
        """What an answer says, which the file being read depends on from now on."""
        self.dependencies |= file_result.dependencies
        self.import_targets |= file_result.import_targets
        return file_result.is_relevant

    def module_at(self, path: str) -> Module | None:
        """The parsed file at an absolute path; None if it does not parse."""
        self.dependencies.add(path)
        if path not in self._modules:
            made = self._parse_module(path)
            self._cached_characters += len(made.text) if made is not None else 0
            if made is not None:
                outer = self.dependencies, self.import_targets
                self.dependencies, self.import_targets = self._dependencies_by_path[path] = set(), {}
                try:
                    from .relevance import mark_relevant

                    mark_relevant(made, self.relevant_imports(made, path))
                finally:
                    self.dependencies, self.import_targets = outer
        else:
            # The one that was asked for last is kept longest.
            made = self._modules.pop(path)
        known = self._modules[path] = made
        if known is not None and path not in self._given_modules:
            # However much of it is at hand from before: what a file is given depends on that file alone.
            if self._given_characters > MAX_GIVEN_CHARACTERS:
                return None
            self._given_characters += len(known.text)
            self._given_modules.add(path)
            touched, asked = self._dependencies_by_path[path]
            self.dependencies |= touched
            self.import_targets |= asked
        return known

    def _parse_module(self, path: str) -> Module | None:
        import ast

        from .module import Module

        try:
            text = source_files.read_python(path, self.largest)
            refuse_dense(text, self.largest)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Module(self.display_path(path), text, ast.parse(text))
        except (source_files.Unreadable, SyntaxError, ValueError):
            return None

    def relevant_imports(self, module: Module, path: str) -> frozenset[str]:
        """Names of a file that stand for what may matter in another file of the tree."""
        from .relevance import base_names, may_train

        whole = may_train(module)
        asked, exports = (
            (module.imports, self._helper_exports) if whole else (base_names(module), self._trainer_exports)
        )
        return frozenset(
            name
            for name, imported in module.imports.items()
            if name in asked and not is_library_import(imported) and self._is_relevant_import(imported, path, exports)
        )

    def _is_relevant_import(self, imported: ImportedName, importer: str, exports: Exports) -> bool:
        """Whether what an import names may matter."""
        module = "." * imported.level + imported.module
        return self._add_dependencies(
            exports.relevance_of_import(module, imported.name, self._absolute_path(importer)[0], self._find_import)
        )

    def is_complete(self) -> bool:
        """Whether every file of the project is at hand, and not only those that were named."""
        return not any(alone for _, alone in self._roots)

    def possible_imports(self, path: str) -> frozenset[str]:
        """Absolute paths of the files that a file imports itself, or may import by a name that only a run knows."""
        asked, self.import_targets = self.import_targets, {}
        found = self.direct_imports(os.path.abspath(path))
        self.import_targets = asked
        return found

    def static_imports(self, path: str) -> frozenset[str]:
        """Absolute paths of the files that a file imports itself: to read it may lead to these, and to no other."""
        asked, self.import_targets = self.import_targets, {}
        found = frozenset(self.iterate_imports(os.path.abspath(path), by_name=False))
        self.import_targets = asked
        return found

    def transitive_imports(self, paths: set[str]) -> set[str]:
        """Files and all that they import, directly or not; every file where one of them imports by name."""
        reached = set(paths)
        work = list(paths)
        while work and len(reached) < len(self.members):
            current = work.pop()
            for other in self.direct_imports(current):
                if other not in reached:
                    reached.add(other)
                    work.append(other)
        return reached

    def direct_imports(self, path: str) -> frozenset[str]:
        known = self._imports_by_path.get(path)
        if known is None:
            known = self._imports_by_path[path] = frozenset(self.iterate_imports(path))
        return known

    def iterate_imports(self, path: str, *, by_name: bool = True) -> Iterator[str]:
        """The files that a file imports itself, and ``by_name`` those that it may import by a name of the run."""
        try:
            data = code_blocks.code_bytes(path, code_blocks.load_source(path, self.largest))
        except source_files.Unreadable:
            return
        if by_name and any(word in data for word in DYNAMIC_IMPORT_WORDS):
            yield from _importable_by_name(path, self.members)
        for module, name, _ in patterns.iterate_imports(data):
            dotted = module.decode()
            level = len(dotted) - len(dotted.lstrip("."))
            dotted = dotted[level:]
            for part in dict.fromkeys(("", name.decode("utf-8", "replace"))):
                inner = ".".join(filter(None, (dotted, part)))
                found = self.find_import(inner, path, level) if inner else None
                if found is not None and found.endswith(".py"):
                    yield found

    def begin_file(self) -> None:
        """Start to read another file: forget what the last one asked for, and parsed files where they grow too many."""
        self.dependencies = set()
        self.import_targets = {}
        self._given_modules = set()
        self._given_characters = 0
        self.depends_on_all = False
        if self._cached_characters > MAX_CACHED_CHARACTERS:
            while self._cached_characters > MAX_CACHED_CHARACTERS * 3 // 4:
                oldest = next(iter(self._modules))
                dropped = self._modules.pop(oldest)
                self._dependencies_by_path.pop(oldest, None)
                if dropped is not None:
                    self._cached_characters -= len(dropped.text)
                    dropped.release_references()


def _folders_above(directory: str, tops: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """The directories from that of a file up to the top of its tree, or of the package that the top lies in."""
    around = [top for top, _ in tops if directory == top or directory.startswith(os.path.join(top, ""))]
    last = package_top(min(around, key=len) if around else directory)
    for above in source_files.folders_upward(directory):
        yield above
        if above == last:
            return


def _find_by_path_end(parts: list[str], files: Iterable[str]) -> str | None:
    """The one of some files whose path ends as an import does: other code puts its directory on the path."""
    tail = os.sep + os.path.join(*parts)
    ends = (tail + ".py", os.path.join(tail, "__init__.py"))
    found = [file for file in files if file.endswith(ends)]
    return found[0] if len(found) == 1 else None


def _importable_by_name(path: str, files: Collection[str]) -> Iterable[str]:
    """The files that one may import by a name that only a run knows.

    What lies in a package may name what it holds and what lies beside it, a script whatever there is.
    """
    directory = os.path.dirname(os.path.abspath(path))
    top = package_top(directory)
    return files if top == directory else [file for file in files if file.startswith(top + os.sep)]


def is_library_import(imported: ImportedName) -> bool:
    """Whether an import names something of torch, or of a framework, whose meaning the tables tell."""
    name = f"{imported.module}.{imported.name}".rstrip(".")
    return not imported.level and (torch_api.is_known_name(name) or frameworks.is_known_name(name))


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
        for above in source_files.folders_upward(directory)
        if any(os.path.lexists(os.path.join(above, mark)) for mark in marks)
    )
    return next(marked, None)
