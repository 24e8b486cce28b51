"""The abstract machine: the graph under construction, the frames of functions, how values meet after a fork."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...protocol import events as e
from ...protocol.events import Event, Graph, Node, Program, Site, Thing
from ..project.module import Class, Function, Module
from ..project.project import Project
from .conditions import Formula, Tests, both, either, literals, negate, weight
from .dtypes import Precise, known_of_both
from .state import Draft, Mark, State
from .values import (
    EMPTY,
    BoundMethod,
    Choice,
    ClassValue,
    Const,
    Divisor,
    Engine,
    Frame,
    FunctionValue,
    GradMode,
    Heap,
    HelperContext,
    Instance,
    Mapping,
    Named,
    NoSync,
    NullContext,
    Opaque,
    Params,
    Partial,
    Ref,
    Saver,
    ScaledLoss,
    ScaleValue,
    Sequence,
    StackContext,
    StateDict,
    Tensor,
    Truth,
    Value,
    Vars,
    merge_params,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Calls within calls that are followed; deeper ones are taken as unknown.
DEPTH = 8
#: Statements read in one graph before calls are no longer followed.
BUDGET = 12_000
#: Statements read in one file before the functions that are left are left out, which is said.
FILE_BUDGET = 100_000

#: Those of them in other files, in one graph and in all, before calls into these are no longer followed.
FOREIGN_BUDGET = 2_000
ALL_FOREIGN = 8_000
#: The part of these that is there for functions which make no mistake by themselves, nor write a checkpoint.
PART = 0.3

#: Objects within objects that are looked into for what they hold.
HOLDERS = 4
#: Tests that a formula may speak of.
LONG = 24


class Interpreter:
    """State shared by everything that reads one graph."""

    def __init__(self, module: Module, program: Program, things: dict[object, Thing], tree: Project) -> None:
        self.module = module
        self.program = program
        self.things = things
        self.tree = tree
        #: Functions whose bodies were read where they are called: all, and in this graph.
        self.roots_reached: set[ast.AST] = set()
        self.reached: set[tuple[str, int]] = set()
        #: Globals of other files, by path, and the names in them that are being looked for.
        self.homes: dict[str, Frame] = {}
        self.binding: set[tuple[str, str]] = set()
        self.active: list[Function] = []
        #: The classes that each class derives from.
        self.lineages: dict[Class, list[Class]] = {}
        #: Whether every name of this file has its value.
        self.bound = False
        #: Assignments of attributes that are being read for the value they give.
        self.looked_up: set[int] = set()
        self.instances: dict[object, Instance] = {}
        self.opaques: dict[object, Opaque] = {}
        self.serial = 0
        self.numbered: dict[int, Value] = {}
        self.total = self.spent = self.abroad = self.all_abroad = 0
        self.defined: dict[ast.AST, FunctionValue] = {}
        #: Frames that functions, or a class, were defined in.
        self.captured: list[Frame] = []
        self.class_vars: dict[ast.AST, Vars] = {}
        self.globals = Frame(None, None, None, module)
        self.state = State(self.globals, {})
        #: Tests that compare a value with a constant each, by the identity of the value.
        self.compared: dict[object, list[int]] = {}
        #: Names of the attributes that each object was ever given.
        self.fields: dict[int, dict[str, None]] = {}
        #: Places in the heap in the order in which they were written: what two ways on may differ in.
        self.written: list[tuple[int, str]] = []
        self.tests = Tests()
        self.begin("<module>")

    def begin(self, name: str) -> None:
        """Start a new graph."""
        self.graph = Graph(name)
        self.reached = set()
        self.graph.tests = self.tests.asked
        self.draft = Draft(self.graph.nodes)
        self.draft.nodes.append(Node())
        self.state = State(self.globals, self.state.heap)
        #: Statements read: in the whole file before this graph, and in it.
        self.total += self.spent
        self.all_abroad += self.abroad
        self.spent = self.abroad = 0

    def release(self) -> None:
        """Let go of all that was read: values, frames and this object know each other."""
        for frame in (self.globals, *self.homes.values(), *self.captured):
            frame.vars.clear()
        vars(self).clear()

    def finish(self) -> None:
        """Settle what only the whole graph tells: which answers each turn of a loop makes unknown."""
        lasting = 0
        for node in self.draft.nodes:
            if node.event is not None and node.event.kind in (e.BACKWARD, e.SCALER_STEP, e.STEP):
                for key, _ in node.event.guards:
                    test = self.graph.tests[key]
                    if not test.counts and (not test.flag or node.event.kind == e.BACKWARD):
                        lasting |= 1 << key
        for head, loop in self.draft.heads:
            forgotten = self.tests.forgotten_by(loop)
            if loop < 0:
                # Whoever calls a function again has not meanwhile changed how it runs backward and steps.
                forgotten &= ~lasting
            self.draft.nodes[head].forgets |= forgotten

    def unrecorded(self, act: Callable[[], None]) -> None:
        """Read something for the values it gives, and for what it does to objects, without keeping its events."""
        state, draft = self.state, self.draft
        self.draft = Draft([])
        self.state = state.copy()
        self.state.cur = self.node()
        act()
        state.heap = self.state.heap
        self.draft.discard()
        self.state, self.draft = state, draft

    def discarded(self, act: Callable[[], None]) -> None:
        """Read something, and throw away the state in which it ends."""
        state, variables = self.state, self.state.frame.vars
        self.state = state.copy()
        self.state.heap, state.frame.vars = dict(state.heap), dict(variables)
        self.unrecorded(act)
        state.frame.vars = variables
        self.state = state

    def previewed(self, act: Callable[[], None]) -> None:
        """Read something as if it were called here: it is not, and what it calls is to be read elsewhere yet."""
        roots, reached = set(self.roots_reached), set(self.reached)
        self.discarded(act)
        self.roots_reached, self.reached = roots, reached

    # Places.

    def site(self, node: ast.AST) -> Site:
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None)
        module = self.state.frame.module
        return Site(
            module.path,
            line,
            module.column(line, column),
            end_line,
            module.column(end_line, column if end_column is None else end_column),
            self.state.frame.name,
            self.state.frame.caller,
        )

    # The graph.

    def node(self, event: Event | None = None) -> int:
        self.draft.nodes.append(Node(event))
        return len(self.draft.nodes) - 1

    def link(self, source: int | None, target: int, key: int = -1, truth: bool = True) -> None:
        if source is not None:
            self.draft.nodes[source].ways.append((target, key, truth))

    def emit(
        self, kind: str, node: ast.AST, subject: int | None = None, object: int | None = None, **facts: Any
    ) -> Event | None:
        """Add an event here; ``names`` among the facts become the event's names."""
        if self.state.cur is None:
            return None
        names = facts.pop("names", None)
        if kind == e.ZERO_GRAD and self.state.rescuing:
            facts["rescue"] = True
        if kind in (e.ZERO_GRAD, e.BACKWARD, e.SCALER_STEP, e.SCHEDULER_STEP):
            facts["loops"] = (*(loop.key for loop in self.state.loops), *self.state.turns)
        event = Event(kind, self.site(node), subject, object, facts, names, self.guards())
        here = self.node(event)
        self.link(self.state.cur, here)
        self.state.cur = here
        self.draft.happened += 1
        for handlers in self.state.handlers:
            handlers.append(here)
        return event

    def emit_at(self, kind: str, site: Site, subject: int | None, **facts: Any) -> None:
        """Add an event here that speaks of another place."""
        if self.state.cur is not None:
            names = facts.pop("names", None)
            here = self.node(Event(kind, site, subject, None, facts, names, self.guards()))
            self.link(self.state.cur, here)
            self.state.cur = here
            self.draft.happened += 1

    def guards(self) -> tuple[tuple[int, bool], ...]:
        """The tests under which the place being read stands."""
        return tuple(dict.fromkeys(pair for formula in self.state.path for pair in literals(formula)))

    def mark(self) -> Mark:
        """Remember this place, so that what follows can be left out if nothing happens in it."""
        ways = len(self.draft.nodes[self.state.cur].ways) if self.state.cur is not None else 0
        return Mark(
            self.state.cur, ways, len(self.draft.nodes), self.draft.happened, self.draft.returned, self.draft.jumped
        )

    def forget(self, mark: Mark) -> None:
        """Go back to a marked place if nothing has happened since and the way on is open."""
        place, ways, size = mark.place, mark.ways, mark.size
        if place is None or self.state.cur is None:
            return
        if (self.draft.happened, self.draft.returned, self.draft.jumped) != (mark.happened, mark.returned, mark.jumped):
            return
        del self.draft.nodes[size:]
        del self.draft.nodes[place].ways[ways:]
        while self.draft.heads and self.draft.heads[-1][0] >= size:
            self.draft.heads.pop()
        self.state.cur = place

    def join(self, places: Iterable[int | None]) -> int | None:
        """One place that all the given places lead to."""
        real = [place for place in dict.fromkeys(places) if place is not None]
        if not real:
            return None
        if len(real) == 1:
            return real[0]
        here = self.node()
        for place in real:
            self.link(place, here)
        return here

    def lower(self, formula: Formula) -> tuple[int | None, int | None]:
        """Fork on a condition: the places where it is true and where it is false."""
        if self.state.cur is None:
            return None, None
        if isinstance(formula, bool):
            return (self.state.cur, None) if formula else (None, self.state.cur)
        word = formula[0]
        yes: int | None
        no: int | None
        if word == "test":
            answered, denied = self.node(), self.node()
            self.link(self.state.cur, answered, formula[1], True)
            self.link(self.state.cur, denied, formula[1], False)
            return answered, denied
        if word == "not":
            no, yes = self.lower(formula[1])
            return yes, no
        # Short circuit: an "and" goes on while its parts are true, an "or" while they are false.
        ends: list[int | None] = []
        for part in formula[1:]:
            yes, no = self.lower(part)
            ends.append(no if word == "and" else yes)
            self.state.cur = yes if word == "and" else no
            if self.state.cur is None:
                break
        through = self.state.cur
        short = self.join(ends)
        return (through, short) if word == "and" else (short, through)

    def fork(self, formula: Formula, then: Callable[[], None], otherwise: Callable[[], None]) -> tuple[bool, bool]:
        """Read two ways on, each with its own variables, and let them meet; says which of them come to an end."""
        formula = self.short(formula)
        if isinstance(formula, bool):
            (then if formula else otherwise)()
            return (self.state.cur is not None, False) if formula else (False, self.state.cur is not None)
        mark = self.mark()
        yes, no = self.lower(formula)
        before_vars, before_heap, before = self.state.frame.vars, self.state.heap, len(self.written)
        self.state.frame.vars, self.state.heap, self.state.cur = dict(before_vars), dict(before_heap), yes
        self.state.path.append(formula)
        then()
        self.state.path.pop()
        after_yes = (self.state.cur, self.state.frame.vars, self.state.heap)
        self.state.frame.vars, self.state.heap, self.state.cur = dict(before_vars), dict(before_heap), no
        self.state.path.append(negate(formula))
        otherwise()
        self.state.path.pop()
        after_no = (self.state.cur, self.state.frame.vars, self.state.heap)
        self.meet(formula, after_yes, after_no, before)
        if after_yes[0] is not None and after_no[0] is not None:
            self.forget(mark)
        return after_yes[0] is not None, after_no[0] is not None

    def meet(
        self, formula: Formula, yes: tuple[int | None, Vars, Heap], no: tuple[int | None, Vars, Heap], before: int
    ) -> None:
        if yes[0] is None:
            self.state.cur, self.state.frame.vars, self.state.heap = no
        elif no[0] is None:
            self.state.cur, self.state.frame.vars, self.state.heap = yes
        else:
            self.state.cur = self.join((yes[0], no[0]))
            self.state.frame.vars = self.meet_maps(formula, yes[1], no[1], yes[1])
            self.state.heap = self.meet_maps(formula, yes[2], no[2], dict.fromkeys(self.written[before:]))

    def meet_maps(
        self, formula: Formula, yes: dict[Any, Value], no: dict[Any, Value], keys: Iterable[Any]
    ) -> dict[Any, Value]:
        """What two maps come to where their ways meet; they differ in some keys at most."""
        met = dict(no)
        for key in keys:
            value, other = yes.get(key), no.get(key)
            if other is None:
                if value is not None:
                    met[key] = value
            elif value is not None and other is not value:
                met[key] = self.unite(formula, value, other, str(key))
        return met

    def unite(self, formula: Formula, a: Value, b: Value, name: str) -> Value:
        """The value that is ``a`` where the formula is true and ``b`` where it is not."""
        if a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value is b.value):
            return a
        if isinstance(a, Precise) or isinstance(b, Precise):
            return known_of_both(a, b)
        if isinstance(formula, bool):
            return a if formula else b
        if _is_truth(a) and _is_truth(b):
            met = either(both(formula, _formula(a)), both(negate(formula), _formula(b)))
            return Truth(self.short(met), a.loops | b.loops)
        if isinstance(a, Engine) or isinstance(b, Engine):
            if isinstance(a, Engine) and isinstance(b, Engine) and a.framework == b.framework:
                return a if a.thing is b.thing else self.same_engine(formula, a, b)
        elif (
            isinstance(a, Ref)
            and isinstance(b, Ref)
            and a.role == b.role
            and a.role in ("scaler", "optimizer", "module")
        ):
            if a.thing is b.thing:
                return a
            enabled = either(both(formula, a.enabled), both(negate(formula), b.enabled))
            return Ref(self.same_thing(a.thing, b.thing), self.short(enabled))
        if isinstance(a, Named) and isinstance(b, Named):
            return self._either_name(formula, a, b)
        if isinstance(a, Params) and isinstance(b, Params) and a.one == b.one:
            merged = merge_params([a, b])
            merged.one = a.one
            return merged
        if isinstance(a, Tensor) and isinstance(b, Tensor) and (a.scaler, a.uneven) == (b.scaler, b.uneven):
            tensor = Tensor.merge([a, b])
            tensor.divided = a.divided or b.divided
            tensor.divisors = self._divisors_of_either(formula, a, b)
            return tensor
        if isinstance(a, Sequence) and isinstance(b, Sequence) and len(a.items) == len(b.items):
            pairs = zip(a.items, b.items, strict=True)
            items = [self.unite(formula, x, y, f"{name}[{i}]") for i, (x, y) in enumerate(pairs)]
            both_ways = Sequence(items, open=a.open or b.open)
            both_ways.pieces = a.pieces or b.pieces
            return both_ways
        if _matters(a) or _matters(b):
            options = [(self.short(both(formula, f)), v) for f, v in _options(a)]
            options += [(self.short(both(negate(formula), f)), v) for f, v in _options(b)]
            options = [(f, v) for f, v in options if f is not False]
            if len(options) <= 8:
                return Choice(options)
        met_opaque = self.opaque(("met", name, self.graph.name, len(self.draft.nodes)), name, a.loops | b.loops)
        met_opaque.divided = a.divided or b.divided
        sides = [side for side in (a, b) if isinstance(side, Opaque)]
        met_opaque.parameter = len(sides) == 2 and all(side.parameter for side in sides)
        met_opaque.compares = any(side.compares for side in sides)
        met_opaque.graded = any(side.graded for side in sides)
        met_opaque.readings = tuple(dict.fromkeys(reading for side in sides for reading in side.readings))
        if isinstance(a, Opaque) and isinstance(b, Opaque):
            met_opaque.divisors = self._divisors_of_either(formula, a, b)
        return met_opaque

    def _either_name(self, formula: Formula, a: Named, b: Named) -> Named:
        """The first of two names; of two dtypes it keeps which it is when."""
        first, second = a.dtypes, b.dtypes
        if first == second or not first or not second:
            return a
        met = Named(a.name)
        met.shim = a.shim
        for dtypes, here in ((first, formula), (second, negate(formula))):
            for dtype, condition in dtypes.items():
                met.ways[dtype] = self.short(either(met.ways.get(dtype, False), both(here, condition)))
        return met

    def _divisors_of_either(self, formula: Formula, a: Tensor | Opaque, b: Tensor | Opaque) -> frozenset[Divisor]:
        """What a loss was divided by on both ways, or on the one that a test of that very number leads to."""
        known = a.divisors & b.divisors
        if known == a.divisors == b.divisors:
            return known
        asked = {key for key, _ in literals(formula)}
        questions = [self.tests.question(key) for key in asked] if len(asked) == 1 else []
        return known | {d for d in a.divisors ^ b.divisors if any(_mentions(question, d.key) for question in questions)}

    def same_engine(self, formula: Formula, a: Engine, b: Engine) -> Engine:
        """The one engine that stands for either of two of one framework."""
        enabled = either(both(formula, a.enabled), both(negate(formula), b.enabled))
        steps = a.steps if _same_number(a.steps, b.steps) else self.opaque(("steps", a.thing.key, b.thing.key), "")
        precision = self.unite(formula, a.precision, b.precision, "precision")
        thing = self.same_thing(a.thing, b.thing)
        return Engine(a.framework, thing, enabled, a.source, precision, steps, a.optimizer)

    def same_thing(self, a: Thing, b: Thing) -> Thing:
        """The one thing that stands for either of two, made on the two arms of a fork."""
        thing = self.thing(("either", a.key, b.key), a.role, a.name, a.site)
        owns = a.facts.get("owns"), b.facts.get("owns")
        thing.facts.update({**b.facts, **a.facts})
        thing.facts["owns"] = None if None in owns else owns[0] | owns[1]  # type: ignore[operator]
        if a.role == "optimizer" and a.site is not None:
            # Made anew on one of the arms, as far as is known.
            self.emit_at(e.OPTIMIZER_NEW, a.site, thing.key, found=True)
        return thing

    # Objects.

    def store(self, key: int, name: str, value: Value) -> None:
        """Give an object an attribute."""
        self.state.heap[key, name] = value
        self.written.append((key, name))
        self.fields.setdefault(key, {})[name] = None

    def attributes(self, key: int) -> list[tuple[str, Value]]:
        """What an object holds here, by name."""
        names = self.fields.get(key, ())
        return [(name, value) for name in names if (value := self.state.heap.get((key, name))) is not None]

    def held(self, values: Iterable[Value]) -> list[Thing]:
        """The scalers and optimizers that values are or hold."""
        things: dict[int, Thing] = {}
        seen: set[int] = set()
        for value in values:
            self._hold(value, things, seen, 0)
        return list(things.values())

    def _hold(self, value: Value, things: dict[int, Thing], seen: set[int], depth: int) -> None:
        if isinstance(value, Ref):
            if value.role in ("scaler", "optimizer"):
                things[value.thing.key] = value.thing
            return
        inner: Iterable[Value] = ()
        if isinstance(value, Sequence):
            inner = value.items
        elif isinstance(value, Mapping):
            inner = value.items.values()
        elif isinstance(value, Choice):
            inner = [option for _, option in value.options]
        elif isinstance(value, Instance) and value.key not in seen:
            seen.add(value.key)
            inner = [item for _, item in self.attributes(value.key)]
        if depth < HOLDERS:
            for item in inner:
                self._hold(item, things, seen, depth + 1)

    # Things and unknown values.

    def thing(self, key: object, role: str, name: str, site: Site | None) -> Thing:
        """The thing with a key: the same whenever the same expression is read in the same call chain."""
        made = self.things.get(key)
        if made is None:
            made = self.things[key] = self.program.thing(role, name, site)
        return made

    def place_key(self, node: ast.AST) -> tuple[object, ...]:
        """A key for what is made at a place: the syntax node and the calls that led there."""
        chain: list[object] = [id(node)]
        site = self.state.frame.caller
        while site is not None:
            chain.append((site.path, site.line, site.column))
            site = site.caller
        return tuple(chain)

    def opaque(self, key: object, text: object, loops: frozenset[int] = EMPTY, *, parameter: bool = False) -> Opaque:
        """The unknown value with a key: the same question about it is the same test."""
        made = self.opaques.get(key)
        if made is None:
            self.serial += 1
            made = self.opaques[key] = Opaque(self.serial, text, loops, parameter=parameter)
        return made

    def fresh(self, node: ast.AST, text: object = "") -> Opaque:
        """A new unknown value, made at a place: other on every turn of the loops around it."""
        return self.opaque(
            ("fresh", self.place_key(node), text if isinstance(text, str) else id(node)), text, self.turning()
        )

    def number(self, value: Value) -> int:
        """A number that no other value has. The value is kept, or one that is made later could lie where it did."""
        self.numbered[id(value)] = value
        return id(value)

    def turning(self) -> frozenset[int]:
        return frozenset([loop.key for loop in self.state.loops]) if self.state.loops else EMPTY

    # Questions about values.

    def ask(self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None) -> Formula:
        test = self.tests.test(question, text, self.site(node) if node is not None else None, loops)
        return ("test", test.key)

    def short(self, formula: Formula) -> Formula:
        """A formula, or where it speaks of many tests a question of its own, so that formulas do not grow for ever."""
        if weight(formula, LONG) < LONG:
            return formula
        return self.ask(("long", formula), "", self.turning())

    def truth(self, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
        """The condition under which a value is true."""
        if isinstance(value, Const):
            return bool(value.value)
        if isinstance(value, Truth):
            return value.formula
        if isinstance(value, Choice):
            return self.short(either(*(both(f, self.truth(v, text, node)) for f, v in value.options)))
        if isinstance(value, Ref) and value.source is not None:
            value = value.source
        if isinstance(value, Opaque):
            formula = self.ask(("true", value.key), text or value.words, value.loops, node)
            if not isinstance(formula, bool):
                test = self.graph.tests[formula[1]]
                test.counts = test.counts or value.counter
                test.flag = test.flag or value.argument
                for reading in value.readings if test.of_gradients is not None else ():
                    owners = reading.facts.get("owners")
                    test.of_gradients = None if owners is None else (test.of_gradients or frozenset()).union(owners)
                    if owners is None:
                        break
                if not test.implies and ("none", value.key) in self.tests.keys:
                    self._imply(value)
            return formula
        if isinstance(value, Tensor):
            return self.ask(("true", self.number(value)), text, value.loops | self.turning(), node)
        if isinstance(value, Sequence):
            return (
                True
                if value.items
                else self.ask(("true", self.number(value)), text, self.turning(), node)
                if value.open
                else False
            )
        return True

    def is_none(self, value: Value, text: object = "", node: ast.AST | None = None) -> Formula:
        """The condition under which a value is None."""
        if isinstance(value, Const):
            return value.value is None
        if isinstance(value, Choice):
            return self.short(either(*(both(f, self.is_none(v, text, node)) for f, v in value.options)))
        if isinstance(value, Ref) and value.source is not None:
            value = value.source
        if isinstance(value, Opaque):
            formula = self.ask(("none", value.key), _IsNone(text or value.words), value.loops, node)
            if ("true", value.key) in self.tests.keys:
                self._imply(value)
            return formula
        return False

    def _imply(self, value: Opaque) -> None:
        """What is true is not None, and None is not true."""
        true = self.graph.tests[self.tests.keys["true", value.key]]
        none = self.graph.tests[self.tests.keys["none", value.key]]
        if not true.implies:
            true.implies.append((True, none.key, False))
            none.implies.append((True, true.key, False))


class _IsNone:
    """The words of a question for None."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __str__(self) -> str:
        return f"{self._of} is None"


def _is_truth(value: Value) -> bool:
    return isinstance(value, Truth) or (isinstance(value, Const) and isinstance(value.value, bool))


def _formula(value: Value) -> Formula:
    if isinstance(value, Truth):
        return value.formula
    assert isinstance(value, Const)
    return bool(value.value)


def _same_number(a: Value | None, b: Value | None) -> bool:
    return a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value == b.value)


def _mentions(question: object, key: object) -> bool:
    """Whether a question is about the value of a key."""
    if question == key or question == repr(key):
        return True
    return isinstance(question, tuple) and any(_mentions(part, key) for part in question[1:])


def _matters(value: Value) -> bool:
    """Whether the protocol cares which of two values it is."""
    if isinstance(value, Const):
        return value.value is None or isinstance(value.value, (str, bool))
    if isinstance(value, Tensor):
        return value.scaler >= 0
    return isinstance(
        value,
        (
            Ref,
            Instance,
            FunctionValue,
            ClassValue,
            NullContext,
            HelperContext,
            StackContext,
            Partial,
            BoundMethod,
            Choice,
            ScaledLoss,
            ScaleValue,
            Saver,
            Params,
            StateDict,
            Mapping,
            Sequence,
            GradMode,
            Named,
            NoSync,
        ),
    )


def _options(value: Value) -> list[tuple[Formula, Value]]:
    return value.options if isinstance(value, Choice) else [(True, value)]
