"""The abstract machine: the graph under construction, the frames of functions, how values meet after a fork."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...protocol import events as e
from ...protocol.events import Event, Graph, Node, Program, Site, Thing
from ...protocol.named import NamedTuple
from ..project.module import Class, Function, Module
from ..project.project import Project
from .conditions import Formula, Tests, both, either, literals, negate, weight
from .dtypes import Precise, known_of_both
from .values import (
    EMPTY,
    NONE,
    BoundMethod,
    Choice,
    ClassValue,
    Const,
    Divisor,
    Engine,
    FunctionValue,
    GradMode,
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

Vars = dict[str, Value]
Heap = dict[tuple[int, str], Value]


class Frame:
    """A call that is being read: the variables of a function and where it returns to."""

    __slots__ = (
        "caller",
        "cls",
        "function",
        "module",
        "of_class",
        "on_yield",
        "parent",
        "path_base",
        "receiver",
        "returns",
        "unwind_base",
        "vars",
        "yields_pieces",
    )

    def __init__(
        self, function: Function | None, parent: Frame | None, caller: Site | None, module: Module | None = None
    ) -> None:
        home = function.module if function is not None else parent.module if parent is not None else module
        assert home is not None
        self.module: Module = home
        self.function = function
        self.parent = parent
        self.caller = caller
        self.vars: Vars = {}
        self.receiver: Value | None = None
        self.cls: Class | None = None
        self.returns: list[tuple[int, Formula, Value, Heap]] = []
        self.unwind_base = 0
        self.path_base = 0
        self.of_class = False
        self.yields_pieces = False
        self.on_yield: Callable[[Value], None] | None = None

    @property
    def name(self) -> str:
        return self.function.qualified_name if self.function else "<module>"


class Loop:
    """A loop that is being read. ``key`` names its turns in :attr:`Value.loops`.

    ``node`` and ``frame`` are where it stands; ``pieces`` says that it runs over the micro-batches of a window.
    """

    __slots__ = ("breaks", "continues", "frame", "key", "node", "pieces", "unwind_base")

    def __init__(self, key: int, unwind_base: int) -> None:
        self.key = key
        self.unwind_base = unwind_base
        self.node: ast.For | ast.AsyncFor | ast.While | None = None
        self.frame: Frame | None = None
        self.pieces = False
        self.breaks: list[tuple[int, Vars, Heap]] = []
        self.continues: list[tuple[int, Vars, Heap]] = []


class Mark(NamedTuple):
    """A place in the graph, and what had happened before it."""

    place: int | None
    ways: int
    size: int
    happened: int
    returned: int
    jumped: int


class Open:
    """An autocast region that stands open around the place being read."""

    __slots__ = ("cache", "device", "dtype", "enabled", "site", "turns", "words")

    def __init__(self, enabled: Formula, device: str, dtype: str, *, cache: bool = True) -> None:
        self.cache = cache
        self.enabled = enabled
        self.device = device
        self.dtype = dtype
        #: Where it was entered, by what words, and the loops around that place.
        self.site: Site | None = None
        self.words: object = ""
        self.turns: tuple[int, ...] = ()


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
        self.heap: Heap = {}
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
        self.graph.nodes.append(Node())
        self.cur: int | None = 0
        self.frame = self.globals
        self.path: list[Formula] = []
        self.unwind: list[Callable[[], None]] = []
        self.loops: list[Loop] = []
        self.heads: list[tuple[int, int]] = []
        self.open: list[Open] = []
        self.maybe_open = 0
        self.no_grad = 0
        #: How far it is known that a framework runs this code under autocast: a severity, or None where it does not.
        self.ambient: str | None = None
        #: When gradients are not averaged over processes here, for each context that says so.
        self.apart: list[Formula] = []
        #: Statements read: in this graph, and in the whole file before it.
        self.total += self.spent
        self.all_abroad += self.abroad
        self.spent = self.abroad = 0
        #: What provides for another version of a library: tests and handlers around the place being read, and tries
        #: of such handlers in the same function. What one of these calls provides for nothing.
        self.shims = self.trying = 0
        self.guarded = 0
        #: Forwards of modules that are being read for what they do to a loss.
        self.forwards = 0
        #: Handlers of errors around the place being read.
        self.rescuing = 0
        #: The comprehensions whose element is being read, each a loop that is read as one turn.
        self.turns: tuple[int, ...] = ()
        self.depth = 0
        self.entered = 0
        self.handlers: list[list[int]] = []
        #: Events and raises, returns, and jumps of loops so far: what holds none can be left out of the graph.
        self.happened = 0
        self.returned = 0
        self.jumped = 0

    def release(self) -> None:
        """Let go of all that was read: values, frames and this object know each other."""
        for frame in (self.globals, *self.homes.values(), *self.captured):
            frame.vars.clear()
        vars(self).clear()

    def finish(self) -> None:
        """Settle what only the whole graph tells: which answers each turn of a loop makes unknown."""
        lasting = 0
        for node in self.graph.nodes:
            if node.event is not None and node.event.kind in (e.BACKWARD, e.SCALER_STEP, e.STEP):
                for key, _ in node.event.guards:
                    test = self.graph.tests[key]
                    if not test.counts and (not test.flag or node.event.kind == e.BACKWARD):
                        lasting |= 1 << key
        for head, loop in self.heads:
            forgotten = self.tests.forgotten_by(loop)
            if loop < 0:
                # Whoever calls a function again has not meanwhile changed how it runs backward and steps.
                forgotten &= ~lasting
            self.graph.nodes[head].forgets |= forgotten

    def aside(self, act: Callable[[], None]) -> None:
        """Read something for the values it gives, without keeping its events."""
        nodes, cur, heads, handlers = self.graph.nodes, self.cur, self.heads, self.handlers
        unwind, loops, path = self.unwind, self.loops, self.path
        happened, returned, jumped = self.happened, self.returned, self.jumped
        opened, maybe, depth, no_grad = self.open, self.maybe_open, self.depth, self.no_grad
        self.graph.nodes, self.heads, self.handlers = [], [], []
        apart, self.apart = self.apart, list(self.apart)
        self.open, self.path, self.loops = list(opened), list(path), list(loops)
        self.cur = self.node()
        act()
        self.graph.nodes, self.cur, self.heads, self.handlers = nodes, cur, heads, handlers
        self.unwind, self.loops, self.path = unwind, loops, path
        self.happened, self.returned, self.jumped = happened, returned, jumped
        self.open, self.maybe_open, self.depth, self.no_grad = opened, maybe, depth, no_grad
        self.apart = apart

    # Places.

    def site(self, node: ast.AST) -> Site:
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None)
        module = self.frame.module
        return Site(
            module.path,
            line,
            module.column(line, column),
            end_line,
            module.column(end_line, column if end_column is None else end_column),
            self.frame.name,
            self.frame.caller,
        )

    # The graph.

    def node(self, event: Event | None = None) -> int:
        self.graph.nodes.append(Node(event))
        return len(self.graph.nodes) - 1

    def link(self, source: int | None, target: int, key: int = -1, truth: bool = True) -> None:
        if source is not None:
            self.graph.nodes[source].ways.append((target, key, truth))

    def emit(
        self, kind: str, node: ast.AST, subject: int | None = None, object: int | None = None, **facts: Any
    ) -> Event | None:
        """Add an event here; ``names`` among the facts become the event's names."""
        if self.cur is None:
            return None
        names = facts.pop("names", None)
        if kind == e.ZERO_GRAD and self.rescuing:
            facts["rescue"] = True
        if kind in (e.ZERO_GRAD, e.BACKWARD, e.SCALER_STEP, e.SCHEDULER_STEP):
            facts["loops"] = (*(loop.key for loop in self.loops), *self.turns)
        event = Event(kind, self.site(node), subject, object, facts, names, self.guards())
        here = self.node(event)
        self.link(self.cur, here)
        self.cur = here
        self.happened += 1
        for handlers in self.handlers:
            handlers.append(here)
        return event

    def emit_at(self, kind: str, site: Site, subject: int | None, **facts: Any) -> None:
        """Add an event here that speaks of another place."""
        if self.cur is not None:
            names = facts.pop("names", None)
            here = self.node(Event(kind, site, subject, None, facts, names, self.guards()))
            self.link(self.cur, here)
            self.cur = here
            self.happened += 1

    def guards(self) -> tuple[tuple[int, bool], ...]:
        """The tests under which the place being read stands."""
        return tuple(dict.fromkeys(pair for formula in self.path for pair in literals(formula)))

    def mark(self) -> Mark:
        """Remember this place, so that what follows can be left out if nothing happens in it."""
        ways = len(self.graph.nodes[self.cur].ways) if self.cur is not None else 0
        return Mark(self.cur, ways, len(self.graph.nodes), self.happened, self.returned, self.jumped)

    def forget(self, mark: Mark) -> None:
        """Go back to a marked place if nothing has happened since and the way on is open."""
        place, ways, size = mark.place, mark.ways, mark.size
        if place is None or self.cur is None:
            return
        if (self.happened, self.returned, self.jumped) != (mark.happened, mark.returned, mark.jumped):
            return
        del self.graph.nodes[size:]
        del self.graph.nodes[place].ways[ways:]
        while self.heads and self.heads[-1][0] >= size:
            self.heads.pop()
        self.cur = place

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
        if self.cur is None:
            return None, None
        if isinstance(formula, bool):
            return (self.cur, None) if formula else (None, self.cur)
        word = formula[0]
        yes: int | None
        no: int | None
        if word == "test":
            answered, denied = self.node(), self.node()
            self.link(self.cur, answered, formula[1], True)
            self.link(self.cur, denied, formula[1], False)
            return answered, denied
        if word == "not":
            no, yes = self.lower(formula[1])
            return yes, no
        # Short circuit: an "and" goes on while its parts are true, an "or" while they are false.
        ends: list[int | None] = []
        for part in formula[1:]:
            yes, no = self.lower(part)
            ends.append(no if word == "and" else yes)
            self.cur = yes if word == "and" else no
            if self.cur is None:
                break
        through = self.cur
        short = self.join(ends)
        return (through, short) if word == "and" else (short, through)

    def fork(self, formula: Formula, then: Callable[[], None], otherwise: Callable[[], None]) -> tuple[bool, bool]:
        """Read two ways on, each with its own variables, and let them meet; says which of them come to an end."""
        formula = self.short(formula)
        if isinstance(formula, bool):
            (then if formula else otherwise)()
            return (self.cur is not None, False) if formula else (False, self.cur is not None)
        mark = self.mark()
        yes, no = self.lower(formula)
        before_vars, before_heap, before = self.frame.vars, self.heap, len(self.written)
        self.frame.vars, self.heap, self.cur = dict(before_vars), dict(before_heap), yes
        self.path.append(formula)
        then()
        self.path.pop()
        after_yes = (self.cur, self.frame.vars, self.heap)
        self.frame.vars, self.heap, self.cur = dict(before_vars), dict(before_heap), no
        self.path.append(negate(formula))
        otherwise()
        self.path.pop()
        after_no = (self.cur, self.frame.vars, self.heap)
        self.meet(formula, after_yes, after_no, before)
        if after_yes[0] is not None and after_no[0] is not None:
            self.forget(mark)
        return after_yes[0] is not None, after_no[0] is not None

    def meet(
        self, formula: Formula, yes: tuple[int | None, Vars, Heap], no: tuple[int | None, Vars, Heap], before: int
    ) -> None:
        if yes[0] is None:
            self.cur, self.frame.vars, self.heap = no
        elif no[0] is None:
            self.cur, self.frame.vars, self.heap = yes
        else:
            self.cur = self.join((yes[0], no[0]))
            self.frame.vars = self.meet_maps(formula, yes[1], no[1], yes[1])
            self.heap = self.meet_maps(formula, yes[2], no[2], dict.fromkeys(self.written[before:]))

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
        met_opaque = self.opaque(("met", name, self.graph.name, len(self.graph.nodes)), name, a.loops | b.loops)
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
        self.heap[key, name] = value
        self.written.append((key, name))
        self.fields.setdefault(key, {})[name] = None

    def attributes(self, key: int) -> list[tuple[str, Value]]:
        """What an object holds here, by name."""
        names = self.fields.get(key, ())
        return [(name, value) for name in names if (value := self.heap.get((key, name))) is not None]

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
        site = self.frame.caller
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
        return frozenset([loop.key for loop in self.loops]) if self.loops else EMPTY

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


__all__ = ["BUDGET", "DEPTH", "NONE", "Frame", "Interpreter", "Loop", "Open", "e"]
