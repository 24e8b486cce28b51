"""What the name of code that cannot be read speaks of: it is taken to do that, and nothing else, to gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...protocol import events as e
from ..project.module import Function
from ..project.syntax import tail, walk

#: Words of names, and the matter that each speaks of. The one list of such words.
_SPEAK: dict[str, str] = {
    **dict.fromkeys(("zero", "clear"), e.CLEARS),
    **dict.fromkeys(("unscale", "clip", "scale", "amp"), e.UNSCALES),
    **dict.fromkeys(("divide", "normalize", "normalise", "average"), e.DIVIDES),
    **dict.fromkeys(("step", "update", "minimize", "minimise"), e.STEPS),
    **dict.fromkeys(("backward", "accumulate"), e.FEEDS),
}
#: Words of code that trains, which is all of them together.
_TRAINS = frozenset("train trainer training fit optimize optimise optimization epoch iteration run loop engine".split())
#: Words of what has a step, an update or a scale of its own that is none of gradients.
_OTHERS = frozenset("lr learning rate schedule scheduler sched ema log logger print save load".split())
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
#: What names speak of that were asked about: programs call few names, and those often.
_asked: dict[str, frozenset[str]] = {}


def spoken_of(name: str) -> frozenset[str]:
    """The matters that a dotted name speaks of, by its last part."""
    last = name.rpartition(".")[2]
    known = _asked.get(last)
    if known is None:
        known = _asked[last] = _spoken_of(last)
    return known


def _spoken_of(name: str) -> frozenset[str]:
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _OTHERS:
        return frozenset()
    if words & _TRAINS:
        return e.MATTERS
    return frozenset(_SPEAK[word] for word in words & _SPEAK.keys())


def spoken_in(function: Function) -> frozenset[str]:
    """Return the matters that the body of a function speaks of, by the calls in it and in what it calls beside it.

    Its own name counts only if it calls what it is given, which may be anything.
    """
    if function.speaks is None:
        # A function that calls itself adds nothing to itself.
        function.speaks = frozenset()
        function.speaks = frozenset().union(*_matters_of_calls(function))
    return function.speaks


def _matters_of_calls(function: Function) -> Iterator[frozenset[str]]:
    parameters = function.parameters()
    given = {parameter.arg for parameter in parameters}
    receiver = parameters[0].arg if parameters and function.cls is not None else None
    methods = function.cls.methods if function.cls is not None else {}
    for node in walk(function.node):
        if not isinstance(node, ast.Call):
            continue
        name = tail(node.func)
        if isinstance(node.func, ast.Attribute):
            # A wrapper calls methods of the same name on what it holds: `self.optimizer.step()` in `step`.
            on_receiver = isinstance(node.func.value, ast.Name) and node.func.value.id == receiver
            called = [methods[name]] if on_receiver and name in methods else []
        else:
            called = [each for each in function.module.named.get(name, ()) if each.cls is None]
        if isinstance(node.func, ast.Name) and name in given:
            yield spoken_of(function.name)
        elif called:
            yield from map(spoken_in, called)
        elif not _switches_mode(node):
            yield spoken_of(name)


def _switches_mode(node: ast.Call) -> bool:
    """Return True for ``model.train()`` and ``model.train(False)``, which train nothing."""
    method = isinstance(node.func, ast.Attribute) and node.func.attr == "train"
    return method and not node.keywords and all(isinstance(argument, ast.Constant) for argument in node.args)


def clips(name: str) -> bool:
    """Whether a name is that of a function that clips gradients, and does no more."""
    words = {word.lower() for word in _WORD.findall(name.rpartition(".")[2])}
    return "clip" in words and not words & {"unscale", "step", "update", "amp", "scale"}
