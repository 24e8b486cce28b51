"""Configuration of a folder without flags: the settings of its configuration file, and the baseline."""

from __future__ import annotations

from ..protocol.fast_namedtuple import NamedTuple
from . import options as table
from .baseline import Baseline, BaselineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.finding import Finding
    from ..static.settings import Settings
    from .source_lines import SourceLines


class FolderConfig(NamedTuple):
    """The settings of a folder, the folder of the configuration file if any, and the baseline.

    ``fixable_codes`` are the codes of rules that may be fixed.
    """

    settings: Settings
    project_folder: str
    fixable_codes: frozenset[str]
    baseline: Baseline | None

    def find_new(self, findings: Iterable[Finding], sources: SourceLines) -> list[Finding]:
        """Return the findings that are not in the baseline."""
        return list(findings) if self.baseline is None else self.baseline.find_new(findings, sources)


def load_folder_config(folder: str) -> FolderConfig:
    """Return the configuration of a folder. Raise :class:`~.options.table.ConfigError` if invalid."""
    options = table.resolve_options({}, start=folder)
    try:
        known = None if options.baseline is None else Baseline(options.baseline)
    except BaselineError as error:
        raise table.ConfigError(f"{options.origins['baseline']}: {error}") from None
    return FolderConfig(table.make_settings(options), options.project_folder, table.find_fixable_codes(options), known)
