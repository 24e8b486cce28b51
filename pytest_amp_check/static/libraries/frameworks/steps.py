"""Steps of optimizers through engines: unscale, step and clear."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol import frameworks
from ....protocol.frameworks import FRAMEWORKS
from ...interpreter.formulas import truth_of
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import run_branches
from ...interpreter.source_text import expression_text, receiver_text
from ...interpreter.unanalyzed_code import escape
from ...interpreter.values.definitions import Args, Keywords
from ...interpreter.values.objects import FrameworkEngine, ObjectRef, UnwrappedOptimizer
from ...interpreter.values.value import NONE, Const, Value
from ..arguments import bind_arguments, literal_value, object_ref_of
from ..owners import all_optimizer_keys
from .engines import EngineTable
from .preparation import is_never_prepared, keys_never_prepared
from .windows import check_uncounted_step, is_before_microbatch, run_at_window_end


def raises_if_nonfinite(known: frameworks.Engine, name: str, args: Args, keywords: Keywords) -> bool:
    """Return True if a call of an engine's method raises on infinite gradients, because its default is not changed."""
    if name not in known.nonfinite_errors or "**" in keywords:
        return False
    parameters, threshold, flag = known.nonfinite_errors[name]
    bound = bind_arguments(parameters, args, keywords)
    return literal_value(bound.get(threshold, NONE)) is not None and literal_value(bound.get(flag, Const(True))) is True


def emit_unscale(
    interp: Interpreter, engine: FrameworkEngine, optimizers: tuple[int, ...], node: ast.AST, *, raises: bool = False
) -> None:
    """Emit unscale events for the given optimizers, or for all, if this engine scaled the gradients.

    An unscale that raises on infinite gradients is emitted for an unknown optimizer, too.
    """
    names = {"scaler": receiver_text(node), "call": expression_text(node)}
    left_out = () if optimizers else keys_never_prepared(interp, engine)
    raises = raises and not interp.state.try_depth

    def emit_each() -> None:
        own = optimizers or tuple(key for key in all_optimizer_keys(interp) if key not in left_out)
        keys: tuple[int | None, ...] = own or ((None,) if raises else ())
        for number, key in enumerate(keys):
            interp.emit(
                e.Unscale,
                node,
                engine.tracked_object.key,
                key,
                framework=engine.framework,
                nonfinite_error=raises and not number,
                names=names,
            )

    run_branches(interp, engine.enabled, emit_each, lambda: None)


def optimizer_keys_in(given: list[Value]) -> tuple[int, ...]:
    return tuple(ref.tracked_object.key for value in given if (ref := object_ref_of(value, "optimizer")) is not None)


def find_wrapped_optimizer(
    interp: Interpreter, engine: FrameworkEngine, node: ast.AST
) -> tuple[int, dict[str, object]]:
    """Return the key of the optimizer that an engine wraps, and the source names for messages."""
    optimizer = object_ref_of(engine.optimizer, "optimizer")
    if optimizer is None:
        tracked_object = interp.tracked_object(
            ("wrapped by", engine.tracked_object.key), "optimizer", engine.tracked_object.name, interp.site_of(node)
        )
    else:
        tracked_object = optimizer.tracked_object
    return tracked_object.key, {
        "optimizer": tracked_object.name,
        "scaler": engine.tracked_object.name,
        "call": expression_text(node),
    }


def emit_step(
    interp: Interpreter, engine: FrameworkEngine, key: int, node: ast.AST, names: dict[str, object], *, sure: bool
) -> None:
    scaler = engine.tracked_object.key
    framework = engine.framework if sure else ""

    def emit_scaled() -> None:
        if FRAMEWORKS[engine.framework].steps.always_unscale:
            interp.emit(e.Unscale, node, scaler, key, framework=framework, names=names)
        interp.emit(e.ScalerStep, node, scaler, key, framework=framework, names=names)

    def emit_plain() -> None:
        interp.emit(e.Step, node, None, key, names=names)

    def emit_either() -> None:
        run_branches(interp, engine.enabled, emit_scaled, emit_plain)

    run_at_window_end(interp, engine, node, emit_either)


def clear_through_engine(interp: Interpreter, optimizer: ObjectRef, node: ast.AST, clear: Callable[[], None]) -> bool:
    """Clear gradients through the engine that prepared the optimizer. Return False if no engine did.

    The engine may skip the clearing inside a window.
    """
    engine = None if isinstance(optimizer, UnwrappedOptimizer) else _find_stepping_engine(interp, optimizer)
    if engine is None:
        return False
    steps = literal_value(engine.accumulation_steps)
    optimizer.tracked_object.attributes.may_have_no_window = not isinstance(steps, int) or steps < 2
    if steps != 1 and is_before_microbatch(interp, engine, node):
        after_window = interp.unknown_value(
            ("after window", engine.tracked_object.key, interp.current_loops()), "", interp.current_loops()
        )
        after_window.count = after_window.count._replace(is_counter=True)
        run_branches(interp, truth_of(interp, after_window, node=node), clear, lambda: None)
    else:
        run_at_window_end(interp, engine, node, clear)
    return True


def _find_stepping_engine(interp: Interpreter, optimizer: ObjectRef) -> FrameworkEngine | None:
    """Return the engine that prepared an optimizer, or the single ambient engine."""
    prepared = optimizer.tracked_object.attributes.engine
    if prepared is not None:
        assert isinstance(prepared[0], FrameworkEngine)
        return prepared[0]
    ambient = _find_ambient_engines(interp)
    if len(ambient) != 1 or is_never_prepared(interp, ambient[0], optimizer.tracked_object):
        return None
    return ambient[0]


def _find_ambient_engines(interp: Interpreter) -> list[FrameworkEngine]:
    engines = interp.graph_data(EngineTable).values()
    return [engine for engine in engines if FRAMEWORKS[engine.framework].steps.through_engine]


def step_through_engine(interp: Interpreter, optimizer: ObjectRef, node: ast.AST, names: dict[str, object]) -> bool:
    """Step an optimizer through the engine that prepared the optimizer, or through the single ambient engine.

    Return False if the optimizer steps directly.
    """
    if isinstance(optimizer, UnwrappedOptimizer):
        return False
    key = optimizer.tracked_object.key
    prepared = optimizer.tracked_object.attributes.engine
    if prepared is not None:
        engine, guards = prepared
        assert isinstance(engine, FrameworkEngine)
        check_uncounted_step(interp, engine)
        emit_step(interp, engine, key, node, names, sure=guards <= set(interp.active_guards()))
        return True
    ambient = _find_ambient_engines(interp)
    is_sole = len(ambient) == 1
    if all(is_never_prepared(interp, each, optimizer.tracked_object, is_sole=is_sole) for each in ambient):
        return False
    if is_sole:
        emit_step(interp, ambient[0], key, node, names, sure=False)
    else:
        escape(interp, [optimizer], node)
    return True
