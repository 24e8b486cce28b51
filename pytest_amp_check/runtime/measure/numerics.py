"""Gradient magnitudes, counted by powers of two, with the loss scale (as in the backward pass) and without it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ..record.collector import Collector
from ..record.steps import KEPT
from .dtypes import ParameterNames
from .headroom import Headroom

#: The exponents that have a bin: the exponents of normal float32 numbers. Smaller and larger magnitudes count in the
#: first and last bin.
_LEAST, _MOST = -126, 127
_BINS = _MOST - _LEAST + 1
# Columns of a row of counts after its bins: exact zeros; magnitudes of exactly 2^-25, which float16 rounds to zero (to
# even) while the rest of their bin becomes 2^-24; magnitudes from 65520 to 2^16, which float16 rounds to infinity; inf;
# NaN; zeros that float16 produced before the counting (see count_flushed).
_ZERO, _TIE, _OVER, _INF, _NAN, _FLUSHED = range(_BINS, _BINS + 6)
_WIDTH = _BINS + 6
#: float16: magnitudes up to 2^-25 round to zero, below 2^-14 are subnormal, and from 65520 round to infinity.
_TIE_EXPONENT, _SUBNORMAL_EXPONENT, _NORMAL_EXPONENT, _LAST_EXPONENT = -25, -24, -14, 15
#: The bits of a float32's fraction for 65520 = 1.99951171875 * 2^15.
_OVER_FRACTION = 0x7FF000
_SIGNLESS = 0x7FFFFFFF
#: Tolerance, in units in the last place of float32, between a gradient and its value before the division by the scale.
_PLACES = 16
#: Sizes in elements. _PIECE: a chunk that stays in a CPU's caches. _SMALL: a chunk that is copied together with others,
#: because each launch of an op costs as much as a thousand elements. _BATCH: chunks that are counted together; the
#: limit bounds the copies of gradients that are not float32 or not contiguous.
_PIECE, _SMALL, _BATCH = 1 << 18, 1 << 12, 1 << 22


#: The counts that reports show.
_COLUMNS = ("zero", "flushed", "lost", "subnormal", "normal", "above", "inf", "nan")


class Counts(NamedTuple):
    """The number of gradient elements by their representation in float16.

    Each element is in one of these fields. ``zero``: already zero. ``lost``: not zero, but float16 rounds it to zero
    (up to 2^-25). ``subnormal``: below 2^-14, stored with fewer digits. ``normal``. ``above``: finite, but float16
    rounds it to infinity (from 65520). ``inf``. ``nan``.

    ``histogram``: finite non-zero elements by the exponent of the power of two at or below their magnitude.
    ``flushed``: lower bound for the elements in ``zero`` that float16 rounded from a smaller magnitude.
    """

    zero: int
    lost: int
    subnormal: int
    normal: int
    above: int
    inf: int
    nan: int
    histogram: dict[int, int]
    flushed: int

    @property
    def nonzero(self) -> int:
        """The number of finite elements that are not zero."""
        return self.lost + self.subnormal + self.normal + self.above

    @property
    def share_lost(self) -> float:
        """The share, 0 to 1, of non-zero elements that float16 rounds, or has rounded, to zero."""
        whole = self.nonzero + self.flushed
        return (self.lost + self.flushed) / whole if whole else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the exponents of the histogram are strings."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        return {**columns, "histogram": {str(exponent): n for exponent, n in self.histogram.items()}}


def _counts_of_row(row: torch.Tensor) -> Counts:
    """Convert one row of the table to counts."""
    numbers: list[int] = row.tolist()

    def sum_bins(first: int, last: int) -> int:
        return sum(numbers[first - _LEAST : last - _LEAST + 1])

    return Counts(
        zero=numbers[_ZERO],
        lost=sum_bins(_LEAST, _TIE_EXPONENT - 1) + numbers[_TIE],
        subnormal=sum_bins(_TIE_EXPONENT, _NORMAL_EXPONENT - 1) - numbers[_TIE],
        normal=sum_bins(_NORMAL_EXPONENT, _LAST_EXPONENT) - numbers[_OVER],
        above=sum_bins(_LAST_EXPONENT + 1, _MOST) + numbers[_OVER],
        inf=numbers[_INF],
        nan=numbers[_NAN],
        histogram={exponent: n for exponent, n in enumerate(numbers[:_BINS], _LEAST) if n},
        flushed=numbers[_FLUSHED],
    )


class Numerics(Collector):
    """The gradient magnitudes of a recording, by parameter.

    ``model`` names the parameters. Other parameters are named by their index in the optimizer. ``every``: sample every
    n-th step of each optimizer, from its first step on.

    Gradients are sampled once per step, when they are complete and not yet clipped: after ``unscale_``, or else before
    the step. So the gradients of an accumulation window are sampled as their sum. "before" scaling is the true
    gradient, the number that float16 must hold without scaling. "after" scaling is the true gradient times the loss
    scale, the number that float16 must hold in the backward pass. Skipped steps count too. Only running counts are
    kept, 4 KiB for each parameter.
    """

    def __init__(self, model: nn.Module | None = None, *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every={every} looks at no step: give 1 for each step, 10 for every tenth.")
        self._parameter_names = ParameterNames(model)
        self.headroom = Headroom(model)
        self._interval = every
        self._step_counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        # Optimizers whose gradients were sampled since their last step, and optimizers that are stepping right now.
        self._inspected_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepping_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._row_by_name: dict[str, int] = {}
        # Axes: row of a parameter, before (0) or after (1) scaling, bins and further columns.
        self._table = torch.zeros(0, 2, _WIDTH, dtype=torch.int64, device="cpu")
        self._scratch = _ScratchBuffers()
        self._sample_count = 0
        #: Step index to the share of gradients that float16 loses at the loss scale, for the latest sampled steps.
        self.lost_by_step: dict[int, float] = {}
        self._lost_shares: weakref.WeakKeyDictionary[torch.optim.Optimizer, float] = weakref.WeakKeyDictionary()
        self._step_count = 0
        self._scale_range: tuple[float, float] | None = None
        self._was_scaled = False

    # Events.

    def set_model(self, model: nn.Module) -> None:
        """Name parameters as in this model from now on."""
        self._parameter_names = ParameterNames(model)
        self.headroom.set_model(model)

    def start(self) -> None:
        self.headroom.start()

    def stop(self) -> None:
        self.headroom.stop()

    def after_backward(
        self, scaler: torch.amp.GradScaler | None, scale: float, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Discard the state of a step that an exception ended."""
        for optimizer in optimizers:
            self._stepping_optimizers.discard(optimizer)

    def after_unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Sample the gradients before clipping. A step that unscales by itself is sampled in ``before_step``."""
        if optimizer not in self._stepping_optimizers:
            self._inspected_optimizers.add(optimizer)
            self._count_gradients(optimizer, scaler, scaler.get_scale(), grad_scale=1.0)

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float) -> None:
        """Sample the gradients of an optimizer unless the user unscaled them explicitly."""
        if optimizer in self._inspected_optimizers:
            self._inspected_optimizers.discard(optimizer)
        else:
            in_use = scale if scaler is None or scale != 1.0 else scaler.get_scale()
            self._count_gradients(optimizer, scaler, in_use, grad_scale=scale)
        self._stepping_optimizers.add(optimizer)

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """Finish the sample of this step: the next gradients belong to another step."""
        self._stepping_optimizers.discard(optimizer)
        if optimizer in self._lost_shares:
            self.lost_by_step[self._step_count] = self._lost_shares.pop(optimizer)
            self.lost_by_step.pop(self._step_count - KEPT, None)
        self._step_count += 1
        # Module outputs are sampled in the same steps as gradients.
        self.headroom.finish_step(sample_next=(self._step_counts.get(optimizer, -1) + 1) % self._interval == 0)

    def _count_gradients(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float, grad_scale: float
    ) -> None:
        """Count the gradients of an optimizer. The stored gradients are true gradients times ``grad_scale``."""
        number = self._step_counts[optimizer] = self._step_counts.get(optimizer, -1) + 1
        # The true gradients cannot be recovered after a scale of zero.
        if number % self._interval or not 0.0 < scale < math.inf:
            return
        has_gradients = False
        counted = torch.zeros(_WIDTH, dtype=torch.int64, device="cpu")
        with torch.no_grad(), _disable_current_modes():
            for rows, chunks in _batch_chunks(self._gradient_chunks(optimizer)):
                table = _count_before_and_after(chunks, 1.0 / grad_scale, scale / grad_scale, self._scratch)
                self._table.index_add_(0, torch.tensor(rows, device="cpu"), table)
                counted += table[:, 1].sum(0)
                has_gradients = True
        if has_gradients:
            self._lost_shares[optimizer] = _counts_of_row(counted).share_lost
            self._sample_count += 1
            self._was_scaled |= scaler is not None and scaler.is_enabled()
            low, high = self._scale_range or (scale, scale)
            self._scale_range = min(low, scale), max(high, scale)

    def _gradient_chunks(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield pairs (row in the table, chunk) for the gradients of an optimizer.

        Large gradients have several chunks.
        """
        for name, parameter in self._parameter_names.named_parameters(optimizer):
            values = _stored_values(parameter.grad)
            if values is not None:
                row = self._row_index(name)
                for chunk in torch.split(values, _PIECE):
                    yield row, chunk

    def _row_index(self, name: str) -> int:
        """Return the row of a parameter in the table. The table grows for a new parameter."""
        row = self._row_by_name.setdefault(name, len(self._row_by_name))
        if row >= len(self._table):
            more = torch.zeros(max(16, len(self._table)), 2, _WIDTH, dtype=torch.int64, device="cpu")
            self._table = torch.cat([self._table, more])
        return row

    # Results.

    @property
    def samples(self) -> int:
        """The number of sampled steps."""
        return self._sample_count

    @property
    def scales(self) -> tuple[float, float] | None:
        """The smallest and the largest loss scale of the sampled steps, or None before the first sample."""
        return self._scale_range

    def total(self, *, without_scaling: bool) -> Counts:
        """Return the counts of all gradients together, with or without the loss scale."""
        return _counts_of_row(self._table[:, 0 if without_scaling else 1].sum(0))

    def parameters(self, *, without_scaling: bool) -> dict[str, Counts]:
        """Return the counts of each parameter's gradients, with or without the loss scale."""
        side = 0 if without_scaling else 1
        return {name: _counts_of_row(self._table[row, side]) for name, row in self._row_by_name.items()}

    @property
    def lost_without_scaling(self) -> float:
        """The share, 0 to 1, of non-zero elements that float16 rounds to zero without scaling."""
        return self.total(without_scaling=True).share_lost

    def worst(self, n: int = 5, *, without_scaling: bool = True) -> list[tuple[str, float]]:
        """Return the ``n`` parameters that lose the largest share (0 to 1) of their gradients in float16, worst first.

        Parameters without losses are omitted.
        """
        shares = [(name, c.share_lost) for name, c in self.parameters(without_scaling=without_scaling).items()]
        return sorted((pair for pair in shares if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))[:n]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON.

        Keys: "exponents" (of the bins), "before" and "after" scaling (``Counts``), "parameters" (name to "before",
        "after" and "lost", the share lost without scaling), "lost_without_scaling" (a share, 0 to 1) and "samples" (the
        number of sampled steps).
        """
        before, after = self.parameters(without_scaling=True), self.parameters(without_scaling=False)
        return {
            "exponents": list(range(_LEAST, _MOST + 1)),
            "before": self.total(without_scaling=True).as_dict(),
            "after": self.total(without_scaling=False).as_dict(),
            "parameters": {
                name: {
                    "before": before[name].as_dict(),
                    "after": after[name].as_dict(),
                    "lost": before[name].share_lost,
                }
                for name in before
            },
            "lost_without_scaling": self.lost_without_scaling,
            "samples": self._sample_count,
        }


def _stored_values(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return the stored elements of a gradient on this rank as flat float32, or None if there are no values.

    A sharded gradient yields its local shard, a sparse gradient its coalesced values, and a complex gradient its real
    and imaginary parts.
    """
    if gradient is None or gradient.is_meta or isinstance(gradient, FakeTensor):
        return None
    gradient = gradient.detach()
    to_local = getattr(gradient, "to_local", None)
    if to_local is not None:
        gradient = to_local()
    if gradient.layout is torch.sparse_coo:
        gradient = gradient.coalesce().values()
    elif gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    gradient = gradient.resolve_neg().reshape(-1)
    if not gradient.numel():
        return None
    return _to_float32(gradient) if gradient.dtype is torch.float64 else gradient.to(torch.float32)


