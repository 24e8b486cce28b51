"""Forks: two ways on with a state each, and what values come to where they meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...protocol import events as e
from ...protocol.events import Thing
from ...protocol.surface import AUTOCAST, NULL_CONTEXT, SURFACE, canonical
from .conditions import Formula, assuming, both, either, implied, literals, negate, weight
from .dtypes import joined
from .interpreter import Interpreter
from .values import (
    NONE,
    UNREAD,
    Choice,
    Divisor,
    Engine,
    Heap,
    Named,
    Opaque,
    Params,
    Ref,
    Sequence,
    Tensor,
    Truth,
    Value,
    Vars,
    merge_params,
    past_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: Values above which what may be any of them is unknown.
OPTIONS = 8
#: Tests in a condition, from which on two values that are joined under it are not looked up again.
FEW = 4


def branch(at: Interpreter, formula: Formula) -> tuple[int | None, int | None]:
    """Fork on a condition: the places where it is true and where it is false."""
    if at.state.cur is None:
        return None, None
    if isinstance(formula, bool):
        return (at.state.cur, None) if formula else (None, at.state.cur)
    word = formula[0]
    yes: int | None
    no: int | None
    if word == "test":
        answered, denied = at.draft.node(), at.draft.node()
        at.draft.link(at.state.cur, answered, formula[1], True)
        at.draft.link(at.state.cur, denied, formula[1], False)
        return answered, denied
    if word == "not":
        no, yes = branch(at, formula[1])
        return yes, no
    # Short circuit: an "and" goes on while its parts are true, an "or" while they are false.
    every = word == "and"
    ends: list[int | None] = []
    for part in formula[1:]:
        yes, no = branch(at, part)
        at.state.cur, end = (yes, no) if every else (no, yes)
        ends.append(end)
    through = at.state.cur
    short = at.draft.join(ends)
    return (through, short) if every else (short, through)


def still_open(at: Interpreter, formula: Formula) -> Formula:
    """What is left to ask of a condition under the tests that the place being read stands under."""
    return assuming(at.short(formula), dict(pair for each in at.state.path for pair in implied(each)))


def fork(
    at: Interpreter, formula: Formula, then: Callable[[], None], otherwise: Callable[[], None]
) -> tuple[bool, bool]:
    """Read two ways on, each with its own variables, and let them meet; says which of them come to an end."""
    formula = still_open(at, formula)
    if isinstance(formula, bool):
        (then if formula else otherwise)()
        return (at.state.cur is not None, False) if formula else (False, at.state.cur is not None)
    mark = at.draft.mark(at.state.cur)
    yes, no = branch(at, formula)
    variables, heap, before = at.state.frame.vars, at.state.heap, len(at.written)

    def read(place: int | None, condition: Formula, act: Callable[[], None]) -> tuple[int | None, Vars, Heap]:
        at.state.frame.vars, at.state.heap, at.state.cur = dict(variables), dict(heap), place
        at.state.path.append(condition)
        act()
        at.state.path.pop()
        return at.state.cur, at.state.frame.vars, at.state.heap

    after_yes = read(yes, formula, then)
    after_no = read(no, negate(formula), otherwise)
    _meet(at, formula, after_yes, after_no, before)
    if after_yes[0] is not None and after_no[0] is not None:
        at.state.cur = at.draft.forget(mark, at.state.cur)
    return after_yes[0] is not None, after_no[0] is not None


def raises(at: Interpreter) -> None:
    """Note that what runs here says that it raises: the way to who catches it."""
    if at.state.handlers and at.state.cur is not None:
        here = at.draft.node()
        at.draft.link(at.state.cur, here)
        at.state.handlers[-1].append(here)


def _meet(
    at: Interpreter,
    formula: Formula,
    yes: tuple[int | None, Vars, Heap],
    no: tuple[int | None, Vars, Heap],
    before: int,
) -> None:
    if yes[0] is None:
        at.state.cur, at.state.frame.vars, at.state.heap = no
    elif no[0] is None:
        at.state.cur, at.state.frame.vars, at.state.heap = yes
    else:
        at.state.cur = at.draft.join((yes[0], no[0]))
        at.state.frame.vars = meet_variables(at, formula, yes[1], no[1])
        at.state.heap = meet_heaps(at, formula, yes[2], no[2], before)


def meet_variables(at: Interpreter, formula: Formula, yes: Vars, no: Vars) -> Vars:
    """The variables where two ways meet: those of the first where the formula is true."""
    return _meet_maps(at, formula, yes, no, yes)


def meet_heaps(at: Interpreter, formula: Formula, yes: Heap, no: Heap, before: int) -> Heap:
    """What objects hold where two ways meet that parted when so many attributes had been written."""
    return _meet_maps(at, formula, yes, no, dict.fromkeys(at.written[before:]))


def _meet_maps(
    at: Interpreter, formula: Formula, yes: dict[Any, Value], no: dict[Any, Value], keys: Iterable[Any]
) -> dict[Any, Value]:
    """What two maps come to where their ways meet; they differ in some keys at most."""
    met = dict(no)
    for key in keys:
        value, other = yes.get(key), no.get(key)
        if other is None:
            if value is not None:
                met[key] = value
        elif value is not None and other is not value:
            met[key] = join_values(at, formula, value, other, str(key))
    return met


def join_values(at: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> Value:
    """The value that is ``a`` where the formula is true and ``b`` where it is not."""
    if a is b or a.value is b.value is not UNREAD:
        return a
    if isinstance(formula, bool):
        return a if formula else b
    return _joined(at, formula, a, b, name).knowing(joined(a.fact, b.fact))


def _joined(at: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> Value:
    """The same of two values that differ, without what is known of their dtypes."""
    if a.formula is not None and b.formula is not None:
        met = either(both(formula, a.formula), both(negate(formula), b.formula))
        return Truth(at.short(met), a.loops | b.loops)
    join = _JOINS.get(a.kind) if a.kind == b.kind else None
    alike = join(at, formula, a, b, name) if join is not None else None
    return alike or _choice(at, formula, a, b) or _unknown_of(at, formula, a, b, name)


def _choice(at: Interpreter, formula: Formula, a: Value, b: Value) -> Choice | None:
    """One of two values of which one matters at least, where these are not too many."""
    if not (a.matters or b.matters):
        return None
    options = [(at.short(both(formula, f)), v) for f, v in _options(a)]
    options += [(at.short(both(negate(formula), f)), v) for f, v in _options(b)]
    options = [(f, v) for f, v in options if f is not False]
    return Choice(options) if len(options) <= OPTIONS else None


def _unknown_of(at: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> Opaque:
    """The unknown value that stands for either of two."""
    key: object = (at.graph.name, len(at.draft.nodes))
    if isinstance(a, Opaque) and isinstance(b, Opaque) and weight(formula, FEW) < FEW:
        # Either of the same two, by the same question, is the same wherever they meet.
        key = (formula, a.identity(at.number), b.identity(at.number))
    met = at.opaque(("met", name, key), name, a.loops | b.loops)
    met.divided, met.summed = _divided_on_either(a, b)
    met.extent = a.extent and b.extent
    met.parameter = a.parameter and b.parameter
    met.compares = a.compares or b.compares
    met.graded = a.graded or b.graded
    met = met.made(past_of((a, b)))
    sides = [side for side in (a, b) if isinstance(side, Opaque)]
    met.readings = tuple(dict.fromkeys(reading for side in sides for reading in side.readings))
    if len(sides) == 2:
        met.divisors = _divisors_of_either(at, formula, *sides)
    return met


def _either_name(at: Interpreter, formula: Formula, a: Named, b: Named, name: str) -> Named | None:
    """The first of two names; of two dtypes it keeps which it is when, and of two contexts both."""
    if a.name != b.name and (_is_context(a) or _is_context(b)):
        return None
    first, second = a.dtypes, b.dtypes
    if first == second or not first or not second:
        return a
    met = Named(a.name, shim=a.shim)
    for dtypes, here in ((first, formula), (second, negate(formula))):
        for dtype, condition in dtypes.items():
            met.ways[dtype] = at.short(either(met.ways.get(dtype, False), both(here, condition)))
    return met


def _divided_on_either(a: Value, b: Value) -> tuple[bool, bool]:
    """Whether a loss was divided on one of two ways, and whether that is only to say that it was summed."""
    divided = [side for side in (a, b) if side.divided]
    return bool(divided), bool(divided) and all(side.summed for side in divided)


def _is_context(value: Named) -> bool:
    """Whether a name is that of autocast, or of what stands where it could."""
    entry = SURFACE.get(canonical(value.name))
    return entry is not None and entry.role in (AUTOCAST, NULL_CONTEXT)


def _divisors_of_either(
    at: Interpreter, formula: Formula, a: Tensor | Opaque, b: Tensor | Opaque
) -> frozenset[Divisor]:
    """What a loss was divided by on both ways, or on the one that a test of that very number leads to."""
    if a.divisors == b.divisors:
        return a.divisors
    asked = {key for key, _ in literals(formula)}
    questions = [at.tests.question(key) for key in asked] if len(asked) == 1 else []
    both_ways = a.divisors & b.divisors
    return both_ways | {d for d in a.divisors ^ b.divisors if any(_mentions(question, d.key) for question in questions)}


def _same_engine(at: Interpreter, formula: Formula, a: Engine, b: Engine, name: str) -> Engine | None:
    """The one engine that stands for either of two of one framework."""
    if a.framework != b.framework:
        return None
    if a.thing is b.thing:
        return a
    enabled = either(both(formula, a.enabled), both(negate(formula), b.enabled))
    steps = a.steps and b.steps and join_values(at, formula, a.steps, b.steps, "")
    precision = join_values(at, formula, a.precision, b.precision, "precision")
    thing = _same_thing(at, a.thing, b.thing)
    return Engine(a.framework, thing, enabled, a.source, precision, steps, a.optimizer)


def _same_object(at: Interpreter, formula: Formula, a: Ref, b: Ref, name: str) -> Ref:
    if a.thing is b.thing:
        return a
    enabled = either(both(formula, a.enabled), both(negate(formula), b.enabled))
    return Ref(_same_thing(at, a.thing, b.thing), at.short(enabled))


def _same_parameters(at: Interpreter, formula: Formula, a: Params, b: Params, name: str) -> Params | None:
    if a.one != b.one:
        return None
    merged = merge_params([a, b])
    merged.one = a.one
    return merged


def _same_tensor(at: Interpreter, formula: Formula, a: Tensor, b: Tensor, name: str) -> Tensor | None:
    if (a.scaler, a.uneven) != (b.scaler, b.uneven):
        return None
    tensor = Tensor.merge([a, b])
    tensor.divided, tensor.summed = _divided_on_either(a, b)
    tensor.divisors = _divisors_of_either(at, formula, a, b)
    return tensor


def _same_unknown(at: Interpreter, formula: Formula, a: Opaque, b: Opaque, name: str) -> Opaque | None:
    return a.made(past_of((a, b))) if a.key == b.key else None


def _same_items(at: Interpreter, formula: Formula, a: Sequence, b: Sequence, name: str) -> Sequence | None:
    if len(a.items) != len(b.items):
        return None
    pairs = zip(a.items, b.items, strict=True)
    items = [join_values(at, formula, x, y, f"{name}[{i}]") for i, (x, y) in enumerate(pairs)]
    both_ways = Sequence(items, open=a.open or b.open)
    both_ways.pieces = a.pieces or b.pieces
    return both_ways


#: What two values of one kind come to, where that is a value of that kind.
_JOINS: dict[str, Callable[[Interpreter, Formula, Any, Any, str], Value | None]] = {
    "engine": _same_engine,
    "scaler": _same_object,
    "optimizer": _same_object,
    "module": _same_object,
    "named": _either_name,
    "parameters": _same_parameters,
    "tensor": _same_tensor,
    "sequence": _same_items,
    "unknown": _same_unknown,
}


def _same_thing(at: Interpreter, a: Thing, b: Thing) -> Thing:
    """The one thing that stands for either of two, made on the two arms of a fork."""
    thing = at.thing(("either", a.key, b.key), a.role, a.name, a.site)
    thing.facts.update({**b.facts, **a.facts})
    if "owns" in thing.facts:
        owns = a.facts.get("owns"), b.facts.get("owns")
        thing.facts["owns"] = None if None in owns else owns[0] | owns[1]  # type: ignore[operator]
    if a.role == "optimizer" and a.site is not None:
        # Made anew on one of the arms, as far as is known.
        at.emit_at(e.OPTIMIZER_NEW, a.site, thing.key, found=True)
    return thing


def on_each(at: Interpreter, value: Value, act: Callable[[Value], Value]) -> Value:
    """Do what a call does on each of the values that its receiver may be; None can be no receiver."""
    if not isinstance(value, Choice):
        return act(value)
    options = [(f, v) for f, v in value.options if v.value is not None]
    if not options:
        return at.opaque(("of none", at.number(value)), "")
    return _each(at, options, act, excluded=len(options) < len(value.options))


def _each(
    at: Interpreter, options: list[tuple[Formula, Value]], act: Callable[[Value], Value], *, excluded: bool
) -> Value:
    formula, value = still_open(at, options[0][0]), options[0][1]
    if len(options) == 1 and not excluded:
        return act(value)
    results: list[Value] = [NONE, NONE]

    def then() -> None:
        results[0] = act(value)

    def otherwise() -> None:
        if len(options) > 1:
            results[1] = _each(at, options[1:], act, excluded=excluded)
        else:
            # Calling None raises: this way ends here, and the fork that leads to it is not left out of the graph.
            at.state.cur = None
            at.draft.happened += 1

    yes, no = fork(at, formula, then, otherwise)
    if not no:
        return results[0]
    if not yes:
        return results[1]
    return join_values(at, formula, results[0], results[1], "each")


def _mentions(question: object, key: object) -> bool:
    """Whether a question is about the value of a key."""
    if question == key or question == repr(key):
        return True
    return isinstance(question, tuple) and any(_mentions(part, key) for part in question[1:])


def _options(value: Value) -> list[tuple[Formula, Value]]:
    return value.options if isinstance(value, Choice) else [(True, value)]
