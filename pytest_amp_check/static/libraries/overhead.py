"""What autocast and the scaler are made to do more often than a program needs: casts, copies to the CPU, zeros."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Site, Thing
from ..interpreter.state import Loop, Open
from ..interpreter.values import Const, Opaque, Tensor, Value
from ..project.module import stored_names
from ..project.syntax import walk
from .losses import Losses

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


class Overhead(Losses):
    """Takes note of what is done too often, and tells of it where it is known that it was not needed."""

    def begin(self, name: str) -> None:
        super().begin(name)
        self.recasts: list[Recast] = []
        #: Reads of the loss scale, by the identity of the call.
        self.scale_reads: dict[int, Thing] = {}
        #: The modules whose forward is being read for what it casts.
        self.casting: list[Thing] = []

    # Casts.

    def opened(self, region: Open, node: ast.AST) -> None:
        region.turns = tuple(loop.key for loop in self.state.loops)
        region.site = self.site(node)
        region.words = self.words(node)

    def ran(self, thing: Thing, node: ast.AST) -> None:
        """A module runs forward, of which the weights may be cast anew in each turn of the loop around."""
        if len(self.state.open) != 1 or not self.state.loops or self.state.no_grad or self.state.maybe_open:
            return
        region, loop = self.state.open[0], self.state.loops[-1]
        if region.enabled is False or region.site is None or thing.facts.get("low") or thing.facts.get("compiled"):
            return
        if loop.node is None or loop.frame is not self.state.frame or _changes(node, loop):
            return
        keys = tuple(other.key for other in self.state.loops)
        if region.turns == keys and region.cache:
            how = "region"
        elif not region.cache and keys[: len(region.turns)] == region.turns != keys and self._free_to_cache(loop):
            how = "cache"
        else:
            return
        module = self.casting[0] if self.casting else thing
        names = {"context": region.words, "module": self.words(node)}
        own = None if self.casting else loop.key
        self.recasts.append(Recast(how, module.key, own, keys[:-1], region.turns, region.site, names))

    def _free_to_cache(self, loop: Loop) -> bool:
        """Whether nothing in the loop, or in the function that opens the region, needs it to keep no weights."""
        function = self.state.frame.function
        body: ast.AST = function.node if function is not None else self.state.frame.module.tree
        return not _names_one(body, _NEEDS_NO_CACHE) and loop.node is not None and not _names_one(loop.node, _WRITES)

    def cast_for(self, tensor: Tensor) -> None:
        """A loss runs backward: once, for all turns of a loop in which weights were cast."""
        here = tuple(loop.key for loop in self.state.loops)
        first = tensor.forward.subject if tensor.forward is not None else None
        used = self._whole(tensor.deps) if tensor.deps is not None else frozenset((first,))
        for recast in self.recasts:
            inside = recast.outer[: len(here)] == here
            if recast.how == "cache":
                inside = inside and recast.entered[: len(here)] == here and not self.state.open
            made = recast.loop is None or recast.loop in tensor.ran
            if inside and made and recast.module in used:
                self.emit_at(e.OVERHEAD, recast.site, recast.module, how=recast.how, names=recast.names)

    # Copies to the CPU.

    def told_of_scale(self, call: ast.expr) -> None:
        """A statement that only tells somebody of the loss scale."""
        if not self.scale_reads or not isinstance(call, ast.Call):
            return
        func = call.func
        last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
        if last not in _TELLING:
            return
        read = [part for part in walk(call) if id(part) in self.scale_reads]
        if not read or not self._nothing_else(call, read):
            return
        loops = tuple(loop.key for loop in self.state.loops)
        for part in read:
            scaler = self.scale_reads[id(part)]
            names = {"call": self.words(part), "scaler": scaler.name}
            self.emit(e.OVERHEAD, part, scaler.key, how="scale", loops=loops, names=names)

    def _nothing_else(self, call: ast.Call, read: list[ast.AST]) -> bool:
        """Whether a call is told of loss scales and of counters alone: another number may be copied anyway."""
        inside = {id(part) for node in (*read, call.func) for part in walk(node)}
        for part in walk(call):
            if isinstance(part, ast.Call) and part is not call and id(part) not in inside:
                return False
            if isinstance(part, ast.Name) and id(part) not in inside:
                value = self.look_up(part.id)
                if not (isinstance(value, Const) or (isinstance(value, Opaque) and (value.counter or value.index))):
                    return False
        return True

    # Zeros.

    def keeps_zeros(self, args: list[Value], keywords: dict[str, Value]) -> dict[str, Any]:
        """The facts of a ``zero_grad`` that writes zeros where it could let go of the gradients."""
        given = args[0] if args else keywords.get("set_to_none")
        off = isinstance(given, Const) and given.value is False
        names = self.module.identifiers | self.state.frame.module.identifiers
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
