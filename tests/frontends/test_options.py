"""One table of options: every row through every frontend, the priority of the sources, and clear errors."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import sample

from pytest_amp_check.frontends.cli import main
from pytest_amp_check.frontends.fixtures import resolve_options as options_of
from pytest_amp_check.frontends.options import (
    CLI,
    FLAG,
    OPTIONS,
    PYTEST,
    RUN,
    TYPES,
    WORDS,
    ConfigError,
    Option,
    Options,
    add_flags,
    kinds,
    make_settings,
    read_flags,
    resolve_options,
)

# Loaded here, so that runs inside this process do not load these modules again each time.
from pytest_amp_check.static import cache, engine  # noqa: F401

pytest_plugins = ["pytester"]

#: option -> (command-line arguments, lines of an ini file, TOML, value). Paths and patterns are relative to the folder
#: in use.
ROWS: dict[str, tuple[list[str], list[str], str, Callable[[str], Any]]] = {
    "select": (["AMP201,AMP1"], ["AMP201 AMP1"], '["AMP201", "AMP1"]', lambda base: ("AMP201", "AMP1")),
    "ignore": (
        ["AMP901", "AMP5 AMP401"],
        ["AMP901,AMP5", "AMP401"],
        '["AMP901", "AMP5", "AMP401"]',
        lambda base: ("AMP901", "AMP5", "AMP401"),
    ),
    "extend-select": (
        ["AMP503,AMP7"],
        ["AMP503 AMP7"],
        '["AMP503", "AMP7"]',
        lambda base: ("AMP503", "AMP7"),
    ),
    "per-file-ignores": (
        ["tests/*.py:AMP201,AMP202", "old.py:AMP901"],
        ["tests/*.py: AMP201, AMP202", "old.py: AMP901"],
        '{"tests/*.py" = ["AMP201", "AMP202"], "old.py" = ["AMP901"]}',
        lambda base: {f"{base}/tests/*.py": ("AMP201", "AMP202"), "old.py": ("AMP901",)},
    ),
    "extend-per-file-ignores": (
        ["gen/*.py:AMP201", "old.py:AMP901,AMP902"],
        ["gen/*.py: AMP201", "old.py: AMP901,AMP902"],
        '{"gen/*.py" = ["AMP201"], "old.py" = ["AMP901", "AMP902"]}',
        lambda base: {f"{base}/gen/*.py": ("AMP201",), "old.py": ("AMP901", "AMP902")},
    ),
    "include": (
        ["train*.py,src/*.py"],
        ["train*.py src/*.py"],
        '["train*.py", "src/*.py"]',
        lambda base: ("train*.py", f"{base}/src/*.py"),
    ),
    "exclude": (
        ["third_party,src/gen/*.py"],
        ["third_party src/gen/*.py"],
        '["third_party", "./src/gen/*.py"]',
        lambda base: ("third_party", f"{base}/src/gen/*.py"),
    ),
    "force-exclude": ([], [], "true", lambda base: True),
    "extend-exclude": (
        ["vendor,src/old/*.py"],
        ["vendor src/old/*.py"],
        '["vendor", "src/old/*.py"]',
        lambda base: ("vendor", f"{base}/src/old/*.py"),
    ),
    "respect-gitignore": ([], ["true"], "true", lambda base: True),
    "ignore-noqa": ([], ["true"], "true", lambda base: True),
    "severity": (
        ["AMP201=warning,AMP901=info"],
        ["AMP201=warning", "AMP901: info"],
        '{AMP201 = "warning", AMP901 = "info"}',
        lambda base: {"AMP201": "warning", "AMP901": "info"},
    ),
    "fail-level": (["error"], ["error"], '"error"', lambda base: "error"),
    "output-format": (["json"], [], '"json"', lambda base: "json"),
    "output-file": (["out/found.txt"], [], "", lambda base: f"{base}/out/found.txt"),
    "exit-zero": ([], [], "true", lambda base: True),
    "exit-non-zero-on-fix": ([], [], "true", lambda base: True),
    "allow-no-steps": ([], [], "true", lambda base: True),
    "allow-no-files": ([], [], "true", lambda base: True),
    "fix": ([], [], "true", lambda base: True),
    "fix-only": ([], [], "true", lambda base: True),
    "fixable": (["AMP201"], [], '["AMP201"]', lambda base: ("AMP201",)),
    "extend-fixable": (["AMP202"], [], '["AMP202"]', lambda base: ("AMP202",)),
    "unfixable": (["AMP201"], [], '["AMP201"]', lambda base: ("AMP201",)),
    "unsafe-fixes": ([], [], "true", lambda base: True),
    "show-fixes": ([], [], "true", lambda base: True),
    "add-ignores": ([], [], "", lambda base: True),
    "baseline": (["known.json"], ["known.json"], '"known.json"', lambda base: f"{base}/known.json"),
    "update-baseline": ([], [], "", lambda base: True),
    "diff-base": (["origin/main"], [], "", lambda base: "origin/main"),
    "diff": ([], [], "true", lambda base: True),
    "cache": ([], [], "true", lambda base: True),
    "cache-dir": ([".known"], [], '".known"', lambda base: f"{base}/.known"),
    "jobs": (["3"], [], "3", lambda base: 3),
    "shard": (["2/3"], [], "", lambda base: (2, 3)),
    "show-blind-spots": ([], [], "true", lambda base: True),
    "statistics": ([], [], "true", lambda base: True),
    "show-files": ([], [], "", lambda base: True),
    "show-settings": ([], [], "", lambda base: True),
    "watch": ([], [], "", lambda base: True),
    "quiet": ([], [], "", lambda base: True),
    "silent": ([], [], "", lambda base: True),
    "verbose": ([], [], "", lambda base: True),
    "color": (["never"], [], "", lambda base: "never"),
    "config": (["ignore=['AMP901']"], [], "", lambda base: ("ignore=['AMP901']",)),
    "extend": ([], ["base/amp-check.toml"], '"base/amp-check.toml"', lambda base: f"{base}/base/amp-check.toml"),
    "required-version": ([], [">=0.1"], '">=0.1"', lambda base: ">=0.1"),
    "isolated": ([], [], "", lambda base: True),
    "paths": ([], ["src train.py"], '["src", "train.py"]', lambda base: (f"{base}/src", f"{base}/train.py")),
    "helpers": (
        ["lib.finish:steps,updates", "lib.clip:clips"],
        ["lib.finish: steps, updates", "lib.clip: clips"],
        '{"lib.finish" = ["steps", "updates"], "lib.clip" = ["clips"]}',
        lambda base: {"lib.finish": ("steps", "updates"), "lib.clip": ("clips",)},
    ),
    "torch-version": (["2.4.1"], ["2.4"], '"2.4"', lambda base: (2, 4)),
    "assume-precision": (["bf16"], ["bfloat16"], '"bfloat16"', lambda base: "bfloat16"),
    "devices": (["cuda,cpu"], ["cuda cpu"], '["cuda", "cpu"]', lambda base: ("cuda", "cpu")),
    "max-file-size": (["2.5MB"], ["2500000"], '"2.5 MB"', lambda base: 2_500_000),
    "only": (["static"], ["static"], '"static"', lambda base: "static"),
    "device": (["cuda", "cuda:1"], ["cuda:1"], '"cuda:1"', lambda base: "cuda:1"),
    "dtype": (["bfloat16"], ["bf16"], '"bfloat16"', lambda base: "bfloat16"),
    "rank-timeout": (["1.5"], [], "1.5", lambda base: 1.5),
    "memory": ([], [], "", lambda base: True),
    "memory-limit": (["1.5GiB"], [], '"1.5 GiB"', lambda base: 3 * 2**29),
    "data": (["out/run.json"], [], "", lambda base: f"{base}/out/run.json"),
    "update-baselines": ([], [], "", lambda base: True),
    "report": (["out/amp.html"], ["out/amp.html"], '"out/amp.html"', lambda base: f"{base}/out/amp.html"),
    "compare": (["out/run.json"], [], "", lambda base: f"{base}/out/run.json"),
}


#: A run without events, as in JSON.
NOTHING = {
    **dict.fromkeys(("title", "torch", "device", "platform"), ""),
    **dict.fromkeys(("steps", "scale_history", "findings"), ()),
    **dict.fromkeys(("steps_total", "skipped_total"), 0),
    **dict.fromkeys(("numerics", "memory", "dtypes")),
}


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_amp_check.frontends.plugin")
    (tmp_path / "src").mkdir()
    (tmp_path / "train.py").write_text("")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "amp-check.toml").write_text("")


def cli(*argv: str, start: str = ".") -> Options:
    parser = argparse.ArgumentParser()
    add_flags(lambda topic: parser.add_argument_group(topic).add_argument, CLI)
    return resolve_options(read_flags(parser.parse_args(argv), CLI), start=start)


def in_pytest(pytester: pytest.Pytester, *argv: str) -> Options:
    pytester.path.joinpath("known.json").write_text('{"version": 1, "findings": {}}')
    if any(word.startswith("--amp-compare") for word in argv):
        # The compared file exists, and a report shows the comparison.
        argv = (*argv, "--amp-report=x.html")
        (pytester.path / "out").mkdir()
        (pytester.path / "out" / "run.json").write_text(json.dumps(NOTHING))
    config = pytester.parseconfigure("--amp-check", *argv)
    return options_of(config)


def value(options: Options, option: Option) -> Any:
    return getattr(options, option.name)


@pytest.fixture(scope="module")
def by_default() -> list[Options]:
    """Return a cache of pytest's options without arguments. The first test that needs them fills the list."""
    return []


