"""Statements: how control moves through a function, and what leaving a block undoes."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol.checks import gives_up
from ...protocol.words import Words, chain
from ..project.module import Imported, catches_import, stored_names
from ..project.syntax import children, root_of, walk
from .conditions import Formula, both, negate
from .expressions import (
    Enumerated,
    assign,
    augment,
    condition,
    each_of,
    element_of,
    found_optimizer,
    gone_over,
    guard_of,
    is_stepped,
)
from .forks import branch, fork, join_values, raises
from .imports import imported, look_up
from .interpreter import Handlers, Interpreter, within
from .microbatches import draws, keeps_gradients, loaded, selects, stored_beside
from .state import Loop
from .switches import switched
from .values import (
    NONE,
    Choice,
    ClassValue,
    Const,
    Frame,
    FunctionValue,
    Generator,
    GradMode,
    Instance,
    Mapping,
    Named,
    NullContext,
    Opaque,
    Params,
    Ref,
    Sequence,
    Tensor,
    Value,
)
from .wording import names_in, wording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Roles of things of which a loop may go over several.
OBJECTS = frozenset(("optimizer", "scaler"))
#: Decorators that make a context of a function.
MANAGERS = ("contextlib.contextmanager", "contextlib.asynccontextmanager")
#: Literal sequences up to this length are read item by item.
UNROLL = 4


def _expression(at: Interpreter, node: ast.Expr) -> None:
    value = at.evaluate(node.value)
    for listener in at.handlers.expression_read:
        listener(at, node.value)
    if isinstance(value, Ref) and value.role == "autocast" and isinstance(node.value, ast.Call):
        at.emit(e.SCOPE_LOST, node.value, value.thing.key, how="expression", names={"context": wording(node.value)})


def _assign(at: Interpreter, node: ast.Assign) -> None:
    value = switched(at, node, at.evaluate(node.value))
    for listener in at.handlers.assigned:
        listener(at, node)
    for target in node.targets:
        if isinstance(value, Tensor) and is_stepped(at, target):
            # A method of a module makes optimizers, too.
            value = at.fresh(node.value)
        assign(at, target, value)
        if isinstance(node.value, ast.Call) and isinstance(value, Opaque):
            found_optimizer(at, target, value)


def _ann_assign(at: Interpreter, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(at, node.target, at.evaluate(node.value))


def _return(at: Interpreter, node: ast.Return) -> None:
    value = at.evaluate(node.value) if node.value is not None else NONE
    leave(at, at.state.frame.unwind_base)
    if at.state.cur is not None:
        here = at.state.path[at.state.frame.path_base :]
        # Past some depth, which way a function returned is a question of its own.
        condition = at.short(both(*here)) if len(here) <= 8 else at.ask(("return", id(node)), "", at.turning())
        at.draft.leave(at.state.frame.returns, (at.state.cur, condition, value, at.state.heap))
        at.draft.returned += 1
    at.state.cur = None


def _raise(at: Interpreter, node: ast.Raise) -> None:
    for child in (node.exc, node.cause):
        if child is not None:
            at.evaluate(child)
    raises(at)
    at.draft.happened += 1
    at.state.cur = None


def _jump(at: Interpreter, node: ast.Break | ast.Continue) -> None:
    if at.state.loops:
        loop = at.state.loops[-1]
        leave(at, loop.unwind_base)
        if at.state.cur is not None:
            if isinstance(node, ast.Continue):
                _skips(at, "continue", node)
            exits = loop.breaks if isinstance(node, ast.Break) else loop.continues
            at.draft.leave(exits, (at.state.cur, at.state.frame.vars, at.state.heap))
    at.draft.jumped += 1
    at.state.cur = None


def _skips(at: Interpreter, words: str, node: ast.AST) -> None:
    """Note that a statement leads past what is left of an iteration, where it may."""
    here = at.draft.node()
    at.draft.link(at.state.cur, here)
    at.draft.nodes[here].skips = words, at.site(node)
    at.state.cur = here


def leave(at: Interpreter, base: int) -> None:
    """Do what leaving the open blocks above ``base`` does: exits of ``with``, ``finally`` blocks."""
    saved = at.state.unwind
    for i in range(len(saved) - 1, base - 1, -1):
        if at.state.cur is None:
            break
        at.state.unwind = saved[:i]
        saved[i]()
    at.state.unwind = saved


def _delete(at: Interpreter, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            at.state.frame.vars.pop(target.id, None)
        elif isinstance(target, ast.Subscript):
            holder, place = at.evaluate(target.value), at.evaluate(target.slice)
            if isinstance(holder, Mapping):
                holder.items.pop(place.value, None)


def _assert(at: Interpreter, node: ast.Assert) -> None:
    formula = condition(at, node.test)
    _demanded(at, node.test)
    if not isinstance(formula, bool):
        yes, _ = branch(at, formula)
        at.state.cur = yes
        at.state.path.append(formula)


def _import(at: Interpreter, node: ast.Import) -> None:
    for alias in node.names:
        head = alias.name.partition(".")[0]
        at.state.frame.vars[alias.asname or head] = imported(at, Imported(alias.name if alias.asname else head, "", 0))


def _import_from(at: Interpreter, node: ast.ImportFrom) -> None:
    for alias in node.names:
        if alias.name != "*":
            origin = Imported(node.module or "", alias.name, node.level)
            at.state.frame.vars[alias.asname or alias.name] = imported(at, origin)


def _function(at: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    function = at.state.frame.module.functions[node]
    at.captured.append(at.state.frame)
    value: Value = FunctionValue(function, at.state.frame.parent if at.state.frame.of_class else at.state.frame)
    for decorator in reversed(node.decorator_list):
        value = decorate(at, decorator, value, node)
    at.state.frame.vars[node.name] = value
    if isinstance(value, FunctionValue):
        at.defined[node] = value


def decorate(at: Interpreter, decorator: ast.expr, value: Value, node: ast.AST) -> Value:
    """What a decorator makes of a function. One that is not understood is taken to change nothing."""
    if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod", "property"):
        return value
    applied = at.evaluate(decorator)
    if isinstance(applied, Named):
        at.call_value(applied, [], {}, decorator)
    return _decorated(at, applied, value, decorator, node) if isinstance(value, FunctionValue) else value


def _decorated(
    at: Interpreter, applied: Value, value: FunctionValue, decorator: ast.expr, node: ast.AST
) -> FunctionValue:
    function = value.function
    if isinstance(applied, FunctionValue):
        made = at.call_value(applied, [value], {}, node)
        return made if isinstance(made, FunctionValue) else value
    if isinstance(applied, Named) and applied.name in MANAGERS:
        function.manager = True
    region = holds_autocast(applied)
    if region and (function.generator or isinstance(function.node, ast.AsyncFunctionDef)):
        key = applied.thing.key if isinstance(applied, Ref) else None
        at.emit(e.SCOPE_LOST, decorator, key, how="generator", names={"context": wording(decorator)})
        return value
    if region or isinstance(applied, GradMode):
        return FunctionValue(function, value.frame, value.receiver, (*value.wrappers, applied))
    return value


def _class(at: Interpreter, node: ast.ClassDef) -> None:
    cls = at.state.frame.module.classes[node]
    if at.state.frame.parent is None:
        for base in node.bases:
            root = root_of(base)
            if root in at.state.frame.vars:
                at.derived_from[cls, root] = at.state.frame.vars[root]
    around = at.state.frame.parent if at.state.frame.of_class else at.state.frame
    if around is not None and around.parent is not None:
        at.enclosing[cls] = around
        at.captured.append(around)
    at.state.frame.vars[node.name] = ClassValue(cls, around)
    if not cls.words and not _may_overrule(at, node):
        return
    frame = Frame(at.state.frame.function, at.state.frame, at.state.frame.caller)
    frame.of_class = True
    at.captured.append(frame)
    frame.path_base, frame.unwind_base = len(at.state.path), len(at.state.unwind)
    within(at, frame, lambda: at.read(node.body))
    at.class_vars[node] = frame.vars


def _may_overrule(at: Interpreter, node: ast.ClassDef) -> bool:
    """Whether a class may give something another value that a class of the project declares above it."""
    if not any(isinstance(each, (ast.Assign, ast.AnnAssign)) for each in node.body):
        return False
    return any(isinstance(at.state.frame.vars.get(root_of(base)), ClassValue) for base in node.bases)


def _if(at: Interpreter, node: ast.If) -> None:
    if _is_main_guard(node.test):
        at.read(node.body)
        return
    formula = condition(at, node.test)
    if any(gives_up(part) for part in (*node.body, *node.orelse)):
        _demanded(at, node.test)
    shim = at.module.versioned and _asks_for_a_version(at, node.test)
    at.state.shims += shim
    yes, no = fork(at, formula, lambda: at.read(node.body), lambda: at.read(node.orelse))
    at.state.shims -= shim
    if not isinstance(formula, bool) and yes != no:
        # One arm came to its end: what follows stands under the other's condition.
        at.state.shims += shim
        at.state.path.append(formula if yes else negate(formula))


def _demanded(at: Interpreter, test: ast.expr) -> None:
    """A test was asked without which the program does not go on."""
    for listener in at.handlers.demanded:
        listener(at, test)


def _asks_for_a_version(at: Interpreter, test: ast.expr) -> bool:
    """Whether a test asks what the torch that is installed has, or for a version that was imported by another name."""
    asks, names = guard_of(at, test)
    if asks:
        return True
    values = [look_up(at, name) for name in names]
    return any(isinstance(value, Named) and "version" in value.name.lower() for value in values)


def _match(at: Interpreter, node: ast.Match) -> None:
    subject = at.evaluate(node.subject)
    loops = subject.loops

    def case(index: int) -> None:
        if index == len(node.cases):
            return
        arm = node.cases[index]
        for child in walk(arm.pattern):
            name = getattr(child, "name", None) or getattr(child, "rest", None)
            if isinstance(name, str):
                at.state.frame.vars[name] = at.fresh(arm.pattern, name)
        if isinstance(arm.pattern, ast.MatchAs) and arm.pattern.pattern is None:
            formula: Formula = True
        elif isinstance(arm.pattern, (ast.MatchValue, ast.MatchSingleton)):
            formula = condition(at, _as_comparison(node.subject, arm.pattern))
        else:
            question = ("case", subject.identity(at.number), ast.dump(arm.pattern))
            formula = at.ask(question, Words(arm.pattern), loops, arm.pattern)
        if arm.guard is not None:
            formula = both(formula, condition(at, arm.guard))
        fork(at, formula, lambda: at.read(arm.body), lambda: case(index + 1))

    case(0)


def _try(at: Interpreter, node: ast.Try) -> None:
    shim = any(catches_import(handler) for handler in node.handlers)
    at.state.trying += shim
    before_vars, before_heap = dict(at.state.frame.vars), dict(at.state.heap)
    raised: list[int] = [at.state.cur] if at.state.cur is not None else []
    outside = [(places, len(places)) for places in at.state.handlers]
    if outside and at.state.tried is node:
        # Whatever is raised there is raised in this one.
        outside[-1] = outside[-1][0], 0
    base = len(at.state.unwind)
    if node.finalbody:
        frame, around = at.state.frame, len(at.state.handlers)
        at.state.unwind = [*at.state.unwind, lambda: within(at, frame, lambda: _on_the_way_out(at, node, around))]
    at.state.handlers.append(raised)
    at.state.guarded += bool(node.handlers)
    depth, entered = at.state.depth, at.state.entered
    at.state.tried = node.body[0]
    at.read(node.body)
    at.state.guarded -= bool(node.handlers)
    at.state.handlers.pop()
    if at.state.cur is not None:
        at.read(node.orelse)
    at.state.trying -= shim
    at.state.shims += shim
    ends = [(at.state.cur, at.state.frame.vars, at.state.heap)]
    in_try = {**before_vars, **at.state.frame.vars}
    for handler in node.handlers:
        at.state.cur = at.draft.join(_raising(at, raised))
        if at.state.entered != entered:
            at.emit(e.AUTOCAST_EXIT, handler, depth=depth)
        at.state.frame.vars, at.state.heap = dict(in_try), dict(before_heap)
        _rescue(at, handler)
        ends.append((at.state.cur, at.state.frame.vars, at.state.heap))
    at.state.unwind = at.state.unwind[:base]
    at.state.shims -= shim
    # Which way it went cannot be asked again; the body of the try is what the values are taken from.
    live = [(cur, variables, heap) for cur, variables, heap in ends if cur is not None]
    at.state.cur = None
    _gather(at, live)
    if not live and node.finalbody and raised and not node.handlers:
        _only_raised(at, node, raised)
        return
    escaping = [(places, before, len(places)) for places, before in outside]
    happened = at.draft.happened
    at.read(node.finalbody)
    # Once more for all that is in it: what is in one another is not read twice as often with each.
    if escaping and not at.state.escaping and at.draft.happened != happened:
        _escapes(
            at, node, escaping, raised[:1] if node.handlers else raised, depth if at.state.entered != entered else None
        )


def _on_the_way_out(at: Interpreter, node: ast.Try, around: int) -> None:
    """Read a ``finally`` that a jump leads through: what it raises is for the ``around`` handlers outside of it."""
    handlers = at.state.handlers
    at.state.handlers = handlers[:around]
    at.read(node.finalbody)
    at.state.handlers = handlers


def _rescue(at: Interpreter, handler: ast.ExceptHandler) -> None:
    if at.state.cur is not None:
        caught = f" {Words(handler.type)}" if handler.type is not None else ""
        _skips(at, f"except{caught}", handler)
    if handler.name:
        at.state.frame.vars[handler.name] = at.fresh(handler, handler.name)
    at.state.rescuing += 1
    at.read(handler.body)
    at.state.rescuing -= 1


#: What takes memory, of which there may be none.
_COMPUTE = frozenset({e.FORWARD, e.SCALE, e.BACKWARD})


def _raising(at: Interpreter, places: list[int]) -> list[int]:
    """The places of a ``try`` after which something may raise.

    What unscales, clips, steps, updates and clears has the memory that it needs: until something computes, only what
    says so raises.
    """
    kept: list[int] = []
    stepped: list[int] = []
    updated: list[int] = []
    for place in places:
        event = at.draft.nodes[place].event
        kind = event.kind if event is not None else None
        if kind == e.UPDATE:
            stepped.clear()
        elif kind == e.ZERO_GRAD:
            updated.clear()
        elif kind in _COMPUTE:
            kept += updated
            updated.clear()
        if kind is not None and (stepped or kind in (e.SCALER_STEP, e.UNSCALE)):
            stepped.append(place)
        elif kind is not None and (updated or kind in (e.STEP, e.UPDATE)):
            updated.append(place)
        else:
            kept.append(place)
    return kept + stepped + updated


def _only_raised(at: Interpreter, node: ast.Try, raised: list[int]) -> None:
    at.state.cur = at.draft.join(raised)
    at.read(node.finalbody)
    if at.state.handlers and at.state.cur is not None:
        at.state.handlers[-1].append(at.state.cur)
        # The place is needed yet: what leads to it cannot be left out of the graph.
        at.draft.happened += 1
    at.state.cur = None


def _escapes(
    at: Interpreter, node: ast.Try, escaping: list[tuple[list[int], int, int]], raised: list[int], depth: int | None
) -> None:
    """Have what may be raised in a ``try`` do what its ``finally`` does before it comes to who catches it outside.

    ``depth`` is that of the regions around it, where it has entered some of its own.
    """
    after = at.state.cur, at.state.frame.vars, at.state.heap
    at.state.frame.vars, at.state.heap = dict(after[1]), dict(after[2])
    places, before, end = escaping[-1]
    leading = list(dict.fromkeys([*places[before:end], *raised]))
    for places, before, end in escaping:
        del places[before:end]
    if at.state.loops and any(_steps(at, place) for place in leading):
        leading = _said(at, leading)
    at.state.cur = at.draft.join(_raising(at, leading))
    if depth is not None:
        at.emit(e.AUTOCAST_EXIT, node.finalbody[0], depth=depth)
    at.state.escaping = True
    at.read(node.finalbody)
    at.state.escaping = False
    if at.state.cur is not None:
        for places, _, _ in escaping:
            places.append(at.state.cur)
    at.state.cur, at.state.frame.vars, at.state.heap = after


def _for(at: Interpreter, node: ast.For | ast.AsyncFor) -> None:
    given = at.evaluate(node.iter)
    items, iterable = _few_items(at, given), gone_over(given)
    if items is None and _stands_for_all(at, node, iterable):
        # What is done to every parameter, or to every optimizer, is done to the one that stands for them all.
        items = [each_of(at, iterable, node.iter)]
    if items is not None:
        _unrolled(at, node, items)
        return
    pieces = iterable.pieces or (
        iterable.iterates == "range" and not selects(node.body, node.target) and _draws_anew(at, node)
    )

    def bind() -> int | None:
        assign(at, node.target, element_of(at, iterable, node.iter), anew=False)
        return iterable.ended if isinstance(iterable, Generator) else None

    _loop(at, node, bind, None, pieces=pieces)


def _stands_for_all(at: Interpreter, node: ast.For | ast.AsyncFor, iterable: Value) -> bool:
    """Whether a loop does the same to each of what it goes over, so that one turn tells what it does to all."""
    return (
        _is_of_params(iterable)
        or _is_of_things(iterable)
        or any(_is_object(at, name) for name in names_in(node.target))
        or _chooses_object(at, node)
    )


def _is_object(at: Interpreter, name: str | None) -> bool:
    """Whether this file uses what a name stands for as an optimizer or a scaler."""
    return at.state.frame.module.uses.get(name or "") in OBJECTS


class _Told(dict[ast.AST, list[ast.AST]]):
    """The assignments and calls of loops, without those of functions defined in them."""


def _chooses_object(at: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Whether the variable of a loop picks an optimizer out of several, another one in each turn."""
    if not OBJECTS.intersection(at.state.frame.module.uses.values()):
        return False
    names = names_in(node.target)
    told = at.of_file(_Told)
    if node not in told:
        told[node] = [inner for inner in _own_nodes(node.body) if isinstance(inner, (ast.Assign, ast.Call))]
    found = (_chosen_object(at, inner) for inner in told[node])
    return any(chosen is not None and not names.isdisjoint(names_in(chosen.slice)) for chosen in found)


