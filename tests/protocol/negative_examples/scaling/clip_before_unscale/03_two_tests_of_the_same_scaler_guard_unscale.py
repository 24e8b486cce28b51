# two tests of the same scaler guard unscale_ and step; the clip between them serves both branches

import contextlib
import torch

def train(model, loader, optimizer, loss_fn, fp16):
    scaler = torch.amp.GradScaler("cuda") if fp16 else None
    context = torch.autocast("cuda", dtype=torch.float16) if fp16 else contextlib.nullcontext()
    for x, y in loader:
        optimizer.zero_grad()
        with context:
            loss = loss_fn(model(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
