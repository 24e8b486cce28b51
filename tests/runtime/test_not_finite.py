"""AMP802: op, module, line, step and cause of a non-finite step are reported, and correct trainings stay silent."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import weakref
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from pytest_amp_check import emulate_cuda, record
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.runtime.record.delayed_reads import DeviceTransfer, PreviousWeights
from pytest_amp_check.runtime.record.overflows import OverflowMode
from pytest_amp_check.runtime.run import Run

pytestmark = pytest.mark.usefixtures("patched_once")


def line_of(mark: str) -> int:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return number


#: Functions of the recorder that test where a tensor is, and their answer for a tensor on a device.
DEVICE_ANSWERS = {
    "listeners.non_finite.is_on_cpu": False,
    "listeners.non_finite.is_on_gpu": True,
    "non_finite.device_checks.is_on_gpu": True,
    "non_finite.statistics.is_on_cpu": False,
}


def count_as_on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors count as being on a device."""
    for name, answer in DEVICE_ANSWERS.items():
        monkeypatch.setattr(f"pytest_amp_check.runtime.record.{name}", lambda tensor, answer=answer: answer)


@pytest.fixture(params=["CPU", "device", "device whose numbers wait"])
def each_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors count as being on a device, and also the numbers of scalers."""
    if request.param != "CPU":
        count_as_on_device(monkeypatch)
    if request.param == "device whose numbers wait":
        monkeypatch.setattr("pytest_amp_check.runtime.record.deferred_values._is_on_cpu", lambda tensor: False)


class Middle(nn.Module):
    """Identity module, except for one faulty call."""

    def __init__(self, how: str, call: int) -> None:
        super().__init__()
        self.how, self.call, self.calls = how, call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls != self.call + 1:
            return x
        if self.how == "divides":
            return x / (x * 0.0)  # divides
        if self.how == "logarithm":
            return x + (x.float() * 0.0).log()  # logarithm
        if self.how == "above":
            return (x.float() * 0.0 + 7e4).half()  # above
        if self.how == "exponent":
            return x + (x.float() * 0.0 + 200.0).exp()  # exponent
        if self.how == "wide":
            large = x.half() * 0.0 + 400.0
            return x + large * large  # wide
        if self.how == "root":
            return x + (x.float() * 0.0).sqrt()  # root
        if self.how == "masked":
            return x * torch.full_like(x, float("-inf")).softmax(-1)  # masked
        sys.stdout.write("not twice\n")
        return x + torch.rand_like(x).log() * 0.0


class Net(nn.Module):
    def __init__(self, how: str = "", call: int = -1) -> None:
        super().__init__()
        self.first, self.middle, self.norm = nn.Linear(8, 16), Middle(how, call), nn.BatchNorm1d(16)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.dropout(self.norm(self.middle(self.first(x)))))


def train(
    model: nn.Module,
    *,
    steps: int = 6,
    scaler: bool = False,
    before: Callable[[int, torch.optim.Optimizer], object] = lambda step, optimizer: None,
    batch: Callable[[int], Tensor] = lambda step: torch.randn(4, 8),
    **parts: Any,
) -> Run:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scales = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=scaler)
    with record(model, **parts) as run:
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16 if scaler else torch.bfloat16):
                loss = model(batch(step)).float().square().mean()
            torch.autograd.backward(scales.scale(loss))
            before(step, optimizer)
            scales.step(optimizer)
            scales.update()
    assert run.failure is None, run.failure
    return run


def only(run: Run) -> Finding:
    (finding,) = [finding for finding in run.findings if finding.code == "AMP802"]
    return finding


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("scaler", [False, True], ids=["bfloat16", "float16 with a scaler"])
@pytest.mark.parametrize(
    ("how", "op", "result", "why"),
    [
        ("divides", "div", "the first non-finite value", "a division by zero"),
        ("logarithm", "log", "the first non-finite value", "the logarithm of zero"),
        ("above", "_to_copy", "the first non-finite value", "above 65504"),
        ("masked", "_softmax", "NaN", "all entries of one input row are -inf"),
    ],
)
def test_the_op_that_made_it_is_named(how: str, op: str, result: str, why: str, scaler: bool) -> None:
    torch.manual_seed(0)
    finding = only(train(Net(how, call=3), scaler=scaler))
    assert finding.line == line_of(how)
    assert finding.message.startswith(f"`{op}` in `middle` (Middle) produces {result} in step 3")
    assert why in finding.message
    # The trace begins with the preceding modules, and ends with the first bad output.
    assert [step.text.partition(" gives")[0] for step in finding.trace][:1] == ["`first` (Linear)"]
    assert finding.trace[-1].text.endswith("is the first non-finite value")


class Guarded(nn.Module):
    """A logarithm whose argument a constant shall keep from zero or from one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(8, 1)
        nn.init.constant_(self.layer.bias, {"below one": 30.0, "both": 30.0, "far off": 30.0}.get(how, -30.0))

    def forward(self, x: Tensor) -> Any:
        share = self.layer(x).sigmoid()  # underflows
        if self.how == "below one":
            return (1 - share.clamp(1e-4, 1 - 1e-4)).log()  # below one
        if self.how == "both":
            return (1 - torch.clamp(share, 1e-8, 1 - 1e-8)).log()  # both
        if self.how == "above zero":
            return share.clamp_min(1e-9).log()  # above zero
        if self.how == "added":
            return torch.log(share + 1e-8)  # added
        if self.how == "far off":
            bounded = share.clamp(max=1 - 1e-4)
            for _ in range(6):
                bounded = bounded * 1.0
            return (1 - bounded).log()  # far off
        return (share.clamp(0.0, 1.0) * 0.5).log()  # held


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("below one", ", as the bound of 0.9999 (line {line}) is 1 in float16: "),
        ("both", ", as the bounds of 1e-08 and 0.99999999 (line {line}) are 0 and 1 in float16: "),
        ("above zero", ", as the bound of 1e-09 (line {line}) is 0 in float16: "),
        ("added", ", as the epsilon of 1e-08 (line {line}) is 0 in float16: "),
        # The message ignores a constant that acted some ops earlier, and a constant that low precision can represent.
        ("far off", ": "),
        ("held", f", as `sigmoid` (line {line_of('underflows')}) underflows to 0 in float16: "),
    ],
)
def test_a_constant_that_low_precision_does_not_hold_is_named(how: str, why: str) -> None:
    model = Guarded(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = -model(torch.randn(4, 8)).mean()
        loss.float().backward()
        optimizer.step()
    (finding,) = [finding for finding in run.findings if finding.code == "AMP802"]
    assert finding.line == line_of(how)
    remedy = "compute both in float32" if "underflows" in why else "bound its operand"
    assert f"because it is the logarithm of zero{why.format(line=line_of(how))}{remedy}" in finding.message


@pytest.mark.usefixtures("each_place")
def test_a_gradient_that_is_non_finite_alone_is_reported_where_the_forward_made_it() -> None:
    torch.manual_seed(0)
    finding = only(train(Net("root", call=2)))
    assert finding.line == line_of("root")
    assert (
        "The gradient of `SqrtBackward0` in `middle` (Middle) is the first non-finite value of step 2"
        in finding.message
    )
    assert "infinite at zero" in finding.message


@pytest.mark.usefixtures("each_place")
def test_a_loss_outside_of_modules() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record() as run:
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            if step == 1:
                loss = (loss * 0.0).log()  # loss
            torch.autograd.backward(loss)
            optimizer.step()
    finding = only(run)
    assert finding.line == line_of("loss")
    assert "`log` in code outside of modules produces the first non-finite value in step 1" in finding.message


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("is_in_region", [False, True])
def test_a_loss_of_a_program_without_modules(is_in_region: bool) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    with record() as run:
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_in_region):
                loss = (weight @ weight).float().mean()
                if step == 0:
                    loss = (loss * 0.0).log()  # without modules
            torch.autograd.backward(loss)
    finding = only(run)
    assert finding.line == line_of("without modules")
    assert finding.message.startswith("`log` in code outside of modules produces the first non-finite value in step 0")


