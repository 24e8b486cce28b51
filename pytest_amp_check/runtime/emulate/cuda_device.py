"""The single CUDA device of an emulated machine: the replacements for ``torch.cuda`` and ``torch.accelerator``.

Tensors are in the memory of this machine, and random numbers come from the CPU's generator. So the device has the
memory of this machine, and seeding the device seeds that generator. Work is complete when a call returns, so streams
have nothing to order. Memory statistics are zero because nothing is allocated on a CUDA device.
"""

from __future__ import annotations

import collections
import os
import time
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)
NAME = "CUDA device emulated on the CPU"
#: Compute capability of an A100, the first GPU with bfloat16, so that checks for bfloat16 pass.
CAPABILITY = (8, 0)


class Properties:
    """The result of ``torch.cuda.get_device_properties``; ``total_memory`` is the memory of this machine in bytes."""

    def __init__(self) -> None:
        self.name = NAME
        self.major, self.minor = CAPABILITY
        self.total_memory = memory_info()[1]
        self.multi_processor_count = os.cpu_count() or 1
        self.warp_size = 32
        self.is_integrated = True
        self.is_multi_gpu_board = False
        self.gcnArchName = ""

    def __repr__(self) -> str:
        return f"Properties(name={self.name!r}, major={self.major}, minor={self.minor})"


class NoContext:
    """A no-op replacement for contexts that select a device or a stream, because there is only one of each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        pass


class Stream(NoContext):
    """The stream of a device whose work is complete when the call returns."""

    device = DEVICE
    device_index = 0
    cuda_stream = 0
    priority = 0

    def wait_event(self, event: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A point in time. ``elapsed_time`` returns milliseconds of the CPU's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded_at: float | None = None

    def record(self, stream: object = None) -> None:
        self._recorded_at = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        if self._recorded_at is None or end_event._recorded_at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_at - self._recorded_at) * 1000


def memory_info(device: object = None) -> tuple[int, int]:
    """Return free and total bytes of this machine's memory, or zeros if the system does not provide them."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0, 0


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _return_zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _return_one(*args: Any, **kwargs: Any) -> int:
    return 1


def _return_true(*args: Any, **kwargs: Any) -> bool:
    return True


def _return_false(*args: Any, **kwargs: Any) -> bool:
    return False


def _return_empty_text(*args: Any, **kwargs: Any) -> str:
    return ""


def _return_empty_list(*args: Any, **kwargs: Any) -> list[Any]:
    return []


def _memory_statistics(device: object = None) -> dict[str, int]:
    return collections.defaultdict(int)


def _current_stream(device: object = None) -> Stream:
    return Stream()


def _seed_with(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _seed_randomly() -> None:
    torch.default_generator.seed()


def _rng_state(device: object = DEVICE) -> torch.Tensor:
    return torch.default_generator.get_state()


def _rng_states() -> list[torch.Tensor]:
    return [_rng_state()]


def _set_rng_state(new_state: torch.Tensor, device: object = DEVICE) -> None:
    torch.default_generator.set_state(new_state)


def _set_rng_states(new_states: Any) -> None:
    for state in new_states:
        _set_rng_state(state)


def _device_capability(device: object = None) -> tuple[int, int]:
    return CAPABILITY


def _device_name(device: object = None) -> str:
    return NAME


def _device_properties(device: object = None) -> Properties:
    return Properties()


def _current_accelerator(check_available: bool = False) -> torch.device:
    return torch.device("cuda")


_MEMORY: dict[str, Any] = {
    **dict.fromkeys(
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
        "max_memory_cached".split(),
        _return_zero,
    ),
    **dict.fromkeys(
        "empty_cache reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated "
        "reset_max_memory_cached".split(),
        _do_nothing,
    ),
    "memory_stats": _memory_statistics,
}

#: Replacements for attributes of ``torch.cuda``.
CUDA: dict[str, Any] = {
    **_MEMORY,
    **dict.fromkeys(
        "init synchronize set_device set_stream set_sync_debug_mode ipc_collect "
        "set_per_process_memory_fraction".split(),
        _do_nothing,
    ),
    **dict.fromkeys(["is_available", "is_initialized", "is_bf16_supported", "is_tf32_supported"], _return_true),
    **dict.fromkeys(["is_current_stream_capturing", "can_device_access_peer"], _return_false),
    **dict.fromkeys(["current_stream", "default_stream"], _current_stream),
    **dict.fromkeys(["device", "device_of", "stream", "StreamContext"], NoContext),
    "Stream": Stream,
    "Event": Event,
    "device_count": _return_one,
    "current_device": _return_zero,
    "get_sync_debug_mode": _return_zero,
    "utilization": _return_zero,
    "get_device_name": _device_name,
    "get_device_capability": _device_capability,
    "get_device_properties": _device_properties,
    "get_arch_list": _return_empty_list,
    "mem_get_info": memory_info,
    "memory_summary": _return_empty_text,
    "memory_snapshot": _return_empty_list,
    "manual_seed": _seed_with,
    "manual_seed_all": _seed_with,
    "seed": _seed_randomly,
    "seed_all": _seed_randomly,
    "initial_seed": torch.initial_seed,
    "get_rng_state": _rng_state,
    "get_rng_state_all": _rng_states,
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": _set_rng_states,
    "default_generators": (torch.default_generator,),
}
#: Replacements for attributes of ``torch.accelerator``.
ACCELERATOR: dict[str, Any] = {
    **_MEMORY,
    **dict.fromkeys(
        "synchronize set_device_index set_device_idx set_stream empty_host_cache".split(),
        _do_nothing,
    ),
    "is_available": _return_true,
    "device_count": _return_one,
    "current_accelerator": _current_accelerator,
    "current_device_index": _return_zero,
    "current_device_idx": _return_zero,
    "current_stream": _current_stream,
    "device_index": NoContext,
    "get_memory_info": memory_info,
}
#: Replacements for attributes of ``torch.cuda.nvtx``.
NVTX: dict[str, Any] = {
    **dict.fromkeys(["mark", "range_push", "range_pop", "range_start", "range_end"], _return_zero),
    "range": NoContext,
}
