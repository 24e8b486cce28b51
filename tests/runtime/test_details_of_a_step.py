"""One training step with a float16 scaler and one more statement: the label and the message of what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Watched(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        {in_backward}
        return grad


sizes = []
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
{setup}
for index in range(3):
    {clear}
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(4, 8)).float(), torch.ones(4, 1))
    loss = Watched.apply(loss)
    {before}
    scaler.scale(loss).backward()
    {after}
    {step}
    scaler.update()
    {end}
"""
#: Statements of the program where a test gives no others.
USUAL = {
    **dict.fromkeys(("setup", "before", "after", "in_backward", "end"), "pass"),
    "clear": "optimizer.zero_grad()",
    "step": "scaler.step(optimizer)",
}


class Seen(NamedTuple):
    """What a run has recorded: label, line and message of each finding, and the steps."""

    findings: list[tuple[str, int, str]]
    losses: list[float | None]
    norms: list[float | None]
    raised: str


def seen(tmp_path: Path, **statements: str) -> Seen:
    path, raised = tmp_path / "train.py", ""
    path.write_text(PROGRAM.format(**USUAL | statements), encoding="utf-8")
    with record() as run:
        try:
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
        except (AssertionError, RuntimeError) as error:
            raised = str(error)
    assert run.failure is None
    return Seen(
        [(finding.label, finding.line, finding.message) for finding in run.findings],
        [step.loss for step in run.steps],
        [step.grad_norm for step in run.steps],
        raised,
    )


def found(tmp_path: Path, **statements: str) -> list[tuple[str, str]]:
    """Return label and beginning of the message of each finding."""
    run = seen(tmp_path, **statements)
    assert run.raised == ""
    return [(label, message.partition(":")[0]) for label, _, message in run.findings]


SCALED = "while they are still multiplied by the loss scale"
EDITED = (
    "edit@scaled",
    "Gradients of `optimizer` are edited before they are unscaled, so the step divides the edit by the scale",
)
READ = ("read@scaled", f"Gradients of `optimizer` are read {SCALED}")
READS = "sizes.append(grad.abs().max().item())"
HOOK = "model.weight.register_hook(lambda grad: {})"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("model.weight.grad.clamp_(-1, 1)", EDITED),
        ("model.weight.grad.add_(1e-3)", EDITED),
        ("model.weight.grad[0] = 0.5", EDITED),
        ("nn.utils.clip_grad_value_(model.parameters(), 1.0)", ("clip@scaled", "`nn.utils.clip_grad_value_` clips")),
        ("nn.utils.clip_grad_norm_(max_norm=1.0, parameters=model.parameters())", ("clip@scaled", "`nn.utils.clip_gr")),
        ("optimizer.step()", ("plain-step@scaled", "`optimizer.step()` applies gradients that are still multiplied")),
        ("model.weight.grad.mul_(0.5)", None),
        ("model.weight.grad.div_(2.0, rounding_mode='floor')", EDITED),
        ("model.weight.grad.index_add_(1, torch.tensor([0]), torch.ones(1, 1))", EDITED),
        ("sizes.append(bool(model.weight.grad.norm()))", None),
        ("sizes.append(model.weight.grad.norm().int().item())", None),
        ("scaler.unscale_(optimizer); model.weight.grad.clamp_(-1, 1)", None),
        ("scaler.unscale_(optimizer); nn.utils.clip_grad_value_(model.parameters(), 1.0)", None),
        ("model.weight.grad.isfinite().all().item()", None),
        ("print(model.weight.grad.shape)", None),
        ("print(loss.item())", None),
    ],
)
def test_after_the_backward(after: str, expected: tuple[str, str] | None, tmp_path: Path) -> None:
    findings = found(tmp_path, after=after)
    if expected is None:
        assert findings == []
    else:
        ((label, message),) = findings
        assert label == expected[0]
        assert message.startswith(expected[1])


@pytest.mark.parametrize(
    ("before", "label", "message"),
    [
        ("loss = scaler.scale(loss)", "scale@scaled", "`scaler.scale` scales a loss that is already multiplied"),
        ("loss = scaler.scale(outputs=loss)", "scale@scaled", "`scaler.scale` scales a loss that is already"),
        ("loss.backward(retain_graph=True)", "step@raw", "`loss` is not scaled"),
    ],
)
def test_before_the_backward(before: str, label: str, message: str, tmp_path: Path) -> None:
    ((found_label, found_message),) = found(tmp_path, before=before)
    assert found_label == label
    assert found_message.startswith(message)


