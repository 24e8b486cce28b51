"""Files of a run: resolution of imports to files, and a cache of parsed files."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from ...protocol import frameworks, torch_api
from ...protocol.byte_sizes import LARGEST_FILE
from ..sources import source_files
from ..sources.patterns.declarations import is_class_without_base
from ..sources.tokens import refuse_dense
from .exports import (
    AFFECTS_PROTOCOL,
    CASTS_WEIGHTS,
    GIVES_LOW_PRECISION,
    INHERITS_TRAINING,
    ROUNDS_INPUTS,
    TRAINS,
    Exports,
    NameRelevance,
)
from .import_search import iterate_imports, kept_import_targets
from .importers import Importers
from .roots import package_top, project_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sources.patterns.code import Code
    from ..sources.prefilter import Prescan
    from .module import ImportedName, Module
    from .region_entry import AutocastEntries, RegionUser

#: Maximum source size, in characters, of the cached syntax trees of imported files.
MAX_CACHED_CHARACTERS = 4_000_000
#: Maximum source size, in characters, of the other files that the analysis of one file may parse.
MAX_GIVEN_CHARACTERS = 1_500_000
#: Largest file, in bytes, that is analyzed only because its definitions may round their inputs.
MAX_ROUNDING_FILE = 24_000
#: Common source directories on the import path, relative to each parent directory.
SOURCE_FOLDERS = ("", "src", "lib")


class Project:
    """Project: the prescan results of all files of a run, and the resolution of imports.

    ``files`` are the files to check, and ``members`` all known files. For files that were named alone, ``members`` is
    the whole project if a mark shows its top directory. Then the result equals a check of the folder.

    autocast_files    files that may enter autocast
    float16_files     files that use float16
    has_lightning16   a Lightning Trainer trains in float16 in one of the files
    may_resume        one of the files may load the state of an optimizer; True if only single files are known and no
                      mark shows the top directory
    """

    __slots__ = (
        "_absolute_paths",
        "_cached_characters",
        "_dependencies_by_path",
        "_directories",
        "_files_by_stem",
        "_given_characters",
        "_given_modules",
        "_import_cache",
        "_importable_names",
        "_imports_by_path",
        "_may_resume",
        "_modules",
        "_open_tops",
        "_tops",
        "_trainer_exports",
        "_training_exports",
        "_weight_exports",
        "assumed_dtype",
        "assumed_files",
        "autocast_files",
        "casting_exports",
        "casting_files",
        "clipping_hooks",
        "declared_wrappers",
        "dependencies",
        "depends_on_all",
        "devices",
        "entries_by_path",
        "files",
        "float16_by_path",
        "float16_files",
        "float32_packages",
        "has_lightning16",
        "helper_exports",
        "import_roots",
        "import_targets",
        "importers",
        "imports_below",
        "largest",
        "low_model_files",
        "members",
        "rounding_exports",
        "trains_alone",
        "users_by_path",
    )

    def __init__(self, largest: int = LARGEST_FILE) -> None:
        self.autocast_files: set[str] = set()
        self.float16_files: set[str] = set()
        self.has_lightning16 = False
        #: Effects of unanalyzed wrappers by dotted name, from the configuration.
        self.declared_wrappers: Mapping[str, tuple[str, ...]] = {}
        #: Device types that the project runs on, from the configuration.
        self.devices: tuple[str, ...] = ()
        #: Dtype that the configuration assumes for floating-point inputs and weights, or "".
        self.assumed_dtype = ""
        #: Files that are analyzed only under the assumption that their inputs are in low precision.
        self.assumed_files: frozenset[str] = frozenset()
        #: Files that choose the dtype of a model, by the top directory of their package.
        self.low_model_files: dict[str, set[str]] = {}
        #: Files that cast a model to a low dtype, if only to evaluate it, by the top directory of their package.
        self.casting_files: dict[str, set[str]] = {}
        #: Maximum size, in bytes of code, of a file that is parsed and searched.
        self.largest = largest
        load = partial(source_files.load_or_nothing, largest=largest)
        self.helper_exports, self._trainer_exports = Exports(load, AFFECTS_PROTOCOL), Exports(load, INHERITS_TRAINING)
        self._training_exports = Exports(load, TRAINS)
        self._weight_exports = Exports(load, CASTS_WEIGHTS)
        self.casting_exports = Exports(load, GIVES_LOW_PRECISION)
        self.rounding_exports = Exports(load, ROUNDS_INPUTS)
        self._may_resume = False
        #: Absolute path to path as the user wrote it.
        self.files: dict[str, str] = {}
        #: All known files, by absolute path.
        self.members: Collection[str] = self.files
        #: Top directories of the projects, each with a separator at the end. Each directory stands once, however many
        #: files the user named. The open ones are around named files, and may contain files that were not found.
        self._tops: tuple[str, ...] = ()
        self._open_tops: tuple[str, ...] = ()
        self._files_by_stem: dict[str, list[str]] = {}
        #: Directories around the files, and names of files and directories, which are the possible targets of imports.
        self._directories: set[str] = set()
        self._importable_names: set[str] = set()
        self._absolute_paths: dict[str, tuple[str, str]] = {}
        self._import_cache: dict[tuple[str, str], str | None] = {}
        self._modules: dict[str, Module | None] = {}
        self._cached_characters = 0
        #: Files and imports that the analysis of a parsed file used; users of the parsed file depend on them too.
        self._dependencies_by_path: dict[str, tuple[set[str], dict[tuple[str, str, int], str | None]]] = {}
        self._imports_by_path: dict[str, frozenset[str]] = {}
        #: Dependencies of the current file: files by absolute path, and imports with their targets.
        self.dependencies: set[str] = set()
        self.import_targets: dict[tuple[str, str, int], str | None] = {}
        #: Files whose dependencies are already included.
        self._given_modules: set[str] = set()
        self._given_characters = 0
        #: Results of :mod:`.import_reach`, by file: autocast entries, use of float16, transitive imports, and the
        #: directory at which imports of the file begin. The index of importers maps the last part of a name to files.
        self.entries_by_path: dict[str, AutocastEntries] = {}
        self.users_by_path: dict[str, list[RegionUser]] = {}
        self.float16_by_path: dict[str, bool] = {}
        #: Result of :mod:`.float32_logits`, by the top directory of a package.
        self.float32_packages: dict[str, bool] = {}
        #: Result of :func:`.import_reach.trains_without_regions`, None until it is asked for.
        self.trains_alone: bool | None = None
        #: Result of :mod:`.clipping_hooks`, by the name of a method.
        self.clipping_hooks: dict[str, bool] = {}
        self.imports_below: dict[str, set[str]] = {}
        self.import_roots: dict[str, str] = {}
        self.importers = Importers()
        #: True if the result may depend on any file.
        self.depends_on_all = False

    # Prescan results.

    def add_prescan(self, path: str, prescan: Code | Prescan) -> None:
        """Add the prescan result of a file."""
        if prescan.may_enter_autocast:
            self.autocast_files.add(path)
        if prescan.may_use_float16:
            self.float16_files.add(os.path.abspath(path))
        if prescan.chooses_model_dtype and not os.path.basename(path).startswith("test_"):
            absolute = os.path.abspath(path)
            self.low_model_files.setdefault(package_top(os.path.dirname(absolute)), set()).add(absolute)
        if prescan.casts_models:
            absolute = os.path.abspath(path)
            self.casting_files.setdefault(package_top(os.path.dirname(absolute)), set()).add(absolute)
        self.has_lightning16 = self.has_lightning16 or prescan.has_lightning16
        self._may_resume = self._may_resume or prescan.may_resume

    def add_surroundings(self, codes: Iterable[tuple[str, Code]], files: Collection[str], *, is_complete: bool) -> None:
        """Add the files around named files: the prescan results of some files, and the paths of all files.

        ``is_complete`` says that the projects contain no other files; then no import is searched for on disk.
        """
        for path, code in codes:
            if is_complete:
                self.add_prescan(path, code)
            self.has_lightning16 = self.has_lightning16 or code.has_lightning16
            self._may_resume = self._may_resume or code.may_resume
        if is_complete:
            self._open_tops = ()
            self.members = self.files.keys() | files
            self._index_files(self.members - self.files.keys())

    def add_files(self, files: list[str], paths: Sequence[str]) -> None:
        """Add the files that were found below the paths that the user named."""
        self.files = {os.path.abspath(file): file for file in files}
        # A view of the keys could not be sent to a spawned process.
        self.members = self.files
        self._index_files(self.members)
        tops, open_tops = dict.fromkeys(self._tops), dict.fromkeys(self._open_tops)
        for path in paths:
            top = os.path.abspath(path)
            is_directory = os.path.isdir(top)
            top = os.path.join(top if is_directory else project_of(os.path.dirname(top)), "")
            tops[top] = None
            if not is_directory:
                open_tops[top] = None
        self._tops, self._open_tops = tuple(tops), tuple(open_tops)

    def _index_files(self, files: Iterable[str]) -> None:
        """Index files, given by absolute path, as targets of imports."""
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
        return self._may_resume or self._tops == self._open_tops

    # Resolution of imports.

    def find_import(self, dotted: str, importer: str, level: int = 0) -> str | None:
        """Return the absolute path of the file that an import refers to, or None for a file outside the project.

        A package gives the ``__init__.py`` of the package, and a directory without this file gives the directory.
        """
        importer, _ = self._absolute_path(importer)
        found = self.import_targets[dotted, importer, level] = self._find_import(dotted, importer, level)
        return found

    def _find_import(self, dotted: str, importer: str, level: int) -> str | None:
        """Resolve an import without recording a dependency; ``importer`` is an absolute path."""
        if not self._tops:
            return None
        _, directory = self._absolute_path(importer)
        for _ in range(level - 1):
            directory = os.path.dirname(directory)
        key = ("." * bool(level) + dotted, directory)
        if key not in self._import_cache:
            self._import_cache[key] = self._resolve_import(dotted, directory, relative=bool(level))
        found = self._import_cache[key]
        if found == importer and not level:
            # A file does not import itself, so the name is that of the package.
            found = self._resolve_import(dotted, os.path.dirname(directory), relative=False)
        return found

    def _absolute_path(self, path: str) -> tuple[str, str]:
        """Return the absolute path of a file, and of its directory."""
        known = self._absolute_paths.get(path)
        if known is None:
            absolute = os.path.abspath(path)
            known = self._absolute_paths[path] = absolute, os.path.dirname(absolute)
        return known

    def is_local_import(self, imported: ImportedName, importer: str) -> bool:
        """Return True if an import refers to a file or a package of the project."""
        return self.find_import(imported.module, importer, imported.level) is not None

    def _resolve_import(self, dotted: str, directory: str, *, relative: bool) -> str | None:
        parts = dotted.split(".") if dotted else []
        if (
            not self._importable_names.issuperset(parts[-1:] if relative else parts[:1] + parts[-1:])
            and self.is_complete()
        ):
            # No file or directory has this name.
            return None
        if relative:
            return self._file_at(directory, parts)
        if not parts or parts[0] in sys.stdlib_module_names or parts[0] == "torch":
            return None
        folders = (
            os.path.join(above, layout) for above in _folders_above(directory, self._tops) for layout in SOURCE_FOLDERS
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
        """Return True if a directory without ``__init__.py`` is a package because it contains files."""
        if directory in self._directories:
            return True
        return self._is_near_single_file(directory) and os.path.isdir(directory)

    def _is_near_single_file(self, path: str) -> bool:
        """Return True if a path is in the project of a named file whose other files are not known."""
        return path.startswith(self._open_tops)

    # Parsed files.

    def display_path(self, path: str) -> str:
        """Return the path of a file as the user would write it."""
        return self.files.get(path) or os.path.relpath(path)

    def is_relevant_file(self, path: str) -> bool:
        """Return True if a file may affect the protocol of a file that imports it."""
        self.dependencies.add(path)
        return self.helper_exports.is_relevant_file(path) or self.casting_exports.is_relevant_file(path)

    def leads_to_relevant_file(self, path: str, name: str) -> bool:
        """Return True if a file re-exports a relevant name, or its function of the name uses another file's cast."""
        # Definitions that only use other files are many, and most of them change nothing.
        exports = self.helper_exports if self.helper_exports.may_reexport(path, name) else self._weight_exports
        return self._add_dependencies(exports.relevance_of_name(path, name, self._find_import))

    def _add_dependencies(self, file_result: NameRelevance) -> bool:
        """Add the dependencies of a result to the current file, and return True if the name is relevant."""
        self.dependencies |= file_result.dependencies
        self.import_targets |= file_result.import_targets
        return file_result.is_relevant

    def module_at(self, path: str) -> Module | None:
        """Return the parsed file at an absolute path, or None if it does not parse or exceeds the budget."""
        self.dependencies.add(path)
        if path not in self._modules:
            made = self._parse_module(path)
            self._cached_characters += len(made.text) if made is not None else 0
            if made is not None:
                outer = self.dependencies, self.import_targets
                self.dependencies, self.import_targets = self._dependencies_by_path[path] = set(), {}
                try:
                    from .import_kinds import casting_imports, rounding_imports
                    from .relevance import mark_relevant

                    matches = partial(self.is_relevant_import, importer=path)
                    gives_low = partial(matches, exports=self.casting_exports)
                    casting = casting_imports(made, gives_low, is_imported=True)
                    rounding = rounding_imports(made, partial(matches, exports=self.rounding_exports))
                    mark_relevant(made, self.relevant_imports(made, path), casting, rounding)
                finally:
                    self.dependencies, self.import_targets = outer
        else:
            # Move the file to the end of the cache: the least recently used file is dropped first.
            made = self._modules.pop(path)
        known = self._modules[path] = made
        if known is not None and path not in self._given_modules:
            # The cache does not change this limit: the files available to one analysis depend on that analysis alone.
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

        from .name_index import build_module

        try:
            text = source_files.read_python(path, self.largest)
            refuse_dense(text, self.largest)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return build_module(self.display_path(path), text, ast.parse(text))
        except (source_files.Unreadable, SyntaxError, ValueError):
            return None

    def relevant_imports(self, module: Module, path: str) -> frozenset[str]:
        """Return the imported names of a file that may be relevant in another file of the project."""
        from ..sources.patterns.low_precision import casts_model, evaluates
        from .relevance import base_names, may_train

        asked: Iterable[str]
        if may_train(module):
            asked, exports = module.imports, self.helper_exports
        elif casts_model(data := module.text.encode()) and not evaluates(data):
            # The file may give the model to another file that trains it.
            asked, exports = module.imports, self._training_exports
        else:
            asked, exports = base_names(module), self._trainer_exports
        return frozenset(
            name
            for name, imported in module.imports.items()
            if name in asked and self.is_relevant_import(imported, path, exports)
        )

    def may_round_inputs(self, path: str, name: str) -> bool:
        """Return True if a name of a file, or the file without a name, may compute what low inputs spoil.

        Large files are left out: the analysis of a large model for each program that uses it takes too long.
        """
        self.dependencies.add(path)
        data = source_files.load_or_nothing(path, self.largest)
        # A class that is no module computes little, but may keep sums or a noise schedule.
        keeps_numbers = b"zeros(" in data or b"cumprod(" in data
        is_other_class = is_class_without_base(data, name.encode()) and not keeps_numbers
        if len(data) > MAX_ROUNDING_FILE or is_other_class:
            return False
        if not name:
            return self.rounding_exports.is_relevant_file(path)
        return self._add_dependencies(self.rounding_exports.relevance_of_name(path, name, self._find_import))

    def is_relevant_import(self, imported: ImportedName, importer: str, exports: Exports) -> bool:
        """Return True if a name that is imported from the project may be relevant."""
        if is_library_import(imported):
            return False
        module = "." * imported.level + imported.module
        return self._add_dependencies(
            exports.relevance_of_import(module, imported.name, self._absolute_path(importer)[0], self._find_import)
        )

    def is_complete(self) -> bool:
        """Return True if every file of the project is known, not only named files."""
        return not self._open_tops

    def possible_imports(self, path: str) -> frozenset[str]:
        """Return the absolute paths of the files that a file imports, or may import by a name known at run time."""
        with kept_import_targets(self):
            return self.direct_imports(os.path.abspath(path))

    def static_imports(self, path: str) -> frozenset[str]:
        """Return the absolute paths of the files that the import statements of a file refer to.

        The analysis of the file can lead to these files and to no others.
        """
        with kept_import_targets(self):
            return frozenset(iterate_imports(self, os.path.abspath(path), by_name=False))

    def transitive_imports(self, paths: set[str]) -> set[str]:
        """Return the files and their direct and indirect imports; all files if one file imports by run-time names."""
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
            known = self._imports_by_path[path] = frozenset(iterate_imports(self, path))
        return known

    def begin_file(self) -> None:
        """Begin the analysis of another file: reset the dependencies, and trim the cache of parsed files."""
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