def _chosen_object(at: Interpreter, node: ast.AST) -> ast.Subscript | None:
    """The item of a container that is used as an optimizer or a scaler, by the name it gets or where it stands."""
    chosen: ast.expr | None = None
    match node:
        case ast.Assign(value=ast.Subscript() as value, targets=targets):
            chosen = value if any(_is_object(at, chain(target)) for target in targets) else None
        case ast.Call(func=ast.Attribute(attr="step" | "unscale_"), args=[ast.Subscript() as value, *_]):
            chosen = value
        case ast.Call(func=ast.Attribute(attr="zero_grad", value=ast.Subscript() as value)):
            chosen = value
    return chosen if isinstance(chosen, ast.Subscript) else None


def _unrolled(at: Interpreter, node: ast.For | ast.AsyncFor, items: list[Value]) -> None:
    """A loop over a few known items: its body once for each."""
    breaks: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]] = []
    for number, item in enumerate(items):
        if at.state.cur is None:
            break
        loop = Loop(-1, len(at.state.unwind))
        loop.item = number
        at.state.loops.append(loop)
        base = len(at.state.path)
        assign(at, node.target, item)
        at.read(node.body)
        del at.state.path[base:]
        at.state.loops.pop()
        _gather(at, [*loop.continues])
        breaks.extend(loop.breaks)
    at.read(node.orelse)
    _gather(at, breaks)


