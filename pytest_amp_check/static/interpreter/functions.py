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
from .forks import join_values, meet_heaps, meet_variables
from .imports import dotted_name
from .interpreter import Handlers, Interpreter, first_answer
from .matters import spoken_in
from .switches import default_of
from .tensors import in_region
from .unknown import unknown
from .values import (
    EMPTY,
    NONE,
    Args,
    Frame,
    FunctionValue,
    Generator,
    GradMode,
    HelperContext,
    Instance,
    Keywords,
    Mapping,
    Opaque,
    Params,
    Ref,
    Sequence,
    Tensor,
    Value,
    Vars,
    merge_params,
)

#: Calls within calls that are followed; deeper ones are taken to do what their names say. Functions that do something
#: to the protocol, or call one that does, are followed further: as far as anybody nests calls.
DEPTH, DEEPEST = 8, 40
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
    if function in at.active:
        _recursion(at, func, node)
        return at.fresh(node, "recursive")
    if function.generator and on_yield is None:
        return _suspended(at, func, args, keywords, node, always=always)
    if func.receiver is not None and not is_static(function):
        args = [func.receiver, *args]
    instead = _unread(at, func, node, always=always)
    if instead is not None:
        about = None if function.abstract() else spoken_in(function)
        made = unknown(at, instead, args, keywords, node, about=about)
        made.divided = made.divided or function.divides()
        return made
    _reach(at, function, func.receiver)
    site = at.site(node)
    if at.passed is not None:
        # What it does is read there.
        at.passed.judged(site)
    frame = Frame(function, func.frame, site)
    _bind(at, frame, function, args, keywords, node)
    frame.unwind_base = len(at.state.unwind)
    frame.path_base = len(at.state.path)
    frame.on_yield = on_yield
    frame.cls = function.cls
    frame.receiver = func.receiver
    return _from(function.name, run(at, frame, function, func.wrappers, node))


def _from(name: str, value: Value) -> Value:
    """What a function gives: what is in it that nobody knows the origin of came out of that function, at least."""
    if isinstance(value, Opaque):
        if value.argument or value.past.autocast:
            return value
        return value.made(value.past._replace(callees=value.past.callees | {name}))
    if isinstance(value, Mapping):
        for key, item in value.items.items():
            value.items[key] = _from(name, item)
    elif isinstance(value, Sequence):
        value.items[:] = [_from(name, item) for item in value.items]
    return value


def _suspended(
    at: Interpreter, func: FunctionValue, args: Args, keywords: Keywords, node: ast.AST, *, always: bool
) -> Value:
    """What a call of a generator function gives. Nothing of it runs there: what it will do is looked at ahead.

    Where that is nothing to the protocol, what it yields is all that matters.
    """
    if func.function.manager:
        return HelperContext(func, args, keywords, node)
    made = Generator(func, args, keywords, node)
    if _unread(at, func, node, always=always) is not None:
        return made

    def look() -> None:
        draft = at.draft

        def yielded(value: Value) -> None:
            # Not where a loop is first tried.
            if at.draft is draft:
                made.gives.append(value)
                made.pieces = made.pieces or at.state.frame.yields_pieces

        follow(at, func, args, keywords, node, yielded, always=always)
        if at.draft.happened:
            made.yields = [_waiting(at, made, number) for number in range(len(made.gives))]

    at.previewed(look)
    params = [value for value in made.gives if isinstance(value, Params)]
    if params and len(params) == len(made.gives) and not made.yields:
        return merge_params(params)
    if made.yields:
        _answer(at, [(test, False) for test in made.yields], forgotten=True)
    return made


def _waiting(at: Interpreter, generator: Generator, number: int) -> int:
    """The test that asks whether a generator waits where it yields."""
    test = at.tests.test(("waits", at.place_key(generator.node), number), "", None, EMPTY)
    test.turn = True
    return test.key


def _answer(at: Interpreter, answers: list[tuple[int, bool]], *, forgotten: bool) -> None:
    """Go on where tests come out so; where they are ``forgotten``, they do so from here on."""
    if forgotten and at.state.cur is not None:
        here = at.draft.node()
        at.draft.link(at.state.cur, here)
        at.draft.nodes[here].forgets = sum(1 << test for test, _ in answers)
        at.state.cur = here
    for test, truth in answers:
        there = at.draft.node()
        at.draft.link(at.state.cur, there, test, truth)
        at.state.cur = there


