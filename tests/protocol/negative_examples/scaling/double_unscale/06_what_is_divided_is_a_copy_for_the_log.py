# what is divided is a copy for the log

import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norms = [p.grad.norm() / scaler.get_scale() for p in model.parameters()]
    log(torch.stack(norms).norm())
    scaler.step(optimizer)
    scaler.update()
