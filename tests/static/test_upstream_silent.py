"""Programs like PyTorch's own ``test_grad_scaling_*`` tests: the recorder is silent, and records every skip.

The programs are ours. The behavior follows ``test/test_torch.py`` (``TestTorchDeviceType``) and PyTorch's *Automatic
Mixed Precision examples*. Expected skips and scales are computed manually.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from marks import shown

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional as F  # noqa: N812 as everyone calls it
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import record

if TYPE_CHECKING:
    from pytest_amp_check.runtime.run import Run

pytestmark = pytest.mark.usefixtures("patched_once")

Data = list[tuple[Tensor, Tensor]]
INF = float("inf")
#: Index of the skipped one of four iterations. An inf is put into its gradients, as upstream does.
SKIP = 2
ONE_SKIP = [False, False, True, False]
NO_SKIP = [False, False, False, False]
#: Values of a scale of 128 that doubles after every applied step and halves after the skipped step.
ONE_SKIP_BEFORE = [128.0, 256.0, 512.0, 256.0]
ONE_SKIP_AFTER = [256.0, 512.0, 256.0, 512.0]
NO_SKIP_AFTER = [256.0, 512.0, 1024.0, 2048.0]

OPTIMIZERS = ("SGD", "Adam", "AdamW")
KINDS = ("plain", "foreach", "fused")
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_kind = pytest.mark.parametrize("kind", KINDS)
live_and_disabled = pytest.mark.parametrize("enabled", [True, False], ids=["enabled", "disabled"])


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def four_batches() -> Data:
    return [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(4)]


def made(name: str, kind: str, parameters: Iterable[Tensor], lr: float = 0.01) -> Optimizer:
    """Create an optimizer from the names of a class and an implementation."""
    how = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    optimizer: Optimizer = getattr(torch.optim, name)(parameters, lr=lr, **how)
    return optimizer


def scaler_of_upstream(enabled: bool = True) -> GradScaler:
    return GradScaler("cpu", init_scale=128.0, growth_factor=2.0, growth_interval=1, enabled=enabled)


def half() -> Any:
    return torch.autocast("cpu", dtype=torch.float16)


def break_gradients(model: nn.Sequential) -> None:
    """Write an inf into a gradient as an overflow would: upstream makes an iteration overflow like this."""
    with torch.no_grad():
        gradient = model[1].weight.grad
        assert isinstance(gradient, torch.Tensor)
        gradient.fill_(INF)


def assert_silent(run: Run) -> None:
    """Check that there is no finding and no failure of the recorder."""
    assert run.failure is None, f"the recorder failed: {run.failure!r}"
    assert run.findings == [], shown(run.findings)


def assert_run(
    run: Run,
    skipped: list[bool],
    after: list[float] | None = None,
    before: list[float] | None = None,
) -> None:
    """Check that there is no finding, and the exact skips and scales, one for each call of ``scaler.step``."""
    assert_silent(run)
    assert [step.skipped for step in run.steps] == skipped
    assert run.steps_total == len(skipped)
    assert [step.found_inf for step in run.steps] == skipped
    if after is not None:
        assert [step.scale_after for step in run.steps] == after
    if before is not None:
        assert [step.scale_before for step in run.steps] == before


def finite(model: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in model.parameters())


# test_grad_scaling_autocast: SGD, Adam and AdamW, each plain, foreach and fused, an inf in one of four iterations.


@live_and_disabled
@every_kind
@every_optimizer
def test_autocast_with_an_inf_written_into_the_gradients(name: str, kind: str, enabled: bool) -> None:
    model, scaler = two_layers(), scaler_of_upstream(enabled)
    optimizer = made(name, kind, model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP and scaler.is_enabled():
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    if enabled:
        assert_run(run, ONE_SKIP, ONE_SKIP_AFTER, ONE_SKIP_BEFORE)
        assert run.scale_history[-1][1] == scaler.get_scale() == 128.0 * 2**3 * 0.5
    else:
        assert_run(run, NO_SKIP)
        assert scaler.get_scale() == 1.0
    assert finite(model)


@every_kind
@every_optimizer
def test_autocast_with_a_loss_that_overflows(name: str, kind: str) -> None:
    model, scaler, data = two_layers(), scaler_of_upstream(), four_batches()
    optimizer = made(name, kind, model.parameters())
    data[SKIP] = (data[SKIP][0], torch.full((8, 8), 1e30))
    with record() as run:
        for x, y in data:
            optimizer.zero_grad(set_to_none=False)
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER, ONE_SKIP_BEFORE)
    assert finite(model)


@every_kind
def test_the_loss_of_a_step_is_the_unscaled_one(kind: str) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", kind, model.parameters())
    losses = []
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)
    assert [step.loss for step in run.steps] == pytest.approx(losses)


@every_kind
@every_optimizer
def test_explicit_unscale_with_each_optimizer(name: str, kind: str) -> None:
    # test_cuda.py: test_grad_scaling_autocast_fused_optimizers, `_separate_unscale`.
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made(name, kind, model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    assert finite(model)


# test_grad_scaling_update_scale: growth after an interval, backoff, and the tracker.


def test_growth_after_an_interval_and_backoff() -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters())
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=3)
    broken = {4}
    with record() as run:
        for i, (x, y) in enumerate(four_batches() + four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i in broken:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    assert_run(
        run,
        [False, False, False, False, True, False, False, False],
        after=[8.0, 8.0, 16.0, 16.0, 8.0, 8.0, 8.0, 16.0],
        before=[8.0, 8.0, 8.0, 16.0, 16.0, 8.0, 8.0, 8.0],
    )
    assert [step.growth_tracker for step in run.steps] == [1, 2, 0, 1, 0, 1, 2, 0]
    assert [scale for _, scale in run.scale_history][-3:] == [16.0, 8.0, 16.0]


def test_a_scale_near_the_end_of_float32_does_not_overflow() -> None:
    model = nn.Linear(5, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = GradScaler("cpu", init_scale=1e38, growth_factor=2**4, growth_interval=1)
    x, y = torch.full((1, 5), 1e-3), torch.full((1, 1), 1e-30)
    with record() as run:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    # 1e38 * 16 is above the float32 maximum, so the scale stays.
    assert_run(run, [False])
    assert run.steps[0].scale_after == pytest.approx(1e38)
    assert math.isfinite(scaler.get_scale())


def test_a_scale_near_the_end_of_float32_backs_off() -> None:
    model = nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = GradScaler("cpu", init_scale=1e38, growth_factor=2**4, growth_interval=1)
    with record() as run:
        optimizer.zero_grad()
        loss = ((model(torch.ones(1, 5)) - 100.0) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_run(run, [True])
    assert run.steps[0].scale_after == pytest.approx(0.5e38)
    assert finite(model)


@pytest.mark.parametrize("form", ["float", "tensor"])
def test_a_scale_that_is_set_by_hand(form: str) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    scales = [64.0, 32.0, 256.0, 512.0]
    with record() as run:
        for new_scale, (x, y) in zip(scales, four_batches(), strict=True):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(new_scale if form == "float" else torch.tensor(new_scale))
    assert_run(run, NO_SKIP, scales, [128.0, 64.0, 32.0, 256.0])


# test_grad_scaling_state_dict, and pickling: a new scaler object in the middle of a run.


def through_state_dict(scaler: GradScaler) -> GradScaler:
    new = GradScaler("cpu", init_scale=2.0, growth_interval=7)
    new.load_state_dict(scaler.state_dict())
    return new


def through_pickle(scaler: GradScaler) -> GradScaler:
    new: GradScaler = pickle.loads(pickle.dumps(scaler))  # noqa: S301 our own bytes
    return new


ROUND_TRIPS: dict[str, Callable[[GradScaler], GradScaler]] = {
    "state_dict": through_state_dict,
    "pickle": through_pickle,
    "deepcopy": copy.deepcopy,
}


@every_kind
@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_a_new_scaler_object_after_every_iteration(trip: str, kind: str) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("AdamW", kind, model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
            scaler = ROUND_TRIPS[trip](scaler)
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER, ONE_SKIP_BEFORE)
    assert scaler.get_scale() == 512.0


def test_a_state_that_is_loaded_before_the_first_scale() -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        scaler = GradScaler("cpu")
        scaler.load_state_dict(
            {
                "scale": 64.0,
                "growth_factor": 2.0,
                "backoff_factor": 0.5,
                "growth_interval": 2,
                "_growth_tracker": 1,
            }
        )
        for x, y in four_batches()[:2]:
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, [False, False], [128.0, 128.0], [64.0, 128.0])
    assert [step.growth_tracker for step in run.steps] == [0, 1]


def test_a_disabled_scaler_has_an_empty_state() -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        scaler = GradScaler("cpu", enabled=False)
        other = GradScaler("cpu", enabled=False)
        for x, y in four_batches():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            other.load_state_dict(scaler.state_dict())
            scaler = pickle.loads(pickle.dumps(other))  # noqa: S301 our own bytes
    assert_run(run, NO_SKIP)


# test_grad_scaling_clipping: scaled gradients may be clipped to a norm that is scaled as well.


@live_and_disabled
@pytest.mark.parametrize("foreach", [None, True, False])
@every_kind
def test_clipping_to_a_scaled_norm(kind: str, foreach: bool | None, enabled: bool) -> None:
    model, scaler, max_norm = two_layers(), scaler_of_upstream(enabled), 0.2
    optimizer = made("SGD", kind, model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale(), foreach=foreach)
            if i == SKIP and enabled:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    if enabled:
        assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    else:
        assert_run(run, NO_SKIP)


def test_clipping_to_a_scaled_norm_that_was_read_before() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        scale = scaler.get_scale()
        for x, y in four_batches():
            limit = 0.2 * scale
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()
            scale = scaler.get_scale()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


def test_clipping_by_a_scaled_value() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1 * scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


# test_grad_scaling_clipping_separate_unscale: there is an inf when the norm is clipped.


@live_and_disabled
@pytest.mark.parametrize("foreach", [True, False])
@every_kind
@every_optimizer
def test_clipping_after_unscale(name: str, kind: str, foreach: bool, enabled: bool) -> None:
    model, scaler = two_layers(), scaler_of_upstream(enabled)
    optimizer = made(name, kind, model.parameters())
    norms = []
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP and enabled:
                break_gradients(model)
            scaler.unscale_(optimizer)
            # If there is an inf, this multiplies inf by zero: the NaN comes from the inf that the scaler has recorded.
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2, error_if_nonfinite=False, foreach=foreach)
            norms.append(norm.item())
            scaler.step(optimizer)
            scaler.update()
    if enabled:
        assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
        assert [math.isfinite(norm) for norm in norms] == [True, True, False, True]
    else:
        assert_run(run, NO_SKIP)
    assert finite(model)


def test_other_clips_after_unscale() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            nn.utils.clip_grad_norm_(model.parameters(), INF)
            for p in model.parameters():
                assert p.grad is not None
                p.grad.clamp_(-0.005, 0.005).nan_to_num_()
                p.grad.add_(p.detach(), alpha=1e-4)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


# test_grad_scaling_penalty: autograd.grad of a scaled loss, with manually unscaled results.


@live_and_disabled
@pytest.mark.parametrize("how", ["multiply", "divide", "norm"])
def test_gradient_penalty(how: str, enabled: bool) -> None:
    model, scaler = two_layers(), scaler_of_upstream(enabled)
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                loss = F.mse_loss(model(x), y)
            grads = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
            if how == "multiply":
                inverse = 1.0 / scaler.get_scale()
                grads = tuple(g * inverse for g in grads)
            elif how == "divide":
                grads = tuple(g / scaler.get_scale() for g in grads)
            norm = torch.stack([g.float().pow(2).sum() for g in grads]).sum().sqrt()
            if how == "norm":
                norm = norm / scaler.get_scale()
            scaler.scale(loss + norm).backward()
            if i == SKIP and enabled:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    if enabled:
        assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    else:
        assert_run(run, NO_SKIP)


def test_gradient_penalty_of_an_unscaled_loss() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            norm = torch.stack([g.float().pow(2).sum() for g in grads]).sum().sqrt()
            scaler.scale(loss + norm).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


# test_grad_scaling_accumulation: a micro-batch without a step is not a skip.


@live_and_disabled
@every_kind
def test_accumulation(kind: str, enabled: bool) -> None:
    model, scaler = two_layers(), scaler_of_upstream(enabled)
    optimizer = made("SGD", kind, model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                loss = F.mse_loss(model(x), y) / 2
            scaler.scale(loss).backward()
            if (i + 1) % 2 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    if enabled:
        assert_run(run, [False, False], [256.0, 512.0], [128.0, 256.0])
    else:
        assert_run(run, [False, False])


@pytest.mark.parametrize("place", ["scaled loss", "inside scale", "gradients", "sum"])
def test_accumulation_divided_in_other_places(place: str) -> None:
    model, scaler, k = two_layers(), scaler_of_upstream(), 2
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            with half():
                loss = F.mse_loss(model(x), y, reduction="sum" if place == "sum" else "mean")
            if place == "scaled loss":
                (scaler.scale(loss) / k).backward()
            elif place == "inside scale":
                scaler.scale(loss / k).backward()
            else:
                scaler.scale(loss).backward()
            if (i + 1) % k == 0:
                scaler.unscale_(optimizer)
                if place == "gradients":
                    for p in model.parameters():
                        assert p.grad is not None
                        p.grad.div_(k)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert_run(run, [False, False], [256.0, 512.0])


def test_a_tail_that_is_left_over_when_the_run_ends() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()[:3]):
            with half():
                loss = F.mse_loss(model(x), y) / 2
            scaler.scale(loss).backward()
            if (i + 1) % 2 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert_run(run, [False], [256.0])


# test_grad_scaling_multiple: two models, two losses, two optimizers, one of them unscaled, one of them skipped.


@live_and_disabled
@pytest.mark.parametrize("kinds", [("plain", "plain"), ("fused", "plain"), ("plain", "fused"), ("fused", "foreach")])
def test_several_models_losses_and_optimizers(kinds: tuple[str, str], enabled: bool) -> None:
    model0, model1, scaler = two_layers(), two_layers(), scaler_of_upstream(enabled)
    optimizer0 = made("SGD", kinds[0], model0.parameters())
    optimizer1 = made("AdamW", kinds[1], model1.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer0.zero_grad()
            optimizer1.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
                output0, output1 = model0(x), model1(x)
                loss0 = F.mse_loss(0.3 * output0 + 0.7 * output1, y)
                loss1 = F.mse_loss(0.6 * output0 - 0.4 * output1, y)
            scaler.scale(loss0).backward(retain_graph=True)
            scaler.scale(loss1).backward()
            if i == SKIP and enabled:
                break_gradients(model1)
            scaler.unscale_(optimizer0)
            scaler.step(optimizer0)
            scaler.step(optimizer1)
            scaler.update()
    assert_silent(run)
    assert [step.optimizer for step in run.steps] == ["optimizer0", "optimizer1"] * 4
    assert [step.skipped for step in run.steps if step.optimizer == "optimizer0"] == NO_SKIP
    assert [step.skipped for step in run.steps if step.optimizer == "optimizer1"] == (ONE_SKIP if enabled else NO_SKIP)
    assert [step.found_inf for step in run.steps if step.optimizer == "optimizer1"] == (
        ONE_SKIP if enabled else NO_SKIP
    )
    if enabled:
        for name in ("optimizer0", "optimizer1"):
            mine = [step for step in run.steps if step.optimizer == name]
            assert [step.scale_before for step in mine] == ONE_SKIP_BEFORE
            assert [step.scale_after for step in mine] == ONE_SKIP_AFTER
    assert finite(model0) and finite(model1)


def test_two_scalers_for_two_models() -> None:
    model0, model1 = two_layers(), two_layers()
    first, second = scaler_of_upstream(), GradScaler("cpu", init_scale=16.0, growth_interval=2)
    optimizer0, optimizer1 = made("SGD", "plain", model0.parameters()), made("Adam", "fused", model1.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer0.zero_grad()
            optimizer1.zero_grad()
            with half():
                loss0, loss1 = F.mse_loss(model0(x), y), F.mse_loss(model1(x), y)
            first.scale(loss0).backward()
            second.scale(loss1).backward()
            if i == SKIP:
                break_gradients(model1)
            first.step(optimizer0)
            second.step(optimizer1)
            first.update()
            second.update()
    assert_silent(run)
    steps0 = [step for step in run.steps if step.scaler == "first"]
    steps1 = [step for step in run.steps if step.scaler == "second"]
    assert [(step.optimizer, step.skipped, step.scale_after) for step in steps0] == [
        ("optimizer0", False, scale) for scale in NO_SKIP_AFTER
    ]
    assert [(step.optimizer, step.skipped, step.scale_after) for step in steps1] == [
        ("optimizer1", False, 16.0),
        ("optimizer1", False, 32.0),
        ("optimizer1", True, 16.0),
        ("optimizer1", False, 16.0),
    ]


# test_grad_scaling_unscale_sparse.


@pytest.mark.parametrize("name", ["SGD", "SparseAdam"])
def test_sparse_gradients(name: str) -> None:
    table = nn.Embedding(6, 4, sparse=True)
    optimizer: Optimizer = getattr(torch.optim, name)(table.parameters(), lr=0.01)
    scaler = scaler_of_upstream()
    index = torch.tensor([1, 3, 1, 5])
    with record() as run:
        for i in range(4):
            optimizer.zero_grad()
            loss = table(index).square().mean()
            scaler.scale(loss).backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            if i == SKIP:
                table.weight.grad._values().fill_(INF)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    assert finite(table)


def test_sparse_gradients_unscaled_explicitly() -> None:
    table = nn.Embedding(6, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.01)
    scaler = scaler_of_upstream()
    with record() as run:
        for _ in range(4):
            optimizer.zero_grad()
            loss = table(torch.tensor([1, 3, 1, 5])).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


class HalfGradients(GradScaler):
    """A scaler that accepts float16 gradients, as fairscale's GradScaler does."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def test_half_duplicates_that_overflow_when_they_are_coalesced() -> None:
    # 40000 + 40000 is above 65504: each value is finite, and the sum is not.
    weight = torch.zeros(2, 3, dtype=torch.float16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    scaler = HalfGradients("cpu", init_scale=1.0, growth_interval=1)
    index, values = torch.tensor([[0, 1, 0], [2, 0, 2]]), ([40000.0, 1.0, 2.0], [40000.0, 1.0, 40000.0])
    with record() as run:
        for value in values:
            optimizer.zero_grad()
            scaler.scale(weight.sum()).backward()
            weight.grad = torch.sparse_coo_tensor(index, value, (2, 3), dtype=torch.float16, check_invariants=True)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    # The weight itself is float16, and nothing else is wrong.
    assert [finding.code for finding in run.findings] == ["AMP501"]
    assert [step.skipped for step in run.steps] == [False, True]
    assert bool(weight.isfinite().all())


# test_grad_scaler_pass_itself: optimizers that handle the scale themselves.


class ReadsAttributes(Optimizer):
    """An optimizer that reads the attributes ``grad_scale`` and ``found_inf``, and skips steps without the scaler."""

    _step_supports_amp_scaling = True
    grad_scale: Tensor
    found_inf: Tensor

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.found_inf.item():
            return
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / self.grad_scale, alpha=group["lr"])


