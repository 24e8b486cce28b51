"""Emulated low precision: computed in float32 and rounded once, in the forward and in the backward pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of torch's users know
from torch import Tensor, autocast, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_amp_check.runtime.emulate.cuda import emulate_cuda

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture
def cuda() -> Iterator[None]:
    """Run the test in an emulated region."""
    with emulate_cuda():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


#: Name of an op to the shapes of its operands and the op.
OPS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Tensor]]] = {
    "mm": (((5, 64), (64, 7)), torch.mm),
    "matmul of a batch": (((3, 5, 64), (3, 64, 7)), torch.matmul),
    "matrix and vector": (((5, 64), (64,)), torch.matmul),
    "addmm": (((7,), (5, 64), (64, 7)), torch.addmm),
    "addmm, scaled": (((5, 7), (5, 64), (64, 7)), lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2)),
    "addmm without the addend": (((5, 7), (5, 64), (64, 7)), lambda a, b, c: torch.addmm(a.detach() / 0, b, c, beta=0)),
    "baddbmm": (((3, 5, 7), (3, 5, 64), (3, 64, 7)), torch.baddbmm),
    "linear": (((5, 64), (7, 64), (7,)), F.linear),
    "conv1d": (((2, 8, 9), (4, 8, 3)), F.conv1d),
    "conv2d": (((2, 8, 9, 9), (4, 8, 3, 3), (4,)), lambda a, b, c: F.conv2d(a, b, c, stride=2, padding=1)),
    "conv2d, depthwise": (((2, 8, 9, 9), (8, 1, 3, 3)), lambda a, b: F.conv2d(a, b, groups=8)),
    "conv3d": (((1, 4, 5, 5, 5), (2, 4, 3, 3, 3)), F.conv3d),
    "transposed": (((2, 8, 5, 5), (8, 4, 4, 4)), lambda a, b: F.conv_transpose2d(a, b, stride=2)),
    "batch_norm": (((8, 4, 5), (4,), (4,)), lambda a, b, c: F.batch_norm(a, None, None, b, c, training=True)),
    "instance_norm": (((8, 4, 5),), F.instance_norm),
}


def results_of(op: Callable[..., Tensor], operands: list[Tensor]) -> list[Tensor]:
    """Return the output of an op and the gradients of its operands, for a gradient of 0.5 everywhere."""
    leaves = [each.clone().requires_grad_() for each in operands]
    output = op(*leaves)
    output.backward(torch.full_like(output, 0.5))  # type: ignore[no-untyped-call]
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", OPS)
def test_an_op_is_that_of_float32_rounded_once(name: str, half: torch.dtype) -> None:
    shapes, op = OPS[name]
    operands = [torch.randn(shape).to(half) for shape in shapes]
    expected = results_of(op, [each.float() for each in operands])
    with emulate_cuda():
        results = results_of(op, operands)
    assert len(results) == len(expected) > 1
    for result, wide in zip(results, expected, strict=True):
        assert result.dtype is half
        assert torch.equal(result, wide.to(half))


#: Ops whose gradients depend on a result that the forward pass has rounded, and operands between 0 and 1.
OF_ROUNDED: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Tensor]]] = {
    "softmax": (((5, 64),), lambda a: a.softmax(1)),
    "log_softmax": (((5, 64),), lambda a: a.log_softmax(1)),
    "grid_sample": (((2, 3, 8, 8), (2, 4, 4, 2)), lambda a, b: F.grid_sample(a, b, align_corners=False)),
    "grid_sample of volumes": (
        ((2, 3, 4, 4, 4), (2, 3, 3, 3, 3)),
        lambda a, b: F.grid_sample(a, b, align_corners=False),
    ),
    "logit": (((5, 64),), torch.logit),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", OF_ROUNDED)
def test_a_result_is_rounded_once_and_its_gradients_are_near(name: str, half: torch.dtype) -> None:
    shapes, op = OF_ROUNDED[name]
    operands = [torch.rand(shape).to(half).clamp(0.01, 0.99) for shape in shapes]
    expected = results_of(op, [each.float() for each in operands])
    with emulate_cuda():
        results = results_of(op, operands)
    assert [each.dtype for each in results] == [half] * len(expected)
    assert torch.equal(results[0], expected[0].to(half))
    for result, wide in zip(results[1:], expected[1:], strict=True):
        assert torch.allclose(result.float(), wide, rtol=8 * torch.finfo(half).eps, atol=4 * torch.finfo(half).eps)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("overload", [torch.mm, torch.bmm])
def test_a_given_result_is_filled(cuda: None, overload: Any, half: torch.dtype) -> None:
    one, other = torch.randn(3, 4, 64).to(half), torch.randn(3, 64, 5).to(half)
    if overload is torch.mm:
        one, other = one[0], other[0]
    out, empty = torch.ones_like(overload(one, other)), torch.empty(0, dtype=half)
    assert overload(one, other, out=out) is out
    overload(one, other, out=empty)
    assert torch.equal(out, overload(one, other)) and torch.equal(empty, out)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="older torch cannot name its kernels")
def test_attention_is_computed_in_float32(half: torch.dtype, causal: bool) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    operands = [torch.randn(2, 3, 16, 8).to(half) for _ in range(3)]
    expected = results_of(attend, [each.float() for each in operands])
    with emulate_cuda():
        results = results_of(attend, operands)
    assert torch.equal(results[0], expected[0].to(half))
    # The backward pass reads the rounded output.
    for result, wide in zip(results[1:], expected[1:], strict=True):
        assert result.dtype is half
        torch.testing.assert_close(result.float(), wide, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_of_low_weights_is_one_kernel(kind: Any, half: torch.dtype) -> None:
    low = kind(8, 6, num_layers=2, batch_first=True).to(half)
    wide = kind(8, 6, num_layers=2, batch_first=True)
    wide.load_state_dict(low.state_dict())
    inputs = torch.randn(2, 5, 8).to(half)
    expected, _ = wide(inputs.float())
    with emulate_cuda():
        output, _ = low(inputs)
        with torch.inference_mode():
            inferred, _ = low(inputs)
        output.sum().backward()
    assert torch.equal(output, expected.to(half))
    assert inferred.dtype is half
    torch.testing.assert_close(inferred, output)
    assert all(parameter.grad.dtype is half for parameter in low.parameters())


def test_what_exceeds_float16_is_infinite_as_on_cuda(cuda: None) -> None:
    large = torch.full((2, 64), 60.0, dtype=torch.float16, requires_grad=True)
    product = large @ large.T  # 230,400 in float32
    assert torch.isinf(product).all()
    (large * 1.0 @ torch.ones(64, 2).half()).backward(torch.full((2, 2), 40000.0).half())  # type: ignore[no-untyped-call]
    assert torch.isinf(large.grad).all()  # type: ignore[arg-type]


def test_float32_and_integers_stay_bit_for_bit() -> None:
    def compute() -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
        layer = nn.LSTM(5, 4)
        output = layer(model(torch.randn(2, 3, 8, 8))[None])[0]
        output.sum().backward()
        counted = torch.arange(6).view(2, 3) @ torch.arange(6).view(3, 2)
        grads = [each.grad for part in (model, layer) for each in part.parameters()]
        return [output.detach(), counted, torch.mm(torch.ones(2, 3).double(), torch.ones(3, 2).double()), *grads]

    expected = compute()
    with emulate_cuda():
        results = compute()
    assert all(torch.equal(result, other) for result, other in zip(results, expected, strict=True))


def test_saved_tensors_are_low(cuda: None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).cuda()
    saved: set[torch.dtype] = set()

    def pack(value: Tensor) -> Tensor:
        saved.add(value.dtype)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value), autocast("cuda"):
        model(torch.randn(2, 3, 8, 8, device="cuda"))
    assert saved == {torch.float16}


def test_modes_see_the_op_alone(cuda: None) -> None:
    class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    weight = torch.randn(4, 4, dtype=torch.float16, requires_grad=True)
    with Ops() as ops:
        (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
    assert [name for name in ops.names if "mm" in name or "_to_copy" in name] == ["aten.mm.default"] * 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(4, 5), "shapes cannot be multiplied"),
        (lambda: torch.ones(2, 3).half() @ torch.ones(3, 5), "to have the same dtype"),
        (lambda: F.linear(torch.ones(2, 3), torch.ones(5, 3).bfloat16()), "to have the same dtype"),
        (
            lambda: F.conv2d(torch.ones(1, 1, 3, 3).half(), torch.ones(1, 1, 3, 3)),
            r"Input type \(torch\.cuda\.HalfTensor\) and weight type \(torch\.cuda\.FloatTensor\) should be the same$",
        ),
        (
            lambda: F.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3).bfloat16()),
            r"Input type \(torch\.cuda\.FloatTensor\) and weight type \(CUDABFloat16Type\) should be the same$",
        ),
        (
            lambda: F.conv2d(torch.ones(1, 1, 3, 3).half(), torch.ones(1, 1, 3, 3).half(), torch.ones(1)),
            r"Input type \(c10::Half\) and bias type \(float\) should be the same",
        ),
        (lambda: torch.ones(1, 2, 3).half().bmm(torch.ones(1, 4, 5).half()), "Expected size for first two dimensions"),
    ],
)
def test_what_torch_refuses_it_refuses_here(cuda: None, call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.GroupNorm(2, 4)], ids=["layer", "group"])
def test_a_normalization_on_cuda_takes_parameters_of_the_dtype_of_its_input(cuda: None, norm: nn.Module) -> None:
    """As on CUDA, outside autocast: the CPU's kernels also take float32 parameters and a low input."""
    here, x = norm.cuda(), torch.ones(2, 4).half().cuda()
    with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
        here(x)
    with autocast("cuda"):
        assert here(x).dtype is torch.float32
    assert here.half()(x).dtype is torch.float16
    assert norm.float().cpu()(x.cpu()).dtype is torch.float16
    assert nn.BatchNorm1d(4).cuda()(x).dtype is torch.float16


