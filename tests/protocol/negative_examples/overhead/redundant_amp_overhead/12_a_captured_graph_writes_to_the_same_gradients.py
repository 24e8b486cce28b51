# a captured graph writes to the same gradients each time

import torch
from torch import nn

def train(model, static, loader, optimizer, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            loss = loss_fn(model(static), static)
        scaler.scale(loss).backward()
    for x in loader:
        static.copy_(x)
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
