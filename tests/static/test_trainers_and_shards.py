"""Trainers that scale for the program, ignite's handlers that save a scaler, and modules that hold shards."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

LIGHTNING = """\
import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)
{option}

{method}

trainer = L.Trainer({given})
trainer.fit(Task(), loader)
"""
MIXED, BF16 = 'precision="16-mixed"', 'precision="bf16-mixed"'
STEP = "def training_step(self, batch, index):\n    x, y = batch\n"
LOSS = "    loss = F.mse_loss(self.body(x), y)\n"
BCE = "    return F.binary_cross_entropy(self.body(x).sigmoid(), y)  # !\n"
MANUAL = "self.automatic_optimization = False"
FIRST = f"{STEP}    opt = self.optimizers()\n{LOSS}    opt.zero_grad()\n"
CLIP = "nn.utils.clip_grad_norm_(self.parameters(), 1.0)"
TWICE = "loss:divided-twice"
#: Arguments of the Trainer, a statement of the constructor, a method, and the label of its marked line.
METHODS = [
    (f"{MIXED}, accumulate_grad_batches=3", "", f"{STEP}{LOSS}    return loss / 3  # !\n", TWICE),
    # A half may be the mean of two losses.
    (f"{MIXED}, accumulate_grad_batches=2", "", f"{STEP}{LOSS}    return loss / 2\n", ""),
    ("accumulate_grad_batches=8", "", f"{STEP}{LOSS}    return loss / 8  # !\n", TWICE),
    ("accumulate_grad_batches=8", "", f"{STEP}{LOSS}    return loss / 8.0  # !\n", TWICE),
    ("accumulate_grad_batches=8", "", f"{STEP}{LOSS}    return {{'loss': loss / 8}}  # !\n", TWICE),
    ("accumulate_grad_batches=8", "", f"{STEP}{LOSS}    return {{'other': loss / 8}}\n", ""),
    ("accumulate_grad_batches=8", "", f"{STEP}{LOSS}    return loss / 4\n", ""),
    ("accumulate_grad_batches=1", "", f"{STEP}{LOSS}    return loss / 1\n", ""),
    ("", "", f"{STEP}{LOSS}    return loss / 8\n", ""),
    ("accumulate_grad_batches=cfg.k", "", f"{STEP}{LOSS}    return loss / cfg.k  # !\n", TWICE),
    ("accumulate_grad_batches=cfg.k", "", f"{STEP}{LOSS}    return loss / cfg.m\n", ""),
    ("", "", f"{STEP}{LOSS}    return loss / self.trainer.accumulate_grad_batches  # !\n", TWICE),
    ("accumulate_grad_batches=8", MANUAL, f"{STEP}{LOSS}    return loss / 8\n", ""),
    (
        "accumulate_grad_batches=8",
        "",
        f"def validation_step(self, batch, index):\n    x, y = batch\n{LOSS}    return loss / 8\n",
        "",
    ),
    (MIXED, "", f"{STEP}{BCE}", "bce@framework"),
    (BF16, "", f"{STEP}{BCE}", "bce@framework"),
    ("precision=16", "", f"{STEP}{BCE}", "bce@framework"),
    ('precision="32-true"', "", f"{STEP}{BCE}", ""),
    ("precision=32", "", f"{STEP}{BCE}", ""),
    ("max_epochs=3", "", f"{STEP}{BCE}", ""),
    (MIXED, "", f"def validation_step(self, batch, index):\n    x, y = batch\n{BCE}", "bce@framework"),
    (MIXED, "", f"def predict_step(self, batch, index):\n    x, y = batch\n{BCE}", "bce@framework"),
    (MIXED, "", f"def on_train_batch_end(self, x, y):\n{BCE}", ""),
    (MIXED, "", f"def on_after_backward(self):\n    {CLIP}  # !\n", "clip@scaled-framework"),
    ("precision=16", "", f"def on_after_backward(self):\n    {CLIP}  # !\n", "clip@scaled-framework"),
    (BF16, "", f"def on_after_backward(self):\n    {CLIP}\n", ""),
    ("", "", f"def on_after_backward(self):\n    {CLIP}\n", ""),
    (MIXED, MANUAL, f"def on_after_backward(self):\n    {CLIP}\n", ""),
    (MIXED, "", f"def on_before_optimizer_step(self, optimizer):\n    {CLIP}\n", ""),
    (MIXED, "", f"def on_before_zero_grad(self, optimizer):\n    {CLIP}\n", ""),
    (MIXED, MANUAL, f"{FIRST}    self.manual_backward(loss)\n    opt.step()\n", ""),
    (MIXED, MANUAL, f"{FIRST}    loss.backward()  # !\n    opt.step()\n", "step@raw-framework"),
    (BF16, MANUAL, f"{FIRST}    loss.backward()\n    opt.step()\n", ""),
    (
        MIXED,
        MANUAL,
        (
            f"{FIRST}    self.manual_backward(loss)\n"
            "    self.clip_gradients(opt, gradient_clip_val=1.0)  # !\n    opt.step()\n"
        ),
        "clip@scaled-framework",
    ),
    (
        MIXED,
        MANUAL,
        f"{FIRST}    self.manual_backward(loss)\n    self.clip_gradients(opt, 1.0)  # !\n    opt.step()\n",
        "clip@scaled-framework",
    ),
    (
        BF16,
        MANUAL,
        f"{FIRST}    self.manual_backward(loss)\n    self.clip_gradients(opt, gradient_clip_val=1.0)\n    opt.step()\n",
        "",
    ),
    (
        MIXED,
        MANUAL,
        (
            f"{FIRST.replace('optimizers()', 'optimizers(use_pl_optimizer=False)')}    self.manual_backward(loss)\n"
            "    opt.step()  # !\n"
        ),
        "plain-step@scaled-framework",
    ),
    (
        MIXED,
        MANUAL,
        (
            f"{FIRST.replace('optimizers()', 'optimizers(use_pl_optimizer=True)')}    self.manual_backward(loss)\n"
            "    opt.step()\n"
        ),
        "",
    ),
]


PARTS = """\
import lightning as L
import torch
from own import Base


