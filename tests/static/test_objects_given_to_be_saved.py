"""Functions of other packages that are named for saving, and get a model and an optimizer but no scaler (AMP401)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from torch import nn
from points import save_checkpoint, store, utils


def train(args, loader, writer):
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    {made}
    for epoch in range(9):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        {save}
"""
SCALER = "scaler = torch.amp.GradScaler('cuda')"
WRONG = [
    "save_checkpoint(args, model, epoch, optimizer, schedule)",
    "utils.save_checkpoint(model=model, optimizer=optimizer, schedule=schedule)",
    "utils.save_on_master(args.path, [epoch], model, optimizer)",
    "if epoch % 2 == 0:\n            utils.io.save_training(model, optimizer, epoch=epoch)",
]
RIGHT = [
    "save_checkpoint(args, model, epoch, optimizer, schedule, scaler)",
    "save_checkpoint(args, model, epoch, optimizer, extra={'scaler': scaler.state_dict()})",
    "save_checkpoint(args, model, optimizer, args.loss_scaler)",
    "save_checkpoint(args, model)",
    "save_checkpoint(args, model.state_dict(), epoch)",
    "store(model, optimizer)",
    "writer.add_graph(model, optimizer)",
]


def labels(save: str, made: str = SCALER) -> list[tuple[str, str, bool]]:
    findings = check_source(PROGRAM.format(save=save, made=made))
    return [(each.label, each.severity, each.certain) for each in findings if each.code == "AMP401"]


@pytest.mark.parametrize("save", WRONG)
def test_no_scaler_among_the_saved_objects(save: str) -> None:
    assert labels(save) == [("save:no-scaler-argument", "info", False)]


def test_objects_of_factories() -> None:
    source = PROGRAM.replace("import save_checkpoint", "import build, save_checkpoint")
    source = source.replace("nn.Linear(8, 8).cuda()", "build(args)").replace("torch.optim.AdamW(", "build(args, ")
    source = source.replace(
        "    {made}", "    if args.ddp:\n        model = nn.parallel.DistributedDataParallel(model)\n    {made}"
    )
    findings = check_source(source.format(save=WRONG[0], made=SCALER))
    assert [each.label for each in findings if each.code == "AMP401"] == ["save:no-scaler-argument"]


@pytest.mark.parametrize("save", RIGHT)
def test_the_scaler_may_be_saved(save: str) -> None:
    assert labels(save) == []


def test_a_scaler_that_is_disabled() -> None:
    assert labels(WRONG[0], "scaler = torch.amp.GradScaler('cuda', enabled=False)") == []
