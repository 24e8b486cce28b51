"""The fixture ``amp``, and the markers ``amp``, ``amp_memory`` and ``amp_allow``, available without ``--amp-check``."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from . import options as table

if TYPE_CHECKING:
    from ..runtime.session import Session
    from ..static.settings import Settings

NAME = "amp-check"
MARKERS = (
    (
        "amp(device=, dtype=): device (auto, cpu, cuda, cuda:1, emulate) and dtype (float16, bfloat16, or a list: run "
        "the test with each) of the fixture amp."
    ),
    'amp_memory(limit): fail the test where its memory is more than a size such as "1.5 GiB" (or bytes) at its peak.',
    'amp_allow(*rules, reason=): findings of these rules, such as "AMP503", do not fail the test.',
)
#: Prefix of the reason of a strict xfail test that passed.
_STRICT = "[XPASS(strict)]"
_resolved = pytest.StashKey[table.Options]()
_session = pytest.StashKey["Session"]()
_random = pytest.StashKey[dict[str, Any]]()
_excess = pytest.StashKey[str]()
_refused = pytest.StashKey[str]()
#: Baseline files of deleted tests.
_orphans = pytest.StashKey[list[str]]()
#: Folder of baselines, as in pytest_amp_check.runtime.baselines, which needs torch.
BASELINES = "amp_baselines"
#: Measured memory of a test with a limit.
measured = pytest.StashKey[Any]()


def resolve_options(config: pytest.Config) -> table.Options:
    """Return all options, resolved at the first call. Raise UsageError for an invalid option."""
    if _resolved not in config.stash:
        try:
            config.stash[_resolved] = _resolve_from_config(config, str(config.rootpath))
        except table.ConfigError as error:
            raise make_usage_error(str(error)) from None
    return config.stash[_resolved]


def _resolve_from_config(config: pytest.Config, start: str) -> table.Options:
    _refuse_unknown(config)
    places = {option.name: _describe_source(config, option) for option in table.OPTIONS if option.ini}
    return table.resolve_options(
        table.read_flags(config.option, table.PYTEST),
        start=start,
        ini={option.name: _read_ini(config, option, places[option.name]) for option in table.OPTIONS if option.ini},
        ini_base=str(config.inipath.parent if config.inipath else config.invocation_params.dir),
        ini_places=places,
        frontend=table.PYTEST,
    )


def _describe_source(config: pytest.Config, option: table.Option) -> str:
    """Return the location of an option in pytest's configuration, as text."""
    if option.ini in _overridden_names(config):
        return f"-o {option.ini}"
    return f"{option.ini} in {config.inipath}" if config.inipath else option.ini


def _overridden_names(config: pytest.Config) -> list[str]:
    """Return the names of the options passed by ``-o``."""
    return [word.partition("=")[0] for word in config.getoption("override_ini") or ()]


def _read_ini(config: pytest.Config, option: table.Option, where: str) -> Any:
    """Return the value of an option in pytest's configuration. Raise ConfigError if invalid."""
    try:
        return config.getini(option.ini)
    except (ValueError, TypeError, pytest.UsageError) as error:
        # The exception type depends on the version of pytest, and not every message names the option.
        expected = "true or false" if option.kind is table.FLAG else "what pytest can read"
        raise table.ConfigError(f"{where} must be {expected}: {error}") from None


def _refuse_unknown(config: pytest.Config) -> None:
    """Raise ConfigError for an unknown option in pytest's configuration with the prefix of this plugin."""
    ours = tuple(option.ini for option in table.OPTIONS if option.ini)
    with warnings.catch_warnings():
        # Looking up single names, as pytest 9 recommends, finds no misspelled name.
        warnings.simplefilter("ignore", DeprecationWarning)
        written = list(getattr(config, "inicfg", ()))
    for where, names in (("-o", _overridden_names(config)), (str(config.inipath), written)):
        for name in names:
            if name.startswith("amp_") and name not in ours:
                try:
                    config.getini(name)
                except ValueError:
                    raise table.ConfigError(
                        f"unknown option {name!r} of {where}{table.suggest_nearest(name, ours)}"
                    ) from None


