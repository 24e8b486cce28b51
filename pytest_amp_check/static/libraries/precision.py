"""Effects of low precision on values: result dtypes of expressions, and losses of precision."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import combinations

from ...protocol import events as e
from ...protocol import kernels, torch_api
from ...protocol.events import TrackedObject
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.source_text import SourceText, find_access_path
from ..interpreter.dtypes import (
    ANGLES,
    BOUNDED,
    COMPLEMENT,
    EXP,
    EXP_SUM,
    GUESSED_LOW,
    HALF,
    INTEGERS,
    KEEP_TRAITS,
    LOW_DTYPES,
    NEGATED,
    NO_DTYPE_INFO,
    NUMBER,
    NUMBER_INFO,
    POSITIONS,
    REGION,
    REGION_LEFT,
    ROUNDED,
    SCALAR,
    SIGMOID,
    SOFTMAX,
    SQUARE,
    WEIGHTED,
    ZEROS,
    AutocastState,
    DtypeInfo,
    is_low,
    is_low_method,
    op_of_module,
    promote_dtypes,
    result_dtype,
)
from ..interpreter.expressions.attributes import attribute_of
from ..interpreter.imports import look_up
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import ExternalName
from ..interpreter.values.value import Value
from ..project.module import is_product
from ..project.syntax import is_same_syntax
from .arguments import literal_value, object_ref_of
from .syntax_queries import (
    callee_of,
    constant_of_node,
    elements_of,
    find_nodes,
    first_argument,
    holder_of,
    keywords_of,
    last_name,
    operands_of,
    receiver_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from ...protocol.events import Site

    Effect = TypeVar("Effect", bound=e.LowPrecisionEffect)
    Fields = ParamSpec("Fields")

#: Constructors of tensors. The default dtype is float32, except for the last three.
_CONSTRUCTORS = frozenset(
    "zeros ones empty rand randn full normal linspace logspace eye FloatTensor arange tensor as_tensor".split()
)
_LOGS = frozenset(("log", "log2", "log10"))
#: Label of the better formula for a logarithm, by the trait of the argument. The first matching trait decides.
_LOGS_OF = {EXP_SUM: "logsumexp", COMPLEMENT: "log-complement", SIGMOID: "log-sigmoid", SOFTMAX: "log-softmax"}
_WRITES = {
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
_ADDING = frozenset(("addmm_", "baddbmm_", "addbmm_", "addmv_"))
#: Matmuls whose ``out=`` tensor must have the dtype of the result.
_WITH_OUT = frozenset(("mm", "matmul", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv"))
#: Builtins that return a number.
_NUMBERS = frozenset(("len", "int", "float"))
#: Reductions, which return a single number without a ``dim`` argument.
_REDUCTIONS = frozenset("mean sum max min amax amin std var norm prod median logsumexp".split())
_CLAMPS = frozenset(("clamp", "clip", "clamp_min", "clamp_max"))
#: Limits above which a number rounds to one in float16 and bfloat16: half a unit in the last place below one.
_ONES = (1 - 2.0**-12, 1 - 2.0**-9)
_BOUNDED = frozenset("sigmoid softmax tanh normalize sin cos hardsigmoid erf cosine_similarity".split())
_DTYPES = frozenset(("float16", "bfloat16"))
#: Methods that cast, with the target dtype, or "" if the dtype is an argument.
_CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
_CASTS.update(dict.fromkeys(("to", "type", "type_as"), ""))
_OPERATORS: dict[str, type[ast.operator]] = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "div": ast.Div,
    "true_divide": ast.Div,
    "pow": ast.Pow,
}
_LINEAR = frozenset((ast.Mult, ast.Div, ast.Add, ast.Sub))
#: Traits of regions, positions and probabilities.
_OF_REGIONS = frozenset((REGION, GUESSED_LOW, REGION_LEFT))
_OF_POSITIONS = frozenset((POSITIONS, ROUNDED, ANGLES))
_PROBABILITIES = frozenset((SIGMOID, SOFTMAX))


class _ReportedKeys(set[tuple[object, ...]]):
    """Reported problems of a file, by location and kind."""


class _ActiveRegistrations(set[ast.Call]):
    """Buffer registrations under evaluation."""


class _BufferRegistrations(dict[ast.AST, dict[str, list[ast.Call]]]):
    """Calls that register buffers in constructors, by buffer name."""


# Dtype info of expressions.


def _dtype_info_of(interp: Interpreter, node: ast.expr) -> DtypeInfo:
    """Return the dtype info of an expression that was just evaluated."""
    value = interp.expression_values.get(node)
    return NO_DTYPE_INFO if value is None else _mark_left_region(interp, value.dtype_info)


def _mark_left_region(interp: Interpreter, fact: DtypeInfo) -> DtypeInfo:
    """Add the trait ``REGION_LEFT`` to a value from a region if the region may be closed here."""
    if REGION in fact.traits and _autocast_state(interp).mode == "out":
        return fact.with_traits(REGION_LEFT)
    return fact


def _is_tensor_dtype(fact: DtypeInfo) -> bool:
    """Return True if the value is a tensor of a known dtype."""
    return fact.dtype not in ("", NUMBER)


def _is_low_of_region(fact: DtypeInfo) -> bool:
    return fact.is_low and REGION in fact.traits


def _autocast_state(interp: Interpreter) -> AutocastState:
    """Return the autocast state at the current node."""
    if interp.state.open_regions:
        region = interp.state.open_regions[-1]
        if region.enabled is False:
            return AutocastState("off")
        if region.dtype in ("float32", "float64"):
            return AutocastState()
        return AutocastState("on", region.device.partition(":")[0], region.dtype if region.dtype in _DTYPES else HALF)
    return AutocastState() if interp.state.possible_regions else AutocastState("out")


def _is_used_outside(fact: DtypeInfo, state: AutocastState) -> bool:
    """Return True if a low-precision tensor from a region is used without active autocast."""
    return _is_low_of_region(fact) and (state.mode == "off" or (state.mode == "out" and REGION_LEFT in fact.traits))


def _annotate_attribute(interp: Interpreter, node: ast.Attribute, value: Value) -> Value:
    if node.attr in ("T", "mT", "data", "H"):
        return value.with_dtype_info(_dtype_info_of(interp, node.value))
    receiver = interp.expression_values.get(node.value)
    if receiver is not None and receiver.kind == "tensor":
        return value.with_dtype_info(NO_DTYPE_INFO)
    if value.dtype_info is NO_DTYPE_INFO and isinstance(node.value, ast.Name):
        return value.with_dtype_info(_find_buffer_info(interp, node.attr))
    return value


def _find_buffer_info(interp: Interpreter, name: str) -> DtypeInfo:
    """Return the dtype info of a buffer that the constructor of the current class registers.

    Only a buffer that holds positions has dtype info.
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
        fact = _evaluate_dtype_info(interp, _find_definition(call.args[1], init.node))
        registering.discard(call)
        return fact if POSITIONS in fact.traits else NO_DTYPE_INFO
    return NO_DTYPE_INFO


