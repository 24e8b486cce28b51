"""Programs that give up where gradients are not finite: by raising, an assertion, or torch's anomaly detection."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event
from ..interpreter.interpreter import Context, Handlers, Interpreter
from ..interpreter.values import Args, Detection, Keywords, NullContext, Value
from ..interpreter.wording import wording
from .arguments import first_of, literal
from .gradients import FINITE
from .written import all_of, called, first_argument, last_name, receiver

#: What turns a tensor with one number into that number, by a method or by a function.
_AS_NUMBER = frozenset("item float detach cpu abs".split())
#: Events that are looked through for those of one test: it reads few gradients.
_RECENT = 64


def _asked(at: Interpreter, test: ast.expr) -> None:
    """The program ends unless a test comes out well: one of gradients that are not finite ends it on overflows."""
    if at.state.guarded or not (checks := list(_checks(at, test))):
        return
    recent = [node.event for node in at.draft.nodes[-_RECENT:] if node.event is not None]
    for call in checks:
        site = at.site(call)
        looked = [
            x for x in recent if x.kind == e.GRAD_CHECK and (x.site.line, x.site.column) == (site.line, site.column)
        ]
        for event in looked:
            event.facts["raises"] = True
        for reading in _readings(at, call):
            owners = reading.facts.get("owners")
            looked.append(reading)
            at.emit(e.GRAD_CHECK, call, owners=owners, raises=True, names={"call": wording(call)})
        if looked:
            return  # the others ask the same of the same gradients


def _checks(at: Interpreter, test: ast.expr) -> Iterator[ast.Call]:
    """The calls by which a test asks whether something is finite, none where it depends on something else besides."""
    if isinstance(test, ast.UnaryOp) and type(test.op) is ast.Not:
        yield from _checks(at, test.operand)
    elif isinstance(test, ast.BoolOp):
        found = [list(_checks(at, part)) for part in test.values]
        rest = [part for part, checks in zip(test.values, found, strict=True) if not checks]
        if type(test.op) is ast.Or or all(map(_asks_for_a_gradient, rest)):
            yield from (check for checks in found for check in checks)
    elif isinstance(test, ast.Name):
        made = assigned(at, test.id)
        yield from () if made is None else _finite_calls(made)
    else:
        yield from _finite_calls(test)


def _finite_calls(node: ast.expr) -> Iterator[ast.Call]:
    return (call for call in all_of(node, ast.Call) if last_name(call.func) in FINITE)


def _asks_for_a_gradient(test: ast.expr) -> bool:
    """Whether a test only asks whether a parameter has a gradient at all."""
    if isinstance(test, ast.Compare):
        return type(test.ops[0]) is ast.IsNot
    return last_name(test) in ("grad", "requires_grad")


def code_read(at: Interpreter) -> ast.AST:
    """The code of the function that is being read, or of the file."""
    here = at.state.frame
    return here.module.tree if here.function is None else here.function.node


class _Given(dict[ast.AST, dict[str, list[ast.expr]]]):
    """What functions of a file, or the file itself, give names, for those that somebody has asked about."""


def assigned(at: Interpreter, name: str) -> ast.expr | None:
    """What the function being read gives a name, if it does so once and asks nothing of the name itself."""
    known = at.of_file(_Given)
    code = code_read(at)
    if code not in known:
        known[code] = _given_in(code)
    given = known[code].get(name, ())
    return given[0] if len(given) == 1 else None


def _given_in(code: ast.AST) -> dict[str, list[ast.expr]]:
    given: dict[str, list[ast.expr]] = {}
    for statement in all_of(code, ast.Assign):
        for name in {target.id for target in statement.targets if isinstance(target, ast.Name)}:
            given.setdefault(name, []).append(statement.value)
    return given


def asked_number(call: ast.Call) -> ast.expr | None:
    """What is asked of, the number that it holds as it was computed."""
    number = receiver(call) if not call.args else first_argument(call)
    while last_name(called(number)) in _AS_NUMBER:
        number = first_argument(number) or receiver(number)
    return number


def _readings(at: Interpreter, call: ast.Call) -> tuple[Event, ...]:
    """The events that read the gradients from which the number was computed that is asked for."""
    number = asked_number(call)
    if not isinstance(number, (ast.Name, ast.Attribute)):
        return ()
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(number)))
    return found[0].readings[:1]


def _anomaly(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Anomaly detection is switched on, from here on or for a block, and asks for NaN."""
    block = entry.name.endswith(".detect_anomaly")
    mode = literal(first_of(args, keywords, "mode")) is True
    nan = literal(args[0] if block and args else args[1] if len(args) > 1 else keywords.get("check_nan")) is not False
    if (block or mode) and nan and not at.state.guarded and not at.state.path:
        event = at.emit(e.ANOMALY, node, names={"call": wording(node)})
        if event is not None:
            return Detection(event)
    return NullContext()


class _Detecting(Context):
    """A block in which a backward raises: gradients are looked at as they are computed, not what they are made of."""

    def enter(self, at: Interpreter, value: Detection, node: ast.AST) -> None:
        value.event.facts.setdefault("idle", True)

    def exit(self, at: Interpreter, value: Detection, node: ast.AST, depth: int) -> None:
        events = [node.event for node in at.draft.nodes if node.event is not None]
        since = events[events.index(value.event) :] if value.event in events else events
        if any(event.kind == e.BACKWARD for event in since):
            value.event.facts["idle"] = False


def register(handlers: Handlers) -> None:
    handlers.demanded.append(_asked)
    handlers.roles[surface.ANOMALY] = _anomaly
    handlers.contexts[Detection.kind] = _Detecting()
