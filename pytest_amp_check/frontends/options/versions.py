"""Versions of amp-check that a configuration requires."""

from __future__ import annotations

from contextlib import suppress


def parse_versions(text: str) -> str | None:
    """Return a version specifier as text, or None for other text. A bare version stands for that version alone."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    with suppress(InvalidVersion):
        return f"=={Version(text)}"
    try:
        return text.strip() if SpecifierSet(text) else None
    except InvalidSpecifier:
        return None


def allows_version(versions: str, version: str) -> bool:
    """Return True if a version specifier allows a version."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(versions).contains(version, prereleases=True)
