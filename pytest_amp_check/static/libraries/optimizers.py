"""Optimizers: how they are made, and what their methods do."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ..interpreter.classes import BOUND, method_of
from ..interpreter.forks import on_each
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.matters import spoken_of
from ..interpreter.unknown import holds_scaler, unknown
from ..interpreter.values import (
    NONE,
    Args,
    Bare,
    BoundMethod,
    Choice,
    FunctionValue,
    Instance,
    Keywords,
    Mapping,
    Opaque,
    Params,
    Ref,
    Value,
    modules_of,
)
from ..interpreter.wording import receiver_words, wording
from ..project.module import Class, Function, stored_names
from ..project.syntax import tail, walk
from .arguments import bind, first_of, items_of, literal, ref_of, thing_of
from .checkpoints import entry_in, state_of
from .gradients import HOOKS
from .overhead import keeps_zeros
from .written import first_words


def each_optimizer(
    at: Interpreter, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]
) -> None:
    """Act on the optimizer, or on each of those, that a value is."""
    if isinstance(value, Choice):
        on_each(at, value, lambda v: _one_optimizer(at, v, node, act))
    else:
        _one_optimizer(at, value, node, act)


def _one_optimizer(
    at: Interpreter, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]
) -> Value:
    thing = optimizer_of(at, value, node)
    if thing is not None:
        act(thing.key, {"optimizer": first_words(node) or thing.name})
    return NONE


def optimizer_of(at: Interpreter, value: Value, node: ast.AST) -> Thing | None:
    ref = ref_of(value, "optimizer") or ref_of(value, "module")
    if ref is not None:
        return ref.thing
    if isinstance(value, Instance):
        inner = _wrapped_optimizer(at, value)
        if inner is not None:
            return inner
        made = at.thing(("used instance", value.key), "optimizer", "", at.site(node))
        step = method_of(at, value.cls, "step")
        if step is not None and "zero_grad" in step.words:
            made.facts["hooked"] = True
        return made
    if isinstance(value, Opaque):
        return at.thing(("used", value.key), "optimizer", value.text, at.site(node))
    return None


def _wrapped_optimizer(at: Interpreter, wrapper: Instance) -> Thing | None:
    """The optimizer that an object holds, if it holds one: it is what the object's own ``step`` steps."""
    held = {
        thing_of(value)
        for (key, _), value in at.state.heap.items()
        if key == wrapper.key and ref_of(value, "optimizer") is not None
    }
    return held.pop() if len(held) == 1 and method_of(at, wrapper.cls, "step") is not None else None


