"""Modules that are sharded, replicated, compiled, traced or run in threads: where AMP's state does not follow."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.words import chain
from ..interpreter.classes import bases_of, decorations, method_of
from ..interpreter.contexts import Itself
from ..interpreter.functions import follow
from ..interpreter.imports import globals_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import in_region
from ..interpreter.unknown import hand_off
from ..interpreter.values import Args, Container, FunctionValue, Instance, Keywords, NullContext, Tensor, Value
from ..interpreter.wording import wording
from ..project.module import Class, Module
from ..project.syntax import walk
from .arguments import bind, first_of, items_of, literal, thing_of
from .autograd_functions import is_low_op
from .checkpoints import may_save
from .modules import wrap_module
from .overhead import is_compiled_or_low
from .written import all_of, called, constant, keywords_of, last_name

#: Methods by which a pool of threads is given work.
SUBMITS = frozenset("submit map apply apply_async map_async imap imap_unordered starmap".split())
#: The kind of thing that a compiled function is which has switched autocast off in a part of it.
ISLAND = "compiled function"
#: Modules within modules that are looked into.
NESTED = 4


class ThreadValue(Value):
    """A thread, and the function that it will run."""

    kind = "thread"

    __slots__ = ("args", "target")

    def __init__(self, target: Value | None, args: Args) -> None:
        super().__init__()
        self.target = target
        self.args = args


class Pool(Value):
    """A pool of threads."""

    kind = "pool"

    __slots__ = ()


def _capture(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A module is traced, or its kernels are captured."""
    how = entry.facts["how"]
    bound = bind(entry.parameters, args, keywords)
    thing = thing_of(first_of(args, keywords, entry.parameters[0]))
    casts = thing is not None and thing.role == "module" and not _is_never_cast(thing)
    casts = casts and literal(bound.get("check_trace")) is not False
    names = {"call": wording(node), "module": thing.name if thing is not None else ""}
    if how != "trace" or casts:
        at.emit(e.CAPTURE, node, thing.key if thing is not None else None, how=how, names=names)
    return NullContext() if how == "graph" else wrap_module(at, entry, args, keywords, node)


