"""Differences of values that low precision rounds to nearly the same number."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import LOG_PROBABILITY, MEAN_SQUARE, SQUARE, DtypeInfo
from ...interpreter.interpreter import Interpreter
from .events import emit_once


def check_difference(interp: Interpreter, left: DtypeInfo, right: DtypeInfo, node: ast.AST) -> None:
    """Report a variance that is a difference of moments, and the difference of two log-probabilities."""
    if left.is_low and MEAN_SQUARE in left.traits and SQUARE in right.traits:
        how, low = "moments", left
    elif left.is_low and right.is_low and LOG_PROBABILITY in left.traits & right.traits:
        how, low = "log-ratio", left
    else:
        return
    emit_once(interp, e.FragileMath, node, low, how=how, names={"call": SourceText(node, 60)})
