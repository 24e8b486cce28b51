"""Training loops with one different part: label and line of each violation."""

from __future__ import annotations

from textwrap import indent

import pytest
from case_groups import check_each, in_groups

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

IMPORTS = """\
import copy
import itertools
import logging
import math
import threading

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.nn import functional as F
from torch.nn.parallel import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SHARDED = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
#: The parts of a correct program. A case may replace each part.
PARTS = {
    "model": "model = nn.Linear(8, 1)",
    "opt": "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
    "scaler": 'scaler = torch.amp.GradScaler("cuda")',
    "before": "",
    "clear": "opt.zero_grad()",
    "region": 'torch.autocast("cuda")',
    "fwd": "loss = F.mse_loss(model(x), y)",
    "back": "scaler.scale(loss).backward()",
    "mid": "",
    "step": "scaler.step(opt); scaler.update()",
    "after": "",
}


def program(parts: dict[str, str]) -> str:
    """Put the parts together. Statements of one line are separated by semicolons."""
    given = {name: part.replace("; ", "\n") for name, part in (PARTS | parts).items()}
    first = "\n".join(given[name] for name in ("model", "opt", "scaler", "before") if given[name])
    inside = indent("\n".join(given[name] for name in ("back", "mid", "step") if given[name]), "    ")
    return (
        f"{first}\nfor x, y in loader:\n{indent(given['clear'], '    ')}\n    with {given['region']}:\n"
        f"{indent(given['fwd'], '        ')}\n{inside}\n{given['after']}\n"
    )


def found(source: str) -> list[tuple[str, str]]:
    options = Settings(select=frozenset(RULES) - {"AMP701", "AMP702", "AMP904"})
    lines = source.split("\n")
    return [(lines[each.line - 1].strip(), each.label) for each in check_source(source, "train.py", options)]


#: The replaced parts, and the findings: line, and label of the violation.
Case = tuple[dict[str, str], list[tuple[str, str]]]
LOOPS: list[Case] = [
    ({}, []),
    ({"before": "model.half()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "model.bfloat16()"}, [("model.bfloat16()", "cast:trained")]),
    ({"before": "model.to(torch.float16)"}, [("model.to(torch.float16)", "cast:trained-scaled")]),
    ({"before": "model.to(dtype=torch.bfloat16)"}, [("model.to(dtype=torch.bfloat16)", "cast:trained")]),
    ({"before": "model.to('cuda', torch.half)"}, [("model.to('cuda', torch.half)", "cast:trained-scaled")]),
    ({"before": "model.half(); model.float()"}, []),
    ({"before": "model.half().float()"}, []),
    ({"before": "model.half(); model.double()"}, []),
    ({"before": "model.to(torch.float16); model.to(torch.float32)"}, []),
    ({"before": "model.to(torch.float32)"}, []),
    ({"before": "model.to('cuda')"}, []),
    ({"model": "model = nn.Linear(8, 1).half()"}, [("model = nn.Linear(8, 1).half()", "cast:trained-scaled")]),
    (
        {"model": "model = nn.Linear(8, 1, dtype=torch.float16)"},
        [("model = nn.Linear(8, 1, dtype=torch.float16)", "cast:trained-scaled")],
    ),
    ({"model": "model = nn.Linear(8, 1, dtype=torch.float32)"}, []),
    (
        {"model": "model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()"},
        [("model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()", "cast:trained-scaled")],
    ),
    ({"before": "model.half(); model.requires_grad_(False)"}, []),
    ({"before": "model.requires_grad_(False); model.half()"}, []),
    ({"before": "model.half(); model.train(); model.eval(); model.cuda()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "model = DDP(model); model.half()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "model = torch.compile(model); model.half()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "model.compile(); model.half()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "other = copy.deepcopy(model); other.half()"}, []),
    ({"before": "other = nn.Linear(8, 1).half()"}, []),
    ({"before": "model.apply(init); model.half()"}, [("model.half()", "cast:trained-scaled")]),
    ({"before": "model.share_memory().half()"}, [("model.share_memory().half()", "cast:trained-scaled")]),
    ({"fwd": "loss = F.mse_loss(model.forward(x), y)"}, []),
    ({"fwd": "loss = F.mse_loss(model.__call__(x), y)"}, []),
    ({"fwd": "loss = F.mse_loss(model(x), y); model.load_state_dict(s)"}, []),
    ({"mid": "model.load_state_dict(s)"}, []),
    (
        {
            "mid": "model.load_state_dict(s)",
            "back": "pass",
            "region": 'torch.autocast("cuda")',
            "fwd": (
                "loss = F.mse_loss(model(x), y); scaler.scale(loss).backward(); model.load_state_dict(s); out ="
                " model(x)"
            ),
        },
        [
            ("scaler.scale(loss).backward()", "backward@region"),
            ("model.load_state_dict(s)", "write@region-then-forward"),
        ],
    ),
    (
        {
            "back": "pass",
            "fwd": (
                "loss = F.mse_loss(model(x), y); scaler.scale(loss).backward(); model.load_state_dict(s,"
                " assign=True); out = model(x)"
            ),
        },
        [("scaler.scale(loss).backward()", "backward@region")],
    ),
    ({"clear": "model.zero_grad()"}, []),
    ({"clear": "pass", "mid": "model.zero_grad()"}, [("model.zero_grad()", "step@discarded")]),
    ({"mid": "model.backward(loss)"}, []),
    ({"mid": "model.clip_grad_norm_(1.0)"}, [("model.clip_grad_norm_(1.0)", "clip@scaled")]),
    ({"model": "model = FSDP(nn.Linear(8, 1))", "scaler": "scaler = ShardedGradScaler()"}, []),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "scaler": "scaler = ShardedGradScaler()",
            "opt": "opt = torch.optim.AdamW(model.parameters(), fused=True)",
        },
        [("scaler.step(opt)", "step@shards-fused")],
    ),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "scaler": "scaler = ShardedGradScaler()",
            "mid": "scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@shards")],
    ),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "scaler": "scaler = ShardedGradScaler()",
            "mid": "scaler.unscale_(opt); model.clip_grad_norm_(1.0)",
        },
        [],
    ),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "scaler": "scaler = ShardedGradScaler()",
            "mid": "model.clip_grad_norm_(1.0)",
        },
        [("model.clip_grad_norm_(1.0)", "clip@scaled")],
    ),
    (
        {
            "model": (
                "model = DDP(nn.Linear(8, 1))\nmodel.register_comm_hook(None,"
                " torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook)"
            )
        },
        [
            (
                (
                    "model.register_comm_hook(None,"
                    " torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook)"
                ),
                "hook@scaled",
            )
        ],
    ),
    (
        {
            "model": (
                "model = DDP(nn.Linear(8, 1))\nmodel.register_comm_hook(None,"
                " torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)"
            )
        },
        [],
    ),
    (
        {
            "model": (
                "model = DDP(nn.Linear(8, 1))\nmodel.register_comm_hook(state=None,"
                " hook=torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook)"
            )
        },
        [
            (
                (
                    "model.register_comm_hook(state=None,"
                    " hook=torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook)"
                ),
                "hook@scaled",
            )
        ],
    ),
    (
        {
            "model": (
                "from torch.distributed.algorithms.ddp_comm_hooks import register_ddp_comm_hook,"
                " DDPCommHookType\nmodel = DDP(nn.Linear(8, 1))"
                "\nregister_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, model)"
            )
        },
        [("register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, model)", "hook@scaled")],
    ),
    (
        {
            "model": (
                "from torch.distributed.algorithms.ddp_comm_hooks import register_ddp_comm_hook,"
                " DDPCommHookType\nmodel = DDP(nn.Linear(8, 1))\nregister_ddp_comm_hook(model=model,"
                " comm_hook_type=DDPCommHookType.BF16_COMPRESS)"
            )
        },
        [],
    ),
    ({"model": "model = DataParallel(nn.Linear(8, 1))"}, []),
    ({"before": "traced = torch.jit.trace(model, x)"}, []),
    (
        {"fwd": "traced = torch.jit.trace(model, x); loss = F.mse_loss(traced(x), y)"},
        [("traced = torch.jit.trace(model, x)", "trace@cached-region")],
    ),
    ({"fwd": "traced = torch.jit.trace(model, x, check_trace=False); loss = F.mse_loss(traced(x), y)"}, []),
    ({"fwd": "loss = F.mse_loss(model(x), y); out = threading.Thread(target=model, args=(x,)).start()"}, []),
    ({"opt": "opt = torch.optim.Adam(model.parameters())"}, []),
    (
        {
            "opt": "opt = torch.optim.LBFGS(model.parameters())",
            "step": "scaler.step(opt, lambda: model(x).sum()); scaler.update()",
        },
        [("scaler.step(opt, lambda: model(x).sum())", "step-closure")],
    ),
    ({"step": "opt.step()"}, [("opt.step()", "plain-step@scaled")]),
    ({"step": "opt.step(lambda: model(x).sum())"}, [("opt.step(lambda: model(x).sum())", "plain-step@scaled")]),
    ({"step": "opt.step(); scaler.update()"}, [("opt.step()", "plain-step@scaled")]),
    ({"step": "scaler.step(optimizer=opt); scaler.update()"}, []),
    ({"step": "scaler.step(opt); scaler.update(1024.0)"}, []),
    ({"step": "scaler.step(opt); scaler.update(new_scale=None)"}, []),
    ({"step": "scaler.update(); scaler.step(opt)"}, [("scaler.update()", "update@pending")]),
    ({"mid": "scaler.unscale_(optimizer=opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    ({"mid": "scaler.unscale_(opt); nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)"}, []),
    (
        {"mid": "nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)"},
        [("nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_value_(model.parameters(), clip_value=1.0)"},
        [("nn.utils.clip_grad_value_(model.parameters(), clip_value=1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(model.parameters(), float('inf'))"},
        [("nn.utils.clip_grad_norm_(model.parameters(), float('inf'))", "read@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(model.parameters(), math.inf)"},
        [("nn.utils.clip_grad_norm_(model.parameters(), math.inf)", "read@scaled")],
    ),
    (
        {"mid": "n = nn.utils.clip_grad_norm_(model.parameters(), torch.inf); print(n)"},
        [("n = nn.utils.clip_grad_norm_(model.parameters(), torch.inf)", "read@scaled")],
    ),
    (
        {"mid": "n = nn.utils.clip_grad_norm_(model.parameters(), 1e9); print(n)"},
        [("n = nn.utils.clip_grad_norm_(model.parameters(), 1e9)", "clip@scaled")],
    ),
    ({"mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())"}, []),
    ({"mid": "nn.utils.clip_grad_norm_(model.parameters(), max_norm=scaler.get_scale())"}, []),
    ({"mid": "nn.utils.clip_grad_value_(model.parameters(), clip_value=0.5 * scaler.get_scale())"}, []),
    (
        {"mid": "n = nn.utils.get_total_norm([p.grad for p in model.parameters()]); print(n)"},
        [("n = nn.utils.get_total_norm([p.grad for p in model.parameters()])", "read@scaled")],
    ),
    (
        {"mid": "scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)"},
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)", "clip-nonfinite")],
    ),
    ({"mid": "scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)"}, []),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0); assert torch.isfinite(n)"
            )
        },
        [("assert torch.isfinite(n)", "raise-nonfinite")],
    ),
    (
        {"mid": "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0); assert not n.isnan()"},
        [("assert not n.isnan()", "raise-nonfinite")],
    ),
    ({"mid": "clip_my_gradients(model.parameters())"}, []),
    ({"mid": "clip_my_gradients(model)"}, []),
    ({"mid": "opt.zero_grad()"}, [("opt.zero_grad()", "step@discarded")]),
    ({"mid": "opt.zero_grad(set_to_none=False)"}, [("opt.zero_grad(set_to_none=False)", "step@discarded")]),
    ({"clear": "pass"}, [("scaler.scale(loss).backward()", "backward@stale")]),
    ({"clear": "pass", "step": "scaler.step(opt); scaler.update(); opt.zero_grad()"}, []),
    ({"clear": "for p in model.parameters(): p.grad = None"}, []),
    (
        {
            "before": "decay = torch.optim.lr_scheduler.StepLR(opt, 1)",
            "step": "scaler.step(opt); scaler.update(); decay.step()",
        },
        [("decay.step()", "scheduler:skipped")],
    ),
    (
        {
            "before": "decay = torch.optim.lr_scheduler.StepLR(optimizer=opt, step_size=1)",
            "step": "scaler.step(opt); scaler.update(); decay.step()",
        },
        [("decay.step()", "scheduler:skipped")],
    ),
    ({"before": "decay = torch.optim.lr_scheduler.StepLR(opt, 1)", "after": "decay.step()"}, []),
    (
        {
            "before": "decay = torch.optim.lr_scheduler.StepLR(opt, 1)",
            "step": (
                "s = scaler.get_scale(); scaler.step(opt); scaler.update(); if scaler.get_scale() >= s: decay.step()"
            ),
        },
        [],
    ),
    (
        {
            "before": "ema = torch.optim.swa_utils.AveragedModel(model)",
            "step": "scaler.step(opt); scaler.update(); ema.update_parameters(model)",
        },
        [("ema.update_parameters(model)", "average:skipped")],
    ),
    (
        {"before": "ema = mine.Average()", "step": "scaler.step(opt); scaler.update(); ema.update_parameters(model)"},
        [("ema.update_parameters(model)", "average:skipped")],
    ),
    (
        {
            "opt": "opt = torch.optim.SGD([{'params': model.parameters(), 'lr': 0.1}], lr=0.1)",
            "mid": "nn.utils.clip_grad_norm_(opt.param_groups[0]['params'], 1.0)",
        },
        [("nn.utils.clip_grad_norm_(opt.param_groups[0]['params'], 1.0)", "clip@scaled")],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=False)",
            "back": "loss.backward()",
            "step": "opt.step()",
        },
        [],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=False)",
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [],
    ),
    ({"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=False)", "step": "scaler.step(opt)"}, []),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=False)", "clear": "pass"},
        [("scaler.scale(loss).backward()", "backward@stale")],
    ),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)", "step": "scaler.step(opt)"},
        [("scaler.step(opt)", "step@stepped")],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)",
            "mid": "if amp: scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)",
            "mid": "if amp: nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("if amp: nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)",
            "mid": "if not amp: nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)",
            "mid": "if scaler.is_enabled(): scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [],
    ),
    (
        {
            "scaler": "scaler = torch.amp.GradScaler('cuda', enabled=amp)",
            "mid": "if not scaler.is_enabled(): nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [],
    ),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=(dtype == torch.bfloat16))"},
        [("scaler = torch.amp.GradScaler('cuda', enabled=(dtype == torch.bfloat16))", "scaler:wrong-dtype")],
    ),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=(dtype == 'bf16'))"},
        [("scaler = torch.amp.GradScaler('cuda', enabled=(dtype == 'bf16'))", "scaler:wrong-dtype")],
    ),
    ({"scaler": "scaler = torch.amp.GradScaler('cuda', enabled=(torch.float16 == dtype))"}, []),
    (
        {"scaler": "scaler = torch.amp.GradScaler(1024.0)"},
        [("scaler = torch.amp.GradScaler(1024.0)", "scaler:number-as-device")],
    ),
    ({"scaler": "scaler = torch.amp.GradScaler(0)"}, [("scaler = torch.amp.GradScaler(0)", "scaler:index-as-device")]),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', True)"},
        [("scaler = torch.amp.GradScaler('cuda', True)", "scaler:bool-as-scale")],
    ),
    (
        {"scaler": "scaler = torch.amp.GradScaler('cuda', growth_interval=0)"},
        [("scaler = torch.amp.GradScaler('cuda', growth_interval=0)", "scaler:no-growth")],
    ),
    ({"scaler": "scaler = torch.amp.GradScaler('cpu')"}, []),
    ({"scaler": "scaler = torch.amp.GradScaler(device='cuda')"}, []),
    (
        {
            "scaler": (
                "class Mine(torch.amp.GradScaler):\n    def step(self, o):\n        super().step(o)\n       "
                " super().update()\nscaler = Mine('cuda')"
            ),
            "step": "scaler.step(opt)",
        },
        [],
    ),
    (
        {"scaler": "class Mine(torch.amp.GradScaler):\n    pass\nscaler = Mine('cuda')", "step": "scaler.step(opt)"},
        [("scaler.step(opt)", "step@stepped")],
    ),
    (
        {"back": "scaler.scale(outputs=loss).backward()", "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {
            "back": "a, b = scaler.scale([loss, loss]); a.backward()",
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {
            "back": "scaler.scale(loss if x else loss).backward()",
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"back": "(loss * scaler.get_scale()).backward()", "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"back": "(scaler.get_scale() * loss).backward()"}, []),
    (
        {"back": "(loss * scaler._scale).backward()", "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"back": "(scaler.scale(loss) / scaler.get_scale()).backward()"},
        [("(scaler.scale(loss) / scaler.get_scale()).backward()", "step@raw")],
    ),
    (
        {
            "back": (
                "g = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True);"
                " scaler.scale(loss + g[0].norm()).backward()"
            )
        },
        [("g = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)", "penalty@scaled")],
    ),
    (
        {
            "back": (
                "g = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True); i = 1.0 /"
                " scaler.get_scale(); scaler.scale(loss + (g[0] * i).norm()).backward()"
            )
        },
        [],
    ),
    (
        {
            "back": (
                "g = torch.autograd.grad(loss, model.parameters(), create_graph=True); scaler.scale(loss +"
                " g[0].norm()).backward()"
            )
        },
        [],
    ),
    (
        {
            "back": "torch.autograd.backward(scaler.scale(loss))",
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"back": "torch.autograd.backward(tensors=loss)"}, [("torch.autograd.backward(tensors=loss)", "step@raw")]),
    (
        {"back": "scaler.scale(scaler.scale(loss)).backward()"},
        [("scaler.scale(scaler.scale(loss)).backward()", "scale@scaled")],
    ),
    (
        {"step": "scaler.step(opt); s = scaler.state_dict(); scaler.update()"},
        [("s = scaler.state_dict()", "state@stepped")],
    ),
    ({"step": "scaler.step(opt); scaler.update(); s = scaler.state_dict()"}, []),
    (
        {
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict()}, 'x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("torch.save({'o': opt.state_dict(), 'm': model.state_dict()}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 's': scaler.state_dict()}, 'x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("opt.load_state_dict(torch.load('x')['o'])", "load:no-scaler")],
    ),
    (
        {
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 's': scaler.state_dict()}, 'x')",
            "before": "c = torch.load('x'); opt.load_state_dict(c['o']); scaler.load_state_dict(c['s'])",
        },
        [],
    ),
    ({"after": "torch.save(scaler, 'x')"}, [("torch.save(scaler, 'x')", "save:whole-scaler")]),
    ({"after": "torch.save((opt, scaler), 'x')"}, [("torch.save((opt, scaler), 'x')", "save:whole-scaler")]),
    (
        {"after": "torch.save([opt.state_dict()], 'x')", "before": "opt.load_state_dict(torch.load('x')[0])"},
        [("torch.save([opt.state_dict()], 'x')", "save:no-scaler")],
    ),
    (
        {"after": "torch.save(opt.state_dict(), 'x')", "before": "opt.load_state_dict(torch.load('x'))"},
        [("torch.save(opt.state_dict(), 'x')", "save:no-scaler")],
    ),
    (
        {
            "after": "torch.save(dict(o=opt.state_dict(), **more), 'x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [],
    ),
    (
        {
            "after": "torch.save({'o': opt.state_dict(), 'epoch': 3}, 'x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("torch.save({'o': opt.state_dict(), 'epoch': 3}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "after": "torch.save({'train': {'o': opt.state_dict()}, 'm': model.state_dict()}, 'x')",
            "before": "opt.load_state_dict(torch.load('x')['train']['o'])",
        },
        [("torch.save({'train': {'o': opt.state_dict()}, 'm': model.state_dict()}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "after": "torch.save(obj={'o': opt.state_dict(), 'm': model.state_dict()}, f='x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("torch.save(obj={'o': opt.state_dict(), 'm': model.state_dict()}, f='x')", "save:no-scaler")],
    ),
    (
        {
            "after": "save_checkpoint({'o': opt.state_dict(), 'm': model.state_dict()})",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("save_checkpoint({'o': opt.state_dict(), 'm': model.state_dict()})", "save:no-scaler")],
    ),
    (
        {
            "after": "save_checkpoint({'o': opt.state_dict(), 'm': model.state_dict()}, scaler)",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [],
    ),
    (
        {
            "after": "save_checkpoint(opt.state_dict(), model.state_dict())",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("save_checkpoint(opt.state_dict(), model.state_dict())", "save:no-scaler")],
    ),
    (
        {
            "after": (
                "state = {'o': opt.state_dict(), 'm': model.state_dict()}; state['scaler'] ="
                " scaler.state_dict(); torch.save(state, 'x')"
            ),
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [("opt.load_state_dict(torch.load('x')['o'])", "load:no-scaler")],
    ),
    (
        {
            "after": (
                "state = {'o': opt.state_dict(), 'm': model.state_dict()}; state.update(more); torch.save(state, 'x')"
            ),
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [],
    ),
    (
        {
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'scale': scaler.get_scale()}, 'x')",
            "before": "opt.load_state_dict(torch.load('x')['o'])",
        },
        [],
    ),
    ({"opt": "class Mine(torch.optim.SGD):\n    pass\nopt = Mine(model.parameters(), lr=0.1)"}, []),
    (
        {
            "opt": "class Mine(torch.optim.SGD):\n    pass\nopt = Mine(model.parameters(), lr=0.1)",
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"opt": "class Mine(torch.optim.SGD):\n    pass\nopt = Mine(model.parameters(), lr=0.1)", "step": "opt.step()"},
        [("opt.step()", "plain-step@scaled")],
    ),
    (
        {
            "opt": "class Mine(torch.optim.Optimizer):\n    pass\nopt = Mine(model.parameters(), lr=0.1)",
            "step": "opt.step()",
        },
        [("opt.step()", "plain-step@scaled")],
    ),
    (
        {
            "opt": (
                "class Mine(torch.optim.SGD):\n    def step(self):\n        super().step()\n       "
                " self.zero_grad()\nopt = Mine(model.parameters(), lr=0.1)"
            ),
            "clear": "pass",
        },
        [],
    ),
    (
        {
            "opt": (
                "class Mine(torch.optim.SGD):\n    def step(self):\n        super().step()\nopt ="
                " Mine(model.parameters(), lr=0.1)"
            ),
            "clear": "pass",
        },
        [("scaler.scale(loss).backward()", "backward@stale")],
    ),
    (
        {
            "opt": (
                "class Mine(torch.optim.SGD):\n    def step(self):\n        for g in self.param_groups:\n      "
                "      for p in g['params']:\n                p.grad = None\nopt = Mine(model.parameters(),"
                " lr=0.1)"
            ),
            "clear": "pass",
        },
        [],
    ),
    (
        {
            "opt": (
                "class Mine(torch.optim.SGD):\n    def __init__(self, model):\n       "
                " super().__init__(model.parameters(), lr=0.1)\nopt = Mine(model)"
            ),
            "clear": "pass",
        },
        [("scaler.scale(loss).backward()", "backward@stale")],
    ),
    (
        {
            "scaler": (
                "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\nclass"
                " Mine(ShardedGradScaler):\n    pass\nscaler = Mine()"
            ),
            "mid": "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(itertools.chain(model.parameters(), head.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(itertools.chain(model.parameters(), head.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(itertools.chain(*[model.parameters()]), 1.0)"},
        [("nn.utils.clip_grad_norm_(itertools.chain(*[model.parameters()]), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(tuple(model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(tuple(model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(filter(lambda p: p.requires_grad, model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(filter(lambda p: p.requires_grad, model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)"},
        [("nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(sorted(model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(sorted(model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(reversed(list(model.parameters())), 1.0)"},
        [("nn.utils.clip_grad_norm_(reversed(list(model.parameters())), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(iter(model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(iter(model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(next(model.parameters()), 1.0)"},
        [("nn.utils.clip_grad_norm_(next(model.parameters()), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_(dict(model.named_parameters()).values(), 1.0)"},
        [("nn.utils.clip_grad_norm_(dict(model.named_parameters()).values(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "nn.utils.clip_grad_norm_([p for n, p in model.named_parameters()], 1.0)"},
        [("nn.utils.clip_grad_norm_([p for n, p in model.named_parameters()], 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "for n, p in model.named_parameters(): p.grad.add_(1)"},
        [("for n, p in model.named_parameters(): p.grad.add_(1)", "edit@scaled")],
    ),
    (
        {"mid": "for i, p in enumerate(model.parameters()): p.grad.add_(1)"},
        [("for i, p in enumerate(model.parameters()): p.grad.add_(1)", "edit@scaled")],
    ),
    (
        {"mid": "for p, q in zip(model.parameters(), old): p.grad.add_(q)"},
        [("for p, q in zip(model.parameters(), old): p.grad.add_(q)", "edit@scaled")],
    ),
    (
        {"mid": "for p in itertools.chain(model.parameters()): p.grad.add_(1)"},
        [("for p in itertools.chain(model.parameters()): p.grad.add_(1)", "edit@scaled")],
    ),
    (
        {"mid": "for g in opt.param_groups: nn.utils.clip_grad_norm_(g['params'], 1.0)"},
        [("for g in opt.param_groups: nn.utils.clip_grad_norm_(g['params'], 1.0)", "clip@scaled")],
    ),
    ({"mid": "for m in model.modules(): print(m)"}, []),
    (
        {"mid": "if isinstance(model, DDP): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance(model, DDP): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if isinstance(opt, torch.optim.Optimizer): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [
            (
                "if isinstance(opt, torch.optim.Optimizer): nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
                "clip@scaled",
            )
        ],
    ),
    (
        {"mid": "if isinstance(opt, torch.optim.LBFGS): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance(opt, torch.optim.LBFGS): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if isinstance(model, nn.Module): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance(model, nn.Module): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if isinstance(model, torch.optim.Optimizer): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    ({"mid": "if isinstance(opt, (list, tuple)): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    ({"mid": "if isinstance(opt, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if isinstance([opt], list): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance([opt], list): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if isinstance({}, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance({}, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if isinstance({}, (dict, list)): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if isinstance({}, (dict, list)): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if isinstance({}, list): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    ({"mid": "if isinstance([], dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    ({"mid": "if isinstance(None, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if not isinstance(None, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if not isinstance(None, dict): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if hasattr(opt, 'zero_grad'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if hasattr(opt, 'zero_grad'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if not hasattr(opt, 'zero_grad'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if hasattr(model, 'parameters'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if hasattr(model, 'parameters'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if hasattr(torch, 'autocast'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if hasattr(torch, 'autocast'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if not hasattr(torch, 'autocast'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if hasattr(model, name): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if hasattr(model, name): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if getattr(model, 'weight') is not None: nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if getattr(model, 'weight') is not None: nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "getattr(nn.utils, 'clip_grad_norm_')(model.parameters(), 1.0)"},
        [("getattr(nn.utils, 'clip_grad_norm_')(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if bool(0): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if bool(1): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if bool(1): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if float('0'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "if float('1'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if float('1'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"mid": "if float('x'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if float('x'): nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    ({"mid": "if divmod(8, 4)[1]: nn.utils.clip_grad_norm_(model.parameters(), 1.0)"}, []),
    (
        {"mid": "nn.utils.clip_grad_norm_(model.parameters(), float('inf'))"},
        [("nn.utils.clip_grad_norm_(model.parameters(), float('inf'))", "read@scaled")],
    ),
    (
        {"mid": "if math.fmod(4, 4) == 0: nn.utils.clip_grad_norm_(model.parameters(), 1.0)"},
        [("if math.fmod(4, 4) == 0: nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@scaled")],
    ),
    (
        {"region": "torch.autocast('cuda', enabled=False)"},
        [("loss = F.mse_loss(model(x), y)", "scale@outside-autocast")],
    ),
    ({"region": "torch.autocast(device_type='cuda')"}, []),
    ({"region": "torch.autocast('cuda', torch.float16)"}, []),
    ({"region": "torch.autocast(device)"}, []),
    ({"region": "torch.autocast(model.device)"}, []),
    (
        {"region": "torch.autocast(torch.device('cuda'))"},
        [("with torch.autocast(torch.device('cuda')):", "autocast:device-object")],
    ),
    ({"region": "torch.autocast(torch.device('cuda').type)"}, []),
    ({"region": "torch.autocast('gpu')"}, [("with torch.autocast('gpu'):", "autocast:unknown-device")]),
    ({"region": "torch.autocast('cuda:0')"}, [("with torch.autocast('cuda:0'):", "autocast:indexed-device")]),
    ({"region": "torch.autocast()"}, [("with torch.autocast():", "autocast:no-device")]),
    ({"region": "torch.autocast('cuda', True)"}, [("with torch.autocast('cuda', True):", "autocast:bool-dtype")]),
    (
        {"region": "torch.autocast('cuda', 'float16')"},
        [("with torch.autocast('cuda', 'float16'):", "autocast:string-dtype")],
    ),
    (
        {"region": "torch.autocast('cpu', dtype=torch.float32)"},
        [("with torch.autocast('cpu', dtype=torch.float32):", "autocast:unsupported-dtype")],
    ),
    ({"region": "torch.autocast('cuda', dtype=torch.float32)"}, []),
    (
        {"region": "torch.autocast('cuda', enabled=1)"},
        [("with torch.autocast('cuda', enabled=1):", "autocast:not-a-bool")],
    ),
    (
        {"region": "torch.autocast('cuda', dtype=torch.float16, enabled=True, cache_enabled=False, more=1)"},
        [
            (
                "with torch.autocast('cuda', dtype=torch.float16, enabled=True, cache_enabled=False, more=1):",
                "autocast:unknown-argument",
            )
        ],
    ),
    ({"region": "torch.autocast(False)"}, [("with torch.autocast(False):", "autocast:not-a-device")]),
    ({"region": "torch.autocast(**options)"}, []),
    (
        {
            "before": "class Region(torch.autocast):\n    pass",
            "region": "Region('cuda')",
            "fwd": "loss = F.binary_cross_entropy(model(x), y)",
        },
        [("loss = F.binary_cross_entropy(model(x), y)", "bce@region")],
    ),
    (
        {
            "before": "@torch.autocast('cuda')\ndef run(x, y):\n    return F.binary_cross_entropy(model(x), y)",
            "region": "open('x')",
            "fwd": "loss = run(x, y)",
        },
        [("return F.binary_cross_entropy(model(x), y)", "bce@region")],
    ),
    (
        {
            "before": "def go(x, y):\n    return F.binary_cross_entropy(model(x), y)\nrun = torch.autocast('cuda')(go)",
            "region": "open('x')",
            "fwd": "loss = run(x, y)",
        },
        [("return F.binary_cross_entropy(model(x), y)", "bce@region")],
    ),
    (
        {
            "before": "r = torch.autocast('cuda'); r.__enter__()",
            "region": "open('x')",
            "fwd": "loss = F.binary_cross_entropy(model(x), y)",
        },
        [
            ("loss = F.binary_cross_entropy(model(x), y)", "bce@region"),
            ("scaler.scale(loss).backward()", "backward@region"),
            ("scaler.step(opt)", "write@region-then-forward"),
        ],
    ),
    (
        {
            "before": "r = torch.autocast('cuda'); r.__enter__(); r.__exit__(None, None, None)",
            "region": "open('x')",
            "fwd": "loss = F.binary_cross_entropy(model(x), y)",
        },
        [("loss = F.binary_cross_entropy(model(x), y)", "scale@outside-autocast")],
    ),
    (
        {
            "before": "r = torch.autocast('cuda'); r.__enter__(); r.__enter__(); r.__exit__(None, None, None)",
            "region": "open('x')",
            "fwd": "loss = F.binary_cross_entropy(model(x), y)",
        },
        [
            ("r.__enter__()", "enter@entered"),
            ("loss = F.binary_cross_entropy(model(x), y)", "bce@region"),
            ("scaler.scale(loss).backward()", "backward@region"),
            ("scaler.step(opt)", "write@region-then-forward"),
        ],
    ),
    ({"step": "opt.step(scaler)"}, []),
    ({"step": "opt.step(scaler=scaler)"}, []),
    ({"step": "opt.step(loss)"}, [("opt.step(loss)", "plain-step@scaled")]),
    ({"mid": "opt.register_step_pre_hook(f); opt.step()", "step": "pass"}, [("opt.step()", "plain-step@scaled")]),
    ({"mid": "opt.add_param_group({'params': y})"}, []),
    ({"mid": "opt.train()"}, []),
    ({"clear": "pass", "mid": "opt.other()"}, [("scaler.scale(loss).backward()", "backward@stale")]),
    (
        {
            "before": "from dataclasses import dataclass\n@dataclass\nclass State:\n    o: dict\n    m: dict",
            "after": "torch.save(State(opt.state_dict(), model.state_dict()), 'x')",
        },
        [("torch.save(State(opt.state_dict(), model.state_dict()), 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": (
                "opt.load_state_dict(torch.load('x')['o'])\nfrom dataclasses import dataclass\n@dataclass"
                "\nclass State:\n    o: dict\n    m: dict"
            ),
            "after": "torch.save(State(opt.state_dict(), model.state_dict()), 'x')",
        },
        [("torch.save(State(opt.state_dict(), model.state_dict()), 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": (
                "opt.load_state_dict(torch.load('x')['o'])\nfrom dataclasses import dataclass, asdict"
                "\n@dataclass\nclass State:\n    o: dict\n    m: dict"
            ),
            "after": "torch.save(asdict(State(opt.state_dict(), model.state_dict())), 'x')",
        },
        [("torch.save(asdict(State(opt.state_dict(), model.state_dict())), 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": (
                "opt.load_state_dict(torch.load('x')['o'])\nfrom dataclasses import dataclass\n@dataclass"
                "\nclass State:\n    o: dict\n    s: dict"
            ),
            "after": "torch.save(State(opt.state_dict(), scaler.state_dict()), 'x')",
        },
        [("opt.load_state_dict(torch.load('x')['o'])", "load:no-scaler")],
    ),
    (
        {
            "before": (
                "opt.load_state_dict(torch.load('x')['o'])\nclass State:\n    def __init__(self, o, m):"
                "\n        self.o = o\n        self.m = m"
            ),
            "after": "torch.save(State(opt.state_dict(), model.state_dict()), 'x')",
        },
        [],
    ),
    (
        {
            "before": (
                "opt.load_state_dict(torch.load('x')['o'])\nclass State:\n    def __init__(self, o, s):"
                "\n        self.o = o\n        self.s = s"
            ),
            "after": "torch.save({'o': opt.state_dict(), 't': State(1, scaler)}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'model': model}, 'x')",
        },
        [("torch.save({'o': opt.state_dict(), 'model': model}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'amp': amp_state}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'use_amp': use_amp}, 'x')",
        },
        [("torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'use_amp': use_amp}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'config': config}, 'x')",
        },
        [("torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'config': config}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), key: value}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'rest': {**config}}, 'x')",
        },
        [("torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'rest': {**config}}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'scaler': {**config}}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'other': other.state_dict()}, 'x')",
        },
        [
            (
                "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'other': other.state_dict()}, 'x')",
                "save:no-scaler",
            )
        ],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'scaler': other.state_dict()}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'loss_scale': 3}, 'x')",
        },
        [("torch.save({'o': opt.state_dict(), 'm': model.state_dict(), 'loss_scale': 3}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "if scaler is None: torch.save({'o': opt.state_dict(), 'm': model.state_dict()}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": (
                "s = {'o': opt.state_dict(), 'm': model.state_dict()}"
                "\nif scaler is not None: s['s'] = scaler.state_dict()\ntorch.save(s, 'x')"
            ),
        },
        [("opt.load_state_dict(torch.load('x')['o'])", "load:no-scaler")],
    ),
    (
        {"before": "opt.load_state_dict(torch.load('x')['o'])", "after": "torch.save({'o': opt}, 'x')"},
        [("torch.save({'o': opt}, 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save({'o': opt.state_dict()['state']}, 'x')",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "torch.save([{'o': opt.state_dict()}, {'m': model.state_dict()}], 'x')",
        },
        [("torch.save([{'o': opt.state_dict()}, {'m': model.state_dict()}], 'x')", "save:no-scaler")],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": (
                "torch.distributed.checkpoint.save({'o': opt.state_dict(), 'm': model.state_dict()}, checkpoint_id='x')"
            ),
        },
        [
            (
                (
                    "torch.distributed.checkpoint.save({'o': opt.state_dict(), 'm': model.state_dict()},"
                    " checkpoint_id='x')"
                ),
                "save:no-scaler",
            )
        ],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": (
                "threading.Thread(target=torch.save, args=({'o': opt.state_dict(), 'm': model.state_dict()},"
                " 'x')).start()"
            ),
        },
        [
            (
                (
                    "threading.Thread(target=torch.save, args=({'o': opt.state_dict(), 'm': model.state_dict()},"
                    " 'x')).start()"
                ),
                "save:no-scaler",
            )
        ],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "log({'o': opt.state_dict(), 'm': model.state_dict()})",
        },
        [],
    ),
    (
        {
            "before": "opt.load_state_dict(torch.load('x')['o'])",
            "after": "logging.info({'o': opt.state_dict(), 'm': model.state_dict()})",
        },
        [],
    ),
    ({"model": "model = DataParallel(nn.Sequential(nn.Linear(8, 1)))"}, []),
    (
        {"model": "model = DataParallel(nn.Sequential(nn.Linear(8, 1)).half())"},
        [("model = DataParallel(nn.Sequential(nn.Linear(8, 1)).half())", "cast:trained-scaled")],
    ),
    (
        {"before": "def f(g):\n    return g.clamp(-1, 1)\nfor p in model.parameters():\n    p.register_hook(f)"},
        [("def f(g):", "edit@scaled")],
    ),
    (
        {"before": "for p in model.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))"},
        [("p.register_hook(lambda g: g.clamp(-1, 1))", "edit@scaled")],
    ),
    (
        {"before": "for p in model.parameters():\n    p.register_hook(lambda g: torch.clamp(g, -1, 1))"},
        [("p.register_hook(lambda g: torch.clamp(g, -1, 1))", "edit@scaled")],
    ),
    (
        {"before": "for p in model.parameters():\n    p.register_hook(lambda g: torch.nan_to_num(g))"},
        [("p.register_hook(lambda g: torch.nan_to_num(g))", "edit@scaled")],
    ),
    ({"before": "for p in model.parameters():\n    p.register_hook(lambda g: g * 0.5)"}, []),
    ({"before": "for p in model.parameters():\n    p.register_hook(lambda g: g.clamp(-1 * scale, 1 * scale))"}, []),
    ({"before": "for p in model.parameters():\n    p.register_hook(lambda g: other.clamp(-1, 1))"}, []),
    ({"before": "for p in model.parameters():\n    p.register_hook(lambda g: print(g.shape))"}, []),
    (
        {"before": "def f(g):\n    g.clamp_(-1, 1)\nfor p in model.parameters():\n    p.register_hook(f)"},
        [("def f(g):", "edit@scaled")],
    ),
    (
        {
            "before": (
                "def f(g):\n    g = g * 2\n    return torch.clip(g, -1, 1)\nfor p in model.parameters():"
                "\n    p.register_hook(hook=f)"
            )
        },
        [("def f(g):", "edit@scaled")],
    ),
    (
        {
            "before": (
                "def f(p):\n    opt.step()\nfor p in model.parameters():\n    p.register_post_accumulate_grad_hook(f)"
            )
        },
        [("opt.step()", "plain-step@scaled")],
    ),
    (
        {
            "before": (
                "def f(p):\n    p.grad.add_(1)\nfor p in model.parameters():"
                "\n    p.register_post_accumulate_grad_hook(f)"
            )
        },
        [("p.grad.add_(1)", "edit@scaled")],
    ),
    (
        {
            "before": (
                "def f(p):\n    print(p.shape)\nfor p in model.parameters():"
                "\n    p.register_post_accumulate_grad_hook(f)"
            )
        },
        [],
    ),
    (
        {"before": "for p in other.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))"},
        [("p.register_hook(lambda g: g.clamp(-1, 1))", "edit@scaled")],
    ),
    (
        {
            "before": (
                "other = nn.Linear(8, 1); opt2 = torch.optim.SGD(other.parameters(), lr=0.1)"
                "\nfor p in other.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))"
            )
        },
        [],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if not torch.isfinite(n): raise ValueError(n)"
            )
        },
        [("if not torch.isfinite(n): raise ValueError(n)", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if torch.isnan(n): raise ValueError(n)"
            )
        },
        [("if torch.isnan(n): raise ValueError(n)", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if n.isinf(): raise ValueError(n)"
            )
        },
        [("if n.isinf(): raise ValueError(n)", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if torch.isfinite(n): print(n)"
            )
        },
        [],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if torch.isnan(n) and i > 100: raise ValueError(n)"
            )
        },
        [],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; if torch.isnan(n) or torch.isinf(n): raise ValueError(n)"
            )
        },
        [("if torch.isnan(n) or torch.isinf(n): raise ValueError(n)", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; bad = torch.isnan(n); if bad: raise ValueError(n)"
            )
        },
        [("bad = torch.isnan(n)", "raise-nonfinite")],
    ),
    (
        {"mid": "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0); assert math.isfinite(n)"},
        [("assert math.isfinite(n)", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; assert math.isfinite(n.item())"
            )
        },
        [("assert math.isfinite(n.item())", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; assert math.isfinite(float(n))"
            )
        },
        [("assert math.isfinite(float(n))", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; assert math.isfinite(abs(n.cpu().item()))"
            )
        },
        [("assert math.isfinite(abs(n.cpu().item()))", "raise-nonfinite")],
    ),
    (
        {
            "mid": (
                "scaler.unscale_(opt); n = nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
                "; assert math.isfinite(other)"
            )
        },
        [],
    ),
    (
        {"mid": "for p in model.parameters(): assert torch.isfinite(p.grad).all()"},
        [("for p in model.parameters(): assert torch.isfinite(p.grad).all()", "raise-nonfinite")],
    ),
    (
        {"mid": "for p in model.parameters(): assert p.grad is None or torch.isfinite(p.grad).all()"},
        [("for p in model.parameters(): assert p.grad is None or torch.isfinite(p.grad).all()", "raise-nonfinite")],
    ),
    (
        {"mid": "for p in model.parameters(): assert not p.requires_grad or torch.isfinite(p.grad).all()"},
        [
            (
                "for p in model.parameters(): assert not p.requires_grad or torch.isfinite(p.grad).all()",
                "raise-nonfinite",
            )
        ],
    ),
    ({"mid": "if torch.isnan(loss): raise ValueError(loss)"}, []),
    ({"mid": "assert torch.isfinite(loss)"}, []),
    ({"fwd": "with torch.autograd.detect_anomaly(): loss = F.mse_loss(model(x), y)"}, []),
    (
        {"back": "with torch.autograd.detect_anomaly(): scaler.scale(loss).backward()"},
        [("with torch.autograd.detect_anomaly(): scaler.scale(loss).backward()", "anomaly-nonfinite")],
    ),
    ({"back": "with torch.autograd.detect_anomaly(check_nan=False): scaler.scale(loss).backward()"}, []),
    ({"back": "with torch.autograd.detect_anomaly(False): scaler.scale(loss).backward()"}, []),
    (
        {"before": "torch.autograd.set_detect_anomaly(True)"},
        [("torch.autograd.set_detect_anomaly(True)", "anomaly-nonfinite")],
    ),
    ({"before": "torch.autograd.set_detect_anomaly(False)"}, []),
    ({"before": "torch.autograd.set_detect_anomaly(True, False)"}, []),
    ({"before": "torch.autograd.set_detect_anomaly(mode=True, check_nan=False)"}, []),
    ({"before": "torch.autograd.set_detect_anomaly(debug)"}, []),
    ({"before": "if debug: torch.autograd.set_detect_anomaly(True)"}, []),
    (
        {"back": "with torch.autograd.set_detect_anomaly(True): scaler.scale(loss).backward()"},
        [("with torch.autograd.set_detect_anomaly(True): scaler.scale(loss).backward()", "anomaly-nonfinite")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss): continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if not torch.isfinite(loss): continue\nscaler.scale(loss).backward()",
        },
        [("if not torch.isfinite(loss): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isfinite(loss):\n    scaler.scale(loss).backward()",
        },
        [("if torch.isfinite(loss):", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss):\n    pass\nelse:\n    scaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss):", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss):\n    print(loss)\nelse:\n    scaler.scale(loss).backward()",
        },
        [],
    ),
    (
        {"model": "model = DDP(nn.Linear(8, 1))", "back": "if loss.isnan(): continue\nscaler.scale(loss).backward()"},
        [("if loss.isnan(): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if loss.isnan().any(): continue\nscaler.scale(loss).backward()",
        },
        [("if loss.isnan().any(): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss).item(): continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss).item(): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if bool(torch.isnan(loss)): continue\nscaler.scale(loss).backward()",
        },
        [("if bool(torch.isnan(loss)): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if math.isnan(loss.item()): continue\nscaler.scale(loss).backward()",
        },
        [("if math.isnan(loss.item()): continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss).sum() > 0: continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss).sum() > 0: continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "bad = torch.isnan(loss)\nif bad: continue\nscaler.scale(loss).backward()",
        },
        [("bad = torch.isnan(loss)", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss) and rank == 0: continue\nscaler.scale(loss).backward()",
        },
        [],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss) and args.skip: continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss) and args.skip: continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss) or args.skip: continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss) or args.skip: continue", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isfinite(loss) or args.keep:\n    scaler.scale(loss).backward()",
        },
        [],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": (
                "bad = torch.isnan(loss)\ntorch.distributed.all_reduce(bad)\nif bad: continue"
                "\nscaler.scale(loss).backward()"
            ),
        },
        [],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss): print(loss)\nscaler.scale(loss).backward()",
        },
        [],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(other): continue\nscaler.scale(loss).backward()",
        },
        [],
    ),
    ({"model": "model = DDP(nn.Linear(8, 1))", "back": "if loss > 100: continue\nscaler.scale(loss).backward()"}, []),
    (
        {"model": "model = DDP(nn.Linear(8, 1))", "back": "if torch.isnan(loss): break\nscaler.scale(loss).backward()"},
        [("if torch.isnan(loss): break", "left-out@rank")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "scaler.scale(loss).backward()\nif torch.isnan(loss): continue",
        },
        [],
    ),
    ({"back": "if torch.isnan(loss): continue\nscaler.scale(loss).backward()"}, []),
    (
        {"model": "model = DDP(nn.Linear(8, 1))", "back": "with model.no_sync():\n    scaler.scale(loss).backward()"},
        [("scaler.scale(loss).backward()", "step@apart")],
    ),
    (
        {
            "model": "model = DDP(nn.Linear(8, 1))",
            "back": "if torch.isnan(loss):\n    opt.zero_grad()\n    continue\nscaler.scale(loss).backward()",
        },
        [("if torch.isnan(loss):", "left-out@rank")],
    ),
]
#: The same for files that do not import the names that shards need.
SHARDS: list[tuple[dict[str, str], list[tuple[str, str]]]] = [
    ({"model": "model = FSDP(nn.Linear(8, 1))"}, [("scaler.step(opt)", "step@shards-plain")]),
    (
        {"model": "model = nn.Linear(8, 1)\nif wrap:\n    model = FSDP(model)"},
        [("scaler.step(opt)", "step@shards-plain")],
    ),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "mid": "scaler.unscale_(opt); nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        },
        [
            ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "clip@shards"),
            ("scaler.step(opt)", "step@shards-plain"),
        ],
    ),
    (
        {
            "model": "model = FSDP(nn.Linear(8, 1))",
            "mid": "scaler.unscale_(opt); nn.utils.clip_grad_value_(model.parameters(), 1.0)",
        },
        [("scaler.step(opt)", "step@shards-plain")],
    ),
    ({"model": "model = FSDP(nn.Linear(8, 1), sharding_strategy=ShardingStrategy.NO_SHARD)"}, []),
    ({"model": "model = FSDP(nn.Linear(8, 1), None, ShardingStrategy.NO_SHARD)"}, []),
    (
        {"model": "model = FSDP(nn.Linear(8, 1), None, ShardingStrategy.FULL_SHARD)"},
        [("scaler.step(opt)", "step@shards-plain")],
    ),
]


@in_groups((f"{number} {case[0]}", case) for number, case in enumerate(LOOPS))
def test_a_loop_with_another_part(cases: dict[str, Case]) -> None:
    check_each(cases, check_loop)


def check_loop(name: str, case: Case) -> None:
    parts, expected = case
    assert found(IMPORTS + SHARDED + program(parts)) == expected


@pytest.mark.parametrize(("parts", "expected"), SHARDS)
def test_a_loop_over_shards(parts: dict[str, str], expected: list[tuple[str, str]]) -> None:
    assert found(IMPORTS + program(parts)) == expected
