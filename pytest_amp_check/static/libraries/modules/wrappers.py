"""Wrappers of modules: sharding with its policies, compilation, scripts and communication hooks."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import partial

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.sites import Site
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.classes.bound_methods import decorator_contexts
from ...interpreter.classes.lineage import method_of
from ...interpreter.conditions import Formula, literals
from ...interpreter.interpreter import Interpreter, persistent_guards
from ...interpreter.joins import run_branches
from ...interpreter.source_text import expression_text
from ...interpreter.values.definitions import Args, ExternalName, FunctionValue, Instance, Keywords
from ...interpreter.values.objects import ObjectRef
from ...interpreter.values.value import NONE, UnknownValue, Value
from ..arguments import (
    bind_arguments,
    dotted_name_of,
    first_or_named,
    literal_value,
    make_object,
    object_ref_of,
    tracked_object_of,
)
from ..dtype_choices import trace_dtype_choice
from ..low_parameters import LowModules, do_nothing
from ..sharding import report_late_sharding
from ..syntax_queries import callee_of, keywords_of


def wrap_module(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = first_or_named(args, keywords, entry.parameters[0])
    tracked_object = tracked_object_of(inner)
    if tracked_object is None and isinstance(inner, UnknownValue):
        # A wrapper changes its argument in place, and other code uses it by the name from before.
        known = interp.tracked_objects.get(("used", inner.key))
        tracked_object = known if known is not None and known.role == "module" else make_object(interp, "module", node)
        interp.tracked_objects["used", inner.key] = tracked_object
        inner = ObjectRef(tracked_object)
    # A model that the configuration chooses among several is one of them.
    given = inner.alternatives() if tracked_object is None and inner is not None else []
    found = [tracked_object] if tracked_object is not None else [*map(tracked_object_of, given)]
    for module in found:
        if module is None:
            continue
        mark_wrapped(interp, module, entry, args, keywords)
        if str(entry.attributes.get("wraps")).startswith("fsdp"):
            module.attributes.sharding_site = interp.site_of(node)
            report_late_sharding(interp, module, node)
        if entry.role == torch_api.COMPILE:
            module.attributes.compiled = True
    if entry.attributes.get("copies") and inner is not None and any(map(tracked_object_of, inner.alternatives())):
        # A copy has separate parameters.
        copy = make_object(interp, "module", node, "copy")
        copy.attributes.copied = True
        return ObjectRef(copy)
    return inner if inner is not None else interp.fresh_unknown(node)


def mark_wrapped(
    interp: Interpreter, tracked_object: TrackedObject, entry: torch_api.ApiEntry, args: Args, keywords: Keywords
) -> None:
    """Record the wrapper of a module, with the predicates of the current path."""
    wraps = entry.attributes.get("wraps")
    if wraps is None:
        return
    policy = keywords.get("mp_policy") or keywords.get("mixed_precision")
    if policy is not None:
        dtypes = tracked_object.attributes.dtypes._replace(casts=True)
        if isinstance(policy, UnknownValue) and policy.key in interp.file_data(PolicyDtypes):
            computes_in, converts, site = interp.file_data(PolicyDtypes)[policy.key]
            dtypes = dtypes._replace(computes_in=computes_in, prepared=dtypes.prepared or converts)
            text = f"this policy makes the model compute in {computes_in}"
            interp.file_data(LowModules)[tracked_object.key] = (site, text)
        tracked_object.attributes.dtypes = dtypes
    strategy = keywords.get("sharding_strategy") or (args[2] if len(args) > 2 else None)
    if wraps == "fsdp1" and dotted_name_of(strategy).endswith(".NO_SHARD"):
        wraps = "whole"
    attributes = tracked_object.attributes
    if not attributes.wrappers:
        attributes.wrappers = {}
    attributes.wrappers.setdefault(wraps, persistent_guards(interp))


class PolicyDtypes(dict[int, tuple[str, bool, Site]]):
    """Compute dtypes of sharding policies, by the key of the unknown value that represents the policy.

    The second item is True if the policy converts the outputs as well, the third is the location of the policy.
    """


def make_policy(interp: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = interp.fresh_unknown(node)
    computes_in = _possible_dtypes(first_or_named(args, keywords, "param_dtype"))
    reduced = first_or_named(args[1:], keywords, "reduce_dtype")
    is_default = literal_value(reduced) is None or (reduced is None and None not in keywords_of(node))
    reduces_in = computes_in if is_default else _possible_dtypes(reduced)
    low = next((dtype for dtype in reduces_in if dtype in ("float16", "bfloat16")), None)
    if low is not None and not interp.site_of(node).is_in_test() and _follows(reduces_in[low], computes_in):
        names: dict[str, object] = {"call": expression_text(callee_of(node) or node)}
        how = "default" if is_default else "given"
        # With few ranks it may be chosen on purpose.
        premises = trace_dtype_choice(interp, node, low, "param_dtype" if is_default else "reduce_dtype")
        emit = partial(
            interp.emit, e.LowReduction, node, how=how, dtype=low, guessed=True, names=names, premises=premises
        )
        run_branches(interp, reduces_in[low], emit, do_nothing)
    if computes_in:
        dtype = next(iter(computes_in)) if len(computes_in) == 1 else _summarize_choice(computes_in)
        interp.file_data(PolicyDtypes)[made.key] = dtype, "output_dtype" in keywords, interp.site_of(node)
    return made


def _follows(condition: Formula, dtypes: dict[str, Formula]) -> bool:
    """Return True if the setting that decides the dtypes of the parameters also decides a condition.

    A setting of its own lets the user choose the dtype of the reduction.
    """
    if isinstance(condition, bool):
        return condition
    decisive = {key for other in dtypes.values() for key, _ in literals(other)}
    return any(key in decisive for key, _ in literals(condition))


def _possible_dtypes(value: Value | None) -> dict[str, Formula]:
    """Return the dtypes that an argument may be, each with its condition."""
    return value.possible_dtypes if isinstance(value, ExternalName) else {}


def _summarize_choice(dtypes: Collection[str]) -> str:
    """Return the dtype of a policy whose dtype the code chooses: float16 by choice, or unknown."""
    return torch_api.FLOAT16_BY_CHOICE if "float16" in dtypes else "?"


def call_script(interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = args[0] if args else NONE
    wrappers = inner.wrappers if isinstance(inner, FunctionValue) else ()
    decorated = any(object_ref_of(wrapper, "autocast") is not None for wrapper in wrappers)
    if isinstance(inner, Instance):
        forward = method_of(interp, inner.cls, "forward")
        decorated = forward is not None and any(isinstance(w, ObjectRef) for w in decorator_contexts(interp, forward))
    if decorated:
        interp.emit(e.ScopeLost, node, how="script", names={"context": "autocast", "call": expression_text(node)})
    return inner


def check_comm_hook(interp: Interpreter, module: TrackedObject | None, hook: Value | None, node: ast.AST) -> None:
    """Report a communication hook that casts gradients before averaging over ranks."""
    if torch_api.canonical_name(dotted_name_of(hook)) in torch_api.FP16_HOOKS:
        key = module.key if module is not None else None
        interp.emit(e.CommHook, node, key, names={"call": expression_text(node)})


def call_register_comm_hook(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    check_comm_hook(interp, tracked_object_of(bound.get("model")), bound.get("comm_hook_type"), node)
    return interp.fresh_unknown(node)
