"""Statements: how control moves through a function, and what leaving a block undoes."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items

from ...protocol import events as e
from ...protocol.words import Words, chain
from ..libraries.precision import Precision
from ..project.module import Imported, catches_import, stored_names
from ..project.syntax import children, walk
from .conditions import Formula, both, either, negate
from .imports import Modules
from .microbatches import draws, keeps_gradients, loaded, selects, stored_beside
from .state import Loop, Open
from .values import (
    NONE,
    Choice,
    ClassValue,
    Const,
    Frame,
    FunctionValue,
    GradMode,
    HelperContext,
    Instance,
    Mapping,
    Named,
    NoSync,
    NullContext,
    Opaque,
    Params,
    Pool,
    Ref,
    Sequence,
    StackContext,
    Tensor,
    Value,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Literal sequences up to this length are read item by item.
UNROLL = 4


class Flow(Modules):
    """Reads statements. What expressions mean is left to :class:`~.expressions.Expressions`."""

    @abstractmethod
    def evaluate(self, node: ast.expr) -> Value: ...

    precision: Precision

    @abstractmethod
    def identity(self, value: Value) -> object: ...

    @abstractmethod
    def condition(self, node: ast.expr) -> Formula: ...

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None: ...

    @abstractmethod
    def found(self, target: ast.expr, value: Opaque) -> None: ...

    @abstractmethod
    def is_stepped(self, target: ast.expr) -> bool: ...

    @abstractmethod
    def augment(self, node: ast.AugAssign) -> None: ...

    @property
    def uses(self) -> dict[str, str]:
        """Texts of expressions that the file being read uses as scalers, optimizers or modules, and which."""
        return self.state.frame.module.uses

    @abstractmethod
    def each_of(self, value: Value, node: ast.expr) -> Value: ...

    @abstractmethod
    def elements(self, value: Value, node: ast.expr) -> Value: ...

    @abstractmethod
    def call_value(self, func: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value: ...

    @abstractmethod
    def call_method(self, receiver: Value, name: str, args: list[Value], node: ast.AST) -> Value: ...

    @abstractmethod
    def opened(self, region: Open, node: ast.AST) -> None: ...

    @abstractmethod
    def told_of_scale(self, call: ast.expr) -> None: ...

    def read(self, statements: Items[ast.stmt]) -> None:
        """Read a block; stops where its end cannot be reached."""
        base, shims = len(self.state.path), self.state.shims
        for statement in statements:
            if self.state.cur is None:
                break
            self.spent += 1
            if self.state.frame.module is not self.module:
                self.abroad += 1
            handler = _STATEMENTS.get(type(statement))
            if handler is not None:
                if (self.state.frame.function or self.state.frame.module).fragile:
                    self.precision.read(statement)
                handler(self, statement)
        del self.state.path[base:]
        self.state.shims = shims

    # Simple statements.

    def _expression(self, node: ast.Expr) -> None:
        value = self.evaluate(node.value)
        self.told_of_scale(node.value)
        if isinstance(value, Ref) and value.role == "autocast" and isinstance(node.value, ast.Call):
            self.emit(
                e.SCOPE_LOST, node.value, value.thing.key, how="expression", names={"context": self.words(node.value)}
            )

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            if isinstance(value, Tensor) and self.is_stepped(target):
                # A method of a module makes optimizers, too.
                value = self.fresh(node.value)
            self.assign(target, value)
            if isinstance(node.value, ast.Call) and isinstance(value, Opaque):
                self.found(target, value)

    def _ann_assign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _aug_assign(self, node: ast.AugAssign) -> None:
        self.augment(node)

    def _return(self, node: ast.Return) -> None:
        value = self.evaluate(node.value) if node.value is not None else NONE
        self.leave(self.state.frame.unwind_base)
        if self.state.cur is not None:
            here = self.state.path[self.state.frame.path_base :]
            # Past some depth, which way a function returned is a question of its own.
            condition = (
                self.short(both(*here)) if len(here) <= 8 else self.ask(("return", id(node)), "", self.turning())
            )
            self.draft.leave(self.state.frame.returns, (self.state.cur, condition, value, self.state.heap))
            self.draft.returned += 1
        self.state.cur = None

    def _raise(self, node: ast.Raise) -> None:
        for child in (node.exc, node.cause):
            if child is not None:
                self.evaluate(child)
        if self.state.handlers and self.state.cur is not None:
            here = self.node()
            self.link(self.state.cur, here)
            self.state.handlers[-1].append(here)
        self.draft.happened += 1
        self.state.cur = None

    def _break(self, node: ast.Break) -> None:
        if self.state.loops:
            loop = self.state.loops[-1]
            self.leave(loop.unwind_base)
            if self.state.cur is not None:
                self.draft.leave(loop.breaks, (self.state.cur, self.state.frame.vars, self.state.heap))
        self.draft.jumped += 1
        self.state.cur = None

    def _continue(self, node: ast.Continue) -> None:
        if self.state.loops:
            loop = self.state.loops[-1]
            self.leave(loop.unwind_base)
            if self.state.cur is not None:
                self.draft.leave(loop.continues, (self.state.cur, self.state.frame.vars, self.state.heap))
        self.draft.jumped += 1
        self.state.cur = None

    def leave(self, base: int) -> None:
        """Do what leaving the open blocks above ``base`` does: exits of ``with``, ``finally`` blocks."""
        saved = self.state.unwind
        for i in range(len(saved) - 1, base - 1, -1):
            if self.state.cur is None:
                break
            self.state.unwind = saved[:i]
            saved[i]()
        self.state.unwind = saved

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.state.frame.vars.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                holder, place = self.evaluate(target.value), self.evaluate(target.slice)
                if isinstance(holder, Mapping) and isinstance(place, Const):
                    holder.items.pop(place.value, None)

    def _assert(self, node: ast.Assert) -> None:
        formula = self.condition(node.test)
        if not isinstance(formula, bool):
            yes, _ = self.lower(formula)
            self.state.cur = yes
            self.state.path.append(formula)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            head = alias.name.partition(".")[0]
            self.state.frame.vars[alias.asname or head] = self.imported(
                Imported(alias.name if alias.asname else head, "", 0)
            )

    def _import_from(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name != "*":
                origin = Imported(node.module or "", alias.name, node.level)
                self.state.frame.vars[alias.asname or alias.name] = self.imported(origin)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self.state.frame.module.functions[node]
        self.captured.append(self.state.frame)
        value: Value = FunctionValue(
            function, self.state.frame.parent if self.state.frame.of_class else self.state.frame
        )
        for decorator in reversed(node.decorator_list):
            value = self.decorate(decorator, value, node)
        self.state.frame.vars[node.name] = value
        if isinstance(value, FunctionValue):
            self.defined[node] = value

    def decorate(self, decorator: ast.expr, value: Value, node: ast.AST) -> Value:
        """What a decorator makes of a function. One that is not understood is taken to change nothing."""
        if isinstance(decorator, ast.Name) and decorator.id in ("staticmethod", "classmethod", "property"):
            return value
        applied = self.evaluate(decorator)
        if isinstance(applied, Named):
            self.call_value(applied, [], {}, decorator)
            if applied.name in ("contextlib.contextmanager", "contextlib.asynccontextmanager") and isinstance(
                value, FunctionValue
            ):
                value.function.manager = True
        if not isinstance(value, FunctionValue):
            return value
        if isinstance(applied, (Ref, Choice)) and _holds_autocast(applied):
            function = value.function
            if function.generator or isinstance(function.node, ast.AsyncFunctionDef):
                words = self.words(decorator)
                key = applied.thing.key if isinstance(applied, Ref) else None
                self.emit(
                    e.SCOPE_LOST, decorator, key, how="generator", names={"context": words, "function": function.name}
                )
                return value
            return FunctionValue(function, value.frame, value.receiver, (*value.wrappers, applied))
        if isinstance(applied, GradMode):
            return FunctionValue(value.function, value.frame, value.receiver, (*value.wrappers, applied))
        if isinstance(applied, FunctionValue):
            made = self.call_value(applied, [value], {}, node)
            return made if isinstance(made, FunctionValue) else value
        return value

    def _class(self, node: ast.ClassDef) -> None:
        cls = self.state.frame.module.classes[node]
        self.state.frame.vars[node.name] = ClassValue(cls, self.state.frame)
        if not cls.words:
            return
        outer, frame = self.state.frame, Frame(self.state.frame.function, self.state.frame, self.state.frame.caller)
        frame.of_class = True
        self.captured.append(frame)
        frame.path_base, frame.unwind_base = len(self.state.path), len(self.state.unwind)
        self.state.frame = frame
        self.read(node.body)
        self.state.frame = outer
        self.class_vars[node] = frame.vars

    # Forks.

    def _if(self, node: ast.If) -> None:
        if _is_main_guard(node.test):
            self.read(node.body)
            return
        formula = self.condition(node.test)
        shim = is_version_guard(node.test) or self._asks_for_a_version(node.test)
        self.state.shims += shim
        yes, no = self.fork(formula, lambda: self.read(node.body), lambda: self.read(node.orelse))
        self.state.shims -= shim
        if not isinstance(formula, bool) and yes != no:
            # One arm came to its end: what follows stands under the other's condition.
            self.state.shims += shim
            self.state.path.append(formula if yes else negate(formula))

    def _asks_for_a_version(self, test: ast.expr) -> bool:
        """Whether a test asks for a version that was imported by another name."""
        values = [self.look_up(part.id) for part in walk(test) if isinstance(part, ast.Name)]
        return any(isinstance(value, Named) and "version" in value.name.lower() for value in values)

    def _match(self, node: ast.Match) -> None:
        subject = self.evaluate(node.subject)
        loops = subject.loops

        def case(index: int) -> None:
            if index == len(node.cases):
                return
            arm = node.cases[index]
            for child in walk(arm.pattern):
                name = getattr(child, "name", None) or getattr(child, "rest", None)
                if isinstance(name, str):
                    self.state.frame.vars[name] = self.fresh(arm.pattern, name)
            catch_all = isinstance(arm.pattern, ast.MatchAs) and arm.pattern.pattern is None and arm.guard is None
            if catch_all:
                formula: Formula = True
            elif isinstance(arm.pattern, (ast.MatchValue, ast.MatchSingleton)):
                formula = self.condition(_as_comparison(node.subject, arm.pattern))
            else:
                question = ("case", self.identity(subject), ast.dump(arm.pattern))
                formula = self.ask(question, Words(arm.pattern), loops, arm.pattern)
            if arm.guard is not None:
                formula = both(formula, self.condition(arm.guard))
            self.fork(formula, lambda: self.read(arm.body), lambda: case(index + 1))

        case(0)

    def _try(self, node: ast.Try) -> None:
        shim = any(catches_import(handler) for handler in node.handlers)
        self.state.trying += shim
        before_vars, before_heap, before_cur = dict(self.state.frame.vars), dict(self.state.heap), self.state.cur
        raised: list[int] = [self.state.cur] if self.state.cur is not None else []
        base = len(self.state.unwind)
        if node.finalbody:
            frame = self.state.frame
            self.state.unwind = [*self.state.unwind, lambda: self._in_frame(frame, lambda: self.read(node.finalbody))]
        self.state.handlers.append(raised)
        self.state.guarded += bool(node.handlers)
        depth, entered = self.state.depth, self.state.entered
        self.read(node.body)
        self.state.guarded -= bool(node.handlers)
        self.state.handlers.pop()
        if self.state.cur is not None:
            self.read(node.orelse)
        self.state.trying -= shim
        self.state.shims += shim
        ends = [(self.state.cur, self.state.frame.vars, self.state.heap)]
        in_try = {**before_vars, **self.state.frame.vars}
        for handler in node.handlers:
            self.state.cur = self.join(self._raising(raised))
            if self.state.entered != entered:
                self.emit(e.AUTOCAST_EXIT, handler, depth=depth)
            self.state.frame.vars, self.state.heap = dict(in_try), dict(before_heap)
            if handler.name:
                self.state.frame.vars[handler.name] = self.fresh(handler, handler.name)
            self.state.rescuing += 1
            self.read(handler.body)
            self.state.rescuing -= 1
            ends.append((self.state.cur, self.state.frame.vars, self.state.heap))
        self.state.unwind = self.state.unwind[:base]
        self.state.shims -= shim
        live = [end for end in ends if end[0] is not None]
        if not live:
            self.state.cur = None
            if node.finalbody and before_cur is not None and raised and not node.handlers:
                self._only_raised(node, raised)
            return
        cur, variables, heap = live[0]
        for other in live[1:]:
            # Which way it went cannot be asked again; the body of the try is what the values are taken from.
            cur = self.join((cur, other[0]))
            variables = {**other[1], **variables}
            heap = {**other[2], **heap}
        self.state.cur, self.state.frame.vars, self.state.heap = cur, variables, heap
        self.read(node.finalbody)

    def _raising(self, places: list[int]) -> list[int]:
        """The places of a ``try`` after which something may raise: between step and update only what says so does."""
        kept: list[int] = []
        stepped: list[int] = []
        for place in places:
            event = self.draft.nodes[place].event
            if event is not None and event.kind == e.UPDATE:
                stepped.clear()
            if event is not None and (stepped or event.kind == e.SCALER_STEP):
                stepped.append(place)
            else:
                kept.append(place)
        return kept + stepped

    def _only_raised(self, node: ast.Try, raised: list[int]) -> None:
        self.state.cur = self.join(raised)
        self.read(node.finalbody)
        if self.state.handlers and self.state.cur is not None:
            self.state.handlers[-1].append(self.state.cur)
            # The place is needed yet: what leads to it cannot be left out of the graph.
            self.draft.happened += 1
        self.state.cur = None

    def _in_frame(self, frame: Frame, act: Callable[[], None]) -> None:
        saved = self.state.frame
        self.state.frame = frame
        act()
        self.state.frame = saved

    # Loops.

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        iterable = self.evaluate(node.iter)
        items = _few_items(iterable)
        if items is None and (
            _is_of_params(iterable)
            or _is_of_things(iterable)
            or self._binds_thing(node.target)
            or self._chooses_thing(node)
        ):
            # What is done to every parameter, or to every optimizer, is done to the one that stands for them all.
            items = [self.each_of(iterable, node.iter)]
        if items is not None:
            self._unrolled(node, items)
            return
        pieces = iterable.pieces or (
            isinstance(iterable, Opaque)
            and iterable.iterates == "range"
            and not selects(node.body, node.target)
            and self._draws_anew(node)
        )
        self._loop(node, lambda: self.assign(node.target, self.elements(iterable, node.iter)), None, pieces=pieces)

    def _binds_thing(self, target: ast.expr) -> bool:
        return any(
            isinstance(part, ast.Name) and self.uses.get(part.id) in ("optimizer", "scaler") for part in walk(target)
        )

    def _chooses_thing(self, node: ast.For | ast.AsyncFor) -> bool:
        """Whether the variable of a loop picks an optimizer out of several, another one in each turn."""
        if "optimizer" not in self.uses.values() and "scaler" not in self.uses.values():
            return False
        names = {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
        for inner in _own_nodes(node.body):
            if isinstance(inner, ast.Assign) and isinstance(inner.value, ast.Subscript):
                index = {part.id for part in walk(inner.value.slice) if isinstance(part, ast.Name)}
                thing = any(self.uses.get(chain(target) or "") in ("optimizer", "scaler") for target in inner.targets)
                if thing and index & names:
                    return True
        return False

    def _unrolled(self, node: ast.For | ast.AsyncFor, items: list[Value]) -> None:
        """A loop over a few known items: its body once for each."""
        breaks: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]] = []
        for item in items:
            if self.state.cur is None:
                break
            loop = Loop(-1, len(self.state.unwind))
            self.state.loops.append(loop)
            base = len(self.state.path)
            self.assign(node.target, item)
            self.read(node.body)
            del self.state.path[base:]
            self.state.loops.pop()
            self._gather([*loop.continues])
            breaks.extend(loop.breaks)
        self._gather(breaks)

    def _gather(self, ends: list[tuple[int, dict[str, Value], dict[tuple[int, str], Value]]]) -> None:
        """Let other ways meet the one being read."""
        for cur, variables, heap in ends:
            if self.state.cur is None:
                self.state.cur, self.state.frame.vars, self.state.heap = cur, variables, heap
            else:
                self.state.cur = self.join((self.state.cur, cur))
                self.state.frame.vars = {**variables, **self.state.frame.vars}
                self.state.heap = {**heap, **self.state.heap}

    def _while(self, node: ast.While) -> None:
        self._loop(
            node, lambda: None, node.test, pieces=any(loop.node for loop in self.state.loops) and draws(node.body)
        )

    def _draws_anew(self, node: ast.For | ast.AsyncFor) -> bool:
        """Whether each turn of a loop works on data that it draws itself, not on those of the turn around it."""
        if draws(node.body):
            return True
        outer = self.state.loops[-1] if self.state.loops else None
        if outer is None or outer.node is None or outer.frame is not self.state.frame:
            return False
        return not any(
            _is_data(self.state.frame.vars.get(name)) for name in loaded(node.body) & stored_beside(outer.node, node)
        )

    def _loop(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        bind: Callable[[], None],
        test: ast.expr | None,
        *,
        pieces: bool,
    ) -> None:
        if self.state.cur is None:
            return
        body, orelse = node.body, node.orelse
        self.serial += 1
        loop = Loop(self.serial, len(self.state.unwind))
        loop.node, loop.frame = node, self.state.frame
        loop.pieces = pieces and not keeps_gradients(body)
        asked = len(self.tests.asked)
        mark = self.mark()
        self._carry(body, loop, bind)
        head = self.node()
        asked_first = self.tests.test(("first turn", loop.key), "", None, frozenset())
        asked_first.turn = True
        first = asked_first.key
        self._turn(head, first, True)
        self.draft.heads.append((head, loop.key))
        before_vars, before_heap = self.state.frame.vars, self.state.heap
        self.state.frame.vars, self.state.heap = dict(before_vars), dict(before_heap)
        self.state.loops.append(loop)
        base = len(self.state.path)
        self.state.cur = head
        past: int | None
        if test is None:
            # A loop over data that is empty teaches nothing: it is taken to turn at least once.
            entry, past = self.node(), self.node()
            self.link(head, entry)
            self.link(head, past, first, False)
            self.state.cur = entry
        else:
            self.state.cur, past = self.lower(self.condition(test))
        bind()
        self.read(body)
        del self.state.path[base:]
        self._gather(loop.continues)
        self._turn(head, first, False)
        open_ended = self._leaves_the_step(head, loop)
        after = (self.state.cur, self.state.frame.vars, self.state.heap)
        self.state.loops.pop()
        self.state.cur = past
        counted = any(t.counts and loop.key in self.tests.loops[t.key] for t in self.tests.asked[asked:])
        if counted and not open_ended and self.draft.happened != mark.happened:
            self.emit(e.LOOP_EXIT, body[0])
        if after[0] is not None:
            self.state.frame.vars, self.state.heap = {**before_vars, **after[1]}, {**before_heap, **after[2]}
        else:
            self.state.frame.vars, self.state.heap = dict(before_vars), dict(before_heap)
        # The loop's own jumps are settled; those of its else belong to a loop around it.
        self.draft.jumped = mark.jumped
        self.read(orelse)
        self._gather(loop.breaks)
        if open_ended:
            self.emit(e.LOOP_EXIT, body[0], complete=True)
        self.forget(mark)

    def _leaves_the_step(self, head: int, loop: Loop) -> bool:
        """Whether a loop that was just read runs backward and leaves the step to what follows; its events are told."""
        events = [node.event for node in self.draft.nodes[head:] if node.event is not None]
        backwards = [event for event in events if event.kind == e.BACKWARD]
        if not backwards or any(event.facts.get("opaque") for event in backwards):
            return False
        if any(event.kind in (e.SCALER_STEP, e.STEP, e.HANDOFF) for event in events):
            return False
        for event in backwards:
            if loop.pieces or "inside" not in event.facts:
                event.facts["inside"] = e.MICRO if loop.pieces else e.LOOSE
        for event in events:
            if event.kind == e.LOOP_EXIT:
                # The window that its loop stands in goes on.
                event.facts["within"] = True
        return True

    def _turn(self, head: int, first: int, truth: bool) -> None:
        """Lead on to a turn of a loop, which is the first or is not."""
        if self.state.cur is not None:
            before = self.node()
            self.link(self.state.cur, before)
            self.draft.nodes[before].forgets |= 1 << first
            self.link(before, head, first, truth)

    def _carry(self, body: list[ast.stmt], loop: Loop, bind: Callable[[], None]) -> None:
        """Let go of what a turn of the loop changes and the next one finds.

        A variable that holds a thing, or None, is worth a trial turn that shows what it holds after; others become
        unknown.
        """
        names, attributes = stored_names(body)
        carried = [name for name in names if name in self.state.frame.vars]
        held = [key for key in self.state.heap if key[1] in attributes]
        trial = any(_may_become_thing(self.state.frame.vars[name]) for name in carried)
        trial = trial or any(_may_become_thing(self.state.heap[key]) for key in held)
        if trial and self.spent < 4_000:
            after_vars, after_heap = self._trial(body, loop, bind)
        else:
            after_vars, after_heap = {}, {}
        key = frozenset((loop.key,))
        for name in carried:
            value = self.state.frame.vars[name]
            self.state.frame.vars[name] = self._carried(value, after_vars.get(name), name, key)
        for place in held:
            self.store(*place, self._carried(self.state.heap[place], after_heap.get(place), place[1], key))

    def _carried(self, value: Value, after: Value | None, name: str, key: frozenset[int]) -> Value:
        if isinstance(value, (Tensor, Sequence)):
            return value
        if _may_become_thing(value):
            if after is None or after is value or isinstance(after, Opaque):
                return value
            formula = self.ask(("first turn", *key), "", frozenset())
            return self.unite(formula, value, after, name)
        if isinstance(value, (Const, Opaque)):
            self.serial += 1
            made = self.opaque(("carried", self.serial, name), name, key)
            made.counter = (
                isinstance(value, Const) and isinstance(value.value, int) and not isinstance(value.value, bool)
            )
            made.counter = made.counter or (isinstance(value, Opaque) and value.counter)
            if made.counter and isinstance(value, Const) and isinstance(value.value, int):
                made.first = value.value
            elif isinstance(value, Opaque) and value.counter and value.first is not None:
                made.first = value.first + value.offset
            return made
        return value

    def _trial(
        self, body: list[ast.stmt], loop: Loop, bind: Callable[[], None]
    ) -> tuple[dict[str, Value], dict[tuple[int, str], Value]]:
        """Read a turn of a loop without keeping its events."""
        after: list[Any] = []

        def turn() -> None:
            trial = Loop(loop.key, len(self.state.unwind))
            self.state.loops.append(trial)
            bind()
            self.read(body)
            self._gather(trial.continues)
            after.extend((self.state.frame.vars, self.state.heap))

        self.discarded(turn)
        return after[0], after[1]

    # With.

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        self._with_items(node, 0)

    def _with_items(self, node: ast.With | ast.AsyncWith, index: int) -> None:
        if self.state.cur is None:
            return
        if index == len(node.items):
            self.read(node.body)
            return
        item = node.items[index]
        if _expects_error(item.context_expr):
            # What is written to raise is no mistake.
            found = self.precision.close()
            self.discarded(lambda: self.read(node.body))
            self.precision.reopen(found)
            return
        context = self.evaluate(item.context_expr)
        if isinstance(context, Choice) and any(isinstance(v, HelperContext) for _, v in context.options):
            context = next(v for _, v in context.options if isinstance(v, HelperContext))
        if isinstance(context, HelperContext):
            self._with_helper(context, item, node, index)
            return
        depth, opened = self.state.depth, len(self.state.open)
        self.enter(context, item.context_expr)
        if item.optional_vars is not None:
            self.assign(item.optional_vars, self.entered_value(context, item.context_expr))
        frame = self.state.frame
        base = len(self.state.unwind)
        self.state.unwind = [
            *self.state.unwind,
            lambda: self._in_frame(frame, lambda: self.exit(context, item.context_expr, depth)),
        ]
        if _holds_autocast(context):
            self._yields_inside(node, item.context_expr)
        entered = self.state.entered
        self._with_items(node, index + 1)
        if isinstance(context, StackContext) and self.state.entered != entered:
            self._yields_inside(node, item.context_expr)
        self.state.unwind = self.state.unwind[:base]
        self.exit(context, item.context_expr, depth)
        self.closed(context)
        if isinstance(context, Instance):
            del self.state.open[opened:]
        self.state.depth = depth

    def _yields_inside(self, node: ast.With | ast.AsyncWith, context: ast.expr) -> None:
        function = self.state.frame.function
        if function is None or self.state.frame.on_yield is not None:
            return
        if function.manager or any(n in ("asynccontextmanager", "fixture") for n in function.decorator_names()):
            return
        for inner in _own_nodes(node.body):
            if isinstance(inner, (ast.Yield, ast.YieldFrom, ast.Await)):
                self.emit(
                    e.SCOPE_LOST,
                    inner,
                    None,
                    how="yield",
                    names={"context": self.words(context), "function": function.name},
                )
                return

    def _with_helper(
        self, context: HelperContext, item: ast.withitem, node: ast.With | ast.AsyncWith, index: int
    ) -> None:
        """Read the body of a ``@contextmanager`` function, and the body of the ``with`` at its ``yield``."""
        outer = self.state.frame
        ran = False

        def at_yield(value: Value) -> None:
            # Of several places where it yields, each stands on a way of its own.
            nonlocal ran
            ran = True
            inner, self.state.frame = self.state.frame, outer
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
            self._with_items(node, index + 1)
            self.state.frame = inner

        self.follow(context.func, context.args, context.keywords, context.node, on_yield=at_yield)
        if not ran and self.state.cur is not None:
            self._with_items(node, index + 1)

    @abstractmethod
    def follow(
        self,
        func: FunctionValue,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        on_yield: Callable[[Value], None] | None = None,
    ) -> Value: ...

    @abstractmethod
    def words(self, node: ast.AST) -> Words: ...

    def enter(self, context: Value, node: ast.AST) -> None:
        """What entering a context does."""
        if isinstance(context, Choice):
            if _holds_autocast(context):
                self._enter_choice(context, node)
            elif _keeps_apart(context):
                self.state.apart.append(either(*(f for f, v in context.options if isinstance(v, NoSync))))
            return
        if isinstance(context, Ref) and context.role == "autocast":
            self._enter_autocast(context, node)
        elif isinstance(context, NoSync):
            self.state.apart.append(True)
        elif isinstance(context, GradMode):
            self.state.no_grad += 1
        elif isinstance(context, StackContext):
            context.depth, context.opened, context.apart = self.state.depth, len(self.state.open), len(self.state.apart)
        elif isinstance(context, Instance):
            self.call_method(context, "__enter__", [], node)
        elif isinstance(context, (Opaque, Named)):
            self.state.maybe_open += 1

    def _enter_choice(self, context: Choice, node: ast.AST) -> None:
        places: list[int | None] = []
        start = self.state.cur
        enabled: Formula = False
        device, dtype = "", ""
        for formula, value in context.options:
            self.state.cur = start
            if start is None:
                break
            yes, no = self.lower(formula)
            self.state.cur = yes
            self.state.path.append(formula)
            if isinstance(value, Ref) and value.role == "autocast":
                self._enter_autocast(value, node, remember=False)
                enabled = self.short(either(enabled, both(formula, value.enabled)))
                device = device or str(value.thing.facts.get("device", ""))
                known = str(value.thing.facts.get("dtype", "?"))
                dtype = known if dtype in ("", known) else "?"
            else:
                self.emit(e.AUTOCAST_ENTER, node, None, null=True, enabled=False, device="", dtype="", cache=True)
                self.state.entered += 1
            self.state.path.pop()
            places.append(self.state.cur)
            start = no
        self.state.cur = self.join(places)
        self.state.depth += 1
        self.state.open.append(Open(enabled, device, dtype))
        self.opened(self.state.open[-1], node)

    def _enter_autocast(self, context: Ref, node: ast.AST, *, remember: bool = True) -> None:
        facts = context.thing.facts
        device, dtype, cache = (
            str(facts.get("device", "")),
            str(facts.get("dtype", "?")),
            bool(facts.get("cache", True)),
        )
        instance = context.thing.key if facts.get("stored") else None
        names = {"context": self.words(node)}

        def enter(on: bool) -> None:
            self.emit(
                e.AUTOCAST_ENTER, node, instance, enabled=on, device=device, dtype=dtype, cache=cache, names=names
            )

        yes, no = self.lower(context.enabled)
        places = []
        for place, on in ((yes, True), (no, False)):
            if place is not None:
                self.state.cur = place
                self.state.path.append(context.enabled if on else negate(context.enabled))
                enter(on)
                self.state.path.pop()
                places.append(self.state.cur)
        self.state.cur = self.join(places)
        self.state.entered += 1
        if remember:
            self.state.depth += 1
            self.state.open.append(Open(context.enabled, device, dtype, cache=cache))
            self.opened(self.state.open[-1], node)

    def exit(self, context: Value, node: ast.AST, depth: int) -> None:
        """What leaving a context does to the graph: only ``depth`` regions stay open."""
        if _holds_autocast(context) or isinstance(context, StackContext):
            self.emit(e.AUTOCAST_EXIT, node, depth=depth)
        elif isinstance(context, Instance) and self.state.cur is not None:
            self.call_method(context, "__exit__", [NONE, NONE, NONE], node)
            if self.state.entered:
                # What the object of a class has opened, it closes, in whatever way it finds its context again.
                self.emit(e.AUTOCAST_EXIT, node, depth=depth)

    def closed(self, context: Value) -> None:
        """What is no longer around once a context is left."""
        if _holds_autocast(context):
            if self.state.open:
                self.state.open.pop()
        elif isinstance(context, StackContext):
            del self.state.open[context.opened :]
            del self.state.apart[context.apart :]
        elif isinstance(context, GradMode):
            self.state.no_grad -= 1
        elif _keeps_apart(context) and self.state.apart:
            self.state.apart.pop()
        elif isinstance(context, (Opaque, Named)):
            self.state.maybe_open -= 1

    def entered_value(self, context: Value, node: ast.expr) -> Value:
        if isinstance(context, (StackContext, Instance, Pool, Tensor)):
            return context
        made = self.fresh(node, "entered")
        made.divided = isinstance(context, Opaque) and context.divided
        return made


def _holds_autocast(value: Value) -> bool:
    if isinstance(value, Choice):
        return any(_holds_autocast(v) for _, v in value.options)
    return isinstance(value, Ref) and value.role == "autocast"


def _keeps_apart(value: Value) -> bool:
    """Whether gradients may not be averaged over processes in a context."""
    if isinstance(value, Choice):
        return any(isinstance(v, NoSync) for _, v in value.options)
    return isinstance(value, NoSync)


def _may_become_thing(value: Value) -> bool:
    """Whether a variable that a loop assigns may hold something the protocol cares for."""
    if isinstance(value, Const):
        return value.value is None
    return isinstance(value, (Ref, Choice, Instance, NullContext, Params, FunctionValue))


def _few_items(value: Value) -> list[Value] | None:
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
    return any(isinstance(part, Ref) and part.role in ("optimizer", "scaler") for part in parts)


def _is_main_guard(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def is_version_guard(test: ast.expr) -> bool:
    """Whether a test asks what the torch that is installed has."""
    for node in walk(test):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if "version" in name.lower() or name == "hasattr":
            return True
    return False


def _as_comparison(subject: ast.expr, pattern: ast.MatchValue | ast.MatchSingleton) -> ast.expr:
    """The comparison that a case asks, so that it is the same question as an ``if``'s."""
    value = pattern.value if isinstance(pattern, ast.MatchValue) else ast.Constant(pattern.value)
    operator = ast.Eq() if isinstance(pattern, ast.MatchValue) else ast.Is()
    comparison = ast.copy_location(ast.Compare(subject, [operator], [value]), pattern)
    return ast.fix_missing_locations(comparison)