def _optimizer_method(
    at: Interpreter, optimizer: Ref, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    key = optimizer.thing.key
    names: dict[str, object] = {"optimizer": receiver_words(node), "call": wording(node)}
    if name == "step":
        if holds_scaler(at, [value for given in (*args, *keywords.values()) for value in given.alternatives()]):
            # No step of torch's own: what is given the scaler has it step.
            func = structural(at, "method", (optimizer,), wording(node), name)
            return unknown(at, func, [optimizer, *args], keywords, node)
        closure = first_of(args, keywords, "closure")
        if isinstance(closure, FunctionValue):
            # torch's own optimizers take nothing but the closure: what others take besides, they hand to it.
            wanted = len(closure.function.parameters()) - (closure.receiver is not None)
            at.call_value(closure, args[1 : 1 + max(wanted, 0)], {}, node)
        step_optimizer(at, optimizer, node, names)
        return at.fresh(node, name)
    if name == "zero_grad":
        _clear(at, optimizer, args, keywords, node, names)
        return NONE
    if name == "state_dict":
        return state_of(at, optimizer, node)
    if name == "load_state_dict":
        source, name_of_entry = entry_in(first_of(args, keywords, "state_dict"))
        if name_of_entry is not None:
            at.emit(e.OPTIMIZER_LOAD, node, None, key, source=source, entry=name_of_entry, names=names)
        return NONE
    if name in ("train", "eval", "add_param_group"):
        return NONE
    if name.startswith("register_"):
        optimizer.thing.facts["hooked"] = True
        if name in HOOKS:
            optimizer.thing.facts["divided"] = True
    if name == "backward":
        at.emit(e.BACKWARD, node, opaque=True, feeds=None)
        return NONE
    return structural(at, "call", (optimizer, *args), name, name)


def _cleared_as_inherited(
    at: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """An object of a class that steps and is not seen to clear has that from a base which nobody knows."""
    if name != "zero_grad" or receiver.thing is not None or method_of(at, receiver.cls, "step") is None:
        return None
    names = {"optimizer": receiver_words(node), "call": wording(node)}
    kept = keeps_zeros(at, args, keywords)

    def act(key: int, _: dict[str, object]) -> None:
        at.emit(e.ZERO_GRAD, node, owners=(key,), names=names, **kept)

    each_optimizer(at, receiver, node, act)
    return NONE


def _clear(
    at: Interpreter, optimizer: Ref, args: Args, keywords: Keywords, node: ast.AST, names: dict[str, object]
) -> None:
    kept = keeps_zeros(at, args, keywords)

    def clear() -> None:
        at.emit(e.ZERO_GRAD, node, owners=(optimizer.thing.key,), names=names, **kept)

    if not any(through(at, optimizer, node, clear) for through in at.handlers.optimizer_clears):
        clear()


def step_optimizer(at: Interpreter, optimizer: Ref, node: ast.AST, names: dict[str, object]) -> None:
    """An optimizer's own step."""
    for step in at.handlers.optimizer_steps:
        if step(at, optimizer, node, names):
            return
    at.emit(e.STEP, node, None, optimizer.thing.key, names=names)


def new_optimizer(at: Interpreter, params: Value | None, node: ast.AST, callable_name: str) -> Ref:
    thing = at.thing(("optimizer", at.place_key(node)), "optimizer", "", at.site(node))
    thing.facts.update(constructed=True, callable=callable_name, owns=modules_of(params))
    at.emit(e.OPTIMIZER_NEW, node, thing.key, names={"optimizer": thing.name})
    return Ref(thing)


def _entry_optimizer(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    groups = bound.get("params")
    made = new_optimizer(at, groups, node, entry.name)
    rates = [item.items.get("lr") for item in items_of(groups) if isinstance(item, Mapping)]
    made.thing.facts["fused"] = literal(keywords.get("fused")) is True
    made.thing.facts["divided"] = any(_is_shared(rate) for rate in (bound.get("lr"), *rates))
    return made


def _is_shared(rate: Value | None) -> bool:
    """Whether a learning rate may be one for each of the micro-batches of a window.

    A number that is written in its formula, as the 256 of ``lr * batch_size / 256``, is none of theirs.
    """
    if rate is None or not rate.divided:
        return False
    divisors = rate.divisors if isinstance(rate, Opaque) else frozenset()
    return not divisors or not all(divisor.written for divisor in divisors)


def _subclass_optimizer(at: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """An optimizer of the project's own, whose methods may do more than torch's."""
    made = new_optimizer(at, first_of(args, keywords, "params"), node, cls.name)
    if any(_may_clear(method) for name, method in cls.methods.items() if name != "zero_grad"):
        made.thing.facts["hooked"] = True
    return made


def _may_clear(method: Function) -> bool:
    """Whether a method speaks of clearing, or sets the gradients of something."""
    body = method.node.body
    return any(e.CLEARS in spoken_of(tail(node)) for node in walk(method.node)) or (
        isinstance(body, list) and "grad" in stored_names(body)[1]
    )


def _optimizer_attribute(at: Interpreter, receiver: Ref, name: str, node: ast.AST) -> Value | None:
    if name in BOUND["optimizer"]:
        return BoundMethod(receiver, name)
    if name == "param_groups":
        return Params(receiver.thing.facts.get("owns"), frozenset((receiver.thing.key,)), groups=True)
    if name == "optimizer" and receiver.thing.facts.get("engine") is not None:
        return Bare(receiver.thing)
    return None


def register(handlers: Handlers) -> None:
    handlers.inherited_methods.append(_cleared_as_inherited)
    handlers.roles[surface.OPTIMIZER] = _entry_optimizer
    handlers.constructors[surface.OPTIMIZER] = _subclass_optimizer
    handlers.methods["optimizer"] = _optimizer_method
    handlers.attributes["optimizer"] = _optimizer_attribute