@pytest.mark.parametrize(
    ("setup", "in_backward", "expected"),
    [
        (HOOK.format(READS), "pass", [READ]),
        # Numbers that other code reads during the backward.
        (HOOK.format("grad * 1.0"), READS, []),
        ("pass", READS, []),
        (HOOK.format("print(grad.shape)"), "pass", []),
        (HOOK.format("sizes.append(bool(grad.max()))"), "pass", []),
        (HOOK.format("sizes.append(grad.max().int().item())"), "pass", []),
        (HOOK.format("sizes.append(grad.max().item() / scaler.get_scale())"), "pass", []),
    ],
)
def test_hooks(setup: str, in_backward: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    assert found(tmp_path, setup=setup, in_backward=in_backward) == expected


# Lines of the program.
BACKWARD, AFTER, STEP, UPDATE, END = 30, 31, 32, 33, 34
#: The losses of three steps, which no statement has changed.
LOSSES = [1.354, 1.305, 1.259]
UNSCALE_FIRST = (
    "write `scaler.unscale_(optimizer)` before, outside of a loop over parameters, or divide the values by "
    "`scaler.get_scale()`"
)
READ_SCALED = f"Gradients of `optimizer` are read {SCALED}: {UNSCALE_FIRST}"
CLIPPED = "`torch.nn.utils.clip_grad_norm_` clips gradients that are still multiplied by the loss scale: write "
CLIPPED += "`scaler.unscale_(optimizer)` in the line before it"
BY_HAND = (
    "Gradients of `optimizer` are divided by the loss scale by hand, and `scaler` divides them as well: replace the "
)
BY_HAND += "division by `scaler.unscale_(optimizer)`"
EDITED_SCALED = f"{EDITED[1]}: write `scaler.unscale_(optimizer)` before the edit, "
EDITED_SCALED += "outside of a loop over parameters"
STALE = "Gradients of `optimizer` are not cleared between a step and the next backward: write `optimizer.zero_grad()` "
STALE += "after the step, so in every iteration"
LOST = "Gradients of `optimizer` are cleared between backward and `scaler.step(optimizer)`: move this statement to "
LOST += "after the step"
INVALID = (
    "Gradients of `optimizer` become NaN or infinite after `unscale_` has checked them, and the step applies them: "
)
INVALID += "keep gradients finite between unscale_ and step"
RAISES = "`torch.isfinite` ends the program on every overflow that `scaler` would only skip: leave infinities to "
RAISES += "`scaler.step(optimizer)`, or stop only after many skipped steps in a row"
NORM = "torch.nn.utils.clip_grad_norm_"
GRADS = "[p.grad for p in model.parameters()]"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("torch.nn.utils.get_total_norm([model.weight.grad])", ("read@scaled", READ_SCALED)),
        (f"{NORM}(model.parameters(), float('inf'))", ("read@scaled", READ_SCALED)),
        (f"{NORM}(model.parameters(), 1e30)", ("clip@scaled", CLIPPED)),
        (f"{NORM}([model.weight], 1e30)", ("clip@scaled", CLIPPED)),
        (f"{NORM}(model.weight, 1e30)", ("clip@scaled", CLIPPED)),
        (f"{NORM}((p for p in model.parameters()), 1e30)", ("clip@scaled", CLIPPED)),
        (f"{NORM}(model.parameters(), 1e30 * scaler.get_scale())", None),
        # A limit of a thousandth of the scale is multiplied by the scale, and a smaller limit is not.
        (f"{NORM}(model.parameters(), 1e-3 * scaler.get_scale()); model.weight.grad.mul_(0)", None),
        ("sizes.append(model.weight.grad.norm())", None),
        ("sizes.append(model.weight.grad.norm().item())", ("read@scaled", READ_SCALED)),
        ("sizes.append(float(torch.linalg.vector_norm(model.weight.grad)))", ("read@scaled", READ_SCALED)),
        ("sizes.append(float(torch.norm(model.weight.grad)) / scaler.get_scale())", None),
        ("sizes.append(bool(model.weight.grad.isnan().any()))", None),
        ("assert torch.isfinite(model.weight.grad).all()", ("raise-nonfinite", RAISES)),
        ("scaler.unscale_(optimizer); assert torch.isfinite(model.weight.grad).all()", ("raise-nonfinite", RAISES)),
        ("model.weight.grad.data.clamp_(-1, 1)", ("edit@scaled", EDITED_SCALED)),
        (f"torch._foreach_clamp_max_({GRADS}, 1.0)", ("edit@scaled", EDITED_SCALED)),
        ("model.weight.grad.add_(torch.ones(1, 8))", ("edit@scaled", EDITED_SCALED)),
        ("model.weight.grad.add_(model.weight.detach(), alpha=0.1)", ("edit@scaled", EDITED_SCALED)),
        ("model.weight.grad.copy_(torch.ones(1, 8))", None),
        ("model.weight.grad /= 2", None),
        (f"torch._foreach_mul_({GRADS}, 0.5)", None),
        ("model.weight.grad = torch.nan_to_num(model.weight.grad)", None),
        ("model.weight.grad /= scaler.get_scale()", ("step@divided", BY_HAND)),
        (f"[grad.div_(scaler.get_scale()) for grad in {GRADS}]", ("step@divided", BY_HAND)),
        ("scaler.unscale_(optimizer); model.weight.grad.fill_(float('inf'))", ("grads:invalid", INVALID)),
        ("scaler.unscale_(optimizer); model.weight.grad.div_(0.0)", ("grads:invalid", INVALID)),
        (f"scaler.unscale_(optimizer); {NORM}(model.parameters(), float('nan'))", ("grads:invalid", INVALID)),
        ("optimizer.zero_grad(set_to_none=False)", ("step@discarded", LOST)),
        # Zeros have no size that the scale would change, and nothing is left to be clipped or edited.
        (
            "optimizer.zero_grad(set_to_none=False); sizes.append(model.weight.grad.max().item())",
            ("step@discarded", LOST),
        ),
        (f"optimizer.zero_grad(set_to_none=False); {NORM}(model.parameters(), 1.0)", ("step@discarded", LOST)),
        ("optimizer.zero_grad(set_to_none=False); model.weight.grad.clamp_(-1, 1)", ("step@discarded", LOST)),
        ("model.zero_grad(set_to_none=False)", ("step@discarded", LOST)),
    ],
)
def test_the_whole_message_and_where_it_stands(after: str, expected: tuple[str, str] | None, tmp_path: Path) -> None:
    run = seen(tmp_path, after=after)
    assert run.findings == ([] if expected is None else [(expected[0], AFTER, expected[1])])
    assert run.raised == ""


