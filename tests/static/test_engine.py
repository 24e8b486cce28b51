"""From paths and texts to findings: settings, suppressions, order, and invalid files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from marks import Places, places, shown
from samples import EXHAUSTIVE

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.severities import ERROR, INFO, SEVERITIES
from pytest_amp_check.static.engine import Report, check_paths, check_source
from pytest_amp_check.static.settings import FileSelection, Settings
from pytest_amp_check.static.sources.source_files import InputError

SCRIPT = """\
import torch
from mine import model, loader, criterion

optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
CLIP, STEP = 11, 12
BOTH: Places = {(CLIP, "AMP201"), (STEP, "AMP206")}
BROKEN = "def train(:\n    autocast\n"


def at(text: str, line: int, comment: str) -> str:
    """Return the text with a comment at the end of a line."""
    rows = text.split("\n")
    rows[line - 1] += f"  {comment}"
    return "\n".join(rows)


def below(line: int) -> str:
    """Return the script with a comment line above a line, which then moves down by one."""
    rows = SCRIPT.split("\n")
    rows.insert(line - 1, "    # amp: ignore[AMP201]")
    return "\n".join(rows)


def found(text: str, settings: Settings | None = None) -> Places:
    return places(check_source(text, "train.py", settings))


def only(*codes: str) -> Settings:
    return Settings(select=frozenset(codes))


# One text.


def test_findings_of_a_text() -> None:
    findings = check_source(SCRIPT, "some/train.py")
    assert places(findings) == BOTH, shown(findings)
    for finding in findings:
        assert finding.filename == "some/train.py"
        assert (finding.name, finding.severity) == (RULES[finding.code].name, RULES[finding.code].severity)
        assert finding.site.end_line >= finding.line
        row = SCRIPT.split("\n")[finding.line - 1]
        assert row[finding.site.column :].startswith(("torch.nn.utils.clip_grad_norm_", "scaler.step"))
        assert "`scaler" in finding.message
        assert finding.trace


def test_a_text_without_a_name_is_called_a_string() -> None:
    assert {finding.filename for finding in check_source(SCRIPT)} == {"<string>"}


def test_columns_count_characters() -> None:
    (finding,) = [f for f in check_source(SCRIPT.replace("torch.nn", "'ä€𝄞'; torch.nn"), "x.py") if f.code == "AMP201"]
    assert finding.site.column == 4 + len("'ä€𝄞'; ")


def test_the_same_text_gives_the_same_findings_each_time() -> None:
    first = [finding.as_dict() for finding in check_source(SCRIPT, "train.py")]
    assert first == [finding.as_dict() for finding in check_source(SCRIPT, "train.py")]


@pytest.mark.parametrize("ends", ["\r\n", "\r"])
def test_line_ends_change_no_line(ends: str) -> None:
    assert found(SCRIPT.replace("\n", ends)) == BOTH


def test_findings_are_sorted() -> None:
    text = SCRIPT + "\n" + SCRIPT.replace("from mine", "from other")
    findings = check_source(text, "train.py")
    assert len(findings) > len(BOTH)
    assert [f.order() for f in findings] == sorted(f.order() for f in findings)


# Settings.


def test_only_what_is_selected_is_found() -> None:
    assert found(SCRIPT, only("AMP201")) == {(CLIP, "AMP201")}
    assert found(SCRIPT, only("AMP206")) == {(STEP, "AMP206")}
    assert found(SCRIPT, only("AMP101")) == set()
    assert found(SCRIPT, Settings(select=frozenset())) == set()


def test_without_a_selection_the_rules_that_are_on_by_default_are() -> None:
    assert Settings().select == {code for code, rule in RULES.items() if rule.on_by_default}


