"""Every regular expression that is applied to user input: twice the input is twice the work, for any content."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

import pytest
from regex_steps import Pattern, TooMany
from samples import EXHAUSTIVE

import pytest_amp_check
from pytest_amp_check.protocol.messages import MESSAGES
from pytest_amp_check.static.project import import_reach
from pytest_amp_check.static.sources import newer_syntax
from pytest_amp_check.static.sources.patterns import fragile_math, low_precision

# Some of the modules with expressions need it.
pytest.importorskip("torch")

PACKAGE = Path(pytest_amp_check.__file__).parent
FUNCTIONS = ("compile", "match", "fullmatch", "search", "finditer", "findall", "sub", "split")
#: Modules without a match are not parsed, because parsing takes a hundred times as long.
CALLED = re.compile(rf"\bre\s*\.\s*(?:{'|'.join(FUNCTIONS)})\b")
#: Functions that match at one position, not at every position.
AT_ONE_PLACE = {"match", "fullmatch"}
#: Expressions that are built at their use, with examples of the result: by module and source.
MADE: dict[tuple[str, str], Sequence[str | bytes]] = {
    ("static/libraries/scalers.py", "tests"): [r"\bscaler is (?:not )?None|\bif (?:not )?(?:\w+\.)*scaler\b"],
    ("static/cross_file.py", "f'(?<!def )\\\\b{re.escape(name)}\\\\b'"): [r"(?<!def )\bscaler\b"],
    (
        "static/interpreter/expressions/functions.py",
        "f'\\\\bwith\\\\b.{{0,200}}\\\\b{function.name}\\\\(.{{0,200}}\\\\bas\\\\b'",
    ): [r"\bwith\b.{0,200}\bregion\(.{0,200}\bas\b"],
    ("static/interpreter/disabled_flags.py", "by_name"): [r"\bsetattr\(\s{0,8}cfg\b|\bcfg\.__dict__"],
    ("static/cross_file.py", r"f'\\b{called}\\.{method}\\s*\\('"): [r"\bscaler\.update\s*\("],
    ("static/cross_file.py", r"f'\\bdef {method}\\('"): [r"\bdef zero_grad\("],
    ("static/cross_file.py", r"f'\\bself\\.{called}\\.{method}\\s*\\('"): [r"\bself\.scaler\.update\s*\("],
    ("static/cross_file.py", r"f'(?<!\\bself\\.)\\b{called}\\.{method}\\s*\\('"): [
        r"(?<!\bself\.)\bscaler\.update\s*\("
    ],
    (
        "static/cross_file.py",
        r"f'\\bself\\.{called}\\s{{0,8}}=\\s{{0,8}}(?:\\w{{1,80}}\\.){{0,8}}_?[A-Z]\\w{{0,80}}\\('",
    ): [r"\bself\.scaler\s{0,8}=\s{0,8}(?:\w{1,80}\.){0,8}_?[A-Z]\w{0,80}\("],
    ("static/cross_file.py", r"f'\\b{cls}\\b'"): [r"\bTrainer\b"],
    ("static/cross_file.py", "classes"): [r"^class\s+(\w+)"],
    ("static/cross_file.py", "given"): [
        r"(?:step|[Ss]caler)\w{0,40}\s{0,8}\([^()]{0,400}\boptimizer\b",
        r"\.zero_grad\s{0,8}\(\s{0,8}(?:\w{1,80}\.){0,8}optimizer\s{0,8}[,)]",
    ],
    ("static/sources/newer_syntax.py", "pattern"): [pattern for _, pattern in newer_syntax._STATEMENTS],
    ("static/sources/patterns/low_precision.py", r"name + b'\\([^)]{0,200}?(?:half|float16|dtype)'"): [
        rb"\.to\([^)]{0,200}?(?:half|float16|dtype)",
        rb"\.type\([^)]{0,200}?(?:half|float16|dtype)",
    ],
    ("static/interpreter/disabled_flags.py", 'f"""\\\\[["\']{re.escape(key)}["\']\\\\]\\\\s*[-+*/|&]?=(?!=)"""'): [
        r"""\[["']key["']\]\s*[-+*/|&]?=(?!=)"""
    ],
    (
        "static/interpreter/disabled_flags.py",
        r"f'\\.{attribute}\\b\\s*(?:[-+*/|&,)]|:[^=\\n]{{1,{MAX_ANNOTATION}}})?=(?!=)'",
    ): [r"\.amp\b\s*(?:[-+*/|&,)]|:[^=\n]{1,200})?=(?!=)"],
    (
        "static/interpreter/disabled_flags.py",
        r"f'{name}(?:\\[[^][\\n]{{1,80}}\\]\\s{{0,8}}[-+*/|&]?=(?!=)|\\.update\\()'",
    ): [r"cfg(?:\[[^][\n]{1,80}\]\s{0,8}[-+*/|&]?=(?!=)|\.update\()"],
    ("static/interpreter/disabled_flags.py", r"f'\\b{function}\\b'"): [r"\btrain\b"],
    ("static/sources/source_files.py", "'|'.join(map(translate, names)) or _NOTHING"): [translate("*_pb2*.py")],
    ("static/sources/source_files.py", "'|'.join(map(translate, tails)) or _NOTHING"): [translate("*/src/*/gen*.py")],
    ("static/sources/patterns/lines.py", "pattern"): [
        low_precision._CAST_STATEMENT,
        low_precision._CAST_TO_CHOICE,
        low_precision._LOW_TENSOR,
        low_precision._GIVEN_DTYPE,
        low_precision._GIVEN_TO_CLASS,
        low_precision._RETURNED_CAST,
    ],
    ("static/sources/patterns/fragile_math.py", "_UPDATE % {b'name': re.escape(name)}"): [
        fragile_math._UPDATE % {b"name": b"ema"}
    ],
    ("static/project/import_reach.py", "b'(?<![\\\\w.])(?:\\\\w+\\\\.)?' + function.encode() + _ARGUMENTS"): [
        rb"(?<![\w.])(?:\w+\.)?norm" + import_reach._ARGUMENTS
    ],
    ("static/fixes/layout.py", "test"): [r"\b(?:import|def|class)\b|\bname\b(?!\s*[.(\[])"],
    ("runtime/explain/operands.py", r"f'\\b{words}(?:Tensor)?\\b'"): [r"\b(?:Half|c10::Half)(?:Tensor)?\b"],
    ("protocol/messages/message.py", "pattern"): [
        pattern for message in MESSAGES.values() for pattern in message.patterns
    ],
}
#: Expressions with a known limit of their input, with the reason.
BOUNDED: dict[str | bytes, str] = {
    rb"(\w+) *(?::[^=\n]*)?$": "100 bytes before an assignment",
    rb"model\w*(?:\s*=.*\))?$": "200 bytes before a cast",
    **{pattern: "1,000 characters of one line" for _, pattern in newer_syntax._STATEMENTS},
    newer_syntax._UNPARENTHESIZED.pattern: "1,000 characters of one line",
    r"invalid choice: '([^']*)' \(choose from (.*)\)$": "what argparse says of one argument",
}
#: Largest ratio of the steps for the second half of an input to the steps for the first half.
LINEAR = 2.5
#: Repetitions in the three inputs. Twice as many take twice the time, and have the same verdicts.
REPETITIONS = (12, 24, 48) if EXHAUSTIVE else (6, 12, 24)


