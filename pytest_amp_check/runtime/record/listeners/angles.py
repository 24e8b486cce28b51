"""Angles, such as those of positions and timesteps, whose low precision makes sine and cosine wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType

import torch

from ....protocol import events as e
from ....protocol.sites import Site
from ..recording import Recording
from ..regions import LOW
from ..source.angles import find_angle_source
from ..source.call_texts import SiteText
from ..sums import can_observe
from .listener import Listener, listener_method

#: Largest number of examined calls at one location.
LOOKS = 4
#: Distance of neighboring angles, in radians, from which on sine and cosine are wrong. Half of it is lost.
COARSE = 0.5


class AngleListener(Listener):
    """A listener for sine and cosine of low-precision tensors."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: ``id`` of a location to the number of examined calls there.
        self._look_counts: dict[int, int] = {}

    @listener_method
    def record_function(self, angles: torch.Tensor) -> None:
        """Record a call of sine or cosine."""
        if self.recording.backward_depth or not angles.numel() or not can_observe(angles):
            return
        site = self.sites.current_site()
        count = self._look_counts.get(id(site), 0)
        if count >= LOOKS:
            return
        self._look_counts[id(site)] = count + 1
        largest = float(angles.detach().abs().amax())
        if not COARSE <= largest * torch.finfo(angles.dtype).eps < float("inf"):
            return
        self._look_counts[id(site)] = LOOKS
        source = find_angle_source(site, _locals_at(site))
        cause, how = (site, "radians") if source is None else (source.site, source.how)
        call = SiteText(site) if source is None else source.text
        names = {"call": call, "dtype": LOW[angles.dtype], "largest": f"{largest:.4g}"}
        self.recording.emit(e.LowPositions(cause, dtype=LOW[angles.dtype], how=how, names=names))

    @listener_method
    def record_range(self, result: torch.Tensor, numbers: Sequence[object]) -> None:
        """Record integers from a start to an end that were made in low precision."""
        whole = [int(number) for number in numbers if isinstance(number, (int, float)) and number == int(number)]
        if self.recording.backward_depth or len(whole) != len(numbers) or not whole:
            return
        *limits, step = whole if len(whole) == 3 else (*whole, 1)
        # From this number on only multiples of two exist.
        if abs(step) == 1 and max(map(abs, limits)) - 1 > 2.0 / torch.finfo(result.dtype).eps:
            site = self.sites.current_site()
            names = {"call": SiteText(site)}
            self.recording.emit(e.LowPositions(site, dtype=LOW[result.dtype], how="index", names=names))


def _locals_at(site: Site) -> Mapping[str, object]:
    """Return the variables of the running function at a location."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == site.path and frame.f_lineno == site.line:
            return frame.f_locals
        frame = frame.f_back
    return {}
