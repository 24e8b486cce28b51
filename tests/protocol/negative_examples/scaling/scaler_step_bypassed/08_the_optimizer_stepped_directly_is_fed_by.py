# the optimizer stepped directly is fed by another, unscaled loss

import torch

def train_step(model, centers, optimizer, center_optimizer, scaler, loss, center_loss):
    optimizer.zero_grad()
    center_optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    center_loss(centers).backward()
    center_optimizer.step()
