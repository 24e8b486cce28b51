"""The file that an import resolves to, and the names of the file that are relevant to the importing file."""

from __future__ import annotations

import ast
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from trees import write

from pytest_amp_check import check_paths, check_source
from pytest_amp_check.static.project import project

#: The clip comes before the gradients are unscaled, which shows if the effect of ``scaled`` is known.
TRAIN = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
{imports}

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    {call}(scaler, loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
SCALED = "def scaled(scaler, loss):\n    return scaler.scale(loss)\n"


def is_followed(root: Path, train: str, imports: str, call: str, files: dict[str, str], named: str = ".") -> bool:
    """Check a tree, or one named file. Return True if the analyzer knows that the loss is scaled."""
    for name, text in {**files, train: TRAIN.format(imports=imports, call=call)}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = [(Path(f.filename).name, f.code) for f in check_paths([str(root / named)]).findings]
    assert found in ([], [(Path(train).name, "AMP201")])
    return bool(found)


@pytest.mark.parametrize(
    ("train", "imports", "call", "file"),
    [
        ("train.py", "from tools import scaled", "scaled", "tools.py"),
        ("train.py", "from tools import scaled as s", "s", "tools.py"),
        ("train.py", "import tools", "tools.scaled", "tools.py"),
        ("train.py", "import tools as t", "t.scaled", "tools.py"),
        ("train.py", "from tools import *", "scaled", "tools.py"),
        ("train.py", "from tools import scaled", "scaled", "tools/__init__.py"),
        ("train.py", "from pkg.tools import scaled", "scaled", "pkg/tools.py"),
        ("train.py", "from pkg import tools", "tools.scaled", "pkg/tools.py"),
        ("train.py", "import pkg.tools", "pkg.tools.scaled", "pkg/tools.py"),
        ("train.py", "import pkg.tools as t", "t.scaled", "pkg/tools.py"),
        ("train.py", "from pkg.sub.tools import scaled", "scaled", "pkg/sub/tools.py"),
        ("pkg/train.py", "from .tools import scaled", "scaled", "pkg/tools.py"),
        ("pkg/train.py", "from . import tools", "tools.scaled", "pkg/tools.py"),
        ("pkg/train.py", "from . import scaled", "scaled", "pkg/__init__.py"),
        ("pkg/train.py", "from .sub.tools import scaled", "scaled", "pkg/sub/tools.py"),
        ("pkg/sub/train.py", "from ..tools import scaled", "scaled", "pkg/tools.py"),
        ("pkg/sub/train.py", "from .. import tools", "tools.scaled", "pkg/tools.py"),
        ("pkg/a/b/train.py", "from ...tools import scaled", "scaled", "pkg/tools.py"),
        ("pkg/train.py", "from tools import scaled", "scaled", "tools.py"),
        ("pkg/train.py", "from pkg.tools import scaled", "scaled", "pkg/tools.py"),
        ("pkg/train.py", "from tools import scaled", "scaled", "pkg/tools.py"),
        # Directories that are on the path by convention.
        ("train.py", "from pkg.tools import scaled", "scaled", "src/pkg/tools.py"),
        ("train.py", "from pkg.tools import scaled", "scaled", "lib/pkg/tools.py"),
        ("scripts/train.py", "from pkg.tools import scaled", "scaled", "src/pkg/tools.py"),
        # Any other directory, if only one file matches.
        ("train.py", "from deep.tools import scaled", "scaled", "other/deep/tools.py"),
        ("train.py", "from deep.tools import scaled", "scaled", "other/deep/tools/__init__.py"),
        # A package with the same name as its file.
        ("tools/tools.py", "from tools import scaled", "scaled", "tools/__init__.py"),
        ("train.py", "try:\n    from tools import scaled\nexcept ImportError:\n    pass", "scaled", "tools.py"),
        ("train.py", "if True:\n    from tools import scaled", "scaled", "tools.py"),
    ],
)
def test_imports_that_lead_to_a_file(tmp_path: Path, train: str, imports: str, call: str, file: str) -> None:
    assert is_followed(tmp_path, train, imports, call, {file: SCALED})


@pytest.mark.parametrize(
    ("train", "imports", "files"),
    [
        ("train.py", "from tools import scaled", ["tool.py"]),
        ("train.py", "from pkg.tools import scaled", ["tools.py"]),
        ("train.py", "from .pkg.tools import scaled", ["tools.py"]),
        ("pkg/train.py", "from ..tools import scaled", ["pkg/tools.py"]),
        ("pkg/train.py", "from .tools import scaled", ["tools.py"]),
        ("pkg/a/train.py", "from .tools import scaled", ["pkg/tools.py"]),
        # The standard library precedes a file with the same name; torch is never a file of a project.
        ("train.py", "from json import scaled", ["json.py"]),
        ("train.py", "from torch.tools import scaled", ["torch/tools.py"]),
        # Either of two files may be meant.
        ("train.py", "from deep.tools import scaled", ["one/deep/tools.py", "two/deep/tools.py"]),
        ("train.py", "from deep.tools import scaled", ["one/deep/tools.py", "two/deep/tools/__init__.py"]),
        ("train.py", "from deep.tools import scaled", ["one/sodeep/tools.py"]),
    ],
)
def test_imports_that_lead_to_none(tmp_path: Path, train: str, imports: str, files: list[str]) -> None:
    assert not is_followed(tmp_path, train, imports, "scaled", dict.fromkeys(files, SCALED))


@pytest.mark.parametrize(
    ("mark", "file", "finds"),
    [
        ("pyproject.toml", "../tools.py", True),
        ("setup.py", "../tools.py", True),
        ("setup.cfg", "../tools.py", True),
        (".git", "../tools.py", True),
        ("LICENSE", "../tools.py", True),
        ("requirements.txt", "../tools.py", True),
        ("notes.txt", "../tools.py", False),
        ("", "../tools.py", False),
        ("", "tools.py", True),
        ("", "tools/__init__.py", True),
        ("", "tools/x.txt", False),
        ("pyproject.toml", "../../tools.py", False),
        ("pyproject.toml", "../other/tools.py", True),
        ("pyproject.toml", "../src/tools.py", True),
    ],
)
def test_a_file_that_is_named_imports_from_its_project(tmp_path: Path, mark: str, file: str, *, finds: bool) -> None:
    top = tmp_path / "top" / "project"
    (top / "scripts").mkdir(parents=True)
    if mark:
        (top / mark).write_text("")
    path = (top / "scripts" / file).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCALED)
    imports = "from tools import scaled"
    assert is_followed(top, "scripts/train.py", imports, "scaled", {}, "scripts/train.py") is finds


