"""Why a pass was given up: NaN that anomaly mode has met, a checkpoint that was computed otherwise the second time."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import checkpoint

from ...protocol.events import Site
from ...protocol.finding import Step
from ..record.graph import FAR, nodes
from ..record.recorder import Recorder
from ..record.sites import is_inner
from ..record.source import SourceText
from .explanation import Explanation, Raised
from .frames import Scope, scopes
from .values import resolve

_FILE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def anomaly(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain NaN in a backward pass by the op that gave it; where gradients are scaled, AMP213 says what is wrong."""
    named = re.search(r"Function '(\w+)' returned nan", str(raised.error))
    if named is None:
        return None
    made = _made_by(named[1], raised)
    path = [Step(made, f"the op is computed of which {named[1]} is the backward")] if made is not None else []
    path.append(Step(raised.site, f"{named[1]} gives NaN in the backward pass"))
    if _was_scaled(recorder):
        return []
    names: dict[str, object] = {"function": named[1], "call": SourceText(raised.site)}
    return [Explanation("raised:nan-in-backward", made or raised.site, names, tuple(path))]


def _was_scaled(recorder: Recorder) -> bool:
    ran = recorder.recording.registry.ran
    return ran is not None and bool(ran[0].facts.get("scaled"))


def _made_by(function: str, raised: Raised) -> Site | None:
    """Where the forward of an op was computed, which anomaly mode has written down in its node."""
    for frame in reversed(raised.frames):
        for value in frame.frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                for node in nodes([value], FAR):
                    lines = node.metadata.get("traceback_") if type(node).__name__ == function else None
                    if lines:
                        return _last_place(lines)
    return None


def _last_place(lines: Sequence[str]) -> Site | None:
    places = [match for line in lines for match in _FILE.finditer(line) if not is_inner(match[1])]
    return Site(places[-1][1], int(places[-1][2]), function=places[-1][3]) if places else None


def half_decorated(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain the backward of a Function that asks for what only a decorated forward notes, at that forward."""
    context = getattr(raised.error, "obj", None)
    function = getattr(type(context), "_forward_cls", None)
    code = getattr(inspect.unwrap(function.forward), "__code__", None) if function is not None else None
    if function is None or code is None:
        return None
    site = recorder.recording.sites.definition(code)
    path = (Step(site, "the forward runs"), Step(raised.site, "torch refuses"))
    return [Explanation("raised:custom-bwd-alone", site, {"function": function.__name__}, path)]


def recomputed(raised: Raised, recorder: Recorder) -> list[Explanation] | None:
    """Explain a checkpointed part that gave other dtypes when it was computed again."""
    text = str(raised.error)
    first = re.search(r"saved metadata: \{[^{}]*'dtype': torch\.(\w+)", text)
    second = re.search(r"recomputed metadata: \{[^{}]*'dtype': torch\.(\w+)", text)
    if first is None or second is None or first[1] == second[1]:
        return None
    calls = list(_calls(raised, (checkpoint.checkpoint,)))
    site = calls[0] if len(calls) == 1 else raised.site
    path = (Step(site, f"the part gives {first[1]}"), Step(raised.site, f"in backward it gives {second[1]}"))
    return [Explanation("raised:recomputed", site, {"first": first[1], "second": second[1]}, path)]


def _calls(raised: Raised, functions: Sequence[Any]) -> Iterator[Site]:
    """Where the files of the running functions call one of some functions."""
    for scope in scopes(raised.frames):
        for node in ast.walk(scope.body):
            if isinstance(node, ast.Call) and _is_one(node.func, scope, functions):
                yield scope.site(node)


def _is_one(node: ast.expr, scope: Scope, functions: Sequence[Any]) -> bool:
    found = resolve(node, scope)
    return any(found is function for function in functions)
