"""Methods of unknown values."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ...protocol import events as e
from ...protocol.events.regions import describe_region
from ...protocol.frameworks import TRAINER_PACKAGES
from ...protocol.optable import IN_PLACE, OPS
from ...protocol.source_text import SourceText, access_text, find_access_path
from ...protocol.torch_api import SCALER_METHODS
from ..interpreter.dtypes import is_low_method
from ..interpreter.expressions.attributes import DATA_SIZE_NAMES, item_origin_of
from ..interpreter.expressions.operators import apply_operator
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.microbatches import SPLITTING_CALLS
from ..interpreter.name_effects import effects_of_name
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.tensors import low_result, unknown_tensor
from ..interpreter.unanalyzed_code import call_unknown, escape, object_refs
from ..interpreter.values.containers import SequenceValue
from ..interpreter.values.contexts import NoSyncContext
from ..interpreter.values.definitions import Args, ExternalName, Instance, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, Const, UnknownValue, Value
from ..project.syntax import walk
from .arguments import first_or_named, object_ref_of
from .checkpoints import emit_unknown_load, take_state
from .fills import FILLS
from .gradients import emit_hook_clip
from .losses.backward import backward_gradient_of, run_backward
from .losses.tensor_methods import SAME_VALUE, SCALES, apply_reduction, averages_samples, makes_zeros
from .nonfinite import current_code, find_single_assignment
from .owners import all_optimizer_keys, find_updating_optimizers
from .parts import cast_part, cast_part_to
from .syntax_queries import callee_of, find_nodes, first_argument, first_argument_text, last_name, receiver_of

#: Methods of tensors. No method in this set runs a model.
OF_TENSORS = (
    frozenset(
        "to cuda type type_as view view_as reshape reshape_as expand expand_as permute transpose repeat flatten "
        "squeeze unsqueeze sum mean amax amin gather index_select masked_select".split()
    )
    .union(name.removesuffix("_") for name in IN_PLACE)
    .union(*OPS.values())
)

#: Arguments of ``AveragedModel`` that replace the mean of all weights, as exponential averages do.
_AVERAGE_FUNCTIONS = frozenset({"avg_fn", "multi_avg_fn"})

#: Attributes of tensors that modules lack.
_OF_TENSORS_ALONE = frozenset(
    "shape size dim ndim numel view reshape permute transpose unsqueeze squeeze numpy detach item".split()
)

_NAME = re.compile(r"[^\W\d]\w*")

#: Methods that take an item that other code put into a list or a queue.
_TAKING = frozenset("pop popleft get_nowait".split())

Method = Callable[[Interpreter, Value, Args, Keywords, ast.AST], Value | None]


def _call_unknown_method(
    interp: Interpreter, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    key = receiver.identity_key(interp.unique_number)
    stored = interp.state.heap.get((key, name)) if isinstance(key, int) else None
    if stored is not None:
        return interp.call_value(stored, args, keywords, node)
    used = interp.tracked_objects.get(("used", key))
    is_scaler = used is not None and used.role == "scaler" and used.attributes.framework is None
    if used is not None and is_scaler and name in SCALER_METHODS and isinstance(receiver, UnknownValue):
        # Code in another file used this value as a scaler.
        return interp.call_method(ObjectRef(used, True, receiver), name, args, keywords, node)
    text = _transform_text(receiver, name, args, keywords)
    if text is not None:
        return text
    act = _METHODS.get(name)
    done = act(interp, receiver, args, keywords, node) if act is not None else None
    if done is not None:
        return done
    if is_low_method(name):
        return low_result(interp, name, [receiver, *args, *keywords.values()])
    emit_hook_clip(interp, name, node)
    func = structural_unknown(interp, Operation.METHOD, (receiver,), expression_text(node), name)
    data = any(not isinstance(value, (Const, ExternalName)) for value in (*args, *keywords.values()))
    result = call_unknown(interp, func, args, keywords, node, runs=data and name not in OF_TENSORS)
    result.microbatches = name in SPLITTING_CALLS
    if isinstance(result, UnknownValue) and isinstance(receiver, UnknownValue):
        _track_loss(interp, result, receiver, name, args, node)
        known = result.normalization
        is_sample_mean = known.is_sample_mean or (name == "mean" and averages_samples(args, keywords))
        is_data_size = name in DATA_SIZE_NAMES or name == "mean" or receiver.normalization.is_data_size
        if (known.is_sample_mean, known.is_data_size) != (is_sample_mean, is_data_size):
            result.normalization = known._replace(is_sample_mean=is_sample_mean, is_data_size=is_data_size)
        if name in DATA_SIZE_NAMES and receiver.loops:
            # The amount of data of an outer loop is the same in each iteration of an inner loop.
            result.loops = receiver.loops
    if name in ("get", "pop") and args and isinstance(result, UnknownValue):
        result.item_origin = item_origin_of(receiver, args[0])
    return result


#: Methods of a text that return another text.
_TEXT_METHODS = frozenset("lower lstrip removeprefix removesuffix replace rstrip strip upper".split())
#: Maximum length of a text that the analyzer transforms.
MAX_TEXT = 1_000


def _transform_text(receiver: Value, name: str, args: Args, keywords: Keywords) -> Const | None:
    """Return the result of a method of a known text with known arguments, or None."""
    if not isinstance(receiver.value, str) or name not in _TEXT_METHODS or keywords or len(receiver.value) > MAX_TEXT:
        return None
    given = [value.value for value in args]
    texts = [text for text in given if isinstance(text, str) and len(text) <= MAX_TEXT]
    if len(texts) < len(given):
        return None
    try:
        made = getattr(receiver.value, name)(*texts)
    except TypeError:
        return None
    return Const(made)


def _track_loss(
    interp: Interpreter, result: UnknownValue, receiver: UnknownValue, name: str, args: Args, node: ast.AST
) -> None:
    """Update the division state of an unknown loss after a method call."""
    is_comparison_result = name == "mean" or (receiver.origin.is_comparison_result and name != "item")
    if result.origin.is_comparison_result is not is_comparison_result:
        result.origin = result.origin._replace(is_comparison_result=is_comparison_result)
    part = name.removesuffix("_")
    operator = SCALES.get(name) or SCALES.get(part)
    if operator is not None and args:
        made = apply_operator(interp, operator, receiver, args[0], node)
        result.normalization = result.normalization._replace(
            is_divided=made.normalization.is_divided, is_only_summed=made.normalization.is_only_summed
        )
        if name.endswith("_"):
            # The method works in place, and the same value is used afterwards.
            receiver.set_divided(is_divided=receiver.normalization.is_divided or made.normalization.is_divided)
        return
    # The code that stored a loss may have divided the loss. A dict is asked for a key, a list at most for a position.
    is_taken = name in _TAKING and all(isinstance(value.value, int) for value in args)
    is_kept = receiver.normalization.is_divided and (not args or name in SAME_VALUE)
    is_divided = e.DIVIDES in effects_of_name(name) or is_kept or is_taken or makes_zeros(name, args)
    known, is_only_summed = result.normalization, receiver.normalization.is_only_summed
    if (known.is_divided, known.is_only_summed) != (is_divided, is_only_summed):
        result.normalization = known._replace(is_divided=is_divided, is_only_summed=is_only_summed)
    apply_reduction(result, receiver, part)


#: Parameters of ``Tensor.backward``.
_OF_BACKWARD = frozenset({"gradient", "retain_graph", "create_graph", "inputs"})


def _call_backward(interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if isinstance(receiver, UnknownValue) and not args and keywords.keys() <= _OF_BACKWARD:
        run_backward(interp, unknown_tensor(receiver), node, backward_gradient_of(args, keywords))
    elif not _run_scaled_loss(interp, args, node):
        # The backward of a framework may scale, divide and step.
        interp.emit(e.Backward, node, scaling=e.UNKNOWN_SCALING, feeds=None, names={"loss": receiver_text(node)})
    return NONE


def _run_scaled_loss(interp: Interpreter, args: Args, node: ast.AST) -> bool:
    """Run a loss backward that a scaler scaled, through a framework's ``backward``; False for other arguments.

    A framework that receives a scaled loss leaves the scaler to the program. It may still divide the loss.
    """
    if not args or not isinstance(args[0], TensorValue) or args[0].loss_scale.scaler_key < 0:
        return False
    loss = args[0].copy()
    loss.normalization = loss.normalization._replace(is_divided=True)
    given = first_argument(node)
    inner = first_argument(given) or given
    names: dict[str, object] = {"call": expression_text(node), "loss": SourceText(inner) if inner is not None else ""}
    run_backward(interp, loss, node, names=names)
    return True


def _call_inherited_backward(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Run a scaled loss backward by a method of an unanalyzed base class, as in a LightningLite."""
    return NONE if name == "backward" and _run_scaled_loss(interp, args, node) else None