#: Definitions of an imported name.
DEFINED = {
    "a function": (SCALED, True),
    "a function that calls one": (
        "def scaled(s, l):\n    return inner(s, l)\ndef inner(s, l):\n    return s.scale(l)\n",
        True,
    ),
    "a lambda": ("scaled = lambda s, l: s.scale(l)\n", True),
    "another name": ("def inner(s, l):\n    return s.scale(l)\nscaled = inner\n", True),
    "a name of several": ("def inner(s, l):\n    return s.scale(l)\nscaled, other = inner, None\n", True),
    "a name with a type": ("def inner(s, l):\n    return s.scale(l)\nscaled: object = inner\n", True),
    "a method": ("class Tool:\n    def run(self, s, l):\n        return s.scale(l)\nscaled = Tool().run\n", True),
    "an object that is called": (
        "class Tool:\n    def __call__(self, s, l):\n        return s.scale(l)\nscaled = Tool()\n",
        True,
    ),
    "under a test": ("if True:\n    def scaled(s, l):\n        return s.scale(l)\n", True),
    "in a try": ("try:\n    def scaled(s, l):\n        return s.scale(l)\nexcept Exception:\n    raise\n", True),
    "beside a comment": ("# scaled = None\ndef scaled(s, l):  # it scales\n    return s.scale(l)\n", True),
    "under documentation": ('"""scaled = None"""\ndef scaled(s, l):\n    """Scales."""\n    return s.scale(l)\n', True),
    "with a decorator": (
        "import functools\ndef plain(f):\n    return f\n@plain\ndef scaled(s, l):\n    return s.scale(l)\n",
        True,
    ),
    "partial": (
        "from functools import partial\ndef inner(s, l):\n    return s.scale(l)\nscaled = partial(inner)\n",
        True,
    ),
    "from another file": ("from inner import scaled\n", True),
    "from another file, by another name": ("from inner import scale as scaled\n", True),
    "from another file, all of it": ("from inner import *\n", True),
    "through another file": ("import inner\ndef scaled(scaler, l):\n    return inner.scaled(scaler, l)\n", True),
    "through another file that is given a name": ("import inner as i\nscaled = i.scaled  # of a scaler\n", True),
    "through a package": (
        "import parts.inner\ndef scaled(scaler, l):\n    return parts.inner.scaled(scaler, l)\n",
        True,
    ),
    "through a package, by another name": (
        "import parts.inner as p\ndef scaled(scaler, l):\n    return p.scaled(scaler, l)\n",
        True,
    ),
    "in one branch": (
        "if flag:\n    def scaled(scaler, l):\n        return scaler.scale(l)\nelse:\n    scaled = None\n",
        True,
    ),
    "in the other branch": (
        "if flag:\n    x = 1\nelse:\n    def scaled(scaler, l):\n        return scaler.scale(l)\n",
        True,
    ),
    "in a handler": (
        "try:\n    import nowhere\nexcept ImportError:\n    def scaled(scaler, l):\n        return scaler.scale(l)\n",
        True,
    ),
    "at last": ("try:\n    x = 1\nfinally:\n    def scaled(scaler, l):\n        return scaler.scale(l)\n", True),
    "where all went well": (
        (
            "try:\n    x = 1\nexcept ValueError:\n    raise\n"
            "else:\n    def scaled(scaler, l):\n        return scaler.scale(l)\n"
        ),
        True,
    ),
    "in a with": ("with open('x') as f:\n    def scaled(scaler, l):\n        return scaler.scale(l)\n", True),
    "nothing": ("x = 1\n", False),
    "what it calls is not known": ("import elsewhere\nscaled = elsewhere.scaled\n", False),
}
INNER = SCALED + "scale = scaled\n"


