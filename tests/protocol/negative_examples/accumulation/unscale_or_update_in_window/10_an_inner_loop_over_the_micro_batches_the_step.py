# an inner loop over the micro-batches, the step after it

import torch

def train(model, windows, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for window in windows:
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
