"""Every op and every module of steps that run again, and of each value that is not finite the op that made it first."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...protocol.events import Site
from ..record.regions import LOW, number
from ..record.sites import is_inner
from .magnitudes import Magnitudes, floats_in, is_finite, magnitudes

#: Modules that are remembered before an op.
BEFORE = 4
#: What tensors are made with before anything is written to them.
_UNWRITTEN = frozenset("empty empty_like empty_strided new_empty new_empty_strided resize_ set_".split())
#: Ops that keep a tensor away from something by a constant, and what that is called.
_GUARDS = {**dict.fromkeys("clamp clamp_min clamp_max hardtanh".split(), "bound"), "add": "epsilon"}
#: Ops after which what such a constant has done to a tensor is no reason any more.
NEAR = 4
#: Where autograd keeps the lines that made a node, in anomaly mode.
_TRACEBACK = "traceback_"
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = f"{os.sep}site-packages{os.sep}"

PARAMETER, BUFFER, STATE, INPUT, OP = "parameter", "buffer", "state", "input", "op"

Place = tuple[CodeType, int]


class Module(NamedTuple):
    """A call of a module: what it is called and its class, where, and its output."""

    name: str
    kind: str
    site: Site | None
    output: tuple[Magnitudes, ...]

    def __str__(self) -> str:
        return f"`{self.name}` ({self.kind})" if self.name else f"`{self.kind}`"


class Vain(NamedTuple):
    """Constants that keep a tensor from nothing: each as the program gives it and as the tensor's dtype holds it."""

    what: str
    constants: tuple[tuple[float, float], ...]
    dtype: torch.dtype
    site: Site | None

    def __str__(self) -> str:
        line = f" (line {self.site.line})" if self.site is not None else ""
        given = " and ".join(f"{given:.10g}" for given, _ in self.constants)
        held = " and ".join(f"{held:g}" for _, held in self.constants)
        what, verb = (self.what, "is") if len(self.constants) == 1 else (f"{self.what}s", "are")
        return f"the {what} of {given}{line} {verb} {held} in {str(self.dtype).removeprefix('torch.')}"