def test_every_option_has_a_row_here() -> None:
    assert set(ROWS) == {option.key for option in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_the_default_is_what_the_table_says(
    option: Option, pytester: pytest.Pytester, by_default: list[Options]
) -> None:
    assert value(cli(), option) == option.default
    if not by_default:
        by_default.append(in_pytest(pytester))
    assert value(by_default[0], option) == option.default


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.flag], ids=lambda option: option.key)
def test_the_command_line_sets_it(option: Option, tmp_path: Path) -> None:
    words, _, _, expected = ROWS[option.key]
    argv = [option.flag] if option.kind is FLAG else [part for word in words for part in (option.flag, word)]
    assert value(cli(*argv), option) == expected(os.path.realpath(tmp_path))
    assert cli(*argv).origins[option.name] == option.flag


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.pytest_flag], ids=lambda option: option.key)
def test_the_command_line_of_pytest_sets_it(option: Option, pytester: pytest.Pytester) -> None:
    words, _, _, expected = ROWS[option.key]
    argv = [option.pytest_flag] if option.kind is FLAG else [f"{option.pytest_flag}={word}" for word in words]
    assert value(in_pytest(pytester, *argv), option) == expected(os.path.realpath(pytester.path))


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.ini], ids=lambda option: option.key)
def test_the_configuration_of_pytest_sets_it(option: Option, pytester: pytest.Pytester) -> None:
    _, lines, _, expected = ROWS[option.key]
    pytester.mkdir("src")
    pytester.path.joinpath("train.py").touch()
    # A single value may follow its name on the same line.
    value_lines = f" {lines[0]}\n" if len(lines) == 1 else "\n" + "".join(f"    {line}\n" for line in lines)
    pytester.makeini(f"[pytest]\n{option.ini} ={value_lines}")
    assert value(in_pytest(pytester), option) == expected(os.path.realpath(pytester.path))


