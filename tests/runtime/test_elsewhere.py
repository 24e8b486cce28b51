"""Findings of a run about shards, threads and traces, and code that a run leaves alone."""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - needs torch, as all below do

from pytest_amp_check import record  # noqa: E402
from pytest_amp_check.runtime.ranks.rank_reports import make_rank_report  # noqa: E402

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy  # noqa: E402
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._pytree import tree_map  # noqa: E402


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Create one process of a group of two. The fake backend answers every request at once."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def shard(**how: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return FullyShardedDataParallel(net, device_id=torch.device("cpu"), **how)


def codes_of_clip(model: Any, clip: Callable[[], object]) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        model(torch.randn(4, 8)).square().mean().backward()
        clip()
        optimizer.step()
    return [finding.code for finding in run.findings]


def codes_of_step(model: Any, scaler: Any, *, fused: bool = False) -> list[str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    with record() as run:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.zeros(4, 2))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [finding.code for finding in run.findings]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("original", [False, True])
def test_shards_are_known_whatever_their_parameters_look_like(*, original: bool) -> None:
    model = shard(use_orig_params=original)
    # torch 2.4 has consumed a generator before the recorder sees it: in a first step, its content is unknown.
    given = model.parameters if hasattr(nn.utils, "get_total_norm") else lambda: list(model.parameters())
    assert codes_of_clip(model, lambda: nn.utils.clip_grad_norm_(given(), 0.1)) == ["AMP603"]
    assert codes_of_step(model, torch.amp.GradScaler("cpu", init_scale=256.0)) == ["AMP602"]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.skipif(not hasattr(nn.utils, "get_total_norm"), reason="torch 2.4 has consumed the generator before")
@pytest.mark.parametrize(
    ("clip", "remedy"),
    [
        (lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1), "`net.clip_grad_norm_(0.1)`"),
        (lambda net: nn.utils.clip_grad_norm_(max_norm=0.5, parameters=net.parameters()), "`net.clip_grad_norm_(0.5)`"),
        # Other expressions name no module.
        (lambda net: nn.utils.clip_grad_norm_([*net.parameters()], 0.1), "`model.clip_grad_norm_(0.1)`"),
        (lambda net: nn.utils.clip_grad_norm_(iter(net.parameters()), 0.1), "`model.clip_grad_norm_(0.1)`"),
        (lambda net: nn.utils.clip_grad_norm_(dict(net.named_parameters()).values(), 1), "`model.clip_grad_norm_(1)`"),
    ],
)
def test_the_clip_of_all_shards_is_named(clip: Callable[[Any], object], remedy: str) -> None:
    model = shard()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        model(torch.randn(4, 8)).square().mean().backward()
        clip(model)
        optimizer.step()
    (finding,) = run.findings
    assert finding.code == "AMP603"
    assert f"write {remedy}" in finding.message


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.filterwarnings("ignore:.*NO_SHARD:FutureWarning")
@pytest.mark.parametrize("original", [False, True])
def test_what_is_not_sharded_is_left_alone(*, original: bool) -> None:
    model = shard(use_orig_params=original, sharding_strategy=ShardingStrategy.NO_SHARD)
    assert codes_of_clip(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)) == []
    assert codes_of_step(model, torch.amp.GradScaler("cpu", init_scale=256.0)) == []


@pytest.mark.usefixtures("one_rank")
def test_one_rank_holds_everything() -> None:
    with pytest.warns(UserWarning, match="NO_SHARD"):
        model = shard()
    assert codes_of_clip(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)) == []


@pytest.mark.usefixtures("two_ranks")
def test_what_sees_all_shards_is_left_alone() -> None:
    model = shard()
    assert codes_of_clip(model, lambda: model.clip_grad_norm_(0.1)) == []
    assert codes_of_clip(model, lambda: nn.utils.clip_grad_value_(model.parameters(), 0.1)) == []
    assert codes_of_step(model, ShardedGradScaler("cpu", init_scale=256.0)) == []
    assert codes_of_step(model, ShardedGradScaler("cpu", init_scale=256.0), fused=True) == ["AMP602"]


