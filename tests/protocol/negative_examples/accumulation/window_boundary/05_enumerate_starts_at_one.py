# enumerate starts at one

import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, start=1):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if i % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
