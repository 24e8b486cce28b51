"""Trained parameters that a module computes from the weights of a layer that it receives."""

from __future__ import annotations

import ast
import re

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.source_text import SourceText, access_text, names_optimizer
from ...interpreter.classes.lineage import role_of
from ...interpreter.dtypes import NO_DTYPE_INFO, STORED, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.objects import StateDict
from ...project.module import Function
from ..checkpoints import names_scaling
from ..syntax_queries import callee_of, constant_of_node, keywords_of, last_name, receiver_of
from .events import emit_once

#: Parameters of the layers of torch.
_WEIGHTS = frozenset(("weight", "bias"))
#: Kinds of values that may be a model, and names of what is none.
_MODELS = frozenset(("unknown", "module", "module instance"))
_SCHEDULES = re.compile("sched", re.IGNORECASE)


def makes_parameters(interp: Interpreter, function: Function) -> bool:
    """Return True for a constructor of a module that makes parameters and names the weights of a layer.

    Only the option says in which dtype the layer stores them.
    """
    return (
        bool(interp.project.assumed_dtype)
        and function.name == "__init__"
        and function.cls is not None
        and not _WEIGHTS.isdisjoint(function.attributes_used())
        and "Parameter" in function.module.identifiers
        and role_of(interp, function.cls) == torch_api.MODULE
    )


def find_weight_info(interp: Interpreter, node: ast.Attribute) -> DtypeInfo:
    """Return the dtype info of a weight of a layer that a constructor receives, in the assumed dtype."""
    function = interp.state.frame.function
    if node.attr not in _WEIGHTS or not interp.assumed_dtype or interp.assumes_region or function is None:
        return NO_DTYPE_INFO
    root: ast.expr = node.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    is_given = isinstance(root, ast.Name) and root.id in {each.arg for each in function.parameters()[1:]}
    if not is_given or not makes_parameters(interp, function):
        return NO_DTYPE_INFO
    return DtypeInfo(interp.assumed_dtype, frozenset({STORED}))


def is_assumed_parameter(interp: Interpreter, node: ast.expr | None) -> bool:
    """Return True for an attribute of ``self`` that only holds parameters, where all weights have the assumed dtype."""
    cls = interp.state.frame.cls
    if not interp.assumed_dtype or interp.assumes_region or cls is None:
        return False
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            assigned = cls.assignments.get(name, ())
            return bool(assigned) and all(last_name(callee_of(value)) == "Parameter" for _, value in assigned)
    return False


def holds_weights(interp: Interpreter, node: ast.expr | None) -> bool:
    """Return True for the state of a model, whose weights the option says to be in the assumed dtype."""
    value = None if node is None else interp.expression_values.get(node)
    if not isinstance(value, StateDict) or not interp.project.assumed_dtype or interp.assumes_region:
        return False
    owner = access_text(receiver_of(value.node) or value.node)
    is_other = names_optimizer(owner) or names_scaling(owner) or _SCHEDULES.search(owner) is not None
    return value.owner.kind in _MODELS and not is_other


def check_new_parameter(interp: Interpreter, infos: list[DtypeInfo], node: ast.Call) -> None:
    """Report a trained parameter that is computed from the weights of a layer in the assumed dtype.

    A copy of the weights replaces them, so it has their dtype for the same reasons.
    """
    trains = keywords_of(node).get("requires_grad", node.args[1] if len(node.args) > 1 else None)
    function = interp.state.frame.function
    if function is None or not makes_parameters(interp, function) or (trains and constant_of_node(trains) is not True):
        return
    if infos and infos[0].is_low and STORED not in infos[0].traits:
        emit_once(interp, e.LowParameter, node, infos[0], names={"call": SourceText(node)})