def _gather(at: Interpreter, ends: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]]) -> None:
    """Let other ways meet the one being read."""
    for cur, variables, heap in ends:
        if at.state.cur is None:
            at.state.cur, at.state.frame.vars, at.state.heap = cur, variables, heap
        else:
            at.state.cur = at.draft.join((at.state.cur, cur))
            at.state.frame.vars = {**variables, **at.state.frame.vars}
            at.state.heap = {**heap, **at.state.heap}


def _while(at: Interpreter, node: ast.While) -> None:
    _loop(at, node, lambda: None, node.test, pieces=any(loop.node for loop in at.state.loops) and draws(node.body))


def _draws_anew(at: Interpreter, node: ast.For | ast.AsyncFor) -> bool:
    """Whether each turn of a loop works on data that it draws itself, not on those of the turn around it."""
    if draws(node.body):
        return True
    outer = at.state.loops[-1] if at.state.loops else None
    if outer is None or outer.node is None or outer.frame is not at.state.frame:
        return False
    return not any(
        _is_data(at.state.frame.vars.get(name)) for name in loaded(node.body) & stored_beside(outer.node, node)
    )


def _loop(
    at: Interpreter,
    node: ast.For | ast.AsyncFor | ast.While,
    bind: Callable[[], int | None],
    test: ast.expr | None,
    *,
    pieces: bool,
) -> None:
    if at.state.cur is None:
        return
    body, orelse = node.body, node.orelse
    loop = Loop(_loop_key(at, node), len(at.state.unwind))
    loop.node, loop.frame = node, at.state.frame
    loop.pieces = pieces and not keeps_gradients(body)
    mark = at.draft.mark(at.state.cur)
    _carry(at, body, loop, bind)
    head = at.draft.node()
    asked_first = at.tests.test(("first turn", loop.key), "", None, frozenset())
    asked_first.turn = True
    first = asked_first.key
    _turn(at, head, first, True)
    at.draft.heads.append((head, loop.key))
    before_vars, before_heap = at.state.frame.vars, at.state.heap
    at.state.frame.vars, at.state.heap = dict(before_vars), dict(before_heap)
    at.state.loops.append(loop)
    base = len(at.state.path)
    at.state.cur = head
    at.state.cur, past = branch(at, condition(at, test)) if test is not None else _over_data(at, head, first)
    past = at.draft.join((past, bind()))
    raising = [(places, len(places)) for places in at.state.handlers]
    at.read(body)
    _raises_out_of_training(at, raising)
    del at.state.path[base:]
    _gather(at, loop.continues)
    _turn(at, head, first, False)
    open_ended = _leaves_the_step(at, head, loop)
    after = (at.state.cur, at.state.frame.vars, at.state.heap)
    at.state.loops.pop()
    at.state.cur = past
    if not open_ended and at.draft.happened != mark.happened and at.tests.counts_turns(loop.key):
        at.emit(e.LOOP_EXIT, body[0])
    if after[0] is not None:
        at.state.frame.vars, at.state.heap = {**before_vars, **after[1]}, {**before_heap, **after[2]}
    else:
        at.state.frame.vars, at.state.heap = dict(before_vars), dict(before_heap)
    # The loop's own jumps are settled; those of its else belong to a loop around it.
    at.draft.jumped = mark.jumped
    at.read(orelse)
    _gather(at, loop.breaks)
    if open_ended:
        at.emit(e.LOOP_EXIT, body[0], complete=True)
    at.state.cur = at.draft.forget(mark, at.state.cur)


