# autograd.grad of an unscaled loss leaves .grad alone

import torch

def train_step(model, optimizer, scaler, loss, saliency_of, x):
    optimizer.zero_grad()
    saliency = torch.autograd.grad(loss, x, retain_graph=True)[0]
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return saliency_of(saliency)
