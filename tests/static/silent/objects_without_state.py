# No AMP402: what has a state_dict() is saved by it; the other branch is for plain values.
import torch


def save(path, model, optimizer, **others):
    data = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for key, value in others.items():
        if value is not None:
            if hasattr(value, "state_dict"):
                data[key] = value.state_dict()
            else:
                data[key] = value
    torch.save(data, path)


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    save("last.pt", model, optimizer, scaler=scaler, epoch=1)
