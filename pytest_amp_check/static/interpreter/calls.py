"""Evaluation of calls: resolve the callee, and pass unanalyzed code to the protocol as unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..project.roles import CALLABLE_ROLES
from .conditions import conjunction
from .contexts import enter_context, entered_value, without_unrelated
from .expressions.attributes import attribute_of, item_of
from .expressions.iteration import note_batch
from .expressions.names import role_by_use
from .functions import inline_call
from .interpreter import HandlerTable, Interpreter
from .joins import for_each_alternative
from .values.containers import MappingValue, SequenceValue, UnionValue, merge_into
from .values.contexts import StackContext
from .values.definitions import (
    Args,
    BoundMethod,
    ExternalName,
    FunctionValue,
    GeneratorContext,
    Keywords,
    ModuleValue,
    PartialCall,
)
from .values.objects import StateDict
from .values.tensors import as_one_of_many
from .values.value import NO_CONSTANT, NONE, Const, Value


def _evaluate_call(interp: Interpreter, node: ast.Call) -> Value:
    value = _dispatch_call(interp, node)
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    # Subclasses of a Trainer have a name that ends in the same way.
    hear = interp.handlers.call_result_listeners.get("Trainer" if name.endswith("Trainer") else name)
    if hear is not None:
        hear(interp, value, node)
    return value


def _dispatch_call(interp: Interpreter, node: ast.Call) -> Value:
    func = node.func
    if interp.visited_calls is not None and interp.state.current_node is not None:
        interp.visited_calls.add_call(interp.site_of(node))
    if isinstance(func, ast.Attribute) and role_by_use(interp, func) not in CALLABLE_ROLES:
        receiver = interp.evaluate(func.value)
        if isinstance(receiver, (ExternalName, ModuleValue)):
            return _call_value_at(interp, attribute_of(interp, receiver, func.attr, func), node)
        args, keywords = evaluate_arguments(interp, node)
        return for_each_alternative(interp, receiver, lambda r: interp.call_method(r, func.attr, args, keywords, node))
    return _call_value_at(interp, interp.evaluate(func), node)


def _call_value_at(interp: Interpreter, callee: Value, node: ast.Call) -> Value:
    args, keywords = evaluate_arguments(interp, node)
    return interp.call_value(callee, args, keywords, node)


def evaluate_arguments(interp: Interpreter, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    args: Args = []
    for arg in node.args:
        value = interp.evaluate(arg)
        if not isinstance(arg, ast.Starred):
            args.append(value)
        elif isinstance(value, SequenceValue) and not value.is_open:
            args.extend(value.items)
            interp.unpacked_arguments.add(arg)
        else:
            args.append(value)
            interp.unpacked_arguments.discard(arg)
    keywords: Keywords = {}
    for keyword in node.keywords:
        value = interp.evaluate(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, MappingValue):
            keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
            if value.is_open:
                keywords["**"] = value
        else:
            keywords["**"] = value
    return args, keywords


def _call_each(interp: Interpreter, func: UnionValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return for_each_alternative(interp, func, lambda each: interp.call_value(each, args, keywords, node))


def _call_partial(interp: Interpreter, func: PartialCall, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return interp.call_value(func.func, [*func.args, *args], {**func.keywords, **keywords}, node)


def _call_bound(interp: Interpreter, func: BoundMethod, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return for_each_alternative(
        interp, func.receiver, lambda each: interp.call_method(each, func.name, args, keywords, node)
    )


def _call_function(interp: Interpreter, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if func.function.is_context_manager:
        return GeneratorContext(func, args, keywords, node)
    return inline_call(interp, func, args, keywords, node)


def _call_decorator(interp: Interpreter, func: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Return the context itself for a call of a context, as in a decorator."""
    return func