def _to_float32(double: torch.Tensor) -> torch.Tensor:
    """Convert float64 to float32 so that tiny values stay non-zero and huge values stay finite."""
    info = torch.finfo(torch.float32)
    single = double.to(torch.float32)
    single = torch.where((single == 0) & (double != 0), info.tiny, single)
    return torch.where(single.isinf() & double.isfinite(), info.max, single)


def _batch_chunks(chunks: Iterable[tuple[int, torch.Tensor]]) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Group chunks of one device into batches that are counted together, each with the rows of its chunks."""
    open_: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
    sizes: dict[torch.device, int] = {}
    for row, chunk in chunks:
        device = chunk.device
        rows, batch = open_.setdefault(device, ([], []))
        rows.append(row)
        batch.append(chunk)
        sizes[device] = sizes.get(device, 0) + chunk.numel()
        if sizes[device] >= _BATCH:
            del open_[device], sizes[device]
            yield rows, batch
    yield from open_.values()


class _ScratchBuffers:
    """Reusable buffers by device and dtype: touching new memory costs more than counting its content."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def take_buffer(self, dtype: torch.dtype, part: torch.Tensor) -> torch.Tensor:
        """Return a buffer with the length of ``part``. The previous content of the buffer is overwritten."""
        buffer = self._buffers.get((part.device, dtype))
        if buffer is None:
            buffer = self._buffers[part.device, dtype] = torch.empty(_PIECE, dtype=dtype, device=part.device)
        return buffer[: part.numel()]


