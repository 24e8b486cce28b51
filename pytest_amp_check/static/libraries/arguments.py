"""Arguments of calls: bound to their parameters, and what they are known to be."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import surface
from ...protocol.events import UNKNOWN, Symbol, Thing
from ...protocol.words import Words
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import Args, Const, Instance, Keywords, Mapping, Named, Ref, Sequence, Tensor, Value
from .written import keywords_of


def bind(parameters: tuple[str, ...], args: Args, keywords: Keywords) -> Keywords:
    """Arguments by the names of the parameters that take them."""
    return {**dict(zip(parameters, args, strict=False)), **keywords}


def first_of(args: Args, keywords: Keywords, name: str) -> Value | None:
    """The first argument, with or without its name."""
    return args[0] if args else keywords.get(name)


def given_tensors(args: Args, keywords: Keywords) -> list[Tensor]:
    """The tensors that a call is given."""
    return [tensor for value in (*args, *keywords.values()) for tensor in value.tensors()]


def literal(value: Value | None) -> object:
    """The constant that an argument is; ``UNKNOWN`` where it is none."""
    return value.value if isinstance(value, Const) else UNKNOWN


def name_of(value: Value | None) -> str:
    """The dotted name that an argument is, "" where it is none."""
    return value.name if isinstance(value, Named) else ""


def items_of(value: Value | None) -> list[Value]:
    """What a list or a tuple holds."""
    return value.items if isinstance(value, Sequence) else []


def each_of(value: Value) -> list[Value]:
    """What a list or a tuple holds, or the one thing that stands instead of it."""
    return value.items if isinstance(value, Sequence) else [value]


def each_item(value: Sequence | Mapping, act: Callable[[Value], Value]) -> Value:
    """A list, a tuple or a dict of what is made of each of its items."""
    if isinstance(value, Sequence):
        return Sequence([act(item) for item in value.items], open=value.open)
    return Mapping({key: act(item) for key, item in value.items.items()}, open=value.open)


def thing_of(value: Value | None) -> Thing | None:
    """The thing of the protocol that an argument is, or that an object of the project stands for."""
    return value.thing if isinstance(value, (Ref, Instance)) else None


def ref_of(value: Value | None, role: str) -> Ref | None:
    """An argument that is a thing of a role."""
    return value if isinstance(value, Ref) and value.role == role else None


def plain(at: Interpreter, value: Value) -> object:
    """An argument as the protocol's facts hold it: a constant, or a name."""
    name = name_of(value)
    if name:
        return Symbol(surface.canonical(name))
    return Symbol("torch.device()") if ref_of(value, "device") is not None else literal(value)


def words_of(keyword: str, node: ast.AST) -> object:
    """The words of an argument that has a name, "" where it is not given."""
    given = keywords_of(node).get(keyword)
    return Words(given) if given is not None else ""
