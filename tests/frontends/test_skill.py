"""The skill for coding agents: its form, and that what it says is so."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from warm import run_command, run_module

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source

SKILL = Path(__file__).resolve().parents[2] / "skills" / "amp-check" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
INLINE = re.findall(r"`(amp-check [^`]+)`", TEXT)
COMMANDS = [*(line for block in CONSOLE for line in block.splitlines()), *INLINE]


def test_the_head_has_the_form_that_agents_read() -> None:
    yaml = pytest.importorskip("yaml")
    _, head, _ = TEXT.split("---\n", 2)
    declared = yaml.safe_load(head)
    assert declared["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", declared["name"])
    assert 0 < len(declared["description"]) <= 1024


def test_an_agent_reads_it_at_a_glance() -> None:
    assert len(TEXT) < 5000


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str, tmp_path: Path) -> None:
    _, *arguments = shlex.split(command)
    program = RULES["AMP201"].bad_example
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "helpers.py").write_text("import torch\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    cell: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "source": program,
        "outputs": [],
        "execution_count": None,
    }
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "train.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    if arguments[0] == "run":
        pytest.importorskip("torch")
        path = os.pathsep.join(filter(None, [str(SKILL.parents[2]), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        done = run_module("pytest_amp_check", *arguments, cwd=tmp_path, env=environment)
    else:
        done = run_command(*arguments, cwd=tmp_path)
    # The program has a mistake, which a fix removes and a page explains.
    assert done.returncode == (0 if "--fix" in arguments or arguments[0] == "explain" else 1), done.stderr
    assert done.stdout


def test_every_rule_exists() -> None:
    assert set(re.findall(r"AMP\d{3}", TEXT)) <= set(RULES)


def test_the_program_that_passes_has_no_finding() -> None:
    loop = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[-1]
    before = (
        "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 1)\nloss_function = nn.MSELoss()\n"
        'optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nscaler = torch.amp.GradScaler("cuda")\n'
    )
    assert check_source(before + loop) == []
    # The example is analyzed: without one of its lines it has a finding.
    assert [found.code for found in check_source(before + re.sub(r" +scaler\.unscale_.*\n", "", loop))] == ["AMP201"]
