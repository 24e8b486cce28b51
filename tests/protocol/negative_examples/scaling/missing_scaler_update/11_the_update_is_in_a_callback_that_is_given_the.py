# the update is in a callback that is given the scaler

import torch

def train(model, loader, optimizer, loss_fn, callbacks):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        callbacks.after_step(scaler)
