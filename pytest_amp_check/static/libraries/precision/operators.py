"""Result dtypes of operators, and products that are scaled too late."""

from __future__ import annotations

import ast
from itertools import combinations

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import (
    ANGLES,
    BOUNDED,
    CODES,
    COMPLEMENT,
    DOUBLED,
    FLOAT32_ANGLES,
    FREQUENCIES,
    GUESSED_LOW,
    NARROWED,
    NEGATED,
    NO_DTYPE_INFO,
    NUMBER,
    POSITIONS,
    PRODUCT,
    REGION,
    REGION_LEFT,
    ROUNDED,
    ROUNDED_PROBABILITY,
    SCALAR,
    SQUARE,
    SQUARE_SUM,
    TWICE,
    VARIANCE,
    WEIGHTED_SQUARE,
    WHOLE,
    DtypeInfo,
    promote_dtypes,
    result_dtype,
)
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ...project.syntax import is_same_syntax
from ...project.syntax_marks import is_product
from ..syntax_queries import callee_of, constant_of_node, last_name, number_of_node, receiver_of
from .assumed_fills import mark_product
from .dtype_info import POSITION_TRAITS, PROBABILITIES, REGION_TRAITS, autocast_state, dtype_info_of, is_tensor_dtype
from .epsilons import check_epsilons
from .events import emit_once
from .fragile import (
    STATISTICS,
    check_angles,
    check_area,
    check_difference,
    check_distance,
    check_draws,
    check_exponential,
    check_frequencies,
    check_late_factor,
    check_noise_level,
    check_rounded_frequencies,
    check_statistics,
    check_weights,
    rounded_traits,
    scaled_traits,
)
from .matmuls import apply_matmul

_LINEAR = frozenset((ast.Mult, ast.Div, ast.Add, ast.Sub))


def annotate_compare(interp: Interpreter, node: ast.Compare, value: Value) -> Value:
    check_draws(interp, node)
    known = any(is_tensor_dtype(dtype_info_of(interp, side)) for side in (node.left, *node.comparators))
    return value.with_dtype_info(DtypeInfo("bool")) if known else value


def annotate_unary(interp: Interpreter, node: ast.UnaryOp, value: Value) -> Value:
    fact = dtype_info_of(interp, node.operand)
    kind = type(node.op)
    if kind is ast.USub:
        negated = fact.traits & PROBABILITIES
        fact = fact.restrict_traits(REGION, GUESSED_LOW, REGION_LEFT, BOUNDED, SQUARE_SUM, DOUBLED).with_traits(
            *([NEGATED] if negated else [])
        )
    return value.with_dtype_info(fact if kind in (ast.USub, ast.Invert) else NO_DTYPE_INFO)


def annotate_binary(interp: Interpreter, node: ast.BinOp, value: Value) -> Value:
    kind = type(node.op)
    if kind is ast.Add:
        check_epsilons(interp, node, divides=False)
    elif kind is ast.Div:
        check_epsilons(interp, node.right, divides=True)
    sides = (node.left, node.right)
    if kind is ast.Mult:
        check_late_factor(interp, node)
    if kind in (ast.Mult, ast.Div):
        _check_scaled_late(interp, node, *(sides if is_product(node.left) else reversed(sides)))
    left, right = dtype_info_of(interp, node.left), dtype_info_of(interp, node.right)
    made = apply_operator(interp, kind, left, right, node, sides)
    if kind is ast.Mult:
        made = made.with_traits(*scaled_traits(interp, left, node.right), *scaled_traits(interp, right, node.left))
    return value.with_dtype_info(mark_product(interp, node, made))


#: Methods that transpose the keys in a batched product of queries and keys. Similarities of two lists use ``T``.
_TRANSPOSES = frozenset("transpose permute mT swapaxes adjoint".split())


def _check_scaled_late(interp: Interpreter, node: ast.BinOp, product: ast.expr, scale_node: ast.expr) -> None:
    """Report a float16 product of queries and keys that is scaled only after the product may have overflowed."""
    fact = dtype_info_of(interp, product)
    if (
        not is_product(product)
        or not (fact.may_underflow and REGION in fact.traits)
        or is_tensor_dtype(dtype_info_of(interp, scale_node))
    ):
        return
    if isinstance(product, ast.BinOp):
        factors = [product.left, product.right]
    else:
        factors = [part for part in (receiver_of(product), *getattr(product, "args", ())) if part is not None]
    if isinstance(product, ast.Call) and last_name(product.func) == "einsum":
        late = not any(is_same_syntax(*pair) for pair in combinations(factors, 2))
    else:
        late = any(last_name(callee_of(factor) or factor) in _TRANSPOSES for factor in factors)
    if late:
        emit_once(interp, e.LateScale, node, fact, names={"call": SourceText(node)})


