"""Configuration files that a program names by a literal path, or by the default of a setting."""

from __future__ import annotations

import ast
import os

from ...protocol.events import UNKNOWN
from ..configuration.documents import Section, load_settings
from ..interpreter.interpreter import Interpreter
from ..sources import configurations, source_files
from .default_dtypes import find_default
from .syntax_queries import constant_of_node

#: Number of folders above a program in which the working directory of its run may be.
_LEVELS = 4


def find_settings(interp: Interpreter, node: ast.expr | None) -> Section | None:
    """Return the settings in the file whose path an expression is, or None.

    The path may be relative to the folder of the file, or to a folder above.
    """
    written = UNKNOWN if node is None else constant_of_node(node)
    if node is not None and written is UNKNOWN:
        written = constant_of_node(find_default(interp, node))
    if not isinstance(written, str) or not configurations.is_configuration(written):
        return None
    folder = os.path.dirname(os.path.abspath(interp.state.frame.module.path))
    for level, above in enumerate(source_files.folders_upward(folder)):
        path = os.path.join(above, written)
        interp.project.dependencies.add(path)
        data = source_files.load_or_nothing(path, configurations.LARGEST)
        if data or level == _LEVELS:
            return _load(path, data)
    return None


def _load(path: str, data: bytes) -> Section | None:
    try:
        return load_settings(path, source_files.decode_utf8(data)) if data else None
    except source_files.Unreadable:
        # The file is reported for itself, if it sets a precision.
        return None
