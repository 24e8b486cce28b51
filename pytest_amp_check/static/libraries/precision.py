"""What low precision does to the values of a program: the dtypes of what expressions give, and what they spoil."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import combinations

from ...protocol import events as e
from ...protocol import kernels, surface
from ...protocol.events import Event, Thing
from ...protocol.named import NamedTuple
from ...protocol.words import Words, chain
from ..interpreter.dtypes import (
    A_NUMBER,
    ANGLES,
    BOUNDED,
    COMPLEMENT,
    EXP,
    EXP_SUM,
    GUESS,
    HALF,
    INTEGERS,
    KEEP_TRAITS,
    LEFT,
    LOW,
    NEGATED,
    NOTHING,
    NUMBER,
    POSITIONS,
    REGION,
    ROUNDED,
    SCALAR,
    SIGMOID,
    SOFTMAX,
    SQUARE,
    WEIGHTED,
    ZEROS,
    Fact,
    State,
    is_low,
    is_low_method,
    op_of_module,
    outcome,
    promoted,
)
from ..interpreter.expressions import attribute
from ..interpreter.imports import look_up
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import Named, Value
from ..project.module import is_product
from ..project.syntax import alike
from .arguments import literal, ref_of
from .written import (
    all_of,
    called,
    constant,
    elements,
    first_argument,
    holder,
    keywords_of,
    last_name,
    operands,
    receiver,
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
_OF_REGIONS = frozenset((REGION, GUESS, LEFT))
_OF_POSITIONS = frozenset((POSITIONS, ROUNDED, ANGLES))
_PROBABILITIES = frozenset((SIGMOID, SOFTMAX))


class _Reported(set[tuple[object, ...]]):
    """What was found in a file, by place and kind."""


class _Registering(set[ast.Call]):
    """The registrations of buffers whose values are being looked at."""


class _Registered(dict[ast.AST, dict[str, list[ast.Call]]]):
    """The calls by which constructors register buffers, by the names of these."""


# What is known of expressions.


def _fact(at: Interpreter, node: ast.expr) -> Fact:
    """What is known of an expression that was just evaluated."""
    value = at.values.get(node)
    return NOTHING if value is None else _here(at, value.fact)


def _here(at: Interpreter, fact: Fact) -> Fact:
    """The same, where the region that made it low may be left."""
    if REGION in fact.traits and _state(at).how == "out":
        return fact.having(LEFT)
    return fact


def _is_tensor(fact: Fact) -> bool:
    """Whether the dtype of a tensor is known."""
    return fact.dtype not in ("", NUMBER)


def _is_low_of_region(fact: Fact) -> bool:
    return fact.low and REGION in fact.traits


def _state(at: Interpreter) -> State:
    """The autocast state at the place being read."""
    if at.state.open:
        region = at.state.open[-1]
        if region.enabled is False:
            return State("off")
        if region.dtype in ("float32", "float64"):
            return State()
        return State("on", region.device.partition(":")[0], region.dtype if region.dtype in _DTYPES else HALF)
    return State() if at.state.maybe_open else State("out")


def _is_outside(fact: Fact, state: State) -> bool:
    """Whether a tensor that a region made low is used where nothing is cast."""
    return _is_low_of_region(fact) and (state.how == "off" or (state.how == "out" and LEFT in fact.traits))


def _annotated_attribute(at: Interpreter, node: ast.Attribute, value: Value) -> Value:
    if node.attr in ("T", "mT", "data", "H"):
        return value.knowing(_fact(at, node.value))
    receiver = at.values.get(node.value)
    if receiver is not None and receiver.kind == "tensor":
        return value.knowing(NOTHING)
    if value.fact is NOTHING and isinstance(node.value, ast.Name):
        return value.knowing(_buffer(at, node.attr))
    return value


def _buffer(at: Interpreter, name: str) -> Fact:
    """What is known of a buffer that the class of the method being read registers: whether it holds positions."""
    cls = at.state.frame.cls
    init = cls.methods.get("__init__") if cls is not None else None
    if init is None or "register_buffer" not in at.state.frame.module.identifiers:
        return NOTHING
    registered, registering = at.of_file(_Registered), at.of_file(_Registering)
    if init.node not in registered:
        registered[init.node] = _registered_in(init.node)
    for call in registered[init.node].get(name, ()):
        if call in registering:
            # It is registered again, as what it has become.
            return NOTHING
        registering.add(call)
        fact = _fact_of(at, _made(call.args[1], init.node))
        registering.discard(call)
        return fact if POSITIONS in fact.traits else NOTHING
    return NOTHING


def _registered_in(init: ast.AST) -> dict[str, list[ast.Call]]:
    registered: dict[str, list[ast.Call]] = {}
    for call in all_of(init, ast.Call):
        if len(call.args) > 1 and (chain(call.func) or "").endswith(".register_buffer"):
            name = constant(call.args[0])
            if isinstance(name, str):
                registered.setdefault(name, []).append(call)
    return registered


def _fact_of(at: Interpreter, node: ast.expr) -> Fact:
    """What is known of an expression that stands elsewhere."""
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(node)))
    return found[0].fact


def _annotated_subscript(at: Interpreter, node: ast.Subscript, value: Value) -> Value:
    if last_name(node.value) == "shape":
        return value.knowing(A_NUMBER)
    held = at.values.get(node.value)
    if held is None or held.kind not in ("unknown", "tensor"):
        return value
    fact = _fact(at, node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Slice) for part in parts):
        return value.knowing(fact)
    return value.knowing(fact.part if any(_masks(at, part) for part in parts) else fact.having(SCALAR))


def _masks(at: Interpreter, index: ast.expr) -> bool:
    """Whether an index is a mask, which leaves several numbers."""
    return isinstance(index, ast.Compare) or _fact(at, index).dtype == "bool"


def _annotated_compare(at: Interpreter, node: ast.Compare, value: Value) -> Value:
    known = any(_is_tensor(_fact(at, side)) for side in (node.left, *node.comparators))
    return value.knowing(Fact("bool")) if known else value


def _annotated_unary(at: Interpreter, node: ast.UnaryOp, value: Value) -> Value:
    fact = _fact(at, node.operand)
    kind = type(node.op)
    if kind is ast.USub:
        negated = fact.traits & _PROBABILITIES
        fact = fact.only(REGION, GUESS, LEFT, BOUNDED).having(*([NEGATED] if negated else []))
    return value.knowing(fact if kind in (ast.USub, ast.Invert) else NOTHING)


def _annotated_binary(at: Interpreter, node: ast.BinOp, value: Value) -> Value:
    kind = type(node.op)
    if kind is ast.Add:
        _epsilons(at, node, divides=False)
    elif kind is ast.Div:
        _epsilons(at, node.right, divides=True)
    sides = (node.left, node.right)
    if kind in (ast.Mult, ast.Div):
        _scaled_late(at, node, *(sides if is_product(node.left) else reversed(sides)))
    return value.knowing(_arithmetic(at, kind, _fact(at, node.left), _fact(at, node.right), node, sides))


#: What turns the second factor of a product of queries and keys around, in a batch; similarities of two lists use T.
_TURNS = frozenset("transpose permute mT swapaxes adjoint".split())


def _scaled_late(at: Interpreter, node: ast.BinOp, product: ast.expr, by: ast.expr) -> None:
    """A product of queries and keys in float16 that is scaled as a whole, where it may have overflowed."""
    fact = _fact(at, product)
    if not is_product(product) or not (fact.underflows and REGION in fact.traits) or _is_tensor(_fact(at, by)):
        return
    if isinstance(product, ast.BinOp):
        factors = [product.left, product.right]
    else:
        factors = [part for part in (receiver(product), *getattr(product, "args", ())) if part is not None]
    if isinstance(product, ast.Call) and last_name(product.func) == "einsum":
        late = not any(alike(*pair) for pair in combinations(factors, 2))
    else:
        late = any(last_name(called(factor) or factor) in _TURNS for factor in factors)
    if late:
        _emit(at, e.LATE_SCALE, node, fact, names={"call": Words(node, 60), "product": Words(product, 60)})


def _arithmetic(
    at: Interpreter, op: type[ast.operator], left: Fact, right: Fact, node: ast.AST, sides: tuple[ast.expr, ast.expr]
) -> Fact:
    """What an operator makes of two operands."""
    if op is ast.MatMult:
        return _matmul(at, "matmul", [left, right], node)
    kept = (left.traits | right.traits) & _OF_REGIONS
    if all(SCALAR in fact.traits or fact.dtype == NUMBER for fact in (left, right)):
        kept |= {SCALAR}
    if op is ast.Pow:
        if constant(sides[1]) == 2 and BOUNDED not in left.traits:
            kept |= {SQUARE}
        return Fact(outcome("pow", right if left.dtype == NUMBER else left, _state(at)), kept)
    if op is ast.Div and left.dtype == NUMBER and right.dtype != NUMBER:
        return Fact(outcome("reciprocal", right, _state(at)), kept)
    if op is ast.Sub and left.dtype == NUMBER and right.traits & _PROBABILITIES:
        kept |= {COMPLEMENT}
    return _of_linear(op, left, right, kept, sides)


def _of_linear(
    op: type[ast.operator], left: Fact, right: Fact, kept: frozenset[str], sides: tuple[ast.expr, ast.expr]
) -> Fact:
    """What an operator keeps of two operands."""
    place = None
    for one in (left, right):
        if op in _LINEAR and one.traits & _OF_POSITIONS:
            kept |= one.traits & _OF_POSITIONS
            place = one.place
    both, number = left.traits & right.traits, NUMBER in (left.dtype, right.dtype)
    if BOUNDED in (left.traits | right.traits if number else both):
        kept |= {BOUNDED}
    elif op is ast.Mult and alike(*sides):
        kept |= {SQUARE}
    return Fact(promoted(left, right), kept, place)


def _annotated_call(at: Interpreter, node: ast.Call, value: Value) -> Value:
    fact = _called(at, node)
    _summed_in_place(at, node)
    return value if fact is None else value.knowing(fact)


def _called(at: Interpreter, node: ast.Call) -> Fact | None:
    """What a call makes of what it is given; None where what was called has shown it."""
    dotted = _dotted(at, node.func)
    args = [_fact(at, arg) for arg in node.args]
    keywords = {keyword.arg or "**": _fact(at, keyword.value) for keyword in node.keywords}
    if dotted is not None:
        return _function(at, surface.canonical(dotted), args, keywords, node)
    if isinstance(node.func, ast.Attribute):
        receiver = _fact(at, node.func.value)
        return _method(at, _Op(node.func.attr, receiver, [receiver, *args], keywords, node, node.args))
    return _other(at, node, args, keywords)


def _function(at: Interpreter, dotted: str, args: list[Fact], keywords: dict[str, Fact], node: ast.Call) -> Fact:
    """What a function makes of what it is given, if it is one of torch."""
    space, _, last = dotted.rpartition(".")
    if dotted in _NUMBERS or space == "math":
        return A_NUMBER
    if last in kernels.ATTENTION:
        return _attended(at, args[:3], node)
    if not dotted.startswith("torch.") or dotted.startswith(("torch.nn.utils", "torch.distributed")):
        return NOTHING
    op = _Op(last, args[0] if args else keywords.get("input", NOTHING), args, keywords, node, node.args[1:])
    if space in ("torch", "torch.special", "torch.linalg", "torch.fft"):
        if last in _CONSTRUCTORS or last.endswith("_like"):
            return _constructed(at, op)
    elif not dotted.startswith("torch.nn.functional."):
        return NOTHING
    return _op(at, op)


def _attended(at: Interpreter, given: list[Fact], node: ast.Call) -> Fact:
    """Attention of another package, which is given query, key and value."""
    low = next(filter(_is_low_of_region, given), None)
    if low is not None and any(fact.dtype == "float32" for fact in given):
        _emit(at, e.DTYPE_CLASH, node, low, how="attention", names={"call": Words(node, 60)})
    return given[-1] if given else NOTHING


def _method(at: Interpreter, op: _Op) -> Fact | None:
    """What a method makes of what it is called on and is given, if that is a tensor or may well be one."""
    if _is_tensor(op.first) or op.first.traits & {ANGLES, ROUNDED}:
        return _op(at, op)
    if op.name in ("new_zeros", "new_ones", "new_full", "new_empty"):
        return _constructed(at, op)
    if op.name in ("long", "int") and not op.node.args:
        return Fact("int")
    if op.name in _CASTS:
        return _cast(at, op)
    return _op(at, op) if is_low_method(op.name) else _other(at, op.node, op.args[1:], op.keywords)


def _dotted(at: Interpreter, func: ast.expr) -> str | None:
    """The dotted name of what is called, where that is outside the project."""
    if isinstance(func, ast.Name):
        value = look_up(at, func.id)
        if value is None:
            return func.id if func.id in _NUMBERS else surface.BARE.get(func.id)
        return value.name if isinstance(value, Named) else None
    if isinstance(func, ast.Attribute):
        head = _dotted(at, func.value)
        return f"{head}.{func.attr}" if head else None
    return None


def _other(at: Interpreter, node: ast.Call, args: list[Fact], keywords: dict[str, Fact]) -> Fact | None:
    """A call of a module, of a function of the project, or of something that is not known."""
    state = _state(at)
    given = [*args, *keywords.values()]
    if chain(node.func) is None or (state.how != "on" and not any(fact.low for fact in given)):
        return None
    module = ref_of(_callee(at, node.func), "module")
    if module is None:
        return None
    kind = str(module.thing.facts.get("kind", ""))
    if kind:
        return _of_module(at, kind, args[0] if args else NOTHING, module.thing, node)
    return Fact(state.dtype, frozenset({REGION, GUESS})) if state.how == "on" else None


def _of_module(at: Interpreter, kind: str, given: Fact, module: Thing, node: ast.Call) -> Fact:
    """What a module of torch makes of what it is given."""
    state = _state(at)
    if kind in WEIGHTED and not module.facts.get("low") and _is_outside(given, state):
        _emit(at, e.DTYPE_CLASH, node, given, how="module", names={"call": Words(node.func)})
        return NOTHING
    op = op_of_module(kind)
    dtype = outcome(op, given, state)
    kept = given.traits & _OF_REGIONS if dtype == given.dtype else frozenset()
    return Fact(dtype, kept | {REGION, *_bounds(op)})


def _bounds(op: str) -> tuple[str, ...]:
    """The traits of what an op gives that is about one at most."""
    return () if op not in _BOUNDED else (BOUNDED, op) if op in _PROBABILITIES else (BOUNDED,)


def _callee(at: Interpreter, func: ast.expr) -> Value | None:
    """What is called, where that was evaluated, or is an attribute of what was."""
    known = at.values.get(func)
    if known is not None or not isinstance(func, ast.Attribute):
        return known
    receiver = at.values.get(func.value)
    found: list[Value] = []
    if receiver is not None:
        at.unrecorded(lambda: found.append(attribute(at, receiver, func.attr, func)))
    return found[0] if found else None


class _Op(NamedTuple):
    """A function of torch, or a method of a tensor, that is called; ``rest`` follows the tensor."""

    name: str
    first: Fact
    args: list[Fact]
    keywords: dict[str, Fact]
    node: ast.Call
    rest: list[ast.expr]

    @property
    def plain(self) -> str:
        """Its name where it does not work in place."""
        return self.name.removesuffix("_")

    @property
    def tensor(self) -> ast.expr | None:
        """The expression of the first tensor, None where it is given by name."""
        return receiver(self.node) if self.rest is self.node.args else first_argument(self.node)


def _op(at: Interpreter, op: _Op) -> Fact:
    """What an op makes of what it is given."""
    if op.name in kernels.NAMES:
        _refused(at, op)
    act = _OPS.get(op.name)
    made = act(at, op) if act is not None else None
    if made is not None:
        return made
    if "out" in op.keywords:
        return _product_written(at, op)
    if is_low(op.name, _state(at).device):
        return _matmul(at, op.name, [fact for fact in op.args if fact.dtype != NUMBER], op.node)
    act = _ELEMENTWISE.get(op.name)
    made = act(at, op) if act is not None else None
    return _elementwise(at, op) if made is None else made


def _refused(at: Interpreter, op: _Op) -> None:
    """An op that may have no kernel for the dtype that it is given, or that a region makes on the way."""
    state = _state(at)
    how = kernels.refusal(op.name, op.first.dtype, state.device)
    low = op.first if op.first.low else Fact(state.dtype) if how == kernels.INNER and state.how == "on" else NOTHING
    if not how or not low.low or (how == kernels.LENGTHS and _has_length(op.node)):
        return
    _emit(at, e.LOW_OP, op.node, low, how=how, names={"call": Words(op.node, 60)})


def _has_length(node: ast.Call) -> bool:
    """Whether a transform is asked for a length that is a power of two, or for one that is not known."""
    asked = keywords_of(node).get("n", node.args[1] if len(node.args) > 1 else None)
    length = constant(asked)
    return asked is not None and not (isinstance(length, int) and length & (length - 1))


def _numpy(at: Interpreter, op: _Op) -> Fact:
    if op.first.dtype == "bfloat16" and REGION in op.first.traits and GUESS not in op.first.traits:
        _emit(at, e.DTYPE_CLASH, op.node, op.first, how="numpy", names={"call": Words(op.node.func)})
    return NOTHING


def _index(at: Interpreter, op: _Op) -> Fact:
    if ROUNDED in op.first.traits:
        _emit(at, e.LOW_POSITIONS, op.first.place, op.first, how="index")
    return Fact("int")


def _running(at: Interpreter, op: _Op) -> Fact | None:
    """A running sum of integers counts."""
    return Fact("int", frozenset({POSITIONS})) if op.first.dtype in INTEGERS else None


def _wave(at: Interpreter, op: _Op) -> None:
    if op.first.traits & {ANGLES, ROUNDED}:
        how = "angles" if ANGLES in op.first.traits else "cast"
        _emit(at, e.LOW_POSITIONS, op.first.place, op.first, how=how)


def _joined(at: Interpreter, op: _Op) -> Fact | None:
    parts = elements(first_argument(op.node))
    return _concatenated(at, [_fact(at, part) for part in parts], op.node) if parts else None


def _operated(at: Interpreter, op: _Op) -> Fact | None:
    """A method or a function that is an operator."""
    if len(op.args) < 2 or not op.rest:
        return None
    if op.name == "add" and op.first.underflows:
        _epsilon(at, op.first, op.rest[0], op.node, divides=False)
    sides = (op.tensor or op.node.args[0], op.rest[0])
    return _arithmetic(at, _OPERATORS[op.name], op.first, op.args[1], op.node, sides)


def _elementwise(at: Interpreter, op: _Op) -> Fact:
    first = op.first
    if first.low and op.plain in _CLAMPS:
        _clamped(at, op)
    if "dtype" in op.keywords:
        return Fact(_named_dtype(at, op.node))
    state = _state(at)
    dtype = outcome(op.name, first, state)
    if op.name.startswith("new_") or op.plain.endswith("_like"):
        return Fact(dtype)
    if op.name in KEEP_TRAITS:
        return Fact(dtype, first.traits, first.place)
    fact = Fact(dtype, first.traits & (_OF_REGIONS | {SCALAR}))
    if op.name in _REDUCTIONS and not op.rest and not op.keywords:
        fact = fact.having(SCALAR)
    _fragile(at, op, fact)
    if dtype not in ("", first.dtype) and dtype == state.dtype:
        fact = Fact(dtype, frozenset({REGION}))
    return fact.having(*_made_by(op))


def _made_by(op: _Op) -> tuple[str, ...]:
    """What is known of the values that an op gives."""
    bounded = BOUNDED in op.first.traits
    if op.plain == "exp":
        return () if _shifted(op.node) else (EXP,)
    if op.plain == "sum" and EXP in op.first.traits:
        return (EXP_SUM,)
    if op.plain == "square" and not bounded:
        return (SQUARE,)
    return (BOUNDED,) if bounded and op.plain in ("abs", "relu", "mean", "clamp") else _bounds(op.plain)


def _fragile(at: Interpreter, op: _Op, made: Fact) -> None:
    """What overflows or cancels in low precision."""
    how = _overflows(op, made) if op.first.underflows or made.underflows else ""
    if op.first.low and op.name in _LOGS:
        how = next((named for trait, named in _LOGS_OF.items() if trait in op.first.traits), "")
    elif op.first.low and op.name == "log1p" and NEGATED in op.first.traits:
        how = "log-complement"
    if how:
        _emit(at, e.FRAGILE_MATH, op.node, op.first, how=how, names={"call": Words(op.node, 60)})


def _overflows(op: _Op, made: Fact) -> str:
    """What squares sums up to more than float16 holds, "" where nothing does."""
    if op.name in ("mean", "sum") and op.first.underflows and SQUARE in op.first.traits:
        return "squares"
    return "variance" if op.name == "var" and made.underflows and BOUNDED not in op.first.traits else ""


def _shifted(node: ast.Call) -> bool:
    """Whether the argument of an exponential is a difference, from which its maximum may be taken."""
    argument = first_argument(node) or receiver(node)
    if argument is None:
        return False
    negations = (type(part.op) is ast.USub for part in all_of(argument, ast.UnaryOp))
    return any(negations) or any(type(part.op) is ast.Sub for part in all_of(argument, ast.BinOp))


def _concatenated(at: Interpreter, parts: list[Fact], node: ast.AST) -> Fact:
    made = parts[0]
    state = _state(at)
    if state.how == "on" and state.device == "cpu" and _DTYPES.issubset(fact.dtype for fact in parts):
        # On the CPU alone these are on autocast's list, and it has no dtype for both.
        _emit(at, e.DTYPE_CLASH, node, made, how="mixed")
        return NOTHING
    for part in parts[1:]:
        dtype = promoted(made, part)
        place = made.place if made.place is part.place else None
        made = Fact(dtype, made.traits & part.traits, place)
    return made


def _matmul(at: Interpreter, op: str, operands: list[Fact], node: ast.AST) -> Fact:
    state = _state(at)
    if state.how == "on":
        outer = op == "einsum" and state.device == "cpu"
        # Cast to the dtype of another tensor, frequencies or activations, they are rounded here, if not before.
        if not outer and any(POSITIONS in fact.traits and fact.dtype in ("float32", "") for fact in operands):
            return Fact(state.dtype, frozenset({REGION, ANGLES}), node)
        return Fact(state.dtype, frozenset({REGION}))
    dtypes = {fact.dtype for fact in operands}
    low = next((fact for fact in operands if _is_outside(fact, state)), None)
    if low is not None and "float32" in dtypes:
        _emit(at, e.DTYPE_CLASH, node, low, how="matmul", names={"call": Words(node)})
    known = state.how == "off" and operands and "" not in dtypes
    return Fact(operands[0].dtype) if known else NOTHING


def _indexed(at: Interpreter, op: _Op) -> Fact:
    place, word = _WRITES[op.name]
    # The buffer stands first among the arguments.
    source = op.args[place + 1] if len(op.args) > place + 1 else op.keywords.get(word, NOTHING)
    if op.first.dtype == "float32" and _is_low_of_region(source):
        _emit(at, e.DTYPE_CLASH, op.node, source, how="write", names={"target": Words(op.node.func)})
    return op.first


def _product_written(at: Interpreter, op: _Op) -> Fact:
    """A product that is added to a tensor in place, or written to one that is given."""
    adds = op.name in _ADDING
    target, factors = (op.first, op.args[1:]) if adds else (op.keywords["out"], op.args)
    low = next(filter(_is_low_of_region, factors), None)
    if low is not None and target.dtype == "float32" and (adds or op.name in _WITH_OUT):
        _emit(at, e.DTYPE_CLASH, op.node, low, how="in-place" if adds else "out")
    return target


def _constructed(at: Interpreter, op: _Op) -> Fact:
    """What a constructor of tensors gives."""
    zeros = frozenset({ZEROS}) if op.name in ("zeros", "zeros_like", "new_zeros") else frozenset()
    positions = frozenset({POSITIONS}) if op.name == "arange" and not _is_short(op.node) else frozenset()
    if "dtype" in op.keywords:
        dtype = _named_dtype(at, op.node)
        if positions and dtype in _DTYPES:
            return Fact(dtype, frozenset({ROUNDED}), op.node)
        return Fact(dtype, positions | zeros)
    if op.name.endswith("_like") or op.name.startswith("new_"):
        return op.args[0].only(REGION, GUESS, LEFT).having(*zeros) if op.args else Fact("", zeros)
    if op.name == "arange":
        return Fact("int", positions)
    if "set_default_dtype" in at.state.frame.module.identifiers or op.name in ("tensor", "as_tensor"):
        return NOTHING
    return Fact("float32", zeros)


def _is_short(node: ast.Call) -> bool:
    """Whether positions are so few that every low dtype has them: up to 256."""
    bounds = map(constant, node.args)
    return all(isinstance(bound, int) and bound <= 256 for bound in bounds)


def _named_dtype(at: Interpreter, node: ast.Call) -> str:
    """The dtype that a call is given by name."""
    given = keywords_of(node).get("dtype")
    return _dtype(at, given) if given is not None else ""


def _dtype(at: Interpreter, node: ast.expr) -> str:
    """The dtype that an expression stands for: ``torch.float16``, ``x.dtype``."""
    tensor = holder(node)
    if tensor is not None and last_name(node) == "dtype":
        fact = _fact(at, tensor)
        if _is_tensor(fact):
            return fact.dtype
    name = _dotted(at, node)
    if name in ("torch.long", "torch.int64", "torch.int32", "torch.int"):
        return "int"
    return "bool" if name == "torch.bool" else surface.DTYPES.get(name or "", "")


def _cast(at: Interpreter, op: _Op) -> Fact:
    """``x.float()``, ``x.to(...)``, ``x.type_as(y)``."""
    given, dtype = op.first, _CASTS[op.name]
    if op.name == "type_as":
        dtype = op.args[1].dtype if len(op.args) > 1 else ""
    elif not dtype:
        dtype = _asked_for(at, op)
    if not dtype:
        return Fact("", given.traits & {POSITIONS})
    low = dtype in LOW
    if low and POSITIONS in given.traits:
        return Fact(dtype, frozenset({ROUNDED}), op.node)
    if low == given.low:
        return given._replace(dtype=dtype)
    return Fact(dtype, given.traits & (_OF_POSITIONS | {BOUNDED, ZEROS}), given.place)


def _asked_for(at: Interpreter, op: _Op) -> str:
    """The dtype that ``to`` is asked for: by name, as that of another tensor, or as it is where it only moves."""
    named = [_dtype(at, argument) for argument in (*op.node.args, *(k.value for k in op.node.keywords))]
    others = [fact.dtype for fact in op.args[1:] if _is_tensor(fact)]
    moves = "dtype" not in op.keywords and all(map(_is_device, op.node.args))
    return next(filter(None, (*named, *others)), op.first.dtype if moves else "")


def _is_device(node: ast.expr) -> bool:
    """Whether what ``to`` is given is a device, by what it is or is called."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int))
    last = (chain(node) or "").rpartition(".")[2]
    maker = called(node)
    return "device" in last or last == "rank" or (maker is not None and "device" in (chain(maker) or ""))