class Origin:
    """The first value of a chain that was not finite.

    ``kind`` says what held it, ``name`` the op, the parameter or the buffer. ``mask`` is whether it was meant: an
    infinity that the program fills in. ``masked`` are the operands that hold only such. ``vain`` was to keep
    an operand from what it is.
    """

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.index = index
        self.mask = False
        self.operands: list[tuple[str, Magnitudes]] = []
        self.result: Magnitudes | None = None
        self.masked: list[Origin] = []
        self.module: Module | None = None
        self.before: list[Module] = []
        self.site: Site | None = None
        self.backward = False
        self.value: torch.Tensor | None = None
        self.vain: Vain | None = None


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches ops and modules. ``names`` are those of parameters and buffers, and of modules, by identity."""

    def __init__(
        self, tensors: dict[int, tuple[str, str]], modules: dict[int, str], chain: Callable[[list[Place]], Site]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = tensors
        self._modules = modules
        self._chain = chain
        self._origins: dict[int, Origin] = {}
        self._leaves: dict[int, Origin] = {}
        #: Storages of what was made from tensors that constants were to keep from something, and how many ops later.
        self._vain: dict[int, tuple[Vain, int]] = {}
        self._count = 0
        self._open: list[Module] = []
        self._ended: deque[Module] = deque(maxlen=BEFORE)
        #: The numbers of the nodes that a call of a module has made, and where calls of the tape stand.
        self._spans: list[tuple[int, int, Module]] = []
        self._begun: list[int] = []
        self._lines: list[tuple[int, Place]] = []
        self._outermost: CodeType | None = None
        self.place: Place | None = None
        self.backward = False
        #: Buffers that an op has spoilt.
        self.spoilt: dict[int, Origin] = {}
        #: What went bad in a backward pass, the first first.
        self.gradients: list[Origin] = []

    # Modules.

    @contextlib.contextmanager
    def on(self, outermost: CodeType) -> Iterator[None]:
        """A region in which it sees what happens; frames above the one of this code are not the user's."""
        self._outermost = outermost
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._enters),
            nn.modules.module.register_module_forward_hook(self._leaves_module, always_call=True),
        ]
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=False), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enters(self, module: nn.Module, args: Any) -> None:
        self._open.append(Module(self._modules.get(id(module), ""), type(module).__name__, self._here(), ()))
        self._begun.append(number())

    def _leaves_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._open:
            return
        ended = self._open.pop()._replace(output=tuple(magnitudes(t) for t in list(floats_in(output))[:1]))
        self._spans.append((self._begun.pop(), number(), ended))
        self._ended.append(ended)

    def begins(self, place: Place | None) -> None:
        """A call of the tape begins."""
        self.place = place
        if place is not None:
            self._lines.append((number(), place))

    @property
    def last(self) -> list[Module]:
        """The modules that have run last."""
        return list(self._ended)

    # Ops.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(floats_in((args, list(kwargs.values()))))
        finite = [is_finite(tensor) for tensor in given]
        changes = func._schema.is_mutable
        operands = self._operands(args, kwargs) if changes else None
        result = func(*args, **kwargs)
        self._count += 1
        name = func._schema.name.partition("::")[2]
        if name in _UNWRITTEN or not given:
            # What is made from nothing is an input, and belongs to who reads it first.
            self._forget(floats_in(result))
            return result
        made = list(floats_in(result))
        vain, ops = self._vain_of(name, args, kwargs, given)
        bad = [tensor for tensor in made if not is_finite(tensor)]
        spoilt = [
            t for t, was in zip(given, finite, strict=True) if was and (changes or "norm" in name) and not is_finite(t)
        ]
        if bad or spoilt:
            unsound = [tensor for tensor, sound in zip(given, finite, strict=True) if not sound]
            origin = self._origin(name, func, args, kwargs, unsound, bad or spoilt, operands)
            origin.vain = origin.vain or vain
            for tensor in bad:
                self._origins[storage_of(tensor)] = origin
            for tensor in spoilt:
                self._origins[storage_of(tensor)] = self.spoilt[id(tensor)] = origin
        self._forget(tensor for tensor in made if not any(tensor is other for other in bad))
        for tensor in made:
            if vain is not None and ops < NEAR:
                self._vain[storage_of(tensor)] = vain, ops + 1
            else:
                self._vain.pop(storage_of(tensor), None)
        return result

    def _guards(self, name: str, args: Any, kwargs: Any) -> Vain | None:
        """What an op gives a tensor of low precision to keep it from something, where it is 0 or 1 in that dtype."""
        what = _GUARDS.get(name.removesuffix("_"))
        tensor = args[0] if args else None
        if what is None or not isinstance(tensor, torch.Tensor) or tensor.dtype not in LOW:
            return None
        given = [number for number in (*args[1:], *kwargs.values()) if isinstance(number, float)]
        held = [float(torch.tensor(number, dtype=tensor.dtype)) for number in given]
        vain = tuple(
            (one, other) for one, other in zip(given, held, strict=True) if one != other and other in (0.0, 1.0, -1.0)
        )
        return Vain(what, vain, tensor.dtype, self._here()) if vain else None

    def _vain_of(
        self, name: str, args: Any, kwargs: Any, given: Iterable[torch.Tensor]
    ) -> tuple[Vain, int] | tuple[None, int]:
        """What was to keep an op's operands from something, or its result, and how many ops before."""
        guard = self._guards(name, args, kwargs)
        if guard is not None:
            return guard, 0
        return next((self._vain[key] for key in map(storage_of, given) if key in self._vain), (None, 0))

    def _forget(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            key = storage_of(tensor)
            if key in self._origins and tensor.numel() * tensor.element_size() == _bytes(tensor):
                del self._origins[key]

    def _origin(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        unsound: list[torch.Tensor],
        bad: list[torch.Tensor],
        operands: list[tuple[str, Magnitudes]] | None,
    ) -> Origin:
        """Where the values that are not finite in a result come from."""
        found = [self.of(tensor) for tensor in unsound]
        real = [origin for origin in found if not origin.mask]
        if real:
            return min(real, key=lambda origin: origin.index)
        result = magnitudes(bad[0])
        if found and result.only_below:
            return found[0]
        meant = any(isinstance(arg, float) and abs(arg) == float("inf") for arg in (*args, *kwargs.values()))
        origin = Origin(OP, name, self._count)
        origin.mask = meant and not result.nan and not found
        origin.masked = found
        origin.result = result
        if not origin.mask:
            self._fill(origin, operands or self._operands(args, kwargs))
        return origin

    def _fill(self, origin: Origin, operands: list[tuple[str, Magnitudes]]) -> None:
        origin.operands = operands
        origin.backward = self.backward
        origin.before = list(self._ended)
        if not self.backward:
            origin.module = self._open[-1] if self._open else None
            origin.site = self._here()
            return
        node: Any = torch._C._current_autograd_node()
        self.gradients.append(origin)
        if node is None:
            return
        origin.name = node.name()
        at = node._sequence_nr()
        inside = [span for span in self._spans if span[0] <= at < span[1]]
        origin.module = min(inside, key=lambda span: span[1] - span[0])[2] if inside else None
        origin.site = self._line_of(node) or self._line_at(at)

    def of(self, tensor: torch.Tensor) -> Origin:
        """Where a tensor that is not finite has it from."""
        known = self._origins.get(storage_of(tensor))
        if known is not None:
            return known
        key = storage_of(tensor)
        leaf = self._leaves.get(key)
        if leaf is None:
            kind, name = self._named(tensor)
            leaf = self._leaves[key] = Origin(kind, name, self._count)
            leaf.result = magnitudes(tensor)
            leaf.value = tensor
            # Masks are made once and passed in, or kept in a buffer.
            leaf.mask = leaf.result.only_below and kind != PARAMETER
            leaf.module = self._open[-1] if self._open else None
            leaf.before = list(self._ended)
            leaf.site = self._here()
        return leaf

    def _named(self, tensor: torch.Tensor) -> tuple[str, str]:
        return self._tensors.get(storage_of(tensor), (INPUT, ""))

    def _operands(self, args: Any, kwargs: Any) -> list[tuple[str, Magnitudes]]:
        return [(self._named(t)[1], magnitudes(t)) for t in list(floats_in((args, list(kwargs.values()))))[:4]]

    # Places.

    def _here(self) -> Site | None:
        places: list[Place] = []
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code is not self._outermost:
            if not is_inner(frame.f_code.co_filename):
                places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        if self.place is not None:
            places.append(self.place)
        return self._chain(places) if places else None

    def _line_of(self, node: Any) -> Site | None:
        """The line of the forward that made a node, from the lines that autograd has kept."""
        for text in reversed(node.metadata.get(_TRACEBACK) or []):
            head, _, rest = text.strip().partition('", line ')
            path = head.removeprefix('File "')
            if path.startswith(_HERE):
                # What lies further out is the program as it waits for this.
                return None
            digits = rest.partition(",")[0].partition("\n")[0]
            if digits.isdigit() and not is_inner(path) and _LIBRARY not in path:
                return Site(path, int(digits))
        return None

    def _line_at(self, at: int) -> Site | None:
        place = next((place for start, place in reversed(self._lines) if start <= at), None)
        return self._chain([place]) if place is not None else None


def storage_of(tensor: torch.Tensor) -> int:
    """What identifies the memory of a tensor, which its views share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else -1
