"""Configuration files that extend others, the versions they require, their schema, and the commands around them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from warm import run_command, warm_python

from pytest_amp_check import __version__
from pytest_amp_check.frontends.options.files import parse_toml
from pytest_amp_check.frontends.options.schema import make_schema

ROOT = Path(__file__).resolve().parents[2]
#: Modules of the checker of schemas, which take longer to load than a check.
CHECKER = ("check_jsonschema.cli.main_command",)
SCHEMA = ROOT / "docs" / "amp-check.schema.json"
#: AMP201 on line 7, AMP901 on lines 1 and 5.
SOURCE = """\
from torch.cuda.amp import GradScaler
import torch

def train(model, optimizer, batches):
    scaler = GradScaler()
    for batch in batches:
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)


def amp_check(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_command(*argv, env=os.environ | env)


def codes(*argv: str, **env: str) -> set[str]:
    done = amp_check("check", "--output-format", "json", "--no-cache", *argv, **env)
    assert done.returncode < 2, done.stderr
    return {finding["code"] for finding in json.loads(done.stdout)}


def settings(*argv: str) -> dict[str, Any]:
    done = amp_check("check", "--show-settings", "--output-format", "json", *argv)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def error(*argv: str) -> str:
    done = amp_check(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("amp-check: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


class TestExtend:
    def test_options_come_from_the_extended_file_unless_they_are_set(self, tmp_path: Path) -> None:
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "base.toml").write_text('[tool.amp-check]\nignore = ["AMP201"]\nexit-zero = true\n')
        (tmp_path / "shared" / "pyproject.toml").write_text('[tool.amp-check]\nignore = ["AMP201"]\nexit-zero = true\n')
        (tmp_path / "pyproject.toml").write_text('[tool.amp-check]\nextend = "shared/pyproject.toml"\n')
        assert codes() == {"AMP901"}
        assert amp_check("check").returncode == 0
        (tmp_path / "pyproject.toml").write_text(
            '[tool.amp-check]\nextend = "shared/pyproject.toml"\nignore = ["AMP901"]\n'
        )
        assert codes() == {"AMP201"}
        assert amp_check("check").returncode == 0

    def test_a_chain_is_followed_and_each_path_counts_from_its_own_file(self, tmp_path: Path) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "amp-check.toml").write_text('extend = "a/amp-check.toml"\n')
        (tmp_path / "a" / "amp-check.toml").write_text('extend = "b/last.toml"\nbaseline = "known.json"\n')
        (tmp_path / "a" / "b" / "last.toml").write_text('exclude = ["gen/*.py"]\nbaseline = "unused.json"\n')
        found = settings()
        assert found["settings"]["baseline"]["value"] == str(tmp_path / "a" / "known.json")
        assert found["settings"]["baseline"]["origin"] == f"baseline in {tmp_path / 'a' / 'amp-check.toml'}"
        assert found["settings"]["exclude"]["value"] == [f"{os.path.realpath(tmp_path / 'a' / 'b')}/gen/*.py"]
        assert found["files"] == [
            str(tmp_path / "amp-check.toml"),
            str(tmp_path / "a" / "amp-check.toml"),
            str(tmp_path / "a" / "b" / "last.toml"),
        ]

    def test_extending_options_are_taken_from_both(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('extend-exclude = ["old"]\n')
        (tmp_path / "amp-check.toml").write_text('extend = "base.toml"\nextend-exclude = ["gen"]\n')
        assert settings()["settings"]["extend-exclude"]["value"] == ["gen", "old"]

    def test_a_nearer_selection_outweighs_an_extended_one(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('ignore = ["AMP201"]\n')
        (tmp_path / "amp-check.toml").write_text('extend = "base.toml"\nselect = ["AMP201"]\n')
        assert codes() == {"AMP201"}

    @pytest.mark.parametrize("target", ["amp-check.toml", "base.toml"])
    def test_a_circle_is_one_sentence(self, target: str, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text(f'extend = "{target}"\n')
        (tmp_path / "base.toml").write_text('extend = "./amp-check.toml"\n')
        assert "leads in a circle" in error("check")

    def test_a_missing_file_and_a_file_without_the_table_are_errors(self, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text('extend = "base.toml"\n')
        assert f"names {tmp_path / 'base.toml'}, which does not exist" in error("check")
        (tmp_path / "pyproject.toml").write_text("[project]\n")
        (tmp_path / "amp-check.toml").write_text('extend = "pyproject.toml"\n')
        assert "has no table [tool.amp-check]" in error("check")

    def test_it_can_be_given_in_a_variable_but_not_in_isolation(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('ignore = ["AMP201"]\n')
        assert codes(AMP_CHECK_EXTEND="base.toml") == {"AMP901"}
        assert "--isolated reads no file" in error("check", "--isolated", "--config", 'extend = "base.toml"')

    def test_an_extended_file_must_not_write_outside_of_the_project(self, tmp_path: Path) -> None:
        (tmp_path / "project").mkdir()
        (tmp_path / "base.toml").write_text('report = "report.html"\n')
        (tmp_path / "project" / "amp-check.toml").write_text('extend = "../base.toml"\n')
        (tmp_path / "project" / "train.py").write_text(SOURCE)
        assert "outside of" in error("check", "project")
        assert not (tmp_path / "report.html").exists()

    def test_pytest_reads_it(self, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('ignore = ["AMP201"]\n')
        (tmp_path / "amp-check.toml").write_text('extend = "base.toml"\n')
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--amp-check", "--amp-only=static", "."]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ("AMP901" in done.stdout, "AMP201" in done.stdout) == (True, False)


class TestRequiredVersion:
    @pytest.mark.parametrize("allowed", [__version__, f"=={__version__}", f">={__version__},<99", "!=98"])
    def test_an_allowed_version_runs(self, allowed: str, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text(f'required-version = "{allowed}"\n')
        assert codes() == {"AMP201", "AMP901"}

    @pytest.mark.parametrize("where", ["nearest", "extended"])
    def test_another_version_is_an_error_before_unknown_keys(self, where: str, tmp_path: Path) -> None:
        (tmp_path / "base.toml").write_text('required-version = ">=99"\nnewest-key = 1\n')
        (tmp_path / "amp-check.toml").write_text(
            'extend = "base.toml"\nrequired-version = "<99"\n'
            if where == "extended"
            else 'required-version = ">=99"\nnewest-key = 1\n'
        )
        assert f"is >=99, and this is amp-check {__version__}: install one of those versions" in error("check")

    def test_text_that_is_no_version_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text('required-version = "newest"\n')
        assert "must be versions of amp-check, such as" in error("check")


class TestInclude:
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        (tmp_path / "lib.py").mkdir()
        for name in ("lib.py/train_a.py", "lib.py/other.py", "note.md"):
            (tmp_path / name).write_text(SOURCE)

    def files(self, *argv: str) -> list[str]:
        return amp_check("check", "--show-files", *argv).stdout.split()

    def test_only_matching_files_are_found_in_folders(self) -> None:
        assert self.files() == ["lib.py/other.py", "lib.py/train_a.py", "note.md", "train.py"]
        assert self.files("--include", "train*.py") == ["lib.py/train_a.py", "train.py"]
        assert self.files("--include", "train*.py", "--exclude", "lib.py") == ["train.py"]
        assert self.files("--include", "*.py,!other.py") == ["lib.py/train_a.py", "train.py"]

    def test_a_pattern_with_a_folder_counts_from_the_file_of_the_option(self, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text('include = ["lib.py/*.py"]\n')
        assert self.files() == ["lib.py/other.py", "lib.py/train_a.py"]
        assert self.files("lib.py") == ["lib.py/other.py", "lib.py/train_a.py"]

    def test_a_named_file_is_checked_unless_exclude_is_forced(self) -> None:
        assert self.files("--include", "*.ipynb", "train.py") == ["train.py"]
        assert self.files("--include", "*.ipynb", "--force-exclude", "train.py") == []

    def test_the_reason_is_named_where_nothing_is_left(self) -> None:
        done = amp_check("check", "--include", "*.ipynb")
        assert done.returncode == 2
        assert "no Python file, notebook or Markdown that is not excluded was found" in done.stderr


class TestSchema:
    def valid(self, tmp_path: Path, text: str) -> bool:
        path = tmp_path / "pyproject.toml"
        path.write_text(text)
        whole = tmp_path / "whole.json"
        whole.write_text(json.dumps({"properties": {"tool": {"properties": {"amp-check": {"$ref": SCHEMA.as_uri()}}}}}))
        command = [warm_python(CHECKER), "-m", "check_jsonschema", "--schemafile", str(whole), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, 1), done.stderr
        assert (done.returncode == 0) == done.stdout.startswith("ok"), done.stdout
        return done.returncode == 0

    def accepted(self, tmp_path: Path, text: str) -> bool:
        (tmp_path / "pyproject.toml").write_text(text)
        return amp_check("check", "--show-settings").returncode == 0

    @pytest.mark.parametrize(
        "table",
        [
            'select = ["ALL"]\nignore = ["AMP90", "AMP201", "missing-scaler-update"]\nextend-select = ["AMP"]',
            'extend-per-file-ignores = {"tests/*" = ["AMP2"]}\nper-file-ignores = {"a.py" = ["AMP201"]}',
            'severity = {AMP2 = "info", ALL = "error"}\nfail-level = "info"\noutput-format = "sarif"',
            'max-file-size = "2.5 MB"\nmemory-limit = "1.5gib"\njobs = 4\nrank-timeout = 1.5',
            'max-file-size = 0\nmemory-limit = "2000"\ncache = false\ncache-dir = ".cache"',
            'devices = ["cuda", "cpu"]\ndevice = "cuda:1"\ndtype = "bf16"\ntorch-version = "2.4.1+cu1"',
            'helpers = {"lib.finish" = ["steps", "updates"]}\npaths = ["src"]\nexclude = ["a/*"]\ninclude = ["*.py"]',
            'required-version = ">=0.1"',
            "",
        ],
    )
    def test_it_accepts_what_the_tool_accepts(self, table: str, tmp_path: Path) -> None:
        text = f'[project]\nname = "x"\n[tool.ruff]\nline-length = 3\n[tool.amp-check]\n{table}\n'
        assert self.accepted(tmp_path, text)
        assert self.valid(tmp_path, text)

    @pytest.mark.parametrize(
        "table",
        [
            "selct = []",
            "watch = true",
            'select = "AMP201"',
            'select = ["AMP999"]',
            'severity = {AMP201 = "eror"}',
            'severity = {AMP2O1 = "error"}',
            'output-format = "jsn"',
            "jobs = 0",
            "jobs = true",
            'max-file-size = "20 lines"',
            "max-file-size = -1",
            'devices = ["gpu"]',
            'device = "cuda:x"',
            'dtype = "float32"',
            "torch-version = 2.4",
            'helpers = {"lib.finish" = ["step"]}',
            'baseline = ""',
            'fix = "yes"',
            "rank-timeout = -1",
        ],
    )
    def test_it_refuses_what_the_tool_refuses(self, table: str, tmp_path: Path) -> None:
        text = f"[tool.amp-check]\n{table}\n"
        assert not self.accepted(tmp_path, text)
        assert not self.valid(tmp_path, text)

    def test_the_settings_that_are_shown_are_valid_settings(self, tmp_path: Path) -> None:
        (tmp_path / "amp-check.toml").write_text('torch-version = "2.4"\nseverity = {AMP201 = "info"}\n')
        keys = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
        shown = {
            key: row["value"] for key, row in settings()["settings"].items() if key in keys and row["value"] is not None
        }
        assert shown["torch-version"] == "2.4"
        (tmp_path / "shown.json").write_text(json.dumps(shown))
        command = [
            warm_python(CHECKER),
            "-m",
            "check_jsonschema",
            "--schemafile",
            str(SCHEMA),
            str(tmp_path / "shown.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout

    def test_the_schema_itself_is_valid(self) -> None:
        command = [warm_python(CHECKER), "-m", "check_jsonschema", "--check-metaschema", str(SCHEMA)]
        assert subprocess.run(command, capture_output=True, timeout=120).returncode == 0

    def test_validate_pyproject_finds_it(self) -> None:
        declared = parse_toml((ROOT / "pyproject.toml").read_bytes(), "")["project"]["entry-points"]
        group = "validate_pyproject.tool_schema"
        make = EntryPoint("amp-check", declared[group]["amp-check"], group).load()
        assert json.loads(json.dumps(make("amp-check"))) == json.loads(SCHEMA.read_text(encoding="utf-8"))

    @pytest.mark.parametrize(
        ("table", "refused"),
        [
            ({"select": ["AMP2"], "severity": {"AMP201": "info"}, "jobs": 2}, None),
            ({"select": ["AMP999"]}, "`tool.amp-check.select[0]` must be"),
            ({"severity": {"AMP2": "eror"}}, "`tool.amp-check.severity.AMP2` must be"),
            ({"jobs": "many"}, "`tool.amp-check.jobs` must be"),
        ],
    )
    def test_validate_pyproject_applies_it(self, table: dict[str, object], refused: str | None) -> None:
        api = pytest.importorskip("validate_pyproject.api")
        plugins = pytest.importorskip("validate_pyproject.plugins")
        validate = api.Validator(plugins=[plugins.PluginWrapper("amp-check", make_schema)])
        written = {"project": {"name": "x", "version": "1"}, "tool": {"amp-check": table}}
        if refused is None:
            validate(written)
            return
        with pytest.raises(Exception, match=re.escape(refused)) as raised:
            validate(written)
        assert type(raised.value).__name__ == "ValidationError"


class TestClean:
    def test_the_cache_is_removed_and_named(self, tmp_path: Path) -> None:
        amp_check("check", ".")
        cache = tmp_path / ".amp_check_cache"
        assert cache.is_dir()
        done = amp_check("clean")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Removed .amp_check_cache (")
        assert not cache.exists()
        assert (tmp_path / "train.py").exists()
        assert amp_check("clean").stdout == "There is no cache at .amp_check_cache.\n"

    def test_the_configured_folder_is_removed_also_without_a_cache(self, tmp_path: Path) -> None:
        (tmp_path / "project").mkdir()
        (tmp_path / "project" / "train.py").write_text(SOURCE)
        (tmp_path / "project" / "amp-check.toml").write_text('cache-dir = "kept"\n')
        amp_check("check", "project")
        assert (tmp_path / "project" / "kept").is_dir()
        (tmp_path / "project" / "amp-check.toml").write_text('cache-dir = "kept"\ncache = false\n')
        assert amp_check("clean", "project").stdout.startswith("Removed project/kept (")
        assert not (tmp_path / "project" / "kept").exists()

    def test_another_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "weights.bin").write_text("")
        (tmp_path / "empty").mkdir()
        assert "holds something else than a cache of amp-check" in error("clean", "--cache-dir", "data")
        assert "is empty, so it is no cache" in error("clean", "--cache-dir", "empty")
        (tmp_path / "amp-check.toml").write_text('cache-dir = "../elsewhere"\n')
        assert "outside of" in error("clean")
        assert "is no folder" in error("clean", "missing")

    def test_foreign_files_in_a_cache_stay(self, tmp_path: Path) -> None:
        amp_check("check", ".")
        (tmp_path / ".amp_check_cache" / "notes.txt").write_text("mine")
        assert "holds files that no cache of amp-check has" in error("clean")
        assert [path.name for path in (tmp_path / ".amp_check_cache").iterdir()] == ["notes.txt"]

    def test_a_link_is_refused(self, tmp_path: Path) -> None:
        amp_check("check", ".")
        (tmp_path / ".amp_check_cache").rename(tmp_path / "kept")
        (tmp_path / ".amp_check_cache").symlink_to("kept")
        assert "is a symbolic link" in error("clean")
        assert (tmp_path / "kept" / "CACHEDIR.TAG").exists()


class TestVersion:
    def test_it_is_shown_as_text_and_as_json(self) -> None:
        assert amp_check("version").stdout == f"amp-check {__version__}\n" == amp_check("--version").stdout
        assert json.loads(amp_check("version", "--output-format", "json").stdout) == {
            "name": "amp-check",
            "version": __version__,
        }
