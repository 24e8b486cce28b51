# constant weights of the terms are no scales

import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y) + 512.0 * nn.functional.l1_loss(output, y)
        total = 0.25 * scaler.scale(loss) + 0.75 * scaler.scale(nn.functional.huber_loss(output.float(), y))
        total.backward()
        scaler.step(optimizer)
        scaler.update()
