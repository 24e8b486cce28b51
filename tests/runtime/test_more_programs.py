"""Programs beside those of ``runtime_programs``: each mistake is named on its line, and nothing else is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import marks, places, shown
from runtime_programs import RIGHT, Program

pytest.importorskip("torch")

from pytest_amp_check import record

#: Checkpoints, by what holds the states that are saved.
CHECKPOINTS = (
    Program(
        "states in lists and tuples, without that of the scaler",
        "S37",
        RIGHT + "torch.save([1, (None, [optimizer.state_dict()]), model.state_dict()], io.BytesIO())  # AMP401\n",
    ),
    Program(
        "states in lists and tuples",
        "S37",
        RIGHT + 'torch.save([1, ("x", [optimizer.state_dict()]), {"amp": (scaler.state_dict(),)}], io.BytesIO())\n',
    ),
    Program(
        "a state among the attributes of an object, without that of the scaler",
        "S37",
        RIGHT
        + """
from argparse import Namespace

torch.save(Namespace(model=model, inner=Namespace(states=[optimizer.state_dict()])), io.BytesIO())  # AMP401
""",
    ),
    Program(
        "states among the attributes of an object",
        "S37",
        RIGHT
        + """
from argparse import Namespace

held = Namespace(scaler=scaler.state_dict())
held.held = held
torch.save(Namespace(states=[optimizer.state_dict()], inner=held), io.BytesIO())
""",
    ),
    Program(
        "a copy of a state, without that of the scaler",
        "S37",
        RIGHT
        + """
import copy

states = optimizer.state_dict()  # AMP401
torch.save({"optimizer": copy.deepcopy(states)}, io.BytesIO())
""",
    ),
    Program(
        "a copy of the state of a model that nobody trains",
        "S37",
        RIGHT
        + """
other = torch.optim.SGD([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))], lr=0.1)
kept = {"optimizer": optimizer.state_dict()}
torch.save(other.state_dict(), io.BytesIO())
""",
    ),
    Program(
        "the weights alone, and the model as a whole",
        "S37",
        RIGHT
        + """
torch.save(model.state_dict(), io.BytesIO())
torch.save({"model": model, "epoch": 3, "name": "best"}, io.BytesIO())
""",
    ),
    Program(
        "the scaler as a whole in an object in a list",
        "S38",
        RIGHT
        + """
from argparse import Namespace

torch.save([Namespace(optimizer=optimizer.state_dict(), amp=scaler)], io.BytesIO())  # AMP402
""",
    ),
    Program(
        "the state of an optimizer that was never stepped by a scaler",
        "S37",
        """
other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
"""
        + RIGHT.strip()
        + """
torch.save({"other": other.state_dict()}, io.BytesIO())
""",
    ),
    Program(
        "what is loaded holds the state of a scaler that is not given it back",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, saved)
saved.seek(0)
found = torch.load(saved)
optimizer.load_state_dict(found["optimizer"])  # AMP402
"""
        + RIGHT,
    ),
    Program(
        "what is loaded is given to both",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, saved)
saved.seek(0)
found = torch.load(saved)
optimizer.load_state_dict(found["optimizer"])
scaler.load_state_dict(found["scaler"])
"""
        + RIGHT,
    ),
    Program(
        "what is loaded holds no state of a scaler",
        "S37",
        """
saved = io.BytesIO()
torch.save({"optimizer": optimizer.state_dict()}, saved)
saved.seek(0)
optimizer.load_state_dict(torch.load(saved)["optimizer"])
"""
        + RIGHT,
    ),
)

#: Gradients that the program changes by itself.
EDITS = (
    Program(
        "a decay is added to scaled gradients through foreach",
        "S19",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    torch._foreach_add_([p.grad for p in model.parameters()], [p.detach() for p in model.parameters()])  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "data of gradients is divided by the scale and then added to",
        "S19",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.data = p.grad.data + 1e-4 * p.data
        p.grad.clamp_(-1.0, 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients whose data was clamped while they were scaled",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.data = p.grad.data.clamp(-0.01, 0.01)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients that are replaced by clamped ones while they are scaled",
        "S20",
        """
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.01, 0.01)  # AMP202
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        "gradients of one optimizer are changed while those of another are scaled",
        "S20",
        """
other = nn.Linear(4, 1)
plain = torch.optim.SGD(other.parameters(), lr=0.01)
for x, y in batches:
    optimizer.zero_grad()
    plain.zero_grad()
    other(x).square().mean().backward()
    scaler.scale(loss_of(x, y)).backward()
    for p in other.parameters():
        p.grad.clamp_(-0.01, 0.01)
        p.grad.add_(p.detach(), alpha=1e-4)
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    plain.step()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
)


@pytest.mark.parametrize("program", [*CHECKPOINTS, *EDITS], ids=lambda program: program.name)
def test_what_is_marked_is_named_and_nothing_else(program: Program, tmp_path: Path) -> None:
    source, path = program.source(3), tmp_path / "train.py"
    path.write_text(source, encoding="utf-8")
    with record() as run:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102 - ours
    assert run.failure is None
    assert places(run.findings) == marks(source, "runtime"), shown(run.findings)
    assert len(run.findings) == len(marks(source, "runtime"))
