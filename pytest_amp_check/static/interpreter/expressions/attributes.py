"""Attributes and items of values."""

from __future__ import annotations

import ast

from ...project.assignments import item_name
from ..dtypes import DtypeInfo, is_known_low
from ..identity import Operation, structural_unknown
from ..interpreter import Interpreter
from ..source_text import expression_text, short_text_or
from ..values.containers import MappingValue, SequenceValue
from ..values.definitions import ExternalName, Instance
from ..values.tensors import TensorValue
from ..values.value import NO_CONSTANT, NO_ORIGIN, NONE, UnknownValue, Value, join_provenance
from .names import recognize_object
from .tables import select_from_table

#: Attributes, methods and functions that return an amount of data.
DATA_SIZE_NAMES = frozenset("shape size numel nelement len sum count_nonzero".split())


#: Dtypes that an attribute of a tensor may be, so that a branch for another dtype is not taken.
_DTYPE_NAMES = frozenset(("float16", "bfloat16", "float32"))


def _has_known_dtype(interp: Interpreter, info: DtypeInfo) -> bool:
    """Return True if the dtype of a tensor is known, or follows from the assumption about inputs."""
    return info.dtype in _DTYPE_NAMES and (bool(interp.assumed_dtype) or is_known_low(info))


def evaluate_attribute(interp: Interpreter, node: ast.Attribute) -> Value:
    receiver = interp.evaluate(node.value)
    value = attribute_of(interp, receiver, node.attr, node)
    if node.attr == "dtype" and _has_known_dtype(interp, receiver.dtype_info):
        return ExternalName(f"torch.{receiver.dtype_info.dtype}")
    if node.attr not in interp.state.frame.module.role_names:
        return value
    return recognize_object(interp, value, node, node.attr)


def attribute_of(interp: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value:
    """Return the value of an attribute."""
    handler = interp.handlers.attributes.get(receiver.kind)
    found = handler(interp, receiver, name, node) if handler is not None else None
    key = receiver.identity_key(interp.unique_number) if found is None or isinstance(receiver, TensorValue) else None
    stored = interp.state.heap.get((key, name)) if isinstance(key, int) else None
    if found is not None:
        # The result of a model may be an object with a loss in an attribute that the code assigned.
        return stored if isinstance(stored, TensorValue) else found
    if stored is not None:
        return stored
    text = expression_text(node) if isinstance(node, ast.expr) else name
    made = structural_unknown(interp, Operation.ATTRIBUTE, (receiver,), text, name)
    made.owner_key = receiver.key if isinstance(receiver, UnknownValue) else -1
    # Most attributes are those of modules and imported names, without an origin.
    if receiver.origin is not NO_ORIGIN or made.origin is not NO_ORIGIN or name == "grad":
        made.origin = made.origin._replace(
            is_from_outside=receiver.origin.is_from_outside,
            is_comparison_result=receiver.origin.is_call_result,
            is_from_gradient=made.origin.is_from_gradient or name == "grad",
        )
    if name in DATA_SIZE_NAMES or made.normalization.is_data_size:
        made.normalization = made.normalization._replace(is_data_size=name in DATA_SIZE_NAMES)
    return made


def evaluate_subscript(interp: Interpreter, node: ast.Subscript) -> Value:
    receiver = interp.evaluate(node.value)
    index = interp.evaluate(node.slice)
    return recognize_object(interp, item_of(interp, receiver, index, node), node, "")


def item_of(interp: Interpreter, receiver: Value, index: Value, node: ast.AST, default: Value | None = None) -> Value:
    """Return the item of a container at an index. ``default`` is what ``get`` returns for a key without an item."""
    heap_key = item_heap_key(interp, receiver, index)
    written = interp.state.heap.get(heap_key) if heap_key is not None else None
    if written is not None:
        return written
    fields = fields_of_record(interp, receiver, node) if isinstance(index.value, int) else None
    known = (receiver if fields is None else fields).item_at(index)
    if known is not None:
        return known
    selected = select_from_table(interp, receiver, index, node, default)
    if selected is not None:
        return selected
    made = structural_unknown(interp, Operation.ITEM, (receiver, index), short_text_or(node))
    if isinstance(receiver, MappingValue):
        # Other code added the entry, or the code added the entry under an unknown key.
        made = made.with_provenance(
            join_provenance(entry for key, entry in receiver.items.items() if isinstance(key, tuple))
        )
    made.item_origin = item_origin_of(receiver, index)
    if made.normalization.is_data_size is not receiver.normalization.is_data_size:
        made.normalization = made.normalization._replace(is_data_size=receiver.normalization.is_data_size)
    return made


def fields_of_record(interp: Interpreter, value: Value, node: ast.AST) -> SequenceValue | None:
    """Return the fields of a named tuple in the order of their declaration, or None for another value."""
    if not isinstance(value, Instance) or not value.cls.is_record() or "__iter__" in value.cls.methods:
        return None
    return SequenceValue([attribute_of(interp, value, name, node) for name in value.cls.declared_fields()])


def item_heap_key(interp: Interpreter, receiver: Value, index: Value) -> tuple[int, str] | None:
    """Return the heap key for an item with a constant name in an unknown value or a tensor, or None."""
    if not isinstance(index.value, str) or receiver.kind not in ("unknown", "tensor"):
        return None
    key = receiver.identity_key(interp.unique_number)
    return (key, item_name(index.value)) if isinstance(key, int) else None


def evaluate_slice(interp: Interpreter, node: ast.Slice) -> Value:
    bounds = [NONE if part is None else interp.evaluate(part) for part in (node.lower, node.upper, node.step)]
    return structural_unknown(interp, Operation.SLICE, tuple(bounds), short_text_or(node))


def item_origin_of(receiver: Value, index: Value) -> tuple[int, str | None] | None:
    """Return the key of the unknown value that an index refers to and the item's name, or None."""
    if not isinstance(receiver, UnknownValue):
        return None
    return receiver.key, index.value if isinstance(index.value, str) else None


def value_of_changed(interp: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """Return the value of an attribute. A number that other methods change becomes an unknown value."""
    if value.value is NO_CONSTANT or isinstance(value.value, str) or not receiver.is_changed(name):
        return value
    made = interp.unknown_value(("attribute of", receiver.key, name), name, interp.current_loops())
    if name in receiver.counter_attributes():
        made.count = made.count._replace(
            is_counter=True, possible_start=value.possible_start(), counting_method=receiver.counting_method(name)
        )
    return made.with_dtype_info(value.dtype_info)
