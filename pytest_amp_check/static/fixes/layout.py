"""Layout of a program: statements in blocks, expressions at the locations of findings, and line edits."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate

from ...protocol.fix import Edit
from ...protocol.sites import Site
from ..project.project_context import ProjectContext
from ..project.syntax import children, tail_name, walk
from .edits import make_insertion
from .matchers import NotFixable, filter_nodes, require, require_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Expression = TypeVar("Expression", bound=ast.expr)
    Node = TypeVar("Node", bound=ast.AST)

Span = tuple[int, int, int, int]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
#: Nodes with a separate namespace and control flow.
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.Module)


class ProgramLayout:
    """A program with its syntax tree. Errors of parsing are raised."""

    def __init__(self, text: str, path: str = "", surroundings: ProjectContext | None = None) -> None:
        self.text = text
        self.path = path
        self.surroundings = surroundings or ProjectContext()
        self.lines = text.split("\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        #: Cached results about the whole program, by key.
        self.memo: dict[object, object] = {}
        self._is_ascii = text.isascii()
        self._parents: dict[ast.AST, ast.AST] = {}
        #: Expressions with known parents, by first line.
        self._expressions_by_line: dict[int, list[ast.expr]] = {}
        self._bodies: dict[ast.AST, _StatementIndex] = {}
        #: Statements whose descendants have known parents.
        self._linked_statements: set[ast.AST] = set()
        #: Character offsets of line ends.
        self._line_ends: list[int] = []

    # Conversion between positions and nodes.

    def parent_of(self, node: ast.AST) -> ast.AST:
        """Return the parent of a node. Contexts and operators are shared nodes without a unique parent."""
        if node not in self._parents:
            self._link_parents(self.tree)
        return self._parents[node]

    def _link_parents(self, node: ast.AST) -> None:
        """Record the parents of all descendants of a node."""
        todo = [node]
        for each in todo:
            for child in children(each):
                self._parents[child] = each
                todo.append(child)
        for each in todo:
            if isinstance(each, ast.expr):
                self._expressions_by_line.setdefault(each.lineno, []).append(each)

    def nodes_in(self, node: ast.AST) -> list[ast.AST]:
        """Return a node and all descendants, without operators and contexts."""
        found = self.memo.get(node)
        if not isinstance(found, list):
            found = self.memo[node] = walk(node)
        return found

    def _link_line(self, line: int) -> None:
        """Record the parents of all nodes in the functions of a line, or in the line's statement outside functions."""
        within: list[ast.Module | ast.ClassDef] = [self.tree]
        for owner in within:
            body = self._bodies.get(owner)
            if body is None:
                body = self._bodies[owner] = _StatementIndex(owner)
                for child in children(owner):
                    self._parents[child] = owner
                    if not isinstance(child, ast.stmt):
                        self._link_parents(child)
            for child in body.find_at_line(line):
                if isinstance(child, ast.ClassDef):
                    within.append(child)
                elif child not in self._linked_statements:
                    self._linked_statements.add(child)
                    self._link_parents(child)

    def nodes_on_lines(self, *words: str, test: str = "") -> list[ast.AST]:
        """Return the nodes on lines that contain a word and match a pattern, outer nodes first."""
        found = self.memo.get((words, test))
        if not isinstance(found, list):
            matches = re.compile(test).search
            lines = {line for word in words for line in self._find_lines(word) if matches(self.lines[line - 1])}
            found = self.memo[words, test] = self._find_nodes_on(sorted(lines))
        return found

    def _find_lines(self, word: str) -> Iterator[int]:
        """Yield the numbers of the lines that contain a word."""
        if not self._line_ends:
            self._line_ends = list(accumulate(len(line) + 1 for line in self.lines))
        at = self.text.find(word)
        while at >= 0:
            line = bisect_right(self._line_ends, at)
            yield line + 1
            at = self.text.find(word, self._line_ends[line])

    def _find_nodes_on(self, lines: list[int]) -> list[ast.AST]:
        found: list[ast.AST] = [self.tree]
        for node in found:
            for child in children(node):
                last = getattr(child, "end_lineno", None)
                if last is not None:
                    at = bisect_left(lines, _find_first_line(child))
                    if at == len(lines) or lines[at] > last:
                        continue
                found.append(child)
        return found

    def span_of(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """Return first line, first column, last line and last column of a node.

        Lines count from 1, columns in characters from 0.
        """
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        return (
            node.lineno,
            self._character_column(node.lineno, node.col_offset),
            end_line,
            self._character_column(end_line, end),
        )

    def _character_column(self, line: int, offset: int) -> int:
        if self._is_ascii:
            return offset
        return len(self.lines[line - 1].encode()[:offset].decode(errors="replace"))

    def find_expression(self, site: Site, kind: type[Expression]) -> Expression:
        """Return the expression of a type at a location. Raise :class:`.NotFixable` if there is none."""
        require(site.path == self.path)
        span = (site.line, site.column, site.end_line, site.end_column)
        if site.line not in self._expressions_by_line:
            self._link_line(site.line)
        return require_first(
            node
            for node in filter_nodes(self._expressions_by_line.get(site.line, ()), kind)
            if self.span_of(node) == span
        )

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        """Return the source text of a node."""
        span = self.span_of(node)
        return self.text_between(span[:2], span[2:])

    def text_between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Return the text between two positions (line, column)."""
        rows = self.lines[start[0] - 1 : end[0]]
        rows[-1] = rows[-1][: end[1]]
        rows[0] = rows[0][start[1] :]
        return "\n".join(rows)

    # Surroundings of a node.

    def ancestors_of(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of a node, nearest first."""
        while node is not self.tree:
            node = self.parent_of(node)
            yield node

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the simple statement on separate lines that contains an expression.

        Raise :class:`.NotFixable` otherwise.
        """
        for each in (node, *self.ancestors_of(node)):
            if isinstance(each, ast.stmt):
                require(
                    isinstance(each, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)) and self.has_own_lines(each)
                )
                return each
            require(not isinstance(each, (*SCOPES, ast.comprehension, ast.IfExp)))
        raise NotFixable

    def find_enclosing(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        """Return the innermost ancestor of some types, or None."""
        return next((each for each in self.ancestors_of(node) if isinstance(each, kinds)), None)

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, class or module that contains a node."""
        return self.find_enclosing(node, *SCOPES) or self.tree

    def loop_of(self, node: ast.AST) -> ast.AST | None:
        """Return the innermost loop of the same function that contains a node, or None."""
        found = self.find_enclosing(node, *LOOPS, *SCOPES)
        return found if isinstance(found, LOOPS) else None

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the block that contains a statement."""
        parent = self.parent_of(statement)
        fields = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
        return require_first(found for found in fields if isinstance(found, list) and statement in found)

    def enclosing_blocks(self, node: ast.AST) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        """Yield the blocks around a node up to the function body, each with the statement inside, nearest first."""
        for each in (node, *self.ancestors_of(node)):
            if isinstance(each, SCOPES) and each is not node:
                return
            if isinstance(each, ast.stmt):
                yield self.block_of(each), each

    def find_calls(self, node: ast.AST, name: str) -> list[ast.Call]:
        """Return the calls of a method or function name in a node, in order, including calls in inner functions."""
        found = filter_nodes(self.nodes_on_lines(name) if node is self.tree else self.nodes_in(node), ast.Call)
        return sorted((call for call in found if tail_name(call.func) == name), key=self.span_of)

    # Lines.

    def has_own_lines(self, statement: ast.stmt) -> bool:
        """Return True if a statement shares no line with another statement."""
        line, column, end_line, end_column = self.span_of(statement)
        rest = self.lines[end_line - 1][end_column:].strip()
        above = self.lines[line - 2] if line > 1 else ""
        return not self.lines[line - 1][:column].strip() and (not rest or rest[0] == "#") and not above.endswith("\\")

    def indent_of(self, statement: ast.stmt) -> str:
        return self.lines[statement.lineno - 1][: self.span_of(statement)[1]]

    def first_line_of(self, statement: ast.stmt) -> int:
        """Return the first line of a statement, including decorators and the comments directly above."""
        first = _find_first_line(statement)
        indent = self.indent_of(statement)
        while first > 1 and self.lines[first - 2].startswith(indent + "#"):
            first -= 1
        return first

    def insert_before(self, statement: ast.stmt, row: str) -> Edit:
        """Return the edit that inserts a row before a statement, with the statement's indentation."""
        require(self.has_own_lines(statement))
        return make_insertion(
            _find_first_line(statement), 0, "".join(f"{self.indent_of(statement)}{each}\n" for each in row.split("\n"))
        )

    def insert_after(self, statement: ast.stmt, row: str) -> Edit:
        """Return the edit that inserts a row after a statement, with the statement's indentation."""
        require(self.has_own_lines(statement))
        return self.insert_below(statement, [self.indent_of(statement) + each for each in row.split("\n")])

    def insert_below(self, statement: ast.stmt, rows: list[str]) -> Edit:
        """Return the edit that inserts rows after a statement, without indentation."""
        last = statement.end_lineno or statement.lineno
        return make_insertion(last, len(self.lines[last - 1]), "".join(f"\n{row}" for row in rows))

    def remove_lines(self, first: int, last: int) -> Edit:
        """Return the edit that removes lines."""
        if last == len(self.lines):
            return Edit(first, 0, last, len(self.lines[last - 1]), "")
        return Edit(first, 0, last + 1, 0, "")

    def remove_statement(self, statement: ast.stmt) -> Edit:
        """Return the edit that removes a single-line statement.

        Raise :class:`.NotFixable` for several lines or a comment.
        """
        line = statement.lineno
        require(statement.end_lineno == line and "#" not in self.lines[line - 1])
        return self.remove_lines(line, line)

    def has_multiline_string(self, first: int, last: int) -> bool:
        """Return True if a string spans several of these lines, so that the lines cannot be re-indented."""
        return any(
            first <= node.lineno <= last and (node.end_lineno or node.lineno) > node.lineno
            for statement in self.tree.body
            if _find_first_line(statement) <= last and first <= (statement.end_lineno or 0)
            for node in self.nodes_in(statement)
            if isinstance(node, (ast.Constant, ast.JoinedStr))
        )


class _StatementIndex:
    """Index of the statements of a module or class by line. There may be as many statements as lines in the file."""

    def __init__(self, owner: ast.Module | ast.ClassDef) -> None:
        self._statements = owner.body
        self._last_lines = [statement.end_lineno or 0 for statement in owner.body]

    def find_at_line(self, line: int) -> Iterator[ast.stmt]:
        """Yield the statements on a line: several if separated by semicolons."""
        for number in range(bisect_left(self._last_lines, line), len(self._statements)):
            statement = self._statements[number]
            if _find_first_line(statement) > line:
                return
            yield statement


def _find_first_line(node: ast.AST) -> int:
    """Return the first line of a node, or of the node's first decorator."""
    line: int = node.lineno  # type: ignore[attr-defined]
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(line, decorators[0].lineno) if decorators else line
