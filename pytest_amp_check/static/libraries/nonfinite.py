"""Programs that stop on non-finite gradients: by an exception, an assertion, or torch's anomaly detection."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol import torch_api
from ..interpreter.interpreter import ContextHandler, HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.values.contexts import AnomalyMode, NullContext
from ..interpreter.values.definitions import Args, Keywords
from ..interpreter.values.value import Value
from .arguments import first_or_named, literal_value
from .syntax_queries import callee_of, find_nodes, first_argument, last_name, receiver_of

#: Methods and functions that convert a tensor with one element to a number.
_AS_NUMBER = frozenset("item float detach cpu abs".split())
#: Number of latest events searched for the reads of one condition. A condition reads few gradients.
_RECENT = 64


def _check_end_condition(interp: Interpreter, test: ast.expr, truth: bool) -> None:
    """Report a condition that ends the program. A finite check of gradients fails on overflows."""
    is_caught = interp.state.try_depth or interp.state.caught_in_loop
    if is_caught or not (checks := list(_find_finite_checks(interp, test, truth))):
        return
    recent = [node.event for node in interp.builder.nodes[-_RECENT:] if node.event is not None]
    for call in checks:
        site = interp.site_of(call)
        checks_here = [
            x for x in recent if isinstance(x, e.GradCheck) and (x.site.line, x.site.column) == (site.line, site.column)
        ]
        for check in checks_here:
            check.raises = True
        readings = _find_gradient_reads(interp, call)
        for reading in readings:
            interp.emit(e.GradCheck, call, owners=reading.owners, raises=True, names={"call": expression_text(call)})
        if checks_here or readings:
            return  # The other checks test the same gradients.


def _find_finite_checks(interp: Interpreter, test: ast.expr, truth: bool) -> Iterator[ast.Call]:
    """Yield the calls in a condition that test for finite values, and alone give the condition a truth.

    Yield nothing if the truth also depends on other terms.
    """
    if isinstance(test, ast.UnaryOp) and type(test.op) is ast.Not:
        yield from _find_finite_checks(interp, test.operand, not truth)
    elif isinstance(test, ast.BoolOp):
        found = [list(_find_finite_checks(interp, part, truth)) for part in test.values]
        rest = [part for part, checks in zip(test.values, found, strict=True) if not checks]
        if (type(test.op) is ast.Or) is truth or all(map(_asks_for_gradient, rest)):
            yield from (check for checks in found for check in checks)
    elif isinstance(test, ast.Name):
        made = find_single_assignment(interp, test.id)
        yield from () if made is None else _find_finite_calls(interp, made)
    else:
        yield from _find_finite_calls(interp, test)


def _find_finite_calls(interp: Interpreter, node: ast.expr) -> Iterator[ast.Call]:
    return (call for call in find_nodes(node, ast.Call) if imported_name(interp, call.func) in torch_api.FINITE_CHECKS)


def imported_name(interp: Interpreter, func: ast.expr | None) -> str:
    """Return the original last name of a function, also if the current file imports the function under an alias."""
    name = last_name(func)
    imported = interp.state.frame.module.imports.get(name) if isinstance(func, ast.Name) else None
    return imported.name if imported is not None and imported.name else name


def _asks_for_gradient(test: ast.expr) -> bool:
    """Return True if a condition only tests whether a parameter has a gradient, or lacks a gradient."""
    if isinstance(test, ast.UnaryOp):
        return _asks_for_gradient(test.operand)
    if isinstance(test, ast.Compare):
        return type(test.ops[0]) in (ast.Is, ast.IsNot)
    return last_name(test) in ("grad", "requires_grad")


def current_code(interp: Interpreter) -> ast.AST:
    """Return the AST of the current function, or of the module."""
    here = interp.state.frame
    return here.module.tree if here.function is None else here.function.node


class _AssignmentTable(dict[ast.AST, dict[str, list[ast.expr]]]):
    """Assignments by variable name, for the functions and files searched so far."""


def find_single_assignment(interp: Interpreter, name: str) -> ast.expr | None:
    """Return the value assigned to a variable in the current function, or None unless there is exactly one assignment.

    Assignments that depend on the variable itself are excluded.
    """
    known = interp.file_data(_AssignmentTable)
    code = current_code(interp)
    if code not in known:
        known[code] = _collect_assignments(code)
    given = known[code].get(name, ())
    return given[0] if len(given) == 1 else None


def _collect_assignments(code: ast.AST) -> dict[str, list[ast.expr]]:
    given: dict[str, list[ast.expr]] = {}
    pairs = [(target, plain.value) for plain in find_nodes(code, ast.Assign) for target in plain.targets]
    pairs += [(typed.target, typed.value) for typed in find_nodes(code, ast.AnnAssign) if typed.value is not None]
    for target, value in pairs:
        if isinstance(target, ast.Name):
            given.setdefault(target.id, []).append(value)
    return given


def find_asked_number(call: ast.Call) -> ast.expr | None:
    """Return the operand of a finite check, without conversions to a number."""
    number = receiver_of(call) if not call.args else first_argument(call)
    while last_name(callee_of(number)) in _AS_NUMBER:
        number = first_argument(number) or receiver_of(number)
    return number


def _find_gradient_reads(interp: Interpreter, call: ast.Call) -> tuple[e.GradientAccess, ...]:
    """Return the event that read the gradients behind the operand of a finite check, or an empty tuple."""
    number = find_asked_number(call)
    if not isinstance(number, (ast.Name, ast.Attribute)):
        return ()
    return interp.without_events(lambda: interp.evaluate(number)).gradient_reads[:1]


def _call_anomaly_mode(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Enable anomaly detection with a NaN check, from here on or for a block."""
    block = entry.name.endswith(".detect_anomaly")
    mode = literal_value(first_or_named(args, keywords, "mode")) is True
    nan = (
        literal_value(args[0] if block and args else args[1] if len(args) > 1 else keywords.get("check_nan"))
        is not False
    )
    if (block or mode) and nan and not interp.state.try_depth and not interp.state.path_condition:
        event = interp.emit(e.Anomaly, node, names={"call": expression_text(node)})
        if event is not None:
            return AnomalyMode(event)
    return NullContext()


class _AnomalyModeContext(ContextHandler):
    """A block with anomaly detection: backward raises on NaN in computed gradients.

    The accumulated sums of gradients are not checked.
    """

    def enter(self, interp: Interpreter, value: AnomalyMode, node: ast.AST) -> None:
        if value.event.idle is None:
            value.event.idle = True

    def exit(self, interp: Interpreter, value: AnomalyMode, node: ast.AST, depth: int) -> None:
        events = [node.event for node in interp.builder.nodes if node.event is not None]
        since = events[events.index(value.event) :] if value.event in events else events
        if any(isinstance(event, e.Backward) for event in since):
            value.event.idle = False


def register(handlers: HandlerTable) -> None:
    handlers.end_condition_listeners.append(_check_end_condition)
    handlers.torch_roles[torch_api.ANOMALY] = _call_anomaly_mode
    handlers.contexts[AnomalyMode.kind] = _AnomalyModeContext()
