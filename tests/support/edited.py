"""A project with a trainer of 500 lines that imports its parts from other files, and random edits of a text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

_HEAD = '''\
"""Trains several models one after the other, in mixed precision."""

import argparse
import json
import logging
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from data import loaders
from engine.average import ModelAverage
from engine.scaler import LossScaler
from engine.schedule import warm_up
from losses import Criterion
from models.net import build

LOG = logging.getLogger(__name__)


class Meter:
    """The mean of the added values."""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, number=1):
        self.total += float(value) * number
        self.count += number

    @property
    def mean(self):
        return self.total / max(self.count, 1)


def parameters_of(model, decay):
    decayed, other = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2 or name.endswith("bias"):
            other.append(parameter)
        else:
            decayed.append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": other, "weight_decay": 0.0}]


def seed_everything(seed):
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.benchmark = seed is None


def freeze(model, names):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(name.startswith(each) for each in names))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def described(model):
    rows = []
    for name, module in model.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if own:
            rows.append(f"{name:<40} {type(module).__name__:<20} {own:>12,}")
    total = sum(parameter.numel() for parameter in model.parameters())
    return "\\n".join([*rows, f"{'total':<40} {'':<20} {total:>12,}"])


def append_to(path, told):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(told, default=str) + "\\n")


def read_back(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]

'''
_PLAIN = '''
class Clock:
    """How long what was named took, in seconds."""

    def __init__(self):
        self.taken = defaultdict(float)
        self.times = defaultdict(int)
        self.begun = {}

    def begin(self, name):
        self.begun[name] = time.perf_counter()

    def end(self, name):
        self.taken[name] += time.perf_counter() - self.begun.pop(name)
        self.times[name] += 1

    def mean(self, name):
        return self.taken[name] / max(self.times[name], 1)

    def told(self):
        return {name: self.mean(name) for name in sorted(self.taken)}


class Curve:
    """What a training has come to, epoch by epoch, and whether it still gets better."""

    def __init__(self, patience, least=1e-4):
        self.patience = patience
        self.least = least
        self.values = []
        self.best = None

    def add(self, value):
        self.values.append(value)
        if self.best is None or value > self.values[self.best] + self.least:
            self.best = len(self.values) - 1

    def over(self):
        return self.best is not None and len(self.values) - self.best > self.patience

    def smooth(self, width=5):
        found = []
        for at in range(len(self.values)):
            window = self.values[max(0, at - width + 1) : at + 1]
            found.append(sum(window) / len(window))
        return found


def as_table(rows):
    names = sorted({name for row in rows for name in row})
    widths = {name: max(len(name), *(len(shown(row.get(name))) for row in rows)) for name in names}
    head = "  ".join(f"{name:>{widths[name]}}" for name in names)
    lines = [head, "  ".join("-" * widths[name] for name in names)]
    for row in rows:
        lines.append("  ".join(f"{shown(row.get(name)):>{widths[name]}}" for name in names))
    return "\\n".join(lines)


def shown(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def newest(folder, pattern="*.pt"):
    found = sorted(Path(folder).glob(pattern), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def pruned(folder, keep, pattern="*.pt"):
    found = sorted(Path(folder).glob(pattern), key=lambda path: path.stat().st_mtime)
    for path in found[: max(len(found) - keep, 0)]:
        path.unlink()


def mixed(inputs, targets, classes, strength):
    share = torch.distributions.Beta(strength, strength).sample().item()
    order = torch.randperm(inputs.size(0), device=inputs.device)
    hot = F.one_hot(targets, classes).float()
    return share * inputs + (1 - share) * inputs[order], share * hot + (1 - share) * hot[order]


def per_class(counted):
    right = counted.diagonal().float()
    precision = right / counted.sum(0).clamp(min=1)
    recall = right / counted.sum(1).clamp(min=1)
    return [{"precision": p, "recall": r} for p, r in zip(precision.tolist(), recall.tolist())]


def same_weights(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    if mine.keys() != theirs.keys():
        return False
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def on_device(batch, device):
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def confusion(found, targets, classes):
    counted = torch.zeros(classes, classes, dtype=torch.long)
    for one, other in zip(targets.flatten().tolist(), found.flatten().tolist()):
        counted[one, other] += 1
    return counted

'''
_WRAPPED = '''
def train_video(args, model, loader, optimizer, step, schedule, epoch):
    """The calls of the scaler stand in another file."""
    model.train()
    criterion = Criterion("video", smoothing=args.smoothing)
    losses = Meter("loss")
    for index, batch in enumerate(loader):
        frames, targets = batch["inputs"].to(args.device), batch["targets"].to(args.device)
        with autocast("cuda", dtype=torch.float16):
            loss = criterion(model(frames), targets)
        optimizer.zero_grad(set_to_none=True)
        norm = step(loss, optimizer, model.parameters(), args.clip)
        schedule.step()
        losses.update(loss.detach(), frames.size(0))
        if index % args.log_every == 0:
            LOG.info("video %d/%d: loss %.4f norm %.3f", epoch, index, losses.mean, norm)
    return losses.mean


def run_video(args):
    model = build("video", args.width).to(args.device)
    optimizer = torch.optim.AdamW(parameters_of(model, args.decay), lr=args.lr)
    schedule = warm_up(optimizer, args.warm_up)
    step = LossScaler()
    training, _ = loaders("video", args.batch)
    for epoch in range(args.epochs):
        LOG.info("video %d: %.3f", epoch, train_video(args, model, training, optimizer, step, schedule, epoch))
        save(args, "video", model, optimizer, step, epoch)
    return float(epoch)

'''
_TASK = """
def train_{task}(args, model, loader, optimizer, scaler, schedule, average, epoch):
    model.train()
    criterion = Criterion("{task}", smoothing=args.smoothing)
    losses, norms = Meter("loss"), Meter("norm")
    began = time.time()
    optimizer.zero_grad(set_to_none=True)
    for index, batch in enumerate(loader):
        inputs = batch["inputs"].to(args.device, non_blocking=True)
        targets = batch["targets"].to(args.device, non_blocking=True)
        last = (index + 1) % args.accumulate == 0 or index + 1 == len(loader)
        with autocast("cuda", dtype=torch.float16, enabled=args.amp):
            outputs = model(inputs)
            loss = criterion(outputs, targets) / args.accumulate
            if args.auxiliary and isinstance(outputs, dict):
                loss = loss + args.auxiliary * F.mse_loss(outputs["side"], inputs) / args.accumulate
        if not torch.isfinite(loss):
            LOG.warning("loss is %s in batch %d", loss.item(), index)
        scaler.scale(loss).backward()
        if last:
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            average.update(model)
            norms.update(norm)
        losses.update(loss.detach(), inputs.size(0))
        if index % args.log_every == 0:
            LOG.info("{task} %d/%d: loss %.4f norm %.3f", epoch, index, losses.mean, norms.mean)
    return {{"loss": losses.mean, "norm": norms.mean, "seconds": time.time() - began}}


