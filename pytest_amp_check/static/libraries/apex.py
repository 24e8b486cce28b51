"""apex.amp: what it makes of models and optimizers, and of a loss that it scales."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, surface
from ..interpreter.conditions import Formula
from ..interpreter.forks import fork
from ..interpreter.interpreter import Context, Handlers, Interpreter
from ..interpreter.truth import truth
from ..interpreter.values import NONE, Engine, Keywords, Opaque, Params, Sequence, Value
from .arguments import each_of, literal, ref_of, thing_of
from .frameworks import describe, optimizers_in
from .losses import as_loss


class ScaledLoss(Value):
    """``apex.amp.scale_loss(...)``: a context that gives a scaled loss, and unscales the gradients where it ends."""

    kind = "scaled loss"
    matters = True

    __slots__ = ("delayed", "engine", "loss", "optimizers")

    def __init__(self, engine: Engine, loss: Value, optimizers: Value, delayed: Formula) -> None:
        super().__init__()
        self.engine = engine
        self.loss = loss
        self.optimizers = optimizers
        self.delayed = delayed


def _apex(at: Interpreter, node: ast.AST) -> Engine:
    thing = at.thing(("apex",), "scaler", "amp", at.site(node))
    describe(thing, "apex", "")
    return Engine("apex", thing)


def _initialized(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    models, optimizers = bound.get("models"), bound.get("optimizers")
    if models is None:
        return at.fresh(node, "initialized")
    if literal(bound.get("opt_level")) == "O2" and literal(bound.get("master_weights")) is not False:
        for thing in map(thing_of, each_of(models)):
            if thing is not None:
                thing.facts["copies"] = "O2"
    return models if optimizers is None else Sequence([models, optimizers])


def _scaled_loss(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    delay = bound.get("delay_unscale")
    delayed: Formula = False if delay is None else truth(at, delay, "", node)
    return ScaledLoss(_apex(at, node), bound.get("loss", NONE), bound.get("optimizers", NONE), delayed)


def _master_params(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    optimizer = ref_of(bound.get("optimizer"), "optimizer")
    return Params(None, None if optimizer is None else frozenset((optimizer.thing.key,)))


class _Scaled(Context):
    def entered(self, at: Interpreter, value: ScaledLoss, node: ast.expr) -> Value:
        made = as_loss(value.loss)
        made.scaler = value.engine.thing.key
        return made

    def exit(self, at: Interpreter, value: ScaledLoss, node: ast.AST, depth: int) -> None:
        given = each_of(value.optimizers)
        keys = optimizers_in(given)
        owners = keys if len(keys) == len(given) else None

        def unscale() -> None:
            at.emit(e.RESTORE, node, value.engine.thing.key, None, owners=owners, names={"scaler": "amp"})

        fork(at, value.delayed, lambda: None, unscale)


def _clipped(at: Interpreter, params: Value | None, norm: Opaque) -> None:
    """What is clipped may be the copies that apex keeps beside the parameters."""
    modules = params.modules if isinstance(params, Params) else None
    copied = [str(at.program.things[key].facts.get("copies", "")) for key in modules or ()]
    if copied and all(copied):
        for event in norm.readings:
            event.facts["copies"] = copied[0]


def register(handlers: Handlers) -> None:
    handlers.framework_roles.update(
        {
            frameworks.APEX_INITIALIZE: _initialized,
            frameworks.APEX_SCALE: _scaled_loss,
            frameworks.APEX_MASTER: _master_params,
        }
    )
    handlers.contexts["scaled loss"] = _Scaled()
    handlers.clipped.append(_clipped)
