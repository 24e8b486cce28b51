"""A recording is neutral: training is bit-identical, torch is restored afterwards, and memory stays bounded."""

# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import random
import shutil
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from marks import shown
from samples import reduced

pytest.importorskip("torch")

import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 as everyone calls it
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import Run, record

#: Result of a trainer: for each step, a digest of all computed values.
Trace = list[str]
Trainer = Callable[[int], Trace]


def assert_silent(run: Run) -> None:
    """Check that there is no finding and no failure of the recorder."""
    assert run.failure is None, f"the recorder failed: {run.failure!r}"
    assert run.findings == [], shown(run.findings)


def recording(model: nn.Module | None = None, *, costly: bool) -> Any:
    """Start a recording at the default level, or with every costly part."""
    return record(model, dtypes=costly, ops=costly, numerics=costly, memory=costly, norms=costly)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def digest(
    loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any = None, *, rng: bool = True
) -> str:
    """Hash every bit of a step: loss, parameters, gradients, buffers, optimizer, scaler, random generators."""
    found = hashlib.sha256()
    tensors = [loss, *model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    if rng:
        tensors.append(torch.get_rng_state())
        found.update(repr(random.getstate()).encode())
    for tensor in tensors:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    found.update(repr([group["lr"] for group in optimizer.param_groups]).encode())
    found.update(repr((model.training, [p.requires_grad for p in model.parameters()])).encode())
    if scaler is not None:
        found.update(repr(scaler.state_dict()).encode())
    return found.hexdigest()


def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)


def half() -> Any:
    return torch.autocast("cpu", dtype=torch.float16)


def dropout_trainer(steps: int) -> Trace:
    """Train with dropout, batch norm, clipping, a schedule and validation, as an ordinary trainer."""
    seeded()
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", growth_interval=20)
    trace = []
    for step in range(steps):
        model.train()
        x, y = torch.randn(16, 8), torch.randint(4, (16,))
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 9:
            scheduler.step()
            model.eval()
            with torch.no_grad(), half():
                model(x)
        trace.append(digest(loss, model, optimizer, scaler))
    return trace


def fused_trainer(steps: int) -> Trace:
    """Train with a fused Adam and some overflowing iterations."""
    seeded()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    trace = []
    for step in range(steps):
        x, y = torch.randn(16, 8), torch.randn(16, 1)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with half():
            loss = F.mse_loss(model(x), 1e30 * y if step % 7 == 3 else y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        trace.append(digest(loss, model, optimizer, scaler))
    return trace


def checkpointing_trainer(steps: int, *, reentrant: bool) -> Trace:
    """Train with activations that are recomputed in the backward pass, with the same dropout."""
    seeded()
    first, second = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2)), nn.Linear(16, 1)
    model = nn.Sequential(first, second)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler = torch.amp.GradScaler("cpu")
    trace = []
    for step in range(steps):
        x, y = torch.randn(16, 8, requires_grad=True), torch.randn(16, 1)
        with half():
            loss = F.mse_loss(second(checkpoint(first, x, use_reentrant=reentrant)), y) / 2
        scaler.scale(loss).backward()
        if step % 2 == 1:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        trace.append(digest(loss, model, optimizer, scaler))
    return trace


def reentrant_trainer(steps: int) -> Trace:
    return checkpointing_trainer(steps, reentrant=True)


def non_reentrant_trainer(steps: int) -> Trace:
    return checkpointing_trainer(steps, reentrant=False)


def adversarial_trainer(steps: int) -> Trace:
    """Train with two optimizers, two losses, and a penalty that is differentiated twice."""
    seeded()
    generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trace = []
    for _ in range(steps):
        real, noise = torch.randn(8, 8), torch.randn(8, 4)
        opt_c.zero_grad()
        points = real.clone().requires_grad_()
        with half():
            fake = generator(noise)
            loss_c = critic(fake.detach()).float().mean() - critic(real).float().mean()
            scores = critic(points).float().sum()
        (grads,) = torch.autograd.grad(scaler.scale(scores), points, create_graph=True)
        penalty = (grads / scaler.get_scale()).square().sum(1).mean()
        scaler.scale(loss_c + penalty).backward()
        scaler.step(opt_c)
        opt_g.zero_grad()
        with half():
            loss_g = -critic(fake).float().mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
        trace += [digest(loss_c, critic, opt_c, scaler), digest(loss_g, generator, opt_g, scaler)]
    return trace


