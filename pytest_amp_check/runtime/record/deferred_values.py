"""Numbers on a device, fetched in batches some steps later, so that no step waits for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

#: Number of pending numbers at which they are fetched, with one wait for the device.
WAITING = 256


class DeferredNumber:
    """A number that a device has computed or is about to compute. Reading ``value`` may wait for the device."""

    __slots__ = ("_deferred_values", "_value", "tensor")

    def __init__(
        self, value: float | None, *, tensor: torch.Tensor | None = None, deferred_values: DeferredValues | None = None
    ) -> None:
        self._value = value
        self._deferred_values = deferred_values
        #: The source of the number until it is fetched, else None.
        self.tensor = tensor

    @property
    def value(self) -> float:
        if self._value is None:
            assert self._deferred_values is not None
            self._deferred_values.fetch_all()
            assert self._value is not None
        return self._value

    @property
    def is_known(self) -> bool:
        """True if reading ``value`` waits for nothing."""
        return self._value is not None

    def set_value(self, value: float) -> None:
        self._value, self._deferred_values, self.tensor = value, None, None


#: The scale of values that no scaler has scaled.
ONE = DeferredNumber(1.0)


class ScaledValue:
    """A loss of a backward pass or a norm of gradients: the tensor, and the scale of the tensor.

    ``value`` is the number in the tensor if already known, else None. The tensor is then None, because a kept loss
    would count as memory of the program.
    """

    __slots__ = ("scale", "tensor", "value")

    def __init__(self, tensor: torch.Tensor, scale: DeferredNumber, value: float | None = None) -> None:
        self.tensor = (tensor.detach() if tensor.requires_grad else tensor) if value is None else None
        self.scale = scale
        self.value = value


class FoundInf:
    """The flag that a scaler found non-finite gradients of an optimizer and skips its step."""

    __slots__ = ("_deferred_numbers",)

    def __init__(self, numbers: Iterable[DeferredNumber] = ()) -> None:
        self._deferred_numbers = tuple(numbers)

    @property
    def is_known(self) -> bool:
        """True if reading the flag waits for nothing."""
        return all(number.is_known for number in self._deferred_numbers)

    def __bool__(self) -> bool:
        for number in self._deferred_numbers:  # noqa: SIM110 - each step asks several times, which a generator makes twice as slow
            if number.value:
                return True
        return False


class DeferredValues:
    """Pending numbers, and callbacks for the time when they are known, both in order of arrival.

    Numbers on the CPU are available immediately. A callback without pending numbers runs immediately.
    """

    def __init__(self) -> None:
        self._pending_numbers: list[DeferredNumber] = []
        self._callbacks: list[Callable[[], None]] = []

    def defer_number(self, tensor: torch.Tensor) -> DeferredNumber:
        """Return the current number in a tensor, or the sum of its numbers, as a deferred number."""
        # Numbers of several ranks, and of other tensor subclasses, cannot be stacked with plain numbers.
        if type(tensor) is not torch.Tensor:
            return DeferredNumber(float(_sum_tensor(tensor.detach())))
        if _is_on_cpu(tensor):
            return DeferredNumber(read_item(_sum_tensor(tensor)))
        tensor = tensor.detach()
        if not _is_captured(tensor):
            # The program may change the tensor in place. A captured graph computes the number when it runs, and the
            # tensor is read after that.
            tensor = _sum_tensor(tensor).clone()
        number = DeferredNumber(None, tensor=tensor, deferred_values=self)
        self._pending_numbers.append(number)
        return number

    def run_when_known(self, callback: Callable[[], None]) -> None:
        """Run a callback as soon as all numbers requested so far are known."""
        if not self._pending_numbers:
            callback()
            return
        self._callbacks.append(callback)
        if len(self._pending_numbers) >= WAITING and self.can_fetch:
            self.fetch_all()

    @property
    def can_fetch(self) -> bool:
        """True unless the pending numbers belong to a graph that is being captured."""
        first = self._pending_numbers[0].tensor if self._pending_numbers else None
        return first is None or not _is_captured(first)

    def fetch_all(self) -> None:
        """Fetch all pending numbers with one wait per device, and run the callbacks."""
        numbers, self._pending_numbers = self._pending_numbers, []
        callbacks, self._callbacks = self._callbacks, []
        by_device: dict[torch.device, list[tuple[DeferredNumber, torch.Tensor]]] = {}
        for number in numbers:
            if number.tensor is not None:
                by_device.setdefault(number.tensor.device, []).append((number, _sum_tensor(number.tensor)))
        for device, pending in by_device.items():
            # MPS has no float64. float32 also holds a loss scale, found_inf and a growth tracker exactly.
            dtype = torch.float32 if device.type == "mps" else torch.float64
            values = torch.stack([total.reshape(()).to(dtype) for _, total in pending]).tolist()
            for (number, _), value in zip(pending, values, strict=True):
                number.set_value(value)
        for callback in callbacks:
            callback()


def read_item(tensor: torch.Tensor) -> float:
    """Return the number in a tensor of one element, without the patched ``item`` that observes programs."""
    return float(torch._C.TensorBase.item(tensor))


def _is_on_cpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu


def _is_captured(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _sum_tensor(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 1:
        return tensor
    return tensor.detach().double().sum() if tensor.device.type != "mps" else tensor.detach().sum()
