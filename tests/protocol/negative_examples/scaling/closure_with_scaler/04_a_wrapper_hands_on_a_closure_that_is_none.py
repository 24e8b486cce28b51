# a wrapper hands on a closure that is None unless someone passes one

import torch

class ScaledOptimizer:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, closure=None):
        self.scaler.step(self.optimizer, closure)
        self.scaler.update()
