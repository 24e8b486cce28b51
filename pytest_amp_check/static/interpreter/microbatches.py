"""Loops over the micro-batches of a window, recognized by the source of the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from ...protocol.source_text import find_access_path
from ..project.assignments import stored_names
from ..project.syntax import children, walk
from .source_text import last_name, names_in

#: Definitions inside a block, which are no part of the block.
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Calls that split a batch into micro-batches.
SPLITTING_CALLS = frozenset({"chunk", "split", "tensor_split", "array_split", "islice", "batched"})


#: The word micro-batch in a name: ``micro_batches``, ``microbatch``, ``MicroBatchIterator``.
_MICRO_BATCH = re.compile(r"micro_?batch|micro_?bs|micro_?step", re.IGNORECASE)


def is_microbatch_name(name: str) -> bool:
    """Return True if a name says that it stands for micro-batches."""
    return _MICRO_BATCH.search(name) is not None


def is_window_name(text: str) -> bool:
    """Return True if a source text names the number of micro-batches in a window.

    The name is an attribute or a key: ``self.accumulation_steps``, ``config["gradient_accumulation_steps"]``.
    """
    for opened, closed in (("['", "']"), ('["', '"]')):
        text = text.replace(opened, ".").replace(closed, "")
    return "accum" in text.rpartition(".")[2].lower() and text.replace(".", "").isidentifier()


def names_microbatches(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return True if a loop says by the names in its head that it runs over micro-batches."""
    if isinstance(loop, ast.While):
        return False
    nodes = [node for top in (loop.target, loop.iter) for node in walk(top)]
    return any(is_microbatch_name(last_name(node)) for node in nodes)


def draws_from_iterator(nodes: Iterable[ast.AST]) -> bool:
    """Return True if code takes an item from an iterator: ``next(it)`` or ``it.next()``."""
    calls = [node.func for top in nodes for node in walk(top) if isinstance(node, ast.Call)]
    return any(
        (isinstance(func, ast.Name) and func.id == "next")
        or (isinstance(func, ast.Attribute) and func.attr in ("next", "__next__"))
        for func in calls
    )


def receivers_of_calls(loop: ast.For | ast.AsyncFor | ast.While) -> list[ast.expr]:
    """Return the receivers of the method calls in a loop whose results are not used."""
    calls = [node.value for top in loop.body for node in walk(top) if isinstance(node, ast.Expr)]
    functions = [call.func for call in calls if isinstance(call, ast.Call)]
    return [function.value for function in functions if isinstance(function, ast.Attribute)]


def reads_gradients(body: list[ast.stmt]) -> bool:
    """Return True if an iteration accesses gradients, which may then be the gradients of that iteration alone."""
    return any(isinstance(node, ast.Attribute) and node.attr == "grad" for top in body for node in walk(top))


def is_index_selecting(body: list[ast.stmt], target: ast.expr) -> bool:
    """Return True if the loop index selects the data of an iteration: a time step, a view or a task."""
    names = names_in(target)
    subscripts = [node for top in body for node in walk(top) if isinstance(node, ast.Subscript)]
    return any(not names.isdisjoint(names_in(node.slice)) for node in subscripts)


def leaves_early(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return True if a loop may end early."""
    return any(isinstance(node, (ast.Break, ast.Return)) for top in loop.body for node in walk(top))


def external_counters(body: list[ast.stmt]) -> list[ast.Name | ast.Attribute]:
    """Return the names and attributes whose remainder a block takes without assigning them.

    Such a block is the body of a loop elsewhere: other code resets the counter, or passes the iteration number.
    """
    own = [node for top in body if not isinstance(top, _DEFINITIONS) for node in walk(top)]
    if any(isinstance(node, (ast.For, ast.AsyncFor, ast.While)) for node in own):
        return []
    begun = {find_access_path(target) for node in own if isinstance(node, ast.Assign) for target in node.targets}
    left = [node.left for node in own if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
    return [count for each in left for count in _counter_operands(each) if find_access_path(count) not in begun]


def _counter_operands(expression: ast.expr) -> list[ast.Name | ast.Attribute]:
    """Return the names and attributes in an expression."""
    found: list[ast.Name | ast.Attribute] = []
    stack: list[ast.AST] = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Name, ast.Attribute)):
            found.append(node)
        else:
            stack.extend(children(node))
    return found


def names_read(body: list[ast.stmt]) -> set[str]:
    """Return the names that a block reads and does not assign."""
    return names_in(*body) - stored_names(body).names


def names_assigned_beside(outer: ast.For | ast.AsyncFor | ast.While, inner: ast.stmt) -> set[str]:
    """Return the names that an iteration of a loop assigns outside an inner loop."""
    names: set[str] = set()
    stack: list[ast.AST] = [*outer.body, *([] if isinstance(outer, ast.While) else [outer.target])]
    while stack:
        node = stack.pop()
        if node is inner:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        stack.extend(children(node))
    return names
