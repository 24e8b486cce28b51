# In a region that is switched off nothing makes the tensor low

import torch
from torch import nn

model = nn.Linear(3, 3)
x = torch.randn(8, 3)

with torch.autocast("cuda", dtype=torch.float16):
    y = model(x)
    with torch.autocast("cuda", enabled=False):
        u, s, v = torch.pca_lowrank(y.float(), 2)
        q, r = torch.linalg.qr(x.T @ x)