def summed(output: Tensor, target: Tensor) -> Tensor:
    """Return a loss computed by a module that is freed after its call."""
    criterion = nn.CrossEntropyLoss(reduction="sum", ignore_index=0)
    return criterion(output, target)  # type: ignore[no-any-return]  # criterion


@pytest.mark.parametrize(
    ("rows", "first", "why"),
    [(1 << 15, 1, "its result is above 65504"), (4, 0, "")],
    ids=["a sum that is too large", "a sum of nothing, which is zero"],
)
def test_a_criterion_that_is_made_for_one_call(rows: int, first: int, why: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 16).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record() as run:
        loss = summed(model(torch.randn(rows, 8).half()), torch.full((rows,), first))
        torch.autograd.backward(loss)
        optimizer.step()
    assert run.failure is None
    found = [finding for finding in run.findings if finding.code == "AMP802"]
    assert [finding.line for finding in found] == [line_of("criterion")] * bool(why)
    assert all("`nll_loss_forward` in `CrossEntropyLoss`" in each.message and why in each.message for each in found)


@pytest.mark.usefixtures("each_place")
def test_a_batch_that_is_not_finite() -> None:
    def batch(step: int) -> Tensor:
        return torch.full((4, 8), float("nan")) if step == 2 else torch.randn(4, 8)

    finding = only(train(Net(), batch=batch))
    assert "The input of `first` (Linear) contains non-finite values in step 2" in finding.message


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("scaler", [False, True], ids=["bfloat16", "float16 with a scaler"])
def test_what_a_frozen_part_makes_without_gradients_is_no_batch_to_look_at(scaler: bool) -> None:
    frozen = nn.Linear(8, 8).half().requires_grad_(False)
    nn.init.constant_(frozen.weight, 60.0)

    def batch(step: int) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            made: Tensor = frozen(torch.full((4, 8), 200.0 if step == 2 else 0.01).half())  # frozen
            return made.float()

    finding = only(train(Net(), batch=batch, scaler=scaler))
    assert finding.line == line_of("frozen")
    assert "`addmm` in `Linear` produces the first non-finite value in step 2" in finding.message
    assert "because its result is above 65504" in finding.message


def test_what_is_done_without_gradients_outside_of_modules_is_no_batch_to_look_at() -> None:
    frozen = nn.Linear(8, 8, bias=False).half().requires_grad_(False)

    def batch(step: int) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            made = frozen((torch.randn(4, 8) * float(step != 2)).half())
            return functional.normalize(made, dim=-1).float()  # normalised

    finding = only(train(Net(), batch=batch))
    assert finding.line == line_of("normalised")
    assert "because it is a division by zero, as the bound of 1e-12" in finding.message


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("parts", [3, 4, 5, 9])
def test_frozen_parts_one_after_another(parts: int) -> None:
    frozen = nn.Sequential(*(nn.Linear(8, 8).half().requires_grad_(False) for _ in range(parts)))
    for parameter, value in zip(list(frozen.parameters())[-4:-1], (0.0, 10.0, -6e4), strict=True):
        nn.init.constant_(parameter, value)

    def batch(step: int) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            made = torch.randn(4, 8).half() * 10.0
            for part in frozen:
                made = part(made).clamp(-10.0 if step != 2 else None, 10.0)  # one after another
        return made.float().clamp(-10.0) if step != 2 else made.float()

    run = train(Net(), batch=batch)
    finding = only(run)
    assert finding.line == line_of("one after another")
    assert finding.message.startswith("`addmm` in")
    assert "produces the first non-finite value in step 2" in finding.message


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("others", [1, 3, 4, 9])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_frozen_part_is_kept_for_a_trained_part_beside_others(others: int, is_first: bool) -> None:
    torch.manual_seed(0)
    frozen, head = Net("logarithm", call=2).requires_grad_(False), nn.Linear(1, 1)
    teachers = [nn.Linear(8, 8).requires_grad_(False) for _ in range(others)]
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
    with record(head) as run:
        for _ in range(3):
            x = torch.randn(4, 8)
            with torch.no_grad():
                features = frozen(x)  # the frozen part
            output = head(features) if is_first else None
            with torch.no_grad():
                for teacher in teachers:
                    x = teacher(x)
            optimizer.zero_grad()
            torch.autograd.backward((head(features) if output is None else output).square().mean())
            optimizer.step()
    finding = only(run)
    # Without the trained part in between, the latest four calls are kept.
    expected = "`log` in `middle` (Middle)" if is_first or others < 4 else "The input of"
    assert finding.message.startswith(expected)


