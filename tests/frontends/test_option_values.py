"""Values of options: their form on a command line and in TOML, the parsed results, and rejected values."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_amp_check.frontends import options
from pytest_amp_check.frontends.options import ConfigError


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("AMP_CHECK_")]:
        monkeypatch.delenv(name)


def toml(key: str, value: str) -> Any:
    """Return the value of an option that a project file sets."""
    Path("pyproject.toml").write_text(f"[tool.amp-check]\n{key} = {value}\n", encoding="utf-8")
    return getattr(options.resolve_options({}, start="."), key.replace("-", "_"))


def variable(key: str, value: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the value of an option that an environment variable sets."""
    name = key.replace("-", "_")
    monkeypatch.setenv(f"AMP_CHECK_{name.upper()}", value)
    return getattr(options.resolve_options({}, start="."), name)


def here(*names: str) -> str:
    return "/".join([os.path.realpath("."), *names])


# Parsed values.


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("select", '["AMP2", "clip-before-unscale"]', ("AMP2", "clip-before-unscale")),
        ("fail-level", '"warning"', "warning"),
        ("output-format", '"json-lines"', "json-lines"),
        ("severity", '{ AMP201 = "info", AMP2 = "warning" }', {"AMP201": "info", "AMP2": "warning"}),
        ("torch-version", '"2.4"', (2, 4)),
        ("torch-version", '"2.10.1"', (2, 10)),
        ("torch-version", '"2.6+cu124"', (2, 6)),
        ("devices", '["cuda", "cpu"]', ("cuda", "cpu")),
        ("jobs", "1", 1),
        ("max-file-size", "7", 7),
        ("max-file-size", '"7"', 7),
        ("max-file-size", '"1.5 KiB"', 1536),
        ("max-file-size", "0", 0),
        ("helpers", '{ "a.b" = ["steps", "updates"] }', {"a.b": ("steps", "updates")}),
        ("device", '"cuda:12"', "cuda:12"),
        ("device", '"emulate"', "emulate"),
        ("dtype", '"bfloat16"', "bfloat16"),
        ("dtype", '"torch.float16"', "float16"),
        ("exit-zero", "true", True),
    ],
)
def test_a_value_of_a_file(key: str, value: str, made: object) -> None:
    assert toml(key, value) == made


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("select", "AMP2,AMP301 AMP4\tAMP5\nAMP601 , ", ("AMP2", "AMP301", "AMP4", "AMP5", "AMP601")),
        ("severity", "AMP201=info,AMP2 : warning", {"AMP201": "info", "AMP2": "warning"}),
        ("devices", "cuda, cpu", ("cuda", "cpu")),
        ("jobs", "12", 12),
        ("max-file-size", "20MB", 20_000_000),
        ("helpers", "a.b:steps,updates; c : clips", {"a.b": ("steps", "updates"), "c": ("clips",)}),
        ("device", "cpu", "cpu"),
        ("dtype", "float16", "float16"),
    ],
)
def test_a_value_of_a_variable(key: str, value: str, made: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable(key, value, monkeypatch) == made


def test_patterns_that_hold_a_folder_count_from_where_they_are_written() -> None:
    patterns = ["a", "b/", "./c", "./d/e", "d/*.py", "**/f", "/abs/g", "!h", "!./i/j/"]
    assert toml("exclude", json.dumps(patterns)) == (
        "a",
        "b",
        "c",
        here("d", "e"),
        here("d", "*.py"),
        "**/f",
        "/abs/g",
        "!h",
        f"!{here('i', 'j')}",
    )


def test_what_stands_in_the_name_of_a_folder_is_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("a[b]*")
    folder.mkdir()
    monkeypatch.chdir(folder)
    parent = os.path.realpath("..")
    assert toml("exclude", '["c/d"]') == (f"{parent}/a[[]b][*]/c/d",)


def test_rules_of_files_are_added_up_on_one_line_and_listed_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written = toml("per-file-ignores", '{ "tests/*" = ["AMP201", "AMP3"], "a.py" = [] }')
    assert written == {here("tests", "*"): ("AMP201", "AMP3"), "a.py": ()}
    Path("pyproject.toml").unlink()
    assert variable("per-file-ignores", "a.py:AMP201,AMP3;a.py:AMP4; b:c:AMP5", monkeypatch) == {
        "a.py": ("AMP201", "AMP3", "AMP4"),
        "b:c": ("AMP5",),
    }


def test_paths_count_from_where_they_are_written() -> None:
    assert toml("paths", '["src", "../x.py", "/abs/y.py"]') == (
        os.path.join(os.getcwd(), "src"),
        os.path.join(os.path.dirname(os.getcwd()), "x.py"),
        "/abs/y.py",
    )
    assert toml("report", '"out/page.html"') == os.path.join(os.getcwd(), "out", "page.html")
    assert toml("cache-dir", '"/abs/cache"') == "/abs/cache"


# Rejected values.


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("select", '"AMP2"', "must be a list of strings"),
        ("select", "[1]", "must be a list of strings"),
        ("fail-level", '"warn"', "must be one of error, warning, info, such as \"error\": did you mean 'warning'?"),
        ("fail-level", "1", "must be one of error, warning, info"),
        ("severity", '"AMP201"', "must be a table of rules, each with a severity"),
        ("severity", '{ AMP201 = "eror" }', "must be one of error, warning, info"),
        ("per-file-ignores", "[]", "must be a table of patterns, each with a list of rules"),
        ("per-file-ignores", '{ "a.py" = "AMP2" }', "each with a list of rules (see 'a.py')"),
        ("torch-version", "2.4", "must be a version of torch"),
        ("torch-version", '"2"', "must be a version of torch"),
        ("torch-version", '"2.x"', "must be a version of torch"),
        ("torch-version", '"v2.4"', "must be a version of torch"),
        ("devices", '["cuda", "gpu"]', "must be types of devices, out of "),
        ("jobs", "0", "must be a whole number from 1"),
        ("jobs", "true", "must be a whole number from 1"),
        ("jobs", '"2"', "must be a whole number from 1"),
        ("max-file-size", "-1", "must be a number of bytes or a size such as 20MB, 0 = no limit"),
        ("max-file-size", '"much"', "must be a number of bytes or a size such as 20MB, 0 = no limit"),
        ("helpers", '["a"]', "must be a table of dotted names, each with a list of events"),
        ("helpers", '{ a = ["step"] }', "did you mean 'steps'?"),
        ("device", '"cuda:x"', "must be auto, cpu, cuda, cuda:N or emulate"),
        ("device", '"cpu:0"', "must be auto, cpu, cuda, cuda:N or emulate"),
        ("device", '"emulat"', "did you mean 'emulate'?"),
        ("dtype", '"float32"', "must be float16 or bfloat16"),
        ("exit-zero", "1", "must be true or false"),
        ("exit-zero", '"true"', "must be true or false"),
        ("cache-dir", '""', "must be the path of a folder"),
        ("baseline", "3", "must be the path of a file"),
        ("baseline", '""', "must be the path of a file"),
    ],
)
def test_a_value_of_a_file_that_is_refused(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toml(key, value)
    assert str(caught.value).startswith(f"{key} in ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("per-file-ignores", "a.py", "must be PATTERN:CODES"),
        ("per-file-ignores", ":AMP2", "must be PATTERN:CODES"),
        ("per-file-ignores", "a.py:", "must be PATTERN:CODES"),
        ("severity", "AMP201", "must be RULE=SEVERITY"),
        ("helpers", "a.b", "must be NAME:EVENTS"),
        ("helpers", ":steps", "must be NAME:EVENTS"),
        ("jobs", "many", "must be a whole number from 1"),
        ("jobs", "0", "must be a whole number from 1"),
        ("rank-timeout", "nan", "must be a number of seconds, 0 = no limit"),
        ("rank-timeout", "inf", "must be a number of seconds, 0 = no limit"),
        ("rank-timeout", "-1", "must be a number of seconds, 0 = no limit"),
        ("rank-timeout", "soon", "must be a number of seconds, 0 = no limit"),
    ],
)
def test_a_value_of_a_variable_that_is_refused(
    key: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"AMP_CHECK_{key.replace('-', '_').upper()}"
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        options.resolve_options({}, start=".", frontend=options.RUN if key == "rank-timeout" else options.CLI)
    assert name in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(("value", "made"), [("0", 0.0), ("1.5", 1.5), ("60", 60.0)])
def test_seconds(value: str, made: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_CHECK_RANK_TIMEOUT", value)
    assert options.resolve_options({}, start=".", frontend=options.RUN).rank_timeout == made


# Effects of options.


def test_the_wider_word_gives_way_to_the_narrower_one_in_any_order() -> None:
    Path("pyproject.toml").write_text(
        '[tool.amp-check]\nseverity = { AMP201 = "info", AMP2 = "warning", ALL = "error" }\n', encoding="utf-8"
    )
    severity = options.make_settings(options.resolve_options({}, start=".")).severity
    assert [severity[code] for code in ("AMP201", "AMP202", "AMP301")] == ["info", "warning", "error"]


@pytest.mark.parametrize(
    ("level", "failing"),
    [("error", ["error"]), ("warning", ["error", "warning"]), ("info", ["error", "warning", "info"])],
)
def test_what_is_at_least_as_bad_as_the_level_fails(level: str, failing: list[str]) -> None:
    Path("pyproject.toml").write_text(f'[tool.amp-check]\nfail-level = "{level}"\n', encoding="utf-8")
    found = options.resolve_options({}, start=".")
    assert [each for each in ("error", "warning", "info") if options.is_failing(found, each)] == failing


@pytest.mark.parametrize("key", ["select", "extend-select", "ignore", "fixable", "extend-fixable", "unfixable"])
def test_an_unknown_rule_is_said_with_its_place(key: str) -> None:
    Path("pyproject.toml").write_text(f'[tool.amp-check]\n{key} = ["AMP2O1"]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{key} in .*: unknown rule 'AMP2O1': did you mean 'AMP201'\?$"):
        options.make_settings(options.resolve_options({}, start="."))


@pytest.mark.parametrize("key", ["per-file-ignores", "extend-per-file-ignores", "severity"])
def test_an_unknown_rule_of_a_table_is_said_with_its_place(key: str) -> None:
    value = '"info"' if key == "severity" else '["AMP2O1"]'
    name = "AMP2O1" if key == "severity" else '"a.py"'
    Path("pyproject.toml").write_text(f"[tool.amp-check]\n{key} = {{ {name} = {value} }}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{key} in .*: unknown rule 'AMP2O1'"):
        options.make_settings(options.resolve_options({}, start="."))


def test_where_the_cache_lies() -> None:
    assert toml("cache", "false") is False
    assert options.find_cache_folder(options.resolve_options({}, start=".")) is None
    Path("pyproject.toml").write_text("[tool.amp-check]\n", encoding="utf-8")
    found = options.find_cache_folder(options.resolve_options({}, start="."))
    assert found is not None
    assert os.path.dirname(found) == os.getcwd()
    Path("pyproject.toml").unlink()
    assert options.find_cache_folder(options.resolve_options({}, start="."), base="/base") == os.path.join(
        "/base", os.path.basename(found)
    )
    Path("pyproject.toml").write_text('[tool.amp-check]\ncache-dir = "elsewhere"\n', encoding="utf-8")
    assert options.find_cache_folder(options.resolve_options({}, start=".")) == os.path.join(os.getcwd(), "elsewhere")
