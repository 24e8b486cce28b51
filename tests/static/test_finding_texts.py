"""Text of findings: the path of the mistake, and a remedy that the code does not have yet."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch.nn.utils import clip_grad_norm_


def train(model, loader, criterion, clip, force, k, decay):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
"""
FED = """\
optimizer.zero_grad()
with torch.autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
"""
STEP = """\
scaler.step(optimizer)
scaler.update()
"""


def only(*parts: str) -> Finding:
    """Return the only finding in a loop of these parts."""
    (found,) = check_source(HEAD + "".join(indent(dedent(part), "        ") for part in parts))
    return found


#: Code between backward and the end of the iteration, the phrase for the skipped step, and the skipping line.
SKIPS = {
    "a continue": (
        """\
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if norm > 100:
            continue
        scaler.step(optimizer)
        scaler.update()
        """,
        "`continue` skips the step",
        "continue",
    ),
    "an error that is caught, and the step behind it": (
        """\
        try:
            scaler.unscale_(optimizer)
            norm = clip_grad_norm_(model.parameters(), 1.0)
            if not norm.isfinite():
                raise ValueError(norm)
            scaler.step(optimizer)
            scaler.update()
        except ValueError as error:
            print(error)
        """,
        "`except ValueError` skips the step",
        "except ValueError as error:",
    ),
    "a handler of what a clip raises": (
        """\
        try:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(optimizer)
            scaler.update()
        except RuntimeError as error:
            print(error)
        """,
        "`except RuntimeError` skips the step",
        "except RuntimeError as error:",
    ),
    "a continue in a handler": (
        """\
        scaler.unscale_(optimizer)
        try:
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        except RuntimeError:
            continue
        scaler.step(optimizer)
        scaler.update()
        """,
        "`continue` skips the step",
        "continue",
    ),
}


@pytest.mark.parametrize("name", SKIPS)
def test_what_skips_the_step_is_named(name: str) -> None:
    parts, said, line = SKIPS[name]
    source = HEAD + "".join(indent(dedent(part), "        ") for part in (FED, parts))
    found = next(f for f in check_source(source) if f.code == "AMP209")
    assert found.message.endswith(f"call `scaler.update()` also where {said}")
    (step,) = [step for step in found.trace if step.text == "the step is skipped"]
    assert source.split("\n")[step.site.line - 1].strip() == line


def test_a_step_under_a_test_is_skipped_by_the_program() -> None:
    unscaled = "scaler.unscale_(optimizer)\nnorm = clip_grad_norm_(model.parameters(), 1.0)\n"
    found = only(FED, unscaled, "if norm < 100:\n" + indent(STEP, "    "))
    assert found.message.endswith("call `scaler.update()` also where `norm < 100` is false")
    assert found.condition == "when `norm < 100` is false"


def test_the_message_moves_an_early_unscale_behind_the_backward() -> None:
    found = only(
        "scaler.unscale_(optimizer)\n", FED.replace("optimizer.zero_grad()\n", ""), STEP, "optimizer.zero_grad()"
    )
    assert found.code == "AMP209"
    assert found.message.startswith("`scaler.unscale_(optimizer)` runs before the backward pass")
    assert found.message.endswith("move it to between backward and `scaler.step(optimizer)`")


EDIT = "for p in model.parameters():\n    p.grad.add_(p, alpha=decay)\n"


@pytest.mark.parametrize(
    ("test", "condition"),
    [
        ("clip > 0", "when `clip > 0` is false"),
        ("not force", "when `force` is true"),
        ("(i + 1) % k == 0", "when `(i + 1) % k == 0` is false"),
        ("clip is not None", "when `clip is None` is true"),
        ("force and clip > 0", "when `force` is false"),
    ],
)
def test_an_edit_beside_an_unscale_under_a_test_says_when_that_is_left_out(test: str, condition: str) -> None:
    found = only(FED, f"if {test}:\n    scaler.unscale_(optimizer)\n", EDIT, STEP)
    assert (found.code, found.condition) == ("AMP202", condition)


@pytest.mark.parametrize(
    ("test", "conditions"),
    [
        ("clip > 0 or force", {"when `clip > 0` is true", "when `force` is true"}),
        ("clip > 0 and force", {"when `clip > 0` is true and `force` is true"}),
        ("not (clip > 0 or force)", {"when `clip > 0` is false and `force` is false"}),
    ],
)
def test_of_two_tests_only_what_leads_there_is_said(test: str, conditions: set[str]) -> None:
    found = only(FED, f"if {test}:\n    clip_grad_norm_(model.parameters(), 1.0)\n", STEP)
    assert found.code == "AMP201"
    assert found.condition in conditions