def variable(option: Option) -> str:
    """Return the text of an environment variable for the value of a row."""
    words, lines, _, _ = ROWS[option.key]
    if option.kind is FLAG:
        return "true"
    given = words or lines[0].split()
    if option.kind in (WORDS, TYPES):
        return ",".join(given)
    return option.kind.separators[0].join(given) if option.kind.separators else given[-1]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_variable_of_the_environment_sets_it(option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ROWS[option.key][3]
    monkeypatch.setenv(option.environment_variable, variable(option))
    options = cli()
    assert value(options, option) == expected(os.path.realpath(tmp_path))
    assert options.origins[option.name] == f"the variable AMP_CHECK_{option.key.replace('-', '_').upper()}"


def test_a_variable_counts_for_pytest_and_may_take_a_flag_back(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\namp_select = AMP2\namp_ignore_noqa = true\n")
    monkeypatch.setenv("AMP_CHECK_SELECT", "AMP1")
    monkeypatch.setenv("AMP_CHECK_IGNORE_NOQA", "0")
    options = in_pytest(pytester)
    assert (options.select, options.ignore_noqa) == (("AMP1",), False)


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.allowed_in_file], ids=lambda option: option.key)
@pytest.mark.parametrize("name", ["amp-check.toml", ".amp-check.toml"])
def test_a_file_of_our_own_sets_it_without_a_table(option: Option, name: str, tmp_path: Path) -> None:
    _, _, toml, expected = ROWS[option.key]
    (tmp_path / name).write_text(f"{option.key} = {toml}\n")
    (tmp_path / "pyproject.toml").write_text('[tool.amp-check]\nselct = ["is not read"]\n')
    assert value(cli(), option) == expected(os.path.realpath(tmp_path))
    assert cli().origins[option.name] == f"{option.key} in {tmp_path / name}"


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.allowed_in_file], ids=lambda option: option.key)
def test_the_command_line_sets_it_in_toml(option: Option, tmp_path: Path) -> None:
    _, _, toml, expected = ROWS[option.key]
    (tmp_path / "amp-check.toml").write_text("exit-zero = false\n")
    options = cli("--config", f"{option.key} = {toml}")
    assert value(options, option) == expected(os.path.realpath(tmp_path))
    assert options.origins[option.name] == f"--config {option.key}"


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.short_flag or o.off_flag], ids=lambda option: option.key)
def test_a_flag_of_one_letter_is_the_same(option: Option, tmp_path: Path) -> None:
    words, _, _, expected = ROWS[option.key]
    if option.off_flag:
        assert value(cli(option.off_flag), option) is False
    else:
        assert value(cli(option.short_flag, *words), option) == expected(os.path.realpath(tmp_path))


