"""Findings of a run, filtered by the configuration, with displayed locations."""

from __future__ import annotations

import os
import sys

from ..protocol.finding import Finding
from ..protocol.selection import is_selected
from ..protocol.sites import Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..protocol.suppressions import Suppressions
    from ..static.settings import Settings

_STANDARD = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def apply_settings(
    findings: Iterable[Finding], settings: Settings, allowed: Collection[str] = (), folder: str = ""
) -> list[Finding]:
    """Return the findings that settings, suppressions and ``allowed`` codes do not remove, sorted by location.

    The findings are copies with the severities of the settings. Paths below ``folder`` (with a trailing separator) are
    relative. Calls above the user's own code, such as pytest's, are removed from locations.
    """
    kept: list[Finding] = []
    suppressions: dict[str, Suppressions] = {}
    for finding in findings:
        code, path = finding.code, finding.filename
        if not is_selected(settings.select, finding) or code in allowed or code in _find_ignored_codes(path, settings):
            continue
        # The run itself applies the comments of a notebook.
        if finding.cell is None and path not in suppressions:
            suppressions[path] = _load_suppressions(path)
        is_suppressed = finding.cell is None and suppressions[path].suppresses_finding(finding)
        if not (settings.suppress and is_suppressed):
            kept.append(_copy_finding(finding, settings.severity.get(code, finding.severity), folder))
    kept.sort(key=Finding.order)
    return kept


def _find_ignored_codes(path: str, settings: Settings) -> frozenset[str]:
    """Return the codes that the configuration ignores in a file."""
    from ..static.sources.source_files import exclusion_test

    real = os.path.realpath(path)
    matching = (c for p, c in settings.per_file_ignores if exclusion_test((p,))(os.path.basename(real), real))
    return frozenset[str]().union(*matching)


def _load_suppressions(path: str) -> Suppressions:
    import linecache

    from ..protocol.suppressions import Suppressions

    return Suppressions.from_text("".join(linecache.getlines(path)))


def _copy_finding(finding: Finding, severity: str, folder: str) -> Finding:
    copy = Finding(
        finding.code,
        finding.name,
        severity,
        finding.message,
        _strip_runner_frames(finding.site, folder),
        certain=finding.certain,
        condition=finding.condition,
        trace=tuple(step.move(_strip_runner_frames(step.site, folder)) for step in finding.trace),
        label=finding.label,
        names=finding.names,
    )
    copy.ranks, copy.remedy, copy.follows = finding.ranks, finding.remedy, finding.follows
    copy.edit_places = tuple(step.move(_strip_runner_frames(step.site, folder)) for step in finding.edit_places)
    return copy


def _strip_runner_frames(site: Site, folder: str) -> Site:
    """Return a location without the calls above the user's own code."""
    chain: list[Site] = []
    for each in reversed(site.list_frames()):
        if chain and each.path.startswith(_find_runner_folders()):
            break
        chain.append(each)
    while len(chain) > 1 and _is_library(chain[-1].path):
        chain.pop()
    caller: Site | None = None
    for each in reversed(chain):
        path = each.path.removeprefix(folder)
        caller = Site(path, each.line, each.column, each.end_line, each.end_column, each.function, caller, each.cell)
    assert caller is not None
    return caller


def _find_runner_folders() -> tuple[str, ...]:
    """Return the folders of loaded packages that call test functions."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("_pytest", "pluggy"))
    return tuple(os.path.dirname(file) + os.sep for file in files if file)


def _is_library(path: str) -> bool:
    return path.startswith(_STANDARD) or any(folder in path for folder in _INSTALLED)
