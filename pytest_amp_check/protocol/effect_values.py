"""Values of a finding that decide which effect of its rule applies."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from . import events as e
from .event_graph import Graph, Program
from .events import Event, OwnedEvent
from .rules import LABELS

#: Beginnings of the names of optimizer classes that divide an update by the size of the gradients, as Adam does.
_ADAPTIVE = ("adam", "nadam", "radam", "lion", "lamb", "adagrad", "rmsprop", "adafactor")


def find_effect_values(
    label: str, events: Collection[Event], program: Program, graph: Graph | None = None, varying: int = 0
) -> dict[str, str]:
    """Return the values by which a violation chooses its effect, if it declares several.

    ``events`` are the events of the violation: the cause first, then the detecting event. ``graph`` is the graph of
    these events in source, None in a run, and ``varying`` are the predicates (as a bit set) that may change between
    iterations. The values are:

    - ``scaling``: ``live`` if a scaler of the program scales a loss.
    - ``optimizer_class``: ``sgd`` or ``adam`` if all optimizers of the events are known to be of such a class.
    - ``step``: ``scaler`` or ``plain``, the way in which the events step the optimizer.
    - ``repeats``: ``always`` if the cause runs whenever the detecting event does, ``updated`` if the detecting event is
      an update, after which torch allows another unscale.
    - ``steps``: ``many`` if a loop around the step is none around the construction of the scaler, else ``one``.
    """
    asked = {case.partition("=")[0] for case in LABELS[label][0].list_effects(label)[1]}
    found: dict[str, str] = {}
    if "scaling" in asked and program.attributes.scalers.live_scalers:
        found["scaling"] = "live"
    if "optimizer_class" in asked:
        found["optimizer_class"] = _find_optimizer_class(events, program)
    if "step" in asked:
        found["step"] = _find_step(events)
    cause, *others = events
    if "repeats" in asked and graph is not None and others:
        found["repeats"] = _find_repetition(cause, others[0], varying)
    if "steps" in asked and others and isinstance(cause, e.ScalerNew):
        found["steps"] = "many" if _count_loops(others[0]) > _count_loops(cause) else "one"
    return {name: value for name, value in found.items() if value}


def _find_optimizer_class(events: Iterable[Event], program: Program) -> str:
    keys: set[int] = set()
    for event in events:
        if isinstance(event, OwnedEvent):
            keys.update(event.owners or ())
        elif event.traits.has_optimizer and event.object is not None:
            keys.add(event.object)
    families = {_family_of(program.objects[key].attributes.callable) for key in keys}
    return families.pop() if len(families) == 1 else ""


def _family_of(constructor: str) -> str:
    """Return the family of an optimizer class, "" if unknown."""
    name = constructor.rpartition(".")[2].lower()
    return "sgd" if name.startswith("sgd") else "adam" if name.startswith(_ADAPTIVE) else ""


def _count_loops(event: Event) -> int:
    """Return the number of loops around an event. Negative keys are calls."""
    return sum(key > 0 for key in event.loops or ())


def _find_repetition(cause: Event, detecting: Event, varying: int) -> str:
    """Return what happens between two runs of an event: ``updated``, ``always`` the detecting event, "" if unknown."""
    if isinstance(detecting, e.Update):
        return "updated"
    deciding = {(key, truth) for key, truth in cause.guards if varying >> key & 1}
    return "always" if isinstance(detecting, e.Backward) and deciding <= set(detecting.guards) else ""


def _find_step(events: Iterable[Event]) -> str:
    """Return ``scaler`` if the events step through a scaler, ``plain`` if they step directly, "" if both or neither."""
    ways = {isinstance(event, e.ScalerStep) for event in events if isinstance(event, (e.ScalerStep, e.Step))}
    return ("scaler" if ways.pop() else "plain") if len(ways) == 1 else ""
