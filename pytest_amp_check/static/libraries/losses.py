"""Losses: what a tensor is computed from, under which regions, and what running it backward reaches."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Iterable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import Words
from ..interpreter.conditions import either
from ..interpreter.dtypes import is_low
from ..interpreter.expressions import Expressions, undo
from ..interpreter.microbatches import PIECES
from ..interpreter.values import (
    NONE,
    Choice,
    Const,
    Divisor,
    Grad,
    Named,
    Opaque,
    Params,
    Ref,
    ScaleValue,
    Tensor,
    Value,
    tensors_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Tensor methods that end a tensor's use as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Tensor methods that keep by what a loss was divided.
LINEAR = frozenset("mean sum float double clone squeeze".split())


class Losses(Expressions):
    """Reads what is done to tensors that losses are made of."""

    @abstractmethod
    def replicated(self, thing: Thing, node: ast.AST) -> None: ...

    @abstractmethod
    def averaged_over(self, tensor: Tensor) -> Thing | None: ...

    @abstractmethod
    def ran(self, thing: Thing, node: ast.AST) -> None: ...

    @abstractmethod
    def cast_for(self, tensor: Tensor) -> None: ...

    @abstractmethod
    def compiled_backward(self, tensor: Tensor, node: ast.AST) -> None: ...

    def in_region(self) -> bool:
        """Whether an autocast region may be enabled where this is read."""
        return any(region.enabled is not False for region in self.state.open)

    def _mark_region(self, made: Tensor) -> None:
        """Record under which regions a tensor was computed."""
        region = next((r for r in reversed(self.state.open) if r.device != "null"), None)
        if region is not None and region.enabled is not False:
            made.autocast = "in"
            known = region.dtype if region.enabled is True and region.dtype else "?"
            made.dtypes = made.dtypes | {known}
            made.device = region.device
            made.low = region.dtype or "?"
        elif self.state.maybe_open:
            made.autocast = "unknown"
            made.dtypes = made.dtypes | {"?"}
        elif region is None or not made.autocast:
            made.autocast = "out"

    def _computed(self, parts: list[Tensor]) -> Tensor:
        made = Tensor.merge(parts)
        made.divisors, made.factors = frozenset(), frozenset()
        made.loops |= self.turning()
        made.in_region = self.in_region()
        if made.in_region and not made.autocast:
            self._mark_region(made)
        return made

    def low_result(self, op: str, operands: list[Value]) -> Tensor:
        """What an op gives that autocast runs in low precision, on some devices at least."""
        tensors = [tensor for value in operands for tensor in tensors_of(value)]
        made = self._computed(tensors) if tensors else self._foreign_tensor(None)
        made.matmul = is_low(op, self._region_device())
        if made.matmul and self.in_region():
            self._mark_region(made)
        return made

    def _region_device(self) -> str:
        """The type of device of the innermost region, "" where there is none, or it is not known."""
        return next((region.device for region in reversed(self.state.open) if region.device != "null"), "")

    def _foreign_tensor(self, value: Value | None) -> Tensor:
        """A loss of which only the name is known."""
        made = Tensor(value.loops if value is not None else frozenset())
        made.deps = None
        made.opaque = isinstance(value, Opaque) and (value.parameter or value.graded)
        made.vague = not (isinstance(value, Opaque) and value.compares)
        made.divided = value is not None and value.divided
        if isinstance(value, Opaque):
            made.divisors, made.factors = value.divisors, value.factors
        made.autocast = "unknown"
        made.module_read = False
        return made

    def _forward(self, thing: Thing, args: list[Value], keywords: dict[str, Value], node: ast.AST, read: bool) -> Value:
        """The value of a module's forward."""
        self.hand_off([*args, *keywords.values()], node)
        cached = not (thing.facts.get("compiled") or thing.facts.get("low"))
        made = Tensor(self.turning())
        made.forward = self.emit(e.FORWARD, node, thing.key, cached=cached, names={"module": self.words(node)})
        self.replicated(thing, node)
        self.ran(thing, node)
        parts = [t for value in [*args, *keywords.values()] for t in tensors_of(value)]
        deps: frozenset[int] | None = frozenset((thing.key,))
        made.ran = self.turning()
        for part in parts:
            made.ran |= part.ran
            deps = None if deps is None or part.deps is None else deps | part.deps
            made.penalty = made.penalty or part.penalty
        made.deps = frozenset() if self.state.no_grad else deps
        made.module_read = read and all(part.module_read for part in parts)
        made.matmul = True
        self._mark_region(made)
        made.in_region = False
        return made

    def _loss(self, facts: dict[str, object], args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        parts = [t for value in [*args, *keywords.values()] for t in tensors_of(value)]
        low, promotes = "", facts.get("promotes")
        first = next(iter(tensors_of(args[0])), None) if args else None
        if (
            first is not None
            and first.low
            and not (self.in_region() or self.state.maybe_open or self.state.no_grad or promotes)
        ):
            low = first.low if first.low in ("float16", "bfloat16") else ""
        self.emit(
            e.LOSS,
            node,
            function=facts.get("kind"),
            low_precision=low,
            ambient=None if self.state.open else self.state.ambient,
            names={
                "call": self.words(node),
                "loss": Words(node.args[0]) if isinstance(node, ast.Call) and node.args else "",
            },
        )
        made = self._computed(parts) if parts else Tensor(self.turning())
        if not parts:
            made.deps = None
            made.autocast = "in" if self.in_region() else "unknown"
            made.module_read = False
            made.in_region = self.in_region()
        if self.state.no_grad:
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

    def _tensor_method(
        self, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "backward":
            self._backward(tensor, node, first_given(args, keywords))
            return NONE
        if name in TO_NUMBER:
            return self.fresh(node, name)
        made = self._computed([tensor, *(t for v in args for t in tensors_of(v))])
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
            result = self.operate("*" if name.startswith("mul") else "/", tensor, args[0] if args else NONE, node)
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
            self._fill(name, args[-1] if args else keywords.get("value"), tensor, node)
        elif is_low(name, self._region_device()):
            made.matmul = True
        if name in LINEAR and not args:
            made.divisors, made.factors = tensor.divisors, tensor.factors
        return made

    def _backward(self, tensor: Tensor, node: ast.AST, gradient: Value | None = None) -> None:
        """A tensor runs backward, from ones or from a gradient that is given, which may be scaled already."""
        names = {"loss": self.receiver_words(node), "call": self.words(node)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            if isinstance(inner, ast.Call) and inner.args:
                names["loss"] = Words(inner.args[0])
                if isinstance(inner.func, ast.Attribute):
                    names["scaler"] = Words(inner.func.value)
        if tensor.penalty is not None:
            self._penalty(tensor, node)
        self.compiled_backward(tensor, node)
        self.cast_for(tensor)
        scaler = tensor.scaler if tensor.scaler >= 0 else None
        replicated = self.averaged_over(tensor)
        if replicated is not None:
            names["module"] = replicated.name
        facts = {
            "averaged": replicated.facts["wrapped"]["ddp"] if replicated is not None else None,
            "feeds": self._fed(tensor),
            "divided": tensor.divided or tensor.opaque or gradient is not None,
            "vague": tensor.vague,
            "opaque": scaler is None and (tensor.opaque or gradient is not None),
            "scaled": scaler is not None,
            "uneven": scaler is not None and tensor.uneven,
            "dtypes": tensor.dtypes,
            "device": tensor.device,
            "custom": tensor.custom,
            "names": names,
        }
        self.fork(
            either(*self.state.apart),
            lambda: self._emit_backward(node, scaler, {**facts, "apart": True}),
            lambda: self._emit_backward(node, scaler, dict(facts)),
        )

    def _emit_backward(self, node: ast.AST, scaler: int | None, facts: dict[str, Any]) -> None:
        self.emit(e.BACKWARD, node, scaler, **facts)

    def _penalty(self, tensor: Tensor, node: ast.AST) -> None:
        penalty = tensor.penalty
        tensor.penalty = None
        if isinstance(penalty, tuple):
            place, names = penalty
            self.emit(e.PENALTY, place, None, None, names=names)

    def _fill(self, function: str, value: Value | None, tensor: Tensor, node: ast.AST) -> None:
        number = value.value if isinstance(value, Const) and isinstance(value.value, (int, float)) else None
        if number is None:
            return
        self.emit(
            e.FILL,
            node,
            value=float(number),
            function=function,
            eligible=(tensor.matmul or bool(tensor.low)) and tensor.dtypes != {"bfloat16"},
            names={"call": self.words(node)},
        )

    def _whole(self, keys: frozenset[int]) -> frozenset[int]:
        """Modules with the modules that are parts of them."""
        whole, todo = set(keys), list(keys)
        while todo:
            for part in self.program.things[todo.pop()].facts.get("parts", ()):
                if part not in whole:
                    whole.add(part)
                    todo.append(part)
        return frozenset(whole)

    def _fed(self, tensor: Tensor) -> tuple[int, ...] | None:
        """The optimizers whose gradients a backward reaches, where the modules tell."""
        if tensor.deps is None:
            return None
        fed = []
        for thing in self.program.things:
            if thing.role == "optimizer":
                owns = thing.facts.get("owns")
                if owns is None:
                    return None
                if self._whole(owns) & self._whole(tensor.deps):
                    fed.append(thing.key)
        return tuple(fed) if fed else None

    def _owners(self, params: Params) -> tuple[int, ...] | None:
        """The optimizers that update parameters; None where that is not known."""
        if params.optimizers:
            return tuple(params.optimizers)
        if params.modules is None:
            return None
        owners = []
        for thing in self.program.things:
            if thing.role == "optimizer":
                owns = thing.facts.get("owns")
                if owns is None:
                    return None
                if self._whole(owns) & self._whole(params.modules):
                    owners.append(thing.key)
        return tuple(owners) if owners else None

    def _all_optimizers(self) -> tuple[int, ...]:
        return tuple(thing.key for thing in self.program.things if thing.role == "optimizer")

    def loss_arithmetic(self, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
        """What an operator makes of a loss, of gradients or of the loss scale."""
        for side in (left, right):
            if isinstance(side, Choice) and any(isinstance(v, (Tensor, ScaleValue)) for _, v in side.options):
                other = right if side is left else left

                def act(value: Value, side: Value = side, other: Value = other) -> Value:
                    return self.operate(op, value if side is left else other, other if side is left else value, node)

                return self.on_each(side, act)
        if isinstance(right, ScaleValue) and op == "/" and isinstance(left, Const):
            return ScaleValue(right.scaler, inverse=not right.inverse)
        scale = left if isinstance(left, ScaleValue) else right if isinstance(right, ScaleValue) else None
        if scale is not None:
            value = right if scale is left else left
            undone = scale.inverse if op == "*" else op == "/" and scale is right and not scale.inverse
            if isinstance(value, Grad):
                return Grad(value.params, unscaled=undone)
            tensors = tensors_of(value)
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
        if isinstance(left, Grad) or isinstance(right, Grad):
            return left if isinstance(left, Grad) else right
        parts = [*tensors_of(left), *tensors_of(right)]
        if op == "@" and not parts:
            return self.low_result("matmul", [left, right])
        if not parts:
            return None
        made = self._computed(parts)
        made.opaque = made.opaque or is_graded((left, right))
        if op == "/" and isinstance(left, Tensor) and isinstance(right, Tensor) and left.penalty and right.penalty:
            made.penalty = None
        if op == "@":
            made.matmul = True
        elif any(isinstance(side, Ref) and side.thing.facts.get("wide") for side in (left, right)):
            made.low, made.matmul = "", False
        if op == "/" and isinstance(left, Tensor):
            made.divided = True
            if not isinstance(right, Tensor):
                self.divide(made, left, right, node)
        elif op == "*" and (not isinstance(left, Tensor) or not isinstance(right, Tensor)):
            factor = right if isinstance(left, Tensor) else left
            if len(parts) == 1:
                self.multiply(made, parts[0], factor)
            if isinstance(factor, Const):
                made.divided = made.divided or factor.divided or _is_share(factor.value)
            else:
                # A weight of which only the name is known may well be 1 / k, but those of a criterion's parts are not.
                made.divided = made.divided or factor.divided or not self.state.forwards
        elif op in ("+", "-"):
            made.uneven = made.uneven or is_uneven(parts)
            made.divided = all(p.divided for p in parts)
            made.divisors = frozenset.intersection(*(p.divisors for p in parts))
        return made

    def divide(self, made: Tensor | Opaque, value: Tensor | Opaque, number: Value, node: ast.AST) -> None:
        """Remember by what a value is divided; a division by what it was multiplied by before only undoes that."""
        made.divisors, made.factors = value.divisors, value.factors
        key = self.number_key(number)
        words = _divisor(node)
        if key in value.factors:
            made.factors = value.factors - {key}
        elif not _is_small(number, words):
            made.divisors = value.divisors | {Divisor(key, Words(words) if words else "", self.site(node))}

    def multiply(self, made: Tensor | Opaque, value: Tensor | Opaque, number: Value) -> None:
        """Forget by what a value was divided where it is multiplied by that, or remember by what it is multiplied."""
        key = self.number_key(number)
        made.divisors = frozenset(divisor for divisor in value.divisors if divisor.key != key)
        made.factors = value.factors if made.divisors != value.divisors else value.factors | {key}

    def number_key(self, number: Value) -> object:
        """What identifies a number by which losses are divided."""
        if isinstance(number, Const) and isinstance(number.value, (int, float)):
            return ("const", repr(float(number.value)))
        return self.identity(number)


def _is_small(number: Value, written: ast.expr | None) -> bool:
    """Whether a number is one, or the two that stands in a mean of two losses."""
    if not isinstance(number, Const) or not isinstance(number.value, (int, float)):
        return False
    return number.value <= 1 or (number.value <= 2 and isinstance(written, ast.Constant))


def _divisor(node: ast.AST) -> ast.expr | None:
    """The right side of a division."""
    if isinstance(node, ast.BinOp):
        return node.right
    if isinstance(node, ast.AugAssign):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None


def is_graded(values: Iterable[Value]) -> bool:
    """Whether something is computed with the gradient of a tensor, which may hold the loss scale or not."""
    return any(isinstance(value, Opaque) and value.graded for value in values)


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


def first_given(args: list[Value], keywords: dict[str, Value]) -> Value | None:
    """The gradient that a backward is given, if it is given one."""
    given = args[0] if args else keywords.get("gradient", keywords.get("grad_tensors"))
    return None if isinstance(given, Const) else given


def _is_share(factor: object) -> bool:
    """Whether a number is one over another, as the weight of one of several equal parts is."""
    if not isinstance(factor, float) or not 0 < factor <= 0.5:
        return False
    return abs(1 / factor - round(1 / factor)) < 1e-6
