"""Findings name losses, optimizers and sums by the source text of the program, for every form of call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from columns import compile_without_columns
from runtime_programs import SETUP

pytest.importorskip("torch")

import torch

from pytest_amp_check import record
from pytest_amp_check.protocol.finding import Finding

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.fixture(autouse=True)
def _autocast_off() -> Iterator[None]:
    """Turn autocast off, because some programs leave autocast on."""
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()


def found(body: str, path: Path, code: str) -> Finding:
    """Run a program from a file. Return the only finding of a rule."""
    source = SETUP + body
    path.write_text(source, encoding="utf-8")
    with record() as run:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102 - ours
    assert run.failure is None
    (finding,) = [finding for finding in run.findings if finding.code == code]
    return finding


@pytest.mark.parametrize(
    ("call", "loss"),
    [
        ("loss.backward()", "loss"),
        ("(loss.backward(\n    retain_graph=True,\n))", "loss"),
        ("held['loss'].backward()", "held['loss']"),
        ("loss_of(x, y).backward()", "loss_of(x, y)"),
        # Letters of several bytes before and in the call.
        ("'größe' and held['loss'].backward()", "held['loss']"),
        ("[loss, 'größe'][0].backward()", "[loss, 'größe'][0]"),
        ("torch.autograd.backward(loss)", "loss"),
        ("torch.autograd.backward([loss])", "loss"),
        ("torch.autograd.backward(tensors=loss)", "loss"),
        ("autograd.backward((loss,))", "loss"),
        ("run_backward(loss)", "loss"),
        ("torch.autograd.backward([loss, 0.0 * loss])", "[loss, 0.0 * loss]"),
    ],
)
def test_what_runs_backward_without_the_scale_is_named(call: str, loss: str, tmp_path: Path) -> None:
    body = f"""
from torch import autograd
from torch.autograd import backward as run_backward

x, y = batches[0]
loss = loss_of(x, y)
held = {{"loss": loss}}
scaler.scale(loss)
{call}
scaler.step(optimizer)
scaler.update()
"""
    finding = found(body, tmp_path / "train.py", "AMP203")
    if loss == "loss_of(x, y)":
        # The arguments of a call say nothing more about a loss that is computed in place.
        assert "torch" not in finding.message.split(" is not scaled")[0]
    else:
        assert finding.message == (
            f"`{loss}` is not scaled, but `scaler.step(optimizer)` divides its gradients by the loss "
            f"scale: write `scaler.scale({loss}).backward()`"
        )


@pytest.mark.parametrize("given", ["held['opt']", "optimizer=held['opt']"])
@pytest.mark.parametrize(
    ("clip", "unscale", "code", "said"),
    [
        (
            "clip(max_norm=1.0, parameters=model.parameters())",
            "",
            "AMP201",
            (
                "`clip` clips gradients that are still multiplied by the loss scale: write "
                "`scaler.unscale_(held['opt'])` in the line before it"
            ),
        ),
        (
            "scaler.unscale_({given})",
            "scaler.unscale_({given})",
            "AMP209",
            (
                "`scaler.unscale_(held['opt'])` is called twice for one update, so torch raises: call it once, before "
                "the gradients are first used"
            ),
        ),
    ],
)
def test_the_optimizer_of_a_step_is_named_in_any_form_of_the_call(
    given: str, clip: str, unscale: str, code: str, said: str, tmp_path: Path
) -> None:
    body = f"""
from contextlib import suppress
from torch.nn.utils import clip_grad_norm_ as clip

held = {{"opt": optimizer}}
x, y = batches[0]
loss = loss_of(x, y)
scaler.scale(outputs=loss).backward()
{clip.format(given=given)}
with suppress(RuntimeError):
    {unscale.format(given=given) or "pass"}
scaler.step({given})
scaler.update()
"""
    assert found(body, tmp_path / "train.py", code).message == said


@pytest.mark.parametrize("gradient", ["", "torch.ones(())"])
def test_a_loss_on_another_line_than_its_backward_has_its_own_name_or_none(gradient: str, tmp_path: Path) -> None:
    body = f"""
x, y = batches[0]
loss = loss_of(x, y)
scaler.scale(loss)
(
    loss
    .backward({gradient})
)
scaler.step(optimizer)
scaler.update()
"""
    # The version of Python decides.
    said = found(body, tmp_path / "train.py", "AMP203").message.partition(" is not scaled")[0]
    assert said in ("`loss`", "the loss")


@pytest.mark.parametrize(
    ("call", "scaler"),
    [
        ("scaler.scale(loss).backward()", "scaler"),
        ("torch.autograd.backward(scaler.scale(loss))", "scaler"),
        ("torch.autograd.backward([scaler.scale(outputs=loss)])", "scaler"),
        ("run_backward(tensors=scaler.scale(loss))", "scaler"),
        ("held['amp'].scale(loss).backward()", "held['amp']"),
        ("torch.autograd.backward((held['amp'].scale(loss),))", "held['amp']"),
        # The call that scales the loss is in another function.
        ("scaled(loss).backward()", "scaler"),
    ],
)
def test_the_scaler_of_a_scaled_backward_is_named(call: str, scaler: str, tmp_path: Path) -> None:
    body = f"""
