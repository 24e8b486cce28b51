# the queries are scaled first

import torch
from torch import nn

qkv = nn.Linear(64, 192)
x = torch.randn(1, 4, 64)

with torch.autocast("cuda", dtype=torch.float16):
    q, k, v = qkv(x).chunk(3, dim=-1)
    scores = (q * 0.125) @ k.transpose(-2, -1)
    attended = nn.functional.scaled_dot_product_attention(q, k, v)
