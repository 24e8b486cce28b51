"""Second moments of gradients that an optimizer of the project keeps in low precision."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ...protocol import events as e
from ...protocol.source_text import SourceText, access_text
from ...protocol.torch_api import DTYPES
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.syntax import is_same_syntax, walk
from .syntax_queries import constant_of_node, keywords_of, last_name, receiver_of

_CREATES = frozenset(("zeros_like", "zeros", "new_zeros"))
_LOW = frozenset(("float16", "bfloat16"))
#: Parts of names in code that compensates the rounding of a state.
_COMPENSATES = ("stochastic", "kahan", "compensat")


def _report_low_moments(interp: Interpreter) -> None:
    module = interp.module
    if module.identifiers.isdisjoint(_CREATES) or module.identifiers.isdisjoint(_LOW):
        return
    if any(part in name.lower() for name in module.identifiers for part in _COMPENSATES):
        return
    for cls in module.classes.values():
        nodes = [node for method in cls.methods.values() for node in method.nodes] if "step" in cls.methods else []
        averaged = _averages_of_squares(nodes)
        for key, created, dtype in _low_states(interp, nodes):
            if key in averaged:
                event = e.LowSum(interp.site_of(created), moment=True, names={"sum": SourceText(created)})
                event.dtype = dtype
                interp.emit_at(event)


def _low_states(interp: Interpreter, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the states, such as ``state["exp_avg_sq"]``, that are created in a low dtype: key, call, dtype."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(key)))], value=ast.Call() as call):
                given = keywords_of(call).get("dtype") if last_name(call.func) in _CREATES else None
                dtype = "" if given is None else DTYPES.get(dotted_name(interp, given) or "", "")
                if dtype in _LOW:
                    yield key, call, dtype


def _averages_of_squares(nodes: list[ast.AST]) -> set[str]:
    """Return the keys of the states that decay and get squares added: ``v.mul_(b).addcmul_(g, g, value=1 - b)``."""
    keys = dict(_keys_of_variables(nodes))
    decayed: set[str] = set()
    squared: set[str] = set()
    for call in nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner = receiver_of(call)
        while isinstance(owner, ast.Call):
            owner = receiver_of(owner)
        key = _key_of(owner) or keys.get(access_text(owner), "")
        if call.func.attr in ("mul_", "lerp_"):
            decayed.add(key)
        if call.func.attr in ("addcmul_", "add_", "lerp_") and _has_square(call):
            squared.add(key)
    return (decayed & squared) - {""}


def _keys_of_variables(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the variables that hold states, with the key: ``m, v = state["exp_avg"], state["exp_avg_sq"]``."""
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for variable, held in pairs:
            key = _key_of(held)
            if key and isinstance(variable, ast.Name):
                yield variable.id, key


def _key_of(node: ast.AST | None) -> str:
    """Return the literal key of ``state[key]``, or ""."""
    key = constant_of_node(node.slice) if isinstance(node, ast.Subscript) else ""
    return key if isinstance(key, str) else ""


def _has_square(call: ast.Call) -> bool:
    """Return True if an update adds the square of a tensor."""
    if last_name(call.func) == "addcmul_":
        factors = call.args[-2:]
        return len(factors) == 2 and is_same_syntax(*factors)
    return any(_is_square(part) for argument in call.args for part in walk(argument))


def _is_square(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return is_same_syntax(left, right)
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
            return True
        case ast.Call(func=ast.Attribute(attr="square")):
            return True
        case ast.Call(func=ast.Attribute(attr="pow"), args=[*_, ast.Constant(value=2)]):
            return True
    return False


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_low_moments)
