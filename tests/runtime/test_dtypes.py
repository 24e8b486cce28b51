"""Dtypes of all tensors are collected at creation and asserted by name, and the collection has no side effects."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules import module as hooks  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from pytest_amp_check import record  # noqa: E402
from pytest_amp_check.runtime.measure.dtypes import Dtypes, assert_dtypes  # noqa: E402


class Net(nn.Module):
    """Two layers under autocast, and a head that must not be under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, inputs: Any) -> Any:
        hidden = self.encoder(inputs)
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


def train(
    dtypes: Dtypes,
    model: nn.Module,
    *,
    dtype: Any = torch.bfloat16,
    steps: int = 2,
    call: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
) -> None:
    """Train like a user and call the collector like the recorder."""
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    dtypes.start()
    try:
        for _ in range(steps):
            inputs, targets = torch.randn(4, 8), torch.randint(0, 4, (4,))
            with torch.autocast("cpu", dtype):
                loss = nn.functional.cross_entropy((call or model)(inputs), targets)
            dtypes.record_loss_dtype(loss.dtype)
            scaler.scale(loss).backward()
            dtypes.after_backward(scaler, scaler.get_scale(), [optimizer])
            dtypes.before_step(optimizer, scaler, scaler.get_scale())
            scaler.step(optimizer)
            dtypes.after_step(optimizer, scaler, skipped=False)
            scaler.update()
            optimizer.zero_grad()
    finally:
        dtypes.stop()


def recorded(model: nn.Module | None = None, **options: Any) -> Dtypes:
    model = model or Net()
    dtypes = Dtypes(model, ops=options.pop("ops", False))
    train(dtypes, model, **options)
    return dtypes


def failure(dtypes: Dtypes, expected: Mapping[str, Any]) -> str:
    with pytest.raises(AssertionError) as failed:
        assert_dtypes(dtypes, expected)
    return str(failed.value)


def test_as_dict_has_every_dtype_by_name() -> None:
    names = [f"{layer}.{kind}" for layer in ("encoder.0", "encoder.2", "head") for kind in ("weight", "bias")]
    data = recorded(dtype=torch.float16).as_dict()
    assert json.loads(json.dumps(data)) == data
    assert data == {
        "modules": {
            "": "float32",
            "encoder": "float16",
            "encoder.0": "float16",
            "encoder.1": "float16",
            "encoder.2": "float16",
            "head": "float32",
        },
        "parameters": dict.fromkeys(names, "float32"),
        "gradients": dict.fromkeys(names, "float32"),
        "loss": "float32",
        "optimizer state": {"Adam.step": "float32", "Adam.exp_avg": "float32", "Adam.exp_avg_sq": "float32"},
        "ops": None,
    }


def test_without_a_model_the_optimizers_parameters_are_seen() -> None:
    model = Net()
    dtypes = Dtypes(None)
    groups = [{"params": model.encoder.parameters()}, {"params": model.head.parameters()}]
    train(dtypes, model, optimizer=torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    names = [f"group 0.param {n}" for n in range(4)] + ["group 1.param 0", "group 1.param 1"]
    assert dtypes.as_dict() == {
        "modules": {},
        "parameters": dict.fromkeys(names, "float32"),
        "gradients": dict.fromkeys(names, "float32"),
        "loss": "float32",
        "optimizer state": {"SGD.momentum_buffer": "float32"},
        "ops": None,
    }
    assert_dtypes(dtypes, {"gradients:group 1.*": "float32", "optimizer state:*.momentum_buffer": "float32"})
    with pytest.raises(ValueError, match="no model was given"):
        assert_dtypes(dtypes, {"*": "float32"})


def test_ops_are_counted_forward_and_backward_by_their_first_output() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    ops = recorded(model, ops=True, steps=3).as_dict()["ops"]
    # Gradients of weight and input, or only of the weight in the first layer.
    assert ops["aten.addmm"] == {"bfloat16": 6}
    assert ops["aten.mm"] == {"bfloat16": 9}
    # The mean and the deviation are float32: they are not the main result of the op.
    assert ops["aten.native_layer_norm"] == {"bfloat16": 3}
    assert ops["aten._log_softmax"] == {"float32": 3}
    assert "aten.randint" not in ops


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class Output:
    loss: Any
    parts: Any = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: Output(None, {"a": [Pair(t, 3)]}),
        lambda t: (t.long(), {"mask": t > 0}, t),
        lambda t: {"deep": Output(loss=(t,))},
    ],
    ids=["dataclass", "tuple", "dict"],
)
def test_outputs_are_found_however_they_are_nested(wrap: Callable[[Any], Any]) -> None:
    class Wrapping(nn.Module):
        def forward(self, inputs: Any) -> Any:
            return wrap(inputs.half())

    model = Wrapping()
    dtypes = Dtypes(model)
    dtypes.start()
    model(torch.ones(3))
    dtypes.stop()
    assert dtypes.as_dict()["modules"] == {"": "float16"}


