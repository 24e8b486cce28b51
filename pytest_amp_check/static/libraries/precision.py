"""What low precision does to the values of a program: reads statements once more, for the dtypes of their tensors.

It goes along with the reader, which knows the open regions and which way control takes, and does nothing in functions
that use none of the words of its rules.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event, Graph
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
    Precise,
    State,
    is_low,
    is_low_method,
    joined,
    op_of_module,
    outcome,
    promoted,
)
from ..interpreter.imports import look_up
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import Const, FunctionValue, Instance, Named, Ref, Value
from ..project.syntax import alike, children, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..interpreter.values import Frame

#: Follows the name of a variable where its dtype is kept beside its value.
MARK = ":dtype"

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
#: Give one number where they are not told over what to reduce.
_REDUCTIONS = frozenset("mean sum max min amax amin std var norm prod median logsumexp".split())
_BOUNDED = frozenset("sigmoid softmax tanh normalize sin cos hardsigmoid erf cosine_similarity".split())


class Precision:
    """Reads what statements do to dtypes, for one file."""

    def __init__(self, at: Interpreter) -> None:
        self.at = at
        #: Whether a region was entered in this graph.
        self._awake: Graph | None = None
        self._told: set[tuple[object, ...]] = set()
        #: The registrations of buffers whose values are being looked at.
        self._registering: set[ast.Call] = set()
        #: What is known of the arguments of a call that is about to be followed.
        self._given: dict[int, tuple[list[Fact], dict[str, Fact]]] = {}

    # Statements.

    def read(self, statement: ast.stmt) -> None:
        """Read a statement, before the reader does."""
        if self.at.state.open:
            self._awake = self.at.graph
        made = isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.Call, ast.Constant))
        if not (made or self._awake is self.at.graph) and _CASTS.isdisjoint(self.at.state.frame.module.identifiers):
            # Nothing is low yet: of interest are the tensors and numbers that a region may find.
            return
        if isinstance(statement, ast.Assign):
            self._summed_anew(statement)
            fact = self.of(statement.value)
            for target in statement.targets:
                self._assign(target, fact, statement.value)
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._assign(statement.target, self.of(statement.value), statement.value)
        elif isinstance(statement, ast.AugAssign):
            self._augment(statement)
        elif isinstance(statement, (ast.Expr, ast.Return)):
            if statement.value is not None:
                self.of(statement.value)
                self._summed_in_place(statement.value)
        elif isinstance(statement, (ast.If, ast.While)):
            self.of(statement.test)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            fact = self.of(statement.iter)
            self._assign(statement.target, fact.only(REGION, LEFT, GUESS), None)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, NOTHING, None)

    def bind(self, frame: Frame, func: FunctionValue, node: ast.AST) -> None:
        """Tell a function that is followed what is known of the tensors that it is given."""
        given = self._given.pop(id(node), None)
        if given is None:
            return
        facts, keywords = given
        names = [parameter.arg for parameter in func.function.parameters()][0 if func.receiver is None else 1 :]
        for name, fact in [*zip(names, facts, strict=False), *keywords.items()]:
            if fact.dtype:
                frame.vars[name + MARK] = Precise(fact, frozenset())

    def _assign(self, target: ast.expr, fact: Fact, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(parts) == len(target.elts):
                for element, part in zip(target.elts, parts, strict=True):
                    self._assign(element, self.of(part), part)
            else:
                for element in target.elts:
                    self._assign(element, fact.only(REGION, GUESS, LEFT), None)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, fact, None)
        elif isinstance(target, ast.Subscript):
            self._write_item(target, fact)
        else:
            name = chain(target)
            if name is not None:
                self._keep(name, fact)

    def _keep(self, name: str, fact: Fact) -> None:
        self.at.state.frame.vars[name + MARK] = Precise(fact, self.at.turning())

    def _known(self, name: str) -> Precise | None:
        frame: Frame | None = self.at.state.frame
        while frame is not None:
            value = frame.vars.get(name + MARK)
            if isinstance(value, Precise):
                return value
            if name in frame.vars:
                return None
            frame = frame.parent
        return None

    def _write_item(self, target: ast.Subscript, fact: Fact) -> None:
        """``buffer[index] = x``: with tensors as indexes this is ``index_put_``, which does not cast."""
        buffer, index = self.of(target.value), self.of(target.slice)
        masks = index.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
        # One number is written as a fill is, which casts.
        if masks and buffer.dtype == "float32" and fact.low and REGION in fact.traits and SCALAR not in fact.traits:
            self._emit(e.DTYPE_CLASH, target, fact, how="write", names={"target": Words(target)})

    def _augment(self, node: ast.AugAssign) -> None:
        name = chain(node.target)
        value = self.of(node.value)
        known = self._known(name) if name else None
        before = known.fact if known is not None else self.of(node.target)
        after = self._arithmetic(node.op, before, value, node, node.target, node.value)
        if isinstance(node.op, ast.Add):
            self._summed(node.target, node.value, value, node, in_place=True)
        if name is not None:
            made = known.loops if known is not None else self.at.turning()
            self.at.state.frame.vars[name + MARK] = Precise(after, made)

    # Running sums.

    def _summed_anew(self, node: ast.Assign) -> None:
        """``total = total + x``, and the moving average ``mean = a * mean + b * x``."""
        if len(node.targets) != 1 or not isinstance(node.value, ast.BinOp) or not isinstance(node.value.op, ast.Add):
            return
        target, sides = node.targets[0], (node.value.left, node.value.right)
        name = chain(target)
        for old, new in (sides, sides[::-1]):
            if name is not None and name in {chain(part) for part in _factors(old)}:
                self._summed(target, new, self.of(new), node, in_place=False)
                return

    def _summed_in_place(self, node: ast.expr) -> None:
        """``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)`` and ``mean.lerp_(x, b)``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            return
        target: ast.expr = node.func.value
        if node.func.attr == "add_" and isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            target = target.func.value if target.func.attr == "mul_" else target
        if node.func.attr in ("add_", "lerp_"):
            self._summed(target, node.args[0], self.of(node.args[0]), node, in_place=True)

    def _summed(self, target: ast.expr, added: ast.expr, value: Fact, node: ast.AST, *, in_place: bool) -> None:
        """Something is added to a variable, which may be a sum over the turns of a loop that is kept in low precision.

        It is if it begins with zero before the loop and what is added is made in each turn: in a region of that turn,
        or, where the zeros are of low precision, in any way.
        """
        name = chain(target)
        known = self._known(name) if name is not None else None
        if known is None or not self.at.state.loops:
            return
        before = known.fact
        if before.dtype != NUMBER and not (before.low and ZEROS in before.traits):
            return
        since = {loop.key for loop in self.at.state.loops if loop.key not in known.loops and not _is_short(loop.node)}
        names = [chain(part) for part in walk(added) if isinstance(part, (ast.Name, ast.Attribute))]
        facts = [fact for part in names if part is not None and (fact := self._known(part)) is not None]
        if name in names or not any(since & fact.loops for fact in facts):
            return
        low = value.low and LEFT in self._here(value).traits
        kept = in_place and before.low and value.dtype != NUMBER
        if low or kept:
            self._emit(e.LOW_SUM, node, value if low else before, names={"sum": Words(target)})

    # Expressions.

    def of(self, node: ast.expr, *, divides: bool = False) -> Fact:
        """What is known of an expression; ``divides`` says that something is divided by it."""
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            fact: Fact = handler(self, node)
        elif isinstance(node, ast.BinOp):
            fact = self._binary(node, divides=divides)
        else:
            for child in children(node):
                if isinstance(child, ast.expr) and not isinstance(node, (ast.Lambda, ast.comprehension)):
                    self.of(child)
            fact = NOTHING
        return fact

    def _here(self, fact: Fact) -> Fact:
        """The same, where the region that made it low may be left."""
        if REGION in fact.traits and self.state().how == "out":
            return fact.having(LEFT)
        return fact

    def state(self) -> State:
        """The autocast state at the place being read."""
        at = self.at
        if at.state.open:
            region = at.state.open[-1]
            if region.enabled is False:
                return State("off")
            if region.dtype in ("float32", "float64"):
                return State()
            return State("on", region.device.partition(":")[0], region.dtype if region.dtype in _DTYPES else HALF)
        return State() if at.state.maybe_open else State("out")

    @staticmethod
    def _is_outside(fact: Fact, state: State) -> bool:
        """Whether a tensor that a region made low is used where nothing is cast."""
        outside = state.how == "off" or (state.how == "out" and LEFT in fact.traits)
        return fact.low and REGION in fact.traits and outside

    def _constant(self, node: ast.Constant) -> Fact:
        return A_NUMBER if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) else NOTHING

    def _name(self, node: ast.Name) -> Fact:
        known = self._known(node.id)
        if known is not None:
            return self._here(known.fact)
        value = look_up(self.at, node.id)
        return A_NUMBER if isinstance(value, Const) and isinstance(value.value, (int, float)) else NOTHING

    def _attribute(self, node: ast.Attribute) -> Fact:
        name = chain(node)
        known = self._known(name) if name is not None else None
        if known is not None:
            return self._here(known.fact)
        if node.attr in ("T", "mT", "data", "H"):
            return self.of(node.value)
        self.of(node.value)
        return self._buffer(node.attr) if isinstance(node.value, ast.Name) else NOTHING

    def _buffer(self, name: str) -> Fact:
        """What is known of a buffer that the class of the method being read registers: whether it holds positions."""
        cls = self.at.state.frame.cls
        init = cls.methods.get("__init__") if cls is not None else None
        if init is None or "register_buffer" not in self.at.state.frame.module.identifiers:
            return NOTHING
        for node in walk(init.node):
            if isinstance(node, ast.Call) and (chain(node.func) or "").endswith(".register_buffer"):
                key, value = node.args[0] if node.args else None, node.args[1] if len(node.args) > 1 else None
                if isinstance(key, ast.Constant) and key.value == name and value is not None:
                    if node in self._registering:
                        # It is registered again, as what it has become.
                        return NOTHING
                    self._registering.add(node)
                    fact = self.of(_made(value, init.node))
                    self._registering.discard(node)
                    return fact if POSITIONS in fact.traits else NOTHING
        return NOTHING

    def _subscript(self, node: ast.Subscript) -> Fact:
        fact = self.of(node.value)
        self.of(node.slice)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return fact if any(isinstance(part, ast.Slice) for part in parts) else fact.having(SCALAR)

    def _if_expression(self, node: ast.IfExp) -> Fact:
        self.of(node.test)
        return joined(self.of(node.body), self.of(node.orelse))

    def _compare(self, node: ast.Compare) -> Fact:
        tensor = False
        for side in (node.left, *node.comparators):
            fact = self.of(side)
            tensor = tensor or fact.dtype not in ("", NUMBER)
        return Fact("bool") if tensor else NOTHING

    def _unary(self, node: ast.UnaryOp) -> Fact:
        fact = self.of(node.operand)
        if isinstance(node.op, ast.USub):
            negated = SIGMOID in fact.traits or SOFTMAX in fact.traits
            return fact.only(REGION, GUESS, LEFT, BOUNDED).having(*([NEGATED] if negated else []))
        return fact if isinstance(node.op, ast.Invert) else NOTHING

    def _binary(self, node: ast.BinOp, *, divides: bool) -> Fact:
        left = self.of(node.left)
        right = self.of(node.right, divides=isinstance(node.op, ast.Div))
        if isinstance(node.op, ast.Add):
            for fact, other in ((left, node.right), (right, node.left)):
                if fact.underflows:
                    self._epsilon(fact, other, node, divides=divides)
        return self._arithmetic(node.op, left, right, node, node.left, node.right)

    def _arithmetic(
        self, op: ast.operator, left: Fact, right: Fact, node: ast.AST, first: ast.expr, second: ast.expr
    ) -> Fact:
        """What an operator makes of two operands."""
        kept = (left.traits | right.traits) & {REGION, GUESS, LEFT}
        if all(SCALAR in fact.traits or fact.dtype == NUMBER for fact in (left, right)):
            kept |= {SCALAR}
        if isinstance(op, ast.MatMult):
            return self._matmul("matmul", [left, right], node)
        if isinstance(op, ast.Pow):
            tensor = right if left.dtype == NUMBER else left
            dtype = outcome("pow", tensor, self.state())
            squares = isinstance(second, ast.Constant) and second.value == 2
            squares = squares and BOUNDED not in left.traits
            return Fact(dtype, kept | ({SQUARE} if squares else frozenset()))
        if isinstance(op, ast.Div) and left.dtype == NUMBER and right.dtype != NUMBER:
            return Fact(outcome("reciprocal", right, self.state()), kept)
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

    # Calls.

    def _call(self, node: ast.Call) -> Fact:
        func = node.func
        dotted = self._dotted(func)
        if dotted is None and isinstance(func, ast.Attribute):
            receiver = self.of(func.value)
            args, keywords = self._arguments(node)
            if receiver.dtype not in ("", NUMBER) or receiver.traits & {ANGLES, ROUNDED}:
                return self._op(func.attr, [receiver, *args], keywords, node, node.args, method=True)
            if func.attr in ("new_zeros", "new_ones", "new_full", "new_empty"):
                return self._constructed(func.attr, [receiver, *args], keywords, node)
            if func.attr in ("long", "int") and not args:
                return Fact("int")
            if func.attr in _DTYPES_OF or func.attr in ("to", "type", "type_as"):
                return self._cast(func.attr, receiver, args, node)
            if is_low_method(func.attr):
                return self._op(func.attr, [receiver, *args], keywords, node, node.args, method=True)
            return self._other(node, args, keywords)
        args, keywords = self._arguments(node)
        if dotted is not None:
            dotted = surface.canonical(dotted)
            last = dotted.rpartition(".")[2]
            if dotted.startswith("torch.") and not dotted.startswith(("torch.nn.utils", "torch.distributed")):
                if dotted in (f"torch.{last}", f"torch.special.{last}", f"torch.linalg.{last}"):
                    if last in _FLOATING or last in ("arange", "tensor", "as_tensor") or last.endswith("_like"):
                        return self._constructed(last, args, keywords, node)
                elif not dotted.startswith("torch.nn.functional."):
                    return NOTHING
                return self._op(last, args, keywords, node, node.args[1:], method=False)
            return NOTHING
        return self._other(node, args, keywords)

    def _arguments(self, node: ast.Call) -> tuple[list[Fact], dict[str, Fact]]:
        args = [self.of(arg) for arg in node.args]
        return args, {keyword.arg or "**": self.of(keyword.value) for keyword in node.keywords}

    def _dotted(self, func: ast.expr) -> str | None:
        """The dotted name of what is called, where that is outside the project."""
        if isinstance(func, ast.Name):
            if self._known(func.id) is not None:
                return None
            value = look_up(self.at, func.id)
            if value is None:
                return surface.BARE.get(func.id)
            return value.name if isinstance(value, Named) else None
        if isinstance(func, ast.Attribute):
            head = self._dotted(func.value)
            return f"{head}.{func.attr}" if head else None
        return None

    def _value(self, node: ast.expr) -> Value:
        """What the reader makes of an expression."""
        values: list[Value] = []
        self.at.unrecorded(lambda: values.append(self.at.evaluate(node)))
        return values[0]

    def _other(self, node: ast.Call, args: list[Fact], keywords: dict[str, Fact]) -> Fact:
        """A call of a module, of a function of the project, or of something that is not known."""
        state = self.state()
        given = [*args, *keywords.values()]
        if chain(node.func) is None or (state.how != "on" and not any(fact.low for fact in given)):
            return NOTHING
        callee = self._value(node.func)
        traits = frozenset({REGION})
        first = args[0] if args else NOTHING
        if isinstance(callee, Ref) and callee.role == "module":
            kind = str(callee.thing.facts.get("kind", ""))
            if kind in WEIGHTED and not callee.thing.facts.get("low") and self._is_outside(first, state):
                self._emit(e.DTYPE_CLASH, node, first, how="module", names={"call": Words(node.func)})
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
        if isinstance(callee, (FunctionValue, Instance)):
            self._given[id(node)] = args, keywords
        return NOTHING

    def _op(
        self,
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
            return self._cast(op, first, args[1:], node)
        if op in ("item", "tolist", "size", "dim", "numel"):
            return A_NUMBER
        if op == "numpy":
            if first.dtype == "bfloat16" and REGION in first.traits and GUESS not in first.traits:
                self._emit(e.DTYPE_CLASH, node, first, how="numpy", names={"call": Words(node.func)})
            return NOTHING
        if op in _WRITES:
            self._indexed(op, first, args, keywords, node)
            return first
        if op in ("long", "int"):
            if ROUNDED in first.traits:
                self._emit(e.LOW_POSITIONS, first.place, first, how="index")
            return Fact("int")
        if op in ("argmax", "argmin", "nonzero", "argsort"):
            return Fact("int")
        if op == "cumsum" and first.dtype in INTEGERS:
            return Fact("int", frozenset({POSITIONS}))
        if op in ("isnan", "isinf", "isfinite", "eq", "ne", "gt", "lt", "ge", "le"):
            return Fact("bool")
        if op in _ADDING or "out" in keywords:
            return self._product_written(op, first, args, keywords, node)
        if is_low(op, self.state().device):
            return self._matmul(op, [fact for fact in args if fact.dtype != NUMBER], node)
        return self._elementwise(op, first, args, keywords, node, rest)

    def _elementwise(
        self,
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
            self._emit(e.LOW_POSITIONS, first.place, first, how=how)
        if op in ("cat", "stack") and node.args and isinstance(node.args[0], (ast.Tuple, ast.List)):
            return self._concatenated([self.of(part) for part in node.args[0].elts], node)
        if op in ("add", "mul", "sub", "div", "true_divide", "pow") and len(args) > 1 and rest:
            operator: ast.operator = _METHOD_OPERATORS[op]
            if op == "add" and first.underflows:
                self._epsilon(first, rest[0], node, divides=False)
            tensor = node.func.value if isinstance(node.func, ast.Attribute) and len(rest) == len(node.args) else None
            return self._arithmetic(operator, first, args[1], node, tensor or node.args[0], rest[0])
        if first.underflows:
            self._clamped(name, first, node, rest)
        state = self.state()
        given = next((value for key, value in keywords.items() if key == "dtype"), None)
        if given is not None:
            return Fact(self._named_dtype(node))
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
        self._fragile(op, first, fact, node)
        if dtype not in ("", first.dtype) and dtype == state.dtype:
            fact = Fact(dtype, frozenset({REGION}))
        if name in _BOUNDED:
            fact = fact.having(BOUNDED, *([name] if name in (SIGMOID, SOFTMAX) else []))
        elif name == "exp" and not self._shifted(node):
            fact = fact.having(EXP)
        elif name == "sum" and EXP in first.traits:
            fact = fact.having(EXP_SUM)
        elif name == "square" and BOUNDED not in first.traits:
            fact = fact.having(SQUARE)
        elif name in ("abs", "relu", "mean", "clamp") and BOUNDED in first.traits:
            fact = fact.having(BOUNDED)
        return fact

    def _fragile(self, op: str, first: Fact, made: Fact, node: ast.Call) -> None:
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
            self._emit(e.FRAGILE_MATH, node, first, how=how, names={"call": Words(node, 60)})

    @staticmethod
    def _shifted(node: ast.Call) -> bool:
        """Whether the argument of an exponential is a difference, from which its maximum may be taken."""
        holder = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
        argument = node.args[0] if node.args else holder
        return argument is not None and any(
            isinstance(part, (ast.BinOp, ast.UnaryOp)) and isinstance(part.op, (ast.Sub, ast.USub))
            for part in walk(argument)
        )

    def _concatenated(self, parts: list[Fact], node: ast.AST) -> Fact:
        made = parts[0] if parts else NOTHING
        state = self.state()
        if state.how == "on" and state.device == "cpu" and {"float16", "bfloat16"} <= {fact.dtype for fact in parts}:
            # On the CPU alone these are on autocast's list, and it has no dtype for both.
            self._emit(e.DTYPE_CLASH, node, made, how="mixed")
            return NOTHING
        for part in parts[1:]:
            dtype = promoted(made, part)
            place = made.place if made.place is part.place else None
            made = Fact(dtype, made.traits & part.traits, place)
        return made

    def _matmul(self, op: str, operands: list[Fact], node: ast.AST) -> Fact:
        state = self.state()
        if state.how == "on":
            made = Fact(state.dtype, frozenset({REGION}))
            outer = op == "einsum" and state.device == "cpu"
            if not outer and any(POSITIONS in fact.traits and fact.dtype == "float32" for fact in operands):
                return Fact(state.dtype, frozenset({REGION, ANGLES}), node)
            return made
        known = [fact for fact in operands if fact.dtype]
        low = next((fact for fact in known if self._is_outside(fact, state)), None)
        if low is not None and any(fact.dtype == "float32" for fact in known):
            self._emit(e.DTYPE_CLASH, node, low, how="matmul", names={"call": Words(node)})
        return Fact(known[0].dtype) if len(known) == len(operands) and known and state.how == "off" else NOTHING

    def _indexed(self, op: str, buffer: Fact, args: list[Fact], keywords: dict[str, Fact], node: ast.Call) -> None:
        place, word = _WRITES[op]
        # The buffer stands first among the arguments.
        source = args[place + 1] if len(args) > place + 1 else keywords.get(word, NOTHING)
        if buffer.dtype == "float32" and source.low and REGION in source.traits:
            self._emit(e.DTYPE_CLASH, node, source, how="write", names={"target": Words(node.func)})

    def _product_written(
        self, op: str, first: Fact, args: list[Fact], keywords: dict[str, Fact], node: ast.Call
    ) -> Fact:
        """A product that is added to a tensor in place, or written to one that is given."""
        target, factors = (first, args[1:]) if op in _ADDING else (keywords["out"], args)
        low = next((fact for fact in factors if fact.low and REGION in fact.traits), None)
        if low is not None and target.dtype == "float32" and (op in _ADDING or op in _WITH_OUT):
            self._emit(e.DTYPE_CLASH, node, low, how="in-place" if op in _ADDING else "out")
        return target

    def _constructed(self, name: str, args: list[Fact], keywords: dict[str, Fact], node: ast.Call) -> Fact:
        """What a constructor of tensors gives."""
        positions = frozenset({POSITIONS}) if name == "arange" else frozenset()
        zeros = frozenset({ZEROS}) if name in ("zeros", "zeros_like", "new_zeros") else frozenset()
        if "dtype" in keywords:
            dtype = self._named_dtype(node)
            if self._is_short(node):
                positions = frozenset()
            if positions and dtype in ("float16", "bfloat16"):
                return Fact(dtype, frozenset({ROUNDED}), node)
            return Fact(dtype, positions | zeros)
        if name.endswith("_like") or name.startswith("new_"):
            return Fact(args[0].dtype if args else "", zeros)
        if name == "arange":
            return Fact("int", positions if not self._is_short(node) else frozenset())
        module = self.at.state.frame.module
        if "set_default_dtype" in module.identifiers or name in ("tensor", "as_tensor"):
            return NOTHING
        return Fact("float32", zeros)

    @staticmethod
    def _is_short(node: ast.Call) -> bool:
        """Whether positions are so few that every low dtype has them: up to 256."""
        return all(
            isinstance(arg, ast.Constant) and isinstance(arg.value, int) and arg.value <= 256 for arg in node.args
        )

    def _named_dtype(self, node: ast.Call) -> str:
        """The dtype that a call is given by name."""
        for keyword in node.keywords:
            if keyword.arg == "dtype":
                return self._dtype(keyword.value)
        return ""

    def _dtype(self, node: ast.expr) -> str:
        """The dtype that an expression stands for: ``torch.float16``, ``x.dtype``."""
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            fact = self.of(node.value)
            if fact.dtype not in ("", NUMBER):
                return fact.dtype
        name = self._dotted(node)
        if name in ("torch.long", "torch.int64", "torch.int32", "torch.int"):
            return "int"
        return "bool" if name == "torch.bool" else surface.DTYPES.get(name or "", "")

    def _cast(self, op: str, given: Fact, args: list[Fact], node: ast.Call) -> Fact:
        """``x.float()``, ``x.to(...)``, ``x.type_as(y)``."""
        rest = node.args
        dtype = _DTYPES_OF.get(op, "")
        if op == "type_as":
            dtype = args[0].dtype if args else ""
        elif not dtype:
            named = [self._dtype(argument) for argument in (*rest, *(k.value for k in node.keywords))]
            dtype = next((name for name in named if name), "")
            if not dtype:
                other = next((fact.dtype for fact in args if fact.dtype not in ("", NUMBER)), "")
                moves = all(self._is_device(argument) for argument in rest) and not any(
                    k.arg == "dtype" for k in node.keywords
                )
                dtype = other or (given.dtype if moves else "")
        if not dtype:
            return Fact("", given.traits & {POSITIONS})
        low = dtype in ("float16", "bfloat16", HALF)
        if low and POSITIONS in given.traits:
            return Fact(dtype, frozenset({ROUNDED}), node)
        if low == given.low:
            return given._replace(dtype=dtype)
        return Fact(dtype, given.traits & {POSITIONS, ROUNDED, ANGLES, BOUNDED, ZEROS}, given.place)

    def _is_device(self, node: ast.expr) -> bool:
        """Whether what ``to`` is given is a device, by what it is or is called."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (str, int))
        last = (chain(node) or "").rpartition(".")[2]
        called = chain(node.func) if isinstance(node, ast.Call) else None
        return "device" in last or last == "rank" or "device" in (called or "")

    # Epsilons.

    def _number(self, node: ast.expr) -> float | None:
        """The number that an expression is known to be."""
        if not isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
            return None
        value = self._value(node)
        known = isinstance(value, Const) and isinstance(value.value, float)
        return float(value.value) if known else None  # type: ignore[attr-defined]

    def _epsilon(self, fact: Fact, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
        number = self._number(node)
        if number is not None and 0 < number < 1:
            names = {"sum": Words(place), "epsilon": Words(node)}
            self._emit(e.EPSILON, place, fact, value=number, how="added", divides=divides, names=names)

    def _clamped(self, op: str, fact: Fact, node: ast.Call, rest: list[ast.expr]) -> None:
        if op not in ("clamp", "clip", "clamp_min"):
            return
        bound = next((k.value for k in node.keywords if k.arg == "min"), rest[0] if rest else None)
        number = self._number(bound) if bound is not None else None
        if bound is not None and number is not None and 0 < number < 1:
            names = {"sum": Words(node, 60), "epsilon": Words(bound)}
            self._emit(e.EPSILON, node, fact, value=number, how="clamped", divides=False, names=names)

    # Findings.

    def _emit(self, kind: str, node: object, fact: Fact, **facts: Any) -> None:
        """Take note of what low precision does at a place, once."""
        if not isinstance(node, ast.AST) or self.at.state.cur is None:
            return
        at = self.at
        key = (kind, at.state.frame.module.path, node.lineno, node.col_offset, facts.get("how"))  # type: ignore[attr-defined]
        if key in self._told:
            return
        self._told.add(key)
        names = facts.pop("names", {"call": Words(node, 60)})
        facts.update(dtype=fact.dtype, guessed=GUESS in fact.traits)
        self.at.found[key] = Event(kind, at.site(node), None, None, facts, names)


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


def _is_short(loop: ast.AST | None) -> bool:
    """Whether a loop is known to have few turns."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return not isinstance(loop, ast.While)
    over = loop.iter
    if isinstance(over, ast.Call) and chain(over.func) == "range" and len(over.args) == 1:
        return (
            isinstance(over.args[0], ast.Constant) and isinstance(over.args[0].value, int) and over.args[0].value < 64
        )
    return isinstance(over, (ast.Tuple, ast.List))


_DTYPES = frozenset(("float16", "bfloat16"))
#: Identifiers by which a tensor may be made low without a region.
_CASTS = frozenset(("float16", "half", "bfloat16"))
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

_HANDLERS: dict[type[ast.expr], Callable[..., Fact]] = {
    ast.Constant: Precision._constant,
    ast.Name: Precision._name,
    ast.Attribute: Precision._attribute,
    ast.Subscript: Precision._subscript,
    ast.IfExp: Precision._if_expression,
    ast.Compare: Precision._compare,
    ast.UnaryOp: Precision._unary,
    ast.Call: Precision._call,
}


def precision_of(at: Interpreter) -> Precision:
    """What reads the dtypes of the file that the interpreter reads."""
    notes = at.of_file(_Readers)
    if not notes:
        notes.append(Precision(at))
    return notes[0]


class _Readers(list[Precision]):
    """The one reader of dtypes of a file."""


def _read_statement(at: Interpreter, statement: ast.stmt) -> None:
    precision_of(at).read(statement)


def _bind(at: Interpreter, frame: Frame, func: FunctionValue, node: ast.AST) -> None:
    precision_of(at).bind(frame, func, node)


def register(handlers: Handlers) -> None:
    handlers.statement_read.append(_read_statement)
    handlers.followed.append(_bind)
