"""Consistent findings for one file: for every name, configuration and search, on the command line and in pytest."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from warm import run_command, run_pytest

from pytest_amp_check.protocol.rules import RULES

pytest_plugins = ["pytester"]

BAD = RULES["AMP201"].bad_example
GOOD = RULES["AMP201"].good_example
CONFLICT = "x = 1\n<<<<<<< HEAD\ny = 2\n=======\ny = 3\n>>>>>>> other\n"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "AMP_CHECK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def amp_check(*argv: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    return run_command("check", *argv, cwd=cwd)


def found(*argv: str, cwd: str = ".") -> set[tuple[str, str]]:
    """Return the codes of the findings, each with its file."""
    done = amp_check("--output-format", "json", "--no-cache", *argv, cwd=cwd)
    assert done.returncode in (0, 1), done.stderr
    return {(Path(one["filename"]).as_posix(), one["code"]) for one in json.loads(done.stdout)}


# Unreadable files, and files that are not analyzed.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.py", CONFLICT),
        ("old.py", "print 'Python 2'\n"),
        ("cut.py", "def f(:\n"),
        ("latin.py", "# caf\udce9\nx = 1\n"),
        ("notes.ipynb", '{"cells": [{"cell_type": "code", "source": "x = = 1"}]}'),
    ],
)
def test_only_relevant_files_are_parsed(name: str, text: str) -> None:
    relevant = "scaler.step(optimizer)\n"
    Path("pkg").mkdir()
    Path("pkg", name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert found(f"pkg/{name}") == found("pkg") == found() == set()
    text = text.replace("x =", relevant.replace("\n", "\\n") + "x =") if name.endswith("ipynb") else relevant + text
    Path("pkg", name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert found(f"pkg/{name}") == found("pkg") == found() == {(f"pkg/{name}", "AMP903")}


@pytest.mark.parametrize(("name", "text"), [("null.py", "x = 1\0\n"), ("page.ipynb", "<html>")])
def test_what_cannot_be_searched_is_said_of_a_folder_as_of_the_file_by_name(name: str, text: str) -> None:
    Path("pkg").mkdir()
    Path("pkg", name).write_text(text)
    assert found(f"pkg/{name}") == found("pkg") == found() == {(f"pkg/{name}", "AMP903")}


def test_a_file_of_the_cache_that_was_repaired_is_said_no_more() -> None:
    write({"pkg/settings.py": "import amp\nscaler.step(optimizer)\n" + CONFLICT, "pkg/train.py": GOOD})
    assert amp_check("pkg").returncode == 1
    assert amp_check("pkg").returncode == 1
    write({"pkg/settings.py": "x = 1\n"})
    assert amp_check("pkg").returncode == 0


def test_valid_files_without_mixed_precision_stay_silent() -> None:
    cell = '{"cells": [{"cell_type": "code", "source": "!ls\\n%matplotlib inline\\nx = 1"}]}'
    write({"pkg/a.py": "import torch\nx: int = 1\n", "pkg/b.ipynb": cell, "pkg/c.md": "```python\nx = = 1\n```\n"})
    assert found("pkg") == set()


def test_what_is_passed_over_is_counted_and_listed() -> None:
    write({"train.py": GOOD, "data.py": "x = 1\n", "third_party/a.py": BAD, "old.py": BAD})
    Path("circle.py").symlink_to("circle.py")
    done = amp_check(".", "--statistics", "--exclude", "third_party,old.py")
    lines = done.stdout.splitlines()
    assert "1  passed over, holding nothing of mixed precision: data.py" in lines
    assert "2  passed over, left out by `exclude` or `include`: old.py, third_party" in lines
    assert "1  passed over, symbolic links that lead in a circle: circle.py" in lines
    counts = json.loads(amp_check(".", "--statistics", "--output-format", "json").stdout)
    assert {"code": "AMP903", "name": "unreadable-source", "severity": "error", "count": 1} in counts
    passed = {one["reason"]: one["paths"] for one in counts if one["name"] == "passed-over"}
    assert passed["holding nothing of mixed precision"] == ["data.py"]


def test_what_git_ignores_is_counted() -> None:
    write({"train.py": GOOD, ".gitignore": "generated\n*.bak\n", "generated/a.py": BAD, "x.bak": "x"})
    subprocess.run(["git", "init", "-q", "."], check=True)
    assert "1  passed over, ignored by git: generated\n" in amp_check(".", "--statistics").stdout


def test_many_paths_are_counted_and_only_listed_for_programs() -> None:
    write({"train.py": GOOD, **{f"data_{number:02}.py": "x = 1\n" for number in range(40)}})
    assert "40  passed over, holding nothing of mixed precision\n" in amp_check(".", "--statistics").stdout
    (passed,) = json.loads(amp_check(".", "--statistics", "--output-format", "json").stdout)
    assert (passed["count"], len(passed["paths"])) == (40, 40)


def test_a_link_that_leads_in_a_circle_or_nowhere_is_called_so() -> None:
    write({"pkg/train.py": GOOD})
    Path("pkg/circle.py").symlink_to("circle.py")
    for paths in (("pkg",), ("pkg/circle.py",)):
        done = amp_check(*paths)
        assert done.returncode == 1
        assert done.stdout.startswith("pkg/circle.py:1:1: AMP903 [error] ")
        assert "too many levels of symbolic links" in done.stdout
    Path("pkg/gone.py").symlink_to("nowhere.py")
    done = amp_check("pkg/gone.py")
    assert done.returncode == 2
    assert done.stderr == "amp-check: error: `pkg/gone.py` is a symbolic link to `nowhere.py`, which does not exist\n"


# Excluded files, and the configuration that excludes them.

EXCLUDING = '[tool.amp-check]\nexclude = ["third_party", "src/gen/*.py", "!src/gen/kept.py"]\n'


def test_exclude_takes_back_what_follows_an_exclamation_mark() -> None:
    write({"pyproject.toml": EXCLUDING, "src/gen/a.py": BAD, "src/gen/kept.py": BAD, "third_party/b.py": BAD})
    assert found() == {("src/gen/kept.py", "AMP201")}
    assert found(cwd="src/gen") == {("kept.py", "AMP201")}
    # The last matching pattern decides.
    assert found("--exclude", "!*.py,third_party,*.py,!a.py") == {("src/gen/a.py", "AMP201")}
    assert {code for _, code in found("--exclude", "!a.py")} == {"AMP201"}


def test_rules_may_be_off_in_all_files_but_some() -> None:
    write({"src/a.py": BAD, "tests/b.py": BAD})
    assert found("--per-file-ignores", "!src/*:AMP201") == {("src/a.py", "AMP201")}


def test_exclude_holds_for_named_files_where_that_is_forced() -> None:
    names = ["src/gen/a.py", "src/gen/kept.py", "third_party/deep/b.py", "train.py"]
    write({"pyproject.toml": EXCLUDING, **dict.fromkeys(names, BAD)})
    assert {name for name, _ in found(*names)} == set(names)
    assert {name for name, _ in found("--force-exclude", *names)} == {"src/gen/kept.py", "train.py"}
    done = amp_check("--force-exclude", "third_party/deep/b.py")
    assert (done.returncode, done.stdout) == (0, "No AMP mistakes found in 0 files.\n")
    assert done.stderr == (
        "amp-check: warning: no Python file, notebook or Markdown that is not excluded was found in "
        "third_party/deep/b.py\n"
    )
    Path("pyproject.toml").write_text(EXCLUDING + "force-exclude = true\n")
    assert {name for name, _ in found(*names)} == {"src/gen/kept.py", "train.py"}
    assert {name for name, _ in found("--no-force-exclude", *names)} == set(names)


def test_what_is_excluded_by_name_is_not_looked_for_above_the_project() -> None:
    write({"build/project/pyproject.toml": '[tool.amp-check]\nexclude = ["build"]\n', "build/project/train.py": BAD})
    assert found("--force-exclude", "build/project/train.py") == {("build/project/train.py", "AMP201")}
    assert found("--force-exclude", "train.py", cwd="build/project") == {("train.py", "AMP201")}


def test_the_hook_for_pre_commit_forces_what_is_excluded() -> None:
    hooks = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    entries = [line.partition("entry:")[2].split() for line in hooks.splitlines() if "entry:" in line]
    write({"pyproject.toml": '[tool.amp-check]\nexclude = ["old"]\n', "old/a.py": BAD, "b.py": BAD})
    for entry in entries:
        assert entry[:2] == ["amp-check", "check"]
        left = set() if "--fix" in entry else {("b.py", "AMP201")}
        assert found(*entry[2:], "old/a.py", "b.py") == left
    assert Path("old/a.py").read_text() == BAD


NESTED = {
    "pyproject.toml": '[tool.amp-check]\nignore = ["AMP201"]\noutput-format = "concise"\n',
    "train.py": BAD,
    "inner/pyproject.toml": '[tool.amp-check]\nexclude = ["gen"]\nseverity = { AMP201 = "warning" }\n',
    "inner/train.py": BAD,
    "inner/gen/a.py": BAD,
    "inner/plain/pyproject.toml": "[project]\nname = 'plain'\n",
    "inner/plain/b.py": BAD,
    "other/train.py": BAD,
}


@pytest.mark.parametrize(
    "paths",
    [
        (".",),
        ("inner", "other", "train.py"),
        ("train.py", "other", "inner"),
        ("other/train.py", "inner/plain", "inner/train.py", "train.py"),
        ("train.py", "inner/train.py", "inner/plain/b.py", "other/train.py"),
    ],
)
def test_the_nearest_configuration_holds_for_each_file(paths: tuple[str, ...]) -> None:
    write(NESTED)
    done = amp_check("--no-cache", *paths)
    shown = [line.split(": ")[:2] for line in done.stdout.splitlines()[:-2]]
    assert [(place.split(":")[0], said.split("[")[-1]) for place, said in shown] == [
        ("inner/plain/b.py", "warning] clip-before-unscale"),
        ("inner/train.py", "warning] clip-before-unscale"),
    ]
    assert done.returncode == 1


def test_what_the_command_line_says_holds_everywhere() -> None:
    write(NESTED)
    everything = {name for name in NESTED if name.endswith(".py")}
    assert {name for name, _ in found("--select", "AMP201", "--exclude", "nothing")} == everything
    assert found("--ignore", "AMP201") == set()


def test_the_nearest_configuration_is_known_after_changing_it() -> None:
    write(NESTED)
    assert amp_check(".").stdout.count("AMP201") == 2
    write({"inner/pyproject.toml": "[tool.amp-check]\nselect = ['AMP202']\n"})
    assert amp_check(".").stdout.count("AMP201") == 0


def test_fixes_are_those_of_the_nearest_configuration() -> None:
    write(NESTED)
    assert amp_check("--fix", ".").returncode == 0
    assert {name for name in NESTED if name.endswith(".py") and Path(name).read_text() != BAD} == {
        "inner/plain/b.py",
        "inner/train.py",
    }


def test_a_wrong_configuration_in_an_inner_folder_is_said() -> None:
    write({"train.py": GOOD, "inner/pyproject.toml": "[tool.amp-check]\nselct = ['AMP2']\n", "inner/a.py": GOOD})
    for paths in (".", "inner/a.py"):
        done = amp_check(paths)
        assert done.returncode == 2
        assert (
            f"unknown key 'selct' in [tool.amp-check] of {os.path.join('inner', 'pyproject.toml')}"
            in done.stderr.replace(os.path.join(os.getcwd(), ""), "")
        )
        assert "did you mean 'select'?" in done.stderr


# A mistake of two files together.

SCALER = """\
import torch


