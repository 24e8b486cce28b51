"""Moving averages of the weights of a model that is stored in low precision: the average has the model's dtype."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.source_text import SourceText, access_text
from ..interpreter.imports import load_any_import
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import ClassValue, ExternalName, Instance
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.value import Value
from ..project.module import Class
from ..project.syntax import walk
from .arguments import items_of, tracked_object_of
from .averages import CALLS, averages_variable, is_averaged, is_in_place_decay
from .low_parameters import LowModules, low_dtype_of_modules
from .precision.moving_averages import find_average, is_share_added, without_data
from .syntax_queries import find_nodes, keywords_of, last_name, receiver_of

#: Classes that average the weights of the model, or the parameters, they get, and libraries whose copies keep a dtype.
_AVERAGES = frozenset("AveragedModel ModelEma ModelEmaV2 ModelEmaV3 EMAModel ExponentialMovingAverage EMA".split())
_LIBRARIES = ("torch", "timm", "diffusers", "torch_ema", "ema_pytorch")
#: Functions and methods that copy weights, or a model with its weights.
_COPIES = frozenset(("deepcopy", "clone"))
#: Names in code that widens an average.
_WIDENS = frozenset(("float", "double", "float32", "float64"))
_LOW = frozenset(("float16", "bfloat16"))


class _ReportedClasses(set["Class | None"]):
    """Classes whose copies of weights are reported where they are made."""


class _ReportedModules(set[int]):
    """Modules whose weights are reported as an average where they are updated."""


def _check_average(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report the construction of an average from a model in low precision, unless the code widens the average."""
    call = node.value
    if not interp.file_data(LowModules):
        return
    if isinstance(call, (ast.ListComp, ast.DictComp)):
        _check_copied_parameters(interp, node, call)
    if not isinstance(call, ast.Call):
        return
    # `AveragedModel(model).cuda()`
    while isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value
    copies = last_name(call.func) == "deepcopy"
    if not copies and not last_name(call.func)[:1].isupper():
        return
    dtype = _low_dtype_of(interp, [*call.args, *keywords_of(call).values()])
    if not dtype or _is_widened(interp, node):
        return
    if _averages_copy(interp, node.targets) if copies else _makes_average(interp, call):
        if copies:
            interp.file_data(_ReportedClasses).add(interp.state.frame.cls)
        interp.emit(e.LowSum, call, dtype=dtype, average=True, names={"sum": SourceText(call)})


def _check_update(interp: Interpreter, node: ast.expr) -> None:
    """Report an update of the weights of a low network of its own: ``t.data.mul_(d).add_(p.data, alpha=1 - d)``."""
    if not isinstance(node, ast.Call) or not interp.file_data(LowModules):
        return
    updated = find_average(node)
    if updated is None and last_name(node.func) == "copy_" and node.args:
        target = receiver_of(node)
        updated = target if target is not None and is_share_added(node.args[0], target) else None
    if updated is not None:
        _report_updated(interp, updated, node)


