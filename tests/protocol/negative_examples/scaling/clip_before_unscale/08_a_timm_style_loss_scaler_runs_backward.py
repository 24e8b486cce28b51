# a timm-style loss scaler runs backward, unscale, clip, step and update in one call

import torch

def train_one_epoch(model, loader, optimizer, loss_fn, loss_scaler, k):
    for i, (x, y) in enumerate(loader):
        need_update = (i + 1) % k == 0
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters(), need_update=need_update)
        if need_update:
            optimizer.zero_grad()
