"""What autocast and the scaler are made to do more often than a program needs: casts, copies to the CPU, zeros."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Site, Thing
from ..interpreter.imports import look_up
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.state import Loop
from ..interpreter.values import Args, Const, Keywords, Opaque, Tensor
from ..interpreter.wording import wording
from ..project.module import stored_names
from ..project.syntax import walk
from .losses import whole

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


class Recast:
    """A module whose weights are cast anew in each turn of a loop.

    ``loop`` is that loop, None where it is one of the module's own forward; ``outer`` are the loops around it,
    ``entered`` those around the region. ``how`` is why nothing is kept: the region is entered anew ("region"), or keeps
    nothing ("cache").
    """

    __slots__ = ("entered", "how", "loop", "module", "names", "outer", "site")

    def __init__(
        self,
        how: str,
        module: int,
        loop: int | None,
        outer: tuple[int, ...],
        entered: tuple[int, ...],
        site: Site,
        names: dict[str, object],
    ) -> None:
        self.how = how
        self.module = module
        self.loop = loop
        self.outer = outer
        self.entered = entered
        self.site = site
        self.names = names


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
    if len(at.state.open) != 1 or not at.state.loops or at.state.no_grad or at.state.maybe_open:
        return
    region, loop = at.state.open[0], at.state.loops[-1]
    if region.enabled is False or region.site is None or thing.facts.get("low") or thing.facts.get("compiled"):
        return
    if loop.node is None or loop.frame is not at.state.frame or _changes(node, loop):
        return
    keys = tuple(other.key for other in at.state.loops)
    if region.turns == keys and region.cache:
        how = "region"
    elif not region.cache and keys[: len(region.turns)] == region.turns != keys and _free_to_cache(at, loop):
        how = "cache"
    else:
        return
    costs = at.of_graph(Costs)
    module = costs.casting[0] if costs.casting else thing
    names = {"context": region.words, "module": wording(node)}
    own = None if costs.casting else loop.key
    costs.recasts.append(Recast(how, module.key, own, keys[:-1], region.turns, region.site, names))


def _free_to_cache(at: Interpreter, loop: Loop) -> bool:
    """Whether nothing in the loop, or in the function that opens the region, needs it to keep no weights."""
    function = at.state.frame.function
    body: ast.AST = function.node if function is not None else at.state.frame.module.tree
    return not _names_one(body, _NEEDS_NO_CACHE) and loop.node is not None and not _names_one(loop.node, _WRITES)


def _cast_for(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    """A loss runs backward: once, for all turns of a loop in which weights were cast."""
    here = tuple(loop.key for loop in at.state.loops)
    first = tensor.forward.subject if tensor.forward is not None else None
    used = whole(at, tensor.deps) if tensor.deps is not None else frozenset((first,))
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
    if not costs.scale_reads or not isinstance(call, ast.Call):
        return
    func = call.func
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if last not in _TELLING:
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
    inside = {id(part) for node in (*read, call.func) for part in walk(node)}
    for part in walk(call):
        if isinstance(part, ast.Call) and part is not call and id(part) not in inside:
            return False
        if isinstance(part, ast.Name) and id(part) not in inside:
            value = look_up(at, part.id)
            if not (isinstance(value, Const) or (isinstance(value, Opaque) and (value.counter or value.index))):
                return False
    return True


def keeps_zeros(at: Interpreter, args: Args, keywords: Keywords) -> dict[str, Any]:
    """The facts of a ``zero_grad`` that writes zeros where it could let go of the gradients."""
    given = args[0] if args else keywords.get("set_to_none")
    off = isinstance(given, Const) and given.value is False
    names = at.module.identifiers | at.state.frame.module.identifiers
    return {"zeros": True} if off and _NEEDS_ZEROS.isdisjoint(names) else {}


def _names_one(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether code has a name, or an attribute, of some."""
    return any(
        (part.attr if isinstance(part, ast.Attribute) else part.id) in names
        for part in walk(node)
        if isinstance(part, (ast.Attribute, ast.Name))
    )


def _changes(node: ast.AST, loop: Loop) -> bool:
    """Whether the module that a call runs is another one in each turn of a loop, as far as the names tell."""
    assert loop.node is not None
    stored = set(stored_names(loop.node.body)[0])
    if isinstance(loop.node, (ast.For, ast.AsyncFor)):
        stored |= {part.id for part in walk(loop.node.target) if isinstance(part, ast.Name)}
    func = node.func if isinstance(node, ast.Call) else node
    return any(isinstance(part, ast.Name) and part.id in stored for part in walk(func))


def register(handlers: Handlers) -> None:
    handlers.forward_run.append(_ran)
    handlers.backward_run.append(_cast_for)
    handlers.expression_read.append(_logged)
