# cleared at the first micro-batch of each window

import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if i % k == 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
