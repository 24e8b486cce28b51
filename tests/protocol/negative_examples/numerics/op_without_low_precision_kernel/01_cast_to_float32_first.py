# The tensor is cast to float32 first

import torch
from torch import nn

model = nn.Linear(3, 3)

with torch.autocast("cuda", dtype=torch.float16):
    covariance = model(torch.randn(8, 3)).T @ torch.randn(8, 3)
    u, s, v = torch.svd(covariance.float())
    spectrum = torch.fft.rfft(model(torch.randn(192, 3)).to(torch.float32), dim=0)
