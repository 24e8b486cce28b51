"""Finds the mistakes that PyTorch mixed-precision training code makes silently."""

from __future__ import annotations

# Not the one of typing, here and elsewhere: importing typing takes a quarter of the time of starting Python.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .protocol.finding import Finding
    from .runtime.emulate import emulate_cuda
    from .runtime.run import Run, record
    from .static.engine import check_paths, check_source

__version__ = "0.1.0"
__all__ = ["Finding", "Run", "__version__", "check_paths", "check_source", "emulate_cuda", "record"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: pytest imports this package in every run of every project that has it installed.
    if name == "Finding":
        from .protocol.finding import Finding

        return Finding
    if name in ("check_paths", "check_source"):
        from .static import engine

        return getattr(engine, name)
    if name in ("Run", "record"):
        from .runtime import run

        return getattr(run, name)
    if name == "emulate_cuda":
        from .runtime.emulate import emulate_cuda

        return emulate_cuda
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
