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
from .recomputed import Interval, Unanswerable, Uses
from .trace import Op, Step, Value, values_in

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

    lowered: frozenset[Block] = frozenset()
    low: torch.dtype = torch.bfloat16
    dim: int = 0
    batch: int = 1
    #: What ``batch`` becomes.
    smaller: int = 1

    def dtype(self, block: Block | None, dtype: torch.dtype) -> torch.dtype:
        """What a tensor of this block is now of."""
        return self.low if block in self.lowered and dtype is torch.float32 else dtype


class Replayed(NamedTuple):
    """Bytes of each block of the step, and for those that are not made any more the block that stands for them.

    ``worked_on`` are the bytes of the largest tensor that was given to what has made a block, and ``given_low`` by the
    op the bytes of what it was given as float32 in forward passes, and is not any more.
    """

    sizes: dict[Block, int]
    instead: dict[Block, Block]
    worked_on: dict[Block, int]
    given_low: Counter[str]


class Replay:
    """Runs the ops of a step again, one after the other."""

    def __init__(self, step: Step, change: Change, unchanged: Replay | None = None) -> None:
        self._step = step
        #: The same without a change, which knows where kernels differ from what the meta device says of them.
        self._unchanged = unchanged
        #: By op and result: the dtype that the meta device told, and whether the shape was another one than recorded.
        self.differences: dict[tuple[Op, int], tuple[torch.dtype, bool]] = {}
        self._change = change
        self._tensors: dict[Value, torch.Tensor] = {}
        #: Bytes of the blocks that were seen so far.
        self.nbytes: dict[Block, int] = {}
        self._instead: dict[Block, Block] = {}
        self.worked_on: dict[Block, int] = {}
        #: The shapes that tensors of a recorded shape have now.
        self._shapes: dict[Shape, set[Shape]] = {}
        #: By the op, float32 bytes that forward passes give it, and that are of low precision now.
        self.given_low: Counter[str] = Counter()
        #: What the forward casts were given, by the nodes that they have made.
        self._cast: dict[int, torch.dtype] = {}

    def run(self) -> Replayed:
        """Sizes in bytes, not rounded, of every block that an op was given or has made."""
        for op in self._step.ops:
            if op.results:
                self._again(op)
                continue
            for value in values_in((op.args, op.kwargs)):
                self._tensor(value)
        return Replayed(self.nbytes, self._instead, self.worked_on, self.given_low)

    def _again(self, op: Op) -> None:
        if op.func is _aten._to_copy.default and self._is_none(op):
            return
        made_from_nothing = not op.backward and next(iter(values_in((op.args, op.kwargs))), None) is None
        if made_from_nothing and _is_given(op.results[0].block):
            # What makes a batch stands for whatever gives it.
            for value in op.results:
                self._tensor(value)
            return
        name = getattr(op.func, "overloadpacket", op.func).__name__
        if name in _OF_ONE_DTYPE and len({self._tensor(value).dtype for value in values_in(op.args)}) > 1:
            raise Unanswerable(f"{name} would be given operands of different dtypes, which it refuses")
        if name in _CHOSEN_BY_DTYPE and self._tensor(op.args[0]).dtype is not op.args[0].dtype:
            raise Unanswerable(f"torch runs something else than {name} where numbers are of low precision")
        try:
            args, kwargs = self._arguments(op)
            result = op.func(*args, **kwargs)
        except Unanswerable:
            raise
        except Exception as error:  # an operator of anybody's, given what it has not met
            said = next(iter(str(error).splitlines()), type(error).__name__)
            raise Unanswerable(f"{op.func} cannot be told without values: {said}") from error
        found = [result] if isinstance(result, torch.Tensor) else result
        tensors = [each for each in _flat(found) if isinstance(each, torch.Tensor)]
        if len(tensors) != len(op.results):
            raise Unanswerable(f"{op.func} gave another number of tensors")
        if not op.backward:
            self._note_low(op, name)
        largest = max((self._tensor(value).nbytes for value in values_in((op.args, op.kwargs))), default=0)
        for place, (value, tensor) in enumerate(zip(op.results, tensors, strict=True)):
            if value.block is not None and value.block not in self.nbytes:
                self.worked_on[value.block] = largest
            self._learn(value, self._as_kernels(op, place, tensor, tensors))

    def _note_low(self, op: Op, name: str) -> None:
        for value in values_in((op.args, op.kwargs)):
            if value.dtype is torch.float32 and self._tensor(value).dtype is self._change.low:
                self.given_low[name] += math.prod(value.shape) * value.dtype.itemsize

    def _as_kernels(self, op: Op, place: int, tensor: torch.Tensor, beside: Sequence[torch.Tensor]) -> torch.Tensor:
        """A result as the recorded kernel makes it, where the meta device says something else."""
        value = op.results[place]
        if self._unchanged is None:
            if tensor.dtype is value.dtype and tuple(tensor.shape) == value.shape:
                return tensor
            other_shape = tuple(tensor.shape) != value.shape
            self.differences[op, place] = (tensor.dtype, other_shape)
            return torch.empty(value.shape, dtype=value.dtype, device="meta") if other_shape else tensor.to(value.dtype)
        told, other_shape = self._unchanged.differences.get((op, place), (None, False))
        if told is None:
            return tensor
        given = values_in((op.args, op.kwargs))
        as_before = all(each.dtype is self._tensor(each).dtype for each in given)
        dtype = value.dtype if as_before and tensor.dtype is told else tensor.dtype
        if not other_shape:
            return tensor.to(dtype)
        # A workspace: as much less as the result beside it.
        now, was = beside[0].numel(), math.prod(op.results[0].shape)
        return torch.empty(math.prod(value.shape) * now // max(1, was), dtype=dtype, device="meta")

    def _learn(self, value: Value, tensor: torch.Tensor) -> None:
        tensor = tensor.to(self._change.dtype(value.block, tensor.dtype))
        self._tensors[value] = tensor
        self._shapes.setdefault(value.shape, set()).add(tuple(tensor.shape))
        if value.block is not None:
            size = tensor.untyped_storage().nbytes()
            self.nbytes[value.block] = max(size, self.nbytes.get(value.block, 0))

    def _is_none(self, op: Op) -> bool:
        """A cast to the dtype that a tensor now has anyway: none is made, nor one of its gradient."""
        source, made = op.args[0], op.results[0]
        given = self._tensor(source)
        if op.backward:
            target = self._cast.get(-1 if op.node is None else op.node, op.kwargs.get("dtype"))
        else:
            target = op.kwargs.get("dtype")
            if op.node is not None:
                self._cast[op.node] = given.dtype
        if target is not given.dtype or source.dtype is made.dtype or made.block is None:
            return False
        self._tensors[made] = given
        self.nbytes[made.block] = 0
        if source.block is not None:
            self._instead[made.block] = self._instead.get(source.block, source.block)
        return True

    # Arguments.

    def _arguments(self, op: Op) -> tuple[list[Any], dict[str, Any]]:
        args = [self._converted(each) for each in op.args]
        kwargs = {name: self._converted(each) for name, each in op.kwargs.items()}
        kwargs.pop("generator", None)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        kwargs.pop("pin_memory", None)
        if op.func is _aten._to_copy.default and op.backward and op.node in self._cast:
            kwargs["dtype"] = self._cast[op.node]
        if op.func in _TOLD_DTYPE and op.args[3] is op.args[0].dtype:
            args[3] = args[0].dtype
        self._resize(op, args, kwargs)
        return args, kwargs

    def _resize(self, op: Op, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Give the sizes among the arguments that they have now."""
        if op.func in _GROUP_NORMS:
            args[_GROUP_NORMS[op.func]] = args[0].shape[0]
        schema = getattr(op.func, "_schema", None)
        for index, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.name not in _SIZES or not str(argument.type).startswith("List[int]"):
                continue
            if index < len(args):
                args[index] = self._sizes(op, args, tuple(args[index]))
            elif argument.name in kwargs:
                kwargs[argument.name] = self._sizes(op, args, tuple(kwargs[argument.name]))

    def _sizes(self, op: Op, args: list[Any], sizes: Shape) -> Shape:
        if op.func in _VIEWS:
            was = op.args[0].shape
            return seen_as(was, tuple(args[0].shape), _full(sizes, was), self._change.batch)
        known = self._shapes.get(op.results[0].shape if op.func is _aten.expand.default else sizes, set())
        if op.func is _aten.expand.default:
            return self._expanded(op.args[0].shape, tuple(args[0].shape), op.results[0].shape, known)
        return next(iter(known)) if len(known) == 1 else self._scaled(sizes)

    def _expanded(self, was: Shape, now: Shape, made: Shape, known: set[Shape]) -> Shape:
        """Sizes of an expansion: its own dimensions follow the tensor, those that are new follow what is known."""
        guess = next(iter(known)) if len(known) == 1 else self._scaled(made)
        ahead = len(made) - len(was)
        own = [
            now[i - ahead] if i >= ahead and was[i - ahead] == made[i] and made[i] != 1 else guess[i]
            for i in range(len(made))
        ]
        return tuple(own)

    def _scaled(self, shape: Shape) -> Shape:
        """A shape that a program gives as numbers: the one dimension that is as large as the batch goes with it."""
        batch, smaller = self._change.batch, self._change.smaller
        if batch == smaller:
            return shape
        places = [i for i, size in enumerate(shape) if size == batch]
        if len(places) > 1:
            places = [i for i in places if i == self._change.dim][:1]
        return tuple(smaller if i in places else size for i, size in enumerate(shape))

    def _converted(self, spec: Any) -> Any:
        if isinstance(spec, Value):
            return self._tensor(spec)
        if isinstance(spec, list):
            return [self._converted(each) for each in spec]
        if isinstance(spec, torch.device):
            return torch.device("meta")
        return spec

    def _tensor(self, value: Value) -> torch.Tensor:
        found = self._tensors.get(value)
        if found is None:
            found = self._tensors[value] = self._made(value)
            self._shapes.setdefault(value.shape, set()).add(tuple(found.shape))
        return found

    def _made(self, value: Value) -> torch.Tensor:
        """A tensor that was there before the step, or one that is seen in a way that no op has made."""
        block = value.block
        if block is None:
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        if block not in self.nbytes:
            shape = self._given(value)
            dtype = self._change.dtype(block, value.dtype)
            self.nbytes[block] = _bytes(value, shape, dtype, self._step.sizes[block])
            if shape == value.shape and value.stride:
                return torch.empty_strided(shape, value.stride, dtype=dtype, device="meta")
            return torch.empty(shape, dtype=dtype, device="meta")
        for other, tensor in self._tensors.items():
            if other.block is block and math.prod(other.shape) == math.prod(value.shape):
                shape = seen_as(other.shape, tuple(tensor.shape), value.shape, self._change.batch)
                return torch.empty(shape, dtype=tensor.dtype, device="meta")
        if self.nbytes[block] == self._step.sizes[block]:
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        raise Unanswerable(f"a part of a tensor of shape {value.shape} was not made by an operator")

    def _given(self, value: Value) -> Shape:
        """The shape of a tensor that the step was given."""
        change = self._change
        assert value.block is not None
        shape = value.shape
        if change.batch == change.smaller or not _is_given(value.block):
            return shape
        if len(shape) > change.dim and shape[change.dim] == change.batch:
            return (*shape[: change.dim], change.smaller, *shape[change.dim + 1 :])
        return self._scaled(shape)


def _is_given(block: Block | None) -> bool:
    """Whether a block holds a batch, or what else a step is given that is as long."""
    return block is not None and block.category in {"inputs", "activations", "temporaries"}


def _bytes(value: Value, shape: Shape, dtype: torch.dtype, size: int) -> int:
    """The bytes of the storage of a tensor, in proportion to those that it had."""
    part = math.prod(shape) * dtype.itemsize / max(1, math.prod(value.shape) * value.dtype.itemsize)
    return round(size * part)


def _flat(found: Any) -> list[Any]:
    flat: list[Any] = []
    for each in found:
        if isinstance(each, (list, tuple)):
            flat += _flat(each)
        else:
            flat.append(each)
    return flat


def _full(sizes: Shape, was: Shape) -> Shape:
    """Sizes with the number that -1 stands for."""
    if -1 not in sizes:
        return sizes
    rest = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(was) // max(1, rest) if size == -1 else size for size in sizes)


def seen_as(was: Shape, now: Shape, sizes: Shape, batch: int) -> Shape:
    """The sizes of a view, where the tensor that it is of has other sizes than it had.

    Dimensions of both go together in groups of the same product, and what has changed of a group is changed in one
    dimension of the view: where the changed one begins, or where only one is as large as the batch and the changed one
    is not, as after a view that took dimensions together, in that one.
    """
    if was == now:
        return sizes
    result = list(sizes)
    for inner, outer in _groups(was, sizes):
        before = math.prod(was[i] for i in inner)
        after = math.prod(now[i] for i in inner)
        if before != after:
            place = _place(was, now, sizes, inner, outer, batch)
            if result[place] * after % before:
                raise Unanswerable(f"a view of {was} as {sizes} does not follow a smaller batch")
            result[place] = result[place] * after // before
    return tuple(result)


def _place(was: Shape, now: Shape, sizes: Shape, inner: Sequence[int], outer: Sequence[int], batch: int) -> int:
    changed = next(i for i in inner if was[i] != now[i])
    alike = [o for o in outer if sizes[o] == batch]
    if len(alike) == 1 and was[changed] != batch:
        return alike[0]
    start = math.prod(was[i] for i in inner if i < changed)
    ahead = 1
    for o in outer:
        if ahead <= start < ahead * sizes[o]:
            return o
        ahead *= sizes[o]
    return outer[0]


def _groups(was: Shape, sizes: Shape) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a tensor and of its view, in the smallest groups with the same products."""
    groups = []
    i = o = 0
    while i < len(was) and o < len(sizes):
        inner, outer = [i], [o]
        left, right = was[i], sizes[o]
        i, o = i + 1, o + 1
        while left != right:
            if left < right and i < len(was):
                left *= was[i]
                inner.append(i)
                i += 1
            elif o < len(sizes):
                right *= sizes[o]
                outer.append(o)
                o += 1
            else:
                raise Unanswerable(f"a view of {was} as {sizes} cannot be told")
        groups.append((inner, outer))
    return groups


def unchanged(step: Step) -> Replay:
    """A step again as it was, with which every change of it is compared."""
    same = Replay(step, Change())
    same.run()
    return same


def replayed(step: Step, change: Change, same: Replay) -> Replayed:
    """What the blocks of a step would need; one that no op has touched, as old gradients, goes with the parameters."""
    changed = Replay(step, change, same).run()
    untouched = same.nbytes
    sizes = dict(step.sizes)
    if step.stepped is not None and all(p[1] is torch.float32 for _, group in step.stepped.groups for p in group):
        for block in change.lowered - changed.sizes.keys():
            sizes[block] = sizes[block] * change.low.itemsize // torch.float32.itemsize
    for block, size in changed.sizes.items():
        if block in changed.instead:
            sizes[block] = 0
        elif size != untouched[block]:
            # In proportion: a kernel may want more than its counterpart on the meta device.
            sizes[block] = round(step.sizes[block] * size / untouched[block]) if untouched[block] else size
        elif step.sizes[block] >= size + _ROUNDED and same.worked_on.get(block):
            # A sum in the room of what was summed up, as losses are on the CPU.
            room = step.sizes[block] - size
            sizes[block] = size + round(room * changed.worked_on.get(block, 0) / same.worked_on[block])
    return changed._replace(sizes=sizes)


def intervals_of(step: Step, told: Replayed, rounded: Callable[[int], int]) -> list[Interval]:
    """When each block is there, and its bytes: one that stands for another is there as long as that one was."""
    died = {block: life.died for block, life in step.lives.items()}
    for block, other in told.instead.items():
        died[other] = max(died.get(other, 0), step.lives[block].died)
    return [
        ((life.born, 0), (died[block], 0), size if size == step.sizes[block] else rounded(size))
        for block, life in step.lives.items()
        for size in (told.sizes[block],)
    ]


def in_a_later_micro_batch(uses: Uses, told: Replayed, rounded: Callable[[int], int]) -> list[Interval]:
    """When each block is there once a micro-batch went before: new gradients are added to those that it has left."""
    step = uses.step
    intervals = []
    for (block, life), interval in zip(step.lives.items(), intervals_of(step, told, rounded), strict=True):
        born, died, size = interval
        if block.category != "gradients" or life.born > step.step_at:
            intervals.append(interval)
        elif life.born < 0:
            # Those of the step before, which are cleared before the first micro-batch if at all.
            intervals += [interval] * (life.died > step.step_at)
        else:
            added = max([life.born + 1, *(read.end for read in uses.backward.get(block, ()))])
            intervals += [((-1, 0), died, size), (born, (min(added, life.died), 0), size)]
    return intervals
