"""The results of fixes on source: correct, complete, and without other changes."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import runpy
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libcst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import MISTAKES
from negative_examples import negative_examples
from samples import sample
from warm import run_command

from pytest_amp_check.frontends import check_run, cli, output, rule_text
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.fix import Edit
from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.static import engine
from pytest_amp_check.static.fixes import edits, fix_files
from pytest_amp_check.static.fixes.edited_file import EditedFile
from pytest_amp_check.static.fixes.fix_files import FixResult
from pytest_amp_check.static.fixes.fixers import FIXERS
from pytest_amp_check.static.fixes.layout import ProgramLayout
from pytest_amp_check.static.fixes.matchers import NotFixable
from pytest_amp_check.static.fixes.pending_rewrites import PendingRewrite
from pytest_amp_check.static.fixes.rewrite_spec import RewriteSpec
from pytest_amp_check.static.settings import Settings

FIXTURES = Path(__file__).parents[2] / "fixtures"
FIXED = {code: rule for code, rule in RULES.items() if rule.applicability}
HEAD = "import torch\nfrom torch import nn\n"
LOOP = """\
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
"""
#: The correct end of a window of the loop above.
END = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

every_fix = pytest.mark.parametrize("rule", FIXED.values(), ids=FIXED)


def mended(source: str | bytes, path: str = "train.py", *, only: str = "", unsafe: bool = True) -> FixResult:
    """Fix a single file. The findings come from the default rules, or from the rule ``only``."""
    document = EditedFile.from_bytes(path, source if isinstance(source, bytes) else source.encode())
    settings = Settings(select=frozenset([only])) if only and only != "AMP902" else Settings()
    tree = engine.single_file_project(document.text, path)
    found = engine.check_in_project(document.text, path, settings, tree)
    return fix_files.fix_file(document, found, settings, tree, unsafe=unsafe)


def after(source: str, *, only: str = "", unsafe: bool = True) -> str:
    return mended(source, only=only, unsafe=unsafe).fixed_document.raw_text


def codes(source: str) -> list[str]:
    return [finding.code for finding in engine.check_source(source, "train.py")]


def unmarked(source: str) -> str:
    return re.sub(r"(?m)\s+# AMP\d+$", "", source)


# The examples of the rules.

#: Replacements that fixes make in a bad example if the result differs from the good example.
EXPECTED = {
    "AMP102": [("        with ctx:\n", '        with torch.autocast("cpu", dtype=torch.bfloat16):\n')],
    # A person must decide about the code that runs where a generator is consumed.
    "AMP105": [
        (
            '    torch.autocast("cpu", dtype=torch.bfloat16)\n',
            '    with torch.autocast("cpu", dtype=torch.bfloat16):\n',
        ),
        ('    print("bare', '        print("bare'),
        ('    print("decorated', '        print("decorated'),
        ('    print("consumer', '        print("consumer'),
    ],
    # A person must decide a device that nothing else names, and the intended dtype.
    "AMP106": [
        ("torch.autocast(device,", "torch.autocast(device.type,"),
        ("torch.autocast(dtype=torch.bfloat16)", 'torch.autocast(device_type="cpu", dtype=torch.bfloat16)'),
        ('torch.autocast("cpu", True)', 'torch.autocast("cpu", enabled=True)'),
    ],
    "AMP401": [
        ('"optimizer": optimizer.state_dict()}', '"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}')
    ],
    "AMP216": [("GradScaler(1024.0)", "GradScaler(init_scale=1024.0)")],
    "AMP506": [("-1e9)", "torch.finfo(scores.dtype).min)")],
    # A person must decide which of two squarings is intended.
    "AMP507": [("torch.log(torch.softmax(y, dim=-1))", "torch.log_softmax(y, dim=-1)")],
    # A script enters no region from within another.
    "AMP901": [
        ("from torch.cuda.amp import", "from torch.amp import"),
        ("GradScaler(1024.0,", 'GradScaler("cuda", 1024.0,'),
        ("autocast(use_amp)", 'autocast("cuda", enabled=use_amp)'),
    ],
}


@every_fix
def test_the_bad_example_becomes_the_good_one(rule: Rule) -> None:
    bad = unmarked(rule.bad_example)
    expected = rule.good_example
    if rule.code in EXPECTED:
        expected = bad
        for old, new in EXPECTED[rule.code]:
            assert old in expected
            expected = expected.replace(old, new)
    outcome = mended(bad)
    assert outcome.fixed_document.raw_text == expected
    assert outcome.refusals == []
    ast.parse(outcome.fixed_document.raw_text)
    if rule.code not in ("AMP105", "AMP106", "AMP507"):
        assert codes(outcome.fixed_document.raw_text) == []


#: The lines with decisions left to a person: those in the source, and those found by a run.
LEFT = {
    "AMP105": (['@torch.autocast("cpu", dtype=torch.bfloat16)', "yield model(batch)"], []),
    "AMP106": 2 * (['with torch.autocast("cpu", dtype=torch.float32):'],),
    "AMP507": (["energy = (y * y).mean()"], []),
}


@pytest.mark.parametrize("code", EXPECTED)
def test_what_is_not_the_good_example_runs_and_has_nothing_wrong(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from agreement import recorded  # needs torch

    from pytest_amp_check import emulate_cuda

    def run() -> None:
        # A scaler of CUDA is enabled everywhere then.
        with emulate_cuda():
            runpy.run_path(str(script), run_name="__main__")

    fixed = mended(unmarked(RULES[code].bad_example)).fixed_document.raw_text
    script = tmp_path / "train.py"
    script.write_text(fixed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    done = recorded(run)
    assert (done.error, done.failure) == (None, None)
    read = engine.check_source(fixed, "train.py", Settings(select=MISTAKES))
    rows = fixed.split("\n")
    found = tuple([rows[finding.line - 1].strip() for finding in by] for by in (read, done.findings))
    assert found == LEFT.get(code, ([], []))


@every_fix
def test_a_second_fix_changes_nothing(rule: Rule) -> None:
    once = mended(rule.bad_example).fixed_document.raw_text
    again = mended(once)
    assert not again.has_changed
    assert again.refusals == []


@every_fix
def test_what_is_right_is_left_alone(rule: Rule) -> None:
    for source in (rule.good_example, *(code for _, code in negative_examples(rule))):
        assert not mended(source, only=rule.code).has_changed


@every_fix
def test_opt_in_fixes_are_made_when_asked_for(rule: Rule) -> None:
    kinds = {finding.code for finding in engine.check_source(unmarked(rule.bad_example))}
    safe = mended(unmarked(rule.bad_example), unsafe=False)
    if rule.applicability == "unsafe":
        assert rule.code not in safe.fixed_counts
    else:
        assert rule.code in safe.fixed_counts
    assert set(safe.fixed_counts) <= kinds


# One rule after the other.


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
        (
            "if max_norm:\n        norm = nn.utils.clip_grad_norm_(\n            model.parameters(), max_norm)  # why",
            None,
        ),
    ],
)
def test_unscale_goes_right_before_the_clip(before: str, expected: str | None) -> None:
    source = (
        HEAD
        + LOOP
        + f"    scaler.scale(loss).backward()\n    {before}\n    scaler.step(optimizer)\n    scaler.update()\n"
    )
    found = after(source)
    if expected:
        assert found == source.replace(f"    {before}", f"    scaler.unscale_(optimizer)\n    {expected}")
    else:
        assert found == source.replace("        norm =", "        scaler.unscale_(optimizer)\n        norm =")
    assert codes(found) == []


def test_an_unscale_after_the_clip_is_moved() -> None:
    source = (
        HEAD
        + LOOP
        + END.replace(
            "    scaler.step",
            "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.unscale_(optimizer)\n    scaler.step",
        )
    )
    assert after(source) == HEAD + LOOP + END.replace(
        "    scaler.step",
        "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step",
    )


def test_two_clips_need_one_unscale() -> None:
    clip = "    nn.utils.clip_grad_norm_({}, 1.0)\n"
    clips = clip.format("model.weight") + clip.format("model.bias")
    source = HEAD + LOOP + END.replace("    scaler.step", clips + "    scaler.step")
    outcome = mended(source)
    assert outcome.fixed_document.raw_text == source.replace(clips, "    scaler.unscale_(optimizer)\n" + clips)
    assert outcome.refusals == []


def test_a_scaler_that_may_be_none_is_asked_for_again() -> None:
    source = HEAD + textwrap.dedent("""\
        def train(model, optimizer, batches, use_amp):
            scaler = torch.amp.GradScaler("cuda") if use_amp else None
            for x, y in batches:
                optimizer.zero_grad()
                with torch.autocast("cuda", enabled=use_amp):
                    loss = nn.functional.mse_loss(model(x), y)
                if scaler is not None:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
        """)
    assert codes(source) == ["AMP201"]
    assert after(source) == source.replace(
        "        nn.utils.clip",
        "        if scaler is not None:\n            scaler.unscale_(optimizer)\n        nn.utils.clip",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A fix must not guess which of two optimizers owns the parameters.
        ("    scaler.step(optimizer)\n", "    scaler.step(optimizer)\n    scaler.step(other)\n"),
        # Each iteration of the loop would unscale again.
        ("    nn.utils.clip", "    for model in (model,):\n      nn.utils.clip"),
        # The line contains another statement, too.
        ("    nn.utils.clip", "    print(); nn.utils.clip"),
    ],
)
def test_no_unscale_where_it_is_not_clear(old: str, new: str) -> None:
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step"
    source = (
        HEAD
        + LOOP.replace("optimizer = ", "other = torch.optim.SGD([], lr=1.0)\noptimizer = ")
        + END.replace("    scaler.step", clip)
    )
    source = source.replace(old, new)
    assert "AMP201" in codes(source)
    assert not mended(source, only="AMP201").has_changed


def test_what_another_function_does_is_no_fix() -> None:
    source = HEAD + textwrap.dedent("""\
        def clip(model):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        def train(model, optimizer, scaler, x):
            scaler = torch.amp.GradScaler("cuda")
            scaler.scale(model(x).mean()).backward()
            clip(model)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """)
    assert "AMP201" in codes(source)
    assert not mended(source, only="AMP201").has_changed


def test_step_by_the_scaler_where_an_update_follows() -> None:
    source = HEAD + LOOP + END.replace("scaler.step(optimizer)", "optimizer.step()  # once")
    assert "AMP204" in codes(source)
    assert after(source) == HEAD + LOOP + END.replace("scaler.step(optimizer)", "scaler.step(optimizer)  # once")


def test_a_loss_keeps_the_arguments_of_its_backward() -> None:
    source = HEAD + LOOP + END.replace("scaler.scale(loss).backward()", "loss.backward(retain_graph=True)")
    expected = source.replace("loss.backward(", "scaler.scale(loss).backward(")
    assert after(source, only="AMP203") == expected


def test_a_loss_that_is_scaled_elsewhere_is_left_alone() -> None:
    source = HEAD + LOOP + END.replace("    scaler.step", "    loss.backward()\n    scaler.step")
    assert not mended(source, only="AMP203").has_changed


def test_update_goes_after_the_last_step() -> None:
    source = (
        HEAD
        + LOOP.replace("scaler =", "other = torch.optim.SGD([nn.Parameter(x)], lr=1.0)\nscaler =")
        + textwrap.indent(
            "other.zero_grad()\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.step(other)\n# the end\n",
            "    ",
        )
    )
    assert "AMP206" in codes(source)
    assert after(source, only="AMP206") == source.replace(
        "scaler.step(other)\n", "scaler.step(other)\n    scaler.update()\n"
    )


def test_what_trails_in_a_region_is_dedented_with_its_comments() -> None:
    inside = textwrap.indent(
        "# now the gradients\n" + textwrap.dedent(END) + "if i % 10 == 0:\n    print(loss.item())\n", " " * 8
    )
    source = HEAD + LOOP + inside
    assert "AMP103" in codes(source)
    assert after(source) == HEAD + LOOP + textwrap.indent(textwrap.dedent(inside), " " * 4)


def test_a_region_with_a_forward_pass_behind_backward_stays() -> None:
    source = HEAD + LOOP + textwrap.indent(textwrap.dedent(END) + "shown = model(x)\n", " " * 8)
    assert "AMP103" in codes(source)
    assert not mended(source, only="AMP103").has_changed


def test_a_text_over_several_lines_is_not_dedented() -> None:
    source = HEAD + LOOP + textwrap.indent(textwrap.dedent(END), " " * 8) + '        print("""\n        loss""")\n'
    assert "AMP103" in codes(source)
    assert not mended(source, only="AMP103").has_changed


@pytest.mark.parametrize("argument", ["init_scale=float(i + 1)", "enabled=x.is_cuda", "init_scale=read()"])
def test_a_scaler_that_depends_on_the_loop_stays_in_it(argument: str) -> None:
    source = HEAD + LOOP.replace('scaler = torch.amp.GradScaler("cuda")\n', "").replace(
        "    optimizer.zero_grad()", f'    scaler = torch.amp.GradScaler("cuda", {argument})\n    optimizer.zero_grad()'
    )
    assert not mended(source + END, only="AMP208").has_changed


def test_update_moves_under_the_test_of_the_step() -> None:
    source = (
        HEAD
        + "k = 4\n"
        + LOOP.replace("    optimizer.zero_grad()\n", "")
        + textwrap.indent(
            textwrap.dedent("""\
            scaler.scale(loss / k).backward()
            if (i + 1) % k == 0:
                scaler.step(optimizer)
                optimizer.zero_grad()
            # every time
            scaler.update()
            """),
            "    ",
        )
    )
    assert "AMP303" in codes(source)
    expected = source.replace("    # every time\n    scaler.update()\n", "").replace(
        "step(optimizer)\n", "step(optimizer)\n        # every time\n        scaler.update()\n"
    )
    assert after(source, only="AMP303") == expected


def test_the_state_is_saved_and_loaded_in_the_style_that_is_there() -> None:
    source = HEAD + textwrap.dedent("""\
        def train(model, batches, path):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler('cuda')
            checkpoint = torch.load(path)
            model.load_state_dict(checkpoint['model'])
            optimizer.load_state_dict(checkpoint['optimizer_state_dict'])
            for x, y in batches:
                optimizer.zero_grad()
                with torch.autocast('cuda', dtype=torch.float16):
                    loss = nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            torch.save({
                'model': model.state_dict(),  # weights
                'optimizer_state_dict': optimizer.state_dict(),  # moments
            }, path)
        """)
    assert codes(source) == ["AMP401"]
    found = after(source)
    assert found == source.replace(
        "  # moments\n", "  # moments\n        'scaler_state_dict': scaler.state_dict(),\n"
    ).replace(
        "(checkpoint['optimizer_state_dict'])\n",
        "(checkpoint['optimizer_state_dict'])\n"
        "    if checkpoint.get('scaler_state_dict'):\n"
        "        scaler.load_state_dict(checkpoint['scaler_state_dict'])\n",
    )
    assert codes(found) == []


def test_a_checkpoint_that_others_load_is_for_people_to_complete() -> None:
    source = unmarked(RULES["AMP401"].bad_example)
    assert mended(source).has_changed
    assert not mended(source + "\nprepare(torch.load('checkpoint.pt'))\n").has_changed
    assert not mended(source + "\nresume_job(model=model, optimizer=optimizer)\n").has_changed


RESUMED = HEAD + textwrap.dedent("""\
    class Trainer:
        def __init__(self, model, path):
            self.model, self.path = model, path
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = torch.amp.GradScaler("cuda")
            self.resume()

        def resume(self):
            state = torch.load(self.path)
            self.optimizer.load_state_dict(state["optimizer"])

        def train(self, batches):
            for x, y in batches:
                self.optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            torch.save({"optimizer": self.optimizer.state_dict()}, self.path)
    """)


def test_a_state_is_loaded_into_a_scaler_that_is_there() -> None:
    load = 'self.optimizer.load_state_dict(state["optimizer"])\n'
    assert codes(RESUMED) == ["AMP401"]
    assert after(RESUMED) == RESUMED.replace(
        load, load + '        if state.get("scaler"):\n            self.scaler.load_state_dict(state["scaler"])\n'
    ).replace("self.optimizer.state_dict()}", 'self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}')
    made = '        self.scaler = torch.amp.GradScaler("cuda")\n'
    resume = "        self.resume()\n"
    for source in (
        RESUMED.replace(made + resume, resume + made),
        # Through another method.
        RESUMED.replace(made + resume, "        self.start()\n" + made).replace(
            "    def train", "    def start(self):\n        self.resume()\n\n    def train"
        ),
        # At the start of training.
        RESUMED.replace(made, "").replace("        for x, y", made + "        for x, y"),
    ):
        assert codes(source) == ["AMP401"]
        assert not mended(source).has_changed


def test_a_device_is_named_where_it_is_autocast_on_every_path() -> None:
    source = "import torch\nfrom torch import autocast\n\nx = autocast(enabled=True)\ny = x.cuda()\n"
    assert codes(source) == ["AMP106"]
    assert after(source) == source.replace("autocast(enabled", 'autocast(device_type="cuda", enabled')
    source = source.replace("\nx =", "\nif old:\n    autocast = nothing\nx =")
    assert not mended(source).has_changed


def test_what_sums_an_output_stays_in_the_region() -> None:
    source = HEAD + LOOP + "        scaler.scale(model(x).sum()).backward()\n"
    assert "AMP103" in codes(source)
    assert not mended(source, only="AMP103").has_changed


def test_the_backward_of_a_framework_is_not_touched() -> None:
    source = HEAD + textwrap.dedent("""\
        from accelerate import Accelerator

        accelerator = Accelerator(mixed_precision="fp16")
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for i, (x, y) in enumerate(batches):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()
        """)
    assert codes(source) == ["AMP301"]
    assert not mended(source).has_changed


# Several optimizers.

BOTH = unmarked(RULES["AMP207"].bad_example)
BOTH = BOTH[: BOTH.index("    scaler.step(")]
ACTOR, CRITIC, UPDATE = (
    f"    scaler.{call}\n" for call in ("step(actor_optimizer)", "step(critic_optimizer)", "update()")
)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (ACTOR + UPDATE + CRITIC + "    print(x)\n", ACTOR + CRITIC + UPDATE + "    print(x)\n"),
        (ACTOR + UPDATE + "    print(x)\n" + CRITIC + UPDATE, ACTOR + "    print(x)\n" + CRITIC + UPDATE),
        # The scale that is read in between is the new scale.
        (ACTOR + UPDATE + "    print(scaler.get_scale())\n" + CRITIC, None),
        # A step that not every iteration makes.
        (ACTOR + UPDATE + "    if x.any():\n    " + CRITIC, None),
        (ACTOR + UPDATE.replace("\n", "  # here\n") + CRITIC, None),
    ],
)
def test_one_update_goes_after_all_steps(before: str, expected: str | None) -> None:
    assert "AMP207" in codes(BOTH + before)
    assert after(BOTH + before, only="AMP207") == BOTH + (expected or before)


def both(rest: str) -> str:
    source = unmarked(RULES["AMP212"].bad_example)
    return source[: source.index("    scaler.unscale_")] + textwrap.indent(textwrap.dedent(rest), "    ")


def test_every_optimizer_of_a_clip_is_unscaled_under_the_test_that_it_is_stepped_under() -> None:
    clip = "nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], max_norm=0.5)\n"
    source = both(
        "scaler.unscale_(actor_optimizer)\n"
        + clip
        + "scaler.step(actor_optimizer)\nif x.any():\n    scaler.step(critic_optimizer)\nscaler.update()\n"
    )
    if "AMP212" in codes(source):
        assert not mended(source, only="AMP212").has_changed
    source = both(
        "scaler.unscale_(actor_optimizer)\n"
        + clip
        + "scaler.unscale_(critic_optimizer)\nscaler.step(actor_optimizer)\n"
        + "scaler.step(critic_optimizer)\nscaler.update()\n"
    )
    assert "AMP212" in codes(source)
    assert not mended(source, only="AMP212").has_changed


def test_no_step_by_the_scaler_where_another_may_update() -> None:
    source = unmarked(RULES["AMP204"].bad_example)
    assert mended(source, only="AMP204").has_changed
    for more in (
        "\n    finish(scaler)\n",
        "\n\ndef finish():\n    scaler.update()\n",
        "\n    other.zero_grad()\n    other.step()\n",
    ):
        assert "AMP204" in codes(source + more)
        assert not mended(source + more, only="AMP204").has_changed
    scheduled = source + "    scheduler.step()\n"
    assert after(scheduled, only="AMP204") == RULES["AMP204"].good_example + "    scheduler.step()\n"


# Formulas.

REGION = 'import torch\nwith torch.autocast("cpu", dtype=torch.float16):\n    y = torch.matmul(x, x)\n'


@pytest.mark.parametrize(
    ("imports", "before", "expected"),
    [
        ("", "y.softmax(-1).log()", "y.log_softmax(-1)"),
        ("", "torch.log(y.softmax(dim=-1))", "y.log_softmax(dim=-1)"),
        ("", "torch.log(torch.sigmoid(y))", "torch.nn.functional.logsigmoid(y)"),
        ("from torch import nn", "torch.sigmoid(y).log()", "nn.functional.logsigmoid(y)"),
        ("import torch.nn.functional as F", "torch.log(y.sigmoid())", "F.logsigmoid(y)"),
        ("import torch.nn.functional as F", "torch.log(F.softmax(y, 1))", "F.log_softmax(y, 1)"),
        (
            "from torch.nn.functional import softmax",
            "torch.log(softmax(y, 1))",
            "torch.nn.functional.log_softmax(y, 1)",
        ),
        ("", "torch.log(torch.softmax(y,  # why\n        dim=1))", "torch.log_softmax(y,  # why\n        dim=1)"),
        ("", "torch.log(  # why\n        torch.softmax(y, dim=1))", None),
        ("", "torch.log(softmax(y, dim=1))", None),
        ("", "torch.log(torch.softmax(y, dim=1, out=x))", None),
    ],
)
def test_logarithms_of_what_may_be_nothing(imports: str, before: str, expected: str | None) -> None:
    source = f"{imports}\n{REGION}    z = {before}\n"
    assert after(source, only="AMP507") == source.replace(before, expected or before)
    if expected:
        assert "AMP507" in codes(source)


@pytest.mark.parametrize(
    ("module", "before", "expected"),
    [
        ("nn.Softmax(dim=1)", "torch.log(self.last(y))", "nn.functional.log_softmax(y, dim=1)"),
        ("nn.Softmax(-1)", "self.last(y).log()", "nn.functional.log_softmax(y, dim=-1)"),
        ("nn.Sigmoid()", "torch.log(self.last(y))", "nn.functional.logsigmoid(y)"),
        ("nn.Softmax(dim=n)", "torch.log(self.last(y))", None),
        ("nn.Softmax(dim=1) if n else nn.Sigmoid()", "torch.log(self.last(y))", None),
    ],
)
def test_a_module_whose_logarithm_is_taken_becomes_a_function(module: str, before: str, expected: str | None) -> None:
    source = HEAD + textwrap.dedent(f"""\
        class Net(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.body = nn.Linear(n, n)
                self.last = {module}

            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.float16):
                    y = self.body(x)
                    return {before}
        """)
    assert after(source, only="AMP507") == source.replace(before, expected or before)
    if expected:
        assert "AMP507" in codes(source)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("y.masked_fill_(m, -1e9)", "y.masked_fill_(m, torch.finfo(y.dtype).min)"),
        ("y.index_fill(0, m, -1e9)", "y.index_fill(0, m, torch.finfo(y.dtype).min)"),
        ("y.fill_(-1e9)", "y.fill_(torch.finfo(y.dtype).min)"),
        ("torch.full_like(y, -1e9)", "torch.full_like(y, torch.finfo(y.dtype).min)"),
        ("torch.full_like(y, fill_value=-1e9)", "torch.full_like(y, fill_value=torch.finfo(y.dtype).min)"),
        ("torch.where(m, y, -1e9)", "torch.where(m, y, torch.finfo(y.dtype).min)"),
        ("torch.where(m, -1e9, y)", "torch.where(m, torch.finfo(y.dtype).min, y)"),
        ("torch.where(m, y * 2, -1e9)", None),
        ("y.fill_(1e9)", None),
        ("y.masked_fill(m, float('-inf'))", None),
    ],
)
def test_a_number_that_float16_has_not_is_the_smallest_of_the_dtype(before: str, expected: str | None) -> None:
    source = f"{REGION}    z = {before}\n"
    assert after(source, only="AMP506") == source.replace(before, expected or before)
    if expected:
        assert "AMP506" in codes(source)


# Arguments.


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("torch.amp.GradScaler(2.0**10)", "torch.amp.GradScaler(init_scale=2.0**10)"),
        ("torch.amp.GradScaler(True)", "torch.amp.GradScaler(enabled=True)"),
        (
            "torch.amp.GradScaler(1024.0, 2.0, 0.5, growth_interval=100)",
            "torch.amp.GradScaler(init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=100)",
        ),
        ("torch.amp.GradScaler(True, 1024.0)", None),
    ],
)
def test_arguments_in_the_old_order_are_named(before: str, expected: str | None) -> None:
    source = f"import torch\nscaler = {before}\n"
    assert "AMP216" in codes(source)
    assert after(source, only="AMP216") == source.replace(before, expected or before)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('torch.autocast("cpu")', 'torch.autocast("cpu", cache_enabled=False)'),
        ('torch.autocast("cpu", cache_enabled=True)', 'torch.autocast("cpu", cache_enabled=False)'),
        ('torch.autocast("cpu", torch.bfloat16, True)', None),
        ('torch.autocast("cpu", **options)', None),
    ],
)
def test_a_capture_has_a_region_without_a_cache(before: str, expected: str | None) -> None:
    source = f"import torch\nmodel = torch.nn.Linear(1, 1)\nwith {before}:\n    torch.jit.trace(model, x)\n"
    assert after(source, only="AMP605") == source.replace(before, expected or before)
    if expected:
        assert codes(source) == ["AMP605"]


REENTERED = """\
import torch
dtype = torch.bfloat16
ctx = torch.autocast("cpu", dtype=dtype)
with ctx:
    y = model(x)
    with ctx:
        z = model(y)
