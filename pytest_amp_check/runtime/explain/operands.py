"""The tensors of a failed operation: source text, dtype, and the call that produced each tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...protocol.finding import TraceStep
from ...protocol.optable import find_policy
from ...protocol.source_text import SourceText
from ..record.regions import LOW
from .explanation import RaisedError
from .frames import Frame, Scope
from .naming import qualified_module_name
from .origins import Origin, operand_of_same_dtype, trace_to_call
from .values import MISSING, find_dtype, find_tensor, resolve_expression

#: Translation of class names of modules to op names, such as "Softmax" to "_softmax".
_CAPITALS = str.maketrans({letter: f"_{letter.lower()}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})


#: Code object that runs when a module is called.
_CALL = torch.nn.Module._wrapped_call_impl.__code__


class Operand(NamedTuple):
    """One tensor of an operation. ``is_module_state`` is True for a weight or a buffer of a module."""

    text: str
    dtype: torch.dtype
    value: torch.Tensor | None
    origin: Origin | None
    is_module_state: bool

    @property
    def is_low(self) -> bool:
        return self.dtype in LOW

    @property
    def description(self) -> str:
        return f"{self.text} in {dtype_name(self.dtype)}"


class Operation(NamedTuple):
    """A failed operation: the source text, and the known operands."""

    text: str
    operands: list[Operand]


def dtype_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def failed_operation(raised: RaisedError) -> Operation:
    """Return the operation of the user's code that raised the exception."""
    user = raised.user_frame
    node, scope = user.find_operation(), user.scope
    if node is None or scope is None:
        return Operation("", [])
    callee = _find_called_object(raised, node, scope) if isinstance(node, ast.Call) else MISSING
    if isinstance(node, ast.Call) and isinstance(callee, torch.nn.Module):
        return _module_operation(raised, node, callee, scope)
    frames = raised.frames[: raised.frames.index(user) + 1]
    operands = _known_operands(node, scope, frames)
    operands += _operand_from_message(str(raised.error), node, scope, frames, operands)
    if not operands and raised.frames[-1] is not user and raised.frames[-1].scope is not None:
        inner, inner_scope = raised.frames[-1].find_operation(), raised.frames[-1].scope
        operands = (
            [operand._replace(origin=None) for operand in _known_operands(inner, inner_scope, ())]
            if inner is not None
            else []
        )
    return Operation(_operation_text(node), operands)


def _find_called_object(raised: RaisedError, node: ast.Call, scope: Scope) -> Any:
    """Return the called object, also if its name can no longer be resolved, or MISSING.

    Since Python 3.12 a comprehension is part of its function (PEP 709), and its variables are gone after the exception.
    The frame below the call then still holds a called module. The frame also gives the object behind ``super()``.
    """
    callee = resolve_expression(node.func, scope)
    inner_frames = raised.frames[raised.frames.index(raised.user_frame) + 1 :]
    if callee is MISSING and inner_frames and _runs_module(inner_frames[0]):
        return inner_frames[0].python_frame.f_locals.get("self", MISSING)
    return callee


def _runs_module(call: Frame) -> bool:
    return call.python_frame.f_code is _CALL or (not call.is_user and call.python_frame.f_code.co_name == "forward")


