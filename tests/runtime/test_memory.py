"""Memory by category: equal to the real bytes of storages, on real tensors and on fake tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach_utils
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import record
from pytest_amp_check.protocol.byte_sizes import format_size
from pytest_amp_check.runtime.emulate.cuda import emulate_cuda
from pytest_amp_check.runtime.measure import ledger, storages
from pytest_amp_check.runtime.measure.estimate import CUBLAS_WORKSPACE, estimate_memory
from pytest_amp_check.runtime.measure.memory import Memory, assert_memory, measure_memory
from pytest_amp_check.runtime.session import session

FP32, FP16, INT64 = 4, 2, 8
#: Bytes of the loss, and of the gradient of ones with which backward starts.
LOSS = 2 * FP32

of_new_kernels = pytest.mark.skipif(
    torch.__version__ < "2.5", reason="torch 2.4 holds some bytes more: four small tensors of Adam, a mask of attention"
)


def blocks(sizes: Iterable[int], *, as_cuda: bool) -> int:
    """Return the sum of sizes, each rounded up to 512 bytes for CUDA's allocator."""
    return sum((size + 511) // 512 * 512 if as_cuda else size for size in sizes)


def sizes_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the bytes of each storage, counted once."""
    by_address = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return list(by_address.values())


def at(memory: Memory, label: str) -> dict[str, int]:
    """Return the bytes at the first point of the timeline with a label."""
    return next(point.bytes for point in memory.timeline if point.label == label)


@contextlib.contextmanager
def saved_by_autograd() -> Iterator[list[torch.Tensor]]:
    """Collect the tensors that the graph keeps for its backward pass, as reported by torch itself."""
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


class Mlp(nn.Module):
    def __init__(self, width: int = 24, hidden: int = 56) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 4, width // 4).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Blocks in sequence, each optionally recomputed in the backward pass."""

    def __init__(self, blocks: list[nn.Module], reentrant: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: Stack([Mlp(), Mlp()]), (6, 24)),
    "cnn": (cnn, (4, 3, 8, 8)),
    "transformer": (lambda: Stack([Attention(), Mlp(), Attention(), Mlp()]), (3, 7, 24)),
}


# Parameters, gradients, optimizer state.


@pytest.mark.parametrize("as_cuda", [False, True])
@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), 0),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1),
        (lambda p: torch.optim.Adam(p, foreach=False), 2),
        (lambda p: torch.optim.AdamW(p, foreach=True), 2),
        (lambda p: torch.optim.Adam(p, fused=True), 2),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
    ],
    ids=["sgd", "momentum", "adam", "adamw-foreach", "adam-fused", "amsgrad"],
)
def test_parameters_gradients_and_optimizer_state_are_exact(
    make: Callable[[Any], torch.optim.Optimizer], copies: int, as_cuda: bool
) -> None:
    model = Mlp()
    optimizer = make(model.parameters())
    with measure_memory(model, optimizer, as_cuda=as_cuda) as memory:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 24)).sum().backward()
            optimizer.step()
    each = [24 * 56 * FP32, 56 * FP32, 56 * 24 * FP32, 24 * FP32]
    exact = blocks(each, as_cuda=as_cuda)
    # Adam has a step count tensor for each parameter, which CUDA training keeps on the host unless the step is fused.
    on_device = not as_cuda or bool(optimizer.defaults.get("fused"))
    counts = blocks([FP32] * 4, as_cuda=as_cuda) if "betas" in optimizer.defaults and on_device else 0
    for point in (at(memory, "step"), memory.timeline[-1].bytes):
        assert point["parameters"] == exact
        assert point["gradients"] == exact
        assert point.get("optimizer state", 0) == copies * exact + counts
    assert memory.highest["gradients"] == exact


