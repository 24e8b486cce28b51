"""Avoidable work of autocast and the scaler: repeated weight casts, copies to the CPU, zeroed gradients."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.imports import look_up
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.state import Loop, OpenRegion
from ..interpreter.values.definitions import Args, Keywords
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import Const, UnknownValue, Value
from ..project.assignments import stored_names
from ..project.syntax import walk
from .arguments import first_or_named, literal_value
from .syntax_queries import callee_of, find_nodes, last_name

TYPE_CHECKING = False

#: Methods and functions that only output a number.
_TELLING = frozenset(
    "print log info debug write append add_scalar add_scalars log_metric log_metrics set_postfix set_description "
    "set_postfix_str".split()
)
#: Identifiers of code that may need zero gradients, or gradients in the same tensors.
_NEEDS_ZEROS = frozenset(
    "grad CUDAGraph graph make_graphed_callables register_hook register_post_accumulate_grad_hook "
    "gradient_as_bucket_view FullyShardedDataParallel fully_shard capturable".split()
)
#: Identifiers of code that may need a region without cache: captures, and forwards with and without gradients.
_NEEDS_NO_CACHE = frozenset(
    "no_grad inference_mode set_grad_enabled checkpoint CUDAGraph graph make_graphed_callables trace "
    "trace_module".split()
)
#: Identifiers of code that may write to weights.
_WRITES = frozenset("step load_state_dict copy_ mul_ add_ lerp_ data".split())


class WeightRecast(NamedTuple):
    """A module whose weights are cast again in each iteration of a loop.

    ``loop_key`` is this loop, or None for a loop in the module's forward. ``outer_loops`` are the loops around
    ``loop_key``, and ``region_loops`` are the loops around the region. ``reason`` says why no cast is cached: the
    region is entered again ("region"), or the region has no cache ("cache").
    """

    reason: str
    module_key: int
    loop_key: int | None
    outer_loops: tuple[int, ...]
    region_loops: tuple[int, ...]
    site: Site
    names: dict[str, object]


class RepeatedCosts:
    """Possibly repeated work in one graph."""

    def __init__(self) -> None:
        self.recasts: list[WeightRecast] = []
        #: Reads of the loss scale, by the identity of the call.
        self.scale_reads: dict[int, TrackedObject] = {}
        #: Modules whose forward is being analyzed for casts.
        self.casting_modules: list[TrackedObject] = []


def _note_recasts(interp: Interpreter, tracked_object: TrackedObject, node: ast.AST) -> None:
    """Record a module whose weights may be cast again in each iteration of the enclosing loop."""
    state = interp.state
    if (
        len(state.open_regions) != 1
        or not state.loops
        or state.no_grad
        or state.possible_regions
        or is_compiled_or_low(tracked_object)
    ):
        return
    region, loop = state.open_regions[0], state.loops[-1]
    if region.enabled is False or region.site is None or loop.frame is not state.frame or _changes_in_loop(node, loop):
        return
    keys = tuple(other.key for other in state.loops)
    how = _find_recast_reason(interp, region, keys, loop)
    if how:
        costs = interp.graph_data(RepeatedCosts)
        module = costs.casting_modules[0] if costs.casting_modules else tracked_object
        names = {"context": region.source_text, "module": expression_text(node)}
        loop_key = None if costs.casting_modules else loop.key
        costs.recasts.append(WeightRecast(how, module.key, loop_key, keys[:-1], region.loop_keys, region.site, names))


def is_compiled_or_low(tracked_object: TrackedObject) -> bool:
    """Return True if a region does not cast the weights of a module one by one."""
    return bool(tracked_object.attributes.dtypes.low or tracked_object.attributes.compiled)


def _find_recast_reason(interp: Interpreter, region: OpenRegion, loops: tuple[int, ...], loop: Loop) -> str:
    """Return the reason that a region casts weights again in each iteration of the innermost loop, or ""."""
    if region.cache:
        return "region" if region.loop_keys == loops else ""
    around = loops[: len(region.loop_keys)] == region.loop_keys != loops
    return "cache" if around and _may_cache(interp, loop) else ""


def _may_cache(interp: Interpreter, loop: Loop) -> bool:
    """Return True if no code in the loop or in the function of the region requires a region without cache."""
    function = interp.state.frame.function
    body: ast.AST = function.node if function is not None else interp.state.frame.module.tree
    return not _mentions_any(body, _NEEDS_NO_CACHE) and loop.node is not None and not _mentions_any(loop.node, _WRITES)


def _report_recasts(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    """Report weight casts in the iterations of a loop if a single backward follows for all iterations."""
    here = tuple(loop.key for loop in interp.state.loops)
    first = tensor.forwards.first_event.subject if tensor.forwards.first_event is not None else None
    used = (
        interp.program.with_submodules(tensor.forwards.module_keys)
        if tensor.forwards.module_keys is not None
        else frozenset((first,))
    )
    for recast in interp.graph_data(RepeatedCosts).recasts:
        inside = recast.outer_loops[: len(here)] == here
        if recast.reason == "cache":
            inside = inside and recast.region_loops[: len(here)] == here and not interp.state.open_regions
        made = recast.loop_key is None or recast.loop_key in tensor.forwards.loop_keys
        if inside and made and recast.module_key in used:
            interp.emit_at(e.Overhead(recast.site, recast.module_key, how=recast.reason, names=recast.names))


def _check_logged_scale(interp: Interpreter, call: ast.expr) -> None:
    """Report a statement that only outputs the loss scale."""
    costs = interp.graph_data(RepeatedCosts)
    if not costs.scale_reads or not isinstance(call, ast.Call) or last_name(call.func) not in _TELLING:
        return
    read = [part for part in walk(call) if id(part) in costs.scale_reads]
    if not read or not _reads_nothing_else(interp, call, read):
        return
    loops = tuple(loop.key for loop in interp.state.loops)
    for part in read:
        scaler = costs.scale_reads[id(part)]
        names = {"call": expression_text(part), "scaler": scaler.name}
        interp.emit(e.Overhead, part, scaler.key, how="scale", loops=loops, names=names)


def _reads_nothing_else(interp: Interpreter, call: ast.Call, read: list[ast.AST]) -> bool:
    """Return True if a call receives only loss scales and counters. Another number may be copied to the CPU anyway."""
    inside = {id(part) for node in (*read, call.func) for part in walk(node)} | {id(call)}
    if any(id(part) not in inside for part in find_nodes(call, ast.Call)):
        return False
    names = [part.id for part in find_nodes(call, ast.Name) if id(part) not in inside]
    return all(_is_counter(look_up(interp, name)) for name in names)


def _is_counter(value: Value | None) -> bool:
    """Return True if a value is a constant, or a counter of a loop."""
    if isinstance(value, UnknownValue):
        return value.count.is_counter or value.count.is_loop_index
    return isinstance(value, Const)


def writes_needless_zeros(interp: Interpreter, args: Args, keywords: Keywords) -> bool:
    """Return True if a ``zero_grad`` writes zeros although freeing the gradients is possible."""
    off = literal_value(first_or_named(args, keywords, "set_to_none")) is False
    names = interp.module.identifiers | interp.state.frame.module.identifiers
    return off and _NEEDS_ZEROS.isdisjoint(names)


def _mentions_any(node: ast.AST, names: frozenset[str]) -> bool:
    """Return True if code contains one of the names as a variable or an attribute."""
    return not names.isdisjoint(map(last_name, walk(node)))


def _changes_in_loop(node: ast.AST, loop: Loop) -> bool:
    """Return True if a call may run another module in each iteration of a loop, according to the assigned names."""
    if loop.node is None:
        return True
    stored = set(stored_names(loop.node.body)[0])
    if isinstance(loop.node, (ast.For, ast.AsyncFor)):
        stored |= {part.id for part in find_nodes(loop.node.target, ast.Name)}
    return any(part.id in stored for part in find_nodes(callee_of(node) or node, ast.Name))


def register(handlers: HandlerTable) -> None:
    handlers.forward_listeners.append(_note_recasts)
    handlers.backward_start_listeners.append(_report_recasts)
    handlers.expression_listeners.append(_check_logged_scale)
