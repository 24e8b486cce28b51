"""Calls of dotted names: the table of torch names says which role each plays."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import UNKNOWN
from ...protocol.optable import FOREACH_IN_PLACE
from ..interpreter.dtypes import low_function, op_of
from ..interpreter.expressions import EXTENTS, measures, operate
from ..interpreter.forks import on_each
from ..interpreter.identity import structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.matters import clips, spoken_of
from ..interpreter.microbatches import PIECES
from ..interpreter.tensors import computed, foreign_tensor, in_region, low_result, ran_here, widened
from ..interpreter.unknown import (
    IMPURE,
    compares,
    hand_off,
    hands_on_divided,
    holds_scaler,
    is_criterion,
    is_graded,
    refs,
)
from ..interpreter.values import (
    FORWARD,
    NONE,
    Args,
    Choice,
    GradMode,
    Keywords,
    Named,
    NullContext,
    Params,
    Partial,
    Ref,
    StackContext,
    Tensor,
    Value,
)
from ..interpreter.wording import wording
from .arguments import bind, first_of, given_tensors, literal, name_of, ref_of
from .autograd_functions import FACTORIES
from .builtin_calls import chained, fields, iterated
from .checkpoints import FIELD_FUNCTIONS, WRITERS, may_save, states_taken
from .declared import declared_call
from .frameworks import framework_call
from .gradients import clip, grad_changed, read_grad
from .losses import (
    SCALES,
    all_optimizers,
    as_loss,
    backward,
    fill,
    first_given,
    loss,
    owners_of,
    reduced,
    reduction_of,
)
from .modules import torch_module
from .sharding import local_clip
from .written import first_words

#: Functions of the standard library and of torch that neither step nor change what they are given.
HARMLESS = tuple("builtins. torch. logging. math. os. time. json. numpy. np. copy. sys. random.".split())
#: Functions that are a ``%``.
REMAINDERS = frozenset("math.fmod operator.mod numpy.mod numpy.remainder numpy.fmod torch.remainder torch.fmod".split())
#: Functions that are an operator, and those that leave of a loss what it was.
OPERATORS = {f"torch.{name}": operator for name, operator in SCALES.items()} | {
    "operator.truediv": "/",
    "operator.mul": "*",
}
_KEEPING = frozenset({"builtins.abs", "builtins.round"})

#: Functions of torch that say how much there is of some data.
_MEASURING = frozenset(f"torch.{name}" for name in EXTENTS)


def _call_named(at: Interpreter, func: Named, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made_by_framework = framework_call(at, func.name, args, keywords, node)
    if made_by_framework is not None:
        return made_by_framework
    name = surface.canonical(func.name)
    shim = func.shim or at.state.shims + at.state.trying > 0
    if name in surface.DEPRECATED and not shim and isinstance(node, ast.expr):
        at.emit(e.DEPRECATED, node, old=name, new=surface.DEPRECATED[name], names={"call": name})
    entry = surface.SURFACE.get(name)
    if entry is not None:
        handler = at.handlers.roles.get(entry.role)
        if handler is not None:
            return handler(at, _meant(entry, args, keywords) if func.bare else entry, args, keywords, node)
    op = low_function(name)
    if op:
        return low_result(at, op, [*args, *keywords.values()])
    function = at.handlers.functions.get(name)
    known = function(at, args, keywords, node) if function is not None else None
    if known is None:
        known = _of_family(at, name, args, keywords, node)
    return _outside(at, name, args, keywords, node) if known is None else known


def _meant(entry: surface.Entry, args: Args, keywords: Keywords) -> surface.Entry:
    """What a name stands for of which no import says so: an autocast without a device type is CUDA's own."""
    first = first_of(args, keywords, "device_type")
    if entry.role == surface.AUTOCAST and (first is None or isinstance(literal(first), bool)):
        return surface.lookup("torch.cuda.amp.autocast") or entry
    return entry


