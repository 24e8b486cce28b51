# the cache is cleared in between

import torch
from torch import nn

model = nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = model(x + 0.1)
    torch.clear_autocast_cache()
    loss = nn.functional.mse_loss(model(x), target)
loss.backward()
