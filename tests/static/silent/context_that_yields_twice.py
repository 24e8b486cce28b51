# A context manager that yields on each of two branches runs its body on either.
from contextlib import contextmanager

import torch


class Brain:
    def __init__(self, model, optimizers, k):
        self.model, self.optimizers, self.k = model, optimizers, k
        self.scaler = torch.amp.GradScaler("cuda")
        self.iteration = 0

    @contextmanager
    def no_sync(self, use):
        if use:
            self.model.sync = False
            yield
            self.model.sync = True
        else:
            yield

    def batch(self, x, y):
        last = self.iteration % self.k == 0
        with self.no_sync(not last):
            with torch.autocast("cuda"):
                loss = (self.model(x) - y).square().mean()
            self.scaler.scale(loss / self.k).backward()
        if last:
            self.step()

    def step(self):
        for opt in self.optimizers.values():
            self.scaler.unscale_(opt)
        for opt in self.optimizers.values():
            self.scaler.step(opt)
        self.scaler.update()
        for opt in self.optimizers.values():
            opt.zero_grad()

    def fit(self, loader):
        for x, y in loader:
            self.iteration += 1
            self.batch(x, y)
