"""``emulate_cuda()``: CUDA's autocast on the CPU, compared with torch's tables, CUDA's kernels and manual casts."""

from __future__ import annotations

import collections
import copy
import importlib
import inspect
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that all of torch's users know
from autocasts import COMPOSED, MORE, cuda_entries, lists
from torch import autocast, nn, zeros
from torch.cuda.amp import GradScaler as CudaGradScaler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import record
from pytest_amp_check.runtime.emulate import cast_policy, redirects
from pytest_amp_check.runtime.emulate.cuda import emulate_cuda, is_emulating

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture
def cuda() -> Iterator[None]:
    """Run the test in an emulated region."""
    with emulate_cuda():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts the executed casts to another dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


# torch's own tables


@pytest.fixture(autouse=True)
def _backend_flags_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow setting flags such as ``cudnn.benchmark``, which the import of torch's tables forbids in the process."""
    lists()
    names = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(names, "__allow_nonbracketed_mutation_flag", True)


@pytest.mark.instruction_set
@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross without")
@pytest.mark.skipif(not hasattr(lists(), "TestAutocast"), reason="torch 2.4 does not bring the test along")
@pytest.mark.parametrize("half", HALVES)
def test_the_table_of_cuda(half: torch.dtype) -> None:
    # torch's own test of one entry: the dtype, and each value bit by bit against the op run manually in that dtype.
    oracle = lists().TestAutocast()
    verdicts = collections.defaultdict(list)
    with emulate_cuda():
        for entry in cuda_entries(half):
            try:
                oracle._run_autocast_outofplace(
                    entry.op,
                    entry.args,
                    entry.runs_in,
                    device="cuda",
                    out_type=entry.gives,
                    module=entry.module,
                    add_kwargs=entry.kwargs,
                    amp_dtype=half,
                )
            except NotImplementedError:
                verdicts["not evaluable"].append(entry.op)
            except (AssertionError, RuntimeError) as wrong:
                verdicts["wrong"].append(f"{entry.op}: {wrong}")
            else:
                verdicts["right"].append(entry.op)
    assert verdicts["wrong"] == []
    # These ops exist only in cuDNN.
    assert verdicts["not evaluable"] == ["cudnn_convolution", "cudnn_convolution_transpose"]
    assert len(verdicts["right"]) == 117


def test_the_banned_op_speaks_as_on_cuda(cuda: None) -> None:
    ((op, args, module),) = lists().AutocastTestLists(torch.device("cpu")).banned
    with autocast("cuda"), pytest.raises(RuntimeError, match=r"BCELoss are unsafe to autocast\.\n"):
        getattr(module, op)(*args)
    with autocast("cuda"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        nn.BCELoss()(torch.rand(2, requires_grad=True), torch.rand(2))
    with autocast("cuda"), autocast("cuda", enabled=False):
        assert nn.BCELoss()(torch.rand(2), torch.rand(2)).dtype is torch.float32


def dtypes_of(make: Callable[..., torch.Tensor]) -> dict[str, torch.dtype]:
    return {name: compute(make).dtype for name, compute in MORE.items()}


@pytest.mark.instruction_set
@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="a build for CUDA asks the driver which kernel of attention to take",
)
@pytest.mark.parametrize("given", ["the low dtype", "float32"])
@pytest.mark.parametrize("half", HALVES)
def test_ops_beyond_the_table_give_what_the_kernels_of_cuda_give(half: torch.dtype, given: str) -> None:
    # The real kernels of CUDA's autocast run on fake tensors, on any machine, as long as no gradient is required.
    from torch._subclasses.fake_tensor import FakeTensorMode

    dtype = torch.float32 if given == "float32" else half
    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), torch.no_grad():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", half)
        try:
            real = dtypes_of(lambda *shape: torch.empty(shape, device="cuda", dtype=dtype)) | COMPOSED
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
            torch.clear_autocast_cache()
    with emulate_cuda(), torch.no_grad(), autocast("cuda", half):
        emulated = dtypes_of(lambda *shape: torch.randn(shape, device="cuda").to(dtype))
    assert emulated == real
    assert {half, torch.float32, torch.float64} <= set(real.values())


