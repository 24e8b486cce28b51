"""The accumulation windows of an optimizer: how many micro-batches each holds, and how many of them are thrown away."""

from __future__ import annotations

from ...protocol.events import Site

#: Windows in a row that throw away the same, which no chance does.
ALIKE = 3
#: Windows from the beginning on that tell whether the first of them is another one.
FIRST = 3


class Windows:
    """What has gone into the window of one optimizer, and how the windows before it were.

    A window that is fed from several places, or whose gradients the program puts together by itself, tells nothing.
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
        #: Whether the first of them was seen from its beginning on.
        self.is_complete = False
        self._first_sizes: list[int] = []
        self._last_pattern: tuple[Site, Site, int] | None = None
        self._alike_count = 0
        self._begin_window()

    def _begin_window(self) -> None:
        self._pass_count = self._lost_count = 0
        self._has_microbatch = self._is_inconclusive = self._is_used = False
        self._backward_site: Site | None = None
        self._clear_site: Site | None = None

    def record_backward(self, site: Site) -> None:
        """A backward pass has added a micro-batch."""
        self._is_inconclusive |= self._backward_site is not None and self._backward_site is not site
        self._backward_site = site
        self._pass_count += 1
        self._has_microbatch = True

    def record_clear(self, site: Site, *, is_discarded: bool) -> None:
        """Gradients are cleared that no step has used; ``given_up`` says that they are lost on purpose."""
        if self._has_microbatch:
            self._is_inconclusive |= (
                is_discarded or self._is_used or (self._clear_site is not None and self._clear_site is not site)
            )
            self._clear_site = site
            self._lost_count += 1
        self._has_microbatch = False

    def record_other_step(self) -> None:
        """Another optimizer has stepped, and may have used what this one was given beside it."""
        self._is_used |= self._has_microbatch

    def record_update(self) -> None:
        """The scale is updated, which ends the turn: what was not stepped then was left out."""
        self._is_used |= self._has_microbatch
        self._is_inconclusive |= self._lost_count > 0

    def record_replacement(self) -> None:
        """The program writes gradients of its own."""
        self._is_inconclusive = True

    def record_empty_clear(self) -> None:
        """Gradients are cleared that a step has used, or none."""
        self._has_microbatch = False

    def end_window(self) -> tuple[Site | None, bool]:
        """The window ends in a step: where its windows throw micro-batches away, and whether the first held but one."""
        backward_site, clear_site, passes, lost_count, has_microbatch = (
            self._backward_site,
            self._clear_site,
            self._pass_count,
            self._lost_count,
            self._has_microbatch,
        )
        is_conclusive = backward_site is not None and not self._is_inconclusive
        self._begin_window()
        # Where all of them are lost, the step has nothing to learn from, which is another mistake; where several are
        # lost at once, a whole window was given up.
        single = has_microbatch and passes == lost_count + 1
        pattern = (
            (backward_site, clear_site, lost_count)
            if is_conclusive and backward_site is not None and clear_site is not None and single
            else None
        )
        self._alike_count = (
            self._alike_count + 1 if pattern is not None and pattern == self._last_pattern else int(pattern is not None)
        )
        self._last_pattern = pattern
        if len(self._first_sizes) < FIRST:
            self._first_sizes.append(passes if is_conclusive and not lost_count else 0)
            first, *others = self._first_sizes
            is_early = self.is_complete and len(others) == FIRST - 1 and first == 1 < others[0] == others[-1]
        else:
            is_early = False
        return (clear_site if self._alike_count == ALIKE else None), is_early
