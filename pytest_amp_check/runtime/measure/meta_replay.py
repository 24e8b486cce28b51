"""The replay of a recorded step on meta tensors, to compute the sizes of blocks with other dtypes or a smaller batch.

torch's own kernels for the meta device compute the shapes and dtypes of results. Arguments that are plain numbers, such
as the sizes of a view, are derived from the new shapes of the op's tensors. If they cannot be derived, there is no
answer.
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
#: Ops whose size argument is a new view of the sizes of their input.
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default}
#: Names of arguments that hold the sizes of a tensor.
_SIZES = {"size", "sizes", "input_size", "input_sizes", "self_sizes"}
#: Backward ops with an argument for the input dtype of their forward op.
_INPUT_DTYPE_OPS = {_aten._softmax_backward_data.default, _aten._log_softmax_backward_data.default}
#: Ops that torch replaces by other ops in low precision: recurrent layers of oneDNN, and attention by matrix products,
#: which is then computed in float32.
_CHOSEN_BY_DTYPE = {"mkldnn_rnn_layer", "_safe_softmax"}
#: Ops that refuse operands of different dtypes. The meta device does not refuse them.
_OF_ONE_DTYPE = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
#: Granularity in bytes to which allocators round sizes up.
_ROUNDED = 512
_GROUP_NORMS = {_aten.native_group_norm.default: 3, _aten.native_group_norm_backward.default: 5}

Shape = tuple[int, ...]


class Change(NamedTuple):
    """A change of a step.

    ``lowered_blocks`` hold ``low_dtype`` instead of float32; batches have another size along ``dim``.
    """

    lowered_blocks: frozenset[Block] = frozenset()
    low_dtype: torch.dtype = torch.bfloat16
    dim: int = 0
    batch_size: int = 1
    #: The new size of the batch dimension, instead of ``batch_size``.
    smaller_size: int = 1

    def dtype_of(self, block: Block | None, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of a tensor of this block after the change."""
        return self.low_dtype if block in self.lowered_blocks and dtype is torch.float32 else dtype


class ReplayResult(NamedTuple):
    """The result of a replay: the new bytes of each block of the step.

    ``replaced_by`` maps blocks that are no longer created to the block that takes their role. ``input_bytes`` are the
    bytes of the largest input of the op that created a block. ``lowered_input_bytes`` are, for each op name, the bytes
    of forward inputs that were float32 and are lower now.
    """

    sizes: dict[Block, int]
    replaced_by: dict[Block, Block]
    input_bytes: dict[Block, int]
    lowered_input_bytes: Counter[str]