def _call_scaling_in_place(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    if not receiver.origin.is_from_gradient:
        return None
    interp.emit(e.GradNormalise, node, owners=None)
    return receiver


def _call_enter_context(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    if not args:
        return None
    interp.state.possible_regions += 1
    return interp.fresh_unknown(node)


def _call_clip(interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model ``accelerator.clip_grad_norm_`` and similar methods, which unscale the gradients themselves."""
    escape(interp, [*args, *keywords.values(), *object_refs(interp, all_optimizer_keys(interp))], node)
    return interp.fresh_unknown(node, last_name(callee_of(node)))


def _call_fill(interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    return unknown_tensor(receiver)


def _call_load_state_dict(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    emit_unknown_load(interp, receiver_text(node), first_or_named(args, keywords, "state_dict"), node)
    return None


def _is_used_as_tensor(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if the current function uses a receiver as a tensor.

    Attributes that only tensors have, and arithmetic, show a tensor. A receiver that the function also calls is no
    tensor.
    """
    here = interp.state.frame
    root = here.module.tree if here.function is None else here.function.node
    owner = receiver_of(node)
    text = find_access_path(owner) if owner is not None else None
    if text is None or any(find_access_path(call.func) == text for call in find_nodes(root, ast.Call)):
        return False
    asked = any(
        x.attr in _OF_TENSORS_ALONE and find_access_path(x.value) == text for x in find_nodes(root, ast.Attribute)
    )
    changed = (x.target for x in find_nodes(root, ast.AugAssign))
    computed = (side for x in find_nodes(root, ast.BinOp) for side in (x.left, x.right))
    return asked or any(find_access_path(each) == text for each in (*changed, *computed))


def _find_target_names(interp: Interpreter, node: ast.AST) -> list[str]:
    """Return the variables that the current code assigns from an expression."""
    given = [
        each for each in find_nodes(current_code(interp), ast.Assign) if any(part is node for part in walk(each.value))
    ]
    return [access_text(target) for each in given for target in each.targets]


def _make_cast_method(dtype: str) -> Method:
    def emit_module_cast(
        interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
    ) -> Value | None:
        part = cast_part(interp, receiver, dtype, node)
        if part is not None:
            return part
        if not args and not _is_used_as_tensor(interp, node):
            words = receiver_text(node)
            texts = [
                str(words),
                receiver.text if isinstance(receiver, UnknownValue) else "",
                *_find_target_names(interp, node),
            ]
            called = frozenset(_NAME.findall(" ".join(texts)))
            given = isinstance(receiver, UnknownValue) and receiver.origin.is_argument
            interp.emit(e.ModuleCast, node, dtype=dtype, called=called, given=given, names={"module": words})
        return None

    return emit_module_cast


def _call_scheduler_step(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Emit a step of a learning rate scheduler."""
    if args or keywords or not isinstance(receiver, UnknownValue) or receiver.scheduled_optimizer < 0:
        return None
    optimizer = interp.program.objects[receiver.scheduled_optimizer].name
    names = {"call": expression_text(node), "optimizer": optimizer}
    interp.emit(e.SchedulerStep, node, None, receiver.scheduled_optimizer, names=names)
    return interp.fresh_unknown(node)


def _call_update_parameters(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Emit the update of a weight average, as in ``AveragedModel``.

    An exponential average moves towards the weights as they are, so a skipped step does it no harm.
    """
    makes = [call for call in interp.module.find_nodes(ast.Call) if last_name(call.func) == "AveragedModel"]
    if any(each.arg in _AVERAGE_FUNCTIONS for call in makes for each in call.keywords):
        return None
    model = object_ref_of(first_or_named(args, keywords, "model"), "module")
    trained_by = None if model is None else find_updating_optimizers(interp, frozenset({model.tracked_object.key}))
    if trained_by is not None and len(trained_by) == 1:
        names = {"call": expression_text(node), "optimizer": interp.program.objects[trained_by[0]].name}
        interp.emit(e.StepFollowed, node, None, trained_by[0], names=names)
    return None


def _call_trainer(interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Emit the call that runs the training of a framework's trainer, if a region is open."""
    regions, name = interp.state.open_regions, receiver_of(node)
    is_open = bool(regions) and regions[-1].enabled is not False and regions[-1].dtype not in ("float32", "float64")
    made = find_single_assignment(interp, name.id) if is_open and isinstance(name, ast.Name) else name
    callee = callee_of(made) if is_open else None
    dotted = "" if callee is None else dotted_name(interp, callee) or ""
    if dotted.endswith("Trainer") and dotted.partition(".")[0] in TRAINER_PACKAGES:
        event = interp.emit(e.TrainerRun, node, names={"call": expression_text(node)})
        site = regions[-1].site
        if event is not None and site is not None:
            event.premises = ((site, describe_region(regions[-1].dtype)),)
    return None


def _parameters_of(interp: Interpreter, receiver: Value, *, is_single: bool = False) -> ParamsValue:
    """Return the parameters of an unknown value, which are those of a model if the value is one."""
    used = interp.tracked_objects.get(("used", receiver.key)) if isinstance(receiver, UnknownValue) else None
    modules = frozenset((used.key,)) if used is not None and used.role == "module" else None
    return ParamsValue(modules, is_single=is_single)


def _call_named_parameters(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    parameter = _parameters_of(interp, receiver, is_single=True)
    if parameter.modules is None:
        return None
    return SequenceValue([SequenceValue([interp.fresh_unknown(node, "name"), parameter])])


def _clear_argument(
    interp: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Emit the clear of an engine for the optimizers that it receives: ``strategy.zero_grad(optimizer)``."""
    given = [each for value in args for each in value.alternatives()]
    refs = [ref for each in given if (ref := object_ref_of(each, "optimizer")) is not None]
    if not refs:
        return None
    owners = tuple(dict.fromkeys(ref.tracked_object.key for ref in refs))
    names = {"optimizer": first_argument_text(node) or refs[0].tracked_object.name, "call": expression_text(node)}
    interp.emit(e.ZeroGrad, node, owners=owners, names=names)
    return NONE


_METHODS: dict[str, Method] = {
    "backward": _call_backward,
    "zero_grad": _clear_argument,
    **dict.fromkeys(
        [name for name, does in IN_PLACE.items() if does in ("divide", "multiply")], _call_scaling_in_place
    ),
    "no_sync": lambda interp, receiver, args, keywords, node: None if args or keywords else NoSyncContext(),
    "enter_context": _call_enter_context,
    "clip_grad_norm_": _call_clip,
    "clip_grad_value_": _call_clip,
    "parameters": lambda interp, receiver, args, keywords, node: _parameters_of(interp, receiver),
    "named_parameters": _call_named_parameters,
    **dict.fromkeys(FILLS, _call_fill),
    "state_dict": lambda interp, receiver, args, keywords, node: take_state(interp, receiver, node),
    "load_state_dict": _call_load_state_dict,
    "half": _make_cast_method("float16"),
    "bfloat16": _make_cast_method("bfloat16"),
    "to": lambda interp, receiver, args, keywords, node: cast_part_to(
        interp, receiver, (*args, *keywords.values()), node
    ),
    "step": _call_scheduler_step,
    "update_parameters": _call_update_parameters,
    **dict.fromkeys(("train", "fit"), _call_trainer),
}


def register(handlers: HandlerTable) -> None:
    handlers.methods[""] = _call_unknown_method
    handlers.inherited_methods.append(_call_inherited_backward)