#: kind -> wrong value on the command line, its error, wrong value in TOML, and its error. Any word is a valid pattern,
#: and the existence of a path is checked by the code that opens it.
WRONG: dict[kinds.OptionKind, tuple[str | None, str, str, str]] = {
    WORDS: ("AMP2O1", "unknown rule 'AMP2O1': did you mean 'AMP201'?", '"AMP201"', "must be a list of strings"),
    kinds.PATTERNS: (None, "", "true", "must be a list of strings"),
    kinds.PATHS: (None, "", "3", "must be a list of strings"),
    kinds.IGNORES: ("AMP201", "must be PATTERN:CODES, not 'AMP201'", '["AMP201"]', "must be a table of patterns"),
    kinds.LEVELS: ("AMP201=eror", "did you mean 'error'?", '{AMP201 = "eror"}', "did you mean 'error'?"),
    kinds.FORMAT: ("jsn", "did you mean 'json'?", '"jsn"', "did you mean 'json'?"),
    kinds.LEVEL: ("eror", "did you mean 'error'?", '"eror"', "did you mean 'error'?"),
    kinds.WHEN: ("nver", "did you mean 'never'?", '"nver"', "did you mean 'never'?"),
    FLAG: ("maybe", "maybe", '"yes"', "must be true or false, such as true"),
    kinds.HALF: ("statc", "did you mean 'static'?", '"statc"', "did you mean 'static'?"),
    kinds.DEVICE: ("cud", "did you mean 'cuda'?", '"cud"', "did you mean 'cuda'?"),
    kinds.DTYPE: ("bfloat", "did you mean 'bfloat16'?", '"bfloat"', "did you mean 'bfloat16'?"),
    kinds.PATH: ("", "must be the path of a file, not ''", "3", "must be the path of a file, such as"),
    kinds.FOLDER: ("", "must be the path of a folder, not ''", "3", "must be the path of a folder, such as"),
    kinds.COUNT: ("many", "must be a whole number from 1, not 'many'", "0", "must be a whole number from 1, such as"),
    kinds.SIZE: (
        "20 lines",
        "must be a number of bytes or a size",
        '"20 lines"',
        "must be a number of bytes or a size",
    ),
    kinds.SECONDS: ("soon", "must be a number of seconds", '"soon"', "must be a number of seconds"),
    kinds.HELPERS: ("a.b:clip", "did you mean 'clips'?", '{"a.b" = ["clip"]}', "did you mean 'clips'?"),
    TYPES: ("cudo", "did you mean 'cuda'?", '["cudo"]', "did you mean 'cuda'?"),
    kinds.VERSION: ("two", "must be a version of torch, not 'two'", "2.4", "must be a version of torch, such as"),
    kinds.CONFIGURATION: ("", "must be the path of a file, not ''", "3", "must be the path of a file, such as"),
    kinds.REQUIREMENT: (
        "newest",
        "must be versions of amp-check, not 'newest'",
        "0.1",
        "must be versions of amp-check, such as",
    ),
    kinds.PART: (
        "3/2",
        "must be a part and the number of parts, such as 1/4, not '3/2'",
        "3",
        "must be a part and the number of parts, such as",
    ),
    kinds.REVISION: ("-x", "must be a revision of git, not '-x'", "3", "must be a revision of git, such as"),
    kinds.SOURCES: (
        "jobs",
        "must be the path of a TOML file or KEY=VALUE, not 'jobs'",
        "3",
        "must be a list of strings",
    ),
}


