# what is read is divided by the scale

import torch

def train_step(model, optimizer, scaler, loss, log):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for name, p in model.named_parameters():
        log(name, p.grad.norm() / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
