"""Values that later iterations or other functions replace: code behind them runs although they start empty."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from trees import found, marks

STEP = """\
with torch.autocast("cuda", torch.float16):
    loss = model(x)
scaler.scale(loss).backward()
{unscale}
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0){mark}
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
"""
#: Loops in which a training step runs only after the first iteration.
LOOPS = {
    "None, then a value of unread code": """
        last = None
        for x in loader:
            if last is None:
                last = prepare(x)
            else:
                last = combine(last, x)
                STEP
        """,
    "not None": """
        last = None
        for x in loader:
            if last is not None:
                STEP
            last = prepare(x)
        """,
    "None by its truth": """
        last = None
        for x in loader:
            if not last:
                last = prepare(x)
                continue
            STEP
        """,
    "None of an attribute": """
        state.last = None
        for x in loader:
            if state.last is None:
                state.last = prepare(x)
            else:
                STEP
        """,
    "None in a while loop": """
        last = None
        while True:
            x = next(loader)
            if last is None:
                last = prepare(x)
            else:
                STEP
        """,
    "None in an inner loop": """
        for epoch in range(3):
            last = None
            for x in loader:
                if last is not None:
                    STEP
                last = prepare(x)
        """,
    "None of several names": """
        last, count = None, 0
        for x in loader:
            if last is not None and count > 3:
                STEP
            last, count = prepare(x), count + 1
        """,
    "None of an inner loop's variable": """
        last = None
        for x in loader:
            if last is not None:
                STEP
            for last in prepare(x):
                print(last)
        """,
    "None for isinstance": """
        last = None
        for x in loader:
            if isinstance(last, torch.Tensor):
                STEP
            last = prepare(x)
        """,
    "None for a flag": """
        last = None
        for x in loader:
            ready = False if last is None else True
            if ready:
                STEP
            last = prepare(x)
        """,
    "None as an argument": """
        def run(x, last=None):
            if last is not None:
                STEP
            return x

        last = None
        for x in loader:
            last = run(x, last)
        """,
    "an empty list that a sum extends": """
        history = []
        for x in loader:
            if not history:
                history += [x]
                continue
            STEP
        """,
    "an empty list with append": """
        history = []
        for x in loader:
            if history:
                STEP
            history.append(x)
        """,
    "None in a dict": """
        state = {"last": None}
        for x in loader:
            if state["last"] is None:
                state["last"] = x
            else:
                STEP
        """,
    "a number in a dict": """
        state = {"count": 0}
        for x in loader:
            state["count"] += 1
            if state["count"] > 3:
                STEP
        """,
    "None in a dict that is updated": """
        state = {"last": None}
        for x in loader:
            if state["last"] is not None:
                STEP
            state.update(last=x)
        """,
    "None in a list": """
        last = [None]
        for x in loader:
            if last[0] is not None:
                STEP
            last[0] = x
        """,
    "a dict that a function changes": """
        state = {"ready": False}

        def note(*arguments):
            state["ready"] = True

        model.register_forward_hook(note)
        for x in loader:
            if state["ready"]:
                STEP
            else:
                model(x)
        """,
    "a list that a function changes": """
        last = [None]

        def note(x):
            last[0] = x

        for x in loader:
            if last[0] is not None:
                STEP
            note(x)
        """,
    "a nonlocal name": """
        def run(x):
            nonlocal last
            if last is None:
                last = x
                return
            STEP

        last = None
        for x in loader:
            run(x)
        """,
    "a nonlocal number": """
        count = 0

        def note():
            nonlocal count
            count += 1

        for x in loader:
            note()
            if count > 3:
                STEP
        """,
}
GLOBALS = {
    "a scaler that a function makes": """
        scaler = None

        def setup(args):
            global scaler
            if args.amp:
                scaler = torch.amp.GradScaler("cuda")

        def train(model, loader, optimizer):
            for x in loader:
                if scaler is not None:
                    STEP
                else:
                    model(x).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    "a flag that a function sets": """
        scaler, fp16 = torch.amp.GradScaler("cuda"), None

        def setup(args):
            global fp16
            fp16 = args.fp16

        def train(model, loader, optimizer):
            for x in loader:
                if fp16:
                    STEP
        """,
    "everything": """
        model = optimizer = scaler = None

        def setup():
            global model, optimizer, scaler
            model = torch.nn.Linear(1, 1).cuda()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            scaler = torch.amp.GradScaler("cuda")

        def train(loader):
            for x in loader:
                STEP
        """,
    "a value of the last call": """
        scaler, last = torch.amp.GradScaler("cuda"), None

        def run(model, optimizer, x):
            global last
            if last is None:
                last = x
            else:
                STEP

        def train(model, loader, optimizer):
            for x in loader:
                run(model, optimizer, x)
        """,
}


def _insert_step(text: str, *, right: bool) -> str:
    step = STEP.format(unscale="scaler.unscale_(optimizer)" if right else "", mark="" if right else "  # AMP201")
    return re.sub("( *)STEP\n", lambda place: textwrap.indent(step, place[1]), textwrap.dedent(text))


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("loop", LOOPS)
def test_steps_after_the_first_iteration(tmp_path: Path, loop: str, right: bool) -> None:
    text = (
        "import torch\n\n"
        "def train(model, loader, optimizer, state, prepare, combine):\n"
        '    scaler = torch.amp.GradScaler("cuda")\n' + textwrap.indent(_insert_step(LOOPS[loop], right=right), "    ")
    )
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("program", GLOBALS)
def test_steps_behind_globals_that_functions_assign(tmp_path: Path, program: str, right: bool) -> None:
    (tmp_path / "train.py").write_text("import torch\n" + _insert_step(GLOBALS[program], right=right), encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


WINDOW = """\
import torch

{start}
def train(model, loader, optimizer, k):
{indented_start}    scaler = torch.amp.GradScaler("cuda")

    def run(x):
        {declared} count
        with torch.autocast("cuda", torch.float16):
            loss = model(x).mean(){division}
        scaler.scale(loss).backward(){mark}
        count += 1
        if {test}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            {after}

    for x in loader:
        run(x)
"""


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize(
    ("test", "after"), [("count % k == 0", "print(count)"), ("count == k", "count = 0"), ("count >= k", "count = 0")]
)
@pytest.mark.parametrize("declared", ["global", "nonlocal"])
def test_windows_that_a_variable_of_an_outer_scope_counts(
    tmp_path: Path, declared: str, test: str, after: str, right: bool
) -> None:
    text = WINDOW.format(
        start="count = 0\n" if declared == "global" else "",
        indented_start="    count = 0\n" if declared == "nonlocal" else "",
        declared=declared,
        division=" / k" if right else "",
        mark="" if right else "  # AMP301",
        test=test,
        after=after,
    )
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


def test_a_constant_that_no_function_assigns_is_that_constant(tmp_path: Path) -> None:
    program = """
        scaler = None
        options = {"scaler": None}

        def setup():
            scaler = torch.amp.GradScaler("cuda")
            other = {"scaler": None}
            other["scaler"] = scaler

        def train(model, loader, optimizer):
            for x in loader:
                if scaler is not None or options["scaler"] is not None:
                    STEP
        """
    (tmp_path / "train.py").write_text(
        "import torch\n" + _insert_step(program, right=False).replace("  # AMP201", ""), encoding="utf-8"
    )
    assert found(tmp_path) == set()
