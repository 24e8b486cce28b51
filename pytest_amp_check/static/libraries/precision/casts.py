"""Casts and constructors of tensors, and dtype arguments."""

from __future__ import annotations

import ast

from ....protocol import torch_api
from ....protocol.source_text import access_text
from ...interpreter.dtypes import (
    BEYOND_FLOAT16,
    BOUNDED,
    CAST,
    GUESSED_LOW,
    HALF,
    INTEGERS,
    LOG_PROBABILITY,
    LOW_DTYPES,
    NARROWED,
    NO_DTYPE_INFO,
    ON_CPU,
    POSITIONS,
    REGION,
    REGION_LEFT,
    ROUNDED,
    ROUNDED_PROBABILITY,
    SCHEDULE,
    UNIFORM,
    WHOLE,
    ZEROS,
    DtypeInfo,
)
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import ExternalName
from ...interpreter.values.value import Value
from ..syntax_queries import (
    callee_of,
    constant_of_node,
    elements_of,
    first_argument,
    holder_of,
    keywords_of,
    last_name,
)
from .assumed_fills import check_cast_fill
from .dtype_info import POSITION_TRAITS, PROBABILITIES, OpCall, dtype_info_of, is_tensor_dtype, resolve_callee
from .fragile import check_cast_of_angles, check_integers, check_narrowing, check_numbers

#: Constructors of tensors. The default dtype is float32, except for the last three.
CONSTRUCTORS = frozenset(
    "zeros ones empty rand randn full normal linspace logspace eye FloatTensor arange tensor as_tensor".split()
)
#: Methods that cast, with the target dtype, or "" if the dtype is an argument.
CAST_METHODS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
#: Integers that have more numbers than a low dtype.
_INTEGERS = frozenset(f"torch.{name}" for name in "long int64 int32 int int16 short".split())
CAST_METHODS.update(dict.fromkeys(("to", "type", "type_as"), ""))


def apply_constructor(interp: Interpreter, op: OpCall) -> DtypeInfo:
    """Return the dtype info of a tensor constructor."""
    content = frozenset({ZEROS}) if op.name in ("zeros", "zeros_like", "new_zeros") else frozenset()
    content |= {UNIFORM} if op.name in ("rand", "rand_like") else frozenset()
    positions = frozenset({POSITIONS}) if op.name == "arange" and not _is_short_range(op.node) else frozenset()
    cpu = frozenset({ON_CPU}) if _is_cpu(keywords_of(op.node).get("device")) else frozenset[str]()
    if "dtype" in op.keyword_infos:
        dtype = find_dtype_argument(interp, op.node)
        check_narrowing(interp, op.argument_infos[0] if op.argument_infos else NO_DTYPE_INFO, dtype, op.node)
        if positions:
            check_numbers(interp, dtype, keywords_of(op.node)["dtype"], op.node)
        if positions and dtype in LOW_DTYPES:
            return DtypeInfo(dtype, frozenset({ROUNDED}), op.node)
        return DtypeInfo(dtype, positions | content | cpu)
    if op.name.endswith("_like") or op.name.startswith("new_"):
        return (
            op.argument_infos[0].restrict_traits(REGION, GUESSED_LOW, REGION_LEFT).with_traits(*content)
            if op.argument_infos
            else DtypeInfo("", content)
        )
    if op.name == "arange":
        return DtypeInfo("int", positions | cpu)
    if op.name in ("tensor", "as_tensor") and _holds_integers(op.node):
        return DtypeInfo("int", cpu)
    if "set_default_dtype" in interp.state.frame.module.identifiers or op.name in ("tensor", "as_tensor"):
        return NO_DTYPE_INFO
    return DtypeInfo("float32", content | cpu)


def _holds_integers(node: ast.Call) -> bool:
    """Return True for a tensor of a list of integers."""
    numbers = [constant_of_node(each) for each in elements_of(first_argument(node))]
    return bool(numbers) and all(type(number) is int for number in numbers)


def _is_cpu(device: ast.expr | None) -> bool:
    """Return True for the CPU as a device argument: a text, or a call of ``torch.device``."""
    if isinstance(device, ast.Call) and last_name(device.func) == "device" and device.args:
        device = device.args[0]
    return device is not None and constant_of_node(device) == "cpu"


def _is_short_range(node: ast.Call) -> bool:
    """Return True if all bounds are at most 256, so that every low dtype represents the positions exactly."""
    bounds = map(constant_of_node, node.args)
    return all(isinstance(bound, int) and bound <= 256 for bound in bounds)


def find_dtype_argument(interp: Interpreter, node: ast.Call) -> str:
    """Return the dtype of a ``dtype`` keyword argument, or ""."""
    given = keywords_of(node).get("dtype")
    return _resolve_dtype(interp, given) if given is not None else ""


