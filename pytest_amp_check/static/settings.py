"""Settings of a check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ..protocol.byte_sizes import LARGEST_FILE
from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.rules import RULES
from .project.project import Project
from .sources import source_files


class FileSelection(NamedTuple):
    """The files to check.

    - ``exclude``: patterns of excluded files
    - ``include``: patterns of the files to find in folders, () for all
    - ``force_exclude``: if True, ``exclude`` also applies to files that the user names
    - ``gitignore``: if True, files that git ignores are skipped in a folder
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    force_exclude: bool = False
    gitignore: bool = True

    def exclusion_test(self) -> source_files.ExclusionTest:
        """Return the test for paths that ``exclude`` and ``include`` leave out."""
        return source_files.exclusion_test(self.exclude, self.include)


_ALL_FILES = FileSelection()


class Settings:
    """Settings of a check: findings to report, and options of the analysis.

    - ``select``: codes of the rules to report, without prefixes
    - ``files``: the files to check
    - ``nearer``: settings of nested folders, by real path; ``check_paths`` adds the settings that it finds
    - ``suppress``: if True, comments suppress findings
    - ``helpers``: effects of unanalyzed wrappers (``declared_wrappers``), by dotted name
    - ``torch``: oldest torch version in use; None means that the project's own files say so
    - ``devices``: device types on which the code runs, if known
    - ``assumed_dtype``: assumed dtype of floating-point inputs and weights, "" to decide by evidence in the project
    - ``largest``: maximum size of a parsed file in bytes of code, 0 for no limit
    """

    __slots__ = (
        "assumed_dtype",
        "devices",
        "files",
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
        *,
        files: FileSelection = _ALL_FILES,
        suppress: bool = True,
        helpers: Mapping[str, tuple[str, ...]] | None = None,
        torch: tuple[int, int] | None = None,
        devices: tuple[str, ...] = (),
        assumed_dtype: str = "",
        largest: int = LARGEST_FILE,
    ) -> None:
        self.select = (
            frozenset(code for code, rule in RULES.items() if rule.on_by_default) if select is None else select
        )
        self.per_file_ignores = per_file_ignores
        self.severity = dict(severity or {})
        self.files = files
        self.nearer: dict[str, Settings] = {}
        self.suppress = suppress
        self.helpers = dict(helpers or {})
        self.torch = torch
        self.devices = devices
        self.assumed_dtype = assumed_dtype
        self.largest = largest

    def for_file(self, path: str) -> Settings:
        """Return the settings for a file: the settings of the nearest folder that has its own settings."""
        if not self.nearer:
            return self
        folders = source_files.folders_upward(os.path.dirname(os.path.realpath(path)))
        return next((self.nearer[folder] for folder in folders if folder in self.nearer), self)

    def __repr__(self) -> str:
        # The nearest folder around all files has these same settings.
        nearer = [(folder, own.describe()) for folder, own in sorted(self.nearer.items())]
        return f"Settings{(*self.describe(), *nearer)}"

    def describe(self) -> tuple[object, ...]:
        ignores = [(pattern, sorted(codes)) for pattern, codes in self.per_file_ignores]
        more = (self.suppress, self.torch, self.analysis_options())
        return sorted(self.select), ignores, sorted(self.severity.items()), more

    def analysis_options(self) -> tuple[object, ...]:
        """Return the settings that change the analysis, not only the reported findings."""
        return sorted(self.helpers.items()), self.devices, self.assumed_dtype, self.largest

    def configure_project(self, project: Project) -> Project:
        """Set the analysis options of a project, and return the project."""
        project.declared_wrappers, project.devices = self.helpers, self.devices
        project.assumed_dtype = self.assumed_dtype
        return project


#: Function from the real path of a folder to the settings of that folder, or None.
Nearer = Callable[[str], Settings | None]