def _of_family(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """A call of a function that is told by the module that it is from."""
    if name in OPERATORS and len(args) == 2 and not any(value.gradients() for value in args):
        return operate(at, OPERATORS[name], args[0], args[1], node)
    if name in _KEEPING and (tensors := given_tensors(args, {})):
        return computed(at, tensors)
    if name.startswith("builtins."):
        return structural(at, "call", tuple(args), wording(node), name.removeprefix("builtins."))
    if name in REMAINDERS and len(args) == 2 and not given_tensors(args, {}):
        return operate(at, "%", args[0], args[1], node)
    if name.startswith("itertools."):
        iterate = chained if name.endswith("chain") else iterated
        return iterate(at, args, keywords, node) or structural(at, "call", tuple(args), wording(node), "iter")
    if name.startswith("torch.optim.lr_scheduler."):
        return _scheduler(at, args, keywords, node)
    return torch_module(at, name, args, keywords, node) if _is_module(name) else None


def _is_module(name: str) -> bool:
    """Whether a name is that of a class of ``torch.nn``."""
    return name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() and name.count(".") <= 3


def _outside(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A call of a function of which only the name is known: what it is given may change, or be saved."""
    declared = declared_call(at, name, args, keywords, node)
    if declared is not None:
        return declared
    given = [*args, *keywords.values()]
    states = states_taken(at, name, given, node)
    if states is not None:
        return states
    harmless = name.startswith(HARMLESS)
    about = spoken_of(name)
    if not harmless:
        hand_off(at, given, node, about)
    if (not harmless or name.startswith(WRITERS)) and not compares(name):
        may_save(at, given, node)
    if _averages(name) and all(value.kind != "tensor" for value in given):
        at.emit(e.GRAD_AVERAGE, node)
    tensors = given_tensors(given, {})
    if tensors:
        return _of_tensors(at, name, tensors, given)
    owners = _owners_of(at, given)
    if owners is not None and not harmless and clips(name):
        return clip(at, next(value for value in given if value.kind == "parameters"), [], {}, node, guessed=True)
    if owners is not None and not harmless and about:
        hand_off(at, refs(at, owners), node, about)
    of_gradients = _of_gradients(at, name, args, given, node)
    return of_gradients or _of_unknown(at, name, args, keywords, node)


def _of_tensors(at: Interpreter, name: str, tensors: list[Tensor], given: list[Value]) -> Tensor:
    made = computed(at, tensors)
    widened(at, made, op_of(name), given)
    if name == "torch.mean":
        made.vague = False
    reduced(made, tensors[0], name.removeprefix("torch."))
    # Unanalyzed code that is given a scaler with a loss may scale the loss.
    made.graded = made.graded or is_graded(given) or holds_scaler(at, given)
    made.pieces = name.rpartition(".")[2] in PIECES
    if not name.startswith("torch."):
        made.module_read = False
    if _may_run_models(at, name) and not is_criterion(name.rpartition(".")[2]):
        made.autocast, made.callees, made.dtypes = ran_here(at, made.past, FORWARD)
    return made


def _may_run_models(at: Interpreter, name: str) -> bool:
    """Whether a function of another package may run a model in a region that may be entered here."""
    return not name.startswith(HARMLESS) and (in_region(at) or at.state.maybe_open > 0)


def _of_gradients(at: Interpreter, name: str, args: Args, given: list[Value], node: ast.AST) -> Value | None:
    """What a function makes of gradients that it is given: it edits or reads them."""
    for value in given:
        for grad in value.gradients():
            effect = FOREACH_IN_PLACE.get(name.removeprefix("torch.")) if value is given[0] else None
            if effect is not None:
                grad_changed(at, grad, effect, args[1:], "p.grad", node)
                return NONE
            # What is as large as gradients knows nothing of their values.
            if not name.startswith("torch.distributed.") and not name.endswith((".sign", "_like")):
                return read_grad(at, grad, node, name)
    return None


def _of_unknown(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    given = [*args, *keywords.values()]
    if makes_float32(name, args, keywords):
        made = at.fresh(node, name)
        made.full = True
        return made
    if name.rpartition(".")[2] in IMPURE:
        return at.fresh(node, name)
    made = structural(at, "call", tuple(given), wording(node), name, tuple(keywords))
    made.pieces = name.rpartition(".")[2] in PIECES
    made.divided = hands_on_divided(given)
    if given:
        reduced(made, given[0], name.removeprefix("torch."))
    made.extent = name in _MEASURING or (name.startswith(HARMLESS) and measures(given))
    made.compares = name == "torch.mean"
    return made.made(ran_here(at, made.past, FORWARD)) if _may_run_models(at, name) else made


def _islice(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = structural(at, "call", tuple(args), wording(node), "itertools.islice")
    made.pieces = True
    return made


def _ending(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A call that ends the program."""
    at.draft.happened += 1
    at.state.cur = None
    return NONE


def _namespace(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """An object that only holds what it is given."""
    if args:
        return None
    space = at.fresh(node, "namespace")
    for attribute, value in keywords.items():
        at.store(space.key, attribute, value)
    return space


def _scheduler(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    scheduler = at.fresh(node, "scheduler")
    target = ref_of(first_of(args, keywords, "optimizer"), "optimizer")
    if target is not None:
        scheduler.schedules = target.thing.key
    return scheduler


def _owners_of(at: Interpreter, given: list[Value]) -> tuple[int, ...] | None:
    """The optimizers that may update the parameters that something is given; None where it is given none."""
    owners = [owners_of(at, value) for value in given if isinstance(value, Params)]
    if not owners:
        return None
    return tuple(dict.fromkeys(key for known in owners for key in (all_optimizers(at) if known is None else known)))


def _entry_clip(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    rest = [bound[name] for name in entry.parameters[1:] if name in bound]
    params = bound.get("parameters")
    norm = clip(at, params, rest, bound, node)
    if entry.facts.get("norm") and local_clip(at, params):
        for event in norm.readings:
            event.facts["local"] = True
    return norm


def _entry_norm(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    for grad in args[0].gradients() if args else []:
        return read_grad(at, grad, node, "norm")
    return at.fresh(node, "norm")


def _loss_module(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    thing = at.thing(("loss", at.place_key(node)), "loss", "", at.site(node))
    thing.facts.update(entry.facts, reduction=reduction_of(keywords))
    return Ref(thing)


def _loss_function(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    order = [bound.pop(name) for name in entry.parameters if name in bound]
    return loss(at, entry.facts, order, bound, node)


def _backward_function(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    value = first_of(args, keywords, "tensors")
    if isinstance(value, Choice):
        return on_each(at, value, lambda v: _backward_function(at, entry, [v, *args[1:]], keywords, node))
    words = first_words(node)
    names = {"call": wording(node), **({"loss": words} if words else {})}
    backward(at, as_loss(value), node, first_given(args[1:], keywords), names)
    return NONE


def _grad_function(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = as_loss(bind(entry.parameters, args, keywords).get("outputs"))
    if made.scaler >= 0:
        scaler = at.program.things[made.scaler].name
        made.penalty = (node, {"call": wording(node), "loss": first_words(node), "scaler": scaler}, False)
    made.scaler = -1
    made.uneven = False
    made.is_loss = False
    if made.autocast == "out":
        # What is derived once more is kept in float32 on purpose.
        made.autocast = "?"
    at.emit(e.AUTOGRAD_GRAD, node)
    return made


def _cache_clear(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    at.emit(e.AUTOCAST_CACHE_CLEAR, node)
    return NONE


def _fill_function(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    tensors = given_tensors([], bound)
    made = computed(at, tensors) if tensors else foreign_tensor(None)
    value = bound.get("value") or bound.get("fill_value")
    if entry.name == "torch.where":
        value = next((bound[k] for k in ("input", "other") if literal(bound.get(k)) is not UNKNOWN), None)
    fill(at, value, made, "x" if entry.name == "torch.where" else first_words(node), node)
    return made


def makes_float32(name: str, args: Args, keywords: Keywords) -> bool:
    """Whether a function of torch is known to give a tensor of float32."""
    space, _, factory = name.partition(".")
    if space != "torch" or factory not in FACTORIES or "dtype" in keywords or "**" in keywords:
        return False
    return not any(map(name_of, args))


def _averages(name: str) -> bool:
    """Whether a function of torch brings together what several processes hold, as gradients are averaged."""
    last = name.rpartition(".")[2]
    return name.startswith("torch.distributed.") and any(word in last for word in ("reduce", "gather", "average"))


def register(handlers: Handlers) -> None:
    handlers.calls["named"] = _call_named
    handlers.functions.update(
        {
            "itertools.islice": _islice,
            **dict.fromkeys(FIELD_FUNCTIONS, fields),
            **dict.fromkeys(("sys.exit", "os._exit", "builtins.exit", "builtins.quit"), _ending),
            **dict.fromkeys(("types.SimpleNamespace", "argparse.Namespace"), _namespace),
        }
    )
    handlers.roles.update(
        {
            surface.CLIP: _entry_clip,
            surface.NORM: _entry_norm,
            surface.LOSS_MODULE: _loss_module,
            surface.LOSS: _loss_function,
            surface.BACKWARD: _backward_function,
            surface.GRAD: _grad_function,
            surface.NULL_CONTEXT: lambda at, entry, args, keywords, node: NullContext(),
            surface.EXIT_STACK: lambda at, entry, args, keywords, node: StackContext(),
            surface.CONTEXT: lambda at, entry, *_: NullContext() if entry.facts.get("grad") else GradMode(),
            surface.CACHE_CLEAR: _cache_clear,
            surface.LOAD: lambda at, entry, args, keywords, node: at.fresh(node, "loaded"),
            surface.FILL: _fill_function,
            surface.PARTIAL: lambda at, entry, args, keywords, node: (
                Partial(args[0], args[1:], keywords) if args else at.fresh(node)
            ),
        }
    )