def test_an_output_that_holds_itself_comes_to_an_end() -> None:
    class Cyclic(nn.Module):
        def forward(self, inputs: Any) -> Any:
            out: list[Any] = [inputs]
            out.append(out)
            return out

    model = Cyclic()
    dtypes = Dtypes(model)
    dtypes.start()
    model(torch.ones(1))
    dtypes.stop()
    assert dtypes.as_dict()["modules"] == {"": "float32"}


def test_what_several_names_share_stands_under_each() -> None:
    model: Any = nn.Module()
    model.first = nn.Linear(4, 4)
    model.second = model.first
    model.third = nn.Linear(4, 4, bias=False)
    model.third.weight = model.first.weight
    dtypes = Dtypes(model)
    dtypes.start()
    model.first(torch.ones(1, 4))
    with torch.autocast("cpu", torch.bfloat16):
        model.first(torch.ones(1, 4))
    dtypes.stop()
    data = dtypes.as_dict()
    assert data["modules"] == {"first": "bfloat16, float32", "second": "bfloat16, float32"}
    assert list(data["parameters"]) == ["first.weight", "first.bias", "second.weight", "second.bias", "third.weight"]
    assert_dtypes(dtypes, {"second": {"bf16", "float32"}})
    assert "second (Linear) is bfloat16, float32, should be bfloat16" in failure(dtypes, {"second": "bfloat16"})


def test_other_models_and_what_is_not_floating_are_not_seen() -> None:
    model, other = nn.Sequential(nn.Identity(), nn.Linear(2, 2)), nn.Linear(2, 2)
    dtypes = Dtypes(model)
    dtypes.start()
    other(torch.ones(1, 2))
    model[0](torch.ones(3, dtype=torch.long))
    dtypes.stop()
    assert dtypes.as_dict()["modules"] == {}


def test_complex_outputs_are_seen() -> None:
    model = nn.Identity()
    dtypes = Dtypes(model)
    dtypes.start()
    model(torch.ones(2, dtype=torch.complex64))
    dtypes.stop()
    assert_dtypes(dtypes, {"": torch.complex64})


def test_a_model_that_is_cast_meanwhile_has_both_dtypes() -> None:
    model = nn.Sequential(nn.Linear(8, 4))
    dtypes = Dtypes(model)
    dtypes.start()
    model.to(torch.bfloat16)
    model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
    dtypes.after_backward(None, 1.0, [])
    dtypes.stop()
    assert dtypes.as_dict()["parameters"]["0.weight"] == "bfloat16, float32"
    assert dtypes.as_dict()["gradients"]["0.weight"] == "bfloat16"


# Robustness of hooks.


def test_a_compiled_model_is_seen_as_a_whole_under_its_plain_names() -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    dtypes = Dtypes(compiled)
    train(dtypes, compiled)
    data = dtypes.as_dict()
    assert data["modules"] == {"": "float32"}
    assert list(data["gradients"]) == list(dict(model.named_parameters()))
    assert_dtypes(dtypes, {"model": "float32", "parameters:encoder.*": "float32"})
    assert "only inside a compiled module" in failure(dtypes, {"encoder.0": "bfloat16"})