def _raises_out_of_training(at: Interpreter, raising: list[tuple[list[int], int]]) -> None:
    """Let go of what may raise in a loop that trains: who catches that outside of the loop starts anew, or gives up.

    What the code itself raises leads there all the same.
    """
    for places, before in raising:
        if any(_steps(at, place) for place in places[before:]):
            places[before:] = _said(at, places[before:])


def _steps(at: Interpreter, place: int) -> bool:
    event = at.draft.nodes[place].event
    return event is not None and event.kind in (e.SCALER_STEP, e.STEP)


def _said(at: Interpreter, places: list[int]) -> list[int]:
    """Those of the places where something may be raised at which the code itself raises it."""
    return [place for place in places if at.draft.nodes[place].event is None]


def _loop_key(at: Interpreter, node: ast.AST) -> int:
    """The number of the loop at a place, in the turns of the loops around it that are read one by one."""
    place = (at.place_key(node), tuple((loop.key, loop.item) for loop in at.state.loops))
    key = at.loop_keys.get(place)
    if key is None:
        at.serial += 1
        key = at.loop_keys[place] = at.serial
    return key


def _over_data(at: Interpreter, head: int, first: int) -> tuple[int, int]:
    """The way into a loop over data and past it: if they are empty nothing is learnt, so it turns at least once."""
    entry, past = at.draft.node(), at.draft.node()
    at.draft.link(head, entry)
    at.draft.link(head, past, first, False)
    return entry, past


