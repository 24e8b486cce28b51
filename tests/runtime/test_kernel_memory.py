"""Tests of the memory that CUDA kernels need beside the results of their ops, in estimates.

The expected bytes follow from what torch's and cuDNN's kernels do: they were seen on an H100.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of torch's users know
from torch import nn

from pytest_amp_check import estimate_memory

MIB = 2**20


def peak_of(compute: Callable[[], object], category: str = "workspace") -> int:
    """Return the peak bytes of a category while a function runs on fake tensors, without cuBLAS's workspaces."""
    with estimate_memory(workspace=0) as memory:
        compute()
    return memory.highest.get(category, 0)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_needs_a_tensor_of_all_losses(loss: Callable[..., torch.Tensor], reduction: str) -> None:
    def compute() -> None:
        loss(torch.ones(512, 512), torch.ones(512, 512), reduction=reduction)

    assert peak_of(compute) == 1 * MIB


def test_a_loss_without_reduction_needs_only_its_result() -> None:
    assert peak_of(lambda: F.mse_loss(torch.ones(512, 512), torch.ones(512, 512), reduction="none")) == 0


def test_the_losses_are_as_many_as_input_and_target_are_broadcast_to() -> None:
    def compute() -> None:
        with pytest.warns(UserWarning, match="broadcasting"):
            F.huber_loss(torch.ones(512, 1), torch.ones(1, 512))

    assert peak_of(compute) == 1 * MIB


@pytest.mark.parametrize(("loss", "kept"), [(F.mse_loss, 1 * MIB), (F.huber_loss, 512)])
def test_the_mean_of_some_losses_keeps_the_storage_of_all(loss: Callable[..., torch.Tensor], kept: int) -> None:
    held: list[int] = []
    with estimate_memory(workspace=0) as memory:
        values = torch.ones(512, 512, requires_grad=True)
        target = torch.ones(512, 512)
        before = sum(memory.alive().values())
        result = loss(values, target)
        held.append(sum(memory.alive().values()) - before)
        # A view of the loss has the storage of the loss.
        result.detach()
        held.append(sum(memory.alive().values()) - before)
    assert held == [kept, kept]


def test_a_convolution_is_computed_channels_last_on_tensor_cores() -> None:
    def compute(memory_format: torch.memory_format) -> Callable[[], object]:
        def convolve() -> None:
            layer = nn.Conv2d(16, 32, 3, padding=1, bias=False)
            layer(torch.ones(4, 16, 64, 64).to(memory_format=memory_format))

        return convolve

    converted = 4 * (4 * 16 * 64 * 64 + 32 * 16 * 3 * 3 + 4 * 32 * 64 * 64)
    assert peak_of(compute(torch.contiguous_format)) == converted
    assert peak_of(compute(torch.channels_last)) == 0


@pytest.mark.parametrize(
    ("channels", "settings", "needs"),
    [
        pytest.param((16, 32), {}, False, id="a matrix product"),
        pytest.param((16, 32), {"stride": 2}, True, id="stride"),
        pytest.param((16, 3), {}, True, id="three channels"),
        pytest.param((16, 16), {"groups": 16}, False, id="depthwise"),
    ],
)
def test_which_convolutions_of_size_1_are_converted(
    channels: tuple[int, int], settings: dict[str, int], needs: bool
) -> None:
    def compute() -> None:
        nn.Conv2d(*channels, 1, bias=False, **settings)(torch.ones(4, 16, 64, 64))  # type: ignore[arg-type]

    assert bool(peak_of(compute)) == needs


def test_the_backward_pass_of_a_convolution_is_converted_too() -> None:
    def compute() -> None:
        layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        torch.autograd.backward(layer(torch.ones(4, 16, 64, 64, requires_grad=True)).sum())

    # Gradient, input and weight, as much as input, weight and output before.
    assert peak_of(compute) == 4 * (2 * 4 * 16 * 64 * 64 + 16 * 16 * 3 * 3)


def test_the_gradient_of_a_bias_is_a_sum_of_partial_sums() -> None:
    def compute(rows: int) -> Callable[[], object]:
        return lambda: nn.Linear(8, 1024)(torch.ones(rows, 8)).sum().backward()

    # 1,024 columns are 8 blocks of threads, 64 rows each. 264 in a column fill an H100.
    assert peak_of(compute(64)) == 0
    assert peak_of(compute(640)) == 4 * 1024 * 128 * 10
    assert peak_of(compute(64_000)) == 4 * 1024 * 128 * 264


def test_a_sum_of_rows_needs_no_partial_sums() -> None:
    assert peak_of(lambda: torch.ones(4096, 4096).sum(1)) == 0


def test_the_backward_pass_of_a_softmax_needs_another_result() -> None:
    assert peak_of(lambda: torch.ones(512, 512, requires_grad=True).softmax(-1).sum().backward()) == 1 * MIB  # type: ignore[no-untyped-call]


def test_the_workspace_is_part_of_the_peak() -> None:
    with estimate_memory(workspace=0) as memory:
        values, target = torch.ones(512, 512), torch.ones(512, 512)
        F.huber_loss(values, target)
    # Values and target, the losses of all elements, and their mean.
    assert memory.peak == 3 * MIB + 512
    assert memory.at_peak["workspace"] == 1 * MIB
    assert sum(memory.at_peak.values()) == memory.peak


def test_an_estimate_for_the_cpu_has_no_workspace() -> None:
    with estimate_memory(cuda=False) as memory:
        F.mse_loss(torch.ones(512, 512), torch.ones(512, 512))
    assert memory.highest.get("workspace", 0) == 0
