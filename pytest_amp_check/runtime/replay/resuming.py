"""The assertion that training from a checkpoint equals uninterrupted training."""

from __future__ import annotations

import copy
import inspect
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .comparison import UNREPEATABLE, check_tolerance, format_count, format_names, play_steps
from .replay import Replay, ReplayWatch
from .snapshot import random_state


def assert_resumes(
    replay: Replay,
    save: Callable[..., Any],
    load: Callable[[Any], object],
    *,
    at: int | None = None,
    rtol: float = 0.0,
) -> None:
    """Fail if training that is saved after ``at`` steps and loaded into a fresh state differs from unbroken training.

    The checkpoint goes through ``load(save())``, or through ``save(path); load(path)`` with a temporary path if
    ``save`` takes an argument. ``at`` defaults to the end of the update nearest to the middle, at which no optimizer
    accumulates. Between save and load,
    the whole state of the step is rewound to before the first step, as in a new process. Losses, parameters, buffers,
    and the states of optimizer, scaler and scheduler must be equal, bit for bit or within ``rtol``. Raise ValueError
    for unusable arguments.
    """
    __tracebackhide__ = True
    check_tolerance(rtol)
    for name, function in (("save", save), ("load", load)):
        if not callable(function):
            raise ValueError(f"{name} is {function!r}, not a function: pass your own save and load functions")
    if replay.steps < 2:
        raise ValueError("one step cannot be resumed in between: run at least 2 steps")
    if at is not None and (type(at) is not int or not 1 <= at < replay.steps):
        raise ValueError(f"at is {at!r}: pass after how many steps to save, from 1 to {replay.steps - 1}")
    with replay.rewind(), tempfile.TemporaryDirectory(prefix="amp-check-") as folder:
        straight = play_steps(replay)
        straight_end = _copy_parts(replay)
        at = _middle_update_end(straight, replay.steps) if at is None else at
        replay.start_snapshot.restore()
        resumed = ReplayWatch(replay)
        with resumed.observe():
            resumed.play_calls(range(at))
        before = _copy_parts(replay)
        checkpoint = _make_checkpoint(save, os.path.join(folder, "checkpoint.pt"))
        saved = _copy_parts(replay)
        replay.start_snapshot.restore()
        load(checkpoint)
        loaded = _copy_parts(replay)
        with resumed.observe():
            resumed.play_calls(range(at, replay.steps))
        resumed_end = _copy_parts(replay)
        first = _first_difference(straight.losses, resumed.losses, rtol)
        ends = _find_differences(straight_end, resumed_end, rtol, outcome=True)
    if first is None and not ends:
        return
    if first is not None and first < at:
        raise AssertionError(UNREPEATABLE)
    raise AssertionError(_resume_message(replay.steps, at, before, saved, loaded, straight, resumed, first, ends))


def _middle_update_end(straight: ReplayWatch, steps: int) -> int:
    """Return the number of steps before the save: the end of the update nearest to the middle.

    Updates of all optimizers that end together are preferred, because no accumulation window is then open. Raise
    ValueError if no update ends before the last step.
    """
    ends = [
        {end for window in windows if window.step_call is not None and (end := window.step_call + 1) < steps}
        for windows in straight.closed_windows()
    ]
    candidates = (set.intersection(*ends) or set.union(*ends)) if ends else set()
    if not candidates:
        raise ValueError(
            "no update ends before the last step, so every checkpoint would be in an open accumulation window: run "
            "more steps, or pass at= after how many steps to save"
        )
    return min(candidates, key=lambda end: abs(2 * end - steps))


def _ends_all_windows(straight: ReplayWatch, steps: int) -> bool:
    """Return True if each optimizer that steps at all makes a step in the last call before a save."""
    calls = [{window.step_call for window in windows} for windows in straight.closed_windows()]
    return all(steps - 1 in each for each in calls)


def _make_checkpoint(save: Callable[..., Any], path: str) -> Any:
    """Return the argument for load(): the path that save() wrote to, or a copy of the returned checkpoint."""
    if _takes_path(save):
        save(path)
        return path
    checkpoint = save()
    if checkpoint is None:
        raise ValueError("save() returned nothing: return the checkpoint, or take the path to write it to")
    try:
        return copy.deepcopy(checkpoint)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"what save() returned cannot be copied ({error}): return a dict of state_dicts") from error


