# the loss is reported too, which waits for the device anyway

import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"{i}: {loss:.4f} at the scale {scaler.get_scale()}")
