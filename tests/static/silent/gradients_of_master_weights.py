# Gradients are copied, scaled as they are, to the master weights, whose optimizer the scaler then unscales and steps.
import torch
from torch._utils import _flatten_dense_tensors


def make_master(model_params):
    master = _flatten_dense_tensors([p.detach().float() for p in model_params])
    master = torch.nn.Parameter(master)
    master.requires_grad = True
    return [master]


def to_master(model_params, master_params):
    master_params[0].grad = _flatten_dense_tensors([p.grad.data.detach().float() for p in model_params])


def train(model, loader, loss_fn, clip):
    params = list(model.parameters())
    masters = make_master(params)
    optimizer = torch.optim.AdamW(masters)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        for p in params:
            p.grad = None
        with torch.autocast("cuda"):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        to_master(params, masters)
        if clip > 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(masters, clip)
        scaler.step(optimizer)
        scaler.update()
