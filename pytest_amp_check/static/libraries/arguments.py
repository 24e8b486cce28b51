"""Arguments of calls: bound to their parameters, and what they are known to be."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import torch_api
from ...protocol.events import UNKNOWN, Symbol, TrackedObject
from ...protocol.source_text import SourceText
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import (
    Args,
    Const,
    ExternalName,
    Instance,
    Keywords,
    MappingValue,
    ObjectRef,
    SequenceValue,
    TensorValue,
    Value,
)
from .syntax_queries import keywords_of


def bind_arguments(parameters: tuple[str, ...], args: Args, keywords: Keywords) -> Keywords:
    """Arguments by the names of the parameters that take them."""
    return {**dict(zip(parameters, args, strict=False)), **keywords}


def first_or_named(args: Args, keywords: Keywords, name: str) -> Value | None:
    """The first argument, with or without its name."""
    return args[0] if args else keywords.get(name)


def find_tensors(args: Args, keywords: Keywords) -> list[TensorValue]:
    """The tensors that a call is given."""
    return [tensor for value in (*args, *keywords.values()) for tensor in value.tensors()]


def literal_value(value: Value | None) -> object:
    """The constant that an argument is; ``UNKNOWN`` where it is none."""
    return value.value if isinstance(value, Const) else UNKNOWN


def dotted_name_of(value: Value | None) -> str:
    """The dotted name that an argument is, "" where it is none."""
    return value.name if isinstance(value, ExternalName) else ""


def items_of(value: Value | None) -> list[Value]:
    """What a list or a tuple holds."""
    return value.items if isinstance(value, SequenceValue) else []


def items_or_self(value: Value) -> list[Value]:
    """What a list or a tuple holds, or the one thing that stands instead of it."""
    return value.items if isinstance(value, SequenceValue) else [value]


def map_items(value: SequenceValue | MappingValue, act: Callable[[Value], Value]) -> Value:
    """A list, a tuple or a dict of what is made of each of its items."""
    if isinstance(value, SequenceValue):
        return SequenceValue([act(item) for item in value.items], is_open=value.is_open)
    return MappingValue({key: act(item) for key, item in value.items.items()}, is_open=value.is_open)


def tracked_object_of(value: Value | None) -> TrackedObject | None:
    """The thing of the protocol that an argument is, or that an object of the project stands for."""
    return value.tracked_object if isinstance(value, (ObjectRef, Instance)) else None


def object_ref_of(value: Value | None, role: str) -> ObjectRef | None:
    """An argument that is a thing of a role."""
    return value if isinstance(value, ObjectRef) and value.role == role else None


def to_attribute_value(interp: Interpreter, value: Value) -> object:
    """An argument as the protocol's facts hold it: a constant, or a name."""
    name = dotted_name_of(value)
    if name:
        return Symbol(torch_api.canonical_name(name))
    return Symbol("torch.device()") if object_ref_of(value, "device") is not None else literal_value(value)


def keyword_text(keyword: str, node: ast.AST) -> object:
    """The words of an argument that has a name, "" where it is not given."""
    given = keywords_of(node).get(keyword)
    return SourceText(given) if given is not None else ""