def _leaves_the_step(at: Interpreter, head: int, loop: Loop) -> bool:
    """Whether a loop that was just read runs backward and leaves the step to what follows; its events say so."""
    events = [node.event for node in at.draft.nodes[head:] if node.event is not None]
    backwards = [event for event in events if event.kind == e.BACKWARD]
    if not backwards or any(event.facts.get("opaque") or event.facts.get("given") for event in backwards):
        return False
    if any(event.kind in (e.SCALER_STEP, e.STEP) or e.STEPS in event.facts.get("about", ()) for event in events):
        return False
    for event in events:
        if event.kind == e.LOOP_EXIT:
            # The window that its loop stands in goes on.
            event.facts["within"] = True
        elif event.kind == e.BACKWARD and (loop.pieces or "inside" not in event.facts):
            event.facts["inside"] = e.MICRO if loop.pieces else e.LOOSE
    return True


def _turn(at: Interpreter, head: int, first: int, truth: bool) -> None:
    """Lead on to a turn of a loop, which is the first or is not."""
    if at.state.cur is not None:
        before = at.draft.node()
        at.draft.link(at.state.cur, before)
        at.draft.nodes[before].forgets |= 1 << first
        at.draft.link(before, head, first, truth)


def _carry(at: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]) -> None:
    """Let go of what a turn of the loop changes and the next one finds.

    A variable that holds a thing, or None, is worth a trial turn that shows what it holds after; others become
    unknown.
    """
    names, attributes = stored_names(body)
    carried = [name for name in names if name in at.state.frame.vars]
    held = [key for key in at.state.heap if key[1] in attributes] if attributes else []
    values = [*(at.state.frame.vars[name] for name in carried), *(at.state.heap[key] for key in held)]
    if at.spent < 4_000 and any(_may_become_thing(value) for value in values):
        after_vars, after_heap = _trial(at, body, loop, bind)
    else:
        after_vars, after_heap = {}, {}
    key = frozenset((loop.key,))
    for name in carried:
        value = at.state.frame.vars[name]
        at.state.frame.vars[name] = _carried(at, value, after_vars.get(name), name, key)
    for place in held:
        at.store(*place, _carried(at, at.state.heap[place], after_heap.get(place), place[1], key))


