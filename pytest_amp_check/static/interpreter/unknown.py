"""What cannot be read: listeners hear of what it is given, and it gives a value of which only the identity is known."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol.events import Thing
from .identity import structural
from .interpreter import Handlers, Interpreter
from .matters import spoken_of
from .tensors import computed, ran_here
from .values import (
    FORWARD,
    Args,
    Grad,
    Instance,
    Keywords,
    Mapping,
    Opaque,
    Params,
    Ref,
    Tensor,
    Value,
    past_of,
)
from .wording import wording

#: Objects within objects that are looked into for what they hold.
HOLDERS = 4
#: Calls whose answer is another each time they are asked, a number or an object.
IMPURE = frozenset(
    "rand randn randint random uniform choice next time perf_counter pop popleft get_nowait sample "
    "from_pretrained".split()
)
#: Methods by which a list, a meter, a logger or a progress bar is given a value.
TELLING = frozenset(
    "append add update log info debug warning error print write set_postfix add_scalar set_description".split()
)


def unknown(
    at: Interpreter,
    func: Value,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    *,
    runs: bool = True,
    about: frozenset[str] | None = None,
) -> Value:
    """Evaluate a call of code that is not analyzed; ``runs`` says that it may run a model.

    ``about`` is what its body speaks of. None stands for what its name says.
    """
    given = [*args, *keywords.values()]
    name = func.text if isinstance(func, Opaque) else ""
    if about is None:
        about = spoken_of(name)
    hand_off(at, given, node, about)
    tensors = [t for value in given for t in value.tensors()]
    last = name.rpartition(".")[2]
    for listener in at.handlers.handed:
        if listener(at, func, given, node):
            break
    if tensors and last not in TELLING:
        tensor = _unknown_tensor(at, last, given, tensors)
        tensor.divided = tensor.divided or e.DIVIDES in about
        tensor.share = tensor.share and e.DIVIDES not in about
        return tensor
    if last in IMPURE:
        return at.fresh(node, name)
    made = structural(at, "call", (func, *given), wording(node) if isinstance(node, ast.Call) else "", tuple(keywords))
    if at.state.loops:
        made.loops |= frozenset((at.state.loops[-1].key,))
    made.called = True
    made.divided = hands_on_divided(given) or e.DIVIDES in about
    made.compares = len(given) > 1 and any(v.called for v in given)
    return made.made(ran_here(at, made.past, last, FORWARD)) if runs else made


def _called(at: Interpreter, func: Opaque, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A call of an unknown value; what was found to be a module by its use elsewhere, as an item of a list, is one."""
    used = at.things.get(("used", func.key))
    if used is not None and used.role == "module":
        return at.call_value(Ref(used, source=func), args, keywords, node)
    return unknown(at, func, args, keywords, node)


def _unknown_tensor(at: Interpreter, name: str, given: list[Value], tensors: list[Tensor]) -> Tensor:
    """What code that cannot be read, and is called by a name, makes of tensors among others."""
    made = computed(at, tensors)
    if not is_criterion(name) or any(value.role == "module" for value in given):
        made.autocast, _, made.dtypes = ran_here(at, made.past)
    made.callees |= past_of(given).callees | {name, FORWARD}
    # A criterion is given targets, too: what is given a result of a model alone makes no loss of it.
    if len(given) > 1 or tensors[0].forward is None:
        made.divided = made.divided and any(t.is_loss for t in tensors)
    if len(given) > 1:
        made.vague = False
    made.graded = made.graded or is_graded(given)
    made.module_read = False
    return made


def is_criterion(name: str) -> bool:
    """Whether a function compares what a model gave with targets, by its name, and runs no model itself."""
    return "loss" in name.lower() or "criter" in name.lower()


def hand_off(at: Interpreter, given: list[Value], node: ast.AST, about: frozenset[str] = e.MATTERS) -> None:
    """Tell the protocol that unknown code was given scalers or optimizers, and what it speaks of."""
    at.program.facts.setdefault("handed", set()).update(value.key for value in given if isinstance(value, Opaque))
    things = tuple(thing.key for thing in held(at, given))
    if things:
        options = [v for value in given for v in value.alternatives()]
        direct = [value.thing for value in options if isinstance(value, Ref) and value.enabled is not False]
        trainers = {t.role for t in direct} >= {"scaler", "optimizer"}
        trains = tuple(t.key for t in direct) if trainers else ()
        at.emit(e.HANDOFF, node, things=things, trains=trains, about=e.MATTERS if trainers else about)
    if "no_sync" in at.module.identifiers and any(_has_gradients(value) for value in given):
        at.emit(e.GRAD_AVERAGE, node)


def held(at: Interpreter, values: Iterable[Value]) -> list[Thing]:
    """The scalers and optimizers that values are or hold."""
    things: dict[int, Thing] = {}
    seen: set[int] = set()
    for value in values:
        _hold(at, value, things, seen, 0)
    return list(things.values())


def _hold(at: Interpreter, value: Value, things: dict[int, Thing], seen: set[int], depth: int) -> None:
    inner = value.parts()
    if isinstance(value, Ref):
        if value.role in ("scaler", "optimizer"):
            things[value.thing.key] = value.thing
    elif isinstance(value, Instance) and value.key not in seen:
        seen.add(value.key)
        inner = [item for _, item in at.attributes(value.key)]
    if depth < HOLDERS:
        for item in inner:
            _hold(at, item, things, seen, depth + 1)


def lend(at: Interpreter, receiver: Value, given: list[Value]) -> None:
    """A dict that a method which cannot be read is given: with a scaler at hand it may add its state."""
    if holds_scaler(at, [receiver]):
        for value in given:
            if isinstance(value, Mapping):
                value.open = True


def holds_scaler(at: Interpreter, values: list[Value]) -> bool:
    return any(thing.role == "scaler" for thing in held(at, values))


def refs(at: Interpreter, keys: tuple[int, ...]) -> list[Value]:
    return [Ref(at.program.things[key]) for key in keys]


def is_graded(values: Iterable[Value]) -> bool:
    """Whether something is computed with the gradient of a tensor, which may hold the loss scale or not."""
    return any(value.graded for value in values)


def hands_on_divided(given: list[Value]) -> bool:
    """Whether what unknown code makes of its arguments may be a loss that was divided: it is given nothing else."""
    return len(given) == 1 and isinstance(given[0], Opaque) and given[0].divided


def compares(name: str) -> bool:
    """Whether a function is one that tests compare with."""
    return name.rpartition(".")[2].startswith(("assert", "Assert"))


def _has_gradients(value: Value) -> bool:
    """Whether whoever is given a value may average gradients over processes by hand."""
    return value.role in ("module", "optimizer") or isinstance(value, (Params, Grad))


def register(handlers: Handlers) -> None:
    handlers.calls[""] = unknown
    handlers.calls["unknown"] = _called
