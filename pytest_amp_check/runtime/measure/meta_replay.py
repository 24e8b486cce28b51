"""A recorded step again, on tensors without values: what its blocks would need with other dtypes or a smaller batch.

torch's own kernels for the meta device tell the shapes and dtypes of results. What an op was given as plain numbers,
the sizes of a view, follows from the shapes that its tensors have now; where it does not follow, there is no answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .block import Block
from .recomputed import BlockUses, Interval, UnanswerableError
from .step_recording import RecordedOp, RecordedStep, TensorSpec, values_in

_aten = torch.ops.aten
#: Ops whose sizes are those of the tensor that they are given, seen otherwise.
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default}
#: How arguments are called that hold the sizes of a tensor.
_SIZES = {"size", "sizes", "input_size", "input_sizes", "self_sizes"}
#: Backward formulas that are told the dtype which their forward was given.
_TOLD_DTYPE = {_aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default}
#: What torch computes otherwise where numbers are of low precision, so that other ops would run: recurrent layers of
#: oneDNN, and attention by matrix products, which is then computed in float32.
_CHOSEN_BY_DTYPE = {"mkldnn_rnn_layer", "_safe_softmax"}
#: What refuses operands of different dtypes, as the meta device does not.
_OF_ONE_DTYPE = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
#: Allocators round sizes up to as many bytes.
_ROUNDED = 512
_GROUP_NORMS = {_aten.native_group_norm.default: 3, _aten.native_group_norm_backward.default: 5}

Shape = tuple[int, ...]


class Change(NamedTuple):
    """What is otherwise: blocks that hold ``low`` instead of float32, and the size of dimension ``dim`` of batches."""

    lowered_blocks: frozenset[Block] = frozenset()
    low_dtype: torch.dtype = torch.bfloat16
    dim: int = 0
    batch_size: int = 1
    #: What ``batch`` becomes.
    smaller_size: int = 1

    def dtype_of(self, block: Block | None, dtype: torch.dtype) -> torch.dtype:
        """What a tensor of this block is now of."""
        return self.low_dtype if block in self.lowered_blocks and dtype is torch.float32 else dtype


class ReplayResult(NamedTuple):
    """Bytes of each block of the step, and for those that are not made any more the block that stands for them.

    ``worked_on`` are the bytes of the largest tensor that was given to what has made a block, and ``given_low`` by the
    op the bytes of what it was given as float32 in forward passes, and is not any more.
    """

    sizes: dict[Block, int]
    replaced_by: dict[Block, Block]
    input_bytes: dict[Block, int]
    lowered_input_bytes: Counter[str]


class MetaReplay:
    """Runs the ops of a step again, one after the other."""

    def __init__(self, step: RecordedStep, change: Change, reference: MetaReplay | None = None) -> None:
        self._step = step
        #: The same without a change, which knows where kernels differ from what the meta device says of them.
        self._reference = reference
        #: By op and result: the dtype that the meta device told, and whether the shape was another one than recorded.
        self.kernel_differences: dict[tuple[RecordedOp, int], tuple[torch.dtype, bool]] = {}
        self._change = change
        self._tensors: dict[TensorSpec, torch.Tensor] = {}
        #: Bytes of the blocks that were seen so far.
        self.nbytes: dict[Block, int] = {}
        self._replaced_by: dict[Block, Block] = {}
        self.input_bytes: dict[Block, int] = {}
        #: The shapes that tensors of a recorded shape have now.
        self._current_shapes: dict[Shape, set[Shape]] = {}
        #: By the op, float32 bytes that forward passes give it, and that are of low precision now.
        self.lowered_input_bytes: Counter[str] = Counter()
        #: What the forward casts were given, by the nodes that they have made.
        self._cast_source_dtypes: dict[int, torch.dtype] = {}

    def run(self) -> ReplayResult:
        """Sizes in bytes, not rounded, of every block that an op was given or has made."""
        for op in self._step.ops:
            if op.results:
                self._replay_op(op)
                continue
            for value in values_in((op.args, op.kwargs)):
                self._tensor_of(value)
        return ReplayResult(self.nbytes, self._replaced_by, self.input_bytes, self.lowered_input_bytes)

    def _replay_op(self, op: RecordedOp) -> None:
        if op.func is _aten._to_copy.default and self._is_noop_cast(op):
            return
        made_from_nothing = not op.in_backward and next(iter(values_in((op.args, op.kwargs))), None) is None
        if made_from_nothing and _holds_batch(op.results[0].block):
            # What makes a batch stands for whatever gives it.
            for value in op.results:
                self._tensor_of(value)
            return
        name = getattr(op.func, "overloadpacket", op.func).__name__
        if name in _OF_ONE_DTYPE and len({self._tensor_of(value).dtype for value in values_in(op.args)}) > 1:
            raise UnanswerableError(f"{name} would be given operands of different dtypes, which it refuses")
        if name in _CHOSEN_BY_DTYPE and self._tensor_of(op.args[0]).dtype is not op.args[0].dtype:
            raise UnanswerableError(f"torch runs something else than {name} where numbers are of low precision")
        try:
            args, kwargs = self._build_arguments(op)
            result = op.func(*args, **kwargs)
        except UnanswerableError:
            raise
        except Exception as error:  # an operator of anybody's, given what it has not met
            error_text = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnanswerableError(f"{op.func} cannot be told without values: {error_text}") from error
        results = [result] if isinstance(result, torch.Tensor) else result
        tensors = [each for each in _flatten(results) if isinstance(each, torch.Tensor)]
        if len(tensors) != len(op.results):
            raise UnanswerableError(f"{op.func} gave another number of tensors")
        if not op.in_backward:
            self._note_lowered_inputs(op, name)
        largest = max((self._tensor_of(value).nbytes for value in values_in((op.args, op.kwargs))), default=0)
        for index, (value, tensor) in enumerate(zip(op.results, tensors, strict=True)):
            if value.block is not None and value.block not in self.nbytes:
                self.input_bytes[value.block] = largest
            self._store_result(value, self._match_kernel(op, index, tensor, tensors))

    def _note_lowered_inputs(self, op: RecordedOp, name: str) -> None:
        for value in values_in((op.args, op.kwargs)):
            if value.dtype is torch.float32 and self._tensor_of(value).dtype is self._change.low_dtype:
                self.lowered_input_bytes[name] += math.prod(value.shape) * value.dtype.itemsize

    def _match_kernel(
        self, op: RecordedOp, index: int, tensor: torch.Tensor, all_results: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """A result as the recorded kernel makes it, where the meta device says something else."""
        value = op.results[index]
        if self._reference is None:
            if tensor.dtype is value.dtype and tuple(tensor.shape) == value.shape:
                return tensor
            other_shape = tuple(tensor.shape) != value.shape
            self.kernel_differences[op, index] = (tensor.dtype, other_shape)
            return torch.empty(value.shape, dtype=value.dtype, device="meta") if other_shape else tensor.to(value.dtype)
        meta_dtype, other_shape = self._reference.kernel_differences.get((op, index), (None, False))
        if meta_dtype is None:
            return tensor
        inputs = values_in((op.args, op.kwargs))
        is_same_input = all(each.dtype is self._tensor_of(each).dtype for each in inputs)
        dtype = value.dtype if is_same_input and tensor.dtype is meta_dtype else tensor.dtype
        if not other_shape:
            return tensor.to(dtype)
        # A workspace: as much less as the result beside it.
        new_size, old_size = all_results[0].numel(), math.prod(op.results[0].shape)
        return torch.empty(math.prod(value.shape) * new_size // max(1, old_size), dtype=dtype, device="meta")

    def _store_result(self, value: TensorSpec, tensor: torch.Tensor) -> None:
        tensor = tensor.to(self._change.dtype_of(value.block, tensor.dtype))
        self._tensors[value] = tensor
        self._current_shapes.setdefault(value.shape, set()).add(tuple(tensor.shape))
        if value.block is not None:
            size = tensor.untyped_storage().nbytes()
            self.nbytes[value.block] = max(size, self.nbytes.get(value.block, 0))

    def _is_noop_cast(self, op: RecordedOp) -> bool:
        """A cast to the dtype that a tensor now has anyway: none is made, nor one of its gradient."""
        source, result = op.args[0], op.results[0]
        source_tensor = self._tensor_of(source)
        if op.in_backward:
            target = self._cast_source_dtypes.get(
                -1 if op.node_number is None else op.node_number, op.kwargs.get("dtype")
            )
        else:
            target = op.kwargs.get("dtype")
            if op.node_number is not None:
                self._cast_source_dtypes[op.node_number] = source_tensor.dtype
        if target is not source_tensor.dtype or source.dtype is result.dtype or result.block is None:
            return False
        self._tensors[result] = source_tensor
        self.nbytes[result.block] = 0
        if source.block is not None:
            self._replaced_by[result.block] = self._replaced_by.get(source.block, source.block)
        return True

    # Arguments.

    def _build_arguments(self, op: RecordedOp) -> tuple[list[Any], dict[str, Any]]:
        args = [self._to_tensors(each) for each in op.args]
        kwargs = {name: self._to_tensors(each) for name, each in op.kwargs.items()}
        kwargs.pop("generator", None)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        kwargs.pop("pin_memory", None)
        if op.func is _aten._to_copy.default and op.in_backward and op.node_number in self._cast_source_dtypes:
            kwargs["dtype"] = self._cast_source_dtypes[op.node_number]
        if op.func in _TOLD_DTYPE and op.args[3] is op.args[0].dtype:
            args[3] = args[0].dtype
        self._resize_arguments(op, args, kwargs)
        return args, kwargs

    def _resize_arguments(self, op: RecordedOp, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Give the sizes among the arguments that they have now."""
        if op.func in _GROUP_NORMS:
            args[_GROUP_NORMS[op.func]] = args[0].shape[0]
        schema = getattr(op.func, "_schema", None)
        for index, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.name not in _SIZES or not str(argument.type).startswith("List[int]"):
                continue
            if index < len(args):
                args[index] = self._current_sizes(op, args, tuple(args[index]))
            elif argument.name in kwargs:
                kwargs[argument.name] = self._current_sizes(op, args, tuple(kwargs[argument.name]))

    def _current_sizes(self, op: RecordedOp, args: list[Any], sizes: Shape) -> Shape:
        if op.func in _VIEWS:
            old_shape = op.args[0].shape
            return resize_view(
                old_shape, tuple(args[0].shape), _fill_inferred_size(sizes, old_shape), self._change.batch_size
            )
        shapes = self._current_shapes.get(op.results[0].shape if op.func is _aten.expand.default else sizes, set())
        if op.func is _aten.expand.default:
            return self._expanded_sizes(op.args[0].shape, tuple(args[0].shape), op.results[0].shape, shapes)
        return next(iter(shapes)) if len(shapes) == 1 else self._scale_shape(sizes)

    def _expanded_sizes(self, old_shape: Shape, new_shape: Shape, result_shape: Shape, shapes: set[Shape]) -> Shape:
        """Sizes of an expansion: its own dimensions follow the tensor, those that are new follow what is known."""
        guess = next(iter(shapes)) if len(shapes) == 1 else self._scale_shape(result_shape)
        ahead = len(result_shape) - len(old_shape)
        sizes = [
            new_shape[i - ahead]
            if i >= ahead and old_shape[i - ahead] == result_shape[i] and result_shape[i] != 1
            else guess[i]
            for i in range(len(result_shape))
        ]
        return tuple(sizes)

    def _scale_shape(self, shape: Shape) -> Shape:
        """A shape that a program gives as numbers: the one dimension that is as large as the batch goes with it."""
        batch, smaller = self._change.batch_size, self._change.smaller_size
        if batch == smaller:
            return shape
        dimensions = [i for i, size in enumerate(shape) if size == batch]
        if len(dimensions) > 1:
            dimensions = [i for i in dimensions if i == self._change.dim][:1]
        return tuple(smaller if i in dimensions else size for i, size in enumerate(shape))

    def _to_tensors(self, spec: Any) -> Any:
        if isinstance(spec, TensorSpec):
            return self._tensor_of(spec)
        if isinstance(spec, list):
            return [self._to_tensors(each) for each in spec]
        if isinstance(spec, torch.device):
            return torch.device("meta")
        return spec

    def _tensor_of(self, value: TensorSpec) -> torch.Tensor:
        tensor = self._tensors.get(value)
        if tensor is None:
            tensor = self._tensors[value] = self._make_tensor(value)
            self._current_shapes.setdefault(value.shape, set()).add(tuple(tensor.shape))
        return tensor

    def _make_tensor(self, value: TensorSpec) -> torch.Tensor:
        """A tensor that was there before the step, or one that is seen in a way that no op has made."""
        block = value.block
        if block is None:
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        if block not in self.nbytes:
            shape = self._given_shape(value)
            dtype = self._change.dtype_of(block, value.dtype)
            self.nbytes[block] = _storage_bytes(value, shape, dtype, self._step.sizes[block])
            if shape == value.shape and value.stride:
                return torch.empty_strided(shape, value.stride, dtype=dtype, device="meta")
            return torch.empty(shape, dtype=dtype, device="meta")
        for other, tensor in self._tensors.items():
            if other.block is block and math.prod(other.shape) == math.prod(value.shape):
                shape = resize_view(other.shape, tuple(tensor.shape), value.shape, self._change.batch_size)
                return torch.empty(shape, dtype=tensor.dtype, device="meta")
        if self.nbytes[block] == self._step.sizes[block]:
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        raise UnanswerableError(f"a part of a tensor of shape {value.shape} was not made by an operator")

    def _given_shape(self, value: TensorSpec) -> Shape:
        """The shape of a tensor that the step was given."""
        change = self._change
        assert value.block is not None
        shape = value.shape
        if change.batch_size == change.smaller_size or not _holds_batch(value.block):
            return shape
        if len(shape) > change.dim and shape[change.dim] == change.batch_size:
            return (*shape[: change.dim], change.smaller_size, *shape[change.dim + 1 :])
        return self._scale_shape(shape)