def _carried(at: Interpreter, value: Value, after: Value | None, name: str, key: frozenset[int]) -> Value:
    if _may_become_thing(value):
        if after is None or after is value or isinstance(after, Opaque):
            return value
        formula = at.ask(("first turn", *key), "", frozenset())
        return join_values(at, formula, value, after, name)
    if not isinstance(value, (Const, Opaque)):
        return value.kept()
    at.serial += 1
    made = at.opaque(("carried", at.serial, name), name, key)
    start = value.value
    if isinstance(start, int) and not isinstance(start, bool):
        made.counter, made.first = True, start
    elif value.counter:
        made.counter, made.first = True, None if value.first is None else value.first + value.offset
    made.fact = value.fact
    return made


def _trial(
    at: Interpreter, body: list[ast.stmt], loop: Loop, bind: Callable[[], int | None]
) -> tuple[dict[str, Value], dict[tuple[int, str], Value]]:
    """Read a turn of a loop without keeping its events."""
    after: list[Any] = []

    def turn() -> None:
        trial = Loop(loop.key, len(at.state.unwind))
        at.state.loops.append(trial)
        bind()
        at.read(body)
        _gather(at, trial.continues)
        after.extend((at.state.frame.vars, at.state.heap))

    at.discarded(turn)
    return after[0], after[1]


