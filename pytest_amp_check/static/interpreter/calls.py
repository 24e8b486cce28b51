"""Calls: finds out what is called, and hands what cannot be read to the protocol as unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol.events import Program, Thing
from ...protocol.words import chain
from ..libraries.losses import first_given, is_graded
from ..libraries.precision import Precision
from ..libraries.torch_calls import TorchCalls, compares, hands_on_divided
from ..libraries.torch_objects import first_of
from ..project.module import Module
from ..project.project import Project
from .conditions import Formula
from .dtypes import is_low_method
from .expressions import IMPURE, entry_of
from .microbatches import PIECES
from .values import (
    NONE,
    BoundMethod,
    Choice,
    ClassValue,
    Const,
    Engine,
    FunctionValue,
    Grad,
    GradMode,
    HelperContext,
    Instance,
    Mapping,
    ModuleValue,
    Named,
    NoSync,
    NullContext,
    Opaque,
    Params,
    Partial,
    Pool,
    Ref,
    Saver,
    Sequence,
    StackContext,
    StateDict,
    SuperValue,
    Tensor,
    ThreadValue,
    Value,
    merge_into,
    options_of,
    tensors_of,
)

#: Methods by which a list, a meter, a logger or a progress bar is told of a value.
TELLING = frozenset(
    "append add update log info debug warning error print write set_postfix add_scalar set_description".split()
)


class Reader(TorchCalls):
    """Reads a file: gives each call its event, and its value."""

    def __init__(self, module: Module, program: Program, things: dict[object, Thing], tree: Project) -> None:
        super().__init__(module, program, things, tree)
        self.precision = Precision(self)

    def call(self, node: ast.Call) -> Value:
        func = node.func
        if isinstance(func, ast.Attribute) and self.uses.get(chain(func) or "") != "module":
            receiver = self.evaluate(func.value)
            if isinstance(receiver, Named):
                return self._call_named(receiver.name + "." + func.attr, node, receiver.shim)
            if isinstance(receiver, ModuleValue):
                return self._call_value_at(self.attribute(receiver, func.attr, func), node)
            args, keywords = self.arguments(node)
            return self.on_each(receiver, lambda r: self.method(r, func.attr, args, keywords, node))
        return self._call_value_at(self.evaluate(func), node)

    def _call_value_at(self, callee: Value, node: ast.Call) -> Value:
        if isinstance(callee, Named):
            return self._call_named(callee.name, node, callee.shim)
        args, keywords = self.arguments(node)
        return self.call_value(callee, args, keywords, node)

    def arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
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

    def on_each(self, value: Value, act: Callable[[Value], Value]) -> Value:
        """Do what a call does on each of the values that its receiver may be; None can be no receiver."""
        if not isinstance(value, Choice):
            return act(value)
        options = [(f, v) for f, v in value.options if not (isinstance(v, Const) and v.value is None)]
        if not options:
            return self.opaque(("of none", self.number(value)), "")
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
                self.state.cur = None

        yes, no = self.fork(formula, then, otherwise)
        if not no or isinstance(formula, bool):
            return results[0]
        if not yes:
            return results[1]
        return self.unite(formula, results[0], results[1], "each")

    def call_value(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if isinstance(func, Choice):
            return self.on_each(func, lambda f: self.call_value(f, args, keywords, node))
        if isinstance(func, Partial):
            return self.call_value(func.func, [*func.args, *args], {**func.keywords, **keywords}, node)
        if isinstance(func, BoundMethod):
            return self.on_each(func.receiver, lambda r: self.method(r, func.name, args, keywords, node))
        if isinstance(func, FunctionValue):
            if func.function.manager:
                return HelperContext(func, args, keywords, node)
            return self.follow(func, args, keywords, node)
        if isinstance(func, ClassValue):
            return self._construct(func, args, keywords, node)
        if isinstance(func, Instance):
            if func.thing is not None:
                return self.module_called(func, func.thing, args, keywords, node)
            return self.call_method(func, "__call__", args, node, keywords)
        if isinstance(func, Engine):
            return self.engine_called(func, args, keywords, node)
        if isinstance(func, Ref):
            return self._call_ref(func, args, keywords, node)
        if isinstance(func, Named):
            return self._named(func.name, args, keywords, node, func.shim)
        if isinstance(func, (NullContext, GradMode)):
            return func
        return self.unknown(func, args, keywords, node)

    def _call_ref(self, func: Ref, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        role = func.role
        own = self.own_method(func, "__call__")
        if own is not None:
            return self.follow(own, args, keywords, node)
        if role == "module":
            return self._forward(func.thing, args, keywords, node, bool(func.thing.facts.get("read")))
        if role == "loss":
            return self._loss(func.thing.facts, args, keywords, node)
        if role == "autocast" and args and isinstance(args[0], FunctionValue):
            inner = args[0]
            return FunctionValue(inner.function, inner.frame, inner.receiver, (*inner.wrappers, func))
        return self.unknown(func, args, keywords, node)

    def unknown(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """A call of something that cannot be read."""
        given = [*args, *keywords.values()]
        self.hand_off(given, node)
        tensors = [t for value in given for t in tensors_of(value)]
        name = func.text if isinstance(func, Opaque) else ""
        last = name.rpartition(".")[2]
        if isinstance(func, Saver) or any(isinstance(value, Saver) for value in given):
            for value in given:
                if isinstance(value, Mapping):
                    self.save_objects(value, node)
        elif last not in TELLING and not compares(last):
            self.may_save(given, node)
        if tensors and last not in TELLING:
            made = self._computed(tensors)
            made.deps = None
            # A criterion is given targets, too: what is given a result of a model alone makes no loss of it.
            if len(given) > 1 or tensors[0].forward is None:
                made.divided = made.divided and any(t.is_loss for t in tensors)
            if len(given) > 1:
                made.vague = False
            made.opaque = made.opaque or is_graded(given)
            made.module_read = False
            return made
        if last in IMPURE:
            return self.fresh(node, name)
        made_opaque = self.structural(
            "call", (func, *given), self.words(node) if isinstance(node, ast.Call) else "", tuple(keywords)
        )
        if self.state.loops:
            made_opaque.loops |= frozenset((self.state.loops[-1].key,))
        made_opaque.called = True
        made_opaque.divided = hands_on_divided(given)
        made_opaque.compares = len(given) > 1 and any(isinstance(v, Opaque) and v.called for v in given)
        return made_opaque

    def method(self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if isinstance(receiver, Instance):
            return self._instance_method(receiver, name, args, keywords, node)
        if isinstance(receiver, SuperValue):
            found = self._super_attribute(receiver, name)
            if isinstance(found, FunctionValue):
                return self.follow(found, args, keywords, node)
            if isinstance(found, BoundMethod):
                return self.call_value(found, args, keywords, node)
            self.lend(receiver.receiver, [*args, *keywords.values()])
            return self.unknown(found, args, keywords, node)
        if isinstance(receiver, Engine):
            return self.engine_method(receiver, name, args, keywords, node)
        if isinstance(receiver, Ref):
            if receiver.role == "scaler":
                return self._scaler_method(receiver, name, args, keywords, node)
            if receiver.role == "optimizer":
                return self._optimizer_method(receiver, name, args, keywords, node)
            if receiver.role in ("module", "loss"):
                return self.module_method(receiver, receiver.thing, name, args, keywords, node)
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
        if isinstance(receiver, (ThreadValue, Pool)):
            return self.thread_method(receiver, name, args, keywords, node)
        if isinstance(receiver, ClassValue):
            return self._class_method(receiver, name, args, keywords, node)
        if isinstance(receiver, FunctionValue) and name == "__call__":
            return self.call_value(receiver, args, keywords, node)
        return self._opaque_method(receiver, name, args, keywords, node)

    def _mapping_method(
        self, receiver: Mapping, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "update":
            for value in (*args, Mapping(keywords, open="**" in keywords)):
                merge_into(receiver, value)
            return NONE
        if name == "copy":
            return Mapping(receiver.items, open=receiver.open)
        if name == "keys":
            return Sequence([Const(k) for k in receiver.items], open=receiver.open)
        if name == "values":
            return Sequence(list(receiver.items.values()), open=receiver.open)
        if name == "items":
            return Sequence([Sequence([Const(k), v]) for k, v in receiver.items.items()], open=receiver.open)
        if name == "clear":
            receiver.items.clear()
            return NONE
        if name == "setdefault" and len(args) == 2 and isinstance(args[0], Const):
            return receiver.items.setdefault(args[0].value, args[1])
        if name in ("get", "pop", "setdefault") and args:
            found = self.item(receiver, args[0], node)
            if name == "pop" and isinstance(args[0], Const):
                receiver.items.pop(args[0].value, None)
            return found
        return self.fresh(node, name)

    def _sequence_method(self, receiver: Sequence, name: str, args: list[Value], node: ast.AST) -> Value:
        if name == "append" and args:
            receiver.items.append(args[0])
            if self.state.loops:
                receiver.open = True
        elif name == "extend" and args:
            value = args[0]
            receiver.items.extend(value.items if isinstance(value, Sequence) else [value])
        return self.fresh(node, name)

    def _opaque_method(
        self, receiver: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        given = [*args, *keywords.values()]
        text = self.receiver_words(node)
        key = self.identity(receiver)
        stored = self.state.heap.get((key, name)) if isinstance(key, int) else None
        if stored is not None:
            return self.call_value(stored, args, keywords, node)
        if name == "backward":
            if isinstance(receiver, Opaque) and not args:
                self._backward(self._foreign_tensor(receiver), node, first_given(args, keywords))
                return NONE
            # A framework's own backward: it may scale, divide, step.
            self.emit(e.BACKWARD, node, None, opaque=True, feeds=None, names={"loss": text})
            return NONE
        if name in ("div_", "mul_") and isinstance(receiver, Opaque) and receiver.graded:
            self.emit(e.GRAD_NORMALISE, node, None, None, owners=None)
            return receiver
        if name == "no_sync" and not given:
            return NoSync()
        if name == "enter_context" and args:
            self.state.maybe_open += 1
            return self.fresh(node, name)
        if name in ("clip_grad_norm_", "clip_grad_value_"):
            # accelerator.clip_grad_norm_ and its like unscale by themselves.
            self.hand_off([*given, *self.refs(self._all_optimizers())], node)
            return self.fresh(node, name)
        if name == "parameters":
            return Params(None)
        if name in ("masked_fill", "masked_fill_", "fill_", "index_fill_", "index_fill"):
            made = self._foreign_tensor(receiver)
            self._fill(name, args[-1] if args else keywords.get("value"), made, node)
            return made
        if is_low_method(name):
            return self.low_result(name, [receiver, *given])
        if name == "state_dict":
            return self._state(receiver, node)
        if name == "load_state_dict":
            self._loads_unknown(text, first_of(args, keywords, "state_dict"), node)
        if name in ("half", "bfloat16") and not args:
            self.emit(
                e.MODULE_CAST, node, None, dtype="float16" if name == "half" else "bfloat16", names={"module": text}
            )
        if name == "step" and isinstance(receiver, Opaque) and receiver.schedules >= 0 and not given:
            optimizer = self.program.things[receiver.schedules].name
            names: dict[str, object] = {"scheduler": text, "call": self.words(node), "optimizer": optimizer}
            self.emit(e.SCHEDULER_STEP, node, None, receiver.schedules, names=names)
            return self.fresh(node, name)
        func = self.structural("method", (receiver,), self.words(node), name)
        result = self.unknown(func, args, keywords, node)
        result.pieces = name in PIECES
        if isinstance(result, Opaque) and isinstance(receiver, Opaque):
            result.compares = name == "mean" or (receiver.compares and name != "item")
            part = name.removesuffix("_")
            kept = receiver.divided or (part == "mul" and any(value.divided for value in args))
            result.divided = part in ("sum", "div", "true_divide") or (kept and (not args or part == "mul"))
        if name in ("get", "pop") and args and isinstance(result, Opaque):
            result.entry = entry_of(receiver, args[0])
        return result

    def refs(self, keys: tuple[int, ...]) -> list[Value]:
        return [Ref(self.program.things[key]) for key in keys]

    def hand_off(self, given: list[Value], node: ast.AST) -> None:
        """Tell the protocol that unknown code was given scalers or optimizers."""
        for value in given:
            if isinstance(value, Opaque):
                self.program.facts.setdefault("handed", set()).add(value.key)
        options = [v for value in given for v in options_of(value)]
        direct = [value.thing for value in options if isinstance(value, Ref) and value.enabled is not False]
        trainers = {t.role for t in direct} >= {"scaler", "optimizer"}
        things = tuple(thing.key for thing in self.held(given))
        if things:
            self.emit(e.HANDOFF, node, things=things, trains=tuple(t.key for t in direct) if trainers else ())
        if "no_sync" in self.module.identifiers and any(_has_gradients(value) for value in given):
            self.emit(e.GRAD_AVERAGE, node)


def _has_gradients(value: Value) -> bool:
    """Whether whoever is given a value may average gradients over processes by hand."""
    return isinstance(value, (Params, Grad)) or (isinstance(value, Ref) and value.role in ("module", "optimizer"))
