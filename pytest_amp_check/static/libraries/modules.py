"""Modules of torch: what running them, casting them and wrapping them does."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Thing
from ...protocol.named import NamedTuple
from ..interpreter.classes import BOUND, decorations, home_of, method_of, reads_forward
from ..interpreter.functions import follow
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import in_region, mark_region
from ..interpreter.unknown import hand_off, unknown
from ..interpreter.values import (
    CASTS,
    FORWARD,
    NONE,
    Args,
    BoundMethod,
    Choice,
    Container,
    FunctionValue,
    Instance,
    Keywords,
    Mapping,
    Named,
    NoSync,
    Opaque,
    Params,
    Ref,
    Sequence,
    Tensor,
    Value,
    past_of,
    where,
)
from ..interpreter.wording import receiver_words, wording
from ..project.module import Function
from .arguments import bind, each_item, first_of, given_tensors, literal, name_of, ref_of, thing_of
from .born_low import born, born_by_default, made_wide
from .checkpoints import state_of
from .gradients import HOOKS, clip, rate_divided
from .losses import owners_of
from .overhead import Costs, is_compiled_or_low
from .sizes import note_sides
from .written import called, first_argument, keywords_of, last_name

#: What a method of a module does: None where it runs the module.
Method = Callable[["Interpreter", "_Asked"], Value | None]

#: Words of a forward that computes a loss itself.
LOSSES = frozenset(
    "binary_cross_entropy BCELoss cross_entropy CrossEntropyLoss mse_loss MSELoss l1_loss nll_loss".split()
)
#: Methods that give a tensor of the shape that they are called on, and leave float32 what it is.
ELEMENTWISE = frozenset(
    "abs clamp clamp_max clamp_min exp log log1p neg reciprocal sigmoid softplus sqrt square".split()
)
#: Methods that give back the module, which is as before as far as the protocol is concerned.
SAME = frozenset("train eval cuda cpu float double apply to_empty share_memory".split())
#: Those of them that make parameters wide.
_WIDENS = frozenset({"float", "double"})
#: How the names of modules begin that make parameters of the default dtype.
_WITH_WEIGHTS = ("Linear", "Bilinear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "Transformer", "MultiheadAttention")
#: Methods that go over what a module holds.
PARTS = frozenset("modules named_modules children named_children buffers".split())


def forward(at: Interpreter, thing: Thing, args: Args, keywords: Keywords, node: ast.AST, *, read: bool) -> Tensor:
    """The value of a module's forward."""
    hand_off(at, [*args, *keywords.values()], node, frozenset())
    made = Tensor(at.turning())
    cached = not is_compiled_or_low(thing)
    made.forward = at.emit(e.FORWARD, node, thing.key, cached=cached, names={"module": wording(node)})
    for listener in at.handlers.forward_run:
        listener(at, thing, node)
    parts = given_tensors(args, keywords)
    earlier = past_of([*args, *keywords.values()])
    deps: frozenset[int] | None = frozenset((thing.key,))
    made.ran = at.turning()
    for part in parts:
        made.ran |= part.ran
        deps = None if deps is None or part.deps is None else deps | part.deps
        made.penalty = made.penalty or part.penalty
    made.deps = frozenset() if at.state.no_grad else deps
    made.module_read = read and all(part.module_read for part in parts)
    itself = _asked_of(at, thing, read=read)
    outside = next((p for p in parts if p.autocast == "out" and p.forward is not None and p.deps and not p.casts), None)
    if itself is CASTS and outside is not None and _trains_for(at, outside, thing):
        # What enters autocast around the loss alone leaves out the model that it is given the result of.
        made.forward, itself = outside.forward, frozenset[str]()
    made.callees = earlier.callees | itself
    made.matmul = True
    mark_region(at, made)
    computes_in = {part.facts["computes_in"] for part in _parts_of(at, thing) if "computes_in" in part.facts}
    if computes_in and made.autocast == "out":
        made.dtypes |= computes_in
    made.in_region = False
    if earlier.autocast in ("in", "unknown"):
        made.autocast = where({made.autocast, earlier.autocast})
    return made


