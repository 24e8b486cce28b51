# the window is one micro-batch long

import torch

K = 1

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if (i + 1) % K == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
