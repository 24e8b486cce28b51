# The CPU's autocast has most of them on its list of float32 ops

import torch
from torch import nn

model = nn.Linear(3, 3)

with torch.autocast("cpu", dtype=torch.bfloat16):
    covariance = model(torch.randn(8, 3)).T @ torch.randn(8, 3)
    u, s, v = torch.svd(covariance)
    spectrum = torch.fft.rfft(model(torch.randn(192, 3)), dim=0)
    u, s, v = torch.pca_lowrank(torch.randn(8, 3), 2)
