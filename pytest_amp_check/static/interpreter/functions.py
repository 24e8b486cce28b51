"""Inlining of project functions: the analysis runs a body at each call, with the arguments bound."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.optable import FOREACH_IN_PLACE, IN_PLACE
from ...protocol.source_text import SourceText
from ..project.module import Function
from ..project.project import is_library_import
from ..project.syntax import root_name, tail_name, walk
from ..project.syntax_marks import FLOAT16_MAX
from .conditions import conjunction
from .contexts import close_context, enter_context, exit_context, with_items
from .disabled_flags import default_value
from .dtypes import INTEGERS, NUMBER, is_known_low
from .expressions.assignments import assign_target, record_name
from .imports import dotted_name, look_up
from .interpreter import HandlerTable, Interpreter, first_result
from .joins import join_heaps, join_values, join_variables
from .name_effects import divides_gradients, effects_of_body, effects_on_objects
from .source_text import TextTemplate
from .tensors import in_region
from .unanalyzed_code import call_unknown, reachable_objects
from .values.containers import MappingValue, SequenceValue
from .values.contexts import GradMode
from .values.definitions import Args, Frame, FunctionValue, GeneratorContext, GeneratorValue, Instance, Keywords, Vars
from .values.gradients import ParamsValue, join_params
from .values.objects import ObjectRef, StateDict
from .values.tensors import TensorValue
from .values.value import EMPTY, NONE, Const, UnknownValue, Value

#: Maximum depth of inlined calls. A deeper call does what its name says. Functions that act on the protocol, or call
#: such a function, are inlined up to the second depth: deeper than real code nests calls.
MAX_INLINE_DEPTH, MAX_RELEVANT_DEPTH = 8, 40
#: Maximum number of statements analyzed in one graph before calls are no longer inlined.
GRAPH_BUDGET = 12_000
#: Maximum number of these statements in other files, in one graph and in all graphs, before calls into other files are
#: no longer inlined.
OTHER_FILES_BUDGET = 2_000
ALL_OTHER_FILES_BUDGET = 8_000
#: Calls by which a function takes part in a training step, for the report of calls that are not followed.
_PROTOCOL_CALLS = frozenset({"backward", "unscale_", "step", "zero_grad"})
#: Share of these budgets for functions that only compute, or only cast, and write no checkpoint.
MINOR_BUDGET_SHARE = 0.3
#: Maximum number of statements of a function that is inlined although these budgets are exceeded.
MAX_LEAF_STATEMENTS = 40
#: Maximum number of statements of a function that is inlined only for its value: in a file that trains, and in another
#: file. In the other file, a value only decides if a region is entered.
MAX_SHORT_BODY, MAX_SHORT_BODY_ELSEWHERE = 4, 2


def inline_call(
    interp: Interpreter,
    func: FunctionValue,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    on_yield: Callable[[Value], None] | None = None,
    *,
    always: bool = False,
) -> Value:
    """Analyze the body of a project function with bound arguments, and return the result.

    ``always`` analyzes the body even if no name in the body is relevant to the protocol.
    """
    function = func.function
    if interp.state.current_node is None:
        return NONE
    if function in interp.active_functions:
        _enter_recursion(interp, func, node)
        # A function that calls itself with a saved state changes the keys or the device of the state.
        state = next((value for value in args if isinstance(value, StateDict)), None)
        return state or interp.fresh_unknown(node, "recursive")
    if function.is_generator and on_yield is None:
        return _create_generator(interp, func, args, keywords, node, always=always)
    if func.receiver is not None and not is_static(function):
        args = [func.receiver, *args]
    instead = _unanalyzed_value(interp, func, [*args, *keywords.values()], node, always=always)
    if instead is not None:
        effects = None if function.is_abstract() else _effects_on_arguments(interp, function, args, keywords)
        made = call_unknown(interp, instead, args, keywords, node, effects=effects)
        made.set_divided(is_divided=made.normalization.is_divided or function.divides_by_argument())
        return made
    _mark_reached(interp, function, func.receiver)
    site = interp.site_of(node)
    if interp.visited_calls is not None:
        # The analysis of the body covers this call.
        interp.visited_calls.mark_handled(site)
    frame = Frame(function, func.frame, site)
    frame.receiver = func.receiver or _explicit_receiver(function, args)
    _bind_arguments(interp, frame, function, args, keywords, node)
    if interp.assumed_dtype and any(map(_has_floating_dtype, (*args, *keywords.values()))):
        interp.typed_functions.add(function)
    frame.unwind_base = len(interp.state.unwind_actions)
    frame.path_base = len(interp.state.path_condition)
    frame.on_yield = on_yield
    frame.cls = function.cls
    value = execute_function(interp, frame, function, func.wrappers, node)
    if divides_gradients(function.name) and _multiplies_gradients(function):
        # The function may group the gradients, so that the analysis no longer knows what is multiplied.
        interp.emit(e.GradNormalise, node, owners=None)
    return _tag_with_callee(function.name, value)


def _explicit_receiver(function: Function, args: Args) -> Instance | None:
    """Return the object of a method that is called by its function, as in ``Base.step(self)``, or None."""
    first = args[0] if args and function.cls is not None and not is_static(function) else None
    return first if isinstance(first, Instance) else None


def _has_floating_dtype(value: Value) -> bool:
    return value.dtype_info.dtype not in ("", NUMBER, *INTEGERS)


def _multiplies_gradients(function: Function) -> bool:
    """Return True if a function reads gradients and multiplies or divides tensors in place."""
    used = function.attributes_used()
    return "grad" in used and any(
        table.get(name) in ("multiply", "divide") for table in (IN_PLACE, FOREACH_IN_PLACE) for name in used
    )


def _effects_on_arguments(interp: Interpreter, function: Function, args: Args, keywords: Keywords) -> frozenset[str]:
    """Return the effects of a function whose body is not analyzed on the scalers and optimizers that it receives."""
    names = [parameter.arg for parameter in function.parameters()]
    given = [*zip(names, args, strict=False), *keywords.items()]
    holders = frozenset(name for name, value in given if reachable_objects(interp, [value]))
    known = len(args) <= len(names) and keywords.keys() <= {*names, *(a.arg for a in function.node.args.kwonlyargs)}
    return effects_on_objects(function, holders) if known and holders else effects_of_body(function)


def _tag_with_callee(name: str, value: Value) -> Value:
    """Add the name of a function to the provenance of the unknown values in the function's result."""
    if isinstance(value, UnknownValue):
        if value.origin.is_argument or value.provenance.autocast_scope:
            return value
        return value.with_provenance(value.provenance._replace(callees=value.provenance.callees | {name}))
    if isinstance(value, MappingValue):
        for key, item in value.items.items():
            value.items[key] = _tag_with_callee(name, item)
    elif isinstance(value, SequenceValue):
        value.items[:] = [_tag_with_callee(name, item) for item in value.items]
    return value


