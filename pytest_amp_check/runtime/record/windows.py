"""The accumulation windows of an optimizer: the number of micro-batches, and of lost micro-batches, in each window."""

from __future__ import annotations

from ...protocol.sites import Site

#: Number of consecutive windows with the same loss of micro-batches that cannot be chance.
ALIKE = 3
#: Number of windows at the start that show if the first window differs from the others.
FIRST = 3


class Windows:
    """The state of an optimizer's current window, and the pattern of its previous windows.

    A window with backward passes from several locations, or with gradients that the program assembles itself, is
    inconclusive.
    """

    __slots__ = (
        "_alike_count",
        "_backward_site",
        "_clear_site",
        "_first_sizes",
        "_has_microbatch",
        "_is_inconclusive",
        "_is_used",
        "_last_pattern",
        "_lost_count",
        "_pass_count",
        "is_complete",
    )

    def __init__(self) -> None:
        #: True if the first window was seen from its beginning.
        self.is_complete = False
        self._first_sizes: list[int] = []
        self._last_pattern: tuple[Site | None, Site | None, int] | None = None
        self._alike_count = 0
        self._begin_window()

    def _begin_window(self) -> None:
        self._pass_count = self._lost_count = 0
        self._has_microbatch = self._is_inconclusive = self._is_used = False
        self._backward_site: Site | None = None
        self._clear_site: Site | None = None

    def record_backward(self, site: Site) -> None:
        """Record that a backward pass has added a micro-batch."""
        self._is_inconclusive |= self._backward_site is not None and self._backward_site is not site
        self._backward_site = site
        self._pass_count += 1
        self._has_microbatch = True

    def record_clear(self, site: Site, *, is_discarded: bool) -> None:
        """Record a clearing of unused gradients. ``is_discarded``: the gradients are discarded on purpose."""
        if self._has_microbatch:
            self._is_inconclusive |= (
                is_discarded or self._is_used or (self._clear_site is not None and self._clear_site is not site)
            )
            self._clear_site = site
            self._lost_count += 1
        self._has_microbatch = False

    def record_other_step(self) -> None:
        """Record a step of another optimizer, which may have used gradients of this optimizer, too."""
        self._is_used |= self._has_microbatch

    def record_update(self) -> None:
        """Record an update of the scale, which ends the iteration.

        Gradients without a step were left out on purpose.
        """
        self._is_used |= self._has_microbatch
        self._is_inconclusive |= self._lost_count > 0

    def record_replacement(self) -> None:
        """Record that the program writes gradients of its own."""
        self._is_inconclusive = True

    def record_empty_clear(self) -> None:
        """Record a clearing of gradients that a step has used, or of empty gradients."""
        self._has_microbatch = False

    def end_window(self) -> tuple[Site | None, bool]:
        """End the window with a step. Return the location of the lossy clear, and True if the first window ended early.

        The location is None unless enough consecutive windows lost micro-batches there. The first window is early if it
        held one micro-batch and the following windows held more.
        """
        passes, lost_count, is_conclusive = self._pass_count, self._lost_count, not self._is_inconclusive
        # If all micro-batches are lost, the step has no gradients, which is another mistake. If several are lost at
        # once, a whole window was discarded.
        is_lossy = is_conclusive and self._has_microbatch and 0 < lost_count == passes - 1
        pattern = (self._backward_site, self._clear_site, lost_count) if is_lossy else None
        clear_site = self._clear_site
        self._begin_window()
        self._alike_count = 0 if pattern is None else self._alike_count + 1 if pattern == self._last_pattern else 1
        self._last_pattern = pattern
        is_early = False
        if len(self._first_sizes) < FIRST:
            self._first_sizes.append(passes if is_conclusive and not lost_count else 0)
            is_early = self.is_complete and _is_first_early(self._first_sizes)
        return (clear_site if self._alike_count == ALIKE else None), is_early


def _is_first_early(sizes: list[int]) -> bool:
    """Return True if the first of the windows at the start held one micro-batch, and the next two more."""
    match sizes:
        case [1, second, third]:
            return 1 < second == third
    return False
