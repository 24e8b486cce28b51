"""The README and the other documents are correct: outputs, tables and examples are generated or executed."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarking import benchmark
from marks import marks
from warm import run_command, run_module, run_pytest

from pytest_amp_check.frontends import cli
from pytest_amp_check.frontends.formats import FORMATS
from pytest_amp_check.frontends.options import CLI, OPTIONS, resolve_options
from pytest_amp_check.protocol.rules import RULES

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
#: Documents for users, except pages about messages and flags of other tools. The README comes first.
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.name not in ("messages.md", "ruff.md")
}
README = DOCUMENTS["README.md"]
TEXT = "\n".join(DOCUMENTS.values())
MAKER = benchmark("readme")
replaced: Callable[[str, dict[str, str]], str] = MAKER["replaced"]


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    made: dict[str, str] = MAKER["blocks"]()
    return made


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Return the command lines of the documents, split into words, without comments."""
    lines = "".join(fenced("console")).splitlines()
    return [shlex.split(part, comments=True) for line in lines for part in line.split(" && ")]


@pytest.mark.parametrize(("document", "names"), MAKER["DOCUMENTS"].items(), ids=lambda each: getattr(each, "stem", ""))
def test_what_is_made_from_the_code_is_up_to_date(
    document: Path, names: tuple[str, ...], blocks: dict[str, str]
) -> None:
    text = document.read_text(encoding="utf-8")
    for name in names:
        assert replaced(text, {name: blocks[name]}) == text, "run python benchmarks/readme.py"


def test_each_part_stands_in_one_document(blocks: dict[str, str]) -> None:
    assert set(blocks) == {"output", "whole output", "rules", "modules", "claims"}
    # The README in Chinese repeats the output of the English one.
    documents = {path: names for path, names in MAKER["DOCUMENTS"].items() if path.name != "README.zh.md"}
    assert sorted(blocks) == sorted(name for names in documents.values() for name in names)


def test_the_pages_of_the_rules_are_up_to_date() -> None:
    assert MAKER["stale_pages"]() == [], "run python benchmarks/readme.py"
    assert "# AMP201 clip-before-unscale" in (ROOT / "docs/rules/AMP201.md").read_text(encoding="utf-8")


def test_each_page_has_one_title_and_is_in_the_navigation() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ +- (?:[^:\n]+: )?([\w/.-]+\.md)$|^  - [^:\n]+: (\S+\.md)$", site, re.MULTILINE)) == [
        (name, "") for name in sorted(pages)
    ]
    for name, path in pages.items():
        text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
        assert levels.count(1) == 1, name
        assert levels[0] == 1, name
        assert all(below <= above + 1 for above, below in itertools.pairwise(levels)), name


def test_the_documentation_has_the_changelog() -> None:
    page = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    ((name, line),) = re.findall(r'^--8<-- "(.+):(\d+)"$', page, re.MULTILINE)
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
    # The page has a title of its own.
    assert lines[0].startswith("All notable changes")
    assert [each for each in lines if each.startswith("# ")] == []


def test_the_index_for_language_models_has_a_sentence_about_each_page() -> None:
    index = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(.+)\]\((\S+)\)(?:: (.+))?$", index, re.MULTILINE)
    assert len(listed) == index.count("\n- ") == index.count("](")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    # The lists of rules and messages are sections of the index.
    assert sorted(name for _, name, _ in listed) == sorted(pages - {"rules.md", "messages.md"})
    sentences = {name: sentence for _, name, sentence in listed if not name.startswith("messages/")}
    assert [name for name, sentence in sentences.items() if not sentence.endswith(".")] == []
    assert ("Python API", "api.md") in [(title, name) for title, name, _ in listed]


def test_the_site_has_the_address_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[[str], str] = MAKER["site_configuration"]
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    monkeypatch.setitem(made.__globals__, "find_documentation_url", lambda: "https://amp.example.org")
    assert made(site).count("\nsite_url: https://amp.example.org/\n") == 1
    assert made(made(site)) == made(site)
    monkeypatch.setitem(made.__globals__, "find_documentation_url", lambda: "")
    assert "site_url" not in made(made(site))


