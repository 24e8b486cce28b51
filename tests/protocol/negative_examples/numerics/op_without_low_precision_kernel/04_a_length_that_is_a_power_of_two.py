# cuFFT transforms float16 tensors whose lengths are powers of two, to which they may be padded

import torch
from torch import nn

model = nn.Linear(3, 3)

with torch.autocast("cuda", dtype=torch.float16):
    spectrum = torch.fft.rfft(model(torch.randn(8, 192, 3)), n=256, dim=1)
