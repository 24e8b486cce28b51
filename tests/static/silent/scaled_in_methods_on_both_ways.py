"""A loss that comes from autocast or not, as the scaler is on or off, and a method that is called on both ways."""

import torch


class Trainer:
    def __init__(self, config, model, optimizer):
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.config.mixed_precision)

    def epoch(self, loader):
        for batch in loader:
            if self.config.mixed_precision:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.model(batch).mean()
                self.apply(loss)
            else:
                self.apply(self.model(batch).mean())

    def apply(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
