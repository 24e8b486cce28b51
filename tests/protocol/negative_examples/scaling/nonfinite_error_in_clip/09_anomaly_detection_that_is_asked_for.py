# anomaly detection that is asked for, or that looks for no NaN

import torch


def train(model, loader, optimizer, loss_fn, debug):
    torch.autograd.set_detect_anomaly(debug)
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    torch.autograd.set_detect_anomaly(False)
    if debug:
        torch.autograd.set_detect_anomaly(True)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
