# the model without gradients is another one

import torch
from torch import nn

teacher, student = nn.Linear(16, 1), nn.Linear(16, 1)
x = torch.randn(64, 16)
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = teacher(x)
    loss = nn.functional.mse_loss(student(x), target)
loss.backward()
