"""Calls of frameworks that scale, unscale and step for the program: what they do to gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.events import Thing
from ...protocol.finding import INFO, WARNING
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.words import Words
from ..interpreter.conditions import Formula, either, negate
from ..interpreter.functions import has_stars
from ..interpreter.values import (
    NONE,
    BoundMethod,
    Choice,
    Const,
    Engine,
    Instance,
    NullContext,
    Opaque,
    Params,
    Ref,
    ScaledLoss,
    Sequence,
    Tensor,
    Value,
    tensors_of,
)
from .torch_objects import Things, first_of

#: Attributes of engines that hold the number by which they divide.
_STEPS = frozenset(framework.steps for framework in FRAMEWORKS.values())


class Frameworks(Things):
    """Reads what the objects of frameworks do."""

    def begin(self, name: str) -> None:
        super().begin(name)
        #: The engines that this graph has used, by the keys of their things.
        self.engines: dict[int, Engine] = {}

    # Constructors.

    def framework_call(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value | None:
        """The value of a call of a framework's name, or None where the name is not known."""
        entry = frameworks.lookup(name)
        if entry is None:
            return None
        bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
        if entry.role == frameworks.ENGINE:
            return self._new_engine(str(entry.facts["framework"]), bound, node)
        if entry.role == frameworks.APEX_INITIALIZE:
            return self._initialized(bound, node)
        if entry.role == frameworks.APEX_SCALE:
            return self._scaled_loss(bound, node)
        if entry.role == frameworks.APEX_MASTER:
            optimizer = bound.get("optimizer")
            key = optimizer.thing.key if isinstance(optimizer, Ref) and optimizer.role == "optimizer" else None
            return Params(None, None if key is None else frozenset((key,)))
        if entry.role == frameworks.DEEPSPEED:
            return self._deepspeed(bound, node)
        return first_of(args, keywords, entry.parameters[0]) or self.fresh(node, name)

    def _new_engine(self, framework: str, bound: dict[str, Value], node: ast.AST) -> Engine:
        known = FRAMEWORKS[framework]
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        given = bound.get(known.precision)
        if given is None and known.default is not None and "**" not in bound:
            given = Const(known.default)
        elif given is None:
            # Engines of one program share their state, which the first has decided about.
            given = next((x.precision for x in self.engines.values() if x.framework == framework), None)
        given, enabled, doubt = self._precision(given, framework, node)
        steps = None
        if known.steps:
            hidden = "**" in bound or any(name in bound for name in known.many)
            steps = bound.get(known.steps) or (self._unknown_steps(thing) if hidden else Const(1))
        self._describe(thing, framework, doubt)
        made = Engine(framework, thing, enabled, None, given, steps, bound.get("optimizer"))
        self.engines[thing.key] = made
        return made

    @staticmethod
    def _describe(thing: Thing, framework: str, doubt: str) -> None:
        thing.facts.update(framework=framework, doubt=doubt)

    def _unknown_steps(self, thing: Thing) -> Opaque:
        return self.opaque(("steps", thing.key), "")

    def _precision(self, given: Value | None, framework: str, node: ast.AST) -> tuple[Value, Formula, str]:
        """A precision, the condition under which losses are scaled in it, and how far that is known."""
        values = FRAMEWORKS[framework].scaled
        if not values:
            return NONE, True, ""
        if given is None or (isinstance(given, Const) and given.value is None):
            # Of one program, all engines that are not told otherwise share what they are told outside of it.
            unknown = self.opaque(("precision", framework), FRAMEWORKS[framework].precision)
            return unknown, self.is_equal(unknown, values[0], node), INFO
        options = [v for _, v in given.options] if isinstance(given, Choice) else [given]
        enabled = either(*(self.is_equal(given, value, node) for value in values))
        literal = isinstance(enabled, bool) or any(isinstance(v, Const) and v.value in values for v in options)
        return given, enabled, "" if literal else WARNING

    def used_engine(self, framework: str, value: Opaque, text: str, node: ast.AST) -> Engine:
        """What comes from elsewhere, and is used as a framework's engine is."""
        thing = self.thing(("used", value.key), "scaler", text, self.site(node))
        precision, enabled, doubt = self._precision(None, framework, node)
        self._describe(thing, framework, doubt)
        steps = self._unknown_steps(thing) if FRAMEWORKS[framework].steps else None
        return Engine(framework, thing, enabled, value, precision, steps)

    def annotated_engine(self, named: str, value: Opaque, parameter: ast.arg) -> Value | None:
        """A parameter that is annotated with the class of an engine."""
        entry = frameworks.lookup(named)
        if entry is None or entry.role != frameworks.ENGINE:
            return None
        return self.used_engine(str(entry.facts["framework"]), value, parameter.arg, parameter)

    # Methods and attributes of engines.

    def engine_method(
        self, engine: Engine, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        self.engines.setdefault(engine.thing.key, engine)
        does = FRAMEWORKS[engine.framework].methods.get(name)
        given = [*args, *keywords.values()]
        if does == frameworks.BACKWARD:
            self._run_backward(engine, first_of(args, keywords, "loss"), node, divides=engine.framework == "accelerate")
            return NONE
        if does == frameworks.UPDATE_PARAMS:
            self._run_backward(engine, first_of(args, keywords, "loss"), node, divides=True)
            self._step_wrapped(engine, node)
            self._zero_wrapped(engine, node)
            return NONE
        if does == frameworks.STEP:
            self._step_wrapped(engine, node)
            return NONE
        if does == frameworks.ZERO_GRAD:
            self._zero_wrapped(engine, node)
            return NONE
        if does in (frameworks.UNSCALE, frameworks.UNSCALE_ONE):
            self._unscale(engine, self._optimizers_in(given) if does == frameworks.UNSCALE_ONE else (), node)
            return self.fresh(node, "norm")
        if does == frameworks.PREPARE:
            for value in args:
                self._prepare(engine, value)
            return args[0] if len(args) == 1 else Sequence(list(args), open=has_stars(node))
        if does == frameworks.GIVE_BACK and args:
            return args[0]
        if does == frameworks.AUTOCAST:
            return self._region(engine, node)
        if does == frameworks.NO_EFFECT:
            return NullContext()
        if does == frameworks.STATE:
            return self._state(engine, node)
        if does == frameworks.SAVE:
            return NONE
        func = self.structural("method", (engine,), self.words(node), name)
        return self.unknown(func, args, keywords, node)

    def engine_called(self, engine: Engine, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A scaler of timm, called: scale, backward, and where it is the time, unscale, clip, step and update."""
        if engine.framework != "timm":
            return self.unknown(engine, args, keywords, node)
        order = ("loss", "optimizer", "clip_grad", "clip_mode", "parameters", "create_graph", "need_update")
        bound = {**dict(zip(order, args, strict=False)), **keywords}
        scaler = Ref(engine.thing)
        scaled = self._scaled(scaler, bound.get("loss"), node)
        for tensor in tensors_of(scaled):
            self._backward(tensor, node)
        optimizer = bound.get("optimizer", NONE)
        names: dict[str, object] = {"scaler": self.words(node), "call": self.words(node)}

        def update() -> None:
            self._each_optimizer(
                optimizer,
                node,
                lambda key, _: self.emit(e.SCALER_STEP, node, scaler.thing.key, key, framework="timm", names=names),
            )

        needed = bound.get("need_update")
        self.fork(True if needed is None else self.truth(needed, "", node), update, lambda: None)
        return NONE

    def _ref_attribute(self, receiver: Ref, name: str) -> Value | None:
        if isinstance(receiver, Engine):
            return self._engine_attribute(receiver, name)
        return super()._ref_attribute(receiver, name)

    def _engine_attribute(self, engine: Engine, name: str) -> Value | None:
        if name in FRAMEWORKS[engine.framework].methods:
            return BoundMethod(engine, name)
        if name == "optimizer" and engine.optimizer is not None:
            return engine.optimizer
        if engine.framework != "accelerate":
            return None
        if name == "scaler":
            scaler = Ref(engine.thing)
            return (
                scaler if engine.enabled is True else Choice([(engine.enabled, scaler), (negate(engine.enabled), NONE)])
            )
        if name == "gradient_accumulation_steps":
            return engine.steps
        if name == "mixed_precision":
            return engine.precision
        if name == "sync_gradients":
            made = self.opaque(("sync", engine.thing.key), f"{engine.thing.name}.{name}", self.turning())
            made.loops |= self.turning()
            return made
        return None

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        if target.attr in _STEPS:
            receiver = self.evaluate(target.value)
            if isinstance(receiver, Engine) and FRAMEWORKS[receiver.framework].steps == target.attr:
                receiver.steps = value
                return
        super()._assign_attribute(target, value)

    # What they do to gradients.

    def _run_backward(self, engine: Engine, value: Value | None, node: ast.AST, *, divides: bool) -> None:
        if isinstance(value, Choice):
            self.on_each(value, lambda v: self._run_each(engine, v, node, divides))
            return
        self._run_each(engine, value, node, divides)

    def _run_each(self, engine: Engine, value: Value | None, node: ast.AST, divides: bool) -> Value:
        loss = self.as_loss(value)
        if divides and engine.steps is not None:
            self._divided_by(loss, engine.steps, FRAMEWORKS[engine.framework].title, node)
            loss.divided = loss.divided or not isinstance(engine.steps, Const) or engine.steps.value != 1
        argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        names: dict[str, object] = {"scaler": self.receiver_words(node) or engine.thing.name, "call": self.words(node)}
        if argument is not None:
            names["loss"] = Words(argument)

        def run(scaler: int | None) -> None:
            self.emit(
                e.BACKWARD,
                node,
                scaler,
                feeds=self._fed(loss),
                divided=loss.divided,
                opaque=loss.opaque and scaler is None,
                scaled=scaler is not None,
                twice=scaler is not None and loss.scaler >= 0,
                dtypes=loss.dtypes,
                device=loss.device,
                custom=loss.custom,
                names=names,
            )

        self.fork(engine.enabled, lambda: run(engine.thing.key), lambda: run(None))
        return NONE

    def as_loss(self, value: Value | None) -> Tensor:
        """A copy of the tensor that a value is, or one of which only the name is known."""
        tensors = tensors_of(value) if value is not None else []
        return Tensor.merge(tensors) if tensors else self._foreign_tensor(value)

    def _divided_by(self, loss: Tensor, steps: Value, framework: str, node: ast.AST) -> None:
        options = [v for _, v in steps.options] if isinstance(steps, Choice) else [steps]
        keys = {self.number_key(v) for v in options if not (isinstance(v, Const) and v.value in (1, None))}
        texts = {v.text for v in options if isinstance(v, Opaque)} - {""}
        self.divided_twice(loss, keys, texts, framework, f"in `{self.words(node)}`")

    def divided_twice(self, loss: Tensor, keys: set[object], texts: set[str], framework: str, way: str) -> None:
        """Tell the protocol of each division of a loss by a number by which a framework divides it too."""
        for divisor in sorted(loss.divisors, key=lambda d: (d.site.line, d.site.column)):
            words = str(divisor.words)
            if divisor.key in keys or words in texts:
                self.emit_at(e.DIVIDED_TWICE, divisor.site, None, divisor=words, framework=framework, way=way)

    def _unscale(self, engine: Engine, optimizers: tuple[int, ...], node: ast.AST) -> None:
        """The gradients of some optimizers, or of all, are unscaled if this engine has scaled them."""
        names = {"scaler": self.receiver_words(node), "call": self.words(node)}

        def unscale() -> None:
            for key in optimizers or self._all_optimizers():
                self.emit(e.UNSCALE, node, engine.thing.key, key, framework=engine.framework, names=names)

        self.fork(engine.enabled, unscale, lambda: None)

    def _optimizers_in(self, given: list[Value]) -> tuple[int, ...]:
        return tuple(v.thing.key for v in given if isinstance(v, Ref) and v.role == "optimizer")

    def _prepare(self, engine: Engine, value: Value) -> None:
        """Let an optimizer be stepped through an engine from here on."""
        if isinstance(value, Sequence):
            for item in value.items:
                self._prepare(engine, item)
        elif isinstance(value, Ref) and value.role == "optimizer":
            value.thing.facts["engine"] = (engine, frozenset(self.guards()))

    def _step_wrapped(self, engine: Engine, node: ast.AST) -> None:
        self._each_wrapped(engine, node, lambda key, names: self._step(engine, key, node, names, sure=True))

    def _zero_wrapped(self, engine: Engine, node: ast.AST) -> None:
        self._each_wrapped(
            engine, node, lambda key, names: self.emit(e.ZERO_GRAD, node, None, None, owners=(key,), names=names)
        )

    def _each_wrapped(self, engine: Engine, node: ast.AST, act: Callable[[int, dict[str, object]], object]) -> None:
        """Act on the optimizer that an engine wraps, by its own name or by the engine's."""
        optimizer = engine.optimizer
        thing = optimizer.thing if isinstance(optimizer, Ref) and optimizer.role == "optimizer" else None
        if thing is None:
            thing = self.thing(("wrapped by", engine.thing.key), "optimizer", engine.thing.name, self.site(node))
        act(thing.key, {"optimizer": thing.name, "scaler": engine.thing.name, "call": self.words(node)})

    def _step(self, engine: Engine, key: int, node: ast.AST, names: dict[str, object], *, sure: bool) -> None:
        scaler = engine.thing.key
        by = engine.framework if sure else ""

        def scaled() -> None:
            if FRAMEWORKS[engine.framework].unscales:
                self.emit(e.UNSCALE, node, scaler, key, framework=by, names=names)
            self.emit(e.SCALER_STEP, node, scaler, key, framework=by, names=names)

        def plain() -> None:
            self.emit(e.STEP, node, None, key, names=names)

        self.fork(engine.enabled, scaled, plain)

    def step_optimizer(self, optimizer: Ref, node: ast.AST, names: dict[str, object]) -> None:
        key = optimizer.thing.key
        prepared = optimizer.thing.facts.get("engine")
        ambient = [engine for engine in self.engines.values() if FRAMEWORKS[engine.framework].ambient]
        if prepared is not None:
            engine, guards = prepared
            self._step(engine, key, node, names, sure=guards <= set(self.guards()))
        elif len(ambient) == 1:
            self._step(ambient[0], key, node, names, sure=False)
        elif ambient:
            self.hand_off([optimizer], node)
        else:
            super().step_optimizer(optimizer, node, names)

    def _region(self, engine: Engine, node: ast.AST) -> Value:
        """The autocast region that an engine enters."""
        known = FRAMEWORKS[engine.framework]
        thing = self.thing(("autocast", self.place_key(node)), "autocast", "", self.site(node))
        enabled: Formula = True
        if known.regions:
            enabled = either(*(self.is_equal(engine.precision, value, node) for value in known.regions))
        thing.facts.update(device="cuda", dtype="float16" if engine.enabled is True else "?", cache=True)
        return Ref(thing, enabled)

    # apex.

    def _apex(self, node: ast.AST) -> Engine:
        thing = self.thing(("apex",), "scaler", "amp", self.site(node))
        self._describe(thing, "apex", "")
        return Engine("apex", thing)

    def _initialized(self, bound: dict[str, Value], node: ast.AST) -> Value:
        models, optimizers = bound.get("models"), bound.get("optimizers")
        level, masters = bound.get("opt_level"), bound.get("master_weights")
        copies = isinstance(level, Const) and level.value == "O2"
        if copies and not (isinstance(masters, Const) and masters.value is False):
            for model in models.items if isinstance(models, Sequence) else [models]:
                if isinstance(model, (Ref, Instance)) and model.thing is not None:
                    model.thing.facts["copies"] = "O2"
        if models is None:
            return self.fresh(node, "initialized")
        return models if optimizers is None else Sequence([models, optimizers])

    def _scaled_loss(self, bound: dict[str, Value], node: ast.AST) -> Value:
        delay = bound.get("delay_unscale")
        delayed: Formula = False if delay is None else self.truth(delay, "", node)
        return ScaledLoss(self._apex(node), bound.get("loss", NONE), bound.get("optimizers", NONE), delayed)

    def entered_value(self, context: Value, node: ast.expr) -> Value:
        if not isinstance(context, ScaledLoss):
            return super().entered_value(context, node)
        made = self.as_loss(context.loss)
        made.scaler = context.engine.thing.key
        return made

    def exit(self, context: Value, node: ast.AST, depth: int) -> None:
        if not isinstance(context, ScaledLoss):
            super().exit(context, node, depth)
            return
        given = context.optimizers.items if isinstance(context.optimizers, Sequence) else [context.optimizers]
        keys = self._optimizers_in(given)
        owners = keys if len(keys) == len(given) else None

        def unscale() -> None:
            self.emit(e.RESTORE, node, context.engine.thing.key, None, owners=owners, names={"scaler": "amp"})

        self.fork(context.delayed, lambda: None, unscale)

    def _clip(self, params: Value | None, rest: list[Value], bound: dict[str, Value], node: ast.AST) -> Value:
        modules = params.modules if isinstance(params, Params) else None
        copied = [str(self.program.things[key].facts.get("copies", "")) for key in modules or ()]
        norm = super()._clip(params, rest, bound, node)
        if copied and all(copied):
            for event in norm.readings if isinstance(norm, Opaque) else ():
                event.facts["copies"] = copied[0]
        return norm

    # DeepSpeed.

    def _deepspeed(self, bound: dict[str, Value], node: ast.AST) -> Value:
        self.hand_off(list(bound.values()), node)
        model = bound.get("model")
        thing = model.thing if isinstance(model, (Ref, Instance)) else None
        if thing is None:
            thing = self.thing(("deepspeed", self.place_key(node)), "module", "", self.site(node))
        thing.facts["deepspeed"] = True
        made = Ref(thing)
        return Sequence(
            [made, self.fresh(node, "optimizer"), self.fresh(node, "loader"), self.fresh(node, "scheduler")]
        )

    def module_method(
        self, receiver: Value, thing: Thing, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if not thing.facts.get("deepspeed"):
            return super().module_method(receiver, thing, name, args, keywords, node)
        if name == "gradient_accumulation_steps":
            return self._unknown_steps(thing)
        if name == "backward":
            flag = keywords.get("scale_wrt_gas")
            divides = flag is None or (isinstance(flag, Const) and flag.value is not False)
            if args and divides:
                self._divided_by(self.as_loss(args[0]), self._unknown_steps(thing), "DeepSpeed", node)
        if name in ("step", "save_checkpoint", "load_checkpoint", "zero_grad", "is_gradient_accumulation_boundary"):
            return self.fresh(node, name)
        return super().module_method(receiver, thing, name, args, keywords, node)
