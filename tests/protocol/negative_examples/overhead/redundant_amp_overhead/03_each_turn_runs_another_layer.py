# each turn runs another layer

import torch
from torch import nn

def train(layers, batches, optimizer, loss_fn):
    for x, y in batches:
        for layer in layers:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                x = layer(x)
        loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
