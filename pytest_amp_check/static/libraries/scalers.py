"""Scalers: how they are made, and what their methods do."""

from __future__ import annotations

import ast
from functools import partial

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Symbol
from ..interpreter.classes import own_method
from ..interpreter.forks import fork, join_values, on_each, still_open
from ..interpreter.functions import follow
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import foreign_tensor
from ..interpreter.unknown import unknown
from ..interpreter.values import (
    NONE,
    Args,
    BoundMethod,
    Choice,
    Const,
    FunctionValue,
    Keywords,
    Ref,
    ScaleValue,
    Sequence,
    Tensor,
    Truth,
    Value,
)
from ..interpreter.wording import receiver_words, wording
from ..project.module import Class
from .arguments import bind, each_item, first_of, literal, plain
from .checkpoints import entry_in, state_of
from .losses import all_optimizers, loss_names, penalty
from .optimizers import each_optimizer
from .overhead import Costs
from .regions import when_enabled
from .sharding import sharded
from .written import constant, keywords_of, last_name


def _scaler_method(at: Interpreter, scaler: Ref, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    own = own_method(at, scaler, name)
    if own is not None:
        return follow(at, own, args, keywords, node)
    if name not in surface.SCALER_METHODS:
        if name == "__call__":
            return unknown(at, scaler, args, keywords, node)
        return structural(at, "call", (scaler, *args), name, name)
    if name == "is_enabled":
        return _is_enabled(scaler)
    if name == "get_scale":
        at.of_graph(Costs).scale_reads[id(node)] = scaler.thing
        return ScaleValue(scaler.thing.key, at.turning())
    if name == "state_dict":
        if not at.state.rescuing:  # an error may come at any moment: what is saved for it is what there is
            at.emit(e.SCALER_STATE, node, scaler.thing.key, names={"scaler": receiver_words(node)})
        return state_of(at, scaler, node)
    if name == "load_state_dict":
        return load_scaler(at, scaler, args, keywords, node)
    enabled = partial(_enabled_scaler, at, scaler, name, args, keywords, node)
    disabled = partial(_disabled_scaler, at, name, args, keywords, node)
    live = still_open(at, scaler.enabled)
    if isinstance(live, bool):
        return enabled() if live else disabled()
    results: list[Value] = []
    fork(at, live, lambda: results.append(enabled()), lambda: results.append(disabled()))
    return join_values(at, live, results[0], results[1], "scaled")


#: Methods by which the scale, a tensor inside of a scaler, is the same number.
_SAME = frozenset("item clone detach to float double cpu cuda squeeze view reshape".split())


def _scale_method(
    at: Interpreter, scale: ScaleValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name in _SAME:
        return scale
    if name == "reciprocal":
        return ScaleValue(scale.scaler, scale.loops, inverse=not scale.inverse, lasting=scale.lasting)
    return at.handlers.methods[""](at, scale, name, args, keywords, node)


def _is_enabled(scaler: Ref) -> Value:
    return Truth(scaler.enabled) if not isinstance(scaler.enabled, bool) else Const(scaler.enabled)


def load_scaler(at: Interpreter, scaler: Ref, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A scaler takes on a state that was saved."""
    _, name_of_entry = entry_in(first_of(args, keywords, "state_dict"))
    at.emit(e.SCALER_LOAD, node, scaler.thing.key, entry=name_of_entry)
    return NONE


def _disabled_scaler(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A disabled scaler: ``scale`` gives back its argument, ``step`` steps the optimizer, the rest does nothing."""
    target = first_of(args, keywords, "outputs" if name == "scale" else "optimizer")
    if name == "scale" and target is not None:
        return target
    if name == "step" and target is not None:
        each_optimizer(at, target, node, lambda key, names: at.emit(e.STEP, node, None, key, names=names))
    return NONE


def _enabled_scaler(at: Interpreter, scaler: Ref, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    key = scaler.thing.key
    words = {"scaler": receiver_words(node), "call": wording(node)}
    if name == "scale":
        value = first_of(args, keywords, "outputs")
        return scaled_value(at, scaler, value, node)
    if name == "update":
        given = literal(first_of(args, keywords, "new_scale") or NONE) is not None
        at.emit(e.UPDATE, node, key, new_scale=given, names=words)
        return NONE
    if name in ("step", "unscale_"):
        target = first_of(args, keywords, "optimizer")
        if target is None:
            return NONE
        closure = name == "step" and isinstance(first_of(args[1:], keywords, "closure"), FunctionValue)

        def act(optimizer: int, names: dict[str, object]) -> None:
            if name == "step":
                alone = unsynchronised(at, scaler, optimizer)
                names = {**words, **names}
                at.emit(e.SCALER_STEP, node, key, optimizer, closure=closure, unsynchronised=alone, names=names)
            else:
                at.emit(e.UNSCALE, node, key, optimizer, names={**words, **names})

        each_optimizer(at, target, node, act)
        return at.fresh(node, name)
    return at.fresh(node, name)


def scaled_value(at: Interpreter, scaler: Ref, value: Value | None, node: ast.AST) -> Value:
    """The value of ``scaler.scale(value)``."""
    if isinstance(value, Choice):
        return on_each(at, value, lambda v: scaled_value(at, scaler, v, node))
    if isinstance(value, Sequence):
        return each_item(value, lambda item: scaled_value(at, scaler, item, node))
    made = value.copy() if isinstance(value, Tensor) else foreign_tensor(value)
    names = loss_names(receiver_words(node), node)
    if made.penalty is not None:
        penalty(at, made, node)
    at.emit(
        e.SCALE,
        node,
        scaler.thing.key,
        autocast=made.autocast,
        loss_in_region=made.in_region,
        forward_read=made.module_read,
        dtypes=made.dtypes,
        forward=made.forward,
        callees=made.callees,
        bare=False,
        twice=made.scaler >= 0,
        names=names,
    )
    made.scaler = scaler.thing.key
    return made


def _new_scaler(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    enabled = when_enabled(at, bound, node, open_ended="**" in bound)
    thing = at.thing(("scaler", at.place_key(node)), "scaler", "", at.site(node))
    arguments = {name: plain(at, value) for name, value in bound.items()}
    if not isinstance(enabled, bool) and _asks_for_bfloat16(keywords_of(node).get("enabled")):
        arguments["enabled"] = Symbol("torch.bfloat16")
    device = entry.facts.get("device") or arguments.get("device", "cuda")
    thing.facts.update(constructed=True, enabled=enabled, callable=entry.name, device=device)
    thing.facts["sharded"] = entry.facts.get("sharded", False)
    at.emit(
        e.SCALER_NEW,
        node,
        thing.key,
        callable=entry.name,
        arguments=arguments,
        excess=max(0, len(args) - len(entry.parameters)),
        names={"call": wording(node), "scaler": thing.name},
    )
    return Ref(thing, enabled)


def _asks_for_bfloat16(written: ast.expr | None) -> bool:
    """Whether a condition is that a dtype, or its name, equals what is written as bfloat16."""
    if not isinstance(written, ast.Compare) or len(written.ops) != 1 or not isinstance(written.ops[0], ast.Eq):
        return False
    sides = (written.left, written.comparators[0])
    texts = {"bfloat16", "bf16", "torch.bfloat16"}
    return any(constant(side) in texts or last_name(side) == "bfloat16" for side in sides)


def _subclass_scaler(at: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A GradScaler of the project's own: its methods are read, and those that it does not have are torch's."""
    thing = at.thing(("scaler", at.place_key(node)), "scaler", "", at.site(node))
    thing.facts.update(constructed=True, callable=cls.name, cls=cls)
    return Ref(thing)


def unsynchronised(at: Interpreter, scaler: Ref, optimizer: int) -> str:
    """Why ranks can disagree about whether this scaler skips a step: "" where they cannot, as far as is known."""
    facts, owner = scaler.thing.facts, at.program.things[optimizer].facts
    owns = owner.get("owns")
    if facts.get("framework") or not facts.get("constructed") or facts.get("cls") is not None:
        return ""
    if facts.get("sharded"):
        wraps: set[str] = set()
        for key in at.program.whole(owns) if owns else ():
            wraps |= at.program.things[key].facts.get("wrapped", {}).keys()
        return "fused" if owner.get("fused") and (not wraps or "fsdp1" in wraps) else ""
    return "plain" if sharded(at, owns, lambda: "ShardedGradScaler" in at.module.identifiers) else ""


def scaler_attribute(at: Interpreter, receiver: Ref, name: str, node: ast.AST) -> Value | None:
    if name in surface.SCALER_METHODS:
        return BoundMethod(receiver, name)
    if name == "_enabled":
        # What a scaler of the project's own asks in its methods.
        return _is_enabled(receiver)
    if name == "_scale":
        return ScaleValue(receiver.thing.key, at.turning())
    if name == "_per_optimizer_states":
        # Who asks the scaler itself what was done knows better.
        at.emit(e.HANDOFF, node, things=(receiver.thing.key, *all_optimizers(at)), trains=(), about=e.MATTERS)
    return None


def _call_scaler(at: Interpreter, func: Ref, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    own = own_method(at, func, "__call__")
    if own is not None:
        return follow(at, own, args, keywords, node)
    return unknown(at, func, args, keywords, node)


def register(handlers: Handlers) -> None:
    handlers.roles[surface.SCALER] = _new_scaler
    handlers.constructors[surface.SCALER] = _subclass_scaler
    handlers.calls["scaler"] = _call_scaler
    handlers.methods["scaler"] = _scaler_method
    handlers.methods["scale"] = _scale_method
    handlers.attributes["scaler"] = scaler_attribute
