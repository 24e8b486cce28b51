# dropping gradients is the same at every scale

import torch

def train_step(model, frozen, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in frozen.parameters():
        if p.grad is not None:
            p.grad.zero_()
    for p in model.embedding.parameters():
        p.grad = None
    scaler.step(optimizer)
    scaler.update()
