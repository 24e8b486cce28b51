"""Allowed imports and their cost: the table in docs/how.md, enforced."""

from __future__ import annotations

import ast
import functools
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
#: The modules of the package.
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
#: Modules that are loaded to check one file and must start quickly, and the modules that they must not load.
CHECK_PATH = [
    name
    for name in MODULES
    if name.startswith(("protocol/", "static/", "frontends/options/"))
    or name.removeprefix("frontends/").removesuffix(".py")
    in (
        "argument_parser",
        "check_command",
        "check_run",
        "cli",
        "command_output",
        "finding_text",
        "formats",
        "output",
        "printable",
        "run_command",
        "source_lines",
        "summaries",
    )
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


#: Folder of runtime -> allowed imports from runtime: folders, and the modules above them.
RUNTIME_ROOMS = {
    "": {
        "run",
        "session",
        "advice",
        "baselines",
        "exports",
        "ranks",
        "replay",
        "measure",
        "explain",
        "record",
        "emulate",
    },
    "ranks": {"run", "ranks", "replay", "record", "emulate"},
    "replay": {"replay", "record", "emulate"},
    "measure": {"measure", "record", "emulate"},
    "explain": {"explain", "record"},
    "record": {"record", "warning_locations"},
    "emulate": {"emulate", "warning_locations"},
}
#: The folders of ``static``, each with its allowed imports. "" is the folder of the engine.
STATIC_ROOMS = {
    "sources": {"sources"},
    "configuration": {"sources", "configuration"},
    "project": {"sources", "project"},
    "interpreter": {"sources", "project", "interpreter"},
    "libraries": {"sources", "configuration", "project", "interpreter", "libraries"},
    "": {"sources", "configuration", "project", "interpreter", "libraries", ""},
    "fixes": {"sources", "project", "interpreter", "libraries", "", "fixes"},
}


class Import(NamedTuple):
    """One import: full name, and flags for imports that run only inside a function, or never."""

    target: str
    lazy: bool
    line: int


def imports(name: str, tree: ast.Module) -> Iterator[Import]:
    """Yield every import of a module, given by its path below the package."""
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
                # A name may be a module, or an object inside a module: the longer path is the stricter interpretation.
                yield Import(f"{base}.{alias.name}", lazy, node.lineno)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for guarded in node.body:
                yield from visit(guarded, lazy=True)
            for other in node.orelse:
                yield from visit(other, lazy)
        else:
            inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for child in ast.iter_child_nodes(node):
                # No expression contains an import.
                if not isinstance(child, ast.expr):
                    yield from visit(child, inner)

    yield from visit(tree, lazy=False)


@functools.cache
def tree_of(name: str) -> ast.Module:
    """Return the syntax tree of a module of the package. The tests share the trees, and change none."""
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


@functools.cache
def imports_of(name: str) -> list[Import]:
    return list(imports(name, tree_of(name)))


def may(name: str, found: Import) -> bool:
    """Return True if the table allows the module this import."""
    top, _, rest = found.target.partition(".")
    own = top == PACKAGE
    folder = rest.partition(".")[0] if own else ""
    # tomllib is standard from Python 3.11 on, and type checkers bring typing_extensions along.
    standard = top in sys.stdlib_module_names or top == "tomllib" or (top == "typing_extensions" and found.lazy)
    where, _, file = name.rpartition("/")
    if name == "__init__.py":
        return standard or folder == "protocol" or (own and found.lazy)
    if name == "__main__.py":
        return standard or folder == "frontends"
    if where.startswith("protocol/rules/"):
        return standard or (folder == "protocol" and not rest.startswith("protocol.rules"))
    if where in ("protocol", "protocol/effects", "protocol/events", "protocol/messages", "protocol/rules"):
        return standard or folder == "protocol"
    if where.partition("/")[0] == "static":
        room = where.split("/")[1] if "/" in where else ""
        if folder == "static":
            inside = rest.split(".")[1]
            return (inside if inside in STATIC_ROOMS else "") in STATIC_ROOMS[room]
        reads_settings = top in ("yaml", "tomli") and room == "configuration" and found.lazy
        return standard or folder == "protocol" or (top == "libcst" and room == "fixes") or reads_settings
    if where == "runtime" or where.startswith("runtime/"):
        if folder == "runtime":
            room, wanted = [*name.split("/")[1:-1], ""][0], rest.split(".")[1]
            return wanted in RUNTIME_ROOMS.get(room, ())
        writes = file == "exports.py" and found.lazy and top in ("pandas", "wandb")
        # The columns of code objects before Python 3.11.
        locates = file == "instructions.py" and found.lazy and top == "executing"
        return standard or folder == "protocol" or top == "torch" or writes or locates
    if where == "monitors":
        # Each module needs the framework of its name.
        return (
            standard
            or folder in ("protocol", "runtime", "monitors")
            or top in ("torch", file.removesuffix(".py"))
            or ((top, file) == ("pytorch_lightning", "lightning.py"))
        )
    if where == "frontends/server":
        # Loaded for one command only.
        return standard or (own and folder != "runtime") or top in ("lsprotocol", "pygls")
    if where == "frontends/page":
        return standard or (own and folder in ("protocol", "frontends"))
    if where == "frontends/options":
        # Resolved options do not depend on a frontend. The effects on a check are requested lazily from the engine.
        if own:
            known = folder == "protocol" or rest.startswith(("frontends.options", "frontends.formats"))
            return known or (found.lazy and folder in ("static", "__version__"))
        # The predecessor of tomllib before Python 3.11, and what reads versions.
        return standard or ((top, file) in (("tomli", "files.py"), ("packaging", "versions.py")) and found.lazy)
    if where == "frontends":
        if own and rest.startswith("frontends.server"):
            return file == "cli.py" and found.lazy
        if own:
            return folder in ("protocol", "frontends") or (
                found.lazy and folder in ("static", "runtime", "__version__")
            )
        if top == "rich":
            return file == "output.py"
        if top == "mcp":
            return file == "mcp_server.py"
        if top == "shtab":
            return file == "completion.py" and found.lazy
        if top in ("IPython", "traitlets"):
            return file in ("notebook_magic.py", "notebook_runs.py") and found.lazy
        return standard or (top == "pytest" and file in ("plugin.py", "fixtures.py", "recording.py"))
    return False


def test_who_imports_whom() -> None:
    """Each module has only imports that the table allows; a failure names every other import."""
    wrong = [
        f"{name}:{each.line} imports {each.target}"
        for name in MODULES
        for each in imports_of(name)
        if not may(name, each)
    ]
    assert wrong == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import themselves directly or indirectly."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo.extend(new)
        reach[start] = seen
    found = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    return sorted(list(circle) for circle in found if circle)


def test_no_two_modules_import_each_other() -> None:
    """No modules form an import circle; imports for the type checker and imports in functions count too."""
    modules = {".".join([PACKAGE, *name.removesuffix(".py").split("/")]).removesuffix(".__init__") for name in MODULES}
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        own = ".".join([PACKAGE, *name.removesuffix(".py").split("/")]).removesuffix(".__init__")
        targets = {each.target for each in imports_of(name)}
        # Names imported from a module are usually no modules themselves.
        graph[own] = {found for target in targets for found in (target, target.rpartition(".")[0]) if found in modules}
        graph[own] -= {own, PACKAGE}
    assert circles(graph) == []


#: Largest number of methods of a class, and of levels of project classes that it may derive from.
METHODS, LEVELS = 30, 2


def test_no_class_of_the_reader_of_source_grows_without_end() -> None:
    bases: dict[str, list[str]] = {}
    large: list[str] = []
    for name in (name for name in MODULES if name.startswith("static/")):
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                methods = sum(isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) for part in node.body)
                large += [f"{name}: {node.name} has {methods} methods"] if methods > METHODS else []

    def levels(cls: str) -> int:
        return max((1 + levels(base) for base in bases[cls] if base in bases), default=0)

    assert large == []
    assert [cls for cls in bases if levels(cls) > LEVELS] == []


