"""Several ranks, each a recorded process: their common findings, and bounded waiting for each rank."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import rank_programs as programs
import shard_programs
from rank_programs import source_line

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.runtime.ranks.distributed import RankFailed, distributed
from pytest_amp_check.runtime.ranks.rank_reports import has_ended
from pytest_amp_check.runtime.ranks.scripts import find_launched_rank
from pytest_amp_check.runtime.run import record
from pytest_amp_check.runtime.session import Session

pytestmark = pytest.mark.skipif("not __import__('torch').distributed.is_gloo_available()")
STEP, BACKWARD = "scaler.step(optimizer)", "scaler.scale(loss).backward()"


def place(line: str, module: ModuleType = programs) -> str:
    assert module.__file__ is not None
    return f"{module.__name__}.py:{source_line(line, file=module.__file__)}"


def found(findings: list[Finding]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(f.code, f"{f.filename.rpartition('/')[2]}:{f.line}", f.ranks) for f in findings]


@pytest.mark.parametrize(
    ("program", "code", "where", "subject"),
    [
        (
            programs.compressed,
            "AMP604",
            place("model.register_comm_hook(None, default_hooks.fp16_compress_hook)"),
            "model.register_comm_hook",
        ),
        (shard_programs.sharded, "AMP602", place(STEP), "scaler"),
        (
            shard_programs.clipped_shards,
            "AMP603",
            place("nn.utils.clip_grad_norm_(model.parameters(), 0.1)", shard_programs),
            "nn.utils.clip_grad_norm_",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_a_finding_of_each_rank_is_reported_once_with_its_ranks(
    ranks: int, program: Callable[[int], object], code: str, where: str, subject: str
) -> None:
    run = distributed(program, ranks)
    assert found(run.findings) == [(code, where, tuple(range(ranks)))]
    assert run.findings[0].message.startswith(f"`{subject}` ")
    assert run.findings[0].message.endswith("(both ranks)" if ranks == 2 else "(all 4 ranks)")
    assert run.findings[0].as_dict()["ranks"] == list(range(ranks))


FULLY_SHARDED = pytest.param(
    shard_programs.fully_sharded,
    marks=pytest.mark.skipif(
        "not hasattr(__import__('torch').distributed.fsdp, 'fully_shard')", reason="fully_shard came with torch 2.6"
    ),
)


@pytest.mark.parametrize("program", [programs.replicas, FULLY_SHARDED])
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_an_overflow_that_all_ranks_see_is_silent(ranks: int, program: Callable[[int], list[float]]) -> None:
    run = distributed(program, ranks)
    run.assert_no_findings()
    # The second of four steps is skipped everywhere.
    assert run.results == [[256.0, 128.0, 128.0, 128.0]] * ranks
    assert [each["skipped_total"] for each in run.runs] == [1] * ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_disagree_about_a_step(ranks: int) -> None:
    run = distributed(programs.by_hand, ranks)
    assert found(run.findings) == [("AMP602", place(STEP), (1,))]
    others = "rank 0" if ranks == 2 else "ranks 0, 2 and 3"
    assert run.findings[0].message.startswith(f"`scaler` skipped step 1 on rank 1 and took it on {others}, so their")
    with pytest.raises(AssertionError, match=f"1 mistake in mixed-precision training on {ranks} ranks:\n.*AMP602"):
        run.assert_no_findings()
    run.assert_no_findings(allow=["AMP602"])


def test_ranks_with_models_of_their_own_may_skip_any_steps() -> None:
    run = distributed(programs.alone, 2, backend=None)
    assert (run.findings, run.results) == ([], [(0, "2"), (1, "2")])
    assert [each["skipped_total"] for each in run.runs] == [1, 1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_leaves_a_batch_out_alone(ranks: int) -> None:
    # The last backward of the other ranks has no partner to average with.
    with pytest.raises(RankFailed) as failed:
        distributed(programs.leaves_out, ranks, timeout=30)
    said = str(failed.value)
    assert said.startswith(f"Some of {ranks} ranks did not finish:\n  rank ")
    others = "rank 0" if ranks == 2 else "ranks 0, 2 and 3"
    assert f"{place(BACKWARD)}: AMP607 [error] batch-left-out-by-rank: `scaler.scale(loss).backward` began" in said
    assert f"began 4 times on {others} and 3 times on rank 1, but each backward averages gradients" in said


def test_ranks_that_join_may_have_as_many_batches_as_they_like() -> None:
    assert distributed(programs.joined, 2).findings == []


@pytest.mark.parametrize(
    ("interval", "states"),
    [
        (8, "the scales 256 on rank 0 and 512 on rank 1, so ranks scale their losses differently"),
        (300, "6 steps, the last 6 at one scale, on rank 0 and 8 steps, the last 8 at one scale, on rank 1, so ranks"),
    ],
)
def test_scalers_of_ranks_that_join_end_with_different_states(interval: int, states: str) -> None:
    run = distributed(programs.joined_with_scaler, 2, args=(interval,))
    findings = [finding for finding in run.findings if finding.code != "AMP216"]
    assert found(findings) == [("AMP602", place("scaling.step(optimizer)"), (0, 1))]
    assert findings[0].message.startswith(f"`scaling` ended with {states}")


def test_scalers_of_ranks_that_join_may_get_the_state_of_one() -> None:
    assert distributed(programs.joined_with_scaler, 2, args=(300, True)).findings == []


def test_what_kept_a_rank_from_its_end_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankFailed) as failed:
        distributed(programs.dies, 2)
    first, second = str(failed.value).splitlines()[1:3]
    assert first == "  rank 1 ended with exit code 3"
    assert second == "  rank 0 raised:"
    with pytest.raises(RankFailed, match=r"rank 1 raised:\n(.*\n)*KeyError: 'the data set has no such item'"):
        distributed(programs.raises, 2)
    assert capsys.readouterr().out.count("was here") == 2


def test_a_rank_that_hangs_is_ended_and_says_where_it_stood() -> None:
    with pytest.raises(RankFailed) as failed:
        distributed(programs.hangs, 2, timeout=5.0)
    where = f"rank_programs.py:{source_line('time.sleep(600)')} in hangs"
    assert f"  rank 1 had not ended within 5 s: it stood at {where}" in str(failed.value).splitlines()


def test_the_time_of_a_rank_begins_when_all_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_load.py").write_text("import time\n\ntime.sleep(2)\n\ndef number(rank):\n    return rank\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    number = importlib.import_module("slow_to_load").number
    assert distributed(number, 2, timeout=1.5, backend=None).results == [0, 1]


def test_what_no_process_can_be_given_is_said() -> None:
    with pytest.raises(ValueError, match="a function at the top of a module"):
        distributed(lambda rank: None, 2)
    with pytest.raises(ValueError, match="nprocs must be 1 or more, not 0"):
        distributed(programs.alone, 0)
    with pytest.raises(RankFailed, match="what the function returned cannot be given to another process"):
        distributed(programs.returns_a_function, 1)
    with pytest.raises(AssertionError, match="No training step was recorded on rank 0"):
        distributed(programs.nothing, 1).assert_no_findings()


def test_a_rank_that_was_given_up_learns_that_its_report_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    rank = find_launched_rank(60.0)
    assert rank is not None
    with record() as run:
        pass
    assert rank.write_report(run)
    # The first rank has reported, and removes the folder with the other ranks' reports.
    shutil.rmtree(next(tmp_path.iterdir()))
    assert not rank.write_report(run)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a process that its parent has not asked for")
def test_a_process_has_ended_before_its_parent_asks_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not has_ended(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        until = time.monotonic() + 60
        while not has_ended(process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        # No code has asked for the exit code until here.
        assert process.returncode is None and has_ended(process.pid)
    assert has_ended(process.pid)


def test_the_fixture_runs_ranks(amp: Session) -> None:
    run = amp.distributed(programs.numbered, 2, ("x",))
    assert run.results == [("x", 0, 2), ("x", 1, 2)]
    # Both used the numbers of the test's own seed.
    drawn: list[Any] = [run.results for run in (amp.distributed(programs.draws, 2), amp.distributed(programs.draws, 2))]
    assert drawn[0] == drawn[1]
