# a sum of scaled losses is a scaled loss

import torch

def train_step(model, optimizer, scaler, loss, auxiliary):
    optimizer.zero_grad()
    total = scaler.scale(loss) + scaler.scale(auxiliary)
    total.backward()
    scaler.step(optimizer)
    scaler.update()
