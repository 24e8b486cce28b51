"""Fuzzer of the analyzer: unusual inputs for minutes or hours, and a report of failures.

    python benchmarks/fuzz.py [--inputs 2000 | --minutes 20] [--seed 0] [--strange 0] [--keep FOLDER] [FOLDER ...]
    python benchmarks/fuzz.py --seed 0 --only 123 [FOLDER ...]     # the input of that number again, on standard output

Inputs are programs of the tests, the rules' examples, ``fixtures/``, and the named folders, changed by tokens, lines
and characters. ``--strange`` adds a number of hypothesmith's programs. Inputs are source files, notebooks, Markdown,
configuration, suppressions, and corrupted caches. For each input, the fuzzer checks these conditions:

- The analysis ends with findings or with an error sentence, never with an internal error.
- The processor time is within the limit for the input's size (:data:`SECONDS`, and :data:`SECONDS_PER_BYTE`).
- Two processes with different hash seeds have the same findings and make the same fixes.
- After all fixes, the file still parses, and has no more findings of any rule.

Two processes analyze every input, and are restarted if they die. The exit status is 1 if anything failed. Failing
inputs are kept in the folder of ``--keep``.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for place in (ROOT, ROOT / "benchmarks"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from fuzzing import Corpus, Input, corpus, corrupted, made  # noqa: E402

from pytest_amp_check.frontends import options  # noqa: E402
from pytest_amp_check.protocol.finding import Finding  # noqa: E402
from pytest_amp_check.protocol.rules import RULES  # noqa: E402
from pytest_amp_check.static.engine import check_paths, check_source  # noqa: E402
from pytest_amp_check.static.fixes.edited_file import EditedFile  # noqa: E402
from pytest_amp_check.static.fixes.fix_files import fix_file  # noqa: E402
from pytest_amp_check.static.project.project_context import ProjectContext  # noqa: E402
from pytest_amp_check.static.settings import Settings  # noqa: E402
from pytest_amp_check.static.sources import source_files  # noqa: E402

#: Processor time in seconds that any input may take, and additional seconds for each byte.
SECONDS = 10.0
SECONDS_PER_BYTE = 0.002
#: Seconds after which a process without an answer counts as hanging, regardless of its processor time.
PATIENCE = 600.0
#: Two hash seeds with different orders of string sets.
HASHES = ("1", "20")
#: Separator between the findings of an input and the text after the fixes.
FIXED = "\n-- fixed:\n"
EVERYTHING = Settings(select=frozenset(RULES))


class Wrong(Exception):
    """Failure of an input, as one sentence."""


class TooLong(BaseException):
    """Signal that an input exceeded its processor time. A BaseException, so that no handler catches it."""


# One input.


def verdict(given: Input, folder: Path) -> str:
    """Return the result of an input as reproducible text. Raise :class:`Wrong` or any exception of the analyzer."""
    if given.kind == "configuration":
        return _configured(given, folder)
    path = folder / given.name
    path.write_bytes(given.data)
    return _cached(given, path, folder) if given.kind == "cache" else _read(given, path)


def _read(given: Input, path: Path) -> str:
    report = check_paths([str(path)], EVERYTHING)
    found = report.findings
    _sound(given, found)
    try:
        document = EditedFile.from_bytes(str(path), given.data, ProjectContext([str(path)], report.tree.files, None))
    except source_files.Unreadable:
        return _reported(found)
    outcome = fix_file(document, found, EVERYTHING, report.tree, unsafe=True)
    if not outcome.has_changed:
        return _reported(found)
    path.write_bytes(outcome.fixed_document.encode_text())
    after = check_paths([str(path)], EVERYTHING).findings
    risen = Counter(f.code for f in after) - Counter(f.code for f in found)
    if risen:
        raise Wrong(f"after the fixes there are more of {', '.join(sorted(risen))}")
    if len(after) >= len(found):
        raise Wrong("after the fixes there are no fewer findings")
    if given.kind == "source" and not any(f.code == "AMP903" for f in found):
        _parsed(path)
    return f"{_reported(found)}{FIXED}{outcome.fixed_document.raw_text}"


def _parsed(path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source_files.read_python(str(path)))
    except SyntaxError as error:
        raise Wrong(f"after the fixes it is no Python: {error}") from None


def _reported(findings: Sequence[Finding]) -> str:
    return "\n".join(json.dumps(finding.as_dict(), sort_keys=True) for finding in findings)


def _sound(given: Input, findings: Sequence[Finding]) -> None:
    """Check that findings can be shown: known rules, sorted, inside the file, with messages of one line."""
    if [f.order() for f in findings] != sorted(f.order() for f in findings):
        raise Wrong("the findings are not in order")
    rows = given.data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
    for finding in findings:
        if finding.code not in RULES or not finding.message or "\n" in finding.message:
            raise Wrong(f"{finding.code} has no message of one line: {finding.message!r}")
        if given.kind != "notebook" and not 1 <= finding.line <= rows:
            raise Wrong(f"{finding.code} is said of line {finding.line} of {rows}")
        if finding.site.end_line < finding.line:
            raise Wrong(f"{finding.code} ends before it begins")


def _configured(given: Input, folder: Path) -> str:
    """Check that a configuration is used, or rejected in one sentence. No configured path is read or written."""
    path = folder / given.name
    path.write_bytes(given.data)
    try:
        resolved = options.resolve_options({}, start=str(folder))
        settings = options.make_settings(resolved)
    except options.ConfigError as error:
        if not str(error) or "\n" in str(error):
            raise Wrong(f"it is not refused in one sentence: {str(error)!r}") from None
        message, here = str(error), Path.cwd()
        # A configuration may name a file above its folder.
        for place in (here, *here.parents[:2]):
            message = message.replace(str(place), "")
        return message
    finally:
        path.unlink()
    found = check_source(
        "import torch\nscaler.unscale_(optimizer)\n" + RULES["AMP201"].bad_example, str(folder / "a.py"), settings
    )
    _sound(Input("configuration", "a.py", RULES["AMP201"].bad_example.encode() + b"\n" * 3), found)
    return _reported(found)


def _cached(given: Input, path: Path, folder: Path) -> str:
    """Check the findings with a corrupted cache. If the cache is no valid JSON, all findings are required."""
    cache = folder / "cache"
    plain = _reported(check_paths([str(folder)], EVERYTHING).findings)
    settings = Settings(select=frozenset(RULES) - {"AMP904"})
    expected = _reported(check_paths([str(folder)], settings).findings)
    check_paths([str(folder)], settings, cache=str(cache))
    for kept in cache.glob("*.json"):
        text = corrupted(kept.read_text(encoding="utf-8"), given.data.split(b"\n", 1)[0].decode())
        kept.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            json.loads(text)
            whole = True
        except (ValueError, RecursionError):
            whole = False
        found = check_paths([str(folder)], settings, cache=str(cache)).findings
        for finding in found:
            if finding.code not in RULES or not finding.message:
                raise Wrong(f"the cache gives a finding that cannot be shown: {finding}")
        if not whole and _reported(found) != expected:
            raise Wrong("a cache that is no JSON changes what is found")
    for kept in sorted(cache.rglob("*"), reverse=True):
        kept.unlink()
    cache.rmdir()
    return plain


# A process that analyzes inputs.


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def answered(given: Input, folder: Path) -> dict[str, Any]:
    """Return the result or the failure of an input, and its processor time in seconds."""
    start = time.process_time()
    allowed = SECONDS + SECONDS_PER_BYTE * len(given.data)
    signal.setitimer(signal.ITIMER_VIRTUAL, allowed)
    answer: dict[str, Any] = {}
    try:
        answer["found"] = verdict(given, folder)
    except TooLong:
        answer["wrong"] = f"it takes more than {allowed:.0f} s of processor time"
    except Wrong as error:
        answer["wrong"] = str(error)
    except Exception as error:  # noqa: BLE001 - any of them is what is looked for
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        answer["wrong"] = (
            f"{type(error).__name__} at {os.path.basename(where.filename)}:{where.lineno}: {str(error)[:200]}"
        )
        answer["trace"] = traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    answer["seconds"] = time.process_time() - start
    return answer


def serve() -> None:
    """Read inputs from standard input, one on a line, and answer each."""
    signal.signal(signal.SIGVTALRM, _too_long)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a" / "project"
        folder.mkdir(parents=True)
        # Paths in messages are the same in both processes.
        os.chdir(folder)
        for line in sys.stdin:
            kind, called, data = json.loads(line)
            answer = answered(Input(kind, called, base64.b64decode(data)), Path())
            for left in Path().iterdir():
                if left.is_file():
                    left.unlink()
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


class Reader:
    """A process that analyzes inputs under one hash seed. It is restarted if it dies."""

    def __init__(self, hashes: str) -> None:
        self._hashes = hashes
        self._process: subprocess.Popen[bytes] | None = None

    def tell(self, given: Input) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": self._hashes, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
        assert self._process.stdin is not None
        line = json.dumps([given.kind, given.name, base64.b64encode(given.data).decode()]) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._process.stdout, selectors.EVENT_READ)
            if not waiting.select(PATIENCE):
                self.end()
                return {"wrong": f"it does not answer within {PATIENCE:.0f} s", "seconds": PATIENCE}
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        self.end()
        return {"wrong": f"the process ends with {code}", "seconds": 0.0}

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


# All inputs.


class Failure:
    """An input that failed, and the reason."""

    def __init__(self, number: int, given: Input, wrong: str, trace: str = "") -> None:
        self.number = number
        self.given = given
        self.wrong = wrong
        self.trace = trace


class Tally:
    """Number of analyzed inputs of each kind, and the failures."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        #: Numbers of inputs with findings, with only a parse error, and with fixes.
        self.found = 0
        self.unread = 0
        self.fixed = 0
        self.seconds = 0.0
        #: The slowest input: seconds, and number.
        self.longest = (0.0, -1)
        self.failures: list[Failure] = []

    def lines(self) -> Iterator[str]:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.kinds.items()))
        yield f"{sum(self.kinds.values()):,} inputs: {kinds}"
        yield f"{self.found:,} with findings, {self.unread:,} unreadable, {self.fixed:,} fixed"
        yield f"{len(self.failures)} failures, {self.seconds:.0f} s of processor time"
        yield f"longest: {self.longest[0]:.1f} s of processor time (input {self.longest[1]})"


