# scores that are computed in float32

import torch
from torch import nn

qkv = nn.Linear(64, 192)
x = torch.randn(1, 4, 64)

with torch.autocast("cuda", dtype=torch.float16):
    q, k, v = qkv(x).chunk(3, dim=-1)
    with torch.autocast("cuda", enabled=False):
        scores = (q.float() @ k.float().transpose(-2, -1)) * 0.125
