"""Losses of transformers' Trainer: subclasses whose own loss nobody divides by the number of micro-batches."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.frameworks import TRAINER_ARGUMENTS
from ...protocol.sites import Site
from ...protocol.source_text import SourceText
from ..interpreter.classes.lineage import base_value, lineage_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.values.definitions import ExternalName
from ..project.assignments import assigned_pairs
from ..project.module import Class, Function
from ..project.syntax import statements_in, tail_name, walk
from .syntax_queries import callee_of, constant_of_node, keywords_of, last_name

#: Parameter in which the Trainer passes the number of tokens of the window, since transformers 4.46.
WINDOW_ITEMS = "num_items_in_batch"
#: The number of micro-batches of the window, and the attribute by which a class makes the Trainer divide.
_STEPS, _DIVIDES = "gradient_accumulation_steps", "model_accepts_loss_kwargs"
#: Trainers of trl that leave the division to the model, as their base class does. The others make the Trainer divide.
_TRL_TRAINERS = frozenset(("SFTTrainer", "GKDTrainer", "PRMTrainer"))
#: The loss function that a user may pass to the Trainer.
_LOSS_FUNCTION = "compute_loss_func"


def _report_undivided_losses(interp: Interpreter) -> None:
    """Report the methods of Trainer subclasses that compute a mean of their own."""
    for cls in interp.module.classes.values():
        method = cls.methods.get("compute_loss")
        if method is None or not _ignores_window(method) or not _derives_from_trainer(interp, cls):
            continue
        if _may_divide(method, lineage_of(interp, cls)) or _has_windows_of_one(interp, cls):
            continue
        returned = [node for node in statements_in(method.body) if isinstance(node, ast.Return)]
        last = max(returned, key=lambda node: node.lineno, default=None)
        if last is not None and last.value is not None:
            names: dict[str, object] = {"loss": SourceText(_loss_of(last.value))}
            # The loss may be computed anywhere in the method, or in another one: the signature is where all begins.
            site = interp.site_of(method.node)
            edits = (_find_constructor(interp, cls),)
            interp.detached_events[e.Undivided, site.call_key] = e.Undivided(site, names=names, edits=edits)


def _find_constructor(interp: Interpreter, cls: Class) -> tuple[Site, str]:
    """Return where a class sets an attribute after its base class has set the attribute, with what to write there."""
    assignment = f"self.{_DIVIDES} = False"
    own = cls.methods.get("__init__")
    if own is None:
        body = f"super().__init__(*args, **kwargs); {assignment}"
        return interp.site_of(cls.node), f"add to this class: `def __init__(self, *args, **kwargs): {body}`"
    calls = [node for node in own.nodes if isinstance(node, ast.Call) and last_name(node.func) == "__init__"]
    if calls:
        return interp.site_of(calls[0]), f"write `{assignment}` after this call"
    return interp.site_of(own.node), f"write `{assignment}` at the end of this function"


def _may_divide(method: Function, lineage: list[Class]) -> bool:
    """Return True if a class divides its loss, or makes the Trainer divide it."""
    own = [each for owner in lineage for each in owner.methods.values()]
    if any(_DIVIDES in each.attributes_used() for each in own) or _LOSS_FUNCTION in method.attributes_used():
        return True
    if any(each.name == "training_step" and not _calls_inherited(each) for each in own):
        return True
    counts = _names_computed_from_steps(own)
    return any(_scales_by(node, counts) for part in _parts_of_loss(method) for node in walk(part))


def _has_windows_of_one(interp: Interpreter, cls: Class) -> bool:
    """Return True if the file itself creates the trainers, all of them with windows of one micro-batch."""
    calls = interp.module.find_nodes(ast.Call)
    created = [call for call in calls if last_name(call.func) == cls.name]
    if not created:
        return False
    pairs = [pair for node in interp.module.nodes for pair in assigned_pairs(node)]
    for call in created:
        settings = keywords_of(call).get("args") or (call.args[1] if len(call.args) > 1 else None)
        if isinstance(settings, ast.Name):
            assigned = [value for target, value in pairs if last_name(target) == settings.id]
            settings = assigned[0] if len(assigned) == 1 else None
        # A subclass of the arguments may have another default.
        if settings is None or last_name(callee_of(settings)) not in TRAINER_ARGUMENTS:
            return False
        keywords = keywords_of(settings)
        if None in keywords:
            return False
        if _STEPS in keywords and constant_of_node(keywords[_STEPS]) != 1:
            return False
    return True


def _parts_of_loss(method: Function) -> list[ast.AST]:
    """Return the code from which a method computes what it returns: expressions, and augmented assignments."""
    nodes = list(statements_in(method.body))
    pairs: list[tuple[str, ast.AST]] = [
        (tail_name(target), value) for node in nodes for target, value in assigned_pairs(node)
    ]
    pairs += [(tail_name(node.target), node) for node in nodes if isinstance(node, ast.AugAssign)]
    found: list[ast.AST] = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    names: set[str] = set()
    for part in found:
        new = {tail_name(each) for each in walk(part) if isinstance(each, (ast.Name, ast.Attribute))} - names
        names |= new
        found += [value for name, value in pairs if name in new]
    return found


def _calls_inherited(method: Function) -> bool:
    """Return True if a method runs the method of the base class, which also runs backward."""
    calls = [node.func for node in method.nodes if isinstance(node, ast.Call)]
    return any(
        isinstance(func, ast.Attribute) and func.attr == method.name and isinstance(func.value, ast.Call)
        for func in calls
    )


def _names_computed_from_steps(methods: list[Function]) -> set[str]:
    """Return the names and attributes that methods compute from the number of micro-batches by arithmetic alone."""
    pairs = [pair for each in methods for node in statements_in(each.body) for pair in assigned_pairs(node)]
    numbers = [(tail_name(target), value) for target, value in pairs if _is_arithmetic(value)]
    found, size = {_STEPS}, 0
    while len(found) > size:
        size = len(found)
        found.update(name for name, value in numbers if name and _mentions(value, found))
    return found


def _is_arithmetic(node: ast.expr) -> bool:
    """Return True for an expression of numbers: names, attributes, operators, and calls such as ``max(1, n)``."""
    if isinstance(node, ast.Call):
        return tail_name(node.func) in ("max", "min", "int", "float") and all(map(_is_arithmetic, node.args))
    if isinstance(node, ast.BinOp):
        return _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, (ast.Name, ast.Attribute, ast.Constant))


def _scales_by(node: ast.AST, counts: set[str]) -> bool:
    """Return True if code divides or multiplies another value by one of the counts."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, (ast.Div, ast.Mult)) and _mentions(node.value, counts)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.Mult)):
        return False
    left, right = _mentions(node.left, counts), _mentions(node.right, counts)
    return left != right and not isinstance(node.left if right else node.right, ast.Constant)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(tail_name(each) in names for each in walk(node) if isinstance(each, (ast.Name, ast.Attribute)))


