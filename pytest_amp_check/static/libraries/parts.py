"""Casts of a module part by part: of submodules in a loop or by ``apply``, and of parameters through ``.data``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial

from ...protocol import events as e
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import run_branches
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.values.containers import SequenceValue
from ..interpreter.values.definitions import FunctionValue
from ..interpreter.values.value import UnknownValue, Value
from ..project.relevance import LOW_DTYPE_NAMES
from .low_parameters import AdapterConditions, CastCopies, do_nothing, find_low_dtypes, mark_cast_to_float32, set_low

#: Methods that iterate over the submodules of a module, with True for pairs of a name and a submodule.
SUBMODULES = {"modules": False, "children": False, "named_modules": True, "named_children": True}
_LOW = ("float16", "bfloat16")


class _ModuleParts(dict[int, int]):
    """Modules to which submodules belong: key of the module, by the key of the value of a submodule."""


def list_submodules(interp: Interpreter, module: TrackedObject, name: str, node: ast.AST) -> Value:
    """Return the submodules of a module, for which one value stands."""
    part = _make_part(interp, module, node)
    return SequenceValue([SequenceValue([interp.fresh_unknown(node, "name"), part]) if SUBMODULES[name] else part])


def apply_to_parts(interp: Interpreter, module: TrackedObject, function: Value, node: ast.AST) -> None:
    """Model ``module.apply(function)`` for a function that may cast: torch calls the function with each submodule."""
    if isinstance(function, FunctionValue) and not LOW_DTYPE_NAMES.isdisjoint(function.function.used_names):
        interp.call_value(function, [_make_part(interp, module, node)], {}, node)


def _make_part(interp: Interpreter, module: TrackedObject, node: ast.AST) -> UnknownValue:
    made = interp.fresh_unknown(node, "part")
    interp.file_data(_ModuleParts)[made.key] = module.key
    return made


def cast_part(interp: Interpreter, receiver: Value, dtype: str, node: ast.AST) -> Value | None:
    """Emit the cast of a submodule and return the submodule, or None for another value."""
    key = interp.file_data(_ModuleParts).get(receiver.key) if isinstance(receiver, UnknownValue) else None
    if key is None:
        return None
    _emit_cast(interp, key, dtype, node, node)
    return receiver


def cast_part_to(interp: Interpreter, receiver: Value, args: Iterable[Value], node: ast.AST) -> Value | None:
    """Model ``part.to(...)``. Return None if the receiver is no submodule, or no argument may be a low dtype."""
    key = interp.file_data(_ModuleParts).get(receiver.key) if isinstance(receiver, UnknownValue) else None
    chosen = find_low_dtypes(interp, args)[:1] if key is not None else []
    for dtype, condition in chosen:
        run_branches(interp, condition, partial(cast_part, interp, receiver, dtype, node), do_nothing)
    return receiver if chosen else None


def write_data(interp: Interpreter, modules: Iterable[int], value: Value, target: ast.AST) -> None:
    """Emit the cast of the modules whose parameters receive a copy in another dtype: ``p.data = p.data.half()``."""
    cast = interp.file_data(CastCopies).get(value.key) if isinstance(value, UnknownValue) else None
    if cast is not None:
        dtype, made = cast
        for key in modules:
            _emit_cast(interp, key, dtype, made, target)


def _set_unknown_attribute(
    interp: Interpreter, receiver: UnknownValue, name: str, value: Value, target: ast.Attribute
) -> bool:
    """Emit the cast of a submodule's parameter: ``part.weight.data = part.weight.data.half()``."""
    parts = interp.file_data(_ModuleParts)
    if name == "data" and receiver.owner_key in parts:
        write_data(interp, (parts[receiver.owner_key],), value, target)
    elif name == "data" and isinstance(value, UnknownValue):
        dtype, _ = interp.file_data(CastCopies).get(value.key, ("", None))
        if dtype == "float32":
            # The parameter of a list of models may be one of the adapters, which this idiom is for.
            mark_cast_to_float32(interp, frozenset(interp.file_data(AdapterConditions)))
    return False


class _CastsByFunction(set[tuple[int, str, object]]):
    """Modules with the dtypes and the functions that cast the modules part by part."""


def _emit_cast(interp: Interpreter, key: int, dtype: str, cast: ast.AST, node: ast.AST) -> None:
    """Emit the cast of a module by a cast of a part: one event stands for all parts that a function casts."""
    function = interp.state.frame.function
    known = interp.graph_data(_CastsByFunction)
    if (key, dtype, function) in known:
        return
    known.add((key, dtype, function))
    module = interp.program.objects[key]
    if dtype in _LOW:
        set_low(interp, module, dtype)
    else:
        module.attributes.dtypes = module.attributes.dtypes._replace(low="")
        mark_cast_to_float32(interp, interp.program.with_submodules(frozenset((key,))))
    names = {"module": receiver_text(cast), "call": expression_text(cast)}
    interp.emit(e.ModuleCast, node, key, dtype=dtype, names=names)


def register(handlers: HandlerTable) -> None:
    handlers.attribute_writes["unknown"] = _set_unknown_attribute
