# two different losses of one batch add up

import torch

def train(model, loader, optimizer, loss_fn, penalty):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss, extra = loss_fn(model(x), y), penalty(model)
        scaler.scale(loss).backward()
        scaler.scale(extra).backward()
        scaler.step(optimizer)
        scaler.update()
