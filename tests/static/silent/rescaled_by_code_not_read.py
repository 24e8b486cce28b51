"""The loss is divided by the window's length, and then given to a function that nobody can read."""

import torch
from elsewhere import make_loader, make_model, rescale_for_processes

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def forward(x, y):
    return make_model.losses(x, y)


def train(loader, k):
    window = k
    for i, (x, y) in enumerate(loader):
        if i % k == 0:
            optimizer.zero_grad()
            window = min(k, len(loader) - i)
        with torch.autocast("cuda"):
            parts = forward(x, y)
            loss = parts["total"] / window
        loss = rescale_for_processes(loss)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            scaler.step(optimizer)
            scaler.update()


train(make_loader(), 4)
