"""Control flow: a mistake is found behind every construct, and correct use of the same construct stays silent.

Each case is a whole program: the text of :data:`HEAD` and the case. A mark names each expected finding on the line of
the finding.
"""

from __future__ import annotations

from itertools import product
from textwrap import dedent, indent

import pytest
from case_groups import check_each, in_groups
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import argparse
import contextlib
import functools
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_

args = argparse.ArgumentParser().parse_args()
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.zeros(64).long())
loader = torch.utils.data.DataLoader(data, batch_size=4)
"""
LOSS = """\
optimizer.zero_grad()
with autocast("cuda"):
    loss = criterion(model(x), y)
"""
STEP = """\
scaler.step(optimizer)
scaler.update()
"""
CASES: list[tuple[str, str]] = []


def case(name: str, source: str) -> None:
    CASES.append((name, HEAD + dedent(source)))


def loop(*parts: str, setup: str = 'scaler = GradScaler("cuda")', head: str = "for x, y in loader:") -> str:
    return f"{dedent(setup)}\n{head}\n" + "".join(indent(dedent(part).strip("\n") + "\n", "    ") for part in parts)


# The same condition, tested twice.

#: Spellings of the same condition, each with False if it is the negated condition.
SAME: dict[str, list[tuple[str, bool]]] = {
    "scaler": [
        ("scaler is not None", True),
        ("scaler is None", False),
        ("scaler", True),
        ("not scaler", False),
        ("scaler != None", True),
        ("None is not scaler", True),
        ("bool(scaler)", True),
        ("not (scaler is None)", True),
    ],
    "use_amp": [("use_amp", True), ("not use_amp", False), ("use_amp is True", True), ("bool(use_amp)", True)],
    "args.fp16": [
        ("args.fp16", True),
        ("not args.fp16", False),
        ("args.fp16 == True", True),
        ("getattr(args, 'fp16')", True),
        ("args.fp16 is True", True),
    ],
    "precision": [
        ("args.precision == 'fp16'", True),
        ("'fp16' == args.precision", True),
        ("args.precision != 'fp16'", False),
        ("not args.precision == 'fp16'", False),
    ],
    "config": [("config['amp']", True), ("not config['amp']", False)],
    "environment": [("torch.cuda.is_available()", True), ("not torch.cuda.is_available()", False)],
    "both": [("args.amp and args.cuda", True), ("not (args.amp and args.cuda)", False)],
}
MAKES = {
    "scaler": 'scaler = GradScaler("cuda") if args.fp16 else None',
    "use_amp": 'use_amp = args.fp16\nscaler = GradScaler("cuda")',
    "config": 'config = vars(args)\nscaler = GradScaler("cuda")',
}


def asked(test: tuple[str, bool], then: str, otherwise: str) -> str:
    """Return an ``if`` that runs ``then`` if the condition is true, else ``otherwise``."""
    text, positive = test
    first, second = (then, otherwise) if positive else (otherwise, then)
    tail = f"else:\n{indent(second, '    ')}\n" if second else ""
    return f"if {text}:\n{indent(first or 'pass', '    ')}\n{tail}"


UNKNOWN_DTYPE = LOSS.replace('"cuda"', '"cuda", dtype=args.dtype')
for _subject, _spellings in SAME.items():
    _setup = MAKES.get(_subject, 'scaler = GradScaler("cuda")')
    for _one, _two in product(_spellings[:3], _spellings):
        _backward = asked(_one, "scaler.scale(loss).backward()", "loss.backward()")
        _stepping = asked(_two, "scaler.step(optimizer)\nscaler.update()", "optimizer.step()")
        case(f"twins {_one[0]} / {_two[0]}, good", loop(UNKNOWN_DTYPE, _backward, _stepping, setup=_setup))
        case(
            f"twins {_one[0]} / {_two[0]}, unscaled, good",
            loop(
                UNKNOWN_DTYPE,
                _backward,
                asked(_two, "scaler.unscale_(optimizer)", ""),
                "clip_grad_norm_(model.parameters(), 1.0)",
                _stepping,
                setup=_setup,
            ),
        )
        case(
            f"twins {_one[0]} / {_two[0]}, bad",
            loop(
                UNKNOWN_DTYPE,
                _backward,
                "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
                _stepping,
                setup=_setup,
            ),
        )
    _none = _subject == "scaler"
    case(
        f"twins {_spellings[0][0]} with the branches the wrong way round, bad",
        loop(
            UNKNOWN_DTYPE,
            asked(_spellings[0], "scaler.scale(loss).backward()", f"loss.backward(){'' if _none else '  # AMP203'}"),
            asked(
                _spellings[0], "optimizer.step()  # AMP204", "" if _none else "scaler.step(optimizer)\nscaler.update()"
            ),
            setup=_setup,
        ),
    )

case(
    "a question about the flag and one about the scaler it makes, good",
    loop(
        LOSS,
        "if args.fp16:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()",
        "if scaler is not None:\n    scaler.unscale_(optimizer)",
        "clip_grad_norm_(model.parameters(), 1.0)",
        "if scaler:\n    scaler.step(optimizer)\n    scaler.update()\nelse:\n    optimizer.step()",
        setup='scaler = GradScaler("cuda") if args.fp16 else None',
    ).replace('autocast("cuda")', 'autocast("cuda", enabled=args.fp16)'),
)
case(
    "a scaler made under a flag by a statement, good",
    loop(
        'optimizer.zero_grad()\nwith autocast("cuda", enabled=args.fp16):\n    loss = criterion(model(x), y)',
        "if args.fp16:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()",
        "if scaler is not None:\n    scaler.step(optimizer)\n    scaler.update()\nelse:\n    optimizer.step()",
        setup='scaler = None\nif args.fp16:\n    scaler = GradScaler("cuda")',
    ),
)
case(
    "a scaler made under a flag by a statement, bad",
    loop(
        'optimizer.zero_grad()\nwith autocast("cuda", enabled=args.fp16):\n    loss = criterion(model(x), y)',
        "if args.fp16:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()",
        "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
        "if scaler is not None:\n    scaler.step(optimizer)\n    scaler.update()\nelse:\n    optimizer.step()",
        setup='scaler = None\nif args.fp16:\n    scaler = GradScaler("cuda")',
    ),
)
for _flag in ("use_amp", "args.fp16", "args.precision == 'fp16'", "torch.cuda.is_available()"):
    _made = f'use_amp = args.fp16\nscaler = GradScaler("cuda", enabled={_flag})'
    case(f"enabled={_flag}, good", loop(LOSS, "scaler.scale(loss).backward()", STEP, setup=_made))
    case(
        f"enabled={_flag}, a branch without the scaler, good",
        loop(
            LOSS,
            f"if {_flag}:\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
            "else:\n    loss.backward()\n    optimizer.step()",
            setup=_made,
        ),
    )
    case(
        f"enabled={_flag}, bad",
        loop(
            LOSS,
            "scaler.scale(loss).backward()",
            "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
            STEP,
            setup=_made,
        ),
    )

NORMS = [
    ("max_norm", "max_norm"),
    ("max_norm", "max_norm > 0"),
    ("max_norm > 0", "max_norm"),
    ("max_norm > 0", "max_norm > 0.0"),
    ("max_norm > 0", "0 < max_norm"),
    ("max_norm is not None", "max_norm is not None"),
    ("max_norm is not None", "max_norm"),
    ("args.max_norm", "args.max_norm > 0"),
    ("args.max_norm > 0", "args.max_norm > 0"),
    ("args.clip_grad is not None", "args.clip_grad is not None"),
]
for _first, _second in NORMS:
    _setup = 'max_norm = args.max_norm\nscaler = GradScaler("cuda")'
    _clip = f"if {_second}:\n    clip_grad_norm_(model.parameters(), args.max_norm)"
    case(
        f"norms {_first} / {_second}, good",
        loop(
            LOSS,
            "scaler.scale(loss).backward()",
            f"if {_first}:\n    scaler.unscale_(optimizer)",
            _clip,
            STEP,
            setup=_setup,
        ),
    )
    case(
        f"norms {_first} / {_second}, bad",
        loop(
            LOSS,
            "scaler.scale(loss).backward()",
            "if args.debug:\n    scaler.unscale_(optimizer)",
            f"{_clip}  # AMP201",
            STEP,
            setup=_setup,
        ),
    )


# End of an accumulation window.

#: Header of the loop, and the condition that is true at the end of a window.
BOUNDARIES = [
    ("for i, (x, y) in enumerate(loader):", "(i + 1) % k == 0"),
    ("for i, (x, y) in enumerate(loader):", "0 == (i + 1) % k"),
    ("for i, (x, y) in enumerate(loader):", "(1 + i) % k == 0"),
    ("for i, (x, y) in enumerate(loader):", "not (i + 1) % k"),
    ("for i, (x, y) in enumerate(loader):", "not ((i + 1) % k)"),
    ("for i, (x, y) in enumerate(loader):", "not ((i + 1) % k != 0)"),
    ("for i, (x, y) in enumerate(loader):", "i % k == k - 1"),
    ("for i, (x, y) in enumerate(loader):", "i % k == (k - 1)"),
    ("for i, (x, y) in enumerate(loader):", "k - 1 == i % k"),
    ("for i, (x, y) in enumerate(loader):", "(i + 1) % k == 0 or (i + 1) == len(loader)"),
    ("for i, (x, y) in enumerate(loader):", "((i + 1) % k == 0) or (i == len(loader) - 1)"),
    ("for i, (x, y) in enumerate(loader, 1):", "i % k == 0"),
    ("for i, (x, y) in enumerate(loader, start=1):", "not i % k"),
]
WINDOW = 'scaler = GradScaler("cuda")\nk = args.accumulation_steps'
FORWARD = 'with autocast("cuda"):\n    loss = criterion(model(x), y)'
FLUSH = "scaler.step(optimizer)\nscaler.update()\noptimizer.zero_grad()"
UNSCALED_FLUSH = "scaler.unscale_(optimizer)\nclip_grad_norm_(model.parameters(), 1.0)\n" + FLUSH

for _head, _test in BOUNDARIES:
    _where = f"{_head[4:20].strip()} {_test}" if "enumerate(loader)" in _head else f"{_head[-20:]} {_test}"
    _block = f"if {_test}:\n{indent(UNSCALED_FLUSH, '    ')}"
    case(
        f"window {_where}, good",
        loop(FORWARD, "scaler.scale(loss / k).backward()", _block, setup=WINDOW, head=_head),
    )
    case(
        f"window {_where}, divided before, good",
        loop(FORWARD, "loss = loss / k", "scaler.scale(loss).backward()", _block, setup=WINDOW, head=_head),
    )
    case(
        f"window {_where}, asked twice, good",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            f"if {_test}:\n    scaler.unscale_(optimizer)\n    clip_grad_norm_(model.parameters(), 1.0)",
            "print(loss.item())",
            f"if {_test}:\n{indent(FLUSH, '    ')}",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, unscaled too early, bad",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            "scaler.unscale_(optimizer)  # AMP303",
            f"if {_test}:\n    clip_grad_norm_(model.parameters(), 1.0)\n{indent(FLUSH, '    ')}",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, undivided, bad",
        loop(FORWARD, "scaler.scale(loss).backward()  # AMP301", _block, setup=WINDOW, head=_head),
    )
    case(
        f"window {_where}, updated too early, bad",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            f"if {_test}:\n    scaler.step(optimizer)\n    optimizer.zero_grad()",
            "scaler.update()  # AMP303",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, cleared too early, bad",
        loop(
            "optimizer.zero_grad()  # AMP304",
            FORWARD,
            "scaler.scale(loss / k).backward()",
            f"if {_test}:\n    scaler.step(optimizer)\n    scaler.update()",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, in a name, good",
        loop(
            f"last = {_test}",
            FORWARD,
            "scaler.scale(loss / k).backward()",
            "if last:\n    scaler.unscale_(optimizer)\n    clip_grad_norm_(model.parameters(), 1.0)",
            f"if last:\n{indent(FLUSH, '    ')}",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, in a name, bad",
        loop(
            f"last = {_test}",
            FORWARD,
            "scaler.scale(loss / k).backward()",
            "scaler.unscale_(optimizer)  # AMP303",
            f"if last:\n{indent(FLUSH, '    ')}",
            setup=WINDOW,
            head=_head,
        ),
    )
    case(
        f"window {_where}, asked in two spellings, good",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            f"if {_test}:\n    scaler.unscale_(optimizer)\n    clip_grad_norm_(model.parameters(), 1.0)",
            f"if not ({_test}):\n    continue",
            FLUSH,
            setup=WINDOW,
            head=_head,
        ),
    )

#: Conditions under which the loop continues with the next micro-batch.
CONTINUES = ["(i + 1) % k != 0", "(i + 1) % k", "not (i + 1) % k == 0", "(i + 1) % k > 0", "i % k != k - 1"]
for _test in CONTINUES:
    case(
        f"continue where {_test}, good",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            f"if {_test}:\n    continue",
            UNSCALED_FLUSH,
            setup=WINDOW,
            head="for i, (x, y) in enumerate(loader):",
        ),
    )
    case(
        f"continue where {_test}, bad",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            "scaler.unscale_(optimizer)  # AMP303",
            f"if {_test}:\n    continue",
            FLUSH,
            setup=WINDOW,
            head="for i, (x, y) in enumerate(loader):",
        ),
    )
    case(
        f"continue where {_test}, undivided, bad",
        loop(
            FORWARD,
            "scaler.scale(loss).backward()  # AMP301",
            f"if {_test}:\n    continue",
            UNSCALED_FLUSH,
            setup=WINDOW,
            head="for i, (x, y) in enumerate(loader):",
        ),
    )

#: Counters: statement before the loop, count statement, condition at the end of a window, and reset.
COUNTERS = [
    ("count = 0", "count += 1", "count == k", "count = 0"),
    ("count = 0", "count += 1", "count >= k", "count = 0"),
    ("count = 0", "count = count + 1", "count % k == 0", ""),
    ("count = 0", "count += 1", "not count % k", ""),
    ("self = args\nself.count = 0", "self.count += 1", "self.count == k", "self.count = 0"),
    ("self = args\nself.count = 0", "self.count += 1", "self.count % self.k == 0", ""),
    ("left = args.k", "left -= 1", "left == 0", "left = k"),
]
for _start, _count, _test, _reset in COUNTERS:
    _setup = f"{WINDOW}\n{_start}"
    _tail = f"\n    {_reset}" if _reset else ""
    case(
        f"counter {_count}, {_test}, good",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            _count,
            f"if {_test}:\n{indent(UNSCALED_FLUSH, '    ')}{_tail}",
            setup=_setup,
        ),
    )
    case(
        f"counter {_count}, {_test}, bad",
        loop(
            FORWARD,
            "scaler.scale(loss / k).backward()",
            _count,
            "scaler.unscale_(optimizer)  # AMP303",
            f"if {_test}:\n{indent(FLUSH, '    ')}{_tail}",
            setup=_setup,
        ),
    )
    case(
        f"counter {_count}, {_test}, undivided, bad",
        loop(
            FORWARD,
            "scaler.scale(loss).backward()  # AMP301",
            _count,
            f"if {_test}:\n{indent(UNSCALED_FLUSH, '    ')}{_tail}",
            setup=_setup,
        ),
    )
case(
    "a window that begins with one micro-batch, bad",
    loop(
        FORWARD,
        "scaler.scale(loss / k).backward()",
        f"if i % k == 0:  # AMP304\n{indent(FLUSH, '    ')}",
        setup=WINDOW,
        head="for i, (x, y) in enumerate(loader):",
    ),
)
case(
    "a window that begins with one micro-batch, from range, bad",
    loop(
        "x, y = data[4 * i : 4 * i + 4]",
        FORWARD,
        "scaler.scale(loss / k).backward()",
        f"if not i % k:  # AMP304\n{indent(FLUSH, '    ')}",
        setup=WINDOW,
        head="for i in range(len(loader)):",
    ),
)
case(
    "a test every k steps that only prints is no window, good",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        STEP,
        "if i % 100 == 0:\n    print(loss.item())",
        head="for i, (x, y) in enumerate(loader):",
    ),
)
case(
    "a loop over micro-batches inside the step, good",
    """
    scaler = GradScaler("cuda")
    for step in range(100):
        optimizer.zero_grad()
        for x, y in loader:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss / len(loader)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a loop over micro-batches inside the step, bad",
    """
    scaler = GradScaler("cuda")
    for step in range(100):
        optimizer.zero_grad()
        for x, y in loader:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss / len(loader)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)


# Regions that are stored, selected and passed on.

#: Statements before the loop, and the item of the ``with`` statement.
REGIONS = {
    "called": ("", 'autocast("cuda")'),
    "with keywords": ("", 'autocast(device_type="cuda", dtype=torch.float16)'),
    "in a name": ('ctx = autocast("cuda")', "ctx"),
    "in an attribute": ('args.ctx = autocast("cuda")', "args.ctx"),
    "in a dict": ('regions = {"train": autocast("cuda")}', 'regions["train"]'),
    "by a function": ('def region():\n    return autocast("cuda")', "region()"),
    "by a function with an argument": (
        "def region(dtype):\n    return autocast('cuda', dtype=dtype)",
        "region(torch.float16)",
    ),
    "by a lambda": ('region = lambda: autocast("cuda")', "region()"),
    "by partial": ('region = functools.partial(autocast, "cuda", dtype=torch.float16)', "region()"),
    "by partial with keywords": ('region = functools.partial(autocast, device_type="cuda")', "region()"),
    "by a context manager": (
        '@contextmanager\ndef region():\n    with autocast("cuda"):\n        yield',
        "region()",
    ),
    "by a context manager of the module": (
        '@contextlib.contextmanager\ndef region():\n    print("in")\n    with autocast("cuda"):\n        yield',
        "region()",
    ),
    "by a class": (
        """
