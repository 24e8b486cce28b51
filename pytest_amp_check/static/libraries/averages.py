"""Moving averages of weights that a class or a variable keeps in low precision."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from ...protocol import events as e
from ...protocol.source_text import SourceText, access_text
from ...protocol.torch_api import DTYPES
from ..interpreter.imports import dotted_name, load_any_import
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import ClassValue, ExternalName
from ..interpreter.values.value import Value
from ..project.module import Class, Function, Module
from ..project.syntax import walk
from .default_dtypes import find_default_dtypes
from .syntax_queries import assigned_values, find_nodes, iterate_scopes, last_name, receiver_of

_CASTS = {"half": "float16", "bfloat16": "bfloat16"}
_WIDENS = frozenset(("float", "double"))
_LOW = frozenset(_CASTS.values())
_LOW_NAMES = _LOW | {"half"}
_NO_DTYPES: Mapping[str, str] = {}
#: Functions and methods that copy weights, or a model with its weights.
_COPIES = frozenset(("deepcopy", "clone"))
#: In-place methods that decay an average, and the functions that decay a list of averages.
_DECAYS = frozenset(("mul_", "lerp_", "sub_"))
_LIST_DECAYS = frozenset(("_foreach_mul_", "_foreach_lerp_"))
_LIST_SUMS = frozenset(("_foreach_add_", "_foreach_lerp_"))

#: Number of calls that lead from a variable to the update of its average.
CALLS = 2

#: Methods that give the weights of a module, or another view of weights.
_VIEWS = frozenset(
    "parameters named_parameters buffers named_buffers state_dict items values detach view flatten".split()
)
#: Builtins that iterate over their arguments.
_ITERATORS = frozenset("zip enumerate list tuple iter reversed sorted dict OrderedDict".split())


def _report_low_averages(interp: Interpreter) -> None:
    module = interp.module
    if module.identifiers.isdisjoint(_COPIES) or module.identifiers.isdisjoint(_LOW_NAMES):
        return
    for cls in module.classes.values():
        for name, cast, dtype in _low_copies(interp, cls):
            if is_averaged(cls, name):
                _emit_low_average(interp, cast, dtype)
    seen: set[ast.AST] = set()
    for nodes in iterate_scopes(module):
        for name, cast, dtype in _low_variables(interp, nodes):
            # The nodes of a function are also those of the function around it.
            if cast not in seen and averages_variable(interp, nodes, name, CALLS):
                seen.add(cast)
                _emit_low_average(interp, cast, dtype)


def _report_averages_cast_by_callers(interp: Interpreter) -> None:
    """Report constructors of averages that get a low dtype, to which the class casts its copy of the weights."""
    module = interp.module
    if module.identifiers.isdisjoint(_LOW_NAMES):
        return
    seen: set[ast.AST] = set()
    # The names that `mark_relevant` keeps include those of the low dtypes.
    for nodes in iterate_scopes(module, _LOW_NAMES):
        low = _low_dtype_names(interp, nodes)
        for call in nodes if low else ():
            if not isinstance(call, ast.Call) or call in seen:
                continue
            seen.add(call)
            arguments: dict[object, ast.expr] = {
                **dict(enumerate(call.args)),
                **{keyword.arg: keyword.value for keyword in call.keywords},
            }
            given = {key: dtype for key, value in arguments.items() if (dtype := low.get(access_text(value), ""))}
            dtype = _dtype_of_average(interp, call, given, nodes) if given else ""
            if dtype:
                _emit_low_average(interp, call, dtype)


def _dtype_of_average(
    interp: Interpreter, call: ast.Call, given: dict[object, str], nodes: Iterable[ast.AST] = ()
) -> str:
    """Return the dtype, of those given by position or name, to which the class of an average casts its copy, or "".

    The call makes the average, or calls a method of an average that ``nodes`` assign to a variable.
    """
    cls = _find_class(interp, call.func)
    parameter = None if cls is None else _find_dtype_parameter(cls)
    if cls is None and isinstance(call.func, ast.Attribute):
        parameter = _find_parameter_of_cast(interp, call.func, nodes)
    return "" if parameter is None else given.get(parameter[1], given.get(parameter[0], ""))


def _find_parameter_of_cast(
    interp: Interpreter, func: ast.Attribute, nodes: Iterable[ast.AST]
) -> tuple[int, str] | None:
    """Return position and name of the parameter with the dtype to which a method casts an average, or None.

    ``average = Average(model)``, ``average.to(device, dtype)``.
    """
    makers = assigned_values(nodes, func.value.id) if isinstance(func.value, ast.Name) else []
    makers = [each.func for each in makers if isinstance(each, ast.Call)]
    cls = _find_class(interp, makers[-1]) if makers else None
    method = None if cls is None else cls.methods.get(func.attr)
    if cls is None or method is None:
        return None
    names = [parameter.arg for parameter in method.parameters()[1:]]
    for cast in method.find_nodes(ast.Call):
        held = _attribute_name(receiver_of(cast))
        if last_name(cast.func) == "to" and held and _is_copy(cls, held) and is_averaged(cls, held):
            for value in (*cast.args, *(keyword.value for keyword in cast.keywords)):
                if isinstance(value, ast.Name) and value.id in names and "dtype" in value.id:
                    return names.index(value.id), value.id
    return None


def _is_copy(cls: Class, name: str) -> bool:
    """Return True if a class assigns copies of weights to an attribute."""
    return any(
        last_name(call.func) in _COPIES
        for _, value in cls.assignments.get(name, ())
        for call in find_nodes(value, ast.Call)
    )


def _check_average_by_setting(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report the constructor of an average whose argument gets a low dtype from the default of a setting."""
    call = node.value
    if not isinstance(call, ast.Call) or not call.keywords or not last_name(call.func)[:1].isupper():
        return
    given: dict[object, str] = {}
    for keyword in call.keywords:
        if keyword.arg is not None and "dtype" in keyword.arg:
            for dtype, _ in find_default_dtypes(interp, keyword.value)[:1]:
                given[keyword.arg] = dtype
    dtype = _dtype_of_average(interp, call, given) if given else ""
    if dtype:
        _emit_low_average(interp, call, dtype)


