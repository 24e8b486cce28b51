"""The source code at a location: the text of a call as the user wrote it, and the statements around the call."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

import torch

from ...protocol.checks import ASKING, find_finite_call, raises_on_nonfinite
from ...protocol.sites import Site
from ...protocol.source_text import SourceText, access_text
from .sites import innermost_user_site

#: Largest number of assignments through which a variable is followed.
FOLLOWED = 4


#: Methods of optimizers, and of a framework's wrappers of optimizers.
_OF_OPTIMIZERS = frozenset({"step", "zero_grad"})
#: A value of a loss scale: a name or attribute, but neither the method that scales a loss nor the initial scale.
_SCALE_VALUE = re.compile(r"(?<!init)_scale\b|\bscale\b(?!\s*\()")


class Role(Enum):
    """A part of the call at a location."""

    #: The called function, or the whole ``+=``.
    CALL = auto()
    #: The object of the method, or the target of ``+=``.
    RECEIVER = auto()
    #: The object whose ``step`` or ``zero_grad`` is called.
    OPTIMIZER = auto()
    #: The first or second argument, or the argument with a given name.
    ARGUMENT = auto()
    SECOND_ARGUMENT = auto()
    #: The module whose ``parameters()`` are the first argument.
    MODULE = auto()
    #: The object that scales the loss of a backward, and the loss.
    INNER_RECEIVER = auto()
    INNER_ARGUMENT = auto()


#: Roles of arguments by position.
_NUMBERS = {Role.ARGUMENT: 0, Role.SECOND_ARGUMENT: 1, Role.MODULE: 0}
#: The parts of a call such as ``scaler.scale(loss)`` whose result runs backward.
_INNER = {Role.INNER_RECEIVER: Role.RECEIVER, Role.INNER_ARGUMENT: Role.ARGUMENT}


class SiteText:
    """The source text of a part of the call at a location. The source is only read on demand.

    ``keyword`` is the name of an argument.
    """

    __slots__ = ("keyword", "role", "site")

    def __init__(self, site: Site, role: Role = Role.CALL, keyword: str = "") -> None:
        self.site = site
        self.role = role
        self.keyword = keyword

    def __str__(self) -> str:
        call = _parse_site(self.site)
        if isinstance(call, ast.AugAssign):
            return str(SourceText(call.target if self.role is Role.RECEIVER else call))
        if not isinstance(call, ast.Call):
            return ""
        if self.role in _INNER:
            # CPython 3.11 and later locate a method call at the line of the method's name, without the lines above.
            is_cut = linecache.getline(self.site.path, self.site.line)[: self.site.column].rstrip().endswith(".")
            inner = None if is_cut else _backward_root(call)
            if not isinstance(inner, ast.Call) or not _scales_loss(inner):
                return str(SourceText(inner)) if inner is not None and self.role is Role.INNER_ARGUMENT else ""
            return _text_of_role(inner, _INNER[self.role], self.keyword)
        return _text_of_role(call, self.role, self.keyword)


def _scales_loss(call: ast.Call) -> bool:
    """Return True if a call scales a loss, by the name of its method. Other calls compute the loss."""
    return isinstance(call.func, ast.Attribute) and "scale" in call.func.attr


def text_of_optimizer(site: Site, role: Role, keyword: str = "") -> SiteText:
    """Return the text of the optimizer at the location where it is used.

    The names in a library's code are unknown to the user, who may have called the same method of the library.
    """
    own_site = innermost_user_site(site)
    return SiteText(site, role, keyword) if own_site is site else SiteText(own_site, Role.OPTIMIZER)


def _backward_root(call: ast.Call) -> ast.expr | None:
    """Return the root expression of a backward call.

    The root is the receiver of the method, or the argument of ``torch.autograd.backward``. Return None if there is
    none.
    """
    if isinstance(call.func, ast.Attribute) and access_text(call.func.value).rpartition(".")[2] != "autograd":
        return call.func.value
    argument = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "tensors"), None)
    return argument.elts[0] if isinstance(argument, (ast.List, ast.Tuple)) and len(argument.elts) == 1 else argument


def _text_of_role(call: ast.Call, role: Role, keyword: str) -> str:
    """Return the text of a part of a call, or "" if the call has no such part."""
    if role is Role.CALL:
        return str(SourceText(call.func))
    if role not in _NUMBERS:
        method = call.func if isinstance(call.func, ast.Attribute) else None
        if method is None or (role is Role.OPTIMIZER and method.attr not in _OF_OPTIMIZERS):
            return ""
        return str(SourceText(method.value))
    number = _NUMBERS[role]
    named = next((k.value for k in call.keywords if k.arg == keyword), None)
    value = call.args[number] if len(call.args) > number else named
    if role is Role.MODULE:
        func = value.func if isinstance(value, ast.Call) else None
        value = func.value if isinstance(func, ast.Attribute) and func.attr == "parameters" else None
    return "" if value is None else str(SourceText(value))


def _parse_site(site: Site) -> ast.AST | None:
    """Return the syntax node at a location, or None if the source is not available or cannot be parsed."""
    lines = linecache.getlines(site.path)[site.line - 1 : site.end_line]
    if not lines:
        return None
    if (site.line, site.column) == (site.end_line, site.end_column):
        # Before Python 3.11 often only the line is known, so the whole line may be the call, or begin a block.
        text = lines[0].strip()
        return _parse_code(text) or _parse_code(f"{text}\n    pass")
    lines[-1] = lines[-1][: site.end_column]
    lines[0] = lines[0][site.column :]
    text = "".join(lines).strip()
    return _parse_code(text)


def _parse_code(text: str) -> ast.AST | None:
    """Return the syntax node of an expression, of the value of an assignment or of another statement, or None."""
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.parse(f"({text})", mode="eval").body
    with contextlib.suppress(SyntaxError, ValueError):
        statements = ast.parse(text).body
        if len(statements) == 1:
            return statements[0].value if isinstance(statements[0], (ast.Expr, ast.Assign)) else statements[0]
    return None


def assigned_name(site: Site) -> str:
    """Return the text of the single target to which the statement at a location assigns, or ""."""
    statements = (node for node in ast.walk(_parse_module(site.path)) if isinstance(node, ast.Assign))
    found = [node for node in statements if _covers(node, site.line)]
    return str(SourceText(found[-1].targets[0])) if found and len(found[-1].targets) == 1 else ""


def loop_around(site: Site) -> str:
    """Return the head of the innermost loop around a location, or around the calls that lead to it, or ""."""
    for frame in reversed(site.list_frames()):
        loops = [node for node in _enclosing_statements(frame) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
        if loops:
            return _head_of_loop(loops[-1])
    return ""


def _head_of_loop(loop: ast.For | ast.AsyncFor | ast.While) -> str:
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    targets = ast.unparse(loop.target)
    if isinstance(loop.target, ast.Tuple):
        targets = targets[1:-1]
    return f"{'async ' if isinstance(loop, ast.AsyncFor) else ''}for {targets} in {ast.unparse(loop.iter)}"


def has_constant_argument(site: Site, keyword: str) -> bool:
    """Return True if the call at a location passes no argument of this name, or a constant."""
    call = _parse_site(site)
    value = next((k.value for k in call.keywords if k.arg == keyword), None) if isinstance(call, ast.Call) else None
    return value is None or not any(isinstance(node, (ast.Name, ast.Call)) for node in ast.walk(value))


class ContextText:
    """The source text of the context in a ``with`` statement, or of a decorator."""

    def __init__(self, site: Site, *, is_decorator: bool) -> None:
        self.site = site
        self.is_decorator = is_decorator

    def __str__(self) -> str:
        line = linecache.getline(self.site.path, self.site.line)
        text = line.strip().removeprefix("@") if self.is_decorator else self._with_item_text()
        return text.partition("(")[0].strip()

    def _with_item_text(self) -> str:
        """Return the text of the context in a ``with`` statement.

        Some Python versions give the span of the whole statement.
        """
        entered = _parse_site(self.site)
        if isinstance(entered, ast.With):
            return ast.unparse(entered.items[0].context_expr) if len(entered.items) == 1 else ""
        return text_at(self.site)


def text_at(site: Site) -> str:
    """Return the source text at a location within one line, or "" for several lines."""
    line = linecache.getline(site.path, site.line)
    return line[site.column : site.end_column] if site.line == site.end_line else ""


class AngleSource(NamedTuple):
    """The expression that made angles low: its location, its text, and ``how``: "cast" or "angles" (a product)."""

    site: Site
    text: str
    how: str


def find_angle_source(site: Site, local_values: Mapping[str, object]) -> AngleSource | None:
    """Return the expression that rounded the operand of a call, or None.

    Variables are followed to their latest assignments in the same function. Of several expressions, the cast of an
    integer variable comes first, then the first in the source. ``local_values`` are the variables of the function.
    """
    call = _parse_site(site)
    if not isinstance(call, ast.Call):
        return None
    body = _enclosing_function(site) or _parse_module(site.path)
    pending: list[ast.expr] = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
    line = site.line
    rounding: list[ast.expr] = []
    for _ in range(FOLLOWED):
        names = {node.id for expression in pending for node in ast.walk(expression) if isinstance(node, ast.Name)}
        latest = {name: value for name in names if (value := _latest_value(body, name, line)) is not None}
        if not latest:
            break
        pending = list(latest.values())
        rounding += [
            node for value in pending for node in ast.walk(value) if isinstance(node, ast.expr) and _how_rounded(node)
        ]
        line = min(value.lineno for value in pending)
    if not rounding:
        return None
    integers = {name for name, value in local_values.items() if _is_integer_tensor(value)}
    first = min(rounding, key=lambda node: (not _casts_one_of(node, integers), node.lineno, node.col_offset))
    # Columns of the syntax tree count bytes.
    column = first.col_offset if linecache.getline(site.path, first.lineno).isascii() else 0
    at = Site(site.path, first.lineno, column, function=site.function, caller=site.caller)
    return AngleSource(at, str(SourceText(first)), _how_rounded(first))


def _latest_value(body: ast.AST, name: str, line: int) -> ast.expr | None:
    """Return the value of the latest assignment of a variable before a line, or None."""
    values = [
        node.value
        for node in ast.walk(body)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return max(values, key=lambda value: value.lineno, default=None)


def _casts_one_of(node: ast.expr, names: set[str]) -> bool:
    """Return True if an expression is a method call on one of some variables."""
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in names


def _is_integer_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _how_rounded(node: ast.AST) -> str:
    """Return "cast" for a conversion of a tensor, "angles" for a matrix product, else ""."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return "angles"
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            if name in ("to", "half", "bfloat16", "type", "type_as"):
                return "cast"
            if name in ("matmul", "mm", "bmm", "einsum", "outer"):
                return "angles"
    return ""