from torch.autograd import backward as run_backward

x, y = batches[0]
loss = loss_of(x, y)
held = {{"amp": scaler}}
scaled = lambda loss: scaler.scale(loss)
{call}
optimizer.step()
"""
    finding = found(body, tmp_path / "train.py", "AMP204")
    assert finding.message == (
        "`optimizer.step()` applies gradients that are still multiplied by the loss scale: write "
        f"`{scaler}.step(optimizer)` and then `{scaler}.update()` in its place"
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [("total += term", "total"), ("total.add_(term)", "total"), ("held[0] += term", "held[0]")],
)
def test_a_sum_that_loses_its_terms_is_named(call: str, name: str, tmp_path: Path) -> None:
    body = f"""
total = torch.zeros((), dtype=torch.float16)
held = [total]
term = torch.tensor(1.0, dtype=torch.float16)
total += 2048.0
for _ in range(64):
    {call}
assert total == 2048.0
"""
    assert f"`{name}`" in found(body, tmp_path / "train.py", "AMP508").message


@pytest.mark.parametrize(
    ("call", "name"), [("average.lerp_(weight, 1e-4)", "average"), ("average.mul_(1.0).add_(weight, alpha=1e-4)", "")]
)
def test_an_average_that_stands_still_is_named(call: str, name: str, tmp_path: Path) -> None:
    body = f"""
average = torch.ones(16, dtype=torch.bfloat16)
weight = torch.full((16,), 1.001, dtype=torch.bfloat16) * 1.01
for _ in range(8):
    {call}
assert bool((average == 1.0).all())
"""
    finding = found(body, tmp_path / "train.py", "AMP508")
    assert finding.line == (SETUP + body[: body.index(call)]).count("\n") + 1
    if name:
        assert f"`{name}`" in finding.message
    assert "receiver" not in finding.message


@pytest.mark.parametrize("inner", ["region", "nullcontext(), region", "region, nullcontext()"])
def test_a_context_that_is_entered_twice_is_named(inner: str, tmp_path: Path) -> None:
    body = f"""
from contextlib import nullcontext

region = torch.autocast("cpu", dtype=torch.bfloat16)
with region:
    with {inner}:
        model(batches[0][0])
"""
    said = found(body, tmp_path / "train.py", "AMP102").message.partition(" is entered while it is already open")[0]
    # Some versions of Python give the span of the whole statement, which fits both expressions.
    assert said in (("`region`",) if inner == "region" else ("`region`", "autocast"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("scaler.step(optimizer=optimizer)", "scaler.step(optimizer)"),
        ("held['scaler'].step(held['optimizer'])", "held['scaler'].step(held['optimizer'])"),
        # An argument without a text has its usual name.
        ("scaler.step(**{'optimizer': optimizer})", "scaler.step(optimizer)"),
        ("scaler.step(**{'optimizer': held['optimizer']})", "scaler.step(optimizer)"),
    ],
)
def test_a_step_without_an_update_is_named(call: str, said: str, tmp_path: Path) -> None:
    body = f"""
held = {{"scaler": scaler, "optimizer": optimizer}}
scaler.scale(loss_of(*batches[0])).backward()
{call}
"""
    message = found(body, tmp_path / "train.py", "AMP206").message
    assert message.startswith(f"`{said}` is never followed by `{said.partition('.step')[0]}.update()`")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "`nn.utils.clip_grad_norm_` "),
        ("clip(parameters=model.parameters(), max_norm=1.0)", "`clip` "),
        ("(clip\n    (model.parameters(), 1.0))", "`clip` "),
        ("[clip][0](\n    model.parameters(),\n    1.0,\n)", "`[clip][0]` "),
    ],
)
def test_a_clip_before_unscale_is_named(call: str, said: str, tmp_path: Path) -> None:
    body = f"""
from torch.nn.utils import clip_grad_norm_ as clip

scaler.scale(loss_of(*batches[0])).backward()
{call}
scaler.step(optimizer)
scaler.update()
"""
    message = found(body, tmp_path / "train.py", "AMP201").message
    assert message.startswith(said)
    assert "write `scaler.unscale_(optimizer)` in the line before it" in message


@pytest.mark.parametrize("call", ["scaler.scale", "held['scaler'].scale", "scale"])
def test_a_loss_that_is_scaled_twice_is_named(call: str, tmp_path: Path) -> None:
    body = f"""
held = {{"scaler": scaler}}
scale = scaler.scale
loss = scaler.scale(loss_of(*batches[0]))
scaled = {call}(loss)
"""
    message = found(body, tmp_path / "train.py", "AMP205").message
    assert message.startswith(f"`{call}` scales a loss that is already multiplied by a loss scale: ")


@pytest.mark.parametrize(
    ("context", "said"),
    [("regions['half']", "`regions['half']`"), ("region_of('half')", "`region_of`"), ("(region)", "`region`")],
)
def test_the_expression_of_a_context_that_is_entered_twice(context: str, said: str, tmp_path: Path) -> None:
    body = f"""
