"""The rules as a flake8 plugin, off unless ``enable-extensions = AMP`` is set.

Installing this distribution for pytest requests nothing of flake8. Options come from the configuration file and the
environment. flake8's own ``select``, ``ignore`` and ``noqa`` also filter the findings.
"""

from __future__ import annotations

import os

from . import options as table
from . import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..protocol.finding import Finding
    from .folder_config import FolderConfig

#: Name of standard input in the file arguments of flake8.
STANDARD_INPUT = "-"
#: Code of a file that could not be checked for any reason.
UNCHECKED = "AMP903"


class Plugin:
    """The plugin object that flake8 creates for each file."""

    off_by_default = True
    #: Configuration by folder, or the error message.
    _folder_configs: dict[str, FolderConfig | str] = {}  # noqa: RUF012
    #: flake8's display name of standard input, "" if not read.
    _stdin_name = ""

    @classmethod
    def parse_options(cls, options: Any) -> None:
        """Store the options. flake8 calls this method before creating plugin objects."""
        cls._stdin_name = options.stdin_display_name if STANDARD_INPUT in options.filenames else ""

    def __init__(self, tree: Any, filename: str, lines: list[str]) -> None:
        self._filename = filename
        self._lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        around = self._find_config(os.path.dirname(self._filename) or os.curdir)
        if isinstance(around, str):
            # An exception of a plugin becomes a traceback, and all other findings are lost.
            yield 1, 0, printable.make_single_line(f"{UNCHECKED} not-checked: {around}"), type(self)
            return
        for finding in self._check_file(around):
            said = printable.make_single_line(f"{finding.code} {finding.name}: {finding.message}")
            yield max(finding.line, 1), finding.site.column, said, type(self)

    def _check_file(self, around: FolderConfig) -> list[Finding]:
        from ..static import engine, file_search
        from .source_lines import SourceLines

        if file_search.is_excluded(
            self._filename, around.settings, None, named=False, base=around.project_folder or os.curdir
        ):
            return []
        if self._filename == self._stdin_name:
            # Unsaved editor content, under the name of the future file.
            source = "".join(self._lines)
            found = engine.check_source(source, self._filename, around.settings)
            sources = SourceLines({self._filename: source})
        else:
            found = engine.check_paths([self._filename], around.settings).findings
            # A related mistake in another file is reported there, because flake8 checks that file, too.
            found = [each for each in found if each.filename == self._filename and not each.elsewhere]
            sources = SourceLines()
        return around.find_new(found, sources)

    def _find_config(self, folder: str) -> FolderConfig | str:
        from . import folder_config

        folder = os.path.abspath(folder)
        if folder not in self._folder_configs:
            try:
                self._folder_configs[folder] = folder_config.load_folder_config(folder)
            except table.ConfigError as error:
                self._folder_configs[folder] = str(error)
        return self._folder_configs[folder]