def _holds_batch(block: Block | None) -> bool:
    """Whether a block holds a batch, or what else a step is given that is as long."""
    return block is not None and block.category in {"inputs", "activations", "temporaries"}


def _storage_bytes(value: TensorSpec, shape: Shape, dtype: torch.dtype, size: int) -> int:
    """The bytes of the storage of a tensor, in proportion to those that it had."""
    part = math.prod(shape) * dtype.itemsize / max(1, math.prod(value.shape) * value.dtype.itemsize)
    return round(size * part)


def _flatten(nested: Any) -> list[Any]:
    flat: list[Any] = []
    for each in nested:
        if isinstance(each, (list, tuple)):
            flat += _flatten(each)
        else:
            flat.append(each)
    return flat


def _fill_inferred_size(sizes: Shape, old_shape: Shape) -> Shape:
    """Sizes with the number that -1 stands for."""
    if -1 not in sizes:
        return sizes
    rest = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(old_shape) // max(1, rest) if size == -1 else size for size in sizes)


def resize_view(old_shape: Shape, new_shape: Shape, sizes: Shape, batch: int) -> Shape:
    """The sizes of a view, where the tensor that it is of has other sizes than it had.

    Dimensions of both go together in groups of the same product, and what has changed of a group is changed in one
    dimension of the view: where the changed one begins, or where only one is as large as the batch and the changed one
    is not, as after a view that took dimensions together, in that one.
    """
    if old_shape == new_shape:
        return sizes
    result = list(sizes)
    for inner, outer in _group_dimensions(old_shape, sizes):
        before = math.prod(old_shape[i] for i in inner)
        after = math.prod(new_shape[i] for i in inner)
        if before != after:
            dimension = _changed_dimension(old_shape, new_shape, sizes, inner, outer, batch)
            if result[dimension] * after % before:
                raise UnanswerableError(f"a view of {old_shape} as {sizes} does not follow a smaller batch")
            result[dimension] = result[dimension] * after // before
    return tuple(result)


