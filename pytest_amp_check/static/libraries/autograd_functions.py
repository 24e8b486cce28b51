"""Custom autograd Functions: whether their backward can take the dtypes that autocast gives it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ...protocol import events as e
from ...protocol import surface
from ...protocol.named import NamedTuple
from ...protocol.words import chain
from ..interpreter.classes import method_of, role_of
from ..interpreter.dtypes import is_low
from ..interpreter.imports import dotted_name, globals_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.tensors import computed, foreign_tensor, in_region
from ..interpreter.values import Args, ClassValue, Ref, Value
from ..project.module import Class, Function, Module
from ..project.syntax import walk

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
_FACTORIES = frozenset("rand randn zeros ones empty eye linspace Tensor FloatTensor".split())


class Flaw(NamedTuple):
    """What a Function lacks: which fault that is, and the method to blame.

    ``mixed`` are the inputs of its forward, by position, of which one that is float32 makes backward raise; None where
    nothing about them matters.
    """

    how: str
    method: Function
    mixed: frozenset[int] | None = None


def custom_functions(at: Interpreter) -> None:
    """Tell of the Functions of this file that break by themselves, and of those that its modules give weights."""
    if "Function" not in at.module.identifiers:
        return
    own = [cls for cls in at.module.classes.values() if role_of(at, cls) == surface.AUTOGRAD_FUNCTION]
    flaws = {cls.name: (cls, flaw) for cls in own if (flaw := _flaw(at, cls)) is not None}
    weighed = {name for name, (_, flaw) in flaws.items() if flaw.mixed is not None}
    given = dict(_given_weights(at, weighed)) if weighed and "autocast" in at.module.identifiers else {}
    for name, (cls, flaw) in flaws.items():
        if flaw.mixed is None or flaw.mixed & given.get(name, frozenset()):
            _tell(at, cls, flaw)


def _applied(at: Interpreter, cls: Class, args: Args) -> None:
    """A Function is applied where a region may be open."""
    if not in_region(at) or at.state.no_grad:
        return
    flaw = _flaw(at, cls)
    if flaw is not None and flaw.mixed is not None:
        full = {place for place, value in enumerate(args) if _is_float32(value)}
        if flaw.mixed & full:
            _tell(at, cls, flaw)


def _tell(at: Interpreter, cls: Class, flaw: Flaw) -> None:
    outer, at.state.frame = at.state.frame, globals_of(at, flaw.method.module)
    site = at.site(flaw.method.node)
    at.state.frame = outer
    names = {"function": cls.name}
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
    if fwd and bwd:
        known = len(fwd) == len(bwd) == 1 and "" not in (*fwd, *bwd)
        return Flaw("devices", backward) if known and fwd != bwd else None
    if _speaks_of_dtypes(forward) or _speaks_of_dtypes(backward):
        return None
    mixed = _mixed_inputs(forward, backward)
    return Flaw("forward-alone" if fwd else "undecorated", backward if fwd else forward, mixed) if mixed else None


def _devices(at: Interpreter, method: Function) -> list[str] | None:
    """The device types of ``custom_fwd`` and ``custom_bwd`` on a method, "" for one that is not in view.

    None where a decorator is not known, or makes the inputs float32.
    """
    found: list[str] = []
    for decorator in method.decorators:
        called = decorator if isinstance(decorator, ast.Call) else None
        target = called.func if called is not None else decorator
        named = _named_at(at, method, target)
        last = named.rpartition(".")[2]
        if last in _NEUTRAL:
            continue
        if last not in ("custom_fwd", "custom_bwd"):
            return None
        keywords = {k.arg: k.value for k in called.keywords} if called is not None else {}
        if "cast_inputs" in keywords:
            return None
        device = keywords.get("device_type")
        old = named in ("torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd")
        known = isinstance(device, ast.Constant) and isinstance(device.value, str)
        found.append("cuda" if old else str(device.value).partition(":")[0] if known else "")  # type: ignore[union-attr]
    return found


def _given_weights(at: Interpreter, names: set[str]) -> Iterator[tuple[str, frozenset[int]]]:
    """Functions that methods of modules apply to parameters of the module, with the places of these."""
    for method in at.module.functions.values():
        owner = method.cls
        if owner is None or method.name == "__init__":
            continue
        if any("autocast" in (chain(d) or "") for d in _targets(method.decorators)):
            continue
        for node in walk(method.node):
            called = chain(node.func) if isinstance(node, ast.Call) else None
            name, _, last = (called or "").rpartition(".")
            if last == "apply" and name in names and isinstance(node, ast.Call):
                places = {i for i, arg in enumerate(node.args) if _is_weight(at, arg, method, owner)}
                if places and not _speaks_of_dtypes(method):
                    yield name, frozenset(places)


def _named_at(at: Interpreter, method: Function, node: ast.expr) -> str:
    """The name of torch that an expression in a method stands for, or the text of it."""
    outer, at.state.frame = at.state.frame, globals_of(at, method.module)
    named = dotted_name(at, node)
    at.state.frame = outer
    return surface.canonical(named) if named else chain(node) or ""


def _is_weight(at: Interpreter, argument: ast.expr, method: Function, owner: Class) -> bool:
    """Whether an argument is an attribute to which the class assigns a parameter of float32."""
    parameters = method.parameters()
    if not (isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and parameters):
        return False
    if argument.value.id != parameters[0].arg:
        return False
    values = [value for _, value in owner.assigned.get(argument.attr, ())]
    return bool(values) and all(_is_parameter(at, value, method) for value in values)


def _is_parameter(at: Interpreter, value: ast.expr, method: Function) -> bool:
    """Whether an expression makes a parameter of float32."""
    if not isinstance(value, ast.Call) or not _named_at(at, method, value.func).endswith("Parameter"):
        return False
    made = {_named_at(at, method, n.func).rpartition(".")[2] for n in walk(value) if isinstance(n, ast.Call)}
    return bool(made & _FACTORIES) and not any(_speaks_of_dtype(node) for node in walk(value))


def _is_float32(value: Value) -> bool:
    """Whether a value is known to be a tensor of float32."""
    if isinstance(value, Ref):
        return bool(value.thing.facts.get("parameter"))
    return value.full


def _targets(decorators: Iterable[ast.expr]) -> Iterator[ast.expr]:
    for decorator in decorators:
        yield decorator.func if isinstance(decorator, ast.Call) else decorator


def _word(node: ast.AST) -> str | None:
    """The last part of a name, or the name of an argument."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return node.arg if isinstance(node, ast.keyword) else None


