"""Instances of classes: constructed, annotated, or recognized by the called methods."""

from __future__ import annotations

import ast

from ....protocol import torch_api
from ....protocol.sites import Site
from ...project.module import Class, Function, methods_called_on
from ..functions import bind_unknown_arguments, execute_function, inline_call
from ..imports import globals_of
from ..interpreter import Interpreter
from ..values.definitions import Args, ClassValue, Frame, FunctionValue, Instance, Keywords
from ..values.value import Value
from .forward_code import called_functions, has_plain_forward, may_cast, region_of_forward
from .lineage import find_only_implementation, lineage_of, method_of, role_of, uses_scaler


def instance_of(interp: Interpreter, cls: Class, key: object, name: str, site: Site | None) -> Instance:
    """Return the instance of a class for a key; create the instance if the key is new."""
    made = interp.instances.get(key)
    if made is None:
        interp.last_serial += 1
        tracked_object = None
        if role_of(interp, cls) == torch_api.MODULE:
            tracked_object = interp.tracked_object(("instance", key), "module", name, site)
            attributes = tracked_object.attributes
            attributes.read = has_plain_forward(interp, cls)
            lineage = lineage_of(interp, cls)
            attributes.dtypes = attributes.dtypes._replace(casts=may_cast(lineage), region=region_of_forward(lineage))
            attributes.callees = called_functions(lineage)
        made = interp.instances[key] = Instance(lineage_of(interp, cls), interp.last_serial, tracked_object)
        made.is_open = any(owner.is_open for owner in lineage_of(interp, cls))
    return made


def run_constructor(interp: Interpreter, made: Instance, init: Function) -> None:
    """Run a constructor with unknown arguments, for the attributes of an instance that other code constructs."""
    frame = Frame(init, globals_of(interp, init.module), None)
    frame.receiver, frame.cls = made, init.cls
    parameters = init.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = made
    bind_unknown_arguments(interp, frame, init)
    # Its events belong to the constructor. Functions that the constructor calls must still be analyzed elsewhere.
    roots, reached = set(interp.analyzed_functions), set(interp.reached_functions)
    interp.without_events(lambda: execute_constructor(interp, frame, init))
    interp.analyzed_functions, interp.reached_functions = roots, reached


def execute_constructor(interp: Interpreter, frame: Frame, init: Function) -> None:
    execute_function(interp, frame, init, (), init.node)


def make_annotated_instance(interp: Interpreter, annotated: Value, parameter: ast.arg) -> Value | None:
    """Return an instance for a parameter whose annotation names a class with a scaler, or None for another class."""
    if not isinstance(annotated, ClassValue) or role_of(interp, annotated.cls) is not None:
        return None
    cls = find_only_implementation(interp, annotated.cls)
    return _instance_of_parameter(interp, cls, parameter)


def _instance_of_parameter(interp: Interpreter, cls: Class, parameter: ast.arg) -> Value | None:
    """Return an instance of a class for a parameter, or None for a class without a scaler."""
    if not any(uses_scaler(owner) for owner in lineage_of(interp, cls)) or role_of(interp, cls) is not None:
        return None
    key = ("annotated", id(parameter), id(cls.node))
    is_new = key not in interp.instances
    made = instance_of(interp, cls, key, parameter.arg, None)
    init = method_of(interp, cls, "__init__")
    if init is not None and is_new and init not in interp.active_functions:
        run_constructor(interp, made, init)
    return made


#: Minimum number of methods by which a function shows the class of a parameter.
MIN_FITTING_METHODS = 2


def make_fitting_instance(interp: Interpreter, function: Function, parameter: ast.arg) -> Value | None:
    """Return an instance of the only class of this file that has the methods which a function calls on a parameter.

    Only classes with a scaler count. A method of the class itself has such a parameter for another reason.
    """
    module = interp.module
    if function.module is not module or "scaler" not in module.role_by_text.values():
        return None
    classes = [cls for cls in module.classes.values() if cls is not function.cls and uses_scaler(cls)]
    called = methods_called_on(function, parameter.arg) if classes else set()
    if len(called) < MIN_FITTING_METHODS:
        return None
    fitting = [
        cls for cls in module.classes.values() if all(method_of(interp, cls, name) is not None for name in called)
    ]
    made = _instance_of_parameter(interp, fitting[0], parameter) if len(fitting) == 1 else None
    interp.graph.is_guessed = interp.graph.is_guessed or made is not None
    return made


def construct_instance(interp: Interpreter, func: ClassValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    cls = func.cls
    role = role_of(interp, cls)
    construct = interp.handlers.constructors.get(role or "")
    constructed = construct(interp, cls, args, keywords, node) if construct is not None else None
    if constructed is not None:
        return constructed
    made = instance_of(interp, cls, (interp.location_key(node), cls.name), "", interp.site_of(node))
    if made.tracked_object is not None:
        made.tracked_object.attributes.class_name = cls.name
    init = method_of(interp, cls, "__init__")
    if init is not None:
        inline_call(interp, FunctionValue(init, func.frame, made), args, keywords, node)
    else:
        _store_fields(interp, cls, made, args, keywords)
    return made


def _store_fields(interp: Interpreter, cls: Class, made: Instance, args: Args, keywords: Keywords) -> None:
    """Store the arguments of a dataclass as attributes, in the order of the declared fields, and the defaults."""
    for owner in lineage_of(interp, cls):
        shared = interp.class_vars.get(owner.node, {})
        for name in owner.declared_fields() if owner.is_record() else ():
            default = shared.get(name)
            if default is not None and default.value is None and (made.key, name) not in interp.state.heap:
                interp.store_attribute(made.key, name, default)
    for name, value in zip(cls.declared_fields(), args, strict=False):
        interp.store_attribute(made.key, name, value)
    for name, value in keywords.items():
        interp.store_attribute(made.key, name, value)
    # Unpacked keywords may hold a value for any field.
    made.is_open = made.is_open or "**" in keywords