SAVED_BY_ANY_NAME = """\
import torch


def save_state(target, path):
    torch.save(target.state_dict(), path)


def main(model, loader, criterion):
    optim = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optim.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
    save_state(model, "model.pt")
    save_state(optim, "optim.pt")
"""


def test_what_a_helper_saves_is_called_as_whoever_gives_it_does() -> None:
    (found,) = check_source(SAVED_BY_ANY_NAME)
    assert found.message.startswith("The checkpoint holds the state of `optim` but not of `scaler`")
    own = SAVED_BY_ANY_NAME.replace("target", "its_optimizer")
    (found,) = check_source(own)
    assert found.message.startswith("The checkpoint holds the state of `its_optimizer` but not of `scaler`")


def test_the_steps_that_lead_to_it_are_those_that_its_rule_is_about() -> None:
    found = only(FED, "scaler.step(optimizer)\n")
    assert [(step.site.line, step.text) for step in found.trace] == [(13, "the scaler steps the optimizer")]


@pytest.mark.parametrize(("called", "certain"), [("k.done(optimizer)", False), ("k.done(model)", True)])
def test_what_an_optimizer_is_handed_to_may_do_what_is_left_out(called: str, certain: bool) -> None:
    found = only(FED.replace("optimizer.zero_grad()\n", ""), STEP, f"{called}\n")
    assert (found.code, found.certain) == ("AMP215", certain)


def test_what_has_no_name_is_put_in_words() -> None:
    source = """\
    import torch

    class Projector(torch.nn.Linear):
        @torch.autocast("cpu", dtype=torch.bfloat16)
        def forward(self, x):
            return super().forward(x)

    model = torch.jit.script(Projector(4, 4))
    """
    (found,) = check_source(dedent(source))
    assert (found.code, found.line) == ("AMP105", 8)
    assert found.message.startswith("autocast decorates a function that TorchScript compiles, ")


def test_a_finding_ends_where_its_expression_ends() -> None:
    found = only(FED, "clip_grad_norm_(\n    model.parameters(),\n    1.0,\n)\n", STEP)
    assert (found.code, found.site.line, found.site.end_line) == ("AMP201", 13, 16)


@pytest.mark.parametrize("made", ["NEW", "scaler = NEW if flag else OTHER", "scaler = OTHER if old() else NEW"])
@pytest.mark.parametrize(("scaler", "codes"), [("each epoch", {"AMP208"}), ("once", {"AMP401"})])
def test_of_a_scaler_that_is_made_anew_all_the_time_nothing_has_to_be_saved(
    scaler: str, codes: set[str], made: str
) -> None:
    made = made if "=" in made else f"scaler = {made}"
    made = made.replace("NEW", 'torch.amp.GradScaler("cuda")').replace("OTHER", 'torch.amp.GradScaler("cuda", 1024.0)')
    before, within = (made, "pass") if scaler == "once" else ("pass", made)
    source = f"""\
import torch

def train(model, loader, optimizer):
    {before}
    for epoch in range(3):
        {within}
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, "last.pt")

def resume(model, optimizer):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
"""
    assert {finding.code for finding in check_source(source)} == codes


