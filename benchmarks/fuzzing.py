"""Unusual inputs for the analyzer: programs of this project and of others, changed by tokens, lines and characters.

An input depends only on a seed and its number, so that it can be made again. :mod:`fuzz` runs the analyzer on inputs.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_amp_check.frontends.options import OPTIONS
from pytest_amp_check.protocol.rules import RULES

ROOT = Path(__file__).resolve().parents[1]
#: Largest size of a corpus program in characters. Longer files are cut: most new code is at the head of a file.
LONGEST = 12_000
#: The share of programs whose changes keep them valid, and the number of attempts for each change.
VALID = 0.6
TRIES = 4


class Input(NamedTuple):
    """One fuzzing input: its kind, its file name, and its bytes."""

    kind: str
    name: str
    data: bytes


class Corpus(NamedTuple):
    """The texts that inputs are made from."""

    programs: list[str]
    notebooks: list[str]
    documents: list[str]


# Corpus.


def corpus(folders: Sequence[str] = (), *, strange: int = 0, seed: int = 0) -> Corpus:
    """Collect programs of this project and of ``folders``, and ``strange`` programs of hypothesmith if installed."""
    programs = dict.fromkeys(text for rule in RULES.values() for text in (rule.bad_example, rule.good_example))
    for path in (*ROOT.glob("fixtures/**/*.py"), *ROOT.glob("tests/static/silent/*.py")):
        programs.setdefault(path.read_text(encoding="utf-8"))
    for path in ROOT.glob("tests/**/*.py"):
        programs.update(dict.fromkeys(_written_in(path)))
    notebooks: list[str] = []
    documents = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md"))]
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".py", ".ipynb", ".md") and path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                if path.suffix == ".py":
                    programs.setdefault(text[: text.rfind("\n", 0, LONGEST) + 1])
                elif len(text) <= 20 * LONGEST:
                    (notebooks if path.suffix == ".ipynb" else documents).append(text)
    return Corpus(sorted(filter(str.strip, programs)) + list(_strange(strange, seed)), notebooks, documents)


def _written_in(path: Path) -> Iterator[str]:
    """Yield programs that tests contain as strings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text.count("\n") > 2 and re.search(r"autocast|caler|backward\(", text):
            yield text


def _strange(number: int, seed: int) -> Iterator[str]:
    """Yield programs from a grammar: valid but meaningless."""
    if not number:
        return
    try:
        import hypothesmith
    except ImportError:
        sys.stderr.write("hypothesmith is not installed: no programs of its grammar\n")
        return
    import hypothesis

    made: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(hypothesmith.from_node())
    def take(source: str) -> None:
        made.append(source)

    take()
    yield from made


# Changes of a text.

#: Words of mixed precision and of Python, and texts that may confuse a parser.
WORDS = (
    "torch scaler optimizer loss model autocast GradScaler() .backward() .step( .update() .unscale_( .scale( .half() "
    ".float() float16 torch.bfloat16 clip_grad_norm_ zero_grad() state_dict() load_state_dict( None True False 0 1 -1 "
    "1e9 65505.0 -inf nan 1e-8 10**10 if else: elif for in while True: with as def class return yield await async "
    "lambda: try: except: finally: raise del global nonlocal import from * ** -> := == != < > is not and or ( ) [ ] { "
    "} , : ; . ... @ = += /= # \\ ' \" ''' \"\"\" f' b\" r''' self cls super() accumulation_steps % // enabled=False "
    "match case _ type print( exec( __class__ __getattr__ nn.Module torch.no_grad() @torch.no_grad() is_available()"
).split(" ")
#: Characters that end lines, are invisible, reverse the text direction, or expand to several characters.
CHARACTERS = "\x00\x01\x07\x0b\x0c\x1a\x1b\x1c\x85\xa0\xad\u2028\u2029\u200b\u202e\ufeff\uffff\U0001d11e\u0130ßéﬁ²٣中"
#: Comments that are directives of this tool, or nearly.
PRAGMAS = (
    "# amp: ignore[{code}]",
    "# amp: ignore",
    "# amp: ignore-file[{code}]",
    "# amp: ignore-file",
    "# amp: ignore[{code}",
    "# amp:ignore[ {code} ,, {code}, no-such-rule] and why",
    "# amp: ignore[]",
    "# amp: ignore {code}, {code}",
    "# noqa: {code}",
    "# noqa",
    "# noqa:{code},E501 # amp: ignore[{code}]",
    "#noqa : {code} {code}",
    "# NOQA:AMP",
    "# type: ignore[no-any] # noqa: F401,{code}",
    "# amp: ignore[AMP902, AMP9]",
    "# amp: amp: amp: ignore[AMP",
)
_TOKENS = re.compile(r"\w+|[ \t]+|\n|[^\w\s]+|\s", re.ASCII)


