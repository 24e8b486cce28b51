# resumed on a CPU, where the scaler is disabled and loads nothing

import torch

def resume(path):
    scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    scaler.load_state_dict(torch.load(path, map_location="cpu")["scaler"])
    return scaler
