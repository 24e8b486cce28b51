"""Branches and joins: two paths with a state each, and the join of states and values where paths merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...protocol import events as e
from ...protocol.torch_api import AUTOCAST, LOSS, LOSS_MODULE, NULL_CONTEXT, SURFACE, canonical_name
from ...protocol.tracked_objects import TrackedObject
from .conditions import (
    Formula,
    conjunction,
    count_predicates,
    disjunction,
    implied_literals,
    literals,
    mentions_key,
    negate,
    simplify_under,
)
from .dtypes import join
from .interpreter import Interpreter
from .values.containers import MappingValue, SequenceValue, UnionValue
from .values.definitions import ExternalName, Heap, Vars
from .values.gradients import ParamsValue, join_params
from .values.objects import FrameworkEngine, ObjectRef
from .values.tensors import TensorValue
from .values.value import NO_CONSTANT, NONE, ConditionValue, Divisor, UnknownValue, Value, join_provenance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: Maximum number of options of a union value. The join of more values is unknown.
MAX_OPTIONS = 8
#: Joins under a condition with fewer predicates are cached by condition and operands, so equal joins are equal values.
MAX_MEMO_PREDICATES = 4


def split_on(interp: Interpreter, formula: Formula) -> tuple[int | None, int | None]:
    """Split the graph on a condition. Return the nodes where the condition is true and where it is false.

    None stands for an unreachable branch.
    """
    if interp.state.current_node is None:
        return None, None
    if isinstance(formula, bool):
        return (interp.state.current_node, None) if formula else (None, interp.state.current_node)
    word = formula[0]
    yes: int | None
    no: int | None
    if word == "test":
        answered, denied = interp.builder.add_node(), interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, answered, formula[1], True)
        interp.builder.add_edge(interp.state.current_node, denied, formula[1], False)
        return answered, denied
    if word == "not":
        no, yes = split_on(interp, formula[1])
        return yes, no
    # Short circuit: "and" continues while its operands are true, "or" while they are false.
    every = word == "and"
    ends: list[int | None] = []
    for part in formula[1:]:
        yes, no = split_on(interp, part)
        interp.state.current_node, end = (yes, no) if every else (no, yes)
        ends.append(end)
    through = interp.state.current_node
    short = interp.builder.join_nodes(ends)
    return (through, short) if every else (short, through)


def residual_condition(interp: Interpreter, formula: Formula) -> Formula:
    """Return the part of a condition that the current path condition does not decide."""
    if isinstance(formula, bool):
        return formula
    known: dict[int, bool] = {}
    for each in interp.state.path_condition:
        # Most conditions are a single predicate or its negation.
        if isinstance(each, tuple) and each[0] == "test":
            known[each[1]] = True
        else:
            known.update(implied_literals(each))
    predicates = interp.graph.predicates
    for key, truth in list(known.items()):
        for when, implied, its_truth in predicates[key].implications:
            if when is truth:
                known.setdefault(implied, its_truth)
    return simplify_under(interp.shorten_formula(formula), known)


def run_branches(
    interp: Interpreter, formula: Formula, run_then: Callable[[], object], run_else: Callable[[], object]
) -> tuple[bool, bool]:
    """Execute two branches with separate variables, and join their states. Return True for each branch that ends.

    A branch ends if its last node is reachable.
    """
    formula = residual_condition(interp, formula)
    if isinstance(formula, bool):
        (run_then if formula else run_else)()
        return (
            (interp.state.current_node is not None, False)
            if formula
            else (False, interp.state.current_node is not None)
        )
    savepoint = interp.builder.set_savepoint(interp.state.current_node)
    yes, no = split_on(interp, formula)
    variables, heap, before = interp.state.frame.vars, interp.state.heap, len(interp.heap_writes)

    def run_branch(node: int | None, condition: Formula, act: Callable[[], object]) -> tuple[int | None, Vars, Heap]:
        interp.state.frame.vars, interp.state.heap, interp.state.current_node = dict(variables), dict(heap), node
        interp.state.path_condition.append(condition)
        act()
        interp.state.path_condition.pop()
        return interp.state.current_node, interp.state.frame.vars, interp.state.heap

    after_yes = run_branch(yes, formula, run_then)
    after_no = run_branch(no, negate(formula), run_else)
    _join_states(interp, formula, after_yes, after_no, before)
    if after_yes[0] is not None and after_no[0] is not None:
        interp.state.current_node = interp.builder.rollback_if_empty(savepoint, interp.state.current_node)
    return after_yes[0] is not None, after_no[0] is not None


def record_raise(interp: Interpreter) -> None:
    """Record that the code raises an exception at the current node: add an edge to the handler."""
    if interp.state.raising_nodes and interp.state.current_node is not None:
        node = interp.builder.add_node()
        interp.builder.add_edge(interp.state.current_node, node)
        interp.state.raising_nodes[-1].append(node)
        interp.state.raised_values[interp.builder.nodes[node]] = (
            interp.state.frame,
            interp.state.frame.vars,
            interp.state.heap,
        )


def _join_states(
    interp: Interpreter,
    formula: Formula,
    yes: tuple[int | None, Vars, Heap],
    no: tuple[int | None, Vars, Heap],
    write_count: int,
) -> None:
    if yes[0] is None:
        interp.state.current_node, interp.state.frame.vars, interp.state.heap = no
    elif no[0] is None:
        interp.state.current_node, interp.state.frame.vars, interp.state.heap = yes
    else:
        interp.state.current_node = interp.builder.join_nodes((yes[0], no[0]))
        interp.state.frame.vars = join_variables(interp, formula, yes[1], no[1])
        interp.state.heap = join_heaps(interp, formula, yes[2], no[2], write_count)


def join_variables(interp: Interpreter, formula: Formula, yes: Vars, no: Vars) -> Vars:
    """Join the variables of two branches; ``yes`` holds if the formula is true."""
    return _join_maps(interp, formula, yes, no, yes, {})


def join_heaps(interp: Interpreter, formula: Formula, yes: Heap, no: Heap, write_count: int) -> Heap:
    """Join the heaps of two branches that split after ``write_count`` heap writes.

    An attribute that only one branch has written has its initial value in the other branch.
    """
    written = dict.fromkeys(interp.heap_writes[write_count:])
    return _join_maps(interp, formula, yes, no, written, interp.initial_values)


def _join_maps(
    interp: Interpreter,
    formula: Formula,
    yes: dict[Any, Value],
    no: dict[Any, Value],
    keys: Iterable[Any],
    initial_values: Mapping[Any, Value],
) -> dict[Any, Value]:
    """Join two maps key by key. Only the given keys can differ."""
    joined = dict(no)
    for key in keys:
        value, other = yes.get(key), no.get(key)
        if value is None or other is None:
            initial = initial_values.get(key)
            value, other = value or initial, other or initial
        if other is None:
            if value is not None:
                joined[key] = value
        elif value is not None and other is not value:
            # An attribute of an instance has the instance in its key.
            name = f"self.{key[-1]}" if isinstance(key, tuple) else str(key)
            joined[key] = join_values(interp, formula, value, other, name)
    return joined


def join_values(interp: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> Value:
    """Return the value that is ``a`` if the formula is true and ``b`` otherwise."""
    if a is b or a.value is b.value is not NO_CONSTANT:
        return a
    if isinstance(formula, bool):
        return a if formula else b
    # None has no dtype: where the value is used as a tensor, it is the other one.
    info = b.dtype_info if a.value is None else a.dtype_info if b.value is None else join(a.dtype_info, b.dtype_info)
    return _join_different(interp, formula, a, b, name).with_dtype_info(info)


def _join_different(interp: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> Value:
    """Join two different values, without their dtype info."""
    if a.formula is not None and b.formula is not None:
        joined = disjunction(conjunction(formula, a.formula), conjunction(negate(formula), b.formula))
        return ConditionValue(interp.shorten_formula(joined), a.loops | b.loops)
    join_kind = _JOINS.get(a.kind) if a.kind == b.kind else None
    alike = join_kind(interp, formula, a, b, name) if join_kind is not None else None
    return alike or _make_union(interp, formula, a, b) or _join_to_unknown(interp, formula, a, b, name)


def _make_union(interp: Interpreter, formula: Formula, a: Value, b: Value) -> UnionValue | None:
    """Return the union of two values, or None if neither is relevant or the union has too many options."""
    if not (a.is_relevant or b.is_relevant):
        return None
    options = [(interp.shorten_formula(conjunction(formula, f)), v) for f, v in _conditional_options(a)]
    options += [(interp.shorten_formula(conjunction(negate(formula), f)), v) for f, v in _conditional_options(b)]
    options = [(f, v) for f, v in options if f is not False]
    return UnionValue(options) if len(options) <= MAX_OPTIONS else None


def _join_possible_starts(a: Value, b: Value) -> int | None:
    """Return the number with which the joined value may begin a count, if it is the only known one."""
    known = {start for start in (a.possible_start(), b.possible_start()) if start is not None}
    return known.pop() if len(known) == 1 else None


def _join_to_unknown(interp: Interpreter, formula: Formula, a: Value, b: Value, name: str) -> UnknownValue:
    """Return the unknown value that stands for either of two values."""
    # Two joins may happen at the same node.
    sides_key = a.identity_key(interp.unique_number), b.identity_key(interp.unique_number)
    key: object = (interp.graph.name, len(interp.builder.nodes), *sides_key)
    if (
        isinstance(a, UnknownValue)
        and isinstance(b, UnknownValue)
        and count_predicates(formula, MAX_MEMO_PREDICATES) < MAX_MEMO_PREDICATES
    ):
        # The same operands under the same condition give the same value at every join.
        key = (formula, *sides_key)
    joined = interp.unknown_value(("met", name, key), name, a.loops | b.loops)
    interp.joined_keys[joined.key] = [side.key for side in (a, b) if isinstance(side, UnknownValue)]
    is_divided, is_only_summed = _join_divided(a, b)
    divided = [side.normalization for side in (a, b) if side.normalization.is_divided]
    joined.normalization = joined.normalization._replace(
        is_divided=is_divided,
        is_only_summed=is_only_summed,
        is_only_by_number=is_divided and all(side.is_only_by_number for side in divided),
        is_data_size=a.normalization.is_data_size and b.normalization.is_data_size,
        may_be_one=any(side.normalization.may_be_one or side.value == 1 for side in (a, b)),
    )
    joined.count = joined.count._replace(possible_start=_join_possible_starts(a, b))
    joined.origin = joined.origin._replace(
        is_from_outside=a.origin.is_from_outside and b.origin.is_from_outside,
        is_comparison_result=a.origin.is_comparison_result or b.origin.is_comparison_result,
        is_from_gradient=a.origin.is_from_gradient or b.origin.is_from_gradient,
    )
    joined = joined.with_provenance(join_provenance((a, b)))
    sides = [side for side in (a, b) if isinstance(side, UnknownValue)]
    joined.gradient_reads = tuple(dict.fromkeys(reading for side in sides for reading in side.gradient_reads))
    if len(sides) == 2:
        joined.normalization = joined.normalization._replace(divisors=_join_divisors(interp, formula, *sides))
    return joined


def _join_names(
    interp: Interpreter, formula: Formula, a: ExternalName, b: ExternalName, name: str
) -> ExternalName | None:
    """Join two names: return the first name, with the condition of each dtype if both are dtypes.

    For autocast contexts and for losses the result is None, and a union keeps both.
    """
    if a.name != b.name and (_needs_union(a) or _needs_union(b)):
        return None
    first, second = a.possible_dtypes, b.possible_dtypes
    if first == second or not first or not second:
        return a
    joined = ExternalName(a.name, version_fallback=a.version_fallback)
    for dtypes, side in ((first, formula), (second, negate(formula))):
        for dtype, condition in dtypes.items():
            joined.dtype_conditions[dtype] = interp.shorten_formula(
                disjunction(joined.dtype_conditions.get(dtype, False), conjunction(side, condition))
            )
    return joined


def _join_divided(a: Value, b: Value) -> tuple[bool, bool]:
    """Return True if a loss was divided in one of two branches, and True if it was divided only by summing.

    A branch that replaces the loss by zeros, as for a batch to skip, says nothing about the loss of the other branch.
    """
    losses = [side for side in (a, b) if not side.normalization.is_zeros] or [a, b]
    divided = [side for side in losses if side.normalization.is_divided]
    return bool(divided), bool(divided) and all(side.normalization.is_only_summed for side in divided)


def _needs_union(value: ExternalName) -> bool:
    """Return True if no other name has the effect of a name: autocast, a null context or a loss."""
    entry = SURFACE.get(canonical_name(value.name))
    return entry is not None and entry.role in (AUTOCAST, NULL_CONTEXT, LOSS, LOSS_MODULE)


def _join_divisors(
    interp: Interpreter, formula: Formula, a: TensorValue | UnknownValue, b: TensorValue | UnknownValue
) -> frozenset[Divisor]:
    """Return the divisors of both branches, and divisors of one branch if the condition tests that very divisor."""
    if a.normalization.divisors == b.normalization.divisors:
        return a.normalization.divisors
    asked = {key for key, _ in literals(formula)}
    questions = [interp.predicates.question_of(key) for key in asked] if len(asked) == 1 else []
    both_ways = a.normalization.divisors & b.normalization.divisors
    return both_ways | {
        d
        for d in a.normalization.divisors ^ b.normalization.divisors
        if any(mentions_key(question, d.key) for question in questions)
    }


def _join_engines(
    interp: Interpreter, formula: Formula, a: FrameworkEngine, b: FrameworkEngine, name: str
) -> FrameworkEngine | None:
    """Return one engine for two engines of the same framework, or None."""
    if a.framework != b.framework:
        return None
    if a.tracked_object is b.tracked_object:
        return a
    enabled = disjunction(conjunction(formula, a.enabled), conjunction(negate(formula), b.enabled))
    steps = (
        a.accumulation_steps
        and b.accumulation_steps
        and join_values(interp, formula, a.accumulation_steps, b.accumulation_steps, "")
    )
    precision = join_values(interp, formula, a.precision, b.precision, "precision")
    joined = _join_objects(interp, a.tracked_object, b.tracked_object)
    return FrameworkEngine(a.framework, joined, enabled, a.recognized_from, precision, steps, a.optimizer)


def _join_refs(interp: Interpreter, formula: Formula, a: ObjectRef, b: ObjectRef, name: str) -> ObjectRef:
    if a.tracked_object is b.tracked_object:
        return a
    enabled = disjunction(conjunction(formula, a.enabled), conjunction(negate(formula), b.enabled))
    return ObjectRef(_join_objects(interp, a.tracked_object, b.tracked_object), interp.shorten_formula(enabled))


def _join_param_values(
    interp: Interpreter, formula: Formula, a: ParamsValue, b: ParamsValue, name: str
) -> ParamsValue | None:
    if a.is_single != b.is_single:
        return None
    merged = join_params([a, b])
    merged.is_single = a.is_single
    return merged


def _join_tensors(
    interp: Interpreter, formula: Formula, a: TensorValue, b: TensorValue, name: str
) -> TensorValue | None:
    if (a.loss_scale.scaler_key, a.loss_scale.has_mixed_scales) != (
        b.loss_scale.scaler_key,
        b.loss_scale.has_mixed_scales,
    ):
        return None
    tensor = TensorValue.join([a, b])
    is_divided, is_only_summed = _join_divided(a, b)
    tensor.normalization = tensor.normalization._replace(
        is_divided=is_divided, is_only_summed=is_only_summed, divisors=_join_divisors(interp, formula, a, b)
    )
    return tensor


def _join_unknowns(
    interp: Interpreter, formula: Formula, a: UnknownValue, b: UnknownValue, name: str
) -> UnknownValue | None:
    return a.with_provenance(join_provenance((a, b))) if a.key == b.key else None


def _join_sequences(
    interp: Interpreter, formula: Formula, a: SequenceValue, b: SequenceValue, name: str
) -> SequenceValue | None:
    if len(a.items) != len(b.items):
        return None
    pairs = zip(a.items, b.items, strict=True)
    items = [join_values(interp, formula, x, y, f"{name}[{i}]") for i, (x, y) in enumerate(pairs)]
    both_ways = SequenceValue(items, is_open=a.is_open or b.is_open)
    both_ways.microbatches = a.microbatches or b.microbatches
    return both_ways


def _join_mappings(
    interp: Interpreter, formula: Formula, a: MappingValue, b: MappingValue, name: str
) -> MappingValue | None:
    """Join two new dicts: both are still empty, so the code fills either of them in the same way."""
    return MappingValue({}, is_open=a.is_open or b.is_open) if not a.items and not b.items else None


#: Join of two values of the same kind; None if the result is no value of that kind.
_JOINS: dict[str, Callable[[Interpreter, Formula, Any, Any, str], Value | None]] = {
    "engine": _join_engines,
    "scaler": _join_refs,
    "optimizer": _join_refs,
    "module": _join_refs,
    "named": _join_names,
    "parameters": _join_param_values,
    "tensor": _join_tensors,
    "sequence": _join_sequences,
    "mapping": _join_mappings,
    "unknown": _join_unknowns,
}


def _join_objects(interp: Interpreter, a: TrackedObject, b: TrackedObject) -> TrackedObject:
    """Return one tracked object that stands for either of two objects, created in the two branches."""
    joined = interp.tracked_object(("either", a.key, b.key), a.role, a.name, a.site)
    joined.attributes.set_to_either(a.attributes, b.attributes)
    mine, others = a.attributes.owns, b.attributes.owns
    if mine is not None or others is not None:
        joined.attributes.owns = None if mine is None or others is None else mine | others
    if a.role == "scaler":
        joined.attributes.members = frozenset[int]().union(*(x.attributes.members or {x.key} for x in (a, b)))
    if a.role == "optimizer" and a.site is not None:
        # One of the branches recreates the optimizer, as far as is known.
        interp.emit_at(e.OptimizerNew(a.site, joined.key, found=True))
    return joined


def for_each_alternative(interp: Interpreter, value: Value, act: Callable[[Value], Value]) -> Value:
    """Apply ``act`` to each option of a receiver and join the results. None cannot be a receiver."""
    if not isinstance(value, UnionValue):
        return act(value)
    options = [(f, v) for f, v in value.options if v.value is not None]
    if not options:
        return interp.unknown_value(("of none", interp.unique_number(value)), "")
    return _run_alternatives(interp, options, act, excluded=len(options) < len(value.options))


def _run_alternatives(
    interp: Interpreter, options: list[tuple[Formula, Value]], act: Callable[[Value], Value], *, excluded: bool
) -> Value:
    formula, value = residual_condition(interp, options[0][0]), options[0][1]
    if len(options) == 1 and not excluded:
        return act(value)
    results: list[Value] = [NONE, NONE]

    def run_then() -> None:
        results[0] = act(value)

    def run_else() -> None:
        if len(options) > 1:
            results[1] = _run_alternatives(interp, options[1:], act, excluded=excluded)
        else:
            # A call of None raises: the path ends here. The event count keeps the branch in the graph.
            interp.state.current_node = None
            interp.builder.event_count += 1

    yes, no = run_branches(interp, formula, run_then, run_else)
    if not no:
        return results[0]
    if not yes:
        return results[1]
    return join_values(interp, formula, results[0], results[1], "each")


def _conditional_options(value: Value) -> list[tuple[Formula, Value]]:
    return value.options if isinstance(value, UnionValue) else [(True, value)]