def test_a_compiled_function_around_the_model_still_compiles_whole() -> None:
    model = Net()
    dtypes = Dtypes(model)

    def call(inputs: Any) -> Any:
        return model(inputs) * 2

    train(dtypes, model, call=torch.compile(call, backend="eager", fullgraph=True))
    assert dtypes.as_dict()["modules"] == {}
    assert list(dtypes.as_dict()["gradients"]) == list(dict(model.named_parameters()))


def test_a_model_that_is_compiled_in_place_runs() -> None:
    model = Net()
    model.compile(backend="eager")
    assert_dtypes(recorded(model), {"gradients:encoder.*": "float32", "loss": "float32"})


def test_script_modules_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 4)))
    model = nn.Sequential(nn.Linear(8, 8), scripted)
    assert recorded(model).as_dict()["modules"]["0"] == "bfloat16"


def test_checkpointed_modules_run_twice_in_one_dtype() -> None:
    model = Net()
    dtypes = Dtypes(model)
    train(dtypes, model, call=lambda inputs: model.head(checkpoint(model.encoder, inputs, use_reentrant=False)))
    assert dtypes.as_dict()["modules"]["encoder.2"] == "bfloat16"


def test_the_model_can_be_copied_and_saved_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    plain = io.BytesIO()
    torch.save(model, plain)
    dtypes = Dtypes(model)
    dtypes.start()
    saved = io.BytesIO()
    torch.save(model, saved)
    copied = copy.deepcopy(model)
    copied(torch.ones(1, 2))
    dtypes.stop()
    assert len(saved.getvalue()) == len(plain.getvalue())
    assert dtypes.as_dict()["modules"] == {}


@pytest.mark.parametrize("ops", [False, True])
def test_everything_is_taken_down_also_after_an_exception(ops: bool) -> None:
    class Stop(Exception):
        pass

    def fail(inputs: Any) -> Any:
        raise Stop

    model = Net()
    before = dict(hooks._global_forward_hooks), list(warnings.filters), torch._C._len_torch_dispatch_stack()
    dtypes = Dtypes(model, ops=ops)
    with pytest.raises(Stop):
        train(dtypes, model, call=fail)
    assert (dict(hooks._global_forward_hooks), list(warnings.filters), torch._C._len_torch_dispatch_stack()) == before
    assert not any(module._forward_hooks for module in model.modules())
    dtypes.stop()
    assert torch._C._len_torch_dispatch_stack() == 0


def test_two_recordings_may_lie_in_each_other() -> None:
    model = Net()
    outer = Dtypes(model, ops=True)
    outer.start()
    inner = recorded(model, ops=True)
    model(torch.ones(1, 8))
    outer.stop()
    assert inner.as_dict()["modules"]["encoder.0"] == "bfloat16"
    assert outer.as_dict()["modules"]["encoder.0"] == "bfloat16, float32"
    assert inner.as_dict()["ops"]["aten.addmm"] == {"bfloat16": 4, "float32": 2}


