"""Moving averages of a model's weights that are kept in the dtype of the weights, which the option says to be low."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...project.module import Function
from ...project.syntax import tail_name, walk
from ..syntax_queries import callee_of, first_argument, keywords_of, last_name, operands_of, receiver_of
from .events import emit_once
from .moving_averages import are_complements

#: Methods that return the weights of a module.
_WEIGHTS = frozenset(("parameters", "named_parameters", "state_dict"))
#: Names in code that widens weights or averages.
_WIDENS = frozenset(("float", "float32", "double", "float64"))


def report_averages_of_weights(interp: Interpreter) -> None:
    """Report the statements that move an average towards the weights of a model, unless the code widens either."""
    for function in interp.module.functions.values():
        if isinstance(function.node, ast.Lambda) or not _may_average(function):
            continue
        weights = _loop_names_of_weights(function)
        for node in function.nodes if weights else ():
            average = _find_average(node, weights)
            if average is not None:
                names = {"sum": SourceText(average)}
                emit_once(interp, e.LowSum, node, DtypeInfo(interp.assumed_dtype), average=True, names=names)


def _may_average(function: Function) -> bool:
    """Return True if a function names the weights of a module, and its class widens nothing."""
    methods = [function] if function.cls is None else [*function.cls.methods.values()]
    return not _WEIGHTS.isdisjoint(function.attributes_used()) and not any(
        _WIDENS & each.attributes_used() for each in methods
    )


def _loop_names_of_weights(function: Function) -> set[str]:
    """Return the variables of the loops over weights: ``for kept, p in zip(kept, model.parameters())``."""
    loops = [node for node in function.nodes if isinstance(node, (ast.For, ast.comprehension))]
    return {
        name.id
        for loop in loops
        if any(last_name(callee_of(part)) in _WEIGHTS for part in walk(loop.iter))
        for name in walk(loop.target)
        if isinstance(name, ast.Name)
    }


def _find_average(node: ast.AST, weights: set[str]) -> ast.expr | None:
    """Return the tensor that a statement or call moves by a share towards a weight, or None for another node."""
    match node:
        case ast.Assign(targets=[target], value=value) if isinstance(value, ast.BinOp):
            return target if _is_weighted_mean(value, weights) else None
        case ast.Call(func=ast.Attribute(attr="copy_"), args=[ast.BinOp() as value]):
            return receiver_of(node) if _is_weighted_mean(value, weights) else None
        case ast.Call(func=ast.Attribute(attr="lerp_"), args=[end, _]):
            return receiver_of(node) if _names_weight(end, weights) else None
        case ast.Call(func=ast.Attribute(attr="add_"), args=[term]):
            return _find_decayed(node, term, weights)
        case ast.Call(func=ast.Attribute(attr="sub_"), args=[term]):
            return receiver_of(node) if _is_share_of_distance(term, weights) else None
    return None


def _is_weighted_mean(value: ast.expr, weights: set[str]) -> bool:
    """Return True for ``d * a + (1 - d) * b``, with a weight on either side."""
    terms = [operands_of(side, ast.Mult) for side in operands_of(value, ast.Add)]
    if len(terms) != 2 or not all(terms):
        return False
    pairs = [(one, other) for one in terms[0] for other in terms[1]]
    return _names_weight(value, weights) and any(are_complements(one, other) for one, other in pairs)


def _find_decayed(node: ast.Call, term: ast.expr, weights: set[str]) -> ast.expr | None:
    """Return the average of ``average.mul_(d).add_(p, alpha=1 - d)``, or of ``add_((1 - d) * p)``."""
    inner = receiver_of(node)
    decay = first_argument(inner) if isinstance(inner, ast.Call) and last_name(inner.func) == "mul_" else None
    shares = [keywords_of(node).get("alpha"), *operands_of(term, ast.Mult)]
    is_share = decay is not None and any(part is not None and are_complements(decay, part) for part in shares)
    return receiver_of(inner) if is_share and _names_weight(term, weights) else None


def _is_share_of_distance(term: ast.expr, weights: set[str]) -> bool:
    """Return True for ``(1 - d) * (average - p)``."""
    return any(
        _names_weight(distance, weights) and len(operands_of(distance, ast.Sub)) == 2
        for distance in operands_of(term, ast.Mult)
    )


def _names_weight(node: ast.expr, weights: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and tail_name(part) in weights for part in walk(node))
