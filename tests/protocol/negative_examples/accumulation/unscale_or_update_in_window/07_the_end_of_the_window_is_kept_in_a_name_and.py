# the end of the window is kept in a name and tested twice

import torch

def train(model, loader, optimizer, loss_fn, k, max_norm):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
        if last and max_norm:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
