# the gradients are divided after unscale_

import torch

def train(model, loader, optimizer, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            for p in model.parameters():
                p.grad.div_(k)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
