"""``python -m`` in forked processes: the parent process has already loaded the slowest imports.

Loading torch takes ten times as long as the work of most of these processes, loading the analyzer three times, and
loading pytest and the recorder twice. The parent processes load nothing else, and no op has run in them. A fork
continues as ``python -m`` would, and ends as Python ends, except that the preloaded modules are not torn down. The
effects of starting a process are tested with processes that are really started.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import marshal
import multiprocessing.process
import os
import pkgutil
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
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest

#: Environment variables that Python and the libraries of torch read when they are loaded.
EARLY = (
    *("LANG", "LC_ALL", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA"),
    *("PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS"),
)
#: Search path for modules. From it, the parent process has loaded only this package.
PATH = "PYTHONPATH"
PACKAGE = "pytest_amp_check"
#: The folder that contains the package.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: torch, and the module that the first created optimizer would load.
TORCH = ("torch", "torch._dynamo")
#: Modules that every check loads, and libcst, which writes fixes and takes longer to load than all others together.
READER = (
    "pytest_amp_check.frontends.cli",
    "pytest_amp_check.frontends.fix_command",
    "pytest_amp_check.static.engine",
    "pytest_amp_check.static.entry_points",
    "pytest_amp_check.protocol.graph_checker",
    "pytest_amp_check.protocol.rules.*",
    "libcst",
)
#: Modules of the language server.
SERVER = (*READER, "pygls.lsp.server")
#: Modules for a run of pytest that trains nothing: pytest, and the plugins that pytest loads in each run.
PYTEST = (
    "pytest",
    *("_pytest.faulthandler", "_pytest.helpconfig", "_pytest.junitxml", "_pytest.pastebin", "_pytest.setuponly"),
    *("_pytest.setupplan", "_pytest.skipping", "_pytest.threadexception", "_pytest.tracemalloc", "_pytest.unittest"),
    *("_pytest.unraisableexception", "_pytest.warnings"),
)
#: Modules for a recorded run of a script or of pytest. Not the plugin itself, because pytest rewrites its assertions.
RECORDER = (
    *TORCH,
    *PYTEST,
    "pytest_amp_check.frontends.cli",
    "pytest_amp_check.frontends.fixtures",
    "pytest_amp_check.frontends.run_findings",
    "pytest_amp_check.frontends.script_runs",
    "pytest_amp_check.protocol.rules.*",
    "pytest_amp_check.runtime.emulate.*",
    "pytest_amp_check.runtime.measure.*",
    "pytest_amp_check.runtime.ranks.*",
    "pytest_amp_check.runtime.record.*",
    "pytest_amp_check.runtime.replay.*",
    "pytest_amp_check.runtime.run",
    "pytest_amp_check.static.file_analysis",
)
#: Largest size of a message in bytes, and largest number of files sent with a message.
MESSAGE, FILES = 1 << 20, 64
#: ``python -m pytest_amp_check`` with a limit of the address space.
LIMITED = """\
import resource, runpy
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
runpy.run_module("pytest_amp_check", run_name="__main__", alter_sys=True)
"""
#: Time limit of a process in seconds.
TIMEOUT = 300
STAY = b"stay"


def run_module(
    *arguments: str, cwd: str | os.PathLike[str], env: Mapping[str, str], warm_children: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m ARGUMENTS`` with captured output. Return a result like subprocess.run().

    With ``warm_children``, processes started by ``sys.executable`` are forked as well.
    """
    return run_python("-m", *arguments, cwd=cwd, env=env, warm_children=warm_children)


