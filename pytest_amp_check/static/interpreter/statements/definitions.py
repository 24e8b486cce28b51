"""Definitions of functions and classes, and their decorators."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ...project.syntax import root_name, tail_name
from ..interpreter import Interpreter, in_frame
from ..source_text import expression_text
from ..values.contexts import GradMode
from ..values.definitions import ClassValue, ExternalName, Frame, FunctionValue, GeneratorContext
from ..values.objects import ObjectRef
from ..values.value import Value

#: Decorators that turn a generator function into a context manager.
CONTEXT_DECORATORS = ("contextlib.contextmanager", "contextlib.asynccontextmanager")


def define_function(interp: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    function = interp.state.frame.module.functions[node]
    interp.captured_frames.append(interp.state.frame)
    value: Value = FunctionValue(
        function, interp.state.frame.parent if interp.state.frame.is_class_body else interp.state.frame
    )
    for decorator in reversed(node.decorator_list):
        value = apply_decorator(interp, decorator, value, node)
    interp.state.frame.vars[node.name] = value
    if isinstance(value, FunctionValue):
        interp.function_values[node] = value


def apply_decorator(interp: Interpreter, decorator: ast.expr, value: Value, node: ast.AST) -> Value:
    """Return the decorated function. An unknown decorator is assumed to change nothing."""
    if tail_name(decorator) in ("staticmethod", "classmethod", "property", "cached_property"):
        return value
    applied = interp.evaluate(decorator)
    if isinstance(applied, ExternalName):
        interp.call_value(applied, [], {}, decorator)
    return _decorate_function(interp, applied, value, decorator, node) if isinstance(value, FunctionValue) else value


def _decorate_function(
    interp: Interpreter, applied: Value, value: FunctionValue, decorator: ast.expr, node: ast.AST
) -> FunctionValue:
    function = value.function
    if isinstance(applied, FunctionValue):
        made = interp.call_value(applied, [value], {}, node)
        return made if isinstance(made, FunctionValue) else value
    if isinstance(applied, ExternalName) and applied.name in CONTEXT_DECORATORS:
        function.is_context_manager = True
    region = holds_autocast(applied)
    if region and (function.is_generator or isinstance(function.node, ast.AsyncFunctionDef)):
        key = applied.tracked_object.key if isinstance(applied, ObjectRef) else None
        interp.emit(e.ScopeLost, decorator, key, how="generator", names={"context": expression_text(decorator)})
        return value
    if region or isinstance(applied, (GradMode, GeneratorContext)):
        return FunctionValue(function, value.frame, value.receiver, (*value.wrappers, applied))
    return value


def define_class(interp: Interpreter, node: ast.ClassDef) -> None:
    cls = interp.state.frame.module.classes[node]
    if interp.state.frame.parent is None:
        for base in node.bases:
            root = root_name(base)
            if root in interp.state.frame.vars:
                interp.base_name_values[cls, root] = interp.state.frame.vars[root]
    enclosing = interp.state.frame.parent if interp.state.frame.is_class_body else interp.state.frame
    if enclosing is not None and enclosing.parent is not None:
        interp.enclosing_frames[cls] = enclosing
        interp.captured_frames.append(enclosing)
    interp.state.frame.vars[node.name] = ClassValue(cls, enclosing)
    if not cls.used_names and not _may_override(interp, node):
        return
    frame = Frame(interp.state.frame.function, interp.state.frame, interp.state.frame.caller)
    frame.is_class_body = True
    interp.captured_frames.append(frame)
    frame.path_base, frame.unwind_base = len(interp.state.path_condition), len(interp.state.unwind_actions)
    in_frame(interp, frame, lambda: interp.execute_block(node.body))
    interp.class_vars[node] = frame.vars


def _may_override(interp: Interpreter, node: ast.ClassDef) -> bool:
    """Return True if a class may override an attribute of a base class in the project."""
    if not any(isinstance(each, (ast.Assign, ast.AnnAssign)) for each in node.body):
        return False
    return any(isinstance(interp.state.frame.vars.get(root_name(base)), ClassValue) for base in node.bases)


def holds_autocast(value: Value) -> bool:
    return any(option.role == "autocast" for option in value.alternatives())
