"""``python -m`` in processes of their own that need not load torch: each is forked from one that has loaded it.

Loading it takes ten times as long as what most of these processes are there for. Nothing else is loaded where they come
from, and no op has run there: each goes on as ``python -m`` would, and ends as Python ends.
"""

from __future__ import annotations

import atexit
import functools
import gc
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

import torch

if TYPE_CHECKING:
    import pytest

#: What Python and the libraries of torch take from the environment when they are loaded.
EARLY = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONWARNINGS")


def run_module(
    *arguments: str, cwd: str | os.PathLike[str], env: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of ``python -m ARGUMENTS``, with its output captured."""
    command = [sys.executable, "-m", *arguments]
    if platform.system() != "Linux" or torch.cuda.is_available():
        # Elsewhere, and with CUDA, a process that was forked may do less than one that was started.
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=timeout)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        request = {"arguments": arguments, "cwd": os.fspath(cwd), "env": dict(env)}
        source = _source(*(env.get(name) for name in EARLY))
        code = source.answer(request, [output.fileno(), errors.fileno()], timeout)
        told = []
        for file in (output, errors):
            file.seek(0)
            told.append(file.read().decode("utf-8"))
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

    def __init__(self, early: dict[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name not in EARLY}
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
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
def _source(*early: str | None) -> _Source:
    return _Source({name: value for name, value in zip(EARLY, early, strict=True) if value is not None})


def _serve(channel: socket.socket) -> list[str]:
    """Fork a process for each that is asked for, and return in it, with the arguments of its ``-m``."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 2)
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
    for number, each in enumerate(descriptors, start=1):
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

    # What the first optimizer that is made would load.
    import torch._dynamo

    # What each of them would go through again as it ends.
    gc.freeze()
    name, *rest = _serve(socket.socket(fileno=int(sys.argv[1])))
    # As of a Python that has just begun.
    sys.argv = [name, *rest]
    sys.path[0] = os.getcwd()
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    before, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]