def codes_of_policy(dtype: Any, scaler: Any, region: Any) -> list[tuple[str, int]]:
    """Return the codes for modules sharded by a policy, each with its line relative to the loss."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for module in (model[0], model):
        fsdp.fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            with region:
                loss = model(torch.randn(4, 8)).float().square().mean()
            first = sys._getframe().f_lineno
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
    assert run.failure is None
    return [(finding.code, finding.line - first) for finding in run.findings]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="fully_shard came with torch 2.6")
def test_float16_by_a_policy_needs_a_scaler() -> None:
    bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16)
    assert codes_of_policy(torch.float16, None, nullcontext()) == [("AMP502", 1)]
    assert codes_of_policy(torch.float16, torch.amp.GradScaler("cpu", init_scale=256.0), nullcontext()) == []
    assert codes_of_policy(torch.bfloat16, None, nullcontext()) == []
    assert codes_of_policy(None, None, nullcontext()) == []
    assert codes_of_policy(torch.float16, None, bfloat16) == []


LAYER = nn.Linear(8, 2)
X = torch.randn(4, 8)


def run_layer() -> None:
    LAYER(X)


def run_in_region() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        LAYER(X)


def run_in_float32() -> None:
    with torch.autocast("cpu", enabled=False):
        LAYER(X)


def run_after_region() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.ones(1)
    LAYER(X)


def run_half() -> None:
    LAYER.__class__(8, 2, dtype=torch.bfloat16)(X.bfloat16())


def run_activation() -> None:
    nn.ReLU()(X)


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def codes_of_thread(work: Callable[[], None], *, enabled: bool = True) -> list[str]:
    with record() as run, torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        in_thread(work)
    return [finding.code for finding in run.findings]


def test_a_thread_is_reported_where_its_model_runs_without_the_region() -> None:
    assert codes_of_thread(run_layer) == ["AMP606"]
    assert codes_of_thread(run_in_region) == []
    assert codes_of_thread(run_in_float32) == []
    # The thread itself decides where it runs in autocast.
    assert codes_of_thread(run_after_region) == []
    # Autocast would change nothing.
    assert codes_of_thread(run_half) == []
    assert codes_of_thread(run_activation) == []
    assert codes_of_thread(lambda: None) == []
    assert codes_of_thread(run_layer, enabled=False) == []


@pytest.mark.parametrize(("starter", "codes"), [("program.py", ["AMP606"]), (torch.__file__, [])])
def test_a_thread_that_torch_starts_is_not_the_program_s(starter: str, codes: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile("def start(thread):\n    thread.start()", starter, "exec"), names)  # noqa: S102 - ours
    with record() as run, torch.autocast("cpu", dtype=torch.bfloat16):
        thread = threading.Thread(target=run_layer)
        names["start"](thread)
        thread.join()
    assert run.failure is None
    assert [finding.code for finding in run.findings] == codes


def test_a_thread_that_outlives_the_region_is_not_reported() -> None:
    go = threading.Event()

    def later() -> None:
        go.wait()
        LAYER(X)

    with record() as run:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            thread = threading.Thread(target=later)
            thread.start()
        go.set()
        thread.join()
    assert run.findings == []


def test_a_pool_is_reported_for_work_that_is_submitted_in_a_region() -> None:
    with record() as run, ThreadPoolExecutor(1) as pool:
        pool.submit(run_layer).result()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pool.submit(run_layer).result()
        pool.submit(run_layer).result()
    assert [finding.code for finding in run.findings] == ["AMP606"]


def test_a_pool_is_reported_for_items_that_it_maps_in_a_region() -> None:
    with record() as run, ThreadPoolExecutor(1) as pool:
        assert list(pool.map(len, ["outside"])) == [7]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert [result.dtype for result in pool.map(LAYER, [X, X])] == [torch.float32] * 2
    assert (run.failure, [finding.code for finding in run.findings]) == (None, ["AMP606"])


@pytest.mark.parametrize("is_pool", [False, True])
def test_work_of_a_function_that_torch_calls_is_the_program_s(is_pool: bool) -> None:
    with record() as run, ThreadPoolExecutor(1) as pool, torch.autocast("cpu", dtype=torch.bfloat16):
        start = (lambda work: pool.submit(work).result()) if is_pool else in_thread
        tree_map(start, [run_layer])
    assert (run.failure, [finding.code for finding in run.findings]) == (None, ["AMP606"])


def test_work_that_begins_after_its_region_has_no_hook() -> None:
    may_run = threading.Event()

    def count_hooks() -> int:
        return len(torch.nn.modules.module._global_forward_pre_hooks)

    before = count_hooks()
    with record() as run, ThreadPoolExecutor(1) as pool:
        first = pool.submit(may_run.wait, 60)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            second = pool.submit(count_hooks)
        may_run.set()
        assert first.result()
        assert second.result() == before
    assert (run.failure, run.findings) == (None, [])


@pytest.mark.parametrize("enabled", [True, False])
def test_work_of_a_region_that_runs_behind_an_inner_region(*, enabled: bool) -> None:
    may_run = threading.Event()

    def run_later() -> None:
        may_run.wait(60)
        run_layer()

    with record() as run, ThreadPoolExecutor(1) as pool, torch.autocast("cpu", dtype=torch.bfloat16):
        future = pool.submit(run_later)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            pass
        may_run.set()
        future.result()
    assert run.failure is None
    assert [finding.code for finding in run.findings] == ["AMP606"]


def test_threads_give_what_they_give_without_a_recording() -> None:
    seen: list[object] = []
    before = dict(torch.nn.modules.module._global_forward_pre_hooks)
    with record(), torch.autocast("cpu", dtype=torch.bfloat16), ThreadPoolExecutor(1) as pool:
        assert pool.submit(max, 3, 4).result() == 4
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
        in_thread(lambda: seen.append(LAYER(X).dtype))
    assert seen == [torch.float32]
    assert before == torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("cache", [True, False])
def test_a_trace_is_reported_where_torch_refuses_it(*, cache: bool) -> None:
    refused = pytest.raises(RuntimeError, match="requires grad as a constant") if cache else nullcontext()
    with record() as run, torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache), refused:
        torch.jit.trace(LAYER, X)
    assert [finding.code for finding in run.findings] == (["AMP605"] if cache else [])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_that_fails_for_another_reason() -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            raise RuntimeError("another reason")

    refused = pytest.raises(RuntimeError, match="another reason")
    with record() as run, torch.autocast("cpu", dtype=torch.bfloat16), refused:
        torch.jit.trace(Failing(), X)
    assert (run.failure, run.findings) == (None, [])


def codes_of_local_sgd(*, own: bool, warm: int = 0, skip: int = 2) -> list[tuple[str, str]]:
    """Return the findings if weights are averaged over processes and the step of one iteration is skipped."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its other optimizers are scripted
        from torch.distributed.optim import PostLocalSGDOptimizer

    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    averager = PeriodicModelAverager(period=2, warmup_steps=warm)
    local = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = PostLocalSGDOptimizer(local, averager) if own else local
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with record() as run:
        for index in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                target = torch.full((4, 2), 1e30 if index == skip else 0.0)
                loss = nn.functional.mse_loss(model(torch.randn(4, 8)), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if not own:
                averager.average_parameters(model.parameters())
            scaler.update()
    assert run.failure is None
    assert run.skipped_total == (skip < 4)
    return [(finding.code, finding.message) for finding in run.findings]


@pytest.mark.usefixtures("two_ranks")
def test_weights_that_are_averaged_over_processes_after_a_skipped_step() -> None:
    ((code, message),) = codes_of_local_sgd(own=False)
    assert code == "AMP403"
    assert message.startswith("`averager.average_parameters` averages weights over processes")
    # Until the averaging begins, all processes have the same gradients, and skip together.
    assert codes_of_local_sgd(own=False, warm=4) == codes_of_local_sgd(own=False, warm=3) == []
    assert [code for code, _ in codes_of_local_sgd(own=False, warm=2)] == ["AMP403"]
    assert codes_of_local_sgd(own=False, skip=4) == []


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("skip", [0, 2])
def test_a_skipped_step_leaves_out_what_post_local_sgd_averages(skip: int) -> None:
    ((code, message),) = codes_of_local_sgd(own=True, skip=skip)
    assert code == "AMP403"
    assert message.startswith("`scaler.step` was skipped, so this process missed the weight average of `optimizer`")
    # A skipped step is not counted as a step of the warm-up.
    assert (
        codes_of_local_sgd(own=True, warm=4, skip=skip) == codes_of_local_sgd(own=True, warm=skip + 1, skip=skip) == []
    )
    assert [code for code, _ in codes_of_local_sgd(own=True, warm=skip, skip=skip)] == ["AMP403"]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("own", [False, True])
def test_weights_of_one_process_are_averaged_with_no_other(*, own: bool) -> None:
    assert codes_of_local_sgd(own=own) == []


def is_in_group(*, destroys: bool = False) -> bool:
    """Return True if a run that steps a scaler reports a group of processes."""
    model = nn.Linear(8, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with record() as run:
        scaler.scale(model(torch.ones(4, 8)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if destroys:
            dist.destroy_process_group()
    assert run.failure is None
    return make_rank_report(run, 0).in_process_group


@pytest.mark.usefixtures("two_ranks")
def test_a_step_in_a_group_of_two_processes() -> None:
    assert is_in_group()


def test_a_step_in_a_group_that_is_destroyed_before_the_end() -> None:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    assert is_in_group(destroys=True)


@pytest.mark.usefixtures("one_rank")
def test_a_step_in_a_group_of_one_process() -> None:
    assert not is_in_group()


def test_a_step_without_a_group() -> None:
    assert not is_in_group()


def test_a_scaler_whose_class_is_imported_while_a_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch.distributed.fsdp.sharded_grad_scaler"
    monkeypatch.setattr(name, sys.modules[name])
    monkeypatch.delitem(sys.modules, name)
    with record() as run:
        importlib.import_module(name).ShardedGradScaler("cpu", init_scale=-1.0)
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["scaler:zero-scale"]


@pytest.mark.usefixtures("one_rank")
def test_the_calls_of_a_scaler_whose_class_is_imported_while_a_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch.distributed.fsdp.sharded_grad_scaler"
    monkeypatch.setattr(name, sys.modules[name])
    monkeypatch.delitem(sys.modules, name)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        scaler = importlib.import_module(name).ShardedGradScaler("cpu", init_scale=256.0)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(X).float().square().mean()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["clip@scaled"]


@pytest.mark.usefixtures("one_rank")
def test_a_class_of_scalers_that_is_imported_while_a_run_is_recorded_is_patched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "torch.distributed.fsdp.sharded_grad_scaler"
    monkeypatch.setattr(name, sys.modules[name])
    monkeypatch.delitem(sys.modules, name)
    optimizer = torch.optim.SGD(LAYER.parameters(), lr=0.0)
    with record() as run:
        imported = importlib.import_module(name).ShardedGradScaler
        for _ in range(2):
            scaler = imported("cpu", init_scale=256.0)
            for _ in range(2):
                optimizer.zero_grad()
                scaler.scale(LAYER(X).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer = torch.optim.SGD(LAYER.parameters(), lr=0.0)
    assert run.failure is None
    assert [(step.index, step.scale_before) for step in run.steps] == [(i, 256.0) for i in range(4)]
    assert run.steps_total == 4
    assert imported.step.__code__.co_name == "step"


@pytest.mark.parametrize(("in_backward", "has_ended"), [(True, False), (False, True)])
def test_an_exception_of_torch_in_a_backward_ends_no_rank_alone(in_backward: bool, has_ended: bool) -> None:
    weight = nn.Parameter(torch.ones(2))
    recording = record()
    with pytest.raises(RuntimeError, match="second time" if in_backward else "must match"), recording as run:  # noqa: PT012
        loss = weight.square().sum()
        for number in range(2):
            if number == 1 and not in_backward:
                torch.add(weight, torch.ones(3))
            torch.autograd.backward(loss)
    assert make_rank_report(run, 0).ended_by_exception is has_ended