def _create_generator(
    interp: Interpreter, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST, *, always: bool
) -> Value:
    """Return the value of a call of a generator function, which runs no part of the body.

    A dry run finds the yielded values. If the body emits no event, only the yielded values matter.
    """
    if func.function.is_context_manager:
        return GeneratorContext(func, args, keywords, node)
    made = GeneratorValue(func, args, keywords, node)
    if _unanalyzed_value(interp, func, [*args, *keywords.values()], node, always=always) is not None:
        return made

    def preview_body() -> None:
        builder = interp.builder

        def record_yield(value: Value) -> None:
            # Ignore the dry run of a loop in the body.
            if interp.builder is builder:
                made.yielded_values.append(value)
                made.microbatches = made.microbatches or interp.state.frame.yields_microbatches

        inline_call(interp, func, args, keywords, node, record_yield, always=always)
        if interp.builder.event_count:
            made.yield_predicates = [
                _waiting_predicate(interp, made, number) for number in range(len(made.yielded_values))
            ]

    interp.dry_run(preview_body)
    params = [value for value in made.yielded_values if isinstance(value, ParamsValue)]
    if params and len(params) == len(made.yielded_values) and not made.yield_predicates:
        return join_params(params)
    if made.yield_predicates:
        _assume_predicates(interp, [(test, False) for test in made.yield_predicates], forgotten=True)
    return made


def _waiting_predicate(interp: Interpreter, generator: GeneratorValue, number: int) -> int:
    """Return the predicate "the generator waits at this yield"."""
    test = interp.predicates.predicate_for(("waits", interp.location_key(generator.node), number), "", None, EMPTY)
    test.asks_first_iteration = True
    return test.key


