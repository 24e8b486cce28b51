"""Performance features of a GPU - graphs, streams, compilation, layouts, kernels - work during a recording."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import Run, record
from pytest_amp_check.runtime.session import Session, session

pytestmark = pytest.mark.usefixtures("patched_once")

STEPS = 3
#: All parts of a recording that do not change the choice of kernels.
EVERYTHING = {"dtypes": True, "ops": True, "numerics": True, "memory": True, "norms": True}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 4))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.block, self.last = (
            nn.Linear(8, 16),
            nn.Sequential(nn.Linear(16, 16), nn.GELU()),
            nn.Linear(16, 4),
        )

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        x = self.block(x) if self.reentrant is None else checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.last(x)


class Result:
    """Results of a training: losses, weights, and the recording, if any."""

    def __init__(self, losses: list[float], model: nn.Module, run: Run | None) -> None:
        self.losses = losses
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
        self._run = run

    @property
    def run(self) -> Run:
        assert self._run is not None
        assert self._run.failure is None
        return self._run

    def equals(self, other: Result) -> bool:
        """Return True if both trainings are bit-identical."""
        pairs = zip(self.weights, other.weights, strict=True)
        return self.losses == other.losses and all(torch.equal(one, another) for one, another in pairs)


def trained(
    place: Session,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...] = (16, 8),
    *,
    parts: dict[str, bool] | None,
    wrap: Callable[[nn.Module], Callable[[Tensor], Any]] = lambda model: model,
    layout: torch.memory_format = torch.contiguous_format,
) -> Result:
    """Train a model from the same seed, recorded if ``parts`` is given."""
    torch.manual_seed(0)
    model = build().to(place.device, memory_format=layout)  # type: ignore[call-overload]
    call = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = place.scaler(init_scale=256.0)
    inputs = torch.randn(shape, device=place.device).to(memory_format=layout)
    targets = torch.randint(4, (shape[0],), device=place.device)
    losses = []
    with nullcontext() if parts is None else place.record(model, **parts) as run:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with place.autocast():
                loss = functional.cross_entropy(call(inputs), targets)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return Result(losses, model, run)


@pytest.mark.parametrize("parts", [{}, EVERYTHING], ids=["plain", "everything"])
def test_recording_changes_nothing(low: Session, parts: dict[str, bool]) -> None:
    plain = trained(low, mlp, parts=None)
    recorded = trained(low, mlp, parts=parts)
    assert recorded.equals(plain)
    assert recorded.run.steps_total == STEPS
    assert [step.loss for step in recorded.run.steps] == pytest.approx(plain.losses, rel=1e-5)
    recorded.run.assert_no_findings()


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions(low: Session, layout: torch.memory_format, searched: bool) -> None:
    with torch.backends.cudnn.flags(enabled=True, benchmark=searched):
        run = trained(low, convolutions, (4, 3, 8, 8), parts={"dtypes": True, "memory": True}, layout=layout).run
    run.assert_no_findings()
    run.assert_dtypes({"0": low.dtype, "1": low.dtype, "5": low.dtype, "loss": "float32", "gradients": "float32"})
    assert run.memory is not None
    assert run.memory.at_peak["parameters"] > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(low: Session, reentrant: bool) -> None:
    def build(reentrant: bool | None) -> Callable[[], nn.Module]:
        return lambda: Checkpointed(reentrant=reentrant)

    plain = trained(low, build(None), parts={"dtypes": True})
    recomputed = trained(low, build(reentrant), parts={"dtypes": True})
    assert recomputed.equals(plain)
    assert recomputed.run.steps_total == STEPS
    recomputed.run.assert_no_findings()
    # The recomputation inside the backward pass is in the region again.
    recomputed.run.assert_dtypes({"first": low.dtype, "block": low.dtype, "block.0": low.dtype, "last": low.dtype})


def _has_inductor() -> bool:
    return importlib.util.find_spec("triton") is not None and bool(shutil.which("gcc") or shutil.which("cc"))


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_models(low: Session, backend: str) -> None:
    if backend == "inductor" and low.emulated:
        pytest.skip("inductor's kernels for the CPU have nothing to do with CUDA's")
    if backend == "inductor" and not _has_inductor():
        pytest.skip("needs triton and a C compiler")
    torch._dynamo.reset()
    try:
        compiled = trained(low, mlp, parts={"dtypes": True}, wrap=lambda model: torch.compile(model, backend=backend))
    finally:
        torch._dynamo.reset()
    eager = trained(low, mlp, parts=None)
    assert compiled.losses == pytest.approx(eager.losses, rel=0.02)
    assert compiled.run.steps_total == STEPS
    compiled.run.assert_no_findings()
    compiled.run.assert_dtypes({"parameters": "float32", "gradients": "float32", "loss": "float32"})


BACKENDS = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
#: Backends with CPU kernels, and thus available in the emulation.
ON_CPU = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_attention(low: Session, backend: SDPBackend) -> None:
    if low.emulated and backend not in ON_CPU:
        pytest.skip("no such kernel on the CPU")
    project = nn.Linear(64, 3 * 64).to(low.device)
    optimizer = torch.optim.SGD(project.parameters(), lr=0.01)
    scaler = low.scaler(init_scale=256.0)
    inputs = torch.randn(2, 32, 64, device=low.device)
    with low.record(project, dtypes=True) as run:
        with low.autocast(), sdpa_kernel(backend):
            query, key, value = (part.view(2, 32, 1, 64).transpose(1, 2) for part in project(inputs).split(64, dim=-1))
            output = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            loss = output.float().square().mean()
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
    assert output.dtype is low.dtype
    assert [step.skipped for step in run.steps] == [False]
    run.assert_no_findings()
    run.assert_dtypes({"gradients": "float32", "parameters": "float32", "": low.dtype})


def test_packed_sequences_through_recurrent_layers(half: Session) -> None:
    layer = nn.LSTM(8, 16, num_layers=2, dropout=0.1, batch_first=True, bidirectional=True).to(half.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    scaler = half.scaler(init_scale=256.0)
    inputs = torch.randn(4, 6, 8, device=half.device)
    outputs: list[Tensor] = []
    with half.record(layer, dtypes=True) as run:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with half.autocast():
                packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.tensor([6, 5, 3, 1]), batch_first=True)
                output, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
                loss = functional.mse_loss(output, torch.zeros(4, 6, 32, device=half.device))
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            outputs.append(output)
    assert {output.dtype for output in outputs} == {torch.float16}
    assert (run.steps_total, run.skipped_total) == (STEPS, 0)
    run.assert_no_findings()
    run.assert_dtypes({"loss": "float32", "gradients": "float32", "optimizer state": "float32"})


# Features of GPUs only.


def on_a_stream(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function that calls the model on a separate stream. Its backward runs there too."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def call(inputs: Tensor) -> Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            output: Tensor = model(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        output.record_stream(torch.cuda.current_stream())
        return output

    return call


@pytest.mark.gpu
@pytest.mark.parametrize("parts", [{}, EVERYTHING], ids=["plain", "everything"])
def test_side_streams(parts: dict[str, bool]) -> None:
    with session("cuda") as place:
        plain = trained(place, mlp, parts=None, wrap=on_a_stream)
        recorded = trained(place, mlp, parts=parts, wrap=on_a_stream)
    assert recorded.equals(plain)
    assert recorded.run.steps_total == STEPS
    recorded.run.assert_no_findings()


def replayed(place: Session, *, recorded: bool) -> Result:
    """Capture forward and backward once and replay them, as in torch's notes on CUDA graphs with a scaler."""
    torch.manual_seed(0)
    model = mlp().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = place.scaler(init_scale=256.0)
    inputs, targets = torch.randn(16, 8, device="cuda"), torch.randint(4, (16,), device="cuda")

    def forward_and_backward() -> Tensor:
        with place.autocast(cache_enabled=False):
            loss = functional.cross_entropy(model(inputs), targets)
        torch.autograd.backward(scaler.scale(loss))
        return loss.detach()

    losses = []
    with record(model) if recorded else nullcontext() as run:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                forward_and_backward()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = forward_and_backward()
        for _ in range(STEPS):
            inputs.normal_()
            graph.replay()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return Result(losses, model, run)


@pytest.mark.gpu
def test_a_graph_is_captured_and_replayed() -> None:
    with session("cuda") as place:
        plain, recorded = replayed(place, recorded=False), replayed(place, recorded=True)
    assert len(set(plain.losses)) == STEPS
    assert recorded.equals(plain)
    assert [step.skipped for step in recorded.run.steps] == [False] * STEPS
    assert "AMP605" not in {finding.code for finding in recorded.run.findings}


def graphed(model: nn.Module) -> Callable[[Tensor], Tensor]:
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        made: Any = torch.cuda.make_graphed_callables(model, (torch.randn(16, 8, device="cuda"),))
    return made  # type: ignore[no-any-return]


@pytest.mark.gpu
def test_graphed_callables() -> None:
    with session("cuda") as place:
        plain = trained(place, mlp, parts=None, wrap=graphed)
        recorded = trained(place, mlp, parts={}, wrap=graphed)
        with record() as run:
            captured_too = trained(place, mlp, parts=None, wrap=graphed)
    assert recorded.equals(plain) and captured_too.equals(plain)
    for each in (run, recorded.run):
        assert each.failure is None
        assert each.steps_total == STEPS
        assert "AMP605" not in {finding.code for finding in each.findings}
