# the error is caught, and the iteration still ends with update()

import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    try:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
    except RuntimeError:
        optimizer.zero_grad()
    scaler.update()
