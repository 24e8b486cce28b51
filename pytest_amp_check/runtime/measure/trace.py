"""One training step as it was recorded: what ran, on which storages, and how long each of them was there.

Nothing here keeps a tensor alive: an op is known by the geometry of its tensors, and a storage by its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .block import Block

#: Ops of a step that are kept; a step with more has no answers. An op takes some 2 KiB.
MOST_OPS = 50_000
#: Optimizers whose steps are kept, those with the highest peaks.
MOST_STEPS = 8
#: How long a block is there that outlives its step.
FOREVER = 2**62

#: What is kept as it is.
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Stands for a learning rate that is a tensor.
_RATE = 1e-3

#: The number that torch gives to the next node of the graph, and the node that a backward pass is at.
_next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
_node_now: Callable[[], Any] = torch._C._current_autograd_node


class Value(NamedTuple):
    """A tensor as an op met it. ``block`` is None for one that does not count, as a number on the host."""

    block: Block | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Op:
    """An op. ``node`` numbers the node of the graph that it made, or in a backward pass the one that called it."""

    __slots__ = ("args", "backward", "end", "func", "grad", "kwargs", "node", "results", "start")

    def __init__(self, func: Any, start: int, node: int | None, *, backward: bool, grad: bool) -> None:
        self.func = func
        self.start = start
        self.end = start
        self.node = node
        self.backward = backward
        #: Whether gradients were on: in a backward pass that is something computed anew.
        self.grad = grad
        self.args: Any = ()
        self.kwargs: Any = {}
        self.results: list[Value] = []

    def reads(self) -> Iterable[Block]:
        """The blocks of its arguments."""
        return (value.block for value in values_in((self.args, self.kwargs)) if value.block is not None)


class Call:
    """A call of a module: when it began and ended, the nodes that it made, the blocks it was given and gave."""

    __slots__ = ("end", "gave", "given", "name", "nodes", "shape", "start")

    def __init__(self, name: str, start: int, node: int, given: list[Block], shape: tuple[int, ...]) -> None:
        self.name = name
        self.start = start
        self.end = FOREVER
        self.nodes = range(node, node)
        self.given = given
        #: The shape of the first tensor that it was given.
        self.shape = shape
        self.gave: list[Block] = []


class Life:
    """When a block was there, in ticks of its step: from before it where ``born`` is -1."""

    __slots__ = ("born", "died", "uncached")

    def __init__(self, born: int) -> None:
        self.born = born
        self.died = FOREVER
        #: When autocast's cache let go of it, where it was in there.
        self.uncached: int | None = None


class Stepped(NamedTuple):
    """What an optimizer steps: its class, and for each of its groups the settings, shapes and dtypes."""

    kind: type[torch.optim.Optimizer]
    groups: list[tuple[dict[str, Any], list[tuple[tuple[int, ...], torch.dtype, bool]]]]
    has_state: bool


class Step:
    """From the end of one step of an optimizer to the end of the next."""

    def __init__(self, alive: dict[Block, int]) -> None:
        self.tick = 0
        self.total = self.peak = sum(alive.values())
        self.lives = {block: Life(-1) for block in alive}
        #: Bytes of each block. Categories are those of the block, which may become known later.
        self.sizes = dict(alive)
        self.ops: list[Op] = []
        self.calls: list[Call] = []
        self.stepped: Stepped | None = None
        #: When the optimizer began to step.
        self.step_at = FOREVER
        #: Bytes that the program has cast to float32 outside of backward passes, though they were of it.
        self.vain_casts = 0
        #: Where storages changed their sizes, or ops were too many: what is known is not all.
        self.incomplete = ""


class Trace:
    """Keeps, for each optimizer, its step with the highest peak. Told of blocks, of ops and of calls of modules."""

    def __init__(self) -> None:
        self._step = Step({})
        self._kept: dict[int, Step] = {}

    @property
    def steps(self) -> Sequence[Step]:
        """The steps that are kept, oldest first."""
        return list(self._kept.values())

    # Blocks.

    def born(self, block: Block) -> None:
        step = self._step
        step.tick += 1
        step.lives[block] = Life(step.tick)
        step.sizes[block] = block.size
        step.total += block.size
        step.peak = max(step.peak, step.total)

    def there_from_the_start(self, block: Block) -> None:
        for step in (self._step, *self._kept.values()):
            step.lives[block] = Life(-1)
            step.sizes[block] = block.size
            step.total += block.size
            step.peak += block.size

    def died(self, block: Block) -> None:
        step = self._step
        step.tick += 1
        life = step.lives.get(block)
        if life is not None:
            life.died = step.tick
            step.total -= step.sizes[block]

    def resized(self) -> None:
        self._step.incomplete = "storages changed their sizes while the step ran, as sharded parameters do"

    def uncached(self, block: Block) -> None:
        life = self._step.lives.get(block)
        if life is not None:
            life.uncached = self._step.tick

    def cast_in_vain(self, tensor: torch.Tensor) -> None:
        self._step.vain_casts += tensor.numel() * tensor.element_size()

    # Ops and modules.

    def begin(self, func: Any, *, backward: bool, grad: bool, makes_node: bool) -> Op:
        """An op is about to run."""
        step = self._step
        step.tick += 1
        node = None
        if backward:
            current = _node_now()
            node = None if current is None else current._sequence_nr()
        elif makes_node:
            node = _next_node() - 1
        return Op(func, step.tick, node, backward=backward, grad=grad)

    def given(self, op: Op, args: Any, known: Callable[[torch.Tensor], Block | None]) -> None:
        """The arguments as they are before the op runs, where it gives a tensor other sizes in place."""
        op.args = _plain(args, known)

    def end(self, op: Op, args: Any, kwargs: Any, result: Any, known: Callable[[torch.Tensor], Block | None]) -> None:
        """It has run, and its results are known."""
        step = self._step
        step.tick += 1
        op.end = step.tick
        if len(step.ops) >= MOST_OPS:
            step.ops.clear()
            step.incomplete = f"the step has more than {MOST_OPS:,} operators"
        if step.incomplete:
            return
        op.args = op.args or _plain(args, known)
        op.kwargs = {name: _plain(value, known) for name, value in kwargs.items()} if kwargs else {}
        op.results = list(values_in(_plain(result, known)))
        step.ops.append(op)

    def enter(self, name: str, given: list[Block], shape: tuple[int, ...]) -> Call:
        """A module is called."""
        step = self._step
        step.tick += 1
        call = Call(name, step.tick, _next_node(), given, shape)
        step.calls.append(call)
        return call

    def leave(self, call: Call, gave: list[Block]) -> None:
        """The module gives its output, or raises."""
        step = self._step
        step.tick += 1
        call.end = step.tick
        call.nodes = range(call.nodes.start, _next_node())
        call.gave = gave

    # Steps.

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer begins to step, or goes on after a closure."""
        step = self._step
        if step.stepped is None:
            step.step_at = step.tick
            groups = [
                (
                    {key: _setting(value) for key, value in group.items() if key != "params"},
                    [(tuple(p.shape), p.dtype, p.grad is not None) for p in group["params"]],
                )
                for group in optimizer.param_groups
            ]
            step.stepped = Stepped(type(optimizer), groups, bool(optimizer.state))

    def finish(self, optimizer: torch.optim.Optimizer, alive: Iterable[Block]) -> None:
        """The optimizer has stepped."""
        step, key = self._step, id(optimizer)
        kept = self._kept.get(key)
        if kept is None or step.peak >= kept.peak:
            self._kept[key] = step
            if len(self._kept) > MOST_STEPS:
                del self._kept[min(self._kept, key=lambda key: self._kept[key].peak)]
        self._step = Step({block: block.size for block in alive})


def values_in(spec: Any) -> Iterable[Value]:
    """The tensors among an op's arguments or results."""
    if isinstance(spec, Value):
        yield spec
    elif isinstance(spec, (list, tuple)):
        for each in spec:
            yield from values_in(each)
    elif isinstance(spec, dict):
        yield from values_in(list(spec.values()))


def _plain(value: Any, known: Callable[[torch.Tensor], Block | None]) -> Any:
    """Arguments with values in the place of tensors, and nothing that a program may want to see go."""
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided
        return Value(
            known(value),
            tuple(value.shape),
            tuple(value.stride()) if plain else (),
            int(value.storage_offset()) if plain else 0,
            value.dtype,
        )
    if isinstance(value, (list, tuple)):
        return [_plain(each, known) for each in value]
    return value if isinstance(value, _PLAIN) else None


def _setting(value: Any) -> Any:
    """A setting of an optimizer. Of a learning rate that is a tensor the memory is what counts, not the value."""
    if isinstance(value, tuple):
        return tuple(_setting(each) for each in value)
    if isinstance(value, torch.Tensor):
        return _RATE
    return value if isinstance(value, _PLAIN) else None
