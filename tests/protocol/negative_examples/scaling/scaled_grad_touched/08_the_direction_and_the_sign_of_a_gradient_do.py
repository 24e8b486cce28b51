# the direction and the sign of a gradient do not depend on the scale

import torch

def train_step(model, optimizer, scaler, loss, history):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in model.parameters():
        history.append(torch.sign(p.grad))
        history.append(p.grad / p.grad.norm())
    scaler.step(optimizer)
    scaler.update()
