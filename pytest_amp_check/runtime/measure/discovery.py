"""The search for the trained model if the user has not named a model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..record.collector import Collector


class _ModelGroup(nn.ModuleDict):
    """Several models that are trained together."""


class Discovery(Collector):
    """A collector that finds the modules with the optimizers' parameters, and passes the modules to other collectors.

    The search runs once for each new optimizer, after its first backward pass, through all objects of the process.
    """

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = tuple(collectors)
        self._known_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def after_backward(
        self, scaler: torch.amp.GradScaler | None, scale: float, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Search for models if one of the optimizers is new."""
        if all(optimizer in self._known_optimizers for optimizer in optimizers):
            return
        self._known_optimizers.update(optimizers)
        models = _find_models(
            {id(p) for optimizer in self._known_optimizers for group in optimizer.param_groups for p in group["params"]}
        )
        if not models:
            return
        # Several models are grouped under their class names. The group leaves the models unchanged.
        model = models[0] if len(models) == 1 else _ModelGroup(_name_models(models))
        for collector in self._collectors:
            collector.set_model(model)


def _find_models(params: set[int]) -> list[nn.Module]:
    """Return the outermost modules that hold any of these parameters, given by ``id``."""
    holders = [each for each in gc.get_objects() if _holds_parameters(each, params)]
    inner = {id(child) for holder in holders for child in holder.modules() if child is not holder}
    return [holder for holder in holders if id(holder) not in inner]


def _holds_parameters(each: object, params: set[int]) -> bool:
    # Objects that only imitate modules may run code when their class is requested with isinstance.
    if not issubclass(type(each), nn.Module) or type(each) is _ModelGroup:
        return False
    assert isinstance(each, nn.Module)
    try:
        return any(id(p) in params for p in each.parameters())
    except Exception:  # noqa: BLE001 - any module of the process is asked, also one that is made by halves
        return False


def _name_models(models: list[nn.Module]) -> dict[str, nn.Module]:
    named: dict[str, nn.Module] = {}
    for model in models:
        name, number = type(model).__name__, 1
        while (key := name if number == 1 else f"{name}{number}") in named:
            number += 1
        named[key] = model
    return named