def _function_method(
    interp: Interpreter, receiver: FunctionValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "__call__":
        return interp.call_value(receiver, args, keywords, node)
    return interp.handlers.methods[""](interp, receiver, name, args, keywords, node)


def _function_attribute(interp: Interpreter, receiver: FunctionValue, name: str, node: ast.AST) -> Value | None:
    return Const(receiver.function.name) if name == "__name__" else None


def _stack_method(
    interp: Interpreter, receiver: StackContext, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "enter_context" and args:
        context = without_unrelated(interp, args[0], node.args[0]) if isinstance(node, ast.Call) else args[0]
        lists = (interp.state.no_sync_conditions, interp.state.float8_conditions)
        counts, no_grad = [len(conditions) for conditions in lists], interp.state.no_grad
        enter_context(interp, context, node)
        # The context stays open after the branch that entered it. On other paths gradients may be recorded.
        path = interp.state.path_condition[receiver.path_length :]
        interp.state.no_grad = no_grad if path else interp.state.no_grad
        for conditions, count in zip(lists, counts, strict=True):
            conditions[count:] = (conjunction(*path, condition) for condition in conditions[count:])
        receiver.entered_contexts.append(context)
        return entered_value(interp, context, node if isinstance(node, ast.expr) else ast.Constant(None))
    if name == "pop_all":
        receiver.is_released = True
    return interp.fresh_unknown(node, name)


def _state_method(
    interp: Interpreter, receiver: StateDict, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    return receiver


#: Results of dict methods that return keys, values or a copy.
_VIEWS: dict[str, Callable[[MappingValue], Value]] = {
    "copy": lambda held: MappingValue(held.items, is_open=held.is_open),
    "keys": lambda held: SequenceValue([Const(k) for k in held.items], is_open=held.is_open),
    "values": lambda held: SequenceValue(list(held.items.values()), is_open=held.is_open),
    "items": lambda held: SequenceValue(
        [SequenceValue([Const(k), v]) for k, v in held.items.items()], is_open=held.is_open
    ),
}


def _mapping_method(
    interp: Interpreter, receiver: MappingValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "update":
        for value in (*args, MappingValue(keywords, is_open="**" in keywords)):
            merge_into(receiver, value)
        return NONE
    view = _VIEWS.get(name)
    if view is not None:
        return view(receiver)
    if name == "clear":
        receiver.items.clear()
        return NONE
    if name == "setdefault" and len(args) == 2 and args[0].value is not NO_CONSTANT:
        if args[0].value not in receiver.items:
            receiver.set_item(args[0].value, args[1])
        return receiver.items.get(args[0].value, args[1])
    if name in ("get", "pop", "setdefault") and args:
        found = item_of(interp, receiver, args[0], node, args[1] if len(args) > 1 else None)
        if name == "pop":
            receiver.items.pop(args[0].value, None)
        return found
    return interp.fresh_unknown(node, name)


def _sequence_method(
    interp: Interpreter, receiver: SequenceValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    repeats = any(not loop.runs_once for loop in interp.state.loops)
    if name == "append" and args:
        receiver.append_items([as_one_of_many(args[0]) if repeats else args[0]])
        note_batch(interp, receiver, args[0])
        receiver.is_open = receiver.is_open or repeats
    elif name == "insert" and len(args) == 2:
        position = args[0].value
        receiver.insert_items(position if isinstance(position, int) else 0, [args[1]])
        receiver.is_open = receiver.is_open or repeats or not isinstance(position, int)
    elif name == "extend" and args:
        value = args[0]
        receiver.append_items(value.items if isinstance(value, SequenceValue) else [value])
    return interp.fresh_unknown(node, name)


#: Methods of containers that code may store for a later call, by the kind of the container.
_CONTAINER_METHODS = {
    "mapping": frozenset({*_VIEWS, "update", "clear", "setdefault", "get", "pop"}),
    "sequence": frozenset({"append", "insert", "extend"}),
    "stack": frozenset({"enter_context", "pop_all"}),
}


def _container_attribute(interp: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value | None:
    return BoundMethod(receiver, name) if name in _CONTAINER_METHODS[receiver.kind] else None


def register(handlers: HandlerTable) -> None:
    handlers.attributes.update(dict.fromkeys(_CONTAINER_METHODS, _container_attribute))
    handlers.attributes["function"] = _function_attribute
    handlers.expressions[ast.Call] = _evaluate_call
    handlers.calls.update(
        {
            "choice": _call_each,
            "partial": _call_partial,
            "bound method": _call_bound,
            "function": _call_function,
            "null context": _call_decorator,
            "grad mode": _call_decorator,
        }
    )
    handlers.methods.update(
        {
            "function": _function_method,
            "stack": _stack_method,
            "mapping": _mapping_method,
            "sequence": _sequence_method,
            "state": _state_method,
        }
    )
