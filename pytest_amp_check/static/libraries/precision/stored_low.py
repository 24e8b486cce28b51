"""Outputs of models whose weights are stored in low precision, or that a sharding policy makes compute in it."""

from __future__ import annotations

from collections.abc import Callable

from ...interpreter.dtypes import GUESSED_LOW, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.definitions import Instance
from ...interpreter.values.value import UnknownValue, Value
from ..arguments import tracked_object_of
from ..low_parameters import LowModules
from ..overhead import RepeatedCosts
from .dtype_info import HALF_DTYPES, autocast_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....protocol.tracked_objects import TrackedObject

#: Names by which the code of a module chooses the dtype of what it returns.
_CHOOSES = frozenset(("float", "double", "float32", "float64", "to", "type", "type_as", "autocast"))


def find_output_info(interp: Interpreter, evaluate_callee: Callable[[], Value | None]) -> DtypeInfo | None:
    """Return the dtype info of what a model returns where no region is active, or None if it is not known to be low."""
    if not interp.file_data(LowModules) or autocast_state(interp).mode not in ("out", "off"):
        return None
    callee = evaluate_callee()
    module = _find_module(interp, callee)
    if module is None or module.role != "module" or module.attributes.dtypes.prepared:
        return None
    # A part has the dtype of the module around it that is running.
    around = interp.graph_data(RepeatedCosts).casting_modules
    held = (each.attributes.dtypes for each in (module, *reversed(around)))
    dtype = next((dtypes.computes_in or dtypes.low for dtypes in held if dtypes.computes_in or dtypes.low), "")
    if dtype not in HALF_DTYPES or (isinstance(callee, Instance) and _chooses_dtype(interp, callee)):
        return None
    return DtypeInfo(dtype, frozenset({GUESSED_LOW}))


def _find_module(interp: Interpreter, callee: Value | None) -> TrackedObject | None:
    """Return the tracked module of a callee. A model of an unknown class is recognized by its construction."""
    if isinstance(callee, UnknownValue):
        return interp.tracked_objects.get(("used", callee.key))
    return tracked_object_of(callee)


def _chooses_dtype(interp: Interpreter, module: Instance) -> bool:
    """Return True if the code of a module of the project may choose the dtype of its output."""
    methods = [each for owner in module.lineage for each in owner.methods.values()]
    return any(not _CHOOSES.isdisjoint(each.attributes_used() | each.used_names) for each in methods)