@pytest.mark.parametrize("severity", SEVERITIES)
def test_severities_can_be_set(severity: str) -> None:
    findings = check_source(SCRIPT, "train.py", Settings(severity={"AMP201": severity}))
    by_code = {finding.code: finding.severity for finding in findings}
    assert by_code == {"AMP201": severity, "AMP206": RULES["AMP206"].severity}
    assert RULES["AMP201"].severity == ERROR, "the rule itself is as it was"
    if severity == INFO:
        assert not [f for f in findings if f.code == "AMP201" and f.severity == ERROR]


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("train.py", "train.py", True),
        ("train.py", "src/train.py", True),
        ("*.py", "src/deep/train.py", True),
        ("src/*", "src/train.py", True),
        ("src/*.py", "/home/me/src/train.py", True),
        ("src/*", "other/train.py", False),
        ("test_*.py", "train.py", False),
        ("rain.py", "train.py", False),
    ],
)
def test_rules_can_be_ignored_by_file(pattern: str, path: str, ignored: bool) -> None:
    settings = Settings(per_file_ignores=((pattern, frozenset({"AMP201"})), ("never.py", frozenset({"AMP206"}))))
    codes = {finding.code for finding in check_source(SCRIPT, path, settings)}
    assert codes == ({"AMP206"} if ignored else {"AMP201", "AMP206"})


# Suppressions.


@pytest.mark.parametrize(
    "comment",
    [
        "# amp: ignore[AMP201]",
        "# amp: ignore[AMP201] tuned like this",
        "# amp: ignore[clip-before-unscale]",
        "# amp: ignore[AMP2]",
        "# amp: ignore[AMP201, AMP201]",
        "# amp: ignore",
        "# amp: ignore everything here is meant",
        "# noqa: AMP201",
        "# noqa:AMP201",
        "# NOQA: E501, AMP201",
        "# noqa",
        "# fine  # amp: ignore[AMP201]",
    ],
)
def test_each_form_of_suppression_silences_its_line(comment: str) -> None:
    assert found(at(SCRIPT, CLIP, comment)) == {(STEP, "AMP206")}


def test_a_comment_above_silences_the_next_statement() -> None:
    assert found(below(CLIP)) == {(STEP + 1, "AMP206")}


def test_a_comment_at_the_top_silences_the_file() -> None:
    assert found("# amp: ignore-file[AMP201]\n" + SCRIPT) == {(STEP + 1, "AMP206")}
    assert found("# amp: ignore-file\n" + SCRIPT) == set()


@pytest.mark.parametrize(
    "comment", ["# amp: on", "# ignore[AMP201]", "# amp ignores AMP201", "# type: ignore", "# noqa: E501"]
)
def test_other_comments_silence_nothing(comment: str) -> None:
    assert found(at(SCRIPT, CLIP, comment)) == BOTH


@pytest.mark.parametrize(
    "comment", ["# amp: ignored", "# amp: ignore(AMP201)", "# amp ignore[AMP201]", "# amp-check: ignore[AMP201]"]
)
def test_a_comment_in_another_form_silences_nothing_and_is_found(comment: str) -> None:
    assert found(at(SCRIPT, CLIP, comment)) == BOTH | {(CLIP, "AMP902")}


def test_a_string_is_no_comment() -> None:
    text = SCRIPT.replace("model.parameters(), 1.0)", "model.parameters(), 1.0, '# amp: ignore[AMP201]')")
    assert found(text) == BOTH


def test_a_suppression_of_another_rule_silences_nothing_and_is_reported() -> None:
    findings = check_source(at(SCRIPT, CLIP, "# amp: ignore[AMP101]"), "train.py")
    assert places(findings) == BOTH | {(CLIP, "AMP902")}
    (unused,) = [finding for finding in findings if finding.code == "AMP902"]
    assert "AMP101" in unused.message
    assert SCRIPT.split("\n")[CLIP - 1] == at(SCRIPT, CLIP, "#").split("\n")[CLIP - 1][: unused.site.column - 2]


def test_an_unused_suppression_is_reported_where_it_stands() -> None:
    clean = SCRIPT.replace("    torch.nn.utils", "    scaler.unscale_(optimizer); torch.nn.utils")
    clean += "    scaler.update()\n"
    assert found(clean) == set()
    assert found(at(clean, CLIP, "# amp: ignore[AMP201]")) == {(CLIP, "AMP902")}
    assert found(at(clean, CLIP, "# amp: ignore")) == {(CLIP, "AMP902")}
    assert found("# amp: ignore-file[AMP201]\n" + clean) == {(1, "AMP902")}