def _expects_error(context: ast.expr) -> bool:
    """Whether a context is there for an exception: ``pytest.raises``, ``self.assertRaises``."""
    func = context.func if isinstance(context, ast.Call) else context
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return name == "raises" or name.startswith("assertRaises")


def _own_nodes(statements: list[ast.stmt]) -> list[ast.AST]:
    """The nodes of statements, without those of functions defined in them."""
    found: list[ast.AST] = []
    stack: list[ast.AST] = list(statements)
    while stack:
        node = stack.pop()
        found.append(node)
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
        stack.extend(child for child in children(node) if not isinstance(child, inner))
    return found


_STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Expr: Flow._expression,
    ast.Assign: Flow._assign,
    ast.AnnAssign: Flow._ann_assign,
    ast.AugAssign: Flow._aug_assign,
    ast.Return: Flow._return,
    ast.Raise: Flow._raise,
    ast.Break: Flow._break,
    ast.Continue: Flow._continue,
    ast.Delete: Flow._delete,
    ast.Assert: Flow._assert,
    ast.Import: Flow._import,
    ast.ImportFrom: Flow._import_from,
    ast.FunctionDef: Flow._function,
    ast.AsyncFunctionDef: Flow._function,
    ast.ClassDef: Flow._class,
    ast.If: Flow._if,
    ast.Match: Flow._match,
    ast.Try: Flow._try,
    ast.For: Flow._for,
    ast.AsyncFor: Flow._for,
    ast.While: Flow._while,
    ast.With: Flow._with,
    ast.AsyncWith: Flow._with,
}
if hasattr(ast, "TryStar"):
    _STATEMENTS[ast.TryStar] = Flow._try
