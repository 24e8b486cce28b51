"""The norm of the gradients is shown without the loss scale, which is read inside of the scaler, where there is one."""

import torch
from accelerate import Accelerator


def norm_of(parameters, scale=1):
    total = 0.0
    for p in parameters:
        if p.grad is not None:
            total += (p.grad.detach().data / scale).norm(2).item() ** 2
    return total**0.5


def train(model, loader):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for x in loader:
        loss = model(x).mean()
        accelerator.backward(loss)
        has = hasattr(accelerator, "scaler") and accelerator.scaler is not None
        print(norm_of(model.parameters(), accelerator.scaler._scale.item() if has else 1))
        optimizer.step()
        optimizer.zero_grad()


def train_by_hand(model, loader, scaler, optimizer):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        inverse = scaler._scale.double().reciprocal().float()
        print(sum((p.grad * inverse).norm() ** 2 for p in model.parameters()) ** 0.5)
        scaler.step(optimizer)
        scaler.update()