@torch.no_grad()
def evaluate_{task}(args, model, loader):
    model.eval()
    criterion = Criterion("{task}")
    losses, right, seen = Meter("loss"), 0, 0
    by_class = defaultdict(int)
    for batch in loader:
        inputs, targets = batch["inputs"].to(args.device), batch["targets"].to(args.device)
        with autocast("cuda", dtype=torch.float16, enabled=args.amp):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        found = outputs.float().argmax(1)
        right += (found == targets).sum().item()
        seen += targets.numel()
        for each in found.tolist():
            by_class[each] += 1
        losses.update(loss, inputs.size(0))
    return {{"loss": losses.mean, "accuracy": right / max(seen, 1), "classes": dict(by_class)}}


def run_{task}(args):
    model = build("{task}", args.width).to(args.device)
    optimizer = torch.optim.AdamW(parameters_of(model, args.decay), lr=args.lr)
    scaler = GradScaler("cuda", enabled=args.amp)
    schedule = warm_up(optimizer, args.warm_up)
    average = ModelAverage(model, args.average)
    training, testing = loaders("{task}", args.batch)
    first, best = resume(args, "{task}", model, optimizer, scaler), 0.0
    for epoch in range(first, args.epochs):
        told = train_{task}(args, model, training, optimizer, scaler, schedule, average, epoch)
        told.update(evaluate_{task}(args, average.model, testing))
        best = max(best, told["accuracy"])
        save(args, "{task}", model, optimizer, scaler, epoch)
        LOG.info("{task} %d: %s", epoch, json.dumps(told, default=str))
    return best

"""
_CHECKPOINTS = """
def path_of(args, task):
    return Path(args.output) / f"{task}.pt"


def save(args, task, model, optimizer, scaler, epoch):
    os.makedirs(args.output, exist_ok=True)
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    torch.save(state, path_of(args, task))