def is_in_try(site: Site) -> bool:
    """Return True if the call at a location is in the body of a ``try`` with error handlers."""
    return any(isinstance(node, ast.Try) and node.handlers for node in _enclosing_statements(site))


def is_expected_to_raise(site: Site) -> bool:
    """Return True if a test expects the call at a location to raise."""
    return any(
        isinstance(item.context_expr, ast.Call)
        and access_text(item.context_expr.func).rpartition(".")[2] in ("raises", "assertRaises", "assertRaisesRegex")
        for node in _enclosing_statements(site)
        if isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items
    )


def is_conditional(site: Site) -> bool:
    """Return True if the call at a location depends on a condition that may check for finite gradients.

    A condition on a remainder, such as the end of an accumulation window, checks nothing else.
    """
    return any(isinstance(node, ast.If) and not _compares_remainder(node.test) for node in _enclosing_statements(site))


def enclosing_conditions(site: Site) -> frozenset[tuple[str, int, bool]]:
    """Return the conditions, cases and error handlers around a location, in all calls that lead to the location.

    Each entry is (file, line, True for the else branch). Two kinds of conditions are ignored: conditions on a
    remainder, which mark the end of a window, and conditions on a setting that the file assigns only once, which never
    change.
    """
    conditions = set()
    for frame in site.list_frames():
        for node in _enclosing_statements(frame):
            if isinstance(node, ast.ExceptHandler):
                conditions.add((frame.path, node.lineno, False))
                continue
            branch = _find_branch(node, frame.line)
            if branch is not None and not (branch.ends_window or _is_constant_condition(branch.tested, frame.path)):
                conditions.add((frame.path, branch.line, branch.is_else))
    return frozenset(conditions)


