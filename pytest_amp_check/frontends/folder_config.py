"""What holds around a file where nobody gives flags: what its configuration says, and the findings that are known."""

from __future__ import annotations

from ..protocol.fast_namedtuple import NamedTuple
from . import options as table
from .baseline import Baseline, BaselineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.finding import Finding
    from ..static.engine import Settings
    from .text import SourceLines


class FolderConfig(NamedTuple):
    """The settings that hold in a folder, the folder that they are from if any says so, and what is known there.

    ``fixable`` are the codes of rules whose findings may be fixed.
    """

    settings: Settings
    project_folder: str
    fixable_codes: frozenset[str]
    baseline: Baseline | None

    def find_new(self, findings: Iterable[Finding], sources: SourceLines) -> list[Finding]:
        """The findings that are new."""
        return list(findings) if self.baseline is None else self.baseline.find_new(findings, sources)


def load_folder_config(folder: str) -> FolderConfig:
    """What holds in a folder. Raises :class:`~.options.ConfigError` where that cannot be used."""
    options = table.resolve_options({}, start=folder)
    try:
        known = None if options.baseline is None else Baseline(options.baseline)
    except BaselineError as error:
        raise table.ConfigError(f"{options.origins['baseline']}: {error}") from None
    return FolderConfig(table.make_settings(options), options.project_folder, table.find_fixable_codes(options), known)
