"""Evaluation of expressions and conditions. :mod:`.calls` evaluates calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import reduce

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.source_text import find_access_path
from ..project.module import item_name
from ..project.syntax import walk
from .comparisons import ItemCounts, RangeEnds, RangeSteps
from .conditions import Formula, conjunction, disjunction, literals, negate
from .counters import compute_constant, equality_formula, order_formula, truth_formula
from .dtypes import NO_DTYPE_INFO
from .formulas import is_none, truth_of
from .identity import record_division, record_multiplication, structural_unknown
from .imports import BUILTINS, look_up
from .interpreter import HandlerTable, Interpreter, first_result
from .joins import join_values, residual_condition, run_branches
from .microbatches import draws_from_iterator
from .source_text import expression_text, last_name, names_in, short_text, short_text_or
from .values.containers import MappingValue, SequenceValue, UnionValue, merge_into
from .values.definitions import ExternalName, FunctionValue, GeneratorValue, Instance
from .values.gradients import GradValue, ParamsValue, ScaleValue
from .values.objects import ObjectRef, StateDict
from .values.tensors import TensorValue, as_one_of_many
from .values.value import (
    EMPTY,
    NO_CONSTANT,
    NONE,
    ConditionValue,
    Const,
    UnknownValue,
    Value,
    are_data_sizes,
    join_provenance,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
#: Positive form of each negated operator: predicates use the positive form.
_POSITIVE_OPERATORS = {"is not": "is", "!=": "==", "not in": "in"}
_BOOL_OPERATIONS: dict[type[ast.AST], Callable[..., Formula]] = {ast.And: conjunction, ast.Or: disjunction}
#: Attributes, methods and functions that return an amount of data.
DATA_SIZE_NAMES = frozenset("shape size numel nelement len sum count_nonzero".split())
#: Maximum number of elements of an analyzed literal. A larger literal is data and becomes an unknown value.
MAX_LITERAL_ITEMS = 64
#: Maximum number of elements of a comprehension over scalers or optimizers that is analyzed item by item.
MAX_UNROLLED_ITEMS = 16


def _evaluate_constant(interp: Interpreter, node: ast.Constant) -> Value:
    return Const(node.value)


def _evaluate_name(interp: Interpreter, node: ast.Name) -> Value:
    value = look_up(interp, node.id)
    if value is None:
        value = _evaluate_unbound(interp, node.id)
    return _recognize_object(interp, value, node, node.id)


def _evaluate_unbound(interp: Interpreter, name: str) -> Value:
    module = interp.state.frame.module
    if name in torch_api.BARE and name not in module.functions_by_name:
        return ExternalName(torch_api.BARE[name], unresolved=True)
    if name in BUILTINS:
        return ExternalName(f"builtins.{name}")
    return interp.unknown_value(("global", module.path, name), name)


def _recognize_object(interp: Interpreter, value: Value, node: ast.expr, last: str) -> Value:
    """Return the tracked object for an unknown value that the file uses as a scaler, an optimizer or a module.

    ``last`` is the last name of the expression; an empty name skips the test of the name.
    """
    if last and last not in interp.state.frame.module.role_names:
        return value
    if isinstance(value, ExternalName) and not value.name.startswith(("torch.", "builtins.")):
        value = _imported_object(interp, value, node)
    if isinstance(value, UnionValue):
        options = [(formula, _recognize_object(interp, option, node, last)) for formula, option in value.options]
        known = any(new is not old for (_, new), (_, old) in zip(options, value.options, strict=True))
        return UnionValue(options) if known else value
    return _recognize_by_use(interp, value, node) if isinstance(value, UnknownValue) else value


def _recognize_by_use(interp: Interpreter, value: UnknownValue, node: ast.expr) -> Value:
    text, role = find_access_path(node) or "", role_by_use(interp, node)
    # `parameters` of such a value is an argument of that name in the heap, not a method of a module.
    if role is None or (role == "module" and (value.key, "parameters") in interp.state.heap):
        return value
    maker = interp.handlers.recognizers.get(role)
    if maker is not None:
        return maker(interp, role, value, text, node)
    tracked_object = interp.tracked_object(("used", value.key), role, text, interp.site_of(node))
    return ObjectRef(tracked_object, True, value)


def _imported_object(interp: Interpreter, value: ExternalName, node: ast.expr) -> Value:
    """Return an unknown value for an imported name that the file uses as a scaler, an optimizer or a module."""
    text = find_access_path(node)
    return (
        interp.unknown_value(("imported", value.name), text)
        if text and text in interp.state.frame.module.role_by_text
        else value
    )


def role_by_use(interp: Interpreter, node: ast.expr) -> str | None:
    """Return the role in which the file uses an expression (scaler, optimizer, module or function), or None."""
    return interp.state.frame.module.role_by_text.get(find_access_path(node) or "")


def is_used_as_optimizer(interp: Interpreter, target: ast.expr) -> bool:
    """Return True if the file uses the assigned expression as an optimizer."""
    return role_by_use(interp, target) == "optimizer"


def emit_found_optimizer(interp: Interpreter, target: ast.expr, value: UnknownValue) -> None:
    """Emit ``OPTIMIZER_NEW`` for an optimizer that unanalyzed code created or returned."""
    made = _recognize_object(interp, value, target, last_name(target))
    if made.role == "optimizer" and made.tracked_object is not None:
        interp.emit(e.OptimizerNew, target, made.tracked_object.key, found=True)


def _evaluate_attribute(interp: Interpreter, node: ast.Attribute) -> Value:
    receiver = interp.evaluate(node.value)
    return _recognize_object(interp, attribute_of(interp, receiver, node.attr, node), node, node.attr)


def attribute_of(interp: Interpreter, receiver: Value, name: str, node: ast.AST) -> Value:
    """Return the value of an attribute."""
    handler = interp.handlers.attributes.get(receiver.kind)
    found = handler(interp, receiver, name, node) if handler is not None else None
    key = receiver.identity_key(interp.unique_number) if found is None or isinstance(receiver, TensorValue) else None
    stored = interp.state.heap.get((key, name)) if isinstance(key, int) else None
    if found is not None:
        # The result of a model may be an object with a loss in an attribute that the code assigned.
        return stored if isinstance(stored, TensorValue) else found
    if stored is not None:
        return stored
    text = expression_text(node) if isinstance(node, ast.expr) else name
    made = structural_unknown(interp, "attribute", (receiver,), text, name)
    made.is_from_outside = receiver.is_from_outside
    made.owner_key = receiver.key if isinstance(receiver, UnknownValue) else -1
    made.is_from_gradient = made.is_from_gradient or name == "grad"
    made.is_comparison_result = receiver.is_call_result
    made.is_data_size = name in DATA_SIZE_NAMES
    return made


def _evaluate_subscript(interp: Interpreter, node: ast.Subscript) -> Value:
    receiver = interp.evaluate(node.value)
    index = interp.evaluate(node.slice)
    return _recognize_object(interp, item_of(interp, receiver, index, node), node, "")


def item_of(interp: Interpreter, receiver: Value, index: Value, node: ast.AST) -> Value:
    heap_key = _heap_key(interp, receiver, index)
    written = interp.state.heap.get(heap_key) if heap_key is not None else None
    if written is not None:
        return written
    fields = _record_fields(interp, receiver, node) if isinstance(index.value, int) else None
    known = (receiver if fields is None else fields).item_at(index)
    if known is not None:
        return known
    made = structural_unknown(interp, "item", (receiver, index), short_text_or(node))
    if isinstance(receiver, MappingValue):
        # Other code added the entry, or the code added the entry under an unknown key.
        made = made.with_provenance(
            join_provenance(entry for key, entry in receiver.items.items() if isinstance(key, tuple))
        )
    made.item_origin = item_origin_of(receiver, index)
    made.is_data_size = receiver.is_data_size
    return made


def _record_fields(interp: Interpreter, value: Value, node: ast.AST) -> SequenceValue | None:
    """Return the fields of a named tuple in the order of their declaration, or None for another value."""
    if not isinstance(value, Instance) or not value.cls.is_record() or "__iter__" in value.cls.methods:
        return None
    return SequenceValue([attribute_of(interp, value, name, node) for name in value.cls.declared_fields()])


def _heap_key(interp: Interpreter, receiver: Value, index: Value) -> tuple[int, str] | None:
    """Return the heap key for an item with a constant name in an unknown value or a tensor, or None."""
    if not isinstance(index.value, str) or receiver.kind not in ("unknown", "tensor"):
        return None
    key = receiver.identity_key(interp.unique_number)
    return (key, item_name(index.value)) if isinstance(key, int) else None


def _evaluate_sequence(interp: Interpreter, node: ast.Tuple | ast.List | ast.Set) -> Value:
    if len(node.elts) > MAX_LITERAL_ITEMS:
        return interp.fresh_unknown(node, "table")
    items = [interp.evaluate(element) for element in node.elts]
    return SequenceValue(items, is_open=any(isinstance(element, ast.Starred) for element in node.elts))


def _evaluate_dict(interp: Interpreter, node: ast.Dict) -> Value:
    if len(node.values) > MAX_LITERAL_ITEMS:
        return interp.fresh_unknown(node, "table")
    made = MappingValue({})
    for key, item in zip(node.keys, node.values, strict=True):
        value = interp.evaluate(item)
        if key is not None:
            made.items[_mapping_key(interp.evaluate(key), key)] = value
        else:
            merge_into(made, value)
    return made


def _mapping_key(value: Value, node: ast.AST) -> object:
    """Return the key of a dict entry. An unknown key is different from all other keys."""
    return value.value if value.value is not NO_CONSTANT else ("?", id(node))


def _evaluate_fstring(interp: Interpreter, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = interp.evaluate(part.value)
            _notify_use(interp, value, part.value)
    made = interp.fresh_unknown(node, "text")
    if node.values and isinstance(node.values[0], ast.Constant):
        made.text_prefix = str(node.values[0].value)
    return made


def _evaluate_comprehension(interp: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    """Evaluate a comprehension as one iteration of its loops, or item by item for a few known objects."""
    saved = dict(interp.state.frame.vars)
    first = node.generators[0]
    iterable = iterated_value(interp.evaluate(first.iter))
    unpacks = isinstance(node.elt, ast.Starred)
    items = _object_items(iterable) if len(node.generators) == 1 and not unpacks else None
    if items is not None and first.ifs:
        items = _filter_items(interp, first, items)
    made = (
        _evaluate_iteration(interp, node, iterable)
        if items is None
        else SequenceValue([_evaluate_for_item(interp, first, i, node.elt) for i in items])
    )
    interp.state.frame.vars = saved
    return made


def _filter_items(interp: Interpreter, generator: ast.comprehension, items: list[Value]) -> list[Value] | None:
    """Return the items that pass the conditions of a comprehension, or None if a condition is not known."""
    answers: list[tuple[Value, Formula]] = []

    def evaluate_filters() -> None:
        for item in items:
            assign_target(interp, generator.target, item)
            answers.append((item, reduce(conjunction, [condition_formula(interp, test) for test in generator.ifs])))

    # The caller evaluates the comprehension again if a condition is not known.
    interp.speculate(evaluate_filters)
    if not all(isinstance(answer, bool) for _, answer in answers):
        return None
    return [item for item, answer in answers if answer]


def _evaluate_for_item(interp: Interpreter, generator: ast.comprehension, item: Value, element: ast.expr) -> Value:
    """Evaluate the element of a comprehension for one item."""
    assign_target(interp, generator.target, item)
    return interp.evaluate(element)


def _evaluate_iteration(
    interp: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, iterable: Value
) -> Value:
    over_microbatches = False
    for generator in node.generators:
        if generator is not node.generators[0]:
            iterable = interp.evaluate(generator.iter)
        assign_target(interp, generator.target, element_of(interp, iterable, generator.iter))
        for test in generator.ifs:
            condition_formula(interp, test)
        over_microbatches = (
            over_microbatches
            or iterable.microbatches
            or (iterable.iterable_kind == "range" and draws_from_iterator((node.elt,)))
        )
    outer = interp.state.open_comprehensions
    interp.state.open_comprehensions = (*outer, -1 - len(outer))
    element = interp.evaluate(node.elt)
    if not _compares_with_fixed_value(node):
        element = as_one_of_many(element)
    if isinstance(node.elt, ast.Starred):
        # Python 3.15: [*each for each in lists].
        element = element_of(interp, element, node.elt.value)
    interp.state.open_comprehensions = outer
    if isinstance(element, ParamsValue) and element.is_single:
        return ParamsValue(element.modules, element.optimizers)
    if isinstance(element, GradValue):
        return element
    made = SequenceValue([element], is_open=True)
    made.microbatches = over_microbatches
    if len(node.generators) == 1 and not node.generators[0].ifs:
        _record_length(interp, made, iterable)
    return made


def _compares_with_fixed_value(node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> bool:
    """Return True if a comprehension calls a function with an argument that is the same for all items."""
    targets = frozenset[str]().union(*(names_in(generator.target) for generator in node.generators))
    return isinstance(node.elt, ast.Call) and any(targets.isdisjoint(names_in(given)) for given in node.elt.args)


def _record_length(interp: Interpreter, made: SequenceValue, iterable: Value) -> None:
    """Record that a list has as many items as the iterable, if that number is known."""
    length = interp.file_data(ItemCounts).length_of(iterable)
    if length is not None:
        interp.file_data(ItemCounts)[interp.unique_number(made)] = length


def _evaluate_dict_comp(interp: Interpreter, node: ast.DictComp) -> Value:
    first = node.generators[0]
    iterable = interp.evaluate(first.iter)
    if isinstance(iterable, StateDict):
        # The comprehension copies the state dict entry by entry.
        return iterable
    items = _object_items(iterable) if len(node.generators) == 1 else None
    saved = dict(interp.state.frame.vars)
    made = MappingValue({}, is_open=items is None)
    if items is None:
        assign_target(interp, first.target, element_of(interp, iterable, first.iter))
        for generator in node.generators[1:]:
            assign_target(interp, generator.target, element_of(interp, interp.evaluate(generator.iter), generator.iter))
        _add_pair(interp, made, node)
    for item in items or ():
        assign_target(interp, first.target, item)
        if not any(condition_formula(interp, test) is False for test in first.ifs):
            _add_pair(interp, made, node)
    interp.state.frame.vars = saved
    return made


def _add_pair(interp: Interpreter, made: MappingValue, node: ast.DictComp) -> None:
    key, value = interp.evaluate(node.key), _value_of(node)
    if value is None:
        merge_into(made, key)
    else:
        name = _mapping_key(key, node.key)
        # Each item has another unknown key.
        made.items[(*name, len(made.items)) if isinstance(name, tuple) else name] = interp.evaluate(value)


def _value_of(node: ast.DictComp) -> ast.expr | None:
    """Return the value of a dict comprehension, or None for ``{**each for each in dicts}`` of Python 3.15."""
    return node.value


def _object_items(iterable: Value) -> list[Value] | None:
    """Return the items of a short sequence with scalers, optimizers or state dicts, else None."""
    if not isinstance(iterable, SequenceValue) or iterable.is_open or len(iterable.items) > MAX_UNROLLED_ITEMS:
        return None
    return iterable.items if any(_holds_state(item) for item in iterable.items) else None


def iterated_value(value: Value) -> Value:
    """Return the values that a loop iterates over: for a dict, the keys."""
    return (
        SequenceValue([Const(key) for key in value.items], is_open=value.is_open)
        if isinstance(value, MappingValue)
        else value
    )


def representative_of(interp: Interpreter, value: Value, node: ast.expr) -> Value:
    """Return one element that stands for all elements. Loops over the same value get the same element."""
    if isinstance(value, SequenceValue) and len(value.items) == 1:
        return value.items[0]
    if isinstance(value, (GeneratorValue, ParamsValue)):
        return element_of(interp, value, node)
    if isinstance(value, UnknownValue) and value.iterable_kind == "enumerate":
        return SequenceValue(
            [
                _loop_index(interp, value, node, "index"),
                representative_of(interp, interp.file_data(EnumerateIterables)[value.key], node),
            ]
        )
    if isinstance(value, ObjectRef) and (itself := value.loop_element()) is not None:
        return itself
    if isinstance(value, SequenceValue):
        known = value.loop_element()
        # Each loop may build another list of the same items, as the methods of a dict do.
        return (
            known if known is not None else structural_unknown(interp, "each of", tuple(value.items), short_text(node))
        )
    return structural_unknown(interp, "each of", (value,), short_text(node))


def element_of(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    """Return the value that a loop over a value assigns in each iteration."""
    known = value.loop_element()
    if known is not None:
        return known
    resume = interp.handlers.loop_elements.get(value.kind)
    if resume is not None:
        return resume(interp, value, node)
    if isinstance(value, UnknownValue) and value.iterable_kind == "enumerate":
        return SequenceValue(
            [
                _loop_index(interp, value, node, "index"),
                element_of(interp, interp.file_data(EnumerateIterables)[value.key], node),
            ]
        )
    if isinstance(value, UnknownValue) and value.iterable_kind == "zip":
        return SequenceValue([element_of(interp, each, node) for each in interp.file_data(ZipIterables)[value.key]])
    made = (
        _loop_index(interp, value, node, "element")
        if value.iterable_kind == "range"
        else interp.fresh_unknown(node, "element")
    )
    made.is_loop_element = not value.iterable_kind
    made.is_from_gradient = value.is_from_gradient
    return made.with_dtype_info(value.dtype_info.part_info)


def _loop_index(interp: Interpreter, value: Value, node: ast.AST, name: str) -> UnknownValue:
    """Return the number that a loop over a range or an enumeration assigns."""
    made = interp.fresh_unknown(node, name)
    for notes in (interp.file_data(RangeEnds), interp.file_data(RangeSteps), interp.file_data(ItemCounts)):
        if isinstance(value, UnknownValue) and value.key in notes:
            notes[made.key] = notes[value.key]
    made.is_counter = made.is_iteration_count = made.is_loop_index = True
    made.first_value = value.first_value
    return made


def _evaluate_lambda(interp: Interpreter, node: ast.Lambda) -> Value:
    interp.captured_frames.append(interp.state.frame)
    return FunctionValue(interp.state.frame.module.functions[node], interp.state.frame)


def _evaluate_walrus(interp: Interpreter, node: ast.NamedExpr) -> Value:
    value = interp.evaluate(node.value)
    assign_target(interp, node.target, value)
    return value


def _evaluate_wrapped(interp: Interpreter, node: ast.Starred | ast.Await) -> Value:
    return interp.evaluate(node.value)


def _evaluate_yield(interp: Interpreter, node: ast.Yield) -> Value:
    return _record_yield(interp, interp.evaluate(node.value) if node.value is not None else NONE, node)


def _evaluate_yield_from(interp: Interpreter, node: ast.YieldFrom) -> Value:
    """Evaluate ``yield from`` as a loop with one yield, so one graph node yields all values."""
    iterable = interp.evaluate(node.value)
    frame, head = interp.state.frame, interp.builder.add_node()
    frame.yields_microbatches = frame.yields_microbatches or iterable.microbatches
    interp.builder.add_edge(interp.state.current_node, head)
    interp.state.current_node = head
    sent = _record_yield(interp, element_of(interp, iterable, node.value), node)
    interp.builder.add_edge(interp.state.current_node, head)
    return sent


def _report_yielded_region(interp: Interpreter, value: Value, node: ast.Yield | ast.YieldFrom) -> None:
    """Report an autocast that a context manager passes to its `with` block and does not enter.

    A `with` block in this file that binds the autocast may enter it.
    """
    function, module = interp.state.frame.function, interp.state.frame.module
    if function is None or not function.is_context_manager or interp.state.open_regions:
        return
    regions = [option for option in value.alternatives() if option.role == "autocast"]
    bound = re.search(rf"\bwith\b.{{0,200}}\b{function.name}\(.{{0,200}}\bas\b", module.text)
    if regions and node.value is not None and bound is None:
        interp.emit(e.ScopeLost, node.value, None, how="handed-out", names={"context": expression_text(node.value)})


def _record_yield(interp: Interpreter, value: Value, node: ast.Yield | ast.YieldFrom) -> Value:
    if any(loop.over_microbatches and loop.frame is interp.state.frame for loop in interp.state.loops):
        interp.state.frame.yields_microbatches = True
    _report_yielded_region(interp, value, node)
    if interp.state.frame.on_yield is not None:
        interp.state.frame.on_yield(value)
    return interp.fresh_unknown(node, "sent")


def _evaluate_if(interp: Interpreter, node: ast.IfExp) -> Value:
    formula = residual_condition(interp, condition_formula(interp, node.test))
    values: list[Value] = [NONE, NONE]

    def run_then() -> None:
        values[0] = interp.evaluate(node.body)

    def run_else() -> None:
        values[1] = interp.evaluate(node.orelse)

    is_fallback = interp.module.may_check_version and version_test_of(interp, node.test)[0]
    interp.state.fallback_depth += is_fallback
    run_branches(interp, formula, run_then, run_else)
    interp.state.fallback_depth -= is_fallback
    if isinstance(formula, bool):
        return values[0] if formula else values[1]
    return join_values(interp, formula, values[0], values[1], "ifexp")


def _evaluate_bool_op(interp: Interpreter, node: ast.BoolOp) -> Value:
    # "a or b" and "a and b" are nearly always conditions; they are values if one operand is None.
    sides = [(interp.evaluate(part), short_text(part)) for part in node.values]
    values = [value for value, _ in sides]
    formulas = [truth_of(interp, *side) for side in sides]
    if (
        len(values) == 2
        and isinstance(node.op, ast.Or)
        and not all(isinstance(v, (ConditionValue, UnknownValue)) for v in values)
    ):
        return join_values(interp, formulas[0], values[0], values[1], f"or {node.lineno}:{node.col_offset}")
    loops = EMPTY.union(*[value.loops for value in values])
    return ConditionValue(interp.shorten_formula(_BOOL_OPERATIONS[type(node.op)](*formulas)), loops)


def _evaluate_unary(interp: Interpreter, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        return ConditionValue(negate(condition_formula(interp, node.operand)), interp.current_loops())
    value = interp.evaluate(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(value.value, (int, float)):
        return Const(-value.value)
    if isinstance(value, (TensorValue, GradValue)):
        return value
    made = structural_unknown(interp, "unary", (value,), short_text(node), type(node.op).__name__)
    made.is_divided = value.is_divided
    made.is_comparison_result = value.is_comparison_result
    return made


def _evaluate_compare(interp: Interpreter, node: ast.Compare) -> Value:
    formula = condition_formula(interp, node)
    return Const(formula) if isinstance(formula, bool) else ConditionValue(formula, interp.current_loops())


def _evaluate_binary(interp: Interpreter, node: ast.BinOp) -> Value:
    left, right = interp.evaluate(node.left), interp.evaluate(node.right)
    op = _OPERATORS[type(node.op)]
    if op == "/" and isinstance(left, GradValue) and right.gradient_reads:
        # A gradient divided by its norm: the scale cancels.
        made = apply_operator(interp, op, left, right, node)
        mark_scale_undone(right.gradient_reads)
        return made
    for side, child, other in ((left, node.left, right), (right, node.right, left)):
        # The product or quotient of gradients and a number is still a gradient.
        if op not in ("*", "/") or not isinstance(side, GradValue) or isinstance(other, GradValue):
            _notify_use(interp, side, child)
    return apply_operator(interp, op, left, right, node)


def _notify_use(interp: Interpreter, value: Value, node: ast.AST) -> None:
    """Notify the operand handler that code computes with a value or prints a value."""
    handler = interp.handlers.operands.get(value.kind)
    if handler is not None:
        handler(interp, value, node)


def apply_operator(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    if NO_CONSTANT not in (left.value, right.value):
        known = compute_constant(op, left.value, right.value) or interp.fresh_unknown(node)
        known.is_divided = op == "/"
        return known
    combine = {"&": conjunction, "|": disjunction}.get(op)
    if combine is not None and isinstance(left, ConditionValue) and isinstance(right, ConditionValue):
        return ConditionValue(combine(left.formula, right.formula), left.loops | right.loops)
    special = first_result(interp.handlers.operators, interp, op, left, right, node)
    if special is not None:
        return special
    for side in (left, right):
        if isinstance(side, ParamsValue):
            return side
    return _combine_containers(op, left, right) or _unknown_operation(interp, op, left, right, node)


def _combine_containers(op: str, left: Value, right: Value) -> Value | None:
    """Return the result of an operator on two containers, or None."""
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and op == "+":
        return SequenceValue([*left.items, *right.items], is_open=left.is_open or right.is_open)
    if op == "|" and (isinstance(left, MappingValue) or isinstance(right, MappingValue)):
        merged = MappingValue({})
        for side in (left, right):
            merge_into(merged, side)
        return merged
    return None


def _unknown_operation(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> UnknownValue:
    """Return the result of an operator on two values of which at least one is not known."""
    made = structural_unknown(interp, "binary", (left, right), short_text_or(node, op), op)
    if op in ("+", "%") and isinstance(left.value, str):
        made.text_prefix = left.value.partition("%")[0] if op == "%" else left.value
    _propagate_counter(op, left, right, made)
    if op in ("+", "-") and isinstance(left, UnknownValue) and isinstance(right.value, int):
        made.owner_key = left.owner_key
    if op == "%":
        made.remainder_operands = left, right
    made.is_divided = made.is_divided or _may_average(interp, op, left, right)
    made.is_only_summed = (
        made.is_divided and op != "/" and all(side.is_only_summed for side in (left, right) if side.is_divided)
    )
    made.is_data_size = op in ("+", "*") and are_data_sizes((left, right))
    if op in ("+", "-", "*", "/"):
        made.is_comparison_result = (
            left.is_comparison_result
            or right.is_comparison_result
            or (op == "/" and left.is_only_summed and not made.is_divided)
        )
    if isinstance(left, UnknownValue):
        if op == "/" and not made.divisors and not is_iteration_data_size(interp, right):
            record_division(interp, made, left, right, node)
        elif op == "*":
            record_multiplication(interp, made, left, right)
    return made


def _propagate_counter(op: str, left: Value, right: Value, made: UnknownValue) -> None:
    """Mark the sum of a counter and a constant as a counter with an offset."""
    counted, other = (left, right) if left.is_counter else (right, left)
    made.is_counter = made.is_counter or counted.is_counter
    if counted.is_counter and op in ("+", "-") and isinstance(other.value, int):
        made.offset_base = counted.offset_base
        made.offset = counted.offset + (other.value if op == "+" else -other.value)
        made.first_value, made.is_loop_index = counted.first_value, counted.is_loop_index
        made.is_iteration_count = counted.is_iteration_count and left is counted


def execute_augmented_assign(interp: Interpreter, node: ast.AugAssign) -> None:
    target = node.target
    left = interp.evaluate(_as_load(target))
    right = interp.evaluate(node.value)
    op = _OPERATORS[type(node.op)]
    written = interp.handlers.augmented_assignments.get(left.kind)
    if written is not None:
        written(interp, left, apply_operator(interp, op, left, right, node), node)
        return
    if left.is_from_gradient and op in ("/", "*"):
        interp.emit(e.GradNormalise, node, None, None, owners=None)
    if _extend_container(op, left, right):
        return
    value = _augmented_value(interp, op, left, right, node)
    if value.is_divided and isinstance(target, ast.Subscript):
        owner, option = interp.evaluate(target.value), interp.evaluate(target.slice)
        if isinstance(owner, ParamsValue) and owner.is_param_group and option.value == "lr":
            for listener in interp.handlers.rate_division_listeners:
                listener(interp, owner)
    interp.expression_values[target] = left
    value = interp.annotate_dtype(ast.AugAssign, node, value)
    assign_target(interp, target, value, is_new=False)


def _extend_container(op: str, left: Value, right: Value) -> bool:
    """Extend a container by an operator. Return True if the operator extends a container."""
    if isinstance(left, SequenceValue) and op == "+":
        left.items.extend(right.items if isinstance(right, SequenceValue) else [right])
        return True
    if isinstance(left, MappingValue) and op == "|":
        merge_into(left, right)
        return True
    return False


def _augmented_value(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AugAssign) -> Value:
    """Return the result of an augmented assignment. A sum is a new unknown value in each iteration."""
    value = apply_operator(interp, op, left, right, node)
    # The next call finds another number in the attribute of the object.
    kept = isinstance(node.target, ast.Attribute) and isinstance(value, Const)
    if (
        op not in ("+", "-")
        or not (isinstance(value, UnknownValue) or kept)
        or not isinstance(left, (UnknownValue, Const))
    ):
        return value
    made = interp.fresh_unknown(node, short_text(node.target))
    # A number that grows by a constant in a loop counts the iterations, or the items of the iterations.
    made.is_counter = bool(interp.state.loops) and (isinstance(right.value, int) or left.is_counter)
    made.is_iteration_count = made.is_counter and op == "+" and right.value == 1
    made.is_divided, made.is_comparison_result, made.is_only_summed = (
        value.is_divided,
        value.is_comparison_result,
        value.is_only_summed,
    )
    return made.with_provenance(value.provenance)


def condition_formula(interp: Interpreter, node: ast.expr) -> Formula:
    """Return the formula of a condition."""
    match node:
        case ast.BoolOp():
            return _BOOL_OPERATIONS[type(node.op)](*(condition_formula(interp, part) for part in node.values))
        case ast.UnaryOp(op=ast.Not()):
            return negate(condition_formula(interp, node.operand))
        case ast.Compare():
            return _comparison_formula(interp, node)
        case _:
            return truth_formula(interp, interp.evaluate(node), node)


def _comparison_formula(interp: Interpreter, node: ast.Compare) -> Formula:
    values = [interp.evaluate(node.left), *(interp.evaluate(right) for right in node.comparators)]
    nodes = [node.left, *node.comparators]
    formulas = []
    for i, op in enumerate(node.ops):
        formula = _pair_formula(interp, _OPERATORS[type(op)], values[i], values[i + 1], nodes[i], nodes[i + 1], node)
        if isinstance(values[i], ScaleValue) or isinstance(values[i + 1], ScaleValue):
            for key, _ in literals(formula):
                interp.graph.predicates[key].compares_scales = True
        formulas.append(formula)
    return conjunction(*formulas)


def _pair_formula(
    interp: Interpreter,
    op: str,
    left: Value,
    right: Value,
    left_node: ast.expr,
    right_node: ast.expr,
    node: ast.Compare,
) -> Formula:
    positive = _POSITIVE_OPERATORS.get(op)
    if positive is not None:
        return negate(_pair_formula(interp, positive, left, right, left_node, right_node, node))
    if op in ("is", "=="):
        for value, other, side in ((left, right, left_node), (right, left, right_node)):
            if value.value is NO_CONSTANT and other.value is None:
                return is_none(interp, value, short_text(side), node)
            if value.value is NO_CONSTANT and isinstance(other.value, bool) and not isinstance(value, UnionValue):
                # For a flag, "is True" and "== True" have the formula of the flag itself.
                formula = truth_of(interp, value, short_text(side), node)
                return formula if other.value else negate(formula)
        return equality_formula(interp, left, right, node)
    if op == "in" and isinstance(left.value, str) and isinstance(right.value, str):
        return left.value in right.value
    known = compute_constant(op, left.value, right.value)
    if known is not None:
        return bool(known.value)
    if op in ("<", "<=", ">", ">="):
        return order_formula(interp, op, left, right, node)
    return interp.predicate_formula(
        (op, left.identity_key(interp.unique_number), right.identity_key(interp.unique_number)),
        short_text(node),
        left.loops | right.loops,
        node,
    )


def assign_target(interp: Interpreter, target: ast.expr, value: Value, *, is_new: bool = True) -> None:
    """Assign a value to a target.

    ``is_new`` says that each iteration of the open loops recreates the value. Otherwise the value continues from the
    last iteration.
    """
    if is_new and value.dtype_info is not NO_DTYPE_INFO:
        value = value.with_dtype_info(value.dtype_info._replace(assigned_loops=interp.current_loops()))
    _TARGETS[type(target)](interp, target, value, is_new)


def _assign_name(interp: Interpreter, target: ast.Name, value: Value, is_new: bool) -> None:
    record_name(interp, value, target.id)
    interp.state.frame.vars[target.id] = value


def _assign_rest(interp: Interpreter, target: ast.Starred, value: Value, is_new: bool) -> None:
    assign_target(interp, target.value, value, is_new=is_new)


def record_name(interp: Interpreter, value: Value, name: object) -> None:
    """Give a tracked object the first name it is assigned to.

    Mark a named autocast context as stored: code may enter the context again.
    """
    for option in value.alternatives():
        if isinstance(option, ObjectRef):
            option.tracked_object.name = option.tracked_object.name or str(name)
            if option.role == "autocast":
                option.tracked_object.attributes.stored = True


def _assign_unpacked(interp: Interpreter, target: ast.Tuple | ast.List, value: Value, is_new: bool) -> None:
    known = _unpacked_values(_record_fields(interp, value, target) or value, target.elts)
    for i, element in enumerate(target.elts):
        assign_target(
            interp,
            element,
            known[i] if known is not None else _unpacked_value(interp, value, element, i),
            is_new=is_new,
        )


def _unpacked_values(value: Value, targets: list[ast.expr]) -> list[Value] | None:
    """Return the values to which a sequence is unpacked, or None if the values are not known."""
    if not isinstance(value, SequenceValue):
        return None
    items, count = value.items, len(targets)
    starred = next((i for i, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
    if starred is not None and not value.is_open and len(items) >= count - 1:
        end = len(items) - (count - 1 - starred)
        return [*items[:starred], SequenceValue(items[starred:end]), *items[end:]]
    if starred is None and not value.is_open and len(items) == count:
        return items
    if len(items) == 1 and isinstance(items[0], TensorValue):
        # The single item stands for every item of a comprehension.
        return [items[0].copy() for _ in range(count)]
    return None


def _unpacked_value(interp: Interpreter, value: Value, element: ast.expr, index: int) -> Value:
    """Return one of the values to which a value is unpacked."""
    if isinstance(value, TensorValue) and not is_used_as_optimizer(interp, element):
        part = value.item_at(NONE)
        part.dtype_info = value.dtype_info.part_info
        return part
    if isinstance(value, (ParamsValue, GradValue)):
        return value if isinstance(element, ast.Name) else interp.fresh_unknown(element)
    made = structural_unknown(interp, "part", (value,), short_text(element), index)
    made.loops |= interp.current_loops()
    return made.with_dtype_info(value.dtype_info.part_info)


def _assign_attribute(interp: Interpreter, target: ast.Attribute, value: Value, is_new: bool) -> None:
    receiver, value = interp.evaluate(target.value), value.as_stored()
    if isinstance(value, ObjectRef):
        # Other methods may finish the work on the object.
        value.tracked_object.attributes.shared = True
    written = interp.handlers.attribute_writes.get(receiver.kind)
    if written is not None and written(interp, receiver, target.attr, value, target):
        return
    if target.attr == "grad":
        # A value that becomes the gradient of another tensor stays a gradient and keeps its scale.
        mark_scale_undone(value.gradient_reads)
        if value.is_divided:
            interp.emit(e.GradNormalise, target, None, None, owners=None)
    key = receiver.identity_key(interp.unique_number)
    if isinstance(key, int):
        record_name(interp, value, short_text(target))
        interp.store_attribute(key, target.attr, value)


def _write_field(interp: Interpreter, receiver: Instance, name: str, value: Value, target: ast.Attribute) -> bool:
    record_name(interp, value, short_text(target))
    _record_containment(receiver, value)
    if value.value is None and name in receiver.cls.changed_attributes:
        # Another method assigns the value.
        interp.state.heap.pop((receiver.key, name), None)
        interp.heap_writes.append((receiver.key, name))
    else:
        interp.store_attribute(receiver.key, name, _stored_value(interp, receiver, name, value))
    return True


def _record_containment(receiver: Instance, value: Value) -> None:
    """Record that a module attribute belongs to the module, and that an optimizer class wraps an optimizer."""
    if (
        value.role == "optimizer"
        and value.tracked_object is not None
        and receiver.cls.methods.keys() >= {"step", "zero_grad"}
    ):
        value.tracked_object.attributes.wrapped = True
    if (
        receiver.tracked_object is not None
        and value.tracked_object is not None
        and value.tracked_object.role == "module"
    ):
        attributes = receiver.tracked_object.attributes
        if attributes.parts is None:
            attributes.parts = set()
        attributes.parts.add(value.tracked_object.key)


def _stored_value(interp: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """Return the value to store in an attribute. A number that other methods change becomes an unknown value."""
    if value.value is NO_CONSTANT or isinstance(value.value, str) or name not in receiver.cls.changed_attributes:
        return value
    made = interp.unknown_value(("attribute of", receiver.key, name), name, interp.current_loops())
    made.is_counter = name in receiver.cls.counter_attributes
    return made.with_dtype_info(value.dtype_info)


def _assign_item(interp: Interpreter, target: ast.Subscript, value: Value, is_new: bool) -> None:
    receiver = interp.evaluate(target.value)
    index = interp.evaluate(target.slice)
    if isinstance(receiver, MappingValue):
        receiver.items[_mapping_key(index, target.slice)] = value
        record_name(interp, value, short_text(target))
    heap_key = _heap_key(interp, receiver, index)
    if heap_key is not None:
        interp.store_attribute(*heap_key, value)
    for listener in interp.handlers.item_write_listeners:
        listener(interp, receiver, index, target, value)


def _evaluate_slice(interp: Interpreter, node: ast.Slice) -> Value:
    bounds = [NONE if part is None else interp.evaluate(part) for part in (node.lower, node.upper, node.step)]
    return structural_unknown(interp, "slice", tuple(bounds), short_text_or(node))


class _VersionTests(dict[ast.expr, tuple[bool, tuple[str, ...]]]):
    """Version tests by condition: True if the condition asks about the installed torch, and its names."""

    def __missing__(self, test: ast.expr) -> tuple[bool, tuple[str, ...]]:
        nodes = walk(test)
        asks = any("version" in name.lower() or name == "hasattr" for name in map(last_name, nodes))
        made = self[test] = asks, tuple([node.id for node in nodes if isinstance(node, ast.Name)])
        return made


def version_test_of(interp: Interpreter, test: ast.expr) -> tuple[bool, tuple[str, ...]]:
    """Return True if a condition asks about the installed torch, and the names in the condition."""
    return interp.file_data(_VersionTests)[test]


def item_origin_of(receiver: Value, index: Value) -> tuple[int, str | None] | None:
    """Return the key of the unknown value that an index refers to and the item's name, or None."""
    if not isinstance(receiver, UnknownValue):
        return None
    return receiver.key, index.value if isinstance(index.value, str) else None


