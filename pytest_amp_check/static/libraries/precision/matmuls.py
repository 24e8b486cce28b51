"""Result dtypes of matrix products, and writes of one tensor into another."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import (
    ANGLES,
    DOUBLED,
    FLOAT32_ANGLES,
    FREQUENCIES,
    GUESSED_LOW,
    NO_DTYPE_INFO,
    ON_CPU,
    POSITIONS,
    PRODUCT,
    REGION,
    ROUNDED,
    TWICE,
    AutocastState,
    DtypeInfo,
    promote_dtypes,
)
from ...interpreter.interpreter import Interpreter
from ..syntax_queries import keywords_of, number_of_node
from .dtype_info import HALF_DTYPES, OpCall, autocast_state, is_low_of_region, is_used_outside
from .events import emit_once
from .fragile import check_angles, check_distance, check_rounded_frequencies, check_weights, takes_inverse_frequencies

INDEXED_WRITES = {
    # Method -> position of the written tensor, and the parameter name.
    "index_add_": (2, "source"),
    "index_copy_": (2, "source"),
    "index_add": (2, "source"),
    "scatter_": (2, "src"),
    "scatter_add_": (2, "src"),
    "masked_scatter_": (1, "source"),
    "index_put_": (1, "values"),
}
#: In-place matmuls, for which no region casts the operands.
IN_PLACE_MATMULS = frozenset(("addmm_", "baddbmm_", "addbmm_", "addmv_"))
#: Matmuls whose ``out=`` tensor must have the dtype of the result.
_WITH_OUT = frozenset(("mm", "matmul", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv"))


def join_parts(interp: Interpreter, parts: list[DtypeInfo], node: ast.AST) -> DtypeInfo:
    made = parts[0]
    state = autocast_state(interp)
    if state.mode == "on" and state.device == "cpu" and HALF_DTYPES.issubset(fact.dtype for fact in parts):
        # Only on the CPU, these ops are on autocast's list, and autocast fails for a mix of float16 and bfloat16.
        emit_once(interp, e.DtypeClash, node, made, how="mixed")
        return NO_DTYPE_INFO
    for part in parts[1:]:
        dtype = promote_dtypes(made, part)
        place = made.trait_node if made.trait_node is part.trait_node else None
        made = DtypeInfo(dtype, made.traits & part.traits, place)
    return made


def apply_matmul(interp: Interpreter, op: str, operands: list[DtypeInfo], node: ast.AST) -> DtypeInfo:
    check_weights(interp, operands)
    state = autocast_state(interp)
    if state.device != "cpu" and any(ON_CPU in fact.traits for fact in operands):
        state = AutocastState("out")
    # A product may be twice another product.
    is_doubled = any(fact.traits & {TWICE, DOUBLED} for fact in operands)
    product_traits = frozenset({PRODUCT, *([DOUBLED] if is_doubled else [])})
    if state.mode == "on":
        outer = op == "einsum" and state.device == "cpu"
        # Positions are rounded here at the latest, when cast to the dtype of the other tensor (frequencies or
        # activations).
        turned = any(POSITIONS in fact.traits and fact.dtype in ("float32", "") for fact in operands)
        if not outer and (turned or (interp.assumed_dtype and _takes_frequencies(operands, node))):
            made = DtypeInfo(state.dtype, frozenset({REGION, ANGLES}), node)
            check_angles(interp, made, node, operands)
            return made
        return DtypeInfo(state.dtype, product_traits | {REGION})
    dtypes = {fact.dtype for fact in operands}
    if interp.assumed_dtype and "float32" not in dtypes and any(fact.is_low for fact in operands):
        # The weights have the assumed dtype as well, because a product has operands of one dtype.
        dtype = next(fact.dtype for fact in operands if fact.is_low)
        rounded = next((fact for fact in operands if fact.traits & {ROUNDED, ANGLES}), NO_DTYPE_INFO)
        if not rounded.traits and takes_inverse_frequencies(node):
            rounded = DtypeInfo(dtype, frozenset({ANGLES}), node)
        check_angles(interp, rounded, node)
        return DtypeInfo(dtype, rounded.traits & {ROUNDED, ANGLES} | product_traits, rounded.trait_node)
    low = next((fact for fact in operands if is_used_outside(fact, state)), None)
    if low is None and not _takes_frequencies(operands, node):
        # Received positions are integers as often as tensors of the assumed dtype.
        low = next((fact for fact in operands if _is_assumed_low(interp, fact)), None)
    if low is not None and "float32" in dtypes:
        emit_once(interp, e.DtypeClash, node, low, how="matmul", names={"call": SourceText(node)})
    stored = next((fact for fact in operands if fact.is_stored_low), None)
    if stored is not None and "float32" not in dtypes:
        return DtypeInfo(stored.dtype, product_traits | {GUESSED_LOW})
    known = state.mode == "off" and operands and "" not in dtypes
    if interp.assumed_dtype and dtypes == {"float32"} and _takes_frequencies(operands, node):
        product_traits |= {FLOAT32_ANGLES}
        check_rounded_frequencies(interp, *operands)
    return DtypeInfo(operands[0].dtype, product_traits) if known else NO_DTYPE_INFO


def _is_assumed_low(interp: Interpreter, fact: DtypeInfo) -> bool:
    """Return True for an input that the option makes low, or what is computed from it, where no region is."""
    return fact.is_low and bool(interp.project.assumed_dtype) and not interp.assumes_region and not fact.is_stored_low


def _takes_frequencies(operands: list[DtypeInfo], product: ast.AST) -> bool:
    return any(FREQUENCIES in fact.traits for fact in operands) or takes_inverse_frequencies(product)


def is_low_where_written(interp: Interpreter, source: DtypeInfo) -> bool:
    """Return True if elements that are written are low, because of a region or by assumption."""
    return is_low_of_region(source) or (source.is_low and bool(interp.assumed_dtype))


def apply_indexed_write(interp: Interpreter, op: OpCall) -> DtypeInfo:
    place, word = INDEXED_WRITES[op.name]
    # The buffer is the first argument.
    source = (
        op.argument_infos[place + 1]
        if len(op.argument_infos) > place + 1
        else op.keyword_infos.get(word, NO_DTYPE_INFO)
    )
    if op.first_info.dtype == "float32" and is_low_where_written(interp, source):
        emit_once(interp, e.DtypeClash, op.node, source, how="write", names={"target": SourceText(op.node.func)})
    return op.first_info


def apply_product_write(interp: Interpreter, op: OpCall) -> DtypeInfo:
    """Check a product that is added in place or written to ``out=``, and return the dtype info of the target."""
    adds = op.name in IN_PLACE_MATMULS
    target, factors = (op.first_info, op.argument_infos[1:]) if adds else (op.keyword_infos["out"], op.argument_infos)
    if adds and any(number_of_node(each) == -2 for each in (*op.node.args, keywords_of(op.node).get("alpha"))):
        doubled = next((fact for fact in factors if fact.is_low), NO_DTYPE_INFO).with_traits(DOUBLED)
        check_distance(interp, target, doubled, op.node)
    low = next(filter(is_low_of_region, factors), None)
    if low is not None and target.dtype == "float32" and (adds or op.name in _WITH_OUT):
        emit_once(interp, e.DtypeClash, op.node, low, how="in-place" if adds else "out")
    return target