#: Maximum number of optional attributes of a class. Attributes that are computed, joined and read together are a group.
MAX_OPTIONAL = 12


def optional_attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes with a default that a class declares, in its body or as parameters of ``__init__``."""
    found = {
        s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and s.value and isinstance(s.target, ast.Name)
    }
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            given, keywords = method.args, zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
            positional = [*given.posonlyargs, *given.args]
            found |= {each.arg for each in positional[len(positional) - len(given.defaults) :]}
            found |= {each.arg for each, default in keywords if default is not None}
    return found


#: Modules of data that is joined: an attribute that a constructor sets to a default counts there, too. Elsewhere such
#: an attribute is the state of an object that does the work.
JOINED = (
    "static/interpreter/values/",
    "protocol/events/",
    "protocol/automaton.py",
    "protocol/event_graph.py",
    "protocol/finding.py",
    "protocol/tracked_objects.py",
)


def preset_attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes, but not slots of base classes, that ``__init__`` of a class sets without any parameter."""
    slots = [s.value for s in node.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "__slots__"]
    own = {each for value in slots for each in ast.literal_eval(value)}
    found = set()
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            given = {each.arg for each in (*method.args.posonlyargs, *method.args.args[1:], *method.args.kwonlyargs)}
            for part in ast.walk(method):
                if not isinstance(part, (ast.Assign, ast.AnnAssign)) or part.value is None:
                    continue
                if given.isdisjoint(n.id for n in ast.walk(part.value) if isinstance(n, ast.Name)):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    found |= {t.attr for each in targets for t in ast.walk(each) if isinstance(t, ast.Attribute)}
    return found & own if slots else found


