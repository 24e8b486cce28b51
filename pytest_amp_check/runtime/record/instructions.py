"""Source spans of bytecode instructions."""

from __future__ import annotations

import ast
import dis
import functools
import sys
from types import CodeType, SimpleNamespace
from typing import Any

#: First line, column, last line and end column. Columns count bytes of UTF-8.
Span = tuple[int, int, int, int]


def instruction_span(code: CodeType, offset: int, line: int) -> Span | None:
    """Return the span of the syntax node of the instruction at an offset, or None if only the line is known.

    ``line`` is the line of the instruction.
    """
    if sys.version_info >= (3, 11):
        first, last, column, end = _positions(code)[offset // 2]
        if first is None or last is None or column is None or end is None:
            return None
        return first, column, last, end
    # Before Python 3.11 code objects hold no columns: executing finds the syntax node by the bytecode (PEP 657).
    from executing import Source

    frame: Any = SimpleNamespace(f_code=code, f_lasti=offset, f_lineno=line, f_globals={})
    found = Source.executing(frame)
    node: Any = found.node
    if node is None and dis.opname[code.co_code[offset]].startswith("INPLACE_"):
        augmented = [each for each in found.statements or () if isinstance(each, ast.AugAssign)]
        node = augmented[0] if len(augmented) == 1 else None
    if node is None or node.end_lineno is None or node.end_col_offset is None:
        return None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


if sys.version_info >= (3, 11):

    @functools.lru_cache(maxsize=16)
    def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
        return list(code.co_positions())