def _collect_registrations(init: ast.AST) -> dict[str, list[ast.Call]]:
    registered: dict[str, list[ast.Call]] = {}
    for call in find_nodes(init, ast.Call):
        if len(call.args) > 1 and (find_access_path(call.func) or "").endswith(".register_buffer"):
            name = constant_of_node(call.args[0])
            if isinstance(name, str):
                registered.setdefault(name, []).append(call)
    return registered


def _evaluate_dtype_info(interp: Interpreter, node: ast.expr) -> DtypeInfo:
    """Return the dtype info of an expression from another location."""
    found: list[Value] = []
    interp.without_events(lambda: found.append(interp.evaluate(node)))
    return found[0].dtype_info


def _annotate_subscript(interp: Interpreter, node: ast.Subscript, value: Value) -> Value:
    if last_name(node.value) == "shape":
        return value.with_dtype_info(NUMBER_INFO)
    held = interp.expression_values.get(node.value)
    if held is None or held.kind not in ("unknown", "tensor"):
        return value
    fact = _dtype_info_of(interp, node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Slice) for part in parts):
        return value.with_dtype_info(fact)
    return value.with_dtype_info(
        fact.part_info if any(_is_mask(interp, part) for part in parts) else fact.with_traits(SCALAR)
    )


def _is_mask(interp: Interpreter, index: ast.expr) -> bool:
    """Return True if an index is a mask, which selects several elements."""
    return isinstance(index, ast.Compare) or _dtype_info_of(interp, index).dtype == "bool"


def _annotate_compare(interp: Interpreter, node: ast.Compare, value: Value) -> Value:
    known = any(_is_tensor_dtype(_dtype_info_of(interp, side)) for side in (node.left, *node.comparators))
    return value.with_dtype_info(DtypeInfo("bool")) if known else value


def _annotate_unary(interp: Interpreter, node: ast.UnaryOp, value: Value) -> Value:
    fact = _dtype_info_of(interp, node.operand)
    kind = type(node.op)
    if kind is ast.USub:
        negated = fact.traits & _PROBABILITIES
        fact = fact.restrict_traits(REGION, GUESSED_LOW, REGION_LEFT, BOUNDED).with_traits(
            *([NEGATED] if negated else [])
        )
    return value.with_dtype_info(fact if kind in (ast.USub, ast.Invert) else NO_DTYPE_INFO)


def _annotate_binary(interp: Interpreter, node: ast.BinOp, value: Value) -> Value:
    kind = type(node.op)
    if kind is ast.Add:
        _check_epsilons(interp, node, divides=False)
    elif kind is ast.Div:
        _check_epsilons(interp, node.right, divides=True)
    sides = (node.left, node.right)
    if kind in (ast.Mult, ast.Div):
        _check_scaled_late(interp, node, *(sides if is_product(node.left) else reversed(sides)))
    return value.with_dtype_info(
        _apply_operator(
            interp, kind, _dtype_info_of(interp, node.left), _dtype_info_of(interp, node.right), node, sides
        )
    )


#: Methods that transpose the keys in a batched product of queries and keys. Similarities of two lists use ``T``.
_TURNS = frozenset("transpose permute mT swapaxes adjoint".split())


def _check_scaled_late(interp: Interpreter, node: ast.BinOp, product: ast.expr, scale_node: ast.expr) -> None:
    """Report a float16 product of queries and keys that is scaled only after the product may have overflowed."""
    fact = _dtype_info_of(interp, product)
    if (
        not is_product(product)
        or not (fact.may_underflow and REGION in fact.traits)
        or _is_tensor_dtype(_dtype_info_of(interp, scale_node))
    ):
        return
    if isinstance(product, ast.BinOp):
        factors = [product.left, product.right]
    else:
        factors = [part for part in (receiver_of(product), *getattr(product, "args", ())) if part is not None]
    if isinstance(product, ast.Call) and last_name(product.func) == "einsum":
        late = not any(is_same_syntax(*pair) for pair in combinations(factors, 2))
    else:
        late = any(last_name(callee_of(factor) or factor) in _TURNS for factor in factors)
    if late:
        _emit_once(
            interp, e.LateScale, node, fact, names={"call": SourceText(node, 60), "product": SourceText(product, 60)}
        )


