"""Custom autograd Functions whose backward fails on the dtypes that autocast passes, or loses the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.events import UNKNOWN
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site
from ...protocol.source_text import SourceText, access_text, find_access_path
from ..interpreter.classes.lineage import method_of, role_of
from ..interpreter.dtypes import WEIGHTED, is_low
from ..interpreter.imports import dotted_name, globals_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.tensors import compute_tensor, in_region, unknown_tensor
from ..interpreter.values.definitions import Args, ClassValue
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.tensors import TensorValue
from ..interpreter.values.value import UnknownValue, Value
from ..project.module import Class, Function, Module
from ..project.syntax import walk
from .arguments import find_tensors
from .syntax_queries import (
    callee_of,
    constant_of_node,
    elements_of,
    find_nodes,
    keywords_of,
    last_name,
    operands_of,
    receiver_of,
)

#: Names that mention dtypes. A Function that uses one of these names is assumed to handle dtypes.
_DTYPES = frozenset(
    "to float half bfloat16 double type type_as dtype float16 float32 float64 autocast amp cast get_autocast_dtype "
    "is_autocast_enabled".split()
)
#: Names in ``_DTYPES`` that mention no tensor dtype when called as Python builtins.
_BUILTIN = frozenset({"float", "type"})
#: Decorators that have no effect on dtypes.
_NEUTRAL = frozenset({"staticmethod", "once_differentiable"})
#: Functions of torch that create a float32 tensor if no dtype is passed.
FACTORIES = frozenset("rand randn zeros ones empty eye linspace Tensor FloatTensor".split())


class FunctionFlaw(NamedTuple):
    """A defect of a Function: the label of the violation, and the method to report.

    ``mixed_inputs`` holds the positions of forward inputs. If one of these inputs is float32, backward raises. None
    means that the inputs do not matter. ``unanalyzed_call`` is the call that passes the inputs to code outside torch.
    """

    label: str
    method: Function
    mixed_inputs: frozenset[int] | None = None
    unanalyzed_call: ast.Call | None = None


def report_custom_functions(interp: Interpreter) -> None:
    """Report the Functions of this file that always fail, and the Functions that modules here apply to weights."""
    if "Function" not in interp.module.identifiers:
        return
    own = [cls for cls in interp.module.classes.values() if role_of(interp, cls) == torch_api.AUTOGRAD_FUNCTION]
    for cls in own:
        _check_received_gradient(interp, cls)
    flaws = {cls.name: (cls, flaw) for cls in own if (flaw := _find_flaw(interp, cls)) is not None}
    with_mixed_inputs = {name for name, (_, flaw) in flaws.items() if flaw.mixed_inputs is not None}
    asked = with_mixed_inputs if "autocast" in interp.module.identifiers else set()
    given, computed_low = (
        dict(_find_applied(interp, asked, _is_weight)),
        dict(_find_applied(interp, asked, _is_low_op_output)),
    )
    for name, (cls, flaw) in flaws.items():
        weights = (computed_low if flaw.label == "foreign-output" else given).get(name, frozenset())
        if flaw.mixed_inputs is None or (
            flaw.mixed_inputs & weights and (flaw.label != "foreign" or flaw.mixed_inputs - weights)
        ):
            _report_flaw(interp, cls, flaw)


def _check_received_gradient(interp: Interpreter, cls: Class) -> None:
    """Report a backward with ``custom_bwd`` that returns gradients, but reads none of those that it receives.

    The decorator shows that the training may use a GradScaler.
    """
    backward = method_of(interp, cls, "backward")
    if backward is None or "custom_bwd" not in backward.decorator_names():
        return
    received = [parameter.arg for parameter in backward.parameters()[1:]]
    read = {node.id for node in backward.find_nodes(ast.Name) if isinstance(node.ctx, ast.Load)}
    returned = [each.value for each in backward.find_nodes(ast.Return) if each.value is not None]
    if not received or not read.isdisjoint(received) or getattr(backward.node.args, "vararg", None) is not None:
        return
    if any(_may_be_gradient(part) for value in returned for part in elements_of(value) or [value]):
        names = {"function": cls.name, "gradient": received[0]}
        interp.emit_at(e.GradientIgnored(_site_of_method(interp, backward), None, names=names))


def _site_of_method(interp: Interpreter, method: Function) -> Site:
    """Return the location of a method, which may be in another file than the analyzed code."""
    outer, interp.state.frame = interp.state.frame, globals_of(interp, method.module)
    site = interp.site_of(method.node)
    interp.state.frame = outer
    return site


def _may_be_gradient(returned: ast.expr) -> bool:
    """Return True for a returned value that is neither None nor a tensor of zeros."""
    if isinstance(returned, ast.Constant):
        return False
    return last_name(callee_of(returned)) not in ("zeros_like", "zeros", "new_zeros")


def _check_applied(interp: Interpreter, cls: Class, args: Args) -> None:
    """Check a Function where ``apply`` is called and an autocast region may be open."""
    if not in_region(interp) or interp.state.no_grad:
        return
    flaw = _find_flaw(interp, cls)
    if flaw is None or flaw.mixed_inputs is None:
        return
    full = {place for place, value in enumerate(args) if _is_float32(value)}
    low = {place for place, value in enumerate(args) if isinstance(value, TensorValue) and value.low_dtype}
    wide = bool(flaw.mixed_inputs & full) if flaw.label != "foreign-output" else True
    if wide and (flaw.unanalyzed_call is None or flaw.mixed_inputs & low - full):
        _report_flaw(interp, cls, flaw)


def _report_flaw(interp: Interpreter, cls: Class, flaw: FunctionFlaw, *, assumed: bool = False) -> None:
    site = _site_of_method(interp, flaw.method)
    names: dict[str, object] = {"function": cls.name}
    if flaw.unanalyzed_call is not None:
        names["call"] = SourceText(flaw.unanalyzed_call.func)
    applied = flaw.mixed_inputs is not None
    interp.emit_at(e.CustomFunction(site, None, how=flaw.label, applied=applied, assumed=assumed, names=names))


def _find_flaw(interp: Interpreter, cls: Class) -> FunctionFlaw | None:
    """Return the defect of a Function, or None if the Function has none or handles dtypes itself."""
    forward, backward = method_of(interp, cls, "forward"), method_of(interp, cls, "backward")
    if forward is None or backward is None or method_of(interp, cls, "setup_context") is not None:
        return None
    fwd, bwd = _decorator_devices(interp, forward), _decorator_devices(interp, backward)
    if fwd is None or bwd is None:
        return None
    if bwd and not fwd:
        return FunctionFlaw("backward-alone", backward)
    devices = _find_device_flaw(fwd, bwd, backward) if bwd else None
    if devices is not None or _mentions_dtypes(forward) or _mentions_dtypes(backward):
        return devices
    mixed = _find_mixed_inputs(forward, backward) if not bwd else None
    how, method = ("forward-alone", backward) if fwd else ("undecorated", forward)
    return FunctionFlaw(how, method, mixed) if mixed else _find_foreign_flaw(interp, forward)


def report_assumed_functions(interp: Interpreter) -> None:
    """Report the Functions of this file that raise if a caller applies them under autocast."""
    for cls in interp.module.classes.values():
        if role_of(interp, cls) != torch_api.AUTOGRAD_FUNCTION:
            continue
        forward, backward = method_of(interp, cls, "forward"), method_of(interp, cls, "backward")
        if forward is None or backward is None or method_of(interp, cls, "setup_context") is not None:
            continue
        fwd, bwd = _decorator_devices(interp, forward), _decorator_devices(interp, backward)
        if fwd is None or bwd is None or _mentions_dtypes(backward) or _casts_result(forward):
            continue
        if not (fwd or bwd) and (_find_mixed_inputs(forward, backward) or _multiplies_in_helpers(forward, backward)):
            _report_flaw(interp, cls, FunctionFlaw("undecorated", forward), assumed=True)
            continue
        flaw = None if _mentions_dtypes(forward) else _find_foreign_flaw(interp, forward)
        tensors = _find_saved_tensors(forward)
        if flaw is not None and flaw.label == "foreign" and len(tensors & (flaw.mixed_inputs or set())) > 1:
            _report_flaw(interp, cls, flaw, assumed=True)


def _find_saved_tensors(forward: Function) -> frozenset[int]:
    """Return the positions of the inputs that forward saves for backward: only tensors are saved."""
    places = _map_derived_names(forward)
    calls = [call for call in forward.find_nodes(ast.Call) if last_name(call.func) == "save_for_backward"]
    names = (access_text(argument) for call in calls for argument in call.args)
    return frozenset(places[name] for name in names if name in places)


def _multiplies_in_helpers(forward: Function, backward: Function) -> bool:
    """Return True if both methods multiply in functions of the file that they call, and several inputs are saved."""
    if len(_find_saved_inputs(forward, backward)) < 2:
        return False
    return all(
        any(is_low_op(node, each.module) for each in _called_functions(method) for node in each.nodes)
        for method in (forward, backward)
    )


def _called_functions(method: Function) -> list[Function]:
    """Return the functions of its file that a method calls by a name that only one function has."""
    by_name = method.module.functions_by_name
    names = {last_name(call.func) for call in method.find_nodes(ast.Call)}
    return [by_name[name][0] for name in sorted(names & by_name.keys()) if len(by_name[name]) == 1]


def _casts_result(forward: Function) -> bool:
    """Return True if forward casts what it returns."""
    returned = [each.value for each in forward.find_nodes(ast.Return) if each.value is not None]
    names = {part.id for value in returned for part in walk(value) if isinstance(part, ast.Name)}
    assigned = [
        each.value
        for each in forward.find_nodes(ast.Assign)
        if any(find_access_path(target) in names for target in each.targets)
    ]
    parts = [part for value in (*returned, *assigned) for part in (elements_of(value) or [value])]
    return any(isinstance(part, ast.Call) and _mentions_dtype(part.func) for part in parts)


def _find_foreign_flaw(interp: Interpreter, forward: Function) -> FunctionFlaw | None:
    """Find a call in forward that passes unchanged inputs to code outside torch, which accepts a single dtype only.

    The call receives two dtypes if autocast lowered one input. The call also receives two dtypes if forward creates a
    float32 tensor and passes this tensor beside an input.
    """
    places_by_name = _map_derived_names(forward)
    made = {
        find_access_path(assign.targets[0])
        for assign in forward.find_nodes(ast.Assign)
        if last_name(callee_of(assign.value)) in FACTORIES and "dtype" not in keywords_of(assign.value)
    }
    for call in forward.find_nodes(ast.Call):
        if not _is_unanalyzed_call(interp, forward, call):
            continue
        given = [find_access_path(argument) for argument in call.args]
        places = frozenset(places_by_name[name] for name in given if name in places_by_name)
        if made.intersection(given) - {None} and places:
            return FunctionFlaw("foreign-output", forward, places, call)
        if len(places) > 1:
            return FunctionFlaw("foreign", forward, places, call)
    return None


def _map_derived_names(forward: Function) -> dict[str | None, int]:
    """Map the variables of forward that hold an input, or what its methods return, to the position of the input."""
    places: dict[str | None, int] = {parameter.arg: place for place, parameter in enumerate(forward.parameters()[1:])}
    made: dict[str, set[str]] = {}
    for assign in forward.find_nodes(ast.Assign):
        source = assign.value
        while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
            source = source.func.value
        for target in (part for each in assign.targets for part in elements_of(each) or [each]):
            if isinstance(target, ast.Name):
                made.setdefault(target.id, set()).add(access_text(source))
    stored = {name.id for name in forward.find_nodes(ast.Name) if isinstance(name.ctx, ast.Store)}
    for name in stored:
        origins = made.get(name, set())
        origin = next(iter(origins)) if len(origins) == 1 else ""
        if origin not in places or (origin in stored and origin != name):
            places.pop(name, None)
        else:
            places[name] = places[origin]
    return places


def _is_unanalyzed_call(interp: Interpreter, forward: Function, call: ast.Call) -> bool:
    """Return True if a call goes to a package outside the project that is not torch."""
    root = access_text(call.func).partition(".")[0]
    imported = forward.module.imports.get(root)
    if imported is None or (imported.level and isinstance(call.func, ast.Name)):
        return False
    named = _resolve_name(interp, forward, call.func)
    return not named.startswith(("torch.nn", "torch.autograd", "math.", "numpy.")) and not torch_api.is_known_name(
        named
    )


def _find_device_flaw(fwd: list[str], bwd: list[str], backward: Function) -> FunctionFlaw | None:
    """Return the defect of two decorated methods that name different devices, or None."""
    known = len(fwd) == len(bwd) == 1 and "" not in (*fwd, *bwd)
    return FunctionFlaw("devices", backward) if known and fwd != bwd else None


def _decorator_devices(interp: Interpreter, method: Function) -> list[str] | None:
    """Return the device types of ``custom_fwd`` and ``custom_bwd`` on a method, with "" for an unknown device type.

    Return None if a decorator is unknown, or if a decorator casts the inputs (``cast_inputs``).
    """
    found: list[str] = []
    for decorator in method.decorators:
        named = _resolve_name(interp, method, callee_of(decorator) or decorator)
        last = named.rpartition(".")[2]
        if last in _NEUTRAL:
            continue
        keywords = keywords_of(decorator)
        if last not in ("custom_fwd", "custom_bwd") or "cast_inputs" in keywords:
            return None
        device = constant_of_node(keywords.get("device_type"))
        if named in ("torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"):
            device = "cuda"
        found.append(device.partition(":")[0] if isinstance(device, str) and device is not UNKNOWN else "")
    return found


def _find_applied(
    interp: Interpreter, names: set[str], asked: Callable[[Interpreter, ast.expr, Function, Class], bool]
) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the Functions that module methods apply to matching arguments, with the positions of these arguments."""
    for method in interp.module.functions.values() if names else ():
        owner = method.cls
        if owner is None or method.name == "__init__" or _enters_autocast(method):
            continue
        for call in method.find_nodes(ast.Call):
            name, _, last = access_text(call.func).rpartition(".")
            if last == "apply" and name in names:
                places = {i for i, arg in enumerate(call.args) if asked(interp, arg, method, owner)}
                if places and not _mentions_dtypes(method):
                    yield name, frozenset(places)