class TakesTheScaler(Optimizer):
    """An optimizer that gets the scaler as an argument and calls the scaler's methods."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None, grad_scaler: Any = None) -> None:  # type: ignore[override]
        assert isinstance(grad_scaler, GradScaler)
        assert not hasattr(self, "grad_scale")
        assert not hasattr(self, "found_inf")
        scale = grad_scaler.get_scale()
        if any(found.item() for found in grad_scaler._check_inf_per_device(self).values()):
            return
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / scale, alpha=group["lr"])


def test_an_optimizer_that_reads_the_scale_from_itself() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = ReadsAttributes(model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    assert optimizer.taken == 3
    assert finite(model)
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")


def test_an_optimizer_that_is_handed_the_scaler() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = TakesTheScaler(model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself"):
                scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)
    assert optimizer.taken == 3
    assert finite(model)


def test_both_kinds_on_one_model() -> None:
    # Upstream steps two such optimizers over the same parameters: the scaler unscales neither.
    model = nn.Linear(4, 1)
    asks, reads = TakesTheScaler(model.parameters()), ReadsAttributes(model.parameters())
    scaler = GradScaler("cpu", init_scale=2.0)
    with record() as run:
        with half():
            loss = model(torch.randn(4, 4)).mean()
        scaler.scale(loss).backward()
        with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself"):
            scaler.step(asks)
        scaler.step(reads)
        scaler.update()
    assert_run(run, [False, False], [2.0, 2.0])
    assert [step.optimizer for step in run.steps] == ["asks", "reads"]


# test_params_invalidated_with_grads_invalidated_between_unscale_and_step: the line that must be named.


def line_of(text: str) -> int:
    """Return the number of the only line of this file that contains a text."""
    with open(__file__, encoding="utf-8") as file:
        found = [number for number, line in enumerate(file, 1) if text in line and "line_of" not in line]
    assert len(found) == 1, f"{text!r} stands on {len(found)} lines"
    return found[0]


@every_kind
@every_optimizer
def test_gradients_that_are_invalidated_after_unscale_are_named(name: str, kind: str) -> None:
    model = two_layers()
    optimizer = made(name, kind, model.parameters())
    scaler = GradScaler("cpu", init_scale=128.0)
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            for j, p in enumerate(model.parameters()):
                assert p.grad is not None
                p.grad.copy_(torch.tensor(INF if j % 2 else math.nan))  # the edit that breaks them
            scaler.step(optimizer)  # the step that applies them
            scaler.update()
    # The first iteration breaks the parameters. After that, the loss itself is NaN, and the scaler detects the NaN.
    assert not any(bool(p.isfinite().all()) for p in model.parameters())
    assert [finding.code for finding in run.findings] == ["AMP218"], shown(run.findings)
    assert run.findings[0].line in (line_of("  # the edit that breaks them"), line_of("  # the step that applies them"))
    assert [step.skipped for step in run.steps] == [False, True, True, True]


# Correct programs that peers report (PEERS, probe A), and the correct idioms that a run can show.


def test_a_second_optimizer_that_no_scaler_is_concerned_with() -> None:
    scaled, plain, scaler = two_layers(), two_layers(), scaler_of_upstream()
    optimizer, other = made("SGD", "plain", scaled.parameters()), made("Adam", "plain", plain.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            other.zero_grad()
            with half():
                loss = F.mse_loss(scaled(x), y)
            scaler.scale(loss).backward()
            F.mse_loss(plain(x), y).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            other.step()
    assert_silent(run)
    assert [(step.optimizer, step.scaler, step.skipped) for step in run.steps] == [
        ("optimizer", "scaler", False),
        ("other", None, False),
    ] * 4


def test_the_control_of_an_upstream_test() -> None:
    control, model, scaler, data = two_layers(), two_layers(), scaler_of_upstream(), four_batches()
    opt_control, opt_scaling = made("SGD", "plain", control.parameters()), made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(data):
            opt_control.zero_grad()
            loss = F.mse_loss(control(x), y)
            loss.backward()
            if i != SKIP:
                opt_control.step()
        for i, (x, y) in enumerate(data):
            opt_scaling.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scaler.step(opt_scaling)
            scaler.update()
    assert_silent(run)
    assert [step.skipped for step in run.steps if step.optimizer == "opt_scaling"] == ONE_SKIP
    assert [step.skipped for step in run.steps if step.optimizer == "opt_control"] == [False, False, False]


Clear = Callable[[nn.Module, "Optimizer"], None]


def drop(model: nn.Module, optimizer: Optimizer) -> None:
    for p in model.parameters():
        p.grad = None


def zero(model: nn.Module, optimizer: Optimizer) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.zero_()


CLEARS: dict[str, Clear] = {
    "optimizer": lambda model, optimizer: optimizer.zero_grad(),
    "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "model": lambda model, optimizer: model.zero_grad(),
    "model, to zero": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "grad = None": drop,
    "grad.zero_()": zero,
}


@pytest.mark.parametrize("place", ["first", "before backward", "between step and update", "last"])
@pytest.mark.parametrize("clear", CLEARS)
def test_every_way_and_place_to_clear_gradients(clear: str, place: str) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            if place == "first":
                CLEARS[clear](model, optimizer)
            with half():
                loss = F.mse_loss(model(x), y)
            if place == "before backward":
                CLEARS[clear](model, optimizer)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if place == "between step and update":
                CLEARS[clear](model, optimizer)
            scaler.update()
            if place == "last":
                CLEARS[clear](model, optimizer)
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


@pytest.mark.parametrize("how", ["autograd.backward", "several tensors", "sum of scaled", "scaled list", "gradient"])
def test_every_way_to_run_a_scaled_loss_backward(how: str) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                output = model(x)
                loss, other = F.mse_loss(output, y), F.l1_loss(output, y)
            if how == "autograd.backward":
                torch.autograd.backward(scaler.scale(loss))
            elif how == "several tensors":
                torch.autograd.backward([scaler.scale(loss), scaler.scale(other)])
            elif how == "sum of scaled":
                (scaler.scale(loss) + scaler.scale(other)).backward()
            elif how == "scaled list":
                first, second = scaler.scale([loss, other])
                (first + 0.5 * second).backward()
            else:
                scaler.scale(loss).backward(gradient=torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


@pytest.mark.parametrize("updates", [1, 2], ids=["one update", "an update each"])
def test_adversarial_training(updates: int) -> None:
    generator, critic, scaler = two_layers(), two_layers(), scaler_of_upstream()
    opt_g, opt_c = made("Adam", "plain", generator.parameters()), made("Adam", "plain", critic.parameters())
    with record() as run:
        for i, (noise, real) in enumerate(four_batches()):
            opt_c.zero_grad()
            with half():
                fake = generator(noise)
                loss_c = critic(fake.detach()).float().mean() - critic(real).float().mean()
            scaler.scale(loss_c).backward()
            if i == SKIP:
                break_gradients(critic)
            scaler.step(opt_c)
            if updates == 2:
                scaler.update()
            opt_g.zero_grad()
            with half():
                loss_g = -critic(fake).float().mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()
    assert_silent(run)
    assert [step.skipped for step in run.steps if step.optimizer == "opt_c"] == ONE_SKIP
    assert [step.skipped for step in run.steps if step.optimizer == "opt_g"] == NO_SKIP


def test_an_iteration_that_is_given_up_after_unscale() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            if i == 1:
                optimizer.zero_grad()
                scaler.update()
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert_run(run, [False, False, False], [256.0, 1024.0, 2048.0], [128.0, 512.0, 1024.0])


def test_a_scheduler_that_follows_the_steps_taken() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)


def test_a_step_that_is_guarded_where_there_are_no_gradients() -> None:
    used, unused, scaler = two_layers(), two_layers(), scaler_of_upstream()
    optimizers = [made("SGD", "plain", used.parameters()), made("SGD", "plain", unused.parameters())]
    with record() as run:
        for x, y in four_batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            with half():
                loss = F.mse_loss(used(x), y)
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                    scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


@pytest.mark.parametrize("use_amp", [True, False])
def test_a_scaler_or_none(use_amp: bool) -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters())
    scaler = scaler_of_upstream() if use_amp else None
    region = half() if use_amp else contextlib.nullcontext()
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with region:
                loss = F.mse_loss(model(x), y)
            (scaler.scale(loss) if scaler is not None else loss).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER if use_amp else None)


def test_regions_that_are_used_again_nested_and_switched_off() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    outer, inner = half(), half()

    @torch.autocast("cpu", dtype=torch.float16)
    def forward(x: Tensor) -> Tensor:
        hidden = model[0](x)
        with torch.autocast("cpu", enabled=False):
            hidden = hidden.float().tanh()
        output: Tensor = model[1](hidden)
        return output

    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with contextlib.ExitStack() as stack:
                stack.enter_context(outer)
                with inner:
                    output = forward(x)
                loss = F.mse_loss(output, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad(), outer:
                F.mse_loss(model(x), y)
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


@pytest.mark.parametrize("way", ["cache off", "cache cleared"])
def test_a_loop_inside_a_region_that_keeps_no_old_copies(way: str) -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters(), lr=0.1)
    x, y = four_batches()[0]
    losses = []
    with record() as run, torch.autocast("cpu", enabled=False, cache_enabled=way != "cache off"):
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=way != "cache off"):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if way == "cache cleared":
                torch.clear_autocast_cache()
    assert_run(run, NO_SKIP)
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 4


def test_bfloat16_without_a_scaler() -> None:
    model = two_layers()
    optimizer = made("AdamW", "fused", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
    assert_run(run, NO_SKIP)
    assert all(step.scaler is None for step in run.steps)


def test_float32_adapters_on_a_frozen_bfloat16_base() -> None:
    with record() as run:
        base, adapter = two_layers(), nn.Linear(8, 8)
        base.requires_grad_(requires_grad=False)
        base.to(torch.bfloat16)
        optimizer = made("AdamW", "plain", adapter.parameters())
        for x, y in four_batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(base(x) + adapter(x), y)
            loss.backward()
            optimizer.step()
    assert_run(run, NO_SKIP)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_activation_checkpointing(reentrant: bool) -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for i, (x, y) in enumerate(four_batches()):
            optimizer.zero_grad()
            with half():
                hidden = checkpoint(model[0], x.requires_grad_(), use_reentrant=reentrant)
                loss = F.mse_loss(model[1](hidden), y)
            scaler.scale(loss).backward()
            if i == SKIP:
                break_gradients(model)
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, ONE_SKIP, ONE_SKIP_AFTER)


def test_a_checkpoint_with_its_scaler_and_an_export_without() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("AdamW", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        file = io.BytesIO()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, file)
        torch.save(model.state_dict(), io.BytesIO())
        torch.save({"model": model.state_dict(), "epoch": 1}, io.BytesIO())
        file.seek(0)
        loaded = torch.load(file)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        scaler.load_state_dict(loaded["scaler"])
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


def test_gradients_that_are_unscaled_and_checked_by_hand() -> None:
    model = two_layers()
    optimizer = made("SGD", "plain", model.parameters())
    scaler = GradScaler("cpu", init_scale=128.0)
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scale, broken = scaler.get_scale(), False
            for p in model.parameters():
                assert p.grad is not None
                p.grad.div_(scale)
                broken = broken or not bool(p.grad.isfinite().all())
            if not broken:
                optimizer.step()
            scaler.update(scale * 0.5 if broken else scale)
    assert_silent(run)
    assert [step.skipped for step in run.steps] == NO_SKIP


def test_gradients_that_are_dropped_or_only_looked_at() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    seen = []
    with record() as run:
        for x, y in four_batches():
            optimizer.zero_grad()
            with half():
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            for p in model[0].parameters():
                assert p.grad is not None
                p.grad.zero_()
            model[1].bias.grad = None
            seen += [torch.sign(p.grad) for p in model.parameters() if p.grad is not None]
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


def test_a_custom_function_and_a_double_backward_inside_a_region() -> None:
    model, scaler = two_layers(), scaler_of_upstream()
    optimizer = made("SGD", "plain", model.parameters())
    with record() as run:
        for x, y in four_batches():
            x.requires_grad_()
            optimizer.zero_grad()
            with half():
                output = model(x)
                # Forces are part of the forward pass of a molecular model.
                (force,) = torch.autograd.grad(output.float().sum(), x, create_graph=True)
                loss = F.mse_loss(output, y) + force.square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, NO_SKIP, NO_SKIP_AFTER)


@pytest.mark.parametrize(("factor", "overflows"), [(2.0**12, 7), (2.0**18, 13)])
def test_overflows_of_the_first_iterations_are_calibration(factor: float, overflows: int) -> None:
    # The gradient of each of the 64 outputs is scale * factor / 64, in float16, where 2**16 is inf and 2**15 is not.
    model = nn.Linear(8, 8, bias=False)
    optimizer = made("SGD", "plain", model.parameters(), lr=1e-9)
    scaler = GradScaler("cpu")
    x = torch.full((8, 8), 2.0**-6)
    with record() as run:
        for _ in range(overflows + 5):
            optimizer.zero_grad()
            with half():
                loss = factor * model(x).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert_run(run, [True] * overflows + [False] * 5)
    assert run.scale_history[-1][1] == scaler.get_scale() == 2.0 ** (16 - overflows)