class Scaler:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def finish(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()
"""
TRAIN = """\
import torch
from pkg.scaler import Scaler


def train(model, loader, optimizer):
    scaler = Scaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.finish(optimizer)
"""
CLIP = 1 + TRAIN.split("\n").index("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
SCALE = 1 + SCALER.split("\n").index("        self.scaler.scale(loss).backward()")
TOGETHER = {"pkg/__init__.py": "", "pkg/scaler.py": SCALER, "train.py": TRAIN, "pyproject.toml": ""}


def places(*argv: str, cwd: str = ".") -> list[tuple[str, int, str]]:
    done = amp_check("--output-format", "json", "--no-cache", *argv, cwd=cwd)
    assert done.returncode in (0, 1), done.stderr
    rows = json.loads(done.stdout)
    return [(Path(one["filename"]).as_posix(), one["location"]["row"], one["code"]) for one in rows]


def test_code_without_its_history_has_a_top_as_well() -> None:
    files = {"pkg/scaler.py": SCALER, "train.py": TRAIN}
    write(files)
    assert places("pkg/scaler.py") == []
    write({"README.md": "# Training\n"})
    assert places("pkg/scaler.py") == [("pkg/scaler.py", SCALE, "AMP201")]
    assert places() == [("train.py", CLIP, "AMP201")]


def test_a_mistake_is_shown_in_the_named_file_that_takes_part_in_it() -> None:
    write(TOGETHER)
    assert places() == [("train.py", CLIP, "AMP201")]
    assert places("train.py") == [("train.py", CLIP, "AMP201")]
    assert places("pkg/scaler.py") == [("pkg/scaler.py", SCALE, "AMP201")]
    assert places("scaler.py", cwd="pkg") == [("scaler.py", SCALE, "AMP201")]
    done = amp_check("pkg/scaler.py")
    assert done.returncode == 1
    assert done.stdout.startswith(f"pkg/scaler.py:{SCALE}:9: AMP201 [error] ")
    assert f"(the mistake is at train.py:{CLIP}, and this line takes part in it)\n" in done.stdout
    assert f"    2. train.py:{CLIP}: the gradients are clipped\n" in done.stdout
    assert "Found 1 error in 1 file.\n" in done.stdout


@pytest.mark.parametrize("names", [["train.py", "pkg/scaler.py"], ["pkg/scaler.py", "train.py"], ["pkg", "train.py"]])
def test_a_mistake_is_shown_once_at_its_own_place_where_that_is_named(names: list[str]) -> None:
    write(TOGETHER)
    assert places(*names) == [("train.py", CLIP, "AMP201")]


def test_a_mistake_in_a_file_that_is_used_is_shown_at_the_call() -> None:
    bad = SCALER.replace("        self.scaler.step", "        clip(optimizer)\n        self.scaler.step")
    clip = "\n\ndef clip(optimizer):\n    for group in optimizer.param_groups:\n"
    clip += "        torch.nn.utils.clip_grad_norm_(group['params'], 1.0)\n"
    good = TRAIN.replace("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "")
    write(TOGETHER | {"pkg/scaler.py": bad + clip, "train.py": good})
    ((name, _, code),) = places()
    assert (name, code) == ("pkg/scaler.py", "AMP201")
    line = 1 + good.split("\n").index("        scaler.finish(optimizer)")
    assert places("train.py") == [("train.py", line, "AMP201")]


def test_what_takes_no_part_is_not_shown() -> None:
    other = "import torch\n\n\ndef region():\n    return torch.autocast('cuda')\n"
    user = "import train\nfrom pkg.other import region\n\nwith region():\n    print(train)\n"
    write(TOGETHER | {"pkg/other.py": other, "main.py": user})
    assert places("pkg/other.py") == []
    assert places("main.py") == []


def test_a_caller_that_was_not_named_puts_right_what_a_named_file_leaves_open() -> None:
    write(
        {
            "pkg/__init__.py": "",
            "setup.py": "",
            "pkg/steps.py": "import torch\n\n\ndef clip(model):\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n\n\n"
            "def step(scaler, optimizer, model, loss):\n    scaler.scale(loss).backward()\n"
            "    clip(model)\n    scaler.step(optimizer)\n    scaler.update()\n",
            "main.py": "from pkg.steps import step\n\n\ndef main(optimizer, model, loss):\n"
            "    import torch\n    step(torch.amp.GradScaler(enabled=False), optimizer, model, loss)\n",
        }
    )
    assert places("pkg/steps.py") == [one for one in places() if one[0] == "pkg/steps.py"]


SAVE = """\
import torch


def save_state(path, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def load_state(path, optimizer):
    optimizer.load_state_dict(torch.load(path)["optimizer"])
"""
LOOP = """\
import torch
from pkg import save_state


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save_state("last.pt", model, optimizer)
"""


@pytest.mark.parametrize("handed_on", [True, False])
def test_a_file_without_a_word_of_mixed_precision_is_wrong_for_what_another_file_does(*, handed_on: bool) -> None:
    files = {"pyproject.toml": "", "pkg/__init__.py": "from .common import save_state\n", "pkg/common.py": SAVE}
    loop = LOOP if handed_on else LOOP.replace("from pkg import", "from pkg.common import")
    write(files | {"train.py": loop})
    saved = next(line for line, text in enumerate(SAVE.split("\n"), 1) if "torch.save(" in text)
    expected = [("pkg/common.py", saved, "AMP401")]
    assert places() == expected
    assert places("pkg/common.py") == expected
    assert places("common.py", cwd="pkg") == [("common.py", *expected[0][1:])]
    assert places("pkg/common.py", "train.py") == expected


@pytest.mark.parametrize(
    "change",
    [
        {"train.py": TRAIN.replace("1.0)\n", "1.0)  # amp: ignore[AMP201] it is meant\n")},
        {"pyproject.toml": "[tool.amp-check]\nper-file-ignores = { 'train.py' = ['AMP201'] }\n"},
        {"pyproject.toml": "[tool.amp-check]\nexclude = ['train.py']\n"},
        {"pyproject.toml": "[tool.amp-check]\nignore = ['AMP201']\n"},
    ],
)
def test_what_is_silenced_where_the_mistake_is_is_silent_where_it_is_shown(change: dict[str, str]) -> None:
    write(TOGETHER | change)
    assert places() == []
    assert places("pkg/scaler.py") == []


def test_what_is_silenced_where_it_is_shown_is_as_loud_as_in_the_folder() -> None:
    silenced = SCALER.replace("(loss).backward()", "(loss).backward()  # amp: ignore[AMP201]")
    write(TOGETHER | {"pkg/scaler.py": silenced})
    whole = {code for _, _, code in places()}
    assert whole == {"AMP201", "AMP902"}
    assert {code for _, _, code in places("pkg/scaler.py")} == whole


def test_the_severity_is_that_of_the_place_of_the_mistake() -> None:
    write(TOGETHER | {"pyproject.toml": "[tool.amp-check]\nseverity = { AMP201 = 'info' }\n"})
    assert amp_check("pkg/scaler.py").returncode == 0
    assert "AMP201 [info]" in amp_check("pkg/scaler.py").stdout


def test_what_is_known_of_the_folder_is_known_of_each_file_by_name() -> None:
    write(TOGETHER)
    known = ("--baseline", "known.json")
    assert amp_check("--no-cache", *known, "--update-baseline").returncode == 0
    for names in (["."], ["train.py"], ["pkg/scaler.py"], ["pkg/__init__.py", "pkg/scaler.py"]):
        assert places(*known, *names) == []
    before = Path("known.json").read_text()
    assert amp_check("--no-cache", *known, "--update-baseline", "pkg/scaler.py").returncode == 0
    assert Path("known.json").read_text() == before
    # New findings in the other file are reported if the named file is a part of them.
    write({"other.py": TRAIN})
    assert places(*known, "pkg/scaler.py") == [("pkg/scaler.py", SCALE, "AMP201")]


def trains(forward: str, last: str, imports: str = "") -> str:
    """Return a loop that leaves its forward or the end of its step to other files of the project."""
    return f"""\
import torch
{imports}

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.loss_scaler = torch.amp.GradScaler("cuda")

    def step(self, x, y):
        self.optimizer.zero_grad()
        {forward}
        self.loss_scaler.scale(loss).backward()
        {last}
"""


BARE = "loss = self.model(x, y)"
CAST = "with torch.autocast('cuda'):\n            loss = self.model(x, y)"
STEPPED = "self.loss_scaler.step(self.optimizer)"
UPDATED = f"{STEPPED}\n        self.loss_scaler.update()"
NET = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        with torch.autocast("cuda"):
            return self.body(x)
"""
FINISH = """\
import torch


def finish(scaler, optimizer):
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
MASK = "import torch\n\n\ndef scores(q, k, m):\n    return torch.matmul(q, k).masked_fill(m, -1e9)\n"
FIT = (
    "import torch, train\n\n\ndef fit(x):\n    with torch.autocast('cuda'):\n        return train.scores(x, x, x > 0)\n"
)


@pytest.mark.parametrize(
    ("train", "other", "text", "expected"),
    [
        # Its model may be of any class of the project.
        (trains(BARE, UPDATED), "models/net.py", NET, []),
        (trains(BARE, UPDATED), "models/net.py", NET.replace("torch.autocast", "torch.device"), ["AMP110"]),
        # Code with access to its scaler may use the same attribute name, without importing the file.
        (trains(CAST, STEPPED), "hooks/after.py", "def after(runner):\n    runner.loss_scaler.update()\n", []),
        (trains(CAST, STEPPED), "hooks/after.py", "def after(runner):\n    runner.other.update()\n", ["AMP206"]),
        # Its import resolves to another folder: other code puts that folder on the path.
        (
            trains(CAST, "finish(self.loss_scaler, self.optimizer)", "from precision import finish\n"),
            "tools/common/precision.py",
            FINISH,
            ["AMP201"],
        ),
        # Only importing files determine if it runs in float16.
        (MASK, "fit.py", FIT, ["AMP506"]),
        (MASK, "fit.py", FIT.replace("import torch, train", "import torch"), ["AMP506"]),
        (MASK, "far/fit.py", FIT.replace("import torch, train", "import torch"), []),
    ],
)
def test_a_named_file_is_read_in_its_whole_project(train: str, other: str, text: str, expected: list[str]) -> None:
    write({"pyproject.toml": "", "train.py": train, other: text})
    assert [code for _, _, code in places(".")] == expected
    assert [code for _, _, code in places("train.py")] == expected
    # The cache keeps no result that depends on another file.
    assert sorted(code for _, code in found_with_cache("train.py")) == expected
    write({other: "x = 1\n"})
    left = [code for _, _, code in places(".")]
    assert [code for _, _, code in places("train.py")] == left
    assert sorted(code for _, code in found_with_cache("train.py")) == left


def found_with_cache(*argv: str) -> list[tuple[str, str]]:
    done = amp_check("--output-format", "json", "--cache-dir", "kept", *argv)
    assert done.returncode in (0, 1), done.stderr
    return [(one["filename"], one["code"]) for one in json.loads(done.stdout)]


def test_a_named_file_that_its_folder_leaves_out_is_read_with_what_lies_beside_it() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n        "
    own = trains(CAST, f"{clip}finish(self.loss_scaler, self.optimizer)", "from precision import finish\n")
    finish = "".join(line for line in FINISH.splitlines(keepends=True) if "clip" not in line)
    excluding = "[tool.amp-check]\nexclude = ['old']\n"
    write({"pyproject.toml": excluding, "old/train.py": own, "old/precision.py": finish, "main.py": "import torch\n"})
    assert places(".") == []
    assert [(name, code) for name, _, code in places("old/train.py")] == [("old/train.py", "AMP201")]


def test_a_file_that_another_loads_by_a_name_of_the_run_alone_is_not_read_with_it() -> None:
    # The use of it in such a program is unknown, which is no reason to analyze that program as well.
    by_name = "import importlib\n\nscaler = importlib.import_module('pkg.' + input())\n" + trains(BARE, UPDATED)
    write(TOGETHER | {"train.py": by_name})
    done = amp_check("-v", "--no-cache", "pkg/scaler.py")
    assert "amp-check: read pkg/scaler.py:8 backward\n" in done.stderr
    assert "train.py" not in done.stderr


def test_a_fix_of_a_named_file_leaves_what_other_folders_take_from_it() -> None:
    own = "import torch\nfrom torch.cuda.amp import autocast\n\nwith autocast():\n    print(torch)\n"
    takes = "from lib.amp import autocast\n\nwith autocast():\n    print()\n"
    write({"pyproject.toml": "", "requirements.txt": "torch>=2.4\n", "lib/__init__.py": "", "lib/amp.py": own})
    write({"app/main.py": takes})
    # Called without a device from there, it must not change.
    for name in (".", "lib/amp.py"):
        amp_check("--fix", "--no-cache", name)
        assert Path("lib/amp.py").read_text() == own
    write({"app/main.py": "import lib.amp\n"})
    amp_check("--fix", "--no-cache", "lib/amp.py")
    assert 'autocast("cuda"' in Path("lib/amp.py").read_text()


def test_no_fix_is_made_where_a_mistake_is_only_shown() -> None:
    write(TOGETHER)
    for flags in (("--fix",), ("--fix", "--unsafe-fixes"), ("--diff", "--unsafe-fixes")):
        amp_check(*flags, "pkg/scaler.py")
        assert (Path("pkg/scaler.py").read_text(), Path("train.py").read_text()) == (SCALER, TRAIN)
    assert "[*]" not in amp_check("pkg/scaler.py").stdout


SAVES = RULES["AMP401"].bad_example
LOADS = "import torch\n\n\ndef resume(path, optimizer):\n    optimizer.load_state_dict(torch.load(path)['optimizer'])\n"
TRAINS_IN_16 = "from lightning import Trainer\n\ntrainer = Trainer(precision='16-mixed')\n"


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("others", [{}, {"resume.py": LOADS}, {"old/resume.py": LOADS, "fit.py": TRAINS_IN_16}])
@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_a_mistake_weighs_the_same_wherever_it_is_asked_for(
    others: dict[str, str], name: str, pytester: pytest.Pytester
) -> None:
    cells = json.dumps({"cells": [{"cell_type": "code", "source": SAVES}]})
    write(
        {"pyproject.toml": "[tool.amp-check]\nexclude = ['old']\n", name: cells if "ipynb" in name else SAVES, **others}
    )

    def said(*argv: str) -> list[tuple[str, str, str]]:
        rows = json.loads(amp_check("--output-format", "json", "--no-cache", *argv).stdout)
        return [(row["filename"], row["code"], row["severity"]) for row in rows]

    # Without a file that loads the state of an optimizer, the project resumes no training yet.
    expected = "warning" if "resume.py" in others else "info"
    assert said(".") == said(name) == said(name, *filter(os.path.exists, ["fit.py"])) == [(name, "AMP401", expected)]
    result = run_pytest(
        pytester,
        *("--amp-check", "--amp-only=static", "-p", "no:cacheprovider", "-o", "python_files=", "."),
        trains=False,
    )
    assert result.ret == (expected == "warning")


def test_a_file_beside_no_project_is_looked_for_in_its_package_alone() -> None:
    write({"far/deep/other.py": TRAIN.replace("pkg.scaler", "scaler"), "far/scaler.py": SCALER})
    assert places("far/scaler.py") == []
    write({"far/train.py": TRAIN.replace("pkg.scaler", "scaler")})
    assert places("far/scaler.py") == [("far/scaler.py", SCALE, "AMP201")]
    write({"near/pkg/__init__.py": "", "near/pkg/scaler.py": SCALER, "near/pkg/sub/train.py": TRAIN})
    assert places("near/pkg/scaler.py") == [("near/pkg/scaler.py", SCALE, "AMP201")]
