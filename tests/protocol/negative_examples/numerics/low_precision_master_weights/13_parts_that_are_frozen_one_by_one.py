# parameters that are frozen one by one, with a head in float32

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).half()
for p in encoder.parameters():
    p.requires_grad = False
head = nn.Linear(8, 2)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-4)


def train(loader, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(head(encoder(x.half()).float()), y).backward()
        optimizer.step()