def _takes_path(save: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(save).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return any(each.default is each.empty or isinstance(each.default, (str, os.PathLike)) for each in positional[:1])


_Parts = dict[tuple[str, str], dict[str, Any]]


def _copy_parts(replay: Replay) -> _Parts:
    """Return copies of all parts of the training state, by kind and name."""
    state_parts = replay.find_state()
    parts: _Parts = {}
    for name, model in state_parts.models.items():
        parts["model", name] = _flatten({**dict(model.named_parameters()), **dict(model.named_buffers())})
    for name, optimizer in state_parts.optimizers.items():
        parts["optimizer", name] = _flatten(optimizer.state_dict())
    for name, scaler in state_parts.scalers.items():
        tracker = {"growth_tracker": scaler._get_growth_tracker()}
        parts["scaler", name] = {"scale": scaler.get_scale(), **tracker} if scaler.is_enabled() else {}
    for name, scheduler in state_parts.schedulers.items():
        parts["scheduler", name] = _flatten(scheduler.state_dict())
    for name, generator in state_parts.generators.items():
        parts["generator", name] = {"state": generator.get_state()}
    for name, state in random_state().items():
        parts["random", name] = _flatten({"state": state})
    parts["gradients", ""] = _flatten(
        {name: p.grad for name, p in state_parts.parameters().items() if p.grad is not None}
    )
    parts["values", ""] = dict(state_parts.values)
    return parts


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the plain values and copies of the tensors in nested containers, by path."""
    if isinstance(value, Tensor):
        return {path: value.detach().clone()}
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{path}[{number}]", each) for number, each in enumerate(value)]
    elif hasattr(value, "tobytes"):
        return {path: value.tobytes()}
    else:
        return {path: value} if isinstance(value, (bool, int, float, str, bytes, type(None))) else {}
    return {name: leaf for key, each in pairs for name, leaf in _flatten(each, key).items()}


def _find_differences(
    one: _Parts, other: _Parts, rtol: float, *, outcome: bool = False
) -> dict[tuple[str, str], list[str]]:
    """Return the parts that differ, with the names of the differing values.

    With ``outcome``, only parts that are results of the training are compared.
    """
    excluded = ("generator", "gradients", "random", "values") if outcome else ()
    differences: dict[tuple[str, str], list[str]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        left, right = one.get(key, {}), other.get(key, {})
        names = [name for name in {**left, **right} if not _is_equal(left.get(name), right.get(name), rtol)]
        if names and key[0] not in excluded:
            differences[key] = names
    return differences


def _is_equal(one: Any, other: Any, rtol: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        other = other.to(one.device)
        if rtol and one.is_floating_point():
            return torch.allclose(one, other, rtol=rtol, atol=0.0, equal_nan=True)
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=rtol)
    return type(one) is type(other) and bool(one == other)


def _first_difference(one: Sequence[float | None], other: Sequence[float | None], rtol: float) -> int | None:
    pairs = enumerate(zip(one, other, strict=True))
    return next((number for number, (left, right) in pairs if not _is_equal(left, right, rtol)), None)


def _resume_message(
    steps: int,
    saved_at: int,
    before: _Parts,
    saved: _Parts,
    loaded: _Parts,
    straight: ReplayWatch,
    resumed: ReplayWatch,
    first: int | None,
    ends: Mapping[tuple[str, str], Sequence[str]],
) -> str:
    """Return the message: the state that is missing after loading, or other possible reasons."""
    missing = _find_differences(saved, loaded, 0.0)
    values = missing.pop(("values", ""), [])
    if _ends_all_windows(straight, saved_at):
        # The next window clears the gradients that the last one has left.
        missing.pop(("gradients", ""), None)
    if first is not None:
        symptom = (
            f"the loss of step {first + 1} is {resumed.losses[first]!r}, without the restart {straight.losses[first]!r}"
        )
    else:
        (kind, name), names = next(iter(ends.items()))
        symptom = f"after step {steps}, {kind} `{name}` differs in {format_names(names)}"
    lines = [f"training saved after {format_count(saved_at, 'step')} does not go on as it was: {symptom}"]
    if changed := _find_differences(before, saved, 0.0):
        lines.append(
            f"save() itself changes {format_names([_describe_part(*key) for key in changed])}: it must only read."
        )
    if missing:
        lines.append("Not restored by load():")
        for key, names in missing.items():
            lines.append(
                f"  - "
                f"{_describe_part(*key)}{_describe_change(key[0], saved.get(key, {}), loaded.get(key, {}), names)}. "
                f"{_suggest_remedy(*key)}"
            )
    if values:
        shown = [
            f"`{name}` ({saved['values', ''].get(name)!r} when saved, {loaded['values', ''].get(name)!r} now)"
            for name in values
        ]
        lines.append(
            f"Plain values that were not restored either: {', '.join(shown[:5])}. Save those that the step uses."
        )
    if len(lines) == 1:
        lines.append(
            "All that the step is seen to hold was restored: what differs is outside it, such as the position in the "
            "data, or the kernels do not repeat themselves; then pass rtol."
        )
    return "\n".join(lines)


def _describe_part(kind: str, name: str) -> str:
    if kind == "random":
        return f"the random state of {name}"
    return "the gradients of an open window" if kind == "gradients" else f"the {kind} `{name}`"


def _describe_change(kind: str, saved: Mapping[str, Any], loaded: Mapping[str, Any], names: Sequence[str]) -> str:
    """Describe the changed values if they are informative."""
    if kind in ("generator", "random"):
        return ""
    plain = [name for name in names if isinstance(saved.get(name), (bool, int, float)) and name in loaded]
    shown = [f"{name} {saved[name]!r}, now {loaded[name]!r}" for name in plain[:3]]
    lost_names = [name for name in names if name not in loaded]
    if lost_names:
        shown.append(f"lost: {format_names(lost_names)}")
    return f" ({'; '.join(shown) or format_names(names)})"


_RANDOM = {
    "torch": ("torch.get_rng_state()", "torch.set_rng_state(...)"),
    "torch.cuda": ("torch.cuda.get_rng_state_all()", "torch.cuda.set_rng_state_all(...)"),
    "torch.mps": ("torch.mps.get_rng_state()", "torch.mps.set_rng_state(...)"),
    "random": ("random.getstate()", "random.setstate(...)"),
    "numpy.random": ("numpy.random.get_state()", "numpy.random.set_state(...)"),
}


def _suggest_remedy(kind: str, name: str) -> str:
    """Return the code that saves and loads a part."""
    if kind == "random":
        get, put = _RANDOM[name]
        return f'Save "{name}": {get}, and load it with {put}'
    if kind == "generator":
        return f'Save "{name}": {name}.get_state(), and load it with {name}.set_state(...)'
    if kind == "gradients":
        return "They are in no checkpoint: save after the optimizer has stepped"
    return f'Save "{name}": {name}.state_dict(), and load it with {name}.load_state_dict(...)'
