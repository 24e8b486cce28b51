# No AMP204: a scaler that is given is one, and the trainer's own stands in where none is.
import torch


class Context:
    def __init__(self, auto):
        self.scaler = None
        self.auto = auto

    def wrap_scaler(self, scaler):
        self.scaler = scaler

    def backward(self, loss):
        if self.scaler and self.auto:
            loss = self.scaler.scale(loss)
        loss.backward()

    def step(self, optimizer, clip=None, scaler=None):
        if clip is not None:
            if self.scaler and self.auto:
                self.scaler.unscale_(optimizer)
            clip([p for group in optimizer.param_groups for p in group["params"]])
        if scaler is None and self.auto:
            scaler = self.scaler
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
