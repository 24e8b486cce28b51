"""Classes of the project that reimplement ``torch.amp.GradScaler``: their instances follow torch's protocol.

The methods decide, not the name. A class that also clears gradients, runs backward or updates the scale in ``step`` has
a protocol of its own, and its methods are analyzed like other code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..interpreter.classes.lineage import method_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import Args, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.value import Value
from ..project.module import Class, Function
from .arguments import bind_arguments, make_object
from .regions import enabled_condition
from .syntax_queries import constant_of_node

#: Methods that training code calls on a scaler. ``unscale_`` stands first: few other classes have such a method.
_INTERFACE = ("unscale_", "scale", "step", "update", "state_dict", "load_state_dict")
#: Calls that torch's scaler leaves to the training loop.
_CALLED_BY_LOOPS = frozenset({"backward", "zero_grad"})
#: Methods that multiply a tensor.
_MULTIPLYING = frozenset({"mul", "mul_", "multiply", "multiply_"})


def _make_copied_scaler(interp: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return a scaler for an instance of a class that reimplements torch's scaler, or None for another class."""
    if not _reimplements_scaler(interp, cls):
        return None
    init = method_of(interp, cls, "__init__")
    parameters = () if init is None else tuple(parameter.arg for parameter in init.parameters()[1:])
    bound = bind_arguments(parameters, args, keywords)
    open_ended = "**" in bound or (init is not None and _is_disabled_by_default(init))
    enabled = enabled_condition(interp, bound, node, open_ended=open_ended)
    tracked_object = make_object(interp, "scaler", node)
    made = tracked_object.attributes
    made.constructed, made.enabled, made.callable, made.is_copy = True, enabled, cls.name, True
    return ObjectRef(tracked_object, enabled)


def is_copied_scale(interp: Interpreter, method: Function) -> bool:
    """Return True if a method of a subclass of torch's scaler is ``scale``, and does the same as torch's method.

    The method multiplies, and leaves nothing to torch's method. Code for lists of losses would hide the result.
    """
    if method.name != "scale" or method.cls is None:
        return False
    code = list(_reachable_methods(interp, method.cls, method.name))
    calls_torch = any(isinstance(node, ast.Name) and node.id == "super" for each in code for node in each.nodes)
    return not calls_torch and any(map(_multiplies, code))


def _reimplements_scaler(interp: Interpreter, cls: Class) -> bool:
    """Return True if a class has the methods of torch's scaler, and they do what torch's methods do.

    ``scale`` multiplies, ``unscale_`` changes gradients, ``step`` steps its argument, and ``update`` assigns a new
    state. Thus a scaler that does nothing is no copy.
    """
    if any(method_of(interp, cls, name) is None for name in _INTERFACE):
        return False
    code = {name: list(_reachable_methods(interp, cls, name)) for name in _INTERFACE}
    used = {name: frozenset[str]().union(*(each.attributes_used() for each in code[name])) for name in _INTERFACE}
    return (
        not any(_CALLED_BY_LOOPS & names for names in used.values())
        and "update" not in used["step"] | used["unscale_"] | used["scale"]
        and "grad" in used["unscale_"]
        and any(map(_multiplies, code["scale"]))
        and any(map(_steps_parameter, code["step"]))
        and any(method.stores_in_objects() for method in code["update"])
    )


def _reachable_methods(interp: Interpreter, cls: Class, name: str) -> Iterator[Function]:
    """Yield a method of a class and the methods of the class that it may call, directly or indirectly."""
    seen, todo = {name}, [name]
    while todo:
        method = method_of(interp, cls, todo.pop())
        if method is not None:
            yield method
            todo += method.attributes_used() - seen
            seen |= method.attributes_used()


def _multiplies(method: Function) -> bool:
    return any(
        (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))
        or (isinstance(node, ast.Attribute) and node.attr in _MULTIPLYING)
        for node in method.nodes
    )


def _steps_parameter(method: Function) -> bool:
    """Return True if a method calls ``step`` on one of its parameters."""
    names = {parameter.arg for parameter in method.parameters()[1:]}
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
        for node in method.nodes
    )


def _is_disabled_by_default(init: Function) -> bool:
    """Return True if the parameter ``enabled`` of a constructor may be false without an argument."""
    spec = init.node.args
    defaults = dict(zip(reversed(init.parameters()), reversed(spec.defaults), strict=False))
    defaults.update((name, given) for name, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if given)
    return any(name.arg == "enabled" and constant_of_node(given) is not True for name, given in defaults.items())


def register(handlers: HandlerTable) -> None:
    handlers.constructors[""] = _make_copied_scaler
