"""Arbitrary file contents: the analysis ends with findings or without, never with a traceback."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marks import places, shown
from samples import reduced

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.settings import Settings

TRAIN = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
CLIP = 8
SCRIPT = "import torch\nfrom mine import criterion, loader, model\n" + TRAIN


def sound(findings: list[Finding], text: str) -> None:
    """Check that findings can be shown: known rules, sorted, inside the text, with messages."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    assert [f.order() for f in findings] == sorted(f.order() for f in findings)
    for finding in findings:
        assert finding.code in RULES
        assert 1 <= finding.line <= rows, shown(findings)
        assert finding.site.end_line >= finding.line
        assert finding.message and "\n" not in finding.message
        assert finding.as_dict()["code"] == finding.code
        for step in finding.trace:
            assert step.text
            assert step.site.line >= 1


def codes(text: str) -> set[str]:
    findings = check_source(text, "train.py")
    sound(findings, text)
    return {finding.code for finding in findings}


# Bytes.


def of_bytes(tmp_path: Path, data: bytes) -> list[Finding]:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    report = check_paths([str(path)], Settings())
    assert report.files == 1
    return report.findings


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\n\n",
        b"   ",
        b"# autocast",
        b"# only GradScaler and autocast in comments\n# and more\n",
        b'"""autocast"""',
        b"\xef\xbb\xbf",
        b"\x0c",
        b"\x0c\n# autocast\n",
        b"pass # autocast \\",
    ],
)
def test_files_with_nothing_in_them_give_nothing(tmp_path: Path, data: bytes) -> None:
    assert of_bytes(tmp_path, data) == []


@pytest.mark.parametrize(
    ("encode", "line"),
    [
        (lambda text: text.encode(), 0),
        (lambda text: b"\xef\xbb\xbf" + text.encode(), 0),
        (lambda text: b"# coding: latin-1\n# \xe9\n" + text.encode("latin-1"), 2),
        (lambda text: b"# -*- coding: cp1252 -*-\nname = '\x80\xe9'\n" + text.encode("cp1252"), 2),
        (lambda text: b"#!/usr/bin/env python\n# vim: set fileencoding=utf-8 :\n" + text.encode(), 2),
        (lambda text: b"# coding: gbk\nname = '" + "中文".encode("gbk") + b"'\n" + text.encode("gbk"), 2),
        (lambda text: b"# coding: UTF8\n" + text.encode(), 1),
        (lambda text: text.replace("\n", "\r\n").encode(), 0),
        (lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), 0),
        (lambda text: text.replace("\n", "\r").encode(), 0),
        (lambda text: b"\x0c\n" + text.encode(), 1),
        (lambda text: b"# page\x0c one\n" + text.replace("for x", "\x0cfor x").encode(), 1),
        (lambda text: ("name = '𝄞 é \u2028 \x85'\n" + text).encode(), 1),
        (lambda text: text.rstrip("\n").encode(), 0),
    ],
)
def test_files_in_many_encodings_are_read(tmp_path: Path, encode: Callable[[str], bytes], line: int) -> None:
    findings = of_bytes(tmp_path, encode(SCRIPT))
    assert places(findings) == {(CLIP + 2 + line, "AMP201")}, shown(findings)


