"""A dict of optimizers or one of them, which may have been wrapped: two loops over the dict find the same ones."""

import horovod.torch as hvd
import torch


def train(model, loader, optimizer, scaler, args):
    for x in loader:
        if isinstance(optimizer, dict):
            for each in optimizer.values():
                each.zero_grad()
        else:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if isinstance(optimizer, dict):
            for each in optimizer.values():
                scaler.step(each)
        else:
            scaler.step(optimizer)
        scaler.update()


def main(model, loader, args):
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.horovod:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scaler = torch.amp.GradScaler("cuda")
    train(model, loader, optimizer, scaler, args)
