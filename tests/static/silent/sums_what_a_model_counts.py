# No AMP508: what a model gives by a name, which may be a count or a loss, is not what autocast casts.
import torch


def epoch(model: torch.nn.Module, loader, optimizer, scaler):
    sums = {"right": 0, "distance": 0}
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss, seen = model(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        sums["right"] += seen["right"]
        sums["distance"] += seen["distance"].detach()
    return sums
