"""Limits of the numbers of a dtype: ``torch.finfo(torch.float32).min``."""

from __future__ import annotations

import ast

from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import Args, ExternalName, Keywords
from ..interpreter.values.value import Const, Value
from .arguments import first_or_named

#: The largest number, the difference of 1 and the next number, and the smallest normal number, by dtype.
_LIMITS = {
    "float16": (65504.0, 2.0**-10, 2.0**-14),
    "bfloat16": ((2 - 2**-7) * 2.0**127, 2.0**-7, 2.0**-126),
    "float32": ((2 - 2**-23) * 2.0**127, 2.0**-23, 2.0**-126),
    "float64": ((2 - 2**-52) * 2.0**1023, 2.0**-52, 2.0**-1022),
}


class NumberLimits(Value):
    """Limits of the numbers of a dtype."""

    kind = "limits"

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype


def _call_finfo(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the limits of a dtype that is known. The dtype of a tensor is not."""
    given = first_or_named(args, keywords, "type")
    if given is None:
        return NumberLimits("float32")
    dtypes = given.possible_dtypes if isinstance(given, ExternalName) else {}
    name = next(iter(dtypes)) if len(dtypes) == 1 else ""
    return NumberLimits(name) if name in _LIMITS else None


def _get_limit(interp: Interpreter, limits: NumberLimits, name: str, node: ast.AST) -> Value | None:
    largest, eps, smallest = _LIMITS[limits.dtype]
    values = {"max": largest, "min": -largest, "eps": eps, "tiny": smallest, "smallest_normal": smallest}
    return Const(values[name]) if name in values else None


def register(handlers: HandlerTable) -> None:
    handlers.named_functions["torch.finfo"] = _call_finfo
    handlers.attributes[NumberLimits.kind] = _get_limit
