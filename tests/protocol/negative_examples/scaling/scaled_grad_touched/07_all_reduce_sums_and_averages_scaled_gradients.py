# all_reduce sums and averages scaled gradients of one scale

import torch
import torch.distributed as dist

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    scaler.step(optimizer)
    scaler.update()
