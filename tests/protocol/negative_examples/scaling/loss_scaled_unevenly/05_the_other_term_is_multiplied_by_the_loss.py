# the other term is multiplied by the loss scale by hand

import torch
from torch import nn

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(x)
            loss = nn.functional.mse_loss(output, y)
        total = scaler.scale(loss) + scaler.get_scale() * nn.functional.l1_loss(output.float(), y)
        total.backward()
        scaler.step(optimizer)
        scaler.update()
