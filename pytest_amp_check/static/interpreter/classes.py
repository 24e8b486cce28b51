"""Classes of the project: their objects, what these hold, and whose methods they have."""

from __future__ import annotations

import ast
from abc import abstractmethod

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Site, Thing
from ..libraries.autograd_functions import CustomFunctions
from ..libraries.checkpoints import as_mapping
from ..libraries.losses import TO_NUMBER
from ..project.module import Class, Function
from .functions import is_static
from .values import (
    NONE,
    BoundMethod,
    Choice,
    ClassValue,
    Const,
    Frame,
    FunctionValue,
    Grad,
    HelperContext,
    Instance,
    Mapping,
    ModuleValue,
    Named,
    Opaque,
    Params,
    Ref,
    Sequence,
    SuperValue,
    Tensor,
    Value,
    tensors_of,
)

#: Words of a forward that computes a loss itself.
LOSSES = frozenset(
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss".split()
)

#: Methods of things that may be taken without being called.
BOUND = {
    "scaler": surface.SCALER_METHODS,
    "optimizer": frozenset({"step", "zero_grad", "state_dict", "load_state_dict"}),
    "module": frozenset(
        {"parameters", "zero_grad", "state_dict", "load_state_dict", "forward", "half", "bfloat16", "to"}
    ),
}


