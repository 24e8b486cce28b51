"""Finds the mistakes that PyTorch mixed-precision training code makes silently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocol.finding import Finding
    from .static.engine import check_paths, check_source

__version__ = "0.1.0"
__all__ = ["Finding", "__version__", "check_paths", "check_source"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: pytest imports this package in every run of every project that has it installed.
    if name == "Finding":
        from .protocol.finding import Finding

        return Finding
    if name in ("check_paths", "check_source"):
        from .static import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
