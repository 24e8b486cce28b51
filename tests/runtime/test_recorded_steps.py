"""Each step of a run has the loss, the norm, the scale and the skip of its own optimizer and its own scaler."""

# mypy: allow-untyped-calls

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_amp_check import Run, record

pytestmark = pytest.mark.usefixtures("patched_once")


def layer(start: float) -> nn.Linear:
    """Return a model with one weight and no bias, whose output for an input of one is the weight."""
    made = nn.Linear(1, 1, bias=False)
    nn.init.constant_(made.weight, start)
    return made


def sgd(model: nn.Module, lr: float = 0.0) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


ONE = torch.ones(1, 1)


@pytest.mark.parametrize("scaled", [False, True], ids=["no scaler", "a scaler"])
def test_two_optimizers_have_losses_of_their_own(scaled: bool) -> None:
    first, second = layer(3.0), layer(5.0)
    one, two = sgd(first), sgd(second)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)
    with record() as run:
        for _ in range(2):
            one.zero_grad()
            two.zero_grad()
            scaler.scale(first(ONE).sum()).backward()
            scaler.scale(second(ONE).sum()).backward()
            scaler.step(one)
            scaler.step(two)
            scaler.update()
    assert [(step.optimizer, step.loss) for step in run.steps] == [("one", 3.0), ("two", 5.0)] * 2
    assert {step.scaler for step in run.steps} == ({"scaler"} if scaled else {None})


def test_one_backward_for_two_optimizers_is_the_loss_of_both() -> None:
    first, second = layer(3.0), layer(5.0)
    one, two = sgd(first), sgd(second)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        scaler.scale(first(ONE).sum() + second(ONE).sum()).backward()
        scaler.step(one)
        scaler.step(two)
        scaler.update()
    assert [step.loss for step in run.steps] == [8.0, 8.0]
    assert [step.index for step in run.steps] == [0, 1]


def test_an_optimizer_that_has_no_new_gradients_has_no_loss_either() -> None:
    first, second = layer(3.0), layer(5.0)
    one, two = sgd(first), sgd(second)
    with record() as run:
        first(ONE).sum().backward()
        one.step()
        second(ONE).sum().backward()
        one.step()
        two.step()
    assert [(step.optimizer, step.loss) for step in run.steps] == [("one", 3.0), ("one", None), ("two", 5.0)]


def test_two_scalers_have_scales_and_skips_of_their_own() -> None:
    first, second = layer(1.0), layer(1.0)
    one, two = sgd(first), sgd(second)
    large = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    small = torch.amp.GradScaler("cpu", init_scale=4.0)
    with record() as run:
        for factor in (1.0, float("inf"), 1.0, 1.0):
            one.zero_grad()
            two.zero_grad()
            large.scale(first(ONE).sum()).backward()
            small.scale(second(ONE).sum() * factor).backward()
            large.step(one)
            small.step(two)
            large.update()
            small.update()
    reported = [
        (step.scaler, step.scale_before, step.scale_after, step.growth_tracker, step.skipped) for step in run.steps
    ]
    assert reported[::2] == [
        ("large", 64.0, 64.0, 1, False),
        ("large", 64.0, 128.0, 0, False),
        ("large", 128.0, 128.0, 1, False),
        ("large", 128.0, 256.0, 0, False),
    ]
    assert reported[1::2] == [
        ("small", 4.0, 4.0, 1, False),
        ("small", 4.0, 2.0, 0, True),
        ("small", 2.0, 2.0, 1, False),
        ("small", 2.0, 2.0, 2, False),
    ]
    assert (run.steps_total, run.skipped_total) == (8, 1)


