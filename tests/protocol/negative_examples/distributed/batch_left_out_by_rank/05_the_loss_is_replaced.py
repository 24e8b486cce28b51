# backward runs on every rank, with a loss of zero in the place of the bad one

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
        if torch.isnan(loss):
            loss = torch.nan_to_num(loss) * 0.0
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
