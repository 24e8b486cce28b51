"""Which code is read on its own: the module's body, and every function that nothing which was read calls."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..protocol import events as e
from ..protocol.events import Node, Program, Site
from .clearing import cleared_around
from .interpreter import calls, classes, contexts, expressions, functions, statements, unknown
from .interpreter.classes import bases_of, decorations, inherited, instance_of, method_of
from .interpreter.functions import bind_unknown, run
from .interpreter.imports import globals_of
from .interpreter.interpreter import Handlers, Interpreter
from .interpreter.microbatches import counted_elsewhere
from .interpreter.passed import Passed
from .interpreter.state import Loop
from .interpreter.values import EMPTY, ClassValue, Frame, Instance, Opaque
from .libraries import (
    apex,
    autograd_functions,
    born_low,
    builtin_calls,
    checkpoints,
    compiled,
    deepspeed,
    devices,
    distributed,
    frameworks,
    grad_hooks,
    gradients,
    ignite,
    left_out,
    lightning,
    losses,
    modules,
    nonfinite,
    optimizers,
    overhead,
    precision,
    regions,
    scalers,
    sizes,
    torch_calls,
    unknown_methods,
)
from .project.module import Class, Function, Module
from .project.project import Project

#: Statements read in one file before the functions that are left are left out, which is said.
FILE_BUDGET = 100_000

#: What was read on its own, by path and line, with the functions that were read where it called them.
Reached = dict[tuple[str, int], set[tuple[str, int]]]


LIBRARIES = (
    # The interpreter's own parts are handlers like those of any library.
    expressions,
    statements,
    contexts,
    unknown,
    functions,
    classes,
    calls,
    losses,
    grad_hooks,
    gradients,
    nonfinite,
    checkpoints,
    optimizers,
    scalers,
    regions,
    devices,
    autograd_functions,
    modules,
    born_low,
    frameworks,
    apex,
    deepspeed,
    ignite,
    left_out,
    lightning,
    distributed,
    compiled,
    overhead,
    sizes,
    precision,
    builtin_calls,
    torch_calls,
    unknown_methods,
)
HANDLERS = Handlers()
for _library in LIBRARIES:
    _library.register(HANDLERS)


def read_module(module: Module, program: Program, project: Project, passed: Passed | None = None) -> Reached:
    """Add to a program everything that one file does, with what it calls in others; ``passed`` notes which calls."""
    at = Interpreter(HANDLERS, module, program, {}, project)
    at.passed = passed
    try:
        return _read_all(at)
    finally:
        at.release()


def read_functions(module: Module, program: Program, project: Project, entries: Collection[tuple[str, int]]) -> Reached:
    """Add to a program the graphs of the functions of one file that are given by path and line.

    Each is analyzed without its callers, although the file calls it.
    """
    at = Interpreter(HANDLERS, module, program, {}, project)
    reached: Reached = {}
    try:
        at.read(module.tree.body)
        at.bound = True
        for function in module.functions.values():
            entry = (module.path, function.node.lineno)
            is_named = not isinstance(function.node, ast.Lambda) and function.node not in module.shims
            if entry in entries and function.strong and is_named and at.total + at.spent <= FILE_BUDGET:
                _read_function(at, function, function.cls)
                _close(at, entry, reached)
    finally:
        at.release()
    return reached


def _read_all(at: Interpreter) -> Reached:
    module, program = at.module, at.program
    reached: Reached = {}
    counted = counted_elsewhere(module.tree.body) if program.facts.get("fragment") else []
    if counted:
        _read_again(at, module.tree, counted)
    else:
        at.read(module.tree.body)
    at.bound = True
    for listener in at.handlers.file_read:
        listener(at)
    _close(at, (module.path, 0), reached)
    for function, cls in _alone(at):
        if _is_read(at, function, cls):
            continue
        if at.total + at.spent > FILE_BUDGET:
            node = function.node
            program.facts["unread"] = Site(module.path, node.lineno, node.col_offset, function=function.qualified_name)
            break
        # What a class inherits stands for the class: no line of another file, and none that is called here.
        entry = (module.path, function.node.lineno if cls is function.cls or cls is None else -cls.node.lineno)
        _read_function(at, function, cls)
        reached.setdefault(entry, set())
        _close(at, entry, reached)
    return reached


def _read_again(at: Interpreter, body: ast.Module, counted: list[ast.Name | ast.Attribute]) -> None:
    """Read what is shown of the body of a loop, or of a function, which is done once for each batch that is counted."""
    turn = Loop(at.call_keys.setdefault(body, -len(at.call_keys) - 2), 0)
    at.state.loops.append(turn)
    head = at.draft.node()
    at.draft.link(at.state.cur, head)
    at.draft.heads.append((head, turn.key))
    at.state.cur = head
    for number in counted:
        if isinstance(number, ast.Name):
            count = at.state.frame.vars[number.id] = at.fresh(number, number.id)
            count.counter = True
    at.read(body.body)
    last = at.state.cur
    at.emit(e.AGAIN, body.body[-1])
    at.draft.link(at.state.cur, head)
    at.state.cur = last
    at.state.loops.pop()


def _alone(at: Interpreter) -> list[tuple[Function, Class | None]]:
    """The functions of a file that may make a mistake by themselves, with the class whose method each is."""
    module = at.module
    found: list[tuple[Function, Class | None]] = [
        (function, function.cls)
        for function in module.functions.values()
        if (function.strong or function.beside)
        and not isinstance(function.node, ast.Lambda)
        and function.node not in module.shims
    ]
    alike: set[tuple[object, ...]] = set()
    # What a class inherits may use what it has by itself.
    for cls in module.classes.values():
        if isinstance(at.globals.vars.get(cls.name), ClassValue):
            methods = [method for method in inherited(at, cls) if method.strong]
            module.trains = module.trains or bool(methods)
            for method in methods:
                used = _own_used(at, method, cls)
                # Classes that have other numbers for the same do the same.
                key = (method, *bases_of(at, cls)[1:], *sorted(used))
                numbers = all(used.values())
                if used and not (numbers and key in alike):
                    found.append((method, cls))
                    # One that has None for the same may do something else.
                    if numbers:
                        alike.add(key)
    return found


def _is_read(at: Interpreter, function: Function, cls: Class | None) -> bool:
    """Whether a function was read already, as what the class has whose method it is to be read as."""
    if (function.node, None) not in at.roots_reached:
        return False
    return cls is None or (function.node, cls) in at.roots_reached or not _own_used(at, function, cls)


def _own_used(at: Interpreter, method: Function, cls: Class) -> dict[str, bool]:
    """What a method that a class inherits may use of what the class has by itself: by name, whether it is a number.

    What it calls may use it, too. A method that uses nothing is no other than as one of the class that defines it, and
    is read there.
    """
    if method.cls is cls:
        return {}
    todo, seen = [method], {method.name}
    while todo:
        used = todo.pop().attributes_used() - seen
        called = (method_of(at, cls, name) for name in used)
        todo += [each for each in called if each is not None]
        seen |= used
    found = {name: number for name, number in cls.own().items() if name in seen and name != method.name}
    for name in found.keys() & cls.methods.keys():
        # One that does nothing of what matters, in the place of one that does nothing of it either.
        if not any(owner.methods[name].words for owner in bases_of(at, cls) if name in owner.methods):
            del found[name]
    return found or ({"*": False} if cls.open else {})


def _close(at: Interpreter, entry: tuple[str, int], reached: Reached) -> None:
    last = at.module.tree.body[-1] if at.module.tree.body else at.module.tree
    at.emit(e.END, last)
    for event in at.found.values():
        at.draft.nodes.append(Node(event))
    at.found = {}
    at.finish()
    at.graph.entry = entry
    at.program.graphs.append(at.graph)
    reached.setdefault(entry, set()).update(at.reached)


def _read_function(at: Interpreter, function: Function, cls: Class | None) -> None:
    """Read a function that nobody calls here, with nothing known of its arguments."""
    at.begin(function.qualified_name)
    at.roots_reached |= {(function.node, None), (function.node, cls)}
    receiver = _instance(at, function, cls) if cls is not None else None
    defined = at.defined.get(function.node)
    frame = Frame(function, defined.frame if defined is not None else globals_of(at, function.module), None)
    frame.receiver, frame.cls = receiver, function.cls
    static = "staticmethod" in function.decorator_names()
    parameters = function.parameters()
    if receiver is not None and parameters and not static:
        frame.vars[parameters[0].arg] = receiver
    # Below the numbers that loops can have.
    turn = Loop(at.call_keys.setdefault(function.node, -len(at.call_keys) - 2), 0)
    at.state.loops.append(turn)
    bind_unknown(at, frame, function)
    wrappers = defined.wrappers if defined is not None else decorations(at, function)
    head = at.draft.node()
    at.draft.link(at.state.cur, head)
    at.draft.heads.append((head, turn.key))
    at.state.cur = head
    heap = dict(at.state.heap)
    if receiver is not None:
        _count_calls(at, receiver)
    for listener in at.handlers.root_entered:
        listener(at, function)
    value = run(at, frame, function, wrappers, function.node)
    for left in at.handlers.root_left:
        left(at, function, value)
    returned = at.state.cur
    # Whoever calls it may call it again: what it leaves in an open accumulation window is still there then.
    at.emit(e.AGAIN, function.node, uncleared=not cleared_around(at, function))
    at.draft.link(at.state.cur, head)
    at.state.cur = returned
    if function.name != "__init__" or cls is None:
        # What it leaves in the objects that it makes or is given is its own.
        at.state.heap = heap


def _count_calls(at: Interpreter, receiver: Instance) -> None:
    """What the methods of a class count is another number in each call."""
    for name in sorted(receiver.cls.counted):
        value = at.state.heap.get((receiver.key, name))
        if isinstance(value, Opaque) and value.counter:
            count = at.opaque(("count of", receiver.key, name, at.state.loops[-1].key), value.text, at.turning())
            count.counter = True
            at.store(receiver.key, name, count)


def _instance(at: Interpreter, function: Function, cls: Class) -> Instance:
    """An object of the class, as its constructor leaves it; what was done to its optimizers since is unknown."""
    fresh = ("root", id(cls.node)) not in at.instances
    made = instance_of(at, cls, ("root", id(cls.node)), cls.name, None)
    init = method_of(at, cls, "__init__")
    if init is not None and init is not function and fresh:
        frame = Frame(init, globals_of(at, init.module), None)
        frame.receiver, frame.cls = made, init.cls
        parameters = init.parameters()
        if parameters:
            frame.vars[parameters[0].arg] = made
        bind_unknown(at, frame, init)
        # Its events are those of the constructor, read once: what it calls is to be read elsewhere yet.
        roots, reached = set(at.roots_reached), set(at.reached)
        at.unrecorded(lambda: _run(at, frame, init))
        at.roots_reached, at.reached = roots, reached
    if init is not None and init is not function:
        _open_what_is_set_later(at, made, init)
    return made


def _open_what_is_set_later(at: Interpreter, made: Instance, init: Function) -> None:
    """What a constructor leaves at None has a value that nobody knows here, where other methods set it or use it."""
    empty = {name for name, value in at.attributes(made.key) if value.value is None}
    if empty and made.cls not in at.filled:
        methods = [m for owner in bases_of(at, made.cls) for m in owner.methods.values() if m is not init]
        at.filled[made.cls] = frozenset[str]().union(*(method.attributes_filled() for method in methods))
    for name in sorted(empty & at.filled.get(made.cls, EMPTY)):
        del at.state.heap[made.key, name]


def _run(at: Interpreter, frame: Frame, function: Function) -> None:
    run(at, frame, function, (), function.node)