def apply_operator(
    interp: Interpreter,
    op: type[ast.operator],
    left: DtypeInfo,
    right: DtypeInfo,
    node: ast.AST,
    sides: tuple[ast.expr, ast.expr],
) -> DtypeInfo:
    """Return the dtype info of an operator's result."""
    if op is ast.MatMult:
        return apply_matmul(interp, "matmul", [left, right], node)
    kept = (left.traits | right.traits) & REGION_TRAITS
    if all(SCALAR in fact.traits or fact.dtype == NUMBER for fact in (left, right)):
        kept |= {SCALAR}
    if op is ast.Pow:
        # Only complex numbers need their magnitude before a square, and autocast makes none.
        is_magnitude = last_name(callee_of(sides[0])) == "abs"
        if constant_of_node(sides[1]) == 2 and BOUNDED not in left.traits and not is_magnitude:
            kept |= {SQUARE, *rounded_traits(left)}
        if number_of_node(sides[1]) in (0.5, -0.5):
            check_statistics(interp, left, node)
        exponent = right if left.dtype == NUMBER else left
        if right.traits & {POSITIONS, ROUNDED}:
            # Low precision has all powers of two.
            if constant_of_node(sides[0]) != 2:
                check_frequencies(interp, right, node)
            kept |= {FREQUENCIES}
            exponent = left if is_tensor_dtype(left) else right
        return DtypeInfo(result_dtype("pow", exponent, autocast_state(interp)), kept)
    if op is ast.Div and VARIANCE in right.traits:
        check_statistics(interp, right, node)
    if op is ast.Div and left.dtype == NUMBER and right.dtype != NUMBER:
        kept |= right.traits & {FREQUENCIES}
        return DtypeInfo(result_dtype("reciprocal", right, autocast_state(interp)), kept)
    if op is ast.Sub and left.dtype == NUMBER and right.traits & PROBABILITIES:
        kept |= {COMPLEMENT}
    if op is ast.Sub:
        check_exponential(interp, left, right, node, sides)
    if op in (ast.Add, ast.Sub):
        check_distance(interp, left, right, node)
    if op is ast.Sub and not is_same_syntax(*map(_without_detach, sides)):
        # `x - x.detach()` is exactly zero, and exists for its gradient.
        check_difference(interp, left, right, node, sides)
        check_noise_level(interp, sides[0], right, node)
    made = _apply_linear_operator(op, left, right, kept, sides)
    if op is ast.Mult:
        check_weights(interp, (left, right))
        if made.is_low:
            check_angles(interp, made, node)
            check_area(interp, made, node, sides)
    if FLOAT32_ANGLES in made.traits:
        check_rounded_frequencies(interp, left, right)
    if not made.dtype and interp.assumed_dtype and not interp.assumes_region:
        # What is not known, and is no float32 cast, has the assumed dtype or is a mask.
        low = next((fact for fact in (left, right) if fact.is_low), NO_DTYPE_INFO)
        return made._replace(dtype=low.dtype)
    return made


def _is_two(factors: tuple[ast.expr, ast.expr]) -> bool:
    """Return True if one of two factors is 2 or -2."""
    return any(number_of_node(factor) in (2, -2) for factor in factors)


def _without_detach(node: ast.expr) -> ast.expr:
    """Return the tensor that an expression detaches, or the expression."""
    match node:
        case ast.Call(func=ast.Attribute(value=tensor, attr="detach"), args=[]):
            return tensor
    return node


def _apply_linear_operator(
    op: type[ast.operator], left: DtypeInfo, right: DtypeInfo, kept: frozenset[str], sides: tuple[ast.expr, ast.expr]
) -> DtypeInfo:
    """Return the dtype info of an elementwise operator, with the traits that the operator preserves."""
    place = None
    # Positions that are divided by the last position are between zero and one.
    is_share = op is ast.Div and POSITIONS in right.traits
    for one in () if is_share else (left, right):
        if op in _LINEAR and one.traits & POSITION_TRAITS:
            kept |= one.traits & POSITION_TRAITS
            if place is None or one.traits & {ROUNDED, ANGLES}:
                place = one.trait_node
    if op is ast.Mult and kept >= {POSITIONS, FREQUENCIES}:
        kept = kept - {POSITIONS, FREQUENCIES} | {FLOAT32_ANGLES}
    both, number = left.traits & right.traits, NUMBER in (left.dtype, right.dtype)
    either = left.traits | right.traits
    if op is ast.Add and not number and NARROWED in either and (left.is_low or right.is_low):
        # Scores that were cast, with the bias that balances the choice among them.
        kept |= {ROUNDED_PROBABILITY}
    if op is ast.Mult and any(
        one.is_low and (other.dtype == "int" or WHOLE in other.traits) for one, other in ((left, right), (right, left))
    ):
        kept |= {CODES}
    if number and op in (ast.Mult, ast.Div) and BOUNDED not in either:
        kept |= either & STATISTICS
    # The epsilon of a module is an attribute of unknown value.
    elif op is ast.Add and (number or "" in (left.dtype, right.dtype)) and not either.isdisjoint(STATISTICS):
        kept |= {VARIANCE}
    if not kept.isdisjoint(STATISTICS):
        place = (left if not left.traits.isdisjoint(STATISTICS) else right).trait_node
    if BOUNDED in (either if number else both):
        kept |= {BOUNDED}
    elif op is ast.Mult and is_same_syntax(*sides):
        kept |= {SQUARE, *rounded_traits(left)}
    elif op is ast.Mult and not number and SQUARE in either:
        kept |= {WEIGHTED_SQUARE}
    if op is ast.Mult and number and _is_two(sides):
        kept |= {DOUBLED if PRODUCT in left.traits | right.traits else TWICE}
    if op in (ast.Add, ast.Sub):
        kept |= (left.traits | right.traits) & {SQUARE_SUM}
    return DtypeInfo(promote_dtypes(left, right), kept, place)
