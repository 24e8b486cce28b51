"""Test functions under ``--amp-check``: each test is recorded, and fails if its training has a mistake."""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import linecache
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from . import fixtures
from . import options as table
from .fixtures import NAME

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from ..protocol.finding import Finding
    from ..runtime.run import Run, record
    from ..static.settings import Settings
    from .printable import Line
    from .source_lines import SourceLines

#: Report attribute that is sent from worker to controller.
REPORT_ATTRIBUTE = "amp_recorded"
#: Maximum number of steps of one run, and maximum number of runs, in a report.
STEPS, RUNS = 2_000, 500
#: Chart width in columns without a known terminal, and the minimum width.
WIDTH, NARROWEST = 80, 40
#: Worker input with the width and encoding of the terminal.
TERMINAL = "amp_terminal"
TORCH = "torch"
#: Finding data sent between worker and controller: code, name, severity, headline, full text and location.
Record = dict[str, str]


class RecordingPlugin:
    """Recorder of every test function from setup to the end of the call, if torch is or becomes loaded.

    Fixtures are recorded because they create models, optimizers and scalers. Teardown is not recorded, because the
    report of the call needs the findings.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        options: table.Options,
        compared_runs: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.config = config
        self.settings = settings
        self.report_path, self.data_path = options.report, options.data
        #: Runs to compare with the runs of a report.
        self.compared_runs = compared_runs
        self.folder = os.path.join(os.fspath(config.invocation_params.dir), "")
        self.open_record: record | None = None
        self.finished_runs: dict[str, Run] = {}
        self._release_patches: Callable[[], None] | None = None
        self._import_hook: _ImportHook | None = None
        #: Data of the last report of each test, by node id.
        self.reports_by_test: dict[str, dict[str, Any]] = {}
        #: Test that showed a finding in full.
        self.first_shown_in: dict[tuple[str, str], str] = {}
        #: Sentences about the report and the data file.
        self.final_sentences: list[str] = []

    # Recording of one test.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._end_record()
        self.finished_runs.clear()
        if isinstance(item, pytest.Function):
            if sys.modules.get(TORCH) is not None:
                self._begin_record(item.nodeid)
            else:
                nodeid = item.nodeid
                self._import_hook = _ImportHook(TORCH, lambda: self._begin_record(nodeid))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        except BaseException as error:
            if self.open_record is not None:
                self.open_record.broken_by(error)
            raise
        finally:
            run = self._end_record()
            if run is not None:
                self.finished_runs[item.nodeid] = run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            # A test with a failed setup has no call.
            self._end_record()
            self.finished_runs.clear()

    def pytest_unconfigure(self) -> None:
        self._end_record()
        if self._release_patches is not None:
            self._release_patches()
            self._release_patches = None

    def _begin_record(self, nodeid: str) -> None:
        from ..runtime.record import attach
        from ..runtime.run import record

        if self._release_patches is None:
            self._release_patches = attach.keep_patches()
        wanted = bool(self.report_path or self.data_path)
        # Report and data are requested for inspection, so expensive passive data is also recorded.
        self.open_record = record(
            title=nodeid,
            automatic=True,
            dtypes=wanted,
            numerics=10 if wanted else 0,
            norms=wanted,
            search=wanted,
        )
        self.open_record.__enter__()

    def _end_record(self) -> Run | None:
        if self._import_hook is not None:
            self._import_hook.remove_hook()
            self._import_hook = None
        if self.open_record is None:
            return None
        ended, self.open_record = self.open_record, None
        ended.__exit__(None, None, None)
        return ended.run

    # Test reports.

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Subtests are reported during the recording of the test.
        run = self.finished_runs.pop(item.nodeid, None) if call.when == "call" else None
        if run is not None:
            if fixtures.measured in item.stash:
                run.memory = item.stash[fixtures.measured]
            report_data = self._make_report_data(run, report, item)
            if report_data is not None:
                setattr(report, REPORT_ATTRIBUTE, report_data)
        return report

    def _make_report_data(self, run: Run, report: pytest.TestReport, item: pytest.Item) -> dict[str, Any] | None:
        from .run_findings import apply_settings

        run.suppress = self.settings.suppress
        # Selected rules may be off by default.
        findings = apply_settings(
            run.select(*self.settings.select).findings, self.settings, fixtures.find_allowed_codes(item), self.folder
        )
        records = [] if report.skipped else self._make_records(findings)
        options = fixtures.resolve_options(item.config)
        worse = [record for record in records if table.is_failing(options, record["severity"])]
        if worse:
            fixtures.report_as_failed(report, item, _summarize_mistakes(worse))
        report_data: dict[str, Any] = {
            "records": records,
            "trained": run.steps_total > 0,
            "failure": "" if run.failure is None else f"{type(run.failure).__name__}: {run.failure}",
            # A test that is expected to fail does not count.
            "counts": not hasattr(report, "wasxfail"),
            "chart": self._make_chart(run) if run.skipped_total or (run.steps_total and report.failed) else [],
            "charts": [
                [each.title, self._make_chart(each)] for each in fixtures.find_runs(item) if _has_more_to_show(each)
            ],
            "runs": self._serialize_runs(run, findings, item) if self.report_path or self.data_path else [],
        }
        return (
            report_data
            if any(report_data[key] for key in ("records", "trained", "failure", "charts", "runs"))
            else None
        )

    def _make_chart(self, run: Run) -> list[Line]:
        from . import charts

        width, encoding = _find_terminal(self.config)
        # The summary indents charts.
        return charts.render_run(run.as_dict(), width - 2, encoding)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the terminal data of the controller to a worker of pytest-xdist, which has no terminal."""
        node.workerinput[TERMINAL] = list(_find_terminal(self.config))

    def _make_records(self, findings: Sequence[Finding]) -> list[Record]:
        from . import finding_text, output

        sources = self._load_sources(findings)
        return [
            {
                "code": finding.code,
                "name": finding.name,
                "severity": finding.severity,
                "headline": "".join(output.render_plain([finding_text.format_headline(finding)])).rstrip("\n"),
                "text": "".join(output.render_plain(finding_text.format_finding(finding, sources))).rstrip("\n"),
                "place": f"{os.path.realpath(os.path.join(self.folder, finding.filename))}:{finding.line}",
                "line": f"{finding.filename}:{finding.line}",
            }
            for finding in findings
        ]

    def _load_sources(self, findings: Sequence[Finding]) -> SourceLines:
        from . import source_lines

        places = [place for f in findings for place in (f.site, *(step.site for step in f.trace))]
        sites = [site for place in places for site in place.list_frames()]
        # Full paths, because the test may have changed the working folder.
        texts = {path: "".join(linecache.getlines(self.folder + path)) for path in {site.path for site in sites}}
        return source_lines.SourceLines(texts)

    def _serialize_runs(self, recorded: Run, findings: Sequence[Finding], item: pytest.Item) -> list[str]:
        """Return the relevant runs of a test as JSON, long runs truncated to the end.

        ``findings`` belong to the first run.
        """
        from .page.findings import serialize_findings

        serialized_runs = []
        nodeid = item.nodeid
        for run in [recorded, *fixtures.find_runs(item)]:
            mine = findings if run is recorded else self._settle_findings(run.findings)
            if run.steps_total or mine:
                data = run.as_dict()
                data["findings"] = serialize_findings(mine, self._load_sources(mine))
                data["title"] = nodeid if run.title in ("", nodeid) else f"{nodeid}: {run.title}"
                data["steps"] = data["steps"][-STEPS:]
                serialized_runs.append(json.dumps(data))
        return serialized_runs

    def _settle_findings(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings of a test's own recording with displayed locations. The test selected the rules."""
        import copy

        from .run_findings import apply_settings

        settings = copy.copy(self.settings)
        settings.select = frozenset(finding.code for finding in findings)
        return apply_settings(findings, settings, folder=self.folder)

    # Output in the reporting process.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        report_data = getattr(report, REPORT_ATTRIBUTE, None)
        if report_data is None or hasattr(self.config, "workerinput"):
            return
        from . import output

        self.reports_by_test[report.nodeid] = report_data
        parts = [self._format_record(record, report.nodeid) for record in report_data["records"]]
        if parts and report.failed:
            parts += ["".join(output.render_plain(report_data["chart"])).rstrip("\n")] if report_data["chart"] else []
            report.sections.append((NAME, "\n\n".join(parts)))

    def _format_record(self, record: Record, nodeid: str) -> str:
        """Return a finding in full at the first report, and a short reference later. Many tests share code."""
        first = self.first_shown_in.setdefault((record["code"], record["place"]), nodeid)
        return record["text"] if first == nodeid else f"{record['headline']}\n  in full at {first}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput") or self.config.getoption("collectonly"):
            return
        runs = [json.loads(text) for report_data in self.reports_by_test.values() for text in report_data["runs"]]
        unwritten = []
        if self.report_path is not None:
            unwritten += self._write_report(runs, self.report_path)
        if self.data_path is not None:
            unwritten += self._write_data(runs, self.data_path)
        if unwritten:
            self.final_sentences += [f"{NAME}: error: {each}" for each in unwritten]
            session.exitstatus = session.exitstatus or pytest.ExitCode.USAGE_ERROR

    def _write_report(self, runs: Sequence[Mapping[str, Any]], path: str) -> list[str]:
        """Write the report, and return the reasons for a failure."""
        from . import html

        try:
            html.write_report(runs[:RUNS], path, others=self.compared_runs)
        except html.ReportUnavailable as error:
            return [str(error)]
        shown = f"{RUNS} of {len(runs)} runs" if len(runs) > RUNS else _format_count(len(runs), "run")
        self.final_sentences.append(f"The report of {shown} is in {path.removeprefix(self.folder)}.")
        return []

    def _write_data(self, runs: Sequence[Mapping[str, Any]], path: str) -> list[str]:
        """Write all recorded data as JSON, and return the reasons for a failure."""
        from ..runtime.exports import as_json
        from . import files

        try:
            files.write_file(path, as_json({"runs": runs}))
        except OSError as error:
            return [f"{path} cannot be written: {(error.strerror or 'error').lower()}"]
        self.final_sentences.append(
            f"The data of {_format_count(len(runs), 'run')} is in {path.removeprefix(self.folder)}."
        )
        return []

    def collect_records(self) -> list[Record]:
        """Return every finding once, independent of the number of tests with the finding."""
        found = {(r["code"], r["place"]): r for report_data in self._select_counted() for r in report_data["records"]}
        return list(found.values())

    def _select_counted(self) -> list[dict[str, Any]]:
        return [report_data for report_data in self.reports_by_test.values() if report_data["counts"]]

    def list_shared_findings(self) -> Iterator[str]:
        """Yield findings that no single failure reports, with the number of tests."""
        for record in self.collect_records():
            key = record["code"], record["place"]
            tests = sum(
                any((r["code"], r["place"]) == key for r in report_data["records"])
                for report_data in self._select_counted()
            )
            if tests > 1 or not table.is_failing(fixtures.resolve_options(self.config), record["severity"]):
                yield f"{record['headline']} (in {_format_count(tests, 'test')})"

    def list_charts(self, colour: bool) -> Iterator[str]:
        """Yield charts of tests without failure that had skipped steps or recorded figures."""
        from . import output

        for nodeid, report_data in self.reports_by_test.items():
            if report_data["records"]:
                continue
            # The test's own recording has more data about the same steps.
            own = [
                (f"{nodeid}: {title}" if title not in ("", nodeid) else nodeid, c) for title, c in report_data["charts"]
            ]
            for title, chart in own or [(nodeid, report_data["chart"])] * bool(report_data["chart"]):
                yield title
                yield from output.render_colored([[("  ", ""), *line] for line in chart], use_color=colour)

    def summarize_tests(self) -> Iterator[str]:
        """Yield one sentence about the tests that train, and sentences about other results."""
        from . import summaries

        trained = sum(report_data["trained"] or bool(report_data["records"]) for report_data in self._select_counted())
        records = self.collect_records()
        if trained:
            counts = summaries.count_severities(record["severity"] for record in records)
            # The sentence for files, adapted to tests.
            sentence = summaries.summarize_counts(counts, trained)
            yield (
                f"{sentence.rpartition(' in ')[0]} in {_format_count(trained, 'test')} that "
                f"train{'s' * (trained == 1)}."
            )
        failures = {
            nodeid: report_data["failure"]
            for nodeid, report_data in self.reports_by_test.items()
            if report_data["failure"]
        }
        for nodeid, failure in list(failures.items())[:1]:
            yield (
                f"{NAME}: the recorder failed in {_format_count(len(failures), 'test')}, such as {nodeid}, "
                f"and has not seen all of it: {failure}: please report it"
            )
        yield from self.final_sentences


