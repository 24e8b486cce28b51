# No AMP215: gradients that are too large are dropped, and the scaler is updated all the same.
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader, limit, skip):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        if torch.isfinite(norm) and norm > limit and skip:
            optimizer.zero_grad(set_to_none=True)
            scaler.step(optimizer)
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
