"""Integrations with other tools: flake8, pre-commit, GitHub Actions, ``python -m``, and use without pytest."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from doors import console_script, flake8

import pytest_amp_check
from pytest_amp_check.protocol.rules import RULES

ROOT = Path(pytest_amp_check.__file__).parents[1]
BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
LINE = 1 + next(n for n, line in enumerate(BAD.split("\n")) if "# AMP201" in line)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


# flake8.


def test_flake8_shows_findings_where_it_is_asked_for_them() -> None:
    Path("train.py").write_text(BAD)
    done = flake8("--enable-extensions=AMP", "--select=AMP", "train.py")
    assert done.stderr == ""
    assert done.stdout.startswith(f"train.py:{LINE}:5: AMP201 clip-before-unscale: ")
    assert flake8("--select=AMP", "train.py").stdout == ""
    assert flake8("--enable-extensions=AMP", "--select=AMP", "--ignore=AMP2", "train.py").stdout == ""


def test_flake8_reads_standard_input_other_files_and_our_configuration() -> None:
    Path("helper.py").write_text("def finish(scaler, optimizer):\n    scaler.step(optimizer)\n    scaler.update()\n")
    Path("train.py").write_text(
        "import torch\nfrom helper import finish\n\n\ndef main(model, optimizer, batches):\n"
        "    scaler = torch.amp.GradScaler('cuda')\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n            loss = model(x).sum()\n"
        "        scaler.scale(loss).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        finish(scaler, optimizer)\n"
    )
    on = ("--enable-extensions=AMP", "--select=AMP")
    assert [line.split()[1] for line in flake8(*on, "train.py", "helper.py").stdout.splitlines()] == ["AMP201"]
    assert flake8(*on, "-", stdin=BAD).stdout.startswith(f"stdin:{LINE}:5: AMP201 ")
    Path("amp-check.toml").write_text('ignore = ["AMP201"]\n')
    assert flake8(*on, "train.py").stdout == ""
    assert flake8(*on, "-", stdin=BAD).stdout == ""


def test_flake8_reads_standard_input_by_the_name_of_a_file() -> None:
    """Unsaved text from an editor is checked as the file with the given name."""
    for name in ("train.py", "third_party/train.py", "mild/train.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(GOOD)
    Path("amp-check.toml").write_text('exclude = ["third_party"]\n')
    Path("mild/amp-check.toml").write_text('ignore = ["AMP201"]\n')
    on = ("--enable-extensions=AMP", "--select=AMP", "-")
    for name, shown in (
        ("train.py", True),
        ("new.py", True),
        ("third_party/train.py", False),
        ("mild/train.py", False),
    ):
        done = flake8(*on, "--stdin-display-name", name, stdin=BAD)
        assert done.stderr == ""
        assert done.stdout.startswith(f"{name}:{LINE}:5: AMP201 ") if shown else done.stdout == ""
    Path("train.py").write_text(BAD)
    assert flake8(*on, "--stdin-display-name", "train.py", stdin=GOOD).stdout == ""


def test_flake8_passes_what_is_known_and_what_is_excluded() -> None:
    on = ("--enable-extensions=AMP", "--select=AMP")
    for name in ("old.py", "new.py", "third_party/other.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(BAD)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "old.py", "--baseline", "known.json", "--update-baseline"]
    )
    assert done.returncode == 0
    Path("amp-check.toml").write_text('baseline = "known.json"\nexclude = ["third_party"]\n')
    assert [line.split(":")[0] for line in flake8(*on, ".").stdout.splitlines()] == ["./new.py"]
    assert flake8(*on, "third_party/other.py").stdout == ""


def test_flake8_finds_the_plugin_by_what_is_declared() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert declared["flake8.extension"] == {"AMP": "pytest_amp_check.frontends.flake8:Plugin"}


# pre-commit.


def pre_commit(*argv: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("pre_commit")
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", *argv],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"PRE_COMMIT_HOME": str(Path("home").absolute())},
    )


def hooks() -> list[dict[str, Any]]:
    declared: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return declared


def test_pre_commit_takes_the_hooks() -> None:
    done = pre_commit("validate-manifest", str(ROOT / ".pre-commit-hooks.yaml"))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_pre_commit_runs_the_hooks(hook: dict[str, Any]) -> None:
    """The declared hooks run with the installed package instead of a separate environment."""
    entry = hook["entry"].replace("amp-check", f"{sys.executable} -m pytest_amp_check", 1)
    local = {"repo": "local", "hooks": [{**hook, "entry": entry, "language": "system"}]}
    Path(".pre-commit-config.yaml").write_text(json.dumps({"repos": [local]}))
    Path(".gitignore").write_text("home/\n.amp_check_cache/\n")
    subprocess.run(["git", "init", "-q"], check=True)
    Path("train.py").write_text(BAD)
    Path("notes.txt").write_text("none of ours\n")
    subprocess.run(["git", "add", "-A"], check=True)
    done = pre_commit("run", "--all-files")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Failed" in done.stdout
    fixes = "--fix" in hook["entry"]
    assert ("files were modified by this hook" in done.stdout) == fixes
    assert ("AMP201" in done.stdout) != fixes
    if not fixes:
        Path("train.py").write_text(GOOD)
    subprocess.run(["git", "add", "-A"], check=True)
    done = pre_commit("run", "--all-files")
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout + done.stderr


# GitHub Actions.


def action() -> dict[str, Any]:
    declared: dict[str, Any] = yaml.safe_load((ROOT / "action" / "action.yml").read_text(encoding="utf-8"))
    return declared


def test_the_action_keeps_to_the_schema_of_actions() -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    done = subprocess.run([*command, str(ROOT / "action" / "action.yml")], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it is tried with bash")
def test_the_action_runs(tmp_path: Path) -> None:
    """The steps of the action run, with a Python stand-in that installs the local package into the environment."""
    runner = tmp_path / "runner"
    tools = tmp_path / "tools"
    for folder in (runner, tools):
        folder.mkdir()
    fake = tools / "python"
    command = console_script(tools / "amp-check")
    fake.write_text(
        "#!/usr/bin/env bash\n"
        'if [[ "$*" == "-I -m venv "* ]]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; exit; fi\n'
        f'if [[ "$*" == "-I -m pip "* ]]; then cp "{command}" "$(dirname "$0")/amp-check"\n'
        f'printf "%s\\n" "$@" > "{tmp_path}/installed"; exit; fi\n'
        "exit 9\n"
    )
    fake.chmod(fake.stat().st_mode | stat.S_IEXEC)
    Path("odd name.py").write_text(BAD)
    Path("good.py").write_text(GOOD)
    results = []
    for paths, arguments in (("odd name.py\ngood.py", ""), ("good.py", ""), (".", "--ignore\nAMP201")):
        given = {
            "paths": paths,
            "arguments": arguments,
            "output-format": action()["inputs"]["output-format"]["default"],
            "version": str(ROOT),
        }
        code, out = 0, ""
        outputs = tmp_path / "outputs"
        outputs.write_text("")
        for step in (step for step in action()["runs"]["steps"] if "run" in step):
            env = {name: _filled(value, given) for name, value in step["env"].items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                capture_output=True,
                encoding="utf-8",
                env=os.environ
                | env
                | {
                    "GITHUB_OUTPUT": str(outputs),
                    "RUNNER_TEMP": str(runner),
                    "PATH": f"{tools}:{os.environ['PATH']}",
                },
            )
            code, out = code or done.returncode, out + done.stdout
            assert done.stderr == ""
        shown = out.startswith("::error title=AMP201 clip-before-unscale,file=odd name.py")
        results.append((code, shown, outputs.read_text().split()))
    assert results == [
        (1, True, ["exit-code=1", "findings=1"]),
        (0, False, ["exit-code=0", "findings=0"]),
        (0, False, ["exit-code=0", "findings=0"]),
    ]
    assert Path("installed").read_text().splitlines()[-1] == str(ROOT)


@pytest.mark.skipif(sys.platform == "win32", reason="it is tried with bash")
@pytest.mark.parametrize(
    ("version", "package"),
    [("", "pytest-amp-check"), ("0.1.0", "pytest-amp-check==0.1.0"), (".", "."), ("./here", "./here")],
)
def test_the_action_installs_the_version(tmp_path: Path, version: str, package: str) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'if [[ "$3" == venv ]]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; exit; fi\n'
        f'printf "%s" "${{@: -1}}" > "{tmp_path}/package"\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    variables = {"VERSION": version, "RUNNER_TEMP": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action()["runs"]["steps"][0]["run"]]
    subprocess.run(command, env=os.environ | variables, check=True)
    assert (tmp_path / "package").read_text() == package


def test_the_readme_of_the_action_has_its_inputs_and_outputs() -> None:
    readme = (ROOT / "action" / "README.md").read_text(encoding="utf-8")
    inputs, outputs = readme.split("| output | meaning |")
    shown = dict(re.findall(r"^\| `([\w-]+)` \| (\S+) \|", inputs, re.MULTILINE))
    defaults = {
        name: f"`{declared['default']}`" if declared["default"] else "empty"
        for name, declared in action()["inputs"].items()
    }
    assert shown == defaults
    assert re.findall(r"^\| `([\w-]+)`", outputs, re.MULTILINE) == list(action()["outputs"])


def _filled(text: str, given: dict[str, str]) -> str:
    """Fill in the expressions of a value of the action, as GitHub does."""
    for key, value in given.items():
        text = text.replace(f"${{{{ inputs.{key} }}}}", value)
    assert "${{" not in text
    return text


# Directly.


def test_python_runs_the_package() -> None:
    Path("train.py").write_text(BAD)
    done = subprocess.run([sys.executable, "-m", "pytest_amp_check", "check", "train.py"], capture_output=True)
    assert done.returncode == 1


def test_checking_and_fixing_need_no_pytest_and_no_torch() -> None:
    Path("train.py").write_text(BAD)
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pytest', '_pytest']));"
        "from pytest_amp_check.frontends.cli import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, encoding="utf-8")

    assert run("check", ".", "--color", "always").returncode == 1
    assert run("check", ".", "--fix").returncode == 0
    assert run("explain", "AMP201").stdout.startswith("# AMP201 ")