def test_the_policy_knows_every_op_that_cuda_autocasts() -> None:
    registered = cast_policy.registered_ops("AutocastCUDA")
    assert len(registered) >= 119
    assert [name for name in sorted(registered) if cast_policy.cuda_policy(name) is None] == []


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("aten::linear", "low"),
        ("aten::conv_transpose2d.input", "low"),
        ("aten::exp", "fp32"),
        ("aten::softmax.int", "fp32 unless dtype"),
        ("aten::norm.ScalarOpt_dim", "fp32 appended"),
        ("aten::scatter_add", "promote"),
        ("aten::binary_cross_entropy", "banned"),
        ("aten::lstm.input", "rnn"),
        ("aten::add.Tensor", None),
        ("aten::avg_pool3d", None),
    ],
)
def test_the_policy_of_an_op(name: str, policy: str | None) -> None:
    assert cast_policy.cuda_policy(name) == policy


#: Errors under plain CPU autocast: no kernel for the dtype, or no promotion.
NOT_ON_CPU = {"interpolate bicubic aa", "polar", "index put mixed", "addcmul mixed"}


def cpu_dtypes() -> dict[str, tuple[torch.dtype, ...]]:
    """Return the result dtypes of plain CPU autocast for torch's CPU table, and for ops only in CUDA's list."""
    table = lists().AutocastCPUTestLists(torch.device("cpu"))
    found: dict[str, tuple[torch.dtype, ...]] = {}

    def put(name: str, output: Any) -> None:
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        found[f"{len(found)} {name}"] = tuple(each.dtype for each in outputs if isinstance(each, torch.Tensor))

    for half in HALVES:
        with torch.autocast("cpu", half):
            for names, module in (
                (("torch_16", "torch_fp32", "torch_expect_builtin_promote", "torch_need_autocast_promote"), torch),
                (("nn_16", "nn_fp32"), torch._C._nn),
            ):
                for name in names:
                    for row in getattr(table, name):
                        kwargs = row[2] if len(row) == 3 and isinstance(row[2], dict) else {}
                        # Both dtypes in one promotion are an error on any device.
                        args = row[1] if half is torch.bfloat16 or "promote" not in name else row[2]
                        put(row[0], getattr(module, row[0])(*args, **kwargs))
            for name in sorted(MORE.keys() - NOT_ON_CPU):
                put(name, MORE[name](lambda *shape, half=half: torch.randn(shape).to(half)))
            put("fft", torch.fft.fft(torch.randn(4).to(half)))
            put("solve", torch.linalg.solve(torch.eye(3).to(half), torch.ones(3).to(half)))
            put("quantile", torch.quantile(torch.randn(4).to(half), 0.5))
    return found


@pytest.mark.instruction_set
def test_plain_cpu_autocast_is_the_same_before_inside_and_after() -> None:
    before = cpu_dtypes()
    with emulate_cuda():
        inside = cpu_dtypes()
    after = cpu_dtypes()
    assert inside == before
    assert after == before
    # One op of the CPU's own table came after torch 2.4.
    table = 46 if torch.__version__ >= "2.5" else 45
    assert len(before) == 2 * (table + len(MORE.keys() - NOT_ON_CPU) + 3)


# Training


RECIPE = """
import torch
from torch import nn
from torch.amp import GradScaler, autocast

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).to(device)
head = nn.Linear(3, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
second = torch.optim.AdamW(head.parameters(), **OPTIONS)
scaler = GradScaler("cuda")
data = torch.utils.data.TensorDataset(torch.randn(32, 1, 8, 8), torch.randint(0, 2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
scales, losses, activations = [], [], []
for step, (images, labels) in enumerate(loader):
    images, labels = images.to(device, non_blocking=True), labels.cuda(non_blocking=True)
    assert images.is_cuda and images.device.type == "cuda" and next(model.parameters()).device == torch.device("cuda:0")
    with autocast(device_type=images.device.type):
        features = model(images)
        loss = nn.functional.cross_entropy(head(features), labels) / 2
    if step == OVERFLOW:
        loss = loss * float("inf")
    activations.append(features.dtype)
    scaler.scale(loss).backward()
    if step % 2 == 1:
        scaler.unscale_(optimizer)
        scaler.unscale_(second)
        torch.nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()
        optimizer.zero_grad()
        second.zero_grad()
    losses.append(loss.item())
    scales.append(scaler.get_scale())
"""


