"""What low precision does to the values of a program: the dtypes of what expressions give, and what they spoil."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event
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
from ..interpreter.values import Const, Named, Opaque, Ref, Tensor, Value
from ..project.syntax import alike, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Constructors whose tensors are float32 unless a dtype is given.
_FLOATING = frozenset("zeros ones empty rand randn full normal linspace logspace eye FloatTensor".split())
_LOGS = frozenset(("log", "log2", "log10"))
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
#: Give one number where they are not given over what to reduce.
_REDUCTIONS = frozenset("mean sum max min amax amin std var norm prod median logsumexp".split())
_BOUNDED = frozenset("sigmoid softmax tanh normalize sin cos hardsigmoid erf cosine_similarity".split())
_DTYPES = frozenset(("float16", "bfloat16"))
#: Methods that cast.
_DTYPES_OF = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
_METHOD_OPERATORS: dict[str, ast.operator] = {
    "add": ast.Add(),
    "sub": ast.Sub(),
    "mul": ast.Mult(),
    "div": ast.Div(),
    "true_divide": ast.Div(),
    "pow": ast.Pow(),
}


class _Reported(set[tuple[object, ...]]):
    """What was found in a file, by place and kind."""


class _Registering(set[ast.Call]):
    """The registrations of buffers whose values are being looked at."""


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
    outside = state.how == "off" or (state.how == "out" and LEFT in fact.traits)
    return fact.low and REGION in fact.traits and outside


def _annotated_attribute(at: Interpreter, node: ast.Attribute, value: Value) -> Value:
    if node.attr in ("T", "mT", "data", "H"):
        return value.knowing(_fact(at, node.value))
    if isinstance(at.values.get(node.value), Tensor):
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
    registering = at.of_file(_Registering)
    for node in walk(init.node):
        if isinstance(node, ast.Call) and (chain(node.func) or "").endswith(".register_buffer") and len(node.args) > 1:
            if not isinstance(node.args[0], ast.Constant) or node.args[0].value != name:
                continue
            if node in registering:
                # It is registered again, as what it has become.
                return NOTHING
            registering.add(node)
            fact = _fact_of(at, _made(node.args[1], init.node))
            registering.discard(node)
            return fact if POSITIONS in fact.traits else NOTHING
    return NOTHING


def _fact_of(at: Interpreter, node: ast.expr) -> Fact:
    """What is known of an expression that stands elsewhere."""
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(node)))
    return found[0].fact


def _annotated_subscript(at: Interpreter, node: ast.Subscript, value: Value) -> Value:
    if not isinstance(at.values.get(node.value), (Opaque, Tensor)):
        return value
    fact = _fact(at, node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return value.knowing(fact if any(isinstance(part, ast.Slice) for part in parts) else fact.having(SCALAR))


def _annotated_compare(at: Interpreter, node: ast.Compare, value: Value) -> Value:
    known = any(_fact(at, side).dtype not in ("", NUMBER) for side in (node.left, *node.comparators))
    return value.knowing(Fact("bool")) if known else value


def _annotated_unary(at: Interpreter, node: ast.UnaryOp, value: Value) -> Value:
    fact = _fact(at, node.operand)
    if isinstance(node.op, ast.USub):
        negated = SIGMOID in fact.traits or SOFTMAX in fact.traits
        fact = fact.only(REGION, GUESS, LEFT, BOUNDED).having(*([NEGATED] if negated else []))
    elif not isinstance(node.op, ast.Invert):
        fact = NOTHING
    return value.knowing(fact)


def _annotated_binary(at: Interpreter, node: ast.BinOp, value: Value) -> Value:
    left, right = _fact(at, node.left), _fact(at, node.right)
    if isinstance(node.op, ast.Add):
        _epsilons(at, node, divides=False)
    elif isinstance(node.op, ast.Div) and isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Add):
        _epsilons(at, node.right, divides=True)
    return value.knowing(_arithmetic(at, node.op, left, right, node, node.left, node.right))


def _arithmetic(
    at: Interpreter, op: ast.operator, left: Fact, right: Fact, node: ast.AST, first: ast.expr, second: ast.expr
) -> Fact:
    """What an operator makes of two operands."""
    kept = (left.traits | right.traits) & {REGION, GUESS, LEFT}
    if all(SCALAR in fact.traits or fact.dtype == NUMBER for fact in (left, right)):
        kept |= {SCALAR}
    if isinstance(op, ast.MatMult):
        return _matmul(at, "matmul", [left, right], node)
    if isinstance(op, ast.Pow):
        tensor = right if left.dtype == NUMBER else left
        dtype = outcome("pow", tensor, _state(at))
        squares = isinstance(second, ast.Constant) and second.value == 2
        squares = squares and BOUNDED not in left.traits
        return Fact(dtype, kept | ({SQUARE} if squares else frozenset()))
    if isinstance(op, ast.Div) and left.dtype == NUMBER and right.dtype != NUMBER:
        return Fact(outcome("reciprocal", right, _state(at)), kept)
    traits = set(kept)
    place = None
    for one in (left, right):
        if isinstance(op, (ast.Mult, ast.Div, ast.Add, ast.Sub)) and one.traits & {POSITIONS, ROUNDED, ANGLES}:
            traits |= one.traits & {POSITIONS, ROUNDED, ANGLES}
            place = one.place
    if isinstance(op, ast.Sub) and left.dtype == NUMBER and right.traits & {SIGMOID, SOFTMAX}:
        traits.add(COMPLEMENT)
    if left.traits & right.traits & {BOUNDED} or (
        BOUNDED in left.traits | right.traits
        and NUMBER
        in (
            left.dtype,
            right.dtype,
        )
    ):
        traits.add(BOUNDED)
    if isinstance(op, ast.Mult) and BOUNDED not in traits and alike(first, second):
        traits.add(SQUARE)
    return Fact(promoted(left, right), frozenset(traits), place)


def _annotated_call(at: Interpreter, node: ast.Call, value: Value) -> Value:
    fact = _called(at, node)
    _summed_in_place(at, node)
    return value if fact is None else value.knowing(fact)


def _called(at: Interpreter, node: ast.Call) -> Fact | None:
    """What a call makes of what it is given; None where what was called has shown it."""
    func = node.func
    dotted = _dotted(at, func)
    if dotted is None and isinstance(func, ast.Attribute):
        receiver = _fact(at, func.value)
        args, keywords = _arguments(at, node)
        if receiver.dtype not in ("", NUMBER) or receiver.traits & {ANGLES, ROUNDED}:
            return _op(at, func.attr, [receiver, *args], keywords, node, node.args, method=True)
        if func.attr in ("new_zeros", "new_ones", "new_full", "new_empty"):
            return _constructed(at, func.attr, [receiver, *args], keywords, node)
        if func.attr in ("long", "int") and not args:
            return Fact("int")
        if func.attr in _DTYPES_OF or func.attr in ("to", "type", "type_as"):
            return _cast(at, func.attr, receiver, args, node)
        if is_low_method(func.attr):
            return _op(at, func.attr, [receiver, *args], keywords, node, node.args, method=True)
        return _other(at, node, args, keywords)
    args, keywords = _arguments(at, node)
    if dotted is not None:
        dotted = surface.canonical(dotted)
        last = dotted.rpartition(".")[2]
        if dotted.startswith("torch.") and not dotted.startswith(("torch.nn.utils", "torch.distributed")):
            if dotted in (f"torch.{last}", f"torch.special.{last}", f"torch.linalg.{last}"):
                if last in _FLOATING or last in ("arange", "tensor", "as_tensor") or last.endswith("_like"):
                    return _constructed(at, last, args, keywords, node)
            elif not dotted.startswith("torch.nn.functional."):
                return NOTHING
            return _op(at, last, args, keywords, node, node.args[1:], method=False)
        return NOTHING
    return _other(at, node, args, keywords)


def _arguments(at: Interpreter, node: ast.Call) -> tuple[list[Fact], dict[str, Fact]]:
    args = [_fact(at, arg) for arg in node.args]
    return args, {keyword.arg or "**": _fact(at, keyword.value) for keyword in node.keywords}


def _dotted(at: Interpreter, func: ast.expr) -> str | None:
    """The dotted name of what is called, where that is outside the project."""
    if isinstance(func, ast.Name):
        value = look_up(at, func.id)
        if value is None:
            return surface.BARE.get(func.id)
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
    callee = _callee(at, node.func)
    traits = frozenset({REGION})
    first = args[0] if args else NOTHING
    if isinstance(callee, Ref) and callee.role == "module":
        kind = str(callee.thing.facts.get("kind", ""))
        if kind in WEIGHTED and not callee.thing.facts.get("low") and _is_outside(first, state):
            _emit(at, e.DTYPE_CLASH, node, first, how="module", names={"call": Words(node.func)})
            return NOTHING
        if kind:
            dtype = outcome(op_of_module(kind), first, state)
            kept = first.traits & {GUESS, LEFT, REGION} if dtype == first.dtype else frozenset()
            made = Fact(dtype, kept | traits)
            op = op_of_module(kind)
            if op in _BOUNDED:
                made = made.having(BOUNDED, *([op] if op in (SIGMOID, SOFTMAX) else []))
            return made
        if state.how == "on":
            return Fact(state.dtype, traits | {GUESS})
    return None


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


def _op(
    at: Interpreter,
    op: str,
    args: list[Fact],
    keywords: dict[str, Fact],
    node: ast.Call,
    rest: list[ast.expr],
    *,
    method: bool,
) -> Fact:
    """What a function of torch, or a method of a tensor, makes of what it is given; ``rest`` follows the tensor."""
    first = args[0] if args else keywords.get("input", NOTHING)
    if op in _DTYPES_OF or op in ("to", "type", "type_as"):
        return _cast(at, op, first, args[1:], node)
    if op in ("item", "tolist", "size", "dim", "numel"):
        return A_NUMBER
    if op == "numpy":
        if first.dtype == "bfloat16" and REGION in first.traits and GUESS not in first.traits:
            _emit(at, e.DTYPE_CLASH, node, first, how="numpy", names={"call": Words(node.func)})
        return NOTHING
    if op in _WRITES:
        _indexed(at, op, first, args, keywords, node)
        return first
    if op in ("long", "int"):
        if ROUNDED in first.traits:
            _emit(at, e.LOW_POSITIONS, first.place, first, how="index")
        return Fact("int")
    if op in ("argmax", "argmin", "nonzero", "argsort"):
        return Fact("int")
    if op == "cumsum" and first.dtype in INTEGERS:
        return Fact("int", frozenset({POSITIONS}))
    if op in ("isnan", "isinf", "isfinite", "eq", "ne", "gt", "lt", "ge", "le"):
        return Fact("bool")
    if op in _ADDING or "out" in keywords:
        return _product_written(at, op, first, args, keywords, node)
    if is_low(op, _state(at).device):
        return _matmul(at, op, [fact for fact in args if fact.dtype != NUMBER], node)
    return _elementwise(at, op, first, args, keywords, node, rest)


def _elementwise(
    at: Interpreter,
    op: str,
    first: Fact,
    args: list[Fact],
    keywords: dict[str, Fact],
    node: ast.Call,
    rest: list[ast.expr],
) -> Fact:
    name = op.removesuffix("_")
    if op in ("sin", "cos") and first.traits & {ANGLES, ROUNDED}:
        how = "angles" if ANGLES in first.traits else "cast"
        _emit(at, e.LOW_POSITIONS, first.place, first, how=how)
    if op in ("cat", "stack") and node.args and isinstance(node.args[0], (ast.Tuple, ast.List)):
        return _concatenated(at, [_fact(at, part) for part in node.args[0].elts], node)
    if op in ("add", "mul", "sub", "div", "true_divide", "pow") and len(args) > 1 and rest:
        operator: ast.operator = _METHOD_OPERATORS[op]
        if op == "add" and first.underflows:
            _epsilon(at, first, rest[0], node, divides=False)
        tensor = node.func.value if isinstance(node.func, ast.Attribute) and len(rest) == len(node.args) else None
        return _arithmetic(at, operator, first, args[1], node, tensor or node.args[0], rest[0])
    if first.underflows:
        _clamped(at, name, first, node, rest)
    state = _state(at)
    given = next((value for key, value in keywords.items() if key == "dtype"), None)
    if given is not None:
        return Fact(_named_dtype(at, node))
    dtype = outcome(op, first, state)
    if name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like") or op.startswith(
        "new_"
    ):
        return Fact(dtype)
    fact = Fact(dtype, first.traits & {REGION, GUESS, LEFT, SCALAR})
    if op in _REDUCTIONS and not rest and not keywords:
        fact = fact.having(SCALAR)
    if op in KEEP_TRAITS:
        return fact._replace(traits=first.traits, place=first.place)
    _fragile(at, op, first, fact, node)
    if dtype not in ("", first.dtype) and dtype == state.dtype:
        fact = Fact(dtype, frozenset({REGION}))
    if name in _BOUNDED:
        fact = fact.having(BOUNDED, *([name] if name in (SIGMOID, SOFTMAX) else []))
    elif name == "exp" and not _shifted(node):
        fact = fact.having(EXP)
    elif name == "sum" and EXP in first.traits:
        fact = fact.having(EXP_SUM)
    elif name == "square" and BOUNDED not in first.traits:
        fact = fact.having(SQUARE)
    elif name in ("abs", "relu", "mean", "clamp") and BOUNDED in first.traits:
        fact = fact.having(BOUNDED)
    return fact


def _fragile(at: Interpreter, op: str, first: Fact, made: Fact, node: ast.Call) -> None:
    """What overflows or cancels in low precision."""
    how = ""
    if op in _LOGS and first.low:
        for trait, named in (
            (SOFTMAX, "log-softmax"),
            (SIGMOID, "log-sigmoid"),
            (COMPLEMENT, "log-complement"),
            (EXP_SUM, "logsumexp"),
        ):
            if trait in first.traits:
                how = named
    elif op == "log1p" and first.low and NEGATED in first.traits:
        how = "log-complement"
    elif op in ("mean", "sum") and first.underflows and SQUARE in first.traits:
        how = "squares"
    elif op == "var" and made.underflows and BOUNDED not in first.traits:
        how = "variance"
    if how:
        _emit(at, e.FRAGILE_MATH, node, first, how=how, names={"call": Words(node, 60)})


def _shifted(node: ast.Call) -> bool:
    """Whether the argument of an exponential is a difference, from which its maximum may be taken."""
    holder = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
    argument = node.args[0] if node.args else holder
    return argument is not None and any(
        isinstance(part, (ast.BinOp, ast.UnaryOp)) and isinstance(part.op, (ast.Sub, ast.USub))
        for part in walk(argument)
    )


def _concatenated(at: Interpreter, parts: list[Fact], node: ast.AST) -> Fact:
    made = parts[0] if parts else NOTHING
    state = _state(at)
    if state.how == "on" and state.device == "cpu" and {"float16", "bfloat16"} <= {fact.dtype for fact in parts}:
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
        made = Fact(state.dtype, frozenset({REGION}))
        outer = op == "einsum" and state.device == "cpu"
        if not outer and any(POSITIONS in fact.traits and fact.dtype == "float32" for fact in operands):
            return Fact(state.dtype, frozenset({REGION, ANGLES}), node)
        return made
    known = [fact for fact in operands if fact.dtype]
    low = next((fact for fact in known if _is_outside(fact, state)), None)
    if low is not None and any(fact.dtype == "float32" for fact in known):
        _emit(at, e.DTYPE_CLASH, node, low, how="matmul", names={"call": Words(node)})
    return Fact(known[0].dtype) if len(known) == len(operands) and known and state.how == "off" else NOTHING


def _indexed(
    at: Interpreter, op: str, buffer: Fact, args: list[Fact], keywords: dict[str, Fact], node: ast.Call
) -> None:
    place, word = _WRITES[op]
    # The buffer stands first among the arguments.
    source = args[place + 1] if len(args) > place + 1 else keywords.get(word, NOTHING)
    if buffer.dtype == "float32" and source.low and REGION in source.traits:
        _emit(at, e.DTYPE_CLASH, node, source, how="write", names={"target": Words(node.func)})


def _product_written(
    at: Interpreter, op: str, first: Fact, args: list[Fact], keywords: dict[str, Fact], node: ast.Call
) -> Fact:
    """A product that is added to a tensor in place, or written to one that is given."""
    target, factors = (first, args[1:]) if op in _ADDING else (keywords["out"], args)
    low = next((fact for fact in factors if fact.low and REGION in fact.traits), None)
    if low is not None and target.dtype == "float32" and (op in _ADDING or op in _WITH_OUT):
        _emit(at, e.DTYPE_CLASH, node, low, how="in-place" if op in _ADDING else "out")
    return target


def _constructed(at: Interpreter, name: str, args: list[Fact], keywords: dict[str, Fact], node: ast.Call) -> Fact:
    """What a constructor of tensors gives."""
    positions = frozenset({POSITIONS}) if name == "arange" else frozenset()
    zeros = frozenset({ZEROS}) if name in ("zeros", "zeros_like", "new_zeros") else frozenset()
    if "dtype" in keywords:
        dtype = _named_dtype(at, node)
        if _is_short(node):
            positions = frozenset()
        if positions and dtype in ("float16", "bfloat16"):
            return Fact(dtype, frozenset({ROUNDED}), node)
        return Fact(dtype, positions | zeros)
    if name.endswith("_like") or name.startswith("new_"):
        return Fact(args[0].dtype if args else "", zeros)
    if name == "arange":
        return Fact("int", positions if not _is_short(node) else frozenset())
    module = at.state.frame.module
    if "set_default_dtype" in module.identifiers or name in ("tensor", "as_tensor"):
        return NOTHING
    return Fact("float32", zeros)


def _is_short(node: ast.Call) -> bool:
    """Whether positions are so few that every low dtype has them: up to 256."""
    return all(isinstance(arg, ast.Constant) and isinstance(arg.value, int) and arg.value <= 256 for arg in node.args)


def _named_dtype(at: Interpreter, node: ast.Call) -> str:
    """The dtype that a call is given by name."""
    for keyword in node.keywords:
        if keyword.arg == "dtype":
            return _dtype(at, keyword.value)
    return ""


def _dtype(at: Interpreter, node: ast.expr) -> str:
    """The dtype that an expression stands for: ``torch.float16``, ``x.dtype``."""
    if isinstance(node, ast.Attribute) and node.attr == "dtype":
        fact = _fact(at, node.value)
        if fact.dtype not in ("", NUMBER):
            return fact.dtype
    name = _dotted(at, node)
    if name in ("torch.long", "torch.int64", "torch.int32", "torch.int"):
        return "int"
    return "bool" if name == "torch.bool" else surface.DTYPES.get(name or "", "")


def _cast(at: Interpreter, op: str, given: Fact, args: list[Fact], node: ast.Call) -> Fact:
    """``x.float()``, ``x.to(...)``, ``x.type_as(y)``."""
    rest = node.args
    dtype = _DTYPES_OF.get(op, "")
    if op == "type_as":
        dtype = args[0].dtype if args else ""
    elif not dtype:
        named = [_dtype(at, argument) for argument in (*rest, *(k.value for k in node.keywords))]
        dtype = next((name for name in named if name), "")
        if not dtype:
            other = next((fact.dtype for fact in args if fact.dtype not in ("", NUMBER)), "")
            moves = all(_is_device(argument) for argument in rest) and not any(k.arg == "dtype" for k in node.keywords)
            dtype = other or (given.dtype if moves else "")
    if not dtype:
        return Fact("", given.traits & {POSITIONS})
    low = dtype in ("float16", "bfloat16", HALF)
    if low and POSITIONS in given.traits:
        return Fact(dtype, frozenset({ROUNDED}), node)
    if low == given.low:
        return given._replace(dtype=dtype)
    return Fact(dtype, given.traits & {POSITIONS, ROUNDED, ANGLES, BOUNDED, ZEROS}, given.place)


def _is_device(node: ast.expr) -> bool:
    """Whether what ``to`` is given is a device, by what it is or is called."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, int))
    last = (chain(node) or "").rpartition(".")[2]
    called = chain(node.func) if isinstance(node, ast.Call) else None
    return "device" in last or last == "rank" or "device" in (called or "")


