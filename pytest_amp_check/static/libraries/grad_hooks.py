"""Hooks on the gradients of parameters: the effects on a gradient from backward, which may be scaled."""

from __future__ import annotations

import ast
from functools import partial

from ...protocol import events as e
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import for_each_alternative
from ..interpreter.values.definitions import Args, FunctionValue, Keywords
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, Value
from ..project.module import Function
from .arguments import first_or_named
from .owners import find_owners, find_updating_optimizers
from .syntax_queries import callee_of, find_nodes, first_argument, last_name, receiver_of

#: Functions that bound gradients, or that replace non-finite numbers.
_BOUNDS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num"})


class _Hook(NamedTuple):
    """Hook on the gradients of parameters. ``follows`` means that it runs after the gradients are accumulated.

    ``function`` is a function, or a choice with at least one. ``site`` is the location in the analyzed file that
    registers the hook, or the call that leads to the registration.
    """

    params: ParamsValue
    function: Value
    follows: bool
    site: Site


class _HookTable(dict[ast.AST, _Hook]):
    """Hooks of one graph, by registration call."""


def note_hook(
    interp: Interpreter, params: ParamsValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> None:
    """Record the registration of a hook on parameters."""
    hook = first_or_named(args, keywords, "hook")
    follows = name == "register_post_accumulate_grad_hook"
    is_known = hook is not None and any(isinstance(each, FunctionValue) for each in hook.alternatives())
    if hook is not None and is_known and (follows or name == "register_hook"):
        frames = interp.site_of(node).list_frames()
        here = [frame for frame in frames if frame.path == interp.module.path]
        interp.graph_data(_HookTable)[node] = _Hook(params, hook, follows, (here or frames)[-1])


def _run_hooks(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    """Run the registered hooks on the gradients of a backward pass."""
    for hook in list(interp.graph_data(_HookTable).values()):
        owners, fed = find_owners(interp, hook.params), find_updating_optimizers(interp, tensor.forwards.module_keys)
        if owners is None or fed is None or not set(owners).isdisjoint(fed):
            for_each_alternative(interp, hook.function, partial(_run_hook, interp, hook, owners, node))


def _run_hook(
    interp: Interpreter, hook: _Hook, owners: tuple[int, ...] | None, node: ast.AST, function_value: Value
) -> Value:
    """Run one function of a hook on the gradients of the optimizers ``owners``, or of unknown optimizers."""
    if not isinstance(function_value, FunctionValue):
        return NONE
    function = function_value.function
    is_elsewhere = function.module is not interp.state.frame.module
    if hook.follows:
        return NONE if is_elsewhere else interp.call_value(function_value, [hook.params], {}, node)
    is_bounding, guessed = _bounds_gradient(function)
    if is_bounding:
        names: dict[str, object] = {"call": "this hook"}
        if owners is not None and len(owners) == 1:
            names["optimizer"] = interp.program.objects[owners[0]].name
        site = hook.site if is_elsewhere else interp.site_of(function.node)
        interp.emit_at(e.GradEdit(site, None, owners=owners, guessed=guessed, names=names))
    return NONE


def _bounds_gradient(function: Function) -> tuple[bool, bool]:
    """Return True if a hook bounds the gradient argument, in place or in the returned gradient.

    The second result is True if only the name of a called function says so.
    """
    body = function.node
    given = next((argument.arg for argument in body.args.args), "")
    made = [body.body] if isinstance(body, ast.Lambda) else []
    made += [returned.value for returned in find_nodes(body, ast.Return) if returned.value is not None]
    made += [line.value for line in find_nodes(body, ast.Expr) if last_name(callee_of(line.value)).endswith("_")]
    calls = [
        call
        for call in made
        if given in (last_name(receiver_of(call)), last_name(first_argument(call))) and "scale" not in ast.unparse(call)
    ]
    names = [last_name(callee_of(call)) for call in calls]
    imports = function.module.imports
    names = [(imports[name].name or name) if name in imports else name for name in names]
    is_known = any(name.removesuffix("_") in _BOUNDS for name in names)
    is_named = any(not _BOUNDS.isdisjoint(name.lower().split("_")) for name in names)
    return is_known or is_named, not is_known


def register(handlers: HandlerTable) -> None:
    handlers.backward_end_listeners.append(_run_hooks)