def _enters_autocast(method: Function) -> bool:
    """Return True if a decorator of a method is an autocast."""
    return any("autocast" in access_text(callee_of(d) or d) for d in method.decorators)


def _resolve_name(interp: Interpreter, method: Function, node: ast.expr) -> str:
    """Return the canonical torch name of an expression in a method, or the source path if the name is not resolved."""
    outer, interp.state.frame = interp.state.frame, globals_of(interp, method.module)
    named = dotted_name(interp, node)
    interp.state.frame = outer
    return torch_api.canonical_name(named) if named else access_text(node)


def _is_weight(interp: Interpreter, argument: ast.expr, method: Function, owner: Class) -> bool:
    """Return True if an argument is an attribute and the class assigns only float32 parameters to this attribute."""
    head, _, name = access_text(argument).partition(".")
    if head != _context_name(method):
        return False
    values = [value for _, value in owner.assignments.get(name, ())]
    return bool(values) and all(_is_parameter(interp, value, method) for value in values)


def _is_low_op_output(interp: Interpreter, argument: ast.expr, method: Function, owner: Class) -> bool:
    """Return True if an argument is the output of a layer of the class that autocast runs in low precision."""
    layer = callee_of(argument)
    head, _, name = access_text(layer).partition(".")
    values = [value for _, value in owner.assignments.get(name, ())] if head == _context_name(method) else []
    return bool(values) and all(last_name(callee_of(value)) in WEIGHTED for value in values)


