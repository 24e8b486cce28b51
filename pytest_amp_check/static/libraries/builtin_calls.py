"""Calls of Python's builtins."""

from __future__ import annotations

import ast

from ...protocol import surface
from ..interpreter.classes import BOUND, as_mapping
from ..interpreter.expressions import Enumerated, attribute, element_of, operate
from ..interpreter.identity import identity, structural
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Interpreter
from ..interpreter.tensors import computed
from ..interpreter.truth import truth
from ..interpreter.values import (
    NONE,
    Args,
    Const,
    Instance,
    Keywords,
    Mapping,
    Params,
    Ref,
    Sequence,
    SuperValue,
    Truth,
    Value,
    grads_of,
    merge_into,
    merge_params,
    tensors_of,
)
from ..interpreter.wording import wording
from .checkpoints import first_of
from .gradients import grad_used
from .losses import is_uneven

#: Builtins that give back an iterable over what they are given.
PASS_THROUGH = frozenset("list tuple set sorted reversed iter filter chain next".split())


def builtin(at: Interpreter, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    first = args[0] if args else NONE
    if name == "super":
        frame = at.state.frame
        if frame.cls is not None and frame.receiver is not None:
            return SuperValue(frame.cls, frame.receiver)
        return at.fresh(node, "super()")
    if name in ("range", "enumerate"):
        made = structural(at, "call", tuple(args), name, name)
        made.loops |= at.turning()
        start: Value = args[0] if name == "range" and len(args) > 1 else Const(0)
        made.pieces = _takes_pieces(args) if name == "range" else first.pieces
        if name == "enumerate":
            start = first_of(args[1:], keywords, "start") or Const(0)
            at.of_file(Enumerated)[made.key] = first
        made.iterates = name
        made.first = start.value if isinstance(start, Const) and isinstance(start.value, int) else None
        return made
    if name == "zip":
        place = node.args[0] if isinstance(node, ast.Call) and node.args else ast.Constant(0)
        zipped = Sequence([Sequence([element_of(at, a, place) for a in args])], open=True)
        zipped.pieces = any(a.pieces for a in args)
        return zipped
    if name == "divmod" and len(args) == 2:
        return Sequence([operate(at, "//", args[0], args[1], node), operate(at, "%", args[0], args[1], node)])
    if name == "float" and isinstance(first, Const) and isinstance(first.value, (str, int, float)):
        try:
            return Const(float(first.value))
        except ValueError:
            return at.fresh(node, name)
    if name == "bool":
        return Truth(truth(at, first, "", node))
    if name == "isinstance":
        return _isinstance(at, first, node)
    if name == "getattr" and len(args) >= 2 and isinstance(args[1], Const) and isinstance(args[1].value, str):
        return attribute(at, first, args[1].value, node)
    if name == "hasattr" and _has(args):
        return Const(True)
    if name == "dict":
        made_mapping = Mapping({})
        for value in (*args, Mapping(keywords, open="**" in keywords)):
            merge_into(made_mapping, value)
        return made_mapping
    if name == "vars" and isinstance(first, Instance):
        return as_mapping(at, first)
    if name in ("filter", "map"):
        return args[1] if len(args) > 1 else first
    if name in ("sum", "max", "min"):
        tensors = tensors_of(first)
        if tensors:
            made_sum = computed(at, tensors)
            made_sum.uneven = made_sum.uneven or (name == "sum" and is_uneven(tensors))
            return made_sum
    if name in PASS_THROUGH:
        params = [v for v in args if isinstance(v, Params)]
        if params:
            return merge_params(params)
        if len(args) == 1:
            return first
        if name == "chain":
            return (
                computed(at, [t for v in args for t in tensors_of(v)])
                if any(tensors_of(v) for v in args)
                else at.fresh(node)
            )
    if name in ("float", "int", "str", "len", "print", "format", "repr"):
        for value in args:
            for grad in grads_of(value):
                grad_used(at, grad, node)
        if name == "len":
            return structural(at, "call", tuple(args), wording(node), name)
        return structural(at, "call", tuple(args), name, name)
    return structural(at, "call", tuple(args), wording(node), name)


def _isinstance(at: Interpreter, value: Value, node: ast.AST) -> Value:
    named = dotted_name(at, node.args[1]) if isinstance(node, ast.Call) and len(node.args) == 2 else None
    role = surface.BASES.get(surface.canonical(named)) if named else None
    if isinstance(value, Ref) and value.source is None and role in ("scaler", "optimizer", "module"):
        return Const(value.role == role)
    return Truth(at.ask(("isinstance", identity(at, value), named or id(node)), wording(node), value.loops, node))


def _has(args: Args) -> bool:
    """Whether a thing is known to have an attribute."""
    if len(args) != 2 or not isinstance(args[0], Ref) or not isinstance(args[1], Const):
        return False
    return args[0].source is None and args[1].value in BOUND.get(args[0].role, ())


def _takes_pieces(bounds: list[Value]) -> bool:
    """Whether a range goes forward in steps of more than one, as slices of a batch do."""
    if len(bounds) != 3:
        return False
    step = bounds[2]
    return not isinstance(step, Const) or (isinstance(step.value, int) and step.value > 1)