def _assume_predicates(interp: Interpreter, literals: list[tuple[int, bool]], *, forgotten: bool) -> None:
    """Continue under the given truth of predicates. ``forgotten`` first drops their earlier truth."""
    if forgotten and interp.state.current_node is not None:
        node = interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, node)
        interp.builder.nodes[node].forgotten_predicates = sum(1 << test for test, _ in literals)
        interp.state.current_node = node
    for test, truth in literals:
        target = interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, target, test, truth)
        interp.state.current_node = target


def _resume_generator(interp: Interpreter, generator: GeneratorValue, node: ast.AST) -> Value:
    """Run a generator from the start, or from the current yield, to the next yield; return the yielded value."""
    if not generator.yield_predicates:
        return _yielded_value(interp, generator.yielded_values, node)
    start, tests, builder = interp.state.current_node, generator.yield_predicates, interp.builder
    yielded_values: list[Value] = []
    yield_nodes: list[int | None] = []

    def suspend_at_yield(value: Value) -> None:
        if interp.builder is not builder:
            # In the dry run of a loop no generator waits.
            return
        number = len(yielded_values)
        yielded_values.append(value)
        _assume_predicates(interp, [(test, at_it == number) for at_it, test in enumerate(tests)], forgotten=True)
        yield_nodes.append(interp.state.current_node)
        interp.state.current_node = start
        if number < len(tests):
            _assume_predicates(interp, [(tests[number], True)], forgotten=False)
        # Count an event, so that the graph builder keeps the path to this exit.
        interp.builder.event_count += 1

    _assume_predicates(interp, [(test, False) for test in tests], forgotten=False)
    inline_call(
        interp, generator.func, generator.args, generator.keywords, generator.node, suspend_at_yield, always=True
    )
    generator.end_node = interp.state.current_node
    if yielded_values:
        interp.state.current_node = interp.builder.join_nodes(yield_nodes)
    return _yielded_value(interp, yielded_values, node)


def _yielded_value(interp: Interpreter, yielded: list[Value], node: ast.AST) -> Value:
    """Return one value for all values that a generator yields; an unknown value for different values."""
    first = yielded[0] if yielded else NONE
    tensors = [value for value in yielded if isinstance(value, TensorValue)]
    if first.is_relevant and all((value.kind, value.value) == (first.kind, first.value) for value in yielded):
        if isinstance(first, SequenceValue) and not first.is_open:
            return SequenceValue([_yielded_value(interp, [item], node) for item in first.items])
        return first
    if tensors and len(tensors) == len(yielded):
        return TensorValue.join(tensors)
    element = interp.fresh_unknown(node, "element")
    element.microbatches = bool(yielded) and all(value.microbatches for value in yielded)
    return element


def _unanalyzed_value(
    interp: Interpreter, func: FunctionValue, given: list[Value], node: ast.AST, *, always: bool
) -> UnknownValue | None:
    """Return the unknown value that stands for a function whose body is not analyzed, or None to analyze the body.

    ``given`` are the values of the arguments.
    """
    function = func.function
    if function.is_abstract():
        _mark_reached(interp, function)
        return interp.unknown_value(
            ("abstract", id(function.node)), SourceText(node.func) if isinstance(node, ast.Call) else function.name
        )
    words = function.used_names if interp.module.may_train else function.context_names
    may_round = function.may_lose_precision and (
        bool(interp.assumed_dtype)
        or in_region(interp)
        or any(is_known_low(value.dtype_info) for value in given)
        or _holds_low_tensors(interp, func.receiver)
    )
    # A loss that the function stores was computed in the region, wherever the program reads the loss.
    stores = in_region(interp) and interp.module.may_train and function.stores_in_objects()
    always = always or bool(func.wrappers) or _wraps_relevant_function(func)
    if not (words or may_round or stores or always or _is_worth_inlining(interp, function)):
        _mark_reached(interp, function)
    elif (
        len(interp.active_functions) < (MAX_RELEVANT_DEPTH if words else MAX_INLINE_DEPTH)
        and interp.statement_count <= GRAPH_BUDGET
        and not _budget_exceeded(interp, function)
    ):
        return None
    elif interp.visited_calls is not None and _may_call_protocol(interp, function):
        called = node.func if isinstance(node, ast.Call) else node
        interp.visited_calls.mark_unfollowed(interp.site_of(node), f"{SourceText(called)}(...)")
    return interp.unknown_value(("function", id(function.node)), function.name)