#: Calls with arguments of unexpected effect, and the complete messages.
ARGUMENTS = {
    "torch.autocast()": (
        '`torch.autocast` has no device type, which torch requires: pass `"cuda"` (or `"cpu"`) as the first argument'
    ),
    'torch.autocast(torch.device("cuda"))': (
        "`torch.autocast` is given a torch.device, which torch rejects: pass the device type, as in `device.type`"
    ),
    "torch.autocast(True)": (
        "`torch.autocast` is given True as its device type, which torch rejects: pass a string "
        'such as "cuda" first and the other arguments by name'
    ),
    "torch.autocast(0)": (
        "`torch.autocast` is given 0 as its device type, which torch rejects: pass a string "
        'such as "cuda" first and the other arguments by name'
    ),
    "torch.autocast(torch.float16)": (
        "`torch.autocast` is given torch.float16 as its device type, which torch rejects: pass "
        'a string such as "cuda" first and the other arguments by name'
    ),
    'torch.autocast("gpu")': (
        '`torch.autocast` is given \'gpu\', which is not a device type of autocast: pass "cuda", "cpu", "xpu" or '
        '"mps" in lower case'
    ),
    'torch.autocast("CUDA")': (
        '`torch.autocast` is given \'CUDA\', which is not a device type of autocast: pass "cuda", "cpu", "xpu" '
        'or "mps" in lower case'
    ),
    'torch.autocast("cpu:")': (
        '`torch.autocast` is given \'cpu:\', which is not a device type of autocast: pass "cuda", "cpu", "xpu" '
        'or "mps" in lower case'
    ),
    'torch.autocast("cuda:0")': (
        "`torch.autocast` is given 'cuda:0', whose index skips torch's checks for CUDA and bfloat16: pass 'cuda'"
    ),
    'torch.autocast("cuda:all")': (
        '`torch.autocast` is given \'cuda:all\', which is not a device type of autocast: pass "cuda", "cpu", '
        '"xpu" or "mps" in lower case'
    ),
    'torch.autocast("cuda", dtype=True)': (
        "`torch.autocast` is given True as its dtype, which fails when the region is entered: write `enabled=True`"
    ),
    'torch.autocast("cuda", dtype=0)': (
        "`torch.autocast` is given 0 as its dtype, which fails when the region is entered: write `enabled=False`"
    ),
    'torch.autocast("cuda", dtype="float16")': (
        "`torch.autocast` is given the string 'float16' as its dtype, which fails when the region is entered: pass a "
        "dtype object, such as `torch.float16`"
    ),
    'torch.autocast("cpu", dtype=torch.float32)': (
        "`torch.autocast` is given `torch.float32`, which cpu autocast does not support, so autocast switches "
        "itself off: pass `torch.bfloat16` or `torch.float16`, or write `enabled=False`"
    ),
    'torch.autocast("cpu:0", dtype=torch.float64)': (
        "`torch.autocast` is given 'cpu:0', whose index skips torch's checks for CUDA and bfloat16: pass 'cpu'"
    ),
    'torch.autocast("cuda", enabled=1)': (
        "`torch.autocast` is given 1 as `enabled`, but torch accepts only True or False: pass a bool"
    ),
    'torch.autocast("cuda", enabled="yes")': (
        "`torch.autocast` is given 'yes' as `enabled`, but torch accepts only True or False: pass a bool"
    ),
    'torch.autocast("cuda", enabled=torch.float16)': (
        "`torch.autocast` is given `torch.float16` as `enabled`: write `dtype=torch.float16`"
    ),
    'torch.autocast("cuda", enabled=torch.device("cuda"))': (
        "`torch.autocast` takes no device, so a torch.device lands in `enabled`: call "
        "`torch.autocast` with the device type"
    ),
    'torch.autocast("cuda", cache_enabled=0)': (
        "`torch.autocast` is given 0 as `cache_enabled`, but torch accepts only True or False: pass a bool"
    ),
    'torch.autocast("cuda", enable=True)': (
        "`torch.autocast` has no argument `enable`, which raises TypeError: use one of device_type, dtype, enabled, "
        "cache_enabled"
    ),
    'torch.autocast("cuda", torch.float16, True, True, 5)': (
        "`torch.autocast` takes 4 arguments and is given more, which raises TypeError: pass them by name"
    ),
    'torch.cuda.amp.autocast("cuda")': (
        "`torch.cuda.amp.autocast` takes no device, so 'cuda' lands in `enabled`: call "
        "`torch.autocast` with the device type"
    ),
    'torch.cuda.amp.autocast(torch.device("cuda"))': (
        "`torch.cuda.amp.autocast` takes no device, so a torch.device lands in `enabled`: call "
        "`torch.autocast` with the device type"
    ),
    "torch.cuda.amp.autocast(torch.float16)": (
        "`torch.cuda.amp.autocast` is given `torch.float16` as `enabled`: write `dtype=torch.float16`"
    ),
    "torch.cpu.amp.autocast(dtype=torch.float32)": (
        "`torch.cpu.amp.autocast` is given `torch.float32`, which cpu autocast does not support, so autocast "
        "switches itself off: pass `torch.bfloat16` or `torch.float16`, or write `enabled=False`"
    ),
    'torch.cuda.amp.autocast(device_type="cuda")': (
        "`torch.cuda.amp.autocast` has no argument `device_type`, which raises TypeError: use one of enabled, dtype, "
        "cache_enabled"
    ),
    "torch.amp.GradScaler(0)": (
        "`torch.amp.GradScaler` is given 0 as its `device`, which is a device type and not an "
        "index: pass `'cuda'` or `'cpu'`"
    ),
    "torch.amp.GradScaler(15)": (
        "`torch.amp.GradScaler` is given 15 as its `device`, which is a device type and not an "
        "index: pass `'cuda'` or `'cpu'`"
    ),
    "torch.amp.GradScaler(16)": (
        "`16` lands in `device`, the first parameter of `torch.amp.GradScaler`, and is ignored: pass it as "
        "`init_scale=16`"
    ),
    "torch.amp.GradScaler(1024.0)": (
        "`1024.0` lands in `device`, the first parameter of `torch.amp.GradScaler`, and is ignored: pass it as "
        "`init_scale=1024.0`"
    ),
    "torch.amp.GradScaler(-1)": (
        "`-1` lands in `device`, the first parameter of `torch.amp.GradScaler`, and is ignored: pass it as "
        "`init_scale=-1`"
    ),
    "torch.amp.GradScaler(False)": (
        "`False` lands in `device`, the first parameter of `torch.amp.GradScaler`, and is ignored: pass it as "
        "`enabled=False`"
    ),
    "torch.amp.GradScaler(True)": (
        "`True` lands in `device`, the first parameter of `torch.amp.GradScaler`, and is ignored: pass it as "
        "`enabled=True`"
    ),
    "torch.cuda.amp.GradScaler(True)": (
        "`True` lands in the `init_scale` parameter of `torch.cuda.amp.GradScaler`, so the "
        "loss scale is 1.0: pass it as `enabled=True`"
    ),
    'torch.cuda.amp.GradScaler("cuda")': (
        "`torch.cuda.amp.GradScaler` is given 'cuda' as its `init_scale`, which must be a number: pass the device as "
        "the first argument of `torch.amp.GradScaler`"
    ),
    'torch.cuda.amp.GradScaler(torch.device("cuda"))': (
        "`torch.cuda.amp.GradScaler` is given a torch.device as its `init_scale`, which must be a number: pass the "
        "device as the first argument of `torch.amp.GradScaler`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=False)': (
        "`False` lands in the `init_scale` parameter of `torch.amp.GradScaler`, so the loss "
        "scale is 0.0: pass it as `enabled=False`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=0)': (
        "`init_scale=0` multiplies every loss by a number that is not positive: pass a power of two, or `enabled=False`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=0.0)': (
        "`init_scale=0.0` multiplies every loss by a number that is not positive: pass a power "
        "of two, or `enabled=False`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=-2.5)': (
        "`init_scale=-2.5` multiplies every loss by a number that is not positive: pass a "
        "power of two, or `enabled=False`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=2.0**25)': (
        "`init_scale=33554432.0` is above 2**24, so the first steps overflow and are skipped: "
        "start at the default of 2**16"
    ),
    'torch.amp.GradScaler("cuda", growth_factor=0.5, backoff_factor=2.0)': (
        "`growth_factor` is 0.5 and `backoff_factor` is 2.0, the wrong way round, so torch raises: pass both by name"
    ),
    'torch.amp.GradScaler("cuda", growth_factor=1.0)': (
        "`growth_factor=1.0` never lets the scale grow, so torch raises: pass a number above 1.0, by default 2.0"
    ),
    'torch.amp.GradScaler("cuda", backoff_factor=1.0)': (
        "`backoff_factor=1.0` does not lower the scale after an overflow, so torch raises: "
        "pass a number below 1.0, by default 0.5"
    ),
    'torch.amp.GradScaler("cuda", backoff_factor=0.0)': (
        "`backoff_factor=0.0` makes the scale zero or negative after the first overflow: pass "
        "a number between 0.0 and 1.0, by default 0.5"
    ),
    'torch.amp.GradScaler("cuda", backoff_factor=-1)': (
        "`backoff_factor=-1` makes the scale zero or negative after the first overflow: pass a "
        "number between 0.0 and 1.0, by default 0.5"
    ),
    'torch.amp.GradScaler("cuda", growth_interval=0)': (
        "`growth_interval=0` lets the scale fall but never grow again: pass a positive number of steps, by default 2000"
    ),
    'torch.amp.GradScaler("cuda", growth_interval=1)': (
        "`growth_interval=1` raises the scale so often that it overflows and many steps are skipped: pass a few "
        "hundred steps or more, by default 2000"
    ),
    'torch.amp.GradScaler("cuda", growth_interval=49)': (
        "`growth_interval=49` raises the scale so often that it overflows and many steps are skipped: pass a few "
        "hundred steps or more, by default 2000"
    ),
    'torch.amp.GradScaler("cuda", enabled=torch.bfloat16)': (
        "`torch.amp.GradScaler` is enabled for bfloat16, which needs no scaling, and disabled for float16, which "
        "does: pass `enabled=(dtype == torch.float16)`"
    ),
    'torch.amp.GradScaler("cuda", init_scale=0, growth_interval=0)': (
        "`init_scale=0` multiplies every loss by a number that is not positive: pass a power of two, or `enabled=False`"
    ),
}
#: Similar calls without a finding.
SOUND = [
    'torch.autocast("cpu", dtype=torch.float32, enabled=False)',
    'torch.autocast("cuda", dtype=torch.float32)',
    'torch.autocast("npu", dtype=torch.float32)',
    "torch.autocast(**options)",
    'torch.autocast("cuda", **options)',
    "torch.autocast(device_type=device)",
    'torch.amp.GradScaler("cuda", init_scale=1)',
    'torch.amp.GradScaler("cuda", init_scale=2.0**24)',
    'torch.amp.GradScaler("cuda", growth_factor=1.01)',
    'torch.amp.GradScaler("cuda", backoff_factor=0.25)',
    'torch.amp.GradScaler("cuda", growth_interval=50)',
    'torch.amp.GradScaler("cuda", growth_interval=True)',
    'torch.amp.GradScaler("cuda", enabled=False, init_scale=0)',
    'torch.amp.GradScaler("cuda", enabled=torch.float16)',
]


