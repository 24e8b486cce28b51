"""The recording of one training step: ops, module calls, storages and the lifetime of each storage.

A recording keeps no tensor alive. An op is described by the geometry of its tensors, and a storage by its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .block import Block

#: Largest number of ops kept for a step; a step with more ops is marked incomplete. An op takes some 2 KiB.
MOST_OPS = 50_000
#: Largest number of optimizers with a kept step. The steps with the highest peaks are kept.
MOST_STEPS = 8
#: Tick at which a block is freed that outlives its step.
FOREVER = 2**62

#: Types of arguments that are stored unchanged. Other values are stored as None.
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Stand-in for a learning rate that is a tensor.
_RATE = 1e-3

#: Private torch functions: the sequence number of the next autograd node, and the node that a backward pass executes.
_next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
_node_now: Callable[[], Any] = torch._C._current_autograd_node


class TensorSpec(NamedTuple):
    """The geometry of a tensor at an op.

    ``block`` is None for a tensor that does not count, such as a number on the host.
    """

    block: Block | None
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class RecordedOp:
    """One recorded op.

    ``node_number`` is the sequence number of an autograd node. In a forward pass the op created the node; in a backward
    pass the node called the op.
    """

    __slots__ = ("args", "end", "func", "grad", "in_backward", "kwargs", "node_number", "results", "start")

    def __init__(self, func: Any, start: int, node: int | None, *, backward: bool, grad: bool) -> None:
        self.func = func
        self.start = start
        self.end = start
        self.node_number = node
        self.in_backward = backward
        #: True if gradients were enabled. Inside a backward pass such an op belongs to a recomputation.
        self.grad = grad
        self.args: Any = ()
        self.kwargs: Any = {}
        self.results: list[TensorSpec] = []

    def read_blocks(self) -> Iterable[Block]:
        """Return the blocks of the op's arguments."""
        return (value.block for value in values_in((self.args, self.kwargs)) if value.block is not None)


class ModuleCall:
    """One call of a module: start and end tick, created autograd nodes, input blocks and output blocks."""

    __slots__ = ("end", "given_blocks", "input_shape", "name", "node_range", "output_blocks", "start")

    def __init__(
        self, name: str, start: int, node: int, given_blocks: list[Block], input_shape: tuple[int, ...]
    ) -> None:
        self.name = name
        self.start = start
        self.end = FOREVER
        self.node_range = range(node, node)
        self.given_blocks = given_blocks
        #: The shape of the first input tensor; () without tensors.
        self.input_shape = input_shape
        self.output_blocks: list[Block] = []


class Lifetime:
    """The lifetime of a block in ticks of its step. ``created_at`` is -1 for a block that existed before the step."""

    __slots__ = ("created_at", "freed_at", "uncached_at")

    def __init__(self, created_at: int) -> None:
        self.created_at = created_at
        self.freed_at = FOREVER
        #: Tick at which the cache of autocast dropped the block; None for a block that was not in the cache.
        self.uncached_at: int | None = None


class OptimizerSpec(NamedTuple):
    """The input of an optimizer step.

    The fields are the class, and for each group its settings and, per parameter, (shape, dtype, has a gradient).
    """

    optimizer_class: type[torch.optim.Optimizer]
    groups: list[tuple[dict[str, Any], list[tuple[tuple[int, ...], torch.dtype, bool]]]]
    has_state: bool


class RecordedStep:
    """The time from the end of one optimizer step to the end of the next."""

    def __init__(self, alive: dict[Block, int]) -> None:
        self.tick = 0
        self.alive_bytes = self.peak = sum(alive.values())
        self.lifetimes = {block: Lifetime(-1) for block in alive}
        #: Bytes of each block. The category is an attribute of the block, because it may become known later.
        self.sizes = dict(alive)
        self.ops: list[RecordedOp] = []
        self.calls: list[ModuleCall] = []
        self.optimizer_spec: OptimizerSpec | None = None
        #: Tick at which the optimizer began to step.
        self.step_at = FOREVER
        #: Bytes of float32 tensors that the program cast to float32 outside of backward passes.
        self.noop_cast_bytes = 0
        #: The reason why the recording is incomplete, or "". Possible reasons are resized storages and too many ops.
        self.incomplete_reason = ""


class StepRecording:
    """The step with the highest peak of each optimizer. The caller reports blocks, ops and module calls."""

    def __init__(self) -> None:
        self._current_step = RecordedStep({})
        self._kept_steps: dict[int, RecordedStep] = {}

    @property
    def steps(self) -> Sequence[RecordedStep]:
        """The kept steps, oldest first."""
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
        """Create the record of an op that is about to run."""
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
        """Store the arguments before the op runs. Needed for ops that change the size of a tensor in place."""
        op.args = _to_spec(args, block_of)

    def end_op(
        self, op: RecordedOp, args: Any, kwargs: Any, result: Any, block_of: Callable[[torch.Tensor], Block | None]
    ) -> None:
        """Complete the record of an op that has run, and add the op to the current step."""
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
        """Create the record of a module call that begins."""
        step = self._current_step
        step.tick += 1
        call = ModuleCall(name, step.tick, _next_node(), given_blocks, shape)
        step.calls.append(call)
        return call

    def leave_module(self, call: ModuleCall, output_blocks: list[Block]) -> None:
        """Complete the record of a module call that returned or raised."""
        step = self._current_step
        step.tick += 1
        call.end = step.tick
        call.node_range = range(call.node_range.start, _next_node())
        call.output_blocks = output_blocks

    # Steps.

    def begin_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Store the optimizer's settings at the start of its step. A second call after a closure changes nothing."""
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
        """End the current step. Keep the step if its peak is the highest of this optimizer so far."""
        step, key = self._current_step, id(optimizer)
        kept_step = self._kept_steps.get(key)
        if kept_step is None or step.peak >= kept_step.peak:
            self._kept_steps[key] = step
            if len(self._kept_steps) > MOST_STEPS:
                del self._kept_steps[min(self._kept_steps, key=lambda key: self._kept_steps[key].peak)]
        self._current_step = RecordedStep({block: block.size for block in alive})


def values_in(spec: Any) -> Iterable[TensorSpec]:
    """Yield the tensor specs in nested arguments or results of an op."""
    if isinstance(spec, TensorSpec):
        yield spec
    elif isinstance(spec, (list, tuple)):
        for each in spec:
            yield from values_in(each)
    elif isinstance(spec, dict):
        yield from values_in(list(spec.values()))


def _to_spec(value: Any, block_of: Callable[[torch.Tensor], Block | None]) -> Any:
    """Replace tensors by tensor specs, and other objects by None so that the recording does not keep them alive."""
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
    """Return a setting of an optimizer as plain data.

    A learning rate that is a tensor becomes a fixed number, because only memory matters and not the value.
    """
    if isinstance(value, tuple):
        return tuple(_plain_setting(each) for each in value)
    if isinstance(value, torch.Tensor):
        return _RATE
    return value if isinstance(value, _PLAIN) else None
