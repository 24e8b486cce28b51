"""Signs of low precision in a file that other files may run: entries into autocast, float16, numbers and versions."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from pytest_amp_check.static.project.exports import AFFECTS_PROTOCOL, Exports
from pytest_amp_check.static.project.module import ImportedName
from pytest_amp_check.static.project.project import Project, is_library_import
from pytest_amp_check.static.project.region_entry import (
    AutocastEntries,
    enters_autocast,
    find_autocast_entries,
    may_use_float16,
)
from pytest_amp_check.static.project.roots import marked_project, package_top
from pytest_amp_check.static.sources.source_files import load_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.autocast('cuda')", True),
        ("with autocast(): pass", True),
        ("with te.fp8_autocast(): pass", True),
        ("@autocast\ndef f(): pass", True),
        ("run(autocast)", True),
        ("MixedPrecision(param_dtype=x)", True),
        ("MixedPrecisionPolicy(x)", True),
        ("autocast(True)", True),
        ("autocast(flag, False)", True),
        ("autocast(enabled=flag)", True),
        ("autocast('cuda', other=False)", True),
        ("autocast('cuda', torch.float16, False)", False),
        ("autocast(device, torch.float16, False)", False),
        ("torch.cuda.amp.autocast(True, torch.float16, False)", True),
        ("torch.cuda.amp.autocast(use_amp, torch.float16, False)", True),
        ("autocast(False)", False),
        ("autocast('cuda', enabled=False)", False),
        ("is_autocast_enabled()", False),
        ("torch.get_autocast_dtype('cuda')", False),
        ("cast_if_autocast_enabled(x)", False),
        ("from torch import autocast", False),
        ("'autocast'", False),
        ("with torch.no_grad():\n    with autocast(): pass", False),
        ("with torch.no_grad(), autocast(): pass", False),
        ("@torch.no_grad()\ndef f():\n    with autocast(): pass", False),
        ("@torch.inference_mode\nasync def f():\n    with autocast(): pass", False),
        ("async with torch.inference_mode():\n    autocast()", False),
        ("with torch.enable_grad():\n    autocast()", True),
    ],
)
def test_code_that_enters_autocast(text: str, *, expected: bool) -> None:
    assert enters_autocast(ast.parse(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("autocast()", True),
        ("autocast('cuda', torch.float16)", True),
        ("autocast('cuda', torch.bfloat16)", False),
        ("autocast('cuda', dtype=torch.bfloat16)", False),
        ("autocast('cuda', other=torch.bfloat16)", True),
        ("autocast(torch.bfloat16)", True),
        ("autocast('cuda', dtype, torch.bfloat16)", True),
        ("other('cuda', torch.bfloat16)", False),
        ("autocast('cuda', enabled=False)", False),
        ("autocast(False)", False),
        ("is_autocast_enabled()", False),
        ("get_autocast_dtype()", False),
        ("x.half()", True),
        ("x.half(2)", False),
        ("half()", True),
        ("y = x.half", False),
        ("x.to(torch.half)", True),
        ("x.to(other.half)", False),
        ("x.to(half)", False),
        ("x.to(torch.float16)", True),
        ("x.to(np.float16)", True),
        ("x.to(torch.bfloat16)", False),
        ("x.to('float16')", True),
        ("x.to('torch.float16')", True),
        ("x.to('a float16')", False),
        ("torch.HalfTensor", True),
        ("MixedPrecision", True),
        ("assert x.dtype == torch.float16", False),
        ("if x.dtype == torch.float16: pass", False),
        ("if x.dtype == torch.float16: x.half()", True),
        ("assert x.half()", False),
        ("from torch import float16", False),
        ("from torch import float16 as low", False),
        ("from torch import float16 as low\nx.to(low)", True),
        ("from torch import float32 as low\nx.to(low)", False),
        ("from torch import half as low\nx.to(low)", False),
        ("from torch.amp import autocast as ac\nac()", True),
        ("amp.initialize(model, opt_level='O1')", True),
        ("amp.initialize(model, opt_level=level)", True),
        ("amp.initialize(model, opt_level='O0')", False),
        ("amp.initialize(model)", False),
        ("other(model, opt_level='O1')", False),
        ("GradScaler()", False),
    ],
)
def test_code_that_may_compute_in_float16(text: str, *, expected: bool) -> None:
    assert may_use_float16(ast.parse(text)) is expected


NET = """
class Net(nn.Module):
    def forward(self, x):
        {}
