"""Entry points: the module body, and every function that no analyzed code calls."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container

from ..protocol import events as e
from ..protocol import frameworks as frameworks_table
from ..protocol.event_graph import Node, Program
from ..protocol.registration import NotRegistered, require_listed
from ..protocol.sites import Site
from .interpreter import calls, classes, contexts, expressions, functions, statements, unanalyzed_code
from .interpreter.branch_runs import BranchRuns, RunsByEntry
from .interpreter.classes.assigned_attributes import is_replaceable
from .interpreter.classes.bound_methods import decorator_contexts
from .interpreter.classes.instances import instance_of, run_constructor
from .interpreter.classes.lineage import inherited_methods, lineage_of, method_of, uses_scaler
from .interpreter.functions import bind_unknown_arguments, execute_function
from .interpreter.imports import globals_of
from .interpreter.interpreter import HandlerTable, Interpreter
from .interpreter.microbatches import external_counters
from .interpreter.state import Loop
from .interpreter.values.definitions import ClassValue, Frame, Instance
from .interpreter.values.value import EMPTY, Count, UnknownValue
from .interpreter.visited_calls import VisitedCalls
from .libraries import (
    apex,
    autograd_functions,
    averages,
    averages_of_low_models,
    builtin_calls,
    checkpoints,
    compiled,
    copied_scalers,
    deepspeed,
    devices,
    distributed,
    float8,
    frameworks,
    grad_hooks,
    gradient_logs,
    gradients,
    ignite,
    late_sync_flags,
    lightning,
    loaded_settings,
    losses,
    low_parameters,
    modules,
    nonfinite,
    number_limits,
    optimizers,
    overhead,
    parts,
    precision,
    progress_bars,
    regions,
    returned_losses,
    saved_weights,
    scalers,
    second_moments,
    sizes,
    skipped_batches,
    torch_calls,
    transformers_loss,
    transformers_step,
    unknown_methods,
)
from .project.module import Class, Function, Module
from .project.project import Project
from .project.relevance import LOW_DTYPE_NAMES, is_of_another_framework
from .project.syntax import tail_name, walk
from .zero_grad_search import may_be_cleared_around

#: Maximum number of statements analyzed in one file. The remaining functions are skipped, and a finding reports the
#: skip.
FILE_BUDGET = 100_000

#: Entry points by path and line, each with the functions that were analyzed at a call from there.
ReachedFunctions = dict[tuple[str, int], set[tuple[str, int]]]


#: Calls on scaled gradients. Their order is what the joined states of a caller may hide.
_GRADIENT_CALLS = frozenset({"backward", "scale", "unscale_", "clip_grad_norm_", "clip_grad_value_"})


#: Calls that together are a training.
_BACKWARD_AND_STEP = frozenset({"backward", "step"})

LIBRARIES = (
    # The interpreter's own modules register handlers like a library.
    expressions,
    statements,
    contexts,
    unanalyzed_code,
    functions,
    classes,
    calls,
    losses,
    returned_losses,
    grad_hooks,
    gradient_logs,
    gradients,
    nonfinite,
    number_limits,
    checkpoints,
    optimizers,
    scalers,
    copied_scalers,
    regions,
    saved_weights,
    second_moments,
    devices,
    autograd_functions,
    averages,
    averages_of_low_models,
    modules,
    low_parameters,
    parts,
    transformers_loss,
    transformers_step,
    float8,
    frameworks,
    apex,
    deepspeed,
    ignite,
    late_sync_flags,
    skipped_batches,
    lightning,
    loaded_settings,
    distributed,
    compiled,
    overhead,
    sizes,
    precision,
    progress_bars,
    builtin_calls,
    torch_calls,
    unknown_methods,
)
require_listed(
    "static/libraries",
    [library.__name__.rpartition(".")[2] for library in LIBRARIES],
    "add the module to LIBRARIES in static/entry_points.py, before those whose handlers it replaces",
    marker="\ndef register(",
)
HANDLERS = HandlerTable()
for _library in LIBRARIES:
    _library.register(HANDLERS)
for _entry in frameworks_table.NAMES.values():
    if _entry.role != frameworks_table.WRAP and _entry.role not in HANDLERS.framework_roles:
        raise NotRegistered(
            f"{_entry.name} has the role {_entry.role!r}, which no library handles: set "
            f"handlers.framework_roles[{_entry.role!r}] in a module of static/libraries"
        )


def analyze_module(
    module: Module,
    program: Program,
    project: Project,
    visited_calls: VisitedCalls | None = None,
    branch_runs: RunsByEntry | None = None,
) -> ReachedFunctions:
    """Add the graphs of one file to a program, with the calls into other files.

    ``visited_calls`` records the calls, and ``branch_runs`` the branches that each entry point executes.
    """
    if is_of_another_framework(module):
        return {}
    interp = Interpreter(HANDLERS, module, program, {}, project)
    interp.visited_calls = visited_calls
    try:
        return _analyze_all(interp, branch_runs if branch_runs is not None else RunsByEntry())
    finally:
        interp.release_references()


def analyze_functions(
    module: Module, program: Program, project: Project, entries: Collection[tuple[str, int]]
) -> ReachedFunctions:
    """Add the graphs of the functions of one file that are given by path and line.

    Each function is analyzed without its callers, although the file calls it.
    """
    interp = Interpreter(HANDLERS, module, program, {}, project)
    reached: ReachedFunctions = {}
    try:
        # The script part of the file would only lead into the same functions again.
        interp.execute_block([each for each in module.tree.body if not _runs_script(each)])
        interp.is_fully_bound = True
        for function in module.functions.values():
            entry = (module.path, function.node.lineno)
            is_named = not isinstance(function.node, ast.Lambda) and function.node not in module.fallback_nodes
            if (
                entry in entries
                and function.is_entry_point
                and is_named
                and not _GRADIENT_CALLS.isdisjoint(function.attributes_used())
                and interp.earlier_statements + interp.statement_count <= FILE_BUDGET
            ):
                _analyze_function(interp, function, function.cls)
                _close_graph(interp, entry, reached)
    finally:
        interp.release_references()
    return reached


def analyze_as_low(
    module: Module,
    program: Program,
    project: Project,
    dtype: str,
    *,
    in_region: bool,
    functions: Container[Function] | None = None,
) -> None:
    """Add the graphs of the functions of one file to a program, as if the tensors that they receive had a low dtype.

    ``in_region`` also assumes a region of this dtype around the functions, else weights of this dtype. ``functions``
    are the functions to analyze by themselves; None stands for all.

    A function that another function of the file calls is analyzed only at the call.
    """
    interp = Interpreter(HANDLERS, module, program, {}, project)
    interp.assumed_dtype, interp.assumes_region = dtype, in_region
    module.may_lose_precision = True
    for function in module.functions.values():
        function.may_lose_precision = True
    try:
        interp.execute_block([each for each in module.tree.body if not _runs_script(each)])
        interp.is_fully_bound = True
        autograd_functions.report_assumed_functions(interp)
        if project.assumed_dtype and not in_region:
            precision.report_averages_of_weights(interp)
        _close_graph(interp, (module.path, 0), {})
        calls_by_name: dict[str, list[ast.Call]] = {}
        for function in sorted(module.functions.values(), key=_is_helper):
            # With the option, a function whose callers pass tensors of unknown dtype is analyzed by itself as well.
            is_reached = (function.node, None) in interp.analyzed_functions
            is_decided = is_reached and not (project.assumed_dtype and function not in interp.typed_functions)
            if is_decided or isinstance(function.node, ast.Lambda):
                continue
            if functions is not None and function not in functions:
                continue
            if function.name.startswith("_") and not function.name.endswith("__"):
                calls_by_name = calls_by_name or _index_calls(module)
                if _all_convert_argument(calls_by_name.get(function.name, [])):
                    continue
            if interp.earlier_statements + interp.statement_count > FILE_BUDGET:
                break
            if precision.may_get_low_tensors(interp, function) or precision.makes_parameters(interp, function):
                _analyze_function(interp, function, function.cls)
                _close_graph(interp, (module.path, function.node.lineno), {})
    finally:
        interp.release_references()


def _index_calls(module: Module) -> dict[str, list[ast.Call]]:
    """Return the calls of a file by the last name of the callee."""
    found: dict[str, list[ast.Call]] = {}
    for node in module.nodes:
        if isinstance(node, ast.Call):
            found.setdefault(tail_name(node.func), []).append(node)
    return found


def _all_convert_argument(calls_of_function: list[ast.Call]) -> bool:
    """Return True if all callers of a private function convert the first argument: ``self._normalize(x.float())``.

    No call was reached, because a constant excludes them all here.
    """
    return bool(calls_of_function) and all(
        bool(call.args) and isinstance(call.args[0], ast.Call) and tail_name(call.args[0].func) == "float"
        for call in calls_of_function
    )


def _is_helper(function: Function) -> bool:
    """Return True for a function that other functions are likely to call."""
    return function.name not in ("forward", "__call__")


def _runs_script(statement: ast.stmt) -> bool:
    """Return True for a call on its own, and for the part of a file that only runs as a script."""
    return isinstance(statement, ast.Expr) or (isinstance(statement, ast.If) and _asks_for_name(statement.test))


def _asks_for_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in walk(test))


def _analyze_all(interp: Interpreter, branch_runs: RunsByEntry) -> ReachedFunctions:
    module, program = interp.module, interp.program
    reached: ReachedFunctions = {}
    counters = external_counters(module.tree.body) if program.attributes.fragment else []
    if counters:
        _analyze_as_loop_body(interp, module.tree, counters)
    else:
        interp.execute_block(module.tree.body)
    interp.is_fully_bound = True
    for listener in interp.handlers.file_end_listeners:
        listener(interp)
    _close_graph(interp, (module.path, 0), reached)
    branch_runs[module.path, 0].add_runs(interp.branch_runs)
    for function, cls in _entry_points(interp):
        if _is_analyzed(interp, function, cls):
            continue
        if interp.earlier_statements + interp.statement_count > FILE_BUDGET:
            node = function.node
            program.attributes.unread = Site(
                module.path, node.lineno, node.col_offset, function=function.qualified_name
            )
            break
        # An inherited method stands at the class: its line is no line of another file, and no line of a call here.
        entry = (module.path, function.node.lineno if cls is function.cls or cls is None else -cls.node.lineno)
        interp.branch_runs = BranchRuns()
        _analyze_function(interp, function, cls)
        reached.setdefault(entry, set())
        _close_graph(interp, entry, reached)
        branch_runs[entry].add_runs(interp.branch_runs)
    return reached


def _analyze_as_loop_body(interp: Interpreter, body: ast.Module, counters: list[ast.Name | ast.Attribute]) -> None:
    """Analyze a fragment as the body of a loop or function that runs once for each counted batch."""
    loop = Loop(interp.call_keys.setdefault(body, -len(interp.call_keys) - 2), 0)
    interp.state.loops.append(loop)
    head = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, head)
    interp.builder.loop_heads.append((head, loop.key))
    interp.state.current_node = head
    for number in counters:
        if isinstance(number, ast.Name):
            count = interp.state.frame.vars[number.id] = interp.fresh_unknown(number, number.id)
            count.count = count.count._replace(is_counter=True)
    interp.execute_block(body.body)
    last = interp.state.current_node
    interp.emit(e.Again, body.body[-1])
    interp.builder.add_edge(interp.state.current_node, head)
    interp.state.current_node = last
    interp.state.loops.pop()


def _entry_points(interp: Interpreter) -> list[tuple[Function, Class | None]]:
    """Return the functions of a file that may hold a mistake on their own, with the class of each method."""
    module = interp.module
    found: list[tuple[Function, Class | None]] = [
        (function, function.cls)
        for function in module.functions.values()
        if (function.is_entry_point or function.has_scaler_siblings)
        and not isinstance(function.node, ast.Lambda)
        and function.node not in module.fallback_nodes
    ]
    alike: set[tuple[object, ...]] = set()
    # An inherited method may use attributes that the subclass defines.
    for cls in module.classes.values():
        if isinstance(interp.globals.vars.get(cls.name), ClassValue):
            inherited = inherited_methods(interp, cls)
            methods = [method for method in inherited if method.is_entry_point]
            if not LOW_DTYPE_NAMES.isdisjoint(cls.used_names):
                found += [(method, cls) for method in _trains_what_class_makes(inherited) if method not in methods]
            callers = [
                method for method in cls.methods.values() if _trains_by_inherited(interp, method, cls, inherited)
            ]
            module.may_train = module.may_train or bool(methods or callers)
            found += [(method, cls) for method in callers]
            # The state of this scaler belongs into the checkpoint that a base class writes.
            saving = [method for method in inherited if method.may_save_checkpoint] if uses_scaler(cls) else []
            found += [(method, cls) for method in saving]
            for method in methods:
                if method in saving:
                    continue
                used = _own_names_used(interp, method, cls)
                # Classes that differ only in numbers behave the same.
                key = (method, *lineage_of(interp, cls)[1:], *sorted(used))
                numbers = all(used.values())
                if used and not (numbers and key in alike):
                    found.append((method, cls))
                    # A class with None instead of a number may behave differently.
                    if numbers:
                        alike.add(key)
    return found


def _trains_what_class_makes(inherited: list[Function]) -> list[Function]:
    """Return the constructor and the methods that train, of those that a class inherits which makes its model low."""
    training = [method for method in inherited if method.used_names >= _BACKWARD_AND_STEP]
    return [*(method for method in inherited if method.name == "__init__"), *training] if training else []


def _trains_by_inherited(interp: Interpreter, method: Function, cls: Class, inherited: list[Function]) -> bool:
    """Return True if a method runs backward and steps by calls of methods that another file defines."""
    foreign = {each.name for each in inherited if each.module is not method.module and each.used_names}
    if method.is_entry_point or foreign.isdisjoint(method.attributes_used()):
        return False
    names = set().union(*(each.used_names for each in _called_methods(interp, method, cls)))
    return names >= _BACKWARD_AND_STEP


def _called_methods(interp: Interpreter, method: Function, cls: Class) -> list[Function]:
    """Return a method of a class with all methods of the class that it may call, directly or indirectly."""
    found, names = [method], {method.name}
    for each in found:
        used = each.attributes_used() - names
        names |= used
        found += [other for name in sorted(used) if (other := method_of(interp, cls, name)) is not None]
    return found


def _is_analyzed(interp: Interpreter, function: Function, cls: Class | None) -> bool:
    """Return True if a function was already analyzed, as a method of this class."""
    if (function.node, None) not in interp.analyzed_functions:
        return False
    if cls is not None and cls is not function.cls and function.may_save_checkpoint and uses_scaler(cls):
        return (function.node, cls) in interp.analyzed_functions
    return (
        cls is None or (function.node, cls) in interp.analyzed_functions or not _own_names_used(interp, function, cls)
    )


def _own_names_used(interp: Interpreter, method: Function, cls: Class) -> dict[str, bool]:
    """Return the names of a class that an inherited method may use, each with True for a number.

    Called methods count too. A method that uses no such name behaves as in the defining class, and is analyzed there.
    """
    if method.cls is cls:
        return {}
    todo, seen = [method], {method.name}
    while todo:
        used = todo.pop().attributes_used() - seen
        called = (method_of(interp, cls, name) for name in used)
        todo += [each for each in called if each is not None]
        seen |= used
    found = {name: number for name, number in cls.own_names().items() if name in seen and name != method.name}
    # A mixin overrides what its sibling calls.
    lineage = lineage_of(interp, cls)
    own = lineage.index(method.cls) if method.cls in lineage else len(lineage)
    overridden = set[str]().union(*(owner.methods for owner in lineage[own:]))
    for mixin in lineage[1:own]:
        overriding = {name for name, other in mixin.methods.items() if other.used_names}
        found.update(dict.fromkeys(overriding & overridden & seen, False))
    for name in found.keys() & cls.methods.keys():
        # An override without relevant code, of methods without relevant code.
        if not any(owner.methods[name].used_names for owner in lineage_of(interp, cls) if name in owner.methods):
            del found[name]
    return found or ({"*": False} if cls.is_open else {})


def _close_graph(interp: Interpreter, entry: tuple[str, int], reached_functions: ReachedFunctions) -> None:
    last = interp.module.tree.body[-1] if interp.module.tree.body else interp.module.tree
    interp.emit(e.End, last)
    for event in interp.detached_events.values():
        interp.builder.nodes.append(Node(event))
    interp.detached_events = {}
    interp.finish_graph()
    interp.graph.entry_point = entry
    interp.program.graphs.append(interp.graph)
    reached_functions.setdefault(entry, set()).update(interp.reached_functions)


def _analyze_function(interp: Interpreter, function: Function, cls: Class | None) -> None:
    """Analyze a function without a caller, with unknown arguments."""
    interp.begin_graph(function.qualified_name)
    interp.analyzed_functions |= {(function.node, None), (function.node, cls)}
    receiver = _receiver_instance(interp, function, cls) if cls is not None else None
    defined = interp.function_values.get(function.node)
    frame = Frame(function, defined.frame if defined is not None else globals_of(interp, function.module), None)
    frame.receiver, frame.cls = receiver, function.cls
    static = "staticmethod" in function.decorator_names()
    parameters = function.parameters()
    if receiver is not None and parameters and not static:
        frame.vars[parameters[0].arg] = receiver
    # Keys of loops are -1 or positive, so the key of a repeated call is below -1.
    loop = Loop(interp.call_keys.setdefault(function.node, -len(interp.call_keys) - 2), 0)
    loop.runs_once = function.name == "__init__" and cls is not None
    interp.state.loops.append(loop)
    bind_unknown_arguments(interp, frame, function)
    if interp.assumed_dtype:
        precision.assume_parameters(interp, frame, function)
    wrappers = defined.wrappers if defined is not None else decorator_contexts(interp, function)
    head = interp.builder.add_node()
    interp.builder.add_edge(interp.state.current_node, head)
    interp.builder.loop_heads.append((head, loop.key))
    interp.state.current_node = head
    heap = dict(interp.state.heap)
    if receiver is not None:
        _havoc_counters(interp, receiver)
    for listener in interp.handlers.entry_start_listeners:
        listener(interp, function)
    value = execute_function(interp, frame, function, wrappers, function.node)
    for left in interp.handlers.entry_end_listeners:
        left(interp, function, value)
    returned = interp.state.current_node
    # A caller may call the function again and finds the open accumulation window that the function left.
    interp.emit(e.Again, function.node, uncleared=not may_be_cleared_around(interp, function))
    interp.builder.add_edge(interp.state.current_node, head)
    interp.state.current_node = returned
    if function.name != "__init__" or cls is None:
        # The effects on objects that the function creates or receives stay local.
        interp.state.heap = heap


def _havoc_counters(interp: Interpreter, receiver: Instance) -> None:
    """Havoc the counters of a class: in each call, the attribute holds another number."""
    for name in sorted(receiver.counter_attributes()):
        value = interp.state.heap.get((receiver.key, name))
        if isinstance(value, UnknownValue) and value.count.is_counter:
            count = interp.unknown_value(
                ("count of", receiver.key, name, interp.state.loops[-1].key), value.text, interp.current_loops()
            )
            count.count = Count(
                is_counter=True, possible_start=value.possible_start(), counting_method=value.count.counting_method
            )
            interp.store_attribute(receiver.key, name, count)


def _receiver_instance(interp: Interpreter, function: Function, cls: Class) -> Instance:
    """Return an instance of the class after the constructor. Later changes of the instance's optimizers are unknown."""
    fresh = ("root", id(cls.node)) not in interp.instances
    made = instance_of(interp, cls, ("root", id(cls.node)), cls.name, None)
    init = method_of(interp, cls, "__init__")
    if init is not None and init is not function and fresh:
        run_constructor(interp, made, init)
    if init is not None and init is not function:
        _forget_late_attributes(interp, made, init)
    return made


def _forget_late_attributes(interp: Interpreter, made: Instance, init: Function) -> None:
    """Forget attributes that the constructor leaves None if other methods set or use these attributes.

    Forget objects that a caller replaces, too.
    """
    for name, value in interp.stored_attributes(made.key):
        if is_replaceable(made, name, value):
            del interp.state.heap[made.key, name]
    empty = {name for name, value in interp.stored_attributes(made.key) if value.value is None}
    if empty and made.cls not in interp.attributes_by_class:
        methods = [m for owner in lineage_of(interp, made.cls) for m in owner.methods.values() if m is not init]
        interp.attributes_by_class[made.cls] = frozenset[str]().union(
            *(method.attributes_filled() for method in methods)
        )
    for name in sorted(empty & interp.attributes_by_class.get(made.cls, EMPTY)):
        del interp.state.heap[made.key, name]
