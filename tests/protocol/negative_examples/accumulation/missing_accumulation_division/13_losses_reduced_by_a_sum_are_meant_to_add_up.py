# losses reduced by a sum are meant to add up

import torch
import torch.nn.functional as F

def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y, reduction="sum")
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
