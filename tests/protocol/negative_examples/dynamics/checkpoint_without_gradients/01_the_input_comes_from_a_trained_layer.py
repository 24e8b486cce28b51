# the input comes from a trained layer

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
stem, body, head = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*stem.parameters(), *body.parameters(), *head.parameters()], lr=0.1)

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = checkpoint(body, stem(torch.randn(4, 8)), use_reentrant=True)
        loss = head(hidden).float().square().mean()
    loss.backward()
    optimizer.step()
