# a scaler on the CPU copies nothing

import torch
from torch import nn

def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cpu")
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(scaler.get_scale())
