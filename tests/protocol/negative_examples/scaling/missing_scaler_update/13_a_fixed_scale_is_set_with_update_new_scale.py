# a fixed scale is set with update(new_scale)

import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)
