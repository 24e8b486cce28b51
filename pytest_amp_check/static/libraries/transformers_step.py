"""Steps of transformers' Trainer: what the base class does after the ``training_step`` of a subclass."""

from __future__ import annotations

from ...protocol import frameworks
from ...protocol.frameworks import FRAMEWORKS
from ..interpreter.expressions.attributes import attribute_of
from ..interpreter.interpreter import HandlerTable, Interpreter, persistent_guards
from ..interpreter.values.objects import FrameworkEngine, ObjectRef
from ..interpreter.values.value import Value
from ..project.module import Function
from .framework_bases import derives_from
from .frameworks.methods import call_engine_method

#: Attribute of a Trainer that holds the engine of accelerate.
_ENGINE = "accelerator"


def _finish_training_step(interp: Interpreter, function: Function, value: Value) -> None:
    """Unscale, clip and step as the Trainer does after the last micro-batch of a window.

    ``Trainer.train`` clips by ``accelerator.clip_grad_norm_`` and steps an optimizer that accelerate has prepared.
    """
    cls = function.cls
    if cls is None or function.name != "training_step" or "backward" not in function.attributes_used():
        return
    receiver = interp.instances.get(("root", id(cls.node)))
    if receiver is None or not derives_from(interp, cls, FRAMEWORKS[frameworks.HUGGING_FACE].base_class):
        return
    node = function.node
    engine = attribute_of(interp, receiver, _ENGINE, node)
    if not isinstance(engine, FrameworkEngine):
        return
    optimizer = interp.tracked_object(("optimizer of", cls.node), "optimizer", "self.optimizer", interp.site_of(node))
    optimizer.attributes.engine = (engine, persistent_guards(interp))
    call_engine_method(interp, engine, "clip_grad_norm_", [interp.fresh_unknown(node, "parameters")], {}, node)
    interp.call_method(ObjectRef(optimizer), "step", [], {}, node)
    interp.call_method(ObjectRef(optimizer), "zero_grad", [], {}, node)


def register(handlers: HandlerTable) -> None:
    handlers.entry_end_listeners.append(_finish_training_step)
