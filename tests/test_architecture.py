"""Who may import whom, and what an import may cost: the table in the README, enforced."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pytest_amp_check
from pytest_amp_check.protocol.rules import RULES

PACKAGE = "pytest_amp_check"
ROOT = Path(pytest_amp_check.__file__).parent
#: Look-alikes are programs of users, not modules.
MODULES = sorted(
    path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if "lookalikes" not in path.relative_to(ROOT).parts
)
#: Modules that are loaded to check one file, whose start must stay short, and what they may not load for it.
CHECK_PATH = [
    name
    for name in MODULES
    if name.startswith(("protocol/", "static/"))
    or name in ("faces/cli.py", "faces/formats.py", "faces/options.py", "faces/text.py")
]
DEAR = {
    "asyncio",
    "concurrent",
    "dataclasses",
    "importlib",
    "inspect",
    "json",
    "logging",
    "multiprocessing",
    "pathlib",
    "pytest",
    "rich",
    "shutil",
    "subprocess",
    "tempfile",
    "tokenize",
    "tomllib",
    "unittest",
}


class Import(NamedTuple):
    """One import: what it names in full, and whether it only happens when a function runs, or never."""

    target: str
    lazy: bool
    line: int


def imports(name: str, source: str) -> Iterator[Import]:
    """Every import of a module, given by its path below the package."""
    parts = [PACKAGE, *name.removesuffix(".py").split("/")]
    if parts[-1] == "__init__":
        parts.pop()
        package = parts
    else:
        package = parts[:-1]

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, lazy, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            if not node.level:
                base = node.module or ""
            for alias in node.names:
                # A name may be a module of its own, or something inside one: the longer is the stricter reading.
                yield Import(f"{base}.{alias.name}", lazy, node.lineno)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for guarded in node.body:
                yield from visit(guarded, lazy=True)
            for other in node.orelse:
                yield from visit(other, lazy)
        else:
            inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inner)

    yield from visit(ast.parse(source), lazy=False)


def may(name: str, found: Import) -> bool:
    """Whether the table allows this module this import."""
    top, _, rest = found.target.partition(".")
    own = top == PACKAGE
    folder = rest.partition(".")[0] if own else ""
    # tomllib is standard from Python 3.11 on.
    standard = top in sys.stdlib_module_names or top == "tomllib"
    where, _, file = name.rpartition("/")
    if name == "__init__.py":
        return standard or folder == "protocol" or (own and found.lazy)
    if name == "__main__.py":
        return standard or folder == "faces"
    if where.startswith("protocol/rules/"):
        return standard or (folder == "protocol" and not rest.startswith("protocol.rules"))
    if where in ("protocol", "protocol/effects", "protocol/rules"):
        return standard or folder == "protocol"
    if where == "static":
        return standard or folder in ("protocol", "static") or (top == "libcst" and file == "rewrite.py")
    if where == "runtime":
        return standard or folder in ("protocol", "runtime") or top == "torch"
    if where == "faces":
        if own:
            return folder in ("protocol", "faces") or (found.lazy and folder in ("static", "runtime", "__version__"))
        if top == "tomli":
            # What tomllib was before it was part of Python.
            return file == "options.py" and found.lazy
        if top == "plotly":
            return file == "html.py" and found.lazy
        if top == "rich":
            return file == "text.py"
        return standard or (top == "pytest" and file in ("plugin.py", "fixtures.py", "recording.py"))
    return False


@pytest.mark.parametrize("name", MODULES)
def test_who_imports_whom(name: str) -> None:
    found = list(imports(name, (ROOT / name).read_text(encoding="utf-8")))
    assert [f"{name}:{each.line} imports {each.target}" for each in found if not may(name, each)] == []


@pytest.mark.parametrize("name", CHECK_PATH)
def test_what_checking_a_file_loads(name: str) -> None:
    found = [each for each in imports(name, (ROOT / name).read_text(encoding="utf-8")) if not each.lazy]
    assert [f"{name}:{each.line} imports {each.target}" for each in found if each.target.split(".")[0] in DEAR] == []


@pytest.mark.parametrize(
    ("name", "source", "allowed"),
    [
        ("protocol/check.py", "import re", True),
        ("protocol/check.py", "from .rules import RULES", True),
        ("protocol/check.py", "from ..static import engine", False),
        ("protocol/check.py", "def f():\n    import torch", False),
        ("protocol/check.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich", False),
        ("protocol/rules/scaling/double_unscale.py", "from ...rule import Rule", True),
        ("protocol/rules/scaling/double_unscale.py", "from . import clip_before_unscale", False),
        ("protocol/rules/scaling/double_unscale.py", "from ..autocast.stale_weight_cache import RULE", False),
        ("protocol/rules/scaling/double_unscale.py", "from .. import RULES", False),
        ("protocol/rules/scaling/double_unscale.py", "import pytest_amp_check.protocol.rules.autocast", False),
        ("protocol/rules/__init__.py", "from ..rule import Rule\nfrom .index import INDEX", True),
        ("static/engine.py", "from ..protocol.check import check\nfrom . import sources", True),
        ("static/engine.py", "def f():\n    from ..runtime import recorder", False),
        ("static/engine.py", "from .. import faces", False),
        ("static/engine.py", "def f():\n    import libcst", False),
        ("static/fix.py", "import libcst", False),
        ("static/rewrite.py", "import libcst", True),
        ("runtime/recorder.py", "import torch.amp\nfrom ..protocol import events", True),
        ("runtime/recorder.py", "from ..static import names", False),
        ("faces/cli.py", "from ..protocol.rules import RULES\nfrom . import text", True),
        ("faces/cli.py", "from ..static import engine", False),
        ("faces/cli.py", "def f():\n    from ..static import engine", True),
        ("faces/cli.py", "if TYPE_CHECKING:\n    from ..static.engine import Report\nelse:\n    import json", True),
        ("faces/cli.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from ..static.engine import Report", False),
        ("faces/cli.py", "def f():\n    from rich.console import Console", False),
        ("faces/text.py", "def f():\n    from rich.console import Console", True),
        ("faces/cli.py", "import pytest", False),
        ("faces/plugin.py", "import pytest", True),
        ("__init__.py", "from .static import engine", False),
        ("__init__.py", "def __getattr__(name):\n    from .static import engine", True),
        ("__init__.py", "def __getattr__(name):\n    import torch", False),
        ("elsewhere/new.py", "import re", False),
    ],
)
def test_the_table_itself(name: str, source: str, allowed: bool) -> None:
    assert all(may(name, each) for each in imports(name, source)) == allowed


def python(code: str) -> str:
    """The output of a fresh interpreter that runs this code."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reading_source_needs_nothing_installed() -> None:
    output = python(
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['torch', 'numpy', 'libcst', 'rich', 'pytest', '_pytest']))\n"
        "import pytest_amp_check.static.engine\n"
        "from pytest_amp_check import check_source\n"
        f"print(*[(f.code, f.line) for f in check_source({RULES['AMP201'].bad!r})])\n"
    )
    marked = [number for number, line in enumerate(RULES["AMP201"].bad.split("\n"), 1) if "# AMP201" in line]
    assert output.split("\n") == [" ".join(str(("AMP201", number)) for number in marked), ""]


@pytest.mark.parametrize(
    ("module", "after", "never"),
    [
        # Imported in every run of pytest, wherever this distribution is installed.
        ("pytest_amp_check.faces.plugin", "pytest", {"torch", "numpy", "libcst", "rich"}),
        ("pytest_amp_check", "sys", {"torch", "numpy", "libcst", "rich", "pytest", "ast", "argparse"} | DEAR),
        ("pytest_amp_check.faces.cli", "sys", {"torch", "numpy", "libcst", "rich", "pytest"} | DEAR),
        ("pytest_amp_check.static.engine", "sys", {"torch", "numpy", "libcst", "rich", "pytest"} | DEAR),
    ],
)
def test_what_an_import_loads(module: str, after: str, never: set[str]) -> None:
    output = python(
        f"import sys, {after}\nbefore = set(sys.modules)\nimport {module}\nprint(*set(sys.modules) - before)"
    )
    loaded = {name.partition(".")[0] for name in output.split()}
    assert PACKAGE in loaded
    assert loaded & never == set()
