"""``amp-check run``: a script runs as under Python, and is recorded meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm import run_module

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]

TRAINS = """\
import sys
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print("trained", *sys.argv[1:])
"""
CLIPS = 15


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_module("pytest_amp_check", "run", *arguments, cwd=folder, env={**settings(), **environment})


def run_from_nothing(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell would: torch and its lazy imports are loaded in this process."""
    command = [sys.executable, "-m", "pytest_amp_check", "run", *arguments]
    return subprocess.run(command, cwd=folder, env=settings(), capture_output=True, encoding="utf-8", timeout=300)


def settings() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINS, encoding="utf-8")
    return tmp_path


def test_findings_stand_after_the_scripts_own_output(folder: Path) -> None:
    done = run_from_nothing("--output-format", "concise", "train.py", "--epochs", "3", folder=folder)
    assert done.returncode == 1, done.stderr
    own, finding, summary = done.stdout.splitlines()
    assert own == "trained --epochs 3"
    assert finding.startswith(f"train.py:{CLIPS}:5: AMP201 [error] clip-before-unscale: `clip_grad_norm_` clips")
    assert summary == "Found 1 error in 3 training steps."


def test_the_run_is_drawn_above_the_findings(folder: Path) -> None:
    done = run("train.py", folder=folder)
    assert "1024, 0 of 3 steps skipped" in done.stdout
    assert done.stdout.index("steps skipped") < done.stdout.index("AMP201")


