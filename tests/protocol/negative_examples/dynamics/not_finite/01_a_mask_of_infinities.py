# a causal mask fills scores with -inf, and the softmax over each row stays finite

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 48)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
later = torch.ones(6, 6, dtype=torch.bool).triu(1)

for _ in range(3):
    x = torch.randn(4, 6, 16)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, k, v = model(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1)).masked_fill(later, float("-inf"))
        loss = (scores.softmax(dim=-1) @ v).float().square().mean()
    loss.backward()
    optimizer.step()
