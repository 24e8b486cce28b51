"""Dtypes of attributes, buffers and items."""

from __future__ import annotations

import ast

from ....protocol.source_text import access_text, find_access_path
from ...interpreter.dtypes import (
    FREQUENCIES,
    GUESSED_LOW,
    INTEGERS,
    NO_DTYPE_INFO,
    NUMBER_INFO,
    POSITIONS,
    SCALAR,
    SCHEDULE,
    ZEROS,
    DtypeInfo,
)
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ..syntax_queries import constant_of_node, find_nodes, last_name
from .dtype_info import dtype_info_of, dtype_of_running_module, evaluate_dtype_info
from .parameters import find_weight_info, holds_weights

#: Attributes of a tensor that are no tensor of its dtype. The output of a model has others: ``outputs.logits``.
_TENSOR_ATTRIBUTES = frozenset(
    "shape dtype device grad grad_fn requires_grad is_leaf ndim layout is_cuda itemsize nbytes names".split()
)


class _ActiveRegistrations(set[ast.Call]):
    """Buffer registrations under evaluation."""


class _BufferRegistrations(dict[ast.AST, dict[str, list[ast.Call]]]):
    """Calls that register buffers in constructors, by buffer name."""


def annotate_attribute(interp: Interpreter, node: ast.Attribute, value: Value) -> Value:
    if node.attr in ("T", "mT", "data", "H"):
        return value.with_dtype_info(dtype_info_of(interp, node.value))
    if node.attr == "values" and isinstance(node.value, ast.Call):
        # `scores.max(dim=1).values`
        return value.with_dtype_info(dtype_info_of(interp, node.value).part_info)
    if node.attr == "indices" and isinstance(node.value, ast.Call):
        return value.with_dtype_info(DtypeInfo("int"))
    receiver = interp.expression_values.get(node.value)
    if receiver is not None and _is_output(receiver) and node.attr not in _TENSOR_ATTRIBUTES:
        return value.with_dtype_info(receiver.dtype_info)
    if receiver is not None and receiver.kind == "tensor":
        return value.with_dtype_info(NO_DTYPE_INFO)
    if value.dtype_info is NO_DTYPE_INFO:
        weight = find_weight_info(interp, node)
        if weight is not NO_DTYPE_INFO:
            return value.with_dtype_info(weight)
        if isinstance(node.value, ast.Name):
            return value.with_dtype_info(_find_buffer_info(interp, node.attr))
    return value


def _is_output(value: Value) -> bool:
    """Return True for the output of a model whose class is not known, which may hold several tensors."""
    return value.kind in ("unknown", "tensor") and value.dtype_info.is_low and GUESSED_LOW in value.dtype_info.traits


def _find_buffer_info(interp: Interpreter, name: str) -> DtypeInfo:
    """Return the dtype info of a buffer that the constructor of the current class registers.

    Only a buffer that holds positions, integers or levels of a schedule, or that is low, has dtype info.
    """
    cls = interp.state.frame.cls
    init = cls.methods.get("__init__") if cls is not None else None
    if init is None or "register_buffer" not in interp.state.frame.module.identifiers:
        return NO_DTYPE_INFO
    registered, registering = interp.file_data(_BufferRegistrations), interp.file_data(_ActiveRegistrations)
    if init.node not in registered:
        registered[init.node] = _collect_registrations(init.node)
    for call in registered[init.node].get(name, ()):
        if call in registering:
            # The buffer is registered again from its own value.
            return NO_DTYPE_INFO
        registering.add(call)
        fact = evaluate_dtype_info(interp, _find_definition(call.args[1], init.node))
        registering.discard(call)
        if interp.project.assumed_dtype and "freq" in name and not fact.dtype:
            fact = fact.with_traits(FREQUENCIES)
        if fact.is_low or fact.dtype in INTEGERS:
            return fact
        dtype = dtype_of_running_module(interp)
        if dtype and all(function.node is not init.node for function in interp.active_functions):
            # A cast of the model casts its buffers, after the constructor.
            cast = DtypeInfo(dtype, fact.traits & {ZEROS})
            return (
                cast._replace(traits=frozenset({FREQUENCIES}), trait_node=call) if FREQUENCIES in fact.traits else cast
            )
        # A region leaves buffers in float32.
        is_wide = interp.project.assumed_dtype and interp.assumes_region and fact.dtype == "float32"
        return fact if is_wide or fact.traits & {POSITIONS, SCHEDULE} else NO_DTYPE_INFO
    return NO_DTYPE_INFO


def _collect_registrations(init: ast.AST) -> dict[str, list[ast.Call]]:
    registered: dict[str, list[ast.Call]] = {}
    for call in find_nodes(init, ast.Call):
        if len(call.args) > 1 and access_text(call.func).endswith(".register_buffer"):
            name = constant_of_node(call.args[0])
            if isinstance(name, str):
                registered.setdefault(name, []).append(call)
    return registered


def annotate_subscript(interp: Interpreter, node: ast.Subscript, value: Value) -> Value:
    if last_name(node.value) == "shape":
        return value.with_dtype_info(NUMBER_INFO)
    held = interp.expression_values.get(node.value)
    if holds_weights(interp, node.value):
        return value.with_dtype_info(DtypeInfo(interp.assumed_dtype))
    if held is None or held.kind not in ("unknown", "tensor"):
        return value
    fact = dtype_info_of(interp, node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Slice) for part in parts):
        return value.with_dtype_info(fact)
    return value.with_dtype_info(
        fact.part_info if any(_is_mask(interp, part) for part in parts) else fact.with_traits(SCALAR)
    )


def _is_mask(interp: Interpreter, index: ast.expr) -> bool:
    """Return True if an index is a mask, which selects several elements."""
    return isinstance(index, ast.Compare) or dtype_info_of(interp, index).dtype == "bool"


def _find_definition(node: ast.expr, function: ast.AST) -> ast.expr:
    """Return the expression that a function assigns to a variable, or the expression itself.

    Subscripts are removed first.
    """
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        for statement in find_nodes(function, ast.Assign):
            if any(find_access_path(target) == node.id for target in statement.targets):
                return statement.value
    return node
