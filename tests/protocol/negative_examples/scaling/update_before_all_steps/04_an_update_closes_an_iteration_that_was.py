# an update closes an iteration that was skipped after unscale_

import torch

def train(model, loader, optimizer, loss_fn, limit):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm > limit:
            optimizer.zero_grad()
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