def run_python(
    *arguments: str,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    warm_children: bool = False,
    loaded: tuple[str, ...] = RECORDER,
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` like run_module(): a module after -m, a text after -c, or a file.

    ``loaded`` are the modules of the parent process: TORCH for a process that hides or replaces this package's modules.
    """
    if _has_cuda():
        # With CUDA, a forked process has restrictions that a started process does not have.
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    if _has_other_package(arguments, cwd, env):
        loaded = TORCH
    return _text(_forked(loaded, arguments, b"", cwd, env, warm_children=warm_children))


def _has_other_package(arguments: tuple[str, ...], cwd: str | os.PathLike[str], env: Mapping[str, str]) -> bool:
    """Return True if Python would find this package elsewhere, or must not find it."""
    paths = [path for path in env.get(PATH, "").split(os.pathsep) if path]
    given = os.path.dirname(arguments[0]) if arguments[0].endswith(".py") else ""
    found = {os.path.realpath(os.path.join(cwd, path)) for path in ("", given, *paths)} - {os.path.realpath(ROOT)}
    return any(os.path.exists(os.path.join(path, name)) for path in found for name in (PACKAGE, f"{PACKAGE}.py"))


def run_command(
    *arguments: str,
    stdin: bytes = b"",
    cwd: str | os.PathLike[str] = ".",
    env: Mapping[str, str] | None = None,
    memory: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run ``amp-check ARGUMENTS`` with captured output. Return a result like subprocess.run().

    ``memory`` limits the bytes of address space of the process; 0 is no limit.
    """
    begin = ("-c", LIMITED.format(memory=memory)) if memory else ("-m", "pytest_amp_check")
    return _text(_forked(READER, (*begin, *arguments), stdin, cwd, os.environ if env is None else env))


def warm_python(loaded: tuple[str, ...] = READER) -> str:
    """Return a replacement for the Python executable: its processes are forked from one with these modules loaded.

    A replacement can be given to whatever starts processes itself, and takes any standard streams. Limits of the
    replacement's process do not apply to the fork.
    """
    if platform.system() != "Linux":
        return sys.executable
    return _stand_in(_source(loaded, _early(loaded, os.environ)))


@functools.cache
def _stand_in(address: str) -> str:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return _written(folder, address, (*EARLY, PATH), warm_children=False)


@functools.cache
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Request(NamedTuple):
    """Task of a forked process: arguments for Python, working folder, environment, and files by descriptor number."""

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
            # The parent kills the process once nobody waits for it.
            channel.settimeout(TIMEOUT)
            files = [source.fileno(), output.fileno(), errors.fileno()]
            socket.send_fds(channel, [marshal.dumps(tuple(request))], files)
            channel.recv(MESSAGE)
            code = int(channel.recv(MESSAGE))
        reported = []
        for file in (output, errors):
            file.seek(0)
            reported.append(file.read())
    return subprocess.CompletedProcess(command, code, *reported)


def run_pytest(
    pytester: pytest.Pytester, *arguments: str, trains: bool = True, warm_children: bool = False
) -> pytest.RunResult:
    """Run pytest like pytester's ``runpytest_subprocess``, but with output to files instead of pipes.

    ``trains`` selects a parent process that has loaded torch.
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
            # Another worker has bound the address, and does not listen yet.
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def start_sources() -> None:
    """Start the parent processes for forks early, so that forks of this process share them."""
    if platform.system() == "Linux":
        for loaded in (READER, PYTEST) if _has_cuda() else (READER, PYTEST, RECORDER):
            _source(loaded, _early(loaded, os.environ))


def _early(loaded: tuple[str, ...], env: Mapping[str, str]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, env.get(name)) for name in (*EARLY, *([PATH] if loaded in (READER, SERVER) else [])))


@functools.cache
def _source(loaded: tuple[str, ...], early: tuple[tuple[str, str | None], ...]) -> str:
    """Return the address of a parent process for forks. The workers of xdist share this process."""
    # An abstract address has no file: the address is free again once nobody uses it.
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
            # The process ends when no client is left.
            atexit.register(process.wait)
    stays = _asked(address)
    stays.send(STAY)
    atexit.register(stays.close)
    return address


# Code of the parent process.

#: Replacement for the Python executable in a forked process that starts other processes. The replacement requests a
#: fork for its arguments, then runs and ends like the fork. It starts a real process itself if it does not know the
#: arguments or if the environment differs.
STAND_IN = """\
#!{python} -IS
import marshal, os, signal, socket, sys
flags, arguments = [], sys.argv[1:]
# -B says what a variable of the environment says.
while arguments and arguments[0] in ("-u", "-B"):
    flags += ["-u"] * (arguments.pop(0) == "-u")
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
request = [*flags, *arguments], os.getcwd(), dict(os.environ), numbers, {warm_children}
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
    """Server that forks a process for each request, until no client is left."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        #: Socket of the client that requested each process, by process id.
        self._asked: dict[int, socket.socket] = {}
        #: Number of clients that may still send requests.
        self._staying = 0

    def serve(self) -> Request | None:
        """Serve requests. Return the request in each forked process, and None in the parent when no client is left."""
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
        # A client that has ended meanwhile is found by the selector, which then kills the process.
        with contextlib.suppress(BrokenPipeError):
            channel.send(b"%d" % process)
        self._asked[process] = channel
        self._selector.register(channel, selectors.EVENT_READ, process)
        self._selector.register(os.pidfd_open(process), selectors.EVENT_READ, process)
        return None

    def _leave(self, channel: socket.socket, files: Mapping[int, int]) -> None:
        """Give a forked process only these files, under the requested descriptor numbers."""
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.detach()
        self._selector.close()
        channel.close()
        # Files move through unused numbers first, so that no file overwrites another.
        free = max(*files, *files.values()) + 1
        for number, file in files.items():
            os.dup2(file, free + number)
            os.close(file)
        for number in files:
            os.dup2(free + number, number)
            os.close(free + number)

    def _given_up(self, channel: socket.socket, process: int) -> None:
        """Kill a process that nobody waits for any more."""
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


def _written(folder: str, address: bytes | str, names: tuple[str, ...] = EARLY, *, warm_children: bool = True) -> str:
    """Write the replacement for the Python executable to a folder. Return its path.

    The replacement starts a real process where an environment variable with one of the names differs.
    """
    path = os.path.join(folder, "python")
    text = STAND_IN.format(
        python=sys.executable,
        early={name: os.environ.get(name) for name in names},
        address=address,
        message=MESSAGE,
        warm_children=warm_children,
    )
    with open(path, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(text)
    return path


def _paths() -> list[str]:
    return [os.path.abspath(path) for path in os.environ.get(PATH, "").split(os.pathsep) if path]


def _reopen_streams(*, unbuffered: bool) -> None:
    """Create the standard streams again, as Python does at its start: they may lead to pipes now instead of files.

    ``unbuffered``: with ``-u``, Python writes each text at once.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        assert isinstance(before, io.TextIOWrapper)
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        raw.name = f"<{name}>"
        # Without a buffer, Python writes to the file itself.
        file: Any = raw if unbuffered and number else io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        stream = io.TextIOWrapper(file, before.encoding, before.errors, "\n", write_through=unbuffered)
        stream.reconfigure(line_buffering=number == 2 or raw.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _go_on(request: Request, stand_in: str) -> None:
    """Run Python's work for these arguments as if the process had just started."""
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
    _reopen_streams(unbuffered=first == "-u" or bool(os.environ.get("PYTHONUNBUFFERED")))
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


def _load(name: str) -> None:
    """Import a module. A name that ends with ``.*`` stands for a package with all of its modules."""
    package = name.removesuffix(".*")
    module = importlib.import_module(package)
    if package != name:
        for each in pkgutil.walk_packages(module.__path__, f"{package}."):
            importlib.import_module(each.name)


def _spare(loaded: Mapping[str, object]) -> None:
    """Prevent Python from tearing down these modules at exit.

    The teardown would copy every memory page of the modules and of the objects that their libraries have made. For
    torch, that takes fifteen times as long as the fork.
    """
    for name, module in loaded.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _LateExit:
    """Object in the builtins module, which Python clears last. Its destruction ends the process.

    Python would only free types and strings of the preloaded modules then. That copies their memory, and takes half of
    the time of a process that does nothing.
    """

    def __init__(self) -> None:
        #: Exit code, or None for Python's own way to end.
        self.code: int | None = None
        self._streams: tuple[Any, ...] = ()
        # By then, the modules are gone.
        self._exit, self._flush = os._exit, ctypes.CDLL(None).fflush
        vars(builtins)["late exit"] = self

    def expect(self, code: object) -> None:
        """Expect the exit code of ``sys.exit(code)``."""
        self.code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1

    def flush_streams(self) -> None:
        """Flush the streams. If that fails, leave the end to Python: the exit code is then another."""
        self._streams = self._streams or tuple(each for each in (sys.stdout, sys.stderr) if each is not None)
        try:
            for each in self._streams:
                each.flush()
        except (OSError, ValueError):
            self.code = None

    def __del__(self) -> None:
        # Destructors of other objects may have written.
        self.flush_streams()
        if self.code is not None:
            self._flush(None)
            self._exit(self.code)


def _spare_libraries() -> None:
    """Prevent the teardown of loaded libraries at exit.

    Python drops the exit handlers of the libraries. C only flushes its buffers at exit: handlers that are registered
    last run first.
    """
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False
    c = ctypes.CDLL(None)
    if hasattr(c, "on_exit"):
        c.on_exit(c._exit, None)
        c.__cxa_atexit(c.fflush, None, None)


if __name__ == "__main__":
    loaded: dict[str, object] = {}
    # Registered before any other handler, so that it runs after all others.
    atexit.register(_spare, loaded)
    own = set(sys.modules)
    for each in sys.argv[2:]:
        _load(each)
    loaded.update((name, module) for name, module in sys.modules.items() if name not in own)
    # The reference cycle keeps the modules alive, and the garbage collector does not see it.
    loaded[""] = loaded
    _spare_libraries()
    # Without the freeze, each fork would traverse these objects at exit.
    gc.freeze()
    folder = tempfile.mkdtemp()
    listener = socket.socket(fileno=int(sys.argv[1]))
    stand_in = _written(folder, listener.getsockname())
    request = _Source(listener).serve()
    if request is None:
        shutil.rmtree(folder)
    else:
        # The objects of the module are used until the end.
        before = sys.modules["__main__"]
        late_exit = _LateExit()
        # Registered before the program's handlers, so that it runs after them.
        atexit.register(late_exit.flush_streams)
        try:
            _go_on(request, stand_in)
        except SystemExit as ended:
            late_exit.expect(ended.code)
            raise
        late_exit.expect(0)
