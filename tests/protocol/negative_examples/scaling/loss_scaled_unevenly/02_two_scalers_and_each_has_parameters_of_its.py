# two scalers, and each has parameters of its own

import torch
from torch import nn

first, second = nn.Linear(8, 1), nn.Linear(8, 1)
opt_first = torch.optim.SGD(first.parameters(), lr=1e-3)
opt_second = torch.optim.SGD(second.parameters(), lr=1e-3)
scaler_first = torch.amp.GradScaler("cpu")
scaler_second = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for x in torch.randn(4, 16, 8):
    opt_first.zero_grad()
    opt_second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        a, b = first(x).float().square().mean(), second(x).float().square().mean()
    (scaler_first.scale(a) + scaler_second.scale(b)).backward()
    scaler_first.step(opt_first)
    scaler_second.step(opt_second)
    scaler_first.update()
    scaler_second.update()
