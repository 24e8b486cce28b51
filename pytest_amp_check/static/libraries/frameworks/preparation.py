"""Objects that an engine prepares, and optimizers that no engine receives."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from ....protocol import events as e
from ....protocol import frameworks
from ....protocol.frameworks import FRAMEWORKS
from ....protocol.source_text import access_text, names_optimizer
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.functions import has_unknown_arguments
from ...interpreter.interpreter import Interpreter, persistent_guards
from ...interpreter.values.containers import SequenceValue
from ...interpreter.values.definitions import Args
from ...interpreter.values.objects import FrameworkEngine
from ...interpreter.values.value import UnknownValue, Value
from ...project.module import Module
from ...project.syntax import walk
from ..arguments import items_of, literal_value, object_ref_of, tracked_object_of
from ..owners import all_optimizer_keys
from ..syntax_queries import last_name


class _PreparingEngines(set[int]):
    """Engines that prepared objects in a file, by the keys of the tracked objects."""


class _MadeOptimizers(dict[tuple[int, str, frozenset[Module]], bool]):
    """Optimizers by the key of an engine and the name of the optimizer: True if the engine never receives it."""


def call_prepare(interp: Interpreter, engine: FrameworkEngine, args: Args, node: ast.AST) -> Value:
    """Return the prepared objects that an engine returns."""
    interp.file_data(_PreparingEngines).add(engine.tracked_object.key)
    for value in args:
        prepare_object(interp, engine, value)
    return args[0] if len(args) == 1 else SequenceValue(list(args), is_open=has_unknown_arguments(interp, node))


def prepare_object(interp: Interpreter, engine: FrameworkEngine, value: Value) -> None:
    """Make all later steps of an optimizer, and calls of a module, go through an engine."""
    for item in items_of(value):
        prepare_object(interp, engine, item)
    # A model of an unknown class is recognized by its construction.
    unknown = value if isinstance(value, UnknownValue) else None
    module = tracked_object_of(value) if unknown is None else interp.tracked_objects.get(("used", unknown.key))
    if module is not None and module.role == "module":
        dtype = frameworks.REGION_DTYPES.get(literal_value(engine.precision), "")
        module.attributes.dtypes = module.attributes.dtypes._replace(prepared=True, prepared_in=dtype)
        made = value.before_recognition()
        if not (isinstance(made, UnknownValue) and frameworks.MAKES_ADAPTERS in made.text):
            _store_low(interp, engine, module)
    optimizer = object_ref_of(value, "optimizer")
    if optimizer is not None:
        optimizer.tracked_object.attributes.engine = (engine, persistent_guards(interp))


def _store_low(interp: Interpreter, engine: FrameworkEngine, module: TrackedObject) -> None:
    """Record that an engine casts the parameters of a module: ``Fabric(precision="bf16-true").setup(model)``."""
    precision = literal_value(engine.precision)
    stored = frameworks.STORED_LOW.get(precision) if isinstance(precision, str) else None
    site = interp.program.attributes.setup_sites.get(engine.tracked_object.key)
    if stored is not None and site is not None:
        dtype, mixed = stored
        names = {"call": f'precision="{precision}"', "mixed": mixed}
        interp.emit_at(e.ModuleCast(site, module.key, dtype=dtype, how="trainer", names=names))


def is_never_prepared(
    interp: Interpreter, engine: FrameworkEngine, optimizer: TrackedObject, *, is_sole: bool = True
) -> bool:
    """Return True if the code makes an optimizer and prepares only other objects: the optimizer steps directly.

    The sole engine of a program prepares something, perhaps in other code. One of several may prepare nothing.
    """
    if engine.recognized_from is not None or optimizer.attributes.engine is not None:
        return False
    prepares = engine.tracked_object.key in interp.file_data(_PreparingEngines)
    if not prepares and (is_sole or not _is_local(interp, engine)):
        return False
    modules = frozenset((interp.module, interp.state.frame.module))
    key = (engine.tracked_object.key, optimizer.name, modules)
    known = interp.file_data(_MadeOptimizers)
    if key not in known:
        known[key] = _is_only_made(engine, optimizer.name, modules)
    return known[key]


def _is_local(interp: Interpreter, engine: FrameworkEngine) -> bool:
    """Return True if the current function made an engine, so that other code gets the engine only from here."""
    function, made = interp.state.frame.function, engine.tracked_object.site
    if function is None or made is None or "." in engine.tracked_object.name:
        return False
    return (made.path, made.function) == (function.module.path, function.qualified_name)


def _is_only_made(engine: FrameworkEngine, optimizer: str, modules: Iterable[Module]) -> bool:
    """Return True if calls without the engine make an optimizer of a name, and no call of the engine receives it."""
    methods = FRAMEWORKS[engine.framework].engine.methods
    preparing = {name for name, effect in methods.items() if effect == frameworks.PREPARE}
    others = {node for module in modules for node in _nodes_with_own_engine(module, engine)}
    nodes = [node for module in modules for node in module.nodes]
    calls = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) in preparing]
    own = optimizer.rpartition(".")[2]
    if any(_may_be_optimizer(argument, own) for call in calls if call not in others for argument in call.args):
        return False
    made = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(access_text(part) == optimizer for target in node.targets for part in _assigned_parts(target))
    ]
    return bool(made) and not any(_uses_engine(value, engine) for value in made if value not in others)


def _nodes_with_own_engine(module: Module, engine: FrameworkEngine) -> Iterator[ast.AST]:
    """Yield the nodes of functions that make another engine under the same name, and prepare with that engine."""
    made, name = engine.tracked_object.site, engine.tracked_object.name
    callables = FRAMEWORKS[engine.framework].callables
    constructors = {entry.name.rpartition(".")[2] for entry in callables if entry.role == frameworks.ENGINE}
    for function in module.functions.values():
        constructions = [
            node
            for node in function.nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) in constructors
        ]
        is_maker = made is not None and (made.path, made.function) == (module.path, function.qualified_name)
        if not is_maker and any(access_text(target) == name for node in constructions for target in node.targets):
            yield from walk(function.node)


def _assigned_parts(target: ast.expr) -> Sequence[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,)


def _may_be_optimizer(argument: ast.expr, name: str) -> bool:
    """Return True if an argument may be, or contain, the optimizer of a name."""
    text = access_text(argument)
    return not text or names_optimizer(text) or text.rpartition(".")[2] == name


def _uses_engine(value: ast.expr, engine: FrameworkEngine) -> bool:
    """Return True if a value is no call, or if the engine may have prepared the result of the call."""
    name = engine.tracked_object.name
    return not isinstance(value, ast.Call) or any(access_text(part) == name for part in walk(value))


def keys_never_prepared(interp: Interpreter, engine: FrameworkEngine) -> list[int]:
    optimizers = (interp.program.objects[key] for key in all_optimizer_keys(interp))
    return [each.key for each in optimizers if is_never_prepared(interp, engine, each)]
