# What no matmul has made, and what autocast computes in float32, stays in float32 in a region

import torch
from torch import nn

model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
x = torch.randn(8, 3)

with torch.autocast("cuda", dtype=torch.float16):
    inverse = torch.linalg.inv(torch.eye(3) + torch.diag(x[0]))
    q, r = torch.linalg.qr(model(x))
    spectrum = torch.fft.fft(x)
