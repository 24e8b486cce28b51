"""The cache: a warm run has the findings of a cold run, regardless of changes in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import reduced

from pytest_amp_check.frontends.cli import main
from pytest_amp_check.static import file_analysis
from pytest_amp_check.static.engine import check_paths
from pytest_amp_check.static.settings import FileSelection, Settings
from pytest_amp_check.static.sources import prefilter

HELPER = "def clip(model):\n    import torch\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
UNSCALING = (
    "def clip(model, scaler=None, optimizer=None):\n    import torch\n    scaler.unscale_(optimizer)\n"
    "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
)
TRAINER = """\
import torch
from lib.steps import clip

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in []:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(x) - y).pow(2).mean()
    scaler.scale(loss).backward()
    clip(model, scaler, optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
DIRECT = TRAINER.replace("from lib.steps import clip\n", "").replace(
    "clip(model, scaler, optimizer)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
)
HELPER_OF_THREE = HELPER.replace("clip(model)", "clip(model, scaler=None, optimizer=None)")
LATER = 1_000_000_000


def put(path: Path, content: str, age: int = 100) -> None:
    """Write a file whose modification time is ``age`` seconds in the past."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    at = path.stat().st_mtime_ns - age * LATER
    os.utime(path, ns=(at, at))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs start long after the files were written, so that file times are trusted."""
    from pytest_amp_check.static import cache

    monkeypatch.setattr(cache, "time_ns", lambda: int(4e18))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    put(root / "train.py", TRAINER)
    put(root / "lib" / "__init__.py", "")
    put(root / "lib" / "steps.py", HELPER_OF_THREE)
    put(root / "direct.py", DIRECT)
    put(root / "quiet.py", "x = 1\n")
    return root


def said(root: Path, cache: str | None = None, settings: Settings | None = None) -> str:
    """Return the complete output of a check of a tree."""
    report = check_paths([str(root)], settings, cache=cache)
    shown = [(f.as_dict(), [s.site.list_frames().__repr__() for s in f.trace]) for f in report.findings]
    return json.dumps([shown, report.files], indent=1)


def same(root: Path, cache: str, settings: Settings | None = None) -> str:
    """Return the output without the cache, and check that two runs with the cache have the same output."""
    cold = said(root, None, settings)
    assert said(root, cache, settings) == cold
    assert said(root, cache, settings) == cold
    return cold


def opened(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> set[str]:
    """Return the names of the files that are analyzed or prescanned during an action."""
    found: set[str] = set()
    analyse, look = file_analysis.analyze, prefilter.prescan_file

    def analysing(text: str, path: str, *rest: Any, **more: Any) -> Any:
        found.add(os.path.basename(path))
        return analyse(text, path, *rest, **more)

    def looking(path: str, **more: Any) -> Any:
        found.add(os.path.basename(path))
        return look(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(file_analysis, "analyze", analysing)
        patch.setattr(prefilter, "prescan_file", looking)
        act()
    return found


def test_nothing_that_did_not_change_is_opened(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    cache = str(tmp_path / "cache")
    assert "train.py" in opened(monkeypatch, lambda: said(tree, cache))
    assert opened(monkeypatch, lambda: said(tree, cache)) == set()
    # Only one file uses this one.
    put(tree / "lib" / "steps.py", HELPER_OF_THREE + "\n")
    assert opened(monkeypatch, lambda: said(tree, cache)) == {"steps.py", "train.py"}
    put(tree / "direct.py", DIRECT + "\n")
    assert opened(monkeypatch, lambda: said(tree, cache)) == {"direct.py"}
    assert "AMP201" in same(tree, cache)


def test_only_files_that_may_depend_on_any_file_are_analyzed_after_an_edit_elsewhere(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    """The dtype of this fill may be chosen anywhere in the tree. The largest file is analyzed first."""
    cache = str(tmp_path / "cache")
    fill = "import torch\n\ndef scores(q, k, m):\n    return (q @ k).masked_fill(m, -1e9)\n"
    put(tree / "attend.py", fill + "#" * len(TRAINER))
    assert {"attend.py", "direct.py", "train.py"} <= opened(monkeypatch, lambda: said(tree, cache))
    put(tree / "quiet.py", "x = 2\n")
    assert opened(monkeypatch, lambda: said(tree, cache)) == {"attend.py", "quiet.py"}


def test_a_file_that_is_touched_is_not_analysed_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    cache = str(tmp_path / "cache")
    said(tree, cache)
    os.utime(tree / "train.py")
    analysed: list[str] = []
    monkeypatch.setattr(file_analysis, "analyze", lambda text, path, *a, **k: analysed.append(path))
    said(tree, cache)
    assert analysed == []


def test_a_followed_file_changes_what_its_importer_shows(tree: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    before = same(tree, cache)
    put(tree / "lib" / "steps.py", UNSCALING)
    after = same(tree, cache)
    assert before.count('"code": "AMP201"') == 2
    assert after.count('"code": "AMP201"') == 1


def test_a_file_in_which_nothing_mattered_that_a_package_hands_on(tree: Path, tmp_path: Path) -> None:
    """A prescanned file without relevant code may become relevant after an edit."""
    cache = str(tmp_path / "cache")
    put(tree / "lib" / "steps.py", "from .inner import clip\n")
    others = "\ndef other(optimizer):\n    optimizer.step()\n"
    put(tree / "lib" / "inner.py", "def clip(*args):\n    return 1\n" + others)
    before = same(tree, cache)
    put(tree / "lib" / "inner.py", HELPER_OF_THREE + others)
    after = same(tree, cache)
    assert (before.count('"code": "AMP201"'), after.count('"code": "AMP201"')) == (1, 2)


def test_a_new_file_to_which_an_import_leads(tree: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    (tree / "lib" / "steps.py").unlink()
    before = same(tree, cache)
    put(tree / "lib" / "steps.py", HELPER_OF_THREE)
    after = same(tree, cache)
    assert (before.count('"code": "AMP201"'), after.count('"code": "AMP201"')) == (1, 2)
    (tree / "lib" / "steps.py").unlink()
    assert same(tree, cache) == before


def test_a_word_in_another_file_that_changes_what_this_one_means(tmp_path: Path, settled: None) -> None:
    """A fill that float16 cannot represent depends on float16 in the tree."""
    root, cache = tmp_path / "project", str(tmp_path / "cache")
    put(root / "mask.py", "import torch\n\ndef scores(q, k, m):\n    return torch.matmul(q, k).masked_fill(m, -1e9)\n")
    put(root / "other.py", "x = 1\n")
    assert "AMP506" not in same(root, cache)
    put(root / "other.py", "dtype = 'float16'\n")
    assert "AMP506" in same(root, cache)


def test_a_new_file_for_an_import_of_a_module_that_two_share(tmp_path: Path, settled: None) -> None:
    root, cache = tmp_path / "project", str(tmp_path / "cache")
    put(root / "shared.py", "from last import clip\n\ndef before(model):\n    model.zero_grad\n    clip(model)\n")
    for name in ("one", "two"):
        text = DIRECT.replace("import torch\n", "import torch\nfrom shared import before\n", 1)
        put(
            root / f"{name}.py",
            text.replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "before(model)"),
        )
    assert "AMP201" not in same(root, cache)
    put(root / "last.py", HELPER)
    report = check_paths([str(root)], cache=cache)
    assert "AMP201" in same(root, cache)
    callers = {s.list_frames()[0].path for f in report.findings for s in [f.site] if f.code == "AMP201"}
    assert len(callers) == 1


def test_a_file_that_is_named_follows_files_that_are_not(tree: Path, tmp_path: Path, settled: None) -> None:
    cache, train = str(tmp_path / "cache"), tree / "named.py"
    put(tree / "pyproject.toml", "")
    made = DIRECT.replace("    torch.nn", "    ready(scaler, optimizer)\n    torch.nn")
    put(train, "from lib.ready import ready\n" + made)
    put(tree / "lib" / "ready.py", "def ready(scaler, optimizer):\n    scaler.unscale_(optimizer)\n")
    assert "AMP201" not in same(train, cache)
    put(tree / "lib" / "ready.py", "def ready(scaler, optimizer):\n    scaler.get_scale()\n")
    assert "AMP201" in same(train, cache)
    (tree / "lib" / "ready.py").unlink()
    same(train, cache)
    put(tree / "lib" / "ready.py", "def ready(scaler, optimizer):\n    scaler.unscale_(optimizer)\n")
    assert "AMP201" not in same(train, cache)


def test_another_content_of_the_same_size_and_time(tree: Path, tmp_path: Path) -> None:
    cache, path = str(tmp_path / "cache"), tree / "direct.py"
    wrong = path.read_text()
    right = wrong.replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "pass".ljust(55))
    assert len(wrong) == len(right)
    at = path.stat().st_mtime_ns
    before = same(tree, cache)
    path.write_text(right)
    os.utime(path, ns=(at, at))
    assert same(tree, cache) != before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'{"key": 1}', b"\xff\xfe", b"[" * 100_000, b'{"key": NaN}', b"\x80\x04K\x01."],
)
def test_a_file_that_is_no_cache(tree: Path, tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "cache"
    cold = same(tree, str(cache))
    (file,) = cache.glob("*.json")
    good = json.loads(file.read_bytes())
    file.write_bytes(content)
    assert said(tree, str(cache)) == cold
    assert json.loads(file.read_bytes())["entries"].keys() == good["entries"].keys()


HOSTILE: list[Any] = [None, [], {}, "\x1b[31m", -1, 10**12, True, ["/etc/passwd"], [[[]]], "a b c d"]


@given(data=st.data())
@settings(max_examples=reduced(60, 0.4), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_cache_that_says_nonsense(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """With any replaced values in the cache, a run ends and shows valid findings."""
    folder = tmp_path_factory.mktemp("hostile")
    put(folder / "a" / "direct.py", DIRECT)
    put(folder / "a" / "notes.md", f"```python\n{DIRECT}```\n")
    cache = folder / "cache"
    said(folder / "a", str(cache))
    (file,) = cache.glob("*.json")
    whole = json.loads(file.read_bytes())
    at = whole[data.draw(st.sampled_from(["files", "entries"]))]
    for _ in range(data.draw(st.integers(0, 9))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        inner = [key for key in keys if isinstance(at[key], (dict, list)) and at[key]]
        if not inner:
            break
        at = at[data.draw(st.sampled_from(inner))]
    key = data.draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
    at[key] = data.draw(st.sampled_from(HOSTILE))
    file.write_text(json.dumps(whole))
    shown = said(folder / "a", str(cache))
    assert "\\u001b" not in shown
    assert "passwd" not in shown


def test_a_link_that_a_repository_brings_is_not_written_through(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_paths([str(tree)], cache=str(cache))
    (file,) = cache.glob("*.json")
    file.unlink()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in (f"{file.name}.{os.getpid()}", file.name):
        (cache / name).symlink_to(precious)
    assert [f.code for f in check_paths([str(tree)], cache=str(cache)).findings]
    assert precious.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tree: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    check_paths([str(tree)], cache=str(cache))
    (file,) = cache.glob("*.json")
    file.unlink()
    os.mkfifo(file)
    assert [f.code for f in check_paths([str(tree)], cache=str(cache)).findings]


def test_a_folder_that_cannot_be_written(tree: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    assert said(tree, str(blocked)) == said(tree)
    assert said(tree, str(blocked / "below")) == said(tree)
    assert blocked.read_text() == "a file where a folder should be"


def test_every_setting_after_every_other(tree: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    put(tree / "silent.py", DIRECT.replace("1.0)", "1.0)  # amp: ignore[AMP201] known"))
    put(tree / "notes.md", f"Train:\n\n```python\n{DIRECT}```\n")
    put(tree / "unused.py", "x = 1  # amp: ignore[AMP201]\n")
    put(tree / "broken.py", DIRECT + "def\n")
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": DIRECT}]
    put(tree / "book.ipynb", json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    ways = [
        Settings(),
        Settings(select=frozenset({"AMP201"})),
        Settings(select=frozenset({"AMP902", "AMP903"})),
        Settings(severity={"AMP201": "info"}),
        Settings(per_file_ignores=(("*.md", frozenset({"AMP201"})),)),
        Settings(files=FileSelection(exclude=("lib",))),
        Settings(largest=400),
    ]
    shown = [same(tree, cache, way) for way in ways * 2]
    assert shown[: len(ways)] == shown[len(ways) :]
    assert len(set(shown)) == len(ways)


@pytest.mark.parametrize("form", ["full", "concise", "json", "github", "sarif"])
def test_every_output(
    form: str, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree.parent)
    outputs = []
    for more in (["--no-cache"], [], [], ["--statistics"], ["--statistics", "--no-cache"]):
        if "--statistics" in more and form in ("github", "sarif"):
            continue
        code = main(["check", "--output-format", form, *more, "project"])
        outputs.append((code, capsys.readouterr().out))
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[3:4] == outputs[4:]
    # The paths in the output are the user's, regardless of the cache folder.
    monkeypatch.chdir(tree)
    assert main(["check", "--output-format", form, "--cache-dir", "../.amp_check_cache", "."]) == 1
    assert main(["check", "--output-format", form, "--no-cache", "."]) == 1
    halves = capsys.readouterr().out
    assert halves[: len(halves) // 2] == halves[len(halves) // 2 :]


def test_where_the_cache_lies(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tree)
    assert main(["check", "--no-cache"]) == 1
    assert not (tree / ".amp_check_cache").exists()
    assert main(["check"]) == 1
    assert (tree / ".amp_check_cache" / ".gitignore").read_text().endswith("\n*\n")
    assert (
        (tree / ".amp_check_cache" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806")
    )
    (file,) = (tree / ".amp_check_cache").glob("*.json")
    file.write_text("left alone")
    assert main(["check", "--no-cache"]) == 1
    assert file.read_text() == "left alone"
    # Beside the pyproject.toml in use, from any folder below it.
    (tree / "pyproject.toml").write_text("[tool.amp-check]\n")
    monkeypatch.chdir(tree / "lib")
    main(["check", "."])
    assert len(list((tree / ".amp_check_cache").glob("*.json"))) == 2
    (tree / "pyproject.toml").write_text('[tool.amp-check]\ncache-dir = "build/known"\n')
    main(["check", "."])
    assert len(list((tree / "build" / "known").glob("*.json"))) == 1
    (tree / "pyproject.toml").write_text("[tool.amp-check]\ncache = false\n")
    monkeypatch.chdir(tree.parent)
    main(["check", "project"])
    assert not (tree.parent / ".amp_check_cache").exists()
    capsys.readouterr()


def test_two_at_once(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_amp_check", "check", "--output-format", "json"]
    command += ["--cache-dir", str(tmp_path / "cache"), str(tree)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    outputs = {process.communicate()[0] for process in running}
    assert len(outputs) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if not path.name.startswith(("C", "."))] == [".json"]


def test_few_files_are_kept(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_amp_check.static import cache

    monkeypatch.setattr(cache, "MAX_CACHE_FILES", 2)
    for name in ("train.py", "direct.py", "quiet.py", "lib"):
        said(tree / name, str(tmp_path / "cache"))
    assert len(list((tmp_path / "cache").glob("*.json"))) == 2


def test_files_that_are_gone_are_forgotten(tree: Path, tmp_path: Path) -> None:
    same(tree, str(tmp_path / "cache"))
    (file,) = (tmp_path / "cache").glob("*.json")
    assert "direct.py" in file.read_text()
    (tree / "direct.py").unlink()
    same(tree, str(tmp_path / "cache"))
    assert "direct.py" not in file.read_text()


def test_progress_counts_what_is_known(tree: Path, tmp_path: Path) -> None:
    said(tree, str(tmp_path / "cache"))
    calls: list[tuple[int, int]] = []
    check_paths([str(tree)], None, lambda done, total: calls.append((done, total)), cache=str(tmp_path / "cache"))
    assert calls[-1][0] == calls[-1][1] > 0


INNER = """\
import torch
def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler('cuda')
    for x in loader:
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PARTS = {
    "train.py": [TRAINER, DIRECT, TRAINER.replace("lib.steps", "steps"), "x = (\n", TRAINER.replace('"cuda"', "", 1)],
    "lib/steps.py": [HELPER_OF_THREE, UNSCALING, "from .inner import clip\n", "from steps import *\n", ""],
    "lib/inner.py": [HELPER_OF_THREE, UNSCALING, ""],
    "lib/__init__.py": ["", "from .steps import clip\n"],
    "steps.py": [HELPER_OF_THREE, UNSCALING, "# float16\n", "import train\n"],
    "outer.py": ["import torch, inner\nwith torch.autocast('cuda'):\n    inner.train()\n", "import lib.steps\n"],
    "inner.py": [INNER, "x = 1\n"],
    "read.md": [f"```python\n{DIRECT}```\n", f"```python\n{DIRECT.replace('1.0)', '1.0)  # amp: ignore')}```\n"],
}
EDITS = st.lists(
    st.sampled_from(sorted(PARTS)).flatmap(lambda n: st.tuples(st.just(n), st.sampled_from([None, *PARTS[n]]))),
    min_size=1,
    max_size=4,
)


@pytest.mark.long
@pytest.mark.exhaustive
@given(rounds=st.lists(EDITS, min_size=2, max_size=5), trusting=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_edits(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str | None]]], trusting: bool
) -> None:
    from pytest_amp_check.static import cache as module

    folder = tmp_path_factory.mktemp("edits")
    root = folder / "a"
    for name, contents in PARTS.items():
        put(root / name, contents[0])
    with pytest.MonkeyPatch.context() as patch:
        if trusting:
            patch.setattr(module, "time_ns", lambda: int(4e18))
        same(root, str(folder / "cache"))
        for edits in rounds:
            for name, content in edits:
                if content is None:
                    (root / name).unlink(missing_ok=True)
                else:
                    put(root / name, content)
            same(root, str(folder / "cache"))
            same(root / "lib", str(folder / "cache"))
            if (root / "train.py").exists():
                same(root / "train.py", str(folder / "cache"))


@pytest.mark.parametrize(
    "steps",
    [
        "from lib.inner import clip\n",
        "from lib.inner import *\n",
    ],
)
def test_a_helper_that_comes_to_matter_and_ceases_to(steps: str, tmp_path: Path, settled: None) -> None:
    """Irrelevant code is not parsed, but findings still depend on it."""
    root, cache = tmp_path / "project", str(tmp_path / "cache")
    put(root / "train.py", TRAINER)
    put(root / "lib" / "steps.py", steps)
    plain = "def clip(*given):\n    print(given)\n"
    for text, expected in [
        (plain, 0),
        (HELPER_OF_THREE, 1),
        (UNSCALING, 0),
        (plain, 0),
        (UNSCALING, 0),
        (HELPER_OF_THREE, 1),
    ]:
        put(root / "lib" / "inner.py", text)
        assert same(root, cache).count('"code": "AMP201"') == expected
    (root / "lib" / "inner.py").unlink()
    assert '"code": "AMP201"' not in same(root, cache)
    put(root / "lib" / "inner.py", HELPER_OF_THREE)
    assert '"code": "AMP201"' in same(root, cache)
