"""Interpreter of one file: the analysis state, the graph under construction, and the table of handlers.

The module knows no library, statement or expression. Registered handler functions implement these and know the
interpreter.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...protocol import events as e
from ...protocol.event_graph import Graph, Node, Predicate, Program
from ...protocol.events import Event
from ...protocol.sites import Site
from ...protocol.tracked_objects import TrackedObject
from ..project.module import Class, Function, Module
from ..project.project import Project
from .branch_runs import BranchRuns
from .conditions import (
    Formula,
    PredicateTable,
    Requirement,
    conjunction,
    count_predicates,
    implied_literals,
    literals,
    mentions_key,
    reduce_formula,
)
from .state import AbstractState, GraphBuilder, OpenRegion
from .values.definitions import Args, Frame, FunctionValue, Instance, Keywords, Vars
from .values.value import EMPTY, UnknownValue, Value
from .visited_calls import VisitedCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Concatenate, ParamSpec, TypeVar

    Emitted = TypeVar("Emitted", bound=Event)
    Fields = ParamSpec("Fields")
    Notes = TypeVar("Notes")
    Result = TypeVar("Result")

#: Maximum number of predicates in a formula.
MAX_PREDICATES = 24
#: Different predicates in a long formula that is rewritten without repeated predicates.
MAX_REDUCED_PREDICATES = 8
#: Locations of a predicate beside the first that are kept for traces. More would cost memory in long functions.
MAX_PREDICATE_SITES = 7


class ContextHandler:
    """Handler for a kind of context in a ``with`` block. This base class does nothing."""

    def enter(self, interp: Interpreter, value: Any, node: ast.AST) -> None:
        """Apply the effects of entering the context."""

    def exit(self, interp: Interpreter, value: Any, node: ast.AST, depth: int) -> None:
        """Apply the effects of leaving the context to the graph. ``depth`` regions stay open."""

    def close(self, interp: Interpreter, value: Any) -> None:
        """Drop the context from the state after the block."""

    def entered_value(self, interp: Interpreter, value: Any, node: ast.expr) -> Value:
        """Return the value that ``as`` assigns."""
        if isinstance(value, UnknownValue) and value.iterable_kind:
            # A progress bar over an enumeration is the iterable itself.
            return value
        made = interp.fresh_unknown(node, "entered")
        made.set_divided(is_divided=isinstance(value, UnknownValue) and value.normalization.is_divided)
        return made


class HandlerTable:
    """Table of handlers: functions by kind of syntax or value, which receive the interpreter.

    In a list of handlers, the first result that is not None counts. Listeners run in the order of their registration.
    """

    def __init__(self) -> None:
        self.expressions: dict[type[ast.AST], Callable[[Interpreter, Any], Value]] = {}
        self.statements: dict[type[ast.AST], Callable[[Interpreter, Any], None]] = {}
        #: Handlers of calls, method calls, attributes and `with` contexts, by kind of value; "" handles every other
        #: kind.
        self.calls: dict[str, Callable[[Interpreter, Any, Args, Keywords, ast.AST], Value]] = {}
        self.methods: dict[str, Callable[[Interpreter, Any, str, Args, Keywords, ast.AST], Value]] = {}
        self.attributes: dict[str, Callable[[Interpreter, Any, str, ast.AST], Value | None]] = {}
        self.contexts: dict[str, ContextHandler] = {}
        #: Return the next element of a loop over a value of this kind.
        self.loop_elements: dict[str, Callable[[Interpreter, Any, ast.AST], Value]] = {}
        #: Execute a `with` block around a value of this kind.
        self.with_blocks: dict[str, Callable[[Interpreter, Any, ast.With | ast.AsyncWith, int], None]] = {}
        #: For a kind of value: use as an operand or in a formatted text; use as the target of an augmented assignment;
        #: assignment of an attribute (False leaves the assignment to the default).
        self.operands: dict[str, Callable[[Interpreter, Any, ast.AST], object]] = {}
        self.augmented_assignments: dict[str, Callable[[Interpreter, Any, Value, ast.AST], None]] = {}
        self.attribute_writes: dict[str, Callable[[Interpreter, Any, str, Value, ast.Attribute], bool]] = {}
        #: Return the result of an operator on two values.
        self.operators: list[Callable[[Interpreter, str, Value, Value, ast.AST], Value | None]] = []
        #: Return the object for an unknown value that is used in a role, and for a parameter with an annotation.
        self.recognizers: dict[str, Callable[[Interpreter, str, UnknownValue, str, ast.AST], Value]] = {}
        self.annotated_parameters: list[Callable[[Interpreter, str, UnknownValue, ast.arg], Value | None]] = []
        #: Return the instance for a parameter with this value as the annotation.
        self.annotated_instances: list[Callable[[Interpreter, Value, ast.arg], Value | None]] = []
        #: Return the instance for a parameter of a function by the methods that the function calls.
        self.fitting_instances: list[Callable[[Interpreter, Function, ast.arg], Value | None]] = []
        #: Return the instance of a class with a role; the results of methods and attributes that no project class
        #: defines.
        self.constructors: dict[str, Callable[[Interpreter, Class, Args, Keywords, ast.AST], Value | None]] = {}
        self.class_methods: list[Callable[[Interpreter, Any, str, list[Value]], Value | None]] = []
        self.inherited_methods: list[Callable[[Interpreter, Instance, str, Args, Keywords, ast.AST], Value | None]] = []
        self.inherited_attributes: list[Callable[[Interpreter, Instance, str, ast.AST], Value | None]] = []
        #: Add dtype info to the value of an expression of this kind, whose operands were evaluated just before.
        self.dtype_annotators: dict[type[ast.AST], Callable[[Interpreter, Any, Value], Value]] = {}
        #: Listeners of assignments, before the targets change; of assigned items; of expression statements
        #: (`expression_listeners`); of an average that the learning rate includes (`rate_division_listeners`).
        self.assignment_listeners: list[Callable[[Interpreter, ast.Assign, Value], None]] = []
        #: Listeners of an unknown value that the code uses as a module, where events are recorded.
        self.module_use_listeners: list[Callable[[Interpreter, UnknownValue], None]] = []
        #: Listeners of an optimizer that a method of a module may return, with the tensor that another method returns.
        self.found_optimizer_listeners: list[Callable[[Interpreter, Any, UnknownValue], None]] = []
        self.item_write_listeners: list[Callable[[Interpreter, Value, Value, ast.Subscript, Value], None]] = []
        #: Listeners of an evaluated condition that ends the program, with the truth for which the program ends.
        self.end_condition_listeners: list[Callable[[Interpreter, ast.expr, bool], None]] = []
        self.expression_listeners: list[Callable[[Interpreter, ast.expr], None]] = []
        self.rate_division_listeners: list[Callable[[Interpreter, Any], None]] = []
        #: Listeners of the result of a call, by the last name of the callee.
        self.call_result_listeners: dict[str, Callable[[Interpreter, Value, ast.Call], None]] = {}
        #: Models of functions by dotted name. None means that only the arguments decide the effect.
        self.named_functions: dict[str, Callable[[Interpreter, Args, Keywords, ast.AST], Value | None]] = {}
        #: Models of functions with a role in the table of torch, or in the table of the frameworks.
        self.torch_roles: dict[str, Callable[[Interpreter, Any, Args, Keywords, ast.AST], Value]] = {}
        self.framework_roles: dict[str, Callable[[Interpreter, Any, Keywords, ast.AST], Value]] = {}
        #: Listeners of a module forward, of a backward before and after it runs, and of the norm that a clip returns.
        self.forward_listeners: list[Callable[[Interpreter, TrackedObject, ast.AST], None]] = []
        self.backward_start_listeners: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.backward_end_listeners: list[Callable[[Interpreter, Any, ast.AST], None]] = []
        self.clip_listeners: list[Callable[[Interpreter, Value | None, UnknownValue], None]] = []
        #: Step an optimizer, or clear its gradients, in a special form; True if the handler did so.
        self.optimizer_step_handlers: list[Callable[[Interpreter, Any, ast.AST, dict[str, object]], bool]] = []
        self.zero_grad_handlers: list[Callable[[Interpreter, Any, ast.AST, Callable[[], None]], bool]] = []
        #: Listeners of an entry point before and after its analysis, and of a file after the analysis of its body.
        self.entry_start_listeners: list[Callable[[Interpreter, Function], None]] = []
        self.entry_end_listeners: list[Callable[[Interpreter, Function, Value], None]] = []
        self.file_end_listeners: list[Callable[[Interpreter], None]] = []
        #: Listeners of objects passed to unanalyzed code.
        self.escape_listeners: list[Callable[[Interpreter, Value, list[Value], ast.AST], None]] = []


class Interpreter:
    """Interpreter of one file. All handlers receive this object."""

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
        #: Functions whose bodies were analyzed at a call. In the file: as a function, or as a method of a class; in
        #: this graph: by path and line.
        self.analyzed_functions: set[tuple[ast.AST, Class | None]] = set()
        #: Functions that a call has given a floating-point tensor of known dtype, where inputs have an assumed dtype.
        self.typed_functions: set[Function] = set()
        self.reached_functions: set[tuple[str, int]] = set()
        #: Globals of other files, by path, and the names in these files whose lookup is pending.
        self.globals_by_path: dict[str, Frame] = {}
        self.pending_names: set[tuple[str, str]] = set()
        self.active_functions: list[Function] = []
        #: Base classes of each class in the project, the class itself first.
        self.lineage_by_class: dict[Class, list[Class]] = {}
        #: Classes whose bases are being evaluated, and the values of the names in the bases at the class statement.
        self.pending_classes: set[Class] = set()
        self.base_name_values: dict[tuple[Class, str], Value] = {}
        #: Attributes that the methods of a class set or use in a role.
        self.attributes_by_class: dict[Class, frozenset[str]] = {}
        #: True while the bases of a class are evaluated that trains: their files need not name the protocol.
        self.loads_any_file = False
        #: True if every name of this file has a value.
        self.is_fully_bound = False
        #: Values of attribute assignments under evaluation, each with the method that assigns the attribute.
        self.pending_assignments: dict[ast.expr, Function] = {}
        self.instances: dict[object, Instance] = {}
        self.unknown_values: dict[object, UnknownValue] = {}
        #: Keys of unknown values for which another unknown value stands where branches join, by its key.
        self.joined_keys: dict[int, list[int]] = {}
        #: Numbers of loops by location: a loop keeps its number from the dry run to the analysis.
        self.loop_keys: dict[object, int] = {}
        #: Numbers of the entry points: each call of such a function is like an iteration of a loop.
        self.call_keys: dict[ast.AST, int] = {}
        self.last_serial = 0
        self.numbered_values: dict[int, Value] = {}
        self.earlier_statements = self.statement_count = self.other_file_statements = self.all_other_file_statements = 0
        self.function_values: dict[ast.AST, FunctionValue] = {}
        #: Frames in which a function or a class was defined.
        self.captured_frames: list[Frame] = []
        self.class_vars: dict[ast.AST, Vars] = {}
        #: Frames of the functions that define a class: methods of the class see the variables there.
        self.enclosing_frames: dict[Class, Frame] = {}
        self.globals = Frame(None, None, None, module)
        self.state = AbstractState(self.globals, {})
        #: Predicates that compare a value with a constant, by the identity of the value.
        self.constant_comparisons: dict[object, list[int]] = {}
        #: Names of all attributes that each object ever received.
        self.attribute_names: dict[int, dict[str, None]] = {}
        #: Values of attributes and items of unknown objects before the first write, by heap key.
        self.initial_values: dict[tuple[int, str], Value] = {}
        #: Heap keys in the order of their writes: two branches can differ only in the keys written since the split.
        self.heap_writes: list[tuple[int, str]] = []
        self.predicates = PredicateTable()
        #: Notes of handlers, in this graph and in the file.
        self._graph_data: dict[Any, Any] = {}
        self._file_data: dict[Any, Any] = {}
        #: Latest value of each expression, in files where low precision may cause a loss.
        self.expression_values: dict[ast.AST, Value] = {}
        #: Starred arguments whose sequence was known when their call was last evaluated.
        self.unpacked_arguments: set[ast.Starred] = set()
        #: Events without a node in the current graph, by location and kind. They join the graph when it is complete.
        self.detached_events: dict[tuple[object, ...], Event] = {}
        #: The autocast region that was entered last, open or not, for traces.
        self.latest_region: OpenRegion | None = None
        #: Dtype that inputs are assumed to have, or "": inputs of a model in this dtype, or values in a region of this
        #: dtype.
        self.assumed_dtype = ""
        self.assumes_region = False
        #: Calls that the analysis visited; None if no consumer asks for them.
        self.visited_calls: VisitedCalls | None = None
        #: Long formulas, with the equivalent formula that asks each predicate once.
        self._reduced_formulas: dict[Formula, Formula] = {}
        self.branch_runs = BranchRuns()
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
        #: Number of analyzed statements: in the file before this graph, and in this graph.
        self.earlier_statements += self.statement_count
        self.all_other_file_statements += self.other_file_statements
        self.statement_count = self.other_file_statements = 0

    def release_references(self) -> None:
        """Clear all references between values, frames and the interpreter, which form cycles."""
        for frame in (self.globals, *self.globals_by_path.values(), *self.captured_frames):
            frame.vars.clear()
        vars(self).clear()

    def finish_graph(self) -> None:
        """Set the predicates that each loop head forgets. The set is known only for a complete graph."""
        _close_discarded_windows(self)
        _drop_unrelated_divisors(self)
        unchanged_mask = 0
        for node in self.builder.nodes:
            if isinstance(node.event, (e.Backward, e.ScalerStep, e.Step)):
                for key, _ in node.event.guards:
                    test = self.graph.predicates[key]
                    if not test.is_window_predicate and (not test.is_flag or isinstance(node.event, e.Backward)):
                        unchanged_mask |= 1 << key
        for head, loop in self.builder.loop_heads:
            forgotten = self.predicates.forgotten_by(loop)
            if loop < 0:
                # A negative key stands for repeated calls: between two calls, the caller does not change how the
                # function runs backward and steps.
                forgotten &= ~unchanged_mask
            self.builder.nodes[head].forgotten_predicates |= forgotten

    def without_events(self, act: Callable[[], Result]) -> Result:
        """Run ``act`` for its result and the effect on objects, without recording events."""
        state, builder = self.state, self.builder
        self.builder = GraphBuilder([])
        self.state = state.copy()
        self.state.current_node = self.builder.add_node()
        result = act()
        state.heap = self.state.heap
        self.builder.discard_exits()
        self.state, self.builder = state, builder
        return result

    def speculate(self, act: Callable[[], object]) -> None:
        """Run ``act`` without recording events, and restore the state from before."""
        state, variables = self.state, self.state.frame.vars
        self.state = state.copy()
        self.state.heap, state.frame.vars = dict(state.heap), dict(variables)
        self.without_events(act)
        state.frame.vars = variables
        self.state = state

    def dry_run(self, act: Callable[[], None]) -> None:
        """Run ``act`` without recording events or state. Functions that it inlines stay unanalyzed."""
        roots, reached = set(self.analyzed_functions), set(self.reached_functions)
        self.speculate(act)
        self.analyzed_functions, self.reached_functions = roots, reached

    # Dispatch to handlers.

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        kind = type(node)
        handler = self.handlers.expressions.get(kind)
        if handler is not None:
            value = handler(self, node)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child)
            value = self.fresh_unknown(node)
        if self.module.may_lose_precision or self.state.frame.module.may_lose_precision:
            # As in `annotate_dtype`, without a call for each expression.
            annotate = self.handlers.dtype_annotators.get(kind)
            if annotate is not None:
                value = annotate(self, node, value)
            self.expression_values[node] = value
        return value

    def annotate_dtype(self, kind: type[ast.AST], node: ast.AST, value: Value) -> Value:
        """Add dtype info to the value of an expression, in code where low precision may cause a loss."""
        if not (self.module.may_lose_precision or self.state.frame.module.may_lose_precision):
            return value
        annotate = self.handlers.dtype_annotators.get(kind)
        if annotate is not None:
            value = annotate(self, node, value)
        self.expression_values[node] = value
        return value

    def execute_block(self, statements: Items[ast.stmt]) -> Formula:
        """Execute a block of statements. Stop if the next statement is unreachable.

        Return the condition under which the block ends, because no exit inside it was taken.
        """
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
        condition = conjunction(*state.path_condition[base:])
        del state.path_condition[base:]
        state.fallback_depth = fallback_depth
        return condition

    def call_value(self, func: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """Return the result of a call of a value."""
        handlers = self.handlers.calls
        return (handlers.get(func.kind) or handlers[""])(self, func, args, keywords, node)

    def call_method(self, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
        """Return the result of a method call."""
        handlers = self.handlers.methods
        return (handlers.get(receiver.kind) or handlers[""])(self, receiver, name, args, keywords, node)

    def graph_data(self, kind: Callable[[], Notes]) -> Notes:
        """Return the notes of a kind for this graph."""
        return _get_or_create(self._graph_data, kind)

    def file_data(self, kind: Callable[[], Notes]) -> Notes:
        """Return the notes of a kind for this file."""
        return _get_or_create(self._file_data, kind)

    # Source locations.

    def site_of(self, node: ast.AST) -> Site:
        line: int = getattr(node, "lineno", 1)
        column: int = getattr(node, "col_offset", 0)
        end_line: int = getattr(node, "end_lineno", None) or line
        end_column: int | None = getattr(node, "end_col_offset", None)
        if end_column is None:
            end_column = column
        frame = self.state.frame
        module = frame.module
        if not module.is_ascii:
            column, end_column = module.character_column(line, column), module.character_column(end_line, end_column)
        return Site(module.path, line, column, end_line, end_column, frame.name, frame.caller)

    # The graph.

    def emit(
        self,
        kind: Callable[Concatenate[Site, Fields], Emitted],
        node: ast.AST,
        *keys: Fields.args,
        **fields: Fields.kwargs,
    ) -> Emitted | None:
        """Create an event of a kind with the given fields, and add it at the current node.

        Return None if the current node is unreachable.
        """
        if self.state.current_node is None:
            return None
        site = self.site_of(node)
        if self.visited_calls is not None:
            self.visited_calls.mark_handled(site)
        event = kind(site, *keys, **fields)
        if isinstance(event, e.ZeroGrad) and self.state.handler_depth:
            event.rescue = True
        self._add_event(self.state.current_node, event)
        for nodes in self.state.raising_nodes:
            nodes.append(self.state.current_node)
        return event

    def emit_at(self, event: Event) -> None:
        """Add an event of another source location at the current node."""
        if self.state.current_node is not None:
            self._add_event(self.state.current_node, event)

    def _add_event(self, current_node: int, event: Event) -> None:
        if event.traits.has_loops and event.loops is None:
            # Rules for this kind need the loops around the event.
            event.loops = (*(loop.key for loop in self.state.loops), *self.state.open_comprehensions)
        event.guards = self.active_guards()
        needed = {key for formula in self.state.path_condition for key, _ in implied_literals(formula)}
        if len(needed) < len(event.guards):
            event.alternative_guards = frozenset(key for key, _ in event.guards if key not in needed)
        if event.subject is not None and self.program.objects[event.subject].attributes.is_copy:
            event.guessed = True
        self.state.current_node = self.builder.add_node(event)
        self.builder.add_edge(current_node, self.state.current_node)
        self.builder.event_count += 1

    def active_guards(self) -> tuple[tuple[int, bool], ...]:
        """Return the predicates of the path condition at the current node, each with its truth."""
        return _list_guards(self.state.path_condition)

    # Objects.

    def store_attribute(self, key: int, name: str, value: Value) -> None:
        """Set an attribute of an object in the heap."""
        self.state.heap[key, name] = value
        self.heap_writes.append((key, name))
        self.attribute_names.setdefault(key, {})[name] = None

    def stored_attributes(self, key: int) -> list[tuple[str, Value]]:
        """Return the attributes of an object in the current heap, by name."""
        names = self.attribute_names.get(key, ())
        return [(name, value) for name in names if (value := self.state.heap.get((key, name))) is not None]

    # Tracked objects and unknown values.

    def tracked_object(self, key: object, role: str, name: str, site: Site | None) -> TrackedObject:
        """Return the tracked object with a key. The same expression in the same call chain gives the same object."""
        made = self.tracked_objects.get(key)
        if made is None:
            made = self.tracked_objects[key] = self.program.add_object(role, name, site)
        return made

    def location_key(self, node: ast.AST) -> tuple[object, ...]:
        """Return a key for an object created at a location: the syntax node and the chain of calls.

        Each iteration of an unrolled loop creates another object.
        """
        iterations = tuple(loop.iteration for loop in self.state.loops if loop.iteration)
        return (id(node), *self.state.frame.call_chain, *iterations)

    def unknown_value(
        self, key: object, text: object, loops: frozenset[int] = EMPTY, *, is_from_outside: bool = False
    ) -> UnknownValue:
        """Return the unknown value with a key. The same question about the value is the same predicate."""
        made = self.unknown_values.get(key)
        if made is None:
            self.last_serial += 1
            made = self.unknown_values[key] = UnknownValue(
                self.last_serial, text, loops, is_from_outside=is_from_outside
            )
        return made

    def fresh_unknown(self, node: ast.AST, text: object = "") -> UnknownValue:
        """Return an unknown value for a location. Each iteration of the loops around recreates the value."""
        return self.unknown_value(
            ("fresh", self.location_key(node), text if isinstance(text, str) else id(node)), text, self.current_loops()
        )

    def unique_number(self, value: Value) -> int:
        """Return a number that no other value has.

        The value stays alive, because a later object could reuse its ``id``.
        """
        self.numbered_values[id(value)] = value
        return id(value)

    def current_loops(self) -> frozenset[int]:
        return frozenset([loop.key for loop in self.state.loops]) if self.state.loops else EMPTY

    # Predicates about values.

    def predicate_for(
        self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None
    ) -> Predicate:
        known = self.predicates.find_predicate(question)
        if known is not None:
            if node is not None and len(known.other_sites) < MAX_PREDICATE_SITES:
                known.add_site(self.site_of(node), self.active_guards())
            return known
        made = self.predicates.predicate_for(question, text, self.site_of(node) if node is not None else None, loops)
        made.site_guards = (self.active_guards(),)
        return made

    def predicate_formula(
        self, question: object, text: object, loops: frozenset[int], node: ast.AST | None = None
    ) -> Formula:
        return ("test", self.predicate_for(question, text, loops, node).key)

    def shorten_formula(self, formula: Formula) -> Formula:
        """Return a formula, or a new predicate in place of a formula with ``MAX_PREDICATES`` or more predicates.

        Without the limit, formulas would grow without bound.
        """
        if count_predicates(formula, MAX_PREDICATES) < MAX_PREDICATES:
            return formula
        # Joins repeat a question in every option of a union. Unrelated predicates in place of the options could all
        # be true, or none: a scaler of one branch would then scale and step on different paths.
        reduced = self._reduced_formulas.get(formula)
        if reduced is None:
            reduced = self._reduced_formulas[formula] = reduce_formula(formula, MAX_REDUCED_PREDICATES)
        if count_predicates(reduced, MAX_PREDICATES) < MAX_PREDICATES:
            return reduced
        return self.predicate_formula(("long", formula), "", self.current_loops())


def latest_event(interp: Interpreter) -> Event | None:
    """Return the event of the current node, or None if other nodes follow the latest event."""
    node = interp.state.current_node
    return None if node is None else interp.builder.nodes[node].event


def persistent_guards(interp: Interpreter) -> frozenset[tuple[int, bool]]:
    """Return the predicates on which it depends whether later code finds what the code here did.

    A requirement holds for all later code: without it, the program has ended.
    """
    return frozenset(_list_guards([each for each in interp.state.path_condition if not isinstance(each, Requirement)]))


def _list_guards(formulas: list[Formula]) -> tuple[tuple[int, bool], ...]:
    """Return the predicates of formulas that all hold, each with its truth."""
    pairs = dict.fromkeys(pair for formula in formulas for pair in literals(formula))
    known = dict(pair for formula in formulas for pair in implied_literals(formula))
    return tuple((key, truth) for key, truth in pairs if known.get(key, truth) == truth)


def in_frame(interp: Interpreter, frame: Frame, act: Callable[[], Result]) -> Result:
    """Run ``act`` with the variables of a frame, and return its result."""
    outer, interp.state.frame = interp.state.frame, frame
    result = act()
    interp.state.frame = outer
    return result


def first_result(handlers: Items[Callable[..., Value | None]], *arguments: Any) -> Value | None:
    """Return the first result of the handlers that is not None, or None."""
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


def _close_discarded_windows(interp: Interpreter) -> None:
    """Let a loop be no window if it clears its gradients and other gradients are computed before any step.

    Such a loop warms up, or allocates memory for the largest batch.
    """
    nodes = interp.builder.nodes
    clears = [node.event for node in nodes if isinstance(node.event, e.ZeroGrad)]
    clearing = {key for event in clears for key in event.loops or ()}
    for index, node in enumerate(nodes) if clearing else ():
        event = node.event
        if not isinstance(event, e.Backward) or event.inside != e.MICRO or not event.loops:
            continue
        if event.loops[-1] in clearing and not _reaches_step(nodes, index, event.loops[-1]):
            event.inside = ""


def _reaches_step(nodes: Items[Node], start: int, loop: int) -> bool:
    """Return True if a step is reached from a node before a backward outside of the loop."""
    todo, seen = [start], {start}
    while todo:
        for target, *_ in nodes[todo.pop()].edges:
            event = nodes[target].event
            if isinstance(event, (e.ScalerStep, e.Step, e.Handoff)):
                return True
            is_other = isinstance(event, e.Backward) and loop not in (event.loops or ())
            if target not in seen and not is_other:
                seen.add(target)
                todo.append(target)
    return False


def _drop_unrelated_divisors(interp: Interpreter) -> None:
    """Drop the divisors that count iterations, unless the iterations are the micro-batches of a window.

    A step then waits for the same counter, or follows the loop.
    """
    events = [node.event for node in interp.builder.nodes if node.event is not None]
    running = [event for event in events if isinstance(event, e.Backward) and event.division.counter is not None]
    if not running:
        return
    steps = [event for event in events if isinstance(event, (e.ScalerStep, e.Step))]
    guards = {key for event in steps for key, _ in event.guards}
    questions = [
        interp.predicates.question_of(key) for key in guards if interp.graph.predicates[key].is_window_predicate
    ]
    for event in running:
        keys = event.division.counter[2] if event.division.counter is not None else ()
        around = tuple(event.loops or ())[:-1]
        if around and steps and all(tuple(step.loops or ()) == around for step in steps):
            continue
        if not any(mentions_key(question, key) for question in questions for key in keys):
            event.division = event.division._replace(counter=None)