def test_an_unused_noqa_for_other_tools_is_not_reported() -> None:
    assert found(at(SCRIPT, 1, "# noqa")) == BOTH
    assert found(at(SCRIPT, 1, "# noqa: E501")) == BOTH


def test_an_unused_noqa_that_names_a_rule_of_ours_is_reported() -> None:
    assert found(at(SCRIPT, 1, "# noqa: AMP201")) == BOTH | {(1, "AMP902")}


def test_what_was_not_looked_for_is_not_unused() -> None:
    text = at(SCRIPT, CLIP, "# amp: ignore[AMP101]")
    assert found(text, only("AMP201", "AMP902")) == {(CLIP, "AMP201")}
    assert found(text, only("AMP101", "AMP902")) == {(CLIP, "AMP902")}


def test_unused_suppressions_can_be_off() -> None:
    text = at(SCRIPT, CLIP, "# amp: ignore[AMP101]")
    assert found(text, only("AMP101", "AMP201")) == {(CLIP, "AMP201")}


def test_copies_of_one_text_are_each_what_their_kind_of_file_makes_of_it(tmp_path: Path) -> None:
    # Valid Python but not a notebook; invalid Python; and an unknown future import, which parses all the same.
    relevant = "scaler.step(optimizer)\n"
    texts = {"valid": "x = 1\n", "broken": f"{relevant}def f(:\n", "future": "from __future__ import braces\n"}
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        for name, text in texts.items():
            (tmp_path / folder / f"{name}.py").write_text(text)
            (tmp_path / folder / f"{name}.md").write_text(f"```python\n{text}```\n")
        (tmp_path / folder / "valid.ipynb").write_text(texts["valid"])
    found = [(f.filename.removeprefix(f"{tmp_path}/"), f.line, f.code) for f in check_paths([str(tmp_path)]).findings]
    assert found == [
        ("first/broken.py", 2, "AMP903"),
        ("first/valid.ipynb", 1, "AMP903"),
        ("second/broken.py", 2, "AMP903"),
        ("second/valid.ipynb", 1, "AMP903"),
    ]


