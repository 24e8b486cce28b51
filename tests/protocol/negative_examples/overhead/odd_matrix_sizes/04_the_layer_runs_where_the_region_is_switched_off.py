# the layer runs where the region is switched off

import torch
from torch import nn

model = nn.Linear(4096, 1001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=False):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
