# the region around is what keeps the weights

import torch
from torch import nn

def train(cell, batches, optimizer, loss_fn):
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for t in range(16):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    x = cell(x)
            loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
