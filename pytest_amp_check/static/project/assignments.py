"""Assignments: targets with their values, and the names, attributes and items that statements assign."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol.fast_namedtuple import NamedTuple
from .syntax import children


def counts_up(name: str, value: ast.expr) -> bool:
    """Return True for a sum with the attribute itself, or the remainder of such a sum: ``(self.n + 1) % k``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        value = value.left
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and any(isinstance(side, ast.Attribute) and side.attr == name for side in (value.left, value.right))
    )


def sets_unknown_attribute(node: ast.AST, me: str) -> bool:
    """Return True if a call sets attributes of an object by unknown names."""
    match node:
        case ast.Call(ast.Name("setattr"), [ast.Name(id=given), name, _]):
            return given == me and is_unknown_name(name)
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name(id=given), "__dict__"), "update")):
            return given == me
        case ast.Call(ast.Attribute(ast.Call(ast.Name("vars"), [ast.Name(id=given)]), "update")):
            return given == me
    return False


def is_unknown_name(name: ast.expr) -> bool:
    """Return True if an attribute name is unknown: no text, and no text as a part."""
    return isinstance(name, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))


def assigned_pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with the assigned value; tuples are split.

    The targets before a star get the items of a value that is no tuple.
    """
    targets: list[ast.expr]
    match node:
        case ast.Assign(targets=targets, value=value):
            pass
        case ast.AnnAssign(target=declared, value=ast.expr() as value):
            targets = [declared]
        case _:
            return
    for target in targets:
        match target, value:
            case ast.Tuple(elts=lefts), ast.Tuple(elts=rights) if len(lefts) == len(rights):
                yield from zip(lefts, rights, strict=True)
            case ast.Tuple(elts=lefts), ast.Call():
                for number, left in enumerate(lefts):
                    if isinstance(left, ast.Starred):
                        break
                    item = ast.Subscript(value, ast.Constant(number), ast.Load())
                    yield left, ast.fix_missing_locations(ast.copy_location(item, value))
            case _:
                yield target, value


class StoredNames(NamedTuple):
    """Names and attributes that statements assign.

    ``grown`` are the names of lists that get further items. ``items`` are the names and keys of the assignments
    ``name["text"] = value``, ``name[0] = value`` and ``name.update(text=value)``.
    """

    names: frozenset[str]
    attributes: frozenset[str]
    grown: frozenset[str]
    items: frozenset[tuple[str, str | int]]


stored_names_cache: dict[int, tuple[list[ast.stmt], StoredNames]] = {}
#: Methods that add items to a list.
_GROWING_METHODS = frozenset(("append", "extend", "insert"))


def item_name(key: str) -> str:
    """Return the heap name of an item, which no attribute can have."""
    return f"[{key!r}]"


def stored_names(nodes: list[ast.stmt]) -> StoredNames:
    """Return the names and attribute names that statements assign, without the bodies of nested functions."""
    known = stored_names_cache.get(id(nodes))
    if known is not None and known[0] is nodes:
        return known[1]
    found = _find_stored_names(nodes)
    if len(stored_names_cache) > 512:
        stored_names_cache.clear()
    stored_names_cache[id(nodes)] = nodes, found
    return found


def _find_stored_names(nodes: list[ast.stmt]) -> StoredNames:
    names: set[str] = set()
    attributes: set[str] = set()
    grown: set[str] = set()
    items: set[tuple[str, str | int]] = set()
    stack: list[ast.AST] = list(nodes)
    while stack:
        match stack.pop():
            case ast.Name(id=name, ctx=context):
                if not isinstance(context, ast.Load):
                    names.add(name)
            case ast.Attribute(attr=name, value=value, ctx=context):
                if isinstance(context, ast.Store):
                    attributes.add(name)
                elif name in _GROWING_METHODS and isinstance(value, ast.Name):
                    grown.add(value.id)
                stack.append(value)
            case ast.Subscript(slice=ast.Constant(value=str(key)), value=value, ctx=ast.Store()):
                attributes.add(item_name(key))
                if isinstance(value, ast.Name):
                    items.add((value.id, key))
                stack.append(value)
            case ast.Subscript(slice=ast.Constant(value=int(index)), value=ast.Name(id=name), ctx=ast.Store()):
                items.add((name, index))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="update"), args=args, keywords=[_, *_] as keywords
            ):
                items.update((name, keyword.arg) for keyword in keywords if keyword.arg is not None)
                stack += [*args, *keywords]
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                names.add(name)
                grown.add(name)
                stack.append(value)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Lambda():
                pass
            case node:
                stack.extend(children(node))
    return StoredNames(frozenset(names), frozenset(attributes), frozenset(grown), frozenset(items))
