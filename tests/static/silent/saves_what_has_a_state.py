"""A scaler, or whatever stands for one, is saved by its state if it has any."""

import torch


def train(model, optimizer, loader, loss_fn, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save(optimizer, scaler)


def save(optimizer, loss_scaler):
    state = {
        "optimizer": optimizer.state_dict(),
        "scaler": loss_scaler.state_dict() if hasattr(loss_scaler, "state_dict") else loss_scaler,
    }
    torch.save(state, "last.pt")
