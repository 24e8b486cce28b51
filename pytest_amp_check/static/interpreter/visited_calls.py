"""Record of the calls that the analysis visited, for the report of unanalyzed calls."""

from __future__ import annotations

from ...protocol.sites import Site

#: Location in a file: path, first line, first column, last line, last column.
Span = tuple[str, int, int, int, int]


def span_of(site: Site) -> Span:
    return (site.path, site.line, site.column, site.end_line, site.end_column)


class VisitedCalls:
    """Locations of visited calls; True if the call became an event. Kept only if unanalyzed calls are reported.

    ``unfollowed`` are the calls of functions with protocol calls that a limit kept from being analyzed, as source text.
    """

    __slots__ = ("calls", "unfollowed")

    def __init__(self) -> None:
        self.calls: dict[Span, bool] = {}
        self.unfollowed: dict[Span, tuple[Site, str]] = {}

    def add_call(self, site: Site) -> None:
        self.calls.setdefault(span_of(site), False)

    def mark_handled(self, site: Site) -> None:
        self.calls[span_of(site)] = True

    def mark_unfollowed(self, site: Site, call_text: str) -> None:
        self.unfollowed[span_of(site)] = (site, call_text)
