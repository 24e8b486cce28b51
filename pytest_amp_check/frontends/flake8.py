"""The rules as a plugin of flake8, off unless ``enable-extensions = AMP`` says otherwise.

Who installed this distribution for pytest has asked nothing of flake8. Options are those of the configuration file and
of the environment; which findings are shown is settled by flake8's own ``select``, ``ignore`` and ``noqa``, too.
"""

from __future__ import annotations

import os

from . import options as table
from . import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..protocol.finding import Finding
    from .folder_config import FolderConfig

#: What stands for standard input among the files that flake8 is given.
STANDARD_INPUT = "-"
#: The code of a file that could not be checked, whatever the reason.
UNCHECKED = "AMP903"


class Plugin:
    """What flake8 makes for each file."""

    off_by_default = True
    #: By the folder of a file: what holds there, or why nothing can.
    _folder_configs: dict[str, FolderConfig | str] = {}  # noqa: RUF012
    #: What flake8 calls standard input, "" where it does not read that.
    _stdin_name = ""

    @classmethod
    def parse_options(cls, options: Any) -> None:
        """Called by flake8 before it makes any."""
        cls._stdin_name = options.stdin_display_name if STANDARD_INPUT in options.filenames else ""

    def __init__(self, tree: Any, filename: str, lines: list[str]) -> None:
        self._filename = filename
        self._lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        around = self._find_config(os.path.dirname(self._filename) or os.curdir)
        if isinstance(around, str):
            # What a plugin raises becomes a traceback, and the findings of all others are lost.
            yield 1, 0, text.make_single_line(f"{UNCHECKED} not-checked: {around}"), type(self)
            return
        for finding in self._check_file(around):
            said = text.make_single_line(f"{finding.code} {finding.name}: {finding.message}")
            yield max(finding.line, 1), finding.site.column, said, type(self)

    def _check_file(self, around: FolderConfig) -> list[Finding]:
        from ..static import engine
        from .text import SourceLines

        if engine.is_excluded(
            self._filename, around.settings, None, named=False, base=around.project_folder or os.curdir
        ):
            return []
        if self._filename == self._stdin_name:
            # What an editor has not saved, by the name of the file that it will be.
            source = "".join(self._lines)
            found = engine.check_source(source, self._filename, around.settings)
            sources = SourceLines({self._filename: source})
        else:
            found = engine.check_paths([self._filename], around.settings).findings
            # What a mistake in another file has to do with this one is said there: flake8 is given that file, too.
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
