# at least one of several guarded steps runs

import torch

def train(model, loader, optimizers, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                scaler.step(optimizer)
        scaler.update()