def _resolve_dtype(interp: Interpreter, node: ast.expr) -> str:
    """Return the dtype of an expression such as ``torch.float16`` or ``x.dtype``, or ""."""
    tensor = holder_of(node)
    if tensor is not None and last_name(node) == "dtype":
        fact = dtype_info_of(interp, tensor)
        if is_tensor_dtype(fact):
            return fact.dtype
    value = interp.expression_values.get(node)
    chosen = _low_choices(value)
    if chosen:
        return chosen[0] if len(chosen) == 1 else HALF
    name = value.name if isinstance(value, ExternalName) else resolve_callee(interp, node)
    if name in _INTEGERS:
        return "int"
    return "bool" if name == "torch.bool" else torch_api.DTYPES.get(name or "", "")


def _low_choices(value: Value | None) -> list[str]:
    """Return the low dtypes among several possible dtypes of a value, of which a setting chooses one."""
    possible = value.possible_dtypes if isinstance(value, ExternalName) else {}
    return [dtype for dtype in possible if dtype in LOW_DTYPES] if len(possible) > 1 else []


def apply_cast(interp: Interpreter, op: OpCall) -> DtypeInfo:
    """Return the dtype info of ``x.float()``, ``x.to(...)`` or ``x.type_as(y)``."""
    given, dtype = op.first_info, CAST_METHODS[op.name]
    if op.name == "type_as":
        dtype = op.argument_infos[1].dtype if len(op.argument_infos) > 1 else ""
    elif not dtype:
        dtype = _find_target_dtype(interp, op)
    if not dtype:
        # The option says that tensors of unknown dtype are low.
        arguments = [*op.other_arguments, *keywords_of(op.node).values()]
        asked = next((argument for argument in arguments if last_name(argument).endswith("dtype")), None)
        if asked is not None and POSITIONS in given.traits and given.dtype == "float32":
            check_numbers(interp, "", asked, op.node)
        if any(last_name(argument) == "dtype" and holder_of(argument) is not None for argument in op.other_arguments):
            check_cast_fill(interp, given, interp.assumed_dtype, op.node)
        return DtypeInfo("", given.traits & {POSITIONS, BEYOND_FLOAT16}, given.trait_node)
    low = dtype in LOW_DTYPES
    if dtype in INTEGERS:
        check_integers(interp, given, op.node)
    check_cast_of_angles(interp, given, dtype, op.node)
    check_narrowing(interp, given, dtype, op.node)
    check_cast_fill(interp, given, dtype, op.node)
    if low and POSITIONS in given.traits:
        check_numbers(interp, dtype, op.node, op.node)
        return DtypeInfo(dtype, frozenset({ROUNDED}), op.node)
    if op.name == "to":
        # The call may move the tensor to another device.
        given = given._replace(traits=given.traits - {ON_CPU})
    if low == given.is_low:
        return given._replace(dtype=dtype, trait_node=given.trait_node or (op.node if low else None))
    kept = POSITION_TRAITS | {BEYOND_FLOAT16, BOUNDED, ZEROS, *([LOG_PROBABILITY, SCHEDULE] if low else [])}
    made = DtypeInfo(dtype, given.traits & kept, given.trait_node)
    if not low:
        return made
    arguments = [*op.other_arguments, *keywords_of(op.node).values()]
    is_choice = any(_low_choices(interp.expression_values.get(argument)) for argument in arguments)
    return made._replace(trait_node=given.trait_node or op.node).with_traits(
        CAST,
        *([GUESSED_LOW] if is_choice else []),
        *([ROUNDED_PROBABILITY] if given.traits & PROBABILITIES else []),
        *([NARROWED] if given.dtype == "float32" else [WHOLE] if given.dtype == "int" else []),
    )


def _find_target_dtype(interp: Interpreter, op: OpCall) -> str:
    """Return the target dtype of ``to``: by name, by another tensor, or the old dtype for a plain move."""
    named = [_resolve_dtype(interp, argument) for argument in (*op.node.args, *(k.value for k in op.node.keywords))]
    others = [fact.dtype for fact in op.argument_infos[1:] if is_tensor_dtype(fact)]
    moves = "dtype" not in op.keyword_infos and all(map(_is_device_argument, op.node.args))
    return next(filter(None, (*named, *others)), op.first_info.dtype if moves else "")


def _is_device_argument(node: ast.expr) -> bool:
    """Return True if an argument of ``to`` is a device, by value or by name."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int))
    last = access_text(node).rpartition(".")[2]
    maker = callee_of(node)
    return "device" in last or last == "rank" or (maker is not None and "device" in access_text(maker))
