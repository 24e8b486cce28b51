"""A loss among what a model gives is divided where it lies, and read there again."""

import torch


def train(model, loader, optimizer, scaler, count):
    for i, batch in enumerate(loader):
        with torch.autocast("cuda"):
            output = model(**batch)
        output["loss"] /= count
        scaler.scale(output["loss"]).backward()
        if (i + 1) % count == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