@pytest.mark.instruction_set
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=["plain", "fused", "foreach"])
def test_a_recipe_for_cuda_runs_unchanged(options: dict[str, bool]) -> None:
    names: dict[str, Any] = {"OPTIONS": options, "OVERFLOW": 3}
    with emulate_cuda():
        exec(compile(RECIPE, "recipe.py", "exec"), names)  # noqa: S102
    assert set(names["activations"]) == {torch.float16}
    assert names["loss"].dtype is torch.float32
    assert {parameter.grad for parameter in names["model"].parameters()} == {None}
    # The second window overflows: its step is skipped and the scale is halved.
    assert names["scales"] == [2.0**16] * 3 + [2.0**15] * 5
    # Adam counts its applied steps: three of four.
    assert [state["step"].item() for state in names["second"].state.values()] == [3, 3]


@pytest.mark.instruction_set
def test_training_gets_somewhere_and_its_gradients_are_scaled(cuda: None) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    inputs = torch.randn(64, 4, device="cuda")
    targets = inputs.sum(1, keepdim=True)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = F.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    gradients = [parameter.grad for parameter in model.parameters()]
    assert {gradient.dtype for gradient in gradients if gradient is not None} == {torch.float32}
    assert scaler.state_dict()["_growth_tracker"] == 50


@pytest.mark.instruction_set
@pytest.mark.parametrize("half", HALVES)
def test_gradients_are_those_of_casts_by_hand(cuda: None, half: torch.dtype) -> None:
    first, norm, last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    inputs, labels = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    with autocast("cuda", half):
        loss = F.cross_entropy(last(F.gelu(norm(first(inputs)))), labels)
    parameters = [*first.parameters(), *norm.parameters(), *last.parameters()]
    found = torch.autograd.grad(loss, parameters)
    hidden = F.linear(inputs.to(half), first.weight.to(half), first.bias.to(half))
    hidden = F.gelu(F.layer_norm(hidden.float(), (8,), norm.weight, norm.bias))
    output = F.linear(hidden.to(half), last.weight.to(half), last.bias.to(half))
    # Cross entropy requests log_softmax in the dtype of its input, and CUDA's autocast respects the request.
    by_hand = F.nll_loss(F.log_softmax(output, 1).float(), labels)
    expected = torch.autograd.grad(by_hand, parameters)
    assert torch.equal(loss, by_hand)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def frozen(steps: int, *, cache_enabled: bool = True, clear: bool = False) -> list[float]:
    """Return the losses of a loop that is inside one region as a whole."""
    torch.manual_seed(1)
    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16, 4, device="cuda")
    losses = []
    with torch.autocast("cuda", cache_enabled=cache_enabled):
        for _ in range(steps):
            loss = F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if clear:
                torch.clear_autocast_cache()
            losses.append(loss.item())
    return losses


def test_weights_that_are_cast_once_freeze_training(cuda: None) -> None:
    losses = frozen(10)
    assert losses == [losses[0]] * 10
    for free in (frozen(10, cache_enabled=False), frozen(10, clear=True)):
        assert free[0] == losses[0]
        assert free[-1] < 0.5 * free[0]


def casts(device: str, model: nn.Module, inputs: torch.Tensor, *, cache_enabled: bool = True, times: int = 3) -> int:
    counted = Casts()
    with counted:
        with torch.autocast(device, torch.bfloat16, cache_enabled=cache_enabled):
            outputs = [model(inputs) for _ in range(times)]
        torch.stack(outputs).float().sum().backward()  # type: ignore[no-untyped-call]
    return counted.count


def test_weights_are_cast_once_in_a_region() -> None:
    model, inputs = nn.Linear(4, 4, bias=False), torch.randn(2, 4).bfloat16()
    on_cpu = casts("cpu", model, inputs), casts("cpu", model, inputs, cache_enabled=False)
    # With the cache, the forward has two casts less, and the backward two less.
    assert on_cpu[1] - on_cpu[0] == 4
    with emulate_cuda():
        assert (casts("cuda", model, inputs), casts("cuda", model, inputs, cache_enabled=False)) == on_cpu
        frozen_weight = copy.deepcopy(model).requires_grad_(False)
        with Casts() as counted, torch.autocast("cuda", torch.bfloat16):
            frozen_weight(inputs)
            frozen_weight(inputs)
        # Only trained weights are cached.
        assert counted.count == 2
        with Casts() as counted:
            for _ in range(2):
                with torch.autocast("cuda", torch.bfloat16):
                    model(inputs)
        assert counted.count == 2
        # An outer region of any kind keeps the casts of the inner regions.
        with Casts() as counted, torch.autocast("cpu", enabled=False):
            for _ in range(2):
                with torch.autocast("cuda", torch.bfloat16):
                    model(inputs)
        assert counted.count == 1