def _holds_low_tensors(interp: Interpreter, receiver: Value | None) -> bool:
    """Return True if an attribute of an object is a tensor of a known low dtype."""
    if not isinstance(receiver, Instance) or not interp.module.makes_low:
        return False
    held = (interp.state.heap.get((receiver.key, name)) for name in interp.attribute_names.get(receiver.key, ()))
    return any(value is not None and is_known_low(value.dtype_info) for value in held)


def _wraps_relevant_function(func: FunctionValue) -> bool:
    """Return True for the function with which a decorator replaces one that takes part in the protocol."""
    made_by = None if func.frame is None else func.frame.function
    if func.frame is None or made_by is None:
        return False
    given = (func.frame.vars.get(parameter.arg) for parameter in made_by.parameters())
    return any(isinstance(value, FunctionValue) and value.function.used_names for value in given)


class _ProtocolCallers(dict[Function, bool]):
    """Functions, each with True if the function, or a function of its file that it calls, calls the protocol."""


def _may_call_protocol(interp: Interpreter, function: Function) -> bool:
    known = interp.file_data(_ProtocolCallers)
    if function not in known:
        known[function] = _search_protocol_calls(function)
    return known[function]


def _search_protocol_calls(function: Function) -> bool:
    passed, todo = {function}, [function]
    while todo:
        current = todo.pop()
        names = {tail_name(node.func) for node in current.nodes if isinstance(node, ast.Call)}
        if not names.isdisjoint(_PROTOCOL_CALLS) or any(name.startswith("clip_grad_") for name in names):
            return True
        for name in names & current.module.functions_by_name.keys():
            called = current.module.functions_by_name[name]
            todo += [each for each in called if each not in passed]
            passed.update(called)
    return False


def _budget_exceeded(interp: Interpreter, function: Function) -> bool:
    """Return True if the budget for code of other files is exceeded."""
    if function.module is interp.module or _is_small_leaf(interp, function):
        return False
    acts = function.is_entry_point and not function.is_weight_entry_point
    part = 1 if acts or function.may_save_checkpoint else MINOR_BUDGET_SHARE
    return (
        interp.other_file_statements > OTHER_FILES_BUDGET * part
        or interp.all_other_file_statements + interp.other_file_statements > ALL_OTHER_FILES_BUDGET * part
    )


class _SmallLeaves(dict[Function, bool]):
    """Functions, each with True for a small function that calls no other function of its file."""


def _is_small_leaf(interp: Interpreter, function: Function) -> bool:
    """Return True if a function is small and calls no other function of its file: it costs little.

    A loop costs more. Only a loop over gradients is worth the cost: it may clip or read them.
    """
    known = interp.file_data(_SmallLeaves)
    if function not in known:
        nodes = function.nodes
        # A method of its own name is that of an object that this one wraps.
        calls = {tail_name(node.func) for node in nodes if isinstance(node, ast.Call)} - {function.name}
        has_loop = any(isinstance(node, (ast.For, ast.While)) for node in nodes)
        is_cheap = not has_loop or "grad" in function.used_names
        is_small = is_cheap and sum(isinstance(node, ast.stmt) for node in nodes) <= MAX_LEAF_STATEMENTS
        known[function] = is_small and function.module.functions_by_name.keys().isdisjoint(calls)
    return known[function]


def _mark_reached(interp: Interpreter, function: Function, receiver: Value | None = None) -> None:
    """Mark a function as analyzed at a call, also as a method of the receiver's class: it is no entry point."""
    interp.analyzed_functions.add((function.node, None))
    if isinstance(receiver, Instance):
        interp.analyzed_functions.add((function.node, receiver.cls))
    interp.reached_functions.add((function.module.path, function.node.lineno))


def _is_worth_inlining(interp: Interpreter, function: Function) -> bool:
    """Return True if a function without protocol calls is short enough to be inlined for its value."""
    if isinstance(function.node, ast.Lambda):
        return True
    short = len(function.node.body) <= (MAX_SHORT_BODY if interp.module.may_train else MAX_SHORT_BODY_ELSEWHERE)
    return short or (function.name == "__init__" and (interp.module.may_train or interp.module.makes_low))


