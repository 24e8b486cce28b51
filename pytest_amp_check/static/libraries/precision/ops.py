"""Result dtypes of ops, and ops that fail or lose range in low precision."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol import kernels
from ....protocol.source_text import SourceText, access_text
from ...interpreter.dtypes import (
    ANGLES,
    BOUNDED,
    CODES,
    COMPLEMENT,
    EXP,
    EXP_SUM,
    EXPONENTIAL,
    FREQUENCIES,
    GUESSED_LOW,
    INTEGERS,
    KEEP_TRAITS,
    LOG_PROBABILITY,
    MEAN,
    MEAN_SQUARE,
    MOMENT,
    NEGATED,
    NO_DTYPE_INFO,
    NUMBER,
    NUMBER_INFO,
    POSITIONS,
    REGION,
    ROUNDED,
    ROUNDED_PROBABILITY,
    ROUNDINGS,
    SCALAR,
    SCALED,
    SCHEDULE,
    SIGMOID,
    SOFTMAX,
    SQUARE,
    SQUARE_SUM,
    STORED,
    VARIANCE,
    WEIGHTED_SQUARE,
    WITH_INDEXES,
    ZEROS,
    DtypeInfo,
    is_low,
    promote_dtypes,
    result_dtype,
)
from ...interpreter.interpreter import Interpreter
from ...project.syntax import is_same_syntax
from ..syntax_queries import (
    constant_of_node,
    elements_of,
    find_nodes,
    first_argument,
    keywords_of,
    last_name,
    receiver_of,
)
from .casts import CAST_METHODS, apply_cast, find_dtype_argument
from .dtype_info import POSITION_TRAITS, PROBABILITIES, REGION_TRAITS, OpCall, autocast_state, dtype_info_of
from .epsilons import check_clamp, check_epsilon, check_normalization
from .events import emit_once
from .fragile import (
    STATISTICS,
    check_angles,
    check_grid,
    check_integers,
    check_island,
    check_loss,
    check_probabilities,
    check_ranking,
    check_rotation,
    check_softmax,
    check_statistics,
    rounded_traits,
    scaled_traits,
    takes_inverse_frequencies,
)
from .matmuls import (
    IN_PLACE_MATMULS,
    INDEXED_WRITES,
    apply_indexed_write,
    apply_matmul,
    apply_product_write,
    join_parts,
)
from .operators import apply_operator
from .parameters import is_assumed_parameter
from .scattered_sums import check_cumulative_sum, check_indexed_sum

_LOGS = frozenset(("log", "log2", "log10"))
#: Label of the better formula for a logarithm, by the trait of the argument. The first matching trait decides.
_LOGS_OF = {
    EXP_SUM: "logsumexp",
    COMPLEMENT: "log-complement",
    SIGMOID: "log-sigmoid",
    SOFTMAX: "log-softmax",
    ROUNDED_PROBABILITY: "log-softmax",
}
#: Reductions, which return a single number without a ``dim`` argument.
_REDUCTIONS = frozenset("mean sum max min amax amin std var norm prod median logsumexp".split())
#: Ops that return values and their indexes, the reductions only along a dimension.
_WITH_INDEXES = frozenset("topk sort kthvalue max min median mode cummax cummin".split())
_CLAMPS = frozenset(("clamp", "clip", "clamp_min", "clamp_max"))
_BOUNDED = frozenset("sigmoid softmax tanh normalize sin cos hardsigmoid erf cosine_similarity".split())
#: Prefixes of ops that average neighbouring values, or all values.
_MEANS = ("mean", "avg_pool", "adaptive_avg_pool", "conv", "nanmean")
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "div": ast.Div,
    "true_divide": ast.Div,
    "pow": ast.Pow,
    "outer": ast.Mult,
}


def mean_traits(op: str, given: DtypeInfo) -> tuple[str, ...]:
    """Return the traits of a weighted mean, which keeps that its values are squares."""
    return (MEAN_SQUARE,) if op.startswith(_MEANS) and SQUARE in given.traits else ()


def bounded_traits(op: str) -> tuple[str, ...]:
    """Return the traits of an op whose result has a magnitude of about one at most."""
    return () if op not in _BOUNDED else (BOUNDED, op) if op in PROBABILITIES else (BOUNDED,)


def apply_op(interp: Interpreter, op: OpCall) -> DtypeInfo:
    """Return the dtype info of an op's result."""
    if op.name in kernels.NAMES:
        check_kernel(interp, op)
    if op.name in kernels.COMPLEX:
        return NO_DTYPE_INFO
    check_island(interp, op)
    check_indexed_sum(interp, op)
    check_loss(interp, op.name, op.first_info, op.node, op.tensor_node)
    act = _OPS.get(op.name)
    made = act(interp, op) if act is not None else None
    if made is not None:
        return made
    if "out" in op.keyword_infos:
        return apply_product_write(interp, op)
    if is_low(op.name, autocast_state(interp).device):
        made = apply_matmul(interp, op.name, [fact for fact in op.argument_infos if fact.dtype != NUMBER], op.node)
        return made.with_traits(*mean_traits(op.name, op.first_info))
    act = _ELEMENTWISE.get(op.name)
    made = act(interp, op) if act is not None else None
    return _apply_elementwise(interp, op) if made is None else made


