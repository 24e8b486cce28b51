"""Calls: what each one is to the protocol. The table of torch names decides; what is not in it is unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..protocol import events as e
from ..protocol import surface
from ..protocol.events import Event, Site, Symbol, Thing
from .conditions import Formula, both
from .machine import BUDGET, DEPTH, Frame
from .project import Class, Function
from .reader import IMPURE, Expressions, undo
from .syntax import Words, walk
from .values import (
    NONE,
    Choice,
    ClassValue,
    Const,
    FunctionValue,
    Grad,
    GradMode,
    HelperContext,
    Instance,
    Mapping,
    Named,
    NullContext,
    Opaque,
    Params,
    Partial,
    Ref,
    ScaleValue,
    Sequence,
    StackContext,
    StateDict,
    SuperValue,
    Tensor,
    Truth,
    Value,
)

#: Builtins that give back an iterable over what they are given.
PASS_THROUGH = frozenset("list tuple set sorted reversed iter filter chain next".split())
#: Tensor methods that end a tensor's use as a loss.
TO_NUMBER = frozenset("item tolist numpy cpu shape size dim backward_hooks requires_grad".split())
#: Tensor methods that edit in place.
EDITS = frozenset("mul_ clamp_ clip_ nan_to_num_ add_ sub_ copy_ masked_fill_ sign_ clamp_min_ clamp_max_".split())
READS = frozenset("norm abs mean max min std pow sum square histc isnan isinf isfinite".split())
#: Functions of the standard library and of torch that neither step nor change what they are given.
HARMLESS = (
    "builtins.",
    "torch.",
    "logging.",
    "math.",
    "os.",
    "time.",
    "json.",
    "numpy.",
    "np.",
    "copy.",
    "sys.",
    "random.",
)
#: Calls that end the program.
ENDINGS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})
#: Methods by which a list, a meter, a logger or a progress bar is told of a value.
TELLING = frozenset(
    "append add update log info debug warning error print write set_postfix add_scalar set_description".split()
)


class Reader(Expressions):
    """Reads calls: gives each its event, and its value."""

    def call(self, node: ast.Call) -> Value:
        func = node.func
        if isinstance(func, ast.Attribute):
            receiver = self.evaluate(func.value)
            if isinstance(receiver, Named):
                return self._call_named(receiver.name + "." + func.attr, node, receiver.shim)
            args, keywords = self._arguments(node)
            return self._on_each(receiver, lambda r: self._method(r, func.attr, args, keywords, node))
        callee = self.evaluate(func)
        if isinstance(callee, Named):
            return self._call_named(callee.name, node, callee.shim)
        args, keywords = self._arguments(node)
        return self.call_value(callee, args, keywords, node)

    def _arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for arg in node.args:
            value = self.evaluate(arg)
            if isinstance(arg, ast.Starred) and isinstance(value, Sequence) and not value.open:
                args.extend(value.items)
            else:
                args.append(value)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Mapping):
                keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
            else:
                keywords["**"] = value
        return args, keywords

    def _on_each(self, value: Value, act: Callable[[Value], Value]) -> Value:
        """Do what a call does on each of the values that its receiver may be; None can be no receiver."""
        if not isinstance(value, Choice):
            return act(value)
        options = [(f, v) for f, v in value.options if not (isinstance(v, Const) and v.value is None)]
        if not options:
            return self.opaque(("of none", id(value)), "")
        return self._each(options, act, excluded=len(options) < len(value.options))

    def _each(self, options: list[tuple[Formula, Value]], act: Callable[[Value], Value], *, excluded: bool) -> Value:
        formula, value = options[0]
        if len(options) == 1 and not excluded:
            return act(value)
        results: list[Value] = [NONE, NONE]

        def then() -> None:
            results[0] = act(value)

        def otherwise() -> None:
            if len(options) > 1:
                results[1] = self._each(options[1:], act, excluded=excluded)
            else:
                # Calling None raises: this way ends here.
                self.cur = None

        yes, no = self.fork(formula, then, otherwise)
        if not no or isinstance(formula, bool):
            return results[0]
        if not yes:
            return results[1]
        return self.unite(formula, results[0], results[1], f"each{id(options)}")

    # Calling a value.

    def call_value(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if isinstance(func, Choice):
            return self._on_each(func, lambda f: self.call_value(f, args, keywords, node))
        if isinstance(func, Partial):
            return self.call_value(func.func, [*func.args, *args], {**func.keywords, **keywords}, node)
        if isinstance(func, FunctionValue):
            if "contextmanager" in func.function.decorator_names():
                return HelperContext(func, args, keywords, node)
            return self.follow(func, args, keywords, node)
        if isinstance(func, ClassValue):
            return self._construct(func, args, keywords, node)
        if isinstance(func, Instance):
            if func.thing is not None:
                return self._forward(func.thing, args, keywords, node, self._reads_forward(func.cls))
            return self.call_method(func, "__call__", args, node, keywords)
        if isinstance(func, Ref):
            return self._call_ref(func, args, keywords, node)
        if isinstance(func, Named):
            return self._named(func.name, args, keywords, node, func.shim)
        if isinstance(func, (NullContext, GradMode)):
            return func
        return self._unknown(func, args, keywords, node)

    def _call_ref(self, func: Ref, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        role = func.role
        if role == "module":
            return self._forward(func.thing, args, keywords, node, bool(func.thing.facts.get("read")))
        if role == "loss":
            return self._loss(func.thing.facts, args, keywords, node)
        if role == "autocast" and args and isinstance(args[0], FunctionValue):
            inner = args[0]
            return FunctionValue(inner.function, inner.frame, inner.receiver, (*inner.wrappers, func))
        return self._unknown(func, args, keywords, node)

    def _unknown(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A call of something that cannot be read."""
        given = [*args, *keywords.values()]
        self._hand_off(given, node)
        self._may_save(given, node)
        tensors = [t for value in given for t in _tensors(value)]
        name = func.text if isinstance(func, Opaque) else ""
        last = name.rpartition(".")[2]
        if tensors and last not in TELLING:
            made = self._computed(tensors)
            made.deps = None
            if not any(t.is_loss for t in tensors):
                made.divided = False
            made.module_read = False
            return made
        if last in IMPURE:
            return self.fresh(node, name)
        made_opaque = self.structural(
            "call", (func, *given), self.words(node) if isinstance(node, ast.Call) else "", tuple(keywords)
        )
        if self.loops:
            made_opaque.loops |= frozenset((self.loops[-1].key,))
        return made_opaque

    # Functions of the project.

    def follow(
        self,
        func: FunctionValue,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        on_yield: Callable[[Value], None] | None = None,
    ) -> Value:
        """Read the body of a function of the project with its arguments bound."""
        function = func.function
        if self.cur is None:
            return NONE
        if func.receiver is not None and not _is_static(function):
            args = [func.receiver, *args]
        if function in self.active:
            self._recursion(func, node)
            return self.fresh(node, "recursive")
        if function.abstract():
            self.roots_reached.add(function.node)
            words = Words(node.func) if isinstance(node, ast.Call) else function.name
            return self._unknown(self.opaque(("abstract", id(function.node)), words), args, keywords, node)
        if not function.words and not func.wrappers and not self._worthwhile(function):
            self.roots_reached.add(function.node)
            return self._unknown(self.opaque(("function", id(function.node)), function.name), args, keywords, node)
        if len(self.active) >= DEPTH or self.spent > BUDGET:
            self.program.facts.setdefault("given_up", []).append((self.site(node), function.name))
            return self._unknown(self.opaque(("function", id(function.node)), function.name), args, keywords, node)
        self.roots_reached.add(function.node)
        frame = Frame(function, func.frame, self.site(node))
        self._bind(frame, function, args, keywords, node)
        frame.unwind_base = len(self.unwind)
        frame.path_base = len(self.path)
        frame.on_yield = on_yield
        frame.cls = function.cls
        frame.receiver = func.receiver
        return self.run(frame, function, func.wrappers, node)

    def _worthwhile(self, function: Function) -> bool:
        """Whether a function that does nothing to the protocol may still make a value that matters: it is short."""
        return isinstance(function.node, ast.Lambda) or len(function.node.body) <= 4

    def run(self, frame: Frame, function: Function, wrappers: tuple[Value, ...], node: ast.AST) -> Value:
        outer, loops = self.frame, self.loops
        handlers, mark = self.handlers, self.mark()
        self.frame = frame
        self.loops = [*loops]
        guarded, self.guarded = self.guarded, 0
        self.active.append(function)
        base = len(self.path)
        depth = self.depth
        modes = [w for w in wrappers if isinstance(w, GradMode)]
        regions = [w for w in wrappers if not isinstance(w, GradMode)]
        self.no_grad += len(modes)
        place = function.node.decorator_list[0] if getattr(function.node, "decorator_list", None) else function.node
        for wrapper in regions:
            self.name_it(wrapper, "")
            self.enter(wrapper, place)
        body = function.node.body
        if isinstance(function.node, ast.Lambda):
            value = self.evaluate(function.node.body)
            if self.cur is not None:
                frame.returns.append((self.cur, True, value, self.heap))
        else:
            assert isinstance(body, list)
            marker = len(self.loops)
            self.read(body)
            del self.loops[marker:]
            if self.cur is not None:
                frame.returns.append((self.cur, both(*self.path[frame.path_base :]), NONE, self.heap))
        del self.path[base:]
        self.cur = self.join(cur for cur, *_ in frame.returns)
        value = self._returned(frame)
        self.returned = mark.returned
        self.forget(mark)
        for wrapper in reversed(regions):
            self.exit(wrapper, place, depth)
            self.closed(wrapper)
        self.depth = depth
        self.no_grad -= len(modes)
        self.active.pop()
        self.frame = outer
        self.loops = loops
        self.handlers = handlers
        self.guarded = guarded
        return value

    def _returned(self, frame: Frame) -> Value:
        if not frame.returns:
            return NONE
        _, _, value, heap = frame.returns[-1]
        for _, formula, earlier, earlier_heap in reversed(frame.returns[:-1]):
            if earlier is not value:
                value = self.unite(
                    formula if formula is not True else self.ask(("way", id(frame)), "", self.turning()),
                    earlier,
                    value,
                    "returned",
                )
            if earlier_heap is not heap:
                heap = {**earlier_heap, **heap}
        self.heap = heap
        return value

    def _recursion(self, func: FunctionValue, node: ast.AST) -> None:
        """A function that is being read calls itself: its decorators enter their contexts once more."""
        depth = self.depth
        place = func.function.node.decorator_list[0] if getattr(func.function.node, "decorator_list", None) else node
        for wrapper in func.wrappers:
            if not isinstance(wrapper, GradMode):
                self.enter(wrapper, place)
        for wrapper in func.wrappers:
            if not isinstance(wrapper, GradMode):
                self.exit(wrapper, place, depth)
                self.closed(wrapper)
        self.depth = depth

    def _bind(
        self, frame: Frame, function: Function, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> None:
        """Bind arguments to parameters; what is not given takes its default."""
        spec = function.node.args
        names = function.parameters()
        rest = dict(keywords)
        for i, parameter in enumerate(names):
            if i < len(args):
                frame.vars[parameter.arg] = args[i]
            elif parameter.arg in rest:
                frame.vars[parameter.arg] = rest.pop(parameter.arg)
        for keyword in spec.kwonlyargs:
            if keyword.arg in rest:
                frame.vars[keyword.arg] = rest.pop(keyword.arg)
        defaults = list(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
        starred = "**" in rest or _stars(node)
        for parameter, default in defaults:
            if parameter.arg not in frame.vars and not starred:
                outer, self.frame = self.frame, frame
                frame.vars[parameter.arg] = self.evaluate(default)
                self.frame = outer
        for parameter in [*names, *spec.kwonlyargs]:
            if parameter.arg not in frame.vars:
                key = ("missing", self.place_key(node), parameter.arg)
                frame.vars[parameter.arg] = self.opaque(key, parameter.arg, parameter=True)
        if spec.vararg is not None:
            frame.vars[spec.vararg.arg] = Sequence(list(args[len(names) :]), open=starred)
        if spec.kwarg is not None:
            frame.vars[spec.kwarg.arg] = Mapping(dict(rest), open=starred)

    def bind_unknown(self, frame: Frame, function: Function) -> None:
        """Parameters of a function that nobody calls here: whatever their annotations say they are."""
        spec = function.node.args
        for parameter in [*function.parameters(), *spec.kwonlyargs]:
            if parameter.arg in frame.vars:
                continue
            value = self.opaque(("parameter", id(parameter)), parameter.arg, parameter=True)
            frame.vars[parameter.arg] = self._annotated(value, parameter)
        if spec.vararg is not None:
            frame.vars[spec.vararg.arg] = Sequence([], open=True)
        if spec.kwarg is not None:
            frame.vars[spec.kwarg.arg] = Mapping({}, open=True)

    def _annotated(self, value: Opaque, parameter: ast.arg) -> Value:
        annotation = parameter.annotation
        if annotation is None:
            return value
        for node in walk(annotation):
            if isinstance(node, (ast.Name, ast.Attribute)):
                named = self._dotted(node)
                entry = surface.lookup(named) if named else None
                role = entry.role if entry is not None else surface.BASES.get(named or "")
                if role in (surface.SCALER, surface.OPTIMIZER, surface.MODULE):
                    thing = self.thing(("annotated", id(parameter)), role, parameter.arg, self.site(parameter))
                    return Ref(thing, True, value)
        return value

    def _dotted(self, node: ast.AST) -> str | None:
        """The dotted name that an annotation or a base class stands for."""
        if isinstance(node, ast.Name):
            value = self.look_up(node.id)
            if isinstance(value, Named):
                return value.name
            return surface.BARE.get(node.id) if value is None else None
        if isinstance(node, ast.Attribute):
            head = self._dotted(node.value)
            return f"{head}.{node.attr}" if head else None
        return None

    # Classes of the project.

    def _role_of(self, cls: Class, seen: int = 0) -> str | None:
        """The role that a class inherits from torch."""
        if seen > 6:
            return None
        for base in cls.bases:
            named = self._dotted(base)
            if named:
                role = surface.BASES.get(surface.canonical(named))
                if role:
                    return role
                if named.startswith("torch.nn.") and named.rpartition(".")[2][:1].isupper():
                    return surface.MODULE
            value = self.look_up(base.id) if isinstance(base, ast.Name) else None
            if isinstance(value, ClassValue) and value.cls is not cls:
                role = self._role_of(value.cls, seen + 1)
                if role:
                    return role
        return None

    def _bases(self, cls: Class) -> list[Class]:
        """The classes of the project that a class derives from, itself first."""
        chain, todo = [], [cls]
        while todo and len(chain) < 12:
            now = todo.pop(0)
            if now in chain:
                continue
            chain.append(now)
            for base in now.bases:
                value = self.look_up(base.id) if isinstance(base, ast.Name) else None
                if isinstance(value, ClassValue):
                    todo.append(value.cls)
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

    def _construct(self, func: ClassValue, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        cls = func.cls
        role = self._role_of(cls)
        if role == surface.SCALER:
            return self._subclass_scaler(cls, args, keywords, node)
        if role == surface.OPTIMIZER:
            made_optimizer = self._new_optimizer(args[0] if args else keywords.get("params"), node, cls.name)
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
            self.heap[made.key, name] = value
        for name, value in keywords.items():
            self.heap[made.key, name] = value

    def _subclass_scaler(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A GradScaler of the project's own: what its methods do is not torch's word any more."""
        if any(name in cls.methods for name in ("scale", "unscale_", "step", "update", "__call__")):
            self._hand_off([*args, *keywords.values()], node)
            return self.fresh(node, cls.name)
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        thing.facts.update(constructed=True, callable=cls.name)
        return Ref(thing)

    def attribute(self, receiver: Value, name: str, node: ast.AST) -> Value:
        if isinstance(receiver, Named):
            made = Named(f"{receiver.name}.{name}")
            made.shim = receiver.shim
            return made
        if isinstance(receiver, Choice):
            return self._on_each(receiver, lambda r: self.attribute(r, name, node))
        if isinstance(receiver, Instance):
            return self._instance_attribute(receiver, name, node)
        if isinstance(receiver, SuperValue):
            return self._super_attribute(receiver, name)
        if isinstance(receiver, Tensor):
            return receiver.copy() if name not in TO_NUMBER else self.fresh(node, name)
        if isinstance(receiver, Params):
            return self._params_attribute(receiver, name, node)
        if isinstance(receiver, Grad):
            return receiver if name == "data" else self.fresh(node, name)
        if isinstance(receiver, Ref):
            found = self._ref_attribute(receiver, name)
            if found is not None:
                return found
        key = self.identity(receiver)
        stored = self.heap.get((key, name)) if isinstance(key, int) else None
        if stored is not None:
            return stored
        text = f"{receiver.text}.{name}" if isinstance(receiver, Opaque) else self.words(node)
        made_opaque = self.structural("attribute", (receiver,), text, name)
        made_opaque.parameter = isinstance(receiver, Opaque) and receiver.parameter
        return made_opaque

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
            return FunctionValue(method, None, receiver.receiver)
        return self.opaque(("super", receiver.cls.name, name), f"super().{name}")

    def _instance_attribute(self, receiver: Instance, name: str, node: ast.AST) -> Value:
        value = self.heap.get((receiver.key, name))
        if value is not None:
            return value
        method = self.method_of(receiver.cls, name)
        if method is not None:
            if "property" in method.decorator_names():
                return self.follow(FunctionValue(method, self.globals, receiver), [], {}, node)
            return FunctionValue(method, self.globals, receiver, self.decorations(method))
        for owner in self._bases(receiver.cls):
            shared = self.class_vars.get(owner.node, {}).get(name)
            if shared is not None:
                return shared
        assigned = self._assigned_elsewhere(receiver, name)
        if assigned is not None:
            self.heap[receiver.key, name] = assigned
            return assigned
        return self.opaque(("attribute of", receiver.key, name), self.words(node))

    def decorations(self, method: Function) -> tuple[Value, ...]:
        """Autocast and no_grad decorators of a method, as reading its class found them."""
        held = (
            self.class_vars.get(method.cls.node, {}).get(method.name)
            if method.cls
            else self.globals.vars.get(method.name)
        )
        return held.wrappers if isinstance(held, FunctionValue) and held.function is method else ()

    def _assigned_elsewhere(self, receiver: Instance, name: str) -> Value | None:
        """The value that some method of the class gives an attribute, read as if that method had been called."""
        places = [place for cls in self._bases(receiver.cls) for place in cls.assigned.get(name, ())]
        maybe_none = any(isinstance(expression, ast.Constant) and expression.value is None for _, expression in places)
        for method, expression in places:
            if method in self.active and method.name != "__init__":
                continue
            value = self._as_assigned(receiver, method, expression)
            if isinstance(value, Const) and value.value is None:
                continue
            if maybe_none and not isinstance(value, Opaque):
                question = self.ask(("set", receiver.key, name), name, frozenset())
                return self.unite(question, value, NONE, name)
            return value
        return None

    def _as_assigned(self, receiver: Instance, method: Function, expression: ast.expr) -> Value:
        outer, frame = self.frame, Frame(method, self.globals, None)
        parameters = method.parameters()
        if parameters:
            frame.vars[parameters[0].arg] = receiver
        frame.receiver, frame.cls = receiver, method.cls
        values: list[Value] = []
        self.frame = frame
        self.active.append(method)
        self.bind_unknown(frame, method)
        self.aside(lambda: values.append(self.evaluate(expression)))
        self.active.pop()
        self.frame = outer
        return values[0]

    def call_method(
        self, receiver: Value, name: str, args: list[Value], node: ast.AST, keywords: dict[str, Value] | None = None
    ) -> Value:
        if isinstance(receiver, Instance):
            method = self.method_of(receiver.cls, name)
            if method is not None:
                func = FunctionValue(method, self.globals, receiver, self.decorations(method))
                if "contextmanager" in method.decorator_names():
                    return HelperContext(func, args, keywords or {}, node)
                return self.follow(func, args, keywords or {}, node)
            return NONE
        return self._method(receiver, name, args, keywords or {}, node)

    # Methods.

    def _method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if isinstance(receiver, Instance):
            return self._instance_method(receiver, name, args, keywords, node)
        if isinstance(receiver, SuperValue):
            found = self._super_attribute(receiver, name)
            if isinstance(found, FunctionValue):
                return self.follow(found, args, keywords, node)
            return self._unknown(found, args, keywords, node)
        if isinstance(receiver, Ref):
            if receiver.role == "scaler":
                return self._scaler_method(receiver, name, args, keywords, node)
            if receiver.role == "optimizer":
                return self._optimizer_method(receiver, name, args, keywords, node)
            if receiver.role in ("module", "loss"):
                return self._module_method(receiver, receiver.thing, name, args, keywords, node)
            if receiver.role == "autocast":
                return self._autocast_method(receiver, name, node)
        if isinstance(receiver, Tensor):
            return self._tensor_method(receiver, name, args, keywords, node)
        if isinstance(receiver, Grad):
            return self._grad_method(receiver, name, args, node)
        if isinstance(receiver, Params):
            return self._params_method(receiver, name, args, node)
        if isinstance(receiver, StackContext):
            if name == "enter_context" and args:
                self.enter(args[0], node)
                return self.entered_value(args[0], node if isinstance(node, ast.expr) else ast.Constant(None))
            return self.fresh(node, name)
        if isinstance(receiver, Mapping):
            return self._mapping_method(receiver, name, args, keywords, node)
        if isinstance(receiver, Sequence):
            return self._sequence_method(receiver, name, args, node)
        if isinstance(receiver, StateDict):
            return receiver
        if isinstance(receiver, ClassValue):
            return self._class_method(receiver, name, args, keywords, node)
        if isinstance(receiver, FunctionValue) and name == "__call__":
            return self.call_value(receiver, args, keywords, node)
        return self._opaque_method(receiver, name, args, keywords, node)

    def _instance_method(
        self, receiver: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        stored = self.heap.get((receiver.key, name))
        if stored is not None:
            return self.call_value(stored, args, keywords, node)
        method = self.method_of(receiver.cls, name)
        if method is not None:
            if receiver.thing is not None and name == "forward":
                return self._forward(receiver.thing, args, keywords, node, self._reads_forward(receiver.cls))
            bound = FunctionValue(
                method, self.globals, None if _is_static(method) else receiver, self.decorations(method)
            )
            return self.call_value(bound, args, keywords, node)
        if receiver.thing is not None:
            return self._module_method(receiver, receiver.thing, name, args, keywords, node)
        assigned = self._assigned_elsewhere(receiver, name)
        if assigned is not None:
            return self.call_value(assigned, args, keywords, node)
        return self._unknown(self.opaque(("attribute of", receiver.key, name), self.words(node)), args, keywords, node)

    def _class_method(
        self, receiver: ClassValue, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "apply" and self._role_of(receiver.cls) == surface.AUTOGRAD_FUNCTION:
            tensors = [t for value in args for t in _tensors(value)]
            made = self._computed(tensors) if tensors else self._foreign_tensor(None)
            backward = self.method_of(receiver.cls, "backward")
            made.custom = backward is not None and "custom_bwd" not in backward.decorator_names()
            return made
        method = self.method_of(receiver.cls, name)
        if method is None:
            return self._unknown(
                self.opaque(("class attribute", id(receiver.cls.node), name), name), args, keywords, node
            )
        if "classmethod" in method.decorator_names():
            args = [receiver, *args]
        return self.call_value(FunctionValue(method, receiver.frame), args, keywords, node)

    def _scaler_method(
        self, scaler: Ref, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name not in surface.SCALER_METHODS:
            if name in ("__call__",):
                return self._unknown(scaler, args, keywords, node)
            return self.structural("call", (scaler, *args), name, name)
        if name == "is_enabled":
            return Truth(scaler.enabled) if not isinstance(scaler.enabled, bool) else Const(scaler.enabled)
        if name == "get_scale":
            return ScaleValue(scaler.thing.key)
        if name == "state_dict":
            self.emit(e.SCALER_STATE, node, scaler.thing.key, names={"scaler": self._receiver(node)})
            return self._state(scaler, node)
        if name == "load_state_dict":
            self.emit(e.SCALER_LOAD, node, scaler.thing.key)
            return NONE
        results: list[Value] = [NONE, NONE]

        def enabled() -> None:
            results[0] = self._enabled_scaler(scaler, name, args, keywords, node)

        def disabled() -> None:
            results[1] = self._disabled_scaler(name, args, keywords, node)

        if scaler.enabled is True:
            enabled()
            return results[0]
        if scaler.enabled is False:
            disabled()
            return results[1]
        self.fork(scaler.enabled, enabled, disabled)
        return self.unite(scaler.enabled, results[0], results[1], f"scaled{id(node)}")

    def _disabled_scaler(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A disabled scaler: ``scale`` gives back its argument, ``step`` steps the optimizer, the rest does nothing."""
        target = _first(args, keywords, "outputs" if name == "scale" else "optimizer")
        if name == "scale" and target is not None:
            return target
        if name == "step" and target is not None:
            self._each_optimizer(
                target, node, lambda key, names: self.emit(e.STEP, node, None, key, names=names, disabled=True)
            )
        return NONE

    def _enabled_scaler(
        self, scaler: Ref, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        key = scaler.thing.key
        words = {"scaler": self._receiver(node), "call": self.words(node)}
        if name == "scale":
            value = _first(args, keywords, "outputs")
            return self._scaled(scaler, value, node)
        if name == "update":
            new_scale = _first(args, keywords, "new_scale")
            given = new_scale is not None and not (isinstance(new_scale, Const) and new_scale.value is None)
            self.emit(e.UPDATE, node, key, new_scale=given, names=words)
            return NONE
        if name in ("step", "unscale_"):
            target = _first(args, keywords, "optimizer")
            if target is None:
                return NONE
            closure = name == "step" and self._closure(args, keywords)

            def act(optimizer: int, names: dict[str, str]) -> None:
                if name == "step":
                    self.emit(e.SCALER_STEP, node, key, optimizer, closure=closure, names={**words, **names})
                else:
                    self.emit(e.UNSCALE, node, key, optimizer, names={**words, **names})

            self._each_optimizer(target, node, act)
            return self.fresh(node, name)
        return self.fresh(node, name)

    @staticmethod
    def _closure(args: list[Value], keywords: dict[str, Value]) -> bool:
        closure = args[1] if len(args) > 1 else keywords.get("closure")
        return closure is not None and isinstance(closure, FunctionValue)

    def _scaled(self, scaler: Ref, value: Value | None, node: ast.AST) -> Value:
        """The value of ``scaler.scale(value)``."""
        if isinstance(value, Choice):
            return self._on_each(value, lambda v: self._scaled(scaler, v, node))
        if isinstance(value, Sequence):
            return Sequence([self._scaled(scaler, item, node) for item in value.items], open=value.open)
        made = value.copy() if isinstance(value, Tensor) else self._foreign_tensor(value)
        argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        names = {"scaler": self._receiver(node), "call": self.words(node)}
        if argument is not None:
            names["loss"] = Words(argument)
        if made.penalty is not None:
            self._penalty(made, node)
        self.emit(
            e.SCALE,
            node,
            scaler.thing.key,
            autocast=made.autocast or ("in" if self._inside() else "unknown"),
            loss_in_region=made.in_region,
            forward_read=made.module_read and bool(made.autocast),
            dtypes=made.dtypes,
            device=made.device,
            forward=made.forward,
            names=names,
        )
        made.scaler = scaler.thing.key
        return made

    def _foreign_tensor(self, value: Value | None) -> Tensor:
        """A loss of which only the name is known."""
        made = Tensor(value.loops if value is not None else frozenset())
        made.deps = None
        made.opaque = isinstance(value, Opaque) and value.parameter
        made.divided = value is not None and value.divided
        made.autocast = "unknown"
        made.module_read = False
        return made

    def _each_optimizer(self, value: Value, node: ast.AST, act: Callable[[int, dict[str, str]], object]) -> None:
        """Act on the optimizer, or on each of those, that a value is."""
        if isinstance(value, Choice):
            self._on_each(value, lambda v: self._one_optimizer(v, node, act))
        else:
            self._one_optimizer(value, node, act)

    def _one_optimizer(self, value: Value, node: ast.AST, act: Callable[[int, dict[str, str]], object]) -> Value:
        thing = self._optimizer_thing(value, node)
        if thing is not None:
            argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
            act(thing.key, {"optimizer": Words(argument) if argument is not None else thing.name})
        return NONE

    def _optimizer_thing(self, value: Value, node: ast.AST) -> Thing | None:
        if isinstance(value, Ref) and value.role in ("optimizer", "module"):
            return value.thing
        if isinstance(value, Instance):
            return self.thing(("used instance", value.key), "optimizer", "", self.site(node))
        if isinstance(value, Opaque):
            return self.thing(("used", value.key), "optimizer", value.text, self.site(node))
        return None

    def _receiver(self, node: ast.AST) -> object:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return Words(node.func.value)
        return ""

    def _optimizer_method(
        self, optimizer: Ref, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        key = optimizer.thing.key
        names = {"optimizer": self._receiver(node), "call": self.words(node)}
        if name == "step":
            closure = _first(args, keywords, "closure")
            if isinstance(closure, FunctionValue):
                self.call_value(closure, [], {}, node)
            self.emit(e.STEP, node, None, key, names=names)
            return self.fresh(node, name)
        if name == "zero_grad":
            self.emit(e.ZERO_GRAD, node, None, None, owners=(key,), names=names)
            return NONE
        if name == "state_dict":
            return self._state(optimizer, node)
        if name in ("load_state_dict", "train", "eval", "add_param_group"):
            return NONE
        if name.startswith("register_"):
            optimizer.thing.facts["hooked"] = True
        if name == "backward":
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None)
            return NONE
        return self.structural("call", (optimizer, *args), name, name)

    def _module_method(
        self, receiver: Value, thing: Thing, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name in ("parameters", "named_parameters"):
            params = Params(frozenset((thing.key,)))
            if name == "named_parameters":
                return Sequence([Sequence([self.fresh(node, "name"), Params(params.modules, one=True)])])
            return params
        if name == "zero_grad":
            self.emit(
                e.ZERO_GRAD,
                node,
                None,
                None,
                owners=self._owners(Params(frozenset((thing.key,)))),
                names={"call": self.words(node)},
            )
            return NONE
        if name in ("half", "bfloat16"):
            self._cast(thing, "float16" if name == "half" else "bfloat16", node)
            return receiver
        if name == "to":
            for value in [*args, *keywords.values()]:
                dtype = surface.DTYPES.get(value.name) if isinstance(value, Named) else None
                if dtype in ("float16", "bfloat16"):
                    self._cast(thing, dtype, node)
            return receiver
        if name in ("requires_grad_",):
            flag = _first(args, keywords, "requires_grad")
            if isinstance(flag, Const) and flag.value is False:
                thing.facts["frozen"] = True
            return receiver
        if name in ("train", "eval", "cuda", "cpu", "float", "double", "apply", "to_empty", "share_memory"):
            if name in ("float", "double"):
                thing.facts["upcast"] = True
            return receiver
        if name == "load_state_dict":
            self.emit(e.PARAM_WRITE, node, thing.key, None, names={"module": self._receiver(node)})
            return self.fresh(node, name)
        if name in ("state_dict", "modules", "named_modules", "children", "named_children", "buffers"):
            return self._state(receiver, node) if name == "state_dict" else self.fresh(node, name)
        if name in ("forward", "__call__"):
            return self._forward(thing, args, keywords, node, bool(thing.facts.get("read")))
        if name == "no_sync":
            return GradMode()
        if name == "clip_grad_norm_":
            return self._clip(Params(frozenset((thing.key,))), args, keywords, node)
        if name == "backward":
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None)
            return NONE
        if name == "step":
            return self._unknown(receiver, args, keywords, node)
        if any(_tensors(value) for value in [*args, *keywords.values()]) or not (args or keywords):
            return self._forward(thing, args, keywords, node, False)
        return self._forward(thing, args, keywords, node, False)

    def _cast(self, thing: Thing, dtype: str, node: ast.AST) -> None:
        thing.facts["low"] = True
        self.emit(
            e.MODULE_CAST,
            node,
            thing.key,
            dtype=dtype,
            names={"module": self._receiver(node), "call": self.words(node)},
        )

    def _autocast_method(self, context: Ref, name: str, node: ast.AST) -> Value:
        if name == "__enter__":
            self.enter(context, node)
        elif name == "__exit__":
            self.exit(context, node, max(self.depth - 1, 0))
            self.closed(context)
            self.depth = max(self.depth - 1, 0)
        return self.fresh(node, name)

    def _state(self, of: Value, node: ast.AST) -> StateDict:
        return StateDict(of, node, self.site(node).path)

    # Tensors.

    def _inside(self) -> bool:
        """Whether an autocast region may be enabled where this is read."""
        return any(region.enabled is not False for region in self.open)

    def _forward(self, thing: Thing, args: list[Value], keywords: dict[str, Value], node: ast.AST, read: bool) -> Value:
        """The value of a module's forward."""
        self._hand_off([*args, *keywords.values()], node)
        cached = not (thing.facts.get("compiled") or thing.facts.get("low"))
        made = Tensor(self.turning())
        made.forward = self.emit(e.FORWARD, node, thing.key, cached=cached, names={"module": self.words(node)})
        parts = [t for value in [*args, *keywords.values()] for t in _tensors(value)]
        deps: frozenset[int] | None = frozenset((thing.key,))
        for part in parts:
            deps = None if deps is None or part.deps is None else deps | part.deps
            made.penalty = made.penalty or part.penalty
        made.deps = frozenset() if self.no_grad else deps
        made.module_read = read and all(part.module_read for part in parts)
        made.matmul = True
        self._mark_region(made)
        made.in_region = False
        return made

    def _mark_region(self, made: Tensor) -> None:
        """Record under which regions a tensor was computed."""
        region = next((r for r in reversed(self.open) if r.device != "null"), None)
        if region is not None and region.enabled is not False:
            made.autocast = "in"
            known = region.dtype if region.enabled is True and region.dtype else "?"
            made.dtypes = made.dtypes | {known}
            made.device = region.device
            made.low = region.dtype or "?"
        elif self.maybe_open:
            made.autocast = "unknown"
            made.dtypes = made.dtypes | {"?"}
        elif region is None or not made.autocast:
            made.autocast = "out"

    def _computed(self, parts: list[Tensor]) -> Tensor:
        made = Tensor.merge(parts)
        made.loops |= self.turning()
        made.in_region = self._inside()
        if made.in_region and not made.autocast:
            self._mark_region(made)
        return made

    def _loss(self, facts: dict[str, object], args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        parts = [t for value in [*args, *keywords.values()] for t in _tensors(value)]
        low = ""
        first = next(iter(_tensors(args[0])), None) if args else None
        if first is not None and first.low and not self._inside() and not self.maybe_open and not facts.get("promotes"):
            low = first.low if first.low in ("float16", "bfloat16") else ""
        self.emit(
            e.LOSS,
            node,
            function=facts.get("kind"),
            low_precision=low,
            names={
                "call": self.words(node),
                "loss": Words(node.args[0]) if isinstance(node, ast.Call) and node.args else "",
            },
        )
        made = self._computed(parts) if parts else Tensor(self.turning())
        if not parts:
            made.deps = None
            made.autocast = "in" if self._inside() else "unknown"
            made.module_read = False
            made.in_region = self._inside()
        made.is_loss = True
        made.low = ""
        reduction = keywords.get("reduction")
        summed = facts.get("reduction") == "sum" or (isinstance(reduction, Const) and reduction.value == "sum")
        unknown_reduction = reduction is not None and not isinstance(reduction, Const)
        made.divided = summed or unknown_reduction
        return made

    def _tensor_method(
        self, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "backward":
            self._backward(tensor, node)
            return NONE
        if name in TO_NUMBER:
            return self.fresh(node, name)
        made = self._computed([tensor, *(t for v in args for t in _tensors(v))])
        if name in ("detach", "detach_", "clone_", "data"):
            made.deps = frozenset()
            made.scaler = -1
        elif name in ("float", "double"):
            made.low, made.matmul = "", False
        elif name == "to" or name == "type":
            dtypes = [surface.DTYPES.get(v.name) for v in [*args, *keywords.values()] if isinstance(v, Named)]
            if any(dtype in ("float32", "float64") for dtype in dtypes):
                made.low, made.matmul = "", False
        elif name in ("div", "div_", "true_divide"):
            return self.operate("/", tensor, args[0] if args else NONE, node)
        elif name in ("mul", "mul_"):
            return self.operate("*", tensor, args[0] if args else NONE, node)
        elif name == "sum":
            made.divided = True
        elif name in ("masked_fill", "masked_fill_", "fill_", "index_fill", "index_fill_"):
            self._fill(name, args[-1] if args else keywords.get("value"), tensor, node)
        elif name in ("bmm", "matmul", "mm", "baddbmm", "__matmul__"):
            made.matmul = True
        return made

    def _backward(self, tensor: Tensor, node: ast.AST) -> None:
        names = {"loss": self._receiver(node), "call": self.words(node)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            if isinstance(inner, ast.Call) and inner.args:
                names["loss"] = Words(inner.args[0])
                if isinstance(inner.func, ast.Attribute):
                    names["scaler"] = Words(inner.func.value)
        if tensor.penalty is not None:
            self._penalty(tensor, node)
        scaler = tensor.scaler if tensor.scaler >= 0 else None
        self.emit(
            e.BACKWARD,
            node,
            scaler,
            feeds=self._fed(tensor),
            divided=tensor.divided,
            opaque=tensor.opaque and scaler is None,
            scaled=scaler is not None,
            dtypes=tensor.dtypes,
            device=tensor.device,
            custom=tensor.custom,
            names=names,
        )

    def _whole(self, keys: frozenset[int]) -> frozenset[int]:
        """Modules with the modules that are parts of them."""
        whole, todo = set(keys), list(keys)
        while todo:
            for part in self.program.things[todo.pop()].facts.get("parts", ()):
                if part not in whole:
                    whole.add(part)
                    todo.append(part)
        return frozenset(whole)

    def _fed(self, tensor: Tensor) -> tuple[int, ...] | None:
        """The optimizers whose gradients a backward reaches, where the modules tell."""
        if tensor.deps is None:
            return None
        fed = []
        for thing in self.program.things:
            if thing.role == "optimizer":
                owns = thing.facts.get("owns")
                if owns is None:
                    return None
                if self._whole(owns) & self._whole(tensor.deps):
                    fed.append(thing.key)
        return tuple(fed) if fed else None

    def _owners(self, params: Params) -> tuple[int, ...] | None:
        """The optimizers that update parameters; None where that is not known."""
        if params.optimizers:
            return tuple(params.optimizers)
        if params.modules is None:
            return None
        owners = []
        for thing in self.program.things:
            if thing.role == "optimizer":
                owns = thing.facts.get("owns")
                if owns is None:
                    return None
                if self._whole(owns) & self._whole(params.modules):
                    owners.append(thing.key)
        return tuple(owners) if owners else None

    def loss_arithmetic(self, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
        """What an operator makes of a loss, of gradients or of the loss scale."""
        for side in (left, right):
            if isinstance(side, Choice) and any(isinstance(v, (Tensor, ScaleValue)) for _, v in side.options):
                other = right if side is left else left

                def act(value: Value, side: Value = side, other: Value = other) -> Value:
                    return self.operate(op, value if side is left else other, other if side is left else value, node)

                return self._on_each(side, act)
        if isinstance(right, ScaleValue) and op == "/" and isinstance(left, Const):
            return ScaleValue(right.scaler, inverse=not right.inverse)
        scale = left if isinstance(left, ScaleValue) else right if isinstance(right, ScaleValue) else None
        if scale is not None:
            value = right if scale is left else left
            undone = scale.inverse if op == "*" else op == "/" and scale is right and not scale.inverse
            if isinstance(value, Grad):
                return Grad(value.params, unscaled=undone)
            tensors = _tensors(value)
            if tensors:
                made = Tensor.merge(tensors)
                if undone:
                    made.penalty = None
                    made.scaler = -1
                elif op == "*":
                    made.scaler = scale.scaler
                return made
            if undone or (op == "/" and scale is right):
                undo(value)
            return ScaleValue(scale.scaler, inverse=scale.inverse)
        if isinstance(left, Grad) or isinstance(right, Grad):
            return left if isinstance(left, Grad) else right
        parts = [*_tensors(left), *_tensors(right)]
        if not parts:
            return None
        made = self._computed(parts)
        if op == "/" and isinstance(left, Tensor) and isinstance(right, Tensor) and left.penalty and right.penalty:
            made.penalty = None
        if op == "@":
            made.matmul = True
        if op == "/" and isinstance(left, Tensor):
            made.divided = True
        elif op == "*" and (not isinstance(left, Tensor) or not isinstance(right, Tensor)):
            factor = right if isinstance(left, Tensor) else left
            if not isinstance(factor, Const) or isinstance(factor.value, float) and 0 < abs(factor.value) < 1:
                # A weight of which only the name is known may well be 1 / k.
                made.divided = made.divided or not isinstance(factor, Const)
        elif op in ("+", "-"):
            made.divided = all(p.divided for p in parts)
        return made

    # Gradients.

    def _params_method(self, params: Params, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in ("values", "items", "copy"):
            return params
        if name in ("copy_", "add_", "mul_", "sub_", "fill_", "zero_", "lerp_"):
            self.emit(e.PARAM_WRITE, node, None, None)
            return params
        return self.fresh(node, name)

    def _grad_method(self, grad: Grad, name: str, args: list[Value], node: ast.AST) -> Value:
        owners = self._owners(grad.params)
        names = {"call": self.words(node), "params": self._receiver(node)}
        if name in ("zero_", "detach_"):
            if name == "zero_":
                self.emit(e.ZERO_GRAD, node, None, None, owners=owners if owners is not None else (), names=names)
            return grad
        first = args[0] if args else NONE
        if name in ("div_", "mul_"):
            result = self.operate("/" if name == "div_" else "*", grad, first, node)
            self.grad_written(grad, result, node)
            return grad
        if name in EDITS:
            self.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)
            return grad
        if name in ("detach", "clone", "data", "float", "to", "cpu", "flatten", "view", "reshape"):
            return grad
        if name in READS:
            return self._read_grad(grad, node, name)
        return self.fresh(node, name)

    def _read_grad(self, grad: Grad, node: ast.AST, name: str) -> Value:
        """A number computed from gradients; dividing it by the scale puts the reading right."""
        reading = self.grad_used(grad, node)
        made = self.fresh(node, name)
        if reading is not None:
            made.readings = (reading,)
        return made

    def grad_written(self, target: Grad, value: Value, node: ast.AST) -> None:
        """An assignment to ``p.grad``, or an edit of it in place."""
        owners = self._owners(target.params)
        names = {"params": "p.grad", "call": self.words(node) if isinstance(node, ast.expr) else "this assignment"}
        if isinstance(value, Const) and value.value is None:
            self.emit(
                e.ZERO_GRAD,
                node,
                None,
                None,
                owners=owners if owners is not None else self._all_optimizers(),
                names=names,
            )
        elif isinstance(value, Grad) and value.unscaled:
            self.emit(e.GRAD_DIVIDE, node, None, None, owners=owners, names=names)
        elif isinstance(value, Grad) and isinstance(node, (ast.AugAssign, ast.Call)) and self._normalises(node):
            self.emit(e.GRAD_NORMALISE, node, None, None, owners=owners, names=names)
        elif isinstance(node, ast.AugAssign):
            self.emit(e.GRAD_EDIT, node, None, None, owners=owners, names=names)
        else:
            # Gradients that come from elsewhere (averaged over ranks, restored): whatever they are.
            self.emit(e.HANDOFF, node, None, None, things=owners if owners is not None else self._all_optimizers())

    @staticmethod
    def _normalises(node: ast.AST) -> bool:
        """Whether gradients are divided by a number, as the end of an accumulation window does."""
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, (ast.Div, ast.Mult))
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("div_", "mul_")
        )

    def _all_optimizers(self) -> tuple[int, ...]:
        return tuple(thing.key for thing in self.program.things if thing.role == "optimizer")

    def grad_used(self, grad: Grad, node: ast.AST) -> Event | None:
        if grad.unscaled:
            return None
        return self.emit(
            e.GRAD_READ,
            node,
            None,
            None,
            owners=self._owners(grad.params),
            names={"params": "p.grad", "call": self.words(node)},
        )

    def _penalty(self, tensor: Tensor, node: ast.AST) -> None:
        penalty = tensor.penalty
        tensor.penalty = None
        if isinstance(penalty, tuple):
            place, names = penalty
            self.emit(e.PENALTY, place, None, None, names=names)

    # Containers.

    def _mapping_method(
        self, receiver: Mapping, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "update":
            for value in args:
                if isinstance(value, Mapping):
                    receiver.items.update(value.items)
                    receiver.open = receiver.open or value.open
                else:
                    receiver.open = True
            receiver.items.update(keywords)
            return NONE
        if name == "values":
            return Sequence(list(receiver.items.values()), open=receiver.open)
        if name == "items":
            return Sequence([Sequence([Const(k), v]) for k, v in receiver.items.items()], open=receiver.open)
        if name in ("get", "pop", "setdefault") and args:
            found = self.item(receiver, args[0], node)
            return found
        return self.fresh(node, name)

    def _sequence_method(self, receiver: Sequence, name: str, args: list[Value], node: ast.AST) -> Value:
        if name == "append" and args:
            receiver.items.append(args[0])
            if self.loops:
                receiver.open = True
        elif name == "extend" and args:
            value = args[0]
            receiver.items.extend(value.items if isinstance(value, Sequence) else [value])
        elif name == "mean" or name == "sum":
            return self.fresh(node, name)
        return self.fresh(node, name)

    def _opaque_method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        given = [*args, *keywords.values()]
        text = self._receiver(node)
        key = self.identity(receiver)
        stored = self.heap.get((key, name)) if isinstance(key, int) else None
        if stored is not None:
            return self.call_value(stored, args, keywords, node)
        if name == "backward":
            if not args or not any(_tensors(v) for v in args):
                if isinstance(receiver, Opaque):
                    self._backward(self._foreign_tensor(receiver), node)
                    return NONE
            # A framework's own backward: it may scale, divide, step.
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None, names={"loss": text})
            return NONE
        if name in ("enter_context",) and args:
            self.maybe_open += 1
            return self.fresh(node, name)
        if name == "clip_grad_norm_" or name == "clip_grad_value_":
            # accelerator.clip_grad_norm_ and its like unscale by themselves.
            self._hand_off([*given, *self._refs(self._all_optimizers())], node)
            return self.fresh(node, name)
        if name == "parameters":
            return Params(None)
        if name in ("masked_fill", "masked_fill_", "fill_", "index_fill_", "index_fill"):
            made = self._foreign_tensor(receiver)
            self._fill(name, args[-1] if args else keywords.get("value"), made, node)
            return made
        if name in ("bmm", "matmul", "mm", "baddbmm"):
            made = self._foreign_tensor(receiver)
            made.matmul = True
            self._mark_region(made)
            return made
        if name == "state_dict":
            return self._state(receiver, node)
        if name in ("half", "bfloat16") and not args:
            self.emit(
                e.MODULE_CAST, node, None, dtype="float16" if name == "half" else "bfloat16", names={"module": text}
            )
        func = self.structural("method", (receiver,), f"{text}.{name}", name)
        return self._unknown(func, args, keywords, node)

    def _refs(self, keys: tuple[int, ...]) -> list[Value]:
        return [Ref(self.program.things[key]) for key in keys]

    # Calls of dotted names.

    def _call_named(self, name: str, node: ast.Call, shim: bool) -> Value:
        args, keywords = self._arguments(node)
        return self._named(name, args, keywords, node, shim)

    def _named(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST, shim: bool) -> Value:
        name = surface.canonical(name)
        if name in surface.DEPRECATED and not shim and not self.shims and isinstance(node, ast.expr):
            self._deprecated(name, node)
        entry = surface.SURFACE.get(name)
        if entry is not None:
            handler = _ROLES.get(entry.role)
            if handler is not None:
                made: Value = handler(self, entry, args, keywords, node)
                return made
        if name.startswith("builtins."):
            return self._builtin(name.removeprefix("builtins."), args, keywords, node)
        if name.startswith("itertools."):
            return self._builtin("chain" if name.endswith("chain") else "iter", args, keywords, node)
        if name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() and name.count(".") <= 3:
            return self._torch_module(name, args, node)
        given = [*args, *keywords.values()]
        if name in ENDINGS:
            self.happened += 1
            self.cur = None
            return NONE
        if name.startswith("torch.optim.lr_scheduler."):
            return self.fresh(node, "scheduler")
        if not name.startswith(HARMLESS):
            self._hand_off(given, node)
            self._may_save(given, node)
        tensors = [t for value in given for t in _tensors(value)]
        if tensors:
            made_tensor = self._computed(tensors)
            if name in ("torch.div", "torch.true_divide"):
                made_tensor.divided = True
            if name == "torch.sum":
                made_tensor.divided = True
            if not name.startswith("torch."):
                made_tensor.deps = None
                made_tensor.module_read = False
            return made_tensor
        if any(isinstance(v, Params) for v in given) and not name.startswith(HARMLESS):
            self._hand_off(self._refs(self._owners_of(given)), node)
        for value in given:
            for grad in _grads(value):
                if not name.startswith("torch.distributed.") and not name.endswith(".sign"):
                    return self._read_grad(grad, node, name)
        if name.rpartition(".")[2] in IMPURE:
            return self.fresh(node, name)
        made_opaque = self.structural("call", tuple(given), self.words(node), name, tuple(keywords))
        return made_opaque

    def _owners_of(self, given: list[Value]) -> tuple[int, ...]:
        keys: list[int] = []
        for value in given:
            if isinstance(value, Params):
                owners = self._owners(value)
                keys.extend(owners if owners is not None else self._all_optimizers())
        return tuple(dict.fromkeys(keys))

    def _deprecated(self, name: str, node: ast.AST) -> None:
        self.emit(e.DEPRECATED, node, old=name, new=surface.DEPRECATED[name], names={"call": name})

    def _torch_module(self, name: str, args: list[Value], node: ast.AST) -> Value:
        parts = [v for v in args if isinstance(v, (Ref, Instance))]
        thing = self.thing(("module", self.place_key(node)), "module", "", self.site(node))
        thing.facts["read"] = all(bool(_read(p)) for p in parts)
        thing.facts["parts"] = {p.thing.key for p in parts if p.thing is not None}
        return Ref(thing)

    def _builtin(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        first = args[0] if args else NONE
        if name == "super":
            frame = self.frame
            if frame.cls is not None and frame.receiver is not None:
                return SuperValue(frame.cls, frame.receiver)
            return self.fresh(node, "super()")
        if name in ("range", "enumerate"):
            made = self.structural("call", tuple(args), name, name)
            made.loops |= self.turning()
            start: Value = args[0] if name == "range" and len(args) > 1 else Const(0)
            if name == "enumerate":
                start = _first(args[1:], keywords, "start") or Const(0)
                self._enumerated[made.key] = first
            made.iterates = name
            made.first = start.value if isinstance(start, Const) and isinstance(start.value, int) else None
            return made
        if name == "zip":
            return Sequence(
                [
                    Sequence(
                        [
                            self.elements(a, node.args[0] if isinstance(node, ast.Call) else ast.Constant(0))
                            for a in args
                        ]
                    )
                ],
                open=True,
            )
        if name == "float" and isinstance(first, Const) and isinstance(first.value, (str, int, float)):
            try:
                return Const(float(first.value))
            except ValueError:
                return self.fresh(node, name)
        if name == "bool":
            return Truth(self.truth(first, "", node))
        if name == "isinstance":
            return self._isinstance(first, node)
        if name == "getattr" and len(args) >= 2 and isinstance(args[1], Const) and isinstance(args[1].value, str):
            return self.attribute(first, args[1].value, node)
        if name == "dict":
            if args and not isinstance(first, Mapping):
                return Mapping(dict(keywords), open=True)
            items = dict(first.items) if isinstance(first, Mapping) else {}
            items.update(keywords)
            return Mapping(items, open="**" in keywords)
        if name in ("filter", "map"):
            return args[1] if len(args) > 1 else first
        if name in ("sum", "max", "min"):
            tensors = _tensors(first)
            if tensors:
                return self._computed(tensors)
        if name in PASS_THROUGH:
            params = [v for v in args if isinstance(v, Params)]
            if params:
                return _merge_params(params)
            if len(args) == 1:
                return first
            if name == "chain":
                return (
                    self._computed([t for v in args for t in _tensors(v)])
                    if any(_tensors(v) for v in args)
                    else self.fresh(node)
                )
        if name in ("float", "int", "str", "len", "print", "format", "repr"):
            for value in args:
                for grad in _grads(value):
                    self.grad_used(grad, node)
            if name == "len":
                return self.structural("call", tuple(args), self.words(node), name)
            return self.structural("call", tuple(args), name, name)
        return self.structural("call", tuple(args), self.words(node), name)

    def _isinstance(self, value: Value, node: ast.AST) -> Value:
        named = self._dotted(node.args[1]) if isinstance(node, ast.Call) and len(node.args) == 2 else None
        role = surface.BASES.get(surface.canonical(named)) if named else None
        if isinstance(value, Ref) and value.source is None and role in ("scaler", "optimizer", "module"):
            return Const(value.role == role)
        return Truth(
            self.ask(("isinstance", self.identity(value), named or id(node)), self.words(node), value.loops, node)
        )

    # The roles of torch's names.

    def _bound(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value]
    ) -> tuple[dict[str, Value], int]:
        """Arguments bound to an entry's parameters, and how many did not bind."""
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(keywords)
        return bound, max(0, len(args) - len(entry.parameters))

    def _plain(self, value: Value) -> object:
        """An argument as the protocol's facts hold it: a constant, or a name."""
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Named):
            return Symbol(surface.canonical(value.name))
        if isinstance(value, Ref) and value.role == "device":
            return Symbol("torch.device()")
        return e.UNKNOWN

    def _new_autocast(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, excess = self._bound(entry, args, keywords)
        if entry.name == "torch.autocast" and args and isinstance(args[0], FunctionValue):
            # @torch.autocast without parentheses: the function is taken for the device type.
            bound = {"device_type": Named("function")}
        arguments = {name: self._plain(value) for name, value in bound.items()}
        names = {"context": self.words(node), "call": self.words(node)}
        open_ended = "**" in bound or _stars(node)
        if not open_ended:
            self.emit(e.AUTOCAST_NEW, node, None, callable=entry.name, arguments=arguments, excess=excess, names=names)
        enabled: Formula = True
        if "enabled" in bound:
            enabled = self.truth(bound["enabled"], self._words_of("enabled", node), node)
        elif open_ended:
            enabled = self.ask(("open", id(node)), "", frozenset(), node)
        device = entry.facts.get("device") or arguments.get("device_type", e.UNKNOWN)
        device = device.partition(":")[0] if isinstance(device, str) and not isinstance(device, Symbol) else ""
        if "dtype" in bound and not (isinstance(bound["dtype"], Const) and bound["dtype"].value is None):
            given = bound["dtype"]
            dtype = surface.DTYPES.get(given.name, "?") if isinstance(given, Named) else "?"
        else:
            dtype = surface.DEFAULT_AUTOCAST_DTYPE.get(device, "?") if not open_ended else "?"
        cache = bound.get("cache_enabled")
        thing = self.thing(("autocast", self.place_key(node)), "autocast", "", self.site(node))
        off = isinstance(cache, Const) and cache.value is False
        thing.facts.update(device=device, dtype=dtype, cache=not off)
        return Ref(thing, enabled)

    def _words_of(self, keyword: str, node: ast.AST) -> str:
        if isinstance(node, ast.Call):
            for item in node.keywords:
                if item.arg == keyword:
                    return Words(item.value)
        return ""

    def _new_scaler(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        bound, excess = self._bound(entry, args, keywords)
        enabled: Formula = True
        if "enabled" in bound:
            enabled = self.truth(bound["enabled"], self._words_of("enabled", node), node)
        elif "**" in bound:
            enabled = self.ask(("open", id(node)), "", frozenset(), node)
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        thing.facts.update(
            constructed=True, enabled=enabled, callable=entry.name, sharded=entry.facts.get("sharded", False)
        )
        thing.facts["local"] = not self.active or thing.facts.get("local", True)
        arguments = {name: self._plain(value) for name, value in bound.items()}
        self.emit(
            e.SCALER_NEW,
            node,
            thing.key,
            callable=entry.name,
            arguments=arguments,
            excess=excess,
            names={"call": self.words(node), "scaler": thing.name},
        )
        return Ref(thing, enabled)

    def _entry_optimizer(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        made = self._new_optimizer(bound.get("params"), node, entry.name)
        rate = bound.get("lr")
        made.thing.facts["divided"] = rate is not None and rate.divided
        return made

    def _new_optimizer(self, params: Value | None, node: ast.AST, callable_name: str) -> Ref:
        thing = self.thing(("optimizer", self.place_key(node)), "optimizer", "", self.site(node))
        thing.facts.update(constructed=True, callable=callable_name, owns=_modules_of(params))
        self.emit(e.OPTIMIZER_NEW, node, thing.key, names={"optimizer": thing.name})
        return Ref(thing)

    def _entry_clip(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        rest = [bound[name] for name in entry.parameters[1:] if name in bound]
        return self._clip(bound.get("parameters"), rest, bound, node)

    def _clip(self, params: Value | None, rest: list[Value], bound: dict[str, Value], node: ast.AST) -> Value:
        norm = self.fresh(node, "norm")
        limit = bound.get("max_norm") or bound.get("clip_value") or (rest[0] if rest else None)
        if _mentions_scale(limit):
            # The limit is scaled as the gradients are.
            return norm
        strict = bound.get("error_if_nonfinite")
        arguments = node.args if isinstance(node, ast.Call) else []
        clipping = self.emit(
            e.CLIP,
            node,
            None,
            None,
            owners=self._clip_owners(params),
            nonfinite_error=isinstance(strict, Const) and strict.value is True and not self.guarded,
            measures_only=_is_infinite(limit),
            names={"call": self.words(node), "params": Words(arguments[0]) if arguments else ""},
        )
        if clipping is not None:
            norm.readings = (clipping,)
        return norm

    def _clip_owners(self, params: Value | None) -> tuple[int, ...] | None:
        if isinstance(params, Params):
            return self._owners(params)
        if isinstance(params, Sequence):
            parts = [item for item in params.items if isinstance(item, Params)]
            if parts and len(parts) == len(params.items):
                return self._owners(_merge_params(parts))
        return None

    def _entry_norm(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        for grad in _grads(args[0]) if args else []:
            return self._read_grad(grad, node, "norm")
        return self.fresh(node, "norm")

    def _loss_module(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        thing = self.thing(("loss", self.place_key(node)), "loss", "", self.site(node))
        reduction = keywords.get("reduction")
        thing.facts.update(entry.facts)
        thing.facts["reduction"] = (
            reduction.value if isinstance(reduction, Const) else ("sum" if reduction is not None else "mean")
        )
        return Ref(thing)

    def _loss_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        order = [bound.pop(name) for name in entry.parameters if name in bound]
        return self._loss(entry.facts, order, bound, node)

    def _backward_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        value = _first(args, keywords, "tensors")
        tensors = _tensors(value) if value is not None else []
        tensor = Tensor.merge(tensors) if tensors else self._foreign_tensor(value)
        self._backward(tensor, node)
        return NONE

    def _grad_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        outputs = bound.get("outputs")
        tensors = _tensors(outputs) if outputs is not None else []
        made = Tensor.merge(tensors) if tensors else self._foreign_tensor(outputs)
        if made.scaler >= 0:
            argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
            words = Words(argument) if argument is not None else ""
            made.penalty = (
                node,
                {"call": self.words(node), "loss": words, "scaler": self.program.things[made.scaler].name},
            )
        made.scaler = -1
        made.is_loss = False
        self.emit(e.AUTOGRAD_GRAD, node)
        return made

    def _null(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return NullContext()

    def _exit_stack(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return StackContext()

    def _context(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if entry.facts.get("grad"):
            return NullContext()
        return GradMode()

    def _cache_clear(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        self.emit(e.AUTOCAST_CACHE_CLEAR, node)
        return NONE

    def _save(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        value = _first(args, keywords, "obj")
        if value is not None:
            self._saved(value, node)
        return NONE

    def _saved(self, value: Value, node: ast.AST) -> None:
        contents = _Contents()
        contents.look(value)
        place = contents.place
        ours = place is not None and place.path == self.site(node).path and not contents.whole_scalers
        here = place.node if place is not None and ours else node
        self.emit(
            e.SAVE,
            here,
            optimizers=tuple(contents.optimizers),
            scalers=tuple(contents.scalers),
            whole_scalers=tuple(contents.whole_scalers),
            open=contents.open,
            names={"call": self.words(node)},
        )

    def _may_save(self, given: list[Value], node: ast.AST) -> None:
        """A dict with an optimizer's state that is given to code that cannot be read is a checkpoint on its way."""
        for value in given:
            if isinstance(value, Mapping):
                contents = _Contents()
                contents.look(value)
                if contents.optimizers:
                    self._saved(value, node)

    def _fill_function(
        self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        bound, _ = self._bound(entry, args, keywords)
        tensors = [t for v in bound.values() for t in _tensors(v)]
        made = self._computed(tensors) if tensors else self._foreign_tensor(None)
        value = bound.get("value") or bound.get("fill_value")
        if entry.name == "torch.where":
            value = next((bound[k] for k in ("input", "other") if isinstance(bound.get(k), Const)), None)
        self._fill(entry.name.rpartition(".")[2], value, made, node)
        return made

    def _fill(self, function: str, value: Value | None, tensor: Tensor, node: ast.AST) -> None:
        number = value.value if isinstance(value, Const) and isinstance(value.value, (int, float)) else None
        if number is None:
            return
        self.emit(
            e.FILL,
            node,
            value=float(number),
            function=function,
            eligible=(tensor.matmul or bool(tensor.low)) and tensor.dtypes != {"bfloat16"},
            names={"call": self.words(node)},
        )

    def _matmul(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        tensors = [t for v in [*args, *keywords.values()] for t in _tensors(v)]
        made = self._computed(tensors) if tensors else self._foreign_tensor(None)
        made.matmul = True
        if self._inside():
            self._mark_region(made)
        return made

    def _wrap_module(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inner = _first(args, keywords, entry.parameters[0])
        thing = inner.thing if isinstance(inner, (Ref, Instance)) else None
        if thing is None and isinstance(inner, Opaque):
            thing = self.thing(("wrapped", self.place_key(node)), "module", "", self.site(node))
            inner = Ref(thing)
        if thing is not None and entry.role == surface.COMPILE:
            thing.facts["compiled"] = True
        if entry.facts.get("copies") and isinstance(inner, (Ref, Instance)):
            # A copy has parameters of its own.
            thing = self.thing(("copy", self.place_key(node)), "module", "", self.site(node))
            return Ref(thing)
        return inner if inner is not None else self.fresh(node, "wrapped")

    def _script(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inner = args[0] if args else NONE
        decorated = isinstance(inner, FunctionValue) and any(
            isinstance(w, Ref) and w.role == "autocast" for w in inner.wrappers
        )
        if isinstance(inner, Instance):
            forward = self.method_of(inner.cls, "forward")
            decorated = forward is not None and any(isinstance(w, Ref) for w in self.decorations(forward))
        if decorated:
            self.emit(e.SCOPE_LOST, node, None, how="script", names={"context": "autocast", "call": self.words(node)})
        return inner

    def _device(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        thing = self.thing(("device", self.place_key(node)), "device", "", self.site(node))
        return Ref(thing)

    def _partial(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return Partial(args[0], args[1:], keywords) if args else self.fresh(node)

    def _load(self, entry: surface.Entry, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        return self.fresh(node, "loaded")

    # What cannot be read.

    def _hand_off(self, given: list[Value], node: ast.AST) -> None:
        """Tell the protocol that unknown code was given scalers or optimizers."""
        things: list[int] = []
        for value in given:
            _collect(value, self.heap, things, 0)
        if things:
            self.emit(e.HANDOFF, node, things=tuple(dict.fromkeys(things)))


class _Contents:
    """What a saved value holds of the training state."""

    def __init__(self) -> None:
        self.optimizers: list[str] = []
        self.scalers: list[str] = []
        self.whole_scalers: list[str] = []
        self.open = False
        #: Where the first optimizer's state was taken.
        self.place: StateDict | None = None

    def look(self, value: Value, key: str = "", depth: int = 0) -> None:
        if depth > 5:
            return
        if isinstance(value, StateDict):
            known = len(self.optimizers)
            self._state_of(value.of, key)
            if self.place is None and len(self.optimizers) > known:
                self.place = value
        elif isinstance(value, Ref):
            if value.role == "scaler":
                self.whole_scalers.append(value.thing.name)
            elif value.role == "optimizer":
                self.optimizers.append(value.thing.name)
        elif isinstance(value, Mapping):
            self.open = self.open or value.open
            for name, item in value.items.items():
                self.look(item, str(name), depth + 1)
        elif isinstance(value, Sequence):
            for item in value.items:
                self.look(item, key, depth + 1)
        elif isinstance(value, Choice):
            for _, option in value.options:
                self.look(option, key, depth + 1)
        elif isinstance(value, Opaque):
            # Under such a name a scaler's state may have been put together elsewhere.
            words = f"{key} {value.text}".lower()
            if depth == 0 or "scal" in words or "amp" in words:
                self.open = True

    def _state_of(self, owner: Value, key: str) -> None:
        role = owner.role if isinstance(owner, Ref) else ""
        words = f"{key} {owner.text}".lower() if isinstance(owner, Opaque) else ""
        if role == "scaler" or "scaler" in words or "amp" in words.split():
            self.scalers.append(key)
        elif role == "optimizer":
            self.optimizers.append(key)


def _stars(node: ast.AST) -> bool:
    """Whether a call unpacks a sequence into its arguments."""
    return isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args)


def _is_static(function: Function) -> bool:
    return "staticmethod" in function.decorator_names()


def _read(value: Value) -> bool:
    if isinstance(value, Instance):
        return bool(value.thing and value.thing.facts.get("read"))
    return isinstance(value, Ref) and bool(value.thing.facts.get("read"))


def _first(args: list[Value], keywords: dict[str, Value], name: str) -> Value | None:
    return args[0] if args else keywords.get(name)


def _tensors(value: Value) -> list[Tensor]:
    """The tensors that a value is, or holds."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Sequence):
        return [t for item in value.items for t in _tensors(item)]
    if isinstance(value, Mapping):
        return [t for item in value.items.values() for t in _tensors(item)]
    if isinstance(value, Choice):
        return [t for _, option in value.options for t in _tensors(option)]
    return []


def _grads(value: Value) -> list[Grad]:
    if isinstance(value, Grad):
        return [value]
    if isinstance(value, Sequence):
        return [g for item in value.items for g in _grads(item)]
    return []


def _merge_params(parts: list[Params]) -> Params:
    modules: frozenset[int] | None = frozenset()
    optimizers: frozenset[int] | None = frozenset()
    for part in parts:
        modules = None if modules is None or part.modules is None else modules | part.modules
        optimizers = None if optimizers is None or part.optimizers is None else optimizers | part.optimizers
    return Params(modules, optimizers, groups=any(part.groups for part in parts))


def _modules_of(value: Value | None) -> frozenset[int] | None:
    """Keys of the modules whose parameters an optimizer is given."""
    if isinstance(value, Params):
        return value.modules
    if isinstance(value, Sequence) and value.items:
        owned: frozenset[int] = frozenset()
        for item in value.items:
            inner = _modules_of(item.items.get("params") if isinstance(item, Mapping) else item)
            if inner is None:
                return None
            owned |= inner
        return owned
    return None


def _mentions_scale(value: Value | None) -> bool:
    """Whether a number was computed from the loss scale."""
    if isinstance(value, ScaleValue):
        return True
    return False


def _is_infinite(value: Value | None) -> bool:
    if isinstance(value, Const):
        return value.value == float("inf")
    return isinstance(value, Named) and value.name.rpartition(".")[2] in ("inf", "Inf", "infty")


def _collect(value: Value, heap: dict[tuple[int, str], Value], things: list[int], depth: int) -> None:
    """Keys of the scalers and optimizers that a value is or holds."""
    if depth > 3:
        return
    if isinstance(value, Ref) and value.role in ("scaler", "optimizer"):
        things.append(value.thing.key)
    elif isinstance(value, Sequence):
        for item in value.items:
            _collect(item, heap, things, depth + 1)
    elif isinstance(value, Mapping):
        for item in value.items.values():
            _collect(item, heap, things, depth + 1)
    elif isinstance(value, Choice):
        for _, option in value.options:
            _collect(option, heap, things, depth + 1)
    elif isinstance(value, Instance):
        for (key, _), item in list(heap.items()):
            if key == value.key:
                _collect(item, heap, things, depth + 1)


_ROLES: dict[str, Callable[..., Value]] = {
    surface.AUTOCAST: Reader._new_autocast,
    surface.SCALER: Reader._new_scaler,
    surface.OPTIMIZER: Reader._entry_optimizer,
    surface.CLIP: Reader._entry_clip,
    surface.NORM: Reader._entry_norm,
    surface.LOSS_MODULE: Reader._loss_module,
    surface.LOSS: Reader._loss_function,
    surface.BACKWARD: Reader._backward_function,
    surface.GRAD: Reader._grad_function,
    surface.NULL_CONTEXT: Reader._null,
    surface.EXIT_STACK: Reader._exit_stack,
    surface.CONTEXT: Reader._context,
    surface.CACHE_CLEAR: Reader._cache_clear,
    surface.SAVE: Reader._save,
    surface.LOAD: Reader._load,
    surface.FILL: Reader._fill_function,
    surface.MATMUL: Reader._matmul,
    surface.WRAP_MODULE: Reader._wrap_module,
    surface.COMPILE: Reader._wrap_module,
    surface.SCRIPT: Reader._script,
    surface.DEVICE: Reader._device,
    surface.PARTIAL: Reader._partial,
}
__all__ = ["Reader", "Site"]
