"""Engines of frameworks, call by call: calls that scale, divide, unscale, step or clear, with various arguments."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F

{imports}

planner = nn.Linear(7, 2)
sgd = torch.optim.SGD(planner.parameters(), lr=0.1)
{setup}
for step, (state, plan) in enumerate(loader):
"""
FRAMEWORKS = {
    "accelerate": (
        "from accelerate import Accelerator",
        "acc = Accelerator({given})\nplanner, sgd = acc.prepare(planner, sgd)",
    ),
    "fabric": ("from lightning.fabric import Fabric", "fab = Fabric({given})\nplanner, sgd = fab.setup(planner, sgd)"),
    "timm": ("from timm.utils import NativeScaler", "scale = NativeScaler({given})"),
    "mmengine": ("from mmengine.optim import AmpOptimWrapper", "wrap = AmpOptimWrapper({given})"),
    "apex": ("from apex import amp", "planner, sgd = amp.initialize(planner, sgd, {given})"),
    "deepspeed": (
        "import deepspeed",
        "engine, sgd, _, _ = deepspeed.initialize(model=planner, optimizer=sgd, {given})",
    ),
}
ACC = "loss = F.mse_loss(planner(state), plan)\n"
CLIP = "nn.utils.clip_grad_norm_(planner.parameters(), 1.0)"
FP16 = 'mixed_precision="fp16"'
MIXED = 'precision="16-mixed"'
WRAPPED = "optimizer=sgd"
#: Framework, arguments of its engine, loop iteration, and the label of the violation in the marked line.
ITERATIONS = [
    # accelerate divides by its number of micro-batches, even if the program divides as well.
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=4",
        f"{ACC}loss = loss / 4  # !\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "loss:divided-twice",
    ),
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=4",
        f"{ACC}loss = loss / acc.gradient_accumulation_steps  # !\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "loss:divided-twice",
    ),
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=4",
        f"{ACC}loss = loss / 2\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    ("accelerate", FP16, f"{ACC}loss = loss / 4\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()", ""),
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=1",
        f"{ACC}loss = loss / 1\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=many",
        f"{ACC}loss = loss / many  # !\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "loss:divided-twice",
    ),
    (
        "accelerate",
        f"{FP16}, gradient_accumulation_steps=many",
        f"{ACC}loss = loss / others\nacc.backward(loss)\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        (
            f"{ACC}acc.gradient_accumulation_steps = 4\nloss = loss / 4  # !\nacc.backward(loss)\n"
            "sgd.step()\nsgd.zero_grad()"
        ),
        "loss:divided-twice",
    ),
    # A plain clip is too early only if the engine scales.
    ("accelerate", FP16, f"{ACC}acc.backward(loss)\n{CLIP}  # !\nsgd.step()\nsgd.zero_grad()", "clip@scaled-framework"),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nacc.unscale_gradients(sgd)\n{CLIP}\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.mixed_precision != 'fp16':\n    {CLIP}\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.mixed_precision == 'fp16':\n    {CLIP}  # !\nsgd.step()\nsgd.zero_grad()",
        "clip@scaled-framework",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.state.mixed_precision == 'no':\n    {CLIP}\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.scaler is None:\n    {CLIP}\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.scaler is not None:\n    {CLIP}  # !\nsgd.step()\nsgd.zero_grad()",
        "clip@scaled-framework",
    ),
    ("accelerate", FP16, f"{ACC}acc.backward(loss)\nacc.scaler.unscale_(sgd)\n{CLIP}\nsgd.step()\nsgd.zero_grad()", ""),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nif acc.state.deepspeed_plugin is not None:\n    {CLIP}\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    (
        "accelerate",
        FP16,
        (
            f"{ACC}acc.backward(loss)\nif acc.sync_gradients:\n"
            "    acc.clip_grad_norm_(planner.parameters(), 1.0)\nsgd.step()\nsgd.zero_grad()"
        ),
        "",
    ),
    (
        "accelerate",
        FP16,
        f"{ACC}acc.backward(loss)\nacc.clip_grad_value_(planner.parameters(), 1.0)\nsgd.step()\nsgd.zero_grad()",
        "",
    ),
    ("accelerate", FP16, f"{ACC}loss.backward()  # !\nsgd.step()\nsgd.zero_grad()", "step@raw-framework"),
    ("accelerate", 'mixed_precision="bf16"', f"{ACC}loss.backward()\nsgd.step()\nsgd.zero_grad()", ""),
    (
        "accelerate",
        FP16,
        (
            "with acc.autocast():\n    loss = F.binary_cross_entropy(planner(state).sigmoid(), plan)  # !\n"
            "acc.backward(loss)\nsgd.step()\nsgd.zero_grad()"
        ),
        "bce@region",
    ),
    (
        "accelerate",
        'mixed_precision="no"',
        (
            "with acc.autocast():\n    loss = F.binary_cross_entropy(planner(state).sigmoid(), plan)\n"
            "acc.backward(loss)\nsgd.step()\nsgd.zero_grad()"
        ),
        "",
    ),
    # Fabric does not divide.
    ("fabric", MIXED, f"{ACC}loss = loss / 4\nfab.backward(loss)\nsgd.step()\nsgd.zero_grad()", ""),
    ("fabric", MIXED, f"{ACC}fab.backward(loss)\n{CLIP}  # !\nsgd.step()\nsgd.zero_grad()", "clip@scaled-framework"),
    (
        "fabric",
        "precision=16",
        f"{ACC}fab.backward(loss)\n{CLIP}  # !\nsgd.step()\nsgd.zero_grad()",
        "clip@scaled-framework",
    ),
    ("fabric", 'precision="bf16-mixed"', f"{ACC}fab.backward(loss)\n{CLIP}\nsgd.step()\nsgd.zero_grad()", ""),
    ("fabric", "", f"{ACC}fab.backward(loss)\n{CLIP}\nsgd.step()\nsgd.zero_grad()", ""),
    (
        "fabric",
        MIXED,
        (
            f"{ACC}fab.backward(loss)\nfab.clip_gradients(planner, sgd, max_norm=1.0, error_if_nonfinite=False)"
            "\nsgd.step()\nsgd.zero_grad()"
        ),
        "",
    ),
    (
        "fabric",
        MIXED,
        (
            "with fab.autocast():\n    loss = F.binary_cross_entropy(planner(state).sigmoid(), plan)  # !\n"
            "fab.backward(loss)\nsgd.step()\nsgd.zero_grad()"
        ),
        "bce@region",
    ),
    (
        "fabric",
        "",
        (
            "with fab.autocast():\n    loss = F.binary_cross_entropy(planner(state).sigmoid(), plan)\n"
            "fab.backward(loss)\nsgd.step()\nsgd.zero_grad()"
        ),
        "",
    ),
    # timm scales, runs backward and, if an update is due, unscales, steps and updates.
    ("timm", "", f"with torch.autocast('cuda'):\n    {ACC}sgd.zero_grad()\nscale(loss, sgd)", ""),
    (
        "timm",
        "",
        f"with torch.autocast('cuda'):\n    {ACC}sgd.zero_grad()\nscale(loss, sgd)\nsgd.step()  # !",
        "plain-step@stepped",
    ),
    (
        "timm",
        "",
        (
            f"with torch.autocast('cuda'):\n    {ACC}sgd.zero_grad()\nscale(loss, sgd, need_update=False)\n"
            f"{CLIP}  # !\nscale(loss, sgd)"
        ),
        "clip@scaled",
    ),
    (
        "timm",
        "",
        (
            f"with torch.autocast('cuda'):\n    {ACC}sgd.zero_grad()\n"
            f"scale(loss, sgd, 1.0, 'norm', planner.parameters(), False, False)\n{CLIP}  # !\n"
            "scale(loss, sgd)"
        ),
        "clip@scaled",
    ),
    (
        "timm",
        "",
        (
            f"with torch.autocast('cuda'):\n    {ACC}sgd.zero_grad()\n"
            f"scale(loss, sgd, 1.0, 'norm', planner.parameters(), False, True)\n{CLIP}  # !"
        ),
        "clip@stepped",
    ),
    # mmengine's wrapper does the whole step in one call, or in single calls.
    ("mmengine", WRAPPED, f"with wrap.optim_context(planner):\n    {ACC}wrap.update_params(loss)", ""),
    (
        "mmengine",
        WRAPPED,
        f"with wrap.optim_context(planner):\n    {ACC}wrap.backward(loss)\nwrap.step()\nwrap.zero_grad()",
        "",
    ),
    (
        "mmengine",
        WRAPPED,
        f"with wrap.optim_context(planner):\n    {ACC}wrap.backward(loss)\n{CLIP}  # !\nwrap.step()\nwrap.zero_grad()",
        "clip@scaled-framework",
    ),
    (
        "mmengine",
        f"{WRAPPED}, accumulative_counts=4",
        f"with wrap.optim_context(planner):\n    {ACC}loss = loss / 4  # !\nwrap.update_params(loss)",
        "loss:divided-twice",
    ),
    (
        "mmengine",
        f"{WRAPPED}, accumulative_counts=4",
        f"with wrap.optim_context(planner):\n    {ACC}loss = loss / 2\nwrap.update_params(loss)",
        "",
    ),
    # apex unscales at the end of its block, unless the unscaling is delayed.
    (
        "apex",
        'opt_level="O1"',
        f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd) as scaled:\n    scaled.backward()\n{CLIP}\nsgd.step()",
        "",
    ),
    (
        "apex",
        'opt_level="O1"',
        (
            f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd) as scaled:\n    scaled.backward()\n"
            f"    {CLIP}  # !\nsgd.step()"
        ),
        "clip@scaled-framework",
    ),
    (
        "apex",
        'opt_level="O1"',
        (
            f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd, delay_unscale=True) as scaled:\n"
            f"    scaled.backward()\n{CLIP}  # !\nwith amp.scale_loss(loss, sgd) as scaled:\n"
            "    scaled.backward()\nsgd.step()"
        ),
        "clip@scaled-framework",
    ),
    (
        "apex",
        'opt_level="O2"',
        (
            f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd) as scaled:\n    scaled.backward()\n"
            f"{CLIP}  # !\nsgd.step()"
        ),
        "clip@copies",
    ),
    (
        "apex",
        'opt_level="O2"',
        (
            f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd) as scaled:\n    scaled.backward()\n"
            "nn.utils.clip_grad_norm_(amp.master_params(sgd), 1.0)\nsgd.step()"
        ),
        "",
    ),
    (
        "apex",
        'opt_level="O2", master_weights=False',
        f"{ACC}sgd.zero_grad()\nwith amp.scale_loss(loss, sgd) as scaled:\n    scaled.backward()\n{CLIP}\nsgd.step()",
        "",
    ),
    # DeepSpeed divides by the number in its configuration.
    ("deepspeed", "config=cfg", "loss = F.mse_loss(engine(state), plan)\nengine.backward(loss)\nengine.step()", ""),
    (
        "deepspeed",
        "config=cfg",
        (
            "loss = F.mse_loss(engine(state), plan) / engine.gradient_accumulation_steps()  # !\n"
            "engine.backward(loss)\nengine.step()"
        ),
        "loss:divided-twice",
    ),
    (
        "deepspeed",
        "config=cfg",
        (
            "loss = F.mse_loss(engine(state), plan) / engine.gradient_accumulation_steps()\n"
            "engine.backward(loss, scale_wrt_gas=False)\nengine.step()"
        ),
        "",
    ),
    (
        "deepspeed",
        "config=cfg",
        (
            "loss = F.mse_loss(engine(state), plan) / engine.gradient_accumulation_steps()\n"
            "engine.backward(loss, scale_wrt_gas=flag)\nengine.step()"
        ),
        "",
    ),
    (
        "deepspeed",
        "config=cfg",
        (
            "loss = F.mse_loss(engine(state), plan) / engine.gradient_accumulation_steps()  # !\n"
            "engine.backward(loss, scale_wrt_gas=True)\nengine.step()"
        ),
        "loss:divided-twice",
    ),
    ("deepspeed", "config=cfg", "loss = F.mse_loss(engine(state), plan) / 4\nengine.backward(loss)\nengine.step()", ""),
]


@pytest.mark.parametrize(("framework", "given", "iteration", "label"), ITERATIONS)
def test_an_iteration_with_an_engine(framework: str, given: str, iteration: str, label: str) -> None:
    imports, setup = FRAMEWORKS[framework]
    source = HEAD.format(imports=imports, setup=setup.format(given=given)) + indent(iteration, "    ") + "\n"
    marked = next((number for number, line in enumerate(source.split("\n"), 1) if "# !" in line), 0)
    found = check_source(source, "train.py")
    # Not all of these loops begin windows.
    reported = [(each.line, each.label) for each in found if each.label != "window:unused"]
    assert reported == ([(marked, label)] if label else [])
