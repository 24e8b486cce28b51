"""LightningModules and the Trainer's hooks: code that a Trainer calls, in the precision that it was given."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.events import UNKNOWN, Thing
from ...protocol.finding import ERROR, INFO, WARNING
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.words import Words
from ..interpreter.classes import bases_of
from ..interpreter.conditions import Formula
from ..interpreter.forks import fork
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.values import NONE, Args, Bare, Engine, Instance, Keywords, Mapping, Params, Ref, Sequence, Value
from ..interpreter.wording import wording
from ..project.module import Class, Function, Module
from .arguments import first_of, literal
from .frameworks import describe, divided_twice, engine_method, optimizers_in, used_engine
from .gradients import clip
from .losses import as_loss
from .written import all_of, constant, elements, keywords_of, last_name

#: Methods that a Trainer runs under autocast.
STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
#: Methods that it runs while the gradients of a loss are still scaled: it unscales them before it steps.
SCALED = frozenset({"on_after_backward"})
#: Methods of every LightningModule that leave gradients and optimizers alone.
HARMLESS = frozenset(
    "log log_dict print toggle_optimizer untoggle_optimizer lr_schedulers save_hyperparameters all_gather freeze "
    "unfreeze".split()
)


class Trainers:
    """What the calls of ``Trainer`` in one file say."""

    def __init__(self, module: Module) -> None:
        calls = all_of(module.tree, ast.Call)
        self.calls = [keywords_of(call) for call in calls if last_name(call.func) == "Trainer"]

    def trains_in(self, precisions: tuple[object, ...]) -> str | None:
        """How far it is known that they train in one of some precisions: a severity, or None where none does.

        ``info`` where nothing is known of a trainer.
        """
        known = [self._one(call, precisions) for call in self.calls]
        if not known:
            return INFO
        return next((severity for severity in (ERROR, WARNING, INFO) if severity in known), None)

    @staticmethod
    def _one(call: dict[str | None, ast.expr], precisions: tuple[object, ...]) -> str | None:
        given = call.get("precision")
        if given is None:
            return INFO if None in call or "plugins" in call else None
        precision = constant(given)
        return WARNING if precision is UNKNOWN else ERROR if precision in precisions else None

    def divisions(self) -> tuple[set[object], set[str]]:
        """The numbers of micro-batches that they accumulate: keys of constants, and texts."""
        given = [call["accumulate_grad_batches"] for call in self.calls if "accumulate_grad_batches" in call]
        numbers = map(constant, given)
        keys: set[object] = {("const", repr(float(n))) for n in numbers if isinstance(n, int) and n > 1}
        return keys, {str(Words(node)) for node in given if constant(node) is UNKNOWN}


class Known(dict[str, Trainers]):
    """The trainers of files, by path."""


class Lineages(dict[tuple[ast.AST, str], bool]):
    """Whether classes derive from one of a framework, by its name."""


def _derives(at: Interpreter, cls: Class, name: str) -> bool:
    """Whether a class derives from one of a framework."""
    known_of = at.of_file(Lineages)
    known = known_of.get((cls.node, name))
    if known is None:
        named = (dotted_name(at, base) for owner in bases_of(at, cls) for base in owner.bases)
        known = any(frameworks.canonical(text) == name for text in named if text)
        known_of[cls.node, name] = known
    return known


def _trainers_of(at: Interpreter, module: Module) -> Trainers:
    known = at.of_file(Known)
    found = known.get(module.path)
    if found is None:
        found = known[module.path] = Trainers(module)
    return found


def _enter_root(at: Interpreter, function: Function) -> None:
    """Before a function that nobody calls here: a Trainer may run it under autocast, or between backward and step."""
    if function.name in STEPS and _is_lightning(at, function.cls):
        at.state.ambient = _trainers_of(at, function.module).trains_in(frameworks.MIXED)
    if _sees_scaled(at, function):
        _feed(at, function)


def _sees_scaled(at: Interpreter, function: Function) -> bool:
    """Whether a Trainer runs a function between backward and step, before it unscales the gradients."""
    return function.name in SCALED and _is_lightning(at, function.cls) and not _is_manual(at, function.cls)


def _feed(at: Interpreter, function: Function) -> None:
    """A Trainer has run the loss backward that the gradients are of which a hook sees."""
    assert function.cls is not None
    engine, node = _engine(at, function.cls, function.node), function.node
    optimizer = _trained(at, function.cls)
    optimizer.facts["engine"] = (engine, frozenset(at.guards()))
    at.emit(e.OPTIMIZER_NEW, node, optimizer.key, found=True)

    def run(scaler: int | None) -> None:
        loss = as_loss(at.fresh(node, "loss"))
        at.emit(
            e.BACKWARD,
            node,
            scaler,
            feeds=(optimizer.key,),
            divided=True,
            opaque=False,
            scaled=scaler is not None,
            dtypes=loss.dtypes,
            custom=loss.custom,
            names={},
        )

    fork(at, engine.enabled, lambda: run(engine.thing.key), lambda: run(None))


def _trained(at: Interpreter, cls: Class) -> Thing:
    """The optimizer that a Trainer steps for a LightningModule."""
    return at.thing(("optimizer of", cls.node), "optimizer", "", at.site(cls.node))


def _leave_root(at: Interpreter, function: Function, value: Value) -> None:
    """After it: what ``training_step`` returns is divided by the Trainer, and runs backward; a hook's step follows."""
    if _sees_scaled(at, function) and function.cls is not None:
        optimizer = Ref(_trained(at, function.cls))
        at.method(optimizer, "step", [], {}, function.node)
        at.method(optimizer, "zero_grad", [], {}, function.node)
    if function.name != "training_step" or not _is_lightning(at, function.cls) or _is_manual(at, function.cls):
        return
    loss = as_loss(value.items.get("loss", NONE) if isinstance(value, Mapping) else value)
    keys, texts = _trainers_of(at, function.module).divisions()
    own = {text for d in loss.divisors if (text := str(d.words)).endswith(frameworks.TRAINER_STEPS)}
    divided_twice(at, loss, keys, texts | own, FRAMEWORKS["lightning"].title, "in automatic optimization")