class Region:
    def __init__(self):
        self.inner = autocast("cuda")
    def __enter__(self):
        return self.inner.__enter__()
    def __exit__(self, *exc):
        return self.inner.__exit__(*exc)
""",
        "Region()",
    ),
    "chosen by a conditional": ('ctx = autocast("cuda") if args.amp else nullcontext()', "ctx"),
    "chosen by a conditional in place": ("", 'autocast("cuda") if args.amp else nullcontext()'),
    "chosen by a statement": (
        'if args.amp:\n    ctx = autocast("cuda")\nelse:\n    ctx = contextlib.nullcontext()',
        "ctx",
    ),
    "chosen by a function": (
        'def region():\n    if args.amp:\n        return autocast("cuda")\n    return nullcontext()',
        "region()",
    ),
    "chosen as a class": ('region = functools.partial(autocast, "cuda") if args.amp else nullcontext', "region()"),
    "chosen beside an empty context manager": (
        '@contextmanager\ndef empty():\n    yield\nregion = functools.partial(autocast, "cuda") if args.amp else empty',
        "region()",
    ),
    "enabled by a flag": ("", 'autocast("cuda", enabled=args.amp)'),
    "beside another": ("", 'torch.enable_grad(), autocast("cuda")'),
    "before another": ("", 'autocast("cuda"), torch.enable_grad()'),
    "in parentheses": ("", '(autocast("cuda"))'),
    "bound by as": ("", 'autocast("cuda") as region'),
}
for _how, (_setup, _item) in REGIONS.items():
    _made = f'{_setup}\nscaler = GradScaler("cuda")'
    _with = f"optimizer.zero_grad()\nwith {_item}:\n    loss = criterion(model(x), y)"
    case(f"region {_how}, good", loop(_with, "scaler.scale(loss).backward()", STEP, setup=_made))
    case(
        f"region {_how}, bad",
        loop(_with, "    scaler.scale(loss).backward()  # AMP103", STEP, setup=_made).replace(
            "\n    scaler.scale(loss)", "\n        scaler.scale(loss)"
        ),
    )
case(
    "a region on a stack, good",
    loop(
        'optimizer.zero_grad()\nwith ExitStack() as stack:\n    stack.enter_context(autocast("cuda"))',
        "    loss = criterion(model(x), y)",
        "scaler.scale(loss).backward()",
        STEP,
    ).replace("\n    loss = ", "\n        loss = "),
)
case(
    "a region on a stack, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with ExitStack() as stack:
            stack.enter_context(autocast("cuda"))
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region on a stack under a flag, bad",
    """
    scaler = GradScaler("cuda", enabled=args.amp)
    for x, y in loader:
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            if args.amp:
                stack.enter_context(autocast("cuda"))
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()  # AMP103
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region entered and left by hand, good",
    """
    scaler = GradScaler("cuda")
    region = autocast("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        region.__enter__()
        try:
            loss = criterion(model(x), y)
        finally:
            region.__exit__(None, None, None)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region entered and left by hand, bad",
    """
    scaler = GradScaler("cuda")
    region = autocast("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        region.__enter__()
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP103
        region.__exit__(None, None, None)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "an error handled outside of every region, after one was left by hand, good",
    """
    scaler = GradScaler("cuda")
    region = autocast("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        region.__enter__()
        prepared = model(x)
        region.__exit__(None, None, None)
        try:
            with region:
                loss = criterion(model(prepared), y)
                check(loss)
        except RuntimeError:
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a function under a decorator, good",
    """
    scaler = GradScaler("cuda")

    @autocast("cuda")
    def compute_loss(x, y):
        return criterion(model(x), y)

    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(compute_loss(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a function under a decorator, bad",
    """
    scaler = GradScaler("cuda")

    @autocast("cuda")
    def train_step(x, y):
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP103
        return loss

    for x, y in loader:
        optimizer.zero_grad()
        train_step(x, y)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a decorator of one's own, good",
    """
    scaler = GradScaler("cuda")

    def amp(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with autocast("cuda"):
                return function(*args, **kwargs)
        return wrapper

    @amp
    def compute_loss(x, y):
        return criterion(model(x), y)

    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(compute_loss(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a decorator of one's own, bad",
    """
    scaler = GradScaler("cuda")

    def amp(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with autocast("cuda"):
                return function(*args, **kwargs)
        return wrapper

    @amp
    def train_step(x, y):
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # AMP103
        return loss

    for x, y in loader:
        optimizer.zero_grad()
        train_step(x, y)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region left by return, good",
    """
    scaler = GradScaler("cuda")

    def compute_loss(x, y):
        with autocast("cuda"):
            output = model(x)
            if args.early:
                return criterion(output, y)
            return criterion(output, y) * 2

    for x, y in loader:
        optimizer.zero_grad()
        loss = compute_loss(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region left by break and continue, good",
    """
    scaler = GradScaler("cuda")
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
                if loss > 10:
                    break
                if loss < 0:
                    continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a region left by raise and caught outside, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with autocast("cuda"):
                loss = criterion(model(x), y)
                if not torch.isfinite(loss):
                    raise ValueError("not finite")
        except ValueError:
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)


# Jumps, exceptions, match.

case(
    "a step that is skipped without an update, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # AMP209
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if norm > 100:
            optimizer.zero_grad()
            continue
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a step that is skipped with an update, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if norm > 100:
            optimizer.zero_grad()
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a batch that is skipped before its backward, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        if not torch.isfinite(loss):
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "an update behind a break, bad",
    """
    scaler = GradScaler("cuda")
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # AMP206
            if loss > 10:
                break
            scaler.update()
    """,
)
case(
    "an update in the else of a loop and before its break, good",
    """
    scaler = GradScaler("cuda")
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if loss > 10:
                scaler.update()
                break
            scaler.update()
        else:
            print("whole epoch")
    """,
)
case(
    "an update in finally, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        try:
            scaler.step(optimizer)
            if args.stop:
                break
        finally:
            scaler.update()
    """,
)
case(
    "an update that an exception passes by, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)  # AMP206
            if loss > 10:
                raise RuntimeError("diverged")
            scaler.update()
        except RuntimeError:
            print("skipped")
    """,
)
case(
    "an optimizer that each iteration recreates in one of two ways, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        if args.late:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
        else:
            optimizer = torch.optim.Adam(model.parameters())
        model.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
    scaler.update()
    """,
)
case(
    "a parameter taken out of a list is edited before it is unscaled, bad",
    """
    scaler = GradScaler("cuda")
    params = list(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        params[0].grad.clamp_(-1, 1)  # AMP202
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a step that hangs on the gradients of another optimizer, bad",
    """
    scaler = GradScaler("cuda")
    first = torch.optim.SGD(model.parameters(), 0.1)
    second = torch.optim.SGD(head.parameters(), 0.1)
    for x, y in loader:
        first.zero_grad()
        second.zero_grad()
        with autocast("cuda"):
            loss = criterion(head(model(x)), y)
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        scaler.unscale_(second)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():
            second.step()  # AMP204
        scaler.step(first)
        scaler.update()
    """,
)
case(
    "a second scaler that takes over after the first, good",
    """
    late = GradScaler("cuda")
    early = GradScaler("cuda", init_scale=1024.0)
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        early.scale(loss).backward()
        early.step(optimizer)
        early.update()
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        late.scale(loss).backward()
        late.step(optimizer)
        late.update()
    """,
)
case(
    "an update in finally that an exception comes by, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            try:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                if loss > 10:
                    raise RuntimeError("diverged")
            finally:
                scaler.update()
        except RuntimeError:
            print("skipped")
    """,
)
case(
    "an update that an exception passes by on its way through finally, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            try:
                scaler.scale(loss).backward()
                scaler.step(optimizer)  # AMP206
                if loss > 10:
                    raise RuntimeError("diverged")
                scaler.update()
            finally:
                optimizer.zero_grad()
        except RuntimeError:
            print("skipped")
    """,
)
case(
    "a clip in finally, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        try:
            scaler.scale(loss).backward()
        finally:
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a batch that runs out of memory, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            optimizer.zero_grad()
            continue
        scaler.step(optimizer)
        scaler.update()
    """,
)
for _word, _lines in {
    "bad": ("clip_grad_norm_(model.parameters(), 1.0)  # AMP201", "pass"),
    "good": ("scaler.unscale_(optimizer)\n            clip_grad_norm_(model.parameters(), 1.0)", "pass"),
}.items():
    case(
        f"a match, {_word}",
        f"""
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        match args.clip:
            case "norm":
                {_lines[0].replace("            clip", "                clip")}
            case _:
                {_lines[1]}
        scaler.step(optimizer)
        scaler.update()
    """,
    )
case(
    "twin matches, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda", enabled=args.precision == "fp16"):
            loss = criterion(model(x), y)
        match args.precision:
            case "fp16":
                scaler.scale(loss).backward()
            case _:
                loss.backward()
        match args.precision:
            case "fp16":
                scaler.step(optimizer)
                scaler.update()
            case _:
                optimizer.step()
    """,
)
case(
    "a while loop, bad",
    """
    scaler = GradScaler("cuda")
    steps, batches = 0, iter(loader)
    while steps < 100:
        x, y = next(batches)
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP206
        steps += 1
    """,
)
case(
    "a while loop, good",
    """
    scaler = GradScaler("cuda")
    steps, batches = 0, iter(loader)
    while True:
        if steps == 100:
            break
        x, y = next(batches)
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        steps += 1
    """,
)
case(
    "an update after the loop, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # AMP206
    scaler.update()
    """,
)
case(
    "a walrus, bad",
    """
    scaler = GradScaler("cuda")
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        x, y = batch
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        (scaled := scaler.scale(loss)).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a walrus makes the scaler, bad",
    """
    if (scaler := GradScaler("cuda", enabled=args.amp)) is not None:
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
    """,
)
case(
    "a walrus measures the norm, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:
            print(norm)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a comprehension clamps, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        [p.grad.clamp_(-1, 1) for p in model.parameters()]  # AMP202
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a comprehension steps every optimizer, good",
    """
    other = nn.Linear(8, 2).cuda()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    scaler = GradScaler("cuda")
    for x, y in loader:
        [o.zero_grad() for o in optimizers]
        with autocast("cuda"):
            loss = criterion(model(x) + other(x), y)
        scaler.scale(loss).backward()
        [scaler.step(o) for o in optimizers]
        scaler.update()
    """,
)
case(
    "a generator expression measures scaled gradients, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        print(sum(p.grad.norm() ** 2 for p in model.parameters()))  # AMP202
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a generator expression measures unscaled gradients, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        print(sum(p.grad.norm() ** 2 for p in model.parameters()))
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a lambda steps, bad",
    """
    scaler = GradScaler("cuda")
    advance = lambda loss: scaler.scale(loss).backward()
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        advance(loss)
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a conditional expression makes the optimizer, bad",
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if args.sgd else torch.optim.Adam(model.parameters())
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "short circuits, good",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        args.clip and scaler.unscale_(optimizer)
        args.clip and clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "short circuits, bad",
    """
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        args.clip and clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)


# Containers of scalers and optimizers.

#: Setup, then the expressions of the scaler and the optimizer.
KEPT = {
    "a dict": ('opts = {"g": optimizer}\nscaler = GradScaler("cuda")', "scaler", 'opts["g"]'),
    "a dict in an attribute": (
        'args.optimizer = {"g": optimizer}\nscaler = GradScaler("cuda")',
        "scaler",
        'args.optimizer["g"]',
    ),
    "dict()": ('opts = dict(g=optimizer)\nscaler = GradScaler("cuda")', "scaler", 'opts["g"]'),
    "an item that is set": ('opts = {}\nopts["g"] = optimizer\nscaler = GradScaler("cuda")', "scaler", 'opts["g"]'),
    "a list": ('opts = [optimizer]\nscaler = GradScaler("cuda")', "scaler", "opts[0]"),
    "a tuple": ('pair = (optimizer, GradScaler("cuda"))', "pair[1]", "pair[0]"),
    "a tuple taken apart": ('opt, scaler = optimizer, GradScaler("cuda")', "scaler", "opt"),
    "a tuple from a function": (
        'def build():\n    return optimizer, GradScaler("cuda")\nopt, scaler = build()',
        "scaler",
        "opt",
    ),
    "a tuple from a function that returns early": (
        """
scaler = GradScaler("cuda")
def resume(opt, scaler):
    if not args.path:
        return opt, scaler, 0
    try:
        saved = torch.load(args.path)
    except OSError:
        return opt, scaler, 0
    opt.load_state_dict(saved["opt"])
    scaler.load_state_dict(saved["scaler"])
    return opt, scaler, saved["step"]
opt, scaler, start = resume(optimizer, scaler)
""",
        "scaler",
        "opt",
    ),
    "a dict from a function": (
        'def build():\n    return {"opt": optimizer, "scaler": GradScaler("cuda")}\nstate = build()',
        'state["scaler"]',
        'state["opt"]',
    ),
    "another name": ('grad_scaler = GradScaler("cuda")\nscaler = grad_scaler\nopt = optimizer', "scaler", "opt"),
    "attributes": ('args.scaler = GradScaler("cuda")\nargs.opt = optimizer', "args.scaler", "args.opt"),
    "a walrus": ('print(scaler := GradScaler("cuda"))', "scaler", "optimizer"),
    "partial": ('make = functools.partial(GradScaler, "cuda")\nscaler = make()', "scaler", "optimizer"),
    "a class held in a name": ('Scaler = GradScaler\nscaler = Scaler("cuda")', "scaler", "optimizer"),
    "a class chosen": (
        'Scaler = GradScaler if args.a else torch.amp.GradScaler\nscaler = Scaler("cuda")',
        "scaler",
        "optimizer",
    ),
    "a namespace": (
        'from types import SimpleNamespace\nstate = SimpleNamespace(scaler=GradScaler("cuda"), opt=optimizer)',
        "state.scaler",
        "state.opt",
    ),
    "a data class": (
        """
from dataclasses import dataclass
@dataclass
class State:
    scaler: GradScaler
    opt: object
state = State(GradScaler("cuda"), optimizer)
""",
        "state.scaler",
        "state.opt",
    ),
    "a subclass": ('class Mine(GradScaler):\n    pass\nscaler = Mine("cuda")', "scaler", "optimizer"),
}
for _how, (_setup, _scaler, _optimizer) in KEPT.items():
    _loss = f'{_optimizer}.zero_grad()\nwith autocast("cuda"):\n    loss = criterion(model(x), y)'
    _step = f"{_scaler}.step({_optimizer})\n{_scaler}.update()"
    _clip = "clip_grad_norm_(model.parameters(), 1.0)"
    case(
        f"kept in {_how}, good",
        loop(
            _loss,
            f"{_scaler}.scale(loss).backward()",
            f"{_scaler}.unscale_({_optimizer})",
            _clip,
            _step,
            setup=_setup,
        ),
    )
    case(
        f"kept in {_how}, bad",
        loop(_loss, f"{_scaler}.scale(loss).backward()", f"{_clip}  # AMP201", _step, setup=_setup),
    )
    case(
        f"kept in {_how}, bypassed, bad",
        loop(_loss, f"{_scaler}.scale(loss).backward()", f"{_optimizer}.step()  # AMP204", setup=_setup),
    )
case(
    "two optimizers in a dict, good",
    """
    other = nn.Linear(8, 2).cuda()
    opts = {"g": torch.optim.SGD(model.parameters(), lr=0.1), "d": torch.optim.SGD(other.parameters(), lr=0.1)}
    scaler = GradScaler("cuda")
    for x, y in loader:
        opts["g"].zero_grad()
        opts["d"].zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x) + other(x), y)
        scaler.scale(loss).backward()
        scaler.step(opts["g"])
        scaler.step(opts["d"])
        scaler.update()
    """,
)
case(
    "two optimizers in a dict, bad",
    """
    other = nn.Linear(8, 2).cuda()
    opts = {"g": torch.optim.SGD(model.parameters(), lr=0.1), "d": torch.optim.SGD(other.parameters(), lr=0.1)}
    scaler = GradScaler("cuda")
    for x, y in loader:
        opts["g"].zero_grad()
        opts["d"].zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x) + other(x), y)
        scaler.scale(loss).backward()
        scaler.step(opts["g"])
        scaler.update()  # AMP207
        scaler.step(opts["d"])
        scaler.update()
    """,
)
case(
    "two optimizers in a loop over the values of a dict, good",
    """
    other = nn.Linear(8, 2).cuda()
    opts = {"g": torch.optim.SGD(model.parameters(), lr=0.1), "d": torch.optim.SGD(other.parameters(), lr=0.1)}
    scaler = GradScaler("cuda")
    for x, y in loader:
        for opt in opts.values():
            opt.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x) + other(x), y)
        scaler.scale(loss).backward()
        for opt in opts.values():
            scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts.values():
            scaler.step(opt)
        scaler.update()
    """,
)


# Functions, methods and closures are inlined.

case(
    "a function with its arguments bound, bad",
    """
    def finish(grad_scaler, opt, norm):
        clip_grad_norm_(model.parameters(), norm)  # AMP201
        grad_scaler.step(opt)
        grad_scaler.update()

    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        finish(opt=optimizer, grad_scaler=scaler, norm=1.0)
    """,
)
case(
    "a function with its arguments bound, good",
    """
    def finish(grad_scaler, opt, norm):
        grad_scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), norm)
        grad_scaler.step(opt)
        grad_scaler.update()

    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        finish(opt=optimizer, grad_scaler=scaler, norm=1.0)
    """,
)
case(
    "a function that is given a flag, good",
    """
    def finish(scaler, opt, unscale=True):
        if unscale:
            scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        finish(scaler, optimizer)
    """,
)
case(
    "a function that is given a flag, bad",
    """
    def finish(scaler, opt, unscale=True):
        if unscale:
            scaler.unscale_(opt)
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(opt)
        scaler.update()

    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        finish(scaler, optimizer, unscale=False)
    """,
)
case(
    "arguments handed on by stars, bad",
    """
    def finish(scaler, opt):
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(opt)
        scaler.update()

    def around(*args, **kwargs):
        return finish(*args, **kwargs)

    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        around(scaler, opt=optimizer)
    """,
)
case(
    "a function in partial, bad",
    """
    def finish(scaler, opt):
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(opt)
        scaler.update()

    scaler = GradScaler("cuda")
    done = functools.partial(finish, opt=optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        done(scaler)
    """,
)
case(
    "a closure, bad",
    """
    def make_step(scaler, opt):
        def step(loss):
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(opt)
            scaler.update()
        return step

    step = make_step(GradScaler("cuda"), optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        step(loss)
    """,
)
case(
    "a closure, good",
    """
    def make_step(scaler, opt):
        def step(loss):
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
        return step

    step = make_step(GradScaler("cuda"), optimizer)
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        step(loss)
    """,
)
case(
    "a function chosen from a dict, bad",
    """
    scaler = GradScaler("cuda")

    def clipped():
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201

    actions = {"clip": clipped}
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        actions["clip"]()
        scaler.step(optimizer)
        scaler.update()
    """,
)
case(
    "a function that nobody calls, bad",
    """
    def train(model, loader, optimizer, scaler):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
    """,
)
case(
    "a function that nobody calls, good",
    """
    def train(model, loader, optimizer, scaler=None):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda", enabled=scaler is not None):
                loss = criterion(model(x), y)
            if scaler is None:
                loss.backward()
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    """,
)
case(
    "recursion, bad",
    """
    scaler = GradScaler("cuda")

    def train(depth):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
        if depth:
            train(depth - 1)

    train(10)
    """,
)
case(
    "functions that call each other, good",
    """
    scaler = GradScaler("cuda")

    def even(n):
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(data[n][0]), data[n][1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if n:
            odd(n - 1)

    def odd(n):
        if n:
            even(n - 1)

    even(10)
    """,
)
for _method in ("__init__", "setup", "configure_optimizers", "build"):
    _call = "" if _method == "__init__" else f"\n            self.{_method}()"
    _init = "" if _method == "__init__" else f"        def __init__(self):\n            self.epochs = 2{_call}\n\n"
    for _word, _middle in {
        "good": "self.scaler.unscale_(self.optimizer)\n                clip_grad_norm_(self.model.parameters(), 1.0)",
        "bad": "clip_grad_norm_(self.model.parameters(), 1.0)  # AMP201",
    }.items():
        case(
            f"attributes set in {_method}, {_word}",
            f"""
    class Trainer:
{_init}        def {_method}(self):
            self.model = model
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda")

        def autocast(self):
            return autocast("cuda")

        def fit(self):
            for x, y in loader:
                self.optimizer.zero_grad()
                with self.autocast():
                    loss = criterion(self.model(x), y)
                self.scaler.scale(loss).backward()
                {_middle}
                self.scaler.step(self.optimizer)
                self.scaler.update()

    Trainer().fit()
    """,
        )
case(
    "the region of a method, bad",
    """
    class Trainer:
        def __init__(self):
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda")

        def autocast(self):
            return autocast("cuda") if args.amp else nullcontext()

        def fit(self):
            for x, y in loader:
                self.optimizer.zero_grad()
                with self.autocast():
                    loss = criterion(model(x), y)
                    self.scaler.scale(loss).backward()  # AMP103
                self.scaler.step(self.optimizer)
                self.scaler.update()
    """,
)
case(
    "a method that nobody calls on attributes set in another, bad",
    """
    class Trainer:
        def setup(self):
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda")

        def training_step(self, x, y):
            self.optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            self.scaler.scale(loss).backward()
            self.optimizer.step()  # AMP204
    """,
)
case(
    "a step spread over methods, bad",
    """
    class Trainer:
        def __init__(self):
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda")

        def backward(self, loss):
            self.scaler.scale(loss).backward()

        def clip(self):
            clip_grad_norm_(model.parameters(), 1.0)  # AMP201

        def step(self):
            self.scaler.step(self.optimizer)
            self.scaler.update()

        def fit(self):
            for x, y in loader:
                self.optimizer.zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                self.backward(loss)
                self.clip()
                self.step()

    Trainer().fit()
    """,
)
case(
    "a step spread over methods of a base class, bad",
    """
    class Base:
        def __init__(self):
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda")

        def step(self):
            self.clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()

        def clip(self):
            raise NotImplementedError

    class Trainer(Base):
        def __init__(self):
            super().__init__()
            self.norm = 1.0

        def clip(self):
            clip_grad_norm_(model.parameters(), self.norm)  # AMP201

        def fit(self):
            for x, y in loader:
                self.optimizer.zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                self.scaler.scale(loss).backward()
                self.step()

    Trainer().fit()
    """,
)
case(
    "optimizers of a trainer in a dict, bad",
    """
    class Trainer:
        def __init__(self):
            self.optimizers = {"g": torch.optim.SGD(model.parameters(), lr=0.1)}
            self.scaler = GradScaler("cuda")

        def fit(self):
            for x, y in loader:
                self.optimizers["g"].zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                self.scaler.scale(loss).backward()
                self.optimizers["g"].step()  # AMP204

    Trainer().fit()
    """,
)
case(
    "a property holds the scaler, bad",
    """
    class Trainer:
        def __init__(self):
            self._scaler = GradScaler("cuda")

        @property
        def scaler(self):
            return self._scaler

        def fit(self):
            for x, y in loader:
                optimizer.zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                self.scaler.scale(loss).backward()
                optimizer.step()  # AMP204

    Trainer().fit()
    """,
)
case(
    "correlated predicates of an attribute in two methods, good",
    """
    class Trainer:
        def __init__(self, use_amp):
            self.use_amp = use_amp
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = GradScaler("cuda") if use_amp else None

        def backward(self, loss):
            if self.use_amp:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()

        def step(self):
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            if self.use_amp:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

        def fit(self):
            for x, y in loader:
                self.optimizer.zero_grad()
                with autocast("cuda", enabled=self.use_amp):
                    loss = criterion(model(x), y)
                self.backward(loss)
                self.step()

    Trainer(args.amp).fit()
    """,
)
case(
    "a scaler constructed in a loop, bad",
    """
    for epoch in range(3):
        scaler = GradScaler("cuda")  # AMP208
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """,
)
case(
    "a scaler constructed for each run, good",
    """
    def run(seed):
        torch.manual_seed(seed)
        network = nn.Linear(8, 2).cuda()
        opt = torch.optim.SGD(network.parameters(), lr=0.1)
        scaler = GradScaler("cuda")
        for x, y in loader:
            opt.zero_grad()
            with autocast("cuda"):
                loss = criterion(network(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

    for seed in range(3):
        run(seed)
    """,
)


STEP_METHOD = """
class Trainer:
    def __init__(self, model, k):
        self.model, self.k, self.seen = model, k, 0
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = GradScaler("cuda")

    def step(self, x, y, index):
        with autocast("cuda"):
            loss = criterion(self.model(x), y)@DIVIDED@
        self.scaler.scale(loss).backward()@MARK@
        self.seen += 1
        if @BOUNDARY@:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
"""
for boundary in ("self.seen % self.k == 0", "(index + 1) % self.k == 0", "self.seen == self.k"):
    written = STEP_METHOD.replace("@BOUNDARY@", boundary)
    case(
        f"a step method that others call, {boundary}, bad",
        written.replace("@DIVIDED@", "").replace("@MARK@", "  # AMP301"),
    )
    case(
        f"a step method that others call, {boundary}, good",
        written.replace("@DIVIDED@", " / self.k").replace("@MARK@", ""),
    )
case(
    "a step method that leaves update and zero_grad to others, good",
    """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self.optimizer = torch.optim.AdamW(model.parameters())
            self.scaler = GradScaler("cuda")

        def step(self, x, y):
            with autocast("cuda"):
                loss = criterion(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)

        def after_step(self):
            self.scaler.update()
            self.optimizer.zero_grad()
    """,
)

# Names and loop variables that refer to one or several objects.

case(
    "a list of optimizers stepped by whatever name, good",
    loop(
        "for one in opts:\n    one.zero_grad()",
        'with autocast("cuda"):\n    loss = criterion(model(x), y)',
        "scaler.scale(loss).backward()",
        "for one in opts:\n    held.step(one)",
        "held.update()",
        setup="""
        opts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.children()]
        scaler = held = GradScaler("cuda")
        """,
    ),
)
case(
    "gradients that are given run backward, good",
    loop(
        "optimizer.zero_grad()",
        'with autocast("cuda"):\n    output = model(x)',
        "(gradient,) = torch.autograd.grad(scaler.scale(criterion(output.float(), y)), [output], retain_graph=True)",
        "output.backward(gradient)",
        "torch.autograd.backward([output], [gradient])",
        "torch.autograd.backward(output, grad_tensors=gradient)",
        STEP,
    ),
)
case(
    "no gradient is given, bad",
    loop(
        "optimizer.zero_grad()",
        'with autocast("cuda"):\n    loss = criterion(model(x), y)',
        "loss.backward(None, retain_graph=True)  # AMP203",
        STEP,
    ),
)
WRAPPER = """
class Warmup:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.count = 0
    def step(self):
        self.count += 1
        self.optimizer.step()
    def zero_grad(self):
        self.optimizer.zero_grad()
warmup = Warmup(optimizer)
scaler = GradScaler("cuda")
"""
WRAPPED = """
warmup.zero_grad()
with autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
"""
case(
    "an optimizer in a wrapper, good",
    loop(
        WRAPPED,
        "scaler.unscale_(warmup)\nclip_grad_norm_(model.parameters(), 1.0)",
        "scaler.step(warmup)\nscaler.update()",
        setup=WRAPPER,
    ),
)
case(
    "an optimizer in a wrapper, bad",
    loop(
        WRAPPED,
        "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
        "scaler.step(warmup)\nscaler.update()",
        setup=WRAPPER,
    ),
)
case(
    "a namespace that holds parameters, good",
    loop(
        LOSS,
        "step(SimpleNamespace(loss=loss, scaler=scaler, optimizer=optimizer, parameters=parameters))",
        "scaler.update()",
        setup="""
        from types import SimpleNamespace
        def step(state):
            state.scaler.scale(state.loss).backward()
            state.scaler.unscale_(state.optimizer)
            clip_grad_norm_(state.parameters, 1.0)
            state.scaler.step(state.optimizer)
        parameters = list(model.parameters())
        scaler = GradScaler("cuda")
        """,
    ),
)
SUBCLASS = """
class Counting(GradScaler):
    def update(self, new_scale=None):
        before = self.get_scale()
        super().update(new_scale)
        self.skipped = self.get_scale() < before
    def finish(self, optimizer):
        self.step(optimizer)
        self.update()
    def __call__(self, loss, optimizer):
        self.scale(loss).backward()
        self.finish(optimizer)
scaler = Counting("cuda")
"""
for _ending, _calls in {
    "torch's methods": "scaler.scale(loss).backward()\n{}scaler.step(optimizer)\nscaler.update()",
    "a method of its own": "scaler.scale(loss).backward()\n{}scaler.finish(optimizer)",
}.items():
    for _unscale, _mark, _kind in (("scaler.unscale_(optimizer)\n", "", "good"), ("", "  # AMP201", "bad")):
        _clipped = _calls.format(f"{_unscale}clip_grad_norm_(model.parameters(), 1.0){_mark}\n")
        case(f"a scaler class that counts, {_ending}, {_kind}", loop(LOSS, _clipped, setup=SUBCLASS))
case(
    "a scaler class that takes a method of its base before calling it, good",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        STEP,
        setup=SUBCLASS.replace("super().update(new_scale)", "base = super().update\n        base(new_scale)"),
    ),
)
case("a scaler class that is called, good", loop(LOSS, "scaler(loss, optimizer)", setup=SUBCLASS))
case(
    "a scaler class that is called after a backward of its own, bad",
    loop(LOSS, "scaler(loss, optimizer)", "optimizer.step()  # AMP204", setup=SUBCLASS),
)
COUNTED = """
class Trainer:
    def __init__(self):
        self.scaler = GradScaler("cuda")
        self.iteration = 0
def train_step(trainer, x, y):
    with autocast("cuda"):
        loss = criterion(model(x), y)
    trainer.scaler.scale(loss{}).backward()  # {}
    trainer.iteration += 1
    if trainer.iteration % 4 == 0:
        trainer.scaler.step(optimizer)
        trainer.scaler.update()
        optimizer.zero_grad()
trainer = Trainer()
"""
case(
    "iterations counted in an object from outside its class, good",
    loop("train_step(trainer, x, y)", setup=COUNTED.format(" / 4", "divided")),
)
case(
    "iterations counted in an object from outside its class, bad",
    loop("train_step(trainer, x, y)", setup=COUNTED.format("", "AMP301")),
)

# One cause, one finding.

case(
    "the state is taken of a scaler that is never updated, bad",
    loop(LOSS, "scaler.scale(loss).backward()", "scaler.step(optimizer)  # AMP206", "print(scaler.state_dict())"),
)
case(
    "the state is taken before the update, bad",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        "scaler.step(optimizer)",
        "print(scaler.state_dict())  # AMP402",
        "scaler.update()",
    ),
)
case(
    "the state is saved when a step fails, good",
    loop(
        LOSS,
        "try:\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n"
        "except RuntimeError:\n    save()\n    raise",
        setup="""
        scaler = GradScaler("cuda")
        def save():
            states = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            torch.save(states, "failed.pt")
        """,
    ),
)
case(
    "a window that is dropped with the scale set by hand, good",
    loop(
        'with autocast("cuda"):\n    loss = criterion(model(x), y)',
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "if clip_grad_norm_(model.parameters(), 1.0) > 9:\n    scaler.update(512.0)\n    optimizer.zero_grad()\n"
        "    continue",
        STEP,
        "optimizer.zero_grad()",
    ),
)
# The effect of a parameter on low precision: with a dimension it promotes, without one it does not.

SCORES = """
class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter({made})

    def forward(self, a, b, mask):
        scores = torch.matmul(a, b.transpose(-1, -2)) {by}
        return scores.masked_fill(mask, -1e9){mark}

scores = Scores().cuda()
with autocast("cuda", dtype=torch.float16):
    out = scores(a, b, mask)
"""
for n, (made, by) in enumerate(
    [
        ("torch.Tensor([0.1])", "/ self.scale.exp()"),
        ("torch.ones(1)", "* self.scale"),
        ("torch.full((4, 1), 0.1)", "+ self.scale.clamp(max=100).exp()"),
    ]
):
    case(f"scores and a parameter with a dimension, {n}", SCORES.format(made=made, by=by, mark=""))
for n, (made, by) in enumerate(
    [
        ("torch.tensor(0.1)", "/ self.scale.exp()"),
        ("torch.ones([])", "* self.scale"),
        ("torch.ones(1, dtype=torch.float16)", "* self.scale"),
        ("torch.ones(1)", "@ self.scale"),
    ]
):
    case(f"scores and a parameter, {n}, bad", SCORES.format(made=made, by=by, mark="  # AMP506"))


case(
    "a buffer that is registered as what it was before, bad",
    """
    class Table(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.table = torch.arange(n)
            self.register_buffer("table", self.table.float())

        def forward(self, x):
            return x * self.table

    table = Table(8).cuda()
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(table(x)), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
    """,
)

# A name that selects a dtype, tested through the dtype.

DTYPE = """
if args.amp == "fp32":
    dtype = torch.float32
elif args.amp == "fp16":
    dtype = torch.float16
elif args.amp == "bf16":
    dtype = torch.bfloat16
else:
    raise ValueError(args.amp)
scaler = GradScaler("cuda")
"""
EITHER = """
optimizer.zero_grad()
with autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
    loss = criterion(model(x), y)
if dtype == torch.float32:
    loss.backward()
    optimizer.step()
else:
    scaler.scale(loss).backward()
"""
SAVE = 'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")'
case(
    "a dtype that is float32 or not, saved without the scaler, bad",
    loop(EITHER + indent(STEP, "    ") + f"{SAVE}  # AMP401\n", setup=DTYPE),
)
case(
    "a dtype that is float32 or not, without update, bad",
    loop(EITHER + "    scaler.step(optimizer)  # AMP206\n", setup=DTYPE),
)
case("a dtype that is float32 or not", loop(EITHER + indent(STEP, "    "), setup=DTYPE))

case(
    "unscaled, then the scale set by hand, then stepped, bad",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        "scaler.unscale_(optimizer)",
        "scaler.update(512.0)  # AMP209",
        "scaler.step(optimizer)",
        "scaler.update()",
    ),
)


# Conditions on containers: containers with equal content have the same truth, other containers do not, regardless of
# their memory address.

for _held, _other in (
    ("[1, 2]", "[3, 4]"),
    ("(epoch, 2)", "(epoch, 3)"),
    ('{"every": 2}', '{"every": 3}'),
    ('{"every": [2, (3,)]}', '{"every": [2, (4,)]}'),
    ("epoch > 3", "epoch > 4"),
):
    for _name, _first, _second in (("same", _held, _held), ("other", _held, _other)):
        case(
            f"a question about {_held} and the {_name} one, {'good' if _name == 'same' else 'bad'}",
            loop(
                LOSS,
                "scaler.scale(loss).backward()",
                f"if due(args, {_first}):\n    scaler.unscale_(optimizer)",
                f"if due(args, {_second}):\n    clip_grad_norm_(model.parameters(), 1.0)"
                f"{'' if _name == 'same' else '  # AMP201'}",
                STEP,
                setup='scaler = GradScaler("cuda")\nepoch = int(args.epoch)',
            ),
        )
case(
    "a predicate of a list that each iteration recreates, bad",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        "if due(args, [loss.item(), 1]):\n    scaler.unscale_(optimizer)",
        "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
        STEP,
    ),
)


# The target of a backward is unknown, and yet update() is between two steps.

#: Two networks with losses from a function that is a parameter.
GIVEN_LOSS = """
def train(net0, net1, opt0, opt1, batches, loss_of):
    scaler = GradScaler("cuda")
    for x, y in batches:
        opt0.zero_grad()
        opt1.zero_grad()
        with autocast("cuda"):
            loss0 = loss_of(net0(x), y)
            loss1 = loss_of(net1(x), y)
{steps}"""
ORDERS = {
    "one loss, bad": """
        scaler.scale(loss0 + loss1).backward()
        scaler.step(opt0)
        scaler.update()  # AMP207
        scaler.step(opt1)
        scaler.update()
        """,
    "two losses, bad": """
        scaler.scale(loss0).backward()
        scaler.scale(loss1).backward()
        scaler.step(opt0)
        scaler.update()  # AMP207
        scaler.step(opt1)
        scaler.update()
        """,
    "unscaled after it, bad": """
        scaler.scale(loss0 + loss1).backward()
        scaler.step(opt0)
        scaler.update()  # AMP207
        scaler.unscale_(opt1)
        clip_grad_norm_(net1.parameters(), 1.0)
        scaler.step(opt1)
        scaler.update()
        """,
    "one update, good": """
        scaler.scale(loss0 + loss1).backward()
        scaler.step(opt0)
        scaler.step(opt1)
        scaler.update()
        """,
    "a cycle each, good": """
        scaler.scale(loss0).backward()
        scaler.step(opt0)
        scaler.update()
        scaler.scale(loss1).backward()
        scaler.step(opt1)
        scaler.update()
        """,
    "one of them is stepped, good": """
        scaler.scale(loss0 + loss1).backward()
        if len(x) > 2:
            scaler.step(opt0)
        else:
            scaler.step(opt1)
        scaler.update()
        """,
    "the second seldom, good": """
        scaler.scale(loss0).backward()
        scaler.step(opt0)
        scaler.update()
        if len(x) > 2:
            scaler.scale(loss1).backward()
            scaler.step(opt1)
            scaler.update()
        """,
    "cleared between, good": """
        scaler.scale(loss0).backward()
        scaler.step(opt0)
        scaler.update()
        opt1.zero_grad()
        loss_of.accumulate(loss1, scaler, opt1)
        scaler.step(opt1)
        scaler.update()
        """,
}
for _name, _steps in ORDERS.items():
    case(f"an update between two steps, {_name}", GIVEN_LOSS.format(steps=indent(dedent(_steps).strip(), " " * 8)))


def test_an_update_between_steps_of_what_may_be_fed_is_not_certain() -> None:
    steps = indent(dedent(ORDERS["two losses, bad"]).strip(), " " * 8)
    (finding,) = check_source(HEAD + GIVEN_LOSS.format(steps=steps), "train.py")
    assert (finding.code, finding.certain) == ("AMP207", False)


#: A container module of torch, and an access to its parts.
CONTAINERS = {
    "a sequence": ("nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).cuda()", "net(x)", "net"),
    "a list": ("nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 2)])", "net[1](net[0](x))", "net"),
    "a sequence in a sequence": (
        "nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), nn.ReLU())",
        "net(x)",
        "net[0]",
    ),
}
for _name, (_made, _run, _parts) in CONTAINERS.items():
    _setup = f"""
net = {_made}
first = torch.optim.SGD({_parts}[0].parameters(), lr=0.1)
last = torch.optim.SGD({_parts}[-1].parameters(), lr=0.1)
scaler = GradScaler("cuda")
"""
    _both = f'first.zero_grad()\nlast.zero_grad()\nwith autocast("cuda"):\n    loss = criterion({_run}, y)'
    for _kind, _tail in {
        "stepped directly, bad": "last.step()  # AMP204\nscaler.step(first)\nscaler.update()",
        "an update between, bad": "scaler.step(first)\nscaler.update()  # AMP207\nscaler.step(last)\nscaler.update()",
        "one update, good": "scaler.step(first)\nscaler.step(last)\nscaler.update()",
    }.items():
        case(
            f"optimizers over the parts of {_name}, {_kind}",
            loop(_both, "scaler.scale(loss).backward()", _tail, setup=_setup),
        )


# The scale changes at update(): the location of the read decides if it is the scale of the gradients.

#: A loss with a penalty on its gradients, which are divided by a scale read at a variable location.
PENALISED = """
def train(inputs):
    scaler = GradScaler("cuda")
{before}
    for x, y in loader:
        optimizer.zero_grad()
{iteration}
        with autocast("cuda"):
            loss = criterion(model(x), y)
        grads = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        {divided}
        with autocast("cuda"):
            penalty = sum(grad.pow(2).sum() for grad in grads)
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
{after}
"""
READINGS = {
    "before the loop, bad": ("inverse = 1.0 / scaler.get_scale()", "", "[grad * inverse for grad in grads]", ""),
    "the scale before the loop, bad": ("scale = scaler.get_scale()", "", "[grad / scale for grad in grads]", ""),
    "in each iteration, good": ("", "inverse = 1.0 / scaler.get_scale()", "[grad * inverse for grad in grads]", ""),
    "where it is used, good": ("", "", "[grad / scaler.get_scale() for grad in grads]", ""),
    "at the end of each iteration, good": (
        "inverse = 1.0 / scaler.get_scale()",
        "",
        "[grad * inverse for grad in grads]",
        "inverse = 1.0 / scaler.get_scale()",
    ),
    "kept by an object, good": (
        "inputs.inverse = 1.0 / scaler.get_scale()",
        "inputs.refresh()",
        "[grad * inputs.inverse for grad in grads]",
        "",
    ),
}
for _name, (_before, _iteration, _divided, _after) in READINGS.items():
    _wrong = _name.endswith("bad")
    case(
        f"a scale that was read {_name}",
        PENALISED.format(
            before=indent(_before, " " * 4),
            iteration=indent(_iteration, " " * 8),
            divided=f"grads = {_divided}{'  # AMP214' if _wrong else ''}",
            after=indent(_after, " " * 8),
        ),
    )


# Manual clipping of gradients by their own norm.

#: Computations of the norm, and multiplications of the gradients by a factor from the norm.
TAKEN = {
    "stacked": "norm = torch.stack([p.grad.norm() for p in parameters]).norm()",
    "summed": "norm = sum(p.grad.data.norm(2).item() ** 2 for p in parameters) ** 0.5",
    "vector": "norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in parameters]))",
    "foreach": "norm = torch.stack(torch._foreach_norm([p.grad for p in parameters])).norm()",
    "measured by torch": 'norm = clip_grad_norm_(parameters, float("inf"))',
}
EACH = "if norm > 1.0:\n    for p in parameters:\n        "
SHRUNK = {
    "mul_": EACH + "p.grad.mul_(1.0 / (norm + 1e-6)){mark}",
    "mul_ of data": EACH + "p.grad.data.mul_(1.0 / norm){mark}",
    "mul_ of a detached": EACH + "p.grad.detach().mul_(torch.clamp(1.0 / norm, max=1.0)){mark}",
    "div_": EACH + "p.grad.div_(norm){mark}",
    "assigned": EACH + "p.grad = p.grad / norm{mark}",
    "a product assigned": EACH + "p.grad = p.grad * min(1.0, 1.0 / norm){mark}",
    "data assigned": EACH + "p.grad.data = p.grad.data * (1.0 / norm){mark}",
    "copied": EACH + "p.grad.copy_(p.grad / norm){mark}",
    "in place": EACH + "p.grad /= norm{mark}",
    "times in place": EACH + "p.grad *= 1.0 / norm{mark}",
    "foreach": "torch._foreach_mul_([p.grad for p in parameters], (1.0 / (norm + 1e-6)).clamp(max=1.0)){mark}",
    "foreach divided": "torch._foreach_div_([p.grad for p in parameters], norm){mark}",
}
_by_hand = [(norm, how) for norm in TAKEN for how in ("mul_", "foreach")] + [("stacked", how) for how in SHRUNK]
for _norm, _how in dict.fromkeys(_by_hand):
    for _kind, _before, _between in (
        ("bad", "", ""),
        ("unscaled, good", "scaler.unscale_(optimizer)\n", ""),
        ("a true norm, good", "", "norm = norm / scaler.get_scale()\n"),
    ):
        case(
            f"clipped by hand, {_norm}, {_how}, {_kind}",
            loop(
                LOSS,
                "scaler.scale(loss).backward()",
                _before + TAKEN[_norm],
                _between + SHRUNK[_how].format(mark="  # AMP201" if _kind == "bad" else ""),
                STEP,
                setup='scaler = GradScaler("cuda")\nparameters = list(model.parameters())',
            ),
        )
case(
    "gradients that are averaged by hand, good",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        "for p in model.parameters():\n    p.grad /= torch.distributed.get_world_size()\n",
        STEP,
    ),
)
case(
    "gradients over their norm that are only compared, good",
    loop(
        LOSS,
        "scaler.scale(loss).backward()",
        "directions = [p.grad / p.grad.norm() for p in model.parameters()]",
        STEP,
    ),
)


# Each scaler steps only the losses that it has scaled. A clip comes before the step, and the scale stays while
# gradients wait.

#: Two networks with a scaler each.
TWO_SCALERS = """
def train(g, d, batches):
    opt_g = torch.optim.Adam(g.parameters())
    opt_d = torch.optim.Adam(d.parameters())
    scaler_g = GradScaler("cuda")
    scaler_d = GradScaler("cuda")
    for x, y in batches:
        opt_d.zero_grad()
        with autocast("cuda"):
            loss_d = criterion(d(x), y)
        scaler_d.scale(loss_d).backward()
        scaler_d.step(opt_d)
        scaler_d.update()
        opt_g.zero_grad()
        with autocast("cuda"):
            loss_g = criterion(g(x), y)
        scaler_g.scale(loss_g).backward()
{steps}"""
PAIRS = {
    "steps, bad": "scaler_d.step(opt_g)  # AMP205\nscaler_d.update()\nscaler_g.update()",
    "unscales, bad": "scaler_d.unscale_(opt_g)  # AMP205\nclip_grad_norm_(g.parameters(), 1.0)\nscaler_g.update()",
    "updates, bad": "scaler_g.step(opt_g)  # AMP206\nscaler_d.update()  # AMP207",
    "own, good": "scaler_g.step(opt_g)\nscaler_g.update()",
}
for _name, _steps in PAIRS.items():
    case(f"two scalers of which one {_name}", TWO_SCALERS.format(steps=indent(_steps, " " * 8)))
LATE = {
    "after the step, bad": STEP.replace("\n", "\nclip_grad_norm_(model.parameters(), 1.0)  # AMP201\n", 1),
    "after the update, bad": STEP + "clip_grad_norm_(model.parameters(), 1.0)  # AMP201",
    "measured after the step, good": STEP + 'norm = clip_grad_norm_(model.parameters(), float("inf"))',
    "before the step, good": "scaler.unscale_(optimizer)\nclip_grad_norm_(model.parameters(), 1.0)\n" + STEP,
}
for _name, _tail in LATE.items():
    case(f"a clip, {_name}", loop(LOSS, "scaler.scale(loss).backward()", _tail))
case(
    "a clip of another network after a step, good",
    """
    def train(first, second, batches):
        one = torch.optim.SGD(first.parameters(), lr=0.1)
        two = torch.optim.SGD(second.parameters(), lr=0.1)
        scaler = GradScaler("cuda")
        for x, y in batches:
            one.zero_grad()
            two.zero_grad()
            with autocast("cuda"):
                loss = criterion(first(x), y) + criterion(second(x), y)
            scaler.scale(loss).backward()
            scaler.step(one)
            scaler.unscale_(two)
            clip_grad_norm_(second.parameters(), 1.0)
            scaler.step(two)
            scaler.update()
    """,
)
#: An accumulation window in which the program sets the scale.
SET = """
scaler = GradScaler("cuda", init_scale=1024.0)
for i, (x, y) in enumerate(loader):
    with autocast("cuda"):
        loss = criterion(model(x), y) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0:
        scaler.step(optimizer)
        {own}
        optimizer.zero_grad()
    {inside}
"""
case(
    "a scale that is set inside a window, bad",
    SET.format(
        own="scaler.update()",
        inside="else:\n        scaler.update(new_scale=scaler.get_scale() * 2)  # AMP207",
    ),
)
case(
    "a scale that is set after the step, good",
    SET.format(own="scaler.update(new_scale=scaler.get_scale() * 2)", inside="print(i)"),
)


# Text of a finding.


def test_what_a_finding_says() -> None:
    cast = HEAD + dedent(
        """
        scaler = GradScaler("cuda")
        other = nn.Linear(8, 2).half()
        plain = torch.optim.SGD(other.parameters(), lr=0.1)
        for x, y in loader:
            criterion(other(x), y).backward()
            plain.step()
            plain.zero_grad()
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """
    )
    # The loss of its outputs is computed in float16 as well.
    finding, loss = check_source(cast, "train.py")
    assert (finding.code, loss.code) == ("AMP501", "AMP507")
    assert "GradScaler" not in finding.message
    masked = HEAD + 'with autocast("cuda"):\n    scores = model(data[0])\n    scores.masked_fill_(scores > 1, -1e9)\n'
    (finding,) = check_source(masked, "train.py")
    assert finding.code == "AMP506"
    assert "`torch.finfo(scores.dtype).min`" in finding.message
    helper = HEAD + dedent(
        """
        def loss_of(output, target):
            return nn.functional.cross_entropy(output, target)

        for x, y in loader:
            with autocast("cuda"):
                output = model(x)
            loss = loss_of(output, y)
        """
    )
    (finding,) = check_source(helper, "train.py")
    assert (finding.code, finding.site.line) == ("AMP104", len(helper.splitlines()))


# Optimizers that are each stepped under a separate flag: at least one flag is set.

#: Flags around the steps of two optimizers that are parameters.
FROZEN = """
def train(net, optimizers, batches, freeze_first, freeze_last, last):
    scaler = GradScaler("cuda")
    for x, y in batches:
        with autocast("cuda"):
            loss = criterion(net(x), y)
        scaler.scale(loss).backward()
        {steps}
"""
for _name, _steps in {
    "frozen by flags of their own, good": """
        if not freeze_first:
            scaler.step(optimizers[0])
        if not freeze_last:
            scaler.step(optimizers[1])
        scaler.update()
        optimizers[0].zero_grad()
        optimizers[1].zero_grad()
        """,
    "stepped at the end of a window, bad": """
        if last:
            scaler.step(optimizers[0])
            scaler.step(optimizers[1])
        scaler.update()  # AMP303
        if last:
            optimizers[0].zero_grad()
            optimizers[1].zero_grad()
        """,
}.items():
    case(f"two optimizers, {_name}", FROZEN.format(steps=indent(dedent(_steps).strip(), " " * 8).strip()))


# A default that other code overwrites is not a constant.

#: Configurations whose ``amp`` is False by default, and may have another value later.
DEFAULTS = {
    "setattr in a method": """
        class Config:
            def __init__(self):
                self.amp = False

            def update(self, **given):
                for name, value in given.items():
                    setattr(self, name, value)

        config = Config()
        config.update(**vars(args))
        """,
    "setattr in a base class": """
        class Base:
            def update(self, given):
                for name in given:
                    setattr(self, name, given[name])

        class Config(Base):
            def __init__(self):
                self.amp = False

        config = Config()
        config.update(vars(args))
        """,
    "setattr from outside": """
        class Config:
            amp = False

        config = Config()
        for name, value in vars(args).items():
            setattr(config, name, value)
        """,
    "its dict": """
        class Config:
            def __init__(self, **given):
                self.amp = False
                self.__dict__.update(given)

        config = Config(**vars(args))
        """,
    "its vars": """
        class Config:
            def __init__(self, given):
                self.amp = False
                vars(self).update(given)

        config = Config(vars(args))
        """,
    "a dataclass": """
        from dataclasses import dataclass

        @dataclass
        class Config:
            amp: bool = False
            lr: float = 0.1

        config = Config(**vars(args))
        """,
    "a parser": """
        parser = argparse.ArgumentParser()
        parser.add_argument("--amp", action="store_true", default=False)
        config = parser.parse_args()
        """,
}
#: The same configurations as dicts.
DICTS = {
    "update": 'config = {"amp": False}\nconfig.update(vars(args))',
    "update by name": 'config = {"amp": False}\nconfig.update(**vars(args))',
    "a literal": 'config = {"amp": False, **vars(args)}',
    "dict": 'config = dict({"amp": False}, **vars(args))',
    "an operator": 'config = {"amp": False} | vars(args)',
}
_CONFIGURED = [(name, "config.amp", dedent(text)) for name, text in DEFAULTS.items()]
_CONFIGURED += [(f"a dict by {name}", 'config["amp"]', text) for name, text in DICTS.items()]
for _name, _amp, _setup in _CONFIGURED:
    for _unscale in ("", "scaler.unscale_(optimizer)\n"):
        case(
            f"a default that may be overwritten by {_name}, {'good' if _unscale else 'bad'}",
            loop(
                LOSS.replace('"cuda"', f'"cuda", enabled=bool({_amp})'),
                "scaler.scale(loss).backward()",
                _unscale + f"clip_grad_norm_(model.parameters(), 1.0){'' if _unscale else '  # AMP201'}",
                STEP,
                setup=f'{_setup}\nscaler = GradScaler("cuda", enabled=bool({_amp}))',
            ),
        )
#: Configurations whose every value is visible.
CONSTANT = {
    "a name that is known": """
        class Config:
            amp = True

        config = Config()
        setattr(config, "amp", False)
        """,
}
for _name, _setup in CONSTANT.items():
    case(
        f"a default that is the value by {_name}, good",
        loop(
            LOSS.replace('"cuda"', '"cuda", enabled=config.amp'),
            "scaler.scale(loss).backward()",
            "clip_grad_norm_(model.parameters(), 1.0)",
            STEP,
            setup=f'{dedent(_setup)}\nscaler = GradScaler("cuda", enabled=config.amp)',
        ),
    )


case(
    "a flag of one of two configurations is asked again, good",
    loop(
        'optimizer.zero_grad()\nwith autocast("cuda", enabled=config.amp):\n    loss = criterion(model(x), y)',
        "if config.amp:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()",
        "if config.amp:\n    scaler.unscale_(optimizer)",
        "if config.clip:\n    clip_grad_norm_(model.parameters(), 1.0)",
        "if config.amp:\n    scaler.step(optimizer)\n    scaler.update()\nelse:\n    optimizer.step()",
        setup="""\
        class Config:
            def __init__(self):
                self.amp = False
                self.clip = True

            def update(self, given):
                for name, value in given.items():
                    setattr(self, name, value)

        config = Config()
        if args.preset:
            config = args.preset
        config.update(vars(args))
        scaler = GradScaler("cuda")
        """,
    ),
)


# A scaler class of the project checks itself if it is enabled, as torch's does.

case(
    "a scaler with a least scale, good",
    """
    class Floored(GradScaler):
        def __init__(self, enabled, least):
            super().__init__("cuda", enabled=enabled)
            self.least = least

        def update(self):
            if not self._enabled:
                return
            super().update()
            if self._scale < self.least:
                super().update(self.least)

    scaler = Floored(args.amp, 1.0)
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """,
)

# A wrapper of an optimizer may keep float32 copies of weights that are stored in low precision.

WRAPS = """
class Copying:
    def __init__(self, inner):
        self.inner = inner
        self.copies = [p.detach().float().clone() for g in inner.param_groups for p in g["params"]]

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()

low = nn.Linear(8, 2).cuda()
inner = torch.optim.Adam(low.parameters())
low = low.to(torch.bfloat16){mark}
steps = {wrapped}
for x, y in loader:
    steps.zero_grad()
    criterion(low(x).float(), y).backward()
    steps.step()
"""
case("weights of which a wrapper keeps copies, good", WRAPS.format(wrapped="Copying(inner)", mark=""))
case(
    "weights of which a wrapper keeps copies, unless it is one already, good",
    WRAPS.format(wrapped="inner if isinstance(inner, Copying) else Copying(inner)", mark=""),
)
LEFT_OUT = """\
import torch
from torch import nn


def train(model, optimizer, loader, args):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        {before}
        if {test}:
            scaler.step(optimizer)
        {update}
"""
case(
    "an update where a check of the loss leaves out the step, bad",
    LEFT_OUT.format(before="pass", test="torch.isfinite(loss)", update="scaler.update()  # AMP207"),
)
case(
    "an update where a check leaves out the step, after unscale_",
    LEFT_OUT.format(before="scaler.unscale_(optimizer)", test="torch.isfinite(loss)", update="scaler.update()"),
)
case(
    "an update under the check that leaves out the step",
    LEFT_OUT.format(before="good = torch.isfinite(loss)", test="good", update="if good:\n            scaler.update()"),
)
case(
    "an update where a setting leaves out the step",
    LEFT_OUT.format(before="pass", test="not args.frozen", update="scaler.update()"),
)
case("weights that nobody keeps copies of, bad", WRAPS.format(wrapped="inner", mark="  # AMP501"))

# Properties of a window of one micro-batch, and of numbers that exclude one another.

#: Two optimizers. One is stepped early if a window has one micro-batch, and otherwise with the other.
EARLY = """
other = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cuda")
accum = args.accum
for x, y in loader:
    for i in range(accum):
        with autocast("cuda"):
            loss = criterion(model(x), y) / accum
        scaler.scale(loss).backward()
        if {one}:
            scaler.step(other){early}
        with autocast("cuda"):
            loss = criterion(model(x), y) / accum
        scaler.scale(loss).backward()
        if {last}:
            scaler.step(optimizer)
            if {several}:
                scaler.step(other)
            scaler.update()
            optimizer.zero_grad()
            other.zero_grad()
"""
for _alone, _last, _several in (
    ("accum == 1", "i == accum - 1", "accum > 1"),
    ("accum <= 1", "(i + 1) % accum == 0", "accum > 1"),
    ("1 == accum", "i + 1 == accum", "not accum < 2"),
    ("not accum > 1", "i == accum - 1", "accum >= 2"),
):
    case(f"{_alone}, {_last}, {_several}, good", EARLY.format(one=_alone, last=_last, several=_several, early=""))
case(
    "accum == 2 says nothing of a window of one, bad",
    EARLY.format(one="accum == 2", last="i == accum - 1", several="accum > 2", early="  # AMP206"),
)

# Several optimizers in one dict or list, and the condition that distinguishes them from a single optimizer.

#: A step for one optimizer or a dict of optimizers. ``made`` fills the dict ``made``.
ONE_OR_SEVERAL = """
def step(optimizer, scaler, x, y):
    if isinstance(optimizer, dict):
        for each in optimizer.values():
            each.zero_grad()
    else:
        optimizer.zero_grad()
    with autocast("cuda"):
        loss = criterion(model(x), y)
    if isinstance(optimizer, dict):
        if scaler is not None:
            scaler.scale(loss).backward(){clip}
            for each in optimizer.values():
                scaler.step(each)
            scaler.update()
        else:
            loss.backward()
            for each in optimizer.values():
                each.step()
    else:
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()

def build():
    made = {{}}
    if args.frozen:
        made["head"] = {new}(model.head.parameters())
    elif args.data is None:
        made = None
    elif args.split:
        made["text"] = {new}(model.text.parameters())
        made["audio"] = {new}(model.audio.parameters())
    else:
        made["all"] = {new}(model.parameters())
    return made

scaler = GradScaler("cuda") if args.amp else None
chosen = build()
for x, y in loader:
    step(chosen, scaler, x, y)
"""
CLIPPED = "\n            clip_grad_norm_(model.parameters(), 1.0)  # AMP201"
for _new in ("torch.optim.SGD", "new_optimizer"):
    case(f"one optimizer or several of {_new}, good", ONE_OR_SEVERAL.format(new=_new, clip=""))
    case(f"one optimizer or several of {_new}, bad", ONE_OR_SEVERAL.format(new=_new, clip=CLIPPED))
#: Heads with an optimizer each. Each iteration selects two other heads.
HEADS = """
heads = [nn.Linear(2, 2).cuda() for _ in range(8)]
optimizers = [torch.optim.Adam(head.parameters()) for head in heads]
scaler = GradScaler("cuda")
first = int(args.first)
for x, y in loader:
    optimizer.zero_grad()
    for i in range(2):
        optimizers[{index}].zero_grad()
        with autocast("cuda"):
            loss = criterion(heads[{index}](model(x)), y)
        scaler.scale(loss).backward(){clip}
        scaler.step(optimizers[{index}])
    scaler.step(optimizer)
    scaler.update()
"""
CLIPPED = "\n        clip_grad_norm_(heads[{index}].parameters(), 1.0)  # AMP201"
for _index in ("i", "first + i", "(first + i) % 8"):
    case(f"heads {_index}, good", HEADS.format(index=_index, clip=""))
    case(f"heads {_index}, bad", HEADS.format(index=_index, clip=CLIPPED.format(index=_index)))

# Generators run from yield to yield, and the code after their call is reached.

#: Loops over a generator that never ends, by kind.
ENDLESS = {
    "for": ("for x, y in cycle(loader):", ""),
    "enumerate": ("for i, (x, y) in enumerate(cycle(loader)):", ""),
    "zip": ("for i, (x, y) in zip(range(1000), cycle(loader)):", ""),
    "next": ("for i in range(1000):", "x, y = next(batches)\n"),
    "dunder next": ("while True:", "x, y = batches.__next__()\n"),
    "iter": ("for i in range(1000):", "x, y = next(iter(batches))\n"),
}
#: Bodies of the endless generator.
CYCLES = {
    "yield": "for batch in given:\n    yield batch",
    "yield of parts": "for x, y in given:\n    yield x.cuda(), y.cuda()",
    "yield from": "yield from given",
    "yield from a generator": "yield from once(given)",
}
ONCE = """\
def once(given):
    for batch in given:
        yield batch
"""
for _how, _body in CYCLES.items():
    _cycle = f"def cycle(given):\n    while True:\n{indent(_body, '        ')}\n{ONCE}"
    for _what, (_head, _draw) in ENDLESS.items():
        for _unscale in ("", "scaler.unscale_(optimizer)\n"):
            case(
                f"{_what} over a generator that is endless by {_how}, {'good' if _unscale else 'bad'}",
                loop(
                    _draw + LOSS,
                    "scaler.scale(loss).backward()",
                    _unscale + f"clip_grad_norm_(model.parameters(), 1.0){'' if _unscale else '  # AMP201'}",
                    STEP,
                    setup=f'{_cycle}scaler = GradScaler("cuda")\nbatches = cycle(loader)\n',
                    head=_head,
                ),
            )
case(
    "what is saved after an endless generator, bad",
    loop(
        "x, y = next(batches)\n" + LOSS,
        "scaler.scale(loss).backward()",
        STEP,
        'torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")  # AMP401',
        setup="""\
        class Batches:
            def __init__(self, given):
                self.given = given

            def forever(self):
                while True:
                    yield from self.given

        scaler = GradScaler("cuda")
        batches = Batches(loader).forever()
        """,
        head="for step in range(1000):",
    ),
)
#: A generator that trains between its yields, and the code that runs it.
TRAINS = """
def steps(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y)
        yield scaler.scale(loss)
        {between}clip_grad_norm_(model.parameters(), 1.0){mark}
        scaler.step(optimizer)
        scaler.update()

scaler = GradScaler("cuda")
{loop}
"""
RUNS = {
    "for": "for loss in steps(loader):\n    loss.backward()",
    "enumerate": "for i, loss in enumerate(steps(loader)):\n    loss.backward()",
    "zip": "for i, loss in zip(range(1000), steps(loader)):\n    loss.backward()",
    "next": "losses = steps(loader)\nfor i in range(1000):\n    next(losses).backward()",
    "yield from": "def all_of():\n    yield from steps(loader)\nfor loss in all_of():\n    loss.backward()",
}
for _name, _loop in RUNS.items():
    case(
        f"a generator that steps what {_name} runs backward, bad",
        TRAINS.format(between="", mark="  # AMP201", loop=_loop),
    )
    case(
        f"a generator that steps what {_name} runs backward, good",
        TRAINS.format(between="scaler.unscale_(optimizer)\n        ", mark="", loop=_loop),
    )
case(
    "a generator that waits in two places of its step, good",
    """
    def steps(loader):
        for x, y in loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            yield "backward", loss
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            yield "unscaled", loss
            scaler.step(optimizer)
            scaler.update()

    scaler = GradScaler("cuda")
    for stage, loss in steps(loader):
        print(stage, loss.item())
    """,
)
case(
    "a generator that keeps a loss for its next iteration, good",
    """
    def steps(batches):
        loss = None
        while True:
            if loss is not None:
                scaler.scale(loss).backward()
                yield loss
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            with autocast("cuda"):
                loss = model(next(batches)).sum()
            yield None

    scaler = GradScaler("cuda")
    for step in range(2):
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = model(step).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for loss in steps(iter(loader)):
        print(loss)
    """,
)
case(
    "a generator that does its last step at its end, good",
    """
    def steps(loader):
        for i, (x, y) in enumerate(loader):
            with autocast("cuda"):
                loss = criterion(model(x), y) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            yield loss
        optimizer.zero_grad()

    scaler = GradScaler("cuda")
    for loss in steps(loader):
        print(loss.item())
    torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
    """,
)
case(
    "parameters that a generator picks, bad",
    """
    def trainable(module):
        for parameter in module.parameters():
            if parameter.requires_grad:
                yield parameter

    other = nn.Linear(8, 2).cuda()
    opt = torch.optim.SGD(trainable(other), lr=0.1)
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        opt.zero_grad()
        with autocast("cuda"):
            loss = criterion(model(x), y) + criterion(other(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(trainable(other), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.step(opt)
        scaler.update()
    """,
)


@in_groups(CASES)
def test_flow(cases: dict[str, str]) -> None:
    check_each(cases, check_flow)


def check_flow(name: str, source: str) -> None:
    expected = marks(source)
    assert bool(expected) == name.endswith("bad"), "the name of the case says the opposite"
    findings = check_source(source, "train.py")
    assert places(findings) == expected, f"{shown(findings)}\n{source[len(HEAD) :]}"


def test_names_of_cases_are_unique() -> None:
    names = [name for name, _ in CASES]
    assert sorted(set(names)) == sorted(names)


# Code that is expected to raise, with every exit from its body.

#: The body of a ``with`` that expects an error, which leaves a function, an iteration or a loop, or is in a generator.
RAISING = {
    "return": """
        def refuse(values):
            with pytest.raises(ValueError):
                {wrong}
                return values[0]
            clip()

        refuse([1, 2])
        """,
    "return-in-finally": """
        def refuse(values):
            try:
                with pytest.raises(ValueError), torch.no_grad():
                    if values:
                        return {wrong}
            finally:
                print("done")
            clip()

        refuse([1, 2])
        """,
    "break": """
        for value in range(1000):
            with pytest.raises(ValueError):
                {wrong}
                break
        clip()
        """,
    "continue": """
        for value in range(1000):
            with pytest.raises(ValueError):
                if value:
                    continue
                {wrong}
            clip()
        """,
    "return-in-a-method": """
        class Suite(unittest.TestCase):
            def test_it(self):
                with self.assertRaises(RuntimeError):
                    return {wrong}
                clip()
        """,
    "return-through-a-manager": """
        @contextmanager
        def expecting(kind):
            with pytest.raises(kind):
                yield

        def refuse():
            with expecting(ValueError):
                return {wrong}
            clip()

        refuse()
        """,
    "nested": """
        def refuse(values):
            for value in values:
                with pytest.raises(ValueError):
                    with pytest.raises(TypeError):
                        {wrong}
                        break
                    return None
            clip()

        refuse([1, 2])
        """,
}


@pytest.mark.parametrize("name", RAISING)
def test_what_is_written_to_raise_may_be_left_in_any_way(name: str) -> None:
    clip = """
        import pytest, unittest

        def misuse():
            MISUSE

        scaler = GradScaler("cuda")

        def clip():
            for x, y in loader:
                optimizer.zero_grad()
                with autocast("cuda"):
                    loss = criterion(model(x), y)
                scaler.scale(loss).backward()
                clip_grad_norm_(model.parameters(), 1.0)  # AMP201
                scaler.step(optimizer)
                scaler.update()
        """
    source = HEAD + dedent(clip) + dedent(RAISING[name]).replace("{wrong}", "misuse()")
    # More events happen before it.
    source = source.replace("MISUSE", "; ".join(["scaler.unscale_(optimizer)"] * 40))
    findings = check_source(source, "train.py")
    assert places(findings) == marks(source), shown(findings)


# Conditions of any length.


@pytest.mark.parametrize("size", [3, 200])
def test_a_condition_of_any_length_is_one_question(size: int) -> None:
    flags = " and ".join(f"args.flag{i}" for i in range(size))
    scaled = "scaler.scale(loss).backward()"
    right = loop(LOSS, scaled, f"if {flags}:\n    scaler.unscale_(optimizer)", clip_if(flags), STEP)
    assert not check_source(HEAD + right)
    wrong = loop(LOSS, scaled, f"if {flags}:\n    scaler.unscale_(optimizer)", clip_if(f"not ({flags})"), STEP)
    (finding,) = check_source(HEAD + wrong)
    assert finding.code == "AMP201"


def clip_if(condition: str) -> str:
    return f"if {condition}:\n    clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("test", "condition"),
    [
        ("device != 'cpu'", "when `device == 'cpu'` is false"),
        ("not device == 'cpu'", "when `device == 'cpu'` is false"),
        ("clip > 0", "when `clip > 0` is true"),
        ("clip <= 0", "when `clip <= 0` is true"),
        ("len(x) < k", "when `len(x) < k` is true"),
        ("len(x) >= k", "when `len(x) >= k` is true"),
        ("i % 4 != 0", "when `i % 4 == 0` is false"),
        ("i % 4", "when `i % 4 == 0` is false"),
        ("i % 4 > 0", "when `i % 4 > 0` is true"),
        ("clip is not None", "when `clip is None` is false"),
    ],
)
def test_the_condition_that_is_said_is_the_one_of_the_mistake(test: str, condition: str) -> None:
    source = f"""
import torch

def train(model, optimizer, loader, k, device, clip):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if {test}:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    (finding,) = check_source(source)
    assert (finding.code, finding.condition) == ("AMP201", condition)
