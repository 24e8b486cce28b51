"""Values that are True or False wherever they come from: tests, annotated parameters, and switches of regions."""

from __future__ import annotations

import ast

from ..interpreter.interpreter import Interpreter
from ..interpreter.values.definitions import Keywords
from ..interpreter.values.value import UnknownValue, Value


class SwitchTable(set[int]):
    """Keys of the unknown values that a file passes as ``enabled``."""


def note_switch(interp: Interpreter, bound: Keywords) -> None:
    """Record the value that switches a scaler or a region on or off."""
    switch = bound.get("enabled")
    if isinstance(switch, UnknownValue):
        interp.file_data(SwitchTable).add(switch.key)


def is_flag(interp: Interpreter, value: Value | None, written: ast.expr | None) -> bool:
    """Return True if an argument is certainly True or False. ``written`` is its source."""
    if isinstance(written, ast.Compare) or (isinstance(written, ast.UnaryOp) and isinstance(written.op, ast.Not)):
        return True
    if not isinstance(value, UnknownValue):
        return False
    # A dtype that is also a switch, None for no mixed precision, names itself.
    if value.key in interp.file_data(SwitchTable):
        return "type" not in value.text.lower() and "prec" not in value.text.lower()
    return value.origin.is_argument and any(
        interp.unknown_values.get(("parameter", id(parameter))) is value
        for function in interp.state.frame.module.functions.values()
        for parameter in _flags_of(function.node.args)
    )


def _flags_of(spec: ast.arguments) -> list[ast.arg]:
    """Return the parameters that are annotated as flags, or have a flag as the default."""
    places = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(places) - len(spec.defaults)) + [*spec.defaults]
    return [
        parameter
        for parameter, default in zip([*places, *spec.kwonlyargs], [*defaults, *spec.kw_defaults], strict=True)
        if (isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "bool")
        or (parameter.annotation is None and isinstance(default, ast.Constant) and isinstance(default.value, bool))
    ]