@pytest.mark.parametrize(
    "data",
    [
        b"name = '\xe9'\nautocast\n",
        b"# coding: utf-8\nautocast = '\xff\xfe'\n",
        b"# coding: no-such-codec\nautocast\n",
        b"# coding: rot13\nautocast\n",
        b"# coding: base64\nautocast\n",
        b"\xef\xbb\xbf# coding: latin-1\nautocast\n",
        b"autocast\n\x00\n",
        b"\x00" * 100 + b"autocast",
        # The tokenizer of Python 3.12 ends it in a SystemError.
        b'"""\n"""\n        autocast(x)  # amp: ignore[]\nerr = F.mse_l\x00s(h, y)',
        SCRIPT.encode("utf-16"),
        SCRIPT.encode("utf-32"),
        b"autocast = 1\n" + bytes(range(128, 256)),
    ],
)
def test_files_that_cannot_be_decoded_are_one_finding(tmp_path: Path, data: bytes) -> None:
    findings = of_bytes(tmp_path, data)
    assert [finding.code for finding in findings] in ([], ["AMP903"]), shown(findings)
    if b"autocast" in data:
        (finding,) = findings
        assert finding.message and "\n" not in finding.message
        assert "Traceback" not in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "def autocast(:\n",
        "with autocast(\n",
        "with autocast():\n",
        "autocast = '\n",
        'autocast = """never closed\n',
        "if True:\nautocast\n",
        "    autocast\n  GradScaler\n",
        "\tif autocast:\n        pass\n",
        "autocast = 1 +\n",
        "print autocast\n",
        "exec 'autocast'\n",
        "<<<<<<< HEAD\nautocast\n=======\nGradScaler\n>>>>>>> other\n",
        "return autocast ) ]\n",
        "autocast = 08\n",
        "autocast = f'{'\n",
        "autocast = 'a' b'b'\n",
        "autocast \\ 1\n",
        "match autocast:\n  case 1 | x: pass\n  case\n",
        "$autocast\n",
        "autocast = ?\n",
        "async with autocast as\n",
        "class autocast(:\n",
        "def f(autocast, autocast=1, x): pass\n",
        "autocast\x00\n",
    ],
)
def test_broken_syntax_is_one_finding(text: str) -> None:
    findings = check_source(text, "train.py")
    sound(findings, text)
    assert [finding.code for finding in findings] == ["AMP903"], shown(findings)


@pytest.mark.parametrize(
    "text",
    [
        "return autocast\n",
        "autocast = 1\nyield autocast\n",
        "await autocast\n",
        "break\nautocast()\n",
        "continue\n",
        "def f():\n    nonlocal autocast\n",
        "def f(autocast):\n    global autocast\n",
        "class C:\n    return autocast\n",
        "def f():\n    from torch.amp import *\n    autocast('cuda')\n",
        "x = *autocast\n",
        "del autocast()\n",
        "f(**autocast, *GradScaler)\n",
        "autocast() = 1\n",
        "lambda: (yield autocast)\n",
        "[(yield x) for x in autocast]\n",
        "from __future__ import autocast\n",
        "import torch\nfrom __future__ import annotations\n",
        "try:\n    autocast\nexcept:\n    pass\nexcept ValueError:\n    pass\n",
        "def f():\n    return 1\n    yield autocast\n",
        "async def f():\n    yield autocast\n    return 1\n",
    ],
)
def test_what_only_the_compiler_refuses_is_read(text: str) -> None:
    assert codes(text) <= set(RULES)


# Size and depth.


def test_twenty_thousand_lines() -> None:
    rows = [
        "x{n} = f{n}(x, {n})",
        "if x{n}:\n    y = g(x{n})\nelse:\n    y = h({n})",
        "def f{n}(a, b={n}):\n    return a + b * {n}",
        "class C{n}:\n    size = {n}\n    def forward(self, x):\n        return self.size * x",
        "table{n} = [i * {n} for i in range(10)]",
        "for i in range({n}):\n    total = total + i",
    ]
    lines: list[str] = []
    while len(lines) < 20_000:
        n = len(lines)
        lines += rows[n * 7 % 11 % len(rows)].replace("{n}", str(n)).split("\n")
    text = "\n".join(lines) + "\n" + SCRIPT
    findings = check_source(text, "train.py")
    sound(findings, text)
    assert places(findings) == {(len(lines) + CLIP + 2, "AMP201")}, shown(findings)


def test_hundreds_of_training_functions() -> None:
    body = "".join(f"    {line}\n" for line in TRAIN.splitlines())
    functions = 300
    text = "import torch\n" + "".join(
        f"def train{n}(model, loader, optimizer, criterion):\n{body}" for n in range(functions)
    )
    findings = check_source(text, "train.py")
    assert [finding.code for finding in findings] == ["AMP201"] * functions
    assert [finding.line for finding in findings] == [2 + CLIP + n * 11 for n in range(functions)]