@pytest.mark.parametrize("kept", [False, True], ids=["results are dropped", "results are kept"])
def test_an_evaluation_holds_few_of_its_batches(kept: bool) -> None:
    model, x = Net().eval(), torch.zeros(1)
    results: list[Tensor] = []
    batches: list[weakref.ref[Tensor]] = []
    with record(model) as run:
        with torch.no_grad():
            for _ in range(50):
                x = torch.randn(4, 8)
                batches.append(weakref.ref(x))
                result = model(x).square().sum()
                if kept:
                    results.append(result)
        x = torch.zeros(1)
        assert sum(each() is not None for each in batches) <= 8
    assert run.failure is None


def test_what_a_penalty_on_scaled_gradients_has_made_infinite_is_no_batch_to_look_at() -> None:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    with record(critic) as run:
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 8, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.float16):
                score = critic(x).sum()
            gradients = torch.autograd.grad(scaler.scale(score), x, create_graph=True)[0]
            penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
            scaler.scale(score.float() + penalty).backward()
            scaler.step(optimizer)
            scaler.update()
    assert {finding.code for finding in run.findings} == {"AMP214"}, run.findings
    assert run.bad_losses


def trained_with_a_kept_value(form: str) -> Run:
    """Train for four steps. A value that step 1 makes infinite is read by all later steps, too."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    converters: dict[str, Callable[[Tensor], Tensor]] = {"sparse": Tensor.to_sparse, "compressed": Tensor.to_sparse_csr}
    convert = converters.get(form, Tensor.clone)
    kept = convert(torch.zeros(3, 3))
    with record(model) as run:
        for step in range(4):
            optimizer.zero_grad()
            output = model(torch.randn(3, 3))
            if step == 1:
                kept = convert((output.detach() * 0.0).log())  # kept
            if form == "the value":
                output = output * kept
            elif form == "a view":
                output = output[1:] * kept[1:]
            else:
                output = torch.sparse.mm(kept, output)
            loss = output.square().mean()
            loss.backward()
            if loss.isfinite():
                optimizer.step()
    assert run.failure is None, run.failure
    return run


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("form", ["the value", "a view"])
def test_a_value_that_later_steps_read_is_reported_for_the_step_that_computes_it(form: str) -> None:
    finding = only(trained_with_a_kept_value(form))
    assert (finding.line, finding.names["step"]) == (line_of("kept"), "1")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("form", ["sparse", "compressed"])
def test_a_sparse_value_that_later_steps_read(form: str) -> None:
    # Later steps are reported as well, because a replay does not recognize a sparse value.
    assert line_of("kept") in [finding.line for finding in trained_with_a_kept_value(form).findings]


@pytest.mark.usefixtures("each_place")
def test_a_parameter_that_other_code_makes_non_finite() -> None:
    model = Net()

    def batch(step: int) -> Tensor:
        if step == 3:
            model.head.weight.data.fill_(float("inf"))
        return torch.randn(4, 8)

    finding = only(train(model, batch=batch))
    assert finding.message.startswith(
        "`head.weight` of `head` (Linear) is the first non-finite value of step 3, and non-finite since step 3"
    )


def test_nothing_more_is_explained_after_a_parameter_became_non_finite() -> None:
    model = Net()

    def batch(step: int) -> Tensor:
        if step in (2, 4):
            model.head.weight.data.fill_(float("inf") if step == 2 else 0.5)
        return torch.randn(4, 8) * (float("nan") if step == 4 else 1.0)

    assert only(train(model, batch=batch)).message.startswith("`head.weight` of `head` (Linear) is the first")


@pytest.mark.usefixtures("each_place")
def test_the_state_of_an_optimizer() -> None:
    model = Net()

    def spoil(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 2:
            optimizer.state[model.first.weight]["exp_avg"].fill_(float("nan"))

    finding = only(train(model, before=spoil))
    assert finding.message.startswith("The optimizer's step 2 makes `first.weight` of `first` (Linear) non-finite")
    assert "`exp_avg` in the state of Adam is not finite" in finding.message


@pytest.mark.usefixtures("each_place")
def test_a_learning_rate() -> None:
    def raise_it(step: int, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 1e30 if step == 2 else 1e-3

    finding = only(train(Net(), before=raise_it))
    assert finding.names["since"] == "2"
    assert "weights have grown up to" in finding.message
    assert "lower the learning rate" in finding.message


@pytest.mark.parametrize("other", [torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.complex64)])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_parameters_of_other_types_beside_those_that_are_looked_at(other: Tensor, value: float) -> None:
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(other, requires_grad=False)
    optimizer = torch.optim.SGD([other, weight], lr=1e-3)
    with record() as run:
        torch.autograd.backward(weight.square().sum())
        optimizer.step()
        weight.data.mul_(value)
    assert run.failure is None, run.failure
    assert [finding.code for finding in run.findings] == ([] if value == 1.0 else ["AMP802"])


@pytest.mark.usefixtures("each_place")
def test_the_last_step_is_looked_at_too() -> None:
    model = Net()

    def spoil(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 5:
            optimizer.state[model.first.weight]["exp_avg"].fill_(float("nan"))

    assert "step 5 makes `first.weight` of `first` (Linear) non-finite" in only(train(model, before=spoil)).message


def test_a_gradient_that_other_code_spoils_before_the_last_step() -> None:
    model = Net()

    def spoil(step: int, optimizer: torch.optim.Optimizer) -> None:
        if step == 5:
            assert model.first.weight.grad is not None
            model.first.weight.grad.fill_(float("nan"))

    finding = only(train(model, before=spoil))
    assert finding.message.startswith(
        "The optimizer's step 5 makes `first.weight` of `first` (Linear) non-finite, because its gradient is not finite"
    )


def test_statistics_of_batch_norm_without_any_step() -> None:
    norm, linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
    with emulate_cuda(), record() as run, torch.autocast("cuda"):
        x = linear(torch.rand(2, 4) * 131070.0)  # statistics
        norm(x)
    finding = only(run)
    assert finding.line == line_of("statistics")
    assert "`running_mean` of `BatchNorm1d` becomes NaN or infinite" in finding.message
    assert "above 65504" in finding.message


class Averaging(nn.Module):
    """A module that averages sums of its inputs, as a codebook does, and grows a mask."""

    average: Tensor

    def __init__(self, *, autocast: bool, size: int = 8) -> None:
        super().__init__()
        self.layer, self.autocast = nn.Linear(8, 1), autocast
        self.register_buffer("mask", torch.zeros(2, 2))
        self.register_buffer("average", torch.zeros(size))

    def forward(self, x: Tensor) -> Any:
        output = self.layer(x * 1e-4) + 0.0 * self.average.sum()
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.autocast):
            total = torch.ones(1, x.shape[0]) @ x  # summed up
        self.average.data[:8].mul_(0.9).add_(total.flatten(), alpha=0.1)
        self.mask = torch.full((4, 4), float("-inf")).triu(1)
        return output


@pytest.mark.parametrize("autocast", [True, False])
def test_a_buffer_that_a_forward_pass_updates(autocast: bool) -> None:
    """The loss is finite in the step that makes the buffer infinite, and NaN in all later steps."""
    run = train(Averaging(autocast=autocast), scaler=True, batch=lambda step: torch.full((4, 8), 3e4))
    findings = [finding for finding in run.findings if finding.code == "AMP802"]
    assert [finding.line for finding in findings] == ([line_of("summed up")] if autocast else [])
    for finding in findings:
        assert finding.message.startswith("`average` of `Averaging` becomes NaN or infinite in step 0, and later steps")
        assert "its result is above 65504, the most that float16 holds" in finding.message


class TwoAverages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Averaging(autocast=True), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Any:
        self.second((x[1].half() * x[1].half()).float())  # squared
        return self.first(x[0])


def test_a_second_buffer_that_becomes_infinite_later_is_reported_as_well() -> None:
    large, small = torch.full((4, 8), 3e4), torch.ones(4, 8)
    run = train(TwoAverages(), scaler=True, batch=lambda step: torch.stack([large, large if step else small]))
    assert [(finding.line, finding.message.partition(",")[0]) for finding in run.findings] == [
        (line_of("summed up"), "`average` of `first` (Averaging) becomes NaN or infinite in step 0"),
        (line_of("squared"), "`running_mean` of `second` (BatchNorm1d) becomes NaN or infinite in step 1"),
    ]


def test_statistics_are_reported_also_after_many_losses_that_a_scaler_skips() -> None:
    torch.manual_seed(0)
    linear, norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD([*linear.parameters(), *norm.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with record() as run:
        for step in range(17):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                hidden = linear(torch.randn(4, 8))
                if step == 16:
                    hidden = (hidden * 0.0 + 400.0).square()  # of the statistics
                output = norm(hidden) * 0.0 + 400.0
                loss = output.half().square().square().float().mean()  # of the loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None, run.failure
    assert [(finding.line, finding.names["step"]) for finding in run.findings] == [
        (line_of("of the statistics"), "16"),
        (line_of("of the loss"), "0"),
    ]


@pytest.mark.parametrize(("size", "step"), [(1 << 14, "0"), ((1 << 14) + 1, "1")])
def test_the_step_that_makes_a_buffer_infinite_is_known_for_small_buffers(size: int, step: str) -> None:
    run = train(Averaging(autocast=True, size=size), scaler=True, batch=lambda step: torch.full((4, 8), 3e4))
    assert only(run).names["step"] == step


def test_the_statistics_that_become_infinite_are_named_and_not_finite_ones_beside_them() -> None:
    torch.manual_seed(0)
    model = Net("above", call=0)
    setattr(model, "first", nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16)))  # noqa: B010 - a module of another class
    finding = only(train(model, scaler=True))
    assert finding.line == line_of("above")
    assert finding.message.startswith("`running_mean` of `norm` (BatchNorm1d) becomes NaN or infinite in step 0")


class Drawing(nn.Module):
    """A module that takes its factors from a list, so that a replay of a call gets the next factor."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.draw = iter(factors).__next__

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor(self.draw())


