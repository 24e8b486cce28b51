# an unanalyzed helper adds to the checkpoint

import torch

def train(model, optimizer, loss, path, extra_state):
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **extra_state(scaler)}, path)
