"""The project around fixed files: importers of the fixed names, and the torch version that the project requires."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_amp_check.static.project.project_context import ProjectContext


def tree(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def taken(root: Path, path: str, *others: str) -> set[str]:
    paths = [str(root / path)]
    return set(ProjectContext(paths, [str(root / other) for other in others]).imported_names(paths[0]))


@pytest.mark.parametrize(
    ("path", "other", "text", "names"),
    [
        ("a.py", "b.py", "from a import x", {"x"}),
        ("a.py", "b.py", "from a import x, y as z", {"x", "y"}),
        ("a.py", "b.py", "from a import (\n    x,  # one\n    y,\n)", {"x", "y"}),
        ("a.py", "b.py", "from a import *", {"*"}),
        ("a.py", "b.py", "import a", set()),
        ("a.py", "b.py", "from b import x", set()),
        ("a.py", "b.py", "from torch.a import x", set()),
        ("a.py", "b.py", "# from a import x", set()),
        ("a.py", "c/b.py", "from pkg.a import x", {"x"}),
        ("pkg/a.py", "pkg/b.py", "from .a import x", {"x"}),
        ("pkg/a.py", "pkg/c/b.py", "from ..a import x", {"x"}),
        ("pkg/a.py", "pkg/b.py", "from . import a", set()),
        ("pkg/__init__.py", "pkg/b.py", "from . import x", {"x"}),
        ("pkg/__init__.py", "pkg/c/b.py", "from .. import x", {"x"}),
        ("pkg/__init__.py", "pkg/c/b.py", "from . import x", set()),
        ("pkg/__init__.py", "b.py", "from pkg import x", {"x"}),
        ("a.py", "b.txt", "from a import x", set()),
    ],
)
def test_names_that_other_files_import(tmp_path: Path, path: str, other: str, text: str, names: set[str]) -> None:
    tree(tmp_path, **{path: "x = y = 1\n", other: text})
    assert taken(tmp_path, path, other) == names


def test_files_beside_a_file_are_asked_without_being_named(tmp_path: Path) -> None:
    tree(tmp_path, **{"pkg/a.py": "x = 1", "pkg/b.py": "from a import x", "c.py": "from a import y", "pkg/d/e.py": ""})
    assert taken(tmp_path, "pkg/a.py") == {"x"}
    assert taken(tmp_path, "pkg/a.py", "c.py") == {"x", "y"}


@pytest.mark.parametrize("count", [1, 9, 10, 12])
def test_of_many_files_each_has_its_own_names(tmp_path: Path, count: int) -> None:
    names = [f"m{number}.py" for number in range(count)]
    users = "".join(f"from m{number} import x{number}\n" for number in range(count))
    tree(tmp_path, **dict.fromkeys(names, ""), **{"user.py": users})
    around = ProjectContext([str(tmp_path / name) for name in names], ())
    for number, name in enumerate(names):
        assert around.imported_names(str(tmp_path / name)) == {f"x{number}"}
    assert around.imported_names(str(tmp_path / "user.py")) == frozenset()


def test_where_a_folder_cannot_be_listed_everything_may_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, **{"a.py": "", "b.py": "from a import x"})

    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert taken(tmp_path, "a.py") == {"*"}


def test_nothing_is_imported_from_files_that_are_not_named() -> None:
    assert ProjectContext().imported_names("a.py") == frozenset()


@pytest.mark.parametrize(
    ("name", "text", "oldest"),
    [
        ("requirements.txt", "torch>=2.4\n", (2, 4)),
        ("requirements.txt", "torch==2.4.1\n", (2, 4)),
        ("requirements.txt", "torch~=2.4\n", (2, 4)),
        ("requirements.txt", "torch>2.4\n", (2, 4)),
        ("requirements.txt", "torch<2.4\n", (2, 3)),
        ("requirements.txt", "torch<=2.4\n", (2, 4)),
        ("requirements.txt", "torch[x] >= 2.4\n", (2, 4)),
        ("requirements.txt", "numpy>=1.2\ntorch>=2.6\ntorch>=2.5\n", (2, 5)),
        ("requirements.txt", "torchvision>=0.9\nmy-torch>=1.0\ntorch\n", None),
        ("requirements-dev.in", "torch>=2.4\n", (2, 4)),
        ("requirements/base.txt", "torch>=2.4\n", (2, 4)),
        ("requirements/deep/base.in", "torch>=2.4\n", (2, 4)),
        ("requirements/base.md", "torch>=2.4\n", None),
        ("environment.yml", "- pytorch=2.4\n", (2, 4)),
        ("environment-gpu.yaml", "- pytorch>=2.4\n", (2, 4)),
        ("pyproject.toml", 'dependencies = ["torch>=2.4"]\n', (2, 4)),
        ("pyproject.toml", 'torch = "^2.4"\n', (2, 4)),
        ("pyproject.toml", 'torch = ">=2.4,<3"\n', (2, 4)),
        ("setup.py", "install_requires=['torch>=2.4']\n", (2, 4)),
        ("setup.cfg", "    torch>=2.4\n", (2, 4)),
        ("notes.txt", "torch>=2.4\n", None),
    ],
)
def test_the_oldest_torch_that_a_project_asks_for(
    tmp_path: Path, name: str, text: str, oldest: tuple[int, int] | None
) -> None:
    (tmp_path / ".git").mkdir()
    tree(tmp_path, **{name: text, "src/pkg/a.py": ""})
    path = str(tmp_path / "src" / "pkg" / "a.py")
    around = ProjectContext()
    for version in [(1, 9), (2, 2), (2, 3), (2, 4), (2, 5), (2, 6), (3, 0)]:
        assert around.declares_version(path, version) is (oldest is not None and oldest >= version)
        assert around.may_support(path, version) is (oldest is None or oldest >= version)
    # A declared oldest version replaces the search.
    said = ProjectContext(torch=(2, 5))
    assert [said.declares_version(path, (2, minor)) for minor in (4, 5, 6)] == [True, True, False]
    assert [said.may_support(path, (2, minor)) for minor in (4, 5, 6)] == [True, True, False]


def test_the_nearest_folder_that_asks_for_torch_decides_within_the_repository(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "requirements.txt": "torch>=1.9\n",
            "one/requirements.txt": "torch>=2.6\n",
            "one/a/x.py": "",
            "two/x.py": "",
            "three/.git/HEAD": "",
            "three/a/x.py": "",
        },
    )
    around = ProjectContext()
    assert around.declares_version(str(tmp_path / "one" / "a" / "x.py"), (2, 6))
    assert around.declares_version(str(tmp_path / "two" / "x.py"), (1, 9))
    assert not around.may_support(str(tmp_path / "two" / "x.py"), (2, 0))
    assert not around.declares_version(str(tmp_path / "three" / "a" / "x.py"), (1, 9))
