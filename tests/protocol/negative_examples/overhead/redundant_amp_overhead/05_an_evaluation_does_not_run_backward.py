# an evaluation does not run backward

import torch
from torch import nn

def evaluate(model, loader, count):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            count(model(x), y)

def train(model, loader, held_out, optimizer, loss_fn, count):
    for epoch in range(10):
        evaluate(model, held_out, count)
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