def test_bytes_are_those_of_the_storages() -> None:
    model = MODELS["transformer"][0]()
    optimizer = torch.optim.Adam(model.parameters())
    with measure_memory(model, optimizer) as memory:
        functional.mse_loss(model(torch.randn(3, 7, 24)), torch.zeros(3, 7, 24)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    state = [value for one in optimizer.state.values() for value in one.values()]
    assert memory.highest["parameters"] == sum(sizes_of(model.parameters()))
    assert memory.highest["gradients"] == sum(sizes_of(p.grad for p in model.parameters() if p.grad is not None))
    assert memory.highest["optimizer state"] == sum(sizes_of(state))


def test_buffers_are_no_parameters() -> None:
    model = nn.BatchNorm1d(10)
    with measure_memory(model) as memory:
        model(torch.randn(4, 10))
    assert memory.at_peak["parameters"] == 2 * 10 * FP32
    assert memory.at_peak["other"] == 2 * 10 * FP32 + INT64
    assert ("other", "running_mean", 40) in memory.contributors("other")


def test_other_devices_do_not_count() -> None:
    with measure_memory() as memory:
        elsewhere = torch.ones(1000, device="meta") + torch.ones(1000, device="meta")
        here = torch.ones(10)
    assert elsewhere.device.type == "meta"
    assert memory.peak == here.untyped_storage().nbytes()


def test_shared_weights_and_views_count_once() -> None:
    embedding, head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    with measure_memory(model) as memory:
        model(torch.tensor([1, 2])).sum().backward()
    assert memory.highest["parameters"] == memory.highest["gradients"] == 11 * 6 * FP32


def test_sparse_gradients_count_their_indices_and_values() -> None:
    model = nn.Embedding(100, 6, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    with measure_memory(model, optimizer) as memory:
        model(torch.tensor([3, 5, 7])).sum().backward()
        optimizer.step()  # type: ignore[no-untyped-call]
    assert at(memory, "backward")["gradients"] == 3 * INT64 + 3 * 6 * FP32
    assert memory.highest["optimizer state"] == 2 * 100 * 6 * FP32


def test_what_is_not_named_is_found() -> None:
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 24)).sum().backward()
    optimizer.step()
    with measure_memory() as memory:
        optimizer.zero_grad()
        model(torch.randn(5, 24)).sum().backward()
        optimizer.step()
    exact = sum(sizes_of(model.parameters()))
    assert memory.highest["parameters"] == memory.highest["gradients"] == exact
    # The state exists since before the start, though first seen in the step.
    assert {point.bytes["optimizer state"] for point in memory.timeline} == {2 * exact + 4 * FP32}
    assert memory.contributors("gradients", 1) == [("gradients", "down.weight", 56 * 24 * FP32)]


def test_a_model_made_while_measuring_is_known_by_its_names() -> None:
    with measure_memory() as memory:
        model = Mlp()
        model(torch.randn(5, 24)).sum().backward()
        exact = sum(sizes_of(model.parameters()))
    assert memory.at_peak["parameters"] == exact
    assert memory.contributors("parameters", 1) == [("parameters", "down.weight", 56 * 24 * FP32)]


def test_gradients_that_are_kept_show_in_the_next_forward_pass() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with measure_memory(model, optimizer) as memory:
        for _ in range(2):
            model(torch.randn(5, 24)).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    forward = [point.bytes for point in memory.timeline if point.label == "forward"]
    assert [point.get("gradients", 0) for point in forward] == [0, sum(sizes_of(model.parameters()))]


def test_gradients_removed_right_after_backward_were_gradients() -> None:
    model = Mlp()
    with measure_memory(model) as memory:
        model(torch.randn(5, 24)).sum().backward()
        model.zero_grad()
    assert memory.highest["gradients"] == sum(sizes_of(model.parameters()))
    assert "gradients" not in memory.timeline[-1].bytes


# Activations.


@pytest.mark.parametrize("as_cuda", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_activations_are_what_autograd_saves_to_the_byte(name: str, as_cuda: bool) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    with saved_by_autograd() as saved:
        loss = model(x).square().mean()
    existing = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}
    kept = sizes_of(t for t in (*saved, loss) if t.untyped_storage().data_ptr() not in existing)
    expected = blocks([*kept, FP32], as_cuda=as_cuda)
    del saved, loss

    with measure_memory(model, x, as_cuda=as_cuda) as memory:
        model(x).square().mean().backward()
    assert at(memory, "forward")["activations"] == expected
    assert memory.highest["activations"] == expected
    # After backward, the loss is freed too: nothing refers to it.
    assert "activations" not in memory.timeline[-1].bytes


def test_activations_by_arithmetic() -> None:
    rows, width, hidden = 6, 24, 56
    model, x = Stack([Mlp(width, hidden), Mlp(width, hidden)]), torch.randn(rows, width)
    with measure_memory(model, x) as memory:
        model(x).square().mean().backward()
    # gelu saves its input, the second layer its own, and the next block the output.
    assert at(memory, "forward") == {
        "parameters": 2 * (2 * width * hidden + width + hidden) * FP32,
        "activations": 2 * (hidden + hidden + width) * rows * FP32 + LOSS,
        "inputs": rows * width * FP32,
    }
    assert ("activations", "blocks.0.up", rows * hidden * FP32) in memory.contributors("activations", 10)


