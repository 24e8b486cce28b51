# a model that is converted before it is compiled, and scales that follow each step

import torch
from torch import nn
from torchao.float8 import convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
convert_to_float8_training(model)
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    precompute_float8_dynamic_scale_for_fsdp(model)
