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
    from ..static.engine import Settings

#: What flake8 calls standard input.
STANDARD_INPUT = ("stdin", "-")


class Plugin:
    """What flake8 makes for each file."""

    off_by_default = True
    #: By the folder of a file: what the configuration around it says.
    _settings: dict[str, Settings] = {}  # noqa: RUF012

    def __init__(self, tree: Any, filename: str, lines: list[str]) -> None:
        self._filename = filename
        self._lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        for finding in self._findings():
            said = text.visible(f"{finding.code} {finding.name}: {finding.message}")
            yield max(finding.line, 1), finding.site.column, said, type(self)

    def _findings(self) -> list[Finding]:
        from ..static import engine

        if self._filename in STANDARD_INPUT:
            return engine.check_source("".join(self._lines), "stdin", self._around(os.curdir))
        found = engine.check_paths([self._filename], self._around(self._filename)).findings
        # What a mistake in another file has to do with this one is said there: flake8 is given that file, too.
        return [each for each in found if each.filename == self._filename and not each.elsewhere]

    def _around(self, path: str) -> Settings:
        folder = os.path.dirname(os.path.abspath(path)) if path != os.curdir else os.path.abspath(path)
        if folder not in self._settings:
            self._settings[folder] = table.settings(table.resolve({}, start=folder))
        return self._settings[folder]