def _apply_operator(
    interp: Interpreter,
    op: type[ast.operator],
    left: DtypeInfo,
    right: DtypeInfo,
    node: ast.AST,
    sides: tuple[ast.expr, ast.expr],
) -> DtypeInfo:
    """Return the dtype info of an operator's result."""
    if op is ast.MatMult:
        return _apply_matmul(interp, "matmul", [left, right], node)
    kept = (left.traits | right.traits) & _OF_REGIONS
    if all(SCALAR in fact.traits or fact.dtype == NUMBER for fact in (left, right)):
        kept |= {SCALAR}
    if op is ast.Pow:
        if constant_of_node(sides[1]) == 2 and BOUNDED not in left.traits:
            kept |= {SQUARE}
        return DtypeInfo(result_dtype("pow", right if left.dtype == NUMBER else left, _autocast_state(interp)), kept)
    if op is ast.Div and left.dtype == NUMBER and right.dtype != NUMBER:
        return DtypeInfo(result_dtype("reciprocal", right, _autocast_state(interp)), kept)
    if op is ast.Sub and left.dtype == NUMBER and right.traits & _PROBABILITIES:
        kept |= {COMPLEMENT}
    return _apply_linear_operator(op, left, right, kept, sides)


def _apply_linear_operator(
    op: type[ast.operator], left: DtypeInfo, right: DtypeInfo, kept: frozenset[str], sides: tuple[ast.expr, ast.expr]
) -> DtypeInfo:
    """Return the dtype info of an elementwise operator, with the traits that the operator preserves."""
    place = None
    for one in (left, right):
        if op in _LINEAR and one.traits & _OF_POSITIONS:
            kept |= one.traits & _OF_POSITIONS
            place = one.trait_node
    both, number = left.traits & right.traits, NUMBER in (left.dtype, right.dtype)
    if BOUNDED in (left.traits | right.traits if number else both):
        kept |= {BOUNDED}
    elif op is ast.Mult and is_same_syntax(*sides):
        kept |= {SQUARE}
    return DtypeInfo(promote_dtypes(left, right), kept, place)


def _annotate_call(interp: Interpreter, node: ast.Call, value: Value) -> Value:
    fact = _apply_call(interp, node)
    _check_in_place_sum(interp, node)
    return value if fact is None else value.with_dtype_info(fact)


def _apply_call(interp: Interpreter, node: ast.Call) -> DtypeInfo | None:
    """Return the dtype info of a call, or None if the analysis of the callee provides the result."""
    dotted = _resolve_callee(interp, node.func)
    args = [_dtype_info_of(interp, arg) for arg in node.args]
    keywords = {keyword.arg or "**": _dtype_info_of(interp, keyword.value) for keyword in node.keywords}
    if dotted is not None:
        return _apply_function(interp, torch_api.canonical_name(dotted), args, keywords, node)
    if isinstance(node.func, ast.Attribute):
        receiver = _dtype_info_of(interp, node.func.value)
        return _apply_method(interp, _OpCall(node.func.attr, receiver, [receiver, *args], keywords, node, node.args))
    return _apply_other_call(interp, node, args, keywords)


def _apply_function(
    interp: Interpreter, dotted: str, args: list[DtypeInfo], keywords: dict[str, DtypeInfo], node: ast.Call
) -> DtypeInfo:
    """Return the dtype info of a torch function call, or no info for other functions."""
    space, _, last = dotted.rpartition(".")
    if dotted in _NUMBERS or space == "math":
        return NUMBER_INFO
    if last in kernels.ATTENTION:
        return _apply_attention(interp, args[:3], node)
    if not dotted.startswith("torch.") or dotted.startswith(("torch.nn.utils", "torch.distributed")):
        return NO_DTYPE_INFO
    op = _OpCall(last, args[0] if args else keywords.get("input", NO_DTYPE_INFO), args, keywords, node, node.args[1:])
    if space in ("torch", "torch.special", "torch.linalg", "torch.fft"):
        if last in _CONSTRUCTORS or last.endswith("_like"):
            return _apply_constructor(interp, op)
    elif not dotted.startswith("torch.nn.functional."):
        return NO_DTYPE_INFO
    return _apply_op(interp, op)


def _apply_attention(interp: Interpreter, given: list[DtypeInfo], node: ast.Call) -> DtypeInfo:
    """Check attention of another package, which receives query, key and value, and return the dtype info."""
    low = next(filter(_is_low_of_region, given), None)
    if low is not None and any(fact.dtype == "float32" for fact in given):
        _emit_once(interp, e.DtypeClash, node, low, how="attention", names={"call": SourceText(node, 60)})
    return given[-1] if given else NO_DTYPE_INFO


