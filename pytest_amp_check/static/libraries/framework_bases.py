"""Classes that derive from a class of a framework."""

from __future__ import annotations

import ast

from ...protocol import frameworks
from ..interpreter.classes.lineage import base_value, lineage_of
from ..interpreter.interpreter import Interpreter
from ..project.module import Class, Function
from .arguments import dotted_name_of
from .syntax_queries import last_name


class DerivationCache(dict[tuple[ast.AST, str], bool]):
    """Cache of subclass tests: (class node, framework class name) to bool."""


def derives_from(interp: Interpreter, cls: Class, name: str) -> bool:
    """Return True if a class derives from the framework class of the given name, which may be in the project itself."""
    known_of = interp.file_data(DerivationCache)
    known = known_of.get((cls.node, name))
    if known is None:
        lineage = lineage_of(interp, cls)
        bases = (base_value(interp, owner, base) for owner in lineage for base in owner.bases)
        names = (*map(dotted_name_of, bases), *(_name_in_framework(owner, name) for owner in lineage[1:]))
        known = any(frameworks.canonical_name(each) == name for each in names)
        known_of[cls.node, name] = known
    return known


def _name_in_framework(cls: Class, name: str) -> str:
    """Return the dotted name of a class in a copy of the framework that has a class of the given name, or "".

    The project is then the framework itself, or has its package in a folder.
    """
    package = name.partition(".")[0]
    parts = cls.module.path.removesuffix(".py").replace("\\", "/").split("/")
    if package not in parts[:-1]:
        return ""
    inside = parts[len(parts) - 1 - parts[::-1].index(package) :]
    return ".".join([*inside, cls.name])


def find_base_that_saves(interp: Interpreter, cls: Class | None) -> frameworks.Framework | None:
    """Return the framework whose base class writes the checkpoints of a class that adds no state to them, or None."""
    if cls is None or not cls.bases:
        return None
    lineage = lineage_of(interp, cls)
    methods = {name for owner in lineage for name in owner.methods}
    if any(_takes_scaler_state(method) for owner in lineage for method in owner.methods.values()):
        return None
    saving = (each for each in frameworks.FRAMEWORKS.values() if each.saving_methods)
    return next(
        (
            framework
            for framework in saving
            if methods.isdisjoint(framework.saving_methods) and derives_from(interp, cls, framework.base_class)
        ),
        None,
    )


def _takes_scaler_state(method: Function) -> bool:
    """Return True if a method takes the state of a scaler, for whichever place."""
    return "state_dict" in method.used_names and any(
        isinstance(each, ast.Attribute) and each.attr == "state_dict" and "scal" in last_name(each.value).lower()
        for each in method.nodes
    )
