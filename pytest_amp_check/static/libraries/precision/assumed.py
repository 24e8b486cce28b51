"""Parameters of functions whose dtype the caller chooses: assumed to be low-precision tensors."""

from __future__ import annotations

import ast
import re

from ....protocol import torch_api
from ...interpreter.classes.lineage import base_value, lineage_of, role_of
from ...interpreter.dtypes import FLOAT32_ANGLES, LOG_PROBABILITY, POSITIONS, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import ExternalName, Frame
from ...project.float32_logits import has_float32_log_probabilities
from ...project.module import Class, Function
from ...project.region_entry import disables_autocast
from ...project.relevance import LOSSES_OF_LOGITS
from ...project.syntax import tail_name, walk
from ..fills import FILLS
from ..lightning import STEPS
from ..syntax_queries import callee_of

#: Annotations of tensors of any floating-point dtype.
_FLOATING = frozenset(("Tensor", "FloatTensor", "Float"))
#: Names of tensors of integers.
_INTEGER_TENSORS = re.compile(r"(?:^|_)(?:ids?|idx|ind(?:ex|ices)|masks?|labels?|targets?|pos(?:itions?)?)$")
#: Names of other parameters that are no floating-point tensors.
_OF_INTEGERS = re.compile(
    r"(?:^|_)(?:len(?:gth)?s?|steps?|size|num|n|dim|shape|dtype|device|eps|config|cfg|args|kwargs"
    r"|self|cls|name|key|mode|training|k)$"
)
#: Names of queries and values. ``k`` beside them holds keys.
_BESIDE_KEYS = frozenset("qv")
#: Methods of complex tensors.
_COMPLEX = frozenset(("conj", "is_complex"))
#: Functions that make complex numbers of real ones.
_MAKING_COMPLEX = frozenset(("rfft", "rfft2", "rfftn", "stft", "view_as_complex"))
#: Attributes and methods of tensors and modules that other objects seldom have.
_OF_TENSORS = frozenset(("dtype", "state_dict", "detach"))
#: Methods that only tensors have, beside those that fill.
_METHODS_OF_TENSORS = frozenset("amax amin contiguous log_softmax permute rsqrt softmax type_as unsqueeze".split())
_OF_POSITIONS = re.compile(r"(?:^|_)pos(?:itions?)?(?:_?ids?)?$")
_ANGLES = re.compile(r"(?:^|_)(?:freqs?|angles?|theta)$")
_LOG_PROBABILITIES = re.compile(r"log_?p(?:rob)?s?(?:_|$)", re.IGNORECASE)


def names_integers(name: str) -> bool:
    """Return True for a name that tensors of integers have: indexes, labels and positions."""
    return _INTEGER_TENSORS.search(name) is not None


def names_log_probabilities(name: str) -> bool:
    return _LOG_PROBABILITIES.search(name) is not None


def assume_parameters(interp: Interpreter, frame: Frame, function: Function) -> None:
    """Give the tensors that a function without a caller receives the assumed dtype."""
    if not may_get_low_tensors(interp, function):
        return
    spec = function.node.args
    optional = {parameter.arg for parameter in function.parameters()[len(function.parameters()) - len(spec.defaults) :]}
    for parameter in (*function.parameters(), *spec.kwonlyargs):
        value = frame.vars.get(parameter.arg)
        if value is not None and value.kind == "unknown":
            info = _assumed_info(interp, function, parameter, optional)
            if info is not None:
                frame.vars[parameter.arg] = value.with_dtype_info(info)


def _assumed_info(interp: Interpreter, function: Function, parameter: ast.arg, optional: set[str]) -> DtypeInfo | None:
    """Return the dtype info to assume of a parameter, or None if nothing is assumed."""
    if _OF_POSITIONS.search(parameter.arg):
        return DtypeInfo("int", frozenset({POSITIONS}))
    if _ANGLES.search(parameter.arg) and _disables_autocast(function):
        # The region is disabled for the sake of the angles, which come in float32.
        return DtypeInfo("float32", frozenset({FLOAT32_ANGLES}))
    is_floating = _may_be_floating(function, parameter, optional)
    if is_floating and _is_other(interp, function):
        # Classes of other kinds receive more than tensors, and dictionaries of data.
        is_floating = parameter.annotation is not None and tail_name(parameter.annotation) in _FLOATING
    if not (is_floating or _is_shown_as_tensor(function, parameter.arg)):
        return None
    # A region computes log-probabilities in float32.
    is_low_log = (
        not interp.assumes_region
        and names_log_probabilities(parameter.arg)
        and (interp.project.assumed_dtype or not has_float32_log_probabilities(interp.project, function.module.path))
    )
    return DtypeInfo(interp.assumed_dtype, frozenset({LOG_PROBABILITY}) if is_low_log else frozenset[str]())


def _is_other(interp: Interpreter, function: Function) -> bool:
    """Return True for a method of a class that is neither a module nor a custom autograd function."""
    return function.cls is not None and not (
        _is_module_method(interp, function, function.cls) or _is_custom_forward(interp, function)
    )


