"""What low precision does to the values of a program: the dtypes of what expressions give, and what they spoil."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import combinations

from ...protocol import events as e
from ...protocol import kernels, torch_api
from ...protocol.events import Event, TrackedObject
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
from ..interpreter.expressions import attribute_of
from ..interpreter.imports import look_up
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values import ExternalName, Value
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
    from typing import Any

#: Constructors of tensors, of float32 unless a dtype is given but for the last three.
_CONSTRUCTORS = frozenset(
    "zeros ones empty rand randn full normal linspace logspace eye FloatTensor arange tensor as_tensor".split()
)
_LOGS = frozenset(("log", "log2", "log10"))
#: What logarithms are better computed as, by what they are of: of several, as the first.
_LOGS_OF = {EXP_SUM: "logsumexp", COMPLEMENT: "log-complement", SIGMOID: "log-sigmoid", SOFTMAX: "log-softmax"}
_WRITES = {
    # method -> place of the tensor that is written, and the words of its parameter
    "index_add_": (2, "source"),
    "index_copy_": (2, "source"),
    "index_add": (2, "source"),
    "scatter_": (2, "src"),
    "scatter_add_": (2, "src"),
    "masked_scatter_": (1, "source"),
    "index_put_": (1, "values"),
}
#: Matmuls that add to a tensor in place, which no region casts for.
_ADDING = frozenset(("addmm_", "baddbmm_", "addbmm_", "addmv_"))
#: Matmuls whose ``out=`` must have the dtype of what they compute.
_WITH_OUT = frozenset(("mm", "matmul", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv"))
#: Builtins that give a number.
_NUMBERS = frozenset(("len", "int", "float"))
#: Give one number where they are not given over what to reduce.
_REDUCTIONS = frozenset("mean sum max min amax amin std var norm prod median logsumexp".split())
_CLAMPS = frozenset(("clamp", "clip", "clamp_min", "clamp_max"))
#: What is closer to one than these is one in float16, and in bfloat16: half a unit of their last place below one.
_ONES = (1 - 2.0**-12, 1 - 2.0**-9)
_BOUNDED = frozenset("sigmoid softmax tanh normalize sin cos hardsigmoid erf cosine_similarity".split())
_DTYPES = frozenset(("float16", "bfloat16"))
#: Methods that cast, and to which dtype: "" where that is among what they are given.
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
#: Traits that tell of regions, of positions and of probabilities.
_OF_REGIONS = frozenset((REGION, GUESSED_LOW, REGION_LEFT))
_OF_POSITIONS = frozenset((POSITIONS, ROUNDED, ANGLES))
_PROBABILITIES = frozenset((SIGMOID, SOFTMAX))


class _ReportedKeys(set[tuple[object, ...]]):
    """What was found in a file, by place and kind."""


class _ActiveRegistrations(set[ast.Call]):
    """The registrations of buffers whose values are being looked at."""


class _BufferRegistrations(dict[ast.AST, dict[str, list[ast.Call]]]):
    """The calls by which constructors register buffers, by the names of these."""


# What is known of expressions.


def _dtype_info_of(interp: Interpreter, node: ast.expr) -> DtypeInfo:
    """What is known of an expression that was just evaluated."""
    value = interp.expression_values.get(node)
    return NO_DTYPE_INFO if value is None else _mark_left_region(interp, value.dtype_info)


def _mark_left_region(interp: Interpreter, fact: DtypeInfo) -> DtypeInfo:
    """The same, where the region that made it low may be left."""
    if REGION in fact.traits and _autocast_state(interp).mode == "out":
        return fact.with_traits(REGION_LEFT)
    return fact


def _is_tensor_dtype(fact: DtypeInfo) -> bool:
    """Whether the dtype of a tensor is known."""
    return fact.dtype not in ("", NUMBER)


def _is_low_of_region(fact: DtypeInfo) -> bool:
    return fact.is_low and REGION in fact.traits


def _autocast_state(interp: Interpreter) -> AutocastState:
    """The autocast state at the place being read."""
    if interp.state.open_regions:
        region = interp.state.open_regions[-1]
        if region.enabled is False:
            return AutocastState("off")
        if region.dtype in ("float32", "float64"):
            return AutocastState()
        return AutocastState("on", region.device.partition(":")[0], region.dtype if region.dtype in _DTYPES else HALF)
    return AutocastState() if interp.state.possible_regions else AutocastState("out")


def _is_used_outside(fact: DtypeInfo, state: AutocastState) -> bool:
    """Whether a tensor that a region made low is used where nothing is cast."""
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
    """What is known of a buffer that the class of the method being read registers: whether it holds positions."""
    cls = interp.state.frame.cls
    init = cls.methods.get("__init__") if cls is not None else None
    if init is None or "register_buffer" not in interp.state.frame.module.identifiers:
        return NO_DTYPE_INFO
    registered, registering = interp.file_data(_BufferRegistrations), interp.file_data(_ActiveRegistrations)
    if init.node not in registered:
        registered[init.node] = _collect_registrations(init.node)
    for call in registered[init.node].get(name, ()):
        if call in registering:
            # It is registered again, as what it has become.
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
    """What is known of an expression that stands elsewhere."""
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
    """Whether an index is a mask, which leaves several numbers."""
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


#: What turns the second factor of a product of queries and keys around, in a batch; similarities of two lists use T.
_TURNS = frozenset("transpose permute mT swapaxes adjoint".split())


def _check_scaled_late(interp: Interpreter, node: ast.BinOp, product: ast.expr, scale_node: ast.expr) -> None:
    """A product of queries and keys in float16 that is scaled as a whole, where it may have overflowed."""
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
            interp, e.LATE_SCALE, node, fact, names={"call": SourceText(node, 60), "product": SourceText(product, 60)}
        )


def _apply_operator(
    interp: Interpreter,
    op: type[ast.operator],
    left: DtypeInfo,
    right: DtypeInfo,
    node: ast.AST,
    sides: tuple[ast.expr, ast.expr],
) -> DtypeInfo:
    """What an operator makes of two operands."""
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
    """What an operator keeps of two operands."""
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
    """What a call makes of what it is given; None where what was called has shown it."""
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
    """What a function makes of what it is given, if it is one of torch."""
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
    """Attention of another package, which is given query, key and value."""
    low = next(filter(_is_low_of_region, given), None)
    if low is not None and any(fact.dtype == "float32" for fact in given):
        _emit_once(interp, e.DTYPE_CLASH, node, low, how="attention", names={"call": SourceText(node, 60)})
    return given[-1] if given else NO_DTYPE_INFO


def _apply_method(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """What a method makes of what it is called on and is given, if that is a tensor or may well be one."""
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
    """The dotted name of what is called, where that is outside the project."""
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
    """A call of a module, of a function of the project, or of something that is not known."""
    state = _autocast_state(interp)
    given = [*args, *keywords.values()]
    if find_access_path(node.func) is None or (state.mode != "on" and not any(fact.is_low for fact in given)):
        return None
    module = object_ref_of(_callee_value(interp, node.func), "module")
    if module is None:
        return None
    kind = str(module.tracked_object.attributes.get("kind", ""))
    if kind:
        return _apply_module(interp, kind, args[0] if args else NO_DTYPE_INFO, module.tracked_object, node)
    return DtypeInfo(state.dtype, frozenset({REGION, GUESSED_LOW})) if state.mode == "on" else None


def _apply_module(interp: Interpreter, kind: str, given: DtypeInfo, module: TrackedObject, node: ast.Call) -> DtypeInfo:
    """What a module of torch makes of what it is given."""
    state = _autocast_state(interp)
    if kind in WEIGHTED and not module.attributes.get("low") and _is_used_outside(given, state):
        _emit_once(interp, e.DTYPE_CLASH, node, given, how="module", names={"call": SourceText(node.func)})
        return NO_DTYPE_INFO
    op = op_of_module(kind)
    dtype = result_dtype(op, given, state)
    kept = given.traits & _OF_REGIONS if dtype == given.dtype else frozenset()
    return DtypeInfo(dtype, kept | {REGION, *_bounded_traits(op)})


def _bounded_traits(op: str) -> tuple[str, ...]:
    """The traits of what an op gives that is about one at most."""
    return () if op not in _BOUNDED else (BOUNDED, op) if op in _PROBABILITIES else (BOUNDED,)


def _callee_value(interp: Interpreter, func: ast.expr) -> Value | None:
    """What is called, where that was evaluated, or is an attribute of what was."""
    known = interp.expression_values.get(func)
    if known is not None or not isinstance(func, ast.Attribute):
        return known
    receiver = interp.expression_values.get(func.value)
    found: list[Value] = []
    if receiver is not None:
        interp.without_events(lambda: found.append(attribute_of(interp, receiver, func.attr, func)))
    return found[0] if found else None


class _OpCall(NamedTuple):
    """A function of torch, or a method of a tensor, that is called; ``rest`` follows the tensor."""

    name: str
    first_info: DtypeInfo
    argument_infos: list[DtypeInfo]
    keyword_infos: dict[str, DtypeInfo]
    node: ast.Call
    other_arguments: list[ast.expr]

    @property
    def base_name(self) -> str:
        """Its name where it does not work in place."""
        return self.name.removesuffix("_")

    @property
    def tensor_node(self) -> ast.expr | None:
        """The expression of the first tensor, None where it is given by name."""
        return receiver_of(self.node) if self.other_arguments is self.node.args else first_argument(self.node)


def _apply_op(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """What an op makes of what it is given."""
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
    """An op that may have no kernel for the dtype that it is given, or that a region makes on the way."""
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
    _emit_once(interp, e.LOW_OP, op.node, low, how=how, names={"call": SourceText(op.node, 60)})


def _has_length(node: ast.Call) -> bool:
    """Whether a transform is asked for a length that is a power of two, or for one that is not known."""
    asked = keywords_of(node).get("n", node.args[1] if len(node.args) > 1 else None)
    length = constant_of_node(asked)
    return asked is not None and not (isinstance(length, int) and length & (length - 1))


def _apply_numpy(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    if op.first_info.dtype == "bfloat16" and REGION in op.first_info.traits and GUESSED_LOW not in op.first_info.traits:
        _emit_once(interp, e.DTYPE_CLASH, op.node, op.first_info, how="numpy", names={"call": SourceText(op.node.func)})
    return NO_DTYPE_INFO


def _apply_index_cast(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    if ROUNDED in op.first_info.traits:
        _emit_once(interp, e.LOW_POSITIONS, op.first_info.trait_node, op.first_info, how="index")
    return DtypeInfo("int")


def _apply_cumsum(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """A running sum of integers counts."""
    return DtypeInfo("int", frozenset({POSITIONS})) if op.first_info.dtype in INTEGERS else None


def _apply_sin_cos(interp: Interpreter, op: _OpCall) -> None:
    if op.first_info.traits & {ANGLES, ROUNDED}:
        how = "angles" if ANGLES in op.first_info.traits else "cast"
        _emit_once(interp, e.LOW_POSITIONS, op.first_info.trait_node, op.first_info, how=how)


def _apply_concatenation(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    parts = elements_of(first_argument(op.node))
    return _join_parts(interp, [_dtype_info_of(interp, part) for part in parts], op.node) if parts else None


def _apply_operator_function(interp: Interpreter, op: _OpCall) -> DtypeInfo | None:
    """A method or a function that is an operator."""
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
    """What is known of the values that an op gives."""
    bounded = BOUNDED in op.first_info.traits
    if op.base_name == "exp":
        return () if _may_subtract_max(op.node) else (EXP,)
    if op.base_name == "sum" and EXP in op.first_info.traits:
        return (EXP_SUM,)
    if op.base_name == "square" and not bounded:
        return (SQUARE,)
    return (BOUNDED,) if bounded and op.base_name in ("abs", "relu", "mean", "clamp") else _bounded_traits(op.base_name)


def _check_fragile_math(interp: Interpreter, op: _OpCall, made: DtypeInfo) -> None:
    """What overflows or cancels in low precision."""
    how = _find_overflow(op, made) if op.first_info.may_underflow or made.may_underflow else ""
    if op.first_info.is_low and op.name in _LOGS:
        how = next((named for trait, named in _LOGS_OF.items() if trait in op.first_info.traits), "")
    elif op.first_info.is_low and op.name == "log1p" and NEGATED in op.first_info.traits:
        how = "log-complement"
    if how:
        _emit_once(interp, e.FRAGILE_MATH, op.node, op.first_info, how=how, names={"call": SourceText(op.node, 60)})


def _find_overflow(op: _OpCall, made: DtypeInfo) -> str:
    """What squares sums up to more than float16 holds, "" where nothing does."""
    if op.name in ("mean", "sum") and op.first_info.may_underflow and SQUARE in op.first_info.traits:
        return "squares"
    return "variance" if op.name == "var" and made.may_underflow and BOUNDED not in op.first_info.traits else ""


def _may_subtract_max(node: ast.Call) -> bool:
    """Whether the argument of an exponential is a difference, from which its maximum may be taken."""
    argument = first_argument(node) or receiver_of(node)
    if argument is None:
        return False
    negations = (type(part.op) is ast.USub for part in find_nodes(argument, ast.UnaryOp))
    return any(negations) or any(type(part.op) is ast.Sub for part in find_nodes(argument, ast.BinOp))


def _join_parts(interp: Interpreter, parts: list[DtypeInfo], node: ast.AST) -> DtypeInfo:
    made = parts[0]
    state = _autocast_state(interp)
    if state.mode == "on" and state.device == "cpu" and _DTYPES.issubset(fact.dtype for fact in parts):
        # On the CPU alone these are on autocast's list, and it has no dtype for both.
        _emit_once(interp, e.DTYPE_CLASH, node, made, how="mixed")
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
        # Cast to the dtype of another tensor, frequencies or activations, they are rounded here, if not before.
        if not outer and any(POSITIONS in fact.traits and fact.dtype in ("float32", "") for fact in operands):
            return DtypeInfo(state.dtype, frozenset({REGION, ANGLES}), node)
        return DtypeInfo(state.dtype, frozenset({REGION}))
    dtypes = {fact.dtype for fact in operands}
    low = next((fact for fact in operands if _is_used_outside(fact, state)), None)
    if low is not None and "float32" in dtypes:
        _emit_once(interp, e.DTYPE_CLASH, node, low, how="matmul", names={"call": SourceText(node)})
    known = state.mode == "off" and operands and "" not in dtypes
    return DtypeInfo(operands[0].dtype) if known else NO_DTYPE_INFO


def _apply_indexed_write(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    place, word = _WRITES[op.name]
    # The buffer stands first among the arguments.
    source = (
        op.argument_infos[place + 1]
        if len(op.argument_infos) > place + 1
        else op.keyword_infos.get(word, NO_DTYPE_INFO)
    )
    if op.first_info.dtype == "float32" and _is_low_of_region(source):
        _emit_once(interp, e.DTYPE_CLASH, op.node, source, how="write", names={"target": SourceText(op.node.func)})
    return op.first_info


def _apply_product_write(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """A product that is added to a tensor in place, or written to one that is given."""
    adds = op.name in _ADDING
    target, factors = (op.first_info, op.argument_infos[1:]) if adds else (op.keyword_infos["out"], op.argument_infos)
    low = next(filter(_is_low_of_region, factors), None)
    if low is not None and target.dtype == "float32" and (adds or op.name in _WITH_OUT):
        _emit_once(interp, e.DTYPE_CLASH, op.node, low, how="in-place" if adds else "out")
    return target


def _apply_constructor(interp: Interpreter, op: _OpCall) -> DtypeInfo:
    """What a constructor of tensors gives."""
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
    """Whether positions are so few that every low dtype has them: up to 256."""
    bounds = map(constant_of_node, node.args)
    return all(isinstance(bound, int) and bound <= 256 for bound in bounds)


def _find_dtype_argument(interp: Interpreter, node: ast.Call) -> str:
    """The dtype that a call is given by name."""
    given = keywords_of(node).get("dtype")
    return _resolve_dtype(interp, given) if given is not None else ""


def _resolve_dtype(interp: Interpreter, node: ast.expr) -> str:
    """The dtype that an expression stands for: ``torch.float16``, ``x.dtype``."""
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
    """``x.float()``, ``x.to(...)``, ``x.type_as(y)``."""
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
    """The dtype that ``to`` is asked for: by name, as that of another tensor, or as it is where it only moves."""
    named = [_resolve_dtype(interp, argument) for argument in (*op.node.args, *(k.value for k in op.node.keywords))]
    others = [fact.dtype for fact in op.argument_infos[1:] if _is_tensor_dtype(fact)]
    moves = "dtype" not in op.keyword_infos and all(map(_is_device_argument, op.node.args))
    return next(filter(None, (*named, *others)), op.first_info.dtype if moves else "")


def _is_device_argument(node: ast.expr) -> bool:
    """Whether what ``to`` is given is a device, by what it is or is called."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int))
    last = (find_access_path(node) or "").rpartition(".")[2]
    maker = callee_of(node)
    return "device" in last or last == "rank" or (maker is not None and "device" in (find_access_path(maker) or ""))


