"""Calls of dotted names, dispatched by role from the table of torch names."""

from __future__ import annotations

import ast
import re

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events import UNKNOWN
from ...protocol.optable import FOREACH_IN_PLACE
from ..interpreter.dtypes import low_function, op_of
from ..interpreter.expressions.attributes import DATA_SIZE_NAMES
from ..interpreter.expressions.operators import apply_operator
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import for_each_alternative
from ..interpreter.microbatches import SPLITTING_CALLS
from ..interpreter.name_effects import effects_of_name, is_clip_name
from ..interpreter.source_text import expression_text
from ..interpreter.tensors import (
    compute_tensor,
    in_region,
    low_result,
    mark_float32_result,
    mark_widened,
    provenance_here,
    unknown_tensor,
)
from ..interpreter.unanalyzed_code import (
    IMPURE,
    escape,
    has_gradient_input,
    holds_scaler,
    is_assert_name,
    is_criterion,
    may_pass_divided,
    object_refs,
)
from ..interpreter.values.containers import SequenceValue, UnionValue
from ..interpreter.values.contexts import GradMode, NullContext, StackContext
from ..interpreter.values.definitions import Args, ExternalName, Keywords, PartialCall
from ..interpreter.values.gradients import ParamsValue, ScaleValue, gradients_in
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import FORWARD, NONE, Value, are_data_sizes, find_passed_iterable
from ..project.syntax import tail_name, walk
from .arguments import (
    bind_arguments,
    dotted_name_of,
    find_tensors,
    first_or_named,
    literal_value,
    make_object,
    object_ref_of,
)
from .autograd_functions import FACTORIES
from .builtin_calls import call_chain, call_chain_of_lists, call_count, call_vars, iterate_over
from .checkpoints import FIELD_FUNCTIONS, WRITERS, call_state_function, check_saved_objects, check_saved_states
from .declared_wrappers import call_wrapper
from .fills import emit_fill
from .frameworks.engines import call_framework
from .gradients import edit_grad, emit_clip, read_grad
from .losses.backward import as_loss, backward_gradient_of, run_backward
from .losses.criteria import compute_loss, find_reduction
from .losses.tensor_methods import SCALES, apply_reduction, makes_zeros
from .modules.construction import make_torch_module
from .optimizers import note_given_parameters
from .owners import all_optimizer_keys, find_owners
from .sharding import is_local_norm, trace_sharding
from .syntax_queries import first_argument_text

#: Module prefixes of functions that neither step nor change the arguments.
HARMLESS = tuple("builtins. torch. logging. math. os. time. json. numpy. np. copy. sys. random.".split())
#: Names of which a penalty on the norm of gradients uses one.
_NORMS = frozenset({"norm", "vector_norm", "sqrt"})
#: Functions equivalent to the ``%`` operator.
REMAINDERS = frozenset("math.fmod operator.mod numpy.mod numpy.remainder numpy.fmod torch.remainder torch.fmod".split())
#: Functions equivalent to an operator, and functions that preserve a loss.
OPERATORS = {f"torch.{name}": operator for name, operator in SCALES.items()} | {
    "operator.truediv": "/",
    "operator.mul": "*",
}
_KEEPING = frozenset({"builtins.abs", "builtins.round"})
#: Functions that convert a loss scale, or bound it, and return a scale.
_KEEPING_SCALES = _KEEPING | {"builtins.max", "builtins.min", "torch.as_tensor", "torch.tensor"}

#: Functions of torch that put the tensors of a list into one tensor.
_JOINING = frozenset({"torch.stack", "torch.cat", "torch.hstack"})
#: Functions of torch that return the size of some data.
_MEASURING = frozenset(f"torch.{name}" for name in DATA_SIZE_NAMES)