@pytest.mark.parametrize(
    ("value", "scaler", "is_reported"),
    [
        (float("nan"), False, True),
        (float("inf"), False, True),
        (float("nan"), True, True),
        # A scaler may handle a loss that is only too large.
        (float("inf"), True, False),
    ],
)
def test_a_loss_that_a_replay_does_not_show_is_reported_at_its_backward(
    value: float, scaler: bool, is_reported: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1), Drawing([1.0, 1.0, value, *[1.0] * 20]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scales = torch.amp.GradScaler("cpu", init_scale=2.0**4, enabled=scaler)
    with record(model) as run:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            scales.scale(loss).backward()  # not shown again
            scales.step(optimizer)
            scales.update()
    assert run.failure is None, run.failure
    assert (run.bad_losses, run.first_bad_loss) == (1, 2)
    if not is_reported:
        assert run.findings == []
        return
    finding = only(run)
    assert finding.line == line_of("not shown again")
    assert finding.message == (
        "The loss of step 2 is not finite; the cause is unknown (the step, played again, does not show it): find the "
        "first NaN or infinity before it"
    )


def test_what_is_played_again_changes_nothing() -> None:
    def outcome(*, recorded: bool) -> tuple[list[Tensor], Tensor, int, str]:
        torch.manual_seed(0)
        model = Net("random", call=2)
        model.middle.register_forward_hook(lambda module, args, output: output * float("nan") if seen() else output)
        calls = iter(range(100))

        def seen() -> bool:
            return next(calls) == 3

        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        printed = io.StringIO()

        def steps() -> None:
            for _ in range(5):
                optimizer.zero_grad()
                loss = model(torch.randn(4, 8)).square().mean()
                if torch.isfinite(loss):
                    torch.autograd.backward(loss)
                    optimizer.step()
                else:
                    torch.autograd.backward(loss)

        with redirect_stdout(printed):
            if recorded:
                with record() as run:
                    steps()
                assert run.failure is None
                assert [finding.code for finding in run.findings] == ["AMP802"]
            else:
                steps()
        tensors = [value.clone() for value in model.state_dict().values()]
        return tensors, torch.rand(3), model.middle.calls, printed.getvalue()

    plain, watched = outcome(recorded=False), outcome(recorded=True)
    assert all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(plain[0], watched[0], strict=True))
    assert torch.equal(plain[1], watched[1])
    assert plain[2:] == watched[2:]


