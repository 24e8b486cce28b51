"""A batch that was left on the CPU raises under emulation, as it does on CUDA. Programs that move all of it run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, zeros_like
from torch.nn import functional as F  # noqa: N812 - the name that all of torch's users know
from torch.utils.data import DataLoader, Dataset, TensorDataset

from pytest_amp_check import emulate_cuda, record


@pytest.fixture(autouse=True)
def _on_cuda() -> Iterator[None]:
    torch.manual_seed(0)
    with emulate_cuda():
        yield


class Rows(Dataset[Any]):
    """Eight samples of three random numbers, with a class each."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(i)), i % 2


def layer() -> nn.Linear:
    return nn.Linear(3, 2).cuda()


def batch() -> torch.Tensor:
    return torch.randn(4, 3)


def labels() -> torch.Tensor:
    return torch.tensor([0, 1, 0, 1])


def first(**options: Any) -> list[torch.Tensor]:
    return next(iter(DataLoader(Rows(), batch_size=4, **options)))


def packed() -> Any:
    return nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3).cuda(), torch.tensor([5, 3]))


def created_there() -> torch.Tensor:
    with torch.device("cuda"):
        result: torch.Tensor = layer()(batch())
    return result


LEFT: dict[str, Callable[[], Any]] = {
    "a linear layer": lambda: layer()(batch()),
    "under autocast": lambda: torch.autocast("cuda")(layer())(batch()),
    "without gradients": lambda: torch.no_grad()(layer())(batch()),
    "a convolution": lambda: nn.Conv2d(3, 4, 3).cuda()(torch.randn(1, 3, 8, 8)),
    "an embedding": lambda: nn.Embedding(10, 4).cuda()(torch.tensor([1, 2])),
    "a recurrent layer": lambda: nn.LSTM(3, 4).cuda()(torch.randn(5, 1, 3)),
    "attention": lambda: nn.MultiheadAttention(4, 2).cuda()(*[torch.randn(3, 1, 4)] * 3),
    "a normalization": lambda: nn.LayerNorm(3).cuda()(batch()),
    "a product": lambda: batch() @ layer().weight.t(),
    "labels": lambda: F.cross_entropy(layer()(batch().cuda()), labels()),
    "weights of classes": lambda: F.cross_entropy(layer()(batch().cuda()), labels().cuda(), torch.ones(2)),
    "noise": lambda: batch().cuda() + torch.randn(4, 3),
    "a concatenation": lambda: torch.cat([batch().cuda(), batch()]),
    "an array": lambda: layer()(torch.from_numpy(np.ones((4, 3), dtype=np.float32))),
    "a computed batch": lambda: layer()((batch() - 0.5).div(2).float()),
    "moved back": lambda: layer()(batch().cuda().cpu()),
    "a pinned batch": lambda: layer()(batch().pin_memory()),
    "a dataset of tensors": lambda: layer()(next(iter(DataLoader(TensorDataset(batch()))))[0]),
    "a loader": lambda: layer()(first()[0]),
    "a loader with workers": lambda: layer()(first(num_workers=1)[0]),
    "a loader that pins": lambda: layer()(first(pin_memory=True)[0]),
    "a copied model": lambda: copy.deepcopy(layer())(batch()),
}

