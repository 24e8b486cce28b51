"""Calls, methods and attributes of engines."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol import frameworks
from ....protocol.frameworks import FRAMEWORKS
from ...interpreter.conditions import Formula, disjunction, negate
from ...interpreter.formulas import truth_of
from ...interpreter.identity import Operation, is_equal, structural_unknown
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.source_text import expression_text
from ...interpreter.unanalyzed_code import call_unknown
from ...interpreter.values.containers import UnionValue
from ...interpreter.values.contexts import NoSyncContext, NullContext
from ...interpreter.values.definitions import Args, BoundMethod, Keywords
from ...interpreter.values.gradients import ParamsValue
from ...interpreter.values.objects import FrameworkEngine, ObjectRef
from ...interpreter.values.tensors import tensors_in
from ...interpreter.values.value import NONE, Const, Value
from ..arguments import bind_arguments, first_or_named, make_object
from ..checkpoints import emit_save, take_state
from ..gradients import emit_clip
from ..losses.backward import make_loss_names, run_backward
from ..optimizers import act_on_optimizers
from ..scalers import get_scaler_attribute, load_scaler, scale_value
from .backward import run_engine_backward
from .engines import EngineTable
from .preparation import call_prepare, prepare_object
from .steps import emit_step, emit_unscale, find_wrapped_optimizer, optimizer_keys_in, raises_if_nonfinite
from .windows import Microbatch, MicrobatchTable, check_accumulation_option, make_sync_flag


def call_engine_method(
    interp: Interpreter, engine: FrameworkEngine, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    interp.graph_data(EngineTable).setdefault(engine.tracked_object.key, engine)
    known = FRAMEWORKS[engine.framework].engine
    does = known.methods.get(name)
    if does == frameworks.ACCUMULATE:
        engine.tracked_object.attributes.accumulates = True
        begun = Microbatch(interp.site_of(node), interp.current_loops(), frozenset(interp.active_guards()))
        interp.graph_data(MicrobatchTable)[engine.tracked_object.key] = begun
        check_accumulation_option(interp, engine, known, node)
    if does in (frameworks.BACKWARD, frameworks.UPDATE_PARAMS):
        divides = does == frameworks.UPDATE_PARAMS or known.accumulation.divides_losses
        run_engine_backward(interp, engine, first_or_named(args, keywords, "loss"), node, divides=divides)
    if does in (frameworks.STEP, frameworks.UPDATE_PARAMS):
        key, names = find_wrapped_optimizer(interp, engine, node)
        emit_step(interp, engine, key, node, names, sure=True)
    if does in (frameworks.ZERO_GRAD, frameworks.UPDATE_PARAMS):
        key, names = find_wrapped_optimizer(interp, engine, node)
        interp.emit(e.ZeroGrad, node, owners=(key,), names=names)
    if does == frameworks.SAVE and (saved := first_or_named(args, keywords, "obj")) is not None:
        emit_save(interp, saved, node)
    if does in _GIVE_NONE:
        return NONE
    if does in (frameworks.UNSCALE, frameworks.UNSCALE_ONE):
        given = optimizer_keys_in([*args, *keywords.values()]) if does == frameworks.UNSCALE_ONE else ()
        emit_unscale(interp, engine, given, node, raises=raises_if_nonfinite(known, name, args, keywords))
        if engine.enabled is False and name.startswith("clip_grad_") and args and isinstance(args[0], ParamsValue):
            # Without a scaler, the engine clips as torch does.
            return emit_clip(interp, args[0], args[1:], keywords, node)
        return interp.fresh_unknown(node)
    if does == frameworks.NO_SYNC:
        enabled = keywords.get("enabled", args[1] if len(args) > 1 else None)
        return NoSyncContext(True if enabled is None else truth_of(interp, enabled, node=node))
    if does == frameworks.PREPARE:
        return call_prepare(interp, engine, args, node)
    if does == frameworks.GIVE_BACK and args:
        if name == "setup_module":
            prepare_object(interp, engine, args[0])
        return args[0]
    if does == frameworks.LOAD:
        return load_scaler(interp, engine, args, keywords, node)
    give = _GIVE.get(does or "")
    if give is not None:
        return give(interp, engine, node)
    return call_unknown(
        interp,
        structural_unknown(interp, Operation.METHOD, (engine,), expression_text(node), name),
        args,
        keywords,
        node,
    )


def call_engine(interp: Interpreter, engine: FrameworkEngine, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a scaler of timm: scale, run backward, and when due, unscale, clip, step and update.

    A scaler recognized by name only is modeled in the same manner, but the keyword for the update is not known. If the
    call has further arguments by position, the scaler is none of timm's and may also clear the gradients.
    """
    order = FRAMEWORKS[engine.framework].engine.call_parameters
    if not order:
        return call_unknown(interp, engine, args, keywords, node)
    bound = bind_arguments(order if engine.recognized_from is None else order[:2], args, keywords)
    scaler = ObjectRef(engine.tracked_object)
    scaled = scale_value(interp, scaler, bound.get("loss"), node)
    for tensor in tensors_in(scaled):
        run_backward(interp, tensor, node, names=make_loss_names(engine.tracked_object.name, node))
    optimizer = bound.get("optimizer", NONE)
    names: dict[str, object] = {"scaler": engine.tracked_object.name, "call": expression_text(node)}

    may_clear = engine.recognized_from is not None and len(args) > len(order[:2])

    def step_optimizer(key: int, _: object) -> None:
        interp.emit(e.ScalerStep, node, scaler.tracked_object.key, key, framework=engine.framework, names=names)
        if may_clear:
            interp.emit(e.ZeroGrad, node, owners=(key,), names=names)

    updates = next((value for name, value in bound.items() if "update" in name), Const(True))
    run_branches(
        interp,
        truth_of(interp, updates, node=node),
        lambda: act_on_optimizers(interp, optimizer, node, step_optimizer),
        lambda: None,
    )
    return NONE if engine.recognized_from is None else interp.fresh_unknown(node)


