"""Option: the names, kind, default and help of one row of the option table."""

from __future__ import annotations

from .kinds import OptionKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Prefix of environment variables; the option name follows.
VARIABLE = "AMP_CHECK_"


class Option:
    """One option.

    ``key`` is the name in [tool.amp-check]. ``flag`` is the flag of amp-check check, and ``run_flag`` of amp-check run,
    by default the same. ``pytest_flag`` and ``ini`` are the names in pytest. ``short_flag`` is a one-letter flag, and
    ``off_flag`` a flag that disables the option. ``allowed_in_file`` means that a configuration file may set the
    option. ``is_extension`` means that the values of all sources are combined.
    """

    __slots__ = (
        "allowed_in_file",
        "default",
        "environment_variable",
        "flag",
        "help",
        "ini",
        "is_extension",
        "key",
        "kind",
        "metavar",
        "name",
        "off_flag",
        "pytest_flag",
        "run_flag",
        "short_flag",
    )

    def __init__(
        self,
        key: str,
        kind: OptionKind,
        default: Any,
        help: str,
        *,
        metavar: str = "",
        flag: str = "",
        run_flag: str | None = None,
        pytest_flag: str = "",
        ini: str = "",
        short_flag: str = "",
        off_flag: str = "",
        allowed_in_file: bool = True,
        is_extension: bool = False,
    ) -> None:
        self.key = key
        self.name = key.replace("-", "_")
        self.environment_variable = VARIABLE + self.name.upper()
        self.kind = kind
        self.default = default
        self.help = help
        self.metavar = metavar
        self.flag = flag
        self.run_flag = flag if run_flag is None else run_flag
        self.pytest_flag = pytest_flag
        self.ini = ini
        self.short_flag = short_flag
        self.off_flag = off_flag
        self.allowed_in_file = allowed_in_file
        self.is_extension = is_extension