def _holds_state(value: Value) -> bool:
    """Return True if a value is a scaler, an optimizer or a state dict, or a sequence with such a value."""
    if isinstance(value, SequenceValue):
        return any(_holds_state(item) for item in value.items)
    return value.role in ("scaler", "optimizer") or isinstance(value, StateDict)


def mark_scale_undone(gradient_reads: tuple[e.GradientAccess, ...]) -> None:
    """Mark reads of scaled gradients as correct: the scale, or a number with the same scale, divides the result."""
    for event in gradient_reads:
        event.undone = True


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of an augmented assignment as an expression that loads the target."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


def is_remade_per_iteration(interp: Interpreter, value: Value) -> bool:
    """Return True if each iteration of the innermost loop recreates a value."""
    return bool(interp.state.loops) and interp.state.loops[-1].key in (value.loops or value.varying_loops())


def is_iteration_data_size(interp: Interpreter, divisor: Value) -> bool:
    """Return True if a value is the amount of this iteration's data. A quotient by such a value is a mean."""
    return divisor.is_data_size and is_remade_per_iteration(interp, divisor)


def _may_average(interp: Interpreter, op: str, left: Value, right: Value) -> bool:
    """Return True if a number may have been divided by a number of micro-batches."""
    if op == "/":
        return (left.is_divided and not left.is_only_summed) or not is_iteration_data_size(interp, right)
    if op == "*":
        return left.is_divided or right.is_divided
    sides = [side for side in (left, right) if side.value is NO_CONSTANT]
    return op in ("+", "-") and all(side.is_divided for side in sides)


