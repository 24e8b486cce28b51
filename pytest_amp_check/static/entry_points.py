"""Which code is read on its own: the module's body, and every function that nothing which was read calls."""

from __future__ import annotations

import ast

from ..protocol import events as e
from ..protocol.events import Node, Program, Site, Thing
from .interpreter.calls import Reader
from .interpreter.interpreter import FILE_BUDGET
from .interpreter.state import Loop
from .interpreter.values import ClassValue, Frame, Instance
from .project.module import Class, Function, Module
from .project.project import Project

#: What was read on its own, by path and line, with the functions that were read where it called them.
Reached = dict[tuple[str, int], set[tuple[str, int]]]


def read_module(module: Module, program: Program, tree: Project) -> Reached:
    """Add to a program everything that one file does, with what it calls in others."""
    things: dict[object, Thing] = {}
    reader = Reader(module, program, things, tree)
    reader._enumerated = {}
    reader._derived, reader._trainers = {}, {}
    try:
        return _read_all(reader)
    finally:
        reader.release()


def _read_all(reader: Reader) -> Reached:
    module, program = reader.module, reader.program
    reached: Reached = {}
    reader.read(module.tree.body)
    reader.bound = True
    reader.custom_functions()
    _close(reader, (module.path, 0), reached)
    for function, cls in _alone(reader):
        if function.node in reader.roots_reached:
            continue
        if reader.total + reader.spent > FILE_BUDGET:
            node = function.node
            program.facts["unread"] = Site(module.path, node.lineno, node.col_offset, function=function.qualified_name)
            break
        # What a class inherits stands for the class: no line of another file, and none that is called here.
        entry = (module.path, function.node.lineno if cls is function.cls or cls is None else -cls.node.lineno)
        _read_function(reader, function, cls)
        reached.setdefault(entry, set())
        _close(reader, entry, reached)
    return reached


def _alone(reader: Reader) -> list[tuple[Function, Class | None]]:
    """The functions of a file that may make a mistake by themselves, with the class whose method each is."""
    module = reader.module
    found: list[tuple[Function, Class | None]] = [
        (function, function.cls)
        for function in module.functions.values()
        if function.strong and not isinstance(function.node, ast.Lambda) and function.node not in module.shims
    ]
    # What a class inherits from another file may call what it defines in this one.
    for cls in module.classes.values():
        if isinstance(reader.globals.vars.get(cls.name), ClassValue):
            inherited = [(method, cls) for method in reader.inherited(cls) if method.strong]
            module.trains = module.trains or bool(inherited)
            found += inherited
    return found


def _close(reader: Reader, entry: tuple[str, int], reached: Reached) -> None:
    last = reader.module.tree.body[-1] if reader.module.tree.body else reader.module.tree
    reader.emit(e.END, last)
    for event in reader.precision.close().values():
        reader.draft.nodes.append(Node(event))
    reader.finish()
    reader.graph.entry = entry
    reader.program.graphs.append(reader.graph)
    reached.setdefault(entry, set()).update(reader.reached)


def _read_function(reader: Reader, function: Function, cls: Class | None) -> None:
    """Read a function that nobody calls here, with nothing known of its arguments."""
    reader.begin(function.qualified_name)
    reader.roots_reached.add(function.node)
    receiver = _instance(reader, function, cls) if cls is not None else None
    defined = reader.defined.get(function.node)
    frame = Frame(function, defined.frame if defined is not None else reader.home(function.module), None)
    frame.receiver, frame.cls = receiver, function.cls
    static = "staticmethod" in function.decorator_names()
    parameters = function.parameters()
    if receiver is not None and parameters and not static:
        frame.vars[parameters[0].arg] = receiver
    turn = Loop(-len(reader.program.graphs) - 2, 0)
    reader.state.loops.append(turn)
    reader.bind_unknown(frame, function)
    wrappers = defined.wrappers if defined is not None else reader.decorations(function)
    head = reader.node()
    reader.link(reader.state.cur, head)
    reader.draft.heads.append((head, turn.key))
    reader.state.cur = head
    heap = dict(reader.state.heap)
    reader.enter_root(function)
    reader.leave_root(function, reader.run(frame, function, wrappers, function.node))
    returned = reader.state.cur
    # Whoever calls it may call it again: what it leaves in an open accumulation window is still there then.
    reader.emit(e.AGAIN, function.node)
    reader.link(reader.state.cur, head)
    reader.state.cur = returned
    if function.name != "__init__" or cls is None:
        # What it leaves in the objects that it makes or is given is its own.
        reader.state.heap = heap


def _instance(reader: Reader, function: Function, cls: Class) -> Instance:
    """An object of the class, as its constructor leaves it; what was done to its optimizers since is unknown."""
    fresh = ("root", id(cls.node)) not in reader.instances
    made = reader.instance_of(cls, ("root", id(cls.node)), cls.name, None)
    init = reader.method_of(cls, "__init__")
    if init is not None and init is not function and fresh:
        frame = Frame(init, reader.home(init.module), None)
        frame.receiver, frame.cls = made, init.cls
        parameters = init.parameters()
        if parameters:
            frame.vars[parameters[0].arg] = made
        reader.bind_unknown(frame, init)
        # Its events are those of the constructor, read once.
        reader.unrecorded(lambda: _run(reader, frame, init))
    return made


def _run(reader: Reader, frame: Frame, function: Function) -> None:
    reader.run(frame, function, (), function.node)
