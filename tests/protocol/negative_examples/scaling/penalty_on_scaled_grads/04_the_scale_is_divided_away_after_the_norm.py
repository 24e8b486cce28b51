# the scale is divided away after the norm

import torch

def train_step(model, optimizer, scaler, loss, x):
    optimizer.zero_grad()
    scaled = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)[0]
    grad = scaled / scaler.get_scale()
    total = loss + (grad.norm(2) - 1) ** 2
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