def check_kernel(interp: Interpreter, op: OpCall) -> None:
    """Report an op that may lack a kernel for the input dtype, or for a dtype that a region produces internally.

    The option says that tensors of unknown dtype are low.
    """
    state = autocast_state(interp)
    is_unknown = (
        bool(interp.project.assumed_dtype)
        and state.mode == "off"
        and not op.first_info.dtype
        and interp.state.frame.function is not None
        and op.name not in kernels.SELDOM_LOW
    )
    if is_unknown:
        op = op._replace(first_info=op.first_info._replace(dtype=interp.assumed_dtype))
    if op.name in kernels.LOSSES and REGION in op.first_info.traits:
        return  # AMP104 reports a loss behind the region.
    how = kernels.find_refusal(op.name, op.first_info.dtype, state.device)
    low = (
        op.first_info
        if op.first_info.is_low
        else DtypeInfo(state.dtype)
        if how == kernels.INNER and state.mode == "on"
        else NO_DTYPE_INFO
    )
    if not how or not low.is_low or (how == kernels.LENGTHS and _has_length(op.node)):
        return
    if op.keyword_infos.get("window", NO_DTYPE_INFO).dtype == "float32":
        return  # The product with the window has the dtype of the window.
    names = {"call": SourceText(op.node)}
    emit_once(interp, e.LowOp, op.node, low, how=how, is_unknown=is_unknown, names=names)


def _has_length(node: ast.Call) -> bool:
    """Return True if an FFT has a length argument that is a power of two or unknown."""
    asked = keywords_of(node).get("n", node.args[1] if len(node.args) > 1 else None)
    length = constant_of_node(asked)
    return asked is not None and not (isinstance(length, int) and length & (length - 1))


def _apply_numpy(interp: Interpreter, op: OpCall) -> DtypeInfo:
    check_numpy(interp, op.first_info, op.node)
    return NO_DTYPE_INFO


def check_numpy(interp: Interpreter, tensor: DtypeInfo, call: ast.Call) -> None:
    """Report a bfloat16 tensor that becomes an array, or that a function of NumPy receives."""
    # The option says that the outputs of modules are low.
    info = tensor.restrict_traits(REGION) if interp.project.assumed_dtype else tensor
    is_known = REGION in info.traits and GUESSED_LOW not in info.traits
    if info.dtype == "bfloat16" and (is_known or interp.project.assumed_dtype):
        emit_once(interp, e.DtypeClash, call, info, how="numpy", names={"call": SourceText(call.func)})


def _apply_index_cast(interp: Interpreter, op: OpCall) -> DtypeInfo:
    check_integers(interp, op.first_info, op.node)
    if ROUNDED in op.first_info.traits:
        emit_once(interp, e.LowPositions, op.first_info.trait_node, op.first_info, how="index")
    return DtypeInfo("int")


def _apply_cumsum(interp: Interpreter, op: OpCall) -> DtypeInfo | None:
    """Return integer positions for the running sum of integers, or None for other dtypes."""
    return DtypeInfo("int", frozenset({POSITIONS})) if op.first_info.dtype in INTEGERS else None


def _apply_sin_cos(interp: Interpreter, op: OpCall) -> None:
    if op.first_info.traits & {ANGLES, ROUNDED}:
        how = "angles" if ANGLES in op.first_info.traits else "cast"
        emit_once(interp, e.LowPositions, op.first_info.trait_node, op.first_info, how=how)
    else:
        check_rotation(interp, op)


def _apply_root(interp: Interpreter, op: OpCall) -> None:
    check_statistics(interp, op.first_info, op.node)