def _speaks_of_dtypes(method: Function) -> bool:
    body = method.node.body
    return isinstance(body, list) and any(_speaks_of_dtype(node) for part in body for node in walk(part))


def _speaks_of_dtype(node: ast.AST) -> bool:
    """Whether a name is one by which code speaks of dtypes; ``float(2)`` is a number."""
    return _word(node) in _DTYPES and not (isinstance(node, ast.Name) and node.id in _BUILTIN)


def _mixed_inputs(forward: Function, backward: Function) -> frozenset[int]:
    """The inputs of forward that backward multiplies, as they came, with the gradient of a low-precision output."""
    inputs = [parameter.arg for parameter in forward.parameters()[1:]]
    gradients = {parameter.arg for parameter in backward.parameters()[1:]}
    if not any(is_low_op(node, forward.module) for node in walk(forward.node)):
        return frozenset()
    reassigned = {n.id for n in walk(forward.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    saved = {
        name: inputs.index(source)
        for name, source in _saved(forward, backward).items()
        if source in inputs and source not in reassigned
    }
    found: set[int] = set()
    for node in walk(backward.node):
        sides = [{chain(part) for part in walk(side)} for side in _operands(node, backward.module)]
        for side in sides:
            if side & gradients:
                found.update(saved[n] for other in sides if not other & gradients for n in other if n in saved)
    return frozenset(found)


def is_low_op(node: ast.AST, module: Module) -> bool:
    """Whether an expression is an op that autocast runs in the low-precision dtype."""
    return bool(_operands(node, module))


def _operands(node: ast.AST, module: Module) -> list[ast.expr]:
    """The operands of an op that autocast runs in the low-precision dtype."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return [node.left, node.right]
    word = _word(node.func) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and any(map(is_low, (word or "", *module.aliases.get(word or "", ())))):
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*receiver, *node.args]
    return []


def _saved(forward: Function, backward: Function) -> dict[str, str]:
    """What backward knows the variables of forward by."""
    kept: list[str] = []
    names: dict[str, str] = {}
    context = forward.parameters()[0].arg if forward.parameters() else ""
    for node in walk(forward.node):
        if isinstance(node, ast.Call) and _word(node.func) == "save_for_backward":
            kept = [chain(argument) or "" for argument in node.args]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and chain(target.value) == context:
                    names[target.attr] = node.value.id
    mine = backward.parameters()[0].arg if backward.parameters() else ""
    known = {f"{mine}.{attribute}": source for attribute, source in names.items()}
    for node in walk(backward.node):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, source = node.targets[0], chain(node.value) or ""
        if source.rpartition(".")[2] in ("saved_tensors", "saved_variables"):
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
            for part, name in zip(parts, kept, strict=False):
                if isinstance(part, ast.Name):
                    known[part.id] = name
        elif isinstance(target, ast.Name) and source in known:
            known[target.id] = known[source]
    return known


def _class_method(at: Interpreter, receiver: ClassValue, name: str, args: Args) -> Value | None:
    """What applying a Function gives."""
    if name != "apply" or role_of(at, receiver.cls) != surface.AUTOGRAD_FUNCTION:
        return None
    tensors = [t for value in args for t in value.tensors()]
    made = computed(at, tensors) if tensors else foreign_tensor(None)
    backward = method_of(at, receiver.cls, "backward")
    made.custom = backward is not None and "custom_bwd" not in backward.decorator_names()
    _applied(at, receiver.cls, args)
    return made


def register(handlers: Handlers) -> None:
    handlers.class_methods.append(_class_method)
    handlers.file_read.append(custom_functions)
