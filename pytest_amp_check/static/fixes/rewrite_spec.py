"""What a call or a dictionary is to become, before anybody writes it."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.fast_namedtuple import NamedTuple


class RewriteSpec(NamedTuple):
    """The changes of a call or a dictionary.

    ``function`` takes the place of what is called. ``first`` are arguments that go before the others (``x`` or
    ``name=x``), ``last`` are names and values, or keys and values, that go behind. ``names`` are what the positional
    arguments are called from now on, None for those that stay as they are. ``value`` is what one argument is from now
    on, behind its number and its name. The argument called ``drop`` is left out.
    """

    new_function: str | None = None
    first_arguments: Sequence[str] = ()
    argument_names: Sequence[str | None] = ()
    last_arguments: Sequence[tuple[str, str]] = ()
    new_value: tuple[int, str, str] | None = None
    dropped_argument: str = ""
