"""Expressions: what they evaluate to, and what conditions they ask. What a call does is left to :mod:`.calls`."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.words import Words, chain
from .conditions import Formula, both, either, literals, negate
from .counters import Counters, compute
from .imports import BUILTINS
from .microbatches import draws
from .statements import is_version_guard
from .values import (
    EMPTY,
    NONE,
    Choice,
    ClassValue,
    Const,
    FunctionValue,
    Grad,
    Instance,
    Mapping,
    Named,
    Opaque,
    Params,
    Ref,
    ScaleValue,
    Sequence,
    StateDict,
    SuperValue,
    Tensor,
    Truth,
    Value,
    merge_into,
)

#: Calls whose answer is another each time they are asked, a number or an object.
IMPURE = frozenset(
    "rand randn randint random uniform choice next time perf_counter pop popleft get_nowait sample "
    "from_pretrained".split()
)

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


#: Containers within containers, and items of one, up to which two that hold the same are taken for equal.
KEYED, KEYED_ITEMS = 3, 16
#: Elements above which a literal is data, and not read.
TABLE = 64
#: Elements up to which a comprehension over scalers and optimizers is read one by one.
FEW = 16


class Expressions(Counters):
    """Reads expressions."""

    @abstractmethod
    def call(self, node: ast.Call) -> Value: ...

    @abstractmethod
    def on_each(self, value: Value, act: Callable[[Value], Value]) -> Value: ...

    @abstractmethod
    def unknown(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value: ...

    @abstractmethod
    def hand_off(self, given: list[Value], node: ast.AST) -> None: ...

    @abstractmethod
    def receiver_words(self, node: ast.AST) -> object: ...

    @abstractmethod
    def loss_arithmetic(self, op: str, left: Value, right: Value, node: ast.AST) -> Value | None: ...

    @abstractmethod
    def used_engine(self, framework: str, value: Opaque, text: str, node: ast.AST) -> Value: ...

    @abstractmethod
    def divide(self, made: Tensor | Opaque, value: Tensor | Opaque, number: Value, node: ast.AST) -> None: ...

    @abstractmethod
    def multiply(self, made: Tensor | Opaque, value: Tensor | Opaque, number: Value) -> None: ...

    @abstractmethod
    def grad_written(self, target: Grad, value: Value, node: ast.AST) -> None: ...

    @abstractmethod
    def rate_divided(self, params: Params) -> None: ...

    @abstractmethod
    def grad_used(self, grad: Grad, node: ast.AST) -> Event | None: ...

    @abstractmethod
    def attribute(self, receiver: Value, name: str, node: ast.AST) -> Value: ...

    def words(self, node: ast.AST) -> Words:
        """The user's own words for an expression; for a call, those of what is called."""
        return Words(node.func if isinstance(node, ast.Call) else node)

    def evaluate(self, node: ast.expr) -> Value:
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child)
            return self.fresh(node)
        value: Value = handler(self, node)
        return value

    # Names and attributes.

    def _constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def _name(self, node: ast.Name) -> Value:
        value = self.look_up(node.id)
        if value is None:
            value = self._unbound(node.id)
        return self.recognise(value, node)

    def _unbound(self, name: str) -> Value:
        module = self.state.frame.module
        if name in surface.BARE and name not in module.named:
            return Named(surface.BARE[name])
        if name in BUILTINS:
            return Named(f"builtins.{name}")
        return self.opaque(("global", module.path, name), name)

    def recognise(self, value: Value, node: ast.expr) -> Value:
        """An unknown value that this file uses as a scaler, an optimizer or a module is one."""
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if last and last not in self.state.frame.module.used:
            return value
        if isinstance(value, Named) and not value.name.startswith(("torch.", "builtins.")):
            value = self._imported_thing(value, node)
        if not isinstance(value, Opaque):
            return value
        text = chain(node)
        role = self.uses.get(text) if text else None
        if role is None or text is None:
            return value
        if role == "module" and (value.key, "parameters") in self.state.heap:
            # Its parameters are what it was given under that name, not what a module has.
            return value
        if role in FRAMEWORKS:
            return self.used_engine(role, value, text, node)
        thing = self.thing(("used", value.key), role, text, self.site(node))
        return Ref(thing, True, value)

    def _imported_thing(self, value: Named, node: ast.expr) -> Value:
        """What another file makes, where this one uses it as a scaler, an optimizer or a module."""
        text = chain(node)
        return self.opaque(("imported", value.name), text) if text and text in self.uses else value

    def is_stepped(self, target: ast.expr) -> bool:
        """Whether this file uses what is assigned as an optimizer."""
        return self.uses.get(chain(target) or "") == "optimizer"

    def found(self, target: ast.expr, value: Opaque) -> None:
        """An optimizer that code which cannot be read has made, or has found."""
        made = self.recognise(value, target)
        if isinstance(made, Ref) and made.role == "optimizer":
            self.emit(e.OPTIMIZER_NEW, target, made.thing.key, found=True)

    def _attribute(self, node: ast.Attribute) -> Value:
        receiver = self.evaluate(node.value)
        return self.recognise(self.attribute(receiver, node.attr, node), node)

    def structural(self, word: str, parts: tuple[Value, ...], text: object, *extra: object) -> Opaque:
        """The unknown value that an operation on values gives: the same for the same operation on the same values."""
        loops: frozenset[int] = EMPTY
        readings: tuple[Event, ...] = ()
        graded = False
        for part in parts:
            turning = part.loops or loops_of(part)
            if turning is not EMPTY:
                loops = turning if loops is EMPTY else loops | turning
            if isinstance(part, Opaque):
                graded = graded or part.graded
            readings += readings_of(part)
        made = self.opaque((word, *extra, tuple([self.identity(part) for part in parts])), text, loops)
        if readings:
            made.readings = tuple(dict.fromkeys((*made.readings, *readings)))
        made.graded = graded
        return made

    def identity(self, value: Value, depth: int = 0) -> object:
        """A key that equal values share."""
        if isinstance(value, Opaque):
            return value.key
        if isinstance(value, Const):
            return ("const", repr(value.value))
        if isinstance(value, Named):
            return value.name
        if isinstance(value, Ref):
            return ("thing", value.thing.key)
        if isinstance(value, Instance):
            return ("instance", value.key)
        if isinstance(value, Truth):
            return ("truth", value.formula)
        if depth < KEYED:
            if isinstance(value, Choice):
                return ("either", *[(formula, self.identity(each, depth + 1)) for formula, each in value.options])
            if isinstance(value, Sequence) and not value.open and len(value.items) <= KEYED_ITEMS:
                return ("items", *[self.identity(each, depth + 1) for each in value.items])
            if isinstance(value, Mapping) and not value.open and len(value.items) <= KEYED_ITEMS:
                return ("entries", *[(key, self.identity(each, depth + 1)) for key, each in value.items.items()])
        return self.number(value)

    def _subscript(self, node: ast.Subscript) -> Value:
        receiver = self.evaluate(node.value)
        index = self.evaluate(node.slice)
        return self.recognise(self.item(receiver, index, node), node)

    def item(self, receiver: Value, index: Value, node: ast.AST) -> Value:
        if isinstance(receiver, Tensor):
            part = receiver.copy()
            part.vague = not receiver.is_loss
            return part
        if isinstance(receiver, Params) and receiver.groups and _is_key(index):
            return self.structural("item", (receiver, index), _text(node) if isinstance(node, ast.expr) else "")
        if isinstance(receiver, Params):
            return Params(receiver.modules, receiver.optimizers, one=not receiver.groups, groups=False)
        place = index.value if isinstance(index, Const) else None
        if (
            isinstance(receiver, Sequence)
            and isinstance(place, int)
            and -len(receiver.items) <= place < len(receiver.items)
        ):
            return receiver.items[place]
        if isinstance(receiver, Mapping) and isinstance(index, Const):
            found = receiver.items.get(index.value)
            if found is not None:
                return found
        if isinstance(receiver, Sequence) and len(receiver.items) == 1:
            return receiver.items[0]
        text = _text(node) if isinstance(node, ast.expr) else ""
        made = self.structural("item", (receiver, index), text)
        made.entry = entry_of(receiver, index)
        return made

    # Compound values.

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        if len(node.elts) > TABLE:
            return self.fresh(node, "table")
        items = [self.evaluate(element) for element in node.elts]
        return Sequence(items, open=any(isinstance(element, ast.Starred) for element in node.elts))

    def _starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    def _dict(self, node: ast.Dict) -> Value:
        if len(node.values) > TABLE:
            return self.fresh(node, "table")
        made = Mapping({})
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.evaluate(item)
            if key is None:
                if isinstance(value, Mapping):
                    made.items.update(value.items)
                    made.open = made.open or value.open
                else:
                    made.open = True
            else:
                known = self.evaluate(key)
                made.items[known.value if isinstance(known, Const) else ("?", id(key))] = value
        return made

    def _joined_string(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.evaluate(part.value)
                if isinstance(value, Grad):
                    self.grad_used(value, part.value)
        return self.fresh(node, "text")

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        """A comprehension is read as one turn of its loops."""
        saved = dict(self.state.frame.vars)
        items: list[Value] | None = None
        pieces = False
        for generator in node.generators:
            iterable = self.evaluate(generator.iter)
            items = self._each_thing(iterable) if len(node.generators) == 1 and not generator.ifs else None
            if items is not None:
                break
            self.assign(generator.target, self.elements(iterable, generator.iter))
            for test in generator.ifs:
                self.condition(test)
            pieces = pieces or iterable.pieces or (_is_range(iterable) and draws((node.elt,)))
        if items is not None:
            elements = []
            for item in items:
                self.assign(node.generators[0].target, item)
                elements.append(self.evaluate(node.elt))
            self.state.frame.vars = saved
            return Sequence(elements)
        around = self.state.turns
        self.state.turns = (*around, -1 - len(around))
        element = self.evaluate(node.elt)
        self.state.turns = around
        self.state.frame.vars = saved
        if isinstance(element, Params) and element.one:
            return Params(element.modules, element.optimizers)
        if isinstance(element, Grad):
            return element
        made = Sequence([element], open=True)
        made.pieces = pieces
        return made

    def _dict_comprehension(self, node: ast.DictComp) -> Value:
        first = node.generators[0]
        iterable = self.evaluate(first.iter)
        items = self._each_thing(iterable) if len(node.generators) == 1 else None
        if items is None and isinstance(iterable, StateDict):
            # A copy, entry by entry.
            return iterable
        saved = dict(self.state.frame.vars)
        made = Mapping({}, open=items is None)
        for item in [None] if items is None else items:
            if item is not None:
                self.assign(first.target, item)
                if any(self.condition(test) is False for test in first.ifs):
                    continue
            else:
                for generator in node.generators:
                    over = iterable if generator is first else self.evaluate(generator.iter)
                    self.assign(generator.target, self.elements(over, generator.iter))
            key, value = self.evaluate(node.key), self.evaluate(node.value)
            made.items[key.value if isinstance(key, Const) else ("?", id(node.key))] = value
        self.state.frame.vars = saved
        return made

    @staticmethod
    def _each_thing(iterable: Value) -> list[Value] | None:
        """The items of a short sequence that holds scalers, optimizers or states: each is worth reading by itself."""
        if not isinstance(iterable, Sequence) or iterable.open or len(iterable.items) > FEW:
            return None
        return iterable.items if any(_holds_state(item) for item in iterable.items) else None

    def each_of(self, value: Value, node: ast.expr) -> Value:
        """The one element that stands for all: the same in every loop over the same value."""
        if isinstance(value, Params):
            return self.elements(value, node)
        if isinstance(value, Sequence):
            return value.items[0] if len(value.items) == 1 else self.elements(value, node)
        return self.structural("each of", (value,), _text(node))

    def elements(self, value: Value, node: ast.expr) -> Value:
        """What a loop over a value is given at each turn."""
        if isinstance(value, Params):
            if value.groups:
                return Params(value.modules, value.optimizers, groups=True)
            return Params(value.modules, value.optimizers, one=True)
        if isinstance(value, (Tensor, Grad)):
            return value
        if isinstance(value, Sequence) and value.items and not isinstance(value.items[0], Const):
            parts = [part for part in value.items if isinstance(part, Tensor)]
            if len(parts) == len(value.items):
                return Tensor.merge(parts)
            if len(value.items) == 1:
                return value.items[0]
        if isinstance(value, Opaque) and value.iterates == "enumerate":
            index = self.fresh(node, "index")
            index.counter = index.index = True
            index.first = value.first
            inner = self._enumerated.get(value.key)
            return Sequence([index, self.elements(inner, node) if inner is not None else self.fresh(node, "element")])
        made = self.fresh(node, "element")
        made.graded = isinstance(value, Opaque) and value.graded
        if isinstance(value, Opaque) and value.iterates == "range":
            made.counter = made.index = True
            made.first = value.first
        return made

    _enumerated: dict[int, Value]

    def _lambda(self, node: ast.Lambda) -> Value:
        self.captured.append(self.state.frame)
        return FunctionValue(self.state.frame.module.functions[node], self.state.frame)

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _await(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield) -> Value:
        value = self.evaluate(node.value) if node.value is not None else NONE
        if any(loop.pieces and loop.frame is self.state.frame for loop in self.state.loops):
            self.state.frame.yields_pieces = True
        if self.state.frame.on_yield is not None:
            self.state.frame.on_yield(value)
        return self.fresh(node, "sent")

    def _if_expression(self, node: ast.IfExp) -> Value:
        formula = self.condition(node.test)
        values: list[Value] = [NONE, NONE]

        def then() -> None:
            values[0] = self.evaluate(node.body)

        def otherwise() -> None:
            values[1] = self.evaluate(node.orelse)

        shim = is_version_guard(node.test)
        self.state.shims += shim
        self.fork(formula, then, otherwise)
        self.state.shims -= shim
        if isinstance(formula, bool):
            return values[0] if formula else values[1]
        return self.unite(formula, values[0], values[1], "ifexp")

    def _bool_operation(self, node: ast.BoolOp) -> Value:
        # "a or b" and "a and b" are used as conditions nearly always; as values where a side is None.
        values = [self.evaluate(part) for part in node.values]
        if len(values) == 2 and not all(isinstance(v, (Truth, Opaque)) for v in values):
            first = self.truth(values[0], _text(node.values[0]))
            if isinstance(node.op, ast.Or):
                return self.unite(first, values[0], values[1], f"or {node.lineno}:{node.col_offset}")
        formulas = [self.truth(v, _text(n)) for v, n in zip(values, node.values, strict=True)]
        combine = both if isinstance(node.op, ast.And) else either
        loops: frozenset[int] = frozenset()
        for value in values:
            loops |= value.loops
        return Truth(self.short(combine(*formulas)), loops)

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Truth(negate(self.condition(node.operand)), self.turning())
        value = self.evaluate(node.operand)
        if isinstance(value, Const) and isinstance(node.op, ast.USub) and isinstance(value.value, (int, float)):
            return Const(-value.value)
        if isinstance(value, (Tensor, Grad)):
            return value
        made = self.structural("unary", (value,), _text(node), type(node.op).__name__)
        made.divided = value.divided
        made.compares = isinstance(value, Opaque) and value.compares
        return made

    def _compare(self, node: ast.Compare) -> Value:
        formula = self.condition(node)
        return Const(formula) if isinstance(formula, bool) else Truth(formula, self.turning())

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        op = _OPERATORS.get(type(node.op), "?")
        if op == "/" and isinstance(left, Grad) and readings_of(right):
            # A gradient over its norm: the scale cancels.
            undo(right)
            return left
        for side, child in ((left, node.left), (right, node.right)):
            if isinstance(side, Grad):
                self.grad_used(side, child)
        return self.operate(op, left, right, node)

    def operate(self, op: str, left: Value, right: Value, node: ast.AST) -> Value:
        if isinstance(left, Const) and isinstance(right, Const):
            known = compute(op, left.value, right.value) or self.fresh(node)
            known.divided = op == "/"
            return known
        if op in ("&", "|") and isinstance(left, Truth) and isinstance(right, Truth):
            combine = both if op == "&" else either
            return Truth(combine(left.formula, right.formula), left.loops | right.loops)
        special = self.loss_arithmetic(op, left, right, node)
        if special is not None:
            return special
        if isinstance(left, Sequence) and isinstance(right, Sequence) and op == "+":
            return Sequence([*left.items, *right.items], open=left.open or right.open)
        if op == "|" and (isinstance(left, Mapping) or isinstance(right, Mapping)):
            merged = Mapping({})
            for side in (left, right):
                merge_into(merged, side)
            return merged
        if isinstance(left, Params) or isinstance(right, Params):
            return left if isinstance(left, Params) else right
        text = _text(node) if isinstance(node, ast.expr) else op
        made = self.structural("binary", (left, right), text, op)
        counted = left if isinstance(left, Opaque) and left.counter else right
        other = right if counted is left else left
        if isinstance(counted, Opaque) and counted.counter:
            made.counter = True
            if op in ("+", "-") and isinstance(other, Const) and isinstance(other.value, int):
                made.base = counted.base
                made.offset = counted.offset + (other.value if op == "+" else -other.value)
                made.first, made.index = counted.first, counted.index
        if op == "%":
            made.remainder = left, right
        made.divided = made.divided or _averages(op, left, right)
        if op in ("+", "-", "*", "/"):
            made.compares = any(isinstance(side, Opaque) and side.compares for side in (left, right))
        if op == "/" and isinstance(left, Opaque) and not made.divisors:
            self.divide(made, left, right, node)
        elif op == "*" and isinstance(left, Opaque):
            self.multiply(made, left, right)
        return made

    def augment(self, node: ast.AugAssign) -> None:
        target = node.target
        left = self.evaluate(_as_load(target))
        right = self.evaluate(node.value)
        op = _OPERATORS.get(type(node.op), "?")
        if isinstance(left, Grad):
            self.grad_written(left, self.operate(op, left, right, node), node)
            return
        if isinstance(left, Opaque) and left.graded and op in ("/", "*"):
            self.emit(e.GRAD_NORMALISE, node, None, None, owners=None)
        if isinstance(left, Sequence) and op == "+":
            left.items.extend(right.items if isinstance(right, Sequence) else [right])
            return
        if isinstance(left, Mapping) and op == "|":
            merge_into(left, right)
            return
        value = self.operate(op, left, right, node)
        # A number that an object holds is another one in the next call.
        kept = isinstance(target, ast.Attribute) and isinstance(value, Const)
        if (isinstance(value, Opaque) or kept) and isinstance(left, (Opaque, Const)) and op in ("+", "-"):
            made = self.fresh(node, _text(target))
            # A number that grows by a fixed step in a loop counts its turns, or what they hold.
            by_one = isinstance(right, Const) and isinstance(right.value, int)
            made.counter = bool(self.state.loops) and (by_one or (isinstance(left, Opaque) and left.counter))
            made.divided, made.compares = value.divided, isinstance(value, Opaque) and value.compares
            value = made
        if value.divided and isinstance(target, ast.Subscript):
            owner, option = self.evaluate(target.value), self.evaluate(target.slice)
            if isinstance(owner, Params) and owner.groups and isinstance(option, Const) and option.value == "lr":
                self.rate_divided(owner)
        self.assign(target, value)

    # Conditions.

    def condition(self, node: ast.expr) -> Formula:
        """The formula of a test."""
        if isinstance(node, ast.BoolOp):
            combine = both if isinstance(node.op, ast.And) else either
            return combine(*(self.condition(part) for part in node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negate(self.condition(node.operand))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        value = self.evaluate(node)
        return self.asked(value, node)

    def _comparison(self, node: ast.Compare) -> Formula:
        values = [self.evaluate(node.left), *(self.evaluate(right) for right in node.comparators)]
        nodes = [node.left, *node.comparators]
        formulas = []
        for i, op in enumerate(node.ops):
            word = _OPERATORS.get(type(op), "?")
            formula = self._compared(word, values[i], values[i + 1], nodes[i], nodes[i + 1], node)
            if isinstance(values[i], ScaleValue) or isinstance(values[i + 1], ScaleValue):
                for key, _ in literals(formula):
                    self.graph.tests[key].of_scale = True
            formulas.append(formula)
        return both(*formulas)

    def _compared(
        self, op: str, left: Value, right: Value, left_node: ast.expr, right_node: ast.expr, node: ast.Compare
    ) -> Formula:
        if op in ("is", "is not", "==", "!="):
            negative = op in ("is not", "!=")
            for value, other, side in ((left, right, left_node), (right, left, right_node)):
                if not isinstance(other, Const) or isinstance(value, Const):
                    continue
                if other.value is None:
                    formula = self.is_none(value, _text(side), node)
                    return negate(formula) if negative else formula
                if isinstance(other.value, bool) and not isinstance(value, Choice):
                    # Asked of a flag, "is True" and "== True" are the flag itself.
                    formula = self.truth(value, _text(side), node)
                    return negate(formula) if negative == other.value else formula
            formula = self.equal(left, right, node)
            return negate(formula) if negative else formula
        if isinstance(left, Const) and isinstance(right, Const):
            known = compute(op, left.value, right.value)
            if isinstance(known, Const):
                return bool(known.value)
        if op in ("<", "<=", ">", ">="):
            return self.ordered(op, left, right, node)
        question = (op.removeprefix("not "), self.identity(left), self.identity(right))
        formula = self.ask(question, _text(node), left.loops | right.loops, node)
        return negate(formula) if op == "not in" else formula

    def is_equal(self, value: Value, other: object, node: ast.AST) -> Formula:
        """The condition under which a value equals a constant: the same question as a comparison of the two."""
        if isinstance(value, Const):
            return bool(value.value == other)
        if isinstance(value, Choice):
            return either(*(both(formula, self.is_equal(v, other, node)) for formula, v in value.options))
        pair = sorted((repr(self.identity(value)), repr(self.identity(Const(other)))))
        words = value.words if isinstance(value, Opaque) else ""
        return self.ask(("equal", *pair), _Equals(words, other), value.loops, node)

    # Targets.

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.name_it(value, target.id)
            self.state.frame.vars[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)

    def name_it(self, value: Value, name: str) -> None:
        """A thing goes by the first name it is given; an autocast context that has a name may be entered again."""
        if isinstance(value, Ref):
            if not value.thing.name:
                value.thing.name = name
            if value.role == "autocast":
                value.thing.facts["stored"] = True
        elif isinstance(value, Choice):
            for _, option in value.options:
                self.name_it(option, name)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value) -> None:
        if isinstance(value, Sequence) and not value.open and len(value.items) == len(target.elts):
            for element, item in zip(target.elts, value.items, strict=True):
                self.assign(element, item)
            return
        if isinstance(value, Sequence) and len(value.items) == 1 and isinstance(value.items[0], Tensor):
            # A comprehension: each of its items is like the one.
            for element in target.elts:
                self.assign(element, value.items[0].copy())
            return
        for i, element in enumerate(target.elts):
            part: Value
            if isinstance(value, Tensor) and not self.is_stepped(element):
                part = value.copy()
                part.vague = not value.is_loss
            elif isinstance(value, (Params, Grad)):
                part = value if isinstance(element, ast.Name) else self.fresh(element)
            else:
                part = self.structural("part", (value,), _text(element), i)
                part.loops |= self.turning()
            self.assign(element, part)

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        receiver = self.evaluate(target.value)
        if isinstance(value, Ref):
            # Other methods may do to it what this one leaves undone.
            value.thing.facts["shared"] = True
        if target.attr == "grad" and isinstance(receiver, Params):
            self.grad_written(Grad(receiver), value, target)
            return
        if target.attr == "data" and isinstance(receiver, Params):
            self.emit(e.PARAM_WRITE, target, None, None)
            return
        if isinstance(receiver, Instance):
            self.name_it(value, str(_text(target)))
            self._contain(receiver, value)
            if isinstance(value, Const) and value.value is None and target.attr in receiver.cls.changed:
                # Some other method gives it its value.
                self.state.heap.pop((receiver.key, target.attr), None)
                self.written.append((receiver.key, target.attr))
            else:
                self.store(receiver.key, target.attr, self._stored(receiver, target.attr, value))
            return
        if target.attr == "grad" and value.divided:
            self.emit(e.GRAD_NORMALISE, target, None, None, owners=None)
        key = self.identity(receiver)
        if isinstance(key, int):
            self.name_it(value, str(_text(target)))
            self.store(key, target.attr, value)

    @staticmethod
    def _contain(receiver: Instance, value: Value) -> None:
        """A module that is an attribute of a module is part of it."""
        inner = value.thing if isinstance(value, (Ref, Instance)) else None
        if receiver.thing is not None and inner is not None and inner.role == "module":
            receiver.thing.facts.setdefault("parts", set()).add(inner.key)

    def _stored(self, receiver: Instance, name: str, value: Value) -> Value:
        """What an attribute holds: a number that other methods change too is not known by its first value."""
        if not isinstance(value, Const) or isinstance(value.value, str):
            return value
        changed, counted = receiver.cls.changed, receiver.cls.counted
        if name not in changed:
            return value
        made = self.opaque(("attribute of", receiver.key, name), name, self.turning())
        made.counter = name in counted
        return made

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        receiver = self.evaluate(target.value)
        index = self.evaluate(target.slice)
        if isinstance(receiver, Mapping):
            receiver.items[index.value if isinstance(index, Const) else ("?", id(target.slice))] = value
            self.name_it(value, str(_text(target)))

    def _slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.evaluate(part)
        return self.fresh(node, "slice")


def entry_of(receiver: Value, index: Value) -> tuple[int, str | None] | None:
    """Which item of which unknown value an index leads to."""
    if not isinstance(receiver, Opaque):
        return None
    return receiver.key, index.value if isinstance(index, Const) and isinstance(index.value, str) else None


def loops_of(value: Value) -> frozenset[int]:
    """The loops in which something is made anew that a list or tuple holds."""
    loops = value.loops
    if isinstance(value, Sequence):
        for item in value.items:
            loops = loops | item.loops if item.loops else loops
    return loops


def readings_of(value: Value) -> tuple[Event, ...]:
    """The events that read the gradients from which a value was computed."""
    if isinstance(value, Opaque):
        return value.readings
    if isinstance(value, Sequence):
        return tuple(reading for item in value.items for reading in readings_of(item))
    if isinstance(value, Choice):
        return tuple(reading for _, option in value.options for reading in readings_of(option))
    return ()


def _holds_state(value: Value) -> bool:
    """Whether a value is a scaler, an optimizer or a state, or a pair with one."""
    if isinstance(value, Sequence):
        return any(_holds_state(item) for item in value.items)
    return isinstance(value, StateDict) or (isinstance(value, Ref) and value.role in ("scaler", "optimizer"))


def undo(value: Value) -> None:
    """What was computed from scaled gradients is divided by the scale, or by its like: it was read as it should be."""
    for event in readings_of(value):
        event.facts["undone"] = True


class _Equals:
    """The words of a question whether something equals a constant."""

    __slots__ = ("_of", "_other")

    def __init__(self, of: object, other: object) -> None:
        self._of = of
        self._other = other

    def __str__(self) -> str:
        return f"{self._of} == {self._other!r}"


def _as_load(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment, as the expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def _averages(op: str, left: Value, right: Value) -> bool:
    """Whether a number may have been divided by how many there are of it."""
    if op == "/":
        return True
    if op == "*":
        return left.divided or right.divided
    sides = [side for side in (left, right) if not isinstance(side, Const)]
    return op in ("+", "-") and all(side.divided for side in sides)


def _is_range(value: Value) -> bool:
    return isinstance(value, Opaque) and value.iterates == "range"


def _is_key(index: Value) -> bool:
    """Whether a subscript of a parameter group asks for an option: its learning rate."""
    return isinstance(index, Const) and isinstance(index.value, str) and index.value != "params"


def _text(node: ast.AST) -> Words:
    return Words(node, 80)


_EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.Set: Expressions._sequence,
    ast.Starred: Expressions._starred,
    ast.Dict: Expressions._dict,
    ast.JoinedStr: Expressions._joined_string,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._dict_comprehension,
    ast.Lambda: Expressions._lambda,
    ast.NamedExpr: Expressions._walrus,
    ast.Await: Expressions._await,
    ast.Yield: Expressions._yield,
    ast.YieldFrom: Expressions._await,
    ast.IfExp: Expressions._if_expression,
    ast.BoolOp: Expressions._bool_operation,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BinOp: Expressions._binary,
    ast.Slice: Expressions._slice,
    ast.Call: lambda self, node: self.call(node),
}

__all__ = ["ClassValue", "Expressions", "FunctionValue", "ScaleValue", "SuperValue"]
