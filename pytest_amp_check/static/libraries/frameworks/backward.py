"""Backward through an engine: the scale of the loss, and divisions by a number that the framework divides by."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.frameworks import FRAMEWORKS
from ...interpreter.conditions import disjunction, literals
from ...interpreter.identity import number_key
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import for_each_alternative, run_branches
from ...interpreter.source_text import expression_text, receiver_text
from ...interpreter.values.containers import UnionValue
from ...interpreter.values.objects import FrameworkEngine
from ...interpreter.values.tensors import TensorValue
from ...interpreter.values.value import NONE, UnknownValue, Value
from ..arguments import literal_value
from ..losses.backward import as_loss, make_loss_names
from ..owners import find_updating_optimizers
from .windows import note_uncounted


def run_engine_backward(
    interp: Interpreter, engine: FrameworkEngine, value: Value | None, node: ast.AST, *, divides: bool
) -> None:
    if isinstance(value, UnionValue):
        for_each_alternative(interp, value, lambda v: _run_backward_of(interp, engine, v, node, divides))
    else:
        _run_backward_of(interp, engine, value, node, divides)


def _run_backward_of(
    interp: Interpreter, engine: FrameworkEngine, value: Value | None, node: ast.AST, divides: bool
) -> Value:
    loss = as_loss(value)
    if divides and engine.accumulation_steps is not None:
        note_uncounted(interp, engine, node)
        report_framework_division(interp, loss, engine.accumulation_steps, FRAMEWORKS[engine.framework].title, node)
        # The window of `accumulate` fits the divisor, also without the argument: the environment may set both.
        is_fitting = engine.tracked_object.attributes.accumulates or literal_value(engine.accumulation_steps) != 1
        loss.set_divided(is_divided=loss.normalization.is_divided or is_fitting)
    names = make_loss_names(receiver_text(node) or engine.tracked_object.name, node)

    own_scaler = loss.loss_scale.scaler_key if loss.loss_scale.scaler_key >= 0 else None

    def emit_backward(scaler: int | None, *, no_sync: bool) -> None:
        interp.emit(
            e.Backward,
            node,
            scaler,
            feeds=find_updating_optimizers(interp, loss.forwards.module_keys),
            division=e.LossDivision(is_divided=loss.normalization.is_divided),
            no_sync=no_sync,
            scaling=e.LossScaling(
                is_scaled=scaler is not None,
                may_have_scaled_gradient=(loss.origin.is_from_outside or loss.origin.is_from_gradient)
                and scaler is None,
            ),
            twice=scaler == engine.tracked_object.key and own_scaler is not None,
            dtypes=loss.provenance.region_dtypes,
            custom=loss.has_custom_backward,
            names=names,
        )

    if own_scaler is None and not isinstance(engine.enabled, bool) and loss.provenance.region_dtypes == {"float16"}:
        _mark_region_without_scaler(interp, engine)
    # A program with a scaler of its own leaves the precision of the engine off, unless it asks for scaling.
    is_off = own_scaler is not None and engine.precision is interp.unknown_values.get(("precision", engine.framework))

    def run_by_scaler(*, no_sync: bool) -> None:
        run_branches(
            interp,
            False if is_off else engine.enabled,
            lambda: emit_backward(engine.tracked_object.key, no_sync=no_sync),
            lambda: emit_backward(own_scaler, no_sync=no_sync),
        )

    run_branches(
        interp,
        disjunction(*interp.state.no_sync_conditions),
        lambda: run_by_scaler(no_sync=True),
        lambda: run_by_scaler(no_sync=False),
    )
    return NONE


def _mark_region_without_scaler(interp: Interpreter, engine: FrameworkEngine) -> None:
    """Mark the last float16 region, which is also entered where the engine does not scale the loss."""
    events = (node.event for node in reversed(interp.builder.nodes))
    regions = (event for event in events if isinstance(event, e.AutocastEnter) and event.enabled)
    region = next((event for event in regions if not event.without_gradients), None)
    if region is None or region.dtype != "float16":
        return
    deciding = {key for key, _ in literals(engine.enabled)}
    if deciding.isdisjoint(key for key, _ in region.guards):
        region.unscaled_by = FRAMEWORKS[engine.framework].title


def report_framework_division(
    interp: Interpreter, loss: TensorValue, steps: Value, framework: str, node: ast.AST
) -> None:
    keys = {number_key(interp, v) for v in steps.alternatives() if literal_value(v) not in (1, None)}
    texts = {v.text for v in steps.alternatives() if isinstance(v, UnknownValue)} - {""}
    emit_divided_twice(interp, loss, keys, texts, framework, f"in `{expression_text(node)}`")


def emit_divided_twice(
    interp: Interpreter,
    loss: TensorValue,
    keys: set[object],
    texts: set[str],
    framework: str,
    context: str,
    *,
    guessed: bool = False,
) -> None:
    """Emit an event for each division of a loss by a number that the framework also divides by.

    ``guessed`` means that only the name of the number says so.
    """
    for divisor in sorted(loss.normalization.divisors, key=lambda d: (d.site.line, d.site.column)):
        words = str(divisor.source_text)
        if divisor.key in keys or words in texts:
            event = e.DividedTwice(divisor.site, None, divisor=words, framework=framework, way=context, guessed=guessed)
            interp.emit_at(event)