def _changed_dimension(
    old_shape: Shape, new_shape: Shape, sizes: Shape, inner: Sequence[int], outer: Sequence[int], batch: int
) -> int:
    changed = next(i for i in inner if old_shape[i] != new_shape[i])
    batch_dimensions = [o for o in outer if sizes[o] == batch]
    if len(batch_dimensions) == 1 and old_shape[changed] != batch:
        return batch_dimensions[0]
    start = math.prod(old_shape[i] for i in inner if i < changed)
    ahead = 1
    for o in outer:
        if ahead <= start < ahead * sizes[o]:
            return o
        ahead *= sizes[o]
    return outer[0]


def _group_dimensions(old_shape: Shape, sizes: Shape) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a tensor and of its view, in the smallest groups with the same products."""
    groups = []
    i = o = 0
    while i < len(old_shape) and o < len(sizes):
        inner, outer = [i], [o]
        left, right = old_shape[i], sizes[o]
        i, o = i + 1, o + 1
        while left != right:
            if left < right and i < len(old_shape):
                left *= old_shape[i]
                inner.append(i)
                i += 1
            elif o < len(sizes):
                right *= sizes[o]
                outer.append(o)
                o += 1
            else:
                raise UnanswerableError(f"a view of {old_shape} as {sizes} cannot be told")
        groups.append((inner, outer))
    return groups


def replay_unchanged(step: RecordedStep) -> MetaReplay:
    """A step again as it was, with which every change of it is compared."""
    replay = MetaReplay(step, Change())
    replay.run()
    return replay


def replay_changed(step: RecordedStep, change: Change, reference: MetaReplay) -> ReplayResult:
    """What the blocks of a step would need; one that no op has touched, as old gradients, goes with the parameters."""
    changed = MetaReplay(step, change, reference).run()
    reference_bytes = reference.nbytes
    sizes = dict(step.sizes)
    if step.optimizer_spec is not None and all(
        p[1] is torch.float32 for _, group in step.optimizer_spec.groups for p in group
    ):
        for block in change.lowered_blocks - changed.sizes.keys():
            sizes[block] = sizes[block] * change.low_dtype.itemsize // torch.float32.itemsize
    for block, size in changed.sizes.items():
        if block in changed.replaced_by:
            sizes[block] = 0
        elif size != reference_bytes[block]:
            # In proportion: a kernel may want more than its counterpart on the meta device.
            sizes[block] = round(step.sizes[block] * size / reference_bytes[block]) if reference_bytes[block] else size
        elif step.sizes[block] >= size + _ROUNDED and reference.input_bytes.get(block):
            # A sum in the room of what was summed up, as losses are on the CPU.
            room = step.sizes[block] - size
            sizes[block] = size + round(room * changed.input_bytes.get(block, 0) / reference.input_bytes[block])
    return changed._replace(sizes=sizes)


def intervals_of(step: RecordedStep, result: ReplayResult, round_size: Callable[[int], int]) -> list[Interval]:
    """When each block is there, and its bytes: one that stands for another is there as long as that one was."""
    ends = {block: lifetime.freed_at for block, lifetime in step.lifetimes.items()}
    for block, other in result.replaced_by.items():
        ends[other] = max(ends.get(other, 0), step.lifetimes[block].freed_at)
    return [
        ((lifetime.created_at, 0), (ends[block], 0), size if size == step.sizes[block] else round_size(size))
        for block, lifetime in step.lifetimes.items()
        for size in (result.sizes[block],)
    ]


def later_microbatch_intervals(
    uses: BlockUses, result: ReplayResult, round_size: Callable[[int], int]
) -> list[Interval]:
    """When each block is there once a micro-batch went before: new gradients are added to those that it has left."""
    step = uses.step
    intervals = []
    for (block, lifetime), interval in zip(step.lifetimes.items(), intervals_of(step, result, round_size), strict=True):
        start, end, size = interval
        if block.category != "gradients" or lifetime.created_at > step.step_at:
            intervals.append(interval)
        elif lifetime.created_at < 0:
            # Those of the step before, which are cleared before the first micro-batch if at all.
            intervals += [interval] * (lifetime.freed_at > step.step_at)
        else:
            added_until = max(
                [lifetime.created_at + 1, *(read.end_tick for read in uses.backward_reads.get(block, ()))]
            )
            intervals += [((-1, 0), end, size), (start, (min(added_until, lifetime.freed_at), 0), size)]
    return intervals