@pytest.mark.usefixtures("each_place")
def test_masks_and_skips_are_no_alarms() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with record() as run:
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                q, k, v = model(torch.randn(2, 5, 8)).chunk(3, -1)
                scores = (q @ k.transpose(-2, -1)).masked_fill(later, float("-inf"))
                loss = (scores.softmax(-1) @ v).float().square().mean()
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert run.skipped_total > 3
    assert run.findings == []
    run.assert_finite()


def infinite_loss(how: str, output: Tensor) -> Tensor:
    losses = output.square()
    later = torch.tensor([[False], [True]])
    if how == "multiplied":
        return losses.mean() * float("inf")  # multiplied
    if how == "negated":
        return -losses.masked_fill(later, float("-inf")).mean()  # negated
    if how == "summed":
        filled = torch.where(later, losses, float("inf"))  # summed
        return (filled.flatten() * 2.0).sum() / 4
    large = losses.half() * 0.0 + 300.0
    return (losses.half().masked_fill(later, float("-inf")) + large * large).max().float()  # beside a mask


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("scaler", [False, True], ids=["without a scaler", "with a scaler"])
@pytest.mark.parametrize(
    ("how", "start"),
    [
        ("multiplied", "`mul` in code outside of modules fills in or multiplies by an infinity, which makes the loss"),
        ("negated", "`masked_fill` in code outside of modules fills in or multiplies by an infinity"),
        ("summed", "`scalar_tensor` in code outside of modules fills in or multiplies by an infinity"),
        ("beside a mask", "`mul` in code outside of modules produces the first non-finite value in step 0"),
    ],
)
def test_an_infinity_that_reaches_the_loss_is_reported_where_it_is_filled_in(
    how: str, start: str, scaler: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scales = torch.amp.GradScaler("cpu", enabled=scaler)
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward(scales.scale(infinite_loss(how, model(torch.randn(2, 8)))))
            scales.step(optimizer)
            scales.update()
    finding = next(finding for finding in run.findings if finding.code == "AMP802")
    assert finding.line == line_of(how)
    assert finding.message.startswith(start)


@pytest.mark.usefixtures("each_place")
def test_a_gradient_that_no_scale_makes_finite_is_reported_in_a_short_run() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(torch.randn(4, 8)) * 0.0).sqrt().float().mean()  # short run
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    finding = only(run)
    assert finding.line == line_of("short run")
    assert "The gradient of `SqrtBackward0` in code outside of modules" in finding.message


@pytest.mark.usefixtures("each_place")
def test_a_scale_that_sinks_names_the_cause() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for _ in range(20):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.mse_loss(model(torch.randn(4, 8)).log(), torch.zeros(4, 1))  # sinks
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    (finding,) = run.findings
    assert finding.code == "AMP801"
    assert "`log` in code outside of modules" in finding.message
    assert finding.trace[-1].site.line == line_of("sinks")


@pytest.mark.usefixtures("each_place")
def test_a_scale_that_sinks_names_a_gradient_that_no_scale_makes_finite() -> None:
    """The cause is searched before the step after which the scale is below 1."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                root = (model(torch.randn(4, 8)) * 0.0).sqrt()  # infinite
                loss = root.float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    (finding,) = run.findings
    assert finding.code == "AMP801"
    assert "the gradient of `SqrtBackward0`" in finding.message
    assert "because the derivative of a square root is infinite at zero" in finding.message
    assert finding.trace[-1].site.line == line_of("infinite")


def test_assert_finite_tells_what_was_found() -> None:
    torch.manual_seed(0)
    train(Net(), scaler=True).assert_finite()
    with pytest.raises(AssertionError, match="the loss was not finite in 1 of 6 steps, first in step 3") as caught:
        train(Net("divides", call=3), scaler=True).assert_finite()
    assert "`div` in `middle`" in str(caught.value)
    with pytest.raises(ValueError, match="memory=True"):
        train(Net(), memory=True).assert_finite()


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_batch_is_reported_also_where_a_scaler_skips_it(value: float) -> None:
    torch.manual_seed(0)
    batches = torch.randn(6, 4, 8)
    batches[2, 1] = value
    run = train(Net(), scaler=True, batch=list(batches).__getitem__)
    finding = only(run)
    assert finding.message.startswith("The input of `first` (Linear) contains non-finite values in step 2")
    assert (run.bad_losses, run.first_bad_loss) == (1, 2)
    with pytest.raises(AssertionError, match="first in step 2"):
        run.assert_finite()


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("call", [0, 3])
def test_an_overflow_of_float32_is_reported_also_where_a_scaler_skips_it(call: int) -> None:
    torch.manual_seed(0)
    finding = only(train(Net("exponent", call=call), scaler=True))
    assert finding.line == line_of("exponent")
    assert finding.message.startswith(f"`exp` in `middle` (Middle) produces the first non-finite value in step {call}")


@pytest.mark.parametrize("how", ["above", "wide"])
def test_an_overflow_of_half_precision_is_reported_after_a_step_or_where_none_is_applied(how: str) -> None:
    torch.manual_seed(0)
    model = Net(how, call=0)
    setattr(model, "norm", nn.Identity())  # noqa: B010 - a module of another class
    calibrating = train(model, scaler=True)
    assert calibrating.findings == []
    assert (calibrating.bad_losses, calibrating.skipped_total) == (1, 1)
    # The scaler does not restore statistics.
    assert only(train(Net(how, call=0), scaler=True)).message.startswith(
        "`running_mean` of `norm` (BatchNorm1d) becomes"
    )
    assert only(train(Net(how, call=3), scaler=True)).line == line_of(how)
    # Not one step is applied.
    finding = only(train(Net(how, call=0), steps=1, scaler=True))
    assert finding.line == line_of(how)


class OwnScaler(torch.amp.GradScaler):
    """A scaler that changes a loss before scaling."""

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs * 1.0)


class Passing(TorchFunctionMode):
    """A function mode of the program without any effect."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("each_place")
