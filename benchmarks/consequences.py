"""Programs that show the effect of a mistake if a rule's own examples are too short. harm.py runs the programs.

Each program runs with and without the mistake, and returns figures by name. Each rank is a separate process.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

#: Name of a quantity -> figure.
Figures = dict[str, float]
#: Code of a rule -> description of its program, and the program: True for the mistake -> figures.
SHOWN: dict[str, tuple[str, Callable[[bool], Figures]]] = {}
#: Code of a rule -> reason why the effect is not measured here.
NOT_HERE = {
    "AMP109": "torch 2.11 and later put it right, so that the figures of older versions stand",
    "AMP302": "it takes accelerate or another framework, which the benchmark does without",
    "AMP512": "it takes torchao or TransformerEngine, and a GPU with float8",
    "AMP702": "a CPU has no Tensor Cores",
    "AMP902": "a comment does nothing when a program runs",
    "AMP903": "what cannot be parsed cannot be run",
    "AMP904": "what is not checked does nothing by itself",
}


def shows(code: str, setting: str) -> Callable[[Callable[[bool], Figures]], Callable[[bool], Figures]]:
    """Register a program for a rule. ``setting`` describes the program as a clause."""

    def enter(program: Callable[[bool], Figures]) -> Callable[[bool], Figures]:
        SHOWN[code] = setting, program
        return program

    return enter


def _scaled(scale: float = 2.0**16, interval: int = 2000) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)


def _autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def _stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def _sgd(model: nn.Module, rate: float = 1e-3) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=rate)


def _norm(tensors: Any) -> float:
    return float(torch.stack([t.detach().float().norm() for t in tensors]).norm())


def _copy(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _moved(model: nn.Module, before: list[torch.Tensor]) -> float:
    return _norm(p - q for p, q in zip(model.parameters(), before, strict=True))


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts operations, and operations that make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all = self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.all += 1
        self.waits += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class _Island(nn.Module):
    """Two layers, with the second always in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            output: torch.Tensor = self.head(hidden.float())
        return output


@shows("AMP103", "20 steps of a model with a float32 island, a loss of about 25")
def backward_in_region(wrong: bool) -> Figures:
    model, scaler = _Island(), _scaled()
    optimizer = _sgd(model)
    skipped = 0
    for _ in range(20):
        optimizer.zero_grad()
        with _autocast():
            loss = nn.functional.mse_loss(model(torch.randn(8, 16)), torch.full((8, 1), 5.0))
            if wrong:
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if not wrong:
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return {"steps skipped": skipped, "loss scale at the end": scaler.get_scale()}


@shows("AMP110", "one forward of four layers of 256 units on 512 rows")
def no_region(wrong: bool) -> Figures:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())]
    model, x = nn.Sequential(*layers), torch.randn(512, 256)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.float16, enabled=not wrong),
    ):
        output = model(x)
    assert output.requires_grad
    return {"MiB kept for backward": sum(kept.values()) / 2**20}


@shows("AMP205", "one step of SGD on a loss whose gradient is zero and a penalty")
def unscaled_penalty(wrong: bool) -> Figures:
    model, scaler = nn.Linear(16, 1), _scaled()
    optimizer, before = _sgd(model, 0.1), _copy(model)
    with _autocast():
        loss = model(torch.zeros(8, 16)).float().mean() * 0
    penalty = model.weight.float().square().sum()
    total = scaler.scale(loss) + penalty if wrong else scaler.scale(loss + penalty)
    total.backward()
    scaler.step(optimizer)
    return {"the penalty moves the parameters by": _moved(model, before)}


@shows("AMP207", "two optimizers of one scaler, of which the first overflows")
def update_between(wrong: bool) -> Figures:
    first, second, scaler = nn.Linear(4, 1), nn.Linear(4, 1), _scaled()
    one, two = _sgd(first), _sgd(second, 0.1)
    scaler.scale(first(torch.ones(1, 4)).sum() * float("inf")).backward()
    before = _copy(second)
    scaler.scale(second(torch.ones(1, 4)).sum()).backward()
    scaler.step(one)
    if wrong:
        scaler.update()
    scaler.step(two)
    scaler.update()
    return {"the second optimizer moves its parameters by": _moved(second, before)}


@shows("AMP305", "two processes of gloo, windows of 4 micro-batches, 10 steps of SGD")
def unsynced(wrong: bool) -> Figures:
    (own, other), (early, late) = _ranks("unsynced", wrong), _ranks("set_late", wrong)
    return {
        "difference between the parameters of the two": (own - other).norm().item() / other.norm().item(),
        "the same with the flag set after the forward": (early - late).norm().item() / late.norm().item(),
    }


def _unsynced(rank: int, wrong: bool) -> torch.Tensor:
    return _train_in_windows(rank, lambda last: last != wrong)


def _set_late(rank: int, wrong: bool) -> torch.Tensor:
    return _train_in_windows(rank, bool, late=wrong)


