"""Detection of silent mistakes in PyTorch mixed-precision training code."""

from __future__ import annotations

# Not typing.TYPE_CHECKING, here and elsewhere: importing typing takes a quarter of the time of starting Python.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .protocol.finding import Finding
    from .runtime.emulate.cuda import emulate_cuda
    from .runtime.measure.estimate import estimate_memory
    from .runtime.measure.memory import assert_memory, measure_memory
    from .runtime.run import Run, record
    from .runtime.session import Session, run_steps
    from .static.engine import check_paths, check_source

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "Run",
    "Session",
    "__version__",
    "assert_memory",
    "check_paths",
    "check_source",
    "emulate_cuda",
    "estimate_memory",
    "measure_memory",
    "record",
    "run_steps",
]

#: Module of each public name, imported on first use: pytest imports this package in every run of each project with it.
_HOMES = {
    "Finding": "protocol.finding",
    "Run": "runtime.run",
    "Session": "runtime.session",
    "assert_memory": "runtime.measure.memory",
    "check_paths": "static.engine",
    "check_source": "static.engine",
    "emulate_cuda": "runtime.emulate.cuda",
    "estimate_memory": "runtime.measure.estimate",
    "measure_memory": "runtime.measure.memory",
    "record": "runtime.run",
    "run_steps": "runtime.session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic ``%%amp`` to IPython, on ``%load_ext pytest_amp_check``."""
    from .frontends.notebook_magic import register_magic

    register_magic(shell)