# Epsilons.


def _small(at: Interpreter, node: ast.expr) -> float | None:
    """The number that an expression is known to be, if it is between zero and one."""
    number = literal(at.values.get(node)) if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)) else None
    return number if isinstance(number, float) and 0 < number < 1 else None


def _epsilons(at: Interpreter, node: ast.expr, *, divides: bool) -> None:
    """What is added to something that may underflow; ``divides`` says that something is divided by the sum."""
    sides = operands(node, ast.Add)
    for side, other in zip(sides, reversed(sides), strict=True):
        fact = _fact(at, side)
        if fact.underflows:
            _epsilon(at, fact, other, node, divides=divides)


def _epsilon(at: Interpreter, fact: Fact, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
    number = _small(at, node)
    if number is not None:
        names = {"sum": Words(place), "epsilon": Words(node)}
        event = _emit(at, e.EPSILON, place, fact, value=number, how="added", divides=divides, names=names)
        if event is not None and divides:
            event.facts["divides"] = True


def _clamped(at: Interpreter, op: _Op) -> None:
    """A tensor of low precision is bounded by numbers that its dtype may not have."""
    given = keywords_of(op.node)
    for bound in (*op.rest[:2], *(given[name] for name in ("min", "max") if name in given)):
        number = literal(at.values.get(bound))
        if isinstance(number, (int, float)) and surface.FLOAT16_MAX < abs(number) < float("inf"):
            tensor = op.tensor
            names = {"call": Words(op.node, 60), **({} if tensor is None else {"tensor": Words(tensor)})}
            if op.first.dtype == "float16" and GUESS not in op.first.traits:
                at.emit(e.FILL, op.node, value=float(number), eligible=True, bound=True, names=names)
    upper = op.rest[0] if op.plain == "clamp_max" and op.rest else given.get("max", op.rest[1] if op.rest[1:] else None)
    number = literal(at.values.get(upper)) if upper is not None else None
    if upper is not None and isinstance(number, float) and _ONES[op.first.dtype == "bfloat16"] < number < 1:
        names = {"sum": Words(op.node, 60), "epsilon": Words(upper)}
        _emit(at, e.EPSILON, op.node, op.first, value=number, how="to-one", divides=False, names=names)
    if op.first.underflows and op.plain != "clamp_max":
        _clamped_from_zero(at, op)


def _clamped_from_zero(at: Interpreter, op: _Op) -> None:
    bound = keywords_of(op.node).get("min", op.rest[0] if op.rest else None)
    number = _small(at, bound) if bound is not None else None
    if bound is not None and number is not None:
        names = {"sum": Words(op.node, 60), "epsilon": Words(bound)}
        _emit(at, e.EPSILON, op.node, op.first, value=number, how="clamped", divides=False, names=names)


# Running sums.


def _assigned(at: Interpreter, node: ast.Assign) -> None:
    """``total = total + x``, and the moving average ``mean = a * mean + b * x``."""
    sides = operands(node.value, ast.Add)
    name = chain(node.targets[0]) if sides and len(node.targets) == 1 else None
    if name is None:
        return
    for old, new in zip(sides, reversed(sides), strict=True):
        before = next((part for part in operands(old, ast.Mult) or [old] if chain(part) == name), None)
        if before is not None:
            _summed(at, before, new, node, in_place=False)
            return


def _summed_in_place(at: Interpreter, node: ast.Call) -> None:
    """``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)`` and ``mean.lerp_(x, b)``."""
    name = last_name(node.func)
    target = receiver(node) if name in ("add_", "lerp_") else None
    if target is None or not node.args:
        return
    decayed = receiver(target)
    if decayed is not None and name == "add_" and last_name(called(target)) == "mul_":
        target = decayed
    _summed(at, target, node.args[0], node, in_place=True)


def _summed(at: Interpreter, target: ast.expr, added: ast.expr, node: ast.AST, *, in_place: bool) -> None:
    """Something is added to a variable, which may be a sum over the turns of a loop that is kept in low precision.

    It is if it begins with zero before the loop and what is added is made in each turn: in a region of that turn,
    or, where the zeros are of low precision, in any way.
    """
    name, known = chain(target), at.values.get(target)
    if name is None or known is None or not at.state.loops:
        return
    before = known.fact
    starts = before.dtype == NUMBER or (before.low and ZEROS in before.traits)
    index = at.values.get(target.slice) if isinstance(target, ast.Subscript) else None
    apart = frozenset[int]() if index is None else index.loops or index.turns()
    if not starts or not _made_each_turn(at, added, name, before, apart):
        return
    fact = _fact(at, added)
    if GUESS in fact.traits and _is_by_name(added):
        return
    if fact.low and LEFT in fact.traits:
        before = fact
    elif not in_place or not before.low or fact.dtype == NUMBER:
        return
    _emit(at, e.LOW_SUM, node, before, names={"sum": Words(target)})


def _is_by_name(added: ast.expr) -> bool:
    """Whether a value is found by a name in what a model gives: a loss or a count as often as what autocast casts."""
    while isinstance(added, ast.Call) and (held := receiver(added)) is not None:
        added = held
    match added:
        case ast.Attribute() | ast.Subscript(slice=ast.Constant(value=str())):
            return True
    return False


def _made_each_turn(at: Interpreter, added: ast.expr, name: str, before: Fact, apart: frozenset[int]) -> bool:
    """Whether what is added to a sum is made anew in the turns of a loop that began after it, and not of it.

    The turns of loops that choose the element which is added to, ``apart``, do not add up.
    """
    parts: list[ast.expr] = [*all_of(added, ast.Name), *all_of(added, ast.Attribute)]
    loops = [loop for loop in at.state.loops if loop.key not in before.made | apart]
    since = {loop.key for loop in loops if not _has_few_turns(loop.node)}
    values = [value for part in parts if (value := at.values.get(part)) is not None]
    made = [value.fact.made | (value.loops if value.kind == "tensor" else frozenset()) for value in values]
    return name not in map(chain, parts) and any(since & loops for loops in made)


def _annotated_sum(at: Interpreter, node: ast.AugAssign, value: Value) -> Value:
    before, kind = _fact(at, node.target), type(node.op)
    after = _arithmetic(at, kind, before, _fact(at, node.value), node, (node.target, node.value))
    if kind is ast.Add:
        _summed(at, node.target, node.value, node, in_place=True)
    return value.knowing(after._replace(made=before.made))


def _item_written(at: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """``buffer[index] = x``: with tensors as indexes this is ``index_put_``, which does not cast."""
    buffer, place, fact = _fact(at, target.value), _fact(at, target.slice), _here(at, value.fact)
    masks = place.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
    # One number is written as a fill is, which casts.
    if not masks or SCALAR in fact.traits:
        return
    names = {"target": Words(target)}
    if buffer.dtype == "float32" and _is_low_of_region(fact):
        _emit(at, e.DTYPE_CLASH, target, fact, how="write", names=names)
    elif _is_low_of_region(buffer) and fact.dtype == "float32":
        _emit(at, e.DTYPE_CLASH, target, buffer, how="write-wide", names=names)


# Findings.


def _emit(at: Interpreter, kind: e.Kind, node: object, fact: Fact, **facts: Any) -> Event | None:
    """Take note of what low precision does at a place, once; gives what was noted in this graph."""
    here = at.state.frame.function or at.state.frame.module
    if not isinstance(node, (ast.expr, ast.stmt)) or at.state.cur is None or not here.fragile:
        return None
    key = (kind, at.state.frame.module.path, node.lineno, node.col_offset, facts.get("how"))
    reported = at.of_file(_Reported)
    if key not in reported:
        reported.add(key)
        names = facts.pop("names", {"call": Words(node, 60)})
        facts.update(dtype=fact.dtype, guessed=GUESS in fact.traits)
        at.found[key] = Event(kind, at.site(node), None, None, facts, names)
    return at.found.get(key)


def _made(node: ast.expr, function: ast.AST) -> ast.expr:
    """An expression, or the one that a function assigns to the name that it is, or is a part of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        for statement in all_of(function, ast.Assign):
            if any(chain(target) == node.id for target in statement.targets):
                return statement.value
    return node


def _has_few_turns(loop: ast.AST | None) -> bool:
    """Whether a loop is known to have few turns."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return not isinstance(loop, ast.While)
    over = loop.iter
    if isinstance(over, ast.Call) and chain(over.func) == "range" and len(over.args) == 1:
        turns = constant(over.args[0])
        return isinstance(turns, int) and turns < 64
    return isinstance(over, (ast.Tuple, ast.List))


_OPS: dict[str, Callable[[Interpreter, _Op], Fact | None]] = {
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(("item", "tolist", "size", "dim", "numel"), lambda at, op: A_NUMBER),
    "numpy": _numpy,
    **dict.fromkeys(_WRITES, _indexed),
    **dict.fromkeys(("long", "int"), _index),
    **dict.fromkeys(("argmax", "argmin", "nonzero", "argsort"), lambda at, op: Fact("int")),
    "cumsum": _running,
    **dict.fromkeys("isnan isinf isfinite eq ne gt lt ge le".split(), lambda at, op: Fact("bool")),
    **dict.fromkeys(_ADDING, _product_written),
}
#: Ops that are not matmuls and have no ``out=``.
_ELEMENTWISE: dict[str, Callable[[Interpreter, _Op], Fact | None]] = {
    **dict.fromkeys(("sin", "cos"), _wave),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(_OPERATORS, _operated),
}


def register(handlers: Handlers) -> None:
    handlers.annotations_of.update(
        {
            ast.Attribute: _annotated_attribute,
            ast.Subscript: _annotated_subscript,
            ast.Compare: _annotated_compare,
            ast.UnaryOp: _annotated_unary,
            ast.BinOp: _annotated_binary,
            ast.Call: _annotated_call,
            ast.AugAssign: _annotated_sum,
        }
    )
    handlers.assigned.append(_assigned)
    handlers.item_written.append(_item_written)
