"""What training needs memory for, and budgets for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...protocol.byte_sizes import format_size, parse_size
from ...protocol.messages import find_messages
from ...protocol.messages.message import parse_primitive
from ..emulate.cuda import is_emulating
from ..record.collector import Collector
from ..record.steps import KEPT
from .ledger import Point
from .storages import CATEGORIES, Storages, iter_storages

if TYPE_CHECKING:
    from .what_if import WhatIfs

Named = nn.Module | torch.optim.Optimizer | torch.Tensor

#: Of what needs most at the peak, how many a report names.
TELLING = 20
#: What to do about a category that needs too much.
ADVICE = {
    "parameters": "keep frozen weights in bfloat16, or shard the model (torch.distributed.fsdp)",
    "gradients": "call zero_grad(set_to_none=True) before the forward pass, and freeze what need not be trained",
    "optimizer state": "use an optimizer with less state (SGD without momentum has none), or shard it (FSDP, ZeRO)",
    "activations": "recompute modules that make many of them (torch.utils.checkpoint), or accumulate smaller batches",
    "inputs": "use smaller batches, and delete those that are no longer needed",
    "temporaries": "use fused=True where a step makes them (foreach=True makes copies as large as all parameters)",
    "autocast cache": "cast frozen weights once, or use autocast(cache_enabled=False) where each weight is used once",
    "workspace": "set CUBLAS_WORKSPACE_CONFIG, and torch.backends.cudnn.benchmark = False",
    "other": "keep loss.item() or loss.detach() instead of losses, and delete what is no longer needed",
}


class Memory(Collector):
    """Memory by category while something runs: where its peak was and what it was made of.

    ``named`` (models, optimizers, tensors) is what the code was given before it runs; what is not named is found when
    it is used. ``device`` is where memory counts: that of the first parameter by default. ``as_cuda`` rounds sizes up
    to the 512-byte blocks of CUDA's allocator; by default on CUDA, emulated or not. ``fake`` counts fake tensors;
    ``workspace`` is what cuBLAS would keep for each thread, in bytes; ``budget`` is what the peak should not exceed.

    Without CUDA the figures are the bytes of tensors' storages, without temporaries inside operators. On CUDA the peak
    is the allocator's own (its peak statistics are reset at the start), and what no tensor accounts for is "workspace":
    run one step before, or the first use of cuBLAS and cuDNN is measured too.

    Training goes on as without it, bit by bit, but for gradients of ``prod``, ``cumprod``, ``det`` and the like: torch
    computes those by another formula while any ``TorchDispatchMode`` is active, with other rounding.

    Categories of the peak: "parameters", "gradients", "optimizer state"; "activations" (made outside backward and step,
    and still there when the backward pass begins, the loss included), "inputs" (made outside modules and from no
    parameter), "temporaries", "autocast cache" (casts of weights, until the outermost region ends), "workspace", and
    "other" (buffers, a scaler's tensors, what outlives several steps).
    """

    def __init__(
        self,
        *named: Named | None,
        device: torch.device | str | None = None,
        as_cuda: bool | None = None,
        fake: bool = False,
        workspace: int = 0,
        budget: str | int | None = None,
    ) -> None:
        self._named_objects = named
        counted_device = torch.device(device) if device is not None else _device_of(named)
        if device is not None and str(counted_device) == "cuda":
            counted_device = torch.device("cuda", torch.cuda.current_device())
        self._uses_allocator = counted_device.type == "cuda" and not fake
        self.as_cuda = (counted_device.type == "cuda" or is_emulating()) if as_cuda is None else as_cuda
        self.fake = fake
        #: Bytes of "at most", as :func:`assert_memory` was asked last; reports draw it as a line.
        self.budget: int | None = None if budget is None else parse_size(budget)
        #: Peaks in bytes of CUDA's allocator ("allocated", "requested", "reserved"), and how often it had to retry.
        self.allocator: dict[str, int] = {}
        self._workspace_bytes = workspace
        #: The most bytes of tensors since the step before, by the number of the step, of the latest ones.
        self.peak_by_step: dict[int, int] = {}
        self._step_count = 0
        self._storages = Storages(counted_device, as_cuda=self.as_cuda, fake=fake)

    @property
    def device(self) -> torch.device:
        """Where memory counts; of CUDA without a number until a tensor was seen there, if nobody has named one."""
        return self._storages.device

    def start(self) -> None:
        """Begin. Everything alive that was named counts from here on."""
        for each in self._named_objects:
            if isinstance(each, nn.Module):
                self._storages.include_module(each)
            elif isinstance(each, torch.optim.Optimizer):
                self._storages.include_optimizer(each)
            elif isinstance(each, torch.Tensor):
                self._storages.assign_category(each, "inputs", f"tensor of shape {tuple(each.shape)}")
        # Which device it will be may not be known, and a program may have to fork before it uses any.
        if self._uses_allocator and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                if self.device.index in (None, index):
                    torch.cuda.reset_peak_memory_stats(index)
        self._storages.start()

    def stop(self) -> None:
        """End; the figures are complete from here on."""
        self._storages.stop()
        if self._uses_allocator and self.device.index is not None:
            stats = torch.cuda.memory_stats(self.device)
            self.allocator = {
                "allocated": torch.cuda.max_memory_allocated(self.device),
                "requested": stats.get("requested_bytes.all.peak", 0),
                "reserved": torch.cuda.max_memory_reserved(self.device),
                "retries": stats.get("num_alloc_retries", 0),
            }
            self._workspace_bytes = max(0, self.allocator["allocated"] - self._storages.ledger.peak_total)
        # They are the user's, and not needed any more.
        self._named_objects = ()

    def set_model(self, model: nn.Module) -> None:
        """What belongs to it is called as in it, also what was seen under other names."""
        self._storages.include_module(model)

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """Take note of what this step needed."""
        self.peak_by_step[self._step_count] = self._storages.ledger.take_recent_peak()
        self.peak_by_step.pop(self._step_count - KEPT, None)
        self._step_count += 1

    @property
    def how(self) -> str:
        """What was counted."""
        if self._uses_allocator:
            return "CUDA's caching allocator"
        return f"storages of {'fake ' * self.fake}tensors{', as CUDA would allocate them' * self.as_cuda}"

    @property
    def peak(self) -> int:
        """The most bytes that there were at one moment, of all together: what ``assert_memory(peak=)`` limits."""
        return self.allocator.get("allocated") or self._storages.ledger.peak_total + self._total_workspace()

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category at that moment; they sum up to the peak."""
        return self._order_categories(self._storages.ledger.peak)

    @property
    def highest(self) -> dict[str, int]:
        """The peak of each category by itself, in bytes: what ``assert_memory(activations=)`` and the like limit.

        These moments differ, so that they sum up to more than the peak.
        """
        return self._order_categories(self._storages.ledger.highest)

    @property
    def timeline(self) -> list[Point]:
        """Bytes by category at the ends of "forward", "backward", "unscale" and "step", and at the "peak"; in order."""
        return [Point(label, self._order_categories(sums)) for label, sums in self._storages.ledger.timeline()]

    def alive(self) -> dict[str, int]:
        """Bytes by category at this moment, while recording; activations are what may become such."""
        return self._order_categories(self._storages.alive())

    def contributors(self, category: str | None = None, most: int = 5) -> list[tuple[str, str, int]]:
        """Category, name (of a parameter, a module or an operator) and bytes of what needed most, largest first.

        With a category at the peak of that category, else at the peak of everything.
        """
        if category is None:
            sources = [(*source, size) for source, size in self._storages.ledger.peak_sources.items()]
        else:
            names = self._storages.ledger.highest_sources.get(category, {})
            sources = [(category, name, size) for name, size in names.items()]
        return sorted(sources, key=lambda place: (-place[2], place))[:most]

    def what_if(self, *, checkpoint: Sequence[str] | None = None, batch_dim: int = 0) -> WhatIfs:
        """What the recorded step with the highest peak would need if something were otherwise, without running it.

        Each answer has a ``change``, the ``peak`` then and the bytes ``saved``, or the ``reason`` for which it cannot
        be told: modules that are recomputed in the backward pass, weights in bfloat16, other ways for the optimizer to
        step, half and a quarter of the micro-batch, whose dimension is ``batch_dim``. ``checkpoint`` asks about the
        modules with these names, together, and about nothing else. ValueError where no step was recorded.
        """
        steps = self._storages.step_recording.steps
        if not steps:
            raise ValueError("what_if() needs a step of an optimizer, and none was recorded")
        from .what_if import answer_what_if

        extra_bytes = self.peak - self._storages.ledger.peak_total
        return answer_what_if(
            steps, as_cuda=self.as_cuda, extra_bytes=extra_bytes, checkpoint=checkpoint, batch_dim=batch_dim
        )

    def options(self, enough: int) -> list[tuple[str, int, int]]:
        """What to do for a lower peak, the bytes saved and the peak then: of each kind of change one.

        That is the one that saves least where ``enough`` bytes are not exceeded then, or else the one that saves most.
        """
        if not self._storages.step_recording.steps:
            return []
        from .what_if import best_answers

        return [
            (each.change if each.kind == "checkpoint" else each.how, each.saved or 0, each.peak or 0)
            for each in best_answers(self.what_if(), enough)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for reports."""
        return {
            "how": self.how,
            "device": str(self.device),
            "peak": {**self.at_peak, "total": self.peak},
            "contributors": [list(each) for each in self.contributors(most=TELLING)],
            "timeline": [{"label": point.label, "bytes": point.bytes} for point in self.timeline],
            "budget": self.budget,
        }

    def __repr__(self) -> str:
        if not self.peak:
            return f"<Memory of {self.device}: nothing measured yet>"
        largest = sorted(self.at_peak.items(), key=lambda pair: -pair[1])
        parts = ", ".join(f"{category} {format_size(size)}" for category, size in largest)
        return f"<Memory of {self.device}: peak {format_size(self.peak)} ({parts}), by {self.how}>"

    def _total_workspace(self) -> int:
        if self._uses_allocator:
            return self._workspace_bytes
        # cuBLAS keeps one for each thread that multiplies matrices, and the backward pass has a thread of its own.
        return self._workspace_bytes * (self._storages.matmul_in_forward + self._storages.matmul_in_backward)

    def _order_categories(self, sums: dict[str, int]) -> dict[str, int]:
        sums = {**sums, "workspace": self._total_workspace()}
        return {category: sums[category] for category in CATEGORIES if sums.get(category)}


def _device_of(named: tuple[Named | None, ...]) -> torch.device:
    for each in named:
        tensors: Iterable[torch.Tensor] = ()
        if isinstance(each, nn.Module):
            tensors = each.parameters()
        elif isinstance(each, torch.optim.Optimizer):
            tensors = (tensor for group in each.param_groups for tensor in group["params"])
        elif isinstance(each, torch.Tensor):
            tensors = (each,)
        for tensor in tensors:
            for storage in iter_storages(tensor):
                return storage.device
    # Asked of the build, not of torch.cuda, which an emulation answers for.
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return torch.device("cuda" if count is not None and count() else "cpu")


@contextmanager
def measure_memory(
    *named: Named | None, device: torch.device | str | None = None, as_cuda: bool | None = None
) -> Iterator[Memory]:
    """Measure the code of a ``with`` block; the figures are complete when it has ended.

    The arguments are those of :class:`Memory`: ``with measure_memory(model, optimizer) as memory: train_step()``.
    Raises RuntimeError, with the op and a remedy, where this processor has no kernel for an op in low precision.
    """
    memory = Memory(*named, device=device, as_cuda=as_cuda)
    memory.start()
    try:
        yield memory
    except RuntimeError as error:
        if not any(message.name == "no-kernel-on-this-processor" for message in find_messages(str(error))):
            raise
        raise RuntimeError(
            f"this CPU has no kernel in low precision for {parse_primitive(str(error))}: measure on a GPU, under "
            "emulated CUDA, or without autocast for that module"
        ) from error
    finally:
        memory.stop()


def assert_memory(
    memory: Memory,
    *,
    peak: str | int | None = None,
    parameters: str | int | None = None,
    gradients: str | int | None = None,
    optimizer_state: str | int | None = None,
    activations: str | int | None = None,
    inputs: str | int | None = None,
    temporaries: str | int | None = None,
    autocast_cache: str | int | None = None,
    workspace: str | int | None = None,
    other: str | int | None = None,
) -> None:
    """Raise AssertionError where memory was more than a size (bytes, or text such as "1.5 GiB").

    ``peak`` is for everything together; a category's limit is for the peak of that category by itself. A size that
    cannot be read raises ValueError.
    """
    __tracebackhide__ = True
    given_limits = {
        "peak": peak,
        "parameters": parameters,
        "gradients": gradients,
        "optimizer state": optimizer_state,
        "activations": activations,
        "inputs": inputs,
        "temporaries": temporaries,
        "autocast cache": autocast_cache,
        "workspace": workspace,
        "other": other,
    }
    limits = {name: parse_size(limit) for name, limit in given_limits.items() if limit is not None}
    if "peak" in limits:
        memory.budget = limits["peak"]
    measured = {**memory.highest, "peak": memory.peak}
    if any(measured.get(name, 0) > limit for name, limit in limits.items()):
        raise AssertionError(_over_budget_message(memory, measured, limits))


def _over_budget_message(memory: Memory, measured: dict[str, int], limits: dict[str, int]) -> str:
    exceeded = [name for name, limit in limits.items() if measured.get(name, 0) > limit]
    first = exceeded[0]
    basis = f"{memory.how}, on {memory.device}"
    lines = [
        (
            f"{first} of memory is {_format_with_bytes(measured[first])}, over its budget of "
            f"{_format_with_bytes(limits[first])} ({basis}):"
        )
    ]
    for name, limit in limits.items():
        size = measured.get(name, 0)
        verdict = f"{format_size(size - limit)} too much" if size > limit else "within"
        lines.append(f"  {name:<15} {format_size(size):>12}  of at most {format_size(limit):>12}  {verdict}")
    lines.append("At the peak:")
    lines += [f"  {category:<15} {format_size(size):>12}" for category, size in memory.at_peak.items()]
    # A peak is reduced where most of it is.
    categories = [name for name in exceeded if name != "peak"]
    largest = sorted(memory.at_peak, key=lambda name: -memory.at_peak[name])[:2]
    for category in categories or largest:
        makers = memory.contributors(category)
        if makers:
            lines.append(f"Most of {category}: " + ", ".join(f"{name} {format_size(size)}" for _, name, size in makers))
        lines.append(f"To need less for {category}: {ADVICE[category]}.")
    options = memory.options(limits["peak"] if "peak" in exceeded else 0)
    if options:
        lines.append("What would make the peak lower, told from the recorded step (memory.what_if()):")
        lines += [f"  {what}: {format_size(peak)}, {format_size(saved)} less" for what, saved, peak in options]
    return "\n".join(lines)


def _format_with_bytes(size: int) -> str:
    return f"{format_size(size)} ({size:,} bytes)" if size >= 1024 else format_size(size)
