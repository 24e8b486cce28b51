# a frozen part, and an evaluation

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
frozen, head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False), nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = checkpoint(frozen, torch.randn(4, 8), use_reentrant=True)
        loss = head(hidden).float().square().mean()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    checkpoint(head, torch.randn(4, 8), use_reentrant=True)
