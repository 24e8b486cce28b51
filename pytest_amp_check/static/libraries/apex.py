"""apex.amp: what it makes of models and optimizers, and of a loss that it scales."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, surface
from ..interpreter.conditions import Formula
from ..interpreter.forks import fork
from ..interpreter.interpreter import Context, Handlers, Interpreter
from ..interpreter.truth import truth
from ..interpreter.values import NONE, Const, Engine, Instance, Keywords, Opaque, Params, Ref, Sequence, Value
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
    level, masters = bound.get("opt_level"), bound.get("master_weights")
    copies = isinstance(level, Const) and level.value == "O2"
    if copies and not (isinstance(masters, Const) and masters.value is False):
        for model in models.items if isinstance(models, Sequence) else [models]:
            if isinstance(model, (Ref, Instance)) and model.thing is not None:
                model.thing.facts["copies"] = "O2"
    if models is None:
        return at.fresh(node, "initialized")
    return models if optimizers is None else Sequence([models, optimizers])


def _scaled_loss(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    delay = bound.get("delay_unscale")
    delayed: Formula = False if delay is None else truth(at, delay, "", node)
    return ScaledLoss(_apex(at, node), bound.get("loss", NONE), bound.get("optimizers", NONE), delayed)


def _master_params(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    optimizer = bound.get("optimizer")
    key = optimizer.thing.key if isinstance(optimizer, Ref) and optimizer.role == "optimizer" else None
    return Params(None, None if key is None else frozenset((key,)))


class _Scaled(Context):
    def entered(self, at: Interpreter, value: ScaledLoss, node: ast.expr) -> Value:
        made = as_loss(value.loss)
        made.scaler = value.engine.thing.key
        return made

    def exit(self, at: Interpreter, value: ScaledLoss, node: ast.AST, depth: int) -> None:
        given = value.optimizers.items if isinstance(value.optimizers, Sequence) else [value.optimizers]
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
