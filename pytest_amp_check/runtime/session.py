"""The setup of a mixed-precision test: a device, a dtype, seeds and recordings.

This module also works without pytest.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .emulate.cuda import emulate_cuda
from .record.sites import drop_own_frames
from .replay.comparison import UnavailableError
from .replay.replay import Replay
from .replay.snapshot import random_state, restore_random, seed_all
from .run import Run, finding_lines, record

if TYPE_CHECKING:
    from .baselines import Baselines
    from .ranks.distributed import Ranks

#: The seed of every random generator. All tests share the seed: a test that fails alone fails in every order.
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
    """Record training steps that can be replayed. The assertions that compare runs need a replay.

    ``step(batch)`` is called once for each batch, ``steps`` times in total. ``state`` and ``also`` name the trained
    objects that cannot be found from the function; see ``Replay``.
    ``parts`` are the options of ``record``. Raise ValueError for arguments with
    which no step can run.
    """
    __tracebackhide__ = True
    replay, recording = _prepare_run(step, batches, steps, state, also, model, parts)
    return _record_steps(replay, recording)


def _record_steps(replay: Replay, recording: record) -> Run:
    """Run and record the steps. An exception of the step gets the findings that explain it as notes."""
    __tracebackhide__ = True
    try:
        with recording as run:
            replay.run()
    except Exception as error:
        for finding in recording.run.explanations:
            # Before Python 3.11 exceptions have no notes.
            getattr(error, "add_note", str)("\n".join(finding_lines(finding)))
        error.__traceback__ = drop_own_frames(error.__traceback__)
        # Before Python 3.11 a `raise` without the exception restores the whole traceback.
        raise error  # noqa: TRY201
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
    if model is None:
        model = _trained_model(replay)
    recording = record(model, **parts)
    recording.run.replay = replay
    # Frame 1 is the caller, and this frame is still on the stack while the steps run. Users only need to see the frames
    # from the step on.
    recording.show_from(sys._getframe(1))
    return replay, recording


def _trained_model(replay: Replay) -> torch.nn.Module | None:
    """Return the model that gives names to the recorded data, or None if the step uses none.

    A criterion has no parameters, and an average of the weights is in no optimizer, so neither is the model. Several
    trained models are recorded together, each under its own name: "generator.0", "discriminator.0".
    """
    state = replay.find_state()
    models = {name: each for name, each in state.models.items() if any(True for _ in each.parameters())}
    trained = {id(p) for each in state.optimizers.values() for group in each.param_groups for p in group["params"]}
    chosen = {name: each for name, each in models.items() if any(id(p) in trained for p in each.parameters())} or models
    if len(chosen) < 2:
        return next(iter(chosen.values()), None)
    # The container only refers to the models. Its keys cannot contain dots.
    return torch.nn.ModuleDict({name.replace(".", "_"): each for name, each in chosen.items()})


class Session:
    """A device, a dtype and seeded generators, with constructors that match them. ``session`` creates a session.

    ``device`` is a ``torch.device``. ``dtype`` is float16 or bfloat16. ``emulated`` is True if the device is the CPU
    with the dtypes of CUDA. ``generator`` is a seeded ``torch.Generator`` on the device. ``runs`` lists the recordings
    of the session.
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
        #: Set by the fixture: the baseline files of the running test. None without the fixture.
        self.baselines: Baselines | None = None

    def autocast(self, **more: Any) -> torch.autocast:
        """Return an autocast region for the device and the dtype.

        ``more`` are further arguments of ``torch.autocast``.
        """
        return torch.autocast(self.device.type, **{"dtype": self.dtype, **more})

    def scaler(self, **more: Any) -> torch.amp.GradScaler:
        """Return a gradient scaler for the device. The scaler is disabled for bfloat16, which needs no scaling."""
        return torch.amp.GradScaler(self.device.type, **{"enabled": self.dtype is torch.float16, **more})

    def record(self, model: torch.nn.Module | None = None, **parts: Any) -> record:
        """Return a recording for a ``with`` block.

        ``parts`` are the options of ``record``.
        """
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
        """Run and record training steps. The arguments are the arguments of ``run_steps``."""
        __tracebackhide__ = True
        replay, recording = _prepare_run(step, batches, steps, state, also, model, parts)
        self._register_run(recording.run)
        return _record_steps(replay, recording)

    def distributed(self, function: Callable[..., Any], nprocs: int = 2, args: Sequence[Any] = (), **how: Any) -> Ranks:
        """Call ``function(rank, *args)`` on several ranks, each in a recorded process, and return their results.

        ``how`` are the other arguments of ``distributed``: ``timeout``
        in seconds, ``backend`` (gloo on the CPU), and the options of a recording.
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
    """Return the reason why this machine lacks a device, with an alternative, or "" if the device is available."""
    if device.partition(":")[0] != "cuda":
        return ""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index < count:
        return ""
    has = f"has {count} CUDA device{'s' if count > 1 else ''}" if count else "has no CUDA device"
    return f"{device} was asked for, and this machine {has}: use emulate for CUDA's dtypes on the CPU, or auto"


def worker_device(device: str, worker: str) -> str:
    """Return the device for a worker of pytest-xdist ("gw0" and so on, or "").

    Workers are assigned to the GPUs round-robin.

    Only "auto" and "cuda" are distributed. A device with an index, such as ``cuda:1``, stays as given.
    """
    if device not in {"auto", "cuda"} or not worker or not torch.cuda.is_available():
        return device
    return f"cuda:{int(worker.removeprefix('gw')) % torch.cuda.device_count()}"


def use_device(device: str) -> None:
    """Set ``cuda`` or ``cuda:1`` as the current device. The device must exist on this machine."""
    torch.cuda.set_device(torch.device(device).index or 0)


@contextlib.contextmanager
def session(
    device: str = "auto",
    dtype: torch.dtype | str = torch.float16,
    *,
    seed: int = SEED,
    rules: Iterable[str] | None = None,
) -> Iterator[Session]:
    """Open a session in which the random generators of torch, Python and NumPy are seeded.

    Restore the generators afterwards.

    ``device`` is "cpu", "cuda", "cuda:1" and so on, "emulate" for the CPU under ``emulate_cuda``, or "auto". "auto"
    selects CUDA if a GPU exists and the emulation otherwise. ``rules`` are the codes of the rules that recordings
    check; None stands for the default rules. Raise ``UnavailableError`` if the device does not exist.
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