def test_a_run_has_the_options_of_a_check(folder: Path) -> None:
    (folder / "train.py").write_text(f"# amp: ignore-file[AMP201]\n{TRAINS}", encoding="utf-8")
    assert run("-q", "train.py", folder=folder).returncode == 0
    given = ("--ignore-noqa", "-q", "-o", "found.jsonl", "--output-format", "json-lines")
    done = run(*given, "train.py", folder=folder)
    assert (done.returncode, done.stdout) == (1, "trained\n")
    (line,) = (folder / "found.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["code"] == "AMP201"
    (folder / "other.toml").write_text('severity = { AMP201 = "warning" }\n', encoding="utf-8")
    done = run("--config", "other.toml", "--fail-level", "error", "--ignore-noqa", "-s", "train.py", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert run("--ignore-noqa", "train.py", folder=folder, AMP_CHECK_EXIT_ZERO="1").returncode == 0


def test_json_follows_the_output(folder: Path) -> None:
    done = run("--output-format", "json", "train.py", folder=folder)
    (finding,) = json.loads(done.stdout.removeprefix("trained\n"))
    assert (finding["code"], finding["filename"], finding["location"]["row"]) == ("AMP201", "train.py", CLIPS)
    assert [step["location"]["row"] for step in finding["witness"]] == [14, 15, 16]


@pytest.mark.parametrize(
    ("more", "code"), [(("--exit-zero",), 0), (("--ignore", "AMP201"), 0), (("--severity", "AMP201=info"), 0), ((), 1)]
)
def test_what_decides_the_exit_code(folder: Path, more: tuple[str, ...], code: int) -> None:
    assert run(*more, "train.py", folder=folder).returncode == code


def test_a_suppressing_comment_counts(folder: Path) -> None:
    silenced = TRAINS.replace(
        "1.0)\n    scaler.step", "1.0)  # amp: ignore[AMP201] the scale is a stub\n    scaler.step"
    )
    (folder / "train.py").write_text(silenced, encoding="utf-8")
    done = run("--output-format", "concise", "train.py", folder=folder)
    assert (done.returncode, done.stdout) == (0, "trained\nNo mistakes found in 3 training steps.\n")


SKIPS = """\
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale((weight.half() * FACTOR).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(("factor", "more"), [("4", ", but a scaler skipped all of them"), ("1", ""), ("0.1", "")])
def test_that_no_step_was_taken_is_said(folder: Path, factor: str, more: str) -> None:
    (folder / "train.py").write_text(SKIPS.replace("FACTOR", factor), encoding="utf-8")
    done = run("--ignore", "AMP110", "--output-format", "concise", "train.py", folder=folder)
    assert (done.returncode, done.stdout) == (0, f"No mistakes found in 3 training steps{more}.\n")


def test_the_scripts_own_exit_code_is_kept(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS + "sys.exit(7)\n", encoding="utf-8")
    done = run("--output-format", "concise", "train.py", folder=folder)
    assert done.returncode == 7
    assert "AMP201" in done.stdout


def test_a_message_as_exit_code_goes_to_standard_error(folder: Path) -> None:
    (folder / "train.py").write_text("import sys\nsys.exit('no data')\n", encoding="utf-8")
    done = run("train.py", folder=folder)
    assert (done.returncode, done.stderr) == (1, "no data\n")


def test_a_traceback_is_the_scripts_own_and_the_findings_follow(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS + "raise ValueError('diverged')\n", encoding="utf-8")
    done = run("--output-format", "concise", "train.py", folder=folder)
    assert done.returncode == 1
    head, place, *_ = done.stderr.splitlines()
    assert head == "Traceback (most recent call last):"
    assert place.startswith('  File "') and 'train.py", line 19' in place
    assert done.stderr.endswith("ValueError: diverged\n")
    assert "AMP201" in done.stdout


def test_a_function_of_the_script_is_shown_whatever_its_name_is(folder: Path) -> None:
    """Frames called ``redispatch`` are hidden only below emulated operators."""
    body = """\
def redispatch():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise ValueError from error
redispatch()
"""
    (folder / "train.py").write_text(body, encoding="utf-8")
    done = run("train.py", folder=folder)
    assert done.returncode == 1
    assert [line.split(", ", 1)[1] for line in done.stderr.splitlines() if line.startswith("  File ")] == [
        "line 3, in redispatch",
        "line 6, in <module>",
        "line 5, in redispatch",
    ]


ENDED = """\
import torch
from torch import nn

model = nn.Linear(4, 6).cuda()
with torch.autocast("cuda", dtype=torch.float16):
    hidden = model(torch.randn(8, 4).cuda())
    spectrum = torch.fft.rfft(hidden)
"""


def test_a_run_that_torch_ends_says_why_and_shows_the_scripts_own_calls(folder: Path) -> None:
    (folder / "train.py").write_text(ENDED, encoding="utf-8")
    done = run("--device", "emulate", "train.py", folder=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RuntimeError: Unsupported dtype Half"
    assert 'train.py", line 7, in <module>' in done.stderr
    assert "pytest_amp_check" not in done.stderr and "redispatch" not in done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("train.py:7:16: AMP810 [error] refused-by-torch: `torch.fft.rfft` gets `hidden`")
    assert "1. train.py:5: autocast of float16 for cuda is entered" in done.stdout
    assert "2. train.py:6: `hidden` comes out in float16" in done.stdout
    assert done.stdout.endswith(" It ended in an exception of torch: amp-check explain fft-of-half\n")


def test_the_finding_of_a_rule_explains_the_exception_that_follows_from_it(folder: Path) -> None:
    body = TRAINS.replace("    scaler.update()\n", "").replace("    clip_grad_norm_(model.parameters(), 1.0)\n", "")
    (folder / "train.py").write_text(body, encoding="utf-8")
    done = run("--output-format", "concise", "train.py", folder=folder)
    finding, summary = done.stdout.splitlines()
    assert "AMP206 [error] missing-scaler-update" in finding
    assert (
        summary
        == "Found 1 error in 1 training step. It ended in an exception of torch: amp-check explain stepped-twice"
    )


def test_a_syntax_error_is_shown_as_python_shows_it(folder: Path) -> None:
    (folder / "train.py").write_text("for x in\n", encoding="utf-8")
    done = run("train.py", folder=folder)
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr and "amp-check: error" not in done.stderr


def test_a_module_is_run_by_name(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "package" / "data.py").write_text("NAME = 'digits'\n", encoding="utf-8")
    (folder / "package" / "train.py").write_text("from .data import NAME\n" + TRAINS, encoding="utf-8")
    done = run("--output-format", "concise", "-m", "package.train", "x", folder=folder)
    assert done.returncode == 1
    assert done.stdout.startswith("trained x\n")
    assert os.path.join("package", "train.py") + f":{CLIPS + 1}:5: AMP201" in done.stdout


def test_what_the_script_defines_is_its_main_module(folder: Path) -> None:
    source = (
        "import atexit, os, pickle, sys\n"
        "class Config: pass\n"
        "print(__name__, os.path.basename(__file__), os.path.basename(sys.argv[0]), Config.__module__)\n"
        "print(type(pickle.loads(pickle.dumps(Config()))) is Config, os.path.basename(sys.path[0]))\n"
        "atexit.register(print, 'at exit')\n"
    )
    (folder / "train.py").write_text(source, encoding="utf-8")
    done = run_from_nothing("train.py", folder=folder)
    assert done.stdout.splitlines() == [
        "__main__ train.py train.py __main__",
        f"True {folder.name}",
        (
            "No training step was recorded: no optimizer was stepped in this process or one of its threads "
            "(use --allow-no-steps if that is expected)."
        ),
        "at exit",
    ]
    assert done.returncode == 1
    assert run("--allow-no-steps", "train.py", folder=folder).returncode == 0
    assert run("--exit-zero", "train.py", folder=folder).returncode == 0


THREADS = """
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import torch


def train(steps):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 4)).float().mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