def _loss_of(value: ast.expr) -> ast.expr:
    """Return the loss in the returned value, which may be a pair of the loss and the outputs."""
    if isinstance(value, ast.IfExp):
        value = value.orelse
    return value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value


def _ignores_window(method: Function) -> bool:
    """Return True if a method receives the number of tokens of the window, and neither uses nor passes it.

    The Trainer passes the number by name, so ``**kwargs`` may receive it.
    """
    given = method.node.args
    names = {parameter.arg for parameter in (*method.parameters(), *given.kwonlyargs)}
    received = WINDOW_ITEMS if WINDOW_ITEMS in names else given.kwarg.arg if given.kwarg is not None else ""
    if not received:
        return False
    calls_base = any(tail_name(node.func) == "compute_loss" for node in method.nodes if isinstance(node, ast.Call))
    return not calls_base and all(node.id != received for node in method.nodes if isinstance(node, ast.Name))


def _derives_from_trainer(interp: Interpreter, cls: Class) -> bool:
    """Return True if a class derives from a Trainer of transformers, or from one of trl that divides no loss either."""
    bases = (base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases)
    names = (base.name for base in bases if isinstance(base, ExternalName))
    return any(
        (name.startswith("transformers.") and name.endswith("Trainer"))
        or (name.startswith("trl.") and name.rpartition(".")[2] in _TRL_TRAINERS)
        for name in names
    )


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_undivided_losses)
