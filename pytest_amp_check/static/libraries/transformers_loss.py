"""Losses of transformers' Trainer: subclasses whose own loss nobody divides by the number of micro-batches."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol.source_text import SourceText
from ..interpreter.classes import lineage_of
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.module import Class, Function
from ..project.syntax import statements_in, tail_name, walk

#: Parameter in which the Trainer passes the number of tokens of the window, since transformers 4.46.
WINDOW_ITEMS = "num_items_in_batch"
#: Names of code that divides the loss, or that makes the Trainer divide it.
_DIVIDING_NAMES = frozenset(
    {"model_accepts_loss_kwargs", "compute_loss_func", "gradient_accumulation_steps", "training_step"}
)


def _report_undivided_losses(interp: Interpreter) -> None:
    """Report the methods of Trainer subclasses that compute a mean of their own."""
    if WINDOW_ITEMS not in interp.module.text:
        return
    for cls in interp.module.classes.values():
        method = cls.methods.get("compute_loss")
        if method is None or not _ignores_window(method) or not _derives_from_trainer(interp, cls):
            continue
        if any(not _DIVIDING_NAMES.isdisjoint(_names_in_class(owner)) for owner in lineage_of(interp, cls)):
            continue
        returned = [node for node in statements_in(method.body) if isinstance(node, ast.Return)]
        last = max(returned, key=lambda node: node.lineno, default=None)
        if last is not None and last.value is not None:
            names: dict[str, object] = {"loss": SourceText(_loss_of(last.value))}
            site = interp.site_of(last)
            interp.detached_events[e.Undivided, site.call_key] = e.Undivided(site, names=names)


def _loss_of(value: ast.expr) -> ast.expr:
    """Return the loss in the returned value, which may be a pair of the loss and the outputs."""
    if isinstance(value, ast.IfExp):
        value = value.orelse
    return value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value


def _ignores_window(method: Function) -> bool:
    """Return True if a method receives the number of tokens of the window, and neither uses nor passes it."""
    if WINDOW_ITEMS not in {parameter.arg for parameter in (*method.parameters(), *method.node.args.kwonlyargs)}:
        return False
    calls_base = any(tail_name(node.func) == "compute_loss" for node in walk(method.node) if isinstance(node, ast.Call))
    return not calls_base and all(node.id != WINDOW_ITEMS for node in walk(method.node) if isinstance(node, ast.Name))


def _derives_from_trainer(interp: Interpreter, cls: Class) -> bool:
    """Return True if a class derives from a Trainer of transformers."""
    bases = (dotted_name(interp, base) for owner in lineage_of(interp, cls) for base in owner.bases)
    return any(base is not None and base.startswith("transformers.") and base.endswith("Trainer") for base in bases)


def _names_in_class(cls: Class) -> set[str]:
    """Return the names of the methods and attributes in a class."""
    return {*cls.methods, *(node.attr for node in walk(cls.node) if isinstance(node, ast.Attribute))}


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_undivided_losses)
