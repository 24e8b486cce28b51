# stepped once for every window

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
batches = [(torch.randn(32, 16), size * torch.randn(32, 1)) for size in (100, 100, 1, 1, 1, 1, 1, 1)]

scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for i, (x, y) in enumerate(batches[2:]):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0:
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scale <= scaler.get_scale():
            scheduler.step()