@pytest.mark.parametrize("how", DEFINED)
@pytest.mark.parametrize("package", [False, True])
def test_what_a_name_of_another_file_is_defined_by(tmp_path: Path, how: str, *, package: bool) -> None:
    tools, finds = DEFINED[how]
    files = {"tools.py": tools, "inner.py": INNER, "parts/inner.py": INNER}
    if package:
        files = {"pkg/__init__.py": "from .tools import scaled\n", "pkg/tools.py": tools, **files}
    imports = f"from {'pkg' if package else 'tools'} import scaled"
    assert is_followed(tmp_path, "train.py", imports, "scaled", files) is finds


TREES = {
    "a step that is inherited": """\
        === base.py
        class Base:
            def finish(self):
                self.optimizer.step()  # AMP204
        === train.py
        import torch
        from base import Base

        class Training(Base):
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def run(self, loader):
                for batch in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.model(batch).mean()
                    self.scaler.scale(loss).backward()
                    self.finish()
        """,
    "a step that is inherited through a package": """\
        === parts/__init__.py
        from .base import Base
        === parts/base.py
        class Base:
            def finish(self):
                self.optimizer.step()  # AMP204
        === train.py
        import torch
        import parts

        class Training(parts.Base):
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                self.scaler = torch.amp.GradScaler("cuda")

            def run(self, loader):
                for batch in loader:
                    self.optimizer.zero_grad()
                    with torch.autocast("cuda"):
                        loss = self.model(batch).mean()
                    self.scaler.scale(loss).backward()
                    self.finish()
        """,
}


