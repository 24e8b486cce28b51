"""Name effects: unanalyzed code is assumed to do to gradients exactly the operations that its name suggests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ...protocol import events as e
from ..project.module import Function
from ..project.syntax import tail_name
from .source_text import names_in

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
#: Words of code that multiplies or divides gradients by a factor. An average is one over ranks, not over a window.
_FACTOR_WORDS = {word for word, effect in _EFFECT_BY_WORD.items() if effect == e.DIVIDES} - {"average"} | {
    "scale",
    "rescale",
}
_GRADIENT_WORDS = frozenset({"grad", "grads", "gradient", "gradients"})
#: Words of code that has a step, an update or a scale unrelated to gradients, or that sets a mode for training.
_UNRELATED_WORDS = frozenset("lr learning rate schedule scheduler sched ema log logger mode print save load".split())
#: Words of code that stores or shows objects.
_READING_WORDS = frozenset("save log logger print".split())
#: Syntax that gives an object another name.
_BINDINGS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.withitem)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
#: Names that tell a callback when the call happens, and nothing of what the callback does.
_NOTIFICATION = re.compile(
    r"_*((on_)?(before|after)_\w+|on_\w+_(start|begin|end)|on([A-Z]\w*)(Start|Begin|End)|on(Before|After)[A-Z]\w*)"
)
#: Cache of the effects of names: programs call few names, and call these often.
_effects_by_name: dict[str, frozenset[str]] = {}


def effects_of_name(name: str) -> frozenset[str]:
    """Return the effects that a dotted name suggests by its last part."""
    last = name.rpartition(".")[2]
    known = _effects_by_name.get(last)
    if known is None:
        known = _effects_by_name[last] = _compute_name_effects(last)
    return known


@lru_cache(maxsize=4096)
def only_reads(name: str) -> bool:
    """Return True for the name of code that stores or shows what it receives: ``save_checkpoint``."""
    words = {word.lower() for word in _WORD.findall(name)}
    return not words.isdisjoint(_READING_WORDS) and words.isdisjoint(_TRAINING_WORDS | _EFFECT_BY_WORD.keys())


@lru_cache(maxsize=4096)
def is_notification(name: str) -> bool:
    """Return True for the name of a callback's method that says only when it is called: ``on_backward_end``."""
    return _NOTIFICATION.fullmatch(name.rpartition(".")[2]) is not None


def _compute_name_effects(name: str) -> frozenset[str]:
    if is_notification(name):
        return frozenset()
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _UNRELATED_WORDS:
        return frozenset()
    if words & _TRAINING_WORDS:
        return e.ALL_EFFECTS
    return frozenset(_EFFECT_BY_WORD[word] for word in words & _EFFECT_BY_WORD.keys())


@lru_cache(maxsize=4096)
def divides_gradients(name: str) -> bool:
    """Return True if a name says that a function multiplies gradients by a factor: ``scale_grads(model, 1 / n)``."""
    words = {word.lower() for word in _WORD.findall(name.rpartition(".")[2])}
    return bool(words & _FACTOR_WORDS and words & _GRADIENT_WORDS)


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
    parameter_names = {parameter.arg for parameter in function.parameters()}
    for node in function.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = tail_name(node.func)
        called = _called_functions(function, node)
        if isinstance(node.func, ast.Name) and name in parameter_names:
            yield effects_of_name(function.name)
        elif called:
            yield from map(effects_of_body, called)
        elif not _switches_mode(node):
            yield effects_of_name(name)


def effects_on_objects(function: Function, holders: frozenset[str]) -> frozenset[str]:
    """Return the effects of a function body on objects that it receives in the parameters named ``holders``.

    A step needs the object: a call on other objects, such as ``noise_scheduler.step(...)``, steps none of these. Other
    effects reach the gradients through the model as well.
    """
    effects = effects_of_body(function)
    if e.STEPS in effects and not _may_step(function, holders):
        return effects - {e.STEPS}
    return effects


def _may_step(function: Function, holders: frozenset[str]) -> bool:
    """Return True if a function may step what its parameters ``holders`` hold, itself or in functions it calls."""
    known = function.steps_by_holders.get(holders)
    if known is None:
        seen: set[tuple[Function, frozenset[str]]] = set()
        known = _steps_holders(function, holders, seen)
        # Where a step was found, the search ended before it had seen all that the other functions call.
        for each, names in seen if not known else {(function, holders)}:
            each.steps_by_holders[names] = known
    return known


def _steps_holders(function: Function, holders: frozenset[str], seen: set[tuple[Function, frozenset[str]]]) -> bool:
    """Search a function and the functions it calls for a step of ``holders``, each pair of the two once."""
    if (function, holders) in seen:
        return False
    known = function.steps_by_holders.get(holders)
    if known is not None:
        return known
    seen.add((function, holders))
    names = set(holders)
    nodes = function.nodes
    bindings = [names_in(node) for node in nodes if isinstance(node, _BINDINGS)]
    bindings += [names_in(node.target, node.iter) for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
    count = 0
    while count != len(names):
        count = len(names)
        names.update(*(bound for bound in bindings if names & bound))
    calls = [node for node in nodes if isinstance(node, ast.Call) and names & names_in(node)]
    return any(_call_steps(function, node, names, seen) for node in calls)


def _call_steps(
    function: Function, node: ast.Call, names: set[str], seen: set[tuple[Function, frozenset[str]]]
) -> bool:
    """Return True if a call that mentions some names may step what they hold."""
    called = _called_functions(function, node)
    if not called:
        return e.STEPS in effects_of_name(tail_name(node.func)) and not _switches_mode(node)
    return any(_steps_holders(each, _receiving_parameters(each, node, names), seen) for each in called)


def _receiving_parameters(function: Function, node: ast.Call, names: set[str]) -> frozenset[str]:
    """Return the parameters of a called function that receive an argument with one of the names."""
    parameters = [parameter.arg for parameter in function.parameters()]
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return frozenset(parameters)
    given = [node.func] if function.cls is not None else []
    received = {name for name, value in zip(parameters, [*given, *node.args], strict=False) if names & names_in(value)}
    for keyword in node.keywords:
        if names & names_in(keyword.value):
            received |= {keyword.arg} if keyword.arg is not None else set(parameters)
    return frozenset(received)


def _called_functions(function: Function, node: ast.Call) -> list[Function]:
    """Return the methods of the same class or the functions of the same file that a call may run."""
    name = tail_name(node.func)
    if not isinstance(node.func, ast.Attribute):
        return [each for each in function.module.functions_by_name.get(name, ()) if each.cls is None]
    # A wrapper calls methods of the same name on the wrapped object: `self.optimizer.step()` in `step`.
    parameters = function.parameters()
    receiver = parameters[0].arg if parameters and function.cls is not None else None
    on_receiver = isinstance(node.func.value, ast.Name) and node.func.value.id == receiver
    methods = function.cls.methods if function.cls is not None else {}
    return [methods[name]] if on_receiver and name in methods else []


def _switches_mode(node: ast.Call) -> bool:
    """Return True for ``model.train()`` and ``model.train(False)``, which train nothing."""
    method = isinstance(node.func, ast.Attribute) and node.func.attr == "train"
    return method and not node.keywords and all(isinstance(argument, ast.Constant) for argument in node.args)


def is_clip_name(name: str) -> bool:
    """Return True if a name says that a function clips gradients and does nothing else."""
    words = {word.lower() for word in _WORD.findall(name.rpartition(".")[2])}
    return "clip" in words and not words & {"unscale", "step", "update", "amp", "scale"}