def test_a_step_before_its_update_has_the_scale_that_it_was_made_with() -> None:
    model = layer(2.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        scaler.scale(model(ONE).sum()).backward()
        scaler.step(optimizer)
    (step,) = run.steps
    assert (step.scale_before, step.scale_after, step.growth_tracker) == (16.0, 16.0, None)
    assert step.loss == 2.0


def test_a_scale_that_the_program_sets_itself() -> None:
    model = layer(2.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        for scale in (16.0, 32.0, 32.0):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum()).backward()
            scaler.step(optimizer)
            scaler.update(scale)
    assert [(step.scale_before, step.scale_after) for step in run.steps] == [(16.0, 16.0), (16.0, 32.0), (32.0, 32.0)]
    assert run.scale_history == [(0, 16.0), (1, 32.0)]


@pytest.mark.parametrize(
    ("roots", "loss"),
    [
        (lambda x: [x.sum()], 3.0),
        (lambda x: [x.sum(), 2.0 * x.sum()], 3.0),
        (lambda x: [x.sum().reshape(1, 1), x.sum()], 3.0),
        # The sum, as of losses that are not reduced.
        (lambda x: [torch.cat([x.flatten(), x.flatten()])], 6.0),
        (lambda x: [x.half().sum()], 3.0),
    ],
)
def test_the_loss_of_a_step_is_the_first_root_of_its_backward(roots: Callable[[Any], list[Any]], loss: float) -> None:
    model = layer(3.0)
    optimizer = sgd(model)
    with record() as run:
        made = roots(model(ONE))
        torch.autograd.backward(made, [torch.ones_like(root) for root in made])
        optimizer.step()
    assert run.failure is None
    assert [step.loss for step in run.steps] == [loss]


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("clear", [{"set_to_none": True}, {"set_to_none": False}, None])
def test_steps_of_tensors_without_values_have_no_numbers(clear: dict[str, bool] | None, device: str) -> None:
    with record() as run, nullcontext() if device == "meta" else FakeTensorMode():
        model = nn.Linear(2, 1, device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            if clear is not None:
                optimizer.zero_grad(**clear)
            model(torch.ones(4, 2, device=device)).sum().backward()
            optimizer.step()
    assert run.failure is None, run.failure
    assert [step.loss for step in run.steps] == [None, None]
    # Gradients without values may not have been cleared.
    assert [finding.label for finding in run.findings] == ["backward@stale"] * (clear is None)


def test_a_step_without_a_source_has_usual_names() -> None:
    program = """
optimizer.zero_grad()
scaler.scale(model(ONE).sum()).backward()
scaler.step(optimizer)
scaler.update()
"""
    model = layer(3.0)
    names = {"model": model, "optimizer": sgd(model), "scaler": torch.amp.GradScaler("cpu"), "ONE": ONE}
    with record() as run:
        exec(compile(program, "no-file.py", "exec"), names)  # noqa: S102 - ours
    assert run.failure is None
    assert [(step.optimizer, step.scaler) for step in run.steps] == [("the optimizer", "the scaler")]


def test_the_loss_of_a_step_is_the_sum_of_its_window() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    with record() as run:
        optimizer.zero_grad()
        for number, factor in enumerate((1.0, 2.0, 3.0, 4.0)):
            (model(ONE).sum() * factor / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [step.loss for step in run.steps] == [1.5, 3.5]
    assert run.findings == []


@pytest.mark.parametrize("optimizer", ["fused", "foreach", "plain"])
@pytest.mark.parametrize("unscales", [False, True])
def test_skips_are_those_of_the_scaler_for_every_kind_of_optimizer(optimizer: str, unscales: bool) -> None:
    model = layer(1.0)
    how: dict[str, Any] = {"plain": {"foreach": False}}.get(optimizer, {optimizer: True})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, **how)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        for factor in (1.0, float("nan"), float("inf"), 1.0):
            adam.zero_grad()
            scaler.scale(model(ONE).sum() * factor).backward()
            if unscales:
                scaler.unscale_(adam)
            scaler.step(adam)
            scaler.update()
    assert [step.skipped for step in run.steps] == [step.found_inf for step in run.steps] == [False, True, True, False]
    assert [step.scale_before for step in run.steps] == [16.0, 16.0, 8.0, 4.0]
    assert run.skipped_total == 2


def test_a_norm_is_the_one_by_which_the_program_clips_and_unscaled() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        for factor in (3.0, 5.0):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum() * factor).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        scaler.scale(model(ONE).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert [step.grad_norm for step in run.steps] == [pytest.approx(3.0), pytest.approx(5.0), None]


def test_with_norms_a_step_has_the_norm_that_it_finds_after_clipping() -> None:
    first, second = layer(1.0), layer(1.0)
    one, two = sgd(first), sgd(second)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record(norms=True) as run:
        scaler.scale(first(ONE).sum() * 3.0 + second(ONE).sum() * 4.0).backward()
        scaler.unscale_(one)
        nn.utils.clip_grad_norm_(first.parameters(), 1.0)
        scaler.step(one)
        scaler.step(two)
        scaler.update()
    # The gradients of the second are scaled until its step.
    assert [step.grad_norm for step in run.steps] == [pytest.approx(1.0, rel=1e-4), pytest.approx(4.0)]


def test_a_step_that_torch_refuses_is_none() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        scaler.scale(model(ONE).sum()).backward()
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scaler.step(optimizer, closure=lambda: 0.0)
        scaler.step(optimizer)
        scaler.update()
    assert [step.skipped for step in run.steps] == [False]
    assert run.steps_total == 1


def test_a_step_says_what_it_was() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with record() as run:
        for factor in (1.0, float("inf")):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [repr(step) for step in run.steps] == [
        "<step 0 of optimizer taken, scale 16.0 -> 16.0>",
        "<step 1 of optimizer skipped, scale 16.0 -> 8.0>",
    ]
    taken = run.steps[0].as_dict()
    assert taken.pop("site").startswith(__file__)
    assert taken == {
        "index": 0,
        "optimizer": "optimizer",
        "scaler": "scaler",
        "loss": 1.0,
        "scale_before": 16.0,
        "scale_after": 16.0,
        "growth_tracker": 1,
        "skipped": False,
        "skip_reason": None,
        "found_inf": False,
        "grad_norm": None,
    }


def test_what_has_no_name_is_called_what_it_is() -> None:
    model = layer(1.0)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=16.0)
    step = scaler.step
    with record() as run:
        scaler.scale(model(ONE).sum()).backward()
        for each in (optimizer,):
            step(each)
        scaler.update()
    assert [(found.optimizer, found.scaler) for found in run.steps] == [("each", "the scaler")]


def test_nothing_of_a_recording_stays_in_torch() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    hooks = model.weight.register_hook(lambda gradient: gradient * 1.0)
    assert torch._C._len_torch_function_stack() == 0
    with record(norms=True):
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(ONE).float().sum() * 2.0
            scaler.scale(loss).backward()
            with torch.no_grad():
                model.weight.mul_(1.0)
            scaler.step(optimizer)
            scaler.update()
            loss = loss.detach() + 1.0
    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    hooks.remove()
    assert not model.weight._backward_hooks


def test_a_thread_that_outlives_the_recording_keeps_no_hook() -> None:
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    region = torch.autocast("cpu", dtype=torch.bfloat16)
    with record():
        region.__enter__()
        thread = threading.Thread(target=wait)
        thread.start()
        ready.wait()
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    region.__exit__(None, None, None)
    done.set()
    thread.join()
    assert not hooks


def test_a_thread_that_outlives_its_region_keeps_no_hook() -> None:
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    with record():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            thread = threading.Thread(target=wait)
            thread.start()
            ready.wait()
            during = len(torch.nn.modules.module._global_forward_pre_hooks)
        after = len(torch.nn.modules.module._global_forward_pre_hooks)
        done.set()
        thread.join()
    assert (during - after) == 1


def test_a_model_that_is_gone_is_not_kept_by_a_recording() -> None:
    models: list[weakref.ref[nn.Module]] = []

    def output() -> torch.Tensor:
        model = nn.Sequential(nn.Sequential(layer(1.0)), nn.Flatten())
        models.append(weakref.ref(model))
        made: torch.Tensor = model(ONE)
        return made

    with record():
        kept = [output() for _ in range(3)]
        gc.collect()
        assert [each() for each in models] == [None] * 3
        assert [each.item() for each in kept] == [1.0] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA this scaler does not disable itself")
@pytest.mark.parametrize("early", [False, True], ids=["made while it is recorded", "made before"])
def test_a_scaler_that_has_disabled_itself_is_reported_once(early: bool) -> None:
    def made() -> list[torch.amp.GradScaler]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")]

    scalers = made() if early else []
    model = layer(1.0)
    optimizer = sgd(model)
    with record() as run:
        scalers = scalers or made()
        for scaler in scalers:
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        for scaler in scalers:
            assert scaler.scale(ONE) is ONE
    assert [finding.code for finding in run.findings] == ["AMP217"]
    # No scaler made these steps.
    assert [(step.scaler, step.scale_before, step.skipped) for step in run.steps] == [(None, None, False)] * 2


def test_a_scaler_that_was_switched_off_by_hand_is_none() -> None:
    model = layer(1.0)
    optimizer = sgd(model)
    with record() as run:
        for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cuda", enabled=False)):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert run.findings == []
    assert [(step.optimizer, step.scaler) for step in run.steps] == [("optimizer", None)] * 2


@pytest.mark.parametrize(
    "clear", ["optimizer.zero_grad()", "model.zero_grad()", "optimizer.zero_grad(set_to_none=False)"]
)
def test_a_cleared_backward_is_no_part_of_the_loss_of_a_step(clear: str) -> None:
    with record() as run:
        model = nn.Linear(2, 1)
        optimizer = sgd(model)
        for loss in (5.0, 1.0, 2.0):
            (model(torch.ones(1, 2)).sum() * 0.0 + loss).backward()
            if loss == 5.0:
                exec(clear)  # noqa: S102 - our own words
        optimizer.step()
    # Two backward passes belong to the step.
    assert [step.loss for step in run.steps] == [3.0]


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (float("nan"), "the loss is nan"),
        (float("inf"), "the loss is inf"),
        # The loss is finite here, and its gradients in float16 are not.
        (60_000.0, "gradients are not finite at the loss scale 65536"),
    ],
)
def test_a_skipped_step_says_why(factor: float, reason: str) -> None:
    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with record() as run:
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(2, 4)).float().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    (step,) = run.steps
    assert (step.skipped, step.skip_reason) == (True, reason)
    assert step.as_dict()["skip_reason"] == reason