@pytest.mark.parametrize(
    ("clear", "is_stale"),
    [
        ("pass", True),
        ("model.weight.grad = None", True),
        ("model.weight.grad = model.bias.grad = None", False),
        ("for p in model.parameters(): p.grad = None", False),
        ("[p.grad.zero_() for p in model.parameters() if p.grad is not None]", False),
        ("for p in model.parameters(): del p.grad", False),
        ("del model.weight.grad", True),
        ("model.zero_grad()", False),
        ("model.zero_grad(set_to_none=False)", False),
        ("optimizer.zero_grad(); model.zero_grad()", False),
        ("optimizer.zero_grad(set_to_none=False)", False),
        ("if index: optimizer.zero_grad()", False),
        # A later clear withdraws the finding, but gradients may also be zero without a clear.
        ("if index == 2: optimizer.zero_grad()", False),
        ("if index == 2: [p.grad.numpy().fill(0.0) for p in model.parameters()]", True),
        ("if index: [p.grad.numpy().fill(0.0) for p in model.parameters()]", False),
    ],
)
def test_gradients_are_cleared_in_many_ways(clear: str, is_stale: bool, tmp_path: Path) -> None:
    run = seen(tmp_path, clear=clear)
    assert run.findings == ([("backward@stale", BACKWARD, STALE)] if is_stale else [])
    assert run.losses[:2] == pytest.approx(LOSSES[:2], abs=0.01)


@pytest.mark.parametrize(
    ("statements", "losses"),
    [
        # A batch that is discarded is no part of the next step, in whatever way its gradients are cleared.
        ({"after": "if index == 1: optimizer.zero_grad(); continue"}, LOSSES[:2]),
        ({"after": "if index == 1: model.zero_grad(); continue"}, LOSSES[:2]),
        ({"after": "if index == 1: model.weight.grad = model.bias.grad = None; continue"}, LOSSES[:2]),
        ({"after": "if index == 1: continue"}, LOSSES[:2]),
        (
            {"step": "scaler.step(optimizer); optimizer.zero_grad(); optimizer.step()"},
            [1.354, None, 1.305, None, 1.259, None],
        ),
        ({"step": "scaler.unscale_(optimizer); scaler.step(optimizer)"}, LOSSES),
        ({"end": "scaler.update(32.0)"}, LOSSES),
    ],
)
def test_the_losses_of_the_steps(statements: dict[str, str], losses: list[float | None], tmp_path: Path) -> None:
    run = seen(tmp_path, **statements)
    assert run.losses == pytest.approx(losses, abs=0.01)
    assert [label for label, _, _ in run.findings] == []


@pytest.mark.parametrize(
    "after", [f"{NORM}(model.parameters(), 1e30)", f"scaler.unscale_(optimizer); {NORM}(model.parameters(), 1e30)"]
)
def test_the_norms_of_the_steps_are_those_of_unscaled_gradients(after: str, tmp_path: Path) -> None:
    assert seen(tmp_path, after=after).norms == pytest.approx([6.98, 6.86, 6.73], abs=0.05)


#: A factor that small could be anything, for example the weight of a loss.
LARGE = "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**12)"


@pytest.mark.parametrize(
    ("before", "setup", "is_found"),
    [
        ("loss = loss * scaler.get_scale()", LARGE, True),
        ("loss = scaler.get_scale() * loss", LARGE, True),
        ("loss = loss * 4096.0", LARGE, True),
        ("loss = loss * 4095.0", LARGE, False),
        ("loss = loss + 4096.0", LARGE, False),
        ("loss = loss * scaler.get_scale() / scaler.get_scale()", LARGE, False),
        ("loss = loss * scaler.get_scale() * (1 / scaler.get_scale())", LARGE, False),
        ("loss = scaler.scale(loss) / scaler.get_scale()", LARGE, False),
        ("loss = loss * scaler.get_scale()", "pass", False),
        ("loss = loss * scaler.get_scale()", "scaler = torch.amp.GradScaler('cpu', init_scale=256.0)", True),
        ("loss = loss * scaler.get_scale()", "scaler = torch.amp.GradScaler('cpu', init_scale=255.0)", False),
    ],
)
def test_a_loss_that_is_multiplied_by_the_scale_by_hand(
    before: str, setup: str, is_found: bool, tmp_path: Path
) -> None:
    labels = {label for label, _, _ in seen(tmp_path, before=before, setup=setup).findings}
    assert ("scale@scaled" in labels) is is_found


