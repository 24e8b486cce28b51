"""Methods of values of which only the identity is known."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from ...protocol import events as e
from ...protocol.optable import IN_PLACE, OPS
from ...protocol.words import chain
from ..interpreter.dtypes import is_low_method
from ..interpreter.expressions import EXTENTS, entry_of, operate
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.matters import spoken_of
from ..interpreter.microbatches import PIECES
from ..interpreter.tensors import foreign_tensor, low_result
from ..interpreter.unknown import hand_off, refs, unknown
from ..interpreter.values import NONE, Args, Const, Keywords, Named, NoSync, Opaque, Params, Value
from ..interpreter.wording import receiver_words, wording
from ..project.syntax import walk
from .arguments import first_of, ref_of
from .checkpoints import loads_unknown, state_of
from .losses import FILLS, SCALES, all_optimizers, backward, fill, first_given, reduced, updated_by
from .nonfinite import code_read
from .written import all_of, called, last_name, receiver

#: Methods that tensors have, none of which runs a model.
OF_TENSORS = (
    frozenset(
        "to cuda type type_as view view_as reshape reshape_as expand expand_as permute transpose repeat flatten "
        "squeeze unsqueeze sum mean amax amin gather index_select masked_select".split()
    )
    .union(name.removesuffix("_") for name in IN_PLACE)
    .union(*OPS.values())
)

#: What tensors have, and no module has.
_OF_TENSORS_ALONE = frozenset(
    "shape size dim ndim numel view reshape permute transpose unsqueeze squeeze numpy detach item".split()
)

_NAME = re.compile(r"[^\W\d]\w*")

Method = Callable[[Interpreter, Value, Args, Keywords, ast.AST], Value | None]


def _opaque_method(at: Interpreter, receiver: Value, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    key = receiver.identity(at.number)
    stored = at.state.heap.get((key, name)) if isinstance(key, int) else None
    if stored is not None:
        return at.call_value(stored, args, keywords, node)
    act = _METHODS.get(name)
    done = act(at, receiver, args, keywords, node) if act is not None else None
    if done is not None:
        return done
    if is_low_method(name):
        return low_result(at, name, [receiver, *args, *keywords.values()])
    func = structural(at, "method", (receiver,), wording(node), name)
    data = any(not isinstance(value, (Const, Named)) for value in (*args, *keywords.values()))
    result = unknown(at, func, args, keywords, node, runs=data and name not in OF_TENSORS)
    result.pieces = name in PIECES
    if isinstance(result, Opaque) and isinstance(receiver, Opaque):
        _follow_loss(at, result, receiver, name, args, node)
        result.extent = name in EXTENTS or receiver.extent
    if name in ("get", "pop") and args and isinstance(result, Opaque):
        result.entry = entry_of(receiver, args[0])
    return result


def _follow_loss(at: Interpreter, result: Opaque, receiver: Opaque, name: str, args: Args, node: ast.AST) -> None:
    """What a method leaves of a loss of which only the name is known."""
    result.compares = name == "mean" or (receiver.compares and name != "item")
    part = name.removesuffix("_")
    operator = SCALES.get(name) or SCALES.get(part)
    if operator is not None and args:
        made = operate(at, operator, receiver, args[0], node)
        result.divided, result.summed = made.divided, made.summed
        return
    result.divided = e.DIVIDES in spoken_of(name) or (receiver.divided and not args)
    result.summed = receiver.summed
    reduced(result, receiver, part)


#: The parameters of a tensor's backward.
_OF_BACKWARD = frozenset({"gradient", "retain_graph", "create_graph", "inputs"})


def _backward(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    if isinstance(receiver, Opaque) and not args and keywords.keys() <= _OF_BACKWARD:
        backward(at, foreign_tensor(receiver), node, first_given(args, keywords))
    else:
        # A framework's own backward: it may scale, divide, step.
        at.emit(e.BACKWARD, node, opaque=True, feeds=None, names={"loss": receiver_words(node)})
    return NONE


def _scaled_in_place(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    if not receiver.graded:
        return None
    at.emit(e.GRAD_NORMALISE, node, owners=None)
    return receiver


def _enter_context(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    if not args:
        return None
    at.state.maybe_open += 1
    return at.fresh(node, "enter_context")


def _clip(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """accelerator.clip_grad_norm_ and its like unscale by themselves."""
    hand_off(at, [*args, *keywords.values(), *refs(at, all_optimizers(at))], node)
    return at.fresh(node, last_name(called(node)))


def _fill(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = foreign_tensor(receiver)
    fill(at, keywords.get("value") or (args[-1] if args else None), made, receiver_words(node), node)
    return made


def _load(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    loads_unknown(at, receiver_words(node), first_of(args, keywords, "state_dict"), node)
    return None


def _is_used_as_tensor(at: Interpreter, node: ast.AST) -> bool:
    """Whether the function being read asks of what a method is called on what only a tensor has, or computes with it.

    No module has that, and a tensor is not called.
    """
    here = at.state.frame
    root = here.module.tree if here.function is None else here.function.node
    owner = receiver(node)
    text = chain(owner) if owner is not None else None
    if text is None or any(chain(call.func) == text for call in all_of(root, ast.Call)):
        return False
    asked = any(x.attr in _OF_TENSORS_ALONE and chain(x.value) == text for x in all_of(root, ast.Attribute))
    changed = (x.target for x in all_of(root, ast.AugAssign))
    computed = (side for x in all_of(root, ast.BinOp) for side in (x.left, x.right))
    return asked or any(chain(each) == text for each in (*changed, *computed))


def _names_given(at: Interpreter, node: ast.AST) -> list[str]:
    """The names that the code being read gives to what comes of an expression."""
    given = [each for each in all_of(code_read(at), ast.Assign) if any(part is node for part in walk(each.value))]
    return [chain(target) or "" for each in given for target in each.targets]


def _casting(dtype: str) -> Method:
    def act(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> None:
        if not args and not _is_used_as_tensor(at, node):
            words = receiver_words(node)
            texts = [str(words), receiver.text if isinstance(receiver, Opaque) else "", *_names_given(at, node)]
            called = frozenset(_NAME.findall(" ".join(texts)))
            given = isinstance(receiver, Opaque) and receiver.argument
            at.emit(e.MODULE_CAST, node, dtype=dtype, called=called, given=given, names={"module": words})

    return act


def _step(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """A scheduler moves the learning rate."""
    if args or keywords or not isinstance(receiver, Opaque) or receiver.schedules < 0:
        return None
    optimizer = at.program.things[receiver.schedules].name
    names = {"scheduler": receiver_words(node), "call": wording(node), "optimizer": optimizer}
    at.emit(e.SCHEDULER_STEP, node, None, receiver.schedules, names=names)
    return at.fresh(node, "step")


def _average(at: Interpreter, receiver: Value, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """An average of the weights of a model takes them in, as ``AveragedModel`` does."""
    model = ref_of(first_of(args, keywords, "model"), "module")
    trained_by = None if model is None else updated_by(at, frozenset({model.thing.key}))
    if trained_by is not None and len(trained_by) == 1:
        names = {"call": wording(node), "optimizer": at.program.things[trained_by[0]].name}
        at.emit(e.STEP_FOLLOWED, node, None, trained_by[0], names=names)
    return None


_METHODS: dict[str, Method] = {
    "backward": _backward,
    **dict.fromkeys([name for name, does in IN_PLACE.items() if does in ("divide", "multiply")], _scaled_in_place),
    "no_sync": lambda at, receiver, args, keywords, node: None if args or keywords else NoSync(),
    "enter_context": _enter_context,
    "clip_grad_norm_": _clip,
    "clip_grad_value_": _clip,
    "parameters": lambda at, receiver, args, keywords, node: Params(None),
    **dict.fromkeys(FILLS, _fill),
    "state_dict": lambda at, receiver, args, keywords, node: state_of(at, receiver, node),
    "load_state_dict": _load,
    "half": _casting("float16"),
    "bfloat16": _casting("bfloat16"),
    "step": _step,
    "update_parameters": _average,
}


def register(handlers: Handlers) -> None:
    handlers.methods[""] = _opaque_method
