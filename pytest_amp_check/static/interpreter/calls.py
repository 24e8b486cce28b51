"""Calls: finds out what is called, and hands what cannot be read to the protocol as unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..project.roles import CALLED
from .contexts import enter, entered_value
from .expressions import attribute, item, use_of
from .forks import on_each
from .functions import follow
from .interpreter import Handlers, Interpreter
from .values import (
    NONE,
    UNREAD,
    Args,
    BoundMethod,
    Choice,
    Const,
    FunctionValue,
    HelperContext,
    Keywords,
    Mapping,
    ModuleValue,
    Named,
    Partial,
    Sequence,
    StackContext,
    StateDict,
    Value,
    merge_into,
)


def _call(at: Interpreter, node: ast.Call) -> Value:
    value = _called(at, node)
    func = node.func
    hear = at.handlers.results.get(func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", ""))
    if hear is not None:
        hear(at, value, node)
    return value


def _called(at: Interpreter, node: ast.Call) -> Value:
    func = node.func
    if at.passed is not None and at.state.cur is not None:
        at.passed.come_by(at.site(node))
    if isinstance(func, ast.Attribute) and use_of(at, func) not in CALLED:
        receiver = at.evaluate(func.value)
        if isinstance(receiver, (Named, ModuleValue)):
            return _call_value_at(at, attribute(at, receiver, func.attr, func), node)
        args, keywords = arguments(at, node)
        return on_each(at, receiver, lambda r: at.method(r, func.attr, args, keywords, node))
    return _call_value_at(at, at.evaluate(func), node)


def _call_value_at(at: Interpreter, callee: Value, node: ast.Call) -> Value:
    args, keywords = arguments(at, node)
    return at.call_value(callee, args, keywords, node)


def arguments(at: Interpreter, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    args: Args = []
    for arg in node.args:
        value = at.evaluate(arg)
        if isinstance(arg, ast.Starred) and isinstance(value, Sequence) and not value.open:
            args.extend(value.items)
        else:
            args.append(value)
    keywords: Keywords = {}
    for keyword in node.keywords:
        value = at.evaluate(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Mapping):
            keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
            if value.open:
                keywords["**"] = value
        else:
            keywords["**"] = value
    return args, keywords


def _call_each(at: Interpreter, func: Choice, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return on_each(at, func, lambda each: at.call_value(each, args, keywords, node))


def _call_partial(at: Interpreter, func: Partial, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return at.call_value(func.func, [*func.args, *args], {**func.keywords, **keywords}, node)


def _call_bound(at: Interpreter, func: BoundMethod, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return on_each(at, func.receiver, lambda each: at.method(each, func.name, args, keywords, node))


def _call_function(at: Interpreter, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if func.function.manager:
        return HelperContext(func, args, keywords, node)
    return follow(at, func, args, keywords, node)


def _call_decorator(at: Interpreter, func: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A context that is called again is the same context."""
    return func


def _function_method(
    at: Interpreter, receiver: FunctionValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "__call__":
        return at.call_value(receiver, args, keywords, node)
    return at.handlers.methods[""](at, receiver, name, args, keywords, node)


def _stack_method(
    at: Interpreter, receiver: StackContext, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "enter_context" and args:
        enter(at, args[0], node)
        return entered_value(at, args[0], node if isinstance(node, ast.expr) else ast.Constant(None))
    return at.fresh(node, name)


def _state_method(
    at: Interpreter, receiver: StateDict, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    return receiver


#: What a dict gives of what it holds.
_VIEWS: dict[str, Callable[[Mapping], Value]] = {
    "copy": lambda held: Mapping(held.items, open=held.open),
    "keys": lambda held: Sequence([Const(k) for k in held.items], open=held.open),
    "values": lambda held: Sequence(list(held.items.values()), open=held.open),
    "items": lambda held: Sequence([Sequence([Const(k), v]) for k, v in held.items.items()], open=held.open),
}


def _mapping_method(
    at: Interpreter, receiver: Mapping, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "update":
        for value in (*args, Mapping(keywords, open="**" in keywords)):
            merge_into(receiver, value)
        return NONE
    view = _VIEWS.get(name)
    if view is not None:
        return view(receiver)
    if name == "clear":
        receiver.items.clear()
        return NONE
    if name == "setdefault" and len(args) == 2 and args[0].value is not UNREAD:
        return receiver.items.setdefault(args[0].value, args[1])
    if name in ("get", "pop", "setdefault") and args:
        found = item(at, receiver, args[0], node)
        if name == "pop":
            receiver.items.pop(args[0].value, None)
        return found
    return at.fresh(node, name)


def _sequence_method(
    at: Interpreter, receiver: Sequence, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "append" and args:
        receiver.items.append(args[0])
        if at.state.loops:
            receiver.open = True
    elif name == "insert" and len(args) == 2:
        place = args[0].value
        receiver.items.insert(place if isinstance(place, int) else 0, args[1])
        receiver.open = receiver.open or bool(at.state.loops) or not isinstance(place, int)
    elif name == "extend" and args:
        value = args[0]
        receiver.items.extend(value.items if isinstance(value, Sequence) else [value])
    return at.fresh(node, name)


def register(handlers: Handlers) -> None:
    handlers.expressions[ast.Call] = _call
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
