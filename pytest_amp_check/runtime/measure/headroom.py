"""The largest magnitudes of module outputs and products of activations, as in attention: the headroom of float16."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..record.forwards import compiled_code_count
from ..record.function_modes import push_mode, remove_mode

#: The largest float16 number.
MOST = 65504.0
#: Products of two tensors, by the names of torch's functions.
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "einsum"})


class Headroom:
    """The largest magnitudes of a recording, by module. A product is listed under the module that computes the product.

    The magnitudes stay on the device until they are requested. Internal products of fused attention are computed in
    float32 and not recorded. Compiled code is not recorded either.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._module_names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._products: dict[str, torch.Tensor] = {}
        if model is not None:
            self.set_model(model)
        self._open_modules: list[str] = []
        self._hooks: list[Any] = []
        self._product_mode = _ProductMode(self._record_product)
        self._compiled_count = 0
        #: True if the current step is sampled.
        self.is_sampling = True

    def set_model(self, model: nn.Module) -> None:
        """Name modules as in this model from now on. Earlier data is discarded."""
        self._module_names = {id(module): (weakref.ref(module), name) for name, module in model.named_modules()}
        # The discarded data has class names; the next steps record the same modules under their names in the model.
        self._outputs.clear()
        self._products.clear()

    def start(self) -> None:
        module = nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(self._enter_module),
            module.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self._compiled_count = compiled_code_count()
        push_mode(self._product_mode)

    def finish_step(self, *, sample_next: bool) -> None:
        """End a step, and enable or disable sampling of the next step.

        Once code has been compiled, the product mode is removed, because compiled code should run without a mode.
        """
        self.is_sampling = sample_next
        if compiled_code_count() != self._compiled_count:
            self._compiled_count = compiled_code_count()
            remove_mode(self._product_mode)

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        remove_mode(self._product_mode)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        entry = self._module_names.get(id(module))
        kind = type(module).__name__
        self._open_modules.append((entry[1] or kind) if entry is not None and entry[0]() is module else kind)

    def _leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._open_modules:
            return
        name = self._open_modules.pop()
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if self.is_sampling:
            _record_maximum(self._outputs, name, first)

    def _record_product(self, product: Any) -> None:
        if self.is_sampling:
            _record_maximum(
                self._products, self._open_modules[-1] if self._open_modules else "outside of modules", product
            )

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return for "outputs" and "products" the largest magnitude by name, largest first. Waits for the device."""
        return {"outputs": _read_maxima(self._outputs), "products": _read_maxima(self._products)}


class _ProductMode(TorchFunctionMode):
    """A function mode that reports products of activations.

    Such a product has several tensors with more than two dimensions, none of which is a parameter.
    """

    def __init__(self, seen: Any) -> None:
        super().__init__()
        self._on_product = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _PRODUCTS and not torch.compiler.is_compiling():
            factors = [each for each in args if isinstance(each, torch.Tensor)]
            batched = [each for each in factors if each.dim() > 2 and not isinstance(each, nn.Parameter)]
            if len(factors) == len(batched) > 1:
                self._on_product(result)
        return result


def _record_maximum(maxima: dict[str, torch.Tensor], name: str, value: Any) -> None:
    if type(value) is not torch.Tensor or not value.is_floating_point() or value.is_meta or not value.numel():
        return
    with torch.no_grad():
        greatest = value.detach().abs().amax().float()
        before = maxima.get(name)
        maxima[name] = (
            greatest if before is None or before.device != greatest.device else torch.maximum(before, greatest)
        )


def _read_maxima(maxima: dict[str, torch.Tensor]) -> dict[str, float]:
    values = {name: float(greatest) for name, greatest in maxima.items()}
    # Non-finite magnitudes come first. NaN is unequal to itself.
    return dict(sorted(values.items(), key=lambda pair: (pair[1] == pair[1], -pair[1], pair[0])))
