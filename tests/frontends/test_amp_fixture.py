"""The fixture ``amp`` and the markers ``amp`` and ``amp_memory``, which need no ``--amp-check``, and their basis."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

# Loaded here, so that runs inside this process do not load these modules again each time.
import torch._dynamo
import torch.utils._device

from pytest_amp_check.runtime import session
from pytest_amp_check.runtime.emulate import cuda
from pytest_amp_check.runtime.measure import dtypes, memory, numerics  # noqa: F401
from pytest_amp_check.runtime.replay import comparison, snapshot
from pytest_amp_check.runtime.session import worker_device

pytest_plugins = ["pytester"]

FLAGS = ("-W", "error", "-p", "no:cacheprovider")
#: A trainer on the device of the fixture.
STEP = """
import pytest
import torch

def trainer(amp):
    model = torch.nn.Linear(4, 1).to(amp.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = amp.scaler(init_scale=128.0)
    def step(x):
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()
    return step

def batches(amp):
    return [torch.randn(8, 4, device=amp.device) for _ in range(3)]

"""

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


pytestmark = pytest.mark.usefixtures("this_plugin_alone")


def run(pytester: pytest.Pytester, tests: str, *flags: str) -> pytest.RunResult:
    pytester.makepyfile(test_a=STEP + tests)
    return pytester.runpytest_inprocess(*FLAGS, *flags, "test_a.py")


def usage(result: pytest.RunResult) -> str:
    """Return the one-line error of a run that cannot start."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (said,) = [line for line in result.errlines if line]
    return said.removeprefix("ERROR: amp-check: ")


# The device.

EMULATED = """
def test_emulated(amp):
    assert amp.device.type == "cuda"
    assert amp.emulated
    assert torch.cuda.is_available()
    x = torch.randn(2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert (x @ x).dtype is torch.float16
    assert torch.amp.GradScaler("cuda").is_enabled()
def test_after():
    assert not torch.cuda.is_available()
    assert torch.autocast("cpu", torch.float16).fast_dtype is torch.float16
"""


@no_cuda
@pytest.mark.parametrize("flags", [(), ("--amp-device=auto",), ("--amp-device=emulate",)])
def test_without_cuda_the_cpu_has_its_dtypes_as_long_as_the_test_lasts(
    pytester: pytest.Pytester, flags: tuple[str, ...]
) -> None:
    run(pytester, EMULATED, *flags).assert_outcomes(passed=2)


def test_the_emulation_ends_with_a_test_that_fails(pytester: pytest.Pytester) -> None:
    real = torch.cuda.is_available
    run(pytester, "@pytest.mark.amp(device='emulate')\ndef test_it(amp):\n    1 / 0\n").assert_outcomes(failed=1)
    assert torch.cuda.is_available is real


def test_the_cpu_has_its_own_rules(pytester: pytest.Pytester) -> None:
    tests = (
        "def test_cpu(amp):\n"
        "    assert amp.device == torch.device('cpu') and not amp.emulated\n"
        "    assert amp.generator.device.type == 'cpu'\n"
        "    x = torch.randn(2, 2)\n"
        "    with amp.autocast():\n"
        "        assert (x @ x).dtype is torch.float16\n"
        "        assert torch.softmax(x.half(), 0).dtype is torch.float16\n"
    )
    # CUDA's rules make a softmax float32.
    result = run(pytester, tests, "--amp-device=cpu")
    result.assert_outcomes(passed=1)
    assert run(pytester, f"@pytest.mark.amp(device='cpu')\n{tests}").ret == 0


@no_cuda
@pytest.mark.parametrize("where", ["--amp-device", "amp_device", "device in [tool.amp-check]"])
def test_cuda_that_is_asked_for_and_not_there_is_an_error(pytester: pytest.Pytester, where: str) -> None:
    flags = (f"{where}=cuda",) if where.startswith("-") else ()
    if where.startswith("amp"):
        pytester.makeini(f"[pytest]\n{where} = cuda\n")
    elif not flags:
        pytester.makepyprojecttoml('[tool.amp-check]\ndevice = "cuda"\n')
    said = usage(run(pytester, "def test_it(amp):\n    pass\n", *flags))
    assert said.startswith(where)
    assert said.endswith(
        ": cuda was asked for, and this machine has no CUDA device: use emulate for CUDA's dtypes on the CPU, or auto"
    )
    # The tests can be listed anywhere.
    result = run(pytester, "def test_it(amp):\n    pass\n", *flags, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_a.py::test_it"])
    assert result.ret == pytest.ExitCode.OK
    # If no test needs the device, a missing device is no error.
    run(pytester, "def test_it():\n    pass\n", *flags).assert_outcomes(passed=1)


@no_cuda
def test_a_test_for_cuda_is_skipped_elsewhere(pytester: pytest.Pytester) -> None:
    tests = "@pytest.mark.amp(device='cuda:1')\ndef test_it(amp):\n    pass\n"
    result = run(pytester, tests, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1[]] test_a.py:*: cuda:1 was asked for, and this machine has no CUDA*"])


def test_a_fixture_may_need_it_too(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        "@pytest.fixture\ndef step(amp):\n    return trainer(amp)\n"
        "@pytest.mark.amp(dtype=['float16', 'bfloat16'])\n"
        "def test_it(step, amp):\n    assert amp.run(step, batches(amp)).steps_total == 3\n",
    ).assert_outcomes(passed=2)


# The dtype.


def test_the_nearest_says_the_dtype(pytester: pytest.Pytester) -> None:
    tests = (
        "def test_default(amp):\n    assert amp.dtype is torch.{0}\n"
        "@pytest.mark.amp(dtype=torch.bfloat16)\nclass TestIt:\n"
        "    def test_class(self, amp):\n        assert amp.dtype is torch.bfloat16\n"
        "    @pytest.mark.amp(dtype='half', device='cpu')\n"
        "    def test_test(self, amp):\n        assert amp.dtype is torch.float16\n"
        "    @pytest.mark.amp(device='cpu')\n"
        "    def test_both(self, amp):\n        assert (amp.dtype, amp.device.type) == (torch.bfloat16, 'cpu')\n"
    )
    run(pytester, tests.format("float16")).assert_outcomes(passed=4)
    run(pytester, tests.format("bfloat16"), "--amp-dtype=bf16").assert_outcomes(passed=4)


def test_a_list_runs_the_test_with_each(pytester: pytest.Pytester) -> None:
    tests = (
        "pytestmark = pytest.mark.amp(dtype=['float16', 'bf16'])\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_it(amp, n):\n"
        "    x = torch.randn(2, 2, device=amp.device)\n"
        "    with amp.autocast():\n        assert (x @ x).dtype is amp.dtype\n"
        "    assert amp.scaler().is_enabled() == (amp.dtype is torch.float16)\n"
        "def test_without():\n    pass\n"
        "@pytest.mark.amp(dtype='bfloat16')\ndef test_one(amp):\n    assert amp.dtype is torch.bfloat16\n"
    )
    result = run(pytester, tests, "-v")
    result.assert_outcomes(passed=6)
    for name in ("test_it[[]float16-1[]]", "test_it[[]bfloat16-2[]]", "test_without", "test_one"):
        result.stdout.fnmatch_lines([f"test_a.py::{name} PASSED*"])


# Seeds.


def test_every_test_draws_the_same_numbers(pytester: pytest.Pytester) -> None:
    # As plugins do that seed generators just before a test, differently in every run.
    pytester.makeconftest(
        "import random, numpy, pytest, torch\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_call(item):\n"
        "    for seed in (random.seed, torch.manual_seed, numpy.random.seed):\n"
        "        seed(len(item.name) + item.callspec.params['n'])\n"
    )
    result = run(
        pytester,
        "import random\nimport numpy\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_it(amp, n):\n"
        "    drawn = torch.rand(1, generator=amp.generator, device=amp.device).item()\n"
        "    numbers = [random.random(), torch.rand(1).item(), numpy.random.rand(), drawn]\n"
        "    with open('numbers', 'a') as file:\n        print(numbers, file=file)\n",
    )
    result.assert_outcomes(passed=2)
    first, second = (pytester.path / "numbers").read_text().splitlines()
    assert first == second
    # Seed 0, as any code can use it.
    with seeded(0) as expected:
        pass
    assert first.startswith(str(expected)[:-1])


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[list[float]]:
    """Seed the global generators, and collect the first numbers after the block. Then restore the generators."""
    before = snapshot.random_state()
    snapshot.seed_all(seed)
    drawn: list[float] = []
    yield drawn
    drawn += [random.random(), torch.rand(1).item(), np.random.rand()]  # noqa: NPY002, S311
    snapshot.restore_random(before)


def test_the_generators_go_on_after_it(pytester: pytest.Pytester) -> None:
    tests = "import random\nimport numpy\ndef test_it(amp):\n    torch.rand(3), random.random(), numpy.random.rand()\n"
    with seeded(7) as after:
        run(pytester, tests).assert_outcomes(passed=1)
    with seeded(7) as expected:
        pass
    assert after == expected


# Recording.


def test_what_it_makes_takes_the_arguments_of_torch(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        "def test_it(amp):\n"
        "    assert amp.scaler(init_scale=4.0, growth_interval=7).get_growth_interval() == 7\n"
        "    assert not amp.scaler(enabled=False).is_enabled()\n"
        "    assert not amp.autocast(enabled=False)._enabled\n"
        "    assert not amp.autocast(cache_enabled=False)._cache_enabled\n"
        "    assert amp.autocast(dtype=torch.bfloat16).fast_dtype is torch.bfloat16\n",
    ).assert_outcomes(passed=1)


def test_runs_and_recordings_know_what_happened(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        "def test_it(amp):\n"
        "    step, data = trainer(amp), batches(amp)\n"
        "    run = amp.run(step, data, steps=5, dtypes=True, numerics=True)\n"
        "    run.assert_no_findings()\n"
        "    run.assert_scale(minimum=128, maximum=128, max_skipped=0)\n"
        "    run.assert_dtypes({'parameters': 'float32', 'loss': 'float32'})\n"
        "    run.assert_matches_fp32(rtol=0.05)\n"
        "    assert run.steps_total == 5\n"
        # The model was found from the step.
        "    assert run.dtypes.as_dict()['parameters'] == {'weight': 'float32', 'bias': 'float32'}\n"
        "    with amp.record(norms=False) as other:\n        step(data[0])\n"
        "    assert other.steps_total == 1\n"
        "    assert other.steps[0].site.endswith('test_a.py:13')\n",
    ).assert_outcomes(passed=1)


def test_what_was_not_recorded_names_the_call_that_recorded(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        "def test_it(amp):\n"
        "    step, data = trainer(amp), batches(amp)\n"
        "    with pytest.raises(ValueError, match=r'without its memory: pass memory=True to amp.run\\(\\)'):\n"
        "        amp.run(step, data).assert_memory(peak='1 GiB')\n"
        "    with amp.record() as other:\n        step(data[0])\n"
        "    with pytest.raises(ValueError, match=r'without its dtypes: pass dtypes=True to amp.record\\(\\)'):\n"
        "        other.assert_dtypes({'loss': 'float32'})\n",
    ).assert_outcomes(passed=1)


def test_what_cannot_be_decided_here_is_skipped(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "import unittest\nfrom pytest_amp_check.runtime.replay.comparison import UnavailableError\n"
        "@pytest.mark.amp(device='emulate')\n"
        "def test_it(amp):\n"
        "    amp.run(trainer(amp), batches(amp)).assert_speedup(over_fp32=1.5)\n"
        "class TestIt(unittest.TestCase):\n"
        "    def test_case(self):\n        raise UnavailableError('no such thing here')\n",
        "-rs",
        "--amp-check",
        "--amp-only=runtime",
    )
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]1[]] test_a.py:*: *GPU*", "SKIPPED [[]1[]] test_a.py:*: no such thing here"]
    )


