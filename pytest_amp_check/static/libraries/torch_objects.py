"""Scalers, optimizers, modules and autocast contexts: what their methods do."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import Words
from ..interpreter.classes import Classes
from ..interpreter.values import (
    NONE,
    Choice,
    Const,
    FunctionValue,
    Instance,
    Named,
    NoSync,
    Opaque,
    Params,
    Ref,
    ScaleValue,
    Sequence,
    StateDict,
    Tensor,
    Truth,
    Value,
    modules_of,
)
from .checkpoints import speaks_of_scaling
from .gradients import HOOKS

#: Methods that give a tensor of the shape that they are called on, and leave float32 what it is.
ELEMENTWISE = frozenset(
    "abs clamp clamp_max clamp_min exp log log1p neg reciprocal sigmoid softplus sqrt square".split()
)


class Things(Classes):
    """Reads methods of the things that the protocol speaks of."""

    def _scaler_method(
        self, scaler: Ref, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        own = self.own_method(scaler, name)
        if own is not None:
            return self.follow(own, args, keywords, node)
        if name not in surface.SCALER_METHODS:
            if name == "__call__":
                return self.unknown(scaler, args, keywords, node)
            return self.structural("call", (scaler, *args), name, name)
        if name == "is_enabled":
            return Truth(scaler.enabled) if not isinstance(scaler.enabled, bool) else Const(scaler.enabled)
        if name == "get_scale":
            self.scale_reads[id(node)] = scaler.thing
            return ScaleValue(scaler.thing.key)
        if name == "state_dict":
            if not self.state.rescuing:  # an error may come at any moment: what is saved for it is what there is
                self.emit(e.SCALER_STATE, node, scaler.thing.key, names={"scaler": self.receiver_words(node)})
            return self._state(scaler, node)
        if name == "load_state_dict":
            _, name_of_entry = entry_in(first_of(args, keywords, "state_dict"))
            self.emit(e.SCALER_LOAD, node, scaler.thing.key, entry=name_of_entry)
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
        return self.unite(scaler.enabled, results[0], results[1], "scaled")

    def _disabled_scaler(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A disabled scaler: ``scale`` gives back its argument, ``step`` steps the optimizer, the rest does nothing."""
        target = first_of(args, keywords, "outputs" if name == "scale" else "optimizer")
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
        words = {"scaler": self.receiver_words(node), "call": self.words(node)}
        if name == "scale":
            value = first_of(args, keywords, "outputs")
            return self._scaled(scaler, value, node)
        if name == "update":
            new_scale = first_of(args, keywords, "new_scale")
            given = new_scale is not None and not (isinstance(new_scale, Const) and new_scale.value is None)
            self.emit(e.UPDATE, node, key, new_scale=given, names=words)
            return NONE
        if name in ("step", "unscale_"):
            target = first_of(args, keywords, "optimizer")
            if target is None:
                return NONE
            closure = name == "step" and self._closure(args, keywords)

            def act(optimizer: int, names: dict[str, object]) -> None:
                if name == "step":
                    alone = self.unsynchronised(scaler, optimizer)
                    names = {**words, **names}
                    self.emit(e.SCALER_STEP, node, key, optimizer, closure=closure, unsynchronised=alone, names=names)
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
            return self.on_each(value, lambda v: self._scaled(scaler, v, node))
        if isinstance(value, Sequence):
            return Sequence([self._scaled(scaler, item, node) for item in value.items], open=value.open)
        made = value.copy() if isinstance(value, Tensor) else self._foreign_tensor(value)
        argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        names = {"scaler": self.receiver_words(node), "call": self.words(node)}
        if argument is not None:
            names["loss"] = Words(argument)
        if made.penalty is not None:
            self._penalty(made, node)
        self.emit(
            e.SCALE,
            node,
            scaler.thing.key,
            autocast=made.autocast or ("in" if self.in_region() else "unknown"),
            loss_in_region=made.in_region,
            forward_read=made.module_read and bool(made.autocast),
            dtypes=made.dtypes,
            device=made.device,
            forward=made.forward,
            twice=made.scaler >= 0,
            names=names,
        )
        made.scaler = scaler.thing.key
        return made

    def _each_optimizer(self, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]) -> None:
        """Act on the optimizer, or on each of those, that a value is."""
        if isinstance(value, Choice):
            self.on_each(value, lambda v: self._one_optimizer(v, node, act))
        else:
            self._one_optimizer(value, node, act)

    def _one_optimizer(self, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]) -> Value:
        thing = self._optimizer_thing(value, node)
        if thing is not None:
            argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
            act(thing.key, {"optimizer": Words(argument) if argument is not None else thing.name})
        return NONE

    def _optimizer_thing(self, value: Value, node: ast.AST) -> Thing | None:
        if isinstance(value, Ref) and value.role in ("optimizer", "module"):
            return value.thing
        if isinstance(value, Instance):
            inner = self._wrapped_optimizer(value)
            return inner or self.thing(("used instance", value.key), "optimizer", "", self.site(node))
        if isinstance(value, Opaque):
            return self.thing(("used", value.key), "optimizer", value.text, self.site(node))
        return None

    def _wrapped_optimizer(self, wrapper: Instance) -> Thing | None:
        """The optimizer that an object holds, if it holds one: it is what the object's own ``step`` steps."""
        held = {
            value.thing
            for (key, _), value in self.state.heap.items()
            if key == wrapper.key and isinstance(value, Ref) and value.role == "optimizer"
        }
        return held.pop() if len(held) == 1 and self.method_of(wrapper.cls, "step") is not None else None

    def _optimizer_method(
        self, optimizer: Ref, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        key = optimizer.thing.key
        names: dict[str, object] = {"optimizer": self.receiver_words(node), "call": self.words(node)}
        if name == "step":
            closure = first_of(args, keywords, "closure")
            if isinstance(closure, FunctionValue):
                self.call_value(closure, [], {}, node)
            self.step_optimizer(optimizer, node, names)
            return self.fresh(node, name)
        if name == "zero_grad":
            self.emit(e.ZERO_GRAD, node, None, None, owners=(key,), names=names, **self.keeps_zeros(args, keywords))
            return NONE
        if name == "state_dict":
            return self._state(optimizer, node)
        if name == "load_state_dict":
            source, name_of_entry = entry_in(first_of(args, keywords, "state_dict"))
            if name_of_entry is not None:
                self.emit(e.OPTIMIZER_LOAD, node, None, key, source=source, entry=name_of_entry, names=names)
            return NONE
        if name in ("train", "eval", "add_param_group"):
            return NONE
        if name.startswith("register_"):
            optimizer.thing.facts["hooked"] = True
            if name in HOOKS:
                optimizer.thing.facts["divided"] = True
        if name == "backward":
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None)
            return NONE
        return self.structural("call", (optimizer, *args), name, name)

    @abstractmethod
    def unsynchronised(self, scaler: Ref, optimizer: int) -> str: ...

    @abstractmethod
    def comm_hook(self, module: Thing | None, hook: Value | None, node: ast.AST) -> None: ...

    def step_optimizer(self, optimizer: Ref, node: ast.AST, names: dict[str, object]) -> None:
        """An optimizer's own step."""
        self.emit(e.STEP, node, None, optimizer.thing.key, names=names)

    def module_method(
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
        if thing.facts.get("wide") and name in ELEMENTWISE:
            # As wide as the parameter, and as exact.
            return receiver
        if name in ("half", "bfloat16"):
            self._cast(thing, "float16" if name == "half" else "bfloat16", node)
            return receiver
        if name == "to":
            for value in [*args, *keywords.values()]:
                dtype = surface.DTYPES.get(value.name) if isinstance(value, Named) else None
                if dtype in ("float16", "bfloat16"):
                    self._cast(thing, dtype, node)
            return receiver
        if name == "requires_grad_":
            flag = first_of(args, keywords, "requires_grad")
            if isinstance(flag, Const) and flag.value is False:
                thing.facts["frozen"] = True
            return receiver
        if name == "compile":
            thing.facts["compiled"] = True
            return NONE
        if name in ("train", "eval", "cuda", "cpu", "float", "double", "apply", "to_empty", "share_memory"):
            if name in ("float", "double"):
                thing.facts["upcast"] = True
            return receiver
        if name == "load_state_dict":
            names = {"module": self.receiver_words(node), "call": self.words(node)}
            self.emit(e.PARAM_WRITE, node, thing.key, None, names=names)
            return self.fresh(node, name)
        if name in ("state_dict", "modules", "named_modules", "children", "named_children", "buffers"):
            return self._state(receiver, node) if name == "state_dict" else self.fresh(node, name)
        if name in ("forward", "__call__"):
            return self._forward(thing, args, keywords, node, bool(thing.facts.get("read")))
        if name == "no_sync" and not args:
            return NoSync()
        if name in HOOKS:
            self.comm_hook(thing, args[1] if len(args) > 1 else keywords.get("hook"), node)
            # torch's own hooks average over ranks, not over micro-batches.
            if not any(isinstance(v, Named) and v.name.startswith("torch.") for v in [*args, *keywords.values()]):
                self.rate_divided(Params(frozenset((thing.key,))))
            return self.fresh(node, name)
        if name == "clip_grad_norm_":
            return self._clip(Params(frozenset((thing.key,))), args, keywords, node)
        if name == "backward":
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None)
            return NONE
        if name == "step":
            return self.unknown(receiver, args, keywords, node)
        return self._forward(thing, args, keywords, node, False)

    def _cast(self, thing: Thing, dtype: str, node: ast.AST) -> None:
        thing.facts["low"] = True
        self.emit(
            e.MODULE_CAST,
            node,
            thing.key,
            dtype=dtype,
            names={"module": self.receiver_words(node), "call": self.words(node)},
        )

    def _autocast_method(self, context: Ref, name: str, node: ast.AST) -> Value:
        if name == "__enter__":
            self.enter(context, node)
        elif name == "__exit__":
            self.exit(context, node, max(self.state.depth - 1, 0))
            self.closed(context)
            self.state.depth = max(self.state.depth - 1, 0)
        return self.fresh(node, name)

    def _loads_unknown(self, owner: object, state: Value | None, node: ast.AST) -> None:
        """Something that is not known loads a state: a scaler may, unless what it loads goes by another name."""
        _, name = entry_in(state)
        if name is None or speaks_of_scaling(f"{owner} {name}"):
            self.emit(e.SCALER_LOAD, node, None, entry=None)

    def _state(self, of: Value, node: ast.AST) -> StateDict:
        return StateDict(of, node, self.site(node))

    def new_optimizer(self, params: Value | None, node: ast.AST, callable_name: str) -> Ref:
        thing = self.thing(("optimizer", self.place_key(node)), "optimizer", "", self.site(node))
        thing.facts.update(constructed=True, callable=callable_name, owns=modules_of(params))
        self.emit(e.OPTIMIZER_NEW, node, thing.key, names={"optimizer": thing.name})
        return Ref(thing)


def entry_in(state: Value | None) -> tuple[int, str | None]:
    """Which unknown value a state was taken from, and under which name."""
    return (state.entry if isinstance(state, Opaque) else None) or (-1, None)


def first_of(args: list[Value], keywords: dict[str, Value], name: str) -> Value | None:
    return args[0] if args else keywords.get(name)


def is_read(value: Value) -> bool:
    if isinstance(value, Instance):
        return bool(value.thing and value.thing.facts.get("read"))
    return isinstance(value, Ref) and bool(value.thing.facts.get("read"))
