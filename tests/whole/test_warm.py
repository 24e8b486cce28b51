"""Processes forked by ``tests/support/warm.py`` behave like newly started Python processes."""

from __future__ import annotations

import marshal
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import warm
from warm import run_python

STARTS = """\
import os, subprocess, sys, time

def started(*arguments, **more):
    return subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, encoding="utf-8", **more)

told = started("-c", "import sys; print(sys.argv, input(), __name__); sys.exit(7)", "a b", "--c", input="given")
print(told.returncode, told.stdout, end="")
told = started("-u", "script.py", "x", env={**os.environ, "PYTHONPATH": "elsewhere", "SAID": "here"})
print(told.returncode, told.stdout, end="")
print(started("-m", "module", cwd="elsewhere").stdout, end="")
print(started("-c", "import os; os.kill(os.getpid(), 9)").returncode)
read, write = os.pipe()
waits = f"import os, time; os.write({write}, b'up'); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", waits], pass_fds=[write])
os.close(write)
print(os.read(read, 2).decode())
child.terminate()
print(child.wait(), os.read(read, 2))
print(started("-V").returncode)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes inherit other things there, and end otherwise")
@pytest.mark.parametrize("warm", [False, True], ids=["started", "forked"])
def test_what_a_process_starts_goes_on_and_ends_as_python_does(tmp_path: Path, warm: bool) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys, module\n"
        "print(sys.argv, __name__, os.path.basename(__file__), os.environ['SAID'], module.NAME)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "module.py").write_text("NAME = __name__\nprint('module', NAME)\n")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = run_python("-c", STARTS, cwd=tmp_path, env=environment, warm_children=warm)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "7 ['-c', 'a b', '--c'] given __main__",
        "0 module module",
        "['script.py', 'x'] __main__ script.py here module",
        "module __main__",
        "-9",
        "up",
        "-15 b''",
        "0",
    ]


@pytest.mark.parametrize(
    ("code", "ended", "printed"),
    [
        ("import sys; print(1, end=''); sys.exit()", 0, "1"),
        ("import sys; sys.exit(259)", 3, ""),
        ("import sys; sys.exit('told')", 1, ""),
        ("1 / 0", 1, ""),
        ("raise KeyboardInterrupt", -2, ""),
        ("import atexit; atexit.register(print, 'late')", 0, "late\n"),
        ("import ctypes; ctypes.CDLL(None).printf(b'from C')", 0, "from C"),
        ("class A:\n    def __del__(self):\n        print('freed')\na = A()", 0, "freed\n"),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print(1))).start()", 0, "1\n"),
    ],
)
@pytest.mark.skipif(platform.system() != "Linux", reason="processes are started there, not forked")
def test_a_forked_process_ends_as_python_does(code: str, ended: int, printed: str, tmp_path: Path) -> None:
    done = warm._forked(warm.PYTEST, ("-c", code), b"", tmp_path, os.environ)
    assert (done.returncode, done.stdout.decode()) == (ended, printed)
    assert ("told" in code) == (done.stderr == b"told\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_forked_process_tells_that_its_output_is_lost() -> None:
    with open("/dev/full", "w") as full:
        command = [warm.warm_python(warm.PYTEST), "-c", "print(1)"]
        # Python writes at the end what it has buffered.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr


@pytest.mark.skipif(platform.system() != "Linux", reason="processes are started there, not forked")
def test_a_client_that_ends_too_early_takes_no_other_along(tmp_path: Path) -> None:
    address = warm._source(warm.PYTEST, warm._early(warm.PYTEST, os.environ))
    request = (["-c", "import time; time.sleep(60)"], str(tmp_path), dict(os.environ), [0], False)
    with open(os.devnull) as file:
        for _ in range(3):
            with warm._asked(address) as channel:
                socket.send_fds(channel, [marshal.dumps(request)], [file.fileno()])
    done = warm._forked(warm.PYTEST, ("-c", "print(7)"), b"", tmp_path, os.environ)
    assert (done.returncode, done.stdout) == (0, b"7\n")