def _low_dtype_names(interp: Interpreter, nodes: list[ast.AST]) -> dict[str, str]:
    """Return the low dtypes in a scope by their text, and the variables that may hold one."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in _LOW_NAMES:
            dtype = DTYPES.get(dotted_name(interp, node) or "", "")
            if dtype in _LOW:
                found[access_text(node)] = dtype
    for node in nodes if found else ():
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                match value:
                    case ast.IfExp(body=body, orelse=orelse):
                        parts = [body, orelse]
                    case ast.Subscript(value=ast.Dict(values=parts)):
                        pass
                    case _:
                        parts = [value]
                dtypes = {found[text] for part in parts if (text := access_text(part)) in found}
                if dtypes:
                    found[name] = "half" if len({*dtypes, found.get(name, "")} - {""}) > 1 else dtypes.pop()
    return found


def _find_class(interp: Interpreter, func: ast.expr) -> Class | None:
    """Return the class of the project that a call instantiates, or None."""
    # A class begins with a capital letter; functions with a dtype are many.
    if not isinstance(func, (ast.Name, ast.Attribute)) or not last_name(func)[:1].isupper():
        return None
    # The file of the average need not name a low dtype.
    outer, interp.loads_any_file = interp.loads_any_file, True
    value: Value | None = interp.without_events(lambda: interp.evaluate(func))
    interp.loads_any_file = outer
    if isinstance(value, ExternalName) and isinstance(func, ast.Name):
        value = load_any_import(interp, func.id, interp.module)
    return value.cls if isinstance(value, ClassValue) else None


def _find_dtype_parameter(cls: Class) -> tuple[int, str] | None:
    """Return position and name of the parameter with the dtype of an average or of running statistics, or None."""
    init = cls.methods.get("__init__")
    if init is None:
        return None
    names = [parameter.arg for parameter in init.parameters()[1:]]
    updates = [node for method in cls.methods.values() if method is not init for node in method.nodes]
    for value in (*_dtypes_of_copy(init, updates), *_dtypes_of_statistics(init, updates)):
        if isinstance(value, ast.Name) and value.id in names and "dtype" in value.id:
            return names.index(value.id), value.id
    return None


def _dtypes_of_copy(init: Function, updates: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what a constructor gives to casts of a copy that other methods decay."""
    copies = any(last_name(call.func) in _COPIES for call in init.find_nodes(ast.Call))
    for call in init.find_nodes(ast.Call) if copies and any(map(is_in_place_decay, updates)) else ():
        held = receiver_of(call)
        is_copy = held is not None and any(last_name(each.func) in _COPIES for each in find_nodes(held, ast.Call))
        if last_name(call.func) == "to" and (is_copy or _attribute_name(held)):
            yield from (*call.args, *(keyword.value for keyword in call.keywords))


