# a sum over tokens is divided by the total of the window

import torch
import torch.nn.functional as F

def train(model, windows, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        total = sum(int((y != -100).sum()) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum") / total
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
