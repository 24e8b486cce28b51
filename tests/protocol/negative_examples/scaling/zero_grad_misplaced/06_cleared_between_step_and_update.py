# cleared between step and update

import torch

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=False)
        scaler.update()
