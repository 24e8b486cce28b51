# devices that are chosen at run time, for the scaler and for autocast alike

import torch


def train(model, optimizer, loader, loss_fn):
    device = "cuda" if torch.cuda.is_available() else "mps"
    scaler = torch.amp.GradScaler(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
