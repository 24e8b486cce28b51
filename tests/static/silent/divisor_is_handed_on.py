"""The number of micro-batches is handed to the function that makes the loss, which divides by it at some length."""

import torch


def train(model, optimizer, loader, count, scaler):
    for i, batch in enumerate(loader):
        with torch.autocast("cuda"):
            report = model(batch)
        loss = extract_loss(report, count)
        scaler.scale(loss).backward()
        if (i + 1) % count == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def extract_loss(report, divisor):
    losses = report.losses
    assert len(losses) != 0, "the model gave no loss"
    print(len(losses))
    print(sorted(losses))
    print(report.name)
    print(report.size)
    for key, value in losses.items():
        losses[key] = value.mean() / divisor
    return sum(loss.mean() for loss in losses.values())
