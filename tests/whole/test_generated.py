"""Programs from a grammar are run and analyzed: definite findings happen, and mistakes in a run are found in source."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

pytest.importorskip("torch")

import torch
from agreement import SEEN_BY_RUNS, SEEN_IN_SOURCE, recorded, traced, verdict
from grammar import SETUP, programs
from marks import MISTAKES, marks, places, shown

from pytest_amp_check.protocol.rule import BOTH
from pytest_amp_check.protocol.rules import LABELS
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

pytestmark = pytest.mark.usefixtures("patched_once")

#: A fixed sample; ``benchmarks/generated.py`` checks other programs.
seeded = settings(
    max_examples=120,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.long
@pytest.mark.exhaustive
@seeded
@given(programs())
def test_both_readers_agree_on_generated_programs(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    path = tmp_path_factory.getbasetemp() / "generated.py"
    disagreements = verdict(source, path).disagreements()
    assert not disagreements, "\n".join([*disagreements, source])


def test_what_is_left_out_is_decided_by_both_readers() -> None:
    left_out = [*SEEN_BY_RUNS.items(), *((label, reason) for label, (reason, _) in SEEN_IN_SOURCE.items())]
    for label, reason in left_out:
        assert LABELS[label][0].detected_by == BOTH
        assert reason


# Bugs found by generated programs, each as a manually written program.

ONE = f"""\
{SETUP}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
batches = [(torch.randn(8, 4), torch.rand(8, 1)) for _ in range(12)]
"""
TWO = f"""\
{ONE}
other = nn.Linear(4, 1)
second = torch.optim.SGD(other.parameters(), lr=1e-3)
"""
FORWARD = """\
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
"""
FOUND = {
    "a step at the end of a window is no check of the gradients": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
{FORWARD}
    scaler.scale(loss / 3).backward()
    if (i + 1) % 3 == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # AMP204
        scaler.update()
        optimizer.zero_grad()
""",
    "gradients are cleared every third time": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
{FORWARD}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if (i + 1) % 3 == 0:
        optimizer.zero_grad()
""",
    "gradients are never cleared, and a clip makes them all zero once": f"""\
{ONE}
batches[3] = (batches[3][0], 1e30 * batches[3][1])
for x, y in batches:
{FORWARD}
    scaler.scale(loss).backward()  # AMP215
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "raw gradients are divided by the scale, and then by the scaler": f"""\
{ONE}
for x, y in batches:
    optimizer.zero_grad()
{FORWARD}
    scaler.scale(loss)
    loss.backward()  # AMP203
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    "an optimizer is stepped in every iteration, and unscaled before some of the backwards": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
{FORWARD}
    if (i + 1) % 3 == 0:
        scaler.unscale_(optimizer)  # AMP209
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if (i + 1) % 3 == 0:
        optimizer.zero_grad()
""",
    "a window is given up at its end, where this micro-batch adds nothing": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
    small = x[0, 0].item() < 0.5
{FORWARD}
    if small:
        scaler.scale(loss / 3).backward()
    if (i + 1) % 3 == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if small:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "two losses of a window alternate, with gradients for one optimizer": f"""\
{TWO}
for i, (x, y) in enumerate(batches):
    if (i + 1) % 3 == 0:
        scaler.unscale_(optimizer)  # AMP303
{FORWARD}
    scaler.scale(loss / 6).backward()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.l1_loss(other(x) + model(x), y)
    scaler.scale(loss / 6).backward()
    if (i + 1) % 3 == 0:
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()
        optimizer.zero_grad()
        second.zero_grad()
""",
    "gradients are unscaled and updated, and the step waits": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
    late = i in (2, 5)
{FORWARD}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # AMP303
    if late:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
