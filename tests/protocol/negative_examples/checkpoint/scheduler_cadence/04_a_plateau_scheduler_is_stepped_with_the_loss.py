# a plateau scheduler is stepped with the loss of an epoch

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
batches = [(torch.randn(32, 16), size * torch.randn(32, 1)) for size in (100, 100, 1, 1, 1, 1, 1, 1)]

plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(2):
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    plateau.step(total)
