"""``python -m`` in processes of their own that need not load what takes longest: each is forked from one that has.

Loading torch takes ten times as long as what most of these processes are there for, and loading the reader three times.
Nothing else is loaded where they come from, and no op has run there: each goes on as ``python -m`` would, and ends as
Python ends. What starting does is told by processes that are really started.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: What Python and the libraries of torch take from the environment when they are loaded.
EARLY = (
    "LANG",
    "LC_ALL",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
    "PYTHONWARNINGS",
)
#: The second is what the first optimizer that is made would load.
TORCH = ("torch", "torch._dynamo")
#: What every check loads, and libcst, which writes fixes and takes longer than all of that.
READER = (
    "pytest_amp_check.faces.cli",
    "pytest_amp_check.static.entry_points",
    "pytest_amp_check.protocol.check",
    "libcst",
)


def run_module(
    *arguments: str, cwd: str | os.PathLike[str], env: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of ``python -m ARGUMENTS``, with its output captured."""
    if _has_cuda():
        # There, a process that was forked may do less than one that was started.
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=timeout)
    return _text(_forked(TORCH, arguments, b"", cwd, env, timeout))


def run_command(
    *arguments: str, stdin: bytes = b"", cwd: str | os.PathLike[str] = ".", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of ``amp-check ARGUMENTS``, with its output captured."""
    return _text(_forked(READER, ("pytest_amp_check", *arguments), stdin, cwd, os.environ if env is None else env, 300))


@functools.cache
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def _forked(
    loaded: tuple[str, ...],
    arguments: tuple[str, ...],
    given: bytes,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    timeout: float,
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", *arguments]
    if platform.system() != "Linux":
        return subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, timeout=timeout)
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        source.write(given)
        source.seek(0)
        request = {"arguments": arguments, "cwd": os.path.abspath(cwd), "env": dict(env)}
        descriptors = [source.fileno(), output.fileno(), errors.fileno()]
        code = _source(loaded, *(env.get(name) for name in EARLY)).answer(request, descriptors, timeout)
        told = []
        for file in (output, errors):
            file.seek(0)
            told.append(file.read())
    return subprocess.CompletedProcess(command, code, *told)


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """What ``runpytest_subprocess`` of pytester gives, but of output to files instead of pipes."""
    from pytest import RunResult  # noqa: PT013 - it is loaded where it is used, not in what is forked

    base = f"--basetemp={pytester.path.parent / 'basetemp'}"
    began = time.perf_counter()
    done = run_module("pytest", base, *arguments, cwd=pytester.path, env=os.environ)
    took = time.perf_counter() - began
    return RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), took)


class _Source:
    """The process that others are forked from, as those see it who ask it to."""

    def __init__(self, loaded: tuple[str, ...], early: dict[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name not in EARLY}
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *loaded]
            process = subprocess.Popen(command, env=environment | early, pass_fds=[theirs.fileno()])
        # It ends when nobody can ask it any more.
        atexit.register(process.wait)
        atexit.register(self._channel.close)

    def answer(self, request: dict[str, Any], descriptors: list[int], timeout: float) -> int:
        self._channel.settimeout(None)
        socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
        process = int(self._channel.recv(64))
        self._channel.settimeout(timeout)
        try:
            return int(self._channel.recv(64))
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._channel.settimeout(None)
            self._channel.recv(64)
            raise


@functools.cache
def _source(loaded: tuple[str, ...], *early: str | None) -> _Source:
    return _Source(loaded, {name: value for name, value in zip(EARLY, early, strict=True) if value is not None})


def _serve(channel: socket.socket) -> list[str]:
    """Fork a process for each that is asked for, and return in it, with the arguments of its ``-m``."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not message:
            sys.exit()
        process = os.fork()
        if not process:
            break
        for each in descriptors:
            os.close(each)
        channel.send(b"%d" % process)
        _, status = os.waitpid(process, 0)
        channel.send(b"%d" % os.waitstatus_to_exitcode(status))
    channel.close()
    request = json.loads(message)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    arguments: list[str] = request["arguments"]
    return arguments


if __name__ == "__main__":
    import multiprocessing.process
    import runpy

    for each in sys.argv[2:]:
        importlib.import_module(each)
    # What each of them would go through again as it ends.
    gc.freeze()
    name, *rest = _serve(socket.socket(fileno=int(sys.argv[1])))
    # As of a Python that has just begun.
    sys.argv = [name, *rest]
    sys.path[0] = os.getcwd()
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    before, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]
