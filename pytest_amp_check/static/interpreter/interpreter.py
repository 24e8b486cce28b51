"""The interpreter: what is known of the file being read, the graph under construction, and who handles what.

It knows no library, no statement and no expression: these are handled by the functions that it is given, which know it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...protocol import events as e
from ...protocol.events import Event, Graph, Node, Predicate, Program, Site, TrackedObject
from ..project.module import Class, Function, Module
from ..project.project import Project
from .conditions import Formula, PredicateTable, count_predicates, implied_literals, literals
from .state import AbstractState, GraphBuilder
from .values import EMPTY, Args, Frame, FunctionValue, Instance, Keywords, UnknownValue, Value, Vars
from .visited_calls import VisitedCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Notes = TypeVar("Notes")
    Result = TypeVar("Result")

#: Tests that a formula may speak of.
MAX_PREDICATES = 24


class ContextHandler:
    """What a value does as the context of a ``with`` block: this is one that does nothing."""

    def enter(self, interp: Interpreter, value: Any, node: ast.AST) -> None:
        """What entering it does."""

    def exit(self, interp: Interpreter, value: Any, node: ast.AST, depth: int) -> None:
        """What leaving it does to the graph: only ``depth`` regions stay open."""

    def close(self, interp: Interpreter, value: Any) -> None:
        """What is no longer around once it is left."""

    def entered_value(self, interp: Interpreter, value: Any, node: ast.expr) -> Value:
        """What ``as`` gives a name to."""
        made = interp.fresh_unknown(node, "entered")
        made.is_divided = isinstance(value, UnknownValue) and value.is_divided
        return made


class HandlerTable:
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
        self.contexts: dict[str, ContextHandler] = {}
        #: What going over a value of a kind gives next.
        self.loop_elements: dict[str, Callable[[Interpreter, Any, ast.AST], Value]] = {}
        #: A ``with`` block around a value of a kind that is read in a way of its own.
        self.with_blocks: dict[str, Callable[[Interpreter, Any, ast.With | ast.AsyncWith, int], None]] = {}
        #: A value of a kind is an operand or is formatted; it is the target of an augmented assignment; one of its
        #: attributes is assigned to, which it may leave to others.
        self.operands: dict[str, Callable[[Interpreter, Any, ast.AST], object]] = {}
        self.augmented_assignments: dict[str, Callable[[Interpreter, Any, Value, ast.AST], None]] = {}
        self.attribute_writes: dict[str, Callable[[Interpreter, Any, str, Value, ast.Attribute], bool]] = {}
        #: What an operator makes of two values.
        self.operators: list[Callable[[Interpreter, str, Value, Value, ast.AST], Value | None]] = []
        #: What a value of which nothing is known is by its use, by role; what a parameter is by its annotation.
        self.recognizers: dict[str, Callable[[Interpreter, str, UnknownValue, str, ast.AST], Value]] = {}
        self.annotated_parameters: list[Callable[[Interpreter, str, UnknownValue, ast.arg], Value | None]] = []
        #: What calling a class makes that has a role; methods of classes and objects that no class of the project has.
        self.constructors: dict[str, Callable[[Interpreter, Class, Args, Keywords, ast.AST], Value | None]] = {}
        self.class_methods: list[Callable[[Interpreter, Any, str, list[Value]], Value | None]] = []
        self.inherited_methods: list[Callable[[Interpreter, Instance, str, Args, Keywords, ast.AST], Value | None]] = []
        self.inherited_attributes: list[Callable[[Interpreter, Instance, str, ast.AST], Value | None]] = []
        #: What is known of the dtype of what an expression of a kind gives, whose parts were evaluated just before.
        self.dtype_annotators: dict[type[ast.AST], Callable[[Interpreter, Any, Value], Value]] = {}
        #: Hear of a statement that assigns, before it does, with the value of each of its targets as they are; of an
        #: item that is assigned to; of an expression that is a statement, and of an average that is left to the
        #: learning rate.
        self.assignment_listeners: list[Callable[[Interpreter, ast.Assign], None]] = []
        self.item_write_listeners: list[Callable[[Interpreter, Value, Value, ast.Subscript, Value], None]] = []
        #: Hear of a test that a program does not go on without, once it was asked.
        self.required_condition_listeners: list[Callable[[Interpreter, ast.expr], None]] = []
        self.expression_listeners: list[Callable[[Interpreter, ast.expr], None]] = []
        self.rate_division_listeners: list[Callable[[Interpreter, Any], None]] = []
        #: Hears of what a call gives, by the last name of what is called.
        self.call_result_listeners: dict[str, Callable[[Interpreter, Value, ast.Call], None]] = {}
        #: What a function does, by its dotted name: None where it does what its arguments alone tell.
        self.named_functions: dict[str, Callable[[Interpreter, Args, Keywords, ast.AST], Value | None]] = {}
        #: What a function does that plays a role in the table of torch, or in that of the frameworks.
        self.torch_roles: dict[str, Callable[[Interpreter, Any, Args, Keywords, ast.AST], Value]] = {}
        self.framework_roles: dict[str, Callable[[Interpreter, Any, Keywords, ast.AST], Value]] = {}
        #: Hear of a module that runs forward, of a loss that runs backward, of one that has, and of the norm that a
        #: clip gives.
        self.forward_listeners: list[Callable[[Interpreter, TrackedObject, ast.AST], None]] = []
        self.backward_start_listeners: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.backward_end_listeners: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.clip_listeners: list[Callable[[Interpreter, Value | None, UnknownValue], None]] = []
        #: Steps an optimizer in a way of its own, or clears its gradients so, if it does.
        self.optimizer_step_handlers: list[Callable[[Interpreter, Any, ast.AST, dict[str, object]], bool]] = []
        self.zero_grad_handlers: list[Callable[[Interpreter, Any, ast.AST, Callable[[], None]], bool]] = []
        #: Hear of a function that nobody calls, before and after it is read; of a whole file, once its body is read.
        self.entry_start_listeners: list[Callable[[Interpreter, Function], None]] = []
        self.entry_end_listeners: list[Callable[[Interpreter, Function, Value], None]] = []
        self.file_end_listeners: list[Callable[[Interpreter], None]] = []
        #: Hear of what code that cannot be read is given, until one has dealt with it.
        self.escape_listeners: list[Callable[[Interpreter, Value, list[Value], ast.AST], bool]] = []


class Interpreter:
    """Reads one file: everything that handles a part of it is given this."""

    def __init__(
        self,
        handlers: HandlerTable,
        module: Module,
        program: Program,
        tracked_objects: dict[object, TrackedObject],
        project: Project,
    ) -> None:
        self.handlers = handlers
        self.module = module
        self.program = program
        self.tracked_objects = tracked_objects
        self.project = project
        #: Functions whose bodies were read where they are called: all, and in this graph.
        #: Functions that were read, and those that were read as methods of a class.
        self.analyzed_functions: set[tuple[ast.AST, Class | None]] = set()
        self.reached_functions: set[tuple[str, int]] = set()
        #: Globals of other files, by path, and the names in them that are being looked for.
        self.globals_by_path: dict[str, Frame] = {}
        self.pending_names: set[tuple[str, str]] = set()
        self.active_functions: list[Function] = []
        #: The classes that each class derives from.
        self.lineage_by_class: dict[Class, list[Class]] = {}
        #: Classes whose bases are being evaluated, and the values that the names in their bases had where they begin.
        self.pending_classes: set[Class] = set()
        self.base_name_values: dict[tuple[Class, str], Value] = {}
        #: The attributes that the methods of a class set, or use as something.
        self.attributes_by_class: dict[Class, frozenset[str]] = {}
        #: Whether every name of this file has its value.
        self.is_fully_bound = False
        #: Assignments of attributes that are being read for the value they give.
        self.pending_assignments: set[int] = set()
        self.instances: dict[object, Instance] = {}
        self.unknown_values: dict[object, UnknownValue] = {}
        #: The numbers of loops, by their places: one that was read on trial is the same loop when it is read again.
        self.loop_keys: dict[object, int] = {}
        #: Those of the calls of functions that are read by themselves, each of which is like a turn of a loop.
        self.call_keys: dict[ast.AST, int] = {}
        self.last_serial = 0
        self.numbered_values: dict[int, Value] = {}
        self.earlier_statements = self.statement_count = self.other_file_statements = self.all_other_file_statements = 0
        self.function_values: dict[ast.AST, FunctionValue] = {}
        #: Frames that functions, or a class, were defined in.
        self.captured_frames: list[Frame] = []
        self.class_vars: dict[ast.AST, Vars] = {}
        #: The frames of functions that classes were defined in: their methods find its variables.
        self.enclosing_frames: dict[Class, Frame] = {}
        self.globals = Frame(None, None, None, module)
        self.state = AbstractState(self.globals, {})
        #: Tests that compare a value with a constant each, by the identity of the value.
        self.constant_comparisons: dict[object, list[int]] = {}
        #: Names of the attributes that each object was ever given.
        self.attribute_names: dict[int, dict[str, None]] = {}
        #: Places in the heap in the order in which they were written: what two ways on may differ in.
        self.heap_writes: list[tuple[int, str]] = []
        self.predicates = PredicateTable()
        #: What handlers take note of: in this graph, and in the file.
        self._graph_data: dict[Any, Any] = {}
        self._file_data: dict[Any, Any] = {}
        #: What the expressions of a file that low precision may spoil were evaluated to when they last were.
        self.expression_values: dict[ast.AST, Value] = {}
        #: Events that belong to no place in the graph that is read, by place and kind: they are added once it is whole.
        self.detached_events: dict[tuple[object, ...], Event] = {}
        #: The calls that were come by, where somebody asks for them.
        self.visited_calls: VisitedCalls | None = None
        self.begin_graph("<module>")

    def begin_graph(self, name: str) -> None:
        """Start a new graph."""
        self.graph = Graph(name)
        self.reached_functions = set()
        self.graph.predicates = self.predicates.predicates
        self.builder = GraphBuilder(self.graph.nodes)
        self.builder.nodes.append(Node())
        self.state = AbstractState(self.globals, self.state.heap)
        self._graph_data = {}
        #: Statements read: in the whole file before this graph, and in it.
        self.earlier_statements += self.statement_count
        self.all_other_file_statements += self.other_file_statements
        self.statement_count = self.other_file_statements = 0

    def release_references(self) -> None:
        """Let go of all that was read: values, frames and this object know each other."""
        for frame in (self.globals, *self.globals_by_path.values(), *self.captured_frames):
            frame.vars.clear()
        vars(self).clear()

    def finish_graph(self) -> None:
        """Settle what only the whole graph tells: which answers each turn of a loop makes unknown."""
        lasting_mask = 0
        for node in self.builder.nodes:
            if node.event is not None and node.event.kind in (e.BACKWARD, e.SCALER_STEP, e.STEP):
                for key, _ in node.event.guards:
                    test = self.graph.predicates[key]
                    if not test.is_window_predicate and (not test.is_flag or node.event.kind == e.BACKWARD):
                        lasting_mask |= 1 << key
        for head, loop in self.builder.loop_heads:
            forgotten = self.predicates.forgotten_by(loop)
            if loop < 0:
                # Whoever calls a function again has not meanwhile changed how it runs backward and steps.
                forgotten &= ~lasting_mask
            self.builder.nodes[head].forgotten_predicates |= forgotten

    def without_events(self, act: Callable[[], None]) -> None:
        """Read something for the values it gives, and for what it does to objects, without keeping its events."""
        state, builder = self.state, self.builder
        self.builder = GraphBuilder([])
        self.state = state.copy()
        self.state.current_node = self.builder.add_node()
        act()
        state.heap = self.state.heap
        self.builder.discard_exits()
        self.state, self.builder = state, builder

    def speculate(self, act: Callable[[], None]) -> None:
        """Read something, and throw away the state in which it ends."""
        state, variables = self.state, self.state.frame.vars
        self.state = state.copy()
        self.state.heap, state.frame.vars = dict(state.heap), dict(variables)
        self.without_events(act)
        state.frame.vars = variables
        self.state = state

    def dry_run(self, act: Callable[[], None]) -> None:
        """Read something as if it were called here: it is not, and what it calls is to be read elsewhere yet."""
        roots, reached = set(self.analyzed_functions), set(self.reached_functions)
        self.speculate(act)
        self.analyzed_functions, self.reached_functions = roots, reached

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
            value = self.fresh_unknown(node)
        return self.annotate_dtype(kind, node, value)

    def annotate_dtype(self, kind: type[ast.AST], node: ast.AST, value: Value) -> Value:
        """The value of an expression with what is known of its dtype, in code where that may matter."""
        if not (self.module.may_lose_precision or self.state.frame.module.may_lose_precision):
            return value
        annotate = self.handlers.dtype_annotators.get(kind)
        if annotate is not None:
            value = annotate(self, node, value)
        self.expression_values[node] = value
        return value

    def execute_block(self, statements: Items[ast.stmt]) -> None:
        """Read a block; stops where its end cannot be reached."""
        state = self.state
        base, fallback_depth = len(state.path_condition), state.fallback_depth
        handlers = self.handlers.statements
        for statement in statements:
            if state.current_node is None:
                break
            self.statement_count += 1
            if state.frame.module is not self.module:
                self.other_file_statements += 1
            handler = handlers.get(type(statement))
            if handler is not None:
                handler(self, statement)
        del state.path_condition[base:]
        state.fallback_depth = fallback_depth

    def call_value(self, func: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """What a call of a value gives."""
        handlers = self.handlers.calls
        return (handlers.get(func.kind) or handlers[""])(self, func, args, keywords, node)

    def call_method(self, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """What a call of a method gives."""
        handlers = self.handlers.methods
        return (handlers.get(receiver.kind) or handlers[""])(self, receiver, name, args, keywords, node)

    def graph_data(self, kind: Callable[[], Notes]) -> Notes:
        """The notes of a kind that were taken in this graph."""
        return _get_or_create(self._graph_data, kind)

    def file_data(self, kind: Callable[[], Notes]) -> Notes:
        """The notes of a kind that were taken in this file."""
        return _get_or_create(self._file_data, kind)

    # Places.

    def site_of(self, node: ast.AST) -> Site:
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None)
        module = self.state.frame.module
        return Site(
            module.path,
            line,
            module.character_column(line, column),
            end_line,
            module.character_column(end_line, column if end_column is None else end_column),
            self.state.frame.name,
            self.state.frame.caller,
        )

    # The graph.

    def emit(
        self, kind: e.EventKind, node: ast.AST, subject: int | None = None, object: int | None = None, **facts: Any
    ) -> Event | None:
        """Add an event here; ``names`` among the facts become the event's names."""
        if self.state.current_node is None:
            return None
        if kind == e.ZERO_GRAD and self.state.handler_depth:
            facts["rescue"] = True
        site = self.site_of(node)
        if self.visited_calls is not None:
            self.visited_calls.mark_handled(site)
        event = self._add_event(self.state.current_node, kind, site, subject, object, facts)
        for nodes in self.state.raising_nodes:
            nodes.append(self.state.current_node)
        return event

    def emit_at(self, kind: e.EventKind, site: Site, subject: int | None, **facts: Any) -> None:
        """Add an event here that speaks of another place."""
        if self.state.current_node is not None:
            self._add_event(self.state.current_node, kind, site, subject, None, facts)

    def _add_event(
        self,
        current_node: int,
        kind: e.EventKind,
        site: Site,
        subject: int | None,
        object: int | None,
        facts: dict[str, Any],
    ) -> Event:
        names = facts.pop("names", None)
        if kind.has_loops:
            # In which loops it happens matters.
            facts.setdefault("loops", (*(loop.key for loop in self.state.loops), *self.state.open_comprehensions))
        event = Event(kind, site, subject, object, facts, names, self.active_guards())
        self.state.current_node = self.builder.add_node(event)
        self.builder.add_edge(current_node, self.state.current_node)
        self.builder.event_count += 1
        return event

    def active_guards(self) -> tuple[tuple[int, bool], ...]:
        """The tests under which the place being read stands."""
        pairs = dict.fromkeys(pair for formula in self.state.path_condition for pair in literals(formula))
        known = dict(pair for formula in self.state.path_condition for pair in implied_literals(formula))
        return tuple((key, truth) for key, truth in pairs if known.get(key, truth) == truth)

    # Objects.

    def store_attribute(self, key: int, name: str, value: Value) -> None:
        """Give an object an attribute."""
        self.state.heap[key, name] = value
        self.heap_writes.append((key, name))
        self.attribute_names.setdefault(key, {})[name] = None

    def stored_attributes(self, key: int) -> list[tuple[str, Value]]:
        """What an object holds here, by name."""
        names = self.attribute_names.get(key, ())
        return [(name, value) for name in names if (value := self.state.heap.get((key, name))) is not None]

    # Things and unknown values.

    def tracked_object(self, key: object, role: str, name: str, site: Site | None) -> TrackedObject:
        """The thing with a key: the same whenever the same expression is read in the same call chain."""
        made = self.tracked_objects.get(key)
        if made is None:
            made = self.tracked_objects[key] = self.program.add_object(role, name, site)
        return made

    def location_key(self, node: ast.AST) -> tuple[object, ...]:
        """A key for what is made at a place: the syntax node and the calls that led there."""
        chain: list[object] = [id(node)]
        site = self.state.frame.caller
        while site is not None:
            chain.append((site.path, site.line, site.column))
            site = site.caller
        return tuple(chain)

    def unknown_value(
        self, key: object, text: object, loops: frozenset[int] = EMPTY, *, is_from_outside: bool = False
    ) -> UnknownValue:
        """The unknown value with a key: the same question about it is the same test."""
        made = self.unknown_values.get(key)
        if made is None:
            self.last_serial += 1
            made = self.unknown_values[key] = UnknownValue(
                self.last_serial, text, loops, is_from_outside=is_from_outside
            )
        return made

    def fresh_unknown(self, node: ast.AST, text: object = "") -> UnknownValue:
        """A new unknown value, made at a place: other on every turn of the loops around it."""
        return self.unknown_value(
            ("fresh", self.location_key(node), text if isinstance(text, str) else id(node)), text, self.current_loops()
        )

    def unique_number(self, value: Value) -> int:
        """A number that no other value has. The value is kept, or one that is made later could lie where it did."""
        self.numbered_values[id(value)] = value
        return id(value)

    def current_loops(self) -> frozenset[int]:
        return frozenset([loop.key for loop in self.state.loops]) if self.state.loops else EMPTY

    # Questions about values.

    def predicate_for(
        self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None
    ) -> Predicate:
        return self.predicates.predicate_for(question, text, self.site_of(node) if node is not None else None, loops)

    def predicate_formula(
        self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None
    ) -> Formula:
        return ("test", self.predicate_for(question, text, loops, node).key)

    def shorten_formula(self, formula: Formula) -> Formula:
        """A formula, or where it speaks of many tests a question of its own, so that formulas do not grow for ever."""
        if count_predicates(formula, MAX_PREDICATES) < MAX_PREDICATES:
            return formula
        return self.predicate_formula(("long", formula), "", self.current_loops())


def in_frame(interp: Interpreter, frame: Frame, act: Callable[[], Result]) -> Result:
    """What is found where the variables are those of a frame."""
    outer, interp.state.frame = interp.state.frame, frame
    result = act()
    interp.state.frame = outer
    return result


def first_result(handlers: Items[Callable[..., Value | None]], *arguments: Any) -> Value | None:
    """The answer of the first that has one."""
    for ask in handlers:
        found = ask(*arguments)
        if found is not None:
            return found
    return None


def _get_or_create(data: dict[Any, Any], kind: Callable[[], Notes]) -> Notes:
    made: Notes | None = data.get(kind)
    if made is None:
        made = data[kind] = kind()
    return made
