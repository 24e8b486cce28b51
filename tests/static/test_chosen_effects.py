"""Effects that a finding chooses by what is known: the dtype, the optimizer, the scaler, repeated calls."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.{optimizer}
scaler = torch.amp.GradScaler("cuda")
"""
FORWARD = """\
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
"""
STEP = """\
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def effect(code: str, body: str, optimizer: str = "SGD(model.parameters(), lr=0.1)") -> str:
    """Return the effect of the only finding of a rule."""
    text = HEAD.format(optimizer=optimizer) + body
    (found,) = {finding.effect for finding in check_source(text, "train.py") if finding.code == code}
    return found


CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
#: Body of a training for each rule whose effect depends on the class of the optimizer.
BY_OPTIMIZER = {
    "AMP201": f"for x in batches:\n{FORWARD}    scaler.scale(loss).backward()\n    {CLIP}\n{STEP}",
    "AMP203": f"for x in batches:\n{FORWARD}    (loss if x is None else scaler.scale(loss)).backward()\n{STEP}",
    "AMP204": f"for x in batches:\n{FORWARD}    scaler.scale(loss).backward()\n    optimizer.step()\n"
    "    optimizer.zero_grad()\n",
    "AMP301": f"for i, x in enumerate(batches):\n{FORWARD}    scaler.scale(loss).backward()\n"
    "    if (i + 1) % 4 == 0:\n        scaler.step(optimizer)\n        scaler.update()\n"
    "        optimizer.zero_grad()\n",
}


@pytest.mark.parametrize("code", BY_OPTIMIZER)
def test_the_class_of_the_optimizer_chooses_the_effect(code: str) -> None:
    made = ["SGD(model.parameters(), lr=0.1)", "AdamW(model.parameters())", "Adam(model.parameters())"]
    sgd, adamw, adam = (effect(code, BY_OPTIMIZER[code], optimizer) for optimizer in made)
    unknown = effect(code, BY_OPTIMIZER[code].replace("for ", "optimizer = make(model)\nfor ", 1))
    assert adamw == adam and len({sgd, adam, unknown}) == 3
    assert "Adam" not in sgd and "SGD" not in adam


@pytest.mark.parametrize(
    ("scaled", "words"),
    [(True, "a step is skipped and the scale halves"), (False, "a loss above 65504 is infinite")],
)
def test_a_loss_outside_skips_steps_only_with_a_scaler(scaled: bool, words: str) -> None:
    backward = "scaler.scale(loss).backward()\n" if scaled else "loss.backward()\n"
    step = STEP if scaled else "    optimizer.step()\n    optimizer.zero_grad()\n"
    body = f"""\
for x, y in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(x)
    loss = F.cross_entropy(output, y)
    {backward}{step}"""
    assert words in effect("AMP104", body)


@pytest.mark.parametrize(("dtype", "limit"), [("float16", "1/2048"), ("bfloat16", "1/256")])
def test_lost_updates_are_those_of_the_dtype(dtype: str, limit: str) -> None:
    body = f"model.to(torch.{dtype})\nfor x in batches:\n    model(x).mean().backward()\n    optimizer.step()\n"
    body += "    optimizer.zero_grad()\n"
    assert limit in effect("AMP501", body)


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        ("scores = scores.masked_fill(mask, -1e9)", "torch raises RuntimeError"),
        ("scores.masked_fill_(mask, -1e9)", "torch raises RuntimeError"),
        ("scores = torch.where(mask, scores, -1e9)", "gets an infinity"),
        ("scores[mask] = -1e9", "gets an infinity"),
    ],
)
def test_a_fill_raises_or_writes_by_its_function(fill: str, words: str) -> None:
    body = f"""\
def attend(query, key, mask):
    with torch.autocast("cuda", dtype=torch.float16):
        scores = torch.matmul(query, key)
        {fill}
        return scores.softmax(-1)
"""
    assert words in effect("AMP506", body)


def _window(unscale: str) -> str:
    return f"""\