@pytest.mark.parametrize("names", ["", "# the layers", "()", "\\"])
def test_an_import_without_a_name_ends_nothing(tmp_path: Path, names: str) -> None:
    unfinished = f"from layers import {names}\n"
    documented = f'"""How to begin:\n\n{unfinished}"""\nstate = model.state_dict()\n'
    for name, text in {
        "broken": f"scaler.step(optimizer)\n{unfinished}",
        "documented": documented,
        "train": SCRIPT,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = listed(check_paths([str(tmp_path)]), tmp_path)
    assert found == [("broken.py", 2, "AMP903"), ("train.py", CLIP, "AMP201"), ("train.py", STEP, "AMP206")]


def test_broken_source_is_a_finding_at_its_line() -> None:
    (finding,) = check_source("import torch\n\n" + BROKEN, "train.py")
    assert (finding.code, finding.line, finding.severity) == ("AMP903", 3, ERROR)
    assert finding.message


# Paths.


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "train.py": SCRIPT,
        "package/__init__.py": "",
        "package/loop.py": SCRIPT,
        "package/clean.py": "import torch\nprint(torch.autocast)\n",
        "package/broken.py": BROKEN,
        "package/notes.txt": SCRIPT,
        ".venv/pyvenv.cfg": "home = /usr\n",
        ".venv/lib/module.py": SCRIPT,
        "__pycache__/train.py": SCRIPT,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def listed(report: Report, root: Path) -> list[tuple[str, int, str]]:
    return [(Path(f.filename).relative_to(root).as_posix(), f.line, f.code) for f in report.findings]


def test_a_directory_is_walked(project: Path) -> None:
    report = check_paths([str(project)], Settings())
    assert report.files == 5
    assert listed(report, project) == [
        ("package/broken.py", 1, "AMP903"),
        ("package/loop.py", CLIP, "AMP201"),
        ("package/loop.py", STEP, "AMP206"),
        ("train.py", CLIP, "AMP201"),
        ("train.py", STEP, "AMP206"),
    ]


def test_files_and_directories_together_are_looked_at_once(project: Path) -> None:
    paths = [str(project / "train.py"), str(project), str(project / "package" / "loop.py")]
    report = check_paths(paths, Settings())
    assert report.files == 5
    assert len(report.findings) == 5
    assert [f.order() for f in report.findings] == sorted(f.order() for f in report.findings)


def test_a_file_that_is_named_is_read_whatever_it_is_called(project: Path) -> None:
    report = check_paths([str(project / "package" / "notes.txt")], Settings())
    assert {(line, code) for _, line, code in listed(report, project)} == BOTH


def test_settings_hold_for_paths(project: Path) -> None:
    assert {code for _, _, code in listed(check_paths([str(project)], only("AMP206")), project)} == {"AMP206"}
    without = Settings(files=FileSelection(exclude=("package",)))
    assert check_paths([str(project)], without).files == 1
    ignoring = Settings(per_file_ignores=(("package/*", frozenset(RULES)),))
    assert {name for name, _, code in listed(check_paths([str(project)], ignoring), project) if code != "AMP903"} == {
        "train.py"
    }


def test_nothing_to_look_at_is_no_error(tmp_path: Path) -> None:
    report = check_paths([str(tmp_path)], Settings())
    assert (report.files, report.findings) == (0, [])
    assert check_paths([], Settings()).files == 0


@pytest.mark.parametrize("paths", [["missing.py"], ["missing/"], [".", "missing.py"]])
def test_a_path_that_is_not_there_is_one_clear_sentence(tmp_path: Path, paths: list[str]) -> None:
    named = [str(tmp_path / path) for path in paths]
    with pytest.raises(InputError) as caught:
        check_paths(named, Settings())
    message = str(caught.value)
    assert "missing" in message and "\n" not in message


def test_progress_counts_up_to_the_end(project: Path) -> None:
    calls: list[tuple[int, int]] = []
    check_paths([str(project)], Settings(), lambda done, total: calls.append((done, total)))
    assert calls
    totals = {total for _, total in calls}
    assert len(totals) == 1
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == totals.pop()


def test_autocast_in_another_file_may_be_entered_around_this_one(tmp_path: Path) -> None:
    """A scaler without autocast is only reported if no visible file enters autocast around it."""
    alone = SCRIPT.replace('    with torch.autocast("cuda"):\n    ', "") + "    scaler.update()\n"
    (tmp_path / "train.py").write_text(alone, encoding="utf-8")
    before = check_paths([str(tmp_path)], Settings()).findings
    assert "AMP110" in {finding.code for finding in before}
    (tmp_path / "model.py").write_text("import torch\nregion = torch.autocast('cuda')\n", encoding="utf-8")
    not_imported = check_paths([str(tmp_path)], Settings()).findings
    assert "AMP110" in {finding.code for finding in not_imported}
    (tmp_path / "train.py").write_text("import model\n" + alone, encoding="utf-8")
    unused = check_paths([str(tmp_path)], Settings()).findings
    assert "AMP110" in {finding.code for finding in unused}
    net = "class Net(torch.nn.Module):\n    @torch.autocast('cuda')\n    def forward(self, x): return x\n"
    (tmp_path / "model.py").write_text("import torch\n" + net, encoding="utf-8")
    after = check_paths([str(tmp_path)], Settings()).findings
    assert "AMP110" not in {finding.code for finding in after}


def test_autocast_in_a_file_that_imports_this_one_may_be_entered_around_it(tmp_path: Path) -> None:
    alone = SCRIPT.replace('    with torch.autocast("cuda"):\n    ', "") + "    scaler.update()\n"
    (tmp_path / "train.py").write_text(alone, encoding="utf-8")
    (tmp_path / "main.py").write_text("import between\nautocast()\n", encoding="utf-8")
    (tmp_path / "between.py").write_text("from train import main\n", encoding="utf-8")
    findings = check_paths([str(tmp_path)], Settings()).findings
    assert "AMP110" not in {finding.code for finding in findings}


IN_HALF = "dtype = 'float16'\n"
BESIDE_BFLOAT16 = """import mask, torch
scaler = torch.amp.GradScaler()

def f(g):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        g()
"""
#: A file that trains its own modules, beside a file that uses float16.
TRAINS = """import torch, amp

class Net(torch.nn.Module):
    def forward(self, q, k, m):
        return torch.matmul(q, k).masked_fill(m, -1e9)

def train(net, batches, optimizer):
    for batch in batches:
        net(*batch).sum().backward()
        optimizer.step()
"""
MASK = "import torch\n\ndef scores(q, k, m):\n    return torch.matmul(q, k).masked_fill(m, -1e9)\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        # Files in reach: importers, their imports, and the file's own imports.
        ({"net/use": "import mask\ndtype = 'float16'\n"}, True),
        ({"net/use": "import mask, amp\n", "net/amp": "dtype = 'float16'\n"}, True),
        ({"net/use": "import mask\n", "net/main": "import use, amp\n", "net/amp": "dtype = 'float16'\n"}, True),
        # Not in reach: another program beside it.
        ({"net/use": "import mask\n", "other/amp": "dtype = 'float16'\n"}, False),
        # Without a known importer, neighboring files may import it, but another program is not in reach.
        ({"net/amp": "dtype = 'float16'\n"}, True),
        ({"other/amp": "dtype = 'float16'\n"}, False),
        # A library of the same repository that supports float16 does not use it for each of its examples.
        ({"net/use": "import mask, lib\n", "src/lib/__init__": "from .amp import x\n", "src/lib/amp": IN_HALF}, False),
        ({"net/use": "import mask, lib\n", "lib/__init__": "from .amp import x\n", "lib/amp": IN_HALF}, True),
        # An import by a dynamic name may be any file; in a package, any file inside or beside the package.
        ({"net/use": "import mask\nimport_module(x)\n", "other/amp": IN_HALF}, True),
        ({"net/use": "import mask, lib\n", "src/lib/__init__": "import_module(x)\n", "other/amp": IN_HALF}, False),
        # A package only re-exports its content. Without a known importer, only neighboring files may use the content.
        ({"net/__init__": "from .mask import scores\nfrom .sub.amp import x\n", "net/sub/amp": IN_HALF}, False),
        ({"net/__init__": "from .mask import scores\nfrom .amp import x\n", "net/amp": IN_HALF}, True),
        # A package that defines functions of its own may also use the content.
        (
            {
                "net/__init__": "from .mask import scores\nfrom .sub.amp import x\n\ndef f():\n    return x(scores)\n",
                "net/sub/amp": IN_HALF,
            },
            True,
        ),
        # A scaler does not imply float16, least of all beside bfloat16 regions.
        ({"net/use": BESIDE_BFLOAT16}, False),
        ({"net/use": BESIDE_BFLOAT16.replace(", dtype=torch.bfloat16", "")}, True),
        ({"net/use": "import mask, torch\nscaler = torch.amp.GradScaler()\n"}, False),
        # A file that trains its own modules, without float16, trains them in float32.
        ({"net/mask": TRAINS, "net/amp": IN_HALF}, False),
        ({"net/mask": TRAINS.partition("def train")[0], "net/amp": IN_HALF}, True),
        # A float16 in a docstring, an assertion or a comparison is not a use; nor is bfloat16, which has the range of
        # float32.
        ({"net/use": "import mask\nx = 1\n'''dtype: one of float16 and float32'''\n"}, False),
        ({"net/use": "import mask\ndef f(dtype):\n    assert dtype in ['float16', 'float32']\n"}, False),
        ({"net/use": "import mask, torch\ndef f(x):\n    return x.dtype == torch.float16\n"}, False),
        ({"net/use": "import mask, torch\ndtype = torch.bfloat16\n"}, False),
        ({"net/use": "import mask, torch\nfrom torch import autocast\n"}, False),
        ({"net/use": "import mask, torch\ndef f(g):\n    with torch.autocast('cuda', enabled=False): g()\n"}, False),
        # Real uses of float16.
        ({"net/use": "import mask, torch\ndef f(x):\n    return x.to(torch.float16)\n"}, True),
        ({"net/use": "import mask\ndef f(x):\n    return x.half()\n"}, True),
        ({"net/use": "import mask, torch\ndef f(g):\n    with torch.autocast('cuda'): g()\n"}, True),
    ],
)
def test_float16_counts_where_it_may_come_into_a_file(tmp_path: Path, files: dict[str, str], found: bool) -> None:
    for name, text in {"net/mask": MASK, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    # A file checked by name is analyzed among all files of its project.
    (tmp_path / "pyproject.toml").touch()
    for path in (tmp_path, tmp_path / "net" / "mask.py"):
        assert ("AMP506" in {f.code for f in check_paths([str(path)], Settings()).findings}) == found, path


def test_what_is_around_does_not_change_what_one_file_gives(project: Path) -> None:
    whole = {(f.filename, f.line, f.code) for f in check_paths([str(project)], Settings()).findings}
    one: list[Finding] = []
    for path in sorted(project.rglob("*.py")):
        if ".venv" not in path.parts and "__pycache__" not in path.parts:
            one += check_paths([str(path)], Settings()).findings
    assert {(f.filename, f.line, f.code) for f in one} == whole


def test_links_that_lead_nowhere_or_in_a_circle_are_passed_by(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    (tmp_path / "circle").symlink_to(tmp_path)
    report = check_paths([str(tmp_path)], Settings())
    assert [(Path(f.filename).name, f.code) for f in report.findings if f.code != "AMP903"] == [
        ("train.py", "AMP201"),
        ("train.py", "AMP206"),
    ]


def test_the_readers_limits_are_put_back() -> None:
    limit = sys.getrecursionlimit()
    check_source(SCRIPT)
    check_source(BROKEN)
    assert sys.getrecursionlimit() == limit


def test_the_package_offers_both_functions_and_loads_them_on_first_use() -> None:
    code = (
        "import sys, pytest_amp_check as p\n"
        "assert 'pytest_amp_check.static.engine' not in sys.modules\n"
        "print([f.code for f in p.check_source(sys.stdin.read())], callable(p.check_paths), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=SCRIPT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['AMP201', 'AMP206'] True False"


def test_a_file_that_takes_too_long_is_read_as_far_as_it_goes_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
from torch.nn.utils import clip_grad_norm_
def first(model, optimizer, scaler, loss):
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
def second(model, optimizer, scaler, loss):
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    assert [f.line for f in check_source(source) if f.code == "AMP201"] == [5, 10]
    monkeypatch.setattr("pytest_amp_check.static.entry_points.FILE_BUDGET", 5)
    cut = check_source(source)
    assert [f.line for f in cut if f.code == "AMP201"] == [5]
    (left_out,) = (f for f in cut if f.code == "AMP903")
    assert (left_out.line, "`second`" in left_out.message) == (8, True)


@pytest.mark.long
def test_reading_leaves_nothing_that_only_a_search_for_cycles_would_free() -> None:
    # The analysis of a tree creates no reference cycles, so leftovers would stay until the end.
    # The first check creates the tables of the package, which one file does as well.
    program = (
        "import gc, sys; from pytest_amp_check import check_paths; check_paths([sys.argv[1]]); gc.collect();"
        "gc.disable(); gc.set_debug(gc.DEBUG_SAVEALL); check_paths(sys.argv[2:]); gc.collect();"
        "own = {type(each).__name__ for each in gc.garbage if type(each).__module__.startswith('pytest_amp_check')};"
        "print(sorted(own))"
    )
    fixtures = Path(__file__).parents[2] / "fixtures"
    trees = [fixtures] if EXHAUSTIVE else [fixtures / "trainers", fixtures / "idioms"]
    command = [sys.executable, "-c", program, str(fixtures / "headline.py"), *map(str, trees)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
