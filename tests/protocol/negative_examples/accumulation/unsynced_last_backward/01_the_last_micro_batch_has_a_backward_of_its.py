# the last micro-batch has a backward of its own outside

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

def train(net, loader, k):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        if (i + 1) % k:
            with model.no_sync(), torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / k
                scaled = scaler.scale(loss)
            with model.no_sync():
                scaled.backward()
            continue
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
