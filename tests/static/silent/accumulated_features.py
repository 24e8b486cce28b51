"""Features of all parts of a batch first, then each part again with gradients; and a look at data before training."""

import torch
import torch.nn.functional as F
from torch import nn


def in_parts(loader, parts):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        for part in batch.chunk(parts):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(part), part) / parts
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def looked_at(loader, held, count):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        for part in held:
            with torch.autocast("cuda", dtype=torch.float16):
                count(model(part).detach())
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(batch), batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
