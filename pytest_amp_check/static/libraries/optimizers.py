"""Models of optimizers: construction and methods."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.source_text import SourceText
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.classes.attributes import BINDABLE_METHODS
from ..interpreter.classes.lineage import method_of
from ..interpreter.identity import Operation, structural_unknown
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.joins import for_each_alternative
from ..interpreter.name_effects import effects_of_name
from ..interpreter.source_text import expression_text, receiver_text
from ..interpreter.unanalyzed_code import call_unknown, holds_scaler
from ..interpreter.values.containers import MappingValue, UnionValue
from ..interpreter.values.definitions import Args, BoundMethod, FunctionValue, Instance, Keywords
from ..interpreter.values.gradients import ParamsValue, modules_of_params
from ..interpreter.values.objects import ObjectRef, UnwrappedOptimizer
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import NONE, UnknownValue, Value
from ..project.assignments import stored_names
from ..project.module import Class, Function
from ..project.syntax import tail_name, walk
from .arguments import (
    bind_arguments,
    first_or_named,
    items_of,
    literal_value,
    make_object,
    object_ref_of,
    tracked_object_of,
)
from .checkpoints import entry_of_state, take_state
from .float32_copies import copies_parameters, keeps_float32_copies
from .gradients import HOOKS
from .overhead import writes_needless_zeros
from .syntax_queries import assigned_values, constant_of_node, first_argument, first_argument_text, keywords_of


class _GivenModules(dict[int, frozenset[int]]):
    """Modules whose parameters unanalyzed code received, by the key of the result."""


#: Words in the names of options by which an optimizer keeps small updates of low weights.
_KEEPS_UPDATES = ("stochastic", "kahan")


def note_given_parameters(interp: Interpreter, made: Value, given: list[Value], node: ast.AST) -> None:
    """Record the modules whose parameters a call of unanalyzed code receives. The result may be an optimizer.

    A factory may receive the module itself. Of several modules, it may train only some. An optimizer that rounds
    stochastically, or sums with Kahan's method, is made for low weights.
    """
    for name, option in keywords_of(node).items():
        if name is not None and any(word in name for word in _KEEPS_UPDATES) and constant_of_node(option) is not False:
            return
    known = [modules for value in given if (modules := modules_of_params(value)) is not None]
    held = [module for value in given if (module := tracked_object_of(value)) and module.role == "module"]
    if len(held) == 1:
        known.append(frozenset((held[0].key,)))
    if known and isinstance(made, UnknownValue):
        interp.file_data(_GivenModules)[made.key] = frozenset[int]().union(*known)


def _note_optimizer_of_module(interp: Interpreter, returned: TensorValue, made: UnknownValue) -> None:
    """Record that a method of a module may return the optimizer: ``model.configure_optimizers(lr)``."""
    if returned.forwards.module_keys is not None and len(returned.forwards.module_keys) == 1:
        interp.file_data(_GivenModules)[made.key] = returned.forwards.module_keys


def _track_used_optimizer(interp: Interpreter, value: UnknownValue, text: str, node: ast.AST) -> TrackedObject:
    """Return the optimizer for an unknown value that is used as an optimizer."""
    used = interp.tracked_object(("used", value.key), "optimizer", text, interp.site_of(node))
    # A factory may return the optimizer together with a scheduler.
    sources = [value.key, *(value.item_origin or ())[:1]]
    given = interp.file_data(_GivenModules)
    used.attributes.given_modules = frozenset[int]().union(*(given.get(key, ()) for key in sources))
    used.attributes.is_received = value.origin.is_from_outside and not value.origin.is_call_result
    return used


def _recognize_optimizer(interp: Interpreter, role: str, value: UnknownValue, text: str, node: ast.AST) -> Value:
    used = _track_used_optimizer(interp, value, text, node)
    if used.role == "module":
        # Another file only clears the value, as modules and optimizers can both be cleared.
        used = interp.tracked_object(("used as optimizer", value.key), "optimizer", text, interp.site_of(node))
    return ObjectRef(used, recognized_from=value)


def act_on_optimizers(
    interp: Interpreter, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]
) -> None:
    """Apply an action to the optimizer of a value, or to each optimizer of a union."""
    if isinstance(value, UnionValue):
        for_each_alternative(interp, value, lambda v: _act_on_optimizer(interp, v, node, act))
    else:
        _act_on_optimizer(interp, value, node, act)


def _act_on_optimizer(
    interp: Interpreter, value: Value, node: ast.AST, act: Callable[[int, dict[str, object]], object]
) -> Value:
    tracked_object = find_optimizer(interp, value, node)
    if tracked_object is not None:
        act(tracked_object.key, {"optimizer": first_argument_text(node) or tracked_object.name})
    return NONE


def find_optimizer(interp: Interpreter, value: Value, node: ast.AST) -> TrackedObject | None:
    ref = object_ref_of(value, "optimizer") or object_ref_of(value, "module")
    if ref is not None:
        return ref.tracked_object
    if isinstance(value, Instance):
        inner = _find_wrapped_optimizer(interp, value)
        if inner is not None:
            return inner
        made = interp.tracked_object(("used instance", value.key), "optimizer", "", interp.site_of(node))
        step = method_of(interp, value.cls, "step")
        if step is not None and "zero_grad" in step.used_names:
            made.attributes.hooked = True
        return made
    if isinstance(value, UnknownValue):
        return _track_used_optimizer(interp, value, value.text, node)
    return None


def _find_wrapped_optimizer(interp: Interpreter, wrapper: Instance) -> TrackedObject | None:
    """Return the single optimizer in the attributes of an object with a ``step`` method, or None."""
    held = {
        tracked_object_of(value)
        for (key, _), value in interp.state.heap.items()
        if key == wrapper.key and object_ref_of(value, "optimizer") is not None
    }
    return held.pop() if len(held) == 1 and method_of(interp, wrapper.cls, "step") is not None else None


def _container_text(state: ast.expr | None) -> object:
    """Return the source text of the checkpoint of which a state is an item, "" for another state."""
    return SourceText(state.value) if isinstance(state, ast.Subscript) else ""


def _call_optimizer_method(
    interp: Interpreter, optimizer: ObjectRef, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    key = optimizer.tracked_object.key
    names: dict[str, object] = {"optimizer": receiver_text(node), "call": expression_text(node)}
    if name == "step":
        if holds_scaler(interp, [value for given in (*args, *keywords.values()) for value in given.alternatives()]):
            # This is no step of torch: the receiver of the scaler calls `scaler.step` itself.
            func = structural_unknown(interp, Operation.METHOD, (optimizer,), expression_text(node), name)
            return call_unknown(interp, func, [optimizer, *args], keywords, node)
        closure = first_or_named(args, keywords, "closure")
        if isinstance(closure, FunctionValue):
            # Optimizers of torch accept only the closure. Other optimizers pass further arguments on to the closure.
            wanted = len(closure.function.parameters()) - (closure.receiver is not None)
            interp.call_value(closure, args[1 : 1 + max(wanted, 0)], {}, node)
        step_optimizer(interp, optimizer, node, names)
        return interp.fresh_unknown(node, name)
    if name == "zero_grad" or (e.CLEARS in effects_of_name(name) and "grad" in name):
        _call_zero_grad(interp, optimizer, args, keywords, node, names)
        return NONE
    if name == "state_dict":
        return take_state(interp, optimizer, node)
    if name == "load_state_dict":
        source, name_of_entry = entry_of_state(first_or_named(args, keywords, "state_dict"))
        if name_of_entry is not None:
            names["checkpoint"] = _container_text(first_argument(node))
            interp.emit(e.OptimizerLoad, node, None, key, source=source, entry=name_of_entry, names=names)
        return NONE
    if name.startswith("register_"):
        optimizer.tracked_object.attributes.hooked = True
        if name in HOOKS:
            optimizer.tracked_object.attributes.divided = True
    if name == "backward":
        interp.emit(e.Backward, node, scaling=e.UNKNOWN_SCALING, feeds=None)
    return structural_unknown(interp, Operation.CALL, (optimizer, *args), name, name)


def _call_inherited_zero_grad(
    interp: Interpreter, receiver: Instance, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Emit a clear for an object whose class has ``step`` but inherits ``zero_grad`` from an unknown base class."""
    if name != "zero_grad" or receiver.tracked_object is not None or method_of(interp, receiver.cls, "step") is None:
        return None
    names = {"optimizer": receiver_text(node), "call": expression_text(node)}
    zeros = writes_needless_zeros(interp, args, keywords)

    def emit_zero_grad(key: int, _: dict[str, object]) -> None:
        interp.emit(e.ZeroGrad, node, owners=(key,), names=names, zeros=zeros)

    act_on_optimizers(interp, receiver, node, emit_zero_grad)
    return NONE


