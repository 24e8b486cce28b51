"""Imports of a file by what the imported definitions do with dtypes."""

from __future__ import annotations

from collections.abc import Callable

from .module import ImportedName, Module

#: Test of an import: True if the definition that it leads to meets a criterion.
Matches = Callable[[ImportedName], bool]


def casting_imports(module: Module, gives_low: Matches, *, is_imported: bool) -> frozenset[str]:
    """Return the imported names of a file that may give a low dtype, or a model with weights in a low dtype.

    Only a file that makes an optimizer, or that gives the model to an importing file, may train such a model.
    """
    if not is_imported and ("optim" not in module.text or "parameters" not in module.identifiers):
        return frozenset()
    return frozenset(name for name, imported in module.imports.items() if gives_low(imported))


def rounding_imports(module: Module, rounds: Matches) -> frozenset[str]:
    """Return the imported names of a file that may compute what the low dtype of their inputs spoils."""
    return frozenset(name for name, imported in module.imports.items() if rounds(imported))
