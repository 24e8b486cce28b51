"""Devices: the possible types of a torch device object."""

from __future__ import annotations

import ast

from ...protocol import torch_api
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.containers import UnionValue
from ..interpreter.values.definitions import Args, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.value import NONE, Const, UnknownValue, Value
from .arguments import first_or_named, make_object


class DeviceTexts(dict[int, Value]):
    """Values that devices were created from, by object key: a text, or a union of texts."""


def device_types_of(value: Value | None) -> list[str]:
    """Return the possible device types of a device text, without the index."""
    types = []
    for option in (value or NONE).alternatives():
        prefix = option.text_prefix if isinstance(option, UnknownValue) else ""
        text = option.value if isinstance(option.value, str) else prefix
        if ":" in text or text == option.value:
            types.append(text.partition(":")[0])
    return types


def device_text_of(interp: Interpreter, device: ObjectRef) -> Value | None:
    """Return the text that a device was created from, or None if unknown."""
    return interp.file_data(DeviceTexts).get(device.tracked_object.key)


def _make_device(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    tracked_object = make_object(interp, "device", node)
    given = first_or_named(args, keywords, "type")
    if device_types_of(given):
        interp.file_data(DeviceTexts)[tracked_object.key] = given or NONE
    return ObjectRef(tracked_object)


def _get_device_attribute(interp: Interpreter, receiver: ObjectRef, name: str, node: ast.AST) -> Value | None:
    text = device_text_of(interp, receiver)
    if name != "type" or text is None:
        return None
    if not isinstance(text, UnionValue):
        return Const(device_types_of(text)[0])
    return UnionValue([(formula, Const((*device_types_of(option), "")[0])) for formula, option in text.options])


def register(handlers: HandlerTable) -> None:
    handlers.torch_roles[torch_api.DEVICE] = _make_device
    handlers.attributes["device"] = _get_device_attribute
