# bfloat16 has the range of float32

import torch
from torch import nn

qkv = nn.Linear(64, 192)
x = torch.randn(1, 4, 64)

with torch.autocast("cuda", dtype=torch.bfloat16):
    q, k, v = qkv(x).chunk(3, dim=-1)
    scores = (q @ k.transpose(-2, -1)) * 0.125