def _train_in_windows(rank: int, syncs: Callable[[bool], bool], *, late: bool = False) -> torch.Tensor:
    """Return the parameters of a process. ``late`` sets DDP's flag after the forward."""
    model = nn.parallel.DistributedDataParallel(_stack())
    optimizer = _sgd(model, 0.1)
    torch.manual_seed(rank)
    for number in range(40):
        last = number % 4 == 3
        if not late:
            model.require_backward_grad_sync = syncs(last)
        loss = nn.functional.mse_loss(model(torch.randn(8, 16)), torch.randn(8, 1)) / 4
        if late:
            model.require_backward_grad_sync = syncs(last)
        loss.backward()  # type: ignore[no-untyped-call]
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@shows("AMP306", "two processes of gloo, windows of 4 micro-batches, 10 steps of SGD")
def averaged_each_time(wrong: bool) -> Figures:
    return {"times that gradients are averaged": _ranks("averaged", wrong)[0].item()}


def _averaged(rank: int, wrong: bool) -> torch.Tensor:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(_stack())
    optimizer = _sgd(model, 0.1)
    times = 0

    def counted(bucket: Any) -> Any:
        nonlocal times
        times += 1
        return default_hooks.allreduce_hook(model.process_group, bucket)

    # torch inspects the annotations of a hook, which are strings in this module.
    model.register_comm_hook(None, lambda _, bucket: counted(bucket))
    for number in range(40):
        last = number % 4 == 3
        model.require_backward_grad_sync = last or wrong
        loss = nn.functional.mse_loss(model(torch.randn(8, 16)), torch.randn(8, 1)) / 4
        loss.backward()  # type: ignore[no-untyped-call]
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return torch.tensor(float(times))


@shows("AMP401", "a run that has settled at a low loss scale, resumed")
def resumed(wrong: bool) -> Figures:
    model, scaler = _stack(), _scaled()
    optimizer = _sgd(model, 1e-9)

    def run(scaler: torch.amp.GradScaler, steps: int) -> int:
        skipped = 0
        for _ in range(steps):
            optimizer.zero_grad()
            with _autocast():
                loss = nn.functional.mse_loss(model(torch.randn(32, 16)), torch.randn(32, 1)) * 5e3
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
        return skipped

    run(scaler, 40)
    after = _scaled()
    if not wrong:
        after.load_state_dict(scaler.state_dict())
    return {"steps skipped after resuming": run(after, 40)}


@shows("AMP402", "a checkpoint in an iteration that overflowed")
def early_state(wrong: bool) -> Figures:
    model, scaler = nn.Linear(4, 1), _scaled()
    optimizer = _sgd(model)
    scaler.scale(model(torch.ones(1, 4)).sum() * float("inf")).backward()
    scaler.step(optimizer)
    early = scaler.state_dict()
    scaler.update()
    buffer = io.BytesIO()
    torch.save(early if wrong else scaler.state_dict(), buffer)
    buffer.seek(0)
    restored = _scaled()
    restored.load_state_dict(torch.load(buffer))
    return {"loss scale after resuming": restored.state_dict()["scale"]}


@shows("AMP503", "one step of SGD on eight layers, after a forward in bfloat16 and a backward")
def scaler_for_bfloat16(wrong: bool) -> Figures:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    optimizer = _sgd(model)
    scaler = torch.amp.GradScaler("cpu", enabled=wrong)
    kernels = _Kernels()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 16)).float().square().mean()
        scaler.scale(loss).backward()
        kernels = _Kernels()
        with kernels:
            scaler.step(optimizer)
            scaler.update()
    return {"operations": kernels.all, "of these, reads that wait for the device": kernels.waits}


@shows("AMP504", "a logit of -20 whose target is 1, in float16 on the CPU")
def saturated(wrong: bool) -> Figures:
    logit = torch.tensor([-20.0], dtype=torch.float16, requires_grad=True)
    target = torch.ones(1)
    with _autocast():
        if wrong:
            loss = nn.functional.binary_cross_entropy(torch.sigmoid(logit), target)
        else:
            loss = nn.functional.binary_cross_entropy_with_logits(logit, target)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logit.grad is not None
    return {"loss": loss.item(), "gradient": logit.grad.item()}


@shows("AMP601", "one backward of a model with a float32 island, compiled with aot_eager, loss 25 and scale 65536")
def compiled(wrong: bool) -> Figures:
    model = _Island()
    runs = torch.compile(model, backend="aot_eager") if wrong else model
    with _autocast():
        loss = nn.functional.mse_loss(runs(torch.randn(8, 16)), torch.full((8, 1), 5.0))
    (loss * 2.0**16).backward()  # type: ignore[no-untyped-call]
    assert model.head.weight.grad is not None
    return {"gradients of the island that are not finite": int((~model.head.weight.grad.isfinite()).sum())}


@shows("AMP602", "two processes, one infinity in the shard of the second")
def unsynced_infinity(wrong: bool) -> Figures:
    first, second = _ranks("infinity", wrong)
    return {"loss scale of the first": first.item(), "loss scale of the second": second.item()}