class Use(NamedTuple):
    """An expression of a module, and a flag for matching at one position only."""

    module: str
    pattern: str | bytes
    flags: int
    fixed: bool


def uses(path: Path) -> Iterator[Use]:
    """Yield the regular expressions of a module."""
    name = path.relative_to(PACKAGE).as_posix()
    source = path.read_text(encoding="utf-8")
    if CALLED.search(source) is None:
        return
    tree = ast.parse(source)
    known = vars(importlib.import_module(f"pytest_amp_check.{name.removesuffix('.py').replace('/', '.')}"))
    nodes = list(ast.walk(tree))
    called: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called.setdefault(node.value.id, set()).add(node.attr)
    kept = {
        id(node.value): node.targets[0].id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes:
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in FUNCTIONS
        ):
            continue
        ways = called.get(kept.get(id(node), ""), set()) if node.func.attr == "compile" else {node.func.attr}
        given = [each for each in node.args[1:] if ast.unparse(each).startswith("re.")]
        flags = eval(ast.unparse(given[0])) if given else 0  # noqa: S307 - it is our own source
        words = ast.unparse(node.args[0])
        made = MADE.get((name, words)) or [eval(words, dict(known))]  # noqa: S307 - it is our own source
        for pattern in made:
            yield Use(name, pattern, int(flags), bool(ways) and ways <= AT_ONE_PLACE)


