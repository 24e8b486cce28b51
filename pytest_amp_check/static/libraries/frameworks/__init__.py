"""Calls of frameworks that scale, unscale and step for the program: the effects on gradients."""

from __future__ import annotations

from ....protocol import frameworks
from ....protocol.frameworks import FRAMEWORKS
from ...interpreter.interpreter import HandlerTable
from .engines import make_annotated_engine, make_engine, make_passed_wrapper, make_used_engine
from .methods import call_engine, call_engine_method, get_engine_attribute, set_engine_attribute
from .steps import clear_through_engine, step_through_engine


def register(handlers: HandlerTable) -> None:
    handlers.framework_roles[frameworks.ENGINE] = make_engine
    handlers.recognizers.update(dict.fromkeys(FRAMEWORKS, make_used_engine))
    handlers.recognizers.update(
        dict.fromkeys((key for key, each in FRAMEWORKS.items() if each.engine.parameter_name), make_passed_wrapper)
    )
    handlers.annotated_parameters.append(make_annotated_engine)
    handlers.calls["engine"] = call_engine
    handlers.methods["engine"] = call_engine_method
    handlers.attributes["engine"] = get_engine_attribute
    handlers.attribute_writes["engine"] = set_engine_attribute
    handlers.optimizer_step_handlers.append(step_through_engine)
    handlers.zero_grad_handlers.append(clear_through_engine)
