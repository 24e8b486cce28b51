# a step hook clears

import torch

def train(model, loader, loss_fn):
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.zero_grad())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
