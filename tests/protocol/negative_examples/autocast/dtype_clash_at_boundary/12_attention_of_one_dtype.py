# attention of another package whose query and key are cast back after their norm, and torch's own, which autocast casts

import torch
import xformers.ops as xops
from torch import nn
from torch.nn import functional as F

qkv, norm = nn.Linear(8, 24), nn.LayerNorm(8)

with torch.autocast("cuda", dtype=torch.float16):
    q, k, v = qkv(torch.randn(2, 4, 8)).chunk(3, dim=-1)
    plain = xops.memory_efficient_attention(q, k, v)
    normed = xops.memory_efficient_attention(norm(q).to(v.dtype), norm(k).to(v.dtype), v)
    own = F.scaled_dot_product_attention(norm(q), norm(k), v)