def test_no_class_has_dozens_of_optional_attributes() -> None:
    many = {}
    for name in MODULES:
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.ClassDef):
                for found in (optional_attributes(node), preset_attributes(node) if name.startswith(JOINED) else ()):
                    if len(found) > MAX_OPTIONAL:
                        many[f"{name}: {node.name}"] = sorted(found)
    assert not many, "make a class with its own join of those that are computed and read together"


def test_which_attributes_are_optional() -> None:
    (node,) = ast.parse(
        "class A:\n    x: int = 0\n    y: int\n    Z = 1\n    def __init__(self, a, b=1, *, c, d=2): ...\n"
    ).body
    assert isinstance(node, ast.ClassDef)
    assert optional_attributes(node) == {"x", "b", "d"}
    (node,) = ast.parse(
        "class A:\n    __slots__ = ('a', 'b', 'c', 'd', 'e')\n"
        "    def __init__(self, a, *, b=1):\n        self.a, self.b = a, b\n"
        "        self.c = self.d = None\n        self.e: int = 0\n        self.inherited = 1\n"
    ).body
    assert isinstance(node, ast.ClassDef)
    assert preset_attributes(node) == {"c", "d", "e"}


def test_what_a_circle_is() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]


def test_what_checking_a_file_loads() -> None:
    dear = [
        f"{name}:{each.line} imports {each.target}"
        for name in CHECK_PATH
        for each in imports_of(name)
        if not each.lazy and each.target.split(".")[0] in DEAR
    ]
    assert dear == []


