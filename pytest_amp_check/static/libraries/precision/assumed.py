"""Parameters of functions whose dtype the caller chooses: assumed to be low-precision tensors."""

from __future__ import annotations

import ast
import re

from ....protocol import torch_api
from ...interpreter.classes import role_of
from ...interpreter.dtypes import LOG_PROBABILITY, POSITIONS, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import Frame
from ...project.float32_logits import has_float32_log_probabilities
from ...project.module import Function
from ...project.relevance import LOSSES_OF_LOGITS
from ...project.syntax import tail_name, walk
from ..losses import FILLS

#: Annotations of tensors of any floating-point dtype.
_FLOATING = frozenset(("Tensor", "FloatTensor"))
#: Names of parameters that are no floating-point tensors.
_OF_INTEGERS = re.compile(
    r"(?:^|_)(?:ids?|idx|ind(?:ex|ices)|masks?|labels?|targets?|len(?:gth)?s?|pos(?:itions?)?|steps?|size|num|n|dim"
    r"|shape|dtype|device|eps|config|cfg|args|kwargs|self|cls|name|key|mode|training|k)$"
)
_OF_POSITIONS = re.compile(r"(?:^|_)pos(?:itions?)?(?:_?ids?)?$")
_LOG_PROBABILITIES = re.compile(r"log_?p(?:rob)?s?(?:_|$)", re.IGNORECASE)


def assume_parameters(interp: Interpreter, frame: Frame, function: Function) -> None:
    """Give the tensors that a function without a caller receives the assumed dtype."""
    if not may_get_low_tensors(interp, function):
        return
    spec = function.node.args
    optional = {parameter.arg for parameter in function.parameters()[len(function.parameters()) - len(spec.defaults) :]}
    for parameter in (*function.parameters(), *spec.kwonlyargs):
        value = frame.vars.get(parameter.arg)
        if value is not None and value.kind == "unknown" and _OF_POSITIONS.search(parameter.arg):
            frame.vars[parameter.arg] = value.with_dtype_info(DtypeInfo("int", frozenset({POSITIONS})))
            continue
        if value is not None and value.kind == "unknown" and _may_be_floating(parameter, optional):
            # A region computes log-probabilities in float32.
            is_low_log = (
                not interp.assumes_region
                and _LOG_PROBABILITIES.search(parameter.arg)
                and (
                    interp.project.assumed_dtype
                    or not has_float32_log_probabilities(interp.project, function.module.path)
                )
            )
            traits = frozenset({LOG_PROBABILITY}) if is_low_log else frozenset[str]()
            frame.vars[parameter.arg] = value.with_dtype_info(DtypeInfo(interp.assumed_dtype, traits))


def may_get_low_tensors(interp: Interpreter, function: Function) -> bool:
    """Return True if a function computes with tensors that it receives: a method of a module, or a torch function."""
    if takes_model(function) and not LOSSES_OF_LOGITS.isdisjoint(function.used_names | function.attributes_used()):
        return not _chooses_dtype(function)
    used = function.attributes_used()
    if "grad" in used and ("norm" in used or "get_total_norm" in used or "vector_norm" in used):
        return not _chooses_dtype(function)
    if function.cls is not None:
        is_forward = role_of(interp, function.cls) == torch_api.MODULE and function.name != "__init__"
        return is_forward and not any(map(_chooses_dtype, function.cls.methods.values()))
    return not _chooses_dtype(function) and (
        any(_is_tensor(parameter.annotation) for parameter in function.parameters())
        or _names_torch(function)
        or not FILLS.isdisjoint(function.attributes_used())
    )


def takes_model(function: Function) -> bool:
    """Return True if a function receives a model: a loop or a loss of training."""
    return any(parameter.arg == "model" for parameter in function.parameters())


def _chooses_dtype(function: Function) -> bool:
    """Return True if a decorator sets the dtype in which a function computes."""
    return not {"custom_fwd", "autocast"}.isdisjoint(function.decorator_names())


def _names_torch(function: Function) -> bool:
    imports = function.module.imports
    names = {node.id for node in function.nodes if isinstance(node, ast.Name)}
    return any(name in imports and imports[name].module.partition(".")[0] == "torch" for name in names)


def _is_tensor(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(tail_name(node) in _FLOATING for node in walk(annotation))


def _may_be_floating(parameter: ast.arg, optional: set[str]) -> bool:
    """Return True if a parameter may be a floating-point tensor, by its annotation or name."""
    if _OF_INTEGERS.search(parameter.arg):
        return False
    return _is_tensor(parameter.annotation) if parameter.annotation is not None else parameter.arg not in optional