def execute_function(
    interp: Interpreter, frame: Frame, function: Function, wrappers: tuple[Value, ...], node: ast.AST
) -> Value:
    outer, savepoint, written = (
        interp.state.frame,
        interp.builder.set_savepoint(interp.state.current_node),
        len(interp.heap_writes),
    )
    interp.state.frame = frame
    guarded, trying = interp.state.try_depth, interp.state.fallback_try_depth
    interp.state.try_depth = interp.state.fallback_try_depth = 0
    interp.active_functions.append(function)
    base = len(interp.state.path_condition)
    depth = interp.state.region_depth
    modes = [w for w in wrappers if isinstance(w, GradMode)]
    regions = [w for w in wrappers if not isinstance(w, GradMode)]
    interp.state.no_grad += len(modes)
    decorated = function.decorators[0] if function.decorators else function.node
    for wrapper in regions:
        record_name(interp, wrapper, "")
        enter_context(interp, wrapper, decorated)
    _execute_body(interp, frame, function)
    del interp.state.path_condition[base:]
    # The `with` block of a context manager function may have returned from the outer function. That return still
    # counts.
    interp.builder.return_count -= len(frame.returns) - (interp.state.current_node is not None)
    interp.state.current_node = interp.builder.join_nodes(cur for cur, *_ in frame.returns)
    value = _join_returns(interp, frame, written)
    # The returned value may refer to the frame: break the reference cycle.
    frame.returns, frame.on_yield = [], None
    interp.state.current_node = interp.builder.rollback_if_empty(savepoint, interp.state.current_node)
    for wrapper in reversed(regions):
        exit_context(interp, wrapper, decorated, depth)
        close_context(interp, wrapper)
    interp.state.region_depth = depth
    interp.state.no_grad -= len(modes)
    interp.active_functions.pop()
    interp.state.frame = outer
    interp.state.try_depth, interp.state.fallback_try_depth = guarded, trying
    return value


def _execute_body(interp: Interpreter, frame: Frame, function: Function) -> None:
    """Execute the body of a function. The end of the body is the last return."""
    if isinstance(function.node, ast.Lambda):
        value = interp.evaluate(function.node.body)
    else:
        value = NONE
        interp.execute_block(function.node.body)
    if interp.state.current_node is not None:
        # The end of the body needs no condition: all other returns leave this path.
        frame.returns.append((interp.state.current_node, True, value, interp.state.heap))


def _join_returns(interp: Interpreter, frame: Frame, write_count: int) -> Value:
    """Join the returned values and the heaps of a call.

    ``write_count`` is the number of heap writes before the call.
    """
    if not frame.returns:
        return NONE
    _, _, value, heap = frame.returns[-1]
    interp.last_serial += 1
    question = ("way", interp.last_serial)
    for _, formula, earlier, earlier_heap in reversed(frame.returns[:-1]):
        condition = formula if formula is not True else interp.predicate_formula(question, "", interp.current_loops())
        value = join_values(interp, condition, earlier, value, "returned")
        heap = join_heaps(interp, condition, earlier_heap, heap, write_count)
    interp.state.heap = heap
    return value


def _enter_recursion(interp: Interpreter, func: FunctionValue, node: ast.AST) -> None:
    """Enter and leave the decorator contexts of a function that calls itself; the body is not analyzed again."""
    depth = interp.state.region_depth
    decorated = func.function.decorators[0] if func.function.decorators else node
    regions = [wrapper for wrapper in func.wrappers if not isinstance(wrapper, GradMode)]
    for wrapper in regions:
        enter_context(interp, wrapper, decorated)
    for wrapper in regions:
        exit_context(interp, wrapper, decorated, depth)
        close_context(interp, wrapper)
    interp.state.region_depth = depth


