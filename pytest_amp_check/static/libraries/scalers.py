"""Models of scalers: construction and methods."""

from __future__ import annotations

import ast
import re
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events import Flag, Symbol
from ...protocol.source_text import find_access_path
from ..interpreter.classes.bound_methods import find_own_method
from ..interpreter.conditions import Formula, implied_literals, literals, negate
from ..interpreter.formulas import is_none
from ..interpreter.functions import has_unknown_arguments, inline_call
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import for_each_alternative, join_values, residual_condition, run_branches, split_on
from ..interpreter.source_text import expression_text, loop_text, receiver_text
from ..interpreter.tensors import unknown_tensor
from ..interpreter.unanalyzed_code import call_unknown
from ..interpreter.values.containers import SequenceValue, UnionValue
from ..interpreter.values.definitions import Args, BoundMethod, FunctionValue, Instance, Keywords
from ..interpreter.values.gradients import ScaleValue
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, ConditionValue, Const, Value
from ..project.module import Class
from ..project.syntax import walk
from .arguments import bind_arguments, first_or_named, literal_value, make_object, map_items, to_attribute_value
from .checkpoints import entry_of_state, take_state
from .copied_scalers import is_copied_scale
from .flags import is_flag
from .framework_bases import find_base_that_saves
from .local_scalers import is_local_scaler, may_be_none
from .losses.backward import backward_gradient_of, emit_penalty, make_loss_names, run_backward
from .optimizers import act_on_optimizers, steps_through_scaler
from .overhead import RepeatedCosts
from .owners import all_optimizer_keys
from .regions import enabled_condition
from .sharding import find_sharding_in_class, has_local_shards
from .syntax_queries import constant_of_node, find_nodes, keywords_of, last_name, receiver_of