@pytest.mark.parametrize(
    ("statements", "label", "line", "raised"),
    [
        (
            {"step": "scaler.step(optimizer); scaler.step(optimizer)"},
            "step@stepped",
            STEP,
            "step() has already been called",
        ),
        ({"end": "scaler.step(optimizer)"}, "step@stepped", END, "step() has already been called"),
        (
            {"step": "scaler.unscale_(optimizer); scaler.unscale_(optimizer)"},
            "unscale@unscaled",
            STEP,
            "unscale_() has already",
        ),
        ({"step": "pass"}, "update@nothing", UPDATE, "No inf checks were recorded"),
        ({"end": "scaler.update()"}, "update@nothing", END, "No inf checks were recorded"),
        ({"after": "model.zero_grad()"}, "step@discarded", AFTER, "No inf checks were recorded"),
    ],
)
def test_what_torch_raises_is_found_where_it_is_raised(
    statements: dict[str, str], label: str, line: int, raised: str, tmp_path: Path
) -> None:
    run = seen(tmp_path, **statements)
    assert [each[:2] for each in run.findings][:1] == [(label, line)]
    assert run.raised.startswith(raised)


WEIGHT = "model.weight.grad"
#: Another value for each element, none of which is further from zero.
CLAMPED = f"{WEIGHT}.sign() * torch.minimum({WEIGHT}.abs(), torch.arange(1.0, 9.0) * 20)"


@pytest.mark.parametrize(
    ("after", "label"),
    [
        (f"{WEIGHT} = {CLAMPED}", "edit@scaled"),
        (f"{WEIGHT}.data = {CLAMPED}", "edit@scaled"),
        (f"{WEIGHT}.set_({CLAMPED})", "edit@scaled"),
        (f"{WEIGHT}.copy_({CLAMPED})", "edit@scaled"),
        (f"{WEIGHT}.addcmul_(torch.ones(1, 8), torch.ones(1, 8))", "edit@scaled"),
        (f"{WEIGHT}.addcdiv_(torch.ones(1, 8), torch.ones(1, 8), value=2.0)", "edit@scaled"),
        (f"scaler.unscale_(optimizer); {WEIGHT}.addcmul_(torch.ones(1, 8), torch.ones(1, 8))", None),
        (f"{WEIGHT}[:] = {CLAMPED}", "edit@scaled"),
        (f"torch._foreach_copy_([{WEIGHT}], [{CLAMPED}])", "edit@scaled"),
        (f"{WEIGHT}.copy_({WEIGHT} / scaler.get_scale())", "step@divided"),
        (f"{WEIGHT} = {WEIGHT} * 2", None),
        (f"{WEIGHT} = {WEIGHT}.clone()", None),
        (f"{WEIGHT} = torch.zeros(1, 8)", None),
        # What replaces a gradient is unknown, and so is a clip of it.
        (f"{WEIGHT}.copy_(0.5); {NORM}(model.parameters(), 1.0)", None),
        (f"{WEIGHT} = {WEIGHT} * torch.arange(-4.0, 4.0); {NORM}(model.parameters(), 1.0)", None),
        (f"{WEIGHT} = None; {WEIGHT} = torch.full((1, 8), 300.0); {WEIGHT}.clamp_(-1, 1)", "edit@scaled"),
        (
            f"{WEIGHT}.mul_(1.0); grad = {WEIGHT}; {WEIGHT} = None; {WEIGHT} = grad.clone(); {WEIGHT}.clamp_(-1, 1)",
            "edit@scaled",
        ),
        (f"{WEIGHT} = torch.full((1, 8), float('inf'))", None),
        (f"{WEIGHT} = None", None),
        (f"del {WEIGHT}", None),
        (f"{WEIGHT}.zero_()", None),
        (f"{WEIGHT}.fill_(float('inf'))", None),
        (f"{WEIGHT}[:] = float('nan')", None),
        (f"{WEIGHT}.neg_()", None),
        (f"{WEIGHT} = {WEIGHT} / scaler.get_scale()", "step@divided"),
        (f"{WEIGHT}.data = {WEIGHT} / scaler.get_scale()", "step@divided"),
        (f"{WEIGHT}.set_({WEIGHT} / scaler.get_scale())", "step@divided"),
        (f"torch._foreach_div_({GRADS}, scaler.get_scale())", "step@divided"),
        (f"{WEIGHT}.zero_(); model.bias.grad.zero_()", "step@discarded"),
        (f"torch._foreach_zero_({GRADS})", "step@discarded"),
        (f"scaler.unscale_(optimizer); torch._foreach_zero_({GRADS})", "step@discarded"),
        (f"scaler.unscale_(optimizer); [grad.fill_(0) for grad in {GRADS}]", "step@discarded"),
        (f"scaler.unscale_(optimizer); {WEIGHT} = model.bias.grad = None", "step@discarded"),
        (f"scaler.unscale_(optimizer); {WEIGHT}.zero_()", None),
        (f"{WEIGHT}.sign_()", "edit@scaled"),
        (f"{WEIGHT}.sub_({WEIGHT}.mean())", "edit@scaled"),
        (f"{WEIGHT}.lerp_(torch.ones(1, 8), 0.5)", "edit@scaled"),
        (f"{WEIGHT} += 1.0", "edit@scaled"),
        (f"{WEIGHT} -= 0.1 * model.weight.detach()", "edit@scaled"),
        (f"torch._foreach_add_([{WEIGHT}], [torch.ones(1, 8)])", "edit@scaled"),
        (f"torch._foreach_copy_([{WEIGHT}], [torch.ones(1, 8)])", None),
        (f"torch._foreach_norm([{WEIGHT}])[0].item()", "read@scaled"),
        (f"scaler.unscale_(optimizer); {WEIGHT} = {CLAMPED}", None),
        (f"scaler.unscale_(optimizer); {WEIGHT}.data = {CLAMPED}", None),
        (f"scaler.unscale_(optimizer); {WEIGHT} += 1.0", None),
        (f"scaler.unscale_(optimizer); {WEIGHT} /= scaler.get_scale()", "step@divided"),
        (f"scaler.unscale_(optimizer); {WEIGHT} = torch.full((1, 8), float('nan'))", "grads:invalid"),
    ],
)
def test_changes_of_a_gradient(after: str, label: str | None, tmp_path: Path) -> None:
    run = seen(tmp_path, after=after)
    assert [each[:2] for each in run.findings] == ([] if label is None else [(label, AFTER)])


