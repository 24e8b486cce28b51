"""Muon steps the matrices and AdamW the rest: one scale, one update after both."""

import torch
from torch import nn


def train(loader, loss_fn):
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.LayerNorm(64), nn.Linear(64, 2))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    muon, adamw = torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for optimizer in (muon, adamw):
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        for optimizer in (muon, adamw):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adamw):
            scaler.step(optimizer)
        scaler.update()
