"""Custom autograd Functions: whether their backward can take the dtypes that autocast gives it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import UNKNOWN
from ...protocol.named import NamedTuple
from ...protocol.words import Words, chain
from ..interpreter.classes import method_of, role_of
from ..interpreter.dtypes import WEIGHTED, is_low
from ..interpreter.imports import dotted_name, globals_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import computed, foreign_tensor, in_region
from ..interpreter.values import Args, ClassValue, Ref, Tensor, Value
from ..project.module import Class, Function, Module
from ..project.syntax import walk
from .arguments import given_tensors
from .written import all_of, called, constant, elements, keywords_of, last_name, operands, receiver

#: Names by which code speaks of dtypes: who does so takes care of them.
_DTYPES = frozenset(
    "to float half bfloat16 double type type_as dtype float16 float32 float64 autocast amp cast get_autocast_dtype "
    "is_autocast_enabled".split()
)
#: Those that say nothing of a tensor where they are builtins.
_BUILTIN = frozenset({"float", "type"})
#: Decorators that change nothing about dtypes.
_NEUTRAL = frozenset({"staticmethod", "once_differentiable"})
#: Functions of torch that make a tensor of float32 where no dtype is given.
FACTORIES = frozenset("rand randn zeros ones empty eye linspace Tensor FloatTensor".split())


class Flaw(NamedTuple):
    """What a Function lacks: which fault that is, and the method to blame.

    ``mixed`` are the inputs of its forward, by position, of which one that is float32 makes backward raise; None where
    nothing about them matters. ``call`` is what code outside of torch is given them by.
    """

    how: str
    method: Function
    mixed: frozenset[int] | None = None
    call: ast.Call | None = None


def custom_functions(at: Interpreter) -> None:
    """Tell of the Functions of this file that break by themselves, and of those that its modules give weights."""
    if "Function" not in at.module.identifiers:
        return
    own = [cls for cls in at.module.classes.values() if role_of(at, cls) == surface.AUTOGRAD_FUNCTION]
    flaws = {cls.name: (cls, flaw) for cls in own if (flaw := _flaw(at, cls)) is not None}
    weighed = {name for name, (_, flaw) in flaws.items() if flaw.mixed is not None}
    asked = weighed if "autocast" in at.module.identifiers else set()
    given, computed_low = dict(_given(at, asked, _is_weight)), dict(_given(at, asked, _is_product))
    for name, (cls, flaw) in flaws.items():
        weights = (computed_low if flaw.how == "foreign-output" else given).get(name, frozenset())
        if flaw.mixed is None or (flaw.mixed & weights and (flaw.how != "foreign" or flaw.mixed - weights)):
            _tell(at, cls, flaw)


def _applied(at: Interpreter, cls: Class, args: Args) -> None:
    """A Function is applied where a region may be open."""
    if not in_region(at) or at.state.no_grad:
        return
    flaw = _flaw(at, cls)
    if flaw is None or flaw.mixed is None:
        return
    full = {place for place, value in enumerate(args) if _is_float32(value)}
    low = {place for place, value in enumerate(args) if isinstance(value, Tensor) and value.low}
    wide = bool(flaw.mixed & full) if flaw.how != "foreign-output" else True
    if wide and (flaw.call is None or flaw.mixed & low - full):
        _tell(at, cls, flaw)


def _tell(at: Interpreter, cls: Class, flaw: Flaw) -> None:
    outer, at.state.frame = at.state.frame, globals_of(at, flaw.method.module)
    site = at.site(flaw.method.node)
    at.state.frame = outer
    names = {"function": cls.name, "call": Words(flaw.call.func) if flaw.call is not None else ""}
    at.emit_at(e.CUSTOM_FUNCTION, site, None, how=flaw.how, applied=flaw.mixed is not None, names=names)


def _flaw(at: Interpreter, cls: Class) -> Flaw | None:
    """What a Function lacks, if it lacks anything and does not care for dtypes itself."""
    forward, backward = method_of(at, cls, "forward"), method_of(at, cls, "backward")
    if forward is None or backward is None or method_of(at, cls, "setup_context") is not None:
        return None
    fwd, bwd = _devices(at, forward), _devices(at, backward)
    if fwd is None or bwd is None:
        return None
    if bwd and not fwd:
        return Flaw("backward-alone", backward)
    devices = _flaw_of_both(fwd, bwd, backward) if bwd else None
    if devices is not None or _speaks_of_dtypes(forward) or _speaks_of_dtypes(backward):
        return devices
    mixed = _mixed_inputs(forward, backward) if not bwd else None
    how, method = ("forward-alone", backward) if fwd else ("undecorated", forward)
    return Flaw(how, method, mixed) if mixed else _flaw_of_foreign(at, forward)


def _flaw_of_foreign(at: Interpreter, forward: Function) -> Flaw | None:
    """What a forward lacks that gives its inputs, as they are, to code outside of torch: that takes one dtype.

    It is given two of them, of which autocast may have made one low, or one beside a float32 tensor made here.
    """
    inputs = [parameter.arg for parameter in forward.parameters()[1:]]
    stored = [name.id for name in all_of(forward.node, ast.Name) if isinstance(name.ctx, ast.Store)]
    made = {
        chain(assign.targets[0])
        for assign in all_of(forward.node, ast.Assign)
        if last_name(called(assign.value)) in FACTORIES and "dtype" not in keywords_of(assign.value)
    }
    for call in all_of(forward.node, ast.Call):
        if not _is_foreign(at, forward, call):
            continue
        given = [chain(argument) for argument in call.args]
        places = frozenset(inputs.index(name) for name in given if name in inputs and name not in stored)
        if made.intersection(given) - {None} and places:
            return Flaw("foreign-output", forward, places, call)
        if len(places) > 1:
            return Flaw("foreign", forward, places, call)
    return None


def _is_foreign(at: Interpreter, forward: Function, call: ast.Call) -> bool:
    """Whether a call is one of a function of a package outside of the project that is not torch."""
    root = (chain(call.func) or "").partition(".")[0]
    if root not in forward.module.imports:
        return False
    named = _named_at(at, forward, call.func)
    return not named.startswith(("torch.nn", "torch.autograd", "math.", "numpy.")) and not surface.known(named)


def _flaw_of_both(fwd: list[str], bwd: list[str], backward: Function) -> Flaw | None:
    """What two decorated methods lack: they may name two devices."""
    known = len(fwd) == len(bwd) == 1 and "" not in (*fwd, *bwd)
    return Flaw("devices", backward) if known and fwd != bwd else None


def _devices(at: Interpreter, method: Function) -> list[str] | None:
    """The device types of ``custom_fwd`` and ``custom_bwd`` on a method, "" for one that is not in view.

    None where a decorator is not known, or makes the inputs float32.
    """
    found: list[str] = []
    for decorator in method.decorators:
        named = _named_at(at, method, called(decorator) or decorator)
        last = named.rpartition(".")[2]
        if last in _NEUTRAL:
            continue
        keywords = keywords_of(decorator)
        if last not in ("custom_fwd", "custom_bwd") or "cast_inputs" in keywords:
            return None
        device = constant(keywords.get("device_type"))
        if named in ("torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"):
            device = "cuda"
        found.append(device.partition(":")[0] if isinstance(device, str) and device is not UNKNOWN else "")
    return found


def _given(
    at: Interpreter, names: set[str], asked: Callable[[Interpreter, ast.expr, Function, Class], bool]
) -> Iterator[tuple[str, frozenset[int]]]:
    """Functions that methods of modules apply to what is asked for, with the places of that."""
    for method in at.module.functions.values() if names else ():
        owner = method.cls
        if owner is None or method.name == "__init__" or _enters_autocast(method):
            continue
        for call in all_of(method.node, ast.Call):
            name, _, last = (chain(call.func) or "").rpartition(".")
            if last == "apply" and name in names:
                places = {i for i, arg in enumerate(call.args) if asked(at, arg, method, owner)}
                if places and not _speaks_of_dtypes(method):
                    yield name, frozenset(places)


def _enters_autocast(method: Function) -> bool:
    """Whether a decorator of a method is an autocast."""
    return any("autocast" in (chain(called(d) or d) or "") for d in method.decorators)


def _named_at(at: Interpreter, method: Function, node: ast.expr) -> str:
    """The name of torch that an expression in a method stands for, or the text of it."""
    outer, at.state.frame = at.state.frame, globals_of(at, method.module)
    named = dotted_name(at, node)
    at.state.frame = outer
    return surface.canonical(named) if named else chain(node) or ""


def _is_weight(at: Interpreter, argument: ast.expr, method: Function, owner: Class) -> bool:
    """Whether an argument is an attribute to which the class assigns a parameter of float32."""
    head, _, name = (chain(argument) or "").partition(".")
    if head != _context(method):
        return False
    values = [value for _, value in owner.assigned.get(name, ())]
    return bool(values) and all(_is_parameter(at, value, method) for value in values)


def _is_product(at: Interpreter, argument: ast.expr, method: Function, owner: Class) -> bool:
    """Whether an argument is what a layer of the class gives that autocast runs in low precision."""
    layer = called(argument)
    head, _, name = ((chain(layer) if layer is not None else None) or "").partition(".")
    values = [value for _, value in owner.assigned.get(name, ())] if head == _context(method) else []
    return bool(values) and all(last_name(called(value)) in WEIGHTED for value in values)


def _is_parameter(at: Interpreter, value: ast.expr, method: Function) -> bool:
    """Whether an expression makes a parameter of float32."""
    maker = called(value)
    if maker is None or not _named_at(at, method, maker).endswith("Parameter"):
        return False
    made = {_named_at(at, method, call.func).rpartition(".")[2] for call in all_of(value, ast.Call)}
    return bool(made & FACTORIES) and not any(_speaks_of_dtype(node) for node in walk(value))


def _is_float32(value: Value) -> bool:
    """Whether a value is known to be a tensor of float32."""
    return bool(value.thing.facts.get("parameter")) if isinstance(value, Ref) else value.full


def _speaks_of_dtypes(method: Function) -> bool:
    body = method.node.body
    return isinstance(body, list) and any(_speaks_of_dtype(node) for part in body for node in walk(part))


def _speaks_of_dtype(node: ast.AST) -> bool:
    """Whether a name is one by which code speaks of dtypes; ``float(2)`` is a number."""
    if isinstance(node, ast.keyword):
        return node.arg in _DTYPES
    word = last_name(node)
    return word in _DTYPES and not (word in _BUILTIN and isinstance(node, ast.Name))


def _mixed_inputs(forward: Function, backward: Function) -> frozenset[int]:
    """The inputs of forward that backward multiplies, as they came, with the gradient of a low-precision output."""
    if not any(is_low_op(node, forward.module) for node in walk(forward.node)):
        return frozenset()
    gradients = {parameter.arg for parameter in backward.parameters()[1:]}
    saved = _saved_inputs(forward, backward)
    found: set[int] = set()
    for node in walk(backward.node):
        sides = [{chain(part) for part in walk(side)} for side in _operands(node, backward.module)]
        if any(side & gradients for side in sides):
            others = [side for side in sides if not side & gradients]
            found.update(saved[name] for side in others for name in side if name in saved)
    return frozenset(found)


def _saved_inputs(forward: Function, backward: Function) -> dict[str | None, int]:
    """The places of the inputs that backward knows as they came, by its names for them."""
    inputs = [parameter.arg for parameter in forward.parameters()[1:]]
    reassigned = {name.id for name in all_of(forward.node, ast.Name) if isinstance(name.ctx, ast.Store)}
    return {
        name: inputs.index(source)
        for name, source in _saved(forward, backward).items()
        if source in inputs and source not in reassigned
    }


def is_low_op(node: ast.AST, module: Module) -> bool:
    """Whether an expression is an op that autocast runs in the low-precision dtype."""
    return bool(_operands(node, module))


def _operands(node: ast.AST, module: Module) -> list[ast.expr]:
    """The operands of an op that autocast runs in the low-precision dtype."""
    if not isinstance(node, ast.Call):
        return operands(node, ast.MatMult)
    word = last_name(node.func)
    if not any(map(is_low, (word, *module.aliases.get(word, ())))):
        return []
    of = receiver(node)
    return [*([] if of is None else [of]), *node.args]


def _saved(forward: Function, backward: Function) -> dict[str, str]:
    """What backward knows the variables of forward by."""
    calls = [call for call in all_of(forward.node, ast.Call) if last_name(call.func) == "save_for_backward"]
    kept = [chain(argument) or "" for argument in calls[-1].args] if calls else []
    mine = _context(backward)
    known = {f"{mine}.{attribute}": source for attribute, source in _noted(forward).items()}
    for assign in all_of(backward.node, ast.Assign):
        if len(assign.targets) == 1:
            target, source = assign.targets[0], chain(assign.value) or ""
            unpacks = source.rpartition(".")[2] in ("saved_tensors", "saved_variables")
            pairs = zip(elements(target), kept, strict=False) if unpacks else [(target, known.get(source))]
            known.update({part.id: name for part, name in pairs if isinstance(part, ast.Name) and name is not None})
    return known


def _noted(forward: Function) -> dict[str, str]:
    """The variables that forward makes attributes of its context, by these."""
    context = _context(forward)
    return {
        target.attr: assign.value.id
        for assign in all_of(forward.node, ast.Assign)
        if isinstance(assign.value, ast.Name)
        for target in assign.targets
        if isinstance(target, ast.Attribute) and chain(target.value) == context
    }


def _context(method: Function) -> str:
    """The name of the first parameter of a method, "" where it has none."""
    parameters = method.parameters()
    return parameters[0].arg if parameters else ""


def _class_method(at: Interpreter, receiver: ClassValue, name: str, args: Args) -> Value | None:
    """What applying a Function gives."""
    if name != "apply" or role_of(at, receiver.cls) != surface.AUTOGRAD_FUNCTION:
        return None
    tensors = given_tensors(args, {})
    made = computed(at, tensors) if tensors else foreign_tensor(None)
    backward = method_of(at, receiver.cls, "backward")
    made.custom = backward is not None and "custom_bwd" not in backward.decorator_names()
    _applied(at, receiver.cls, args)
    return made


def register(handlers: Handlers) -> None:
    handlers.class_methods.append(_class_method)
    handlers.file_read.append(custom_functions)
