# only the ratio of two scaled norms is used

import torch

def train_step(layer, optimizer, scaler, reconstruction, adversarial):
    optimizer.zero_grad()
    a = torch.autograd.grad(scaler.scale(reconstruction), layer.weight, retain_graph=True)[0]
    b = torch.autograd.grad(scaler.scale(adversarial), layer.weight, retain_graph=True)[0]
    weight = (a.norm() / b.norm()).detach()
    loss = reconstruction + weight * adversarial
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
