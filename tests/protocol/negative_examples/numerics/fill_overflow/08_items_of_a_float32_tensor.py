# items of a float32 tensor, and of an array of NumPy

import numpy as np
import torch
from torch import nn

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x, mask in loader:
        costs = np.zeros((4, 4))
        costs[0, 1] = 1e9
        bias = torch.zeros(4, 4)
        bias[mask] = -1e9
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (model(x) @ x + bias).softmax(-1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
