"""Code nested more deeply than a thread's stack allows is analyzed all the same, or reported as too deep."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_amp_check.static import deep_stack
from pytest_amp_check.static.engine import check_source

resource = pytest.importorskip("resource", reason="the size of a stack is set as POSIX does")

TRAIN = """\
import torch
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
#: Texts for which the parser or the analyzer needs more frames than 2 MB of stack hold.
DEEP = {
    "additions": "x = " + " + ".join(["a"] * 8_900),
    "attributes": "x = a" + ".b" * 8_900,
    "method calls": "x = a" + ".b()" * 20_000,
    "nots": "x = " + "not " * 6_000 + "a",
    "lambdas": "x = " + "lambda: " * 6_000 + "1",
    "losses": "    loss = " + " + ".join(["loss"] * 8_900),
}
FOUND = "import sys\nfrom pytest_amp_check import check_source\n\ndef look(path):\n"
FOUND += "    print(*(f.code for f in check_source(open(path).read(), 'train.py')))\n\n"
#: Callers of the analysis, each a script that gets the paths of files as arguments.
WAYS = {
    "the main thread": FOUND + "for path in sys.argv[1:]:\n    look(path)\n",
    "a thread of a program": FOUND
    + "import threading\nthreading.stack_size(256 * 1024)\nfor path in sys.argv[1:]:\n"
    + "    thread = threading.Thread(target=look, args=(path,))\n    thread.start()\n    thread.join()\n",
    "processes": "import sys\nfrom pytest_amp_check.static import engine\nengine.WORTH_PROCESSES = 0\n"
    "if __name__ == '__main__':\n"
    "    for path in sys.argv[1:]:\n"
    "        found = engine.check_paths([path, path.replace('.py', '_too.py')], jobs=2).findings\n"
    "        print(*(f.code for f in found if f.filename == path))\n",
}


