# the global step is one at the first test

import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    global_step = 0
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        global_step += 1
        if global_step % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
