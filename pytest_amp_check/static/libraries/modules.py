"""Modules of torch: what running them, casting them and wrapping them does."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import chain
from ..interpreter.classes import BOUND, decorations, method_of, reads_forward
from ..interpreter.functions import follow
from ..interpreter.imports import globals_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import in_region, mark_region
from ..interpreter.unknown import hand_off, unknown
from ..interpreter.values import (
    NONE,
    Args,
    BoundMethod,
    Choice,
    Const,
    FunctionValue,
    Instance,
    Keywords,
    Mapping,
    Named,
    NoSync,
    Opaque,
    Params,
    Ref,
    Sequence,
    Tensor,
    Value,
)
from ..interpreter.wording import receiver_words, wording
from .arguments import first_of
from .checkpoints import state_of
from .gradients import HOOKS, clip, rate_divided
from .losses import owners_of
from .overhead import Costs

#: Words of a forward that computes a loss itself.
LOSSES = frozenset(
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss".split()
)
#: Methods that give a tensor of the shape that they are called on, and leave float32 what it is.
ELEMENTWISE = frozenset(
    "abs clamp clamp_max clamp_min exp log log1p neg reciprocal sigmoid softplus sqrt square".split()
)
#: Methods that give back the module, which is as before as far as the protocol is concerned.
SAME = frozenset("train eval cuda cpu float double apply to_empty share_memory".split())
#: Methods that go over what a module holds.
PARTS = frozenset("modules named_modules children named_children buffers".split())


def forward(at: Interpreter, thing: Thing, args: Args, keywords: Keywords, node: ast.AST, read: bool) -> Tensor:
    """The value of a module's forward."""
    hand_off(at, [*args, *keywords.values()], node)
    cached = not (thing.facts.get("compiled") or thing.facts.get("low"))
    made = Tensor(at.turning())
    made.forward = at.emit(e.FORWARD, node, thing.key, cached=cached, names={"module": wording(node)})
    for listener in at.handlers.forward_run:
        listener(at, thing, node)
    parts = [t for value in [*args, *keywords.values()] for t in value.tensors()]
    deps: frozenset[int] | None = frozenset((thing.key,))
    made.ran = at.turning()
    for part in parts:
        made.ran |= part.ran
        deps = None if deps is None or part.deps is None else deps | part.deps
        made.penalty = made.penalty or part.penalty
    made.deps = frozenset() if at.state.no_grad else deps
    made.module_read = read and all(part.module_read for part in parts)
    made.matmul = True
    mark_region(at, made)
    made.in_region = False
    return made


