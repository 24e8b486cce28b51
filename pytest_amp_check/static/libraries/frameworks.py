"""Calls of frameworks that scale, unscale and step for the program: what they do to gradients."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol import events as e
from ...protocol import frameworks, surface
from ...protocol.events import Thing
from ...protocol.finding import INFO, WARNING
from ...protocol.frameworks import FRAMEWORKS
from ..interpreter.conditions import Formula, either, negate
from ..interpreter.forks import fork, on_each
from ..interpreter.functions import has_stars
from ..interpreter.identity import is_equal, number_key, structural
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.truth import truth
from ..interpreter.unknown import hand_off, unknown
from ..interpreter.values import (
    NONE,
    Args,
    Bare,
    BoundMethod,
    Choice,
    Const,
    Engine,
    Keywords,
    NullContext,
    Opaque,
    Ref,
    Sequence,
    Tensor,
    Value,
)
from ..interpreter.wording import receiver_words, wording
from .arguments import bind, first_of, items_of, literal, ref_of
from .checkpoints import state_of
from .losses import all_optimizers, as_loss, backward, loss_names, updated_by
from .optimizers import each_optimizer
from .scalers import load_scaler, scaled_value, scaler_attribute


class Engines(dict[int, Engine]):
    """The engines that a graph has used, by the keys of their things."""


def framework_call(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """The value of a call of a framework's name, or None where the name is not known."""
    entry = frameworks.lookup(name)
    if entry is None:
        return None
    bound = bind(entry.parameters, args, keywords)
    handler = at.handlers.framework_roles.get(entry.role)
    if handler is not None:
        return handler(at, entry, bound, node)
    return first_of(args, keywords, entry.parameters[0]) or at.fresh(node, name)