def _dtypes_of_statistics(init: Function, updates: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield the dtypes of attributes that a constructor creates as zeros or ones, and other methods update in place."""
    created: dict[str, ast.expr] = {}
    for node in init.nodes:
        name, value = "", None
        match node:
            case ast.Assign(targets=[target], value=made):
                name, value = _attribute_name(target), made
            case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=str(key)), made, *_]):
                name, value = key, made
        if name and isinstance(value, ast.Call) and last_name(value.func) in ("zeros", "ones"):
            created.update((name, k.value) for k in value.keywords if k.arg == "dtype")
    for node in updates if created else ():
        changed = ""
        match node:
            case ast.AugAssign(target=target, op=ast.Add()):
                changed = _attribute_name(target)
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in ("lerp_", "mul_", "add_"):
                changed = _attribute_name(owner)
        if changed in created:
            yield created[changed]


def is_in_place_decay(node: ast.AST) -> bool:
    """Return True if a node decays a tensor, whatever holds it: a dictionary may hold the weights of the copy."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in ("mul_", "lerp_") or method in _LIST_DECAYS
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult)


def _emit_low_average(interp: Interpreter, cast: ast.Call, dtype: str) -> None:
    event = e.LowSum(interp.site_of(cast), average=True, names={"sum": SourceText(cast)})
    event.dtype = dtype
    interp.emit_at(event)


def _low_variables(interp: Interpreter, nodes: list[ast.AST]) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the variables of a scope that hold copies of weights in a low dtype, each with the cast and the dtype.

    A cast whose result is used elsewhere, such as one for a file, leaves a tensor as it was.
    """
    casts: dict[str, list[ast.Call]] = {}
    copies: list[str] = []
    widened: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                calls = find_nodes(value, ast.Call)
                if any(last_name(call.func) in _COPIES for call in calls):
                    copies.append(name)
                if any(last_name(call.func) in _WIDENS for call in calls):
                    widened.add(name)
                casts.setdefault(name, []).extend(calls)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call):
                casts.setdefault(name, []).append(call)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _WIDENS:
                widened.add(name)
    low = _low_dtype_names(interp, nodes) if copies else {}
    for name in dict.fromkeys(copies):
        found = ((call, _cast_dtype(interp, call, low=low)) for call in casts[name])
        cast = next(((call, dtype) for call, dtype in found if dtype), None)
        if cast is not None and name not in widened:
            yield name, *cast


def averages_variable(interp: Interpreter, nodes: list[ast.AST], name: str, depth: int) -> bool:
    """Return True if a scope decays the weights in a variable.

    The decay may be in a function of the file, or in a method of an object that gets the variable.
    """
    held = _find_holders(nodes, frozenset((name,)))
    # Without a second term, the weights are only scaled, such as once after the copy.
    if any(_is_decay(node, held) for node in nodes) and any(_adds_term(node, held) for node in nodes):
        return True
    calls = [node for node in nodes if isinstance(node, ast.Call)] if depth > 0 else []
    return any(
        averages_variable(interp, function.nodes, parameter, depth - 1)
        for call in calls
        for parameter, function in _parameters_given(call, held, interp.module)
    ) or any(_is_given_to_average(interp, call, name) for call in calls)


def _is_given_to_average(interp: Interpreter, call: ast.Call, name: str) -> bool:
    """Return True if a call makes an object of the project that keeps a variable, and averages its weights."""
    given: dict[object, ast.expr] = {**dict(enumerate(call.args)), **{each.arg: each.value for each in call.keywords}}
    places = [place for place, value in given.items() if access_text(value) == name]
    cls = _find_class(interp, call.func) if places else None
    init = None if cls is None else cls.methods.get("__init__")
    if cls is None or init is None:
        return False
    parameters = [each.arg for each in init.parameters()[1:]]
    named = dict(enumerate(parameters))
    kept = {named.get(place) if isinstance(place, int) else place for place in places}
    return any(
        is_averaged(cls, attribute) and any(access_text(_without_calls(value)) in kept for _, value in values)
        for attribute, values in cls.assignments.items()
    )


def _without_calls(value: ast.expr) -> ast.expr:
    """Return the object of a chain of method calls: ``model`` for ``model.eval().requires_grad_(False)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value


