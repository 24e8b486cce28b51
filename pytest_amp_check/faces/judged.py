"""Findings of a run as the configuration wants them: what is silenced left out, and places as users know them."""

from __future__ import annotations

import os
import sys

from ..protocol.events import Site
from ..protocol.finding import Finding, Step
from ..protocol.selection import shows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..protocol.suppress import Suppressions
    from ..static.engine import Settings

_STANDARD = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def settle(
    findings: Iterable[Finding], settings: Settings, allowed: Collection[str] = (), folder: str = ""
) -> list[Finding]:
    """The findings that settings, suppressing comments and ``allowed`` codes leave on, by place.

    They are copies: severities are those of the settings, paths count from ``folder`` (with a separator at its end)
    where they lie there, and calls above a user's own code, such as pytest's, are left out of their places.
    """
    kept: list[Finding] = []
    suppressions: dict[str, Suppressions] = {}
    for finding in findings:
        code, path = finding.code, finding.filename
        if not shows(settings.select, finding) or code in allowed or code in _ignored(path, settings):
            continue
        if path not in suppressions:
            suppressions[path] = _suppressions(path)
        if not (settings.suppress and suppressions[path].silences(finding)):
            kept.append(_copy(finding, settings.severity.get(code, finding.severity), folder))
    kept.sort(key=Finding.order)
    return kept


def _ignored(path: str, settings: Settings) -> frozenset[str]:
    """Codes that the configuration ignores in a file."""
    from ..static.sources.source_files import excluder

    real = os.path.realpath(path)
    matching = (c for p, c in settings.per_file_ignores if excluder((p,))(os.path.basename(real), real))
    return frozenset[str]().union(*matching)


def _suppressions(path: str) -> Suppressions:
    import linecache

    from ..protocol.suppress import Suppressions

    return Suppressions.of("".join(linecache.getlines(path)))


def _copy(finding: Finding, severity: str, folder: str) -> Finding:
    copy = Finding(
        finding.code,
        finding.name,
        severity,
        finding.message,
        _own(finding.site, folder),
        certain=finding.certain,
        condition=finding.condition,
        witness=tuple(Step(_own(step.site, folder), step.text) for step in finding.witness),
    )
    copy.ranks = finding.ranks
    return copy


def _own(site: Site, folder: str) -> Site:
    """A place without the calls above the user's own code."""
    chain: list[Site] = []
    for each in reversed(site.frames()):
        if chain and each.path.startswith(_runners()):
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


def _runners() -> tuple[str, ...]:
    """The folders of what calls test functions, as far as it is loaded."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("_pytest", "pluggy"))
    return tuple(os.path.dirname(file) + os.sep for file in files if file)


def _is_library(path: str) -> bool:
    return path.startswith(_STANDARD) or any(folder in path for folder in _INSTALLED)
