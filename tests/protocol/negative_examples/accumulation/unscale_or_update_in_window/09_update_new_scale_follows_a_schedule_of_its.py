# update(new_scale) follows a schedule of its own, at the end of the window

import torch

def train(model, loader, optimizer, loss_fn, schedule, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update(float(schedule(i)))
            optimizer.zero_grad()