@pytest.mark.parametrize(
    ("name", "source", "allowed"),
    [
        ("protocol/graph_checker.py", "import re", True),
        ("protocol/graph_checker.py", "import typing_extensions", False),
        ("protocol/graph_checker.py", "from .rules import RULES", True),
        ("protocol/graph_checker.py", "from ..static import engine", False),
        ("protocol/graph_checker.py", "def f():\n    import torch", False),
        ("protocol/graph_checker.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich", False),
        ("protocol/rules/scaling/double_unscale.py", "from ...rule import Rule", True),
        ("protocol/rules/scaling/double_unscale.py", "from . import clip_before_unscale", False),
        ("protocol/rules/scaling/double_unscale.py", "from ..autocast.stale_weight_cache import RULE", False),
        ("protocol/rules/scaling/double_unscale.py", "from .. import RULES", False),
        ("protocol/rules/scaling/double_unscale.py", "import pytest_amp_check.protocol.rules.autocast", False),
        ("protocol/rules/__init__.py", "from ..rule import Rule\nfrom .index import INDEX", True),
        ("static/engine.py", "from ..protocol.check import check\nfrom . import sources", True),
        ("static/engine.py", "def f():\n    from ..runtime import recorder", False),
        ("static/engine.py", "from .. import frontends", False),
        ("static/engine.py", "def f():\n    import libcst", False),
        ("runtime/record/recorder.py", "import torch.amp\nfrom ...protocol import events", True),
        ("runtime/record/recorder.py", "from ...static import names", False),
        ("runtime/record/recorder.py", "from ..measure import memory", False),
        ("runtime/record/recorder.py", "from ..run import Run", False),
        ("runtime/measure/memory.py", "from ..record.collector import Collector", True),
        ("runtime/measure/memory.py", "from ..replay import replay", False),
        ("runtime/emulate/cuda.py", "from ..record import sites", False),
        ("runtime/session.py", "from .replay.replay import Replay\nfrom .run import record", True),
        ("static/interpreter/calls.py", "import libcst", False),
        ("static/fixes/rewrite.py", "import libcst", True),
        ("static/engine.py", "from .fixes import apply", False),
        ("static/fixes/fix_files.py", "from ..engine import check_again", True),
        ("static/sources/code_blocks.py", "from ..project import module", False),
        ("static/project/project.py", "from ..sources import programs", True),
        ("static/project/project.py", "def f():\n    from ..interpreter import values", False),
        ("static/interpreter/values.py", "from ..engine import check_again", False),
        ("static/interpreter/calls.py", "def f():\n    from ..libraries import scalers", False),
        ("static/libraries/scalers.py", "from ..interpreter import values", True),
        ("frontends/cli.py", "from ..protocol.rules import RULES\nfrom . import text", True),
        ("frontends/cli.py", "from ..static import engine", False),
        ("frontends/cli.py", "def f():\n    from ..static import engine", True),
        ("frontends/cli.py", "if TYPE_CHECKING:\n    from ..static.engine import Report\nelse:\n    import json", True),
        ("frontends/cli.py", "if TYPE_CHECKING:\n    pass\nelse:\n    from ..static.engine import Report", False),
        ("frontends/cli.py", "def f():\n    from rich.console import Console", False),
        ("frontends/output.py", "def f():\n    from rich.console import Console", True),
        ("frontends/cli.py", "import pytest", False),
        ("frontends/plugin.py", "import pytest", True),
        ("frontends/cli.py", "def f():\n    from .server import language_server", True),
        ("frontends/cli.py", "from .server import language_server", False),
        ("frontends/plugin.py", "def f():\n    from .server import documents", False),
        ("frontends/server/checking.py", "from ...static import engine\nfrom .. import options", True),
        ("frontends/options/files.py", "from .kinds import nearest\nfrom ...protocol import finding", True),
        ("frontends/options/files.py", "def f():\n    import tomli", True),
        ("frontends/options/kinds.py", "def f():\n    import tomli", False),
        ("frontends/options/kinds.py", "from .. import cli", False),
        ("frontends/options/interpretation.py", "from ...static import engine", False),
        ("frontends/server/checking.py", "from ...runtime import session", False),
        ("frontends/server/documents.py", "from lsprotocol import types", True),
        ("static/incremental.py", "from ..frontends import options", False),
        ("__init__.py", "from .static import engine", False),
        ("__init__.py", "def __getattr__(name):\n    from .static import engine", True),
        ("__init__.py", "def __getattr__(name):\n    import torch", False),
        ("elsewhere/new.py", "import re", False),
    ],
)
def test_the_table_itself(name: str, source: str, allowed: bool) -> None:
    assert all(may(name, each) for each in imports(name, ast.parse(source))) == allowed


def python(code: str) -> str:
    """Run code in a new interpreter and return its output."""
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
        f"print(*[(f.code, f.line) for f in check_source({RULES['AMP201'].bad_example!r})])\n"
    )
    marked = [number for number, line in enumerate(RULES["AMP201"].bad_example.split("\n"), 1) if "# AMP201" in line]
    assert output.split("\n") == [" ".join(str(("AMP201", number)) for number in marked), ""]


@pytest.mark.parametrize(
    ("module", "after", "never"),
    [
        # Imported in every run of pytest, wherever this distribution is installed.
        ("pytest_amp_check.frontends.plugin", "pytest", {"torch", "numpy", "libcst", "rich"}),
        ("pytest_amp_check", "sys", {"torch", "numpy", "libcst", "rich", "pytest", "ast", "argparse"} | DEAR),
        ("pytest_amp_check.frontends.cli", "sys", {"torch", "numpy", "libcst", "rich", "pytest"} | DEAR),
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
