# the state is taken before the iteration begins

import torch

def train(model, loader, optimizer, loss_fn, path):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