def no_grad_first(device: str) -> tuple[int, bool]:
    model, inputs = nn.Linear(4, 4, bias=False), torch.randn(2, 4).bfloat16()
    with Casts() as counted, torch.autocast(device, torch.bfloat16):
        with torch.no_grad():
            model(inputs)
        output = model(inputs)
    return counted.count, output.requires_grad


def test_a_cast_under_no_grad_is_kept_as_torch_keeps_it() -> None:
    expected = no_grad_first("cpu")
    with emulate_cuda():
        assert no_grad_first("cuda") == expected


@pytest.mark.skipif(not cast_policy.CACHE_KEEPS_GRADIENTS, reason="torch before 2.11 keeps casts without gradients")
def test_inference_mode_does_not_touch_the_casts_of_training(cuda: None) -> None:
    model, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast("cuda"):
        with torch.inference_mode():
            model(inputs)
        model(inputs).float().sum().backward()
    assert model.weight.grad is not None


# Regions of autocast


def test_islands_nested_dtypes_and_the_decorator(cuda: None) -> None:
    one = torch.randn(2, 2, device="cuda")
    with autocast("cuda"):
        assert (one @ one).dtype is torch.float16
        with autocast("cuda", enabled=False):
            assert (one @ one).dtype is torch.float32
            with pytest.raises(RuntimeError, match="same dtype"):
                one @ one.half()
        assert (one @ one).dtype is torch.float16
        with autocast("cuda", torch.bfloat16):
            assert (one @ one).dtype is torch.bfloat16
            with autocast("cuda"):
                assert (one @ one).dtype is torch.bfloat16
        with autocast("cuda", torch.float32):
            assert (one.half() @ one.half()).dtype is torch.float32
    assert autocast("cuda", torch.bfloat16)(torch.mm)(one, one).dtype is torch.bfloat16
    assert (one @ one).dtype is torch.float32


def test_autocast_for_the_cpu_keeps_to_itself(cuda: None) -> None:
    one = torch.randn(2, 2)
    with autocast("cpu", torch.bfloat16):
        assert (one @ one).dtype is torch.bfloat16
        assert (one @ one).softmax(0).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
        with autocast("cuda"):
            assert (one @ one).dtype is torch.float16
            assert torch.is_autocast_enabled("cpu") and torch.is_autocast_enabled()
            with autocast("cpu", enabled=False):
                assert not torch.is_autocast_enabled(device_type="cpu")
            with autocast("cuda", enabled=False):
                assert (one @ one).dtype is torch.bfloat16
        assert (one @ one).dtype is torch.bfloat16
    with autocast("cuda"):
        assert not torch.is_autocast_enabled("cpu")
        with autocast("cpu", torch.bfloat16):
            assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
    with autocast("cpu", torch.bfloat16), emulate_cuda():
        assert (one @ one).dtype is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


def test_the_older_switches(cuda: None) -> None:
    one = torch.randn(2, 2)
    torch.set_autocast_enabled(True)
    try:
        assert (one @ one).dtype is torch.float16
        torch.set_autocast_enabled(device_type="cuda", enabled=False)
        assert (one @ one).dtype is torch.float32
        torch.set_autocast_enabled("cuda:0", enabled=True)
        assert (one @ one).dtype is torch.float16
    finally:
        torch.set_autocast_enabled(enabled=False)
    with autocast("cuda"):
        with pytest.warns(DeprecationWarning, match="set_autocast_gpu_dtype"):
            torch.set_autocast_gpu_dtype(torch.bfloat16)
        assert (one @ one).dtype is torch.bfloat16
        assert torch.get_autocast_dtype("cuda") is torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cuda") is torch.float16


