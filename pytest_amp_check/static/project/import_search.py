"""Search of the import statements of files, without parsing the files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from ..sources import code_blocks, source_files
from ..sources.patterns import declarations
from .roots import package_top

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Resolver(Protocol):
        """Resolver of imports: a project, which remembers what its files import."""

        largest: int
        import_targets: dict[tuple[str, str, int], str | None]

        @property
        def members(self) -> Collection[str]: ...

        def find_import(self, dotted: str, importer: str, level: int = 0) -> str | None: ...


#: Code that imports modules by names known only at run time: by importlib, or by Hydra with the key ``_target_``.
_DYNAMIC_IMPORT = re.compile(rb"\b(?:import_module|__import__|instantiate)\(|\b_target_\b")


@contextmanager
def kept_import_targets(project: Resolver) -> Iterator[None]:
    """Resolve imports without making them dependencies of the current file."""
    asked, project.import_targets = project.import_targets, {}
    try:
        yield
    finally:
        project.import_targets = asked


def iterate_imports(project: Resolver, path: str, *, by_name: bool = True) -> Iterator[str]:
    """Yield the files that a file imports, and with ``by_name`` the files that run-time names may refer to."""
    data = _load_code(project, path)
    if by_name and _DYNAMIC_IMPORT.search(data):
        yield from _importable_by_name(path, project.members)
    for module, name, _ in declarations.iterate_imports(data):
        yield from _files_of_import(project, module, name, path)


def sources_of_imports(project: Resolver, path: str) -> frozenset[str]:
    """Return the absolute paths of the files that import statements of a file refer to.

    They include the files from which packages re-export the imported names.
    """
    found: set[str] = set()
    start = os.path.abspath(path)
    todo: list[tuple[str, bytes]] = [(start, b"*")]
    with kept_import_targets(project):
        for importer, wanted in todo:
            for module, name, local in declarations.iterate_imports(_load_code(project, importer)):
                if wanted not in (b"*", local) and name != b"*":
                    continue
                for file in _files_of_import(project, module, name, importer):
                    taken = wanted if name == b"*" else name
                    if os.path.basename(file) == "__init__.py" and taken and (file, taken) not in todo:
                        todo.append((file, taken))
                    found.add(file)
    return frozenset(found)


def _load_code(project: Resolver, path: str) -> bytes:
    """Return the code of a file, or no code for an unreadable file."""
    try:
        return code_blocks.code_bytes(path, code_blocks.load_source(path, project.largest))
    except source_files.Unreadable:
        return b""


def _files_of_import(project: Resolver, module: bytes, name: bytes, importer: str) -> Iterator[str]:
    """Yield the files that an import refers to: the module, and a module that the name refers to."""
    dotted = module.decode()
    level = len(dotted) - len(dotted.lstrip("."))
    dotted = dotted[level:]
    for part in dict.fromkeys(("", name.decode("utf-8", "replace"))):
        inner = ".".join(filter(None, (dotted, part)))
        found = project.find_import(inner, importer, level) if inner else None
        if found is not None and found.endswith(".py"):
            yield found


def _importable_by_name(path: str, files: Collection[str]) -> Iterable[str]:
    """Return the files that one file may import by a name known only at run time.

    A file in a package may name any file of the package; a script may name any file.
    """
    directory = os.path.dirname(os.path.abspath(path))
    top = package_top(directory)
    return files if top == directory else [file for file in files if file.startswith(top + os.sep)]