# Epsilons.


def _find_small_number(interp: Interpreter, node: ast.expr) -> float | None:
    """The number that an expression is known to be, if it is between zero and one."""
    number = (
        literal_value(interp.expression_values.get(node))
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute))
        else None
    )
    return number if isinstance(number, float) and 0 < number < 1 else None


def _check_epsilons(interp: Interpreter, node: ast.expr, *, divides: bool) -> None:
    """What is added to something that may underflow; ``divides`` says that something is divided by the sum."""
    sides = operands_of(node, ast.Add)
    for side, other in zip(sides, reversed(sides), strict=True):
        fact = _dtype_info_of(interp, side)
        if fact.may_underflow:
            _check_epsilon(interp, fact, other, node, divides=divides)


def _check_epsilon(interp: Interpreter, fact: DtypeInfo, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
    number = _find_small_number(interp, node)
    if number is not None:
        names = {"sum": SourceText(place), "epsilon": SourceText(node)}
        event = _emit_once(interp, e.EPSILON, place, fact, value=number, how="added", divides=divides, names=names)
        if event is not None and divides:
            event.attributes["divides"] = True


def _check_clamp(interp: Interpreter, op: _OpCall) -> None:
    """A tensor of low precision is bounded by numbers that its dtype may not have."""
    given = keywords_of(op.node)
    for bound in (*op.other_arguments[:2], *(given[name] for name in ("min", "max") if name in given)):
        number = literal_value(interp.expression_values.get(bound))
        if isinstance(number, (int, float)) and torch_api.FLOAT16_MAX < abs(number) < float("inf"):
            tensor = op.tensor_node
            names = {"call": SourceText(op.node, 60), **({} if tensor is None else {"tensor": SourceText(tensor)})}
            if op.first_info.dtype == "float16" and GUESSED_LOW not in op.first_info.traits:
                interp.emit(e.FILL, op.node, value=float(number), eligible=True, bound=True, names=names)
    upper = (
        op.other_arguments[0]
        if op.base_name == "clamp_max" and op.other_arguments
        else given.get("max", op.other_arguments[1] if op.other_arguments[1:] else None)
    )
    number = literal_value(interp.expression_values.get(upper)) if upper is not None else None
    if upper is not None and isinstance(number, float) and _ONES[op.first_info.dtype == "bfloat16"] < number < 1:
        names = {"sum": SourceText(op.node, 60), "epsilon": SourceText(upper)}
        _emit_once(interp, e.EPSILON, op.node, op.first_info, value=number, how="to-one", divides=False, names=names)
    if op.first_info.may_underflow and op.base_name != "clamp_max":
        _check_clamp_minimum(interp, op)


def _check_clamp_minimum(interp: Interpreter, op: _OpCall) -> None:
    bound = keywords_of(op.node).get("min", op.other_arguments[0] if op.other_arguments else None)
    number = _find_small_number(interp, bound) if bound is not None else None
    if bound is not None and number is not None:
        names = {"sum": SourceText(op.node, 60), "epsilon": SourceText(bound)}
        _emit_once(interp, e.EPSILON, op.node, op.first_info, value=number, how="clamped", divides=False, names=names)


# Running sums.


def _check_assigned_sum(interp: Interpreter, node: ast.Assign) -> None:
    """``total = total + x``, and the moving average ``mean = a * mean + b * x``."""
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
    """``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)`` and ``mean.lerp_(x, b)``."""
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
    """Something is added to a variable, which may be a sum over the turns of a loop that is kept in low precision.

    It is if it begins with zero before the loop and what is added is made in each turn: in a region of that turn,
    or, where the zeros are of low precision, in any way.
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
    _emit_once(interp, e.LOW_SUM, node, before, names={"sum": SourceText(target)})


def _is_named_output(added: ast.expr) -> bool:
    """Whether a value is found by a name in what a model gives: a loss or a count as often as what autocast casts."""
    while isinstance(added, ast.Call) and (held := receiver_of(added)) is not None:
        added = held
    match added:
        case ast.Attribute() | ast.Subscript(slice=ast.Constant(value=str())):
            return True
    return False


def _is_made_each_iteration(
    interp: Interpreter, added: ast.expr, name: str, before: DtypeInfo, indexed_loops: frozenset[int]
) -> bool:
    """Whether what is added to a sum is made anew in the turns of a loop that began after it, and not of it.

    The turns of loops that choose the element which is added to, ``apart``, do not add up.
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
    """``buffer[index] = x``: with tensors as indexes this is ``index_put_``, which does not cast."""
    buffer, place, fact = (
        _dtype_info_of(interp, target.value),
        _dtype_info_of(interp, target.slice),
        _mark_left_region(interp, value.dtype_info),
    )
    masks = place.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
    # One number is written as a fill is, which casts.
    if not masks or SCALAR in fact.traits:
        return
    names = {"target": SourceText(target)}
    if buffer.dtype == "float32" and _is_low_of_region(fact):
        _emit_once(interp, e.DTYPE_CLASH, target, fact, how="write", names=names)
    elif _is_low_of_region(buffer) and fact.dtype == "float32":
        _emit_once(interp, e.DTYPE_CLASH, target, buffer, how="write-wide", names=names)


# Findings.


def _emit_once(interp: Interpreter, kind: e.EventKind, node: object, fact: DtypeInfo, **facts: Any) -> Event | None:
    """Take note of what low precision does at a place, once; gives what was noted in this graph."""
    here = interp.state.frame.function or interp.state.frame.module
    if not isinstance(node, (ast.expr, ast.stmt)) or interp.state.current_node is None or not here.may_lose_precision:
        return None
    key = (kind, interp.state.frame.module.path, node.lineno, node.col_offset, facts.get("how"))
    reported = interp.file_data(_ReportedKeys)
    if key not in reported:
        reported.add(key)
        names = facts.pop("names", {"call": SourceText(node, 60)})
        facts.update(dtype=fact.dtype, guessed=GUESSED_LOW in fact.traits)
        interp.detached_events[key] = Event(kind, interp.site_of(node), None, None, facts, names)
    return interp.detached_events.get(key)


def _find_definition(node: ast.expr, function: ast.AST) -> ast.expr:
    """An expression, or the one that a function assigns to the name that it is, or is a part of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        for statement in find_nodes(function, ast.Assign):
            if any(find_access_path(target) == node.id for target in statement.targets):
                return statement.value
    return node


def _has_few_iterations(loop: ast.AST | None) -> bool:
    """Whether a loop is known to have few turns."""
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
#: Ops that are not matmuls and have no ``out=``.
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