def _call_zero_grad(
    interp: Interpreter, optimizer: ObjectRef, args: Args, keywords: Keywords, node: ast.AST, names: dict[str, object]
) -> None:
    zeros = writes_needless_zeros(interp, args, keywords)

    def emit_zero_grad() -> None:
        interp.emit(e.ZeroGrad, node, owners=(optimizer.tracked_object.key,), names=names, zeros=zeros)

    if not any(through(interp, optimizer, node, emit_zero_grad) for through in interp.handlers.zero_grad_handlers):
        emit_zero_grad()


def step_optimizer(interp: Interpreter, optimizer: ObjectRef, node: ast.AST, names: dict[str, object]) -> None:
    """Step an optimizer, through the first handler that accepts the step."""
    for step in interp.handlers.optimizer_step_handlers:
        if step(interp, optimizer, node, names):
            return
    interp.emit(e.Step, node, None, optimizer.tracked_object.key, names=names)


def make_optimizer(interp: Interpreter, params: Value | None, node: ast.AST, callable_name: str) -> ObjectRef:
    tracked_object = make_object(interp, "optimizer", node)
    made = tracked_object.attributes
    made.constructed, made.callable, made.owns = True, callable_name, modules_of_params(params)
    interp.emit(e.OptimizerNew, node, tracked_object.key, names={"optimizer": tracked_object.name})
    return ObjectRef(tracked_object)


