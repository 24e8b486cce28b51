"""Mutation test of our own code: insert one mistake at a time and list the mistakes that no test notices.

    python benchmarks/bites.py [--seed 0] [--mutants 150] [--seconds 60] [--jobs 2] [--only 3 --only 17]
                               [--target static/libraries] [--files 'static/libraries/c*'] [TESTS ...]

The mutants are drawn from all mutants of the functions of one folder, or of several: another comparison, ``and`` for
``or``, a removed ``not``, another constant, another operator of numbers and sets, nothing returned, a removed
statement. Code that runs only when modules are imported is not mutated, and neither are assertions, which serve the
type checker, and f-strings, which serve people. The functions called ``register``, which fill the tables of handlers,
run only at import: a test reaches their switches only by importing modules again, and asserts nothing about them.

All mutants of a sample are compiled into the modules, each behind a switch, and the tests are collected once. A first
run, with no mutant switched on, records which tests reach which switch. Then each mutant gets a forked process, which
runs the tests that reach its switch, until one test fails or ``--seconds`` are used up. The order is: first the
quickest test of every file, then the files whose tests have noticed most mutants before, in proportion to their time. A
file that shares a word with the module's name comes earlier. A test that takes ten times its usual time is a timeout.

Processes that tests start see the mutants as well: ``PYTHONPATH`` names a folder whose ``sitecustomize`` loads the
mutated modules, and environment variables name the mutant and the folder for the numbers of reached switches. A process
started with ``-S``, ``-I``, ``-E`` or another ``PYTHONPATH`` sees no mutant. ``--one-process`` disables all of this.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import marshal
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from random import Random
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_amp_check"
#: Tests of the analyzer that start no other process.
OF_THE_ANALYZER = (
    "tests/protocol",
    "tests/static",
    "tests/whole/test_fixtures_marks.py",
    "tests/whole/test_rules_examples.py",
    "tests/whole/test_parity.py",
    "tests/whole/test_generated.py",
    "tests/whole/test_sizes.py",
    "tests/whole/test_float8.py",
    "tests/frontends/test_formats.py",
    "tests/frontends/test_one_verdict.py",
)
#: Tests of the options of a check, which declare helpers, devices and dtypes to the models of libraries.
OF_OPTIONS = (
    "tests/frontends/test_check_options.py",
    "tests/frontends/test_command_details.py",
    "tests/frontends/test_formats_in_full.py",
)
#: Tests of recordings: some listeners are tested through the command, the plugin or the fixtures alone.
OF_RECORDINGS = (
    "tests/runtime",
    "tests/gpu",
    "tests/whole/test_parity.py",
    "tests/whole/test_in_place.py",
    "tests/whole/test_generated.py",
    "tests/whole/test_fixtures_run.py",
    "tests/whole/test_float8.py",
    "tests/whole/test_steps.py",
    "tests/frontends/test_amp_fixture.py",
    "tests/frontends/test_recorded_tests.py",
    "tests/frontends/test_run_command.py",
    "tests/frontends/test_run_details.py",
    "tests/frontends/test_run_ranks.py",
    "tests/frontends/test_notebook_runs.py",
    "tests/frontends/test_notebook_magic.py",
    "tests/frontends/test_page_in_full.py",
)
#: The folders whose code can be mutated, and the tests that are collected for each.
TARGETS = {
    "protocol": (*OF_THE_ANALYZER, "tests/runtime"),
    "static/interpreter": OF_THE_ANALYZER,
    "static/libraries": (*OF_THE_ANALYZER, *OF_OPTIONS),
    "static/project": OF_THE_ANALYZER,
    "static/sources": (*OF_THE_ANALYZER, "tests/frontends"),
    "runtime/record": OF_RECORDINGS,
    "frontends": ("tests/frontends", "tests/whole/test_readme.py"),
}
#: Name of the switch function in mutated modules.
SWITCH = "__mutant__"
#: Processor time in seconds that a test may take in addition to ten times its usual time.
GRACE = 10.0
#: Wall-clock time in seconds that a test may take in addition to ten times its usual time. The processor time of a test
#: excludes the processes that the test starts, and a mutant may let these processes wait for each other.
WAITING = 60.0
#: Environment variables for the processes that tests start: the number of the mutant, and the folder to which each
#: process appends the numbers of the switches that it reaches.
MUTANT, REACHED = "AMP_CHECK_BITES_MUTANT", "AMP_CHECK_BITES_REACHED"
#: The sitecustomize of these processes. A forked process reads the environment again: warm.py forks and then sets it.
IN_OTHER_PROCESSES = """\
import marshal, os, sys
from importlib.machinery import PathFinder, SourceFileLoader

