"""Description of a changed call or dictionary, before the text is written."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.fast_namedtuple import NamedTuple


class RewriteSpec(NamedTuple):
    """The changes of a call or a dictionary.

    ``new_function`` replaces the called expression. ``first_arguments`` are inserted before the other arguments (``x``
    or ``name=x``). ``last_arguments`` are appended as names and values, or keys and values. ``argument_names`` are the
    new names of the positional arguments, None for unchanged arguments. ``new_value`` is position, name and new value
    of one argument. ``dropped_argument`` is the name of a removed argument.
    """

    new_function: str | None = None
    first_arguments: Sequence[str] = ()
    argument_names: Sequence[str | None] = ()
    last_arguments: Sequence[tuple[str, str]] = ()
    new_value: tuple[int, str, str] | None = None
    dropped_argument: str = ""
