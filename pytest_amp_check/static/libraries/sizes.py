"""Layers that multiply matrices in low precision with sizes that are slow on Tensor Cores."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import sizes
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.state import GraphBuilder
from ..interpreter.values.definitions import Args, Keywords
from .arguments import bind_arguments, literal_value

#: Name prefixes of layers, with the parameters for the sides of the weight matrix.
_SIDES = {"Linear": ("in_features", "out_features"), "Conv": ("in_channels", "out_channels")}
_DTYPES = frozenset({"float16", "bfloat16", "?"})


class _ReportedLayers(set[tuple[GraphBuilder, int]]):
    """Layers already reported in one graph. A dry run has a separate graph builder, which is discarded."""


def note_odd_sides(tracked_object: TrackedObject, kind: str, args: Args, keywords: Keywords, node: ast.AST) -> None:
    """Record the sizes of a new layer if the sizes are literal and odd."""
    names = next((names for start, names in _SIDES.items() if kind.startswith(start)), None)
    if names is None or "groups" in keywords:
        return
    bound = bind_arguments(names, args, keywords)
    sides = [size for size in (literal_value(bound.get(name)) for name in names) if type(size) is int]
    if len(sides) == len(names) and sizes.find_odd_sides(sides):
        odd_sides = sizes.describe_sizes(sizes.find_odd_sides(sorted(sides)))
        shape = tracked_object.attributes.shape._replace(odd_sides={"call": expression_text(node), **odd_sides})
        tracked_object.attributes.shape = shape


def _check_layer_sizes(interp: Interpreter, tracked_object: TrackedObject, node: ast.AST) -> None:
    """Report the odd layers of a module that runs forward in a low-precision region."""
    region = interp.state.open_regions[-1] if interp.state.open_regions else None
    if region is None or region.enabled is False or region.dtype not in _DTYPES or interp.state.no_grad:
        return
    reported_layers = interp.graph_data(_ReportedLayers)
    for key in sorted(interp.program.with_submodules(frozenset((tracked_object.key,)))):
        layer = interp.program.objects[key]
        odd = layer.attributes.shape.odd_sides
        if odd is not None and layer.site is not None and (interp.builder, key) not in reported_layers:
            reported_layers.add((interp.builder, key))
            interp.emit_at(e.OddSize(layer.site, key, how="weight", names=odd))


def register(handlers: HandlerTable) -> None:
    handlers.forward_listeners.append(_check_layer_sizes)