def _is_parameter(interp: Interpreter, value: ast.expr, method: Function) -> bool:
    """Return True if an expression creates a float32 parameter."""
    maker = callee_of(value)
    if maker is None or not _resolve_name(interp, method, maker).endswith("Parameter"):
        return False
    made = {_resolve_name(interp, method, call.func).rpartition(".")[2] for call in find_nodes(value, ast.Call)}
    return bool(made & FACTORIES) and not any(_mentions_dtype(node) for node in walk(value))


def _is_float32(value: Value) -> bool:
    """Return True if a value is known to be a float32 tensor."""
    if isinstance(value, ObjectRef):
        return value.tracked_object.attributes.shape.is_float32_parameter
    return isinstance(value, UnknownValue) and value.is_new_float32


def _mentions_dtypes(method: Function) -> bool:
    body = method.node.body
    return isinstance(body, list) and any(_mentions_dtype(node) for part in body for node in walk(part))


def _mentions_dtype(node: ast.AST) -> bool:
    """Return True if a name mentions a dtype. The builtin call ``float(2)`` makes a number and does not count."""
    if isinstance(node, ast.keyword):
        return node.arg in _DTYPES
    word = last_name(node)
    return word in _DTYPES and not (word in _BUILTIN and isinstance(node, ast.Name))


