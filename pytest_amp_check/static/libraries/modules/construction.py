"""Constructed modules of torch: layers, containers and parameters."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import partial

from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.values.containers import MappingValue, SequenceValue
from ...interpreter.values.definitions import Args, Instance, Keywords
from ...interpreter.values.objects import ModuleContainer, ObjectRef
from ...interpreter.values.value import UnknownValue, Value
from ..arguments import make_object, tracked_object_of
from ..low_parameters import do_nothing, emit_created_low, emit_low_by_default, find_low_dtypes
from ..sizes import note_odd_sides
from ..syntax_queries import callee_of, first_argument, keywords_of, last_name
from .forwards import is_analyzed

#: Maximum number of modules in a container that are known.
MAX_ITEMS = 16
#: Name prefixes of module classes that create parameters in the default dtype.
WITH_WEIGHTS = ("Linear", "Bilinear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "Transformer", "MultiheadAttention")


def make_torch_module(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = args[0] if len(args) == 1 else None
    held = (
        given.items
        if isinstance(given, SequenceValue)
        else list(given.items.values())
        if isinstance(given, MappingValue)
        else args
    )
    parts = [v for v in held if isinstance(v, (ObjectRef, Instance))]
    tracked_object = make_object(interp, "module", node)
    kind = name.rpartition(".")[2]
    last = args[-1] if kind == "Sequential" and args else None
    made = tracked_object.attributes
    made.read = all(map(is_analyzed, parts))
    made.kind = last.tracked_object.attributes.kind if isinstance(last, ObjectRef) else kind
    made.parts = {part.tracked_object.key for part in parts if part.tracked_object is not None}
    made.shape = made.shape._replace(
        is_float32_parameter=kind == "Parameter"
        and all(isinstance(value, UnknownValue) and value.is_new_float32 for value in args),
        has_dimensions=kind == "Parameter" and _has_dimensions(node),
    )
    if "dtype" in keywords:
        for dtype, condition in find_low_dtypes(interp, [keywords["dtype"]])[:1]:
            create = partial(emit_created_low, interp, tracked_object, dtype, node)
            run_branches(interp, condition, create, do_nothing)
    elif kind.startswith(WITH_WEIGHTS):
        emit_low_by_default(interp, tracked_object)
    note_odd_sides(tracked_object, kind, args, keywords, node)
    ordered = kind in ("Sequential", "ModuleList") and len(parts) == len(held)
    return ModuleContainer(tracked_object, held) if ordered else ObjectRef(tracked_object)


def add_items(container: ModuleContainer, added: Collection[Value]) -> None:
    """Add modules to a container. Several rounds of a loop add the same modules."""
    attributes = container.tracked_object.attributes
    container.items = [*container.items, *added][:MAX_ITEMS]
    parts = (tracked_object_of(value) for value in added)
    attributes.parts = {*(attributes.parts or ()), *(part.key for part in parts if part is not None)}


def _has_dimensions(node: ast.AST) -> bool:
    """Return True if a parameter is created from a float32 tensor with a dimension.

    Such a parameter promotes every low-precision operand to float32.
    """
    made = first_argument(node)
    first = first_argument(made)
    if made is None or first is None or "dtype" in keywords_of(made):
        return False
    kind = last_name(callee_of(made))
    if kind in ("Tensor", "FloatTensor", "tensor"):
        return isinstance(first, ast.List) and bool(first.elts)
    empty = isinstance(first, (ast.List, ast.Tuple)) and not first.elts
    return kind in ("ones", "zeros", "rand", "randn", "empty", "full") and not empty
