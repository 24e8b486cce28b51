"""What one file leaves undone with a scaler or an optimizer, and a connected file does with one of the same name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from ..protocol.finding import Finding
from ..protocol.rules import LABELS

#: A method of a scaler or an optimizer -> what stands beside it. A file that does both, with one of some name, has its
#: own.
BESIDE = {"scale": "step", "step": "scale", "unscale_": "step", "update": "step", "zero_grad": "step"}
#: A doubt about a finding: the last name of a scaler or an optimizer, and the method that nobody calls.
Doubt = tuple[str, str]


def undone(
    findings: list[Finding],
    paths: Iterable[str],
    text_of: Callable[[str], str],
    imported_by: Callable[[str], Iterable[str]],
) -> list[Finding]:
    """Return the findings without those of a missing call that another file of the same program may make.

    Who has the scaler of an object, and under which name, is not known in general; its last name is the same. A file
    excuses another one only if imports connect the two, and only if it does not train by itself: one that steps the
    optimizer in any form is a whole training, and its calls are about its own objects.
    """
    doubts = {id(finding): doubt for finding in findings if (doubt := _doubt(finding))}
    if not doubts:
        return findings
    paths = list(dict.fromkeys(map(os.path.abspath, paths)))
    done: dict[Doubt, set[str]] = {doubt: set() for doubt in doubts.values()}
    for path in paths:
        text = text_of(path)
        for (name, method), files in done.items():
            if _calls(text, name, method) and not _calls(text, name, BESIDE[method]):
                files.add(path)
    parts = _Parts(paths, imported_by)

    def is_done(finding: Finding) -> bool:
        home = os.path.abspath(finding.site.path)
        others = done.get(doubts.get(id(finding), ("", "")), set()) - {home}
        return any(parts.of(other) == parts.of(home) for other in others)

    return [finding for finding in findings if not is_done(finding)]


class _Parts:
    """The parts of a project that no import connects, found when they are first asked for."""

    def __init__(self, paths: Iterable[str], imported_by: Callable[[str], Iterable[str]]) -> None:
        self._paths = paths
        self._imported_by = imported_by
        self._above: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the file that stands for the part of a file."""
        if not self._above:
            self._above = {path: path for path in self._paths}
            for each in self._paths:
                for other in self._imported_by(each):
                    self._above[self._top(other)] = self._top(each)
        return self._top(path)

    def _top(self, path: str) -> str:
        while (above := self._above.setdefault(path, path)) != path:
            self._above[path] = path = self._above.setdefault(above, above)
        return path


def _doubt(finding: Finding) -> Doubt | None:
    """Return what may be done elsewhere, or None if the finding does not rest on a call that is missing."""
    fault = LABELS[finding.label][1]
    if not fault.owned or finding.certain:
        return None
    role = "optimizer" if fault.owned == "zero_grad" else "scaler"
    return finding.names.get(role, "").rpartition(".")[2], fault.owned


def _calls(text: str, name: str, method: str) -> bool:
    """Return True if a text calls a method of a name, or steps an optimizer of the name in another form."""
    known = re.escape(name)
    if re.search(rf"\b{known}\.{method}\s*\(", text):
        return True
    # ``scaler.step(self.optimizer)``, ``loss_scaler(loss, optimizer, ...)``, ``step(model, optimizer)``
    given = rf"(?:step|[Ss]caler)\w{{0,40}}\s{{0,8}}\([^()]{{0,400}}\b{known}\b"
    return method == "step" and re.search(given, text) is not None