def hooked_trainer(steps: int) -> Trace:
    """Train in bfloat16, with hooks on tensors, modules and optimizer, and edits of the gradients."""
    seeded()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model[2].register_full_backward_hook(lambda module, grad_input, grad_output: None)
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    optimizer.register_step_post_hook(lambda optimizer, args, kwargs: random.shuffle([1, 2, 3]))
    trace = []
    for _ in range(steps):
        x, y = torch.randn(16, 8), torch.randn(16, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            assert p.grad is not None
            p.grad.add_(0.01 * torch.randn_like(p))
        optimizer.step()
        trace.append(digest(loss, model, optimizer))
        model.zero_grad()
    return trace


TRAINERS: dict[str, Trainer] = {
    "dropout": dropout_trainer,
    "fused": fused_trainer,
    "reentrant checkpointing": reentrant_trainer,
    "checkpointing": non_reentrant_trainer,
    "adversarial": adversarial_trainer,
    "hooks": hooked_trainer,
}
every_trainer = pytest.mark.parametrize("name", TRAINERS)


def assert_same(plain: Trace, recorded: Trace) -> None:
    assert len(set(plain)) == len(plain), "the digests must tell one step from another"
    different = [step for step, (a, b) in enumerate(zip(plain, recorded, strict=True)) if a != b]
    assert not different, f"{len(different)} of {len(plain)} steps differ, the first is {different[0]}"


@every_trainer
def test_many_steps_are_the_same_to_the_bit(name: str) -> None:
    steps = reduced(200, 0.2)
    plain = TRAINERS[name](steps)
    with record() as run:
        recorded = TRAINERS[name](steps)
    assert_same(plain, recorded)
    assert run.steps_total >= steps / 2
    assert_silent(run)


@every_trainer
def test_the_costly_parts_change_nothing_either(name: str) -> None:
    plain = TRAINERS[name](12)
    with recording(costly=True) as run:
        recorded = TRAINERS[name](12)
    assert run.failure is None, f"the recorder failed: {run.failure!r}"
    assert_same(plain, recorded)
    assert run.steps_total >= 6


def test_the_costly_parts_on_a_model_change_nothing_either() -> None:
    def train(*, recorded: bool) -> Trace:
        seeded()
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        trace = []
        with recording(model, costly=True) if recorded else contextlib.nullcontext():
            for _ in range(12):
                x, y = torch.randn(16, 8), torch.randn(16, 1)
                optimizer.zero_grad()
                with half():
                    loss = F.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                trace.append(digest(loss, model, optimizer, scaler))
        return trace

    assert_same(train(recorded=False), train(recorded=True))


HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None


def compiled_trainer(steps: int, backend: str) -> Trace:
    """Train a compiled model in an ordinary loop."""
    seeded()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trace = []
    for step in range(steps):
        x, y = torch.randn(16, 8), torch.randn(16, 1)
        optimizer.zero_grad()
        with half():
            loss = F.mse_loss(compiled(x), 1e30 * y if step == 3 else y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        trace.append(digest(loss, model, optimizer, scaler))
    return trace


@pytest.mark.instruction_set
@pytest.mark.filterwarnings("ignore")  # deprecation warnings of the compiler
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("inductor", marks=pytest.mark.skipif(not HAS_COMPILER, reason="inductor needs a C++ compiler")),
    ],
)
def test_a_compiled_model_is_the_same_to_the_bit(backend: str) -> None:
    # With AVX2 vectorization, inductor's code reads uninitialized memory: two plain runs differ (torch 2.13).
    with inductor_config.patch({"cpp.simdlen": 1}):
        torch._dynamo.reset()
        plain = compiled_trainer(12, backend)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        with record() as run:
            recorded = compiled_trainer(12, backend)
    breaks = dict(torch._dynamo.utils.counters["graph_break"])
    torch._dynamo.reset()
    assert_same(plain, recorded)
    assert not breaks, "the recorder must not break the graph"
    assert [step.skipped for step in run.steps] == [step == 3 for step in range(12)]
    assert_silent(run)


