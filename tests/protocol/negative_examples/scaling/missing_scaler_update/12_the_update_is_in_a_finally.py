# the update is in a finally

import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    try:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    finally:
        scaler.update()
