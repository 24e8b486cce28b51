"""Tree of a model's modules, with the dtypes of each module."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ModuleNode:
    """A module of the tree: output dtypes, dtypes of own parameters and gradients, and child modules."""

    def __init__(self) -> None:
        self.output_dtypes = ""
        self.parameters: dict[str, str] = {}
        self.gradients: dict[str, str] = {}
        self.children: dict[str, ModuleNode] = {}

    def names_by_dtype(self, what: str) -> dict[str, list[str]]:
        """Return the names by dtype for one kind of data, in this module and all submodules."""
        found: dict[str, list[str]] = {}
        for name, dtypes in getattr(self, what).items():
            for dtype in filter(None, dtypes.split(", ")):
                found.setdefault(dtype, []).append(name)
        for child, module in self.children.items():
            for dtype, names in module.names_by_dtype(what).items():
                found.setdefault(dtype, []).extend(f"{child}.{name}" for name in names)
        return found

    def structure_key(self) -> str:
        """Return a key that is equal for modules with the same display."""
        children = [(name, module.structure_key()) for name, module in self.children.items()]
        return repr((self.output_dtypes, self.parameters, self.gradients, children))

    def count_rows(self) -> int:
        return 1 + sum(module.count_rows() for _, module in self.fold_children())

    def fold_children(self) -> list[tuple[str, ModuleNode]]:
        """Return the child modules, with equal numbered neighbors folded to one entry: ``0-11``."""
        found: list[tuple[str, ModuleNode]] = []
        last = ""
        for name, module in self.children.items():
            shape = module.structure_key() if name.isdecimal() else ""
            if shape and shape == last:
                first = found[-1][0].partition("-")[0]
                found[-1] = (f"{first}-{name}", found[-1][1])
            else:
                found.append((name, module))
            last = shape
        return found


def build_tree(dtypes: Mapping[str, Any]) -> ModuleNode:
    """Build the tree of a run's dtypes, given in the format of ``Run.as_dict()``."""
    root = ModuleNode()

    def find_node(path: str) -> ModuleNode:
        module = root
        for part in path.split(".") if path else ():
            module = module.children.setdefault(part, ModuleNode())
        return module

    for name, dtype in dtypes["modules"].items():
        find_node(name).output_dtypes = dtype
    for what in ("parameters", "gradients"):
        for name, dtype in dtypes[what].items():
            path, _, own = name.rpartition(".")
            getattr(find_node(path), what)[own] = dtype
    return root
