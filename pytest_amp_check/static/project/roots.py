"""Directories that contain a project or a package."""

from __future__ import annotations

import os

from ..sources import source_files

#: Entries that mark a project directory. No import of a named file leads above such a directory.
PROJECT_MARKS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
#: Entries at the top of downloaded code without git history; packages do not contain them.
COPY_MARKS = ("LICENSE", "README.md", "README.rst", "requirements.txt", "environment.yml")


def package_top(directory: str) -> str:
    """Return the directory that contains the top package of a directory; without a package, the directory itself."""
    while os.path.isfile(os.path.join(directory, "__init__.py")) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    return directory


def project_of(directory: str) -> str:
    """Return the project directory of a directory; without a project mark, the directory itself."""
    return marked_project(directory) or directory


def marked_project(directory: str) -> str | None:
    """Return the marked project directory of a directory, or None."""
    marked = (
        above
        for marks in (PROJECT_MARKS, COPY_MARKS)
        for above in source_files.folders_upward(directory)
        if any(os.path.lexists(os.path.join(above, mark)) for mark in marks)
    )
    return next(marked, None)