def _tokens(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Drop, double, exchange or replace some tokens."""
    tokens = _TOKENS.findall(text)
    if not tokens:
        return chance.choice(WORDS)
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(tokens)), chance.randrange(len(tokens))
        what = chance.randrange(5)
        if what == 0:
            tokens[at] = ""
        elif what == 1:
            tokens[at] *= 2
        elif what == 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif what == 3:
            tokens[at] = tokens[other]
        else:
            tokens[at] = chance.choice(WORDS)
    return "".join(tokens)


def _lines(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Drop, double, move or indent some lines, or insert lines of another program."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        what = chance.randrange(6)
        if what == 0:
            del lines[at : at + chance.randint(1, 3)]
        elif what == 1:
            lines[at:at] = lines[at : at + chance.randint(1, 5)]
        elif what == 2:
            lines.insert(other, lines.pop(at))
        elif what == 3:
            number = chance.randint(1, 12)
            lines[at : at + number] = ["    " + line for line in lines[at : at + number]]
        elif what == 4:
            head = chance.choice(
                ("if flag:", "for i in x:", "while True:", "with autocast('cuda'):", "try:", "def f():")
            )
            indent = re.match(r"\s*", lines[at]).group()  # type: ignore[union-attr]
            lines[at] = f"{indent}{head}\n{indent}    {lines[at].strip() or 'pass'}"
        else:
            strange = chance.choice(programs).split("\n")
            first = chance.randrange(len(strange))
            lines[at:at] = strange[first : first + chance.randint(1, 8)]
        lines = lines or [""]
    return "\n".join(lines)


def _characters(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Drop or insert some characters."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(text))
        new = chance.choice((chance.choice(CHARACTERS), chr(chance.randrange(32, 127)), ""))
        text = text[:at] + new + text[at + chance.randint(0, 2) :]
    return text


def _repeated(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Insert many copies of a few characters, from the text or from the targets of patterns."""
    at = chance.randint(0, len(text))
    fragments = (
        text[at : at + chance.randint(1, 12)],
        chance.choice(WORDS),
        chance.choice(PRAGMAS),
        chance.choice(CHARACTERS),
    )
    fragment = chance.choice((*fragments, chance.choice(" \t#,=([{<>'\"`~*?%!\\")))
    if chance.random() < 0.5:
        fragment = fragment.replace("\n", " ")
    return text[:at] + fragment * (chance.choice((100, 1_000, 5_000)) // max(len(fragment), 1)) + text[at:]


def _nested(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Add a deeply nested construct after the program or in one of its lines."""
    depth = chance.choice((5, 50, 150, 500, 2_000))
    before, after = chance.choice(
        (
            *(("(", ")"), ("[", "]"), ("{1: ", "}"), ("f(", ")"), ("not ", ""), ("-", ""), ("a + ", "")),
            *(("lambda: ", ""), ("x if y else ", ""), ("scaler.scale(", ")"), ("a.", ""), ("await ", ""), ("a[", "]")),
        )
    )
    if chance.random() < 0.2:
        depth = min(depth, 150)
        head = chance.choice(("if a:", "for a in b:", "with autocast():", "def f():", "class C:", "try:", "while a:"))
        made = "".join(" " * n + head + "\n" for n in range(depth)) + " " * depth + "pass\n"
        return f"{text}\n{made}"
    return f"{text}\nx = {before * depth}loss{after * depth}\n"


def _chained(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Repeat a statement of the program, or a branch around the statement, many times."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    indent = re.match(r"\s*", lines[at]).group()  # type: ignore[union-attr]
    number = chance.choice((3, 10, 40))
    said = lines[at].strip()
    if chance.random() < 0.5:
        lines[at:at] = [f"{indent}if flag{n}: {said}" for n in range(number)]
    else:
        lines[at:at] = [lines[at]] * number
    return "\n".join(lines)


def _suppressed(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Insert suppression comments, valid or nearly valid, after lines and on separate lines."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(lines))
        said = chance.choice(PRAGMAS).replace("{code}", chance.choice((*RULES, "AMP2", "E501", "amp201")))
        lines[at] = (
            f"{lines[at]}{chance.choice(('', ' ', '  '))}{said}" if chance.random() < 0.7 else f"{said}\n{lines[at]}"
        )
    return "\n".join(lines)


def _spliced(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Join the head of this program and the tail of another."""
    other = chance.choice(programs)
    return text[: chance.randint(0, len(text))] + other[chance.randint(0, len(other)) :]


def _ended(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Replace some or all line ends."""
    end = chance.choice(("\r\n", "\r", "\n\r", "\x0c\n", " \\\n", "\n\n", ";"))
    return text.replace("\n", end, chance.choice((1, -1)))


Change = Callable[[random.Random, str, Sequence[str]], str]
CHANGES: tuple[Change, ...] = (
    *(_tokens, _tokens, _tokens, _lines, _lines, _lines, _characters, _repeated),
    *(_nested, _chained, _suppressed, _spliced, _ended),
)


# Inputs.


def _changed(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Apply some changes to a program. Most programs stay valid, because invalid programs are only parsed."""
    valid = chance.random() < VALID
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        for _ in range(TRIES):
            made = chance.choice(CHANGES)(chance, text, programs)
            if not valid or _parses(made):
                text = made
                break
    return text


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _source(chance: random.Random, made_of: Corpus) -> Input:
    data = _changed(chance, chance.choice(made_of.programs), made_of.programs).encode("utf-8", "surrogatepass")
    way = chance.random()
    if way < 0.02:
        data = (
            b"# coding: " + chance.choice((b"latin-1", b"utf-8", b"utf-16", b"rot13", b"", b"undefined")) + b"\n" + data
        )
    elif way < 0.04:
        data = chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\x00")) + data
    elif way < 0.06:
        data = data[: chance.randint(0, len(data))]
    return Input("source", chance.choice(("train.py", "train.py", "train.py", "train.pyi", "__init__.py")), data)


#: Lines that only IPython understands, or that look like IPython.
MAGICS = (
    "%matplotlib inline", "!pip install torch", "x = !ls", "%%time", "%%bash", "%%writefile train.py", "torch.amp?",
    "?loss", "%time loss.backward()", "%timeit -n 3 -r 2 scaler.step(optimizer)", "ls -la", "cd ..", "%%sql\nselect",
    "x = %env HOME", "; f a b", ", f a b", "/f a", "files = !ls \\\n -la", "%%capture out", "a, b = %magic x", "!!ls",
)  # fmt: skip


def _notebook(chance: random.Random, made_of: Corpus) -> Input:
    if made_of.notebooks and chance.random() < 0.3:
        text = chance.choice(made_of.notebooks)
    else:
        cells: list[dict[str, Any]] = []
        for _ in range(chance.randint(1, 4)):
            source = _changed(chance, chance.choice(made_of.programs), made_of.programs).replace("\r", "\n")
            lines = source.split("\n")
            for _ in range(chance.randint(0, 3)):
                lines.insert(
                    chance.choice((0, chance.randint(0, len(lines)))),
                    chance.choice(MAGICS) * chance.choice((1, 1, 1, 300)),
                )
            source = "\n".join(lines)
            given: Any = source if chance.random() < 0.5 else source.splitlines(keepends=True)
            kind = chance.choice(("code", "code", "code", "code", "markdown", 3))
            cells.append({"cell_type": kind, "metadata": {}, "source": given, "outputs": [], "execution_count": None})
        holder: Any = {
            "cells": cells,
            "metadata": {"kernelspec": {"language": chance.choice(("python", "python", "R", 1))}},
        }
        if chance.random() < 0.1:
            holder = {"worksheets": [holder]}
        text = json.dumps({**holder, "nbformat": 4, "nbformat_minor": 5}, indent=chance.choice((None, 1)))
    if chance.random() < 0.2:
        text = chance.choice((_tokens, _characters, _repeated))(chance, text, made_of.programs)
    return Input("notebook", "train.ipynb", text.encode("utf-8", "surrogatepass"))


def _document(chance: random.Random, made_of: Corpus) -> Input:
    if made_of.documents and chance.random() < 0.3:
        text = chance.choice(made_of.documents)
    else:
        parts: list[str] = []
        for _ in range(chance.randint(1, 4)):
            fence = chance.choice(("```", "````", "~~~", "``", "``` "))
            head = chance.choice(("", "> ", "    ", "- ", "1. ", "> > - ", "\t"))
            said = chance.choice(
                ("python", "py", "python3 title=x", "{python}", "{.python .x}", "pycon", "", "{code-cell} python")
            )
            program = _changed(chance, chance.choice(made_of.programs), made_of.programs)
            rows = [fence + said, *program.split("\n"), chance.choice((fence, fence, fence + "`", ""))]
            parts.append("\n".join(head + row for row in rows))
        text = "\n\nSome words.\n\n".join(parts)
    if chance.random() < 0.3:
        text = chance.choice((_lines, _characters, _repeated, _tokens))(chance, text, made_of.documents or [""])
    return Input("document", "README.md", text.encode("utf-8", "surrogatepass"))


#: Values that some option accepts, and values that no option accepts.
VALUES = (
    '"AMP201"', '["AMP201", "AMP2"]', '["ALL"]', '"ALL"', "[]", '""', '" "', "true", "false", "0", "1", "-1",
    "9999999999", "1.5", "nan", "inf", "1979-05-27", "{}", '{"AMP201" = "error"}', '{"*.py" = ["AMP201"]}',
    '["*.py:AMP201"]', "[[[]]]", '["no-such-rule"]', '"error"', '"json"', '"2.4"', '["cuda"]', '{"f" = ["step"]}',
    '["AMP201=error"]', '["**/[!a"]', '["!x"]', '"\\u0000"', '"\\u202e"', '["../x"]', '"1 GiB"', '[1, "a", true]',
    "'''\n'''", '"float16"', '["["]', '["("]',
)  # fmt: skip


def _configuration(chance: random.Random, made_of: Corpus) -> Input:
    lines: list[str] = []
    for _ in range(chance.randint(0, 6)):
        option = chance.choice(OPTIONS)
        key = (
            option.key
            if chance.random() < 0.95
            else chance.choice((option.name, option.key[:-1], '"a b"', "select.x", ""))
        )
        value = option.kind.example if chance.random() < 0.4 else chance.choice(VALUES)
        lines.append(f"{key} = {value}")
    text = "\n".join(dict.fromkeys(lines)) + "\n"
    name = chance.choice(("pyproject.toml", "pyproject.toml", "amp-check.toml", ".amp-check.toml"))
    if name == "pyproject.toml":
        text = (
            chance.choice(
                ("[tool.amp-check]\n", "[tool.amp-check]\n", '[tool."amp-check"]\n', "tool.amp-check.x = 1\n")
            )
            + text
        )
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        text = chance.choice((_tokens, _lines, _characters, _repeated, _ended))(chance, text, VALUES)
    return Input("configuration", name, text.encode("utf-8", "surrogatepass"))


def _cached(chance: random.Random, made_of: Corpus) -> Input:
    """Return a program whose cache is to be corrupted. Its first line is the seed of the corruption."""
    program = f"# {chance.randrange(1 << 30)}\n" + chance.choice(made_of.programs)
    return Input("cache", "train.py", program.encode("utf-8", "surrogatepass"))


def corrupted(text: str, seed: str) -> str:
    """Return the text of a cache with random changes."""
    chance = random.Random(seed)  # noqa: S311 - it is made again from the same seed
    for _ in range(chance.randint(1, 3)):
        change = chance.choice((_tokens, _characters, _repeated, _cut, _values, _values, _values))
        text = change(chance, text, [text])
    return text


def _cut(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    return text[: chance.randint(0, len(text))]


def _values(chance: random.Random, text: str, programs: Sequence[str]) -> str:
    """Replace one JSON value by another."""
    try:
        held = json.loads(text)
    except ValueError:
        return text
    at: Any = held
    for _ in range(30):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = chance.choice(keys)
        if not isinstance(at[key], (dict, list)) or not at[key] or chance.random() < 0.15:
            at[key] = chance.choice(
                (None, True, -1, 0, 10**30, 1.5, "", "x", "/etc/passwd", [], {}, [[]], at[key], "AMP201")
            )
            break
        at = at[key]
    return json.dumps(held)


Making = Callable[[random.Random, Corpus], Input]
#: Percentage of inputs of each kind.
KINDS: tuple[tuple[Making, int], ...] = (
    *((_source, 62), (_notebook, 12)),
    *((_document, 10), (_configuration, 12), (_cached, 4)),
)


def made(seed: int, number: int, made_of: Corpus) -> Input:
    """Return the input with a number. For the same corpus, it is always the same input."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311 - it is made again from the same seed
    making = chance.choices([make for make, _ in KINDS], [weight for _, weight in KINDS])[0]
    return making(chance, made_of)
