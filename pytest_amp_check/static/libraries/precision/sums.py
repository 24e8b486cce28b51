"""Sums over the iterations of a loop, and writes to items."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText, find_access_path
from ...interpreter.dtypes import GUESSED_LOW, INTEGERS, NUMBER, REGION_LEFT, SCALAR, ZEROS, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ..syntax_queries import callee_of, constant_of_node, find_nodes, keywords_of, last_name, operands_of, receiver_of
from .dtype_info import dtype_info_of, is_low_of_region, mark_left_region
from .events import emit_once
from .matmuls import is_low_where_written
from .operators import apply_operator


def check_assigned_sum(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Check ``total = total + x``, and the moving average ``mean = a * mean + b * x``.

    ``mean = x if mean is None else a * mean + b * x`` starts with the first value.
    """
    name = find_access_path(node.targets[0]) if len(node.targets) == 1 else None
    if name is None:
        return
    expression, first = node.value, None
    if isinstance(expression, ast.IfExp):
        is_first = _tests_for_none(expression.test, name)
        if is_first is None:
            return
        first, expression = (expression.body, expression.orelse) if is_first else (expression.orelse, expression.body)
    if isinstance(expression, ast.Call) and last_name(expression.func) == "lerp":
        # `torch.lerp(mean, x, b)` and `mean.lerp(x, b)`
        held = receiver_of(expression)
        parts = [*([held] if held is not None and find_access_path(held) == name else []), *expression.args]
        if len(parts) > 1 and find_access_path(parts[0]) == name:
            _check_running_sum(interp, parts[0], parts[1], node, in_place=False, first=first, average=True)
        return
    sides = operands_of(expression, ast.Add)
    for old, new in zip(sides, reversed(sides), strict=True):
        factors = operands_of(old, ast.Mult)
        before = next((part for part in factors or [old] if find_access_path(part) == name), None)
        if before is not None:
            first = first or _find_first_value(interp, name, node)
            observed = _find_observed_value(new, name)
            is_average = bool(factors) or observed is not None
            added = new if observed is None else observed
            _check_running_sum(interp, before, added, node, in_place=False, first=first, average=is_average)
            return


def _find_observed_value(added: ast.expr, name: str) -> ast.expr | None:
    """Return ``x`` of the summand ``(x - mean) / n`` of a running mean, or None for another summand."""
    for part in find_nodes(added, ast.BinOp):
        if isinstance(part.op, ast.Sub) and find_access_path(part.right) == name:
            return part.left
    return None


