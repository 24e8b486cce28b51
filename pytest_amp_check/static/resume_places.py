"""Search of a file for the code that loads the state of an optimizer, where the analysis of calls found none."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..protocol.finding import Finding, TraceStep
from ..protocol.sites import Site
from .project.module import Module

#: The violation of a checkpoint that lacks the state of a scaler, in a program that may resume.
_LABEL = "save:no-scaler"
#: A call that loads the state of an optimizer, by the name of the object, which may be an item of a list.
_LOAD = re.compile(r"^[^#\n]*\b\w*opt\w*(?:\[[^\]\n]*\])?\.load_state_dict\(", re.IGNORECASE | re.MULTILINE)


def add_resume_places(findings: Iterable[Finding], module: Module) -> None:
    """Add to the edits of each such finding where its file loads the state of an optimizer, or that it does not."""
    for finding in findings:
        if finding.label != _LABEL or finding.site.path != module.path:
            continue
        if any("load_state_dict" in step.text for step in finding.edit_places):
            continue
        loads = _LOAD.search(module.text)
        scaler, optimizer = (finding.names.get(role) or role for role in ("scaler", "optimizer"))
        code = f'{scaler}.load_state_dict(checkpoint["scaler"])'
        if loads is not None:
            line = module.text.count("\n", 0, loads.end()) + 1
            step = TraceStep(Site(module.path, line), f"write `{code}` after this line", is_event=False)
        else:
            text = f"no code of this file loads the state of `{optimizer}`: write `{code}` where a run resumes"
            step = TraceStep(finding.site, text, is_event=False)
        finding.edit_places = (*finding.edit_places[:2], step)
