"""``python -m pytest_amp_check`` is ``amp-check``."""

from __future__ import annotations

from .faces.cli import run

if __name__ == "__main__":
    run()