class EnumerateIterables(dict[int, Value]):
    """Iterables of ``enumerate(...)`` calls, by the key of the call's value."""


class ZipIterables(dict[int, list[Value]]):
    """Iterables of ``zip(...)`` calls that the analysis must run, by the key of the call's value."""


#: Assignment function for each kind of target.
_TARGETS: dict[type[ast.AST], Callable[[Interpreter, Any, Value, bool], None]] = {
    ast.Name: _assign_name,
    ast.Tuple: _assign_unpacked,
    ast.List: _assign_unpacked,
    ast.Starred: _assign_rest,
    ast.Attribute: _assign_attribute,
    ast.Subscript: _assign_item,
}


def register(handlers: HandlerTable) -> None:
    for kind in ("instance", "module instance"):
        handlers.attribute_writes[kind] = _write_field
    handlers.expressions.update(
        {
            ast.Constant: _evaluate_constant,
            ast.Name: _evaluate_name,
            ast.Attribute: _evaluate_attribute,
            ast.Subscript: _evaluate_subscript,
            ast.Tuple: _evaluate_sequence,
            ast.List: _evaluate_sequence,
            ast.Set: _evaluate_sequence,
            ast.Starred: _evaluate_wrapped,
            ast.Dict: _evaluate_dict,
            ast.JoinedStr: _evaluate_fstring,
            ast.ListComp: _evaluate_comprehension,
            ast.SetComp: _evaluate_comprehension,
            ast.GeneratorExp: _evaluate_comprehension,
            ast.DictComp: _evaluate_dict_comp,
            ast.Lambda: _evaluate_lambda,
            ast.NamedExpr: _evaluate_walrus,
            ast.Await: _evaluate_wrapped,
            ast.Yield: _evaluate_yield,
            ast.YieldFrom: _evaluate_yield_from,
            ast.IfExp: _evaluate_if,
            ast.BoolOp: _evaluate_bool_op,
            ast.UnaryOp: _evaluate_unary,
            ast.Compare: _evaluate_compare,
            ast.BinOp: _evaluate_binary,
            ast.Slice: _evaluate_slice,
        }
    )
