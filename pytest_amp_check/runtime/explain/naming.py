"""The names of parameters and modules in a program, found through its variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .frames import Frame

#: Largest number of names in a message.
LISTED = 3


def user_modules(frames: Sequence[Frame]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield (name, module) for the modules in the variables of the ended calls, innermost call first."""
    for frame in reversed(frames):
        if frame.is_user:
            variables: dict[str, Any] = {**frame.python_frame.f_globals, **frame.python_frame.f_locals}
            for name, value in variables.items():
                if isinstance(value, torch.nn.Module):
                    yield name, value


def qualified_module_name(module: torch.nn.Module, holder: torch.nn.Module, name: str) -> str:
    """Return the name of a module inside ``holder``, where ``name`` is the name of the holder."""
    path = next((path for path, each in holder.named_modules() if each is module), "")
    return f"{name}.{path}" if path else name


def format_parameter_names(parameters: Sequence[torch.Tensor], frames: Sequence[Frame]) -> str:
    """Format parameters by name in a module of the program, or by their number if no module has them."""
    ids = {id(p) for p in parameters}
    for name, module in user_modules(frames):
        names = [f"{name}.{each}" for each, p in module.named_parameters() if id(p) in ids]
        if names:
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            return ", ".join(f"`{each}`" for each in names[:LISTED]) + more
    return f"{len(ids)} parameters"
