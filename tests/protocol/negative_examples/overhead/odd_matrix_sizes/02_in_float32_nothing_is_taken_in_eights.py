# in float32 nothing is taken in eights

import torch
from torch import nn

model = nn.Linear(4096, 1001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
