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
from .magnitudes import Magnitudes, floats_in, is_finite, measure_magnitudes

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


class ModuleEntry(NamedTuple):
    """A call of a module: what it is called and its class, where, and its output."""

    name: str
    class_name: str
    site: Site | None
    output_magnitudes: tuple[Magnitudes, ...]

    def __str__(self) -> str:
        return f"`{self.name}` ({self.class_name})" if self.name else f"`{self.class_name}`"


class IneffectiveConstant(NamedTuple):
    """Constants that keep a tensor from nothing: each as the program gives it and as the tensor's dtype holds it."""

    purpose: str
    constants: tuple[tuple[float, float], ...]
    dtype: torch.dtype
    site: Site | None

    def __str__(self) -> str:
        line = f" (line {self.site.line})" if self.site is not None else ""
        given_text = " and ".join(f"{given_text:.10g}" for given_text, _ in self.constants)
        rounded_text = " and ".join(f"{rounded_text:g}" for _, rounded_text in self.constants)
        what, verb = (self.purpose, "is") if len(self.constants) == 1 else (f"{self.purpose}s", "are")
        return f"the {what} of {given_text}{line} {verb} {rounded_text} in {str(self.dtype).removeprefix('torch.')}"


class NonFiniteOrigin:
    """The first value of a chain that was not finite.

    ``kind`` says what held it, ``name`` the op, the parameter or the buffer. ``mask`` is whether it was meant: an
    infinity that the program fills in. ``masked`` are the operands that hold only such. ``vain`` was to keep
    an operand from what it is.
    """

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.op_index = index
        self.is_mask = False
        self.operands: list[tuple[str, Magnitudes]] = []
        self.result: Magnitudes | None = None
        self.mask_origins: list[NonFiniteOrigin] = []
        self.module: ModuleEntry | None = None
        self.modules_before: list[ModuleEntry] = []
        self.site: Site | None = None
        self.in_backward = False
        self.tensor: torch.Tensor | None = None
        self.ineffective_constant: IneffectiveConstant | None = None


class OpTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches ops and modules. ``names`` are those of parameters and buffers, and of modules, by identity."""

    def __init__(
        self, tensors: dict[int, tuple[str, str]], modules: dict[int, str], locate: Callable[[list[Place]], Site]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensor_names = tensors
        self._module_names = modules
        self._locate = locate
        self._origins: dict[int, NonFiniteOrigin] = {}
        self._leaf_origins: dict[int, NonFiniteOrigin] = {}
        #: Storages of what was made from tensors that constants were to keep from something, and how many ops later.
        self._ineffective: dict[int, tuple[IneffectiveConstant, int]] = {}
        self._op_count = 0
        self._open_modules: list[ModuleEntry] = []
        self._recent_modules: deque[ModuleEntry] = deque(maxlen=BEFORE)
        #: The numbers of the nodes that a call of a module has made, and where calls of the tape stand.
        self._node_spans: list[tuple[int, int, ModuleEntry]] = []
        self._open_starts: list[int] = []
        self._call_positions: list[tuple[int, Place]] = []
        self._outermost_code: CodeType | None = None
        self.call_position: Place | None = None
        self.in_backward = False
        #: Buffers that an op has spoilt.
        self.nonfinite_buffers: dict[int, NonFiniteOrigin] = {}
        #: What went bad in a backward pass, the first first.
        self.gradient_origins: list[NonFiniteOrigin] = []

    # Modules.

    @contextlib.contextmanager
    def observe(self, outermost: CodeType) -> Iterator[None]:
        """A region in which it sees what happens; frames above the one of this code are not the user's."""
        self._outermost_code = outermost
        hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=False), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._open_modules.append(
            ModuleEntry(self._module_names.get(id(module), ""), type(module).__name__, self._current_site(), ())
        )
        self._open_starts.append(number())

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._open_modules:
            return
        entry = self._open_modules.pop()._replace(
            output_magnitudes=tuple(measure_magnitudes(t) for t in list(floats_in(output))[:1])
        )
        self._node_spans.append((self._open_starts.pop(), number(), entry))
        self._recent_modules.append(entry)

    def begin_call(self, position: Place | None) -> None:
        """A call of the tape begins."""
        self.call_position = position
        if position is not None:
            self._call_positions.append((number(), position))

    @property
    def last_modules(self) -> list[ModuleEntry]:
        """The modules that have run last."""
        return list(self._recent_modules)

    # Ops.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = list(floats_in((args, list(kwargs.values()))))
        finite = [is_finite(tensor) for tensor in inputs]
        changes = func._schema.is_mutable
        operands = self._measure_operands(args, kwargs) if changes else None
        result = func(*args, **kwargs)
        self._op_count += 1
        name = func._schema.name.partition("::")[2]
        if name in _UNWRITTEN or not inputs:
            # What is made from nothing is an input, and belongs to who reads it first.
            self._forget_origins(floats_in(result))
            return result
        results = list(floats_in(result))
        ineffective, ops = self._ineffective_of(name, args, kwargs, inputs)
        bad = [tensor for tensor in results if not is_finite(tensor)]
        changed = [
            t for t, was in zip(inputs, finite, strict=True) if was and (changes or "norm" in name) and not is_finite(t)
        ]
        if bad or changed:
            nonfinite_inputs = [tensor for tensor, was_finite in zip(inputs, finite, strict=True) if not was_finite]
            origin = self._find_origin(name, func, args, kwargs, nonfinite_inputs, bad or changed, operands)
            origin.ineffective_constant = origin.ineffective_constant or ineffective
            for tensor in bad:
                self._origins[storage_of(tensor)] = origin
            for tensor in changed:
                self._origins[storage_of(tensor)] = self.nonfinite_buffers[id(tensor)] = origin
        self._forget_origins(tensor for tensor in results if not any(tensor is other for other in bad))
        for tensor in results:
            if ineffective is not None and ops < NEAR:
                self._ineffective[storage_of(tensor)] = ineffective, ops + 1
            else:
                self._ineffective.pop(storage_of(tensor), None)
        return result

    def _find_ineffective(self, name: str, args: Any, kwargs: Any) -> IneffectiveConstant | None:
        """What an op gives a tensor of low precision to keep it from something, where it is 0 or 1 in that dtype."""
        purpose = _GUARDS.get(name.removesuffix("_"))
        tensor = args[0] if args else None
        if purpose is None or not isinstance(tensor, torch.Tensor) or tensor.dtype not in LOW:
            return None
        constants = [number for number in (*args[1:], *kwargs.values()) if isinstance(number, float)]
        rounded = [float(torch.tensor(number, dtype=tensor.dtype)) for number in constants]
        ineffective = tuple(
            (one, other)
            for one, other in zip(constants, rounded, strict=True)
            if one != other and other in (0.0, 1.0, -1.0)
        )
        return IneffectiveConstant(purpose, ineffective, tensor.dtype, self._current_site()) if ineffective else None

    def _ineffective_of(
        self, name: str, args: Any, kwargs: Any, inputs: Iterable[torch.Tensor]
    ) -> tuple[IneffectiveConstant, int] | tuple[None, int]:
        """What was to keep an op's operands from something, or its result, and how many ops before."""
        ineffective = self._find_ineffective(name, args, kwargs)
        if ineffective is not None:
            return ineffective, 0
        return next((self._ineffective[key] for key in map(storage_of, inputs) if key in self._ineffective), (None, 0))

    def _forget_origins(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            key = storage_of(tensor)
            if key in self._origins and tensor.numel() * tensor.element_size() == _storage_bytes(tensor):
                del self._origins[key]

    def _find_origin(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        nonfinite_inputs: list[torch.Tensor],
        bad: list[torch.Tensor],
        operands: list[tuple[str, Magnitudes]] | None,
    ) -> NonFiniteOrigin:
        """Where the values that are not finite in a result come from."""
        origins = [self.origin_of(tensor) for tensor in nonfinite_inputs]
        real = [origin for origin in origins if not origin.is_mask]
        if real:
            return min(real, key=lambda origin: origin.op_index)
        result = measure_magnitudes(bad[0])
        if origins and result.is_only_negative_inf:
            return origins[0]
        is_meant = any(isinstance(arg, float) and abs(arg) == float("inf") for arg in (*args, *kwargs.values()))
        origin = NonFiniteOrigin(OP, name, self._op_count)
        origin.is_mask = is_meant and not result.has_nan and not origins
        origin.mask_origins = origins
        origin.result = result
        if not origin.is_mask:
            self._fill_origin(origin, operands or self._measure_operands(args, kwargs))
        return origin

    def _fill_origin(self, origin: NonFiniteOrigin, operands: list[tuple[str, Magnitudes]]) -> None:
        origin.operands = operands
        origin.in_backward = self.in_backward
        origin.modules_before = list(self._recent_modules)
        if not self.in_backward:
            origin.module = self._open_modules[-1] if self._open_modules else None
            origin.site = self._current_site()
            return
        node: Any = torch._C._current_autograd_node()
        self.gradient_origins.append(origin)
        if node is None:
            return
        origin.name = node.name()
        sequence_number = node._sequence_nr()
        spans = [span for span in self._node_spans if span[0] <= sequence_number < span[1]]
        origin.module = min(spans, key=lambda span: span[1] - span[0])[2] if spans else None
        origin.site = self._site_of_node(node) or self._site_at_number(sequence_number)

    def origin_of(self, tensor: torch.Tensor) -> NonFiniteOrigin:
        """Where a tensor that is not finite has it from."""
        origin = self._origins.get(storage_of(tensor))
        if origin is not None:
            return origin
        key = storage_of(tensor)
        leaf = self._leaf_origins.get(key)
        if leaf is None:
            kind, name = self._kind_and_name(tensor)
            leaf = self._leaf_origins[key] = NonFiniteOrigin(kind, name, self._op_count)
            leaf.result = measure_magnitudes(tensor)
            leaf.tensor = tensor
            # Masks are made once and passed in, or kept in a buffer.
            leaf.is_mask = leaf.result.is_only_negative_inf and kind != PARAMETER
            leaf.module = self._open_modules[-1] if self._open_modules else None
            leaf.modules_before = list(self._recent_modules)
            leaf.site = self._current_site()
        return leaf

    def _kind_and_name(self, tensor: torch.Tensor) -> tuple[str, str]:
        return self._tensor_names.get(storage_of(tensor), (INPUT, ""))

    def _measure_operands(self, args: Any, kwargs: Any) -> list[tuple[str, Magnitudes]]:
        return [
            (self._kind_and_name(t)[1], measure_magnitudes(t))
            for t in list(floats_in((args, list(kwargs.values()))))[:4]
        ]

    # Places.

    def _current_site(self) -> Site | None:
        positions: list[Place] = []
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code is not self._outermost_code:
            if not is_inner(frame.f_code.co_filename):
                positions.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        if self.call_position is not None:
            positions.append(self.call_position)
        return self._locate(positions) if positions else None

    def _site_of_node(self, node: Any) -> Site | None:
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

    def _site_at_number(self, sequence_number: int) -> Site | None:
        position = next(
            (position for start, position in reversed(self._call_positions) if start <= sequence_number), None
        )
        return self._locate([position]) if position is not None else None


def storage_of(tensor: torch.Tensor) -> int:
    """What identifies the memory of a tensor, which its views share."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else -1