def test_activations_of_a_cnn_by_arithmetic() -> None:
    model, x = cnn(), torch.randn(4, 3, 8, 8)
    with measure_memory(model, x) as memory:
        model(x).square().mean().backward()
    image = 4 * 8 * 8 * 8 * FP32
    # conv's output, mean and deviation for the batch norm; then relu's output; pooling keeps values and indices.
    assert at(memory, "forward")["activations"] == (
        image + 2 * 8 * FP32 + image + image // 4 + image // 4 * INT64 // FP32 + 4 * 5 * FP32 + LOSS
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_by_arithmetic(reentrant: bool) -> None:
    rows, width, hidden, count = 6, 24, 56, 4
    model = Stack([Mlp(width, hidden) for _ in range(count)], reentrant)
    # Reentrant checkpointing needs an input that requires gradients.
    x = torch.randn(rows, width, requires_grad=reentrant)
    with measure_memory(model, x) as memory:
        model(x).square().mean().backward()
    between = rows * width * FP32
    inner = 2 * rows * hidden * FP32
    assert at(memory, "forward")["activations"] == count * between + LOSS
    # One block at a time is recomputed after the last output is freed. Reentrant also recomputes the block's output.
    assert memory.highest["activations"] == (count - 1) * between + inner + reentrant * between + LOSS


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_transformer_keeps_what_is_between_its_blocks(reentrant: bool) -> None:
    x = torch.randn(3, 7, 24, requires_grad=True)
    model = Stack([Attention(), Mlp(), Attention(), Mlp()], reentrant)
    with measure_memory(model, x) as memory:
        model(x).square().mean().backward()
    assert at(memory, "forward")["activations"] == 4 * 3 * 7 * 24 * FP32 + LOSS


def test_what_only_the_forward_pass_needed_is_temporary() -> None:
    model, x = nn.Sequential(nn.Linear(8, 32), nn.Sigmoid()), torch.randn(4, 8)
    with measure_memory(model, x) as memory:
        model(x).sum().backward()
    # sigmoid saves its output, and the output of the layer before it is freed.
    assert at(memory, "forward")["activations"] == 4 * 32 * FP32 + LOSS
    assert memory.highest["temporaries"] >= 4 * 32 * FP32
    assert ("temporaries", "0", 4 * 32 * FP32) in memory.contributors("temporaries", 10)


def test_inference_has_no_activations() -> None:
    model, x = Mlp(), torch.randn(5, 24)
    with measure_memory(model, x) as memory, torch.no_grad():
        for _ in range(3):
            model(x)
    assert "activations" not in memory.at_peak
    assert memory.at_peak["temporaries"] == 2 * 5 * 56 * FP32


def test_what_outlives_several_steps_is_no_activation() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    history = []
    loss = None
    with measure_memory(model, optimizer) as memory:
        for _ in range(6):
            loss = model(torch.randn(5, 24)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss.detach())
        loss = None
    # Losses of the last three steps may still be used: the graph of one model may be older than the step of another.
    assert memory.timeline[-1].bytes["other"] == 3 * FP32
    assert memory.timeline[-1].bytes["activations"] == 3 * FP32


def test_batches_and_targets_are_inputs() -> None:
    model = nn.Linear(10, 3)
    with measure_memory(model) as memory:
        x = torch.randn(16, 10) / 2
        y = torch.randint(3, (16,))
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    assert at(memory, "forward")["inputs"] == 16 * 10 * FP32 + 16 * INT64


# Autocast.


def test_the_weight_cache_lives_until_the_outermost_region_ends() -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)), torch.randn(4, 16)
    half = [16 * 32 * FP16, 32 * FP16, 32 * 8 * FP16, 8 * FP16]
    with measure_memory(model, x) as memory:
        with torch.autocast("cpu", torch.float16):
            with torch.autocast("cpu", torch.float16):
                loss = model(x).float().sum()
            inside = memory.alive()
        loss.backward()
    assert inside["autocast cache"] == sum(half)
    assert memory.highest["autocast cache"] == sum(half)
    # The second layer's weight is needed for the gradient of its input. The first layer's weight and both biases are
    # not.
    kept = [32 * 8 * FP16, 4 * 16 * FP16, 4 * 32 * FP16]
    assert at(memory, "forward")["activations"] == sum(kept) + LOSS
    assert "autocast cache" not in at(memory, "forward")


