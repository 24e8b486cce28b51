# non-finite values are replaced before the step

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(32, 16), torch.randn(32, 1)
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(x), y)

scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
model.weight.grad.div_(0.0).nan_to_num_(0.0, 0.0, 0.0)
scaler.step(optimizer)
scaler.update()
