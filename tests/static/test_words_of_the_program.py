"""Source texts of the program in messages: of the violation, and of the suggested code."""

from __future__ import annotations

import re
from textwrap import dedent, indent

import pytest

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
gs = torch.amp.GradScaler("cuda")
"""
LOOP = "for x, y in loader:\n"
FED = """\
opt.zero_grad()
with torch.autocast("cuda"):
    err = F.mse_loss(net(x), y)
gs.scale(err).backward()
"""
STEP = "gs.step(opt)\ngs.update()\n"


def loop(*parts: str) -> str:
    return LOOP + "".join(indent(dedent(part) + "\n" * (not part.endswith("\n")), "    ") for part in parts)


#: Label of a violation -> programs, each with the marked line and the texts that the message quotes.
LOOPS: list[tuple[str, str, list[str]]] = [
    ("clip@scaled", loop(FED, "clip(net.parameters(), 1.0)  # !", STEP), ["clip", "gs.unscale_(opt)"]),
    (
        "clip@scaled",
        loop(FED, "nn.utils.clip_grad_value_(net.parameters(), 1.0)  # !", STEP),
        ["nn.utils.clip_grad_value_", "gs.unscale_(opt)"],
    ),
    (
        "clip@scaled",
        loop(FED, "clip(opt.param_groups[0]['params'], 1.0)  # !", STEP),
        ["clip", "gs.unscale_(opt)"],
    ),
    ("clip@scaled", loop(FED, "clip(net.weight, 1.0)  # !", STEP), ["clip", "gs.unscale_(opt)"]),
    (
        "clip@stepped",
        loop(FED, "gs.step(opt)", "clip(net.parameters(), 1.0)  # !", "gs.update()"),
        ["clip", "gs.step(opt)", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad.add_(p, alpha=0.1)  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad.clamp_(-1, 1)  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad += 0.1  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad.copy_(p.grad.clamp(-1, 1))  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad[p.grad > 1] = 1.0  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "edit@scaled",
        loop(FED, "for p in net.parameters():\n    p.grad.data.nan_to_num_()  # !", STEP),
        ["opt", "gs.unscale_(opt)"],
    ),
    (
        "step@raw",
        loop(FED.replace("gs.scale(err).backward()", "err.backward()  # !"), STEP),
        ["err", "gs.step(opt)", "gs.scale(err).backward()"],
    ),
    (
        "step@raw",
        loop(FED.replace("gs.scale(err).backward()", "torch.autograd.backward(err)  # !"), STEP),
        ["err", "gs.step(opt)", "gs.scale(err).backward()"],
    ),
    ("plain-step@scaled", loop(FED, "opt.step()  # !"), ["opt.step()", "gs.step(opt)", "gs.update()"]),
    (
        "plain-step@unscaled",
        loop(FED, "gs.unscale_(opt)", "opt.step()  # !", "gs.update()"),
        ["opt.step()", "gs.unscale_(opt)", "gs.step(opt)"],
    ),
    (
        "plain-step@stepped",
        loop(FED, "gs.step(opt)", "opt.step()  # !", "gs.update()"),
        ["opt.step()", "gs.step(opt)", "gs.step(opt)"],
    ),
    (
        "backward@uneven",
        loop(
            FED.replace(
                "gs.scale(err).backward()", "total = gs.scale(err) + F.mse_loss(net(y), x)\ntotal.backward()  # !"
            ),
            STEP,
        ),
        ["total.backward"],
    ),
    (
        "scale@scaled",
        loop(FED.replace("gs.scale(err).backward()", "big = gs.scale(err)\ngs.scale(big).backward()  # !"), STEP),
        ["gs.scale"],
    ),
    ("step@stepped", loop(FED, "gs.step(opt)  # !"), ["gs.step(opt)", "gs.update()", "gs.update()"]),
    (
        "unscale@step-pending",
        loop(FED, "gs.unscale_(opt)", "gs.step(opt)  # !"),
        ["gs.step(opt)", "gs.update()", "gs.update()"],
    ),
    ("unscale@unscaled", loop(FED, "gs.unscale_(opt)", "gs.unscale_(opt)  # !", STEP), ["gs.unscale_(opt)"]),
    (
        "unscale@stepped",
        loop(FED, "gs.step(opt)", "gs.unscale_(opt)  # !", "gs.update()"),
        ["gs.unscale_(opt)", "gs.step(opt)"],
    ),
    (
        "step@unscaled-updated",
        loop(FED, "gs.unscale_(opt)", "gs.update()  # !", "gs.step(opt)"),
        ["gs.update()", "gs.step(opt)"],
    ),
    (
        "step@divided",
        loop(FED, "for p in net.parameters():\n    p.grad /= gs.get_scale()  # !", STEP),
        ["opt", "gs", "gs.unscale_(opt)"],
    ),
    (
        "step@divided",
        loop(FED, "inv = 1.0 / gs.get_scale()\nfor p in net.parameters():\n    p.grad.mul_(inv)  # !", STEP),
        ["opt", "gs", "gs.unscale_(opt)"],
    ),
    (
        "step-closure",
        "def closure():\n    return net(x).sum()\n" + loop(FED, "gs.step(opt, closure)  # !\ngs.update()"),
        ["gs.step(opt, ...)"],
    ),
    (
        "clip-nonfinite",
        loop(FED, "gs.unscale_(opt)", "clip(net.parameters(), 1.0, error_if_nonfinite=True)  # !", STEP),
        ["error_if_nonfinite=True", "clip", "gs", "gs.step(opt)"],
    ),
    (
        "anomaly-nonfinite",
        "torch.autograd.set_detect_anomaly(True)  # !\n" + loop(FED, STEP),
        ["torch.autograd.set_detect_anomaly", "gs"],
    ),
    (
        "step@discarded",
        loop(FED.replace("opt.zero_grad()\n", ""), "opt.zero_grad()  # !", STEP),
        ["opt", "gs.step(opt)"],
    ),
    (
        "step@discarded",
        loop(FED.replace("opt.zero_grad()\n", ""), "net.zero_grad()  # !", STEP),
        ["opt", "gs.step(opt)"],
    ),
    (
        "backward@region",
        loop(FED.replace("gs.scale(err).backward()", "    gs.scale(err).backward()  # !"), STEP),
        ["gs.scale(err).backward", "enabled=False", 'with torch.autocast("cuda", enabled=False):'],
    ),
    (
        "state@stepped",
        loop(FED, "gs.step(opt)", "kept = gs.state_dict()  # !", "gs.update()"),
        ["gs.state_dict()", "gs.update()"],
    ),
    (
        "save:whole-scaler",
        loop(FED, STEP) + "torch.save({'s': gs, 'o': opt.state_dict()}, 'x.pt')  # !\n",
        ["gs", "torch.load", "gs.state_dict()"],
    ),
    (
        "save:no-scaler",
        "opt.load_state_dict(torch.load('x.pt')['optimizer'])\n"
        + loop(FED, STEP)
        + "torch.save({'m': net.state_dict(), 'o': opt.state_dict()}, 'x.pt')  # !\n",
        ["opt", "gs", "gs.state_dict()", '"scaler"'],
    ),
    (
        "scheduler:skipped",
        "decay = torch.optim.lr_scheduler.StepLR(opt, 10)\n" + loop(FED, STEP, "decay.step()  # !"),
        ["opt", "gs.get_scale()", "gs.update()"],
    ),
    (
        "update@pending",
        "gen = nn.Linear(8, 1)\nopt_g = torch.optim.SGD(gen.parameters(), lr=0.1)\n"
        + loop(
            FED,
            "opt_g.zero_grad()\nwith torch.autocast('cuda'):\n    err_g = F.mse_loss(gen(x), y)\n"
            "gs.scale(err_g).backward()",
            "gs.step(opt)\ngs.update()  # !\ngs.step(opt_g)\ngs.update()",
        ),
        ["gs.update()", "opt_g"],
    ),
    (
        "new@used",
        loop("gs = torch.amp.GradScaler('cuda')  # !\n" + FED, STEP),
        ["gs", "for x, y in loader", "for x, y in loader"],
    ),
    (
        "new@used",
        "while True:\n" + indent("gs = torch.amp.GradScaler('cuda')  # !\nx, y = next(it)\n" + FED + STEP, "    "),
        ["gs", "while True", "while True"],
    ),
    (
        "clip@scaled-in-window",
        "for i, (x, y) in enumerate(loader):\n"
        + indent(
            FED.replace("opt.zero_grad()\n", "").replace("net(x), y)", "net(x), y) / 4")
            + "clip(net.parameters(), 1.0)  # !\nif (i + 1) % 4 == 0:\n"
            + indent(STEP + "opt.zero_grad()\n", "    "),
            "    ",
        ),
        ["clip", "gs.step(opt)", "gs.unscale_(opt)"],
    ),
    (
        "clip@scaled",
        "for i, (x, y) in enumerate(loader):\n"
        + indent(
            FED.replace("opt.zero_grad()\n", "").replace("net(x), y)", "net(x), y) / 4")
            + "if (i + 1) % 4 == 0:\n"
            + indent("clip(net.parameters(), 1.0)  # !\n" + STEP + "opt.zero_grad()\n", "    "),
            "    ",
        ),
        ["clip", "gs.unscale_(opt)"],
    ),
    (
        "loss@outside",
        loop(
            "opt.zero_grad()\nwith torch.autocast('cuda', dtype=torch.float16):\n    out = net(x)\n"
            "err = F.cross_entropy(out, y)  # !\ngs.scale(err).backward()",
            STEP,
        ),
        ["F.cross_entropy", "out.float()", "out"],
    ),
    (
        "scale@no-autocast",
        loop("opt.zero_grad()\nerr = F.mse_loss(net(x), y)  # !\ngs.scale(err).backward()", STEP),
        ["gs", "net", 'with torch.autocast("cuda"):'],
    ),
    (
        "scale:bf16",
        loop(FED.replace('"cuda"', '"cuda", dtype=torch.bfloat16').replace("ward()", "ward()  # !"), STEP),
        ["gs", "enabled=False"],
    ),
    (
        "bce@region",
        loop(FED.replace("F.mse_loss(net(x), y)", "F.binary_cross_entropy(net(x).sigmoid(), y)  # !"), STEP),
        [
            "F.binary_cross_entropy",
            'with torch.autocast("cuda", enabled=False):',
            "net(x).sigmoid().float()",
            "net(x).sigmoid()",
            "binary_cross_entropy_with_logits",
        ],
    ),
    (
        "bce@region",
        "crit = nn.BCELoss()\n" + loop(FED.replace("F.mse_loss(net(x), y)", "crit(net(x).sigmoid(), y)  # !"), STEP),
        [
            "crit",
            'with torch.autocast("cuda", enabled=False):',
            "net(x).sigmoid().float()",
            "net(x).sigmoid()",
            "binary_cross_entropy_with_logits",
        ],
    ),
    (
        "epsilon:added",
        loop(FED.replace("F.mse", "(x / (net(x) + 1e-8)).sum() + F.mse").replace("y)\n", "y)  # !\n"), STEP),
        ["net(x) + 1e-08", ".float()"],
    ),
    (
        "epsilon:clamped",
        loop(FED.replace("F.mse", "net(x).clamp(min=1e-9).sum() + F.mse").replace("y)\n", "y)  # !\n"), STEP),
        ["net(x).clamp(min=1e-09)", ".float()"],
    ),
    (
        "epsilon:to-one",
        loop(
            FED.replace("F.mse", "net(x).clamp(0, 1 - 1e-7).sum() + F.mse").replace("1 - 1e-7", "0.9999999"), STEP
        ).replace("y)\n", "y)  # !\n"),
        ["net(x).clamp(0, 0.9999999)", ".float()"],
    ),
    (
        "fill:overflow",
        loop(FED.replace("F.mse", "net(x).masked_fill(x > 0, -1e9).sum() + F.mse"), STEP).replace("y)\n", "y)  # !\n"),
        ["net(x).masked_fill", "torch.finfo(net(x).dtype).min"],
    ),
    (
        "fill:overflow",
        loop(FED.replace("    err", "    out = net(x)\n    out[x > 0] = -1e9  # !\n    err"), STEP),
        ["out[x > 0]", "torch.finfo(out.dtype).min"],
    ),
    (
        "sum:low",
        "total = 0\n" + loop(FED.replace("    err", "    out = net(x).mean()\n    err"), STEP, "total += out  # !"),
        ["total", ".float()", ".item()"],
    ),
    (
        "scale:told",
        loop(FED, STEP, "print(gs.get_scale())  # !"),
        ["gs.get_scale()"],
    ),
    (
        "zero:zeros",
        loop(FED.replace("zero_grad()", "zero_grad(set_to_none=False)  # !"), STEP),
        ["opt.zero_grad(set_to_none=False)", "set_to_none"],
    ),
]


@pytest.mark.parametrize(("label", "body", "words"), LOOPS)
def test_what_a_message_quotes(label: str, body: str, words: list[str]) -> None:
    source = HEAD + body
    options = Settings(select=frozenset(RULES))
    found = [finding for finding in check_source(source, "train.py", options) if finding.label == label]
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# !")]
    assert [finding.line for finding in found] == marked
    assert re.findall(r"`([^`]*)`", found[0].message) == words


@pytest.mark.parametrize(
    ("device", "other", "named"), [("cpu", "cpu", "cpu"), ("cuda", "cuda", "cuda"), ("cpu", "cuda", "cuda")]
)
def test_a_region_without_autocast_is_that_of_the_device_of_the_regions(device: str, other: str, named: str) -> None:
    program = f"""\
import torch

def train(model, optimizer, batches):
    with torch.autocast("{other}", dtype=torch.bfloat16):
        model(batches[0])
    for x in batches:
        optimizer.zero_grad()
        with torch.autocast("{device}", dtype=torch.bfloat16):
            loss = model(x).float().mean()
            loss.backward()
        optimizer.step()
"""
    (finding,) = check_source(program)
    assert finding.code == "AMP103" and f'`with torch.autocast("{named}", enabled=False):`' in finding.remedy


@pytest.mark.parametrize(
    ("config", "named"), [("FLAGS.config", "config.precision"), ("settings", "settings.precision")]
)
def test_a_condition_names_a_setting_of_another_package(config: str, named: str) -> None:
    program = f"""\
import torch
from absl.flags import FLAGS
import settings
from accelerate import Accelerator

def train(model, batches):
    config = {config}
    accelerator = Accelerator(mixed_precision=config.precision)
    if accelerator.mixed_precision == "fp16":
        model.to(torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x in batches:
        accelerator.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
"""
    conditions = [finding.condition for finding in check_source(program) if finding.code == "AMP501"]
    assert [f"`{named} == 'fp16'` is true" in condition for condition in conditions] == [True]
