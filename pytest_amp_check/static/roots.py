"""Which code is read on its own: the module's body, and every function that nothing which was read calls."""

from __future__ import annotations

import ast

from ..protocol import events as e
from ..protocol.events import Program, Site, Thing
from .calls import Reader
from .machine import FILE_BUDGET, Frame, Loop
from .project import Function, Module
from .values import Instance


def read_module(module: Module, program: Program) -> None:
    """Add to a program everything that one file does."""
    things: dict[object, Thing] = {}
    reader = Reader(module, program, things)
    reader.uses = module.uses
    reader._enumerated = {}
    reader._derived, reader._trainers = {}, {}
    reader.read(module.tree.body)
    _close(reader)
    for function in list(module.functions.values()):
        if function.node in reader.roots_reached or isinstance(function.node, ast.Lambda):
            continue
        if function.node in module.shims:
            continue
        if reader.total + reader.spent > FILE_BUDGET:
            node = function.node
            program.facts["unread"] = Site(module.path, node.lineno, node.col_offset, function=function.qualified_name)
            break
        if function.strong:
            _read_function(reader, function)


def _close(reader: Reader) -> None:
    last = reader.module.tree.body[-1] if reader.module.tree.body else reader.module.tree
    reader.emit(e.END, last)
    reader.finish()
    reader.program.graphs.append(reader.graph)


def _read_function(reader: Reader, function: Function) -> None:
    """Read a function that nobody calls here, with nothing known of its arguments."""
    reader.begin(function.qualified_name)
    reader.roots_reached.add(function.node)
    receiver: Instance | None = None
    if function.cls is not None:
        receiver = _instance(reader, function)
    defined = reader.defined.get(function.node)
    frame = Frame(function, defined.frame if defined is not None else reader.globals, None)
    frame.receiver, frame.cls = receiver, function.cls
    static = "staticmethod" in function.decorator_names()
    parameters = function.parameters()
    if receiver is not None and parameters and not static:
        frame.vars[parameters[0].arg] = receiver
    turn = Loop(-len(reader.program.graphs) - 2, 0)
    reader.loops.append(turn)
    reader.bind_unknown(frame, function)
    wrappers = defined.wrappers if defined is not None else reader.decorations(function)
    head = reader.node()
    reader.link(reader.cur, head)
    reader.heads.append((head, turn.key))
    reader.cur = head
    reader.enter_root(function)
    reader.leave_root(function, reader.run(frame, function, wrappers, function.node))
    returned = reader.cur
    # Whoever calls it may call it again: what it leaves in an open accumulation window is still there then.
    reader.emit(e.AGAIN, function.node)
    reader.link(reader.cur, head)
    reader.cur = returned
    _close(reader)


def _instance(reader: Reader, function: Function) -> Instance:
    """An object of the class, as its constructor leaves it; what was done to its optimizers since is unknown."""
    cls = function.cls
    assert cls is not None
    fresh = ("root", id(cls.node)) not in reader.instances
    made = reader.instance_of(cls, ("root", id(cls.node)), cls.name, None)
    init = reader.method_of(cls, "__init__")
    if init is not None and init is not function and fresh:
        frame = Frame(init, reader.globals, None)
        frame.receiver, frame.cls = made, cls
        parameters = init.parameters()
        if parameters:
            frame.vars[parameters[0].arg] = made
        reader.bind_unknown(frame, init)
        # Its events are those of the constructor, read once.
        reader.aside(lambda: _run(reader, frame, init))
    return made


def _run(reader: Reader, frame: Frame, function: Function) -> None:
    reader.run(frame, function, (), function.node)
