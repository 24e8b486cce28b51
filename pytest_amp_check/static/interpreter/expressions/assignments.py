"""Assignment of values to targets."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ...project.assignments import stored_names
from ...project.region_entry import runs_only_without_gradients
from ..dtypes import NO_DTYPE_INFO
from ..identity import Operation, structural_unknown
from ..interpreter import Interpreter
from ..source_text import short_text
from ..values.containers import MappingValue, SequenceValue, merge_into
from ..values.definitions import Instance
from ..values.gradients import GradValue, ParamsValue
from ..values.objects import ModuleContainer, ObjectRef
from ..values.tensors import TensorValue
from ..values.value import NONE, Const, UnknownValue, Value, join_provenance
from .attributes import attribute_of, fields_of_record, item_heap_key, item_of, value_of_changed
from .literals import mapping_key
from .names import is_used_as_optimizer
from .operators import OPERATOR_SYMBOLS, apply_operator, mark_scale_undone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def evaluate_walrus(interp: Interpreter, node: ast.NamedExpr) -> Value:
    value = interp.evaluate(node.value)
    assign_target(interp, node.target, value)
    return value


def execute_augmented_assign(interp: Interpreter, node: ast.AugAssign) -> None:
    target = node.target
    left = interp.evaluate(_as_load(target))
    right = interp.evaluate(node.value)
    op = OPERATOR_SYMBOLS[type(node.op)]
    written = interp.handlers.augmented_assignments.get(left.kind)
    if written is not None:
        written(interp, left, apply_operator(interp, op, left, right, node), node)
        return
    if left.origin.is_from_gradient and op in ("/", "*"):
        interp.emit(e.GradNormalise, node, None, None, owners=None)
    if _extend_container(op, left, right):
        return
    value = _augmented_value(interp, op, left, right, node)
    if value.normalization.is_divided and isinstance(target, ast.Subscript):
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
        left.append_items(right.items if isinstance(right, SequenceValue) else [right])
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
    made.count = made.count._replace(
        is_counter=bool(interp.state.loops) and (isinstance(right.value, int) or left.count.is_counter)
    )
    made.count = made.count._replace(is_iteration_count=made.count.is_counter and op == "+" and right.value == 1)
    made.normalization = made.normalization._replace(
        is_divided=value.normalization.is_divided, is_only_summed=value.normalization.is_only_summed
    )
    made.origin = made.origin._replace(is_comparison_result=value.origin.is_comparison_result)
    return made.with_provenance(value.provenance)


def assign_target(interp: Interpreter, target: ast.expr, value: Value, *, is_new: bool = True) -> Value:
    """Assign a value to a target, and return the assigned value.

    ``is_new`` says that each iteration of the open loops recreates the value. Otherwise the value continues from the
    last iteration.
    """
    if isinstance(value, TensorValue) and is_used_as_optimizer(interp, target):
        # Unanalyzed code that receives a tensor, or a method of a module, may also create optimizers.
        made = interp.fresh_unknown(target)
        for listener in interp.handlers.found_optimizer_listeners:
            listener(interp, value, made)
        value = made
    if is_new and value.dtype_info is not NO_DTYPE_INFO:
        value = value.with_dtype_info(value.dtype_info._replace(assigned_loops=interp.current_loops()))
    _TARGETS[type(target)](interp, target, value, is_new)
    return value


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
        if option.tracked_object is not None:
            option.tracked_object.name = option.tracked_object.name or str(name)
            if option.role == "autocast":
                option.tracked_object.attributes.stored = True


def _assign_unpacked(interp: Interpreter, target: ast.Tuple | ast.List, value: Value, is_new: bool) -> None:
    known = _unpacked_values(fields_of_record(interp, value, target) or value, target.elts)
    for i, element in enumerate(target.elts):
        assign_target(
            interp,
            element,
            known[i] if known is not None else _unpacked_value(interp, value, element, i),
            is_new=is_new,
        )


def _unpacked_values(value: Value, targets: list[ast.expr]) -> list[Value] | None:
    """Return the values to which a sequence is unpacked, or None if the values are not known."""
    if isinstance(value, ModuleContainer):
        value = SequenceValue(value.items)
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
    # The layers of a comprehension are alike.
    return [items[0]] * count if len(items) == 1 and items[0].role == "module" else None


def _unpacked_value(interp: Interpreter, value: Value, element: ast.expr, index: int) -> Value:
    """Return one of the values to which a value is unpacked."""
    if isinstance(value, TensorValue):
        part = value.item_at(NONE)
        part.dtype_info = value.dtype_info.item_info(index)
        return part
    if isinstance(value, (ParamsValue, GradValue)):
        return value if isinstance(element, ast.Name) else interp.fresh_unknown(element)
    made = structural_unknown(interp, Operation.PART, (value,), short_text(element), index)
    made.loops |= interp.current_loops()
    return made.with_dtype_info(value.dtype_info.item_info(index))


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
        if value.normalization.is_divided:
            interp.emit(e.GradNormalise, target, None, None, owners=None)
    key = receiver.identity_key(interp.unique_number)
    if isinstance(key, int):
        record_name(interp, value, short_text(target))
        if receiver.kind == "unknown" and (key, target.attr) not in interp.state.heap:
            _keep_initial_value(interp, (key, target.attr), lambda: attribute_of(interp, receiver, target.attr, target))
        interp.store_attribute(key, target.attr, value)


def _keep_initial_value(interp: Interpreter, key: tuple[int, str], read: Callable[[], Value | None]) -> None:
    """Keep the value that an attribute or item has before its first write, for the paths without the write."""
    value = None if key in interp.initial_values else read()
    if value is not None:
        interp.initial_values[key] = value


def write_field(interp: Interpreter, receiver: Instance, name: str, value: Value, target: ast.AST) -> bool:
    record_name(interp, value, short_text(target))
    _record_containment(interp, receiver, name, value)
    if value.value is None and receiver.is_changed(name):
        # Another method assigns the value.
        interp.state.heap.pop((receiver.key, name), None)
        interp.heap_writes.append((receiver.key, name))
    else:
        if (receiver.key, name) not in interp.state.heap:
            _keep_initial_value(interp, (receiver.key, name), lambda: _class_attribute(interp, receiver, name))
        interp.store_attribute(receiver.key, name, value_of_changed(interp, receiver, name, value))
    return True


def _class_attribute(interp: Interpreter, receiver: Instance, name: str) -> Value | None:
    """Return the value that the body of the class, or of a base in the project, gives an attribute, or None."""
    for cls in receiver.lineage:
        if name in stored_names(cls.node.body).names:
            value: Value | None = interp.class_vars.get(cls.node, {}).get(name)
            return value or interp.unknown_value(("attribute of", receiver.key, name), name)
    return None


def _record_containment(interp: Interpreter, receiver: Instance, name: str, value: Value) -> None:
    """Record that a module attribute belongs to the module, a scaler to its holder, and a wrapped optimizer."""
    if value.role == "scaler" and value.tracked_object is not None:
        value.tracked_object.attributes.held = True
    if (
        value.role == "optimizer"
        and value.tracked_object is not None
        and receiver.cls.methods.keys() >= {"step", "zero_grad"}
    ):
        value.tracked_object.attributes.wrapped = True
    # A model of an unknown class is recognized by its construction.
    part = interp.tracked_objects.get(("used", value.key)) if isinstance(value, UnknownValue) else value.tracked_object
    if receiver.tracked_object is not None and part is not None and part.role == "module":
        attributes = receiver.tracked_object.attributes
        if attributes.parts is None:
            attributes.parts = set()
        attributes.parts.add(part.key)
        methods = (method.node for cls in receiver.lineage for method in cls.methods.values())
        is_asked = isinstance(value, UnknownValue) or part.attributes.dtypes.low
        if is_asked and runs_only_without_gradients(methods, name):
            part.attributes.note_forward(with_gradients=False)


def _assign_item(interp: Interpreter, target: ast.Subscript, value: Value, is_new: bool) -> None:
    receiver = interp.evaluate(target.value)
    index = interp.evaluate(target.slice)
    if isinstance(receiver, MappingValue):
        key = mapping_key(index, target.slice)
        receiver.set_item(key, _replaced_item(interp, receiver.items.get(key), value, target))
        record_name(interp, value, short_text(target))
    elif isinstance(receiver, SequenceValue):
        receiver.set_item(index.value, _replaced_item(interp, receiver.item_at(index), value, target))
    heap_key = item_heap_key(interp, receiver, index)
    if heap_key is not None:
        if receiver.kind == "unknown" and heap_key not in interp.state.heap:
            _keep_initial_value(interp, heap_key, lambda: item_of(interp, receiver, index, target))
        interp.store_attribute(*heap_key, value)
    if isinstance(receiver, UnknownValue) and receiver.is_new_float32 and isinstance(target.value, ast.Name):
        # A tensor that is made empty and filled by its elements comes from where these were computed.
        filled = receiver.with_provenance(join_provenance([receiver, value]))
        interp.state.frame.vars[target.value.id] = filled
    for listener in interp.handlers.item_write_listeners:
        listener(interp, receiver, index, target, value)


def _replaced_item(interp: Interpreter, old: Value | None, value: Value, target: ast.Subscript) -> Value:
    """Return the value to store in a container in the place of another value.

    The branches of a condition share the container. A constant that one of them stores leaves the other value possible.
    """
    sides = (old, value)
    if not interp.state.path_condition or not all(isinstance(side, (Const, UnknownValue)) for side in sides):
        return value
    if not any(isinstance(side, Const) for side in sides):
        return value
    return interp.fresh_unknown(target, short_text(target)).with_dtype_info(value.dtype_info)


def _as_load(target: ast.expr) -> ast.expr:
    """Return the target of an augmented assignment as an expression that loads the target."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(target.id, ast.Load()), target)
    return target


#: Assignment function for each kind of target.
_TARGETS: dict[type[ast.AST], Callable[[Interpreter, Any, Value, bool], None]] = {
    ast.Name: _assign_name,
    ast.Tuple: _assign_unpacked,
    ast.List: _assign_unpacked,
    ast.Starred: _assign_rest,
    ast.Attribute: _assign_attribute,
    ast.Subscript: _assign_item,
}