def test_the_docstrings_of_the_api_have_no_markup_of_sphinx() -> None:
    """The generators of the site read them as Markdown."""
    names = re.findall(r"^::: ([\w.]+)$", DOCUMENTS["docs/api.md"], re.MULTILINE)
    assert len(names) > 20
    wrong = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        shown = getattr(importlib.import_module(module), attribute)
        members = vars(shown).items() if isinstance(shown, type) else ()
        texts = {name: shown.__doc__} | {
            f"{name}.{key}": getattr(member, "__doc__", None) for key, member in members if not key.startswith("_")
        }
        wrong += [key for key, text in texts.items() if re.search(r":\w+:`", text or "")]
    assert wrong == []


def test_the_page_of_options_has_each_with_its_doors() -> None:
    page = OPTIONS_PAGE
    assert re.findall("^### (.*)$", page, re.MULTILINE) == [option.key for option in OPTIONS]
    for option in OPTIONS:
        section = page.partition(f"\n### {option.key}\n")[2].partition("\n##")[0]
        for name in (
            option.flag,
            option.run_flag,
            option.short_flag,
            option.environment_variable,
            option.pytest_flag,
            option.ini,
        ):
            assert f"`{name}`" in section or not name


def test_the_page_beside_ruff_leaves_no_row_out() -> None:
    page = (ROOT / "docs/ruff.md").read_text(encoding="utf-8")
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--help"], capture_output=True, encoding="utf-8"
    ).stdout
    rows = [line.split()[-1].partition("[")[0] for line in re.findall(r"^ +(?:-\w, )?--[\w-]+", listed, re.MULTILINE)]
    assert len(rows) > 40
    for row in rows:
        assert re.search(rf"^\| `(-\w, )?{row}` \| \S", page, re.MULTILINE), row


def test_the_first_command_prints_the_four_headline_mistakes(blocks: dict[str, str]) -> None:
    assert commands()[:2] == [["pip", "install", "."], ["amp-check", "check", "fixtures/headline.py"]]
    found = re.findall(r"^fixtures/headline\.py:(\d+):\d+: (AMP\d{3}) ", blocks["whole output"], re.MULTILINE)
    assert [code for _, code in found] == ["AMP103", "AMP301", "AMP201", "AMP401"]
    assert {(int(line), code) for line, code in found} == marks((ROOT / "fixtures/headline.py").read_text())


def test_the_shortened_output_leaves_out_and_adds_nothing(blocks: dict[str, str]) -> None:
    whole = blocks["whole output"].splitlines()
    left_out = MAKER["LEFT_OUT"]
    kept = [line for line in blocks["output"].splitlines() if line != left_out]
    assert left_out in blocks["output"].splitlines()
    rest = iter(whole)
    assert all(line in rest for line in kept), "each line, in the order of the whole output"


def test_the_right_headline_trains_and_the_wrong_one_hardly_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    drops = []
    for name in ("headline", "headline_good"):
        runpy.run_path(str(ROOT / "fixtures" / f"{name}.py"), run_name="__main__")
        losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)]
        assert len(losses) == 3
        assert losses == sorted(losses, reverse=True), "it goes down in every epoch"
        drops.append(losses[0] - losses[-1])
    assert drops[1] > 100 * drops[0]


def test_every_command_of_the_documents_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = 0
    for name in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, name, lambda given: 0)
    for words in commands():
        if words and words[0] == "amp-check":
            tried += 1
            argv = words[1 : words.index("<")] if "<" in words else words[1:]
            assert cli.main(argv) == 0, words
    assert tried > 25


def test_every_flag_and_format_is_spoken_of_and_none_is_invented() -> None:
    known = {name for option in OPTIONS for name in (option.flag, option.run_flag, option.pytest_flag) if name}
    spoken = set(re.findall(r"(?<=`)--[a-z][a-z-]+", TEXT))
    assert known <= spoken
    others = {"--amp-check", "--stdin-filename", "--co", "--lf", "--junit-xml", "--no-"}
    of_benchmarks = {"--wheels", "--only", "--dry-run"}
    switched_off = {option.flag.replace("--", "--no-", 1) for option in OPTIONS}
    assert spoken <= known | switched_off | others | of_benchmarks
    assert all(f"`{form}`" in TEXT for form in FORMATS)