class {header}:
    def training_step(self, batch, index):
        opt = self.optimizers()
        opt.zero_grad()
        loss = self.body(batch).mean()
        {backward}(loss)
        {clip}
        opt.step()

trainer = L.Trainer(precision="16-mixed")
"""
TORCH_CLIP = "torch.nn.utils.clip_grad_norm_(self.body.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("header", "backward", "clip", "labels"),
    [
        ("ManualStep", "self.manual_backward", TORCH_CLIP, ["clip@scaled-framework"]),
        ("Task(Base)", "self.manual_backward", TORCH_CLIP, ["clip@scaled-framework"]),
        ("Task(Base)", "self.manual_backward", "self.clip_gradients(opt, 1.0)", ["clip@scaled-framework"]),
        ("Task(Base)", "self.manual_backward", "print(loss)", []),
        # Another object may be anything, and a class may define the method itself.
        ("Loop(Base)", "self.task.manual_backward", TORCH_CLIP, []),
        ("Loop(Base)", "self.own_backward", TORCH_CLIP, []),
    ],
)
def test_a_class_that_only_a_lightning_module_can_complete(
    header: str, backward: str, clip: str, labels: list[str]
) -> None:
    found = check_source(PARTS.format(header=header, backward=backward, clip=clip), "task.py")
    assert [each.label for each in found] == labels


def test_a_class_with_a_method_of_the_name_of_lightnings() -> None:
    header = "Loop(Base):\n    def manual_backward(self, loss):\n        loss.backward()\n\nclass Own(Loop)"
    source = PARTS.format(header=header, backward="self.manual_backward", clip=TORCH_CLIP)
    assert check_source(source, "task.py") == []


@pytest.mark.parametrize(("given", "option", "method", "label"), METHODS)
def test_a_method_that_a_trainer_runs(given: str, option: str, method: str, label: str) -> None:
    source = LIGHTNING.format(option=indent(option, " " * 8), method=indent(method, "    "), given=given)
    marked = next((number for number, line in enumerate(source.split("\n"), 1) if "# !" in line), 0)
    found = check_source(source, "task.py")
    assert [(each.line, each.label) for each in found] == ([(marked, label)] if label else [])


@pytest.mark.parametrize(
    ("given", "severities"),
    [(MIXED, ["error"]), ("precision=args.precision", ["warning"]), (BF16, []), ("", []), ("**options", [])],
)
def test_how_far_a_precision_is_known(given: str, severities: list[str]) -> None:
    method = indent(f"{FIRST}    loss.backward()\n    opt.step()\n", "    ")
    source = LIGHTNING.format(option=indent(MANUAL, " " * 8), method=method, given=given)
    assert [each.severity for each in check_source(source, "task.py")] == severities


IGNITE = """\
import torch
from ignite.engine import create_supervised_trainer
from ignite.handlers import Checkpoint, ModelCheckpoint
from torch import nn


