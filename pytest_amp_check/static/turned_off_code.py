"""Code that the callers in a file turn off, by an argument or by leaving a default.

A default is one possible value, and other callers turn such code on. The function is analyzed once more by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import Finding
from .interpreter.branch_runs import BODY, ORELSE, BranchRuns, RunsByEntry
from .project.module import Function, Module
from .project.relevance import CLIP_FUNCTIONS
from .project.syntax import tail_name, walk

#: Calls of a training with mixed precision that other code rarely has.
_PROTOCOL_CALLS = CLIP_FUNCTIONS | {"backward", "scale_loss", "unscale_"}
#: Statements that leave a block.
_JUMPS = (ast.Return, ast.Continue, ast.Raise, ast.Break)


class TurnedOffCode(NamedTuple):
    """Lines that no path executes, as pairs of first and last line, and their functions, by path and line."""

    lines: tuple[tuple[int, int], ...]
    functions: frozenset[tuple[str, int]]

    def select_findings(
        self, findings: Iterable[Finding], path: str, reached: Mapping[tuple[str, int], Collection[tuple[str, int]]]
    ) -> Iterator[Finding]:
        """Yield the findings with an event in these lines, as findings of all entry points that reach the functions."""
        for finding in findings:
            sites = [finding.site, *(step.site for step in finding.event_steps)]
            if any(site.path == path and first <= site.line <= last for site in sites for first, last in self.lines):
                own = finding.discovery.entries
                for function, calls in list(own.items()):
                    own.update((entry, calls) for entry, functions in reached.items() if function in functions)
                yield finding


def find_turned_off_code(
    module: Module, runs_by_entry: RunsByEntry, entries: frozenset[tuple[str, int]]
) -> TurnedOffCode | None:
    """Return the parts of a training in a file that no path from the given entry points executes, or None."""
    runs = BranchRuns()
    for entry in entries & runs_by_entry.keys():
        runs.add_runs(runs_by_entry[entry])
    decided = [node for node, executed in runs.items() if executed in (BODY, ORELSE)]
    lines = [
        *_lines_of_branches(module.tree, {node: runs[node] for node in decided if isinstance(node, ast.If)}),
        *_lines_of_disabled(module, [node for node in decided if isinstance(node, ast.Call) and runs[node] == ORELSE]),
    ]
    functions = {
        (module.path, function.node.lineno)
        for function in module.functions.values()
        if any(_overlaps(function, first, last) for first, last in lines)
    }
    return TurnedOffCode(tuple(lines), frozenset(functions)) if functions else None


def _overlaps(function: Function, first: int, last: int) -> bool:
    start, end = function.node.lineno, function.node.end_lineno or 0
    return start <= first <= last <= end or first <= start <= end <= last


def _lines_of_branches(tree: ast.Module, decided: Mapping[ast.If, int]) -> Iterator[tuple[int, int]]:
    following = _following_statements(tree) if any(map(_leaves_block, decided)) else {}
    for node, executed in decided.items():
        off = _turned_off_part(node, executed, following)
        if off and _is_training(off):
            yield off[0].lineno, off[-1].end_lineno or off[-1].lineno


def _lines_of_disabled(module: Module, disabled: Collection[ast.Call]) -> Iterator[tuple[int, int]]:
    """Yield the lines of the functions, or of the methods of the classes, that make a disabled scaler or region."""
    for call in disabled:
        around = [each for each in module.functions.values() if _contains(each.node, call)]
        if around:
            inner = max(around, key=lambda each: each.node.lineno)
            for function in inner.cls.methods.values() if inner.cls is not None else (inner,):
                if _is_training([function.node]):
                    yield function.node.lineno, function.node.end_lineno or function.node.lineno


def _contains(outer: ast.expr | ast.stmt, inner: ast.expr) -> bool:
    return outer.lineno <= inner.lineno and (inner.end_lineno or 0) <= (outer.end_lineno or 0)


def _turned_off_part(node: ast.If, executed: int, following: dict[ast.If, list[ast.stmt]]) -> list[ast.stmt]:
    if executed == ORELSE:
        return node.body
    # Behind a jump, the rest of the block is the other branch.
    return node.orelse or following.get(node, [])


def _leaves_block(node: ast.If) -> bool:
    return not node.orelse and isinstance(node.body[-1], _JUMPS)


def _following_statements(tree: ast.Module) -> dict[ast.If, list[ast.stmt]]:
    """Return the statements that follow each conditional jump in its block."""
    found: dict[ast.If, list[ast.stmt]] = {}
    for parent in walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block: object = getattr(parent, field, None)
            if not isinstance(block, list):
                continue
            for number, statement in enumerate(block):
                if isinstance(statement, ast.If) and _leaves_block(statement):
                    found[statement] = block[number + 1 :]
    return found


def _is_training(part: Iterable[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call) and tail_name(node.func) in _PROTOCOL_CALLS for top in part for node in walk(top)
    )
