"""What a test needs to train in mixed precision: a device, a dtype, seeds, recordings. It works without pytest too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .emulate.cuda import emulate_cuda
from .replay.comparison import UnavailableError
from .replay.replay import Replay
from .replay.snapshot import random_state, restore_random, seed_all
from .run import Run, record

if TYPE_CHECKING:
    from .baselines import Baselines
    from .ranks.distributed import Ranks

#: The seed of every random generator, the same in every test: a test that fails alone fails in every order.
SEED = 0


def run_steps(
    step: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    steps: int | None = None,
    state: Iterable[object] | None = None,
    also: Sequence[object] = (),
    model: torch.nn.Module | None = None,
    **parts: Any,
) -> Run:
    """Records training steps that can run again, which is what the comparing assertions need.

    ``step(batch)`` is called once a batch, ``steps`` times in all; ``state`` and ``also`` name what it trains where it
    is not found from the function, see :class:`~pytest_amp_check.runtime.replay.replay.Replay`. ``parts`` are those of
    :class:`~pytest_amp_check.runtime.run.record`. Raises ValueError for arguments with which nothing can run.
    """
    replay, recording = _prepare_run(step, batches, steps, state, also, model, parts)
    with recording as run:
        replay.run()
    return run


def _prepare_run(
    step: Callable[[Any], Any],
    batches: Iterable[Any],
    steps: int | None,
    state: Iterable[object] | None,
    also: Sequence[object],
    model: torch.nn.Module | None,
    parts: dict[str, Any],
) -> tuple[Replay, record]:
    replay = Replay(step, batches, steps, state, also)
    models = list(replay.find_state().models.values())
    if model is None and len(models) == 1:
        model = models[0]
    recording = record(model, **parts)
    recording.run.replay = replay
    # The function that calls this one is still there when the steps run, and the step is all that a user wants to see.
    recording.show_from(sys._getframe(1))
    return replay, recording


class Session:
    """A device, a dtype and seeded generators, with constructors that fit them; made by :func:`session`.

    ``device`` is a ``torch.device``, ``dtype`` float16 or bfloat16, ``emulated`` says whether the device is the CPU
    with CUDA's dtypes, ``generator`` is a seeded ``torch.Generator`` on the device. ``runs`` are the recordings made.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, emulated: bool, seed: int, rules: Iterable[str] | None
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.emulated = emulated
        self.generator = torch.Generator(device).manual_seed(seed)
        self.runs: list[Run] = []
        self._rules = None if rules is None else sorted(rules)
        self._seed = seed
        #: Where the baselines of its test are, set by the fixture.
        self.baselines: Baselines | None = None

    def autocast(self, **more: Any) -> torch.autocast:
        """An autocast region for the device and the dtype; ``more`` are other arguments of ``torch.autocast``."""
        return torch.autocast(self.device.type, **{"dtype": self.dtype, **more})

    def scaler(self, **more: Any) -> torch.amp.GradScaler:
        """A gradient scaler for the device: live for float16, disabled for bfloat16, which needs none."""
        return torch.amp.GradScaler(self.device.type, **{"enabled": self.dtype is torch.float16, **more})

    def record(self, model: torch.nn.Module | None = None, **parts: Any) -> record:
        """A recording for a ``with`` block; ``parts`` are those of :class:`~pytest_amp_check.runtime.run.record`."""
        recording = record(model, **parts)
        recording.show_from(sys._getframe(1))
        self._register_run(recording.run)
        return recording

    def run(
        self,
        step: Callable[[Any], Any],
        batches: Iterable[Any],
        *,
        steps: int | None = None,
        state: Iterable[object] | None = None,
        also: Sequence[object] = (),
        model: torch.nn.Module | None = None,
        **parts: Any,
    ) -> Run:
        """Runs and records training steps; the arguments are those of :func:`run_steps`."""
        replay, recording = _prepare_run(step, batches, steps, state, also, model, parts)
        self._register_run(recording.run)
        with recording as run:
            replay.run()
        return run

    def distributed(self, function: Callable[..., Any], nprocs: int = 2, args: Sequence[Any] = (), **how: Any) -> Ranks:
        """Calls ``function(rank, *args)`` on several ranks at once, each a recorded process, and gives what they did.

        ``how`` are the other arguments of :func:`~pytest_amp_check.runtime.ranks.distributed.distributed`: ``timeout``
        in seconds, ``backend`` (gloo on the CPU), and the parts of a recording.
        """
        __tracebackhide__ = True
        from .ranks.distributed import distributed

        return distributed(function, nprocs, args, **{"seed": self._seed, "rules": self._rules, **how})

    def _register_run(self, run: Run) -> None:
        if self._rules is not None:
            run.select(*self._rules)
        run.baselines = self.baselines
        self.runs.append(run)


def unavailable_reason(device: str) -> str:
    """Why a device cannot be had on this machine, and what to do instead, or nothing."""
    if device.partition(":")[0] != "cuda":
        return ""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index < count:
        return ""
    has = f"has {count} CUDA device{'s' if count > 1 else ''}" if count else "has no CUDA device"
    return f"{device} was asked for, and this machine {has}: use emulate for CUDA's dtypes on the CPU, or auto"


def worker_device(device: str, worker: str) -> str:
    """The device for a worker of pytest-xdist ("gw0" and so on, or ""): workers take the GPUs in turn.

    That is so where any GPU would do; one that is named, as ``cuda:1``, is the one that is meant.
    """
    if device not in {"auto", "cuda"} or not worker or not torch.cuda.is_available():
        return device
    return f"cuda:{int(worker.removeprefix('gw')) % torch.cuda.device_count()}"


def use_device(device: str) -> None:
    """Make ``cuda`` or ``cuda:1``, which this machine has, the current device."""
    torch.cuda.set_device(torch.device(device).index or 0)


@contextlib.contextmanager
def session(
    device: str = "auto",
    dtype: torch.dtype | str = torch.float16,
    *,
    seed: int = SEED,
    rules: Iterable[str] | None = None,
) -> Iterator[Session]:
    """A region in which the random generators of torch, Python and NumPy are seeded, and restored after it.

    ``device`` is "cpu", "cuda", "cuda:1" and so on, "emulate" for the CPU under :func:`emulate_cuda` rules, or "auto"
    for CUDA where there is one and the emulation elsewhere. ``rules`` are the codes that recordings look for, None for
    the default ones. Raises :class:`Unavailable` where the device does not exist.
    """
    reason = unavailable_reason(device)
    if reason:
        raise UnavailableError(reason)
    emulated = device == "emulate" or (device == "auto" and not torch.cuda.is_available())
    with contextlib.ExitStack() as leaving:
        leaving.callback(restore_random, random_state())
        if emulated:
            leaving.enter_context(emulate_cuda())
        seed_all(seed)
        torch_device = torch.device("cuda" if emulated or device == "auto" else device)
        torch_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        yield Session(torch_device, torch_dtype, emulated=emulated, seed=seed, rules=rules)
