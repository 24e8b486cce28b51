"""Which calls reading has come by, and which of them have told the protocol something."""

from __future__ import annotations

from ...protocol.events import Site

#: A place in a file: its path, first line, column, last line, column.
Span = tuple[str, int, int, int, int]


def span_of(site: Site) -> Span:
    return (site.path, site.line, site.column, site.end_line, site.end_column)


class VisitedCalls:
    """Places of calls, and whether each has become an event: kept only where somebody asks for blind spots."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: dict[Span, bool] = {}

    def add_call(self, site: Site) -> None:
        self.calls.setdefault(span_of(site), False)

    def mark_handled(self, site: Site) -> None:
        self.calls[span_of(site)] = True
