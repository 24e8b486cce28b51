# a batch that adds nothing to the loss is skipped

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for index in range(3):
    x, y = torch.randn(8, 4), torch.full((8, 1), float("nan") if index == 1 else 1.0)
    known = ~torch.isnan(y[:, 0])
    if not known.any():
        continue
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x[known]), y[known])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
