# i % k == 0 decides about the log, not about the step

import torch

def train(model, loader, optimizer, loss_fn, log, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % k == 0:
            log(loss.item())