@pytest.mark.parametrize(
    "change", [f"torch.clamp({WEIGHT}, -1, 1, out={WEIGHT})", f"torch.abs({WEIGHT}, out={WEIGHT})"]
)
def test_a_change_that_is_seen_only_afterwards_stands_at_the_next_use(change: str, tmp_path: Path) -> None:
    assert [each[:2] for each in seen(tmp_path, after=change).findings] == [("edit@scaled", STEP)]


def test_a_clear_that_is_seen_only_afterwards_stands_at_the_next_use(tmp_path: Path) -> None:
    run = seen(tmp_path, after="for p in model.parameters(): del p.grad")
    assert [each[:2] for each in run.findings] == [("step@discarded", STEP)]
    assert run.raised.startswith("No inf checks were recorded")


SLOPE = "grad, = torch.autograd.grad({}, model.weight, create_graph=True); {}loss = loss + grad.square().sum()"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (SLOPE.format("scaler.scale(loss)", ""), [("penalty@scaled", 29)]),
        (SLOPE.format("scaler.scale(loss)", "grad = grad / scaler.get_scale(); "), []),
        (SLOPE.format("loss", ""), []),
        ("loss = loss * float('inf')", [("not-finite:infinity", 29)]),
        # A single step of a loss that is too large: the scaler skips it.
        ("loss = loss if index else loss * 1e38 * 1e38", []),
    ],
)
def test_what_a_loss_is_made_of(before: str, expected: list[tuple[str, int]], tmp_path: Path) -> None:
    assert [each[:2] for each in seen(tmp_path, before=before).findings] == expected


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("torch.autograd.set_detect_anomaly(True)", [("anomaly-nonfinite", 23)]),
        ("torch.autograd.set_detect_anomaly(False)", []),
        ("scaler = torch.amp.GradScaler('cpu', enabled=False)", [("scaler:off-in-float16", 23)]),
        ("model.weight.register_hook(lambda grad: grad / scaler.get_scale())", []),
        ("scaler = torch.amp.GradScaler('cpu', init_scale=2.0**20)", []),
    ],
)
def test_what_is_set_up(setup: str, expected: list[tuple[str, int]], tmp_path: Path) -> None:
    try:
        assert [each[:2] for each in seen(tmp_path, setup=setup).findings] == expected
    finally:
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (160, 160)])
@pytest.mark.parametrize("where", [(0, 0), (0, 1), (1, 0)])
def test_gradients_that_are_not_finite_are_found_in_large_weights_too(
    where: tuple[int, int], rows: int, columns: int, layout: torch.memory_format
) -> None:
    """A non-finite value in a batch makes a whole row or column of a gradient non-finite."""
    weight = torch.nn.Parameter(torch.zeros(rows, columns, 1, 1).contiguous(memory_format=layout))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    spoiled = torch.zeros(rows, columns, 1, 1)
    if where[0]:
        spoiled[1] = float("inf")
    elif where[1]:
        spoiled[:, 1] = float("inf")
    weight.register_hook(lambda grad: (grad + spoiled).contiguous(memory_format=layout))  # type: ignore[no-untyped-call]
    with record() as run:
        weight.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert bool(run.findings) is any(where)


