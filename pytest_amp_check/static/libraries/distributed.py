"""Sharded, replicated, compiled, traced or threaded modules, which the AMP state does not reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import event_graph, torch_api
from ...protocol import events as e
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.classes.bound_methods import decorator_contexts
from ..interpreter.classes.lineage import lineage_of, method_of
from ..interpreter.contexts import SelfBindingHandler
from ..interpreter.functions import inline_call
from ..interpreter.imports import globals_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.tensors import in_region
from ..interpreter.unanalyzed_code import escape
from ..interpreter.values.contexts import NullContext
from ..interpreter.values.definitions import Args, FunctionValue, Instance, Keywords
from ..interpreter.values.objects import ModuleContainer
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import Value
from ..project.module import Class, Module
from ..project.region_entry import disables_autocast
from ..project.syntax import walk
from .arguments import bind_arguments, first_or_named, items_of, literal_value, tracked_object_of
from .autograd_functions import is_low_op
from .checkpoints import check_saved_states
from .modules.wrappers import wrap_module
from .overhead import is_compiled_or_low
from .syntax_queries import find_nodes

#: Methods that submit work to a pool of threads.
SUBMITS = frozenset("submit map apply apply_async map_async imap imap_unordered starmap".split())
#: ``kind`` attribute of a compiled function with a part that disables autocast.
ISLAND = "compiled function"
#: Levels of nested modules that are searched.
NESTED = 4


class ThreadValue(Value):
    """A thread with the function that the thread runs."""

    kind = "thread"

    __slots__ = ("args", "target_function")

    def __init__(self, target: Value | None, args: Args) -> None:
        super().__init__()
        self.target_function = target
        self.args = args


class ThreadPool(Value):
    """A pool of threads."""

    kind = "pool"

    __slots__ = ()


def _call_capture(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Model the tracing of a module, or the capture of CUDA kernels in a graph."""
    how = entry.attributes["how"]
    bound = bind_arguments(entry.parameters, args, keywords)
    tracked_object = tracked_object_of(first_or_named(args, keywords, entry.parameters[0]))
    casts = tracked_object is not None and tracked_object.role == "module" and not _is_never_cast(tracked_object)
    casts = casts and literal_value(bound.get("check_trace")) is not False
    names = {"call": expression_text(node), "module": tracked_object.name if tracked_object is not None else ""}
    if how != "trace" or casts:
        interp.emit(e.Capture, node, tracked_object.key if tracked_object is not None else None, how=how, names=names)
    return NullContext() if how == "graph" else wrap_module(interp, entry, args, keywords, node)


