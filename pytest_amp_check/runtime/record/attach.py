"""Start and end of recordings, and the patches of torch during a recording.

Patches are installed when the first recording of the process begins and removed when the last recording ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ...protocol.registration import require_listed
from ..warning_locations import acquire_locations, release_locations
from . import active
from .patches import (
    angles,
    autocast,
    backward,
    checkpoints,
    clipping,
    losses,
    modules,
    optimizers,
    recomputation,
    replicas,
    scalers,
    tensors,
    threads,
)
from .patches.table import INSTALLED
from .recorder import Recorder

#: Modules with patches: each has a function ``patches()``.
TABLES = (
    angles,
    autocast,
    losses,
    scalers,
    backward,
    optimizers,
    tensors,
    clipping,
    modules,
    checkpoints,
    recomputation,
    threads,
    replicas,
)
require_listed(
    "runtime/record/patches",
    [table.__name__.rpartition(".")[2] for table in TABLES],
    "add the module to TABLES in runtime/record/attach.py",
    marker="\ndef patches(",
)

_LOCK = threading.Lock()
_hooks: list[Any] = []
_users = 0


def begin_recording(recorder: Recorder) -> None:
    """Activate a recorder and its collectors in this thread."""
    _acquire_patches()
    active.enter_recorder(recorder)
    try:
        for collector in recorder.recording.collectors:
            collector.start()
    except BaseException:
        end_recording(recorder, broken=True)
        raise


def end_recording(recorder: Recorder, *, broken: bool = False) -> None:
    """End a recording. ``broken``: an exception ends the recording."""
    with ExitStack() as stack:
        # All patches are removed even if a step fails. A failure of the recorder must not affect the program.
        stack.callback(recorder.conclude, broken=broken)
        stack.callback(recorder.remove_hooks)
        stack.callback(_release_patches)
        stack.callback(active.leave_recorder, recorder)
        for collector in recorder.recording.collectors:
            stack.callback(collector.stop)


def keep_patches() -> Callable[[], None]:
    """Patch torch until the returned function is called, no matter which recordings begin and end in between.

    A test session patches once, below all patches of its fixtures, such as ``monkeypatch`` or an emulation. Fixtures
    start and end in their own order and restore the functions that they found.
    """
    _acquire_patches()
    return _release_patches


def _acquire_patches() -> None:
    global _users  # noqa: PLW0603 - the process has one set of patches
    with _LOCK:
        if _users == 0:
            try:
                _install_patches()
            except BaseException:
                _remove_patches()
                raise
        _users += 1


def _release_patches() -> None:
    global _users  # noqa: PLW0603
    with _LOCK:
        _users -= 1
        if _users == 0:
            _remove_patches()


def _install_patches() -> None:
    acquire_locations()
    for table in TABLES:
        INSTALLED.install_patches(table.patches())
    _hooks.extend(optimizers.register_hooks())


def _remove_patches() -> None:
    release_locations()
    while _hooks:
        _hooks.pop().remove()
    INSTALLED.remove_patches()
