"""Ten mistakes that can be inserted into correct training code, found by syntax alone.

The operators do not depend on the measured analyzer: words of the code show the location of a scaler or an autocast.
:mod:`strangers` inserts the mistakes into public repositories.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

#: Operator -> codes; at least one of the codes must be reported.
WANTED: dict[str, frozenset[str]] = {
    "autocast dropped": frozenset({"AMP110"}),
    "backward indented": frozenset({"AMP103"}),
    "direct step": frozenset({"AMP204", "AMP206"}),
    "loss division dropped": frozenset({"AMP301"}),
    "scaler's state dropped": frozenset({"AMP401", "AMP402"}),
    "scaling dropped": frozenset({"AMP203"}),
    "unscale_ dropped": frozenset({"AMP201", "AMP202", "AMP212"}),
    "unscale_ twice": frozenset({"AMP209", "AMP210"}),
    "update dropped": frozenset({"AMP206", "AMP207", "AMP209"}),
    "zero_grad dropped": frozenset({"AMP215"}),
}

_BLOCKS = ("body", "orelse", "finalbody")
_COMPOUND = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try)


class Place(NamedTuple):
    """A location where an operator changes a source: the text from ``start`` to ``end`` (line from 1, byte column)."""

    operator: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def places(source: str) -> list[Place]:
    """Return every location of a source where an operator applies. Raise SyntaxError for invalid source."""
    found = {(place.operator, place.start): place for place in _in_scope(ast.parse(source), None)}
    return sorted(found.values())


def mutated(source: str, place: Place) -> str:
    """Return the source with one mistake inserted. Columns count bytes, as in ``ast``."""
    lines = source.splitlines(keepends=True)
    (first, column), (last, end) = place.start, place.end
    before = lines[first - 1].encode()[:column].decode()
    after = lines[last - 1].encode()[end:].decode()
    return "".join([*lines[: first - 1], before, place.text, after, *lines[last:]])


def _in_scope(node: ast.AST, scope: _Scope | None) -> Iterator[Place]:
    for field in _BLOCKS:
        statements = getattr(node, field, None)
        if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
            for number, statement in enumerate(statements):
                yield from _of_statement(statement, statements[number - 1] if number else None, scope)
    for child in ast.iter_child_nodes(node):
        inner = _Scope(child) if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
        yield from _in_scope(child, inner)


class _Scope:
    """The calls of a function."""

    def __init__(self, function: ast.AST) -> None:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        self.methods = Counter(call.func.attr for call in calls if isinstance(call.func, ast.Attribute))
        self.of_scaler = Counter(
            call.func.attr for call in calls if isinstance(call.func, ast.Attribute) and _is_scaler(call.func.value)
        )
        self.clips = any(_last_name(call.func).startswith("clip_grad_") for call in calls)
        self.regions = sum(
            any(_is_autocast(item) for item in node.items) for node in ast.walk(function) if isinstance(node, ast.With)
        )


def _of_statement(statement: ast.stmt, before: ast.stmt | None, scope: _Scope | None) -> Iterator[Place]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from _of_call(statement, statement.value, before, scope)
    if isinstance(statement, ast.With) and scope is not None and scope.regions == 1 and scope.of_scaler["scale"]:
        yield from _of_region(statement)
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        yield from _of_division(statement)
    if not isinstance(statement, _COMPOUND):
        for node in ast.walk(statement):
            if isinstance(node, ast.Dict):
                yield from _of_state(node)


def _of_region(region: ast.With) -> Iterator[Place]:
    if len(region.items) == 1 and _is_autocast(region.items[0]):
        first = region.body[0]
        lines = "\n" * (first.lineno - region.lineno)
        text = "if True:" + (lines + " " * first.col_offset if lines else " ")
        start, end = (region.lineno, region.col_offset), (first.lineno, first.col_offset)
        yield Place("autocast dropped", start, end, text)


def _of_call(statement: ast.stmt, call: ast.Call, before: ast.stmt | None, scope: _Scope | None) -> Iterator[Place]:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    if func.attr == "backward":
        yield from _of_backward(statement, call, func.value, before)
    elif func.attr == "zero_grad":
        if scope is not None and scope.methods["zero_grad"] == 1 and scope.of_scaler["step"]:
            yield _instead(statement, "zero_grad dropped", "pass")
    elif not _is_scaler(func.value):
        return
    elif func.attr == "unscale_":
        if scope is not None and scope.clips:
            yield _instead(statement, "unscale_ dropped", "pass")
        yield _instead(statement, "unscale_ twice", f"{ast.unparse(statement)}; {ast.unparse(statement)}")
    elif func.attr == "update":
        if scope is not None and scope.of_scaler["update"] == 1 and scope.of_scaler["step"]:
            yield _instead(statement, "update dropped", "pass")
    elif func.attr == "step" and len(call.args) == 1:
        yield _instead(statement, "direct step", f"{ast.unparse(call.args[0])}.step()")


def _of_backward(statement: ast.stmt, call: ast.Call, scaled: ast.expr, before: ast.stmt | None) -> Iterator[Place]:
    if not (
        isinstance(scaled, ast.Call)
        and isinstance(scaled.func, ast.Attribute)
        and scaled.func.attr == "scale"
        and _is_scaler(scaled.func.value)
        and scaled.args
    ):
        return
    loss = scaled.args[0]
    given = ", ".join([*map(ast.unparse, call.args), *map(ast.unparse, call.keywords)])
    yield _instead(statement, "scaling dropped", f"({ast.unparse(loss)}).backward({given})")
    if isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Div) and "accum" in ast.unparse(loss.right).lower():
        whole = f"{ast.unparse(scaled.func.value)}.scale({ast.unparse(loss.left)}).backward()"
        yield _instead(statement, "loss division dropped", whole)
    if isinstance(before, ast.With) and any(map(_is_autocast, before.items)):
        indented = " " * (before.body[0].col_offset - statement.col_offset) + ast.unparse(statement)
        yield _instead(statement, "backward indented", indented)


def _of_division(statement: ast.Assign | ast.AugAssign) -> Iterator[Place]:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    value = statement.value
    if "loss" not in ast.unparse(target):
        return
    if isinstance(statement, ast.AugAssign):
        if isinstance(statement.op, ast.Div) and "accum" in ast.unparse(value).lower():
            yield _instead(statement, "loss division dropped", "pass")
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) and "accum" in ast.unparse(value.right).lower():
        yield _instead(statement, "loss division dropped", f"{ast.unparse(target)} = {ast.unparse(value.left)}")


def _of_state(node: ast.Dict) -> Iterator[Place]:
    """Find a dict with the states of a scaler and of an optimizer, as in checkpoints."""
    states = [text if (text := ast.unparse(value)).endswith("state_dict()") else "" for value in node.values]
    scalers = [number for number, text in enumerate(states) if "scaler" in text.lower()]
    if len(scalers) != 1 or node.keys[scalers[0]] is None or not any("optim" in text.lower() for text in states):
        return
    rest = [number for number in range(len(states)) if number != scalers[0]]
    made = ast.Dict(keys=[node.keys[n] for n in rest], values=[node.values[n] for n in rest])
    yield _instead(node, "scaler's state dropped", ast.unparse(made))


def _instead(node: ast.stmt | ast.expr, operator: str, text: str) -> Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Place(operator, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _is_scaler(node: ast.expr) -> bool:
    text = ast.unparse(node).split("(")[0].lower()
    return text.endswith("scaler") or "grad_scaler" in text


def _is_autocast(item: ast.withitem) -> bool:
    call = item.context_expr
    return isinstance(call, ast.Call) and _last_name(call.func) in ("autocast", "amp_autocast")
