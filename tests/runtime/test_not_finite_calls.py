"""AMP802: steps are replayed for every form of module calls, arguments and results."""

# mypy: allow-untyped-calls

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from pytest_amp_check import record
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.runtime.run import Run

pytestmark = pytest.mark.usefixtures("patched_once")


def line_of(mark: str) -> int:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return number


@dataclass
class Output:
    """A model output as in transformers."""

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Net(nn.Module):
    """A model with tensors in some form as arguments and results, and a log of zero if the first input is zero."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.layer = form, nn.Linear(8, 4)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x: Tensor
        if self.form == "keywords":
            x = kwargs["first"] + kwargs["second"]
        elif self.form == "a keyword with a list":
            x = args[0] + kwargs["others"][0] + kwargs["others"][1]["deep"]
        elif self.form == "a tuple":
            x = args[0][0] + args[0][1]
        elif self.form == "a dict":
            x = args[0]["first"] + args[0]["second"]
        else:
            x = args[0]
        made = self.layer(x).float() * x.abs().amax()
        logits = made + (x.abs().amax() * 1.0).log()  # logarithm
        if self.form == "gives a dict":
            return {"logits": logits, "size": 4}
        if self.form == "gives a list in a tuple":
            return "name", [None, logits]
        if self.form == "gives an object":
            return Output(made, (made, logits))
        return logits


def logits_of(form: str, model: nn.Module, x: Tensor) -> Tensor:
    zero = x * 0.0
    if form == "keywords":
        found = model(first=x, second=zero)
    elif form == "a keyword with a list":
        found = model(x, others=[zero, {"deep": zero, "number": 3}])
    elif form == "a tuple":
        found = model((x, zero))
    elif form == "a dict":
        found = model({"first": x, "second": zero, "name": "a batch"})
    elif form == "gives a dict":
        found = model(x)["logits"]
    elif form == "gives a list in a tuple":
        found = model(x)[1][1]
    elif form == "gives an object":
        found = model(x).hidden[1]
    else:
        found = model(x)
    assert isinstance(found, Tensor)
    return found


def only(run: Run) -> Finding:
    assert run.failure is None, run.failure
    (finding,) = [finding for finding in run.findings if finding.code == "AMP802"]
    return finding


@pytest.mark.parametrize(
    "form",
    [
        "keywords",
        "a keyword with a list",
        "a tuple",
        "a dict",
        "gives a dict",
        "gives a list in a tuple",
        "gives an object",
    ],
)
def test_the_op_is_found_in_a_module_that_takes_and_gives_tensors_in_any_form(form: str) -> None:
    torch.manual_seed(0)
    model = Net(form)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = logits_of(form, model, torch.randn(4, 8) * float(step != 1))
            torch.autograd.backward(logits.square().mean())
            optimizer.step()
    finding = only(run)
    assert finding.line == line_of("logarithm")
    assert finding.message.startswith("`log` in `Net` produces the first non-finite value in step 1")
    assert "the logarithm of zero" in finding.message


@pytest.mark.parametrize("form", ["a list", "an item that is set", "a view", "a keyword", "keywords of a function"])
def test_the_op_is_found_outside_of_modules_behind_any_other_op(form: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(3):
            optimizer.zero_grad()
            made = model(torch.randn(4, 8)) * float(step != 1)
            if form == "a list":
                made = torch.cat([torch.stack([made, made * 2.0]), made.unsqueeze(0)])
            elif form == "an item that is set":
                copied = torch.zeros(4, 4)
                copied[1:] = made[1:]
                made = copied + made
            elif form == "a view":
                made = made.T.mT
            elif form == "a keyword":
                made = torch.mul(input=made, other=torch.ones(4))
            else:
                made = torch.nn.functional.pad(made, pad=(0, 1, 0, 1), value=1.0)[:4, :4]
            loss = made.square().mean().log()  # outside
            loss.backward()
            optimizer.step()
    finding = only(run)
    assert finding.line == line_of("outside")
    assert finding.message.startswith("`log` in code outside of modules produces the first non-finite value in step 1")
    assert "the logarithm of zero" in finding.message


@pytest.mark.parametrize("bad", [0, 1])
def test_one_of_two_losses_that_run_backward_together(bad: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        made = model(torch.randn(4, 8))
        losses = [made.square().mean(), made.abs().mean()]
        losses[bad] = (losses[bad] * 0.0).log()  # one of two
        torch.autograd.backward(losses)
        optimizer.step()
    assert only(run).line == line_of("one of two")
    assert (run.bad_losses, run.first_bad_loss) == (1, 0)


def test_more_numbers_than_one_run_backward() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        made = model(torch.randn(4, 8))
        made = made / made.detach().relu()  # some of them
        torch.autograd.backward([made], [torch.ones(4, 4)])
        optimizer.step()
    finding = only(run)
    assert finding.line == line_of("some of them")
    assert "`div` in code outside of modules" in finding.message
    assert run.bad_losses == 1


def test_statistics_of_a_layer_that_is_replaced() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(4):
            if step == 2:
                model[1] = nn.BatchNorm1d(4)
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    assert run.failure is None
    assert run.findings == []
    run.assert_finite()


def test_statistics_that_are_taken_away() -> None:
    torch.manual_seed(0)
    norm: Any = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(8, 4), norm, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(4):
            if step == 2:
                norm.running_mean = norm.running_var = None
                norm.track_running_stats = False
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    assert run.failure is None
    assert run.findings == []


def test_statistics_are_reported_once() -> None:
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(4), nn.Linear(8, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=1e-3)
    with record() as run:
        for step in range(4):
            optimizer.zero_grad()
            made = linear(torch.randn(4, 8))
            normed = norm(made / float(step != 1))  # spoils
            assert normed.shape == (4, 4)
            made.square().mean().backward()
            optimizer.step()
    finding = only(run)
    assert finding.line == line_of("spoils")
    assert "`running_mean` of `BatchNorm1d` becomes NaN or infinite" in finding.message


def test_at_most_four_causes_are_reported() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for _ in range(2):
            made = model(torch.randn(4, 8)).square().mean()
            for loss in (
                (made * 0.0).log(),  # first
                (made * 0.0).log2(),  # second
                (made * 0.0).log10(),  # third
                made / 0.0,  # fourth
                (made + 1e9).exp(),  # fifth
            ):
                loss.backward(retain_graph=True)
            optimizer.zero_grad()
    assert run.failure is None
    found = sorted(finding.line for finding in run.findings if finding.code == "AMP802")
    assert found == [line_of(mark) for mark in ("first", "second", "third", "fourth")]
    # Unreported cases are counted.
    assert (run.bad_losses, run.first_bad_loss) == (10, 0)


def test_a_cause_is_reported_before_a_scale_sinks_for_another_one() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with record(model) as run:
        for step in range(20):
            optimizer.zero_grad()
            x = torch.randn(4, 8) * (float("nan") if step == 2 else 1.0)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()  # broken batch
            if step >= 5:
                loss = (loss * 0.0).log()  # sinks
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    assert [(finding.code, finding.names["step"]) for finding in run.findings if finding.code == "AMP802"] == [
        ("AMP802", "2")
    ]
    (sunk,) = [finding for finding in run.findings if finding.code == "AMP801"]
    assert "`log` in code outside of modules" in sunk.message
    assert sunk.trace[-1].site.line == line_of("sinks")
    assert (run.bad_losses, run.first_bad_loss) == (16, 2)


def test_batches_whose_results_are_gone_are_let_go() -> None:
    model = nn.Linear(8, 4)
    batches: list[weakref.ref[Tensor]] = []
    with record(model) as run:
        for _ in range(200):
            x = torch.randn(4, 8)
            batches.append(weakref.ref(x))
            assert model(x).shape == (4, 4)
        x = torch.zeros(1)
        # At most the number of kept calls, regardless of the use of their results.
        assert sum(each() is not None for each in batches) <= 64
    assert run.failure is None
    assert not any(each() is not None for each in batches)


class Counting(TorchFunctionMode):
    """A function mode of the program."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_stays_where_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with Counting() as mode:
        with record(model) as run:
            for step in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    made = model(torch.randn(4, 8)).float() * float(step != 1)
                loss = made.square().mean().log()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                before = mode.calls
                torch.ones(2).mul(2.0)
                assert mode.calls > before
        assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0
    assert only(run).message.startswith(
        "`log` in code outside of modules produces the first non-finite value in step 1"
    )


