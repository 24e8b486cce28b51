# autograd.grad of an unscaled loss gives true gradients

import torch

def train_step(model, optimizer, scaler, loss_fn, x, y):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    loss = loss + sum(g.pow(2).sum() for g in grads)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