def test_an_op_between_the_scaling_and_the_backward() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with record() as run:
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            scaled = scaler.scale(loss)
            if step == 1:
                scaled = (scaled * 0.0).log()  # scaled before
            torch.autograd.backward(scaled)
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None, run.failure
    finding = only(run)
    assert finding.line == line_of("scaled before")
    assert "`log` in code outside of modules produces the first non-finite value in step 1" in finding.message


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize("how", ["one loss", "two losses", "a scaler of its own", "a mode of its own"])
def test_a_loss_is_followed_through_each_way_of_scaling_it(how: str) -> None:
    torch.manual_seed(0)
    model = Net("divides", call=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = (OwnScaler if how == "a scaler of its own" else torch.amp.GradScaler)("cpu", init_scale=2.0**8)
    with record(model) as run:
        for _ in range(6):
            optimizer.zero_grad()
            with Passing() if how == "a mode of its own" else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(torch.randn(4, 8)).float().square().mean()
                scaled = sum(scaler.scale([loss, loss])) if how == "two losses" else scaler.scale(loss)
            torch.autograd.backward(scaled)
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None, run.failure
    finding = only(run)
    assert finding.line == line_of("divides")
    assert finding.message.startswith("`div` in `middle` (Middle) produces the first non-finite value in step 3")


def test_a_loss_that_the_loss_scale_alone_makes_infinite_is_counted_without_a_finding() -> None:
    torch.manual_seed(0)
    weights = torch.ones(6)
    weights[2] = 1e36
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for weight in weights:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 1)) * weight
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert run.findings == []
    assert (run.bad_losses, run.first_bad_loss) == (1, 2)
    with pytest.raises(AssertionError, match="first in step 2"):
        run.assert_finite()


@pytest.mark.parametrize(
    ("how", "op", "scaler"),
    [("divides", "`div`", False), ("divides", "`div`", True), ("root", "`SqrtBackward0`", False)],
)
def test_what_a_device_says_one_step_late_is_played_with_the_weights_of_then(
    how: str, op: str, scaler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, whose numbers are available when the next step fetches them.
    count_as_on_device(monkeypatch)
    torch.manual_seed(0)
    run = train(Net(how, call=3), scaler=scaler)
    finding = only(run)
    assert finding.line == line_of(how)
    assert finding.names["step"] == "3"
    assert f"{op} in `middle` (Middle)" in finding.message
    assert run.first_bad_loss == (3 if how == "divides" else 4)


def test_a_last_step_of_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    count_as_on_device(monkeypatch)
    monkeypatch.setattr("pytest_amp_check.runtime.record.delayed_reads.DeviceTransfer.is_ready", False)
    torch.manual_seed(0)
    finding = only(train(Net("divides", call=5)))
    assert "`div` in `middle` (Middle) produces the first non-finite value in step 5" in finding.message


@pytest.mark.parametrize("place", ["CPU", "device", "device that steps by itself"])
def test_a_skipped_step_of_a_settled_scale_is_explained_on_each_device(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place != "CPU":
        count_as_on_device(monkeypatch)
    if place == "device that steps by itself":
        # A fused optimizer on a GPU decides there about its step, and the scaler reads nothing.
        monkeypatch.setattr("pytest_amp_check.runtime.record.deferred_values.FoundInf.is_known", False)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=place == "device that steps by itself")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with record(model) as run:
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            torch.autograd.backward(scaler.scale(loss * 1e30 if step == 3 else loss))
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None, run.failure
    finding = only(run)
    assert (finding.code, finding.names["step"]) == ("AMP802", "3")
    assert [step.index for step in run.steps if step.skipped] == [3]
    assert run.bad_losses == 0


@pytest.mark.parametrize(
    ("sizes", "is_kept"),
    [
        ([("cuda", 100)], True),
        ([("cuda", 101)], False),
        ([("cuda", 60), ("cuda", 40)], True),
        ([("cuda", 60), ("cuda", 41)], False),
        ([("cuda:0", 60), ("cuda:1", 60)], True),
        ([("cpu", 10_000)], True),
    ],
)
def test_weights_are_kept_in_an_eighth_of_the_free_memory(
    sizes: list[tuple[str, int]], is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [(torch.device(name), size) for name, size in sizes]
    monkeypatch.setattr("pytest_amp_check.runtime.record.delayed_reads._device_sizes", lambda params: devices)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (800, 10_000))
    weight = nn.Parameter(torch.ones(2))
    weights = PreviousWeights()
    weights.save_weights(torch.optim.SGD([weight], lr=0.1), 0)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weights.save_weights(optimizer, 3)
    weight.data.fill_(5.0)
    assert [value.tolist() for _, value in weights.weights_before(3)] == [[1.0, 1.0]] * is_kept
    weights.save_weights(optimizer, 4)
    assert [value.tolist() for _, value in weights.weights_before(4)] == [[5.0, 5.0]] * is_kept
    assert weights.weights_before(5) == []


def test_a_hidden_overflow_is_reported_when_a_device_has_returned_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    count_as_on_device(monkeypatch)
    # A mode for hidden overflows would have compiled code compiled again, and other tests of the process compile.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "cached_backends", {})
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    with record(model) as run:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                large = model(torch.randn(4, 8)) * 2000
                loss = (large / torch.sqrt((large * large).mean() + 1e-6)).float().square().mean() + 1.0
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None, run.failure
    finding = only(run)
    assert finding.code == "AMP802"
    assert "overflows float16 in step 0" in finding.message


def test_a_step_that_several_loops_call_is_searched_for_hidden_overflows_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    steps = 0
    made = OverflowMode.__init__

    def make(mode: OverflowMode) -> None:
        searched.append(steps)
        made(mode)

    monkeypatch.setattr(OverflowMode, "__init__", make)
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "cached_backends", {})
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        nonlocal steps
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(4, 8)).float().square().mean()
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        steps += 1

    with record(model):
        for _ in range(4):
            step()
        for _ in range(4):
            step()
        while steps < 13:
            step()
    assert searched == [0, 10]


