"""What a recording examines is bounded: each bound in a pair of programs, at the bound and one above."""

from __future__ import annotations

import io
import math
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - needs torch

from pytest_amp_check import record  # noqa: E402

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def found(program: Callable[[], object]) -> list[tuple[str, bool]]:
    """Return label and certainty of each finding of a run."""
    with record() as run:
        program()
    assert run.failure is None
    return [(finding.label, finding.certain) for finding in run.findings]


def training(scale: float = 8.0) -> Any:
    """Return a model, its optimizer and a scaler."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return types.SimpleNamespace(model=model, optimizer=optimizer, scaler=scaler, loss=None)


def run_backward(of: Any, factor: float = 1.0) -> None:
    of.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=FLOAT16):
        of.loss = of.model(torch.ones(2, 4)).square().sum() * factor
    of.scaler.scale(of.loss).backward()


def make_step(of: Any) -> None:
    of.scaler.step(of.optimizer)
    of.scaler.update()


@pytest.mark.parametrize(("count", "is_lost"), [(16, False), (17, True)])
def test_a_sum_is_checked_after_sixteen_terms(count: int, is_lost: bool) -> None:
    def add() -> None:
        total = torch.tensor(256.0, dtype=BFLOAT16)
        for _ in range(count):  # The first addition shows that the tensor is a sum.
            total += 1.0

    assert found(add) == [("sum:low", True)] * is_lost


@pytest.mark.parametrize(
    ("numbers", "dtype", "is_rounded"),
    [
        ((257,), BFLOAT16, False),
        ((258,), BFLOAT16, True),
        ((1, 258), BFLOAT16, True),
        ((-258, 0), BFLOAT16, True),
        ((258, 0, -1), BFLOAT16, True),
        ((0, 258, 2), BFLOAT16, False),
        ((257.5,), BFLOAT16, False),
        ((300.0,), BFLOAT16, True),
        ((0.5, 300), BFLOAT16, False),
        ((2049,), FLOAT16, False),
        ((2050,), FLOAT16, True),
    ],
)
def test_a_range_of_more_integers_than_the_dtype_holds(
    numbers: tuple[float, ...], dtype: Any, is_rounded: bool
) -> None:
    assert found(lambda: torch.arange(*numbers, dtype=dtype)) == [("positions:index", True)] * is_rounded


LARGE = torch.full((2,), 9000.0, dtype=BFLOAT16)


def sine_in_backward() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda grad: (torch.sin(LARGE), None)[1])
    torch.autograd.backward(weight.sum())


@pytest.mark.parametrize(
    ("call", "is_found"),
    [
        (lambda: torch.sin(LARGE), True),
        (lambda: -LARGE.cos(), True),
        (lambda: torch.sin(LARGE[:0]), False),
        (lambda: torch.sin(LARGE * math.inf), False),
        (lambda: torch.sin(LARGE.float()), False),
        # Values without accessible data.
        (lambda: torch.sin(LARGE.to("meta")), False),
        (lambda: torch.vmap(torch.sin)(LARGE), False),
        (sine_in_backward, False),
    ],
)
def test_angles_whose_values_are_known(call: Callable[[], object], is_found: bool) -> None:
    assert found(call) == [("positions:radians", True)] * is_found


def test_counts_are_certain() -> None:
    where, source = torch.zeros(300, dtype=torch.int64), torch.ones(300, dtype=BFLOAT16)
    assert found(lambda: torch.zeros(2, dtype=BFLOAT16).index_add_(0, where, source)) == [("sum:count", True)]


@pytest.mark.parametrize(("depth", "is_found"), [(0, True), (5, True), (6, False)])
def test_a_checkpoint_is_searched_to_a_depth(depth: int, is_found: bool) -> None:
    of = training()

    def save() -> None:
        run_backward(of)
        make_step(of)
        checkpoint: Any = {"optimizer": of.optimizer.state_dict()}
        for _ in range(depth):
            checkpoint = {"inner": checkpoint}
        torch.save(checkpoint, io.BytesIO())

    assert found(save) == [("save:no-scaler", True)] * is_found


def test_a_checkpoint_that_holds_itself_is_searched_once() -> None:
    of = training()

    def save() -> None:
        run_backward(of)
        make_step(of)
        checkpoint: list[Any] = [{"optimizer": of.optimizer.state_dict()}]
        checkpoint += [checkpoint] * 50
        torch.save(checkpoint, io.BytesIO())

    assert found(save) == [("save:no-scaler", True)]


@pytest.mark.parametrize(("averages", "is_found"), [(4, True), (5, False)])
def test_multiplications_are_measured_six_times_at_a_location(averages: int, is_found: bool) -> None:
    of = training()

    def clip() -> None:
        for i in range(averages + 3):
            run_backward(of, i + 1.0)
            grads = [p.grad for p in of.model.parameters()]
            norm = math.sqrt(sum(float(grad.norm()) ** 2 for grad in grads))
            for grad in grads:
                grad.mul_(0.5 if i < averages else 0.01 / norm)
            make_step(of)

    assert (("clip@scaled-by-hand", True) in found(clip)) == is_found


@pytest.mark.parametrize(("others", "is_found"), [(0, True), (8, True), (9, False)])
def test_a_forward_pass_is_sought_for_eight_losses(others: int, is_found: bool) -> None:
    of = training()
    other = torch.ones((), requires_grad=True)

    def train() -> None:
        for _ in range(2):
            of.optimizer.zero_grad()
            of.scaler.scale(of.model(torch.ones(2, 4)).sum()).backward()
            for _ in range(others):
                of.scaler.scale(other * 2)
            make_step(of)

    assert found(train) == [("scale@no-autocast", True)] * is_found


@pytest.mark.parametrize(("ops", "is_found"), [(0, True), (63, True), (64, False)])
def test_a_scaled_loss_is_sought_in_sixty_four_nodes(ops: int, is_found: bool) -> None:
    of = training()

    def train() -> None:
        loss = of.scaler.scale(of.model.weight.square().sum())
        for _ in range(ops):
            loss = loss * 1.0
        loss.backward()
        nn.utils.clip_grad_norm_(of.model.parameters(), 1.0)
        make_step(of)

    # Gradients of a loss whose scale is not found may be clipped.
    assert ("clip@scaled" in [label for label, _ in found(train)]) == is_found


@pytest.mark.parametrize(("others", "hooks"), [(0, [1, 0]), (4, [1, 0]), (9, [0, 0])])
def test_a_search_for_a_forward_pass_ends_with_its_hook(others: int, hooks: list[int]) -> None:
    of = training()
    other = torch.ones((), requires_grad=True)
    before = len(nn.modules.module._global_forward_pre_hooks)
    counts = []
    with record():
        for _ in hooks:
            of.optimizer.zero_grad()
            of.scaler.scale(of.model(torch.ones(2, 4)).sum()).backward()
            for _ in range(others):
                of.scaler.scale(other * 2)
            make_step(of)
            counts.append(len(nn.modules.module._global_forward_pre_hooks) - before)
    assert counts == hooks


@pytest.mark.parametrize(("ops", "label"), [(64, "not-finite:domain"), (65, "not-finite:unexplained")])
def test_the_ops_of_a_loss_are_observed_up_to_a_number(ops: int, label: str) -> None:
    of = training()

    def train() -> None:
        loss = of.model(torch.ones(2, 4))[0, 0]
        for _ in range(ops - 3):
            loss = loss + 1.0
        (loss * 0).log().backward()

    assert found(train) == [(label, True)]


@pytest.mark.parametrize(("is_nan", "is_found"), [(True, True), (False, False)])
def test_an_unexplained_scaled_loss_is_reported_where_it_is_nan(is_nan: bool, is_found: bool) -> None:
    """A scaler skips the step. A scale that is too large may make a loss infinite, but no scale makes NaN."""
    of = training()

    def train() -> None:
        loss = of.model(torch.ones(2, 4))[0, 0]
        for _ in range(65):
            loss = loss + 1.0
        of.scaler.scale((loss * 0 - 1).sqrt() if is_nan else (loss * 0).log()).backward()

    assert (("not-finite:unexplained", True) in found(train)) == is_found


def test_weights_that_change_in_two_regions_are_found_in_both() -> None:
    of = training()

    def train() -> None:
        for _ in range(2):
            with torch.autocast("cpu", dtype=BFLOAT16):
                of.model(torch.ones(2, 4))
                with torch.no_grad():
                    of.model.weight.mul_(0.5)
                of.model(torch.ones(2, 4))
        with torch.autocast("cpu", dtype=BFLOAT16):
            of.model(torch.ones(2, 4))
            with torch.no_grad():
                of.model.weight.add_(1.0)
            of.model(torch.ones(2, 4))

    assert found(train) == [("write@region-then-forward", True)] * 2


@pytest.mark.parametrize(("keeps", "is_found"), [(False, True), (True, False)])
def test_a_copy_of_low_weights_is_no_other_trained_weight(keeps: bool, is_found: bool) -> None:
    low = nn.Parameter(torch.linspace(0.5, 1.0, 8, dtype=BFLOAT16))
    wide = nn.Parameter(low.detach().float())

    def train() -> None:
        optimizer: Any = torch.optim.SGD([low, wide], lr=1e-4)
        if keeps:
            optimizer.copies = [low.detach().float()]
        for _ in range(3):
            optimizer.zero_grad()
            loss: Any = low.sum() + wide.sum()
            loss.backward()
            optimizer.step()

    assert [label for label, _ in found(train)] == ["before:trained"] * is_found


@pytest.mark.parametrize(("counts", "is_found"), [(63, True), (64, False)])
def test_counts_are_examined_up_to_a_number(counts: int, is_found: bool) -> None:
    where, source = torch.zeros(300, dtype=torch.int64), torch.ones(300, dtype=BFLOAT16)

    def count() -> None:
        for _ in range(counts):
            torch.zeros(2, dtype=BFLOAT16).index_add_(0, where[:3], source[:3])
        torch.zeros(2, dtype=BFLOAT16).index_add_(0, where, source)

    assert found(count) == [("sum:count", True)] * is_found


@pytest.mark.parametrize(("calls", "is_found"), [(3, True), (4, False)])
def test_angles_are_examined_four_times_at_a_location(calls: int, is_found: bool) -> None:
    def call() -> None:
        for i in range(calls + 1):
            torch.sin(torch.tensor([1.0 if i < calls else 300.0], dtype=BFLOAT16))

    assert found(call) == [("positions:radians", True)] * is_found


@pytest.mark.parametrize(("sums", "is_kept", "is_found"), [(255, True, True), (256, True, False), (256, False, True)])
def test_sums_are_followed_up_to_a_number_while_they_live(sums: int, is_kept: bool, is_found: bool) -> None:
    def add() -> None:
        others = [torch.zeros((), dtype=BFLOAT16) for _ in range(sums)]
        for i in range(sums):
            others[i] += 1.0
        if not is_kept:
            others.clear()
        total = torch.tensor(256.0, dtype=BFLOAT16)
        for _ in range(17):
            total += 1.0

    assert found(add) == [("sum:low", True)] * is_found


@pytest.mark.parametrize(("others", "steps", "is_found"), [(0, 2, False), (0, 3, True), (61, 3, True), (62, 3, False)])
def test_an_average_stands_still_in_three_of_the_first_steps(others: int, steps: int, is_found: bool) -> None:
    def average() -> None:
        for _ in range(others):
            torch.ones(4, dtype=BFLOAT16).lerp_(torch.zeros(4, dtype=BFLOAT16), 0.5)
        kept = torch.ones(4, dtype=BFLOAT16)
        for _ in range(steps):
            kept.lerp_(torch.full((4,), 2.0, dtype=BFLOAT16), 1e-4)

    assert found(average) == [("sum:still", True)] * is_found


class NanAt(torch.autograd.Function):  # type: ignore[name-defined, misc]
    """A loss whose gradient is NaN for one element."""

    @staticmethod
    def forward(ctx: Any, weight: Any, row: int, column: int, is_turned: bool) -> Any:
        ctx.shape, ctx.place, ctx.is_turned = weight.shape, (row, column), is_turned
        return weight.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        made = torch.zeros(ctx.shape)
        made[ctx.place] = float("nan")
        return made.t().contiguous().t() if ctx.is_turned else made, None, None, None


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("size", "row", "column", "is_found"),
    [(128, 5, 6, True), (129, 0, 6, True), (129, 5, 0, True), (129, 1, 6, False), (129, 5, 1, False)],
)
def test_large_gradients_are_sampled(size: int, row: int, column: int, is_turned: bool, is_found: bool) -> None:
    weight = nn.Parameter(torch.ones(size, size))
    optimizer = torch.optim.SGD([weight], lr=1e-3)

    def train() -> None:
        optimizer.zero_grad()
        NanAt.apply(weight, row, column, is_turned).backward()
        optimizer.zero_grad()

    assert [label.partition(":")[0] for label, _ in found(train)] == ["not-finite"] * is_found


def test_four_values_that_are_not_finite_are_explained() -> None:
    of = training()
    losses: list[Callable[[Any], Any]] = [
        lambda y: (y * 0 - 1).log().sum(),
        lambda y: (y * 0).log().sum(),
        lambda y: (y / (y * 0)).sum(),
        lambda y: (y * 0 - 1).sqrt().sum(),
        lambda y: (y * 0).rsqrt().sum(),
    ]

    def train() -> None:
        for compute in losses:
            loss: Any = compute(of.model(torch.ones(2, 4)).abs())
            loss.backward()
            of.optimizer.zero_grad()

    assert found(train) == [("not-finite:domain", True)] * 4


# Python 3.14: "is not supported", before that: "is deprecated".
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is:DeprecationWarning")
@pytest.mark.parametrize(
    "error", [RuntimeError("other"), ValueError("a tensor that requires grad as a constant")], ids=["other", "value"]
)
def test_a_trace_that_fails_otherwise_is_no_mistake(error: Exception) -> None:
    def fail(x: Any) -> Any:
        raise error

    def trace() -> None:
        with pytest.raises(type(error)), torch.autocast("cpu", dtype=BFLOAT16):
            torch.jit.trace(fail, torch.ones(2))

    assert found(trace) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # g: a step; s: a skip without a cause, as of a scale that is too large; n: a skip with a cause.
        ("n", ["not-finite:gradient"]),
        ("gn", ["not-finite:gradient"]),
        ("nggg", ["not-finite:gradient"]),
        # The scale falls: the skips after the first are not examined, ...
        ("sn", []),
        ("gsn", []),
        ("gsssn", []),
        # ... except of a run of skips that no scale needs.
        ("gsssssssn", ["not-finite:gradient"]),
        ("gssssssn", []),
        ("gssssssss", []),
        ("gssssssssn", []),
        ("s" * 17 + "n", ["not-finite:gradient"]),
        ("s" * 16 + "n", []),
        ("s" * 18 + "n", []),
        # Three skips without a cause are examined, and no fourth.
        ("gsgsgsgn", ["not-finite:gradient"]),
        ("gsgsgsgsgn", []),
        ("gsgsgsgsgsssssssn", ["not-finite:gradient"]),
    ],
)
def test_skipped_steps_are_examined_where_no_scale_explains_them(steps: str, expected: list[str]) -> None:
    # A scale that 18 skips leave above one.
    of = training(scale=2.0**13 if "g" in steps or len(steps) < 3 else 2.0**26)

    def train() -> None:
        for step in steps:
            of.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=FLOAT16):
                out = of.model(torch.ones(1, 4))
            loss = out.float().square().sum()
            if step == "n":
                loss = loss + (out.float() * 0).sqrt().sum()
            of.scaler.scale(loss * 0.1).backward()
            if step == "s":
                of.model.weight.grad[0, 0] = float("inf")
            make_step(of)

    assert [label for label, _ in found(train)] == expected


def test_a_scaler_for_bfloat16_hides_no_cause_of_its_skips() -> None:
    of = training()

    def train() -> None:
        with torch.autocast("cpu", dtype=BFLOAT16):
            out = of.model(torch.ones(1, 4))
        of.scaler.scale((out.float() * 0).sqrt().sum()).backward()
        make_step(of)

    assert sorted(label for label, _ in found(train)) == ["not-finite:gradient", "scale:bf16"]


@pytest.mark.parametrize(
    ("name", "value", "label"),
    [
        ("enabled", 1, "autocast:not-a-bool"),
        ("cache_enabled", 1, "autocast:not-a-bool"),
        ("dtype", torch.float32, "autocast:unsupported-dtype"),
        ("enabled", True, ""),
        ("cache_enabled", False, ""),
        ("cache_enabled", None, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_each_argument_of_a_region_is_checked(name: str, value: object, label: str) -> None:
    arguments: dict[str, Any] = {"device_type": "cpu", "dtype": BFLOAT16} | {name: value}
    # An entry with a wrong argument raises, and leaves the thread's autocast on.
    assert found(lambda: torch.autocast(**arguments)) == [(label, True)] * bool(label)


@pytest.mark.parametrize(("others", "is_found"), [(9_999, True), (10_000, False)])
def test_a_checkpoint_is_searched_up_to_a_number_of_objects(others: int, is_found: bool) -> None:
    of = training()

    def save() -> None:
        run_backward(of)
        make_step(of)
        torch.save([*([] for _ in range(others)), of.optimizer.state_dict()], io.BytesIO())

    assert found(save) == [("save:no-scaler", True)] * is_found


@pytest.mark.parametrize(("excess", "is_found"), [(0.5, True), (0.51, False)])
def test_a_decay_and_a_term_that_nearly_complete_each_other_are_an_average(excess: float, is_found: bool) -> None:
    def average() -> None:
        kept, factor = torch.full((4,), 2.0, dtype=BFLOAT16), 2.0**-7
        for _ in range(3):
            kept.mul_(1.0 - (1.0 + excess) * factor)
            kept.add_(torch.full((4,), 3.0), alpha=factor)

    assert found(average) == [("sum:still", True)] * is_found


@pytest.mark.parametrize("events", [0, *range(248, 257), 300])
def test_a_backward_is_checked_after_its_end_however_many_events_wait(events: int) -> None:
    first: Any = nn.Parameter(torch.ones(2))
    second = nn.Parameter(torch.ones(2))
    in_backward, after = torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(weight: Any) -> None:
        in_backward.step()
        in_backward.zero_grad()

    first.register_post_accumulate_grad_hook(step)

    def train() -> None:
        for _ in range(events):
            in_backward.zero_grad()
        scaler.scale(first.square().sum() + second.square().sum()).backward()
        after.step()

    # Only the end of the backward shows that it reached the second weight.
    assert found(train) == [("plain-step@scaled", True)] * 2


@pytest.mark.parametrize(
    ("samples", "batches", "labels", "is_found"), [(1, 3, 7, True), (2, 3, 7, True), (1, 2, 7, False), (1, 3, 6, False)]
)
def test_three_batches_without_an_alignment(samples: int, batches: int, labels: int, is_found: bool) -> None:
    logits = torch.randn(6, samples, 12, requires_grad=True)

    def train() -> None:
        for _ in range(batches):
            targets = torch.arange(1, labels + 1).repeat(samples, 1)
            lengths = torch.tensor([6] * samples), torch.tensor([labels] * samples)
            nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths, zero_infinity=True)

    assert [label for label, _ in found(train)] == ["not-finite:no-alignment"] * is_found


CTC: dict[str, Any] = {
    "log_probs": torch.randn(6, 1, 12, requires_grad=True).log_softmax(-1),
    "targets": torch.arange(1, 8).unsqueeze(0),
    "input_lengths": torch.tensor([6]),
    "target_lengths": torch.tensor([7]),
}


@pytest.mark.parametrize("positional", range(5))
@pytest.mark.parametrize(("options", "is_found"), [({"zero_infinity": True}, True), ({}, False)])
def test_a_loss_that_is_called_with_names_of_arguments(positional: int, options: Any, is_found: bool) -> None:
    arguments, named = list(CTC.values())[:positional], dict(list(CTC.items())[positional:])

    def train() -> None:
        for _ in range(3):
            torch.ctc_loss(*arguments, **named, **options)

    assert [label for label, _ in found(train)] == ["not-finite:no-alignment"] * is_found


@pytest.mark.parametrize("place", ["evaluation", "forward", "backward"])
def test_batches_without_an_alignment_count_in_forward_passes_with_gradients(place: str) -> None:
    logits = torch.randn(6, 1, 12, requires_grad=True)
    targets, lengths = torch.arange(1, 8).unsqueeze(0), (torch.tensor([6]), torch.tensor([7]))

    def loss() -> Any:
        return nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths, zero_infinity=True)

    def train() -> None:
        weight = torch.ones((), requires_grad=True)
        for _ in range(3):
            if place == "backward":
                product = weight * 1.0
                product.register_hook(lambda gradient: (torch.enable_grad()(loss)(), None)[1])
                product.backward()
            else:
                with torch.set_grad_enabled(place == "forward"):
                    loss()

    assert [label for label, _ in found(train)] == ["not-finite:no-alignment"] * (place == "forward")