def make_settings_finder(config: pytest.Config) -> Callable[[str], Settings | None]:
    """Return a function that finds the settings of a folder with a separate configuration.

    The function raises UsageError for an invalid configuration.
    """
    found = table.make_settings_finder(
        resolve_options(config), make_settings(config), lambda folder: _resolve_from_config(config, folder)
    )

    def find_settings(folder: str) -> Settings | None:
        try:
            return found(folder)
        except table.ConfigError as error:
            raise make_usage_error(str(error)) from None

    return find_settings


def make_settings(config: pytest.Config) -> Settings:
    """Return the engine settings. Raise UsageError for an unknown rule."""
    try:
        return table.make_settings(resolve_options(config))
    except table.ConfigError as error:
        raise make_usage_error(str(error)) from None


def make_usage_error(message: str) -> pytest.UsageError:
    return pytest.UsageError(f"{NAME}: {message}")


# Markers.


def _read_amp_marker(node: pytest.Item | pytest.Collector) -> dict[str, Any]:
    """Return device and dtypes from the markers of a node, each from the nearest marker with a value."""
    found: dict[str, Any] = {}
    for mark in node.iter_markers("amp"):
        if mark.args or not mark.kwargs.keys() <= {"device", "dtype"}:
            raise ValueError('it takes device= and dtype=, such as @pytest.mark.amp(dtype="bfloat16")')
        for key, value in mark.kwargs.items():
            try:
                found.setdefault(key, table.parse_device(value) if key == "device" else _parse_dtypes(value))
            except ValueError as error:
                raise ValueError(f"{key} must be {error}, not {value!r}") from None
    return found


def _parse_dtypes(given: Any) -> str | list[str]:
    if not isinstance(given, (list, tuple)):
        return table.parse_dtype(given)
    names = [table.parse_dtype(each) for each in given]
    if not names or len(set(names)) < len(names):
        raise ValueError("one or more dtypes, each once")
    return names


def find_memory_limit(item: pytest.Item) -> int | None:
    """Return the limit of the nearest ``amp_memory`` marker in bytes, or None."""
    from ..protocol.byte_sizes import parse_size

    mark = item.get_closest_marker("amp_memory")
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs:
        raise ValueError('it takes one size, such as @pytest.mark.amp_memory("1.5 GiB")')
    return parse_size(mark.args[0])


