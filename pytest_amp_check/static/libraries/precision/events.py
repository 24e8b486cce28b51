"""Events about effects of low precision, each emitted once for a location."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import GUESSED_LOW, DtypeInfo
from ...interpreter.interpreter import Interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec, TypeVar

    from ....protocol.sites import Site

    Effect = TypeVar("Effect", bound=e.LowPrecisionEffect)
    Fields = ParamSpec("Fields")


class _ReportedKeys(set[tuple[object, ...]]):
    """Reported problems of a file, by location and kind."""


def emit_once(
    interp: Interpreter,
    kind: Callable[Concatenate[Site, Fields], Effect],
    node: object,
    fact: DtypeInfo,
    *keys: Fields.args,
    **fields: Fields.kwargs,
) -> Effect | None:
    """Record an effect of low precision once for each location. Return the event recorded in this graph, or None."""
    here = interp.state.frame.function or interp.state.frame.module
    if not isinstance(node, (ast.expr, ast.stmt)) or interp.state.current_node is None or not here.may_lose_precision:
        return None
    key = (kind, interp.state.frame.module.path, node.lineno, node.col_offset, fields.get("how"))
    reported = interp.file_data(_ReportedKeys)
    if key not in reported:
        reported.add(key)
        event = kind(interp.site_of(node), *keys, **fields)
        event.dtype, event.guessed = fact.dtype, GUESSED_LOW in fact.traits
        if not event.names:
            event.names = {"call": SourceText(node)}
        interp.detached_events[key] = event
    return interp.detached_events.get(key)  # type: ignore[return-value]  # the key contains the kind
