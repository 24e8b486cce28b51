# the learning rate is divided instead

import torch

def train(model, loader, loss_fn, lr, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr / k)
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
