"""What autocast and the scaler are made to do more often than a program needs: casts, copies to the CPU, zeros."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Site, Thing
from ...protocol.named import NamedTuple
from ..interpreter.imports import look_up
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.state import Loop, Open
from ..interpreter.values import Args, Keywords, Opaque, Tensor, Value
from ..interpreter.wording import wording
from ..project.module import stored_names
from ..project.syntax import walk
from .arguments import first_of, literal
from .written import all_of, called, last_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Methods and functions that only tell somebody of a number.
_TELLING = frozenset(
    "print log info debug write append add_scalar add_scalars log_metric log_metrics set_postfix set_description "
    "set_postfix_str".split()
)
#: Identifiers of what may need gradients that are zeros, or are always the same tensors.
_NEEDS_ZEROS = frozenset(
    "grad CUDAGraph graph make_graphed_callables register_hook register_post_accumulate_grad_hook "
    "gradient_as_bucket_view FullyShardedDataParallel fully_shard capturable".split()
)
#: Identifiers of what may need a region without its cache: captures, and forwards with and without gradients.
_NEEDS_NO_CACHE = frozenset(
    "no_grad inference_mode set_grad_enabled checkpoint CUDAGraph graph make_graphed_callables trace "
    "trace_module".split()
)
#: Identifiers of what may write to weights.
_WRITES = frozenset("step load_state_dict copy_ mul_ add_ lerp_ data".split())


class Recast(NamedTuple):
    """A module whose weights are cast anew in each turn of a loop.

    ``loop`` is that loop, None where it is one of the module's own forward; ``outer`` are the loops around it,
    ``entered`` those around the region. ``how`` is why nothing is kept: the region is entered anew ("region"), or keeps
    nothing ("cache").
    """

    how: str
    module: int
    loop: int | None
    outer: tuple[int, ...]
    entered: tuple[int, ...]
    site: Site
    names: dict[str, object]


class Costs:
    """What was seen in one graph of what may be done too often."""

    def __init__(self) -> None:
        self.recasts: list[Recast] = []
        #: Reads of the loss scale, by the identity of the call.
        self.scale_reads: dict[int, Thing] = {}
        #: The modules whose forward is being read for what it casts.
        self.casting: list[Thing] = []


def _ran(at: Interpreter, thing: Thing, node: ast.AST) -> None:
    """A module runs forward, of which the weights may be cast anew in each turn of the loop around."""
    state = at.state
    if len(state.open) != 1 or not state.loops or state.no_grad or state.maybe_open or is_compiled_or_low(thing):
        return
    region, loop = state.open[0], state.loops[-1]
    if region.enabled is False or region.site is None or loop.frame is not state.frame or _changes(node, loop):
        return
    keys = tuple(other.key for other in state.loops)
    how = _why_anew(at, region, keys, loop)
    if how:
        costs = at.of_graph(Costs)
        module = costs.casting[0] if costs.casting else thing
        names = {"context": region.words, "module": wording(node)}
        turn = None if costs.casting else loop.key
        costs.recasts.append(Recast(how, module.key, turn, keys[:-1], region.turns, region.site, names))


def is_compiled_or_low(thing: Thing) -> bool:
    """Whether the weights of a module are not cast one by one where it runs in a region."""
    return bool(thing.facts.get("low") or thing.facts.get("compiled"))


def _why_anew(at: Interpreter, region: Open, loops: tuple[int, ...], loop: Loop) -> str:
    """Why a region casts weights anew in each turn of the innermost of some loops, "" where it need not."""
    if region.cache:
        return "region" if region.turns == loops else ""
    around = loops[: len(region.turns)] == region.turns != loops
    return "cache" if around and _free_to_cache(at, loop) else ""


def _free_to_cache(at: Interpreter, loop: Loop) -> bool:
    """Whether nothing in the loop, or in the function that opens the region, needs it to keep no weights."""
    function = at.state.frame.function
    body: ast.AST = function.node if function is not None else at.state.frame.module.tree
    return not _names_one(body, _NEEDS_NO_CACHE) and loop.node is not None and not _names_one(loop.node, _WRITES)


def _cast_for(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    """A loss runs backward: once, for all turns of a loop in which weights were cast."""
    here = tuple(loop.key for loop in at.state.loops)
    first = tensor.forward.subject if tensor.forward is not None else None
    used = at.program.whole(tensor.deps) if tensor.deps is not None else frozenset((first,))
    for recast in at.of_graph(Costs).recasts:
        inside = recast.outer[: len(here)] == here
        if recast.how == "cache":
            inside = inside and recast.entered[: len(here)] == here and not at.state.open
        made = recast.loop is None or recast.loop in tensor.ran
        if inside and made and recast.module in used:
            at.emit_at(e.OVERHEAD, recast.site, recast.module, how=recast.how, names=recast.names)


def _logged(at: Interpreter, call: ast.expr) -> None:
    """A statement that only tells somebody of the loss scale."""
    costs = at.of_graph(Costs)
    if not costs.scale_reads or not isinstance(call, ast.Call) or last_name(call.func) not in _TELLING:
        return
    read = [part for part in walk(call) if id(part) in costs.scale_reads]
    if not read or not _nothing_else(at, call, read):
        return
    loops = tuple(loop.key for loop in at.state.loops)
    for part in read:
        scaler = costs.scale_reads[id(part)]
        names = {"call": wording(part), "scaler": scaler.name}
        at.emit(e.OVERHEAD, part, scaler.key, how="scale", loops=loops, names=names)


def _nothing_else(at: Interpreter, call: ast.Call, read: list[ast.AST]) -> bool:
    """Whether a call is given loss scales and counters alone: another number may be copied anyway."""
    inside = {id(part) for node in (*read, call.func) for part in walk(node)} | {id(call)}
    if any(id(part) not in inside for part in all_of(call, ast.Call)):
        return False
    names = [part.id for part in all_of(call, ast.Name) if id(part) not in inside]
    return all(_is_count(look_up(at, name)) for name in names)


def _is_count(value: Value | None) -> bool:
    """Whether a value is a constant, or what a loop counts."""
    if isinstance(value, Opaque):
        return value.counter or value.index
    return value is not None and value.kind == "constant"


def keeps_zeros(at: Interpreter, args: Args, keywords: Keywords) -> dict[str, Any]:
    """The facts of a ``zero_grad`` that writes zeros where it could let go of the gradients."""
    off = literal(first_of(args, keywords, "set_to_none")) is False
    names = at.module.identifiers | at.state.frame.module.identifiers
    return {"zeros": True} if off and _NEEDS_ZEROS.isdisjoint(names) else {}


def _names_one(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether code has a name, or an attribute, of some."""
    return not names.isdisjoint(map(last_name, walk(node)))


def _changes(node: ast.AST, loop: Loop) -> bool:
    """Whether the module that a call runs is another one in each turn of a loop, as far as the names tell."""
    if loop.node is None:
        return True
    stored = set(stored_names(loop.node.body)[0])
    if isinstance(loop.node, (ast.For, ast.AsyncFor)):
        stored |= {part.id for part in all_of(loop.node.target, ast.Name)}
    return any(part.id in stored for part in all_of(called(node) or node, ast.Name))


def register(handlers: Handlers) -> None:
    handlers.forward_run.append(_ran)
    handlers.backward_run.append(_cast_for)
    handlers.expression_read.append(_logged)
