"""Search for the assignment that chose the dtype of a cast."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ...protocol.sites import TraceFacts
from ...protocol.source_text import access_text
from ..interpreter.interpreter import Interpreter
from ..project.module import Function, Module
from ..project.syntax import tail_name, walk
from .syntax_queries import keywords_of

#: Names of low dtypes, as attributes of torch and as texts.
_FLOAT16, _BFLOAT16 = frozenset(("float16", "half", "fp16")), frozenset(("bfloat16", "bf16"))
_LOW = {"float16": _FLOAT16, "bfloat16": _BFLOAT16}


def trace_dtype_choice(interp: Interpreter, call: ast.AST, dtype: str, parameter: str = "") -> TraceFacts:
    """Return the assignment of a low dtype to the variable that a call casts to, for a trace.

    The assignment is the last one of this dtype before the call, in the same function, or else in the module. If a
    parameter of the function has the dtype, return the call of the function. ``parameter`` is the only parameter of
    the call to be considered, "" for all that may have a dtype.
    """
    if not isinstance(call, ast.Call):
        return ()
    frame = interp.state.frame
    scopes: list[Function | Module] = [frame.module] if frame.function is None else [frame.function, frame.module]
    given = keywords_of(call).get(parameter)
    arguments = _dtype_arguments(call) if given is None else [given]
    for name in filter(None, map(access_text, arguments)):
        for scope in scopes:
            assignments = _find_assignments(interp, scope).get(name, ())
            found = [node for node in assignments if _has_dtype(node.value, dtype)]
            before = [node for node in found if node.lineno < call.lineno] or found
            if before:
                return ((interp.site_of(max(before, key=lambda node: node.lineno)), "the low dtype is chosen"),)
        is_parameter = frame.function is not None and name in _parameter_names(frame.function)
        if is_parameter and frame.caller is not None and "dtype" in name:
            return ((frame.caller, f"the call decides `{name}`"),)
    if frame.caller is not None and _passes_keywords_on(call, frame.function):
        return ((frame.caller, "the call decides the dtype"),)
    return ()


def _passes_keywords_on(call: ast.Call, function: Function | None) -> bool:
    """Return True for a call with the unnamed keyword arguments of the function around it: ``load(**kwargs)``."""
    collected = None if function is None else function.node.args.kwarg
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    return collected is not None and any(isinstance(each, ast.Name) and each.id == collected.arg for each in unpacked)


def _parameter_names(function: Function) -> set[str]:
    return {parameter.arg for parameter in (*function.parameters(), *function.node.args.kwonlyargs)}


def trace_origin(interp: Interpreter, tensor: str, node: ast.AST) -> TraceFacts:
    """Return the last assignment before a node that computes a tensor from other values, for a trace."""
    function, line = interp.state.frame.function, getattr(node, "lineno", 0)
    if function is None:
        return ()
    found = [
        made
        for made in _find_assignments(interp, function).get(tensor, ())
        if made.lineno < line and tensor not in map(access_text, walk(made.value))
    ]
    if not found:
        return ()
    site = interp.site_of(max(found, key=lambda made: made.lineno))
    return ((site, f"`{tensor}` is computed, in low precision under autocast"),)


class _Assignments(dict[object, dict[str, list[ast.Assign]]]):
    """Assignments of a function, or of a module outside its functions and classes, by scope and variable."""


def _find_assignments(interp: Interpreter, scope: Function | Module) -> dict[str, list[ast.Assign]]:
    known = interp.file_data(_Assignments)
    if scope not in known:
        by_name = known[scope] = {}
        for node in _iter_statements(scope.tree.body) if isinstance(scope, Module) else scope.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    by_name.setdefault(access_text(target) or "", []).append(node)
    return known[scope]


def _iter_statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of a module and of its branches, but not of its functions and classes."""
    todo = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.Expr)):
            todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler))]


def _dtype_arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call that may be a variable with a dtype."""
    named = [value for name, value in keywords_of(call).items() if name is not None and "dtype" in name]
    return [each for each in (*call.args, *named) if isinstance(each, (ast.Name, ast.Attribute))]


def _has_dtype(value: ast.expr, dtype: str) -> bool:
    """Return True for a value that names a low dtype; any of them if ``dtype`` is none of them."""
    names = _LOW.get(dtype, _FLOAT16 | _BFLOAT16)
    return any(tail_name(part) in names for part in walk(value) if isinstance(part, (ast.Name, ast.Attribute)))
