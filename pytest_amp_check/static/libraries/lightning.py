"""LightningModules and the Trainer's hooks: code that a Trainer calls, in the precision that it was given."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks
from ...protocol.finding import ERROR, INFO, WARNING
from ...protocol.frameworks import FRAMEWORKS
from ...protocol.words import Words
from ..interpreter.conditions import Formula
from ..interpreter.values import NONE, Engine, Instance, Mapping, Params, Ref, Value
from ..project.module import Class, Function, Module
from ..project.syntax import walk
from .ignite import Ignite

#: Methods that a Trainer runs under autocast.
STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
#: Methods of every LightningModule that leave gradients and optimizers alone.
HARMLESS = frozenset(
    "log log_dict print toggle_optimizer untoggle_optimizer lr_schedulers save_hyperparameters all_gather freeze "
    "unfreeze".split()
)


class Trainers:
    """What the calls of ``Trainer`` in one file say."""

    def __init__(self, module: Module) -> None:
        self.calls: list[dict[str | None, ast.expr]] = []
        for node in walk(module.tree):
            if isinstance(node, ast.Call):
                func = node.func
                name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                if name == "Trainer":
                    self.calls.append({keyword.arg: keyword.value for keyword in node.keywords})

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
        if isinstance(given, ast.Constant):
            return ERROR if given.value in precisions else None
        return WARNING

    def divisions(self) -> tuple[set[object], set[str]]:
        """The numbers of micro-batches that they accumulate: keys of constants, and texts."""
        given = [call["accumulate_grad_batches"] for call in self.calls if "accumulate_grad_batches" in call]
        numbers = [node.value for node in given if isinstance(node, ast.Constant)]
        keys: set[object] = {("const", repr(float(n))) for n in numbers if isinstance(n, int) and n > 1}
        return keys, {str(Words(node)) for node in given if not isinstance(node, ast.Constant)}


class Lightning(Ignite):
    """Reads what LightningModules do, and subclasses of the Trainer of transformers."""

    _derived: dict[tuple[ast.AST, str], bool]
    _trainers: dict[str, Trainers]

    def derives(self, cls: Class, name: str) -> bool:
        """Whether a class derives from one of a framework."""
        known = self._derived.get((cls.node, name))
        if known is None:
            named = (self._dotted(base) for owner in self._bases(cls) for base in owner.bases)
            known = any(frameworks.canonical(text) == name for text in named if text)
            self._derived[cls.node, name] = known
        return known

    def trainers_of(self, module: Module) -> Trainers:
        found = self._trainers.get(module.path)
        if found is None:
            found = self._trainers[module.path] = Trainers(module)
        return found

    # Roots.

    def enter_root(self, function: Function) -> None:
        """Before a function that nobody calls here: a Trainer may run it under autocast."""
        if function.name in STEPS and self._is_lightning(function.cls):
            self.state.ambient = self.trainers_of(function.module).trains_in(frameworks.MIXED)

    def leave_root(self, function: Function, value: Value) -> None:
        """After it: what ``training_step`` returns is divided by the Trainer, and runs backward."""
        if function.name != "training_step" or not self._is_lightning(function.cls) or self._is_manual(function.cls):
            return
        loss = self.as_loss(value.items.get("loss", NONE) if isinstance(value, Mapping) else value)
        keys, texts = self.trainers_of(function.module).divisions()
        own = {text for d in loss.divisors if (text := str(d.words)).endswith(frameworks.TRAINER_STEPS)}
        self.divided_twice(loss, keys, texts | own, FRAMEWORKS["lightning"].title, "in automatic optimization")

    def _is_lightning(self, cls: Class | None) -> bool:
        return cls is not None and self.derives(cls, frameworks.LIGHTNING_MODULE)

    def _is_manual(self, cls: Class | None) -> bool:
        """Whether some method of a class takes optimization in its own hands."""
        owners = self._bases(cls) if cls is not None else []
        return any("automatic_optimization" in owner.assigned for owner in owners)

    # Methods.

    def _instance_method(
        self, receiver: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        own = (receiver.key, name) in self.state.heap or self.method_of(receiver.cls, name) is not None
        if not own and self._is_lightning(receiver.cls):
            if name in HARMLESS:
                return self.fresh(node, name)
            if name == "manual_backward":
                return self.engine_method(self._manual(receiver, node), name, args, keywords, node)
            if name == "optimizers":
                return self._optimizers(receiver, node)
            if name == "clip_gradients":
                owners = self._optimizers_in(args[:1])
                params = Params(None, frozenset(owners)) if owners else None
                limit = keywords.get("gradient_clip_val")
                return self._clip(params, args[1:] or ([limit] if limit is not None else []), {}, node)
        return super()._instance_method(receiver, name, args, keywords, node)

    def _instance_attribute(self, receiver: Instance, name: str, node: ast.AST) -> Value:
        value = super()._instance_attribute(receiver, name, node)
        if name == "accelerator" and self.derives(receiver.cls, frameworks.HUGGING_FACE_TRAINER):
            unknown = self.opaque(("attribute of", receiver.key, name), self.words(node))
            return self.used_engine("accelerate", unknown, "self.accelerator", node) if value is unknown else value
        return value

    def _manual(self, receiver: Instance, node: ast.AST) -> Engine:
        """What scales the losses of a LightningModule that optimizes by hand."""
        thing = self.thing(("lightning", receiver.cls.node), "scaler", "self", self.site(node))
        doubt = self.trainers_of(receiver.cls.module).trains_in(frameworks.FLOAT16_MIXED)
        if doubt == INFO and not self.program.facts.get("lightning16"):
            doubt = None
        enabled: Formula = doubt is not None
        if doubt in (WARNING, INFO):
            enabled = self.ask(("precision", thing.key), "the Trainer's precision is '16-mixed'", frozenset(), node)
        self._describe(thing, "lightning", doubt or "")
        return Engine("lightning", thing, enabled)

    def _optimizers(self, receiver: Instance, node: ast.AST) -> Value:
        """The one optimizer that ``self.optimizers()`` gives, or what stands for several."""
        thing = self.thing(("optimizers of", receiver.cls.node), "optimizer", "", self.site(node))
        self.emit(e.OPTIMIZER_NEW, node, thing.key, found=True)
        return Ref(thing)
