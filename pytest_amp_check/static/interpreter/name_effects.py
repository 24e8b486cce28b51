"""Name effects: unanalyzed code is assumed to do to gradients exactly the operations that its name suggests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...protocol import events as e
from ..project.module import Function
from ..project.syntax import tail_name, walk

#: Words of names, and the effect that each word suggests. This is the only list of such words.
_EFFECT_BY_WORD: dict[str, str] = {
    **dict.fromkeys(("zero", "clear"), e.CLEARS),
    **dict.fromkeys(("unscale", "clip", "scale", "amp"), e.UNSCALES),
    **dict.fromkeys(("divide", "normalize", "normalise", "average"), e.DIVIDES),
    **dict.fromkeys(("step", "update", "minimize", "minimise"), e.STEPS),
    **dict.fromkeys(("backward", "accumulate"), e.FEEDS),
}
#: Words of training code, which has all effects.
_TRAINING_WORDS = frozenset(
    "train trainer training fit optimize optimise optimization epoch iteration run loop engine".split()
)
#: Words of code that has a step, an update or a scale unrelated to gradients.
_UNRELATED_WORDS = frozenset("lr learning rate schedule scheduler sched ema log logger print save load".split())
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
#: Cache of the effects of names: programs call few names, and call these often.
_effects_by_name: dict[str, frozenset[str]] = {}


def effects_of_name(name: str) -> frozenset[str]:
    """Return the effects that a dotted name suggests by its last part."""
    last = name.rpartition(".")[2]
    known = _effects_by_name.get(last)
    if known is None:
        known = _effects_by_name[last] = _compute_name_effects(last)
    return known


def _compute_name_effects(name: str) -> frozenset[str]:
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _UNRELATED_WORDS:
        return frozenset()
    if words & _TRAINING_WORDS:
        return e.MATTERS
    return frozenset(_EFFECT_BY_WORD[word] for word in words & _EFFECT_BY_WORD.keys())


def effects_of_body(function: Function) -> frozenset[str]:
    """Return the effects that the calls in a function body suggest, with the bodies of functions in the same file.

    The name of the function itself counts only if the function calls a parameter, which may be anything.
    """
    if function.effects is None:
        # A recursive function adds no effects of its own.
        function.effects = frozenset()
        function.effects = frozenset().union(*_effects_of_calls(function))
    return function.effects


def _effects_of_calls(function: Function) -> Iterator[frozenset[str]]:
    parameters = function.parameters()
    parameter_names = {parameter.arg for parameter in parameters}
    receiver = parameters[0].arg if parameters and function.cls is not None else None
    methods = function.cls.methods if function.cls is not None else {}
    for node in walk(function.node):
        if not isinstance(node, ast.Call):
            continue
        name = tail_name(node.func)
        if isinstance(node.func, ast.Attribute):
            # A wrapper calls methods of the same name on the wrapped object: `self.optimizer.step()` in `step`.
            on_receiver = isinstance(node.func.value, ast.Name) and node.func.value.id == receiver
            called = [methods[name]] if on_receiver and name in methods else []
        else:
            called = [each for each in function.module.functions_by_name.get(name, ()) if each.cls is None]
        if isinstance(node.func, ast.Name) and name in parameter_names:
            yield effects_of_name(function.name)
        elif called:
            yield from map(effects_of_body, called)
        elif not _switches_mode(node):
            yield effects_of_name(name)


def _switches_mode(node: ast.Call) -> bool:
    """Return True for ``model.train()`` and ``model.train(False)``, which train nothing."""
    method = isinstance(node.func, ast.Attribute) and node.func.attr == "train"
    return method and not node.keywords and all(isinstance(argument, ast.Constant) for argument in node.args)


def is_clip_name(name: str) -> bool:
    """Return True if a name says that a function clips gradients and does nothing else."""
    words = {word.lower() for word in _WORD.findall(name.rpartition(".")[2])}
    return "clip" in words and not words & {"unscale", "step", "update", "amp", "scale"}
