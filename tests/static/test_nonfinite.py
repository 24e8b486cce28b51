"""Programs that stop at non-finite gradients, beside a scaler that would skip the step."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import math
import sys
import torch
from torch import nn

SETUP
model = nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda"ENABLED)
params = list(model.parameters())
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
BODY
    scaler.step(optimizer)
    scaler.update()
"""


def found(body: str = "", setup: str = "", enabled: str = "") -> list[tuple[str, int]]:
    """Return label and line of each finding. Lines count from 1 in the body."""
    lines = "\n".join("    " + line for line in body.split("\n"))
    source = PROGRAM.replace("SETUP", setup).replace("ENABLED", enabled).replace("BODY", lines)
    before = source[: source.index(lines)].count("\n")
    return [(f.label, f.line - before) for f in check_source(source) if f.code in ("AMP213", "AMP202")]


RAISED = [("raise-nonfinite", 2)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for p in model.parameters():\n    if torch.isnan(p.grad).any():\n        raise ValueError(1)", RAISED),
        ("for p in model.parameters():\n    if p.grad.isinf().any():\n        sys.exit(1)", RAISED),
        (
            "for p in params:\n    if p.requires_grad and torch.logical_or(z, p.grad.isnan().any()): quit()",
            RAISED,
        ),
        ("for p in model.parameters():\n    assert torch.isfinite(p.grad).all()", RAISED),
        ("for p in model.parameters():\n    assert not torch.isnan(p.grad).any(), 'nan'", RAISED),
        ("\nif any(torch.isnan(p.grad).any() for p in model.parameters()):\n    raise ValueError(1)", RAISED),
        ("\nif not torch.isfinite(norm):\n    raise ValueError(1)", RAISED),
        ("\nif math.isnan(norm.item()):\n    print(norm)\n    raise ValueError(1)", RAISED),
        ("\nif not math.isfinite(float(norm)):\n    raise ValueError(1)", RAISED),
        ("\nif torch.isfinite(norm):\n    pass\nelse:\n    raise ValueError(1)", RAISED),
        ("\nif torch.isnan(norm) or torch.isinf(norm):\n    raise ValueError(1)", RAISED),
        ("\nbad = torch.isnan(norm)\nif bad:\n    raise ValueError(1)", RAISED),
        ("\nif not (torch.isfinite(norm) and steps > 1000):\n    raise ValueError(1)", RAISED),
        ("\nif torch.isfinite(norm) and steps > 1000:\n    pass\nelse:\n    raise ValueError(1)", RAISED),
        ("\nassert torch.isfinite(norm) and norm < 1e4", RAISED),
        ("for p in params:\n    assert p.grad is None or torch.isfinite(p.grad).all()", RAISED),
        ("for p in params:\n    assert not p.requires_grad or torch.isfinite(p.grad).all()", RAISED),
        ("for p in params:\n    if p.grad is not None and torch.isnan(p.grad).any(): raise ValueError(1)", RAISED),
        ("for p in params:\n    if p.requires_grad and torch.isnan(p.grad).any(): raise ValueError(1)", RAISED),
        ("for p in params:\n    if p.grad and torch.isnan(p.grad).any(): raise ValueError(1)", RAISED),
        # Only the second check ends the program.
        ("for p in params: print(p.grad.isnan().any())\nassert torch.isfinite(norm)", RAISED),
        ("bad = torch.isnan(params[0].grad).any()\nassert torch.isfinite(params[0].grad).all()\nprint(bad)", RAISED),
        # One finding for one condition.
        ("norm = norm + params[0].grad.norm()\nassert torch.isfinite(norm)", RAISED),
        # Another term lets the program continue.
        ("if torch.isnan(norm) and steps > 1000:\n    raise ValueError(1)", []),
        ("if not torch.isfinite(norm) and steps > 1000:\n    raise ValueError(1)", []),
        ("if not (torch.isfinite(norm) or steps < 1000):\n    raise ValueError(1)", []),
        ("if torch.isfinite(norm) or steps < 1000:\n    pass\nelse:\n    raise ValueError(1)", []),
        ("assert torch.isfinite(norm) or steps < 1000", []),
        ("for p in params:\n    if p.ndim > 1 and torch.isnan(p.grad).any(): raise ValueError(1)", []),
        ("for p in params:\n    if p.shape == (8, 4) and torch.isnan(p.grad).any(): raise ValueError(1)", []),
        ("if torch.isnan(x + 1):\n    raise ValueError(1)", []),
        ("if torch.isnan(loss):\n    raise ValueError(1)", []),
        ("if not torch.isfinite(norm):\n    print(norm)", []),
        ("if norm > 1e4:\n    raise ValueError(1)", []),
        ("try:\n    if not torch.isfinite(norm):\n        raise ValueError(1)\nexcept ValueError:\n    pass", []),
        ("for p in model.parameters():\n    if torch.isnan(p).any():\n        raise ValueError(1)", []),
    ],
)
def test_gradients_that_are_not_finite_end_the_program(body: str, expected: list[tuple[str, int]]) -> None:
    assert found(body) == expected


