# the loss is normalised to a nominal batch size

import torch

def train(model, loader, optimizer, loss_fn, k, nominal=64):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) * x.shape[0] / nominal
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