CODES = {codes!r}


class Switches:
    def __init__(self):
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self):
        self.on, self.folder, self.reached = None, None, set()

    def __call__(self, number):
        if self.on is None:
            self.on = os.environ.get({mutant!r}, "")
            self.folder = os.environ.get({reached!r})
        if self.folder and number not in self.reached:
            self.reached.add(number)
            try:
                with open(os.path.join(self.folder, str(os.getpid())), "a") as file:
                    file.write(str(number) + "\\n")
            except OSError:
                pass
        return str(number) == self.on


SWITCHES = Switches()


class Loader:
    # Not a SourceFileLoader: pytest would load a plugin with a loader of its own, which rewrites assertions.

    def __init__(self, fullname, path):
        self.path = path
        self.found = SourceFileLoader(fullname, path)

    def __getattr__(self, name):
        return getattr(self.found, name)

    def create_module(self, spec):
        return None

    def get_code(self, fullname):
        with open(CODES[self.path], "rb") as file:
            return marshal.load(file)

    def exec_module(self, module):
        vars(module)[{switch!r}] = SWITCHES
        exec(self.get_code(module.__name__), vars(module))


def find_spec(cls, fullname, path=None, target=None):
    spec = found(fullname, path, target)
    if spec is not None and spec.origin in CODES:
        spec.loader = Loader(fullname, spec.origin)
    return spec


found, PathFinder.find_spec = PathFinder.find_spec, classmethod(find_spec)
"""
#: Bytes that a mutant may allocate, so that an endless mutant does not use up the memory.
MEMORY = 16 << 30
KILLED, SURVIVED = 1, 0
#: Weights of test files. A file that has noticed no mutant yet counts as this part of a noticed mutant. A mutant of the
#: same module, or a word that the names of the file and the module share, counts as this many: most test files notice
#: mistakes in only a few modules.
UNTRIED, SAME_MODULE, SAME_WORD = 0.5, 8, 8

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


# Mutants: possible changes, and their insertion into the code.


class Mutant(NamedTuple):
    """A change of one node of a file. A removed statement has no replacement."""

    kind: str
    file: str
    node: ast.expr | ast.stmt
    made: ast.expr | None

    def __str__(self) -> str:
        place = f"{self.file}:{self.node.lineno}"
        lines = (ROOT / self.file).read_bytes().splitlines()[self.node.lineno - 1 : self.node.end_lineno]
        before = lines[0][: self.node.col_offset]
        new = "pass" if self.made is None else ast.unparse(self.made)
        after = lines[-1][self.node.end_col_offset :]
        return "\n".join(
            [
                f"{place}: {self.kind}",
                *(f"- {line.decode()}" for line in lines),
                f"+ {(before + new.encode() + after).decode()}",
            ]
        )


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left, ops, comparators):
            for number, op in enumerate(ops):
                changed = [*ops[:number], COMPARISONS[type(op)](), *ops[number + 1 :]]
                yield "comparison", ast.Compare(left, changed, comparators)
        case ast.BoolOp(ast.And(), values):
            yield "and for or", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield "or for and", ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", operand
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield "operator", ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(str() as value):
            yield "constant", ast.Constant(f"{value}XX")


def _goes(node: ast.stmt) -> bool:
    """Return True if a program stays valid without a statement and is likely to behave differently."""
    match node:
        case ast.Expr(ast.Call()) | ast.Raise() | ast.Break() | ast.Continue() | ast.Delete() | ast.AugAssign():
            return True
        case ast.Assign(targets):
            return not any(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.Return(value):
            return value is None
    return False


class _Mutants(ast.NodeVisitor):
    """Visitor that collects the mutants of a file in line order."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.made: list[Mutant] = []
        self._functions = 0

    def _add(self, kind: str, node: ast.expr | ast.stmt, made: ast.expr | None) -> None:
        if self._functions:
            self.made.append(Mutant(kind, self.file, node, made))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            for kind, made in _of_expression(node):
                self._add(kind, node, made)
        elif isinstance(node, ast.stmt) and _goes(node):
            self._add("statement", node, None)
        super().visit(node)

    def _within(self, *body: ast.AST) -> None:
        self._functions += 1
        for each in body:
            self.visit(each)
        self._functions -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "register":
            self._within(*node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._within(node.body)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if not isinstance(node.value, ast.Constant):
            self._add("returned", node.value, ast.Constant(None))
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_match_case(self, node: ast.match_case) -> None:
        for each in filter(None, [node.guard, *node.body]):
            self.visit(each)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass


def mutants(file: str, tree: ast.Module) -> list[Mutant]:
    found = _Mutants(file)
    found.visit(tree)
    return found.made


class _Switched(ast.NodeTransformer):
    """Transformer that puts mutants behind switches."""

    def __init__(self, chosen: dict[int, list[tuple[int, Mutant]]]) -> None:
        self._chosen = chosen

    def visit(self, node: ast.AST) -> Any:
        chosen = self._chosen.get(id(node), ())
        made: Any = super().visit(node)
        for number, mutant in chosen:
            on = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(number)], [])
            new = ast.If(on, [ast.Pass()], [made]) if mutant.made is None else ast.IfExp(on, mutant.made, made)
            made = ast.fix_missing_locations(ast.copy_location(new, made))
        return made


