"""Expressions: what they evaluate to, and what conditions they ask. What a call does is left to :mod:`.calls`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import reduce

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event
from ...protocol.words import chain
from ..project.module import item_name
from ..project.syntax import walk
from .comparisons import Lengths, Ranges
from .conditions import Formula, both, either, literals, negate
from .counters import asked, compute, equal, ordered
from .dtypes import NOTHING
from .forks import fork, join_values, still_open
from .identity import divide, multiply, structural
from .imports import BUILTINS, look_up
from .interpreter import Handlers, Interpreter, first_answer
from .microbatches import draws
from .truth import is_none, truth
from .values import (
    EMPTY,
    NONE,
    UNREAD,
    Choice,
    Const,
    FunctionValue,
    Generator,
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
    Tensor,
    Truth,
    Value,
    merge_into,
    past_of,
)
from .wording import last_name, shortened, spelled, wording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
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
#: What is asked where one of these operators is negated.
_NEGATIVE = {"is not": "is", "!=": "==", "not in": "in"}
_COMBINED: dict[type[ast.AST], Callable[..., Formula]] = {ast.And: both, ast.Or: either}
#: Attributes, methods and functions that say how much there is of some data.
EXTENTS = frozenset("shape size numel nelement len sum count_nonzero".split())
#: Elements above which a literal is data, and not read.
TABLE = 64
#: Elements up to which a comprehension over scalers and optimizers is read one by one.
FEW = 16


def _constant(at: Interpreter, node: ast.Constant) -> Value:
    return Const(node.value)


def _name(at: Interpreter, node: ast.Name) -> Value:
    value = look_up(at, node.id)
    if value is None:
        value = _unbound(at, node.id)
    return _recognise(at, value, node, node.id)


def _unbound(at: Interpreter, name: str) -> Value:
    module = at.state.frame.module
    if name in surface.BARE and name not in module.named:
        return Named(surface.BARE[name], bare=True)
    if name in BUILTINS:
        return Named(f"builtins.{name}")
    return at.opaque(("global", module.path, name), name)


def _recognise(at: Interpreter, value: Value, node: ast.expr, last: str) -> Value:
    """An unknown value that this file uses as a scaler, an optimizer or a module is one; ``last`` is its last name."""
    if last and last not in at.state.frame.module.used:
        return value
    if isinstance(value, Named) and not value.name.startswith(("torch.", "builtins.")):
        value = _imported_object(at, value, node)
    if isinstance(value, Choice):
        options = [(formula, _recognise(at, option, node, last)) for formula, option in value.options]
        known = any(new is not old for (_, new), (_, old) in zip(options, value.options, strict=True))
        return Choice(options) if known else value
    return _by_its_use(at, value, node) if isinstance(value, Opaque) else value


def _by_its_use(at: Interpreter, value: Opaque, node: ast.expr) -> Value:
    text, role = chain(node) or "", use_of(at, node)
    # The parameters of a module are what it was given under that name, if it was, not what a module has.
    if role is None or (role == "module" and (value.key, "parameters") in at.state.heap):
        return value
    maker = at.handlers.recognised.get(role)
    if maker is not None:
        return maker(at, role, value, text, node)
    thing = at.thing(("used", value.key), role, text, at.site(node))
    return Ref(thing, True, value)


def _imported_object(at: Interpreter, value: Named, node: ast.expr) -> Value:
    """What another file makes, where this one uses it as a scaler, an optimizer or a module."""
    text = chain(node)
    return at.opaque(("imported", value.name), text) if text and text in at.state.frame.module.uses else value


def use_of(at: Interpreter, node: ast.expr) -> str | None:
    """What this file uses an expression as: a scaler, an optimizer, a module, a function; None where it does not."""
    return at.state.frame.module.uses.get(chain(node) or "")


def is_stepped(at: Interpreter, target: ast.expr) -> bool:
    """Whether this file uses what is assigned as an optimizer."""
    return use_of(at, target) == "optimizer"


def found_optimizer(at: Interpreter, target: ast.expr, value: Opaque) -> None:
    """An optimizer that code which cannot be read has made, or has found."""
    made = _recognise(at, value, target, last_name(target))
    if made.role == "optimizer" and made.thing is not None:
        at.emit(e.OPTIMIZER_NEW, target, made.thing.key, found=True)


def _attribute(at: Interpreter, node: ast.Attribute) -> Value:
    receiver = at.evaluate(node.value)
    return _recognise(at, attribute(at, receiver, node.attr, node), node, node.attr)


def attribute(at: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value:
    """What an attribute of a value is."""
    handler = at.handlers.attributes.get(receiver.kind)
    found = handler(at, receiver, name, node) if handler is not None else None
    key = receiver.identity(at.number) if found is None or isinstance(receiver, Tensor) else None
    stored = at.state.heap.get((key, name)) if isinstance(key, int) else None
    if found is not None:
        # What a model gives may be an object with a loss in it, which was written to.
        return stored if isinstance(stored, Tensor) else found
    if stored is not None:
        return stored
    text = wording(node) if isinstance(node, ast.expr) else name
    made = structural(at, "attribute", (receiver,), text, name)
    made.parameter = receiver.parameter
    made.graded = made.graded or name == "grad"
    made.compares = receiver.called
    made.extent = name in EXTENTS
    return made


def _subscript(at: Interpreter, node: ast.Subscript) -> Value:
    receiver = at.evaluate(node.value)
    index = at.evaluate(node.slice)
    return _recognise(at, item(at, receiver, index, node), node, "")


def item(at: Interpreter, receiver: Value, index: Value, node: ast.AST) -> Value:
    place = _place_of(at, receiver, index)
    written = at.state.heap.get(place) if place is not None else None
    if written is not None:
        return written
    fields = _in_order(at, receiver, node) if isinstance(index.value, int) else None
    known = (receiver if fields is None else fields).item(index)
    if known is not None:
        return known
    made = structural(at, "item", (receiver, index), spelled(node))
    if isinstance(receiver, Mapping):
        # Somebody else has put it there, or it was put there under a key that is not known.
        made = made.made(past_of(held for key, held in receiver.items.items() if isinstance(key, tuple)))
    made.entry = entry_of(receiver, index)
    made.extent = receiver.extent
    return made


def _in_order(at: Interpreter, value: Value, node: ast.AST) -> Sequence | None:
    """What a named tuple holds, in the order in which its class declares it."""
    if not isinstance(value, Instance) or not value.cls.is_record() or "__iter__" in value.cls.methods:
        return None
    return Sequence([attribute(at, value, name, node) for name in value.cls.fields()])


def _place_of(at: Interpreter, receiver: Value, index: Value) -> tuple[int, str] | None:
    """Where what is written into an item of something that is not known, by a name, is kept."""
    if not isinstance(index.value, str) or receiver.kind not in ("unknown", "tensor"):
        return None
    key = receiver.identity(at.number)
    return (key, item_name(index.value)) if isinstance(key, int) else None


def _sequence(at: Interpreter, node: ast.Tuple | ast.List | ast.Set) -> Value:
    if len(node.elts) > TABLE:
        return at.fresh(node, "table")
    items = [at.evaluate(element) for element in node.elts]
    return Sequence(items, open=any(isinstance(element, ast.Starred) for element in node.elts))


def _dict(at: Interpreter, node: ast.Dict) -> Value:
    if len(node.values) > TABLE:
        return at.fresh(node, "table")
    made = Mapping({})
    for key, item in zip(node.keys, node.values, strict=True):
        value = at.evaluate(item)
        if key is not None:
            made.items[_key(at.evaluate(key), key)] = value
        else:
            merge_into(made, value)
    return made


def _key(value: Value, node: ast.AST) -> object:
    """The key of an entry in a dict: one that is not known is like no other."""
    return value.value if value.value is not UNREAD else ("?", id(node))


def _joined_string(at: Interpreter, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = at.evaluate(part.value)
            _use(at, value, part.value)
    made = at.fresh(node, "text")
    if node.values and isinstance(node.values[0], ast.Constant):
        made.head = str(node.values[0].value)
    return made


def _comprehension(at: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    """A comprehension is read as one turn of its loops."""
    saved = dict(at.state.frame.vars)
    first = node.generators[0]
    iterable = gone_over(at.evaluate(first.iter))
    unpacks = isinstance(node.elt, ast.Starred)
    items = _each_object(iterable) if len(node.generators) == 1 and not unpacks else None
    if items is not None and first.ifs:
        items = _left(at, first, items)
    made = _turn(at, node, iterable) if items is None else Sequence([_given(at, first, i, node.elt) for i in items])
    at.state.frame.vars = saved
    return made


def _left(at: Interpreter, generator: ast.comprehension, items: list[Value]) -> list[Value] | None:
    """The items that the tests of a comprehension leave, None where it is not known which these are."""
    answers: list[tuple[Value, Formula]] = []

    def ask() -> None:
        for item in items:
            assign(at, generator.target, item)
            answers.append((item, reduce(both, [condition(at, test) for test in generator.ifs])))

    # Where they are not known, the comprehension is read once more.
    at.discarded(ask)
    if not all(isinstance(answer, bool) for _, answer in answers):
        return None
    return [item for item, answer in answers if answer]


def _given(at: Interpreter, generator: ast.comprehension, item: Value, element: ast.expr) -> Value:
    """The element of a comprehension for one item."""
    assign(at, generator.target, item)
    return at.evaluate(element)


def _turn(at: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, iterable: Value) -> Value:
    pieces = False
    for generator in node.generators:
        if generator is not node.generators[0]:
            iterable = at.evaluate(generator.iter)
        assign(at, generator.target, element_of(at, iterable, generator.iter))
        for test in generator.ifs:
            condition(at, test)
        pieces = pieces or iterable.pieces or (iterable.iterates == "range" and draws((node.elt,)))
    around = at.state.turns
    at.state.turns = (*around, -1 - len(around))
    element = at.evaluate(node.elt)
    if isinstance(node.elt, ast.Starred):
        # Python 3.15: [*each for each in lists].
        element = element_of(at, element, node.elt.value)
    at.state.turns = around
    if isinstance(element, Params) and element.one:
        return Params(element.modules, element.optimizers)
    if isinstance(element, Grad):
        return element
    made = Sequence([element], open=True)
    made.pieces = pieces
    if len(node.generators) == 1 and not node.generators[0].ifs:
        _note_length(at, made, iterable)
    return made


def _note_length(at: Interpreter, made: Sequence, iterable: Value) -> None:
    """Note that a list has as many items as what is gone over, where that is known."""
    length = at.of_file(Lengths).of(iterable)
    if length is not None:
        at.of_file(Lengths)[at.number(made)] = length


def _dict_comprehension(at: Interpreter, node: ast.DictComp) -> Value:
    first = node.generators[0]
    iterable = at.evaluate(first.iter)
    if isinstance(iterable, StateDict):
        # A copy, entry by entry.
        return iterable
    items = _each_object(iterable) if len(node.generators) == 1 else None
    saved = dict(at.state.frame.vars)
    made = Mapping({}, open=items is None)
    if items is None:
        assign(at, first.target, element_of(at, iterable, first.iter))
        for generator in node.generators[1:]:
            assign(at, generator.target, element_of(at, at.evaluate(generator.iter), generator.iter))
        _enter_pair(at, made, node)
    for item in items or ():
        assign(at, first.target, item)
        if not any(condition(at, test) is False for test in first.ifs):
            _enter_pair(at, made, node)
    at.state.frame.vars = saved
    return made


def _enter_pair(at: Interpreter, made: Mapping, node: ast.DictComp) -> None:
    key, value = at.evaluate(node.key), _value_of(node)
    if value is None:
        merge_into(made, key)
    else:
        made.items[_key(key, node.key)] = at.evaluate(value)


def _value_of(node: ast.DictComp) -> ast.expr | None:
    """Return the value of a dict comprehension, or None for ``{**each for each in dicts}`` of Python 3.15."""
    return node.value


def _each_object(iterable: Value) -> list[Value] | None:
    """The items of a short sequence that holds scalers, optimizers or states: each is worth reading by itself."""
    if not isinstance(iterable, Sequence) or iterable.open or len(iterable.items) > FEW:
        return None
    return iterable.items if any(_holds_state(item) for item in iterable.items) else None


def gone_over(value: Value) -> Value:
    """What a loop over a value goes over: of a dict its keys."""
    return Sequence([Const(key) for key in value.items], open=value.open) if isinstance(value, Mapping) else value


def each_of(at: Interpreter, value: Value, node: ast.expr) -> Value:
    """The one element that stands for all: the same in every loop over the same value."""
    if isinstance(value, Sequence) and len(value.items) == 1:
        return value.items[0]
    if isinstance(value, (Generator, Params)):
        return element_of(at, value, node)
    if isinstance(value, Opaque) and value.iterates == "enumerate":
        return Sequence([_index(at, value, node, "index"), each_of(at, at.of_file(Enumerated)[value.key], node)])
    if isinstance(value, Ref) and (itself := value.element()) is not None:
        return itself
    if isinstance(value, Sequence):
        known = value.element()
        # Another list of the same may be made for each loop over them, as a dict does of what it holds.
        return known if known is not None else structural(at, "each of", tuple(value.items), shortened(node))
    return structural(at, "each of", (value,), shortened(node))


def element_of(at: Interpreter, value: Value, node: ast.AST) -> Value:
    """What a loop over a value is given at each turn."""
    known = value.element()
    if known is not None:
        return known
    resume = at.handlers.elements.get(value.kind)
    if resume is not None:
        return resume(at, value, node)
    if isinstance(value, Opaque) and value.iterates == "enumerate":
        return Sequence([_index(at, value, node, "index"), element_of(at, at.of_file(Enumerated)[value.key], node)])
    if isinstance(value, Opaque) and value.iterates == "zip":
        return Sequence([element_of(at, each, node) for each in at.of_file(Zipped)[value.key]])
    made = _index(at, value, node, "element") if value.iterates == "range" else at.fresh(node, "element")
    made.each = not value.iterates
    made.graded = value.graded
    return made.knowing(value.fact.part)


def _index(at: Interpreter, value: Value, node: ast.AST, name: str) -> Opaque:
    """The number that a loop over a range or an enumeration hands out."""
    made = at.fresh(node, name)
    for notes in (at.of_file(Ranges), at.of_file(Lengths)):
        if isinstance(value, Opaque) and value.key in notes:
            notes[made.key] = notes[value.key]
    made.counter = made.index = True
    made.first = value.first
    return made


def _lambda(at: Interpreter, node: ast.Lambda) -> Value:
    at.captured.append(at.state.frame)
    return FunctionValue(at.state.frame.module.functions[node], at.state.frame)


def _walrus(at: Interpreter, node: ast.NamedExpr) -> Value:
    value = at.evaluate(node.value)
    assign(at, node.target, value)
    return value


def _inner(at: Interpreter, node: ast.Starred | ast.Await) -> Value:
    return at.evaluate(node.value)


def _yield(at: Interpreter, node: ast.Yield) -> Value:
    return _yielded(at, at.evaluate(node.value) if node.value is not None else NONE, node)


def _yield_from(at: Interpreter, node: ast.YieldFrom) -> Value:
    """Each of several values is yielded: at one place that is come to again and again."""
    iterable = at.evaluate(node.value)
    frame, head = at.state.frame, at.draft.node()
    frame.yields_pieces = frame.yields_pieces or iterable.pieces
    at.draft.link(at.state.cur, head)
    at.state.cur = head
    sent = _yielded(at, element_of(at, iterable, node.value), node)
    at.draft.link(at.state.cur, head)
    return sent


def _yielded(at: Interpreter, value: Value, node: ast.Yield | ast.YieldFrom) -> Value:
    if any(loop.pieces and loop.frame is at.state.frame for loop in at.state.loops):
        at.state.frame.yields_pieces = True
    if at.state.frame.on_yield is not None:
        at.state.frame.on_yield(value)
    return at.fresh(node, "sent")


def _if_expression(at: Interpreter, node: ast.IfExp) -> Value:
    formula = still_open(at, condition(at, node.test))
    values: list[Value] = [NONE, NONE]

    def then() -> None:
        values[0] = at.evaluate(node.body)

    def otherwise() -> None:
        values[1] = at.evaluate(node.orelse)

    shim = at.module.versioned and guard_of(at, node.test)[0]
    at.state.shims += shim
    fork(at, formula, then, otherwise)
    at.state.shims -= shim
    if isinstance(formula, bool):
        return values[0] if formula else values[1]
    return join_values(at, formula, values[0], values[1], "ifexp")


def _bool_operation(at: Interpreter, node: ast.BoolOp) -> Value:
    # "a or b" and "a and b" are used as conditions nearly always; as values where a side is None.
    sides = [(at.evaluate(part), shortened(part)) for part in node.values]
    values = [value for value, _ in sides]
    formulas = [truth(at, *side) for side in sides]
    if len(values) == 2 and isinstance(node.op, ast.Or) and not all(isinstance(v, (Truth, Opaque)) for v in values):
        return join_values(at, formulas[0], values[0], values[1], f"or {node.lineno}:{node.col_offset}")
    loops = EMPTY.union(*[value.loops for value in values])
    return Truth(at.short(_COMBINED[type(node.op)](*formulas)), loops)


def _unary(at: Interpreter, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        return Truth(negate(condition(at, node.operand)), at.turning())
    value = at.evaluate(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(value.value, (int, float)):
        return Const(-value.value)
    if isinstance(value, (Tensor, Grad)):
        return value
    made = structural(at, "unary", (value,), shortened(node), type(node.op).__name__)
    made.divided = value.divided
    made.compares = value.compares
    return made


def _compare(at: Interpreter, node: ast.Compare) -> Value:
    formula = condition(at, node)
    return Const(formula) if isinstance(formula, bool) else Truth(formula, at.turning())


def _binary(at: Interpreter, node: ast.BinOp) -> Value:
    left, right = at.evaluate(node.left), at.evaluate(node.right)
    op = _OPERATORS[type(node.op)]
    if op == "/" and isinstance(left, Grad) and right.readings:
        # A gradient over its norm: the scale cancels.
        made = operate(at, op, left, right, node)
        undo(right.readings)
        return made
    for side, child, other in ((left, node.left, right), (right, node.right, left)):
        # Gradients times a number are gradients yet.
        if op not in ("*", "/") or not isinstance(side, Grad) or isinstance(other, Grad):
            _use(at, side, child)
    return operate(at, op, left, right, node)


def _use(at: Interpreter, value: Value, node: ast.AST) -> None:
    """A value is computed with, or is shown."""
    handler = at.handlers.operands.get(value.kind)
    if handler is not None:
        handler(at, value, node)


def operate(at: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    if UNREAD not in (left.value, right.value):
        known = compute(op, left.value, right.value) or at.fresh(node)
        known.divided = op == "/"
        return known
    combine = {"&": both, "|": either}.get(op)
    if combine is not None and isinstance(left, Truth) and isinstance(right, Truth):
        return Truth(combine(left.formula, right.formula), left.loops | right.loops)
    special = first_answer(at.handlers.operators, at, op, left, right, node)
    if special is not None:
        return special
    for side in (left, right):
        if isinstance(side, Params):
            return side
    return _united(op, left, right) or _number(at, op, left, right, node)


def _united(op: str, left: Value, right: Value) -> Value | None:
    """What an operator makes of two containers."""
    if isinstance(left, Sequence) and isinstance(right, Sequence) and op == "+":
        return Sequence([*left.items, *right.items], open=left.open or right.open)
    if op == "|" and (isinstance(left, Mapping) or isinstance(right, Mapping)):
        merged = Mapping({})
        for side in (left, right):
            merge_into(merged, side)
        return merged
    return None


def _number(at: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Opaque:
    """What an operator makes of two values of which one at least is not known."""
    made = structural(at, "binary", (left, right), spelled(node, op), op)
    if op in ("+", "%") and isinstance(left.value, str):
        made.head = left.value.partition("%")[0] if op == "%" else left.value
    _count(op, left, right, made)
    if op == "%":
        made.remainder = left, right
    made.divided = made.divided or _averages(at, op, left, right)
    made.summed = made.divided and op != "/" and all(side.summed for side in (left, right) if side.divided)
    made.extent = op in ("+", "*") and measures((left, right))
    if op in ("+", "-", "*", "/"):
        made.compares = left.compares or right.compares or (op == "/" and left.summed and not made.divided)
    if isinstance(left, Opaque):
        if op == "/" and not made.divisors and not of_this_turn(at, right):
            divide(at, made, left, right, node)
        elif op == "*":
            multiply(at, made, left, right)
    return made


def _count(op: str, left: Value, right: Value, made: Opaque) -> None:
    """A counter goes on to be one, moved by what is added to it."""
    counted, other = (left, right) if left.counter else (right, left)
    made.counter = made.counter or counted.counter
    if counted.counter and op in ("+", "-") and isinstance(other.value, int):
        made.base = counted.base
        made.offset = counted.offset + (other.value if op == "+" else -other.value)
        made.first, made.index = counted.first, counted.index


def augment(at: Interpreter, node: ast.AugAssign) -> None:
    target = node.target
    left = at.evaluate(_as_load(target))
    right = at.evaluate(node.value)
    op = _OPERATORS[type(node.op)]
    written = at.handlers.augmented.get(left.kind)
    if written is not None:
        written(at, left, operate(at, op, left, right, node), node)
        return
    if left.graded and op in ("/", "*"):
        at.emit(e.GRAD_NORMALISE, node, None, None, owners=None)
    if _extended(op, left, right):
        return
    value = _moved_on(at, op, left, right, node)
    if value.divided and isinstance(target, ast.Subscript):
        owner, option = at.evaluate(target.value), at.evaluate(target.slice)
        if isinstance(owner, Params) and owner.groups and option.value == "lr":
            for listener in at.handlers.rate_divided:
                listener(at, owner)
    at.values[target] = left
    value = at.annotated(ast.AugAssign, node, value)
    assign(at, target, value, anew=False)


def _extended(op: str, left: Value, right: Value) -> bool:
    """Whether an operator puts something into a container, which it does."""
    if isinstance(left, Sequence) and op == "+":
        left.items.extend(right.items if isinstance(right, Sequence) else [right])
        return True
    if isinstance(left, Mapping) and op == "|":
        merge_into(left, right)
        return True
    return False


def _moved_on(at: Interpreter, op: str, left: Value, right: Value, node: ast.AugAssign) -> Value:
    """What an augmented assignment makes of a number: where it adds to it, another one each time."""
    value = operate(at, op, left, right, node)
    # A number that an object holds is another one in the next call.
    kept = isinstance(node.target, ast.Attribute) and isinstance(value, Const)
    if op not in ("+", "-") or not (isinstance(value, Opaque) or kept) or not isinstance(left, (Opaque, Const)):
        return value
    made = at.fresh(node, shortened(node.target))
    # A number that grows by a fixed step in a loop counts its turns, or what they hold.
    made.counter = bool(at.state.loops) and (isinstance(right.value, int) or left.counter)
    made.divided, made.compares, made.summed = value.divided, value.compares, value.summed
    return made.made(value.past)


def condition(at: Interpreter, node: ast.expr) -> Formula:
    """The formula of a test."""
    match node:
        case ast.BoolOp():
            return _COMBINED[type(node.op)](*(condition(at, part) for part in node.values))
        case ast.UnaryOp(op=ast.Not()):
            return negate(condition(at, node.operand))
        case ast.Compare():
            return _comparison(at, node)
        case _:
            return asked(at, at.evaluate(node), node)


def _comparison(at: Interpreter, node: ast.Compare) -> Formula:
    values = [at.evaluate(node.left), *(at.evaluate(right) for right in node.comparators)]
    nodes = [node.left, *node.comparators]
    formulas = []
    for i, op in enumerate(node.ops):
        formula = _compared(at, _OPERATORS[type(op)], values[i], values[i + 1], nodes[i], nodes[i + 1], node)
        if isinstance(values[i], ScaleValue) or isinstance(values[i + 1], ScaleValue):
            for key, _ in literals(formula):
                at.graph.tests[key].of_scale = True
        formulas.append(formula)
    return both(*formulas)


def _compared(
    at: Interpreter, op: str, left: Value, right: Value, left_node: ast.expr, right_node: ast.expr, node: ast.Compare
) -> Formula:
    positive = _NEGATIVE.get(op)
    if positive is not None:
        return negate(_compared(at, positive, left, right, left_node, right_node, node))
    if op in ("is", "=="):
        for value, other, side in ((left, right, left_node), (right, left, right_node)):
            if value.value is UNREAD and other.value is None:
                return is_none(at, value, shortened(side), node)
            if value.value is UNREAD and isinstance(other.value, bool) and not isinstance(value, Choice):
                # Asked of a flag, "is True" and "== True" are the flag itself.
                formula = truth(at, value, shortened(side), node)
                return formula if other.value else negate(formula)
        return equal(at, left, right, node)
    if op == "in" and isinstance(left.value, str) and isinstance(right.value, str):
        return left.value in right.value
    known = compute(op, left.value, right.value)
    if known is not None:
        return bool(known.value)
    if op in ("<", "<=", ">", ">="):
        return ordered(at, op, left, right, node)
    return at.ask(
        (op, left.identity(at.number), right.identity(at.number)), shortened(node), left.loops | right.loops, node
    )


def assign(at: Interpreter, target: ast.expr, value: Value, *, anew: bool = True) -> None:
    """Give a target a value, which is made ``anew`` in each turn of the loops around, or goes on from the last turn."""
    if anew and value.fact is not NOTHING:
        value = value.knowing(value.fact._replace(made=at.turning()))
    _TARGETS[type(target)](at, target, value, anew)


def _assign_name(at: Interpreter, target: ast.Name, value: Value, anew: bool) -> None:
    name_it(at, value, target.id)
    at.state.frame.vars[target.id] = value


def _assign_rest(at: Interpreter, target: ast.Starred, value: Value, anew: bool) -> None:
    assign(at, target.value, value, anew=anew)


def name_it(at: Interpreter, value: Value, name: object) -> None:
    """A thing goes by the first name it is given; an autocast context that has a name may be entered again."""
    for option in value.alternatives():
        if isinstance(option, Ref):
            option.thing.name = option.thing.name or str(name)
            if option.role == "autocast":
                option.thing.facts["stored"] = True


def _unpack(at: Interpreter, target: ast.Tuple | ast.List, value: Value, anew: bool) -> None:
    known = _parts(_in_order(at, value, target) or value, target.elts)
    for i, element in enumerate(target.elts):
        assign(at, element, known[i] if known is not None else _part(at, value, element, i), anew=anew)


def _parts(value: Value, targets: list[ast.expr]) -> list[Value] | None:
    """What a value is unpacked to, where that is known."""
    if not isinstance(value, Sequence):
        return None
    items, count = value.items, len(targets)
    starred = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    if starred is not None and not value.open and len(items) >= count - 1:
        end = len(items) - (count - 1 - starred)
        return [*items[:starred], Sequence(items[starred:end]), *items[end:]]
    if starred is None and not value.open and len(items) == count:
        return items
    if len(items) == 1 and isinstance(items[0], Tensor):
        # A comprehension: each of its items is like the one.
        return [items[0].copy() for _ in range(count)]
    return None


def _part(at: Interpreter, value: Value, element: ast.expr, place: int) -> Value:
    """One of the values that a value is unpacked to."""
    if isinstance(value, Tensor) and not is_stepped(at, element):
        part = value.item(NONE)
        part.fact = value.fact.part
        return part
    if isinstance(value, (Params, Grad)):
        return value if isinstance(element, ast.Name) else at.fresh(element)
    made = structural(at, "part", (value,), shortened(element), place)
    made.loops |= at.turning()
    return made.knowing(value.fact.part)


def _assign_attribute(at: Interpreter, target: ast.Attribute, value: Value, anew: bool) -> None:
    receiver, value = at.evaluate(target.value), value.kept()
    if isinstance(value, Ref):
        # Other methods may do to it what this one leaves undone.
        value.thing.facts["shared"] = True
    written = at.handlers.written.get(receiver.kind)
    if written is not None and written(at, receiver, target.attr, value, target):
        return
    if target.attr == "grad":
        # What becomes the gradient of something else is one as before, with its scale.
        undo(value.readings)
        if value.divided:
            at.emit(e.GRAD_NORMALISE, target, None, None, owners=None)
    key = receiver.identity(at.number)
    if isinstance(key, int):
        name_it(at, value, shortened(target))
        at.store(key, target.attr, value)


def _field_written(at: Interpreter, receiver: Instance, name: str, value: Value, target: ast.Attribute) -> bool:
    name_it(at, value, shortened(target))
    _contain(receiver, value)
    if value.value is None and name in receiver.cls.changed:
        # Some other method gives it its value.
        at.state.heap.pop((receiver.key, name), None)
        at.written.append((receiver.key, name))
    else:
        at.store(receiver.key, name, _stored(at, receiver, name, value))
    return True


def _contain(receiver: Instance, value: Value) -> None:
    """A module that is an attribute of a module is part of it; an optimizer may be wrapped in another one."""
    if value.role == "optimizer" and value.thing is not None and receiver.cls.methods.keys() >= {"step", "zero_grad"}:
        value.thing.facts["wrapped"] = True
    if receiver.thing is not None and value.thing is not None and value.thing.role == "module":
        receiver.thing.facts.setdefault("parts", set()).add(value.thing.key)


def _stored(at: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """What an attribute holds: a number that other methods change too is not known by its first value."""
    if value.value is UNREAD or isinstance(value.value, str) or name not in receiver.cls.changed:
        return value
    made = at.opaque(("attribute of", receiver.key, name), name, at.turning())
    made.counter = name in receiver.cls.counted
    return made.knowing(value.fact)


def _assign_item(at: Interpreter, target: ast.Subscript, value: Value, anew: bool) -> None:
    receiver = at.evaluate(target.value)
    index = at.evaluate(target.slice)
    if isinstance(receiver, Mapping):
        receiver.items[_key(index, target.slice)] = value
        name_it(at, value, shortened(target))
    place = _place_of(at, receiver, index)
    if place is not None:
        at.store(*place, value)
    for listener in at.handlers.item_written:
        listener(at, receiver, index, target, value)


def _slice(at: Interpreter, node: ast.Slice) -> Value:
    bounds = [NONE if part is None else at.evaluate(part) for part in (node.lower, node.upper, node.step)]
    return structural(at, "slice", tuple(bounds), spelled(node))


class _Guards(dict[ast.expr, tuple[bool, tuple[str, ...]]]):
    """Of tests, whether each asks what the torch that is installed has, and the names in it."""

    def __missing__(self, test: ast.expr) -> tuple[bool, tuple[str, ...]]:
        nodes = walk(test)
        asks = any("version" in name.lower() or name == "hasattr" for name in map(last_name, nodes))
        made = self[test] = asks, tuple([node.id for node in nodes if isinstance(node, ast.Name)])
        return made


def guard_of(at: Interpreter, test: ast.expr) -> tuple[bool, tuple[str, ...]]:
    """Whether a test asks what the torch that is installed has, and the names in it."""
    return at.of_file(_Guards)[test]


def entry_of(receiver: Value, index: Value) -> tuple[int, str | None] | None:
    """Which item of which unknown value an index leads to."""
    if not isinstance(receiver, Opaque):
        return None
    return receiver.key, index.value if isinstance(index.value, str) else None


def _holds_state(value: Value) -> bool:
    """Whether a value is a scaler, an optimizer or a state, or a pair with one."""
    if isinstance(value, Sequence):
        return any(_holds_state(item) for item in value.items)
    return value.role in ("scaler", "optimizer") or isinstance(value, StateDict)


def undo(readings: tuple[Event, ...]) -> None:
    """What was computed from scaled gradients is divided by the scale, or by its like: it was read as it should be."""
    for event in readings:
        event.facts["undone"] = True


def _as_load(target: ast.expr) -> ast.expr:
    """The target of an augmented assignment, as the expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def measures(values: Iterable[Value]) -> bool:
    """Whether all of some values but the constants among them say how much there is of data."""
    measured = [value for value in values if value.value is UNREAD]
    return bool(measured) and all(value.extent for value in measured)


