"""The tensors that a failing operation was given: what the program calls them, their dtypes, and who made them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...protocol.finding import Step
from ...protocol.optable import policy
from ...protocol.words import Words
from ..record.regions import LOW
from .explanation import Raised
from .frames import Frame, Scope
from .naming import module_named
from .origins import Origin, made, through
from .values import MISSING, dtype, resolve, tensor

#: Ops that their names stand for, where modules have names of their own.
_CAPITALS = str.maketrans({letter: f"_{letter.lower()}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"})


#: What runs where a module is called.
_CALL = torch.nn.Module._wrapped_call_impl.__code__


class Operand(NamedTuple):
    """One tensor of an operation; ``held`` says that a module has it, as its weight or a buffer."""

    text: str
    dtype: torch.dtype
    value: torch.Tensor | None
    origin: Origin | None
    held: bool

    @property
    def is_low(self) -> bool:
        return self.dtype in LOW

    @property
    def words(self) -> str:
        return f"{self.text} in {dtype_name(self.dtype)}"


class Operation(NamedTuple):
    """What failed: the words for it, and its operands as far as they are known."""

    text: str
    operands: list[Operand]


def dtype_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def operation(raised: Raised) -> Operation:
    """What the program did when it was stopped."""
    user = raised.user
    node, scope = user.operation(), user.scope
    if node is None or scope is None:
        return Operation("", [])
    called = _called(raised, node, scope) if isinstance(node, ast.Call) else MISSING
    if isinstance(node, ast.Call) and isinstance(called, torch.nn.Module):
        return _of_module(raised, node, called, scope)
    frames = raised.frames[: raised.frames.index(user) + 1]
    found = _known(node, scope, frames)
    found += _by_the_message(str(raised.error), node, scope, frames, found)
    if not found and raised.frames[-1] is not user and raised.frames[-1].scope is not None:
        inner, within = raised.frames[-1].operation(), raised.frames[-1].scope
        found = [operand._replace(origin=None) for operand in _known(inner, within, ())] if inner is not None else []
    return Operation(_words(node), found)


def _called(raised: Raised, node: ast.Call, scope: Scope) -> Any:
    """What was called, also where its name is known no more.

    Since Python 3.12 a comprehension is part of the function that it stands in (PEP 709), and its variables are gone
    with the exception. A module that was called is held by the call below. Before 3.11 only the line of a call is
    known, so that the one below may belong to another call in it. What ``super()`` gives is known by the call, too.
    """
    called = resolve(node.func, scope)
    below = raised.frames[raised.frames.index(raised.user) + 1 :]
    if called is MISSING and below and _runs_module(below[0]) and sys.version_info >= (3, 11):
        return below[0].frame.f_locals.get("self", MISSING)
    return called


def _runs_module(call: Frame) -> bool:
    return call.frame.f_code is _CALL or (not call.is_user and call.frame.f_code.co_name == "forward")


def _words(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return str(Words(node.func))
    return str(Words(node.targets[0])) if isinstance(node, ast.Assign) else str(Words(node))


def _known(node: ast.AST, scope: Scope, frames: Sequence[Frame]) -> list[Operand]:
    """The operands of which the dtype is known."""
    found = []
    for part in parts(node, scope):
        kind = dtype(part, scope)
        if kind is not None and (kind.is_floating_point or kind.is_complex):
            value = tensor(part, scope)
            held = isinstance(value, torch.nn.Parameter)
            found.append(Operand(f"`{Words(part)}`", kind, value, Origin(part, scope, frames), held))
    return found


def _by_the_message(
    message: str, node: ast.AST, scope: Scope, frames: Sequence[Frame], known: Sequence[Operand]
) -> list[Operand]:
    """The one operand of which the dtype is not known, where torch names two and all others have one of them."""
    named = {kind for words, kind in _NAMED.items() if re.search(rf"\b{words}(?:Tensor)?\b", message)}
    others = named - {operand.dtype for operand in known}
    if len(named) != 2 or len(others) != 1:
        return []
    texts = {operand.text for operand in known}
    unknown = [
        part
        for part in parts(node, scope)
        if f"`{Words(part)}`" not in texts and resolve(part, scope) is MISSING and dtype(part, scope) is None
    ]
    if len(unknown) != 1:
        return []
    origin = Origin(unknown[0], scope, frames)
    return [Operand(f"`{Words(unknown[0])}`", others.pop(), None, origin, held=False)]


#: What torch calls dtypes in its messages.
_NAMED = {
    "(?:Half|c10::Half)": torch.float16,
    "(?:BFloat16|c10::BFloat16)": torch.bfloat16,
    "(?:Float|float)": torch.float32,
    "(?:Double|double)": torch.float64,
}


def parts(node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    """The expressions that an operation is given."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and tensor(node.func.value, scope) is not None:
            yield node.func.value
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
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


