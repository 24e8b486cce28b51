# The class enters a context that a test chose and leaves the same one: no region stays open.
from contextlib import nullcontext

import torch


class Region:
    def __init__(self, *args, **kwargs):
        if kwargs.get("dtype", torch.float32) != torch.float32:
            self.context = torch.autocast(*args, **kwargs)
        else:
            self.context = nullcontext()

    def __enter__(self):
        try:
            return self.context.__enter__()
        except RuntimeError as error:
            raise RuntimeError("this device has no autocast") from error

    def __exit__(self, *details):
        return self.context.__exit__(*details)


class Trainer:
    def __init__(self, model, dtype):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
        self.region = Region("cuda", dtype=dtype)

    def train(self, loader):
        for x, y in loader:
            with self.region:
                loss = (self.model(x) - y).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