def holds_autocast(value: Value) -> bool:
    return any(option.role == "autocast" for option in value.alternatives())


def _may_become_thing(value: Value) -> bool:
    """Whether a variable that a loop assigns may hold something the protocol cares for."""
    return value.value is None or isinstance(value, (Ref, Choice, Instance, NullContext, Params, FunctionValue))


def _few_items(at: Interpreter, value: Value) -> list[Value] | None:
    if value.iterates == "enumerate" and isinstance(value, Opaque):
        first, items = value.first, _few_items(at, at.of_file(Enumerated)[value.key])
        # Batches that are written out, as in a test, are data: what is true of each turn is not to be told from few.
        if items is None or first is None or all(_is_data(item) for item in items):
            return None
        return [Sequence([Const(first + place), item]) for place, item in enumerate(items)]
    if isinstance(value, Mapping):
        # By its keys each is got out again.
        held = _few_items(at, Sequence(list(value.items.values()), open=value.open))
        return None if held is None else [Const(key) for key in value.items]
    if not isinstance(value, Sequence) or value.open or not 0 < len(value.items) <= UNROLL:
        return None
    worth = (Ref, Choice, Instance, Sequence, FunctionValue)
    return value.items if any(isinstance(item, worth) for item in value.items) else None


def _is_of_params(value: Value) -> bool:
    if isinstance(value, Sequence) and value.items:
        return all(_is_of_params(item) for item in value.items if not isinstance(item, Opaque)) and any(
            _is_of_params(item) for item in value.items
        )
    return isinstance(value, Params)