def find_allowed_codes(item: pytest.Item) -> frozenset[str]:
    """Return the codes allowed by all ``amp_allow`` markers of a test, its class and its module."""
    codes: frozenset[str] = frozenset()
    for mark in item.iter_markers("amp_allow"):
        from ..protocol.rules import RULES
        from ..protocol.selection import expand_word

        if not mark.args or not all(isinstance(word, str) for word in mark.args):
            raise ValueError('it takes rules, such as @pytest.mark.amp_allow("AMP503", reason="...")')
        reason = mark.kwargs.get("reason")
        if mark.kwargs.keys() != {"reason"} or not isinstance(reason, str) or not reason.strip():
            raise ValueError("it needs a reason and nothing else: add reason='why the finding is meant'")
        codes = codes.union(*(expand_word(word, RULES)[0] for word in mark.args))
    return codes


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "amp" not in metafunc.fixturenames:
        return
    try:
        dtypes = _read_amp_marker(metafunc.definition).get("dtype")
    except ValueError:
        return  # Reported after collection, in one sentence.
    if isinstance(dtypes, list):
        metafunc.parametrize("amp", dtypes, indirect=True, ids=dtypes)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    # Before other plugins select items.
    _note_orphans(session, items)
    readers: dict[str, Callable[[pytest.Item], Any]] = {
        "amp": _read_amp_marker,
        "amp_memory": find_memory_limit,
        "amp_allow": find_allowed_codes,
    }
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        for name, read in readers.items():
            if name in names:
                try:
                    read(item)
                except ValueError as error:
                    _refuse_items([item], make_usage_error(f"@pytest.mark.{name} of {item.nodeid}: {error}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report before the first test an error that breaks the fixture in all tests."""
    config = session.config
    refused = [item for item in session.items if _refused in item.stash]
    users = [item for item in session.items if "amp" in getattr(item, "fixturenames", ()) and item not in refused]
    ending = refused and not _is_worker(config)
    if not users or ending or config.getoption("collectonly"):
        return
    try:
        given = resolve_options(config)
        make_settings(config)
    except pytest.UsageError as error:
        _refuse_items(users, error)
        return
    unmarked = [item for item in users if "device" not in _read_amp_marker(item)]
    if given.device.startswith("cuda") and unmarked:
        # The device was requested by name: skipping all tests would look like passing.
        from ..runtime.session import unavailable_reason

        reason = unavailable_reason(given.device)
        if reason:
            _refuse_items(unmarked, make_usage_error(f"{given.origins['device']}: {reason}"))


def _refuse_items(items: list[pytest.Item], error: pytest.UsageError) -> None:
    """End the run before the first test.

    In a worker, each test fails instead, because an ended worker shows no reason.
    """
    for item in items:
        item.stash[_refused] = str(error)
        if not _is_worker(item.config):
            raise error


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


# The fixture.


@pytest.fixture
def amp(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Provide everything a test needs to train in mixed precision.

    ``amp.device`` (CUDA if available, else the CPU with CUDA's autocast dtypes during the test), ``amp.dtype``,
    ``amp.generator`` and the global random generators, seeded; ``amp.autocast()``, ``amp.scaler()``;
    ``amp.record(model)`` and ``amp.run(step, batches)``, which return a run with assertions.
    """
    item = request.node
    config = request.config
    given = resolve_options(config)
    marked = _read_amp_marker(item)
    named = table.parse_dtype(getattr(request, "param", None) or marked.get("dtype", given.dtype))
    try:
        from ..runtime.session import session, use_device, worker_device
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.fail("the fixture amp needs torch: pip install 'pytest-amp-check[torch]'", pytrace=False)
    rules = make_settings(config).select - find_allowed_codes(item)
    from ..runtime.baselines import Baselines

    worker = getattr(config, "workerinput", {}).get("workerid", "")
    asked = marked.get("device", given.device)
    place = worker_device(asked, worker)
    if place != asked:
        # "cuda" in a test means the current device.
        use_device(place)
    with session(place, named, rules=rules) as made:
        file, _, test = item.nodeid.partition("::")
        made.baselines = Baselines(str(item.path), test, f"{file}::{test}", update=given.update_baselines)
        item.stash[_session] = made
        yield made


def find_runs(item: pytest.Item) -> list[Any]:
    """Return the runs that a test recorded through the fixture."""
    made = item.stash.get(_session, None)
    return [] if made is None else made.runs


# Hooks around the call of a test.


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    if _refused in item.stash:
        pytest.fail(item.stash[_refused], pytrace=False)
    result = yield
    if _session in item.stash:
        from ..runtime.replay.snapshot import random_state

        item.stash[_random] = random_state()
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if _random in pyfuncitem.stash:
        # Plugins such as pytest-randomly seed generators between setup and call, differently in every run.
        from ..runtime.replay.snapshot import restore_random

        restore_random(pyfuncitem.stash[_random])
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    limit = find_memory_limit(item) if item.get_closest_marker("amp_memory") else None
    if limit is None:
        return (yield)
    try:
        from ..runtime.measure import memory as measuring
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        item.stash[_excess] = "amp_memory needs torch, which is not installed: nothing was measured"
        return (yield)
    # Only the call is measured: objects from fixtures count when used, and a fixture may outlive the test.
    made = item.stash.get(_session, None)
    device = None if made is None else "cpu" if made.emulated else made.device
    memory = item.stash[measured] = measuring.Memory(device=device)
    memory.start()
    try:
        result = yield
    finally:
        memory.stop()
    try:
        measuring.assert_memory(memory, peak=limit)
    except AssertionError as error:
        item.stash[_excess] = str(error)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        # Items live as long as the session, and may run again.
        keys: tuple[pytest.StashKey[Any], ...] = (_session, _random, _excess, measured)
        for key in keys:
            if key in item.stash:
                del item.stash[key]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and _is_unavailable(call.excinfo.value):
        report_as_skipped(report, item, call)
    if call.when == "call" and report.passed:
        _check_baselines(report, item)
    if call.when == "call" and _excess in item.stash and not report_as_failed(report, item, item.stash[_excess]):
        report.sections.append((f"{NAME} memory", item.stash[_excess]))
    return report


# Unused baselines.


def _check_baselines(report: pytest.TestReport, item: pytest.Item) -> None:
    """Fail a passed test that did not assert one of its baselines, or remove the baseline on request."""
    made = item.stash.get(_session, None)
    baselines = None if made is None else made.baselines
    if baselines is None or not os.path.exists(baselines.path):
        return
    unasked = baselines.unused_names()
    if unasked and baselines.update:
        baselines.remove_names(unasked)
    elif unasked:
        names = ", ".join(repr(name) for name in unasked)
        report_as_failed(
            report, item, f"It has not asserted its baseline {names} in {baselines.path}: {baselines.update_command}"
        )


def _note_orphans(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Record the baselines of deleted tests in files whose tests were all collected."""
    config = session.config
    if any("::" in argument for argument in config.args):
        return
    files: dict[str, set[str]] = {}
    for item in items:
        if isinstance(item, pytest.Function):
            files.setdefault(str(item.path), set()).add(item.nodeid.partition("::")[2])
    folders = {os.path.dirname(file) for file in files}
    if not any(os.path.isdir(os.path.join(folder, BASELINES)) for folder in folders):
        return
    from ..runtime.baselines import find_abandoned, find_orphans

    found = [path for file, tests in files.items() for path in find_orphans(file, tests)]
    config.stash[_orphans] = found + [path for folder in sorted(folders) for path in find_abandoned(folder)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove baselines of deleted tests on request. Without a request, such baselines fail a run in CI."""
    config = session.config
    found = config.stash.get(_orphans, [])
    if _is_worker(config):
        config.workeroutput["amp_orphans"] = found  # type: ignore[attr-defined]
        return
    if found and resolve_options(config).update_baselines:
        for path in found:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
    elif found and os.environ.get("CI"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the results of an ended pytest-xdist worker. All workers collected the same tests."""
    found = getattr(node, "workeroutput", {}).get("amp_orphans")
    if found:
        node.config.stash[_orphans] = found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(_orphans, [])
    if not found:
        return
    update = resolve_options(config).update_baselines
    terminalreporter.write_sep("=", f"{NAME} baselines")
    for path in found:
        terminalreporter.write_line(f"{path}: {'removed: ' if update else ''}no test asserts it any more")
    if not update:
        terminalreporter.write_line("pytest --amp-update-baselines removes what no test asserts")


def _is_unavailable(error: BaseException) -> bool:
    """Return True if an assertion could not be decided on this machine."""
    comparison = sys.modules.get("pytest_amp_check.runtime.replay.comparison")
    return comparison is not None and isinstance(error, comparison.UnavailableError)


def report_as_skipped(report: pytest.TestReport, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Convert a failed report to a skipped report with the reason of the exception."""
    assert call.excinfo is not None
    reason = str(call.excinfo.value)
    path, line, _ = item.reportinfo()
    report.outcome = "skipped"
    report.longrepr = (os.fspath(path), (line or 0) + 1, f"Skipped: {reason}")
    # Any other exception opens a debugger under --pdb.
    skipped = pytest.skip.Exception(reason).with_traceback(call.excinfo.value.__traceback__)
    call.excinfo = pytest.ExceptionInfo.from_exception(skipped)


def report_as_failed(report: pytest.TestReport, item: pytest.Item, message: str) -> bool:
    """Convert a report to a failure, and return True if the message now fails the test. A skipped test stays skipped.

    A test marked xfail then fails as expected, unless the marker requires a specific exception.
    """
    strict = report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(_STRICT)
    if not report.passed and not strict:
        return False
    reason = getattr(report, "wasxfail", None)
    if strict:
        reason = str(report.longrepr).removeprefix(_STRICT).strip()
    report.outcome = "failed"
    report.longrepr = message
    if reason is not None:
        if any("raises" in mark.kwargs for mark in item.iter_markers("xfail")):
            report.__dict__.pop("wasxfail", None)
        else:
            report.outcome = "skipped"
            report.wasxfail = reason
    return True
