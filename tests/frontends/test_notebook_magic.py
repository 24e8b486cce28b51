"""The cell magic ``%%amp``, in kernels of Jupyter as users run them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from notebook_cells import SETUP, STEP
from warm import TORCH, run_python

torch = pytest.importorskip("torch")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]

#: The mistake is in line 7 of the cell, with the magic as the first line.
INLINE = """\
%%amp run

for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
loss.dtype
"""


def execute(folder: Path, *cells: str) -> list[Any]:
    """Execute code cells in a kernel. Return the outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # A kernel of this interpreter, whatever kernels are installed.
    kernels = folder / "kernels" / "here"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "here"}}'.replace("'", '"'), "utf-8")
    environment = {
        "JUPYTER_PATH": str(folder),
        "IPYTHONDIR": str(folder),
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client = nbclient.NotebookClient(notebook, kernel_name="here", allow_errors=True, timeout=300)
        client.execute(env={**os.environ, **environment})
    return [cell.outputs for cell in notebook.cells]


def plain(output: Any) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"]))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::ResourceWarning")
def test_a_cell_is_recorded_in_jupyter(tmp_path: Path) -> None:
    *_, earlier, inline, kept, failed, wrong = execute(
        tmp_path,
        "%load_ext pytest_amp_check",
        SETUP,
        STEP,
        "%%amp\nfor _ in range(3):\n    step()",
        INLINE,
        "run.steps_total, [(f.cell, f.line) for f in run.findings]",
        "%%amp\nx = 1\nmissing",
        "%%amp two names\nx = 2",
    )
    # Findings are located in the cell that defines the function.
    (shown,) = earlier
    summary, finding, *_ = shown["data"]["text/plain"].splitlines()
    assert summary == "<Run: 3 steps, 0 skipped, loss scale 1024, findings: AMP201>"
    assert finding.startswith("notebook:cell 3:6: AMP201 [error] clip-before-unscale: ")
    assert "cell 3, line 6" in shown["data"]["text/html"]
    assert "write `scaler.unscale_(optimizer)` in the line before it" in shown["data"]["text/html"]
    # The magic is the first line of its cell, and the last expression is the value of the cell.
    shown, result = inline
    assert "cell 5, line 7" in shown["data"]["text/html"]
    assert result["data"]["text/plain"] == "torch.float32"
    assert kept[0]["data"]["text/plain"] == "(2, [(5, 5), (5, 7)])"
    # An exception ends the cell, below the run.
    shown, raised = failed
    assert shown["data"]["text/plain"] == "<Run: no step, no findings>"
    assert raised["ename"] == "NameError"
    assert "Cell In[7], line 3" in plain(raised)
    assert "notebook_magic" not in plain(raised)
    assert (
        wrong[0]["evalue" if "evalue" in wrong[0] else "text"]
        .strip()
        .endswith("%%amp takes the name of a variable for the recording, not 'two names'")
    )


RECORDED = """\
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell({setup!r}, store_history=True)
shell.run_cell({cell!r}, store_history=True)
run = shell.user_ns["run"]
print(repr(run._repr_html_()))
shell.run_cell("run", store_history=True)
"""


def test_record_without_the_magic_names_cells(tmp_path: Path) -> None:
    begin = "from pytest_amp_check import record\nwith record() as run:\n    step()"
    program = RECORDED.format(setup=SETUP + STEP, cell=begin)
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = run_python("-c", program, cwd=tmp_path, env=environment)
    assert "cell 1, line 13" in done.stdout, done.stderr
    assert "notebook:cell 1:13: AMP201 [error]" in done.stdout


def test_the_magic_needs_torch(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('%load_ext pytest_amp_check')\nshell.run_cell('%%amp\\nprint(1)')\n"
    )
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = run_python("-c", program, cwd=tmp_path, env=environment, loaded=TORCH)
    assert "UsageError: %%amp needs torch" in done.stdout + done.stderr