class _Branch(NamedTuple):
    """A branch of an ``if`` or ``match`` statement: the tested expression, and the line of the condition.

    ``ends_window``: the condition only tests a remainder, as at the end of an accumulation window.
    """

    tested: ast.expr
    line: int
    is_else: bool
    ends_window: bool


def _find_branch(node: ast.AST, line: int) -> _Branch | None:
    """Return the branch of a statement that contains a line, or None for other statements."""
    if isinstance(node, ast.If):
        return _Branch(node.test, node.lineno, line > _last_line(node.body[-1]), _compares_remainder(node.test))
    if isinstance(node, ast.Match):
        case = next(case for case in node.cases if any(_covers(statement, line) for statement in case.body))
        return _Branch(node.subject, case.pattern.lineno, False, _has_remainder(node.subject))
    return None


def is_chosen(site: Site, backward: Site) -> bool:
    """Return True if a step has a condition that its backward does not have, other than a count of micro-batches."""
    backward_conditions = enclosing_conditions(backward)
    return any(
        (frame.path, branch.line, branch.is_else) not in backward_conditions
        for frame in site.list_frames()
        for node in _enclosing_statements(frame)
        if (branch := _find_branch(node, frame.line)) is not None
        and not _is_constant_condition(branch.tested, frame.path)
        and not _is_of_count(branch.tested, frame.path)
    )