class Layers(nn.Module):
    """A module of a program: torch compiles it by its forward, and a module of torch by a function around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.first(x).relu()
        result: Tensor = self.second(hidden)
        return result


def compile_in_place(model: nn.Module, **options: Any) -> nn.Module:
    model.compile(**options)
    return model


def compile_forward(model: Any, **options: Any) -> Any:
    model.forward = torch.compile(model.forward, **options)
    return model


def compile_around(model: nn.Module, **options: Any) -> Any:
    return torch.compile(lambda x: model(x) * 2, **options)


def compile_first_layer(model: Layers, **options: Any) -> Layers:
    model.first = torch.compile(model.first, **options)  # type: ignore[assignment]
    return model


COMPILED: dict[str, Callable[..., Any]] = {
    "a module of the program": lambda **options: torch.compile(Layers(), **options),
    "a module of torch": lambda **options: torch.compile(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), **options),
    "a module in place": lambda **options: compile_in_place(Layers(), **options),
    "a forward": lambda **options: compile_forward(Layers(), **options),
    "a part of a module": lambda **options: compile_first_layer(Layers(), **options),
    "a function around a module": lambda **options: compile_around(Layers(), **options),
}


@pytest.mark.filterwarnings("ignore")  # deprecation warnings of the compiler
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_what_is_compiled_is_compiled_inside_of_a_recording(make: Callable[..., Any]) -> None:
    sizes: list[int] = []

    def note_size(graph: Any, inputs: object) -> Any:
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    def run_compiled() -> list[int]:
        torch._dynamo.reset()
        sizes.clear()
        make(backend=note_size, fullgraph=True)(torch.ones(2, 8)).sum().backward()
        return [*sizes]

    plain = run_compiled()
    with record() as run:
        recorded = run_compiled()
    torch._dynamo.reset()
    assert run.failure is None
    assert (len(plain), recorded) == (1, plain)


def compiled_parts_trainer(steps: int) -> Trace:
    """Train with compiled code that switches autocast, that leaves a region, and that runs outside of modules."""
    seeded()
    first, second = nn.Linear(8, 16), nn.Linear(16, 1)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def island(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.float() @ second.weight.float().T

    @torch.compile(backend="aot_eager")
    def leaves(x: Tensor) -> Tensor:
        with half():
            x = first(x)
            torch._dynamo.graph_break()
            return x.relu() * 2

    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trace = []
    for _ in range(steps):
        x, y = torch.randn(16, 8), torch.randn(16, 1)
        optimizer.zero_grad()
        with half():
            loss = F.mse_loss(island(leaves(x)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        trace.append(digest(loss, first, optimizer, scaler))
    return trace


def compiled_step_trainer(steps: int) -> Trace:
    """Train by one compiled function for the whole step, with region, scaler and optimizer."""
    seeded()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    @torch.compile(backend="aot_eager")
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return [digest(step(torch.randn(16, 8), torch.randn(16, 1)), model, optimizer, scaler) for _ in range(steps)]


@pytest.mark.filterwarnings("ignore")  # deprecation warnings of the compiler
@pytest.mark.parametrize(
    "trainer", [pytest.param(compiled_parts_trainer, marks=pytest.mark.exhaustive), compiled_step_trainer]
)
def test_compiled_functions_are_the_same_to_the_bit(trainer: Trainer) -> None:
    torch._dynamo.reset()
    plain = trainer(6)
    torch._dynamo.reset()
    with record() as run:
        recorded = trainer(6)
    torch._dynamo.reset()
    assert_same(plain, recorded)
    assert [step.skipped for step in run.steps] == [False] * 6
    assert_silent(run)


def thread_trainer(steps: int, seed: int) -> Trace:
    """Train without the generators of the process, which threads share."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20)
    trace = []
    for step in range(steps):
        x, y = torch.randn(16, 8, generator=generator), torch.randn(16, 1, generator=generator)
        optimizer.zero_grad()
        with half():
            loss = F.mse_loss(model(x), 1e30 * y if step % 50 == seed else y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        trace.append(digest(loss, model, optimizer, scaler, rng=False))
    return trace


def in_threads(*targets: Callable[[], None]) -> None:
    """Run functions in parallel threads and raise their exceptions."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 handed to the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_threads_that_each_record_themselves() -> None:
    plain = {seed: thread_trainer(200, seed) for seed in (1, 2)}
    recorded: dict[int, Trace] = {}
    runs: dict[int, Any] = {}

    def train(seed: int) -> None:
        with record() as run:
            recorded[seed] = thread_trainer(200, seed)
        runs[seed] = run

    in_threads(lambda: train(1), lambda: train(2))
    for seed in (1, 2):
        assert_same(plain[seed], recorded[seed])
        assert runs[seed].steps_total == 200
        assert [step.index for step in runs[seed].steps if step.skipped] == [seed + 50 * k for k in range(4)]
        assert_silent(runs[seed])


def test_a_recording_of_a_thread_ignores_other_threads() -> None:
    started, done = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def careful() -> None:
        with record() as run:
            started.set()
            assert done.wait(60)
            seen["trace"] = thread_trainer(5, 1)
        seen["careful"] = run

    def careless() -> None:
        assert started.wait(60)
        try:
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            optimizer.step()
        finally:
            done.set()

    in_threads(careful, careless)
    assert seen["careful"].steps_total == 5
    assert_silent(seen["careful"])


# torch is restored.

WATCHED = [
    "torch",
    "torch._C._nn",
    "torch.amp",
    "torch.amp.autocast_mode",
    "torch.amp.grad_scaler",
    "torch.autograd",
    "torch.autograd.graph",
    "torch.cpu.amp",
    "torch.cpu.amp.grad_scaler",
    "torch.cuda.amp",
    "torch.cuda.amp.grad_scaler",
    "torch.nn.functional",
    "torch.nn.modules.module",
    "torch.nn.parameter",
    "torch.nn.utils",
    "torch.nn.utils.clip_grad",
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.optim.optimizer",
    "torch.overrides",
    "torch.serialization",
    "torch.utils._python_dispatch",
    "torch.utils.checkpoint",
]


def watched() -> dict[str, Any]:
    """Return the watched modules of torch, and every torch class in them."""
    found: dict[str, Any] = {"torch._C.TensorBase": torch._C.TensorBase}
    for name in WATCHED:
        module = importlib.import_module(name)
        found[name] = module
        for key, value in vars(module).items():
            if isinstance(value, type) and value.__module__.startswith("torch"):
                found[f"{name}.{key}"] = value
    for name in ("SGD", "Adam", "AdamW"):
        found[f"torch.optim.{name}"] = getattr(torch.optim, name)
    return found


def snapshot() -> dict[str, Any]:
    """Return every attribute of the watched objects, and other state of torch."""
    found: dict[str, Any] = {}
    for name, holder in watched().items():
        for key, value in vars(holder).items():
            # A submodule that is imported meanwhile is not a patch, and the id of the next hook is not a hook.
            if isinstance(value, types.ModuleType) or key == "next_id":
                continue
            found[f"{name}.{key}"] = value
            if "_global_" in key and hasattr(value, "items"):
                found[f"{name}.{key}, its hooks"] = tuple(value.items())
    found["function modes"] = len(torch.overrides._get_current_function_mode_stack())
    dispatch = importlib.import_module("torch.utils._python_dispatch")
    found["dispatch modes"] = len(dispatch._get_current_dispatch_mode_stack())
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.5
    found["saved tensor hooks"] = top(True) if top is not None else None
    found["autocast"] = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    found["autocast cache"] = torch.is_autocast_cache_enabled()
    found["grad mode"] = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled())
    found["default dtype"] = torch.get_default_dtype()
    found["python"] = (sys.gettrace(), sys.getprofile(), sys.excepthook, threading.excepthook, sys.displayhook)
    found["warning filters"] = tuple(warnings.filters)
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    simple = (bool, int, float, str, tuple)
    missing = object()
    return sorted(
        key
        for key in before.keys() | after.keys()
        if (a := before.get(key, missing)) is not (b := after.get(key, missing))
        and not (isinstance(a, simple) and isinstance(b, simple) and a == b)
    )


class Stop(Exception):
    """The exception of a recorded program."""


def work() -> tuple[nn.Sequential, torch.optim.Optimizer, torch.amp.GradScaler, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**8), torch.randn(4, 8)


def one_step() -> None:
    model, optimizer, scaler, x = work()
    with half():
        loss = model(x).float().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def ends() -> None:
    one_step()


def stops_after_a_step() -> None:
    one_step()
    raise Stop


def stops_inside_a_region() -> None:
    model, _, _, x = work()
    with half():
        model(x)
        raise Stop


def stops_inside_forward() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise Stop

    with half():
        nn.Sequential(nn.Linear(8, 8), Failing())(torch.randn(4, 8))


def stops_inside_backward() -> None:
    model, _, scaler, x = work()

    def stop(gradient: Tensor) -> None:
        raise Stop

    with half():
        hidden = model[0](x)
    hidden.register_hook(stop)
    scaler.scale(model[1](hidden.float()).mean()).backward()


def stops_inside_a_step() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise Stop

    model, _, scaler, x = work()
    optimizer = Failing(model.parameters(), lr=0.01)
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)


def stops_inside_the_scaler() -> None:
    model, optimizer, scaler, x = work()
    scaler.scale(model(x).mean()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as error:
        raise Stop from error


def is_interrupted() -> None:
    one_step()
    raise KeyboardInterrupt


def exits() -> None:
    one_step()
    raise SystemExit(3)


ENDINGS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        ends,
        stops_after_a_step,
        stops_inside_a_region,
        stops_inside_forward,
        stops_inside_backward,
        stops_inside_a_step,
        stops_inside_the_scaler,
        is_interrupted,
        exits,
    )
}


@pytest.mark.parametrize("costly", [False, True], ids=["default", "everything"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_torch_is_left_as_it_was_found(ending: str, costly: bool) -> None:
    with contextlib.suppress(Stop, KeyboardInterrupt, SystemExit):
        ENDINGS[ending]()
    torch.clear_autocast_cache()
    before = snapshot()
    with contextlib.suppress(Stop, KeyboardInterrupt, SystemExit), recording(costly=costly):
        during = snapshot()
        ENDINGS[ending]()
    assert differences(before, during), "nothing was patched, so this test sees nothing"
    assert differences(before, snapshot()) == []


@pytest.mark.parametrize("costly", [False, True], ids=["default", "everything"])
@pytest.mark.parametrize("has_dry_run", [False, True])
def test_modules_whose_first_forward_pass_creates_their_weights(costly: bool, has_dry_run: bool) -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(4))
        if has_dry_run:
            with torch.no_grad():
                model(torch.ones(4, 2, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for _ in range(3):
            optimizer.zero_grad()
            with half():
                loss = model(torch.randn(4, 2, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [tensor.detach().clone() for tensor in model.state_dict().values()]

    expected = train()
    with recording(costly=costly) as run:
        trained = train()
    assert_silent(run)
    assert all(map(torch.equal, trained, expected))


@pytest.mark.parametrize("costly", [False, True], ids=["default", "everything"])
def test_objects_of_the_program_are_left_as_they_were_found(costly: bool) -> None:
    model, optimizer, scaler, x = work()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)

    def hooks() -> list[int]:
        counts = [
            len(value)
            for module in model.modules()
            for key, value in vars(module).items()
            if key.endswith("_hooks") and isinstance(value, dict)
        ]
        for p in model.parameters():
            counts += [len(p._backward_hooks or {}), len(getattr(p, "_post_accumulate_grad_hooks", None) or {})]
        return [*counts, len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)]

    def names() -> list[list[str]]:
        objects: Iterable[Any] = (model, optimizer, scaler, scheduler, *model.modules(), *model.parameters())
        return [sorted(vars(each)) for each in objects]

    def step() -> None:
        optimizer.zero_grad()
        with half():
            loss = model(x).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

    step()
    before = (hooks(), names(), [type(each) for each in (model, optimizer, scaler, scheduler)])
    with contextlib.suppress(Stop), recording(model, costly=costly):
        step()
        raise Stop
    assert (hooks(), names(), [type(each) for each in (model, optimizer, scaler, scheduler)]) == before


def test_recordings_inside_each_other() -> None:
    before = snapshot()
    with record() as outer:
        one_step()
        with contextlib.suppress(Stop), record() as inner:
            one_step()
            raise Stop
        one_step()
    assert differences(before, snapshot()) == []
    assert (outer.steps_total, inner.steps_total) == (3, 1)
    assert outer.findings == [] and inner.findings == []


def test_a_mistake_is_known_to_every_recording_it_happens_in() -> None:
    with record() as outer:
        with record() as inner:
            model, optimizer, scaler, x = work()
            scaler.scale(model(x).mean()).backward()
            optimizer.step()
        with record() as later:
            one_step()
    assert [finding.code for finding in outer.findings] == ["AMP204"]
    assert [finding.code for finding in inner.findings] == ["AMP204"]
    assert inner.findings[0].line == outer.findings[0].line
    assert later.findings == []


def test_threads_that_do_not_end_in_the_order_in_which_they_began() -> None:
    before = snapshot()
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    totals: dict[str, int] = {}

    def first() -> None:
        with record() as run:
            first_in.set()
            assert second_in.wait(60)
            one_step()
        totals["first"] = run.steps_total
        first_out.set()

    def second() -> None:
        assert first_in.wait(60)
        with record() as run:
            second_in.set()
            assert first_out.wait(60)
            one_step()
            one_step()
        totals["second"] = run.steps_total

    in_threads(first, second)
    assert totals == {"first": 1, "second": 2}
    assert differences(before, snapshot()) == []


def test_an_exception_of_the_program_is_not_changed() -> None:
    error = Stop("as it was raised")
    with pytest.raises(Stop) as caught, record():
        raise error
    assert caught.value is error
    assert error.__cause__ is None and error.__context__ is None
    assert error.args == ("as it was raised",)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda scaler, optimizer: scaler.update(1.0, 2.0),
        lambda scaler, optimizer: scaler.unscale_(),
        lambda scaler, optimizer: scaler.step(),
        lambda scaler, optimizer: scaler.get_scale(1),
        lambda scaler, optimizer: scaler.load_state_dict(),
        lambda scaler, optimizer: optimizer.zero_grad(1, 2, 3),
        lambda scaler, optimizer: optimizer.state_dict(1),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_the_words_of_torch(wrong: Callable[[Any, Any], object]) -> None:
    _, optimizer, scaler, _ = work()
    with pytest.raises(TypeError) as plain:
        wrong(scaler, optimizer)
    with record() as run, pytest.raises(TypeError) as recorded:
        wrong(scaler, optimizer)
    assert str(recorded.value) == str(plain.value)
    assert_silent(run)
    assert run.findings == []


def test_torch_is_left_as_it_was_found_where_patching_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def patches() -> object:
            assert differences(before, snapshot()), "nothing was patched before this"
            raise Stop("a torch that is other than it was thought")

    attach = importlib.import_module("pytest_amp_check.runtime.record.attach")
    monkeypatch.setattr(attach, "TABLES", (*attach.TABLES, Broken))
    before = snapshot()
    with pytest.raises(Stop), record():
        pass
    assert differences(before, snapshot()) == []


# Memory.


def held() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.long
@pytest.mark.parametrize(
    "mistaken", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["right", "mistaken"]
)
def test_what_a_run_holds_does_not_grow(mistaken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = reduced(2_000, 0.5)
    # A long run drops most of its steps. The lower limit makes that begin early.
    monkeypatch.setattr("pytest_amp_check.runtime.record.steps.KEPT", steps // 4)
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=50)
    x, inf = torch.ones(1, 1), torch.full((1, 1), float("inf"))
    counts = []
    with record() as run:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            with half():
                # The scale moves up and down all the time.
                loss = model(inf if step % 75 == 0 else x).float().sum()
            scaler.scale(loss).backward()
            if mistaken:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            if step % (steps // 2) == 0:
                counts.append(held())
    assert run.failure is None
    assert run.steps_total == steps
    assert len(run.steps) <= steps // 4
    assert len(run.scale_history) > steps // 40
    assert {finding.code for finding in run.findings} == ({"AMP201", "AMP802"} if mistaken else {"AMP802"})
    # A leak of one object per step would leave half as many as there are steps.
    assert counts[1] - counts[0] < steps // 4


def test_a_run_does_not_keep_what_it_saw_alive() -> None:
    def train() -> list[weakref.ref[Any]]:
        model, optimizer, scaler, x = work()
        with half():
            loss = model(x).float().mean()
        scaler.scale(loss).backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        norm = gradient.norm()
        scaler.step(optimizer)
        scaler.update()
        return [weakref.ref(each) for each in (model, *model.parameters(), optimizer, scaler, loss, norm)]

    seen: list[weakref.ref[Any]] = []
    with record() as run:
        for _ in range(3):
            seen += train()
    gc.collect()
    assert run.steps_total == 3
    alive = [each for reference in seen if (each := reference()) is not None]
    assert not alive, f"the run keeps {[type(each).__name__ for each in alive]} alive"


ONES = torch.ones(2)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda t: t.add_(x2=ONES), id="add_ by another name"),
        pytest.param(lambda t: t.add_(other=2, alpha=3), id="add_ by name"),
        pytest.param(lambda t: t.add_(2, ONES), id="add_ in the old order"),
        pytest.param(lambda t: t.add_(), id="add_ of nothing"),
        pytest.param(lambda t: t.add_(ONES, beta=2), id="add_ with what it does not take"),
        pytest.param(lambda t: t.mul_(x2=ONES), id="mul_ by another name"),
        pytest.param(lambda t: t.mul_(), id="mul_ of nothing"),
        pytest.param(lambda t: t.lerp_(end=ONES, weight=0.5), id="lerp_ by name"),
        pytest.param(lambda t: t.lerp_(ONES), id="lerp_ without a weight"),
        pytest.param(lambda t: t.addcmul_(tensor1=ONES, tensor2=ONES, value=2), id="addcmul_ by name"),
        pytest.param(lambda t: t.addcmul_(2, ONES, ONES), id="addcmul_ in the old order"),
        pytest.param(lambda t: t.addcdiv_(ONES, tensor2=ONES), id="addcdiv_ half by name"),
    ],
)
@pytest.mark.filterwarnings("ignore:This overload of:UserWarning")
def test_an_edit_in_place_is_written_in_any_way_that_torch_takes(edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def outcome() -> object:
        try:
            return edit(torch.full((2,), 3.0)).tolist()
        except TypeError as error:
            return str(error)

    expected = outcome()
    with record(nn.Linear(2, 2)):
        assert outcome() == expected
