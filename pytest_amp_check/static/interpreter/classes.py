"""Classes of the project: their objects, what these hold, and whose methods they have."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Site
from ..project.entering import enters
from ..project.module import Class, Function
from ..project.syntax import root_of
from .contexts import Itself
from .expressions import attribute
from .forks import join_values, on_each
from .functions import bind_unknown, follow, is_static
from .identity import structural
from .imports import globals_of, look_up, member
from .interpreter import Handlers, Interpreter, first_answer, within
from .unknown import lend, unknown
from .values import (
    NONE,
    Args,
    BoundMethod,
    Choice,
    ClassValue,
    Const,
    Frame,
    FunctionValue,
    HelperContext,
    Instance,
    Keywords,
    Mapping,
    ModuleValue,
    Named,
    Opaque,
    Ref,
    SuperValue,
    Value,
)
from .wording import wording

#: Methods of things that may be taken without being called.
BOUND = {
    "scaler": surface.SCALER_METHODS,
    "optimizer": frozenset({"step", "zero_grad", "state_dict", "load_state_dict"}),
    "module": frozenset(
        {"parameters", "zero_grad", "state_dict", "load_state_dict", "forward", "half", "bfloat16", "to"}
    ),
}


def base_value(at: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    """The value of an expression that a class derives from; None while it is asked what the class has from there."""
    if cls in at.deriving:
        return None
    at.deriving.add(cls)
    value = _base_value(at, cls, base.value if isinstance(base, ast.Subscript) else base)
    at.deriving.discard(cls)
    return value


def _base_value(at: Interpreter, cls: Class, base: ast.expr) -> Value | None:
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return None
    root = root_of(base)
    home = globals_of(at, cls.module)
    meant = at.derived_from.get((cls, root))
    if meant is not None:
        # The name may have another value by now: another class, or an object of this very one.
        home = Frame(None, home, None)
        home.vars[root] = meant
    # Names of a class that stands in a function are in view from there.
    here = at.state.frame if meant is None and at.state.frame.module is cls.module else home
    value = within(at, here, lambda: look_up(at, base.id)) if isinstance(base, ast.Name) else None
    if value is None:
        value = within(at, home, lambda: at.evaluate(base))
    if meant is not None:
        # What is imported is looked for once.
        at.derived_from[cls, root] = home.vars[root]
    return value


def role_of(at: Interpreter, cls: Class) -> str | None:
    """The role that a class inherits from torch."""
    for owner in bases_of(at, cls):
        for base in owner.bases:
            value = base_value(at, owner, base)
            role = _role_of_base(surface.canonical(value.name)) if isinstance(value, Named) else None
            if role is not None:
                return role
    return None


def _role_of_base(named: str) -> str | None:
    """The role that a class of torch gives to those that derive from it."""
    is_module = named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper()
    if is_module:
        return surface.MODULE
    entry = surface.lookup(named)
    # A class that derives from SGD is an optimizer, as one is that derives from Optimizer.
    made = entry.role if entry is not None and entry.role in (surface.OPTIMIZER, surface.SCALER) else None
    return surface.BASES.get(named, made)


def bases_of(at: Interpreter, cls: Class) -> list[Class]:
    """The classes of the project that a class derives from, itself first."""
    known = at.lineages.get(cls)
    if known is not None:
        return known
    found: list[Class] = []
    todo = [cls]
    while todo and len(found) < 12:
        now = todo.pop(0)
        if now in found:
            continue
        found.append(now)
        for base in now.bases:
            value = base_value(at, now, base)
            if isinstance(value, ClassValue):
                todo.append(value.cls)
    # While names are being looked for, a base may not be found yet; in this file, it may not be bound yet.
    if not at.binding and not at.deriving and (at.bound or cls.module is not at.module):
        at.lineages[cls] = found
    return found


def method_of(at: Interpreter, cls: Class, name: str, *, above: bool = False) -> Function | None:
    """The method that a class has by a name, or, ``above`` it, what ``super()`` gives."""
    for owner in bases_of(at, cls)[above:]:
        found = owner.methods.get(name)
        if found is not None:
            return found
    return None


def inherited(at: Interpreter, cls: Class) -> list[Function]:
    """The methods that a class has from others."""
    methods: dict[str, Function] = {}
    for owner in bases_of(at, cls):
        for name, method in owner.methods.items():
            methods.setdefault(name, method)
    return [method for method in methods.values() if method.cls is not cls]


def instance_of(at: Interpreter, cls: Class, key: object, name: str, site: Site | None) -> Instance:
    """The object of a class that is made at a place."""
    made = at.instances.get(key)
    if made is None:
        at.serial += 1
        thing = None
        if role_of(at, cls) == surface.MODULE:
            thing = at.thing(("instance", key), "module", name, site)
            thing.facts["read"] = reads_forward(at, cls)
            thing.facts["casts"] = any(_may_cast(owner) for owner in bases_of(at, cls))
        made = at.instances[key] = Instance(cls, at.serial, thing)
        made.open = any(owner.open for owner in bases_of(at, cls))
    return made


def reads_forward(at: Interpreter, cls: Class) -> bool:
    """Whether the forward of a module class is in view and enters no autocast."""
    words: set[str] = set()
    for owner in bases_of(at, cls):
        words |= owner.words
    return method_of(at, cls, "forward") is not None and "autocast" not in words


def _may_cast(cls: Class) -> bool:
    """Whether the objects of a module class may enter autocast by themselves."""
    return any("autocast" in word for word in cls.words) and enters(cls.node)


def _construct(at: Interpreter, func: ClassValue, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    cls = func.cls
    role = role_of(at, cls)
    construct = at.handlers.constructors.get(role or "")
    constructed = construct(at, cls, args, keywords, node) if construct is not None else None
    if constructed is not None:
        return constructed
    made = instance_of(at, cls, (at.place_key(node), cls.name), "", at.site(node))
    if made.thing is not None:
        made.thing.facts["class"] = cls.name
    init = method_of(at, cls, "__init__")
    if init is not None:
        follow(at, FunctionValue(init, func.frame, made), args, keywords, node)
    else:
        _fields(at, cls, made, args, keywords)
    return made


def _fields(at: Interpreter, cls: Class, made: Instance, args: Args, keywords: Keywords) -> None:
    """The attributes of a dataclass, from the order in which it declares them."""
    for name, value in zip(cls.fields(), args, strict=False):
        at.store(made.key, name, value)
    for name, value in keywords.items():
        at.store(made.key, name, value)
    # What is unpacked may hold a value for any of its fields.
    made.open = made.open or "**" in keywords


def own_method(at: Interpreter, receiver: Value, name: str) -> FunctionValue | None:
    """A method that a class of the project gives a scaler, unless that method is what asks for it."""
    cls = receiver.thing.facts.get("cls") if isinstance(receiver, Ref) else None
    method = method_of(at, cls, name) if cls is not None else None
    return None if method is None or method in at.active else _bound(at, method, receiver)


def _bound(at: Interpreter, method: Function, receiver: Value | None) -> FunctionValue:
    return FunctionValue(method, home_of(at, method), receiver, decorations(at, method))


def home_of(at: Interpreter, method: Function) -> Frame:
    """Where a method finds names that are none of its own: around its class, which may stand in a function."""
    around = at.enclosing.get(method.cls) if method.cls is not None else None
    return globals_of(at, method.module) if around is None else around


def _named_attribute(at: Interpreter, receiver: Named, name: str, node: ast.AST) -> Value:
    return Named(f"{receiver.name}.{name}", shim=receiver.shim)


def _member(at: Interpreter, receiver: ModuleValue, name: str, node: ast.AST) -> Value:
    return member(at, receiver, name) or Named(f"{receiver.name}.{name}")


def _attribute_of_each(at: Interpreter, receiver: Choice, name: str, node: ast.AST) -> Value:
    made = on_each(at, receiver, lambda each: attribute(at, each, name, node))
    if not isinstance(made, Opaque):
        return made
    # Asked again of the same, it is the same.
    known = structural(at, "attribute", (receiver,), made.words, name)
    known.divided, known.compares, known.parameter = made.divided, made.compares, made.parameter
    known.divisors = made.divisors
    return known


def _class_attribute(at: Interpreter, receiver: ClassValue, name: str, node: ast.AST) -> Value | None:
    if name not in receiver.cls.methods and _is_enum(at, receiver.cls):
        return Const((receiver.cls.module.path, receiver.cls.name, name))
    return BoundMethod(receiver, name) if name == "apply" else None


def _is_enum(at: Interpreter, cls: Class) -> bool:
    """Whether each name in a class stands for a value of its own."""
    bases = [base_value(at, owner, base) for owner in bases_of(at, cls) for base in owner.bases]
    return any(isinstance(base, Named) and base.name.startswith("enum.") for base in bases)


def _super_attribute(at: Interpreter, receiver: SuperValue, name: str, node: ast.AST) -> Value:
    method = method_of(at, receiver.cls, name, above=True)
    if method is not None:
        return FunctionValue(method, home_of(at, method), receiver.receiver)
    if isinstance(receiver.receiver, Ref) and name in BOUND.get(receiver.receiver.role, ()):
        return BoundMethod(receiver.receiver, name)
    return at.opaque(("super", receiver.cls.name, name), f"super().{name}")


def _instance_attribute(at: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value:
    if name == "__dict__":
        return as_mapping(at, receiver)
    value = at.state.heap.get((receiver.key, name))
    if value is not None:
        if isinstance(value, Opaque) and name in receiver.cls.changed:
            value.loops |= at.turning()
        return _unless_overwritten(at, receiver, name, value)
    found = _of_class(at, receiver, name, node)
    if found is not None:
        return found
    assigned = _assigned_elsewhere(at, receiver, name)
    if assigned is not None:
        at.store(receiver.key, name, assigned)
        return assigned
    if receiver.thing is not None and name in BOUND["module"]:
        return BoundMethod(receiver, name)
    found = first_answer(at.handlers.inherited_attributes, at, receiver, name, node)
    return found or at.opaque(("attribute of", receiver.key, name), wording(node))


def _unless_overwritten(at: Interpreter, receiver: Instance, name: str, value: Value) -> Value:
    """What an attribute holds; a constant is a default where any attribute may be given another value."""
    if not isinstance(value, Const) or not receiver.open:
        return value
    return at.opaque(("attribute of", receiver.key, name), name)


def _of_class(at: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    """What an object has by a name from its class."""
    method = method_of(at, receiver.cls, name)
    if method is None:
        shared = (at.class_vars.get(owner.node, {}).get(name) for owner in bases_of(at, receiver.cls))
        found = next((value for value in shared if value is not None), None)
        return None if found is None else _unless_overwritten(at, receiver, name, found)
    if "property" in method.decorator_names():
        return follow(at, FunctionValue(method, home_of(at, method), receiver), [], {}, node)
    return _bound(at, method, receiver)


def decorations(at: Interpreter, method: Function) -> tuple[Value, ...]:
    """Autocast and no_grad decorators of a method, as reading its class found them."""
    held = (
        at.class_vars.get(method.cls.node, {}).get(method.name)
        if method.cls
        else globals_of(at, method.module).vars.get(method.name)
    )
    return held.wrappers if isinstance(held, FunctionValue) and held.function is method else ()


def _assigned_elsewhere(at: Interpreter, receiver: Instance, name: str) -> Value | None:
    """The value that some method of the class gives an attribute, read as if that method had been called."""
    places = [place for cls in bases_of(at, receiver.cls) for place in cls.assigned.get(name, ())]
    maybe_none = any(isinstance(expression, ast.Constant) and expression.value is None for _, expression in places)
    for method, expression in places:
        value = _given_in(at, receiver, method, expression)
        if value is not None and maybe_none and not isinstance(value, Opaque):
            question = at.ask(("set", receiver.key, name), name, frozenset())
            return join_values(at, question, value, NONE, name)
        if value is not None:
            return value
    return None


def _given_in(at: Interpreter, receiver: Instance, method: Function, expression: ast.expr) -> Value | None:
    # An attribute may be given what is computed from itself, or from one that is computed from it.
    if (method in at.active and method.name != "__init__") or id(expression) in at.looked_up:
        return None
    at.looked_up.add(id(expression))
    value = _as_assigned(at, receiver, method, expression)
    at.looked_up.discard(id(expression))
    return None if value.value is None else value


def _as_assigned(at: Interpreter, receiver: Instance, method: Function, expression: ast.expr) -> Value:
    outer, frame = at.state.frame, Frame(method, home_of(at, method), None)
    parameters = method.parameters()
    if parameters:
        frame.vars[parameters[0].arg] = receiver
    frame.receiver, frame.cls = receiver, method.cls
    values: list[Value] = []
    at.state.frame = frame
    at.active.append(method)
    bind_unknown(at, frame, method)
    at.unrecorded(lambda: values.append(at.evaluate(expression)))
    at.active.pop()
    at.state.frame = outer
    return values[0]


def call_method(at: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    method = method_of(at, receiver.cls, name)
    if method is None:
        return NONE
    func = _bound(at, method, receiver)
    if method.manager:
        return HelperContext(func, args, keywords, node)
    return follow(at, func, args, keywords, node)


def _instance_method(
    at: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    stored = at.state.heap.get((receiver.key, name))
    if stored is not None:
        return at.call_value(stored, args, keywords, node)
    method = method_of(at, receiver.cls, name)
    if method is not None:
        if receiver.thing is not None and name == "forward":
            return at.call_value(receiver, args, keywords, node)
        given = _of_class(at, receiver, name, node) if "property" in method.decorator_names() else None
        if given is not None:
            return at.call_value(given, args, keywords, node)
        return at.call_value(_bound(at, method, None if is_static(method) else receiver), args, keywords, node)
    found = first_answer(at.handlers.inherited_methods, at, receiver, name, args, keywords, node)
    if found is not None:
        return found
    if receiver.thing is not None:
        return at.handlers.methods["module"](at, receiver, name, args, keywords, node)
    if name == "_asdict":
        return as_mapping(at, receiver)
    assigned = _assigned_elsewhere(at, receiver, name)
    if assigned is not None:
        return at.call_value(assigned, args, keywords, node)
    lend(at, receiver, [*args, *keywords.values()])
    return unknown(at, at.opaque(("attribute of", receiver.key, name), wording(node)), args, keywords, node)


def _class_method(
    at: Interpreter, receiver: ClassValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = first_answer(at.handlers.class_methods, at, receiver, name, args)
    if found is not None:
        return found
    method = method_of(at, receiver.cls, name)
    if method is None:
        return unknown(at, at.opaque(("class attribute", id(receiver.cls.node), name), name), args, keywords, node)
    if "classmethod" in method.decorator_names():
        args = [receiver, *args]
    return at.call_value(FunctionValue(method, receiver.frame), args, keywords, node)


def _call_object(at: Interpreter, func: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return call_method(at, func, "__call__", args, keywords, node)


def _super_method(
    at: Interpreter, receiver: SuperValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    found = _super_attribute(at, receiver, name, node)
    if isinstance(found, FunctionValue):
        return follow(at, found, args, keywords, node)
    if isinstance(found, BoundMethod):
        return at.call_value(found, args, keywords, node)
    lend(at, receiver.receiver, [*args, *keywords.values()])
    return unknown(at, found, args, keywords, node)


def as_mapping(at: Interpreter, value: Instance) -> Mapping:
    """The attributes of an object as a dict; of one that is no record there may be more."""
    return Mapping(dict(at.attributes(value.key)), open=not value.cls.is_record())


class _Object(Itself):
    """An object whose class says what entering and leaving it does."""

    def enter(self, at: Interpreter, value: Instance, node: ast.AST) -> None:
        call_method(at, value, "__enter__", [], {}, node)

    def exit(self, at: Interpreter, value: Instance, node: ast.AST, depth: int) -> None:
        call_method(at, value, "__exit__", [NONE, NONE, NONE], {}, node)
        if at.state.entered:
            # What the object of a class has opened, it closes, in whatever way it finds its context again.
            at.emit(e.AUTOCAST_EXIT, node, depth=depth)


def register(handlers: Handlers) -> None:
    handlers.calls.update({"class": _construct, "instance": _call_object})
    handlers.methods.update({"super": _super_method, "class": _class_method})
    handlers.attributes.update(
        {
            "named": _named_attribute,
            "project module": _member,
            "choice": _attribute_of_each,
            "class": _class_attribute,
            "super": _super_attribute,
        }
    )
    for kind in ("instance", "module instance"):
        handlers.methods[kind] = _instance_method
        handlers.attributes[kind] = _instance_attribute
        handlers.contexts[kind] = _Object()