def _is_of_count(condition: ast.expr, path: str) -> bool:
    """Return True if a condition tests a remainder, or a name that the file increments or assigns from a remainder."""
    counted = set(_counted_names(_parse_module(path)))
    names = (part for part in ast.walk(condition) if isinstance(part, (ast.Name, ast.Attribute)))
    return _has_remainder(condition) or any(ast.unparse(part) in counted for part in names)


def _counted_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and _has_remainder(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield ast.unparse(target)


def _has_remainder(node: ast.AST | None) -> bool:
    parts = ast.walk(node) if node is not None else ()
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in parts)


def _is_constant_condition(condition: ast.expr, path: str) -> bool:
    """Return True if a condition never changes: a constant, or a name that is assigned only once, to a constant."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _is_constant_condition(condition.operand, path)
    if not isinstance(condition, ast.Name):
        return isinstance(condition, ast.Constant)
    module = _parse_module(path)
    occurrences = [node for node in ast.walk(module) if isinstance(node, ast.Name) and node.id == condition.id]
    assignments = [
        node
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and [target.id for target in node.targets if isinstance(target, ast.Name)] == [condition.id]
    ]
    parameter_names = {part.arg for part in ast.walk(module) if isinstance(part, ast.arg)}
    return (
        len(assignments) == 1
        and sum(isinstance(node.ctx, ast.Store) for node in occurrences) == 1
        and condition.id not in parameter_names
    )


class WindowPredicate(NamedTuple):
    """The condition at the end of an accumulation window: location and source text."""

    site: Site
    text: str


def find_window_predicate(site: Site) -> WindowPredicate | None:
    """Return the comparison with a remainder on which a location depends, directly or by an earlier ``continue``.

    None if there is none.
    """
    for frame in reversed(site.list_frames()):
        statements = list(_enclosing_statements(frame))
        for node in reversed(statements):
            if isinstance(node, ast.If) and _compares_remainder(node.test):
                return _make_window_predicate(frame, node.test)
        for node in statements:
            for each in node.body if isinstance(node, (ast.For, ast.While)) else ():
                if (
                    isinstance(each, ast.If)
                    and isinstance(each.body[-1], ast.Continue)
                    and each.lineno < frame.line
                    and _compares_remainder(each.test)
                ):
                    return _make_window_predicate(frame, each.test)
    return None


def _make_window_predicate(frame: Site, condition: ast.expr) -> WindowPredicate:
    site = _site_of_expression(frame, condition)
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], ast.NotEq):
        condition = ast.Compare(condition.left, [ast.Eq()], condition.comparators)
    return WindowPredicate(site, str(SourceText(condition)))


def _site_of_expression(frame: Site, node: ast.expr) -> Site:
    """Return the location of an expression in the code around a location."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    # Columns of the syntax tree count bytes.
    column, end_column = (
        len(linecache.getline(frame.path, line).encode()[:length].decode())
        for line, length in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
    )
    return Site(frame.path, node.lineno, column, node.end_lineno, end_column, frame.function, frame.caller, frame.cell)


def has_calling_condition(site: Site) -> bool:
    """Return True if the call at a location depends on a condition with a call, which may check gradients."""
    conditions = [node.test for node in _enclosing_statements(site) if isinstance(node, ast.If)]
    return any(isinstance(part, ast.Call) for test in conditions for part in ast.walk(test))


class Refusal(NamedTuple):
    """A check for finite gradients before the program raises. The text is "" if there is none."""

    site: Site
    text: str


def find_refusal(site: Site) -> Refusal:
    """Return the check for finite gradients in the condition that is converted to a boolean at a location.

    Python 3.10 and 3.11 locate the conversion at the head of the statement, and later versions at the condition. The
    check has one location in all versions, which the analyzer reports as well.
    """
    for node in ast.walk(_parse_module(site.path)):
        if (
            isinstance(node, (ast.If, ast.Assert))
            and node.lineno <= site.line <= _last_line(node.test)
            and raises_on_nonfinite(node)
            and not is_in_try(site)
        ):
            check = find_finite_call(node)
            return Refusal(_site_of_expression(site, check), str(SourceText(check)))
    return Refusal(site, "")


