"""Events about effects of low precision, each emitted once for a location."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol.events.regions import describe_region
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import CAST, GUESSED_LOW, REGION, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ..low_parameters import LowModules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from ....protocol.sites import Site, TraceFacts

    Effect = TypeVar("Effect", bound=e.LowPrecisionEffect)
    Fields = ParamSpec("Fields")


#: How of the event for consecutive integers in low precision, whatever is done with them.
CONSECUTIVE = "numbers"


def emit_once(
    interp: Interpreter,
    kind: Callable[Concatenate[Site, Fields], Effect],
    node: object,
    fact: DtypeInfo,
    *keys: Fields.args,
    **fields: Fields.kwargs,
) -> Effect | None:
    """Record an effect of low precision once for each graph and location. Return the recorded event, or None."""
    here = interp.state.frame.function or interp.state.frame.module
    if not isinstance(node, (ast.expr, ast.stmt)) or interp.state.current_node is None or not here.may_lose_precision:
        return None
    place = (kind, interp.state.frame.module.path, node.lineno, node.col_offset)
    key = (*place, fields.get("how"))
    if kind is e.LowPositions and fields.get("how") != CONSECUTIVE:
        # What is done with the integers says more.
        interp.detached_events.pop((*place, CONSECUTIVE), None)
    if key not in interp.detached_events:
        event = kind(interp.site_of(node), *keys, **fields)
        event.dtype, event.guessed = fact.dtype, GUESSED_LOW in fact.traits
        event.premises = find_premises(interp, fact)
        if not event.names:
            event.names = {"call": SourceText(node)}
        interp.detached_events[key] = event
    return interp.detached_events.get(key)  # type: ignore[return-value]  # the key contains the kind


def find_premises(interp: Interpreter, fact: DtypeInfo) -> TraceFacts:
    """Return what makes a value low, for a trace: the open region, a cast in the same function, or the only model."""
    region = interp.state.open_regions[-1] if interp.state.open_regions else None
    if (region is None or region.enabled is False) and REGION in fact.traits:
        # The value has left the region that made it low.
        region = interp.latest_region
    if region is not None and region.site is not None and region.enabled is not False:
        return ((region.site, describe_region(region.dtype)),)
    function, node = interp.state.frame.function, fact.trait_node
    if CAST in fact.traits and isinstance(node, ast.expr) and function is not None and node in function.nodes:
        return ((interp.site_of(node), f"the tensor is cast to {fact.dtype}"),)
    # A file seldom has a second model of a low dtype; its output is then not known to be this one.
    stored = [*interp.file_data(LowModules).values()] if fact.is_stored_low else []
    return (stored[0],) if len(stored) == 1 and stored[0] is not None else ()