def _bind_arguments(
    interp: Interpreter, frame: Frame, function: Function, args: Args, keywords: Keywords, node: ast.AST
) -> None:
    """Bind arguments to parameters. A missing argument gets its default.

    A call without a required argument raises: an override asks for more than the caller of its base class passes. Other
    code calls the function, and the given values tell nothing about the parameters.
    """
    spec = function.node.args
    names = function.parameters()
    rest = dict(keywords)
    is_method = frame.receiver is not None and bool(args) and args[0] is frame.receiver
    if is_method and isinstance(node, ast.Call) and not ("**" in rest or has_unknown_arguments(interp, node)):
        required = names[len(args) : len(names) - len(spec.defaults)]
        if any(parameter.arg not in rest for parameter in required):
            args, rest = args[:1], {}
    frame.vars.update(zip([parameter.arg for parameter in names], args, strict=False))
    for parameter in [*names, *spec.kwonlyargs]:
        if parameter.arg in rest and parameter.arg not in frame.vars:
            frame.vars[parameter.arg] = rest.pop(parameter.arg)
    starred = "**" in rest or has_unknown_arguments(interp, node)
    if not (starred or _may_get_arguments(interp, function)):
        _bind_defaults(interp, frame, function, names)
    for parameter in [*names, *spec.kwonlyargs]:
        if parameter.arg not in frame.vars:
            # Two calls that unpack the same dict get the same objects.
            unpacked = rest.get("**")
            call = interp.location_key(node) if unpacked is None else unpacked.identity_key(interp.unique_number)
            key = ("missing", call, parameter.arg)
            frame.vars[parameter.arg] = interp.unknown_value(key, parameter.arg, is_from_outside=True)
    if spec.vararg is not None:
        frame.vars[spec.vararg.arg] = SequenceValue(list(args[len(names) :]), is_open=starred)
    if spec.kwarg is not None:
        frame.vars[spec.kwarg.arg] = MappingValue(dict(rest), is_open=starred)


def _may_get_arguments(interp: Interpreter, function: Function) -> bool:
    """Return True if a decorator of an unknown library may add arguments to a call, such as ``gin.configurable``."""
    module = function.module
    for decorator in function.decorators:
        name = root_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        imported = module.imports.get(name)
        if imported is None or imported.level or is_library_import(imported):
            continue
        is_of_python = (imported.module or imported.name).partition(".")[0] in sys.stdlib_module_names
        if not is_of_python and not interp.project.is_local_import(imported, module.path):
            return True
    return False


def _bind_defaults(interp: Interpreter, frame: Frame, function: Function, names: list[ast.arg]) -> None:
    spec = function.node.args
    defaults = list(zip(reversed(names), reversed(spec.defaults), strict=False))
    defaults += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
    outer, interp.state.frame = interp.state.frame, frame
    for parameter, default in defaults:
        if parameter.arg not in frame.vars:
            frame.vars[parameter.arg] = default_value(
                interp, function, parameter.arg, default, interp.evaluate(default)
            )
    interp.state.frame = outer


def bind_unknown_arguments(interp: Interpreter, frame: Frame, function: Function) -> None:
    """Bind the parameters of a function without a caller to unknown values, or to the objects that annotations name."""
    spec = function.node.args
    outer, interp.state.frame = interp.state.frame, frame
    for parameter in [*function.parameters(), *spec.kwonlyargs]:
        if parameter.arg in frame.vars:
            continue
        number = _large_default(function, parameter) if function.name == "__init__" else None
        if number is not None:
            # Callers rarely replace a number such as the fill of a mask, and the rule about it only warns.
            frame.vars[parameter.arg] = Const(number)
            continue
        value = interp.unknown_value(
            ("parameter", id(parameter)), parameter.arg, interp.current_loops(), is_from_outside=True
        )
        typed = _apply_annotation(interp, value, parameter)
        if typed is value and parameter.annotation is None:
            typed = first_result(interp.handlers.fitting_instances, interp, function, parameter) or value
        frame.vars[parameter.arg] = typed
    interp.state.frame = outer
    if spec.vararg is not None:
        frame.vars[spec.vararg.arg] = SequenceValue([], is_open=True)
    if spec.kwarg is not None:
        frame.vars[spec.kwarg.arg] = MappingValue({}, is_open=True)


def _large_default(function: Function, parameter: ast.arg) -> float | None:
    """Return the default of a parameter if it is a number that float16 cannot hold, or None."""
    spec = function.node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = dict(zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True))
    defaults.update((each, value) for each, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value)
    default = defaults.get(parameter)
    if isinstance(default, ast.UnaryOp) and isinstance(default.op, ast.USub):
        operand = default.operand
        value = -operand.value if isinstance(operand, ast.Constant) and isinstance(operand.value, float) else None
    else:
        value = default.value if isinstance(default, ast.Constant) and isinstance(default.value, float) else None
    return value if value is not None and abs(value) > FLOAT16_MAX else None


