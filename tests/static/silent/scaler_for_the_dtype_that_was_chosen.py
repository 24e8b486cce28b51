# The scaler is on where the dtype that was chosen is float16.
import torch


def setup(use_bf16):
    if use_bf16 and torch.cuda.is_bf16_supported():
        dtype = torch.bfloat16
    else:
        dtype = torch.float16
    region = torch.amp.autocast("cuda", dtype=dtype)
    return region, torch.amp.GradScaler("cuda", enabled=(dtype == torch.float16))


def setup_in_one(use_bf16):
    dtype = torch.bfloat16 if use_bf16 else torch.float16
    return torch.amp.autocast("cuda", dtype=dtype), torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
