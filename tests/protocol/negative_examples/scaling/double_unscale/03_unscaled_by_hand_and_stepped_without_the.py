# unscaled by hand and stepped without the scaler

import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    found_inf = False
    for p in model.parameters():
        p.grad.div_(scale)
        found_inf = found_inf or not bool(torch.isfinite(p.grad).all())
    if not found_inf:
        optimizer.step()
    scaler.update(scale * 0.5 if found_inf else scale)
