"""Memory on CUDA: the allocator's own peak if available, and categories by storages everywhere."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import pytest_amp_check
from pytest_amp_check import assert_memory, estimate_memory, measure_memory
from pytest_amp_check.runtime.session import Session, session

pytest_plugins = ["pytester"]

PACKAGE = Path(pytest_amp_check.__file__).resolve().parents[1]
MIB = 2**20
FP32 = 4


class Trainer:
    """Two layers whose memory is mostly weights: 4 MiB of parameters in each."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(2))).to(session.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.scaler = session.scaler(init_scale=256.0)
        self.inputs = torch.randn(256, 1024, device=session.device)
        self.step()

    def step(self) -> None:
        # With set_to_none, so that gradients are recreated within the measurement.
        self.optimizer.zero_grad()
        with self.session.autocast():
            loss = functional.mse_loss(self.model(self.inputs), self.inputs)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.step(self.optimizer)
        self.scaler.update()


WEIGHTS = 2 * 1024 * 1024 * FP32


def test_by_category(low: Session) -> None:
    trainer = Trainer(low)
    with measure_memory(trainer.model, trainer.optimizer) as memory:
        trainer.step()
    highest = memory.highest
    assert highest["parameters"] == WEIGHTS
    assert highest["gradients"] == WEIGHTS
    # Two moments of each weight, and a step count of one block for each parameter.
    assert highest["optimizer state"] == 2 * WEIGHTS + 2 * 512
    # Each weight in the region's dtype, until the region ends.
    assert highest["autocast cache"] == WEIGHTS // 2
    # Inputs and outputs of the layers, half of 1 MiB each, the last output in float32 too, and after the end of the
    # region the casts of the weights, which the backward pass needs.
    assert 2 * MIB <= highest["activations"] <= 8 * MIB
    assert sum(memory.at_peak.values()) == pytest.approx(memory.peak, rel=0.01)
    assert_memory(memory, parameters="8 MiB", gradients="8 MiB", peak=memory.peak)
    with pytest.raises(AssertionError, match=r"To need less for gradients: .*set_to_none=True"):
        assert_memory(memory, gradients="7 MiB")


def test_of_a_recording(half: Session) -> None:
    trainer = Trainer(half)
    with half.record(trainer.model, memory=True) as run:
        trainer.step()
    run.assert_no_findings()
    assert run.memory is not None
    run.assert_memory(peak=run.memory.peak, parameters="8 MiB", optimizer_state="17 MiB")
    with pytest.raises(AssertionError, match="peak of memory is"):
        run.assert_memory(peak=run.memory.peak - 1)
    labels = {point.label for point in run.memory.timeline}
    assert {"forward", "backward", "step", "peak"} <= labels


@pytest.mark.usefixtures("this_plugin_alone")
@pytest.mark.parametrize("fits", [True, False])
def test_the_marker(pytester: pytest.Pytester, where: str, fits: bool) -> None:
    gc.collect()
    # On CUDA, memory that this process already holds counts.
    held = torch.cuda.memory_allocated() if where == "cuda" else 0
    pytester.makepyfile(
        test_a=f"""
        import pytest
        import torch

        @pytest.mark.amp(device={where!r})
        @pytest.mark.amp_memory("{held + (40 if fits else 20) * MIB} B")
        def test_it(amp):
            held = torch.zeros(32, 1024, 1024, dtype=torch.uint8, device=amp.device)
            assert held.device.type == "cuda"
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "test_a.py")
    result.assert_outcomes(passed=int(fits), failed=int(not fits))
    if not fits:
        counted = "CUDA's caching allocator" if where == "cuda" else "storages of tensors"
        result.stdout.fnmatch_lines([f"*peak of memory is *MiB*over its budget of*({counted}*"])


# Comparison with the allocator.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_total_is_the_allocators(dtype: str) -> None:
    with session("cuda", dtype) as place:
        trainer = Trainer(place)
        torch.cuda.reset_peak_memory_stats()
        trainer.step()
        alone = torch.cuda.max_memory_allocated()
        with measure_memory(trainer.model, trainer.optimizer) as memory:
            trainer.step()
    assert memory.how == "CUDA's caching allocator"
    assert memory.peak == torch.cuda.max_memory_allocated()
    assert memory.peak == memory.allocator["allocated"]
    assert memory.allocator["reserved"] >= memory.allocator["allocated"] >= memory.allocator["requested"]
    # Measuring takes no memory of the device.
    assert memory.peak == pytest.approx(alone, rel=0.01)


class Transformer:
    """Four layers, with dropout, in a precision that may be float32."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "float16")

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.randn(16, 256, 512, device="cuda")
        with torch.autocast("cuda", getattr(torch, self.precision), enabled=self.precision != "float32"):
            loss = self.model(x).float().square().mean()
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_an_estimate_is_within_a_tenth_of_the_allocator(precision: str) -> None:
    # From here on, the workspaces of cuBLAS exist, including the workspace of the backward thread.
    Transformer(precision).step()
    gc.collect()
    before = torch.cuda.memory_allocated()
    built = Transformer(precision)
    built.step()
    torch.cuda.reset_peak_memory_stats()
    built.step()
    real = torch.cuda.max_memory_allocated() - before
    with measure_memory(built.model, built.optimizer) as on_cuda:
        built.step()
    assert on_cuda.peak == on_cuda.allocator["allocated"]
    assert abs(on_cuda.peak - before - real) <= 0.01 * real
    with estimate_memory(workspace=0) as estimated:
        built = Transformer(precision)
        for _ in range(2):
            built.step()
    assert abs(estimated.peak - real) <= 0.1 * real


SEGMENTS = """
import torch
from torch import nn
from pytest_amp_check import measure_memory, record

model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(2))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)

def step(size):
    optimizer.zero_grad()
    inputs = torch.randn(size, 512, device="cuda")
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(inputs), inputs)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

step(64)
with record(model) as run:
    for size in (64, 4096, 512):
        with measure_memory(model, optimizer) as memory:
            step(size)
        assert memory.peak == torch.cuda.max_memory_allocated() == memory.allocator["allocated"]
run.assert_no_findings()
run.assert_scale(max_skipped=0)
print("segments expand:", any(s.get("is_expandable") for s in torch.cuda.memory_snapshot()))
"""


@pytest.mark.gpu
def test_expandable_segments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEGMENTS, encoding="utf-8")
    setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **setting}, capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "segments expand: True\n"
