"""Entry point of the package as a module, equivalent to ``amp-check``."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Run the command. Signals are handled from the start, because loading takes longest and may be interrupted."""
    from .frontends import signals

    signals.end_at_once()

    from .frontends import cli

    cli.run()


if __name__ == "__main__":
    run()