USES = {use for path in sorted(PACKAGE.rglob("*.py")) for use in uses(path)}


def ratio(pattern: str | bytes, flags: int, *, fixed: bool, words: bool = False) -> tuple[float, str]:
    """Return the ratio of steps for the second half of the worst input to steps for the first half, and the input.

    An input above the limit ends the search.
    """
    counted = Pattern(pattern, flags, words=words)
    steps = counted.matched if fixed else counted.searched
    worst = (0.0, "")
    for start, pump, end in dict.fromkeys(counted.inputs()):
        try:
            least, middle, most = (steps(start + pump * times + end) for times in REPETITIONS)
        except TooMany:
            return float("inf"), start + pump * 2 + end
        worst = max(worst, ((most - middle) / max(middle - least, 1), start + pump * 2 + end))
        if worst[0] > LINEAR:
            break
    return worst


@pytest.mark.parametrize("use", sorted(USES, key=str), ids=lambda use: f"{use.module}:{use.pattern!r}"[:80])
def test_twice_the_input_is_twice_the_work(use: Use) -> None:
    # Pasted text is split into short words before.
    words = use.module == "protocol/messages/message.py"
    factor, example = ratio(use.pattern, use.flags, fixed=use.fixed, words=words)
    assert use.pattern in BOUNDED or factor <= LINEAR, example


def test_what_is_bounded_is_in_use_and_would_grow() -> None:
    found = {use.pattern: use for use in USES}
    for pattern in BOUNDED:
        assert ratio(pattern, found[pattern].flags, fixed=False)[0] > LINEAR


@pytest.mark.parametrize(
    ("pattern", "flags"),
    [
        (r"\s+$", 0),
        (r"(a|a)*b", 0),
        (r"(?:a+)+b", 0),
        (r"#+\s*x", 0),
        (r"\[[^\]]*\]", 0),
        (r"\w*x\w*y", 0),
        (r"^\s*\s*x", re.MULTILINE),
        (r'"(?:[^"\\]|\\.)*"', 0),
        (rb"from[ \t]+(\.*)((?:\w[\w.]*)?)[ \t]+import", 0),
    ],
)
def test_a_pattern_that_is_not_linear_is_detected(pattern: str | bytes, flags: int) -> None:
    assert ratio(pattern, flags, fixed=False)[0] > LINEAR


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(\w+)\s*=\s*(\d+)(?:px|em)?", "left = 10px right=7 ,bottom = x top =1em"),
        (r"a*?b|\bc+(?!d)", "aab ccd cc acab"),
        (r"(?<!x)(['\"])(.*?)\1", "x'a' 'b' \"c'\" 'd"),
        (r"^\s*#[^\n]*$", "a\n # b\n#c\n  d # e"),
        (r"(?:ab|a)(?:bc|c)?", "abc ac ab abbc"),
        (r"\S+?(?=,|$)|[^\W\d]{2,3}", "one,two,, t3 four"),
    ],
)
def test_the_matcher_finds_what_re_finds(pattern: str, text: str) -> None:
    expected = [match.span() for match in re.finditer(pattern, text, re.MULTILINE)]
    assert list(Pattern(pattern, re.MULTILINE).spans(text)) == expected != []