def _is_lightning(at: Interpreter, cls: Class | None) -> bool:
    return cls is not None and _derives(at, cls, frameworks.LIGHTNING_MODULE)


def _is_manual(at: Interpreter, cls: Class | None) -> bool:
    """Whether some method of a class takes optimization in its own hands."""
    owners = bases_of(at, cls) if cls is not None else []
    return any("automatic_optimization" in owner.assigned for owner in owners)


def _inherited_method(
    at: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    if not _is_lightning(at, receiver.cls):
        return None
    if name in HARMLESS:
        return at.fresh(node, name)
    if name == "manual_backward":
        return engine_method(at, _engine(at, receiver.cls, node), name, args, keywords, node)
    if name == "optimizers":
        bare = literal(first_of(args, keywords, "use_pl_optimizer")) is False
        return _optimizers(at, receiver, node, bare=bare)
    if name == "clip_gradients":
        owners = optimizers_in(args[:1])
        params = Params(None, frozenset(owners)) if owners else None
        limit = keywords.get("gradient_clip_val")
        return clip(at, params, args[1:] or ([limit] if limit is not None else []), {}, node)
    return None


def _inherited_attribute(at: Interpreter, receiver: Instance, name: str, node: ast.AST) -> Value | None:
    if name != "accelerator" or not _derives(at, receiver.cls, frameworks.HUGGING_FACE_TRAINER):
        return None
    unknown = at.opaque(("attribute of", receiver.key, name), wording(node))
    return used_engine(at, "accelerate", unknown, "self.accelerator", node)


def _engine(at: Interpreter, cls: Class, node: ast.AST) -> Engine:
    """What scales the losses of a LightningModule."""
    thing = at.thing(("lightning", cls.node), "scaler", "self", at.site(node))
    doubt = _trainers_of(at, cls.module).trains_in(frameworks.FLOAT16_MIXED)
    if doubt == INFO and not at.program.facts.get("lightning16"):
        doubt = None
    enabled: Formula = doubt is not None
    if doubt in (WARNING, INFO):
        enabled = at.ask(("precision", thing.key), "the Trainer's precision is '16-mixed'", frozenset(), node)
    describe(thing, "lightning", doubt or "")
    return Engine("lightning", thing, enabled)


def _optimizers(at: Interpreter, receiver: Instance, node: ast.AST, *, bare: bool) -> Value:
    """What ``self.optimizers()`` gives: an optimizer for each name that it is unpacked to, or one for all of them.

    ``bare`` ones are those of torch, without what Lightning wraps around them to step through its scaler.
    """
    names = _unpacked_to(at, node)
    engine = _engine(at, receiver.cls, node) if _is_manual(at, receiver.cls) else None
    made: list[Value] = []
    for place, name in enumerate(names or [""]):
        thing = at.thing(("optimizers of", receiver.cls.node, place, len(names)), "optimizer", name, at.site(node))
        thing.facts["several"] = not names
        at.emit(e.OPTIMIZER_NEW, node, thing.key, found=True)
        if engine is not None:
            thing.facts["engine"] = (engine, frozenset(at.guards()))
        made.append(Bare(thing) if bare else Ref(thing))
    return Sequence(made) if names else made[0]


def _unpacked_to(at: Interpreter, node: ast.AST) -> list[str]:
    """The names to which the function being read unpacks what a call gives, none where it does not."""
    function = at.state.frame.function
    for assign in all_of(function.node, ast.Assign) if function is not None else ():
        if assign.value is node and len(assign.targets) == 1:
            targets = elements(assign.targets[0])
            return [last_name(target) for target in targets] if all(map(last_name, targets)) else []
    return []


def register(handlers: Handlers) -> None:
    handlers.root_entered.append(_enter_root)
    handlers.root_left.append(_leave_root)
    handlers.inherited_methods.append(_inherited_method)
    handlers.inherited_attributes.append(_inherited_attribute)