def _apply_annotation(interp: Interpreter, value: UnknownValue, parameter: ast.arg) -> Value:
    for node in walk(parameter.annotation) if parameter.annotation is not None else ():
        named = dotted_name(interp, node)
        found = _value_of_type(interp, named, value, parameter) if named else None
        found = found or _instance_of_annotation(interp, value, node, parameter)
        if found is not None:
            return found
    return value


def _instance_of_annotation(
    interp: Interpreter, value: UnknownValue, node: ast.AST, parameter: ast.arg
) -> Value | None:
    """Return the instance of the project class that an annotation names, or None.

    An optional parameter may also be None.
    """
    name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
    annotated = look_up(interp, name) if isinstance(name, str) else None
    made = first_result(interp.handlers.annotated_instances, interp, annotated, parameter) if annotated else None
    annotation = parameter.annotation
    if made is None or annotation is None or not any(map(_is_none_name, walk(annotation))):
        return made
    question = interp.predicate_formula(("none", value.key), TextTemplate("{} is None", parameter.arg), EMPTY)
    return join_values(interp, question, NONE, made, parameter.arg)


def _is_none_name(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "Optional") or (
        isinstance(node, ast.Constant) and node.value is None
    )


def _value_of_type(interp: Interpreter, named: str, value: UnknownValue, parameter: ast.arg) -> Value | None:
    """Return the value of a parameter whose annotation names a type, or None if the type has no role."""
    found = first_result(interp.handlers.annotated_parameters, interp, named, value, parameter)
    if found is not None:
        return found
    entry = torch_api.find_entry(named)
    role = entry.role if entry is not None else torch_api.BASES.get(named)
    if role not in (torch_api.SCALER, torch_api.OPTIMIZER, torch_api.MODULE):
        return None
    return ObjectRef(
        interp.tracked_object(("annotated", id(parameter)), role, parameter.arg, interp.site_of(parameter)),
        recognized_from=value,
    )


def _execute_generator_context(
    interp: Interpreter, context: GeneratorContext, node: ast.With | ast.AsyncWith, index: int
) -> None:
    """Execute the body of a ``@contextmanager`` function, and the body of the ``with`` at its ``yield``."""
    item = node.items[index]
    outer, before, path = interp.state.frame, dict(interp.state.frame.vars), len(interp.state.path_condition)
    ran = False
    variables_after: Vars | None = None

    def at_yield(value: Value) -> None:
        # Several yields stand on different paths: join the variables after each of them.
        nonlocal ran, variables_after
        ran = True
        inner, interp.state.frame = interp.state.frame, outer
        outer.vars = dict(before)
        if item.optional_vars is not None:
            assign_target(interp, item.optional_vars, value)
        with_items(interp, node, index + 1)
        if interp.state.current_node is not None:
            condition = interp.shorten_formula(conjunction(*interp.state.path_condition[path:]))
            variables_after = (
                outer.vars
                if variables_after is None
                else join_variables(interp, condition, outer.vars, variables_after)
            )
        outer.vars = outer.vars if variables_after is None else variables_after
        interp.state.frame = inner

    inline_call(interp, context.func, context.args, context.keywords, context.node, on_yield=at_yield)
    if not ran and interp.state.current_node is not None:
        with_items(interp, node, index + 1)


def _generator_method(
    interp: Interpreter, receiver: GeneratorValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name in ("__next__", "send"):
        return _resume_generator(interp, receiver, node)
    return receiver if name == "__iter__" else interp.handlers.methods[""](interp, receiver, name, args, keywords, node)


def has_unknown_arguments(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if a call unpacks a sequence of unknown length into its arguments."""
    return isinstance(node, ast.Call) and any(
        isinstance(argument, ast.Starred) and argument not in interp.unpacked_arguments for argument in node.args
    )


def is_static(function: Function) -> bool:
    return "staticmethod" in function.decorator_names()


def register(handlers: HandlerTable) -> None:
    handlers.with_blocks["helper"] = _execute_generator_context
    handlers.loop_elements["generator"] = _resume_generator
    handlers.methods["generator"] = _generator_method