def test_mixed_low_dtypes_are_refused(cuda: None) -> None:
    with autocast("cuda"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast::prior"):
        torch.dot(torch.ones(2).half(), torch.ones(2).bfloat16())
    with autocast("cuda"):
        assert torch.dot(torch.ones(2).half(), torch.ones(2)).dtype is torch.float32
        assert torch.dot(torch.ones(2).half(), torch.ones(2).half()).dtype is torch.float16


def test_custom_functions(cuda: None) -> None:
    seen: list[Any] = []

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            seen.append((value.dtype, torch.is_autocast_enabled("cuda")))
            ctx.save_for_backward(value)
            return value * value

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (value,) = ctx.saved_tensors
            seen.append((gradient.dtype, torch.is_autocast_enabled("cuda")))
            return 2 * value * gradient

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def forward(ctx: Any, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(one, two)
            return one @ two

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            one, two = ctx.saved_tensors
            return gradient @ two.t(), one.t() @ gradient

    value = torch.full((2, 2), 3.0, device="cuda", requires_grad=True)
    apply: Any = Square.apply
    with autocast("cuda"):
        output = apply(value.half())
    output.sum().backward()
    assert seen == [(torch.float32, False), (torch.float32, False)]
    assert value.grad is not None and value.grad.unique().tolist() == [6.0]  # type: ignore[no-untyped-call]
    product: Any = Product.apply
    with autocast("cuda"):
        output = product(value, value)
    assert output.dtype is torch.float16
    output.float().sum().backward()
    assert value.grad.unique().tolist() == [18.0]  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_computes_again_in_the_same_dtypes(cuda: None, reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4)).cuda()
    inputs = torch.randn(3, 4, device="cuda", requires_grad=True)
    seen = []
    block[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    results = []
    for run in (block, lambda given: checkpoint(block, given, use_reentrant=reentrant)):
        block.zero_grad()
        torch.manual_seed(5)
        with autocast("cuda"):
            output = run(inputs)  # type: ignore[no-untyped-call]
        output.float().sum().backward()
        results.append([parameter.grad for parameter in block.parameters()])
    assert seen == [torch.float16] * 3
    for one, other in zip(*results, strict=True):
        assert one is not None and other is not None and one is not other
        assert torch.equal(one, other)


@pytest.mark.instruction_set
@pytest.mark.parametrize("region", HALVES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_give_float16_as_cudnn_does(cuda: None, kind: Any, region: torch.dtype) -> None:
    layer = kind(4, 5, num_layers=2, batch_first=True).cuda()
    inputs = torch.randn(2, 3, 4, device="cuda")
    with autocast("cuda", region):
        output, state = layer(inputs)
        packed, _ = layer(nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([3, 2]), batch_first=True))
    expected, _ = copy.deepcopy(layer).half()(inputs.half())
    assert output.dtype is torch.float16 and (state if kind is not nn.LSTM else state[0]).dtype is torch.float16
    assert packed.data.dtype is torch.float16
    assert torch.equal(output, expected)
    output.float().sum().backward()
    assert layer.weight_ih_l0.grad.dtype is torch.float32


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.exhaustive)])
def test_compiled_models_keep_the_dtypes(cuda: None, backend: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)).cuda()
    inputs = torch.randn(2, 4, device="cuda")
    compiled: Any = torch.compile(model, backend=backend)
    with autocast("cuda"):
        expected, output = model(inputs), compiled(inputs)
    assert output.dtype is torch.float32
    assert torch.equal(output, expected)
    output[:, 0].sum().backward()
    assert model[0].weight.grad is not None
    torch._dynamo.reset()


# The machine


def test_names_that_were_imported_before_the_region(cuda: None) -> None:
    assert zeros(2, device="cuda").is_cuda
    with autocast("cuda"):
        assert (zeros(2, 2) @ zeros(2, 2)).dtype is torch.float16
    with pytest.warns(FutureWarning):
        scaler = CudaGradScaler()
    assert scaler.is_enabled() and scaler.scale(torch.ones(1)).item() == 2.0**16
    with pytest.warns(FutureWarning), torch.cuda.amp.autocast():
        assert (zeros(2, 2) @ zeros(2, 2)).dtype is torch.float16


def test_where_tensors_are(cuda: None) -> None:
    device = torch.device("cuda", 0)
    for tensor in (
        torch.ones(2).cuda(),
        torch.ones(2).to("cuda"),
        torch.ones(2).to(0),
        torch.ones(2).to(device=torch.device("cuda"), dtype=torch.float16),
        torch.ones(2, device="cuda:0"),
        torch.tensor([1.0], device="cuda"),
        torch.ones(2).new_zeros(2, device="cuda"),
        torch.empty_like(torch.ones(2), device="cuda"),
        torch.Tensor.to(torch.ones(2), "cuda", torch.float16, non_blocking=True),
        nn.Linear(2, 2, device="cuda").weight,
        nn.Linear(2, 2).to("cuda").weight,
    ):
        assert tensor.device == device and tensor.is_cuda and not tensor.is_cpu and tensor.get_device() == 0
    assert torch.empty(2, device="meta").device.type == "meta"
    assert not torch.empty(2, device="meta").is_cuda
    assert "device='cuda:0'" in repr(torch.ones(2).cuda())
    for request in (
        lambda: torch.ones(2).to("cuda:1"),
        lambda: torch.ones(2).cuda(1),
        lambda: zeros(2, device="cuda:1"),
    ):
        with pytest.raises(RuntimeError, match="one device, cuda:0, and cuda:1 was asked for"):
            request()  # type: ignore[no-untyped-call]