def test_the_page_on_adopting_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command works in sequence, in a repository with one unfixable and one fixable mistake."""
    monkeypatch.setenv("AMP_CHECK_CACHE", "0")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    (tmp_path / "hard.py").write_text(RULES["AMP202"].bad_example, encoding="utf-8")
    (tmp_path / "easy.py").write_text(RULES["AMP201"].bad_example, encoding="utf-8")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"], ["branch", "origin/main"]):
        subprocess.run([*git, *words], check=True)
    page = "\n".join(re.findall(r"^```console\n(.*?)^```$", DOCUMENTS["docs/adopting.md"], re.MULTILINE | re.DOTALL))
    ended: list[tuple[str, int]] = []
    for line in filter(None, page.splitlines()):
        words = shlex.split(line, comments=True)
        done = run_command(*words[1:], cwd=tmp_path)
        assert "error:" not in done.stderr, line
        ended.append((words[2] if len(words) > 3 else "", done.returncode))
    assert ended == [
        ("--statistics", 1),
        ("--select", 1),
        ("--diff", 1),
        ("--show-blind-spots", 1),
        ("--fix", 1),
        ("--baseline", 0),
        ("--baseline", 0),
        ("--diff-base", 0),
        ("--add-ignores", 0),
    ]
    assert "scaler.unscale_(optimizer)" in (tmp_path / "easy.py").read_text(encoding="utf-8")
    assert "# amp: ignore[AMP202]" in (tmp_path / "hard.py").read_text(encoding="utf-8")


OPTIONS_PAGE = (ROOT / "docs/options.md").read_text(encoding="utf-8")
TRAINING = [block for block in fenced("python") if "import torch" in block]


def test_there_are_examples_that_train() -> None:
    assert sum("def test_" in block for block in TRAINING) == 4
    assert sum("with record(" in block for block in TRAINING) == 1
    assert sum("with estimate_memory(" in block for block in TRAINING) == 1


@pytest.fixture(scope="module")
def torch_at_hand() -> None:
    """Import torch before pytester remembers the modules, because torch cannot be imported twice."""
    pytest.importorskip("torch")


@pytest.mark.long
@pytest.mark.usefixtures("torch_at_hand", "this_plugin_alone")
@pytest.mark.parametrize("block", TRAINING)
def test_the_examples_do_what_is_said(block: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_example=block)
    if "def test_" in block:
        run_pytest(pytester).assert_outcomes(passed=1)
    else:
        done = run_module("test_example", cwd=pytester.path, env=os.environ)
        assert done.returncode == 0, done.stderr


def test_every_code_that_is_spoken_of_is_a_rule() -> None:
    assert set(re.findall(r"AMP\d{3}", TEXT)) <= set(RULES)


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    taken = []
    for text in fenced("toml"):
        if "[tool.amp-check]" in text:
            (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
            taken.append(resolve_options({}, start=str(tmp_path), frontend=CLI))
    assert len(taken) > 1
    # The example in the README.
    assert taken[0].ignore == ("AMP901",)
    assert taken[0].severity == {"AMP401": "error"}
    assert list(taken[0].per_file_ignores.values()) == [("AMP208",)]


def test_no_link_leads_nowhere() -> None:
    """Links between documents work beside the code too, not only on the site."""
    followed = 0
    for name, text in DOCUMENTS.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
            assert ((ROOT / name).parent / target).exists(), f"{name} leads to {target}"
            followed += 1
    assert followed > 100


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 250


def test_the_table_of_imports_names_the_folders_that_there_are() -> None:
    package = ROOT / "pytest_amp_check"
    folders = {path.name for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert set(re.findall(r"^\| `(\w+)` \| the standard library", DOCUMENTS["docs/how.md"], re.MULTILINE)) == folders


def test_the_maker_says_where_a_place_is_missing() -> None:
    with pytest.raises(SystemExit, match="needs one line <!-- rules -->"):
        replaced("no place\n", {"rules": "text\n"})


def test_the_maker_writes_only_between_its_marks() -> None:
    text = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    assert replaced(text, {"a": "new\n"}) == text.replace("old", "\nnew\n")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_pictures_are_there_small_and_ask_no_server(name: str) -> None:
    for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", DOCUMENTS[name]):
        assert words, f"{path} is not described for who cannot see it"
        picture = (ROOT / name).parent / path
        assert picture.stat().st_size < 200_000
        if picture.suffix == ".svg":
            assert not re.search(
                r"url\(\s*['\"]?http|<(image|script)\b|xlink:href", picture.read_text(encoding="utf-8")
            )
