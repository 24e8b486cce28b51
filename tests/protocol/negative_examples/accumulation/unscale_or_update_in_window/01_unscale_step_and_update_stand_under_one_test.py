# unscale_, step and update stand under one test

import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
            loss = loss / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
