"""Classes of the project: their objects, what these hold, and whose methods they have."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events import Site
from ..project.module import Class, Function
from ..project.region_entry import enters_autocast
from ..project.syntax import root_name
from .contexts import SelfBindingHandler
from .expressions import attribute_of
from .functions import bind_unknown_arguments, inline_call, is_static
from .identity import structural_unknown
from .imports import globals_of, look_up, module_member
from .interpreter import HandlerTable, Interpreter, first_result, in_frame
from .joins import for_each_alternative, join_values
from .source_text import expression_text
from .unanalyzed_code import call_unknown, open_passed_mappings
from .values import (
    NONE,
    Args,
    BoundMethod,
    ClassValue,
    Const,
    ExternalName,
    Frame,
    FunctionValue,
    GeneratorContext,
    Instance,
    Keywords,
    MappingValue,
    ModuleValue,
    ObjectRef,
    SuperValue,
    UnionValue,
    UnknownValue,
    Value,
)

#: Methods of things that may be taken without being called.
BINDABLE_METHODS = {
    "scaler": torch_api.SCALER_METHODS,
    "optimizer": frozenset({"step", "zero_grad", "state_dict", "load_state_dict"}),
    "module": frozenset(
        {"parameters", "zero_grad", "state_dict", "load_state_dict", "forward", "half", "bfloat16", "to"}
    ),
}


def base_value(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    """The value of an expression that a class derives from; None while it is asked what the class has from there."""
    if cls in interp.pending_classes:
        return None
    interp.pending_classes.add(cls)
    value = _evaluate_base(interp, cls, base.value if isinstance(base, ast.Subscript) else base)
    interp.pending_classes.discard(cls)
    return value


def _evaluate_base(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return None
    root = root_name(base)
    globals_frame = globals_of(interp, cls.module)
    base_meant = interp.base_name_values.get((cls, root))
    if base_meant is not None:
        # The name may have another value by now: another class, or an object of this very one.
        globals_frame = Frame(None, globals_frame, None)
        globals_frame.vars[root] = base_meant
    # Names of a class that stands in a function are in view from there.
    frame = interp.state.frame if base_meant is None and interp.state.frame.module is cls.module else globals_frame
    value = in_frame(interp, frame, lambda: look_up(interp, base.id)) if isinstance(base, ast.Name) else None
    if value is None:
        value = in_frame(interp, globals_frame, lambda: interp.evaluate(base))
    if base_meant is not None:
        # What is imported is looked for once.
        interp.base_name_values[cls, root] = globals_frame.vars[root]
    return value


def role_of(interp: Interpreter, cls: Class) -> str | None:
    """The role that a class inherits from torch."""
    for owner in lineage_of(interp, cls):
        for base in owner.bases:
            value = base_value(interp, owner, base)
            role = _role_of_base(torch_api.canonical_name(value.name)) if isinstance(value, ExternalName) else None
            if role is not None:
                return role
    return None


def _role_of_base(named: str) -> str | None:
    """The role that a class of torch gives to those that derive from it."""
    is_module = named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper()
    if is_module:
        return torch_api.MODULE
    entry = torch_api.find_entry(named)
    # A class that derives from SGD is an optimizer, as one is that derives from Optimizer.
    made = entry.role if entry is not None and entry.role in (torch_api.OPTIMIZER, torch_api.SCALER) else None
    return torch_api.BASES.get(named, made)


def lineage_of(interp: Interpreter, cls: Class) -> list[Class]:
    """The classes of the project that a class derives from, itself first."""
    known = interp.lineage_by_class.get(cls)
    if known is not None:
        return known
    found: list[Class] = []
    todo = [cls]
    while todo and len(found) < 12:
        current = todo.pop(0)
        if current in found:
            continue
        found.append(current)
        for base in current.bases:
            value = base_value(interp, current, base)
            if isinstance(value, ClassValue):
                todo.append(value.cls)
    # While names are being looked for, a base may not be found yet; in this file, it may not be bound yet.
    if (
        not interp.pending_names
        and not interp.pending_classes
        and (interp.is_fully_bound or cls.module is not interp.module)
    ):
        interp.lineage_by_class[cls] = found
    return found


def method_of(interp: Interpreter, cls: Class, name: str, *, above: bool = False) -> Function | None:
    """The method that a class has by a name, or, ``above`` it, what ``super()`` gives."""
    for owner in lineage_of(interp, cls)[above:]:
        found = owner.methods.get(name)
        if found is not None:
            return found
    return None


def inherited_methods(interp: Interpreter, cls: Class) -> list[Function]:
    """The methods that a class has from others."""
    methods: dict[str, Function] = {}
    for owner in lineage_of(interp, cls):
        for name, method in owner.methods.items():
            methods.setdefault(name, method)
    return [method for method in methods.values() if method.cls is not cls]


def instance_of(interp: Interpreter, cls: Class, key: object, name: str, site: Site | None) -> Instance:
    """The object of a class that is made at a place."""
    made = interp.instances.get(key)
    if made is None:
        interp.last_serial += 1
        tracked_object = None
        if role_of(interp, cls) == torch_api.MODULE:
            tracked_object = interp.tracked_object(("instance", key), "module", name, site)
            tracked_object.attributes["read"] = has_plain_forward(interp, cls)
            tracked_object.attributes["casts"] = any(_may_cast(owner) for owner in lineage_of(interp, cls))
        made = interp.instances[key] = Instance(cls, interp.last_serial, tracked_object)
        made.is_open = any(owner.is_open for owner in lineage_of(interp, cls))
    return made


def has_plain_forward(interp: Interpreter, cls: Class) -> bool:
    """Whether the forward of a module class is in view and enters no autocast."""
    words: set[str] = set()
    for owner in lineage_of(interp, cls):
        words |= owner.used_names
    return method_of(interp, cls, "forward") is not None and "autocast" not in words


def _may_cast(cls: Class) -> bool:
    """Whether the objects of a module class may enter autocast by themselves."""
    return any("autocast" in word for word in cls.used_names) and enters_autocast(cls.node)


def _construct_instance(interp: Interpreter, func: ClassValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    cls = func.cls
    role = role_of(interp, cls)
    construct = interp.handlers.constructors.get(role or "")
    constructed = construct(interp, cls, args, keywords, node) if construct is not None else None
    if constructed is not None:
        return constructed
    made = instance_of(interp, cls, (interp.location_key(node), cls.name), "", interp.site_of(node))
    if made.tracked_object is not None:
        made.tracked_object.attributes["class"] = cls.name
    init = method_of(interp, cls, "__init__")
    if init is not None:
        inline_call(interp, FunctionValue(init, func.frame, made), args, keywords, node)
    else:
        _store_fields(interp, cls, made, args, keywords)
    return made


def _store_fields(interp: Interpreter, cls: Class, made: Instance, args: Args, keywords: Keywords) -> None:
    """The attributes of a dataclass, from the order in which it declares them."""
    for name, value in zip(cls.declared_fields(), args, strict=False):
        interp.store_attribute(made.key, name, value)
    for name, value in keywords.items():
        interp.store_attribute(made.key, name, value)
    # What is unpacked may hold a value for any of its fields.
    made.is_open = made.is_open or "**" in keywords


def find_own_method(interp: Interpreter, receiver: Value, name: str) -> FunctionValue | None:
    """A method that a class of the project gives a scaler, unless that method is what asks for it."""
    cls = receiver.tracked_object.attributes.get("cls") if isinstance(receiver, ObjectRef) else None
    method = method_of(interp, cls, name) if cls is not None else None
    return None if method is None or method in interp.active_functions else _bind_method(interp, method, receiver)


def _bind_method(interp: Interpreter, method: Function, receiver: Value | None) -> FunctionValue:
    return FunctionValue(method, defining_frame(interp, method), receiver, decorator_contexts(interp, method))


def defining_frame(interp: Interpreter, method: Function) -> Frame:
    """Where a method finds names that are none of its own: around its class, which may stand in a function."""
    enclosing = interp.enclosing_frames.get(method.cls) if method.cls is not None else None
    return globals_of(interp, method.module) if enclosing is None else enclosing


def _named_attribute(interp: Interpreter, receiver: ExternalName, name: str, node: ast.AST) -> Value:
    return ExternalName(f"{receiver.name}.{name}", version_fallback=receiver.version_fallback)


def _module_attribute(interp: Interpreter, receiver: ModuleValue, name: str, node: ast.AST) -> Value:
    return module_member(interp, receiver, name) or ExternalName(f"{receiver.name}.{name}")


def _attribute_of_each(interp: Interpreter, receiver: UnionValue, name: str, node: ast.AST) -> Value:
    made = for_each_alternative(interp, receiver, lambda each: attribute_of(interp, each, name, node))
    if not isinstance(made, UnknownValue):
        return made
    # Asked again of the same, it is the same.
    known = structural_unknown(interp, "attribute", (receiver,), made.source_text, name)
    known.is_divided, known.is_comparison_result, known.is_from_outside = (
        made.is_divided,
        made.is_comparison_result,
        made.is_from_outside,
    )
    known.divisors = made.divisors
    return known


def _class_attribute(interp: Interpreter, receiver: ClassValue, name: str, node: ast.AST) -> Value | None:
    if name not in receiver.cls.methods and _is_enum(interp, receiver.cls):
        return Const((receiver.cls.module.path, receiver.cls.name, name))
    return BoundMethod(receiver, name) if name == "apply" else None


def _is_enum(interp: Interpreter, cls: Class) -> bool:
    """Whether each name in a class stands for a value of its own."""
    bases = [base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases]
    return any(isinstance(base, ExternalName) and base.name.startswith("enum.") for base in bases)


def _super_attribute(interp: Interpreter, receiver: SuperValue, name: str, node: ast.AST) -> Value:
    method = method_of(interp, receiver.cls, name, above=True)
    if method is not None:
        return FunctionValue(method, defining_frame(interp, method), receiver.receiver)
    if isinstance(receiver.receiver, ObjectRef) and name in BINDABLE_METHODS.get(receiver.receiver.role, ()):
        return BoundMethod(receiver.receiver, name)
    return interp.unknown_value(("super", receiver.cls.name, name), f"super().{name}")


def _instance_attribute(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value:
    if name == "__dict__":
        return as_mapping(interp, receiver)
    value = interp.state.heap.get((receiver.key, name))
    if value is not None:
        if isinstance(value, UnknownValue) and name in receiver.cls.changed_attributes:
            value.loops |= interp.current_loops()
        return _unless_overwritten(interp, receiver, name, value)
    found = _find_in_class(interp, receiver, name, node)
    if found is not None:
        return found
    assigned = _find_assigned_value(interp, receiver, name)
    if assigned is not None:
        interp.store_attribute(receiver.key, name, assigned)
        return assigned
    if receiver.tracked_object is not None and name in BINDABLE_METHODS["module"]:
        return BoundMethod(receiver, name)
    found = first_result(interp.handlers.inherited_attributes, interp, receiver, name, node)
    return found or interp.unknown_value(("attribute of", receiver.key, name), expression_text(node))


def _unless_overwritten(interp: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """What an attribute holds; a constant is a default where any attribute may be given another value."""
    if not isinstance(value, Const) or not receiver.is_open:
        return value
    return interp.unknown_value(("attribute of", receiver.key, name), name)


def _find_in_class(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    """What an object has by a name from its class."""
    method = method_of(interp, receiver.cls, name)
    if method is None:
        shared = (interp.class_vars.get(owner.node, {}).get(name) for owner in lineage_of(interp, receiver.cls))
        found = next((value for value in shared if value is not None), None)
        return None if found is None else _unless_overwritten(interp, receiver, name, found)
    if "property" in method.decorator_names():
        return inline_call(interp, FunctionValue(method, defining_frame(interp, method), receiver), [], {}, node)
    return _bind_method(interp, method, receiver)


def decorator_contexts(interp: Interpreter, method: Function) -> tuple[Value, ...]:
    """Autocast and no_grad decorators of a method, as reading its class found them."""
    defined = (
        interp.class_vars.get(method.cls.node, {}).get(method.name)
        if method.cls
        else globals_of(interp, method.module).vars.get(method.name)
    )
    return defined.wrappers if isinstance(defined, FunctionValue) and defined.function is method else ()


def _find_assigned_value(interp: Interpreter, receiver: Instance, name: str) -> Value | None:
    """The value that some method of the class gives an attribute, read as if that method had been called."""
    assignments = [
        assignment for cls in lineage_of(interp, receiver.cls) for assignment in cls.assignments.get(name, ())
    ]
    maybe_none = any(isinstance(expression, ast.Constant) and expression.value is None for _, expression in assignments)
    for method, expression in assignments:
        value = _evaluate_assignment(interp, receiver, method, expression)
        if value is not None and maybe_none and not isinstance(value, UnknownValue):
            question = interp.predicate_formula(("set", receiver.key, name), name, frozenset())
            return join_values(interp, question, value, NONE, name)
        if value is not None:
            return value
    return None


def _evaluate_assignment(
    interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr
) -> Value | None:
    # An attribute may be given what is computed from itself, or from one that is computed from it.
    if (method in interp.active_functions and method.name != "__init__") or id(
        expression
    ) in interp.pending_assignments:
        return None
    interp.pending_assignments.add(id(expression))
    value = _evaluate_in_method(interp, receiver, method, expression)
    interp.pending_assignments.discard(id(expression))
    return None if value.value is None else value


def _evaluate_in_method(interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr) -> Value:
    outer, frame = interp.state.frame, Frame(method, defining_frame(interp, method), None)
    parameters = method.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = receiver
    frame.receiver, frame.cls = receiver, method.cls
    values: list[Value] = []
    interp.state.frame = frame
    interp.active_functions.append(method)
    bind_unknown_arguments(interp, frame, method)
    interp.without_events(lambda: values.append(interp.evaluate(expression)))
    interp.active_functions.pop()
    interp.state.frame = outer
    return values[0]


def call_method(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    method = method_of(interp, receiver.cls, name)
    if method is None:
        return NONE
    func = _bind_method(interp, method, receiver)
    if method.is_context_manager:
        return GeneratorContext(func, args, keywords, node)
    return inline_call(interp, func, args, keywords, node)


def _instance_method(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    stored = interp.state.heap.get((receiver.key, name))
    if stored is not None:
        return interp.call_value(stored, args, keywords, node)
    method = method_of(interp, receiver.cls, name)
    if method is not None:
        if receiver.tracked_object is not None and name == "forward":
            return interp.call_value(receiver, args, keywords, node)
        given = _find_in_class(interp, receiver, name, node) if "property" in method.decorator_names() else None
        if given is not None:
            return interp.call_value(given, args, keywords, node)
        return interp.call_value(
            _bind_method(interp, method, None if is_static(method) else receiver), args, keywords, node
        )
    found = first_result(interp.handlers.inherited_methods, interp, receiver, name, args, keywords, node)
    if found is not None:
        return found
    if receiver.tracked_object is not None:
        return interp.handlers.methods["module"](interp, receiver, name, args, keywords, node)
    if name == "_asdict":
        return as_mapping(interp, receiver)
    assigned = _find_assigned_value(interp, receiver, name)
    if assigned is not None:
        return interp.call_value(assigned, args, keywords, node)
    open_passed_mappings(interp, receiver, [*args, *keywords.values()])
    return call_unknown(
        interp, interp.unknown_value(("attribute of", receiver.key, name), expression_text(node)), args, keywords, node
    )


def _class_method(
    interp: Interpreter, receiver: ClassValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = first_result(interp.handlers.class_methods, interp, receiver, name, args)
    if found is not None:
        return found
    method = method_of(interp, receiver.cls, name)
    if method is None:
        return call_unknown(
            interp, interp.unknown_value(("class attribute", id(receiver.cls.node), name), name), args, keywords, node
        )
    if "classmethod" in method.decorator_names():
        args = [receiver, *args]
    return interp.call_value(FunctionValue(method, receiver.frame), args, keywords, node)


def _call_object(interp: Interpreter, func: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return call_method(interp, func, "__call__", args, keywords, node)


def _super_method(
    interp: Interpreter, receiver: SuperValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = _super_attribute(interp, receiver, name, node)
    if isinstance(found, FunctionValue):
        return inline_call(interp, found, args, keywords, node)
    if isinstance(found, BoundMethod):
        return interp.call_value(found, args, keywords, node)
    open_passed_mappings(interp, receiver.receiver, [*args, *keywords.values()])
    return call_unknown(interp, found, args, keywords, node)


def as_mapping(interp: Interpreter, value: Instance) -> MappingValue:
    """The attributes of an object as a dict; of one that is no record there may be more."""
    return MappingValue(dict(interp.stored_attributes(value.key)), is_open=not value.cls.is_record())


class _InstanceHandler(SelfBindingHandler):
    """An object whose class says what entering and leaving it does."""

    def enter(self, interp: Interpreter, value: Instance, node: ast.AST) -> None:
        call_method(interp, value, "__enter__", [], {}, node)

    def exit(self, interp: Interpreter, value: Instance, node: ast.AST, depth: int) -> None:
        call_method(interp, value, "__exit__", [NONE, NONE, NONE], {}, node)
        if interp.state.regions_entered:
            # What the object of a class has opened, it closes, in whatever way it finds its context again.
            interp.emit(e.AUTOCAST_EXIT, node, depth=depth)


def register(handlers: HandlerTable) -> None:
    handlers.calls.update({"class": _construct_instance, "instance": _call_object})
    handlers.methods.update({"super": _super_method, "class": _class_method})
    handlers.attributes.update(
        {
            "named": _named_attribute,
            "project module": _module_attribute,
            "choice": _attribute_of_each,
            "class": _class_attribute,
            "super": _super_attribute,
        }
    )
    for kind in ("instance", "module instance"):
        handlers.methods[kind] = _instance_method
        handlers.attributes[kind] = _instance_attribute
        handlers.contexts[kind] = _InstanceHandler()
