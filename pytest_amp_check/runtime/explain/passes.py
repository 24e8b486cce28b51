"""The reasons for a stopped pass: NaN found by anomaly mode, or a checkpoint whose recomputation differed."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import checkpoint

from ...protocol.finding import TraceStep
from ...protocol.sites import Site
from ..record.graph import FAR, iter_nodes
from ..record.recorder import Recorder
from ..record.sites import is_inner
from ..record.source.call_texts import SiteText
from .explanation import Explanation, RaisedError
from .frames import Scope, user_file_scopes
from .values import resolve_expression

_FILE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def explain_anomaly(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain NaN in a backward pass by the op that produced it. For scaled gradients AMP213 reports the mistake."""
    match = re.search(r"Function '(\w+)' returned nan", str(raised.error))
    if match is None:
        return None
    forward_site = _forward_site(match[1], raised)
    trace = (
        [TraceStep(forward_site, f"the op is computed of which {match[1]} is the backward")]
        if forward_site is not None
        else []
    )
    trace.append(TraceStep(raised.site, f"{match[1]} gives NaN in the backward pass"))
    if _was_scaled(recorder):
        return []
    names: dict[str, object] = {"function": match[1], "call": SiteText(raised.site)}
    return [Explanation("raised:nan-in-backward", forward_site or raised.site, names, tuple(trace))]


def _was_scaled(recorder: Recorder) -> bool:
    last_backward = recorder.recording.registry.last_backward
    return last_backward is not None and last_backward[0].scaling.is_scaled


def _forward_site(function: str, raised: RaisedError) -> Site | None:
    """Return the location of an op's forward, which anomaly mode stored in the op's node, or None."""
    for frame in reversed(raised.frames):
        for value in frame.python_frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                for node in iter_nodes([value], FAR):
                    lines = node.metadata.get("traceback_") if type(node).__name__ == function else None
                    if lines:
                        return _last_site(lines)
    return None


def _last_site(lines: Sequence[str]) -> Site | None:
    matches = [match for line in lines for match in _FILE.finditer(line) if not is_inner(match[1])]
    return Site(matches[-1][1], int(matches[-1][2]), function=matches[-1][3]) if matches else None


def explain_undecorated_forward(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain a Function's backward that needs data of a decorated forward. The location is the undecorated forward."""
    context = getattr(raised.error, "obj", None)
    function = getattr(type(context), "_forward_cls", None)
    code = getattr(inspect.unwrap(function.forward), "__code__", None) if function is not None else None
    if function is None or code is None:
        return None
    site = recorder.recording.sites.site_of_definition(code)
    trace = (TraceStep(site, "the forward runs"), TraceStep(raised.site, "torch refuses"))
    return [Explanation("raised:custom-bwd-alone", site, {"function": function.__name__}, trace)]


def explain_recomputed_dtype(raised: RaisedError, recorder: Recorder) -> list[Explanation] | None:
    """Explain a checkpointed function whose recomputation returned other dtypes."""
    text = str(raised.error)
    first = re.search(r"saved metadata: \{[^{}]*'dtype': torch\.(\w+)", text)
    second = re.search(r"recomputed metadata: \{[^{}]*'dtype': torch\.(\w+)", text)
    if first is None or second is None or first[1] == second[1]:
        return None
    calls = list(_find_call_sites(raised, (checkpoint.checkpoint,)))
    site = calls[0] if len(calls) == 1 else raised.site
    trace = (TraceStep(site, f"the part gives {first[1]}"), TraceStep(raised.site, f"in backward it gives {second[1]}"))
    return [Explanation("raised:recomputed", site, {"first": first[1], "second": second[1]}, trace)]


def _find_call_sites(raised: RaisedError, functions: Sequence[Any]) -> Iterator[Site]:
    """Yield the locations in the files of the running functions that call one of ``functions``."""
    for scope in user_file_scopes(raised.frames):
        for node in ast.walk(scope.body):
            if isinstance(node, ast.Call) and _is_one_of(node.func, scope, functions):
                yield scope.site_of_node(node)


def _is_one_of(node: ast.expr, scope: Scope, functions: Sequence[Any]) -> bool:
    callee = resolve_expression(node, scope)
    return any(callee is function for function in functions)
