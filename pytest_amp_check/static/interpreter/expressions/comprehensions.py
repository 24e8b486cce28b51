"""Comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import reduce

from ..comparisons import ItemCounts
from ..conditions import Formula, conjunction
from ..interpreter import Interpreter
from ..microbatches import draws_from_iterator
from ..source_text import names_in
from ..state import Loop
from ..values.containers import MappingValue, SequenceValue, merge_into
from ..values.gradients import GradValue, ParamsValue, join_params
from ..values.objects import StateDict
from ..values.tensors import as_one_of_many
from ..values.value import Value, iterable_kind_of
from .assignments import assign_target
from .conditional import condition_formula
from .iteration import element_for, element_of, iterated_value, names_of_attributes
from .literals import mapping_key

#: Maximum number of elements of a comprehension over scalers or optimizers that is analyzed item by item.
MAX_UNROLLED_ITEMS = 16


def evaluate_comprehension(interp: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    """Evaluate a comprehension as one iteration of its loops, or item by item for a few known objects."""
    saved = dict(interp.state.frame.vars)
    first = node.generators[0]
    iterable = iterated_value(interp.evaluate(first.iter))
    unpacks = isinstance(node.elt, ast.Starred)
    items = _object_items(iterable) if not unpacks else None
    if items is None and not unpacks:
        items = names_of_attributes(iterable, first.target, [node.elt])
    if items is not None and first.ifs:
        items = _filter_items(interp, first, items)
    made = (
        _evaluate_iteration(interp, node, node.generators, iterable)
        if items is None
        else _concatenate(_evaluate_items(interp, node, items))
        if len(node.generators) > 1
        else SequenceValue(_evaluate_items(interp, node, items))
    )
    interp.state.frame.vars = saved
    return made


def _concatenate(parts: list[Value]) -> Value:
    """Return the list of all elements of several lists."""
    params = [part for part in parts if isinstance(part, ParamsValue)]
    if len(params) == len(parts):
        return join_params(params)
    lists = [part if isinstance(part, SequenceValue) else SequenceValue([part], is_open=True) for part in parts]
    return SequenceValue([item for each in lists for item in each.items], is_open=any(each.is_open for each in lists))


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


def _evaluate_items(
    interp: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, items: list[Value]
) -> list[Value]:
    """Return the element of a comprehension for each item of the first loop, or the lists of its elements."""
    first, *inner = node.generators
    found: list[Value] = []
    for _ in _iterations(interp, first.target, items):
        if inner:
            found.append(_evaluate_iteration(interp, node, inner, iterated_value(interp.evaluate(inner[0].iter))))
        else:
            found.append(interp.evaluate(node.elt))
    return found


def _iterations(interp: Interpreter, target: ast.expr, items: list[Value]) -> Iterator[Value]:
    """Assign each item to a target and yield it. Each iteration creates objects of its own."""
    for number, item in enumerate(items):
        loop = Loop(-1, len(interp.state.unwind_actions))
        loop.iteration = number
        interp.state.loops.append(loop)
        assign_target(interp, target, item)
        yield item
        interp.state.loops.pop()


def _evaluate_iteration(
    interp: Interpreter,
    node: ast.ListComp | ast.SetComp | ast.GeneratorExp,
    generators: list[ast.comprehension],
    iterable: Value,
) -> Value:
    """Evaluate one iteration of some loops of a comprehension; ``iterable`` is that of the first of them."""
    over_microbatches = False
    for generator in generators:
        if generator is not generators[0]:
            iterable = interp.evaluate(generator.iter)
        assign_target(interp, generator.target, element_for(interp, iterable, generator.target, generator.iter))
        for test in generator.ifs:
            condition_formula(interp, test)
        over_microbatches = (
            over_microbatches
            or iterable.microbatches
            or (iterable_kind_of(iterable) == "range" and draws_from_iterator((node.elt,)))
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


def evaluate_dict_comp(interp: Interpreter, node: ast.DictComp) -> Value:
    first = node.generators[0]
    iterable = interp.evaluate(first.iter)
    if isinstance(iterable, StateDict):
        # The comprehension copies the state dict entry by entry.
        saved = dict(interp.state.frame.vars)
        assign_target(interp, first.target, element_for(interp, iterable, first.target, first.iter))
        interp.evaluate(node.value)
        interp.state.frame.vars = saved
        return iterable
    items = _object_items(iterable) if len(node.generators) == 1 else None
    value = _value_of(node)
    if items is None and len(node.generators) == 1 and value is not None:
        items = names_of_attributes(iterable, first.target, [value])
    saved = dict(interp.state.frame.vars)
    made = MappingValue({}, is_open=items is None)
    if items is None:
        assign_target(interp, first.target, element_for(interp, iterable, first.target, first.iter))
        for generator in node.generators[1:]:
            element = element_for(interp, interp.evaluate(generator.iter), generator.target, generator.iter)
            assign_target(interp, generator.target, element)
        _add_pair(interp, made, node)
    for _ in _iterations(interp, first.target, items or []):
        if not any(condition_formula(interp, test) is False for test in first.ifs):
            _add_pair(interp, made, node)
    interp.state.frame.vars = saved
    return made


def _add_pair(interp: Interpreter, made: MappingValue, node: ast.DictComp) -> None:
    key, value = interp.evaluate(node.key), _value_of(node)
    if value is None:
        merge_into(made, key)
    else:
        name = mapping_key(key, node.key)
        # Each item has another unknown key.
        made.items[(*name, len(made.items)) if isinstance(name, tuple) else name] = interp.evaluate(value)


def _value_of(node: ast.DictComp) -> ast.expr | None:
    """Return the value of a dict comprehension, or None for ``{**each for each in dicts}`` of Python 3.15."""
    return node.value


def _object_items(iterable: Value) -> list[Value] | None:
    """Return the items of a short sequence with scalers, optimizers, modules or state dicts, else None."""
    if not isinstance(iterable, SequenceValue) or iterable.is_open or len(iterable.items) > MAX_UNROLLED_ITEMS:
        return None
    return iterable.items if any(_holds_state(item) for item in iterable.items) else None


def _holds_state(value: Value) -> bool:
    """Return True if a value is a scaler, an optimizer, a module or a state dict, or a sequence with such a value."""
    if isinstance(value, SequenceValue):
        return any(_holds_state(item) for item in value.items)
    return value.role in ("scaler", "optimizer", "module") or isinstance(value, StateDict)