def _tests_for_none(test: ast.expr, name: str) -> bool | None:
    """Return True for a test that a variable is None, False for a test that it is not, and None for other tests."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            return isinstance(op, ast.Is) if find_access_path(left) == name else None
    return None


#: Methods that add to a tensor in place, and functions that add to their first argument where ``out`` is that argument.
_IN_PLACE_SUMS = frozenset("add_ lerp_ addmm_ baddbmm_ addbmm_ addmv_ addcmul_".split())
#: Methods that add their third argument to some elements in place.
_INDEXED_SUMS = frozenset(("index_add_", "scatter_add_"))
_ADDS_WITH_OUT = frozenset("add addmm baddbmm addbmm addmv addcmul".split())


class _BranchesOfAssignments(dict[ast.AST, dict[ast.Assign, ast.If]]):
    """Branch that each assignment of a function or module is directly in.

    A search for each sum takes quadratic time: a file of 20,000 lines took 90 seconds.
    """

    def __missing__(self, code: ast.AST) -> dict[ast.Assign, ast.If]:
        made = self[code] = {
            statement: branch
            for branch in find_nodes(code, ast.If)
            for statement in (*branch.body, *branch.orelse)
            if isinstance(statement, ast.Assign)
        }
        return made


def _find_first_value(interp: Interpreter, name: str, node: ast.Assign) -> ast.expr | None:
    """Return the value that the other branch gives a variable, or None without such a branch."""
    frame = interp.state.frame
    code = frame.module.tree if frame.function is None else frame.function.node
    branch = interp.file_data(_BranchesOfAssignments)[code].get(node)
    if branch is None:
        return None
    start = branch.orelse if node in branch.body else branch.body
    assigned = [each for each in start if isinstance(each, ast.Assign)]
    return next((each.value for each in assigned if find_access_path(each.targets[0]) == name), None)


def check_in_place_sum(interp: Interpreter, node: ast.Call) -> None:
    """Check ``total.add_(x)``, ``mean.mul_(a).add_(x, alpha=b)``, ``mean.lerp_(x, b)`` and ``total.addmm_(x, y)``.

    ``torch.add(total, x, out=total)`` is the same.
    """
    name = last_name(node.func)
    keywords = keywords_of(node)
    if constant_of_node(keywords.get("beta")) == 0:
        return
    if name in _ADDS_WITH_OUT and "out" in keywords:
        given = [*node.args, *(value for key, value in keywords.items() if key != "out")]
        path = find_access_path(keywords["out"])
        if path is not None and len(given) > 1 and find_access_path(given[0]) == path:
            _check_running_sum(interp, given[0], given[1], node, in_place=True)
    target = receiver_of(node)
    if target is not None and name in _INDEXED_SUMS and len(node.args) > 2:
        _check_running_sum(interp, target, node.args[2], node, in_place=True)
    if target is None or name not in _IN_PLACE_SUMS or not node.args:
        return
    decayed = receiver_of(target)
    is_average = decayed is not None and name == "add_" and last_name(callee_of(target)) == "mul_"
    if decayed is not None and is_average:
        target = decayed
    _check_running_sum(interp, target, node.args[0], node, in_place=True, average=is_average or name == "lerp_")


def _check_running_sum(
    interp: Interpreter,
    target: ast.expr,
    added: ast.expr,
    node: ast.AST,
    *,
    in_place: bool,
    first: ast.expr | None = None,
    average: bool = False,
) -> None:
    """Report a sum over the iterations of a loop that is kept in low precision.

    The variable must be zero before the loop, or start with a value ``first`` in the loop, and the summand must be
    computed in each iteration. A region in the iteration makes the summand low. If the zeros are already low, the
    summand may be computed anywhere.
    """
    held = target.value if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Tuple) else target
    name, known = find_access_path(held), interp.expression_values.get(held)
    if name is None or known is None or not interp.state.loops:
        return
    before = known.dtype_info
    starts = before.dtype == NUMBER or (before.is_low and ZEROS in before.traits)
    if first is not None:
        before = dtype_info_of(interp, first)._replace(assigned_loops=frozenset())
        starts = before.is_low
    if not starts:
        return
    indexed_loops = _loops_of_index(interp, target.slice) if isinstance(target, ast.Subscript) else frozenset[int]()
    if average and isinstance(held, ast.Name) and interp.assumed_dtype and not interp.project.assumed_dtype:
        return  # As often the gate of a recurrent layer.
    if average and in_place and interp.assumed_dtype and not interp.project.assumed_dtype:
        return  # A cast of the model decides about buffers (:mod:`.moving_averages`).
    # Each call of the method updates the average that the object keeps.
    is_kept = average and isinstance(held, ast.Attribute)
    is_made_anew = is_kept or _is_made_each_iteration(interp, added, name, before, indexed_loops)
    if not is_made_anew and not (before.is_low and _names_loop_item(interp, added, before)):
        return
    fact = dtype_info_of(interp, added)
    if GUESSED_LOW in fact.traits and _is_named_output(added):
        return
    if fact.is_low and REGION_LEFT in fact.traits:
        before = fact
    elif not before.is_low or fact.dtype == NUMBER or not (in_place or fact.is_low):
        return
    if not is_made_anew:
        # The items of a loop are few terms as often as many.
        before = before.with_traits(GUESSED_LOW)
    emit_once(interp, e.LowSum, node, before, average=average, names={"sum": SourceText(target)})


def _loops_of_index(interp: Interpreter, index: ast.expr) -> frozenset[int]:
    """Return the loops that select the element of an index. The variable of a loop selects it in this loop alone."""
    names = {name.id: name for name in find_nodes(index, ast.Name)}
    found: set[int] = set()
    for loop in interp.state.loops:
        if isinstance(loop.node, (ast.For, ast.AsyncFor)):
            own = {name.id for name in find_nodes(loop.node.target, ast.Name)} & names.keys()
            found.update([loop.key] if own else [])
            names = {name: node for name, node in names.items() if name not in own}
    for node in names.values():
        value = interp.expression_values.get(node)
        found.update(() if value is None else value.loops or value.varying_loops())
    return frozenset(found)


def _is_named_output(added: ast.expr) -> bool:
    """Return True if a value is a named entry of a model output.

    Such an entry is a loss or a count as often as a value that autocast casts.
    """
    while isinstance(added, ast.Call) and (held := receiver_of(added)) is not None:
        added = held
    match added:
        case ast.Attribute() | ast.Subscript(slice=ast.Constant(value=str())):
            return True
    return False


def _is_made_each_iteration(
    interp: Interpreter, added: ast.expr, name: str, before: DtypeInfo, indexed_loops: frozenset[int]
) -> bool:
    """Return True if a summand is recomputed in the iterations of a loop inside the sum's scope, and not from the sum.

    Loops in ``indexed_loops`` select the element to add to, so iterations of these loops do not accumulate.
    """
    attributes = find_nodes(added, ast.Attribute)
    # What is cast to the dtype of the sum is not computed from the sum.
    asked = {id(each.value) for each in attributes if each.attr in ("dtype", "device")}
    parts = [part for part in (*find_nodes(added, ast.Name), *attributes) if id(part) not in asked]
    loops = [loop for loop in interp.state.loops if loop.key not in before.assigned_loops | indexed_loops]
    since = {loop.key for loop in loops if not _has_few_iterations(loop.node)}
    if since and any(each.attr == "grad" for each in attributes):
        return True  # Each backward makes new gradients.
    values = [value for part in parts if (value := interp.expression_values.get(part)) is not None]
    made = [
        value.dtype_info.assigned_loops | (value.loops if value.kind == "tensor" else frozenset()) for value in values
    ]
    return name not in map(find_access_path, parts) and any(since & loops for loops in made)


def _names_loop_item(interp: Interpreter, added: ast.expr, before: DtypeInfo) -> bool:
    """Return True if a summand is computed from the variable of a loop inside the sum's scope."""
    loops = [loop.node for loop in interp.state.loops if loop.key not in before.assigned_loops]
    items = {
        target.id
        for loop in loops
        if isinstance(loop, (ast.For, ast.AsyncFor)) and not _has_few_iterations(loop)
        for target in find_nodes(loop.target, ast.Name)
    }
    return any(part.id in items for part in find_nodes(added, ast.Name))


