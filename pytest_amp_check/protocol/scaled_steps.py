"""Steps of scalers on the gradients of a module: until the step, these gradients carry the loss scale."""

from __future__ import annotations

from collections.abc import Collection

from .event_graph import Program
from .events import Event, ScalerStep
from .frameworks import FRAMEWORKS
from .guards import are_exclusive


def find_scaled_step(program: Program, event: Event, exempt: Collection[object] = ()) -> ScalerStep | None:
    """Return a step of an enabled scaler on gradients of the module of an event, or None.

    Scalers in ``exempt`` do not count. An event without a module may concern any module.
    """
    live = {tracked_object.key for tracked_object in program.attributes.scalers.live_scalers}
    # The attribute has no scalers of frameworks, whose state the program need not save.
    live |= {each.key for each in program.objects if each.attributes.framework and each.attributes.enabled is not False}
    for step in program.iter_events():
        if isinstance(step, ScalerStep) and step.subject in live and step.subject not in exempt:
            owns = program.objects[step.object].attributes.owns if step.object is not None else None
            is_of_other_module = owns is not None and event.subject is not None and event.subject not in owns
            if not is_of_other_module and not are_exclusive(event, step):
                return step
    return None


def name_scaler(program: Program, step: ScalerStep) -> str:
    """Return the source text of the scaler of a step. The scaler of a framework is an attribute of its object."""
    scaler = None if step.subject is None else program.objects[step.subject]
    framework = None if scaler is None else FRAMEWORKS.get(scaler.attributes.framework or "")
    if scaler is not None and framework is not None and framework.engine.scaler_attribute:
        return f"{scaler.name or framework.engine.usual_name}.{framework.engine.scaler_attribute}"
    return str(step.names.get("scaler") or "the scaler")
