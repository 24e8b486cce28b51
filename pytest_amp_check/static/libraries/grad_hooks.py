"""Hooks on the gradients of parameters: the effects on a gradient from backward, which may be scaled."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values import Args, FunctionValue, Keywords, ParamsValue, TensorValue
from ..project.module import FunctionNode
from .arguments import first_or_named
from .losses import find_owners, find_updating_optimizers
from .syntax_queries import callee_of, find_nodes, first_argument, last_name, receiver_of

#: Functions that bound gradients, or that replace non-finite numbers.
_BOUNDS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num"})


class _HookTable(dict[ast.AST, tuple[ParamsValue, FunctionValue, bool]]):
    """Hooks of one graph, by registration call: parameters, function, and True for a post-accumulate hook."""


def note_hook(
    interp: Interpreter, params: ParamsValue, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> None:
    """Record the registration of a hook on parameters."""
    hook = first_or_named(args, keywords, "hook")
    follows = name == "register_post_accumulate_grad_hook"
    if isinstance(hook, FunctionValue) and (follows or name == "register_hook"):
        interp.graph_data(_HookTable)[node] = params, hook, follows


def _run_hooks(interp: Interpreter, tensor: TensorValue, node: ast.AST) -> None:
    """Run the registered hooks on the gradients of a backward pass."""
    for params, hook, follows in list(interp.graph_data(_HookTable).values()):
        owners, fed = find_owners(interp, params), find_updating_optimizers(interp, tensor.module_keys)
        apart = owners is not None and fed is not None and set(owners).isdisjoint(fed)
        if apart or hook.function.module is not interp.state.frame.module:
            continue
        if follows:
            interp.call_value(hook, [params], {}, node)
            continue
        if _bounds_gradient(hook.function.node):
            names: dict[str, object] = {"call": "this hook", "params": "the gradients"}
            if owners is not None and len(owners) == 1:
                names["optimizer"] = interp.program.objects[owners[0]].name
            interp.emit(e.GradEdit, hook.function.node, owners=owners, names=names)


def _bounds_gradient(function: FunctionNode) -> bool:
    """Return True if a hook bounds the gradient argument, in place or in the returned gradient."""
    given = next((argument.arg for argument in function.args.args), "")
    made = [function.body] if isinstance(function, ast.Lambda) else []
    made += [returned.value for returned in find_nodes(function, ast.Return) if returned.value is not None]
    made += [line.value for line in find_nodes(function, ast.Expr) if last_name(callee_of(line.value)).endswith("_")]
    return any(
        last_name(callee_of(call)).removesuffix("_") in _BOUNDS
        and given in (last_name(receiver_of(call)), last_name(first_argument(call)))
        and "scale" not in ast.unparse(call)
        for call in made
    )


def register(handlers: HandlerTable) -> None:
    handlers.backward_end_listeners.append(_run_hooks)
