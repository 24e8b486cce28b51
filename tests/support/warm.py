"""``python -m`` in processes of their own that need not load what takes longest: each is forked from one that has.

Loading torch takes ten times as long as what most of these processes are there for, and loading the reader three times.
Nothing else is loaded where they come from, and no op has run there: each goes on as ``python -m`` would, and ends as
Python ends, but that what was loaded before is not taken apart. What starting does is told by processes that are really
started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import marshal
import multiprocessing.process
import os
import platform
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

#: What Python and the libraries of torch take from the environment when they are loaded.
EARLY = ("LANG", "LC_ALL", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS")
#: Where Python looks for modules. What was found there before is the reader alone.
PATH = "PYTHONPATH"
#: The second is what the first optimizer that is made would load.
TORCH = ("torch", "torch._dynamo")
#: What every check loads, and libcst, which writes fixes and takes longer than all of that.
READER = (
    "pytest_amp_check.frontends.cli",
    "pytest_amp_check.static.entry_points",
    "pytest_amp_check.protocol.graph_checker",
    "libcst",
)
#: For a run of pytest that trains nothing.
PYTEST = ("pytest",)
#: Bytes of a message, and files that it comes with.
MESSAGE, FILES = 1 << 20, 64
#: Seconds.
TIMEOUT = 300
STAY = b"stay"


def run_module(
    *arguments: str, cwd: str | os.PathLike[str], env: Mapping[str, str], warm_children: bool = False
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of ``python -m ARGUMENTS``, with its output captured.

    ``warm_children`` has what it starts by ``sys.executable`` forked as well.
    """
    return run_python("-m", *arguments, cwd=cwd, env=env, warm_children=warm_children)


def run_python(
    *arguments: str, cwd: str | os.PathLike[str], env: Mapping[str, str], warm_children: bool = False
) -> subprocess.CompletedProcess[str]:
    """As run_module(), of ``python ARGUMENTS``: a module after -m, a text after -c, or a file."""
    if _has_cuda():
        # There, a process that was forked may do less than one that was started.
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    return _text(_forked(TORCH, arguments, b"", cwd, env, warm_children=warm_children))


def run_command(
    *arguments: str, stdin: bytes = b"", cwd: str | os.PathLike[str] = ".", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of ``amp-check ARGUMENTS``, with its output captured."""
    return _text(
        _forked(READER, ("-m", "pytest_amp_check", *arguments), stdin, cwd, os.environ if env is None else env)
    )


@functools.cache
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Request(NamedTuple):
    """What a process is to do: with these arguments of Python's, where, and with files by the numbers they have."""

    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    numbers: list[int]
    warm_children: bool


def _forked(
    loaded: tuple[str, ...],
    arguments: tuple[str, ...],
    given: bytes,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    *,
    warm_children: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    if platform.system() != "Linux":
        return subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, timeout=TIMEOUT)
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        source.write(given)
        source.seek(0)
        request = Request(list(arguments), os.path.abspath(cwd), dict(env), [0, 1, 2], warm_children)
        with _asked(_source(loaded, _early(loaded, env))) as channel:
            # It is ended where nobody waits for it any more.
            channel.settimeout(TIMEOUT)
            files = [source.fileno(), output.fileno(), errors.fileno()]
            socket.send_fds(channel, [marshal.dumps(tuple(request))], files)
            channel.recv(MESSAGE)
            code = int(channel.recv(MESSAGE))
        told = []
        for file in (output, errors):
            file.seek(0)
            told.append(file.read())
    return subprocess.CompletedProcess(command, code, *told)


def run_pytest(
    pytester: pytest.Pytester, *arguments: str, trains: bool = True, warm_children: bool = False
) -> pytest.RunResult:
    """What ``runpytest_subprocess`` of pytester gives, but of output to files instead of pipes.

    ``trains`` says that torch is loaded in it.
    """
    from pytest import RunResult  # noqa: PT013 - it is loaded where it is used, not in what is forked

    base = f"--basetemp={pytester.path.parent / 'basetemp'}"
    began = time.perf_counter()
    given = ("-m", "pytest", base, *arguments)
    if trains:
        done = run_python(*given, cwd=pytester.path, env=os.environ, warm_children=warm_children)
    else:
        done = _text(_forked(PYTEST, given, b"", pytester.path, os.environ, warm_children=warm_children))
    took = time.perf_counter() - began
    return RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), took)


