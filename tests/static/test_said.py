"""What findings say: the way on which the mistake happens, and what to do that is not done already."""

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
    """The one finding in a loop of these parts."""
    (found,) = check_source(HEAD + "".join(indent(dedent(part), "        ") for part in parts))
    return found


#: What comes between backward and the end of the turn, what is said to skip the step, and the line that does.
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
    (step,) = [step for step in found.witness if step.text == "the step is skipped"]
    assert source.split("\n")[step.site.line - 1].strip() == line


def test_a_step_under_a_test_is_skipped_by_the_program() -> None:
    unscaled = "scaler.unscale_(optimizer)\nnorm = clip_grad_norm_(model.parameters(), 1.0)\n"
    found = only(FED, unscaled, "if norm < 100:\n" + indent(STEP, "    "))
    assert found.message.endswith("call `scaler.update()` also where the program skips the step")
    assert found.condition == "when `norm < 100` is false"


def test_unscale_ahead_of_backward_is_told_to_come_after_it() -> None:
    found = only(
        "scaler.unscale_(optimizer)\n", FED.replace("optimizer.zero_grad()\n", ""), STEP, "optimizer.zero_grad()"
    )
    assert found.code == "AMP209"
    assert found.message.startswith("`scaler.unscale_(optimizer)` comes before the backward pass")
    assert found.message.endswith("call it between backward and `scaler.step(optimizer)`")


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
    assert [(step.site.line, step.text) for step in found.witness] == [(13, "the scaler steps the optimizer")]


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


@pytest.mark.parametrize(("scaler", "codes"), [("each epoch", ["AMP208"]), ("once", ["AMP401"])])
def test_of_a_scaler_that_is_made_anew_all_the_time_nothing_has_to_be_saved(scaler: str, codes: list[str]) -> None:
    made = 'scaler = torch.amp.GradScaler("cuda")'
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
    assert [finding.code for finding in check_source(source)] == codes
