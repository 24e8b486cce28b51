"""File search: the files to check below the paths that the user names, and excluded files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .settings import Nearer, Settings
from .sources import source_files


def find_files(
    paths: Sequence[str], settings: Settings, nearer: Nearer | None, skipped: source_files.SkippedPaths | None = None
) -> list[str]:
    """Return the files to check.

    Store the settings of nested folders in ``settings``, and skipped paths in ``skipped``.
    """

    def exclusion_of_folder(folder: str) -> source_files.ExclusionTest | None:
        own = _settings_of_folder(folder, settings, nearer)
        return own.files.exclusion_test() if own is not None else None

    def is_forced(path: str) -> bool:
        return is_excluded(path, settings, nearer, named=True)

    return source_files.find_sources(
        paths,
        settings.files.exclude,
        skipped,
        exclusion_of_folder if nearer is not None else None,
        is_forced,
        include=settings.files.include,
        gitignore=settings.files.gitignore,
    )


def is_excluded(path: str, settings: Settings, nearer: Nearer | None, *, named: bool, base: str = os.curdir) -> bool:
    """Return True if the nearest settings exclude a file, also a file that the user named.

    The patterns do not apply to the folders above the settings, or above ``base`` if no folder has settings.
    """
    real = os.path.realpath(path)
    folders = source_files.folders_upward(os.path.dirname(real))
    top = next((folder for folder in folders if _settings_of_folder(folder, settings, nearer)), os.path.realpath(base))
    own = settings.nearer.get(top, settings)
    if named and not own.files.force_exclude:
        return False
    return source_files.is_excluded_below(real, top, own.files.exclusion_test())


def _settings_of_folder(folder: str, settings: Settings, nearer: Nearer | None) -> Settings | None:
    """Return the settings that begin at a folder, or None."""
    if nearer is not None and folder not in settings.nearer:
        own = nearer(folder)
        if own is not None:
            settings.nearer[folder] = own
    return settings.nearer.get(folder)
