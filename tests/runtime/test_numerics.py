"""Gradient magnitudes are counted exactly, once a step, as float16 would represent them, and without side effects."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from pytest_amp_check import record  # noqa: E402
from pytest_amp_check.runtime.measure.numerics import Counts, Numerics, assert_underflow  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")

#: Without a deadline, because a busy machine is not a failure.
quick = settings(max_examples=150, deadline=None)
COLUMNS = ("zero", "lost", "subnormal", "normal", "above", "inf", "nan")
#: Boundaries of float16's ranges, and the limits of float32.
EDGES = (
    0.0,
    2.0**-149,
    2.0**-126,
    2.0**-25,
    2.0**-24,
    2.0**-14,
    65504.0,
    65519.0,
    65520.0,
    65536.0,
    math.inf,
    math.nan,
)


def float32(bits: int) -> float:
    """Return the float32 number with these bits."""
    number: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return number


#: Magnitudes from 2^-40 to 2^20, the edges, and any other float32 value.
numbers = st.one_of(
    st.builds(
        lambda exponent, fraction, sign: math.ldexp(sign * (1 + fraction / 2**23), exponent),
        st.integers(-40, 20),
        st.integers(0, 2**23 - 1),
        st.sampled_from((-1.0, 1.0)),
    ),
    st.sampled_from(EDGES),
    st.integers(0, 2**32 - 1).map(float32),
)


def reference(values: Iterable[float]) -> Counts:
    """Count float64 values one by one."""
    columns: Counter[str] = Counter()
    histogram: Counter[int] = Counter()
    for value in values:
        size = abs(value)
        if math.isnan(size):
            columns["nan"] += 1
        elif math.isinf(size):
            columns["inf"] += 1
        elif size == 0:
            columns["zero"] += 1
        else:
            histogram[min(127, max(-126, math.frexp(size)[1] - 1))] += 1
            if size <= 2.0**-25:
                columns["lost"] += 1
            elif size < 2.0**-14:
                columns["subnormal"] += 1
            else:
                columns["normal" if size < 65520 else "above"] += 1
    return Counts(**{name: columns[name] for name in COLUMNS}, histogram=dict(sorted(histogram.items())), flushed=0)


def unflushed(counts: Counts) -> Counts:
    return counts._replace(flushed=0)


def stepped(gradients: Sequence[Any], scale: float = 1.0, **options: Any) -> Numerics:
    """Return the counts of one step of parameters "group 0.param 0", ... with these gradients, scaled."""
    parameters = []
    for gradient in gradients:
        parameter = torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device, requires_grad=True)
        parameter.grad = gradient
        parameters.append(parameter)
    numerics = Numerics(**options)
    numerics.start()
    optimizer = torch.optim.SGD(parameters)
    numerics.after_backward(None, scale, [optimizer])
    numerics.before_step(optimizer, None, scale)
    numerics.after_step(optimizer, None, skipped=False)
    numerics.stop()
    return numerics


# Exactness.


@quick
@given(st.lists(numbers, min_size=1, max_size=40), st.integers(-30, 30))
@example(list(EDGES), 0)
@example([-x for x in EDGES], 16)
@example([float32(0x33000001), float32(0x32FFFFFF), float32(0x477FEFFF), float32(0x477FF000)], 0)
def test_counts_are_those_of_the_slow_way_for_every_power_of_two(values: list[float], power: int) -> None:
    gradient = torch.tensor(values, dtype=torch.float32)
    numerics = stepped([gradient], 2.0**power)
    exact = gradient.double().tolist()
    assert unflushed(numerics.total(without_scaling=False)) == reference(exact)
    assert numerics.total(without_scaling=True) == reference(math.ldexp(value, -power) for value in exact)


@quick
@given(st.lists(numbers, min_size=1, max_size=40))
@example(list(EDGES))
def test_counts_are_what_half_makes_of_it(values: list[float]) -> None:
    gradient = torch.tensor(values, dtype=torch.float32)
    half = gradient.half()
    counts = stepped([gradient]).total(without_scaling=True)
    assert counts.zero + counts.lost == int((half == 0).sum())
    assert counts.above + counts.inf == int(half.isinf().sum())
    assert counts.nan == int(half.isnan().sum())
    assert counts.lost == int(((half == 0) & (gradient != 0)).sum())
    assert counts.nonzero == int(((gradient != 0) & gradient.isfinite()).sum())


def test_every_column_and_bin_by_hand() -> None:
    held = [0.0, -0.0, 2.0**-30, -(2.0**-25), 1.5 * 2.0**-25, -(2.0**-24), 2.0**-15, 2.0**-14, -65504.0, 65519.0]
    counts = stepped([torch.tensor([*held, 65520.0, -1e30, math.inf, -math.inf, math.nan])]).total(without_scaling=True)
    assert unflushed(counts) == Counts(
        zero=2,
        lost=2,
        subnormal=3,
        normal=3,
        above=2,
        inf=2,
        nan=1,
        histogram={-30: 1, -25: 2, -24: 1, -15: 1, -14: 1, 15: 3, 99: 1},
        flushed=0,
    )


def test_a_scale_that_is_no_power_of_two_multiplies() -> None:
    true = torch.tensor([2.0**-30, 3.0e-8, 1.0e-5, 1.0, 70.0, 0.0, math.inf])
    numerics = stepped([true * 1000], 1000.0)
    assert numerics.total(without_scaling=True) == reference([2.0**-30, 3.0e-8, 1.0e-5, 1.0, 70.0, 0.0, math.inf])
    assert numerics.total(without_scaling=False) == reference([1e3 * 2.0**-30, 3.0e-5, 1e-2, 1e3, 7e4, 0.0, math.inf])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_of_gradients(dtype: Any) -> None:
    gradient = torch.tensor([0.0, 2.0**-24, 2.0**-15, 1.0, 256.0, -math.inf, math.nan], dtype=dtype)
    numerics = stepped([gradient], 256.0)
    before = [0.0, 2.0**-32, 2.0**-23, 2.0**-8, 1.0, math.inf, math.nan]
    assert unflushed(numerics.total(without_scaling=False)) == reference(gradient.double().tolist())
    assert numerics.total(without_scaling=True) == reference(before)


def test_float64_beyond_float32_is_neither_zero_nor_infinite() -> None:
    counts = stepped([torch.tensor([1e-300, -1e300], dtype=torch.float64)]).total(without_scaling=True)
    assert (counts.lost, counts.above, counts.zero, counts.inf) == (1, 1, 0, 0)


def test_complex_gradients_count_both_parts() -> None:
    counts = stepped([torch.tensor([1.0 + 0.0j, 2.0**-30 + 1e6j])]).total(without_scaling=True)
    assert counts == reference([1.0, 0.0, 2.0**-30, 1e6])


def test_sparse_gradients_count_what_they_store_once() -> None:
    table = nn.Embedding(1000, 2, sparse=True)
    table(torch.tensor([3, 3, 7])).sum().backward()
    optimizer = torch.optim.SGD(table.parameters())
    numerics = Numerics(table)
    numerics.before_step(optimizer, None, 1.0)
    # Row 3 was used twice: its gradient is 2, and the gradient of row 7 is 1.
    assert numerics.parameters(without_scaling=True) == {"weight": reference([2.0, 2.0, 1.0, 1.0])}


def test_gradients_in_any_layout() -> None:
    whole = torch.randn(6, 4, 5, 3)
    for view in (whole.to(memory_format=torch.channels_last), whole[::2, :, 1:], whole.transpose(0, 3)):
        assert stepped([view]).total(without_scaling=True) == reference(view.double().flatten().tolist())
    expanded = torch.tensor(0.5).expand(7)
    assert stepped([expanded]).total(without_scaling=True) == reference([0.5] * 7)


def test_large_and_small_parameters_are_counted_separately() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (2_200_000, 3, 0, 5, 1_100_000, 1)
    gradients = [torch.full((size,), 2.0**-place) for place, size in enumerate(sizes, 1)]
    gradients[4][torch.randperm(len(gradients[4]), generator=generator)[:1000]] = 0.0
    counts = stepped(gradients).parameters(without_scaling=True)
    assert {name: (c.zero, c.histogram) for name, c in counts.items()} == {
        "group 0.param 0": (0, {-1: 2_200_000}),
        "group 0.param 1": (0, {-2: 3}),
        "group 0.param 3": (0, {-4: 5}),
        "group 0.param 4": (1000, {-5: 1_099_000}),
        "group 0.param 5": (0, {-6: 1}),
    }


# Once a step, at the right moment.


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def backward(model: nn.Module, scaler: Any, dtype: Any = torch.float16, weight: float = 1.0) -> None:
    inputs, targets = torch.randn(32, 8), torch.randint(0, 4, (32,))
    with torch.autocast("cpu", dtype):
        loss = nn.functional.cross_entropy(model(inputs), targets) * weight
    scaler.scale(loss).backward()


def train(
    model: nn.Module,
    numerics: Numerics,
    *,
    steps: int = 3,
    micro_batches: int = 1,
    clip: float | None = None,
    init_scale: float = 2.0**10,
    dtype: Any = torch.float16,
    weight: float = 1.0,
) -> list[list[Any]]:
    """Train like a user and call the collector like the recorder. Return the true gradients of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    true = []
    numerics.start()
    for _ in range(steps):
        for _ in range(micro_batches):
            backward(model, scaler, dtype, weight)
            numerics.after_backward(scaler, scaler.get_scale(), [optimizer])
        held = scaler.get_scale()
        true.append([p.grad.double() / held for p in model.parameters() if p.grad is not None])
        if clip is not None:
            scaler.unscale_(optimizer)
            numerics.after_unscale(scaler, optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            held = 1.0
        numerics.before_step(optimizer, scaler, held)
        scaler.step(optimizer)
        numerics.after_step(optimizer, scaler, skipped=False)
        scaler.update()
        optimizer.zero_grad()
    numerics.stop()
    return true


@pytest.mark.parametrize("clip", [None, 1e-9], ids=["plain", "unscaled and clipped"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_step_counts_once_and_unclipped(clip: float | None, micro_batches: int) -> None:
    model = net()
    numerics = Numerics(model)
    true = train(model, numerics, clip=clip, micro_batches=micro_batches)
    values = [value for step in true for gradient in step for value in gradient.flatten().tolist()]
    assert numerics.total(without_scaling=True) == reference(values)
    assert unflushed(numerics.total(without_scaling=False)) == reference(value * 2.0**10 for value in values)
    assert numerics.samples == 3
    assert numerics.scales == (1024.0, 1024.0)
    assert list(numerics.parameters(without_scaling=True)) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_step_that_unscales_by_itself_counts_once() -> None:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    numerics = Numerics(model)
    for _ in range(2):
        backward(model, scaler)
        numerics.after_backward(scaler, 8.0, [optimizer])
        numerics.before_step(optimizer, scaler, 8.0)
        # From outside, the unscale_ inside scaler.step() is a second call.
        scaler.unscale_(optimizer)
        numerics.after_unscale(scaler, optimizer)
        scaler.step(optimizer)
        numerics.after_step(optimizer, scaler, skipped=False)
        scaler.update()
    assert numerics.samples == 2


def test_a_step_that_raised_is_forgotten() -> None:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", init_scale=8.0)
    numerics = Numerics(model)
    backward(model, scaler)
    numerics.after_backward(scaler, 8.0, [optimizer])
    numerics.before_step(optimizer, scaler, 8.0)
    optimizer.zero_grad()
    backward(model, scaler)
    numerics.after_backward(scaler, 8.0, [optimizer])
    scaler.unscale_(optimizer)
    numerics.after_unscale(scaler, optimizer)
    numerics.before_step(optimizer, scaler, 1.0)
    assert numerics.samples == 2


def test_overflows_count_too() -> None:
    model = net()
    numerics = Numerics(model)
    train(model, numerics, steps=2, init_scale=2.0**40)
    after = numerics.total(without_scaling=False)
    assert after.inf + after.nan > 0
    assert numerics.scales == (2.0**39, 2.0**40)


def test_a_scale_of_zero_leaves_nothing_to_count() -> None:
    numerics = stepped([torch.ones(3)], 0.0)
    assert (numerics.samples, numerics.total(without_scaling=True).nonzero) == (0, 0)


def test_every_nth_step_of_each_optimizer() -> None:
    first, second = net(), net()
    numerics = Numerics(first, every=3)
    train(first, numerics, steps=7)
    train(second, numerics, steps=2)
    assert numerics.samples == 3 + 1
    with pytest.raises(ValueError, match="looks at no step"):
        Numerics(every=0)


def test_names_without_a_model_distinguish_optimizers() -> None:
    numerics = Numerics()
    optimizers = [
        torch.optim.SGD(
            [{"params": [torch.ones(1, requires_grad=True)]}, {"params": [torch.ones(1, requires_grad=True)]}]
        ),
        torch.optim.Adam([torch.ones(1, requires_grad=True)]),
        torch.optim.Adam([torch.ones(1, requires_grad=True)]),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones(1)
        numerics.before_step(optimizer, None, 1.0)
    assert list(numerics.parameters(without_scaling=True)) == [
        "group 0.param 0",
        "group 1.param 0",
        "Adam group 0.param 0",
        "Adam 2 group 0.param 0",
    ]


def test_tied_and_compiled_parameters_have_one_plain_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    compiled = torch.compile(model, backend="eager")
    numerics = Numerics(compiled)
    optimizer = torch.optim.SGD(compiled.parameters())
    model(torch.ones(1, 4)).sum().backward()
    numerics.before_step(optimizer, None, 1.0)
    counts = numerics.parameters(without_scaling=True)
    assert {name: c.zero + c.nonzero for name, c in counts.items()} == {"0.weight": 16}


def test_meta_and_fake_gradients_have_no_numbers() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert stepped([torch.empty(3, device="meta")]).samples == 0
    with FakeTensorMode():
        assert stepped([torch.empty(3)]).samples == 0


# Training is unchanged.


def test_training_is_bit_identical() -> None:
    plain, looked = net(), net()
    torch.manual_seed(1)
    train(plain, Numerics(plain, every=10**9), steps=30, clip=1.0)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    numerics = Numerics(looked)
    train(looked, numerics, steps=30, clip=1.0)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(plain.parameters(), looked.parameters(), strict=True):
        assert torch.equal(one, other)


def test_gradients_and_their_graph_are_left_alone() -> None:
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    weight.grad = gradient
    version = gradient._version
    numerics = Numerics()
    numerics.before_step(torch.optim.SGD([weight]), None, 2.0)
    assert weight.grad is gradient
    assert gradient._version == version
    assert gradient.requires_grad
    assert numerics.total(without_scaling=True) == reference([6.0, 13.5])
    weight.grad = None


# Assertions.


def test_underflow_is_checked_at_the_scale_in_use_or_without() -> None:
    true = [2.0**-30] * 3 + [2.0**-20] + [0.0] * 6
    numerics = stepped([torch.tensor(true) * 2.0**16], 2.0**16)
    assert numerics.lost_without_scaling == 0.75
    assert_underflow(numerics, below=0.001)
    assert_underflow(numerics, below=0.76, without_scaling=True)
    with pytest.raises(AssertionError, match=r"float16 loses 75 % of the non-zero gradient elements without"):
        assert_underflow(numerics, below=0.75, without_scaling=True)


def test_the_message_names_the_worst_and_a_scale_that_would_do() -> None:
    model = net()
    numerics = Numerics(model)
    train(model, numerics, init_scale=2.0, dtype=torch.bfloat16, weight=1e-6)
    with pytest.raises(AssertionError) as failed:
        assert_underflow(numerics, below=0.01)
    message = str(failed.value)
    assert "at the loss scale 2, less than 1 % is allowed" in message
    worst = numerics.worst(1, without_scaling=False)[0][0]
    assert message.splitlines()[1].startswith(f"  {worst}: ")
    wanted = float(message.split("init_scale=")[1].split(")", maxsplit=1)[0])
    again = Numerics(model)
    train(model, again, init_scale=wanted, dtype=torch.bfloat16, weight=1e-6)
    assert_underflow(again, below=0.02)


def test_gradients_that_no_scale_fits_call_for_another_dtype() -> None:
    numerics = stepped([torch.tensor([2.0**-40, 2.0**-40, 2.0**14])])
    with pytest.raises(AssertionError, match=r"as gradients were not scaled(.|\n)*No loss scale fits(.|\n)*bfloat16"):
        assert_underflow(numerics, below=0.5)


def test_what_float16_flushed_in_backward_counts() -> None:
    """bfloat16 keeps the values that float16 loses, and gives the expected share."""
    lost = {}
    for dtype in (torch.float16, torch.bfloat16):
        model = net()
        torch.manual_seed(1)
        numerics = Numerics(model)
        train(model, numerics, steps=10, init_scale=1.0, dtype=dtype, weight=1e-4)
        lost[dtype] = numerics.total(without_scaling=False).share_lost
        with pytest.raises(AssertionError, match="at least" if dtype is torch.float16 else "float16 loses"):
            assert_underflow(numerics, below=0.001)
    assert 0.3 * lost[torch.bfloat16] < lost[torch.float16] < 1.5 * lost[torch.bfloat16]


def test_natural_zeros_do_not_count() -> None:
    gradient = torch.tensor([0.0] * 50 + [1.1 * 2.0**-24, 1.7 * 2.0**-24, 1.0])
    assert_underflow(stepped([gradient]), below=1e-9)


def test_gradients_that_are_all_zero_fail() -> None:
    with pytest.raises(AssertionError, match=r"Every gradient element is zero.*5 zero"):
        assert_underflow(stepped([torch.zeros(5)]), below=0.5)


@pytest.mark.parametrize("below", [0, -0.1, 1.01, 5, math.nan])
def test_a_share_is_above_zero_and_up_to_one(below: float) -> None:
    with pytest.raises(ValueError, match="give a fraction above 0 and up to 1"):
        assert_underflow(stepped([torch.ones(1)]), below=below)


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(ValueError, match=r"record\(model, numerics=True\)"):
        assert_underflow(None, below=0.5)
    with pytest.raises(AssertionError, match="No gradient was recorded"):
        assert_underflow(Numerics(), below=0.5)


def test_the_worst_lose_most_and_those_that_lose_nothing_are_left_out() -> None:
    tiny = 2.0**-30
    numerics = stepped([torch.tensor(v) for v in ([1.0, 1.0], [tiny, 1.0], [tiny, tiny], [tiny, 1.0, 1.0])])
    assert numerics.worst(2) == [("group 0.param 2", 1.0), ("group 0.param 1", 0.5)]
    assert [name for name, _ in numerics.worst()] == ["group 0.param 2", "group 0.param 1", "group 0.param 3"]


def test_as_dict_is_json_of_the_agreed_shape() -> None:
    numerics = stepped([torch.tensor([2.0**-12, 0.0, math.nan, 2.0**4])], 2.0**16)
    data = json.loads(json.dumps(numerics.as_dict()))
    before = {
        **dict.fromkeys(COLUMNS, 0),
        "zero": 1,
        "flushed": 0,
        "lost": 1,
        "normal": 1,
        "nan": 1,
        "histogram": {"-28": 1, "-12": 1},
    }
    after = {**before, "lost": 0, "normal": 2, "histogram": {"-12": 1, "4": 1}}
    assert data == {
        "exponents": list(range(-126, 128)),
        "before": before,
        "after": after,
        "parameters": {"group 0.param 0": {"before": before, "after": after, "lost": 0.5}},
        "lost_without_scaling": 0.5,
        "samples": 1,
    }


def test_headroom_shows_the_greatest_outputs_and_products_by_module() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(4, 4, bias=False)

        def forward(self, x: Any) -> Any:
            q = self.query(x)
            return (q @ x.transpose(-2, -1)).softmax(-1) @ x

    model = Attention()
    nn.init.eye_(model.query.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with record(model, numerics=2) as run:
        for size in (10.0, 50.0, 20.0):
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.full((1, 2, 4), size)).sum())
            optimizer.step()
    assert run.failure is None
    found = run.as_dict()["headroom"]
    # The second of three steps is not sampled, and identity matrices keep their input.
    assert found["outputs"]["query"] == 20.0
    assert found["products"] == {"Attention": 1600.0}
