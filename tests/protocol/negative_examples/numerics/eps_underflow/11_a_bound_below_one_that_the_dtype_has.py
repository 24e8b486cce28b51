# a bound below one that the dtype has, or of what is float32

import torch
from torch import nn

model = nn.Linear(8, 4)

with torch.autocast("cuda", dtype=torch.float16):
    logits = model(torch.randn(2, 8))
    p = logits.sigmoid().clamp(1e-3, 1 - 1e-3)
    q = logits.float().sigmoid().clamp(1e-4, 1 - 1e-4)
    entropy = -(p * p.log() + (1 - p) * (1 - p).log()) - q.log()
