"""Search in a file for code that clears gradients between two calls of a training function."""

from __future__ import annotations

import ast
from bisect import bisect_left

from ..protocol.fast_namedtuple import NamedTuple
from .interpreter.interpreter import Interpreter
from .project.module import Class, Function, Module
from .project.syntax import tail_name


class _ClearingCode(NamedTuple):
    """The names in a file that refer to clearing, and the functions that may clear gradients."""

    names: set[str]
    functions: list[Function]


class _ClearingByFile(dict[Module, _ClearingCode]):
    """Clearing code by file."""


def may_be_cleared_around(interp: Interpreter, function: Function) -> bool:
    """Return True if code may clear the gradients of a function before the next call of the function.

    The code of the analyzed file counts, and that of the file with the function. Methods of an unrelated class clear
    only gradients of their own objects. A method that overrides another method runs instead of the other method.
    """
    return any(_may_clear_around(interp, module, function) for module in {interp.module, function.module})


def _may_clear_around(interp: Interpreter, module: Module, function: Function) -> bool:
    known = interp.file_data(_ClearingByFile)
    if module not in known:
        names = set(filter(_is_clearing, module.identifiers))
        known[module] = _ClearingCode(names, _find_clearing_functions(module, names) if names else [])
    names, functions = known[module]
    if not names:
        return False
    loose = not names.isdisjoint(module.used_names) or not functions
    return loose or any(_may_run_around(module, each, function) for each in functions)


def _find_clearing_functions(module: Module, clearing_names: set[str]) -> list[Function]:
    """Return the functions that clear gradients or contain such a function."""
    functions = module.functions.values()
    starts = sorted(_position(each) for each in functions if not clearing_names.isdisjoint(each.used_names))
    return [each for each in functions if _starts_inside(each, starts)]


def _position(function: Function) -> tuple[int, int]:
    return function.node.lineno, function.node.col_offset


def _starts_inside(function: Function, starts: list[tuple[int, int]]) -> bool:
    """Return True if a function has one of the sorted positions, or contains one."""
    index = bisect_left(starts, _position(function))
    last = (function.node.end_lineno or 0, function.node.end_col_offset or 0)
    return index < len(starts) and starts[index] < last


def _is_clearing(name: str) -> bool:
    return "grad" in name and ("zero" in name or "clear" in name)


def _may_run_around(module: Module, clearing: Function, function: Function) -> bool:
    one, other = clearing.cls, function.cls
    if one is None or other is None or one is other or not _clears_own_attribute(clearing):
        return True
    if clearing.name == function.name:
        return any(_calls_super(each) for each in (clearing, function))
    lines = [_lineage_names(module, cls) for cls in (one, other, *module.classes.values())]
    return any({one.name, other.name} <= line for line in lines)


def _calls_super(method: Function) -> bool:
    return any(tail_name(node) == "super" for node in method.nodes)


def _clears_own_attribute(method: Function) -> bool:
    """Return True if a method clears only objects in attributes of its own instance."""
    receivers = method.parameters()[:1]
    cleared = [node for node in method.nodes if _is_clearing(tail_name(node))]
    return all(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and any(node.value.value.id == receiver.arg for receiver in receivers)
        for node in cleared
    )


def _lineage_names(module: Module, cls: Class) -> set[str]:
    """Return the names of a class and of all base classes, as far as this file shows the bases."""
    known = {each.name: each for each in module.classes.values()}
    found: set[str] = set()
    open_classes = [cls]
    while open_classes:
        one = open_classes.pop()
        if one.name not in found:
            found.add(one.name)
            names = {tail_name(base) for base in one.bases}
            found |= names - known.keys()
            open_classes += [known[name] for name in names & known.keys()]
    return found
