# the statistic is divided by the scale after it is computed

import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    total = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    total = total / scaler.get_scale()
    log("grad_norm", total)
    scaler.step(optimizer)
    scaler.update()