def reads_no_size(site: Site) -> bool:
    """Return True if the lines of a call compare values or test for finite values, whatever the loss scale is."""
    lines = "".join(linecache.getlines(site.path)[site.line - 1 : site.end_line])
    return any(word in lines for word in (*ASKING, "==", "!="))


def mentions_scale(site: Site) -> bool:
    """Return True if the function around a location reads the scale.

    Such a function may divide gradients by the scale.
    """
    return "get_scale" in _text_around(site)


def uses_scale(site: Site) -> bool:
    """Return True if the function around a location has a value of a loss scale, apart from the calls of a scaler."""
    return _SCALE_VALUE.search(_text_around(site)) is not None


def _text_around(site: Site) -> str:
    """Return the text of the innermost function around a location, or of the file."""
    lines = linecache.getlines(site.path)
    function = _enclosing_function(site)
    return "".join(lines if function is None else lines[function.lineno - 1 : function.end_lineno])


def reads_gradient(site: Site) -> bool:
    """Return True if a call computes with a ``grad`` attribute, as ``p.grad.norm().item()`` does."""
    nodes = list(ast.walk(_parse_site(site) or ast.Module([], [])))
    called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" and id(each) not in called for each in nodes)


def chooses_autocast(site: Site) -> bool:
    """Return True if code decides about autocast in the file of a call, or in a calling file of the same folder.

    Such code is a name with "autocast" that is more than an unconditional call, or a call whose ``enabled`` is no
    constant. In this case the user of the program may have disabled autocast on purpose.
    """
    folder = os.path.dirname(site.path)
    paths = {frame.path for frame in site.list_frames() if os.path.dirname(frame.path) == folder}
    return any(_node_chooses_autocast(_parse_module(path), in_condition=False) for path in paths)


def _node_chooses_autocast(node: ast.AST, *, in_condition: bool) -> bool:
    """Return True if a syntax node decides about entering autocast. ``in_condition``: the node is conditional."""
    if isinstance(node, ast.Call) and "autocast" in access_text(node.func).rpartition(".")[2]:
        enabled = next((k.value for k in node.keywords if k.arg == "enabled"), None)
        return in_condition or not (enabled is None or isinstance(enabled, ast.Constant))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return False
    if isinstance(node, (ast.Name, ast.Attribute, ast.arg)):
        name = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}[type(node)]
        if "autocast" in getattr(node, name):
            return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        in_condition = False
    elif isinstance(node, (ast.IfExp, ast.BoolOp, ast.Try)) or (isinstance(node, ast.If) and not _is_main(node)):
        in_condition = True
    return any(_node_chooses_autocast(child, in_condition=in_condition) for child in ast.iter_child_nodes(node))


def _is_main(node: ast.If) -> bool:
    """Return True if a condition tests for execution as the main module."""
    return any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))


def _compares_remainder(condition: ast.expr) -> bool:
    """Return True if a condition is a comparison with a remainder."""
    return isinstance(condition, ast.Compare) and any(
        isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod)
        for side in (condition.left, *condition.comparators)
    )


def _parse_module(path: str) -> ast.Module:
    """Return the syntax tree of a file, or an empty module if the file cannot be read or parsed."""
    text = "".join(linecache.getlines(path))
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, SystemError):
        try:
            return ast.parse(text)
        except SystemError:  # a bug of CPython 3.11 deep in the stack; the same text parses at the second attempt
            return ast.parse(text)
    return ast.Module([], [])


def _last_line(node: ast.stmt | ast.expr | ast.ExceptHandler) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _covers(node: ast.stmt | ast.expr | ast.ExceptHandler, line: int) -> bool:
    """Return True if a syntax node has code in a line."""
    return node.lineno <= line <= _last_line(node)


def _enclosing_function(site: Site) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    tree = _parse_module(site.path)
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _covers(node, site.line)
    ]
    return functions[-1] if functions else None


def _enclosing_statements(site: Site) -> Iterator[ast.AST]:
    """Yield the statements whose body contains a location, within the enclosing function."""
    node: ast.AST = _parse_module(site.path)
    statements: list[ast.AST] = []
    while True:
        inner = None
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            children = getattr(node, name, ())
            # A case has no lines of its own.
            for child in [child for case in children for child in case.body] if name == "cases" else children:
                if isinstance(child, (ast.stmt, ast.ExceptHandler)) and _covers(child, site.line):
                    inner = child
                    if name in ("body", "cases") or isinstance(node, ast.If):
                        statements.append(node)
        if inner is None:
            break
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements.clear()
        node = inner
    yield from statements
