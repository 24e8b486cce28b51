"""Layers that multiply matrices in low precision, of sizes that Tensor Cores take less well."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import sizes
from ...protocol.events import Thing
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.state import Draft
from ..interpreter.values import Args, Keywords
from ..interpreter.wording import wording
from .arguments import bind, literal

#: How the names of layers begin -> the parameters that are the sides of their matrix.
_SIDES = {"Linear": ("in_features", "out_features"), "Conv": ("in_channels", "out_channels")}
_DTYPES = frozenset({"float16", "bfloat16", "?"})


class _Told(set[tuple[Draft, int]]):
    """Layers that one graph has told of; what is read for its values alone is drafted apart, and thrown away."""


def note_sides(thing: Thing, kind: str, args: Args, keywords: Keywords, node: ast.AST) -> None:
    """A layer is made: note its sizes, where they are written out and odd."""
    names = next((names for start, names in _SIDES.items() if kind.startswith(start)), None)
    if names is None or "groups" in keywords:
        return
    bound = bind(names, args, keywords)
    sides = [size for size in (literal(bound.get(name)) for name in names) if type(size) is int]
    if len(sides) == len(names) and sizes.odd(sides):
        thing.facts["odd"] = {"call": wording(node), **sizes.described(sizes.odd(sorted(sides)))}


def _ran(at: Interpreter, thing: Thing, node: ast.AST) -> None:
    """A module runs forward, with the layers in it."""
    region = at.state.open[-1] if at.state.open else None
    if region is None or region.enabled is False or region.dtype not in _DTYPES or at.state.no_grad:
        return
    told = at.of_graph(_Told)
    for key in sorted(at.program.whole(frozenset((thing.key,)))):
        layer = at.program.things[key]
        if "odd" in layer.facts and layer.site is not None and (at.draft, key) not in told:
            told.add((at.draft, key))
            at.emit_at(e.ODD_SIZE, layer.site, key, how="weight", names=layer.facts["odd"])


def register(handlers: Handlers) -> None:
    handlers.forward_run.append(_ran)
