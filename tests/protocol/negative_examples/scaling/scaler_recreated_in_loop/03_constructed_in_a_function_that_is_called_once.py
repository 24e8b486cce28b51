# constructed in a function that is called once per run

import torch

def build(config):
    return torch.amp.GradScaler("cuda", enabled=config["amp"])

def main(config, model, optimizer, loader, loss_fn):
    scaler = build(config)
    for _ in range(config["epochs"]):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=config["amp"]):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