def test_a_move_copies_as_it_does_on_cuda(cuda: None) -> None:
    host = torch.zeros(2)
    there = host.to("cuda")
    there.add_(1)
    assert host.tolist() == [0, 0] and there.to("cuda") is there and there.cuda() is there
    back = there.cpu()
    back.add_(1)
    assert there.tolist() == [1, 1] and back.to("cpu") is back
    model = nn.Linear(2, 2).cuda()
    before = model.weight.detach().cpu()
    with torch.no_grad():
        model.weight.add_(1)
    assert not torch.equal(before, model.weight)
    # Moving a leaf creates a non-leaf, whose gradients are not kept.
    moved = torch.ones(2, requires_grad=True).cuda()
    assert not moved.is_leaf and (moved * 2).to("cuda").grad_fn is not None
    activation = moved * 2
    assert activation.to("cuda") is activation
    array = np.zeros(2, dtype=np.float32)
    torch.as_tensor(array, device="cuda").add_(1)
    assert array.tolist() == [0, 0]
    parameters = list(model.parameters())
    assert list(model.to("cuda").parameters()) == parameters


def test_what_torch_says_about_the_machine(cuda: None) -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (8, 0)
    assert "emulated" in torch.cuda.get_device_name(0) == torch.cuda.get_device_properties("cuda").name
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    start.record()
    with torch.cuda.stream(stream), torch.cuda.device(0):
        moved = torch.ones(2).cuda()
        moved.record_stream(stream)
    torch.cuda.current_stream().wait_stream(stream)
    end.record()
    assert start.elapsed_time(end) > 0
    torch.cuda.nvtx.range_push("step")  # type: ignore[no-untyped-call]
    torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
    if hasattr(torch, "accelerator"):
        assert torch.accelerator.is_available() and str(torch.accelerator.current_accelerator()) == "cuda"


def test_seeds_and_generators(cuda: None) -> None:
    torch.cuda.manual_seed_all(3)
    one = torch.randn(2, device="cuda")
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.randn(2, device="cuda"), one)
    state = torch.cuda.get_rng_state()
    two = torch.randn(2, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(2, device="cuda"), two)
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(generator, torch.Generator)
    assert torch.equal(torch.randn(2, device="cuda", generator=generator), one)


def test_the_default_device() -> None:
    with emulate_cuda():
        torch.set_default_device("cuda")
        with autocast("cuda"):
            assert nn.Linear(2, 2)(torch.zeros(1, 2)).dtype is torch.float16
        assert torch.get_default_device() == torch.device("cuda:0")
    assert torch.get_default_device() == torch.zeros(1).device == torch.device("cpu")
    with emulate_cuda(), torch.device("cuda"):
        assert torch.zeros(1).is_cuda


def test_loading_a_checkpoint(cuda: None) -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2, device="cuda")}, file)
    for location in (
        "cuda",
        "cuda:0",
        torch.device("cuda"),
        {"cpu": "cuda:0"},
        lambda storage, place: storage.cuda(),
        None,
    ):
        file.seek(0)
        assert torch.load(file, map_location=location, weights_only=True)["weight"].tolist() == [1, 1]
    # Saved on a real device, according to the tag.
    storage: Any = torch.UntypedStorage(4)  # type: ignore[no-untyped-call]
    assert torch.serialization.default_restore_location(storage, "cuda:0").device.type == "cpu"  # type: ignore[no-untyped-call]


def test_loaders_and_data_parallel(cuda: None) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0).reshape(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=1)
    assert [batch.cuda().sum().item() for (batch,) in loader] == [6, 22]
    model = nn.DataParallel(nn.Linear(1, 2)).cuda()
    with autocast("cuda"):
        assert model(torch.ones(3, 1)).dtype is torch.float16


