"""Differences of nearly equal values, and numbers that are scaled or compared after rounding."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.source_text import SourceText, access_text
from ...interpreter.classes.lineage import role_of
from ...interpreter.dtypes import (
    ANGLES,
    CAST,
    CODES,
    DOUBLED,
    EXPONENTIAL,
    FLOAT32_ANGLES,
    FREQUENCIES,
    GUESSED_LOW,
    HALF,
    LOG_PROBABILITY,
    LOW_DTYPES,
    MEAN,
    MEAN_SQUARE,
    MOMENT,
    NO_DTYPE_INFO,
    POSITIONS,
    REGION,
    REGION_LEFT,
    ROUNDED,
    ROUNDED_PROBABILITY,
    ROUNDED_SQUARE,
    SCALED,
    SCHEDULE,
    SOFTMAX,
    SQUARE,
    SQUARE_SUM,
    UNIFORM,
    VARIANCE,
    AutocastState,
    DtypeInfo,
    result_dtype,
)
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.gradients import GradValue
from ...interpreter.values.value import Value
from ...project.module import Function
from ...project.relevance import LOSSES_OF_LOGITS
from ...project.syntax import tail_name, walk
from ..arguments import literal_value
from ..low_parameters import low_dtype_of_modules
from ..syntax_queries import callee_of, constant_of_node, find_nodes, holder_of, last_name, name_of_data, receiver_of
from .assumed import names_integers, names_log_probabilities
from .dtype_info import OpCall, autocast_state, dtype_info_of
from .events import CONSECUTIVE, emit_once

#: Integers that bfloat16 and float16 represent exactly.
_EXACT, _EXACT_FLOAT16 = 256, 2048


def check_difference(
    interp: Interpreter, left: DtypeInfo, right: DtypeInfo, node: ast.AST, sides: tuple[ast.expr, ast.expr]
) -> None:
    """Report a variance that is a difference of moments, and the difference of two log-probabilities.

    Log-probabilities are known by the function that computes them. Where low precision is no assumption, the name is
    enough, and one of them in low precision.
    """
    is_assumed = bool(interp.assumed_dtype)
    are_logs = all(
        LOG_PROBABILITY in fact.traits or (not is_assumed and names_log_probabilities(name_of_data(side)))
        for fact, side in zip((left, right), sides, strict=True)
    )
    if left.is_low and not left.traits.isdisjoint((MEAN_SQUARE, MOMENT)) and SQUARE in right.traits:
        how, low = "moments", left
    elif are_logs and (left.is_low and right.is_low if is_assumed else left.is_low or right.is_low):
        how, low = "log-ratio", left if left.is_low else right
    elif MEAN_SQUARE in left.traits and ROUNDED_SQUARE in right.traits:
        # A region computes the squares in float32, but of a mean that has the digits of low precision.
        how, low = "moments", DtypeInfo(autocast_state(interp).dtype, frozenset({GUESSED_LOW}))
    else:
        return
    emit_once(interp, e.FragileMath, node, low, how=how, names={"call": SourceText(node)})


def check_exponential(
    interp: Interpreter, left: DtypeInfo, right: DtypeInfo, node: ast.AST, sides: tuple[ast.expr, ast.expr]
) -> None:
    """Report the difference of an exponential and one, in which small exponents cancel.

    The expression must show the exponential: the exponent of a ratio from elsewhere is often not at hand.
    """
    for fact, side, other in ((left, sides[0], sides[1]), (right, sides[1], sides[0])):
        is_shown = isinstance(side, ast.Call) and last_name(side.func) == "exp"
        if is_shown and EXPONENTIAL in fact.traits and fact.is_low and constant_of_node(other) == 1:
            emit_once(interp, e.FragileMath, node, fact, how="exp-complement", names={"call": SourceText(node)})


def rounded_traits(squared: DtypeInfo) -> tuple[str, ...]:
    """Return the traits of the square of a value: a low-precision mean stays rounded in a float32 square."""
    return (ROUNDED_SQUARE,) if squared.is_low and MEAN in squared.traits else ()


def check_distance(interp: Interpreter, left: DtypeInfo, right: DtypeInfo, node: ast.AST) -> None:
    """Report a squared distance from squared norms and twice a low-precision product, which nearly cancel."""
    for one, other in ((left, right), (right, left)):
        if one.is_low and DOUBLED in one.traits and not other.traits.isdisjoint((SQUARE, SQUARE_SUM)):
            emit_once(interp, e.FragileMath, node, one, how="distance", names={"call": SourceText(node, 60)})


def check_noise_level(interp: Interpreter, minuend: ast.expr, level: DtypeInfo, node: ast.AST) -> None:
    """Report one minus a level of a noise schedule in low precision, in which the levels close to one are equal."""
    if constant_of_node(minuend) == 1 and level.is_low and SCHEDULE in level.traits:
        emit_once(interp, e.FragileMath, node, level, how="schedule", names={"call": SourceText(node)})


#: Names of the edges, the sides and the corners of boxes.
_BOX = re.compile(
    r"(?:^|_)(?:[xy](?:\d|_?(?:min|max|tl|br|lt|rb))\w?|left|right|top|bottom|width|height|lt|rb|tl|br|wh|[blrt]?box(?:es)?\d?)$"
)


def check_area(interp: Interpreter, area: DtypeInfo, node: ast.AST, sides: tuple[ast.expr, ast.expr]) -> None:
    """Report the area of boxes in pixels, which exceeds the range of float16 from 256 by 256 pixels on."""
    if area.may_underflow and all(map(_is_side_of_box, sides)):
        emit_once(interp, e.FragileMath, node, area, how="area", names={"call": SourceText(node)})


def _is_side_of_box(node: ast.expr) -> bool:
    """Return True for a difference of two edges of a box, also with a lower bound, and for an item of its size."""
    held = receiver_of(node)
    if held is not None and last_name(callee_of(node)) in ("clamp", "clamp_min", "clip", "relu", "abs"):
        return _is_side_of_box(held)
    match node:
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return all(_BOX.search(name_of_data(edge)) is not None for edge in (left, right))
        case ast.Subscript():
            return name_of_data(node) == "wh"
    return False


def check_overwritten_table(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report a table of an object that a method replaces by its own copy in low precision, for all later calls.

    The constructor must compute the table.
    """
    cls, function = interp.state.frame.cls, interp.state.frame.function
    target, cast = node.targets[0], node.value
    if cls is None or function is None or function.name in _CASTING_METHODS or not value.dtype_info.is_low:
        return
    match target, cast:
        case (
            ast.Attribute(value=ast.Name(id="self"), attr=name),
            ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=held), attr=method)),
        ) if name == held and method in _CASTS | _CASTS_TO_LOW:
            computed = [each for owner, each in cls.assignments.get(name, ()) if owner.name == "__init__"]
            if any(_is_computed(each) for each in computed):
                names = {"call": SourceText(cast)}
                emit_once(interp, e.LowPositions, cast, value.dtype_info, how="table", names=names)


