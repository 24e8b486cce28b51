# the scale is only read between step and update

import torch

def train_step(optimizer, scheduler, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