def test_fake_tensors_get_the_dtypes_too(cuda: None) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(4, 4, device="cuda"), nn.LayerNorm(4, device="cuda"))
        with autocast("cuda"):
            hidden = model[0](torch.randn(2, 4, device="cuda"))
            output = model[1](hidden)
        output.sum().backward()
        assert (hidden.dtype, output.dtype) == (torch.float16, torch.float32)
        assert [each.grad.dtype for each in model.parameters() if each.grad is not None] == [torch.float32] * 4


# Cleanup


def snapshot() -> dict[tuple[str, str], object]:
    """Return every attribute of the parts of torch in which the region replaces attributes."""
    torch_: Any = torch
    owners = {
        "torch": torch_,
        "cuda": torch.cuda,
        "nvtx": torch.cuda.nvtx,
        "random": torch.cuda.random,
        "amp": torch.amp,
        "cuda.amp": torch.cuda.amp,
        **({"accelerator": torch_.accelerator} if hasattr(torch_, "accelerator") else {}),
        "autograd": torch.autograd,
        "fft": torch.fft,
        "nested": torch.nested,
        "serialization": torch.serialization,
        "cudnn": torch.backends.cudnn,
        "rnn": torch.nn.utils.rnn,
        "Tensor": torch.Tensor,
        "DataParallel": nn.DataParallel,
        "workers": importlib.import_module("torch.utils.data.dataloader")._MultiProcessingDataLoaderIter,
        "dynamo": importlib.import_module("torch._dynamo.trace_rules"),
        "GradScaler": torch.amp.GradScaler,
        "autocast": torch.autocast,
        "DeviceContext": importlib.import_module("torch.utils._device").DeviceContext,
        "distributed": torch.distributed,
        "process groups": torch_.distributed.distributed_c10d,
        "inputs of replicas": torch_.distributed.utils,
        "storage": torch.storage._StorageBase,
        "typed storage": torch.TypedStorage,
    }
    return {(owner, name): value for owner, part in owners.items() for name, value in vars(part).items()}


def test_everything_is_as_it_was_also_after_an_exception() -> None:
    with emulate_cuda():
        pass  # torch imports and fills these attributes on first use
    before = snapshot()
    modes = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    table = dict(torch.jit._builtins._get_builtin_table())  # type: ignore[no-untyped-call]
    changed: set[tuple[str, str]] = set()

    def fail() -> None:
        with emulate_cuda(), autocast("cuda"):
            changed.update(key for key, value in snapshot().items() if before.get(key) is not value)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    after = snapshot()
    assert after.keys() == before.keys()
    assert [key for key in before if after[key] is not before[key]] == []
    assert torch.overrides._get_current_function_mode_stack() == modes  # type: ignore[no-untyped-call]
    assert torch.jit._builtins._get_builtin_table() == table  # type: ignore[no-untyped-call]
    assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
    assert not is_emulating()
    # All replaced attributes are among the compared attributes.
    assert len(changed) == len(list(redirects.attribute_replacements()))
    assert ("Tensor", "to") in changed and ("cuda", "is_available") in changed and ("torch", "zeros") in changed


def test_a_region_left_with_autocast_still_on() -> None:
    one = torch.ones(2, 2)
    with emulate_cuda():
        region = torch.autocast("cuda")
        region.__enter__()  # type: ignore[no-untyped-call]
        assert (one @ one).dtype is torch.float16
    assert not torch.is_autocast_enabled("cpu")
    assert (one @ one).dtype is torch.float32
    region.__exit__(None, None, None)
    assert not torch.is_autocast_enabled("cuda")


def test_nothing_happens_to_what_was_made_before_and_after() -> None:
    available = torch.cuda.is_available()
    tensor = torch.ones(2)
    with emulate_cuda():
        with emulate_cuda():
            inner = tensor.device.type, tensor.is_cuda, is_emulating()
        outer = tensor.device.type, tensor.is_cuda, is_emulating()
    assert inner == outer == ("cuda", True, True)
    assert (tensor.device.type, tensor.is_cuda, is_emulating()) == ("cpu", False, False)
    assert torch.cuda.is_available() is available
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert torch.amp.GradScaler("cuda").is_enabled() is available