def _parameters_given(call: ast.Call, held: frozenset[str], module: Module) -> Iterator[tuple[str, Function]]:
    """Yield the parameters of functions of the file to which a call gives one of some variables."""
    if not isinstance(call.func, ast.Name):
        return
    for function in module.functions_by_name.get(call.func.id, ()):
        parameters = [each.arg for each in function.node.args.args]
        for parameter, argument in zip(parameters, call.args, strict=False):
            if isinstance(argument, ast.Name) and argument.id in held:
                yield parameter, function
        for keyword in call.keywords:
            if keyword.arg in parameters and isinstance(keyword.value, ast.Name) and keyword.value.id in held:
                yield keyword.arg, function


def _low_copies(interp: Interpreter, cls: Class) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the attributes that hold copies of weights in a low dtype, each with the cast and the dtype."""
    for name, values in _assigned_attributes(cls):
        calls = [(method, call) for method, value in values for call in find_nodes(value, ast.Call)]
        if not any(last_name(call.func) in _COPIES for _, call in calls):
            continue
        own = [
            (method, call)
            for method in cls.methods.values()
            for call in method.find_nodes(ast.Call)
            if _attribute_name(receiver_of(call)) == name
        ]
        if any(last_name(call.func) in _WIDENS for _, call in own):
            continue
        for method, call in (*calls, *own):
            dtype = _cast_dtype(interp, call, method) if method.name == "__init__" else ""
            if dtype:
                yield name, call, dtype


def _assigned_attributes(cls: Class) -> list[tuple[str, list[tuple[Function, ast.expr]]]]:
    """Return the attributes of a class with the values that its methods assign to them, or to their items."""
    found = {name: list(values) for name, values in cls.assignments.items()}
    for method in cls.methods.values():
        for node in method.find_nodes(ast.Assign):
            for target in node.targets:
                name = _attribute_name(target.value) if isinstance(target, ast.Subscript) else ""
                if name:
                    found.setdefault(name, []).append((method, node.value))
    return list(found.items())


def _cast_dtype(
    interp: Interpreter, call: ast.Call, function: Function | None = None, low: Mapping[str, str] = _NO_DTYPES
) -> str:
    """Return the low dtype to which a method call casts, or "".

    A parameter of ``function`` stands for its default. ``low`` are the variables that may hold a low dtype.
    """
    if receiver_of(call) is None:
        return ""
    method = last_name(call.func)
    if method in _CASTS and not call.args:
        return _CASTS[method]
    if method != "to":
        return ""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if function is not None:
        defaults = function.defaults()
        given = [defaults.get(access_text(value), value) for value in given]
    named = (low.get(access_text(value)) or DTYPES.get(dotted_name(interp, value) or "", "") for value in given)
    return next((dtype for dtype in named if dtype in _LOW_NAMES), "")


def is_averaged(cls: Class, name: str) -> bool:
    """Return True if a method updates the weights in an attribute as a moving average: it decays them.

    What a copied model computes is no weight: a teacher in low precision is not averaged.
    """
    for method in cls.methods.values():
        if method.name != "__init__":
            nodes = method.nodes
            held = _find_holders(nodes, frozenset((f"self.{name}",)))
            if any(_is_decay(node, held) for node in nodes):
                return True
    return False


def _find_holders(nodes: list[ast.AST], held: frozenset[str]) -> frozenset[str]:
    """Return the variables that hold the weights in some variables or attributes, directly or as loop variables."""
    bindings: list[tuple[list[ast.expr], ast.expr]] = []
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                bindings.append((targets, value))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                bindings.append(([target], value))
    while True:
        bound = [target for targets, value in bindings if _holds_weights(value, held) for target in targets]
        found = held.union(each.id for target in bound for each in walk(target) if isinstance(each, ast.Name))
        if found == held:
            return held
        held = found


def _holds_weights(node: ast.expr, held: frozenset[str]) -> bool:
    """Return True if an expression holds the weights in one of the variables or attributes of ``self`` in ``held``."""
    match node:
        case ast.Name(id=variable):
            return variable in held
        case ast.Attribute(value=owner):
            return f"self.{_attribute_name(node)}" in held or _holds_weights(owner, held)
        case ast.Subscript(value=owner):
            return _holds_weights(owner, held)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _VIEWS:
            return _holds_weights(owner, held)
        case ast.Call(func=ast.Name(id=function), args=args) if function in _ITERATORS:
            return any(_holds_weights(arg, held) for arg in args)
    return False


def _is_decay(node: ast.AST, held: frozenset[str]) -> bool:
    match node:
        case ast.AugAssign(op=ast.Mult(), target=target):
            return _holds_weights(target, held)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _DECAYS:
            return _holds_weights(owner, held)
        case ast.Call(func=ast.Attribute(attr=method), args=[weights, *_]) if method in _LIST_DECAYS:
            return _holds_weights(weights, held)
        case ast.Call(func=ast.Attribute(attr="lerp"), args=args):
            return any(_holds_weights(weights, held) for weights in args)
        case (
            ast.Call(func=ast.Attribute(value=owner, attr="add_"), args=[added, *_])
            | ast.AugAssign(op=ast.Add(), target=owner, value=added)
        ):
            return _holds_weights(owner, held) and _subtracts_weights(added, held)
        case ast.BinOp(left=ast.BinOp(op=ast.Mult()) as left, op=ast.Add(), right=ast.BinOp(op=ast.Mult()) as right):
            parts = (left.left, left.right, right.left, right.right)
            return any(_holds_weights(part, held) for part in parts)
    return False


def _subtracts_weights(node: ast.expr, held: frozenset[str]) -> bool:
    """Return True if an expression contains a difference from the weights: ``(1 - decay) * (p - average)``."""
    differences = (each for each in find_nodes(node, ast.BinOp) if isinstance(each.op, ast.Sub))
    return any(_holds_weights(each.right, held) for each in differences)


def _adds_term(node: ast.AST, held: frozenset[str]) -> bool:
    match node:
        case ast.AugAssign(op=ast.Add(), target=target):
            return _holds_weights(target, held)
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(value=owner, attr="mul_")), attr="add_")):
            return _holds_weights(owner, held)
        case ast.Call(func=ast.Attribute(value=owner, attr="add_" | "lerp_" | "sub_")):
            return _holds_weights(owner, held)
        case ast.Call(func=ast.Attribute(attr=method), args=[weights, *_]) if method in _LIST_SUMS:
            return _holds_weights(weights, held)
        case ast.BinOp() | ast.Call(func=ast.Attribute(attr="lerp")):
            return _is_decay(node, held)
    return False


def _attribute_name(node: ast.AST | None) -> str:
    """Return the name of an attribute of ``self``, or ""."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def register(handlers: HandlerTable) -> None:
    handlers.assignment_listeners.append(_check_average_by_setting)
    handlers.file_end_listeners.append(_report_low_averages)
    handlers.file_end_listeners.append(_report_averages_cast_by_callers)