def _asked(address: str) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until = time.monotonic() + 60
    while True:
        try:
            channel.connect(address)
            return channel
        except ConnectionRefusedError:
            # Another worker has bound it, and does not listen yet.
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def start_sources() -> None:
    """Start the processes that others are forked from, so that forks of this process share them."""
    if platform.system() == "Linux":
        for loaded in (READER, PYTEST) if _has_cuda() else (READER, PYTEST, TORCH):
            _source(loaded, _early(loaded, os.environ))


def _early(loaded: tuple[str, ...], env: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, env.get(name)) for name in (*EARLY, *([PATH] if loaded is READER else [])))


@functools.cache
def _source(loaded: tuple[str, ...], early: tuple[tuple[str, str | None], ...]) -> str:
    """The address of a process that others are forked from. The workers of xdist share it."""
    # An address without a file: it is free again once nobody uses it.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    address = f"\0amp-check-{run}-{zlib.crc32(repr((loaded, early)).encode()):x}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            pass
        else:
            listener.listen(FILES)
            environment = {name: value for name, value in {**os.environ, **dict(early)}.items() if value is not None}
            command = [sys.executable, __file__, str(listener.fileno()), *loaded]
            process = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()])
            # It ends when nobody is there that may ask it.
            atexit.register(process.wait)
    stays = _asked(address)
    stays.send(STAY)
    atexit.register(stays.close)
    return address


# The process that others are forked from.

