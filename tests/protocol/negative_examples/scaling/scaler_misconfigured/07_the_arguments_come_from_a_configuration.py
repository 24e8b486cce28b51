# the arguments come from a configuration

import torch

def build(config):
    return torch.amp.GradScaler(config.device, **config.scaler)
