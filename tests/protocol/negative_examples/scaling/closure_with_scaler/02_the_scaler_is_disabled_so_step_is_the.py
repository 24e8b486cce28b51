# the scaler is disabled, so step() is the optimizer's own

import torch

def fit(optimizer, closure):
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    scaler.step(optimizer, closure)
    scaler.update()