CLIPS = (
    "def test_it(amp):\n"
    "    model = torch.nn.Linear(4, 1).to(amp.device)\n"
    "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    "    scaler = amp.scaler()\n"
    "    def step(x):\n"
    "        optimizer.zero_grad()\n"
    "        with amp.autocast():\n"
    "            loss = model(x).float().square().mean()\n"
    "        scaler.scale(loss).backward()\n"
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "        scaler.step(optimizer)\n"
    "        scaler.update()\n"
    "    run = amp.run(step, batches(amp))\n"
    "    run.assert_no_findings()\n"
)


def test_its_runs_look_for_what_the_project_looks_for(pytester: pytest.Pytester) -> None:
    result = run(pytester, CLIPS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*1 mistake in mixed-precision training:", "*AMP201*"])
    run(pytester, CLIPS, "--amp-ignore=AMP201").assert_outcomes(passed=1)
    run(pytester, CLIPS, "--amp-select=AMP1").assert_outcomes(passed=1)
    run(pytester, f"@pytest.mark.amp_allow('AMP2', reason='known')\n{CLIPS}").assert_outcomes(passed=1)
    assert "unknown rule 'AMP2O1'" in usage(run(pytester, CLIPS, "--amp-select=AMP2O1"))


# Budgets.


def test_a_test_has_a_budget(pytester: pytest.Pytester) -> None:
    tests = (
        "def work(n):\n    return torch.ones(n, dtype=torch.uint8).sum()\n"
        "pytestmark = pytest.mark.amp_memory('10 KiB')\n"
        "def test_within():\n    work(8 * 1024)\n"
        "def test_beyond():\n    work(64 * 1024)\n"
        "@pytest.mark.amp_memory('1 MiB')\nclass TestMore:\n"
        "    def test_within(self):\n        work(64 * 1024)\n"
        "    @pytest.mark.amp_memory(1)\n    def test_bytes(self):\n        work(1024)\n"
        "def test_fails():\n    work(64 * 1024)\n    assert False\n"
        "@pytest.mark.xfail(strict=True)\ndef test_expected():\n    work(64 * 1024)\n"
        "def test_skips():\n    work(64 * 1024)\n    pytest.skip('no')\n"
    )
    for flags in ((), ("--amp-check", "--amp-only=runtime"), ("--amp-device=cpu",)):
        result = run(pytester, tests, *flags)
        assert result.parseoutcomes() == {"passed": 2, "failed": 3, "xfailed": 1, "skipped": 1}
        result.stdout.fnmatch_lines(
            [
                "*_ test_beyond _*",
                "peak of memory is 64.*iB (65,5* bytes), over its budget of 10.00 KiB (10,240 bytes)*",
                "At the peak:",
                "*_ TestMore.test_bytes _*",
                "peak of memory is 1.0* KiB *over its budget of 1 B*",
            ]
        )


def test_the_budget_of_a_device_that_is_emulated_is_counted_as_cuda_would(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.amp(device='emulate')\n@pytest.mark.amp_memory('511 B')\n"
        "def test_it(amp):\n    torch.zeros(1, device=amp.device)\n",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["peak of memory is 512 B, over its budget of 511 B (storages *as CUDA would*on cpu):"])


# Invalid arguments.


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("amp('cpu')", 'amp of test_a.py::test_it: it takes device= and dtype=, such as @pytest.mark.amp(dtype="bfl'),
        ("amp(dtypes='float16')", "amp of test_a.py::test_it: it takes device= and dtype=, such as"),
        ("amp(device='gpu')", "device must be auto, cpu, cuda, cuda:N or emulate, not 'gpu'"),
        ("amp(device='cuda:x')", "device must be auto, cpu, cuda, cuda:N or emulate, not 'cuda:x'"),
        ("amp(dtype='float32')", "dtype must be float16 or bfloat16, not 'float32'"),
        ("amp(dtype=['float16', 'fp32'])", "dtype must be float16 or bfloat16, not ['float16', 'fp32']"),
        ("amp(dtype=['half', 'fp16'])", "dtype must be one or more dtypes, each once, not ['half', 'fp16']"),
        ("amp(dtype=[])", "dtype must be one or more dtypes, each once, not []"),
        ("amp_memory('1.5 gigs')", "amp_memory of test_a.py::test_it: '1.5 gigs' is not a size: write a number and"),
        ("amp_memory(1.5)", "1.5 is not a size"),
        ("amp_memory(-1)", "A size cannot be negative"),
        ("amp_memory()", 'it takes one size, such as @pytest.mark.amp_memory("1.5 GiB")'),
        ("amp_memory(peak='1 GiB')", "it takes one size"),
        ("amp_allow('AMP2O1', reason='x')", "unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        ("amp_allow(reason='x')", 'it takes rules, such as @pytest.mark.amp_allow("AMP503", reason="...")'),
        ("amp_allow('AMP201')", "it needs a reason and nothing else: add reason='why the finding is meant'"),
        ("amp_allow('AMP201', reason=' ')", "it needs a reason"),
        ("amp_allow('AMP201', reason='x', why='y')", "it needs a reason and nothing else"),
    ],
)
def test_a_wrong_marker_is_one_sentence_before_the_first_test(pytester: pytest.Pytester, mark: str, said: str) -> None:
    result = run(pytester, f"@pytest.mark.{mark}\ndef test_it(amp):\n    pass\n")
    assert f"@pytest.mark.{mark.partition('(')[0]} of test_a.py::test_it: " in result.stderr.str()
    assert said.rpartition("test_it: ")[2] in usage(result)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--amp-device=gpu", "--amp-device must be auto, cpu, cuda, cuda:N or emulate, not 'gpu'"),
        ("--amp-dtype=float8", "--amp-dtype must be float16 or bfloat16, not 'float8': did you mean 'float16'?"),
    ],
)
def test_a_wrong_flag_is_one_sentence_with_and_without_the_fixture(
    pytester: pytest.Pytester, flag: str, said: str
) -> None:
    for flags in ((flag,), (flag, "--amp-check")):
        assert usage(run(pytester, "def test_it():\n    pass\n", *flags)) == said