def _find_mixed_inputs(forward: Function, backward: Function) -> frozenset[int]:
    """Return the positions of forward inputs that backward multiplies with the gradient of a low-precision output.

    Only inputs that forward saves unchanged count.
    """
    if not any(is_low_op(node, forward.module) for node in forward.nodes):
        return frozenset()
    gradients = {parameter.arg for parameter in backward.parameters()[1:]}
    saved = _find_saved_inputs(forward, backward)
    found: set[int] = set()
    for node in backward.nodes:
        sides = [{find_access_path(part) for part in walk(side)} for side in _low_op_operands(node, backward.module)]
        if any(side & gradients for side in sides):
            others = [side for side in sides if not side & gradients]
            found.update(saved[name] for side in others for name in side if name in saved)
    return frozenset(found)


def _find_saved_inputs(forward: Function, backward: Function) -> dict[str | None, int]:
    """Map the names of backward to the positions of the forward inputs that were saved unchanged."""
    inputs = [parameter.arg for parameter in forward.parameters()[1:]]
    reassigned = {name.id for name in forward.find_nodes(ast.Name) if isinstance(name.ctx, ast.Store)}
    return {
        name: inputs.index(source)
        for name, source in _map_saved_names(forward, backward).items()
        if source in inputs and source not in reassigned
    }


