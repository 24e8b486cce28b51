"""Code without columns, as Python compiles it with ``-X no_debug_ranges``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import CodeType

#: Kinds of entries in a location table of CPython 3.11 and later: a line without columns, and no location.
_LINE_ALONE, _NOWHERE = 13, 15
#: Largest number of code units of one entry.
_UNITS = 8


def compile_without_columns(source: str, path: str) -> CodeType:
    """Compile a program to code that knows only the line of each instruction. CPython 3.11 and later."""
    return _drop_columns(compile(source, path, "exec"))


def _drop_columns(code: CodeType) -> CodeType:
    consts = tuple(_drop_columns(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_consts=consts, co_linetable=bytes(_iter_entries(code)))


def _iter_entries(code: CodeType) -> Iterator[int]:
    line = code.co_firstlineno
    lines = (first for first, _, _, _ in code.co_positions())  # type: ignore[attr-defined,unused-ignore]
    for found, units in itertools.groupby(lines):
        remaining = len(list(units))
        while remaining:
            count = min(remaining, _UNITS)
            remaining -= count
            yield 0x80 | (_NOWHERE if found is None else _LINE_ALONE) << 3 | (count - 1)
            if found is not None:
                yield from _encode_difference(found - line)
                line = found


def _encode_difference(difference: int) -> Iterator[int]:
    """Yield a signed number as bytes of six bits, the lowest first. The lowest bit of all is the sign."""
    number = -difference << 1 | 1 if difference < 0 else difference << 1
    while number > 0x3F:
        yield 0x40 | number & 0x3F
        number >>= 6
    yield number
