# No AMP110: the model enters autocast by itself, and what it is conditioned on is no model whose loss it computes.
import torch
from torch import nn

from schedules import get_noise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, sigma):
        with torch.autocast("cuda", dtype=torch.float16):
            x = self.layer(x)
        return x - sigma


def train(loader):
    noise = nn.parallel.DistributedDataParallel(get_noise())
    net = nn.parallel.DistributedDataParallel(Net().cuda())
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        sigma, weight = noise(batch)
        loss = (weight * net(batch, sigma)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
