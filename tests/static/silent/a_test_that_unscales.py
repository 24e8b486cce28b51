"""The test of a comprehension unscales: it is asked once for each optimizer."""

import torch


def train(model, loader, a, b, n):
    scaler = torch.amp.GradScaler("cuda")
    opt = torch.optim.AdamW(model.parameters())

    def ready(o):
        scaler.unscale_(o)
        return n > 2

    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        done = [o for o in [opt] if ready(o)]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