DEEP = 1_000
#: Constructs nested a thousand times. The code after them is analyzed, or the file is reported as too deep.
NESTED = {
    "parentheses": "x = " + "(" * DEEP + "1" + ")" * DEEP,
    "lists": "x = " + "[" * DEEP + "]" * DEEP,
    "dicts": "x = " + "{1: " * DEEP + "2" + "}" * DEEP,
    "calls": "x = " + "f(" * DEEP + "1" + ")" * DEEP,
    "ifs": "".join("  " * n + f"if a{n}:\n" for n in range(DEEP)) + "  " * DEEP + "pass",
    "whiles": "".join(" " * n + "while a:\n" for n in range(DEEP)) + " " * DEEP + "pass",
    "withs": "".join(" " * n + "with autocast('cuda'):\n" for n in range(90)) + " " * 90 + "pass",
    "functions": "".join(" " * n + f"def f{n}():\n" for n in range(95)) + " " * 95 + "pass",
    "classes": "".join(" " * n + f"class C{n}:\n" for n in range(95)) + " " * 95 + "pass",
    "lambdas": "x = " + "lambda: " * DEEP + "1",
    "attributes": "x = a" + ".b" * DEEP,
    "method calls": "x = a" + ".b()" * DEEP,
    "subscripts": "x = a" + "[0]" * DEEP,
    "additions": "x = " + " + ".join(["a"] * DEEP),
    "strings": "x = " + " + ".join(["'a'"] * DEEP),
    "powers": "x = " + " ** ".join(["a"] * DEEP),
    "ands": "x = " + " and ".join(f"a{n}" for n in range(DEEP)),
    "and ors": "x = " + " and ".join(f"(a{n} or b{n})" for n in range(DEEP)),
    "nots": "x = " + "not " * DEEP + "a",
    "minuses": "x = " + "-" * DEEP + "1",
    "comparisons": "x = " + " < ".join(["a"] * DEEP),
    "conditionals": "x = " + "a if b else " * DEEP + "c",
    "elifs": "if a:\n    pass\n" + "".join(f"elif a{n}:\n    pass\n" for n in range(DEEP)),
    "starred": "x = " + "[*" * DEEP + "a" + "]" * DEEP,
    "awaits": "async def f():\n    x = " + "await " * DEEP + "a",
    "walruses": "x = " + "".join(f"(y{n} := " for n in range(150)) + "1" + ")" * 150,
    "comprehensions": "x = " + "[" * 50 + "1" + " for y in z]" * 50,
    "decorators": "@d\n" * DEEP + "def f():\n    pass",
    "targets": "a = " * DEEP + "1",
    "tests of a flag": "".join(f"if flag{n % 7}:\n    x = {n}\n" for n in range(DEEP)),
    "f-strings": 'x = f"' + "{a}" * DEEP + '"',
    "tries": "".join(" " * n + "try:\n" for n in range(19))
    + " " * 19
    + "pass\n"
    + "".join(" " * n + "finally:\n" + " " * n + " pass\n" for n in range(18, -1, -1)),
    "loops": "".join(" " * n + f"for i{n} in a:\n" for n in range(19)) + " " * 19 + "pass",
}


@pytest.mark.parametrize("what", NESTED)
def test_a_thousand_levels(what: str) -> None:
    text = f"{SCRIPT}\n{NESTED[what]}\n"
    assert codes(text) in ({"AMP201"}, {"AMP903"})