def _resume(at: Interpreter, generator: Generator, node: ast.AST) -> Value:
    """Run a generator until it yields: from its beginning, or from wherever it waits; gives what it yields."""
    if not generator.yields:
        return _given(at, generator.gives, node)
    start, tests, draft = at.state.cur, generator.yields, at.draft
    given: list[Value] = []
    ways: list[int | None] = []

    def yielded(value: Value) -> None:
        if at.draft is not draft:
            # Where a turn of a loop is only tried, nothing waits.
            return
        number = len(given)
        given.append(value)
        _answer(at, [(test, at_it == number) for at_it, test in enumerate(tests)], forgotten=True)
        ways.append(at.state.cur)
        at.state.cur = start
        if number < len(tests):
            _answer(at, [(tests[number], True)], forgotten=False)
        # What leads to a way out is not left out of the graph.
        at.draft.happened += 1

    _answer(at, [(test, False) for test in tests], forgotten=False)
    follow(at, generator.func, generator.args, generator.keywords, generator.node, yielded, always=True)
    generator.ended = at.state.cur
    if given:
        at.state.cur = at.draft.join(ways)
    return _given(at, given, node)


def _given(at: Interpreter, given: list[Value], node: ast.AST) -> Value:
    """One of the values that a generator yields: another one each time, where it is not known."""
    first = given[0] if given else NONE
    tensors = [value for value in given if isinstance(value, Tensor)]
    if first.matters and all((value.kind, value.value) == (first.kind, first.value) for value in given):
        if isinstance(first, Sequence) and not first.open:
            return Sequence([_given(at, [item], node) for item in first.items])
        return first
    return Tensor.merge(tensors) if tensors and len(tensors) == len(given) else at.fresh(node, "element")


def _unread(at: Interpreter, func: FunctionValue, node: ast.AST, *, always: bool) -> Opaque | None:
    """The unknown value that stands for a function whose body is not read."""
    function = func.function
    if function.abstract():
        _reach(at, function)
        return at.opaque(
            ("abstract", id(function.node)), Words(node.func) if isinstance(node, ast.Call) else function.name
        )
    matters = function.words if at.module.trains else function.contexts
    spoilt = function.fragile and in_region(at)
    if not (matters or spoilt or always or func.wrappers or _worthwhile(at, function)):
        _reach(at, function)
    elif len(at.active) < (DEEPEST if matters else DEPTH) and at.spent <= BUDGET and not _too_far(at, function):
        return None
    return at.opaque(("function", id(function.node)), function.name)


def _too_far(at: Interpreter, function: Function) -> bool:
    """Whether enough of other files was read."""
    if function.module is at.module:
        return False
    part = 1 if function.strong or function.saves else PART
    return at.abroad > FOREIGN_BUDGET * part or at.all_abroad + at.abroad > ALL_FOREIGN * part


def _reach(at: Interpreter, function: Function, receiver: Value | None = None) -> None:
    """A function is read where it is called, as a method of the class of a receiver: not by itself, too."""
    at.roots_reached.add((function.node, None))
    if isinstance(receiver, Instance):
        at.roots_reached.add((function.node, receiver.cls))
    at.reached.add((function.module.path, function.node.lineno))


def _worthwhile(at: Interpreter, function: Function) -> bool:
    """Whether a function that does nothing to the protocol may still make a value that matters: it is short."""
    if isinstance(function.node, ast.Lambda):
        return True
    short = len(function.node.body) <= (SHORT if at.module.trains else SHORTEST)
    return short or (function.name == "__init__" and at.module.trains)


def run(at: Interpreter, frame: Frame, function: Function, wrappers: tuple[Value, ...], node: ast.AST) -> Value:
    outer, mark, written = at.state.frame, at.draft.mark(at.state.cur), len(at.written)
    at.state.frame = frame
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
    _read_body(at, frame, function)
    del at.state.path[base:]
    # The block of a context that this function is may have returned from the function around it, which stays so.
    at.draft.returned -= len(frame.returns) - (at.state.cur is not None)
    at.state.cur = at.draft.join(cur for cur, *_ in frame.returns)
    value = _returned(at, frame, written)
    # What is returned may know the frame.
    frame.returns, frame.on_yield = [], None
    at.state.cur = at.draft.forget(mark, at.state.cur)
    for wrapper in reversed(regions):
        exit_context(at, wrapper, place, depth)
        close_context(at, wrapper)
    at.state.depth = depth
    at.state.no_grad -= len(modes)
    at.active.pop()
    at.state.frame = outer
    at.state.guarded, at.state.trying = guarded, trying
    return value


def _read_body(at: Interpreter, frame: Frame, function: Function) -> None:
    """Read what a function does; it returns where it comes to its end, too, which is the last way out of it."""
    if isinstance(function.node, ast.Lambda):
        value = at.evaluate(function.node.body)
    else:
        value = NONE
        at.read(function.node.body)
    if at.state.cur is not None:
        # Under which condition it is gone nobody asks: it is what is left of all the others.
        frame.returns.append((at.state.cur, True, value, at.state.heap))


def _returned(at: Interpreter, frame: Frame, before: int) -> Value:
    """What a function gives that was called when ``before`` attributes had been written."""
    if not frame.returns:
        return NONE
    _, _, value, heap = frame.returns[-1]
    at.serial += 1
    way = ("way", at.serial)
    for _, formula, earlier, earlier_heap in reversed(frame.returns[:-1]):
        asked = formula if formula is not True else at.ask(way, "", at.turning())
        value = join_values(at, asked, earlier, value, "returned")
        heap = meet_heaps(at, asked, earlier_heap, heap, before)
    at.state.heap = heap
    return value


