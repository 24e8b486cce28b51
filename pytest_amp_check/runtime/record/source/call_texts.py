"""The text of a call as the user wrote it: its function, its object and its arguments."""

from __future__ import annotations

import ast
import linecache
from enum import Enum, auto

from ....protocol.sites import Site
from ....protocol.source_text import SourceText, access_text
from ..sites import innermost_user_site
from .syntax import covers, enclosing_statements, parse_module, parse_site, text_at

#: Methods of optimizers, and of a framework's wrappers of optimizers.
_OF_OPTIMIZERS = frozenset({"step", "zero_grad"})


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
        call = parse_site(self.site)
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


def assigned_name(site: Site) -> str:
    """Return the text of the single target to which the statement at a location assigns, or ""."""
    statements = (node for node in ast.walk(parse_module(site.path)) if isinstance(node, ast.Assign))
    found = [node for node in statements if covers(node, site.line)]
    return str(SourceText(found[-1].targets[0])) if found and len(found[-1].targets) == 1 else ""


def loop_around(site: Site) -> str:
    """Return the head of the innermost loop around a location, or around the calls that lead to it, or ""."""
    for frame in reversed(site.list_frames()):
        loops = [node for node in enclosing_statements(frame) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
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
    call = parse_site(site)
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
        entered = parse_site(self.site)
        if isinstance(entered, ast.With):
            return ast.unparse(entered.items[0].context_expr) if len(entered.items) == 1 else ""
        return text_at(self.site)