def _new_engine(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Engine:
    framework = str(entry.facts["framework"])
    known = FRAMEWORKS[framework]
    thing = at.thing(("scaler", at.place_key(node)), "scaler", "", at.site(node))
    given = bound.get(known.precision)
    if given is None and known.default is not None and "**" not in bound:
        given = Const(known.default)
    elif given is None:
        # Engines of one program share their state, which the first has decided about.
        given = next((x.precision for x in at.of_graph(Engines).values() if x.framework == framework), None)
    given, enabled, doubt = _precision(at, given, framework, node)
    steps = None
    if known.steps:
        hidden = "**" in bound or any(name in bound for name in known.many)
        steps = bound.get(known.steps) or (unknown_steps(at, thing) if hidden else Const(1))
    describe(thing, framework, doubt)
    made = Engine(framework, thing, enabled, None, given, steps, bound.get("optimizer"))
    at.of_graph(Engines)[thing.key] = made
    return made


def describe(thing: Thing, framework: str, doubt: str) -> None:
    thing.facts.update(framework=framework, doubt=doubt)


def unknown_steps(at: Interpreter, thing: Thing) -> Opaque:
    return at.opaque(("steps", thing.key), "")


def _precision(at: Interpreter, given: Value | None, framework: str, node: ast.AST) -> tuple[Value, Formula, str]:
    """A precision, the condition under which losses are scaled in it, and how far that is known."""
    values = FRAMEWORKS[framework].scaled
    if not values:
        return NONE, True, ""
    if given is None or literal(given) is None:
        # Of one program, all engines that are not given another share what is set outside of it.
        unknown = at.opaque(("precision", framework), FRAMEWORKS[framework].precision)
        return unknown, is_equal(at, unknown, values[0], node), INFO
    enabled = either(*(is_equal(at, given, value, node) for value in values))
    known = isinstance(enabled, bool) or any(literal(v) in values for v in given.alternatives())
    return given, enabled, "" if known else WARNING


def used_engine(at: Interpreter, framework: str, value: Opaque, text: str, node: ast.AST) -> Engine:
    """What comes from elsewhere, and is used as a framework's engine is."""
    thing = at.thing(("used", value.key), "scaler", text, at.site(node))
    precision, enabled, doubt = _precision(at, None, framework, node)
    describe(thing, framework, doubt)
    steps = unknown_steps(at, thing) if FRAMEWORKS[framework].steps else None
    return Engine(framework, thing, enabled, value, precision, steps)


def annotated_engine(at: Interpreter, named: str, value: Opaque, parameter: ast.arg) -> Value | None:
    """A parameter that is annotated with the class of an engine."""
    entry = frameworks.lookup(named)
    if entry is None or entry.role != frameworks.ENGINE:
        return None
    return used_engine(at, str(entry.facts["framework"]), value, parameter.arg, parameter)


def engine_method(at: Interpreter, engine: Engine, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    at.of_graph(Engines).setdefault(engine.thing.key, engine)
    does = FRAMEWORKS[engine.framework].methods.get(name)
    if name == "accumulate":
        engine.thing.facts["accumulates"] = True
    if does in (frameworks.BACKWARD, frameworks.UPDATE_PARAMS):
        divides = does == frameworks.UPDATE_PARAMS or engine.framework == "accelerate"
        _run_backward(at, engine, first_of(args, keywords, "loss"), node, divides=divides)
    if does in (frameworks.STEP, frameworks.UPDATE_PARAMS):
        key, names = _wrapped(at, engine, node)
        _step(at, engine, key, node, names, sure=True)
    if does in (frameworks.ZERO_GRAD, frameworks.UPDATE_PARAMS):
        key, names = _wrapped(at, engine, node)
        at.emit(e.ZERO_GRAD, node, owners=(key,), names=names)
    if does in _GIVE_NONE:
        return NONE
    if does in (frameworks.UNSCALE, frameworks.UNSCALE_ONE):
        given = optimizers_in([*args, *keywords.values()]) if does == frameworks.UNSCALE_ONE else ()
        _unscale(at, engine, given, node)
        return at.fresh(node, "norm")
    if does == frameworks.PREPARE:
        return _prepared(at, engine, args, node)
    if does == frameworks.GIVE_BACK and args:
        return args[0]
    if does == frameworks.LOAD:
        return load_scaler(at, engine, args, keywords, node)
    give = _GIVE.get(does or "")
    if give is not None:
        return give(at, engine, node)
    return unknown(at, structural(at, "method", (engine,), wording(node), name), args, keywords, node)


def engine_called(at: Interpreter, engine: Engine, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A scaler of timm, called: scale, backward, and where it is the time, unscale, clip, step and update.

    So is one of which only the name is known; by what keyword it is told when to update, differs.
    """
    if engine.framework != "timm":
        return unknown(at, engine, args, keywords, node)
    order = ("loss", "optimizer", "clip_grad", "clip_mode", "parameters", "create_graph", "need_update")
    bound = bind(order if engine.source is None else order[:2], args, keywords)
    scaler = Ref(engine.thing)
    scaled = scaled_value(at, scaler, bound.get("loss"), node)
    for tensor in scaled.tensors():
        backward(at, tensor, node, names=loss_names(engine.thing.name, node))
    optimizer = bound.get("optimizer", NONE)
    names: dict[str, object] = {"scaler": engine.thing.name, "call": wording(node)}

    def step(key: int, _: object) -> None:
        at.emit(e.SCALER_STEP, node, scaler.thing.key, key, framework="timm", names=names)

    told = next((value for name, value in bound.items() if "update" in name), Const(True))
    fork(at, truth(at, told, "", node), lambda: each_optimizer(at, optimizer, node, step), lambda: None)
    return NONE if engine.source is None else at.fresh(node, "norm")


def _engine_attribute(at: Interpreter, engine: Engine, name: str, node: ast.AST) -> Value | None:
    known = scaler_attribute(at, engine, name, node)
    if known is not None:
        return known
    if name in FRAMEWORKS[engine.framework].methods:
        return BoundMethod(engine, name)
    if name == "optimizer" and engine.optimizer is not None:
        return engine.optimizer
    if engine.framework != "accelerate":
        return None
    if name == "scaler":
        scaler = Ref(engine.thing)
        return scaler if engine.enabled is True else Choice([(engine.enabled, scaler), (negate(engine.enabled), NONE)])
    if name == "gradient_accumulation_steps":
        return engine.steps
    if name == "mixed_precision":
        return engine.precision
    if name == "state":
        return engine  # It has no methods, and the attributes that are asked of it are the accelerator's own.
    if name == "deepspeed_plugin":
        return NONE  # Where DeepSpeed trains, there is no scaler, and nothing of what is judged here.
    if name == "sync_gradients":
        return _synchronises(at, engine)
    return None


def _synchronises(at: Interpreter, engine: Engine) -> Opaque:
    """Whether this micro-batch of accelerate ends a window."""
    made = at.opaque(("sync", engine.thing.key), f"{engine.thing.name}.sync_gradients", at.turning())
    made.loops |= at.turning()
    return made


def _where_it_acts(at: Interpreter, engine: Engine, node: ast.AST, act: Callable[[], None]) -> None:
    """Between the micro-batches that ``accumulate`` counts, accelerate's optimizers neither step nor clear."""
    if engine.thing.facts.get("accumulates") and engine.steps is not None and literal(engine.steps) != 1:
        fork(at, truth(at, _synchronises(at, engine), "", node), act, lambda: None)
    else:
        act()


def _engine_written(at: Interpreter, receiver: Engine, name: str, value: Value, target: ast.Attribute) -> bool:
    steps = FRAMEWORKS[receiver.framework].steps
    if steps and steps == name:
        receiver.steps = value
        return True
    return False


def _run_backward(at: Interpreter, engine: Engine, value: Value | None, node: ast.AST, *, divides: bool) -> None:
    if isinstance(value, Choice):
        on_each(at, value, lambda v: _run_each(at, engine, v, node, divides))
    else:
        _run_each(at, engine, value, node, divides)


def _run_each(at: Interpreter, engine: Engine, value: Value | None, node: ast.AST, divides: bool) -> Value:
    loss = as_loss(value)
    if divides and engine.steps is not None:
        divided_by(at, loss, engine.steps, FRAMEWORKS[engine.framework].title, node)
        loss.divided = loss.divided or literal(engine.steps) != 1
    names = loss_names(receiver_words(node) or engine.thing.name, node)

    def run(scaler: int | None) -> None:
        at.emit(
            e.BACKWARD,
            node,
            scaler,
            feeds=updated_by(at, loss.deps),
            divided=loss.divided,
            opaque=(loss.opaque or loss.graded) and scaler is None,
            scaled=scaler is not None,
            twice=scaler is not None and loss.scaler >= 0,
            dtypes=loss.dtypes,
            custom=loss.custom,
            names=names,
        )

    fork(at, engine.enabled, lambda: run(engine.thing.key), lambda: run(None))
    return NONE


def divided_by(at: Interpreter, loss: Tensor, steps: Value, framework: str, node: ast.AST) -> None:
    keys = {number_key(at, v) for v in steps.alternatives() if literal(v) not in (1, None)}
    texts = {v.text for v in steps.alternatives() if isinstance(v, Opaque)} - {""}
    divided_twice(at, loss, keys, texts, framework, f"in `{wording(node)}`")


def divided_twice(at: Interpreter, loss: Tensor, keys: set[object], texts: set[str], framework: str, way: str) -> None:
    """Tell the protocol of each division of a loss by a number by which a framework divides it too."""
    for divisor in sorted(loss.divisors, key=lambda d: (d.site.line, d.site.column)):
        words = str(divisor.words)
        if divisor.key in keys or words in texts:
            at.emit_at(e.DIVIDED_TWICE, divisor.site, None, divisor=words, framework=framework, way=way)


def _unscale(at: Interpreter, engine: Engine, optimizers: tuple[int, ...], node: ast.AST) -> None:
    """The gradients of some optimizers, or of all, are unscaled if this engine has scaled them."""
    names = {"scaler": receiver_words(node), "call": wording(node)}

    def unscale() -> None:
        for key in optimizers or all_optimizers(at):
            at.emit(e.UNSCALE, node, engine.thing.key, key, framework=engine.framework, names=names)

    fork(at, engine.enabled, unscale, lambda: None)


def optimizers_in(given: list[Value]) -> tuple[int, ...]:
    return tuple(ref.thing.key for value in given if (ref := ref_of(value, "optimizer")) is not None)


def _prepared(at: Interpreter, engine: Engine, args: Args, node: ast.AST) -> Value:
    """What an engine gives back of what it prepares."""
    for value in args:
        _prepare(at, engine, value)
    return args[0] if len(args) == 1 else Sequence(list(args), open=has_stars(node))


def _prepare(at: Interpreter, engine: Engine, value: Value) -> None:
    """Let an optimizer be stepped through an engine from here on."""
    for item in items_of(value):
        _prepare(at, engine, item)
    optimizer = ref_of(value, "optimizer")
    if optimizer is not None:
        optimizer.thing.facts["engine"] = (engine, frozenset(at.guards()))


def _wrapped(at: Interpreter, engine: Engine, node: ast.AST) -> tuple[int, dict[str, object]]:
    """The optimizer that an engine wraps, by its own name or by the engine's, and the words for it."""
    optimizer = ref_of(engine.optimizer, "optimizer")
    if optimizer is None:
        thing = at.thing(("wrapped by", engine.thing.key), "optimizer", engine.thing.name, at.site(node))
    else:
        thing = optimizer.thing
    return thing.key, {"optimizer": thing.name, "scaler": engine.thing.name, "call": wording(node)}


def _step(at: Interpreter, engine: Engine, key: int, node: ast.AST, names: dict[str, object], *, sure: bool) -> None:
    scaler = engine.thing.key
    by = engine.framework if sure else ""

    def scaled() -> None:
        if FRAMEWORKS[engine.framework].unscales:
            at.emit(e.UNSCALE, node, scaler, key, framework=by, names=names)
        at.emit(e.SCALER_STEP, node, scaler, key, framework=by, names=names)

    def plain() -> None:
        at.emit(e.STEP, node, None, key, names=names)

    def step() -> None:
        fork(at, engine.enabled, scaled, plain)

    _where_it_acts(at, engine, node, step)


def _clear_through(at: Interpreter, optimizer: Ref, node: ast.AST, clear: Callable[[], None]) -> bool:
    """An optimizer's own clearing, which the engine that it was prepared by may leave out."""
    prepared = optimizer.thing.facts.get("engine")
    if prepared is None or isinstance(optimizer, Bare):
        return False
    _where_it_acts(at, prepared[0], node, clear)
    return True


def _step_through(at: Interpreter, optimizer: Ref, node: ast.AST, names: dict[str, object]) -> bool:
    """An optimizer's own step goes through the engine that it was prepared by, or that is there for all of them."""
    if isinstance(optimizer, Bare):
        return False
    key = optimizer.thing.key
    prepared = optimizer.thing.facts.get("engine")
    ambient = [engine for engine in at.of_graph(Engines).values() if FRAMEWORKS[engine.framework].ambient]
    if prepared is not None:
        engine, guards = prepared
        _step(at, engine, key, node, names, sure=guards <= set(at.guards()))
    elif len(ambient) == 1:
        _step(at, ambient[0], key, node, names, sure=False)
    elif ambient:
        hand_off(at, [optimizer], node)
    else:
        return False
    return True


def _region(at: Interpreter, engine: Engine, node: ast.AST) -> Value:
    """The autocast region that an engine enters."""
    known = FRAMEWORKS[engine.framework]
    thing = at.thing(("autocast", at.place_key(node)), "autocast", "", at.site(node))
    enabled: Formula = True
    if known.regions:
        enabled = either(*(is_equal(at, engine.precision, value, node) for value in known.regions))
    thing.facts.update(device="cuda", dtype="float16" if engine.enabled is True else "?", cache=True)
    return Ref(thing, enabled)


#: What methods give that do no more, and those that give nothing.
_GIVE: dict[str, Callable[[Interpreter, Engine, ast.AST], Value]] = {
    frameworks.AUTOCAST: _region,
    frameworks.NO_EFFECT: lambda at, engine, node: NullContext(),
    frameworks.STATE: state_of,
}
_GIVE_NONE = frozenset(
    (frameworks.BACKWARD, frameworks.UPDATE_PARAMS, frameworks.STEP, frameworks.ZERO_GRAD, frameworks.SAVE)
)


def register(handlers: Handlers) -> None:
    handlers.framework_roles[frameworks.ENGINE] = _new_engine
    handlers.recognised.update(dict.fromkeys(FRAMEWORKS, used_engine))
    handlers.annotations.append(annotated_engine)
    handlers.calls["engine"] = engine_called
    handlers.methods["engine"] = engine_method
    handlers.attributes["engine"] = _engine_attribute
    handlers.written["engine"] = _engine_written
    handlers.optimizer_steps.append(_step_through)
    handlers.optimizer_clears.append(_clear_through)
