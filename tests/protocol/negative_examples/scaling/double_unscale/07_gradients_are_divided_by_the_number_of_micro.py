# gradients are divided by the number of micro-batches, not by the scale

import torch

def train_step(model, optimizer, scaler, losses):
    optimizer.zero_grad()
    for loss in losses:
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(len(losses))
    scaler.step(optimizer)
    scaler.update()
