"""Edits of gradients outside of torch's own steps."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.sites import Site
from .. import active
from ..forwards import compiled_code_count
from ..grad_hooks import HookedGradient, find_hooked_params, hook_codes
from ..gradient_bounds import GradientBounds
from ..graph import has_nonzero, is_number, plain_number, storage_pointer
from ..manual_clips import TRIALS, ManualClips
from ..recording import Recording
from ..source.call_texts import SiteText
from ..source.conditions import enclosing_conditions
from ..source.mentions import mentions_scale, reads_no_size
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method
from .weights import WeightListener


class GradientListener(Listener):
    """A listener for in-place changes of tensors, and for assignments to ``p.grad``."""

    def __init__(self, recording: Recording, weights: WeightListener) -> None:
        super().__init__(recording)
        self._weights = weights
        #: Storage of a gradient to the keys of its optimizers. None: must be computed again.
        self._owners_by_storage: dict[int, tuple[int, ...]] | None = None
        self._manual_clips = ManualClips(recording.registry)
        #: Hooked gradients of the running scaled backward pass; and the number of examined hook changes by location.
        self._hooked_gradients: list[tuple[TrackedOptimizer, HookedGradient]] = []
        self._look_counts: dict[Site, int] = {}
        #: Ids of parameters whose hooks write to their gradient.
        self._writing_param_ids: set[int] = set()
        #: True during a scaled backward pass with post-accumulate hooks of parameters.
        self._has_later_hooks = False
        #: ``id`` of a location in a hook to the location without its callers.
        self._hook_sites: dict[int, Site] = {}
        self._bounds = GradientBounds(self._note_bound)
        #: Locations in the running scaled backward pass that bound a gradient.
        self._bound_sites: dict[Site, None] = {}
        #: True if the program has hooked a tensor that is no leaf since the last backward pass.
        self._has_tensor_hooks = False
        #: True if ``torch.autograd.grad`` has returned scaled gradients since the last step of a scaler.
        self.has_scaled_derivatives = False

    @listener_method
    def record_change(self, tensor: torch.Tensor, effect: str, operand: Any, others: Sequence[Any] = ()) -> None:
        """Record a tensor that is about to change in place, together with ``others``.

        ``effect`` is the op's effect on gradients in the table of ops.
        """
        if self.recording.backward_depth:
            self._record_change_in_hook(tensor, effect, operand)
            return
        weights = map(self._weights.find_weight, (tensor, *others)) if self.regions else ()
        weight = next((each for each in weights if each is not None), None)
        if weight is not None:
            self._weights.note_written([weight])
            return
        if not any(tracked.is_scaled or tracked.is_unscaled for tracked in self.registry.optimizers.values()):
            return
        site = self.sites.current_site()
        for key in self.owners_of(tensor):
            tracked = self.registry.find_by_key(key)
            if tracked is not None:
                self._record_edit(tracked, site, effect, tensor, operand)

    def _record_edit(
        self, tracked: TrackedOptimizer, site: Site, effect: str, grad: torch.Tensor | None = None, operand: Any = None
    ) -> None:
        tracked.edit_site = site
        tracked.gradient_marks = []
        if effect == "zero" or (effect == "fill" and is_number(operand) and not plain_number(operand)):
            tracked.has_zeroed_gradient = True  # a complete clear is detected later
        if effect in ("zero", "homogeneous"):
            return
        if effect not in ("divide", "multiply"):
            tracked.windows.record_replacement()
        names = self._names_of_edit(tracked, site)
        if effect in ("divide", "multiply") and is_number(operand):
            self._record_multiplication(tracked, site, _factor_of(effect, operand), grad, names)
        elif not tracked.is_scaled:
            return
        elif effect == "replace":
            assert grad is not None
            self._record_replacement(tracked, site, grad, operand, names)
        elif effect != "fill" or not _is_scale_free(operand):
            self.recording.emit(e.GradEdit(site, owners=(tracked.tracked_object.key,), names=names))

    @listener_method
    def record_tensor_hook(self, tensor: torch.Tensor) -> None:
        self._has_tensor_hooks |= tensor.grad_fn is not None

    def _note_bound(self) -> None:
        site = self.sites.current_site()
        if not self.recording.query_source(site, mentions_scale):
            self._bound_sites[site] = None

    def begin_backward(self, *, has_own_function: bool) -> None:
        """Watch the effect of hooks and of the program's Functions on gradients in a scaled backward pass."""
        # A mode on the stack would compile code again.
        if (has_own_function or self._has_tensor_hooks) and not compiled_code_count():
            self._bounds.start()
        for tracked in self.registry.optimizers.values():
            for p in find_hooked_params(tracked.sentinels):
                self._hooked_gradients.append((tracked, HookedGradient(p, self._writing_param_ids)))
            self._has_later_hooks |= any(getattr(p, "_post_accumulate_grad_hooks", None) for p in tracked.sentinels)
        if self._has_later_hooks or self._hooked_gradients:
            active.set_watching(self.recording, should_watch=True)

    def end_backward(self, feeds: set[int]) -> None:
        """End a backward pass that has reached some optimizers."""
        self._bounds.stop()
        self._has_tensor_hooks = False
        for site in self._bound_sites:
            trained = (self.registry.find_by_key(key) for key in sorted(feeds))
            names = {**next((self._names_of_edit(each, site) for each in trained if each), {}), "call": SiteText(site)}
            self.recording.emit(e.GradEdit(site, owners=tuple(sorted(feeds)), in_backward=True, names=names))
        self._bound_sites.clear()
        hooked_gradients, self._hooked_gradients, self._has_later_hooks = self._hooked_gradients, [], False
        for tracked, each in hooked_gradients:
            code = getattr(each.first_hook, "__code__", None)
            site = self.sites.current_site() if code is None else self.sites.site_of_definition(code)
            look_count = self._look_counts.get(site, 0)
            if each.finish_pass() and look_count < TRIALS:
                self._look_counts[site] = look_count + 1
                self._record_hook_change(tracked, site, each)

    def _record_hook_change(self, tracked: TrackedOptimizer, site: Site, each: HookedGradient) -> None:
        """Record a scaled gradient that a hook has replaced."""
        assert each.grad_before is not None
        assert each.grad_after is not None
        names = {**self._names_of_edit(tracked, site), "call": "this hook"}
        if _is_edited(each.grad_before, each.grad_after):
            self.recording.emit(e.GradEdit(site, owners=(tracked.tracked_object.key,), names=names))
        else:
            factor = _common_factor(each.grad_before, each.grad_after)
            if factor is not None:
                self._is_clipped(tracked, site, factor, each.grad_before, names)

    def _record_change_in_hook(self, tensor: torch.Tensor, effect: str, operand: Any) -> None:
        """Record an in-place change during a backward pass, possibly by a post-accumulate hook of a parameter."""
        if not self._has_later_hooks:
            return
        for tracked in self.registry.optimizers.values():
            if not any(p._grad is tensor for p in tracked.sentinels):
                continue
            site = self.sites.current_site()
            names = self._names_of_edit(tracked, site)
            if effect == "edit" or (effect == "fill" and not _is_scale_free(operand)):
                self.recording.emit(e.GradEdit(site, owners=(tracked.tracked_object.key,), names=names))
            elif effect in ("divide", "multiply") and is_number(operand):
                self._is_clipped(tracked, site, _factor_of(effect, operand), tensor, names)

    @listener_method
    def record_number_in_hook(self) -> None:
        """Record that code reads a number during a scaled backward pass, possibly from a hook on a parameter."""
        for tracked in self.registry.optimizers.values():
            codes = {code for p in tracked.sentinels for code in hook_codes(p)}
            if not codes or not self._is_running(codes):
                continue
            site = self.sites.current_site()
            if not self.recording.query_source(site, reads_no_size) and not self.recording.query_source(
                site, mentions_scale
            ):
                names = {**self._names_of_edit(tracked, site), "call": "this hook"}
                # The hook and not the backward pass that runs it is to be changed.
                own_site = self._hook_sites.setdefault(
                    id(site), Site(site.path, site.line, site.column, site.end_line, site.end_column, site.function)
                )
                self.recording.emit(e.GradRead(own_site, owners=(tracked.tracked_object.key,), names=names))
            return

    def _is_running(self, codes: set[CodeType]) -> bool:
        """Return True if a function with one of these code objects is on the call stack."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code in codes:
                return True
            frame = frame.f_back
        return False

    def _names_of_edit(self, tracked: TrackedOptimizer, site: Site) -> dict[str, Any]:
        scaler = self.registry.scaler_of(tracked)
        return {
            "call": SiteText(site),
            "optimizer": tracked.name,
            "scaler": "" if scaler is None else scaler.name,
        }

    def _record_multiplication(
        self, tracked: TrackedOptimizer, site: Site, factor: float, grad: torch.Tensor | None, names: dict[str, Any]
    ) -> None:
        """Record a multiplication of gradients: by the inverse scale, by a factor of a clip, or by another number."""
        scale = self.registry.scale_for(tracked).value
        # Unscaled gradients may be divided by the scale of any scaler.
        scales = [scale] if scale != 1.0 else [scaler.scale.value for scaler in self.registry.scalers.values()]
        divides = any(math.isclose(factor * scale, 1.0, rel_tol=1e-3) for scale in scales if scale != 1.0)
        if scale == factor == 1.0 and tracked.is_scaled:
            # A scale that has fallen to 1 divides like any other scale, but only the source code shows the division.
            divides = self.recording.query_source(site, mentions_scale)
        if divides:
            tracked.is_scaled = False
        elif self._is_clipped(tracked, site, factor, grad, names):
            return
        if divides or not tracked.is_unscaled:
            kind = e.GradDivide if divides else e.GradNormalise
            self.recording.emit(kind(site, owners=(tracked.tracked_object.key,), names=names))

    def _is_clipped(
        self, tracked: TrackedOptimizer, site: Site, factor: float, grad: torch.Tensor | None, names: dict[str, Any]
    ) -> bool:
        """Return True if a multiplication of scaled gradients is a manual clip. Report the clip once."""
        scaled = tracked.is_scaled or self.recording.backward_depth
        if not scaled or self.recording.query_source(site, mentions_scale):
            return False
        clips = self._manual_clips.is_clip(tracked, site, factor, grad)
        if clips and not self._manual_clips.mark_reported(tracked, site):
            self.recording.emit(e.Clip(site, owners={tracked.tracked_object.key}, by_hand=True, names=names))
        return clips

    @listener_method
    def record_assignment(self, param: torch.Tensor, value: Any) -> None:
        """Record an assignment to ``param.grad`` that is about to happen."""
        keys = self.registry.owner_keys.get(id(param))
        if not keys or self.recording.backward_depth or value is param.grad:
            return  # ``p.grad *= x`` assigns the tensor that it changed in place
        if not isinstance(value, torch.Tensor | None):
            return  # torch refuses the value
        self.forget_storages()
        site = self.sites.current_site()
        for key in keys:
            tracked = self.registry.find_by_key(key)
            if tracked is not None:
                tracked.edit_site = site
                tracked.gradient_marks = []
                if value is not None:
                    tracked.windows.record_replacement()
                if value is not None and tracked.is_scaled and param.grad is not None:
                    names = {"call": "this assignment", "optimizer": tracked.name}
                    self._record_replacement(tracked, site, param.grad, value, names)

    @listener_method
    def record_data_assignment(self, tensor: torch.Tensor, value: Any) -> None:
        """Record an assignment to ``tensor.data`` that is about to happen."""
        if isinstance(tensor, torch.nn.Parameter) or self.recording.backward_depth:
            return
        if any(tracked.is_scaled for tracked in self.registry.optimizers.values()):
            site = self.sites.current_site()
            for key in self.owners_of(tensor):
                tracked = self.registry.find_by_key(key)
                if tracked is not None and tracked.is_scaled:
                    names = {"call": "this assignment", "optimizer": tracked.name}
                    self._record_replacement(tracked, site, tensor, value, names)
            self.forget_storages()

    def _record_replacement(
        self, tracked: TrackedOptimizer, site: Site, old: torch.Tensor, new: Any, names: dict[str, Any]
    ) -> None:
        """Record the replacement of a scaled gradient by a tensor, or by a number as in ``grad.copy_(0.0)``."""
        key = tracked.tracked_object.key
        scale = self.registry.scale_for(tracked).value
        if not isinstance(new, torch.Tensor):
            self.recording.emit(e.Handoff(site, objects=(key,)))
        elif scale != 1.0 and _is_divided(old, new, scale):
            self.recording.emit(e.GradDivide(site, owners=(key,), names=names))
        # A program that combines scaled gradients itself, such as those of several losses, stores a scaled result.
        elif not self.has_scaled_derivatives and _is_edited(old, new):
            self.recording.emit(e.GradEdit(site, owners=(key,), names=names))
        else:
            factor = _common_factor(old, new)
            if factor is None or not self._is_clipped(tracked, site, factor, old, names):
                self.recording.emit(e.Handoff(site, objects=(key,)))

    def owners_of(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return the optimizers whose parameter has this tensor, or a view of the tensor, as its gradient."""
        storages = self._owners_by_storage
        if storages is None:
            registry = self.registry
            storages = self._owners_by_storage = {
                storage_pointer(p.grad): registry.owner_keys[id(p)]
                for tracked in registry.optimizers.values()
                for p in tracked.params
                if p.grad is not None
            }
        return storages.get(storage_pointer(tensor), ())

    def forget_storages(self) -> None:
        """Drop the cached storages, because parameters may have other gradients now."""
        self._owners_by_storage = None

    def check_gradients(self, tracked: TrackedOptimizer) -> None:
        """Find unseen changes of gradients: clears of single gradients, or edits by code that is not patched."""
        marks = tracked.sentinel_marks()
        edited = tracked.edit_site
        if edited is not None and not any(identity for identity, _ in marks):
            if all(p.grad is None for p in tracked.params):
                self._record_found_clear(tracked, edited)
                tracked.is_scaled = tracked.is_unscaled = False
        elif (
            edited is not None
            and (tracked.is_scaled or tracked.has_zeroed_gradient)
            and not _any_nonzero(tracked.sentinels)
        ):
            if not _any_nonzero(tracked.params):
                self._record_found_clear(tracked, edited)
                tracked.has_zeroed_gradient = False
        elif tracked.gradient_marks and marks != tracked.gradient_marks:
            site = self.sites.current_site()
            if all(p.grad is None for p in tracked.params):
                self._record_found_clear(tracked, site)
            elif any(identity and (identity, version) not in tracked.gradient_marks for identity, version in marks):
                # Gradients that are only gone, as after ``del p.grad``, are no edit.
                self._record_edit(tracked, site, "edit")
        tracked.gradient_marks = marks

    def _record_found_clear(self, tracked: TrackedOptimizer, site: Site) -> None:
        names = {"call": SiteText(site)}
        rescue = self.are_discarded(tracked, site)
        tracked.is_cleared = True
        self.recording.emit(e.ZeroGrad(site, owners=(tracked.tracked_object.key,), rescue=rescue, names=names))

    def note_written_gradients(self, tracked: TrackedOptimizer, site: Site) -> None:
        """Record gradients that the program itself wrote since they were cleared, as no backward ran since."""
        if tracked.is_cleared and _any_nonzero(tracked.params):
            self.recording.emit(e.GradEdit(site, owners=(tracked.tracked_object.key,), names={"call": SiteText(site)}))

    def are_discarded(self, tracked: TrackedOptimizer, site: Site) -> bool:
        """Return True if gradients that are cleared at a location are discarded on purpose.

        In that case the clear depends on a condition that the backward does not depend on.
        """
        backward = tracked.backward
        if backward is None or not (tracked.is_scaled or tracked.is_unscaled):
            return False
        return not self.recording.query_source(site, enclosing_conditions) <= self.recording.query_source(
            backward.site, enclosing_conditions
        )


