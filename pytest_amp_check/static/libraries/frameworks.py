"""Calls of frameworks that scale, unscale and step for the program: the effects on gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from ...protocol import events as e
from ...protocol import frameworks, torch_api
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.severities import INFO, WARNING
from ...protocol.sites import Site
from ...protocol.source_text import SourceText, access_text, names_optimizer
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.conditions import Formula, disjunction, literals, negate
from ..interpreter.formulas import truth_of
from ..interpreter.functions import has_unknown_arguments
from ..interpreter.identity import Operation, is_equal, number_key, structural_unknown
from ..interpreter.interpreter import HandlerTable, Interpreter, persistent_guards
from ..interpreter.joins import for_each_alternative, run_branches
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.unanalyzed_code import call_unknown, escape
from ..interpreter.values.containers import SequenceValue, UnionValue
from ..interpreter.values.contexts import NoSyncContext, NullContext
from ..interpreter.values.definitions import Args, BoundMethod, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.objects import FrameworkEngine, ObjectRef, UnwrappedOptimizer
from ..interpreter.values.tensors import TensorValue, tensors_in
from ..interpreter.values.value import NONE, Const, UnknownValue, Value
from ..project.module import Module
from ..project.syntax import walk
from .arguments import (
    bind_arguments,
    first_or_named,
    items_of,
    literal_value,
    make_object,
    object_ref_of,
    tracked_object_of,
)
from .checkpoints import take_state
from .gradients import emit_clip
from .losses.backward import as_loss, make_loss_names, run_backward
from .optimizers import act_on_optimizers
from .owners import all_optimizer_keys, find_updating_optimizers
from .scalers import get_scaler_attribute, load_scaler, scale_value
from .syntax_queries import last_name, receiver_of


class EngineTable(dict[int, FrameworkEngine]):
    """Engines that a graph uses, by the keys of the tracked objects."""


class _Microbatch(NamedTuple):
    """A microbatch that an engine begins: the location, the loops around, and the guards."""

    site: Site
    loops: frozenset[int]
    guards: frozenset[tuple[int, bool]]


class _UncountedBackward(NamedTuple):
    """A backward that divides its loss by the length of a window, in a file that begins no window."""

    node: ast.AST
    loops: frozenset[int]
    guards: frozenset[tuple[int, bool]]


class _UncountedTable(dict[int, _UncountedBackward]):
    """The latest such backward of each engine that a graph uses, by the keys of the tracked objects."""


class _PreparingEngines(set[int]):
    """Engines that prepared objects in a file, by the keys of the tracked objects."""


class _MadeOptimizers(dict[tuple[int, str, frozenset[Module]], bool]):
    """Optimizers by the key of an engine and the name of the optimizer: True if the engine never receives it."""


class _MicrobatchTable(dict[int, _Microbatch]):
    """The latest microbatch of each engine that a graph uses, by the keys of the tracked objects."""


#: Number of microbatches in a window if the constructor gets no number.
_DEFAULT_STEPS = Const(1)


def call_framework(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the result of a call of a framework function, or None if the name is unknown."""
    entry = frameworks.find_entry(name)
    if entry is None:
        return None
    bound = bind_arguments(entry.parameters, args, keywords)
    handler = interp.handlers.framework_roles.get(entry.role)
    if handler is not None:
        return handler(interp, entry, bound, node)
    return first_or_named(args, keywords, entry.parameters[0]) or interp.fresh_unknown(node, name)