def test_a_wrong_configuration_is_an_error_only_if_the_fixture_is_used(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\namp_dtype = float8\n")
    run(pytester, "def test_it():\n    pass\n").assert_outcomes(passed=1)
    assert "must be float16 or bfloat16, not 'float8'" in usage(run(pytester, "def test_it(amp):\n    pass\n"))


def test_everything_is_registered(pytester: pytest.Pytester) -> None:
    lines = pytester.runpytest_inprocess("--markers").outlines
    for name in ("amp(device=, dtype=)", "amp_memory(limit)", "amp_allow(*rules, reason=)"):
        assert sum(line.startswith(f"@pytest.mark.{name}: ") for line in lines) == 1
    pytester.runpytest_inprocess("--fixtures").stdout.fnmatch_lines(["amp -- *fixtures.py:*"])


# Without pytest.


def test_a_session_is_a_region() -> None:
    with session.session("cpu", torch.bfloat16, seed=3) as amp:
        assert (amp.device, amp.dtype, amp.emulated) == (torch.device("cpu"), torch.bfloat16, False)
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))
    with (
        pytest.raises(comparison.UnavailableError, match="cuda:99 was asked for, and this machine has"),
        session.session("cuda:99"),
    ):
        pass
    with session.session("emulate") as amp:
        assert cuda.is_emulating()
        assert amp.generator.initial_seed() == session.SEED
    assert not cuda.is_emulating()


