"""Helpers for call arguments: bind arguments to parameters, and convert arguments to constants, names or objects."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import torch_api
from ...protocol.events import UNKNOWN, Symbol
from ...protocol.source_text import SourceText
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.interpreter import Interpreter
from ..interpreter.values.containers import MappingValue, SequenceValue
from ..interpreter.values.definitions import Args, ExternalName, Instance, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import Const, Value
from .syntax_queries import keywords_of


def bind_arguments(parameters: tuple[str, ...], args: Args, keywords: Keywords) -> Keywords:
    """Map the names of parameters to the arguments that a call passes for them."""
    return {**dict(zip(parameters, args, strict=False)), **keywords}


def first_or_named(args: Args, keywords: Keywords, name: str) -> Value | None:
    """Return the first positional argument, or else the keyword argument with the given name."""
    return args[0] if args else keywords.get(name)


def make_object(interp: Interpreter, role: str, node: ast.AST, *parts: object) -> TrackedObject:
    """Return the object that a call creates. ``parts`` distinguish several objects of one call."""
    return interp.tracked_object((role, interp.location_key(node), *parts), role, "", interp.site_of(node))


def find_tensors(args: Args, keywords: Keywords) -> list[TensorValue]:
    """Return all tensors in the arguments of a call."""
    return [tensor for value in (*args, *keywords.values()) for tensor in tensors_in(value)]


def literal_value(value: Value | None) -> object:
    """Return the constant of an argument, or ``UNKNOWN`` if the argument is no constant."""
    return value.value if isinstance(value, Const) else UNKNOWN


def dotted_name_of(value: Value | None) -> str:
    """Return the dotted name of an external name, or "" for any other value."""
    return value.name if isinstance(value, ExternalName) else ""


def items_of(value: Value | None) -> list[Value]:
    """Return the items of a list or a tuple, or an empty list for any other value."""
    return value.items if isinstance(value, SequenceValue) else []


def items_or_self(value: Value) -> list[Value]:
    """Return the items of a list or a tuple, or a list with the value itself."""
    return value.items if isinstance(value, SequenceValue) else [value]


def map_items(value: SequenceValue | MappingValue, act: Callable[[Value], Value]) -> Value:
    """Apply a function to each item of a list, a tuple or a dict, and return the container of the results."""
    if isinstance(value, SequenceValue):
        return SequenceValue([act(item) for item in value.items], is_open=value.is_open)
    return MappingValue({key: act(item) for key, item in value.items.items()}, is_open=value.is_open)


def tracked_object_of(value: Value | None) -> TrackedObject | None:
    """Return the tracked object of an argument, or None.

    Object references and instances of project classes have tracked objects.
    """
    return value.tracked_object if isinstance(value, (ObjectRef, Instance)) else None


def object_ref_of(value: Value | None, role: str) -> ObjectRef | None:
    """Return an argument if the argument refers to a tracked object of the given role, else None."""
    return value if isinstance(value, ObjectRef) and value.role == role else None


def to_attribute_value(interp: Interpreter, value: Value) -> object:
    """Convert an argument to the attribute of an event: a constant, or a symbol for a name or a device."""
    name = dotted_name_of(value)
    if name:
        return Symbol(torch_api.canonical_name(name))
    return Symbol("torch.device()") if object_ref_of(value, "device") is not None else literal_value(value)


def keyword_text(keyword: str, node: ast.AST) -> object:
    """Return the source text of a keyword argument, or "" if the call has no such argument."""
    given = keywords_of(node).get(keyword)
    return SourceText(given) if given is not None else ""
