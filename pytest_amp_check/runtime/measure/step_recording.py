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


class TensorSpec(NamedTuple):
    """A tensor as an op met it. ``block`` is None for one that does not count, as a number on the host."""

    block: Block | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class RecordedOp:
    """An op. ``node`` numbers the node of the graph that it made, or in a backward pass the one that called it."""

    __slots__ = ("args", "end", "func", "grad", "in_backward", "kwargs", "node_number", "results", "start")

    def __init__(self, func: Any, start: int, node: int | None, *, backward: bool, grad: bool) -> None:
        self.func = func
        self.start = start
        self.end = start
        self.node_number = node
        self.in_backward = backward
        #: Whether gradients were on: in a backward pass that is something computed anew.
        self.grad = grad
        self.args: Any = ()
        self.kwargs: Any = {}
        self.results: list[TensorSpec] = []

    def read_blocks(self) -> Iterable[Block]:
        """The blocks of its arguments."""
        return (value.block for value in values_in((self.args, self.kwargs)) if value.block is not None)


class ModuleCall:
    """A call of a module: when it began and ended, the nodes that it made, the blocks it was given and gave."""

    __slots__ = ("end", "given_blocks", "input_shape", "name", "node_range", "output_blocks", "start")

    def __init__(
        self, name: str, start: int, node: int, given_blocks: list[Block], input_shape: tuple[int, ...]
    ) -> None:
        self.name = name
        self.start = start
        self.end = FOREVER
        self.node_range = range(node, node)
        self.given_blocks = given_blocks
        #: The shape of the first tensor that it was given.
        self.input_shape = input_shape
        self.output_blocks: list[Block] = []


class Lifetime:
    """When a block was there, in ticks of its step: from before it where ``born`` is -1."""

    __slots__ = ("created_at", "freed_at", "uncached_at")

    def __init__(self, created_at: int) -> None:
        self.created_at = created_at
        self.freed_at = FOREVER
        #: When autocast's cache let go of it, where it was in there.
        self.uncached_at: int | None = None


class OptimizerSpec(NamedTuple):
    """What an optimizer steps: its class, and for each of its groups the settings, shapes and dtypes."""

    optimizer_class: type[torch.optim.Optimizer]
    groups: list[tuple[dict[str, Any], list[tuple[tuple[int, ...], torch.dtype, bool]]]]
    has_state: bool


class RecordedStep:
    """From the end of one step of an optimizer to the end of the next."""

    def __init__(self, alive: dict[Block, int]) -> None:
        self.tick = 0
        self.alive_bytes = self.peak = sum(alive.values())
        self.lifetimes = {block: Lifetime(-1) for block in alive}
        #: Bytes of each block. Categories are those of the block, which may become known later.
        self.sizes = dict(alive)
        self.ops: list[RecordedOp] = []
        self.calls: list[ModuleCall] = []
        self.optimizer_spec: OptimizerSpec | None = None
        #: When the optimizer began to step.
        self.step_at = FOREVER
        #: Bytes that the program has cast to float32 outside of backward passes, though they were of it.
        self.noop_cast_bytes = 0
        #: Where storages changed their sizes, or ops were too many: what is known is not all.
        self.incomplete_reason = ""


