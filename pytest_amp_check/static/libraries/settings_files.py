"""Configuration files whose path is an argument: a literal, or the default of a setting."""

from __future__ import annotations

import ast

from ...protocol.events import UNKNOWN
from ..configuration.documents import Section
from ..interpreter.interpreter import Interpreter
from ..sources import configurations
from .default_dtypes import find_default
from .loaded_settings import read_settings
from .syntax_queries import constant_of_node


def find_settings(interp: Interpreter, node: ast.expr | None) -> Section | None:
    """Return the settings in the file whose path an expression is, or None."""
    written = UNKNOWN if node is None else constant_of_node(node)
    if node is not None and written is UNKNOWN:
        written = constant_of_node(find_default(interp, node))
    if not isinstance(written, str) or not configurations.is_configuration(written):
        return None
    return read_settings(interp, written)