def test_frozen_weights_are_cast_anew_for_every_use() -> None:
    frozen, x = nn.Linear(64, 64, bias=False).requires_grad_(False), torch.randn(2, 64, requires_grad=True)
    trained = nn.Linear(64, 64, bias=False)
    measured = {}
    for name, layer in (("frozen", frozen), ("trained", trained)):
        with measure_memory(layer, x) as memory, torch.autocast("cpu", torch.float16):
            y = x
            for _ in range(10):
                y = layer(y)
            alive = memory.alive()
        measured[name] = alive.get("autocast cache", 0), alive["activations"]
    weight, row = 64 * 64 * FP16, 2 * 64 * FP16
    # The cache holds casts of all tensors that require gradients, including x. A layer keeps its weight for the input's
    # gradient, and its input for the weight's gradient. The last output is included.
    assert measured["frozen"] == (row, 10 * weight + row)
    assert measured["trained"] == (weight + row, 10 * row)


def test_without_its_cache_autocast_makes_a_copy_for_every_use() -> None:
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(2, 64)
    with measure_memory(layer, x) as memory, torch.autocast("cpu", torch.float16, cache_enabled=False):
        y = layer(layer(layer(x)))
        alive = memory.alive()
    del y
    assert "autocast cache" not in alive
    # The first use needs no gradient of its input, and so keeps no weight.
    assert alive["activations"] == 2 * 64 * 64 * FP16 + 4 * 2 * 64 * FP16


def test_emulated_cuda_has_cudas_weight_cache_and_blocks() -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)), torch.randn(4, 16)
    with emulate_cuda(), measure_memory(model, x) as memory:
        with torch.autocast("cuda"):
            loss = functional.mse_loss(model(x), torch.zeros(4, 8))
            inside = memory.alive()
        loss.backward()  # type: ignore[no-untyped-call]
    assert memory.as_cuda and memory.device == torch.device("cpu")
    assert inside["autocast cache"] == 1024 + 3 * 512
    assert inside["parameters"] == 2048 + 1024 + 2 * 512


# Steps.


def step_alone(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Memory:
    """Measure the second step, with all other memory allocated before."""
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with measure_memory(optimizer) as memory:
        optimizer.step()
    return memory


@pytest.mark.parametrize(
    ("options", "temporaries"),
    [
        ({"fused": True}, 0),
        # The square roots of all second moments at once.
        ({"foreach": True}, (30 * 40 + 50) * FP32),
        # The square root of one second moment, and its quotient with the bias correction.
        ({"foreach": False}, 2 * 30 * 40 * FP32),
    ],
    ids=["fused", "foreach", "loop"],
)
def test_temporaries_of_adam(options: dict[str, Any], temporaries: int) -> None:
    parameters = [nn.Parameter(torch.ones(30, 40)), nn.Parameter(torch.ones(50))]
    memory = step_alone(torch.optim.Adam(parameters, **options), parameters)
    assert memory.highest.get("temporaries", 0) == temporaries
    assert memory.peak == 4 * (30 * 40 + 50) * FP32 + 2 * FP32 + temporaries
    if temporaries:
        assert memory.contributors("temporaries", 1)[0][1].startswith("Adam.step (")


def test_a_closure_runs_forward_and_backward_inside_the_step() -> None:
    model, x = Mlp(), torch.randn(5, 24)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    with measure_memory(model, optimizer, x) as memory:
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert at(memory, "forward")["activations"] == (56 + 56 + 24) * 5 * FP32 + LOSS


def test_the_scaler_and_its_unscaling() -> None:
    model, x = Mlp(), torch.randn(5, 24)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    with measure_memory(model, optimizer, x) as memory:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    labels = [point.label for point in memory.timeline if point.label != "peak"]
    assert labels == ["forward", "backward", "unscale", "step"] * 2 + ["end"]
    assert memory.timeline[-1].bytes["other"] == 2 * 4


def test_two_optimizers_of_two_models() -> None:
    one, two = Mlp(), nn.Linear(24, 24)
    first, second = torch.optim.Adam(one.parameters()), torch.optim.SGD(two.parameters(), 0.1, momentum=0.9)
    with measure_memory(one, two, first, second) as memory:
        for _ in range(2):
            two(one(torch.randn(5, 24))).sum().backward()
            first.step()
            second.step()
    assert memory.highest["optimizer state"] == (
        2 * sum(sizes_of(one.parameters())) + 4 * FP32 + sum(sizes_of(two.parameters()))
    )


# The peak and the timeline.


def test_the_peak_is_a_moment() -> None:
    model, x = Stack([Mlp(), Mlp()]), torch.randn(6, 24)
    with measure_memory(model, x) as memory:
        model(x).square().mean().backward()
    assert sum(memory.at_peak.values()) == memory.peak
    assert memory.peak <= sum(memory.highest.values())
    assert all(memory.at_peak[category] <= memory.highest[category] for category in memory.at_peak)
    assert [point.label for point in memory.timeline] == ["forward", "peak", "backward", "end"]
    assert sum(size for *_, size in memory.contributors(most=1000)) == memory.peak


def test_the_timeline_is_bounded_and_keeps_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_POINTS", 20)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with measure_memory(model, optimizer) as memory:
        for step in range(100):
            optimizer.zero_grad()
            model(torch.randn(1000 if step == 50 else 2, 3)).sum().backward()
            optimizer.step()
    assert len(memory.timeline) <= 21
    (place,) = (index for index, point in enumerate(memory.timeline) if point.label == "peak")
    assert 0.3 < place / len(memory.timeline) < 0.7
    assert sum(memory.timeline[place].bytes.values()) == memory.peak
    assert memory.peak > 1000 * 3 * FP32


def test_a_phase_that_does_not_end_is_summed_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "MOST_EVENTS", 50)
    x = torch.ones(100)
    with measure_memory(x) as memory:
        for _ in range(200):
            x.add(1)
    assert memory.peak == 2 * 100 * FP32


