"""DeepSpeed: the engine that it makes of a module."""

from __future__ import annotations

import ast

from ...protocol import frameworks, surface
from ...protocol.events import UNKNOWN
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.unknown import hand_off
from ..interpreter.values import NONE, Args, Instance, Keywords, Ref, Sequence, Value
from .arguments import literal, thing_of
from .frameworks import divided_by, unknown_steps
from .losses import as_loss
from .modules import module_method


def _initialized(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    hand_off(at, list(bound.values()), node)
    thing = thing_of(bound.get("model"))
    if thing is None:
        thing = at.thing(("deepspeed", at.place_key(node)), "module", "", at.site(node))
    thing.facts["deepspeed"] = True
    made = Ref(thing)
    return Sequence([made, at.fresh(node, "optimizer"), at.fresh(node, "loader"), at.fresh(node, "scheduler")])


def _engine_method(
    at: Interpreter, receiver: Ref | Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    thing = receiver.thing
    assert thing is not None
    if not thing.facts.get("deepspeed"):
        return module_method(at, receiver, name, args, keywords, node)
    if name == "gradient_accumulation_steps":
        return unknown_steps(at, thing)
    divides = literal(keywords.get("scale_wrt_gas", NONE))
    if name == "backward" and args and divides is not False and divides is not UNKNOWN:
        divided_by(at, as_loss(args[0]), unknown_steps(at, thing), "DeepSpeed", node)
    if name in ("step", "save_checkpoint", "load_checkpoint", "zero_grad", "is_gradient_accumulation_boundary"):
        return at.fresh(node, name)
    return module_method(at, receiver, name, args, keywords, node)


def register(handlers: Handlers) -> None:
    handlers.framework_roles[frameworks.DEEPSPEED] = _initialized
    handlers.methods["module"] = _engine_method