@pytest.mark.parametrize("what", ["parentheses", "ifs", "additions", "attributes", "elifs"])
def test_ten_times_deeper_still(what: str) -> None:
    """Code deeper than the limits of parser and analyzer is reported in one sentence."""
    deep = 10 * DEEP
    text = {
        "parentheses": "x = " + "(" * deep + "1" + ")" * deep,
        "ifs": "".join(" " * n + "if a:\n" for n in range(deep // 20)) + " " * (deep // 20) + "pass",
        "additions": "x = " + " + ".join(["a"] * deep),
        "attributes": "x = a" + ".b" * deep,
        "elifs": "if a:\n    pass\n" + "".join(f"elif a{n}:\n    pass\n" for n in range(deep)),
    }[what]
    found = codes(f"{SCRIPT}\n{text}\n")
    assert found in ({"AMP201"}, {"AMP903"})


def test_ten_thousand_ifs_in_a_row() -> None:
    rows = "".join(f"if flag{n}:\n    print({n})\n" for n in range(10_000))
    assert codes(f"{SCRIPT}\n{rows}") == {"AMP201"}


def test_ifs_in_a_row_inside_a_training_loop() -> None:
    rows = "".join(f"    if flag{n}:\n        print({n})\n" for n in range(500))
    assert codes(SCRIPT.replace("    scaler.step", f"{rows}    scaler.step")) == {"AMP201"}


def test_ifs_in_a_row_that_all_decide_something() -> None:
    """With more paths through the loop than the budget allows, a mistake on a feasible path is still found."""
    rows = "".join(f"    if flag{n}:\n        optimizer{n}.zero_grad()\n" for n in range(40))
    assert codes(SCRIPT.replace("    scaler.step", f"{rows}    scaler.step")) == {"AMP201"}


def test_a_literal_of_a_hundred_thousand_items() -> None:
    table = "table = {" + ", ".join(f"'k{n}': ({n}, 'v{n}')" for n in range(20_000)) + "}\n"
    numbers = "numbers = [" + ", ".join(map(str, range(60_000))) + "]\n"
    found = check_source(table + numbers + SCRIPT, "train.py")
    assert [(f.line, f.code) for f in found] == [(CLIP + 4, "AMP201")]


def test_a_line_of_a_million_characters() -> None:
    assert codes(f"{SCRIPT}name = '{'x' * 1_000_000}'\n") == {"AMP201"}
    assert codes(f"{SCRIPT}# {'x' * 1_000_000}\n") == {"AMP201"}


# Circular programs.

CIRCLES = dict(
    part.split("\n", 1)
    for part in """\
## a function calls itself
def f(x):
    return f(x)
f(1)
## two functions call each other
def f(x):
    return g(x)
def g(x):
    return f(x)
f(1)
## a function calls itself twice
def f(x):
    f(x - 1)
    f(x - 2)
    return f(f(x))
f(1)
## a function returns itself
def f():
    return f
f()()()()
## a function takes itself
def f(g):
    return g(g)
f(f)
## a lambda takes itself
(lambda f: f(f))(lambda f: f(f))
## a fixed point
Y = lambda f: (lambda x: x(x))(lambda y: f(lambda *a: y(y)(*a)))
Y(lambda s: lambda n: s(n))(1)
## attributes are computed from each other
class C:
    def __init__(self, x):
        self.a = self.b.of(x)
        self.b = self.a.of(x)
    def reset(self):
        self.a = self.b.of(0)
        self.b = self.a.of(0)
    def step(self, scaler, loss):
        scaler.scale(loss).backward()
        return self.a.of(loss)
## a class inherits from itself
class C(C):
    pass
C().train()
## two classes inherit from each other
class A(B):
    pass
class B(A):
    pass
A().step()
## a class makes itself
class C:
    def __init__(self):
        self.c = C()
C().c.c.c
## an object holds itself
class C:
    def __init__(self):
        self.me = self
    def f(self):
        return self.me.f()
C().f()
## a list holds itself
x = []
x.append(x)
x[0] = x
x[0][0][0].step()
## a dict holds itself
d = {}
d['d'] = d
d['d']['d'].zero_grad()
f(**d)
## a name means itself
x = x
x = x + x
x.step(x)
## names change places
a, b = b, a
for a, b in zip(b, a):
    a, b = b, a
## a property reads itself
class C:
    @property
    def scaler(self):
        return self.scaler
C().scaler.step(1)
## getattr for everything
class C:
    def __getattr__(self, name):
        return getattr(self, name)
C().step.x
## a decorator decorates itself
@f
def f(g):
    return f(g)
@f
@f
def h():
    pass
h()
## a generator yields from itself
def g():
    yield from g()
list(g())
## a context manager enters itself
from contextlib import contextmanager
@contextmanager
def c():
    with c():
        yield
with c():
    pass
## an import of itself
import train
from train import *
from . import train
from .. import x
from ... import *
## partial of partial
from functools import partial
f = partial(partial, partial)
f(f)(f)(f)
## a break in the else of a loop
def f():
    while True:
        for a in x:
            for b in y:
                break
            else:
                break
    for c in z:
        m.backward(1)
def g():
    for a in x:
        while b:
            continue
        else:
            continue
    else:
        return
    scaler.step(1)
## while true
while True:
    while True:
        while True:
            pass
## type of type
T = type('T', (type,), {})
class C(T, metaclass=T):
    pass
C()
## a name that is deleted
x = 1
del x
x.step()
del scaler
scaler.step(optimizer)
## super without a base
class C:
    def __init__(self):
        super().__init__()
        super(C, self).step()
C()
## many bases
class C(A, B, *bases, metaclass=M, **options):
    pass
C(*a, **k)
## arguments that do not fit
def f(a, b=1, *c, d, **e):
    return a
f()
f(1, 2, 3, 4, d=5, a=6)
f(*f, **f)
## arguments by name twice
def f(a):
    pass
f(1, a=2)
f(b=3)
## async everywhere
async def f():
    async with a as b, c:
        async for x in b:
            await x
            yield x
    return_ = [x async for x in f()]
## a match with everything
match x:
    case {'a': [1, *rest], **more} if rest:
        pass
    case C(a=1) | D(2):
        pass
    case [a, b, *_] as c:
        pass
    case None | True | -1 | 'x':
        pass
    case _:
        pass
## nested targets
(a, [b, *c], (d.e, f[0])) = x
for (a, [b, *c]) in x:
    pass
with x as (a, [b]):
    pass
## odd deletes and globals
def f():
    global g
    g = 1
    def h():
        nonlocal_ = 2
        del nonlocal_
    del f.x, g
f()
## exceptions in groups
try:
    pass
except (A, B) as e:
    raise X from e
except C:
    raise
else:
    pass
finally:
    pass
## returns in finally
def f():
    for x in y:
        try:
            return 1
        finally:
            continue
    while x:
        try:
            break
        finally:
            return 2
f()
## walrus in odd places
[y := 1, (z := y)]
while (a := f()) and (b := a):
    pass
print(f'{(c := 1)}')
## slices
x[1:2, ..., ::3] = y[:]
x[a:b] += 1
del x[:]
## calls of literals
1()
'a'()
[]()
{}.x()
(lambda: 1)()()
None.step()
...
""".split("## ")[1:]
)


@pytest.mark.parametrize("what", CIRCLES)
def test_circles_and_oddities(what: str) -> None:
    odd = CIRCLES[what]
    before = codes(f"{odd}\n{SCRIPT}")
    after = codes(f"{SCRIPT}\n{odd}\n")
    # Code below an endless loop is unreachable.
    assert "AMP201" in before or "AMP903" in before or what == "while true"
    assert "AMP201" in after or "AMP903" in after
    codes("import torch\ndef around():\n" + "".join(f"    {line}\n" for line in f"{odd}\n{TRAIN}".splitlines()))
    # With the names of the protocol in place of its own.
    for name, word in (("f", "autocast"), ("C", "GradScaler"), ("x", "scaler"), ("a", "optimizer"), ("c", "loss")):
        codes(f"from torch.amp import autocast, GradScaler\n{odd.replace(f'{name}(', f'{word}(')}\n{TRAIN}")


def test_an_error_leaves_a_function_through_its_finally() -> None:
    found = codes("""\
import torch

class Trainer:
    def train(self):
        try:
            for epoch in range(self.epochs):
                self.train_epoch()
                if self.stop:
                    if self.plots and not self.is_final(epoch):
                        self.validate()
        except BaseException:
            print("stopped")

    def train_epoch(self):
        for batch in self.loader:
            if self.scaler is not None:
                if self.clips():
                    self.scaler.unscale_(self.optimizer)
                self.scaler.step(self.optimizer)

    def validate(self):
        try:
            return self.run()
        finally:
            if self.distributed:
                print("done")
""")
    assert "AMP206" in found


# Random programs.

EXPRESSIONS = st.sampled_from(
    """\
scaler
optimizer
loss
model
self.scaler
self.optimizer
opts["g"]
opts[0]
None
1
"cuda"
scaler.scale(loss)
scaler.get_scale()
model(x)
model.parameters()
x
(x, y)
[scaler, optimizer]
{"a": scaler}
torch.autocast("cuda")
GradScaler("cuda")
GradScaler(enabled=flag)
nullcontext()
scaler if flag else None
flag and scaler
not flag
scaler is None
loss / k
(i + 1) % k == 0
i % k
[o for o in opts]
{o: o for o in opts}
(lambda a: scaler.step(a))
partial(scaler.step, optimizer)
torch.optim.SGD(model.parameters(), lr=0.1)
f(scaler, optimizer)
self.f(loss)
f(*x, **y)
getattr(self, "scaler")
p.grad
p.grad.norm()
[p.grad for p in model.parameters()]
F.cross_entropy(model(x), y)
torch.float16
(s := scaler)
await_
scaler.state_dict()
type(scaler)
super().f
args.fp16
loss.item()
model.half()
""".splitlines()
)
TARGETS = st.sampled_from(
    "scaler|optimizer|loss|model|self.scaler|x|x, y|opts['g']|opts[0]|*x, y|flag|p.grad".split("|")
)
CALLS = st.sampled_from(
    """\
scaler.scale(loss).backward()
loss.backward()
scaler.step(optimizer)
scaler.update()
optimizer.step()
optimizer.zero_grad()
scaler.unscale_(optimizer)
clip_grad_norm_(model.parameters(), 1.0)
self.f(loss)
f(scaler)
scaler.step(opts[0])
p.grad.mul_(2)
p.grad.div_(scaler.get_scale())
torch.save({"a": optimizer.state_dict()}, "x")
model.zero_grad()
scaler.update(2.0)
stack.enter_context(torch.autocast("cuda"))
ctx.__enter__()
ctx.__exit__(None)
torch.autograd.backward(scaler.scale(loss))
g.scaler.step(g.opt)
count.x.y()
train(scaler, optimizer, loss)
scaler.load_state_dict(x)
[scaler.step(o) for o in opts]
print(loss)
torch.autograd.grad(scaler.scale(loss), x)
""".splitlines()
)
SIMPLE = (
    CALLS
    | st.tuples(TARGETS, EXPRESSIONS).map(" = ".join)
    | EXPRESSIONS
    | st.sampled_from(["pass", "break", "continue", "return loss", "return", "raise ValueError(x)", "count += 1"])
    | st.sampled_from(["yield loss", "x: int = 1", "assert flag", "import torch.amp as A", "from x import *", "del x"])
    | st.sampled_from(["global scaler", "await x", "loss /= k", "x = yield", "flag = not flag"])
)


def indented(block: list[str]) -> list[str]:
    return [f" {line}" for row in block for line in row.split("\n")]


def blocks(statement: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(statement, min_size=1, max_size=4).map(indented)
    head = EXPRESSIONS.flatmap(
        lambda e: st.sampled_from(
            [
                f"if {e}:",
                f"while {e}:",
                f"for x in {e}:",
                "for i, (x, y) in enumerate(loader):",
                f"with {e}:",
                "with torch.autocast('cuda'):",
                "with ctx as c, stack:",
                "def f(scaler, optimizer=None, *a, **k):",
                "@torch.autocast('cuda')\ndef train(*args):",
                "@contextmanager\ndef ctx():",
                "class T(Base):",
                "async def f(x):",
            ]
        )
    )
    plain = st.tuples(head, body).map(lambda p: "\n".join([p[0], *p[1]]))
    forked = st.tuples(EXPRESSIONS, body, body).map(lambda p: "\n".join([f"if {p[0]}:", *p[1], "else:", *p[2]]))
    tried = st.tuples(body, body, body).map(
        lambda p: "\n".join(["try:", *p[0], "except ValueError as e:", *p[1], "finally:", *p[2]])
    )
    looped = st.tuples(body, body).map(lambda p: "\n".join(["for o in opts:", *p[0], "else:", *p[1]]))
    matched = st.tuples(EXPRESSIONS, body, body).map(
        lambda p: "\n".join([f"match {p[0]}:", " case 'a' | 1:", *indented(p[1]), " case _:", *indented(p[2])])
    )
    return plain | forked | tried | looped | matched


STATEMENTS = st.recursive(SIMPLE, blocks, max_leaves=25)
HEAD = """\
import torch
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from torch.amp import GradScaler
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
"""


@settings(max_examples=reduced(80, 0.4), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STATEMENTS, min_size=1, max_size=6))
def test_programs_by_chance_are_read(program: list[str]) -> None:
    codes(HEAD + "\n".join(program) + "\n")


@settings(max_examples=reduced(40, 0.4), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STATEMENTS, min_size=1, max_size=4))
def test_methods_by_chance_are_read(program: list[str]) -> None:
    rows = indented(indented(program))
    codes("\n".join([HEAD, "class Trainer(Base):", " def fit(self, loader):", *rows, "Trainer().fit(1)"]) + "\n")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(SCRIPT)))
