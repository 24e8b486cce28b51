"""The rules as a plugin of flake8, off unless ``enable-extensions = AMP`` says otherwise.

Who installed this distribution for pytest has asked nothing of flake8. Options are those of the configuration file and
of the environment; which findings are shown is settled by flake8's own ``select``, ``ignore`` and ``noqa``, too.
"""

from __future__ import annotations

import os

from ..protocol.named import NamedTuple
from . import options as table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..protocol.finding import Finding
    from ..static.engine import Settings
    from .baseline import Baseline

#: What flake8 calls standard input.
STANDARD_INPUT = ("stdin", "-")
#: The code of a file that could not be checked, whatever the reason.
UNCHECKED = "AMP903"


class _Around(NamedTuple):
    """What holds in a folder: its settings, the folder that they are from, known findings, or why there is none."""

    settings: Settings
    project: str
    known: Baseline | None
    wrong: str = ""


class Plugin:
    """What flake8 makes for each file."""

    off_by_default = True
    #: By the folder of a file.
    _folders: dict[str, _Around] = {}  # noqa: RUF012

    def __init__(self, tree: Any, filename: str, lines: list[str]) -> None:
        self._filename = filename
        self._lines = lines

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        stdin = self._filename in STANDARD_INPUT
        around = self._around(os.curdir if stdin else os.path.dirname(self._filename) or os.curdir)
        if around.wrong:
            # What a plugin raises becomes a traceback, and the findings of all others are lost.
            yield 1, 0, f"{UNCHECKED} not-checked: {around.wrong}", type(self)
            return
        for finding in self._findings(around, stdin=stdin):
            said = f"{finding.code} {finding.name}: {finding.message}"
            yield max(finding.line, 1), finding.site.column, said, type(self)

    def _findings(self, around: _Around, *, stdin: bool) -> list[Finding]:
        from ..static import engine
        from .text import Sources

        if stdin:
            source = "".join(self._lines)
            found = engine.check_source(source, "stdin", around.settings)
            sources = Sources({"stdin": source})
        elif engine.is_excluded(self._filename, around.settings, None, named=False, base=around.project):
            return []
        else:
            found = engine.check_paths([self._filename], around.settings).findings
            # What a mistake in another file has to do with this one is said there: flake8 is given that file, too.
            found = [each for each in found if each.filename == self._filename and not each.elsewhere]
            sources = Sources()
        return found if around.known is None else around.known.unknown(found, sources)

    def _around(self, folder: str) -> _Around:
        folder = os.path.abspath(folder)
        if folder not in self._folders:
            self._folders[folder] = _settings(folder)
        return self._folders[folder]


def _settings(folder: str) -> _Around:
    from ..static.engine import Settings
    from .baseline import Baseline, Unusable

    try:
        options = table.resolve({}, start=folder)
        known = None if options.baseline is None else Baseline(options.baseline)
        return _Around(table.settings(options), options.project or os.curdir, known)
    except (table.ConfigError, Unusable) as error:
        return _Around(Settings(), os.curdir, None, str(error))
