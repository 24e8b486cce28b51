"""LightningModules and Trainer hooks: code that a Trainer calls, in the precision of the Trainer."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.events import UNKNOWN
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.severities import ERROR, INFO, WARNING
from ...protocol.source_text import SourceText
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.classes.lineage import lineage_of
from ..interpreter.conditions import Formula
from ..interpreter.interpreter import HandlerTable, Interpreter, persistent_guards
from ..interpreter.joins import run_branches
from ..interpreter.source_text import expression_text
from ..interpreter.state import OpenRegion
from ..interpreter.values.containers import MappingValue, SequenceValue
from ..interpreter.values.definitions import Args, Instance, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.objects import FrameworkEngine, ObjectRef, UnwrappedOptimizer
from ..interpreter.values.value import NONE, Value
from ..project.module import Class, Function, Module
from .arguments import first_or_named, literal_value
from .framework_bases import derives_from
from .frameworks.backward import emit_divided_twice
from .frameworks.engines import make_used_engine, set_framework
from .frameworks.methods import call_engine_method
from .frameworks.steps import optimizer_keys_in
from .gradients import emit_clip
from .losses.backward import as_loss
from .syntax_queries import constant_of_node, elements_of, keywords_of, last_name

#: Methods that a Trainer runs under autocast.
STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
#: Methods that a Trainer runs while the gradients are still scaled; the Trainer unscales the gradients before the step.
SCALED = frozenset({"on_after_backward"})
#: Methods of every LightningModule without effect on gradients and optimizers.
HARMLESS = frozenset(
    "log log_dict print toggle_optimizer untoggle_optimizer lr_schedulers save_hyperparameters all_gather freeze "
    "unfreeze".split()
)
#: Method that only LightningModules have.
_MANUAL_BACKWARD = "manual_backward"


class TrainerCalls:
    """The ``Trainer`` calls of one file."""

    def __init__(self, module: Module) -> None:
        calls = module.find_nodes(ast.Call)
        self.keyword_nodes = [keywords_of(call) for call in calls if last_name(call.func) == "Trainer"]

    def rate_precisions(self, precisions: tuple[object, ...]) -> str | None:
        """Return the severity with which the Trainers are known to use one of the precisions, or None.

        None means that no Trainer uses one of the precisions. Return ``info`` if no Trainer call is known.
        """
        known = [self._rate_call(call, precisions) for call in self.keyword_nodes]
        if not known:
            return INFO
        return next((severity for severity in (ERROR, WARNING, INFO) if severity in known), None)

    def find_region_dtype(self) -> str:
        """Return the dtype of the regions that the Trainers enter, or "" if it is not known or they differ."""
        given = [call.get("precision") for call in self.keyword_nodes]
        dtypes = {frameworks.REGION_DTYPES.get(constant_of_node(node), "") for node in given}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @staticmethod
    def _rate_call(call: dict[str | None, ast.expr], precisions: tuple[object, ...]) -> str | None:
        given = call.get("precision")
        if given is None:
            return INFO if None in call or "plugins" in call else None
        precision = constant_of_node(given)
        return WARNING if precision is UNKNOWN else ERROR if precision in precisions else None

    def find_divisions(self) -> tuple[set[object], set[str]]:
        """Return the numbers of accumulated microbatches: keys of constants, and source texts of other expressions."""
        given = [call["accumulate_grad_batches"] for call in self.keyword_nodes if "accumulate_grad_batches" in call]
        numbers = map(constant_of_node, given)
        keys: set[object] = {("const", repr(float(n))) for n in numbers if isinstance(n, int) and n > 1}
        return keys, {str(SourceText(node)) for node in given if constant_of_node(node) is UNKNOWN}


class TrainersByPath(dict[str, TrainerCalls]):
    """The Trainer calls of files, by path."""


def _find_trainers(interp: Interpreter, module: Module) -> TrainerCalls:
    known = interp.file_data(TrainersByPath)
    found = known.get(module.path)
    if found is None:
        found = known[module.path] = TrainerCalls(module)
    return found


def _prepare_entry_point(interp: Interpreter, function: Function) -> None:
    """Prepare the state for an entry point that a Trainer may run under autocast, or between backward and step."""
    if function.name in STEPS and _is_lightning(interp, function.cls):
        trainers = _find_trainers(interp, function.module)
        interp.state.ambient_autocast = trainers.rate_precisions(frameworks.MIXED)
        dtype = trainers.find_region_dtype()
        if dtype and not _has_manual_optimization(interp, function.cls):
            interp.state.open_regions = [*interp.state.open_regions, OpenRegion(True, "cuda", dtype)]
    if _sees_scaled_grads(interp, function):
        _emit_trainer_backward(interp, function)


def _sees_scaled_grads(interp: Interpreter, function: Function) -> bool:
    """Return True if a Trainer runs a function between backward and step, before the Trainer unscales the gradients."""
    return (
        function.name in SCALED
        and _is_lightning(interp, function.cls)
        and not _has_manual_optimization(interp, function.cls)
    )


def _emit_trainer_backward(interp: Interpreter, function: Function) -> None:
    """Emit the backward that a Trainer ran before calling a hook on the gradients."""
    assert function.cls is not None
    engine, node = _make_engine(interp, function.cls, function.node), function.node
    optimizer = _trained_optimizer(interp, function.cls)
    optimizer.attributes.engine = (engine, persistent_guards(interp))
    interp.emit(e.OptimizerNew, node, optimizer.key, found=True)

    def emit_backward(scaler: int | None) -> None:
        loss = as_loss(interp.fresh_unknown(node))
        interp.emit(
            e.Backward,
            node,
            scaler,
            feeds=(optimizer.key,),
            division=e.DIVIDED,
            scaling=e.LossScaling(is_scaled=scaler is not None),
            dtypes=loss.provenance.region_dtypes,
            custom=loss.has_custom_backward,
            names={},
        )

    run_branches(interp, engine.enabled, lambda: emit_backward(engine.tracked_object.key), lambda: emit_backward(None))


def _trained_optimizer(interp: Interpreter, cls: Class) -> TrackedObject:
    """Return the optimizer that a Trainer steps for a LightningModule."""
    return interp.tracked_object(("optimizer of", cls.node), "optimizer", "", interp.site_of(cls.node))


def _finish_entry_point(interp: Interpreter, function: Function, value: Value) -> None:
    """Finish an entry point as a Trainer does.

    The Trainer divides the loss from ``training_step`` and runs backward. The Trainer steps after a hook.
    """
    if _sees_scaled_grads(interp, function) and function.cls is not None:
        optimizer = ObjectRef(_trained_optimizer(interp, function.cls))
        interp.call_method(optimizer, "step", [], {}, function.node)
        interp.call_method(optimizer, "zero_grad", [], {}, function.node)
    if function.name == "configure_optimizers" and _is_lightning(interp, function.cls):
        _mark_trained_models(interp, value)
    if (
        function.name != "training_step"
        or not _is_lightning(interp, function.cls)
        or _has_manual_optimization(interp, function.cls)
    ):
        return
    loss = as_loss(value.items.get("loss", NONE) if isinstance(value, MappingValue) else value)
    keys, texts = _find_trainers(interp, function.module).find_divisions()
    own = {text for d in loss.normalization.divisors if (text := str(d.source_text)).endswith(frameworks.TRAINER_STEPS)}
    emit_divided_twice(
        interp, loss, keys, texts | own, FRAMEWORKS[frameworks.LIGHTNING].title, "in automatic optimization"
    )


def _is_lightning(interp: Interpreter, cls: Class | None) -> bool:
    """Return True for a LightningModule, and for a mixin or a subclass of an unanalyzed class that can be nothing else.

    Such a class calls a method of its own that only LightningModules have.
    """
    if cls is None or derives_from(interp, cls, FRAMEWORKS[frameworks.LIGHTNING].base_class):
        return cls is not None
    lineage = lineage_of(interp, cls)
    if all(_MANUAL_BACKWARD not in owner.module.identifiers for owner in lineage):
        return False
    methods = [method for owner in lineage for method in owner.methods.values()]
    return all(method.name != _MANUAL_BACKWARD for method in methods) and any(map(_runs_manual_backward, methods))


def _runs_manual_backward(method: Function) -> bool:
    own = [parameter.arg for parameter in method.parameters()[:1]]
    return _MANUAL_BACKWARD in method.attributes_used() and any(
        isinstance(node, ast.Attribute) and node.attr == _MANUAL_BACKWARD and last_name(node.value) in own
        for node in method.nodes
    )


def _has_manual_optimization(interp: Interpreter, cls: Class | None) -> bool:
    """Return True if a method of a class assigns ``automatic_optimization``."""
    owners = lineage_of(interp, cls) if cls is not None else []
    return any("automatic_optimization" in owner.assignments for owner in owners)


def _call_inherited_method(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    if not _is_lightning(interp, receiver.cls):
        return None
    if name in HARMLESS:
        return interp.fresh_unknown(node, name)
    if name == _MANUAL_BACKWARD:
        return call_engine_method(interp, _make_engine(interp, receiver.cls, node), name, args, keywords, node)
    if name == "optimizers":
        is_unwrapped = literal_value(first_or_named(args, keywords, "use_pl_optimizer")) is False
        return _call_optimizers(interp, receiver, node, is_unwrapped=is_unwrapped)
    if name == "clip_gradients":
        owners = optimizer_keys_in(args[:1])
        params = ParamsValue(None, frozenset(owners)) if owners else None
        limit = keywords.get("gradient_clip_val")
        return emit_clip(interp, params, args[1:] or ([limit] if limit is not None else []), {}, node)
    return None


def _get_inherited_attribute(interp: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    trainer = FRAMEWORKS[frameworks.HUGGING_FACE]
    framework = trainer.inner_engines.get(name)
    if framework is None or not derives_from(interp, receiver.cls, trainer.base_class):
        return None
    unknown = interp.unknown_value(("attribute of", receiver.key, name), expression_text(node))
    return make_used_engine(interp, framework, unknown, f"self.{name}", node)


def _mark_trained_models(interp: Interpreter, returned: Value) -> None:
    """Mark the models of the optimizers that ``configure_optimizers`` returns, alone, in lists or in a dict."""
    todo = [returned]
    for value in todo:
        if isinstance(value, ObjectRef) and value.role == "optimizer":
            for key in value.tracked_object.attributes.owns or ():
                interp.program.objects[key].attributes.set_trainer(is_float16=False)
        else:
            todo += [part for part in (*value.alternatives(), *value.contained_values()) if part is not value]


def _make_engine(interp: Interpreter, cls: Class, node: ast.AST) -> FrameworkEngine:
    """Return the engine that scales the losses of a LightningModule."""
    tracked_object = interp.tracked_object((frameworks.LIGHTNING, cls.node), "scaler", "self", interp.site_of(node))
    doubt = _find_trainers(interp, cls.module).rate_precisions(frameworks.FLOAT16_MIXED)
    if doubt == INFO and not interp.program.attributes.lightning16:
        doubt = None
    enabled: Formula = doubt is not None
    if doubt in (WARNING, INFO):
        enabled = interp.predicate_formula(
            ("precision", tracked_object.key), "the Trainer's precision is '16-mixed'", frozenset(), node
        )
    set_framework(tracked_object, frameworks.LIGHTNING, doubt or "")
    return FrameworkEngine(frameworks.LIGHTNING, tracked_object, enabled)


def _call_optimizers(interp: Interpreter, receiver: Instance, node: ast.AST, *, is_unwrapped: bool) -> Value:
    """Return the result of ``self.optimizers()``: one optimizer for each unpacked name, or one optimizer for all.

    With ``is_unwrapped``, the optimizers are plain torch optimizers, without the Lightning wrapper that steps through
    the scaler.
    """
    names = _find_unpacked_names(interp, node)
    engine = _make_engine(interp, receiver.cls, node) if _has_manual_optimization(interp, receiver.cls) else None
    made: list[Value] = []
    for place, name in enumerate(names or [""]):
        tracked_object = interp.tracked_object(
            ("optimizers of", receiver.cls.node, place, len(names)), "optimizer", name, interp.site_of(node)
        )
        tracked_object.attributes.several = not names
        interp.emit(e.OptimizerNew, node, tracked_object.key, found=True)
        if engine is not None:
            tracked_object.attributes.engine = (engine, persistent_guards(interp))
        made.append(UnwrappedOptimizer(tracked_object) if is_unwrapped else ObjectRef(tracked_object))
    return SequenceValue(made) if names else made[0]


def _find_unpacked_names(interp: Interpreter, node: ast.AST) -> list[str]:
    """Return the names that the current function unpacks the result of a call to, or an empty list."""
    function = interp.state.frame.function
    for assign in function.find_nodes(ast.Assign) if function is not None else ():
        if assign.value is node and len(assign.targets) == 1:
            targets = elements_of(assign.targets[0])
            return [last_name(target) for target in targets] if all(map(last_name, targets)) else []
    return []


def register(handlers: HandlerTable) -> None:
    handlers.entry_start_listeners.append(_prepare_entry_point)
    handlers.entry_end_listeners.append(_finish_entry_point)
    handlers.inherited_methods.append(_call_inherited_method)
    handlers.inherited_attributes.append(_get_inherited_attribute)
