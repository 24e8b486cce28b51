"""Search in a file for code that clears gradients between two calls of a training function."""

from __future__ import annotations

import ast
from bisect import bisect_left

from .interpreter.interpreter import Interpreter
from .project.module import Class, Function, Module
from .project.syntax import children, tail_name, walk


class _ClearingFunctions:
    """Functions of a file that may clear gradients; None before the search."""

    def __init__(self) -> None:
        self.functions: list[Function] | None = None
        #: Names in the file that refer to clearing.
        self.clearing_names: set[str] = set()


def may_be_cleared_around(interp: Interpreter, function: Function) -> bool:
    """Return True if code of this file may clear the gradients of a function before the next call of the function.

    Methods of an unrelated class clear only gradients of their own objects. A method that overrides another method runs
    instead of the other method.
    """
    module = interp.module
    known = interp.file_data(_ClearingFunctions)
    if known.functions is None:
        known.clearing_names = set(filter(_is_clearing, module.identifiers))
        known.functions = _find_clearing_functions(module, known.clearing_names) if known.clearing_names else []
    if not known.clearing_names:
        return False
    loose = not known.clearing_names.isdisjoint(module.used_names) or not known.functions
    return loose or any(_may_run_around(module, each, function) for each in known.functions)


def _find_clearing_functions(module: Module, clearing_names: set[str]) -> list[Function]:
    """Return the functions that clear gradients or contain such a function, found in one walk at any depth.

    The walk visits only nodes on lines with one of the names.
    """
    lines = _lines_with(module, clearing_names)
    parents: dict[ast.AST, ast.AST | None] = {}
    found: set[ast.AST | None] = {None}
    stack: list[tuple[ast.AST, ast.AST | None]] = [(module.tree, None)]
    while stack:
        node, inside = stack.pop()
        if node in module.functions:
            parents[node] = inside
            inside = node
        elif tail_name(node) in clearing_names:
            above = inside
            while above not in found:
                found.add(above)
                above = parents[above] if above is not None else None
        stack.extend([(child, inside) for child in children(node) if _is_on_lines(child, lines)])
    return [function for node, function in module.functions.items() if node in found]


def _lines_with(module: Module, words: set[str]) -> list[int]:
    """Return the line numbers that may contain one of the names, in order."""
    lines = module.text.split("\n")
    if not module.is_ascii:
        # Python normalizes identifiers (NFKC), so a name may have other characters in the text.
        return list(range(1, len(lines) + 1))
    return [number for number, line in enumerate(lines, 1) if any(word in line for word in words)]


def _is_on_lines(node: ast.AST, lines: list[int]) -> bool:
    """Return True if a node, with its decorators, covers one of the lines, or has no position."""
    first = getattr(node, "lineno", None)
    if first is None:
        return True
    decorators = getattr(node, "decorator_list", None)
    index = bisect_left(lines, decorators[0].lineno if decorators else first)
    return index < len(lines) and lines[index] <= node.end_lineno  # type: ignore[attr-defined]


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
    return any(tail_name(node) == "super" for node in walk(method.node))


def _clears_own_attribute(method: Function) -> bool:
    """Return True if a method clears only objects in attributes of its own instance."""
    receivers = method.parameters()[:1]
    cleared = [node for node in walk(method.node) if _is_clearing(tail_name(node))]
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
