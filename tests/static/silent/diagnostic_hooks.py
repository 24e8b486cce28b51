# AMP301 stands: a hook that only looks at gradients averages nothing. The division here is in the loss.
import torch


def watch(model, log):
    def hook(gradient):
        log(gradient)

    for parameter in model.parameters():
        parameter.register_hook(hook)


def train(model, loader, optimizer, log, k):
    scaler = torch.amp.GradScaler("cuda")
    watch(model, log)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean() / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
