"""Batches that a single rank skips because of a non-finite loss, while the other ranks wait to average gradients."""

from __future__ import annotations

import ast
from itertools import pairwise

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import EMPTY
from ..project.module import Module
from ..project.syntax import children
from .losses.backward import may_use_no_sync
from .nonfinite import current_code, find_asked_number, find_single_assignment, imported_name
from .syntax_queries import callee_of, constant_of_node, find_nodes, first_argument, last_name, receiver_of

#: Wrappers whose backward waits for all ranks.
_COLLECTIVE = frozenset(("ddp", "fsdp1", "fsdp2"))
#: Substrings in the names of calls that communicate between ranks: ``all_reduce``, ``reduce_dict``, ``gather``.
_TELLS = ("reduce", "gather", "broadcast")
#: Substrings in names that test for training on several ranks.
_PROCESSES = ("world", "rank", "dist", "ddp", "fsdp", "gpu", "process", "parallel", "device")
#: Contexts that let the other ranks continue when one rank has finished.
_JOINS = frozenset(("join", "Join"))
#: Names that reduce several results, or a tensor, to a single result.
_ONE_ANSWER = frozenset("any all item bool sum cpu".split())
_LEAVES = (ast.Continue, ast.Break, ast.Return)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _check_left_out(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    """Report a backward that runs only if this rank alone found the loss finite."""
    module = _find_collective_module(interp, tensor)
    if module is None:
        return
    root = current_code(interp)
    for test in find_nodes(root, ast.If):
        call = _find_skipping_question(interp, root, test, node)
        if call is not None and _asks_about(interp, call, tensor) and not _is_shared_with_ranks(root, test):
            names = {"call": expression_text(call), "module": module.name}
            interp.emit_at(e.LeftOut(interp.site_of(call), module.key, names=names))
            return


def _find_collective_module(interp: Interpreter, tensor: TensorValue) -> TrackedObject | None:
    """Return the module whose backward waits for all ranks, or None if code here may avoid the wait."""
    if may_use_no_sync(interp):
        return None
    keys = set(tensor.forwards.module_keys or EMPTY)
    if tensor.forwards.first_event is not None and tensor.forwards.first_event.subject is not None:
        keys.add(tensor.forwards.first_event.subject)
    objects = [interp.program.objects[key] for key in sorted(keys)]
    module = next(
        (each for each in objects if not _COLLECTIVE.isdisjoint(each.attributes.wrappers)),
        None,
    )
    return (
        None
        if module is None or _allows_uneven_ends(interp.module) or _allows_uneven_ends(interp.state.frame.module)
        else module
    )


def _allows_uneven_ends(module: Module) -> bool:
    """Return True if a file lets ranks finish at different times."""
    if module.identifiers.isdisjoint(_JOINS):
        return False
    contexts = [item.context_expr for block in module.find_nodes(ast.With) for item in block.items]
    return any(last_name(callee_of(context)) in _JOINS for context in contexts)


def _find_skipping_question(interp: Interpreter, root: ast.AST, test: ast.If, backward: ast.AST) -> ast.Call | None:
    """Return the finite check in a condition if a non-finite result skips the backward, else None."""
    asked = _find_finite_question(interp, test.test)
    if asked is None:
        return None
    call, finite = asked
    good, bad = (test.body, test.orelse) if finite else (test.orelse, test.body)
    if any(_find_node_path(part, backward) for part in good):
        # Code in the other branch may take part in the communication of the other ranks.
        return call if all(isinstance(part, (*_LEAVES, ast.Pass)) for part in bad) else None
    return call if bad and isinstance(bad[-1], _LEAVES) and _skips_backward(root, test, backward) else None


def _find_finite_question(interp: Interpreter, test: ast.expr) -> tuple[ast.Call, bool] | None:
    """Return the finite check of a condition, and the truth of the condition for a finite value. None if there is none.

    Other terms of the condition may keep a batch, but cannot make all ranks agree, unless a term mentions ranks.
    """
    if isinstance(test, ast.UnaryOp) and type(test.op) is ast.Not:
        inner = _find_finite_question(interp, test.operand)
        return None if inner is None else (inner[0], not inner[1])
    if isinstance(test, ast.BoolOp):
        parts = [_find_finite_question(interp, part) for part in test.values]
        if type(test.op) is not ast.And:
            return next((part for part in parts if part is not None and not part[1]), None)
        rest = [part for part, asked in zip(test.values, parts, strict=True) if asked is None]
        return None if any(map(_mentions_processes, rest)) else next(filter(None, parts), None)
    if isinstance(test, ast.Name):
        made = find_single_assignment(interp, test.id)
        return None if made is None or isinstance(made, ast.Name) else _find_finite_question(interp, made)
    if isinstance(test, ast.Compare):
        counts = type(test.ops[0]) is ast.Gt and constant_of_node(test.comparators[0]) == 0
        return _find_finite_question(interp, test.left) if counts else None
    name = imported_name(interp, callee_of(test))
    if isinstance(test, ast.Call) and name in torch_api.FINITE_CHECKS:
        return test, name == "isfinite"
    inside = (first_argument(test) or receiver_of(test)) if name in _ONE_ANSWER else None
    return None if inside is None else _find_finite_question(interp, inside)


def _mentions_processes(test: ast.expr) -> bool:
    """Return True if a condition mentions ranks: the number of ranks, or the rank of this process."""
    names = (last_name(part).lower() for part in (*find_nodes(test, ast.Name), *find_nodes(test, ast.Attribute)))
    return any(word in name for name in names for word in _PROCESSES)


def _skips_backward(root: ast.AST, test: ast.If, backward: ast.AST) -> bool:
    """Return True if a backward that the end of a conditional block skips comes later in the same iteration.

    Enclosing ``with`` blocks may end between the block and the backward.
    """
    to_test, to_backward = _find_node_path(root, test), _find_node_path(root, backward)
    if any(isinstance(part, _FUNCTIONS) for part in to_test[1:]):
        return False
    for child, parent in pairwise(reversed(to_test)):
        blocks = (block for _, block in ast.iter_fields(parent) if isinstance(block, list) and child in block)
        if any(after in to_backward for block in blocks for after in block[block.index(child) + 1 :]):
            return True
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            break
    return False


def _find_node_path(root: ast.AST, node: ast.AST) -> list[ast.AST]:
    """Return the nodes from a root down to a descendant, both included, or an empty list."""
    if root is node:
        return [root]
    for child in children(root):
        path = _find_node_path(child, node)
        if path:
            return [root, *path]
    return []


def _asks_about(interp: Interpreter, call: ast.Call, tensor: TensorValue) -> bool:
    """Return True if the operand of a finite check comes from the same forward as a loss."""
    number = find_asked_number(call)
    made = find_single_assignment(interp, number.id) if isinstance(number, ast.Name) else None
    if isinstance(made, ast.Call):
        made = find_asked_number(made)
    return any(of is not None and _has_same_forward(interp, of, tensor) for of in (number, made))


def _has_same_forward(interp: Interpreter, expression: ast.expr, tensor: TensorValue) -> bool:
    """Return True if an expression is a tensor from the same forward."""
    value = interp.without_events(lambda: interp.evaluate(expression))
    return any(
        part.forwards.first_event is not None and part.forwards.first_event is tensor.forwards.first_event
        for part in tensors_in(value)
    )


def _is_shared_with_ranks(root: ast.AST, test: ast.If) -> bool:
    """Return True if a call up to the end of the conditional block may share the condition with other ranks."""
    calls = (call for call in find_nodes(root, ast.Call) if call.lineno <= (test.end_lineno or test.lineno))
    return any(word in last_name(call.func).lower() for call in calls for word in _TELLS)


def register(handlers: HandlerTable) -> None:
    handlers.backward_start_listeners.append(_check_left_out)