def test_any_text_inside_a_script_is_read(text: str, at: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    source = SCRIPT[:at] + text + SCRIPT[at:]
    for finding in check_source(source, "train.py"):
        assert finding.code in RULES


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80), st.integers(0, len(SCRIPT)))
def test_any_bytes_inside_a_file_are_read(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.py"
    path.write_bytes(SCRIPT.encode()[:at] + data + SCRIPT.encode()[at:])
    for finding in check_paths([str(path)], Settings()).findings:
        assert finding.code in RULES


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_script_that_breaks_off_anywhere_is_read(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([rule.bad_example for rule in RULES.values()]))
    text = whole[: data.draw(st.integers(0, len(whole)))]
    codes(text)


# The standard library.


def test_a_sample_of_the_standard_library_gives_nothing() -> None:
    """Code without torch, analyzed in full without the prescan, has no findings."""
    root = Path(sysconfig.get_paths()["stdlib"])
    every = sorted(path for path in root.rglob("*.py") if not {"site-packages", "lib2to3", "test"} & set(path.parts))
    sample = every[:: len(every) // 60]
    for path in sample:
        text = path.read_text(encoding="utf-8", errors="replace")
        findings = check_source(text, str(path))
        assert not [finding for finding in findings if finding.code != "AMP903"], f"{path}\n{shown(findings)}"
        assert len(findings) <= 1


def test_the_standard_library_under_the_names_of_the_protocol() -> None:
    """The same code with torch names inserted passes the prescan and is analyzed without failures."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py"))[::24]:
        text = path.read_text(encoding="utf-8", errors="replace")
        text = text.replace(".close(", ".step(").replace(".read(", ".scale(").replace(".append(", ".backward(")
        text = text.replace(".write(", ".unscale_(").replace(".join(", ".zero_grad(").replace(".get(", ".update(")
        for finding in check_source(f"from torch.amp import autocast, GradScaler\n{text}", str(path)):
            assert finding.code in RULES


def test_the_command_says_in_one_sentence_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("autocast = " + "(" * 5000 + ")" * 5000, encoding="utf-8")
    (tmp_path / "bytes.py").write_bytes(b"autocast = '\xff'")
    (tmp_path / "broken.py").write_text("autocast(", encoding="utf-8")
    command = [sys.executable, "-m", "pytest_amp_check", "check", "--output-format", "concise", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ""
    rows = [row for row in done.stdout.splitlines() if "AMP903" in row]
    assert len(rows) == 3, done.stdout


def test_attributes_that_are_computed_from_each_other_are_read_to_an_end() -> None:
    assert "AMP201" in codes(f"{CIRCLES['attributes are computed from each other']}\n{SCRIPT}")
    assert "AMP903" not in codes(f"{CIRCLES['attributes are computed from each other']}\n{SCRIPT}")


REBOUND = {
    "an object of a class from it": "import pdb\nclass X(pdb.Pdb):\n    pass\npdb = X()\npdb.set_trace()\n",
    "an object of a class in it": "import trainer\ntrainer = trainer.Trainer()\ntrainer.fit()\n",
    "the class itself": "from pdb import Pdb\nclass Pdb(Pdb):\n    pass\nPdb().set_trace()\n",
    "an object of itself": "class X(X.Y):\n    pass\nX = X()\nX.run()\n",
    "in turn": "import a\nclass X(a.A):\n    pass\nclass Y(X.B):\n    pass\na = Y()\nX = Y()\na.run()\nX.run()\n",
    "in a function": "import a\ndef make():\n    class X(a.A): pass\n    return X()\na = make()\na.run()\n",
}


@pytest.mark.parametrize("what", REBOUND)
def test_a_name_that_is_rebound_to_an_object_of_its_own_class_is_read(what: str) -> None:
    assert codes(f"{REBOUND[what]}{SCRIPT}") == codes(SCRIPT)
    assert codes(f"{SCRIPT}\n{REBOUND[what]}") == codes(SCRIPT)


@pytest.mark.parametrize(
    "derived",
    [
        "import lib\nclass Own(lib.Loop):\n{}lib = Own()\nlib.run(1, scaler, optimizer)\n",
        "from lib import Loop\nclass Loop(Loop):\n{}Loop().run(1, scaler, optimizer)\n",
    ],
)
def test_what_a_class_derives_from_is_what_the_name_was_where_it_begins(tmp_path: Path, derived: str) -> None:
    loop = """\
import torch


class Loop:
    def run(self, loss, scaler, optimizer):
        scaler.scale(loss).backward()
        self.clip()
        scaler.step(optimizer)
        scaler.update()
"""
    clip = "    def clip(self):\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    start = "import torch\nmodel = torch.nn.Linear(8, 2)\nscaler = torch.amp.GradScaler('cuda')\n"
    start += "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    (tmp_path / "lib.py").write_text(loop, encoding="utf-8")
    (tmp_path / "main.py").write_text(start + derived.format(clip), encoding="utf-8")
    found = [(Path(f.filename).name, f.line, f.code) for f in check_paths([str(tmp_path)], Settings()).findings]
    # The call of the method that the derived class defines.
    assert found == [("lib.py", 7, "AMP201")]
