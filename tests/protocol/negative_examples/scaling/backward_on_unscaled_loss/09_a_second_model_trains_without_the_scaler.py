# a second model trains without the scaler

import torch

def train(model, probe, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    probe_optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        probe_optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            features = model(x)
            loss = loss_fn(features, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        probe_loss = loss_fn(probe(features.detach().float()), y)
        probe_loss.backward()
        probe_optimizer.step()
