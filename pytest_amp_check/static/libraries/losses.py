"""Losses: what a tensor is computed from, under which regions, and what running it backward reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import UNKNOWN, Thing
from ...protocol.words import Words, chain
from ..interpreter.conditions import either
from ..interpreter.dtypes import is_low
from ..interpreter.expressions import EXTENTS, of_this_turn, of_turn, operate, undo
from ..interpreter.forks import fork, on_each
from ..interpreter.identity import divide, multiply
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.microbatches import PIECES
from ..interpreter.state import Loop
from ..interpreter.tensors import computed, foreign_tensor, in_region, low_result, region_device, widened
from ..interpreter.unknown import is_graded
from ..interpreter.values import (
    NONE,
    Args,
    BoundMethod,
    Choice,
    Const,
    Grad,
    Keywords,
    Opaque,
    Params,
    ScaleValue,
    Tensor,
    Value,
    past_of,
)
from ..interpreter.wording import receiver_words, wording
from ..project.syntax import walk
from .arguments import given_tensors, literal, name_of, thing_of
from .written import first_argument, first_words, receiver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard

#: Tensor methods that end a tensor's use as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Identifiers of what leaves averaging over processes out, or does it in another way.
_SPARES = frozenset(
    "no_sync require_backward_grad_sync set_requires_gradient_sync register_comm_hook static_graph".split()
)
#: Tensor methods that keep by what a loss was divided.
LINEAR = frozenset("mean sum float double clone squeeze".split())
#: Functions and methods of which a quotient is no quotient of theirs: the logarithm of a half is no half of one.
CURVED = frozenset(
    "acos acosh asin asinh atan atanh cos cosh digamma erf erfc exp exp2 expm1 lgamma log log10 log1p log2 log_softmax "
    "logit logsigmoid logsumexp mish pow reciprocal rsqrt sigmoid silu sin sinh softmax softmin softplus sqrt square "
    "tan tanh".split()
)
#: Tensor methods that put a number in the place of some.
FILLS = frozenset("masked_fill masked_fill_ fill_ index_fill index_fill_".split())
#: Tensor methods, and functions of torch, that are an operator, as the methods are in place.
SCALES = {
    **dict.fromkeys(("mul", "multiply", "__mul__"), "*"),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), "/"),
}
_LOW = ("float16", "bfloat16")
#: What is different with a tensor that a method gives from one that is computed in any way.
_CHANGES: dict[str, tuple[tuple[str, object], ...]] = {
    **dict.fromkeys(PIECES, (("pieces", True),)),
    **dict.fromkeys(
        ("detach", "detach_", "clone_", "data"), (("deps", frozenset()), ("scaler", -1), ("uneven", False))
    ),
    **dict.fromkeys(("float", "double"), (("low", ""), ("matmul", False))),
    "mean": (("vague", False),),
}
#: How a criterion reduces that is not asked to.
_MEAN = Const("mean")


def loss(at: Interpreter, facts: dict[str, object], args: Args, keywords: Keywords, node: ast.AST) -> Value:
    at.emit(
        e.LOSS,
        node,
        function=facts.get("kind"),
        low_precision="" if facts.get("promotes") else _low_input(at, args),
        ambient=None if at.state.open else at.state.ambient,
        names={"call": wording(node), "loss": first_words(node)},
    )
    parts = given_tensors(args, keywords)
    made = computed(at, parts) if parts else _of_unknown(at, [*args, *keywords.values()])
    if at.state.no_grad:
        made.deps = frozenset()
    made.is_loss = True
    made.low = ""
    made.divided = made.summed = "sum" in (facts.get("reduction"), reduction_of(keywords))
    made.vague = False
    return made


def reduction_of(keywords: Keywords) -> object:
    """How a criterion is asked to reduce: one that is not known may be a sum."""
    if literal(keywords.get("size_average")) is False:
        return "sum"
    asked = literal(keywords.get("reduction", _MEAN))
    return "sum" if asked is UNKNOWN else asked


def _low_input(at: Interpreter, args: Args) -> str:
    """The low dtype of what a loss is computed of outside of all regions, "" where it has none."""
    if not args or in_region(at) or at.state.maybe_open or at.state.no_grad:
        return ""
    # What no gradient reaches has none that overflows.
    tensors = [tensor for tensor in args[0].tensors() if tensor.deps != frozenset()]
    return next((t.low if t.low in _LOW else "" for t in tensors), "")


def _of_unknown(at: Interpreter, given: list[Value]) -> Tensor:
    """A loss of what no module in view gave."""
    made = Tensor(at.turning())
    made.in_region = in_region(at)
    earlier, made.callees, made.dtypes = past_of(given)
    made.autocast = "in" if made.in_region else earlier or "?"
    return made


def _tensor_method(at: Interpreter, tensor: Tensor, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if name == "backward":
        backward(at, tensor, node, first_given(args, keywords))
        return NONE
    if name in TO_NUMBER:
        return _number_of(at, tensor, name, node)
    if _operator(name) in SCALES:
        return _scaled_by(at, tensor, name, args, node)
    made = computed(at, [tensor, *given_tensors(args, {})])
    made.graded = made.graded or is_graded(args)
    given = (*args, *keywords.values()) if name in ("to", "type") else ()
    widens = any(surface.DTYPES.get(name_of(value)) in ("float32", "float64") for value in given)
    changes = _CHANGES.get("float" if widens else name, ())
    for attribute, value in changes:
        setattr(made, attribute, value)
    made.extent = tensor.extent or name in EXTENTS
    reduced(made, tensor, name)
    if name in FILLS:
        fill(at, keywords.get("value") or (args[-1] if args else None), tensor, receiver_words(node), node)
    elif not changes and is_low(name, region_device(at)):
        made.matmul = True
    elif not changes:
        widened(at, made, name, [*args, *keywords.values()])
    if name in LINEAR and not args:
        made.divisors, made.factors = tensor.divisors, tensor.factors
    return made


def _number_of(at: Interpreter, tensor: Tensor, name: str, node: ast.AST) -> Opaque:
    made = at.fresh(node, name)
    made.extent = tensor.extent or name in EXTENTS
    return made


def reduced(made: Tensor | Opaque, of: Value, how: str) -> None:
    """What a function leaves of how a loss was divided; the mean of partial sums is a mean."""
    if how.rpartition(".")[2].removesuffix("_") in CURVED:
        made.divided = made.summed = False
    elif how == "sum":
        made.divided = True
        if isinstance(made, Tensor):
            made.share = False
        made.summed = of.summed or not of.divided or (isinstance(of, Tensor) and of.weighted)
    elif how == "mean" and of.summed:
        made.divided = made.summed = False


def _operator(name: str) -> str:
    """The name of a method, or of what it is in place."""
    return name if name in SCALES else name.removesuffix("_")


def _scaled_by(at: Interpreter, tensor: Tensor, name: str, args: Args, node: ast.AST) -> Value:
    """A method that multiplies a tensor by a number, or divides it."""
    result = operate(at, SCALES[_operator(name)], tensor, args[0] if args else NONE, node)
    if name.endswith("_") and not name.endswith("__"):
        # In place: the tensor goes on to be used.
        tensor.divided = tensor.divided or result.divided
        if isinstance(result, Tensor):
            tensor.divisors, tensor.factors, tensor.share = result.divisors, result.factors, result.share
    return result


def backward(
    at: Interpreter,
    tensor: Tensor,
    node: ast.AST,
    gradient: Value | None = None,
    names: dict[str, object] | None = None,
) -> None:
    """A tensor runs backward, from ones or from a gradient that is given, which may be scaled already.

    ``names`` are the words for it where it is no ``backward()`` that does so.
    """
    if tensor.penalty is not None:
        penalty(at, tensor, node)
    for listener in at.handlers.backward_run:
        listener(at, tensor, node)
    scaler = tensor.scaler if tensor.scaler >= 0 else None
    names = dict(names) if names is not None else _names_of_backward(node)
    averaged = None
    replicated = averaged_over(at, tensor)
    if replicated is not None:
        names["module"] = replicated.name
        averaged = replicated.facts["wrapped"]["ddp"]
    graded = tensor.graded or gradient is not None
    facts: dict[str, Any] = {
        "averaged": averaged,
        "feeds": updated_by(at, tensor.deps),
        "divided": tensor.divided or tensor.opaque or graded,
        "vague": tensor.vague,
        "opaque": scaler is None and graded,
        "given": scaler is None and tensor.opaque,
        "scaled": scaler is not None,
        "uneven": scaler is not None and tensor.uneven,
        "several": tensor.several,
        "outside": tensor.opaque,
        "dtypes": tensor.dtypes,
        "custom": tensor.custom,
        "forward": tensor.forward,
        "names": names,
    }

    def emit(*, apart: bool, float8: bool) -> None:
        at.emit(e.BACKWARD, node, scaler, **facts, apart=apart, float8=float8)

    def run(*, apart: bool = False) -> None:
        inside = at.state.float8[-1] if at.state.float8 else False
        fork(at, inside, lambda: emit(apart=apart, float8=True), lambda: emit(apart=apart, float8=False))

    fork(at, either(*at.state.apart), lambda: run(apart=True), run)
    for listener in at.handlers.backward_ended:
        listener(at, tensor, node)


def _names_of_backward(node: ast.AST) -> dict[str, object]:
    """The words for a loss that runs backward, and for the scaler where it is scaled in the same breath."""
    scaling = receiver(node)
    argument = first_argument(scaling)
    if argument is None:
        return {"loss": receiver_words(node), "call": wording(node)}
    names: dict[str, object] = {"loss": Words(argument), "call": wording(node)}
    scaler = receiver(scaling)
    return names if scaler is None else {**names, "scaler": Words(scaler)}


def loss_names(scaler: object, node: ast.AST) -> dict[str, object]:
    """The words for a scaler that is given a loss."""
    argument = first_words(node)
    names = {"scaler": scaler, "call": wording(node)}
    return {**names, "loss": argument} if argument else names


def penalty(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    penalty = tensor.penalty
    tensor.penalty = None
    if penalty is not None:
        place, names, outdated = penalty
        at.emit(e.PENALTY, place, outdated=outdated, names=names)


def fill(at: Interpreter, value: Value | None, tensor: Tensor, words: object, node: ast.AST) -> None:
    number = literal(value)
    if not isinstance(number, (int, float)):
        return
    # What only decodes spoils no parameter: there it is told of what is known to be float16.
    eligible = bool(tensor.low) or (tensor.matmul and not at.state.no_grad)
    eligible = eligible and not (tensor.dtypes and tensor.dtypes <= surface.FAR_REACHING)
    names = {"call": wording(node), "tensor": words}
    at.emit(e.FILL, node, value=float(number), eligible=eligible, guessed=not tensor.low, names=names)


def _item_written(at: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """A number is written into some places of a tensor."""
    if isinstance(receiver, Tensor):
        fill(at, value, receiver, Words(target.value), target)


def owners_of(at: Interpreter, params: Params) -> tuple[int, ...] | None:
    """The optimizers that update parameters; None where that is not known."""
    return tuple(params.optimizers) if params.optimizers else updated_by(at, params.modules)


def updated_by(at: Interpreter, modules: frozenset[int] | None) -> tuple[int, ...] | None:
    """The optimizers that update modules; None where that is not known."""
    if modules is None:
        return None
    copies = bool(modules) and all(at.program.things[key].facts.get("copied") for key in modules)
    owners = []
    for key in at.program.optimizers:
        owns = at.program.things[key].facts.get("owns")
        if owns is None:
            if copies and key < min(modules):
                # What was there before a copy was made does not update it.
                continue
            return None
        if at.program.whole(owns) & at.program.whole(modules):
            owners.append(key)
    return tuple(owners) if owners or copies else None


def all_optimizers(at: Interpreter) -> tuple[int, ...]:
    return tuple(at.program.optimizers)


def loss_arithmetic(at: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """What an operator makes of a loss, of gradients or of the loss scale."""
    if _is_chosen(left):
        return on_each(at, left, lambda value: operate(at, op, value, right, node))
    if _is_chosen(right):
        return on_each(at, right, lambda value: operate(at, op, left, value, node))
    scaled = _scale_arithmetic(at, op, left, right, node)
    if scaled is not None:
        return scaled
    for side, other in ((left, right), (right, left)):
        if isinstance(side, Grad):
            return _grad_arithmetic(op, side, other)
    parts = [*left.tensors(), *right.tensors()]
    if parts:
        return _tensor_arithmetic(at, op, left, right, parts, node)
    return low_result(at, "matmul", [left, right]) if op == "@" else None


def _grad_arithmetic(op: str, grad: Grad, other: Value) -> Grad:
    """What an operator makes of gradients; by a number that comes from scaled gradients they are clipped."""
    scaled = tuple(reading for reading in other.readings if not reading.facts.get("undone"))
    return Grad(grad.params, unscaled=grad.unscaled, by=scaled) if op in ("*", "/") and scaled else grad


def _is_chosen(value: Value) -> TypeGuard[Choice]:
    """Whether a value is one of several of which some are losses, or the loss scale."""
    return isinstance(value, Choice) and any(option.kind in ("tensor", "scale") for option in value.alternatives())


def _scale_arithmetic(at: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """What an operator makes of the loss scale: with it gradients and losses are unscaled, or scaled."""
    scale, value = (left, right) if isinstance(left, ScaleValue) else (right, left)
    if not isinstance(scale, ScaleValue):
        return None
    divides = op == "/" and scale is right
    if divides and value.kind == "constant":
        return ScaleValue(scale.scaler, scale.loops, inverse=not scale.inverse, lasting=scale.lasting)
    undone = (op == "*" and scale.inverse) or (divides and not scale.inverse)
    if isinstance(value, Grad):
        return Grad(value.params, unscaled=undone)
    tensors = value.tensors()
    if tensors:
        made = Tensor.merge(tensors)
        if undone and made.penalty is not None and _is_outdated(at, scale):
            made.penalty = (node, {**made.penalty[1], "call": wording(node)}, True)
            penalty(at, made, node)
        return _scaled(made, scale.scaler if op == "*" else None, undone=undone)
    if value.readings:
        # A norm over the scale, or the scale over a norm, is a number of true gradients.
        undo(value.readings)
        return at.fresh(node)
    return ScaleValue(scale.scaler, scale.loops, inverse=scale.inverse, lasting=scale.lasting)


def _is_outdated(at: Interpreter, scale: ScaleValue) -> bool:
    """Whether a scale was read before a loop around in which update() changes it."""
    return not scale.lasting and any(loop.key not in scale.loops and _updates(loop) for loop in at.state.loops)


def _updates(loop: Loop) -> bool:
    """Whether a scaler is updated in a loop."""
    if loop.node is None or loop.frame is None:
        return False
    uses = loop.frame.module.uses
    calls = (inner.func for inner in walk(loop.node) if isinstance(inner, ast.Call))
    updated = [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == "update"]
    return any(uses.get(chain(scaler) or "") == "scaler" for scaler in updated)


def _scaled(made: Tensor, scaler: int | None, *, undone: bool) -> Tensor:
    """A loss that was multiplied by the scale of a scaler, or from which it was taken away."""
    if undone:
        made.penalty = None
        made.scaler = -1
        made.uneven = False
    elif scaler is not None:
        made.scaler = scaler
    return made


def _tensor_arithmetic(
    at: Interpreter, op: str, left: Value, right: Value, parts: list[Tensor], node: ast.AST
) -> Tensor:
    made = computed(at, parts)
    made.graded = made.graded or is_graded((left, right))
    if op == "@":
        made.matmul = True
    elif _is_wide(left) or _is_wide(right):
        made.low, made.matmul = "", False
    if op == "/" and isinstance(left, Tensor):
        _divided(at, made, left, right, node)
    elif op == "*" and not left.kind == right.kind == "tensor":
        _multiplied(at, made, parts, right if left.kind == "tensor" else left)
    elif op == "**":
        made.divided = made.summed = False
    elif op in ("+", "-"):
        made.uneven = made.uneven or is_uneven(parts)
        made.divisors = frozenset.intersection(*(p.divisors for p in parts))
        made.factors = frozenset.intersection(*(p.factors for p in parts))
        # Terms of which each has a weight of its own: no share is taken of their sum.
        apart = len(parts) > 1 and made.share and not made.factors
        made.divided = all(p.divided for p in parts) and not apart
    return made


def _is_wide(value: Value) -> bool:
    """Whether a value is a parameter with which all that is low becomes float32."""
    thing = thing_of(value)
    return thing is not None and bool(thing.facts.get("wide"))


def _divided(at: Interpreter, made: Tensor, tensor: Tensor, divisor: Value, node: ast.AST) -> None:
    mean = of_this_turn(at, divisor)
    made.divided = (tensor.divided and not tensor.summed) or not mean
    made.share = made.share and mean
    made.vague = made.vague and not (mean and tensor.summed)
    made.summed = False
    if isinstance(divisor, Tensor):
        made.penalty = None if tensor.penalty and divisor.penalty else made.penalty
    elif not mean:
        divide(at, made, tensor, divisor, node)


def _multiplied(at: Interpreter, made: Tensor, parts: list[Tensor], factor: Value) -> None:
    if len(parts) == 1:
        multiply(at, made, parts[0], factor)
    # A weight of which only the name is known may well be 1 / k, but those of a criterion's parts are not.
    number = literal(factor)
    share = not at.state.forwards if number is UNKNOWN else _is_share(number)
    summed = [side.summed for side in (made, factor) if side.divided]
    made.share = share and not summed
    made.weighted = made.share and of_turn(at, factor)
    made.divided = bool(summed) or share
    made.summed = bool(summed) and all(summed) and not share


def as_loss(value: Value | None) -> Tensor:
    """A copy of the tensor that a value is, or one of which only the name is known."""
    tensors = value.tensors() if value is not None else []
    return Tensor.merge(tensors) if tensors else foreign_tensor(value)


def is_uneven(parts: Iterable[Tensor]) -> bool:
    """Whether some terms of a sum hold the scale of one scaler, and others that of another or, for certain, none.

    A term of which nothing is known may have been scaled; one that no gradient reaches needs no scale, and terms of
    different modules may be scaled as they like.
    """
    read = [part for part in parts if not (part.opaque or part.graded)]
    known = [part for part in parts if part.scaler >= 0 or (part in read and (part.is_loss or part.deps))]
    trained = [part for part in known if part.deps != frozenset()]
    return any(_clash(part, other) for number, part in enumerate(trained) for other in trained[:number])


def _clash(one: Tensor, other: Tensor) -> bool:
    """Whether two terms that are trained together hold scales that differ."""
    if one.scaler == other.scaler:
        return False
    if one.deps is None or other.deps is None:
        # Nothing tells apart what two scalers are there for.
        return min(one.scaler, other.scaler) < 0
    return bool(one.deps & other.deps)


def first_given(args: Args, keywords: Keywords) -> Value | None:
    """The gradient that a backward is given, if it is given one."""
    given = args[0] if args else keywords.get("gradient", keywords.get("grad_tensors"))
    return None if literal(given) is not UNKNOWN else given


def _is_share(factor: object) -> bool:
    """Whether a number is one over another, as the weight of one of several equal parts is."""
    if not isinstance(factor, float) or not 0 < factor <= 0.5:
        return False
    return abs(1 / factor - round(1 / factor)) < 1e-6


def may_go_apart(at: Interpreter) -> bool:
    """Whether something here may keep a backward from waiting for the other processes.

    A context of which nothing is known may be ``no_sync()`` by another name.
    """
    modules = (at.module, at.state.frame.module)
    return at.state.maybe_open > 0 or any(not module.identifiers.isdisjoint(_SPARES) for module in modules)


def averaged_over(at: Interpreter, tensor: Tensor) -> Thing | None:
    """The module of which a backward averages the gradients over processes, if nothing here may keep it from that."""
    if may_go_apart(at):
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
        return _number_of(at, receiver, name, node)
    made = receiver.copy()
    if name == "grad":
        # Whether it holds the loss scale, only the backward before it tells.
        made.graded = True
    return made


def register(handlers: Handlers) -> None:
    handlers.calls["loss"] = lambda at, func, *given: loss(at, func.thing.facts, *given)
    handlers.methods["tensor"] = _tensor_method
    handlers.attributes["tensor"] = _tensor_attribute
    handlers.operators.append(loss_arithmetic)
    handlers.item_written.append(_item_written)