def _make_torch_optimizer(
    interp: Interpreter, entry: torch_api.ApiEntry, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    bound = bind_arguments(entry.parameters, args, keywords)
    groups = bound.get("params")
    made = make_optimizer(interp, groups, node, entry.name)
    if not made.tracked_object.attributes.owns:
        made.tracked_object.attributes.given_modules = _find_named_module(interp, node)
    rates = [item.items.get("lr") for item in items_of(groups) if isinstance(item, MappingValue)]
    made.tracked_object.attributes.fused = literal_value(keywords.get("fused")) is True
    made.tracked_object.attributes.divided = any(_is_divided_by_window(rate) for rate in (bound.get("lr"), *rates))
    return made


def _find_named_module(interp: Interpreter, node: ast.AST) -> frozenset[int]:
    """Return the module that the parameters of an optimizer are taken from: ``SGD(group_parameters(model))``.

    Of several modules, the optimizer may train only some, and of copies the module trains none. Then return none.
    """
    params = first_argument(node) or keywords_of(node).get("params")
    found: set[int] = set()
    if _are_copies(interp, params):
        return frozenset()
    for expression in _expressions_behind(interp, params):
        for part in walk(expression):
            if isinstance(part, (ast.Name, ast.Attribute)):
                value = interp.without_events(partial(interp.evaluate, part))
                found |= _modules_behind(interp, value)
    function = interp.state.frame.function
    if not found and function is not None:
        # Loops over the parameters fill the groups.
        for asked in function.find_nodes(ast.Attribute):
            if asked.attr in ("parameters", "named_parameters"):
                found |= _modules_behind(interp, interp.without_events(partial(interp.evaluate, asked.value)))
    return frozenset(found) if len(found) == 1 else frozenset()


def _are_copies(interp: Interpreter, params: ast.expr | None) -> bool:
    """Return True if the parameters may be copies: of master weights, or made by the function or by one it calls."""
    function = interp.state.frame.function
    if function is not None and copies_parameters(function.nodes):
        return True
    for expression in _expressions_behind(interp, params):
        for part in walk(expression):
            if isinstance(part, (ast.Name, ast.Attribute)) and "master" in tail_name(part).lower():
                return True
            if isinstance(part, ast.Call):
                called = interp.without_events(partial(interp.evaluate, part.func))
                if isinstance(called, FunctionValue) and copies_parameters(called.function.nodes):
                    return True
    return False


def _expressions_behind(interp: Interpreter, params: ast.expr | None) -> list[ast.expr]:
    """Return the expression of the parameters, or the values that the function assigns to their name."""
    frame = interp.state.frame
    if not isinstance(params, ast.Name) or frame.function is None:
        return [] if params is None else [params]
    return [params, *assigned_values(frame.function.nodes, params.id)]


def _modules_behind(interp: Interpreter, value: Value) -> set[int]:
    """Return the keys of a module, of the module of some parameters, or of the modules that a method reads."""
    module = tracked_object_of(value)
    if module is not None and module.role == "module":
        return {module.key}
    if isinstance(value, ParamsValue):
        return set(value.modules or ())
    if isinstance(value, FunctionValue) and isinstance(value.receiver, Instance):
        read = value.function.attributes_used()
        kept = [held for name, held in interp.stored_attributes(value.receiver.key) if name in read]
        return {each.key for each in map(tracked_object_of, kept) if each is not None and each.role == "module"}
    return set()


def _is_divided_by_window(rate: Value | None) -> bool:
    """Return True if a learning rate may be divided by the number of microbatches in a window.

    A literal number in the formula, like the 256 of ``lr * batch_size / 256``, is no number of microbatches.
    """
    if rate is None or not rate.normalization.is_divided or rate.normalization.is_only_by_number:
        return False
    divisors = rate.normalization.divisors if isinstance(rate, UnknownValue) else frozenset()
    return not divisors or not all(divisor.is_literal for divisor in divisors)


class _ClearingClasses(dict[Class, bool]):
    """Optimizer classes, each with True if another method than ``zero_grad`` may clear gradients."""


def _make_subclass_optimizer(
    interp: Interpreter, cls: Class, args: Args, keywords: Keywords, node: ast.AST
) -> Value | None:
    """Return an optimizer of a project class, whose methods may do more than torch's methods.

    Return None for a class that steps another optimizer through a scaler: its own methods tell what it does.
    """
    if steps_through_scaler(interp, cls):
        return None
    made = make_optimizer(interp, first_or_named(args, keywords, "params"), node, cls.name)
    clearing = interp.file_data(_ClearingClasses)
    if cls not in clearing:
        clearing[cls] = any(_may_clear(method) for name, method in cls.methods.items() if name != "zero_grad")
    if clearing[cls]:
        made.tracked_object.attributes.hooked = True
    made.tracked_object.attributes.keeps_float32_copies = keeps_float32_copies(interp, cls)
    return made


def steps_through_scaler(interp: Interpreter, cls: Class) -> bool:
    """Return True if the ``step`` of a class passes an optimizer to the ``step`` of a scaler."""
    step = method_of(interp, cls, "step")
    roles = {} if step is None else step.module.role_by_text
    return step is not None and any(
        isinstance(node, ast.Call)
        and node.args
        and tail_name(node.func) == "step"
        and isinstance(node.func, ast.Attribute)
        and (roles.get(ast.unparse(node.func.value)) == "scaler" or "scaler" in tail_name(node.func.value))
        for node in step.nodes
    )


def _may_clear(method: Function) -> bool:
    """Return True if a method mentions clearing, or assigns gradients."""
    body = method.node.body
    return any(e.CLEARS in effects_of_name(tail_name(node)) for node in method.nodes) or (
        isinstance(body, list) and "grad" in stored_names(body)[1]
    )


def _get_optimizer_attribute(interp: Interpreter, receiver: ObjectRef, name: str, node: ast.AST) -> Value | None:
    if name in BINDABLE_METHODS["optimizer"]:
        return BoundMethod(receiver, name)
    if name == "param_groups":
        return ParamsValue(
            receiver.tracked_object.attributes.owns,
            frozenset((receiver.tracked_object.key,)),
            is_param_group=True,
        )
    if name == "optimizer" and receiver.tracked_object.attributes.engine is not None:
        return UnwrappedOptimizer(receiver.tracked_object)
    return None


def register(handlers: HandlerTable) -> None:
    handlers.recognizers["optimizer"] = _recognize_optimizer
    handlers.found_optimizer_listeners.append(_note_optimizer_of_module)
    handlers.inherited_methods.append(_call_inherited_zero_grad)
    handlers.torch_roles[torch_api.OPTIMIZER] = _make_torch_optimizer
    handlers.constructors[torch_api.OPTIMIZER] = _make_subclass_optimizer
    handlers.methods["optimizer"] = _call_optimizer_method
    handlers.attributes["optimizer"] = _get_optimizer_attribute