def _operation_text(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return str(SourceText(node.func))
    return str(SourceText(node.targets[0])) if isinstance(node, ast.Assign) else str(SourceText(node))


def _known_operands(node: ast.AST, scope: Scope, frames: Sequence[Frame]) -> list[Operand]:
    """Return the operands with a known dtype."""
    operands = []
    for part in operand_expressions(node, scope):
        operand_dtype = find_dtype(part, scope)
        if operand_dtype is not None and (operand_dtype.is_floating_point or operand_dtype.is_complex):
            value = find_tensor(part, scope)
            is_parameter = isinstance(value, torch.nn.Parameter)
            operands.append(
                Operand(f"`{SourceText(part)}`", operand_dtype, value, Origin(part, scope, frames), is_parameter)
            )
    return operands


def _operand_from_message(
    message: str, node: ast.AST, scope: Scope, frames: Sequence[Frame], known: Sequence[Operand]
) -> list[Operand]:
    """Return the operand whose dtype follows from the error message, as a list of at most one.

    torch must name two dtypes, all other operands must have one of the two, and exactly one operand must be unknown.
    """
    named_dtypes = {kind for words, kind in _NAMED.items() if re.search(rf"\b{words}(?:Tensor)?\b", message)}
    others = named_dtypes - {operand.dtype for operand in known}
    if len(named_dtypes) != 2 or len(others) != 1:
        return []
    texts = {operand.text for operand in known}
    unknown = [
        part
        for part in operand_expressions(node, scope)
        if f"`{SourceText(part)}`" not in texts
        and resolve_expression(part, scope) is MISSING
        and find_dtype(part, scope) is None
    ]
    if len(unknown) != 1:
        return []
    origin = Origin(unknown[0], scope, frames)
    return [Operand(f"`{SourceText(unknown[0])}`", others.pop(), None, origin, is_module_state=False)]


#: Patterns for the names of dtypes in torch's messages.
_NAMED = {
    "(?:Half|c10::Half)": torch.float16,
    "(?:BFloat16|c10::BFloat16)": torch.bfloat16,
    "(?:Float|float)": torch.float32,
    "(?:Double|double)": torch.float64,
}


def operand_expressions(node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """Yield the argument expressions of an operation."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and find_tensor(node.func.value, scope) is not None:
            yield node.func.value
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.AugAssign):
        yield from (node.target, node.value)
    elif isinstance(node, ast.Assign):
        yield from (node.targets[0], node.value)
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand


def _called_module_text(function: ast.expr) -> str:
    """Return the source text of the called module. A call of ``super().forward`` stands for ``self``."""
    is_super = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call)
    return "self" if is_super and str(SourceText(function)).startswith("super(") else str(SourceText(function))


def _module_operation(raised: RaisedError, call: ast.Call, module: torch.nn.Module, scope: Scope) -> Operation:
    """Return the operation of a called module in which torch's own code failed."""
    inner = raised.frames[-1]
    running = next(
        (
            frame.python_frame.f_locals["self"]
            for frame in reversed(raised.frames)
            if not frame.is_user and isinstance(frame.python_frame.f_locals.get("self"), torch.nn.Module)
        ),
        module,
    )
    name = qualified_module_name(running, module, _called_module_text(call.func))
    operands: list[Operand] = []
    node = inner.find_operation() if inner.scope is not None else None
    user = raised.frames.index(raised.user_frame)
    for operand in _known_operands(node, inner.scope, ()) if node is not None and inner.scope is not None else ():
        parameter_name = next(
            (key for key, value in running.named_parameters(recurse=False) if value is operand.value), None
        )
        if parameter_name is not None:
            operands.append(operand._replace(text=f"`{name}.{parameter_name}`", origin=None, is_module_state=True))
            continue
        argument = next((arg for arg in call.args if find_tensor(arg, scope) is operand.value), None)
        if argument is None and running is module and len(call.args) == 1:
            argument = call.args[0]
        origin = None if argument is None else Origin(argument, scope, raised.frames[: user + 1])
        text = f"`{SourceText(argument)}`" if argument is not None else "its input"
        operands.append(operand._replace(text=text, origin=origin, is_module_state=False))
    if not operands:
        # The call failed before any op ran.
        frames = raised.frames[: user + 1]
        operands = [
            Operand(f"`{SourceText(arg)}`", value.dtype, value, Origin(arg, scope, frames), is_module_state=False)
            for arg in call.args
            if (value := find_tensor(arg, scope)) is not None
        ]
        operands += [
            Operand(f"`{name}.{key}`", p.dtype, p, None, is_module_state=True) for key, p in running.named_parameters()
        ][:1]
    return Operation(str(SourceText(call.func)) if name == "self" else name, operands)


# Origins of operands.


class ProducingCall(NamedTuple):
    """The call that produced an operand, with the reason for its dtype if known."""

    text: str
    trace_step: TraceStep


def find_producing_call(operand: Operand, line: int, *, autocast: bool) -> ProducingCall | None:
    """Return the call that produced an operand, or None. ``autocast`` is True if the run entered autocast."""
    if operand.origin is None:
        return None
    origins = trace_to_call(operand.origin, line)
    if not origins or (origins[-1].node is operand.origin.node and isinstance(operand.origin.node, ast.Name)):
        return None
    origin = origins[-1]
    node = origin.node
    while (operand_node := operand_of_same_dtype(node, origin.scope)) is not None and not isinstance(
        operand_node, ast.Name
    ):
        node = operand_node
    if find_dtype(node, origin.scope) not in (None, operand.dtype):
        # The name was assigned again later, for example by a cast back.
        return None
    text = f"`{SourceText(node)}`"
    site = origin.scope.site_of_node(node)
    reason = _explain_dtype(node, origin.scope, operand.dtype, autocast=autocast)
    if text == operand.text and not reason:
        # The trace already shows the operand where it was produced.
        return None
    return ProducingCall(f"{text}{reason}", TraceStep(site, f"{operand.text} comes out in {dtype_name(operand.dtype)}"))


def _explain_dtype(node: ast.expr, scope: Scope, result_dtype: torch.dtype, *, autocast: bool) -> str:
    """Return the reason for the dtype of a call's result: the autocast policy of the op, or the dtype of weights."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and result_dtype in LOW:
        return f", which autocast runs in {dtype_name(result_dtype)}" if autocast else ""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        inner = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if autocast else []
        calls = [each for each in inner if _explain_dtype(each, scope, result_dtype, autocast=autocast)]
        return f", where autocast runs `{SourceText(calls[0].func)}` in {dtype_name(result_dtype)}" if calls else ""
    if not isinstance(node, ast.Call):
        return ""
    callee = resolve_expression(node.func, scope)
    if isinstance(callee, torch.nn.Module):
        weight_dtypes = {p.dtype for p in callee.parameters()}
        if weight_dtypes == {result_dtype} and result_dtype in LOW:
            return f", whose weights are in {dtype_name(result_dtype)}"
        if weight_dtypes == {torch.float32} and result_dtype in LOW and autocast:
            return f", which autocast runs in {dtype_name(result_dtype)}"
        name = type(callee).__name__
    else:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else str(SourceText(node.func))
    cast = find_policy("cuda", name.translate(_CAPITALS).lstrip("_")) if autocast else ""
    if (cast == "low" and result_dtype in LOW) or (cast.startswith("fp32") and result_dtype is torch.float32):
        return f", which autocast runs in {dtype_name(result_dtype)}"
    return ""
