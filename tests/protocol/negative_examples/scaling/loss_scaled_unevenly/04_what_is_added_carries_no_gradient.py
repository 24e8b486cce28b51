# what is added carries no gradient

import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            offset = nn.functional.l1_loss(output, y).detach()
        (scaler.scale(loss) + offset).backward()
        scaler.step(optimizer)
        scaler.update()