#: A clip is known by its products with several norms.
VARYING_LOSS = {"before": "loss = loss * (index + 1)"}
POST = "[p.register_post_accumulate_grad_hook(lambda p: ({}, None)[1]) for p in model.parameters()]"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("p.grad.div_(p.grad.norm() / 0.01)", ["clip@scaled-by-hand"]),
        ("p.grad.mul_(0.01 / p.grad.norm())", ["clip@scaled-by-hand"]),
        ("p.grad.clamp_(-1, 1)", ["edit@scaled"]),
        ("p.grad.fill_(0.5)", ["edit@scaled"]),
        ("p.grad.add_(1e-3)", ["edit@scaled"]),
        ("sizes.append(p.grad.norm().item())", ["read@scaled"]),
        # An average, a division by the scale, and what a scale does not change.
        ("p.grad.div_(2)", []),
        ("p.grad.mul_(0.5)", []),
        ("p.grad.div_(64.0)", []),
        ("p.grad.neg_()", []),
        ("p.grad.zero_()", []),
        ("sizes.append(p.shape)", []),
        ("sizes.append(bool(p.grad.isfinite().all()))", []),
    ],
)
def test_hooks_that_follow_an_accumulation(statement: str, expected: list[str], tmp_path: Path) -> None:
    assert [label for label, _ in found(tmp_path, setup=POST.format(statement), **VARYING_LOSS)] == expected


WEIGHT_GRAD, CLIP = "model.weight.grad", "nn.utils.clip_grad_norm_"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        *(
            (f"{WEIGHT_GRAD}{data} = {WEIGHT_GRAD}{data}{change}", label)
            for data in ("", ".data")
            for change, label in (
                (".clamp(-1, 1)", "clip@scaled-by-hand"),
                (f" * (0.01 / {WEIGHT_GRAD}.norm())", "clip@scaled-by-hand"),
                (" / 64.0", "step@divided"),
                (" * 0.5", ""),
                ("", ""),
            )
        ),
        (f"{WEIGHT_GRAD} = torch.ones(1, 8)", ""),
        (f"{WEIGHT_GRAD} = None", ""),
        (f"{CLIP}(model.weight, 1.0)", "clip@scaled"),
        (f"{CLIP}((p for p in model.parameters()), 1.0)", "clip@scaled"),
        (f"{CLIP}(model.parameters(), torch.tensor(1.0))", "clip@scaled"),
        (f"{CLIP}(model.parameters(), float('nan'))", "clip@scaled"),
        (f"{CLIP}(model.parameters(), 0.06)", "clip@scaled"),
        ("nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(2.0))", "clip@scaled"),
        # Clips of other parameters, and by a limit with the scale.
        (f"{CLIP}(nn.Linear(1, 1).parameters(), 1.0)", ""),
        (f"{CLIP}([], 1.0)", ""),
        (f"{CLIP}(model.parameters(), 1.0 * scaler.get_scale())", ""),
        # Norms.
        (f"{CLIP}(model.parameters(), float('inf'))", "read@scaled"),
        (f"{CLIP}(model.parameters(), float('inf')) / scaler.get_scale()", ""),
        ("nn.utils.get_total_norm([p.grad for p in model.parameters()])", "read@scaled"),
        ("nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()", ""),
        ("nn.utils.get_total_norm([p for p in model.parameters()])", ""),
    ],
)
def test_scaled_gradients_of_losses_that_change(after: str, expected: str, tmp_path: Path) -> None:
    if "_with_norm_" in after and not hasattr(torch.nn.utils, "clip_grads_with_norm_"):
        pytest.skip("this torch has no such function")
    if "get_total_norm" in after and not hasattr(torch.nn.utils, "get_total_norm"):
        pytest.skip("this torch has no such function")
    reported = found(tmp_path, after=after, **VARYING_LOSS)
    assert [label for label, _ in reported] == [expected] * bool(expected)
    if expected == "clip@scaled-by-hand":
        assert reported[0][1].startswith("`this assignment` clips gradients")
    # The same with gradients that are not scaled is right.
    if expected != "step@divided" and "nan" not in after:
        assert found(tmp_path, after=f"scaler.unscale_(optimizer); {after}", **VARYING_LOSS) == []


@pytest.mark.parametrize(
    ("after", "label"),
    [
        (f"[grad.div_(np.float32(64)) for grad in {GRADS}]", "step@divided"),
        (f"[grad.mul_(np.float32(1 / 64)) for grad in {GRADS}]", "step@divided"),
        (f"[grad.mul_(np.float32(0.5)) for grad in {GRADS}]", ""),
        (f"[grad.mul_(np.int64(2)) for grad in {GRADS}]", ""),
        (f"[grad.fill_(np.float32(0)) for grad in {GRADS}]", "step@discarded"),
        (f"{CLIP}(model.parameters(), np.float32(1))", "clip@scaled"),
        (f"{CLIP}(model.parameters(), np.float32(scaler.get_scale()))", ""),
        (f"{CLIP}(model.parameters(), np.float32('inf'))", "read@scaled"),
    ],
)
def test_numbers_of_numpy_are_numbers(after: str, label: str, tmp_path: Path) -> None:
    run = seen(tmp_path, setup="import numpy as np", after=after)
    assert [each[:2] for each in run.findings] == [(label, AFTER)] * bool(label)


