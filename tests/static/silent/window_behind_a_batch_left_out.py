"""A window that begins with the clearing, in a loop that leaves batches out under one of the modes that it serves."""

import torch


class Runner:
    def __init__(self, config, model, optimizer, scaler=None):
        self.config = config
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.step = 0

    def epoch(self, mode, loader):
        for batch in loader:
            if mode == "train" and batch is None:
                continue
            if mode == "train":
                self.train_step(batch)

    def train_step(self, batch):
        if self.step % self.config.accumulate == 0:
            self.optimizer.zero_grad(set_to_none=True)
        mixed = self.scaler is not None
        with torch.autocast("cuda", dtype=torch.float16, enabled=mixed):
            loss = self.model(batch).mean() / self.config.accumulate
        if mixed:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        if (self.step + 1) % self.config.accumulate == 0:
            if mixed:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        self.step += 1
