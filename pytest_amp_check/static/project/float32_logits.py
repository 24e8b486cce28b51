"""Packages whose log-probabilities are in float32, although their users choose the dtype of the models."""

from __future__ import annotations

import os
import re

from ..sources import source_files
from .project import Project
from .roots import package_top

_FLOAT32 = rb"\.(?:float\(\)|to\((?:dtype ?= ?)?torch\.float(?:32)?\b)"
_LOGITS = rb"(?:\.logits|\[[\"']logits[\"']\])"
_SLICE = rb"(?:\[[^\]\n]{1,40}\])?"
#: Logits that are cast: ``out["logits"] = out["logits"].float()``, or ``logits = model(x).logits[:, :-1].float()``.
_CAST_LOGITS = re.compile(rb"(?:" + _LOGITS + rb"|\blogits) ?= ?[^\n=]{1,80}" + _LOGITS + _SLICE + _FLOAT32)
#: Log-probabilities of logits in float32: ``log_softmax(output.logits.float())``.
_LOG_OF_FLOAT32 = re.compile(
    rb"log_?(?:softmax|p(?:rob)?s?)\w{0,80}\(\s{0,80}[\w.]{1,80}" + _LOGITS + _SLICE + _FLOAT32
)
#: The output of a submodule, cast: ``output = self.head(x).float()``.
_CAST_OUTPUT = re.compile(rb"\n[ \t]{1,80}(?:return|(\w{1,80}) ?=) ?self\.\w{1,80}\(\w{1,80}\)" + _FLOAT32)
_RETURNED = re.compile(rb"\n[ \t]{1,80}return (\w{1,80})[ \t]{0,80}(?=\n)")
_AUTOCAST = re.compile(rb"[ \t]{0,80}with\b.{0,200}\bautocast\(")
_DISABLED = re.compile(rb"enabled ?= ?False")
#: A log-probability that code computes.
_LOG_PROBABILITY = re.compile(rb"log_?p(?:rob)?s?\w{0,80} ?=(?!=)")


def has_float32_log_probabilities(project: Project, path: str) -> bool:
    """Return True if a file of the same package computes log-probabilities in float32.

    A model returns its logits in float32, or a region computes the log-probabilities.
    """
    top = package_top(os.path.dirname(os.path.abspath(path)))
    project.depends_on_all = True
    known = project.float32_packages.get(top)
    if known is None:
        known = project.float32_packages[top] = any(
            _computes_in_float32(source_files.load_or_nothing(other, project.largest))
            for other in sorted(project.members)
            if other.startswith(top + os.sep)
            and not os.path.basename(other).startswith("test_")
            and package_top(os.path.dirname(other)) == top
        )
    return known


def _computes_in_float32(code: bytes) -> bool:
    casts = (_CAST_LOGITS.search(code) or _LOG_OF_FLOAT32.search(code)) if b"logits" in code else None
    if casts is not None or _returns_float32(code):
        return True
    return b"autocast(" in code and _computes_in_region(code)


def _returns_float32(code: bytes) -> bool:
    """Return True if a method returns the output of a submodule in float32."""
    names = set(_CAST_OUTPUT.findall(code))
    return b"" in names or not names.isdisjoint(_RETURNED.findall(code))


def _computes_in_region(code: bytes) -> bool:
    """Return True if code computes log-probabilities in the block of an autocast."""
    outside: int | None = None
    for line in code.split(b"\n"):
        text = line.lstrip()
        depth = len(line) - len(text)
        if text and outside is not None and depth <= outside:
            outside = None
        if outside is None and _AUTOCAST.match(line) is not None and _DISABLED.search(line) is None:
            outside = depth
        elif outside is not None and _LOG_PROBABILITY.search(line) is not None:
            return True
    return False
