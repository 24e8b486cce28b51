"""Inheritance of classes: base classes, roles and inherited methods."""

from __future__ import annotations

import ast

from ....protocol import torch_api
from ...project.module import Class, Function
from ...project.syntax import root_name
from ..imports import globals_of, look_up
from ..interpreter import Interpreter, in_frame
from ..values.definitions import ClassValue, ExternalName, Frame
from ..values.value import Value

#: Calls by which a class shows that it trains.
_TRAINING_CALLS = frozenset({"backward", "unscale_", "zero_grad"})
#: Methods by which a class takes part in the training of a base class.
_TRAINING_METHODS = frozenset({"compute_loss", "training_step"})


def base_value(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    """Return the value of a base class expression, or None while the bases of the class are being evaluated."""
    if cls in interp.pending_classes:
        return None
    interp.pending_classes.add(cls)
    trains = not (cls.used_names.isdisjoint(_TRAINING_CALLS) and cls.methods.keys().isdisjoint(_TRAINING_METHODS))
    # Whether a class is a module decides if its inputs are assumed to be low.
    outer, interp.loads_any_file = interp.loads_any_file, trains or bool(interp.assumed_dtype)
    value = _evaluate_base(interp, cls, base.value if isinstance(base, ast.Subscript) else base)
    interp.loads_any_file = outer
    interp.pending_classes.discard(cls)
    return value


def _evaluate_base(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return None
    root = root_name(base)
    globals_frame = globals_of(interp, cls.module)
    base_meant = interp.base_name_values.get((cls, root))
    if base_meant is not None:
        # The name may have another value now: another class, or an instance of this very class.
        globals_frame = Frame(None, globals_frame, None)
        globals_frame.vars[root] = base_meant
    # A class inside a function sees the names of that function.
    frame = interp.state.frame if base_meant is None and interp.state.frame.module is cls.module else globals_frame
    value = in_frame(interp, frame, lambda: look_up(interp, base.id)) if isinstance(base, ast.Name) else None
    if value is None:
        value = in_frame(interp, globals_frame, lambda: interp.evaluate(base))
    if base_meant is not None:
        # Keep a resolved import, so that the search runs once.
        interp.base_name_values[cls, root] = globals_frame.vars[root]
    return value


def role_of(interp: Interpreter, cls: Class) -> str | None:
    """Return the role that a class inherits from torch, or None."""
    for owner in lineage_of(interp, cls):
        for base in owner.bases:
            value = base_value(interp, owner, base)
            role = _role_of_base(torch_api.canonical_name(value.name)) if isinstance(value, ExternalName) else None
            if role is not None:
                return role
    return None


def _role_of_base(named: str) -> str | None:
    """Return the role of the subclasses of a torch class, or None."""
    is_module = named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper()
    if is_module:
        return torch_api.MODULE
    entry = torch_api.find_entry(named)
    # A subclass of SGD is an optimizer, and so is a subclass of Optimizer.
    made = entry.role if entry is not None and entry.role in (torch_api.OPTIMIZER, torch_api.SCALER) else None
    return torch_api.BASES.get(named, made)


def lineage_of(interp: Interpreter, cls: Class) -> list[Class]:
    """Return the project classes that a class derives from, the class itself first."""
    known = interp.lineage_by_class.get(cls)
    if known is not None:
        return known
    found: list[Class] = []
    todo = [cls]
    while todo and len(found) < 12:
        current = todo.pop(0)
        if current in found:
            continue
        found.append(current)
        for base in current.bases:
            value = base_value(interp, current, base)
            if isinstance(value, ClassValue):
                todo.append(value.cls)
    # A base may be unresolved during another lookup, or not yet bound in this file: cache only complete results.
    if (
        not interp.pending_names
        and not interp.pending_classes
        and (interp.is_fully_bound or cls.module is not interp.module)
    ):
        interp.lineage_by_class[cls] = found
    return found


def method_of(interp: Interpreter, cls: Class, name: str, *, above: bool = False) -> Function | None:
    """Return the method of a class with this name, or None. ``above`` skips the class itself, as ``super()`` does."""
    for owner in lineage_of(interp, cls)[above:]:
        found = owner.methods.get(name)
        if found is not None:
            return found
    return None


def inherited_methods(interp: Interpreter, cls: Class) -> list[Function]:
    """Return the methods that a class inherits and does not define."""
    methods: dict[str, Function] = {}
    for owner in lineage_of(interp, cls):
        for name, method in owner.methods.items():
            methods.setdefault(name, method)
    return [method for method in methods.values() if method.cls is not cls]


def find_only_implementation(interp: Interpreter, cls: Class) -> Class:
    """Return the only class of this file that derives from an abstract class, or the class itself."""
    if not any(method.is_abstract() for method in cls.methods.values()):
        return cls
    derived = [each for each in interp.module.classes.values() if cls in lineage_of(interp, each)[1:]]
    return derived[0] if len(derived) == 1 else cls


def uses_scaler(cls: Class) -> bool:
    """Return True if a class calls methods of a scaler that is an attribute of its instances."""
    return any(cls.module.role_by_text.get(f"self.{name}") == "scaler" for name in cls.assignments)


def is_enum(interp: Interpreter, cls: Class) -> bool:
    """Return True if a class is an enumeration, in which each name has a distinct value."""
    bases = [base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases]
    return any(isinstance(base, ExternalName) and base.name.startswith("enum.") for base in bases)
