# the wrapped optimizer's step calls the scaler

import torch

class ScaledOptimizer:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

def train_step(model, base, scaler, loss):
    optimizer = ScaledOptimizer(base, scaler)
    base.zero_grad()
    scaler.scale(loss).backward()
    optimizer.step()