"""


def test_an_open_region_is_not_entered_again() -> None:
    expected = REENTERED.replace("    with ctx", '    with torch.autocast("cpu", dtype=dtype)')
    assert after(REENTERED, only="AMP102") == expected
    for other in (
        # By then, the context may have been recreated in another form or from other values.
        REENTERED.replace("with ctx", "if x:\n    ctx = torch.autocast('cpu')\nwith ctx", 1),
        REENTERED.replace("with ctx", "dtype = torch.float16\nwith ctx", 1),
        REENTERED.replace("dtype=dtype", "dtype=dtype()"),
    ):
        assert not mended(other, only="AMP102").has_changed


def test_a_region_that_is_not_entered_is_for_the_outputs_and_the_loss() -> None:
    source = HEAD + LOOP.replace("    with torch.autocast", "    torch.autocast").replace("float16):", "float16)")
    source = source.replace("        loss =", "    # The loss.\n\n    loss =") + END
    assert "AMP105" in codes(source)
    assert after(source, only="AMP105") == (HEAD + LOOP + END).replace(
        "        loss =", "        # The loss.\n\n        loss ="
    )
    assert not mended('import torch\ntorch.autocast("cuda")\n\ndef f():\n    pass\n', only="AMP105").has_changed
    text = source.replace("    # The loss.", '    print("""\n    """)')
    assert not mended(text, only="AMP105").has_changed


# Windows.

WINDOW = (
    HEAD
    + "k = 4\n"
    + LOOP.replace("    optimizer.zero_grad()\n", "")
    + "    scaler.scale(loss / k).backward()\n    if i % k == 0:\n        scaler.step(optimizer)\n"
    + "        scaler.update()\n        optimizer.zero_grad()\n"
)


def test_a_window_ends_where_it_is_full() -> None:
    assert codes(WINDOW) == ["AMP304"]
    assert after(WINDOW) == WINDOW.replace("i % k", "(i + 1) % k")
    assert not mended(WINDOW, unsafe=False).has_changed
    for source in (
        WINDOW.replace("enumerate(batches)", "enumerate(batches, first)"),
        WINDOW.replace("enumerate(batches)", "numbered(batches)"),
        # Other uses of the number would be shifted.
        WINDOW + "        if i > 3:\n            print(losses[-2])\n",
        WINDOW.replace("    scaler.scale(", "    model.require_backward_grad_sync = i % k == 0\n    scaler.scale("),
    ):
        assert not mended(source, only="AMP304").has_changed


def test_gradients_are_cleared_after_the_step_once() -> None:
    cleared = "for i, (x, y) in enumerate(batches):\n"
    source = WINDOW.replace("i % k", "(i + 1) % k").replace(cleared, cleared + "    optimizer.zero_grad()\n")
    assert codes(source) == ["AMP304"]
    assert after(source) == WINDOW.replace("i % k", "(i + 1) % k")
    twice = source.replace("        optimizer.zero_grad()\n", "")
    assert after(twice) == WINDOW.replace("i % k", "(i + 1) % k")


# Deprecated names.


def autocast_of_old(enabled: Any = True, dtype: Any = "float16", cache_enabled: Any = True) -> dict[str, Any]:
    return {"device_type": "cuda", "enabled": enabled, "dtype": dtype, "cache_enabled": cache_enabled}


def autocast_of_new(
    device_type: Any, dtype: Any = None, enabled: Any = True, cache_enabled: Any = None
) -> dict[str, Any]:
    cache = True if cache_enabled is None else cache_enabled
    return {"device_type": device_type, "enabled": enabled, "dtype": dtype or "float16", "cache_enabled": cache}


def scaler_of_old(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return scaler_of_new("cuda", *args, **kwargs)


def scaler_of_new(
    device: Any = "cuda",
    init_scale: Any = 65536.0,
    growth_factor: Any = 2.0,
    backoff_factor: Any = 0.5,
    growth_interval: Any = 2000,
    enabled: Any = True,
) -> dict[str, Any]:
    return dict(locals())


OLD = {"autocast": list(inspect.signature(autocast_of_old).parameters)}
OLD["GradScaler"] = ["init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"]


@given(data=st.data())
def test_arguments_mean_what_they_meant(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(OLD)))
    parameters = OLD[name]
    positional = data.draw(st.integers(0, len(parameters)))
    keywords = (
        data.draw(st.lists(st.sampled_from(parameters[positional:]), unique=True)) if parameters[positional:] else []
    )
    values = {"dtype": '"bfloat16"', "enabled": "False", "cache_enabled": "False"}
    given_ = [values.get(p, "7.0") for p in parameters[:positional]] + [f"{k}={values.get(k, '7.0')}" for k in keywords]
    gap = data.draw(st.sampled_from([", ", ",", " , ", ",\n    ", ", # why\n    "]))
    ends = data.draw(st.sampled_from(["", " ", "\n", ",\n"])) if given_ else ""
    call = f"{name}({gap.join(given_)}{ends})"
    module = data.draw(st.sampled_from(["from torch.cuda.amp import {0}", "import torch.cuda.amp as amp"]))
    written = call if "from" in module else f"amp.{call}"
    source = f"import torch\n{module.format(name)}\nmade = {written}\n"
    found = mended(source, only="AMP901").fixed_document.raw_text
    assert codes(found).count("AMP901") == 0
    assert "torch.cuda.amp" not in found
    shown = found.partition("made = ")[2].replace("amp.", "").replace("torch.float16", '"float16"')
    # The evaluated texts are assembled above.
    old = eval(call, {"autocast": autocast_of_old, "GradScaler": scaler_of_old})  # noqa: S307
    assert eval(shown, {"autocast": autocast_of_new, "GradScaler": scaler_of_new}) == old  # noqa: S307


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("torch.cuda.amp.autocast(False)", 'torch.amp.autocast("cuda", enabled=False)'),
        ("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'),
        (
            "torch.cpu.amp.autocast(True, torch.bfloat16)",
            'torch.amp.autocast("cpu", enabled=True, dtype=torch.bfloat16)',
        ),
        ("torch.cuda.amp.autocast(**options)", 'torch.amp.autocast("cuda", **options)'),
        ("torch.cpu.amp.GradScaler(2.0**10)", 'torch.amp.GradScaler("cpu", 2.0**10)'),
        (
            "torch.cuda.amp.grad_scaler.GradScaler(growth_interval=100)",
            'torch.amp.GradScaler("cuda", growth_interval=100)',
        ),
        ("torch.cuda.amp.GradScaler(*options)", 'torch.amp.GradScaler("cuda", *options)'),
        ("torch.get_autocast_gpu_dtype()", 'torch.get_autocast_dtype("cuda")'),
        ("torch.set_autocast_cpu_dtype(torch.bfloat16)", 'torch.set_autocast_dtype("cpu", torch.bfloat16)'),
        ("torch.is_autocast_cpu_enabled()", 'torch.is_autocast_enabled("cpu")'),
        ("torch.nn.utils.clip_grad_norm(ps, 1.0)", "torch.nn.utils.clip_grad_norm_(ps, 1.0)"),
    ],
)
def test_names_that_are_written_out(before: str, expected: str) -> None:
    assert after(f"import torch\nx = {before}  # why\n", only="AMP901") == f"import torch\nx = {expected}  # why\n"


def test_positional_arguments_that_are_not_known_stay() -> None:
    assert not mended("import torch\nx = torch.cuda.amp.autocast(*options)\n", only="AMP901").has_changed


def test_decorators_are_given_the_device() -> None:
    source = textwrap.dedent("""\
        import torch
        from torch.cuda.amp import custom_bwd, custom_fwd as forwards

        class Square(torch.autograd.Function):
            @staticmethod
            @forwards(cast_inputs=torch.float32)
            def forward(ctx, x):
                return x * x

            @staticmethod
            @custom_bwd
            def backward(ctx, grad):
                return grad
        """)
    assert after(source, only="AMP901") == source.replace("torch.cuda.amp", "torch.amp").replace(
        "@forwards(", '@forwards(device_type="cuda", '
    ).replace("@custom_bwd", '@custom_bwd(device_type="cuda")')


def test_a_part_of_a_forward_pass_keeps_its_dtype() -> None:
    source = textwrap.dedent("""\
        import torch
        from torch.cuda.amp import autocast

        class Net(torch.nn.Module):
            def forward(self, x):
                with autocast(enabled=self.amp):
                    y = self.body(x)
                with autocast(False):
                    return self.head(y.float())
        """)
    assert after(source, only="AMP901") == source.replace("torch.cuda.amp", "torch.amp").replace(
        "autocast(enabled", 'autocast("cuda", dtype=torch.float16, enabled'
    ).replace("autocast(False)", 'autocast("cuda", enabled=False)')


def test_what_cannot_move_keeps_its_import() -> None:
    source = textwrap.dedent("""\
        from torch.cuda.amp import GradScaler, autocast

        def train(amp):
            scaler: GradScaler = GradScaler(enabled=amp)
            region = autocast if amp else None
            return isinstance(scaler, GradScaler), region
        """)
    assert after(source, only="AMP901") == source.replace(
        "from torch.cuda.amp import GradScaler, autocast",
        "from torch.cuda.amp import autocast\nfrom torch.amp import GradScaler",
    ).replace("= GradScaler(", '= GradScaler("cuda", ')


@pytest.mark.parametrize(
    "source",
    [
        "from torch.cuda.amp import GradScaler\n\nclass Mine(GradScaler):\n    pass\n\nx = GradScaler()\n",
        "from torch.cuda.amp import GradScaler\n\n__all__ = ['GradScaler']\nx = GradScaler()\n",
        "from torch.cuda.amp import GradScaler\nif old:\n    from mine import GradScaler\nx = GradScaler()\n",
        "from torch.cuda.amp import *\nx = GradScaler()\n",
        # Another imported name, which is not used, is not moved alone.
        "from torch.cuda.amp import GradScaler, autocast\nmake = GradScaler\nx = GradScaler()\n",
    ],
)
def test_an_import_that_means_more_stays(source: str) -> None:
    assert not mended(source, only="AMP901").has_changed


# Suppressions.


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("x = 1  # amp: ignore[AMP201]", "x = 1"),
        ("x = 1  # amp: ignore[AMP201] it was tuned", "x = 1"),
        ("x = 1  # amp: ignore[AMP201]  # type: ignore", "x = 1  # type: ignore"),
        ("# amp: ignore[AMP201]\nx = 1", "x = 1"),
        (" \\\n# amp: ignore[AMP201]\nx = 1", " \\\n\nx = 1"),
        ("x = 1  # noqa: AMP201, E501", "x = 1  # noqa: AMP201, E501"),
    ],
)
def test_a_suppression_that_silences_nothing_goes(before: str, expected: str) -> None:
    source = HEAD + before + "\n"
    found = after(source, only="AMP902")
    assert found == HEAD + expected.replace("# noqa: AMP201, E501", "# noqa: E501") + "\n"
    assert "AMP902" not in codes(found)


def test_a_word_of_a_list_goes_alone() -> None:
    source = unmarked(RULES["AMP201"].bad_example).replace(
        "max_norm=0.1)", "max_norm=0.1)  # amp: ignore[AMP201, AMP206] tuned"
    )
    assert codes(source) == ["AMP902"]
    assert after(source, only="AMP902") == source.replace("[AMP201, AMP206]", "[AMP201]")


# File formats.

CLIP = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)"
UNSCALE = "    scaler.unscale_(optimizer)\n"
BAD = unmarked(RULES["AMP201"].bad_example)
GOOD = RULES["AMP201"].good_example


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (BAD.replace("\n", "\r\n").encode(), GOOD.replace("\n", "\r\n").encode()),
        (BAD.replace("\n", "\r").encode(), GOOD.replace("\n", "\r").encode()),
        (b"\xef\xbb\xbf" + BAD.encode(), b"\xef\xbb\xbf" + GOOD.encode()),
        (b"# coding: latin-1\n# \xe9\xff\n" + BAD.encode(), b"# coding: latin-1\n# \xe9\xff\n" + GOOD.encode()),
        (BAD.replace("    ", "\t").encode(), GOOD.replace("    ", "\t").encode()),
        (BAD.rstrip("\n").encode(), GOOD.rstrip("\n").encode()),
        (("\f\n# \u00e9\u6f22\U0001f600\n" + BAD).encode(), ("\f\n# \u00e9\u6f22\U0001f600\n" + GOOD).encode()),
        (
            BAD.replace(CLIP, "    '\u6f22'; pass\n" + CLIP).encode(),
            BAD.replace(CLIP, "    '\u6f22'; pass\n" + UNSCALE + CLIP).encode(),
        ),
        # A single line with another line end stays as it is.
        (
            BAD.replace("zero_grad()\n", "zero_grad()\r\n").encode(),
            GOOD.replace("zero_grad()\n", "zero_grad()\r\n").encode(),
        ),
    ],
    ids=["crlf", "cr", "mark", "latin-1", "tabs", "no-end", "unicode", "columns", "mixed"],
)
def test_bytes_that_are_not_concerned_stay(before: bytes, expected: bytes) -> None:
    assert mended(before).fixed_document.encode_text() == expected


def notebook(*cells: object, **more: object) -> str:
    shown = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    return json.dumps({"cells": shown, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}, indent=1)


def as_lines(source: str) -> list[str]:
    return source.rstrip("\n").splitlines(keepends=True)


@pytest.mark.parametrize("shape", [as_lines, str], ids=["lines", "text"])
def test_a_notebook_keeps_everything_else(shape: Any) -> None:
    imports, _, rest = BAD.partition("torch.manual_seed(0)\n")
    markdown = {"cell_type": "markdown", "metadata": {"source": ["x"]}, "source": ["# \u6f22 ", "text"]}
    first = notebook(shape("%matplotlib inline\n" + imports), shape("!ls\n" + rest))
    first = first.replace('"cells": [', '"cells": [\n  ' + json.dumps(markdown, ensure_ascii=False) + ",", 1)
    expected = notebook(
        shape("%matplotlib inline\n" + imports), shape("!ls\n" + rest.replace(CLIP, UNSCALE + CLIP))
    ).replace('"cells": [', '"cells": [\n  ' + json.dumps(markdown, ensure_ascii=False) + ",", 1)
    outcome = mended(first.replace("\n", "\r\n").encode(), "train.ipynb")
    assert outcome.fixed_document.encode_text().decode() == expected.replace("\n", "\r\n")
    assert fix_files.make_diff(outcome).startswith("--- train.ipynb:cell 3\n+++ train.ipynb:cell 3\n@@ ")


def test_a_fix_of_two_cells() -> None:
    source = notebook(
        ["from torch.cuda.amp import GradScaler"], ["%time scaler = GradScaler()\n", "again = GradScaler()"]
    )
    # Code after a magic is not rewritten, and an import is moved for all uses or for none.
    assert not mended(source, "train.ipynb").has_changed
    source = notebook(["from torch.cuda.amp import GradScaler"], ["scaler = GradScaler()\n", "again = GradScaler(2.0)"])
    found = json.loads(mended(source, "train.ipynb").fixed_document.raw_text)
    assert [cell["source"] for cell in found["cells"]] == [
        ["from torch.amp import GradScaler"],
        ['scaler = GradScaler("cuda")\n', 'again = GradScaler("cuda", 2.0)'],
    ]


def test_markdown_is_shown_as_it_is() -> None:
    source = f"# Title\n\n```python\n{BAD}```\n"
    assert [f.code for f in engine.check_source(source, "page.md")] == ["AMP201"]
    assert not mended(source, "page.md").has_changed


def test_several_fixes_in_one_file() -> None:
    source = (
        HEAD
        + "from torch.cuda.amp import GradScaler\nk = 4\n"
        + textwrap.dedent("""\
        model = nn.Linear(16, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = GradScaler()
        for i, (x, y) in enumerate(batches):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
            if (i + 1) % k == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                optimizer.zero_grad()
        torch.save({"optimizer": optimizer.state_dict()}, "checkpoint.pt")
        """)
    )
    assert sorted(codes(source)) == ["AMP103", "AMP201", "AMP206", "AMP301", "AMP401", "AMP901"]
    outcome = mended(source)
    assert codes(outcome.fixed_document.raw_text) == []
    assert sum(outcome.fixed_counts.values()) == 6
    assert codes(after(source, unsafe=False)) == ["AMP301"]


# Fixes that fail are not applied, and are reported.


def replace_fixer(monkeypatch: pytest.MonkeyPatch, code: str, made: Any) -> None:
    monkeypatch.setattr(f"pytest_amp_check.static.fixes.{FIXERS[code]}", made)


def broken(content: str) -> Any:
    def fixer(layout: ProgramLayout, finding: Finding) -> tuple[str, list[Edit]]:
        return "Break it", [Edit(finding.line, 0, finding.line, 0, content)]

    return fixer


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("    (\n", "the result could not be read"),
        ("    pass\n", "the finding would still be there"),
        ("    optimizer.zero_grad(set_to_none=False)\n    scaler.unscale_(optimizer)\n", "it would lead to AMP215"),
    ],
)
def test_a_fix_that_is_wrong_is_dropped_and_said(content: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_fixer(monkeypatch, "AMP201", broken(content))
    outcome = mended(BAD)
    assert not outcome.has_changed
    line = BAD.split("\n").index(CLIP) + 1
    assert outcome.refusals == [f"train.py:{line}: the fix of AMP201 was not made: {reason}"]


def test_the_others_are_made_where_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_fixer(monkeypatch, "AMP206", broken("    (\n"))
    source = BAD.replace("    scaler.update()\n", "")
    assert codes(source) == ["AMP201", "AMP206"]
    outcome = mended(source)
    assert outcome.fixed_document.raw_text == GOOD.replace("    scaler.update()\n", "")
    assert [said.partition("not made: ")[2] for said in outcome.refusals] == ["the result could not be read"]


def test_edits_that_overlap_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_fixer(monkeypatch, "AMP206", broken("    scaler.unscale_(optimizer)\n"))
    source = BAD.replace(CLIP + "\n", "").replace("    scaler.update()\n", "") + CLIP + "\n"
    source = BAD.replace("    scaler.update()\n", "")
    row = source.split("\n").index("    scaler.step(optimizer)") + 1

    def both(layout: ProgramLayout, finding: Finding) -> tuple[str, list[Edit]]:
        return "Replace two lines", [Edit(row - 1, 0, row + 1, 0, UNSCALE + CLIP + "\n    scaler.step(optimizer)\n")]

    def second(layout: ProgramLayout, finding: Finding) -> tuple[str, list[Edit]]:
        if UNSCALE in layout.text:
            raise NotFixable
        return "Replace one line", [Edit(row, 0, row + 1, 0, "    scaler.step(optimizer)\n    scaler.update()\n")]

    replace_fixer(monkeypatch, "AMP201", both)
    replace_fixer(monkeypatch, "AMP206", second)
    outcome = mended(source)
    assert outcome.fixed_document.raw_text == GOOD.replace("    scaler.update()\n", "")
    assert outcome.refusals == [
        f"train.py:{row}: the fix of AMP206 was not made: its edits overlap those of another fix"
    ]


# Edits.


@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=12))
def test_an_edit_makes_one_text_of_another(old: str, new: str) -> None:
    edit = edits.make_minimal_edit(1, 0, old, new)
    assert edits.apply_edits(old, [edit]) == new
    assert edits.apply_edits(old.replace("\n", "\r\n") + "\r\n", [edit]) == new.replace("\n", "\r\n") + "\r\n"


@given(st.text("ab\n", min_size=6, max_size=30), st.data())
def test_separate_edits_do_not_overlap(whole: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=4, max_size=4, unique=True)))
    first = Edit(*edits.find_position(1, 0, whole, places[0]), *edits.find_position(1, 0, whole, places[1]), "1")
    second = Edit(*edits.find_position(1, 0, whole, places[2]), *edits.find_position(1, 0, whole, places[3]), "2")
    around = Edit(*edits.find_position(1, 0, whole, places[0]), *edits.find_position(1, 0, whole, places[3]), "3")
    assert not edits.has_overlap([first], [second])
    assert not edits.has_overlap([first], [first])
    assert edits.has_overlap([around], [first])
    assert edits.has_overlap([second], [around])
    made = edits.apply_edits(whole, [second, first])
    assert made == whole[: places[0]] + "1" + whole[places[1] : places[2]] + "2" + whole[places[3] :]


# The command.


@pytest.fixture
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


in_a_project = pytest.mark.usefixtures("_project")
SUMMED = (
    HEAD
    + "k = 4\n"
    + LOOP.replace("    optimizer.zero_grad()\n", "")
    + textwrap.indent(
        "scaler.scale(loss).backward()\n"
        "if (i + 1) % k == 0:\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
        "    optimizer.zero_grad()\n",
        "    ",
    )
)


def amp_check(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = run_command("check", *argv, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


@in_a_project
def test_fixable_findings_are_marked_and_counted() -> None:
    Path("train.py").write_text(SUMMED)
    code, out, _ = amp_check("train.py", "--output-format", "concise")
    assert code == 1
    summed, clipped, total, fixable = out.splitlines()
    assert "AMP301 [warning]" in summed
    assert "AMP201 [*] [error]" in clipped
    assert total == "Found 1 error, 1 warning in 1 file."
    assert fixable == "[*] 1 fixable with --fix (1 hidden fix can be enabled with --unsafe-fixes)."
    _, out, _ = amp_check("train.py", "--unsafe-fixes", "--output-format", "concise")
    assert "AMP301 [*] [warning]" in out
    assert out.endswith("[*] 2 fixable with --fix.\n")
    _, out, _ = amp_check("train.py", "--select", "AMP301")
    assert "fix: Divide the loss: `loss / k` (--fix --unsafe-fixes)" in out
    assert out.endswith("No fixes available (1 hidden fix can be enabled with --unsafe-fixes).\n")


@in_a_project
def test_fix_writes_what_is_safe_and_shows_what_is_left() -> None:
    path = Path("train.py")
    path.write_text(SUMMED)
    path.chmod(0o640)
    code, out, err = amp_check("train.py", "--fix", "--output-format", "concise")
    assert (code, err) == (1, "")
    assert path.read_text() == SUMMED.replace(
        "        nn.utils", "        scaler.unscale_(optimizer)\n        nn.utils"
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert [line.split()[1] for line in out.splitlines()[:-2]] == ["AMP301"]
    assert out.splitlines()[-2] == "Found 1 error, 1 warning in 1 file (1 fixed, 1 remaining)."
    code, out, _ = amp_check("train.py", "--fix", "--unsafe-fixes")
    assert (code, out) == (0, "Found 1 warning in 1 file (1 fixed, 0 remaining).\n")
    assert "scaler.scale(loss / k).backward()" in path.read_text()
    before = path.stat()
    assert amp_check("train.py", "--fix", "--unsafe-fixes")[:2] == (0, "No AMP mistakes found in 1 file.\n")
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert [each.name for each in Path().iterdir()] == ["train.py"]


@in_a_project
def test_diff_shows_it_and_writes_nothing() -> None:
    Path("train.py").write_text(BAD)
    Path("good.py").write_text(GOOD)
    code, out, err = amp_check("train.py", "good.py", "--diff")
    assert code == 1
    assert out.startswith("--- train.py\n+++ train.py\n@@ ")
    assert [row for row in out.splitlines() if row.startswith(("+", "-"))][2:] == ["+" + UNSCALE.rstrip("\n")]
    assert err == "Would fix 1 finding in 1 file.\n"
    assert Path("train.py").read_text() == BAD
    assert amp_check("train.py", "--diff", "--fix")[0] == 1
    assert Path("train.py").read_text() == BAD
    assert amp_check("train.py", "--diff", "--exit-zero")[0] == 0
    assert amp_check("good.py", "--diff") == (0, "", "Nothing would be fixed.\n")
    assert amp_check("train.py", "--diff", "--ignore", "AMP201") == (0, "", "Nothing would be fixed.\n")


@in_a_project
def test_diff_says_what_it_could_not_read() -> None:
    Path("broken.py").write_text("scaler.step(optimizer)\ndef f(:\n")
    Path("train.py").write_text(BAD)
    code, out, err = amp_check("broken.py", "--diff")
    assert (code, out) == (0, "")
    said, last = err.splitlines()
    assert said.startswith("amp-check: warning: broken.py:2: This source could not be read (it is not valid Python")
    assert last == "Nothing would be fixed."
    code, out, err = amp_check("train.py", "broken.py", "--diff")
    assert code == 1 and out.startswith("--- train.py\n")
    assert err.splitlines()[1:] == ["Would fix 1 finding in 1 file."]


@in_a_project
def test_the_diff_is_what_patch_takes() -> None:
    Path("train.py").write_text(SUMMED.rstrip("\n"))
    _, out, _ = amp_check("train.py", "--diff", "--unsafe-fixes")
    amp_check("train.py", "--fix", "--unsafe-fixes")
    expected = Path("train.py").read_text()
    Path("train.py").write_text(SUMMED.rstrip("\n"))
    subprocess.run(["git", "apply", "-p0"], input=out.encode(), check=True)
    assert Path("train.py").read_text() == expected


@in_a_project
@pytest.mark.parametrize("flag", ["--fix", "--diff"])
def test_standard_input(flag: str) -> None:
    source = BAD.replace("\n", "\r\n").encode()
    code, out, err = amp_check("-", flag, "--stdin-filename", "train.py", stdin=source)
    if flag == "--fix":
        assert (code, out) == (0, GOOD.replace("\n", "\r\n"))
        assert err == "Found 1 error in 1 file (1 fixed, 0 remaining).\n"
    else:
        assert (code, out.splitlines()[0]) == (1, "--- train.py")
    code, out, err = amp_check("-", "--fix", stdin=SUMMED.encode())
    assert code == 1
    assert "scaler.unscale_(optimizer)" in out
    assert "AMP301" not in out
    assert "AMP301 [warning]" in err
    assert amp_check("-", "--fix", stdin=GOOD.encode()) == (0, GOOD, "No AMP mistakes found in 1 file.\n")


@in_a_project
def test_a_file_that_is_read_only_is_said_and_the_others_are_fixed() -> None:
    for name in ("a.py", "b.py"):
        Path(name).write_text(BAD)
    Path("a.py").chmod(0o444)
    code, _, err = amp_check("a.py", "b.py", "--fix")
    assert code == 2
    assert err == "amp-check: error: a.py cannot be written: it is read-only\n"
    assert Path("a.py").read_text() == BAD
    assert Path("b.py").read_text() == GOOD


@in_a_project
def test_a_link_stays_one() -> None:
    Path("real.py").write_text(BAD)
    Path("train.py").symlink_to("real.py")
    assert amp_check("train.py", "--fix")[0] == 0
    assert Path("train.py").is_symlink()
    assert Path("real.py").read_text() == GOOD


@in_a_project
def test_only_what_is_named_is_written() -> None:
    Path("helpers.py").write_text("import torch\n\ndef scaler():\n    return torch.cuda.amp.GradScaler()\n")
    Path("train.py").write_text("from helpers import scaler\n\nmade = scaler()\n" + BAD)
    before = Path("helpers.py").read_text()
    amp_check("train.py", "--fix")
    assert Path("helpers.py").read_text() == before
    assert UNSCALE in Path("train.py").read_text()


@in_a_project
@pytest.mark.parametrize("imported", ["autocast", "*", "(\n    autocast as cast,\n)"])
@pytest.mark.parametrize("named", [".", "shared.py"])
def test_an_import_that_another_file_takes_from_here_stays(imported: str, named: str) -> None:
    # A file that imports the name from here calls it with the arguments of the old name.
    shared = textwrap.dedent("""\
        from torch.cuda.amp import autocast

        def evaluate(model, x):
            model.eval()
            with autocast():
                return model(x)
        """)
    Path("shared.py").write_text(shared)
    Path("alone.py").write_text(shared)
    Path("other.py").write_text(f"from shared import {imported}\n\ncast = autocast\n")
    _, out, _ = amp_check(named, "alone.py", "--output-format", "concise")
    assert [line.partition(":")[0] for line in out.splitlines() if " [*] " in line] == ["alone.py"]
    amp_check(named, "alone.py", "--fix")
    assert Path("shared.py").read_text() == shared
    assert 'autocast("cuda")' in Path("alone.py").read_text()


@in_a_project
@pytest.mark.parametrize(
    ("file", "declared", "made"),
    [
        ("requirements.txt", "numpy\ntorch==1.12.1+cu113\n", False),
        ("requirements.txt", "torch>=1.8.0  # or so\ntorch==2.6.0\n", False),
        ("requirements/base.txt", "torch >=2.1.0, <2.6.0\n", False),
        ("pyproject.toml", '[project]\ndependencies = ["torch<2.3"]\n', False),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.1"\n', False),
        ("environment.yml", "dependencies:\n  - pytorch=2.2.0\n", False),
        ("requirements.txt", "torch>=2.3\n", True),
        # Nothing states that torch is new enough.
        ("requirements.txt", "torchvision>=0.9\npytorch-lightning==1.2\ntorch\n", False),
    ],
)
def test_a_project_is_not_moved_to_a_torch_that_it_need_not_have(file: str, declared: str, made: bool) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text(declared)
    Path("src").mkdir()
    path = Path("src/train.py")
    path.write_text("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n")
    assert (" [*] " in amp_check(".", "--output-format", "concise")[1]) == made
    amp_check("src", "--fix")
    assert ("torch.amp." in path.read_text()) == made


@in_a_project
@pytest.mark.parametrize(
    ("source", "safe"),
    [
        ("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n", False),
        ("from torch.cuda.amp import GradScaler\n\nscaler = GradScaler()\n", False),
        ("import torch\n\nforward = torch.cuda.amp.custom_fwd(len)\n", False),
        ("import torch\n\nregion = torch.cuda.amp.autocast()\n", True),
        ("from torch.cuda.amp import autocast\n\nregion = autocast()\n", True),
        # One import, one fix.
        ("from torch.cuda.amp import GradScaler, autocast\n\nregion = autocast()\nscaler = GradScaler()\n", False),
        ("from torch.cuda import amp\n\nregion = amp.autocast()\n", True),
        ("from torch.cuda import amp\n\nregion = amp.autocast()\nscaler = amp.GradScaler()\n", False),
        ("import torch\n\ntorch.nn.utils.clip_grad_norm([], 1.0)\n", True),
    ],
)
def test_what_needs_a_newer_torch_than_is_declared_is_opt_in(source: str, *, safe: bool) -> None:
    path = Path("train.py")
    path.write_text(source)
    _, out, _ = amp_check("train.py", "--select", "AMP901", "--output-format", "json")
    assert {finding["fix"]["applicability"] for finding in json.loads(out)} == {"safe" if safe else "unsafe"}
    amp_check("train.py", "--fix")
    assert (path.read_text() != source) == safe
    path.write_text(source)
    amp_check("train.py", "--fix", "--unsafe-fixes")
    assert path.read_text() != source
    path.write_text(source)
    Path("setup.py").write_text("setup(install_requires=['torch>=2.4'])\n")
    amp_check("train.py", "--fix")
    assert path.read_text() != source


@in_a_project
def test_what_was_fixed_is_listed() -> None:
    Path("src").mkdir()
    Path("src/a.py").write_text(unmarked(RULES["AMP201"].bad_example))
    Path("src/b.py").write_text(unmarked(RULES["AMP206"].bad_example) + "\n" + "x = 1  # amp: ignore[AMP101]\n")
    status, out, err = amp_check("src", "--fix", "--show-fixes", "--output-format", "json")
    assert (status, json.loads(out)) == (0, [])
    assert err == (
        "Fixed 3 findings:\n"
        f"- {Path('src/a.py')}:\n    1 x AMP201 (clip-before-unscale)\n"
        f"- {Path('src/b.py')}:\n    1 x AMP206 (missing-scaler-update)\n    1 x AMP902 (unused-suppression)\n"
    )
    assert amp_check("src", "--fix", "--show-fixes")[2] == "Fixed 0 findings.\n"


DEPRECATED = """\
import torch

scaler = torch.cuda.amp.GradScaler()
with torch.cuda.amp.autocast():
    pass
fwd = torch.cuda.amp.custom_fwd(len)
torch.nn.utils.clip_grad_norm([], 1.0)
"""


@in_a_project
@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ("", [3, 4, 6, 7]),
        ("torchvision>=0.9", [3, 4, 6, 7]),
        ("torch>=2.4", [3, 4, 6, 7]),
        ("torch>=2.3", [3, 4, 7]),
        ("torch>=2.0,<3", [4, 7]),
        ("torch==1.9.0", [7]),
    ],
)
def test_a_name_is_deprecated_where_there_is_another_in_the_oldest_torch(declared: str, found: list[int]) -> None:
    Path("requirements.txt").write_text(f"{declared}\n")
    Path("src").mkdir()
    Path("src/old.py").write_text(DEPRECATED)
    Path("src/old.ipynb").write_text(notebook(DEPRECATED))
    for named in ("src", "src/old.py", "src/old.ipynb"):
        _, out, _ = amp_check(named, "--select", "AMP901", "--output-format", "json")
        lines = sorted({finding["location"]["row"] for finding in json.loads(out)})
        assert lines == found, named
    # Earlier findings are cached, but the requirements of other files are not.
    Path("requirements.txt").write_text("torch>=2.4\n")
    _, out, _ = amp_check("src", "--select", "AMP901", "--output-format", "json")
    assert len(json.loads(out)) == 8


@in_a_project
def test_an_import_stays_where_it_cannot_be_seen_who_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from torch.cuda.amp import autocast\n\nwith autocast():\n    model(x)\n"
    Path("train.py").write_text(source)

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", refuse)
        assert cli.main(["check", "train.py", "--fix"]) == 0
    assert Path("train.py").read_text() == source
    assert cli.main(["check", "train.py", "--fix"]) == 0
    assert 'autocast("cuda")' in Path("train.py").read_text()


@in_a_project
def test_what_does_harm_elsewhere_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A fix whose harm to another file only shows when all files are analyzed again.
    Path("requirements.txt").write_text("torch>=2.4\n")
    shared = "import torch\n\nscaler = torch.cuda.amp.GradScaler()\n"
    Path("shared.py").write_text(shared)
    Path("other.py").write_text("from shared import scaler\n" + unmarked(RULES["AMP206"].good_example))

    def harm(layout: ProgramLayout, finding: Finding) -> tuple[str, list[Edit]]:
        return "Do harm", [Edit(3, 0, 4, 0, 'scaler = torch.amp.GradScaler("cuda")\n')]

    checked = check_run._run_engine

    def worse(*given: Any, **options: Any) -> engine.Report:
        report = checked(*given, **options)
        if "torch.amp" in Path("shared.py").read_text():
            report.findings.append(Finding("AMP201", "clip-before-unscale", "error", "", Site("other.py", 1)))
        return report

    replace_fixer(monkeypatch, "AMP901", harm)
    monkeypatch.setattr(check_run, "_run_engine", worse)
    assert cli.main(["check", ".", "--fix", "--no-cache"]) == 0
    assert Path("shared.py").read_text() == shared
    assert capsys.readouterr().err == (
        "amp-check: warning: shared.py: fixes reverted, because they would cause findings in related files\n"
    )


@in_a_project
def test_the_configuration_can_ask_for_fixes() -> None:
    Path("pyproject.toml").write_text("[tool.amp-check]\nfix = true\nunsafe-fixes = true\n")
    Path("train.py").write_text(SUMMED)
    assert amp_check("train.py")[0] == 0
    Path("train.py").write_text(SUMMED)
    assert amp_check("train.py", "--no-fix", "--diff")[0] == 1
    assert amp_check("train.py", "--no-fix")[0] == 1
    assert Path("train.py").read_text() == SUMMED


@in_a_project
def test_json_has_the_shape_of_ruff() -> None:
    Path("train.py").write_text(BAD)
    Path("train.ipynb").write_text(notebook(as_lines(BAD)))
    (found,) = json.loads(amp_check("train.py", "--output-format", "json")[1])
    row = BAD.split("\n").index(CLIP) + 1
    place = {"row": row, "column": 1}
    assert found["fix"] == {
        "applicability": "safe",
        "message": "Insert `scaler.unscale_(optimizer)` before the clip",
        "edits": [{"content": UNSCALE, "location": place, "end_location": place}],
    }
    (found,) = json.loads(amp_check("train.ipynb", "--output-format", "json")[1])
    assert found["fix"]["edits"] == [{"cell": 1, "content": UNSCALE, "location": place, "end_location": place}]
    source = unmarked(RULES["AMP204"].bad_example)
    Path("train.py").write_text(source.replace("model(x), y", "model(x), y, **options(scaler)"))
    (found,) = json.loads(amp_check("train.py", "--output-format", "json")[1])
    assert found["fix"] is None


@in_a_project
def test_sarif_has_fixes() -> None:
    Path("train.py").write_text(BAD)
    log = json.loads(amp_check("train.py", "--output-format", "sarif")[1])
    (found,) = log["runs"][0]["results"]
    row = BAD.split("\n").index(CLIP) + 1
    (change,) = found["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "train.py"
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": row, "startColumn": 1, "endLine": row, "endColumn": 1},
            "insertedContent": {"text": UNSCALE},
        }
    ]


@in_a_project
def test_a_cached_finding_has_its_fix() -> None:
    Path("train.py").write_text(unmarked(RULES["AMP401"].bad_example))
    first = amp_check(".", "--output-format", "json")
    assert amp_check(".", "--output-format", "json") == first
    assert json.loads(first[1])[0]["fix"]["applicability"] == "safe"


@in_a_project
@pytest.mark.parametrize(
    ("argv", "writes"),
    [
        ((), False),
        (("--output-format", "concise"), False),
        (("--output-format", "json"), True),
        (("--output-format", "sarif"), True),
        (("--diff",), True),
    ],
)
def test_what_is_offered_is_written_where_it_is_wanted(argv: tuple[str, ...], *, writes: bool) -> None:
    Path("train.py").write_text(unmarked(RULES["AMP901"].bad_example))
    Path("requirements.txt").write_text("torch>=2.4\n")
    program = (
        "import sys; from pytest_amp_check.frontends.cli import main; main(['check', 'train.py', *sys.argv[1:]]);"
        "sys.exit('libcst' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)
    assert (done.returncode, done.stderr.partition("W")[0]) == (writes, "")
    assert "torch.amp" in done.stdout


@in_a_project
@pytest.mark.parametrize("argv", [("--fix",), ("--diff",), ("--output-format", "json"), ("--output-format", "sarif")])
def test_what_cannot_be_written_is_said(
    argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(source: str) -> libcst.BaseExpression:
        raise ValueError(source)

    monkeypatch.setattr(libcst, "parse_expression", fail)
    source = unmarked(RULES["AMP216"].bad_example)
    Path("train.py").write_text(source)
    (found,) = engine.check_source(source, "train.py")
    cli.main(["check", "train.py", *argv])
    out, err = capsys.readouterr()
    said = f"amp-check: warning: {found.site.location_text}: the fix of AMP216 was not made: libcst cannot write it\n"
    assert err.replace("Nothing would be fixed.\n", "") == said
    assert Path("train.py").read_text() == source
    if "json" in argv:
        assert json.loads(out)[0]["fix"] is None
    if "sarif" in argv:
        assert "fixes" not in json.loads(out)["runs"][0]["results"][0]


def test_every_rule_with_a_fix_says_how_safe_it_is() -> None:
    assert set(FIXERS) == set(FIXED)
    for code, rule in FIXED.items():
        assert rule.as_dict()["applicability"] == rule.applicability
        flags = {"safe": "--fix", "unsafe": "--fix --unsafe-fixes"}[rule.applicability]
        assert f"`amp-check check {flags}` applies it" in rule_text.rule_markdown(rule)
        (row,) = output.render_plain(rule_text.format_rules([RULES[code]]))
        assert row.endswith(f" [{flags}]\n")


# Offered fixes.


@functools.cache
def offered_in(source: str) -> list[tuple[str, str]]:
    """Return the rules with a fix in a program, each with the applicability of the fix."""
    found = engine.check_source(source, "train.py")
    fix_files.offer_fixes(found, {"train.py": source.encode()})
    return [(each.code, each.fix.applicability) for each in found if each.fix is not None]


@pytest.mark.long
@pytest.mark.parametrize("unsafe", [False, True])
def test_what_is_offered_is_made_or_said_to_be_refused(*, unsafe: bool) -> None:
    sources = [unmarked(rule.bad_example) for rule in RULES.values()]
    sources += [path.read_text() for path in sample(sorted(FIXTURES.rglob("*.py")), 10, 5 * unsafe)]
    seen: Counter[str] = Counter()
    for source in sources:
        kinds = ("safe", "unsafe") if unsafe else ("safe",)
        offered = Counter(code for code, applicability in offered_in(source) if applicability in kinds)
        if not offered:
            continue
        outcome = mended(source, unsafe=unsafe)
        refused = Counter(re.findall(r"the fix of (AMP\d+) was not made", "\n".join(outcome.refusals)))
        # A finding after one fix may have a fix of its own.
        assert offered <= outcome.fixed_counts + refused, source
        seen += offered
    assert set(seen) == {code for code, rule in FIXED.items() if unsafe or rule.applicability == "safe"}


# Rewritten expressions.


def anew(before: str, **changes: Any) -> str:
    """Rewrite an expression in a program with the given changes."""
    text = f"x = (\n{before}\n)\n"
    layout = ProgramLayout(text)
    (statement,) = layout.tree.body
    assert isinstance(statement, ast.Assign)
    node = statement.value
    assert isinstance(node, (ast.Call, ast.Dict))
    changed = edits.apply_edits(text, [PendingRewrite(layout, node, RewriteSpec(**changes)).make_edit()])
    return changed.removeprefix("x = (\n").removesuffix("\n)\n")


@pytest.mark.parametrize(
    ("before", "changes", "expected"),
    [
        ("f(a)", {"last_arguments": [("b", "1")]}, "f(a, b=1)"),
        ("f()", {"last_arguments": [("b", "1")]}, "f(b=1)"),
        ("f(a,)", {"last_arguments": [("b", "1")]}, "f(a, b=1,)"),
        ("f(\n    a,\n    b\n)", {"last_arguments": [("c", "1")]}, "f(\n    a,\n    b,\n    c=1\n)"),
        (
            "f(\n    a,  # 1\n    b,  # 2\n)",
            {"last_arguments": [("c", "3")]},
            "f(\n    a,  # 1\n    b,  # 2\n    c=3,\n)",
        ),
        ("f(\n    a,\n    b  # 2\n)", {"last_arguments": [("c", "3")]}, "f(\n    a,\n    b,  # 2\n    c=3\n)"),
        ("f(a, b=1)", {"dropped_argument": "b"}, "f(a)"),
        ("f(b=1, a=2)", {"dropped_argument": "b"}, "f(a=2)"),
        ("f(a, b=1, c=2)", {"dropped_argument": "b"}, "f(a, c=2)"),
        ("f(\n    a,\n    b=1,\n)", {"dropped_argument": "b"}, "f(\n    a,\n)"),
        ("f(\n    a,  # why\n    b=1)", {"dropped_argument": "b"}, "f(\n    a,  # why\n    )"),
        ("f(\n    a,  # why\n    b=1,  # gone\n)", {"dropped_argument": "b"}, "f(\n    a,  # why  # gone\n)"),
        ("(f)  (((a)), *b)", {"new_function": "g", "first_arguments": ["x"]}, "g  (x, ((a)), *b)"),
        ("o\n.f(a)", {"new_function": "g"}, "g(a)"),
        ("f(# a, (b)\n  a)", {"first_arguments": ["x", "y"]}, "f(# a, (b)\n  x, y, a)"),
        (
            "f('(,', {1: [2, 3]}, lambda x, y: x)",
            {"argument_names": ["a", "b", "c"]},
            "f(a='(,', b={1: [2, 3]}, c=lambda x, y: x)",
        ),
        ("f('\u6f22', (x, y), **k)", {"argument_names": [None, "b"]}, "f('\u6f22', b=(x, y), **k)"),
        ("f(x for x in y)", {"new_function": "g"}, "g(x for x in y)"),
        ("f((x for x in y), z=1)", {"first_arguments": ["a"]}, "f(a, (x for x in y), z=1)"),
        ("f(\n  a,\n  b  # 1\n  ,)", {"last_arguments": [("c", "1")]}, "f(\n  a,\n  b  # 1\n  ,\n  c=1,)"),
        ("f(a=1,  # one\n  b=2)", {"dropped_argument": "a"}, "f(  # one\n  b=2)"),
        (
            "f(\n  x,  # 0\n  a=1,  # one\n  # own\n  b=2)",
            {"dropped_argument": "a"},
            "f(\n  x,  # 0  # one\n  # own\n  b=2)",
        ),
        ("f(\n  x\n  # own\n  , a=1)", {"dropped_argument": "a"}, "f(\n  x\n  # own\n  ,)"),
        ("f(\n  # own\n  a=1\n)", {"dropped_argument": "a"}, "f(\n  # own\n  )"),
    ],
)
def test_a_call_is_made_anew(before: str, changes: dict[str, Any], expected: str) -> None:
    assert anew(before, **changes) == expected


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("f(x for x in y)", {"last_arguments": [("b", "1")]}),
        ("f(x for x in y)", {"first_arguments": ["b"]}),
        ("f(**k)", {"last_arguments": [("b", "1")]}),
        ("f(**k, a=1)", {"last_arguments": [("b", "1")]}),
        ("f(\n  a  # b\n)", {"last_arguments": [("b", "1")]}),
        ("f(a, b  # c\n)", {"last_arguments": [("b", "1")]}),
        ("f(a, (\n  b),  # c\n)", {"last_arguments": [("b", "1")]}),
        ("f(a, \\\n  b  # c\n)", {"last_arguments": [("b", "1")]}),
        ("{}", {"last_arguments": [("'b'", "1")]}),
        ("{'a': 1  # one\n}", {"last_arguments": [("'b'", "1")]}),
        ("f(*a)", {"argument_names": ["b"]}),
        ("f(a, b)", {"argument_names": ["b"]}),
        ("f(a, b)", {"argument_names": ["b", None]}),
        ("f(*a)", {"new_value": (0, "b", "1")}),
        ("f(a, **k)", {"new_value": (0, "b", "1")}),
        ("f(a)", {"new_value": (1, "b", "1")}),
        ("f(a, b=1)", {"new_value": (0, "b", "1")}),
        ("f(a)", {"dropped_argument": "b"}),
    ],
)
def test_what_cannot_be_made_anew(text: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotFixable):
        anew(text, **changes)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("{'a': 1}", "{'a': 1, 'b': 2}"),
        ("{\n  'a': 1\n}", "{\n  'a': 1,\n  'b': 2\n}"),
        ("{\n  'a': 1,  # one\n}", "{\n  'a': 1,  # one\n  'b': 2,\n}"),
        ("{**x, ('a'): (1)}", "{**x, ('a'): (1), 'b': 2}"),
    ],
)
def test_an_item_more(before: str, expected: str) -> None:
    assert anew(before, last_arguments=[("'b'", "2")]) == expected


def test_an_argument_is_replaced_with_its_brackets() -> None:
    assert anew("f(a, (b), c)", new_value=(1, "value", "d")) == "f(a, d, c)"
    assert anew("f(a, value = (b)  # why\n)", new_value=(1, "value", "d")) == "f(a, value = d  # why\n)"


#: White space within brackets. A number distinguishes each comment from all others.
SPACES = st.sampled_from(["", " ", "\n", "\n    ", "  # note\n", "\n  # note\n  ", " \\\n  "])
#: Changes of calls, and functions that return the expected function and arguments.
CHANGES: list[tuple[dict[str, Any], Callable[[list[tuple[str, str]]], list[tuple[str, str]]]]] = [
    ({"new_function": "g.h"}, lambda parts: [("", "g.h"), *parts[1:]]),
    ({"first_arguments": ["x", "y"]}, lambda parts: [parts[0], ("", "x"), ("", "y"), *parts[1:]]),
    (
        {"first_arguments": ["x", "y=1"], "argument_names": ["a", "b", "c"]},
        lambda parts: [
            parts[0],
            ("", "x"),
            ("y", "1"),
            *((n or o, v) for o, (n, v) in zip("abcd", parts[1:], strict=False)),
        ],
    ),
    ({"last_arguments": [("x", "1"), ("y", "2")]}, lambda parts: [*parts, ("x", "1"), ("y", "2")]),
    (
        {"new_value": (1, "k1", "z(1)")},
        lambda parts: [(n, "z(1)" if n == "k1" or (not n and at == 2) else v) for at, (n, v) in enumerate(parts)],
    ),
    ({"dropped_argument": "k0"}, lambda parts: [part for part in parts if part[0] != "k0"]),
    ({"dropped_argument": "k1"}, lambda parts: [part for part in parts if part[0] != "k1"]),
]


@st.composite
def rows(draw: st.DrawFn) -> str:
    """Draw a call or a dictionary with random spacing."""
    number = draw(st.integers(0, 4))
    named = draw(st.integers(0, number))
    values = draw(
        st.lists(st.sampled_from(["a", "(b)", "'#,'", "[c, {1: d}]", "(\ne)"]), min_size=number, max_size=number)
    )
    mapping = draw(st.booleans())
    parts = [
        f"'k{at}': {value}" if mapping else f"k{at - number + named}={value}" if at >= number - named else value
        for at, value in enumerate(values)
    ]
    written = [draw(SPACES) + part + draw(SPACES) for part in parts]
    trailing = bool(written) and draw(st.booleans())
    row = ",".join(written) + ("," if trailing else "") + ("" if written and not trailing else draw(SPACES))
    counted = iter(range(99))
    return re.sub("note", lambda _: f"note {next(counted)}", f"{{{row}}}" if mapping else f"f({row})")


def parts_of(text: str) -> list[tuple[str, str]]:
    """Return the called function, if any, and the arguments or items of a text, each after its name or key."""
    node = ast.parse(f"(\n{text}\n)", mode="eval").body
    if isinstance(node, ast.Dict):
        return [
            (ast.unparse(key or node), ast.unparse(value)) for key, value in zip(node.keys, node.values, strict=True)
        ]
    assert isinstance(node, ast.Call)
    positional = [("", ast.unparse(arg)) for arg in node.args]
    return [("", ast.unparse(node.func)), *positional, *((k.arg or "**", ast.unparse(k.value)) for k in node.keywords)]


@settings(deadline=None)
@given(rows(), st.sampled_from(CHANGES))
def test_what_can_be_made_anew_is_written_with_all_its_comments(
    before: str, change: tuple[dict[str, Any], Callable[[list[tuple[str, str]]], list[tuple[str, str]]]]
) -> None:
    changes, expected = change
    if before[0] == "{":
        changes, expected = {"last_arguments": [("'x'", "1")]}, lambda parts: [*parts, ("'x'", "1")]
    try:
        written = anew(before, **changes)
    except NotFixable:
        return
    assert re.findall(r"# note \d+", written) == re.findall(r"# note \d+", before)
    assert parts_of(written) == expected(parts_of(before))