def _thread(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    _hand_over(at, [*args, *keywords.values()], node)
    bound = bind(entry.parameters, args, keywords)
    return ThreadValue(bound.get("target"), items_of(bound.get("args")))


def _hand_over(at: Interpreter, given: list[Value], node: ast.AST) -> None:
    """Another thread is given something, which it may write to a checkpoint."""
    hand_off(at, given, node)
    may_save(at, given, node)


def thread_method(
    at: Interpreter, receiver: ThreadValue | Pool, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """What a thread, or a pool of threads, is asked to do."""
    _hand_over(at, [*args, *keywords.values()], node)
    if isinstance(receiver, ThreadValue):
        if name == "start":
            _elsewhere(at, receiver.target, receiver.args, node)
    elif name in SUBMITS and args:
        _elsewhere(at, args[0], args[1:] if name == "submit" else [], node)
    return at.fresh(node, name)


def _elsewhere(at: Interpreter, target: Value | None, args: Args, node: ast.AST) -> None:
    """A function of the project is run by another thread: the regions around this place are not around it."""
    if not isinstance(target, FunctionValue) or not in_region(at):
        return
    function = target
    ran: list[Thing] = []

    def act() -> None:
        at.state.open, at.state.maybe_open = [], 0
        follow(at, function, args, {}, node, always=True)
        ran.extend(_forwards(at, at.draft.nodes))

    at.previewed(act)
    if ran:
        names = {"call": wording(node), "module": ran[0].name}
        at.emit(e.THREAD, node, ran[0].key, how="thread", names=names)


def _forwards(at: Interpreter, nodes: list[e.Node]) -> Iterator[Thing]:
    """The modules that some code runs, if it enters no autocast itself."""
    events = [node.event for node in nodes if node.event is not None]
    if not any(event.kind == e.AUTOCAST_ENTER for event in events):
        for event in events:
            if event.kind == e.FORWARD and event.subject is not None:
                thing = at.program.things[event.subject]
                if thing.facts.get("read", True) and not _is_never_cast(thing):
                    yield thing


def _replicated(at: Interpreter, thing: Thing, node: ast.AST) -> None:
    """A module runs forward whose replicas run in threads of their own."""
    if "replicas" in thing.facts.get("wrapped", {}) and thing.facts.get("read"):
        at.emit(e.THREAD, node, thing.key, how="replicas", names={"module": wording(node)})


def _compiled_backward(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    """A loss runs backward outside of the region in which a compiled module ran, which has float32 islands."""
    forward = tensor.forward
    if forward is None or forward.subject is None or tensor.autocast != "in" or in_region(at) or at.state.maybe_open:
        return
    thing = at.program.things[forward.subject]
    if thing.facts.get("compiled") and "backward_pass_autocast" not in at.module.identifiers:
        if thing.facts.get("kind") == ISLAND:
            at.emit_at(e.COMPILED, forward.site, thing.key, names=dict(forward.names))
            return
        owner = next((i for i in at.instances.values() if i.thing is thing), None)
        if owner is not None and _has_island(at, owner, NESTED):
            at.emit_at(e.COMPILED, forward.site, thing.key, names=dict(forward.names))


def _has_island(at: Interpreter, module: Instance, depth: int) -> bool:
    """Whether a module, or one that it holds, multiplies matrices where it has switched autocast off."""
    if any(_switches_off(owner) for owner in bases_of(at, module.cls)) or _leaves_autocast(at, module):
        return True
    held = [value for _, value in at.attributes(module.key)]
    held += [item for value in held for item in (value.items if isinstance(value, Container) else items_of(value))]
    return depth > 0 and any(_has_island(at, value, depth - 1) for value in held if isinstance(value, Instance))


def _leaves_autocast(at: Interpreter, module: Instance) -> bool:
    """Whether the forward of a module runs others where it has switched autocast off."""
    forward = method_of(at, module.cls, "forward")
    if forward is None or forward in at.active:
        return False
    function = FunctionValue(forward, globals_of(at, forward.module), module, decorations(at, forward))
    ran: list[bool] = []

    def act() -> None:
        follow(at, function, [], {}, forward.node, always=True)
        off = False
        for node in at.draft.nodes:
            kind = node.event.kind if node.event is not None else ""
            if node.event is not None and kind == e.AUTOCAST_ENTER and not node.event.facts.get("null"):
                facts = node.event.facts
                off = facts["enabled"] is False or facts["dtype"] == "float32"
            elif kind == e.AUTOCAST_EXIT:
                off = False
            elif kind == e.FORWARD and off:
                ran.append(True)

    at.previewed(act)
    return bool(ran)


def _is_never_cast(thing: Thing) -> bool:
    """Whether the weights of a module are not cast in a region, and so not kept for it."""
    return bool(thing.facts.get("frozen")) or is_compiled_or_low(thing)


def _switches_off(cls: Class) -> bool:
    """Whether a class multiplies matrices itself where it has switched autocast off."""
    return multiplies_without(cls.node, cls.module)


def multiplies_without(code: ast.AST, module: Module) -> bool:
    """Whether code multiplies matrices where it has switched autocast off."""
    blocks = [node.body for node in all_of(code, ast.With) if any(_is_off(item.context_expr) for item in node.items)]
    blocks += [node.body for node in all_of(code, ast.FunctionDef) if any(map(_is_off, node.decorator_list))]
    return any(is_low_op(inner, module) for block in blocks for part in block for inner in walk(part))


def _is_off(context: ast.expr) -> bool:
    """Whether a context is an autocast that its literal arguments switch off, or have compute in float32."""
    if last_name(called(context)) != "autocast":
        return False
    given = keywords_of(context)
    dtype = chain(given["dtype"]) if "dtype" in given else None
    return constant(given.get("enabled")) is False or dtype in ("torch.float32", "torch.float")


def register(handlers: Handlers) -> None:
    handlers.roles.update({surface.CAPTURE: _capture, surface.THREAD: _thread, surface.POOL: lambda *_: Pool()})
    handlers.methods.update({"thread": thread_method, "pool": thread_method})
    handlers.contexts["pool"] = Itself()
    handlers.forward_run.append(_replicated)
    handlers.backward_run.append(_compiled_backward)