class MetaReplay:
    """The replay of the ops of one step."""

    def __init__(self, step: RecordedStep, change: Change, reference: MetaReplay | None = None) -> None:
        self._step = step
        #: The replay without a change. It knows the differences between real kernels and the meta device.
        self._reference = reference
        #: (op, index of the result) to (dtype on the meta device, True if the shape differs from the recorded shape).
        self.kernel_differences: dict[tuple[RecordedOp, int], tuple[torch.dtype, bool]] = {}
        self._change = change
        self._tensors: dict[TensorSpec, torch.Tensor] = {}
        #: Bytes of the blocks seen so far.
        self.nbytes: dict[Block, int] = {}
        self._replaced_by: dict[Block, Block] = {}
        self.input_bytes: dict[Block, int] = {}
        #: Recorded shape to the new shapes of tensors with this shape.
        self._current_shapes: dict[Shape, set[Shape]] = {}
        #: Op name to bytes of forward inputs that were float32 and have low precision now.
        self.lowered_input_bytes: Counter[str] = Counter()
        #: Number of an autograd node to the input dtype of the forward cast that created the node.
        self._cast_source_dtypes: dict[int, torch.dtype] = {}

    def run(self) -> ReplayResult:
        """Replay the step.

        Return the sizes in bytes, not rounded, of every block that is an argument or result of an op.
        """
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
            # Outside of backward, the op that creates a batch stands for any source of batches.
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
        except Exception as error:  # any op may raise any error for unusual arguments
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
        """Convert a result of the meta device to the result of the recorded kernel where the two differ."""
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
        # A workspace: its size shrinks like the first result.
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
        """Return True if a cast has no effect after the change.

        Such a cast, and the cast of its gradient, creates no tensor.
        """
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
        if op.func in _INPUT_DTYPE_OPS and op.args[3] is op.args[0].dtype:
            args[3] = args[0].dtype
        self._resize_arguments(op, args, kwargs)
        return args, kwargs

    def _resize_arguments(self, op: RecordedOp, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Replace the sizes among the arguments by their new values."""
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
        """Return the new sizes of an expansion.

        Existing dimensions follow the tensor; added dimensions follow known shapes.
        """
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
        """Scale a shape that a program gives as numbers.

        A single dimension of the batch size changes with the batch.
        """
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
        """Create a tensor that existed before the step, or a view that no recorded op created."""
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
        """Return the new shape of a tensor that is an input of the step."""
        change = self._change
        assert value.block is not None
        shape = value.shape
        if change.batch_size == change.smaller_size or not _holds_batch(value.block):
            return shape
        if len(shape) > change.dim and shape[change.dim] == change.batch_size:
            return (*shape[: change.dim], change.smaller_size, *shape[change.dim + 1 :])
        return self._scale_shape(shape)


def _holds_batch(block: Block | None) -> bool:
    """Return True if a block may hold a batch, or another input that scales with the batch."""
    return block is not None and block.category in {"inputs", "activations", "temporaries"}


def _storage_bytes(value: TensorSpec, shape: Shape, dtype: torch.dtype, size: int) -> int:
    """Return the new bytes of a tensor's storage, in proportion to the recorded bytes."""
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
    """Replace -1 in the sizes of a view by the number that -1 stands for."""
    if -1 not in sizes:
        return sizes
    rest = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(old_shape) // max(1, rest) if size == -1 else size for size in sizes)


def resize_view(old_shape: Shape, new_shape: Shape, sizes: Shape, batch: int) -> Shape:
    """Return the sizes of a view whose base has ``new_shape`` instead of ``old_shape``.

    The dimensions of base and view are matched in groups with the same product. A change within a group changes one
    dimension of the view. Usually the dimension is the view dimension at which the changed dimension begins. If exactly
    one view dimension has the batch size and the changed dimension has another size, the view dimension with the batch
    size changes. The latter happens after a view that merged dimensions. Raise UnanswerableError if the sizes are not
    divisible.
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
    """Return the smallest groups of base dimensions and view dimensions that have the same products."""
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
    """Replay a step without a change, as the reference for every change."""
    replay = MetaReplay(step, Change())
    replay.run()
    return replay


def replay_changed(step: RecordedStep, change: Change, reference: MetaReplay) -> ReplayResult:
    """Return the bytes of a step's blocks after a change.

    Untouched blocks, such as old gradients, follow the parameters.
    """
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
            # In proportion: a real kernel may need more than its counterpart on the meta device.
            sizes[block] = round(step.sizes[block] * size / reference_bytes[block]) if reference_bytes[block] else size
        elif step.sizes[block] >= size + _ROUNDED and reference.input_bytes.get(block):
            # A sum stored in the memory of its terms, as losses are on the CPU: the extra bytes scale with the terms.
            room = step.sizes[block] - size
            sizes[block] = size + round(room * changed.input_bytes.get(block, 0) / reference.input_bytes[block])
    return changed._replace(sizes=sizes)


def intervals_of(step: RecordedStep, result: ReplayResult, round_size: Callable[[int], int]) -> list[Interval]:
    """Return the lifetime and bytes of each block.

    A block that replaces another block also lives as long as that block.
    """
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
    """Return the lifetime and bytes of each block in a later micro-batch.

    New gradients are added to the gradients of earlier micro-batches.
    """
    step = uses.step
    intervals = []
    for (block, lifetime), interval in zip(step.lifetimes.items(), intervals_of(step, result, round_size), strict=True):
        start, end, size = interval
        if block.category != "gradients" or lifetime.created_at > step.step_at:
            intervals.append(interval)
        elif lifetime.created_at < 0:
            # Gradients of the previous step: if cleared at all, they are cleared before the first micro-batch.
            intervals += [interval] * (lifetime.freed_at > step.step_at)
        else:
            added_until = max(
                [lifetime.created_at + 1, *(read.end_tick for read in uses.backward_reads.get(block, ()))]
            )
            intervals += [((-1, 0), end, size), (start, (min(added_until, lifetime.freed_at), 0), size)]
    return intervals