def test_a_limit_that_is_no_number_is_for_torch_to_refuse() -> None:
    model = torch.nn.Linear(8, 1)
    with record() as run:
        model(torch.ones(4, 8)).mean().backward()
        with pytest.raises(ValueError, match="could not convert string to float"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), "a limit")  # type: ignore[arg-type]
    assert (run.failure, run.findings) == (None, [])


@pytest.mark.parametrize(
    ("after", "label"),
    [
        (f"[grad.div_(scaler.get_scale()) for grad in {GRADS}]", "step@divided"),
        (f"[grad.mul_(1 / scaler.get_scale()) for grad in {GRADS}]", "step@divided"),
        (f"[grad.div_(1.0) for grad in {GRADS}]", ""),
        (f"scaler.unscale_(optimizer); [grad.div_(1.0) for grad in {GRADS}]", ""),
    ],
)
def test_a_division_by_a_scale_of_one(after: str, label: str, tmp_path: Path) -> None:
    run = seen(tmp_path, setup="scaler = torch.amp.GradScaler('cpu', init_scale=1.0)", after=after)
    assert [each[:2] for each in run.findings] == [(label, AFTER)] * bool(label)


@pytest.mark.parametrize(
    "after",
    [
        f"{WEIGHT} = {WEIGHT} / scaler.get_scale()",
        f"{WEIGHT} /= scaler.get_scale()",
        f"scaler.unscale_(optimizer); {WEIGHT} /= scaler.get_scale()",
    ],
)
def test_a_division_by_a_scale_of_two(after: str, tmp_path: Path) -> None:
    run = seen(tmp_path, setup="scaler = torch.amp.GradScaler('cpu', init_scale=2.0)", after=after)
    assert [each[:2] for each in run.findings] == [("step@divided", AFTER)]


def test_infinities_that_a_replacement_hides_from_the_scaler_are_an_edit(tmp_path: Path) -> None:
    run = seen(
        tmp_path,
        setup="scaler = torch.amp.GradScaler('cpu', init_scale=2.0**24)",
        before="loss = loss * 2.0**110",
        after=f"{WEIGHT} = torch.nan_to_num({WEIGHT})",
    )
    assert [each[:2] for each in run.findings] == [("edit@scaled", AFTER)]


@pytest.mark.parametrize(("factor", "is_found"), [("0.01", True), ("0.01 * scaler.get_scale()", False)])
def test_a_manual_clip_to_a_multiple_of_the_scale(factor: str, is_found: bool, tmp_path: Path) -> None:
    after = f"[grad.mul_({factor} / {WEIGHT}.norm()) for grad in {GRADS}[:1]]"
    labels = [label for label, _ in found(tmp_path, after=after, **VARYING_LOSS)]
    assert labels == ["clip@scaled-by-hand"] * is_found


@pytest.mark.parametrize(
    ("limit", "is_found"), [("0.01", True), ("0.01 * scaler.get_scale()", False), ("0.065", False)]
)
def test_a_manual_clip_by_a_limit_that_was_multiplied_by_the_scale(limit: str, is_found: bool, tmp_path: Path) -> None:
    setup = f"""
def limit_of(scaler):
    scaler.get_scale()
    return {limit}

def clip(grads, limit):
    [grad.mul_(limit / model.weight.grad.norm()) for grad in grads]
"""
    path = tmp_path / "train.py"
    program = PROGRAM.replace("{setup}", setup).format(
        **USUAL | {"after": f"clip({GRADS}[:1], limit_of(scaler))"} | VARYING_LOSS
    )
    path.write_text(program, encoding="utf-8")
    with record() as run:
        exec(compile(program, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["clip@scaled-by-hand"] * is_found


@pytest.mark.parametrize(("condition", "labels"), [("if total < 100:", []), ("for _ in [0]:", ["plain-step@unscaled"])])
def test_a_step_after_its_scaler_is_gone(condition: str, labels: list[str], tmp_path: Path) -> None:
    after = "scaler.unscale_(optimizer); total = float(model.weight.grad.norm()); del scaler"
    step = f"{condition}\n        optimizer.step()\n    scaler = torch.amp.GradScaler('cpu', init_scale=64.0); continue"
    run = seen(tmp_path, after=after, step=step)
    assert [label for label, _, _ in run.findings] == labels


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        # A check before the backward is about the loss, and not about scaled gradients.
        ({"before": "assert torch.isfinite(loss)"}, []),
        ({"end": "assert torch.isfinite(model.weight.grad).all()"}, []),
        ({"step": "scaler.step(optimizer, lambda: None)"}, [("step-closure", STEP)]),
    ],
)
def test_statements_that_change_no_gradient(
    statements: dict[str, str], expected: list[tuple[str, int]], tmp_path: Path
) -> None:
    run = seen(tmp_path, **statements)
    assert [each[:2] for each in run.findings] == expected
    assert run.losses == pytest.approx(LOSSES, abs=0.01)


