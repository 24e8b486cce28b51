"""Imports of a file by what the imported definitions do with dtypes."""

from __future__ import annotations

from .exports import Exports
from .module import Module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .project import Project


def casting_imports(project: Project, module: Module, path: str) -> frozenset[str]:
    """Return the imported names of a file that may give a low dtype, or a model with weights in a low dtype.

    Only a file that makes an optimizer may train such a model.
    """
    if "optim" not in module.text or "parameters" not in module.identifiers:
        return frozenset()
    return _matching_imports(project, module, path, project.casting_exports)


def rounding_imports(project: Project, module: Module, path: str) -> frozenset[str]:
    """Return the imported names of a file that may compute what the low dtype of their inputs spoils."""
    return _matching_imports(project, module, path, project.rounding_exports)


def _matching_imports(project: Project, module: Module, path: str, exports: Exports) -> frozenset[str]:
    return frozenset(
        name for name, imported in module.imports.items() if project.is_relevant_import(imported, path, exports)
    )
