"""Model of apex.amp: initialized models and optimizers, and the context that scales a loss."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, torch_api
from ...protocol.events import UNKNOWN
from ..interpreter.conditions import Formula
from ..interpreter.formulas import truth_of
from ..interpreter.interpreter import ContextHandler, HandlerTable, Interpreter
from ..interpreter.joins import run_branches
from ..interpreter.values.containers import SequenceValue
from ..interpreter.values.definitions import Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.objects import FrameworkEngine, ObjectRef
from ..interpreter.values.value import NONE, UnknownValue, Value
from .arguments import items_or_self, literal_value, object_ref_of, tracked_object_of
from .checkpoints import take_state
from .frameworks.engines import note_setup, set_framework
from .frameworks.steps import optimizer_keys_in
from .losses.backward import as_loss


class ScaledLoss(Value):
    """Result of ``apex.amp.scale_loss(...)``: a context that returns a scaled loss and unscales gradients at exit."""

    kind = "scaled loss"
    is_relevant = True

    __slots__ = ("delays_unscale", "engine", "loss", "optimizers")

    def __init__(self, engine: FrameworkEngine, loss: Value, optimizers: Value, delays_unscale: Formula) -> None:
        super().__init__()
        self.engine = engine
        self.loss = loss
        self.optimizers = optimizers
        self.delays_unscale = delays_unscale


def _make_engine(interp: Interpreter, node: ast.AST) -> FrameworkEngine:
    tracked_object = interp.tracked_object((frameworks.APEX,), "scaler", "amp", interp.site_of(node))
    set_framework(tracked_object, frameworks.APEX, "")
    return FrameworkEngine(frameworks.APEX, tracked_object)


def _has_fixed_scale(bound: Keywords) -> bool:
    """Return True if the arguments of ``initialize`` choose a constant loss scale.

    Without the argument, the levels O1 and O2 choose a dynamic scale, and the levels O0 and O3 the constant 1.
    """
    given = literal_value(bound.get("loss_scale", NONE))
    if given is None:
        return literal_value(bound.get("opt_level")) in ("O0", "O3") or literal_value(bound.get("enabled")) is False
    return given is not UNKNOWN and given != "dynamic"


def _call_initialize(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    models, optimizers = bound.get("models"), bound.get("optimizers")
    if models is None:
        return interp.fresh_unknown(node)
    note_setup(interp, frameworks.APEX, node)
    interp.program.attributes.scalers.has_fixed_apex_scale |= _has_fixed_scale(bound)
    if literal_value(bound.get("opt_level")) == "O2" and literal_value(bound.get("master_weights")) is not False:
        for tracked_object in map(tracked_object_of, items_or_self(models)):
            if tracked_object is not None:
                attributes = tracked_object.attributes
                attributes.dtypes = attributes.dtypes._replace(copies="O2")
    return models if optimizers is None else SequenceValue([models, optimizers])


def _call_scale_loss(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    delay = bound.get("delay_unscale")
    delayed: Formula = False if delay is None else truth_of(interp, delay, node=node)
    return ScaledLoss(_make_engine(interp, node), bound.get("loss", NONE), bound.get("optimizers", NONE), delayed)


def _call_master_params(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    optimizer = object_ref_of(bound.get("optimizer"), "optimizer")
    return ParamsValue(None, None if optimizer is None else frozenset((optimizer.tracked_object.key,)))


def _call_state_dict(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    return take_state(interp, ObjectRef(_make_engine(interp, node).tracked_object), node)


def _call_load_state_dict(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    return NONE


class _ScaledLossContext(ContextHandler):
    def entered_value(self, interp: Interpreter, value: ScaledLoss, node: ast.expr) -> Value:
        made = as_loss(value.loss)
        made.loss_scale = made.loss_scale._replace(scaler_key=value.engine.tracked_object.key)
        return made

    def exit(self, interp: Interpreter, value: ScaledLoss, node: ast.AST, depth: int) -> None:
        given = items_or_self(value.optimizers)
        keys = optimizer_keys_in(given)
        owners = keys if len(keys) == len(given) else None

        def emit_restore() -> None:
            interp.emit(e.Restore, node, value.engine.tracked_object.key, None, owners=owners, names={"scaler": "amp"})

        run_branches(interp, value.delays_unscale, lambda: None, emit_restore)


def _note_copied_params(interp: Interpreter, params: Value | None, norm: UnknownValue) -> None:
    """Note that the clipped parameters may be the copies that apex keeps beside the model's parameters."""
    modules = params.modules if isinstance(params, ParamsValue) else None
    copied = [str(interp.program.objects[key].attributes.dtypes.copies) for key in modules or ()]
    if copied and all(copied):
        for event in norm.gradient_reads:
            if isinstance(event, e.Clip):
                event.copies = copied[0]
                site = interp.program.attributes.setup_sites.get(frameworks.APEX)
                event.premises = () if site is None else ((site, f"apex is set up with opt_level {copied[0]}"),)


def register(handlers: HandlerTable) -> None:
    handlers.framework_roles.update(
        {
            frameworks.APEX_INITIALIZE: _call_initialize,
            frameworks.APEX_SCALE: _call_scale_loss,
            frameworks.APEX_MASTER: _call_master_params,
            frameworks.APEX_STATE: _call_state_dict,
            frameworks.APEX_LOAD: _call_load_state_dict,
        }
    )
    handlers.contexts["scaled loss"] = _ScaledLossContext()
    handlers.clip_listeners.append(_note_copied_params)
