"""The lifetime of blocks if modules were recomputed in the backward pass, derived from a step without recomputation.

The model is ``torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)``. The forward pass keeps the inputs of
a module and not its results. The first node of the module's graph that needs a saved tensor reruns the forward, up to
the last tensor that the graph has saved. From there on each block lives until its node has run, as recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from .block import Block
from .step_recording import FOREVER, ModuleCall, RecordedOp, RecordedStep

#: A moment of a step: a tick, and the tick of the recomputed op at that moment (0 without recomputation).
Moment = tuple[int, int]
#: Start, end and bytes of a block.
Interval = tuple[Moment, Moment, int]


class UnanswerableError(Exception):
    """An error for a question that the recording cannot answer. The message is the reason."""


def peak_of(intervals: Iterable[Interval]) -> int:
    """Return the largest sum of bytes at one moment."""
    changes: list[tuple[Moment, int]] = []
    for start, end, size in intervals:
        changes.append((start, size))
        changes.append((end, -size))
    # Of equal moments the frees, with a negative size, sort before the allocations.
    changes.sort()
    total = highest = 0
    for _, change in changes:
        total += change
        highest = max(highest, total)
    return highest


def recorded_intervals(step: RecordedStep, sizes: dict[Block, int] | None = None) -> list[Interval]:
    """Return the lifetime and bytes of each block, with the given sizes instead of the recorded sizes if given."""
    sizes = step.sizes if sizes is None else sizes
    return [
        ((lifetime.created_at, 0), (lifetime.freed_at, 0), sizes[block]) for block, lifetime in step.lifetimes.items()
    ]


class BackwardRead(NamedTuple):
    """A read of a block in a backward pass: the node, and the tick at which the node was done with the block."""

    node: int | None
    end_tick: int


class BlockUses:
    """The uses of each block of a step."""

    def __init__(self, step: RecordedStep) -> None:
        self.step = step
        #: Block to the end ticks of the ops outside of backward passes that read the block.
        self.forward_ends: dict[Block, list[int]] = {}
        #: Block to its reads in backward passes.
        self.backward_reads: dict[Block, list[BackwardRead]] = {}
        self.ops_by_node: dict[int, list[RecordedOp]] = {}
        for op in step.ops:
            if op.in_backward and op.node_number is not None:
                self.ops_by_node.setdefault(op.node_number, []).append(op)
            for block in op.read_blocks():
                if op.in_backward:
                    self.backward_reads.setdefault(block, []).append(BackwardRead(op.node_number, op.end))
                else:
                    self.forward_ends.setdefault(block, []).append(op.end)
        self._op_starts = [op.start for op in step.ops]
        #: Block to the module calls that received the block as input.
        self.receiving_calls: dict[Block, list[ModuleCall]] = {}
        for call in step.calls:
            for block in call.given_blocks:
                self.receiving_calls.setdefault(block, []).append(call)

    def next_op(self, tick: int) -> int:
        """Return the start tick of the first op after a moment, or FOREVER.

        A free before the returned tick is an effect of the ops up to the moment.
        """
        index = bisect_right(self._op_starts, tick)
        return self._op_starts[index] if index < len(self._op_starts) else FOREVER

    def forward_release(self, block: Block, within: ModuleCall | None = None) -> int:
        """Return the tick at which the forward pass no longer needs a block.

        The last reading op and the last receiving call decide, within one module call if ``within`` is given.
        """
        until = FOREVER if within is None else within.end
        lifetime = self.step.lifetimes[block]
        ends = [end for end in self.forward_ends.get(block, ()) if end <= until]
        ends += [call.end for call in self.receiving_calls.get(block, ()) if call.end <= until]
        earliest = lifetime.created_at + 1
        return min(max([earliest, lifetime.uncached_at or 0, *ends]), lifetime.freed_at)


class _RecomputedCall:
    """A module call that is recomputed: its autograd nodes, and the start and end of the recomputation."""

    def __init__(self, call: ModuleCall, uses: BlockUses) -> None:
        self.call = call
        step = uses.step
        self.ops = [op for op in step.ops if not op.in_backward and call.start < op.start and op.end < call.end]
        self.given_blocks = {*call.given_blocks, *(block for op in self.ops for block in op.read_blocks())}
        backward = [op for node in call.node_range for op in uses.ops_by_node.get(node, ())]
        if any(op.grad for op in backward):
            raise UnanswerableError(f"{call.name} was recomputed already, or has a backward pass of its own")
        #: Tick at which the backward pass of the call ends.
        self.backward_end = max((op.end for op in backward), default=-1)
        #: (start, node) of backward ops that read blocks from before the end of the forward: the saved tensors.
        needed_by = [
            (op.start, op.node_number)
            for op in backward
            if any(step.lifetimes[block].created_at < call.end for block in op.read_blocks() if block in step.lifetimes)
        ]
        #: Tick at which the recomputation starts: the first node that needs a saved tensor. -1 if no node does.
        self.start_tick = min((start for start, _ in needed_by), default=-1)
        saving = {node for _, node in needed_by}
        makers = [op for op in self.ops if op.node_number in saving]
        self.stop_tick = -1
        if makers:
            newest = max(op.node_number for op in makers if op.node_number is not None)
            last = next(op for op in makers if op.node_number == newest)
            result_blocks = {value.block for value in last.results}
            saves_result = any(block in result_blocks for op in uses.ops_by_node[newest] for block in op.read_blocks())
            self.stop_tick = last.end if saves_result else last.start

    @property
    def has_work(self) -> bool:
        """True if there is anything to recompute."""
        return self.start_tick >= 0

    def has_node(self, node: int | None) -> bool:
        return node is not None and node in self.call.node_range


def recomputed_intervals(uses: BlockUses, names: Iterable[str]) -> list[Interval]:
    """Return the lifetime and bytes of each block if the modules with these names are recomputed.

    Raise UnanswerableError if a module did not run in the step.
    """
    step = uses.step
    wanted_names = set(names)
    calls: list[_RecomputedCall] = []
    for call in step.calls:
        # A module inside a recomputed module is recomputed with it.
        inner = any(other.call.start < call.start and call.end <= other.call.end for other in calls)
        if call.name in wanted_names and call.end < FOREVER and not inner:
            recomputed_call = _RecomputedCall(call, uses)
            if recomputed_call.has_work:
                calls.append(recomputed_call)
    missing = wanted_names - {call.name for call in step.calls}
    if missing:
        raise UnanswerableError(f"no module called {', '.join(sorted(missing))} ran in the recorded step")
    intervals: list[Interval] = []
    for block, lifetime in step.lifetimes.items():
        size = step.sizes[block]
        maker = next((each for each in calls if each.call.start < lifetime.created_at <= each.call.end), None)
        freed_at = _freed_at(block, uses, calls, maker)
        intervals.append(((lifetime.created_at, 0), (freed_at, 0), size))
        if maker is not None and lifetime.created_at < maker.stop_tick:
            intervals.append(((maker.start_tick, lifetime.created_at), _freed_again_at(block, uses, maker), size))
    return intervals


def _freed_at(block: Block, uses: BlockUses, calls: list[_RecomputedCall], maker: _RecomputedCall | None) -> int:
    """Return the tick at which a block is freed that the first forward created, or that existed before."""
    lifetime = uses.step.lifetimes[block]
    if block.category in {"parameters", "other", "optimizer state"} or lifetime.freed_at == FOREVER:
        return lifetime.freed_at
    if maker is not None and lifetime.freed_at <= maker.call.end:
        return lifetime.freed_at
    reads = uses.backward_reads.get(block, [])
    holders = [each for each in calls if each is not maker and _is_outside_input(block, each, lifetime.created_at)]
    holder_ends = [each.backward_end for each in holders]
    if maker is None:
        return max([lifetime.freed_at, *holder_ends])
    own_reads = [read for read in reads if maker.has_node(read.node)]
    others = [read.end_tick for read in reads if not maker.has_node(read.node)]
    by_graph = own_reads or maker.start_tick <= lifetime.freed_at <= uses.next_op(maker.backward_end)
    if not by_graph or lifetime.freed_at > uses.next_op(max([maker.backward_end, *(read.end_tick for read in reads)])):
        # Another owner keeps the block, or its nodes never saved it.
        return max([lifetime.freed_at, *holder_ends])
    escapes = block in maker.call.output_blocks
    local = uses.forward_release(block, None if escapes else maker.call)
    return max([local, *holder_ends, *others])


def _is_outside_input(block: Block, call: _RecomputedCall, created_at: int) -> bool:
    """Return True if a module call receives a block from outside. The call keeps such a block for the recomputation."""
    return created_at <= call.call.start and block in call.given_blocks


def _freed_again_at(block: Block, uses: BlockUses, maker: _RecomputedCall) -> Moment:
    """Return the moment at which a recomputed block is freed."""
    lifetime = uses.step.lifetimes[block]
    if lifetime.freed_at <= maker.stop_tick:
        return (maker.start_tick, lifetime.freed_at)
    own_ends = [read.end_tick for read in uses.backward_reads.get(block, ()) if maker.has_node(read.node)]
    if own_ends and lifetime.freed_at >= max(own_ends):
        others = [read.end_tick for read in uses.backward_reads.get(block, ()) if not maker.has_node(read.node)]
        if block in maker.call.output_blocks or (others and max(others) > max(own_ends)):
            return (max(own_ends), 0)
        return (lifetime.freed_at, 0) if lifetime.freed_at < FOREVER else (max(own_ends), 0)
    if maker.start_tick < lifetime.freed_at <= uses.next_op(maker.backward_end):
        return (lifetime.freed_at, 0)
    return (maker.start_tick, maker.stop_tick)