def test_plain_data_for_reports() -> None:
    model = Mlp()
    with measure_memory(model) as memory:
        model(torch.randn(5, 24)).sum().backward()
    assert_memory(memory, peak="1 GiB")
    data = memory.as_dict()
    assert data["how"] == "storages of tensors"
    assert data["device"] == "cpu"
    assert data["budget"] == 2**30
    assert data["peak"] == {**memory.at_peak, "total": memory.peak}
    assert data["timeline"][0] == {"label": "forward", "bytes": at(memory, "forward")}


def test_it_says_what_it_has_measured() -> None:
    model = nn.Linear(256, 256, bias=False)
    memory = Memory(model, device="cpu", as_cuda=False)
    assert repr(memory) == "<Memory of cpu: nothing measured yet>"
    memory.start()
    kept = torch.ones(2, 256)
    memory.stop()
    # 256 * 256 and 2 * 256 numbers of four bytes.
    said = "<Memory of cpu: peak 258.00 KiB (parameters 256.00 KiB, inputs 2.00 KiB), by storages of tensors>"
    assert (repr(memory), kept.numel()) == (said, 512)


def test_what_the_recorder_keeps_to_run_the_steps_again_is_not_counted() -> None:
    def peak(through: bool) -> int:
        model = nn.Linear(64, 64, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        batches = [torch.zeros(1, 64)] * 2
        with session("cpu") as amp, measure_memory(device="cpu", as_cuda=False) as memory:
            if through:
                amp.run(step, batches)
            else:
                for x in batches:
                    step(x)
        return memory.at_peak["parameters"] + memory.at_peak.get("inputs", 0) + memory.at_peak.get("other", 0)

    assert peak(through=True) == peak(through=False) == 64 * 64 * FP32 + 64 * FP32


# Training is unchanged.


def train(steps: int, watch: bool) -> list[torch.Tensor]:
    """Train with dropout and a scaler. Return all resulting tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(Stack([Attention(), Mlp()], reentrant=False), nn.Dropout(0.2), nn.Linear(24, 4))
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=2.0**20)
    losses = []
    with measure_memory(model, optimizer) if watch else contextlib.nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(3, 7, 24)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
    state = [value for one in optimizer.state.values() for value in one.values()]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    scale = torch.tensor(scaler.get_scale())
    return [*losses, *(p.detach() for p in model.parameters()), *grads, *state, scale, torch.get_rng_state()]


def test_results_are_bit_identical() -> None:
    plain, watched = train(20, watch=False), train(20, watch=True)
    assert len(plain) == len(watched)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_gradients_that_torch_computes_otherwise_differ_by_rounding_alone() -> None:
    def gradient(watch: bool) -> torch.Tensor:
        x = torch.linspace(0.5, 1.5, 60).reshape(4, 15).requires_grad_()
        with measure_memory(x) if watch else contextlib.nullcontext():
            (x.cumprod(1).sin().sum() + x.prod(1).sum()).backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(gradient(watch=True), gradient(watch=False))


def everything_patched() -> dict[str, Any]:
    module = torch.nn.modules.module
    return {
        "modes": torch._C._len_torch_dispatch_stack(),
        "functions": torch._C._len_torch_function_stack(),
        "before": list(module._global_forward_pre_hooks),
        "after": list(module._global_forward_hooks),
        "always": list(module._global_forward_hooks_always_called),
        "steps": (list(optimizers._global_optimizer_pre_hooks), list(optimizers._global_optimizer_post_hooks)),
        "warning": getattr(module, "_has_any_global_hook", None),
        "devices": vars(optimizers)["_get_foreach_kernels_supported_devices"],
        "types": (list(optimizers._foreach_supported_types), list(foreach_utils._foreach_supported_types)),
        "apply": nn.Module._apply,
        "device": torch.Tensor.device,
        "to": torch.Tensor.to,
        "cuda": torch.Tensor.cuda,
        "is_available": torch.cuda.is_available,
    }


@pytest.mark.parametrize("make", [measure_memory, estimate_memory])
def test_everything_is_restored_after_an_exception(
    make: Callable[[], contextlib.AbstractContextManager[Memory]],
) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    before = everything_patched()
    with pytest.raises(ZeroDivisionError), make():
        nn.Sequential(Broken())(torch.ones(2))
    assert everything_patched() == before


def test_what_is_measured_is_not_kept_alive() -> None:
    model = Mlp()
    alive = weakref.ref(model)
    with measure_memory(model) as memory:
        model(torch.randn(5, 24)).sum().backward()
    del model
    assert alive() is None
    assert memory.at_peak["parameters"] == (2 * 24 * 56 + 24 + 56) * FP32


def test_a_user_may_catch_what_a_model_raises() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 3:
                raise ValueError
            return self.inner(x)  # type: ignore[no-any-return]

    model = Sometimes()
    with measure_memory(model) as memory:
        with contextlib.suppress(ValueError):
            model(torch.ones(3, 4))
        x = torch.ones(2, 4)
        model(x).sum().backward()
    # Created outside the module, though the module's last call never returned.
    assert at(memory, "forward")["inputs"] == 2 * 4 * FP32


def test_modules_may_be_converted_while_measuring() -> None:
    model = Mlp()
    with measure_memory(model) as memory:
        model.double()
        model(torch.randn(5, 24, dtype=torch.float64)).sum().backward()
    assert at(memory, "forward")["parameters"] == 2 * (2 * 24 * 56 + 24 + 56) * FP32


def test_compiled_models_are_measured_without_a_warning() -> None:
    model, x = Mlp(), torch.randn(5, 24)
    compiled = torch.compile(model, backend="eager")
    with measure_memory(model, x) as memory:
        compiled(x).square().mean().backward()
    assert at(memory, "forward")["activations"] == (56 + 56 + 24) * 5 * FP32 + LOSS


# Estimates on fake tensors.


@of_new_kernels
def test_a_model_far_larger_than_this_machine() -> None:
    layers, width, rows = 10, 16384, 16 * 1024
    inside: dict[str, int] = {}
    with estimate_memory(workspace=0) as memory:
        blocks = [Mlp(width, 4 * width) for _ in range(layers)]
        model = nn.Sequential(*blocks).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(rows, width, device="cuda")).float().square().mean()
                inside = memory.alive()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    count = layers * (8 * width * width + 5 * width)
    assert count > 21_000_000_000
    assert at(memory, "step")["parameters"] == count * FP32
    assert at(memory, "step")["gradients"] == count * FP32
    # The step counts of Adam are on the host.
    assert at(memory, "step")["optimizer state"] == 2 * count * FP32
    assert inside["autocast cache"] == count * FP16
    # foreach, torch's default on CUDA, holds the square roots of all second moments at once. found_inf is the rest.
    assert memory.highest["temporaries"] == count * FP32 + 512
    # A layer keeps its input (the batch was cast for the first), gelu its own, and square the last output in float32.
    # Low-precision weights are kept for the gradients of inputs, which the first layer does not need. The loss, the
    # scaled loss and its gradient take a block each, and the cast of the output is freed.
    kept = layers * (width + 8 * width) * rows * FP16 + rows * width * FP32
    weights = (layers * 8 - 4) * width * width * FP16
    assert at(memory, "forward")["activations"] == kept + weights + 3 * 512
    assert memory.how == "storages of fake tensors, as CUDA would allocate them"


def test_an_estimate_is_what_the_same_step_measures() -> None:
    def step() -> None:
        torch.manual_seed(0)
        model = Stack([Attention(), Mlp()])
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(3, 7, 24)
            model(x).square().mean().backward()
            optimizer.step()

    with measure_memory() as measured:
        step()
    with estimate_memory(cuda=False) as estimated:
        step()
    assert estimated.how == "storages of fake tensors"
    assert estimated.peak == measured.peak
    assert estimated.at_peak == measured.at_peak
    assert estimated.timeline == measured.timeline


@of_new_kernels
def test_estimates_choose_the_kernels_of_cuda() -> None:
    x = torch.Size((2, 4, 64, 16))
    with estimate_memory() as memory:
        q = torch.randn(x, device="cuda", dtype=torch.float16).requires_grad_()
        loss = (
            functional.dropout(functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1, is_causal=True), 0.5)
            .float()
            .sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
    elements = x.numel()
    # The output, its statistics in float32 and dropout's mask of one byte; no 64 by 64 scores, no mask of two bytes.
    assert at(memory, "forward")["activations"] == elements * FP16 + 2 * 4 * 64 * FP32 + elements + 2 * 512


@pytest.mark.parametrize("asked", [False, True], ids=["without weights", "with weights"])
def test_dropout_inside_torchs_own_attention_is_estimated_as_on_cuda(asked: bool) -> None:
    def kept(dropout: float) -> int:
        with estimate_memory(workspace=0) as memory:
            attention = nn.MultiheadAttention(16, 2, dropout=dropout, batch_first=True).cuda()
            q = torch.randn(3, 64, 16, device="cuda", requires_grad=True)
            output, _ = attention(q, q, q, need_weights=asked)
            output.sum().backward()
        return at(memory, "forward")["activations"]

    # The kernel that keeps no scores draws its own mask. Weights that are returned are dropped with a mask of one byte
    # and a copy: 3 batches, 2 heads, 64 by 64 scores in float32. An allocation takes multiples of 512 bytes.
    scores = 3 * 2 * 64 * 64
    assert kept(0.1) - kept(0.0) == ((4 + 1) * scores if asked else 0)


def test_cublas_workspaces_have_a_category_of_their_own() -> None:
    def peak(**options: Any) -> dict[str, int]:
        with estimate_memory(**options) as memory:
            model = nn.Linear(8, 8)
            model(torch.randn(4, 8)).sum().backward()
        return memory.at_peak

    # One for the thread of the forward pass and one for the thread of the backward pass.
    assert peak()["workspace"] == 2 * CUBLAS_WORKSPACE == 17_039_360
    assert peak(workspace="32 MiB")["workspace"] == 64 * 2**20
    assert "workspace" not in peak(workspace=0)
    with estimate_memory() as memory:
        torch.ones(3).add(1)
    assert "workspace" not in memory.at_peak


def test_values_that_are_asked_for() -> None:
    with estimate_memory():
        loss = torch.randn(4).mean()
        assert loss.item() == 1.0
        assert bool(torch.isfinite(loss))
        assert bool(torch.isfinite(torch.randn(4)).all())
        assert not bool(torch.isnan(loss).any())
        with pytest.raises(ValueError, match="measure_memory"):
            torch.nonzero(torch.randn(4))


def test_estimates_convert_modules_and_take_real_batches() -> None:
    batch = torch.ones(4, 8)
    with estimate_memory(workspace=0) as memory:
        model = nn.Linear(8, 8).to("cuda", torch.bfloat16)
        model(batch.to(torch.bfloat16)).sum().backward()
    assert at(memory, "forward")["parameters"] == 512 + 512
    assert batch.sum() == 32
    assert memory.highest["gradients"] == 1024


# Budgets.


def measured() -> Memory:
    model = Stack([Mlp(), Mlp()])
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    with measure_memory(model, optimizer) as memory:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(200, 24)).square().mean().backward()
            optimizer.step()
    return memory


def test_within_budget() -> None:
    memory = measured()
    assert_memory(
        memory,
        peak=memory.peak,
        parameters=memory.highest["parameters"],
        gradients="22 KiB",
        optimizer_state="44 KiB",
        activations="1 MiB",
        inputs="1 MiB",
        temporaries="1 MiB",
        autocast_cache=0,
        workspace=0,
        other=0,
    )
    assert memory.budget == memory.peak


def test_over_budget_says_what_and_what_to_do() -> None:
    memory = measured()
    with pytest.raises(AssertionError) as raised:
        assert_memory(memory, peak="1 GiB", activations="100 KiB")
    activations = 2 * (56 + 56 + 24) * 200 * FP32 + LOSS
    head = f"activations of memory is 212.51 KiB ({activations:,} bytes), over its budget of 100.00 KiB (102,400 bytes)"
    assert str(raised.value).splitlines()[:3] == [
        f"{head} (storages of tensors, on cpu):",
        f"  peak            {format_size(memory.peak):>12}  of at most     1.00 GiB  within",
        "  activations       212.51 KiB  of at most   100.00 KiB  112.51 KiB too much",
    ]
    assert "Most of activations: blocks.0 43.75 KiB, blocks.0.up 43.75 KiB" in str(raised.value)
    assert "torch.utils.checkpoint" in str(raised.value)


def test_over_budget_says_what_would_make_the_peak_lower() -> None:
    memory = measured()
    with pytest.raises(AssertionError) as raised:
        assert_memory(memory, peak="1 KiB")
    head = "What would make the peak lower, told from the recorded step (memory.what_if()):"
    reported = str(raised.value).splitlines()
    low = next(each for each in memory.what_if() if each.kind == "weights")
    assert low.peak is not None
    assert low.saved is not None
    assert (
        f"  {low.how}: {format_size(low.peak)}, {format_size(low.saved)} less" in reported[reported.index(head) + 1 :]
    )


@pytest.mark.parametrize(
    ("limit", "advice"),
    [
        ("parameters", "bfloat16"),
        ("gradients", "set_to_none=True"),
        ("optimizer_state", "less state"),
        ("inputs", "smaller batches"),
        ("temporaries", "fused=True"),
    ],
)
def test_advice_fits_what_is_too_much(limit: str, advice: str) -> None:
    with pytest.raises(AssertionError, match=f"To need less for {limit.replace('_', ' ')}: .*{advice}"):
        assert_memory(measured(), **{limit: 1})


def test_a_peak_is_blamed_on_its_largest_parts() -> None:
    with pytest.raises(AssertionError, match=r"To need less for activations: (.|\n)*To need less for temporaries: "):
        assert_memory(measured(), peak=1)


def test_a_budget_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="'1 gigabyte' is not a size"):
        assert_memory(measured(), peak="1 gigabyte")


@pytest.mark.parametrize("around", ["Tensor.backward", "autograd.backward", "autograd.grad"])
def test_what_a_checkpoint_computes_anew_is_what_the_forward_computed(around: str) -> None:
    """Dropout inside a checkpoint recomputes the same mask, and requested devices stay the same."""

    def part(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * torch.ones(8, device="cuda"), 0.1) * 2

    with estimate_memory() as memory:
        layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            x = torch.randn(4, 8, device="cuda")
            for layer in layers:
                x = checkpoint(part, layer(x), use_reentrant=False)
            loss = x.float().sum()
        if around == "Tensor.backward":
            loss.backward()  # type: ignore[no-untyped-call]
        elif around == "autograd.backward":
            torch.autograd.backward(loss)
        else:
            torch.autograd.grad(loss, list(layers.parameters()))
    assert memory.peak > 0


@pytest.mark.parametrize("around", [torch.Tensor.backward, torch.autograd.backward], ids=["method", "function"])
def test_what_a_checkpoint_computes_anew_while_the_patches_of_a_recorder_stay(
    around: Callable[..., Any], patched_once: None
) -> None:
    """The pytest plugin keeps the patches from its first recording on."""
    with record():
        pass
    with estimate_memory() as memory:
        layer = nn.Linear(8, 8).cuda()
        x = layer(torch.randn(4, 8, device="cuda"))
        hidden = checkpoint(lambda x: functional.dropout(x, 0.1) * 2, x, use_reentrant=False)
        loss = hidden.sum()
        loss.backward() if around is torch.Tensor.backward else torch.autograd.backward(loss)
    assert memory.peak > 0


def test_a_limit_of_a_gpu_that_a_training_did_not_use_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine with a GPU, where a measurement without a model counts the GPU's memory.
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    with measure_memory() as memory:
        torch.ones(1024)
    with pytest.raises(AssertionError, match=r"nothing was allocated on cuda, .* device='cpu'"):
        assert_memory(memory, peak="1 KiB")
    assert_memory(memory)
