"""A trace of every op and module of replayed steps.

It finds for each non-finite value the first op that produced it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...protocol.sites import Site
from ..record.regions import LOW, number
from ..record.sites import Position, is_inner, is_library
from .magnitudes import Magnitudes, floats_in, is_finite, measure_magnitudes

#: Number of modules before an op that the trace keeps.
BEFORE = 4
#: Ops that create tensors with uninitialized memory.
_UNWRITTEN = frozenset("empty empty_like empty_strided new_empty new_empty_strided resize_ set_".split())
#: Ops that keep a tensor away from a limit by a constant, and the name of the constant.
_GUARDS = {**dict.fromkeys("clamp clamp_min clamp_max hardtanh".split(), "bound"), "add": "epsilon"}
#: Ops whose result is nowhere zero, or zero only where an operand is, except for underflow; and names for some of them.
_NOWHERE_ZERO = frozenset("exp exp2 softmax _softmax sigmoid reciprocal rsqrt".split())
_NEVER_ZERO = frozenset("_to_copy mul div pow square".split()) | _NOWHERE_ZERO
_CALLED = {"_to_copy": "a cast", "_softmax": "`softmax`"}
#: Ops after which the effect of a constant or of an underflow is that of before.
_KEEPS_VALUES = frozenset(
    "_to_copy view _unsafe_view reshape transpose t permute expand unsqueeze squeeze slice select detach alias clone "
    "split".split()
)
#: Number of ops after which the effect of such a constant no longer counts as a reason.
NEAR = 4
#: Key in a node's metadata for the lines that created the node; set by autograd in anomaly mode.
_TRACEBACK = "traceback_"
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

PARAMETER, BUFFER, STATE, INPUT, OP, DERIVATIVE = "parameter", "buffer", "state", "input", "op", "derivative"


class ModuleEntry(NamedTuple):
    """A call of a module: the name, the class, the source location, and the magnitudes of the output."""

    name: str
    class_name: str
    site: Site | None
    output_magnitudes: tuple[Magnitudes, ...]

    def __str__(self) -> str:
        return f"`{self.name}` ({self.class_name})" if self.name else f"`{self.class_name}`"


class IneffectiveConstant(NamedTuple):
    """Constants without effect, because the tensor's dtype rounds them.

    Each pair holds the constant of the program and the rounded constant.
    """

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


class Underflow(NamedTuple):
    """An op whose result is zero in a low precision, although none of its operands is."""

    op: str
    dtype: torch.dtype
    site: Site | None

    def __str__(self) -> str:
        line = f" (line {self.site.line})" if self.site is not None else ""
        return f"{self.op}{line} underflows to 0 in {str(self.dtype).removeprefix('torch.')}"


class NonFiniteOrigin:
    """The first non-finite value of a chain.

    ``kind`` is the kind of the holder, and ``name`` is the name of the op, parameter or buffer. ``is_mask`` is True if
    the program filled in an infinity on purpose. ``mask_origins`` are the origins of operands with only such
    infinities. ``operand_reason`` is the reason why an operand has its value: a constant that should have kept the
    operand from it, or an op that has underflowed.
    """

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.op_index = index
        self.is_mask = False
        self.has_infinite_argument = self.has_nan_argument = False
        self.operands: list[tuple[str, Magnitudes]] = []
        self.result: Magnitudes | None = None
        self.mask_origins: list[NonFiniteOrigin] = []
        self.module: ModuleEntry | None = None
        self.modules_before: list[ModuleEntry] = []
        self.site: Site | None = None
        self.in_backward = False
        self.tensor: torch.Tensor | None = None
        self.operand_reason: IneffectiveConstant | Underflow | None = None


class OpTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that watches ops and modules.

    ``tensors`` maps storages of parameters and buffers to (kind, name), and ``modules`` maps the ``id`` of modules to
    names.
    """

    def __init__(
        self, tensors: dict[int, tuple[str, str]], modules: dict[int, str], locate: Callable[[Sequence[Position]], Site]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensor_names = tensors
        self._module_names = modules
        self._locate = locate
        self._origins: dict[int, NonFiniteOrigin] = {}
        self._leaf_origins: dict[int, NonFiniteOrigin] = {}
        #: Storage of a tensor whose values have a reason in its dtype, to the reason and the number of ops since.
        self._reasons: dict[int, tuple[IneffectiveConstant | Underflow, int]] = {}
        self._op_count = 0
        self._open_modules: list[ModuleEntry] = []
        self._recent_modules: deque[ModuleEntry] = deque(maxlen=BEFORE)
        #: (first node number, end node number, module) of each module call; and the positions of each call of the tape.
        self._node_spans: list[tuple[int, int, ModuleEntry]] = []
        self._open_starts: list[int] = []
        self._call_positions: list[tuple[int, tuple[Position, ...]]] = []
        self._outermost_code: CodeType | None = None
        self.call_positions: tuple[Position, ...] = ()
        self.in_backward = False
        #: ``id`` of buffers that an op made non-finite, to the origin.
        self.nonfinite_buffers: dict[int, NonFiniteOrigin] = {}
        #: Origins in a backward pass, in order.
        self.gradient_origins: list[NonFiniteOrigin] = []

    # Modules.

    @contextlib.contextmanager
    def observe(self, outermost: CodeType) -> Iterator[None]:
        """Open a region in which the trace is active.

        Frames above the frame of ``outermost`` do not belong to the user.
        """
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

    def begin_call(self, positions: tuple[Position, ...]) -> None:
        """Begin a call of the tape."""
        self.call_positions = positions
        if positions:
            self._call_positions.append((number(), positions))

    @property
    def last_modules(self) -> list[ModuleEntry]:
        """The modules that ran last, oldest first."""
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
        results = list(floats_in(result))
        if name in _UNWRITTEN or not inputs:
            # A tensor without tensor inputs is an input, and its first reader determines its origin.
            self._forget_origins(results)
            if name not in _UNWRITTEN and _has_infinity(args, kwargs):
                origin = self._find_origin(name, args, kwargs, [], results, None)
                self._origins.update((storage_of(tensor), origin) for tensor in results)
            return result
        reason, ops = self._reason_of(name, args, kwargs, inputs)
        bad = [tensor for tensor in results if not is_finite(tensor)]
        changed = [
            t for t, was in zip(inputs, finite, strict=True) if was and (changes or "norm" in name) and not is_finite(t)
        ]
        if bad or changed:
            nonfinite_inputs = [tensor for tensor, was_finite in zip(inputs, finite, strict=True) if not was_finite]
            origin = self._find_origin(name, args, kwargs, nonfinite_inputs, bad or changed, operands)
            origin.operand_reason = origin.operand_reason or reason
            for tensor in bad:
                self._origins[storage_of(tensor)] = origin
            for tensor in changed:
                self._origins[storage_of(tensor)] = self.nonfinite_buffers[id(tensor)] = origin
        self._forget_origins(tensor for tensor in results if not any(tensor is other for other in bad))
        if reason is None:
            reason = self._find_underflow(name, args, inputs, results)
        for tensor in results:
            if reason is not None and ops < NEAR:
                self._reasons[storage_of(tensor)] = reason, ops + (name not in _KEEPS_VALUES)
            else:
                self._reasons.pop(storage_of(tensor), None)
        return result

    def _find_underflow(
        self, name: str, args: Any, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> Underflow | None:
        """Return the underflow of an op that is nowhere zero for operands that are not."""
        if name.removesuffix("_") not in _NEVER_ZERO or not results or results[0].dtype not in LOW:
            return None
        lost = results[0].detach() == 0
        for tensor in inputs:
            if tensor.shape == lost.shape and tensor.device == lost.device:
                lost = lost & (tensor.detach().isfinite() if name in _NOWHERE_ZERO else tensor.detach() != 0)
            elif not tensor.detach().all():
                return None
        if not lost.any() or (name.startswith("mul") and any(type(arg) in (int, float) and not arg for arg in args)):
            return None
        return Underflow(_CALLED.get(name, f"`{name.removesuffix('_')}`"), results[0].dtype, self._current_site())

    def _find_ineffective(self, name: str, args: Any, kwargs: Any) -> IneffectiveConstant | None:
        """Return the constant by which an op guards a low-precision tensor, if the dtype makes the constant 0 or ±1."""
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

    def _reason_of(
        self, name: str, args: Any, kwargs: Any, inputs: Iterable[torch.Tensor]
    ) -> tuple[IneffectiveConstant | Underflow | None, int]:
        """Return the reason why an op's operands or result have their values, and the number of ops since."""
        ineffective = self._find_ineffective(name, args, kwargs)
        if ineffective is not None:
            return ineffective, 0
        # Only a divisor explains a division.
        explaining = list(inputs)[-1:] if name.startswith("div") else inputs
        known = [self._reasons[key] for key in map(storage_of, explaining) if key in self._reasons]
        # A constant that should have prevented a value is nearer to a remedy than what made the value.
        return min(known, key=lambda each: isinstance(each[0], Underflow), default=(None, 0))

    def _forget_origins(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            key = storage_of(tensor)
            if key in self._origins and tensor.numel() * tensor.element_size() == _storage_bytes(tensor):
                del self._origins[key]

    def _find_origin(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        nonfinite_inputs: list[torch.Tensor],
        bad: list[torch.Tensor],
        operands: list[tuple[str, Magnitudes]] | None,
    ) -> NonFiniteOrigin:
        """Return the origin of the non-finite values in a result."""
        origins = [self.origin_of(tensor) for tensor in nonfinite_inputs]
        real = [origin for origin in origins if not origin.is_mask]
        if real:
            return min(real, key=lambda origin: origin.op_index)
        result = measure_magnitudes(bad[0])
        if origins and not result.has_nan and _is_passed_on(nonfinite_inputs, bad[0]):
            return origins[0]
        origin = NonFiniteOrigin(OP, name, self._op_count)
        origin.has_infinite_argument = _has_infinity(args, kwargs)
        origin.has_nan_argument = any(isinstance(arg, float) and math.isnan(arg) for arg in (*args, *kwargs.values()))
        origin.is_mask = origin.has_infinite_argument and not result.has_nan and not origins
        origin.mask_origins = origins
        origin.result = result
        if not (origin.is_mask and self.in_backward):
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
        """Return the origin of a non-finite tensor."""
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
            # Masks are created once and passed in, or kept in a buffer.
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

    # Source locations.

    def _current_site(self) -> Site | None:
        positions: list[Position] = []
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code is not self._outermost_code:
            if not is_inner(frame.f_code.co_filename):
                positions.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        positions += self.call_positions
        return self._locate(positions) if positions else None

    def _site_of_node(self, node: Any) -> Site | None:
        """Return the source line of the forward pass that created a node, from the lines that autograd stored."""
        for text in reversed(node.metadata.get(_TRACEBACK) or []):
            head, _, rest = text.strip().partition('", line ')
            path = head.removeprefix('File "')
            if path.startswith(_HERE):
                # Lines further out belong to the program that waits for this replay.
                return None
            digits = rest.partition(",")[0].partition("\n")[0]
            if digits.isdigit() and not (is_inner(path) or is_library(path)):
                return Site(path, int(digits))
        return None

    def _site_at_number(self, sequence_number: int) -> Site | None:
        positions = next(
            (positions for start, positions in reversed(self._call_positions) if start <= sequence_number), ()
        )
        return self._locate(positions) if positions else None


def _has_infinity(args: Any, kwargs: Any) -> bool:
    """Return True if an argument of an op is an infinity."""
    return any(isinstance(arg, float) and math.isinf(arg) for arg in (*args, *kwargs.values()))


def _is_passed_on(operands: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
    """Return True if the infinities of a result are those of its operands, and not those of an overflow."""
    infinite = result.detach().isinf()
    for operand in operands:
        # The shapes may differ, as those of a product and its operands.
        sizes = zip(reversed(operand.shape), reversed(result.shape), strict=False)
        is_alike = operand.device == result.device and all(a == b or 1 in (a, b) for a, b in sizes)
        if is_alike and not (infinite & ~operand.detach().isinf()).any():
            return True
    signs = [(bool(tensor.isposinf().any()), bool(tensor.isneginf().any())) for tensor in (*operands, result)]
    return all(any(sign[i] for sign in signs[:-1]) for i in range(2) if signs[-1][i])


def storage_of(tensor: torch.Tensor) -> int:
    """Return an identifier of the memory of a tensor. Views of one tensor share the identifier."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else -1
