# the branch is chosen by the precision

import torch

class Trainer:
    def __init__(self, model, optimizer, precision):
        self.model, self.optimizer, self.precision = model, optimizer, precision
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")

    def step(self, loss):
        self.optimizer.zero_grad()
        if self.precision == "fp16":
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
