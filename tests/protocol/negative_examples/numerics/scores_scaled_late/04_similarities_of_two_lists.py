# similarities of two lists of normalised features, divided by a temperature, are no attention

import torch
from torch import nn
from torch.nn import functional as F

encoder = nn.Linear(64, 32)

with torch.autocast("cuda", dtype=torch.float16):
    a, b = (F.normalize(encoder(torch.randn(8, 64)), dim=-1) for _ in range(2))
    logits = a @ b.T / 0.07
    loss = F.cross_entropy(logits, torch.arange(8))
