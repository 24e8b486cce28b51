"""Methods of values of which only the identity is known."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ..interpreter.dtypes import is_low_method
from ..interpreter.expressions import entry_of
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.microbatches import PIECES
from ..interpreter.tensors import foreign_tensor, low_result
from ..interpreter.unknown import hand_off, refs, unknown
from ..interpreter.values import NONE, Args, Keywords, NoSync, Opaque, Params, Value
from ..interpreter.wording import receiver_words, wording
from .checkpoints import first_of, loads_unknown, state_of
from .losses import all_optimizers, backward, fill, first_given


def _opaque_method(at: Interpreter, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = [*args, *keywords.values()]
    text = receiver_words(node)
    key = receiver.identity(at.number)
    stored = at.state.heap.get((key, name)) if isinstance(key, int) else None
    if stored is not None:
        return at.call_value(stored, args, keywords, node)
    if name == "backward":
        if isinstance(receiver, Opaque) and not args:
            backward(at, foreign_tensor(receiver), node, first_given(args, keywords))
            return NONE
        # A framework's own backward: it may scale, divide, step.
        at.emit(e.BACKWARD, node, None, opaque=True, feeds=None, names={"loss": text})
        return NONE
    if name in ("div_", "mul_") and receiver.graded:
        at.emit(e.GRAD_NORMALISE, node, None, None, owners=None)
        return receiver
    if name == "no_sync" and not given:
        return NoSync()
    if name == "enter_context" and args:
        at.state.maybe_open += 1
        return at.fresh(node, name)
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        # accelerator.clip_grad_norm_ and its like unscale by themselves.
        hand_off(at, [*given, *refs(at, all_optimizers(at))], node)
        return at.fresh(node, name)
    if name == "parameters":
        return Params(None)
    if name in ("masked_fill", "masked_fill_", "fill_", "index_fill_", "index_fill"):
        made = foreign_tensor(receiver)
        fill(at, name, args[-1] if args else keywords.get("value"), made, node)
        return made
    if is_low_method(name):
        return low_result(at, name, [receiver, *given])
    if name == "state_dict":
        return state_of(at, receiver, node)
    if name == "load_state_dict":
        loads_unknown(at, text, first_of(args, keywords, "state_dict"), node)
    if name in ("half", "bfloat16") and not args:
        at.emit(e.MODULE_CAST, node, None, dtype="float16" if name == "half" else "bfloat16", names={"module": text})
    if name == "step" and isinstance(receiver, Opaque) and receiver.schedules >= 0 and not given:
        optimizer = at.program.things[receiver.schedules].name
        names: dict[str, object] = {"scheduler": text, "call": wording(node), "optimizer": optimizer}
        at.emit(e.SCHEDULER_STEP, node, None, receiver.schedules, names=names)
        return at.fresh(node, name)
    func = structural(at, "method", (receiver,), wording(node), name)
    result = unknown(at, func, args, keywords, node)
    result.pieces = name in PIECES
    if isinstance(result, Opaque) and isinstance(receiver, Opaque):
        result.compares = name == "mean" or (receiver.compares and name != "item")
        part = name.removesuffix("_")
        kept = receiver.divided or (part == "mul" and any(value.divided for value in args))
        result.divided = part in ("sum", "div", "true_divide") or (kept and (not args or part == "mul"))
    if name in ("get", "pop") and args and isinstance(result, Opaque):
        result.entry = entry_of(receiver, args[0])
    return result


def register(handlers: Handlers) -> None:
    handlers.methods[""] = _opaque_method
