# a fixed scale, kept with update(new_scale)

import torch

class StaticScaler:
    def __init__(self, loss_scale):
        self.scaler = torch.amp.GradScaler("cuda", init_scale=loss_scale)
        self.loss_scale = float(loss_scale)

    def step(self, optimizer, loss):
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update(self.loss_scale)