#: Methods that are meant to change the dtype of an object.
_CASTING_METHODS = frozenset("__init__ to half bfloat16 cuda _apply prepare setup".split())
#: Functions whose results are tables: numbers at equal distances, and their running products.
_TABLES = frozenset("linspace logspace arange cumprod cumsum tensor as_tensor from_numpy".split())


def _is_computed(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) and last_name(part.func) in _TABLES for part in walk(node))


def check_angles(interp: Interpreter, angles: DtypeInfo, product: ast.AST, operands: Iterable[DtypeInfo] = ()) -> None:
    """Report low-precision positions times frequencies, whose sine and cosine another function may compute.

    A product of positions with something other than frequencies is reported only at its sine or cosine. Frequencies
    are known by their name, or by the powers that an operand consists of.
    """
    are_frequencies = any(FREQUENCIES in fact.traits for fact in operands)
    if angles.traits & {ANGLES, ROUNDED} and (
        are_frequencies or any("freq" in tail_name(part) for part in walk(product))
    ):
        how = "angles" if ANGLES in angles.traits else "cast"
        emit_once(interp, e.LowPositions, angles.trait_node, angles, how=how)


def check_frequencies(interp: Interpreter, exponent: DtypeInfo, power: ast.AST) -> None:
    """Report frequencies of a rotary embedding that a low-precision exponent gives."""
    if ROUNDED in exponent.traits and exponent.is_low:
        emit_once(interp, e.LowPositions, power, exponent, how="frequencies", names={"call": SourceText(power)})


