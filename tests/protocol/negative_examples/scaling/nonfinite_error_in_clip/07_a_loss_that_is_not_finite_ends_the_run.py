# a loss that is not finite ends the run: no smaller scale makes it finite

import math
import sys

import torch


def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        if not math.isfinite(loss.item()):
            print("loss is", loss.item())
            sys.exit(1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