"""


def entries(text: str) -> AutocastEntries:
    return find_autocast_entries(ast.parse(textwrap.dedent(text)))


@pytest.mark.parametrize(
    ("text", "names", "classes"),
    [
        ("def f():\n    autocast()", {"f"}, set()),
        ("async def f():\n    autocast()", {"f"}, set()),
        ("def f():\n    g()\ndef g():\n    autocast()", {"f", "g"}, set()),
        ("def f():\n    g()\ndef g():\n    h()\ndef h():\n    autocast()", {"f", "g", "h"}, set()),
        ("def f():\n    g()\ndef g():\n    f()", set(), set()),
        ("def f(): pass\nautocast", set(), set()),
        ("@torch.no_grad()\ndef f():\n    autocast()", set(), set()),
        ("region = autocast()\ndef f():\n    region", {"f"}, set()),
        ("region = other()\ndef f():\n    region", set(), set()),
        ("from torch import autocast as ac\ndef f():\n    ac()", {"f"}, set()),
        ("import autocast.tools as ac\ndef f():\n    ac()", {"f"}, set()),
        ("from torch import nn as ac\ndef f():\n    ac()", set(), set()),
        ("from torch import autocast\ndef f():\n    autocast(False)", set(), set()),
        (NET.format("autocast()"), {"Net"}, {"Net"}),
        (NET.format("return x"), set(), set()),
        (NET.format("return self.run(x)\n    def run(self, x): autocast()"), {"Net", "run"}, {"Net"}),
        (NET.format("return f(x)\ndef f(x): autocast()"), {"Net", "f"}, {"Net"}),
        # The forward does not run a method that only other code calls.
        (NET.format("return x\n    def g(self): f()\ndef f(): autocast()"), {"g", "f"}, set()),
        (NET.format("return self.g()\n    def g(self): f()\ndef f(): autocast()"), {"Net", "g", "f"}, {"Net"}),
        ("class A:\n    def __init__(self): pass\n    def g(self): f()\ndef f(): autocast()", {"g", "f"}, set()),
        (NET.format("return region") + "region = autocast()", {"Net"}, {"Net"}),
        ("class A(B):\n    pass\n" + NET.format("autocast()").replace("Net", "B"), {"A", "B"}, {"B"}),
        ("@f\nclass A: pass\ndef f(): autocast()", {"A", "f"}, set()),
        ("class A:\n    def __init__(self): autocast()", {"A"}, set()),
        ("class A:\n    region = autocast()", {"A"}, set()),
        # The name of a method says which calls enter autocast. The name of a constructor says nothing.
        ("class A:\n    def run(self): autocast()", {"run"}, set()),
        ("class A:\n    @staticmethod\n    def forward(x): autocast()", {"A"}, set()),
        ("class A:\n    @torch.no_grad()\n    def forward(self, x): autocast()", set(), set()),
        (NET.format("return F.linear(x, self.weight.to(x))"), {"Net"}, {"Net"}),
        (NET.format("return F.conv2d(x, self.weight.half())"), {"Net"}, {"Net"}),
        (NET.format("return x.matmul(self.weight.type_as(x))"), {"Net"}, {"Net"}),
        (NET.format("return F.linear(x, self.weight.float())"), set(), set()),
        (NET.format("return F.linear(x, self.bias.to(x))"), set(), set()),
        (NET.format("return F.linear(x, other.weight.to(x))"), set(), set()),
        (NET.format("return F.linear(x, self.weight.to(x)) + F.linear(x, self.weight)"), set(), set()),
        (NET.format("return other(x, self.weight.to(x))"), set(), set()),
        ("MixedPrecision(x)", set(), {"MixedPrecision"}),
        ("torch.set_default_dtype(torch.float16)", set(), {""}),
    ],
)
def test_what_enters_autocast_by_its_name(text: str, names: set[str], classes: set[str]) -> None:
    found = entries(text)
    assert (set(found.names), set(found.modules)) == (names, classes)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("with autocast():\n    f(a.g(), h)", {"f", "g", "a."}),
        ("with autocast():\n    a.b.c()", {"c", "b."}),
        ("async with autocast():\n    f()", {"f"}),
        ("with other(), autocast():\n    f()", {"f"}),
        ("region = autocast()\nwith region:\n    f()", {"f"}),
        ("with autocast(False):\n    f()", set()),
        ("with other():\n    f()", set()),
        ("with torch.no_grad(), autocast():\n    f()", {"f"}),
        ("f()", set()),
    ],
)
def test_calls_in_regions(text: str, called: set[str]) -> None:
    assert entries(text).called_in_regions == called


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("autocast().__enter__()", True),
        ("region = autocast()", False),
        ("with autocast(): pass", False),
        ("def f(): autocast()", False),
        ("amp.initialize(model)", True),
        ("apex.amp.initialize(model)", True),
        ("def f(): amp.initialize(model)", True),
        ("other.initialize(model)", False),
        ("torch.set_default_dtype(torch.float16)", True),
        ("torch.set_default_dtype(torch.half)", True),
        ("torch.set_default_dtype(half)", True),
        ("torch.set_default_tensor_type('torch.HalfTensor')", False),
        ("torch.set_default_tensor_type(torch.HalfTensor)", True),
        ("torch.set_default_dtype(torch.float64)", False),
        ("torch.set_other(torch.float16)", False),
        (NET.format("return F.linear(x, self.weight.to(x))"), True),
        (NET.format("return F.linear(x, self.weight)"), False),
    ],
)
def test_what_all_later_code_runs_under(text: str, *, expected: bool) -> None:
    found = entries(text)
    # Apex covers the code whose losses it scales.
    assert (found.is_everywhere or found.initializes_apex) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NET.format("pass") + "loss.backward()", True),
        (NET.format("pass") + "backward(loss)", True),
        (NET.format("pass") + "loss.backward", False),
        (NET.format("pass"), False),
        ("loss.backward()", False),
        ("def other(): pass\nloss.backward()", False),
    ],
)
def test_programs_of_their_own(text: str, *, expected: bool) -> None:
    assert entries(text).trains_itself is expected


@pytest.mark.parametrize(
    ("text", "number", "version"),
    [
        ("x = 1e-8", 1e-8, False),
        ("x = -1e9", -1e9, False),
        ("x = 1.5  # a comment", 1.5, False),
        ("x: float = 1.5e-3", 1.5e-3, False),
        ("x = 1.", 1.0, False),
        ("y = 3\nx = 0.5\n", 0.5, False),
        ("x = 3", None, False),
        ("x = y", None, False),
        ("x = 0.5\nx = 0.25", None, False),
        ("x = 0.5 + y", None, False),
        ("if a:\n    x = 0.5", None, False),
        ("y = 0.5", None, False),
        ("", None, False),
        ("x = torch.__version__ > '2'", None, True),
        ("x = Version(torch)", None, True),
        ("def x():\n    return version('torch')", None, True),
        ("if a:\n    x = version", None, True),
        ("y = version\nx = 0.5", 0.5, False),
    ],
)
def test_numbers_and_versions_of_other_files(tmp_path: Path, text: str, number: float | None, *, version: bool) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    exports = Exports(load_bytes, AFFECTS_PROTOCOL)
    assert exports.number_at(str(path), "x") == number
    assert exports.asks_version_at(str(path), "x") is version


def test_files_and_imports_that_an_answer_depends_on(tmp_path: Path) -> None:
    files = {
        "a.py": "from b import g\ndef f():\n    g()\n",
        "b.py": "from c import h as g\n",
        "c.py": "def h(): pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    loaded: list[str] = []

    def load(path: str) -> bytes:
        loaded.append(Path(path).name)
        return load_bytes(path)

    project = Project()
    project.add_files([str(tmp_path / name) for name in files], [str(tmp_path)])
    exports = Exports(load, AFFECTS_PROTOCOL)
    direct = exports.relevance_of_name(str(tmp_path / "b.py"), "g", project.find_import)
    for answer, path, target in (
        (direct, "b.py", "c"),
        # The answer about `a` contains the known answer about `b`.
        (exports.relevance_of_name(str(tmp_path / "a.py"), "f", project.find_import), "a.py", "b"),
        (exports.relevance_of_import("a", "f", str(tmp_path / "d.py"), project.find_import), "d.py", "a"),
    ):
        assert not answer.is_relevant
        assert {str(tmp_path / name) for name in ("b.py", "c.py")} <= answer.dependencies
        assert answer.import_targets[target, str(tmp_path / path), 0] == str(tmp_path / f"{target}.py")
        assert answer.import_targets["c", str(tmp_path / "b.py"), 0] == str(tmp_path / "c.py")
        assert (str(tmp_path / "a.py") in answer.dependencies) is (path != "b.py")
    assert sorted(loaded) == ["a.py", "b.py", "c.py"]
    whole = exports.relevance_of_import("b", "", str(tmp_path / "d.py"), project.find_import)
    assert not whole.is_relevant
    assert whole.dependencies == {str(tmp_path / "b.py")}
    assert [exports.is_relevant_file(str(tmp_path / "c.py")) for _ in range(2)] == [False, False]
    assert loaded.count("c.py") == 2


@pytest.mark.parametrize(
    ("module", "name", "level", "expected"),
    [
        ("torch", "", 0, True),
        ("torch", "nn", 0, True),
        ("torch.nn", "Linear", 0, True),
        ("transformers", "Trainer", 0, True),
        ("torch", "", 1, False),
        ("torch.nn", "Linear", 2, False),
        ("mine", "", 0, False),
        ("mine", "torch", 0, False),
        ("torchX", "", 0, False),
    ],
)
def test_libraries_that_the_analyzer_knows(module: str, name: str, level: int, *, expected: bool) -> None:
    assert is_library_import(ImportedName(module, name, level)) is expected


class TestFolders:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name in ("a/b/c/__init__.py", "a/b/__init__.py", "a/b/c/d.py", "a/e/f.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    def test_the_folder_around_a_package(self, root: Path) -> None:
        tops = {name: package_top(str(root / name)) for name in ("a/b/c", "a/b", "a", "a/e")}
        assert tops == {name: str(root / {"a/e": "a/e"}.get(name, "a")) for name in tops}

    @pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", "setup.cfg", ".git"])
    def test_the_project_around_a_folder(self, root: Path, mark: str) -> None:
        (root / "a" / mark).touch()
        assert marked_project(str(root / "a" / "b" / "c")) == marked_project(str(root / "a")) == str(root / "a")
        assert marked_project(str(root)) is None

    def test_imports_that_no_result_depends_on(self, root: Path) -> None:
        user, used = root / "a" / "b" / "user.py", root / "a" / "e" / "f.py"
        user.write_text("from a.e import f\nimport_module(name)\n")
        files = [str(user), str(used), str(root / "a/b/__init__.py"), str(root / "a/b/c/d.py")]
        project = Project()
        project.add_files(files, [str(root)])
        assert project.find_import("a.e.f", str(user)) == str(used)
        targets = dict(project.import_targets)
        assert set(targets.values()) == {str(used)}
        assert project.static_imports(str(user)) == {str(used)}
        # Any file of the package may be imported by a name that only a run knows.
        assert project.possible_imports(str(user)) == set(files)
        assert project.import_targets == targets