def check_rounded_frequencies(interp: Interpreter, *factors: DtypeInfo) -> None:
    """Report a buffer of frequencies that a cast of the model rounds, although float32 angles are computed of it."""
    for fact in factors:
        registered = fact.trait_node
        if not isinstance(registered, ast.Call) or last_name(registered.func) != "register_buffer":
            continue
        if FREQUENCIES in fact.traits:
            low = fact if fact.is_low else fact._replace(dtype=interp.assumed_dtype or HALF)
            emit_once(interp, e.LowPositions, registered, low, how="buffer", names={"call": SourceText(registered)})


def check_cast_of_angles(interp: Interpreter, angles: DtypeInfo, dtype: str, cast: ast.AST) -> None:
    """Report angles in float32 that are cast to a low dtype before their sine and cosine."""
    if FLOAT32_ANGLES in angles.traits and dtype in LOW_DTYPES and not angles.is_low:
        fact = DtypeInfo(dtype)
        emit_once(interp, e.LowPositions, cast, fact, how="rounded", names={"call": SourceText(cast)})


def check_narrowing(interp: Interpreter, given: DtypeInfo, dtype: str, node: ast.Call) -> None:
    """Report a float16 tensor that a module makes of bfloat16 values, which have a larger range.

    The code must name float16, and no other low dtype.
    """
    function, cls = interp.state.frame.function, interp.state.frame.cls
    if function is None or cls is None or role_of(interp, cls) != torch_api.MODULE:
        return
    names = {last_name(part) for part in walk(node)}
    is_chosen = names.isdisjoint(("float16", "half")) or "bfloat16" in function.attributes_used()
    if interp.project.assumed_dtype and given.dtype == "bfloat16" and dtype == "float16" and not is_chosen:
        emit_once(interp, e.FragileMath, node, DtypeInfo(dtype), how="narrowed", names={"call": SourceText(node)})


def check_numbers(interp: Interpreter, dtype: str, asked: ast.expr, node: ast.Call) -> None:
    """Report consecutive integers in a dtype that is known, or that the option says, to be low.

    ``asked`` is the expression of the dtype: ``x.dtype``, or a parameter. Exponents are few, such as those of
    frequencies, which are every second number.
    """
    if interp.assumes_region:
        return
    holder = holder_of(asked)
    is_asked = last_name(asked).endswith("dtype") and (holder is None or not names_integers(last_name(holder)))
    is_low = dtype in LOW_DTYPES or (bool(interp.project.assumed_dtype) and not dtype and is_asked)
    here, made = interp.state.frame.function, node
    while last_name(made.func) != "arange" and isinstance(held := receiver_of(made), ast.Call):
        made = held
    powers = find_nodes(here.node if here is not None else node, ast.BinOp)
    is_exponent = any(power.right is node and isinstance(power.op, ast.Pow) for power in powers) or (
        last_name(made.func) == "arange" and len(made.args) > 2
    )
    if is_low and not is_exponent:
        fact = DtypeInfo(dtype or interp.assumed_dtype)
        emit_once(interp, e.LowPositions, node, fact, how=CONSECUTIVE, names={"call": SourceText(node)})


def mark_written_positions(
    interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value
) -> None:
    """Mark a tensor as positions when positions are written into a part of the tensor."""
    positions = value.dtype_info.traits & {POSITIONS}
    if positions and interp.assumed_dtype and isinstance(target.value, ast.Name):
        info = receiver.dtype_info
        interp.state.frame.vars[target.value.id] = receiver.with_dtype_info(info.with_traits(POSITIONS))


#: Names of timesteps of a diffusion model.
_TIMESTEPS = re.compile(r"(?:^|_)time_?steps?$")
#: Methods that cast to a given dtype, and methods that cast to a low dtype, or to that of another tensor.
_CASTS, _CASTS_TO_LOW = frozenset(("to", "type")), frozenset(("half", "bfloat16", "type_as"))