#: What stands in the place of Python for what a forked process starts: it has a process forked for what it is given,
#: and goes on and ends as that one does. What it cannot tell, or what asks for another environment, it starts itself.
STAND_IN = """\
#!{python} -IS
import marshal, os, signal, socket, sys
flags, arguments = [], sys.argv[1:]
while arguments and arguments[0] == "-u":
    flags.append(arguments.pop(0))
if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-c", "-m")) or any(
    os.environ.get(name) != value for name, value in {early!r}.items()
):
    os.execv({python!r}, [{python!r}, *flags, *arguments])
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect({address!r})
numbers = []
for name in os.listdir("/proc/self/fd"):
    try:
        os.fstat(int(name))
    except OSError:
        continue
    if int(name) != channel.fileno():
        numbers.append(int(name))
request = [*flags, *arguments], os.getcwd(), dict(os.environ), numbers, True
socket.send_fds(channel, [marshal.dumps(request)], numbers)
process = int(channel.recv({message}))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, frame: os.kill(process, number))
for number in numbers:
    os.close(number)
code = int(channel.recv({message}))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class _Source:
    """Forks a process for each that is asked for, until nobody is there that may ask."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        #: Who asked for each process, by the process.
        self._asked: dict[int, socket.socket] = {}
        #: How many may still ask.
        self._staying = 0

    def serve(self) -> Request | None:
        """Return what is to be done, in the process that was forked for it, and nothing where nobody may ask more."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    request = self._taken(self._listener.accept()[0])
                    if request is not None:
                        return request
                elif not isinstance(key.fileobj, socket.socket):
                    self._ended(key.fd, key.data)
                elif key.data is not None:
                    self._given_up(key.fileobj, key.data)
                else:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self._staying -= 1
                    if not self._staying:
                        return None

    def _taken(self, channel: socket.socket) -> Request | None:
        _, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        message, files, _, _ = socket.recv_fds(channel, MESSAGE, FILES) if user == os.getuid() else (b"", [], 0, None)
        if message == STAY:
            self._staying += 1
            self._selector.register(channel, selectors.EVENT_READ)
        if not message or message == STAY:
            return None
        request = Request(*marshal.loads(message))  # noqa: S302 - of our own user
        process = os.fork()
        if not process:
            self._leave(channel, dict(zip(request.numbers, files, strict=True)))
            return request
        for each in files:
            os.close(each)
        channel.send(b"%d" % process)
        self._asked[process] = channel
        self._selector.register(channel, selectors.EVENT_READ, process)
        self._selector.register(os.pidfd_open(process), selectors.EVENT_READ, process)
        return None

    def _leave(self, channel: socket.socket, files: Mapping[int, int]) -> None:
        """Let a process that was forked have these files alone, by the numbers that they are to have."""
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()
        self._selector.close()
        channel.close()
        # By way of numbers that none has, so that none takes that of another.
        free = max(*files, *files.values()) + 1
        for number, file in files.items():
            os.dup2(file, free + number)
            os.close(file)
        for number in files:
            os.dup2(free + number, number)
            os.close(free + number)

    def _given_up(self, channel: socket.socket, process: int) -> None:
        """Nobody waits for a process any more."""
        if self._asked.pop(process, None) is not None:
            os.kill(process, signal.SIGKILL)
            self._selector.unregister(channel)
            channel.close()

    def _ended(self, file: int, process: int) -> None:
        self._selector.unregister(file)
        os.close(file)
        _, status = os.waitpid(process, 0)
        channel = self._asked.pop(process, None)
        if channel is not None:
            self._selector.unregister(channel)
            with contextlib.suppress(BrokenPipeError):
                channel.send(b"%d" % os.waitstatus_to_exitcode(status))
            channel.close()


def _written(folder: str, address: bytes) -> str:
    """A stand-in for Python, in a folder."""
    path = os.path.join(folder, "python")
    early = {name: os.environ.get(name) for name in EARLY}
    text = STAND_IN.format(python=sys.executable, early=early, address=address, message=MESSAGE)
    with open(path, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(text)
    return path


def _paths() -> list[str]:
    return [os.path.abspath(path) for path in os.environ.get(PATH, "").split(os.pathsep) if path]


def _go_on(request: Request, stand_in: str) -> None:
    """Do what Python does with these arguments, as if it had just begun."""
    found = _paths()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    elsewhere = [path for path in sys.path[1:] if path not in found]
    sys.path[1:] = dict.fromkeys([*_paths(), *elsewhere])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    if request.warm_children:
        sys.executable = stand_in
        multiprocessing.set_executable(stand_in)
    first, *rest = request.arguments
    if first == "-u" or os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(write_through=True)
    if first == "-u":
        first, *rest = rest
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), vars(main))  # noqa: S102 - what was given to Python
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        vars(main).update(__file__=first, __loader__=SourceFileLoader("__main__", first))
        with io.open_code(first) as file:
            code = compile(file.read(), first, "exec")
        exec(code, vars(main))  # noqa: S102 - as above


def _spare(loaded: Mapping[str, object]) -> None:
    """Let Python, which is about to end, not take these modules apart.

    Each page of theirs would be copied for that, and of what their libraries have made, which takes torch fifteen times
    as long as to be forked.
    """
    for name, module in loaded.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _spare_libraries() -> None:
    """Let nothing of the libraries that are loaded be taken apart either.

    Python forgets what they have asked for. C, as it ends, only writes what it holds back: what is registered last is
    done first.
    """
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False
    c = ctypes.CDLL(None)
    if hasattr(c, "on_exit"):
        c.on_exit(c._exit, None)
        c.__cxa_atexit(c.fflush, None, None)


if __name__ == "__main__":
    loaded: dict[str, object] = {}
    # Before any other, so that it is called after them.
    atexit.register(_spare, loaded)
    own = set(sys.modules)
    for each in sys.argv[2:]:
        importlib.import_module(each)
    loaded.update((name, module) for name, module in sys.modules.items() if name not in own)
    # So that it is held by what no search for cycles sees.
    loaded[""] = loaded
    _spare_libraries()
    # What each of them would go through again as it ends.
    gc.freeze()
    folder = tempfile.mkdtemp()
    listener = socket.socket(fileno=int(sys.argv[1]))
    stand_in = _written(folder, listener.getsockname())
    request = _Source(listener).serve()
    if request is None:
        shutil.rmtree(folder)
    else:
        # What is in it is used until the end.
        before = sys.modules["__main__"]
        _go_on(request, stand_in)
