# gradients are logged after unscale_

import torch

def train_step(model, optimizer, scaler, loss, writer, step):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for name, p in model.named_parameters():
        writer.add_histogram(name, p.grad, step)
    scaler.step(optimizer)
    scaler.update()
