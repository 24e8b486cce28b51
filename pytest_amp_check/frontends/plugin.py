"""``pytest --amp-check``: every Python file passed to pytest is an item that fails with its findings.

:mod:`.recording` records test functions. :mod:`.fixtures` provides the fixture ``amp`` and the markers, without any
option. Every pytest run of a project with this package imports this module. The import loads only pytest and the
standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..protocol.severities import SEVERITIES
from . import fixtures
from . import options as table
from .fixtures import NAME

if TYPE_CHECKING:
    from ..protocol.finding import Finding
    from ..static.settings import Settings
    from .recording import RecordingPlugin

MARKER = "amp_check"
#: Names of the plugins registered by --amp-check: the analyzer plugin and the recording plugin.
CHECK, RECORDING = "amp_check_items", "amp_check_recording"
#: Options for recorded tests.
RECORDED = ("report", "data", "compare")
#: Finding data sent between worker and controller: code, name, severity, headline, location and full text.
Record = dict[str, str]
_torchless = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(NAME, "mistakes in mixed-precision training code")
    group.addoption(
        "--amp-check",
        action="store_true",
        default=False,
        dest="amp_check",
        help="check every Python file, notebook and Markdown file that is given or below amp_check_paths for mistakes "
        "in mixed-precision training, and record every test that trains",
    )
    table.add_flags(lambda topic: group.addoption, table.PYTEST)
    for option in table.OPTIONS:
        if option.ini:
            kind: Any = option.kind.ini_type
            parser.addini(option.ini, f"--amp-check: {option.help}", type=kind, default=None)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> Generator[None, Any, Any]:
    """Suggest the nearest flag for an unknown ``--amp-`` flag; pytest only reports the unknown flag."""
    # Flags of the project's conftest.py are known by then.
    loaded = yield
    ours = tuple(option.pytest_flag for option in table.OPTIONS if option.pytest_flag)
    for word in args[: args.index("--") if "--" in args else None]:
        flag = word.partition("=")[0]
        hint = table.suggest_nearest(flag, (*ours, "--amp-check")) if flag.startswith("--amp-") else ""
        if hint and flag not in (*ours, "--amp-check") and not _is_known(parser, word):
            raise fixtures.make_usage_error(f"unrecognized argument {flag}{hint}")
    return loaded


def _is_known(parser: pytest.Parser, word: str) -> bool:
    try:
        return not parser.parse_known_and_unknown_args([word])[1]
    except pytest.UsageError:
        # The value of the flag is missing.
        return True


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: carried by the items of --amp-check, for -m; not set by hand.")
    config.pluginmanager.register(fixtures, "amp_check_fixtures")
    given = table.read_flags(config.option, table.PYTEST)
    if not config.getoption("amp_check"):
        for name in ("only", *RECORDED):
            if given[name] is not None:
                raise fixtures.make_usage_error(f"--amp-{name} says how --amp-check works: give that too")
        if given["device"] is not None or given["dtype"] is not None:
            fixtures.resolve_options(config)
        return
    options = fixtures.resolve_options(config)
    settings = fixtures.make_settings(config)
    _refuse_missing_paths(config, options)
    if options.only != table.RUNTIME:
        config.pluginmanager.register(_CheckPlugin(config, options, settings), CHECK)
    if options.only != table.STATIC:
        _register_recording(config, options, settings)
    for name in RECORDED if options.only == table.STATIC else ():
        if getattr(options, name) is not None:
            raise fixtures.make_usage_error(
                f"{options.origins[name]} needs recorded tests: leave {options.origins['only']} out"
            )


def _refuse_missing_paths(config: pytest.Config, options: table.Options) -> None:
    """Raise UsageError for missing paths and for an invalid baseline or cache, before collection."""
    for path in options.paths:
        if not os.path.lexists(path):
            raise fixtures.make_usage_error(f"{options.origins['paths']}: {path} does not exist")
    if options.baseline is not None:
        from .baseline import Baseline, BaselineError

        try:
            Baseline(options.baseline)
        except BaselineError as error:
            raise fixtures.make_usage_error(f"{options.origins['baseline']}: {error}") from None
    folder = _find_cache_folder(config, options) if options.only != table.RUNTIME else None
    if folder is not None:
        from ..static.cache import refuse_foreign
        from ..static.sources.source_files import InputError

        try:
            refuse_foreign(folder)
        except InputError as error:
            raise fixtures.make_usage_error(str(error)) from None


def _find_cache_folder(config: pytest.Config, options: table.Options) -> str | None:
    """Return the cache folder, or None if pytest has no cache."""
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return None
    from . import write_guard

    try:
        return write_guard.find_cache_folder(options, str(config.rootpath))
    except table.ConfigError as error:
        raise fixtures.make_usage_error(str(error)) from None


def _register_recording(config: pytest.Config, options: table.Options, settings: Settings) -> None:
    """Register the recording plugin if torch is installed."""
    from . import recording

    if not recording.is_torch_installed():
        for name in ("only", *RECORDED):
            if getattr(options, name) is not None:
                raise fixtures.make_usage_error(
                    f"{options.origins[name]} needs torch: pip install 'pytest-amp-check[torch]'"
                )
        config.stash[_torchless] = True
        return
    others = [] if hasattr(config, "workerinput") else _prepare_report(options)
    config.pluginmanager.register(recording.RecordingPlugin(config, settings, options, others), RECORDING)


def _prepare_report(options: table.Options) -> list[dict[str, Any]]:
    """Check that the report can be written at the end, and return the runs to compare."""
    if options.report is not None:
        from . import html

        try:
            html.check_writable(options.report)
        except html.ReportUnavailable as error:
            raise fixtures.make_usage_error(f"{options.origins['report']}: {error}") from None
    if options.compare is None:
        return []
    if options.report is None:
        raise fixtures.make_usage_error(
            f"{options.origins['compare']} shows other runs in a report: name that by --amp-report"
        )
    from .page import comparison

    try:
        return comparison.load_runs(options.compare)
    except comparison.NotComparable as error:
        raise fixtures.make_usage_error(f"{options.origins['compare']}: {error}") from None


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.stash.get(_torchless, False):
        return f"{NAME}: source is read; tests are not recorded, because torch is not installed"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    check: _CheckPlugin | None = config.pluginmanager.get_plugin(CHECK)
    recording: RecordingPlugin | None = config.pluginmanager.get_plugin(RECORDING)
    verbosity = terminalreporter.verbosity
    if (check is None and recording is None) or config.getoption("collectonly") or verbosity < -1:
        return
    from . import output, summaries

    records = [] if check is None else [record for found in check.reported_records.values() for record in found]
    known = {(record["code"], record["place"]) for record in records}
    recorded = [] if recording is None else recording.collect_records()
    everything = [*records, *(record for record in recorded if (record["code"], record["place"]) not in known)]
    lines = output.render_plain(
        summaries.format_statistics(summaries.count_by_rule((r["code"], r["name"], r["severity"]) for r in everything))
    )
    options = fixtures.resolve_options(config)
    lines += [record["headline"] for record in records if not table.is_failing(options, record["severity"])]
    sentences: list[str] = []
    if recording is not None:
        lines += [
            *recording.list_shared_findings(),
            *(recording.list_charts(terminalreporter.hasmarkup) if verbosity > 0 else ()),
        ]
        sentences += recording.summarize_tests()
    if check is not None and check.reported_records:
        counts = summaries.count_severities(record["severity"] for record in records)
        sentences.insert(0, summaries.summarize_counts(counts, len(check.reported_records)))
    if not sentences:
        halves = [said for half, said in ((check, "no file was checked"), (recording, "no test trained")) if half]
        sentences.append(f"{', and '.join(halves).capitalize()}.")
    terminalreporter.write_sep("=", NAME)
    for line in (*lines, *sentences):
        terminalreporter.write_line(line.rstrip("\n"))


class MistakesFound(Exception):
    """Raised by an item with findings; :meth:`CheckItem.repr_failure` shows the findings."""


class CheckFile(pytest.File):
    """A file with Python code to check. The file is never imported."""

    def collect(self) -> Iterable[CheckItem]:
        yield CheckItem.from_parent(self, name=NAME)


class CheckItem(pytest.Item):
    """One file, which passes if no finding is worse than ``info``."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.records: list[Record] = []
        self.add_marker(MARKER)

    def runtest(self) -> None:
        check = self.config.pluginmanager.get_plugin(CHECK)
        assert isinstance(check, _CheckPlugin)
        self.records = check.find_records(self)
        if any(table.is_failing(check.options, record["severity"]) for record in self.records):
            raise MistakesFound

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, MistakesFound):
            # pytest shows the first line in the summary.
            worst = sorted(self.records, key=lambda record: SEVERITIES.index(record["severity"]))
            return "\n".join(record["text"] for record in worst)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{NAME}: {self.nodeid.split('::')[0]}"