def _called_by(function: ast.expr) -> str:
    """The words for the module that is called; its own forward, which ``super()`` gives, is that of ``self``."""
    is_super = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call)
    return "self" if is_super and str(Words(function)).startswith("super(") else str(Words(function))


def _of_module(raised: Raised, call: ast.Call, module: torch.nn.Module, scope: Scope) -> Operation:
    """A module was called, and one that it holds has failed in torch's own code."""
    inner = raised.frames[-1]
    running = next(
        (
            frame.frame.f_locals["self"]
            for frame in reversed(raised.frames)
            if not frame.is_user and isinstance(frame.frame.f_locals.get("self"), torch.nn.Module)
        ),
        module,
    )
    name = module_named(running, module, _called_by(call.func))
    found: list[Operand] = []
    node = inner.operation() if inner.scope is not None else None
    user = raised.frames.index(raised.user)
    for operand in _known(node, inner.scope, ()) if node is not None and inner.scope is not None else ():
        own = next((key for key, value in running.named_parameters(recurse=False) if value is operand.value), None)
        if own is not None:
            found.append(operand._replace(text=f"`{name}.{own}`", origin=None, held=True))
            continue
        given = next((arg for arg in call.args if tensor(arg, scope) is operand.value), None)
        if given is None and running is module and len(call.args) == 1:
            given = call.args[0]
        origin = None if given is None else Origin(given, scope, raised.frames[: user + 1])
        text = f"`{Words(given)}`" if given is not None else "its input"
        found.append(operand._replace(text=text, origin=origin, held=False))
    if not found:
        # It was refused before any op ran.
        frames = raised.frames[: user + 1]
        found = [
            Operand(f"`{Words(arg)}`", value.dtype, value, Origin(arg, scope, frames), held=False)
            for arg in call.args
            if (value := tensor(arg, scope)) is not None
        ]
        found += [Operand(f"`{name}.{key}`", p.dtype, p, None, held=True) for key, p in running.named_parameters()][:1]
    return Operation(str(Words(call.func)) if name == "self" else name, found)


# Where an operand came from.


class Made(NamedTuple):
    """The call that made an operand, and why it gave the dtype that it has, where that is known."""

    text: str
    step: Step


def came_from(operand: Operand, line: int, *, autocast: bool) -> Made | None:
    """The call that an operand comes from, in a run that has entered autocast or not."""
    if operand.origin is None:
        return None
    chain = made(operand.origin, line)
    if not chain or (chain[-1].node is operand.origin.node and isinstance(operand.origin.node, ast.Name)):
        return None
    origin = chain[-1]
    node = origin.node
    while (below := through(node, origin.scope)) is not None and not isinstance(below, ast.Name):
        node = below
    words = f"`{Words(node)}`"
    site = origin.scope.site(node)
    why = _why(node, origin.scope, operand.dtype, autocast=autocast)
    if words == operand.text and not why:
        # The operand is where it was made, and is shown already.
        return None
    return Made(f"{words}{why}", Step(site, f"{operand.text} comes out in {dtype_name(operand.dtype)}"))


def _why(node: ast.expr, scope: Scope, kind: torch.dtype, *, autocast: bool) -> str:
    """Why a call gave a dtype, where it is what autocast does with such an op, or its weights have it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and kind in LOW:
        return f", which autocast runs in {dtype_name(kind)}" if autocast else ""
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        inner = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if autocast else []
        calls = [each for each in inner if _why(each, scope, kind, autocast=autocast)]
        return f", where autocast runs `{Words(calls[0].func)}` in {dtype_name(kind)}" if calls else ""
    if not isinstance(node, ast.Call):
        return ""
    called = resolve(node.func, scope)
    if isinstance(called, torch.nn.Module):
        held = {p.dtype for p in called.parameters()}
        if held == {kind} and kind in LOW:
            return f", whose weights are in {dtype_name(kind)}"
        if held == {torch.float32} and kind in LOW and autocast:
            return f", which autocast runs in {dtype_name(kind)}"
        name = type(called).__name__
    else:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else str(Words(node.func))
    cast = policy("cuda", name.translate(_CAPITALS).lstrip("_")) if autocast else ""
    if (cast == "low" and kind in LOW) or (cast.startswith("fp32") and kind is torch.float32):
        return f", which autocast runs in {dtype_name(kind)}"
    return ""