def test_steps_run_and_can_run_again() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.detach())

    batches = [torch.ones(8, 4)]
    run = session.run_steps(step, batches, steps=4, numerics=True, title="four steps")
    assert (run.steps_total, run.title) == (4, "four steps")
    assert run.replay is not None
    run.assert_no_findings()
    after = model.weight.clone()
    run.assert_matches_fp32(rtol=0.05)
    assert torch.equal(model.weight, after)
    data = run.as_dict()["numerics"]
    assert set(data["parameters"]) == {"weight", "bias"}
    with pytest.raises(ValueError, match="batches is empty"):
        session.run_steps(step, [])


@pytest.mark.parametrize(
    ("asked", "worker", "given"),
    [
        ("auto", "gw0", "cuda:0"),
        ("auto", "gw2", "cuda:2"),
        ("cuda", "gw4", "cuda:1"),
        ("auto", "", "auto"),
        ("cuda:2", "gw1", "cuda:2"),
        ("cpu", "gw1", "cpu"),
        ("emulate", "gw1", "emulate"),
    ],
)
def test_workers_share_the_gpus_round_robin(
    monkeypatch: pytest.MonkeyPatch, asked: str, worker: str, given: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert worker_device(asked, worker) == given


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU to share out")
def test_workers_without_a_gpu_have_none_to_share() -> None:
    assert worker_device("auto", "gw1") == "auto"