# Only a row and a column are read of the gradient of the larger layer.
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 2), (128, 256)])
@pytest.mark.parametrize("row", [0, 1])
def test_a_gradient_that_is_not_finite_behind_a_finite_loss(inputs: int, outputs: int, row: int) -> None:
    with record() as run:
        layer = nn.Linear(inputs, outputs, bias=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        out = layer(torch.ones(4, inputs))[:, row]
        # The derivative of the square root is infinite at zero.
        (out - out.detach()).abs().sqrt().sum().backward()
        optimizer.step()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["not-finite:gradient"]


@pytest.mark.parametrize("is_method", [True, False])
def test_ops_between_a_backward_and_the_next_forward_are_not_watched(is_method: bool) -> None:
    model = nn.Linear(8, 4)
    # A function mode on torch's stack makes every op slower, and makes torch compile code again.
    modes: list[int] = []
    with record(model):
        for _ in range(2):
            loss = model(torch.randn(4, 8)).square().mean()
            modes.append(torch._C._len_torch_function_stack())
            if is_method:
                loss.backward()
            else:
                torch.autograd.backward(loss)
            modes.append(torch._C._len_torch_function_stack())
    assert modes == [1, 0, 1, 0]


@pytest.mark.parametrize("form", ["T", "mT", "H", "real"])
def test_the_op_is_found_before_an_attribute_of_its_result(form: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(3):
            optimizer.zero_grad()
            made = model(torch.randn(4, 8)).abs() * float(step != 1)
            logs = made.log()  # logs
            loss = getattr(logs, form).mean()
            del made, logs
            loss.backward()
            optimizer.step()
    assert only(run).line == line_of("logs")


class Logarithm(nn.Module):
    """A module without parameters, and with an entry for a child that it does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_module("extra", None)

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()  # temporary


@pytest.mark.parametrize(
    "make", [Logarithm, lambda: nn.Sequential(Logarithm()), lambda: nn.Sequential(nn.Sequential(Logarithm()))]
)
def test_the_op_is_found_in_a_module_without_weights_that_is_made_for_one_call(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for step in range(3):
            optimizer.zero_grad()
            loss = make()(model(torch.randn(4, 8)) * float(step != 1)).mean()
            loss.backward()
            optimizer.step()
    finding = only(run)
    assert finding.line == line_of("temporary")
    assert finding.message.startswith("`log` in `")


class Late(nn.Module):
    """A model that counts its calls, from the first call on, and takes the logarithm of zero in the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        made: Tensor = self.layer(x)
        return made + (made.detach().abs().amax() * float(self.calls != 3)).log()  # third call


@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential])
def test_a_model_is_called_again_with_the_counts_of_that_call(wrap: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    model = wrap(Late())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            if not all(p.isfinite().all() for p in model.parameters()):
                break
    finding = only(run)
    assert finding.line == line_of("third call")
    assert (finding.names["step"], [module.calls for module in model.modules() if isinstance(module, Late)]) == (
        "2",
        [3],
    )


@pytest.mark.parametrize("form", ["a list", "a dict", "an object"])
def test_arguments_and_results_that_contain_themselves(form: str) -> None:
    class Echo(nn.Linear):
        def forward(self, held: Any) -> Any:
            x = held["x"] if form == "a dict" else held[0] if form == "a list" else held.logits
            made = super().forward(x)
            if form == "an object":
                result = Output(made)
                result.hidden = (made, result)  # type: ignore[assignment]
                return result
            return {"made": made, "held": held} if form == "a dict" else [made, held]

    model = Echo(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        x = torch.randn(4, 8)
        held: Any
        if form == "a list":
            held = [x]
            held.append(held)
        elif form == "a dict":
            held = {"x": x}
            held["held"] = held
        else:
            held = Output(x)
            held.hidden = (x, held)
        found = model(held)
        made = found["made"] if form == "a dict" else found[0] if form == "a list" else found.logits
        (made.mean() * 0.0).log().backward()  # itself
        optimizer.step()
    assert only(run).line == line_of("itself")


LIBRARY = """\
def logarithm(x):
    return x.log()


def outer(x):
    return logarithm(x)
"""


@pytest.mark.parametrize("form", ["direct call", "call by the library", "call by torch"])
def test_an_op_in_a_library_is_reported_where_the_program_calls_the_library(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "losses"
    folder.mkdir(parents=True)
    (folder / "logs.py").write_text(LIBRARY, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(LIBRARY, str(folder / "logs.py"), "exec"), names)  # noqa: S102 - a library of our own making
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with record(model) as run:
        made = model(torch.randn(4, 8)).square().mean() * 0.0
        if form == "direct call":
            loss = names["logarithm"](made)  # direct call
        elif form == "call by the library":
            loss = names["outer"](made)  # call by the library
        else:
            loss = tree_map(names["logarithm"], [made])[0]  # call by torch
        loss.backward()
        optimizer.step()
    finding = only(run)
    assert (finding.filename, finding.line) == (__file__, line_of(form))


class InRegion(nn.Module):
    """A module that enters a region of its own."""

    def __init__(self, modes: list[int]) -> None:
        super().__init__()
        self.layer, self.modes = nn.Linear(8, 4), modes

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.modes.append(torch._C._len_torch_function_stack())
            return self.layer(x)


def test_ops_in_the_region_of_a_module_or_of_a_backward_are_not_watched() -> None:
    modes: list[int] = []
    model = InRegion(modes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def enter_region(grad: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            modes.append(torch._C._len_torch_function_stack())

    with record(model) as run:
        for _ in range(2):
            output = model(torch.randn(4, 8)).float()
            # The loss is computed outside of modules.
            modes.append(torch._C._len_torch_function_stack())
            output.register_hook(enter_region)
            torch.autograd.backward(output.square().mean())
            optimizer.step()
            modes.append(torch._C._len_torch_function_stack())
    assert run.failure is None
    assert modes == [0, 1, 0, 0] * 2


def test_ops_are_no_longer_watched_once_code_was_compiled() -> None:
    modes: list[int] = []
    model, other = nn.Linear(8, 8), nn.Linear(8, 4)
    with record(model) as run:
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            loss = other(compiled(torch.randn(4, 8))).square().mean()
            # A mode on the stack would have code compiled again.
            modes.append(torch._C._len_torch_function_stack())
            torch.autograd.backward(loss)
    assert run.failure is None
    assert modes == [0, 0]
