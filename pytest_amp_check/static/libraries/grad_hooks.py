"""Hooks on the gradients of parameters: what they do to what a backward pass gives, which may be scaled."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import Args, FunctionValue, Keywords, Params, Tensor
from ..project.module import FunctionNode
from .arguments import first_of
from .losses import owners_of, updated_by
from .written import all_of, called, first_argument, last_name, receiver

#: What brings gradients between bounds, or has numbers in the place of those that are not finite.
_BOUNDS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num"})


class _Hooks(dict[ast.AST, tuple[Params, FunctionValue, bool]]):
    """The hooks of one graph, by the calls that register them: on what, and whether on what a parameter has by then."""


def note_hook(at: Interpreter, params: Params, name: str, args: Args, keywords: Keywords, node: ast.AST) -> None:
    """A hook is registered on parameters."""
    hook = first_of(args, keywords, "hook")
    follows = name == "register_post_accumulate_grad_hook"
    if isinstance(hook, FunctionValue) and (follows or name == "register_hook"):
        at.of_graph(_Hooks)[node] = params, hook, follows


def _ran(at: Interpreter, tensor: Tensor, node: ast.AST) -> None:
    """A backward pass has run, with the hooks on the gradients that it gives."""
    for params, hook, follows in list(at.of_graph(_Hooks).values()):
        owners, fed = owners_of(at, params), updated_by(at, tensor.deps)
        apart = owners is not None and fed is not None and set(owners).isdisjoint(fed)
        if apart or hook.function.module is not at.state.frame.module:
            continue
        if follows:
            at.call_value(hook, [params], {}, node)
            continue
        if _bounds(hook.function.node):
            names: dict[str, object] = {"call": "this hook", "params": "the gradients"}
            if owners is not None and len(owners) == 1:
                names["optimizer"] = at.program.things[owners[0]].name
            at.emit(e.GRAD_EDIT, hook.function.node, owners=owners, names=names)


def _bounds(function: FunctionNode) -> bool:
    """Whether a hook bounds the gradient that it is given, in place or in what it gives back."""
    given = next((argument.arg for argument in function.args.args), "")
    made = [function.body] if isinstance(function, ast.Lambda) else []
    made += [returned.value for returned in all_of(function, ast.Return) if returned.value is not None]
    made += [line.value for line in all_of(function, ast.Expr) if last_name(called(line.value)).endswith("_")]
    return any(
        last_name(called(call)).removesuffix("_") in _BOUNDS
        and given in (last_name(receiver(call)), last_name(first_argument(call)))
        and "scale" not in ast.unparse(call)
        for call in made
    )


def register(handlers: Handlers) -> None:
    handlers.backward_ended.append(_ran)
