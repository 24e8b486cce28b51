"""Batches that one process alone leaves out, as their loss is not finite, while the others average gradients."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.events import Thing
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import EMPTY, Tensor, Value
from ..interpreter.wording import wording
from ..project.module import Module
from ..project.syntax import children
from .gradients import FINITE
from .losses import may_go_apart
from .nonfinite import asked_number, assigned, code_read
from .written import all_of, called, constant, first_argument, last_name, receiver

#: What modules are wrapped in whose backward waits for all processes.
_COLLECTIVE = frozenset(("ddp", "fsdp1", "fsdp2"))
#: What the name of a call speaks of by which processes tell each other: ``all_reduce``, ``reduce_dict``, ``gather``.
_TELLS = ("reduce", "gather", "broadcast")
#: What names speak of by which a program asks whether it trains in several processes.
_PROCESSES = ("world", "rank", "dist", "ddp", "fsdp", "gpu", "process", "parallel", "device")
#: Contexts in which the other processes go on without one that has come to its end.
_JOINS = frozenset(("join", "Join"))
#: What makes one answer of several, or of a tensor.
_ONE_ANSWER = frozenset("any all item bool sum cpu".split())
_LEAVES = (ast.Continue, ast.Break, ast.Return)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _run(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    """A loss runs backward, perhaps only where this process alone has found it finite."""
    module = _waiting(at, tensor)
    if module is None:
        return
    root = code_read(at)
    for test in all_of(root, ast.If):
        call = _leaves_out(at, root, test, node)
        if call is not None and _is_of(at, call, tensor) and not _is_told(root, test):
            names = {"call": wording(call), "module": module.name}
            at.emit_at(e.LEFT_OUT, at.site(call), module.key, names=names)
            return


def _waiting(at: Interpreter, tensor: Tensor) -> Thing | None:
    """The module whose backward waits for all processes, None where something here may see to it that it does not."""
    if may_go_apart(at):
        return None
    keys = set(tensor.deps or EMPTY)
    if tensor.forward is not None and tensor.forward.subject is not None:
        keys.add(tensor.forward.subject)
    things = [at.program.things[key] for key in sorted(keys)]
    module = next((thing for thing in things if not _COLLECTIVE.isdisjoint(thing.facts.get("wrapped", {}))), None)
    return None if module is None or _joins(at.module) or _joins(at.state.frame.module) else module


def _joins(module: Module) -> bool:
    """Whether a file lets processes end at different times."""
    if module.identifiers.isdisjoint(_JOINS):
        return False
    contexts = [item.context_expr for block in all_of(module.tree, ast.With) for item in block.items]
    return any(last_name(called(context)) in _JOINS for context in contexts)


def _leaves_out(at: Interpreter, root: ast.AST, test: ast.If, backward: ast.AST) -> ast.Call | None:
    """The call by which a test asks whether something is finite, where the answer no leaves out a backward."""
    asked = _question(at, test.test)
    if asked is None:
        return None
    call, finite = asked
    good, bad = (test.body, test.orelse) if finite else (test.orelse, test.body)
    if any(_way(part, backward) for part in good):
        # What is done in its place may keep the other processes company.
        return call if all(isinstance(part, (*_LEAVES, ast.Pass)) for part in bad) else None
    return call if bad and isinstance(bad[-1], _LEAVES) and _leads_past(root, test, bad[-1], backward) else None


def _question(at: Interpreter, test: ast.expr) -> tuple[ast.Call, bool] | None:
    """By which call a test asks whether something is finite, and what it comes to where that is so.

    What else it asks may keep a batch in, but not see to it that all processes do the same, unless it asks for those.
    """
    if isinstance(test, ast.UnaryOp) and type(test.op) is ast.Not:
        inner = _question(at, test.operand)
        return None if inner is None else (inner[0], not inner[1])
    if isinstance(test, ast.BoolOp):
        parts = [_question(at, part) for part in test.values]
        if type(test.op) is not ast.And:
            return next((part for part in parts if part is not None and not part[1]), None)
        rest = [part for part, asked in zip(test.values, parts, strict=True) if asked is None]
        return None if any(map(_counts_processes, rest)) else next(filter(None, parts), None)
    if isinstance(test, ast.Name):
        made = assigned(at, test.id)
        return None if made is None or isinstance(made, ast.Name) else _question(at, made)
    if isinstance(test, ast.Compare):
        counts = type(test.ops[0]) is ast.Gt and constant(test.comparators[0]) == 0
        return _question(at, test.left) if counts else None
    name = _imported_name(at, called(test))
    if isinstance(test, ast.Call) and name in FINITE:
        return test, name == "isfinite"
    inside = (first_argument(test) or receiver(test)) if name in _ONE_ANSWER else None
    return None if inside is None else _question(at, inside)


def _imported_name(at: Interpreter, func: ast.expr | None) -> str:
    """The last name of a function, whatever the file that is read imports it as."""
    name = last_name(func)
    imported = at.state.frame.module.imports.get(name) if isinstance(func, ast.Name) else None
    return imported.name if imported is not None and imported.name else name


def _counts_processes(test: ast.expr) -> bool:
    """Whether a test speaks of processes: their number, or which of them this is."""
    names = (last_name(part).lower() for part in (*all_of(test, ast.Name), *all_of(test, ast.Attribute)))
    return any(word in name for name in names for word in _PROCESSES)


def _leads_past(root: ast.AST, test: ast.If, leaves: ast.stmt, backward: ast.AST) -> bool:
    """Whether what ends a block leads past a backward that would have followed in the same turn."""
    to_test, to_backward = _way(root, test), _way(root, backward)
    outer = to_test[:-1]
    if any(isinstance(part, _FUNCTIONS) for part in outer[1:]):
        return False
    loop = next((part for part in reversed(outer) if isinstance(part, _LOOPS)), None)
    if loop is None or loop not in to_backward:
        return isinstance(leaves, ast.Return) and _follows(to_test, to_backward)
    return _follows(to_test, to_backward)


def _follows(way: list[ast.AST], other: list[ast.AST]) -> bool:
    """Whether what one way leads to stands after the other, in the same block but for regions that end before it."""
    for parent, child in zip(reversed(way[:-1]), reversed(way[1:]), strict=True):
        for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and child in block:
                if any(after in other for after in block[block.index(child) + 1 :]):
                    return True
                break
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            return False
    return False


def _way(root: ast.AST, node: ast.AST) -> list[ast.AST]:
    """The nodes from one to another that it holds, both among them; none where it does not."""
    if root is node:
        return [root]
    for child in children(root):
        way = _way(child, node)
        if way:
            return [root, *way]
    return []


def _is_of(at: Interpreter, call: ast.Call, tensor: Tensor) -> bool:
    """Whether what is asked of comes from the forward from which a loss comes."""
    number = asked_number(call)
    made = assigned(at, number.id) if isinstance(number, ast.Name) else None
    if isinstance(made, ast.Call):
        made = asked_number(made)
    return any(of is not None and _comes_from(at, of, tensor) for of in (number, made))


def _comes_from(at: Interpreter, expression: ast.expr, tensor: Tensor) -> bool:
    """Whether an expression stands for a tensor from the same forward."""
    found: list[Value] = []
    at.unrecorded(lambda: found.append(at.evaluate(expression)))
    return any(part.forward is not None and part.forward is tensor.forward for part in found[0].tensors())


def _is_told(root: ast.AST, test: ast.If) -> bool:
    """Whether the processes may tell each other of what a test asks, by then or in its block."""
    calls = (call for call in all_of(root, ast.Call) if call.lineno <= (test.end_lineno or test.lineno))
    return any(word in last_name(call.func).lower() for call in calls for word in _TELLS)


def register(handlers: Handlers) -> None:
    handlers.backward_run.append(_run)