@pytest.mark.parametrize("imported", ["from torch import isfinite", "from torch import isfinite as is_normal"])
def test_a_check_by_an_imported_name(imported: str) -> None:
    name = imported.rpartition(" ")[2]
    assert found(f"if not {name}(norm):\n    raise ValueError(1)", setup=imported) == [("raise-nonfinite", 1)]
    each = f"assert all({name}(p.grad).all() for p in model.parameters())"
    assert found(each, setup=imported) == [("raise-nonfinite", 1)]
    other = imported.replace("isfinite", "is_tensor", 1).replace("isfinite", "is_tensor")
    assert found(each.replace("isfinite", "is_tensor"), setup=other) == []


def test_nothing_is_said_without_a_scaler_that_scales() -> None:
    body = "if not torch.isfinite(norm):\n    raise ValueError(1)"
    assert found(body, enabled=", enabled=False") == []


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("torch.autograd.set_detect_anomaly(True)", True),
        ("torch.autograd.set_detect_anomaly(mode=True)", True),
        ("torch.autograd.anomaly_mode.set_detect_anomaly(True)", True),
        ("torch.autograd.set_detect_anomaly(True, check_nan=False)", False),
        ("torch.autograd.set_detect_anomaly(True, False)", False),
        ("torch.autograd.set_detect_anomaly(False)", False),
        ("torch.autograd.set_detect_anomaly()", False),
        ("torch.autograd.set_detect_anomaly(args.debug)", False),
        ("if args.debug:\n    torch.autograd.set_detect_anomaly(True)", False),
        ("if __name__ == '__main__':\n    torch.autograd.set_detect_anomaly(True)", True),
        ("if not __name__ == '__main__':\n    pass\nelse:\n    torch.autograd.set_detect_anomaly(True)", True),
        ("if __name__ != '__main__':\n    torch.autograd.set_detect_anomaly(True)", False),
        ("script = __name__ == '__main__'\nif script:\n    torch.autograd.set_detect_anomaly(True)", True),
        ("if __name__ == '__main__' and args.debug:\n    torch.autograd.set_detect_anomaly(True)", False),
    ],
)
def test_anomaly_detection(setup: str, expected: bool) -> None:
    assert [label for label, _ in found(setup=setup)] == (["anomaly-nonfinite"] if expected else [])


FORWARD = "        loss = nn.functional.mse_loss(model(x), y)\n"
BACKWARD = "    scaler.scale(loss).backward()\n"


@pytest.mark.parametrize("context", ["detect_anomaly()", "detect_anomaly(True)", "set_detect_anomaly(True)"])
@pytest.mark.parametrize(("block", "expected"), [(BACKWARD, True), (FORWARD, False)])
def test_anomaly_detection_of_one_block(context: str, block: str, expected: bool) -> None:
    margin = block[: -len(block.lstrip())]
    within = PROGRAM.replace(block, f"{margin}with torch.autograd.{context}:\n    {block}")
    texts = [
        within.replace("SETUP", "").replace("BODY\n", "").replace("ENABLED", enabled)
        for enabled in ("", ", enabled=False")
    ]
    labels = [[finding.label for finding in check_source(text)] for text in texts]
    # Gradients are checked when they are computed, regardless of the location of the loss.
    assert labels == [["anomaly-nonfinite"] if expected else [], []]


@pytest.mark.parametrize("context", ["detect_anomaly(False)", "detect_anomaly(check_nan=False)"])
def test_anomaly_detection_of_one_block_without_the_check(context: str) -> None:
    within = PROGRAM.replace(BACKWARD, f"    with torch.autograd.{context}:\n    {BACKWARD}")
    assert check_source(within.replace("SETUP", "").replace("BODY\n", "").replace("ENABLED", "")) == []


