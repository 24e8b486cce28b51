"""Memory estimates made without a GPU, compared with the peak of CUDA's allocator, or in a dry run of real tensors."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpu.models import Decoder, Encoder, Perceptron, Residual, Restoring, Vision, optimizer
from gpu.places import on
from gpu.results import Row
from pytest_amp_check import estimate_memory, measure_memory

#: Bytes of cuBLAS's workspace for a thread, by the major compute capability of the device.
WORKSPACES = {9: 32 * 2**20}
WORKSPACE = 8_519_680
#: Processes that estimate.
WORKERS = 4
#: Share of the peak that the categories of a measurement may miss.
ROUNDING = 0.001
#: A training that no dry run measures: with dropout, CUDA's kernel of attention holds no probabilities, and that of the
#: CPU holds all of them.
KERNEL_OF_CUDA = "encoder of torch with dropout"


class Case(NamedTuple):
    """One training for a memory measurement. The model computes its own loss of a batch."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    precision: str = "float16"
    optimizer: str = "AdamW foreach"
    micro_batches: int = 1


def _text(batch: int, length: int, words: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(words, (batch, length), device="cuda")


def _images(batch: int, size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, 3, size, size, device="cuda")


def cases(*, dry: bool) -> dict[str, Case]:
    """Return the trainings. In a dry run, they are so small that a CPU runs each in seconds."""
    words, length = (500, 32) if dry else (50257, 1024)

    def gpt(width: int, depth: int, *, recomputed: bool = False) -> Callable[[], nn.Module]:
        small = (32 * (1 + width // 1024), 2) if dry else (width, depth)
        return lambda: Decoder(words, length, *small, heads=small[0] // (16 if dry else 64), recomputed=recomputed)

    def vit(width: int, depth: int) -> Callable[[], nn.Module]:
        return (lambda: Vision(32, 32, 2, 2)) if dry else (lambda: Vision(224, width, depth, width // 64))

    def resnet(*depths: int) -> Callable[[], nn.Module]:
        return (lambda: Residual((1, 1), 8)) if dry else (lambda: Residual(depths))

    def unet(width: int, depth: int) -> Callable[[], nn.Module]:
        return lambda: Restoring(8 if dry else width, 2 if dry else depth)

    def mlp(width: int, depth: int) -> Callable[[], nn.Module]:
        return lambda: Perceptron(64 if dry else width, depth)

    def encoder(width: int, depth: int) -> Callable[[], nn.Module]:
        return lambda: Encoder(32 if dry else width, depth)

    def activations(batch: int, width: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(2 if dry else batch, 256, 32 if dry else width, device="cuda")

    def rows_of(batch: int, width: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(4 if dry else batch, 64 if dry else width, device="cuda")

    def text(batch: int) -> Callable[[], Tensor]:
        return _text(2 if dry else batch, length, words)

    def images(batch: int, size: int) -> Callable[[], Tensor]:
        return _images(2 if dry else batch, 32 if dry else size)

    return {
        "decoder 124 M": Case(gpt(768, 12), text(8)),
        "decoder 124 M, float32": Case(gpt(768, 12), text(8), "float32"),
        "decoder 124 M, bfloat16": Case(gpt(768, 12), text(8), "bfloat16"),
        "decoder 124 M, checkpointed": Case(gpt(768, 12, recomputed=True), text(8)),
        "decoder 124 M, fused AdamW": Case(gpt(768, 12), text(8), optimizer="AdamW fused"),
        "decoder 124 M, AdamW in a loop": Case(gpt(768, 12), text(8), optimizer="AdamW loop"),
        "decoder 124 M, SGD": Case(gpt(768, 12), text(8), optimizer="SGD foreach"),
        "decoder 124 M, 4 micro-batches": Case(gpt(768, 12), text(2), micro_batches=4),
        "decoder 355 M": Case(gpt(1024, 24), text(4)),
        "decoder 1.3 B, bfloat16": Case(gpt(2048, 24), text(2), "bfloat16"),
        "decoder 1.3 B, checkpointed": Case(gpt(2048, 24, recomputed=True), text(2)),
        "ViT-B": Case(vit(768, 12), images(32, 224)),
        "ViT-L, bfloat16": Case(vit(1024, 24), images(16, 224), "bfloat16"),
        "ResNet-50": Case(resnet(3, 4, 6, 3), images(32, 224), optimizer="SGD foreach"),
        "ResNet-50, float32": Case(resnet(3, 4, 6, 3), images(32, 224), "float32", "SGD foreach"),
        "ResNet-101": Case(resnet(3, 4, 23, 3), images(16, 224)),
        "UNet": Case(unet(64, 4), images(8, 256)),
        "UNet, float32, SGD fused": Case(unet(64, 4), images(8, 256), "float32", "SGD fused"),
        KERNEL_OF_CUDA: Case(encoder(512, 4), activations(16, 512)),
        "MLP": Case(mlp(4096, 8), rows_of(1024, 4096)),
        "MLP, large batch": Case(mlp(1024, 8), rows_of(65536, 1024), "bfloat16", "SGD foreach"),
    }


def _run(case: Case, steps: int) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Build the model and run some steps. Return model, optimizer, and a function for another step."""
    torch.manual_seed(0)
    model = case.model().to("cuda")
    chosen = optimizer(case.optimizer, model.parameters(), 1e-4)
    # A step that overflows is skipped, and leaves no optimizer state.
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0, enabled=case.precision == "float16")

    def step() -> None:
        chosen.zero_grad()
        for _ in range(case.micro_batches):
            batch = case.batch()
            with torch.autocast("cuda", getattr(torch, case.precision), enabled=case.precision != "float32"):
                loss = model(batch) / case.micro_batches
            torch.autograd.backward(scaler.scale(loss))
        scaler.step(chosen)
        scaler.update()

    for _ in range(steps):
        step()
    return model, chosen, step


class Estimate(NamedTuple):
    """An estimate: peak in bytes, and by category."""

    peak: int
    at_peak: dict[str, int]


def estimated(case: Case, workspace: int) -> Estimate:
    """Estimate the memory of a training without a GPU."""
    with estimate_memory(workspace=workspace) as memory:
        _run(case, 2)
    return Estimate(memory.peak, dict(memory.at_peak))


def _estimated_by_name(what: str, workspace: int) -> Estimate:
    torch.set_num_threads(1)
    return estimated(_all_cases(dry=False)[what], workspace)


def _all_cases(*, dry: bool) -> dict[str, Case]:
    return {**cases(dry=dry), **_of_transformers(dry=dry)}


def rows(*, dry: bool) -> Iterator[Row]:
    if dry:
        for what, case in _all_cases(dry=True).items():
            if what != KERNEL_OF_CUDA:
                yield from _emulated(what, case)
        return
    workspace = WORKSPACES.get(torch.cuda.get_device_capability()[0], WORKSPACE)
    # The estimates need only processors, and take longer than the measurements.
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool:
        estimates = {what: pool.submit(_estimated_by_name, what, workspace) for what in _all_cases(dry=False)}
        for what, case in _all_cases(dry=False).items():
            yield from _on_cuda(what, case, estimates[what].result())


def _emulated(what: str, case: Case) -> Iterator[Row]:
    """Compare with the same training with real tensors on the CPU, counted as CUDA would allocate them."""
    with on("emulated"):
        model, chosen, step = _run(case, 1)
        with measure_memory(model, chosen, device="cpu", as_cuda=True) as measured:
            step()
        real, categories = measured.peak, measured.at_peak
    del model, chosen, step
    estimate = estimated(case, 0)
    yield _estimate(what, estimate, real, categories)
    yield _measured(what, measured, real)


def _on_cuda(what: str, case: Case, estimate: Estimate) -> Iterator[Row]:
    _forget_workspaces()
    before = torch.cuda.memory_allocated()
    model, chosen, step = _run(case, 1)
    torch.cuda.reset_peak_memory_stats()
    step()
    real = torch.cuda.max_memory_allocated() - before
    with measure_memory(model, chosen) as measured:
        step()
    del model, chosen, step
    yield _estimate(what, estimate, real, measured.at_peak)
    yield _measured(what, measured, measured.allocator["allocated"])
    _forget_workspaces()


def _forget_workspaces() -> None:
    """Free the remains of the last training: reference cycles, cuBLAS's workspaces, cached blocks."""
    gc.collect()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def _estimate(what: str, estimate: Estimate, real: int, categories: dict[str, int]) -> Row:
    return {
        "kind": "estimate",
        "what": what,
        "error": estimate.peak / real - 1,
        "told": estimate.peak,
        "allocated": real,
        "told by category": estimate.at_peak,
        "measured by category": categories,
    }


def _measured(what: str, measured: Any, allocated: int) -> Row:
    total = sum(measured.at_peak.values())
    agrees = measured.peak == allocated and abs(total - allocated) <= ROUNDING * allocated
    return {
        "kind": "measured",
        "what": what,
        "agrees": agrees,
        "seen": f"{measured.peak} of {allocated} bytes, categories {total}",
    }


class _Causal(nn.Module):
    """A causal language model of transformers, with its own loss."""

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.inner = AutoModelForCausalLM.from_config(config)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.inner(input_ids=x, labels=x, use_cache=False).loss
        return loss


def _of_transformers(*, dry: bool) -> dict[str, Case]:
    """Return models of transformers, made from a configuration; none if transformers is not installed."""
    try:
        from transformers import GPT2Config, LlamaConfig
    except ImportError:
        return {}
    words, length, width, depth = (100, 16, 32, 2) if dry else (32000, 512, 1024, 8)
    gpt = GPT2Config(
        vocab_size=words, n_embd=width, n_layer=depth, n_head=width // 16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    llama = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 16,
        intermediate_size=3 * width,
    )
    return {
        "GPT-2 of transformers": Case(partial(_Causal, gpt), _text(4, length, words), "bfloat16"),
        "Llama of transformers": Case(partial(_Causal, llama), _text(4, length, words), "bfloat16"),
    }
