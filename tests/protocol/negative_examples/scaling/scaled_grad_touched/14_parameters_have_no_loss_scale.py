# parameters have no loss scale

import torch
import wandb

def train(model, optimizer, scaler, loader):
    wandb.watch(model, log="parameters")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