def switched(tree: ast.Module, chosen: Iterable[tuple[int, Mutant]]) -> ast.Module:
    """Insert mutants into a tree in place. The function ``SWITCH`` enables a mutant."""
    by_node: dict[int, list[tuple[int, Mutant]]] = defaultdict(list)
    for number, mutant in chosen:
        by_node[id(mutant.node)].append((number, mutant))
    _Switched(by_node).visit(tree)
    return ast.fix_missing_locations(tree)


class Switches:
    """The number of the active mutant, and the numbers of the reached switches."""

    def __init__(self) -> None:
        self.on: int | None = None
        self.reached: set[int] = set()

    def __call__(self, number: int) -> bool:
        self.reached.add(number)
        return number == self.on


def share(trees: dict[str, ast.Module], numbered: Iterable[tuple[int, Mutant]], folder: Path) -> None:
    """Write a sitecustomize into a folder, and the code of the mutated modules, for other processes."""
    codes: dict[str, str] = {}
    for path in sorted({str(ROOT / mutant.file) for _, mutant in numbered}):
        codes[path] = str(folder / f"{len(codes)}.code")
        Path(codes[path]).write_bytes(marshal.dumps(compile(trees[path], path, "exec", dont_inherit=True)))
    text = IN_OTHER_PROCESSES.format(codes=codes, mutant=MUTANT, reached=REACHED, switch=SWITCH)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module, switches: Switches) -> None:
        super().__init__(name, path)
        self._tree = tree
        self._switches = switches

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[SWITCH] = self._switches
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finder that loads modules with mutants from the changed trees. Other modules load as usual."""

    def __init__(self, trees: dict[str, ast.Module], switches: Switches) -> None:
        self._trees = trees
        self._switches = switches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{PACKAGE.name}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin in self._trees:
            spec.loader = _Loader(fullname, spec.origin, self._trees[spec.origin], self._switches)
        return spec


class Sample(NamedTuple):
    mutants: list[Mutant]
    #: Descriptions of the mutants.
    reported: list[str]
    #: Number of mutants to draw from.
    of: int
    #: The changed modules, by path.
    trees: dict[str, ast.Module]


def sample(seed: int, count: int, targets: Iterable[str], among: Sequence[str] = ("*",)) -> Sample:
    files = sorted(
        path
        for target in targets
        for path in (PACKAGE / target).rglob("*.py")
        if any(fnmatchcase(path.relative_to(PACKAGE).as_posix(), pattern) for pattern in among)
    )
    trees = {str(path): ast.parse(path.read_bytes()) for path in files}
    every = [each for path, tree in trees.items() for each in mutants(Path(path).relative_to(ROOT).as_posix(), tree)]
    drawn = Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - a sample, no secret
    drawn.sort(key=lambda mutant: (mutant.file, mutant.node.lineno, mutant.node.col_offset))
    # Formatted before mutants become parts of one another.
    reported = [str(mutant) for mutant in drawn]
    numbered = list(enumerate(drawn))
    for path, tree in trees.items():
        switched(tree, [(number, each) for number, each in numbered if str(ROOT / each.file) == path])
    return Sample(drawn, reported, len(every), trees)


# Tests: the switches that each reaches, and the tests that notice a mutant.


class Known(NamedTuple):
    """Time of a test in seconds, and the mutants that the test reaches.

    The seconds are processor time, or wall-clock time for a test whose child processes reached mutants.
    """

    seconds: float
    reached: frozenset[int]
    #: Wall-clock time in seconds.
    waited: float


class _Stopwatch:
    def __init__(self) -> None:
        self._processor, self._wall = time.process_time(), time.monotonic()

    def read(self, *, elsewhere: bool) -> tuple[float, float]:
        """Return the counted seconds, and the wall-clock seconds. ``elsewhere``: other processes did the work."""
        processor, wall = time.process_time() - self._processor, time.monotonic() - self._wall
        return max(processor, wall) if elsewhere else processor, wall


class Verdict(NamedTuple):
    outcome: str
    #: The test that noticed the mutant, or the number of tests that did not.
    by: str


def _words_of(file: str) -> set[str]:
    """Return the words of a file's name without the ending of the plural."""
    return {word.removesuffix("s") for word in Path(file).stem.split("_") if len(word) > 2} - {"test"}


