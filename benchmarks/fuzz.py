r"""Gives the reader what nobody would write, for minutes or hours, and says where it fails.

    python benchmarks/fuzz.py [--inputs 2000 | --minutes 20] [--seed 0] [--strange 0] [--keep FOLDER] [FOLDER ...]
    python benchmarks/fuzz.py --seed 0 --only 123 [FOLDER ...]     # the input of that number again, on standard output

Programs of the tests, the rules' examples, ``fixtures/``, and those of the folders that are named are changed by
tokens, lines and characters; ``--strange`` asks for so many of hypothesmith's besides. They come as source, notebooks,
Markdown, configuration, suppressions, and as caches that somebody spoilt. Of each is asked:

- that it ends in findings or in a sentence, never in an error of the reader's own,
- that it takes no more processor time than its size allows (:data:`SECONDS`, and :data:`SECONDS_PER_BYTE`),
- that two processes whose hashes differ find the same, and make the same fixes,
- that after all fixes the file still parses, and has no more findings of any rule.

Two processes read every input, and are started again where one dies. The exit status is 1 where anything failed; inputs
that did are kept in the folder of ``--keep``.
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

from fuzzing import Corpus, Input, corpus, made, spoilt  # noqa: E402

from pytest_amp_check.frontends import options  # noqa: E402
from pytest_amp_check.protocol.finding import Finding  # noqa: E402
from pytest_amp_check.protocol.rules import RULES  # noqa: E402
from pytest_amp_check.static.engine import Settings, check_paths, check_source  # noqa: E402
from pytest_amp_check.static.fixes.edited_file import EditedFile  # noqa: E402
from pytest_amp_check.static.fixes.fix_files import fix_file  # noqa: E402
from pytest_amp_check.static.project.project_context import ProjectContext  # noqa: E402
from pytest_amp_check.static.sources import source_files  # noqa: E402

#: Processor time that any input may take, in seconds, and what each byte may take besides.
SECONDS = 10.0
SECONDS_PER_BYTE = 0.002
#: Seconds after which a process that does not answer is taken to hang, whatever it says of its processor time.
PATIENCE = 600.0
#: Two seeds of hashes, under which sets of strings come in different orders.
HASHES = ("1", "20")
#: What stands between the findings of an input and what fixes have made of it.
FIXED = "\n-- put right:\n"
EVERYTHING = Settings(select=frozenset(RULES))


class Wrong(Exception):
    """What is wrong with what an input gave, in one sentence."""


class TooLong(BaseException):
    """More processor time was taken than the size of an input allows. Nothing may catch it on the way."""


# One input.


def verdict(given: Input, folder: Path) -> str:
    """What an input gives, in words that are the same whenever it is. Raises :class:`Wrong`, and what goes wrong."""
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
        return _told(found)
    outcome = fix_file(document, found, EVERYTHING, report.tree, unsafe=True)
    if not outcome.has_changed:
        return _told(found)
    path.write_bytes(outcome.fixed_document.encode_text())
    after = check_paths([str(path)], EVERYTHING).findings
    risen = Counter(f.code for f in after) - Counter(f.code for f in found)
    if risen:
        raise Wrong(f"after the fixes there are more of {', '.join(sorted(risen))}")
    if len(after) >= len(found):
        raise Wrong("after the fixes there are no fewer findings")
    if given.kind == "source" and not any(f.code == "AMP903" for f in found):
        _parsed(path)
    return f"{_told(found)}{FIXED}{outcome.fixed_document.raw_text}"


def _parsed(path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source_files.read_python(str(path)))
    except SyntaxError as error:
        raise Wrong(f"after the fixes it is no Python: {error}") from None


def _told(findings: Sequence[Finding]) -> str:
    return "\n".join(json.dumps(finding.as_dict(), sort_keys=True) for finding in findings)


def _sound(given: Input, findings: Sequence[Finding]) -> None:
    """That findings can be shown: of known rules, in order, inside the file, with words on one line."""
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
    """A configuration is used, or refused in one sentence. Nothing is read or written where it says."""
    path = folder / given.name
    path.write_bytes(given.data)
    try:
        resolved = options.resolve_options({}, start=str(folder))
        settings = options.make_settings(resolved)
    except options.ConfigError as error:
        if not str(error) or "\n" in str(error):
            raise Wrong(f"it is not refused in one sentence: {str(error)!r}") from None
        return str(error).replace(os.getcwd(), "")
    finally:
        path.unlink()
    found = check_source(
        "import torch\nscaler.unscale_(optimizer)\n" + RULES["AMP201"].bad_example, str(folder / "a.py"), settings
    )
    _sound(Input("configuration", "a.py", RULES["AMP201"].bad_example.encode() + b"\n" * 3), found)
    return _told(found)


def _cached(given: Input, path: Path, folder: Path) -> str:
    """What a spoilt cache leaves of the findings is sound; where it is no JSON any more, all of them are found."""
    cache = folder / "cache"
    plain = _told(check_paths([str(folder)], EVERYTHING).findings)
    settings = Settings(select=frozenset(RULES) - {"AMP904"})
    expected = _told(check_paths([str(folder)], settings).findings)
    check_paths([str(folder)], settings, cache=str(cache))
    for kept in cache.glob("*.json"):
        text = spoilt(kept.read_text(encoding="utf-8"), given.data.split(b"\n", 1)[0].decode())
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
        if not whole and _told(found) != expected:
            raise Wrong("a cache that is no JSON changes what is found")
    for kept in sorted(cache.rglob("*"), reverse=True):
        kept.unlink()
    cache.rmdir()
    return plain


# A process that reads inputs.


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def answered(given: Input, folder: Path) -> dict[str, Any]:
    """What an input gives, or what is wrong with it, and the processor time that it took."""
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
        # What is said of files is the same in both processes then.
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
    """A process that reads inputs under one seed of hashes, started again where it dies."""

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


# All of them.


class Failure:
    """An input that failed, and why."""

    def __init__(self, number: int, given: Input, wrong: str, trace: str = "") -> None:
        self.number = number
        self.given = given
        self.wrong = wrong
        self.trace = trace


class Tally:
    """How many inputs of each kind were read, and what failed."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        #: With findings, with nothing but that it cannot be read, and with fixes made.
        self.found = 0
        self.unread = 0
        self.fixed = 0
        self.seconds = 0.0
        #: The longest that an input took: seconds, and its number.
        self.longest = (0.0, -1)
        self.failures: list[Failure] = []

    def lines(self) -> Iterator[str]:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(self.kinds.items()))
        yield f"{sum(self.kinds.values()):,} inputs: {kinds}"
        yield f"{self.found:,} with findings, {self.unread:,} that cannot be read, {self.fixed:,} put right"
        yield f"{len(self.failures)} failures, {self.seconds:.0f} s of processor time"
        yield f"longest: {self.longest[0]:.1f} s of processor time (input {self.longest[1]})"


def fuzzed(
    seed: int, numbers: Iterator[int], made_of: Corpus, until: float = float("inf"), *, show: bool = False
) -> Tally:
    """Have the inputs of these numbers read under both seeds of hashes, as long as there is time."""
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
