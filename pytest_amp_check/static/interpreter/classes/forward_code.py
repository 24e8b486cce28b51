"""Forwards of module classes: the code that runs, and the autocast regions in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ...project.forward_regions import forward_region_dtype
from ...project.module import Class
from ...project.region_entry import RUNNING_METHODS, enters_autocast
from ...project.syntax import walk
from ..interpreter import Interpreter
from ..values.value import AUTOCAST_CALLEES
from .lineage import lineage_of, method_of


def has_plain_forward(interp: Interpreter, cls: Class) -> bool:
    """Return True if the forward of a module class is in the project and enters no autocast."""
    words: set[str] = set()
    for owner in lineage_of(interp, cls):
        words |= owner.used_names
    return method_of(interp, cls, "forward") is not None and "autocast" not in words


def may_cast(lineage: Sequence[Class]) -> bool:
    """Return True if the forward of a module class may enter autocast. ``lineage`` is the class with its base classes.

    A method that no forward calls, such as one for inference, does not count.
    """
    if not any("autocast" in word for cls in lineage for word in cls.used_names):
        return False
    return any(enters_autocast(code) for _, code in _forward_code(lineage))


def region_of_forward(lineage: Sequence[Class]) -> str:
    """Return the dtype of the region that the forward of a module class enters on every path, or "" if not known."""
    forward = next((cls.methods["forward"] for cls in lineage if "forward" in cls.methods), None)
    return "" if forward is None or "autocast" not in forward.used_names else forward_region_dtype(forward)


def called_functions(lineage: Sequence[Class]) -> frozenset[str]:
    """Return the names of the functions of this file and of imported files that the forward of a class may call."""
    found: set[str] = set()
    for cls, code in _forward_code(lineage):
        imports = cls.module.imports
        for func in (node.func for node in walk(code) if isinstance(node, ast.Call)):
            if isinstance(func, ast.Name):
                imported = imports.get(func.id)
                found.add(func.id if imported is None or not imported.name else imported.name)
            elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in imports:
                found.add(func.attr)
    # Whether a call of autocast itself enters a region shows in its arguments.
    return frozenset(found) - AUTOCAST_CALLEES


def _forward_code(lineage: Sequence[Class]) -> Iterator[tuple[Class, ast.AST]]:
    """Yield the code that runs when a module is constructed or called: code of the class body, and methods."""
    if any(cls.is_open for cls in lineage):
        # A method of an unknown base class may call any method.
        yield from ((cls, cls.node) for cls in lineage)
        return
    for cls in lineage:
        for part in (*cls.node.decorator_list, *cls.node.body):
            if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield cls, part
    todo = set(RUNNING_METHODS)
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        reached.add(name)
        for cls in lineage:
            if name in cls.methods:
                yield cls, cls.methods[name].node
                todo |= cls.methods[name].attributes_used() - reached
