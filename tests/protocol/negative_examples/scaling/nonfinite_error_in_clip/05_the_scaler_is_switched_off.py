# the scaler is switched off

import torch

def train_step(model, optimizer, loss):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
