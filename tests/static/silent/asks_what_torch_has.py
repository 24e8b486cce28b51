# What an older torch needs is not what this one runs.
from contextlib import nullcontext

import torch


def components(use_amp, dtype):
    if not use_amp:
        return nullcontext(), None
    autocast = torch.autocast if hasattr(torch, "autocast") else torch.cuda.amp.autocast
    region = autocast("cuda", dtype=dtype)
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cuda")
    else:
        scaler = torch.cuda.amp.GradScaler()
    return region, scaler
