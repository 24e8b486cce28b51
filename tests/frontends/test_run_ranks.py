"""``amp-check run`` on several ranks, started by torchrun or by the script itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_programs import source_line
from warm import run_python

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif("not __import__('torch').distributed.is_gloo_available()"),
    pytest.mark.skipif(sys.platform != "linux", reason="the ranks meet over the interface lo"),
]
SUPPORT = Path(__file__).resolve().parents[1] / "support"
LAUNCHED = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
RUN = ["pytest_amp_check", "run", "--output-format", "concise"]


def run(*arguments: str, warm: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module or code whose ranks are forked from a process with torch loaded, or really started."""
    settings = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    package = os.pathsep.join(filter(None, [str(SUPPORT.parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**settings, "OMP_NUM_THREADS": "1", "PYTHONPATH": package, **environment}
    given = arguments if arguments[0] == "-c" else ("-m", *arguments)
    return run_python(*given, cwd=SUPPORT, env=environment, warm_children=warm)


def launched(ranks: int, name: str, *options: str, warm: bool = True) -> subprocess.CompletedProcess[str]:
    return run(*LAUNCHED, str(ranks), "-m", *RUN, *options, "rank_script.py", name, warm=warm)


def started(name: str, *options: str, warm: bool = True) -> subprocess.CompletedProcess[str]:
    return run(*RUN, *options, "rank_script.py", name, "spawn", warm=warm)


STEP = source_line("scaler.step(optimizer)")


def test_findings_of_ranks_are_reported_once_by_the_first_rank() -> None:
    done = launched(4, "by_hand")
    finding, summary = done.stdout.splitlines()
    assert finding.startswith(f"rank_programs.py:{STEP}:9: AMP602 [error] found-inf-not-synchronised: `scaler` skipped")
    assert "skipped step 1 on rank 1 and took it on ranks 0, 2 and 3" in finding
    assert summary == "Found 1 error in 16 training steps on 4 ranks."
    assert done.returncode != 0
    # The other ranks have not failed: torchrun learns only of the rank with a finding.
    assert "rank      : 0 (local_rank: 0)\n  exitcode  : 1" in done.stderr
    assert "local_rank: 1" not in done.stderr.partition("Root Cause")[2]


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_all_is_well_where_all_skip(warm: bool) -> None:
    """Processes that torchrun really starts run where every case does: three times as many seconds."""
    done = launched(2, "replicas", warm=warm)
    assert (done.returncode, done.stdout) == (0, "No mistakes found in 8 training steps on 2 ranks.\n")


def test_ranks_that_die_are_named() -> None:
    done = launched(3, "dies")
    assert done.returncode != 0
    said = "exited without reporting its results"
    assert f"amp-check: error: rank 1 {said}; rank 2 {said}\n" in done.stderr


def test_ranks_that_fail_after_one_died_have_reported() -> None:
    done = launched(4, "dies_last")
    assert done.returncode != 0
    # Each failing rank prints its own findings, and the first rank prints the findings of all surviving ranks.
    assert sorted(set(done.stdout.splitlines())) == [
        "No mistakes found in 2 training steps on rank 1.",
        "No mistakes found in 2 training steps on rank 2.",
        "No mistakes found in 6 training steps on 3 ranks.",
    ]
    errors = [line for line in done.stderr.splitlines() if line.startswith("amp-check: error")]
    assert errors == ["amp-check: error: rank 3 exited without reporting its results"]


def test_a_failed_rank_that_is_asked_to_end_prints_its_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nimport signal\nimport sys\n\nimport torch\n\n\n"
        "class AskedToEnd:\n"
        "    def __init__(self, stream):\n        self.stream = stream\n\n"
        "    def write(self, text):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n        self.stream.write(text)\n\n"
        "    def writelines(self, lines):\n        self.write(''.join(lines))\n\n"
        "    def __getattr__(self, name):\n        return getattr(self.stream, name)\n\n\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\nweight.sum().backward()\noptimizer.step()\n"
        # As a launcher that has seen a rank fail, and asks the others while they print.
        "sys.stdout = AskedToEnd(sys.stdout)\n"
        "sys.exit(3)\n",
        encoding="utf-8",
    )
    done = run(
        *RUN,
        str(tmp_path / "train.py"),
        RANK="1",
        WORLD_SIZE="2",
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="2",
        TMPDIR=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (3, "No mistakes found in 1 training step on rank 1.\n")


def test_ranks_that_wait_for_each_other_are_ended_and_tell_what_led_to_it() -> None:
    done = launched(2, "leaves_out_and_waits", "--rank-timeout", "4")
    assert done.returncode != 0
    finding, summary = done.stdout.splitlines()
    assert "AMP607" in finding and "began 4 times on rank 0 and 3 times on rank 1" in finding
    assert summary == "Found 1 error in 6 training steps on 2 ranks."
    where = f"rank_programs.py:{source_line('dist.barrier()', 'leaves_out_and_waits')} in leaves_out_and_waits"
    assert f"rank 1 had not moved for 4 s, nor had any other: it stood at {where}\n" in done.stderr


@pytest.mark.parametrize("start", [launched, started], ids=["torchrun", "spawn"])
def test_a_rank_that_an_exception_ends_has_left_out_no_batch(start: Callable[..., Any]) -> None:
    done = start(*((2, "fails") if start is launched else ("fails",)))
    assert done.returncode != 0
    assert "OSError: the batch cannot be read" in done.stderr
    assert "AMP607" not in done.stdout + done.stderr


def test_the_exception_of_a_rank_that_takes_its_time_to_end_is_seen() -> None:
    done = started("fails_and_takes_its_time", "--rank-timeout", "3")
    assert done.returncode != 0
    # The rank ends by itself, before the other rank's wait times out.
    assert "OSError: the batch cannot be read" in done.stderr
    assert "ProcessExitedException" not in done.stderr


def test_processes_that_the_script_starts_are_recorded() -> None:
    done = started("leaves_out", warm=False)
    begins = source_line("scaler.scale(loss).backward()")
    *_, finding, summary = done.stdout.splitlines()
    assert finding.startswith(
        f"rank_programs.py:{begins}:9: AMP607 [error] batch-left-out-by-rank: `scaler.scale(loss)"
    )
    assert "began 4 times on rank 0 and 3 times on rank 1" in finding
    assert summary.endswith(" training steps on 2 ranks.")
    assert done.returncode == 1


def test_a_rank_that_hangs_ends_and_says_where_it_stood() -> None:
    done = started("hangs", "--rank-timeout", "3")
    where = f"rank_programs.py:{source_line('time.sleep(600)')} in hangs"
    said = f"amp-check: error: rank 1 had not moved for 3 s, nor had any other: it stood at {where}\n"
    assert done.returncode != 0
    assert done.stderr.count(said) == 2  # by itself, and by its parent process


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize(
    ("options", "name", "last"),
    [
        (["--multi_gpu", "--num_processes", "2"], "by_hand", "Found 1 error in 8 training steps on 2 ranks."),
        (["--multi_gpu", "--num_processes", "2"], "replicas", "No mistakes found in 8 training steps on 2 ranks."),
        # On the CPU, accelerate starts one process, regardless of the requested number.
        (["--cpu", "--num_processes", "2"], "by_itself", "No mistakes found in 4 training steps."),
    ],
)
def test_ranks_that_accelerate_launches(options: list[str], name: str, last: str) -> None:
    launch = ["accelerate.commands.launch", *options, "--num_machines", "1", "--mixed_precision", "no"]
    command = [*launch, "--dynamo_backend", "no", "-m", *RUN, "rank_script.py", name]
    done = run(*command, ACCELERATE_USE_CPU="true")
    assert done.stdout.splitlines()[-1] == last
    assert (done.returncode == 0) == last.startswith("No mistakes")


def test_a_process_beside_the_training_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing\nimport sys\n\n\ndef writes():\n    print('beside')\n\n\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method('fork')\n"
        "    beside = multiprocessing.Process(target=writes)\n    beside.start()\n    beside.join()\n"
        "    import torch\n    weight = torch.nn.Parameter(torch.ones(2))\n"
        "    optimizer = torch.optim.SGD([weight], lr=0.1)\n    weight.sum().backward()\n    optimizer.step()\n",
        encoding="utf-8",
    )
    done = run(*RUN, str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout) == (0, "beside\nNo mistakes found in 1 training step.\n")


ON_GPUS = """
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

def main(rank, world, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=store, rank=rank, world_size=world, device_id=torch.device(rank))
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            output = net(torch.randn(4, 4))
            assert output.dtype == torch.float16
            loss = output.float().square().mean().to(f"cuda:{rank}")
        scaler.scale(loss).backward()
        if "bad" not in sys.argv:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    dist.destroy_process_group()

if __name__ == "__main__":
    if sys.argv[1] == "launched":
        main(int(os.environ["LOCAL_RANK"]), 2, "env://")
    else:
        store = f"file://{sys.argv[2]}"
        mp.start_processes(main, (2, store), nprocs=2, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("start", ["spawn", "fork", "launched"])
def test_ranks_of_gpus_run_emulated_each_on_its_own_device(start: str, tmp_path: Path) -> None:
    done = run_on_gpus(start, "bad", tmp_path)
    finding, summary = done.stdout.splitlines()
    line = ON_GPUS.splitlines().index("        nn.utils.clip_grad_norm_(net.parameters(), 1.0)") + 1
    assert f"train.py:{line}:9: AMP201 [error]" in finding
    assert summary == "Found 1 error in 6 training steps on 2 ranks."


def test_right_ranks_of_gpus_have_no_finding(tmp_path: Path) -> None:
    done = run_on_gpus("fork", "good", tmp_path)
    assert (done.returncode, done.stdout) == (0, "No mistakes found in 6 training steps on 2 ranks.\n")


def run_on_gpus(start: str, variant: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(ON_GPUS, encoding="utf-8")
    launcher = [*LAUNCHED, "2", "-m"] if start == "launched" else []
    command = [*launcher, *RUN, "--device", "emulate", str(script), start, str(folder / "store"), variant]
    return run(*command, GLOO_SOCKET_IFNAME="lo", TMPDIR=str(folder))


def test_no_destructor_of_an_emulated_process_group_runs() -> None:
    # It would wait for threads of which one may wait for the GIL.
    code = (
        "import gc, torch.distributed as dist, weakref\n"
        "from pytest_amp_check.runtime.emulate.cuda import emulate_cuda\n"
        "with emulate_cuda():\n"
        "    dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    groups = [weakref.ref(dist.group.WORLD), weakref.ref(dist.new_group([0]))]\n"
        "    dist.destroy_process_group()\n"
        "gc.collect()\n"
        "print([group() is not None for group in groups])\n"
    )
    done = run("-c", code)
    assert (done.returncode, done.stdout) == (0, "[True, True]\n")
