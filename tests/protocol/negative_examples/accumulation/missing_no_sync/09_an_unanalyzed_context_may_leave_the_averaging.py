# an unanalyzed context may leave out the averaging

from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

def train(net, loader, window):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with window.part(model, i):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / window.size
            scaler.scale(loss).backward()
        if (i + 1) % window.size == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
