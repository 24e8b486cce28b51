"""Counters and remainders: one predicate for every spelling of "the accumulation window ends"."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol.source_text import NegatedText, SourceText
from .comparisons import ABOVE, BELOW, EQUAL, ItemCounts, RangeEnds, RangeSteps, record_comparison, record_window_end
from .conditions import Formula, conjunction, disjunction, literals, negate
from .enumerations import compare_members
from .formulas import truth_of
from .identity import Operation, structural_unknown
from .interpreter import Interpreter
from .microbatches import leaves_early, receivers_of_calls
from .source_text import short_text
from .values.containers import UnionValue
from .values.definitions import ExternalName, Frame, Instance
from .values.value import NO_CONSTANT, ConditionValue, Const, Count, UnknownValue, Value

_MIRRORED_OPERATORS = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_ARITHMETIC: dict[str, Callable[..., object]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b if isinstance(a, (int, float)) and isinstance(b, (int, float)) else None,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b if isinstance(a, (int, float)) else None,
    "**": lambda a, b: a**b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def truth_formula(interp: Interpreter, value: Value, node: ast.expr) -> Formula:
    """Return the formula of a condition that is no comparison."""
    if value.count.remainder_operands is not None:
        return negate(_remainder_formula(interp, *value.count.remainder_operands, 0, node))
    return _note_first_iteration(interp, truth_of(interp, value, short_text(node), node), "!=", value, Const(0))


def order_formula(interp: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """Return the formula of ``<``, ``<=``, ``>`` or ``>=``."""
    formula = (
        _zero_comparison(interp, _MIRRORED_OPERATORS[op], right, left, node)
        if isinstance(left, Const)
        else _zero_comparison(interp, op, left, right, node)
    )
    if formula is None:
        formula = _mark_counter_test(interp, op, _greater_formula(interp, op, left, right, node), left, right)
        _note_last_by_order(interp, op, left, right, formula)
    return _note_first_iteration(interp, formula, op, left, right)


def _zero_comparison(interp: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula | None:
    """Return the formula of ``x > 0`` or ``x <= 0`` as the truth of ``x``, or None.

    ``x`` must be a number that is never negative: a norm or a remainder.
    """
    if not isinstance(left, UnknownValue) or (op, right.value) not in ((">", 0), (">=", 1), ("<=", 0), ("<", 1)):
        return None
    any_left = op in (">", ">=")
    if left.count.remainder_operands is not None:
        formula = negate(
            _remainder_formula(
                interp, *left.count.remainder_operands, 0, node, _question_text(node, asked=not any_left)
            )
        )
    elif not left.count.is_counter and right.value == 0:
        formula = truth_of(interp, left, _question_text(node, asked=any_left), node)
    else:
        return None
    return formula if any_left else negate(formula)


def _question_text(node: ast.expr, *, asked: bool) -> object:
    """Return the source text of a comparison, negated if the predicate is the opposite comparison."""
    return short_text(node) if asked else NegatedText(short_text(node))


def _greater_formula(interp: Interpreter, op: str, left: Value, right: Value, node: ast.Compare) -> Formula:
    """Return one predicate for ``a > b``, ``b < a``, and the negations ``a <= b`` and ``b >= a``."""
    large, small = (left, right) if op in (">", "<=") else (right, left)
    question = ("greater", large.identity_key(interp.unique_number), small.identity_key(interp.unique_number))
    loops = left.loops | right.loops
    asked = op in ("<", ">")
    test = interp.predicate_for(question, _question_text(node, asked=asked), loops, node)
    record_comparison(interp, large, small, test.key, ABOVE)
    record_comparison(interp, small, large, test.key, BELOW)
    return ("test", test.key) if asked else ("not", ("test", test.key))


def _mark_counter_test(interp: Interpreter, op: str, formula: Formula, left: Value, right: Value) -> Formula:
    """Mark a comparison as a window predicate if it tests a counter of the innermost loop, except the loop index."""
    asked = literals(formula)
    sides = [_is_innermost_counter(interp, side) and not side.count.is_loop_index for side in (left, right)]
    if len(asked) == 1 and any(sides):
        ((key, positive),) = asked
        test = interp.graph.predicates[key]
        test.is_window_predicate = True
        if not all(sides):
            eventual_truth = positive if sides[op in ("<", "<=")] else not positive
            test.window_truth = test.window_truth._replace(eventual_truth=eventual_truth)
    return formula


def _is_innermost_counter(interp: Interpreter, value: Value) -> bool:
    """Return True if a value is a counter of the innermost loop."""
    return value.count.is_counter and bool(interp.state.loops) and interp.state.loops[-1].key in value.loops


def _note_first_iteration(interp: Interpreter, formula: Formula, op: str, left: Value, right: Value) -> Formula:
    """Record the truth of a comparison between a counter and a number in the first iteration of the loop."""
    asked = literals(formula)
    if len(asked) == 1:
        ((key, positive),) = asked
        known = compute_constant(op, left.first_iteration_value(), right.first_iteration_value())
        if known is not None:
            test = interp.graph.predicates[key]
            test.window_truth = test.window_truth._replace(eventually_excluded=bool(known.value) != positive)
    return formula


def equality_formula(interp: Interpreter, left: Value, right: Value, node: ast.Compare) -> Formula:
    """Return the formula of ``==``."""
    if NO_CONSTANT not in (left.value, right.value):
        return bool(left.value == right.value)
    if (
        isinstance(left, ExternalName)
        and isinstance(right, ExternalName)
        and left.possible_dtypes
        and right.possible_dtypes
    ):
        others = right.possible_dtypes
        same = [conjunction(one, others[dtype]) for dtype, one in left.possible_dtypes.items() if dtype in others]
        return interp.shorten_formula(disjunction(*same))
    known = compare_members(interp, left, right)
    if known is not None:
        return known
    for value, other in ((left, right), (right, left)):
        if value.role == "device" and value.before_recognition() is value and isinstance(other.value, str):
            # torch.device("cuda") == "cuda" is False.
            return False
        if isinstance(value, UnionValue):
            parts = [conjunction(f, equality_formula(interp, v, other, node)) for f, v in value.options]
            return interp.shorten_formula(disjunction(*parts))
        if value.count.remainder_operands is not None:
            return _remainder_equals(interp, value, value.count.remainder_operands, other, node)
        if isinstance(value, ConditionValue) and isinstance(other.value, bool):
            return value.formula if other.value else negate(value.formula)
    return _equality_predicate(interp, left, right, node)


def _equality_predicate(interp: Interpreter, left: Value, right: Value, node: ast.Compare) -> Formula:
    pair = sorted((repr(left.identity_key(interp.unique_number)), repr(right.identity_key(interp.unique_number))))
    test = interp.predicate_for(("equal", *pair), _as_equation(node), left.loops | right.loops, node)
    for value, other in ((left, right), (right, left)):
        if isinstance(other.value, (int, float)) and not isinstance(other.value, bool):
            record_comparison(interp, value, other, test.key, EQUAL)
        elif other.value is not NO_CONSTANT:
            _exclude_other_constants(interp, value.identity_key(interp.unique_number), test.key)
        elif isinstance(other, ExternalName) and other.name.rpartition(".")[2].isupper():
            # Constants of one unanalyzed class or module, such as an enumeration.
            _exclude_other_constants(
                interp, (value.identity_key(interp.unique_number), other.name.rpartition(".")[0]), test.key
            )
        _note_last_iteration(interp, value, other, test.key)
    test.is_window_predicate = (
        test.is_window_predicate or _is_innermost_counter(interp, left) or _is_innermost_counter(interp, right)
    )
    return _note_first_iteration(interp, ("test", test.key), "==", left, right)


def _note_last_iteration(interp: Interpreter, value: Value, other: Value, key: int) -> None:
    """Record that a predicate tests for the last iteration of a loop: ``i == n - 1`` or ``i + 1 == n``."""
    index = _index_of_last(interp, value, other)
    if index is None or interp.file_data(RangeSteps)[index.key].value != 1:
        return
    record_window_end(interp, interp.file_data(RangeEnds)[index.key], key)
    _record_last_iteration(interp, index, key, truth=True)


def _note_last_by_order(interp: Interpreter, op: str, left: Value, right: Value, formula: Formula) -> None:
    """Record that a predicate tests for the last iteration of a loop: ``i + k >= n`` or ``i < n - 1``."""
    large, small = (left, right) if op in (">=", "<") else (right, left)
    index = _index_of_last(interp, large, small)
    asked = literals(formula)
    if index is not None and len(asked) == 1:
        ((key, positive),) = asked
        _record_last_iteration(interp, index, key, truth=positive is (op in (">=", "<=")))


def _record_last_iteration(interp: Interpreter, index: UnknownValue, key: int, *, truth: bool) -> None:
    """Record the truth that a predicate has exactly in the last iteration of the loop of an index."""
    loop = next((loop for loop in reversed(interp.state.loops) if loop.key in index.loops), None)
    if loop is not None:
        loop.last_iteration_predicates.setdefault(key, truth)


def _index_of_last(interp: Interpreter, value: Value, bound: Value) -> UnknownValue | None:
    """Return the loop index of ``value``, or None.

    ``value`` reaches ``bound`` in the last iteration, and in no earlier iteration.
    """
    ends, steps = interp.file_data(RangeEnds), interp.file_data(RangeSteps)
    base = value.offset_base
    if isinstance(base, UnknownValue) and base.count.is_loop_index and base.key in ends:
        end, step = ends[base.key], steps[base.key]
        ahead = _difference(interp, end, bound)
        if ahead is not None and isinstance(step.value, int):
            return base if value.count.offset + ahead == step.value else None
        # ``i >= n - k``
        is_step_before = value.count.offset == 0 and _equals(
            interp, bound, structural_unknown(interp, Operation.BINARY, (end, step), "", "-")
        )
        return base if is_step_before else None
    # ``i + k >= n``
    for index in _loop_indices(interp):
        if index.key in ends and _equals(interp, bound, ends[index.key]):
            step = steps[index.key]
            if any(
                _equals(interp, value, structural_unknown(interp, Operation.BINARY, pair, "", "+"))
                for pair in ((index, step), (step, index))
            ):
                return index
    return None


def _loop_indices(interp: Interpreter) -> list[UnknownValue]:
    """Return the indices that the loops around the current node assign."""
    frames = {id(loop.frame): loop.frame for loop in interp.state.loops if loop.frame is not None}
    return [
        value
        for frame in frames.values()
        for value in frame.vars.values()
        if isinstance(value, UnknownValue) and value.count.is_loop_index and value.offset_base is value
    ]


def _difference(interp: Interpreter, end: Value, bound: Value) -> int | None:
    """Return ``end - bound`` if the difference is known, or None."""
    if isinstance(end.value, int) and isinstance(bound.value, int):
        return end.value - bound.value
    if _equals(interp, bound, end):
        return 0
    return 1 if _equals(interp, bound, _minus_one(interp, end)) else None


def _equals(interp: Interpreter, value: Value, other: Value) -> bool:
    number = interp.unique_number
    return value.identity_key(number) == other.identity_key(number)


def _minus_one(interp: Interpreter, number: Value) -> UnknownValue:
    """Return the value of the expression ``number - 1``."""
    return structural_unknown(interp, Operation.BINARY, (number, Const(1)), "", "-")


def _exclude_other_constants(interp: Interpreter, value: object, key: int) -> None:
    """Record that a value equal to one constant differs from all other constants that it is compared with."""
    known = interp.constant_comparisons.setdefault(value, [])
    if key not in known:
        for other in known:
            interp.graph.predicates[key].implications.append((True, other, False))
            interp.graph.predicates[other].implications.append((True, key, False))
        known.append(key)


def _remainder_equals(
    interp: Interpreter, value: Value, sides: tuple[Value, Value], other: Value, node: ast.Compare
) -> Formula:
    if isinstance(other.value, int):
        return _remainder_formula(interp, *sides, other.value, node)
    # ``i % k == k - 1``
    if _equals(interp, other, _minus_one(interp, sides[1])):
        return _remainder_formula(interp, *sides, -1, node)
    question = ("equal", value.identity_key(interp.unique_number), other.identity_key(interp.unique_number))
    return interp.predicate_formula(question, _as_equation(node), value.loops | other.loops, node)


def _remainder_formula(
    interp: Interpreter, count: Value, modulus: Value, remainder: int, node: ast.AST, source_text: object = None
) -> Formula:
    """Return the predicate ``count % modulus == remainder``, the same for every spelling."""
    known = modulus.value if isinstance(modulus.value, int) else 0
    if known == 1:
        return remainder == 0
    base, offset = count.offset_base, count.count.offset
    ahead = (offset - remainder) % known if known else offset - remainder
    question = ("modulo", base.identity_key(interp.unique_number), ahead, modulus.identity_key(interp.unique_number))
    loops = count.loops | modulus.loops
    if isinstance(base, UnknownValue) and base.owner_key >= 0:
        loops |= _loops_with_calls(interp, base.owner_key)
    test = interp.predicate_for(question, source_text or _as_equation(node), loops, node)
    counted = isinstance(count, UnknownValue) and (count.count.is_counter or bool(loops))
    test.is_window_predicate = counted and bool(interp.state.loops)
    record_window_end(interp, modulus, test.key)
    if known:
        _exclude_other_constants(interp, ("modulo", base.identity_key(interp.unique_number), known), test.key)
    else:
        # Neighbouring counts have the same remainder only in windows of one.
        for pair in (ahead - 1, ahead):
            _exclude_other_constants(interp, ("neighbours", question[1], question[3], pair), test.key)
    first = base.count.first_value
    # A start that the program resumes from is taken for the end of a window.
    begins = first if first is not None else base.count.added_to_start
    test.window_truth = test.window_truth._replace(
        is_off_by_one=_first_count(interp, base.count) == remainder - offset,
        is_true_once=known != 2,
        is_one_short=begins is not None and begins + offset - remainder == 2,
    )
    if known and isinstance(base, UnknownValue) and base.count.is_loop_index and base.count.first_value is not None:
        trailing = _trailing_microbatches(interp, base, base.count.first_value + offset - remainder, known)
        test.window_truth = test.window_truth._replace(trailing_microbatches=trailing)
    return ("test", test.key)


def _first_count(interp: Interpreter, count: Count) -> int | None:
    """Return the number of the first micro-batch of a program that does not resume, or None if it is not known.

    A method that only reads a counter may run before the counter is increased or after it.
    """
    if count.first_value is not None:
        return count.first_value
    function = interp.state.frame.function
    is_counted_here = count.is_iteration_count or (function is not None and count.counting_method is function)
    return count.possible_start if is_counted_here else None


def _loops_with_calls(interp: Interpreter, owner_key: int) -> frozenset[int]:
    """Return the keys of the loops whose body calls a method of an unknown object, as in ``progress.next_step()``.

    The method may count the iterations.
    """
    return frozenset(
        loop.key
        for loop in interp.state.loops
        if loop.node is not None
        and loop.frame is not None
        and any(_key_of_path(interp, loop.frame, receiver) == owner_key for receiver in receivers_of_calls(loop.node))
    )


def _key_of_path(interp: Interpreter, frame: Frame, path: ast.expr) -> object:
    """Return the identity of the value of a name or an attribute, or None if it is not known."""
    if isinstance(path, ast.Name):
        value = frame.vars.get(path.id)
        return value.identity_key(interp.unique_number) if isinstance(value, (UnknownValue, Instance)) else None
    owner = _key_of_path(interp, frame, path.value) if isinstance(path, ast.Attribute) else None
    if not isinstance(path, ast.Attribute) or owner is None:
        return None
    if isinstance(owner, tuple):
        stored = interp.state.heap.get((owner[1], path.attr))
        return stored.identity_key(interp.unique_number) if isinstance(stored, (UnknownValue, Instance)) else None
    known = interp.unknown_values.get((Operation.ATTRIBUTE, path.attr, (owner,)))
    return known.key if known is not None else None


def _trailing_microbatches(
    interp: Interpreter, index: UnknownValue, at_first: int, modulus: int
) -> tuple[int, int] | None:
    """Return the number of iterations after the last divisible count, and the number of all iterations.

    None means that the numbers are not known, or that the iterations divide evenly.
    """
    loop, length = interp.state.loops[-1] if interp.state.loops else None, interp.file_data(ItemCounts).get(index.key)
    count = length.value if length is not None else None
    if loop is None or loop.key not in index.loops or loop.node is None or not isinstance(count, int) or count < 1:
        return None
    if leaves_early(loop.node):
        return None
    left = min((at_first + count - 1) % modulus, count)
    return (left, count) if left else None


def _as_equation(node: ast.AST) -> SourceText:
    """Return the source text of an equality predicate in the form ``a == b``, for each spelling."""
    if isinstance(node, ast.expr) and not isinstance(node, ast.Compare):
        return SourceText(ast.Compare(node, [ast.Eq()], [ast.Constant(0)]), 80)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.NotEq):
        return SourceText(ast.Compare(node.left, [ast.Eq()], node.comparators), 80)
    return short_text(node)


def compute_constant(op: str, left: object, right: object) -> Const | None:
    """Return the result of an operation on numbers and strings, or None."""
    if not isinstance(left, (int, float, str)) or not isinstance(right, (int, float, str)):
        return None
    operation = _ARITHMETIC.get(op)
    if operation is None or (op == "**" and isinstance(right, (int, float)) and abs(right) > 64):
        return None
    try:
        made = operation(left, right)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return None if made is None else Const(made)
