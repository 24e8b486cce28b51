"""Calls of instances and of methods of instances and classes, and instances as contexts."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ..contexts import SelfBindingHandler
from ..functions import inline_call, is_static
from ..interpreter import Interpreter, first_result
from ..joins import for_each_alternative
from ..source_text import expression_text
from ..unanalyzed_code import call_unknown, open_passed_mappings
from ..values.definitions import (
    Args,
    BoundMethod,
    ClassValue,
    FunctionValue,
    GeneratorContext,
    Instance,
    Keywords,
    SuperValue,
)
from ..values.value import NONE, Value
from .assigned_attributes import find_assigned_value
from .attributes import as_mapping, ask_delegate, find_in_class, get_super_attribute
from .bound_methods import bind_method
from .lineage import method_of


def call_method(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    method = method_of(interp, receiver.cls, name)
    if method is None:
        return NONE
    func = bind_method(interp, method, receiver)
    if method.is_context_manager:
        return GeneratorContext(func, args, keywords, node)
    return inline_call(interp, func, args, keywords, node)


def call_instance_method(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    stored = interp.state.heap.get((receiver.key, name))
    if stored is not None:
        return interp.call_value(stored, args, keywords, node)
    method = method_of(interp, receiver.cls, name)
    if method is not None:
        if receiver.tracked_object is not None and name == "forward":
            return interp.call_value(receiver, args, keywords, node)
        given = find_in_class(interp, receiver, name, node) if method.is_property() else None
        if given is not None:
            return interp.call_value(given, args, keywords, node)
        return interp.call_value(
            bind_method(interp, method, None if is_static(method) else receiver), args, keywords, node
        )
    found = first_result(interp.handlers.inherited_methods, interp, receiver, name, args, keywords, node)
    if found is not None:
        return found
    if receiver.tracked_object is not None:
        return interp.handlers.methods["module"](interp, receiver, name, args, keywords, node)
    if name == "_asdict":
        return as_mapping(interp, receiver)
    assigned = find_assigned_value(interp, receiver, name)
    if assigned is not None:
        return interp.call_value(assigned, args, keywords, node)
    answer = ask_delegate(
        interp,
        receiver,
        node,
        lambda delegate: for_each_alternative(
            interp, delegate, lambda each: interp.call_method(each, name, args, keywords, node)
        ),
    )
    if answer is not None:
        return answer
    open_passed_mappings(interp, receiver, [*args, *keywords.values()])
    return call_unknown(
        interp, interp.unknown_value(("attribute of", receiver.key, name), expression_text(node)), args, keywords, node
    )


#: Class method by which libraries load a model.
LOADER = "from_pretrained"


def call_class_method(
    interp: Interpreter, receiver: ClassValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = first_result(interp.handlers.class_methods, interp, receiver, name, args)
    if found is not None:
        return found
    method = method_of(interp, receiver.cls, name)
    # The loader of a library takes long to analyze, and what it returns is a model like any other.
    if method is None or (name == LOADER and method.module is not interp.module):
        return call_unknown(
            interp, interp.unknown_value(("class attribute", id(receiver.cls.node), name), name), args, keywords, node
        )
    if "classmethod" in method.decorator_names():
        args = [receiver, *args]
    return interp.call_value(FunctionValue(method, receiver.frame), args, keywords, node)


def call_object(interp: Interpreter, func: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    # The base class of another package, such as a LightningModule, may be a module: its call runs the forward.
    name = "__call__" if method_of(interp, func.cls, "__call__") is not None else "forward"
    return call_method(interp, func, name, args, keywords, node)


def call_super_method(
    interp: Interpreter, receiver: SuperValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = get_super_attribute(interp, receiver, name, node)
    if isinstance(found, FunctionValue):
        return inline_call(interp, found, args, keywords, node)
    if isinstance(found, BoundMethod):
        return interp.call_value(found, args, keywords, node)
    open_passed_mappings(interp, receiver.receiver, [*args, *keywords.values()])
    return call_unknown(interp, found, args, keywords, node)


class InstanceHandler(SelfBindingHandler):
    """Handler for an instance as a context: the class defines entering and leaving."""

    def enter(self, interp: Interpreter, value: Instance, node: ast.AST) -> None:
        call_method(interp, value, "__enter__", [], {}, node)

    def exit(self, interp: Interpreter, value: Instance, node: ast.AST, depth: int) -> None:
        call_method(interp, value, "__exit__", [NONE, NONE, NONE], {}, node)
        if interp.state.regions_entered:
            # The instance closes each region that it opened, wherever the class keeps the context.
            interp.emit(e.AutocastExit, node, depth=depth)