def annotate_sum(interp: Interpreter, node: ast.AugAssign, value: Value) -> Value:
    before, kind = dtype_info_of(interp, node.target), type(node.op)
    after = apply_operator(interp, kind, before, dtype_info_of(interp, node.value), node, (node.target, node.value))
    if kind is ast.Add:
        _check_running_sum(interp, node.target, node.value, node, in_place=True)
        # What started at zero is still a sum from zero.
        after = after.with_traits(*(before.traits & {ZEROS}))
    return value.with_dtype_info(after._replace(assigned_loops=before.assigned_loops))


def check_item_write(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Check ``buffer[index] = x``. With index tensors this is ``index_put_``, which does not cast."""
    buffer, place, fact = (
        dtype_info_of(interp, target.value),
        dtype_info_of(interp, target.slice),
        mark_left_region(interp, value.dtype_info),
    )
    masks = place.dtype in INTEGERS or isinstance(target.slice, ast.Compare)
    # A single number is written like a fill, which casts.
    if not masks or SCALAR in fact.traits:
        return
    names = {"target": SourceText(target)}
    if buffer.dtype == "float32" and is_low_where_written(interp, fact):
        emit_once(interp, e.DtypeClash, target, fact, how="write", names=names)
    elif is_low_of_region(buffer) and fact.dtype == "float32":
        emit_once(interp, e.DtypeClash, target, buffer, how="write-wide", names=names)


def _has_few_iterations(loop: ast.AST | None) -> bool:
    """Return True if a loop is known to have fewer than 64 iterations."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return not isinstance(loop, ast.While)
    over = loop.iter
    if isinstance(over, ast.Call) and find_access_path(over.func) == "range" and len(over.args) == 1:
        iterations = constant_of_node(over.args[0])
        return isinstance(iterations, int) and iterations < 64
    return isinstance(over, (ast.Tuple, ast.List))
