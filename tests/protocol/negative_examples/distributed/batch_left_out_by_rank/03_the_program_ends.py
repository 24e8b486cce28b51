# the program ends, and the launcher ends the other ranks

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(net, loader):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            sys.exit(1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
