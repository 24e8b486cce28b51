# the scaler's state is saved where there is a scaler

import torch

def save(path, model, optimizer, scaler):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, path)

def main(model, optimizer, loss, path, fp16):
    scaler = torch.amp.GradScaler("cuda") if fp16 else None
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save(path, model, optimizer, scaler)
