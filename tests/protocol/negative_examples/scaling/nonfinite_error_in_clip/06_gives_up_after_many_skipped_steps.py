# gives up only where many steps in a row were skipped

import torch


def train(model, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    bad = 0
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            bad = 0
        else:
            bad += 1
        if bad > 50:
            raise RuntimeError("the scale does not settle")
        scaler.step(optimizer)
        scaler.update()
