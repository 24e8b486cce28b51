"""Methods as functions: the bound object, the enclosing frame and the decorators."""

from __future__ import annotations

from ...project.module import Class, Function
from ..imports import globals_of
from ..interpreter import Interpreter
from ..values.definitions import Frame, FunctionValue
from ..values.objects import ObjectRef
from ..values.value import Value
from .lineage import method_of


def find_own_method(interp: Interpreter, receiver: Value, name: str) -> FunctionValue | None:
    """Return the method with which a project class overrides a scaler method, or None.

    None is also the result inside that method.
    """
    cls = receiver.tracked_object.attributes.cls if isinstance(receiver, ObjectRef) else None
    method = method_of(interp, cls, name) if isinstance(cls, Class) else None
    return None if method is None or method in interp.active_functions else bind_method(interp, method, receiver)


def bind_method(interp: Interpreter, method: Function, receiver: Value | None) -> FunctionValue:
    defined = _defined_value(interp, method)
    if defined is not None and defined.function is not method and defined.function.cls is None:
        # A decorator of the project replaces the method by a function of its own.
        return FunctionValue(defined.function, defined.frame, receiver, defined.wrappers)
    return FunctionValue(method, defining_frame(interp, method), receiver, decorator_contexts(interp, method))


def defining_frame(interp: Interpreter, method: Function) -> Frame:
    """Return the frame in which a method finds free names: the frame around the class, which may be a function."""
    enclosing = interp.enclosing_frames.get(method.cls) if method.cls is not None else None
    return globals_of(interp, method.module) if enclosing is None else enclosing


def decorator_contexts(interp: Interpreter, method: Function) -> tuple[Value, ...]:
    """Return the autocast and no_grad decorators of a method, as the analysis of the class found them."""
    defined = _defined_value(interp, method)
    return defined.wrappers if defined is not None and defined.function is method else ()


def _defined_value(interp: Interpreter, method: Function) -> FunctionValue | None:
    """Return what a class or a module holds by the name of a method or a function, or None for no function."""
    defined = (
        interp.class_vars.get(method.cls.node, {}).get(method.name)
        if method.cls
        else globals_of(interp, method.module).vars.get(method.name)
    )
    return defined if isinstance(defined, FunctionValue) else None