def get_engine_attribute(interp: Interpreter, engine: FrameworkEngine, name: str, node: ast.AST) -> Value | None:
    known = get_scaler_attribute(interp, engine, name, node)
    if known is not None:
        return known
    known_engine = FRAMEWORKS[engine.framework].engine
    if name in known_engine.methods:
        return BoundMethod(engine, name)
    if name == "optimizer" and engine.optimizer is not None:
        return engine.optimizer
    meaning = known_engine.attributes.get(name)
    if meaning == frameworks.SCALER:
        scaler = ObjectRef(engine.tracked_object)
        return (
            scaler if engine.enabled is True else UnionValue([(engine.enabled, scaler), (negate(engine.enabled), NONE)])
        )
    if meaning == frameworks.ACCUMULATION:
        return engine.accumulation_steps
    if meaning == frameworks.PRECISION:
        return engine.precision
    if meaning == frameworks.ITSELF:
        return engine
    if meaning == frameworks.NOTHING:
        return NONE
    return make_sync_flag(interp, engine) if meaning == frameworks.WINDOW_END else None


def set_engine_attribute(
    interp: Interpreter, receiver: FrameworkEngine, name: str, value: Value, target: ast.Attribute
) -> bool:
    steps = FRAMEWORKS[receiver.framework].engine.accumulation.parameter
    if steps and steps == name:
        receiver.accumulation_steps = value
        return True
    return False


def _make_region(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> Value:
    """Return the autocast region that an engine enters."""
    known = FRAMEWORKS[engine.framework].engine
    tracked_object = make_object(interp, "autocast", node)
    enabled: Formula = True
    if known.precision.autocast:
        # The line that enters the region does not show the comparison.
        enabled = disjunction(*(is_equal(interp, engine.precision, value, None) for value in known.precision.autocast))
    region = tracked_object.attributes
    region.device, region.dtype, region.cache = "cuda", "float16" if engine.enabled is True else "?", True
    return ObjectRef(tracked_object, enabled)


#: Factories for the results of methods without further effect; the others return None.
_GIVE: dict[str, Callable[[Interpreter, FrameworkEngine, ast.AST], Value]] = {
    frameworks.AUTOCAST: _make_region,
    frameworks.NO_EFFECT: lambda interp, engine, node: NullContext(),
    frameworks.ACCUMULATE: lambda interp, engine, node: NullContext(),
    frameworks.STATE: take_state,
}
_GIVE_NONE = frozenset(
    (frameworks.BACKWARD, frameworks.UPDATE_PARAMS, frameworks.STEP, frameworks.ZERO_GRAD, frameworks.SAVE)
)
