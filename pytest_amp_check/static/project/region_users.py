"""Users of functions and classes: code of other files that may run in an autocast region."""

from __future__ import annotations

import os

from ..sources import source_files
from .import_reach import iterate_users, users_of
from .project import Project
from .region_entry import RegionUser

#: Depth of base classes that are searched for a forward.
_MAX_BASES = 5


def is_used_in_region(project: Project, path: str, names: set[str], own: list[RegionUser]) -> bool:
    """Return True if code that may run in a region uses one of the names that a file defines.

    ``own`` are the classes of the file among the names. Importers of the file count. Importers of these count if they
    use a function or a class that uses one of the names.
    """
    project.depends_on_all = True
    start = os.path.abspath(path)
    if any(user.is_in_region or _inherits_forward(project, start, user) for user in own):
        return True
    searched = set(names)
    for other in iterate_users(project, start):
        if other == start:
            continue
        data = source_files.load_or_nothing(other)
        if not any(name.encode() in data for name in searched):
            continue
        for user in users_of(project, other):
            if not searched.isdisjoint(user.names):
                if user.is_in_region or _inherits_forward(project, other, user):
                    return True
                searched.add(user.name)
    return False


def _inherits_forward(project: Project, path: str, user: RegionUser, depth: int = 0) -> bool:
    """Return True if a base class in the same file or in an import runs in a region."""
    if not user.bases or depth == _MAX_BASES:
        return False
    return any(
        other.name in user.bases and (other.is_in_region or _inherits_forward(project, source, other, depth + 1))
        for source in (path, *sorted(project.direct_imports(path)))
        for other in users_of(project, source)
        if other is not user
    )
