"""Dtype info of evaluated expressions, the autocast state at a node, and calls of ops."""

from __future__ import annotations

import ast

from ....protocol import torch_api
from ....protocol.fast_namedtuple import NamedTuple
from ...interpreter.dtypes import (
    ANGLES,
    FLOAT32_ANGLES,
    FREQUENCIES,
    GUESSED_LOW,
    HALF,
    NO_DTYPE_INFO,
    NUMBER,
    NUMBER_INFO,
    POSITIONS,
    REGION,
    REGION_LEFT,
    ROUNDED,
    SIGMOID,
    SOFTMAX,
    STORED,
    AutocastState,
    DtypeInfo,
)
from ...interpreter.imports import look_up
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import ExternalName, Instance
from ...interpreter.values.objects import ObjectRef
from ..overhead import RepeatedCosts
from ..syntax_queries import first_argument, receiver_of

#: Builtins that return a number.
NUMBER_BUILTINS = frozenset(("len", "int", "float"))
HALF_DTYPES = frozenset(("float16", "bfloat16"))
#: Traits of regions, positions and probabilities.
REGION_TRAITS = frozenset((REGION, GUESSED_LOW, REGION_LEFT))
POSITION_TRAITS = frozenset((POSITIONS, ROUNDED, ANGLES, FREQUENCIES, FLOAT32_ANGLES))
PROBABILITIES = frozenset((SIGMOID, SOFTMAX))


def dtype_info_of(interp: Interpreter, node: ast.expr) -> DtypeInfo:
    """Return the dtype info of an expression that was just evaluated."""
    value = interp.expression_values.get(node)
    if value is None:
        return NO_DTYPE_INFO
    if isinstance(value, ObjectRef):
        return _find_parameter_info(interp, value)
    return NUMBER_INFO if value.count.is_loop_index else mark_left_region(interp, value.dtype_info)


def _find_parameter_info(interp: Interpreter, value: ObjectRef) -> DtypeInfo:
    """Return the dtype info of a parameter of the running module, if the module is stored in low precision."""
    if value.tracked_object.attributes.kind != "Parameter" or interp.assumed_dtype:
        return NO_DTYPE_INFO
    dtype = dtype_of_running_module(interp)
    return DtypeInfo(dtype, frozenset({STORED})) if dtype else NO_DTYPE_INFO


def dtype_of_running_module(interp: Interpreter) -> str:
    """Return the low dtype to which a cast of the running module, or of one around it, converts its tensors, or ""."""
    if interp.assumed_dtype:
        return "" if interp.assumes_region else interp.assumed_dtype
    receiver = interp.state.frame.receiver
    own = receiver.tracked_object if isinstance(receiver, Instance) else None
    running = [*interp.graph_data(RepeatedCosts).casting_modules, *([own] if own is not None else [])]
    return next((module.attributes.dtypes.low for module in running if module.attributes.dtypes.low), "")


def mark_left_region(interp: Interpreter, fact: DtypeInfo) -> DtypeInfo:
    """Add the trait ``REGION_LEFT`` to a value from a region if the region may be closed here."""
    if REGION in fact.traits and autocast_state(interp).mode == "out":
        return fact.with_traits(REGION_LEFT)
    return fact


def is_tensor_dtype(fact: DtypeInfo) -> bool:
    """Return True if the value is a tensor of a known dtype."""
    return fact.dtype not in ("", NUMBER)


def is_low_of_region(fact: DtypeInfo) -> bool:
    return fact.is_low and REGION in fact.traits


def autocast_state(interp: Interpreter) -> AutocastState:
    """Return the autocast state at the current node."""
    if interp.state.open_regions:
        region = interp.state.open_regions[-1]
        if region.enabled is False:
            return AutocastState("off")
        if region.dtype in ("float32", "float64"):
            return AutocastState()
        return AutocastState(
            "on", region.device.partition(":")[0], region.dtype if region.dtype in HALF_DTYPES else HALF
        )
    if interp.assumed_dtype and not interp.state.possible_regions:
        return AutocastState("on", "cuda", interp.assumed_dtype) if interp.assumes_region else AutocastState("off")
    return AutocastState() if interp.state.possible_regions else AutocastState("out")


def is_used_outside(fact: DtypeInfo, state: AutocastState) -> bool:
    """Return True if a low-precision tensor from a region is used without active autocast."""
    return is_low_of_region(fact) and (state.mode == "off" or (state.mode == "out" and REGION_LEFT in fact.traits))


def evaluate_dtype_info(interp: Interpreter, node: ast.expr) -> DtypeInfo:
    """Return the dtype info of an expression from another location."""
    return interp.without_events(lambda: interp.evaluate(node)).dtype_info


def resolve_callee(interp: Interpreter, func: ast.expr) -> str | None:
    """Return the dotted name of a callee outside the project, or None."""
    if isinstance(func, ast.Name):
        value = look_up(interp, func.id)
        if value is None:
            return func.id if func.id in NUMBER_BUILTINS else torch_api.BARE.get(func.id)
        return value.name if isinstance(value, ExternalName) else None
    if isinstance(func, ast.Attribute):
        head = resolve_callee(interp, func.value)
        return f"{head}.{func.attr}" if head else None
    return None


class OpCall(NamedTuple):
    """A call of a torch function or a tensor method. ``other_arguments`` are the arguments behind the tensor."""

    name: str
    first_info: DtypeInfo
    argument_infos: list[DtypeInfo]
    keyword_infos: dict[str, DtypeInfo]
    node: ast.Call
    other_arguments: list[ast.expr]

    @property
    def base_name(self) -> str:
        """Name without the in-place suffix."""
        return self.name.removesuffix("_")

    @property
    def tensor_node(self) -> ast.expr | None:
        """Expression of the first tensor, or None if passed by keyword."""
        return receiver_of(self.node) if self.other_arguments is self.node.args else first_argument(self.node)
