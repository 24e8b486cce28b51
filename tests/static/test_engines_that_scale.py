"""Accelerate and Fabric, which scale, unscale and step for the program: allowed and wrong code beside the engine."""

from __future__ import annotations

import re

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAMS = {
    "accelerate": """\
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

acc = Accelerator({arguments})
model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt = acc.prepare(model, opt)
for x, y in loader:
    {body}
""",
    "fabric": """\
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional as F

fabric = Fabric({arguments})
model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model, opt = fabric.setup(model, opt)
for x, y in loader:
    {body}
""",
}
#: Framework, arguments of its engine, loop, label of the violation in the marked line, and quoted texts.
LOOPS: list[tuple[str, str, str, str, list[str]]] = [
    (
        "accelerate",
        'mixed_precision="fp16"',
        "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)\nopt.step()",
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !\nopt.step()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "acc.clip_grad_norm_", "acc.sync_gradients"],
    ),
    (
        "accelerate",
        'mixed_precision="bf16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="no"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        "",
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !\nopt.step()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "acc.clip_grad_norm_", "acc.sync_gradients"],
    ),
    (
        "accelerate",
        "mixed_precision=p",
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !\nopt.step()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "acc.clip_grad_norm_", "acc.sync_gradients"],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nacc.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)\nacc.unscale_gradients()"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nacc.unscale_gradients(opt)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)"
            "\nfor p in model.parameters(): p.grad.add_(1)  # !\nopt.step()"
        ),
        "edit@scaled",
        ["opt", "acc.scaler.unscale_(opt)"],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()  # !\nopt.step()",
        "step@raw-framework",
        ["loss", "acc.backward(loss)"],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nwith acc.autocast(): loss = F.binary_cross_entropy(model(x), y)  # !"
            "\nacc.backward(loss)\nopt.step()"
        ),
        "bce@region",
        [
            "F.binary_cross_entropy",
            'with torch.autocast("cuda", enabled=False):',
            "model(x).float()",
            "model(x)",
            "binary_cross_entropy_with_logits",
        ],
    ),
    (
        "accelerate",
        'mixed_precision="bf16"',
        (
            "opt.zero_grad()\nwith acc.autocast(): loss = F.binary_cross_entropy(model(x), y)  # !"
            "\nacc.backward(loss)\nopt.step()"
        ),
        "bce@region",
        [
            "F.binary_cross_entropy",
            'with torch.autocast("cuda", enabled=False):',
            "model(x).float()",
            "model(x)",
            "binary_cross_entropy_with_logits",
        ],
    ),
    (
        "accelerate",
        'mixed_precision="no"',
        (
            "opt.zero_grad()\nwith acc.autocast(): loss = F.binary_cross_entropy(model(x), y)"
            "\nacc.backward(loss)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16", gradient_accumulation_steps=4',
        (
            "with acc.accumulate(model): loss = F.mse_loss(model(x), y) / 4  # !\nacc.backward(loss)"
            "\nopt.step()\nopt.zero_grad()"
        ),
        "loss:divided-twice",
        ["4", "acc.backward"],
    ),
    (
        "accelerate",
        "gradient_accumulation_steps=k",
        (
            "with acc.accumulate(model): loss = F.mse_loss(model(x), y) / acc.gradient_accumulation_steps "
            " # !\nacc.backward(loss)\nopt.step()\nopt.zero_grad()"
        ),
        "loss:divided-twice",
        ["acc.gradient_accumulation_steps", "acc.backward"],
    ),
    (
        "accelerate",
        "gradient_accumulation_steps=4",
        "with acc.accumulate(model): loss = F.mse_loss(model(x), y)\nacc.backward(loss)\nopt.step()\nopt.zero_grad()",
        "",
        [],
    ),
    (
        "accelerate",
        "gradient_accumulation_steps=4",
        (
            "with acc.accumulate(model): loss = F.mse_loss(model(x), y) / 2\nacc.backward(loss)"
            "\nopt.step()\nopt.zero_grad()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)\nacc.scaler.unscale_(opt)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "accelerate",
        'mixed_precision="fp16"',
        "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nacc.backward(loss)\nopt.optimizer.step()  # !",
        "plain-step@scaled-framework",
        ["opt.optimizer.step()", "acc.prepare(opt.optimizer)"],
    ),
    (
        "accelerate",
        'mixed_precision="fp16", gradient_accumulation_steps=4',
        (
            "with acc.accumulate(model):\n    loss = F.mse_loss(model(x), y)\n    acc.backward(loss)"
            "\n    if acc.sync_gradients: nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !"
            "\n    opt.step()\n    opt.zero_grad()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "acc.clip_grad_norm_", "acc.sync_gradients"],
    ),
    (
        "fabric",
        'precision="16-mixed"',
        "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)\nopt.step()",
        "",
        [],
    ),
    (
        "fabric",
        'precision="16-mixed"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !\nopt.step()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "fabric.clip_gradients"],
    ),
    (
        "fabric",
        "precision='32-true'",
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "fabric",
        "precision='bf16-mixed'",
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "fabric",
        'precision="16-mixed"',
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)"
            "\nfabric.clip_gradients(model, opt, max_norm=1.0, error_if_nonfinite=False)\nopt.step()"
        ),
        "",
        [],
    ),
    (
        "fabric",
        'precision="16-mixed"',
        "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nloss.backward()  # !\nopt.step()",
        "step@raw-framework",
        ["loss", "fabric.backward(loss)"],
    ),
    (
        "fabric",
        "precision=16",
        (
            "opt.zero_grad()\nloss = F.mse_loss(model(x), y)\nfabric.backward(loss)"
            "\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)  # !\nopt.step()"
        ),
        "clip@scaled-framework",
        ["nn.utils.clip_grad_norm_", "fabric.clip_gradients"],
    ),
    (
        "fabric",
        'precision="16-mixed"',
        (
            "opt.zero_grad()\nwith fabric.autocast(): loss = F.binary_cross_entropy(model(x), y)  # !"
            "\nfabric.backward(loss)\nopt.step()"
        ),
        "bce@region",
        [
            "F.binary_cross_entropy",
            'with torch.autocast("cuda", enabled=False):',
            "model(x).float()",
            "model(x)",
            "binary_cross_entropy_with_logits",
        ],
    ),
]


@pytest.mark.parametrize(("framework", "arguments", "body", "label", "words"), LOOPS)
def test_what_is_done_beside_an_engine(framework: str, arguments: str, body: str, label: str, words: list[str]) -> None:
    source = PROGRAMS[framework].format(arguments=arguments, body=body.replace("\n", "\n    "))
    found = check_source(source, "train.py")
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# !")]
    assert [(each.line, each.label) for each in found] == [(number, label) for number in marked]
    for each in found:
        assert re.findall(r"`([^`]*)`", each.message) == words