def of_turn(at: Interpreter, value: Value) -> bool:
    """Whether a value is made anew in each turn of the innermost loop."""
    return bool(at.state.loops) and at.state.loops[-1].key in (value.loops or value.turns())


def of_this_turn(at: Interpreter, divisor: Value) -> bool:
    """Whether a value says how much there is of this turn's data: what it divides is a mean over them."""
    return divisor.extent and of_turn(at, divisor)


def _averages(at: Interpreter, op: str, left: Value, right: Value) -> bool:
    """Whether a number may have been divided by how many there are of it."""
    if op == "/":
        return (left.divided and not left.summed) or not of_this_turn(at, right)
    if op == "*":
        return left.divided or right.divided
    sides = [side for side in (left, right) if side.value is UNREAD]
    return op in ("+", "-") and all(side.divided for side in sides)


class Enumerated(dict[int, Value]):
    """What each ``enumerate(...)`` goes over, by the key of its value."""


class Zipped(dict[int, list[Value]]):
    """What each ``zip(...)`` goes over that has to be run for it, by the key of its value."""


#: What gives each kind of target its value.
_TARGETS: dict[type[ast.AST], Callable[[Interpreter, Any, Value, bool], None]] = {
    ast.Name: _assign_name,
    ast.Tuple: _unpack,
    ast.List: _unpack,
    ast.Starred: _assign_rest,
    ast.Attribute: _assign_attribute,
    ast.Subscript: _assign_item,
}


def register(handlers: Handlers) -> None:
    for kind in ("instance", "module instance"):
        handlers.written[kind] = _field_written
    handlers.expressions.update(
        {
            ast.Constant: _constant,
            ast.Name: _name,
            ast.Attribute: _attribute,
            ast.Subscript: _subscript,
            ast.Tuple: _sequence,
            ast.List: _sequence,
            ast.Set: _sequence,
            ast.Starred: _inner,
            ast.Dict: _dict,
            ast.JoinedStr: _joined_string,
            ast.ListComp: _comprehension,
            ast.SetComp: _comprehension,
            ast.GeneratorExp: _comprehension,
            ast.DictComp: _dict_comprehension,
            ast.Lambda: _lambda,
            ast.NamedExpr: _walrus,
            ast.Await: _inner,
            ast.Yield: _yield,
            ast.YieldFrom: _yield_from,
            ast.IfExp: _if_expression,
            ast.BoolOp: _bool_operation,
            ast.UnaryOp: _unary,
            ast.Compare: _compare,
            ast.BinOp: _binary,
            ast.Slice: _slice,
        }
    )