@pytest.mark.parametrize("call", [*ARGUMENTS, *SOUND])
def test_what_is_said_of_arguments(call: str) -> None:
    found = check_source(f"import torch\n\nmade = {call}\n")
    reported = [finding.message for finding in found if finding.code in ("AMP106", "AMP216")]
    assert reported == ([ARGUMENTS[call]] if call in ARGUMENTS else [])


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (
            'def train(model, x):\n    torch.autocast("cuda")\n    return model(x)\n',
            "2 `torch.autocast` is constructed and dropped, so nothing runs under it",
        ),
        ('def train(model, x):\n    amp = torch.autocast("cuda")\n    amp\n    return model(x)\n', ""),
        (
            '@torch.autocast("cuda")\ndef batches(loader):\n    yield from loader\n',
            "1 `torch.autocast` decorates a generator or a coroutine, whose body runs after the region has closed",
        ),
        (
            'amp = torch.autocast("cuda")\n@amp\ndef batches(loader):\n    yield from loader\n',
            "2 `amp` decorates a generator or a coroutine, whose body runs after the region has closed",
        ),
        (
            '@torch.autocast("cuda")\nasync def first(loader):\n    return loader\n',
            "1 `torch.autocast` decorates a generator or a coroutine, whose body runs after the region has closed",
        ),
        ('@torch.autocast("cuda")\ndef first(loader):\n    return loader\n', ""),
        ("@torch.no_grad()\ndef batches(loader):\n    yield from loader\n", ""),
    ],
)
def test_what_is_said_of_regions_that_cover_nothing(source: str, reported: str) -> None:
    found = check_source(f"import torch\n{source}")
    assert [f"{each.line - 1} {each.message.partition(': ')[0]}" for each in found] == [reported] * bool(reported)


def test_a_flag_of_an_instance_is_named_as_in_the_class() -> None:
    source = """\
import torch

class Job:
    def start(self):
        self.amp = torch.tensor(self.options.amp)
        if self.amp and RANK == 0:
            self.amp = probe(self.model)
        self.amp = bool(self.amp)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.amp)

    def train(self):
        self.start()
        for step, batch in enumerate(self.loader):
            with torch.autocast("cuda", enabled=self.amp):
                self.loss, self.parts = self.model(batch)
            if self.amp:
                self.scaler.scale(self.loss).backward()
            else:
                self.loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
    (found,) = [finding for finding in check_source(source, "job.py") if finding.code == "AMP204"]
    assert found.condition == "when `self.amp` is true"