@pytest.mark.parametrize("what", TREES)
def test_mistakes_of_which_a_part_is_in_another_file(tmp_path: Path, what: str) -> None:
    write(tmp_path, TREES[what])
    text = textwrap.dedent(TREES[what])
    expected = [line.partition("# ")[2] for line in text.splitlines() if "# AMP" in line]
    assert [finding.code for finding in check_paths([str(tmp_path)]).findings] == expected
    for finding in check_paths([str(tmp_path)]).findings:
        assert "# AMP" in Path(finding.filename).read_text().split("\n")[finding.line - 1]


CHAIN = {
    "tools.py": "from inner import inner\n\n\ndef scaled(scaler, loss):\n    return inner(scaler, loss)\n",
    "inner.py": "def inner(scaler, loss):\n    return scaler.scale(loss)\n",
}


@pytest.mark.parametrize(("most", "finds"), [(1_500_000, True), (len(CHAIN["tools.py"]), True), (10, False)])
def test_what_one_file_is_given_of_others_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, finds: bool
) -> None:
    monkeypatch.setattr(project, "MAX_GIVEN_CHARACTERS", most)
    assert is_followed(tmp_path, "train.py", "from tools import scaled", "scaled", CHAIN) is finds


@pytest.mark.parametrize("kept", [0, 150, 4_000_000])
def test_parsed_files_that_are_forgotten_are_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(project, "MAX_CACHED_CHARACTERS", kept)
    for name, text in CHAIN.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for number in range(4):
        train = TRAIN.format(imports="from tools import scaled", call="scaled")
        (tmp_path / f"train{number}.py").write_text(train, encoding="utf-8")
    found = [(Path(f.filename).name, f.code) for f in check_paths([str(tmp_path)]).findings]
    assert found == [(f"train{number}.py", "AMP201") for number in range(4)]


def test_files_that_import_each_other(tmp_path: Path) -> None:
    files = {
        "tools.py": "import inner\n\n\ndef scaled(scaler, loss):\n    return inner.inner(scaler, loss)\n",
        "inner.py": "import tools\n\n\ndef inner(scaler, loss):\n    return scaler.scale(loss)\n",
    }
    assert is_followed(tmp_path, "train.py", "from tools import scaled", "scaled", files)


@pytest.mark.parametrize("text", ["def scaled(scaler, loss:\n", "x = '\ud800'\n", "\0"])
def test_a_file_that_does_not_parse_defines_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "tools.py").write_bytes(text.encode("utf-8", "surrogatepass"))
    (tmp_path / "train.py").write_text(TRAIN.format(imports="from tools import scaled", call="scaled"))
    found = [(Path(f.filename).name, f.code) for f in check_paths([str(tmp_path / "train.py")]).findings]
    assert found == []


