"""Engines of frameworks: constructed, annotated, or recognized by their use, each with its precision."""

from __future__ import annotations

import ast

from ....protocol import frameworks, torch_api
from ....protocol.frameworks import FRAMEWORKS
from ....protocol.severities import INFO, WARNING
from ....protocol.tracked_objects import TrackedObject
from ...interpreter.conditions import Formula, disjunction
from ...interpreter.identity import is_equal
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import Args, Keywords
from ...interpreter.values.objects import FrameworkEngine, ObjectRef
from ...interpreter.values.value import NONE, Const, UnknownValue, Value
from ..arguments import bind_arguments, first_or_named, literal_value, make_object


class EngineTable(dict[int, FrameworkEngine]):
    """Engines that a graph uses, by the keys of the tracked objects."""


#: Number of microbatches in a window if the constructor gets no number.
DEFAULT_STEPS = Const(1)


def call_framework(interp: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value | None:
    """Return the result of a call of a framework function, or None if the name is unknown."""
    entry = frameworks.find_entry(name)
    if entry is None:
        return None
    bound = bind_arguments(entry.parameters, args, keywords)
    handler = interp.handlers.framework_roles.get(entry.role)
    if handler is not None:
        return handler(interp, entry, bound, node)
    return first_or_named(args, keywords, entry.parameters[0]) or interp.fresh_unknown(node, name)


def make_engine(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> FrameworkEngine:
    framework = frameworks.FRAMEWORK_OF[entry.name]
    known = FRAMEWORKS[framework].engine
    tracked_object = make_object(interp, "scaler", node)
    given = bound.get(known.precision.parameter)
    if given is None and known.precision.default is not None and "**" not in bound:
        given = Const(known.precision.default)
    elif given is None:
        # Engines of one program share a state, which the first engine determines.
        given = next((x.precision for x in interp.graph_data(EngineTable).values() if x.framework == framework), None)
    given, enabled, doubt = _resolve_precision(interp, given, framework, node)
    steps = None
    if known.accumulation.parameter:
        hidden = "**" in bound or any(name in bound for name in known.accumulation.other_parameters)
        steps = bound.get(known.accumulation.parameter) or (
            make_unknown_steps(interp, tracked_object) if hidden else DEFAULT_STEPS
        )
    set_framework(tracked_object, framework, doubt)
    note_setup(interp, framework, node, tracked_object)
    made = FrameworkEngine(framework, tracked_object, enabled, None, given, steps, bound.get("optimizer"))
    interp.graph_data(EngineTable)[tracked_object.key] = made
    return made


def set_framework(tracked_object: TrackedObject, framework: str, doubt: str) -> None:
    tracked_object.attributes.framework, tracked_object.attributes.doubt = framework, doubt


def note_setup(interp: Interpreter, framework: str, node: ast.AST, engine: TrackedObject | None = None) -> None:
    """Record the location where the engine of a framework is set up, for traces."""
    sites, site = interp.program.attributes.setup_sites, interp.site_of(node)
    sites.setdefault(framework, site)
    if engine is not None:
        sites[engine.key] = site


def make_unknown_steps(interp: Interpreter, tracked_object: TrackedObject) -> UnknownValue:
    return interp.unknown_value(("steps", tracked_object.key), "")


def _resolve_precision(
    interp: Interpreter, given: Value | None, framework: str, node: ast.AST
) -> tuple[Value, Formula, str]:
    """Return a precision, the condition that losses are scaled in this precision, and the severity of the doubt."""
    values = FRAMEWORKS[framework].engine.precision.scaled
    if not values:
        return NONE, True, ""
    if given is None or literal_value(given) is None:
        # All engines of a program without a precision of their own share a setting from outside the program.
        unknown = interp.unknown_value(("precision", framework), FRAMEWORKS[framework].engine.precision.parameter)
        return unknown, is_equal(interp, unknown, values[0], node), INFO
    enabled = disjunction(*(is_equal(interp, given, value, node) for value in values))
    known = isinstance(enabled, bool) or any(literal_value(v) in values for v in given.alternatives())
    return given, enabled, "" if known else WARNING


def make_used_engine(
    interp: Interpreter, framework: str, value: UnknownValue, text: str, node: ast.AST
) -> FrameworkEngine:
    """Return an engine for a value from elsewhere that is used as an engine of a framework."""
    tracked_object = interp.tracked_object(("used", value.key), "scaler", text, interp.site_of(node))
    precision, enabled, doubt = _resolve_precision(interp, None, framework, node)
    set_framework(tracked_object, framework, doubt)
    steps = make_unknown_steps(interp, tracked_object) if FRAMEWORKS[framework].engine.accumulation.parameter else None
    return FrameworkEngine(framework, tracked_object, enabled, value, precision, steps)


def make_passed_wrapper(interp: Interpreter, framework: str, value: UnknownValue, text: str, node: ast.AST) -> Value:
    """Return an engine for the wrapper that a framework passes, which scales where the user configures it so.

    A wrapper from the code itself is the optimizer that it seems to be.
    """
    holder = node
    while isinstance(holder, ast.Subscript):
        holder = holder.value
    held: Value | None = interp.state.frame.vars.get(holder.id) if isinstance(holder, ast.Name) else None
    held = value if held is None else held.before_recognition()
    if not isinstance(held, UnknownValue) or not held.origin.is_argument:
        optimizer = interp.tracked_object(("used", value.key), "optimizer", text, interp.site_of(node))
        return ObjectRef(optimizer, True, value)
    engine = make_used_engine(interp, framework, value, text, node)
    engine.tracked_object.attributes.doubt = INFO
    return engine


def make_annotated_engine(
    interp: Interpreter, class_name: str, value: UnknownValue, parameter: ast.arg
) -> Value | None:
    """Return an engine for a parameter annotated with an engine class, or None for another annotation."""
    entry = frameworks.find_entry(class_name)
    if entry is None or entry.role != frameworks.ENGINE:
        return None
    return make_used_engine(interp, frameworks.FRAMEWORK_OF[entry.name], value, parameter.arg, parameter)
