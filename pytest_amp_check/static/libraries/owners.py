"""Owners of parameters: the optimizers that update modules."""

from __future__ import annotations

from ..interpreter.interpreter import Interpreter
from ..interpreter.values.gradients import ParamsValue


def find_owners(interp: Interpreter, params: ParamsValue) -> tuple[int, ...] | None:
    """Return the keys of the optimizers that update the parameters, or None if unknown."""
    return tuple(params.optimizers) if params.optimizers else find_updating_optimizers(interp, params.modules)


def find_updating_optimizers(interp: Interpreter, modules: frozenset[int] | None) -> tuple[int, ...] | None:
    """Return the keys of the optimizers that update modules, or None if unknown."""
    if modules is None:
        return None
    copies = bool(modules) and all(interp.program.objects[key].attributes.copied for key in modules)
    owners = []
    for key in interp.program.optimizer_keys:
        owns = interp.program.objects[key].attributes.owns
        if owns is None:
            if copies and key < min(modules):
                # An optimizer created before the copy does not update the copy.
                continue
            return None
        if interp.program.with_submodules(owns) & interp.program.with_submodules(modules):
            owners.append(key)
    return tuple(owners) if owners or copies else None


def add_sharing_optimizers(interp: Interpreter, owners: tuple[int, ...]) -> tuple[int, ...]:
    """Return optimizers, and those that update the same modules, by their keys."""
    owned = (interp.program.objects[key].attributes.owns for key in owners)
    modules = frozenset[int]().union(*(owns for owns in owned if owns is not None))
    return tuple(dict.fromkeys((*owners, *(find_updating_optimizers(interp, modules) or ()))))


def all_optimizer_keys(interp: Interpreter) -> tuple[int, ...]:
    return tuple(interp.program.optimizer_keys)
