# What a last, incomplete window has left is cleared before the next epoch: that is no clearing inside a window.
import torch


def train_one_epoch(model, loader, optimizer, scaler, k):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        step = i // k
        if step >= len(loader) // k:
            continue
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean() / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def main(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(10):
        train_one_epoch(model, loader, optimizer, scaler, k)
