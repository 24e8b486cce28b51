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
        "_alike",
        "_before",
        "_cleared",
        "_fed",
        "_lost",
        "_mixed",
        "_passes",
        "_place",
        "_sizes",
        "_used",
        "complete",
    )

    def __init__(self) -> None:
        #: Whether the first of them was seen from its beginning on.
        self.complete = False
        self._sizes: list[int] = []
        self._before: tuple[Site, Site, int] | None = None
        self._alike = 0
        self._begin()

    def _begin(self) -> None:
        self._passes = self._lost = 0
        self._fed = self._mixed = self._used = False
        self._place: Site | None = None
        self._cleared: Site | None = None

    def fed(self, site: Site) -> None:
        """A backward pass has added a micro-batch."""
        self._mixed |= self._place is not None and self._place is not site
        self._place = site
        self._passes += 1
        self._fed = True

    def cleared(self, site: Site, *, given_up: bool) -> None:
        """Gradients are cleared that no step has used; ``given_up`` says that they are lost on purpose."""
        if self._fed:
            self._mixed |= given_up or self._used or (self._cleared is not None and self._cleared is not site)
            self._cleared = site
            self._lost += 1
        self._fed = False

    def another_stepped(self) -> None:
        """Another optimizer has stepped, and may have used what this one was given beside it."""
        self._used |= self._fed

    def updated(self) -> None:
        """The scale is updated, which ends the turn: what was not stepped then was left out."""
        self._used |= self._fed
        self._mixed |= self._lost > 0

    def replaced(self) -> None:
        """The program writes gradients of its own."""
        self._mixed = True

    def emptied(self) -> None:
        """Gradients are cleared that a step has used, or none."""
        self._fed = False

    def stepped(self) -> tuple[Site | None, bool]:
        """The window ends in a step: where its windows throw micro-batches away, and whether the first held but one."""
        place, cleared, passes, lost, fed = self._place, self._cleared, self._passes, self._lost, self._fed
        whole = place is not None and not self._mixed
        self._begin()
        # Where all of them are lost, the step has nothing to learn from, which is another mistake; where several are
        # lost at once, a whole window was given up.
        single = fed and passes == lost + 1
        now = (place, cleared, lost) if whole and place is not None and cleared is not None and single else None
        self._alike = self._alike + 1 if now is not None and now == self._before else int(now is not None)
        self._before = now
        if len(self._sizes) < FIRST:
            self._sizes.append(passes if whole and not lost else 0)
            first, *others = self._sizes
            early = self.complete and len(others) == FIRST - 1 and first == 1 < others[0] == others[-1]
        else:
            early = False
        return (cleared if self._alike == ALIKE else None), early