def _is_data(value: Value | None) -> bool:
    """Whether a variable may hold what a model is trained on."""
    if isinstance(value, Opaque):
        return not value.counter
    return isinstance(value, (Tensor, Sequence))


def _is_of_things(value: Value) -> bool:
    """Whether a sequence of unknown length holds one thing, as a comprehension leaves it, that stands for them all."""
    if not isinstance(value, Sequence) or not value.open or len(value.items) != 1:
        return False
    (item,) = value.items
    parts = item.items if isinstance(item, Sequence) and not item.open else [item]
    return any(part.role in OBJECTS for part in parts)


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def _as_comparison(subject: ast.expr, pattern: ast.MatchValue | ast.MatchSingleton) -> ast.expr:
    """The comparison that a case asks, so that it is the same question as an ``if``'s."""
    value = pattern.value if isinstance(pattern, ast.MatchValue) else ast.Constant(pattern.value)
    operator = ast.Eq() if isinstance(pattern, ast.MatchValue) else ast.Is()
    comparison = ast.copy_location(ast.Compare(subject, [operator], [value]), pattern)
    return ast.fix_missing_locations(comparison)


def _own_nodes(statements: list[ast.stmt]) -> list[ast.AST]:
    """The nodes of statements in their order, without those of functions defined in them."""
    found: list[ast.AST] = []
    stack: list[ast.AST] = [*reversed(statements)]
    while stack:
        node = stack.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            found.append(node)
            stack.extend(reversed(children(node)))
    return found


def register(handlers: Handlers) -> None:
    handlers.statements.update(
        {
            ast.Expr: _expression,
            ast.Assign: _assign,
            ast.AnnAssign: _ann_assign,
            ast.AugAssign: augment,
            ast.Return: _return,
            ast.Raise: _raise,
            ast.Break: _jump,
            ast.Continue: _jump,
            ast.Delete: _delete,
            ast.Assert: _assert,
            ast.Import: _import,
            ast.ImportFrom: _import_from,
            ast.FunctionDef: _function,
            ast.AsyncFunctionDef: _function,
            ast.ClassDef: _class,
            ast.If: _if,
            ast.Match: _match,
            ast.Try: _try,
            ast.For: _for,
            ast.AsyncFor: _for,
            ast.While: _while,
        }
    )
    if hasattr(ast, "TryStar"):
        handlers.statements[ast.TryStar] = _try
