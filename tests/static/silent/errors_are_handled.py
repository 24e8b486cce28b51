# Whoever handles an error of a batch goes on with the next one: nothing raises between the step and the update.
import torch


def train(model, loader, optimizer, log):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = (model(x) - y).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            log(loss)
            scaler.update()
        except RuntimeError as error:
            log(error)