def test_threads_share_the_region() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[object] = []

    def other() -> None:
        with emulate_cuda():
            entered.set()
            leave.wait(30)
            with torch.autocast("cuda"):
                seen.append((zeros(2, 2, device="cuda") @ torch.zeros(2, 2).cuda()).dtype)
            seen.append(torch.is_autocast_enabled("cuda"))

    def inherits() -> None:
        with torch.autocast("cuda"):
            seen.append((torch.zeros(2, 2, device="cuda") @ torch.zeros(2, 2)).dtype)

    thread = threading.Thread(target=other)
    with emulate_cuda():
        thread.start()
        assert entered.wait(30)
        worker = threading.Thread(target=inherits)
        with torch.autocast("cuda", torch.bfloat16):
            worker.start()
            worker.join()
    seen.append(is_emulating())
    leave.set()
    thread.join()
    assert seen == [torch.float16, True, torch.float16, False]
    assert not is_emulating()


def test_random_numbers_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with emulate_cuda():
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(torch.randn(3, device="cuda"), expected)


def test_a_device_may_be_given_by_its_index() -> None:
    with emulate_cuda():
        model = torch.nn.Linear(2, 2).to(0)
        assert torch.device(0) == torch.device("cuda:0")
        assert model.weight.is_cuda
        assert model(torch.ones(1, 2).to(0)).device.type == "cuda"


def test_random_states_are_found_in_their_own_module_too() -> None:
    with emulate_cuda():
        state = torch.cuda.random.get_rng_state()
        drawn = torch.rand(3)
        torch.cuda.random.set_rng_state(state)
        assert torch.equal(torch.rand(3), drawn)
        torch.cuda.random.manual_seed_all(1)
        assert len(torch.cuda.random.get_rng_state_all()) == 1


# Types of tensors, and features that are not emulated.


@pytest.mark.parametrize(("kind", "dtype"), [("HalfTensor", torch.float16), ("LongTensor", torch.int64)])
def test_the_types_of_the_device_make_its_tensors(cuda: None, kind: str, dtype: torch.dtype) -> None:
    made_by: Any = getattr(torch.cuda, kind)
    made = made_by(2, 3)
    assert (made.shape, made.dtype, made.device.type) == ((2, 3), dtype, "cuda")
    assert made.cuda() is made, "it is there"
    assert isinstance(made, made_by)
    source = zeros(3, dtype=torch.float64)
    for asked in (made_by, f"torch.cuda.{kind}"):
        assert source.type(asked).dtype == dtype
    assert source.type() == "torch.cuda.DoubleTensor"
    assert source.type(torch.float16).type("torch.LongTensor").dtype == torch.int64


def test_the_types_are_gone_with_the_region() -> None:
    cuda: Any = torch.cuda
    before = cuda.FloatTensor, torch.Tensor.type, torch.histc
    with emulate_cuda():
        assert cuda.FloatTensor is not before[0]
    assert (cuda.FloatTensor, torch.Tensor.type, torch.histc) == before
    assert zeros(1).type() == "torch.FloatTensor"


def test_histograms_of_integers_are_counted_as_on_the_device(cuda: None) -> None:
    numbers = torch.tensor([0, 1, 1, 4, 4, 4], device="cuda")
    for counted in (torch.histc(numbers, bins=5, min=0, max=4), numbers.histc(5, 0, 4)):
        assert counted.tolist() == [1, 2, 0, 0, 3]
        assert counted.dtype == torch.int64
    assert torch.histc(numbers.float(), 5, 0, 4).dtype == torch.float32


def test_graphs_are_refused_in_one_sentence(cuda: None) -> None:
    def capture() -> None:
        with torch.cuda.graph(None):  # type: ignore[arg-type]
            pass

    for asked in (torch.cuda.CUDAGraph, capture, lambda: torch.cuda.make_graphed_callables(nn.Linear(2, 2), ())):
        with pytest.raises(RuntimeError, match=r"^emulate_cuda\(\) has no CUDA graphs: [^.]*$"):
            asked()


@pytest.mark.parametrize("around", [emulate_cuda, record], ids=["emulated", "recorded"])
def test_a_warning_of_torch_has_the_line_of_the_program(around: Callable[[], Any]) -> None:
    # torch attributes it to the caller of its function, which a region replaces.
    before = warnings.WarningMessage
    with around(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        F.mse_loss(torch.ones(2, 1), torch.ones(2))
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    assert [(each.filename, lines[each.lineno - 1].strip()) for each in caught] == [
        (__file__, "F.mse_loss(torch.ones(2, 1), torch.ones(2))")
    ]
    assert warnings.WarningMessage is before
