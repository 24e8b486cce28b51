# the scale is divided away before the loss is scaled again

import torch
from torch import nn

def train(model, loader, optimizer, scaler, log):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            scaled = scaler.scale(nn.functional.mse_loss(model(x), y))
        loss = scaled / scaler.get_scale()
        log(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