region = torch.autocast("cpu", dtype=torch.bfloat16)
regions = {{"half": region}}
region_of = regions.get
with {context}:
    with {context}:
        model(batches[0][0])
"""
    message = found(body, tmp_path / "train.py", "AMP102").message
    assert message.partition(" is entered while it is already open")[0] == said


@pytest.mark.parametrize(
    ("end", "said", "columns"),
    [
        ("if i % 4 == 0:\n        STEP", "i % 4 == 0", (7, 17)),
        ("if 0 == i % größe:\n        STEP", "0 == i % größe", (7, 21)),
        ("if i % 4 != 0:\n        continue\n    STEP", "i % 4 == 0", (7, 17)),
        ("if (\n        i % 4\n        == 0\n    ):\n        STEP", "i % 4 == 0", (8, 12)),
    ],
)
def test_the_condition_of_an_early_window_is_named(
    end: str, said: str, columns: tuple[int, int], tmp_path: Path
) -> None:
    end = end.replace("STEP", "scaler.step(optimizer); scaler.update(); optimizer.zero_grad()")
    body = f"""
größe = 4
for i, (x, y) in enumerate(batches * 4):
    scaler.scale(loss_of(x, y)).backward()
    {end}
"""
    finding = found(body, tmp_path / "train.py", "AMP304")
    assert f"`{said}`" in finding.message
    assert (finding.site.column, finding.site.end_column) == columns


def test_the_scaler_of_an_earlier_step_is_named_for_a_step_past_it(tmp_path: Path) -> None:
    body = """
held = {"amp": scaler}
for turn, (x, y) in enumerate(batches[:2]):
    optimizer.zero_grad()
    scaled = held["amp"].scale(loss_of(x, y))
    scaled.backward()
    if turn == 0:
        held["amp"].step(optimizer)
        held["amp"].update()
    else:
        optimizer.step()
"""
    message = found(body, tmp_path / "train.py", "AMP204").message
    assert message.endswith("write `held['amp'].step(optimizer)` and then `held['amp'].update()` in its place")


def found_without_columns(body: str, path: Path, code: str) -> Finding:
    """Run a program whose code knows only its lines. Return the only finding of a rule."""
    source = SETUP + body
    path.write_text(source, encoding="utf-8")
    with record() as run:
        exec(compile_without_columns(source, str(path)), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102
    assert run.failure is None
    (finding,) = [finding for finding in run.findings if finding.code == code]
    assert (finding.site.column, finding.site.end_line) == (0, finding.line)
    return finding


needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="code of Python 3.10 has no columns to leave out")


@needs_columns
@pytest.mark.parametrize(
    ("call", "loss"),
    [
        ("loss.backward()", "`loss`"),
        ("torch.autograd.backward(held['loss'])", "`held['loss']`"),
        ("made = loss.backward()", "`loss`"),
        # The line holds more than the call.
        ("if loss is not None: loss.backward()", "the loss"),
        ("for each in [loss]: each.backward()", "the loss"),
        ("made = 1; loss.backward()", "the loss"),
    ],
)
def test_a_loss_is_named_by_the_line_of_its_backward(call: str, loss: str, tmp_path: Path) -> None:
    body = f"""
x, y = batches[0]
loss = loss_of(x, y)
held = {{"loss": loss}}
scaler.scale(loss)
{call}
scaler.step(optimizer)
scaler.update()
"""
    finding = found_without_columns(body, tmp_path / "train.py", "AMP203")
    assert finding.message.startswith(f"{loss} is not scaled, but `scaler.step(optimizer)` divides its gradients by ")
    assert finding.line == (SETUP + body).split("\n").index(call) + 1


@needs_columns
@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("with region:", "`region`"),
        ("with regions['half'] as entered:", "`regions['half']`"),
        ("with nullcontext(), region:", "autocast"),
        ("if True: region.__enter__()", "autocast"),
    ],
)
def test_a_context_is_named_by_the_line_of_its_entry(context: str, said: str, tmp_path: Path) -> None:
    body = f"""
from contextlib import nullcontext

region = torch.autocast("cpu", dtype=torch.bfloat16)
regions = {{"half": region}}
with region:
    {context}
{"        pass" if context.startswith("with") else ""}
    model(batches[0][0])
{"" if context.startswith("with") else "    region.__exit__(None, None, None)"}
"""
    message = found_without_columns(body, tmp_path / "train.py", "AMP102").message
    assert message.partition(" is entered while it is already open")[0] == said


@needs_columns
def test_a_sum_is_named_by_the_line_of_its_addition(tmp_path: Path) -> None:
    body = """
total = torch.zeros((), dtype=torch.float16)
term = torch.tensor(1.0, dtype=torch.float16)
total += 2048.0
for _ in range(64):
    total += term
"""
    assert "`total`" in found_without_columns(body, tmp_path / "train.py", "AMP508").message