def _recursion(at: Interpreter, func: FunctionValue, node: ast.AST) -> None:
    """A function that is being read calls itself: its decorators enter their contexts once more."""
    depth = at.state.depth
    place = func.function.decorators[0] if func.function.decorators else node
    regions = [wrapper for wrapper in func.wrappers if not isinstance(wrapper, GradMode)]
    for wrapper in regions:
        enter(at, wrapper, place)
    for wrapper in regions:
        exit_context(at, wrapper, place, depth)
        close_context(at, wrapper)
    at.state.depth = depth


def _bind(at: Interpreter, frame: Frame, function: Function, args: Args, keywords: Keywords, node: ast.AST) -> None:
    """Bind arguments to parameters; what is not given takes its default."""
    spec = function.node.args
    names = function.parameters()
    rest = dict(keywords)
    frame.vars.update(zip([parameter.arg for parameter in names], args, strict=False))
    for parameter in [*names, *spec.kwonlyargs]:
        if parameter.arg in rest and parameter.arg not in frame.vars:
            frame.vars[parameter.arg] = rest.pop(parameter.arg)
    starred = "**" in rest or has_stars(node)
    if not starred:
        _bind_defaults(at, frame, function, names)
    for parameter in [*names, *spec.kwonlyargs]:
        if parameter.arg not in frame.vars:
            key = ("missing", at.place_key(node), parameter.arg)
            frame.vars[parameter.arg] = at.opaque(key, parameter.arg, parameter=True)
    if spec.vararg is not None:
        frame.vars[spec.vararg.arg] = Sequence(list(args[len(names) :]), open=starred)
    if spec.kwarg is not None:
        frame.vars[spec.kwarg.arg] = Mapping(dict(rest), open=starred)


def _bind_defaults(at: Interpreter, frame: Frame, function: Function, names: list[ast.arg]) -> None:
    spec = function.node.args
    defaults = list(zip(reversed(names), reversed(spec.defaults), strict=False))
    defaults += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None]
    outer, at.state.frame = at.state.frame, frame
    for parameter, default in defaults:
        if parameter.arg not in frame.vars:
            frame.vars[parameter.arg] = default_of(at, function, parameter.arg, default, at.evaluate(default))
    at.state.frame = outer


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
    for node in walk(parameter.annotation) if parameter.annotation is not None else ():
        named = dotted_name(at, node)
        found = _of_type(at, named, value, parameter) if named else None
        if found is not None:
            return found
    return value


def _of_type(at: Interpreter, named: str, value: Opaque, parameter: ast.arg) -> Value | None:
    """What a parameter is whose annotation names a type."""
    found = first_answer(at.handlers.annotations, at, named, value, parameter)
    if found is not None:
        return found
    entry = surface.lookup(named)
    role = entry.role if entry is not None else surface.BASES.get(named)
    if role not in (surface.SCALER, surface.OPTIMIZER, surface.MODULE):
        return None
    return Ref(at.thing(("annotated", id(parameter)), role, parameter.arg, at.site(parameter)), source=value)


def _with_helper(at: Interpreter, context: HelperContext, node: ast.With | ast.AsyncWith, index: int) -> None:
    """Read the body of a ``@contextmanager`` function, and the body of the ``with`` at its ``yield``."""
    item = node.items[index]
    outer, before, path = at.state.frame, dict(at.state.frame.vars), len(at.state.path)
    ran = False
    left: Vars | None = None

    def at_yield(value: Value) -> None:
        # Of several places where it yields, each stands on a way of its own.
        nonlocal ran, left
        ran = True
        inner, at.state.frame = at.state.frame, outer
        outer.vars = dict(before)
        if item.optional_vars is not None:
            assign(at, item.optional_vars, value)
        with_items(at, node, index + 1)
        if at.state.cur is not None:
            here = at.short(both(*at.state.path[path:]))
            left = outer.vars if left is None else meet_variables(at, here, outer.vars, left)
        outer.vars = outer.vars if left is None else left
        at.state.frame = inner

    follow(at, context.func, context.args, context.keywords, context.node, on_yield=at_yield)
    if not ran and at.state.cur is not None:
        with_items(at, node, index + 1)


def _generator_method(
    at: Interpreter, receiver: Generator, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name in ("__next__", "send"):
        return _resume(at, receiver, node)
    return receiver if name == "__iter__" else at.handlers.methods[""](at, receiver, name, args, keywords, node)


def has_stars(node: ast.AST) -> bool:
    """Whether a call unpacks a sequence into its arguments."""
    return isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args)


def is_static(function: Function) -> bool:
    return "staticmethod" in function.decorator_names()


def register(handlers: Handlers) -> None:
    handlers.blocks["helper"] = _with_helper
    handlers.elements["generator"] = _resume
    handlers.methods["generator"] = _generator_method