def limited(stack: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command whose main thread has ``stack`` bytes of stack."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (stack, most)),
        check=False,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("deep")
    made: list[Path] = []
    for name, text in DEEP.items():
        path = folder / f"{name.replace(' ', '_')}.py"
        path.write_text(f"{TRAIN}{text}\n")
        path.with_name(f"{path.stem}_too.py").write_text(TRAIN)
        made.append(path)
    return made


@pytest.fixture(scope="module")
def expected(files: list[Path]) -> list[set[str]]:
    return [{finding.code for finding in check_source(path.read_text(), "train.py")} for path in files]


@pytest.mark.parametrize("stack", [512 * 1024, pytest.param(2 * 1024 * 1024, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_found_does_not_depend_on_the_stack(
    way: str, stack: int, files: list[Path], expected: list[set[str]]
) -> None:
    done = limited(stack, [sys.executable, "-c", WAYS[way], *map(str, files)])
    assert done.returncode == 0, done.stderr[-500:]
    assert [set(line.split()) for line in done.stdout.splitlines()] == expected


def test_what_is_deep_is_read_or_said_to_be_too_deep(files: list[Path], expected: list[set[str]]) -> None:
    for path, codes in zip(files, expected, strict=True):
        assert codes in ({"AMP201"}, {"AMP903"}), path.name
    # Python 3.12 and 3.13 limit the depth of their own recursion in C, each release at another depth.
    terms = 2_000 if sys.version_info[:2] in ((3, 12), (3, 13)) else 3_000
    assert check_source(f"{TRAIN}x = {' + '.join('a' * terms)}\n")[0].code == "AMP201"


def test_no_part_of_what_was_read_is_kept(files: list[Path]) -> None:
    def kept() -> int:
        # `type(each)`, because isinstance() raises for a weak proxy of a dead object.
        return sum(issubclass(type(each), ast.AST) for each in gc.get_objects())

    text = f"{TRAIN}def f(a):\n    return {' + '.join('a' * 500)}\nclass C:\n    def g(self):\n        return f(self)\n"
    check_source(text)
    before = kept()
    gc.disable()
    try:
        check_source(text)
        assert [finding.code for finding in check_source(files[-1].read_text())] == ["AMP903"]
        # Otherwise the collector would free the tree on the stack of any thread.
        assert kept() <= before
    finally:
        gc.enable()


def test_pytest_reads_deep_code_on_a_small_stack(files: list[Path]) -> None:
    command = [sys.executable, "-m", "pytest", "--amp-check", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = limited(512 * 1024, [*command, f"--rootdir={files[0].parent}", *map(str, files)])
    assert done.returncode == 1, done.stderr[-500:]
    assert f"{len(files)} failed" in done.stdout


def test_the_limit_of_recursion_and_the_size_of_stacks_are_as_they_were() -> None:
    before = sys.getrecursionlimit(), threading.stack_size()
    inside: list[int] = []
    thread = threading.Thread(target=lambda: deep_stack.with_deep_stack(lambda: inside.append(sys.getrecursionlimit())))
    thread.start()
    thread.join()
    deep_stack.with_deep_stack(lambda: deep_stack.with_deep_stack(lambda: inside.append(sys.getrecursionlimit())))
    assert inside == [deep_stack.MAX_FRAMES, deep_stack.MAX_FRAMES]
    assert (sys.getrecursionlimit(), threading.stack_size()) == before


def test_the_limit_comes_back_after_the_last_of_several_threads() -> None:
    before = sys.getrecursionlimit()
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen: list[int] = []

    def first() -> None:
        first_is_in.set()
        second_is_in.wait(60)

    def second() -> None:
        second_is_in.set()
        first_is_out.wait(60)
        seen.append(sys.getrecursionlimit())

    def whole() -> None:
        deep_stack.with_deep_stack(first)
        first_is_out.set()

    one = threading.Thread(target=whole)
    one.start()
    first_is_in.wait(60)
    other = threading.Thread(target=lambda: deep_stack.with_deep_stack(second))
    other.start()
    one.join()
    other.join()
    assert seen == [deep_stack.MAX_FRAMES]
    assert sys.getrecursionlimit() == before


def test_what_is_raised_is_raised_where_it_is_waited_for() -> None:
    caught: list[Exception] = []
    given: list[int] = []

    def ask() -> None:
        try:
            deep_stack.with_deep_stack(lambda: given[0])
        except IndexError as error:
            caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert len(caught) == 1


INTERRUPTED = """\
import _thread, signal, threading, time
from pytest_amp_check.static import deep_stack
ended = threading.Event()
def act():
    try:
        INTERRUPT
        while True:
            time.sleep(0.001)
    finally:
        ended.set()
try:
    deep_stack.with_deep_stack(act)
except KeyboardInterrupt:
    print("interrupted", ended.is_set())
"""


@pytest.mark.parametrize(
    "interrupt",
    [
        "signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)",
        # As a signal that arrives just before the main thread waits: it ends no system call.
        "time.sleep(0.1); _thread.interrupt_main()",
    ],
)
def test_an_interrupt_ends_what_reads(interrupt: str) -> None:
    done = limited(512 * 1024, [sys.executable, "-c", INTERRUPTED.replace("INTERRUPT", interrupt)])
    assert (done.returncode, done.stdout) == (0, "interrupted True\n"), done.stderr


def test_where_there_can_be_no_thread_it_is_as_deep_as_python_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(run: object, given: object) -> None:
        raise RuntimeError("can't start new thread")

    # More than any main thread has.
    monkeypatch.setattr(deep_stack, "ENOUGH_STACK", 1 << 62)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (8_388_608, -1))
    monkeypatch.setattr("_thread.start_new_thread", refused)
    assert {f.code for f in check_source(f"{TRAIN}{DEEP['additions']}\n")} == {"AMP903"}
    assert {f.code for f in check_source(TRAIN)} == {"AMP201"}


#: Statements that put a list or a dict into itself, which Python allows.
CYCLES = {
    "append": "kept = []\nkept.append(kept)",
    "append to an item": "item = []\nkept = [item]\nitem.append(kept)",
    "insert": "kept = []\nkept.insert(0, kept)",
    "extend": "kept = []\nkept.extend([kept])",
    "list operator": "kept = []\nkept += [kept]",
    "item": "kept = {}\nkept['own'] = kept",
    "setdefault": "kept = {}\nkept.setdefault('own', [kept])",
    "update": "kept = {}\nkept.update(own=[kept])",
    "dict operator": "kept = {}\nkept |= {'own': kept}",
}


@pytest.mark.parametrize("statements", CYCLES.values(), ids=CYCLES)
def test_a_container_that_holds_itself_is_analyzed(statements: str) -> None:
    text = TRAIN.replace("for x", f"{statements}\nlog(kept)\nfor x")
    assert [finding.code for finding in check_source(text, "train.py")] == ["AMP201"]