# Epsilons.


def _number(at: Interpreter, node: ast.expr) -> float | None:
    """The number that an expression is known to be."""
    value = at.values.get(node) if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)) else None
    return value.value if isinstance(value, Const) and isinstance(value.value, float) else None


def _epsilons(at: Interpreter, node: ast.BinOp, *, divides: bool) -> None:
    """What is added to something that may underflow; ``divides`` says that something is divided by the sum."""
    for side, other in ((node.left, node.right), (node.right, node.left)):
        fact = _fact(at, side)
        if fact.underflows:
            _epsilon(at, fact, other, node, divides=divides)


def _epsilon(at: Interpreter, fact: Fact, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
    number = _number(at, node)
    if number is not None and 0 < number < 1:
        names = {"sum": Words(place), "epsilon": Words(node)}
        event = _emit(at, e.EPSILON, place, fact, value=number, how="added", divides=divides, names=names)
        if event is not None and divides:
            event.facts["divides"] = True


def _clamped(at: Interpreter, op: str, fact: Fact, node: ast.Call, rest: list[ast.expr]) -> None:
    if op not in ("clamp", "clip", "clamp_min"):
        return
    bound = next((k.value for k in node.keywords if k.arg == "min"), rest[0] if rest else None)
    number = _number(at, bound) if bound is not None else None
    if bound is not None and number is not None and 0 < number < 1:
        names = {"sum": Words(node, 60), "epsilon": Words(bound)}
        _emit(at, e.EPSILON, node, fact, value=number, how="clamped", divides=False, names=names)


# Running sums.


def _assigned(at: Interpreter, node: ast.Assign) -> None:
    """``total = total + x``, and the moving average ``mean = a * mean + b * x``."""
    if len(node.targets) != 1 or not isinstance(node.value, ast.BinOp) or not isinstance(node.value.op, ast.Add):
        return
    name = chain(node.targets[0])
    sides = (node.value.left, node.value.right)
    for old, new in (sides, sides[::-1]):
        before = next((part for part in _factors(old) if name is not None and chain(part) == name), None)
        if before is not None:
            _summed(at, before, new, node, in_place=False)
            return


def _summed_in_place(at: Interpreter, node: ast.Call) -> None:
    """``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)`` and ``mean.lerp_(x, b)``."""
    if not isinstance(node.func, ast.Attribute) or not node.args:
        return
    target: ast.expr = node.func.value
    if node.func.attr == "add_" and isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        target = target.func.value if target.func.attr == "mul_" else target
    if node.func.attr in ("add_", "lerp_"):
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
    if before.dtype != NUMBER and not (before.low and ZEROS in before.traits):
        return
    since = {loop.key for loop in at.state.loops if loop.key not in before.made and not _has_few_turns(loop.node)}
    parts = [part for part in walk(added) if isinstance(part, (ast.Name, ast.Attribute))]
    values = [value for part in parts if (value := at.values.get(part)) is not None]
    made = [value.fact.made | (value.loops if isinstance(value, Tensor) else frozenset()) for value in values]
    if name in map(chain, parts) or not any(since & loops for loops in made):
        return
    fact = _fact(at, added)
    low = fact.low and LEFT in fact.traits
    kept = in_place and before.low and fact.dtype != NUMBER
    if low or kept:
        _emit(at, e.LOW_SUM, node, fact if low else before, names={"sum": Words(target)})


def _annotated_sum(at: Interpreter, node: ast.AugAssign, value: Value) -> Value:
    before = _fact(at, node.target)
    after = _arithmetic(at, node.op, before, _fact(at, node.value), node, node.target, node.value)
    if isinstance(node.op, ast.Add):
        _summed(at, node.target, node.value, node, in_place=True)
    return value.knowing(after._replace(made=before.made))


def _item_written(at: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """``buffer[index] = x``: with tensors as indexes this is ``index_put_``, which does not cast."""
    buffer, place, fact = _fact(at, target.value), _fact(at, target.slice), _here(at, value.fact)
    masks = place.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
    # One number is written as a fill is, which casts.
    if masks and buffer.dtype == "float32" and fact.low and REGION in fact.traits and SCALAR not in fact.traits:
        _emit(at, e.DTYPE_CLASH, target, fact, how="write", names={"target": Words(target)})


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
        for statement in walk(function):
            if isinstance(statement, ast.Assign) and any(chain(target) == node.id for target in statement.targets):
                return statement.value
    return node


def _factors(node: ast.expr) -> list[ast.expr]:
    """An expression, or the two sides of a product."""
    return [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else [node]


def _has_few_turns(loop: ast.AST | None) -> bool:
    """Whether a loop is known to have few turns."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return not isinstance(loop, ast.While)
    over = loop.iter
    if isinstance(over, ast.Call) and chain(over.func) == "range" and len(over.args) == 1:
        return (
            isinstance(over.args[0], ast.Constant) and isinstance(over.args[0].value, int) and over.args[0].value < 64
        )
    return isinstance(over, (ast.Tuple, ast.List))


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