class Classes(CustomFunctions):
    """Reads objects of the project's own classes."""

    @abstractmethod
    def new_autocast(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    @abstractmethod
    def new_optimizer(self, params: Value | None, node: ast.AST, callable_name: str) -> Ref: ...

    @abstractmethod
    def method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    @abstractmethod
    def module_method(
        self, receiver: Value, thing: Thing, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value: ...

    @abstractmethod
    def lend(self, receiver: Value, given: list[Value]) -> None: ...

    def _base(self, cls: Class, base: ast.expr) -> Value | None:
        """The value of an expression that a class derives from."""
        if isinstance(base, ast.Subscript):
            base = base.value
        value = self.look_up(base.id) if isinstance(base, ast.Name) and cls.module is self.state.frame.module else None
        if value is None and isinstance(base, (ast.Name, ast.Attribute)):
            value = self.at_home(cls.module, lambda: self.evaluate(base))
        return value

    def _role_of(self, cls: Class, seen: int = 0) -> str | None:
        """The role that a class inherits from torch."""
        if seen > 6:
            return None
        for base in cls.bases:
            value = self._base(cls, base)
            named = surface.canonical(value.name) if isinstance(value, Named) else None
            if named:
                role = surface.BASES.get(named)
                if role:
                    return role
                if named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper():
                    return surface.MODULE
            if isinstance(value, ClassValue) and value.cls is not cls:
                role = self._role_of(value.cls, seen + 1)
                if role:
                    return role
        return None

    def _bases(self, cls: Class) -> list[Class]:
        """The classes of the project that a class derives from, itself first."""
        known = self.lineages.get(cls)
        if known is not None:
            return known
        chain: list[Class] = []
        todo = [cls]
        while todo and len(chain) < 12:
            now = todo.pop(0)
            if now in chain:
                continue
            chain.append(now)
            for base in now.bases:
                value = self._base(now, base)
                if isinstance(value, ClassValue):
                    todo.append(value.cls)
        # While names are being looked for, a base may not be found yet; in this file, it may not be bound yet.
        if not self.binding and (self.bound or cls.module is not self.module):
            self.lineages[cls] = chain
        return chain

    def method_of(self, cls: Class, name: str, *, after: Class | None = None) -> Function | None:
        chain = self._bases(cls)
        if after is not None and after in chain:
            chain = chain[chain.index(after) + 1 :]
        for owner in chain:
            found = owner.methods.get(name)
            if found is not None:
                return found
        return None

    def inherited(self, cls: Class) -> list[Function]:
        """The methods that a class has from classes of other files."""
        methods: dict[str, Function] = {}
        for owner in self._bases(cls):
            for name, method in owner.methods.items():
                methods.setdefault(name, method)
        return [method for method in methods.values() if method.module is not self.module]

    def instance_of(self, cls: Class, key: object, name: str, site: Site | None) -> Instance:
        """The object of a class that is made at a place."""
        made = self.instances.get(key)
        if made is None:
            self.serial += 1
            thing = None
            if self._role_of(cls) == surface.MODULE:
                thing = self.thing(("instance", key), "module", name, site)
                thing.facts["read"] = self._reads_forward(cls)
            made = self.instances[key] = Instance(cls, self.serial, thing)
        return made

    def _reads_forward(self, cls: Class) -> bool:
        """Whether the forward of a module class is in view and enters no autocast."""
        words: set[str] = set()
        for owner in self._bases(cls):
            words |= owner.words
        return self.method_of(cls, "forward") is not None and "autocast" not in words

    def module_called(
        self, receiver: Instance, thing: Thing, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """The value of a call of a module whose class is in view: with what its forward does to a loss."""
        made = self._forward(thing, args, keywords, node, self._reads_forward(receiver.cls))
        method = self.method_of(receiver.cls, "forward")
        given = [*args, *keywords.values()]
        compares = len(given) > 1 and any(tensors_of(v) or (isinstance(v, Opaque) and v.called) for v in given)
        if method is None or method in self.active:
            return made
        telling = compares or bool(method.words & LOSSES) or (method.fragile and self.in_region())
        casts = "autocast" in method.words and not (self.state.open or self.state.maybe_open or self.state.no_grad)
        if not (telling or casts):
            return made
        outcome: list[Value] = []
        inner = FunctionValue(method, self.home(method.module), receiver)

        def act() -> None:
            self.state.forwards += 1
            outcome.append(self.follow(inner, args, keywords, node))

        self.casting.append(thing)
        self.previewed(act)
        self.casting.pop()
        return _reduced_as(outcome[0], made) if telling and isinstance(made, Tensor) else made

    def _construct(self, func: ClassValue, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        cls = func.cls
        role = self._role_of(cls)
        if role == surface.SCALER:
            return self._subclass_scaler(cls, args, keywords, node)
        if role == surface.AUTOCAST and not cls.methods.keys() & {"__init__", "__enter__", "__exit__"}:
            entry = next((e for b in cls.bases if (e := surface.lookup(self._dotted(b) or ""))), None)
            if entry is not None:
                return self.new_autocast(entry, args, keywords, node)
        if role == surface.OPTIMIZER:
            made_optimizer = self.new_optimizer(args[0] if args else keywords.get("params"), node, cls.name)
            if cls.methods.keys() & {"step", "zero_grad"}:
                made_optimizer.thing.facts["hooked"] = True
            return made_optimizer
        made = self.instance_of(cls, (self.place_key(node), cls.name), "", self.site(node))
        init = self.method_of(cls, "__init__")
        if init is not None:
            self.follow(FunctionValue(init, func.frame, made), args, keywords, node)
        else:
            self._fields(cls, made, args, keywords)
        return made

    def _fields(self, cls: Class, made: Instance, args: list[Value], keywords: dict[str, Value]) -> None:
        """The attributes of a dataclass, from the order in which it declares them."""
        names = [s.target.id for s in cls.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
        for name, value in zip(names, args, strict=False):
            self.store(made.key, name, value)
        for name, value in keywords.items():
            self.store(made.key, name, value)

    def _subclass_scaler(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A GradScaler of the project's own: its methods are read, and those that it does not have are torch's."""
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        thing.facts.update(constructed=True, callable=cls.name, cls=cls)
        return Ref(thing)

    def own_method(self, receiver: Value, name: str) -> FunctionValue | None:
        """A method that a class of the project gives a scaler, unless that method is what asks for it."""
        cls = receiver.thing.facts.get("cls") if isinstance(receiver, Ref) else None
        method = self.method_of(cls, name) if cls is not None else None
        if method is None or method in self.active:
            return None
        return FunctionValue(method, self.home(method.module), receiver, self.decorations(method))

    def attribute(self, receiver: Value, name: str, node: ast.AST) -> Value:
        if isinstance(receiver, Named):
            made = Named(f"{receiver.name}.{name}")
            made.shim = receiver.shim
            return made
        if isinstance(receiver, ModuleValue):
            return self.member(receiver, name) or Named(f"{receiver.name}.{name}")
        if isinstance(receiver, Choice):
            return self.on_each(receiver, lambda r: self.attribute(r, name, node))
        if isinstance(receiver, Instance):
            return self._instance_attribute(receiver, name, node)
        if isinstance(receiver, SuperValue):
            return self._super_attribute(receiver, name)
        if isinstance(receiver, ClassValue) and name not in receiver.cls.methods and self._is_enum(receiver.cls):
            return Const((receiver.cls.module.path, receiver.cls.name, name))
        if name == "apply" and isinstance(receiver, ClassValue):
            return BoundMethod(receiver, name)
        if name in BOUND.get(receiver.role if isinstance(receiver, Ref) else "", ()):
            return BoundMethod(receiver, name)
        if isinstance(receiver, Tensor) and name == "backward":
            return BoundMethod(receiver, name)
        if isinstance(receiver, Tensor) and name == "grad":
            # Whether it holds the loss scale, only the backward before it tells.
            held = receiver.copy()
            held.opaque = True
            return held
        if isinstance(receiver, Tensor):
            return receiver.copy() if name not in TO_NUMBER else self.fresh(node, name)
        if isinstance(receiver, Params):
            return self._params_attribute(receiver, name, node)
        if isinstance(receiver, Grad):
            return receiver if name == "data" else self.fresh(node, name)
        if isinstance(receiver, Ref):
            if receiver.role == "scaler" and name == "_per_optimizer_states":
                # Who asks the scaler itself what was done knows better.
                self.emit(e.HANDOFF, node, things=(receiver.thing.key, *self._all_optimizers()), trains=())
            found = self._ref_attribute(receiver, name)
            if found is not None:
                return found
        key = self.identity(receiver)
        stored = self.state.heap.get((key, name)) if isinstance(key, int) else None
        if stored is not None:
            return stored
        text = self.words(node) if isinstance(node, ast.expr) else name
        made_opaque = self.structural("attribute", (receiver,), text, name)
        made_opaque.parameter = isinstance(receiver, Opaque) and receiver.parameter
        made_opaque.graded = made_opaque.graded or name == "grad"
        made_opaque.compares = isinstance(receiver, Opaque) and receiver.called
        return made_opaque

    def _is_enum(self, cls: Class) -> bool:
        """Whether each name in a class stands for a value of its own."""
        bases = [self._base(owner, base) for owner in self._bases(cls) for base in owner.bases]
        return any(isinstance(base, Named) and base.name.startswith("enum.") for base in bases)

    def _ref_attribute(self, receiver: Ref, name: str) -> Value | None:
        if receiver.role == "optimizer" and name == "param_groups":
            return Params(receiver.thing.facts.get("owns"), frozenset((receiver.thing.key,)), groups=True)
        if receiver.role == "module" and name == "module":
            return receiver
        return None

    def _params_attribute(self, receiver: Params, name: str, node: ast.AST) -> Value:
        if name == "grad":
            return Grad(receiver)
        if name == "data":
            return receiver
        return self.structural("attribute", (receiver,), name, name)

    def _super_attribute(self, receiver: SuperValue, name: str) -> Value:
        method = self.method_of(receiver.cls, name, after=receiver.cls)
        if method is not None:
            return FunctionValue(method, self.home(method.module), receiver.receiver)
        if isinstance(receiver.receiver, Ref) and name in BOUND.get(receiver.receiver.role, ()):
            return BoundMethod(receiver.receiver, name)
        return self.opaque(("super", receiver.cls.name, name), f"super().{name}")

    def _instance_attribute(self, receiver: Instance, name: str, node: ast.AST) -> Value:
        value = self.state.heap.get((receiver.key, name))
        if name == "__dict__":
            return as_mapping(receiver, self.attributes)
        if value is not None:
            if isinstance(value, Opaque) and name in receiver.cls.changed:
                value.loops |= self.turning()
            return value
        method = self.method_of(receiver.cls, name)
        if method is not None:
            if "property" in method.decorator_names():
                return self.follow(FunctionValue(method, self.home(method.module), receiver), [], {}, node)
            return FunctionValue(method, self.home(method.module), receiver, self.decorations(method))
        for owner in self._bases(receiver.cls):
            shared = self.class_vars.get(owner.node, {}).get(name)
            if shared is not None:
                return shared
        assigned = self._assigned_elsewhere(receiver, name)
        if assigned is not None:
            self.store(receiver.key, name, assigned)
            return assigned
        if receiver.thing is not None and name in BOUND["module"]:
            return BoundMethod(receiver, name)
        return self.opaque(("attribute of", receiver.key, name), self.words(node))

    def decorations(self, method: Function) -> tuple[Value, ...]:
        """Autocast and no_grad decorators of a method, as reading its class found them."""
        held = (
            self.class_vars.get(method.cls.node, {}).get(method.name)
            if method.cls
            else self.home(method.module).vars.get(method.name)
        )
        return held.wrappers if isinstance(held, FunctionValue) and held.function is method else ()

    def _assigned_elsewhere(self, receiver: Instance, name: str) -> Value | None:
        """The value that some method of the class gives an attribute, read as if that method had been called."""
        places = [place for cls in self._bases(receiver.cls) for place in cls.assigned.get(name, ())]
        maybe_none = any(isinstance(expression, ast.Constant) and expression.value is None for _, expression in places)
        for method, expression in places:
            # An attribute may be given what is computed from itself, or from one that is computed from it.
            if (method in self.active and method.name != "__init__") or id(expression) in self.looked_up:
                continue
            self.looked_up.add(id(expression))
            value = self._as_assigned(receiver, method, expression)
            self.looked_up.discard(id(expression))
            if isinstance(value, Const) and value.value is None:
                continue
            if maybe_none and not isinstance(value, Opaque):
                question = self.ask(("set", receiver.key, name), name, frozenset())
                return self.unite(question, value, NONE, name)
            return value
        return None

    def _as_assigned(self, receiver: Instance, method: Function, expression: ast.expr) -> Value:
        outer, frame = self.state.frame, Frame(method, self.home(method.module), None)
        parameters = method.parameters()
        if parameters:
            frame.vars[parameters[0].arg] = receiver
        frame.receiver, frame.cls = receiver, method.cls
        values: list[Value] = []
        self.state.frame = frame
        self.active.append(method)
        self.bind_unknown(frame, method)
        self.unrecorded(lambda: values.append(self.evaluate(expression)))
        self.active.pop()
        self.state.frame = outer
        return values[0]

    def call_method(
        self, receiver: Value, name: str, args: list[Value], node: ast.AST, keywords: dict[str, Value] | None = None
    ) -> Value:
        if isinstance(receiver, Instance):
            method = self.method_of(receiver.cls, name)
            if method is not None:
                func = FunctionValue(method, self.home(method.module), receiver, self.decorations(method))
                if method.manager:
                    return HelperContext(func, args, keywords or {}, node)
                return self.follow(func, args, keywords or {}, node)
            return NONE
        return self.method(receiver, name, args, keywords or {}, node)

    def _instance_method(
        self, receiver: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        stored = self.state.heap.get((receiver.key, name))
        if stored is not None:
            return self.call_value(stored, args, keywords, node)
        method = self.method_of(receiver.cls, name)
        if method is not None:
            if receiver.thing is not None and name == "forward":
                return self.module_called(receiver, receiver.thing, args, keywords, node)
            bound = FunctionValue(
                method,
                self.home(method.module),
                None if is_static(method) else receiver,
                self.decorations(method),
            )
            return self.call_value(bound, args, keywords, node)
        if receiver.thing is not None:
            return self.module_method(receiver, receiver.thing, name, args, keywords, node)
        if name == "_asdict":
            return as_mapping(receiver, self.attributes)
        assigned = self._assigned_elsewhere(receiver, name)
        if assigned is not None:
            return self.call_value(assigned, args, keywords, node)
        self.lend(receiver, [*args, *keywords.values()])
        return self.unknown(self.opaque(("attribute of", receiver.key, name), self.words(node)), args, keywords, node)

    def _class_method(
        self, receiver: ClassValue, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "apply" and self._role_of(receiver.cls) == surface.AUTOGRAD_FUNCTION:
            tensors = [t for value in args for t in tensors_of(value)]
            made = self._computed(tensors) if tensors else self._foreign_tensor(None)
            backward = self.method_of(receiver.cls, "backward")
            made.custom = backward is not None and "custom_bwd" not in backward.decorator_names()
            self.applied(receiver.cls, args)
            return made
        method = self.method_of(receiver.cls, name)
        if method is None:
            return self.unknown(
                self.opaque(("class attribute", id(receiver.cls.node), name), name), args, keywords, node
            )
        if "classmethod" in method.decorator_names():
            args = [receiver, *args]
        return self.call_value(FunctionValue(method, receiver.frame), args, keywords, node)


def _reduced_as(outcome: Value, made: Tensor) -> Value:
    """What a module gives, in the shape and with the reductions that reading its forward has shown."""
    if isinstance(outcome, Choice):
        outcome = next((v for _, v in outcome.options if isinstance(v, (Tensor, Sequence, Mapping))), outcome)
    if isinstance(outcome, Sequence) and not outcome.open:
        return Sequence([_reduced_as(item, made) for item in outcome.items])
    if isinstance(outcome, Mapping) and not outcome.open:
        return Mapping({key: _reduced_as(item, made) for key, item in outcome.items.items()})
    part = made.copy()
    if isinstance(outcome, Tensor):
        part.divided, part.is_loss, part.vague = outcome.divided, outcome.is_loss, outcome.vague
    elif isinstance(outcome, Opaque):
        part.divided = outcome.divided
    return part
