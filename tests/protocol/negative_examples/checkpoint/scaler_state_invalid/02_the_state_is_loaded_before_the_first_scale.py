# the state is loaded before the first scale(): the scaler keeps it until then

import torch

def resume(path, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    return scaler