class Average:
    def __init__(self, net):
        self.kept = net

    def state_dict(self):
        return {{"kept": self.kept.state_dict()}}


class Pair:
    def __init__(self, opt, amp):
        self.opt, self.amp = opt, amp

    def state_dict(self):
        return {{"opt": self.opt.state_dict(), "amp": self.amp.state_dict()}}


net = nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
amp = torch.amp.GradScaler("cuda")
trainer = create_supervised_trainer(net, opt, nn.MSELoss(), amp_mode="amp", scaler={scaler})
{saving}
"""
OBJECT = "save:no-scaler-object"
#: Scaler of the trainer, save call, and True if the scaler is forgotten.
SAVINGS = [
    ("amp", "Checkpoint({'net': net, 'opt': opt}, folder)", True),
    ("amp", "Checkpoint({'net': net, 'opt': opt, 'amp': amp}, folder)", False),
    ("amp", "Checkpoint(to_save={'net': net, 'opt': opt}, save_handler=folder)", True),
    ("amp", "Checkpoint({'net': net}, folder)", False),
    ("amp", "Checkpoint({'net': net, 'opt': opt, 'average': Average(net)}, folder)", True),
    ("amp", "Checkpoint({'net': net, 'pair': Pair(opt, amp)}, folder)", False),
    ("amp", "Checkpoint({'net': net, 'opt': opt, 'pair': Pair(opt, amp)}, folder)", False),
    ("amp", "Checkpoint(objects, folder)", False),
    ("amp", "saver = ModelCheckpoint(folder, 'last')\nsaver(trainer, {'net': net, 'opt': opt})", True),
    ("amp", "saver = ModelCheckpoint(folder, 'last')\nsaver(trainer, {'net': net, 'opt': opt, 'amp': amp})", False),
    (
        "amp",
        "saver = ModelCheckpoint(folder, 'last')\ntrainer.add_event_handler(event, saver, {'net': net, 'opt': opt})",
        True,
    ),
    ("amp", "trainer.add_event_handler(event, other, {'net': net, 'opt': opt})", False),
    ("True", "Checkpoint({'net': net, 'opt': opt}, folder)", True),
    ("True", "Checkpoint({'net': net, 'opt': opt, 'amp': trainer.state.scaler}, folder)", False),
    ("args.amp", "Checkpoint({'net': net, 'opt': opt}, folder)", True),
    ("args.amp", "Checkpoint({'net': net, 'opt': opt, 'amp': trainer.state.scaler}, folder)", False),
    ("amp if args.amp else False", "Checkpoint({'net': net, 'opt': opt}, folder)", True),
    ("False", "Checkpoint({'net': net, 'opt': opt}, folder)", False),
    ("None", "Checkpoint({'net': net, 'opt': opt}, folder)", False),
    ("torch.amp.GradScaler('cuda', enabled=False)", "Checkpoint({'net': net, 'opt': opt}, folder)", False),
    ("amp", "Checkpoint({'net': net, 'opt': opt if args.resumes else None}, folder)", True),
    ("amp", "Checkpoint({'net': net, 'opt': opt, 'amp': amp if args.amp else opt}, folder)", False),
    ("amp", "objects = {'net': net}\nobjects['opt'] = opt\nCheckpoint(objects, folder)", True),
    ("amp", "print({'net': net, 'opt': opt})", False),
]


@pytest.mark.parametrize(("scaler", "saving", "forgotten"), SAVINGS)
def test_what_ignite_saves(scaler: str, saving: str, *, forgotten: bool) -> None:
    source = IGNITE.format(scaler=scaler, saving=saving)
    found = [each for each in check_source(source, "train.py") if each.code == "AMP401"]
    assert [(each.line, each.label) for each in found] == [(source.count("\n"), OBJECT)] * forgotten


SHARDS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

net = {module}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
{clip}
    opt.step()
"""
#: Module, clip of its gradients, and True if the clip uses the norm of a shard instead of the norm of all gradients.
CLIPS = [
    ("FSDP(nn.Linear(8, 2))", "clip_grad_norm_(net.parameters(), 1.0)", True),
    ("FSDP(module=nn.Linear(8, 2))", "clip_grad_norm_(net.parameters(), 1.0)", True),
    ("FSDP(build())", "clip_grad_norm_(net.parameters(), 1.0)", True),
    ("FSDP(nn.Linear(8, 2))", "clip_grad_norm_([*net.parameters()], 1.0)", True),
    ("FSDP(nn.Linear(8, 2))", "clip_grad_value_(net.parameters(), 1.0)", False),
    ("FSDP(nn.Linear(8, 2))", "net.clip_grad_norm_(1.0)", False),
    (
        "FSDP(nn.Linear(8, 2), sharding_strategy=ShardingStrategy.NO_SHARD)",
        "clip_grad_norm_(net.parameters(), 1.0)",
        False,
    ),
    ("FSDP(nn.Linear(8, 2), None, ShardingStrategy.NO_SHARD)", "clip_grad_norm_(net.parameters(), 1.0)", False),
    ("FSDP(nn.Linear(8, 2), None, ShardingStrategy.FULL_SHARD)", "clip_grad_norm_(net.parameters(), 1.0)", True),
    ("FSDP(nn.Linear(8, 2), group)", "clip_grad_norm_(net.parameters(), 1.0)", True),
    ("DDP(nn.Linear(8, 2))", "clip_grad_norm_(net.parameters(), 1.0)", False),
    ("nn.Linear(8, 2)", "clip_grad_norm_(net.parameters(), 1.0)", False),
    (
        "FSDP(nn.Linear(8, 2))",
        "if isinstance(net, FSDP):\n    net.clip_grad_norm_(1.0)\nelse:\n    clip_grad_norm_(net.parameters(), 1.0)",
        False,
    ),
    (
        "FSDP(nn.Linear(8, 2)) if shard else nn.Linear(8, 2)",
        "if shard:\n    net.clip_grad_norm_(1.0)\nelse:\n    clip_grad_norm_(net.parameters(), 1.0)",
        False,
    ),
]


@pytest.mark.parametrize(("module", "clip", "local"), CLIPS)
def test_the_norm_of_shards(module: str, clip: str, *, local: bool) -> None:
    source = SHARDS.format(module=module, clip=indent(clip, "    "))
    found = check_source(source, "train.py")
    assert [(each.line, each.label) for each in found] == [(12, "clip@shards")] * local
