"""The interpreter: what is known of the file being read, the graph under construction, and who handles what.

It knows no library, no statement and no expression: these are handled by the functions that it is given, which know it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...protocol import events as e
from ...protocol.events import Event, Graph, Node, Program, Site, Test, Thing
from ..project.module import Class, Function, Module
from ..project.project import Project
from .conditions import Formula, Tests, implied, literals, weight
from .passed import Passed
from .state import Draft, State
from .values import EMPTY, Args, Frame, FunctionValue, Instance, Keywords, Opaque, Value, Vars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Notes = TypeVar("Notes")
    Result = TypeVar("Result")

#: Tests that a formula may speak of.
LONG = 24


class Context:
    """What a value does as the context of a ``with`` block: this is one that does nothing."""

    def enter(self, at: Interpreter, value: Any, node: ast.AST) -> None:
        """What entering it does."""

    def exit(self, at: Interpreter, value: Any, node: ast.AST, depth: int) -> None:
        """What leaving it does to the graph: only ``depth`` regions stay open."""

    def close(self, at: Interpreter, value: Any) -> None:
        """What is no longer around once it is left."""

    def entered(self, at: Interpreter, value: Any, node: ast.expr) -> Value:
        """What ``as`` gives a name to."""
        made = at.fresh(node, "entered")
        made.divided = isinstance(value, Opaque) and value.divided
        return made


class Handlers:
    """Who handles what: functions that are given the interpreter, by the kind of syntax or of value.

    Where a list of functions is asked, the first that has an answer gives it. Those that listen hear of something in
    the order in which they were registered.
    """

    def __init__(self) -> None:
        self.expressions: dict[type[ast.AST], Callable[[Interpreter, Any], Value]] = {}
        self.statements: dict[type[ast.AST], Callable[[Interpreter, Any], None]] = {}
        #: What a value of a kind does where it is called, asked for a method or for an attribute, and in a ``with``; ""
        #: is every other kind.
        self.calls: dict[str, Callable[[Interpreter, Any, Args, Keywords, ast.AST], Value]] = {}
        self.methods: dict[str, Callable[[Interpreter, Any, str, Args, Keywords, ast.AST], Value]] = {}
        self.attributes: dict[str, Callable[[Interpreter, Any, str, ast.AST], Value | None]] = {}
        self.contexts: dict[str, Context] = {}
        #: What going over a value of a kind gives next.
        self.elements: dict[str, Callable[[Interpreter, Any, ast.AST], Value]] = {}
        #: A ``with`` block around a value of a kind that is read in a way of its own.
        self.blocks: dict[str, Callable[[Interpreter, Any, ast.With | ast.AsyncWith, int], None]] = {}
        #: A value of a kind is an operand or is formatted; it is the target of an augmented assignment; one of its
        #: attributes is assigned to, which it may leave to others.
        self.operands: dict[str, Callable[[Interpreter, Any, ast.AST], object]] = {}
        self.augmented: dict[str, Callable[[Interpreter, Any, Value, ast.AST], None]] = {}
        self.written: dict[str, Callable[[Interpreter, Any, str, Value, ast.Attribute], bool]] = {}
        #: What an operator makes of two values.
        self.operators: list[Callable[[Interpreter, str, Value, Value, ast.AST], Value | None]] = []
        #: What a value of which nothing is known is by its use, by role; what a parameter is by its annotation.
        self.recognised: dict[str, Callable[[Interpreter, str, Opaque, str, ast.AST], Value]] = {}
        self.annotations: list[Callable[[Interpreter, str, Opaque, ast.arg], Value | None]] = []
        #: What calling a class makes that has a role; methods of classes and objects that no class of the project has.
        self.constructors: dict[str, Callable[[Interpreter, Class, Args, Keywords, ast.AST], Value | None]] = {}
        self.class_methods: list[Callable[[Interpreter, Any, str, list[Value]], Value | None]] = []
        self.inherited_methods: list[Callable[[Interpreter, Instance, str, Args, Keywords, ast.AST], Value | None]] = []
        self.inherited_attributes: list[Callable[[Interpreter, Instance, str, ast.AST], Value | None]] = []
        #: What is known of the dtype of what an expression of a kind gives, whose parts were evaluated just before.
        self.annotations_of: dict[type[ast.AST], Callable[[Interpreter, Any, Value], Value]] = {}
        #: Hear of a statement that assigns, before it does, with the value of each of its targets as they are; of an
        #: item that is assigned to; of an expression that is a statement, and of an average that is left to the
        #: learning rate.
        self.assigned: list[Callable[[Interpreter, ast.Assign], None]] = []
        self.item_written: list[Callable[[Interpreter, Value, Value, ast.Subscript, Value], None]] = []
        #: Hear of a test that a program does not go on without, once it was asked.
        self.demanded: list[Callable[[Interpreter, ast.expr], None]] = []
        self.expression_read: list[Callable[[Interpreter, ast.expr], None]] = []
        self.rate_divided: list[Callable[[Interpreter, Any], None]] = []
        #: Hears of what a call gives, by the last name of what is called.
        self.results: dict[str, Callable[[Interpreter, Value, ast.Call], None]] = {}
        #: What a function does, by its dotted name: None where it does what its arguments alone tell.
        self.functions: dict[str, Callable[[Interpreter, Args, Keywords, ast.AST], Value | None]] = {}
        #: What a function does that plays a role in the table of torch, or in that of the frameworks.
        self.roles: dict[str, Callable[[Interpreter, Any, Args, Keywords, ast.AST], Value]] = {}
        self.framework_roles: dict[str, Callable[[Interpreter, Any, Keywords, ast.AST], Value]] = {}
        #: Hear of a module that runs forward, of a loss that runs backward, of one that has, and of the norm that a
        #: clip gives.
        self.forward_run: list[Callable[[Interpreter, Thing, ast.AST], None]] = []
        self.backward_run: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.backward_ended: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.clipped: list[Callable[[Interpreter, Value | None, Opaque], None]] = []
        #: Steps an optimizer in a way of its own, or clears its gradients so, if it does.
        self.optimizer_steps: list[Callable[[Interpreter, Any, ast.AST, dict[str, object]], bool]] = []
        self.optimizer_clears: list[Callable[[Interpreter, Any, ast.AST, Callable[[], None]], bool]] = []
        #: Hear of a function that nobody calls, before and after it is read; of a whole file, once its body is read.
        self.root_entered: list[Callable[[Interpreter, Function], None]] = []
        self.root_left: list[Callable[[Interpreter, Function, Value], None]] = []
        self.file_read: list[Callable[[Interpreter], None]] = []
        #: Hear of what code that cannot be read is given, until one has dealt with it.
        self.handed: list[Callable[[Interpreter, Value, list[Value], ast.AST], bool]] = []


class Interpreter:
    """Reads one file: everything that handles a part of it is given this."""

    def __init__(
        self, handlers: Handlers, module: Module, program: Program, things: dict[object, Thing], project: Project
    ) -> None:
        self.handlers = handlers
        self.module = module
        self.program = program
        self.things = things
        self.project = project
        #: Functions whose bodies were read where they are called: all, and in this graph.
        #: Functions that were read, and those that were read as methods of a class.
        self.roots_reached: set[tuple[ast.AST, Class | None]] = set()
        self.reached: set[tuple[str, int]] = set()
        #: Globals of other files, by path, and the names in them that are being looked for.
        self.homes: dict[str, Frame] = {}
        self.binding: set[tuple[str, str]] = set()
        self.active: list[Function] = []
        #: The classes that each class derives from.
        self.lineages: dict[Class, list[Class]] = {}
        #: Classes whose bases are being evaluated, and the values that the names in their bases had where they begin.
        self.deriving: set[Class] = set()
        self.derived_from: dict[tuple[Class, str], Value] = {}
        #: The attributes that the methods of a class set, or use as something.
        self.filled: dict[Class, frozenset[str]] = {}
        #: Whether every name of this file has its value.
        self.bound = False
        #: Assignments of attributes that are being read for the value they give.
        self.looked_up: set[int] = set()
        self.instances: dict[object, Instance] = {}
        self.opaques: dict[object, Opaque] = {}
        #: The numbers of loops, by their places: one that was read on trial is the same loop when it is read again.
        self.loop_keys: dict[object, int] = {}
        #: Those of the calls of functions that are read by themselves, each of which is like a turn of a loop.
        self.call_keys: dict[ast.AST, int] = {}
        self.serial = 0
        self.numbered: dict[int, Value] = {}
        self.total = self.spent = self.abroad = self.all_abroad = 0
        self.defined: dict[ast.AST, FunctionValue] = {}
        #: Frames that functions, or a class, were defined in.
        self.captured: list[Frame] = []
        self.class_vars: dict[ast.AST, Vars] = {}
        #: The frames of functions that classes were defined in: their methods find its variables.
        self.enclosing: dict[Class, Frame] = {}
        self.globals = Frame(None, None, None, module)
        self.state = State(self.globals, {})
        #: Tests that compare a value with a constant each, by the identity of the value.
        self.compared: dict[object, list[int]] = {}
        #: Names of the attributes that each object was ever given.
        self.fields: dict[int, dict[str, None]] = {}
        #: Places in the heap in the order in which they were written: what two ways on may differ in.
        self.written: list[tuple[int, str]] = []
        self.tests = Tests()
        #: What handlers take note of: in this graph, and in the file.
        self._of_graph: dict[Any, Any] = {}
        self._of_file: dict[Any, Any] = {}
        #: What the expressions of a file that low precision may spoil were evaluated to when they last were.
        self.values: dict[ast.AST, Value] = {}
        #: Events that belong to no place in the graph that is read, by place and kind: they are added once it is whole.
        self.found: dict[tuple[object, ...], Event] = {}
        #: The calls that were come by, where somebody asks for them.
        self.passed: Passed | None = None
        self.begin("<module>")

    def begin(self, name: str) -> None:
        """Start a new graph."""
        self.graph = Graph(name)
        self.reached = set()
        self.graph.tests = self.tests.asked
        self.draft = Draft(self.graph.nodes)
        self.draft.nodes.append(Node())
        self.state = State(self.globals, self.state.heap)
        self._of_graph = {}
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
        self.state.cur = self.draft.node()
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

    # Who handles what.

    def evaluate(self, node: ast.expr) -> Value:
        """The value of an expression."""
        kind = type(node)
        handler = self.handlers.expressions.get(kind)
        if handler is not None:
            value = handler(self, node)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child)
            value = self.fresh(node)
        return self.annotated(kind, node, value)

    def annotated(self, kind: type[ast.AST], node: ast.AST, value: Value) -> Value:
        """The value of an expression with what is known of its dtype, in code where that may matter."""
        if not (self.module.fragile or self.state.frame.module.fragile):
            return value
        annotate = self.handlers.annotations_of.get(kind)
        if annotate is not None:
            value = annotate(self, node, value)
        self.values[node] = value
        return value

    def read(self, statements: Items[ast.stmt]) -> None:
        """Read a block; stops where its end cannot be reached."""
        state = self.state
        base, shims = len(state.path), state.shims
        handlers = self.handlers.statements
        for statement in statements:
            if state.cur is None:
                break
            self.spent += 1
            if state.frame.module is not self.module:
                self.abroad += 1
            handler = handlers.get(type(statement))
            if handler is not None:
                handler(self, statement)
        del state.path[base:]
        state.shims = shims

    def call_value(self, func: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """What a call of a value gives."""
        handlers = self.handlers.calls
        return (handlers.get(func.kind) or handlers[""])(self, func, args, keywords, node)

    def method(self, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """What a call of a method gives."""
        handlers = self.handlers.methods
        return (handlers.get(receiver.kind) or handlers[""])(self, receiver, name, args, keywords, node)

    def of_graph(self, kind: Callable[[], Notes]) -> Notes:
        """The notes of a kind that were taken in this graph."""
        return _noted(self._of_graph, kind)

    def of_file(self, kind: Callable[[], Notes]) -> Notes:
        """The notes of a kind that were taken in this file."""
        return _noted(self._of_file, kind)

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

    def emit(
        self, kind: e.Kind, node: ast.AST, subject: int | None = None, object: int | None = None, **facts: Any
    ) -> Event | None:
        """Add an event here; ``names`` among the facts become the event's names."""
        if self.state.cur is None:
            return None
        if kind == e.ZERO_GRAD and self.state.rescuing:
            facts["rescue"] = True
        site = self.site(node)
        if self.passed is not None:
            self.passed.judged(site)
        event = self._happens(self.state.cur, kind, site, subject, object, facts)
        for places in self.state.handlers:
            places.append(self.state.cur)
        return event

    def emit_at(self, kind: e.Kind, site: Site, subject: int | None, **facts: Any) -> None:
        """Add an event here that speaks of another place."""
        if self.state.cur is not None:
            self._happens(self.state.cur, kind, site, subject, None, facts)

    def _happens(
        self, cur: int, kind: e.Kind, site: Site, subject: int | None, object: int | None, facts: dict[str, Any]
    ) -> Event:
        names = facts.pop("names", None)
        if kind.turns:
            # In which loops it happens matters.
            facts.setdefault("loops", (*(loop.key for loop in self.state.loops), *self.state.turns))
        event = Event(kind, site, subject, object, facts, names, self.guards())
        self.state.cur = self.draft.node(event)
        self.draft.link(cur, self.state.cur)
        self.draft.happened += 1
        return event

    def guards(self) -> tuple[tuple[int, bool], ...]:
        """The tests under which the place being read stands."""
        pairs = dict.fromkeys(pair for formula in self.state.path for pair in literals(formula))
        known = dict(pair for formula in self.state.path for pair in implied(formula))
        return tuple((key, truth) for key, truth in pairs if known.get(key, truth) == truth)

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

    def test(self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None) -> Test:
        return self.tests.test(question, text, self.site(node) if node is not None else None, loops)

    def ask(self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None) -> Formula:
        return ("test", self.test(question, text, loops, node).key)

    def short(self, formula: Formula) -> Formula:
        """A formula, or where it speaks of many tests a question of its own, so that formulas do not grow for ever."""
        if weight(formula, LONG) < LONG:
            return formula
        return self.ask(("long", formula), "", self.turning())


def within(at: Interpreter, frame: Frame, act: Callable[[], Result]) -> Result:
    """What is found where the variables are those of a frame."""
    outer, at.state.frame = at.state.frame, frame
    result = act()
    at.state.frame = outer
    return result


def first_answer(asked: Items[Callable[..., Value | None]], *given: Any) -> Value | None:
    """The answer of the first that has one."""
    for ask in asked:
        found = ask(*given)
        if found is not None:
            return found
    return None


def _noted(held: dict[Any, Any], kind: Callable[[], Notes]) -> Notes:
    made: Notes | None = held.get(kind)
    if made is None:
        made = held[kind] = kind()
    return made