def resume(args, task, model, optimizer, scaler):
    if not args.resume or not path_of(args, task).exists():
        return 0
    state = torch.load(path_of(args, task), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return state["epoch"] + 1

"""
_OPTIONS = (
    ("lr", "float", "1e-3"),
    ("decay", "float", "0.05"),
    ("clip", "float", "1.0"),
    ("smoothing", "float", "0.1"),
    ("auxiliary", "float", "0.0"),
    ("average", "float", "0.999"),
    ("epochs", "int", "100"),
    ("batch", "int", "64"),
    ("width", "int", "256"),
    ("accumulate", "int", "1"),
    ("warm-up", "int", "500"),
    ("log-every", "int", "50"),
    ("output", "str", '"runs"'),
    ("device", "str", '"cuda"'),
)
TASKS = ("image", "text", "audio")


def _main() -> str:
    rows = "".join(
        f'    parser.add_argument("--{name}", type={kind}, default={default})\n' for name, kind, default in _OPTIONS
    )
    runs = "".join(f'    LOG.info("{task}: %.3f", run_{task}(args))\n' for task in (*TASKS, "video"))
    return (
        "\ndef main():\n    parser = argparse.ArgumentParser()\n" + rows + '    parser.add_argument("--amp", '
        'action="store_true")\n    parser.add_argument("--resume", action="store_true")\n    args = parser.parse_args()'
        "\n    logging.basicConfig(level=logging.INFO)\n" + runs + '\n\nif __name__ == "__main__":\n    main()\n'
    )


TRAINER = (
    _HEAD
    + _PLAIN
    + "\n"
    + "\n".join(_TASK.format(task=task) for task in TASKS)
    + "\n"
    + _WRAPPED
    + "\n"
    + _CHECKPOINTS
    + "\n"
    + _main()
)
#: The files of the project by path.
PROJECT: Mapping[str, str] = {
    "train.py": TRAINER,
    "pyproject.toml": "[tool.amp-check]\n",
    "data.py": """\
import torch
from torch.utils.data import DataLoader, TensorDataset


def loaders(task, batch):
    found = TensorDataset(torch.randn(256, 32), torch.randint(0, 10, (256,)))
    return DataLoader(found, batch, shuffle=True), DataLoader(found, batch)
""",
    "losses.py": """\
import torch
from torch import nn


class Criterion(nn.Module):
    def __init__(self, task, smoothing=0.0):
        super().__init__()
        self.task = task
        self.loss = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, outputs, targets):
        return self.loss(outputs, targets)
""",
    "models/__init__.py": "",
    "models/net.py": """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, inputs):
        return self.head(self.layers(inputs))


def build(task, width):
    return Net(width)
""",
    "engine/__init__.py": "",
    "engine/average.py": """\
import copy

import torch


class ModelAverage:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for mine, other in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(other, 1 - self.decay)
""",
    "engine/scaler.py": """\
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_


class LossScaler:
    def __init__(self):
        self.scaler = GradScaler("cuda")

    def __call__(self, loss, optimizer, parameters, clip):
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        norm = clip_grad_norm_(parameters, clip)
        self.scaler.step(optimizer)
        self.scaler.update()
        return norm

    def state_dict(self):
        return self.scaler.state_dict()
""",
    "engine/schedule.py": """\
from torch.optim.lr_scheduler import LambdaLR


def warm_up(optimizer, steps):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))
""",
}
#: Texts that may be typed or pasted anywhere: statements of the protocol, halves of statements, and invalid Python.
PASTED = (
    "scaler.unscale_(optimizer)\n",
    "        scaler.update()\n",
    "with autocast('cuda'):\n",
    "    loss.backward(\n",
    "optimizer.step()",
    "from engine.scaler import *\n",
    "import train\n",
    "# amp: ignore[AMP201]",
    "# amp: ignore-file\n",
    "def train(:\n",
    '"""',
    "<<<<<<< HEAD\n=======\n>>>>>>> other\n",
    "\t",
    "\f",
    "\r\n",
    "\r",
    "\0",
    "\u2028",
    "\N{WINKING FACE}",
    "e\N{COMBINING ACUTE ACCENT}\ufeff",
    "# -*- coding: latin-1 -*-\n",
    "# -*- coding: nothing -*-\n",
    "(" * 300,
    "lambda: " * 200,
    "\\\n",
)


def edits(text: str, seed: int) -> Iterator[str]:
    """Yield versions of a text without end. Each version differs from the previous version by one edit or an undo."""
    dice = random.Random(seed)  # noqa: S311 - edits, no secrets
    now = text
    while True:
        lines = now.splitlines(keepends=True) or [""]
        at, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        match dice.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case 3:
                del lines[at : at + dice.randrange(1, 40)]
            case 4:
                lines[at] = "    " + lines[at]
            case 5:
                lines[at] = lines[at].lstrip()
            case 6:
                column = dice.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:column] + dice.choice(PASTED) + lines[at][column:]
            case _:
                column = dice.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:column] + lines[at][column + dice.randrange(1, 4) :]
        now = "".join(lines)
        if dice.random() < 0.1:
            now = text
        yield now
