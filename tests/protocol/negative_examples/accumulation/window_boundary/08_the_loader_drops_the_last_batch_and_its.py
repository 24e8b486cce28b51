# the loader drops the last batch and its length is a multiple of k

import torch
from torch.utils.data import DataLoader

def train(model, dataset, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(dataset, batch_size=8, drop_last=True)
    assert len(loader) % 4 == 0
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
