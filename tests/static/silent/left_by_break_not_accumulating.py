# No AMP301: as left_by_break.py; the gradients are divided before the step of a window, and where there is no
# window the loop steps every time.
import torch


def train(model, loader, optimizer, config, k, stop):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        if not config.accumulate:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        else:
            if (i + 1) % k == 0:
                for param in model.parameters():
                    if param.grad is not None:
                        param.grad.data.div_(k)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        if stop(i):
            break
