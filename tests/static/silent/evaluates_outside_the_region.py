# No AMP104: under no_grad nothing is scaled and nothing runs backward: the loss is only shown.
import torch
from torch import nn


def train(model, loader, optimizer, criterion):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.cuda.amp.autocast():
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@torch.no_grad()
def validate(model, loader):
    criterion = nn.CrossEntropyLoss()
    total = 0.0
    for x, y in loader:
        with torch.cuda.amp.autocast():
            output = model(x)
        loss = criterion(output, y)
        total += loss.item()
    return total