def test_the_kernels_of_torch_are_back_after_the_region() -> None:
    def replaced() -> list[bool]:
        return [
            torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU")
            for name in ("convolution", "convolution_backward", "lstm.input")
        ]

    with emulate_cuda():
        inside = replaced()
    assert inside == [True] * 3 and replaced() == [False] * 3
    assert torch.equal(torch.eye(2) @ torch.eye(2), torch.eye(2))


@pytest.mark.parametrize("half", HALVES)
def test_gradients_of_gradients(cuda: None, half: torch.dtype) -> None:
    x = torch.randn(2, 3, 6, 6, device="cuda", requires_grad=True)
    first = nn.Conv2d(3, 4, 3)
    model = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(64, 1)).cuda()
    with autocast("cuda", half):
        output = model(x)
    (gradient,) = torch.autograd.grad(output.float().sum(), x, create_graph=True)
    gradient.square().sum().backward()  # type: ignore[no-untyped-call]
    assert first.weight.grad is not None and first.weight.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "line",
    [
        "x = x.to('cuda')",
        "x = x.cuda().half()",
        "x = x.type(torch.float16)",
        "x = x.new_zeros(4)",
        "x.copy_(y)",
        "x.add_(y).lerp_(y, 0.1)",
        "x = x.half() @ y.half()",
    ],
)
def test_a_whole_function_is_compiled(cuda: None, line: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(f"def compute(x, y):\n    {line}\n    return x * 2", names)  # noqa: S102
    x, y = torch.randn(4, 4, device="cuda"), torch.randn(4, 4, device="cuda")
    torch._dynamo.reset()
    compiled: Any = torch.compile(names["compute"], fullgraph=True, backend="eager")
    result, expected = compiled(x.clone(), y), names["compute"](x.clone(), y)
    assert result.dtype is expected.dtype and torch.equal(result, expected)
    torch._dynamo.reset()


def test_autocast_of_the_cpu_does_nothing_to_tensors_on_cuda(cuda: None) -> None:
    on_cuda, on_cpu = nn.Linear(4, 4).cuda(), nn.Linear(4, 4)
    inputs = torch.randn(2, 4)
    with autocast("cpu", torch.bfloat16):
        assert on_cuda(inputs.cuda()).dtype is torch.float32
        hidden = on_cuda(inputs.cuda()).relu()
        assert (hidden @ hidden.T).dtype is torch.float32
        assert on_cpu(inputs).dtype is torch.bfloat16
        assert on_cuda.cpu()(inputs).dtype is torch.bfloat16


def test_nccl_is_gloo(cuda: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    assert torch.distributed.is_nccl_available()
    torch.distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=torch.device("cuda", 0)
    )
    try:
        assert torch.distributed.get_backend() == "gloo"
        group = torch.distributed.new_group([0], backend="nccl")
        total = torch.ones(2, device="cuda")
        torch.distributed.all_reduce(total, group=group)
        assert total.tolist() == [1.0, 1.0]
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(), device_ids=[0])
        model(total).sum().backward()
        assert model.module.weight.grad is not None
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("half", HALVES)
def test_a_confident_prediction_has_a_loss(cuda: None, half: torch.dtype) -> None:
    # Measured on an H200: log_softmax of low logits, which cross_entropy asks for in their dtype, is rounded once.
    logits = torch.tensor([[10.5, 0.25, -1.0]], device="cuda", dtype=half)
    with autocast("cuda", half):
        loss = F.cross_entropy(logits, torch.tensor([0], device="cuda"))
    assert loss.dtype is torch.float32
    assert loss.item() == logits.float().log_softmax(1)[0, 0].neg().to(half).item() > 0


