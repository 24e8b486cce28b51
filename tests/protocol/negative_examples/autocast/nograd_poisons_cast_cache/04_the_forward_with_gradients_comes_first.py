# the forward with gradients comes first

import torch
from torch import nn

model = nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    output = model(x)
    with torch.no_grad():
        target = model(x + 0.1)
    loss = nn.functional.mse_loss(output, target)
loss.backward()
