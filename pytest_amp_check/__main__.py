"""``python -m pytest_amp_check`` is ``amp-check``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """The command, from its first moment on: loading it takes longest, and may be interrupted as well."""
    from .frontends import signals

    signals.end_at_once()

    from .frontends import cli

    cli.run()


if __name__ == "__main__":
    run()