def check_timesteps(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report timesteps that a statement casts to a low dtype."""
    if len(node.targets) == 1 and _TIMESTEPS.search(tail_name(node.targets[0])):
        _check_cast_timesteps(interp, node.value)


def check_timestep_argument(interp: Interpreter, node: ast.Call) -> None:
    """Report timesteps that an argument casts to a low dtype."""
    for keyword in node.keywords:
        if keyword.arg is not None and _TIMESTEPS.search(keyword.arg):
            _check_cast_timesteps(interp, keyword.value)


def _check_cast_timesteps(interp: Interpreter, value: ast.expr) -> None:
    # Float16 has all integers up to 2048.
    if interp.assumed_dtype == "float16" or interp.assumes_region or not isinstance(value, ast.Call):
        return
    fact, given = dtype_info_of(interp, value), [*value.args, *(keyword.value for keyword in value.keywords)]
    method = tail_name(value.func)
    held = receiver_of(value)
    lowers = fact.is_low and held is not None and not dtype_info_of(interp, held).is_low
    names_dtype = any(tail_name(part).endswith("dtype") for part in given)
    is_cast = method in _CASTS_TO_LOW or (method in _CASTS and (names_dtype or lowers))
    # The option says that tensors of unknown dtype are low.
    is_low = fact.dtype in ("bfloat16", HALF) or bool(interp.assumed_dtype and (fact.is_low or not fact.dtype))
    if is_cast and is_low:
        low = DtypeInfo(interp.assumed_dtype or fact.dtype)
        emit_once(interp, e.LowPositions, value, low, how="timesteps", names={"call": SourceText(value)})


def check_grid(interp: Interpreter, op: OpCall) -> None:
    """Report an image that is sampled at coordinates that the code has cast to a low dtype."""
    grid = op.argument_infos[1] if len(op.argument_infos) > 1 else op.keyword_infos.get("grid", NO_DTYPE_INFO)
    if grid.is_low and CAST in grid.traits:
        emit_once(interp, e.LowPositions, op.node, grid, how="grid", names={"call": SourceText(op.node.func)})


def check_probabilities(interp: Interpreter, op: OpCall, dtype: str) -> None:
    """Report a softmax whose ``dtype`` argument is low."""
    if op.base_name in ("softmax", "log_softmax") and dtype in LOW_DTYPES:
        fact = DtypeInfo(dtype)
        emit_once(interp, e.FragileMath, op.node, fact, how="probabilities", names={"call": SourceText(op.node)})


#: Traits of what a normalization divides by, or the inverse root of it.
STATISTICS = frozenset((MEAN_SQUARE, VARIANCE))


def check_statistics(interp: Interpreter, divisor: DtypeInfo, node: ast.AST) -> None:
    """Report a normalization by a mean of squares, variance or deviation in low precision, under the option."""
    if divisor.is_low and not divisor.traits.isdisjoint(STATISTICS) and interp.project.assumed_dtype:
        place = divisor.trait_node if isinstance(divisor.trait_node, ast.expr) else node
        emit_once(interp, e.FragileMath, place, divisor, how="statistics", names={"call": SourceText(place)})


def check_weights(interp: Interpreter, factors: Iterable[DtypeInfo]) -> None:
    """Report a product with the probabilities of a softmax of values from a region that has ended, in training."""
    for fact in factors:
        if SOFTMAX not in fact.traits or not fact.is_low or not isinstance(fact.trait_node, ast.Call):
            continue
        if REGION_LEFT in fact.traits and GUESSED_LOW not in fact.traits and not interp.state.no_grad:
            emit_once(
                interp, e.FragileMath, fact.trait_node, fact, how="softmax", names={"call": SourceText(fact.trait_node)}
            )


#: Uses of probabilities that rounding seldom changes, and the logarithm, which is reported itself.
_RANKINGS = frozenset("argmax argmin argsort sort topk max min multinomial log".split())


def check_softmax(interp: Interpreter, op: OpCall) -> None:
    """Report a softmax of values that the option makes low, where no region computes it in float32.

    Probabilities that the function only ranks or compares may be rounded.
    """
    if op.base_name == "softmax" and op.first_info.is_low and interp.project.assumed_dtype:
        function = interp.state.frame.function
        if function is not None and _is_only_ranked(function, op.node):
            return
        emit_once(interp, e.FragileMath, op.node, op.first_info, how="softmax", names={"call": SourceText(op.node)})


#: Ops of probabilities, and exponentials, which need float32 for ordinary values.
_PROBABILITY_OPS = frozenset(("softmax", "log_softmax", "logsumexp", "exp", "kl_div", "mse_loss", *LOSSES_OF_LOGITS))
#: Names in functions that decide about dtypes themselves.
_DTYPE_NAMES = frozenset(("dtype", "half"))


#: A loss that autocast refuses, because it needs float32.
_BANNED = "binary_cross_entropy"


class _CheckedIslands(set[object]):
    """Functions of a file with a reported op in a region without autocast."""


def check_island(interp: Interpreter, op: OpCall) -> None:
    """Report the first op of a function that a region without autocast runs in the low dtype of what it receives.

    Whoever switches autocast off wants float32, but the region casts nothing. Only ops that autocast itself runs in
    float32 count; without the option only those of probabilities, in functions that do not look at dtypes.
    """
    regions = interp.state.open_regions
    function = interp.state.frame.function
    if not (regions and regions[-1].enabled is False and op.first_info.is_low):
        return
    # Without an assumption, what an outer region made low counts.
    if (REGION in op.first_info.traits) == bool(interp.assumed_dtype) or CAST in op.first_info.traits:
        return
    if function is None:
        return
    if not interp.project.assumed_dtype and (
        op.base_name not in _PROBABILITY_OPS or not _DTYPE_NAMES.isdisjoint(function.attributes_used())
    ):
        return
    state = AutocastState("on", "cuda", interp.assumed_dtype or op.first_info.dtype)
    wide = result_dtype(op.name, op.first_info, state)
    if wide != "float32" and op.name != _BANNED:
        return
    seen = interp.file_data(_CheckedIslands)
    if function not in seen:
        seen.add(function)
        emit_once(interp, e.FragileMath, op.node, op.first_info, how="island", names={"call": SourceText(op.node)})


def _is_only_ranked(function: Function, call: ast.Call) -> bool:
    """Return True if a function only ranks or compares the result of a call, directly or by the name that holds it."""
    names = {
        target.id
        for node in function.find_nodes(ast.Assign)
        if node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_result(node: ast.expr) -> bool:
        return node is call or (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load))

    ranked = [node for node in function.find_nodes(ast.Attribute) if node.attr in _RANKINGS and is_result(node.value)]
    compared = [node for node in function.find_nodes(ast.Compare) if is_result(node.left)]
    passed = [
        node
        for node in function.find_nodes(ast.Call)
        if tail_name(node.func) in _RANKINGS and node.args and is_result(node.args[0])
    ]
    uses = sum(map(is_result, function.find_nodes(ast.Name)))
    count = len(ranked) + len(compared) + len(passed)
    return count > 0 and (not names or count == uses)


class _RotatedAngles(dict[tuple[object, str], set[str]]):
    """Functions of angles that were evaluated, by the function of the project and the text of the angles."""


def check_rotation(interp: Interpreter, op: OpCall) -> None:
    """Report angles in a low dtype of which a function takes both the sine and the cosine.

    A region computes neither positions nor frequencies in low precision, so only a cast or low weights count.
    """
    fact, angles = op.first_info, op.tensor_node
    is_chosen = CAST in fact.traits or (interp.assumed_dtype and not interp.assumes_region)
    is_reported = {FLOAT32_ANGLES, CAST} <= fact.traits
    if not fact.is_low or REGION in fact.traits or angles is None or not is_chosen or is_reported:
        return
    frame = interp.state.frame
    seen = interp.file_data(_RotatedAngles).setdefault((frame.function or frame.module, access_text(angles)), set())
    seen.add(op.base_name)
    if seen >= {"sin", "cos"}:
        # The node of frequencies is the registration of their buffer.
        is_angles = FREQUENCIES not in fact.traits and isinstance(fact.trait_node, ast.Call)
        place = fact.trait_node if is_angles else op.node
        emit_once(interp, e.LowPositions, place, fact, how="rotation", names={"call": SourceText(angles)})


def takes_inverse_frequencies(product: ast.AST) -> bool:
    """Return True if an operand of a product is named as the inverse frequencies of a rotary embedding.

    The other operand holds the positions, whoever computed them.
    """
    match product:
        case ast.Call(func=func, args=args):
            operands = [*args, *([func.value] if isinstance(func, ast.Attribute) else [])]
        case ast.BinOp(left=left, right=right):
            operands = [left, right]
        case _:
            return False
    return any("inv_freq" in tail_name(part) for operand in operands for part in walk(operand))


def check_late_factor(interp: Interpreter, node: ast.BinOp) -> None:
    """Report a number that is rounded to bfloat16 and then scaled to a range with more integers than bfloat16 has.

    Powers of two scale exactly.
    """
    for side, factor in ((node.left, node.right), (node.right, node.left)):
        fact = dtype_info_of(interp, side)
        number = literal_value(interp.expression_values.get(factor))
        if CAST not in fact.traits or fact.dtype == "float16" or not isinstance(number, (int, float)):
            continue
        if _is_inexact_factor(number, _EXACT):
            names = {"call": SourceText(node)}
            emit_once(interp, e.LowPositions, node, fact, how="scaled", names=names)


def _is_inexact_factor(number: float, exact: int) -> bool:
    return exact < number < float("inf") and (number != int(number) or int(number) & (int(number) - 1) != 0)


def scaled_traits(interp: Interpreter, tensor: DtypeInfo, factor: ast.expr) -> tuple[str, ...]:
    """Return the traits of a low tensor that is multiplied by a number."""
    number = literal_value(interp.expression_values.get(factor))
    exact = _EXACT if tensor.dtype == "bfloat16" else _EXACT_FLOAT16
    is_scaled = tensor.is_low and isinstance(number, (int, float)) and _is_inexact_factor(number, exact)
    return (SCALED,) if is_scaled else ()


def check_integers(interp: Interpreter, given: DtypeInfo, cast: ast.AST) -> None:
    """Report a cast to integers of numbers that were scaled, or put together, in low precision."""
    if (SCALED in given.traits and given.is_low) or CODES in given.traits:
        emit_once(interp, e.LowPositions, cast, given, how="integers", names={"call": SourceText(cast)})


def check_loss(interp: Interpreter, op: str, logits: DtypeInfo, node: ast.Call, logits_node: ast.expr | None) -> None:
    """Report a loss, or log-probabilities, of low-precision logits in code that runs without autocast."""
    if op not in LOSSES_OF_LOGITS or not logits.is_low or any(keyword.arg == "dtype" for keyword in node.keywords):
        return
    # A loss of what a region made low is AMP104, and low log-probabilities are reported where they are made.
    mode, is_known = autocast_state(interp).mode, not logits.traits.isdisjoint((REGION, LOG_PROBABILITY))
    if mode == "off" if interp.assumed_dtype else mode in ("out", "off") and not is_known:
        names: dict[str, object] = {"call": SourceText(node)}
        if logits_node is not None:
            names["operand"] = SourceText(logits_node)
        emit_once(interp, e.FragileMath, node, logits, how="loss", names=names)


#: Functions and methods that compute a norm, and a function of torch that gets only gradients.
_NORMS = frozenset(("norm", "vector_norm", "get_total_norm"))


def check_gradient_norm(interp: Interpreter, node: ast.Call) -> None:
    """Report a norm of gradients that is kept in the low dtype of the gradients."""
    name = last_name(node.func)
    if name not in _NORMS or interp.assumes_region:
        return
    parts = list(walk(node))
    gradients = [part for part in parts if isinstance(part, ast.Attribute) and part.attr == "grad"]
    widens = any(keyword.arg == "dtype" for keyword in node.keywords) or any(
        isinstance(part, ast.Attribute) and part.attr in ("float", "double", "float32") for part in parts
    )
    if widens or not (gradients or name == "get_total_norm"):
        return
    stored = (_dtype_of_gradient(interp, part) for part in gradients)
    dtype = interp.assumed_dtype or next(filter(None, stored), "")
    if dtype:
        names = {"call": SourceText(node)}
        emit_once(interp, e.FragileMath, node, DtypeInfo(dtype), how="gradient-norm", names=names)


def _dtype_of_gradient(interp: Interpreter, node: ast.expr) -> str:
    """Return the low dtype of the parameters whose gradient an expression is, or ""."""
    value = interp.expression_values.get(node)
    modules = value.params.modules if isinstance(value, GradValue) else None
    return low_dtype_of_modules(interp, modules) if modules else ""


def check_draws(interp: Interpreter, node: ast.Compare) -> None:
    """Report a comparison of random numbers that were drawn in bfloat16, which has few numbers near one.

    Float16 draws zero for one number of 4096, and the other shares are off by less than that.
    """
    for side in (node.left, *node.comparators):
        fact = dtype_info_of(interp, side)
        if UNIFORM in fact.traits and fact.dtype == "bfloat16":
            emit_once(interp, e.FragileMath, node, fact, how="draws", names={"call": SourceText(node)})


def check_ranking(interp: Interpreter, op: OpCall) -> None:
    """Report a choice of the largest probabilities after their cast to a low dtype, also with a bias added to them."""
    if ROUNDED_PROBABILITY in op.first_info.traits and op.first_info.is_low:
        names = {"call": SourceText(op.node)}
        emit_once(interp, e.FragileMath, op.node, op.first_info, how="ranking", names=names)
