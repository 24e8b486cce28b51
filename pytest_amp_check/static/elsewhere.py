"""What one file leaves undone with a scaler or an optimizer, and another one does with what is called the same."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from ..protocol.finding import Finding
from ..protocol.rules import LABELS

#: A method of a scaler or an optimizer -> what stands beside it. A file that does both, with one of some name, has its
#: own.
BESIDE = {"scale": "step", "step": "scale", "unscale_": "step", "update": "step", "zero_grad": "step"}


def undone(findings: list[Finding], paths: Iterable[str], text_of: Callable[[str], str]) -> list[Finding]:
    """Findings without those of what nobody does with a scaler, where somebody in another file may do it.

    Who has the scaler of an object, and under which name, is not known in general; its last name is the same.
    """
    doubts = {id(finding): doubt for finding in findings if (doubt := _doubt(finding))}
    if not doubts:
        return findings
    done: dict[tuple[str, str], set[str]] = {doubt: set() for doubt in doubts.values()}
    for path in dict.fromkeys(map(os.path.abspath, paths)):
        text = text_of(path)
        for (name, method), files in done.items():
            if _calls(text, name, method) and not _calls(text, name, BESIDE[method]):
                files.add(path)
    return [each for each in findings if not done.get(doubts.get(id(each), ("", "")), set()) - {_home(each)}]


def _home(finding: Finding) -> str:
    return os.path.abspath(finding.site.path)


def _doubt(finding: Finding) -> tuple[str, str] | None:
    """The last name of the scaler or the optimizer, and the method that nobody calls, if somebody else may have it."""
    fault = LABELS[finding.label][1]
    if not fault.owned or finding.certain:
        return None
    role = "optimizer" if fault.owned == "zero_grad" else "scaler"
    return finding.names.get(role, "").rpartition(".")[2], fault.owned


def _calls(text: str, name: str, method: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\.{method}\s*\(", text) is not None
