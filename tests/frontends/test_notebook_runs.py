"""``amp-check run notebook.ipynb``: the code cells run in order under the recorder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from notebook_cells import SETUP, STEP
from warm import run_module, run_python

torch = pytest.importorskip("torch")
pytest.importorskip("IPython")

ROOT = Path(__file__).resolve().parents[2]

TRAIN = "for _ in range(3):\n    step()\n"


def write(folder: Path, *sources: str, language: str = "python") -> Path:
    """Write a notebook with a Markdown cell and these code cells, which therefore count from 2."""
    cells: list[dict[str, object]] = [{"cell_type": "markdown", "metadata": {}, "source": "# Training"}]
    for source in sources:
        lines = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "metadata": {}, "source": lines, "outputs": [], "execution_count": None})
    kernel = {"name": "kernel", "display_name": "kernel", "language": language}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    path = folder / "train.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_module("pytest_amp_check", "run", *arguments, cwd=folder, env=environment())


def test_findings_name_the_cell_and_its_line(tmp_path: Path) -> None:
    write(tmp_path, SETUP, STEP, TRAIN)
    done = run("--output-format", "concise", "train.ipynb", folder=tmp_path)
    assert done.returncode == 1, done.stderr
    finding, summary = done.stdout.splitlines()
    assert finding.startswith("train.ipynb:cell 3:6:5: AMP201 [error] clip-before-unscale: ")
    assert summary == "Found 1 error in 3 training steps."


def test_the_code_and_the_trace_are_those_of_the_cells(tmp_path: Path) -> None:
    write(tmp_path, SETUP, STEP, TRAIN)
    done = run("--output-format", "full", "train.ipynb", folder=tmp_path)
    assert "6 |     nn.utils.clip_grad_norm_(model.parameters(), 1.0)" in done.stdout
    assert "1. train.ipynb:cell 3:5 (called from train.ipynb:cell 4:2): backward adds gradients" in done.stdout
    done = run("--output-format", "json", "train.ipynb", folder=tmp_path)
    (found,) = json.loads(done.stdout)
    assert (found["filename"], found["cell"], found["location"]) == ("train.ipynb", 3, {"row": 6, "column": 5})
    assert [(step["cell"], step["location"]["row"]) for step in found["witness"]] == [(3, 5), (3, 6), (3, 7)]


def test_the_report_shows_the_steps_of_a_finding(tmp_path: Path) -> None:
    write(tmp_path, SETUP, STEP, TRAIN)
    run("--report", "report.html", "--data", "run.json", "train.ipynb", folder=tmp_path)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "train.ipynb:cell 3:6" in report
    (recorded,) = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["runs"]
    assert [(found["cell"], found["location"]["row"]) for found in recorded["findings"]] == [(3, 6)]


def test_a_comment_in_a_cell_suppresses_a_finding(tmp_path: Path) -> None:
    write(tmp_path, SETUP, STEP.replace("1.0)", "1.0)  # amp: ignore[AMP201] the scale is 1"), TRAIN)
    assert run("train.ipynb", folder=tmp_path).returncode == 0


def test_a_comment_for_the_file_applies_to_all_cells(tmp_path: Path) -> None:
    write(tmp_path, f"# amp: ignore-file[AMP201]\n{SETUP}", STEP, TRAIN)
    done = run("train.ipynb", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert run("--ignore-noqa", "train.ipynb", folder=tmp_path).returncode == 1


def test_magics_and_shell_commands_run_in_ipython(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"%env GREETING=hello\n{SETUP}",
        "names = !echo first; echo second\nprint(names, flush=True)\nif True:\n    !echo nested",
        "%%writefile helper.py\nVALUE = 5",
        "%%bash\necho from bash",
        f"%%time\nimport helper\n{STEP}print(helper.VALUE)",
        "%time step()\ndisplay(helper.VALUE)",
    )
    done = run("--output-format", "concise", "train.ipynb", folder=tmp_path)
    assert done.stdout.splitlines()[:-2] == [
        "env: GREETING=hello",
        "['first', 'second']",
        "nested",
        "Writing helper.py",
        "from bash",
        "5",
        "5",
    ]
    assert "train.ipynb:cell 6:8:5: AMP201" in done.stdout.splitlines()[-2]


def test_columns_count_what_is_cut_off_before_the_code(tmp_path: Path) -> None:
    unpaired = "%time scaler.scale(model(torch.randn(8, 4)).mean()).backward(); scaler.step(optimizer)"
    write(tmp_path, SETUP, "import math\n", unpaired)
    done = run("--output-format", "concise", "train.ipynb", folder=tmp_path)
    assert "train.ipynb:cell 4:1:65: AMP206" in done.stdout, done.stdout + done.stderr


def test_a_notebook_runs_in_its_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    write(inner, "import os\nprint(sorted(os.listdir()))\nimport beside", SETUP, STEP, TRAIN)
    (inner / "beside.py").write_text("print('imported')\n", encoding="utf-8")
    done = run("--output-format", "concise", "inner/train.ipynb", folder=tmp_path)
    assert done.stdout.splitlines()[:2] == ["['beside.py', 'train.ipynb']", "imported"]
    assert done.stdout.splitlines()[2].startswith("inner/train.ipynb:cell 4:6:5: AMP201")


def test_an_exception_ends_the_run_at_its_cell(tmp_path: Path) -> None:
    write(tmp_path, SETUP, STEP, TRAIN, "print('before')\nmissing\n", "print('after')")
    done = run("--output-format", "concise", "train.ipynb", folder=tmp_path)
    assert done.returncode == 1
    assert "before" in done.stdout
    assert "after" not in done.stdout
    assert f'File "{tmp_path / "train.ipynb"}:cell 5", line 2, in <module>\n    missing' in done.stderr
    assert "AMP201" in done.stdout


def test_later_cells_keep_imports_from_the_future(tmp_path: Path) -> None:
    write(tmp_path, "from __future__ import annotations", "def f(x: undefined): pass\nprint(f.__annotations__)")
    done = run("--allow-no-steps", "--quiet", "train.ipynb", folder=tmp_path)
    assert done.stdout == "{'x': 'undefined'}\n"


def test_a_notebook_inherits_no_import_from_the_future(tmp_path: Path) -> None:
    write(tmp_path, "def f(x: int): pass\nprint(f.__annotations__)")
    done = run("--allow-no-steps", "--quiet", "train.ipynb", folder=tmp_path)
    assert done.stdout == "{'x': <class 'int'>}\n"


def test_a_script_inherits_no_import_from_the_future(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def f(x: int): pass\nprint(f.__annotations__)\n", encoding="utf-8")
    done = run("--allow-no-steps", "--quiet", "script.py", folder=tmp_path)
    assert done.stdout == "{'x': <class 'int'>}\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "train.ipynb cannot run: a notebook is JSON, and this is not: "),
        ("{}", "train.ipynb cannot run: it is JSON, but no notebook: it has no list of cells"),
        ('{"cells": []}', "train.ipynb cannot run: it has no code cell in Python"),
    ],
)
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "train.ipynb").write_text(text, encoding="utf-8")
    done = run("train.ipynb", folder=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_notebook_in_another_language_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "x <- 1", language="R")
    done = run("train.ipynb", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "train.ipynb cannot run: it has no code cell in Python" in done.stderr


WITHOUT_IPYTHON = """\
import sys
sys.modules["IPython"] = None
from pytest_amp_check.__main__ import run
sys.argv = ["amp-check", "run", "--output-format", "concise", "train.ipynb"]
run()
"""


def test_a_notebook_in_plain_python_needs_no_ipython(tmp_path: Path) -> None:
    write(tmp_path, SETUP, f"%%time\n{STEP}", f"%time x = 1\n{TRAIN}")
    done = run_python("-c", WITHOUT_IPYTHON, cwd=tmp_path, env=environment())
    assert done.stdout.startswith("train.ipynb:cell 3:7:5: AMP201"), done.stderr


def test_without_ipython_a_magic_is_refused_before_the_run(tmp_path: Path) -> None:
    write(tmp_path, "print('ran')", "import torch\n!pip list")
    done = run_python("-c", WITHOUT_IPYTHON, cwd=tmp_path, env=environment())
    assert (done.returncode, done.stdout) == (2, "")
    refusal = "train.ipynb:cell 3:2: `!pip list` needs IPython: pip install ipython, or remove the line"
    assert refusal in done.stderr
