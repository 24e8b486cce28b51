"""``require_backward_grad_sync`` of DDP, set after the forward that reads the flag."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol.source_text import SourceText, access_text
from ..interpreter.interpreter import HandlerTable, Interpreter
from .syntax_queries import last_name

_FLAG = "require_backward_grad_sync"
_LOOPS = (ast.For, ast.While)


def _report_late_flags(interp: Interpreter) -> None:
    """Report the assignments of the flag that stand between a forward of the model and a backward in one loop."""
    if _FLAG not in interp.module.identifiers:
        return
    for loop in interp.module.nodes:
        if isinstance(loop, _LOOPS):
            for assignment, target, forward in _find_late_assignments(loop):
                names: dict[str, object] = {"flag": SourceText(target), "forward": SourceText(forward)}
                site = interp.site_of(assignment)
                interp.detached_events[e.SyncSetLate, site.call_key] = e.SyncSetLate(site, names=names)


def _find_late_assignments(loop: ast.For | ast.While) -> Iterator[tuple[ast.Assign, ast.Attribute, ast.Call]]:
    """Yield the assignments in the innermost loop, each with its target and the forward before."""
    nodes = list(_nodes_of_iteration(loop))
    calls = sorted((node for node in nodes if isinstance(node, ast.Call)), key=lambda node: node.lineno)
    flags = [
        (node, target)
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == _FLAG
    ]
    for assignment, target in flags:
        model, line = access_text(target.value), assignment.lineno
        forward = next((each for each in calls if model and access_text(each.func) == model), None)
        is_first = all(other.lineno >= line for other, _ in flags)
        is_before_backward = any(last_name(each.func) == "backward" and each.lineno > line for each in calls)
        depends_on_batch = not isinstance(assignment.value, ast.Constant)
        if forward is not None and forward.lineno < line and is_first and is_before_backward and depends_on_batch:
            yield assignment, target, forward


def _nodes_of_iteration(loop: ast.For | ast.While) -> Iterator[ast.AST]:
    """Yield the nodes of a loop body, without those of loops and functions inside."""
    todo: list[ast.AST] = list(reversed(loop.body))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_late_flags)