def is_low_op(node: ast.AST, module: Module) -> bool:
    """Return True if an expression is an op that autocast runs in the low-precision dtype."""
    return bool(_low_op_operands(node, module))


def _low_op_operands(node: ast.AST, module: Module) -> list[ast.expr]:
    """Return the operands of an op that autocast runs in the low-precision dtype. Empty for other expressions."""
    if not isinstance(node, ast.Call):
        return operands_of(node, ast.MatMult)
    word = last_name(node.func)
    if not any(map(is_low, (word, *module.aliases.get(word, ())))):
        return []
    of = receiver_of(node)
    return [*([] if of is None else [of]), *node.args]


def _map_saved_names(forward: Function, backward: Function) -> dict[str, str]:
    """Map the names in backward to the variables of forward that the context saved."""
    calls = [call for call in forward.find_nodes(ast.Call) if last_name(call.func) == "save_for_backward"]
    kept = [access_text(argument) for argument in calls[-1].args] if calls else []
    mine = _context_name(backward)
    known = {f"{mine}.{attribute}": source for attribute, source in _map_context_attributes(forward).items()}
    for assign in backward.find_nodes(ast.Assign):
        if len(assign.targets) == 1:
            target, source = assign.targets[0], access_text(assign.value)
            unpacks = source.rpartition(".")[2] in ("saved_tensors", "saved_variables")
            pairs = zip(elements_of(target), kept, strict=False) if unpacks else [(target, known.get(source))]
            known.update({part.id: name for part, name in pairs if isinstance(part, ast.Name) and name is not None})
    return known


def _map_context_attributes(forward: Function) -> dict[str, str]:
    """Map the attributes of the context to the forward variables that are assigned to the attributes."""
    context = _context_name(forward)
    return {
        target.attr: assign.value.id
        for assign in forward.find_nodes(ast.Assign)
        if isinstance(assign.value, ast.Name)
        for target in assign.targets
        if isinstance(target, ast.Attribute) and find_access_path(target.value) == context
    }


def _context_name(method: Function) -> str:
    """Return the name of the first parameter of a method, or "" if the method has no parameter."""
    parameters = method.parameters()
    return parameters[0].arg if parameters else ""


def _call_apply(interp: Interpreter, receiver: ClassValue, name: str, args: Args) -> Value | None:
    """Return the result of ``Function.apply``, or None for any other method or class."""
    if name != "apply" or role_of(interp, receiver.cls) != torch_api.AUTOGRAD_FUNCTION:
        return None
    tensors = find_tensors(args, {})
    made = compute_tensor(interp, tensors) if tensors else unknown_tensor(None)
    backward = method_of(interp, receiver.cls, "backward")
    made.has_custom_backward = backward is not None and "custom_bwd" not in backward.decorator_names()
    _check_applied(interp, receiver.cls, args)
    return made


def register(handlers: HandlerTable) -> None:
    handlers.class_methods.append(_call_apply)
    handlers.file_end_listeners.append(report_custom_functions)
