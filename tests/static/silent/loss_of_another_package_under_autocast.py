"""What is given to a loss of another package comes from helpers that run outside of autocast, and are no model."""

import torch
from var.loss import next_scale_loss


def train(model, loader, optimizer, config):
    scaler = torch.amp.GradScaler("cuda")
    for tokens in loader:
        dropped = drop_prefix(tokens, probability=float(config.drop))  # noqa: F821
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = next_scale_loss(model, dropped)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
