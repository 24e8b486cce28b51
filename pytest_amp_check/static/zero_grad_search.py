"""Whether other code of a file clears the gradients that a function leaves, which somebody calls again and again."""

from __future__ import annotations

import ast
from bisect import bisect_left

from .interpreter.interpreter import Interpreter
from .project.module import Class, Function, Module
from .project.syntax import children, tail_name, walk


class _ClearingFunctions:
    """The functions of a file that speak of clearing gradients, once they have been looked for."""

    def __init__(self) -> None:
        self.functions: list[Function] | None = None
        #: The names by which the file speaks of it.
        self.clearing_names: set[str] = set()


def may_be_cleared_around(interp: Interpreter, function: Function) -> bool:
    """Whether what a function has stepped may be cleared before it is called again, by code of this file.

    Methods of a class that has nothing to do with the function's clear what their own objects hold, and a method that
    overrides another one runs in its place.
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
    """The functions that clear gradients, or hold one that does: found in one walk, however deep they lie.

    Only what has one of the words on its lines is walked through.
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
    """The lines that may have one of some names on them, in order."""
    lines = module.text.split("\n")
    if not module.is_ascii:
        # A name may be written in other characters than it has.
        return list(range(1, len(lines) + 1))
    return [number for number, line in enumerate(lines, 1) if any(word in line for word in words)]


def _is_on_lines(node: ast.AST, lines: list[int]) -> bool:
    """Whether a node stands on one of some lines, with its decorators; what has no place of its own may."""
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
    """Whether all that a method clears is what an attribute of its own object holds."""
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
    """The names of a class and of those that it derives from, as far as this file shows them."""
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