def _count_before_and_after(
    chunks: Sequence[torch.Tensor], before: float, after: float, scratch: _ScratchBuffers
) -> torch.Tensor:
    """Return two rows of counts for each chunk: for the chunk times ``before`` and for the chunk times ``after``.

    All chunks are on one device. The result has the shape (chunks, 2, columns) and is on the CPU.
    """
    bits_by_fraction: dict[float, _FloatBits] = {}
    sides = []
    for factor in (before, after):
        # A power of two only moves exponents. The remaining factor, 0.5 < fraction < 1, can neither overflow nor
        # vanish.
        fraction, shift = _split_factor(factor)
        if fraction not in bits_by_fraction:
            bits_by_fraction[fraction] = _FloatBits(
                chunks if fraction == 1.0 else [chunk * fraction for chunk in chunks], scratch
            )
        sides.append(bits_by_fraction[fraction].count_rows(shift))
    fraction, shift = _split_factor(after)
    bits_by_fraction[fraction].count_flushed(shift, sides[1], power_of_two=fraction == 1.0)
    return torch.stack(sides, 1)


def _split_factor(factor: float) -> tuple[float, int]:
    """Split a factor into a fraction, above 0.5 and up to 1, and the exponent of a power of two."""
    fraction, shift = math.frexp(factor)
    return (1.0, shift - 1) if fraction == 0.5 else (fraction, shift)