def _apply_concatenation(interp: Interpreter, op: OpCall) -> DtypeInfo | None:
    parts = elements_of(first_argument(op.node))
    return join_parts(interp, [dtype_info_of(interp, part) for part in parts], op.node) if parts else None


def _apply_operator_function(interp: Interpreter, op: OpCall) -> DtypeInfo | None:
    """Return the dtype info of a method or function equivalent to an operator. None if an operand is missing."""
    if len(op.argument_infos) < 2 or not op.other_arguments:
        return None
    if op.name == "add" and op.first_info.may_underflow:
        check_epsilon(interp, op.first_info, op.other_arguments[0], op.node, divides=False)
    sides = (op.tensor_node or op.node.args[0], op.other_arguments[0])
    made = apply_operator(interp, _OPERATORS[op.name], op.first_info, op.argument_infos[1], op.node, sides)
    if op.name == "mul":
        made = made.with_traits(*scaled_traits(interp, op.first_info, sides[1]))
    are_known = bool(promote_dtypes(op.first_info, op.argument_infos[1]))
    is_rotary = op.name == "outer" and made.is_low and are_known and takes_inverse_frequencies(op.node)
    if is_rotary and not made.traits & (POSITION_TRAITS - {FREQUENCIES}):
        check_angles(interp, made.with_traits(ANGLES)._replace(trait_node=op.node), op.node)
    return made


def _apply_elementwise(interp: Interpreter, op: OpCall) -> DtypeInfo:
    first = op.first_info
    if first.is_low and op.base_name in _CLAMPS:
        check_clamp(interp, op)
    if "dtype" in op.keyword_infos:
        dtype = find_dtype_argument(interp, op.node)
        check_probabilities(interp, op, dtype)
        check_cumulative_sum(interp, op, dtype)
        # The softmax in float32 still holds the probabilities as they are.
        return DtypeInfo(dtype, frozenset(bounded_traits(op.base_name) if dtype == "float32" else ()))
    state = autocast_state(interp)
    dtype = result_dtype(op.name, first, state)
    if state.mode != "on":
        check_softmax(interp, op)
    if op.name.startswith("new_") or op.base_name.endswith("_like"):
        return DtypeInfo(dtype, frozenset({ZEROS}) if op.name in ("new_zeros", "zeros_like") else frozenset())
    if op.name in KEEP_TRAITS or (op.base_name == "dropout" and SOFTMAX in first.traits):
        return DtypeInfo(dtype, first.traits, first.trait_node)
    fact = DtypeInfo(dtype, first.traits & (REGION_TRAITS | {SCALAR, *([SCALED] if op.name in ROUNDINGS else [])}))
    if op.name in _REDUCTIONS and not op.other_arguments and not op.keyword_infos:
        fact = fact.with_traits(SCALAR)
    _check_fragile_math(interp, op, fact)
    if dtype not in ("", first.dtype) and dtype == state.dtype:
        fact = DtypeInfo(dtype, frozenset({REGION}))
    traits = _result_traits(op)
    place = fact.trait_node if (STATISTICS | {SOFTMAX}).isdisjoint(traits) else op.node
    return fact.with_traits(*traits)._replace(trait_node=place)


def _result_traits(op: OpCall) -> tuple[str, ...]:
    """Return the traits of an op's result."""
    if op.base_name in _WITH_INDEXES:
        return (WITH_INDEXES,)
    bounded = BOUNDED in op.first_info.traits
    if op.base_name == "exp" and op.first_info.traits & {POSITIONS, ROUNDED}:
        return (FREQUENCIES,)
    if op.base_name == "exp":
        return (EXPONENTIAL,) if _may_subtract_max(op.node) else (EXP, EXPONENTIAL)
    if op.base_name == "sum" and EXP in op.first_info.traits:
        return (EXP_SUM,)
    if op.base_name == "sum" and SQUARE in op.first_info.traits:
        return (SQUARE_SUM,)
    if op.base_name == "sum" and WEIGHTED_SQUARE in op.first_info.traits:
        return (MOMENT,)
    if op.base_name == "sum" and CODES in op.first_info.traits:
        return (CODES,)
    if op.base_name == "cumprod":
        return (SCHEDULE,)
    if op.base_name in ("var", "std", "var_mean", "std_mean"):
        return (VARIANCE,)
    if op.base_name == "square" and not bounded:
        return (SQUARE, *rounded_traits(op.first_info))
    if op.base_name in _LOGS or op.base_name in ("log_softmax", "logsigmoid"):
        return (LOG_PROBABILITY,)
    means = mean_traits(op.base_name, op.first_info)
    if means:
        return means
    if op.base_name == "mean" and not bounded:
        return (MEAN,)
    return (BOUNDED,) if bounded and op.base_name in ("abs", "relu", "mean", "clamp") else bounded_traits(op.base_name)