""",
    "... and the gradients are cleared before they are used": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
    late = i in (2, 5)
    optimizer.zero_grad()
{FORWARD}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if late:
        scaler.step(optimizer)
    scaler.update()
""",
    "a step past the inf check, under a condition that asks for something else": f"""\
{ONE}
for i, (x, y) in enumerate(batches):
    odd = y[0].item() > 0.5
    optimizer.zero_grad()
{FORWARD}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if odd:
        optimizer.step()  # AMP204
    scaler.update()
""",
    "a step under a check of one's own": f"""\
{ONE}
for x, y in batches:
    optimizer.zero_grad()
{FORWARD}
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finite = bool(torch.isfinite(norm))
    if finite:
        optimizer.step()
    scaler.update()
""",
    "a forward in bfloat16 that never runs backward": f"""\
{ONE}
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        guess = model(x)
    loss = nn.functional.mse_loss(model(x), y)  # static-only: AMP110 autocast elsewhere tells a run that it is meant
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "a scheduler in the loop over micro-batches": f"""\
{ONE}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for x, y in batches:
    optimizer.zero_grad()
    for j in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x[j::2]), y[j::2]) / 2
        scaler.scale(loss).backward()
        scheduler.step()  # AMP403
    scaler.step(optimizer)
    scaler.update()
""",
    "a helper that reads gradients in a script": f"""\
{ONE}
def norm_of(model):
    return nn.utils.get_total_norm([p.grad for p in model.parameters()])


for x, y in batches:
    optimizer.zero_grad()
{FORWARD}
    scaler.scale(loss).backward()
    norm_of(model)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    "gradients that are cleared before their step, by a scaler that is never updated": f"""\
{ONE}
for i, (x, y) in enumerate(batches[:3]):
{FORWARD}
    scaler.scale(loss / 3).backward()
    if (i + 1) % 3 == 0:
        model.zero_grad(set_to_none=False)  # AMP215
        scaler.step(optimizer)  # AMP206
""",
    "a loss that overflows float32, after gradients that are zeroed in place": f"""\
{ONE}
batches[3] = (batches[3][0], 1e30 * batches[3][1])
for x, y in batches:
{FORWARD}
    optimizer.zero_grad(set_to_none=False)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
    "a scaler that is off for the dtype at hand": f"""\
{ONE}
DTYPE = torch.bfloat16
scaler = torch.amp.GradScaler("cpu", enabled=DTYPE == torch.float16)
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=DTYPE):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "gradients that another loss has left, scaled, are divided after those of an unscaled one were added": f"""\
{ONE}
other = nn.Linear(1, 1)
second = torch.optim.SGD(other.parameters(), lr=1e-3)
for x, y in batches:
    loss = nn.functional.mse_loss(other(model(x).detach()), y)
    loss.backward()
    for p in other.parameters():
        p.grad.div_(scaler.get_scale())
    second.step()
    second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.l1_loss(other(model(x)), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "... and are not divided": f"""\
{ONE}
other = nn.Linear(1, 1)
second = torch.optim.SGD(other.parameters(), lr=1e-3)
for x, y in batches:
    loss = nn.functional.mse_loss(other(model(x).detach()), y)
    loss.backward()
    second.step()  # AMP204
    second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.l1_loss(other(model(x)), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "gradients are cleared before their step where a setting of the file says so": f"""\
{ONE}
CLEARS = True
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if CLEARS:
        optimizer.zero_grad()  # AMP215
    scaler.step(optimizer)
    scaler.update()
""",
    "gradients that wait for an update are divided by the scale, which is one": f"""\
{TWO}
scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(other(x), y)
    scaler.scale(loss).backward()
    scaler.step(second)
    scaler.update()
    second.zero_grad()
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("source", FOUND.values(), ids=FOUND)
def test_both_readers_find_exactly_what_is_marked(source: str, tmp_path: Path) -> None:
    if "get_total_norm" in source and not hasattr(torch.nn.utils, "get_total_norm"):
        pytest.skip("get_total_norm came with torch 2.6")
    path = tmp_path / "script.py"
    path.write_text(source, encoding="utf-8")
    run = recorded(lambda: traced(path, set()))
    assert run.failure is None
    assert run.error is None
    assert places(run.findings) == marks(source, "runtime"), shown(run.findings)
    read = check_source(source, str(path), Settings(select=MISTAKES))
    assert places(read) == marks(source), shown(read)
