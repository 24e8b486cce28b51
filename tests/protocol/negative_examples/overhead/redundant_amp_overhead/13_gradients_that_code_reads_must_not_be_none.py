# gradients that code reads must not be None

import torch
from torch import nn

def train(model, loader, optimizer, loss_fn, total):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for p in model.parameters():
            total.add_(p.grad.abs().sum())
        scaler.step(optimizer)
        scaler.update()