def _make_engine(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> FrameworkEngine:
    framework = frameworks.FRAMEWORK_OF[entry.name]
    known = FRAMEWORKS[framework].engine
    tracked_object = make_object(interp, "scaler", node)
    given = bound.get(known.precision.parameter)
    if given is None and known.precision.default is not None and "**" not in bound:
        given = Const(known.precision.default)
    elif given is None:
        # Engines of one program share a state, which the first engine determines.
        given = next((x.precision for x in interp.graph_data(EngineTable).values() if x.framework == framework), None)
    given, enabled, doubt = _resolve_precision(interp, given, framework, node)
    steps = None
    if known.accumulation.parameter:
        hidden = "**" in bound or any(name in bound for name in known.accumulation.other_parameters)
        steps = bound.get(known.accumulation.parameter) or (
            make_unknown_steps(interp, tracked_object) if hidden else _DEFAULT_STEPS
        )
    set_framework(tracked_object, framework, doubt)
    note_setup(interp, framework, node, tracked_object)
    made = FrameworkEngine(framework, tracked_object, enabled, None, given, steps, bound.get("optimizer"))
    interp.graph_data(EngineTable)[tracked_object.key] = made
    return made


def _check_accumulation_option(
    interp: Interpreter, engine: FrameworkEngine, known: frameworks.Engine, node: ast.AST
) -> None:
    """Report windows of one micro-batch where the code around has an option for their length, and passes it nowhere."""
    function = interp.state.frame.function
    site = engine.tracked_object.site
    if engine.accumulation_steps is not _DEFAULT_STEPS or function is None or site is None:
        return
    parameter = known.accumulation.parameter
    receiver = receiver_of(node)
    own = "" if receiver is None else access_text(receiver)
    option = next(
        (
            each
            for each in function.nodes
            if isinstance(each, ast.Attribute) and each.attr == parameter and access_text(each.value) != own
        ),
        None,
    )
    if option is not None:
        callables = FRAMEWORKS[engine.framework].callables
        constructor = next(entry.name for entry in callables if entry.role == frameworks.ENGINE)
        names = {
            "engine": receiver_text(node),
            "call": f"{constructor.rpartition('.')[2]}()",
            "parameter": parameter,
            "option": SourceText(option),
        }
        interp.emit_at(e.Window(site, how="single", names=names))


def set_framework(tracked_object: TrackedObject, framework: str, doubt: str) -> None:
    tracked_object.attributes.framework, tracked_object.attributes.doubt = framework, doubt


def note_setup(interp: Interpreter, framework: str, node: ast.AST, engine: TrackedObject | None = None) -> None:
    """Record the location where the engine of a framework is set up, for traces."""
    sites, site = interp.program.attributes.setup_sites, interp.site_of(node)
    sites.setdefault(framework, site)
    if engine is not None:
        sites[engine.key] = site


def make_unknown_steps(interp: Interpreter, tracked_object: TrackedObject) -> UnknownValue:
    return interp.unknown_value(("steps", tracked_object.key), "")


def _resolve_precision(
    interp: Interpreter, given: Value | None, framework: str, node: ast.AST
) -> tuple[Value, Formula, str]:
    """Return a precision, the condition that losses are scaled in this precision, and the severity of the doubt."""
    values = FRAMEWORKS[framework].engine.precision.scaled
    if not values:
        return NONE, True, ""
    if given is None or literal_value(given) is None:
        # All engines of a program without a precision of their own share a setting from outside the program.
        unknown = interp.unknown_value(("precision", framework), FRAMEWORKS[framework].engine.precision.parameter)
        return unknown, is_equal(interp, unknown, values[0], node), INFO
    enabled = disjunction(*(is_equal(interp, given, value, node) for value in values))
    known = isinstance(enabled, bool) or any(literal_value(v) in values for v in given.alternatives())
    return given, enabled, "" if known else WARNING


def make_used_engine(
    interp: Interpreter, framework: str, value: UnknownValue, text: str, node: ast.AST
) -> FrameworkEngine:
    """Return an engine for a value from elsewhere that is used as an engine of a framework."""
    tracked_object = interp.tracked_object(("used", value.key), "scaler", text, interp.site_of(node))
    precision, enabled, doubt = _resolve_precision(interp, None, framework, node)
    set_framework(tracked_object, framework, doubt)
    steps = make_unknown_steps(interp, tracked_object) if FRAMEWORKS[framework].engine.accumulation.parameter else None
    return FrameworkEngine(framework, tracked_object, enabled, value, precision, steps)


def _make_passed_wrapper(interp: Interpreter, framework: str, value: UnknownValue, text: str, node: ast.AST) -> Value:
    """Return an engine for the wrapper that a framework passes, which scales where the user configures it so.

    A wrapper from the code itself is the optimizer that it seems to be.
    """
    holder = node
    while isinstance(holder, ast.Subscript):
        holder = holder.value
    held: Value | None = interp.state.frame.vars.get(holder.id) if isinstance(holder, ast.Name) else None
    held = value if held is None else held.before_recognition()
    if not isinstance(held, UnknownValue) or not held.origin.is_argument:
        optimizer = interp.tracked_object(("used", value.key), "optimizer", text, interp.site_of(node))
        return ObjectRef(optimizer, True, value)
    engine = make_used_engine(interp, framework, value, text, node)
    engine.tracked_object.attributes.doubt = INFO
    return engine


def make_annotated_engine(
    interp: Interpreter, class_name: str, value: UnknownValue, parameter: ast.arg
) -> Value | None:
    """Return an engine for a parameter annotated with an engine class, or None for another annotation."""
    entry = frameworks.find_entry(class_name)
    if entry is None or entry.role != frameworks.ENGINE:
        return None
    return make_used_engine(interp, frameworks.FRAMEWORK_OF[entry.name], value, parameter.arg, parameter)


def call_engine_method(
    interp: Interpreter, engine: FrameworkEngine, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    interp.graph_data(EngineTable).setdefault(engine.tracked_object.key, engine)
    known = FRAMEWORKS[engine.framework].engine
    does = known.methods.get(name)
    if does == frameworks.ACCUMULATE:
        engine.tracked_object.attributes.accumulates = True
        begun = _Microbatch(interp.site_of(node), interp.current_loops(), frozenset(interp.active_guards()))
        interp.graph_data(_MicrobatchTable)[engine.tracked_object.key] = begun
        _check_accumulation_option(interp, engine, known, node)
    if does in (frameworks.BACKWARD, frameworks.UPDATE_PARAMS):
        divides = does == frameworks.UPDATE_PARAMS or known.accumulation.divides_losses
        _run_backward(interp, engine, first_or_named(args, keywords, "loss"), node, divides=divides)
    if does in (frameworks.STEP, frameworks.UPDATE_PARAMS):
        key, names = _find_wrapped_optimizer(interp, engine, node)
        _emit_step(interp, engine, key, node, names, sure=True)
    if does in (frameworks.ZERO_GRAD, frameworks.UPDATE_PARAMS):
        key, names = _find_wrapped_optimizer(interp, engine, node)
        interp.emit(e.ZeroGrad, node, owners=(key,), names=names)
    if does in _GIVE_NONE:
        return NONE
    if does in (frameworks.UNSCALE, frameworks.UNSCALE_ONE):
        given = optimizer_keys_in([*args, *keywords.values()]) if does == frameworks.UNSCALE_ONE else ()
        _emit_unscale(interp, engine, given, node, raises=_raises_if_nonfinite(known, name, args, keywords))
        if engine.enabled is False and name.startswith("clip_grad_") and args and isinstance(args[0], ParamsValue):
            # Without a scaler, the engine clips as torch does.
            return emit_clip(interp, args[0], args[1:], keywords, node)
        return interp.fresh_unknown(node)
    if does == frameworks.NO_SYNC:
        enabled = keywords.get("enabled", args[1] if len(args) > 1 else None)
        return NoSyncContext(True if enabled is None else truth_of(interp, enabled, node=node))
    if does == frameworks.PREPARE:
        return _call_prepare(interp, engine, args, node)
    if does == frameworks.GIVE_BACK and args:
        if name == "setup_module":
            _prepare(interp, engine, args[0])
        return args[0]
    if does == frameworks.LOAD:
        return load_scaler(interp, engine, args, keywords, node)
    give = _GIVE.get(does or "")
    if give is not None:
        return give(interp, engine, node)
    return call_unknown(
        interp,
        structural_unknown(interp, Operation.METHOD, (engine,), expression_text(node), name),
        args,
        keywords,
        node,
    )


def call_engine(interp: Interpreter, engine: FrameworkEngine, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a scaler of timm: scale, run backward, and when due, unscale, clip, step and update.

    A scaler recognized by name only is modeled in the same manner, but the keyword for the update is not known. If the
    call has further arguments by position, the scaler is none of timm's and may also clear the gradients.
    """
    order = FRAMEWORKS[engine.framework].engine.call_parameters
    if not order:
        return call_unknown(interp, engine, args, keywords, node)
    bound = bind_arguments(order if engine.recognized_from is None else order[:2], args, keywords)
    scaler = ObjectRef(engine.tracked_object)
    scaled = scale_value(interp, scaler, bound.get("loss"), node)
    for tensor in tensors_in(scaled):
        run_backward(interp, tensor, node, names=make_loss_names(engine.tracked_object.name, node))
    optimizer = bound.get("optimizer", NONE)
    names: dict[str, object] = {"scaler": engine.tracked_object.name, "call": expression_text(node)}

    may_clear = engine.recognized_from is not None and len(args) > len(order[:2])

    def step_optimizer(key: int, _: object) -> None:
        interp.emit(e.ScalerStep, node, scaler.tracked_object.key, key, framework=engine.framework, names=names)
        if may_clear:
            interp.emit(e.ZeroGrad, node, owners=(key,), names=names)

    updates = next((value for name, value in bound.items() if "update" in name), Const(True))
    run_branches(
        interp,
        truth_of(interp, updates, node=node),
        lambda: act_on_optimizers(interp, optimizer, node, step_optimizer),
        lambda: None,
    )
    return NONE if engine.recognized_from is None else interp.fresh_unknown(node)


def _get_engine_attribute(interp: Interpreter, engine: FrameworkEngine, name: str, node: ast.AST) -> Value | None:
    known = get_scaler_attribute(interp, engine, name, node)
    if known is not None:
        return known
    known_engine = FRAMEWORKS[engine.framework].engine
    if name in known_engine.methods:
        return BoundMethod(engine, name)
    if name == "optimizer" and engine.optimizer is not None:
        return engine.optimizer
    meaning = known_engine.attributes.get(name)
    if meaning == frameworks.SCALER:
        scaler = ObjectRef(engine.tracked_object)
        return (
            scaler if engine.enabled is True else UnionValue([(engine.enabled, scaler), (negate(engine.enabled), NONE)])
        )
    if meaning == frameworks.ACCUMULATION:
        return engine.accumulation_steps
    if meaning == frameworks.PRECISION:
        return engine.precision
    if meaning == frameworks.ITSELF:
        return engine
    if meaning == frameworks.NOTHING:
        return NONE
    return _make_sync_flag(interp, engine) if meaning == frameworks.WINDOW_END else None


def _make_sync_flag(interp: Interpreter, engine: FrameworkEngine) -> UnknownValue:
    """Return the flag that is true if this microbatch of accelerate ends a window."""
    attributes = FRAMEWORKS[engine.framework].engine.attributes
    flag = next(name for name, meaning in attributes.items() if meaning == frameworks.WINDOW_END)
    begun = interp.graph_data(_MicrobatchTable).get(engine.tracked_object.key)
    loops = interp.current_loops() if begun is None else begun.loops
    key = ("sync", engine.tracked_object.key, None if begun is None else loops)
    made = interp.unknown_value(key, f"{engine.tracked_object.name}.{flag}", loops)
    made.loops |= loops
    made.count = made.count._replace(is_counter=True)
    return made


def _run_at_window_end(interp: Interpreter, engine: FrameworkEngine, node: ast.AST, act: Callable[[], None]) -> None:
    """Run an action only at the end of a window.

    Optimizers of accelerate neither step nor clear inside a window of ``accumulate``.
    """
    if (
        engine.tracked_object.attributes.accumulates
        and engine.accumulation_steps is not None
        and literal_value(engine.accumulation_steps) != 1
        and not _is_on_other_path(interp, engine)
    ):
        run_branches(interp, truth_of(interp, _make_sync_flag(interp, engine), node=node), act, lambda: None)
    else:
        act()


def _is_on_other_path(interp: Interpreter, engine: FrameworkEngine) -> bool:
    """Return True if the current code runs only where the engine's latest microbatch does not."""
    begun = interp.graph_data(_MicrobatchTable).get(engine.tracked_object.key)
    active = set(interp.active_guards())
    return begun is not None and any((key, not truth) in active for key, truth in begun.guards)


def _set_engine_attribute(
    interp: Interpreter, receiver: FrameworkEngine, name: str, value: Value, target: ast.Attribute
) -> bool:
    steps = FRAMEWORKS[receiver.framework].engine.accumulation.parameter
    if steps and steps == name:
        receiver.accumulation_steps = value
        return True
    return False


def _run_backward(
    interp: Interpreter, engine: FrameworkEngine, value: Value | None, node: ast.AST, *, divides: bool
) -> None:
    if isinstance(value, UnionValue):
        for_each_alternative(interp, value, lambda v: _run_backward_of(interp, engine, v, node, divides))
    else:
        _run_backward_of(interp, engine, value, node, divides)


def _run_backward_of(
    interp: Interpreter, engine: FrameworkEngine, value: Value | None, node: ast.AST, divides: bool
) -> Value:
    loss = as_loss(value)
    if divides and engine.accumulation_steps is not None:
        _note_uncounted(interp, engine, node)
        report_framework_division(interp, loss, engine.accumulation_steps, FRAMEWORKS[engine.framework].title, node)
        # The window of `accumulate` fits the divisor, also without the argument: the environment may set both.
        is_fitting = engine.tracked_object.attributes.accumulates or literal_value(engine.accumulation_steps) != 1
        loss.set_divided(is_divided=loss.normalization.is_divided or is_fitting)
    names = make_loss_names(receiver_text(node) or engine.tracked_object.name, node)

    own_scaler = loss.loss_scale.scaler_key if loss.loss_scale.scaler_key >= 0 else None

    def emit_backward(scaler: int | None, *, no_sync: bool) -> None:
        interp.emit(
            e.Backward,
            node,
            scaler,
            feeds=find_updating_optimizers(interp, loss.forwards.module_keys),
            division=e.LossDivision(is_divided=loss.normalization.is_divided),
            no_sync=no_sync,
            scaling=e.LossScaling(
                is_scaled=scaler is not None,
                may_have_scaled_gradient=(loss.origin.is_from_outside or loss.origin.is_from_gradient)
                and scaler is None,
            ),
            twice=scaler == engine.tracked_object.key and own_scaler is not None,
            dtypes=loss.provenance.region_dtypes,
            custom=loss.has_custom_backward,
            names=names,
        )

    if own_scaler is None and not isinstance(engine.enabled, bool) and loss.provenance.region_dtypes == {"float16"}:
        _mark_region_without_scaler(interp, engine)
    # A program with a scaler of its own leaves the precision of the engine off, unless it asks for scaling.
    is_off = own_scaler is not None and engine.precision is interp.unknown_values.get(("precision", engine.framework))

    def run_by_scaler(*, no_sync: bool) -> None:
        run_branches(
            interp,
            False if is_off else engine.enabled,
            lambda: emit_backward(engine.tracked_object.key, no_sync=no_sync),
            lambda: emit_backward(own_scaler, no_sync=no_sync),
        )

    run_branches(
        interp,
        disjunction(*interp.state.no_sync_conditions),
        lambda: run_by_scaler(no_sync=True),
        lambda: run_by_scaler(no_sync=False),
    )
    return NONE


def _mark_region_without_scaler(interp: Interpreter, engine: FrameworkEngine) -> None:
    """Mark the last float16 region, which is also entered where the engine does not scale the loss."""
    events = (node.event for node in reversed(interp.builder.nodes))
    regions = (event for event in events if isinstance(event, e.AutocastEnter) and event.enabled)
    region = next((event for event in regions if not event.without_gradients), None)
    if region is None or region.dtype != "float16":
        return
    deciding = {key for key, _ in literals(engine.enabled)}
    if deciding.isdisjoint(key for key, _ in region.guards):
        region.unscaled_by = FRAMEWORKS[engine.framework].title


def report_framework_division(
    interp: Interpreter, loss: TensorValue, steps: Value, framework: str, node: ast.AST
) -> None:
    keys = {number_key(interp, v) for v in steps.alternatives() if literal_value(v) not in (1, None)}
    texts = {v.text for v in steps.alternatives() if isinstance(v, UnknownValue)} - {""}
    emit_divided_twice(interp, loss, keys, texts, framework, f"in `{expression_text(node)}`")


def emit_divided_twice(
    interp: Interpreter,
    loss: TensorValue,
    keys: set[object],
    texts: set[str],
    framework: str,
    context: str,
    *,
    guessed: bool = False,
) -> None:
    """Emit an event for each division of a loss by a number that the framework also divides by.

    ``guessed`` means that only the name of the number says so.
    """
    for divisor in sorted(loss.normalization.divisors, key=lambda d: (d.site.line, d.site.column)):
        words = str(divisor.source_text)
        if divisor.key in keys or words in texts:
            event = e.DividedTwice(divisor.site, None, divisor=words, framework=framework, way=context, guessed=guessed)
            interp.emit_at(event)


def _raises_if_nonfinite(known: frameworks.Engine, name: str, args: Args, keywords: Keywords) -> bool:
    """Return True if a call of an engine's method raises on infinite gradients, because its default is not changed."""
    if name not in known.nonfinite_errors or "**" in keywords:
        return False
    parameters, threshold, flag = known.nonfinite_errors[name]
    bound = bind_arguments(parameters, args, keywords)
    return literal_value(bound.get(threshold, NONE)) is not None and literal_value(bound.get(flag, Const(True))) is True


def _emit_unscale(
    interp: Interpreter, engine: FrameworkEngine, optimizers: tuple[int, ...], node: ast.AST, *, raises: bool = False
) -> None:
    """Emit unscale events for the given optimizers, or for all, if this engine scaled the gradients.

    An unscale that raises on infinite gradients is emitted for an unknown optimizer, too.
    """
    names = {"scaler": receiver_text(node), "call": expression_text(node)}
    left_out = () if optimizers else _keys_never_prepared(interp, engine)
    raises = raises and not interp.state.try_depth

    def emit_each() -> None:
        own = optimizers or tuple(key for key in all_optimizer_keys(interp) if key not in left_out)
        keys: tuple[int | None, ...] = own or ((None,) if raises else ())
        for number, key in enumerate(keys):
            interp.emit(
                e.Unscale,
                node,
                engine.tracked_object.key,
                key,
                framework=engine.framework,
                nonfinite_error=raises and not number,
                names=names,
            )

    run_branches(interp, engine.enabled, emit_each, lambda: None)


def optimizer_keys_in(given: list[Value]) -> tuple[int, ...]:
    return tuple(ref.tracked_object.key for value in given if (ref := object_ref_of(value, "optimizer")) is not None)


def _call_prepare(interp: Interpreter, engine: FrameworkEngine, args: Args, node: ast.AST) -> Value:
    """Return the prepared objects that an engine returns."""
    interp.file_data(_PreparingEngines).add(engine.tracked_object.key)
    for value in args:
        _prepare(interp, engine, value)
    return args[0] if len(args) == 1 else SequenceValue(list(args), is_open=has_unknown_arguments(interp, node))


def _prepare(interp: Interpreter, engine: FrameworkEngine, value: Value) -> None:
    """Make all later steps of an optimizer, and calls of a module, go through an engine."""
    for item in items_of(value):
        _prepare(interp, engine, item)
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


def _is_never_prepared(
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


def _find_wrapped_optimizer(
    interp: Interpreter, engine: FrameworkEngine, node: ast.AST
) -> tuple[int, dict[str, object]]:
    """Return the key of the optimizer that an engine wraps, and the source names for messages."""
    optimizer = object_ref_of(engine.optimizer, "optimizer")
    if optimizer is None:
        tracked_object = interp.tracked_object(
            ("wrapped by", engine.tracked_object.key), "optimizer", engine.tracked_object.name, interp.site_of(node)
        )
    else:
        tracked_object = optimizer.tracked_object
    return tracked_object.key, {
        "optimizer": tracked_object.name,
        "scaler": engine.tracked_object.name,
        "call": expression_text(node),
    }


def _emit_step(
    interp: Interpreter, engine: FrameworkEngine, key: int, node: ast.AST, names: dict[str, object], *, sure: bool
) -> None:
    scaler = engine.tracked_object.key
    framework = engine.framework if sure else ""

    def emit_scaled() -> None:
        if FRAMEWORKS[engine.framework].steps.always_unscale:
            interp.emit(e.Unscale, node, scaler, key, framework=framework, names=names)
        interp.emit(e.ScalerStep, node, scaler, key, framework=framework, names=names)

    def emit_plain() -> None:
        interp.emit(e.Step, node, None, key, names=names)

    def emit_either() -> None:
        run_branches(interp, engine.enabled, emit_scaled, emit_plain)

    _run_at_window_end(interp, engine, node, emit_either)


def _clear_through_engine(interp: Interpreter, optimizer: ObjectRef, node: ast.AST, clear: Callable[[], None]) -> bool:
    """Clear gradients through the engine that prepared the optimizer. Return False if no engine did.

    The engine may skip the clearing inside a window.
    """
    engine = None if isinstance(optimizer, UnwrappedOptimizer) else _find_stepping_engine(interp, optimizer)
    if engine is None:
        return False
    steps = literal_value(engine.accumulation_steps)
    optimizer.tracked_object.attributes.may_have_no_window = not isinstance(steps, int) or steps < 2
    if steps != 1 and _is_before_microbatch(interp, engine, node):
        after_window = interp.unknown_value(
            ("after window", engine.tracked_object.key, interp.current_loops()), "", interp.current_loops()
        )
        after_window.count = after_window.count._replace(is_counter=True)
        run_branches(interp, truth_of(interp, after_window, node=node), clear, lambda: None)
    else:
        _run_at_window_end(interp, engine, node, clear)
    return True


def _note_uncounted(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> None:
    """Record a backward that divides by a given number of micro-batches, in files that never count them."""
    known = FRAMEWORKS[engine.framework].engine
    counts = {name for name, effect in known.methods.items() if effect in (frameworks.ACCUMULATE, frameworks.NO_SYNC)}
    counts.update(name for name, value in known.attributes.items() if value == frameworks.WINDOW_END)
    steps = engine.accumulation_steps
    is_hidden = isinstance(steps, UnknownValue) and steps.key == make_unknown_steps(interp, engine.tracked_object).key
    is_given = steps is not _DEFAULT_STEPS and not is_hidden and literal_value(steps) not in (1, None)
    modules = [interp.module, interp.state.frame.module, *(each.module for each in interp.active_functions)]
    is_uncounted = all(counts.isdisjoint(module.identifiers) for module in modules)
    if is_given and counts and interp.state.loops and is_uncounted:
        interp.graph_data(_UncountedTable)[engine.tracked_object.key] = _UncountedBackward(
            node, interp.current_loops(), frozenset(interp.active_guards())
        )


def _check_uncounted_step(interp: Interpreter, engine: FrameworkEngine) -> None:
    """Report a step of each micro-batch whose gradient was divided by the length of a window."""
    backward = interp.graph_data(_UncountedTable).get(engine.tracked_object.key)
    if backward is None or backward.loops != interp.current_loops():
        return
    # A condition of its own may begin windows by hand.
    if frozenset(interp.active_guards()) <= backward.guards:
        parameter = FRAMEWORKS[engine.framework].engine.accumulation.parameter
        names = {"engine": receiver_text(backward.node), "parameter": parameter}
        interp.emit_at(e.Window(interp.site_of(backward.node), how="unused", names=names))


def _is_before_microbatch(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> bool:
    """Return True if no microbatch has begun in the current iteration, although the file accumulates.

    The engine then still knows whether the previous microbatch ended a window, and clears if it did.
    """
    known = FRAMEWORKS[engine.framework].engine.methods
    begins = {name for name, effect in known.items() if effect == frameworks.ACCUMULATE}
    begun = interp.graph_data(_MicrobatchTable).get(engine.tracked_object.key)
    site = interp.site_of(node)
    has_begun = (
        begun is not None
        and begun.loops <= interp.current_loops()
        # A loop may be interpreted twice.
        and not (begun.site.function == site.function and begun.site.line > site.line)
    )
    return not has_begun and not begins.isdisjoint(interp.state.frame.module.identifiers)


def _find_stepping_engine(interp: Interpreter, optimizer: ObjectRef) -> FrameworkEngine | None:
    """Return the engine that prepared an optimizer, or the single ambient engine."""
    prepared = optimizer.tracked_object.attributes.engine
    if prepared is not None:
        assert isinstance(prepared[0], FrameworkEngine)
        return prepared[0]
    ambient = _find_ambient_engines(interp)
    if len(ambient) != 1 or _is_never_prepared(interp, ambient[0], optimizer.tracked_object):
        return None
    return ambient[0]


def _find_ambient_engines(interp: Interpreter) -> list[FrameworkEngine]:
    engines = interp.graph_data(EngineTable).values()
    return [engine for engine in engines if FRAMEWORKS[engine.framework].steps.through_engine]


def _keys_never_prepared(interp: Interpreter, engine: FrameworkEngine) -> list[int]:
    optimizers = (interp.program.objects[key] for key in all_optimizer_keys(interp))
    return [each.key for each in optimizers if _is_never_prepared(interp, engine, each)]


def _step_through_engine(interp: Interpreter, optimizer: ObjectRef, node: ast.AST, names: dict[str, object]) -> bool:
    """Step an optimizer through the engine that prepared the optimizer, or through the single ambient engine.

    Return False if the optimizer steps directly.
    """
    if isinstance(optimizer, UnwrappedOptimizer):
        return False
    key = optimizer.tracked_object.key
    prepared = optimizer.tracked_object.attributes.engine
    if prepared is not None:
        engine, guards = prepared
        assert isinstance(engine, FrameworkEngine)
        _check_uncounted_step(interp, engine)
        _emit_step(interp, engine, key, node, names, sure=guards <= set(interp.active_guards()))
        return True
    ambient = _find_ambient_engines(interp)
    is_sole = len(ambient) == 1
    if all(_is_never_prepared(interp, each, optimizer.tracked_object, is_sole=is_sole) for each in ambient):
        return False
    if is_sole:
        _emit_step(interp, ambient[0], key, node, names, sure=False)
    else:
        escape(interp, [optimizer], node)
    return True


def _make_region(interp: Interpreter, engine: FrameworkEngine, node: ast.AST) -> Value:
    """Return the autocast region that an engine enters."""
    known = FRAMEWORKS[engine.framework].engine
    tracked_object = make_object(interp, "autocast", node)
    enabled: Formula = True
    if known.precision.autocast:
        enabled = disjunction(*(is_equal(interp, engine.precision, value, node) for value in known.precision.autocast))
    region = tracked_object.attributes
    region.device, region.dtype, region.cache = "cuda", "float16" if engine.enabled is True else "?", True
    return ObjectRef(tracked_object, enabled)


#: Factories for the results of methods without further effect; the others return None.
_GIVE: dict[str, Callable[[Interpreter, FrameworkEngine, ast.AST], Value]] = {
    frameworks.AUTOCAST: _make_region,
    frameworks.NO_EFFECT: lambda interp, engine, node: NullContext(),
    frameworks.ACCUMULATE: lambda interp, engine, node: NullContext(),
    frameworks.STATE: take_state,
}
_GIVE_NONE = frozenset(
    (frameworks.BACKWARD, frameworks.UPDATE_PARAMS, frameworks.STEP, frameworks.ZERO_GRAD, frameworks.SAVE)
)


def register(handlers: HandlerTable) -> None:
    handlers.framework_roles[frameworks.ENGINE] = _make_engine
    handlers.recognizers.update(dict.fromkeys(FRAMEWORKS, make_used_engine))
    handlers.recognizers.update(
        dict.fromkeys((key for key, each in FRAMEWORKS.items() if each.engine.parameter_name), _make_passed_wrapper)
    )
    handlers.annotated_parameters.append(make_annotated_engine)
    handlers.calls["engine"] = call_engine
    handlers.methods["engine"] = call_engine_method
    handlers.attributes["engine"] = _get_engine_attribute
    handlers.attribute_writes["engine"] = _set_engine_attribute
    handlers.optimizer_step_handlers.append(_step_through_engine)
    handlers.zero_grad_handlers.append(_clear_through_engine)
