"""Autocast regions: how they are made, and what their own methods do."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, surface
from ..interpreter.conditions import Formula
from ..interpreter.contexts import close_context, enter, exit_context
from ..interpreter.functions import has_stars
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.truth import truth
from ..interpreter.unknown import unknown
from ..interpreter.values import Args, Float8, FunctionValue, Keywords, Named, Ref, Value
from ..interpreter.wording import wording
from ..project.module import Class
from .arguments import bind, literal, plain, words_of
from .devices import types_of


def new_autocast(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    if entry.name == "torch.autocast" and args and isinstance(args[0], FunctionValue):
        # @torch.autocast without parentheses: the function is taken for the device type.
        bound = {"device_type": Named("function")}
    arguments = {name: plain(at, value) for name, value in bound.items()}
    open_ended = "**" in bound or has_stars(node)
    if not open_ended:
        names = {"context": wording(node), "call": wording(node)}
        excess = max(0, len(args) - len(entry.parameters))
        at.emit(e.AUTOCAST_NEW, node, callable=entry.name, arguments=arguments, excess=excess, names=names)
    enabled = when_enabled(at, bound, node, open_ended=open_ended)
    types = types_of(bound.get("device_type"))
    used = at.project.devices
    # Where the project runs is the configuration's to say, of what the text leaves open.
    types = [each for each in types if each in used] or types or (list(used) if len(used) == 1 else [])
    # What is chosen by whether there is one is for CUDA: without it nothing here is worth the while.
    device = entry.facts.get("device") or ("cuda" if "cuda" in types else types[0] if types else "")
    # Which of several is called at a place may be a choice.
    thing = at.thing(("autocast", at.place_key(node), entry.name), "autocast", "", at.site(node))
    dtype = _dtype(bound.get("dtype"), device, open_ended)
    thing.facts.update(device=device, dtype=dtype, cache=_keeps_weights(at, entry, bound.get("cache_enabled")))
    return Ref(thing, enabled)


def when_enabled(at: Interpreter, bound: Keywords, node: ast.AST, *, open_ended: bool) -> Formula:
    """The condition under which what takes ``enabled`` is; ``open_ended`` where arguments are unpacked."""
    if "enabled" in bound:
        return truth(at, bound["enabled"], words_of("enabled", node), node)
    return at.ask(("open", id(node)), "", frozenset(), node) if open_ended else True


def _dtype(given: Value | None, device: str, open_ended: bool) -> str:
    """The dtype of a region, "?" where it is not known."""
    if given is not None and literal(given) is not None:
        dtypes = list(given.dtypes) if isinstance(given, Named) else []
        return dtypes[0] if len(dtypes) == 1 else "?"
    return "?" if open_ended else surface.DEFAULT_AUTOCAST_DTYPE.get(device, "?")


def _keeps_weights(at: Interpreter, entry: surface.Entry, cache: Value | None) -> bool:
    """Whether a region keeps the weights that it casts."""
    if cache is not None:
        return literal(cache) is not False
    # Without the argument it is what the region around is, unless the old entry points are asked.
    return entry.name != "torch.autocast" or not at.state.open or at.state.open[-1].cache


def _autocast_method(at: Interpreter, context: Ref, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if name == "__enter__":
        enter(at, context, node)
    elif name == "__exit__":
        exit_context(at, context, node, max(at.state.depth - 1, 0))
        close_context(at, context)
        at.state.depth = max(at.state.depth - 1, 0)
    return at.fresh(node, name)


def _call_autocast(at: Interpreter, func: Ref, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A region that is called with a function decorates it."""
    if args and isinstance(args[0], FunctionValue):
        inner = args[0]
        return FunctionValue(inner.function, inner.frame, inner.receiver, (*inner.wrappers, func))
    return unknown(at, func, args, keywords, node)


def _subclass_autocast(at: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """A region of the project's own, which is torch's where it has no way of its own to be entered."""
    if cls.methods.keys() & {"__init__", "__enter__", "__exit__"}:
        return None
    entry = next((found for base in cls.bases if (found := surface.lookup(dotted_name(at, base) or ""))), None)
    return new_autocast(at, entry, args, keywords, node) if entry is not None else None


def _float8(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return Float8(when_enabled(at, bind(("enabled",), args, keywords), node, open_ended=has_stars(node)))


def register(handlers: Handlers) -> None:
    handlers.functions.update(dict.fromkeys(frameworks.FLOAT8, _float8))
    handlers.roles[surface.AUTOCAST] = new_autocast
    handlers.constructors[surface.AUTOCAST] = _subclass_autocast
    handlers.calls["autocast"] = _call_autocast
    handlers.methods["autocast"] = _autocast_method