MOVED: dict[str, Callable[[], Any]] = {
    "created there by a name from before": lambda: layer()(zeros_like(batch(), device="cuda")),
    "chosen by a mask on the CPU": lambda: layer()(
        torch.where(torch.tensor(True), input=batch().cuda(), other=batch().cuda())
    ),
    "by its device": lambda: layer()(batch().to("cuda")),
    "if it has to be": lambda: layer()(x if (x := batch()).is_cuda else x.cuda()),
    "to the device of the weights": lambda: layer()(batch().to(next(layer().parameters()).device)),
    "to another tensor": lambda: layer()(batch().to(layer().weight)),
    "to the type of another tensor": lambda: layer()(batch().type_as(layer().weight)),
    "with a model moved by keyword": lambda: nn.Linear(3, 2).to(device="cuda")(batch().cuda()),
    "with a model moved by index": lambda: nn.Linear(3, 2).to(device=0, non_blocking=True)(batch().cuda()),
    "with a model moved and cast by keywords": lambda: nn.Linear(3, 2).to(device="cuda", dtype=torch.float64)(
        batch().cuda().double()
    ),
    "with a model moved to a tensor": lambda: nn.Linear(3, 2).to(batch().cuda())(batch().cuda()),
    "created there": lambda: layer()(torch.randn(4, 3, device="cuda")),
    "created like another": lambda: layer()(torch.randn_like(batch().cuda())),
    "created by another": lambda: layer()(layer().weight.new_ones(4, 3)),
    "by a default device": created_there,
    "by DataParallel": lambda: nn.DataParallel(layer())(batch()),
    "without gradients": lambda: layer()(torch.no_grad()(lambda: batch().cuda() * 2)()),
    "labels": lambda: F.cross_entropy(layer()(batch().cuda()), labels().to("cuda")),
    "a loader": lambda: layer()(first()[0].cuda(non_blocking=True)),
    "a loader with workers": lambda: layer()(first(num_workers=1, pin_memory=True)[0].cuda()),
    "a number": lambda: batch().cuda() * torch.tensor(0.5),
    "an index": lambda: batch().cuda()[torch.tensor([0, 1])],
    "lengths of sequences": lambda: nn.LSTM(3, 4).cuda()(packed()),
    "a copied batch": lambda: layer()(torch.empty(4, 3, device="cuda").copy_(batch())),
    "a model that stays": lambda: nn.Linear(3, 2)(batch()),
    "a mask on the device of the batch": lambda: nn.Linear(3, 2)(torch.ones(4, 3, device=batch().device)),
    "a compiled model": lambda: torch.compile(layer(), backend="eager")(batch().cuda()),
}


@pytest.mark.parametrize("run", LEFT.values(), ids=LEFT)
def test_a_tensor_left_on_the_cpu_raises_as_on_cuda(run: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"Expected all tensors to be on the same device.*cuda:0 and cpu"):
        run()


@pytest.mark.parametrize("run", MOVED.values(), ids=MOVED)
def test_a_program_that_moves_its_tensors_runs(run: Callable[[], Any]) -> None:
    run()


def test_a_compiled_model_runs_beside_a_process_group(tmp_path: Path) -> None:
    torch.distributed.init_process_group("nccl", init_method=(tmp_path / "group").as_uri(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(layer(), device_ids=[0])
        assert torch.compile(layer(), backend="aot_eager")(batch().cuda()).is_cuda
        # It moves the inputs by itself.
        assert model(batch()).is_cuda
    finally:
        torch.distributed.destroy_process_group()


def test_each_tensor_reports_where_it_is() -> None:
    assert nn.Linear(3, 2).to(device="cpu").weight.is_cpu and layer().to(device="cpu").weight.is_cpu
    here, there = batch(), layer()(batch().cuda())
    assert (here.device.type, here.is_cuda, here.is_cpu, here.get_device()) == ("cpu", False, True, -1)
    assert (there.device.type, there.is_cuda, there.is_cpu, there.get_device()) == ("cuda", True, False, 0)
    assert here.type() == "torch.FloatTensor" and there.type() == "torch.cuda.FloatTensor"
    assert (here + 1).is_cpu and torch.zeros_like(here).is_cpu and torch.stack([here, here]).is_cpu
    assert there.cpu().is_cpu and there.detach().is_cuda and there[0].is_cuda
    assert torch.zeros(2, pin_memory=True).is_cpu


def test_what_is_asked_of_tensors_is_no_op_of_the_program() -> None:
    """A recording follows a limited number of ops between two module calls."""
    model, lost = layer(), 4 * torch.ones(())
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
    with record(model) as run:
        with torch.autocast("cuda", dtype=torch.float16):
            area = (model(batch().cuda()) * 0 + 300) * 300
            for _ in range(12):
                area = area * lost - area.detach() * 3
        loss = (area - area).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    (finding,) = (each for each in run.findings if each.code == "AMP802")
    assert "`mul` in code outside of modules produces the first non-finite value" in finding.message
