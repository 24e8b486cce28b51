"""A tape of calls for a later replay: modules, and ops outside of modules, since gradients were last used.

Only calls from code outside of modules are kept, each with location, arguments and precision. A result of one call that
is an argument of another call is stored as a slot, so no activation and no graph is kept alive. Other tensors, the
inputs, are kept until the gradients are known to be finite.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from .sites import Position, is_inner, own_positions

#: Number of kept calls at which calls without live results are first dropped.
MANY = 64
#: Largest number of backward passes for which a call is kept. A result that is used later is kept as a tensor.
PASSES = 4
#: Largest number of kept module calls without gradients, such as calls of a frozen encoder.
ASIDE = 4
#: Largest depth to which containers of arguments and results are searched for tensors.
DEEP = 4
#: The access path to a tensor in a result: indices, keys and attribute names.
Path = tuple[int | str, ...]
_PLAIN = (int, float, bool, str)
#: Types of most arguments that are not tensors and contain none.
_SIMPLE = frozenset({*_PLAIN, type(None), torch.dtype, torch.device})
_PATHS = dict[int, tuple["weakref.ref[torch.Tensor]", "Slot"]]


class Slot(NamedTuple):
    """A tensor in the result of a call: the number of the call, and the access path to the tensor."""

    call_number: int
    access_path: Path


class Precision(NamedTuple):
    """The state that determines an op's precision and differentiation.

    ``autocast_states`` has (device, enabled, dtype) for each device type.
    """

    grad: bool
    cache_enabled: bool
    autocast_states: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def current(cls) -> Precision:
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        # Written out instead of a loop for speed, because every call of a step needs it.
        autocast = ("cpu", enabled("cpu"), dtype("cpu")), ("cuda", enabled("cuda"), dtype("cuda"))
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), autocast)


class TapedCall:
    """A call of a module or of a torch function.

    ``positions`` are the innermost position in the call stack outside of torch and, if that is in a library, the
    position of the program's call of the library.
    ``attribute_values`` are the plain attributes of user modules before the call, because the modules may count with
    them.
    """

    __slots__ = (
        "_function",
        "_is_weak",
        "args",
        "attribute_values",
        "kwargs",
        "pass_number",
        "positions",
        "precision",
        "random",
        "result_ids",
        "result_refs",
        "used_calls",
    )

    def __init__(self, function: Any, positions: tuple[Position, ...], precision: Precision, pass_number: int) -> None:
        # A module may be freed before its outputs. A module without weights, such as a temporary loss module, is kept
        # alive like an argument.
        self._is_weak = isinstance(function, nn.Module) and _has_weights(function)
        self._function = weakref.ref(function) if self._is_weak else function
        self.positions = positions
        self.precision = precision
        #: Number of backward passes before the call.
        self.pass_number = pass_number
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.random: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self.attribute_values: list[tuple[weakref.ref[nn.Module], dict[str, Any]]] = []
        #: The tensors of the result, and their ids at that time.
        self.result_refs: list[weakref.ref[torch.Tensor]] = []
        self.result_ids: list[int] = []
        self.used_calls: set[int] = set()

    @property
    def function(self) -> Any:
        """The called function or module; None for a module that was freed."""
        return self._function() if self._is_weak else self._function

    @property
    def has_live_result(self) -> bool:
        """True if the program still holds a tensor of the result."""
        for reference in self.result_refs:  # noqa: SIM110 - each call of a step is asked, which a generator makes thrice as slow
            if reference() is not None:
                return True
        return False


class Tape:
    """A list of calls, oldest first, since gradients were last used."""

    def __init__(self) -> None:
        self.calls: dict[int, TapedCall] = {}
        #: Number of the next call.
        self.next_serial = 0
        #: Number of backward passes so far.
        self.pass_count = 0
        self._slots_by_id: _PATHS = {}
        self._counted_attributes: weakref.WeakKeyDictionary[
            nn.Module, list[tuple[weakref.ref[nn.Module], tuple[str, ...], int]] | None
        ] = weakref.WeakKeyDictionary()
        self._prune_size = MANY

    def begin_call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> TapedCall:
        """Create the record of a call that is about to run."""
        positions = () if frame is None else own_positions(frame)
        call = TapedCall(function, positions, Precision.current(), self.pass_count)
        call.args = self._encode(args, call.used_calls, DEEP)
        if kwargs:
            call.kwargs = self._encode(kwargs, call.used_calls, DEEP)
        if isinstance(function, nn.Module):
            call.random = torch.get_rng_state(), _random_of_device()
            call.attribute_values = self._plain_attributes(function)
        return call

    def end_call(self, call: TapedCall, result: Any) -> None:
        """Add a finished call to the tape if its result contains tensors."""
        serial = self.next_serial
        self.next_serial += 1
        for path, tensor in (((), result),) if type(result) is torch.Tensor else tensors_of(result, DEEP):
            reference = weakref.ref(tensor)
            call.result_refs.append(reference)
            call.result_ids.append(id(tensor))
            self._slots_by_id[id(tensor)] = reference, Slot(serial, path)
        if call.result_refs:
            self.calls[serial] = call
            if len(self.calls) >= self._prune_size:
                self.prune_calls()
                self._prune_size = max(MANY, 2 * len(self.calls))

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """Return the slot of a tensor if a call on the tape produced the tensor, else None."""
        entry = self._slots_by_id.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor and entry[1].call_number in self.calls else None

    def prune_calls(self) -> None:
        """Drop calls whose results are neither alive in the program nor used by other kept calls."""
        oldest = self.pass_count - PASSES
        needed: set[int] = set()
        dropped: list[int] = []
        for serial, call in reversed(self.calls.items()):
            if call.pass_number > oldest and (serial in needed or call.has_live_result):
                needed |= call.used_calls
            else:
                dropped.append(serial)
        self._drop_calls(dropped)

    def drop_gradless_calls(self) -> None:
        """Drop calls without gradients, except for the latest, and calls without live results.

        Arguments of differentiated calls are kept.
        """
        self.prune_calls()
        needed: set[int] = set()
        for serial, call in reversed(self.calls.items()):
            if call.precision.grad or serial in needed:
                needed |= call.used_calls
        gradless = [serial for serial, call in self.calls.items() if not call.precision.grad and serial not in needed]
        modules = [serial for serial in gradless if isinstance(self.calls[serial].function, nn.Module)]
        if len(modules) >= ASIDE:
            dropped: set[int] = set()
            for serial in gradless:
                if serial <= modules[-ASIDE] or not dropped.isdisjoint(self.calls[serial].used_calls):
                    dropped.add(serial)
            self._drop_calls(sorted(dropped))

    def _drop_calls(self, dropped: list[int]) -> None:
        for serial in dropped:
            for key in self.calls.pop(serial).result_ids:
                # Another tensor may have got the same id since then.
                entry = self._slots_by_id.get(key)
                if entry is not None and entry[1].call_number == serial:
                    del self._slots_by_id[key]

    def clear(self) -> None:
        self.calls.clear()
        self._slots_by_id.clear()

    def _encode(self, value: Any, used_calls: set[int], depth: int) -> Any:
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if isinstance(value, torch.Tensor):
            slot = self.slot_of(value)
            # A tensor without a graph is kept as a tensor, unless a call of the same step produced it.
            if slot is not None and (
                value.grad_fn is not None or self.calls[slot.call_number].pass_number == self.pass_count
            ):
                used_calls.add(slot.call_number)
                return slot
            # A tensor that no call on the tape produced is kept without its graph.
            return value if value.grad_fn is None else value.detach().requires_grad_()
        if depth and (kind is tuple or kind is list):
            # No comprehensions, because shared cell variables would slow down every call. Most arguments are simple,
            # and the inline check avoids a recursive call.
            items: list[Any] = []
            for x in value:
                items.append(x if type(x) in _SIMPLE else self._encode(x, used_calls, depth - 1))  # noqa: PERF401 - as above
            return kind(items)
        if depth and kind is dict:
            named: dict[Any, Any] = {}
            for key, x in value.items():
                named[key] = x if type(x) in _SIMPLE else self._encode(x, used_calls, depth - 1)
            return named
        return value

    def _plain_attributes(self, module: nn.Module) -> list[tuple[weakref.ref[nn.Module], dict[str, Any]]]:
        """Return the plain attribute values of modules whose classes are not from torch."""
        cached = self._counted_attributes.get(module)
        if cached is None or any((each := reference()) is None or len(vars(each)) != n for reference, _, n in cached):
            cached = []
            for each in module.modules():
                space = vars(each)
                names = tuple(n for n, v in space.items() if type(v) in _PLAIN and n != "training")
                if names and not type(each).__module__.startswith("torch."):
                    cached.append((weakref.ref(each), names, len(space)))
            # The first call may create attributes, so the second call lists them again.
            self._counted_attributes[module] = cached if module in self._counted_attributes else None
        values = []
        for reference, names, _ in cached:
            submodule = reference()
            if submodule is not None:
                space = vars(submodule)
                values.append((reference, {name: space[name] for name in names if name in space}))
        return values


def _has_weights(module: nn.Module) -> bool:
    """Return True if a module or a submodule has a parameter. Plain loops, because most modules answer at once."""
    for p in module._parameters.values():
        if p is not None:
            return True
    for child in module._modules.values():  # noqa: SIM110 - as above
        if child is not None and _has_weights(child):
            return True
    return False


def _random_of_device() -> torch.Tensor | None:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def tensors_of(value: Any, depth: int = DEEP) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the tensors in a result, each with its access path."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif depth:
        parts: Any = ()
        if isinstance(value, (tuple, list)):
            parts = enumerate(value)
        elif isinstance(value, dict):
            parts = ((key, item) for key, item in value.items() if isinstance(key, (int, str)))
        elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
            parts = list(vars(value).items())
        for key, item in parts:
            for path, tensor in tensors_of(item, depth - 1):
                yield (key, *path), tensor


def get_at_path(value: Any, path: Path) -> Any:
    """Return the object at an access path in a result."""
    for key in path:
        holder: Any = value
        value = holder[key] if isinstance(value, (tuple, list, dict)) else getattr(value, str(key))
    return value


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from ``frame`` outwards, that belongs to the user, or None."""
    while frame is not None and is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