def _call_scaler_method(
    interp: Interpreter, scaler: ObjectRef, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    own = find_own_method(interp, scaler, name)
    if own is not None and is_copied_scale(interp, own.function):
        scaler.tracked_object.attributes.is_copy = True
    elif own is not None:
        return inline_call(interp, own, args, keywords, node)
    if name not in torch_api.SCALER_METHODS:
        return structural_unknown(interp, Operation.CALL, (scaler, *args), name, name)
    if name == "is_enabled":
        return _enabled_value(scaler)
    if name == "get_scale":
        interp.graph_data(RepeatedCosts).scale_reads[id(node)] = scaler.tracked_object
        return ScaleValue(scaler.tracked_object.key, interp.current_loops())
    if name == "state_dict":
        if not interp.state.handler_depth:  # An error may occur at any time: the current state is saved.
            interp.emit(e.ScalerState, node, scaler.tracked_object.key, names={"scaler": receiver_text(node)})
        return take_state(interp, scaler, node)
    if name == "load_state_dict":
        return load_scaler(interp, scaler, args, keywords, node)
    enabled = partial(_call_enabled_scaler, interp, scaler, name, args, keywords, node)
    disabled = partial(_call_disabled_scaler, interp, name, args, keywords, node)
    live = residual_condition(interp, scaler.enabled)
    if isinstance(live, bool):
        return enabled() if live else disabled()
    results: list[Value] = []
    run_branches(interp, live, lambda: results.append(enabled()), lambda: results.append(disabled()))
    return join_values(interp, live, results[0], results[1], "scaled")


#: Methods that keep the value of the scale, a tensor in the scaler.
_SAME = frozenset("item clone detach to float double cpu cuda squeeze view reshape".split())


def _call_scale_method(
    interp: Interpreter, scale: ScaleValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    if name in _SAME:
        return scale
    if name == "backward" and not scale.is_inverse:
        # An unknown value times the scale is a number, or a loss that other code may have divided.
        loss = unknown_tensor(interp.fresh_unknown(node))
        loss.normalization = loss.normalization._replace(is_divided=True)
        loss.loss_scale = loss.loss_scale._replace(scaler_key=scale.scaler_key)
        run_backward(interp, loss, node, backward_gradient_of(args, keywords))
        return NONE
    if name == "reciprocal":
        return ScaleValue(
            scale.scaler_key, scale.loops, is_inverse=not scale.is_inverse, may_be_outdated=scale.may_be_outdated
        )
    return interp.handlers.methods[""](interp, scale, name, args, keywords, node)


def _enabled_value(scaler: ObjectRef) -> Value:
    return ConditionValue(scaler.enabled) if not isinstance(scaler.enabled, bool) else Const(scaler.enabled)


def load_scaler(interp: Interpreter, scaler: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Load a saved state into a scaler."""
    _, name_of_entry = entry_of_state(first_or_named(args, keywords, "state_dict"))
    interp.emit(e.ScalerLoad, node, scaler.tracked_object.key, entry=name_of_entry)
    return NONE


def _call_disabled_scaler(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a disabled scaler.

    ``scale`` returns the argument, ``step`` steps the optimizer, and other methods do nothing.
    """
    target = first_or_named(args, keywords, "outputs" if name == "scale" else "optimizer")
    if name == "scale" and target is not None:
        return target
    if name == "step" and target is not None:
        act_on_optimizers(interp, target, node, lambda key, names: interp.emit(e.Step, node, None, key, names=names))
    return NONE


def _require_scaler(interp: Interpreter, scaler: ObjectRef, node: ast.AST) -> None:
    """Record that a scaler from other code, which the file compares with None, is not None where its method runs."""
    name = last_name(receiver_of(node))
    tests = rf"\b{name} is (?:not )?None|\bif (?:not )?(?:\w+\.)*{name}\b"
    if scaler.recognized_from is None or re.search(tests, interp.module.text) is None:
        return
    condition = residual_condition(interp, negate(is_none(interp, scaler)))
    if not isinstance(condition, bool):
        interp.state.current_node, _ = split_on(interp, condition)


def _call_enabled_scaler(
    interp: Interpreter, scaler: ObjectRef, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    key = scaler.tracked_object.key
    words = {"scaler": receiver_text(node), "call": expression_text(node)}
    if name == "scale":
        _require_scaler(interp, scaler, node)
        value = first_or_named(args, keywords, "outputs")
        return scale_value(interp, scaler, value, node)
    if name == "update":
        given = literal_value(first_or_named(args, keywords, "new_scale") or NONE) is not None
        items = None if given else _find_stepped_items(interp, node)
        words |= {} if items is None else {"iterable": expression_text(items)}
        interp.emit(e.Update, node, key, new_scale=given, for_each=items is not None, names=words)
        return NONE
    if name in ("step", "unscale_"):
        target = first_or_named(args, keywords, "optimizer")
        if target is None:
            return NONE
        if isinstance(target, SequenceValue) and has_unknown_arguments(interp, node):
            target = target.items[0] if target.items else interp.fresh_unknown(node)
        if name == "unscale_" and isinstance(target, Instance) and steps_through_scaler(interp, target.cls):
            _unscale_wrapper(interp, target, words, node)
            return interp.fresh_unknown(node, name)
        closure = name == "step" and isinstance(first_or_named(args[1:], keywords, "closure"), FunctionValue)

        def emit_for_optimizer(optimizer: int, names: dict[str, object]) -> None:
            if name == "step":
                unsynchronized_reason = find_unsynchronized_reason(interp, scaler, optimizer)
                names = {**words, **names}
                interp.emit(
                    e.ScalerStep,
                    node,
                    key,
                    optimizer,
                    closure=closure,
                    has_named_closure=closure and "closure" in keywords,
                    unsynchronised=unsynchronized_reason,
                    names=names,
                )
            else:
                interp.emit(e.Unscale, node, key, optimizer, names={**words, **names})

        act_on_optimizers(interp, target, node, emit_for_optimizer)
        return interp.fresh_unknown(node, name)
    return interp.fresh_unknown(node, name)


def _unscale_wrapper(interp: Interpreter, wrapper: Instance, words: dict[str, object], node: ast.AST) -> None:
    """Divide the gradients of the optimizer in a wrapper.

    The scaler notes the division for the wrapper, so it divides again where the wrapper passes the optimizer to its
    step.
    """
    values = (value for _, value in interp.stored_attributes(wrapper.key))
    inner = [v.tracked_object for v in values if isinstance(v, ObjectRef) and v.tracked_object.role == "optimizer"]
    if inner:
        names = {**words, "optimizer": inner[0].name}
        interp.emit(e.GradDivide, node, owners=tuple(each.key for each in inner), names=names)


def _find_stepped_items(interp: Interpreter, node: ast.AST) -> ast.expr | None:
    """Return the iterable of the loop around an update whose items the scaler steps there, or None.

    The gradients then come from a backward before the loop. None also for an update under a condition in the loop: the
    condition may be true for the last item only.
    """
    loop = interp.state.loops[-1] if interp.state.loops else None
    if loop is None or loop.uniform_node is None:
        return None
    events = [each.event for each in interp.builder.nodes[loop.first_node :]]
    stepped = any(isinstance(event, e.ScalerStep) for event in events)
    if not stepped or any(isinstance(event, e.Backward) for event in events):
        return None
    unconditional = any(isinstance(each, ast.Expr) and each.value is node for each in loop.uniform_node.body)
    return loop.uniform_node.iter if unconditional else None


def scale_value(interp: Interpreter, scaler: ObjectRef, value: Value | None, node: ast.AST) -> Value:
    """Return the result of ``scaler.scale(value)``."""
    if isinstance(value, UnionValue):
        return for_each_alternative(interp, value, lambda v: scale_value(interp, scaler, v, node))
    if isinstance(value, SequenceValue):
        return map_items(value, lambda item: scale_value(interp, scaler, item, node))
    made = value.copy() if isinstance(value, TensorValue) else unknown_tensor(value)
    names = make_loss_names(receiver_text(node), node)
    if made.penalty_source is not None:
        emit_penalty(interp, made, node)
    interp.emit(
        e.Scale,
        node,
        scaler.tracked_object.key,
        autocast=made.provenance.autocast_scope,
        loss_in_region=made.in_region,
        forward_read=made.forwards.has_known_modules,
        has_penalty=made.has_penalty,
        dtypes=made.provenance.region_dtypes,
        forward=made.forwards.first_event,
        callees=made.provenance.callees,
        bare=False,
        twice=made.loss_scale.scaler_key >= 0,
        names=names,
    )
    made.loss_scale = made.loss_scale._replace(scaler_key=scaler.tracked_object.key)
    return made


#: A condition that holds for bfloat16 only, and the text that it compares.
_BF16_TEXT = r"(?:'bf(?:loat)?16(?:-mixed)?'|\"bf(?:loat)?16(?:-mixed)?\")"
_ASKS_FOR_BF16 = re.compile(rf"== {_BF16_TEXT}$|^{_BF16_TEXT} == ")
#: A test for several dtypes, of which bfloat16 is one: ``dtype in ("float16", "bfloat16")``.
_INCLUDES_BF16 = re.compile(
    rf"(?<! not) in [(\[{{][^()\[\]{{}}]*(?:{_BF16_TEXT}|\btorch\.bfloat16\b)[^()\[\]{{}}]*[)\]}}]$"
)
#: A flag that chooses bfloat16, as one of several reasons for a scaler.
_CHOOSES_BF16 = re.compile(rf"(?:^|[._])bf(?:loat)?16$|{_ASKS_FOR_BF16.pattern}")


def _find_bf16_condition(interp: Interpreter, enabled: Formula) -> str:
    """Return the source text of a condition for bfloat16 under which a scaler is constructed and enabled, or "".

    The condition holds on every path to the current node, or is an alternative of such a condition.
    """
    conditions = [*interp.state.path_condition, *([] if isinstance(enabled, bool) else [enabled])]
    required = [pair for formula in interp.state.path_condition for pair in implied_literals(formula)]
    texts = [str(interp.graph.predicates[key].text) for key, truth in required if truth]
    enabling = [] if isinstance(enabled, bool) else implied_literals(enabled)
    included = [*texts, *(str(interp.graph.predicates[key].text) for key, truth in enabling if truth)]
    # A condition inside may decide the alternative.
    known_true = {("test", key) for key, truth in required if truth}
    # A scaler with a condition of its own may be enabled for float16 alone.
    alternatives = [
        str(interp.graph.predicates[part[1]].text)
        for formula in (conditions if enabled is True else conditions[-1:])
        if not isinstance(formula, bool) and formula[0] == "or" and known_true.isdisjoint(formula[1:])
        for part in formula[1:]
        if part[0] == "test"
    ]
    return (
        next(filter(_ASKS_FOR_BF16.search, texts), "")
        or next(filter(_INCLUDES_BF16.search, included), "")
        or next(filter(_CHOOSES_BF16.search, alternatives), "")
    )


#: Decorators that call a function once and keep its result.
_CACHES = frozenset(("cached_property", "cache", "lru_cache"))


def _make_scaler(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    enabled = enabled_condition(interp, bound, node, open_ended="**" in bound)
    tracked_object = make_object(interp, "scaler", node)
    arguments = {name: to_attribute_value(interp, value) for name, value in bound.items()}
    if not isinstance(enabled, bool) and _asks_for_bfloat16(keywords_of(node).get("enabled")):
        arguments["enabled"] = Symbol("torch.bfloat16")
    first = entry.parameters[0]
    if isinstance(node, ast.Call) and node.args and first in bound and is_flag(interp, bound[first], node.args[0]):
        arguments[first] = Flag(expression_text(node.args[0]))
    device = entry.attributes.get("device") or arguments.get("device", "cuda")
    made = tracked_object.attributes
    made.constructed, made.enabled, made.callable = True, enabled, entry.name
    made.is_local = is_local_scaler(interp, node)
    made.may_be_none = may_be_none(interp, node)
    made.enabling = frozenset(key for key, _ in literals(enabled))
    unsaved = find_base_that_saves(interp, interp.state.frame.cls)
    saved_by = {} if unsaved is None else {"framework": unsaved.title, "method": unsaved.saving_methods[0]}
    made.device, made.sharded = device, entry.attributes.get("sharded", False)
    interp.emit(
        e.ScalerNew,
        node,
        tracked_object.key,
        callable=entry.name,
        arguments=arguments,
        sharding="" if entry.attributes.get("sharded") else find_sharding_in_class(interp),
        is_lazy=_is_made_once(interp, node),
        bf16_condition=_find_bf16_condition(interp, enabled),
        names={"call": expression_text(node), "scaler": tracked_object.name, "loop": _loop_text(interp), **saved_by},
    )
    return ObjectRef(tracked_object, enabled)


def _is_made_once(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if the code constructs a scaler only while there is none: ``if self.scaler is None``, or a cache."""
    function = interp.state.frame.function
    if function is None:
        return False
    if not _CACHES.isdisjoint(function.decorator_names()):
        return True
    for branch in find_nodes(function.node, ast.If):
        made = [each for each in branch.body if isinstance(each, ast.Assign) and any(n is node for n in walk(each))]
        targets = {find_access_path(target) for each in made for target in each.targets} - {None}
        if targets and not targets.isdisjoint(_tested_for_absence(branch.test)):
            return True
    return False


def _tested_for_absence(test: ast.expr) -> set[str | None]:
    """Return the access paths that a condition tests to be None, false or missing."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is() | ast.Eq()], comparators=[ast.Constant(value=None)]):
            return {find_access_path(left)}
        case ast.UnaryOp(
            op=ast.Not(), operand=ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))])
        ):
            return {f"{find_access_path(owner)}.{name}"}
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return {find_access_path(operand)}
        case ast.BoolOp(values=values):
            return set[str | None]().union(*map(_tested_for_absence, values))
        case _:
            return set()


def _loop_text(interp: Interpreter) -> object:
    """Return the source text of the head of the innermost loop, or "" outside of loops."""
    loop = next((loop.node for loop in reversed(interp.state.loops) if loop.node is not None), None)
    return loop_text(loop) if loop is not None else ""


def _asks_for_bfloat16(written: ast.expr | None) -> bool:
    """Return True if a condition compares a dtype, or a dtype name, with bfloat16."""
    if not isinstance(written, ast.Compare) or len(written.ops) != 1 or not isinstance(written.ops[0], ast.Eq):
        return False
    sides = (written.left, written.comparators[0])
    texts = {"bfloat16", "bf16", "torch.bfloat16"}
    return any(constant_of_node(side) in texts or last_name(side) == "bfloat16" for side in sides)


def _make_subclass_scaler(interp: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Return a GradScaler of a project class. Own methods are analyzed; all other methods are torch's."""
    tracked_object = make_object(interp, "scaler", node)
    made = tracked_object.attributes
    made.constructed, made.callable, made.cls = True, cls.name, cls
    return ObjectRef(tracked_object)


def find_unsynchronized_reason(interp: Interpreter, scaler: ObjectRef, optimizer: int) -> str:
    """Return the reason that ranks can disagree about a skipped step, or "" if no reason is known."""
    facts, owner = scaler.tracked_object.attributes, interp.program.objects[optimizer].attributes
    owns = owner.owns
    if facts.framework or not facts.constructed or facts.cls is not None or facts.is_copy:
        return ""
    if facts.sharded:
        wraps: set[str] = set()
        for key in interp.program.with_submodules(owns) if owns else ():
            wraps |= interp.program.objects[key].attributes.wrappers.keys()
        return "fused" if owner.fused and (not wraps or "fsdp1" in wraps) else ""
    return "plain" if has_local_shards(interp, owns, lambda: "ShardedGradScaler" in interp.module.identifiers) else ""


def get_scaler_attribute(interp: Interpreter, receiver: ObjectRef, name: str, node: ast.AST) -> Value | None:
    if name in torch_api.SCALER_METHODS:
        return BoundMethod(receiver, name)
    if name == "_enabled":
        # Methods of project scaler classes read this attribute.
        return _enabled_value(receiver)
    if name == "_scale":
        return ScaleValue(receiver.tracked_object.key, interp.current_loops())
    if name == "_per_optimizer_states":
        # Code that reads the scaler's internal state knows better than the analyzer.
        interp.emit(
            e.Handoff,
            node,
            objects=(receiver.tracked_object.key, *all_optimizer_keys(interp)),
            trains=(),
            about=e.ALL_EFFECTS,
        )
    return None


def _call_scaler(interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    own = find_own_method(interp, func, "__call__")
    if own is not None:
        return inline_call(interp, own, args, keywords, node)
    return call_unknown(interp, func, args, keywords, node)


def register(handlers: HandlerTable) -> None:
    handlers.torch_roles[torch_api.SCALER] = _make_scaler
    handlers.constructors[torch_api.SCALER] = _make_subclass_scaler
    handlers.calls["scaler"] = _call_scaler
    handlers.methods["scaler"] = _call_scaler_method
    handlers.methods["scale"] = _call_scale_method
    handlers.attributes["scaler"] = get_scaler_attribute