def fuzzed(
    seed: int, numbers: Iterator[int], made_of: Corpus, until: float = float("inf"), *, show: bool = False
) -> Tally:
    """Analyze the inputs with these numbers under both hash seeds, until the time is over."""
    tally = Tally()
    readers = [Reader(hashes) for hashes in HASHES]
    try:
        for number in numbers:
            if time.monotonic() > until:
                break
            given = made(seed, number, made_of)
            for reader in readers:
                reader.tell(given)
            answers = [reader.hear() for reader in readers]
            tally.kinds[given.kind] += 1
            said = answers[0].get("found", "")
            tally.found += '"code"' in said and '"AMP903"' not in said
            tally.unread += '"AMP903"' in said
            tally.fixed += FIXED in said
            tally.seconds += sum(answer["seconds"] for answer in answers)
            tally.longest = max(tally.longest, (max(answer["seconds"] for answer in answers), number))
            wrong = next((answer for answer in answers if "wrong" in answer), None)
            if wrong is not None:
                tally.failures.append(Failure(number, given, wrong["wrong"], wrong.get("trace", "")))
            elif answers[0]["found"] != answers[1]["found"]:
                tally.failures.append(Failure(number, given, "two seeds of hashes differ"))
            else:
                continue
            if show:
                sys.stdout.write(f"{seed}:{number} {given.kind}: {tally.failures[-1].wrong}\n")
                sys.stdout.flush()
    finally:
        for reader in readers:
            reader.end()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Gives the reader what nobody would write, and says where it fails.")
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--inputs", type=int, default=2_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--strange", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", type=int)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return 0
    made_of = corpus(given.folders, strange=given.strange, seed=given.seed)
    if given.only is not None:
        sys.stdout.buffer.write(made(given.seed, given.only, made_of).data)
        return 0
    until = time.monotonic() + 60 * given.minutes if given.minutes is not None else float("inf")
    last = sys.maxsize if given.minutes is not None else given.first + given.inputs
    tally = fuzzed(given.seed, iter(range(given.first, last)), made_of, until, show=True)
    for failure in tally.failures:
        if given.keep is not None:
            given.keep.mkdir(parents=True, exist_ok=True)
            name = f"{given.seed}-{failure.number}-{failure.given.name}"
            (given.keep / name).write_bytes(failure.given.data)
            (given.keep / f"{name}.txt").write_text(f"{failure.wrong}\n{failure.trace}")
    print(f"corpus of {len(made_of.programs)} programs, seed {given.seed}:", "\n".join(tally.lines()), sep="\n")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
