# the weights change in the region, so that nothing may be kept

import torch
from torch import nn

def adapt(model, tasks, optimizer, loss_fn):
    for x, y in tasks:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            for _ in range(4):
                x = model(x)
                model.load_state_dict(torch.load("fast.pt"))
            loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