@pytest.mark.parametrize("ops", [False, True])
def test_training_is_bit_identical(ops: bool) -> None:
    results = []
    for looking in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4))
        if looking:
            train(Dtypes(model, ops=ops), model, steps=20, dtype=torch.float16)
        else:
            idle = Dtypes(None)
            train(idle, model, steps=20, dtype=torch.float16)
        results.append([*(p.detach().clone() for p in model.parameters()), torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_the_fast_path_of_transformers_stays() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    inputs = torch.randn(2, 3, 8)
    with torch.inference_mode():
        plain = layer(inputs)
        dtypes = Dtypes(layer)
        dtypes.start()
        looked = layer(inputs)
        dtypes.stop()
    assert torch.equal(plain, looked)
    # Without the fast path, these modules would have run.
    assert "linear1" not in dtypes.as_dict()["modules"]


# Assertions.


def test_what_is_right_passes_in_every_spelling() -> None:
    dtypes = recorded(dtype=torch.float16, ops=True)
    for half in ("float16", "fp16", "half", "torch.float16", "Half", torch.float16, {"bf16", "half"}, (torch.half,)):
        assert_dtypes(dtypes, {"encoder.*": half, "encoder": half, "ops:aten.addmm": {"float32", torch.float16}})
    everything = {
        "model": "float32",
        "": "fp32",
        "head": "float",
        "loss": torch.float32,
        "parameters": "float32",
        "parameters:encoder.*": "float32",
        "gradients": "float32",
        "gradients:*.bias": "float32",
        "optimizer state": "float32",
        "optimizer state:Adam.exp*": "float32",
        "ops:aten._log_softmax": "float32",
    }
    assert_dtypes(dtypes, everything)


def test_a_module_that_is_named_is_no_part_of_a_pattern() -> None:
    dtypes = recorded()
    assert_dtypes(dtypes, {"*": "bfloat16", "head": "float32", "model": "float32"})
    message = failure(dtypes, {"*": "bfloat16"})
    assert "model (Net) is float32, should be bfloat16" in message
    assert "head (Linear) is float32, should be bfloat16" in message
    assert "encoder" not in message


def test_a_module_may_be_called_model() -> None:
    model: Any = nn.Sequential()
    model.add_module("model", nn.Linear(8, 4))
    model.add_module("wide", nn.Identity())
    dtypes = Dtypes(model)
    dtypes.start()
    model.model(torch.ones(1, 8))
    dtypes.stop()
    assert_dtypes(dtypes, {"model": "float32"})
    assert "gave no floating-point output" in failure(dtypes, {"": "float32"})


def test_the_message_lists_ten_and_counts_the_rest() -> None:
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(13)])
    lines = failure(recorded(model), {"?": "float32", "1?": "float32"}).splitlines()
    assert lines[0] == "13 dtypes are not as expected."
    assert lines[1] == "  0 (Linear) is bfloat16, should be float32"
    assert sum("should be" in line for line in lines) == 10
    assert lines[-1] == "  and 3 more"
    # One cause, one advice.
    assert sum(line.startswith("    -> ") for line in lines) == 1


class Causes(nn.Module):
    """One module for each reason why a dtype differs."""

    def __init__(self) -> None:
        super().__init__()
        self.lowered, self.outside, self.kept = nn.Linear(4, 4), nn.Linear(4, 4), nn.Softmax(dim=-1)
        self.cast = nn.Linear(4, 4).half()
        self.fed = nn.ReLU()
        self.wide = nn.Linear(4, 4).double()

    def forward(self, inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            self.lowered(inputs)
            self.kept(inputs)
        self.outside(inputs)
        self.cast(inputs.half())
        self.fed(inputs.half())
        return self.wide(inputs.double())


@pytest.mark.parametrize(
    ("name", "wanted", "is_", "advice"),
    [
        ("lowered", "float32", "bfloat16", r"Autocast lowers it to bfloat16: run it under autocast\(enabled=False\)"),
        ("lowered", "float16", "bfloat16", r"autocast\(\.\.\., dtype=torch\.float16\)"),
        ("outside", "bfloat16", "float32", r"Autocast was off when it returned: the region does not cover it"),
        ("kept", "bfloat16", "float32", r"Autocast was on: this is the output of an op that autocast runs in float32"),
        (
            "kept",
            "float16",
            "float32",
            r"Autocast lowers to bfloat16 there: call autocast\(\.\.\., dtype=torch\.float16\)",
        ),
        ("cast", "float32", "float16", r"Its parameters are float16: model\.half\(\)"),
        ("fed", "float32", "float16", r"Autocast was off there and its inputs are float16"),
        ("wide", "float32", "float64", r"float64, which autocast leaves alone"),
        ("outside", "float64", "float32", r"Its inputs or parameters have that dtype"),
    ],
)
def test_the_message_says_why_and_what_to_do(name: str, wanted: str, is_: str, advice: str) -> None:
    model = Causes()
    dtypes = Dtypes(model)
    dtypes.start()
    model(torch.ones(2, 4))
    dtypes.stop()
    kind = type(getattr(model, name)).__name__
    with pytest.raises(AssertionError, match=advice) as failed:
        assert_dtypes(dtypes, {name: wanted})
    assert f"  {name} ({kind}) is {is_}, should be {wanted}\n" in str(failed.value)


def test_wrong_parameters_gradients_states_losses_and_ops_are_listed_by_kind() -> None:
    dtypes = recorded(ops=True)
    message = failure(
        dtypes,
        {
            "loss": "float16",
            "parameters:head.bias": "float16",
            "gradients:head.bias": "float16",
            "optimizer state:*.step": "float64",
            "ops:aten._log_softmax": "float16",
        },
    )
    for line in (
        "5 dtypes are not as expected.",
        "loss is float32, should be float16",
        "parameter head.bias is float32, should be float16",
        "gradient of head.bias is float32, should be float16",
        "state Adam.step is float32, should be float64",
        "op aten._log_softmax is float32, should be float16",
    ):
        assert line in message
    halved = Dtypes(nn.Linear(2, 2).half())
    halved.start()
    halved.record_loss_dtype(torch.float16)
    halved.stop()
    assert "leave parameters in float32" in failure(halved, {"parameters": "float32"})
    assert "Compute the loss inside the autocast region" in failure(halved, {"loss": "float32"})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("encodr.0", "Did you mean 'encoder.0'"),
        ("zzz.*", "The names are 'encoder', 'encoder.0', 'encoder.1', 'encoder.2', 'head'."),
        ("head.weight", 'It is a parameter: write "parameters:head.weight".'),
        ("parameters:head.wieght", "Did you mean 'head.weight'"),
        ("gradients:zzzz", "The names are 'encoder.0.weight', 'encoder.0.bias'"),
        ("ops:aten.admm", "Did you mean 'aten.addmm'"),
        ("optimizer state:*.exp_agv", "Did you mean 'Adam.exp_avg'"),
    ],
)
def test_a_key_that_matches_nothing_is_an_error_with_the_nearest_names(key: str, hint: str) -> None:
    message = failure(recorded(ops=True), {key: "float32"})
    assert "matches no" in message
    assert hint in message