def _infinity(rank: int, wrong: bool) -> torch.Tensor:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    shard = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([shard], lr=0.1)
    scaler = _scaled() if wrong else ShardedGradScaler("cpu", init_scale=2.0**16, process_group=dist.group.WORLD)
    scaler.scale(shard.sum() * (float("inf") if rank else 1.0)).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    return torch.tensor(scaler.get_scale())


@shows("AMP603", "two processes, each with one half of the gradients, clipped at a norm of 0.05")
def local_norm(wrong: bool) -> Figures:
    first, second = _ranks("clipped", wrong)
    return {"norm after clipping": torch.cat([first, second]).norm().item()}


def _clipped(rank: int, wrong: bool) -> torch.Tensor:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(16, 2, bias=False), device_id=torch.device("cpu"))
    nn.functional.mse_loss(model(torch.ones(4, 16)), torch.tensor([1.0, 9.0])).backward()  # type: ignore[no-untyped-call]
    if wrong:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    else:
        model.clip_grad_norm_(0.05)
    return next(p.grad.flatten().clone() for p in model.parameters() if p.grad is not None)


@shows("AMP604", "two processes of gloo, 30 steps whose gradients, in float32, are about 10")
def compressed(wrong: bool) -> Figures:
    skipped, scale = _ranks("compressed", wrong)[0]
    return {"steps skipped": skipped.item(), "loss scale at the end": scale.item()}


def _compressed(rank: int, wrong: bool) -> torch.Tensor:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(_stack())
    if wrong:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer, scaler = _sgd(model, 1e-6), _scaled()
    skipped = 0
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(torch.randn(8, 16)), torch.full((8, 1), 8.0))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return torch.tensor([skipped, scaler.get_scale()])


@shows("AMP607", "two processes of gloo, 8 batches each, the loss of the third NaN on the second")
def left_out(wrong: bool) -> Figures:
    averages = _ranks("left-out", wrong)[0]
    own = torch.arange(1.0, len(averages) + 1)
    foreign = (averages != own) & averages.isfinite()
    return {"batches whose gradients were averaged with those of another batch": foreign.sum().item()}


def _left_out(rank: int, wrong: bool) -> torch.Tensor:
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    averages = []
    # The rank that skips a batch has one backward less: in its last backward, the other rank would wait forever.
    for number in range(1, 8 if wrong and rank == 0 else 9):
        model.zero_grad()
        loss = model(torch.full((1, 1), float(number))).sum() * (float("nan") if rank and number == 3 else 1.0)
        if wrong and torch.isnan(loss):
            continue
        loss.backward()
        averages += [p.grad.item() for p in model.parameters() if p.grad is not None]
    return torch.tensor(averages)


@shows("AMP701", "one step on 16 timesteps of two layers of 256 units")
def region_of_each_step(wrong: bool) -> Figures:
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    timesteps = torch.randn(16, 8, 256)
    kernels = _Kernels()
    with kernels:
        if wrong:
            states = []
            for timestep in timesteps:
                with _autocast():
                    states.append(model(timestep))
        else:
            with _autocast():
                states = [model(timestep) for timestep in timesteps]
        torch.stack(states).float().square().mean().backward()  # type: ignore[no-untyped-call]
    return {"operations": kernels.all}


#: Programs of a rank: name -> function of the rank and the mistake -> result.
_RANKS = {
    "unsynced": _unsynced,
    "set_late": _set_late,
    "averaged": _averaged,
    "infinity": _infinity,
    "clipped": _clipped,
    "compressed": _compressed,
    "left-out": _left_out,
}


def _rank(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    said: dict[tuple[str, bool], torch.Tensor] = {}
    for name, program in _RANKS.items():
        for wrong in (True, False):
            torch.manual_seed(0)
            said[name, wrong] = program(rank, wrong)
    torch.save(list(said.items()), f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


@functools.cache
def _said() -> tuple[dict[tuple[str, bool], torch.Tensor], ...]:
    """Return the results of all programs from each of two processes.

    All programs share the processes, because starting a process takes longer than the programs.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        each = [context.Process(target=_rank, args=(rank, folder)) for rank in range(2)]
        for process in each:
            process.start()
        for process in each:
            process.join()
        assert [process.exitcode for process in each] == [0, 0]
        return tuple(dict(torch.load(f"{folder}/{rank}")) for rank in range(2))


def _ranks(name: str, wrong: bool) -> list[torch.Tensor]:
    return [said[name, wrong] for said in _said()]


def measure(code: str) -> str:
    """Return a sentence about the effect of the mistake in a rule's program."""
    setting, program = SHOWN[code]
    figures: list[Figures] = []
    for wrong in (True, False):
        torch.manual_seed(0)
        figures.append(program(wrong))
    bad, good = figures
    said = [
        f"{what} {_shown(bad[what])}" + (f", not {_shown(good[what])}" if bad[what] != good[what] else "")
        for what in bad
    ]
    return f"{setting}: " + "; ".join(said)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"