for i, x in enumerate(batches):
{FORWARD}    scaler.scale(loss / 4).backward()
{unscale}    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def test_an_unscale_in_each_micro_batch_raises_and_a_rare_one_does_not() -> None:
    each = effect("AMP303", _window("    scaler.unscale_(optimizer)\n"))
    constant = effect("AMP303", _window("    if clip:\n        scaler.unscale_(optimizer)\n"))
    rare = effect("AMP303", _window("    if x.sum() > 1:\n        scaler.unscale_(optimizer)\n"))
    assert each == constant and "torch raises RuntimeError" in each
    assert "no error" in rare


def test_an_update_in_the_window_raises_alone_and_repeats_an_unscale() -> None:
    body = f"""\
for i, x in enumerate(batches):
{FORWARD}    scaler.scale(loss / 4).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
"""
    assert "torch raises AssertionError" in effect("AMP303", body)
    unscaled = body.replace("    if (i", "    scaler.unscale_(optimizer)\n    if (i")
    assert "only the last one of a window counts" in effect("AMP303", unscaled)


def test_a_skipped_update_raises_where_unscale_runs_again() -> None:
    skip = "    if norm > 9:\n        optimizer.zero_grad()\n        continue\n"
    begin = f"for x in batches:\n{FORWARD}    scaler.scale(loss).backward()\n"
    each = effect("AMP209", f"{begin}    scaler.unscale_(optimizer)\n    norm = {CLIP}\n{skip}{STEP}")
    assert each == "torch raises RuntimeError at the unscale_ of the next iteration, which ends the run"


@pytest.mark.parametrize(
    ("loops", "words"),
    [
        ("for x in batches:\n    {made}\n{body}", "no step is ever applied"),
        ("for epoch in range(9):\n    {made}\n    for x in batches:\n{inner}", "skips steps until it fits"),
    ],
)
def test_a_new_scaler_loses_more_in_each_step_than_in_each_epoch(loops: str, words: str) -> None:
    body = f"{FORWARD}    scaler.scale(loss).backward()\n{STEP}"
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    assert words in effect("AMP208", loops.format(made='scaler = torch.amp.GradScaler("cuda")', body=body, inner=inner))


@pytest.mark.parametrize(("given", "words"), [("closure=closure", "torch raises"), ("closure", "no error")])
def test_only_a_named_closure_raises(given: str, words: str) -> None:
    body = f"""\
def closure():
    return scaler.scale(model(x).mean()).backward()


for x in batches:
    scaler.step(optimizer, {given})
    scaler.update()
    optimizer.zero_grad()
"""
    assert words in effect("AMP211", body)


def test_uncleared_gradients_end_later_steps_only_with_a_scaler() -> None:
    scaled = effect(
        "AMP215",
        f"for x in batches:\n{FORWARD}    scaler.scale(loss).backward()\n{STEP}".replace(
            "    optimizer.zero_grad()\n", ""
        ),
    )
    plain = effect("AMP215", "for x in batches:\n    model(x).mean().backward()\n    optimizer.step()\n")
    assert "every later step is skipped" in scaled and "skipped" not in plain


@pytest.mark.parametrize(("value", "words"), [("True", "begins at 1"), ("False", "makes the weights NaN")])
def test_a_bool_as_scale_is_one_or_zero(value: str, words: str) -> None:
    assert words in effect("AMP216", f"other = torch.cuda.amp.GradScaler({value})\n")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-2)", "the normalized vector is zero"),
        ("(x * x).mean()", "without one the weights become NaN"),
    ],
)
def test_a_mean_of_squares_that_normalizes_gives_zeros(result: str, words: str) -> None:
    text = f"import torch\n\nclass Norm(torch.nn.Module):\n    def forward(self, x):\n        return {result}\n"
    settings = Settings(assumed_dtype="float16")
    (found,) = (each for each in check_source(text, "layers.py", settings) if each.code == "AMP507")
    assert words in found.effect
