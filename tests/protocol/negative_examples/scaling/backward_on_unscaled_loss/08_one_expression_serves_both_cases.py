# one expression serves both cases

import torch

def train_step(model, optimizer, scaler, loss):
    optimizer.zero_grad()
    (scaler.scale(loss) if scaler is not None else loss).backward()
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
