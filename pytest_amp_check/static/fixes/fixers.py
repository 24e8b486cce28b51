"""The fixes, by the rules whose findings they put right."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .queries import Fixer

#: Code of a rule -> the module and the function that put a finding of it right. Whether that is safe, the rule says.
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


def fixer(code: str) -> Fixer | None:
    """What puts findings of a rule right. Its module is loaded when there is one."""
    module, _, function = FIXERS.get(code, "").partition(".")
    if not module:
        return None
    found: Fixer = getattr(__import__(f"{__package__}.{module}", fromlist=[function]), function)
    return found
