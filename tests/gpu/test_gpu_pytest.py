"""pytest on CUDA: the fixture, its options, recorded tests and their report."""

from __future__ import annotations

import html
import os
from pathlib import Path

import pytest
import torch

# Loaded here, so that runs inside this process do not load these modules again: some cannot be loaded twice.
import torch._dynamo
from warm import run_module

import pytest_amp_check
from pytest_amp_check.runtime.session import Session

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("this_plugin_alone")

PACKAGE = Path(pytest_amp_check.__file__).resolve().parents[1]
FLAGS = ("-p", "no:cacheprovider", "-p", "no:asyncio")
TESTS = """
import pytest
import torch

def train(amp, clip=False):
    model = torch.nn.Linear(4, 1).to(amp.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    scaler = amp.scaler(init_scale=128.0)
    for _ in range(3):
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(torch.randn(8, 4, device=amp.device, generator=amp.generator)).float().square().mean()
        scaler.scale(loss).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss

@pytest.mark.amp(dtype=["float16", "bfloat16"])
def test_good(amp):
    assert amp.device.type == "cuda"
    assert amp.emulated == EMULATED
    with amp.record(dtypes=True) as run:
        loss = train(amp)
    assert loss.is_cuda
    run.assert_no_findings()
    run.assert_dtypes({"loss": "float32", "parameters": "float32", "gradients": "float32"})
    assert amp.scaler().is_enabled() == (amp.dtype is torch.float16)
"""
BAD = """
def test_bad(amp):
    train(amp, clip=True)
"""


def run(pytester: pytest.Pytester, where: str, tests: str, *flags: str) -> pytest.RunResult:
    pytester.makepyfile(test_a=f"EMULATED = {where != 'cuda'}\n{tests}")
    return pytester.runpytest_inprocess(*FLAGS, f"--amp-device={where}", *flags, "test_a.py")


def test_the_device_is_the_one_that_was_asked_for(pytester: pytest.Pytester, where: str) -> None:
    run(pytester, where, TESTS).assert_outcomes(passed=2)


def test_tests_are_recorded_there(pytester: pytest.Pytester, where: str) -> None:
    result = run(pytester, where, TESTS + BAD, "--amp-check", "--amp-only=runtime")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*AMP201*clip_grad_norm_*"])


def test_a_run_names_its_device(half: Session) -> None:
    with half.record() as recorded:
        pass
    assert recorded.as_dict()["device"] == torch.cuda.get_device_name()


def test_a_report_names_the_gpu(pytester: pytest.Pytester, where: str) -> None:
    result = run(pytester, where, TESTS + BAD, "--amp-check", "--amp-only=runtime", "--amp-report=amp.html")
    result.assert_outcomes(passed=2, failed=1)
    page = html.unescape((pytester.path / "amp.html").read_text(encoding="utf-8"))
    assert "AMP201" in page and "test_a.py::test_bad" in page
    assert (torch.cuda.get_device_name() if where == "cuda" else "emulated") in page


@pytest.mark.gpu
def test_the_device_is_taken_where_nothing_is_said(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a=f"EMULATED = False\n{TESTS}")
    for flags in ((), ("--amp-device=auto",), ("--amp-device=cuda:0",)):
        pytester.runpytest_inprocess(*FLAGS, *flags, "test_a.py").assert_outcomes(passed=2)
    refused = pytester.runpytest_inprocess(*FLAGS, "--amp-device=cuda:99", "test_a.py")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*cuda:99 was asked for, and this machine has*CUDA device*"])


@pytest.mark.gpu
def test_the_emulation_can_be_asked_for_all_the_same(pytester: pytest.Pytester) -> None:
    run(pytester, "emulate", TESTS).assert_outcomes(passed=2)


SCRIPT = """
import sys
import torch

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
for factor in (1.0, float("inf"), 1.0):
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(torch.randn(8, 4, device="cuda")).float().square().mean() * factor
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("trained", *sys.argv[1:])
"""


@pytest.mark.parametrize("flags", [(), ("--device=auto",), ("--device=cuda:0",)], ids=" ".join)
def test_the_command(tmp_path: Path, where: str, flags: tuple[str, ...]) -> None:
    if where != "cuda":
        if flags:
            pytest.skip("only a device that is there can be named")
        flags = ("--device=emulate",)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE)}
    done = run_module("pytest_amp_check", "run", *flags, "train.py", "--epochs", "3", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained --epochs 3\n")
    assert "1 of 3 steps skipped" in done.stdout
    assert done.stdout.endswith("The loss was not finite in 1 of 3 training steps, first in step 1.\n")
