"""What holds around a file where nobody gives flags: what its configuration says, and the findings that are known."""

from __future__ import annotations

from ..protocol.named import NamedTuple
from . import options as table
from .baseline import Baseline, Unusable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.finding import Finding
    from ..static.engine import Settings
    from .text import Sources


class Around(NamedTuple):
    """The settings that hold in a folder, the folder that they are from if any says so, and what is known there.

    ``fixable`` are the codes of rules whose findings may be fixed.
    """

    settings: Settings
    project: str
    fixable: frozenset[str]
    known: Baseline | None

    def unknown(self, findings: Iterable[Finding], sources: Sources) -> list[Finding]:
        """The findings that are new."""
        return list(findings) if self.known is None else self.known.unknown(findings, sources)


def look(folder: str) -> Around:
    """What holds in a folder. Raises :class:`~.options.ConfigError` where that cannot be used."""
    options = table.resolve({}, start=folder)
    try:
        known = None if options.baseline is None else Baseline(options.baseline)
    except Unusable as error:
        raise table.ConfigError(f"{options.origin['baseline']}: {error}") from None
    return Around(table.settings(options), options.project, table.fixable(options), known)