def _call_external(interp: Interpreter, func: ExternalName, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made_by_framework = call_framework(interp, func.name, args, keywords, node)
    if made_by_framework is not None:
        return made_by_framework
    name = torch_api.canonical_name(func.name)
    is_fallback = func.version_fallback or interp.state.fallback_depth + interp.state.fallback_try_depth > 0
    if name in torch_api.DEPRECATED and not is_fallback and isinstance(node, ast.expr):
        interp.emit(e.Deprecated, node, old=name, new=torch_api.DEPRECATED[name], names={"call": name})
    entry = torch_api.SURFACE.get(name)
    if entry is not None:
        handler = interp.handlers.torch_roles.get(entry.role)
        if handler is not None:
            return handler(
                interp, _choose_api_entry(entry, args, keywords) if func.unresolved else entry, args, keywords, node
            )
    op = low_function(name)
    if op:
        return low_result(interp, op, [*args, *keywords.values()])
    function = interp.handlers.named_functions.get(name)
    known = function(interp, args, keywords, node) if function is not None else None
    if known is None:
        known = _call_by_module(interp, name, args, keywords, node)
    return _call_unanalyzed(interp, name, args, keywords, node) if known is None else known


def _choose_api_entry(entry: torch_api.ApiEntry, args: Args, keywords: Keywords) -> torch_api.ApiEntry:
    """Return the API entry of a name without import. An autocast without a device type is CUDA's autocast."""
    first = first_or_named(args, keywords, "device_type")
    if entry.role == torch_api.AUTOCAST and (first is None or isinstance(literal_value(first), bool)):
        return torch_api.find_entry("torch.cuda.amp.autocast") or entry
    return entry


def _call_by_module(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Call a function that is modeled by the module of origin. Return None for other functions."""
    if name in _KEEPING_SCALES and (scales := [value for value in args if isinstance(value, ScaleValue)]):
        return scales[0]
    if name in OPERATORS and len(args) == 2 and not any(gradients_in(value) for value in args):
        return apply_operator(interp, OPERATORS[name], args[0], args[1], node)
    if name in _KEEPING and (tensors := find_tensors(args, {})):
        return compute_tensor(interp, tensors)
    if name.startswith("builtins."):
        made = structural_unknown(
            interp, Operation.CALL, tuple(args), expression_text(node), name.removeprefix("builtins.")
        )
        made.normalization = made.normalization._replace(
            is_divided=made.normalization.is_divided or (name == "builtins.sum" and may_pass_divided(args))
        )
        return made
    if name in REMAINDERS and len(args) == 2 and not find_tensors(args, {}):
        return apply_operator(interp, "%", args[0], args[1], node)
    if name == "itertools.chain.from_iterable" and (chained := call_chain_of_lists(interp, args, keywords, node)):
        return chained
    if name.startswith("itertools."):
        iterate = call_chain if name.endswith("chain") else iterate_over
        return iterate(interp, args, keywords, node) or structural_unknown(
            interp, Operation.CALL, tuple(args), expression_text(node), name
        )
    if name.startswith("torch.optim.lr_scheduler."):
        return _make_scheduler(interp, args, keywords, node)
    return make_torch_module(interp, name, args, keywords, node) if _is_module_class(name) else None


def _is_module_class(name: str) -> bool:
    """Return True if a name is a class of ``torch.nn``."""
    return name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() and name.count(".") <= 3


def _call_unanalyzed(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Call a function known by name only. The function may change or save the arguments."""
    declared = call_wrapper(interp, name, args, keywords, node)
    if declared is not None:
        return declared
    given = [*args, *keywords.values()]
    states = call_state_function(interp, name, given, node)
    if states is not None:
        return states
    harmless = name.startswith(HARMLESS)
    about = effects_of_name(name)
    if not harmless:
        escape(interp, given, node, about)
    passed = find_passed_iterable(args)
    if passed is not None:
        return passed
    writes = name.startswith(WRITERS) and "save" in name.rpartition(".")[2]
    if (not harmless or writes) and not is_assert_name(name):
        check_saved_states(interp, given, node)
        check_saved_objects(interp, name, given, node)
    if _averages_over_ranks(name) and all(value.kind != "tensor" for value in given):
        interp.emit(e.GradAverage, node)
    # Zeros have nothing of the tensor whose device or shape they take.
    tensors = [] if harmless and makes_zeros(name, args) else find_tensors(given, {})
    if tensors:
        return _make_result_tensor(interp, name, tensors, given)
    owners = _find_given_owners(interp, given)
    if owners is not None and not harmless and is_clip_name(name):
        return emit_clip(
            interp, next(value for value in given if value.kind == "parameters"), [], {}, node, guessed=True
        )
    if owners is not None and not harmless and about:
        escape(interp, object_refs(interp, owners), node, about)
    made = _call_on_gradients(interp, name, args, given, node)
    if made is None:
        made = _make_unknown_result(interp, name, args, keywords, node)
        note_given_parameters(interp, made, given, node)
    return made


def _make_result_tensor(interp: Interpreter, name: str, tensors: list[TensorValue], given: list[Value]) -> TensorValue:
    made = compute_tensor(interp, tensors)
    mark_widened(interp, made, op_of(name), given)
    if name == "torch.mean":
        made.normalization = made.normalization._replace(has_unknown_reduction=False)
    if name in _JOINING and given:
        made.normalization = made.normalization._replace(is_sample_mean=is_list_of_means(given[0]))
    apply_reduction(made, tensors[0], name.removeprefix("torch."))
    # Unanalyzed code that receives a scaler and a loss may scale the loss.
    made.origin = made.origin._replace(
        is_from_gradient=made.origin.is_from_gradient or has_gradient_input(given) or holds_scaler(interp, given)
    )
    made.microbatches = name.rpartition(".")[2] in SPLITTING_CALLS
    if not name.startswith("torch."):
        made.forwards = made.forwards._replace(has_known_modules=False)
        mark_float32_result(made, given)
    if _may_run_forward(interp, name) and not is_criterion(name.rpartition(".")[2]):
        made.provenance = provenance_here(interp, made.provenance, FORWARD)
    return made


def is_list_of_means(value: Value) -> bool:
    """Return True if a list holds losses that each average over the samples of a batch."""
    return (
        isinstance(value, SequenceValue)
        and bool(value.items)
        and all(isinstance(item, TensorValue) and item.normalization.is_sample_mean for item in value.items)
    )


def _may_run_forward(interp: Interpreter, name: str) -> bool:
    """Return True if a function of another package may run a model in a region that may be open here."""
    return not name.startswith(HARMLESS) and (in_region(interp) or interp.state.possible_regions > 0)


def _call_on_gradients(interp: Interpreter, name: str, args: Args, given: list[Value], node: ast.AST) -> Value | None:
    """Call a function on gradients, which edits or reads the gradients. Return None if no argument is a gradient."""
    for value in given:
        for grad in gradients_in(value):
            effect = FOREACH_IN_PLACE.get(name.removeprefix("torch.")) if value is given[0] else None
            if effect is not None:
                edit_grad(interp, grad, effect, args[1:], node)
                return NONE
            # Neither the sum over ranks nor a tensor of the size of a gradient (`zeros_like`, `sign`) depends on the
            # scale.
            sums = name.startswith("torch.distributed.") or _ALL_REDUCE.search(name.rpartition(".")[2]) is not None
            if not sums and not name.endswith((".sign", "_like")):
                return read_grad(interp, grad, node, name)
    return None


def _make_unknown_result(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = [*args, *keywords.values()]
    if makes_float32(name, args, keywords):
        made = interp.fresh_unknown(node, name)
        made.is_new_float32 = True
        is_zeros = makes_zeros(name, args)
        made.normalization = made.normalization._replace(is_divided=is_zeros, is_zeros=is_zeros)
        return made
    if name.rpartition(".")[2] in IMPURE:
        return interp.fresh_unknown(node, name)
    made = structural_unknown(interp, Operation.CALL, tuple(given), expression_text(node), name, tuple(keywords))
    made.microbatches = name.rpartition(".")[2] in SPLITTING_CALLS
    is_zeros = makes_zeros(name, args)
    made.normalization = made.normalization._replace(
        is_zeros=is_zeros,
        is_divided=may_pass_divided(given) or is_zeros,
        is_data_size=name in _MEASURING or (name.startswith(HARMLESS) and are_data_sizes(given)),
    )
    if given:
        apply_reduction(made, given[0], name.removeprefix("torch."))
    if made.origin.is_comparison_result is not (name == "torch.mean"):
        made.origin = made.origin._replace(is_comparison_result=name == "torch.mean")
    return (
        made.with_provenance(provenance_here(interp, made.provenance, FORWARD))
        if _may_run_forward(interp, name)
        else made
    )


def _call_islice(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = structural_unknown(interp, Operation.CALL, tuple(args), expression_text(node), "itertools.islice")
    made.microbatches = True
    return made


def _call_exit(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Model a call that ends the program."""
    interp.builder.event_count += 1
    interp.state.current_node = None
    return NONE


def _make_grad_mode(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """Return a context without gradients, or one that changes nothing.

    A mode that a variable chooses keeps the gradients in the training, which is what the analysis follows.
    """
    chosen = first_or_named(args, keywords, "mode") if entry.name.endswith("set_grad_enabled") else None
    keeps = entry.attributes.get("grad") or (chosen is not None and literal_value(chosen) is not False)
    return NullContext() if keeps else GradMode()


def _make_namespace(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return an object that only holds the keyword arguments, or None for positional arguments."""
    if args:
        return None
    space = interp.fresh_unknown(node)
    for attribute, value in keywords.items():
        interp.store_attribute(space.key, attribute, value)
    return space


def _make_scheduler(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    scheduler = interp.fresh_unknown(node)
    target = object_ref_of(first_or_named(args, keywords, "optimizer"), "optimizer")
    if target is not None:
        scheduler.scheduled_optimizer = target.tracked_object.key
    return scheduler


def _find_given_owners(interp: Interpreter, given: list[Value]) -> tuple[int, ...] | None:
    """Return the optimizers that may update the parameters in the arguments, or None if no argument is parameters."""
    owners = [find_owners(interp, value) for value in given if isinstance(value, ParamsValue)]
    if not owners:
        return None
    return tuple(
        dict.fromkeys(key for known in owners for key in (all_optimizer_keys(interp) if known is None else known))
    )


def _call_clip(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    rest = [bound[name] for name in entry.parameters[1:] if name in bound]
    params = bound.get("parameters")
    norm = emit_clip(interp, params, rest, bound, node)
    if entry.attributes.get("norm") and is_local_norm(interp, params):
        for event in norm.gradient_reads:
            if isinstance(event, e.Clip):
                event.local, event.premises = True, trace_sharding(interp, params)
    return norm


def _call_norm(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    for grad in gradients_in(args[0]) if args else []:
        return read_grad(interp, grad, node, "norm")
    return interp.fresh_unknown(node)


def _make_loss_module(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    tracked_object = make_object(interp, "loss", node, entry.name)
    loss = tracked_object.attributes
    loss.kind, loss.promotes = entry.attributes.get("kind", ""), entry.attributes.get("promotes", False)
    loss.reduction = find_reduction(keywords)
    return ObjectRef(tracked_object)


def _call_loss_function(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    order = [bound.pop(name) for name in entry.parameters if name in bound]
    kind, promotes = entry.attributes.get("kind", ""), entry.attributes.get("promotes", False)
    return compute_loss(interp, order, bound, node, kind=kind, promotes=promotes)


def _call_backward(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    value = first_or_named(args, keywords, "tensors")
    if isinstance(value, UnionValue):
        return for_each_alternative(
            interp, value, lambda v: _call_backward(interp, entry, [v, *args[1:]], keywords, node)
        )
    words = first_argument_text(node)
    names = {"call": expression_text(node), **({"loss": words} if words else {})}
    run_backward(interp, as_loss(value), node, backward_gradient_of(args[1:], keywords), names)
    return NONE


def _call_autograd_grad(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    made = as_loss(bound.get("outputs"))
    if made.loss_scale.scaler_key >= 0:
        scaler = interp.program.objects[made.loss_scale.scaler_key].name
        made.penalty_source = (
            node,
            {"call": expression_text(node), "loss": first_argument_text(node), "scaler": scaler},
            False,
        )
    made.loss_scale = made.loss_scale._replace(scaler_key=-1, has_mixed_scales=False)
    made.is_loss = False
    if made.provenance.autocast_scope == "out":
        # A gradient that is differentiated again is kept in float32 intentionally.
        made.provenance = made.provenance._replace(autocast_scope="?")
    made.has_penalty = literal_value(bound.get("create_graph")) is True
    differentiable = made.has_penalty and (_computes_norms(interp) or _squares_result(interp, node))
    interp.emit(e.AutogradGrad, node, differentiable=differentiable, names={"call": expression_text(node)})
    return made


def _computes_norms(interp: Interpreter) -> bool:
    """Return True if the running function computes norms."""
    frame = interp.state.frame
    names = {tail_name(node) for node in (frame.function or frame.module).nodes}
    return not _NORMS.isdisjoint(names)


def _squares_result(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if the running function squares the result of a call, as a penalty on squared gradients does."""
    frame = interp.state.frame
    nodes = (frame.function or frame.module).nodes
    names = {
        target.id
        for each in nodes
        if isinstance(each, ast.Assign) and any(inner is node for inner in walk(each.value))
        for goal in each.targets
        for target in walk(goal)
        if isinstance(target, ast.Name)
    }
    squared: list[ast.expr] = []
    for each in nodes if names else ():
        match each:
            case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=2)):
                squared.append(base)
            case ast.Call(func=ast.Attribute(value=base, attr="pow"), args=[ast.Constant(value=2)]):
                squared.append(base)
            case ast.Call(func=ast.Attribute(value=base, attr="square"), args=[]):
                squared.append(base)
    return any(_root_name(base) in names for base in squared)


def _root_name(node: ast.expr) -> str:
    """Return the variable of which an expression is an item or a view, or "". A difference from a target is neither."""
    while True:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value)):
                node = value
            case _:
                return ""


def _call_cache_clear(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    interp.emit(e.AutocastCacheClear, node)
    return NONE


def _call_fill(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    tensors = find_tensors([], bound)
    made = compute_tensor(interp, tensors) if tensors else unknown_tensor(None)
    value = bound.get("value") or bound.get("fill_value")
    if entry.name == "torch.where":
        value = next((bound[k] for k in ("input", "other") if literal_value(bound.get(k)) is not UNKNOWN), None)
    emit_fill(interp, value, made, "x" if entry.name == "torch.where" else first_argument_text(node), node)
    return made


def makes_float32(name: str, args: Args, keywords: Keywords) -> bool:
    """Return True if a torch function is known to return a float32 tensor."""
    space, _, factory = name.partition(".")
    if space != "torch" or factory not in FACTORIES or "dtype" in keywords or "**" in keywords:
        return False
    return not any(map(dotted_name_of, args))


#: Names of functions that sum tensors over the ranks, in other libraries and files.
_ALL_REDUCE = re.compile("all_?reduce", re.IGNORECASE)


def _averages_over_ranks(name: str) -> bool:
    """Return True if a torch function combines data of several ranks, as the averaging of gradients does."""
    last = name.rpartition(".")[2]
    return name.startswith("torch.distributed.") and any(word in last for word in ("reduce", "gather", "average"))


def register(handlers: HandlerTable) -> None:
    handlers.calls["named"] = _call_external
    handlers.named_functions.update(
        {
            "itertools.count": call_count,
            "itertools.islice": _call_islice,
            **dict.fromkeys(FIELD_FUNCTIONS, call_vars),
            **dict.fromkeys(("sys.exit", "os._exit", "builtins.exit", "builtins.quit"), _call_exit),
            **dict.fromkeys(("types.SimpleNamespace", "argparse.Namespace"), _make_namespace),
        }
    )
    handlers.torch_roles.update(
        {
            torch_api.CLIP: _call_clip,
            torch_api.NORM: _call_norm,
            torch_api.LOSS_MODULE: _make_loss_module,
            torch_api.LOSS: _call_loss_function,
            torch_api.BACKWARD: _call_backward,
            torch_api.GRAD: _call_autograd_grad,
            torch_api.NULL_CONTEXT: lambda interp, entry, args, keywords, node: NullContext(),
            torch_api.EXIT_STACK: lambda interp, entry, args, keywords, node: StackContext(),
            torch_api.CONTEXT: _make_grad_mode,
            torch_api.CACHE_CLEAR: _call_cache_clear,
            torch_api.LOAD: lambda interp, entry, args, keywords, node: interp.fresh_unknown(node, "loaded"),
            torch_api.FILL: _call_fill,
            torch_api.PARTIAL: lambda interp, entry, args, keywords, node: (
                PartialCall(args[0], args[1:], keywords) if args else interp.fresh_unknown(node)
            ),
        }
    )