def _call_object(at: Interpreter, receiver: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """The value of a call of a module whose class is in view: with what its forward does to a loss."""
    thing = receiver.thing
    assert thing is not None
    made = forward(at, thing, args, keywords, node, reads_forward(at, receiver.cls))
    method = method_of(at, receiver.cls, "forward")
    given = [*args, *keywords.values()]
    compares = len(given) > 1 and any(v.tensors() or (v.called) for v in given)
    if method is None or method in at.active:
        return made
    telling = compares or bool(method.words & LOSSES) or (method.fragile and in_region(at))
    casts = "autocast" in method.words and not (at.state.open or at.state.maybe_open or at.state.no_grad)
    here = at.state.frame.function or at.state.frame.module
    spoilt = here.fragile and in_region(at)
    if not (telling or casts or spoilt):
        return made
    outcome: list[Value] = []
    inner = FunctionValue(method, globals_of(at, method.module), receiver)

    def act() -> None:
        at.state.forwards += 1
        outcome.append(follow(at, inner, args, keywords, node))

    casting = at.of_graph(Costs).casting
    casting.append(thing)
    at.previewed(act)
    casting.pop()
    return _reduced_as(outcome[0], made) if telling else _known_as(outcome[0], made)


def module_method(
    at: Interpreter, receiver: Ref | Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    thing = receiver.thing
    assert thing is not None
    if thing.facts.get("wide") and name in ELEMENTWISE:
        # As wide as the parameter, and as exact.
        return receiver
    if name in SAME:
        return receiver
    if name in PARTS:
        return at.fresh(node, name)
    if name in HOOKS:
        comm_hook(at, thing, args[1] if len(args) > 1 else keywords.get("hook"), node)
        # torch's own hooks average over ranks, not over micro-batches.
        if not any(isinstance(v, Named) and v.name.startswith("torch.") for v in [*args, *keywords.values()]):
            rate_divided(at, Params(frozenset((thing.key,))))
        return at.fresh(node, name)
    act = _METHODS.get(name)
    done = act(at, receiver, thing, args, keywords, node) if act is not None else None
    return forward(at, thing, args, keywords, node, False) if done is None else done


def _parameters(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return Params(frozenset((thing.key,)))


def _named_parameters(
    at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    parameter = Params(frozenset((thing.key,)), one=True)
    return Sequence([Sequence([at.fresh(node, "name"), parameter])])


def _zero_grad(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    owners = owners_of(at, Params(frozenset((thing.key,))))
    at.emit(e.ZERO_GRAD, node, None, None, owners=owners, names={"call": wording(node)})
    return NONE


def _half(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    _cast(at, thing, "float16", node)
    return receiver


def _bfloat16(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    _cast(at, thing, "bfloat16", node)
    return receiver


def _to(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    for value in [*args, *keywords.values()]:
        dtype = surface.DTYPES.get(value.name) if isinstance(value, Named) else None
        if dtype in ("float16", "bfloat16"):
            _cast(at, thing, dtype, node)
    return receiver


def _requires_grad(
    at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    flag = first_of(args, keywords, "requires_grad")
    if isinstance(flag, Const) and flag.value is False:
        thing.facts["frozen"] = True
    return receiver


def _compile(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    thing.facts["compiled"] = True
    return NONE


def _load_state_dict(
    at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    at.emit(e.PARAM_WRITE, node, thing.key, None, names={"module": receiver_words(node), "call": wording(node)})
    return at.fresh(node, "load_state_dict")


def _state_dict(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return state_of(at, receiver, node)


def _run(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return forward(at, thing, args, keywords, node, bool(thing.facts.get("read")))


def _no_sync(
    at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    return None if args else NoSync()


def _clip(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return clip(at, Params(frozenset((thing.key,))), args, keywords, node)


def _backward(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    at.emit(e.BACKWARD, node, None, opaque=True, feeds=None)
    return NONE


def _step(at: Interpreter, receiver: Value, thing: Thing, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return unknown(at, receiver, args, keywords, node)


_METHODS: dict[str, Callable[[Interpreter, Value, Thing, Args, Keywords, ast.AST], Value | None]] = {
    "parameters": _parameters,
    "named_parameters": _named_parameters,
    "zero_grad": _zero_grad,
    "half": _half,
    "bfloat16": _bfloat16,
    "to": _to,
    "requires_grad_": _requires_grad,
    "compile": _compile,
    "load_state_dict": _load_state_dict,
    "state_dict": _state_dict,
    "forward": _run,
    "__call__": _run,
    "no_sync": _no_sync,
    "clip_grad_norm_": _clip,
    "backward": _backward,
    "step": _step,
}


def _cast(at: Interpreter, thing: Thing, dtype: str, node: ast.AST) -> None:
    thing.facts["low"] = True
    at.emit(
        e.MODULE_CAST,
        node,
        thing.key,
        dtype=dtype,
        names={"module": receiver_words(node), "call": wording(node)},
    )


def torch_module(at: Interpreter, name: str, args: Args, node: ast.AST) -> Value:
    parts = [v for v in args if isinstance(v, (Ref, Instance))]
    thing = at.thing(("module", at.place_key(node)), "module", "", at.site(node))
    thing.facts["read"] = all(bool(is_read(p)) for p in parts)
    kind = name.rpartition(".")[2]
    last = args[-1] if kind == "Sequential" and args else None
    thing.facts["kind"] = last.thing.facts.get("kind", "") if isinstance(last, Ref) else kind
    thing.facts["parts"] = {p.thing.key for p in parts if p.thing is not None}
    thing.facts["parameter"] = name.endswith(".Parameter") and all(v.full for v in args)
    thing.facts["wide"] = name.endswith(".Parameter") and isinstance(node, ast.Call) and _has_dimensions(node)
    return Ref(thing)


def wrap_module(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = first_of(args, keywords, entry.parameters[0])
    thing = inner.thing if isinstance(inner, (Ref, Instance)) else None
    if thing is None and isinstance(inner, Opaque):
        thing = at.thing(("wrapped", at.place_key(node)), "module", "", at.site(node))
        inner = Ref(thing)
    if thing is not None:
        mark_wrapped(at, thing, entry, args, keywords)
    if thing is not None and entry.role == surface.COMPILE:
        thing.facts["compiled"] = True
    if entry.facts.get("copies") and isinstance(inner, (Ref, Instance)):
        # A copy has parameters of its own.
        thing = at.thing(("copy", at.place_key(node)), "module", "", at.site(node))
        return Ref(thing)
    return inner if inner is not None else at.fresh(node, "wrapped")


def mark_wrapped(at: Interpreter, thing: Thing, entry: surface.Entry, args: Args, keywords: Keywords) -> None:
    """Remember what a module is wrapped in, and under which tests."""
    wraps = entry.facts.get("wraps")
    if wraps is None:
        return
    strategy = keywords.get("sharding_strategy") or (args[2] if len(args) > 2 else None)
    if wraps == "fsdp1" and isinstance(strategy, Named) and strategy.name.endswith(".NO_SHARD"):
        wraps = "whole"
    thing.facts.setdefault("wrapped", {}).setdefault(wraps, frozenset(at.guards()))


def _script(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = args[0] if args else NONE
    decorated = isinstance(inner, FunctionValue) and any(
        isinstance(w, Ref) and w.role == "autocast" for w in inner.wrappers
    )
    if isinstance(inner, Instance):
        forward = method_of(at, inner.cls, "forward")
        decorated = forward is not None and any(isinstance(w, Ref) for w in decorations(at, forward))
    if decorated:
        at.emit(e.SCOPE_LOST, node, None, how="script", names={"context": "autocast", "call": wording(node)})
    return inner


def comm_hook(at: Interpreter, module: Thing | None, hook: Value | None, node: ast.AST) -> None:
    """Gradients are cast before they are averaged over ranks."""
    if isinstance(hook, Named) and surface.canonical(hook.name) in surface.FP16_HOOKS:
        key = module.key if module is not None else None
        at.emit(e.COMM_HOOK, node, key, names={"call": wording(node)})


def _register_hook(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
    model = bound.get("model")
    thing = model.thing if isinstance(model, (Ref, Instance)) else None
    comm_hook(at, thing, bound.get("comm_hook_type"), node)
    return at.fresh(node, "hook")


def _compressed(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A hook that is wrapped so that its gradients are cast to float16."""
    return Named(min(surface.FP16_HOOKS))


def _known_as(outcome: Value, made: Tensor) -> Value:
    """What a module gives, with what reading its forward has shown of the dtypes."""
    if not isinstance(outcome, Sequence) or outcome.open or len(outcome.items) < 2:
        return made.knowing(outcome.fact)
    parts = [made.copy() for _ in outcome.items]
    for part, item in zip(parts, outcome.items, strict=True):
        part.vague, part.fact = True, item.fact
    return Sequence(list(parts))


def _reduced_as(outcome: Value, made: Tensor) -> Value:
    """What a module gives, in the shape and with the reductions that reading its forward has shown."""
    if isinstance(outcome, Choice):
        outcome = next((v for _, v in outcome.options if isinstance(v, (Tensor, Sequence, Mapping))), outcome)
    if isinstance(outcome, Sequence) and not outcome.open:
        return Sequence([_reduced_as(item, made) for item in outcome.items])
    if isinstance(outcome, Mapping) and not outcome.open:
        return Mapping({key: _reduced_as(item, made) for key, item in outcome.items.items()})
    part = made.copy()
    part.fact = outcome.fact
    if isinstance(outcome, Tensor):
        part.divided, part.is_loss, part.vague = outcome.divided, outcome.is_loss, outcome.vague
    elif isinstance(outcome, Opaque):
        part.divided = outcome.divided
    return part


def is_read(value: Value) -> bool:
    if isinstance(value, Instance):
        return bool(value.thing and value.thing.facts.get("read"))
    return isinstance(value, Ref) and bool(value.thing.facts.get("read"))


def _has_dimensions(node: ast.Call) -> bool:
    """Whether a parameter is made of a float32 tensor that has a dimension: with it, all that is low is float32."""
    made = node.args[0] if node.args else None
    if not isinstance(made, ast.Call) or not made.args or any(k.arg == "dtype" for k in made.keywords):
        return False
    kind = (chain(made.func) or "").rpartition(".")[2]
    first = made.args[0]
    if kind in ("Tensor", "FloatTensor", "tensor"):
        return isinstance(first, ast.List) and bool(first.elts)
    return kind in ("ones", "zeros", "rand", "randn", "empty", "full") and not (
        isinstance(first, (ast.List, ast.Tuple)) and not first.elts
    )


def _call_module(at: Interpreter, func: Ref, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return forward(at, func.thing, args, keywords, node, bool(func.thing.facts.get("read")))


def _module_attribute(at: Interpreter, receiver: Ref, name: str, node: ast.AST) -> Value | None:
    if name in BOUND["module"]:
        return BoundMethod(receiver, name)
    return receiver if name == "module" else None


def register(handlers: Handlers) -> None:
    handlers.calls.update({"module": _call_module, "module instance": _call_object})
    handlers.methods.update({"module": module_method, "loss": module_method})
    handlers.attributes["module"] = _module_attribute
    handlers.roles.update(
        {
            surface.WRAP_MODULE: wrap_module,
            surface.COMPILE: wrap_module,
            surface.SCRIPT: _script,
            surface.REGISTER_HOOK: _register_hook,
            surface.COMPRESS: _compressed,
        }
    )