def test_a_check_after_its_scaler_is_gone_is_reported_with_a_usual_name(tmp_path: Path) -> None:
    run = seen(
        tmp_path,
        after=f"scaler.unscale_(optimizer); del scaler; assert torch.isfinite({WEIGHT}).all()",
        step="optimizer.step(); scaler = torch.amp.GradScaler('cpu', init_scale=64.0); continue",
    )
    assert run.findings[0] == ("raise-nonfinite", AFTER, RAISES)
    assert [each[:2] for each in run.findings[1:]] == [("plain-step@unscaled", STEP)]


def test_a_product_of_gradients_with_one_norm_is_an_average(tmp_path: Path) -> None:
    # The same batch, and a rate of zero: no two norms that could show a clip.
    setup = "optimizer = torch.optim.SGD(model.parameters(), lr=0.0)"
    assert seen(tmp_path, setup=setup, after=f"[grad.mul_(0.5) for grad in {GRADS}]").findings == []


@pytest.mark.parametrize(
    ("after", "label"),
    [
        (f"tree_map(lambda grad: grad.clamp_(-1, 1), [{WEIGHT}])", "edit@scaled"),
        (f"tree_map(lambda grad: torch.clamp_(grad, -1, 1), [{WEIGHT}])", "edit@scaled"),
        (f"tree_map(lambda grad: torch._foreach_clamp_max_([grad], 1.0), [{WEIGHT}])", "edit@scaled"),
        (f"tree_map(lambda grad: grad.set_({CLAMPED}), [{WEIGHT}])", "edit@scaled"),
        (f"tree_map(lambda grad: setattr(grad, 'data', {CLAMPED}), [{WEIGHT}])", "edit@scaled"),
        (f"tree_map(lambda p: setattr(p, 'grad', {CLAMPED}), [model.weight])", "edit@scaled"),
        (f"tree_map(lambda grad: grad.div_(scaler.get_scale()), {GRADS})", "step@divided"),
        ("tree_map(lambda p: sizes.append(p.grad.max().item()), [model.weight])", "read@scaled"),
        (f"tree_map(lambda grad: sizes.append(float(grad.norm())), [{WEIGHT}])", "read@scaled"),
        (f"tree_map(lambda p: {CLIP}(p, 1.0), [model.weight])", "clip@scaled"),
        (f"tree_map(lambda each: scaler.unscale_(each), [optimizer]); {WEIGHT}.clamp_(-1, 1)", None),
    ],
)
def test_statements_in_a_function_that_torch_calls(after: str, label: str | None, tmp_path: Path) -> None:
    run = seen(tmp_path, setup="from torch.utils._pytree import tree_map", after=after)
    assert [each[:2] for each in run.findings] == ([] if label is None else [(label, AFTER)])


CHECK = "torch.isfinite(model.weight.grad).all()"


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (f"assert {CHECK}", AFTER),
        (f"if not {CHECK}: raise ValueError", AFTER),
        (f"if not {CHECK}:\n        raise ValueError", AFTER),
        # The line of the check, as in the source, whatever line of the statement Python gives.
        (f"if not (\n        {CHECK}\n    ): raise ValueError", AFTER + 1),
        (f"if (\n        not {CHECK}\n    ): raise ValueError", AFTER + 1),
        (f"assert (\n        {CHECK}\n    )", AFTER + 1),
        (f"assert (\n        index < 9\n        and {CHECK}\n    )", AFTER + 2),
        (f"if index >= 0:\n        assert {CHECK}", AFTER + 1),
        # Somebody handles the error, or not.
        (f"try:\n        assert {CHECK}\n    except AssertionError: pass", None),
        (f"try:\n        assert {CHECK}\n    finally: pass", AFTER + 1),
        (f"try: pass\n    except AssertionError: pass\n    else:\n        assert {CHECK}", AFTER + 3),
        (f"try:\n        if index >= 0:\n            assert {CHECK}\n    except AssertionError: pass", None),
        # The program does not end.
        (f"if not {CHECK}: optimizer.zero_grad()", None),
        (f"if not {CHECK}: print('skipped')", None),
        (f"if {CHECK}: pass", None),
        (f"sizes.append(bool({CHECK}))", None),
        # Another statement raises.
        (f"sizes.append(bool({CHECK}))\n    if len(sizes) > 9: raise ValueError", None),
        ("assert torch.isfinite(loss)", None),
    ],
)
def test_a_check_for_finite_gradients_that_ends_the_program(after: str, line: int | None, tmp_path: Path) -> None:
    run = seen(tmp_path, after=after)
    assert [each[:2] for each in run.findings] == ([] if line is None else [("raise-nonfinite", line)])
    assert run.raised == ""
