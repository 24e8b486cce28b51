# switched off for good

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 16), torch.randn(32, 1)
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(x), y)

scaler = torch.amp.GradScaler("cuda", enabled=False)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