class _FloatBits:
    """Several float32 tensors viewed as integers. Without the sign bit the integers are ordered like the magnitudes.

    Subnormal numbers are also handled as integers, because a process may be set to flush them. Searches for single
    values run only if the coarse counts show candidates.
    """

    def __init__(self, chunks: Sequence[torch.Tensor], scratch: _ScratchBuffers) -> None:
        self._int_views = [chunk.view(torch.int32) for chunk in chunks]
        self._sizes = torch.tensor([part.numel() for part in self._int_views], device="cpu")
        self._scratch = scratch
        fields: list[torch.Tensor | None] = [None] * len(self._int_views)
        small_rows: list[int] = []
        filled = 0
        for row, part in enumerate(self._int_views):
            if part.numel() > _SMALL:
                fields[row] = torch.bincount(self._exponent_fields(part), minlength=256)
                continue
            if filled + part.numel() > _PIECE:
                self._count_small(small_rows, fields)
                small_rows, filled = [], 0
            small_rows.append(row)
            filled += part.numel()
        if small_rows:
            self._count_small(small_rows, fields)
        #: The number of elements of each tensor for each of the 256 values of the exponent field, on the CPU.
        self._fields = torch.stack([field for field in fields if field is not None]).cpu()

    def _exponent_fields(self, part: torch.Tensor) -> torch.Tensor:
        """Return the eight bits of the exponent field. The conversion to uint8 drops the sign bit."""
        shifted = self._scratch.take_buffer(torch.int32, part)
        torch.bitwise_right_shift(part, 23, out=shifted)
        return self._scratch.take_buffer(torch.uint8, part).copy_(shifted)

    def _count_small(self, rows: Sequence[int], fields: list[torch.Tensor | None]) -> None:
        """Count the exponent fields of several small chunks in one concatenated tensor."""
        parts = [self._int_views[row] for row in rows]
        exponents = torch.split(self._exponent_fields(torch.cat(parts)), [part.numel() for part in parts])
        for row, part in zip(rows, exponents, strict=True):
            fields[row] = torch.bincount(part, minlength=256)

    def _count_different(self, row: int, bits: int) -> torch.Tensor:
        """Count the elements of a tensor whose bits differ from ``bits``, ignoring the sign."""
        part = self._int_views[row]
        out = self._scratch.take_buffer(torch.int32, part)
        if bits:
            part = torch.bitwise_xor(part, bits, out=out)
        # A shift to the left drops the sign.
        return torch.count_nonzero(torch.bitwise_left_shift(part, 1, out=out))

    def _count_equal(self, bits: int, mask: torch.Tensor) -> torch.Tensor:
        """Count the elements with these bits for each tensor where ``mask`` is True, 0 for the others. On the CPU."""
        counts = torch.zeros(len(self._int_views), dtype=torch.int64, device="cpu")
        rows = mask.nonzero().flatten()
        if len(rows):
            others = torch.stack([self._count_different(row, bits) for row in rows.tolist()])
            counts[rows] = self._sizes[rows] - others.cpu()
        return counts

    def _count_between(self, low: int, high: int, mask: torch.Tensor) -> torch.Tensor:
        """Count the elements with bits from ``low`` to below ``high``; see ``_count_equal``."""
        counts = torch.zeros(len(self._int_views), dtype=torch.int64, device="cpu")
        for row in mask.nonzero().flatten().tolist():
            signless = self._int_views[row] & _SIGNLESS
            counts[row] = torch.count_nonzero((signless >= low) & (signless < high))
        return counts

    def count_rows(self, shift: int) -> torch.Tensor:
        """Return rows of counts, on the CPU, for each tensor times two to the power of ``shift``."""
        fields = self._fields
        counts = torch.zeros(len(fields), _WIDTH, dtype=torch.int64, device="cpu")
        target = (torch.arange(1, 255, device="cpu") - 127 + shift).clamp_(_LEAST, _MOST) - _LEAST
        counts.index_add_(1, target, fields[:, 1:255])
        counts[:, _ZERO] = self._count_equal(0, fields[:, 0] > 0)
        for row in (counts[:, _ZERO] < fields[:, 0]).nonzero().flatten().tolist():
            counts[row, :_BINS] += self._count_subnormal(row, shift)
        counts[:, _INF] = self._count_equal(255 << 23, fields[:, 255] > 0)
        counts[:, _NAN] = fields[:, 255] - counts[:, _INF]
        tie = _TIE_EXPONENT - shift + 127
        if 0 < tie < 255:
            counts[:, _TIE] = self._count_equal(tie << 23, fields[:, tie] > 0)
        last = _LAST_EXPONENT - shift + 127
        if 0 < last < 255:
            counts[:, _OVER] = self._count_between(last << 23 | _OVER_FRACTION, (last + 1) << 23, fields[:, last] > 0)
        return counts

    def _count_subnormal(self, row: int, shift: int) -> torch.Tensor:
        """Count the subnormal float32 numbers, which have no exponent field of their own, by exponent. On the CPU."""
        signless = self._int_views[row] & _SIGNLESS
        tiny = signless[(signless > 0) & (signless < 1 << 23)].double()
        exponents = torch.frexp(tiny).exponent - 1 - 149 + shift
        return torch.bincount(exponents.clamp_(_LEAST, _MOST) - _LEAST, minlength=_BINS).cpu()

    def count_flushed(self, shift: int, counts: torch.Tensor, *, power_of_two: bool) -> None:
        """Count a lower bound of the zeros that float16 produced before a gradient was stored as float32.

        The backward pass under autocast computes the gradient of a float32 parameter in float16, so a lost element is
        already zero. Such a gradient, summed over micro-batches or not, only has multiples of 2^-24, so its smallest
        magnitudes are exactly 2^-24. The interval that float16 rounds to zero is as wide as the interval it rounds to
        +2^-24, or to -2^-24. Unless gradients get rarer towards zero, the number of flushed zeros is therefore half of
        the number of both.
        """
        field = _SUBNORMAL_EXPONENT - shift + 127
        smallest = counts[:, _SUBNORMAL_EXPONENT - _LEAST]
        passed_float16 = (counts[:, _ZERO] > 0) & (smallest > 0)
        if not (0 < field < 255 and passed_float16.any()):
            return
        low = field << 23
        exact = (
            self._count_equal(low, passed_float16)
            if power_of_two
            else self._count_between(low - _PLACES, low + _PLACES, passed_float16)
        )
        passed_float16 &= exact >= smallest
        counts[:, _FLUSHED] = torch.where(passed_float16, torch.minimum(counts[:, _ZERO], smallest // 2), 0)


def assert_underflow(numerics: Numerics | None, *, below: float, without_scaling: bool = False) -> None:
    """Fail if float16 loses the share ``below``, 0 to 1, or more of the non-zero gradient elements.

    An element is lost if float16 rounds the element to zero, at the loss scale in use or, with ``without_scaling``,
    without any scale. If autocast computes a gradient in float16, lost elements are already zeros. Of these zeros only
    a lower bound is counted, estimated from the neighboring magnitudes. A run in bfloat16 or float32 with the same
    scaler gives the exact count.

    Raise AssertionError if the share is ``below`` or more, nothing was recorded, or every gradient is zero. Raise
    ValueError if ``below`` is no share, or gradient magnitudes were not recorded.
    """
    if not 0.0 < below <= 1.0:
        raise ValueError(f"below={below!r} is no share: give a fraction above 0 and up to 1, such as 0.01 for 1 %.")
    if numerics is None:
        raise ValueError("Gradient magnitudes were not recorded: ask for them with record(model, numerics=True).")
    counts = numerics.total(without_scaling=without_scaling)
    scales = numerics.scales
    if scales is None:
        raise AssertionError(
            "No gradient was recorded: step an optimizer with gradients while recording, at a loss scale that is "
            "neither 0 nor infinite."
        )
    if not counts.nonzero:
        of_scale = _describe_scale(numerics, scales)
        raise AssertionError(
            f"Every gradient element is zero, infinite or NaN ({counts.zero:,} zero) {of_scale}: either the loss does "
            "not depend on the parameters, or float16 lost all of them; compare with a step in float32."
        )
    if counts.share_lost < below:
        return
    when = "without loss scaling" if without_scaling else _describe_scale(numerics, scales)
    least = "at least " if counts.flushed else ""
    lost = f"{least}{_format_percent(counts.share_lost)} of the non-zero gradient elements {when}"
    lines = [f"float16 loses {lost}, less than {_format_percent(below)} is allowed. Worst:"]
    by_name = numerics.parameters(without_scaling=without_scaling)
    for name, share in numerics.worst(5, without_scaling=without_scaling):
        parameter = by_name[name]
        lost_count, whole = parameter.lost + parameter.flushed, parameter.nonzero + parameter.flushed
        lines.append(f"  {name}: {_format_percent(share)} ({lost_count:,} of {whole:,})")
    lines.append(f"  -> {_scaling_advice(numerics, counts, scales, below, without_scaling)}")
    raise AssertionError("\n".join(lines))


def _format_percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _describe_scale(numerics: Numerics, scales: tuple[float, float]) -> str:
    if not numerics._was_scaled:
        return "as gradients were not scaled"
    low, high = scales
    return f"at the loss scale {low:g}" if low == high else f"at loss scales from {low:g} to {high:g}"


def _scaling_advice(
    numerics: Numerics, counts: Counts, scales: tuple[float, float], below: float, without_scaling: bool
) -> str:
    """Return a remedy that keeps enough of the gradients: a larger scale if one fits, else another dtype."""
    if without_scaling and numerics._was_scaled:
        return "Keep the GradScaler, or use bfloat16, which needs none."
    shift = _required_shift(counts, below)
    if shift is None:
        return (
            "No loss scale fits them all: the larger ones would overflow. Use bfloat16, or run these layers in float32 "
            "under autocast(enabled=False)."
        )
    if not numerics._was_scaled:
        return f"Scale the loss with a GradScaler (a scale of {2.0**shift:g} would do), or use bfloat16."
    return (
        f"A loss scale {2**shift} times as large would do: raise GradScaler(init_scale={scales[1] * 2.0**shift:g}), "
        "shorten growth_interval, look for the overflows that keep it low, or use bfloat16, or float32 for some layers."
    )


def _required_shift(counts: Counts, below: float) -> int | None:
    """Return the power of two by which gradients must grow so that float16 loses less than ``below``.

    Return None if no power of two up to the overflow limit is enough.
    """
    most = _LAST_EXPONENT - 1 - max(counts.histogram)
    whole = counts.nonzero + counts.flushed
    for shift in range(1, most + 1):
        lost = sum(n for exponent, n in counts.histogram.items() if exponent + shift < _TIE_EXPONENT)
        # The original magnitude of a flushed element is unknown. 2^10 is the distance from the smallest float16 number
        # to its normal numbers, so a shift of 10 counts as sufficient.
        if (lost + (counts.flushed if shift < 10 else 0)) / whole < below:
            return shift
    return None
