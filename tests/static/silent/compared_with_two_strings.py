# No AMP203: `kind == "none"` and `kind == "amp"` cannot both be true.
import torch


def update(model, batch, optimizer, config, scaler):
    x, y = batch
    if config.kind == "amp":
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
    else:
        loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    if config.kind == "none":
        loss.backward()
    elif config.kind == "amp":
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if config.kind == "amp":
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def train(config, model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        update(model, batch, optimizer, config, scaler)
