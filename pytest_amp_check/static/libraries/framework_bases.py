"""Classes that derive from a class of a framework."""

from __future__ import annotations

import ast

from ...protocol import frameworks
from ..interpreter.classes import base_value, lineage_of
from ..interpreter.interpreter import Interpreter
from ..project.module import Class, Function
from .arguments import dotted_name_of
from .syntax_queries import last_name


class DerivationCache(dict[tuple[ast.AST, str], bool]):
    """Cache of subclass tests: (class node, framework class name) to bool."""


def derives_from(interp: Interpreter, cls: Class, name: str) -> bool:
    """Return True if a class derives from the framework class of the given name."""
    known_of = interp.file_data(DerivationCache)
    known = known_of.get((cls.node, name))
    if known is None:
        bases = (base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases)
        known = any(frameworks.canonical_name(dotted_name_of(base)) == name for base in bases)
        known_of[cls.node, name] = known
    return known


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