class Bites:
    """Plugin of pytest that runs the collected tests for each mutant."""

    def __init__(self, made: Sample, switches: Switches, options: argparse.Namespace, folder: Path) -> None:
        self.made = made
        self.verdicts: dict[int, Verdict] = {}
        self._switches = switches
        self._options = options
        self._folder = folder
        self._failed = False
        #: Time and reached switches of setting up each fixture that several tests share, by the fixture's name.
        self._shared: dict[str, Known] = {}
        #: Number of mutants noticed by a test file, by the file and the mutant's module, with "" for all modules.
        self._noticed: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        self._collect()
        around, stopwatch = set(self._switches.reached), _Stopwatch()
        self._switches.reached.clear()
        try:
            return (yield)
        finally:
            seconds, waited = stopwatch.read(elsewhere=self._collect())
            self._shared[fixturedef.argname] = Known(seconds, frozenset(self._switches.reached), waited)
            self._switches.reached |= around

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        imported = frozenset(self._switches.reached)
        if "warm" in sys.modules:
            # Started once for all mutants: loading torch takes seconds.
            sys.modules["warm"].start_sources()
        by_file: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            by_file[item.path].append(item)
        known: dict[str, Known] = {}
        for _, _, folder in self._forked(by_file, lambda file, folder: self._observe(by_file[file], folder)):
            for name, seconds, reached, waited in json.loads((folder / "known.json").read_text(encoding="utf-8")):
                known[name] = Known(seconds, frozenset(reached), waited)
        reported = (
            f"{len(known)} of {len(session.items)} tests pass, {sum(each.seconds for each in known.values()):.0f} s"
        )
        print(reported, file=sys.stderr, flush=True)
        for name in [item.nodeid for item in session.items if item.nodeid not in known]:
            print("does not pass without a mutant:", name, file=sys.stderr, flush=True)
        self._notice_all({item.nodeid: item for item in session.items}, known, imported)
        return True

    def _notice_all(self, by_name: dict[str, pytest.Item], known: dict[str, Known], imported: frozenset[int]) -> None:
        """Run the tests for each mutant."""
        reached = frozenset[int]().union(*(each.reached for each in known.values()))
        asked = self._options.only or range(len(self.made.mutants))
        # A switch cannot affect code that runs only during imports.
        tried = [number for number in asked if number in reached or number not in imported]
        costs = dict.fromkeys(tried, 0.0)
        for each in known.values():
            for number in each.reached & costs.keys():
                costs[number] += each.seconds
        # First the mutants for which all tests fit into the time: they show which files notice mutants.
        order = sorted(tried, key=lambda number: costs[number])
        # Tests are chosen lazily, when the results of earlier mutants are known.
        work = ((number, list(self._chosen(number, known))) for number in order)
        for (number, names), status, folder in self._forked(
            work, lambda piece, folder: self._try(piece[0], [by_name[name] for name in piece[1]], known, folder)
        ):
            self.verdicts[number] = verdict = self._verdict(status, folder, len(names))
            if verdict.outcome != "survived":
                file = verdict.by.partition("::")[0]
                self._noticed.update([(file, ""), (file, self.made.mutants[number].file)])
            print(number, *verdict, file=sys.stderr, flush=True)

    def _chosen(self, number: int, known: dict[str, Known]) -> Iterator[str]:
        """Choose the tests that reach a mutant: the quickest of each file, then by the files that notice most."""
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in sorted(known, key=lambda name: known[name].seconds):
            if number in known[name].reached:
                by_file[name.partition("::")[0]].append(name)
        module = self.made.mutants[number].file
        words = _words_of(module)

        def noticed_a_second(file: str) -> float:
            noticed = UNTRIED + self._noticed[file, ""] + SAME_MODULE * self._noticed[file, module]
            noticed += SAME_WORD * bool(words & _words_of(file))
            return noticed / sum(known[name].seconds for name in by_file[file])

        files = [by_file[file] for file in sorted(by_file, key=noticed_a_second, reverse=True)]
        left = self._options.seconds
        for name in [*(names[0] for names in files), *(name for names in files for name in names[1:])]:
            left -= known[name].seconds
            if left < 0:
                return
            yield name

    def _forked(self, work: Iterable[Any], act: Callable[[Any, Path], int]) -> Iterator[tuple[Any, int, Path]]:
        """Run each work item in a forked process, several at a time. Yield item, exit status and temporary folder."""
        running: dict[int, tuple[Any, Path]] = {}
        left = iter(work)
        while True:
            for piece in left:
                folder = Path(tempfile.mkdtemp(dir=self._folder))
                process = os.fork()
                if not process:
                    self._alone(partial(act, piece, folder), folder)
                running[process] = piece, folder
                if len(running) == self._options.jobs:
                    break
            if not running:
                return
            process, status = self._wait({process: folder for process, (_, folder) in running.items()})
            piece, folder = running.pop(process)
            # The tests may have started processes that a mutant keeps from ending.
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            error = folder / "error"
            if error.exists():
                raise RuntimeError(error.read_text(encoding="utf-8"))
            yield piece, status, folder
            shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _wait(running: dict[int, Path]) -> tuple[int, int]:
        """Wait for the end of a process, and return its number and status. End each process that runs out of time."""
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process in running:
                return process, status
            for process, folder in running.items():
                with suppress(FileNotFoundError, ValueError):
                    if time.time() > float((folder / "until").read_text(encoding="utf-8")):
                        os.kill(process, signal.SIGPROF)
            time.sleep(0.02)

    @staticmethod
    def _alone(act: Callable[[], int], folder: Path) -> None:
        """Run ``act`` in a forked process, and end the process."""
        status = KILLED
        try:
            os.setpgid(0, 0)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for each in (0, 1, 2):
                os.dup2(nowhere, each)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
            status = act()
        except BaseException:  # noqa: BLE001 - it is reported in the process that waits for this one
            (folder / "error").write_text(traceback.format_exc(), encoding="utf-8")
        finally:
            os._exit(status)

    def _passes(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self._failed

    def _collect(self) -> bool:
        """Add the switches that other processes have reached since the last call. Return True if there are any."""
        found: set[int] = set()
        if REACHED in os.environ:
            for path in Path(os.environ[REACHED]).iterdir():
                found.update(map(int, path.read_text(encoding="utf-8").split()))
                path.unlink()
        self._switches.reached |= found
        return bool(found)

    def _observe(self, items: list[pytest.Item], folder: Path) -> int:
        found = []
        if not self._options.one_process:
            (folder / "reached").mkdir()
            os.environ[REACHED] = str(folder / "reached")
        for item, following in zip_longest(items, items[1:]):
            self._collect()
            self._switches.reached.clear()
            stopwatch = _Stopwatch()
            if self._passes(item, following):
                seconds, waited = stopwatch.read(elsewhere=self._collect())
                shared = [self._shared[name] for name in getattr(item, "fixturenames", ()) if name in self._shared]
                reached = self._switches.reached.union(*(each.reached for each in shared))
                seconds += sum(each.seconds for each in shared)
                waited += sum(each.waited for each in shared)
                found.append((item.nodeid, seconds, sorted(reached), waited))
        (folder / "known.json").write_text(json.dumps(found), encoding="utf-8")
        return SURVIVED

    def _try(self, number: int, items: list[pytest.Item], known: dict[str, Known], folder: Path) -> int:
        self._switches.on = number
        os.environ[MUTANT] = str(number)
        for item, following in zip_longest(items, items[1:]):
            # Without a handler, the signal ends the process.
            signal.setitimer(signal.ITIMER_PROF, GRACE + 10 * known[item.nodeid].seconds)
            until = time.time() + WAITING + 10 * known[item.nodeid].waited
            (folder / "until").write_text(str(until), encoding="utf-8")
            (folder / "test").write_text(item.nodeid, encoding="utf-8")
            try:
                passes = self._passes(item, following)
            except Exception:  # noqa: BLE001 - the plugin, which this run of pytest has loaded as well, has broken it
                return KILLED
            if not passes:
                return KILLED
        return SURVIVED

    @staticmethod
    def _verdict(status: int, folder: Path, tests: int) -> Verdict:
        if status == SURVIVED:
            return Verdict("survived", f"{tests} tests")
        timeout = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
        return Verdict("timeout" if timeout else "killed", (folder / "test").read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=150, help="how many are drawn")
    parser.add_argument("--seconds", type=float, default=60, help="processor time of the tests of one mutant")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", type=int, action="append", help="these of the sample, by their numbers")
    parser.add_argument("--target", action="append", choices=TARGETS, help="mutate this folder")
    parser.add_argument("--files", action="append", help="draw from these of the package alone, by their patterns")
    parser.add_argument("--one-process", action="store_true", help="hide mutants from the processes that tests start")
    parser.add_argument("tests", nargs="*", help="collect these tests (default: those of the target)")
    options = parser.parse_args()
    os.chdir(ROOT)
    targets = options.target or list(TARGETS)
    tests = options.tests or list(dict.fromkeys(test for target in targets for test in TARGETS[target]))
    made, switches = sample(options.seed, options.mutants, targets, options.files or ["*"]), Switches()
    sys.meta_path.insert(0, _Finder(made.trees, switches))
    sys.path.insert(0, str(ROOT))
    # Otherwise pytest runs inside of tests would load the module with a loader that rewrites assertions.
    importlib.import_module(f"{PACKAGE.name}.frontends.plugin")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if not options.one_process:
            share(made.trees, enumerate(made.mutants), Path(folder))
        bites = Bites(made, switches, options, Path(folder))
        # Otherwise examples that failing tests store would be found again by later tests.
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        # Otherwise only the first test of a file reaches what patches torch.
        os.environ["REPEAT_PATCHES"] = "1"
        # Otherwise pytest runs inside of tests would warn that the plugin was imported before the rewriting of
        # assertions.
        pytest.MonkeyPatch().setattr(AssertionRewritingHook, "_warn_already_imported", lambda *_: None)
        flags = ["-qq", "-s", "--assert=plain", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        pytest.main([*flags, *tests], plugins=[bites])
    for number, verdict in sorted(bites.verdicts.items()):
        if verdict.outcome == "survived":
            print(f"{number}: survived {verdict.by}: {made.reported[number]}\n")
    counts = Counter(verdict.outcome for verdict in bites.verdicts.values())
    noticed = counts["killed"] + counts["timeout"]
    print(f"seed {options.seed}, {len(bites.verdicts)} of {made.of} mutants:", dict(counts))
    print(f"{noticed / max(1, len(bites.verdicts)):.3f} were noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