def test_what_was_not_seen_is_said() -> None:
    model = Net()
    dtypes = Dtypes(model)
    dtypes.start()
    dtypes.stop()
    assert "run the model inside record()" in failure(dtypes, {"encoder.*": "float16"})
    assert "Call backward() on the loss" in failure(dtypes, {"loss": "float32"})
    assert "run backward while recording" in failure(dtypes, {"gradients": "float32"})
    assert "every step was skipped" in failure(dtypes, {"optimizer state": "float32"})
    with pytest.raises(ValueError, match=r"record\(model, dtypes=True, ops=True\)"):
        assert_dtypes(dtypes, {"ops:aten.mm": "float16"})
    with pytest.raises(ValueError, match=r"record\(model, dtypes=True\)"):
        assert_dtypes(None, {"loss": "float32"})


@pytest.mark.parametrize(
    ("expected", "hint"),
    [
        ({}, "Nothing is expected"),
        ({"loss": ()}, "No dtype is allowed for 'loss'"),
        ({"loss": "flaot16"}, "did you mean 'float16'"),
        ({"loss": "save"}, "is no dtype"),
        ({"loss": {3}}, "3, expected for 'loss', is no dtype"),
    ],
)
def test_an_expectation_that_says_nothing_is_an_error(expected: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        assert_dtypes(recorded(), expected)


def test_skipped_steps_leave_no_state_behind() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    dtypes = Dtypes(model)
    dtypes.start()
    dtypes.before_step(optimizer, None, 1.0)
    dtypes.after_step(optimizer, None, skipped=True)
    dtypes.stop()
    assert dtypes.as_dict()["optimizer state"] == {}


@pytest.mark.parametrize("enabled", [False, True], ids=["without a scaler", "with a scaler"])
def test_a_run_knows_the_dtype_of_a_loss_before_scaling(enabled: bool) -> None:
    model = nn.Linear(8, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    with record(dtypes=True) as run:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(4, 8)).sum()
        scaler.scale(loss).backward()
    assert run.failure is None
    run.assert_dtypes({"loss": "bfloat16"})