def _check_fragile_math(interp: Interpreter, op: OpCall, made: DtypeInfo) -> None:
    """Report an op that overflows or cancels in low precision."""
    how = _find_overflow(op, made) if op.first_info.may_underflow or made.may_underflow else ""
    if op.first_info.is_low and op.name in _LOGS:
        how = next((named for trait, named in _LOGS_OF.items() if trait in op.first_info.traits), "")
    elif op.first_info.is_low and op.name == "log1p" and NEGATED in op.first_info.traits:
        how = "log-complement"
    elif op.base_name == "exp" and op.first_info.is_low and STORED in op.first_info.traits:
        how = "exponent"
    if how:
        of_each = op.name == "mean" and "keepdim" in op.keyword_infos
        squared = _find_squared(op.tensor_node) if how == "squares" else None
        names: dict[str, object] = {"call": SourceText(op.node)}
        if squared is not None:
            names["operand"] = SourceText(squared)
        emit_once(interp, e.FragileMath, op.node, op.first_info, how=how, of_each=of_each, names=names)
    elif op.base_name == "exp" and is_assumed_parameter(interp, op.tensor_node):
        stored = DtypeInfo(interp.assumed_dtype)
        emit_once(interp, e.FragileMath, op.node, stored, how="exponent", names={"call": SourceText(op.node)})


def _find_squared(squares: ast.expr | None) -> ast.expr | None:
    """Return the operand of an expression that squares it, or None."""
    if isinstance(squares, ast.BinOp) and isinstance(squares.op, ast.Pow):
        return squares.left
    if isinstance(squares, ast.BinOp) and isinstance(squares.op, ast.Mult):
        return squares.left if is_same_syntax(squares.left, squares.right) else None
    if isinstance(squares, ast.Call) and last_name(squares.func) in ("pow", "square"):
        owner = receiver_of(squares)
        return first_argument(squares) if owner is None or access_text(owner) == "torch" else owner
    return None


def _find_overflow(op: OpCall, made: DtypeInfo) -> str:
    """Return the label of a sum of squares that may exceed the range of float16, or ""."""
    if op.name in ("mean", "sum") and op.first_info.may_underflow and SQUARE in op.first_info.traits:
        return "squares"
    return "variance" if op.name == "var" and made.may_underflow and BOUNDED not in op.first_info.traits else ""


def _may_subtract_max(node: ast.Call) -> bool:
    """Return True if the argument of an exponential has a difference or negation, which may subtract the maximum."""
    negations = (type(part.op) is ast.USub for part in find_nodes(node, ast.UnaryOp))
    return any(negations) or any(type(part.op) is ast.Sub for part in find_nodes(node, ast.BinOp))


_OPS: dict[str, Callable[[Interpreter, OpCall], DtypeInfo | None]] = {
    **dict.fromkeys(CAST_METHODS, apply_cast),
    **dict.fromkeys(("item", "tolist", "size", "dim", "numel"), lambda interp, op: NUMBER_INFO),
    "numpy": _apply_numpy,
    **dict.fromkeys(INDEXED_WRITES, apply_indexed_write),
    **dict.fromkeys(("long", "int", "short"), _apply_index_cast),
    **dict.fromkeys(("argmax", "argmin", "nonzero", "argsort"), lambda interp, op: DtypeInfo("int")),
    "cumsum": _apply_cumsum,
    **dict.fromkeys("isnan isinf isfinite eq ne gt lt ge le".split(), lambda interp, op: DtypeInfo("bool")),
    **dict.fromkeys(IN_PLACE_MATMULS, apply_product_write),
}
#: Ops that are neither matmuls nor accept ``out=``.
_ELEMENTWISE: dict[str, Callable[[Interpreter, OpCall], DtypeInfo | None]] = {
    **dict.fromkeys(("sin", "cos"), _apply_sin_cos),
    **dict.fromkeys(("sqrt", "rsqrt"), _apply_root),
    "topk": check_ranking,
    "grid_sample": check_grid,
    "normalize": check_normalization,
    **dict.fromkeys(("cat", "stack"), _apply_concatenation),
    **dict.fromkeys(_OPERATORS, _apply_operator_function),
}
