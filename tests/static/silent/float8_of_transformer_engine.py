"""TransformerEngine in float8 and in MXFP8: backward runs outside of its context, which may stand in bfloat16 autocast."""

import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Format, MXFP8BlockScaling, NVFP4BlockScaling

RECIPES = {
    "delayed": DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=16, amax_compute_algo="max"),
    "mxfp8": MXFP8BlockScaling(fp8_format=Format.E4M3),
    "nvfp4": NVFP4BlockScaling(),
}


def train(loader, loss_fn, recipe):
    model = te.Linear(768, 768, params_dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16), te.fp8_autocast(enabled=True, fp8_recipe=RECIPES[recipe]):
            out = model(x)
        loss = loss_fn(out.float(), y)
        loss.backward()
        optimizer.step()


def train_with_autocast(loader, loss_fn, recipe):
    model = te.TransformerLayer(768, 3072, 12, params_dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x, y in loader:
        optimizer.zero_grad()
        with te.autocast(enabled=True, recipe=RECIPES[recipe]):
            out = model(x)
        loss_fn(out, y).backward()
        optimizer.step()
