"""Functions of the project: their bodies are read where they are called, with their arguments bound."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import surface
from ...protocol.words import Words
from ..project.module import Function
from ..project.syntax import walk
from .conditions import both
from .contexts import close_context, enter, exit_context, with_items
from .expressions import assign, name_it
from .forks import join_values
from .imports import dotted_name
from .interpreter import Handlers, Interpreter
from .tensors import in_region
from .unknown import unknown
from .values import (
    NONE,
    Args,
    Frame,
    FunctionValue,
    GradMode,
    HelperContext,
    Keywords,
    Mapping,
    Opaque,
    Ref,
    Sequence,
    Value,
)

#: Calls within calls that are followed; deeper ones are taken as unknown.
DEPTH = 8
#: Statements read in one graph before calls are no longer followed.
BUDGET = 12_000
#: Those of them in other files, in one graph and in all, before calls into these are no longer followed.
FOREIGN_BUDGET = 2_000
ALL_FOREIGN = 8_000
#: The part of these that is there for functions which make no mistake by themselves, nor write a checkpoint.
PART = 0.3
#: Statements of a function that is followed for the value it gives: in a file that trains, and in another one, where
#: a value matters only to whether a region is entered.
SHORT, SHORTEST = 4, 2


def follow(
    at: Interpreter,
    func: FunctionValue,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    on_yield: Callable[[Value], None] | None = None,
    *,
    always: bool = False,
) -> Value:
    """Read the body of a function of the project with its arguments bound.

    ``always`` says that what it does matters whatever it speaks of.
    """
    function = func.function
    if at.state.cur is None:
        return NONE
    if func.receiver is not None and not is_static(function):
        args = [func.receiver, *args]
    if function in at.active:
        _recursion(at, func, node)
        return at.fresh(node, "recursive")
    if function.abstract():
        _reach(at, function)
        words = Words(node.func) if isinstance(node, ast.Call) else function.name
        return unknown(at, at.opaque(("abstract", id(function.node)), words), args, keywords, node)
    matters = function.words if at.module.trains else function.contexts
    spoilt = function.fragile and in_region(at)
    if not (matters or spoilt or always or func.wrappers or _worthwhile(at, function)):
        _reach(at, function)
        return unknown(at, at.opaque(("function", id(function.node)), function.name), args, keywords, node)
    if len(at.active) >= DEPTH or at.spent > BUDGET or _too_far(at, function):
        return unknown(at, at.opaque(("function", id(function.node)), function.name), args, keywords, node)
    _reach(at, function)
    frame = Frame(function, func.frame, at.site(node))
    _bind(at, frame, function, args, keywords, node)
    frame.unwind_base = len(at.state.unwind)
    frame.path_base = len(at.state.path)
    frame.on_yield = on_yield
    frame.cls = function.cls
    frame.receiver = func.receiver
    value = run(at, frame, function, func.wrappers, node)
    if function.generator and frame.yields_pieces and on_yield is None:
        value = at.fresh(node, "pieces")
        value.pieces = True
    return value


def _too_far(at: Interpreter, function: Function) -> bool:
    """Whether enough of other files was read."""
    if function.module is at.module:
        return False
    part = 1 if function.strong or function.saves else PART
    return at.abroad > FOREIGN_BUDGET * part or at.all_abroad + at.abroad > ALL_FOREIGN * part


def _reach(at: Interpreter, function: Function) -> None:
    """A function is read where it is called: not by itself, too."""
    at.roots_reached.add(function.node)
    at.reached.add((function.module.path, function.node.lineno))


def _worthwhile(at: Interpreter, function: Function) -> bool:
    """Whether a function that does nothing to the protocol may still make a value that matters: it is short."""
    if isinstance(function.node, ast.Lambda):
        return True
    short = len(function.node.body) <= (SHORT if at.module.trains else SHORTEST)
    return short or (function.name == "__init__" and at.module.trains)


def run(at: Interpreter, frame: Frame, function: Function, wrappers: tuple[Value, ...], node: ast.AST) -> Value:
    outer, loops = at.state.frame, at.state.loops
    handlers, mark = at.state.handlers, at.draft.mark(at.state.cur)
    at.state.frame = frame
    at.state.loops = [*loops]
    guarded, trying = at.state.guarded, at.state.trying
    at.state.guarded = at.state.trying = 0
    at.active.append(function)
    base = len(at.state.path)
    depth = at.state.depth
    modes = [w for w in wrappers if isinstance(w, GradMode)]
    regions = [w for w in wrappers if not isinstance(w, GradMode)]
    at.state.no_grad += len(modes)
    place = function.decorators[0] if function.decorators else function.node
    for wrapper in regions:
        name_it(at, wrapper, "")
        enter(at, wrapper, place)
    body = function.node.body
    if isinstance(function.node, ast.Lambda):
        value = at.evaluate(function.node.body)
        if at.state.cur is not None:
            frame.returns.append((at.state.cur, True, value, at.state.heap))
    else:
        assert isinstance(body, list)
        marker = len(at.state.loops)
        at.read(body)
        del at.state.loops[marker:]
        if at.state.cur is not None:
            frame.returns.append((at.state.cur, at.short(both(*at.state.path[frame.path_base :])), NONE, at.state.heap))
    del at.state.path[base:]
    at.state.cur = at.draft.join(cur for cur, *_ in frame.returns)
    value = _returned(at, frame)
    # What is returned may know the frame.
    frame.returns, frame.on_yield = [], None
    at.draft.returned = mark.returned
    at.state.cur = at.draft.forget(mark, at.state.cur)
    for wrapper in reversed(regions):
        exit_context(at, wrapper, place, depth)
        close_context(at, wrapper)
    at.state.depth = depth
    at.state.no_grad -= len(modes)
    at.active.pop()
    at.state.frame = outer
    at.state.loops = loops
    at.state.handlers = handlers
    at.state.guarded, at.state.trying = guarded, trying
    return value


def _returned(at: Interpreter, frame: Frame) -> Value:
    if not frame.returns:
        return NONE
    _, _, value, heap = frame.returns[-1]
    at.serial += 1
    way = ("way", at.serial)
    for _, formula, earlier, earlier_heap in reversed(frame.returns[:-1]):
        if earlier is not value:
            value = join_values(
                at,
                formula if formula is not True else at.ask(way, "", at.turning()),
                earlier,
                value,
                "returned",
            )
        if earlier_heap is not heap:
            heap = {**earlier_heap, **heap}
    at.state.heap = heap
    return value


def _recursion(at: Interpreter, func: FunctionValue, node: ast.AST) -> None:
    """A function that is being read calls itself: its decorators enter their contexts once more."""
    depth = at.state.depth
    place = func.function.decorators[0] if func.function.decorators else node
    for wrapper in func.wrappers:
        if not isinstance(wrapper, GradMode):
            enter(at, wrapper, place)
    for wrapper in func.wrappers:
        if not isinstance(wrapper, GradMode):
            exit_context(at, wrapper, place, depth)
            close_context(at, wrapper)
    at.state.depth = depth


def _bind(at: Interpreter, frame: Frame, function: Function, args: Args, keywords: Keywords, node: ast.AST) -> None:
    """Bind arguments to parameters; what is not given takes its default."""
    spec = function.node.args
    names = function.parameters()
    rest = dict(keywords)
    for i, parameter in enumerate(names):
        if i < len(args):
            frame.vars[parameter.arg] = args[i]
        elif parameter.arg in rest:
            frame.vars[parameter.arg] = rest.pop(parameter.arg)
    for keyword in spec.kwonlyargs:
        if keyword.arg in rest:
            frame.vars[keyword.arg] = rest.pop(keyword.arg)
    defaults = list(zip(reversed(names), reversed(spec.defaults), strict=False))
    defaults += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
    starred = "**" in rest or has_stars(node)
    for parameter, default in defaults:
        if parameter.arg not in frame.vars and not starred:
            outer, at.state.frame = at.state.frame, frame
            frame.vars[parameter.arg] = at.evaluate(default)
            at.state.frame = outer
    for parameter in [*names, *spec.kwonlyargs]:
        if parameter.arg not in frame.vars:
            key = ("missing", at.place_key(node), parameter.arg)
            frame.vars[parameter.arg] = at.opaque(key, parameter.arg, parameter=True)
    if spec.vararg is not None:
        frame.vars[spec.vararg.arg] = Sequence(list(args[len(names) :]), open=starred)
    if spec.kwarg is not None:
        frame.vars[spec.kwarg.arg] = Mapping(dict(rest), open=starred)


def bind_unknown(at: Interpreter, frame: Frame, function: Function) -> None:
    """Parameters of a function that nobody calls here: whatever their annotations say they are."""
    spec = function.node.args
    outer, at.state.frame = at.state.frame, frame
    for parameter in [*function.parameters(), *spec.kwonlyargs]:
        if parameter.arg in frame.vars:
            continue
        value = at.opaque(("parameter", id(parameter)), parameter.arg, at.turning(), parameter=True)
        frame.vars[parameter.arg] = _annotated(at, value, parameter)
    at.state.frame = outer
    if spec.vararg is not None:
        frame.vars[spec.vararg.arg] = Sequence([], open=True)
    if spec.kwarg is not None:
        frame.vars[spec.kwarg.arg] = Mapping({}, open=True)


def _annotated(at: Interpreter, value: Opaque, parameter: ast.arg) -> Value:
    annotation = parameter.annotation
    if annotation is None:
        return value
    for node in walk(annotation):
        if isinstance(node, (ast.Name, ast.Attribute)):
            named = dotted_name(at, node)
            for recognise in at.handlers.annotations if named else ():
                found = recognise(at, named or "", value, parameter)
                if found is not None:
                    return found
            entry = surface.lookup(named) if named else None
            role = entry.role if entry is not None else surface.BASES.get(named or "")
            if role in (surface.SCALER, surface.OPTIMIZER, surface.MODULE):
                thing = at.thing(("annotated", id(parameter)), role, parameter.arg, at.site(parameter))
                return Ref(thing, True, value)
    return value


def _with_helper(at: Interpreter, context: HelperContext, node: ast.With | ast.AsyncWith, index: int) -> None:
    """Read the body of a ``@contextmanager`` function, and the body of the ``with`` at its ``yield``."""
    item = node.items[index]
    outer = at.state.frame
    ran = False

    def at_yield(value: Value) -> None:
        # Of several places where it yields, each stands on a way of its own.
        nonlocal ran
        ran = True
        inner, at.state.frame = at.state.frame, outer
        if item.optional_vars is not None:
            assign(at, item.optional_vars, value)
        with_items(at, node, index + 1)
        at.state.frame = inner

    follow(at, context.func, context.args, context.keywords, context.node, on_yield=at_yield)
    if not ran and at.state.cur is not None:
        with_items(at, node, index + 1)


def has_stars(node: ast.AST) -> bool:
    """Whether a call unpacks a sequence into its arguments."""
    return isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args)


def is_static(function: Function) -> bool:
    return "staticmethod" in function.decorator_names()


def register(handlers: Handlers) -> None:
    handlers.blocks["helper"] = _with_helper