"""


@pytest.mark.parametrize(
    ("starts", "names"),
    [
        # Python waits for threads that are not joined, and so does the recorder.
        (
            "for steps in (2, 3):\n    threading.Thread(target=train, args=(steps,), name=f'of {steps}').start()\n",
            ["train.py: of 2", "train.py: of 3"],
        ),
        (
            "with ThreadPoolExecutor(1, 'pool') as pool:\n    list(pool.map(train, (2, 3)))\n",
            ["train.py: pool_0"],
        ),
        (
            "async def main():\n    await asyncio.to_thread(train, 3)\n\ntrain(2)\nasyncio.run(main())\n",
            ["train.py", "train.py: asyncio_0"],
        ),
    ],
)
def test_threads_that_the_script_starts_are_recorded(folder: Path, starts: str, names: list[str]) -> None:
    (folder / "train.py").write_text(THREADS + starts, encoding="utf-8")
    done = run("--output-format", "concise", "--data", "data.json", "train.py", folder=folder)
    finding, summary = done.stdout.splitlines()
    clip = (THREADS.splitlines().index("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")) + 1
    # The same mistake at the same location is reported once.
    assert finding.startswith(f"train.py:{clip}:9: AMP201 [error]")
    where = f" in {len(names)} threads" if len(names) > 1 else ""
    assert summary == f"Found 1 error in 5 training steps{where}."
    assert done.returncode == 1
    runs = json.loads((folder / "data.json").read_text(encoding="utf-8"))["runs"]
    assert sorted(each["title"] for each in runs) == names
    assert sum(each["steps_total"] for each in runs) == 5


def test_a_cuda_recipe_runs_under_emulation(folder: Path) -> None:
    source = TRAINS.replace('"cpu"', '"cuda"').replace("nn.Linear(4, 1)", "nn.Linear(4, 1).cuda()")
    source = source.replace("torch.randn(8, 4)", 'torch.randn(8, 4, device="cuda")')
    (folder / "train.py").write_text(source + "print(scaler.get_scale())\n", encoding="utf-8")
    done = run("--device", "emulate", "--output-format", "concise", "train.py", folder=folder)
    assert done.stdout.splitlines()[:2] == ["trained", "1024.0"], done.stderr
    assert f"train.py:{CLIPS}:5: AMP201" in done.stdout


def test_a_report_is_written(folder: Path) -> None:
    done = run("--report", "out/report.html", "--output-format", "concise", "train.py", folder=folder)
    assert f"The report is in {(folder / 'out' / 'report.html').resolve()}.\n" in done.stderr
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert done.returncode == 1
    assert "amp-check run train.py" in page and "AMP201" in page
    # The source frame as on the terminal, and the states of the gradients up to the finding.
    assert '<span class="t-source">     clip_grad_norm_(model.parameters(), 1.0)</span>' in page
    assert '"rows":["CLEAN","SCALED","STEPPED"]' in page


def test_memory_is_recorded_where_it_is_asked_for(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS.replace("    clip_grad_norm_(model.parameters(), 1.0)\n", ""), "utf-8")
    asked = run("--memory", "--report", "report.html", "--data", "run.json", "train.py", folder=folder)
    assert asked.returncode == 0, asked.stderr
    (found,) = json.loads((folder / "run.json").read_text(encoding="utf-8"))["runs"]
    # A weight of 4 float32 and a bias.
    assert found["memory"]["peak"]["parameters"] == 20
    assert found["memory"]["budget"] is None
    assert ["parameters", "weight", 16] in found["memory"]["contributors"]
    assert all(step["memory"] > 0 for step in found["steps"])
    assert "memory    " in asked.stdout and "          parameters" in asked.stdout
    assert "What made most of the peak" in (folder / "report.html").read_text(encoding="utf-8")
    without = run("--data", "run.json", "train.py", folder=folder)
    (found,) = json.loads((folder / "run.json").read_text(encoding="utf-8"))["runs"]
    assert found["memory"] is None and "memory  " not in without.stdout


def test_more_memory_than_the_limit_is_a_failure(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINS.replace("    clip_grad_norm_(model.parameters(), 1.0)\n", ""), "utf-8")
    over = run("--memory-limit", "100", "--report", "report.html", "train.py", folder=folder)
    assert over.returncode == 1
    assert " of 100 B (" in over.stdout
    assert " more than the limit of 100 B; most of it was " in over.stderr
    assert '"text":"budget 100 B"' in (folder / "report.html").read_text(encoding="utf-8")
    assert run("--memory-limit", "100", "--exit-zero", "train.py", folder=folder).returncode == 0
    assert run("--memory-limit", "1 MiB", "train.py", folder=folder).returncode == 0


def test_two_runs_are_shown_side_by_side(folder: Path) -> None:
    assert run("--data", "before.json", "train.py", folder=folder).returncode == 1
    train = (folder / "train.py").read_text(encoding="utf-8")
    (folder / "train.py").write_text(
        train.replace("    clip_grad_norm_(model.parameters(), 1.0)\n", ""), encoding="utf-8"
    )
    done = run("--report", "report.html", "--compare", "before.json", "train.py", folder=folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<a href="#compare-1">train.py beside train.py</a>' in page
    assert "<td>only in the other</td>" in page and "<td>only in this run</td>" not in page


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (None, "other.json cannot be read: no such file or directory"),
        ("{", "other.json holds no run: name a file of run.to_json(), or of amp-check run --data"),
        ("[1]", "other.json holds no run"),
        ('{"runs": []}', "other.json holds no run"),
        ('{"runs": [{"title": "x"}]}', "other.json holds no run"),
        ('{"runs": 3}', "other.json holds no run"),
    ],
)
def test_what_cannot_be_compared_is_said_before_the_script_runs(folder: Path, held: str | None, said: str) -> None:
    if held is not None:
        (folder / "other.json").write_text(held, encoding="utf-8")
    done = run("--report", "report.html", "--compare", "other.json", "train.py", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (folder / "report.html").exists()


def test_what_is_compared_needs_a_report(folder: Path) -> None:
    (folder / "other.json").write_text("{}", encoding="utf-8")
    done = run("--compare", "other.json", "train.py", folder=folder)
    assert done.returncode == 2
    assert "--compare shows another run beside this one in a report: name that by --report" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "there is no file 'missing.py': for a module, write -m"),
        (("-m", "no_such_module"), "there is no module 'no_such_module': for a file, leave out -m"),
        (("-m", "os.nothing.here"), "module 'os.nothing.here' cannot be found"),
        (("sub",), "'sub' is a folder: name the script that trains"),
        (("--select", "AMP999", "train.py"), "AMP999"),
        (("--device", "tpu", "train.py"), "tpu"),
        ((), "the following arguments are required: SCRIPT"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "sub").mkdir()
    done = run(*arguments, folder=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_missing_path_is_no_module(folder: Path) -> None:
    assert run("sub/missing.py", folder=folder).stderr == "amp-check: error: there is no file 'sub/missing.py'\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_gpu_that_is_not_there(folder: Path) -> None:
    done = run("--device", "cuda", "train.py", folder=folder)
    assert done.returncode == 2
    assert "cuda was asked for, and this machine has no CUDA device: use emulate" in done.stderr


def test_without_torch_it_says_what_to_install(folder: Path) -> None:
    # A module that is first on the path and cannot be found by its own finder counts as missing.
    code = (
        "import sys, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "from pytest_amp_check.frontends.cli import main\n"
        "sys.exit(main(['run', 'train.py']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert "amp-check run needs torch" in done.stderr and "pytest-amp-check[torch]" in done.stderr


def test_all_that_was_recorded_is_written_as_json(folder: Path) -> None:
    assert run("--data", "run.json", "--exit-zero", "train.py", folder=folder).returncode == 0
    (recorded,) = json.loads((folder / "run.json").read_text(encoding="utf-8"))["runs"]
    assert (recorded["title"], recorded["steps_total"]) == ("train.py", 3)
    assert [finding["code"] for finding in recorded["findings"]] == ["AMP201"]
    done = run("--data", "none/run.json", "--exit-zero", "train.py", folder=folder)
    assert done.returncode == 2
    assert "none/run.json cannot be written: no such file or directory" in done.stderr
