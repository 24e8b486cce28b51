"""Functions that torch.compile is given, with parts that switch autocast off."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import surface
from ..interpreter.functions import follow
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import foreign_tensor, in_region, mark_region
from ..interpreter.values import Args, FunctionValue, Keywords, Tensor, Value
from ..interpreter.wording import wording
from .arguments import first_of
from .distributed import ISLAND, multiplies_without
from .modules import wrap_module


class CompiledFunction(FunctionValue):
    """A compiled function that multiplies matrices where it has switched autocast off."""

    kind = "compiled function"

    __slots__ = ()


def _compile(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = wrap_module(at, entry, args, keywords, node)
    inner = first_of(args, keywords, entry.parameters[0])
    if isinstance(inner, FunctionValue) and multiplies_without(inner.function.node, inner.function.module):
        return CompiledFunction(inner.function, inner.frame, inner.receiver, inner.wrappers)
    return made


def _call(at: Interpreter, func: CompiledFunction, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """What it gives is from a forward whose backward takes the region around this call for its own."""
    value = follow(at, func, args, keywords, node)
    if not in_region(at):
        return value
    thing = at.thing(("compiled", at.place_key(node)), "module", "", at.site(node))
    thing.facts.update(compiled=True, kind=ISLAND)
    parts = list(value.tensors())
    made = Tensor.merge(parts) if parts else foreign_tensor(value)
    made.forward = at.emit(e.FORWARD, node, thing.key, cached=False, names={"module": wording(node)})
    mark_region(at, made)
    return made


def register(handlers: Handlers) -> None:
    handlers.roles[surface.COMPILE] = _compile
    handlers.calls[CompiledFunction.kind] = _call
    handlers.methods[CompiledFunction.kind] = handlers.methods[FunctionValue.kind]
