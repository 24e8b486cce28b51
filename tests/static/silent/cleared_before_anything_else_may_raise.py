"""A batch that fails is left out: between the update and the clearing there is nothing that fails."""

import torch


def load(path):
    for alternative in (path, path + ".bak"):
        if alternative.exists():
            break
    else:
        return None
    return torch.load(alternative)


def train(model, loader, config):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    accumulate = config["accumulate"]
    optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        try:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x, y) / accumulate
            scaler.scale(loss).backward()
            if (step + 1) % accumulate == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            print(loss.item())
        except RuntimeError as error:
            print("skipped", error)


def main(path, loader, config):
    model = load(path)
    if model is None:
        return
    train(model, loader, config)
