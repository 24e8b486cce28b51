"""Locations of the calls of a training step in a syntax tree.

Scalers, optimizers, clips and regions are recognized by their names in the fixtures.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from pytest_amp_check.static.project.syntax import children, walk

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
#: Nodes that may contain statements.
BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)


class Spot(NamedTuple):
    """A statement in its block and its function or module."""

    scope: ast.AST
    block: list[ast.stmt]
    at: int

    @property
    def statement(self) -> ast.stmt:
        return self.block[self.at]


def inside(*nodes: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below some nodes in source order, without the contents of functions defined there."""
    work = list(reversed(nodes))
    while work:
        node = work.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            work += reversed(children(node))


def spots(tree: ast.Module) -> Iterator[Spot]:
    """Yield all statements of functions and of the module."""

    def below(scope: ast.AST, node: ast.AST) -> Iterator[Spot]:
        for _, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else []:
                if isinstance(part, BLOCKS):
                    yield from below(part if isinstance(part, FUNCTIONS) else scope, part)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from (Spot(scope, value, index) for index in range(len(value)))

    return below(tree, tree)


def body_of(scope: ast.AST) -> list[ast.stmt]:
    body = getattr(scope, "body", [])
    return body if isinstance(body, list) else []


def after(spot: Spot) -> Iterator[ast.stmt]:
    """Yield the statements after a statement in the same iteration: in its block, then after the enclosing ``if``."""
    yield from spot.block[spot.at + 1 :]
    for outer in spots_of(spot.scope):
        statement = outer.statement
        if isinstance(statement, (ast.If, ast.With, ast.Try)) and any(
            block is spot.block for _, block in ast.iter_fields(statement)
        ):
            if isinstance(statement, ast.Try) and spot.block is statement.body:
                yield from statement.finalbody
            yield from after(outer)


def spots_of(scope: ast.AST) -> Iterator[Spot]:
    """Yield the statements of one function or of the module."""

    def below(block: list[ast.stmt]) -> Iterator[Spot]:
        for index, statement in enumerate(block):
            yield Spot(scope, block, index)
            if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                for _, value in ast.iter_fields(statement):
                    if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                        yield from below(value)
                for handler in getattr(statement, "handlers", []):
                    yield from below(handler.body)

    return below(body_of(scope))


def last(node: ast.AST) -> str:
    """Return the last name of a dotted expression, or an empty string."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_scaler(node: ast.AST) -> bool:
    return "scaler" in last(node).lower()


def is_optimizer(node: ast.AST) -> bool:
    return last(node).lower().lstrip("_").startswith("opt") or last(node).lower().endswith(("optimizer", "_opt"))


def called(node: ast.AST, *methods: str) -> bool:
    """Return True if a node is a call of one of the methods."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods


def scaler_call(node: ast.AST, *methods: str) -> bool:
    return called(node, *methods) and is_scaler(node.func.value)  # type: ignore[attr-defined]


def of_scaler(statement: ast.stmt, *methods: str) -> ast.Call | None:
    """Return the call if a statement is a call of a scaler's method, else None."""
    if isinstance(statement, ast.Expr) and scaler_call(statement.value, *methods):
        assert isinstance(statement.value, ast.Call)
        return statement.value
    return None


def target_of(call: ast.Call) -> str:
    """Return the source text of the first argument of a scaler's method."""
    return ast.unparse(call.args[0]) if call.args else ast.unparse(call.keywords[0].value)


def steps_of(*nodes: ast.AST) -> list[ast.Call]:
    return [node for node in inside(*nodes) if isinstance(node, ast.Call) and scaler_call(node, "step")]


def clips_in(statement: ast.AST) -> list[ast.Call]:
    return [node for node in inside(statement) if isinstance(node, ast.Call) and last(node.func) in CLIPS]


def backward_of(statement: ast.AST) -> ast.Call | None:
    """Return the call if a statement calls a loss's backward, else None."""
    if isinstance(statement, ast.Expr) and called(statement.value, "backward"):
        assert isinstance(statement.value, ast.Call)
        # The receiver of a backward with a loss argument is a wrapper, not a loss.
        return None if statement.value.args else statement.value
    return None


def measures(clip: ast.Call) -> bool:
    """Return True if a clip has an infinite limit, so that it only measures the norm."""
    return "inf" in ast.unparse(clip).replace("isinf", "")


def roots(node: ast.AST) -> set[str]:
    """Return the models whose parameters an expression uses."""
    return {last(call.func.value) for call in walk(node) if called(call, "parameters", "named_parameters")}  # type: ignore[attr-defined]


def models_of(tree: ast.Module, optimizer: str) -> set[str]:
    """Return the models that an optimizer was constructed for."""
    name = optimizer.rpartition(".")[2]
    found: set[str] = set()
    for node in walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last(node.targets[0]) == name:
            found |= roots(node.value)
    return found


def regions(tree: ast.Module) -> set[str]:
    """Return the names that hold or create an autocast context manager."""
    found = {"autocast"}
    for node in walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(part, ast.Call) and last(part.func) == "autocast" for part in walk(node.value)
        ):
            found.add(last(node.targets[0]))
    return found - {""}


def autocast_of(statement: ast.stmt, names: set[str]) -> ast.expr | None:
    """Return the context expression of a ``with`` that only enters an enabled region, else None."""
    if not isinstance(statement, ast.With) or len(statement.items) != 1:
        return None
    context = statement.items[0].context_expr
    text = ast.unparse(context)
    entered = last(context.func) if isinstance(context, ast.Call) else last(context)
    return context if entered in names and "enabled=False" not in text and "float32" not in text else None


def loops_in(scope: ast.AST) -> Iterator[ast.For | ast.While]:
    return (node for node in inside(*body_of(scope)) if isinstance(node, (ast.For, ast.While)))