class StepRecording:
    """Keeps, for each optimizer, its step with the highest peak. Told of blocks, of ops and of calls of modules."""

    def __init__(self) -> None:
        self._current_step = RecordedStep({})
        self._kept_steps: dict[int, RecordedStep] = {}

    @property
    def steps(self) -> Sequence[RecordedStep]:
        """The steps that are kept, oldest first."""
        return list(self._kept_steps.values())

    # Blocks.

    def record_allocation(self, block: Block) -> None:
        step = self._current_step
        step.tick += 1
        step.lifetimes[block] = Lifetime(step.tick)
        step.sizes[block] = block.size
        step.alive_bytes += block.size
        step.peak = max(step.peak, step.alive_bytes)

    def add_preexisting(self, block: Block) -> None:
        for step in (self._current_step, *self._kept_steps.values()):
            step.lifetimes[block] = Lifetime(-1)
            step.sizes[block] = block.size
            step.alive_bytes += block.size
            step.peak += block.size

    def record_free(self, block: Block) -> None:
        step = self._current_step
        step.tick += 1
        lifetime = step.lifetimes.get(block)
        if lifetime is not None:
            lifetime.freed_at = step.tick
            step.alive_bytes -= step.sizes[block]

    def record_resize(self) -> None:
        self._current_step.incomplete_reason = (
            "storages changed their sizes while the step ran, as sharded parameters do"
        )

    def record_uncached(self, block: Block) -> None:
        lifetime = self._current_step.lifetimes.get(block)
        if lifetime is not None:
            lifetime.uncached_at = self._current_step.tick

    def record_noop_cast(self, tensor: torch.Tensor) -> None:
        self._current_step.noop_cast_bytes += tensor.numel() * tensor.element_size()

    # Ops and modules.

    def begin_op(self, func: Any, *, backward: bool, grad: bool, makes_node: bool) -> RecordedOp:
        """An op is about to run."""
        step = self._current_step
        step.tick += 1
        node = None
        if backward:
            current = _node_now()
            node = None if current is None else current._sequence_nr()
        elif makes_node:
            node = _next_node() - 1
        return RecordedOp(func, step.tick, node, backward=backward, grad=grad)

    def keep_arguments(self, op: RecordedOp, args: Any, block_of: Callable[[torch.Tensor], Block | None]) -> None:
        """The arguments as they are before the op runs, where it gives a tensor other sizes in place."""
        op.args = _to_spec(args, block_of)

    def end_op(
        self, op: RecordedOp, args: Any, kwargs: Any, result: Any, block_of: Callable[[torch.Tensor], Block | None]
    ) -> None:
        """It has run, and its results are known."""
        step = self._current_step
        step.tick += 1
        op.end = step.tick
        if len(step.ops) >= MOST_OPS:
            step.ops.clear()
            step.incomplete_reason = f"the step has more than {MOST_OPS:,} operators"
        if step.incomplete_reason:
            return
        op.args = op.args or _to_spec(args, block_of)
        op.kwargs = {name: _to_spec(value, block_of) for name, value in kwargs.items()} if kwargs else {}
        op.results = list(values_in(_to_spec(result, block_of)))
        step.ops.append(op)

    def enter_module(self, name: str, given_blocks: list[Block], shape: tuple[int, ...]) -> ModuleCall:
        """A module is called."""
        step = self._current_step
        step.tick += 1
        call = ModuleCall(name, step.tick, _next_node(), given_blocks, shape)
        step.calls.append(call)
        return call

    def leave_module(self, call: ModuleCall, output_blocks: list[Block]) -> None:
        """The module gives its output, or raises."""
        step = self._current_step
        step.tick += 1
        call.end = step.tick
        call.node_range = range(call.node_range.start, _next_node())
        call.output_blocks = output_blocks

    # Steps.

    def begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer begins to step, or goes on after a closure."""
        step = self._current_step
        if step.optimizer_spec is None:
            step.step_at = step.tick
            groups = [
                (
                    {key: _plain_setting(value) for key, value in group.items() if key != "params"},
                    [(tuple(p.shape), p.dtype, p.grad is not None) for p in group["params"]],
                )
                for group in optimizer.param_groups
            ]
            step.optimizer_spec = OptimizerSpec(type(optimizer), groups, bool(optimizer.state))

    def finish_step(self, optimizer: torch.optim.Optimizer, alive: Iterable[Block]) -> None:
        """The optimizer has stepped."""
        step, key = self._current_step, id(optimizer)
        kept_step = self._kept_steps.get(key)
        if kept_step is None or step.peak >= kept_step.peak:
            self._kept_steps[key] = step
            if len(self._kept_steps) > MOST_STEPS:
                del self._kept_steps[min(self._kept_steps, key=lambda key: self._kept_steps[key].peak)]
        self._current_step = RecordedStep({block: block.size for block in alive})


def values_in(spec: Any) -> Iterable[TensorSpec]:
    """The tensors among an op's arguments or results."""
    if isinstance(spec, TensorSpec):
        yield spec
    elif isinstance(spec, (list, tuple)):
        for each in spec:
            yield from values_in(each)
    elif isinstance(spec, dict):
        yield from values_in(list(spec.values()))


def _to_spec(value: Any, block_of: Callable[[torch.Tensor], Block | None]) -> Any:
    """Arguments with values in the place of tensors, and nothing that a program may want to see go."""
    if isinstance(value, torch.Tensor):
        is_strided = value.layout is torch.strided
        return TensorSpec(
            block_of(value),
            tuple(value.shape),
            tuple(value.stride()) if is_strided else (),
            int(value.storage_offset()) if is_strided else 0,
            value.dtype,
        )
    if isinstance(value, (list, tuple)):
        return [_to_spec(each, block_of) for each in value]
    return value if isinstance(value, _PLAIN) else None


def _plain_setting(value: Any) -> Any:
    """A setting of an optimizer. Of a learning rate that is a tensor the memory is what counts, not the value."""
    if isinstance(value, tuple):
        return tuple(_plain_setting(each) for each in value)
    if isinstance(value, torch.Tensor):
        return _RATE
    return value if isinstance(value, _PLAIN) else None
