"""Losses: what a tensor is computed from, under which regions, and what running it backward reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import Words
from ..interpreter.conditions import either
from ..interpreter.dtypes import is_low
from ..interpreter.expressions import operate, undo
from ..interpreter.forks import fork, on_each
from ..interpreter.identity import divide, multiply
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.microbatches import PIECES
from ..interpreter.tensors import computed, foreign_tensor, in_region, low_result, region_device
from ..interpreter.unknown import is_graded
from ..interpreter.values import (
    NONE,
    Args,
    BoundMethod,
    Choice,
    Const,
    Grad,
    Keywords,
    Named,
    Params,
    Ref,
    ScaleValue,
    Tensor,
    Value,
)
from ..interpreter.wording import receiver_words, wording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Tensor methods that end a tensor's use as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Identifiers of what leaves averaging over processes out, or does it in another way.
_SPARES = frozenset(
    "no_sync require_backward_grad_sync set_requires_gradient_sync register_comm_hook static_graph".split()
)
#: Tensor methods that keep by what a loss was divided.
LINEAR = frozenset("mean sum float double clone squeeze".split())


def loss(at: Interpreter, facts: dict[str, object], args: Args, keywords: Keywords, node: ast.AST) -> Value:
    parts = [t for value in [*args, *keywords.values()] for t in value.tensors()]
    low, promotes = "", facts.get("promotes")
    first = next(iter(args[0].tensors()), None) if args else None
    if first is not None and first.low and not (in_region(at) or at.state.maybe_open or at.state.no_grad or promotes):
        low = first.low if first.low in ("float16", "bfloat16") else ""
    at.emit(
        e.LOSS,
        node,
        function=facts.get("kind"),
        low_precision=low,
        ambient=None if at.state.open else at.state.ambient,
        names={
            "call": wording(node),
            "loss": Words(node.args[0]) if isinstance(node, ast.Call) and node.args else "",
        },
    )
    made = computed(at, parts) if parts else Tensor(at.turning())
    if not parts:
        made.deps = None
        made.autocast = "in" if in_region(at) else "unknown"
        made.module_read = False
        made.in_region = in_region(at)
    if at.state.no_grad:
        made.deps = frozenset()
    made.is_loss = True
    made.low = ""
    reduction = keywords.get("reduction")
    summed = facts.get("reduction") == "sum" or (isinstance(reduction, Const) and reduction.value == "sum")
    unknown_reduction = reduction is not None and not isinstance(reduction, Const)
    legacy = keywords.get("size_average")
    summed = summed or (isinstance(legacy, Const) and legacy.value is False)
    made.divided = summed or unknown_reduction
    made.vague = False
    return made


def _tensor_method(at: Interpreter, tensor: Tensor, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if name == "backward":
        backward(at, tensor, node, first_given(args, keywords))
        return NONE
    if name in TO_NUMBER:
        return at.fresh(node, name)
    made = computed(at, [tensor, *(t for v in args for t in v.tensors())])
    made.opaque = made.opaque or is_graded(args)
    if name in ("detach", "detach_", "clone_", "data"):
        made.deps = frozenset()
        made.scaler = -1
        made.uneven = False
    elif name in ("float", "double"):
        made.low, made.matmul = "", False
    elif name in ("to", "type"):
        dtypes = [surface.DTYPES.get(v.name) for v in [*args, *keywords.values()] if isinstance(v, Named)]
        if any(dtype in ("float32", "float64") for dtype in dtypes):
            made.low, made.matmul = "", False
    elif name.removesuffix("_") in ("div", "true_divide", "mul"):
        result = operate(at, "*" if name.startswith("mul") else "/", tensor, args[0] if args else NONE, node)
        if name.endswith("_"):
            # In place: the tensor goes on to be used.
            tensor.divided = tensor.divided or result.divided
            if isinstance(result, Tensor):
                tensor.divisors, tensor.factors = result.divisors, result.factors
        return result
    elif name == "sum":
        made.divided = True
    elif name == "mean":
        made.vague = False
    elif name in PIECES:
        made.pieces = True
    elif name in ("masked_fill", "masked_fill_", "fill_", "index_fill", "index_fill_"):
        fill(at, args[-1] if args else keywords.get("value"), tensor, node)
    elif is_low(name, region_device(at)):
        made.matmul = True
    if name in LINEAR and not args:
        made.divisors, made.factors = tensor.divisors, tensor.factors
    return made


def backward(at: Interpreter, tensor: Tensor, node: ast.AST, gradient: Value | None = None) -> None:
    """A tensor runs backward, from ones or from a gradient that is given, which may be scaled already."""
    names = {"loss": receiver_words(node), "call": wording(node)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = node.func.value
        if isinstance(inner, ast.Call) and inner.args:
            names["loss"] = Words(inner.args[0])
            if isinstance(inner.func, ast.Attribute):
                names["scaler"] = Words(inner.func.value)
    if tensor.penalty is not None:
        penalty(at, tensor, node)
    for listener in at.handlers.backward_run:
        listener(at, tensor, node)
    scaler = tensor.scaler if tensor.scaler >= 0 else None
    replicated = averaged_over(at, tensor)
    if replicated is not None:
        names["module"] = replicated.name
    facts = {
        "averaged": replicated.facts["wrapped"]["ddp"] if replicated is not None else None,
        "feeds": fed(at, tensor),
        "divided": tensor.divided or tensor.opaque or gradient is not None,
        "vague": tensor.vague,
        "opaque": scaler is None and (tensor.opaque or gradient is not None),
        "scaled": scaler is not None,
        "uneven": scaler is not None and tensor.uneven,
        "dtypes": tensor.dtypes,
        "custom": tensor.custom,
        "names": names,
    }
    fork(
        at,
        either(*at.state.apart),
        lambda: _emit_backward(at, node, scaler, {**facts, "apart": True}),
        lambda: _emit_backward(at, node, scaler, dict(facts)),
    )


def _emit_backward(at: Interpreter, node: ast.AST, scaler: int | None, facts: dict[str, Any]) -> None:
    at.emit(e.BACKWARD, node, scaler, **facts)


def penalty(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    penalty = tensor.penalty
    tensor.penalty = None
    if isinstance(penalty, tuple):
        place, names = penalty
        at.emit(e.PENALTY, place, None, None, names=names)


def fill(at: Interpreter, value: Value | None, tensor: Tensor, node: ast.AST) -> None:
    number = value.value if isinstance(value, Const) and isinstance(value.value, (int, float)) else None
    if number is None:
        return
    at.emit(
        e.FILL,
        node,
        value=float(number),
        eligible=(tensor.matmul or bool(tensor.low)) and tensor.dtypes != {"bfloat16"},
        names={"call": wording(node)},
    )


def whole(at: Interpreter, keys: frozenset[int]) -> frozenset[int]:
    """Modules with the modules that are parts of them."""
    whole, todo = set(keys), list(keys)
    while todo:
        for part in at.program.things[todo.pop()].facts.get("parts", ()):
            if part not in whole:
                whole.add(part)
                todo.append(part)
    return frozenset(whole)


def fed(at: Interpreter, tensor: Tensor) -> tuple[int, ...] | None:
    """The optimizers whose gradients a backward reaches, where the modules tell."""
    if tensor.deps is None:
        return None
    fed = []
    for thing in at.program.things:
        if thing.role == "optimizer":
            owns = thing.facts.get("owns")
            if owns is None:
                return None
            if whole(at, owns) & whole(at, tensor.deps):
                fed.append(thing.key)
    return tuple(fed) if fed else None


def owners_of(at: Interpreter, params: Params) -> tuple[int, ...] | None:
    """The optimizers that update parameters; None where that is not known."""
    if params.optimizers:
        return tuple(params.optimizers)
    if params.modules is None:
        return None
    owners = []
    for thing in at.program.things:
        if thing.role == "optimizer":
            owns = thing.facts.get("owns")
            if owns is None:
                return None
            if whole(at, owns) & whole(at, params.modules):
                owners.append(thing.key)
    return tuple(owners) if owners else None


def all_optimizers(at: Interpreter) -> tuple[int, ...]:
    return tuple(thing.key for thing in at.program.things if thing.role == "optimizer")


def loss_arithmetic(at: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """What an operator makes of a loss, of gradients or of the loss scale."""
    for side in (left, right):
        if isinstance(side, Choice) and any(isinstance(v, (Tensor, ScaleValue)) for _, v in side.options):
            other = right if side is left else left

            def act(value: Value, side: Value = side, other: Value = other) -> Value:
                return operate(at, op, value if side is left else other, other if side is left else value, node)

            return on_each(at, side, act)
    scaled = _scale_arithmetic(op, left, right)
    if scaled is not None:
        return scaled
    if isinstance(left, Grad) or isinstance(right, Grad):
        return left if isinstance(left, Grad) else right
    parts = [*left.tensors(), *right.tensors()]
    if parts:
        return _tensor_arithmetic(at, op, left, right, parts, node)
    return low_result(at, "matmul", [left, right]) if op == "@" else None


def _scale_arithmetic(op: str, left: Value, right: Value) -> Value | None:
    """What an operator makes of the loss scale: with it gradients and losses are unscaled, or scaled."""
    if isinstance(right, ScaleValue) and op == "/" and isinstance(left, Const):
        return ScaleValue(right.scaler, inverse=not right.inverse)
    scale = left if isinstance(left, ScaleValue) else right
    if not isinstance(scale, ScaleValue):
        return None
    value = right if scale is left else left
    undone = scale.inverse if op == "*" else op == "/" and scale is right and not scale.inverse
    if isinstance(value, Grad):
        return Grad(value.params, unscaled=undone)
    tensors = value.tensors()
    if tensors:
        made = Tensor.merge(tensors)
        if undone:
            made.penalty = None
            made.scaler = -1
            made.uneven = False
        elif op == "*":
            made.scaler = scale.scaler
        return made
    if undone or (op == "/" and scale is right):
        undo(value)
    return ScaleValue(scale.scaler, inverse=scale.inverse)


def _tensor_arithmetic(
    at: Interpreter, op: str, left: Value, right: Value, parts: list[Tensor], node: ast.AST
) -> Tensor:
    made = computed(at, parts)
    made.opaque = made.opaque or is_graded((left, right))
    if op == "@":
        made.matmul = True
    elif any(isinstance(side, Ref) and side.thing.facts.get("wide") for side in (left, right)):
        made.low, made.matmul = "", False
    if op == "/" and isinstance(left, Tensor):
        made.divided = True
        if not isinstance(right, Tensor):
            divide(at, made, left, right, node)
        elif left.penalty and right.penalty:
            made.penalty = None
    elif op == "*" and (not isinstance(left, Tensor) or not isinstance(right, Tensor)):
        factor = right if isinstance(left, Tensor) else left
        if len(parts) == 1:
            multiply(at, made, parts[0], factor)
        # A weight of which only the name is known may well be 1 / k, but those of a criterion's parts are not.
        share = _is_share(factor.value) if isinstance(factor, Const) else not at.state.forwards
        made.divided = made.divided or factor.divided or share
    elif op in ("+", "-"):
        made.uneven = made.uneven or is_uneven(parts)
        made.divided = all(p.divided for p in parts)
        made.divisors = frozenset.intersection(*(p.divisors for p in parts))
    return made


def as_loss(value: Value | None) -> Tensor:
    """A copy of the tensor that a value is, or one of which only the name is known."""
    tensors = value.tensors() if value is not None else []
    return Tensor.merge(tensors) if tensors else foreign_tensor(value)


def is_uneven(parts: Iterable[Tensor]) -> bool:
    """Whether some terms of a sum hold the scale of one scaler, and others that of another or, for certain, none.

    A term of which nothing is known may have been scaled; one that no gradient reaches needs no scale, and terms of
    different modules may be scaled as they like.
    """
    known = [part for part in parts if part.scaler >= 0 or (not part.opaque and (part.is_loss or part.deps))]
    trained = [part for part in known if part.deps != frozenset()]
    for number, part in enumerate(trained):
        for other in trained[:number]:
            if part.scaler == other.scaler:
                continue
            if part.deps is None or other.deps is None:
                # Nothing tells apart what two scalers are there for.
                if min(part.scaler, other.scaler) < 0:
                    return True
            elif part.deps & other.deps:
                return True
    return False


def first_given(args: Args, keywords: Keywords) -> Value | None:
    """The gradient that a backward is given, if it is given one."""
    given = args[0] if args else keywords.get("gradient", keywords.get("grad_tensors"))
    return None if isinstance(given, Const) else given


def _is_share(factor: object) -> bool:
    """Whether a number is one over another, as the weight of one of several equal parts is."""
    if not isinstance(factor, float) or not 0 < factor <= 0.5:
        return False
    return abs(1 / factor - round(1 / factor)) < 1e-6


def averaged_over(at: Interpreter, tensor: Tensor) -> Thing | None:
    """The module of which a backward averages the gradients over processes, if nothing here may keep it from that.

    A context of which nothing is known may be ``no_sync()`` by another name.
    """
    if at.state.maybe_open or not (_SPARES.isdisjoint(at.module.identifiers | at.state.frame.module.identifiers)):
        return None
    keys = tensor.deps if tensor.deps is not None else frozenset()
    if not keys and tensor.forward is not None and tensor.forward.subject is not None:
        keys = frozenset((tensor.forward.subject,))
    for key in sorted(keys):
        thing = at.program.things[key]
        if "ddp" in thing.facts.get("wrapped", {}):
            return thing
    return None


def _tensor_attribute(at: Interpreter, receiver: Tensor, name: str, node: ast.AST) -> Value:
    if name == "backward":
        return BoundMethod(receiver, name)
    if name in TO_NUMBER:
        return at.fresh(node, name)
    made = receiver.copy()
    if name == "grad":
        # Whether it holds the loss scale, only the backward before it tells.
        made.opaque = True
    return made


def _call_loss(at: Interpreter, func: Ref, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return loss(at, func.thing.facts, args, keywords, node)


def register(handlers: Handlers) -> None:
    handlers.calls["loss"] = _call_loss
    handlers.methods["tensor"] = _tensor_method
    handlers.attributes["tensor"] = _tensor_attribute
    handlers.operators.append(loss_arithmetic)
