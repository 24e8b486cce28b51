# the scale is read between step and update

import torch

def train(model, loader, optimizer, scheduler, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale_before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale_before:
            scheduler.step()