class ExcludedFile(pytest.File):
    """A named file that is excluded. For a named file without nodes, pytest reports a missing file."""

    def collect(self) -> Iterable[ExcludedItem]:
        yield ExcludedItem.from_parent(self, name=NAME)


class ExcludedItem(pytest.Item):
    """A skipped item for an excluded file."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.add_marker(MARKER)
        self.add_marker(pytest.mark.skip("exclude and force-exclude leave it out"))

    def runtest(self) -> None:
        pass

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{NAME}: {self.nodeid.split('::')[0]}"


class _CheckPlugin:
    """The analyzer plugin of a session: the items, one analysis of all files, a summary."""

    def __init__(self, config: pytest.Config, options: table.Options, settings: Settings) -> None:
        self.config = config
        self.options = options
        self.settings = settings
        self.records_by_path: dict[str, list[Record]] = {}
        self.reported_records: dict[str, list[Record]] = {}
        self.shared_folder = ""
        self.find_settings = fixtures.make_settings_finder(config)

    # Collection of files.

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        nodes = yield
        from ..static.sources.source_files import may_be_checked

        if not may_be_checked(str(file_path)):
            return nodes
        session = parent.session
        given = session.isinitpath(file_path)
        if given and self._is_from_command_line() and not self._has_tests(file_path):
            # pytest would import, and so run, a training script named on the command line.
            nodes = [node for node in nodes if not isinstance(node, pytest.Module) or self._is_doctest(node)]
        if not self._is_excluded(file_path, given=given):
            # The parent is the session: below a Package, running the item would import the package.
            nodes = [*nodes, CheckFile.from_parent(session, path=file_path)]
        elif given and not nodes:
            nodes = [ExcludedFile.from_parent(session, path=file_path)]
        return nodes

    def _is_from_command_line(self) -> bool:
        """Return True if the arguments come from the command line. Workers always receive arguments there."""
        given: bool = getattr(self.config, "workerinput", {}).get(
            "amp_check_by_hand", self.config.args_source is pytest.Config.ArgsSource.ARGS
        )
        return given

    def _has_tests(self, path: Path) -> bool:
        """Return True if a named file is a test module, by name or because a test in the file was named."""
        for pattern in self.config.getini("python_files"):
            name = path.as_posix() if "/" in pattern else path.name
            if fnmatch(name, f"*/{pattern}" if "/" in pattern else pattern):
                return True
        here = self.config.invocation_params.dir
        for argument in self.config.args:
            file, *names = argument.split("::")
            if names and names != [NAME] and Path(os.path.abspath(here / file)) == path:
                return True
        return False

    def _is_doctest(self, node: pytest.Collector) -> bool:
        """Return True if a module was collected for doctests, which pytest runs only on request."""
        doctest = self.config.pluginmanager.get_plugin("doctest")
        return doctest is not None and isinstance(node, doctest.DoctestModule)

    def _is_excluded(self, path: Path, *, given: bool) -> bool:
        """Return True if the settings exclude a file, or if a folder without project sources contains the file."""
        from ..static.file_search import is_excluded
        from ..static.sources.source_files import SKIPPED_FOLDERS, is_excluded_below

        root = str(self.config.rootpath)
        if is_excluded(str(path), self.settings, self.find_settings, named=given, base=root):
            return True
        folder = os.path.dirname(os.path.realpath(path))
        return not given and is_excluded_below(folder, os.path.realpath(root), lambda name, _: name in SKIPPED_FOLDERS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the files below amp_check_paths, before other plugins select items."""
        # pytest before 9 collects a file again if named twice, or named and below a named folder.
        once = {item.nodeid: item for item in reversed(items) if isinstance(item, CheckItem)}
        items[:] = [item for item in items if once.get(item.nodeid, item) is item]
        if not self.options.paths or self._names_single_files(self.config.args):
            # A command line of single files or items requests only these.
            return
        from ..static.file_search import find_files

        known = {os.path.realpath(item.path) for item in once.values()}
        wanted = {
            os.path.realpath(file.path) for path in self.options.paths for file in self._collect_below(session, path)
        }
        for path in find_files(self.options.paths, self.settings, self.find_settings):
            real = os.path.realpath(path)
            if real in wanted and real not in known:
                known.add(real)
                items.extend(session.genitems(CheckFile.from_parent(session, path=Path(path))))

    def _names_single_files(self, arguments: list[str]) -> bool:
        """Return True if the command line names only single files and items."""
        here = self.config.invocation_params.dir
        single = ("::" in argument or os.path.isfile(here / argument) for argument in arguments)
        return bool(arguments) and self._is_from_command_line() and all(single)

    def _collect_below(self, session: pytest.Session, path: str) -> Iterator[CheckFile]:
        """Yield the files at a configured path that pytest does not ignore.

        Collection works as for the command line. The same settings ignore files: options, ``norecursedirs``, and the
        ``conftest.py`` of a folder.
        """
        place = Path(path)
        # A named folder is entered even if its name is excluded from recursion.
        recursed = not any(fnmatch(place.name, pattern) for pattern in self.config.getini("norecursedirs"))
        if recursed and session.ihook.pytest_ignore_collect(collection_path=place, config=self.config):
            return
        if not place.is_dir():
            yield CheckFile.from_parent(session, path=place)
            return
        waiting = [session.ihook.pytest_collect_directory(path=place, parent=session)]
        while waiting:
            report = session.ihook.pytest_make_collect_report(collector=waiting.pop())
            if report.failed:
                session.ihook.pytest_collectreport(report=report)
            for node in report.result or ():
                if isinstance(node, CheckFile):
                    yield node
                elif isinstance(node, pytest.Directory):
                    waiting.append(node)

    # Analysis of all files at once.

    def find_records(self, item: CheckItem) -> list[Record]:
        real = os.path.realpath(item.path)
        if real not in self.records_by_path:
            paths = {os.path.realpath(i.path): i.path for i in item.session.items if isinstance(i, CheckItem)}
            self.records_by_path.update(self._load_shared_records(paths | {real: item.path}))
        return self.records_by_path[real]

    def _load_shared_records(self, paths: dict[str, Path]) -> dict[str, list[Record]]:
        """Return the findings of all paths, from the first worker that needed them, or from a new analysis."""
        folder = getattr(self.config, "workerinput", {}).get("amp_check_folder", "")
        if not os.path.isdir(folder):
            # Without xdist, or in a worker on another machine.
            return self._analyze_files(paths)
        import json

        result = os.path.join(folder, "results.json")
        with open(os.path.join(folder, "lock"), "a+b") as lock:
            # The operating system releases the lock when the owner dies, and the next worker continues.
            _acquire_lock(lock.fileno())
            if os.path.exists(result):
                with open(result, encoding="utf-8") as file:
                    shared: dict[str, list[Record]] = json.load(file)
                if paths.keys() <= shared.keys():
                    return shared
            shared = self._analyze_files(paths)
            with open(result + ".part", "w", encoding="utf-8") as file:
                json.dump(shared, file)
            os.replace(result + ".part", result)
        return shared

    def _analyze_files(self, paths: dict[str, Path]) -> dict[str, list[Record]]:
        from ..static import engine
        from . import finding_text, source_lines

        cache = _find_cache_folder(self.config, self.options)
        named = [finding_text.relative_path(str(path)) for path in paths.values()]
        report = engine.check_paths(named, self.settings, cache=cache, nearer=self.find_settings)
        sources = source_lines.SourceLines()
        results: dict[str, list[Record]] = {real: [] for real in paths}
        findings = report.findings
        if self.options.baseline is not None:
            from .baseline import Baseline

            findings = Baseline(self.options.baseline).match_findings(findings, sources, paths)
        for finding in findings:
            results[os.path.realpath(finding.filename)].append(_make_record(finding, sources))
        return results

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the folder of the shared analysis to a worker of pytest-xdist."""
        if not self.shared_folder:
            import tempfile

            self.shared_folder = tempfile.mkdtemp(prefix="amp-check-")
        node.workerinput["amp_check_folder"] = self.shared_folder
        node.workerinput["amp_check_by_hand"] = self._is_from_command_line()

    def pytest_unconfigure(self) -> None:
        if self.shared_folder:
            import shutil

            shutil.rmtree(self.shared_folder, ignore_errors=True)

    # Reports.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, CheckItem) and call.when == "call":
            # Attributes of a report are sent from worker to controller.
            setattr(report, MARKER, item.records)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        records = getattr(report, MARKER, None)
        if records is not None:
            self.reported_records[report.nodeid] = records


def _make_record(finding: Finding, sources: Any) -> Record:
    from . import finding_text, output

    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "headline": "".join(output.render_plain([finding_text.format_headline(finding)])).rstrip("\n"),
        "place": f"{os.path.realpath(finding.filename)}{finding.site.location_text.removeprefix(finding.filename)}",
        "text": "".join(output.render_plain(finding_text.format_finding(finding, sources))),
    }


def _acquire_lock(descriptor: int) -> None:
    """Wait for the lock on an open file. Closing the file releases the lock."""
    if sys.platform == "win32":
        import msvcrt
        import time

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.05)
            else:
                return
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
