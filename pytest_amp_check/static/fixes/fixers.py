"""Fix functions, by the rules of the corrected findings."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...protocol.finding import Finding
    from ..project.project_context import Version
    from .layout import ProgramLayout
    from .queries import Fixer

    #: Function that returns the oldest torch version with the names in a fix.
    Needed = Callable[[ProgramLayout, Finding], Version]

#: Rule code -> module and function of the fix. The rule declares the safety of the fix.
FIXERS = {
    "AMP102": "regions.construct_again",
    "AMP103": "regions.leave_region",
    "AMP105": "regions.enter_region",
    "AMP106": "regions.correct_arguments",
    "AMP201": "clipping.unscale_before_clip",
    "AMP203": "steps.scale_loss",
    "AMP204": "steps.step_by_scaler",
    "AMP206": "steps.update_after_step",
    "AMP207": "steps.update_after_all",
    "AMP208": "scalers.construct_before_loop",
    "AMP212": "clipping.unscale_the_others",
    "AMP213": "clipping.drop_error",
    "AMP216": "scalers.name_arguments",
    "AMP301": "accumulation.divide_loss",
    "AMP303": "accumulation.move_to_step",
    "AMP304": "accumulation.end_window",
    "AMP401": "checkpoints.save_scaler",
    "AMP506": "formulas.smallest_of_dtype",
    "AMP507": "formulas.stable_logarithm",
    "AMP605": "regions.region_without_cache",
    "AMP901": "deprecations.replace_deprecated",
    "AMP902": "comments.remove_suppression",
}
#: Rule code -> function for the required torch version, if newer than the project's version.
NEEDS = {"AMP901": "deprecations.find_required_version"}


def find_fixer(code: str) -> Fixer | None:
    """Return the fix function of a rule, or None. The module is loaded on demand."""
    found: Fixer | None = _load_function(FIXERS.get(code, ""))
    return found


def find_version_check(code: str) -> Needed | None:
    """Return the function for the required torch version of a rule's fix, or None."""
    found: Needed | None = _load_function(NEEDS.get(code, ""))
    return found


def _load_function(name: str) -> Any:
    module, _, function = name.partition(".")
    return getattr(__import__(f"{__package__}.{module}", fromlist=[function]), function) if module else None
