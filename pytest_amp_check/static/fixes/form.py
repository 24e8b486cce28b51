"""What a call or a dictionary is to become, before anybody writes it."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.named import NamedTuple


class Form(NamedTuple):
    """The changes of a call or a dictionary.

    ``function`` takes the place of what is called. ``first`` are arguments that go before the others (``x`` or
    ``name=x``), ``last`` are names and values, or keys and values, that go behind. ``names`` are what the positional
    arguments are called from now on, None for those that stay as they are. ``value`` is what one argument is from now
    on, behind its number and its name. The argument called ``drop`` is left out.
    """

    function: str | None = None
    first: Sequence[str] = ()
    names: Sequence[str | None] = ()
    last: Sequence[tuple[str, str]] = ()
    value: tuple[int, str, str] | None = None
    drop: str = ""
