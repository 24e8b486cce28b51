# torch.autograd.backward takes the scaled loss

import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    torch.autograd.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()
