"""The replay of a tape's calls, in their recorded precision or in float32, and of the backward pass."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..emulate.one_device import without_device_checks
from ..record.non_finite.records import TapedBackward
from ..record.tape import Precision, Slot, TapedCall, get_at_path
from .op_trace import OpTrace


class TapePlayer:
    """A player of the calls of a tape. All results are kept until the end, so that identities stay unique.

    With ``op_trace`` the trace sees the calls. Without it the calls run in float32: no autocast region is entered.
    """

    def __init__(self, calls: dict[int, TapedCall], op_trace: OpTrace | None = None) -> None:
        self._calls = calls
        self._op_trace = op_trace
        self._results: dict[int, Any] = {}
        self._kept_tensors: dict[int, torch.Tensor] = {}

    def run_forward(self) -> None:
        """Run all calls, oldest first."""
        for serial, call in self._calls.items():
            if self._op_trace is not None:
                self._op_trace.begin_call(call.positions)
            for reference, values in call.attribute_values:
                submodule = reference()
                if submodule is not None:
                    vars(submodule).update(values)
            if call.random is not None:
                torch.set_rng_state(call.random[0])
                if call.random[1] is not None:
                    torch.cuda.set_rng_state(call.random[1])
            args, kwargs = self._decode(call.args), self._decode(call.kwargs)
            if _changes_input(call, args):
                # The original run has already changed the tensor permanently.
                self._results[serial] = args[0]
                continue
            with _restore_precision(call.precision, autocast=self._op_trace is not None), without_device_checks():
                result = call.function(*args, **kwargs)
            self._results[serial] = args[0] if getattr(call.function, "__name__", "") == "__setitem__" else result

    def backward_roots(self, backward: TapedBackward) -> list[torch.Tensor]:
        """Return the roots of a recorded backward pass that are results of these calls."""
        tensors = [
            self._slot_value(slot)
            for slot in backward.root_slots
            if slot is not None and slot.call_number in self._results
        ]
        return [root for root in tensors if isinstance(root, torch.Tensor)]

    def compute_gradients(
        self, roots: Sequence[torch.Tensor], scale: float, params: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Return the gradients of parameters without the loss scale.

        No hook of a parameter runs, and no ``.grad`` changes.
        """
        roots = [root for root in roots if root.requires_grad]
        inputs = [p for p in params if p.requires_grad]
        if not roots or not inputs:
            return []
        if self._op_trace is not None:
            self._op_trace.in_backward = True
        weights = [torch.full_like(root, 1.0 / scale) for root in roots]
        with without_device_checks():
            return list(torch.autograd.grad(roots, inputs, weights, allow_unused=True))

    def _slot_value(self, slot: Slot) -> Any:
        return get_at_path(self._results[slot.call_number], slot.access_path)

    def _decode(self, value: Any) -> Any:
        if isinstance(value, Slot):
            return self._slot_value(value)
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self._decode(item) for item in value])
        if kind is dict:
            return {key: self._decode(item) for key, item in value.items()}
        return value


def _changes_input(call: TapedCall, args: tuple[Any, ...]) -> bool:
    """Return True if a call writes to a tensor that the program passed in, because such a change is permanent."""
    name = getattr(call.function, "__name__", "")
    if isinstance(call.function, nn.Module) or not call.args or isinstance(call.args[0], Slot):
        return False
    in_place = name.endswith("_") and not name.endswith("__")
    return (in_place or name in _WRITES) and isinstance(args[0], torch.Tensor)


_WRITES = frozenset(
    {"__setitem__", *(f"__i{op}__" for op in "add sub mul truediv floordiv mod pow and or xor".split())}
)


@contextlib.contextmanager
def _restore_precision(precision: Precision, *, autocast: bool) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(precision.grad))
        for device, was_enabled, dtype in precision.autocast_states:
            enabled = was_enabled and autocast
            if device == "cpu" or torch.cuda.is_available():
                stack.enter_context(
                    torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=precision.cache_enabled)
                )
        yield


class InFloat32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A region in which ops compute in float32 instead of float16 or bfloat16, also if a call requests low precision.

    The target of an in-place op keeps its dtype.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The result of such an op may be a view of an argument, or the argument itself.
        if not any(argument.alias_info is not None for argument in func._schema.arguments):
            args, kwargs = tree_map(_to_float32, (args, kwargs))
        elif kwargs and kwargs.get("dtype") in _LOW:
            kwargs = {**kwargs, "dtype": torch.float32}
        return func(*args, **(kwargs or {}))


_LOW = frozenset({torch.float16, torch.bfloat16})


def _to_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _LOW else value
    return torch.float32 if isinstance(value, torch.dtype) and value in _LOW else value


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress output in the region, because the original run has already printed it."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
