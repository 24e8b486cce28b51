# all ranks leave the batch out together

import torch
import torch.distributed as dist
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
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad > 0:
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
