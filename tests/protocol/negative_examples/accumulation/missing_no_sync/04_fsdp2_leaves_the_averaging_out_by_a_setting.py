# FSDP2 leaves the averaging out by a setting of the module

import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

def train(net, loader, k):
    model = fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        model.set_requires_gradient_sync((i + 1) % k == 0)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
