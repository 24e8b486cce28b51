"""``--shard I/N``: the parts of a check report together what the whole check reports."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from warm import run_command

from pytest_amp_check.protocol.rules import RULES

#: A helper whose finding the callers decide: one calls it without `unscale_`, one after it.
HELPER = """
    import torch

    def clip(model, scaler, optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
TRAINER = """
    import torch
    from {module} import clip

    def train(model, loader, loss_fn):
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            {unscale}
            clip(model, scaler, optimizer)
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AMP_CHECK_CACHE", raising=False)
    for name, source in {
        "pyproject.toml": "",
        # The callers are in other parts than the helper, before it and after it.
        "a_right.py": TRAINER.format(module="m_right", unscale="scaler.unscale_(optimizer)"),
        "b_wrong.py": TRAINER.format(module="m_wrong", unscale="pass"),
        "m_right.py": HELPER,
        "m_wrong.py": HELPER,
        "n_plain.py": "import os\n",
        "o_suppressed.py": HELPER.replace("1.0)", "1.0)  # amp: ignore[AMP201] the caller unscales"),
        "p_unused.py": HELPER.replace("1.0)", "1.0)  # amp: ignore[AMP201] not needed"),
        "y_right.py": TRAINER.format(module="p_unused", unscale="scaler.unscale_(optimizer)"),
        "z_wrong.py": TRAINER.format(module="m_wrong", unscale="pass"),
        "z_wrong_too.py": TRAINER.format(module="o_suppressed", unscale="pass"),
        **{f"x_{number}.py": RULES[code].bad_example for number, code in enumerate(("AMP101", "AMP202", "AMP901"))},
    }.items():
        Path(name).write_text(textwrap.dedent(source))


def amp_check(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_command("check", "--output-format", "json-lines", *argv, env=os.environ)


def found(*argv: str) -> list[str]:
    done = amp_check(*argv)
    assert done.returncode in (0, 1), done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("cache", ["--no-cache", "--cache"])
@pytest.mark.parametrize("total", [1, 3, 12])
def test_parts_report_each_finding_once(total: int, cache: str) -> None:
    whole = found(cache)
    assert {(Path(each["filename"]).name, each["code"]) for each in map(json.loads, whole)} == {
        ("m_wrong.py", "AMP201"),
        ("p_unused.py", "AMP902"),
        ("x_0.py", "AMP101"),
        ("x_1.py", "AMP202"),
        ("x_2.py", "AMP901"),
    }
    parts = [found(cache, "--shard", f"{number}/{total}") for number in range(1, total + 1)]
    assert sorted(line for part in parts for line in part) == whole
    # The second run takes what the cache holds.
    assert [found(cache, "--shard", f"{number}/{total}") for number in range(1, total + 1)] == parts


def test_a_part_leaves_the_cache_of_the_whole_alone() -> None:
    found("--cache")
    before = {path: path.read_bytes() for path in Path(".amp_check_cache").glob("*.json*")}
    assert len(before) == 1
    found("--cache", "--shard", "1/2")
    found("--cache", "--shard", "2/2")
    after = {path: path.read_bytes() for path in Path(".amp_check_cache").glob("*.json*")}
    assert len(after) == 3
    assert before.items() <= after.items()


def test_parts_list_each_unanalyzed_call_once() -> None:
    Path("w_unreached.py").write_text("def f(scaler, loss):\n    return\n    scaler.scale(loss).backward()\n")
    whole = found("--show-blind-spots")
    assert "AMP904" in {json.loads(line)["code"] for line in whole}
    parts = [found("--show-blind-spots", "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(line for part in parts for line in part) == whole


def test_a_part_with_nothing_to_report_is_clean() -> None:
    done = [amp_check("--shard", f"{number}/16", "--verbose") for number in range(1, 17)]
    assert {each.returncode for each in done} == {0, 1}
    assert not any("was found in" in each.stderr for each in done)


def test_a_baseline_knows_findings_of_other_parts() -> None:
    filled = amp_check("--baseline", "known.json", "--update-baseline")
    assert filled.returncode == 0
    for number in (1, 2, 3):
        done = amp_check("--baseline", "known.json", "--shard", f"{number}/3")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_part_cannot_fill_a_new_baseline() -> None:
    done = amp_check("--baseline", "known.json", "--update-baseline", "--shard", "1/2")
    assert done.returncode == 2
    assert "leave out --shard" in done.stderr
    assert not Path("known.json").exists()


@pytest.mark.parametrize("value", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2", ""])
def test_a_wrong_part_is_one_sentence(value: str) -> None:
    done = amp_check(f"--shard={value}")
    assert done.returncode == 2
    assert f"--shard must be a part and the number of parts, such as 1/4, not {value!r}" in done.stderr


@pytest.mark.parametrize(("more", "left"), [(["--show-files"], "--show-files"), (["-"], "-")])
def test_only_a_check_of_files_is_divided(more: list[str], left: str) -> None:
    done = amp_check("--shard", "1/2", *more)
    assert done.returncode == 2
    assert f"--shard divides a check of files: leave out {left}" in done.stderr
