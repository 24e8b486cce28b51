"""Search of a file for the code that loads the state of an optimizer, where the analysis of calls found none."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..protocol.finding import Finding, TraceStep
from ..protocol.sites import Site
from .project.module import Module

#: The violation of a checkpoint that lacks the state of a scaler, in a program that may resume.
_LABEL = "save:no-scaler"
#: A call that loads a state, with the name of the object in the characters before it.
_LOAD = ".load_state_dict("
_NAME_LENGTH = 60


def add_resume_places(findings: Iterable[Finding], module: Module) -> None:
    """Add to the edits of each such finding where its file loads the state of an optimizer, or that it does not."""
    for finding in findings:
        if finding.label != _LABEL or finding.site.path != module.path:
            continue
        if any("load_state_dict" in step.text for step in finding.edit_places):
            continue
        loaded_line = _find_load(module.text)
        scaler, optimizer = (finding.names.get(role) or role for role in ("scaler", "optimizer"))
        code = f'{scaler}.load_state_dict(checkpoint["scaler"])'
        if loaded_line is not None:
            step = TraceStep(Site(module.path, loaded_line), f"write `{code}` after this line", is_event=False)
        else:
            text = f"no code of this file loads the state of `{optimizer}`: write `{code}` where a run resumes"
            step = TraceStep(finding.site, text, is_event=False)
        finding.edit_places = (*finding.edit_places[:2], step)


def _find_load(text: str) -> int | None:
    """Return the first line that loads the state of an optimizer, by its name, or None."""
    for number, line in enumerate(text.split("\n"), 1):
        code = line.partition("#")[0]
        before, call, _ = code.partition(_LOAD)
        # The object may be an item of a list.
        name = before[-_NAME_LENGTH:].partition("[")[0] if before.endswith("]") else before[-_NAME_LENGTH:]
        if call and "opt" in re.split(r"\W", name)[-1].lower():
            return number
    return None