@pytest.mark.parametrize("is_fused", [False, True], ids=["loss", "loss and skip"])
def test_a_device_is_waited_for_in_the_step_after_the_checked_one(
    is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_as_on_device(monkeypatch)
    monkeypatch.setattr(DeviceTransfer, "is_ready", False)
    if is_fused:
        monkeypatch.setattr("pytest_amp_check.runtime.record.deferred_values.FoundInf.is_known", False)
    running, waits = 0, []
    read = DeviceTransfer.wait_for_numbers

    def wait(transfer: DeviceTransfer) -> list[float]:
        waits.append(running)
        return read(transfer)

    def batch(step: int) -> Tensor:
        nonlocal running
        running = step
        return torch.randn(4, 8)

    monkeypatch.setattr(DeviceTransfer, "wait_for_numbers", wait)
    run = train(nn.Linear(8, 4), steps=4, scaler=is_fused, batch=batch)
    assert run.findings == []
    # The last step has no next step, so the end of the recording waits.
    assert waits == ([1, 1, 2, 2, 3, 3, 3, 3] if is_fused else [1, 2, 3, 3])


def found_in_steps(plan: str, low: float, high: float) -> list[str]:
    """Train with a step for each letter. Return the steps of the AMP802 findings.

    a       a step that is applied
    h       a step whose high scale makes its gradients infinite
    r       a step whose gradients are infinite with any scale, as the root of zero
    w       a step whose loss is infinite in float16 only
    i       a step whose loss is multiplied by an infinity
    l       a step whose loss overflows float32, from numbers that float16 does not hold
    n       a step with a batch of NaN
    """
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=high if plan[0] == "h" else low)
    with record() as run:
        for kind, following in zip(plan, [*plan[1:], "end"], strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(torch.randn(4, 8) * (float("nan") if kind == "n" else 1.0))
                if kind == "r":
                    output = (output * 0.0).sqrt()
                elif kind == "w":
                    output = (output * 0.0 + 400.0).square().square()
                loss = output.float().mean() * (float("inf") if kind == "i" else 1.0)
                if kind == "l":
                    loss = (loss + 1e30).square()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if (kind == "h") is (following == "h") or following not in "ah":
                scaler.update()
            else:
                scaler.update(high if following == "h" else low)
    assert run.failure is None, run.failure
    assert [step.skipped for step in run.steps] == [kind != "a" for kind in plan]
    return [finding.names["step"] for finding in run.findings if finding.code == "AMP802"]


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        # Before the first applied step, the first skip is examined, and the 18th in a row.
        ("r", ["0"]),
        ("h" + "r" * 16, []),
        ("h" + "r" * 17, ["17"]),
        # After it, a skip after a growing scale is examined, and the 8th in a row.
        ("aar", ["2"]),
        ("aahrrrrrr", []),
        ("aahrrrrrrr", ["9"]),
        # After four examined skips without a mistake, only long runs of skips are examined.
        ("aahaahaahaar", ["11"]),
        ("aahaahaahaahaar", []),
    ],
)
def test_which_skips_of_a_finite_loss_are_examined(plan: str, steps: list[str]) -> None:
    assert found_in_steps(plan, low=2.0**10, high=2.0**100) == steps


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        # A loss that is infinite in float16 only is a mistake if no step is ever applied.
        ("w", ["0"]),
        ("ww", ["0"]),
        ("wwa", []),
        # One step with an infinite factor may be a test of a skipped step.
        ("i", []),
        ("ii", ["0"]),
        ("iia", []),
        ("aii", []),
        # Numbers that are large already are no matter of float16.
        ("l", []),
        ("ll", []),
        ("al", []),
    ],
)
def test_which_losses_are_reported_although_a_scaler_skips_them(plan: str, steps: list[str]) -> None:
    assert found_in_steps(plan, low=2.0**4, high=2.0**100) == steps


