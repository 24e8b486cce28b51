"""Settings that a program loads from a YAML, JSON or TOML file with a literal path."""

from __future__ import annotations

import ast
import os

from ..configuration.documents import Section, load_settings
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.value import UnknownValue, Value
from ..project.syntax import walk
from ..sources import configurations, source_files
from .syntax_queries import assigned_values, constant_of_node, find_nodes, last_name

#: Functions of yaml, json, tomllib and OmegaConf that return the content of a file.
_LOADERS = ("safe_load", "full_load", "load", "loads")
#: Number of folders above a program in which the working directory of its run may be.
_LEVELS = 4
#: Maximum number of sections and variables between a setting and the call that loads its file.
_LARGEST_DEPTH = 8


class _LoadedSections(dict[int, Section]):
    """Loaded settings by the key of the value that represents them."""


def read_settings(interp: Interpreter, written: str) -> Section | None:
    """Return the settings in a file, given by its path in the program, or None.

    The path may be relative to the folder of the program, or to a folder above.
    """
    folder = os.path.dirname(os.path.abspath(interp.state.frame.module.path))
    for level, above in enumerate(source_files.folders_upward(folder)):
        path = os.path.join(above, written)
        interp.project.dependencies.add(path)
        data = source_files.load_or_nothing(path, configurations.LARGEST)
        if data or level == _LEVELS:
            return _parse_settings(path, data)
    return None


def _parse_settings(path: str, data: bytes) -> Section | None:
    try:
        return load_settings(path, source_files.decode_utf8(data)) if data else None
    except source_files.Unreadable:
        # The file is reported for itself, if it sets a precision.
        return None


def find_loaded_setting(interp: Interpreter, node: ast.expr) -> ast.Constant | None:
    """Return the text that a loaded file gives a setting, such as ``cfg["model"]["dtype"]``, or None."""
    owner, key = _owner_and_key(node)
    section = None if owner is None else _find_section(interp, owner, _LARGEST_DEPTH)
    value = None if section is None else section.value(key)
    return ast.copy_location(ast.Constant(value), node) if isinstance(value, str) else None


def _owner_and_key(node: ast.expr | None) -> tuple[ast.expr | None, str]:
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))):
            return owner, key
        case ast.Attribute(value=owner, attr=key):
            return owner, key
        case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return owner, key
    return None, ""


def _find_section(interp: Interpreter, node: ast.expr, depth: int) -> Section | None:
    """Return the loaded settings that an expression stands for, or None."""
    known = interp.file_data(_LoadedSections)
    if not known or depth == 0:
        return None
    value = interp.without_events(lambda: interp.evaluate(node))
    if isinstance(value, UnknownValue) and value.key in known:
        return known[value.key]
    owner, key = _owner_and_key(_assigned_once(interp, node.id) if isinstance(node, ast.Name) else node)
    around = None if owner is None else _find_section(interp, owner, depth - 1)
    inner = None if around is None else around.value(key)
    return inner if isinstance(inner, Section) else None


def _assigned_once(interp: Interpreter, name: str) -> ast.expr | None:
    """Return the only expression that the code of the frame assigns to a variable, or None."""
    frame = interp.state.frame
    code = frame.module.tree if frame.function is None else frame.function.node
    made = assigned_values(find_nodes(code, ast.Assign), name)
    return made[0] if len(made) == 1 else None


def _note_loaded(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Record the settings that a call loads from a file with a literal path."""
    written = _find_path(interp, node) if isinstance(value, UnknownValue) else ""
    section = read_settings(interp, written) if written else None
    if section is not None and isinstance(value, UnknownValue):
        interp.file_data(_LoadedSections)[value.key] = section


def _find_path(interp: Interpreter, node: ast.Call) -> str:
    """Return the path of the file that a call loads, or "": of a file opened around it, or inside the call."""
    opened = [node]
    names = {name.id for argument in node.args for name in find_nodes(argument, ast.Name)}
    frame = interp.state.frame
    code = frame.module.tree if frame.function is None else frame.function.node
    for context in find_nodes(code, ast.With) if names else ():
        for item in context.items:
            target = item.optional_vars
            is_used = isinstance(target, ast.Name) and target.id in names
            if is_used and isinstance(item.context_expr, ast.Call) and last_name(item.context_expr.func) == "open":
                opened.append(item.context_expr)
    defaults = {} if frame.function is None else frame.function.defaults()
    for call in opened:
        for part in walk(call):
            text = constant_of_node(defaults.get(part.id) if isinstance(part, ast.Name) else part)
            if isinstance(text, str) and configurations.is_configuration(text):
                return text
    return ""


def register(handlers: HandlerTable) -> None:
    handlers.call_result_listeners.update(dict.fromkeys(_LOADERS, _note_loaded))