def _apply_method(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """Return the dtype info of a method call if the receiver may be a tensor. None if unknown."""
    if _is_tensor_dtype(op.first_info) or op.first_info.traits & {ANGLES, ROUNDED}:
        return _apply_op(interp, op)
    if op.name in ("new_zeros", "new_ones", "new_full", "new_empty"):
        return _apply_constructor(interp, op)
    if op.name in ("long", "int") and not op.node.args:
        return DtypeInfo("int")
    if op.name in _CASTS:
        return _apply_cast(interp, op)
    return (
        _apply_op(interp, op)
        if is_low_method(op.name)
        else _apply_other_call(interp, op.node, op.argument_infos[1:], op.keyword_infos)
    )


def _resolve_callee(interp: Interpreter, func: ast.expr) -> str | None:
    """Return the dotted name of a callee outside the project, or None."""
    if isinstance(func, ast.Name):
        value = look_up(interp, func.id)
        if value is None:
            return func.id if func.id in _NUMBERS else torch_api.BARE.get(func.id)
        return value.name if isinstance(value, ExternalName) else None
    if isinstance(func, ast.Attribute):
        head = _resolve_callee(interp, func.value)
        return f"{head}.{func.attr}" if head else None
    return None


def _apply_other_call(
    interp: Interpreter, node: ast.Call, args: list[DtypeInfo], keywords: dict[str, DtypeInfo]
) -> DtypeInfo | None:
    """Return the dtype info of a call of a module, a project function or an unknown callee. None if unknown."""
    state = _autocast_state(interp)
    given = [*args, *keywords.values()]
    if find_access_path(node.func) is None or (state.mode != "on" and not any(fact.is_low for fact in given)):
        return None
    module = object_ref_of(_callee_value(interp, node.func), "module")
    if module is None:
        return None
    kind = str(module.tracked_object.attributes.kind)
    if kind:
        return _apply_module(interp, kind, args[0] if args else NO_DTYPE_INFO, module.tracked_object, node)
    return DtypeInfo(state.dtype, frozenset({REGION, GUESSED_LOW})) if state.mode == "on" else None


def _apply_module(interp: Interpreter, kind: str, given: DtypeInfo, module: TrackedObject, node: ast.Call) -> DtypeInfo:
    """Return the dtype info of the output of a torch module."""
    state = _autocast_state(interp)
    if kind in WEIGHTED and not module.attributes.low and _is_used_outside(given, state):
        _emit_once(interp, e.DtypeClash, node, given, how="module", names={"call": SourceText(node.func)})
        return NO_DTYPE_INFO
    op = op_of_module(kind)
    dtype = result_dtype(op, given, state)
    kept = given.traits & _OF_REGIONS if dtype == given.dtype else frozenset()
    return DtypeInfo(dtype, kept | {REGION, *_bounded_traits(op)})


def _bounded_traits(op: str) -> tuple[str, ...]:
    """Return the traits of an op whose result has a magnitude of about one at most."""
    return () if op not in _BOUNDED else (BOUNDED, op) if op in _PROBABILITIES else (BOUNDED,)


def _callee_value(interp: Interpreter, func: ast.expr) -> Value | None:
    """Return the evaluated value of a callee, or of an attribute of an evaluated receiver. None if unknown."""
    known = interp.expression_values.get(func)
    if known is not None or not isinstance(func, ast.Attribute):
        return known
    receiver = interp.expression_values.get(func.value)
    found: list[Value] = []
    if receiver is not None:
        interp.without_events(lambda: found.append(attribute_of(interp, receiver, func.attr, func)))
    return found[0] if found else None


class _OpCall(NamedTuple):
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


def _apply_op(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """Return the dtype info of an op's result."""
    if op.name in kernels.NAMES:
        _check_kernel(interp, op)
    act = _OPS.get(op.name)
    made = act(interp, op) if act is not None else None
    if made is not None:
        return made
    if "out" in op.keyword_infos:
        return _apply_product_write(interp, op)
    if is_low(op.name, _autocast_state(interp).device):
        return _apply_matmul(interp, op.name, [fact for fact in op.argument_infos if fact.dtype != NUMBER], op.node)
    act = _ELEMENTWISE.get(op.name)
    made = act(interp, op) if act is not None else None
    return _apply_elementwise(interp, op) if made is None else made


def _check_kernel(interp: Interpreter, op: _OpCall) -> None:
    """Report an op that may lack a kernel for the input dtype, or for a dtype that a region produces internally."""
    state = _autocast_state(interp)
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
    _emit_once(interp, e.LowOp, op.node, low, how=how, names={"call": SourceText(op.node, 60)})


def _has_length(node: ast.Call) -> bool:
    """Return True if an FFT has a length argument that is a power of two or unknown."""
    asked = keywords_of(node).get("n", node.args[1] if len(node.args) > 1 else None)
    length = constant_of_node(asked)
    return asked is not None and not (isinstance(length, int) and length & (length - 1))


def _apply_numpy(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    if op.first_info.dtype == "bfloat16" and REGION in op.first_info.traits and GUESSED_LOW not in op.first_info.traits:
        _emit_once(interp, e.DtypeClash, op.node, op.first_info, how="numpy", names={"call": SourceText(op.node.func)})
    return NO_DTYPE_INFO


def _apply_index_cast(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    if ROUNDED in op.first_info.traits:
        _emit_once(interp, e.LowPositions, op.first_info.trait_node, op.first_info, how="index")
    return DtypeInfo("int")


def _apply_cumsum(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """Return integer positions for the running sum of integers, or None for other dtypes."""
    return DtypeInfo("int", frozenset({POSITIONS})) if op.first_info.dtype in INTEGERS else None


def _apply_sin_cos(interp: Interpreter, op: _OpCall) -> None:
    if op.first_info.traits & {ANGLES, ROUNDED}:
        how = "angles" if ANGLES in op.first_info.traits else "cast"
        _emit_once(interp, e.LowPositions, op.first_info.trait_node, op.first_info, how=how)


def _apply_concatenation(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    parts = elements_of(first_argument(op.node))
    return _join_parts(interp, [_dtype_info_of(interp, part) for part in parts], op.node) if parts else None


def _apply_operator_function(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """Return the dtype info of a method or function equivalent to an operator. None if an operand is missing."""
    if len(op.argument_infos) < 2 or not op.other_arguments:
        return None
    if op.name == "add" and op.first_info.may_underflow:
        _check_epsilon(interp, op.first_info, op.other_arguments[0], op.node, divides=False)
    sides = (op.tensor_node or op.node.args[0], op.other_arguments[0])
    return _apply_operator(interp, _OPERATORS[op.name], op.first_info, op.argument_infos[1], op.node, sides)


def _apply_elementwise(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    first = op.first_info
    if first.is_low and op.base_name in _CLAMPS:
        _check_clamp(interp, op)
    if "dtype" in op.keyword_infos:
        return DtypeInfo(_find_dtype_argument(interp, op.node))
    state = _autocast_state(interp)
    dtype = result_dtype(op.name, first, state)
    if op.name.startswith("new_") or op.base_name.endswith("_like"):
        return DtypeInfo(dtype)
    if op.name in KEEP_TRAITS:
        return DtypeInfo(dtype, first.traits, first.trait_node)
    fact = DtypeInfo(dtype, first.traits & (_OF_REGIONS | {SCALAR}))
    if op.name in _REDUCTIONS and not op.other_arguments and not op.keyword_infos:
        fact = fact.with_traits(SCALAR)
    _check_fragile_math(interp, op, fact)
    if dtype not in ("", first.dtype) and dtype == state.dtype:
        fact = DtypeInfo(dtype, frozenset({REGION}))
    return fact.with_traits(*_result_traits(op))


def _result_traits(op: _OpCall) -> tuple[str, ...]:
    """Return the traits of an op's result."""
    bounded = BOUNDED in op.first_info.traits
    if op.base_name == "exp":
        return () if _may_subtract_max(op.node) else (EXP,)
    if op.base_name == "sum" and EXP in op.first_info.traits:
        return (EXP_SUM,)
    if op.base_name == "square" and not bounded:
        return (SQUARE,)
    return (BOUNDED,) if bounded and op.base_name in ("abs", "relu", "mean", "clamp") else _bounded_traits(op.base_name)


def _check_fragile_math(interp: Interpreter, op: _OpCall, made: DtypeInfo) -> None:
    """Report an op that overflows or cancels in low precision."""
    how = _find_overflow(op, made) if op.first_info.may_underflow or made.may_underflow else ""
    if op.first_info.is_low and op.name in _LOGS:
        how = next((named for trait, named in _LOGS_OF.items() if trait in op.first_info.traits), "")
    elif op.first_info.is_low and op.name == "log1p" and NEGATED in op.first_info.traits:
        how = "log-complement"
    if how:
        _emit_once(interp, e.FragileMath, op.node, op.first_info, how=how, names={"call": SourceText(op.node, 60)})


def _find_overflow(op: _OpCall, made: DtypeInfo) -> str:
    """Return the label of a sum of squares that may exceed the range of float16, or ""."""
    if op.name in ("mean", "sum") and op.first_info.may_underflow and SQUARE in op.first_info.traits:
        return "squares"
    return "variance" if op.name == "var" and made.may_underflow and BOUNDED not in op.first_info.traits else ""


def _may_subtract_max(node: ast.Call) -> bool:
    """Return True if the argument of an exponential has a difference or negation, which may subtract the maximum."""
    argument = first_argument(node) or receiver_of(node)
    if argument is None:
        return False
    negations = (type(part.op) is ast.USub for part in find_nodes(argument, ast.UnaryOp))
    return any(negations) or any(type(part.op) is ast.Sub for part in find_nodes(argument, ast.BinOp))


def _join_parts(interp: Interpreter, parts: list[DtypeInfo], node: ast.AST) -> DtypeInfo:
    made = parts[0]
    state = _autocast_state(interp)
    if state.mode == "on" and state.device == "cpu" and _DTYPES.issubset(fact.dtype for fact in parts):
        # Only on the CPU, these ops are on autocast's list, and autocast fails for a mix of float16 and bfloat16.
        _emit_once(interp, e.DtypeClash, node, made, how="mixed")
        return NO_DTYPE_INFO
    for part in parts[1:]:
        dtype = promote_dtypes(made, part)
        place = made.trait_node if made.trait_node is part.trait_node else None
        made = DtypeInfo(dtype, made.traits & part.traits, place)
    return made


def _apply_matmul(interp: Interpreter, op: str, operands: list[DtypeInfo], node: ast.AST) -> DtypeInfo:
    state = _autocast_state(interp)
    if state.mode == "on":
        outer = op == "einsum" and state.device == "cpu"
        # Positions are rounded here at the latest, when cast to the dtype of the other tensor (frequencies or
        # activations).
        if not outer and any(POSITIONS in fact.traits and fact.dtype in ("float32", "") for fact in operands):
            return DtypeInfo(state.dtype, frozenset({REGION, ANGLES}), node)
        return DtypeInfo(state.dtype, frozenset({REGION}))
    dtypes = {fact.dtype for fact in operands}
    low = next((fact for fact in operands if _is_used_outside(fact, state)), None)
    if low is not None and "float32" in dtypes:
        _emit_once(interp, e.DtypeClash, node, low, how="matmul", names={"call": SourceText(node)})
    known = state.mode == "off" and operands and "" not in dtypes
    return DtypeInfo(operands[0].dtype) if known else NO_DTYPE_INFO


def _apply_indexed_write(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    place, word = _WRITES[op.name]
    # The buffer is the first argument.
    source = (
        op.argument_infos[place + 1]
        if len(op.argument_infos) > place + 1
        else op.keyword_infos.get(word, NO_DTYPE_INFO)
    )
    if op.first_info.dtype == "float32" and _is_low_of_region(source):
        _emit_once(interp, e.DtypeClash, op.node, source, how="write", names={"target": SourceText(op.node.func)})
    return op.first_info


def _apply_product_write(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """Check a product that is added in place or written to ``out=``, and return the dtype info of the target."""
    adds = op.name in _ADDING
    target, factors = (op.first_info, op.argument_infos[1:]) if adds else (op.keyword_infos["out"], op.argument_infos)
    low = next(filter(_is_low_of_region, factors), None)
    if low is not None and target.dtype == "float32" and (adds or op.name in _WITH_OUT):
        _emit_once(interp, e.DtypeClash, op.node, low, how="in-place" if adds else "out")
    return target


def _apply_constructor(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """Return the dtype info of a tensor constructor."""
    zeros = frozenset({ZEROS}) if op.name in ("zeros", "zeros_like", "new_zeros") else frozenset()
    positions = frozenset({POSITIONS}) if op.name == "arange" and not _is_short_range(op.node) else frozenset()
    if "dtype" in op.keyword_infos:
        dtype = _find_dtype_argument(interp, op.node)
        if positions and dtype in _DTYPES:
            return DtypeInfo(dtype, frozenset({ROUNDED}), op.node)
        return DtypeInfo(dtype, positions | zeros)
    if op.name.endswith("_like") or op.name.startswith("new_"):
        return (
            op.argument_infos[0].restrict_traits(REGION, GUESSED_LOW, REGION_LEFT).with_traits(*zeros)
            if op.argument_infos
            else DtypeInfo("", zeros)
        )
    if op.name == "arange":
        return DtypeInfo("int", positions)
    if "set_default_dtype" in interp.state.frame.module.identifiers or op.name in ("tensor", "as_tensor"):
        return NO_DTYPE_INFO
    return DtypeInfo("float32", zeros)


def _is_short_range(node: ast.Call) -> bool:
    """Return True if all bounds are at most 256, so that every low dtype represents the positions exactly."""
    bounds = map(constant_of_node, node.args)
    return all(isinstance(bound, int) and bound <= 256 for bound in bounds)


def _find_dtype_argument(interp: Interpreter, node: ast.Call) -> str:
    """Return the dtype of a ``dtype`` keyword argument, or ""."""
    given = keywords_of(node).get("dtype")
    return _resolve_dtype(interp, given) if given is not None else ""


def _resolve_dtype(interp: Interpreter, node: ast.expr) -> str:
    """Return the dtype of an expression such as ``torch.float16`` or ``x.dtype``, or ""."""
    tensor = holder_of(node)
    if tensor is not None and last_name(node) == "dtype":
        fact = _dtype_info_of(interp, tensor)
        if _is_tensor_dtype(fact):
            return fact.dtype
    name = _resolve_callee(interp, node)
    if name in ("torch.long", "torch.int64", "torch.int32", "torch.int"):
        return "int"
    return "bool" if name == "torch.bool" else torch_api.DTYPES.get(name or "", "")


def _apply_cast(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """Return the dtype info of ``x.float()``, ``x.to(...)`` or ``x.type_as(y)``."""
    given, dtype = op.first_info, _CASTS[op.name]
    if op.name == "type_as":
        dtype = op.argument_infos[1].dtype if len(op.argument_infos) > 1 else ""
    elif not dtype:
        dtype = _find_target_dtype(interp, op)
    if not dtype:
        return DtypeInfo("", given.traits & {POSITIONS})
    low = dtype in LOW_DTYPES
    if low and POSITIONS in given.traits:
        return DtypeInfo(dtype, frozenset({ROUNDED}), op.node)
    if low == given.is_low:
        return given._replace(dtype=dtype)
    return DtypeInfo(dtype, given.traits & (_OF_POSITIONS | {BOUNDED, ZEROS}), given.trait_node)


def _find_target_dtype(interp: Interpreter, op: _OpCall) -> str:
    """Return the target dtype of ``to``: by name, by another tensor, or the old dtype for a plain move."""
    named = [_resolve_dtype(interp, argument) for argument in (*op.node.args, *(k.value for k in op.node.keywords))]
    others = [fact.dtype for fact in op.argument_infos[1:] if _is_tensor_dtype(fact)]
    moves = "dtype" not in op.keyword_infos and all(map(_is_device_argument, op.node.args))
    return next(filter(None, (*named, *others)), op.first_info.dtype if moves else "")


def _is_device_argument(node: ast.expr) -> bool:
    """Return True if an argument of ``to`` is a device, by value or by name."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int))
    last = (find_access_path(node) or "").rpartition(".")[2]
    maker = callee_of(node)
    return "device" in last or last == "rank" or (maker is not None and "device" in (find_access_path(maker) or ""))


# Epsilons.


def _find_small_number(interp: Interpreter, node: ast.expr) -> float | None:
    """Return the constant of an expression if between zero and one (exclusive), else None."""
    number = (
        literal_value(interp.expression_values.get(node))
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute))
        else None
    )
    return number if isinstance(number, float) and 0 < number < 1 else None


def _check_epsilons(interp: Interpreter, node: ast.expr, *, divides: bool) -> None:
    """Check the numbers added to an operand that may underflow. ``divides`` means that the sum is a divisor."""
    sides = operands_of(node, ast.Add)
    for side, other in zip(sides, reversed(sides), strict=True):
        fact = _dtype_info_of(interp, side)
        if fact.may_underflow:
            _check_epsilon(interp, fact, other, node, divides=divides)


def _check_epsilon(interp: Interpreter, fact: DtypeInfo, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
    number = _find_small_number(interp, node)
    if number is not None:
        names = {"sum": SourceText(place), "epsilon": SourceText(node)}
        event = _emit_once(interp, e.Epsilon, place, fact, value=number, how="added", divides=divides, names=names)
        if event is not None and divides:
            event.divides = True


def _check_clamp(interp: Interpreter, op: _OpCall) -> None:
    """Report clamp bounds that the low dtype of a tensor cannot represent."""
    given = keywords_of(op.node)
    for bound in (*op.other_arguments[:2], *(given[name] for name in ("min", "max") if name in given)):
        number = literal_value(interp.expression_values.get(bound))
        if isinstance(number, (int, float)) and torch_api.FLOAT16_MAX < abs(number) < float("inf"):
            tensor = op.tensor_node
            names = {"call": SourceText(op.node, 60), **({} if tensor is None else {"tensor": SourceText(tensor)})}
            if op.first_info.dtype == "float16" and GUESSED_LOW not in op.first_info.traits:
                interp.emit(e.Fill, op.node, value=float(number), eligible=True, bound=True, names=names)
    upper = (
        op.other_arguments[0]
        if op.base_name == "clamp_max" and op.other_arguments
        else given.get("max", op.other_arguments[1] if op.other_arguments[1:] else None)
    )
    number = literal_value(interp.expression_values.get(upper)) if upper is not None else None
    if upper is not None and isinstance(number, float) and _ONES[op.first_info.dtype == "bfloat16"] < number < 1:
        names = {"sum": SourceText(op.node, 60), "epsilon": SourceText(upper)}
        _emit_once(interp, e.Epsilon, op.node, op.first_info, value=number, how="to-one", divides=False, names=names)
    if op.first_info.may_underflow and op.base_name != "clamp_max":
        _check_clamp_minimum(interp, op)


def _check_clamp_minimum(interp: Interpreter, op: _OpCall) -> None:
    bound = keywords_of(op.node).get("min", op.other_arguments[0] if op.other_arguments else None)
    number = _find_small_number(interp, bound) if bound is not None else None
    if bound is not None and number is not None:
        names = {"sum": SourceText(op.node, 60), "epsilon": SourceText(bound)}
        _emit_once(interp, e.Epsilon, op.node, op.first_info, value=number, how="clamped", divides=False, names=names)


# Running sums.


def _check_assigned_sum(interp: Interpreter, node: ast.Assign) -> None:
    """Check ``total = total + x``, and the moving average ``mean = a * mean + b * x``."""
    sides = operands_of(node.value, ast.Add)
    name = find_access_path(node.targets[0]) if sides and len(node.targets) == 1 else None
    if name is None:
        return
    for old, new in zip(sides, reversed(sides), strict=True):
        before = next((part for part in operands_of(old, ast.Mult) or [old] if find_access_path(part) == name), None)
        if before is not None:
            _check_running_sum(interp, before, new, node, in_place=False)
            return


def _check_in_place_sum(interp: Interpreter, node: ast.Call) -> None:
    """Check ``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)`` and ``mean.lerp_(x, b)``."""
    name = last_name(node.func)
    target = receiver_of(node) if name in ("add_", "lerp_") else None
    if target is None or not node.args:
        return
    decayed = receiver_of(target)
    if decayed is not None and name == "add_" and last_name(callee_of(target)) == "mul_":
        target = decayed
    _check_running_sum(interp, target, node.args[0], node, in_place=True)


def _check_running_sum(
    interp: Interpreter, target: ast.expr, added: ast.expr, node: ast.AST, *, in_place: bool
) -> None:
    """Report a sum over the iterations of a loop that is kept in low precision.

    The variable must be zero before the loop, and the summand must be computed in each iteration. A region in the
    iteration makes the summand low. If the zeros are already low, the summand may be computed anywhere.
    """
    name, known = find_access_path(target), interp.expression_values.get(target)
    if name is None or known is None or not interp.state.loops:
        return
    before = known.dtype_info
    starts = before.dtype == NUMBER or (before.is_low and ZEROS in before.traits)
    index = interp.expression_values.get(target.slice) if isinstance(target, ast.Subscript) else None
    indexed_loops = frozenset[int]() if index is None else index.loops or index.varying_loops()
    if not starts or not _is_made_each_iteration(interp, added, name, before, indexed_loops):
        return
    fact = _dtype_info_of(interp, added)
    if GUESSED_LOW in fact.traits and _is_named_output(added):
        return
    if fact.is_low and REGION_LEFT in fact.traits:
        before = fact
    elif not in_place or not before.is_low or fact.dtype == NUMBER:
        return
    _emit_once(interp, e.LowSum, node, before, names={"sum": SourceText(target)})


def _is_named_output(added: ast.expr) -> bool:
    """Return True if a value is a named entry of a model output.

    Such an entry is a loss or a count as often as a value that autocast casts.
    """
    while isinstance(added, ast.Call) and (held := receiver_of(added)) is not None:
        added = held
    match added:
        case ast.Attribute() | ast.Subscript(slice=ast.Constant(value=str())):
            return True
    return False


def _is_made_each_iteration(
    interp: Interpreter, added: ast.expr, name: str, before: DtypeInfo, indexed_loops: frozenset[int]
) -> bool:
    """Return True if a summand is recomputed in the iterations of a loop inside the sum's scope, and not from the sum.

    Loops in ``indexed_loops`` select the element to add to, so iterations of these loops do not accumulate.
    """
    parts: list[ast.expr] = [*find_nodes(added, ast.Name), *find_nodes(added, ast.Attribute)]
    loops = [loop for loop in interp.state.loops if loop.key not in before.assigned_loops | indexed_loops]
    since = {loop.key for loop in loops if not _has_few_iterations(loop.node)}
    values = [value for part in parts if (value := interp.expression_values.get(part)) is not None]
    made = [
        value.dtype_info.assigned_loops | (value.loops if value.kind == "tensor" else frozenset()) for value in values
    ]
    return name not in map(find_access_path, parts) and any(since & loops for loops in made)


def _annotate_sum(interp: Interpreter, node: ast.AugAssign, value: Value) -> Value:
    before, kind = _dtype_info_of(interp, node.target), type(node.op)
    after = _apply_operator(interp, kind, before, _dtype_info_of(interp, node.value), node, (node.target, node.value))
    if kind is ast.Add:
        _check_running_sum(interp, node.target, node.value, node, in_place=True)
    return value.with_dtype_info(after._replace(assigned_loops=before.assigned_loops))


def _check_item_write(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Check ``buffer[index] = x``. With index tensors this is ``index_put_``, which does not cast."""
    buffer, place, fact = (
        _dtype_info_of(interp, target.value),
        _dtype_info_of(interp, target.slice),
        _mark_left_region(interp, value.dtype_info),
    )
    masks = place.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
    # A single number is written like a fill, which casts.
    if not masks or SCALAR in fact.traits:
        return
    names = {"target": SourceText(target)}
    if buffer.dtype == "float32" and _is_low_of_region(fact):
        _emit_once(interp, e.DtypeClash, target, fact, how="write", names=names)
    elif _is_low_of_region(buffer) and fact.dtype == "float32":
        _emit_once(interp, e.DtypeClash, target, buffer, how="write-wide", names=names)


# Findings.


def _emit_once(
    interp: Interpreter,
    kind: Callable[Concatenate[Site, Fields], Effect],
    node: object,
    fact: DtypeInfo,
    *keys: Fields.args,
    **fields: Fields.kwargs,
) -> Effect | None:
    """Record an effect of low precision once for each location. Return the event recorded in this graph, or None."""
    here = interp.state.frame.function or interp.state.frame.module
    if not isinstance(node, (ast.expr, ast.stmt)) or interp.state.current_node is None or not here.may_lose_precision:
        return None
    key = (kind, interp.state.frame.module.path, node.lineno, node.col_offset, fields.get("how"))
    reported = interp.file_data(_ReportedKeys)
    if key not in reported:
        reported.add(key)
        event = kind(interp.site_of(node), *keys, **fields)
        event.dtype, event.guessed = fact.dtype, GUESSED_LOW in fact.traits
        if not event.names:
            event.names = {"call": SourceText(node, 60)}
        interp.detached_events[key] = event
    return interp.detached_events.get(key)  # type: ignore[return-value]  # the key contains the kind


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


def _has_few_iterations(loop: ast.AST | None) -> bool:
    """Return True if a loop is known to have fewer than 64 iterations."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return not isinstance(loop, ast.While)
    over = loop.iter
    if isinstance(over, ast.Call) and find_access_path(over.func) == "range" and len(over.args) == 1:
        turns = constant_of_node(over.args[0])
        return isinstance(turns, int) and turns < 64
    return isinstance(over, (ast.Tuple, ast.List))


_OPS: dict[str, Callable[[Interpreter, _OpCall], DtypeInfo | None]] = {
    **dict.fromkeys(_CASTS, _apply_cast),
    **dict.fromkeys(("item", "tolist", "size", "dim", "numel"), lambda interp, op: NUMBER_INFO),
    "numpy": _apply_numpy,
    **dict.fromkeys(_WRITES, _apply_indexed_write),
    **dict.fromkeys(("long", "int"), _apply_index_cast),
    **dict.fromkeys(("argmax", "argmin", "nonzero", "argsort"), lambda interp, op: DtypeInfo("int")),
    "cumsum": _apply_cumsum,
    **dict.fromkeys("isnan isinf isfinite eq ne gt lt ge le".split(), lambda interp, op: DtypeInfo("bool")),
    **dict.fromkeys(_ADDING, _apply_product_write),
}
#: Ops that are neither matmuls nor accept ``out=``.
_ELEMENTWISE: dict[str, Callable[[Interpreter, _OpCall], DtypeInfo | None]] = {
    **dict.fromkeys(("sin", "cos"), _apply_sin_cos),
    **dict.fromkeys(("cat", "stack"), _apply_concatenation),
    **dict.fromkeys(_OPERATORS, _apply_operator_function),
}


def register(handlers: HandlerTable) -> None:
    handlers.dtype_annotators.update(
        {
            ast.Attribute: _annotate_attribute,
            ast.Subscript: _annotate_subscript,
            ast.Compare: _annotate_compare,
            ast.UnaryOp: _annotate_unary,
            ast.BinOp: _annotate_binary,
            ast.Call: _annotate_call,
            ast.AugAssign: _annotate_sum,
        }
    )
    handlers.assignment_listeners.append(_check_assigned_sum)
    handlers.item_write_listeners.append(_check_item_write)
