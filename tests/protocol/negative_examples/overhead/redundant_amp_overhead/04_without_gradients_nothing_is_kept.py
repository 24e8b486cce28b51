# without gradients nothing is kept

import torch
from torch import nn

def train(model, teacher, batches, optimizer, loss_fn):
    for x, _ in batches:
        with torch.no_grad():
            for _ in range(4):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    x = teacher(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
