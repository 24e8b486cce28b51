"""When blocks would be there if modules were recomputed in the backward pass, told from a step in which they were not.

This is what ``torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)`` does: the forward pass keeps what a
module is given and not what it computes; the first node of its graph that wants something runs its forward again, up to
the last thing that the graph has saved; from there on each thing lives until its node has run, as it was recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from .block import Block
from .trace import FOREVER, Call, Op, Step

#: A moment of a step: a tick, and the tick of what runs again at that moment.
Moment = tuple[int, int]
#: When a block was there, and its bytes.
Interval = tuple[Moment, Moment, int]


class Unanswerable(Exception):
    """What was recorded does not tell; says why."""


def peak_of(intervals: Iterable[Interval]) -> int:
    """The most bytes at one moment."""
    changes: list[tuple[Moment, int]] = []
    for born, died, size in intervals:
        changes.append((born, size))
        changes.append((died, -size))
    # At one moment what goes goes first.
    changes.sort()
    total = highest = 0
    for _, change in changes:
        total += change
        highest = max(highest, total)
    return highest


def as_recorded(step: Step, sizes: dict[Block, int] | None = None) -> list[Interval]:
    """When each block was there, with other sizes where some are given."""
    sizes = step.sizes if sizes is None else sizes
    return [((life.born, 0), (life.died, 0), sizes[block]) for block, life in step.lives.items()]


class Read(NamedTuple):
    """A node of a backward pass, and when it was done with a block."""

    node: int | None
    end: int


class Uses:
    """Who uses each block of a step, and when."""

    def __init__(self, step: Step) -> None:
        self.step = step
        #: The ends of the ops outside of backward passes that read a block.
        self.forward: dict[Block, list[int]] = {}
        #: What reads it in backward passes.
        self.backward: dict[Block, list[Read]] = {}
        self.nodes: dict[int, list[Op]] = {}
        for op in step.ops:
            if op.backward and op.node is not None:
                self.nodes.setdefault(op.node, []).append(op)
            for block in op.reads():
                if op.backward:
                    self.backward.setdefault(block, []).append(Read(op.node, op.end))
                else:
                    self.forward.setdefault(block, []).append(op.end)
        self._starts = [op.start for op in step.ops]
        #: The calls of modules that were given a block.
        self.given: dict[Block, list[Call]] = {}
        for call in step.calls:
            for block in call.given:
                self.given.setdefault(block, []).append(call)

    def next_op(self, tick: int) -> int:
        """When the first op after a moment began: what goes before that goes because of what has run until then."""
        place = bisect_right(self._starts, tick)
        return self._starts[place] if place < len(self._starts) else FOREVER

    def let_go(self, block: Block, within: Call | None = None) -> int:
        """When the forward pass is done with a block: the last op that reads it, and the last call that is given it."""
        until = FOREVER if within is None else within.end
        life = self.step.lives[block]
        ends = [end for end in self.forward.get(block, ()) if end <= until]
        ends += [call.end for call in self.given.get(block, ()) if call.end <= until]
        made = life.born + 1
        return min(max([made, life.uncached or 0, *ends]), life.died)


class _Recomputed:
    """A call of a module that is computed again: what its nodes are, when that happens, and up to where."""

    def __init__(self, call: Call, uses: Uses) -> None:
        self.call = call
        step = uses.step
        self.ops = [op for op in step.ops if not op.backward and call.start < op.start and op.end < call.end]
        self.given = {*call.given, *(block for op in self.ops for block in op.reads())}
        backward = [op for node in call.nodes for op in uses.nodes.get(node, ())]
        if any(op.grad for op in backward):
            raise Unanswerable(f"{call.name} was recomputed already, or has a backward pass of its own")
        #: When its backward pass is over.
        self.over = max((op.end for op in backward), default=-1)
        #: What was there when its forward ended and its nodes read: what they have saved.
        wanted = [
            (op.start, op.node)
            for op in backward
            if any(step.lives[block].born < call.end for block in op.reads() if block in step.lives)
        ]
        #: When it is computed again: when the first node wants something.
        self.at = min((start for start, _ in wanted), default=-1)
        saving = {node for _, node in wanted}
        makers = [op for op in self.ops if op.node in saving]
        self.stop = -1
        if makers:
            newest = max(op.node for op in makers if op.node is not None)
            last = next(op for op in makers if op.node == newest)
            made = {value.block for value in last.results}
            saves_result = any(block in made for op in uses.nodes[newest] for block in op.reads())
            self.stop = last.end if saves_result else last.start

    @property
    def anything(self) -> bool:
        """Whether there is anything to compute again."""
        return self.at >= 0

    def holds(self, node: int | None) -> bool:
        return node is not None and node in self.call.nodes


def recomputed(uses: Uses, names: Iterable[str]) -> list[Interval]:
    """When each block would be there if the modules with these names were recomputed."""
    step = uses.step
    wanted = set(names)
    calls: list[_Recomputed] = []
    for call in step.calls:
        # A module within one that is recomputed is recomputed with it.
        inner = any(other.call.start < call.start and call.end <= other.call.end for other in calls)
        if call.name in wanted and call.end < FOREVER and not inner:
            again = _Recomputed(call, uses)
            if again.anything:
                calls.append(again)
    missing = wanted - {call.name for call in step.calls}
    if missing:
        raise Unanswerable(f"no module called {', '.join(sorted(missing))} ran in the recorded step")
    intervals: list[Interval] = []
    for block, life in step.lives.items():
        size = step.sizes[block]
        maker = next((each for each in calls if each.call.start < life.born <= each.call.end), None)
        died = _died(block, uses, calls, maker)
        intervals.append(((life.born, 0), (died, 0), size))
        if maker is not None and life.born < maker.stop:
            intervals.append(((maker.at, life.born), _died_again(block, uses, maker), size))
    return intervals


def _died(block: Block, uses: Uses, calls: list[_Recomputed], maker: _Recomputed | None) -> int:
    """When a block goes that the first forward has made, or that was there before."""
    life = uses.step.lives[block]
    if block.category in {"parameters", "other", "optimizer state"} or life.died == FOREVER:
        return life.died
    if maker is not None and life.died <= maker.call.end:
        return life.died
    reads = uses.backward.get(block, [])
    holders = [each for each in calls if each is not maker and _is_given(block, each, life.born)]
    held = [each.over for each in holders]
    if maker is None:
        return max([life.died, *held])
    own = [read for read in reads if maker.holds(read.node)]
    others = [read.end for read in reads if not maker.holds(read.node)]
    by_graph = own or maker.at <= life.died <= uses.next_op(maker.over)
    if not by_graph or life.died > uses.next_op(max([maker.over, *(read.end for read in reads)])):
        # Somebody else keeps it, or its nodes never did.
        return max([life.died, *held])
    escapes = block in maker.call.gave
    local = uses.let_go(block, None if escapes else maker.call)
    return max([local, *held, *others])


def _is_given(block: Block, call: _Recomputed, born: int) -> bool:
    """Whether a call of a module is given a block from outside, which it keeps to compute with it again."""
    return born <= call.call.start and block in call.given


def _died_again(block: Block, uses: Uses, maker: _Recomputed) -> Moment:
    """When a block goes that was computed again."""
    life = uses.step.lives[block]
    if life.died <= maker.stop:
        return (maker.at, life.died)
    own = [read.end for read in uses.backward.get(block, ()) if maker.holds(read.node)]
    if own and life.died >= max(own):
        others = [read.end for read in uses.backward.get(block, ()) if not maker.holds(read.node)]
        if block in maker.call.gave or (others and max(others) > max(own)):
            return (max(own), 0)
        return (life.died, 0) if life.died < FOREVER else (max(own), 0)
    if maker.at < life.died <= uses.next_op(maker.over):
        return (life.died, 0)
    return (maker.at, maker.stop)
