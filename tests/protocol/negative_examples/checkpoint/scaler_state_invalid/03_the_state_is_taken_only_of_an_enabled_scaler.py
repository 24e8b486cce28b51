# the state is taken only of an enabled scaler

import torch

def save(path, model, optimizer, scaler):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if scaler.is_enabled():
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)

def restore(path, scaler):
    state = torch.load(path)
    if scaler.is_enabled() and state.get("scaler"):
        scaler.load_state_dict(state["scaler"])
