"""Model of DeepSpeed: the engine created from a module."""

from __future__ import annotations

import ast

from ...protocol import frameworks, torch_api
from ...protocol.events import UNKNOWN
from ...protocol.source_text import access_text, names_optimizer
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.microbatches import is_window_name
from ..interpreter.source_text import expression_text
from ..interpreter.unanalyzed_code import escape
from ..interpreter.values.containers import MappingValue, SequenceValue
from ..interpreter.values.definitions import Args, Instance, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.value import NONE, UnknownValue, Value
from ..project.module import Module
from .arguments import literal_value, make_object, tracked_object_of
from .frameworks.backward import emit_divided_twice, report_framework_division
from .frameworks.engines import make_unknown_steps
from .losses.backward import as_loss
from .low_parameters import set_low
from .modules.forwards import WrappedInstances
from .modules.methods import call_module_method
from .settings_files import find_settings
from .syntax_queries import assigned_values, constant_of_node, keywords_of, receiver_of

#: Section of the configuration that casts the model -> dtype.
_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}
#: Method of an engine that returns the number of micro-batches of a window.
_STEPS = "gradient_accumulation_steps"
#: Method of an engine that says whether its next step ends a window.
_BOUNDARY = "is_gradient_accumulation_boundary"
#: Word of modules that use DeepSpeed, and of flags that choose it.
_NAME = frameworks.DEEP_SPEED
_TITLE = frameworks.FRAMEWORKS[frameworks.DEEP_SPEED].title


def _call_initialize(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    escape(interp, list(bound.values()), node)
    tracked_object = tracked_object_of(bound.get("model"))
    if tracked_object is None:
        tracked_object = make_object(interp, "module", node)
    tracked_object.attributes.deepspeed = True
    model = bound.get("model")
    if isinstance(model, Instance):
        interp.file_data(WrappedInstances)[tracked_object.key] = model
    dtype = _dtype_of_configuration(interp, bound.get("config", NONE), node)
    if dtype:
        # The engine updates float32 copies, so the parameters lose nothing; what the model computes is low.
        set_low(interp, tracked_object, dtype, node)
    made = ObjectRef(tracked_object)
    return SequenceValue(
        [
            made,
            interp.fresh_unknown(node, "optimizer"),
            interp.fresh_unknown(node, "loader"),
            interp.fresh_unknown(node, "scheduler"),
        ]
    )


def _dtype_of_configuration(interp: Interpreter, config: Value, node: ast.AST) -> str:
    """Return the low dtype to which the engine casts the model, by a dict or a file that the program names, or ""."""
    settings = find_settings(interp, keywords_of(node).get("config")) if isinstance(node, ast.Call) else None
    for name, dtype in _DTYPES.items():
        part = config.items.get(name) if isinstance(config, MappingValue) else None
        enabled = part.items.get("enabled") if isinstance(part, MappingValue) else None
        is_set = settings is not None and settings.value(f"{name}.enabled") is True
        if is_set or (enabled is not None and literal_value(enabled) is True):
            return dtype
    return ""


def _call_engine_method(
    interp: Interpreter, receiver: ObjectRef | Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    tracked_object = receiver.tracked_object
    assert tracked_object is not None
    if not tracked_object.attributes.deepspeed:
        return call_module_method(interp, receiver, name, args, keywords, node)
    if name == _STEPS:
        return make_unknown_steps(interp, tracked_object)
    divides = literal_value(keywords.get("scale_wrt_gas", NONE))
    if name == "backward" and args and divides is not False and divides is not UNKNOWN:
        loss = as_loss(args[0])
        report_framework_division(interp, loss, make_unknown_steps(interp, tracked_object), _TITLE, node)
        # The configuration of DeepSpeed holds the number of micro-batches, so only its name tells.
        emit_divided_twice(
            interp, loss, set(), _window_names(interp, loss), _TITLE, f"in `{expression_text(node)}`", guessed=True
        )
    if name in ("step", "save_checkpoint", "load_checkpoint", "zero_grad", _BOUNDARY):
        return interp.fresh_unknown(node, name)
    return call_module_method(interp, receiver, name, args, keywords, node)


def _names_window(interp: Interpreter, text: str) -> bool:
    """Return True for the number of micro-batches, by its name or by an assignment: ``n = config[STEPS]``."""
    function = interp.state.frame.function
    assigned = assigned_values(function.nodes, text) if function is not None else []
    return any(map(is_window_name, (text, *map(ast.unparse, assigned))))


def _check_own_division(interp: Interpreter, value: Value, node: ast.Call) -> None:
    """Report a loss divided by the number of micro-batches that its engine, from elsewhere, divides by as well.

    Only an engine of DeepSpeed has this number, and the end of the window, as methods. A flag may say so as well.
    """
    engine, divides = receiver_of(node), keywords_of(node).get("scale_wrt_gas")
    if engine is None or not node.args:
        return
    is_chosen = not names_optimizer(access_text(engine)) and _is_chosen(interp)
    if not (is_chosen or _may_know_window(interp)):
        return
    # The code may use the engine as a module before.
    receiver = interp.without_events(lambda: interp.evaluate(engine)).before_recognition()
    if isinstance(receiver, UnknownValue) and (divides is None or constant_of_node(divides) is True):
        loss = as_loss(interp.without_events(lambda: interp.evaluate(node.args[0])))
        texts = {f"{access_text(engine)}.{_STEPS}()"}
        if is_chosen or _asks_for_boundary(interp, access_text(engine)):
            texts |= _window_names(interp, loss)
        emit_divided_twice(interp, loss, set(), texts, _TITLE, f"in `{expression_text(node)}`", guessed=True)


def _asks_for_boundary(interp: Interpreter, engine: str) -> bool:
    """Return True if the current function, or one that calls it, asks an engine for the end of the window."""
    asked = (node for function in interp.active_functions for node in function.find_nodes(ast.Attribute))
    return any(node.attr == _BOUNDARY and access_text(node.value) == engine for node in asked)


def _may_know_window(interp: Interpreter) -> bool:
    return any(not module.identifiers.isdisjoint((_STEPS, _BOUNDARY)) for module in _active_modules(interp))


def _active_modules(interp: Interpreter) -> list[Module]:
    return [interp.state.frame.module, *(function.module for function in interp.active_functions)]


def _is_chosen(interp: Interpreter) -> bool:
    """Return True if the code here runs only with DeepSpeed, by the name of a flag: ``if args.deepspeed:``."""
    if not any(_NAME in module.identifiers for module in _active_modules(interp)):
        return False
    return any(
        truth and _NAME in str(interp.graph.predicates[key].text).lower() for key, truth in interp.active_guards()
    )


def _window_names(interp: Interpreter, loss: Value) -> set[str]:
    """Return the source texts of the divisors of a loss whose names say that they count micro-batches."""
    texts = {str(divisor.source_text) for divisor in loss.normalization.divisors}
    return {text for text in texts if _names_window(interp, text)}


def register(handlers: HandlerTable) -> None:
    handlers.framework_roles[frameworks.DEEPSPEED] = _call_initialize
    handlers.methods["module"] = _call_engine_method
    handlers.call_result_listeners["backward"] = _check_own_division
