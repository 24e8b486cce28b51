"""Devices: of which types an object of torch may be that stands for one."""

from __future__ import annotations

import ast

from ...protocol import surface
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import NONE, Args, Choice, Const, Keywords, Ref, Value
from .arguments import first_of


class Written(dict[int, Value]):
    """What each device was made of, by its key: a text, or one of several."""


def types_of(value: Value | None) -> list[str]:
    """The types that a device may be of which a value is the text, without the index."""
    types = []
    for option in (value or NONE).alternatives():
        text = option.value if isinstance(option.value, str) else option.head
        if ":" in text or text == option.value:
            types.append(text.partition(":")[0])
    return types


def text_of(at: Interpreter, device: Ref) -> Value | None:
    """The text that a device was made of."""
    return at.of_file(Written).get(device.thing.key)


def _new_device(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    thing = at.thing(("device", at.place_key(node)), "device", "", at.site(node))
    given = first_of(args, keywords, "type")
    if types_of(given):
        at.of_file(Written)[thing.key] = given or NONE
    return Ref(thing)


def _device_attribute(at: Interpreter, receiver: Ref, name: str, node: ast.AST) -> Value | None:
    text = text_of(at, receiver)
    if name != "type" or text is None:
        return None
    if not isinstance(text, Choice):
        return Const(types_of(text)[0])
    return Choice([(formula, Const((*types_of(option), "")[0])) for formula, option in text.options])


def register(handlers: Handlers) -> None:
    handlers.roles[surface.DEVICE] = _new_device
    handlers.attributes["device"] = _device_attribute
