"""Members of enumerations that other files of the project define: two members of one class are compared by value."""

from __future__ import annotations

import ast

from ..project.module import Class
from ..project.syntax import tail_name
from .interpreter import Interpreter
from .values.definitions import ExternalName
from .values.value import Value

_BASES = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})


def compare_members(interp: Interpreter, left: Value, right: Value) -> bool | None:
    """Return the truth of ``left == right`` for two members of one enumeration, or None for other values."""
    if not (isinstance(left, ExternalName) and isinstance(right, ExternalName)):
        return None
    (owner, _, name), (other_owner, _, other_name) = left.name.rpartition("."), right.name.rpartition(".")
    if owner != other_owner or not (left.is_of_project and right.is_of_project):
        return None
    cls = _find_enumeration(interp, owner)
    if cls is None:
        return None
    members = _values_of_members(cls)
    if name not in members or other_name not in members:
        return None
    return name == other_name or members[name] == members[other_name] != ""


def _find_enumeration(interp: Interpreter, dotted: str) -> Class | None:
    """Return the class of the project with a dotted name if the class is an enumeration, or None."""
    bare = dotted.lstrip(".")
    home, _, name = bare.rpartition(".")
    path = interp.project.find_import(home, interp.state.frame.module.path, len(dotted) - len(bare)) if home else None
    module = interp.project.module_at(path) if path is not None and path.endswith(".py") else None
    classes = module.classes.values() if module is not None else ()
    cls = next((each for each in classes if each.name == name), None)
    return cls if cls is not None and any(tail_name(base) in _BASES for base in cls.bases) else None


def _values_of_members(cls: Class) -> dict[str, str]:
    """Return the source of the value of each member, "" for a value of its own: ``auto()``."""
    members: dict[str, str] = {}
    for statement in cls.node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Name) and isinstance(value, (ast.Constant, ast.Call)):
                members[target.id] = ast.dump(value) if isinstance(value, ast.Constant) else ""
    return members
