"""What a program has called since gradients were last used: modules, and ops outside of them, so that it can run again.

Only calls by code that is no module's are kept, each with where it stands, what it was given and the precision that it
ran in. What one call has made and another was given is kept as a slot, so that no activation and no graph is held; of
the rest, the inputs, the tensors themselves are kept until the gradients are found in order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from .sites import is_inner

#: Calls after which those are dropped whose results are gone.
MANY = 64
#: Backward passes for which a call is kept at most: what is used later than that is taken as it is.
PASSES = 4
#: Calls of modules that no gradient flows through, as of a frozen encoder, of which so many are kept at most.
ASIDE = 4
#: How deep containers of arguments and results are looked into.
DEEP = 4
#: The way to a tensor in a result: places in sequences, keys, names of attributes.
Path = tuple[int | str, ...]
_PLAIN = (int, float, bool, str)
#: Types of most of what functions are given besides tensors, which holds no tensor.
_SIMPLE = frozenset({*_PLAIN, type(None), torch.dtype, torch.device})
_PATHS = dict[int, tuple["weakref.ref[torch.Tensor]", "Slot"]]


class Slot(NamedTuple):
    """One tensor of what a call has made: the number of the call, and the way to the tensor in its result."""

    call_number: int
    access_path: Path


class Precision(NamedTuple):
    """What decides in which precision an op runs, and whether it is differentiated.

    ``autocast`` tells of each device whether it is on, and its dtype.
    """

    grad: bool
    cache_enabled: bool
    autocast_states: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def current(cls) -> Precision:
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        # Written out: each call of a step asks for it.
        autocast = ("cpu", enabled("cpu"), dtype("cpu")), ("cuda", enabled("cuda"), dtype("cuda"))
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), autocast)


class TapedCall:
    """One call: of a module, or of a function of torch.

    ``place`` is the innermost line of the user that made it, as a code object and an offset in it. ``attributes`` are
    the plain values that a module's own code may count with, as they were.
    """

    __slots__ = (
        "_function",
        "_is_weak",
        "args",
        "attribute_values",
        "code_position",
        "kwargs",
        "pass_number",
        "precision",
        "random",
        "result_ids",
        "result_refs",
        "used_calls",
    )

    def __init__(self, function: Any, code_position: tuple[CodeType, int] | None, precision: Precision) -> None:
        # A module may be gone before its outputs are. One without weights, as that of a loss that a function makes for
        # one call, is held as its arguments are.
        self._is_weak = isinstance(function, nn.Module) and _has_weights(function)
        self._function = weakref.ref(function) if self._is_weak else function
        self.code_position = code_position
        self.precision = precision
        #: Before which backward pass it was made.
        self.pass_number = 0
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.random: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self.attribute_values: list[tuple[weakref.ref[nn.Module], dict[str, Any]]] = []
        #: The tensors that it has made, and their identities then.
        self.result_refs: list[weakref.ref[torch.Tensor]] = []
        self.result_ids: list[int] = []
        self.used_calls: set[int] = set()

    @property
    def function(self) -> Any:
        """What was called; None for a module that is gone."""
        return self._function() if self._is_weak else self._function

    @property
    def has_live_result(self) -> bool:
        """Whether the program holds anything that it has made."""
        for reference in self.result_refs:  # noqa: SIM110 - each call of a step is asked, which a generator makes thrice as slow
            if reference() is not None:
                return True
        return False


class Tape:
    """The calls since gradients were last used, the oldest first."""

    def __init__(self) -> None:
        self.calls: dict[int, TapedCall] = {}
        self._next_serial = 0
        #: Backward passes so far.
        self.pass_count = 0
        self._slots_by_id: _PATHS = {}
        self._counted_attributes: weakref.WeakKeyDictionary[
            nn.Module, list[tuple[weakref.ref[nn.Module], tuple[str, ...], int]]
        ] = weakref.WeakKeyDictionary()
        self._prune_size = MANY

    def begin_call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> TapedCall:
        """A call is about to be made."""
        call = TapedCall(function, None if frame is None else (frame.f_code, frame.f_lasti), Precision.current())
        call.pass_number = self.pass_count
        call.args = self._encode(args, call.used_calls, DEEP)
        if kwargs:
            call.kwargs = self._encode(kwargs, call.used_calls, DEEP)
        if isinstance(function, nn.Module):
            call.random = torch.get_rng_state(), _random_of_device()
            call.attribute_values = self._plain_attributes(function)
        return call

    def end_call(self, call: TapedCall, result: Any) -> None:
        """It has been made."""
        serial = self._next_serial
        self._next_serial += 1
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
        """Which call has made a tensor."""
        entry = self._slots_by_id.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor and entry[1].call_number in self.calls else None

    def prune_calls(self) -> None:
        """Drop calls of whose results nothing is left, neither in the program nor for other calls."""
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
        """Drop calls that no gradient flows through, and those of whose results nothing is left, but the latest.

        What a call that is differentiated was given is kept.
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
                # Another tensor may have come to lie at the same place since.
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
            # What no gradient flows through is taken as it is, but where the same step has made it.
            if slot is not None and (
                value.grad_fn is not None or self.calls[slot.call_number].pass_number == self.pass_count
            ):
                used_calls.add(slot.call_number)
                return slot
            # What was made out of sight is held without its graph.
            return value if value.grad_fn is None else value.detach().requires_grad_()
        if depth and (kind is tuple or kind is list):
            # No comprehensions: each call of this would pay for what they share with it. And most of what an op is
            # given is simple, which is seen here without a call.
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
        """The plain values among the attributes of modules whose classes are not torch's."""
        cached = self._counted_attributes.get(module)
        if cached is None or any((each := reference()) is None or len(vars(each)) != n for reference, _, n in cached):
            cached = []
            for each in module.modules():
                space = vars(each)
                names = tuple(n for n, v in space.items() if type(v) in _PLAIN and n != "training")
                if names and not type(each).__module__.startswith("torch."):
                    cached.append((weakref.ref(each), names, len(space)))
            self._counted_attributes[module] = cached
        values = []
        for reference, names, _ in cached:
            submodule = reference()
            if submodule is not None:
                space = vars(submodule)
                values.append((reference, {name: space[name] for name in names if name in space}))
        return values


def _has_weights(module: nn.Module) -> bool:
    """Whether a module, or one in it, has a parameter: most are asked no further than their first layer."""
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
    """The tensors in a result, each with the way to it."""
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
            if item is not None and not isinstance(item, (int, float, str)):
                for path, tensor in tensors_of(item, depth - 1):
                    yield (key, *path), tensor


def get_at_path(value: Any, path: Path) -> Any:
    """What lies in a result at the end of a way."""
    for key in path:
        holder: Any = value
        value = holder[key] if isinstance(value, (tuple, list, dict)) else getattr(value, str(key))
    return value


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from one on outwards, that is the user's."""
    while frame is not None and is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