def _summarize_mistakes(records: Sequence[Record]) -> str:
    listed = [f"{record['code']} {record['name']} at {record['line']}" for record in records[:3]]
    if len(records) > 3:
        listed.append(f"{len(records) - 3} more")
    return f"Its mixed-precision training has {_format_count(len(records), 'mistake')}: {', '.join(listed)}"


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _has_more_to_show(run: Run) -> bool:
    """Return True if a recorded run has more to show than a constant loss scale."""
    return bool(run.steps_total and (run.skipped_total or run.numerics is not None or run.memory is not None))


def _find_terminal(config: pytest.Config) -> tuple[int, str | None]:
    """Return the width and encoding of the terminal that shows the output of this process."""
    terminal = getattr(config, "workerinput", {}).get(TERMINAL)
    if terminal is not None:
        return tuple(terminal)
    from . import charts

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    width = WIDTH if reporter is None else reporter._tw.fullwidth
    return max(width, NARROWEST), charts.find_encoding(sys.__stdout__)


def is_torch_installed() -> bool:
    """Return True if torch is installed, without importing torch."""
    if sys.modules.get(TORCH) is not None:
        return True
    try:
        return importlib.util.find_spec(TORCH) is not None
    except (ImportError, ValueError):
        return False


class _ImportHook(importlib.abc.MetaPathFinder):
    """Import hook that calls a function after this thread imported a module: a test may be the first to need torch."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._module_name = name
        self._callback = callback
        self._thread_id = threading.get_ident()
        sys.meta_path.insert(0, self)

    def remove_hook(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if fullname != self._module_name or threading.get_ident() != self._thread_id:
            return None
        self.remove_hook()
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._callback()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
