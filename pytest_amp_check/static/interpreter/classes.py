"""Classes of the project: instances, attributes, inheritance and methods."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.sites import Site
from ..project.assignments import assigned_pairs
from ..project.forward_regions import forward_region_dtype
from ..project.module import Class, Function, methods_called_on
from ..project.region_entry import RUNNING_METHODS, enters_autocast
from ..project.syntax import root_name, statements_in, walk
from .contexts import SelfBindingHandler
from .delegation import find_delegate_name
from .disabled_flags import assigns_attribute
from .expressions.attributes import attribute_of, value_of_changed
from .functions import bind_unknown_arguments, execute_function, inline_call, is_static
from .identity import Operation, structural_unknown
from .imports import globals_of, look_up, module_member
from .interpreter import HandlerTable, Interpreter, first_result, in_frame
from .joins import for_each_alternative, join_values
from .source_text import expression_text, names_in
from .unanalyzed_code import call_unknown, open_passed_mappings
from .values.containers import MappingValue, UnionValue
from .values.definitions import (
    Args,
    BoundMethod,
    ClassValue,
    ExternalName,
    Frame,
    FunctionValue,
    GeneratorContext,
    Instance,
    Keywords,
    ModuleValue,
    SuperValue,
)
from .values.objects import ObjectRef
from .values.value import AUTOCAST_CALLEES, NONE, Const, UnknownValue, Value

#: Calls by which a class shows that it trains.
_TRAINING_CALLS = frozenset({"backward", "unscale_", "zero_grad"})
#: Methods by which a class takes part in the training of a base class.
_TRAINING_METHODS = frozenset({"compute_loss", "training_step"})
#: Methods of tracked objects that code may store for a later call.
BINDABLE_METHODS = {
    "scaler": torch_api.SCALER_METHODS,
    "optimizer": frozenset({"step", "zero_grad", "state_dict", "load_state_dict"}),
    "module": frozenset(
        {"parameters", "zero_grad", "state_dict", "load_state_dict", "forward", "half", "bfloat16", "to"}
    ),
}


def base_value(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    """Return the value of a base class expression, or None while the bases of the class are being evaluated."""
    if cls in interp.pending_classes:
        return None
    interp.pending_classes.add(cls)
    trains = not (cls.used_names.isdisjoint(_TRAINING_CALLS) and cls.methods.keys().isdisjoint(_TRAINING_METHODS))
    # Whether a class is a module decides if its inputs are assumed to be low.
    outer, interp.loads_any_file = interp.loads_any_file, trains or bool(interp.assumed_dtype)
    value = _evaluate_base(interp, cls, base.value if isinstance(base, ast.Subscript) else base)
    interp.loads_any_file = outer
    interp.pending_classes.discard(cls)
    return value


def _evaluate_base(interp: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return None
    root = root_name(base)
    globals_frame = globals_of(interp, cls.module)
    base_meant = interp.base_name_values.get((cls, root))
    if base_meant is not None:
        # The name may have another value now: another class, or an instance of this very class.
        globals_frame = Frame(None, globals_frame, None)
        globals_frame.vars[root] = base_meant
    # A class inside a function sees the names of that function.
    frame = interp.state.frame if base_meant is None and interp.state.frame.module is cls.module else globals_frame
    value = in_frame(interp, frame, lambda: look_up(interp, base.id)) if isinstance(base, ast.Name) else None
    if value is None:
        value = in_frame(interp, globals_frame, lambda: interp.evaluate(base))
    if base_meant is not None:
        # Keep a resolved import, so that the search runs once.
        interp.base_name_values[cls, root] = globals_frame.vars[root]
    return value


def role_of(interp: Interpreter, cls: Class) -> str | None:
    """Return the role that a class inherits from torch, or None."""
    for owner in lineage_of(interp, cls):
        for base in owner.bases:
            value = base_value(interp, owner, base)
            role = _role_of_base(torch_api.canonical_name(value.name)) if isinstance(value, ExternalName) else None
            if role is not None:
                return role
    return None


def _role_of_base(named: str) -> str | None:
    """Return the role of the subclasses of a torch class, or None."""
    is_module = named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper()
    if is_module:
        return torch_api.MODULE
    entry = torch_api.find_entry(named)
    # A subclass of SGD is an optimizer, and so is a subclass of Optimizer.
    made = entry.role if entry is not None and entry.role in (torch_api.OPTIMIZER, torch_api.SCALER) else None
    return torch_api.BASES.get(named, made)


def lineage_of(interp: Interpreter, cls: Class) -> list[Class]:
    """Return the project classes that a class derives from, the class itself first."""
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
    # A base may be unresolved during another lookup, or not yet bound in this file: cache only complete results.
    if (
        not interp.pending_names
        and not interp.pending_classes
        and (interp.is_fully_bound or cls.module is not interp.module)
    ):
        interp.lineage_by_class[cls] = found
    return found


def method_of(interp: Interpreter, cls: Class, name: str, *, above: bool = False) -> Function | None:
    """Return the method of a class with this name, or None. ``above`` skips the class itself, as ``super()`` does."""
    for owner in lineage_of(interp, cls)[above:]:
        found = owner.methods.get(name)
        if found is not None:
            return found
    return None


def inherited_methods(interp: Interpreter, cls: Class) -> list[Function]:
    """Return the methods that a class inherits and does not define."""
    methods: dict[str, Function] = {}
    for owner in lineage_of(interp, cls):
        for name, method in owner.methods.items():
            methods.setdefault(name, method)
    return [method for method in methods.values() if method.cls is not cls]


def instance_of(interp: Interpreter, cls: Class, key: object, name: str, site: Site | None) -> Instance:
    """Return the instance of a class for a key; create the instance if the key is new."""
    made = interp.instances.get(key)
    if made is None:
        interp.last_serial += 1
        tracked_object = None
        if role_of(interp, cls) == torch_api.MODULE:
            tracked_object = interp.tracked_object(("instance", key), "module", name, site)
            attributes = tracked_object.attributes
            attributes.read = has_plain_forward(interp, cls)
            lineage = lineage_of(interp, cls)
            attributes.dtypes = attributes.dtypes._replace(casts=_may_cast(lineage), region=_region_of_forward(lineage))
            attributes.callees = _called_functions(lineage)
        made = interp.instances[key] = Instance(lineage_of(interp, cls), interp.last_serial, tracked_object)
        made.is_open = any(owner.is_open for owner in lineage_of(interp, cls))
    return made


def run_constructor(interp: Interpreter, made: Instance, init: Function) -> None:
    """Run a constructor with unknown arguments, for the attributes of an instance that other code constructs."""
    frame = Frame(init, globals_of(interp, init.module), None)
    frame.receiver, frame.cls = made, init.cls
    parameters = init.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = made
    bind_unknown_arguments(interp, frame, init)
    # Its events belong to the constructor. Functions that the constructor calls must still be analyzed elsewhere.
    roots, reached = set(interp.analyzed_functions), set(interp.reached_functions)
    interp.without_events(lambda: execute_constructor(interp, frame, init))
    interp.analyzed_functions, interp.reached_functions = roots, reached


def execute_constructor(interp: Interpreter, frame: Frame, init: Function) -> None:
    execute_function(interp, frame, init, (), init.node)


def _make_annotated_instance(interp: Interpreter, annotated: Value, parameter: ast.arg) -> Value | None:
    """Return an instance for a parameter whose annotation names a class with a scaler, or None for another class."""
    if not isinstance(annotated, ClassValue) or role_of(interp, annotated.cls) is not None:
        return None
    cls = _only_implementation(interp, annotated.cls)
    return _instance_of_parameter(interp, cls, parameter)


def _instance_of_parameter(interp: Interpreter, cls: Class, parameter: ast.arg) -> Value | None:
    """Return an instance of a class for a parameter, or None for a class without a scaler."""
    if not any(uses_scaler(owner) for owner in lineage_of(interp, cls)) or role_of(interp, cls) is not None:
        return None
    key = ("annotated", id(parameter), id(cls.node))
    is_new = key not in interp.instances
    made = instance_of(interp, cls, key, parameter.arg, None)
    init = method_of(interp, cls, "__init__")
    if init is not None and is_new and init not in interp.active_functions:
        run_constructor(interp, made, init)
    return made


#: Minimum number of methods by which a function shows the class of a parameter.
MIN_FITTING_METHODS = 2


def _make_fitting_instance(interp: Interpreter, function: Function, parameter: ast.arg) -> Value | None:
    """Return an instance of the only class of this file that has the methods which a function calls on a parameter.

    Only classes with a scaler count. A method of the class itself has such a parameter for another reason.
    """
    module = interp.module
    if function.module is not module or "scaler" not in module.role_by_text.values():
        return None
    classes = [cls for cls in module.classes.values() if cls is not function.cls and uses_scaler(cls)]
    called = methods_called_on(function, parameter.arg) if classes else set()
    if len(called) < MIN_FITTING_METHODS:
        return None
    fitting = [
        cls for cls in module.classes.values() if all(method_of(interp, cls, name) is not None for name in called)
    ]
    made = _instance_of_parameter(interp, fitting[0], parameter) if len(fitting) == 1 else None
    interp.graph.is_guessed = interp.graph.is_guessed or made is not None
    return made


def _only_implementation(interp: Interpreter, cls: Class) -> Class:
    """Return the only class of this file that derives from an abstract class, or the class itself."""
    if not any(method.is_abstract() for method in cls.methods.values()):
        return cls
    derived = [each for each in interp.module.classes.values() if cls in lineage_of(interp, each)[1:]]
    return derived[0] if len(derived) == 1 else cls


def uses_scaler(cls: Class) -> bool:
    """Return True if a class calls methods of a scaler that is an attribute of its instances."""
    return any(cls.module.role_by_text.get(f"self.{name}") == "scaler" for name in cls.assignments)


def has_plain_forward(interp: Interpreter, cls: Class) -> bool:
    """Return True if the forward of a module class is in the project and enters no autocast."""
    words: set[str] = set()
    for owner in lineage_of(interp, cls):
        words |= owner.used_names
    return method_of(interp, cls, "forward") is not None and "autocast" not in words


def _may_cast(lineage: Sequence[Class]) -> bool:
    """Return True if the forward of a module class may enter autocast. ``lineage`` is the class with its base classes.

    A method that no forward calls, such as one for inference, does not count.
    """
    if not any("autocast" in word for cls in lineage for word in cls.used_names):
        return False
    return any(enters_autocast(code) for _, code in _forward_code(lineage))


def _region_of_forward(lineage: Sequence[Class]) -> str:
    """Return the dtype of the region that the forward of a module class enters on every path, or "" if not known."""
    forward = next((cls.methods["forward"] for cls in lineage if "forward" in cls.methods), None)
    return "" if forward is None or "autocast" not in forward.used_names else forward_region_dtype(forward)


def _called_functions(lineage: Sequence[Class]) -> frozenset[str]:
    """Return the names of the functions of this file and of imported files that the forward of a class may call."""
    found: set[str] = set()
    for cls, code in _forward_code(lineage):
        imports = cls.module.imports
        for func in (node.func for node in walk(code) if isinstance(node, ast.Call)):
            if isinstance(func, ast.Name):
                imported = imports.get(func.id)
                found.add(func.id if imported is None or not imported.name else imported.name)
            elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in imports:
                found.add(func.attr)
    # Whether a call of autocast itself enters a region shows in its arguments.
    return frozenset(found) - AUTOCAST_CALLEES


def _forward_code(lineage: Sequence[Class]) -> Iterator[tuple[Class, ast.AST]]:
    """Yield the code that runs when a module is constructed or called: code of the class body, and methods."""
    if any(cls.is_open for cls in lineage):
        # A method of an unknown base class may call any method.
        yield from ((cls, cls.node) for cls in lineage)
        return
    for cls in lineage:
        for part in (*cls.node.decorator_list, *cls.node.body):
            if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield cls, part
    todo = set(RUNNING_METHODS)
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        reached.add(name)
        for cls in lineage:
            if name in cls.methods:
                yield cls, cls.methods[name].node
                todo |= cls.methods[name].attributes_used() - reached


def _construct_instance(interp: Interpreter, func: ClassValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    cls = func.cls
    role = role_of(interp, cls)
    construct = interp.handlers.constructors.get(role or "")
    constructed = construct(interp, cls, args, keywords, node) if construct is not None else None
    if constructed is not None:
        return constructed
    made = instance_of(interp, cls, (interp.location_key(node), cls.name), "", interp.site_of(node))
    if made.tracked_object is not None:
        made.tracked_object.attributes.class_name = cls.name
    init = method_of(interp, cls, "__init__")
    if init is not None:
        inline_call(interp, FunctionValue(init, func.frame, made), args, keywords, node)
    else:
        _store_fields(interp, cls, made, args, keywords)
    return made


def _store_fields(interp: Interpreter, cls: Class, made: Instance, args: Args, keywords: Keywords) -> None:
    """Store the arguments of a dataclass as attributes, in the order of the declared fields, and the defaults."""
    for owner in lineage_of(interp, cls):
        shared = interp.class_vars.get(owner.node, {})
        for name in owner.declared_fields() if owner.is_record() else ():
            default = shared.get(name)
            if default is not None and default.value is None and (made.key, name) not in interp.state.heap:
                interp.store_attribute(made.key, name, default)
    for name, value in zip(cls.declared_fields(), args, strict=False):
        interp.store_attribute(made.key, name, value)
    for name, value in keywords.items():
        interp.store_attribute(made.key, name, value)
    # Unpacked keywords may hold a value for any field.
    made.is_open = made.is_open or "**" in keywords


def find_own_method(interp: Interpreter, receiver: Value, name: str) -> FunctionValue | None:
    """Return the method with which a project class overrides a scaler method, or None.

    None is also the result inside that method.
    """
    cls = receiver.tracked_object.attributes.cls if isinstance(receiver, ObjectRef) else None
    method = method_of(interp, cls, name) if isinstance(cls, Class) else None
    return None if method is None or method in interp.active_functions else _bind_method(interp, method, receiver)


def _bind_method(interp: Interpreter, method: Function, receiver: Value | None) -> FunctionValue:
    defined = _defined_value(interp, method)
    if defined is not None and defined.function is not method and defined.function.cls is None:
        # A decorator of the project replaces the method by a function of its own.
        return FunctionValue(defined.function, defined.frame, receiver, defined.wrappers)
    return FunctionValue(method, defining_frame(interp, method), receiver, decorator_contexts(interp, method))


def defining_frame(interp: Interpreter, method: Function) -> Frame:
    """Return the frame in which a method finds free names: the frame around the class, which may be a function."""
    enclosing = interp.enclosing_frames.get(method.cls) if method.cls is not None else None
    return globals_of(interp, method.module) if enclosing is None else enclosing


def _named_attribute(interp: Interpreter, receiver: ExternalName, name: str, node: ast.AST) -> Value:
    made = ExternalName(
        f"{receiver.name}.{name}", version_fallback=receiver.version_fallback, is_of_project=receiver.is_of_project
    )
    made.is_member = True
    return made


def _module_attribute(interp: Interpreter, receiver: ModuleValue, name: str, node: ast.AST) -> Value:
    return module_member(interp, receiver, name) or ExternalName(f"{receiver.name}.{name}", is_of_project=True)


def _attribute_of_each(interp: Interpreter, receiver: UnionValue, name: str, node: ast.AST) -> Value:
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


def _class_attribute(interp: Interpreter, receiver: ClassValue, name: str, node: ast.AST) -> Value | None:
    if name not in receiver.cls.methods and _is_enum(interp, receiver.cls):
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


def _is_enum(interp: Interpreter, cls: Class) -> bool:
    """Return True if a class is an enumeration, in which each name has a distinct value."""
    bases = [base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases]
    return any(isinstance(base, ExternalName) and base.name.startswith("enum.") for base in bases)


def _method_above(interp: Interpreter, receiver: SuperValue, name: str) -> Function | None:
    """Return the method that ``super()`` finds: for a mixin, that of the class beside it in the class of the object."""
    lineage = receiver.receiver.lineage if isinstance(receiver.receiver, Instance) else []
    if receiver.cls not in lineage:
        return method_of(interp, receiver.cls, name, above=True)
    above = lineage[lineage.index(receiver.cls) + 1 :]
    return next((cls.methods[name] for cls in above if name in cls.methods), None)


def _super_attribute(interp: Interpreter, receiver: SuperValue, name: str, node: ast.AST) -> Value:
    method = _method_above(interp, receiver, name)
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
        if isinstance(value, UnknownValue) and receiver.is_changed(name):
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
    found = found or _ask_delegate(interp, receiver, node, lambda delegate: attribute_of(interp, delegate, name, node))
    return found or interp.unknown_value(("attribute of", receiver.key, name), expression_text(node))


class _DelegatingInstances(set[int]):
    """Keys of the instances whose delegate the interpreter is asking."""


def _ask_delegate(
    interp: Interpreter, receiver: Instance, node: ast.AST, ask: Callable[[Value], Value]
) -> Value | None:
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


def _find_in_class(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
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
    return _bind_method(interp, method, receiver)


def _default_of_class(interp: Interpreter, receiver: Instance, owner: Class, name: str, value: Value) -> Value | None:
    """Return what an instance has where the body of a class gives a default.

    A None that a method replaces stands for a value that is not there yet, and the default of a field for an argument.
    """
    if not isinstance(value, Const):
        return value
    if value.value is None and receiver.is_changed(name):
        return _find_assigned_value(interp, receiver, name, maybe_none=True)
    if (value.value is None or isinstance(value.value, bool)) and owner.is_record():
        return interp.unknown_value(("attribute of", receiver.key, name), name)
    return value_of_changed(interp, receiver, name, _unless_overwritten(interp, receiver, name, value))


def decorator_contexts(interp: Interpreter, method: Function) -> tuple[Value, ...]:
    """Return the autocast and no_grad decorators of a method, as the analysis of the class found them."""
    defined = _defined_value(interp, method)
    return defined.wrappers if defined is not None and defined.function is method else ()


def _defined_value(interp: Interpreter, method: Function) -> FunctionValue | None:
    """Return what a class or a module holds by the name of a method or a function, or None for no function."""
    defined = (
        interp.class_vars.get(method.cls.node, {}).get(method.name)
        if method.cls
        else globals_of(interp, method.module).vars.get(method.name)
    )
    return defined if isinstance(defined, FunctionValue) else None


def _find_assigned_value(
    interp: Interpreter, receiver: Instance, name: str, *, maybe_none: bool = False
) -> Value | None:
    """Return the value that a method of the class assigns to an attribute, or None.

    The analysis evaluates the assigned expression as if the method had been called. With ``maybe_none``, the attribute
    may be None instead.
    """
    assignments = [
        assignment for cls in lineage_of(interp, receiver.cls) for assignment in cls.assignments.get(name, ())
    ]
    maybe_none = maybe_none or any(
        isinstance(expression, ast.Constant) and expression.value is None for _, expression in assignments
    )
    for method, expression in assignments:
        value = _evaluate_assignment(interp, receiver, method, expression)
        if value is not None and is_replaceable(receiver, name, value):
            continue
        if value is not None and maybe_none and not isinstance(value, UnknownValue):
            question = interp.predicate_formula(("set", receiver.key, name), name, frozenset())
            return join_values(interp, question, value, NONE, name)
        if value is not None:
            return value
    return None


def is_replaceable(receiver: Instance, name: str, value: Value) -> bool:
    """Return True if a class only makes an object until a caller gives it another object, with another state.

    A method other than the constructor then assigns its argument to the attribute.
    """
    return (
        isinstance(value, Instance)
        and value.tracked_object is None
        and any(
            method.name != "__init__"
            and isinstance(expression, ast.Name)
            and any(expression.id == parameter.arg for parameter in method.parameters()[1:])
            for cls in receiver.lineage
            for method, expression in cls.assignments.get(name, ())
        )
    )


def _evaluate_assignment(
    interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr
) -> Value | None:
    # An attribute may depend on itself, directly or through another attribute.
    pending = interp.pending_assignments
    if expression in pending or len(pending) > MAX_ATTRIBUTE_DEPTH:
        return None
    is_running = interp.active_functions.count(method) > list(pending.values()).count(method)
    if is_running and method.name != "__init__":
        return None
    pending[expression] = method
    value = _evaluate_in_method(interp, receiver, method, expression)
    del pending[expression]
    return None if value.value is None else value


def _evaluate_in_method(interp: Interpreter, receiver: Instance, method: Function, expression: ast.expr) -> Value:
    outer, frame = interp.state.frame, Frame(method, defining_frame(interp, method), None)
    parameters = method.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = receiver
    frame.receiver, frame.cls = receiver, method.cls
    interp.state.frame = frame
    interp.active_functions.append(method)
    bind_unknown_arguments(interp, frame, method)

    def evaluate() -> Value:
        _bind_locals(interp, frame, method, expression, 0)
        return interp.evaluate(expression)

    value = interp.without_events(evaluate)
    interp.active_functions.pop()
    interp.state.frame = outer
    return value


#: Maximum number of attributes that lead to the value of an attribute, each assigned from the next outside the
#: constructor: ``self.optimizer = AdamW(self.model.parameters())``.
MAX_ATTRIBUTE_DEPTH = 3
#: Maximum number of local variables that lead to the value of an attribute, each assigned from the next.
MAX_LOCAL_DEPTH = 3


def _bind_locals(interp: Interpreter, frame: Frame, method: Function, expression: ast.expr, depth: int) -> None:
    """Bind the local variables of a method that an expression uses, each to its last assignment before it."""
    wanted = names_in(expression) - frame.vars.keys()
    if not wanted or depth >= MAX_LOCAL_DEPTH:
        return
    found: dict[str, ast.expr] = {}
    for statement in statements_in(method.body):
        if getattr(statement, "lineno", 0) < expression.lineno:
            pairs = assigned_pairs(statement)
            found.update((left.id, right) for left, right in pairs if isinstance(left, ast.Name) and left.id in wanted)
    for name, value in found.items():
        if name not in names_in(value):
            _bind_locals(interp, frame, method, value, depth + 1)
            frame.vars[name] = interp.evaluate(value)


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
        given = _find_in_class(interp, receiver, name, node) if method.is_property() else None
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
    answer = _ask_delegate(
        interp,
        receiver,
        node,
        lambda delegate: for_each_alternative(
            interp, delegate, lambda each: interp.call_method(each, name, args, keywords, node)
        ),
    )
    if answer is not None:
        return answer
    open_passed_mappings(interp, receiver, [*args, *keywords.values()])
    return call_unknown(
        interp, interp.unknown_value(("attribute of", receiver.key, name), expression_text(node)), args, keywords, node
    )


#: Class method by which libraries load a model.
LOADER = "from_pretrained"


def _class_method(
    interp: Interpreter, receiver: ClassValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = first_result(interp.handlers.class_methods, interp, receiver, name, args)
    if found is not None:
        return found
    method = method_of(interp, receiver.cls, name)
    # The loader of a library takes long to analyze, and what it returns is a model like any other.
    if method is None or (name == LOADER and method.module is not interp.module):
        return call_unknown(
            interp, interp.unknown_value(("class attribute", id(receiver.cls.node), name), name), args, keywords, node
        )
    if "classmethod" in method.decorator_names():
        args = [receiver, *args]
    return interp.call_value(FunctionValue(method, receiver.frame), args, keywords, node)


def _call_object(interp: Interpreter, func: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    # The base class of another package, such as a LightningModule, may be a module: its call runs the forward.
    name = "__call__" if method_of(interp, func.cls, "__call__") is not None else "forward"
    return call_method(interp, func, name, args, keywords, node)


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
    """Return the attributes of an instance as a dict; an instance of no record class may have more attributes."""
    return MappingValue(dict(interp.stored_attributes(value.key)), is_open=not value.cls.is_record())


class _InstanceHandler(SelfBindingHandler):
    """Handler for an instance as a context: the class defines entering and leaving."""

    def enter(self, interp: Interpreter, value: Instance, node: ast.AST) -> None:
        call_method(interp, value, "__enter__", [], {}, node)

    def exit(self, interp: Interpreter, value: Instance, node: ast.AST, depth: int) -> None:
        call_method(interp, value, "__exit__", [NONE, NONE, NONE], {}, node)
        if interp.state.regions_entered:
            # The instance closes each region that it opened, wherever the class keeps the context.
            interp.emit(e.AutocastExit, node, depth=depth)


def register(handlers: HandlerTable) -> None:
    handlers.annotated_instances.append(_make_annotated_instance)
    handlers.fitting_instances.append(_make_fitting_instance)
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