def test_a_file_whose_name_is_no_text_leads_where_any_does(tmp_path: Path) -> None:
    """A file name may hold any bytes: the search for importers of such a file does not fail."""
    model = os.fsdecode(b"mod\xe9l.py")
    fill = "import torch\n\ndef weights(q, k, m):\n    return torch.matmul(q, k).masked_fill(m, -1e9)\n"
    try:
        (tmp_path / model).write_text(fill, encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes no such name")
    (tmp_path / "train.py").write_text("import torch\nprint(torch.float16)\n", encoding="utf-8")
    # Without an importer, neighboring files may use float16.
    assert [f.code for f in check_paths([str(tmp_path)]).findings] == ["AMP506"]


@pytest.mark.parametrize("before", ["", "'text'; ", "'ä€𝄞'; "])
@pytest.mark.parametrize("after", ["", "\n"])
def test_columns_count_characters_in_the_last_line_as_in_others(before: str, after: str) -> None:
    source = TRAIN.format(imports="scaled = lambda scaler, loss: scaler.scale(loss)", call="scaled")
    head, clip, tail = source.partition("clip_grad_norm_(model.parameters(), 1.0)")
    body = head[: head.rindex("\n")].replace("for x, y in loader:", "def run(x, y):")
    assert tail.startswith("\n    scaler.step")
    (finding,) = check_source(f"{body}\n    {before}{clip}; scaler.step(optimizer); scaler.update(){after}", "train.py")
    assert (finding.code, finding.site.column) == ("AMP201", 4 + len(before))


def test_names_in_another_encoding_lead_where_others_do(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(SCALED, encoding="utf-8")
    train = "# -*- coding: latin-1 -*-\n" + TRAIN.format(imports="from tools import é, scaled", call="scaled")
    (tmp_path / "train.py").write_bytes(train.encode("latin-1"))
    for named in (tmp_path, tmp_path / "train.py"):
        assert [f.code for f in check_paths([str(named)]).findings] == ["AMP201"]


@pytest.mark.parametrize(
    ("train", "file", "others", "expected"),
    [
        # The nearest of the files above is meant, regardless of other files with its name.
        ("a/train.py", "a/tools.py", ["tools.py", "b/tools.py"], True),
        ("a/train.py", "tools.py", ["b/tools.py", "c/tools.py"], True),
        ("a/b/train.py", "a/tools.py", ["tools.py", "c/tools.py"], True),
        ("a/b/train.py", "tools.py", ["c/tools.py", "d/tools.py"], True),
        ("a/train.py", "tools.py", ["a/tools.py"], False),
        ("a/b/train.py", "tools.py", ["a/tools.py"], False),
        ("a/train.py", "b/tools.py", ["c/tools.py"], False),
        ("a/train.py", "a/b/tools.py", ["a/c/tools.py"], False),
        # A source layout in the same directory comes after the directory itself, and before the directories above.
        ("a/train.py", "a/src/tools.py", ["tools.py", "b/tools.py"], True),
        ("a/train.py", "a/lib/tools.py", ["tools.py", "b/tools.py"], True),
        ("a/train.py", "a/src/tools.py", ["a/tools.py"], False),
        ("a/train.py", "a/lib/tools.py", ["a/src/tools.py"], False),
        ("a/train.py", "src/tools.py", ["b/tools.py", "c/tools.py"], True),
        ("a/train.py", "a/other/tools.py", ["b/tools.py"], False),
        # A file precedes a package with its name.
        ("a/train.py", "a/tools.py", ["a/tools/__init__.py"], True),
        ("a/train.py", "a/tools/__init__.py", ["a/tools.py"], False),
        # No file imports itself: another file with its name above is meant.
        ("a/tools.py", "tools.py", ["b/tools.py", "c/tools.py"], True),
        ("a/b/tools.py", "tools.py", ["c/tools.py", "d/tools.py"], True),
        ("a/b/tools.py", "a/src/tools.py", ["c/tools.py", "d/tools.py"], True),
        ("a/b/tools.py", "c/tools.py", ["d/tools.py"], False),
    ],
)
def test_the_nearest_file_of_a_name_is_meant(
    tmp_path: Path, train: str, file: str, others: list[str], *, expected: bool
) -> None:
    files = {**dict.fromkeys(others, "x = 1\n"), file: SCALED}
    assert is_followed(tmp_path, train, "from tools import scaled", "scaled", files) is expected


def test_a_star_import_parses_only_files_with_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsed = ast.parse, set[str]()

    def record(text: str, **more: Any) -> ast.AST:
        parsed.add(text)
        made: ast.AST = parse(text, **more)
        return made

    package = "from .first import *\nfrom .second import *\n"
    files = {"kit/__init__.py": package, "kit/first.py": "optimizer = 1\n", "kit/second.py": SCALED}
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", record)
        assert is_followed(tmp_path, "train.py", "from kit import *", "scaled", files)
    assert files["kit/first.py"] not in parsed
    assert files["kit/second.py"] in parsed
