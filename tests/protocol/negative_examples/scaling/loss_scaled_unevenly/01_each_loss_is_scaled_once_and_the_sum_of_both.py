# each loss is scaled once, and the sum of both runs backward

import torch
from torch import nn

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
            auxiliary = nn.functional.l1_loss(output, y)
        (scaler.scale(loss) + scaler.scale(auxiliary)).backward()
        scaler.step(optimizer)
        scaler.update()
