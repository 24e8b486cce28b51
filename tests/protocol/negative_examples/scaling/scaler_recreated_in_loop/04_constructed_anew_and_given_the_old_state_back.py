# constructed anew and given the old state back

import torch

def train(model, optimizer, stages, loss_fn):
    state = None
    for loader in stages:
        scaler = torch.amp.GradScaler("cuda")
        if state is not None:
            scaler.load_state_dict(state)
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        state = scaler.state_dict()
