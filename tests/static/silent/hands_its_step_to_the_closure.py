# No AMP204: an optimizer of one's own that takes the number of the step besides the closure hands it on.
import torch

from optimizers import SharpnessAware


class Trainer:
    def __init__(self, model, start):
        self.model = model
        self.start = start
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.aware = SharpnessAware(model.parameters()) if start else None

    def closure(self, step):
        with torch.autocast("cuda"):
            loss = self.model(self.x).square().mean()
        if self.aware and step >= self.start:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
        return loss

    def optimize(self, step):
        self.closure(step)
        if self.aware and step >= self.start:
            self.aware.step(self.closure, step)
            self.aware.zero_grad()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
