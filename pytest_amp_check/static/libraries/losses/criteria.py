"""Losses that criteria compute, and the low dtypes of their inputs."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.events import UNKNOWN
from ...interpreter.dtypes import GUESSED_LOW
from ...interpreter.interpreter import Interpreter
from ...interpreter.source_text import expression_text
from ...interpreter.tensors import compute_tensor, in_region
from ...interpreter.values.definitions import Args, Keywords
from ...interpreter.values.objects import ObjectRef
from ...interpreter.values.tensors import TensorValue, tensors_in
from ...interpreter.values.value import Const, Value, join_provenance
from ..arguments import find_tensors, literal_value
from ..syntax_queries import first_argument_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....protocol.sites import Site

_LOW = ("float16", "bfloat16", torch_api.FLOAT16_BY_CHOICE)
#: Default reduction of a criterion.
_MEAN = Const("mean")

#: Losses of log-probabilities, which a model computes by ``log_softmax``: in float32, in a region.
_OF_LOG_PROBABILITIES = ("nll_loss", "ctc_loss")
#: Loss that must not run in a region.
_BANNED = "binary_cross_entropy"


def compute_loss(
    interp: Interpreter,
    args: Args,
    keywords: Keywords,
    node: ast.AST,
    *,
    kind: str,
    promotes: bool,
    reduction: object = None,
    constructed_at: Site | None = None,
) -> Value:
    """Return the loss of the arguments. ``constructed_at`` is the location where a loss module is constructed."""
    event = interp.emit(
        e.Loss,
        node,
        function=kind or None,
        low_precision="" if promotes else _find_low_input(interp, args, kind),
        # A region of a framework has no location.
        ambient=None
        if any(region.site is not None for region in interp.state.open_regions)
        else interp.state.ambient_autocast,
        names={
            "call": expression_text(node),
            "loss": first_argument_text(node),
            "output": first_argument_text(node),
        },
    )
    if event is not None and constructed_at is not None and kind == _BANNED:
        event.premises = ((constructed_at, "the loss function is constructed"),)
    if event is not None and interp.state.forward_depth:
        _emit_in_forward(interp, event)
    parts = find_tensors(args, keywords)
    made = compute_tensor(interp, parts) if parts else _make_unknown_loss(interp, [*args, *keywords.values()])
    if interp.state.no_grad:
        made.forwards = made.forwards._replace(module_keys=frozenset())
    made.is_loss = True
    made.low_dtype = ""
    if made.in_region:
        # Autocast computes losses in float32, whatever computed their inputs.
        made.is_low_op_result = False
    reductions = {"mean" if reduction is None else reduction, find_reduction(keywords)}
    is_summed = "sum" in reductions
    made.normalization = made.normalization._replace(
        is_divided=is_summed,
        is_only_summed=is_summed,
        is_sample_mean=reductions == {"mean"},
        has_unknown_reduction=False,
    )
    return made


def _emit_in_forward(interp: Interpreter, event: e.Loss) -> None:
    """Emit a loss that the forward of a module computes. The forward itself emits no events."""
    regions = interp.state.open_regions
    region = regions[-1] if regions and regions[-1].enabled is not False else None
    is_banned = region is not None and event.function == _BANNED
    if not (is_banned or event.low_precision):
        return
    event.in_forward, event.device = True, "" if region is None else region.device or "cuda"
    event.guessed = bool(interp.state.path_condition) or (region is not None and region.enabled is not True)
    interp.detached_events.setdefault((e.Loss, event.site.call_key), event)


def find_reduction(keywords: Keywords) -> object:
    """Return the reduction of a criterion. An unknown reduction counts as a sum."""
    if literal_value(keywords.get("size_average")) is False:
        return "sum"
    asked = literal_value(keywords.get("reduction", _MEAN))
    return "sum" if asked is UNKNOWN else asked


def _find_low_input(interp: Interpreter, args: Args, kind: str) -> str:
    """Return the low dtype of a loss input outside all regions, or "" if no input is low."""
    if not args or in_region(interp) or interp.state.possible_regions or interp.state.no_grad:
        return ""
    # An input without a trained module has no gradient that can overflow.
    tensors = [tensor for tensor in tensors_in(args[0]) if tensor.forwards.module_keys != frozenset()]
    return next((t.low_dtype if t.low_dtype in _LOW and not _is_widened(t, kind) else "" for t in tensors), "")


def _is_widened(tensor: TensorValue, kind: str) -> bool:
    """Return True if a module that ran in a region returned float32, as far as its code or the loss shows."""
    info = tensor.dtype_info
    return info.dtype in torch_api.WIDE or (kind in _OF_LOG_PROBABILITIES and GUESSED_LOW in info.traits)


def _make_unknown_loss(interp: Interpreter, given: list[Value]) -> TensorValue:
    """Return a loss computed from inputs that no known module produced."""
    made = TensorValue(interp.current_loops())
    made.in_region = in_region(interp)
    earlier = join_provenance(given)
    # A region around the loss alone leaves the model out, unless the code of the model enters one.
    is_inside = made.in_region and earlier.autocast_scope != "out"
    made.provenance = earlier._replace(autocast_scope="in" if is_inside else earlier.autocast_scope or "?")
    return made


def call_loss_module(interp: Interpreter, func: ObjectRef, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    loss = func.tracked_object.attributes
    return compute_loss(
        interp,
        args,
        keywords,
        node,
        kind=loss.kind,
        promotes=loss.promotes,
        reduction=loss.reduction,
        constructed_at=func.tracked_object.site,
    )