@pytest.mark.parametrize(("plan", "steps"), [("w", ["0"]), ("wa", []), ("aw", ["1"])])
def test_steps_that_a_device_decides_about_count_as_well(
    plan: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_amp_check.runtime.record.deferred_values.FoundInf.is_known", False)
    assert found_in_steps(plan, low=2.0**4, high=2.0**100) == steps


@pytest.mark.parametrize(("scale", "is_explained"), [(1.0, True), (1.75, True), (2.0, False)])
def test_a_skip_after_which_the_scale_is_below_one_is_explained(scale: float, is_explained: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    with record() as run:
        for step in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(torch.randn(4, 8))
                loss = ((output * 0.0).sqrt() if step else output).float().mean()  # sinking
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(None if step else scale)
    assert run.failure is None, run.failure
    assert run.skipped_total == 2
    assert [finding.code for finding in run.findings] == ["AMP801"] * is_explained
    for finding in run.findings:
        assert "the gradient of `SqrtBackward0` in code outside of modules is the first" in finding.message
        assert finding.trace[-1].site.line == line_of("sinking")


@pytest.mark.usefixtures("each_place")
@pytest.mark.parametrize(("count", "steps"), [(15, ["15"]), (16, [])])
def test_no_loss_is_examined_after_sixteen_that_a_scaler_may_handle(count: int, steps: list[str]) -> None:
    assert found_in_steps("w" * count + "na", low=2.0**24, high=2.0**24) == steps


#: A loss that stays finite, whatever the square is. Lines 5 and 6 compute the square and the quotient.
QUOTIENT = """
with torch.autocast("cpu", dtype=torch.float16):
    y = model(torch.randn(4, 8))
    high = y * 0.0 + 400.0
    square = {square}
    quotient = {quotient}
    loss = quotient.float().mean() + y.float().square().mean()
"""


@pytest.mark.parametrize(
    ("square", "quotient", "op"),
    [
        ("high * high", "y / square", "mul"),
        ("high * high", "torch.ones_like(y).div_(square) * y", "mul"),
        ("high * high", "square.reciprocal() * y.detach()", "mul"),
        ("high * high", "square.reciprocal_() * y", "mul"),
        ("high * high", "square.rsqrt() * y", "mul"),
        ("high * high", "square.rsqrt_() * y", "mul"),
        # The infinity passes through other ops, and into a part of a tensor.
        ("high * high + 1.0", "y / square", "mul"),
        ("-(high * high)", "y / square", "mul"),
        ("torch.stack([high * high, high])", "y / square", "mul"),
        ("torch.cat([high * high, high])[:4]", "y / square", "mul"),
        ("y.masked_fill(y == y, float('inf'))", "y / square", "masked_fill"),
        ("(high * high).view(-1).mul(1.0).view(4, 4)", "torch.div(y, square)", "mul"),
        ("torch.addcmul(y, high, high)", "y / square[0]", "addcmul"),
        ("(high * high).clamp_(max=6e4)", "y / square", ""),
        # An infinity that no division hides, and a division of one.
        ("high * high", "square.clamp(max=1.0) / y", ""),
        ("(high * high).clamp(max=6e4)", "y / square", ""),
        ("(high * high).nan_to_num()", "y / square", ""),
        # Masks, constants, ops whose true value is beyond any use, and other dtypes.
        ("y.masked_fill(y == y, float('-inf'))", "y / square", ""),
        ("torch.full((4, 4), float('inf'), dtype=torch.half)", "y / square", ""),
        ("limit * 1.0", "y / square", ""),
        ("(high * 2).half().exp_()", "y / square", ""),
        ("high.float() * high.float()", "y / square", ""),
        ("high.double() * 1e300 * 1e300", "y / square", ""),
    ],
)
def test_overflows_that_a_division_hides(
    square: str, quotient: str, op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = hidden_overflows(QUOTIENT.format(square=square, quotient=quotient), tmp_path, monkeypatch)
    if not op:
        assert findings == []
        return
    (finding,) = findings
    assert finding.message.startswith(f"`{op}` overflows float16 in step 0, and a division by its infinity (line 6) ")
    assert [(step.site.line, step.text) for step in finding.trace] == [
        (5, "a result is infinite"),
        (6, "it divides, and gives zero"),
    ]


def test_an_overflow_that_two_searches_find_is_reported_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = QUOTIENT.format(square="high * high", quotient="y / square").strip().replace("\n", "\n    ")
    train = "optimizer.zero_grad(); loss.backward(); optimizer.step()"
    program = f"optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\nfor step in range(12):\n    {loop}\n    "
    (finding,) = hidden_overflows(f"{program}{train}\nloss = model(torch.ones(1, 8)).sum()", tmp_path, monkeypatch)
    assert (finding.line, finding.names["step"]) == (6, "0")


@pytest.mark.parametrize(
    ("region", "is_searched"),
    [
        ('with torch.autocast("cpu", dtype=torch.float16):', True),
        ('with torch.autocast("cpu", dtype=torch.float16, enabled=False):', False),
        ('with torch.autocast("cpu", dtype=torch.bfloat16):', False),
        ('with FlopCounterMode(display=False), torch.autocast("cpu", dtype=torch.float16):', False),
        # Leaving an inner region ends no search.
        ('with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cpu", dtype=torch.float16):', True),
    ],
)
def test_the_regions_that_are_searched_for_hidden_overflows(
    region: str, is_searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = QUOTIENT.format(square="(high * high).half()", quotient="y / square")
    program = program.replace('with torch.autocast("cpu", dtype=torch.float16):', region)
    program = program.replace("high = y * 0.0 + 400.0", "y = y.half(); high = y * 0.0 + 400.0")
    assert bool(hidden_overflows(program, tmp_path, monkeypatch)) is is_searched


@pytest.mark.parametrize(("backend", "is_searched"), [(None, True), ("inductor", False)])
def test_no_mode_is_entered_beside_compiled_code(
    backend: str | None, is_searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = pytest.importorskip("torch._dynamo.eval_frame")
    monkeypatch.setattr(frames, "cached_backends", {0: backend})
    program = QUOTIENT.format(square="high * high", quotient="y / square")
    assert bool(hidden_overflows(program, tmp_path, None)) is is_searched


def hidden_overflows(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch | None) -> list[Finding]:
    """Run a program that computes a loss, and one step. Return the findings of AMP802."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and monkeypatch is not None:
        monkeypatch.setattr(frames, "cached_backends", {})
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    path = tmp_path / "train.py"
    path.write_text(program, encoding="utf-8")
    limit = torch.full((4, 4), float("inf"), dtype=torch.float16)
    names: dict[str, Any] = {"torch": torch, "model": model, "limit": limit, "FlopCounterMode": FlopCounterMode}
    with record() as run:
        exec(compile(program, str(path), "exec"), names)  # noqa: S102 - ours
        torch.autograd.backward(scaler.scale(names["loss"]))
        scaler.step(optimizer)
        scaler.update()
    assert run.failure is None, run.failure
    return [finding for finding in run.findings if finding.code == "AMP802"]