@pytest.mark.parametrize(("skipped", "is_found"), [(1, True), (2, False), (3, False)])
def test_an_average_counts_a_skip_of_the_only_step_since_the_last_average(skipped: int, is_found: bool) -> None:
    model = layer(1.0)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=8.0)
    mean = torch.optim.swa_utils.AveragedModel(model)
    with record() as run:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum() * (float("inf") if step == skipped else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            if step != 2:
                mean.update_parameters(model)
    assert run.failure is None
    assert [finding.code for finding in run.findings if finding.code == "AMP403"] == ["AMP403"] * is_found


@pytest.mark.parametrize(
    ("form", "is_found"),
    [
        ("equal weights", True),
        ("equal weights beside another training", True),
        # An exponential average moves towards the weights as they are.
        ("exponential", False),
        ("exponential, for all weights together", False),
        # It is not known which optimizer the average follows.
        ("equal weights of two optimizers", False),
        ("equal weights of another model", False),
    ],
)
def test_the_averages_that_count_a_skipped_step(form: str, is_found: bool) -> None:
    model = layer(1.0)
    other = model if "two" in form else layer(1.0)
    optimizer, second = sgd(model), sgd(other)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    options: dict[str, Any] = {}
    if form == "exponential":
        options = {"avg_fn": torch.optim.swa_utils.get_ema_avg_fn(0.9)}
    elif "together" in form:
        options = {"multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)}
    averaged = nn.Linear(2, 1) if "another model" in form else model
    mean = torch.optim.swa_utils.AveragedModel(averaged, **options)
    with record() as run:
        for factor in (1.0, float("inf"), 1.0):
            for each, trained in ((optimizer, model), (second, other)):
                each.zero_grad()
                scaler.scale(trained(ONE).sum() * (factor if each is optimizer else 1.0)).backward()
                scaler.step(each)
            scaler.update()
            mean.update_parameters(averaged)
    assert run.failure is None
    assert [finding.code for finding in run.findings if finding.code == "AMP403"] == ["AMP403"] * is_found


def test_an_average_of_weights_after_a_skipped_step_is_named() -> None:
    model = layer(1.0)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=8.0)
    kept = {"mean": torch.optim.swa_utils.AveragedModel(model)}
    with record() as run:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            kept["mean"].update_parameters(model)
    assert run.failure is None
    (message,) = [finding.message for finding in run.findings if finding.code == "AMP403"]
    assert message.startswith("`kept['mean'].update_parameters` runs although the step of `optimizer` was skipped")


def scaled_steps(factors: list[float], init_scale: float = 16.0) -> Run:
    """Record steps with a scale that doubles in each applied step."""
    model = layer(1.0)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=1)
    with record() as run:
        for factor in factors:
            optimizer.zero_grad()
            scaler.scale(model(ONE).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    return run


INF = float("inf")


@pytest.mark.parametrize(
    ("factors", "history", "bounds", "skipped", "longest"),
    [
        ([1.0], [(0, 16.0), (0, 32.0)], (16.0, 32.0), 0, 0),
        ([INF], [(0, 16.0), (0, 8.0)], (8.0, 16.0), 1, 1),
        ([INF, 1.0, 1.0], [(0, 16.0), (0, 8.0), (1, 16.0), (2, 32.0)], (8.0, 32.0), 1, 1),
        ([1.0, INF, INF, INF], [(0, 16.0), (0, 32.0), (1, 16.0), (2, 8.0), (3, 4.0)], (4.0, 32.0), 3, 3),
        ([INF, INF, 1.0, INF], [(0, 16.0), (0, 8.0), (1, 4.0), (2, 8.0), (3, 4.0)], (4.0, 16.0), 3, 2),
    ],
)
def test_the_history_and_the_bounds_of_a_scale(
    factors: list[float], history: list[tuple[int, float]], bounds: tuple[float, float], skipped: int, longest: int
) -> None:
    run, (lowest, highest) = scaled_steps(factors), bounds
    assert run.scale_history == history
    run.assert_scale(minimum=lowest, maximum=highest, max_skipped=skipped, recovers_within=longest)
    with pytest.raises(AssertionError, match=rf"{lowest:g} \(2\^\d+\), below"):
        run.assert_scale(minimum=lowest + 1.0)
    with pytest.raises(AssertionError, match=f"the scale rose to {highest:g} "):
        run.assert_scale(maximum=highest - 1.0)
    if longest:
        with pytest.raises(AssertionError, match=f"{longest} steps? in a row"):
            run.assert_scale(recovers_within=longest - 1)


class Ahead(torch.optim.Optimizer):
    """An optimizer around another one, as of a lookahead."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step()


def test_an_optimizer_that_steps_another_one_makes_one_step() -> None:
    model = layer(3.0)
    optimizer = Ahead(sgd(model))
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(ONE).sum().backward()
            optimizer.step()
    assert (run.failure, run.findings) == (None, [])
    assert [step.loss for step in run.steps] == [3.0, 3.0]


@pytest.mark.parametrize(
    ("init_scale", "skips", "label"),
    [
        # The first scale may be too large by any factor: from 2 ** 24, it may fall to 1.
        (2.0**24, 20, None),
        (2.0**24, 24, None),
        (2.0**24, 25, "scale:below-one"),
        (2.0**16, 16, None),
        (2.0**16, 17, "scale:below-one"),
        (2.0**4, 4, None),
        (2.0**4, 5, "scale:below-one"),
    ],
)
def test_a_scale_may_fall_from_its_first_value_to_one(init_scale: float, skips: int, label: str | None) -> None:
    run = scaled_steps([INF] * skips, init_scale)
    assert [each.label for each in run.findings if each.code == "AMP801"] == [label] * (label is not None)


@pytest.mark.parametrize("is_early", [True, False], ids=["made before the recording", "made while it is recorded"])
def test_with_norms_a_step_past_the_scaler_has_the_norm_of_unscaled_gradients(*, is_early: bool) -> None:
    model, scaler = layer(1.0), torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizer = sgd(model)
    with record(norms=True) as run:
        optimizer = optimizer if is_early else sgd(model)
        scaler.scale(model(ONE).sum() * 3.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        (model(ONE).sum() * 5.0).backward()
        optimizer.step()
    assert run.failure is None
    assert [step.grad_norm for step in run.steps] == [pytest.approx(3.0), pytest.approx(5.0)]
    assert [step.loss for step in run.steps] == [3.0, 5.0]


@pytest.mark.parametrize("of_first", [True, False])
def test_the_scaler_of_the_loss_of_an_optimizer_is_named(*, of_first: bool) -> None:
    first, second = layer(1.0), layer(1.0)
    one, two = sgd(first), sgd(second)
    large, small = torch.amp.GradScaler("cpu", init_scale=64.0), torch.amp.GradScaler("cpu", init_scale=4.0)
    with record() as run:
        for index in range(2):
            one.zero_grad()
            two.zero_grad()
            large.scale(first(ONE).sum()).backward()
            small.scale(second(ONE).sum()).backward()
            if index == 1 and of_first:
                one.step()
            else:
                large.step(one)
            if index == 1 and not of_first:
                two.step()
            else:
                small.step(two)
            for scaler, has_stepped in ((large, not of_first), (small, of_first)):
                if index == 0 or has_stepped:
                    scaler.update()
    assert run.failure is None
    (message,) = [finding.message for finding in run.findings if finding.code == "AMP204"]
    assert ("write `large.step(one)`" if of_first else "write `small.step(two)`") in message


@pytest.mark.parametrize("is_crossed", [False, True])
def test_a_step_by_the_scaler_of_another_loss_is_found(*, is_crossed: bool) -> None:
    first, second = layer(1.0), layer(1.0)
    one, two = sgd(first), sgd(second)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0), torch.amp.GradScaler("cpu", init_scale=4.0)]
    with record() as run:
        for _ in range(2):
            one.zero_grad()
            two.zero_grad()
            scalers[0].scale(first(ONE).sum()).backward()
            scalers[1].scale(second(ONE).sum()).backward()
            scalers[is_crossed].step(one)
            scalers[not is_crossed].step(two)
            for scaler in scalers:
                scaler.update()
    assert run.failure is None
    found = [(finding.label, finding.names["optimizer"]) for finding in run.findings if finding.code != "AMP110"]
    assert found == ([("step@another", "one"), ("step@another", "two")] if is_crossed else [])
