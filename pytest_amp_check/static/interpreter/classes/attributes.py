"""Attributes of instances, classes, modules and unions."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import torch_api
from ...project.module import Class, Function
from ..delegation import find_delegate_name
from ..disabled_flags import assigns_attribute
from ..expressions.attributes import attribute_of, value_of_changed
from ..functions import inline_call
from ..identity import Operation, structural_unknown
from ..imports import module_member
from ..interpreter import Interpreter, first_result
from ..joins import for_each_alternative
from ..source_text import expression_text
from ..values.containers import MappingValue, UnionValue
from ..values.definitions import BoundMethod, ClassValue, ExternalName, FunctionValue, Instance, ModuleValue, SuperValue
from ..values.objects import ObjectRef
from ..values.value import Const, UnknownValue, Value
from .assigned_attributes import find_assigned_value
from .bound_methods import bind_method, defining_frame
from .lineage import is_enum, lineage_of, method_of

#: Methods of tracked objects that code may store for a later call.
BINDABLE_METHODS = {
    "scaler": torch_api.SCALER_METHODS,
    "optimizer": frozenset({"step", "zero_grad", "state_dict", "load_state_dict"}),
    "module": frozenset(
        {"parameters", "zero_grad", "state_dict", "load_state_dict", "forward", "half", "bfloat16", "to"}
    ),
}


def get_named_attribute(interp: Interpreter, receiver: ExternalName, name: str, node: ast.AST) -> Value:
    made = ExternalName(
        f"{receiver.name}.{name}", version_fallback=receiver.version_fallback, is_of_project=receiver.is_of_project
    )
    made.is_member = True
    return made


def get_module_attribute(interp: Interpreter, receiver: ModuleValue, name: str, node: ast.AST) -> Value:
    return module_member(interp, receiver, name) or ExternalName(f"{receiver.name}.{name}", is_of_project=True)


def get_attribute_of_each(interp: Interpreter, receiver: UnionValue, name: str, node: ast.AST) -> Value:
    made = for_each_alternative(interp, receiver, lambda each: attribute_of(interp, each, name, node))
    if not isinstance(made, UnknownValue):
        return made
    # The same access on the same union gives the same unknown value.
    known = structural_unknown(interp, Operation.ATTRIBUTE, (receiver,), made.source_text, name)
    known.normalization = known.normalization._replace(
        is_divided=made.normalization.is_divided, divisors=made.normalization.divisors
    )
    known.origin = known.origin._replace(
        is_comparison_result=made.origin.is_comparison_result, is_from_outside=made.origin.is_from_outside
    )
    return known


def get_class_attribute(interp: Interpreter, receiver: ClassValue, name: str, node: ast.AST) -> Value | None:
    if name not in receiver.cls.methods and is_enum(interp, receiver.cls):
        return Const((receiver.cls.module.path, receiver.cls.name, name))
    method = method_of(interp, receiver.cls, name)
    if method is not None and "staticmethod" in method.decorator_names():
        return FunctionValue(method, receiver.frame)
    setting = _setting_of_class(interp, receiver.cls, name) or _object_of_class(interp, receiver.cls, name)
    if setting is not None:
        return setting
    return BoundMethod(receiver, name) if name == "apply" else None


def _setting_of_class(interp: Interpreter, cls: Class, name: str) -> Const | None:
    """Return the number that a class of this file assigns to an attribute and that no code changes, or None.

    Flags and settings of other files are not known: users switch flags, and other files may assign settings.
    """
    if cls.module is not interp.module or cls.is_open:
        return None
    assigned = [
        each.value
        for each in cls.node.body
        if isinstance(each, (ast.Assign, ast.AnnAssign))
        and any(isinstance(target, ast.Name) and target.id == name for target in _targets_of(each))
    ]
    if len(assigned) != 1 or not isinstance(assigned[0], ast.Constant):
        return None
    number = assigned[0].value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return None if assigns_attribute(interp, name, cls.name) else Const(number)


def _object_of_class(interp: Interpreter, cls: Class, name: str) -> ObjectRef | None:
    """Return the scaler or another object that the body of a class makes and that no code replaces, or None."""
    made = next(
        (interp.class_vars[c.node].get(name) for c in lineage_of(interp, cls) if c.node in interp.class_vars), None
    )
    return made if isinstance(made, ObjectRef) and not assigns_attribute(interp, name, cls.name) else None


def _targets_of(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _method_above(interp: Interpreter, receiver: SuperValue, name: str) -> Function | None:
    """Return the method that ``super()`` finds: for a mixin, that of the class beside it in the class of the object."""
    lineage = receiver.receiver.lineage if isinstance(receiver.receiver, Instance) else []
    if receiver.cls not in lineage:
        return method_of(interp, receiver.cls, name, above=True)
    above = lineage[lineage.index(receiver.cls) + 1 :]
    return next((cls.methods[name] for cls in above if name in cls.methods), None)


def get_super_attribute(interp: Interpreter, receiver: SuperValue, name: str, node: ast.AST) -> Value:
    method = _method_above(interp, receiver, name)
    if method is not None:
        return FunctionValue(method, defining_frame(interp, method), receiver.receiver)
    if isinstance(receiver.receiver, ObjectRef) and name in BINDABLE_METHODS.get(receiver.receiver.role, ()):
        return BoundMethod(receiver.receiver, name)
    return interp.unknown_value(("super", receiver.cls.name, name), f"super().{name}")


def get_instance_attribute(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value:
    if name == "__dict__":
        return as_mapping(interp, receiver)
    value = interp.state.heap.get((receiver.key, name))
    if value is not None:
        if isinstance(value, UnknownValue) and receiver.is_changed(name) and not _is_scaler(receiver, name):
            value.loops |= interp.current_loops()
        return _unless_overwritten(interp, receiver, name, value)
    found = find_in_class(interp, receiver, name, node)
    if found is not None:
        return found
    assigned = find_assigned_value(interp, receiver, name)
    if assigned is not None:
        interp.store_attribute(receiver.key, name, assigned)
        return assigned
    if receiver.tracked_object is not None and name in BINDABLE_METHODS["module"]:
        return BoundMethod(receiver, name)
    found = first_result(interp.handlers.inherited_attributes, interp, receiver, name, node)
    found = found or ask_delegate(interp, receiver, node, lambda delegate: attribute_of(interp, delegate, name, node))
    return found or interp.unknown_value(("attribute of", receiver.key, name), expression_text(node))


def _is_scaler(receiver: Instance, name: str) -> bool:
    """Return True if a class uses an attribute as a scaler, which the program has from the first step on, or never."""
    return any(cls.module.role_by_text.get(f"self.{name}") == "scaler" for cls in receiver.lineage)


class _DelegatingInstances(set[int]):
    """Keys of the instances whose delegate the interpreter is asking."""


def ask_delegate(interp: Interpreter, receiver: Instance, node: ast.AST, ask: Callable[[Value], Value]) -> Value | None:
    """Return the answer of the object to which a class delegates what it lacks, or None.

    An instance may lack the delegate itself, or delegate to itself by way of others. Then the second question has no
    answer.
    """
    method = method_of(interp, receiver.cls, "__getattr__")
    wrapped = "" if method is None or receiver.tracked_object is not None else find_delegate_name(method)
    asked = interp.file_data(_DelegatingInstances)
    if not wrapped or receiver.key in asked:
        return None
    asked.add(receiver.key)
    try:
        return ask(attribute_of(interp, receiver, wrapped, node))
    finally:
        asked.discard(receiver.key)


def _unless_overwritten(interp: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """Return the value of an attribute, or an unknown value for a constant of an open instance.

    A constant is only a default if code may set any attribute of the instance.
    """
    if not isinstance(value, Const) or not receiver.is_open:
        return value
    return interp.unknown_value(("attribute of", receiver.key, name), name)


def find_in_class(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    """Return the method, property value or class attribute of an instance, or None."""
    method = method_of(interp, receiver.cls, name)
    if method is None:
        for owner in lineage_of(interp, receiver.cls):
            found = interp.class_vars.get(owner.node, {}).get(name)
            if found is not None:
                return _default_of_class(interp, receiver, owner, name, found)
        return None
    if method.is_property():
        got = inline_call(interp, FunctionValue(method, defining_frame(interp, method), receiver), [], {}, node)
        if "property" not in method.decorator_names():  # a cached property
            interp.store_attribute(receiver.key, name, got)
        return got
    return bind_method(interp, method, receiver)


def _default_of_class(interp: Interpreter, receiver: Instance, owner: Class, name: str, value: Value) -> Value | None:
    """Return what an instance has where the body of a class gives a default.

    A None that a method replaces stands for a value that is not there yet, and the default of a field for an argument.
    """
    if not isinstance(value, Const):
        return value
    if value.value is None and receiver.is_changed(name):
        return find_assigned_value(interp, receiver, name, maybe_none=True)
    if (value.value is None or isinstance(value.value, bool)) and owner.is_record():
        return interp.unknown_value(("attribute of", receiver.key, name), name)
    return value_of_changed(interp, receiver, name, _unless_overwritten(interp, receiver, name, value))


def as_mapping(interp: Interpreter, value: Instance) -> MappingValue:
    """Return the attributes of an instance as a dict; an instance of no record class may have more attributes."""
    return MappingValue(dict(interp.stored_attributes(value.key)), is_open=not value.cls.is_record())