def _check_assigned_update(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report ``t.data = d * t.data + (1 - d) * p.data`` for the weights of a low network of its own."""
    target = node.targets[0]
    is_data = isinstance(target, ast.Attribute) and target.attr == "data"
    if is_data and interp.file_data(LowModules) and is_share_added(node.value, target):
        _report_updated(interp, target, node)


def _report_updated(interp: Interpreter, updated: ast.expr, node: ast.expr | ast.Assign) -> None:
    if any("deepcopy" in module.identifiers for module in (interp.module, interp.state.frame.module)):
        return  # The copy is reported where it is made.
    params = interp.without_events(lambda: interp.evaluate(without_data(updated)))
    modules = params.modules if isinstance(params, ParamsValue) else None
    reported = interp.file_data(_ReportedModules)
    if not modules or not reported.isdisjoint(modules):
        return
    dtype = low_dtype_of_modules(interp, modules)
    if dtype:
        reported |= modules
        interp.emit(e.LowSum, node, dtype=dtype, average=True, names={"sum": SourceText(updated)})


def _check_copied_parameters(interp: Interpreter, node: ast.Assign, made: ast.ListComp | ast.DictComp) -> None:
    """Report an average of copies: ``average = [p.detach().clone() for p in model.parameters()]``."""
    if any(last_name(call.func) in _COPIES for call in find_nodes(made, ast.Call)):
        dtype = _low_dtype_of(interp, [generator.iter for generator in made.generators])
        if dtype and not _is_widened(interp, node) and _averages_copy(interp, node.targets):
            interp.file_data(_ReportedClasses).add(interp.state.frame.cls)
            interp.emit(e.LowSum, made, dtype=dtype, average=True, names={"sum": SourceText(made)})


def _low_dtype_of(interp: Interpreter, nodes: list[ast.expr]) -> str:
    """Return the low dtype of a model, or of the parameters of a model, among some expressions, or ""."""
    for argument in nodes:
        value = interp.without_events(lambda node=argument: interp.evaluate(node))  # type: ignore[misc]
        module = tracked_object_of(value)
        # Named parameters are pairs.
        parts = [value, *items_of(value), *(part for pair in items_of(value) for part in items_of(pair))]
        params = next((each for each in parts if isinstance(each, ParamsValue)), None)
        keys = (module.key,) if module is not None else () if params is None else params.modules
        for key in keys or ():
            dtype = interp.program.objects[key].attributes.dtypes.low
            if dtype in _LOW:
                return dtype
    return ""


def _is_widened(interp: Interpreter, node: ast.Assign) -> bool:
    """Return True if the expression, or code about its target, converts to float32."""
    if any(_names_wide(part) for part in walk(node.value)):
        return True
    targets = set(map(access_text, node.targets))
    frame = interp.state.frame
    code = frame.module.tree if frame.function is None else frame.function.node
    return any(
        access_text(owner) in targets and any(map(_names_wide, walk(call)))
        for call in find_nodes(code, ast.Call)
        if (owner := receiver_of(call)) is not None
    )


def _names_wide(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _WIDENS


def _makes_average(interp: Interpreter, call: ast.Call) -> bool:
    """Return True if a call constructs an average: of a class of the project that decays a copy, or of a library."""
    value: Value | None = interp.without_events(lambda: interp.evaluate(call.func))
    name = last_name(call.func)
    if isinstance(value, ExternalName) and name in _AVERAGES:
        if value.name.split(".")[0] in _LIBRARIES:
            return True
        # A file of averages trains nothing.
        value = load_any_import(interp, name, interp.state.frame.module)
    if not isinstance(value, (ClassValue, Instance)):
        return False
    return value.cls not in interp.file_data(_ReportedClasses) and _copies_and_decays(value.cls)


def _copies_and_decays(cls: Class) -> bool:
    """Return True if a class copies weights, decays them in place and converts nothing to float32."""
    nodes = [node for method in cls.methods.values() for node in method.nodes]
    copies = any(isinstance(node, ast.Call) and last_name(node.func) in _COPIES for node in nodes)
    return copies and any(map(is_in_place_decay, nodes)) and not any(map(_names_wide, nodes))


def _averages_copy(interp: Interpreter, targets: list[ast.expr]) -> bool:
    """Return True if the code around updates a copy as a moving average."""
    frame = interp.state.frame
    for target in targets:
        if isinstance(target, ast.Name):
            nodes = frame.module.nodes if frame.function is None else frame.function.nodes
            if averages_variable(interp, nodes, target.id, CALLS):
                return True
        elif isinstance(target, ast.Attribute) and frame.cls is not None and is_averaged(frame.cls, target.attr):
            return True
    return False


def register(handlers: HandlerTable) -> None:
    handlers.assignment_listeners += [_check_average, _check_assigned_update]
    handlers.expression_listeners.append(_check_update)