def _any_nonzero(params: list[torch.Tensor]) -> bool:
    """Return True if the gradient of a parameter has a non-zero value."""
    return any(has_nonzero(p.grad) for p in params)


def _is_scale_free(value: Any) -> bool:
    """Return True if a fill value does not depend on the scale: zero, or a deliberate overflow."""
    return is_number(value) and (plain_number(value) == 0 or not math.isfinite(plain_number(value)))


def _factor_of(effect: str, operand: Any) -> float:
    """Return the factor by which "divide" or "multiply" changes a gradient. A division by 0 leaves no factor: 0."""
    value = plain_number(operand)
    return 1 / value if effect == "divide" and value else value


def _is_divided(old: torch.Tensor, new: torch.Tensor, scale: float) -> bool:
    """Return True if a gradient is another gradient divided by the scale."""
    before, after = float(old.detach().norm()), float(new.detach().norm())
    return math.isfinite(before) and math.isclose(after * scale, before, rel_tol=1e-2)


def _is_edited(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Return True if a gradient differs from another in some values only, as after clamp or nan_to_num."""
    if old.shape != new.shape or old.is_sparse or new.is_sparse:
        return False
    before, after = old.detach(), new.detach()
    if not bool(torch.isfinite(before).all()) and bool(torch.isfinite(after).all()):
        return True
    if _common_factor(old, new) is not None or not bool(before.any()):
        return False  # multiplied by a number, as for an average
    return bool((before.sign() == after.sign()).all())


def _common_factor(old: torch.Tensor, new: torch.Tensor) -> float | None:
    """Return the factor between two gradients, or None if there is no common factor."""
    if old.shape != new.shape or old.is_sparse or new.is_sparse:
        return None
    before, after = old.detach(), new.detach()
    ratio = (after / before)[before != 0]
    if not ratio.numel() or not bool((ratio - ratio[0]).abs().max() <= 1e-3 * ratio[0].abs()):
        return None
    return float(ratio[0])
