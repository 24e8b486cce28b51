# non-finite gradients are logged, and the scaler skips the step

import torch


def train(model, loader, optimizer, loss_fn, log):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for name, p in model.named_parameters():
            if p.grad is not None and not torch.isfinite(p.grad).all():
                log(name)
        scaler.step(optimizer)
        scaler.update()
