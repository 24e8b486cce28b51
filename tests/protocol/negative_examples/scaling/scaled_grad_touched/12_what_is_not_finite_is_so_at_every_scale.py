# what is not finite is so at every scale

import torch


def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for name, p in model.named_parameters():
        if torch.isnan(p.grad).any() or torch.isinf(p.grad).any() or not p.grad.isfinite().all():
            print("overflow in", name)
    scaler.step(optimizer)
    scaler.update()