def misspelled(name: str, offset: int = 0) -> list[str]:
    """Return a name with its last letter doubled, a middle letter removed, or two middle letters swapped.

    The offset chooses one of these typos. One typo for each frontend is enough, because the same code makes the
    suggestion for all frontends, and each check takes as long as a run.
    """
    at = len(name) // 2
    made = [name + name[-1], name[:at] + name[at + 1 :], name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]]
    return sample(made, 3, offset)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs an invalid command and returns its one-line error."""

    def ask(*argv: str) -> str:
        code = main(argv)
        out, err = capsys.readouterr()
        said = [line for line in err.splitlines() if not line.startswith(("usage: ", " "))]
        assert (code, out, len(said)) == (2, "", 1), (argv, code, out, err)
        assert said[0].startswith("amp-check: error: "), argv
        return said[0]

    return ask


def refused_by_pytest(pytester: pytest.Pytester, *argv: str) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        in_pytest(pytester, *argv)
    return str(caught.value)


def flags_of(option: Option) -> list[tuple[str, str]]:
    """Return the commands with the option, each with its flag and the ``--no-`` form of a boolean flag."""
    found = [(command, flag) for command, flag in (("check", option.flag), ("run", option.run_flag)) if flag]
    if option.kind is FLAG:
        found += [(command, flag.replace("--", "--no-", 1)) for command, flag in found]
    return found


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_typo_of_its_name_is_answered_wherever_the_command_reads_it(
    option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    offset = OPTIONS.index(option)
    for command, flag in flags_of(option):
        for word in misspelled(flag.removeprefix("--"), offset):
            assert refused(command, f"--{word}", "train.py").endswith(f": --{word}: did you mean '{flag}'?")
    for wrong in misspelled(option.key, offset + 1):
        if option.allowed_in_file:
            said = f": did you mean '{option.key}'?"
            assert refused("check", "--config", f"{wrong} = 1", ".").endswith(f"key '{wrong}' in --config{said}")
            for name, table in (("amp-check.toml", ""), ("pyproject.toml", "[tool.amp-check]\n")):
                (tmp_path / name).write_text(f"{table}{wrong} = 1\n")
                reported = refused("check", ".")
                assert f"unknown key '{wrong}' in " in reported
                assert reported.endswith(f"{name}{said}")
                (tmp_path / name).unlink()
        variable = f"AMP_CHECK_{wrong.upper().replace('-', '_')}"
        monkeypatch.setenv(variable, "1")
        assert refused("check", ".").endswith(
            f": unknown variable {variable}: did you mean {option.environment_variable}?"
        )
        monkeypatch.delenv(variable)


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("option", [o for o in OPTIONS if o.pytest_flag or o.ini], ids=lambda option: option.key)
def test_a_typo_of_its_name_is_answered_wherever_pytest_reads_it(option: Option, pytester: pytest.Pytester) -> None:
    # Words without the prefix are left to pytest.
    offset = OPTIONS.index(option)
    for word in misspelled(option.pytest_flag.removeprefix("--amp-"), offset) if option.pytest_flag else ():
        said = f"amp-check: unrecognized argument --amp-{word}: did you mean '{option.pytest_flag}'?"
        assert refused_by_pytest(pytester, f"--amp-{word}=1") == said
    for word in misspelled(option.ini.removeprefix("amp_"), offset + 1) if option.ini else ():
        name = f"amp_{word}"
        hint = f": did you mean '{option.ini}'?"
        assert refused_by_pytest(pytester, "-o", f"{name}=1") == f"amp-check: unknown option '{name}' of -o{hint}"
        for file, table in (("pytest.ini", "[pytest]"), ("pyproject.toml", "[tool.pytest.ini_options]")):
            path = pytester.path / file
            path.write_text(f"{table}\n{name} = 1\n")
            assert refused_by_pytest(pytester) == f"amp-check: unknown option '{name}' of {path}{hint}"
            path.unlink()


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_a_wrong_value_is_answered_at_every_door_of_the_command(
    option: Option, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    word, said, toml, said_of_toml = WRONG[option.kind]
    for command, flag in flags_of(option) if word is not None else ():
        reported = refused(command, f"{flag}={word}", "train.py")
        assert said in reported
        assert flag in reported
    if word is not None:
        monkeypatch.setenv(option.environment_variable, word)
        reported = refused("check", ".")
        assert said in reported
        assert option.environment_variable in reported or option.key == "config"
        monkeypatch.delenv(option.environment_variable)
    if option.allowed_in_file:
        reported = refused("check", "--config", f"{option.key} = {toml}", ".")
        assert f"--config {option.key} must be" in reported
        assert said_of_toml in reported
        for name, table in (("amp-check.toml", ""), ("pyproject.toml", "[tool.amp-check]\n")):
            (tmp_path / name).write_text(f"{table}{option.key} = {toml}\n")
            reported = refused("check", ".")
            assert f"{option.key} in " in reported
            assert f"{name} must be" in reported
            assert said_of_toml in reported
            (tmp_path / name).unlink()


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("option", [o for o in OPTIONS if o.pytest_flag or o.ini], ids=lambda option: option.key)
def test_a_wrong_value_is_answered_at_every_door_of_pytest(option: Option, pytester: pytest.Pytester) -> None:
    word, said, _, _ = WRONG[option.kind]
    if word is None:
        # The missing file is still reported.
        word, said = ("gone.py", "gone.py does not exist") if option.kind is kinds.PATHS else (None, "")
    if option.pytest_flag and word is not None:
        reported = refused_by_pytest(pytester, f"{option.pytest_flag}={word}")
        assert said in reported
        assert option.pytest_flag in reported
    if option.ini and word is not None:
        reported = refused_by_pytest(pytester, "-o", f"{option.ini}={word}")
        assert reported.startswith(f"amp-check: -o {option.ini}")
        assert said in reported
        path = pytester.path / "pytest.ini"
        path.write_text(f"[pytest]\n{option.ini} = {word}\n")
        reported = refused_by_pytest(pytester)
        assert reported.startswith(f"amp-check: {option.ini} in {path}")
        assert said in reported


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.allowed_in_file], ids=lambda option: option.key)
def test_what_belongs_on_the_command_line_is_no_setting_of_a_file(option: Option, tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text(f"{option.key} = true\n")
    with pytest.raises(
        ConfigError, match=rf"{option.key} in .*amp-check.toml is no setting of a file: give {option.flag}"
    ):
        cli()


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_CHECK_DEBUG", "1")
    monkeypatch.setenv("AMP_CHECK_RUNNER_IMAGE", "ubuntu")
    assert cli().select is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "EXIT_ZERO",
            "maybe",
            "the variable AMP_CHECK_EXIT_ZERO must be one of 1, true, yes, on, 0, false, no, off, not",
        ),
        ("JOBS", "many", "the variable AMP_CHECK_JOBS must be a whole number from 1, not 'many'"),
        ("OUTPUT_FORMAT", "xml", "the variable AMP_CHECK_OUTPUT_FORMAT must be one of full, concise,"),
    ],
)
def test_a_wrong_variable_is_one_clear_sentence(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AMP_CHECK_{name}", text)
    with pytest.raises(ConfigError) as caught:
        cli()
    assert str(caught.value).startswith(said)


def test_doors_by_how_near_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amp-check.toml").write_text("jobs = 1\n")
    assert cli().jobs == 1
    monkeypatch.setenv("AMP_CHECK_JOBS", "2")
    assert cli().jobs == 2
    assert cli("--config", "jobs = 3").jobs == 3
    assert cli("--config", "jobs = 3", "--jobs", "4").jobs == 4


def test_what_extends_is_taken_from_all_doors_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amp-check.toml").write_text('exclude = ["a"]\nextend-exclude = ["b"]\nextend-select = ["AMP503"]\n')
    monkeypatch.setenv("AMP_CHECK_EXTEND_EXCLUDE", "c")
    options = cli("--extend-exclude", "d")
    assert make_settings(options).files.exclude == ("a", "d", "c", "b")
    assert "AMP503" in make_settings(options).select
    assert "AMP201" in make_settings(options).select
    assert make_settings(cli("--select", "AMP1", "--extend-select", "AMP7")).select.isdisjoint({"AMP201"})
    reported = make_settings(cli("--per-file-ignores", "x.py:AMP1", "--extend-per-file-ignores", "x.py:AMP2"))
    assert [pattern for pattern, _ in reported.per_file_ignores] == ["x.py", "x.py"]


def test_what_is_selected_besides_is_taken_back_by_no_farther_ignore(tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text('ignore = ["AMP503", "AMP901"]\n')
    on = make_settings(cli("--extend-select", "AMP503")).select
    assert "AMP503" in on
    assert "AMP901" not in on
    assert "AMP503" not in make_settings(cli("--extend-select", "AMP503", "--ignore", "AMP503")).select


def test_one_file_may_be_named_and_none_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text("jobs = 1\n")
    other = tmp_path / "conf" / "ci.toml"
    other.parent.mkdir()
    other.write_text('jobs = 2\nexclude = ["gen/*.py"]\n')
    assert cli("--config", "conf/ci.toml").jobs == 2
    assert cli("--config", "conf/ci.toml").exclude == (f"{os.path.realpath(other.parent)}/gen/*.py",)
    assert cli("--config", "conf/ci.toml", "--config", "jobs=3").jobs == 3
    assert cli("--isolated").jobs is None
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for argv, said in (
        (["--config", "conf/none.toml"], "none.toml does not exist"),
        (["--config", "pyproject.toml"], r"pyproject.toml has no table \[tool.amp-check\]"),
        (["--config", "jobs"], "--config must be the path of a TOML file or KEY=VALUE, not 'jobs'"),
        (["--config", "jobs = many"], "--config jobs = many is not valid TOML"),
        (["--config", "conf/ci.toml", "--config", "amp-check.toml"], "one file can be given"),
        (["--isolated", "--config", "conf/ci.toml"], "--isolated reads no file"),
    ):
        with pytest.raises(ConfigError, match=said):
            cli(*argv)


def test_our_own_file_without_a_table_says_so(tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text("[tool.amp-check]\njobs = 1\n")
    with pytest.raises(ConfigError, match=r"it holds the keys alone, without \[tool.amp-check\]"):
        cli()


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.allowed_in_file], ids=lambda option: option.key)
def test_pyproject_sets_it_for_both(option: Option, tmp_path: Path, pytester: pytest.Pytester) -> None:
    _, _, toml, expected = ROWS[option.key]
    text = f"[tool.amp-check]\n{option.key} = {toml}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    assert value(cli(start=str(tmp_path)), option) == expected(os.path.realpath(tmp_path))
    pytester.mkdir("src")
    pytester.mkdir("base").joinpath("amp-check.toml").touch()
    pytester.path.joinpath("train.py").touch()
    pytester.path.joinpath("pyproject.toml").write_text(text)
    assert value(in_pytest(pytester), option) == expected(os.path.realpath(pytester.path))


def test_the_nearest_door_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.amp-check]\nselect = ["AMP1"]\nseverity = {AMP201 = "info"}\n')
    assert in_pytest(pytester).select == ("AMP1",)
    pytester.makeini("[pytest]\namp_select = AMP2\n")
    options = in_pytest(pytester)
    assert options.select == ("AMP2",)
    assert options.severity == {"AMP201": "info"}
    assert in_pytest(pytester, "--amp-select=AMP3").select == ("AMP3",)
    assert in_pytest(pytester, "--amp-select=AMP3", "-o", "amp_select=AMP4").select == ("AMP3",)


def test_an_empty_value_is_a_value(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.amp-check]\nignore = ["AMP1"]\n')
    pytester.makeini("[pytest]\namp_ignore =\n")
    assert in_pytest(pytester).ignore == ()


def test_a_flag_can_be_taken_back(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.amp-check]\nexit-zero = true\nstatistics = true\n")
    assert cli().exit_zero
    assert not cli("--no-exit-zero").exit_zero
    assert not cli("--no-statistics").statistics


def test_a_nearer_select_replaces_a_farther_ignore(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.amp-check]\nignore = ["AMP201"]\n')
    assert cli("--select", "AMP201").ignore == ()
    assert cli("--select", "AMP2", "--ignore", "AMP202").ignore == ("AMP202",)
    (tmp_path / "pyproject.toml").write_text('[tool.amp-check]\nselect = ["AMP2"]\nignore = ["AMP201"]\n')
    assert cli().ignore == ("AMP201",)
    assert cli("--ignore", "AMP203").select == ("AMP2",)


def test_pyproject_is_looked_for_upwards_and_must_hold_our_table(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.amp-check]\nselect = ["AMP2"]\nexclude = ["gen/*.py"]\n')
    (tmp_path / "package" / "pyproject.toml").write_text('[project]\ndependencies = ["pytest-amp-check"]\n')
    script = inner / "train.py"
    script.write_text("")
    for start in (inner, script, inner / "not_there.py"):
        options = cli(start=str(start))
        assert options.select == ("AMP2",)
        assert options.exclude == (f"{os.path.realpath(tmp_path)}/gen/*.py",)
    (inner / "pyproject.toml").write_text("# [tool.amp-check] is mentioned only\n")
    assert cli(start=str(inner)).select == ("AMP2",)


@pytest.mark.parametrize(
    "toml",
    [
        '[tool]\namp-check = {select = ["AMP2"]}\n',
        'tool.amp-check.select = ["AMP2"]\n',
        '[tool."amp-check"]\nselect = ["AMP2"]\n',
        '[ tool . amp-check ]\nselect = ["AMP2"]\n',
        'project.dependencies = ["pytest-amp-check"]\n[tool]\namp-check.select = ["AMP2"]\n',
    ],
)
def test_the_table_may_be_written_in_every_way_that_toml_has(tmp_path: Path, toml: str) -> None:
    (tmp_path / "pyproject.toml").write_text(toml)
    assert cli(start=str(tmp_path)).select == ("AMP2",)


@pytest.mark.parametrize("toml", ["[tool]\namp-check = 3\n", "[[tool.amp-check]]\nselect = ['AMP2']\n"])
def test_what_is_no_table_is_not_ignored(tmp_path: Path, toml: str) -> None:
    (tmp_path / "pyproject.toml").write_text(toml)
    with pytest.raises(ConfigError, match="must be a table"):
        cli(start=str(tmp_path))


@pytest.mark.parametrize("text", ["this = is = not TOML\n", "dependencies = ['pytest-amp-check'\n"])
def test_pyproject_without_our_table_is_not_parsed(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    program = (
        "import sys; from pytest_amp_check.frontends.options import resolve_options; resolve_options({}, start='.');"
        "sys.exit('tomllib' in sys.modules or 'tomli' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path).returncode == 0


def test_brackets_in_the_name_of_a_folder_are_no_pattern(tmp_path: Path) -> None:
    odd = tmp_path / "a[b]c"
    odd.mkdir()
    (odd / "pyproject.toml").write_text('[tool.amp-check]\nexclude = ["gen/*.py", "**/x/y.py"]\n')
    assert cli(start=str(odd)).exclude == (f"{os.path.realpath(tmp_path)}/a[[]b]c/gen/*.py", "**/x/y.py")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("selct = ['AMP2']", "unknown key 'selct' in [tool.amp-check] of {path}: did you mean 'select'?"),
        (
            "per_file_ignores = {}",
            "unknown key 'per_file_ignores' in [tool.amp-check] of {path}: did you mean 'per-file-ignores'?",
        ),
        ("zzz = 1", "unknown key 'zzz' in [tool.amp-check] of {path}: it has select, ignore,"),
        ("select = 'AMP2'", "select in [tool.amp-check] of {path} must be a list of strings, such as"),
        ("select = [2]", "select in [tool.amp-check] of {path} must be a list of strings, such as"),
        ("exclude = true", "exclude in [tool.amp-check] of {path} must be a list of strings, such as"),
        ("paths = 'src'", "paths in [tool.amp-check] of {path} must be a list of strings, such as"),
        ("exit-zero = 'yes'", "exit-zero in [tool.amp-check] of {path} must be true or false, such as true"),
        ("statistics = 1", "statistics in [tool.amp-check] of {path} must be true or false, such as true"),
        ("only = 'source'", 'only in [tool.amp-check] of {path} must be one of static, runtime, such as "static"'),
        ("device = 'gpu'", "device in [tool.amp-check] of {path} must be auto, cpu, cuda, cuda:N or emulate, such as"),
        ("device = 1", "device in [tool.amp-check] of {path} must be auto, cpu, cuda, cuda:N or emulate, such as"),
        (
            "helpers = {'lib.finish' = ['clip']}",
            "must be events out of scales, backward, unscales, clips, steps, updates, clears, such as",
        ),
        ("helpers = {'lib.finish' = ['clip']}", "\"clears\"] }}: did you mean 'clips'?"),
        ("helpers = ['clips']", "must be a table of dotted names, each with a list of events, such as"),
        ("devices = ['cudo']", "npu, privateuseone, xla, xpu, such as [\"cuda\"]: did you mean 'cuda'?"),
        ("torch-version = 2.4", "torch-version in [tool.amp-check] of {path} must be a version of torch, such as"),
        ("dtype = 'float32'", "dtype in [tool.amp-check] of {path} must be float16 or bfloat16, such as"),
        ("max-file-size = -1", "must be a number of bytes or a size such as 20MB, 0 = no limit, such as"),
        ("max-file-size = true", "must be a number of bytes or a size such as 20MB, 0 = no limit, such as"),
        ("max-file-size = '20 lines'", "must be a number of bytes or a size such as 20MB, 0 = no limit, such as"),
        ("jobs = 0", "jobs in [tool.amp-check] of {path} must be a whole number from 1, such as 4"),
        ("jobs = '2'", "jobs in [tool.amp-check] of {path} must be a whole number from 1, such as 4"),
        ("jobs = true", "jobs in [tool.amp-check] of {path} must be a whole number from 1, such as 4"),
        ("report = true", "report in [tool.amp-check] of {path} must be the path of a file, such as"),
        ("report = ''", "report in [tool.amp-check] of {path} must be the path of a file, such as"),
        ("output-format = 'xml'", "must be one of full, concise, grouped, agent, json, json-lines, junit, "),
        ("output-format = ['json']", 'sarif, such as "concise"'),
        (
            "severity = {AMP201 = 'fatal'}",
            "severity in [tool.amp-check] of {path} must be one of error, warning, info, such as",
        ),
        ("severity = ['AMP201']", "must be a table of rules, each with a severity, such as"),
        ("per-file-ignores = ['AMP201']", "must be a table of patterns, each with a list of rules, such as"),
        (
            "per-file-ignores = {'x.py' = 'AMP201'}",
            "must be a table of patterns, each with a list of rules (see 'x.py'), such as",
        ),
        ("select = [", "{path} is not valid TOML: "),
    ],
)
def test_a_wrong_pyproject_is_one_clear_sentence(tmp_path: Path, toml: str, said: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool.amp-check]\n{toml}\n")
    with pytest.raises(ConfigError) as caught:
        cli()
    assert said.format(path=path) in str(caught.value)


@pytest.mark.parametrize("name", ["amp_check", "ampcheck", "pytest-amp-check"])
def test_a_table_with_a_wrong_name_is_not_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.{name}]\nselect = []\n")
    with pytest.raises(ConfigError, match=r"amp-check reads \[tool.amp-check\]"):
        cli()


def test_pyproject_that_is_not_text_or_not_a_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.amp-check]\n# \xff\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        cli()
    (tmp_path / "pyproject.toml").write_bytes(b"[[tool.amp-check]]\n")
    with pytest.raises(ConfigError, match="must be a table"):
        cli()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--severity", "AMP201"], "--severity must be RULE=SEVERITY, not 'AMP201'"),
        (["--severity", "AMP201=loud"], "--severity must be one of error, warning, info, not 'AMP201=loud'"),
        (["--per-file-ignores", "AMP201"], "--per-file-ignores must be PATTERN:CODES, not 'AMP201'"),
        (["--jobs", "0"], "--jobs must be a whole number from 1, not '0'"),
        (["--jobs", "many"], "--jobs must be a whole number from 1, not 'many'"),
        (["--per-file-ignores", "x.py:"], "--per-file-ignores must be PATTERN:CODES, not 'x.py:'"),
    ],
)
def test_a_wrong_flag_is_one_clear_sentence(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cli(*argv)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--select", "AMP2O1"], "--select: unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        (
            ["--ignore", "clip-before-unscal"],
            "--ignore: unknown rule 'clip-before-unscal': did you mean 'clip-before-unscale'?",
        ),
        (["--per-file-ignores", "x.py:AMP2O1"], "--per-file-ignores: unknown rule 'AMP2O1': did you mean 'AMP201'?"),
        (["--severity", "AMP2O1=info"], "--severity: unknown rule 'AMP2O1': did you mean 'AMP201'?"),
    ],
)
def test_an_unknown_rule_says_where_it_stands(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(cli(*argv))
    assert str(caught.value) == said


def test_settings_hold_codes(tmp_path: Path) -> None:
    reported = make_settings(
        cli(
            "--select=AMP2",
            "--ignore=clip-before-unscale",
            "--severity=AMP2=info,scaled-grad-touched=error",
            "--per-file-ignores=x.py:AMP20,backward-in-autocast",
            "--exclude=gen",
        )
    )
    assert "AMP202" in reported.select
    assert not {"AMP201", "AMP101"} & reported.select
    assert reported.severity["AMP202"] == "error"
    assert reported.severity["AMP203"] == "info"
    assert "AMP101" not in reported.severity
    ((pattern, codes),) = reported.per_file_ignores
    assert pattern == "x.py"
    assert {"AMP103", "AMP201", "AMP204"} <= codes
    assert "AMP210" not in codes
    assert reported.files.exclude == ("gen",)


@pytest.mark.parametrize("face", [CLI, RUN, PYTEST])
def test_no_flag_has_a_default_that_hides_the_configuration(face: str) -> None:
    parser = argparse.ArgumentParser()
    add_flags(lambda topic: parser.add_argument_group(topic).add_argument, face)
    assert set(read_flags(parser.parse_args([]), face).values()) == {None}
