# A checkpoint that is written where no scaler was given has none to hold.
import torch


class Backward:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()


def save(model, optimizer, loss_scaler, path):
    if loss_scaler is not None:
        states = {"optimizer": optimizer.state_dict(), "scaler": loss_scaler.state_dict()}
        torch.save({"model": model.state_dict(), **states}, path)
    else:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def save_by_flag(model, optimizer, use_scaler, path):
    if not use_scaler:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def load(model, optimizer, path):
    states = torch.load(path)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