def _call_thread(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    _escape_to_thread(interp, [*args, *keywords.values()], node)
    bound = bind_arguments(entry.parameters, args, keywords)
    return ThreadValue(bound.get("target"), items_of(bound.get("args")))


def _escape_to_thread(interp: Interpreter, given: list[Value], node: ast.AST) -> None:
    """Mark values as escaped to another thread, which may save the values in a checkpoint."""
    escape(interp, given, node)
    check_saved_states(interp, given, node)


def call_thread_method(
    interp: Interpreter, receiver: ThreadValue | ThreadPool, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Call a method of a thread, or of a pool of threads."""
    _escape_to_thread(interp, [*args, *keywords.values()], node)
    if isinstance(receiver, ThreadValue):
        if name == "start":
            _check_run_in_thread(interp, receiver.target_function, receiver.args, node)
    elif name in SUBMITS and args:
        _check_run_in_thread(interp, args[0], args[1:] if name == "submit" else [], node)
    return interp.fresh_unknown(node, name)


def _check_run_in_thread(interp: Interpreter, target: Value | None, args: Args, node: ast.AST) -> None:
    """Report a project function that runs modules in another thread, because the open regions do not apply there."""
    if not isinstance(target, FunctionValue) or not in_region(interp):
        return
    function = target
    ran: list[TrackedObject] = []

    def run_target() -> None:
        interp.state.open_regions, interp.state.possible_regions = [], 0
        inline_call(interp, function, args, {}, node, always=True)
        ran.extend(_find_forwards(interp, interp.builder.nodes))

    interp.dry_run(run_target)
    if ran:
        names = {"call": expression_text(node), "module": ran[0].name}
        interp.emit(e.Thread, node, ran[0].key, how="thread", names=names)


def _find_forwards(interp: Interpreter, nodes: list[event_graph.Node]) -> Iterator[TrackedObject]:
    """Yield the modules that some code runs forward, if the code enters no autocast itself."""
    events = [node.event for node in nodes if node.event is not None]
    if not any(isinstance(event, e.AutocastEnter) for event in events):
        for event in events:
            if isinstance(event, e.Forward) and event.subject is not None:
                tracked_object = interp.program.objects[event.subject]
                if tracked_object.attributes.read and not _is_never_cast(tracked_object):
                    yield tracked_object


def _check_replicas(interp: Interpreter, tracked_object: TrackedObject, node: ast.AST) -> None:
    """Report the forward of a module whose replicas run in separate threads."""
    if "replicas" in tracked_object.attributes.wrappers and tracked_object.attributes.read:
        interp.emit(e.Thread, node, tracked_object.key, how="replicas", names={"module": expression_text(node)})


def _check_compiled_backward(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    """Report a loss that runs backward outside the region of a compiled module with float32 islands."""
    forward = tensor.forwards.first_event
    if (
        forward is None
        or forward.subject is None
        or tensor.provenance.autocast_scope != "in"
        or in_region(interp)
        or interp.state.possible_regions
    ):
        return
    tracked_object = interp.program.objects[forward.subject]
    if tracked_object.attributes.compiled and "backward_pass_autocast" not in interp.module.identifiers:
        if tracked_object.attributes.kind == ISLAND:
            interp.emit_at(e.Compiled(forward.site, tracked_object.key, names=dict(forward.names)))
            return
        owner = next((i for i in interp.instances.values() if i.tracked_object is tracked_object), None)
        if owner is not None and _has_float32_island(interp, owner, NESTED):
            interp.emit_at(e.Compiled(forward.site, tracked_object.key, names=dict(forward.names)))


def _has_float32_island(interp: Interpreter, module: Instance, depth: int) -> bool:
    """Return True if a module, or a contained module, multiplies matrices with disabled autocast."""
    if any(_has_uncast_matmul(owner) for owner in lineage_of(interp, module.cls)) or _runs_modules_uncast(
        interp, module
    ):
        return True
    held = [value for _, value in interp.stored_attributes(module.key)]
    held += [
        item for value in held for item in (value.items if isinstance(value, ModuleContainer) else items_of(value))
    ]
    return depth > 0 and any(
        _has_float32_island(interp, value, depth - 1) for value in held if isinstance(value, Instance)
    )


def _runs_modules_uncast(interp: Interpreter, module: Instance) -> bool:
    """Return True if the forward of a module runs other modules with disabled autocast."""
    forward = method_of(interp, module.cls, "forward")
    if forward is None or forward in interp.active_functions:
        return False
    function = FunctionValue(forward, globals_of(interp, forward.module), module, decorator_contexts(interp, forward))
    ran: list[bool] = []

    def run_forward() -> None:
        inline_call(interp, function, [], {}, forward.node, always=True)
        off = False
        for node in interp.builder.nodes:
            event = node.event
            if isinstance(event, e.AutocastEnter) and not event.null:
                off = event.enabled is False or event.dtype == "float32"
            elif isinstance(event, e.AutocastExit):
                off = False
            elif isinstance(event, e.Forward) and off:
                ran.append(True)

    interp.dry_run(run_forward)
    return bool(ran)


def _is_never_cast(tracked_object: TrackedObject) -> bool:
    """Return True if autocast does not cast the weights of a module, and so caches no casts of the weights."""
    return bool(tracked_object.attributes.training.frozen) or is_compiled_or_low(tracked_object)


def _has_uncast_matmul(cls: Class) -> bool:
    """Return True if the body of a class multiplies matrices with disabled autocast."""
    return has_matmul_without_autocast(cls.node, cls.module)


def has_matmul_without_autocast(code: ast.AST, module: Module) -> bool:
    """Return True if code multiplies matrices with disabled autocast."""
    blocks = [
        node.body
        for node in find_nodes(code, ast.With)
        if any(disables_autocast(item.context_expr) for item in node.items)
    ]
    blocks += [
        node.body for node in find_nodes(code, ast.FunctionDef) if any(map(disables_autocast, node.decorator_list))
    ]
    return any(is_low_op(inner, module) for block in blocks for part in block for inner in walk(part))


def register(handlers: HandlerTable) -> None:
    handlers.torch_roles.update(
        {torch_api.CAPTURE: _call_capture, torch_api.THREAD: _call_thread, torch_api.POOL: lambda *_: ThreadPool()}
    )
    handlers.methods.update({"thread": call_thread_method, "pool": call_thread_method})
    handlers.contexts["pool"] = SelfBindingHandler()
    handlers.forward_listeners.append(_check_replicas)
    handlers.backward_start_listeners.append(_check_compiled_backward)