def _trains_for(at: Interpreter, given: Tensor, thing: Thing) -> bool:
    """Whether an optimizer has the parameters of what made a tensor, and not those of a module that is given it."""
    behind = owners_of(at, Params(given.deps or frozenset())) or ()
    own = owners_of(at, Params(frozenset((thing.key,)))) or ()
    return bool(set(behind) - set(own))


def _parts_of(at: Interpreter, thing: Thing) -> list[Thing]:
    """A module with the modules that are parts of it."""
    return [at.program.things[key] for key in at.program.whole(frozenset((thing.key,)))]


def _asked_of(at: Interpreter, thing: Thing, *, read: bool) -> frozenset[str]:
    """What is to be asked whether running a module enters autocast: nothing, where that is known not to."""
    if any(part.facts.get("casts") for part in _parts_of(at, thing)):
        return CASTS
    return frozenset() if read else frozenset({FORWARD})


def _call_object(at: Interpreter, receiver: Instance, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """The value of a call of a module whose class is in view: with what its forward does to a loss."""
    thing = receiver.thing
    assert thing is not None
    made = forward(at, thing, args, keywords, node, read=reads_forward(at, receiver.cls))
    method = method_of(at, receiver.cls, "forward")
    if method is None or method in at.active:
        return made
    telling = _tells_of_loss(at, method, [*args, *keywords.values()])
    casts = "autocast" in method.words and not (at.state.open or at.state.maybe_open or at.state.no_grad)
    here = at.state.frame.function or at.state.frame.module
    if not (telling or casts or (here.fragile and in_region(at))):
        return made
    outcome: list[Value] = []
    inner = FunctionValue(method, home_of(at, method), receiver)

    def act() -> None:
        at.state.forwards += 1
        outcome.append(follow(at, inner, args, keywords, node))

    casting = at.of_graph(Costs).casting
    casting.append(thing)
    at.previewed(act)
    casting.pop()
    return _reduced_as(outcome[0], made) if telling else _known_as(outcome[0], made)


def _tells_of_loss(at: Interpreter, method: Function, given: list[Value]) -> bool:
    """Whether a forward may compute a loss, by its words or by what it is given, or may spoil it."""
    compares = len(given) > 1 and any(v.tensors() or v.called for v in given)
    return compares or bool(method.words & LOSSES) or (method.fragile and in_region(at))


def module_method(
    at: Interpreter, receiver: Ref | Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    thing = receiver.thing
    assert thing is not None
    if name in SAME or (name in ELEMENTWISE and thing.facts.get("wide")):
        # The module itself, or what is as wide as the parameter, and as exact.
        if name in _WIDENS:
            _widen(at, thing, node)
        return receiver
    if name in PARTS:
        return at.fresh(node, name)
    asked = _Asked(receiver, thing, args, keywords, node)
    if name in HOOKS:
        return _hooked(at, name, asked)
    act = _METHODS.get(name)
    done = act(at, asked) if act is not None else None
    return forward(at, thing, args, keywords, node, read=False) if done is None else done


def _hooked(at: Interpreter, name: str, asked: _Asked) -> Value:
    comm_hook(at, asked.thing, first_of(asked.args[1:], asked.keywords, "hook"), asked.node)
    # torch's own hooks average over ranks, not over micro-batches.
    if not any(name_of(value).startswith("torch.") for value in [*asked.args, *asked.keywords.values()]):
        rate_divided(at, asked.parameters)
    return at.fresh(asked.node, name)


class _Asked(NamedTuple):
    """A method of a module that is called."""

    receiver: Ref | Instance
    thing: Thing
    args: Args
    keywords: Keywords
    node: ast.AST

    @property
    def parameters(self) -> Params:
        return Params(frozenset((self.thing.key,)))


def _named_parameters(at: Interpreter, asked: _Asked) -> Value:
    parameter = Params(frozenset((asked.thing.key,)), one=True)
    return Sequence([Sequence([at.fresh(asked.node, "name"), parameter])])


def _zero_grad(at: Interpreter, asked: _Asked) -> Value:
    owners = owners_of(at, asked.parameters)
    at.emit(e.ZERO_GRAD, asked.node, owners=owners, names={"call": wording(asked.node)})
    return NONE


def _casting(dtype: str) -> Method:
    def act(at: Interpreter, asked: _Asked) -> Value:
        _cast(at, asked.thing, dtype, asked.node)
        return asked.receiver

    return act


def _to(at: Interpreter, asked: _Asked) -> Value:
    for value in [*asked.args, *asked.keywords.values()]:
        dtype = surface.DTYPES.get(name_of(value))
        if dtype in ("float16", "bfloat16"):
            _cast(at, asked.thing, dtype, asked.node)
        elif dtype in ("float32", "float64"):
            _widen(at, asked.thing, asked.node)
    return asked.receiver


def _requires_grad(at: Interpreter, asked: _Asked) -> Value:
    if literal(first_of(asked.args, asked.keywords, "requires_grad")) is False:
        asked.thing.facts["frozen"] = True
    return asked.receiver


def _add_adapter(at: Interpreter, asked: _Asked) -> Value:
    """Adapters are trained in the place of what they are added to."""
    asked.thing.facts["frozen"] = True
    return NONE


def _compile(at: Interpreter, asked: _Asked) -> Value:
    asked.thing.facts["compiled"] = True
    return NONE


def _load_state_dict(at: Interpreter, asked: _Asked) -> Value:
    bound = bind(("state_dict", "strict", "assign"), asked.args, asked.keywords)
    if literal(bound.get("assign")) is not True:  # else the module has other parameters, of which there are no copies
        names = {"module": receiver_words(asked.node), "call": wording(asked.node)}
        at.emit(e.PARAM_WRITE, asked.node, asked.thing.key, names=names)
    return at.fresh(asked.node, "load_state_dict")


def _run(at: Interpreter, asked: _Asked) -> Value:
    return forward(at, asked.thing, asked.args, asked.keywords, asked.node, read=is_read(asked.receiver))


def _backward(at: Interpreter, asked: _Asked) -> Value:
    at.emit(e.BACKWARD, asked.node, opaque=True, feeds=None)
    return NONE


_METHODS: dict[str, Method] = {
    "parameters": lambda at, asked: asked.parameters,
    "named_parameters": _named_parameters,
    "zero_grad": _zero_grad,
    "half": _casting("float16"),
    "bfloat16": _casting("bfloat16"),
    "to": _to,
    "requires_grad_": _requires_grad,
    "add_adapter": _add_adapter,
    "compile": _compile,
    "load_state_dict": _load_state_dict,
    "state_dict": lambda at, asked: state_of(at, asked.receiver, asked.node),
    "forward": _run,
    "__call__": _run,
    "no_sync": lambda at, asked: None if asked.args else NoSync(),
    "clip_grad_norm_": lambda at, asked: clip(at, asked.parameters, asked.args, asked.keywords, asked.node),
    "backward": _backward,
    "step": lambda at, asked: unknown(at, asked.receiver, asked.args, asked.keywords, asked.node),
}


def _cast(at: Interpreter, thing: Thing, dtype: str, node: ast.AST) -> None:
    thing.facts["low"] = True
    _emit_cast(at, thing, dtype, node)


def _emit_cast(at: Interpreter, thing: Thing, dtype: str, node: ast.AST) -> None:
    names = {"module": receiver_words(node), "call": wording(node)}
    at.emit(e.MODULE_CAST, node, thing.key, dtype=dtype, names=names)


def _widen(at: Interpreter, thing: Thing, node: ast.AST) -> None:
    """A module is cast to float32: only its values were rounded, right before, or where its parts were made."""
    event = at.draft.nodes[at.state.cur].event if at.state.cur is not None else None
    if event is not None and event.kind == e.MODULE_CAST and event.subject == thing.key:
        event.facts["dtype"] = "float32"
        thing.facts["low"] = False
    _emit_cast(at, thing, "float32", node)
    made_wide(at, at.program.whole(frozenset((thing.key,))))


def torch_module(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    held = args[0].items if len(args) == 1 and isinstance(args[0], Sequence) else args
    parts = [v for v in held if isinstance(v, (Ref, Instance))]
    thing = at.thing(("module", at.place_key(node)), "module", "", at.site(node))
    kind = name.rpartition(".")[2]
    last = args[-1] if kind == "Sequential" and args else None
    thing.facts.update(
        read=all(map(is_read, parts)),
        kind=last.thing.facts.get("kind", "") if isinstance(last, Ref) else kind,
        parts={part.thing.key for part in parts if part.thing is not None},
        parameter=kind == "Parameter" and all(value.full for value in args),
        wide=kind == "Parameter" and _has_dimensions(node),
    )
    if "dtype" in keywords:
        dtype = surface.DTYPES.get(name_of(keywords["dtype"]), "")
        if dtype in ("float16", "bfloat16"):
            born(at, thing, dtype, node)
    elif kind.startswith(_WITH_WEIGHTS):
        born_by_default(at, thing)
    note_sides(thing, kind, args, keywords, node)
    ordered = kind in ("Sequential", "ModuleList") and len(parts) == len(held)
    return Container(thing, held) if ordered else Ref(thing)


def wrap_module(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = first_of(args, keywords, entry.parameters[0])
    thing = thing_of(inner)
    if thing is None and isinstance(inner, Opaque):
        thing = at.thing(("wrapped", at.place_key(node)), "module", "", at.site(node))
        inner = Ref(thing)
    if thing is not None:
        mark_wrapped(at, thing, entry, args, keywords)
    if thing is not None and entry.role == surface.COMPILE:
        thing.facts["compiled"] = True
    if entry.facts.get("copies") and inner is not None and any(map(thing_of, inner.alternatives())):
        # A copy has parameters of its own.
        copy = at.thing(("copy", at.place_key(node)), "module", "", at.site(node))
        copy.facts["copied"] = True
        return Ref(copy)
    return inner if inner is not None else at.fresh(node, "wrapped")


def mark_wrapped(at: Interpreter, thing: Thing, entry: surface.Entry, args: Args, keywords: Keywords) -> None:
    """Remember what a module is wrapped in, and under which tests."""
    wraps = entry.facts.get("wraps")
    if wraps is None:
        return
    policy = keywords.get("mp_policy") or keywords.get("mixed_precision")
    if policy is not None:
        thing.facts["casts"] = True
        if isinstance(policy, Opaque) and policy.key in at.of_file(Policies):
            thing.facts["computes_in"] = at.of_file(Policies)[policy.key]
    strategy = keywords.get("sharding_strategy") or (args[2] if len(args) > 2 else None)
    if wraps == "fsdp1" and name_of(strategy).endswith(".NO_SHARD"):
        wraps = "whole"
    thing.facts.setdefault("wrapped", {}).setdefault(wraps, frozenset(at.guards()))


class Policies(dict[int, str]):
    """The dtype in which modules compute that are sharded with a policy, by the key of what stands for that."""


def _policy(at: Interpreter, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    made = at.fresh(node, "policy")
    dtype = surface.DTYPES.get(name_of(first_of(args, keywords, "param_dtype")))
    if dtype is not None:
        at.of_file(Policies)[made.key] = dtype
    return made


def _script(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    inner = args[0] if args else NONE
    wrappers = inner.wrappers if isinstance(inner, FunctionValue) else ()
    decorated = any(ref_of(wrapper, "autocast") is not None for wrapper in wrappers)
    if isinstance(inner, Instance):
        forward = method_of(at, inner.cls, "forward")
        decorated = forward is not None and any(isinstance(w, Ref) for w in decorations(at, forward))
    if decorated:
        at.emit(e.SCOPE_LOST, node, how="script", names={"context": "autocast", "call": wording(node)})
    return inner


def comm_hook(at: Interpreter, module: Thing | None, hook: Value | None, node: ast.AST) -> None:
    """Gradients are cast before they are averaged over ranks."""
    if surface.canonical(name_of(hook)) in surface.FP16_HOOKS:
        key = module.key if module is not None else None
        at.emit(e.COMM_HOOK, node, key, names={"call": wording(node)})


def _register_hook(at: Interpreter, entry: surface.Entry, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    bound = bind(entry.parameters, args, keywords)
    comm_hook(at, thing_of(bound.get("model")), bound.get("comm_hook_type"), node)
    return at.fresh(node, "hook")


def _known_as(outcome: Value, made: Tensor) -> Value:
    """What a module gives, with what reading its forward has shown of the dtypes."""
    if not isinstance(outcome, Sequence) or outcome.open or len(outcome.items) < 2:
        return made.knowing(outcome.fact)
    parts = [made.copy() for _ in outcome.items]
    for part, item in zip(parts, outcome.items, strict=True):
        part.vague, part.fact = True, item.fact
    return Sequence(list(parts))


def _reduced_as(outcome: Value, made: Tensor) -> Value:
    """What a module gives, in the shape and with the reductions that reading its forward has shown."""
    if isinstance(outcome, Choice):
        outcome = next((v for v in outcome.alternatives() if v.kind in ("tensor", "sequence", "mapping")), outcome)
    if isinstance(outcome, (Sequence, Mapping)) and not outcome.open:
        return each_item(outcome, lambda item: _reduced_as(item, made))
    part = made.copy()
    part.fact = outcome.fact
    if isinstance(outcome, Tensor):
        part.divided, part.is_loss, part.vague = outcome.divided, outcome.is_loss, outcome.vague
    elif isinstance(outcome, Opaque):
        part.divided = outcome.divided
    return part


def is_read(value: Value) -> bool:
    thing = thing_of(value)
    return thing is not None and bool(thing.facts.get("read"))


def _has_dimensions(node: ast.AST) -> bool:
    """Whether a parameter is made of a float32 tensor that has a dimension: with it, all that is low is float32."""
    made = first_argument(node)
    first = first_argument(made)
    if made is None or first is None or "dtype" in keywords_of(made):
        return False
    kind = last_name(called(made))
    if kind in ("Tensor", "FloatTensor", "tensor"):
        return isinstance(first, ast.List) and bool(first.elts)
    empty = isinstance(first, (ast.List, ast.Tuple)) and not first.elts
    return kind in ("ones", "zeros", "rand", "randn", "empty", "full") and not empty


def _module_attribute(at: Interpreter, receiver: Ref, name: str, node: ast.AST) -> Value | None:
    if name in BOUND["module"]:
        return BoundMethod(receiver, name)
    return receiver if name == "module" else None


def register(handlers: Handlers) -> None:
    handlers.calls["module"] = lambda at, func, *given: forward(at, func.thing, *given, read=is_read(func))
    handlers.calls["module instance"] = _call_object
    handlers.methods.update({"module": module_method, "loss": module_method})
    handlers.attributes["module"] = _module_attribute
    handlers.functions.update(
        dict.fromkeys(
            (f"torch.distributed.fsdp.{name}" for name in ("MixedPrecision", "MixedPrecisionPolicy")), _policy
        )
    )
    handlers.roles.update(
        {
            surface.WRAP_MODULE: wrap_module,
            surface.COMPILE: wrap_module,
            surface.SCRIPT: _script,
            surface.REGISTER_HOOK: _register_hook,
            # A hook that is wrapped so that its gradients are cast to float16.
            surface.COMPRESS: lambda *_: Named(min(surface.FP16_HOOKS)),
        }
    )
