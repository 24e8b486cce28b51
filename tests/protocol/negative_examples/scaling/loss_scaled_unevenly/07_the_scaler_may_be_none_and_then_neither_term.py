# the scaler may be None, and then neither term is scaled

import torch
from torch import nn

def train(model, loader, optimizer, scaler, use_amp):
    scaler = scaler if use_amp else None
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            auxiliary = nn.functional.l1_loss(output, y)
        if scaler is not None:
            loss, auxiliary = scaler.scale(loss), scaler.scale(auxiliary)
        (loss + auxiliary).backward()
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
