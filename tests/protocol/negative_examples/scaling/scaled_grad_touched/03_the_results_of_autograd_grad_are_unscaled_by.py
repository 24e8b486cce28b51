# the results of autograd.grad are unscaled by hand before they are used

import torch

def train_step(model, optimizer, scaler, loss_fn, x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_fn(model(x), y)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    grads = [g * inv_scale for g in scaled]
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss + sum(g.pow(2).sum() for g in grads).sqrt()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
