"""Functions of the project: their bodies are read where they are called, with their arguments bound."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable

from ...protocol import surface
from ...protocol.words import Words
from ..libraries.gradients import Gradients
from ..project.module import Function
from ..project.syntax import walk
from .conditions import both
from .interpreter import ALL_FOREIGN, BUDGET, DEPTH, FOREIGN_BUDGET, PART
from .values import NONE, Frame, FunctionValue, GradMode, Mapping, Named, Opaque, Ref, Sequence, Value

#: Statements of a function that is followed for the value it gives: in a file that trains, and in another one, where
#: a value matters only to whether a region is entered.
SHORT, SHORTEST = 4, 2


class Functions(Gradients):
    """Follows calls into functions of the project."""

    @abstractmethod
    def annotated_engine(self, named: str, value: Opaque, parameter: ast.arg) -> Value | None: ...

    def follow(
        self,
        func: FunctionValue,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        on_yield: Callable[[Value], None] | None = None,
        *,
        always: bool = False,
    ) -> Value:
        """Read the body of a function of the project with its arguments bound.

        ``always`` says that what it does matters whatever it speaks of.
        """
        function = func.function
        if self.state.cur is None:
            return NONE
        if func.receiver is not None and not is_static(function):
            args = [func.receiver, *args]
        if function in self.active:
            self._recursion(func, node)
            return self.fresh(node, "recursive")
        if function.abstract():
            self._reach(function)
            words = Words(node.func) if isinstance(node, ast.Call) else function.name
            return self.unknown(self.opaque(("abstract", id(function.node)), words), args, keywords, node)
        matters = function.words if self.module.trains else function.contexts
        spoilt = function.fragile and self.in_region()
        if not (matters or spoilt or always or func.wrappers or self._worthwhile(function)):
            self._reach(function)
            return self.unknown(self.opaque(("function", id(function.node)), function.name), args, keywords, node)
        if len(self.active) >= DEPTH or self.spent > BUDGET or self._too_far(function):
            return self.unknown(self.opaque(("function", id(function.node)), function.name), args, keywords, node)
        self._reach(function)
        frame = Frame(function, func.frame, self.site(node))
        self._bind(frame, function, args, keywords, node)
        self.precision.bind(frame, function.parameters(), node, bound=func.receiver is not None)
        frame.unwind_base = len(self.state.unwind)
        frame.path_base = len(self.state.path)
        frame.on_yield = on_yield
        frame.cls = function.cls
        frame.receiver = func.receiver
        value = self.run(frame, function, func.wrappers, node)
        if function.generator and frame.yields_pieces and on_yield is None:
            value = self.fresh(node, "pieces")
            value.pieces = True
        return value

    def _too_far(self, function: Function) -> bool:
        """Whether enough of other files was read."""
        if function.module is self.module:
            return False
        part = 1 if function.strong or function.saves else PART
        return self.abroad > FOREIGN_BUDGET * part or self.all_abroad + self.abroad > ALL_FOREIGN * part

    def _reach(self, function: Function) -> None:
        """A function is read where it is called: not by itself, too."""
        self.roots_reached.add(function.node)
        self.reached.add((function.module.path, function.node.lineno))

    def _worthwhile(self, function: Function) -> bool:
        """Whether a function that does nothing to the protocol may still make a value that matters: it is short."""
        if isinstance(function.node, ast.Lambda):
            return True
        short = len(function.node.body) <= (SHORT if self.module.trains else SHORTEST)
        return short or (function.name == "__init__" and self.module.trains)

    def run(self, frame: Frame, function: Function, wrappers: tuple[Value, ...], node: ast.AST) -> Value:
        outer, loops = self.state.frame, self.state.loops
        handlers, mark = self.state.handlers, self.mark()
        self.state.frame = frame
        self.state.loops = [*loops]
        guarded, trying = self.state.guarded, self.state.trying
        self.state.guarded = self.state.trying = 0
        self.active.append(function)
        base = len(self.state.path)
        depth = self.state.depth
        modes = [w for w in wrappers if isinstance(w, GradMode)]
        regions = [w for w in wrappers if not isinstance(w, GradMode)]
        self.state.no_grad += len(modes)
        place = function.decorators[0] if function.decorators else function.node
        for wrapper in regions:
            self.name_it(wrapper, "")
            self.enter(wrapper, place)
        body = function.node.body
        if isinstance(function.node, ast.Lambda):
            value = self.evaluate(function.node.body)
            if self.state.cur is not None:
                frame.returns.append((self.state.cur, True, value, self.state.heap))
        else:
            assert isinstance(body, list)
            marker = len(self.state.loops)
            self.read(body)
            del self.state.loops[marker:]
            if self.state.cur is not None:
                frame.returns.append(
                    (self.state.cur, self.short(both(*self.state.path[frame.path_base :])), NONE, self.state.heap)
                )
        del self.state.path[base:]
        self.state.cur = self.join(cur for cur, *_ in frame.returns)
        value = self._returned(frame)
        # What is returned may know the frame.
        frame.returns, frame.on_yield = [], None
        self.draft.returned = mark.returned
        self.forget(mark)
        for wrapper in reversed(regions):
            self.exit(wrapper, place, depth)
            self.closed(wrapper)
        self.state.depth = depth
        self.state.no_grad -= len(modes)
        self.active.pop()
        self.state.frame = outer
        self.state.loops = loops
        self.state.handlers = handlers
        self.state.guarded, self.state.trying = guarded, trying
        return value

    def _returned(self, frame: Frame) -> Value:
        if not frame.returns:
            return NONE
        _, _, value, heap = frame.returns[-1]
        self.serial += 1
        way = ("way", self.serial)
        for _, formula, earlier, earlier_heap in reversed(frame.returns[:-1]):
            if earlier is not value:
                value = self.unite(
                    formula if formula is not True else self.ask(way, "", self.turning()),
                    earlier,
                    value,
                    "returned",
                )
            if earlier_heap is not heap:
                heap = {**earlier_heap, **heap}
        self.state.heap = heap
        return value

    def _recursion(self, func: FunctionValue, node: ast.AST) -> None:
        """A function that is being read calls itself: its decorators enter their contexts once more."""
        depth = self.state.depth
        place = func.function.decorators[0] if func.function.decorators else node
        for wrapper in func.wrappers:
            if not isinstance(wrapper, GradMode):
                self.enter(wrapper, place)
        for wrapper in func.wrappers:
            if not isinstance(wrapper, GradMode):
                self.exit(wrapper, place, depth)
                self.closed(wrapper)
        self.state.depth = depth

    def _bind(
        self, frame: Frame, function: Function, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> None:
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
                outer, self.state.frame = self.state.frame, frame
                frame.vars[parameter.arg] = self.evaluate(default)
                self.state.frame = outer
        for parameter in [*names, *spec.kwonlyargs]:
            if parameter.arg not in frame.vars:
                key = ("missing", self.place_key(node), parameter.arg)
                frame.vars[parameter.arg] = self.opaque(key, parameter.arg, parameter=True)
        if spec.vararg is not None:
            frame.vars[spec.vararg.arg] = Sequence(list(args[len(names) :]), open=starred)
        if spec.kwarg is not None:
            frame.vars[spec.kwarg.arg] = Mapping(dict(rest), open=starred)

    def bind_unknown(self, frame: Frame, function: Function) -> None:
        """Parameters of a function that nobody calls here: whatever their annotations say they are."""
        spec = function.node.args
        outer, self.state.frame = self.state.frame, frame
        for parameter in [*function.parameters(), *spec.kwonlyargs]:
            if parameter.arg in frame.vars:
                continue
            value = self.opaque(("parameter", id(parameter)), parameter.arg, self.turning(), parameter=True)
            frame.vars[parameter.arg] = self._annotated(value, parameter)
        self.state.frame = outer
        if spec.vararg is not None:
            frame.vars[spec.vararg.arg] = Sequence([], open=True)
        if spec.kwarg is not None:
            frame.vars[spec.kwarg.arg] = Mapping({}, open=True)

    def _annotated(self, value: Opaque, parameter: ast.arg) -> Value:
        annotation = parameter.annotation
        if annotation is None:
            return value
        for node in walk(annotation):
            if isinstance(node, (ast.Name, ast.Attribute)):
                named = self._dotted(node)
                engine = self.annotated_engine(named, value, parameter) if named else None
                if engine is not None:
                    return engine
                entry = surface.lookup(named) if named else None
                role = entry.role if entry is not None else surface.BASES.get(named or "")
                if role in (surface.SCALER, surface.OPTIMIZER, surface.MODULE):
                    thing = self.thing(("annotated", id(parameter)), role, parameter.arg, self.site(parameter))
                    return Ref(thing, True, value)
        return value

    def _dotted(self, node: ast.AST) -> str | None:
        """The dotted name that an annotation or a base class stands for."""
        if isinstance(node, ast.Name):
            value = self.look_up(node.id)
            if isinstance(value, Named):
                return value.name
            return surface.BARE.get(node.id) if value is None else None
        if isinstance(node, ast.Attribute):
            head = self._dotted(node.value)
            return f"{head}.{node.attr}" if head else None
        return None


def has_stars(node: ast.AST) -> bool:
    """Whether a call unpacks a sequence into its arguments."""
    return isinstance(node, ast.Call) and any(isinstance(argument, ast.Starred) for argument in node.args)


def is_static(function: Function) -> bool:
    return "staticmethod" in function.decorator_names()
