"""Memory of training by category, and memory budgets."""

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

#: Number of contributors to the peak that a report lists.
TELLING = 20
#: Share of the peak from which on copies of weights are worth an explanation.
NOTABLE = 0.05
#: Remedy for each category.
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
    """A collector of memory by category: the peak, and its composition.

    ``named`` (models, optimizers, tensors) are objects that exist before the recorded code runs. Other objects are
    found when they are used. ``device`` is the device whose memory counts, by default the device of the first
    parameter. ``as_cuda`` rounds sizes up to the 512-byte blocks of CUDA's allocator; default: True on CUDA, emulated
    or not. ``fake`` counts fake tensors. ``workspace`` is the workspace of cuBLAS for each thread, in bytes. ``budget``
    is the limit that the peak should not exceed.

    Without CUDA the figures are the bytes of tensors' storages, without temporaries inside ops. On CUDA the peak is the
    peak of the allocator (its peak statistics are reset at the start), and bytes without a tensor are "workspace". Run
    one step before the recording; otherwise the first use of cuBLAS and cuDNN is measured too.

    The training gives bitwise the same results as without the collector, except for gradients of ``prod``, ``cumprod``,
    ``det`` and the like. torch computes these gradients by another formula, with other rounding, while any
    ``TorchDispatchMode`` is active.

    Categories of the peak:

    - "parameters", "gradients", "optimizer state";
    - "activations": created outside of backward and step, and alive when the backward pass begins, including the loss;
    - "inputs": created outside of modules and computed from no parameter;
    - "temporaries";
    - "autocast cache": casts of weights, until the outermost region ends;
    - "workspace";
    - "other": buffers, the tensors of a scaler, and storages that outlive several steps.
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
        #: Budget in bytes: the ``peak`` limit of the last ``assert_memory``. Reports draw a line there. None: no
        #: budget.
        self.budget: int | None = None if budget is None else parse_size(budget)
        #: Peaks in bytes of CUDA's allocator ("allocated", "requested", "reserved"), and the number of its "retries".
        #: Empty without CUDA.
        self.allocator: dict[str, int] = {}
        self._workspace_bytes = workspace
        #: Step index to the peak, in bytes of tensors, since the previous step; only the latest steps.
        self.peak_by_step: dict[int, int] = {}
        self._step_count = 0
        self._storages = Storages(counted_device, as_cuda=self.as_cuda, fake=fake)

    @property
    def device(self) -> torch.device:
        """The device whose memory counts.

        A CUDA device without a given index gets its index from the first CUDA tensor.
        """
        return self._storages.device

    def start(self) -> None:
        """Start the recording. All named live objects count from here on."""
        for each in self._named_objects:
            if isinstance(each, nn.Module):
                self._storages.include_module(each)
            elif isinstance(each, torch.optim.Optimizer):
                self._storages.include_optimizer(each)
            elif isinstance(each, torch.Tensor):
                self._storages.assign_category(each, "inputs", f"tensor of shape {tuple(each.shape)}")
        # The device index may be unknown yet, and CUDA must not be initialized here because the program may fork first.
        if self._uses_allocator and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                if self.device.index in (None, index):
                    torch.cuda.reset_peak_memory_stats(index)
        self._storages.start()

    def stop(self) -> None:
        """Stop the recording. Afterwards the figures are complete."""
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
        # These objects belong to the user and are no longer needed.
        self._named_objects = ()

    def set_model(self, model: nn.Module) -> None:
        """Name the model's tensors as in the model, including tensors already seen under other names."""
        self._storages.include_module(model)

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """Store the peak of this step."""
        self.peak_by_step[self._step_count] = self._storages.ledger.take_recent_peak()
        self.peak_by_step.pop(self._step_count - KEPT, None)
        self._step_count += 1

    @property
    def how(self) -> str:
        """The counting method, for reports."""
        if self._uses_allocator:
            return "CUDA's caching allocator"
        return f"storages of {'fake ' * self.fake}tensors{', as CUDA would allocate them' * self.as_cuda}"

    @property
    def peak(self) -> int:
        """The peak of all memory in bytes, the figure that ``assert_memory(peak=)`` limits."""
        return self.allocator.get("allocated") or self._storages.ledger.peak_total + self._total_workspace()

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category at the peak; the sum is the peak."""
        return self._order_categories(self._storages.ledger.peak)

    @property
    def highest(self) -> dict[str, int]:
        """The peak of each category by itself in bytes: the figures that ``assert_memory(activations=)`` limits.

        The categories peak at different moments, so the sum is larger than the peak.
        """
        return self._order_categories(self._storages.ledger.highest)

    @property
    def cost_of_autocast(self) -> str:
        """The reason why mixed precision needs more memory than float32 here, one clause. "" if it does not.

        Autocast keeps low-precision copies of the weights until the backward pass has used them. It saves half of the
        activations, which is as much as the low-precision activations themselves.
        """
        highest = self.highest
        copies = highest.get("autocast cache", 0)
        activations = max(0, highest.get("activations", 0) - copies)
        if copies <= activations or copies < NOTABLE * self.peak:
            return ""
        return (
            f"autocast keeps copies of the weights of {format_size(copies)} for the backward pass, more than the "
            f"{format_size(activations)} of activations that it saves"
        )

    @property
    def timeline(self) -> list[Point]:
        """Bytes by category at the ends of "forward", "backward", "unscale" and "step", and at the "peak", in order."""
        return [Point(label, self._order_categories(sums)) for label, sums in self._storages.ledger.timeline()]

    def alive(self) -> dict[str, int]:
        """Return the bytes by category at this moment, during the recording. "activations" are provisional."""
        return self._order_categories(self._storages.alive())

    def contributors(self, category: str | None = None, most: int = 5) -> list[tuple[str, str, int]]:
        """Return (category, name, bytes) of the largest contributors, largest first.

        The name is the name of a parameter, a module or an op. With a category the moment is the peak of that category,
        else the overall peak.
        """
        if category is None:
            sources = [(*source, size) for source, size in self._storages.ledger.peak_sources.items()]
        else:
            names = self._storages.ledger.highest_sources.get(category, {})
            sources = [(category, name, size) for name, size in names.items()]
        return sorted(sources, key=lambda place: (-place[2], place))[:most]

    def what_if(self, *, checkpoint: Sequence[str] | None = None, batch_dim: int = 0) -> WhatIfs:
        """Estimate the peak of the recorded step under several changes, without running the step again.

        Each answer has a ``change``, the ``peak`` after the change and the bytes ``saved``, or the ``reason`` why there
        is no estimate. Changes: modules that are recomputed in the backward pass, weights in bfloat16, other
        implementations of the optimizer step, half and a quarter of the micro-batch (dimension ``batch_dim``).
        ``checkpoint`` restricts the question to recomputing the modules with these names together. Raise ValueError if
        no step was recorded.
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
        """Return one (action, bytes saved, new peak) for each kind of change.

        The change with the smallest saving is chosen whose peak is at most ``enough`` bytes. If there is none, the
        change with the largest saving is chosen.
        """
        if not self._storages.step_recording.steps:
            return []
        from .what_if import best_answers

        return [
            (each.change if each.kind == "checkpoint" else each.how, each.saved or 0, each.peak or 0)
            for each in best_answers(self.what_if(), enough)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, for reports."""
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
        cost = f"; {self.cost_of_autocast}" if self.cost_of_autocast else ""
        return f"<Memory of {self.device}: peak {format_size(self.peak)} ({parts}), by {self.how}{cost}>"

    def _total_workspace(self) -> int:
        if self._uses_allocator:
            return self._workspace_bytes
        # cuBLAS keeps a workspace for each thread that multiplies matrices, and the backward pass has its own thread.
        return self._workspace_bytes * (self._storages.matmul_in_forward + self._storages.matmul_in_backward)

    def _order_categories(self, sums: dict[str, int]) -> dict[str, int]:
        sums = {**sums, "workspace": sums.get("workspace", 0) + self._total_workspace()}
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
    # Query the build and not torch.cuda, because an emulation replaces torch.cuda.
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    return torch.device("cuda" if count is not None and count() else "cpu")


@contextmanager
def measure_memory(
    *named: Named | None, device: torch.device | str | None = None, as_cuda: bool | None = None
) -> Iterator[Memory]:
    """Measure the code of a ``with`` block. The figures are complete after the block.

    The arguments are the arguments of ``Memory``: ``with measure_memory(model, optimizer) as memory:
    train_step()``. Raise RuntimeError, with the op and a remedy, if this processor has no kernel for an op in low
    precision.
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
    """Raise AssertionError if memory exceeds a limit (bytes, or text such as "1.5 GiB").

    ``peak`` limits all memory together. The limit of a category applies to the peak of that category by itself. Raise
    ValueError for a size that cannot be parsed. A limit also fails if the training allocated nothing on a GPU, because
    nothing was compared with the limit.
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
    if limits and not memory.peak and memory.device.type == "cuda":
        raise AssertionError(
            f"nothing was allocated on {memory.device}, so no budget was checked: pass the model, or device='cpu', to "
            "measure a training on the CPU"
        )
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
    # The largest categories at the peak offer the largest savings.
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
