# Memory runs out in the forward or the backward pass: what unscales, clips and steps has what it needs.
import torch


def train(model, loader, optimizer, log):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        except torch.cuda.OutOfMemoryError as error:
            log(error)
            optimizer.zero_grad()
