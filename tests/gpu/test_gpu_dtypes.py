"""Dtypes of layers, losses, parameters, gradients and optimizer state on CUDA, in both low dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp_check import Run, record
from pytest_amp_check.runtime.session import Session

pytestmark = pytest.mark.usefixtures("patched_once")

#: Name of the region's dtype in expectations.
LOW = "low"
MASTER = {"parameters": "float32", "gradients": "float32", "optimizer state": "float32", "loss": "float32"}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.batch = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.group = nn.GroupNorm(2, 8)
        self.pool = nn.AvgPool2d(4)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(torch.relu(self.batch(self.conv(x))))
        return self.head(self.pool(self.group(y)).flatten(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.gelu = nn.GELU()
        self.down = nn.Linear(64, 5)
        self.softmax = nn.Softmax(-1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.softmax(self.down(self.gelu(self.up(self.norm(x + y)))).mean(1))  # type: ignore[no-any-return]


class Recurrence(nn.Module):
    """A recurrent layer. cuDNN's kernels are cast to float16 in every region.

    torch's wrapper of the kernels knows no other dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.cell = nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        return self.head(self.cell(x[:, -1]))  # type: ignore[no-any-return]


class Island(nn.Module):
    """A module that computes in float32 within the region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.autocast("cuda", enabled=False):
            x = self.inner(x.float())
        return self.last(x)  # type: ignore[no-any-return]


def images(device: torch.device) -> Tensor:
    return torch.randn(4, 3, 8, 8, device=device)


def tokens(device: torch.device) -> Tensor:
    return torch.randint(16, (4, 6), device=device)


def sequences(device: torch.device) -> Tensor:
    return torch.randn(4, 6, 8, device=device)


def features(device: torch.device) -> Tensor:
    return torch.randn(4, 8, device=device)


MODELS: list[tuple[Callable[[], nn.Module], Callable[[torch.device], Tensor], dict[str, str]]] = [
    (
        Convolutions,
        images,
        {"conv": LOW, "batch": LOW, "up": LOW, "group": "float32", "pool": "float32", "head": LOW, "model": LOW},
    ),
    (
        Attention,
        tokens,
        {"tokens": "float32", "attention": LOW, "norm": "float32", "up": LOW, "gelu": LOW, "softmax": "float32"},
    ),
    (Recurrence, sequences, {"lstm": "float16", "gru": "float16", "cell": LOW, "head": LOW}),
    (Island, features, {"first": LOW, "inner": "float32", "last": LOW}),
]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=True),
}


def train(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, **parts: Any) -> Run:
    """Run and record two steps."""
    scaler = session.scaler(init_scale=256.0)
    targets = torch.randint(5, (len(inputs),), device=session.device)
    with session.record(model, **parts) as run:
        for _ in range(2):
            optimizer.zero_grad()
            with session.autocast():
                loss = functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
    run.assert_no_findings()
    return run


def named(session: Session, expected: dict[str, str]) -> dict[str, str]:
    low = str(session.dtype).removeprefix("torch.")
    return {name: low if dtype == LOW else dtype for name, dtype in expected.items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("model", "inputs", "expected"), MODELS, ids=[each[0].__name__ for each in MODELS])
def test_of_layers_and_what_they_are_trained_with(
    low: Session,
    model: Callable[[], nn.Module],
    inputs: Callable[[torch.device], Tensor],
    expected: dict[str, str],
    optimizer: str,
) -> None:
    built = model().to(low.device)
    run = train(low, built, OPTIMIZERS[optimizer](built.parameters()), inputs(low.device), dtypes=True)
    run.assert_dtypes({**MASTER, **named(low, expected)})
    with pytest.raises(AssertionError, match="not as expected"):
        run.assert_dtypes({"parameters": low.dtype})


def test_of_the_ops_that_autocast_casts(low: Session) -> None:
    model = Attention().to(low.device)
    run = train(low, model, torch.optim.SGD(model.parameters(), lr=0.01), tokens(low.device), ops=True)
    # Forward and backward of a linear layer are matrix products in the region's dtype.
    run.assert_dtypes(
        {"ops:aten.mm": low.dtype, "ops:aten._softmax": "float32", "ops:aten.native_layer_norm": "float32"}
    )


def test_of_weights_that_are_low_themselves(low: Session) -> None:
    model = nn.Linear(8, 8).to(low.device, low.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with record(model, dtypes=True) as run:
        output = model(features(low.device).to(low.dtype))
        torch.autograd.backward(output.float().square().mean())
        optimizer.step()
    run.assert_dtypes(
        {"parameters": low.dtype, "gradients": low.dtype, "optimizer state": low.dtype, "loss": "float32"}
    )


def test_of_losses_outside_of_the_region(half: Session) -> None:
    model = nn.Linear(8, 5).to(half.device)
    with half.record(model, dtypes=True) as run:
        with half.autocast():
            output = model(features(half.device))
        torch.autograd.backward(half.scaler().scale(output.square().mean()))
    run.assert_dtypes({"loss": "float16"})


def test_of_gradients_of_inputs_and_of_single_ops(low: Session) -> None:
    inputs = features(low.device).requires_grad_()
    model = Island().to(low.device)
    with low.autocast():
        loss = model(inputs).float().square().mean()
    (gradient,) = torch.autograd.grad(loss, inputs)
    assert (gradient.dtype, loss.dtype) == (torch.float32, torch.float32)
    ones = torch.ones(4, 5, device=low.device)
    with low.autocast(cache_enabled=False):
        assert model(inputs).dtype is low.dtype
        assert functional.layer_norm(model(inputs), (5,)).dtype is torch.float32
        assert torch.cat([inputs, inputs.to(low.dtype)]).dtype is torch.float32
        assert functional.binary_cross_entropy_with_logits(model(inputs), ones).dtype is torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(model(inputs).sigmoid(), ones)