def may_get_low_tensors(interp: Interpreter, function: Function) -> bool:
    """Return True if a function computes with tensors that it receives: a method of a module, or a torch function."""
    if _takes_array(function):
        return False
    if takes_model(function) and not LOSSES_OF_LOGITS.isdisjoint(function.used_names | function.attributes_used()):
        return not _chooses_dtype(function)
    used = function.attributes_used()
    if "grad" in used and ("norm" in used or "get_total_norm" in used or "vector_norm" in used):
        return not _chooses_dtype(function)
    if {"decode", "numpy"} <= used:
        return True  # NumPy gets what a model has decoded.
    if function.cls is not None:
        gets_inputs = _is_module_method(interp, function, function.cls) or _is_custom_forward(interp, function)
        if not gets_inputs and _is_other_method(interp, function, function.cls):
            return not (_chooses_dtype(function) or _is_of_complex_numbers(function))
        return gets_inputs and not any(
            _chooses_dtype(each) or _is_of_complex_numbers(each) for each in function.cls.methods.values()
        )
    return not (_chooses_dtype(function) or _is_of_complex_numbers(function)) and (
        any(_is_tensor(parameter.annotation) for parameter in function.parameters())
        or _names_torch(function)
        or not used.isdisjoint(FILLS | _METHODS_OF_TENSORS)
        or any(keyword.arg == "keepdim" for keyword in function.find_nodes(ast.keyword))
        or (bool(interp.project.assumed_dtype) and not _OF_TENSORS.isdisjoint(used))
    )


def _is_module_method(interp: Interpreter, function: Function, cls: Class) -> bool:
    """Return True for a method of a module. A class of another package with such a method is a module, too."""
    role = role_of(interp, cls)
    if role is not None or (function.name != "forward" and function.name not in STEPS):
        return role == torch_api.MODULE and not _runs_in_constructor(function, cls)
    bases = (base_value(interp, owner, base) for owner in lineage_of(interp, cls) for base in owner.bases)
    return any(isinstance(base, ExternalName) for base in bases) and "staticmethod" not in function.decorator_names()


def _is_other_method(interp: Interpreter, function: Function, cls: Class) -> bool:
    """Return True for a method that computes with tensors in a class that is no module: of a pipeline, say.

    Only the option says that the tensors are low.
    """
    return (
        bool(interp.project.assumed_dtype)
        and role_of(interp, cls) not in (torch_api.MODULE, torch_api.AUTOGRAD_FUNCTION)
        and function.name != "__init__"
        and "__getitem__" not in cls.methods  # a data set, which makes float32
        and (_names_torch(function) or not _OF_TENSORS.isdisjoint(function.attributes_used()))
    )


def _is_custom_forward(interp: Interpreter, function: Function) -> bool:
    """Return True for the forward of a custom autograd function, which runs in the region of its caller."""
    return (
        function.cls is not None
        and function.name == "forward"
        and role_of(interp, function.cls) == torch_api.AUTOGRAD_FUNCTION
    )


def _runs_in_constructor(function: Function, cls: Class) -> bool:
    """Return True for the constructor, and for a private method that only the constructor of its class calls.

    The cast of a model comes after the constructor.
    """
    if function.name == "__init__":
        return True
    init = cls.methods.get("__init__")
    if not function.name.startswith("_") or init is None:
        return False
    uses = [node for node in function.module.nodes if tail_name(node) == function.name]
    inside = set(map(id, init.nodes))
    return bool(uses) and all(id(node) in inside for node in uses)


def _takes_array(function: Function) -> bool:
    """Return True if a function receives NumPy arrays, as metrics do: tensors have no method ``astype``."""
    names = {parameter.arg for parameter in function.parameters()}
    calls = function.find_nodes(ast.Call) if "astype" in function.attributes_used() else []
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "astype"
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in names
        for call in calls
    )


def takes_model(function: Function) -> bool:
    """Return True if a function receives a model: a loop or a loss of training."""
    return any(parameter.arg == "model" for parameter in function.parameters())


def _chooses_dtype(function: Function) -> bool:
    """Return True if a decorator sets the dtype in which a function computes.

    A disabled region casts nothing.
    """
    names = set(function.decorator_names())
    return "custom_fwd" in names or ("autocast" in names and not _disables_autocast(function))


def _is_of_complex_numbers(function: Function) -> bool:
    """Return True if a function conjugates numbers that it does not make of real ones.

    Few ops have kernels for complex numbers of two halves.
    """
    used = function.attributes_used()
    return not _COMPLEX.isdisjoint(used) and _MAKING_COMPLEX.isdisjoint(used)


def _disables_autocast(function: Function) -> bool:
    """Return True if the regions of all decorators of a function are disabled."""
    regions = [each for each in function.decorators if "autocast" in tail_name(callee_of(each) or each)]
    return bool(regions) and all(map(disables_autocast, regions))


def _names_torch(function: Function) -> bool:
    imports = function.module.imports
    names = {node.id for node in function.nodes if isinstance(node, ast.Name)}
    return any(name in imports and imports[name].module.partition(".")[0] == "torch" for name in names)


def _is_tensor(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(tail_name(node) in _FLOATING for node in walk(annotation))


def _is_shown_as_tensor(function: Function, name: str) -> bool:
    """Return True if a function tests whether a parameter is a tensor, or detaches it: ``isinstance(x, Tensor)``."""
    detached = (node.value for node in function.find_nodes(ast.Attribute) if node.attr == "detach")
    if any(isinstance(node, ast.Name) and node.id == name for node in detached):
        return True
    for call in function.find_nodes(ast.Call):
        if tail_name(call.func) in ("isinstance", "is_tensor") and call.args and tail_name(call.args[0]) == name:
            return tail_name(call.func) == "is_tensor" or any(map(_is_tensor, call.args[1:]))
    return False


def _may_be_floating(function: Function, parameter: ast.arg, optional: set[str]) -> bool:
    """Return True if a parameter may be a floating-point tensor, by its annotation or name."""
    is_key = parameter.arg == "k" and not _BESIDE_KEYS.isdisjoint(each.arg for each in function.parameters())
    if (_OF_INTEGERS.search(parameter.arg) or names_integers(parameter.arg)) and not is_key:
        return False
    return _is_tensor(parameter.annotation) if parameter.annotation is not None else parameter.arg not in optional