@pytest.mark.parametrize("half", HALVES)
def test_batch_normalization_of_a_low_model_keeps_its_statistics_in_float32(cuda: None, half: torch.dtype) -> None:
    inputs = torch.randn(8, 4, 5).to(half)
    weight, bias = torch.ones(4).to(half), torch.zeros(4).to(half)
    mean, variance = torch.zeros(4).to(half), torch.ones(4).to(half)
    saved = torch.native_batch_norm(inputs, weight, bias, mean, variance, True, 0.1, 1e-5)
    assert [each.dtype for each in saved] == [half, torch.float32, torch.float32]
    assert torch.equal(mean, (0.1 * inputs.float().mean((0, 2))).to(half))
    evaluated = torch.native_batch_norm(inputs, weight, bias, mean, variance, False, 0.1, 1e-5)
    expected = (inputs.float() - mean.float()[:, None]) / (variance.float() + 1e-5).sqrt()[:, None]
    assert torch.equal(evaluated[0], expected.to(half))


def test_a_trace_under_autocast_is_in_float32(cuda: None) -> None:
    # Measured on an H200: CUDA's trace is the sum of the diagonal, and autocast casts sums.
    square = torch.eye(4, device="cuda", dtype=torch.float16)
    with autocast("cuda"):
        assert square.trace().dtype is torch.float32
