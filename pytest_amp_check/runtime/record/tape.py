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

    call: int
    path: Path


class Precision(NamedTuple):
    """What decides in which precision an op runs, and whether it is differentiated.

    ``autocast`` tells of each device whether it is on, and its dtype.
    """

    grad: bool
    cache: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> Precision:
        enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
        # Written out: each call of a step asks for it.
        autocast = ("cpu", enabled("cpu"), dtype("cpu")), ("cuda", enabled("cuda"), dtype("cuda"))
        return cls(torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), autocast)


class Call:
    """One call: of a module, or of a function of torch.

    ``place`` is the innermost line of the user that made it, as a code object and an offset in it. ``attributes`` are
    the plain values that a module's own code may count with, as they were.
    """

    __slots__ = (
        "_function",
        "_is_weak",
        "args",
        "attributes",
        "identities",
        "kwargs",
        "made",
        "number",
        "place",
        "precision",
        "random",
        "uses",
    )

    def __init__(self, function: Any, place: tuple[CodeType, int] | None, precision: Precision) -> None:
        # A module may be gone before its outputs are. One without weights, as that of a loss that a function makes for
        # one call, is held as its arguments are.
        self._is_weak = isinstance(function, nn.Module) and _has_weights(function)
        self._function = weakref.ref(function) if self._is_weak else function
        self.place = place
        self.precision = precision
        #: Before which backward pass it was made.
        self.number = 0
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.random: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self.attributes: list[tuple[weakref.ref[nn.Module], dict[str, Any]]] = []
        #: The tensors that it has made, and their identities then.
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.identities: list[int] = []
        self.uses: set[int] = set()

    @property
    def function(self) -> Any:
        """What was called; None for a module that is gone."""
        return self._function() if self._is_weak else self._function

    @property
    def is_held(self) -> bool:
        """Whether the program holds anything that it has made."""
        for reference in self.made:  # noqa: SIM110 - each call of a step is asked, which a generator makes thrice as slow
            if reference() is not None:
                return True
        return False


class Tape:
    """The calls since gradients were last used, the oldest first."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}
        self._next = 0
        #: Backward passes so far.
        self.passes = 0
        self._known: _PATHS = {}
        self._counting: weakref.WeakKeyDictionary[
            nn.Module, list[tuple[weakref.ref[nn.Module], tuple[str, ...], int]]
        ] = weakref.WeakKeyDictionary()
        self._full = MANY

    def begin(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: FrameType | None) -> Call:
        """A call is about to be made."""
        call = Call(function, None if place is None else (place.f_code, place.f_lasti), Precision.now())
        call.number = self.passes
        call.args = self._coded(args, call.uses, DEEP)
        if kwargs:
            call.kwargs = self._coded(kwargs, call.uses, DEEP)
        if isinstance(function, nn.Module):
            call.random = torch.get_rng_state(), _random_of_device()
            call.attributes = self._numbers(function)
        return call

    def end(self, call: Call, result: Any) -> None:
        """It has been made."""
        serial = self._next
        self._next += 1
        for path, tensor in (((), result),) if type(result) is torch.Tensor else tensors_of(result, DEEP):
            reference = weakref.ref(tensor)
            call.made.append(reference)
            call.identities.append(id(tensor))
            self._known[id(tensor)] = reference, Slot(serial, path)
        if call.made:
            self.calls[serial] = call
            if len(self.calls) >= self._full:
                self.prune()
                self._full = max(MANY, 2 * len(self.calls))

    def slot(self, tensor: torch.Tensor) -> Slot | None:
        """Which call has made a tensor."""
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor and known[1].call in self.calls else None

    def prune(self) -> None:
        """Drop calls of whose results nothing is left, neither in the program nor for other calls."""
        oldest = self.passes - PASSES
        wanted: set[int] = set()
        dropped: list[int] = []
        for serial, call in reversed(self.calls.items()):
            if call.number > oldest and (serial in wanted or call.is_held):
                wanted |= call.uses
            else:
                dropped.append(serial)
        self._drop(dropped)

    def drop_aside(self) -> None:
        """Drop calls that no gradient flows through, and those of whose results nothing is left, but the latest.

        What a call that is differentiated was given is kept.
        """
        self.prune()
        wanted: set[int] = set()
        for serial, call in reversed(self.calls.items()):
            if call.precision.grad or serial in wanted:
                wanted |= call.uses
        aside = [serial for serial, call in self.calls.items() if not call.precision.grad and serial not in wanted]
        modules = [serial for serial in aside if isinstance(self.calls[serial].function, nn.Module)]
        if len(modules) >= ASIDE:
            dropped: set[int] = set()
            for serial in aside:
                if serial <= modules[-ASIDE] or not dropped.isdisjoint(self.calls[serial].uses):
                    dropped.add(serial)
            self._drop(sorted(dropped))

    def _drop(self, dropped: list[int]) -> None:
        for serial in dropped:
            for key in self.calls.pop(serial).identities:
                # Another tensor may have come to lie at the same place since.
                known = self._known.get(key)
                if known is not None and known[1].call == serial:
                    del self._known[key]

    def clear(self) -> None:
        self.calls.clear()
        self._known.clear()

    def _coded(self, value: Any, uses: set[int], deep: int) -> Any:
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if isinstance(value, torch.Tensor):
            slot = self.slot(value)
            # What no gradient flows through is taken as it is, but where the same step has made it.
            if slot is not None and (value.grad_fn is not None or self.calls[slot.call].number == self.passes):
                uses.add(slot.call)
                return slot
            # What was made out of sight is held without its graph.
            return value if value.grad_fn is None else value.detach().requires_grad_()
        if deep and (kind is tuple or kind is list):
            # No comprehensions: each call of this would pay for what they share with it. And most of what an op is
            # given is simple, which is seen here without a call.
            items: list[Any] = []
            for x in value:
                items.append(x if type(x) in _SIMPLE else self._coded(x, uses, deep - 1))  # noqa: PERF401 - as above
            return kind(items)
        if deep and kind is dict:
            named: dict[Any, Any] = {}
            for key, x in value.items():
                named[key] = x if type(x) in _SIMPLE else self._coded(x, uses, deep - 1)
            return named
        return value

    def _numbers(self, module: nn.Module) -> list[tuple[weakref.ref[nn.Module], dict[str, Any]]]:
        """The plain values among the attributes of modules whose classes are not torch's."""
        kept = self._counting.get(module)
        if kept is None or any((each := reference()) is None or len(vars(each)) != n for reference, _, n in kept):
            kept = []
            for each in module.modules():
                space = vars(each)
                names = tuple(n for n, v in space.items() if type(v) in _PLAIN and n != "training")
                if names and not type(each).__module__.startswith("torch."):
                    kept.append((weakref.ref(each), names, len(space)))
            self._counting[module] = kept
        found = []
        for reference, names, _ in kept:
            counted = reference()
            if counted is not None:
                space = vars(counted)
                found.append((reference, {name: space[name] for name in names if name in space}))
        return found


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


def tensors_of(value: Any, deep: int = DEEP) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors in a result, each with the way to it."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif deep:
        parts: Any = ()
        if isinstance(value, (tuple, list)):
            parts = enumerate(value)
        elif isinstance(value, dict):
            parts = ((key, item) for key, item in value.items() if isinstance(key, (int, str)))
        elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
            parts = list(vars(value).items())
        for key, item in parts:
            if item is not None and not isinstance(item, (int, float, str)):
                for path, tensor in tensors_of(item, deep - 1):
                    yield (key, *path), tensor


def at(value: Any, path: Path) -> Any:
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