def without_other_files(project: Project) -> Project:
    """Return a project with the same settings that knows no file, for what a file shows alone."""
    alone = Project(project.largest)
    alone.declared_wrappers, alone.devices = project.declared_wrappers, project.devices
    alone.assumed_dtype = project.assumed_dtype
    return alone


def _folders_above(directory: str, tops: Iterable[str]) -> Iterator[str]:
    """Yield the directories from the directory of a file up to the top of its project or package.

    Each of the ``tops`` ends with a separator.
    """
    below = os.path.join(directory, "")
    around = [top for top in tops if below.startswith(top)]
    last = package_top(os.path.dirname(min(around, key=len)) if around else directory)
    for above in source_files.folders_upward(directory):
        yield above
        if above == last:
            return


def _find_by_path_end(parts: list[str], files: Iterable[str]) -> str | None:
    """Return the only file whose path ends like an import, or None. Other code adds its directory to the path."""
    tail = os.sep + os.path.join(*parts)
    ends = (tail + ".py", os.path.join(tail, "__init__.py"))
    found = [file for file in files if file.endswith(ends)]
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=4096)
def is_library_import(imported: ImportedName) -> bool:
    """Return True if an import refers to torch or to a framework with a library model."""
    name = f"{imported.module}.{imported.name}" if imported.name else imported.module
    return not imported.level and (torch_api.is_known_name(name) or frameworks.is_known_name(name))