@pytest.mark.parametrize(
    ("body", "setup", "start"),
    [
        ("if torch.isnan(norm):\n    raise ValueError(1)", "", "`torch.isnan` ends the program on every overflow"),
        ("assert torch.isfinite(params[0].grad).all()", "", "`torch.isfinite` ends the program on every overflow"),
        ("pass", "torch.autograd.set_detect_anomaly(True)", "`torch.autograd.set_detect_anomaly` makes backward raise"),
    ],
)
def test_the_message_names_what_ends_the_program(body: str, setup: str, start: str) -> None:
    text = PROGRAM.replace("SETUP", setup).replace("ENABLED", "").replace("BODY", "    " + body.replace("\n", "\n    "))
    assert [finding.message.startswith(start) for finding in check_source(text)] == [True]


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ("epoch()", ["anomaly-nonfinite"]),
        ("for _ in range(3):\n        epoch()", ["anomaly-nonfinite"]),
        ("evaluate()", []),
    ],
)
def test_anomaly_detection_around_a_call(called: str, expected: list[str]) -> None:
    setup, loop = (
        PROGRAM.replace("SETUP", "").replace("BODY\n", "").replace("ENABLED", "").split("for x, y in loader:\n")
    )
    lines = "".join(f"    {line}\n" for line in f"for x, y in loader:\n{loop}".splitlines())
    evaluation = "def evaluate():\n    with torch.no_grad():\n        print(model(loader.first))\n"
    text = (
        f"{setup}\ndef epoch():\n{lines}\n{evaluation}\nwith torch.autograd.detect_anomaly():\n    {called}\nepoch()\n"
    )
    assert [finding.label for finding in check_source(text)] == expected
    trained_before = text.removesuffix("epoch()\n").replace("\nwith ", "\nepoch()\nwith ")
    assert [finding.label for finding in check_source(trained_before)] == expected


#: Fabric's clip raises on infinite gradients by default.
FABRIC = """\
import torch
from lightning.fabric import Fabric

def train(model, loader, args):
    fabric = Fabric({precision})
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = fabric.setup(model, optimizer)
    for x in loader:
        optimizer.zero_grad()
        fabric.backward(model(x).mean())
        fabric.clip_gradients({given})
        optimizer.step()
"""
NORM = "model, optimizer, max_norm=args.clip"


@pytest.mark.parametrize(
    ("precision", "given", "severities"),
    [
        ('precision="16-mixed"', NORM, ["warning"]),
        ("precision=args.precision", NORM, []),
        ('precision="16-mixed"', "model, optimizer, None, 1.0", ["warning"]),
        ('precision="16-mixed"', NORM + ", error_if_nonfinite=True", ["warning"]),
        ('precision="16-mixed"', NORM + ", error_if_nonfinite=False", []),
        ('precision="16-mixed"', NORM + ", error_if_nonfinite=args.strict", []),
        ('precision="16-mixed"', NORM + ", **args.options", []),
        ('precision="16-mixed"', "model, optimizer, clip_val=0.5", []),
        ('precision="16-mixed"', "model, optimizer, clip_val=0.5, max_norm=None", []),
        ('precision="bf16-mixed"', NORM, []),
        ("", NORM, []),
    ],
)
def test_a_clip_of_fabric_raises_by_default(precision: str, given: str, severities: list[str]) -> None:
    findings = check_source(FABRIC.format(precision=precision, given=given))
    assert [finding.severity for finding in findings if finding.code == "AMP213"] == severities
    assert all("`error_if_nonfinite=False`" in finding.message for finding in findings)


#: The optimizer and the engine come from elsewhere, so nothing tells the precision. Most of these have no scaler.
TASK = """\
from lightning.fabric import Fabric

class Task:
    def clip(self, {parameter}, optimizer):
        fabric.clip_gradients(self, optimizer, max_norm=self.limit)
"""


@pytest.mark.parametrize("parameter", ["fabric: Fabric", "fabric"])
def test_a_clip_of_fabric_in_unknown_precision_may_raise(parameter: str) -> None:
    assert check_source(TASK.format(parameter=parameter)) == []
