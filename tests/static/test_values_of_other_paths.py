"""Values that later iterations, other functions or other branches replace: the code behind their tests is analyzed."""

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


#: Flags, and code in which one branch replaces them; the other branch reaches a training step.
BRANCHES = {
    "an attribute of an argument": (
        "args.fp16",
        """
        if args.device == "cpu":
            args.fp16 = False
        """,
    ),
    "an attribute that is tested": (
        "args.fp16",
        """
        if args.fp16 is None:
            args.fp16 = False
        """,
    ),
    "an item of an argument": (
        "fp16",
        """
        if args["device"] == "cpu":
            args["fp16"] = False
        fp16 = args["fp16"]
        """,
    ),
    "an item of a dict": (
        "fp16",
        """
        options = {"fp16": True, "clip": 1.0}
        if args.device == "cpu":
            options["fp16"] = False
        fp16 = options["fp16"]
        """,
    ),
    "an item of a list": (
        "fp16",
        """
        options = [True, 1.0]
        if args.device == "cpu":
            options[0] = False
        fp16 = options[0]
        """,
    ),
    "an attribute in a handler": (
        "args.fp16",
        """
        try:
            args.check()
        except RuntimeError:
            args.fp16 = False
        """,
    ),
    "an attribute where an import fails": (
        "args.fp16",
        """
        try:
            import apex
        except ImportError:
            args.fp16 = False
        """,
    ),
    "an attribute before a break": (
        "args.fp16",
        """
        for name in args.devices:
            if name == "cpu":
                args.fp16 = False
                break
        """,
    ),
    "an attribute before a return": (
        "args.fp16",
        """
        def check():
            if args.device == "cpu":
                args.fp16 = False
                return
            args.device = "cuda"

        check()
        """,
    ),
    "a variable in a while loop": (
        "fp16",
        """
        fp16 = True
        while args.pending():
            fp16 = False
        """,
    ),
    "an attribute in a while loop": (
        "args.fp16",
        """
        while args.pending():
            args.fp16 = False
        """,
    ),
    "an attribute of an object": (
        "fp16",
        """
        class Options:
            fp16 = True

        options = Options()
        if args.device == "cpu":
            options.fp16 = False
        fp16 = options.fp16
        """,
    ),
    "the option of a command": (
        "args.fp16",
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--fp16", action="store_true")
        args = parser.parse_args()
        if not torch.cuda.is_available():
            args.fp16 = False
        """,
    ),
}


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("branch", BRANCHES)
def test_steps_that_one_branch_disables(tmp_path: Path, branch: str, right: bool) -> None:
    flag, start = BRANCHES[branch]
    step = f"for x in loader:\n    if {flag}:\n        STEP\n"
    text = (
        "import argparse\nimport torch\n\n"
        "def train(model, loader, optimizer, args):\n"
        '    scaler = torch.amp.GradScaler("cuda")\n'
        + textwrap.indent(textwrap.dedent(start) + _insert_step(step, right=right), "    ")
    )
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


#: Settings of other files and libraries, and tests of them behind which a training step stands.
SETTINGS = {
    "flags of a library": ("from absl import flags\nFLAGS = flags.FLAGS", "not FLAGS.fast"),
    "a module": ("import settings", "settings.max_norm is None"),
    "an attribute of an attribute": ("from lib.conf import cfg", "not cfg.TRAIN.FAST"),
    "a constant": ("from lib.conf import FAST", "not FAST"),
    "a comparison": ("from lib.conf import cfg", 'cfg.mode == "slow"'),
    "a library's state": ("import wandb", "wandb.run is None"),
    "the version of torch": ("", "torch.version.hip is not None"),
    "a backend of torch": ("", "not torch.backends.cudnn.benchmark"),
}


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_behind_settings_of_other_files(tmp_path: Path, setting: str, right: bool) -> None:
    head, test = SETTINGS[setting]
    program = f"""
        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                if {test}:
                    STEP
        """
    (tmp_path / "train.py").write_text(f"import torch\n{head}\n" + _insert_step(program, right=right), encoding="utf-8")
    assert found(tmp_path) == marks(tmp_path)


def test_settings_that_are_tested_twice_have_one_answer(tmp_path: Path) -> None:
    program = """
        def train(model, loader, optimizer):
            scaler = torch.amp.GradScaler("cuda") if cfg.AMP.ON else None
            for x in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16, enabled=cfg.AMP.ON):
                    loss = model(x).mean()
                if cfg.AMP.ON:
                    scaler.scale(loss).backward()
                    if cfg.CLIP is not None:
                        scaler.unscale_(optimizer)
                else:
                    loss.backward()
                if cfg.CLIP is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.CLIP)
                if cfg.AMP.ON:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
        """
    (tmp_path / "train.py").write_text(
        "import torch\nfrom lib.conf import cfg\n" + textwrap.dedent(program), encoding="utf-8"
    )
    assert found(tmp_path) == set()


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
