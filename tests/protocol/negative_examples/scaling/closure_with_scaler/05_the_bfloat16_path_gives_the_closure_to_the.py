# the bfloat16 path gives the closure to the optimizer itself

import torch

def fit(model, optimizer, loss_fn, x, y):
    def closure():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
