# the skip branch keeps the scale with update(get_scale())

import torch

def train(model, loader, optimizer, loss_fn, limit):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) > limit:
            scaler.update(scaler.get_scale())
            continue
        scaler.step(optimizer)
        scaler.update()
