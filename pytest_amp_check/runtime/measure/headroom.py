"""How near the outputs of modules, and products of activations as in attention, come to the most that float16 holds."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..record.forwards import compiled
from ..record.function_modes import lift, lower

#: The most that float16 holds.
MOST = 65504.0
#: Products of two tensors, by the names of the functions that torch is called by.
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})


class Headroom:
    """The greatest magnitudes of a recording, by module; products stand under the module that makes them.

    They stay on the device until they are asked for. What a fused attention keeps for itself is computed in float32
    there, and not seen; nor is what compiled code does.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._products: dict[str, torch.Tensor] = {}
        if model is not None:
            self.adopt(model)
        self._open: list[str] = []
        self._hooks: list[Any] = []
        self._mode = _Products(self._multiplied)
        self._compiled = 0
        #: Whether this step is looked at.
        self.looks = True

    def adopt(self, model: nn.Module) -> None:
        """Modules are called as in this model."""
        self._names = {id(module): (weakref.ref(module), name) for name, module in model.named_modules()}
        # What was seen under the names of classes is seen again under these.
        self._outputs.clear()
        self._products.clear()

    def start(self) -> None:
        module = nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(self._enters),
            module.register_module_forward_hook(self._leaves, always_call=True),
        ]
        self._compiled = compiled()
        lift(self._mode)

    def stepped(self, *, looks_next: bool) -> None:
        """A step was made; whether the next one is looked at. Code that is compiled is to see no mode from then on."""
        self.looks = looks_next
        if compiled() != self._compiled:
            self._compiled = compiled()
            lower(self._mode)

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        lower(self._mode)

    def _enters(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        known = self._names.get(id(module))
        kind = type(module).__name__
        self._open.append((known[1] or kind) if known is not None and known[0]() is module else kind)

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._open:
            return
        name = self._open.pop()
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if self.looks:
            _take(self._outputs, name, first)

    def _multiplied(self, product: Any) -> None:
        if self.looks:
            _take(self._products, self._open[-1] if self._open else "outside of modules", product)

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Of "outputs" and "products" the greatest magnitude by name, the greatest first; this waits for the device."""
        return {"outputs": _read(self._outputs), "products": _read(self._products)}


class _Products(TorchFunctionMode):
    """Tells of products of activations: of tensors that both have a batch, and neither of which is a parameter."""

    def __init__(self, seen: Any) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _PRODUCTS and not torch.compiler.is_compiling():
            factors = [each for each in args if isinstance(each, torch.Tensor)]
            batched = [each for each in factors if each.dim() > 2 and not isinstance(each, nn.Parameter)]
            if len(factors) == len(batched) > 1:
                self._seen(result)
        return result


def _take(known: dict[str, torch.Tensor], name: str, value: Any) -> None:
    if type(value) is not torch.Tensor or not value.is_floating_point() or value.is_meta or not value.numel():
        return
    with torch.no_grad():
        greatest = value.detach().abs().amax().float()
        before = known.get(name)
        known[name] = (
            greatest if before is None or before.device != greatest.device else torch.maximum(before, greatest)
        )


def _read(known: dict[str, torch.Tensor]) -> dict[str, float]:
    values = {name: float(greatest) for name, greatest in known.items()}
    # What is not finite comes first.
    return dict(sorted(values.items(), key=lambda pair: (pair[1] == pair[1], -pair[1], pair[0])))
