"""The frames of an exception: the code of each call, the failed operation, and the values of names in the call."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from ...protocol.sites import Site
from ..record.instructions import Span, instruction_span
from ..record.sites import SiteFinder, is_inner, is_ours

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
#: Syntax nodes that can be a failed operation.
OPERATIONS = (ast.Call, ast.BinOp, ast.AugAssign, ast.Assign, ast.Compare, ast.UnaryOp)


class Scope:
    """The body of a function or module, with the values of its names.

    ``names`` are the namespaces of a call that is still known, or only the globals of a function that has returned.
    """

    def __init__(self, path: str, body: ast.AST, names: Sequence[Mapping[str, Any]]) -> None:
        self.path = path
        self.body = body
        self._namespaces = names

    def has_name(self, name: str) -> bool:
        return any(name in names for names in self._namespaces)

    def resolve_name(self, name: str) -> Any:
        """Return the value of a name. Raise KeyError if the value is unknown."""
        for names in self._namespaces:
            if name in names:
                return names[name]
        return vars(builtins)[name]

    def site_of_node(self, node: ast.AST, caller: Site | None = None) -> Site:
        """Return the source location of a node."""
        assert isinstance(node, (ast.expr, ast.stmt))
        # Columns of the syntax tree count bytes, and columns of source locations count characters.
        text = linecache.getline(self.path, node.lineno)
        end = linecache.getline(self.path, node.end_lineno or node.lineno)
        return Site(
            self.path,
            node.lineno,
            _character_column(text, node.col_offset),
            node.end_lineno,
            _character_column(end, node.end_col_offset or 0),
            getattr(self.body, "name", "<module>"),
            caller,
        )

    def iter_statements(self) -> Iterator[ast.stmt]:
        """Yield the statements in order, without statements of nested functions and classes."""
        work: list[ast.AST] = list(reversed(getattr(self.body, "body", [])))
        while work:
            node = work.pop()
            if isinstance(node, ast.stmt):
                yield node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            children = [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
            ]
            work.extend(reversed(children))


class Frame:
    """One call that the exception passed through."""

    def __init__(self, frame: FrameType, line: int, instruction: int) -> None:
        self.python_frame = frame
        self.line = line
        self.instruction = instruction
        self.path = frame.f_code.co_filename
        self.is_user = not is_inner(self.path)
        self._scope: Scope | None = None

    @property
    def scope(self) -> Scope | None:
        """The function of the call, or None if the source is not available."""
        if self._scope is None:
            code, names = self.python_frame.f_code, [self.python_frame.f_locals]
            body = function_of(code)
            outer = self.python_frame.f_back
            if body is None and code.co_name.startswith("<") and outer is not None:
                # A lambda or a comprehension has no function node: its source is part of the enclosing function.
                body = function_of(outer.f_code) if outer.f_code.co_filename == self.path else None
                names.append(outer.f_locals)
            if body is not None:
                self._scope = Scope(self.path, body, (*names, self.python_frame.f_globals))
        return self._scope

    @property
    def has_raised(self) -> bool:
        """True if the call raised an exception by a ``raise`` statement, and not in an operation."""
        statements = () if self.scope is None else self.scope.iter_statements()
        return any(
            isinstance(statement, ast.Raise) and statement.lineno <= self.line <= (statement.end_lineno or 0)
            for statement in statements
        )

    def find_operation(self) -> ast.AST | None:
        """Return the failed call or operator of this frame, or None."""
        scope = self.scope
        if scope is None:
            return None
        span = instruction_span(self.python_frame.f_code, self.instruction, self.line)
        candidates = [
            node
            for node in ast.walk(scope.body)
            if isinstance(node, OPERATIONS) and _contains_span(node, span, self.line)
        ]
        if not candidates:
            return None
        if span is None:
            # Before Python 3.11 only the line is known. The first call in the line is the outermost call.
            return next((node for node in candidates if isinstance(node, ast.Call)), candidates[0])
        return min(candidates, key=_node_extent)


def frames_of(error: BaseException) -> list[Frame]:
    """Return the frames of an exception, outermost first, without the frames of this package."""
    frames: list[Frame] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            frames.append(Frame(trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    return frames


def site_of(frames: Sequence[Frame], sites: SiteFinder) -> Site:
    """Return the user's source location of an exception, with the calls that led there."""
    return sites.site_of_calls(
        [(frame.python_frame.f_code, frame.instruction) for frame in reversed(frames) if frame.is_user]
    )


def scope_at(site: Site, frames: Sequence[Frame]) -> tuple[Scope | None, Sequence[Frame]]:
    """Return the function that contains a location, and the frames down to the function unless it has returned."""
    for index in range(len(frames) - 1, -1, -1):
        code = frames[index].python_frame.f_code
        if code.co_filename == site.path and site.function in (code.co_name, getattr(code, "co_qualname", "")):
            return frames[index].scope, frames[: index + 1]
    tree = _parse_file(site.path)
    if tree is None:
        return None, ()
    body: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            contains_site = node.lineno <= site.line <= (node.end_lineno or node.lineno)
            body = node if contains_site else body
    names = next((frame.python_frame.f_globals for frame in frames if frame.path == site.path), None)
    if names is None:
        modules = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == site.path]
        names = vars(modules[0]) if modules else {}
    return Scope(site.path, body, (names,)), ()


def user_file_scopes(frames: Sequence[Frame]) -> Iterator[Scope]:
    """Yield the whole files of the user's functions in an exception's frames, innermost first."""
    seen: set[str] = set()
    for frame in reversed(frames):
        if frame.is_user and frame.path not in seen:
            seen.add(frame.path)
            tree = _parse_file(frame.path)
            if tree is not None:
                yield Scope(frame.path, tree, (frame.python_frame.f_locals, frame.python_frame.f_globals))


def _parse_file(path: str) -> ast.Module | None:
    lines = linecache.getlines(path)
    return _parse_text("".join(lines)) if lines else None


@functools.lru_cache(maxsize=32)
def _parse_text(text: str) -> ast.Module | None:
    """Parse a text, or return None. The result is cached because each call in a file needs the file's syntax tree."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_of(code: CodeType) -> ast.AST | None:
    """Return the syntax tree of a function or module, or None if the source is not available."""
    tree = _parse_file(code.co_filename)
    if tree is None:
        return None
    if code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def find_class_site(cls: type) -> Site | None:
    """Return the location of a class statement, or None if the source is not available."""
    code = next((code for value in vars(cls).values() if (code := _code_of(value)) is not None), None)
    tree = None if code is None else _parse_file(code.co_filename)
    if code is None or tree is None:
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef)
            and node.name == cls.__name__
            and node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)
        ):
            return Site(code.co_filename, node.lineno, node.col_offset, function=cls.__qualname__)
    return None


def _code_of(value: object) -> CodeType | None:
    function = inspect.unwrap(value.__func__) if isinstance(value, (staticmethod, classmethod)) else value
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _contains_span(node: ast.AST, span: Span | None, line: int) -> bool:
    assert isinstance(node, (ast.expr, ast.stmt))
    if span is None:
        return node.lineno <= line <= (node.end_lineno or node.lineno)
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begin <= span[:2] and span[2:] <= end


def _node_extent(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, (ast.expr, ast.stmt))
    return (node.end_lineno or 0) - node.lineno, (node.end_col_offset or 0) - node.col_offset


def _character_column(text: str, column: int) -> int:
    return column if text.isascii() else len(text.encode("utf-8")[:column].decode("utf-8", "replace"))
